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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	number = `(?:[0-9]{1,8}|(?:an?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)\b)`
	units  = `(?:seconds?|secs?|s|minutes?|mins?|months?|m|hours?|hrs?|h|days?|d|weeks?|w|years?|y)\.?`
	amount = number + ` *` + units
)

// names stand for parts of patterns. A space stands for any number of them.
var names = strings.NewReplacer(
	" ", ` *`,
	"AT", `(?:at *)?`,
	"ON", `(?:on *)?(?:the *)?`,
	"DD", `([0-9]{1,2})`,
	"MM", `([0-9]{2})`,
	"YYYY", `([0-9]{4})`,
	"HALF", `(?:([ap])(?:m|\.m\.))`,
	"MONTH", `(january|jan|february|feb|march|mar|april|apr|may|june?|july?|jun|jul|august|aug|september|sept?|october|oct|november|nov|december|dec)\.?`,
	"WEEKDAY", `(monday|mon|tuesday|tues?|wednesday|wed|thursday|thurs?|thu|friday|fri|saturday|sat|sunday|sun)\.?`,
	"NUMBER", number, "UNIT", units,
	// The digits are those of the smaller unit, as in 1h30.
	"AMOUNTS", `(`+amount+`(?: *,? *(?:and)? *`+amount+`)*)([0-5][0-9])?`,
)

// rule is a part of a time, or a mistake.
type rule struct {
	pattern *regexp.Regexp
	read    func(p *parser, found []span) error
}

const (
	notDate   = `is not a date: write one as 24 dec or 2035-12-24, with a year of four digits, and a time as 10:12`
	notNumber = `is not a time of day: write one from 00:00 to 23:59, such as 10:12, 1012 or 5pm, a day with its month, as 13 dec, and a year with four digits`
	notDay    = `is not a day: write a date such as 24 dec, a weekday such as "monday next week", or a sum such as "+ 4 weeks"`
	notAmount = `can be an amount, an offset, or the end of a period: write an amount such as "+ 2 hours", an offset such as UTC+02:00, or only when a period begins`
)

// rules returns what a text can have, in the order in which it is tried.
var rules = sync.OnceValue(func() (all []rule) {
	add := func(pattern string, read func(*parser, []span) error) {
		all = append(all, rule{regexp.MustCompile(`^(?:` + names.Replace(pattern) + `)`), read})
	}
	refuse := func(pattern, problem string) {
		add(pattern, func(p *parser, found []span) error { return p.fail(found[0], "%s", problem) })
	}

	add(`now`, func(p *parser, found []span) error { return p.once(present, found[0]) })

	add(`ON(today|tonight|tomorrow|day after tomorrow)`, (*parser).dayInWords)
	add(`ON(?:(this|next) )?WEEKDAY`, (*parser).dayOfWeek)
	add(`(?:of )?(?:the )?(this|next) week`, (*parser).week)
	refuse(`(?:of )?(?:this|next) UNIT`, notDay)

	for _, separator := range []string{`-`, `\.`, `/`} {
		add(strings.ReplaceAll(`ONYYYY_(?:DD|MONTH)_DD`, "_", separator), (*parser).yearFirst)
		add(strings.ReplaceAll(`ONDD_(?:DD|MONTH)_YYYY`, "_", separator), (*parser).yearLast)
	}
	add(`ONYYYYMM()MM`, (*parser).yearFirst)
	refuse(`[0-9]+[-./][0-9a-z]+[-./][0-9]+`, notDate)
	add(`ONDD(?:st|nd|rd|th|[-./])? (?:of )?MONTH(?: ,? ([1-9][0-9]{3})( HALF)?)?`, (*parser).dayOfMonth)
	add(`ONMONTH (?:the )?DD(?:st|nd|rd|th)?(?:[\s,]+([1-9][0-9]{3})( HALF)?)?`, (*parser).dayOfMonth)
	refuse(`MONTH`, `has no day: write it with one, such as dec 24`)
	refuse(`ONDD(?:st|nd|rd|th)`, `has no month: write it with one, such as 24th dec`)

	refuse(`(?:in |[+-] )?[0-9]+[.,][0-9]+ UNIT`, `is not a whole number: write one, with a smaller unit if necessary`)
	add(`in AMOUNTS`, (*parser).fromNow)
	add(`AMOUNTS from now`, (*parser).fromNow)
	add(`AMOUNTS`, func(p *parser, found []span) error {
		return p.fail(found[0], `is neither a time of day nor a sum: write a time of day as 17:00, or "in %[2]s" or "+ %[2]s"`, p.quote(found[0]))
	})
	add(`([+-]) AMOUNTS`, (*parser).sum)
	refuse(`(?:this |in the )?(?:morning|afternoon|evening|night)`, `is not a time of day: write one, such as 09:00 or 19:00`)
	refuse(`in(?: \S+)?`, `needs whole numbers with units: write them as in 1 hour and 30 minutes`)

	add(`AT(?:12(?::00)? )?(noon|midday|midnight)|AT(teatime)`, (*parser).clockInWords)
	refuse(`[0-9]+[-./][0-9]{1,2}`, notDate)
	// The groups are the same in these patterns.
	add(`(at |t)?MMMMMM?()(?: HALF)?`, (*parser).clockInDigits)
	add(`(at |t)?DD : MM(?::MM(?:\.([0-9]{1,9}))?)?(?: HALF)?`, (*parser).clockTime)
	add(`(at |t)?DD()()() HALF`, (*parser).clockTime)
	refuse(`AT[0-9]+`, notNumber)

	refuse(`etc/gmt[+-][1-9][0-9]?`, `has the sign of POSIX, which is the opposite one: write an offset such as UTC+05:00`)
	refuse(`(?:utc|gmt) [+-][0-9]+ h(?:ou)?r?s?`, `can be an offset or a sum: write an offset such as UTC+02:00, or a space before the number`)
	add(`(?:utc|gmt)([+-])DD(?::?MM)?`, (*parser).offset)
	add(`(`+zonePattern()+`)`, (*parser).zoneName)
	refuse(`UNIT|HALF`, `has no number: write one before it, such as "+ 1 week" or 10am`)
	add(`([+-])DD(?::?MM)?`, (*parser).offsetOfInstant)
	refuse(`[+-] (?:[0-9]+ )?(?:WEEKDAY|MONTH|HALF|noon|midday|midnight)`, `can be the end of a period: write only when it begins`)
	add(`-+[a-z]\S*`, func(p *parser, found []span) error { return p.unknown(found[0]) }) // a flag
	refuse(`[+-](?: [0-9:]+)?`, notAmount)
	add(`[^\s0-9:.,/+@()\[\]-]+(?:/[a-z_/]+)*|.`, (*parser).abbreviated)
	return all
})

