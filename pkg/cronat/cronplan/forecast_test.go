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
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

const (
	quota         = `create Pod: pods "backup-29968440-pod" is forbidden: exceeded quota`
	quotaForecast = "If it were due now: " + quota
)

// isForecast gives a CronAt a forecast that was found at nine.
func isForecast(cronAt *v1alpha1.CronAt) {
	withCondition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, v1alpha1.ReasonPodRefused, quotaForecast, ten.Add(-time.Hour))(cronAt)
}

// writtenAt is a write to anything but the status.
func writtenAt(when time.Time) func(*v1alpha1.CronAt) {
	return func(cronAt *v1alpha1.CronAt) { cronAt.ManagedFields = []metav1.ManagedFieldsEntry{{Time: at(when)}} }
}

func templateEdited(cronAt *v1alpha1.CronAt) { cronAt.Generation = 2 }

const rehearsedForecast = "Rehearsed at 2026-12-24T09:25:00Z: words"

// rehearsal is the result of a rehearsal at 09:25.
func rehearsal(reason string) plan.Rehearsal {
	return plan.NewRehearsal(reason, "words", ten.Add(-35*time.Minute))
}

func rehearses(cronAt *v1alpha1.CronAt) { cronAt.Spec.AtTemplate.Spec.Rehearse = true }

// failed gives a CronAt the result of a rehearsal that failed.
func failed(when time.Time) func(*v1alpha1.CronAt) {
	return func(cronAt *v1alpha1.CronAt) {
		rehearses(cronAt)
		failure, _ := RehearsedOf(&cronAt.Status).Observe(cronAt, true, plan.NewRehearsal(v1alpha1.ReasonImagePullFailed, "words", when), when)
		if failure != nil {
			withCondition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, failure.Reason, failure.Message, when)(cronAt)
		}
	}
}

func scheduled(schedule string) func(*v1alpha1.CronAt) {
	return func(cronAt *v1alpha1.CronAt) {
		cronAt.Spec.Schedule, cronAt.Status.ObservedSchedule.Schedule = schedule, schedule
	}
}

