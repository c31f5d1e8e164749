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
	"time"

	"github.com/spf13/cobra"
)

func (c *cli) explainCommand() *cobra.Command {
	past := false
	cmd := &cobra.Command{
		Use:   "explain TIME",
		Short: "Show how a time is understood",
		Long:  "Show how a time is understood: the instant in the relevant time zones, and the rule that applies. It needs no cluster.",
		Example: `  kubectl at explain tomorrow 10:12
  kubectl at explain --tz America/New_York next friday noon`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, words []string) error {
			now := c.now().Truncate(time.Second) // as t
			t, err := c.parseTime(words, now, past)
			if err != nil {
				return err
			}
			zone, err := c.zone()
			if err != nil {
				return err
			}
			fmt.Fprintf(c.Out, "%-9s%s\n", "schedule", t)
			for _, zoned := range clocks(t.Instant, zone) {
				fmt.Fprintf(c.Out, "%-9s%s\n", zoned.label, zoned.shown)
			}
			fmt.Fprintf(c.Out, "%-9s%s\n%-9s%s\n", "from now", fromNow(t.Instant, now), "how", t.How)
			return nil
		},
	}
	cmd.Flags().BoolVar(&past, "past", false, "Allow a time in the past")
	return cmd
}

type zoned struct{ label, shown string }

// clocks shows an instant in the user's time zone, in UTC and, if different, in its own
// zone.
func clocks(instant time.Time, zone *time.Location) []zoned {
	local := instant.In(zone)
	all := []zoned{{"local", local.Format(longTime)}, {"UTC", instant.UTC().Format(longTime)}}
	_, localOffset := local.Zone()
	if _, offset := instant.Zone(); offset != 0 && offset != localOffset {
		all = append(all, zoned{"there", instant.Format(longTime)})
	}
	return all
}
