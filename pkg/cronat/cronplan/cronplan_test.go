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
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
)

func TestDecide(t *testing.T) {
	blockedMessage := "At backup-29968440 is blocked: PodRefused: exceeded quota"
	ranLong := []time.Time{ten, ten.Add(-time.Hour), ten.Add(-2 * time.Hour)}
	waits := func(cronAt *v1alpha1.CronAt) {
		cronAt.Status.NextScheduleTime = at(eleven.Add(time.Hour))
		cronAt.Status.Reason, cronAt.Status.Message = v1alpha1.ReasonAtActive, "The run that was due at 2026-12-24T11:00:00Z is waiting for At backup-29968440 to end."
	}
	check(t, map[string]row{
		"gone, with an At":                         {ats: ats{child(ten)}, now: ten.Add(10 * second), want: "reads CronAt; releases backup-29968440"},
		"gone, with a new At: its name is a lock":  {ats: ats{child(ten)}, now: ten, want: "reads CronAt; after 9.5s"},
		"gone, with a released At":                 {ats: ats{child(ten, released)}, now: ten},
		"deleted and created again":                {cronAt: newCronAt(), ats: ats{child(ten, earlier)}, now: ten.Add(10 * second), want: "reads CronAt; releases backup-29968440"},
		"being deleted: its Ats are released":      {cronAt: newCronAt(beingDeleted), ats: ats{child(ten)}, now: ten.Add(4 * second), want: "after 5.5s"},
		"just created":                             {cronAt: newCronAt(neverSynced), now: created, want: "writes nextScheduleTime=01:00, observedGeneration=1, observedSchedule=map[schedule:0 * * * * since:00:30]; after 30m0s"},
		"not due":                                  {cronAt: newCronAt(), now: ten.Add(-second), want: "after 1s"},
		"due":                                      {cronAt: newCronAt(), now: ten, want: "reads CronAt; creates backup-29968440 for 10:00; after 9.5s"},
		"due, and due again before it is recorded": {cronAt: newCronAt(), now: eleven.Add(-4 * second), want: "reads CronAt; creates backup-29968440 for 10:00; after 4s"},
		"overdue, an earlier time has an At, which the cache lacked": {cronAt: newCronAt(), ats: ats{child(ten)}, now: eleven, want: "writes active=1, lastScheduleTime=10:00; SuccessfulCreate: Created At backup-29968440; reads CronAt; creates backup-29968500 for 11:00; after 9.5s"},
		"the At exists": {cronAt: newCronAt(), ats: ats{child(ten)}, now: ten, want: "writes active=1, lastScheduleTime=10:00, nextScheduleTime=11:00; SuccessfulCreate: Created At backup-29968440; after 9.5s"},
		"the At exists, a user has removed its owner":        {cronAt: newCronAt(), ats: ats{child(ten, orphaned)}, now: ten, want: "writes active=1, lastScheduleTime=10:00, nextScheduleTime=11:00; SuccessfulCreate: Created At backup-29968440; after 9.5s"},
		"an At whose owner of another kind has the same UID": {cronAt: newCronAt(), ats: ats{child(ten, forged)}, now: ten, want: "reads CronAt; creates backup-29968440 for 10:00; after 9.5s"},
		"the At exists, after times that were missed":        {cronAt: newCronAt(ran(ten.Add(-3 * time.Hour))), ats: ats{child(ten)}, now: ten, want: "reads Ats; writes active=1, lastScheduleTime=10:00, missed=map[count:2 last:09:00], nextScheduleTime=11:00; Warning MissSchedule: No At was created for 2 scheduled times, most recently 09:00; SuccessfulCreate: Created At backup-29968440; after 9.5s"},
		"the At exists, and the schedule has been edited":    {cronAt: newCronAt(edited("30 * * * *", ten.Add(second))), ats: ats{child(ten)}, now: ten.Add(2 * second), want: "writes active=1, lastScheduleTime=10:00, nextScheduleTime=10:30, observedGeneration=2, observedSchedule=map[schedule:30 * * * * since:10:00:01Z]; SuccessfulCreate: Created At backup-29968440; after 7.5s"},
		"two Ats, whose names are not in order": {
			cronAt: newCronAt(scheduled("@every 90s"), ran(ten.Add(-90*second))), ats: ats{child(ten), child(ten.Add(90 * second))}, now: ten.Add(91 * second),
			want: "writes active=2, lastScheduleTime=10:01:30Z, nextScheduleTime=10:03; SuccessfulCreate: Created At backup-29968440; SuccessfulCreate: Created At backup-1798106490; releases backup-29968440; after 1m29s",
		},
		"recorded long ago, but seen just now":             {cronAt: newCronAt(ranAtTen, oneActive), ats: ats{child(ten)}, unseen: true, now: ten.Add(minute), want: "after 9.5s"},
		"the clock was set back":                           {cronAt: newCronAt(ranAtTen), now: ten.Add(-time.Hour), want: "after 2h0m0s"},
		"an edit without a controller":                     {cronAt: newCronAt(edited("15 * * * *", ten)), now: eleven, want: "reads Ats; writes missed=map[count:1 last:10:00], observedGeneration=2, observedSchedule=map[schedule:15 * * * * since:10:00]; Warning MissSchedule: No At was created for the scheduled time 10:00; reads CronAt; creates backup-29968455 for 10:15; after 9.5s"},
		"suspended":                                        {cronAt: newCronAt(suspend), now: ten.Add(-time.Hour), want: "writes Suspended=True Suspended since 09:00, message=No At is created while spec.suspend is true., nextScheduleTime=, reason=Suspended; Suspended"},
		"resumed: times in the meantime do not run":        {cronAt: newCronAt(suspended, resume), now: eleven, want: "writes Suspended=False Resumed since 11:00: The CronAt is no longer suspended. Times that were due until 11:00 do not run., message=, nextScheduleTime=12:00, observedSchedule=map[schedule:0 * * * * since:11:00], reason=; Resumed: The CronAt is no longer suspended. Times that were due until 11:00 do not run.; after 1h0m0s"},
		"resumed, at a time that is not known":             {cronAt: newCronAt(suspended, resume, untimed), now: eleven, want: "writes Suspended=False Resumed since 11:00: The CronAt is no longer suspended. Times that were due until 11:00 do not run., message=, nextScheduleTime=12:00, observedGeneration=2, observedSchedule=map[schedule:0 * * * * since:11:00], reason=; Resumed: The CronAt is no longer suspended. Times that were due until 11:00 do not run.; after 1h0m0s"},
		"within the deadline":                              {cronAt: newCronAt(deadline(10)), now: ten.Add(10*second + 999*time.Millisecond), want: "reads CronAt; creates backup-29968440 for 10:00; after 9.5s"},
		"after the deadline":                               {cronAt: newCronAt(deadline(10)), now: ten.Add(11 * second), want: "reads Ats; writes missed=map[count:1 last:10:00], nextScheduleTime=11:00; Warning MissSchedule: No At was created for the scheduled time 10:00; after 59m49s"},
		"a deadline that overflows a duration with spread": {cronAt: newCronAt(deadline(9223372035), spreadBy(3600)), now: ten.Add(59 * minute), want: "reads CronAt; creates backup-29968440 for 10:00; after 9.5s"},
		"Allow: one is active":                             {cronAt: newCronAt(ranAtTen, oneActive), ats: ats{child(ten, released)}, now: eleven, want: "reads CronAt; creates backup-29968500 for 11:00; after 9.5s"},
		"Forbid does not wait for a manual run":            {cronAt: newCronAt(ranAtTen, forbid), ats: ats{child(ten, manual)}, now: eleven, want: "reads CronAt Ats; creates backup-29968500 for 11:00; after 9.5s"},
		"Forbid: one is active":                            {cronAt: newCronAt(ranAtTen, oneActive, forbid), ats: ats{child(ten, released)}, now: eleven, want: "writes message=The run that was due at 11:00 is waiting for At backup-29968440 to end., nextScheduleTime=12:00, reason=AtActive; after 1h0m0s"},
		"Forbid: one is active, which is reported":         {cronAt: newCronAt(ranAtTen, oneActive, forbid, deadline(60), waits), ats: ats{child(ten, released)}, now: eleven, want: "after 1m1s"},
		"Forbid: one is blocked":                           {cronAt: newCronAt(ranAtTen, oneActive, forbid), ats: ats{child(ten, released, blockedBy("PodRefused", "exceeded quota"))}, now: eleven, want: "writes Blocked=True AtBlocked since 11:00, message=At backup-29968440 is blocked: PodRefused: exceeded quota, nextScheduleTime=12:00, reason=AtBlocked; Warning AtBlocked; after 1h0m0s"},
		"it is no longer blocked": {
			cronAt: newCronAt(ranAtTen, oneActive, withCondition(v1alpha1.ConditionBlocked, v1alpha1.ReasonAtBlocked, blockedMessage)), ats: ats{child(ten, released)}, now: ten.Add(second),
			want: "writes Blocked=, message=, reason=; after 59m59s",
		},
		"Replace: one is active":              {cronAt: newCronAt(ranAtTen, oneActive, replace), ats: ats{child(ten, released)}, now: eleven, want: "reads CronAt Ats; deletes backup-29968440 with its Pods; SuccessfulDelete: Deleted At backup-29968440"},
		"one has succeeded":                   {cronAt: newCronAt(ranAtTen, oneActive), ats: ats{child(ten, succeeded(ten.Add(second)))}, now: ten.Add(second), want: "writes active=0, lastSuccessfulTime=10:00:01Z; after 59m59s"},
		"the history of failures is too long": {cronAt: newCronAt(ranAtTen), ats: ats{child(ranLong[0], failed(ranLong[0])), child(ranLong[1], failed(ranLong[1])), child(ranLong[2], failed(ranLong[2]), deleted)}, now: ten.Add(minute), want: "deletes backup-29968380; SuccessfulDelete: Deleted At backup-29968380; after 59m0s"},
		"no history of successes":             {cronAt: newCronAt(ranAtTen, history(0)), ats: ats{child(ten, succeeded(ten))}, now: ten.Add(minute), want: "writes lastSuccessfulTime=10:00; deletes backup-29968440; SuccessfulDelete: Deleted At backup-29968440; after 59m0s"},
		"one that has just ended stays":       {cronAt: newCronAt(ranAtTen, history(0)), ats: ats{child(ten, failed(ten.Add(minute)))}, now: ten.Add(minute), want: "after 10.5s"},
		"the schedule is invalid":             {cronAt: newCronAt(scheduled("0 * * 13 *")), now: ten, want: `writes Blocked=True InvalidSchedule since 10:00, message=spec.schedule "0 * * 13 *" is invalid: month "13": write numbers from 1 to 12 or names from JAN to DEC, ranges such as 2-5, steps such as */2, lists such as 2,4, or *, nextScheduleTime=, reason=InvalidSchedule; Warning InvalidSchedule`},
	})
}

