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
	"slices"
	"strconv"
	"strings"
	"time"

	"programming-kubernetes.info/cnat-controller/cmd/kubectl-at/spelling"
)

// spec is a parsed text.
type spec struct {
	text    string
	clock   *clock         // nil: the current time of day
	date    *date          // nil: the next day on which the clock shows the time
	weekday *weekday       // the next such day, or with a date, a check
	zone    *time.Location // nil: that of the options
	// hasOffset is true if the zone is an offset. A name or an abbreviation behind it is a check.
	hasOffset bool
	named     *time.Location
	// abbreviation is that of the zone at that time, such as cet.
	abbreviation *span
	steps        []step
	// weeks and years are 0 behind "this", and 1 behind "next".
	weeks, years int
	// seen has the words of each part.
	seen map[part]span
	// firstSum is the position of the first sum with a sign. Only a zone may follow it.
	firstSum *span
	// whole is the text without surrounding spaces.
	whole span
}

// part is a part that a text can have at most once.
type part string

const (
	present   part = "time"
	timeOfDay part = "time of day"
	aDate     part = "date"
	aWeekday  part = "weekday"
	aWeek     part = "week"
	aYear     part = "year"
	timeZone  part = "time zone"
	// zoneCheck is the name of a zone behind an offset.
	zoneCheck part = "name of a time zone"
	// noPart is a sum. A text can have any number of sums.
	noPart part = ""
)

type clock struct {
	hour, minute, second, nanosecond int
	// short is true for a time such as 1012.
	short bool
	// exact is true if the time has seconds, or a T before it.
	exact    bool
	midnight bool // as a word
	span
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
	span
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
	span
}

// step is a number of units to add.
type step struct {
	n    int
	unit unit
	span
}

// parser reads the tokens of a text.
type parser struct {
	tokens []token
	*spec
}

func parse(text string, thisYear int) (*spec, error) {
	tokens := lex(text)
	p := parser{tokens: tokens, spec: &spec{text: text, seen: map[part]span{}}}
	if len(tokens) == 1 {
		return nil, p.fail(tokens[0].span, "the time is empty: write one, such as 10:12, tomorrow or now + 2 hours")
	}
	p.whole = tokens[0].through(tokens[len(tokens)-2].span)
	for p.peek(0).kind != end {
		if _, err := p.part(); err != nil {
			return nil, err
		}
		if p.is(0, sign, ",") && p.peek(1).kind != end {
			p.next()
		}
	}
	return p.spec, p.check(thisYear)
}

// fail returns the error that something is wrong with the words at a position.
func (s *spec) fail(at span, format string, args ...any) error {
	return &Error{Text: s.text, Offset: at.from, Length: at.to - at.from, Problem: fmt.Sprintf(format, args...)}
}

// quote returns the words at a position as written, with single spaces.
func (s *spec) quote(at span) string {
	return strings.Join(strings.Fields(s.text[at.from:at.to]), " ")
}

// peek returns the token that is n tokens ahead.
func (p *parser) peek(n int) token {
	return p.tokens[min(n, len(p.tokens)-1)]
}

// skip consumes n tokens and returns the position of the last one.
func (p *parser) skip(n int) span {
	var t token
	for range n {
		t = p.next()
	}
	return t.span
}

// next consumes a token.
func (p *parser) next() token {
	t := p.tokens[0]
	p.tokens = p.tokens[min(1, len(p.tokens)-1):]
	return t
}

func (p *parser) is(n int, kind kind, texts ...string) bool {
	t := p.peek(n)
	return t.kind == kind && slices.Contains(texts, t.text)
}

func (p *parser) isUnit(n int) bool {
	_, ok := units[p.peek(n).text]
	return ok && p.peek(n).kind == word
}

func (p *parser) isMonth(n int) bool {
	return p.peek(n).kind == word && months[p.peek(n).text] != 0
}

// isJoined reports whether the next tokens are n numbers without spaces, separated by one
// of the given signs. The second of three can be the name of a month.
func (p *parser) isJoined(numbers int, signs ...string) bool {
	for n := range 2*numbers - 1 {
		switch {
		case n > 0 && !p.peek(n).joined,
			n%2 == 0 && p.peek(n).kind != number && (numbers != 3 || n != 2 || !p.isMonth(n)),
			n%2 == 1 && !p.is(n, sign, signs...):
			return false
		}
	}
	return true
}

