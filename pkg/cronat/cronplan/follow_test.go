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
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/freeze"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

const second, minute = time.Second, time.Minute

var (
	created = time.Date(2026, 12, 24, 0, 30, 0, 0, time.UTC)
	ten     = time.Date(2026, 12, 24, 10, 0, 0, 0, time.UTC) // The At of this time has the number 29968440.
	eleven  = ten.Add(time.Hour)                             // 29968500
)

type (
	edit = func(*v1alpha1.CronAt)
	ats  = []*v1alpha1.At
)

func at(t time.Time) *metav1.Time { return &metav1.Time{Time: t} }

// newCronAt returns an hourly CronAt that last ran at nine and has nothing to report.
func newCronAt(edits ...edit) *v1alpha1.CronAt {
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
	for _, edit := range edits {
		edit(cronAt)
	}
	return cronAt
}

// neverSynced is a CronAt that was just created.
func neverSynced(cronAt *v1alpha1.CronAt) { cronAt.Status = v1alpha1.CronAtStatus{} }

func beingDeleted(cronAt *v1alpha1.CronAt) { cronAt.DeletionTimestamp = at(ten) }

// ran records the last run.
func ran(when time.Time) edit {
	return func(cronAt *v1alpha1.CronAt) {
		cronAt.Status.LastScheduleTime, cronAt.Status.NextScheduleTime = at(when), at(when.Add(time.Hour))
	}
}

func ranAtTen(cronAt *v1alpha1.CronAt) { ran(ten)(cronAt) }

// oneActive sets the number of Ats of a CronAt that have not ended to one.
func oneActive(cronAt *v1alpha1.CronAt) { cronAt.Status.Active = 1 }

// missed records times that were missed.
func missed(count int64, last time.Time) edit {
	return func(cronAt *v1alpha1.CronAt) {
		cronAt.Status.Missed = &v1alpha1.MissedTimes{Count: count, Last: *at(last)}
	}
}

func forbid(cronAt *v1alpha1.CronAt) { cronAt.Spec.ConcurrencyPolicy = v1alpha1.ForbidConcurrent }

func replace(cronAt *v1alpha1.CronAt) { cronAt.Spec.ConcurrencyPolicy = v1alpha1.ReplaceConcurrent }

func deadline(seconds int64) edit {
	return func(cronAt *v1alpha1.CronAt) { cronAt.Spec.StartingDeadlineSeconds = &seconds }
}

func history(limit int32) edit {
	return func(cronAt *v1alpha1.CronAt) {
		cronAt.Spec.SuccessfulAtsHistoryLimit, cronAt.Spec.FailedAtsHistoryLimit = &limit, &limit
	}
}

func scheduled(schedule string) edit {
	return func(cronAt *v1alpha1.CronAt) {
		cronAt.Spec.Schedule, cronAt.Status.ObservedSchedule.Schedule = schedule, schedule
	}
}

// spreadBy spreads a CronAt. The controller has observed a spread of an hour.
func spreadBy(seconds int32) edit {
	return func(cronAt *v1alpha1.CronAt) {
		cronAt.Spec.SpreadSeconds, cronAt.Status.ObservedSchedule.SpreadSeconds = &seconds, 3600
	}
}

// writtenAt is a write to anything but the status.
func writtenAt(when time.Time) edit {
	return func(cronAt *v1alpha1.CronAt) {
		cronAt.ManagedFields = []metav1.ManagedFieldsEntry{{Time: at(created)}, {Time: at(when)}, {Time: at(when.Add(time.Hour)), Subresource: "status"}}
	}
}

func edited(schedule string, when time.Time) edit {
	return func(cronAt *v1alpha1.CronAt) {
		cronAt.Generation, cronAt.Spec.Schedule = 2, schedule
		writtenAt(when)(cronAt)
	}
}

// untimed is an edit whose time is not known.
func untimed(cronAt *v1alpha1.CronAt) { edited(cronAt.Spec.Schedule, created)(cronAt) }

func zoneRemoved(cronAt *v1alpha1.CronAt) {
	cronAt.Status.ObservedSchedule.TimeZone = "Europe/Berlin"
}

