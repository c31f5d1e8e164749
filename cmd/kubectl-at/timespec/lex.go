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
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"programming-kubernetes.info/cnat-controller/cmd/kubectl-at/spelling"
	"programming-kubernetes.info/cnat-controller/pkg/zones"
)

// kind is the kind of a token.
type kind int

const (
	end     kind = iota
	number       // digits
	word         // a word of the grammar
	zone         // the name of a time zone
	sign         // one of signs
	unknown      // anything else
)

// token is a part of the text.
type token struct {
	kind kind
	// text is in lower case, except for a zone, whose name is spelled as in the database.
	text string
	span
	// joined is true if there is no space before the token.
	joined bool
}

// span is the position of a word in the text, in bytes.
type span struct {
	from, to int
}

// through returns the span from the first to the last of two words.
func (s span) through(other span) span {
	return span{min(s.from, other.from), max(s.to, other.to)}
}

const (
	spaces  = " \t\n\v\f\r"
	digits  = "0123456789"
	letters = "abcdefghijklmnopqrstuvwxyz"
	signs   = ":.,/-+@[]()"
)

// lex returns the tokens of a text. The last one is the end.
func lex(text string) []token {
	text = lower(text)
	var tokens []token
	at := 0
	add := func(kind kind, length int) {
		t := token{kind: kind, text: text[at : at+length], span: span{at, at + length}}
		t.joined = at > 0 && !strings.Contains(spaces, text[at-1:at])
		switch kind {
		case zone:
			t.text = zoneNames()[t.text]
		case word:
			t.text = strings.ReplaceAll(t.text, ".", "") // a.m.
		}
		tokens = append(tokens, t)
		at += length
	}
	for at < len(text) {
		rest := text[at:]
		if n := prefix(rest, spaces); n > 0 {
			at += n
		} else if n := prefix(rest, digits); n > 0 {
			add(number, n)
		} else if strings.HasPrefix(rest, "a.m.") || strings.HasPrefix(rest, "p.m.") {
			add(word, 4)
		} else if endsAbbreviation(tokens, rest) {
			at++
		} else if n := zonePrefix(rest); n > 0 {
			add(zone, n)
		} else if n := pathLike(rest); n > 0 {
			add(unknown, n)
		} else if n := prefix(rest, letters); n > 0 && n < wordLength(rest) {
			add(unknown, wordLength(rest))
		} else if n > 0 {
			for _, part := range split(rest[:n]) {
				switch {
				case slices.Contains(zoneWords, part):
					add(zone, len(part))
				case isWord(part):
					add(word, len(part))
				default:
					add(unknown, len(part))
				}
			}
		} else if strings.Contains(signs, rest[:1]) {
			add(sign, 1)
		} else {
			add(unknown, wordLength(rest))
		}
	}
	add(end, 0)
	return tokens
}

// lower returns s with A to Z in lower case, and with ASCII spaces instead of what looks like one or
// like nothing. The length is the same. A time contains no other letters.
func lower(s string) string {
	b := []byte(s)
	for i, r := range s {
		switch {
		case 'A' <= r && r <= 'Z':
			b[i] += 'a' - 'A'
		case r > unicode.MaxASCII && (unicode.IsSpace(r) || unicode.Is(unicode.Cf, r)):
			copy(b[i:], strings.Repeat(" ", utf8.RuneLen(r)))
		}
	}
	return string(b)
}

// endsAbbreviation reports whether the point at the start of rest belongs to the last of the tokens, as in
// "Dec. 24". In 24.dec.2026, it separates.
func endsAbbreviation(tokens []token, rest string) bool {
	n := len(tokens)
	if rest[0] != '.' || n == 0 || n > 1 && tokens[n-2].text == "." && prefix(rest[1:], digits) > 0 {
		return false
	}
	t := tokens[n-1].text
	_, isUnit := units[t]
	_, isWeekday := weekdays[t]
	return tokens[n-1].kind == word && (isUnit || isWeekday || months[t] != 0)
}

// prefix returns how many bytes at the start of s are in chars.
func prefix(s, chars string) int {
	return len(s) - len(strings.TrimLeft(s, chars))
}

// zonePrefix returns the length of the longest name of a time zone at the start of s.
func zonePrefix(s string) int {
	if prefix(s, letters) == 0 {
		return 0
	}
	const chars = letters + digits + "_/"
	for n := prefix(s[:min(len(s), 40)], chars+"+-"); n > 0; n-- { // No name is longer.
		if n < len(s) && strings.Contains(chars, s[n:n+1]) {
			continue
		}
		if _, ok := zoneNames()[s[:n]]; ok {
			return n
		}
	}
	return 0
}

// wordLength returns how many bytes precede the first space, digit or sign in s.
func wordLength(s string) int {
	if n := strings.IndexAny(s, spaces+digits+signs); n >= 0 {
		return n
	}
	return len(s)
}

// pathLike returns the length of a prefix of s that looks like the name of a time zone:
// it starts with a letter, and contains a slash or an underscore between letters.
func pathLike(s string) int {
	n := prefix(s, letters)
	if n == 0 || n+1 >= len(s) || !strings.Contains("/_", s[n:n+1]) || !strings.Contains(letters, s[n+1:n+2]) {
		return 0
	}
	return prefix(s, letters+digits+"_/-+")
}

