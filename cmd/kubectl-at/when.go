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
	"fmt"
	"strings"
	"time"

	"programming-kubernetes.info/cnat-controller/cmd/kubectl-at/timespec"
)

const (
	longTime  = "Mon 2 Jan 2006 15:04:05 MST"
	shortTime = "2006-01-02 15:04:05 MST"
)

// parseTime parses the words of a time.
func (c *cli) parseTime(words []string, now time.Time, past bool) (timespec.Time, error) {
	zone, err := c.zone()
	if err != nil {
		return timespec.Time{}, err
	}
	return timespec.Parse(text(words), timespec.Options{Now: now, Zone: zone, AllowPast: past})
}

// announce prints when an At runs.
func (c *cli) announce(verb string, instant, now time.Time) error {
	zone, err := c.zone()
	if err != nil {
		return err
	}
	fmt.Fprintf(c.ErrOut, "%s %s\n", verb, when(instant, zone, now))
	return nil
}

// when returns an instant in the user's time zone, in UTC, in its own zone if different,
// and relative to now.
func when(instant time.Time, zone *time.Location, now time.Time) string {
	local := instant.In(zone)
	s := local.Format(longTime)
	_, localOffset := local.Zone()
	var others []string
	if localOffset != 0 {
		others = append(others, shortUTC(local))
	}
	if _, offset := instant.Zone(); offset != 0 && offset != localOffset {
		others = append(others, instant.Format("Mon 2 Jan 15:04:05 MST"))
	}
	if len(others) > 0 {
		s += " (" + strings.Join(others, ", ") + ")"
	}
	if !instant.After(now) {
		return s + ", at once"
	}
	return s + ", " + fromNow(instant, now)
}

// shortUTC returns an instant in UTC, without the date if it is the same as in the
// instant's zone.
func shortUTC(instant time.Time) string {
	utc, layout := instant.UTC(), "15:04Z"
	if utc.Second() != 0 {
		layout = "15:04:05Z"
	}
	if utc.Day() != instant.Day() {
		layout = "Mon 2 Jan " + layout
	}
	return utc.Format(layout)
}

// fromNow describes how far in the future or past an instant is.
func fromNow(instant, now time.Time) string {
	if instant.After(now) {
		return "in " + short(instant.Sub(now))
	}
	return short(now.Sub(instant)) + " ago"
}

// short returns a duration in its two largest units. HumanDuration in apimachinery only
// shows hours for eight hours or more.
func short(d time.Duration) string {
	units := []struct {
		name string
		size time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}}
	for i, unit := range units {
		if d < unit.size {
			continue
		}
		s := fmt.Sprintf("%d%s", d/unit.size, unit.name)
		if i+1 < len(units) {
			if rest := d % unit.size / units[i+1].size; rest > 0 {
				s += fmt.Sprintf("%d%s", rest, units[i+1].name)
			}
		}
		return s
	}
	return "0s"
}
