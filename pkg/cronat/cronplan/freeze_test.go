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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/freeze"
)

// frozen returns the Freezes of a namespace with a Freeze of one window.
func frozen(t *testing.T, from, until time.Time, edits ...func(*v1alpha1.Freeze)) *freeze.Set {
	t.Helper()
	object := &v1alpha1.Freeze{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "christmas"},
		Spec: v1alpha1.FreezeSpec{
			Windows: []v1alpha1.FreezeWindow{{From: v1alpha1.FreezeTime(from.Format(time.RFC3339)), Until: v1alpha1.FreezeTime(until.Format(time.RFC3339))}},
			Reason:  "Change freeze",
		},
	}
	for _, edit := range edits {
		edit(object)
	}
	ready, err := freeze.New(object)
	if err != nil {
		t.Fatal(err)
	}
	return freeze.NewSet("cnat-system", []*freeze.Freeze{ready}, nil)
}

// TestFreeze covers scheduled times in a Freeze, which are skipped, and those around it.
func TestFreeze(t *testing.T) {
	const second, minute = time.Second, time.Minute
	create := func(scheduled time.Time) string {
		return "CreateAt backup-" + nameOf(scheduled) + " for " + scheduled.Format(time.RFC3339)
	}
	times := func(count int64, last time.Time) *v1alpha1.MissedTimes {
		return &v1alpha1.MissedTimes{Count: count, Last: *at(last)}
	}
	exempt := func(cronAt *v1alpha1.CronAt) {
		cronAt.Labels = map[string]string{v1alpha1.LabelIgnoreFreezes: "true"}
	}
	for name, tc := range map[string]struct {
		mutate      []func(*v1alpha1.CronAt)
		ats         []*v1alpha1.At
		from, until time.Time
		now         time.Time
		// expectations
		action          string
		missed, skipped *v1alpha1.MissedTimes
		next            time.Time
		reason          string
		delay           time.Duration // at most
	}{
		"before it, a time after it is next": {
			from: ten.Add(-minute), until: ten.Add(90 * minute), now: ten.Add(-30 * minute), next: ten.Add(120 * minute), delay: 30 * minute,
		},
		"in it, before the time": {from: ten.Add(-minute), until: ten.Add(90 * minute), now: ten.Add(-second), next: ten.Add(120 * minute), reason: v1alpha1.ReasonFrozen, delay: second},
		"in it, the time is skipped": {
			from: ten.Add(-minute), until: ten.Add(90 * minute), now: ten.Add(second), skipped: times(1, ten), next: ten.Add(120 * minute), reason: v1alpha1.ReasonFrozen, delay: time.Hour - second,
		},
		"it ends at the time, which runs":   {from: ten.Add(-minute), until: ten, now: ten, action: create(ten), next: eleven},
		"it begins at the time":             {from: ten, until: ten.Add(minute), now: ten, skipped: times(1, ten), next: eleven, reason: v1alpha1.ReasonFrozen, delay: minute},
		"it begins a second after the time": {from: ten.Add(second), until: ten.Add(90 * minute), now: ten.Add(2 * second), action: create(ten), next: ten.Add(120 * minute), reason: v1alpha1.ReasonFrozen},
		"after it, nothing piles up": {
			from: ten.Add(-minute), until: ten.Add(150 * minute), now: ten.Add(151 * minute), skipped: times(3, ten.Add(120*minute)), next: ten.Add(180 * minute), delay: 29 * minute,
		},
		"a time before it that has not run waits for its At only": {
			mutate: []func(*v1alpha1.CronAt){ranAtTen}, from: eleven.Add(30 * minute), until: eleven.Add(5 * time.Hour), now: eleven.Add(121 * minute),
			action: create(eleven), next: eleven.Add(5 * time.Hour), reason: v1alpha1.ReasonFrozen,
		},
		"the controller was away": {
			from: eleven.Add(-minute), until: eleven.Add(minute), now: ten.Add(121 * minute), action: create(ten.Add(120 * minute)), missed: times(1, ten), skipped: times(1, eleven), next: ten.Add(180 * minute),
		},
		"all times of the day":            {from: ten.Add(-minute), until: ten.AddDate(0, 0, 10), now: ten.AddDate(0, 0, 9), skipped: times(100, ten.AddDate(0, 0, 9)), next: ten.AddDate(0, 0, 10), reason: v1alpha1.ReasonFrozen, delay: time.Hour},
		"it is over, and nothing was due": {from: ten.Add(-20 * minute), until: ten.Add(-10 * minute), now: ten.Add(-minute), next: ten, delay: minute},
		"exempt":                          {mutate: []func(*v1alpha1.CronAt){exempt}, from: ten.Add(-minute), until: ten.Add(90 * minute), now: ten, action: create(ten), next: eleven},
		"suspended":                       {mutate: []func(*v1alpha1.CronAt){suspended}, from: ten.Add(-minute), until: ten.Add(90 * minute), now: ten.Add(second), reason: v1alpha1.ReasonSuspended, delay: 90*minute - second},
		"an At of the time exists":        {from: ten.Add(-minute), until: ten.Add(90 * minute), now: ten.Add(second), ats: []*v1alpha1.At{childOf(newCronAt(), ten)}, next: ten.Add(120 * minute), reason: v1alpha1.ReasonFrozen, delay: time.Hour - second},
	} {
		t.Run(name, func(t *testing.T) {
			w := World{CronAt: newCronAt(tc.mutate...), CronAtIsLive: true, CronAtAsOf: tc.now, Ats: tc.ats, AtsAsOf: tc.now, Freezes: frozen(t, tc.from, tc.until), Now: tc.now}
			d := Decide(w)
			skips := 0
			for range 3 {
				if d.Status == nil {
					break
				}
				for _, event := range d.Events {
					if event.Reason == v1alpha1.ReasonSkipSchedule {
						if skips++; !strings.HasSuffix(event.Message, ". Freeze christmas holds until "+tc.until.Format(time.RFC3339)+": Change freeze") {
							t.Errorf("event %q", event.Message)
						}
					}
				}
				if tc.skipped != nil && !cmp.Equal(d.Status.Skipped, w.CronAt.Status.Skipped) {
					// An At that the cache lacks may have been created for the time.
					cached := w
					cached.AtsAsOf = time.Time{}
					if got := describe(decideOrRead(cached).Action); got != "read Ats" {
						t.Errorf("without the Ats: action %q", got)
					}
				}
				w.CronAt.Status = *d.Status
				d = Decide(w)
			}
			got := &w.CronAt.Status
			if d.Action != nil {
				got = newView(w).write().Status // what is written once the At exists
				if got == nil {
					got = &w.CronAt.Status
				}
			}
			if action := describe(d.Action); action != tc.action {
				t.Errorf("action %q, want %q", action, tc.action)
			}
			if diff := cmp.Diff(tc.missed, got.Missed); diff != "" {
				t.Errorf("missed (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.skipped, got.Skipped); diff != "" {
				t.Errorf("skipped (-want +got):\n%s", diff)
			}
			if (skips == 1) != (tc.skipped != nil) {
				t.Errorf("%d events of skipped times", skips)
			}
			next := time.Time{}
			if got.NextScheduleTime != nil {
				next = got.NextScheduleTime.Time
			}
			if !next.Equal(tc.next) || got.Reason != tc.reason {
				t.Errorf("next %s, reason %q, want %s, %q", next, got.Reason, tc.next, tc.reason)
			}
			if d.Action == nil && (d.Delay <= 0 || d.Delay > tc.delay) {
				t.Errorf("delay %s, want at most %s", d.Delay, tc.delay)
			}
		})
	}
}

// TestFreezeSpread checks that the time counts at which the At would be due.
func TestFreezeSpread(t *testing.T) {
	cronAt := newCronAt(func(cronAt *v1alpha1.CronAt) {
		spread := int32(3600)
		cronAt.Spec.SpreadSeconds, cronAt.Status.ObservedSchedule.SpreadSeconds = &spread, spread
	})
	due := ten.Add(shiftOf(cronAt))
	if due.Equal(ten) {
		t.Fatal("no shift")
	}
	for name, tc := range map[string]struct {
		from, until time.Time
		skipped     bool
	}{
		"at the scheduled time": {from: ten, until: due},
		"when it is due":        {from: due, until: due.Add(time.Minute), skipped: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := World{CronAt: cronAt, CronAtIsLive: true, CronAtAsOf: due, AtsAsOf: due, Freezes: frozen(t, tc.from, tc.until), Now: due}
			d := Decide(w)
			if got := d.Status != nil && d.Status.Skipped != nil; got != tc.skipped {
				t.Errorf("skipped is %v: %+v", got, d)
			}
		})
	}
}
