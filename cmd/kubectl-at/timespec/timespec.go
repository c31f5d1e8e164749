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

// Package timespec parses times as people write them: it is the time grammar of
// `kubectl at`. It has most times of POSIX at and Debian's at(1), and more. It is pure: it
// has no clock, and depends only on the given text and options.
//
// Parse either understands the whole text, or returns an *Error that points at the invalid
// word. It ignores case, treats several spaces of any kind as one, and ignores the point of an abbreviation,
// as in "Dec. 24".
// A text consists of parts, with or without commas between them. The function rules has what each of them can be,
// and the frequent mistakes.
//
// The parts may come in any order, such as "10:12 tomorrow" or "tomorrow 10:12", but only
// sums and the zone may follow a number with a unit. There is at most one time of day
// (or "now"), one date and one zone, and a zone alone is not enough. A weekday with another
// date is a check.
// "next week" needs a weekday. A sign is that
// of an offset only after a date with its year and a time of day with a colon, without a space behind it:
// otherwise, "sat 22:00-02:00", "9am -10" or "noon + 01:30" would have a meaning that nobody intends.
// UTC+01:00 may follow any time.
//
// Weekdays and months may be shortened to three letters, units to s, sec, m, min, h,
// hr, d, w and y, and units may be plural. "am" may be written "a.m.". "m" is a minute, and "M" an error. An abbreviation such
// as CET is accepted only if the zone of the options has it at that time.
//
// Omitted parts are filled in:
//
//   - A time without a date is today, or tomorrow if that has passed. Likewise, a weekday
//     is in the next seven days, including today, and a date without a year is this year
//     or next year.
//   - "friday next week" is the Friday of the next calendar week.
//   - A date without a time of day is at the current time of day, unless it is today. "today + 1 day"
//     is tomorrow.
//   - "in 2 days" is such a date, so "in 2 days at 10:12" has a meaning. "in 2 hours" is now + 2 hours.
//   - "tonight" is today, and needs a time after 17:00.
//   - "this friday" is the next Friday.
//   - After a day and a month, a number of four digits is the year, unless "am" or "pm"
//     follows. If there is no time of day, it must be this year or the next one: "24 dec 2030" can
//     be at 20:30. Before them, it is the year if a time of day follows: "2027 dec 24" can be at 20:27.
//   - In "1h30", 30 is in the next smaller unit.
//   - "midnight" is the next one. With a date, it is an error. "teatime" is 16:00.
//   - Days, weeks, months and years follow the calendar: the clock shows the same
//     time after them. Seconds, minutes and hours are elapsed time.
//   - Now is the start of the current second, without a fraction.
//
// What two people can read differently is an error, even where at(1) guesses:
//
//   - a time that the zone's clocks skip or repeat
//   - a day that does not exist in the month, even as the result of a sum (31 January + 1 month)
//   - a given date, including today, that is in the past, and one without a year that has passed in
//     the last month
//   - a time more than ten years ahead, unless it is in RFC 3339 format
//   - a time that is this minute, and a period such as 22:00-02:00 or mon-fri
//   - a year of two digits, an hour without minutes or "am", an hour such as 17h, a date such as 03/04/2027
//   - an offset that no clocks have
//   - today without a time of day
//   - "next friday" on a Wednesday, and a day of the next week if that depends on whether weeks begin
//     on Monday or Sunday
//   - "tomorrow" or a weekday with a zone in which it is already tomorrow
//   - a sum that starts from a time that has passed today: noon + 3 hours, at one o'clock
package timespec

import (
	"strings"
	"time"
	"unicode/utf8"
)

// Options are the options on which the meaning of a text depends.
type Options struct {
	// Now is the current time. It is required.
	Now time.Time
	// Zone is the zone of a text without a zone. It is required.
	Zone *time.Location
	// On is the present time of what a user moves. It has the date or the time of day that a text lacks, and a sum
	// without a time counts from it. If it is zero, nothing is moved.
	On time.Time
	// AllowPast accepts a time in the past. It does not change which time is meant.
	AllowPast bool
}

// Time is a parsed time.
type Time struct {
	// Instant is in the zone of the text, or else in Options.Zone.
	Instant time.Time
	// How is a line that explains how the text was understood, such as "tomorrow (Sunday 29
	// March 2026) at 10:12 in Europe/Berlin".
	How string
}

// String returns the instant in its zone in RFC 3339 format, or in UTC if Parse does not accept the
// offset: before 1980 some zones had others than today. Parse returns the same instant for it.
func (t Time) String() string {
	if _, offset := t.Instant.Zone(); !isReal(offset) {
		return t.Instant.UTC().Format(time.RFC3339Nano)
	}
	return t.Instant.Format(time.RFC3339Nano)
}

// Error reports which word of a text is invalid.
type Error struct {
	// Text is the whole text.
	Text string
	// Offset and Length are the position of the invalid word in Text, in bytes. Length is 0
	// if a word is missing.
	Offset, Length int
	// Unknown is true if no time has this word: it can be part of a command.
	Unknown bool
	// Problem is a sentence without a period. It quotes the word and says what to write.
	Problem string
}

func (e *Error) Error() string {
	return e.Problem
}

// Caret returns two lines: the text, and carets below the invalid word.
func (e *Error) Caret() string {
	carets := max(1, utf8.RuneCountInString(e.Text[e.Offset:e.Offset+e.Length]))
	return strings.ReplaceAll(e.Text, "\n", " ") + "\n" +
		strings.Repeat(" ", utf8.RuneCountInString(e.Text[:e.Offset])) + strings.Repeat("^", carets)
}

// Parse returns the time that a text means. Any error is an *Error.
func Parse(text string, options Options) (Time, error) {
	spec, err := parse(text, options.Now.In(options.Zone))
	if err != nil {
		return Time{}, err
	}
	return spec.evaluate(options)
}
