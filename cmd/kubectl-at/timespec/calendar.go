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
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"programming-kubernetes.info/cnat-controller/pkg/zones"
)

// candidate is a time that a text can mean, before its sums are added.
type candidate struct {
	// wallClock is the wall-clock time, represented in UTC, unless there is an instant.
	wallClock time.Time
	instant   time.Time
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
	on    time.Time // of the options, in zone
	base  time.Time // on, or else now: what a text without a time of day has
}

// maxYears is how many years a time may be ahead. A later one is probably a mistake, unless it is
// written in full.
const maxYears = 10

// evaluate returns the first time that the spec can mean and that is not in the past.
func (s *spec) evaluate(options Options) (Time, error) {
	c := calendar{spec: s, zone: cmp.Or(s.zone, options.Zone)}
	c.now = options.Now.Truncate(time.Second).In(c.zone)
	c.today, c.base = dayOf(c.now), c.now
	if !options.On.IsZero() {
		c.on = options.On.In(c.zone)
		c.base = c.on
		if err := c.checkOn(options.On.In(options.Zone)); err != nil {
			return Time{}, err
		}
	}
	if here := dayOf(c.here); !here.Equal(c.today) && c.dependsOnToday() {
		return Time{}, c.fail(c.whole, "depends on the zone, because it is %s in %s now, but %s in %s: write the date",
			here.Format("2 January"), nameOf(options.Zone), c.today.Format("2 January"), nameOf(c.zone))
	}

	candidates, err := c.candidates()
	if err != nil {
		return Time{}, err
	}
	from, passed := candidates[0], ""
	if len(candidates) > 1 {
		if err := c.doubt(from, candidates[1]); err != nil {
			return Time{}, err
		}
		if c.hasPassed(from) && !c.hasPassed(candidates[1]) {
			passed = c.describe(from) + " has passed, so "
			from = candidates[1]
		}
	}

	base, _ := c.reach(from, nil)
	instant, err := c.reach(from, c.steps)
	hasPassed := instant.Before(c.now)
	isToday := dayOf(base).Equal(c.today) && (c.date == nil || dayOf(instant).Equal(c.today))
	switch {
	case err != nil:
		return Time{}, err
	case c.abbreviation != nil && !c.isAbbreviated(base):
		return Time{}, c.fail(*c.abbreviation, "is not in force in %s then: write %s if that is meant", nameOf(c.zone), base.Format("MST"))
	case hasPassed && !options.AllowPast:
		instead := "add --past"
		if !c.on.IsZero() {
			instead = `"now"`
		}
		return Time{}, c.fail(c.whole, "is in the past, because it is %s: write a time in the future, or %s", Time{Instant: instant}, instead)
	case !hasPassed && c.clock == nil && c.on.IsZero() && c.isDated() && isToday:
		return Time{}, c.fail(c.whole, `is today, without a time of day: write one too, such as 10:12, or only "now"`)
	case instant.After(c.now.AddDate(maxYears, 0, 0)) && (!c.hasOffset || !c.isInstant()):
		return Time{}, c.fail(c.whole, "is more than %d years ahead: write the exact instant if it is meant, %s", maxYears, Time{Instant: instant})
	}
	return Time{Instant: instant, How: passed + c.describe(from) + " in " + nameOf(c.zone)}, nil
}

// checkOn returns an error if what the text lacks depends on the zone. here is On in the zone of the options.
func (c *calendar) checkOn(here time.Time) error {
	isDated := c.isDated()
	what, layout := "at %s or %s, because the zones differ: write the time of day too", "15:04"
	if !isDated {
		what, layout = "on %s or %s, because the zones differ: write the date too", "2 January"
	}
	if isDated == (c.clock != nil) || here.Format(layout) == c.on.Format(layout) {
		return nil
	}
	return c.fail(c.whole, "can be "+what, here.Format(layout), c.on.Format(layout))
}

// hasPassed reports whether a candidate and the sums are in the past.
func (c *calendar) hasPassed(from candidate) bool {
	instant, _ := c.reach(from, c.steps)
	return instant.Before(c.now)
}

// doubt returns an error if it is not clear which of two candidates is meant.
func (c *calendar) doubt(first, next candidate) error {
	base, _ := c.reach(first, nil)
	if c.clock != nil && !c.clock.exact && base.Truncate(time.Minute).Equal(c.now.Truncate(time.Minute)) {
		return c.fail(c.whole, `is this minute: write "now", or the date too`)
	}
	if c.hasPassed(first) != base.Before(c.now) {
		return c.fail(c.whole, "can count from %s or from %s: write the date too",
			first.wallClock.Format("Monday 2 January"), next.wallClock.Format("Monday 2 January"))
	}
	return nil
}

