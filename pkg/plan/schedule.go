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
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // Every listed zone exists, whatever the machine or the image has.

	"k8s.io/apimachinery/pkg/util/sets"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// wallClock is how a schedule is written beside a time zone. When it is parsed,
// fractions of a second may follow.
const wallClock = "2006-01-02T15:04:05"

// Instant returns the instant that a spec's schedule names. An error says in a
// sentence what is wrong and what to write.
func Instant(spec *v1alpha1.AtSpec) (time.Time, error) {
	if spec.TimeZone != nil {
		return wallClockInstant(spec.Schedule, *spec.TimeZone)
	}
	instant, err := time.Parse(time.RFC3339, spec.Schedule)
	if err != nil {
		return time.Time{}, fmt.Errorf("spec.schedule %q cannot be read: write an instant as RFC 3339 does, such as 2026-12-24T10:12:00Z", spec.Schedule)
	}
	return instant, nil
}

// wallClockInstant returns the one instant at which the clocks of a time zone
// show the given time.
func wallClockInstant(schedule, timeZone string) (time.Time, error) {
	location, err := loadLocation(timeZone)
	if err != nil {
		return time.Time{}, fmt.Errorf("spec.timeZone %q is not known: write a name of the IANA time zone database, such as Europe/Berlin", timeZone)
	}
	shown, err := time.Parse(wallClock, schedule)
	if err != nil {
		return time.Time{}, fmt.Errorf("spec.schedule %q cannot be read: beside spec.timeZone write date and time without a zone, such as 2026-12-24T10:12:00", schedule)
	}

	// Each offset that is in force around that time makes an instant of it. Where
	// the offset changes, both of them may show the time, or neither.
	before := withOffsetOf(shown.Add(-24*time.Hour), shown, location)
	after := withOffsetOf(shown.Add(24*time.Hour), shown, location)
	shows := func(instant time.Time) bool {
		_, offset := instant.Zone()
		return instant.Add(time.Duration(offset) * time.Second).Equal(shown)
	}
	switch {
	case shows(before) && (!shows(after) || before.Equal(after)):
		return before, nil
	case shows(after) && !shows(before):
		return after, nil
	}
	verb := "skip"
	if shows(before) {
		verb = "repeat"
	}
	return time.Time{}, fmt.Errorf("the clocks of %s %s %s: leave out spec.timeZone and write the instant that is meant as spec.schedule, %s or %s",
		timeZone, verb, schedule, before.Format(time.RFC3339Nano), after.Format(time.RFC3339Nano))
}

// zoneNames are the names that the IANA time zone database lists.
//
//go:embed zones.txt
var zoneNames string

// zones holds zoneNames. time.LoadLocation also accepts other spellings of them,
// and files that only some machines have, such as posixrules.
var zones = sets.New(strings.Fields(zoneNames)...)

var errUnknownZone = errors.New("unknown time zone")

// locations caches the time zones that have been used, because loading one takes
// 10 microseconds: as long as all the rest of a sync of a pending At. Users choose
// the names, so only those in zones may enter it.
var locations sync.Map

func loadLocation(timeZone string) (*time.Location, error) {
	if location, ok := locations.Load(timeZone); ok {
		return location.(*time.Location), nil
	}
	if !zones.Has(timeZone) {
		return nil, errUnknownZone
	}
	location, err := time.LoadLocation(timeZone)
	if err == nil {
		locations.Store(timeZone, location)
	}
	return location, err
}

// withOffsetOf returns the instant of a time shown, by the offset that is in
// force at about the time near.
func withOffsetOf(near, shown time.Time, location *time.Location) time.Time {
	_, offset := near.In(location).Zone()
	return shown.Add(-time.Duration(offset) * time.Second).In(location)
}
