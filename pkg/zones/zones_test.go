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

package zones

import (
	"slices"
	"testing"
	"time"
)

// TestLoad checks that the listed names, and no other spellings, are loaded and cached:
// otherwise users could fill the cache.
func TestLoad(t *testing.T) {
	if !slices.IsSorted(Names()) {
		t.Error("the names are not sorted")
	}
	for _, name := range Names() {
		if location, err := Load(name); err != nil || location.String() != name {
			t.Errorf("%s: got %v and %v", name, location, err)
		}
	}
	for _, name := range []string{"", "Local", "localtime", "europe/berlin", "Europe//Berlin", "./Europe/Berlin", "posixrules", "Factory", "utc", "UTC\n"} {
		if location, err := Load(name); err == nil {
			t.Errorf("%q: got %v, want an error", name, location)
		}
	}
	locations.Range(func(name, _ any) bool {
		if !names.Has(name.(string)) {
			t.Errorf("%q is cached", name)
		}
		return true
	})
}

func TestShowing(t *testing.T) {
	for name, tc := range map[string]struct {
		zone, wallClock string
		before, after   string
		times           int
	}{
		"an ordinary day":         {"Europe/Berlin", "2026-12-24T10:12:00Z", "2026-12-24T10:12:00+01:00", "2026-12-24T10:12:00+01:00", 1},
		"the day of a change":     {"Europe/Berlin", "2026-03-29T03:00:00Z", "2026-03-29T03:00:00+02:00", "2026-03-29T03:00:00+02:00", 1},
		"before it":               {"Europe/Berlin", "2026-03-29T01:59:59Z", "2026-03-29T01:59:59+01:00", "2026-03-29T01:59:59+01:00", 1},
		"skipped":                 {"Europe/Berlin", "2026-03-29T02:30:00Z", "2026-03-29T03:30:00+02:00", "2026-03-29T01:30:00+01:00", 0},
		"repeated":                {"Europe/Berlin", "2026-10-25T02:30:00Z", "2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00", 2},
		"skipped by half an hour": {"Australia/Lord_Howe", "2026-10-04T02:15:00Z", "2026-10-04T02:45:00+11:00", "2026-10-04T01:45:00+10:30", 0},
		"repeated for as long":    {"Australia/Lord_Howe", "2026-04-05T01:45:00Z", "2026-04-05T01:45:00+11:00", "2026-04-05T01:45:00+10:30", 2},
		"a whole day skipped":     {"Pacific/Apia", "2011-12-30T12:00:00Z", "2011-12-31T12:00:00+14:00", "2011-12-29T12:00:00-10:00", 0},
		"no changes":              {"UTC", "2026-03-29T02:30:00Z", "2026-03-29T02:30:00Z", "2026-03-29T02:30:00Z", 1},
	} {
		t.Run(name, func(t *testing.T) {
			wallClock, err := time.Parse(time.RFC3339, tc.wallClock)
			if err != nil {
				t.Fatal(err)
			}
			location, err := Load(tc.zone)
			if err != nil {
				t.Fatal(err)
			}
			before, after, times := Showing(wallClock, location)
			if before.Format(time.RFC3339) != tc.before || after.Format(time.RFC3339) != tc.after || times != tc.times {
				t.Errorf("got %s, %s and %d, want %s, %s and %d", before.Format(time.RFC3339), after.Format(time.RFC3339), times, tc.before, tc.after, tc.times)
			}
		})
	}
}