// indexOf returns the index of the last beginning with which a word begins: month begins with mo, not only with m.
func indexOf(word, beginnings string) (index int) {
	for i, beginning := range strings.Fields(beginnings) {
		if strings.HasPrefix(word, beginning) {
			index = i
		}
	}
	return index
}

// month returns the month that a name means, or digits.
func (p *parser) month(name, digits span) time.Month {
	if p.word(name) == "" {
		return time.Month(p.number(digits))
	}
	return time.Month(1 + indexOf(p.word(name), "jan feb mar apr may jun jul aug sep oct nov dec"))
}

// dayInWords reads today, tonight, tomorrow, or the day after tomorrow.
func (p *parser) dayInWords(found []span) error {
	word := p.word(found[1])
	days := step{indexOf(word, "to tomorrow day"), day, found[0]}
	return p.setDate(date{way: relative, tonight: word == "tonight", steps: []step{days}}, found[0])
}

func (p *parser) dayOfWeek(found []span) error {
	p.weekday = &weekday{day: time.Weekday(indexOf(p.word(found[2]), "sun mon tue wed thu fri sat"))}
	if which := p.word(found[1]); which != "" {
		p.weekday.relative, p.weeks = true, indexOf(which, "this next")
	}
	return p.once(aWeekday, found[0])
}

func (p *parser) week(found []span) error {
	p.weeks = indexOf(p.word(found[1]), "this next")
	return p.once(aWeek, found[0])
}

func (p *parser) yearFirst(found []span) error {
	return p.setDate(date{way: absolute, year: p.number(found[1]), month: p.month(found[3], found[2]), n: p.number(found[4])}, found[0])
}

// yearLast reads a date whose year is at the end. After dots, the day is first. Otherwise, some people
// write the day first, others the month.
func (p *parser) yearLast(found []span) error {
	d := date{way: absolute, year: p.number(found[4]), month: p.month(found[3], found[2]), n: p.number(found[1])}
	isNamed, hasDots := p.word(found[3]) != "", p.lower[found[1].to] == '.'
	switch {
	case isNamed || hasDots || d.n > 12 || d.n == int(d.month):
	case d.month > 12:
		d.n, d.month = int(d.month), time.Month(d.n)
	default:
		return p.fail(found[0], "can be two dates: write %04d-%02d-%02d or %04d-%02d-%02d", d.year, d.n, d.month, d.year, d.month, d.n)
	}
	return p.setDate(d, found[0])
}

