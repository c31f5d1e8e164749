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
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// World is the input of a decision.
type World struct {
	// CronAt is nil if no CronAt of that name exists.
	CronAt *v1alpha1.CronAt
	// CronAtIsLive is true if CronAt was read from the API server in this sync. A CronAt
	// from a cache may be outdated, and may lack its template.
	CronAtIsLive bool
	// CronAtAsOf is a time: CronAt contains all changes that were made before it. It is the
	// zero time if that is unknown.
	CronAtAsOf time.Time
	isFresh    bool // whether CronAt is recent and complete enough to create its At
	// Ats are the Ats that belong to a CronAt of that name according to CronAtName.
	Ats []*v1alpha1.At
	// CountedSince maps the UIDs of Ats to the time when the controller first saw that the
	// At is counted (see IsCounted).
	CountedSince map[types.UID]time.Time
	// AtsAreLive is true if the CronAt's Ats were read from the API server in this sync, and
	// AtsAsOf is when.
	AtsAreLive bool
	AtsAsOf    time.Time
	// Forecast is the result of the last preflight of the CronAt in its current form, or nil
	// if nothing is known.
	Forecast *plan.Forecast
	// Rehearses is false if rehearsals are turned off.
	Rehearses bool
	// Now is the wall-clock time.
	Now time.Time
}

