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

// signed reads an offset, or the amounts to add or subtract.
func (p *parser) signed() (part, error) {
	if !p.is(0, sign, "+", "-") {
		return noPart, p.unexpected(p.peek(0))
	}
	plus := p.next()
	n := p.peek(0)
	if _, isWeekday := weekdays[n.text]; isWeekday && plus.text == "-" && p.weekday != nil {
		at := p.weekday.through(n.span)
		return noPart, p.fail(at, "%q is several days: write only one", p.quote(at))
	}
	if p.is(1, word, "am", "pm") && p.isPeriod(plus, n) {
		at := p.clock.through(p.peek(1).span)
		return noPart, p.fail(at, "%q can be a period: write only when it begins", p.quote(at))
	}
	// 0100 and 1000-1200 are times without a colon.
	if p.isOffset(0, 4) && (n.text[0] == '0' || p.isPeriod(plus, n)) {
		return p.offset(plus, plus)
	}
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
		isOne := p.is(0, word, "a", "an") && p.isUnit(1)
		switch {
		case n.kind == end:
			return nil, p.fail(begin.span, "%q needs a number and a unit after it: write them, such as %q", p.quote(begin.span), example)
		case n.kind != number && !isOne:
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
		case len(n.text) > 8:
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
			return nil, p.fail(n.span, "%q has no unit: write one after it, such as %q%s", p.quote(n.span), countOf(atoi(n.text), minute), hint)
		}
		u := p.next()
		if p.text[u.from:u.to] == "M" {
			at := n.through(u.span)
			sign := ""
			if begin.kind == number {
				sign = "+ "
			}
			return nil, p.fail(at, "%q can be minutes or months: write %q or %q", p.quote(at), sign+n.text+"m", sign+countOf(atoi(n.text), month))
		}
		count := 1
		if !isOne {
			count = atoi(n.text)
		}
		steps = append(steps, step{n: factor * count, unit: units[u.text], span: at.through(u.span)})
		if p.is(0, sign, ",") && (p.is(1, word, "and") || p.peek(1).kind == number && p.isUnit(2)) {
			p.next()
		}
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
	switch follows := p.peek(0); {
	case follows.kind == unknown && !p.isAbbreviation(0): // "ago" and "before" are not "in"
		return noPart, p.unexpected(follows)
	case p.is(0, word, "from") && !p.is(1, word, "now"):
		return noPart, p.fail(follows.span, "%q needs \"now\" after it: write %q, or a sum such as \"tomorrow noon + 2 hours\"", p.quote(follows.span), p.quote(at)+" from now")
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
