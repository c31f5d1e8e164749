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
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Options are the options on which the meaning of a text depends.
type Options struct {
	// Now is the current time. It is required.
	Now time.Time
	// Zone is the zone of a text without a zone. It is required.
	Zone *time.Location
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

// String returns the instant in RFC 3339 format. Parse returns the same instant for it.
func (t Time) String() string {
	return format(t.Instant)
}

// format formats an instant in its zone, or in UTC if RFC 3339 cannot represent the
// offset: before 1972 some zones had offsets with seconds.
func format(instant time.Time) string {
	if _, offset := instant.Zone(); offset%60 != 0 {
		instant = instant.UTC()
	}
	return instant.Format(time.RFC3339Nano)
}

// Error reports which word of a text is invalid.
type Error struct {
	// Text is the whole text.
	Text string
	// Offset and Length are the position of the invalid word in Text, in bytes. Length is 0
	// if a word is missing.
	Offset, Length int
	// Problem is a sentence without a period. It quotes the word and says what to write.
	Problem string
}

func (e *Error) Error() string {
	return e.Problem
}

// Caret returns two lines: the text, and carets below the invalid word.
func (e *Error) Caret() string {
	carets := max(1, utf8.RuneCountInString(e.Text[e.Offset:e.Offset+e.Length]))
	return printable(e.Text) + "\n" +
		strings.Repeat(" ", utf8.RuneCountInString(e.Text[:e.Offset])) + strings.Repeat("^", carets)
}

// printable returns a text in which each character takes one terminal column.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}

// Parse returns the time that a text means. Any error is an *Error.
func Parse(text string, options Options) (Time, error) {
	spec, err := parse(text)
	if err != nil {
		return Time{}, err
	}
	return spec.evaluate(options)
}