// TestNeedsLive covers what was read some time ago. The other tests read just now, or never.
func TestNeedsLive(t *testing.T) {
	for name, tc := range map[string]struct {
		cronAt              *v1alpha1.CronAt
		age, atsAge         time.Duration
		wantCronAt, wantAts bool
	}{
		"a CronAt that is just fresh enough": {cronAt: newCronAt(), age: staleness.FreshFor - 1},
		"a CronAt that is too old":           {cronAt: newCronAt(), age: staleness.FreshFor, wantCronAt: true},
		"Ats that were just listed":          {cronAt: newCronAt(forbid), atsAge: maxListAge},
	} {
		t.Run(name, func(t *testing.T) {
			w := World{CronAt: tc.cronAt, CronAtIsLive: true, CronAtAsOf: ten.Add(-tc.age), AtsAsOf: ten.Add(-tc.atsAge), Now: ten}
			if cronAt, ats := NeedsLive(w, Decide(w)); cronAt != tc.wantCronAt || ats != tc.wantAts {
				t.Errorf("CronAt %v, Ats %v", cronAt, ats)
			}
		})
	}
}

func TestNewChild(t *testing.T) {
	cronAt := newCronAt(deadline(60))
	got := newChild(cronAt, ten, 90*second)
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
}

// TestScheduledTime checks that the name of a child tells its scheduled time, however long
// the name of the CronAt is.
func TestScheduledTime(t *testing.T) {
	for _, name := range []string{"backup", "backup-1", "b.5", strings.Repeat("a", 230), strings.Repeat("a", 253)} {
		cronAt := newCronAt(func(cronAt *v1alpha1.CronAt) { cronAt.Name = name })
		names := map[string]bool{}
		for _, want := range []time.Time{ten, ten.Add(second), eleven, time.Date(2000, 1, 1, 0, 0, 4, 0, time.UTC), time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)} {
			child := newChild(cronAt, want, minute)
			if got := scheduledTime(cronAt, child); !got.Equal(want) {
				t.Errorf("At %s: got %s, want %s", child.Name, got, want)
			}
			if len(child.Name) > 253 || len(child.Labels[v1alpha1.LabelCronAtName]) > 63 {
				t.Errorf("At %s, labels %v", child.Name, child.Labels)
			}
			names[child.Name] = true
		}
		if len(names) != 5 {
			t.Errorf("names %v", names)
		}
	}
}

