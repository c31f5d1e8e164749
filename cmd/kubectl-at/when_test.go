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

package main

import (
	"strings"
	"testing"
	"time"

	"programming-kubernetes.info/cnat-controller/cmd/kubectl-at/timespec"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/zones"
)

func location(t *testing.T, name string) *time.Location {
	t.Helper()
	zone, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return zone
}

func TestWhen(t *testing.T) {
	berlin, auckland := location(t, "Europe/Berlin"), location(t, "Pacific/Auckland")
	instant := time.Date(2026, 3, 28, 10, 12, 0, 0, berlin)
	for name, tc := range map[string]struct {
		instant time.Time
		zone    *time.Location
		now     time.Time
		want    string
	}{
		"later":                        {instant, berlin, instant.Add(-19*time.Hour - 12*time.Minute), "Sat 28 Mar 2026 10:12:00 CET (09:12Z), in 19h12m"},
		"in UTC":                       {instant.UTC(), time.UTC, instant.Add(-time.Minute), "Sat 28 Mar 2026 09:12:00 UTC, in 1m"},
		"now":                          {instant, berlin, instant, "Sat 28 Mar 2026 10:12:00 CET (09:12Z), at once"},
		"in the past":                  {instant, berlin, instant.Add(time.Hour), "Sat 28 Mar 2026 10:12:00 CET (09:12Z), at once"},
		"seconds":                      {instant.Add(5 * time.Second), berlin, instant, "Sat 28 Mar 2026 10:12:05 CET (09:12:05Z), in 5s"},
		"another day":                  {instant.In(auckland), auckland, instant.Add(-time.Hour), "Sat 28 Mar 2026 22:12:00 NZDT (09:12Z), in 1h"},
		"day before, UTC":              {instant.Add(4 * time.Hour).In(auckland), auckland, instant, "Sun 29 Mar 2026 02:12:00 NZDT (Sat 28 Mar 13:12Z), in 4h"},
		"another zone":                 {instant, auckland, instant.Add(-time.Hour), "Sat 28 Mar 2026 22:12:00 NZDT (09:12Z, Sat 28 Mar 2026 10:12:00 Europe/Berlin), in 1h"},
		"another zone, for one in UTC": {instant, time.UTC, instant.Add(-time.Hour), "Sat 28 Mar 2026 09:12:00 UTC (Sat 28 Mar 2026 10:12:00 Europe/Berlin), in 1h"},
		"UTC, for one elsewhere":       {instant.UTC(), berlin, instant.Add(-time.Hour), "Sat 28 Mar 2026 10:12:00 CET (09:12Z), in 1h"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := when(tc.instant, tc.zone, tc.now); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 999 * time.Millisecond: "0s", 5 * time.Second: "5s", time.Minute: "1m", 90 * time.Second: "1m30s",
		time.Hour: "1h", time.Hour + time.Second: "1h", 19*time.Hour + 12*time.Minute: "19h12m",
		24 * time.Hour: "1d", 49 * time.Hour: "2d1h", 400 * 24 * time.Hour: "400d",
	} {
		if got := short(d); got != want {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
	}
}

// TestOutputIsATime parses what the program prints.
func TestOutputIsATime(t *testing.T) {
	now := now.AddDate(0, 0, -1)
	for _, name := range []string{"Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "UTC"} {
		zone := location(t, name)
		for local := now.In(zone); local.Before(now.AddDate(1, 1, 0)); {
			_, offset := local.Zone()
			_, _, times := zones.Showing(time.Date(local.Year(), local.Month(), local.Day(), local.Hour(), local.Minute(), 0, 0, time.UTC), zone)
			at := &v1alpha1.At{Spec: v1alpha1.AtSpec{Schedule: local.Format("2006-01-02T15:04:05"), TimeZone: &name}}
			shown := whenOf(at, zone, now)
			for _, text := range []string{
				strings.TrimSuffix(shown[len(shown)-1].value, ", as written"),
				local.Format(longTime), local.Format(shortTime), local.UTC().Format(longTime),
				inItsZone(local), inItsZone(local.In(time.FixedZone("", offset))), timespec.Time{Instant: local}.String(),
			} {
				got, err := timespec.Parse(text, timespec.Options{Now: now, Zone: zone})
				if err != nil && times == 2 && strings.HasSuffix(text, name) {
					continue // The name of a zone does not say which of two times is meant.
				}
				if err != nil || !got.Instant.Equal(local) {
					t.Fatalf("%s in %s: got %s and %v, want %s", text, name, got, err, local)
				}
			}
			_, before := local.Add(-8 * time.Hour).Zone()
			if _, after := local.Add(8 * time.Hour).Zone(); before == after {
				local = local.Add(6 * time.Hour)
			} else {
				local = local.Add(15 * time.Minute)
			}
		}
	}
}

func TestFromNow(t *testing.T) {
	for instant, want := range map[time.Time]string{
		now.Add(-90 * time.Second): "1m30s ago",
		now:                        "0s ago",
		now.Add(time.Second):       "in 1s",
	} {
		if got := fromNow(instant, now); got != want {
			t.Errorf("%s: got %s, want %s", instant, got, want)
		}
	}
}