func suspend(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = ptr.To(true) }

func resume(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = nil }

// withCondition gives a CronAt a condition since nine, which explains its status.
func withCondition(conditionType, reason, message string) edit {
	return func(cronAt *v1alpha1.CronAt) {
		cronAt.Status.Conditions = append(cronAt.Status.Conditions, metav1.Condition{Type: conditionType, Status: metav1.ConditionTrue, Reason: reason, Message: message, ObservedGeneration: 1, LastTransitionTime: *at(ten.Add(-time.Hour))})
		cronAt.Status.Reason, cronAt.Status.Message = reason, message
	}
}

// suspended makes a CronAt suspended since nine.
func suspended(cronAt *v1alpha1.CronAt) {
	suspend(cronAt)
	cronAt.Status.NextScheduleTime = nil
	withCondition(v1alpha1.ConditionSuspended, v1alpha1.ReasonSuspended, "No At is created while spec.suspend is true.")(cronAt)
}

// child returns the child for a scheduled time, created then.
func child(scheduled time.Time, edits ...func(*v1alpha1.At)) *v1alpha1.At {
	child := newChild(newCronAt(), scheduled, 0)
	child.UID, child.ResourceVersion, child.CreationTimestamp = "at-uid", "1", *at(scheduled)
	child.Status.Phase = v1alpha1.PhasePending
	for _, edit := range edits {
		edit(child)
	}
	return child
}

func released(at *v1alpha1.At) { at.Finalizers = nil }

func deleted(child *v1alpha1.At) { child.DeletionTimestamp = at(eleven) }

func ended(conditionType string, when time.Time) func(*v1alpha1.At) {
	return func(child *v1alpha1.At) {
		released(child)
		child.Status.Phase, child.Status.CompletionTime = v1alpha1.PhaseDone, at(when)
		child.Status.Conditions = []metav1.Condition{{Type: conditionType, Status: metav1.ConditionTrue, LastTransitionTime: *at(when)}}
	}
}

func succeeded(when time.Time) func(*v1alpha1.At) {
	return ended(v1alpha1.ConditionComplete, when)
}

func failed(when time.Time) func(*v1alpha1.At) { return ended(v1alpha1.ConditionFailed, when) }

func blockedBy(reason, message string) func(*v1alpha1.At) {
	return func(child *v1alpha1.At) {
		child.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionTrue, Reason: reason, Message: message}}
	}
}

// stranger makes an At unrelated to the CronAt.
func stranger(at *v1alpha1.At) { at.OwnerReferences, at.Finalizers, at.Labels = nil, nil, nil }

// earlier makes an At belong to an earlier CronAt with this name.
func earlier(at *v1alpha1.At) {
	at.OwnerReferences[0].UID, at.Labels[v1alpha1.LabelCronAtUID] = "earlier", "earlier"
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

// frozen returns the Freezes of a namespace with a Freeze of one window.
func frozen(from, until time.Time) *freeze.Set {
	ready, err := freeze.New(&v1alpha1.Freeze{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "christmas"},
		Spec: v1alpha1.FreezeSpec{
			Windows: []v1alpha1.FreezeWindow{{From: v1alpha1.FreezeTime(from.Format(time.RFC3339)), Until: v1alpha1.FreezeTime(until.Format(time.RFC3339))}},
			Reason:  "Change freeze",
		},
	})
	if err != nil {
		panic(err)
	}
	return freeze.NewSet("cnat-system", []*freeze.Freeze{ready}, nil)
}

// row is a CronAt with its Ats at some time, and what follows until there is an action or nothing
// left to write. The times of its Ats are counted since ten.
type row struct {
	cronAt   *v1alpha1.CronAt // nil: gone
	ats      []*v1alpha1.At
	unseen   bool // Its Ats are counted since now.
	freezes  *freeze.Set
	unknown  bool           // what a preflight says
	forecast *plan.Forecast // by default, the next At is accepted
	off      bool           // rehearsals
	now      time.Time
	want     string
}

func check(t *testing.T, rows map[string]row) {
	t.Helper()
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			if got := follow(r.world()); got != r.want {
				t.Errorf("\n got %s\nwant %s", got, r.want)
			}
		})
	}
}

