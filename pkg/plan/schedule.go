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
	"time"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/zones"
)

// wallClock is the format of a schedule with a time zone. The parser also accepts
// fractions of a second.
const wallClock = "2006-01-02T15:04:05"

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
		return time.Time{}, fmt.Errorf("spec.timeZone %q is unknown: write a name from the IANA time zone database, such as Europe/Berlin", timeZone)
	}
	shown, err := time.Parse(wallClock, schedule)
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