// dayOfMonth reads a day and a month in any order, with or without a year. Digits before am or pm are a time.
func (p *parser) dayOfMonth(found []span) error {
	n, name, year, half := found[1], found[2], found[3], found[4]
	if p.number(n) == 0 {
		n, name = name, n
	}
	d := date{way: yearless, n: p.number(n), month: p.month(name, span{})}
	switch {
	case half.to > 0:
		p.at, found[0].to = year.from, year.from
	case year.to > 0:
		d.setYear(p.number(year), year)
	}
	return p.setDate(d, found[0])
}

// fromNow sets the time that is some amounts after now. Days and longer units are a date, with any
// time of day.
func (p *parser) fromNow(found []span) error {
	steps, err := p.amounts(1, found)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(steps, step.isTimed) {
		p.steps = append(p.steps, steps...)
		return p.once(present, found[0])
	}
	return p.setDate(date{way: relative, steps: steps}, found[0])
}

func (p *parser) sum(found []span) error {
	factor := 1
	if p.word(found[1]) == "-" {
		factor = -1
	}
	steps, err := p.amounts(factor, slices.Delete(found, 1, 2))
	if p.firstSum == nil && err == nil {
		p.firstSum = &steps[0].span
	}
	p.steps = append(p.steps, steps...)
	return err
}

var oneAmount = regexp.MustCompile(`(` + number + `) *(` + units + `)`)

// amounts returns what a pattern with AMOUNTS has found.
func (p *parser) amounts(factor int, found []span) (steps []step, err error) {
	at := found[0].from // The words before the first amount belong to it.
	for _, m := range oneAmount.FindAllStringSubmatchIndex(p.word(found[1]), -1) {
		n, name := span{found[1].from + m[2], found[1].from + m[3]}, span{found[1].from + m[4], found[1].from + m[5]}
		if strings.TrimSuffix(p.text[name.from:name.to], ".") == "M" {
			return nil, p.fail(span{n.from, name.to}, `can be minutes or months: write m, or months in full`)
		}
		count, err := strconv.Atoi(p.word(n))
		if err != nil {
			count = max(1, indexOf(p.word(n), "a one two three four five six seven eight nine ten eleven twelve"))
		}
		steps = append(steps, step{factor * count, unit(indexOf(p.word(name), "s m h d w mo y")), span{at, name.to}})
		at = name.to
	}
	switch last := steps[len(steps)-1].unit; {
	case found[2] == span{}:
	case last == minute || last == hour:
		steps = append(steps, step{factor * p.number(found[2]), last - 1, found[2]})
	default: // in 2 days10:12
		p.at = found[2].from
	}
	return steps, nil
}

func (p *parser) clockInWords(found []span) error {
	c := clock{hour: 12}
	switch {
	case p.word(found[2]) != "":
		c.hour = 16
	case p.word(found[1]) == "midnight":
		c.hour, c.midnight = 0, true
	}
	return p.setClock(c, found[0])
}

// clockInDigits reads a time such as 1012, or the year at the end of what date(1) prints.
func (p *parser) clockInDigits(found []span) error {
	switch {
	case found[4].to > 0 && p.word(found[1]) != "t":
		return p.fail(found[0], "can be a date or a time: write a date as 2035-12-24, and a time as 10:12:30")
	case found[1].to+found[6].to == 0 && p.clock != nil && p.date != nil && p.date.way == yearless:
		p.date.setYear(p.number(found[0]), found[0])
		return nil
	}
	return p.clockTime(found)
}

// clockTime reads the hours, the minutes, the seconds, the fraction, and the half of the day.
func (p *parser) clockTime(found []span) error {
	before, half := strings.TrimSpace(p.word(found[1])), p.word(found[6])
	c := clock{hour: p.number(found[2]), minute: p.number(found[3]), second: p.number(found[4])}
	c.nanosecond, _ = strconv.Atoi((p.word(found[5]) + "000000000")[:9])
	c.short = before == "" && half == "" && found[3].from == found[2].to
	c.exact = before == "t" || p.word(found[4]) != ""
	switch {
	case c.hour > 23 || c.minute > 59 || c.second > 59, half != "" && (c.hour < 1 || c.hour > 12):
		return p.fail(found[0], notNumber)
	case half == "a":
		c.hour %= 12
	case half == "p":
		c.hour = c.hour%12 + 12
	}
	return p.setClock(c, found[0])
}
