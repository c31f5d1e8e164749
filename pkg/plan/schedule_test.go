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
	"testing"
	"time"
)

func TestParseSchedule(t *testing.T) {
	for schedule, want := range map[string]time.Time{
		"2026-12-24T10:12:00Z":                due,
		"2026-12-24T11:12:00+01:00":           due,
		"2026-12-24T04:42:00-05:30":           due,
		"2026-12-24T10:12:00.5Z":              due.Add(time.Second / 2),
		"2026-12-24T10:12:00.000000001+00:00": due.Add(1),
		"2024-02-29T00:00:00Z":                time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC),
		"0001-01-01T00:00:00Z":                {},
		"9999-12-31T23:59:59Z":                time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
	} {
		t.Run(schedule, func(t *testing.T) {
			got, err := ParseSchedule(schedule)
			if err != nil {
				t.Fatal(err)
			}
			if !got.Equal(want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}

	for _, schedule := range []string{
		"", " ", "tomorrow", "10:12", "2026-12-24", "2026-12-24T10:12:00", "2026-12-24 10:12:00Z",
		"2026-12-24T10:12Z", "2026-12-24T10:12:00z",
		"2026-13-24T10:12:00Z", "2026-02-30T10:12:00Z", "2025-02-29T10:12:00Z", "2026-12-24T24:00:00Z",
		"2026-12-24T10:60:00Z", "2026-12-24T10:12:60Z", " 2026-12-24T10:12:00Z",
	} {
		t.Run("unreadable: "+schedule, func(t *testing.T) {
			if got, err := ParseSchedule(schedule); err == nil {
				t.Errorf("got %v, want an error", got)
			}
		})
	}
}
