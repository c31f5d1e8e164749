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

import "fmt"

// check returns an error for parts that have no meaning together.
func (s *spec) check(thisYear int) error {
	has := func(parts ...part) (at span, ok bool) {
		for _, part := range parts {
			if at, ok = s.seen[part]; ok {
				return at, true
			}
		}
		return at, false
	}
	_, hasTime := has(present, timeOfDay, aDate, aWeekday, aWeek, aYear)
	if at, ok := has(timeZone); ok && !hasTime && len(s.steps) == 0 {
		return s.fail(at, "%q is a time zone without a time: write a time before it, such as 10:12", s.quote(at))
	}
	if now, ok := has(present); ok {
		if at, ok := has(timeOfDay, aDate, aWeekday, aWeek, aYear); ok {
			return s.fail(at, "%q and %q are two times: write only one", s.quote(now), s.quote(at))
		}
	}
	if at, ok := has(aWeek); ok && (s.weekday == nil || s.weekday.relative || s.date != nil) {
		return s.fail(at, "%q is not a day: write a weekday with it, such as \"friday %s\", or \"+ 1 week\"", s.quote(at), s.quote(at))
	}
	if at, ok := has(aYear); ok && (s.date == nil || s.date.way != yearless) {
		return s.fail(at, "%q is not a day: write a date with it, such as \"24 dec %s\", or \"+ 1 year\"", s.quote(at), s.quote(at))
	}
	if s.date != nil && s.weekday != nil && s.weekday.relative {
		return s.fail(s.weekday.span, "%q and %q are two dates: write only one", s.quote(s.date.span), s.quote(s.weekday.span))
	}
	if s.date != nil && s.date.tonight && (s.clock == nil || s.clock.hour < 17 && !s.clock.midnight) {
		return s.fail(s.date.span, "%q needs a time of day after 17:00: write one, such as \"%s 20:00\", or \"tomorrow 02:00\"", s.quote(s.date.span), s.quote(s.date.span))
	}
	if s.clock != nil && s.clock.midnight && (s.date != nil || s.weekday != nil) {
		return s.fail(s.clock.span, "%q begins one day and ends another: write 00:00, or 00:00 of the next day", s.quote(s.clock.span))
	}
	if s.clock == nil && (s.date != nil || s.weekday != nil) {
		for _, step := range s.steps {
			if !step.unit.period() {
				return s.fail(step.span, "%q needs a time of day to count from: write one, such as 10:12, before it", s.quote(step.span))
			}
		}
	}
	return s.checkYear(thisYear)
}

// checkYear returns an error for four digits before or behind a date that can be its year or a time
// such as 2030. Behind the date, this year and the next one are years. All others are too, if there is
// a time of day elsewhere. 1012 dec 24 is as in at(1): nobody means that year.
func (s *spec) checkYear(thisYear int) error {
	if s.date == nil || s.date.way == relative {
		return nil
	}
	year, at, isDoubtful := s.date.year, s.date.yearAt, false
	isBehind := s.date.yearAt.from > s.date.from
	switch {
	case s.clock == nil && isBehind:
		isDoubtful = year != thisYear && year != thisYear+1 && year/100 < 24 && year%100 < 60
	case s.clock != nil && s.clock.short:
		year, at = s.clock.hour*100+s.clock.minute, s.clock.span
		isPlausible := year >= thisYear && year <= thisYear+maxYears
		isDoubtful = s.date.way == yearless && year >= 1900 || isBehind && at.from < s.date.from && isPlausible
	}
	if !isDoubtful {
		return nil
	}
	readings, hint := "a year or a time", " if the time is meant"
	switch {
	case year < thisYear:
		readings = "a time, or a year that has passed"
	case year < thisYear+maxYears:
		hint = fmt.Sprintf(", or the date as %04d-%02d-%02d with a time", year, s.date.month, s.date.n)
	}
	return s.fail(at, "%q can be %s: write %02d:%02d%s", s.quote(at), readings, year/100, year%100, hint)
}