// isAbbreviated reports whether the zone at an instant has the abbreviation of the text.
func (c *calendar) isAbbreviated(instant time.Time) bool {
	return c.abbreviation != nil && strings.EqualFold(instant.Format("MST"), c.quote(*c.abbreviation))
}

// dayOf returns 00:00 of the day of an instant in its zone, represented in UTC.
func dayOf(instant time.Time) time.Time {
	y, m, d := instant.Date()
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
}

// dependsOnToday reports whether the day that the spec means depends on what day it is today.
func (c *calendar) dependsOnToday() bool {
	if c.date != nil {
		return c.date.way == relative && c.clock != nil
	}
	return c.weekday != nil
}

// candidates returns the times that the spec can mean, earliest first.
func (c *calendar) candidates() ([]candidate, error) {
	thisYear := c.today.Year()
	var all []candidate
	switch {
	case !c.isDated() && c.clock == nil:
		if _, isPresent := c.seen[present]; !isPresent && !c.on.IsZero() {
			return []candidate{{instant: c.on, how: "its time"}}, nil
		}
		return []candidate{{instant: c.now, how: "now"}}, nil
	case !c.isDated() && !c.on.IsZero():
		if c.clock.midnight {
			return nil, c.fail(c.seen[timeOfDay], "begins one day and ends another: write 00:00 and the date")
		}
		return []candidate{c.at(dayOf(c.on))}, nil
	case !c.isDated():
		return []candidate{c.at(c.today), c.at(c.today.AddDate(0, 0, 1))}, nil
	case c.date == nil:
		return c.weekdays()
	case c.date.way == relative:
		day, missing := c.today, error(nil)
		for _, s := range c.date.steps {
			next, err := c.add(day, s)
			day, missing = next, cmp.Or(missing, err)
		}
		from := c.at(day)
		from.err = missing
		all = []candidate{from}
	case c.date.way == yearless:
		for _, year := range []int{thisYear - 1, thisYear} {
			from := c.onDate(year, c.date.month, c.date.n)
			if last, _ := c.reach(from, nil); from.err == nil && last.Before(c.now) && last.After(c.now.AddDate(0, -1, 0)) {
				return nil, c.fail(c.whole, "has just passed, on %s: write the year too", last.Format("2 January 2006"))
			}
		}
		all = []candidate{c.onDate(thisYear, c.date.month, c.date.n), c.onDate(thisYear+1, c.date.month, c.date.n)}
	default:
		all = []candidate{c.onDate(c.date.year, c.date.month, c.date.n)}
	}
	for i := range all {
		if date := all[i].wallClock; all[i].err == nil && c.weekday != nil && c.weekday.day != date.Weekday() {
			all[i].err = c.fail(c.seen[aWeekday], "is wrong, because %s is a %s: write one of the two", date.Format("2 January 2006"), date.Weekday())
		}
	}
	return all, nil
}

// weekdays returns the candidates for a weekday without a date.
func (c *calendar) weekdays() ([]candidate, error) {
	first := c.today.AddDate(0, 0, int(c.weekday.day-c.today.Weekday()+7)%7)
	_, isWeek := c.seen[aWeek]
	if !isWeek && !c.weekday.relative {
		return []candidate{c.at(first), c.at(first.AddDate(0, 0, 7))}, nil
	}
	var readings []time.Time
	for _, beginning := range []time.Weekday{time.Monday, time.Sunday} { // of a week
		of := func(day time.Weekday) int { return int(day-beginning+7) % 7 }
		readings = append(readings, c.today.AddDate(0, 0, 7*c.weeks-of(c.today.Weekday())+of(c.weekday.day)))
	}
	at, meant := c.whole, readings[0]
	if c.weekday.relative { // "this friday" and "next friday" can also be the first one.
		at = c.seen[aWeekday]
		if c.weeks == 1 && first.Equal(c.today) {
			first = first.AddDate(0, 0, 7)
		}
		readings = append(readings, first)
	}
	// "this monday" on a Wednesday is to come.
	readings = slices.DeleteFunc(readings, func(day time.Time) bool { return day.Before(c.today) })
	if len(readings) > 0 {
		meant = slices.MinFunc(readings, time.Time.Compare)
		if last := slices.MaxFunc(readings, time.Time.Compare); !last.Equal(meant) {
			return nil, c.fail(at, "can be %s or %s: write the date", meant.Format("Monday 2 January"), last.Format("Monday 2 January"))
		}
	}
	return []candidate{c.at(meant)}, nil
}

