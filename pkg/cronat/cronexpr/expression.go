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

// Package cronexpr has the times of a cron expression in a time zone.
package cronexpr

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// minEvery is the minimum interval of @every: that of all other expressions.
const minEvery = time.Minute

// starBit is the bit with which robfig/cron marks a star field.
const starBit = 1 << 63

// usage says how to write a cron expression.
const usage = `write minute, hour, day of month, month and day of week, such as "0 3 * * 1-5", or @hourly, @daily, @weekly, @monthly, @yearly or "@every 90m"`

// field is a field of a cron expression.
type field struct {
	name     string
	min, max int
	names    []string // of the values from min
	allowed  string   // a description of the values
	unit     string   // the plural of what a step counts
	period   string   // after which the values start again
}

var fields = []field{
	{name: "minute", max: 59, allowed: "numbers from 0 to 59", unit: "minutes", period: "hour"},
	{name: "hour", max: 23, allowed: "numbers from 0 to 23", unit: "hours", period: "day"},
	{name: "day of month", min: 1, max: 31, allowed: "numbers from 1 to 31", unit: "days", period: "month"},
	{
		name: "month", min: 1, max: 12, allowed: "numbers from 1 to 12 or names from JAN to DEC", unit: "months", period: "year",
		names: []string{"JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"},
	},
	{
		name: "day of week", max: 6, allowed: "numbers from 0 (Sunday) to 6 or names from SUN to SAT", unit: "days", period: "week",
		names: []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"},
	},
}

var (
	everyPattern = regexp.MustCompile(`^@every (([0-9]+(\.[0-9]+)?[hms])+)$`)
	itemPattern  = regexp.MustCompile(`^([*?]|(\w+)(?:-(\w+))?)(?:/(0*[1-9][0-9]{0,3}))?$`)
)

// parseExpression returns a cron expression. It accepts less than robfig/cron, which ignores what
// it does not understand, such as the 5 of *-5. The error says what to write. The rules of the
// CRD accept the same.
func parseExpression(text string) (cron.Schedule, error) {
	words := strings.Fields(text)
	switch {
	case strings.HasPrefix(text, "@every"):
		return parseEvery(text)
	case strings.HasPrefix(text, "@"):
		if _, err := cron.ParseStandard(text); err != nil {
			return nil, errors.New(usage)
		}
	case len(words) != len(fields):
		return nil, fmt.Errorf("it does not have five fields: %s", usage)
	default:
		for i, word := range words {
			if err := fields[i].check(word); err != nil {
				return nil, err
			}
		}
	}
	return cron.ParseStandard(text)
}

func parseEvery(text string) (cron.Schedule, error) {
	found := everyPattern.FindStringSubmatch(text)
	if found == nil {
		return nil, errors.New(`write a duration of at least a minute in hours, minutes and seconds, such as "@every 90m" or "@every 1h30m"`)
	}
	interval, err := time.ParseDuration(found[1])
	switch {
	case err != nil:
		return nil, errors.New("the duration is too long: write less than 292 years")
	case interval < minEvery:
		return nil, errors.New(`the duration is too short: write "@every 1m" or longer`)
	}
	return cron.Every(interval), nil
}

// check returns an error if the text of a field is invalid.
func (f *field) check(text string) error {
	for item := range strings.SplitSeq(text, ",") {
		found := itemPattern.FindStringSubmatch(item)
		if found == nil {
			return f.invalid(text)
		}
		first, firstErr := f.value(found[2])
		last, lastErr := f.value(found[3])
		switch {
		case found[2] != "" && firstErr != nil, found[3] != "" && lastErr != nil:
			return f.invalid(text)
		case found[3] != "" && first > last:
			return fmt.Errorf("%s %q: the range %s-%s ends before it begins: write %[3]s-%[5]d,%[6]d-%[4]s", f.name, text, found[2], found[3], f.max, f.min)
		}
	}
	return nil
}

func (f *field) invalid(text string) error {
	return fmt.Errorf("%s %q: write %s, ranges such as %d-%d, steps such as */2, lists such as %d,%d, or *", f.name, text, f.allowed, f.min+1, f.min+4, f.min+1, f.min+3)
}

// value returns the number for a number or a name.
func (f *field) value(text string) (int, error) {
	if i := slices.Index(f.names, strings.ToUpper(text)); i >= 0 {
		return f.min + i, nil
	}
	value, err := strconv.Atoi(text)
	if err == nil && (value < f.min || value > f.max || len(text) > 2) {
		err = strconv.ErrRange
	}
	return value, err
}

// Surprises says where a valid cron expression means something else than it seems to, in
// sentences.
func Surprises(text string) (sentences []string) {
	words := strings.Fields(text)
	expression, err := parseExpression(text)
	if err != nil || len(words) != len(fields) {
		return nil
	}
	for i, f := range fields {
		for item := range strings.SplitSeq(words[i], ",") {
			if sentence := f.surprise(item); sentence != "" {
				sentences = append(sentences, sentence)
			}
		}
	}
	if parsed, ok := expression.(*cron.SpecSchedule); ok && parsed.Dom&starBit == 0 && parsed.Dow&starBit == 0 {
		sentences = append(sentences, fmt.Sprintf("day of month %s and day of week %s: it runs on each day that matches one of them, not only on days that match both", words[2], words[4]))
	}
	return sentences
}

// surprise says what a step means that does not divide the period, or returns "".
func (f *field) surprise(item string) string {
	found := itemPattern.FindStringSubmatch(item)
	step, err := strconv.Atoi(found[4])
	if err != nil || found[3] != "" || (f.max-f.min+1)%step == 0 {
		return ""
	}
	value, err := f.value(found[2])
	if err != nil { // *
		value = f.min
	}
	var values []string
	for ; value <= f.max; value += step {
		values = append(values, strconv.Itoa(value))
	}
	sentence := fmt.Sprintf("%[1]s %[2]s means %[1]s %[3]s of each %[4]s, not every %[5]d %[6]s", f.name, item, strings.Join(values, ","), f.period, step, f.unit)
	if f.unit == "minutes" || f.unit == "hours" {
		sentence += fmt.Sprintf(`: for that, write "@every %d%c"`, step, f.unit[0])
	}
	return sentence
}
