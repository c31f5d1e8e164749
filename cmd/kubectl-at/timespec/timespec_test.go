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

// optionsOf returns the options with a now and, behind a space, a zone.
func optionsOf(tb testing.TB, world string) Options {
	tb.Helper()
	instant, name, _ := strings.Cut(world, " ")
	now, err := time.Parse(time.RFC3339, instant)
	if err != nil {
		tb.Fatal(err)
	}
	zone, err := zones.Load(name)
	if err != nil {
		tb.Fatal(err)
	}
	return Options{Now: now, Zone: zone}
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
	options.Zone = time.Local
	if got, err := Parse("2026-12-24 10:12", options); err != nil || got.How != "Thursday 24 December 2026 at 10:12 in the local time zone" {
		t.Errorf("got %v and %s", err, got.How)
	}
}

func TestAllowPast(t *testing.T) {
	options := optionsOf(t, "2026-03-28T19:00:12+01:00 Europe/Berlin")
	for text, want := range map[string]string{
		"2026-01-01 10:12":                 "2026-01-01T10:12:00+01:00",
		"today 10:12":                      "2026-03-28T10:12:00+01:00",
		"00:00 today":                      "2026-03-28T00:00:00+01:00",
		"now - 1 hour":                     "2026-03-28T18:00:12+01:00",
		"10:12 - 2 days":                   "2026-03-26T10:12:00+01:00",
		"10:12 24 dec 1999":                "1999-12-24T10:12:00+01:00",
		"0001-01-01T00:00:00Z":             "0001-01-01T00:00:00Z",
		"1883-11-18 12:00 +00:00":          "1883-11-18T12:00:00Z",
		"1883-01-01 12:00 Europe/Berlin":   "1883-01-01T11:06:32Z",
		"24 dec 2017 17:00 utc":            "2017-12-24T17:00:00Z",
		"2011-12-31 12:00 Pacific/Apia":    "2011-12-31T12:00:00+14:00",
		"2011-12-29 12:00 Pacific/Apia":    "2011-12-29T12:00:00-10:00",
		"2011-12-28 12:00 Pacific/Apia+3d": "2011-12-31T12:00:00+14:00",
	} {
		_, err := Parse(text, options)
		if err == nil || !strings.Contains(err.Error(), "is in the past") {
			t.Errorf("%q: got %v, want an error", text, err)
		}
		past := options
		past.AllowPast = true
		if got, err := Parse(text, past); err != nil || got.String() != want {
			t.Errorf("%q: got %s and %v, want %s", text, got, err, want)
		}
	}
	options.AllowPast = true
	for _, text := range []string{"10:12", "sat 10:12", "jan 1"} {
		if got, err := Parse(text, options); err != nil || got.Instant.Before(options.Now) {
			t.Errorf("%q: got %s and %v, want a time to come", text, got, err)
		}
	}
}

