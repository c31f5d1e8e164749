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
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

var (
	created = time.Date(2026, 12, 24, 0, 30, 0, 0, time.UTC)
	ten     = time.Date(2026, 12, 24, 10, 0, 0, 0, time.UTC)
	eleven  = ten.Add(time.Hour)
)

func at(t time.Time) *metav1.Time { return &metav1.Time{Time: t} }

// newCronAt returns an hourly CronAt that last ran at nine and has nothing to report.
func newCronAt(mutate ...func(*v1alpha1.CronAt)) *v1alpha1.CronAt {
	cronAt := &v1alpha1.CronAt{
		ObjectMeta: metav1.ObjectMeta{Name: "backup", Namespace: "default", UID: "cronat-uid", Generation: 1, ResourceVersion: "1", CreationTimestamp: *at(created)},
		Spec: v1alpha1.CronAtSpec{
			Schedule: "0 * * * *",
			AtTemplate: v1alpha1.AtTemplateSpec{
				Metadata: v1alpha1.AtTemplateMeta{Labels: map[string]string{"app": "backup"}},
				Spec:     v1alpha1.RunSpec{Command: "true"},
			},
		},
		Status: v1alpha1.CronAtStatus{
			LastScheduleTime:   at(ten.Add(-time.Hour)),
			NextScheduleTime:   at(ten),
			ObservedSchedule:   &v1alpha1.ObservedSchedule{Schedule: "0 * * * *", Since: *at(created)},
			ObservedGeneration: 1,
		},
	}
	for _, m := range mutate {
		m(cronAt)
	}
	return cronAt
}

// ranAtTen records the run at ten in a CronAt.
func ranAtTen(cronAt *v1alpha1.CronAt) {
	cronAt.Status.LastScheduleTime, cronAt.Status.NextScheduleTime = at(ten), at(eleven)
}

// ranAtEleven records the run at eleven in a CronAt.
func ranAtEleven(cronAt *v1alpha1.CronAt) { cronAt.Status.LastScheduleTime = at(eleven) }

// oneActive sets the number of Ats of a CronAt that have not ended to one.
func oneActive(cronAt *v1alpha1.CronAt) { cronAt.Status.Active = 1 }

func policy(p v1alpha1.ConcurrencyPolicy) func(*v1alpha1.CronAt) {
	return func(cronAt *v1alpha1.CronAt) { cronAt.Spec.ConcurrencyPolicy = p }
}

func deadline(seconds int64) func(*v1alpha1.CronAt) {
	return func(cronAt *v1alpha1.CronAt) { cronAt.Spec.StartingDeadlineSeconds = &seconds }
}

func edited(schedule string, when time.Time) func(*v1alpha1.CronAt) {
	return func(cronAt *v1alpha1.CronAt) {
		cronAt.Generation = 2
		cronAt.Spec.Schedule = schedule
		cronAt.ManagedFields = []metav1.ManagedFieldsEntry{{Time: at(created)}, {Time: at(when)}, {Time: at(when.Add(time.Hour)), Subresource: "status"}}
	}
}

func withCondition(conditionType string, status metav1.ConditionStatus, reason, message string, since time.Time) func(*v1alpha1.CronAt) {
	return func(cronAt *v1alpha1.CronAt) {
		cronAt.Status.Conditions = append(cronAt.Status.Conditions, metav1.Condition{Type: conditionType, Status: status, Reason: reason, Message: message, ObservedGeneration: cronAt.Generation, LastTransitionTime: *at(since)})
		if status == metav1.ConditionTrue {
			cronAt.Status.Reason, cronAt.Status.Message = reason, message
		}
	}
}

// suspended makes a CronAt suspended since nine.
func suspended(cronAt *v1alpha1.CronAt) {
	cronAt.Spec.Suspend = ptr.To(true)
	cronAt.Status.NextScheduleTime = nil
	withCondition(v1alpha1.ConditionSuspended, metav1.ConditionTrue, v1alpha1.ReasonSuspended, "No At is created while spec.suspend is true.", ten.Add(-time.Hour))(cronAt)
}

// childOf returns the child for a scheduled time, created then.
func childOf(cronAt *v1alpha1.CronAt, scheduled time.Time, mutate ...func(*v1alpha1.At)) *v1alpha1.At {
	child := newChild(cronAt, scheduled, 0)
	child.UID, child.ResourceVersion, child.CreationTimestamp = "at-uid", "1", *at(scheduled)
	child.Status.Phase = v1alpha1.PhasePending
	for _, m := range mutate {
		m(child)
	}
	return child
}

func released(at *v1alpha1.At) { at.Finalizers = nil }

func deleted(child *v1alpha1.At) { child.DeletionTimestamp = at(eleven) }

func ended(conditionType string, when time.Time) func(*v1alpha1.At) {
	return func(child *v1alpha1.At) {
		released(child)
		child.Status.Phase = v1alpha1.PhaseDone
		child.Status.CompletionTime = at(when)
		child.Status.Conditions = []metav1.Condition{{Type: conditionType, Status: metav1.ConditionTrue, LastTransitionTime: *at(when)}}
	}
}

func blockedBy(reason, message string) func(*v1alpha1.At) {
	return func(child *v1alpha1.At) {
		child.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionTrue, Reason: reason, Message: message}}
	}
}

// stranger makes an At unrelated to the CronAt.
func stranger(at *v1alpha1.At) { at.OwnerReferences, at.Finalizers, at.Labels = nil, nil, nil }

// earlier makes an At belong to an earlier CronAt with this name.
func earlier(at *v1alpha1.At) {
	at.OwnerReferences[0].UID = "earlier"
	at.Labels[v1alpha1.LabelCronAtUID] = "earlier"
}

// manual makes an At one of kubectl at run-now: the CronAt owns it, but is not its
// controller.
func manual(at *v1alpha1.At) {
	at.Name, at.Finalizers, at.Labels = "backup-manual-abcde", nil, nil
	at.OwnerReferences[0].Controller = nil
}

func orphaned(at *v1alpha1.At) { at.OwnerReferences = nil }

// forged makes an At refer to another kind with the UID of the CronAt.
func forged(at *v1alpha1.At) {
	at.Finalizers, at.Labels = nil, nil
	at.OwnerReferences[0].APIVersion, at.OwnerReferences[0].Kind = "v1", "ConfigMap"
}