// TestRefusals covers creations that fail. What is reported stays until the At exists.
func TestRefusals(t *testing.T) {
	w := row{cronAt: newCronAt(), now: ten}.world()
	recreated := row{cronAt: newCronAt(func(cronAt *v1alpha1.CronAt) { cronAt.CreationTimestamp = *at(ten.Add(-second)) }), now: ten}.world()
	quota := apierrors.NewForbidden(v1alpha1.Resource("ats"), "backup", errors.New("exceeded quota"))
	for name, tc := range map[string]struct {
		decision Decision
		want     string // the reason for which it is blocked
	}{
		"refused":                          {Refused(w, quota), v1alpha1.ReasonAtRefused},
		"a conflict of the quota":          {Refused(w, apierrors.NewConflict(v1alpha1.Resource("ats"), "backup", errors.New("modified"))), ""},
		"an unrelated At has the name":     {AtNameTaken(w, child(ten, stranger)), v1alpha1.ReasonAtNameConflict},
		"an earlier At has the name":       {AtNameTaken(w, child(ten, earlier)), v1alpha1.ReasonAtNameConflict},
		"an earlier At still has the name": {AtNameTaken(recreated, child(ten, earlier)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.decision.Retry == nil {
				t.Error("it is not retried")
			}
			if tc.want == "" {
				if tc.decision.Status != nil {
					t.Errorf("status %+v", tc.decision.Status)
				}
				return
			}
			w := w
			w.CronAt = w.CronAt.DeepCopy()
			w.CronAt.Status = *tc.decision.Status
			if w.CronAt.Status.Reason != tc.want || !errors.Is(tc.decision.Retry, answer.ErrBlocked) {
				t.Errorf("status %+v, retry %v", w.CronAt.Status, tc.decision.Retry)
			}
			if got, want := follow(w), "reads CronAt; creates backup-29968440 for 10:00; after 9.5s"; got != want {
				t.Errorf("then %s, want %s", got, want)
			}
			w.Ats = ats{child(ten)}
			if got, want := follow(w), "writes Blocked=, active=1, lastScheduleTime=10:00, message=, reason=; SuccessfulCreate: Created At backup-29968440; after 9.5s"; got != want {
				t.Errorf("then %s, want %s", got, want)
			}
		})
	}
}

