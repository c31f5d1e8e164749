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
	return p.setZone(location, t.span)
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
	case !isUTC && p.isPeriod(plus, first):
		period, hint := p.clock.through(at), ""
		if h <= 12 {
			hint = fmt.Sprintf(", or for an offset \"%s UTC%s\"", p.quote(p.clock.span), strings.ReplaceAll(p.quote(at), " ", ""))
		}
		return noPart, p.fail(period, "%q can be a period: write only when it begins%s", p.quote(period), hint)
	case !isUTC && (!p.hasInstant() || !first.joined):
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

// isPeriod reports whether a sign and a number follow a time of day as in 22:00-02:00 or 22:00 - 02:00.
// Behind "22:00 -02:00", there is an offset.
func (p *parser) isPeriod(plus, n token) bool {
	if plus.text != "-" || p.clock == nil || p.clock.exact {
		return false
	}
	return p.clock.to == plus.from || !n.joined && strings.TrimSpace(p.text[p.clock.to:plus.from]) == ""
}

func (p *parser) isAbbreviation(n int) bool {
	_, ok := abbreviations()[p.peek(n).text]
	return ok && p.peek(n).kind == unknown
}