// world is what the API server has.
func (r row) world() World {
	w := World{CronAt: r.cronAt, CronAtIsLive: true, CronAtAsOf: r.now, Ats: r.ats, AtsAsOf: r.now, Freezes: r.freezes, Rehearses: !r.off, Now: r.now}
	if !r.unseen {
		w.CountedSince = map[types.UID]time.Time{"at-uid": ten}
	}
	if !r.unknown {
		w.Forecast = cmp.Or(r.forecast, &plan.Forecast{})
	}
	return w
}

// cached returns what the caches of a controller have, which may be outdated.
func cached(w World) World {
	w.CronAtIsLive, w.CronAtAsOf, w.AtsAsOf = false, time.Time{}, time.Time{}
	if w.CronAt != nil {
		w.CronAt = KeepCronAt(w.CronAt)
	}
	w.Ats = slices.Clone(w.Ats)
	for i, at := range w.Ats {
		w.Ats[i] = plan.KeepAt(at)
	}
	return w
}

// follow says which steps follow. A step that does not read anything must be right with the caches.
func follow(w World) string {
	var steps []string
	for range 4 {
		known := cached(w)
		d := Decide(known)
		if cronAt, ats := NeedsLive(known, d); cronAt || ats {
			steps = append(steps, "reads"+when(cronAt, " CronAt")+when(ats, " Ats"))
			known, d = w, Decide(w)
		}
		steps = append(steps, describe(known, d)...)
		if d.Status == nil {
			return strings.NewReplacer("2026-12-24T", "", ":00Z", "").Replace(strings.Join(steps, "; "))
		}
		w.CronAt = w.CronAt.DeepCopy()
		w.CronAt.Status = *d.Status
	}
	return "never rests: " + strings.Join(steps, "; ")
}

func when(holds bool, text string) string {
	if holds {
		return text
	}
	return ""
}

// describe returns texts for the parts of a decision.
func describe(w World, d Decision) []string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	switch action := d.Action.(type) {
	case CreateAt:
		add("creates %s for %s", action.At.Name, action.At.Annotations[v1alpha1.AnnotationScheduledTime])
	case DeleteAt:
		add("deletes %s%s", action.At.Name, when(action.Replaced, " with its Pods"))
	case ExpireAt:
		add("expires %s after %ds", action.At.Name, action.Seconds)
	case ReleaseAt:
		add("releases %s", action.At.Name)
	}
	known := ""
	if d.Status != nil {
		known = d.Status.Message
		add("writes %s", changes(&w.CronAt.Status, d.Status))
	}
	for _, event := range d.Events {
		add("%s%s%s", strings.TrimPrefix(event.Type+" ", "Normal "), event.Reason, unless(event.Message, known))
	}
	if d.Preflight {
		add("preflight")
	}
	if d.Delay != 0 {
		add("after %v", d.Delay)
	}
	if d.Retry != nil {
		add("retries")
	}
	return parts
}

// unless returns a message, unless it is in the same text already.
func unless(message, known string) string { return when(message != known, ": "+message) }

// changes returns the fields of a status that change.
func changes(was, is *v1alpha1.CronAtStatus) string {
	before, after := fields(was), fields(is)
	for key := range before {
		after[key] += "" // It may be removed.
	}
	var changed []string
	for _, key := range slices.Sorted(maps.Keys(after)) {
		if after[key] != before[key] {
			changed = append(changed, key+"="+after[key])
		}
	}
	return strings.Join(changed, ", ")
}

func fields(status *v1alpha1.CronAtStatus) map[string]string {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(status)
	if err != nil {
		panic(err)
	}
	fields := map[string]string{}
	for key, value := range object {
		fields[key] = fmt.Sprint(value)
	}
	delete(fields, "conditions")
	for _, c := range status.Conditions {
		fields[c.Type] = fmt.Sprintf("%s %s since %s%s", c.Status, c.Reason, c.LastTransitionTime.UTC().Format(time.RFC3339), unless(c.Message, status.Message))
	}
	return fields
}
