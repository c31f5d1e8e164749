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
	"testing"
	"time"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

const (
	quota         = `create Pod: pods "backup-29968440-pod" is forbidden: exceeded quota`
	quotaForecast = "If it were due now: " + quota
)

// isForecast gives a CronAt a forecast that was found at nine.
func isForecast(cronAt *v1alpha1.CronAt) {
	withCondition(v1alpha1.ConditionBlocked, v1alpha1.ReasonPodRefused, quotaForecast)(cronAt)
}

// rehearsal is the result of a rehearsal at 09:25.
func rehearsal(reason string) *plan.Forecast {
	return &plan.Forecast{Rehearsal: plan.NewRehearsal(reason, "words", ten.Add(-35*minute))}
}

func rehearses(cronAt *v1alpha1.CronAt) { cronAt.Spec.AtTemplate.Spec.Rehearse = true }

func notRehearsed(cronAt *v1alpha1.CronAt) { cronAt.Spec.AtTemplate.Spec.Rehearse = false }

// rehearsalFailed gives a CronAt the result of a rehearsal.
func rehearsalFailed(when time.Time) edit {
	return func(cronAt *v1alpha1.CronAt) {
		rehearses(cronAt)
		if failure, _ := RehearsedOf(&cronAt.Status).Observe(cronAt, true, plan.NewRehearsal(v1alpha1.ReasonImagePullFailed, "words", when), when); failure != nil {
			withCondition(v1alpha1.ConditionBlocked, failure.Reason, failure.Message)(cronAt)
		}
	}
}

