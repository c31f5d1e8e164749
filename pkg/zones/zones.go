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

// Package zones provides the time zones of the IANA time zone database, and the instants
// at which their clocks show a time.
package zones

import (
	_ "embed"
	"fmt"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // All listed zones exist, regardless of the machine or image.

	"k8s.io/apimachinery/pkg/util/sets"
)

// list contains the names in the IANA time zone database, one per line, sorted.
//
//go:embed zones.txt
var list string

// names contains list. time.LoadLocation also accepts other spellings, and files such as
// posixrules that exist only on some machines.
var names = sets.New(strings.Fields(list)...)

// locations caches the time zones that have been used. Loading one takes 10 microseconds:
// as long as the rest of a sync of a pending At. Users choose the names, so only those in
// names may enter the cache.
var locations sync.Map

// Names returns the names in the IANA time zone database, sorted.
func Names() []string {
	return strings.Fields(list)
}

// Layout is the format of a wall-clock time.
const Layout = "2006-01-02T15:04:05"

// Load returns a time zone by its name in the IANA time zone database. The error is for the author of
// spec.timeZone, and says what to write.
func Load(name string) (*time.Location, error) {
	if location, ok := locations.Load(name); ok {
		return location.(*time.Location), nil
	}
	if !names.Has(name) {
		return nil, fmt.Errorf("spec.timeZone %q is unknown: write a name from the IANA time zone database, such as Europe/Berlin", name)
	}
	location, err := time.LoadLocation(name)
	if err == nil {
		locations.Store(name, location)
	}
	return location, err
}

// WallClock returns what the clocks of the time zone of an instant show, as a time in UTC.
func WallClock(instant time.Time) time.Time {
	_, offset := instant.Zone()
	return instant.UTC().Add(time.Duration(offset) * time.Second)
}

// Showing returns how often the clocks of a time zone show a wall-clock time, which is
// given as a time in UTC: 1, unless they skip it (0) or repeat it (2). In these cases,
// before and after are the instants according to the offsets before and after the change.
// Otherwise, both are the only such instant.
func Showing(wallClock time.Time, location *time.Location) (before, after time.Time, times int) {
	// Each offset in force around that time yields an instant. Where the offset changes,
	// both instants may show the time, or neither.
	before = withOffsetOf(wallClock.Add(-24*time.Hour), wallClock, location)
	after = withOffsetOf(wallClock.Add(24*time.Hour), wallClock, location)
	shows := func(instant time.Time) bool { return WallClock(instant).Equal(wallClock) }
	switch {
	case shows(before) && (!shows(after) || before.Equal(after)):
		return before, before, 1
	case shows(after) && !shows(before):
		return after, after, 1
	case shows(before):
		return before, after, 2
	}
	return before, after, 0
}

// Span returns the first and the last instant at which the clocks of a time zone show a wall-clock time,
// which is given as a time in UTC. If they skip it, both are the instant at which they do.
func Span(wallClock time.Time, location *time.Location) (first, last time.Time) {
	first, last, times := Showing(wallClock, location)
	if times == 0 {
		// With the offset before the gap, the skipped time is after the gap.
		first, _ = first.ZoneBounds()
		last = first
	}
	return first, last
}

// withOffsetOf returns the instant of a wall-clock time, with the offset that is in force
// at about the time near.
func withOffsetOf(near, wallClock time.Time, location *time.Location) time.Time {
	_, offset := near.In(location).Zone()
	return wallClock.Add(-time.Duration(offset) * time.Second).In(location)
}
