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
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"programming-kubernetes.info/cnat-controller/cmd/kubectl-at/timespec"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/zones"
)

const (
	longTime  = "Mon 2 Jan 2006 15:04:05 MST"
	shortTime = "2006-01-02 15:04:05 MST"
	// wallClockTime is a schedule that needs a time zone.
	wallClockTime = "2006-01-02T15:04:05.999999999"
)

func (c *cli) explainCommand() *cobra.Command {
	past := false
	cmd := &cobra.Command{
		Use:   "explain TIME",
		Short: "Show how a time is understood",
		Long:  "Show how a time is understood: the instant in the relevant time zones, and the rule that applies. It needs no cluster.",
		Example: `  kubectl at explain tomorrow 10:12
  kubectl at explain --tz America/New_York friday noon`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, words []string) error {
			t, err := c.parseTime(words, timespec.Options{AllowPast: past})
			if err != nil {
				return err
			}
			local, there := t.Instant.In(c.local()), ""
			if isElsewhere(t.Instant, local) {
				there = inItsZone(t.Instant)
			}
			printFields(c.Out, []field{
				{"schedule", t.String()}, {"local", local.Format(longTime)}, {"UTC", t.Instant.UTC().Format(longTime)}, {"there", there},
				{"from now", fromNow(t.Instant, c.began)}, {"how", t.How},
			})
			return nil
		},
	}
	cmd.Flags().BoolVar(&past, "past", false, "Allow a time in the past")
	return cmd
}

// zone returns the user's time zone.
func (c *cli) zone() (*time.Location, error) {
	name, from := c.tz, "--tz"
	if name == "" {
		name, from = strings.TrimPrefix(os.Getenv("TZ"), ":"), "$TZ, which --tz overrides,"
		if name == "" || strings.HasPrefix(name, "/") {
			return time.Local, nil
		}
	}
	// If Go cannot read $TZ, time.Local is UTC.
	zone, err := timespec.LoadZone(name)
	if err != nil {
		return nil, usageError("%s is %q: %w", from, name, err)
	}
	return zone, nil
}

// local returns that zone for output, or UTC if it is unknown: all output has the zone.
func (c *cli) local() *time.Location {
	if zone, err := c.zone(); err == nil {
		return zone
	}
	return time.UTC
}

// shown returns a time for a table.
func (c *cli) shown(t time.Time) string { return t.In(c.local()).Format(shortTime) }

// zoneName returns the name of that zone, which a CronAt stores.
func (c *cli) zoneName() (string, error) {
	zone, err := c.zone()
	if err != nil {
		return "", err
	}
	name := zone.String()
	if zone == time.Local {
		path := strings.TrimPrefix(os.Getenv("TZ"), ":")
		if path == "" {
			path = "/etc/localtime"
		}
		name = localZone(path, zone)
	}
	if _, err := zones.Load(name); err != nil {
		return "", usageError("the name of your time zone is unknown: specify it with --tz, such as --tz Europe/Berlin")
	}
	return name, nil
}

// localZone returns the name of the machine's zone according to the link of its file, or
// "" if it is unknown.
func localZone(path string, zone *time.Location) string {
	if zone.String() == "UTC" { // There is no file, or $TZ is empty.
		return "UTC"
	}
	file, _ := filepath.EvalSymlinks(path)
	_, name, _ := strings.Cut(filepath.ToSlash(file), "/zoneinfo/")
	return name
}

// parseTime parses the words of a time, in the user's zone unless the options have one.
func (c *cli) parseTime(words []string, options timespec.Options) (t timespec.Time, err error) {
	options.Now = c.began
	if options.Zone == nil {
		options.Zone, err = c.zone()
	}
	if err == nil {
		t, err = timespec.Parse(strings.Join(words, " "), options)
	}
	return t, err
}

// zoneOfAt returns the zone of an At: that of --tz, if it is given, or the one that the At names. Otherwise
// it only has an offset: that is the user's zone if it has the same offset then.
func (c *cli) zoneOfAt(at *v1alpha1.At) (*time.Location, error) {
	zone, err := c.zone()
	if err != nil || c.tz != "" {
		return zone, err
	}
	if at.Spec.TimeZone != nil {
		return zones.Load(*at.Spec.TimeZone)
	}
	instant := instantOf(at)
	_, there := instant.Zone()
	if _, here := instant.In(zone).Zone(); here == there {
		return zone, nil
	}
	return instant.Location(), nil
}

// announce prints when something runs, and a remark.
func (c *cli) announce(verb string, instant time.Time, remark string) {
	c.say("%s %s%s", verb, when(instant, c.local(), c.began), remark)
}

// isElsewhere reports whether an instant is in a zone whose clocks show something else
// than those of the user and UTC. local is the same instant in the user's zone.
func isElsewhere(instant, local time.Time) bool {
	_, there := instant.Zone()
	_, here := local.Zone()
	return there != 0 && there != here
}

// inItsZone formats an instant with the name of its zone, or its offset if there is no name.
// TIME accepts both, but accepts an abbreviation only of the user's own zone, and an offset only after a year.
func inItsZone(instant time.Time) string {
	const layout = "Mon 2 Jan 2006 15:04:05"
	if name := instant.Location().String(); name != "" {
		return instant.Format(layout) + " " + name
	}
	return instant.Format(layout + " -07:00")
}

// when returns an instant in the user's time zone, in UTC, in its own zone if different,
// and relative to now.
func when(instant time.Time, zone *time.Location, now time.Time) string {
	local := instant.In(zone)
	s := local.Format(longTime)
	var others []string
	if _, offset := local.Zone(); offset != 0 {
		others = append(others, shortUTC(local))
	}
	if isElsewhere(instant, local) {
		others = append(others, inItsZone(instant))
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

const day = 24 * time.Hour

// zeros are units of a duration that nobody needs.
var zeros = strings.NewReplacer("d0s", "d", "h0m0s", "h", "m0s", "m")

// short returns a duration in its two largest units. HumanDuration in apimachinery only
// shows hours for eight hours or more.
func short(d time.Duration) string {
	days, smallest := "", time.Second
	switch {
	case d >= day:
		days, smallest = fmt.Sprintf("%dd", d/day), time.Hour
	case d >= time.Hour:
		smallest = time.Minute
	}
	return zeros.Replace(days + max(0, d%day).Truncate(smallest).String()) // The clocks of two machines may differ.
}