func TestDecide(t *testing.T) {
	const second = time.Second
	name := "backup-" + nameOf(ten)
	blockedMessage := "At " + name + " is blocked: PodRefused: exceeded quota"
	waits := func(cronAt *v1alpha1.CronAt) {
		cronAt.Status.NextScheduleTime = at(eleven.Add(time.Hour))
		cronAt.Status.Reason, cronAt.Status.Message = v1alpha1.ReasonAtActive, "The run that was due at 2026-12-24T11:00:00Z is waiting for At "+name+" to end."
	}
	for testName, tc := range map[string]struct {
		cronAt  *v1alpha1.CronAt
		ats     []*v1alpha1.At
		live    bool
		readFor time.Duration // for how long it has been live
		atsLive bool
		notSeen bool // whether it was not seen to be counted, which is otherwise so since ten
		now     time.Time
		// expectations
		wantAction string
		wantStatus *v1alpha1.CronAt // with the status to write; nil: none
		wantEvents []string
		wantDelay  time.Duration
	}{
		"gone": {now: ten},
		"gone, with an At: it may be in the API server": {ats: []*v1alpha1.At{childOf(newCronAt(), ten)}, now: ten, wantAction: "read CronAt"},
		"gone, with an At": {ats: []*v1alpha1.At{childOf(newCronAt(), ten)}, live: true, now: ten.Add(10 * second), wantAction: "ReleaseAt " + name},
		"gone, with a new At: its name stays a lock for a while": {
			ats: []*v1alpha1.At{childOf(newCronAt(), ten)}, live: true, now: ten, wantDelay: plan.ReleaseDelay,
		},
		"gone, and its At was orphaned": {
			ats: []*v1alpha1.At{childOf(newCronAt(), ten, orphaned)}, live: true, now: ten.Add(10 * second), wantAction: "ReleaseAt " + name,
		},
		"gone, with a released At": {ats: []*v1alpha1.At{childOf(newCronAt(), ten, released)}, live: true, now: ten},
		"deleted and created again: the Ats of the earlier one are released": {
			cronAt: newCronAt(), ats: []*v1alpha1.At{childOf(newCronAt(), ten, earlier)}, live: true, now: ten.Add(10 * second), wantAction: "ReleaseAt " + name,
		},
		"being deleted: nothing is created": {cronAt: newCronAt(func(cronAt *v1alpha1.CronAt) { cronAt.DeletionTimestamp = at(ten) }), now: eleven},
		"being deleted: its Ats are released when they are old enough": {
			cronAt: newCronAt(func(cronAt *v1alpha1.CronAt) { cronAt.DeletionTimestamp = at(ten) }), ats: []*v1alpha1.At{childOf(newCronAt(), ten)}, now: ten.Add(4 * second),
			wantDelay: plan.ReleaseDelay - 4*second,
		},
		"just created": {
			cronAt: newCronAt(func(cronAt *v1alpha1.CronAt) { cronAt.Status = v1alpha1.CronAtStatus{} }), now: created,
			wantStatus: newCronAt(func(cronAt *v1alpha1.CronAt) {
				cronAt.Status.LastScheduleTime, cronAt.Status.NextScheduleTime = nil, at(created.Add(30*time.Minute))
			}),
		},
		"not due":                         {cronAt: newCronAt(), now: ten.Add(-second), wantDelay: second},
		"due":                             {cronAt: newCronAt(), now: ten, wantAction: "read CronAt"},
		"due, and read half a second ago": {cronAt: newCronAt(), live: true, readFor: staleness.FreshFor, now: ten, wantAction: "read CronAt"},
		"due, and live":                   {cronAt: newCronAt(), live: true, now: ten, wantAction: "CreateAt " + name + " for 2026-12-24T10:00:00Z", wantDelay: RecordDelay},
		"overdue for more than an hour: look which earlier times have an At": {
			cronAt: newCronAt(), live: true, now: eleven.Add(3 * time.Hour), wantAction: "read Ats",
		},
		"overdue for more than an hour: the Ats were read too long ago": {
			cronAt: newCronAt(), live: true, atsLive: true, readFor: maxListAge + second, now: eleven.Add(3 * time.Hour), wantAction: "read Ats",
		},
		"overdue for more than an hour: an earlier time has one, which the cache lacked": {
			cronAt: newCronAt(), ats: []*v1alpha1.At{childOf(newCronAt(), ten)}, live: true, atsLive: true, now: eleven,
			wantStatus: newCronAt(ranAtTen, oneActive, func(cronAt *v1alpha1.CronAt) { cronAt.Status.NextScheduleTime = at(ten) }),
			wantEvents: []string{"Normal SuccessfulCreate Created At " + name},
		},
		"overdue for more than an hour: only the latest": {
			cronAt: newCronAt(), live: true, atsLive: true, now: eleven.Add(3 * time.Hour),
			wantStatus: newCronAt(func(cronAt *v1alpha1.CronAt) {
				cronAt.Status.Missed = &v1alpha1.MissedTimes{Count: 4, Last: *at(eleven.Add(2 * time.Hour))}
			}),
			wantEvents: []string{"Warning MissSchedule No At was created for 4 scheduled times, most recently 2026-12-24T13:00:00Z"},
		},
		"the others are counted as missed": {
			cronAt: newCronAt(func(cronAt *v1alpha1.CronAt) {
				cronAt.Status.Missed = &v1alpha1.MissedTimes{Count: 4, Last: *at(eleven.Add(2 * time.Hour))}
			}), live: true, now: eleven.Add(3 * time.Hour),
			wantAction: "CreateAt backup-" + nameOf(eleven.Add(3*time.Hour)) + " for 2026-12-24T14:00:00Z", wantDelay: RecordDelay,
		},
		"due, and due again before the new At would have to be recorded": {
			cronAt: newCronAt(), live: true, now: eleven.Add(-4 * second), wantAction: "CreateAt " + name + " for 2026-12-24T10:00:00Z", wantDelay: 4 * second,
		},
		"the At exists": {
			cronAt: newCronAt(), ats: []*v1alpha1.At{childOf(newCronAt(), ten)}, now: ten,
			wantStatus: newCronAt(ranAtTen, oneActive), wantEvents: []string{"Normal SuccessfulCreate Created At " + name},
		},
		"the At exists, a user has deleted it": {
			cronAt: newCronAt(), ats: []*v1alpha1.At{childOf(newCronAt(), ten, deleted)}, now: ten,
			wantStatus: newCronAt(ranAtTen, oneActive), wantEvents: []string{"Normal SuccessfulCreate Created At " + name},
		},
		"the At exists, a user has removed its owner": {
			cronAt: newCronAt(), ats: []*v1alpha1.At{childOf(newCronAt(), ten, orphaned)}, now: ten,
			wantStatus: newCronAt(ranAtTen, oneActive), wantEvents: []string{"Normal SuccessfulCreate Created At " + name},
		},
		"the At exists, a user has removed its finalizer": {
			cronAt: newCronAt(), ats: []*v1alpha1.At{childOf(newCronAt(), ten, released)}, live: true, now: ten,
			wantStatus: newCronAt(ranAtTen, oneActive), wantEvents: []string{"Normal SuccessfulCreate Created At " + name},
		},
		"an At with the name, whose owner of another kind has the same UID": {
			cronAt: newCronAt(), ats: []*v1alpha1.At{childOf(newCronAt(), ten, forged)}, live: true, now: ten,
			wantAction: "CreateAt " + name + " for 2026-12-24T10:00:00Z", wantDelay: RecordDelay,
		},
		"the At exists, after times that were missed": {
			cronAt: newCronAt(func(cronAt *v1alpha1.CronAt) { cronAt.Status.LastScheduleTime = at(ten.Add(-3 * time.Hour)) }),
			ats:    []*v1alpha1.At{childOf(newCronAt(), ten)}, atsLive: true, now: ten,
			wantStatus: newCronAt(ranAtTen, oneActive, func(cronAt *v1alpha1.CronAt) {
				cronAt.Status.Missed = &v1alpha1.MissedTimes{Count: 2, Last: *at(ten.Add(-time.Hour))}
			}),
			wantEvents: []string{
				"Warning MissSchedule No At was created for 2 scheduled times, most recently 2026-12-24T09:00:00Z",
				"Normal SuccessfulCreate Created At " + name,
			},
		},
		"the At exists, and the schedule has been edited since": {
			cronAt: newCronAt(edited("30 * * * *", ten.Add(second))), ats: []*v1alpha1.At{childOf(newCronAt(), ten)}, now: ten.Add(2 * second),
			wantStatus: newCronAt(edited("30 * * * *", ten.Add(second)), oneActive, func(cronAt *v1alpha1.CronAt) {
				cronAt.Status.ObservedGeneration = 2
				cronAt.Status.ObservedSchedule = &v1alpha1.ObservedSchedule{Schedule: "30 * * * *", Since: *at(ten.Add(second))}
				cronAt.Status.LastScheduleTime, cronAt.Status.NextScheduleTime = at(ten), at(ten.Add(30*time.Minute))
			}),
			wantEvents: []string{"Normal SuccessfulCreate Created At " + name},
		},
		"recorded: the At is released later": {
			cronAt: newCronAt(ranAtTen, oneActive), ats: []*v1alpha1.At{childOf(newCronAt(), ten)}, now: ten.Add(second), wantDelay: plan.ReleaseDelay - second,
		},
		"recorded long ago, but seen just now": {
			cronAt: newCronAt(ranAtTen, oneActive), ats: []*v1alpha1.At{childOf(newCronAt(), ten)}, notSeen: true, now: ten.Add(time.Minute), wantDelay: plan.ReleaseDelay,
		},
		"recorded: the At is released": {
			cronAt: newCronAt(ranAtTen, oneActive), ats: []*v1alpha1.At{childOf(newCronAt(), ten)}, now: ten.Add(10 * second), wantAction: "ReleaseAt " + name, wantDelay: time.Hour - 10*second,
		},
		"recorded, and the At is gone: it does not run again": {
			cronAt: newCronAt(ranAtTen), live: true, now: ten.Add(second), wantDelay: time.Hour - second,
		},
		"the clock was set back": {cronAt: newCronAt(ranAtTen), live: true, now: ten.Add(-time.Hour), wantDelay: 2 * time.Hour},
		"an edit does not run times in the past": {
			cronAt: newCronAt(edited("30 * * * *", ten.Add(-time.Minute))), live: true, now: ten.Add(-time.Minute),
			wantStatus: newCronAt(edited("30 * * * *", ten), func(cronAt *v1alpha1.CronAt) {
				cronAt.Status.ObservedGeneration = 2
				cronAt.Status.ObservedSchedule = &v1alpha1.ObservedSchedule{Schedule: "30 * * * *", Since: *at(ten.Add(-time.Minute))}
				cronAt.Status.NextScheduleTime = at(ten.Add(30 * time.Minute))
			}),
		},
		"an edit without a controller: times after it are not in the past": {
			cronAt: newCronAt(edited("15 * * * *", ten)), live: true, atsLive: true, now: eleven,
			wantStatus: newCronAt(edited("15 * * * *", ten), func(cronAt *v1alpha1.CronAt) {
				cronAt.Status.ObservedGeneration = 2
				cronAt.Status.ObservedSchedule = &v1alpha1.ObservedSchedule{Schedule: "15 * * * *", Since: *at(ten)}
				cronAt.Status.Missed = &v1alpha1.MissedTimes{Count: 1, Last: *at(ten)}
			}),
			wantEvents: []string{"Warning MissSchedule No At was created for the scheduled time 2026-12-24T10:00:00Z"},
		},
		"an edit of the template does not affect the schedule": {
			cronAt: newCronAt(edited("0 * * * *", ten.Add(second))), live: true, now: ten.Add(2 * second),
			wantAction: "CreateAt " + name + " for 2026-12-24T10:00:00Z", wantDelay: RecordDelay,
		},
		"suspended": {
			cronAt: newCronAt(func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = ptr.To(true) }), live: true, now: ten.Add(-time.Hour),
			wantStatus: newCronAt(suspended), wantEvents: []string{"Normal Suspended No At is created while spec.suspend is true."},
		},
		"suspended: nothing is created": {cronAt: newCronAt(suspended), live: true, now: ten},
		"resumed: times that were due in the meantime do not run": {
			cronAt: newCronAt(suspended, func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = nil }), live: true, now: eleven,
			wantStatus: newCronAt(func(cronAt *v1alpha1.CronAt) {
				withCondition(v1alpha1.ConditionSuspended, metav1.ConditionFalse, v1alpha1.ReasonResumed, "The CronAt is no longer suspended. Times that were due until 2026-12-24T11:00:00Z do not run.", eleven)(cronAt)
				cronAt.Status.ObservedSchedule.Since = *at(eleven)
				cronAt.Status.NextScheduleTime = at(eleven.Add(time.Hour))
			}),
			wantEvents: []string{"Normal Resumed The CronAt is no longer suspended. Times that were due until 2026-12-24T11:00:00Z do not run."},
		},
		"Forbid does not wait for a manual run": {
			cronAt: newCronAt(ranAtTen, policy(v1alpha1.ForbidConcurrent)), ats: []*v1alpha1.At{childOf(newCronAt(), ten, manual)}, live: true, atsLive: true, now: eleven,
			wantAction: "CreateAt backup-" + nameOf(eleven) + " for 2026-12-24T11:00:00Z", wantDelay: RecordDelay,
		},
		"within the deadline": {cronAt: newCronAt(deadline(10)), live: true, now: ten.Add(10*second + 999*time.Millisecond), wantAction: "CreateAt " + name + " for 2026-12-24T10:00:00Z", wantDelay: RecordDelay},
		"after the deadline: look whether it was created in time": {
			cronAt: newCronAt(deadline(10)), live: true, now: ten.Add(11 * second), wantAction: "read Ats",
		},
		"after the deadline": {
			cronAt: newCronAt(deadline(10)), live: true, atsLive: true, now: ten.Add(11 * second),
			wantStatus: newCronAt(func(cronAt *v1alpha1.CronAt) {
				cronAt.Status.Missed = &v1alpha1.MissedTimes{Count: 1, Last: *at(ten)}
				cronAt.Status.NextScheduleTime = at(eleven)
			}),
			wantEvents: []string{"Warning MissSchedule No At was created for the scheduled time 2026-12-24T10:00:00Z"},
		},
		"missed, and reported": {
			cronAt: newCronAt(ranAtTen, func(cronAt *v1alpha1.CronAt) {
				cronAt.Status.LastScheduleTime = at(ten.Add(-time.Hour))
				cronAt.Status.Missed = &v1alpha1.MissedTimes{Count: 1, Last: *at(ten)}
			}),
			live: true, now: ten.Add(time.Minute), wantDelay: 59 * time.Minute,
		},
		"within a deadline that overflows a duration with the spread": {
			cronAt: newCronAt(deadline(9223372035), func(cronAt *v1alpha1.CronAt) {
				cronAt.Spec.SpreadSeconds = ptr.To[int32](3600)
				cronAt.Status.ObservedSchedule.SpreadSeconds = 3600
			}), live: true, now: ten.Add(59 * time.Minute), wantAction: "CreateAt " + name + " for 2026-12-24T10:00:00Z", wantDelay: RecordDelay,
		},
		"Allow: created in addition to an active one": {
			cronAt: newCronAt(ranAtTen, oneActive), ats: []*v1alpha1.At{childOf(newCronAt(), ten, released)}, live: true, now: eleven,
			wantAction: "CreateAt backup-" + nameOf(eleven) + " for 2026-12-24T11:00:00Z", wantDelay: RecordDelay,
		},
		"Forbid: look which are active": {
			cronAt: newCronAt(ranAtTen, policy(v1alpha1.ForbidConcurrent)), live: true, now: eleven, wantAction: "read Ats",
		},
		"Forbid: none is active": {
			cronAt: newCronAt(ranAtTen, policy(v1alpha1.ForbidConcurrent)), ats: []*v1alpha1.At{childOf(newCronAt(), ten, ended(v1alpha1.ConditionFailed, ten))}, live: true, atsLive: true, now: eleven,
			wantAction: "CreateAt backup-" + nameOf(eleven) + " for 2026-12-24T11:00:00Z", wantDelay: RecordDelay,
		},
		"Forbid: one is active": {
			cronAt: newCronAt(ranAtTen, oneActive, policy(v1alpha1.ForbidConcurrent)), ats: []*v1alpha1.At{childOf(newCronAt(), ten, released)}, live: true, atsLive: true, now: eleven,
			wantStatus: newCronAt(ranAtTen, oneActive, waits),
		},
		"Forbid: one is active, which is reported": {
			cronAt: newCronAt(ranAtTen, oneActive, policy(v1alpha1.ForbidConcurrent), deadline(60), waits), ats: []*v1alpha1.At{childOf(newCronAt(), ten, released)}, live: true, atsLive: true, now: eleven,
			wantDelay: 61 * second,
		},
		"Forbid: one is blocked": {
			cronAt: newCronAt(ranAtTen, oneActive, policy(v1alpha1.ForbidConcurrent)), ats: []*v1alpha1.At{childOf(newCronAt(), ten, released, blockedBy("PodRefused", "exceeded quota"))}, live: true, atsLive: true, now: eleven,
			wantStatus: newCronAt(ranAtTen, oneActive, waits, withCondition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, v1alpha1.ReasonAtBlocked, blockedMessage, eleven)),
			wantEvents: []string{"Warning AtBlocked " + blockedMessage},
		},
		"it is no longer blocked": {
			cronAt:     newCronAt(ranAtTen, oneActive, withCondition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, v1alpha1.ReasonAtBlocked, blockedMessage, ten)),
			ats:        []*v1alpha1.At{childOf(newCronAt(), ten, released)},
			now:        ten.Add(second),
			wantStatus: newCronAt(ranAtTen, oneActive, func(cronAt *v1alpha1.CronAt) { cronAt.Status.Conditions = []metav1.Condition{} }),
		},
		"Replace: one is active": {
			cronAt: newCronAt(ranAtTen, oneActive, policy(v1alpha1.ReplaceConcurrent)), ats: []*v1alpha1.At{childOf(newCronAt(), ten, released)}, live: true, atsLive: true, now: eleven,
			wantAction: "DeleteAt with its Pods " + name, wantEvents: []string{"Normal SuccessfulDelete Deleted At " + name},
		},
		"Replace: one is being deleted": {
			cronAt: newCronAt(ranAtTen, oneActive, policy(v1alpha1.ReplaceConcurrent), waits), ats: []*v1alpha1.At{childOf(newCronAt(), ten, released, deleted)}, live: true, atsLive: true, now: eleven,
			wantDelay: time.Hour,
		},
		"Replace: it is gone": {
			cronAt: newCronAt(ranAtTen, policy(v1alpha1.ReplaceConcurrent), waits), live: true, atsLive: true, now: eleven,
			wantAction: "CreateAt backup-" + nameOf(eleven) + " for 2026-12-24T11:00:00Z", wantDelay: RecordDelay,
		},
		"one has succeeded": {
			cronAt: newCronAt(ranAtTen, oneActive), ats: []*v1alpha1.At{childOf(newCronAt(), ten, ended(v1alpha1.ConditionComplete, ten.Add(second)))}, now: ten.Add(second),
			wantStatus: newCronAt(ranAtTen, func(cronAt *v1alpha1.CronAt) { cronAt.Status.LastSuccessfulTime = at(ten.Add(second)) }),
		},
		"the history is longer than its limits": {
			cronAt: newCronAt(ranAtTen), now: ten.Add(time.Minute),
			ats: []*v1alpha1.At{
				childOf(newCronAt(), ten, ended(v1alpha1.ConditionFailed, ten)),
				childOf(newCronAt(), ten.Add(-time.Hour), ended(v1alpha1.ConditionFailed, ten.Add(-time.Hour))),
				childOf(newCronAt(), ten.Add(-2*time.Hour), ended(v1alpha1.ConditionFailed, ten.Add(-2*time.Hour)), deleted),
			},
			wantAction: "DeleteAt backup-" + nameOf(ten.Add(-time.Hour)), wantEvents: []string{"Normal SuccessfulDelete Deleted At backup-" + nameOf(ten.Add(-time.Hour))}, wantDelay: 59 * time.Minute,
		},
		"the history of successes is longer than its limit": {
			cronAt: newCronAt(ranAtTen, func(cronAt *v1alpha1.CronAt) {
				cronAt.Spec.SuccessfulAtsHistoryLimit, cronAt.Status.LastSuccessfulTime = ptr.To[int32](0), at(ten)
			}), now: ten.Add(time.Minute),
			ats:        []*v1alpha1.At{childOf(newCronAt(), ten, ended(v1alpha1.ConditionComplete, ten))},
			wantAction: "DeleteAt " + name, wantEvents: []string{"Normal SuccessfulDelete Deleted At " + name}, wantDelay: 59 * time.Minute,
		},
		"an At that has just ended is not deleted yet": {
			cronAt: newCronAt(ranAtTen, func(cronAt *v1alpha1.CronAt) { cronAt.Spec.FailedAtsHistoryLimit = ptr.To[int32](0) }), now: ten.Add(time.Minute),
			ats:       []*v1alpha1.At{childOf(newCronAt(), ten, ended(v1alpha1.ConditionFailed, ten.Add(time.Minute)))},
			wantDelay: 10*second + 500*time.Millisecond,
		},
		"the schedule is invalid": {
			cronAt: newCronAt(func(cronAt *v1alpha1.CronAt) {
				cronAt.Spec.Schedule, cronAt.Status.ObservedSchedule.Schedule = "0 * * 13 *", "0 * * 13 *"
			}), now: ten,
			wantStatus: newCronAt(func(cronAt *v1alpha1.CronAt) {
				cronAt.Status.ObservedSchedule.Schedule, cronAt.Status.NextScheduleTime = "0 * * 13 *", nil
				withCondition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, v1alpha1.ReasonInvalidSchedule, `spec.schedule "0 * * 13 *" is invalid: month "13": write numbers from 1 to 12 or names from JAN to DEC, ranges such as 2-5, steps such as */2, lists such as 2,4, or *`, ten)(cronAt)
			}),
			wantEvents: []string{`Warning InvalidSchedule spec.schedule "0 * * 13 *" is invalid: month "13": write numbers from 1 to 12 or names from JAN to DEC, ranges such as 2-5, steps such as */2, lists such as 2,4, or *`},
		},
	} {
		t.Run(testName, func(t *testing.T) {
			w := World{CronAt: tc.cronAt, CronAtIsLive: tc.live, Ats: tc.ats, Forecast: &plan.Forecast{}, Now: tc.now}
			if tc.atsLive {
				w.AtsAsOf = tc.now.Add(-tc.readFor)
			}
			if tc.live {
				w.CronAtAsOf = tc.now.Add(-tc.readFor)
			}
			if !tc.notSeen {
				w.CountedSince = map[types.UID]time.Time{"at-uid": ten}
			}
			d := decideOrRead(w)
			if diff := cmp.Diff(tc.wantAction, describe(d.Action)); diff != "" {
				t.Errorf("action (-want +got):\n%s", diff)
			}
			want, got := "none", "none"
			if tc.wantStatus != nil {
				want = fmt.Sprintf("%+v", tc.wantStatus.Status)
			}
			if d.Status != nil {
				got = fmt.Sprintf("%+v", *d.Status)
			}
			if tc.wantStatus == nil || d.Status == nil {
				if want != got {
					t.Errorf("status %s, want %s", got, want)
				}
			} else if diff := cmp.Diff(&tc.wantStatus.Status, d.Status); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
			var events []string
			for _, event := range d.Events {
				events = append(events, event.Type+" "+event.Reason+" "+event.Message)
			}
			if diff := cmp.Diff(tc.wantEvents, events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if d.Delay != tc.wantDelay || d.Retry != nil {
				t.Errorf("delay %s, retry %v; want %s and none", d.Delay, d.Retry, tc.wantDelay)
			}
		})
	}
}

