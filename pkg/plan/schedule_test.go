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

package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/zones"
)

func TestInstant(t *testing.T) {
	for schedule, want := range map[string]time.Time{
		"2026-12-24T10:12:00Z":      due,
		"2026-12-24T11:12:00+01:00": due,
		"2026-12-24T10:12:00.5Z":    due.Add(time.Second / 2),
		"0001-01-01T00:00:00Z":      {},
		"9999-12-31T23:59:59Z":      time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),

		"2026-12-24T11:12:00 Europe/Berlin":           due,
		"2026-12-24T15:42:00.25 Asia/Kolkata":         due.Add(time.Second / 4),
		"2026-03-29T01:59:59.999999999 Europe/Berlin": time.Date(2026, 3, 29, 0, 59, 59, 999999999, time.UTC),
		"2026-03-29T03:00:00 Europe/Berlin":           time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC),
		"2026-10-25T01:59:59.999999999 Europe/Berlin": time.Date(2026, 10, 24, 23, 59, 59, 999999999, time.UTC),
		"2026-10-25T03:00:00 Europe/Berlin":           time.Date(2026, 10, 25, 2, 0, 0, 0, time.UTC),
		"2026-04-05T03:00:00 Australia/Lord_Howe":     time.Date(2026, 4, 4, 16, 30, 0, 0, time.UTC),
		"2011-12-29T23:59:59 Pacific/Apia":            time.Date(2011, 12, 30, 9, 59, 59, 0, time.UTC),
		"2011-12-31T00:00:00 Pacific/Apia":            time.Date(2011, 12, 30, 10, 0, 0, 0, time.UTC),
		"0001-01-01T00:00:00 UTC":                     {},
		"9999-12-31T23:59:59 UTC":                     time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
	} {
		t.Run(schedule, func(t *testing.T) {
			got, err := Instant(specOf(schedule))
			if err != nil {
				t.Fatal(err)
			}
			if !got.Equal(want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}

	for schedule, want := range map[string]string{
		"tomorrow":                 "is invalid",
		"2026-12-24T10:12:00":      "write a time in RFC 3339 format",
		"2026-12-24T10:12Z":        "is invalid",
		"2025-02-29T10:12:00Z":     "is invalid",
		"2026-12-24T10:12:00Z UTC": "without an offset",
		"2026-02-30T10:12:00 UTC":  "is invalid",
		"2026-03-29T02:30:00 Europe/Berlin": "the clocks in Europe/Berlin skip 2026-03-29T02:30:00: omit spec.timeZone and set spec.schedule to " +
			"2026-03-29T03:30:00+02:00 or 2026-03-29T01:30:00+01:00",
		"2026-10-25T02:30:00.5 Europe/Berlin": "the clocks in Europe/Berlin repeat 2026-10-25T02:30:00.5: omit spec.timeZone and set spec.schedule to " +
			"2026-10-25T02:30:00.5+02:00 or 2026-10-25T02:30:00.5+01:00",
		"2026-03-29T02:00:00 Europe/Berlin":       "skip",
		"2026-10-25T02:00:00 Europe/Berlin":       "repeat",
		"2026-10-04T02:15:00 Australia/Lord_Howe": "skip",
		"2026-04-05T01:45:00 Australia/Lord_Howe": "repeat",
		"2011-12-30T12:00:00 Pacific/Apia":        "skip",
	} {
		t.Run("no instant: "+schedule, func(t *testing.T) {
			if got, err := Instant(specOf(schedule)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v and %v, want %s", got, err, want)
			}
		})
	}
}

// TestTimeZone checks that exactly the names in the IANA database are accepted on every
// machine, regardless of its time zone files: users could fill the cache with other
// spellings.
func TestTimeZone(t *testing.T) {
	for _, name := range zones.Names() {
		if _, err := Instant(specOf("2026-12-24T10:12:00 " + name)); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5", "Asia/Calcutta", "US/Pacific", "CET", "GMT0"} {
		if !slices.Contains(zones.Names(), name) {
			t.Errorf("%s is not listed", name)
		}
	}

	for _, name := range []string{
		"", "Berlin", "Local", "localtime", "../passwd", "/Europe/Berlin", "Europe", "Europe/",
		"Europe/./Berlin", "./Europe/Berlin", "Europe//Berlin", "Europe/Berlin/", "europe/berlin", "EUROPE/BERLIN", "utc",
		"posix/Europe/Berlin", "right/Europe/Berlin", "posixrules", "Factory", "tzdata.zi", "zone.tab",
		" UTC", "UTC ", "UTC\n", "Europe/Berlin\nUTC",
	} {
		t.Run(name, func(t *testing.T) {
			spec := &v1alpha1.AtSpec{Schedule: "2026-12-24T10:12:00", TimeZone: &name}
			want := fmt.Sprintf("spec.timeZone %q is unknown: write a name from the IANA time zone database, such as Europe/Berlin", name)
			if got, err := Instant(spec); err == nil || err.Error() != want {
				t.Errorf("got %v and %v, want %s", got, err, want)
			}
		})
	}
}

// specOf returns the spec with a schedule and, behind a space, a time zone.
func specOf(schedule string) *v1alpha1.AtSpec {
	spec := &v1alpha1.AtSpec{Schedule: schedule}
	if schedule, timeZone, found := strings.Cut(schedule, " "); found {
		spec.Schedule, spec.TimeZone = schedule, ptr.To(timeZone)
	}
	return spec
}

// FuzzInstant looks for a schedule that panics, or that does not say the same
// again when it is written as the controller writes it into the Pod's annotation.
func FuzzInstant(f *testing.F) {
	for _, seed := range []string{
		"2026-12-24T10:12:00Z", "2026-12-24T10:12:00.5+01:00", "0001-01-01T00:00:00+23:59 UTC",
		"2026-03-29T02:30:00 Europe/Berlin", "2026-10-25T02:30:00 Europe/Berlin", "2026-10-25T02:30:00.123456789 Asia/Kolkata",
		"1883-11-18T12:03:00 America/New_York", "1972-01-07T00:30:00 Africa/Monrovia", "2011-12-30T12:00:00 Pacific/Apia",
	} {
		schedule, timeZone, _ := strings.Cut(seed, " ")
		f.Add(schedule, timeZone)
	}
	f.Fuzz(func(t *testing.T, schedule, timeZone string) {
		spec := &v1alpha1.AtSpec{Schedule: schedule}
		if timeZone != "" {
			spec.TimeZone = &timeZone
		}
		instant, err := Instant(spec)
		if err == nil && spec.TimeZone != nil {
			location, err := time.LoadLocation(timeZone)
			if err != nil || !strings.HasPrefix(schedule, instant.In(location).Format(zones.Layout)) {
				t.Errorf("%q in %q is %v, when the clocks there show another time (%v)", schedule, timeZone, instant, err)
			}
		}
		if err != nil || instant.UTC().Year() < 0 || instant.UTC().Year() > 9999 {
			return // RFC 3339 has no such years.
		}
		again, err := Instant(&v1alpha1.AtSpec{Schedule: instant.UTC().Format(time.RFC3339Nano)})
		if err != nil || !again.Equal(instant) {
			t.Errorf("%q in %q is %v, and written again %v (%v)", schedule, timeZone, instant, again, err)
		}
	})
}
