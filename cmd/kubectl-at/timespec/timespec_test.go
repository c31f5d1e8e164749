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
	"regexp"
	"strings"
	"testing"
	"time"

	"programming-kubernetes.info/cnat-controller/pkg/zones"
)

// optionsOf returns the options of a world: a now, a zone, and perhaps "past", or "on" and the time from which something is moved.
func optionsOf(tb testing.TB, world string) Options {
	tb.Helper()
	words := append(strings.Fields(world), "", "")
	now, err := time.Parse(time.RFC3339, words[0])
	if err != nil {
		tb.Fatal(err)
	}
	zone, err := zones.Load(words[1])
	if err != nil {
		tb.Fatal(err)
	}
	options := Options{Now: now, Zone: zone, AllowPast: words[2] == "past"}
	if words[2] == "on" {
		if options.On, err = time.ParseInLocation(time.RFC3339, words[3], zone); err != nil {
			tb.Fatal(err)
		}
	}
	return options
}

func TestHow(t *testing.T) {
	options := optionsOf(t, "2026-03-28T19:00:12+01:00 Europe/Berlin")
	for text, want := range map[string]string{
		"now":                        "now (Saturday 28 March 2026 at 19:00:12) in Europe/Berlin",
		"now + 2 hours":              "now (Saturday 28 March 2026 at 19:00:12) + 2 hours in Europe/Berlin",
		"in 1h30m":                   "now (Saturday 28 March 2026 at 19:00:12) + 1 hour + 30 minutes in Europe/Berlin",
		"20:00":                      "today (Saturday 28 March 2026) at 20:00 in Europe/Berlin",
		"10:12":                      "today (Saturday 28 March 2026) at 10:12 has passed, so tomorrow (Sunday 29 March 2026) at 10:12 in Europe/Berlin",
		"tomorrow 10:12":             "tomorrow (Sunday 29 March 2026) at 10:12 in Europe/Berlin",
		"tomorrow":                   "tomorrow (Sunday 29 March 2026) at 19:00:12 (the time of day now) in Europe/Berlin",
		"sat 10:12":                  "today (Saturday 28 March 2026) at 10:12 has passed, so Saturday 4 April 2026 at 10:12 in Europe/Berlin",
		"jan 1 noon":                 "Thursday 1 January 2026 at 12:00 has passed, so Friday 1 January 2027 at 12:00 in Europe/Berlin",
		"10:12:30.5 monday + 1 week": "Monday 30 March 2026 at 10:12:30.5 + 1 week in Europe/Berlin",
		"fri next week":              "Friday 3 April 2026 at 19:00:12 (the time of day now) in Europe/Berlin",
		"10:12 2026-12-24 +05:30":    "Thursday 24 December 2026 at 10:12 in +05:30",
		"in 2 days at noon":          "Monday 30 March 2026 at 12:00 in Europe/Berlin",
		"2026-12-24T10:12:00Z":       "Thursday 24 December 2026 at 10:12 in UTC",
	} {
		got, err := Parse(text, options)
		if err != nil || got.How != want {
			t.Errorf("%q: got %v and\n%s, want\n%s", text, err, got.How, want)
		}
	}
	on := optionsOf(t, "2026-03-28T19:00:12+01:00 Europe/Berlin on 2026-03-28T02:30:00+01:00")
	for text, want := range map[string]string{
		"+ 24 h": "its time (Saturday 28 March 2026 at 02:30:00) + 24 hours in Europe/Berlin",
		"monday": "Monday 30 March 2026 at 02:30:00 (its time of day) in Europe/Berlin",
	} {
		if got, err := Parse(text, on); err != nil || got.How != want {
			t.Errorf("%q: got %v and %s, want %s", text, err, got.How, want)
		}
	}
	options.Zone = time.Local
	if got, err := Parse("2026-12-24 10:12", options); err != nil || got.How != "Thursday 24 December 2026 at 10:12 in the local time zone" {
		t.Errorf("got %v and %s", err, got.How)
	}
}

// TestOffsets reads each offset that a zone has had since 1980, and has in a few years.
func TestOffsets(t *testing.T) {
	offsets := map[string]time.Time{}
	for _, name := range zones.Names() {
		zone, err := zones.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		for instant := time.Date(1980, 1, 1, 12, 0, 0, 0, zone); instant.Year() < 2040; instant = instant.AddDate(0, 1, 0) {
			offsets[instant.Format("-07:00:00")] = instant
		}
	}
	options := optionsOf(t, "2026-03-28T19:00:12+01:00 Europe/Berlin")
	options.AllowPast = true
	for offset, instant := range offsets {
		if got, err := Parse(instant.Format(time.RFC3339), options); err != nil || !got.Instant.Equal(instant) {
			t.Errorf("%s: got %s and %v, want %s in %s", offset, got, err, instant, instant.Location())
		}
	}
	if len(offsets) < 35 {
		t.Errorf("got %d offsets, want all", len(offsets))
	}
}

