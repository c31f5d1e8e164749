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

package timespec

import (
	"fmt"
	"time"

	"programming-kubernetes.info/cnat-controller/pkg/zones"
)

// candidate is a time that a text can mean, before its sums are added.
type candidate struct {
	// wallClock is the wall-clock time, represented in UTC, unless the candidate is now.
	wallClock time.Time
	isNow     bool
	// how describes the candidate.
	how string
	// err is set if the day does not exist. wallClock is on a later day then.
	err error
}

// calendar has everything on which the meaning of a spec depends.
type calendar struct {
	*spec
	now   time.Time
	today time.Time // 00:00 today, as a time in UTC
	zone  *time.Location
}

// evaluate returns the first time that the spec can mean and that is not in the past.
func (s *spec) evaluate(options Options) (Time, error) {
	c := calendar{spec: s, zone: s.zone}
	if c.zone == nil {
		c.zone = options.Zone
	}
	c.now = options.Now.Truncate(time.Second).In(c.zone)
	y, m, d := c.now.Date()
	c.today = time.Date(y, m, d, 0, 0, 0, 0, time.UTC)

	candidates := c.candidates()
	passed := ""
	for _, from := range candidates {
		instant, err := c.reach(from)
		if instant.Before(c.now) {
			passed = c.describe(from) + " has passed, so "
			continue
		}
		if err != nil {
			return Time{}, err
		}
		return Time{Instant: instant, How: passed + c.describe(from) + " in " + nameOf(c.zone)}, nil
	}

	instant, err := c.reach(candidates[0])
	if err != nil {
		return Time{}, err
	}
	if !options.AllowPast {
		hint := ""
		if c.date != nil && c.date.shortYear != "" {
			hint = fmt.Sprintf(" (%s is the year; an hour needs a colon, as in %s:00)", c.date.shortYear, c.date.shortYear)
		}
		return Time{}, c.fail(c.whole, "%q is in the past, because it is %s%s: write a time in the future, or add --past", c.quote(c.whole), Time{Instant: instant}, hint)
	}
	return Time{Instant: instant, How: c.describe(candidates[0]) + " in " + nameOf(c.zone)}, nil
}

// candidates returns the times that the spec can mean, earliest first.
func (c *calendar) candidates() []candidate {
	thisYear := c.today.Year()
	switch {
	case c.date == nil && c.clock == nil:
		return []candidate{{isNow: true, how: "now"}}
	case c.date == nil:
		return []candidate{c.on(c.today), c.on(c.today.AddDate(0, 0, 1))}
	case c.date.way == relative:
		d, err := c.add(c.today, step{n: c.date.n, unit: c.date.unit, span: c.date.span})
		from := c.on(d)
		from.err = err
		if c.date.unit != day {
			from.how = "next " + unitNames[c.date.unit] + " (" + from.how + ")"
		}
		return []candidate{from}
	case c.date.way == onWeekday:
		days := (int(c.date.weekday) - int(c.today.Weekday()) + 7) % 7
		return []candidate{c.on(c.today.AddDate(0, 0, days)), c.on(c.today.AddDate(0, 0, days+7))}
	case c.date.way == nextWeekday:
		days := (int(c.date.weekday)-int(c.today.Weekday())+6)%7 + 1
		return []candidate{c.on(c.today.AddDate(0, 0, days))}
	case c.date.way == yearless:
		return []candidate{c.onDate(thisYear, c.date.month, c.date.n), c.onDate(thisYear+1, c.date.month, c.date.n)}
	}
	return []candidate{c.onDate(c.date.year, c.date.month, c.date.n)}
}

// onDate returns the candidate on a date, which may not exist.
func (c *calendar) onDate(y int, m time.Month, d int) candidate {
	from := c.on(time.Date(y, m, d, 0, 0, 0, 0, time.UTC))
	if days := daysIn(y, m); d > days {
		from.err = c.fail(c.date.span, "%q is not a date, because %s %d has %d days: write a day that exists", c.quote(c.date.span), m, y, days)
	}
	return from
}

// on returns the candidate on a day.
func (c *calendar) on(date time.Time) candidate {
	how := date.Format("Monday 2 January 2006")
	switch date {
	case c.today:
		how = "today (" + how + ")"
	case c.today.AddDate(0, 0, 1):
		how = "tomorrow (" + how + ")"
	}
	y, m, d := date.Date()
	if c.clock != nil {
		return candidate{
			wallClock: time.Date(y, m, d, c.clock.hour, c.clock.minute, c.clock.second, c.clock.nanosecond, time.UTC),
			how:       how,
		}
	}
	return candidate{
		wallClock: time.Date(y, m, d, c.now.Hour(), c.now.Minute(), c.now.Second(), 0, time.UTC),
		isNow:     date.Equal(c.today),
		how:       how,
	}
}

