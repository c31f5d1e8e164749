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
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"programming-kubernetes.info/cnat-controller/pkg/zones"
)

// zoneNames maps the names of the time zones in lower case to their names. Names such as EST are
// not zones here, but abbreviations: most people mean the time in New York by it, even in summer.
var zoneNames = sync.OnceValue(func() map[string]string {
	names := map[string]string{"z": "UTC"}
	for _, name := range zones.Names() {
		if !slices.Contains([]string{"CET", "EET", "EST", "HST", "MET", "MST", "WET"}, name) {
			names[strings.ToLower(name)] = name
		}
	}
	return names
})

// zonePattern returns a pattern for each name, the longer ones before those with which they begin.
func zonePattern() string {
	var quoted []string
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(zoneNames()))) {
		quoted = append(quoted, regexp.QuoteMeta(name))
	}
	return strings.Join(quoted, "|")
}

// LoadZone returns a time zone by its name, as in a time.
func LoadZone(name string) (*time.Location, error) {
	if known, ok := zoneNames()[lower(name)]; ok {
		return zones.Load(known)
	}
	return nil, errors.New("write a name from the IANA time zone database, such as Europe/Berlin")
}

// zoneName reads the name of a zone.
func (p *parser) zoneName(found []span) error {
	p.zone, _ = LoadZone(p.word(found[1])) // The pattern has only zones.
	p.hasOffset = p.word(found[1]) == "z"
	return p.once(timeZone, found[1])
}

// abbreviated reads an abbreviation of the zone that a text without a zone has, or anything else.
func (p *parser) abbreviated(found []span) error {
	for _, month := range []time.Month{time.January, time.July} {
		if instant := time.Date(p.here.Year(), month, 1, 0, 0, 0, 0, p.here.Location()); lower(instant.Format("MST")) == p.word(found[0]) {
			p.abbreviation = &found[0]
			return p.once(timeZone, found[0])
		}
	}
	return p.unknown(found[0])
}

// isInstant reports whether the words so far are a full date and a time of day, without a sum.
func (s *spec) isInstant() bool {
	return s.clock != nil && s.date != nil && s.date.way == absolute && s.firstSum == nil
}

// isReal reports whether clocks have had an offset since 1980.
func isReal(seconds int) bool {
	return seconds%(15*60) == 0 && seconds >= -12*3600 && seconds <= 14*3600 && (seconds == 0 || seconds <= -3600 || seconds >= 3600)
}

// offset reads an offset from UTC.
func (p *parser) offset(found []span) error {
	hours, minutes := p.number(found[2]), p.number(found[3])
	seconds := hours*3600 + minutes*60
	if p.word(found[1]) == "-" {
		seconds = -seconds
	}
	if !isReal(seconds) || minutes > 59 {
		return p.fail(found[0], "is not an offset that clocks have: write one such as UTC+05:45, or a sum such as + 2 hours")
	}
	p.zone, p.hasOffset = time.FixedZone(fmt.Sprintf("%s%02d:%02d", p.word(found[1]), hours, minutes), seconds), true
	return p.once(timeZone, found[0])
}

// offsetOfInstant reads an offset without UTC before it. It could be a sum, a time, or the end of a period, so
// it needs an instant before it, as in RFC 3339. "9am -10" and "22:00-02:00" can be periods.
func (p *parser) offsetOfInstant(found []span) error {
	isPlus, isShort, at := p.word(found[1]) == "+", found[3].to == 0, p.seen[timeOfDay]
	switch {
	case !p.isInstant(), found[2].to-found[2].from < 2,
		!p.clock.exact && !strings.Contains(p.quote(at), ":"),
		!p.clock.exact && !isPlus && at.to == found[0].from,
		!isPlus && isShort && p.seen[aDate].to > at.to:
		return p.fail(found[0], notAmount)
	}
	return p.offset(found)
}