func TestDecideForecast(t *testing.T) {
	refused := &plan.Forecast{Reason: v1alpha1.ReasonPodRefused, Message: quota}
	event := []plan.Event{{Type: corev1.EventTypeWarning, Reason: v1alpha1.ReasonPodRefused, Message: quotaForecast}}
	lead := plan.Lead(newCronAt().UID)
	half := ten.Add(-30 * time.Minute)
	atName := "backup-" + nameOf(ten)
	for name, tc := range map[string]struct {
		cronAt   *v1alpha1.CronAt
		ats      []*v1alpha1.At
		forecast *plan.Forecast
		off      bool // rehearsals
		now      time.Time

		wantPreflight bool
		wantReason    string // after the sync
		wantMessage   string
		wantEvents    []plan.Event
		wantDelay     time.Duration // if nothing is written
	}{
		"nothing known: it comes back for the preflight before the time": {cronAt: newCronAt(), now: half, wantDelay: 30*time.Minute - lead},
		"then a preflight is needed":                                     {cronAt: newCronAt(), now: ten.Add(-lead), wantPreflight: true, wantDelay: lead},
		"accepted, or off: it comes back when it is due":                 {cronAt: newCronAt(), forecast: &plan.Forecast{}, now: half, wantDelay: 30 * time.Minute},
		"new": {
			cronAt: newCronAt(func(cronAt *v1alpha1.CronAt) { cronAt.Status = v1alpha1.CronAtStatus{} }), now: created, wantPreflight: true,
		},
		"the template was edited": {cronAt: newCronAt(templateEdited), now: half, wantPreflight: true},
		"the schedule was edited": {cronAt: newCronAt(edited("30 12 * * *", half)), now: half, wantPreflight: true},
		"another controller wrote the status after an edit, and may not know the answer": {
			cronAt: newCronAt(writtenAt(half.Add(-plan.Grace + time.Second))), now: half, wantPreflight: true, wantDelay: 30*time.Minute - lead,
		},
		"a minute after an edit": {cronAt: newCronAt(writtenAt(half.Add(-plan.Grace))), now: half, wantDelay: 30*time.Minute - lead},
		"due every 15 minutes":   {cronAt: newCronAt(ranAtTen, scheduled("*/15 * * * *")), now: ten.Add(10 * time.Minute), wantPreflight: true, wantDelay: 5 * time.Minute},
		"due every ten minutes: an At reports it as soon": {
			cronAt: newCronAt(ranAtTen, scheduled("*/10 * * * *"), func(cronAt *v1alpha1.CronAt) { cronAt.Status.NextScheduleTime = at(ten.Add(10 * time.Minute)) }),
			now:    ten.Add(9 * time.Minute), wantDelay: time.Minute,
		},
		"with the spread": {
			cronAt: newCronAt(func(cronAt *v1alpha1.CronAt) {
				cronAt.Spec.SpreadSeconds, cronAt.Status.ObservedSchedule.SpreadSeconds = ptr.To[int32](3600), 3600
				cronAt.Status.NextScheduleTime = at(ten.Add(shiftOf(cronAt)))
			}),
			now: ten, wantDelay: shiftOf(newCronAt(func(cronAt *v1alpha1.CronAt) { cronAt.Spec.SpreadSeconds = ptr.To[int32](3600) })) - lead,
		},
		"refused":                        {cronAt: newCronAt(), forecast: refused, now: half, wantReason: v1alpha1.ReasonPodRefused, wantMessage: quotaForecast, wantEvents: event},
		"refused, already in the status": {cronAt: newCronAt(isForecast), forecast: refused, now: half, wantReason: v1alpha1.ReasonPodRefused, wantMessage: quotaForecast, wantDelay: 30 * time.Minute},
		"refused, in other words: no event": {
			cronAt: newCronAt(isForecast), forecast: &plan.Forecast{Reason: v1alpha1.ReasonPodRefused, Message: "no"}, now: half,
			wantReason: v1alpha1.ReasonPodRefused, wantMessage: "If it were due now: no",
		},
		"refused, then accepted": {cronAt: newCronAt(isForecast), forecast: &plan.Forecast{}, now: half},
		"refused, by an earlier controller: it stays until it is known": {
			cronAt: newCronAt(isForecast), now: half, wantReason: v1alpha1.ReasonPodRefused, wantMessage: quotaForecast, wantPreflight: true, wantDelay: 30*time.Minute - lead,
		},
		"refused, then suspended: nothing is to come": {
			cronAt: newCronAt(suspended, func(cronAt *v1alpha1.CronAt) {
				cronAt.Status.Conditions = append(cronAt.Status.Conditions, newCronAt(isForecast).Status.Conditions...)
			}),
			forecast: refused, now: half, wantReason: v1alpha1.ReasonSuspended, wantMessage: "No At is created while spec.suspend is true.",
		},
		"refused, then the schedule was edited so that it never comes": {
			cronAt: newCronAt(isForecast, edited("0 0 30 2 *", half)), now: half, wantReason: v1alpha1.ReasonInvalidSchedule,
			wantMessage: `spec.schedule "0 0 30 2 *" has no time within the next five years`,
			wantEvents:  []plan.Event{{Type: corev1.EventTypeWarning, Reason: v1alpha1.ReasonInvalidSchedule, Message: `spec.schedule "0 0 30 2 *" has no time within the next five years`}},
		},
		"refused, and an At runs with Allow": {
			cronAt: newCronAt(ranAtTen, oneActive), ats: []*v1alpha1.At{childOf(newCronAt(), ten, released)}, forecast: refused, now: ten.Add(time.Minute),
			wantReason: v1alpha1.ReasonPodRefused, wantMessage: quotaForecast, wantEvents: event,
		},
		"the forecast was for an At that has started, and the next one must wait for": {
			cronAt: newCronAt(ranAtTen, oneActive, isForecast, policy(v1alpha1.ForbidConcurrent)), ats: []*v1alpha1.At{childOf(newCronAt(), ten, released)}, now: ten.Add(time.Minute),
			wantPreflight: true,
		},
		"an At is blocked: that is more than a forecast": {
			cronAt: newCronAt(ranAtTen, oneActive, isForecast), ats: []*v1alpha1.At{childOf(newCronAt(), ten, released, blockedBy(v1alpha1.ReasonPodPending, "no"))}, forecast: refused, now: ten.Add(time.Minute),
			wantReason: v1alpha1.ReasonAtBlocked, wantMessage: "At " + atName + " is blocked: PodPending: no",
			wantEvents: []plan.Event{{Type: corev1.EventTypeWarning, Reason: v1alpha1.ReasonAtBlocked, Message: "At " + atName + " is blocked: PodPending: no"}},
		},
		"to be rehearsed":               {cronAt: newCronAt(rehearses), now: half, wantPreflight: true, wantDelay: 30*time.Minute - lead},
		"to be rehearsed, which is off": {cronAt: newCronAt(rehearses), off: true, now: half, wantDelay: 30*time.Minute - lead},
		"rehearsed, passed":             {cronAt: newCronAt(rehearses), forecast: &plan.Forecast{Rehearsal: rehearsal(v1alpha1.ReasonPassed)}, now: half},
		"rehearsed, failed": {
			cronAt: newCronAt(rehearses), forecast: &plan.Forecast{Rehearsal: rehearsal(v1alpha1.ReasonImagePullFailed)}, now: half,
			wantReason: v1alpha1.ReasonImagePullFailed, wantMessage: rehearsedForecast,
			wantEvents: []plan.Event{{Type: corev1.EventTypeWarning, Reason: v1alpha1.ReasonImagePullFailed, Message: rehearsedForecast}},
		},
		"rehearsed, failed again: no event": {
			cronAt: newCronAt(failed(half.Add(-16 * time.Minute))), forecast: &plan.Forecast{Rehearsal: rehearsal(v1alpha1.ReasonImagePullFailed)}, now: half,
			wantReason: v1alpha1.ReasonImagePullFailed, wantMessage: rehearsedForecast,
		},
		"rehearsed, failed, then passed": {
			cronAt: newCronAt(failed(half.Add(-16 * time.Minute))), forecast: &plan.Forecast{Rehearsal: rehearsal(v1alpha1.ReasonPassed)}, now: half,
		},
		"rehearsed, failed, and the Pod is refused": {
			cronAt: newCronAt(failed(half.Add(-5 * time.Minute))), forecast: refused, now: half,
			wantReason: v1alpha1.ReasonPodRefused, wantMessage: quotaForecast, wantEvents: event,
		},
		"rehearsed, failed, by an earlier controller: it stays until it is known": {
			cronAt: newCronAt(failed(half.Add(-5 * time.Minute))), now: half,
			wantReason: v1alpha1.ReasonImagePullFailed, wantMessage: rehearsedForecast, wantPreflight: true, wantDelay: 30*time.Minute - lead,
		},
		"rehearsed, failed, and rehearsals are turned off": {
			cronAt: newCronAt(failed(half.Add(-5 * time.Minute))), off: true, forecast: &plan.Forecast{}, now: half,
		},
		"rehearsed, failed, and no longer wanted": {
			cronAt:   newCronAt(failed(half.Add(-5*time.Minute)), func(cronAt *v1alpha1.CronAt) { cronAt.Spec.AtTemplate.Spec.Rehearse = false }),
			forecast: &plan.Forecast{}, now: half,
		},
		"rehearsed, failed, and the next At must wait for one that runs": {
			cronAt: newCronAt(ranAtTen, oneActive, failed(half.Add(-5*time.Minute)), policy(v1alpha1.ForbidConcurrent)), ats: []*v1alpha1.At{childOf(newCronAt(), ten, released)},
			now: ten.Add(time.Minute), wantPreflight: true,
		},
		"rehearsed, failed, and an At runs with Allow": {
			cronAt: newCronAt(ranAtTen, oneActive, failed(half.Add(-5*time.Minute))), ats: []*v1alpha1.At{childOf(newCronAt(), ten, released)},
			now: ten.Add(time.Minute), wantReason: v1alpha1.ReasonImagePullFailed, wantMessage: rehearsedForecast, wantPreflight: true, wantDelay: time.Hour - time.Minute - lead,
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(World{CronAt: tc.cronAt, CronAtIsLive: true, CronAtAsOf: tc.now, Ats: tc.ats, AtsAsOf: tc.now, Forecast: tc.forecast, Rehearses: !tc.off, Now: tc.now})
			status := &tc.cronAt.Status
			if d.Status != nil {
				status = d.Status
			} else if d.Delay != tc.wantDelay {
				t.Errorf("delay %v, want %v", d.Delay, tc.wantDelay)
			}
			if status.Reason != tc.wantReason || status.Message != tc.wantMessage {
				t.Errorf("reason %q, message %q; want %q, %q", status.Reason, status.Message, tc.wantReason, tc.wantMessage)
			}
			if diff := cmp.Diff(tc.wantEvents, d.Events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if d.Action != nil || d.Preflight != tc.wantPreflight {
				t.Errorf("action %T, preflight %v; want none, %v", d.Action, d.Preflight, tc.wantPreflight)
			}
		})
	}
}

