/*
Copyright The cnat Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package cronplan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronexpr"
	"programming-kubernetes.info/cnat-controller/pkg/freeze"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// maxCounted is the maximum number of missed times to count at once.
const maxCounted = 100

// view is a World with everything derived from it. Its CronAt exists.
type view struct {
	World
	shift    time.Duration
	schedule *cronexpr.Schedule // nil if it is invalid
	children []*v1alpha1.At
	active   []*v1alpha1.At // the children that have not ended
	// due is the latest scheduled time that is due and was neither run nor missed; next is
	// the first that is not due. They are zero if there is no such time, or if no Ats are
	// created.
	due, next time.Time
	// status is the CronAt's status with everything there is to report, and events are the
	// events for the changes.
	status *v1alpha1.CronAtStatus
	events []plan.Event
}

func newView(w World) *view {
	v := &view{World: w, status: w.CronAt.Status.DeepCopy(), children: w.children()}
	slices.SortFunc(v.children, func(a, b *v1alpha1.At) int {
		// In order of time: a time that is recorded after a later one would count as missed.
		return scheduledTime(w.CronAt, a).Compare(scheduledTime(w.CronAt, b))
	})
	v.active = slices.DeleteFunc(slices.Clone(v.children), isDone)
	v.status.Active = int32(len(v.active))
	v.status.ObservedGeneration = w.CronAt.Generation

	if v.status.ObservedSchedule == nil {
		v.status.ObservedSchedule = observed(v.CronAt)
	}
	// What was due before an edit follows the schedule before the edit.
	err := v.follow()
	for _, at := range v.children {
		v.record(scheduledTime(v.CronAt, at), at.Name)
		completed := at.Status.CompletionTime
		if meta.IsStatusConditionTrue(at.Status.Conditions, v1alpha1.ConditionComplete) && completed != nil && later(v.status.LastSuccessfulTime, completed.Time) {
			v.status.LastSuccessfulTime = completed.DeepCopy()
		}
	}
	if v.observe() {
		err = v.follow()
	}
	if v.schedule != nil && !isSuspended(v.CronAt) {
		latest := v.schedule.Latest(v.floor(), v.Now.Add(-v.shift))
		if v.due = v.latestUnfrozen(latest); v.due.IsZero() && !latest.IsZero() {
			v.miss(latest)
		}
		if latest.IsZero() {
			latest = v.floor()
		}
		v.next = v.schedule.Next(latest)
		if v.next.IsZero() {
			err = errNever(&v.CronAt.Spec)
		}
	}
	v.skip()
	v.status.NextScheduleTime = nil
	if next := v.firstUnfrozen(v.next); !next.IsZero() {
		v.status.NextScheduleTime = &metav1.Time{Time: next.Add(v.shift)}
	}
	v.observeBlocker(err)
	return v
}

func isSuspended(cronAt *v1alpha1.CronAt) bool { return ptr.Deref(cronAt.Spec.Suspend, false) }

func policyOf(cronAt *v1alpha1.CronAt) v1alpha1.ConcurrencyPolicy {
	return cmp.Or(cronAt.Spec.ConcurrencyPolicy, v1alpha1.AllowConcurrent)
}

// mustWait reports whether a child that has not ended keeps others from being created.
func (v *view) mustWait() bool {
	return policyOf(v.CronAt) != v1alpha1.AllowConcurrent && len(v.active) > 0
}

// observed returns the schedule of a CronAt that has not been edited.
func observed(cronAt *v1alpha1.CronAt) *v1alpha1.ObservedSchedule {
	return &v1alpha1.ObservedSchedule{
		Schedule:      cronAt.Spec.Schedule,
		TimeZone:      ptr.Deref(cronAt.Spec.TimeZone, ""),
		SpreadSeconds: ptr.Deref(cronAt.Spec.SpreadSeconds, 0),
		Since:         cronAt.CreationTimestamp,
	}
}

// follow makes the scheduled times those of the observed schedule.
func (v *view) follow() (err error) {
	observed := v.status.ObservedSchedule
	v.schedule, err = parse(observed.Schedule, cmp.Or(observed.TimeZone, "UTC"))
	v.shift = shiftOf(v.CronAt.UID, observed.SpreadSeconds)
	return err
}

// observe detects edits of the schedule and changes to spec.suspend. What was due before
// them does not run, and is missed. edited is true if other times are due from now on.
func (v *view) observe() (edited bool) {
	before, is := v.status.ObservedSchedule, observed(v.CronAt)
	is.Since = before.Since
	suspend, suspended := isSuspended(v.CronAt), meta.IsStatusConditionTrue(v.status.Conditions, v1alpha1.ConditionSuspended)
	// If several edits were not observed, one of them may have changed the schedule, and
	// another may have reverted that.
	edited = *before != *is || suspended && !suspend || v.CronAt.Generation-v.CronAt.Status.ObservedGeneration > 1
	shift := shiftOf(v.CronAt.UID, is.SpreadSeconds)
	if edited || suspend && !suspended {
		until := v.editedAt().Add(-v.shift)
		if shift < v.shift && before.Schedule == is.Schedule && before.TimeZone == is.TimeZone {
			until = v.editedAt().Add(-shift)
		}
		v.miss(until)
	}
	if edited {
		since := v.editedAt().Add(-shift).Truncate(time.Second)
		if v.CronAt.CreationTimestamp.After(since) {
			since = v.CronAt.CreationTimestamp.Time
		}
		is.Since = metav1.Time{Time: since}
	}
	v.status.ObservedSchedule = is
	if suspend == suspended {
		return edited
	}
	condition := v.newCondition(v1alpha1.ConditionSuspended, v1alpha1.ReasonSuspended, "No At is created while spec.suspend is true.")
	if !suspend {
		condition.Status = metav1.ConditionFalse
		condition.Reason = v1alpha1.ReasonResumed
		condition.Message = fmt.Sprintf("The CronAt is no longer suspended. Times that were due until %s do not run.", v.editedAt().UTC().Format(time.RFC3339))
	}
	meta.SetStatusCondition(&v.status.Conditions, condition)
	v.event(corev1.EventTypeNormal, condition.Reason, condition.Message)
	return edited
}

// editedAt returns the time of the last edit of the spec, or later: the time of the last
// write to anything but the status. Times that became due between that and now are not
// past. If a field was removed, editedAt returns now, because the API server does not
// record that time.
func (v *view) editedAt() time.Time {
	before, spec := ptr.Deref(v.CronAt.Status.ObservedSchedule, v1alpha1.ObservedSchedule{}), &v.CronAt.Spec
	if spec.Suspend == nil && meta.IsStatusConditionTrue(v.CronAt.Status.Conditions, v1alpha1.ConditionSuspended) ||
		spec.TimeZone == nil && before.TimeZone != "" || spec.SpreadSeconds == nil && before.SpreadSeconds != 0 {
		return v.Now
	}
	edited := plan.WrittenAt(v.CronAt, "")
	if edited.IsZero() || edited.After(v.Now) {
		return v.Now
	}
	return edited
}

// floor returns the time after which scheduled times have neither run nor been missed.
func (v *view) floor() time.Time {
	missed, skipped := ptr.Deref(v.status.Missed, v1alpha1.MissedTimes{}), ptr.Deref(v.status.Skipped, v1alpha1.MissedTimes{})
	return slices.MaxFunc([]time.Time{
		v.status.ObservedSchedule.Since.Time, ptr.Deref(v.status.LastScheduleTime, metav1.Time{}).Time, missed.Last.Time, skipped.Last.Time,
	}, time.Time.Compare)
}

// record records that a child exists for a scheduled time. Earlier times without a child
// are missed.
func (v *view) record(scheduled time.Time, name string) {
	if !later(v.status.LastScheduleTime, scheduled) {
		return
	}
	v.miss(scheduled.Add(-time.Second))
	v.status.LastScheduleTime = &metav1.Time{Time: scheduled}
	v.event(corev1.EventTypeNormal, v1alpha1.ReasonSuccessfulCreate, "Created At "+name)
}

// skip counts what is due and does not run: only the latest time runs, and not after the starting
// deadline. Any other reason for which a time does not run belongs here. floor must know the last time
// that was counted, and isUrgent and NeedsLive must compare the count.
func (v *view) skip() {
	if v.due.IsZero() {
		return
	}
	v.miss(v.due.Add(-time.Second))
	if v.timeLeft() <= 0 {
		v.miss(v.due)
		v.due = time.Time{}
	}
}

// miss counts the scheduled times up to the given one as skipped, if a Freeze held then, or else as
// missed, except during a suspension.
func (v *view) miss(limit time.Time) {
	if v.schedule == nil || meta.IsStatusConditionTrue(v.status.Conditions, v1alpha1.ConditionSuspended) {
		return
	}
	var missed, skipped v1alpha1.MissedTimes
	var hold *freeze.Hold
	count := func(t time.Time) {
		if h := v.frozen(t); h != nil {
			skipped, hold = v1alpha1.MissedTimes{Count: skipped.Count + 1, Last: metav1.Time{Time: t}}, h
		} else {
			missed = v1alpha1.MissedTimes{Count: missed.Count + 1, Last: metav1.Time{Time: t}}
		}
	}
	floor := v.floor()
	last := v.schedule.Latest(floor, limit)
	for t := v.schedule.Next(floor); !last.IsZero() && t.Before(last) && missed.Count+skipped.Count < maxCounted-1; t = v.schedule.Next(t) {
		count(t)
	}
	if !last.IsZero() {
		count(last)
	}
	if missed.Count > 0 {
		v.status.Missed = sum(v.status.Missed, missed)
		v.event(corev1.EventTypeWarning, v1alpha1.ReasonMissSchedule, "No At was created for "+inWords(missed))
	}
	if skipped.Count > 0 {
		v.status.Skipped = sum(v.status.Skipped, skipped)
		v.event(corev1.EventTypeNormal, v1alpha1.ReasonSkipSchedule, fmt.Sprintf("No At was created for %s. %s", inWords(skipped), hold))
	}
}

// sum returns what was counted before and now.
func sum(before *v1alpha1.MissedTimes, now v1alpha1.MissedTimes) *v1alpha1.MissedTimes {
	now.Count += Count(before)
	return &now
}

// inWords returns the scheduled times that were counted, for an event.
func inWords(times v1alpha1.MissedTimes) string {
	last := times.Last.UTC().Format(time.RFC3339)
	switch times.Count {
	case 1:
		return "the scheduled time " + last
	case maxCounted:
		return fmt.Sprintf("at least %d scheduled times, most recently %s", times.Count, last)
	default:
		return fmt.Sprintf("%d scheduled times, most recently %s", times.Count, last)
	}
}

// frozen returns the Freeze that holds when the At of a scheduled time is due, or nil.
func (v *view) frozen(scheduled time.Time) *freeze.Hold { return v.holding(scheduled.Add(v.shift)) }

// holding returns the Freeze that holds at an instant, or nil.
func (v *view) holding(instant time.Time) *freeze.Hold {
	if v.Freezes.IsEmpty() {
		return nil
	}
	return v.Freezes.Holding(freeze.NewSubject(v.CronAt), instant)
}

// latestUnfrozen returns the latest scheduled time after the floor, up to a given one, at which no
// Freeze holds, or the zero time. It gives up after so many times as are counted.
func (v *view) latestUnfrozen(t time.Time) time.Time {
	for range maxCounted {
		if t.IsZero() || v.frozen(t) == nil {
			return t
		}
		t = v.schedule.Latest(v.floor(), t.Add(-time.Second))
	}
	return time.Time{}
}

// firstUnfrozen returns the first scheduled time from a given one on at which no Freeze holds, or
// the zero time.
func (v *view) firstUnfrozen(t time.Time) time.Time {
	for range maxCounted {
		hold := v.frozen(t)
		if t.IsZero() || hold == nil {
			return t
		}
		// Of the times in the Freeze, only the last one matters.
		if last := v.schedule.Latest(t, hold.Until.Add(-v.shift-time.Second)); !last.IsZero() {
			t = last
		}
		t = v.schedule.Next(t)
	}
	return t
}

// later reports whether t is after another time, which may be nil.
func later(than *metav1.Time, t time.Time) bool { return than == nil || t.After(than.Time) }

// observeBlocker keeps condition Blocked in sync with what blocks the CronAt or a child, or
// would block the next one.
func (v *view) observeBlocker(invalid error) {
	if invalid != nil {
		v.setBlocked(v1alpha1.ReasonInvalidSchedule, invalid.Error())
		return
	}
	if isRefused(v.status) && !v.due.IsZero() && !v.mustWait() {
		return // It is retried.
	}
	for _, at := range v.active {
		if blocker := plan.Blocked(at); blocker != nil {
			v.setBlocked(v1alpha1.ReasonAtBlocked, fmt.Sprintf("At %s is blocked: %s: %s", at.Name, blocker.Reason, blocker.Message))
			return
		}
	}
	v.observeForecast()
}

// isRefused reports whether the CronAt could not create its latest At.
func isRefused(status *v1alpha1.CronAtStatus) bool {
	blocked := ptr.Deref(meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionBlocked), metav1.Condition{})
	return blocked.Reason == v1alpha1.ReasonAtRefused || blocked.Reason == v1alpha1.ReasonAtNameConflict
}

// setBlocked sets condition Blocked. It records an event if the reason changes, not if
// only the message changes.
func (v *view) setBlocked(reason, message string) {
	before := meta.FindStatusCondition(v.CronAt.Status.Conditions, v1alpha1.ConditionBlocked)
	meta.SetStatusCondition(&v.status.Conditions, v.newCondition(v1alpha1.ConditionBlocked, reason, message))
	if before == nil || before.Reason != reason {
		v.event(corev1.EventTypeWarning, reason, message)
	}
}

// explain sets reason and message of the status.
func (v *view) explain() {
	v.status.Reason, v.status.Message = "", ""
	for _, conditionType := range []string{v1alpha1.ConditionSuspended, v1alpha1.ConditionBlocked} {
		if condition := plan.TrueCondition(v.status.Conditions, conditionType); condition != nil {
			v.status.Reason, v.status.Message = condition.Reason, condition.Message
		}
	}
	if v.status.Reason == "" && !v.due.IsZero() && v.mustWait() {
		v.status.Reason = v1alpha1.ReasonAtActive
		v.status.Message = fmt.Sprintf("The run that was due at %s is waiting for At %s to end.", v.due.Add(v.shift).UTC().Format(time.RFC3339), v.active[0].Name)
	}
	if hold := v.holding(v.Now); v.status.Reason == "" && v.schedule != nil && hold != nil {
		v.status.Reason, v.status.Message = v1alpha1.ReasonFrozen, hold.String()
	}
}

// isUrgent reports whether the status contains a change that decides which times run.
// Such a status is written before any action.
func (v *view) isUrgent() bool {
	was, is := &v.CronAt.Status, v.status
	observed := !equality.Semantic.DeepEqual(was.ObservedSchedule, is.ObservedSchedule)
	recorded := !equality.Semantic.DeepEqual(was.LastScheduleTime, is.LastScheduleTime)
	missed := countedTimes(was) != countedTimes(is)
	suspended := meta.IsStatusConditionTrue(was.Conditions, v1alpha1.ConditionSuspended) != meta.IsStatusConditionTrue(is.Conditions, v1alpha1.ConditionSuspended)
	return observed || recorded || missed || suspended
}

func (v *view) newCondition(conditionType, reason, message string) metav1.Condition {
	return plan.NewCondition(v.CronAt, v.Now, conditionType, reason, message)
}

func (v *view) event(eventType, reason, message string) {
	v.events = append(v.events, plan.NewEvent(eventType, reason, message))
}

// Overdue returns how long the next scheduled time in a CronAt's status has been past. Once
// the time is due, the controller creates the At, or reports why there is none; either way,
// it sets the next time within seconds.
func Overdue(cronAt *v1alpha1.CronAt, now time.Time) time.Duration {
	next := cronAt.Status.NextScheduleTime
	if next == nil || isSuspended(cronAt) || cronAt.DeletionTimestamp != nil {
		return 0
	}
	return max(0, now.Sub(next.Time))
}

// Blocked returns condition Blocked of a CronAt if it is True, or nil.
func Blocked(cronAt *v1alpha1.CronAt) *metav1.Condition {
	return plan.TrueCondition(cronAt.Status.Conditions, v1alpha1.ConditionBlocked)
}
