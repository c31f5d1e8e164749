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

func TestParse(t *testing.T) {
	for world, want := range map[string]map[string]string{
		// The clocks of Berlin skip 02:00 to 03:00 in the coming night, of Saturday to Sunday.
		"2026-03-28T19:00:12.7+01:00 Europe/Berlin": {
			// now, and sums
			"now":                              "2026-03-28T19:00:12+01:00",
			"now + 5 seconds":                  "2026-03-28T19:00:17+01:00",
			"now + 2 hours":                    "2026-03-28T21:00:12+01:00",
			"now + 12 hours":                   "2026-03-29T08:00:12+02:00",
			"now + 1 day":                      "2026-03-29T19:00:12+02:00",
			"now + 24 hours":                   "2026-03-29T20:00:12+02:00",
			"now + 1 week":                     "2026-04-04T19:00:12+02:00",
			"now + 1 month":                    "2026-04-28T19:00:12+02:00",
			"now + 11 months":                  "2027-02-28T19:00:12+01:00",
			"now + 2 years":                    "2028-03-28T19:00:12+02:00",
			"now + 0 days":                     "2026-03-28T19:00:12+01:00",
			"now + 2 days - 1 hour":            "2026-03-30T18:00:12+02:00",
			"now + 1 day 2 hours":              "2026-03-29T21:00:12+02:00",
			"now + 8 hours + 1 day":            "2026-03-30T04:00:12+02:00",
			"now + 1 day - 1 day 1 h + 60 min": "2026-03-28T19:00:12+01:00",
			"+90m":                             "2026-03-28T20:30:12+01:00",
			"+ 90 m":                           "2026-03-28T20:30:12+01:00",
			"+1w":                              "2026-04-04T19:00:12+02:00",
			"+1y2d":                            "2027-03-30T19:00:12+02:00",
			"in 2h30m":                         "2026-03-28T21:30:12+01:00",
			"in 90 secs":                       "2026-03-28T19:01:42+01:00",
			"in 1 hour 5 minutes":              "2026-03-28T20:05:12+01:00",
			"in 2h + 1 day":                    "2026-03-29T21:00:12+02:00",
			"in 1 day America/New_York":        "2026-03-29T14:00:12-04:00",
			"next minute":                      "2026-03-28T19:01:12+01:00",
			"next hour":                        "2026-03-28T20:00:12+01:00",
			"next day":                         "2026-03-29T19:00:12+02:00",
			"next week":                        "2026-04-04T19:00:12+02:00",
			"next month":                       "2026-04-28T19:00:12+02:00",
			"next year":                        "2027-03-28T19:00:12+02:00",

			// a time of day, today or tomorrow
			"noon":                       "2026-03-29T12:00:00+02:00",
			"midnight":                   "2026-03-29T00:00:00+01:00",
			"teatime":                    "2026-03-29T16:00:00+02:00",
			"10:12":                      "2026-03-29T10:12:00+02:00",
			"1012":                       "2026-03-29T10:12:00+02:00",
			"0000":                       "2026-03-29T00:00:00+01:00",
			"9:05":                       "2026-03-29T09:05:00+02:00",
			"10am":                       "2026-03-29T10:00:00+02:00",
			"12am":                       "2026-03-29T00:00:00+01:00",
			"12 pm":                      "2026-03-29T12:00:00+02:00",
			"10:12 pm":                   "2026-03-28T22:12:00+01:00",
			"10:12:30.25PM":              "2026-03-28T22:12:30.25+01:00",
			"2012":                       "2026-03-28T20:12:00+01:00",
			"20":                         "2026-03-28T20:00:00+01:00",
			"5":                          "2026-03-29T05:00:00+02:00",
			"19:00:12":                   "2026-03-28T19:00:12+01:00",
			"19:00:11":                   "2026-03-29T19:00:11+02:00",
			"19:00":                      "2026-03-29T19:00:00+02:00",
			"23:59:59":                   "2026-03-28T23:59:59+01:00",
			"at 10:12":                   "2026-03-29T10:12:00+02:00",
			"01:59:59.999999999":         "2026-03-29T01:59:59.999999999+01:00",
			"03:00":                      "2026-03-29T03:00:00+02:00",
			"18:30 + 1 hour":             "2026-03-28T19:30:00+01:00",
			"18:30 + 1 minute":           "2026-03-29T18:31:00+02:00",
			"18:30 + 1 day":              "2026-03-29T18:30:00+02:00",
			"01:30 + 1 hour":             "2026-03-29T03:30:00+02:00",
			"02:30 + 2 days":             "2026-03-30T02:30:00+02:00",
			"tomorrow 02:30 + 1 day":     "2026-03-30T02:30:00+02:00",
			"tomorrow 3am - 1 minute":    "2026-03-29T01:59:00+01:00",
			"10:12 + 1 day + 30 minutes": "2026-03-29T10:42:00+02:00",

			// a date
			"today":                   "2026-03-28T19:00:12+01:00",
			"today 20:00":             "2026-03-28T20:00:00+01:00",
			"tomorrow":                "2026-03-29T19:00:12+02:00",
			"tomorrow 10:12":          "2026-03-29T10:12:00+02:00",
			"10:12 tomorrow":          "2026-03-29T10:12:00+02:00",
			"tomorrow at 10:12":       "2026-03-29T10:12:00+02:00",
			"midnight tomorrow":       "2026-03-29T00:00:00+01:00",
			"monday":                  "2026-03-30T19:00:12+02:00",
			"mon":                     "2026-03-30T19:00:12+02:00",
			"thurs 8am":               "2026-04-02T08:00:00+02:00",
			"on friday at noon":       "2026-04-03T12:00:00+02:00",
			"saturday":                "2026-03-28T19:00:12+01:00",
			"sat 20:00":               "2026-03-28T20:00:00+01:00",
			"sat 18:00":               "2026-04-04T18:00:00+02:00",
			"sat 18:00 + 2 hours":     "2026-03-28T20:00:00+01:00",
			"next friday":             "2026-04-03T19:00:12+02:00",
			"next saturday":           "2026-04-04T19:00:12+02:00",
			"next sunday":             "2026-03-29T19:00:12+02:00",
			"next sat 20:00":          "2026-04-04T20:00:00+02:00",
			"next week 10:12":         "2026-04-04T10:12:00+02:00",
			"10:12 next week":         "2026-04-04T10:12:00+02:00",
			"friday next week 10:12":  "2026-04-10T10:12:00+02:00",
			"jan 24 next year":        "2027-01-24T19:00:12+01:00",
			"24 dec 10:12":            "2026-12-24T10:12:00+01:00",
			"24 december":             "2026-12-24T19:00:12+01:00",
			"Dec 24":                  "2026-12-24T19:00:12+01:00",
			"Dec 24 10:12":            "2026-12-24T10:12:00+01:00",
			"Dec 24 10am":             "2026-12-24T10:00:00+01:00",
			"Dec 24 1012pm":           "2026-12-24T22:12:00+01:00",
			"1012 dec 24":             "2026-12-24T10:12:00+01:00",
			"mar 28":                  "2026-03-28T19:00:12+01:00",
			"mar 28 18:00":            "2027-03-28T18:00:00+02:00",
			"mar 1":                   "2027-03-01T19:00:12+01:00",
			"February 1, 2028 10:12":  "2028-02-01T10:12:00+01:00",
			"29 feb 2028":             "2028-02-29T19:00:12+01:00",
			"December 24 2026":        "2026-12-24T19:00:12+01:00",
			"Dec 24 26":               "2026-12-24T19:00:12+01:00",
			"24 dec 2026 10:12":       "2026-12-24T10:12:00+01:00",
			"24 dec, 2026":            "2026-12-24T19:00:12+01:00",
			"Dec 24 69":               "2069-12-24T19:00:12+01:00",
			"2026-12-24":              "2026-12-24T19:00:12+01:00",
			"2026-12-24 10:12":        "2026-12-24T10:12:00+01:00",
			"10:12 2026-12-24":        "2026-12-24T10:12:00+01:00",
			"26-12-24":                "2026-12-24T19:00:12+01:00",
			"24.12.2026":              "2026-12-24T19:00:12+01:00",
			"24.12.26 10:12":          "2026-12-24T10:12:00+01:00",
			"1.4.2026 noon":           "2026-04-01T12:00:00+02:00",
			"12/24/2026":              "2026-12-24T19:00:12+01:00",
			"10:12 12/24/26":          "2026-12-24T10:12:00+01:00",
			"122426":                  "2026-12-24T19:00:12+01:00",
			"10am 12242026":           "2026-12-24T10:00:00+01:00",
			"2026-12-28 + 2 months":   "2027-02-28T19:00:12+01:00",
			"2026-01-01 10:12 + 1 y":  "2027-01-01T10:12:00+01:00",
			"9999-12-31 23:59:59 UTC": "9999-12-31T23:59:59Z",

			// RFC 3339
			"2026-12-24T10:12:00Z":                "2026-12-24T10:12:00Z",
			"2026-12-24t10:12:00z":                "2026-12-24T10:12:00Z",
			"2026-12-24T10:12:00.5+01:00":         "2026-12-24T10:12:00.5+01:00",
			"2026-12-24T10:12:00.123456789-05:30": "2026-12-24T10:12:00.123456789-05:30",
			"2026-12-24T10:12":                    "2026-12-24T10:12:00+01:00",
			"2026-12-24T10:12:00":                 "2026-12-24T10:12:00+01:00",
			"2026-12-24T10:12:00Z + 1 day":        "2026-12-25T10:12:00Z",

			// a zone
			"10:12 UTC":                        "2026-03-29T10:12:00Z",
			"10:12Z":                           "2026-03-29T10:12:00Z",
			"18:30 utc":                        "2026-03-28T18:30:00Z",
			"10:12 +01:00":                     "2026-03-29T10:12:00+01:00",
			"10:12 +0100":                      "2026-03-29T10:12:00+01:00",
			"10:12-05:30":                      "2026-03-29T10:12:00-05:30",
			"10:12 +01:00 + 2 hours":           "2026-03-29T12:12:00+01:00",
			"10:12 + 2 hours +01:00":           "2026-03-29T12:12:00+01:00",
			"noon+1000":                        "2026-03-29T12:00:00+10:00",
			"10:12 - 2 h -0500":                "2026-03-29T08:12:00-05:00",
			"now America/New_York":             "2026-03-28T14:00:12-04:00",
			"tomorrow 10:12 america/new_york":  "2026-03-29T10:12:00-04:00",
			"10:12 America/New_York tomorrow":  "2026-03-29T10:12:00-04:00",
			"24 dec 10:12 Asia/Kolkata":        "2026-12-24T10:12:00+05:30",
			"noon GMT+0 tomorrow":              "2026-03-29T12:00:00Z",
			"noon gmt + 1 day":                 "2026-03-29T12:00:00Z",
			"noon Etc/GMT+5":                   "2026-03-29T12:00:00-05:00",
			"noon EST5EDT":                     "2026-03-29T12:00:00-04:00",
			"10:12 + 1 day W-SU":               "2026-03-29T10:12:00+03:00",
			"8am Pacific/Kiritimati":           "2026-03-30T08:00:00+14:00",
			"today 10:12 Pacific/Kiritimati":   "2026-03-29T10:12:00+14:00",
			"2026-04-05 1:15 UTC + 1 month":    "2026-05-05T01:15:00Z",
			"2026-03-29 02:30 America/Chicago": "2026-03-29T02:30:00-05:00",

			// the man page and the grammar of Debian's at
			"4pm + 3 days":           "2026-03-31T16:00:00+02:00",
			"10am Jul 31":            "2026-07-31T10:00:00+02:00",
			"1am tomorrow":           "2026-03-29T01:00:00+01:00",
			"now + 1 minute":         "2026-03-28T19:01:12+01:00",
			"9:00 PM":                "2026-03-28T21:00:00+01:00",
			"noon tomorrow":          "2026-03-29T12:00:00+02:00",
			"teatime tomorrow":       "2026-03-29T16:00:00+02:00",
			"08:00 next tuesday":     "2026-03-31T08:00:00+02:00",
			"16:00 UTC + 1 day":      "2026-03-29T16:00:00Z",
			"10am 31 jul 2026":       "2026-07-31T10:00:00+02:00",
			"10am Jul 31, 26":        "2026-07-31T10:00:00+02:00",
			"8pm today":              "2026-03-28T20:00:00+01:00",
			"noon next month":        "2026-04-28T12:00:00+02:00",
			"now + 3 weeks - 1 week": "2026-04-11T19:00:12+02:00",

			// the examples and the grammar of POSIX
			"0815am Jan 24":               "2027-01-24T08:15:00+01:00",
			"8 :15amjan24":                "2027-01-24T08:15:00+01:00",
			"now + 1day":                  "2026-03-29T19:00:12+02:00",
			"5 pm FRIday":                 "2026-04-03T17:00:00+02:00",
			"17\n    utc+\n    30minutes": "2026-03-29T17:30:00Z",
			"17utc+30minutes":             "2026-03-29T17:30:00Z",
			"0730 tomorrow":               "2026-03-29T07:30:00+02:00",
			"now + 1 hour":                "2026-03-28T20:00:12+01:00",
			"now tomorrow":                "2026-03-29T19:00:12+02:00",
			"now next week":               "2026-04-04T19:00:12+02:00",
			"1900 thursday next week":     "2026-04-09T19:00:00+02:00",
			"0815 utc jan 24, 2027":       "2027-01-24T08:15:00Z",
			"8amutcjan24 + 1 day":         "2027-01-25T08:00:00Z",
			"noon today + 1 week":         "2026-04-04T12:00:00+02:00",
		},
		// Afterwards. The clocks repeat 02:00 to 03:00 on 25 October.
		"2026-10-24T02:30:00+02:00 Europe/Berlin": {
			"now + 24 hours":             "2026-10-25T02:30:00+02:00",
			"now + 25 hours":             "2026-10-25T02:30:00+01:00",
			"now + 2 days":               "2026-10-26T02:30:00+01:00",
			"sun 01:59:59":               "2026-10-25T01:59:59+02:00",
			"sun 03:00":                  "2026-10-25T03:00:00+01:00",
			"sun 01:30 + 1 hour":         "2026-10-25T02:30:00+02:00",
			"sun 01:30 + 2h":             "2026-10-25T02:30:00+01:00",
			"02:30":                      "2026-10-24T02:30:00+02:00",
			"2026-10-25 02:30 +02:00":    "2026-10-25T02:30:00+02:00",
			"2026-10-25 02:30 UTC":       "2026-10-25T02:30:00Z",
			"2026-10-25T02:30:00+01:00":  "2026-10-25T02:30:00+01:00",
			"tomorrow + 1 day":           "2026-10-26T02:30:00+01:00",
			"feb 28":                     "2027-02-28T02:30:00+01:00",
			"2028-02-29 10:12 + 4 years": "2032-02-29T10:12:00+01:00",
		},
		// Between the two times at which the clocks show 02:30.
		"2026-10-25T02:40:00+02:00 Europe/Berlin": {
			"now":          "2026-10-25T02:40:00+02:00",
			"today":        "2026-10-25T02:40:00+02:00",
			"sunday":       "2026-10-25T02:40:00+02:00",
			"now + 1 hour": "2026-10-25T02:40:00+01:00",
			"now + 0 days": "2026-10-25T02:40:00+02:00",
			"now + 1 day":  "2026-10-26T02:40:00+01:00",
		},
		// After the times that the clocks skipped or repeated.
		"2026-03-29T10:00:00+02:00 Europe/Berlin": {"02:30": "2026-03-30T02:30:00+02:00", "next sun 2:30": "2026-04-05T02:30:00+02:00"},
		"2026-10-25T10:00:00+01:00 Europe/Berlin": {"02:30": "2026-10-26T02:30:00+01:00"},
		"2027-12-01T10:00:00+01:00 Europe/Berlin": {"29 feb": "2028-02-29T10:00:00+01:00"},
		"2028-02-01T10:00:00+01:00 Europe/Berlin": {"29 feb": "2028-02-29T10:00:00+01:00"},
		// The clocks of New York skip 02:00 to 03:00 on 8 March, and repeat 01:00 to 02:00 on
		// 1 November.
		"2026-03-07T23:00:00-05:00 America/New_York": {
			"now + 4 hours":              "2026-03-08T04:00:00-04:00",
			"3am":                        "2026-03-08T03:00:00-04:00",
			"tomorrow 1:59am":            "2026-03-08T01:59:00-05:00",
			"noon + 1 day":               "2026-03-08T12:00:00-04:00",
			"10:12 Europe/Berlin":        "2026-03-08T10:12:00+01:00",
			"today 10:12 Asia/Kolkata":   "2026-03-08T10:12:00+05:30",
			"nov 1 2am":                  "2026-11-01T02:00:00-05:00",
			"nov 1 00:30 + 90 min":       "2026-11-01T01:00:00-05:00",
			"2026-11-01 00:30 + 1 hour":  "2026-11-01T01:30:00-04:00",
			"2026-10-31 01:30 + 2 days":  "2026-11-02T01:30:00-05:00",
			"jul 4":                      "2026-07-04T23:00:00-04:00",
			"7/4/2026 9pm":               "2026-07-04T21:00:00-04:00",
			"friday 5pm":                 "2026-03-13T17:00:00-04:00",
			"2026-03-08T07:30:00Z":       "2026-03-08T07:30:00Z",
			"Mar 8 2026 02:30 Etc/GMT+5": "2026-03-08T02:30:00-05:00",
		},
		// Five and a half hours ahead of UTC, on the next day already.
		"2026-12-31T19:00:00Z Asia/Kolkata": {
			"now":              "2027-01-01T00:30:00+05:30",
			"today":            "2027-01-01T00:30:00+05:30",
			"00:15":            "2027-01-02T00:15:00+05:30",
			"friday":           "2027-01-01T00:30:00+05:30",
			"dec 31":           "2027-12-31T00:30:00+05:30",
			"jan 1 noon":       "2027-01-01T12:00:00+05:30",
			"20:00 utc":        "2026-12-31T20:00:00Z",
			"tomorrow 8am UTC": "2027-01-01T08:00:00Z",
			"now + 1 month":    "2027-02-01T00:30:00+05:30",
		},
		// The clocks of Lord Howe change by half an hour, on 5 April and on 4 October.
		"2026-04-04T20:00:00+11:00 Australia/Lord_Howe": {
			"now + 6 hours":       "2026-04-05T01:30:00+10:30",
			"now + 1 day":         "2026-04-05T20:00:00+10:30",
			"1:29":                "2026-04-05T01:29:00+11:00",
			"2am":                 "2026-04-05T02:00:00+10:30",
			"oct 4 1:59":          "2026-10-04T01:59:00+10:30",
			"oct 4 2:30":          "2026-10-04T02:30:00+11:00",
			"oct 4 1:30 + 1 hour": "2026-10-04T03:00:00+11:00",
		},
	} {
		t.Run(world, func(t *testing.T) {
			options := optionsOf(t, world)
			for text, want := range want {
				got, err := Parse(text, options)
				if err != nil || got.String() != want {
					t.Errorf("%q: got %s and %v, want %s", text, got, err, want)
				}
			}
		})
	}
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
		"next week":                  "next week (Saturday 4 April 2026) at 19:00:12 (the time of day now) in Europe/Berlin",
		"next month noon - 1 day":    "next month (Tuesday 28 April 2026) at 12:00 - 1 day in Europe/Berlin",
		"10:12 2026-12-24 +05:30":    "Thursday 24 December 2026 at 10:12 in +05:30",
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
		"midnight today":                   "2026-03-28T00:00:00+01:00",
		"now - 1 hour":                     "2026-03-28T18:00:12+01:00",
		"10:12 - 2 days":                   "2026-03-26T10:12:00+01:00",
		"24 dec 99":                        "1999-12-24T19:00:12+01:00",
		"24 dec 70":                        "1970-12-24T19:00:12+01:00",
		"0001-01-01T00:00:00Z":             "0001-01-01T00:00:00Z",
		"1883-11-18 12:00 +00:00":          "1883-11-18T12:00:00Z",
		"1883-01-01 12:00 Europe/Berlin":   "1883-01-01T11:06:32Z",
		"24 dec 17 utc":                    "2017-12-24T18:00:12Z",
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

func TestErrors(t *testing.T) {
	options := optionsOf(t, "2026-03-28T19:00:12+01:00 Europe/Berlin")
	for text, want := range map[string]struct {
		offset, length int
		problem        string
	}{
		// Nothing
		"":     {0, 0, `the time is empty: write one, such as 10:12, tomorrow or now + 2 hours`},
		"  \n": {3, 0, `the time is empty: write one, such as 10:12, tomorrow or now + 2 hours`},

		// Words
		"tomorow":            {0, 7, `"tomorow" is not understood: write "tomorrow" if that is meant`},
		"nex friday":         {0, 3, `"nex" is not understood: write "next" if that is meant`},
		"10:12 tomorow":      {6, 7, `"tomorow" is not understood: write "tomorrow" if that is meant`},
		"wendsday":           {0, 8, `"wendsday" is not understood: write "wednesday" if that is meant`},
		"10:12 24 decembr":   {9, 7, `"decembr" is not understood: write "december" if that is meant`},
		"tea time":           {0, 3, `"tea" is not understood: write a time such as 10:12, a date such as 24 dec, a sum such as + 2 hours, or a zone such as Europe/Berlin or +01:00`},
		"10 o'clock":         {3, 7, `"o'clock" is not understood: write a time such as 10:12, a date such as 24 dec, a sum such as + 2 hours, or a zone such as Europe/Berlin or +01:00`},
		"+ 2 hurs":           {4, 4, `"hurs" is not understood: write "hours" if that is meant`},
		"now + 2 fortnights": {8, 10, `"fortnights" is not a unit: write minutes, hours, days, weeks, months or years`},
		"in two hours":       {3, 3, `"two" is not a number: write a number and a unit, such as "in 2 hours"`},
		"noon, tomorrow":     {4, 1, `"," is not understood: write a time such as 10:12, a date such as 2035-12-24, or + 2 hours`},
		"café 10:12":         {0, 5, `"café" is not understood: write a time such as 10:12, a date such as 24 dec, a sum such as + 2 hours, or a zone such as Europe/Berlin or +01:00`},
		"@1234567890":        {0, 1, `"@" is not understood: write a time such as 10:12, a date such as 24 dec, a sum such as + 2 hours, or a zone such as Europe/Berlin or +01:00`},
		"10:12\xff":          {5, 1, `"\xff" is not understood: write a time such as 10:12, a date such as 24 dec, a sum such as + 2 hours, or a zone such as Europe/Berlin or +01:00`},
		"tomorrow!":          {0, 9, `"tomorrow!" is not understood: write "tomorrow" if that is meant`},

		// Zones
		"10:12 Europe/Berln":        {6, 12, `"Europe/Berln" is not understood: write "Europe/Berlin" if that is meant`},
		"10:12 Berlin":              {6, 6, `"Berlin" is not understood: write "Europe/Berlin" if that is meant`},
		"10:12 new_york":            {6, 8, `"new_york" is not understood: write "America/New_York" if that is meant`},
		"10:12 Local":               {6, 5, `"Local" is not understood: write a time such as 10:12, a date such as 24 dec, a sum such as + 2 hours, or a zone such as Europe/Berlin or +01:00`},
		"10:12 PST":                 {6, 3, `"PST" is not understood: write a time such as 10:12, a date such as 24 dec, a sum such as + 2 hours, or a zone such as Europe/Berlin or +01:00`},
		"10:12 localtime":           {6, 9, `"localtime" is not understood: write a time such as 10:12, a date such as 24 dec, a sum such as + 2 hours, or a zone such as Europe/Berlin or +01:00`},
		"10:12 ./Europe/Berlin":     {6, 1, `"." is not understood: write a time such as 10:12, a date such as 2035-12-24, or + 2 hours`},
		"10:12 posix/Europe/Berlin": {6, 19, `"posix/Europe/Berlin" is not understood: write a time such as 10:12, a date such as 24 dec, a sum such as + 2 hours, or a zone such as Europe/Berlin or +01:00`},
		"10:12 Europe//Berlin":      {6, 6, `"Europe" is not understood: write a time such as 10:12, a date such as 24 dec, a sum such as + 2 hours, or a zone such as Europe/Berlin or +01:00`},
		"10:12 Factory":             {6, 7, `"Factory" is not understood: write a time such as 10:12, a date such as 24 dec, a sum such as + 2 hours, or a zone such as Europe/Berlin or +01:00`},
		"10:12 Mars/Olympus_Mons":   {6, 17, `"Mars/Olympus_Mons" is not understood: write a time such as 10:12, a date such as 24 dec, a sum such as + 2 hours, or a zone such as Europe/Berlin or +01:00`},
		"10:12 UTC+01:00":           {9, 6, `"+01:00" is a second time zone: write only one`},
		"10:12 UTC Europe/Berlin":   {10, 13, `"Europe/Berlin" is a second time zone: write only one`},
		"10:12 +1:00":               {6, 5, `"+1:00" is not an offset: write hours and minutes with two digits each, such as +01:00`},
		"10:12 +01:0":               {6, 5, `"+01:0" is not an offset: write hours and minutes with two digits each, such as +01:00`},
		"10:12 +24:00":              {6, 6, `"+24:00" is not an offset: write hours and minutes with two digits each, such as +01:00`},
		"10:12 +01:60":              {6, 6, `"+01:60" is not an offset: write hours and minutes with two digits each, such as +01:00`},
		"10:12 +0160":               {6, 5, `"+0160" is not an offset: write hours and minutes with two digits each, such as +01:00`},
		"10:12 +01:":                {6, 4, `"+01:" is not an offset: write hours and minutes with two digits each, such as +01:00`},
		"10:12 +:30":                {7, 1, `":" is not a number: write a number and a unit, such as "+ 2 hours"`},
		"10:12 GMT+5":               {10, 1, `"5" has no unit: write one after it, such as "5 hours", or an offset such as +01:00`},
		"UTC":                       {0, 3, `"UTC" is a time zone without a time: write a time before it, such as 10:12`},
		"+01:00":                    {0, 6, `"+01:00" is a time zone without a time: write a time before it, such as 10:12`},

		// Times of day
		"24:00":                {0, 5, `"24:00" is not a time of day: hours go from 00 to 23, write 00:00 of the next day`},
		"25:00":                {0, 5, `"25:00" is not a time of day: hours go from 00 to 23`},
		"12:60":                {0, 5, `"12:60" is not a time of day: minutes go from 00 to 59`},
		"10:12:60":             {0, 8, `"10:12:60" is not a time of day: seconds go from 00 to 59`},
		"13pm":                 {0, 4, `"13pm" is not a time of day: hours go from 1 to 12 before pm`},
		"0am":                  {0, 3, `"0am" is not a time of day: hours go from 1 to 12 before am`},
		"00:30 am":             {0, 8, `"00:30 am" is not a time of day: hours go from 1 to 12 before am`},
		"1312pm":               {0, 6, `"1312pm" is not a time of day: hours go from 1 to 12 before pm`},
		"10:1":                 {0, 4, `"10:1" is not a time of day: write it as 10:12 or 1012`},
		"10:":                  {0, 3, `"10:" is not a time of day: write it as 10:12 or 1012`},
		"110:12":               {0, 6, `"110:12" is not a time of day: write it as 10:12 or 1012`},
		"815":                  {0, 3, `"815" is not a time of day: write it as 10:12 or 1012`},
		"815am":                {0, 5, `"815am" is not a time of day: write it as 10:12 or 1012`},
		"12345":                {0, 5, `"12345" is not a time of day: write it as 10:12 or 1012`},
		"0815:30":              {0, 7, `"0815:30" is not a time of day: write it as 10:12 or 1012`},
		"10:12:30.":            {0, 9, `"10:12:30." is not a time of day: write one to nine digits after the point`},
		"10:12:30.1234567890":  {0, 19, `"10:12:30.1234567890" is not a time of day: write one to nine digits after the point`},
		"2026-12-24T24:00:00Z": {11, 8, `"24:00:00" is not a time of day: hours go from 00 to 23, write 00:00 of the next day`},
		"2026-12-24T23:59:60Z": {11, 8, `"23:59:60" is not a time of day: seconds go from 00 to 59`},
		"pm":                   {0, 2, `"pm" has no hour: write one before it, such as "10pm"`},
		"now pm":               {4, 2, `"pm" has no hour: write one before it, such as "10pm"`},
		"10:12 10:13":          {6, 5, `"10:13" is a second time of day: write only one`},
		"noon 10:12":           {5, 5, `"10:12" is a second time of day: write only one`},
		"now 10:12":            {4, 5, `"now" and "10:12" are two times of day: write only one`},
		"10:12 now":            {6, 3, `"now" and "10:12" are two times of day: write only one`},
		"now now":              {4, 3, `"now" is a second now: write only one`},
		"5 minutes":            {0, 9, `"5 minutes" is neither a time nor a sum: write "in 5 minutes" or "+ 5 minutes"`},
		"10:12 :30":            {6, 1, `":" is not understood: write a time such as 10:12, a date such as 2035-12-24, or + 2 hours`},
		":30":                  {0, 1, `":" is not understood: write a time such as 10:12, a date such as 2035-12-24, or + 2 hours`},

		// Dates
		"30 feb":              {0, 6, `"30 feb" is not a date, because February 2027 has 28 days: write a day that exists`},
		"29 feb":              {0, 6, `"29 feb" is not a date, because February 2027 has 28 days: write a day that exists`},
		"feb 29 2027":         {0, 11, `"feb 29 2027" is not a date, because February 2027 has 28 days: write a day that exists`},
		"31.4.2026":           {0, 9, `"31.4.2026" is not a date, because April 2026 has 30 days: write a day that exists`},
		"2026-02-29":          {0, 10, `"2026-02-29" is not a date, because February 2026 has 28 days: write a day that exists`},
		"2026-13-01":          {0, 10, `"2026-13-01" is not a date, because there is no month 13: write it as YYYY-MM-DD`},
		"2026-00-10":          {0, 10, `"2026-00-10" is not a date, because there is no month 00: write it as YYYY-MM-DD`},
		"2026-12-00":          {0, 10, `"2026-12-00" is not a date, because there is no day 0: write a day from 1 to 31`},
		"2026-12-32":          {0, 10, `"2026-12-32" is not a date, because there is no day 32: write a day from 1 to 31`},
		"32 dec":              {0, 6, `"32 dec" is not a date, because there is no day 32: write a day from 1 to 31`},
		"dec 0":               {0, 5, `"dec 0" is not a date, because there is no day 0: write a day from 1 to 31`},
		"24/12/2026":          {0, 10, `"24/12/2026" is not a date, because there is no month 24: write it as MM/DD/YYYY or YYYY-MM-DD`},
		"20261224":            {0, 8, `"20261224" is not a date, because there is no month 20: write it as MMDDYYYY or YYYY-MM-DD`},
		"2026-123-01":         {0, 11, `"2026-123-01" is not a date: write it as YYYY-MM-DD`},
		"026-12-24":           {0, 9, `"026-12-24" is not a date: write it as YYYY-MM-DD`},
		"24.12.026":           {0, 9, `"24.12.026" is not a date: write it as DD.MM.YYYY`},
		"24.12":               {0, 5, `"24.12" is not understood: write a date with its year, such as 24.12.2035, or a time with a colon, such as 10:12`},
		"10.30":               {0, 5, `"10.30" is not understood: write a date with its year, such as 24.12.2035, or a time with a colon, such as 10:12`},
		"12/24":               {0, 5, `"12/24" is not understood: write a date with its year, such as 24.12.2035, or a time with a colon, such as 10:12`},
		"2026-12":             {5, 2, `"12" has no unit: write one after it, such as "12 hours", or an offset such as +01:00`},
		"24 dec,":             {6, 1, `"," needs a year after it: write one, or omit the comma`},
		"24 dec, 10:12":       {6, 1, `"," needs a year after it: write one, or omit the comma`},
		"dec":                 {0, 3, `"dec" has no day: write it with one, such as "dec 24"`},
		"dec 10:12":           {0, 3, `"dec" has no day: write it with one, such as "dec 24"`},
		"dec 2026":            {0, 3, `"dec" has no day: write it with one, such as "dec 24"`},
		"monday tuesday":      {7, 7, `"tuesday" is a second date: write only one`},
		"tomorrow 2026-12-24": {9, 10, `"2026-12-24" is a second date: write only one`},
		"next":                {0, 4, `"next" needs a weekday or a unit after it: write one, such as "next friday" or "next week"`},
		"next 10:12":          {0, 4, `"next" needs a weekday or a unit after it: write one, such as "next friday" or "next week"`},
		"next now":            {0, 4, `"next" needs a weekday or a unit after it: write one, such as "next friday" or "next week"`},
		"next frday":          {5, 5, `"frday" is not understood: write "friday" if that is meant`},
		"at":                  {0, 2, `"at" needs a time of day after it: write one, or omit "at"`},
		"at tomorrow":         {0, 2, `"at" needs a time of day after it: write one, or omit "at"`},
		"at at 10:12":         {0, 2, `"at" needs a time of day after it: write one, or omit "at"`},
		"on 10:12":            {0, 2, `"on" needs a date after it: write one, or omit "on"`},
		"tomorrow in 2 hours": {9, 2, `"in" must be the first word: write + instead of it`},
		"0000-01-01":          {0, 10, `"0000-01-01" is out of range: write a time in the years 1 to 9999`},

		// Sums
		"+":                          {0, 1, `"+" needs a number and a unit after it: write them, such as "+ 2 hours"`},
		"+ now":                      {2, 3, `"now" is not a number: write a number and a unit, such as "+ 2 hours"`},
		"now +":                      {4, 1, `"+" needs a number and a unit after it: write them, such as "+ 2 hours"`},
		"now + 1000":                 {6, 4, `"1000" has no unit: write one after it, such as "1000 hours"`},
		"noon + 1000":                {7, 4, `"1000" has no unit: write one after it, such as "1000 hours"`},
		"tomorrow + 0800":            {11, 4, `"0800" has no unit: write one after it, such as "0800 hours"`},
		"now+1000":                   {4, 4, `"1000" has no unit: write one after it, such as "1000 hours", or an offset such as +01:00`},
		"now + 5":                    {6, 1, `"5" has no unit: write one after it, such as "5 hours"`},
		"+5":                         {1, 1, `"5" has no unit: write one after it, such as "5 hours", or an offset such as +01:00`},
		"in":                         {0, 2, `"in" needs a number and a unit after it: write them, such as "in 2 hours"`},
		"in 2h30":                    {5, 2, `"30" has no unit: write one after it, such as "30 hours"`},
		"now + 1.5 hours":            {6, 3, `"1.5" is not a whole number: write one, with a smaller unit if necessary`},
		"now + 1,5 hours":            {6, 3, `"1,5" is not a whole number: write one, with a smaller unit if necessary`},
		"now + -1 hours":             {6, 1, `"-" is not a number: write a number and a unit, such as "+ 2 hours"`},
		"now + 123456789 seconds":    {6, 9, `"123456789" is too large: write at most eight digits`},
		"now + 9000 years":           {4, 12, `"+ 9000 years" is out of range: write a time in the years 1 to 9999`},
		"now + 99999999 weeks":       {4, 16, `"+ 99999999 weeks" is out of range: write a time in the years 1 to 9999`},
		"now + 99999999 years":       {4, 16, `"+ 99999999 years" is out of range: write a time in the years 1 to 9999`},
		"- 99999999 days":            {0, 15, `"- 99999999 days" is out of range: write a time in the years 1 to 9999`},
		"minutes":                    {0, 7, `"minutes" has no number: write one before it, such as "+ 2 minutes"`},
		"next week + 1 minute 10:12": {21, 5, `"10:12" follows a sum: write it before "+ 1 minute"`},
		"10:12 + 2 hours tomorrow":   {16, 8, `"tomorrow" follows a sum: write it before "+ 2 hours"`},
		"now + 1 day noon":           {12, 4, `"noon" follows a sum: write it before "+ 1 day"`},
		"2026-01-31 + 1 month":       {11, 9, `"+ 1 month" leads to 31 February 2026, which does not exist: write the exact date, or a sum in days`},
		"2028-02-29 + 1 year":        {11, 8, `"+ 1 year" leads to 29 February 2029, which does not exist: write the exact date, or a sum in days`},

		// The past
		"2026-01-01":                {0, 10, `"2026-01-01" is in the past, because it is 2026-01-01T19:00:12+01:00: write a time in the future, or add --past`},
		"today  10:12":              {0, 12, `"today 10:12" is in the past, because it is 2026-03-28T10:12:00+01:00: write a time in the future, or add --past`},
		"midnight today":            {0, 14, `"midnight today" is in the past, because it is 2026-03-28T00:00:00+01:00: write a time in the future, or add --past`},
		"2026-03-28T19:00:11+01:00": {0, 25, `"2026-03-28T19:00:11+01:00" is in the past, because it is 2026-03-28T19:00:11+01:00: write a time in the future, or add --past`},
		"24 dec 17 utc":             {0, 13, `"24 dec 17 utc" is in the past, because it is 2017-12-24T18:00:12Z (17 is the year; an hour needs a colon, as in 17:00): write a time in the future, or add --past`},
		"Dec 24 1012":               {0, 11, `"Dec 24 1012" is in the past, because it is 1012-12-24T18:06:44Z: write a time in the future, or add --past`},
		"now - 1 second":            {0, 14, `"now - 1 second" is in the past, because it is 2026-03-28T19:00:11+01:00: write a time in the future, or add --past`},
		"10:12 - 2 days":            {0, 14, `"10:12 - 2 days" is in the past, because it is 2026-03-26T10:12:00+01:00: write a time in the future, or add --past`},

		// What the clocks skip or repeat
		"02:30":                                {0, 5, `"02:30" is 02:30 on Sunday 29 March 2026, which the clocks of Europe/Berlin skip: write the exact instant, 2026-03-29T01:30:00+01:00 or 2026-03-29T03:30:00+02:00`},
		"2am":                                  {0, 3, `"2am" is 02:00 on Sunday 29 March 2026, which the clocks of Europe/Berlin skip: write the exact instant, 2026-03-29T01:00:00+01:00 or 2026-03-29T03:00:00+02:00`},
		"tomorrow 2:59:59":                     {9, 7, `"2:59:59" is 02:59 on Sunday 29 March 2026, which the clocks of Europe/Berlin skip: write the exact instant, 2026-03-29T01:59:59+01:00 or 2026-03-29T03:59:59+02:00`},
		"sat 02:30 + 1 day":                    {10, 7, `"+ 1 day" is 02:30 on Sunday 29 March 2026, which the clocks of Europe/Berlin skip: write the exact instant, 2026-03-29T01:30:00+01:00 or 2026-03-29T03:30:00+02:00`},
		"2026-02-28 02:30 + 29 days":           {17, 9, `"+ 29 days" is 02:30 on Sunday 29 March 2026, which the clocks of Europe/Berlin skip: write the exact instant, 2026-03-29T01:30:00+01:00 or 2026-03-29T03:30:00+02:00`},
		"2026-10-25 02:30":                     {11, 5, `"02:30" is 02:30 on Sunday 25 October 2026, which the clocks of Europe/Berlin repeat: write the exact instant, 2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00`},
		"25 oct 2am":                           {7, 3, `"2am" is 02:00 on Sunday 25 October 2026, which the clocks of Europe/Berlin repeat: write the exact instant, 2026-10-25T02:00:00+02:00 or 2026-10-25T02:00:00+01:00`},
		"2026-10-18 02:30 + 1 week":            {17, 8, `"+ 1 week" is 02:30 on Sunday 25 October 2026, which the clocks of Europe/Berlin repeat: write the exact instant, 2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00`},
		"2026-03-08 2:30 America/New_York":     {11, 4, `"2:30" is 02:30 on Sunday 8 March 2026, which the clocks of America/New_York skip: write the exact instant, 2026-03-08T01:30:00-05:00 or 2026-03-08T03:30:00-04:00`},
		"2026-10-04 02:15 Australia/Lord_Howe": {11, 5, `"02:15" is 02:15 on Sunday 4 October 2026, which the clocks of Australia/Lord_Howe skip: write the exact instant, 2026-10-04T01:45:00+10:30 or 2026-10-04T02:45:00+11:00`},
		"2026-04-05 01:45 Australia/Lord_Howe": {11, 5, `"01:45" is 01:45 on Sunday 5 April 2026, which the clocks of Australia/Lord_Howe repeat: write the exact instant, 2026-04-05T01:45:00+11:00 or 2026-04-05T01:45:00+10:30`},
	} {
		got, err := Parse(text, options)
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%q: got %s and %v, want an Error", text, got, err)
			continue
		}
		if e.Text != text || e.Offset != want.offset || e.Length != want.length || e.Error() != want.problem {
			t.Errorf("%q: got\n%d, %d, %s, want\n%d, %d, %s", text, e.Offset, e.Length, e, want.offset, want.length, want.problem)
		}
	}
}