// TestCopies covers Ats that look like children of a CronAt: copies that people made of a
// child, and children of a controller whose clock is ahead. They neither stop nor delay
// the CronAt.
func TestCopies(t *testing.T) {
	future := ten.AddDate(9, 0, 0)
	renamed := func(child *v1alpha1.At) { child.Name = "backup-copy" }
	later := func(child *v1alpha1.At) { child.Spec.Schedule = future.Format(time.RFC3339) }
	annotated := func(child *v1alpha1.At) {
		child.Annotations[v1alpha1.AnnotationScheduledTime] = "9999-01-01T00:00:00Z"
	}
	check(t, map[string]row{
		"a renamed copy, Replace":                      {cronAt: newCronAt(ranAtTen, replace), ats: ats{child(ten, renamed, later, released)}, now: eleven, want: "reads CronAt Ats; creates backup-29968500 for 11:00; after 9.5s"},
		"a renamed copy with the finalizer":            {cronAt: newCronAt(ranAtTen, forbid), ats: ats{child(ten, renamed, annotated)}, now: eleven, want: "reads CronAt Ats; releases backup-copy"},
		"a copy for a time to come, Replace":           {cronAt: newCronAt(ranAtTen, replace), ats: ats{child(future, released)}, now: eleven, want: "reads CronAt Ats; creates backup-29968500 for 11:00; after 9.5s"},
		"a copy for a time to come with the finalizer": {cronAt: newCronAt(ranAtTen, forbid), ats: ats{child(future)}, now: eleven, want: "reads CronAt Ats; releases backup-34701720"},
		"a child with another annotation":              {cronAt: newCronAt(ran(eleven), oneActive, forbid), ats: ats{child(ten, annotated)}, now: eleven, want: "releases backup-29968440; after 1h0m0s"},
		"a child that a user has moved":                {cronAt: newCronAt(ranAtTen, oneActive, replace), ats: ats{child(ten, later, released)}, now: eleven, want: "reads CronAt Ats; deletes backup-29968440 with its Pods; SuccessfulDelete: Deleted At backup-29968440"},
	})
}