// decideOrRead returns the next step, or a decision with a text that says what to read before it.
func decideOrRead(w World) Decision {
	d := Decide(w)
	switch cronAt, ats := NeedsLive(w, d); {
	case cronAt && ats:
		return Decision{Action: "read CronAt and Ats"}
	case cronAt:
		return Decision{Action: "read CronAt"}
	case ats:
		return Decision{Action: "read Ats"}
	}
	return d
}

// describe returns a text for an action.
func describe(action any) string {
	switch action := action.(type) {
	case CreateAt:
		return "CreateAt " + action.At.Name + " for " + action.At.Annotations[v1alpha1.AnnotationScheduledTime]
	case DeleteAt:
		if action.Replaced {
			return "DeleteAt with its Pods " + action.At.Name
		}
		return "DeleteAt " + action.At.Name
	case ExpireAt:
		return fmt.Sprintf("ExpireAt %s after %ds", action.At.Name, action.Seconds)
	case ReleaseAt:
		return "ReleaseAt " + action.At.Name
	case string:
		return action
	}
	return ""
}

func TestNewChild(t *testing.T) {
	cronAt := newCronAt(deadline(60))
	got := newChild(cronAt, ten, 90*time.Second)
	want := &v1alpha1.At{
		ObjectMeta: metav1.ObjectMeta{
			Name: "backup-29968440", Namespace: "default",
			Labels:          map[string]string{"app": "backup", v1alpha1.LabelCronAtUID: "cronat-uid", v1alpha1.LabelCronAtName: "backup", v1alpha1.LabelExcludeFromBackup: "true"},
			Annotations:     map[string]string{v1alpha1.AnnotationScheduledTime: "2026-12-24T10:00:00Z"},
			Finalizers:      []string{v1alpha1.FinalizerScheduled},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "cnat.programming-kubernetes.info/v1alpha1", Kind: "CronAt", Name: "backup", UID: "cronat-uid", Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}},
		},
		Spec: v1alpha1.AtSpec{Schedule: "2026-12-24T10:01:30Z", StartingDeadlineSeconds: ptr.To[int64](60), RunSpec: v1alpha1.RunSpec{Command: "true"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	cronAt.Name = strings.Repeat("a", 253)
	if got := newChild(cronAt, ten, 0); len(got.Name) > 253 || got.Labels[v1alpha1.LabelCronAtName] != "" {
		t.Errorf("name %s, labels %v", got.Name, got.Labels)
	}
	if got, want := nameOf(ten.Add(time.Second)), "1798106401"; got != want {
		t.Errorf("name of a time that is not a whole minute: %s, want %s", got, want)
	}
}

func TestRefusals(t *testing.T) {
	w := World{CronAt: newCronAt(), CronAtIsLive: true, CronAtAsOf: ten, Now: ten}
	quota := apierrors.NewForbidden(v1alpha1.Resource("ats"), "backup", errors.New("exceeded quota"))
	for name, tc := range map[string]struct {
		decision   Decision
		wantReason string // of condition Blocked; empty: not blocked
		wantRetry  bool
	}{
		"refused":                      {Refused(w, quota), v1alpha1.ReasonAtRefused, true},
		"a conflict of the quota":      {Refused(w, apierrors.NewConflict(v1alpha1.Resource("ats"), "backup", errors.New("modified"))), "", true},
		"an unrelated At has the name": {AtNameTaken(w, childOf(newCronAt(), ten, stranger)), v1alpha1.ReasonAtNameConflict, true},
		"an earlier At has the name":   {AtNameTaken(w, childOf(newCronAt(), ten, earlier)), v1alpha1.ReasonAtNameConflict, true},
		"an earlier At still has the name": {
			AtNameTaken(World{CronAt: newCronAt(func(cronAt *v1alpha1.CronAt) { cronAt.CreationTimestamp = *at(ten.Add(-time.Second)) }), Now: ten}, childOf(newCronAt(), ten, earlier)), "", true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			reason := ""
			if tc.decision.Status != nil {
				reason = tc.decision.Status.Reason
			}
			if reason != tc.wantReason || (tc.decision.Retry != nil) != tc.wantRetry {
				t.Errorf("reason %q, retry %v; want %q", reason, tc.decision.Retry, tc.wantReason)
			}
			if tc.wantReason == "" {
				return
			}
			if !errors.Is(tc.decision.Retry, answer.ErrBlocked) {
				t.Errorf("retry %v", tc.decision.Retry)
			}
			// It stays blocked as long as the time is due.
			w := w
			w.CronAt = w.CronAt.DeepCopy()
			w.CronAt.Status = *tc.decision.Status
			if d := Decide(w); describe(d.Action) == "" || d.Status != nil {
				t.Errorf("then %+v", d)
			}
			w.Ats = []*v1alpha1.At{childOf(w.CronAt, ten)}
			if d := Decide(w); d.Status == nil || d.Status.Reason != "" || len(d.Status.Conditions) > 0 {
				t.Errorf("then %+v", d)
			}
		})
	}
}

