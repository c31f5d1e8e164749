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

import "slices"

// has returns the position of the first of some parts that the text has.
func (s *spec) has(parts ...part) (at span, ok bool) {
	for _, part := range parts {
		if at, ok = s.seen[part]; ok {
			return at, true
		}
	}
	return at, false
}

// check returns an error for parts that have no meaning together.
func (s *spec) check() error {
	now, isNow := s.has(present)
	zone, hasZone := s.has(timeZone)
	week, isWeek := s.has(aWeek)
	other, hasOther := s.has(timeOfDay, aDate, aWeekday, aWeek)
	switch {
	case hasZone && !isNow && !hasOther && len(s.steps) == 0:
		return s.fail(zone, "is a time zone without a time: write a time before it, such as 10:12")
	case isNow && hasOther:
		return s.fail(now, "and %q are two times: write only one", s.quote(other))
	case isWeek && (s.weekday == nil || s.weekday.relative || s.date != nil):
		return s.fail(week, notDay)
	case s.date != nil && s.weekday != nil && s.weekday.relative:
		return s.fail(s.seen[aDate], "and %q are two dates: write only one", s.quote(s.seen[aWeekday]))
	case s.date != nil && s.date.tonight && (s.clock == nil || s.clock.hour < 17 && !s.clock.midnight):
		return s.fail(s.seen[aDate], `needs a time of day after 17:00: write one, such as "tonight 20:00", or "tomorrow 02:00"`)
	case s.isDated() && s.clock != nil && s.clock.midnight:
		return s.fail(s.seen[timeOfDay], "begins one day and ends another: write 00:00, or 00:00 of the next day")
	case s.isDated() && s.clock == nil && slices.ContainsFunc(s.steps, step.isTimed):
		return s.fail(s.steps[0].span, "needs a time of day to count from: write one, such as 10:12, before it")
	}
	return s.checkYear()
}

// checkYear returns an error for four digits before or behind a date that can be its year or a time
// such as 2030. Behind the date, this year and the next one are years. All others are too, if there is
// a time of day elsewhere. 1012 dec 24 is as in at(1): nobody means that year.
func (s *spec) checkYear() error {
	if s.date == nil || s.date.way == relative {
		return nil
	}
	year, at, thisYear, isDoubtful := s.date.year, s.date.yearAt, s.here.Year(), false
	from := s.seen[aDate].from
	isBehind := at.from > from
	switch {
	case s.clock == nil && isBehind:
		isDoubtful = year != thisYear && year != thisYear+1 && year/100 < 24 && year%100 < 60
	case s.clock != nil && s.clock.short:
		year, at = s.clock.hour*100+s.clock.minute, s.seen[timeOfDay]
		isPlausible := year >= thisYear && year <= thisYear+maxYears
		isDoubtful = s.date.way == yearless && year >= 1900 || isBehind && at.from < from && isPlausible
	}
	if isDoubtful {
		return s.fail(at, "can be a year or a time: write %02d:%02d, or the date as YYYY-MM-DD", year/100, year%100)
	}
	return nil
}