// TestDropped covers times that were due before an edit or a suspension, and that therefore do not
// run: they are missed. Without an edit, the CronAt runs at noon.
func TestDropped(t *testing.T) {
	noon := ten.Add(2 * time.Hour)
	half := noon.Add(30 * minute) // when the CronAt was edited; it last ran at nine
	now := half.Add(second)
	twice := func(cronAt *v1alpha1.CronAt) { cronAt.Generation = 3 }
	const hourly, weekly = "0 * * * *", "0 0 * * 0"
	check(t, map[string]row{
		"an edit of the template":              {cronAt: newCronAt(edited(hourly, half), ran(eleven)), now: now, want: "reads CronAt; creates backup-29968560 for 12:00; after 9.5s"},
		"two edits of the template":            {cronAt: newCronAt(edited(hourly, half), twice), now: now, want: "reads Ats; writes missed=map[count:3 last:12:00], nextScheduleTime=13:00, observedGeneration=3, observedSchedule=map[schedule:0 * * * * since:12:30]; Warning MissSchedule: No At was created for 3 scheduled times, most recently 12:00; after 29m59s"},
		"an edit of the schedule":              {cronAt: newCronAt(edited(weekly, half)), now: now, want: "reads Ats; writes missed=map[count:3 last:12:00], nextScheduleTime=2026-12-27T00:00, observedGeneration=2, observedSchedule=map[schedule:0 0 * * 0 since:12:30]; Warning MissSchedule: No At was created for 3 scheduled times, most recently 12:00; after 59h29m59s"},
		"an edit just after a run is due":      {cronAt: newCronAt(edited(weekly, ten.Add(second))), now: now, want: "reads Ats; writes missed=map[count:1 last:10:00], nextScheduleTime=2026-12-27T00:00, observedGeneration=2, observedSchedule=map[schedule:0 0 * * 0 since:10:00:01Z]; Warning MissSchedule: No At was created for the scheduled time 10:00; after 59h29m59s"},
		"an edit just before a run is due":     {cronAt: newCronAt(edited(weekly, ten.Add(-second))), now: now, want: "writes nextScheduleTime=2026-12-27T00:00, observedGeneration=2, observedSchedule=map[schedule:0 0 * * 0 since:09:59:59Z]; after 59h29m59s"},
		"an edit just after a run":             {cronAt: newCronAt(edited(weekly, ten.Add(second))), ats: ats{child(ten)}, now: now, want: "writes active=1, lastScheduleTime=10:00, nextScheduleTime=2026-12-27T00:00, observedGeneration=2, observedSchedule=map[schedule:0 0 * * 0 since:10:00:01Z]; SuccessfulCreate: Created At backup-29968440; releases backup-29968440; after 59h29m59s"},
		"an edit after missed times and a run": {cronAt: newCronAt(edited(weekly, half)), ats: ats{child(eleven)}, now: now, want: "reads Ats; writes active=1, lastScheduleTime=11:00, missed=map[count:2 last:12:00], nextScheduleTime=2026-12-27T00:00, observedGeneration=2, observedSchedule=map[schedule:0 0 * * 0 since:12:30]; Warning MissSchedule: No At was created for the scheduled time 10:00; SuccessfulCreate: Created At backup-29968500; Warning MissSchedule: No At was created for the scheduled time 12:00; releases backup-29968500; after 59h29m59s"},
		// Ten o'clock was not due before the edit, but would have been with the new spread.
		"an edit of the spread":        {cronAt: newCronAt(edited(hourly, ten.Add(10*second)), spreadBy(0)), now: now, want: "reads Ats; writes missed=map[count:2 last:11:00], observedGeneration=2, observedSchedule=map[schedule:0 * * * * since:10:00:10Z]; Warning MissSchedule: No At was created for the scheduled time 10:00; Warning MissSchedule: No At was created for the scheduled time 11:00; reads CronAt; creates backup-29968560 for 12:00; after 9.5s"},
		"the time zone was removed":    {cronAt: newCronAt(untimed, zoneRemoved), now: now, want: "reads Ats; writes missed=map[count:3 last:12:00], nextScheduleTime=13:00, observedGeneration=2, observedSchedule=map[schedule:0 * * * * since:12:30:01Z]; Warning MissSchedule: No At was created for 3 scheduled times, most recently 12:00; after 29m59s"},
		"suspended":                    {cronAt: newCronAt(edited(hourly, half), suspend), now: now, want: "reads Ats; writes Suspended=True Suspended since 12:30:01Z, message=No At is created while spec.suspend is true., missed=map[count:3 last:12:00], nextScheduleTime=, observedGeneration=2, reason=Suspended; Warning MissSchedule: No At was created for 3 scheduled times, most recently 12:00; Suspended"},
		"resumed":                      {cronAt: newCronAt(suspended, edited(hourly, half), resume), now: now, want: "writes Suspended=False Resumed since 12:30:01Z: The CronAt is no longer suspended. Times that were due until 12:30:01Z do not run., message=, nextScheduleTime=13:00, observedGeneration=2, observedSchedule=map[schedule:0 * * * * since:12:30:01Z], reason=; Resumed: The CronAt is no longer suspended. Times that were due until 12:30:01Z do not run.; after 29m59s"},
		"edited before the first sync": {cronAt: newCronAt(edited(hourly, half), neverSynced), now: now, want: "reads Ats; writes missed=map[count:12 last:12:00], nextScheduleTime=13:00, observedGeneration=2, observedSchedule=map[schedule:0 * * * * since:12:30]; Warning MissSchedule: No At was created for 12 scheduled times, most recently 12:00; after 29m59s"},
		"created suspended":            {cronAt: newCronAt(writtenAt(created), suspend, neverSynced), now: now, want: "writes Suspended=True Suspended since 12:30:01Z, message=No At is created while spec.suspend is true., observedGeneration=1, observedSchedule=map[schedule:0 * * * * since:00:30], reason=Suspended; Suspended"},
	})
}