// TestKept checks that the fields in the caches lead to the same decisions.
func TestKept(t *testing.T) {
	cronAt := newCronAt(edited("30 * * * *", ten.Add(time.Second)))
	w := World{CronAt: cronAt, Ats: []*v1alpha1.At{childOf(newCronAt(), ten)}, Now: eleven}
	want := Decide(w)
	w.CronAt, w.Ats = KeepCronAt(cronAt), []*v1alpha1.At{plan.KeepAt(w.Ats[0])}
	if diff := cmp.Diff(want, Decide(w)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if w.CronAt.Spec.AtTemplate.Spec.Command != "" {
		t.Error("the cache has the template")
	}
}

// TestUnseenEdits covers edits whose time the API server does not record, or that the
// controller has not processed: times that were due before do not run.
func TestUnseenEdits(t *testing.T) {
	later := ten.Add(30 * time.Minute)
	onlyCreated := func(cronAt *v1alpha1.CronAt) {
		cronAt.Generation = 2
		cronAt.ManagedFields = []metav1.ManagedFieldsEntry{{Time: at(created)}}
	}
	for name, tc := range map[string]struct {
		mutate []func(*v1alpha1.CronAt)
		due    bool
	}{
		"no edit":             {nil, true},
		"the template":        {[]func(*v1alpha1.CronAt){onlyCreated}, true},
		"suspend was removed": {[]func(*v1alpha1.CronAt){suspended, onlyCreated, func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = nil }}, false},
		"the time zone was removed": {[]func(*v1alpha1.CronAt){onlyCreated, func(cronAt *v1alpha1.CronAt) {
			cronAt.Status.ObservedSchedule.TimeZone = "Europe/Berlin"
		}}, false},
		"suspended and resumed in between": {[]func(*v1alpha1.CronAt){edited("0 * * * *", later), func(cronAt *v1alpha1.CronAt) { cronAt.Generation = 3 }}, false},
		"edited before the first sync": {[]func(*v1alpha1.CronAt){edited("0 * * * *", later), func(cronAt *v1alpha1.CronAt) {
			cronAt.Status = v1alpha1.CronAtStatus{}
		}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			v := newView(World{CronAt: newCronAt(tc.mutate...), CronAtIsLive: true, CronAtAsOf: later, AtsAsOf: later, Now: later})
			if v.due.IsZero() == tc.due {
				t.Errorf("due is %v", v.due)
			}
		})
	}
}