func TestDecideForecast(t *testing.T) {
	refused := &plan.Forecast{Reason: v1alpha1.ReasonPodRefused, Message: quota}
	accepted := &plan.Forecast{}
	lead := plan.Lead(newCronAt().UID)
	half := ten.Add(-30 * minute)
	rows := map[string]row{
		"nothing known: it comes back for the preflight before the time": {cronAt: newCronAt(), now: half, want: "after 19m18.825s"},
		"then a preflight is needed":                                     {cronAt: newCronAt(), now: ten.Add(-lead), want: "preflight; after 10m41.175s"},
		"new": {
			cronAt: newCronAt(neverSynced), now: created,
			want: "writes nextScheduleTime=01:00, observedGeneration=1, observedSchedule=map[schedule:0 * * * * since:00:30]; preflight; after 19m18.825s",
		},
		"the template was edited": {cronAt: newCronAt(untimed), now: half, want: "writes observedGeneration=2; preflight; after 19m18.825s"},
		"the schedule was edited": {cronAt: newCronAt(edited("30 12 * * *", half)), now: half, want: "writes nextScheduleTime=12:30, observedGeneration=2, observedSchedule=map[schedule:30 12 * * * since:09:30]; preflight; preflight; after 2h49m18.825s"},
		"another controller wrote the status after an edit, and may not know the answer": {
			cronAt: newCronAt(writtenAt(half.Add(-plan.Grace + second))), now: half,
			want: "preflight; after 19m18.825s",
		},
		"a minute after an edit": {cronAt: newCronAt(writtenAt(half.Add(-plan.Grace))), now: half, want: "after 19m18.825s"},
		"due every 15 minutes":   {cronAt: newCronAt(ranAtTen, scheduled("*/15 * * * *")), now: ten.Add(10 * minute), want: "writes nextScheduleTime=10:15; preflight; preflight; after 5m0s"},
		"due every ten minutes: an At reports it as soon": {
			cronAt: newCronAt(ranAtTen, scheduled("*/10 * * * *")),
			now:    ten.Add(9 * minute),
			want:   "writes nextScheduleTime=10:10; after 1m0s",
		},
		"with the spread": {
			cronAt: newCronAt(spreadBy(3600), ran(ten)), now: ten,
			want: "writes nextScheduleTime=11:46:15Z; after 1h35m33.825s",
		},
		"refused": {cronAt: newCronAt(), forecast: refused, now: half, want: `writes Blocked=True PodRefused since 09:30, message=If it were due now: create Pod: pods "backup-29968440-pod" is forbidden: exceeded quota, reason=PodRefused; Warning PodRefused; after 30m0s`},
		"refused, in other words: no event": {
			cronAt: newCronAt(isForecast), forecast: &plan.Forecast{Reason: v1alpha1.ReasonPodRefused, Message: "no"}, now: half,
			want: "writes message=If it were due now: no; after 30m0s",
		},
		"refused, then accepted": {cronAt: newCronAt(isForecast), forecast: accepted, now: half, want: "writes Blocked=, message=, reason=; after 30m0s"},
		"refused, by an earlier controller: it stays until it is known": {
			cronAt: newCronAt(isForecast), now: half,
			want: "preflight; after 19m18.825s",
		},
		"refused, then suspended: nothing is to come": {
			cronAt:   newCronAt(isForecast, suspended),
			forecast: refused, now: half,
			want: "writes Blocked=",
		},
		"refused, then the schedule was edited so that it never comes": {
			cronAt: newCronAt(isForecast, edited("0 0 30 2 *", half)), now: half,
			want: `writes Blocked=True InvalidSchedule since 09:00, message=spec.schedule "0 0 30 2 *" has no time within the next five years, nextScheduleTime=, observedGeneration=2, observedSchedule=map[schedule:0 0 30 2 * since:09:30], reason=InvalidSchedule; Warning InvalidSchedule`,
		},
		"the forecast was for an At that has started, and the next one must wait for": {
			cronAt: newCronAt(ranAtTen, oneActive, isForecast, forbid), ats: ats{child(ten, released)}, now: ten.Add(minute),
			want: "writes Blocked=, message=, reason=; preflight; after 48m18.825s",
		},
		"an At is blocked: that is more than a forecast": {
			cronAt: newCronAt(ranAtTen, oneActive, isForecast), ats: ats{child(ten, released, blockedBy(v1alpha1.ReasonPodPending, "no"))}, forecast: refused, now: ten.Add(minute),
			want: "writes Blocked=True AtBlocked since 09:00, message=At backup-29968440 is blocked: PodPending: no, reason=AtBlocked; Warning AtBlocked; after 59m0s",
		},
		"to be rehearsed":               {cronAt: newCronAt(rehearses), now: half, want: "preflight; after 19m18.825s"},
		"to be rehearsed, which is off": {cronAt: newCronAt(rehearses), off: true, now: half, want: "after 19m18.825s"},
		"rehearsed, passed":             {cronAt: newCronAt(rehearses), forecast: rehearsal(v1alpha1.ReasonPassed), now: half, want: "writes Rehearsed=True Passed since 09:30: words, rehearsedAt=09:25; after 30m0s"},
		"rehearsed, failed": {
			cronAt: newCronAt(rehearses), forecast: rehearsal(v1alpha1.ReasonImagePullFailed), now: half,
			want: "writes Blocked=True ImagePullFailed since 09:30, Rehearsed=False ImagePullFailed since 09:30, message=Rehearsed at 09:25: words, reason=ImagePullFailed, rehearsedAt=09:25; Warning ImagePullFailed; after 30m0s",
		},
		"rehearsed, failed again: no event": {
			cronAt: newCronAt(rehearsalFailed(half.Add(-16 * minute))), forecast: rehearsal(v1alpha1.ReasonImagePullFailed), now: half,
			want: "writes message=Rehearsed at 09:25: words, rehearsedAt=09:25; after 30m0s",
		},
		"rehearsed, failed, then passed": {
			cronAt: newCronAt(rehearsalFailed(half.Add(-16 * minute))), forecast: rehearsal(v1alpha1.ReasonPassed), now: half,
			want: "writes Blocked=, Rehearsed=True Passed since 09:30: words, message=, reason=, rehearsedAt=09:25; after 30m0s",
		},
		"rehearsed, failed, and the Pod is refused": {
			cronAt: newCronAt(rehearsalFailed(half.Add(-5 * minute))), forecast: refused, now: half,
			want: `writes Blocked=True PodRefused since 09:00, Rehearsed=False ImagePullFailed since 09:25: Rehearsed at 09:25: words, message=If it were due now: create Pod: pods "backup-29968440-pod" is forbidden: exceeded quota, reason=PodRefused; Warning PodRefused; after 30m0s`,
		},
		"rehearsed, failed, and rehearsals are turned off": {
			cronAt: newCronAt(rehearsalFailed(half.Add(-5 * minute))), off: true, forecast: accepted, now: half,
			want: "writes Blocked=, Rehearsed=, message=, reason=, rehearsedAt=; after 30m0s",
		},
		"rehearsed, failed, and no longer wanted": {
			cronAt:   newCronAt(rehearsalFailed(half.Add(-5*minute)), notRehearsed),
			forecast: accepted, now: half,
			want: "writes Blocked=, Rehearsed=, message=, reason=, rehearsedAt=; after 30m0s",
		},
		"rehearsed, failed, and the next At must wait for one that runs": {
			cronAt: newCronAt(ranAtTen, oneActive, rehearsalFailed(half.Add(-5*minute)), forbid), ats: ats{child(ten, released)},
			now:  ten.Add(minute),
			want: "writes Blocked=, Rehearsed=False ImagePullFailed since 09:25: Rehearsed at 09:25: words, message=, reason=; preflight; preflight; after 48m18.825s",
		},
	}
	for name, r := range rows {
		r.unknown = r.forecast == nil
		rows[name] = r
	}
	check(t, rows)
}

func TestNextAt(t *testing.T) {
	for name, tc := range map[string]struct {
		cronAt *v1alpha1.CronAt
		want   string // its name and schedule
	}{
		"not due":       {newCronAt(ranAtTen), "backup-" + nameOf(eleven) + " 2026-12-24T11:00:00Z"},
		"due":           {newCronAt(), "backup-" + nameOf(eleven) + " 2026-12-24T11:00:00Z"},
		"just created":  {newCronAt(neverSynced), "backup-" + nameOf(eleven) + " 2026-12-24T11:00:00Z"},
		"suspended":     {newCronAt(suspended), ""},
		"being deleted": {newCronAt(beingDeleted), ""},
		"invalid":       {newCronAt(scheduled("no")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if next := NextAt(tc.cronAt, ten.Add(5*minute)); next != nil {
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