// TestMissedMeanwhile covers times that pass while the next At cannot be created: only the
// latest runs, so each is missed, once, as soon as a later one is due.
func TestMissedMeanwhile(t *testing.T) {
	refused := withCondition(v1alpha1.ConditionBlocked, v1alpha1.ReasonAtRefused, "quota")
	now := eleven.Add(61 * minute)
	check(t, map[string]row{
		"refused":          {cronAt: newCronAt(ranAtTen, refused), now: now, want: "reads Ats; writes missed=map[count:1 last:11:00]; Warning MissSchedule: No At was created for the scheduled time 11:00; reads CronAt; creates backup-29968560 for 12:00; after 9.5s"},
		"Forbid, refused":  {cronAt: newCronAt(ranAtTen, refused, forbid), now: now, want: "reads Ats; writes missed=map[count:1 last:11:00]; Warning MissSchedule: No At was created for the scheduled time 11:00; reads CronAt Ats; creates backup-29968560 for 12:00; after 9.5s"},
		"Forbid, waiting":  {cronAt: newCronAt(ranAtTen, forbid), ats: ats{child(ten, released)}, now: now, want: "reads Ats; writes active=1, message=The run that was due at 12:00 is waiting for At backup-29968440 to end., missed=map[count:1 last:11:00], nextScheduleTime=13:00, reason=AtActive; Warning MissSchedule: No At was created for the scheduled time 11:00; after 59m0s"},
		"Replace, waiting": {cronAt: newCronAt(ranAtTen, replace), ats: ats{child(ten, released, deleted)}, now: now, want: "reads Ats; writes active=1, message=The run that was due at 12:00 is waiting for At backup-29968440 to end., missed=map[count:1 last:11:00], nextScheduleTime=13:00, reason=AtActive; Warning MissSchedule: No At was created for the scheduled time 11:00; after 59m0s"},
		"reported":         {cronAt: newCronAt(missed(1, ten)), now: ten.Add(minute), want: "writes nextScheduleTime=11:00; after 59m0s"},
	})
}