// TestRecordOrder records two Ats of a CronAt at once. By their names, of minutes and of
// seconds, the later one comes first: the earlier one must not count as missed.
func TestRecordOrder(t *testing.T) {
	cronAt := newCronAt(func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Schedule = "@every 90s" })
	cronAt.Status.ObservedSchedule.Schedule = cronAt.Spec.Schedule
	cronAt.Status.LastScheduleTime = at(ten.Add(-90 * time.Second))
	first, second := childOf(cronAt, ten), childOf(cronAt, ten.Add(90*time.Second))
	if first.Name < second.Name {
		t.Fatalf("%s comes before %s", first.Name, second.Name)
	}
	d := Decide(World{CronAt: cronAt, CronAtIsLive: true, CronAtAsOf: ten.Add(91 * time.Second), Ats: []*v1alpha1.At{first, second}, Now: ten.Add(91 * time.Second)})
	if d.Status == nil || d.Status.Missed != nil || !d.Status.LastScheduleTime.Time.Equal(ten.Add(90*time.Second)) {
		t.Errorf("got %+v", d.Status)
	}
}

// TestCopies covers Ats that look like children of a CronAt: copies that people made of a
// child, and children of a controller whose clock is ahead. They neither stop nor delay
// the CronAt.
func TestCopies(t *testing.T) {
	future := ten.AddDate(9, 0, 0)
	renamed := func(child *v1alpha1.At) { child.Name = "backup-copy" }
	later := func(child *v1alpha1.At) { child.Spec.Schedule = future.Format(time.RFC3339) }
	annotated := func(value string) func(*v1alpha1.At) {
		return func(child *v1alpha1.At) { child.Annotations[v1alpha1.AnnotationScheduledTime] = value }
	}
	create := "CreateAt backup-" + nameOf(eleven) + " for 2026-12-24T11:00:00Z"
	for name, tc := range map[string]struct {
		policy v1alpha1.ConcurrencyPolicy
		at     *v1alpha1.At
		want   string
	}{
		"a renamed copy, Forbid":                       {v1alpha1.ForbidConcurrent, childOf(newCronAt(), ten, renamed, later, released), create},
		"a renamed copy, Replace":                      {v1alpha1.ReplaceConcurrent, childOf(newCronAt(), ten, renamed, later, released), create},
		"a renamed copy with the finalizer":            {v1alpha1.ForbidConcurrent, childOf(newCronAt(), ten, renamed, annotated("9999-01-01T00:00:00Z")), "ReleaseAt backup-copy"},
		"a copy for a time to come":                    {v1alpha1.ForbidConcurrent, childOf(newCronAt(), future, released), create},
		"a copy for a time to come, Replace":           {v1alpha1.ReplaceConcurrent, childOf(newCronAt(), future, released), create},
		"a copy for a time to come with the finalizer": {v1alpha1.ForbidConcurrent, childOf(newCronAt(), future), "ReleaseAt backup-" + nameOf(future)},
		"a child with another annotation":              {v1alpha1.ForbidConcurrent, childOf(newCronAt(), ten, annotated("9999-01-01T00:00:00Z")), "ReleaseAt backup-" + nameOf(ten)},
		"a child that a user has moved":                {v1alpha1.ReplaceConcurrent, childOf(newCronAt(), ten, later, released), "DeleteAt with its Pods backup-" + nameOf(ten)},
	} {
		t.Run(name, func(t *testing.T) {
			cronAt := newCronAt(ranAtTen, policy(tc.policy))
			ats := []*v1alpha1.At{tc.at}
			if plan.IsScheduled(tc.at) && tc.at.Name == "backup-"+nameOf(ten) {
				// It is released while nothing is due.
				cronAt.Status.LastScheduleTime = at(eleven)
				cronAt.Status.Active = 1
				cronAt.Status.NextScheduleTime = at(eleven.Add(time.Hour))
			}
			d := Decide(World{CronAt: cronAt, CronAtIsLive: true, CronAtAsOf: eleven, Ats: ats, AtsAsOf: eleven, CountedSince: map[types.UID]time.Time{"at-uid": ten}, Now: eleven})
			if got := describe(d.Action); got != tc.want || d.Status != nil {
				t.Errorf("got %q and status %+v, want %q", got, d.Status, tc.want)
			}
		})
	}
}

