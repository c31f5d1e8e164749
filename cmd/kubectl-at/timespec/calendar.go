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
	isBare    bool // an instant, not a date
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

// isRFC3339 reports whether a text is an instant with an offset.
func isRFC3339(text string) bool {
	_, err := time.Parse(time.RFC3339, strings.ToUpper(strings.TrimSpace(text)))
	return err == nil
}

// evaluate returns the first time that the spec can mean and that is not in the past.
func (s *spec) evaluate(options Options) (Time, error) {
	c := calendar{spec: s, zone: s.zone}
	if c.zone == nil {
		c.zone = options.Zone
	}
	c.now = options.Now.Truncate(time.Second).In(c.zone)
	c.today, c.base = dayOf(c.now), c.now
	if !options.On.IsZero() {
		c.on = options.On.In(c.zone)
		c.base = c.on
		if err := c.checkOn(options.On.In(options.Zone)); err != nil {
			return Time{}, err
		}
	}
	if here := dayOf(c.now.In(options.Zone)); !here.Equal(c.today) && c.dependsOn(here) {
		return Time{}, c.fail(c.whole, "%q depends on the zone, because it is %s in %s now, but %s in %s: write the date", c.quote(c.whole),
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
	zoneErr, hasPassed := c.checkZone(base), instant.Before(c.now)
	switch {
	case err != nil:
		return Time{}, err
	case zoneErr != nil:
		return Time{}, zoneErr
	case hasPassed && !options.AllowPast:
		instead := "add --past"
		if !c.on.IsZero() {
			instead = `"now"`
		}
		return Time{}, c.fail(c.whole, "%q is in the past, because it is %s: write a time in the future, or %s", c.quote(c.whole), Time{Instant: instant}, instead)
	case !hasPassed && c.clock == nil && c.on.IsZero() && !from.isBare && dayOf(base).Equal(c.today) && (c.date == nil || dayOf(instant).Equal(c.today)):
		at := c.whole
		if len(c.steps) > 0 {
			at = c.start()
		}
		return Time{}, c.fail(at, "%q is today, without a time of day: write one too, such as 10:12, or only \"now\"", c.quote(at))
	case instant.After(c.now.AddDate(maxYears, 0, 0)) && !isRFC3339(c.text):
		return Time{}, c.fail(c.whole, "%q is more than %d years ahead: write the exact instant if it is meant, %s", c.quote(c.whole), maxYears, Time{Instant: instant})
	}
	return Time{Instant: instant, How: passed + c.describe(from) + " in " + nameOf(c.zone)}, nil
}

// checkOn returns an error if what the text lacks depends on the zone. here is On in the zone of the options.
func (c *calendar) checkOn(here time.Time) error {
	isDated := c.date != nil || c.weekday != nil
	what, layout := "at %s or %s, because the zones differ: write the time of day too", "15:04"
	if !isDated {
		what, layout = "on %s or %s, because the zones differ: write the date too", "2 January"
	}
	if isDated == (c.clock != nil) || here.Format(layout) == c.on.Format(layout) {
		return nil
	}
	return c.fail(c.whole, "%q can be "+what, c.quote(c.whole), here.Format(layout), c.on.Format(layout))
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
		return c.fail(c.whole, "%q is this minute: write \"now\", or the date too", c.quote(c.whole))
	}
	if c.hasPassed(first) != base.Before(c.now) {
		hint := "the date too"
		if c.clock != nil && c.clock.midnight {
			hint = "00:00 and the date"
		}
		return c.fail(c.whole, "%q can count from %s or from %s: write %s", c.quote(c.whole),
			first.wallClock.Format("Monday 2 January"), next.wallClock.Format("Monday 2 January"), hint)
	}
	return nil
}

// checkZone returns an error if the name or the abbreviation of a zone is not that of the zone at an instant.
func (c *calendar) checkZone(instant time.Time) error {
	_, offset := instant.Zone()
	switch {
	case c.named != nil:
		there := instant.In(c.named)
		if _, other := there.Zone(); other != offset {
			at := c.seen[zoneCheck]
			return c.fail(at, "%q is wrong, because its offset then is %s: write one of the two", c.quote(at), there.Format("-07:00"))
		}
	case c.hasOffset && c.abbreviation != nil:
		offsets := abbreviations()[lower(c.quote(*c.abbreviation))].offsets
		if !slices.Contains(offsets, instant.Format("-07:00")) {
			return c.fail(*c.abbreviation, "%q is wrong, because its offset is %s: write one of the two", c.quote(*c.abbreviation), offsets[0])
		}
	case !c.isAbbreviated(instant):
		return c.notInForce(instant)
	}
	return nil
}

// isAbbreviated reports whether the zone at an instant has the abbreviation of the text, if any.
func (c *calendar) isAbbreviated(instant time.Time) bool {
	if c.abbreviation == nil {
		return true
	}
	short, _ := instant.Zone()
	return strings.EqualFold(short, c.quote(*c.abbreviation))
}

// notInForce returns the error for an abbreviation that the zone does not have at an instant.
// Elsewhere, it can mean several zones.
func (c *calendar) notInForce(instant time.Time) error {
	quoted := c.quote(*c.abbreviation)
	example := abbreviations()[lower(quoted)]
	return c.fail(*c.abbreviation, "%q is not in force in %s then, but %s is: write a zone such as %s, or an offset such as UTC%s",
		quoted, nameOf(c.zone), instant.Format("MST"), example.zone, example.offset)
}

// dayOf returns 00:00 of the day of an instant in its zone, represented in UTC.
func dayOf(instant time.Time) time.Time {
	y, m, d := instant.Date()
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
}

// dependsOn reports whether the spec means another day if it is another day than today.
func (c *calendar) dependsOn(day time.Time) bool {
	if c.date != nil {
		return c.date.way == relative && c.clock != nil
	}
	_, isWeek := c.seen[aWeek]
	return c.weekday != nil && (isWeek || c.weekday.relative || c.weekday.day == c.today.Weekday() || c.weekday.day == day.Weekday())
}

// candidates returns the times that the spec can mean, earliest first.
func (c *calendar) candidates() ([]candidate, error) {
	thisYear := c.today.Year()
	_, isYear := c.seen[aYear]
	var all []candidate
	switch {
	case c.date == nil && c.weekday == nil && c.clock == nil:
		if _, isPresent := c.seen[present]; !isPresent && !c.on.IsZero() {
			return []candidate{{instant: c.on, isBare: true, how: "its time"}}, nil
		}
		return []candidate{{instant: c.now, isBare: true, how: "now"}}, nil
	case c.date == nil && c.weekday == nil && !c.on.IsZero():
		if c.clock.midnight {
			return nil, c.fail(c.clock.span, "%q begins one day and ends another: write 00:00 and the date", c.quote(c.clock.span))
		}
		return []candidate{c.at(dayOf(c.on))}, nil
	case c.date == nil && c.weekday == nil:
		return []candidate{c.at(c.today), c.at(c.today.AddDate(0, 0, 1))}, nil
	case c.date == nil:
		return c.weekdays()
	case c.date.way == relative:
		day, first := c.today, error(nil)
		for _, s := range c.date.steps {
			var err error
			if day, err = c.add(day, s); first == nil {
				first = err
			}
		}
		if !inRange(day) {
			return nil, c.outOfRange(c.date.span)
		}
		from := c.at(day)
		from.err = first
		all = []candidate{from}
	case c.date.way == yearless && isYear:
		all = []candidate{c.onDate(thisYear+c.years, c.date.month, c.date.n)}
	case c.date.way == yearless:
		for _, year := range []int{thisYear - 1, thisYear} {
			from := c.onDate(year, c.date.month, c.date.n)
			if last, _ := c.reach(from, nil); from.err == nil && last.Before(c.now) && last.After(c.now.AddDate(0, -1, 0)) {
				return nil, c.fail(c.whole, "%q has just passed, on %s: write the year too", c.quote(c.whole), last.Format("2 January 2006"))
			}
		}
		all = []candidate{c.onDate(thisYear, c.date.month, c.date.n), c.onDate(thisYear+1, c.date.month, c.date.n)}
	default:
		all = []candidate{c.onDate(c.date.year, c.date.month, c.date.n)}
	}
	for i := range all {
		if date := all[i].wallClock; all[i].err == nil && c.weekday != nil && c.weekday.day != date.Weekday() {
			all[i].err = c.fail(c.weekday.span, "%q is wrong, because %s is a %s: write one of the two", c.quote(c.weekday.span), date.Format("2 January 2006"), date.Weekday())
		}
	}
	return all, nil
}

// weekdays returns the candidates for a weekday without a date.
func (c *calendar) weekdays() ([]candidate, error) {
	// How many days ago this week began, and how many days after that the weekday is.
	sinceMonday, sinceSunday := int(c.today.Weekday()+6)%7, int(c.today.Weekday())
	afterMonday, afterSunday := int(c.weekday.day+6)%7, int(c.weekday.day)
	first := c.today.AddDate(0, 0, (afterSunday-sinceSunday+7)%7)
	at, isWeek := c.seen[aWeek]
	if !isWeek && !c.weekday.relative {
		return []candidate{c.at(first), c.at(first.AddDate(0, 0, 7))}, nil
	}
	// The week begins on Monday or on Sunday. "this friday" and "next friday" can also be the first one.
	// "this monday" on a Wednesday is to come.
	meant := c.today.AddDate(0, 0, 7*c.weeks-sinceMonday+afterMonday)
	readings := []time.Time{meant, c.today.AddDate(0, 0, 7*c.weeks-sinceSunday+afterSunday)}
	at = c.weekday.through(at)
	if c.weekday.relative {
		at = c.weekday.span
		if c.weeks == 1 && first.Equal(c.today) {
			first = first.AddDate(0, 0, 7)
		}
		readings = append(readings, first)
	}
	readings = slices.DeleteFunc(readings, func(day time.Time) bool { return day.Before(c.today) })
	if len(readings) > 0 {
		meant = readings[0]
	}
	for _, reading := range readings {
		if !reading.Equal(meant) {
			if reading.After(meant) {
				meant, reading = reading, meant
			}
			return nil, c.fail(at, "%q can be %s or %s: write the date", c.quote(at), reading.Format("Monday 2 January"), meant.Format("Monday 2 January"))
		}
	}
	return []candidate{c.at(meant)}, nil
}

// onDate returns the candidate on a date, which may not exist.
func (c *calendar) onDate(y int, m time.Month, d int) candidate {
	from := c.at(time.Date(y, m, d, 0, 0, 0, 0, time.UTC))
	if days := daysIn(y, m); d > days {
		from.err = c.fail(c.date.span, "%q is not a date, because %s %d has %d days: write a day that exists", c.quote(c.date.span), m, y, days)
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
	y, m, d := date.Date()
	if c.clock != nil {
		return candidate{
			wallClock: time.Date(y, m, d, c.clock.hour, c.clock.minute, c.clock.second, c.clock.nanosecond, time.UTC),
			how:       how,
		}
	}
	from := candidate{
		wallClock: time.Date(y, m, d, c.base.Hour(), c.base.Minute(), c.base.Second(), c.base.Nanosecond(), time.UTC),
		how:       how,
	}
	if date.Equal(c.today) && c.on.IsZero() {
		from.instant = c.now
	}
	return from
}

// start returns the words to which the sums are added.
func (c *calendar) start() span {
	switch {
	case c.clock != nil:
		return c.clock.span
	case c.date != nil:
		return c.date.span
	case c.weekday != nil:
		return c.weekday.span
	}
	return c.whole
}

// reach returns the instant of a candidate after steps were added. If there is an
// error, the instant is the latest one that could be meant, or now if it is out of range.
func (c *calendar) reach(from candidate, steps []step) (time.Time, error) {
	instant, wallClock, isInstant, first := from.instant, from.wallClock, !from.instant.IsZero(), from.err
	at := c.start()
	resolve := func() {
		if !isInstant {
			var err error
			if instant, err = c.instant(wallClock, at); first == nil {
				first = err
			}
			isInstant = true
		}
	}

	for _, s := range steps {
		switch {
		case s.n == 0:
		case s.unit.period():
			if isInstant {
				wallClock = zones.WallClock(instant)
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
	switch {
	case times == 1:
		return earlier, nil
	case times == 2 && c.abbreviation != nil && c.isAbbreviated(earlier):
		return earlier, nil
	case times == 2 && c.abbreviation != nil && c.isAbbreviated(later):
		return later, nil
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

// daysIn returns the number of days of a month.
func daysIn(y int, m time.Month) int {
	return time.Date(y, m+1, 0, 0, 0, 0, 0, time.UTC).Day()
}

// describe returns a description of a candidate and its sums.
func (c *calendar) describe(from candidate) string {
	how := from.how
	switch {
	case from.isBare:
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
		how += " " + sign + " " + countOf(n, s.unit)
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