// onDate returns the candidate on a date, which may not exist.
func (c *calendar) onDate(y int, m time.Month, d int) candidate {
	from := c.at(time.Date(y, m, d, 0, 0, 0, 0, time.UTC))
	if from.wallClock.Day() != d {
		from.err = c.fail(c.seen[aDate], "is not a date, because %s %d has no day %d: write a day that exists", m, y, d)
	}
	return from
}

// at returns the candidate on a day.
func (c *calendar) at(date time.Time) candidate {
	how := date.Format("Monday 2 January 2006")
	switch date {
	case c.today:
		how = "today (" + how + ")"
	case c.today.AddDate(0, 0, 1):
		how = "tomorrow (" + how + ")"
	}
	from := candidate{wallClock: date.Add(zones.WallClock(c.base).Sub(dayOf(c.base))), how: how}
	if t := c.clock; t != nil {
		y, m, d := date.Date()
		from.wallClock = time.Date(y, m, d, t.hour, t.minute, t.second, t.nanosecond, time.UTC)
	} else if date.Equal(c.today) && c.on.IsZero() {
		from.instant = c.now
	}
	return from
}

// start returns the words to which the sums are added.
func (c *calendar) start() span {
	if at, ok := c.has(timeOfDay, aDate, aWeekday); ok {
		return at
	}
	return c.whole
}

// reach returns the instant of a candidate after steps were added. If there is an
// error, the instant is the latest one that could be meant.
func (c *calendar) reach(from candidate, steps []step) (instant time.Time, err error) {
	instant, wallClock, at := from.instant, from.wallClock, c.start()
	err = from.err
	resolve := func() {
		if instant.IsZero() {
			var failed error
			instant, failed = c.instant(wallClock, at)
			err = cmp.Or(err, failed)
		}
	}
	for _, s := range steps {
		switch {
		case s.n == 0:
			continue
		case !s.isTimed():
			if !instant.IsZero() {
				wallClock, instant = zones.WallClock(instant), time.Time{}
			}
			next, failed := c.add(wallClock, s)
			wallClock, err = next, cmp.Or(err, failed)
		default:
			resolve()
			seconds := [...]int64{second: 1, minute: 60, hour: 3600}[s.unit]
			instant = time.Unix(instant.Unix()+int64(s.n)*seconds, int64(instant.Nanosecond())).In(c.zone) // Add ends at 292 years.
		}
		at = s.span
	}
	resolve()
	// RFC 3339 must represent it in its zone and in UTC.
	if year, utc := instant.Year(), instant.UTC().Year(); min(year, utc) < 1 || max(year, utc) > 9999 {
		err = c.fail(at, "is out of range: write a time in the years 1 to 9999")
	}
	return instant, err
}

// instant returns the instant at which the clocks show a time. If there is an error, it
// is the later of the instants that could be meant.
func (c *calendar) instant(wallClock time.Time, at span) (time.Time, error) {
	earlier, later, times := zones.Showing(wallClock, c.zone)
	switch {
	case times == 1:
		return earlier, nil
	case times == 2 && c.isAbbreviated(earlier):
		return earlier, nil
	case times == 2 && c.isAbbreviated(later):
		return later, nil
	}
	verb := "repeat"
	if times == 0 {
		verb = "skip"
		earlier, later = later, earlier
	}
	shown := wallClock.Format("15:04 on Monday 2 January 2006")
	return later, c.fail(at, "is %s, which the clocks of %s %s: write the exact instant, %s or %s",
		shown, nameOf(c.zone), verb, Time{Instant: earlier}, Time{Instant: later})
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
	return sum, c.fail(s.span, "leads to %d %s, which does not exist: write the exact date, or a sum in days",
		wallClock.Day(), month.Format("January 2006"))
}

// describe returns a description of a candidate and its sums.
func (c *calendar) describe(from candidate) string {
	how := from.how
	switch {
	case c.clock == nil && !c.isDated():
		how += " (" + from.instant.Format("Monday 2 January 2006 at 15:04:05") + ")"
	case c.clock == nil && !c.on.IsZero():
		how += " at " + c.on.Format("15:04:05") + " (its time of day)"
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
		how += fmt.Sprintf(" %s %d %s", sign, n, strings.Fields("second minute hour day week month year")[s.unit])
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
