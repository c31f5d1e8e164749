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

// Package wallclock watches the wall clock: timers use monotonic time, and do not notice
// when the wall clock is stepped or when the machine sleeps.
package wallclock

import (
	"context"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// The wall clock is compared with the monotonic clock every Period. It was stepped if
// they differ by more than maxDrift.
const (
	Period   = time.Second
	maxDrift = 100 * time.Millisecond
)

// NewWatch returns a function that calls stepped, at most Period later, each time the
// wall clock is stepped after the call of NewWatch, until ctx is done.
func NewWatch(wallClock clock.WithTicker) func(ctx context.Context, stepped func()) {
	start, wallStart := monotonic.Now(), wallClock.Now().Round(0) // Round removes the monotonic reading.
	offset := func() time.Duration { return wallClock.Now().Round(0).Sub(wallStart) - monotonic.Since(start) }
	return func(ctx context.Context, stepped func()) {
		ticker := wallClock.NewTicker(Period)
		defer ticker.Stop()
		var last time.Duration
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C():
			}
			// A pause between reading the two clocks looks like a step. It counts as a step only
			// if it is seen twice.
			if step := offset() - last; step.Abs() > maxDrift && (offset()-last).Abs() > maxDrift {
				klog.FromContext(ctx).Info("The wall clock was stepped or the machine slept", "by", step)
				last += step
				stepped()
			}
		}
	}
}

// monotonic is the clock of timers.
var monotonic clock.RealClock
