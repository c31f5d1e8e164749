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
	"fmt"
	"math"
	"time"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/zones"
)

// Instant returns the instant of a spec's schedule. The error is a sentence that says
// what is wrong and what to write.
func Instant(spec *v1alpha1.AtSpec) (time.Time, error) {
	if spec.TimeZone != nil {
		return wallClockInstant(spec.Schedule, *spec.TimeZone)
	}
	instant, err := time.Parse(time.RFC3339, spec.Schedule)
	if err != nil {
		return time.Time{}, fmt.Errorf("spec.schedule %q is invalid: write a time in RFC 3339 format, such as 2035-12-24T10:12:00Z", spec.Schedule)
	}
	return instant, nil
}

// wallClockInstant returns the only instant at which the clocks of a time zone show the
// given time.
func wallClockInstant(schedule, timeZone string) (time.Time, error) {
	location, err := zones.Load(timeZone)
	if err != nil {
		return time.Time{}, err
	}
	shown, err := time.Parse(zones.Layout, schedule) // It accepts fractions of a second, too.
	if err != nil {
		return time.Time{}, fmt.Errorf("spec.schedule %q is invalid: with spec.timeZone, write a date and time without an offset, such as 2035-12-24T10:12:00", schedule)
	}

	before, after, times := zones.Showing(shown, location)
	verb := "skip"
	switch times {
	case 1:
		return before, nil
	case 2:
		verb = "repeat"
	}
	return time.Time{}, fmt.Errorf("the clocks in %s %s %s: omit spec.timeZone and set spec.schedule to %s or %s",
		timeZone, verb, schedule, before.Format(time.RFC3339Nano), after.Format(time.RFC3339Nano))
}

// The delay between two attempts starts at minAttemptBackoff and doubles with each
// attempt, up to maxAttemptBackoff, as in Job.
const (
	minAttemptBackoff = 10 * time.Second
	maxAttemptBackoff = 6 * time.Minute
)

// attemptBackoff returns the delay before the next attempt after the given number of
// failed attempts.
func attemptBackoff(failed int32) time.Duration {
	delay := minAttemptBackoff
	for ; failed > 1 && delay < maxAttemptBackoff; failed-- {
		delay *= 2
	}
	return min(delay, maxAttemptBackoff)
}

// noLimit is the time left if there is no limit.
const noLimit = time.Duration(math.MaxInt64)

// Seconds returns a number of seconds as a duration. A number that overflows a Duration
// (292 years) becomes the maximum, which counts as no limit.
func Seconds[T int32 | int64](number T) time.Duration {
	if int64(number) > int64(noLimit/time.Second) {
		return noLimit
	}
	return time.Duration(number) * time.Second
}

// timeLeft returns how long after now the given number of seconds after since ends.
func timeLeft(since time.Time, seconds *int64, now time.Time) time.Duration {
	if seconds == nil || Seconds(*seconds) == noLimit {
		return noLimit
	}
	// Neither Add nor Sub overflows.
	return since.Add(Seconds(*seconds)).Sub(now)
}

// activeTimeLeft returns how much longer the run may take according to
// spec.activeDeadlineSeconds, which limits the run on each node, not the run as a whole.
func (v *view) activeTimeLeft() time.Duration {
	start := v.At.Status.StartTime
	if start == nil || isNodesRun(v.At) || isRestart(v.At) && !wasRestarted(v.At) {
		return noLimit
	}
	return timeLeft(start.Time, v.At.Spec.ActiveDeadlineSeconds, v.Now)
}

// StartingTimeLeft returns how long after now what is due may still start according to
// startingDeadlineSeconds, which counts whole seconds. It is math.MaxInt64 if there is no
// limit.
func StartingTimeLeft(due time.Time, seconds *int64, now time.Time) time.Duration {
	return timeLeft(due.Add(time.Second), seconds, now)
}

func (v *view) startingTimeLeft(instant time.Time) time.Duration {
	return StartingTimeLeft(instant, v.At.Spec.StartingDeadlineSeconds, v.Now)
}

// lastTry is how long before its starting deadline a blocked At is tried once more,
// regardless of its back-off.
const lastTry = 2 * time.Second

// leftToStart returns how long the next Pod may still be created. The starting deadline is
// that of the first attempt.
func (v *view) leftToStart() time.Duration {
	if v.At.Status.Failed > 0 || wasRestarted(v.At) {
		return v.activeLeft
	}
	return min(v.activeLeft, v.startingLeft)
}

// untilDeadline returns the delay until the deadline, or until just before it. After the
// deadline, the At ends if its next Pod has not been created. The delay is 0 if there is no
// deadline.
func (v *view) untilDeadline() time.Duration {
	left := v.leftToStart()
	switch {
	case left == noLimit:
		return 0
	case left > lastTry:
		return left - lastTry
	default:
		return max(left, 1)
	}
}
