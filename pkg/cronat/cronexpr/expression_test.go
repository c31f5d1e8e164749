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

package cronexpr

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/robfig/cron/v3"
)

func TestParseExpression(t *testing.T) {
	const (
		minutes = `: write numbers from 0 to 59, ranges such as 1-4, steps such as */2, lists such as 1,3, or *`
		days    = `: write numbers from 1 to 31, ranges such as 2-5, steps such as */2, lists such as 2,4, or *`
		every   = `write a duration of at least a minute in hours, minutes and seconds, such as "@every 90m" or "@every 1h30m"`
		short   = `the duration is too short: write "@every 1m" or longer`
	)
	for text, want := range map[string]string{
		"0 3 * * 1-5":                  "",
		" 0  3\t* * * ":                "",
		"*/15,7 0-6/2 ? JAN-mar Mon":   "",
		"00 09 01 01 06":               "",
		"5/20 * * * MON-5":             "",
		"*/05 */90 */9999 * *":         "",
		"59 23 31 12 6":                "",
		"@midnight":                    "",
		"@every 60s":                   "",
		"@every 1h30m0.5s":             "",
		"":                             "it does not have five fields: " + usage,
		"0 3 * *":                      "it does not have five fields: " + usage,
		"0 0 3 * * *":                  "it does not have five fields: " + usage,
		"XYZ":                          "it does not have five fields: " + usage,
		"@reboot":                      usage,
		"@Daily":                       usage,
		"@daily ":                      usage,
		"60 0 * * *":                   `minute "60"` + minutes,
		"*-5 * * * *":                  `minute "*-5"` + minutes,
		"1,,2 * * * *":                 `minute "1,,2"` + minutes,
		",1 * * * *":                   `minute ",1"` + minutes,
		"1, * * * *":                   `minute "1,"` + minutes,
		"+5 * * * *":                   `minute "+5"` + minutes,
		"-5 * * * *":                   `minute "-5"` + minutes,
		"5- * * * *":                   `minute "5-"` + minutes,
		"1-2-3 * * * *":                `minute "1-2-3"` + minutes,
		"*/0 * * * *":                  `minute "*/0"` + minutes,
		"*/+5 * * * *":                 `minute "*/+5"` + minutes,
		"*/5/5 * * * *":                `minute "*/5/5"` + minutes,
		"1.5 * * * *":                  `minute "1.5"` + minutes,
		"005 * * * *":                  `minute "005"` + minutes,
		"99999999999999999999 * * * *": `minute "99999999999999999999"` + minutes,
		"0 24 * * *":                   `hour "24": write numbers from 0 to 23, ranges such as 1-4, steps such as */2, lists such as 1,3, or *`,
		"0 0 0 * *":                    `day of month "0"` + days,
		"0 0 L * *":                    `day of month "L"` + days,
		"0 0 15W * *":                  `day of month "15W"` + days,
		"0 0 * 13 *":                   `month "13": write numbers from 1 to 12 or names from JAN to DEC, ranges such as 2-5, steps such as */2, lists such as 2,4, or *`,
		"0 0 * * 7":                    `day of week "7": write numbers from 0 (Sunday) to 6 or names from SUN to SAT, ranges such as 1-4, steps such as */2, lists such as 1,3, or *`,
		"5-3 * * * *":                  `minute "5-3": the range 5-3 ends before it begins: write 5-59,0-3`,
		"0 0 * * 1,sat-Mon":            `day of week "1,sat-Mon": the range sat-Mon ends before it begins: write sat-6,0-Mon`,
		"@every 59s":                   short,
		"@every 0s":                    short,
		"@every 59.9s":                 short,
		"@every 100ms":                 every,
		"@every -5m":                   every,
		"@every 5":                     every,
		"@every":                       every,
		"@every  90m":                  every,
		"@every 999999999h":            "the duration is too long: write less than 292 years",
		"@every 2562048h":              "the duration is too long: write less than 292 years",
	} {
		got, err := parseExpression(text)
		if want == "" {
			expected, parseErr := cron.ParseStandard(text)
			if diff := cmp.Diff(expected, got, cmp.Comparer(func(a, b *cron.SpecSchedule) bool { return *a == *b })); err != nil || parseErr != nil || diff != "" {
				t.Errorf("%q: got %v and %v, -want +got:\n%s", text, err, parseErr, diff)
			}
		} else if err == nil || err.Error() != want {
			t.Errorf("%q: got  %v\nwant %s", text, err, want)
		}
	}
}

// FuzzParseExpression checks that robfig/cron can parse what parseExpression accepts.
func FuzzParseExpression(f *testing.F) {
	for _, text := range []string{"*/15,7 0-6/2 ? JAN-mar Mon", "@every 1h30m", "@daily", "0 3 * *", "*-5 1,, 07 +5 L"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := parseExpression(text); err == nil {
			if _, err := cron.ParseStandard(text); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestSurprises(t *testing.T) {
	for text, want := range map[string][]string{
		"*/15 */6 * */3 *":   nil,
		"*/1 */1 */1 * */1":  nil,
		"*/60 10-50/7 * * *": nil,
		"0 0 1 * *":          nil,
		"0 0 * * 1-5":        nil,
		"0 0 */1 * 1":        nil,
		"@every 7m":          nil,
		"@monthly":           nil,
		"61 * 1 * 1":         nil, // invalid
		"*/90 * * * *":       {`minute */90 means minute 0 of each hour, not every 90 minutes: for that, write "@every 90m"`},
		"0,5/40 * * * *":     {`minute 5/40 means minute 5,45 of each hour, not every 40 minutes: for that, write "@every 40m"`},
		"0 */5 * * *":        {`hour */5 means hour 0,5,10,15,20 of each day, not every 5 hours: for that, write "@every 5h"`},
		"0 0 */15 */5 *": {
			"day of month */15 means day of month 1,16,31 of each month, not every 15 days",
			"month */5 means month 1,6,11 of each year, not every 5 months",
		},
		"0 0 1-7 * MON": {"day of month 1-7 and day of week MON: it runs on each day that matches one of them, not only on days that match both"},
		"0 0 */2 * 1": {
			"day of month */2 means day of month 1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31 of each month, not every 2 days",
			"day of month */2 and day of week 1: it runs on each day that matches one of them, not only on days that match both",
		},
	} {
		if diff := cmp.Diff(want, Surprises(text)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", text, diff)
		}
	}
}