// TestErrorsLater covers errors that depend on a different current time.
func TestErrorsLater(t *testing.T) {
	for world, want := range map[string]map[string]string{
		// Between the two times at which the clocks show 02:30.
		"2026-10-25T02:40:00+02:00 Europe/Berlin": {
			"02:30":              `"02:30" is 02:30 on Sunday 25 October 2026, which the clocks of Europe/Berlin repeat: write the exact instant, 2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00`,
			"02:50":              `"02:50" is 02:50 on Sunday 25 October 2026, which the clocks of Europe/Berlin repeat: write the exact instant, 2026-10-25T02:50:00+02:00 or 2026-10-25T02:50:00+01:00`,
			"tomorrow - 1 day":   `"- 1 day" is 02:40 on Sunday 25 October 2026, which the clocks of Europe/Berlin repeat: write the exact instant, 2026-10-25T02:40:00+02:00 or 2026-10-25T02:40:00+01:00`,
			"now + 1 d - 1 d 1h": `"- 1 d" is 02:40 on Sunday 25 October 2026, which the clocks of Europe/Berlin repeat: write the exact instant, 2026-10-25T02:40:00+02:00 or 2026-10-25T02:40:00+01:00`,
		},
		"2026-01-31T10:00:00-05:00 America/New_York": {
			"next month":       `"next month" leads to 31 February 2026, which does not exist: write the exact date, or a sum in days`,
			"now + 1 month":    `"+ 1 month" leads to 31 February 2026, which does not exist: write the exact date, or a sum in days`,
			"+ 1 month 3 days": `"+ 1 month" leads to 31 February 2026, which does not exist: write the exact date, or a sum in days`,
			"29 feb":           `"29 feb" is not a date, because February 2026 has 28 days: write a day that exists`,
		},
		"2026-12-01T10:00:00+05:30 Asia/Kolkata": {
			"29 feb": `"29 feb" is not a date, because February 2027 has 28 days: write a day that exists`,
		},
		"9999-12-31T23:00:00Z UTC": {
			"tomorrow":                "\"tomorrow\" is out of range: write a time in the years 1 to 9999",
			"22:00":                   "\"22:00\" is out of range: write a time in the years 1 to 9999",
			"now Asia/Kolkata":        "\"now Asia/Kolkata\" is out of range: write a time in the years 1 to 9999",
			"23:30 America/New_York ": "\"23:30\" is out of range: write a time in the years 1 to 9999",
		},
	} {
		t.Run(world, func(t *testing.T) {
			for text, want := range want {
				if got, err := Parse(text, optionsOf(t, world)); err == nil || err.Error() != want {
					t.Errorf("%q: got %s and\n%v, want\n%s", text, got, err, want)
				}
			}
		})
	}
}

