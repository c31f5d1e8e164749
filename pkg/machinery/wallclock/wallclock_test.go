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

package wallclock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// TestWatch sets the wall clock while it is watched. Steps are noticed in the next second.
func TestWatch(t *testing.T) {
	const ms = time.Millisecond
	type set struct{ at, ahead time.Duration }
	for name, tc := range map[string]struct {
		before time.Duration // how far the clock is ahead before the watch starts
		sets   []set
		want   []time.Duration // when a step is noticed
	}{
		"never":                    {},
		"forward":                  {sets: []set{{1500 * ms, time.Hour}}, want: []time.Duration{2 * time.Second}},
		"back":                     {sets: []set{{1500 * ms, -time.Hour}}, want: []time.Duration{2 * time.Second}},
		"forward and back later":   {sets: []set{{1500 * ms, time.Hour}, {3500 * ms, 0}}, want: []time.Duration{2 * time.Second, 4 * time.Second}},
		"forward and back at once": {sets: []set{{1200 * ms, time.Hour}, {1500 * ms, 0}}},
		"before the watch":         {before: time.Hour},
		"adjusted a bit":           {sets: []set{{1500 * ms, maxDrift}}},
		"adjusted a bit, repeatedly": {
			sets: []set{{1500 * ms, 60 * ms}, {2500 * ms, 120 * ms}, {3500 * ms, 180 * ms}, {4500 * ms, 240 * ms}},
			want: []time.Duration{3 * time.Second, 5 * time.Second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				wall, start := &harness.Clock{}, time.Now()
				wall.Set(tc.before)
				var got []time.Duration
				watch := NewWatch(wall)
				stop := harness.Run(t.Context(), t, func(ctx context.Context) {
					watch(ctx, func() { got = append(got, time.Since(start)) })
				})
				for _, s := range tc.sets {
					time.Sleep(time.Until(start.Add(s.at)))
					wall.Set(s.ahead)
				}
				time.Sleep(time.Hour)
				stop()
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("steps (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestStepBeforeWatch sets the wall clock after NewWatch, but before its result is called.
func TestStepBeforeWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wall := &harness.Clock{}
		watch := NewWatch(wall)
		time.Sleep(time.Minute)
		wall.Set(time.Hour)
		steps := 0
		stop := harness.Run(t.Context(), t, func(ctx context.Context) { watch(ctx, func() { steps++ }) })
		time.Sleep(time.Minute)
		stop()
		if steps != 1 {
			t.Errorf("noticed %d steps, want one", steps)
		}
	})
}

// pausedClock is a wall clock of a process that is paused for a minute once, just before it
// reads the clock.
type pausedClock struct {
	clock.RealClock
	reads int
}

func (c *pausedClock) Now() time.Time {
	if c.reads++; c.reads == 3 {
		return c.RealClock.Now().Add(time.Minute)
	}
	return c.RealClock.Now()
}

func TestPauseIsNoStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wall := &pausedClock{}
		watch := NewWatch(wall)
		stop := harness.Run(t.Context(), t, func(ctx context.Context) { watch(ctx, func() { t.Error("a pause is taken for a step") }) })
		time.Sleep(time.Minute)
		stop()
		if wall.reads < 60 {
			t.Errorf("the clock was read %d times in a minute", wall.reads)
		}
	})
}