// TestScheduledTime checks that the name of a child tells its scheduled time, however long
// the name of the CronAt is.
func TestScheduledTime(t *testing.T) {
	for _, name := range []string{"backup", "backup-1", "b.5", strings.Repeat("a", 230), strings.Repeat("a", 253)} {
		cronAt := newCronAt(func(cronAt *v1alpha1.CronAt) { cronAt.Name = name })
		names := map[string]bool{}
		for _, want := range []time.Time{ten, ten.Add(time.Second), eleven, time.Date(2000, 1, 1, 0, 0, 4, 0, time.UTC), time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)} {
			child := newChild(cronAt, want, time.Minute)
			if got := scheduledTime(cronAt, child); !got.Equal(want) {
				t.Errorf("At %s: got %s, want %s", child.Name, got, want)
			}
			names[child.Name] = true
		}
		if len(names) != 5 {
			t.Errorf("names %v", names)
		}
	}
	if got := scheduledTime(newCronAt(), &v1alpha1.At{ObjectMeta: metav1.ObjectMeta{Name: "backup-copy"}}); !got.IsZero() {
		t.Errorf("got %s", got)
	}
}

// TestDropped covers times that were due before an edit or a suspension, and that
// therefore do not run: they are missed.
func TestDropped(t *testing.T) {
	const second = time.Second
	half := ten.Add(2*time.Hour + 30*time.Minute) // when the CronAt was edited; it last ran at nine
	twice := func(cronAt *v1alpha1.CronAt) { cronAt.Generation = 3 }
	weekly := "0 0 * * 0"
	for name, tc := range map[string]struct {
		mutate []func(*v1alpha1.CronAt)
		ats    []*v1alpha1.At
		want   *v1alpha1.MissedTimes
	}{
		"an edit of the template":          {[]func(*v1alpha1.CronAt){edited("0 * * * *", half), ranAtEleven}, nil, nil},
		"two edits of the template":        {[]func(*v1alpha1.CronAt){edited("0 * * * *", half), twice}, nil, &v1alpha1.MissedTimes{Count: 3, Last: *at(ten.Add(2 * time.Hour))}},
		"an edit of the schedule":          {[]func(*v1alpha1.CronAt){edited(weekly, half)}, nil, &v1alpha1.MissedTimes{Count: 3, Last: *at(ten.Add(2 * time.Hour))}},
		"an edit just after a run is due":  {[]func(*v1alpha1.CronAt){edited(weekly, ten.Add(second))}, nil, &v1alpha1.MissedTimes{Count: 1, Last: *at(ten)}},
		"an edit just before a run is due": {[]func(*v1alpha1.CronAt){edited(weekly, ten.Add(-second))}, nil, nil},
		"an edit just after a run":         {[]func(*v1alpha1.CronAt){edited(weekly, ten.Add(second))}, []*v1alpha1.At{childOf(newCronAt(), ten)}, nil},
		"an edit after missed times and a run": {[]func(*v1alpha1.CronAt){edited(weekly, half)}, []*v1alpha1.At{childOf(newCronAt(), eleven)},
			&v1alpha1.MissedTimes{Count: 2, Last: *at(ten.Add(2 * time.Hour))}},
		"an edit of the spread": {[]func(*v1alpha1.CronAt){edited("0 * * * *", ten.Add(10*second)), func(cronAt *v1alpha1.CronAt) {
			// Ten o'clock was not due before the edit, but would have been with the new spread.
			cronAt.Spec.SpreadSeconds, cronAt.Status.ObservedSchedule.SpreadSeconds = ptr.To[int32](0), 3600
		}}, nil, &v1alpha1.MissedTimes{Count: 2, Last: *at(eleven)}},
		"the time zone was removed": {[]func(*v1alpha1.CronAt){func(cronAt *v1alpha1.CronAt) {
			cronAt.Generation = 2
			cronAt.Status.ObservedSchedule.TimeZone = "Europe/Berlin"
		}}, nil, &v1alpha1.MissedTimes{Count: 3, Last: *at(ten.Add(2 * time.Hour))}},
		"suspended": {[]func(*v1alpha1.CronAt){edited("0 * * * *", half), func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = ptr.To(true) }}, nil,
			&v1alpha1.MissedTimes{Count: 3, Last: *at(ten.Add(2 * time.Hour))}},
		"resumed": {[]func(*v1alpha1.CronAt){suspended, edited("0 * * * *", half), func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = nil }}, nil, nil},
		"edited before the first sync": {[]func(*v1alpha1.CronAt){edited("0 * * * *", half), func(cronAt *v1alpha1.CronAt) {
			cronAt.Status = v1alpha1.CronAtStatus{}
		}}, nil, &v1alpha1.MissedTimes{Count: 12, Last: *at(ten.Add(2 * time.Hour))}},
		"created suspended": {[]func(*v1alpha1.CronAt){func(cronAt *v1alpha1.CronAt) {
			cronAt.Spec.Suspend, cronAt.Status = ptr.To(true), v1alpha1.CronAtStatus{}
			cronAt.ManagedFields = []metav1.ManagedFieldsEntry{{Time: at(created)}}
		}}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := World{CronAt: newCronAt(tc.mutate...), CronAtIsLive: true, CronAtAsOf: half.Add(second), Ats: tc.ats, AtsAsOf: half.Add(second), Now: half.Add(second)}
			d := Decide(w)
			status := &w.CronAt.Status
			if d.Status != nil {
				status = d.Status
			}
			if diff := cmp.Diff(tc.want, status.Missed); diff != "" {
				t.Errorf("missed (-want +got):\n%s", diff)
			}
			said := slices.ContainsFunc(d.Events, func(event plan.Event) bool { return event.Reason == v1alpha1.ReasonMissSchedule })
			if said != (tc.want != nil) {
				t.Errorf("events %+v", d.Events)
			}
			// An At that the cache lacks may have been created for them.
			w.AtsAsOf = time.Time{}
			if got := describe(decideOrRead(w).Action); (got == "read Ats") != (tc.want != nil) {
				t.Errorf("without the Ats: action %q", got)
			}
		})
	}
}

