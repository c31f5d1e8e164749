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

// Package zones knows the time zones of the IANA time zone database, and which
// instants their clocks show.
package zones

import (
	_ "embed"
	"fmt"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // Every listed zone exists, whatever the machine or the image has.

	"k8s.io/apimachinery/pkg/util/sets"
)

// list has the names that the IANA time zone database lists, one a line, sorted.
//
//go:embed zones.txt
var list string

// names holds list. time.LoadLocation also accepts other spellings of them, and files
// that only some machines have, such as posixrules.
var names = sets.New(strings.Fields(list)...)

// locations caches the time zones that have been used, because loading one takes
// 10 microseconds: as long as all the rest of a sync of a pending At. Users choose
// the names, so only those in names may enter it.
var locations sync.Map

// Names returns the names that the IANA time zone database lists, sorted.
func Names() []string {
	return strings.Fields(list)
}

// Load returns the time zone with a name that the IANA time zone database lists.
func Load(name string) (*time.Location, error) {
	if location, ok := locations.Load(name); ok {
		return location.(*time.Location), nil
	}
	if !names.Has(name) {
		return nil, fmt.Errorf("unknown time zone %q", name)
	}
	location, err := time.LoadLocation(name)
	if err == nil {
		locations.Store(name, location)
	}
	return location, err
}

// Showing returns how often the clocks of a time zone show a wall-clock time, which is
// given as a time in UTC: 1, unless they skip it (0) or repeat it (2). Then before and
// after are the instants by the offset before and by the offset after the change.
// Otherwise both are the one instant.
func Showing(wallClock time.Time, location *time.Location) (before, after time.Time, times int) {
	// Each offset that is in force around that time makes an instant of it. Where
	// the offset changes, both of them may show the time, or neither.
	before = withOffsetOf(wallClock.Add(-24*time.Hour), wallClock, location)
	after = withOffsetOf(wallClock.Add(24*time.Hour), wallClock, location)
	shows := func(instant time.Time) bool {
		_, offset := instant.Zone()
		return instant.Add(time.Duration(offset) * time.Second).Equal(wallClock)
	}
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

// withOffsetOf returns the instant of a wall-clock time, by the offset that is in
// force at about the time near.
func withOffsetOf(near, wallClock time.Time, location *time.Location) time.Time {
	_, offset := near.In(location).Zone()
	return wallClock.Add(-time.Duration(offset) * time.Second).In(location)
}