func TestCaret(t *testing.T) {
	options := optionsOf(t, "2026-03-28T19:00:12+01:00 Europe/Berlin")
	for text, want := range map[string]string{
		"10:12 tomorow":        "10:12 tomorow\n      ^^^^^^^",
		"10:12\ttomorow\n":     "10:12 tomorow \n      ^^^^^^^",
		"":                     "\n^",
		"now + ":               "now + \n    ^",
		"caf\u00e9 10:12":      "caf\u00e9 10:12\n^^^^",
		"noon \x1b[31mtomorow": "noon  [31mtomorow\n     ^^",
	} {
		_, err := Parse(text, options)
		var e *Error
		if !errors.As(err, &e) || e.Caret() != want {
			t.Errorf("%q: got %v and\n%s, want\n%s", text, err, e.Caret(), want)
		}
	}
}

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
		"now + 2 hours", "in 2h30m", "+90m", "tomorrow 10:12", "10:12 pm", "next friday at noon", "teatime", "1012",
		"24 dec 10:12", "December 24, 2026", "2026-12-24T10:12:00.123456789+01:00", "24.12.2026", "12/24/26", "122426",
		"8 :15amjan24", "17\n utc+\n 30minutes", "friday next week Europe/Berlin", "noon EST5EDT - 1 y 2 w",
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
		same("upper case", strings.ToUpper(text))
		same("lower case", strings.ToLower(text))

		options.AllowPast = true
		again, err := Parse(got.String(), options)
		if err != nil || !again.Instant.Equal(got.Instant) || again.String() != got.String() {
			t.Fatalf("got %s, and of that %s and %v", got, again, err)
		}
	})
}