// TestForecastDoesNotDelay checks that a time that is due runs whatever a preflight found.
func TestForecastDoesNotDelay(t *testing.T) {
	for name, mutate := range map[string]func(*v1alpha1.CronAt){"new": func(*v1alpha1.CronAt) {}, "written": isForecast} {
		t.Run(name, func(t *testing.T) {
			d := Decide(World{CronAt: newCronAt(mutate), CronAtIsLive: true, CronAtAsOf: ten, Forecast: &plan.Forecast{Reason: v1alpha1.ReasonPodRefused, Message: quota}, Now: ten})
			if got, want := describe(d.Action), "CreateAt backup-"+nameOf(ten); !strings.HasPrefix(got, want) || d.Preflight {
				t.Errorf("got %q, preflight %v; want %q", got, d.Preflight, want)
			}
		})
	}
}

func TestNextAt(t *testing.T) {
	for name, tc := range map[string]struct {
		cronAt *v1alpha1.CronAt
		want   string // its name and schedule
	}{
		"not due":         {newCronAt(ranAtTen), "backup-" + nameOf(eleven) + " 2026-12-24T11:00:00Z"},
		"due":             {newCronAt(), "backup-" + nameOf(eleven) + " 2026-12-24T11:00:00Z"},
		"just created":    {newCronAt(func(cronAt *v1alpha1.CronAt) { cronAt.Status = v1alpha1.CronAtStatus{} }), "backup-" + nameOf(eleven) + " 2026-12-24T11:00:00Z"},
		"edited just now": {newCronAt(ranAtTen, edited("20 * * * *", ten.Add(5*time.Minute))), "backup-" + nameOf(ten.Add(20*time.Minute)) + " 2026-12-24T10:20:00Z"},
		"suspended":       {newCronAt(suspended), ""},
		"being deleted":   {newCronAt(func(cronAt *v1alpha1.CronAt) { cronAt.DeletionTimestamp = at(ten) }), ""},
		"invalid":         {newCronAt(scheduled("no")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if next := NextAt(tc.cronAt, ten.Add(5*time.Minute)); next != nil {
				got = next.Name + " " + next.Spec.Schedule
				if next.Spec.Command != "true" || next.UID != "cronat-uid" || next.Namespace != "default" {
					t.Errorf("got %+v", next)
				}
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
