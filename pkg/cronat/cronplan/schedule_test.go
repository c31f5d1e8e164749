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
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

func TestParseErrors(t *testing.T) {
	for _, tc := range []struct{ schedule, timeZone, want string }{
		{"0 3 * *", "UTC", `spec.schedule "0 3 * *" is invalid: it does not have five fields: write minute, hour`},
		{"60 3 * * *", "UTC", `is invalid: minute "60": write numbers from 0 to 59`},
		{"TZ=UTC 0 3 * * *", "UTC", "has a time zone: set spec.timeZone"},
		{"TZ=", "UTC", "has a time zone: set spec.timeZone"},
		{"CRON_TZ=UTC", "UTC", "has a time zone: set spec.timeZone"},
		{"0 3 * * *", "Mars/Olympus", `spec.timeZone "Mars/Olympus" is unknown`},
		{"0 3 * * *", "Local", `spec.timeZone "Local" is unknown`},
	} {
		_, err := parse(tc.schedule, tc.timeZone)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s in %s: got %v, want %s", tc.schedule, tc.timeZone, err, tc.want)
		}
	}
}

// TestNextTimes calls Next like kubectl at: for a CronAt that will be created, has run,
// or does not run.
func TestNextTimes(t *testing.T) {
	now := time.Date(2026, 3, 28, 12, 0, 30, 0, time.UTC)
	for name, tc := range map[string]struct {
		spec   v1alpha1.CronAtSpec
		status v1alpha1.CronAtStatus
		// expectations
		times []string
		err   string
	}{
		"across a clock change": {
			spec:  v1alpha1.CronAtSpec{Schedule: "30 2 * * *", TimeZone: ptr.To("Europe/Berlin")},
			times: []string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"},
		},
		"from its creation": {spec: v1alpha1.CronAtSpec{Schedule: "@every 90m"}, times: []string{"2026-03-28T13:00:00Z", "2026-03-28T14:30:00Z"}},
		"from its last time": {
			spec:   v1alpha1.CronAtSpec{Schedule: "@every 90m"},
			status: v1alpha1.CronAtStatus{LastScheduleTime: &metav1.Time{Time: now.Add(-10 * time.Second)}},
			times:  []string{"2026-03-28T13:30:20Z", "2026-03-28T15:00:20Z"},
		},
		"suspended":   {spec: v1alpha1.CronAtSpec{Schedule: "@daily", Suspend: ptr.To(true)}},
		"never":       {spec: v1alpha1.CronAtSpec{Schedule: "0 0 30 2 *"}, err: `spec.schedule "0 0 30 2 *" has no time within the next five years`},
		"no schedule": {spec: v1alpha1.CronAtSpec{Schedule: "daily"}, err: `spec.schedule "daily" is invalid: it does not have five fields: ` + "write minute, hour, day of month, month and day of week, such as \"0 3 * * 1-5\", or @hourly, @daily, @weekly, @monthly, @yearly or \"@every 90m\""},
	} {
		t.Run(name, func(t *testing.T) {
			cronAt := &v1alpha1.CronAt{Spec: tc.spec, Status: tc.status}
			cronAt.CreationTimestamp = metav1.NewTime(time.Date(2026, 3, 28, 11, 30, 0, 0, time.UTC))
			times, err := Next(cronAt, now, 2)
			var got []string
			for _, next := range times {
				got = append(got, next.Format(time.RFC3339))
			}
			if !slices.Equal(got, tc.times) || err == nil != (tc.err == "") || err != nil && err.Error() != tc.err {
				t.Errorf("got %v and %v, want %v and %q", got, err, tc.times, tc.err)
			}
		})
	}
}

// TestSpread spreads a thousand CronAts over a minute repeatedly: the maximum per second
// stays far below 40. Each CronAt always has the same shift.
func TestSpread(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	most := 0
	for range 100 {
		var started [60]int
		for range 1000 {
			uid := fmt.Sprintf("%08x-%04x-4%03x-a%03x-%012x", random.Uint32(), random.IntN(1<<16), random.IntN(1<<12), random.IntN(1<<12), random.Int64N(1<<48))
			shift := shiftOf(types.UID(uid), 60)
			started[shift/time.Second]++
			if again := shiftOf(types.UID(uid), 60); again != shift {
				t.Fatalf("%s, and then %s", shift, again)
			}
		}
		most = max(most, slices.Max(started[:]))
	}
	if most > 40 {
		t.Errorf("%d start in one second", most)
	}
	if shift := shiftOf("uid", 0); shift != 0 {
		t.Errorf("without spreadSeconds, it is shifted by %s", shift)
	}
}
