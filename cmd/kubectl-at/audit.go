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
	"maps"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"programming-kubernetes.info/cnat-controller/pkg/audit"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

func (c *cli) auditCommand() *cobra.Command {
	var grace, skew time.Duration
	cmd := &cobra.Command{
		Use:   "audit FILE...",
		Short: "Check the guarantees of cnat in an audit log",
		Long: `Check the guarantees of cnat in the audit log of your API server: whether anything ran twice, before
its time, after it was suspended or deleted, or was lost, and how late it was. The log needs the
answers to writes of Ats, CronAts and Pods, level RequestResponse. The file - is the standard input.
It needs no cluster. The exit code is 3 if a guarantee was broken.`,
		Example: `  kubectl at audit /var/log/kubernetes/audit.log
  jq -c 'select(.objectRef.namespace == "shop")' audit.log | kubectl at audit -`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, files []string) error { return c.audit(files, grace, skew) },
	}
	cmd.Flags().DurationVar(&grace, "grace", 10*time.Minute, "How long before the end of the log something must have been due, so that it counts as lost")
	cmd.Flags().DurationVar(&skew, "clock-skew", 100*time.Millisecond, "How much the clocks of the controller and of the API server may differ")
	return cmd
}

func (c *cli) audit(files []string, grace, skew time.Duration) error {
	var log audit.Log
	for _, name := range files {
		if err := c.readLog(&log, name); err != nil {
			return err
		}
	}
	writes, err := log.Writes()
	if err != nil {
		return err
	}
	checker := audit.NewChecker()
	checker.Skew = skew
	for _, w := range writes {
		checker.Add(w)
	}
	checker.Settle(log.Last, grace)
	s := checker.Summary
	c.printf("%s from %s to %s: %s, %s, %s", count(s.Writes, "write"), log.First.In(c.local()).Format(longTime), log.Last.In(c.local()).Format(longTime),
		count(s.Ats, "At"), count(s.CronAts, "CronAt"), count(s.Pods, "Pod"))
	for _, reason := range slices.Sorted(maps.Keys(s.Ends)) {
		c.printf("ended %s: %d", reason, s.Ends[reason])
	}
	for _, reason := range slices.Sorted(maps.Keys(s.Blocked)) {
		c.printf("blocked %s: %d", reason, s.Blocked[reason])
	}
	switch {
	case log.Deployments == 0:
		c.printf("restarts are not checked: the log has no answers to writes of Deployments")
	case log.UnusableDeployments > 0:
		c.printf("not all restarts are checked: %s of Deployments without an answer", count(log.UnusableDeployments, "write"))
	default:
		c.printf("restarts of Deployments: %d", s.Restarts)
	}
	if len(s.Late) > 0 {
		median, p99, most := s.Lateness()
		c.printf("late: median %v, p99 %v, at most %v", median.Round(time.Millisecond), p99.Round(time.Millisecond), most.Round(time.Millisecond))
	}
	if log.Last.Sub(log.First) < grace {
		c.printf("the log is shorter than --grace %v: it cannot show what is lost", grace)
	}
	for _, violation := range checker.Violations {
		c.printf("%s", violation)
	}
	if number := len(checker.Violations); number > 0 {
		return withCode(exitFailed, "broken guarantees: %d. See the list above, and the exceptions in docs/concepts/guarantees.md", number)
	}
	c.printf("no guarantee was broken")
	return nil
}

// readLog reads a file of an audit log.
func (c *cli) readLog(log *audit.Log, name string) error {
	if name == "-" {
		return log.Read("standard input", c.In)
	}
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return log.Read(name, file)
}

// printf prints a line. A log contains what users write.
func (c *cli) printf(format string, args ...any) {
	fmt.Fprintln(c.Out, answer.OneLine(fmt.Sprintf(format, args...)))
}

// count returns a number of things.
func count(number int, thing string) string {
	if number != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", number, thing)
}