// TestMissedMeanwhile covers times that pass while the next At cannot be created: only the
// latest runs, so each is missed as soon as a later one is due.
func TestMissedMeanwhile(t *testing.T) {
	active := childOf(newCronAt(), ten, released)
	refused := withCondition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, v1alpha1.ReasonAtRefused, "quota", eleven)
	want := &v1alpha1.MissedTimes{Count: 1, Last: *at(eleven)}
	for name, tc := range map[string]struct {
		mutate []func(*v1alpha1.CronAt)
		ats    []*v1alpha1.At
		then   string
	}{
		"refused":          {[]func(*v1alpha1.CronAt){refused}, nil, "CreateAt"},
		"Forbid, refused":  {[]func(*v1alpha1.CronAt){refused, policy(v1alpha1.ForbidConcurrent)}, nil, "read Ats"},
		"Forbid, waiting":  {[]func(*v1alpha1.CronAt){policy(v1alpha1.ForbidConcurrent)}, []*v1alpha1.At{active}, ""},
		"Replace, waiting": {[]func(*v1alpha1.CronAt){policy(v1alpha1.ReplaceConcurrent)}, []*v1alpha1.At{childOf(newCronAt(), ten, released, deleted)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := World{CronAt: newCronAt(append([]func(*v1alpha1.CronAt){ranAtTen}, tc.mutate...)...), CronAtIsLive: true, CronAtAsOf: eleven.Add(61 * time.Minute), Ats: tc.ats, Now: eleven.Add(61 * time.Minute)}
			d := decideOrRead(w)
			if got := describe(d.Action); got != "read Ats" {
				t.Fatalf("action %q, want that the Ats are read", got)
			}
			w.AtsAsOf = w.Now
			if d = decideOrRead(w); d.Status == nil {
				t.Fatalf("got %+v", d)
			}
			if diff := cmp.Diff(want, d.Status.Missed); diff != "" {
				t.Errorf("missed (-want +got):\n%s", diff)
			}
			// They count once.
			w.CronAt.Status, w.AtsAsOf = *d.Status, time.Time{}
			d = decideOrRead(w)
			if got := describe(d.Action); d.Status != nil || !strings.HasPrefix(got, tc.then) {
				t.Errorf("then action %q and status %+v", got, d.Status)
			}
		})
	}
}