// once records that the text has a part. It returns an error for a second part of that
// kind, or for a part other than a zone after a sum.
func (p *parser) once(part part, at span) error {
	if _, ok := p.seen[part]; ok {
		return p.fail(at, "%q is a second %s: write only one", p.quote(at), part)
	}
	if p.firstSum != nil && part != timeZone && part != zoneCheck {
		sum := p.quote(*p.firstSum)
		if last := p.steps[len(p.steps)-1]; part == timeOfDay && last.unit.period() && last.n > 0 && p.date == nil && p.weekday == nil {
			return p.fail(at, "%q follows a sum: write \"in %s at %s\"", p.quote(at), strings.TrimLeft(sum, "+ "), p.quote(at))
		}
		return p.fail(at, "%q follows a sum: write it before %q", p.quote(at), sum)
	}
	p.seen[part] = at
	return nil
}

// setClock sets the time of day. Four digits before a date were its year, if another time of day follows.
func (p *parser) setClock(c clock) (part, error) {
	if p.clock != nil && p.clock.short && p.date != nil && p.date.way == yearless {
		p.date.setYear(p.clock.hour*100+p.clock.minute, p.clock.span)
		delete(p.seen, timeOfDay)
	}
	p.clock = &c
	return timeOfDay, p.once(timeOfDay, c.span)
}

// setYear sets the year of a date without one.
func (d *date) setYear(year int, at span) {
	d.way, d.year, d.yearAt = absolute, year, at
}

func (p *parser) setDate(d date) (part, error) {
	if d.way != relative && (d.n < 1 || d.n > 31) {
		return noPart, p.fail(d.span, "%q is not a date, because there is no day %d: write a day from 1 to 31", p.quote(d.span), d.n)
	}
	p.date = &d
	return aDate, p.once(aDate, d.span)
}

func (p *parser) setWeekday(w weekday) (part, error) {
	p.weekday = &w
	return aWeekday, p.once(aWeekday, w.span)
}

func (p *parser) setZone(location *time.Location, at span) (part, error) {
	switch {
	case p.zone != nil && p.zone.String() == location.String(): // +0530 +0530
		return timeZone, nil
	case p.hasOffset && p.named == nil:
		p.named = location
		return noPart, p.once(zoneCheck, at)
	}
	p.zone = location
	return timeZone, p.once(timeZone, at)
}

// part reads one part of the text and returns its kind.
func (p *parser) part() (part, error) {
	t := p.peek(0)
	switch t.kind {
	case number:
		return p.numeric()
	case zone:
		return p.zoneName()
	case sign:
		switch t.text {
		case "@":
			return p.seconds()
		case "[", "(":
			return p.remark(t)
		}
		return p.signed()
	case word:
		if numbers[t.text] != 0 && p.isUnit(1) {
			return p.amountsFromNow(t)
		}
		p.next()
		return p.word(t)
	}
	if p.isAbbreviation(0) {
		got := timeZone
		if p.hasOffset {
			got = zoneCheck
		}
		p.abbreviation = &p.tokens[0].span
		return got, p.once(got, p.next().span)
	}
	return noPart, p.unexpected(t)
}

// word reads the part that begins with a word that has already been consumed.
func (p *parser) word(t token) (part, error) {
	if _, ok := months[t.text]; ok {
		if p.is(0, word, "the") {
			p.next()
		}
		length := p.dayLength(0)
		if length == 0 || p.is(1, sign, ":") {
			return noPart, p.fail(t.span, "%q has no day: write it with one, such as %q", p.quote(t.span), p.quote(t.span)+" 24")
		}
		n := p.peek(0)
		return p.dayOfMonth(n, t, t.through(p.skip(length)))
	}
	if day, ok := weekdays[t.text]; ok {
		return p.setWeekday(weekday{day: day, span: t.span})
	}
	switch t.text {
	case "now":
		return present, p.once(present, t.span)
	case "noon", "midday":
		return p.setClock(clock{hour: 12, span: t.span})
	case "midnight":
		return p.setClock(clock{midnight: true, span: t.span})
	case "teatime":
		return p.setClock(clock{hour: 16, span: t.span})
	case "today":
		return p.setDate(date{way: relative, span: t.span})
	case "tomorrow":
		return p.setDate(date{way: relative, steps: []step{{n: 1, unit: day, span: t.span}}, span: t.span})
	case "tonight":
		return p.setDate(date{way: relative, tonight: true, span: t.span})
	case "the":
		if _, isWeekday := weekdays[p.peek(0).text]; isWeekday || p.is(0, word, "next") || p.dayLength(0) == 2 || p.is(0, word, "day") && p.peek(1).text == "after" {
			return p.part()
		}
	case "day":
		if p.peek(0).text == "after" && p.is(1, word, "tomorrow") {
			at := t.through(p.skip(2))
			return p.setDate(date{way: relative, steps: []step{{n: 2, unit: day, span: at}}, span: at})
		}
	case "this", "next":
		return p.thisOrNext(t)
	case "of": // friday of next week
		if p.is(0, word, "this", "next") && (p.date != nil || p.weekday != nil) {
			return p.thisOrNext(p.next())
		}
	case "in":
		if p.is(0, word, "the") && timesOfDay[p.peek(1).text] != "" {
			return noPart, p.unexpected(p.peek(1))
		}
		steps, err := p.amounts(t, 1)
		if err != nil {
			return noPart, err
		}
		return p.fromNow(steps)
	case "at", "on":
		want := timeOfDay
		if t.text == "on" {
			want = aDate
		}
		if p.peek(0).kind != end && !p.is(0, word, "at", "on") {
			got, err := p.part()
			if err == nil && got == timeOfDay {
				p.clock.short = false // "at 2030" is not a year.
			}
			if err != nil || got == want || want == aDate && got == aWeekday {
				return got, err
			}
		}
		return noPart, p.fail(t.span, "%q needs a %s after it: write one, or omit %q", p.quote(t.span), want, p.quote(t.span))
	}
	return noPart, p.unexpected(t)
}