// TestExpire covers Ats that are blocked when the At of a later time was created: of them,
// only the latest may still start.
func TestExpire(t *testing.T) {
	refused := blockedBy(v1alpha1.ReasonPodRefused, "exceeded quota")
	for name, tc := range map[string]struct {
		status v1alpha1.AtStatus
		edit   func(*v1alpha1.At)
		want   bool
	}{
		"blocked":                          {edit: refused, want: true},
		"has a starting deadline":          {edit: func(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = ptr.To[int64](7200); refused(at) }},
		"has a Pod":                        {status: v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning, Pod: &v1alpha1.AtPod{Name: "backup-29968380-pod"}}, edit: refused},
		"has failed once":                  {status: v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning, NextAttemptTime: at(ten)}, edit: refused},
		"on nodes, whose Ats are refused":  {status: v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning, Nodes: &v1alpha1.AtNodesStatus{}}, edit: refused, want: true},
		"on nodes, whose Ats were created": {status: v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning, Nodes: &v1alpha1.AtNodesStatus{StartTime: at(ten)}}, edit: refused},
		"a forecast, for a time to come":   {edit: blockedBy(v1alpha1.ReasonPodRefused, "If it were due now: exceeded quota")},
	} {
		t.Run(name, func(t *testing.T) {
			earlier := child(ten.Add(-time.Hour), released, func(at *v1alpha1.At) { at.Status = tc.status }, tc.edit)
			r := row{cronAt: newCronAt(ranAtTen), ats: ats{child(ten, released, refused), earlier}, now: ten.Add(minute)}
			if got := follow(r.world()); strings.Contains(got, "expires backup-29968380 after 3600s") != tc.want {
				t.Error(got)
			}
		})
	}
}