func TestCaret(t *testing.T) {
	options := optionsOf(t, "2026-03-28T19:00:12+01:00 Europe/Berlin")
	for text, want := range map[string]string{
		"10:12 tomorow":    "10:12 tomorow\n      ^^^^^^^",
		"10:12\ntomorow\n": "10:12 tomorow \n      ^^^^^^^",
		"":                 "\n^",
		"now + ":           "now + \n    ^",
		"caf\u00e9 10:12":  "caf\u00e9 10:12\n^^^^",
	} {
		_, err := Parse(text, options)
		var e *Error
		if !errors.As(err, &e) || e.Caret() != want {
			t.Errorf("%q: got %v and\n%s, want\n%s", text, err, e.Caret(), want)
		}
	}
}

// capitalM is the beginning of a word: as a unit, it can be minutes or months.
var capitalM = regexp.MustCompile(`(^|[^\p{L}])M`)

// FuzzParse searches for a text that panics, that is parsed in two ways, or whose String
// is parsed as another instant.
func FuzzParse(f *testing.F) {
	worlds := []string{
		"2026-03-28T19:00:12+01:00 Europe/Berlin",
		"2026-10-25T02:40:00+02:00 Europe/Berlin",
		"2026-11-01T01:30:00-04:00 America/New_York",
		"2026-12-31T19:00:00Z Asia/Kolkata",
		"2026-04-05T01:45:00+11:00 Australia/Lord_Howe",
		"2028-02-29T12:00:00Z UTC",
		"0001-01-01T00:00:00Z America/New_York",
	}
	for i, seed := range []string{
		"now + 2 hours", "in 2h30m", "+90m", "tomorrow 10:12", "10:12 pm", "8:15 p.m.", "next friday at noon", "teatime", "1012",
		"24 dec 10:12", "December 24, 2026", "2026-12-24T10:12:00.123456789+01:00", "24.12.2026", "12/24/2026", "20261224T101200Z",
		"in an hour and 5 minutes", "2 days from now, at 10:12", "the 24th of dec", "tonight 20:00", "12 noon", "@1798106400", "noon utc+5:30",
		"8 :15amjan24", "17\n utc+\n 30minutes", "friday next week Europe/Berlin", "noon EST5EDT - 1 y 2 w",
		"2027 dec. 24 10:12", "2026-12-24T10:12:00+01:00[Europe/Berlin]", "2026-12-24 10:12:00 +0100 CET (x)", "friday of this week 17h",
		"the day after tomorrow", "in one hour, 1h30", "9am -10", "dec 24-26", "24\u00a0dec\u202f2027\u200b",
		"0001-01-01 00:00 Africa/Monrovia", "1883-11-18 12:03 America/New_York", "9999-12-31 23:59:59 -23:59", "2011-12-30 12:00 Pacific/Apia",
		"\u212aarachi", "noon, \xff", "31 jan + 1 month", "now - 99999999 seconds", "10:12 Etc/GMT+5", "%!",
	} {
		f.Add(seed, i, false)
		f.Add(seed, i+1, true)
	}
	f.Fuzz(func(t *testing.T, text string, world int, past bool) {
		options := optionsOf(t, worlds[uint(world)%uint(len(worlds))])
		options.AllowPast = past
		got, err := Parse(text, options)
		var e *Error
		// The output of fmt for an invalid format, unless it was quoted.
		misformatted := func(s string) bool { return strings.Contains(s, "%!") && !strings.Contains(text, "%!") }
		if err != nil {
			if !errors.As(err, &e) || e.Text != text || e.Problem == "" || misformatted(e.Problem) || len(strings.Split(e.Caret(), "\n")) != 2 {
				t.Fatalf("got %#v", err)
			}
		} else if got.String() == "" || got.How == "" || misformatted(got.How) || !past && got.Instant.Before(options.Now) {
			t.Fatalf("got %s, %s", got, got.How)
		}

		same := func(why, text string) {
			t.Helper()
			again, againErr := Parse(text, options)
			if (err == nil) != (againErr == nil) || !again.Instant.Equal(got.Instant) || again.How != got.How {
				t.Fatalf("%s: got %s and %v, then %s and %v", why, got, err, again, againErr)
			}
		}
		same("the same text", text)
		same("spaces around it", " \t"+text+"\n")
		same("double spaces", strings.ReplaceAll(text, " ", "  "))
		if err != nil {
			return
		}
		same("upper case", capitalM.ReplaceAllString(strings.ToUpper(text), "${1}m"))
		same("lower case", strings.ToLower(text))

		options.AllowPast = true
		again, err := Parse(got.String(), options)
		if err != nil || !again.Instant.Equal(got.Instant) || again.String() != got.String() {
			t.Fatalf("got %s, and of that %s and %v", got, again, err)
		}
	})
}
