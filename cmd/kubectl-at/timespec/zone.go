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
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"programming-kubernetes.info/cnat-controller/pkg/zones"
)

// zoneName reads the name of a time zone, and the offset behind UTC.
func (p *parser) zoneName() (part, error) {
	t, plus, n := p.next(), p.peek(0), p.peek(1)
	location, err := zones.Load(t.text)
	if err != nil {
		return noPart, p.fail(t.span, "%q cannot be loaded: write an offset instead, such as UTC+01:00", p.quote(t.span))
	}
	if hours, ok := strings.CutPrefix(t.text, "Etc/GMT"); ok && atoi(hours) != 0 {
		return noPart, p.fail(t.span, "%q has the sign of POSIX, so it is UTC%+d: write \"UTC%+d\" or \"UTC%+d\"", p.quote(t.span), -atoi(hours), -atoi(hours), atoi(hours))
	}
	written := lower(p.quote(t.span))
	if (written == "utc" || written == "gmt") && p.is(0, sign, "+", "-") && n.joined {
		if plus.joined && p.isOffset(1, 1, 2, 4) {
			return p.offset(t, p.next())
		}
		if p.isUnit(2) && units[p.peek(2).text] == hour {
			amount := p.quote(n.through(p.peek(2).span))
			at := t.through(p.peek(2).span)
			return noPart, p.fail(at, "%q can be an offset or a sum: write %q or %q", p.quote(at), p.quote(t.span)+plus.text+n.text, p.quote(t.span)+" "+plus.text+" "+amount)
		}
	}
	got, err := p.setZone(location, t.span)
	p.hasOffset = p.hasOffset || written == "z"
	return got, err
}

// LoadZone returns a time zone by its name, as in a time.
func LoadZone(name string) (*time.Location, error) {
	if known, ok := zoneNames()[lower(name)]; ok {
		return zones.Load(known)
	}
	if example, ok := abbreviations()[lower(name)]; ok {
		return nil, fmt.Errorf("an abbreviation can mean several zones, so write a name such as %s", example.zone)
	}
	return nil, errors.New("write a name from the IANA time zone database, such as Europe/Berlin")
}

// remark reads what stands in brackets or parentheses behind an instant with an offset: the name of its zone,
// as in RFC 9557, or a comment, as in an e-mail.
func (p *parser) remark(open token) (part, error) {
	if open.text == "[" && p.peek(1).kind == zone && p.is(2, sign, "]") {
		p.next()
		got, err := p.zoneName()
		p.next()
		return got, err
	}
	for n := 1; open.text == "(" && p.hasOffset && p.isInstant() && p.peek(n).kind != end; n++ {
		if p.is(n, sign, ")") {
			p.skip(n + 1)
			return noPart, nil
		}
	}
	return noPart, p.unexpected(open)
}

// isInstant reports whether the words so far are a full date and a time of day, without a sum.
func (p *parser) isInstant() bool {
	return p.clock != nil && p.date != nil && p.date.way == absolute && p.firstSum == nil
}

// hasInstant reports whether only an offset is missing to an instant. "9am -10" and "0900 -1000" can be periods.
func (p *parser) hasInstant() bool {
	return p.isInstant() && (p.clock.exact || strings.Contains(p.quote(p.clock.span), ":"))
}

// isOffset reports whether a token is a number of one of these lengths, without a unit.
func (p *parser) isOffset(n int, lengths ...int) bool {
	t := p.peek(n)
	return t.kind == number && slices.Contains(lengths, len(t.text)) && !p.isUnit(n+1)
}

// offset is an offset as written.
type offset struct {
	hours, minutes string
	seconds        int
	span
}

// readOffset reads an offset after its sign, which may have any number of digits. begin is the sign, or the UTC
// or GMT before it.
func (p *parser) readOffset(begin, plus token) offset {
	first := p.next()
	o := offset{hours: first.text, minutes: "00", span: begin.through(first.span)}
	if len(o.hours) == 4 {
		o.hours, o.minutes = o.hours[:2], o.hours[2:]
	} else if p.is(0, sign, ":") {
		o.span, o.minutes = o.through(p.next().span), ""
		if p.peek(0).kind == number {
			t := p.next()
			o.minutes, o.span = t.text, o.through(t.span)
		}
	}
	o.seconds = atoi(o.hours)*3600 + atoi(o.minutes)*60
	if plus.text == "-" {
		o.seconds = -o.seconds
	}
	return o
}

// isReal reports whether clocks have had an offset since 1980.
func isReal(seconds int) bool {
	return seconds%(15*60) == 0 && seconds >= -12*3600 && seconds <= 14*3600 && (seconds == 0 || seconds <= -3600 || seconds >= 3600)
}

// offset reads an offset after its sign. Without UTC or GMT before it, it could be a sum, a time, or the
// end of a period: it needs an instant before it, as in RFC 3339.
func (p *parser) offset(begin, plus token) (part, error) {
	first := p.peek(0)
	o := p.readOffset(begin, plus)
	at, h, m := o.span, atoi(o.hours), atoi(o.minutes)
	isUTC := begin.kind == zone
	_, isDated := p.seen[aDate]
	switch {
	case !isUTC && plus.text == "-" && isDated && p.clock == nil:
		return noPart, p.fail(at, "%q is not an offset, because there is no time of day before it: write the time without the sign", p.quote(at))
	case !isUTC && (!p.hasInstant() || !first.joined):
		amount := fmt.Sprintf("%s %dh", plus.text, h)
		if m > 0 {
			amount += fmt.Sprintf("%dm", m)
		}
		return noPart, p.fail(at, "%q is neither an amount nor an offset: write %q to count from there, or an offset such as UTC+01:00", p.quote(at), amount)
	case first.kind != number || len(o.hours) > 2 || len(o.hours) < 2 && !isUTC || len(o.minutes) != 2 || m > 59:
		return noPart, p.fail(at, "%q is not an offset: write hours and minutes with two digits each, such as +01:00", p.quote(at))
	case !isReal(o.seconds):
		return noPart, p.fail(at, "%q is not an offset, because no clocks have it: write one that clocks have, such as +05:45, or a sum such as + 2 hours", p.quote(at))
	}
	got, err := p.setZone(time.FixedZone(fmt.Sprintf("%s%02d:%02d", plus.text, h, m), o.seconds), at)
	p.hasOffset = true
	return got, err
}

func (p *parser) isAbbreviation(n int) bool {
	_, ok := abbreviations()[p.peek(n).text]
	return ok && p.peek(n).kind == unknown
}
