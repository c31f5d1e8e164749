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

package cronexpr

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"programming-kubernetes.info/cnat-controller/pkg/zones"
)

func newSchedule(t *testing.T, expression, timeZone string) *Schedule {
	t.Helper()
	location, err := zones.Load(timeZone)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Parse(expression, location)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestNext(t *testing.T) {
	for name, tc := range map[string]struct {
		expression, timeZone string
		after                string
		want                 []string
	}{
		"in UTC": {"30 3 * * *", "UTC", "2026-12-24T03:30:00Z", []string{"2026-12-25T03:30:00Z"}},
		"a skipped time runs at the first instant after the gap": {"30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z",
			[]string{"2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"}},
		"several skipped times run once": {"0,30 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z",
			[]string{"2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z", "2026-03-30T00:00:00Z"}},
		"a repeated time runs once, the first time": {"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z",
			[]string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
		"a repeated time, after its first occurrence": {"30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z",
			[]string{"2026-10-26T01:30:00Z"}},
		"hourly, the clocks skip an hour": {"0 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z",
			[]string{"2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"}},
		"hourly, the clocks repeat an hour": {"@hourly", "Europe/Berlin", "2026-10-24T23:30:00Z",
			[]string{"2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"}},
		"each hour by its number, the clocks skip one": {"0 0-23 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z",
			[]string{"2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"}},
		"each hour by its number, the clocks repeat one": {"0 12-23,0-11 * * *", "Europe/Berlin", "2026-10-24T23:30:00Z",
			[]string{"2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"}},
		"hourly, the clocks change by half an hour": {"15 * * * *", "Australia/Lord_Howe", "2026-10-03T14:20:00Z",
			[]string{"2026-10-03T14:45:00Z", "2026-10-03T16:15:00Z"}},
		"midnight, on a day without midnight": {"0 0 * * *", "America/Santiago", "2026-09-05T12:00:00Z",
			[]string{"2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z"}},
		"hourly, on a day without midnight": {"0 * 6 9 *", "America/Santiago", "2026-01-01T00:00:00Z",
			[]string{"2026-09-06T04:00:00Z", "2026-09-06T05:00:00Z"}},
		"a time of the year": {"0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", []string{"2028-02-29T00:00:00Z"}},
		"never":              {"0 0 30 2 *", "UTC", "2026-01-01T00:00:00Z", []string{"0001-01-01T00:00:00Z"}},
		"never, hourly":      {"0 * 30 2 *", "Europe/Berlin", "2026-01-01T00:00:00Z", []string{"0001-01-01T00:00:00Z"}},
		"@every":             {"@every 90s", "UTC", "2026-01-01T00:00:00Z", []string{"2026-01-01T00:01:30Z", "2026-01-01T00:03:00Z"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSchedule(t, tc.expression, tc.timeZone)
			at, err := time.Parse(time.RFC3339, tc.after)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for range tc.want {
				at = s.Next(at)
				got = append(got, at.UTC().Format(time.RFC3339))
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// oracle determines when an expression matches. It shares nothing with the
// implementation, not even the parser.
type oracle struct {
	minutes, hours, days, months, weekdays [60]bool
	anyHour, anyDay, anyWeekday            bool
}

func newOracle(expression string) oracle {
	fields := strings.Fields(expression)
	values := func(field string, first, last int) (found [60]bool) {
		for part := range strings.SplitSeq(field, ",") {
			part, stepText, _ := strings.Cut(part, "/")
			low, high, isRange := strings.Cut(part, "-")
			from, _ := strconv.Atoi(low)
			to, _ := strconv.Atoi(high)
			step, _ := strconv.Atoi(stepText)
			switch {
			case part == "*":
				from, to = first, last
			case !isRange && step > 0:
				to = last
			case !isRange:
				to = from
			}
			for value := from; value <= to; value += max(1, step) {
				found[value] = true
			}
		}
		return found
	}
	return oracle{
		minutes: values(fields[0], 0, 59), hours: values(fields[1], 0, 23), days: values(fields[2], 1, 31),
		months: values(fields[3], 1, 12), weekdays: values(fields[4], 0, 6),
		anyHour: fields[1] == "*" || fields[1] == "0-23", anyDay: fields[2] == "*", anyWeekday: fields[4] == "*",
	}
}

// matches reports whether the expression matches a wall-clock time, represented in UTC.
func (o *oracle) matches(shown time.Time) bool {
	if hour, minute, _ := shown.Clock(); !o.minutes[minute] || !o.hours[hour] {
		return false
	}
	_, month, day := shown.Date()
	inMonth, inWeek := o.days[day], o.weekdays[shown.Weekday()]
	if o.anyDay || o.anyWeekday {
		return o.months[month] && inMonth && inWeek
	}
	return o.months[month] && (inMonth || inWeek)
}

// walk goes from one instant to another, minute by minute, and returns when the
// expressions run according to the clocks.
func walk(from, to time.Time, location *time.Location, oracles []oracle) [][]int64 {
	times := make([][]int64, len(oracles))
	// The clocks have shown or skipped all times before latest.
	latest := time.Time{}
	for t := from; !t.After(to); t = t.Add(time.Minute) {
		_, offset := t.In(location).Zone()
		shown := t.Add(time.Duration(offset) * time.Second)
		var skipped []time.Time
		for s := latest; !latest.IsZero() && s.Before(shown); s = s.Add(time.Minute) {
			skipped = append(skipped, s)
		}
		repeated := shown.Before(latest)
		for i := range oracles {
			o := &oracles[i]
			if o.matches(shown) && (o.anyHour || !repeated) || !o.anyHour && slices.ContainsFunc(skipped, o.matches) {
				times[i] = append(times[i], t.Unix())
			}
		}
		if !repeated {
			latest = shown.Add(time.Minute)
		}
	}
	return times
}

// TestOracle compares ten years of several expressions in three zones with the oracle.
func TestOracle(t *testing.T) {
	expressions := []string{
		"30 2 * * *", "*/20 1-3 * * *", "0 0 * * *", "15,45 */2 * * 0", "59 23 31 * *", "0 2 1-7 * 0", "10 * * * *", "*/30 0-23 * 4,10 0", "5 1,2 29 2 *",
	}
	var oracles []oracle
	for _, expression := range expressions {
		oracles = append(oracles, newOracle(expression))
	}
	for _, timeZone := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe"} {
		t.Run(timeZone, func(t *testing.T) {
			t.Parallel()
			from := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
			to := from.AddDate(10, 0, 0)
			location := newSchedule(t, "@daily", timeZone).Location
			for i, want := range walk(from, to, location, oracles) {
				s := newSchedule(t, expressions[i], timeZone)
				var got []int64
				for at := s.Next(from.Add(-time.Second)); !at.IsZero() && !at.After(to); at = s.Next(at) {
					got = append(got, at.Unix())
				}
				if len(want) == 0 || !slices.Equal(got, want) {
					n := 0
					for n < min(len(got), len(want)) && got[n] == want[n] {
						n++
					}
					t.Errorf("%q: %d times, want %d; from number %d on: got %s, want %s", expressions[i], len(got), len(want), n, show(got, n, location), show(want, n, location))
				}
			}
		})
	}
}

func show(times []int64, i int, location *time.Location) string {
	if i >= len(times) {
		return "none"
	}
	return time.Unix(times[i], 0).In(location).Format(time.RFC3339)
}

// counted counts the calls of an expression.
type counted struct {
	cron.Schedule
	calls int
}

func (c *counted) Next(t time.Time) time.Time {
	c.calls++
	return c.Schedule.Next(t)
}

// TestLatest finds the latest time without stepping through all of them.
func TestLatest(t *testing.T) {
	start := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, expression := range []string{"* * * * *", "0 * * * *", "30 2 * * *", "0 0 29 2 *", "*/7 3 1 1 *", "0 0 31 12 1"} {
		for _, limit := range []time.Time{start.Add(90 * time.Second), start.AddDate(0, 0, 1), start.AddDate(1, 0, 0).Add(time.Second), start.AddDate(4, 2, 3).Add(time.Millisecond)} {
			s := newSchedule(t, expression, "Europe/Berlin")
			calls := &counted{Schedule: s.expression}
			s.expression = calls
			got := s.Latest(start, limit)
			if calls.calls > 80 {
				t.Errorf("%q: %d calls", expression, calls.calls)
			}
			if got.IsZero() {
				if first := s.Next(start); !first.After(limit) {
					t.Errorf("%q until %s: got none, want one, such as %s", expression, limit, first)
				}
				continue
			}
			if next := s.Next(got); got.After(limit) || !got.After(start) || !next.After(limit) {
				t.Errorf("%q until %s: got %s, and the next is %s", expression, limit, got, next)
			}
		}
	}
	every := newSchedule(t, "@every 90s", "UTC")
	if got, want := every.Latest(start, start.Add(24*time.Hour+10*time.Second)), start.Add(24*time.Hour); !got.Equal(want) {
		t.Errorf("@every: got %s, want %s", got, want)
	}
}
