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
	"strings"
	"time"
)

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
	case p.isJoined(2, ".", ",") && p.isUnit(3):
		return p.amountsFromNow(n)
	case p.isJoined(2, "-") && p.isMonth(3):
		at := n.through(p.peek(3).span)
		return noPart, p.fail(at, "%q is several days: write only one", p.quote(at))
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
		p.date.setYear(atoi(n.text), p.next().span) // date(1) prints the year last.
		return aDate, nil
	case length > 0 && p.peek(1).kind == unknown && !p.isAbbreviation(1): // possibly a misspelled month
		return noPart, p.unexpected(p.peek(1))
	case length > 0 && p.is(1, sign, ".") && p.peek(2).kind == unknown:
		return noPart, p.unexpected(p.peek(2))
	}
	return p.time(false)
}

// numericDate reads a date of three numbers, or with the name of a month between two. The year comes
// first or last, and has four digits. After dots, the day is first. Otherwise, some people write the day
// first, others the month.
func (p *parser) numericDate() (part, error) {
	first, separator, second := p.next(), p.next(), p.next()
	isNamed := second.kind == word
	if isNamed {
		second.text = fmt.Sprintf("%02d", months[second.text])
	}
	p.next()
	last := p.next()
	at := first.through(last.span)
	m, n := atoi(first.text), atoi(second.text)
	switch {
	case len(second.text) > 2 || len(first.text)+len(last.text) > 6 || len(first.text) != 4 && len(last.text) != 4:
		return noPart, p.fail(at, "%q is not a date with four digits for the year: write one, such as 2035-12-24", p.quote(at))
	case len(first.text) == 4:
		return p.fullDate(first.text, second.text, last.text, at)
	case isNamed || separator.text == "." || m == n || m > 12:
		return p.fullDate(last.text, second.text, first.text, at)
	case n > 12:
		return p.fullDate(last.text, first.text, second.text, at)
	}
	return noPart, p.fail(at, "%q can be two dates: write %s-%02d-%02d or %s-%02d-%02d", p.quote(at), last.text, m, n, last.text, n, m)
}

// fullDate sets a date of digits only. As in ISO 8601, a T and a time may follow.
func (p *parser) fullDate(y, m, d string, at span) (part, error) {
	if n := atoi(m); n < 1 || n > 12 {
		order := ""
		if strings.Trim(p.quote(at), digits) == "" {
			order = "it is read as YYYYMMDD, and "
		}
		return noPart, p.fail(at, "%q is not a date, because %sthere is no month %s: write one such as 2035-12-24", p.quote(at), order, m)
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
		(!p.is(year+1, sign, "-", ".", "/") || !p.peek(year+1).joined) {
		p.skip(year + 1)
		got.setYear(atoi(y.text), y.span)
		got.span = at.through(y.span)
	}
	return p.setDate(got)
}

// dayLength returns how many tokens the number of a day has, such as 24, 24th, or 24. or 24- before
// a month. It is 0 for anything else.
func (p *parser) dayLength(n int) int {
	t, suffix := p.peek(n), p.peek(n+1)
	switch {
	case t.kind != number || len(t.text) > 2:
		return 0
	case suffix.joined && (p.is(n+1, word, "st", "nd", "rd", "th") || p.is(n+1, sign, "-", ".", "/") && p.isMonth(n+2)):
		return 2
	}
	return 1
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

	if hours == "12" && minutes == "00" && half == "" && p.is(0, word, "noon", "midday", "midnight") {
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
	case len(hours) > 8:
		problem = "write a date as 2035-12-24, a time as 10:12, and the seconds since 1970 as @2082100320"
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