// Decision is the next step. The zero value means that there is nothing to do until the
// CronAt or its Ats change.
type Decision struct {
	// Action is what to do besides writing the status, or nil. A decision never has both an
	// action and a status.
	Action any
	// Status is the status to write, or nil to leave it unchanged. Unless Retry is set, the
	// next decision is based on what the API server returns for the write.
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

// LookForCronAt means: read the CronAt from the API server, then decide again.
type LookForCronAt struct{}

// LookForAts means: read the CronAt's Ats from the API server, then decide again.
type LookForAts struct{}

// CreateAt means: create an At of the CronAt. A later decision records the
// At: if many CronAts are due at the same instant, their Ats are created before the
// statuses are written. See Refused and AtNameTaken for the decision after an error.
type CreateAt struct{ At *v1alpha1.At }

// DeleteAts means: delete these versions of the Ats, then decide again.
type DeleteAts struct {
	Ats []*v1alpha1.At
	// Replaced is true if each At must stay until its Pods are gone.
	Replaced bool
}

// ReleaseAt means: remove the finalizer from an At, then decide again.
type ReleaseAt struct{ At *v1alpha1.At }

// ExpireAt means: set spec.startingDeadlineSeconds of an At that has not started, then
// decide again.
type ExpireAt struct {
	At      *v1alpha1.At
	Seconds int64
}

// RecordDelay is the maximum delay before a new At is recorded. After it, the controller
// looks for the At, even if the At is not in the cache. Like plan.ReleaseDelay, it ends
// between whole seconds.
const RecordDelay = 9500 * time.Millisecond

// Decide returns the next step of a CronAt.
func Decide(w World) Decision {
	w.isFresh = w.CronAt != nil && (w.CronAtIsLive || IsWhole(w.CronAt) && HasWholeStatus(w.CronAt)) && staleness.IsFresh(w.CronAtAsOf, w.Now)
	w.Now = w.Now.Round(0) // without the monotonic reading
	strangers := slices.DeleteFunc(slices.Clone(w.Ats), func(at *v1alpha1.At) bool { return !plan.IsScheduled(at) || w.IsChild(at) })
	if len(strangers) > 0 && !w.CronAtIsLive {
		// Their CronAt is gone; but the cache may not have it yet.
		return Decision{Action: LookForCronAt{}}
	}
	gone := release(w, strangers)
	if gone.Action != nil || w.CronAt == nil {
		return gone
	}
	d := decideCronAt(w)
	d.Delay = sooner(d.Delay, gone.Delay)
	return d
}

// Leave decides for a CronAt while the controller is being uninstalled. No At is created.
// An At is released when its scheduled time is recorded, so that the time does not run
// again, or when the CronAt is gone.
func Leave(w World) Decision {
	scheduled := slices.DeleteFunc(slices.Clone(w.Ats), func(at *v1alpha1.At) bool { return !plan.IsScheduled(at) })
	switch {
	case len(scheduled) == 0:
		return Decision{}
	case !w.CronAtIsLive:
		return Decision{Action: LookForCronAt{}}
	case w.CronAt != nil && !w.AtsAreLive:
		return Decision{Action: LookForAts{}}
	}
	if i := slices.IndexFunc(scheduled, w.IsCounted); i >= 0 {
		return Decision{Action: ReleaseAt{At: scheduled[i]}}
	}
	return newView(w).write()
}

// decideCronAt is Decide for a CronAt that exists.
func decideCronAt(w World) Decision {
	if w.CronAt.DeletionTimestamp != nil {
		return release(w, w.children())
	}
	v := newView(w)
	d := v.decide(w)
	d.Preflight = v.wantsPreflight()
	return d
}

func (v *view) decide(w World) Decision {
	if v.dropped && !w.AtsAreLive {
		// An At may have been created in time.
		return Decision{Action: LookForAts{}}
	}
	if v.isUrgent() {
		return v.write()
	}
	if blocked := meta.FindStatusCondition(v.cronAt.Status.Conditions, v1alpha1.ConditionBlocked); blocked != nil && (blocked.Reason == v1alpha1.ReasonAtRefused || blocked.Reason == v1alpha1.ReasonAtNameConflict) {
		// An At that can be deleted may be the one that exhausts a quota or has the name.
		if d := tidy(w, v); d.Action != nil {
			return d
		}
	}
	if !v.due.IsZero() {
		if d, decided := decideDue(w, v); decided {
			return d
		}
	}
	if d := v.write(); d.Status != nil {
		return d
	}
	d := tidy(w, v)
	d.Delay = sooner(d.Delay, v.delay())
	return d
}

// tidy releases, expires and deletes the Ats that are no longer needed.
func tidy(w World, v *view) Decision {
	d := release(w, v.children)
	if d.Action == nil {
		d.Action = v.expire()
	}
	if d.Action == nil {
		delay := d.Delay
		d = prune(w, v.children)
		d.Delay = sooner(d.Delay, delay)
	}
	return d
}

// decideDue decides for a scheduled time that is due. decided is false if the time must
// wait.
func decideDue(w World, v *view) (d Decision, decided bool) {
	child := newChild(v.cronAt, v.due, v.shift)
	tooLate := v.timeLeft() <= 0
	waits := v.policy() == v1alpha1.ForbidConcurrent && v.mustWait() && !tooLate
	switch {
	case v.mustSkip() && !w.AtsAreLive:
		// The cache may lack the Ats of earlier times, which would count as missed.
		return Decision{Action: LookForAts{}}, true
	case waits:
		v.skip()
		return Decision{}, false
	case !w.isFresh:
		// A user may have just edited, suspended or deleted the CronAt, or another controller
		// may have created the At.
		return Decision{Action: LookForCronAt{}}, true
	case !w.AtsAreLive && (tooLate || v.policy() != v1alpha1.AllowConcurrent):
		return Decision{Action: LookForAts{}}, true
	case slices.ContainsFunc(v.children, func(at *v1alpha1.At) bool { return at.Name == child.Name }):
		// A user removed its finalizer before it was recorded.
		v.record(v.due, child.Name)
		return v.write(), true
	case tooLate:
		v.miss(v.due)
		return v.write(), true
	case v.policy() == v1alpha1.ReplaceConcurrent:
		if replaced := slices.DeleteFunc(slices.Clone(v.active), func(at *v1alpha1.At) bool { return at.DeletionTimestamp != nil }); len(replaced) > 0 {
			return Decision{Action: DeleteAts{Ats: replaced, Replaced: true}, Events: deleteEvents(replaced)}, true
		}
	}
	if v.mustWait() {
		v.skip()
		return Decision{}, false
	}
	return Decision{Action: CreateAt{At: child}, Delay: sooner(RecordDelay, v.untilNext())}, true
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
		if last := v.status.LastScheduleTime; plan.IsStuck(at) && last != nil && scheduledTime(at).Before(last.Time) {
			return ExpireAt{At: at, Seconds: int64(last.Sub(scheduledTime(at)) / time.Second)}
		}
	}
	return nil
}