// thisOrNext reads the words after "this" or "next".
func (p *parser) thisOrNext(first token) (part, error) {
	t, count := p.peek(0), 0
	if first.text == "next" {
		count = 1
	}
	at := first.through(t.span)
	day, isWeekday := weekdays[t.text]
	switch {
	case isWeekday && t.kind == word:
		p.next()
		p.weeks = count
		return p.setWeekday(weekday{day: day, relative: true, span: at})
	case p.is(0, word, "week"):
		p.next()
		p.weeks = count
		return aWeek, p.once(aWeek, at)
	case p.is(0, word, "year"):
		p.next()
		p.years = count
		return aYear, p.once(aYear, at)
	case p.isUnit(0):
		return noPart, p.fail(at, "%q is not a time: write \"+ 1 %s\" to count from now, or a date such as 24 dec", p.quote(at), unitNames[units[t.text]])
	case t.kind == unknown || timesOfDay[t.text] != "":
		return noPart, p.unexpected(t)
	}
	return noPart, p.fail(first.span, "%q needs a weekday: write one, such as \"friday next week\", or a date", p.quote(first.span))
}

// unexpected returns the error for a token in the wrong place.
func (p *parser) unexpected(t token) error {
	quoted := p.quote(t.span)
	unit, isUnit := units[t.text]
	switch {
	case t.joined && (t.text == "a" || t.text == "p"): // 10:12a
		return p.fail(t.span, "%q is not understood: write %q if that is meant", quoted, quoted+"m")
	case t.kind == unknown:
		return p.unknownWord(t, allWords)
	case isUnit && t.kind == word:
		return p.fail(t.span, "%q has no number: write one before it, such as %q", quoted, "+ "+countOf(1, unit))
	case timesOfDay[t.text] != "":
		return p.fail(t.span, "%q is not a time of day: write one instead, such as %s", quoted, timesOfDay[t.text])
	case t.text == "am" || t.text == "pm":
		return p.fail(t.span, "%q has no hour: write one before it, such as %q", quoted, "10"+quoted)
	}
	return p.unknown(t.span)
}

// unknownWord returns the error for a token that is not one of some words. It suggests
// the nearest of them.
func (p *parser) unknownWord(t token, words []string) error {
	quoted := p.quote(t.span)
	nearest, found := spelling.Nearest(t.text, words)
	if !found && t.from > p.whole.from { // A text does not begin with a zone.
		nearest, found = nearestZone(t.text)
	}
	if found {
		return p.fail(t.span, "%q is not understood: write %q if that is meant", quoted, nearest)
	}
	if len(words) == len(unitWords) {
		return p.fail(t.span, "%q is not a unit: write minutes, hours, days, weeks, months or years", quoted)
	}
	return p.unknown(t.span)
}

// unknown returns the error for a word that is no part of a time.
func (p *parser) unknown(at span) error {
	return &Error{
		Text: p.text, Offset: at.from, Length: at.to - at.from, Unknown: true,
		Problem: fmt.Sprintf("%q is not understood: write a time such as 10:12, a date such as 24 dec, a sum such as + 2 hours, or a zone such as Europe/Berlin", p.quote(at)),
	}
}

// atoi returns the value of at most nine digits, or 0 if there are none.
func atoi(digits string) int {
	n, _ := strconv.Atoi(digits)
	return n
}
