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

package plan

import (
	"math"
	"testing"
	"time"

	"k8s.io/utils/ptr"
)

func TestStartingTimeLeft(t *testing.T) {
	const most = math.MaxInt64 / int64(time.Second)
	due := time.Date(2026, 12, 24, 10, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		seconds *int64
		late    time.Duration // how long ago the run was due
		want    time.Duration
	}{
		"no limit":                    {nil, time.Hour, noLimit},
		"0 allows less than a second": {ptr.To[int64](0), 999 * time.Millisecond, time.Millisecond},
		"exceeded":                    {ptr.To[int64](10), 12 * time.Second, -time.Second},
		"the longest":                 {ptr.To(most), time.Hour, Seconds(most) + time.Second - time.Hour},
		"the largest number":          {ptr.To[int64](math.MaxInt64), time.Hour, noLimit},
	} {
		t.Run(name, func(t *testing.T) {
			if got := StartingTimeLeft(due, tc.seconds, due.Add(tc.late)); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestAttemptBackoff(t *testing.T) {
	for failed, want := range map[int32]time.Duration{
		1: 10 * time.Second, 2: 20 * time.Second, 3: 40 * time.Second, 4: 80 * time.Second,
		5: 160 * time.Second, 6: 320 * time.Second, 7: 6 * time.Minute, math.MaxInt32: 6 * time.Minute,
	} {
		if got := attemptBackoff(failed); got != want {
			t.Errorf("after %d failed attempts %v, want %v", failed, got, want)
		}
	}
}
