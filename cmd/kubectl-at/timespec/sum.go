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
	"strings"
)

// signed reads an offset, or the amounts to add or subtract.
func (p *parser) signed() (part, error) {
	if !p.is(0, sign, "+", "-") {
		return noPart, p.unexpected(p.peek(0))
	}
	plus, n := p.next(), p.peek(0)
	factor := 1
	if plus.text == "-" {
		factor = -1
		if err := p.checkPeriod(plus); err != nil {
			return noPart, err
		}
		if n.joined && n.kind != number && n.kind != end { // --name x
			at := plus.span
			for p.peek(0).joined && p.peek(0).kind != end {
				at = at.through(p.next().span)
			}
			return noPart, p.unknown(at)
		}
	}
	// 0100 is a time without a colon.
	if p.isOffset(0, 4) && n.text[0] == '0' || p.is(1, sign, ":") || p.hasInstant() && n.joined && p.isOffset(0, 2, 4) {
		return p.offset(plus, plus)
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

// checkPeriod returns an error if a minus and what follows can be the end of a period, as in 22:00-02:00,
// mon-fri or dec 24-26.
func (p *parser) checkPeriod(minus token) error {
	n := p.peek(0)
	_, isWeekday := weekdays[n.text]
	isNumber := n.kind == number && !p.isUnit(1)
	var days *span
	switch {
	case p.date != nil && p.date.way != relative && (p.isMonth(0) || isNumber && len(n.text) <= 2 && !p.is(1, sign, ":")) && p.isBehind(p.date.span, minus):
		days = &p.date.span
	case p.weekday != nil && isWeekday && p.isBehind(p.weekday.span, minus):
		days = &p.weekday.span
	case p.clock != nil && !p.clock.exact && p.isBehind(p.clock.span, minus) && (isNumber || p.is(0, word, "noon", "midday", "midnight")):
		// "22:00 -02:00" has an offset.
		if p.clock.to != minus.from && n.joined && strings.Contains(p.quote(p.clock.span), ":") {
			return nil
		}
		return p.period(minus)
	default:
		return nil
	}
	at := days.through(n.span)
	return p.fail(at, "%q is several days: write only one", p.quote(at))
}

// isBehind reports whether there is nothing but the point of an abbreviation between a word and a token.
func (p *parser) isBehind(at span, t token) bool {
	return at.to <= t.from && strings.TrimSpace(strings.TrimPrefix(p.text[at.to:t.from], ".")) == ""
}

// period returns the error for a time of day, a minus, and another time of day.
func (p *parser) period(minus token) error {
	at, hint := p.clock.span, ""
	if p.peek(0).kind != number {
		at = at.through(p.next().span)
	} else {
		o := p.readOffset(minus, minus)
		at = at.through(o.span)
		if p.is(0, word, "am", "pm") {
			at = at.through(p.next().span)
		} else if isReal(o.seconds) {
			hint = fmt.Sprintf(", or for an offset \"%s UTC%s\"", p.quote(p.clock.span), strings.ReplaceAll(p.quote(o.span), " ", ""))
		}
	}
	return p.fail(at, "%q can be a period: write only when it begins%s", p.quote(at), hint)
}

// amounts reads at least one number with a unit. begin is the word or the sign that introduces
// them, or the first number.
func (p *parser) amounts(begin token, factor int) ([]step, error) {
	var steps []step
	at := begin.span
	for {
		n := p.peek(0)
		example := "in 2 hours"
		if begin.kind == sign {
			example = begin.text + " 2 hours"
		}
		count, isCount := p.count(0)
		switch {
		case n.kind == end:
			return nil, p.fail(begin.span, "%q needs a number and a unit after it: write them, such as %q", p.quote(begin.span), example)
		case !isCount:
			at := n.span
			if p.is(0, word, "a", "an") { // "a few"
				at = at.through(p.peek(1).span)
			}
			return nil, p.fail(at, "%q is not a number: write a number and a unit, such as %q", p.quote(at), example)
		case p.isJoined(2, ":"):
			at := n.through(p.peek(2).span)
			return nil, p.fail(at, "%q is a time of day: write an amount as 1h30m, or omit %q", p.quote(at), p.quote(begin.span))
		case p.isJoined(2, ".", ","):
			at := n.through(p.peek(2).span)
			return nil, p.fail(at, "%q is not a whole number: write one, with a smaller unit if necessary", p.quote(at))
		case n.kind == number && len(n.text) > 8:
			return nil, p.fail(n.span, "%q is too large: write at most eight digits", p.quote(n.span))
		}
		p.next()
		if !p.isUnit(0) {
			if u := p.peek(0); u.kind == unknown {
				return nil, p.unknownWord(u, unitWords)
			}
			hint := ""
			if begin.kind == sign && (n.joined || p.zone != nil) {
				hint = ", or an offset such as UTC+01:00"
			}
			return nil, p.fail(n.span, "%q has no unit: write one after it, such as %q%s", p.quote(n.span), countOf(count, minute), hint)
		}
		u := p.next()
		if p.text[u.from:u.to] == "M" {
			at := n.through(u.span)
			sign := ""
			if begin.kind == number {
				sign = "+ "
			}
			return nil, p.fail(at, "%q can be minutes or months: write %q or %q", p.quote(at), fmt.Sprintf("%s%dm", sign, count), sign+countOf(count, month))
		}
		unit := units[u.text]
		steps = append(steps, step{n: factor * count, unit: unit, span: at.through(u.span)})
		// The 30 of 1h30.
		if m := p.peek(0); (unit == hour || unit == minute) && m.joined && p.isOffset(0, 2) && m.text < "60" && !p.is(1, sign, ":") && !p.is(1, word, "am", "pm") {
			steps = append(steps, step{n: factor * atoi(m.text), unit: unit - 1, span: p.next().span})
		}
		if _, isCount := p.count(1); p.is(0, sign, ",") && (p.is(1, word, "and") || isCount && p.isUnit(2)) {
			p.next()
		}
		_, isCount = p.count(0)
		switch {
		case p.is(0, word, "and"):
			p.next()
		case !isCount || p.is(1, sign, ":") || p.is(1, word, "am", "pm"):
			return steps, nil
		}
		at = p.peek(0).span // of the next amount
	}
}

// count returns the number that a token is, in digits or as a word.
func (p *parser) count(n int) (count int, ok bool) {
	t := p.peek(n)
	if t.kind == number {
		return atoi(t.text), true
	}
	if t.kind != word || p.is(n, word, "a", "an") && !p.isUnit(n+1) {
		return 0, false
	}
	count, ok = numbers[t.text]
	return count, ok
}

// hours matches an amount that is a time of day for many.
var hours = regexp.MustCompile(`^([01]?[0-9]|2[0-3]) ?h([0-5][0-9])?$`)

// amountsFromNow reads amounts without a sign, such as "2 hours from now".
func (p *parser) amountsFromNow(first token) (part, error) {
	steps, err := p.amounts(first, 1)
	if err != nil {
		return noPart, err
	}
	at := first.through(steps[len(steps)-1].span)
	clock := hours.FindStringSubmatch(lower(p.quote(at)))
	switch follows := p.peek(0); {
	case follows.kind == unknown && !p.isAbbreviation(0): // "ago" and "before" are not "in"
		return noPart, p.unexpected(follows)
	case p.is(0, word, "from") && !p.is(1, word, "now"):
		return noPart, p.fail(follows.span, "%q needs \"now\" after it: write %q, or a sum such as \"tomorrow noon + 2 hours\"", p.quote(follows.span), p.quote(at)+" from now")
	case follows.text != "from" && clock != nil:
		return noPart, p.fail(at, "%q can be a time of day or an amount: write %02d:%02d, %q or %q", p.quote(at), atoi(clock[1]), atoi(clock[2]), "in "+p.quote(at), "+ "+p.quote(at))
	case follows.text != "from":
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
