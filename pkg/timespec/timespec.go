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

// Options are what the meaning of a text depends on.
type Options struct {
	// Now is the present. It is required.
	Now time.Time
	// Zone is the zone of a text that names none. It is required.
	Zone *time.Location
	// AllowPast accepts a time that has passed. It does not change which time is meant.
	AllowPast bool
}

// Time is a time that was understood.
type Time struct {
	// Instant is in the zone that the text names, else in Options.Zone.
	Instant time.Time
	// How is a line on how the text was understood, such as
	// "tomorrow (Sunday 29 March 2026) at 10:12 in Europe/Berlin".
	How string
}

// String returns the instant as RFC 3339 writes it. Parse reads it as the same instant.
func (t Time) String() string {
	return format(t.Instant)
}

// format writes an instant in its zone, or in UTC if RFC 3339 cannot write the offset:
// before 1972 some zones had offsets with seconds.
func format(instant time.Time) string {
	if _, offset := instant.Zone(); offset%60 != 0 {
		instant = instant.UTC()
	}
	return instant.Format(time.RFC3339Nano)
}

// Error says which word of a text is not understood or not possible.
type Error struct {
	// Text is the whole text.
	Text string
	// Offset and Length are the place of the word at fault in Text, in bytes. Length is 0
	// where a word is missing.
	Offset, Length int
	// Problem is a sentence, without a full stop, that quotes the word and says what to
	// write.
	Problem string
}

func (e *Error) Error() string {
	return e.Problem
}

// Caret returns two lines, the text and below it carets under the word at fault.
func (e *Error) Caret() string {
	carets := max(1, utf8.RuneCountInString(e.Text[e.Offset:e.Offset+e.Length]))
	return printable(e.Text) + "\n" +
		strings.Repeat(" ", utf8.RuneCountInString(e.Text[:e.Offset])) + strings.Repeat("^", carets)
}

// printable returns a text in which each character takes one column of a terminal.
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