// split returns the words that are joined in s, or s itself if it is a word or contains
// anything else. Each part has at least two letters, so that a misspelled word is seldom
// split. The plural of a word is not: "mondays" is not "mon days".
func split(s string) []string {
	if isWord(s) || isWord(strings.TrimSuffix(s, "s")) || len(s) > 40 {
		return []string{s}
	}
	for n := len(s) - 2; n >= 2; n-- {
		if !isWord(s[:n]) {
			continue
		}
		if rest := split(s[n:]); isWord(rest[0]) {
			return append([]string{s[:n]}, rest...)
		}
	}
	return []string{s}
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

var unitNames = [...]string{"second", "minute", "hour", "day", "week", "month", "year"}

// period reports whether a unit is counted by the calendar, not as elapsed time.
func (u unit) period() bool {
	return u >= day
}

// countOf returns a number of units in words.
func countOf(n int, u unit) string {
	if n == 1 {
		return "1 " + unitNames[u]
	}
	return fmt.Sprintf("%d %ss", n, unitNames[u])
}

// units, months, weekdays, numbers, timesOfDay and keywords are the words of the grammar.
var (
	units = map[string]unit{
		"s": second, "sec": second, "secs": second, "second": second, "seconds": second,
		"m": minute, "min": minute, "mins": minute, "minute": minute, "minutes": minute,
		"h": hour, "hr": hour, "hrs": hour, "hour": hour, "hours": hour,
		"d": day, "day": day, "days": day,
		"w": week, "week": week, "weeks": week,
		"month": month, "months": month,
		"y": year, "year": year, "years": year,
	}
	months = map[string]time.Month{
		"jan": time.January, "january": time.January, "feb": time.February, "february": time.February,
		"mar": time.March, "march": time.March, "apr": time.April, "april": time.April, "may": time.May,
		"jun": time.June, "june": time.June, "jul": time.July, "july": time.July,
		"aug": time.August, "august": time.August, "sep": time.September, "sept": time.September, "september": time.September,
		"oct": time.October, "october": time.October, "nov": time.November, "november": time.November,
		"dec": time.December, "december": time.December,
	}
	weekdays = map[string]time.Weekday{
		"mon": time.Monday, "monday": time.Monday, "tue": time.Tuesday, "tues": time.Tuesday, "tuesday": time.Tuesday,
		"wed": time.Wednesday, "wednesday": time.Wednesday,
		"thu": time.Thursday, "thur": time.Thursday, "thurs": time.Thursday, "thursday": time.Thursday,
		"fri": time.Friday, "friday": time.Friday, "sat": time.Saturday, "saturday": time.Saturday,
		"sun": time.Sunday, "sunday": time.Sunday,
	}
	numbers = map[string]int{
		"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6,
		"seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12,
	}
	// timesOfDay are too vague for a time. An error says one that can be meant.
	timesOfDay = map[string]string{"morning": "09:00", "afternoon": "15:00", "evening": "19:00", "night": "21:00"}
	keywords   = []string{
		"now", "in", "and", "from", "at", "on", "am", "pm", "noon", "midday", "midnight", "teatime",
		"today", "tonight", "tomorrow", "this", "next", "the", "of", "st", "nd", "rd", "th",
	}
	// zoneWords are names of zones that may be joined to other words.
	zoneWords = []string{"utc", "z"}

	unitWords = slices.Sorted(maps.Keys(units))
	allWords  = slices.Sorted(slices.Values(slices.Concat(unitWords, keywords, zoneWords,
		slices.Collect(maps.Keys(months)), slices.Collect(maps.Keys(weekdays)),
		slices.Collect(maps.Keys(numbers)), slices.Collect(maps.Keys(timesOfDay)))))
)

func isWord(s string) bool {
	_, found := slices.BinarySearch(allWords, s)
	return found
}

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

// abbreviation is what an abbreviation such as PST can mean.
type abbreviation struct {
	zone   string
	offset string
	// offsets are all that it can mean.
	offsets []string
}

// abbreviations maps the abbreviations of the time zones in lower case to an example of each: the
// zone where most people use it, or else the first one.
var abbreviations = sync.OnceValue(func() map[string]abbreviation {
	all := map[string]abbreviation{}
	most := []string{
		"America/New_York", "America/Chicago", "America/Denver", "America/Los_Angeles", "America/Anchorage", "America/Halifax",
		"Europe/London", "Europe/Berlin", "Europe/Athens", "Europe/Lisbon", "Europe/Moscow",
		"Asia/Kolkata", "Asia/Shanghai", "Asia/Seoul", "Australia/Perth", "Australia/Sydney", "Pacific/Auckland", "Pacific/Honolulu",
	}
	for _, name := range slices.Concat(most, zones.Names()) {
		location, err := zones.Load(name)
		if err != nil || zoneNames()[lower(name)] == "" { // The parser does not accept MET, so no error may suggest it.
			continue
		}
		for _, month := range []time.Month{time.January, time.July} {
			instant := time.Date(2026, month, 1, 0, 0, 0, 0, location)
			short, _ := instant.Zone()
			short = lower(short)
			if prefix(short, letters) != len(short) || short == "utc" {
				continue
			}
			offset := instant.Format("-07:00")
			found, ok := all[short]
			if !ok {
				found = abbreviation{zone: name, offset: offset}
			}
			found.offsets = append(found.offsets, offset)
			all[short] = found
		}
	}
	return all
})

var sortedZoneNames = sync.OnceValue(func() []string {
	return slices.Sorted(maps.Keys(zoneNames()))
})

// nearestZone returns the name of a time zone that is similar to s, or whose last part is
// s.
func nearestZone(s string) (string, bool) {
	for _, name := range sortedZoneNames() {
		if strings.HasSuffix(name, "/"+s) {
			return zoneNames()[name], true
		}
	}
	name, found := spelling.Nearest(s, sortedZoneNames())
	return zoneNames()[name], found
}