// TestOn reads times for something that is due on Thursday at 23:00 in Berlin, which is Friday in Kolkata.
func TestOn(t *testing.T) {
	options := optionsOf(t, "2026-03-28T19:00:12+01:00 Europe/Berlin")
	options.On = time.Date(2027, 7, 1, 23, 0, 0, 0, options.Zone)
	for text, want := range map[string]string{
		// without a date
		"3am":                "2027-07-01T03:00:00+02:00",
		"19:00":              "2027-07-01T19:00:00+02:00", // which is this minute today
		"noon + 1 day":       "2027-07-02T12:00:00+02:00",
		"10:12 Asia/Kolkata": `"10:12 Asia/Kolkata" can be on 1 July or 2 July, because the zones differ: write the date too`,
		"10:12 UTC":          "2027-07-01T10:12:00Z",
		"midnight":           `"midnight" begins one day and ends another: write 00:00 and the date`,
		// without a time of day
		"monday":               "2026-03-30T23:00:00+02:00",
		"tomorrow":             "2026-03-29T23:00:00+02:00",
		"today":                "2026-03-28T23:00:00+01:00",
		"today + 1 day":        "2026-03-29T23:00:00+02:00",
		"in 2 days":            "2026-03-30T23:00:00+02:00",
		"24 dec":               "2026-12-24T23:00:00+01:00",
		"2026-12-24":           "2026-12-24T23:00:00+01:00",
		"next monday":          "2026-03-30T23:00:00+02:00",
		"fri next week":        "2026-04-03T23:00:00+02:00",
		"monday Europe/Berlin": "2026-03-30T23:00:00+02:00",
		"monday Asia/Kolkata":  `"monday Asia/Kolkata" can be at 23:00 or 02:30, because the zones differ: write the time of day too`,
		"24 dec UTC":           `"24 dec UTC" can be at 23:00 or 21:00, because the zones differ: write the time of day too`,
		// amounts
		"+ 1 hour":             "2027-07-02T00:00:00+02:00",
		"+1h30m":               "2027-07-02T00:30:00+02:00",
		"+ 1 day + 1 hour":     "2027-07-03T00:00:00+02:00",
		"- 30 minutes":         "2027-07-01T22:30:00+02:00",
		"- 5 months":           "2027-02-01T23:00:00+01:00",
		"+ 1 hour UTC":         "2027-07-01T22:00:00Z",
		"- 2 years":            `"- 2 years" is in the past, because it is 2025-07-01T23:00:00+02:00: write a time in the future, or "now"`,
		"now + 2 hours":        "2026-03-28T21:00:12+01:00",
		"in 2 hours":           "2026-03-28T21:00:12+01:00",
		"2 hours from now":     "2026-03-28T21:00:12+01:00",
		"now":                  "2026-03-28T19:00:12+01:00",
		"tomorrow 10:12 + 1 h": "2026-03-29T11:12:00+02:00",
		// complete
		"tomorrow 10:12":            "2026-03-29T10:12:00+02:00",
		"monday 10:12":              "2026-03-30T10:12:00+02:00",
		"24 dec 10:12":              "2026-12-24T10:12:00+01:00",
		"2026-12-24T10:12:00+01:00": "2026-12-24T10:12:00+01:00",
	} {
		got, err := Parse(text, options)
		if err == nil && got.String() != want || err != nil && err.Error() != want {
			t.Errorf("%q: got %s and %v, want %s", text, got, err, want)
		}
	}
	// Its time of day has passed today.
	options.On = time.Date(2026, 3, 28, 2, 30, 0, 500, options.Zone)
	for text, want := range map[string]string{
		"saturday": "2026-04-04T02:30:00.0000005+02:00",
		"28 march": `"28 march" has just passed, on 28 March 2026: write the year too`,
		"today":    `"today" is in the past, because it is 2026-03-28T02:30:00.0000005+01:00: write a time in the future, or "now"`,
		"10:12":    `"10:12" is in the past, because it is 2026-03-28T10:12:00+01:00: write a time in the future, or "now"`,
		"tomorrow": `"tomorrow" is 02:30 on Sunday 29 March 2026, which the clocks of Europe/Berlin skip: write the exact instant, 2026-03-29T01:30:00.0000005+01:00 or 2026-03-29T03:30:00.0000005+02:00`,
		"+ 1 day":  `"+ 1 day" is 02:30 on Sunday 29 March 2026, which the clocks of Europe/Berlin skip: write the exact instant, 2026-03-29T01:30:00.0000005+01:00 or 2026-03-29T03:30:00.0000005+02:00`,
		"+ 24 h":   "2026-03-29T03:30:00.0000005+02:00",
	} {
		got, err := Parse(text, options)
		if err == nil && got.String() != want || err != nil && err.Error() != want {
			t.Errorf("%q: got %s and %v, want %s", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"+ 24 h": "its time (Saturday 28 March 2026 at 02:30:00) + 24 hours in Europe/Berlin",
		"monday": "Monday 30 March 2026 at 02:30:00 (its time of day) in Europe/Berlin",
	} {
		if got, err := Parse(text, options); err != nil || got.How != want {
			t.Errorf("%q: got %v and %s, want %s", text, err, got.How, want)
		}
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
		"10:12 tomorow":        "10:12 tomorow\n      ^^^^^^^",
		"10:12\ntomorow\n":     "10:12 tomorow \n      ^^^^^^^",
		"":                     "\n^",
		"now + ":               "now + \n    ^",
		"caf\u00e9 10:12":      "caf\u00e9 10:12\n^^^^",
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