// prune deletes the oldest Ats beyond the history limits.
func prune(w World, children []*v1alpha1.At) Decision {
	spec := &w.CronAt.Spec
	old := append(
		beyond(ptr.Deref(spec.SuccessfulAtsHistoryLimit, 3), children, v1alpha1.ConditionComplete),
		beyond(ptr.Deref(spec.FailedAtsHistoryLimit, 1), children, v1alpha1.ConditionFailed)...)
	var d Decision
	var victims []*v1alpha1.At
	for _, at := range old {
		switch wait := plan.DeletableAt(at).Sub(w.Now); {
		case 0 < wait && wait <= plan.Grace: // A longer wait comes from another clock.
			d.Delay = sooner(d.Delay, wait)
		case !plan.IsScheduled(at):
			victims = append(victims, at)
		}
	}
	if len(victims) > 0 {
		return Decision{Action: DeleteAts{Ats: victims}, Events: deleteEvents(victims)}
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

func deleteEvents(ats []*v1alpha1.At) []plan.Event {
	var events []plan.Event
	for _, at := range ats {
		events = append(events, plan.NewEvent(corev1.EventTypeNormal, v1alpha1.ReasonSuccessfulDelete, "Deleted At "+at.Name))
	}
	return events
}

// AtNameTaken returns the decision when an At that does not belong to the CronAt has the
// name of one of its Ats.
func AtNameTaken(w World, other *v1alpha1.At) Decision {
	message := plan.NameTaken(v1alpha1.CronAtKind, other)
	if CronAtName(other) == w.CronAt.Name {
		message = fmt.Sprintf("At %s of an earlier CronAt with this name still exists: run kubectl describe at %s to see what it is waiting for.", other.Name, other.Name)
		if w.Now.Sub(w.CronAt.CreationTimestamp.Time) < plan.Grace {
			return Decision{Retry: answer.Blocked(v1alpha1.ReasonAtNameConflict, errors.New(message))}
		}
	}
	return blocked(w, v1alpha1.ReasonAtNameConflict, errors.New(message))
}

// Refused returns the decision after the API server answered the creation of an At with
// err.
func Refused(w World, err error) Decision {
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		// The CronAt is deleted with its namespace.
		return Decision{}
	case answer.IsTransient(err):
		return Decision{Retry: err}
	default:
		return blocked(w, v1alpha1.ReasonAtRefused, err)
	}
}

// blocked returns the decision to set condition Blocked and retry with back-off.
func blocked(w World, reason string, cause error) Decision {
	v := newView(w)
	if w.AtsAreLive {
		v.skip()
	}
	v.setBlocked(reason, cause.Error())
	d := v.write()
	d.Retry, d.Delay = answer.Blocked(reason, cause), v.delay()
	return d
}

// write returns the decision to write the status, unless the CronAt already has it.
func (v *view) write() Decision {
	v.explain()
	if equality.Semantic.DeepEqual(&v.cronAt.Status, v.status) || v.isKept() {
		return Decision{}
	}
	return Decision{Status: v.status, Events: v.events}
}

// isKept reports whether a CronAt of whose status not all was kept already has the status, as far
// as that is known. Otherwise, the CronAt would be read in each sync.
func (v *view) isKept() bool {
	if HasWholeStatus(v.cronAt) {
		return false
	}
	after := KeepCronAt(&v1alpha1.CronAt{Status: *v.status})
	return equality.Semantic.DeepEqual(&KeepCronAt(v.cronAt).Status, &after.Status)
}

// timeLeft returns how long after now the due time may still start according to
// spec.startingDeadlineSeconds.
func (v *view) timeLeft() time.Duration {
	return plan.StartingTimeLeft(v.due.Add(v.shift), v.cronAt.Spec.StartingDeadlineSeconds, v.now)
}

// untilNext returns the time until the next At is due, or 0 if there is none.
func (v *view) untilNext() time.Duration {
	if v.next.IsZero() {
		return 0
	}
	return v.next.Add(v.shift).Sub(v.now)
}

// delay returns the time until the next At is due or needs a preflight, or until the due
// time is missed.
func (v *view) delay() time.Duration {
	delay := sooner(v.untilNext(), v.untilForecast())
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