// TestExpire covers Ats that are blocked when the At of a later time was created: of them,
// only the latest may still start.
func TestExpire(t *testing.T) {
	refused := blockedBy(v1alpha1.ReasonPodRefused, "exceeded quota")
	expired := "ExpireAt backup-" + nameOf(ten.Add(-time.Hour)) + " after 3600s"
	for name, tc := range map[string]struct {
		mutate []func(*v1alpha1.At)
		want   string
	}{
		"blocked":                 {[]func(*v1alpha1.At){refused}, expired},
		"not blocked":             {nil, ""},
		"has a starting deadline": {[]func(*v1alpha1.At){refused, func(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = ptr.To[int64](7200) }}, ""},
		"has a Pod": {[]func(*v1alpha1.At){refused, func(at *v1alpha1.At) {
			at.Status.Phase, at.Status.Pod = v1alpha1.PhaseRunning, &v1alpha1.AtPod{Name: plan.PodName(at)}
		}}, ""},
		"has failed once": {[]func(*v1alpha1.At){refused, func(at *v1alpha1.At) {
			at.Status.Phase, at.Status.NextAttemptTime = v1alpha1.PhaseRunning, &metav1.Time{Time: ten}
		}}, ""},
		"on nodes, whose Ats are refused": {[]func(*v1alpha1.At){refused, func(at *v1alpha1.At) {
			at.Status.Phase, at.Status.Nodes = v1alpha1.PhaseRunning, &v1alpha1.AtNodesStatus{}
		}}, expired},
		"on nodes, whose Ats were created": {[]func(*v1alpha1.At){refused, func(at *v1alpha1.At) {
			at.Status.Phase, at.Status.Nodes = v1alpha1.PhaseRunning, &v1alpha1.AtNodesStatus{StartTime: &metav1.Time{Time: ten}}
		}}, ""},
		"has ended":                      {[]func(*v1alpha1.At){refused, ended(v1alpha1.ConditionFailed, ten)}, ""},
		"a forecast, for a time to come": {[]func(*v1alpha1.At){blockedBy(v1alpha1.ReasonPodRefused, "If it were due now: exceeded quota")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			earlier := childOf(newCronAt(), ten.Add(-time.Hour), append([]func(*v1alpha1.At){released}, tc.mutate...)...)
			latest := childOf(newCronAt(), ten, released, refused)
			w := World{CronAt: newCronAt(ranAtTen), CronAtIsLive: true, CronAtAsOf: ten.Add(time.Minute), Ats: []*v1alpha1.At{latest, earlier}, Now: ten.Add(time.Minute)}
			d := Decide(w)
			if d.Status != nil { // The number of active Ats, and what blocks them.
				w.CronAt.Status = *d.Status
				d = Decide(w)
			}
			if got := describe(d.Action); got != tc.want {
				t.Errorf("action %q, want %q", got, tc.want)
			}
		})
	}
}