// reach returns the instant of a candidate after its sums were added. If there is an
// error, the instant is the latest one that could be meant, or now if it is out of range.
func (c *calendar) reach(from candidate) (time.Time, error) {
	instant, wallClock, isInstant, first := c.now, from.wallClock, from.isNow, from.err
	at := c.whole
	if c.clock != nil {
		at = c.clock.span
	} else if c.date != nil {
		at = c.date.span
	}
	resolve := func() {
		if !isInstant {
			var err error
			if instant, err = c.instant(wallClock, at); first == nil {
				first = err
			}
			isInstant = true
		}
	}

	for _, s := range c.steps {
		switch {
		case s.n == 0:
		case s.unit.period():
			if isInstant {
				wallClock = wallClockOf(instant)
				isInstant = false
			}
			var err error
			if wallClock, err = c.add(wallClock, s); first == nil {
				first = err
			}
			at = s.span
			if !inRange(wallClock) {
				return c.now, c.outOfRange(at)
			}
		default:
			resolve()
			seconds := [...]int64{second: 1, minute: 60, hour: 3600}[s.unit]
			instant = time.Unix(instant.Unix()+int64(s.n)*seconds, int64(instant.Nanosecond())).In(c.zone)
			at = s.span
			if !inRange(instant) {
				return c.now, c.outOfRange(at)
			}
		}
	}
	resolve()
	if !inRange(instant) {
		return c.now, c.outOfRange(at)
	}
	return instant, first
}

// inRange reports whether a time is in year 1 or later, and RFC 3339 can represent it in
// its zone and in UTC.
func inRange(t time.Time) bool {
	return t.Year() >= 1 && t.Year() <= 9999 && t.UTC().Year() >= 1 && t.UTC().Year() <= 9999
}

func (c *calendar) outOfRange(at span) error {
	return c.fail(at, "%q is out of range: write a time in the years 1 to 9999", c.quote(at))
}

// instant returns the instant at which the clocks show a time. If there is an error, it
// is the later of the instants that could be meant.
func (c *calendar) instant(wallClock time.Time, at span) (time.Time, error) {
	earlier, later, times := zones.Showing(wallClock, c.zone)
	if times == 1 {
		return earlier, nil
	}
	verb := "repeat"
	if times == 0 {
		verb = "skip"
		earlier, later = later, earlier
	}
	shown := wallClock.Format("15:04 on Monday 2 January 2006")
	return later, c.fail(at, "%q is %s, which the clocks of %s %s: write the exact instant, %s or %s",
		c.quote(at), shown, nameOf(c.zone), verb, Time{Instant: earlier}, Time{Instant: later})
}

// add returns a wall-clock time a number of days, weeks, months or years later. If there
// is an error, it is in the month after the one that lacks the day.
func (c *calendar) add(wallClock time.Time, s step) (time.Time, error) {
	n := s.n
	switch s.unit {
	case day:
		return wallClock.AddDate(0, 0, n), nil
	case week:
		return wallClock.AddDate(0, 0, 7*n), nil
	case year:
		n *= 12
	}
	sum := wallClock.AddDate(0, n, 0)
	if sum.Day() == wallClock.Day() {
		return sum, nil
	}
	month := sum.AddDate(0, 0, -sum.Day()) // the last day of the month
	return sum, c.fail(s.span, "%q leads to %d %s, which does not exist: write the exact date, or a sum in days",
		c.quote(s.span), wallClock.Day(), month.Format("January 2006"))
}

// wallClockOf returns the wall-clock time at an instant, represented in UTC.
func wallClockOf(instant time.Time) time.Time {
	_, offset := instant.Zone()
	return instant.UTC().Add(time.Duration(offset) * time.Second)
}

// daysIn returns the number of days of a month.
func daysIn(y int, m time.Month) int {
	return time.Date(y, m+1, 0, 0, 0, 0, 0, time.UTC).Day()
}

// describe returns a description of a candidate and its sums.
func (c *calendar) describe(from candidate) string {
	how := from.how
	switch {
	case c.date == nil && c.clock == nil:
		how += " (" + c.now.Format("Monday 2 January 2006 at 15:04:05") + ")"
	case c.clock == nil:
		how += " at " + c.now.Format("15:04:05") + " (the time of day now)"
	case c.clock.second == 0 && c.clock.nanosecond == 0:
		how += " at " + from.wallClock.Format("15:04")
	default:
		how += " at " + from.wallClock.Format("15:04:05.999999999")
	}
	for _, s := range c.steps {
		sign, n := "+", s.n
		if n < 0 {
			sign, n = "-", -n
		}
		how += fmt.Sprintf(" %s %d %s", sign, n, unitNames[s.unit])
		if n != 1 {
			how += "s"
		}
	}
	return how
}

// nameOf returns the name of a zone for use in a sentence.
func nameOf(zone *time.Location) string {
	if zone == time.Local {
		return "the local time zone"
	}
	return zone.String()
}
