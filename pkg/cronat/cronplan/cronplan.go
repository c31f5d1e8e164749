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

// Package cronplan decides the next step of a CronAt. Like package plan, it is pure.
//
// schedule.go finds the scheduled times, child.go handles the Ats that a CronAt creates,
// status.go derives what the CronAt reports, and this file decides what to do.
package cronplan

import (
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/freeze"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// World is what is observed of a CronAt and its Ats: from the caches and, where NeedsLive says so,
// from the API server.
type World struct {
	// CronAt is nil if no CronAt of that name exists.
	CronAt *v1alpha1.CronAt
	// CronAtIsLive is true if CronAt was read from the API server in this sync. A CronAt
	// from a cache may be outdated, and may lack its template.
	CronAtIsLive bool
	// CronAtAsOf is a time: CronAt contains all changes that were made before it. It is the
	// zero time if that is unknown.
	CronAtAsOf time.Time
	// Ats are the Ats that belong to a CronAt of that name according to CronAtName.
	Ats []*v1alpha1.At
	// AtsAsOf is when the CronAt's Ats were read from the API server in this sync, or the zero
	// time.
	AtsAsOf time.Time
	// CountedSince maps the UIDs of Ats to the time when the controller first saw that the
	// At is counted (see IsCounted).
	CountedSince map[types.UID]time.Time
	// Forecast is the result of the last preflight of the CronAt in its current form, or nil
	// if nothing is known.
	Forecast *plan.Forecast
	// Rehearses is false if rehearsals are turned off.
	Rehearses bool
	// Freezes are those that the controller knows.
	Freezes *freeze.Set
	// Now is the wall-clock time.
	Now time.Time
}

// Decision is the next step, which is one write. The zero value means that there is nothing to
// do until the CronAt or its Ats change.
type Decision struct {
	// Action is what to do besides writing the status, or nil. A decision never has both an
	// action and a status.
	Action any
	// Status is the status to write, or nil to leave it unchanged.
	Status *v1alpha1.CronAtStatus
	// Events must be recorded after the action succeeded or the status was written.
	Events []plan.Event
	// Preflight is true if a preflight is needed: see Forecast.
	Preflight bool
	// Delay is the time after which to decide again; 0 if that is not necessary.
	Delay time.Duration
	// Retry is non-nil if the step must be retried with back-off, and is the cause. If it
	// wraps answer.ErrBlocked, the status reports the cause, or the cause will disappear
	// within moments.
	Retry error
}

// CreateAt means: create an At of the CronAt. A later decision records the
// At: if many CronAts are due at the same instant, their Ats are created before the
// statuses are written. See Refused and AtNameTaken for the decision after an error.
type CreateAt struct{ At *v1alpha1.At }

// DeleteAt means: delete this version of an At.
type DeleteAt struct {
	At *v1alpha1.At
	// Replaced is true if the At must stay until its Pods are gone.
	Replaced bool
}

// ReleaseAt means: remove the finalizer from an At.
type ReleaseAt struct{ At *v1alpha1.At }

// ExpireAt means: set spec.startingDeadlineSeconds of an At that has not started.
type ExpireAt struct {
	At      *v1alpha1.At
	Seconds int64
}

// RecordDelay is the maximum delay before a new At is recorded. After it, the controller
// looks for the At, even if the At is not in the cache. Like plan.ReleaseDelay, it ends
// between whole seconds.
const RecordDelay = 9500 * time.Millisecond

// Decide returns the next step of a CronAt, as if what was observed were the truth: see NeedsLive.
func Decide(w World) Decision {
	w.Now = w.Now.Round(0) // without the monotonic reading
	gone := release(w, w.strangers())
	if gone.Action != nil || w.CronAt == nil {
		return gone
	}
	d := decideCronAt(w)
	d.Delay = sooner(d.Delay, gone.Delay)
	return d
}

// maxListAge is the age after which the Ats of a CronAt are listed again before one is created.
// If this process was paused, another controller may have created the At of an earlier time
// meanwhile, which is still running. Scheduled times are at least a minute apart.
const maxListAge = 10 * time.Second

// NeedsLive says what must be read from the API server before a decision is made again and acted
// on. The caches are not enough to create an At, to replace one, to count a time as missed, and to
// release an At whose CronAt is gone. For all else, the write has a precondition.
func NeedsLive(w World, d Decision) (cronAt, ats bool) {
	// The cache may not have the CronAt of an At yet.
	cronAt = len(w.strangers()) > 0 && !w.CronAtIsLive
	creates, replaces := false, false
	switch action := d.Action.(type) {
	case CreateAt:
		creates = true
	case DeleteAt:
		replaces = action.Replaced
	}
	if creates || replaces {
		// A user may have just edited, suspended or deleted the CronAt, or another controller may
		// have created an At.
		isWhole := w.CronAtIsLive || IsWhole(w.CronAt)
		cronAt = cronAt || !isWhole || !staleness.IsFresh(w.CronAtAsOf, w.Now)
		ats = policyOf(w.CronAt) != v1alpha1.AllowConcurrent
	}
	if d.Status != nil {
		ats = countedTimes(d.Status) > countedTimes(&w.CronAt.Status)
	}
	return cronAt, ats && w.Now.Sub(w.AtsAsOf) > maxListAge
}

// countedTimes returns the number of scheduled times that a status counts as missed or as skipped.
func countedTimes(status *v1alpha1.CronAtStatus) int64 {
	return Count(status.Missed) + Count(status.Skipped)
}

// Count returns how many scheduled times were missed, or skipped.
func Count(times *v1alpha1.MissedTimes) int64 {
	return ptr.Deref(times, v1alpha1.MissedTimes{}).Count
}

// Leave returns the status to write while the controller is being uninstalled, or nil: the times
// whose Ats exist do not run again.
func Leave(w World) *v1alpha1.CronAtStatus {
	if w.CronAt == nil {
		return nil
	}
	return newView(w).write().Status
}

// decideCronAt is Decide for a CronAt that exists.
func decideCronAt(w World) Decision {
	if w.CronAt.DeletionTimestamp != nil {
		return release(w, w.children())
	}
	v := newView(w)
	d := v.decide()
	d.Preflight = v.wantsPreflight()
	return d
}

func (v *view) decide() Decision {
	if v.isUrgent() {
		if !v.due.IsZero() && !v.mustWait() {
			v.status.NextScheduleTime = v.CronAt.Status.NextScheduleTime // See Overdue.
		}
		return v.write()
	}
	if isRefused(&v.CronAt.Status) {
		// An At that can be deleted may be the one that exhausts a quota or has the name.
		if d := v.tidy(); d.Action != nil {
			return d
		}
	}
	if d := v.start(); d.Action != nil {
		return d
	}
	if d := v.write(); d.Status != nil {
		return d
	}
	d := v.tidy()
	d.Delay = sooner(d.Delay, v.delay())
	return d
}

// start returns what to do for the time that is due, or nothing if there is none, or if it must
// wait.
func (v *view) start() Decision {
	if v.due.IsZero() {
		return Decision{}
	}
	if policyOf(v.CronAt) == v1alpha1.ReplaceConcurrent {
		for _, at := range v.active {
			if at.DeletionTimestamp == nil {
				return deletion(DeleteAt{At: at, Replaced: true})
			}
		}
	}
	if v.mustWait() {
		return Decision{}
	}
	return Decision{Action: CreateAt{At: newChild(v.CronAt, v.due, v.shift)}, Delay: sooner(RecordDelay, v.untilNext())}
}

func deletion(action DeleteAt) Decision {
	return Decision{Action: action, Events: []plan.Event{plan.NewEvent(corev1.EventTypeNormal, v1alpha1.ReasonSuccessfulDelete, "Deleted At "+action.At.Name)}}
}

// tidy releases, expires and deletes the Ats that are no longer needed.
func (v *view) tidy() Decision {
	d := release(v.World, v.children)
	if d.Action == nil {
		d.Action = v.expire()
	}
	if d.Action == nil {
		delay := d.Delay
		d = v.prune()
		d.Delay = sooner(d.Delay, delay)
	}
	return d
}

// release releases the first of the CronAt's Ats that has been counted for long enough.
func release(w World, children []*v1alpha1.At) Decision {
	var d Decision
	for _, at := range children {
		if !plan.IsScheduled(at) || !w.IsCounted(at) {
			continue
		}
		since, seen := w.CountedSince[at.UID]
		if !seen {
			since = w.Now
		}
		wait := since.Add(plan.ReleaseDelay).Sub(w.Now)
		// A longer wait comes from another clock.
		if wait <= 0 || wait > plan.ReleaseDelay {
			return Decision{Action: ReleaseAt{At: at}}
		}
		d.Delay = sooner(d.Delay, wait)
	}
	return d
}

// expire ends the first At that is blocked and has not started although the At of a later
// time was created: only the latest runs. The deadline of an At passed when the next one
// was due. Deleting the At instead could stop a Pod that was just created.
func (v *view) expire() any {
	for _, at := range v.children {
		scheduled := scheduledTime(v.CronAt, at)
		if last := v.status.LastScheduleTime; plan.IsStuck(at) && last != nil && scheduled.Before(last.Time) {
			return ExpireAt{At: at, Seconds: int64(last.Sub(scheduled) / time.Second)}
		}
	}
	return nil
}

// prune deletes an At beyond the history limits.
func (v *view) prune() Decision {
	spec := &v.CronAt.Spec
	old := append(
		beyond(ptr.Deref(spec.SuccessfulAtsHistoryLimit, 3), v.children, v1alpha1.ConditionComplete),
		beyond(ptr.Deref(spec.FailedAtsHistoryLimit, 1), v.children, v1alpha1.ConditionFailed)...)
	var d Decision
	for _, at := range old {
		switch wait := plan.DeletableAt(at).Sub(v.Now); {
		case 0 < wait && wait <= plan.Grace: // A longer wait comes from another clock.
			d.Delay = sooner(d.Delay, wait)
		case !plan.IsScheduled(at):
			return deletion(DeleteAt{At: at})
		}
	}
	return d
}

// beyond returns the Ats that ended with the given condition, without the newest ones up
// to limit.
func beyond(limit int32, children []*v1alpha1.At, conditionType string) []*v1alpha1.At {
	ended := slices.DeleteFunc(slices.Clone(children), func(at *v1alpha1.At) bool {
		return at.DeletionTimestamp != nil || !isDone(at) || !meta.IsStatusConditionTrue(at.Status.Conditions, conditionType)
	})
	// Newest first.
	slices.SortFunc(ended, func(a, b *v1alpha1.At) int {
		if order := plan.DeletableAt(b).Compare(plan.DeletableAt(a)); order != 0 {
			return order
		}
		return strings.Compare(b.Name, a.Name)
	})
	return ended[min(int(limit), len(ended)):]
}

// AtNameTaken returns the decision when an At that does not belong to the CronAt has the
// name of one of its Ats.
func AtNameTaken(w World, other *v1alpha1.At) Decision {
	isEarlier := CronAtName(other) == w.CronAt.Name
	err := errors.New(plan.NameTaken(v1alpha1.CronAtKind, other, isEarlier))
	if isEarlier && w.Now.Sub(w.CronAt.CreationTimestamp.Time) < plan.Grace {
		return Decision{Retry: answer.Blocked(v1alpha1.ReasonAtNameConflict, err)}
	}
	return blocked(w, v1alpha1.ReasonAtNameConflict, err)
}

// Refused returns the decision after the API server answered the creation of an At with
// err.
func Refused(w World, err error) Decision {
	retry := answer.Refused(v1alpha1.ReasonAtRefused, err)
	if errors.Is(retry, answer.ErrBlocked) {
		return blocked(w, v1alpha1.ReasonAtRefused, err)
	}
	return Decision{Retry: retry}
}

// blocked returns the decision to set condition Blocked and retry with back-off.
func blocked(w World, reason string, cause error) Decision {
	v := newView(w)
	v.setBlocked(reason, cause.Error())
	d := v.write()
	d.Retry, d.Delay = answer.Blocked(reason, cause), v.delay()
	return d
}

// write returns the decision to write the status, unless the CronAt already has it.
func (v *view) write() Decision {
	v.explain()
	if equality.Semantic.DeepEqual(&v.CronAt.Status, v.status) {
		return Decision{}
	}
	return Decision{Status: v.status, Events: v.events}
}

// timeLeft returns how long after now the due time may still start according to
// spec.startingDeadlineSeconds.
func (v *view) timeLeft() time.Duration {
	return plan.StartingTimeLeft(v.due.Add(v.shift), v.CronAt.Spec.StartingDeadlineSeconds, v.Now)
}

// untilNext returns the time until the next At is due, or 0 if there is none.
func (v *view) untilNext() time.Duration {
	if v.next.IsZero() {
		return 0
	}
	return v.next.Add(v.shift).Sub(v.Now)
}

// delay returns the time until the next At is due or needs a preflight, or until the due
// time is missed.
func (v *view) delay() time.Duration {
	forecast, _ := v.untilForecast()
	delay := sooner(v.untilNext(), max(0, forecast))
	if hold := v.holding(v.Now); hold != nil {
		delay = sooner(delay, hold.Until.Sub(v.Now))
	}
	if left := v.timeLeft(); !v.due.IsZero() && left != math.MaxInt64 {
		delay = sooner(delay, max(left, 1))
	}
	return delay
}

// sooner returns the shorter of two delays. 0 means no delay is set.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
