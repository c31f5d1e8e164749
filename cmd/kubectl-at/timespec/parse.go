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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// spec is a parsed text.
type spec struct {
	text      string
	here      time.Time      // now, in the zone of the options
	clock     *clock         // nil: the current time of day
	date      *date          // nil: the next day on which the clock shows the time
	weekday   *weekday       // the next such day, or with a date, a check
	zone      *time.Location // nil: that of the options
	hasOffset bool           // The zone is an offset.
	// abbreviation is that of the zone at that time, such as cet.
	abbreviation *span
	steps        []step
	// weeks is 0 behind "this", and 1 behind "next".
	weeks int
	// seen has the words of each part.
	seen map[part]span
	// firstSum is the position of the first sum with a sign. Only a zone may follow it.
	firstSum *span
	// whole is the text without surrounding spaces.
	whole span
}

// span is the position of words in the text, in bytes.
type span struct{ from, to int }

// part is a part that a text can have at most once.
type part string

const (
	present   part = "time"
	timeOfDay part = "time of day"
	aDate     part = "date"
	aWeekday  part = "weekday"
	aWeek     part = "week"
	timeZone  part = "time zone"
)

// isDated reports whether the text has a day, and not only a time of day or now.
func (s *spec) isDated() bool { return s.date != nil || s.weekday != nil }

type clock struct {
	hour, minute, second, nanosecond int
	// short is true for a time such as 1012.
	short bool
	// exact is true if the time has seconds, or a T before it.
	exact    bool
	midnight bool // as a word
}

// date is a day, specified in one of several ways.
type date struct {
	way way
	// steps are days and longer units from today.
	steps   []step
	tonight bool
	// n is the day of the month.
	n     int
	month time.Month
	year  int
	// yearAt is the position of a year behind a month, which could be a time such as 2030.
	yearAt span
}

type way int

const (
	relative way = iota // some steps from today
	yearless            // day n of month
	absolute            // day n of month of year
)

type weekday struct {
	day time.Weekday
	// relative is true after "this" or "next".
	relative bool
}

// step is a number of units to add.
type step struct {
	n    int
	unit unit
	span
}

// unit is a unit in a sum.
type unit int

const (
	second unit = iota
	minute
	hour
	day
	week
	month
	year
)

// isTimed reports whether a step is counted as elapsed time, not by the calendar.
func (s step) isTimed() bool { return s.unit < day }

// parser reads a text part by part.
type parser struct {
	*spec
	lower string // the text in lower case, without the spaces behind it
	at    int    // how much of it was read
}

func parse(text string, here time.Time) (*spec, error) {
	p := parser{spec: &spec{text: text, here: here, seen: map[part]span{}}, lower: strings.TrimRight(lower(text), " ")}
	p.skip()
	p.whole = span{p.at, len(p.lower)}
	if p.at == len(p.lower) {
		return nil, p.fail(p.whole, "is empty: write a time, such as 10:12, tomorrow or now + 2 hours")
	}
	for p.at < len(p.lower) {
		for _, rule := range rules() { // The last one matches anything.
			if found := p.take(rule.pattern); found != nil {
				if err := rule.read(&p, found); err != nil {
					return nil, err
				}
				break
			}
		}
		p.skip()
		if strings.HasPrefix(p.lower[p.at:], ",") && p.at+1 < len(p.lower) {
			p.at++
			p.skip()
		}
	}
	return p.spec, p.check()
}

// lower returns s with A to Z in lower case, and with ASCII spaces instead of what looks like one or
// like nothing. The length is the same. A time contains no other letters.
func lower(s string) string {
	b := []byte(s)
	for i, r := range s {
		switch {
		case 'A' <= r && r <= 'Z':
			b[i] += 'a' - 'A'
		case unicode.IsSpace(r) || unicode.Is(unicode.Cf, r):
			copy(b[i:], strings.Repeat(" ", utf8.RuneLen(r)))
		}
	}
	return string(b)
}

// skip skips spaces.
func (p *parser) skip() {
	p.at = len(p.lower) - len(strings.TrimLeft(p.lower[p.at:], " "))
}

// take reads what a pattern matches, and returns the positions of the match and its groups. A match
// does not end within a word or a number.
func (p *parser) take(pattern *regexp.Regexp) []span {
	for end := len(p.lower); ; {
		found := pattern.FindStringSubmatchIndex(p.lower[p.at:end])
		if found == nil {
			return nil
		}
		to := p.at + found[1]
		if begin := p.begin(to); begin < to {
			end = max(p.at, begin)
			continue
		}
		groups := make([]span, len(found)/2)
		for i := range groups {
			if found[2*i] >= 0 {
				groups[i] = span{p.at + found[2*i], p.at + found[2*i+1]}
			}
		}
		p.at = to
		return groups
	}
}

// begin returns where the word or the number begins that continues at an offset. Without one, it
// returns the offset.
func (p *parser) begin(at int) int {
	for _, chars := range []string{"0123456789", "abcdefghijklmnopqrstuvwxyz"} {
		if at < len(p.lower) && strings.Contains(chars, p.lower[at:at+1]) {
			return len(strings.TrimRight(p.lower[:at], chars))
		}
	}
	return at
}

// word returns the words at a position in lower case.
func (p *parser) word(at span) string { return p.lower[at.from:at.to] }

// number returns the value of at most nine digits, or 0 if there are none.
func (p *parser) number(at span) int {
	n, _ := strconv.Atoi(p.word(at))
	return n
}

// quote returns the words at a position as written, with single spaces.
func (s *spec) quote(at span) string {
	return strings.Join(strings.Fields(s.text[at.from:at.to]), " ")
}

// fail returns the error that something is wrong with the words at a position, which the sentence begins with.
func (s *spec) fail(at span, format string, args ...any) *Error {
	return &Error{Text: s.text, Offset: at.from, Length: at.to - at.from, Problem: fmt.Sprintf("%q "+format, slices.Insert(args, 0, any(s.quote(at)))...)}
}

// unknown returns the error for a word that is no part of a time.
func (p *parser) unknown(at span) error {
	err := p.fail(at, "is not understood: write a time such as 10:12, a date such as 24 dec, a sum such as + 2 hours, or a zone such as Europe/Berlin")
	err.Unknown = true
	return err
}

// once records that the text has a part. It returns an error for a second part of that
// kind, or for a part other than a zone after a sum.
func (p *parser) once(part part, at span) error {
	if _, ok := p.seen[part]; ok {
		return p.fail(at, "is a second %s: write only one", part)
	}
	if p.firstSum != nil && part != timeZone {
		return p.fail(at, "follows a sum: write it before %q", p.quote(*p.firstSum))
	}
	p.seen[part] = at
	return nil
}

// setClock sets the time of day. Four digits before a date were its year, if another time of day follows.
func (p *parser) setClock(c clock, at span) error {
	if p.clock != nil && p.clock.short && p.date != nil && p.date.way == yearless {
		p.date.setYear(p.clock.hour*100+p.clock.minute, p.seen[timeOfDay])
		delete(p.seen, timeOfDay)
	}
	p.clock = &c
	return p.once(timeOfDay, at)
}

// setYear sets the year of a date without one.
func (d *date) setYear(year int, at span) {
	d.way, d.year, d.yearAt = absolute, year, at
}

func (p *parser) setDate(d date, at span) error {
	if d.way != relative && (d.n < 1 || d.n > 31 || d.month < 1 || d.month > 12) {
		return p.fail(at, notDate)
	}
	p.date = &d
	return p.once(aDate, at)
}
