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

package main

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	ics "github.com/arran4/golang-ical"
	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestCalendar has a calendar that a public parser of RFC 5545 reads.
func TestCalendar(t *testing.T) {
	at := newAt("at", func(at *v1alpha1.At) { at.Spec.Command = strings.Repeat("echo 'a, b; c\\d' ü\n", 10) })
	night := newAt("night", func(at *v1alpha1.At) {
		at.Status = v1alpha1.AtStatus{
			Phase: v1alpha1.PhaseDone, Reason: v1alpha1.ReasonCommandFailed, Message: "told",
			StartTime: ptr.To(metav1.NewTime(now.Add(-2 * time.Hour))), CompletionTime: ptr.To(metav1.NewTime(now.Add(-time.Hour))),
		}
	})
	var got []string
	for _, args := range [][]string{{"agenda", "-o", "ics"}, {"agenda", "-o", "ics", "--since", "12h"}} {
		w := newWorld(t, at, night)
		if code := w.run(t, args...); code != 0 {
			t.Fatal(w.stderr.String())
		}
		for line := range strings.SplitSeq(w.stdout.String(), "\r\n") {
			if len(line) > 75 {
				t.Errorf("a line of %d octets, RFC 5545 allows 75: %q", len(line), line)
			}
		}
		calendar, err := ics.ParseCalendar(&w.stdout)
		if err != nil {
			t.Fatal(err)
		}
		for _, event := range calendar.Events() {
			start, startErr := event.GetStartAt()
			end, endErr := event.GetEndAt()
			if err := cmp.Or(startErr, endErr); err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprintln(start, end.Sub(start), event.GetProperty(ics.ComponentPropertySummary).Value, event.GetProperty(ics.ComponentPropertyDescription).Value))
		}
	}
	want := []string{
		fmt.Sprintln("2026-03-28 09:12:00 +0000 UTC 0s at/at (default)", commandOf(&at.Spec.RunSpec)),
		"2026-03-27 12:00:00 +0000 UTC 1h0m0s at/night (default) CommandFailed\ntold\necho YAY\n",
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestAgendaOfMany expects 10,000 CronAts of each minute in well under two seconds, without the
// requests.
func TestAgendaOfMany(t *testing.T) {
	cronAts := make([]*v1alpha1.CronAt, 10_000)
	for i := range cronAts {
		cronAts[i] = newCronAt(fmt.Sprint("c", i), func(cronAt *v1alpha1.CronAt) {
			cronAt.Spec.Schedule, cronAt.Status.ObservedSchedule.Schedule = "* * * * *", "* * * * *"
		})
	}
	if starts := startsOf(nil, cronAts, nil, nil, now, now.Add(24*time.Hour)); len(starts) != len(cronAts) {
		t.Errorf("%d starts", len(starts))
	}
}
