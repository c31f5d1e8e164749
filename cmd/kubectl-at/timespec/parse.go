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
	"programming-kubernetes.info/cnat-controller/pkg/zones"
)

// spec is a parsed text.
type spec struct {
	text    string
	clock   *clock         // nil: the current time of day
	date    *date          // nil: the next day on which the clock shows the time
	weekday *weekday       // the next such day, or with a date, a check
	zone    *time.Location // nil: that of the options
	// abbreviation is that of the zone of the options at that time, such as cet.
	abbreviation *span
	steps        []step
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
	nextWeek  part = "week"
	nextYear  part = "year"
	timeZone  part = "time zone"
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
	// next is true after "next".
	next bool
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
	if at, ok := has(timeZone); ok && len(s.seen) == 1 && len(s.steps) == 0 {
		return s.fail(at, "%q is a time zone without a time: write a time before it, such as 10:12", s.quote(at))
	}
	if now, ok := has(present); ok {
		if at, ok := has(timeOfDay, aDate, aWeekday, nextWeek, nextYear); ok {
			return s.fail(at, "%q and %q are two times: write only one", s.quote(now), s.quote(at))
		}
	}
	if at, ok := has(nextWeek); ok && (s.weekday == nil || s.weekday.next || s.date != nil) {
		return s.fail(at, "%q is not a day: write a weekday with it, such as \"monday %s\", or \"+ 1 week\"", s.quote(at), s.quote(at))
	}
	if at, ok := has(nextYear); ok && (s.date == nil || s.date.way != yearless) {
		return s.fail(at, "%q is not a day: write a date with it, such as \"24 dec %s\", or \"+ 1 year\"", s.quote(at), s.quote(at))
	}
	if s.date != nil && s.date.way != relative {
		// A year, or a time such as 2030. Without a time, only this year and the next one are years.
		year, at, d := s.date.year, s.date.yearAt, *s.date
		isTime := year >= 0 && year/100 < 24 && year%100 < 60
		isDoubtful := s.clock == nil && at != span{} && year != thisYear && year != thisYear+1 && isTime
		if s.clock != nil && s.clock.short && d.way == yearless {
			year, at = s.clock.hour*100+s.clock.minute, s.clock.span
			isDoubtful = year >= thisYear && year <= thisYear+maxYears
		}
		if isDoubtful {
			return s.fail(at, "%q can be a year or a time: write %02d:%02d, or the date as %04d-%02d-%02d with a time", s.quote(at), year/100, year%100, year, d.month, d.n)
		}
	}
	if s.date != nil && s.weekday != nil && s.weekday.next {
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
	return nil
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

// dayLength returns how many tokens the number of a day has, such as 24, 24th, or 24. before a
// month. It is 0 for anything else.
func (p *parser) dayLength(n int) int {
	t, suffix := p.peek(n), p.peek(n+1)
	switch {
	case t.kind != number || len(t.text) > 2:
		return 0
	case suffix.joined && (p.is(n+1, word, "st", "nd", "rd", "th") || p.is(n+1, sign, ".") && p.isMonth(n+2)):
		return 2
	}
	return 1
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

func (p *parser) isAbbreviation(n int) bool {
	_, ok := abbreviations()[p.peek(n).text]
	return ok && p.peek(n).kind == unknown
}

// isJoined reports whether the next tokens are n numbers without spaces, separated by one
// of the given signs.
func (p *parser) isJoined(numbers int, signs ...string) bool {
	for n := range 2*numbers - 1 {
		switch {
		case n > 0 && !p.peek(n).joined,
			n%2 == 0 && p.peek(n).kind != number,
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
	if p.firstSum != nil && part != timeZone {
		sum := p.quote(*p.firstSum)
		if last := p.steps[len(p.steps)-1]; part == timeOfDay && last.unit.period() && last.n > 0 {
			return p.fail(at, "%q follows a sum: write \"in %s at %s\"", p.quote(at), strings.TrimLeft(sum, "+ "), p.quote(at))
		}
		return p.fail(at, "%q follows a sum: write it before %q", p.quote(at), sum)
	}
	p.seen[part] = at
	return nil
}

func (p *parser) setClock(c clock) (part, error) {
	p.clock = &c
	return timeOfDay, p.once(timeOfDay, c.span)
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
		p.next()
		location, err := zones.Load(t.text)
		if err != nil {
			return noPart, p.fail(t.span, "%q cannot be loaded: write an offset instead, such as UTC+01:00", p.quote(t.span))
		}
		if hours, ok := strings.CutPrefix(t.text, "Etc/GMT+"); ok && hours != "0" {
			return noPart, p.fail(t.span, "%q is behind UTC, not ahead: write \"UTC-%s\" or \"UTC+%s\"", p.quote(t.span), hours, hours)
		}
		if hours, ok := strings.CutPrefix(t.text, "Etc/GMT-"); ok && hours != "0" {
			return noPart, p.fail(t.span, "%q is ahead of UTC, not behind: write \"UTC+%s\" or \"UTC-%s\"", p.quote(t.span), hours, hours)
		}
		isUTC := t.text == "UTC" || t.text == "GMT"
		if isUTC && p.is(0, sign, "+", "-") && p.peek(0).joined && p.peek(1).joined && p.isOffset(1, 1, 2, 4) {
			return p.offset(t, p.next())
		}
		if isUTC && p.is(0, sign, "+", "-") && p.peek(0).joined && p.peek(1).joined && p.is(2, word, "h", "hr", "hrs", "hour", "hours") {
			at := t.through(p.peek(2).span)
			return noPart, p.fail(at, "%q can be an offset or a sum: write %q or %q", p.quote(at),
				p.quote(t.through(p.peek(1).span)), p.quote(t.span)+" "+p.peek(0).text+" "+p.quote(p.peek(1).through(p.peek(2).span)))
		}
		return p.setZone(location, t.span)
	case sign:
		if t.text == "@" {
			return p.seconds()
		}
		return p.signed()
	case word:
		if p.is(0, word, "a", "an") {
			return p.amountsFromNow(t)
		}
		p.next()
		return p.word(t)
	}
	if p.isAbbreviation(0) {
		p.next()
		p.abbreviation = &t.span
		return timeZone, p.once(timeZone, t.span)
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
	case "noon":
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
		if p.dayLength(0) == 2 {
			return p.numeric()
		}
	case "next":
		return p.nextOne(t)
	case "in":
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
			if got, err := p.part(); err != nil || got == want || want == aDate && got == aWeekday {
				return got, err
			}
		}
		return noPart, p.fail(t.span, "%q needs a %s after it: write one, or omit %q", p.quote(t.span), want, p.quote(t.span))
	}
	return noPart, p.unexpected(t)
}

// nextOne reads the words after "next".
func (p *parser) nextOne(next token) (part, error) {
	t := p.peek(0)
	at := next.through(t.span)
	if day, ok := weekdays[t.text]; ok && t.kind == word {
		p.next()
		return p.setWeekday(weekday{day: day, next: true, span: at})
	}
	switch {
	case p.is(0, word, "week"):
		p.next()
		return nextWeek, p.once(nextWeek, at)
	case p.is(0, word, "year"):
		p.next()
		return nextYear, p.once(nextYear, at)
	case p.isUnit(0):
		return noPart, p.fail(at, "%q is not a time: write \"+ 1 %s\" to count from now, or a date such as 24 dec", p.quote(at), unitNames[units[t.text]])
	case t.kind == unknown:
		return noPart, p.unexpected(t)
	}
	return noPart, p.fail(next.span, "%q needs a weekday after it: write one, such as \"next friday\", or a date", p.quote(next.span))
}

// signed reads an offset, or the amounts to add or subtract.
func (p *parser) signed() (part, error) {
	if !p.is(0, sign, "+", "-") {
		return noPart, p.unexpected(p.peek(0))
	}
	plus := p.next()
	n := p.peek(0)
	if p.is(1, sign, ":") || p.hasInstant() && n.joined && p.isOffset(0, 2, 4) {
		return p.offset(plus, plus)
	}
	factor := 1
	if plus.text == "-" {
		factor = -1
	}
	steps, err := p.amounts(plus, factor)
	if err != nil {
		return noPart, err
	}
	if p.firstSum == nil {
		p.firstSum = &steps[0].span
	}
	p.steps = append(p.steps, steps...)
	return noPart, nil
}

// hasInstant reports whether the words so far are a full date and a time of day, to which only
// an offset is missing.
func (p *parser) hasInstant() bool {
	return p.clock != nil && p.date != nil && p.date.way == absolute && p.firstSum == nil
}

// isOffset reports whether a token is a number of one of these lengths, without a unit.
func (p *parser) isOffset(n int, lengths ...int) bool {
	t := p.peek(n)
	return t.kind == number && slices.Contains(lengths, len(t.text)) && !p.isUnit(n+1)
}

// offset reads an offset after its sign. begin is the sign, or the UTC or GMT before it.
// Without them, an offset could be a sum, a time, or the end of a period: it needs an instant
// before it, as in RFC 3339.
func (p *parser) offset(begin, plus token) (part, error) {
	first := p.next()
	hours, minutes, at := first.text, "00", begin.through(first.span)
	if len(hours) == 4 {
		hours, minutes = hours[:2], hours[2:]
	} else if p.is(0, sign, ":") {
		at, minutes = at.through(p.next().span), ""
		if p.peek(0).kind == number {
			t := p.next()
			minutes, at = t.text, at.through(t.span)
		}
	}
	h, m := atoi(hours), atoi(minutes)
	isUTC := begin.kind == zone
	_, isDated := p.seen[aDate]
	switch {
	case !isUTC && plus.text == "-" && isDated && p.clock == nil:
		return noPart, p.fail(at, "%q is not an offset, because there is no time of day before it: write the time without the sign", p.quote(at))
	case !isUTC && plus.text == "-" && p.clock != nil && p.clock.to == plus.from && !p.clock.exact:
		period := p.clock.through(at)
		return noPart, p.fail(period, "%q can be a period: write only when it begins, or for an offset \"%s UTC%s\"", p.quote(period), p.quote(p.clock.span), p.quote(at))
	case !isUTC && !(p.hasInstant() && first.joined):
		amount := fmt.Sprintf("%s %dh", plus.text, h)
		if m > 0 {
			amount += fmt.Sprintf("%dm", m)
		}
		return noPart, p.fail(at, "%q is neither an amount nor an offset: write %q to count from there, or an offset such as UTC+01:00", p.quote(at), amount)
	case first.kind != number || len(hours) > 2 || len(hours) < 2 && !isUTC || len(minutes) != 2 || m > 59:
		return noPart, p.fail(at, "%q is not an offset: write hours and minutes with two digits each, such as +01:00", p.quote(at))
	}
	seconds := h*3600 + m*60
	if plus.text == "-" {
		seconds = -seconds
	}
	if seconds < -12*3600 || seconds > 14*3600 {
		return noPart, p.fail(at, "%q is not an offset, because no clocks have it: write one from -12:00 to +14:00", p.quote(at))
	}
	return p.setZone(time.FixedZone(fmt.Sprintf("%s%02d:%02d", plus.text, h, m), seconds), at)
}

// amounts reads at least one number with a unit. begin is the word or the sign that introduces
// them, or the first number.
func (p *parser) amounts(begin token, factor int) ([]step, error) {
	var steps []step
	at := begin.span
	for {
		n := p.peek(0)
		example := p.quote(begin.span) + " 2 hours"
		isOne := p.is(0, word, "a", "an") && p.isUnit(1)
		switch {
		case n.kind == end:
			return nil, p.fail(begin.span, "%q needs a number and a unit after it: write them, such as %q", p.quote(begin.span), example)
		case n.kind != number && !isOne:
			return nil, p.fail(n.span, "%q is not a number: write a number and a unit, such as %q", p.quote(n.span), example)
		case p.isJoined(2, ".", ","):
			at := n.through(p.peek(2).span)
			return nil, p.fail(at, "%q is not a whole number: write one, with a smaller unit if necessary", p.quote(at))
		case len(n.text) > 8:
			return nil, p.fail(n.span, "%q is too large: write at most eight digits", p.quote(n.span))
		}
		p.next()
		if !p.isUnit(0) {
			if u := p.peek(0); u.kind == unknown {
				return nil, p.unknownWord(u, unitWords)
			}
			hint := ""
			if n.joined && begin.kind == sign {
				hint = ", or an offset such as UTC+01:00"
			}
			return nil, p.fail(n.span, "%q has no unit: write one after it, such as %q%s", p.quote(n.span), p.quote(n.span)+" minutes", hint)
		}
		u := p.next()
		if p.text[u.from:u.to] == "M" {
			at := n.through(u.span)
			return nil, p.fail(at, "%q can be minutes or months: write %q or %q", p.quote(at), n.text+"m", n.text+" months")
		}
		count := 1
		if !isOne {
			count = atoi(n.text)
		}
		steps = append(steps, step{n: factor * count, unit: units[u.text], span: at.through(u.span)})
		switch {
		case p.is(0, word, "and"):
			p.next()
		case p.peek(0).kind != number || p.is(1, sign, ":") || p.is(1, word, "am", "pm"):
			return steps, nil
		}
		at = p.peek(0).span // of the next amount
	}
}

// amountsFromNow reads amounts without a sign, such as "2 hours from now".
func (p *parser) amountsFromNow(first token) (part, error) {
	steps, err := p.amounts(first, 1)
	if err != nil {
		return noPart, err
	}
	at := first.through(steps[len(steps)-1].span)
	if !p.is(0, word, "from") || !p.is(1, word, "now") {
		return noPart, p.fail(at, "%q is neither a time nor a sum: write %q or %q", p.quote(at), "in "+p.quote(at), "+ "+p.quote(at))
	}
	p.skip(2)
	return p.fromNow(steps)
}

// fromNow sets the time that is some steps after now. Days and longer units are a date, with any
// time of day.
func (p *parser) fromNow(steps []step) (part, error) {
	at := steps[0].through(steps[len(steps)-1].span)
	for _, s := range steps {
		if !s.unit.period() {
			p.steps = append(p.steps, steps...)
			return present, p.once(present, at)
		}
	}
	return p.setDate(date{way: relative, steps: steps, span: at})
}

// seconds reads @ and the seconds since 1970, as GNU date does.
func (p *parser) seconds() (part, error) {
	sign, n := p.next(), p.peek(0)
	if n.kind != number || !n.joined || len(n.text) > 10 {
		return noPart, p.fail(sign.span, "%q needs the seconds since 1970 after it: write them with at most ten digits, such as @2082100320", "@")
	}
	p.next()
	at := sign.through(n.span)
	instant := time.Unix(int64(atoi(n.text)), 0).UTC()
	if _, err := p.setZone(time.UTC, at); err != nil {
		return noPart, err
	}
	if _, err := p.setClock(clock{hour: instant.Hour(), minute: instant.Minute(), second: instant.Second(), span: at}); err != nil {
		return noPart, err
	}
	return p.setDate(date{way: absolute, year: instant.Year(), month: instant.Month(), n: instant.Day(), span: at})
}

// numeric reads a date or a time of day that begins with a number.
func (p *parser) numeric() (part, error) {
	n := p.peek(0)
	length := p.dayLength(0)
	month := length
	if p.is(length, word, "of") {
		month++
	}
	switch {
	case p.isJoined(3, "-"), p.isJoined(3, "."), p.isJoined(3, "/"):
		return p.numericDate()
	case p.isJoined(2, "-", ".", "/") && len(p.peek(2).text) <= 2:
		at := n.through(p.peek(2).span)
		return noPart, p.fail(at, "%q is not understood: write a date as 24 dec or 2035-12-24, and a time as 10:12", p.quote(at))
	case len(n.text) == 6:
		return noPart, p.fail(n.span, "%q can be a date or a time: write a date as 2035-12-24, and a time as 10:12:30", p.quote(n.span))
	case len(n.text) == 8:
		p.next()
		return p.fullDate(n.text[:4], n.text[4:6], n.text[6:], n.span)
	case length > 0 && p.isMonth(month):
		m := p.peek(month)
		return p.dayOfMonth(n, m, n.through(p.skip(month+1)))
	case length == 2:
		at := n.through(p.skip(2))
		return noPart, p.fail(at, "%q has no month: write it with one, such as \"%s dec\"", p.quote(at), p.quote(at))
	case p.isUnit(1):
		return p.amountsFromNow(n)
	case len(n.text) == 4 && p.clock != nil && p.date != nil && p.date.way == yearless && p.date.yearAt == span{}:
		// date(1) prints the year last.
		p.next()
		p.date.way, p.date.year = absolute, atoi(n.text)
		return aDate, nil
	case length > 0 && p.peek(1).kind == unknown && !p.isAbbreviation(1): // possibly a misspelled month
		return noPart, p.unexpected(p.peek(1))
	case length > 0 && p.is(1, sign, ".") && p.peek(2).kind == unknown:
		return noPart, p.unexpected(p.peek(2))
	}
	return p.time(false)
}

// numericDate reads a date of three numbers. The year comes first or last, and has four digits.
// After dots, the day is first. Otherwise, some people write the day first, others the month.
func (p *parser) numericDate() (part, error) {
	first, separator, second := p.next(), p.next(), p.next()
	p.next()
	last := p.next()
	at := first.through(last.span)
	isDay, isMonth := atoi(first.text) <= 31, atoi(first.text) <= 12
	switch {
	case len(second.text) > 2 || len(first.text)+len(last.text) > 6 || len(first.text) != 4 && len(last.text) != 4:
		return noPart, p.fail(at, "%q is not a date with four digits for the year: write one, such as 2035-12-24", p.quote(at))
	case len(first.text) == 4:
		return p.fullDate(first.text, second.text, last.text, at)
	case separator.text == "." || first.text == second.text || isDay && !isMonth:
		return p.fullDate(last.text, second.text, first.text, at)
	case isMonth && atoi(second.text) > 12:
		return p.fullDate(last.text, first.text, second.text, at)
	}
	return noPart, p.fail(at, "%q can be two dates: write %[3]s-%02[4]d-%02[5]d or %[3]s-%02[5]d-%02[4]d", p.quote(at), "",
		last.text, atoi(first.text), atoi(second.text))
}

// fullDate sets a date of digits only. As in ISO 8601, a T and a time may follow.
func (p *parser) fullDate(y, m, d string, at span) (part, error) {
	if n := atoi(m); n < 1 || n > 12 {
		return noPart, p.fail(at, "%q is not a date, because there is no month %s: write one such as 2035-12-24", p.quote(at), m)
	}
	got, err := p.setDate(date{way: absolute, n: atoi(d), month: time.Month(atoi(m)), year: atoi(y), span: at})
	if t := p.peek(0); err == nil && t.text == "t" && t.joined && p.peek(1).kind == number && p.peek(1).joined {
		p.next()
		if _, err := p.time(true); err != nil {
			return noPart, err
		}
	}
	return got, err
}

// dayOfMonth reads the optional year after a day and a month.
func (p *parser) dayOfMonth(d, m token, at span) (part, error) {
	year := 0
	if p.is(0, sign, ",") {
		year = 1
	}
	got := date{way: yearless, n: atoi(d.text), month: months[m.text], span: at}
	y := p.peek(year)
	if y.kind == number && len(y.text) == 4 && y.text[0] != '0' && !p.is(year+1, sign, ":") && !p.is(year+1, word, "am", "pm") && !p.isUnit(year+1) &&
		!(p.is(year+1, sign, "-", ".", "/") && p.peek(year+1).joined) {
		p.skip(year + 1)
		got.way, got.year, got.yearAt, got.span = absolute, atoi(y.text), y.span, at.through(y.span)
	}
	return p.setDate(got)
}

// time reads a time of day. After a T, it may have six digits.
func (p *parser) time(afterT bool) (part, error) {
	first := p.next()
	hours, minutes, seconds, fraction := first.text, "00", "00", ""
	at, short, hasSeconds := first.span, false, false
	read := func(into *string) { // the number behind a sign
		at = at.through(p.next().span)
		*into = ""
		if p.peek(0).kind == number {
			t := p.next()
			*into, at = t.text, at.through(t.span)
		}
	}
	if p.is(0, sign, ":") {
		read(&minutes)
		if p.is(0, sign, ":") && p.peek(0).joined {
			read(&seconds)
			hasSeconds = true
			if p.is(0, sign, ".") && p.peek(0).joined {
				read(&fraction)
				if len(fraction) < 1 || len(fraction) > 9 {
					return noPart, p.fail(at, "%q is not a time of day: write one to nine digits after the point", p.quote(at))
				}
			}
		}
	} else if len(hours) == 4 || len(hours) == 6 && afterT {
		hours, minutes, seconds, short = hours[:2], hours[2:4], (hours[4:] + "00")[:2], true
	}
	half := ""
	if p.is(0, word, "am", "pm") {
		t := p.next()
		half, at = t.text, at.through(t.span)
	}

	if hours == "12" && minutes == "00" && half == "" && p.is(0, word, "noon", "midnight") {
		t := p.next()
		c := clock{hour: 12, span: at.through(t.span)}
		if t.text == "midnight" {
			c.hour, c.midnight = 0, true
		}
		return p.setClock(c)
	}

	c := clock{hour: atoi(hours), minute: atoi(minutes), second: atoi(seconds), short: short && half == "", exact: afterT || len(first.text) == 6 || hasSeconds, span: at}
	c.nanosecond = atoi((fraction + "000000000")[:9])
	problem := ""
	switch {
	case len(p.quote(at)) <= 2:
		problem = "write an hour as 17:00 or 5pm, a day with its month, as 13 dec, and a year with four digits"
	case len(hours) > 2 || len(minutes) != 2 || len(seconds) != 2:
		problem = "write it as 10:12 or 1012"
	case half != "" && (c.hour < 1 || c.hour > 12):
		problem = "write hours from 1 to 12 before " + half
	case c.hour == 24:
		problem = "write 00:00 of the next day"
	case c.hour > 23:
		problem = "write hours from 00 to 23"
	case c.minute > 59:
		problem = "write minutes from 00 to 59"
	case c.second > 59:
		problem = "write seconds from 00 to 59"
	}
	if problem != "" {
		return noPart, p.fail(at, "%q is not a time of day: %s", p.quote(at), problem)
	}
	if half != "" {
		c.hour %= 12
		if half == "pm" {
			c.hour += 12
		}
	}
	return p.setClock(c)
}

// unexpected returns the error for a token in the wrong place.
func (p *parser) unexpected(t token) error {
	quoted := p.quote(t.span)
	_, isUnit := units[t.text]
	switch {
	case t.kind == unknown:
		return p.unknownWord(t, allWords)
	case isUnit && t.kind == word:
		return p.fail(t.span, "%q has no number: write one before it, such as %q", quoted, "+ 2 "+quoted)
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
