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
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"programming-kubernetes.info/cnat-controller/pkg/audit"
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
	var readers []io.Reader
	for _, name := range files {
		if name == "-" {
			readers = append(readers, c.In)
			continue
		}
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		readers = append(readers, file)
	}
	writes, unusable, err := audit.ReadLog(io.MultiReader(readers...))
	switch {
	case err != nil:
		return err
	case unusable > 0:
		return fmt.Errorf("%d writes have no answer: set the level of ats, cronats and pods to RequestResponse in the audit policy", unusable)
	case len(writes) == 0:
		return errors.New("the log has no write of an At, a CronAt or a Pod")
	}
	checker := audit.NewChecker()
	checker.Skew = skew
	for _, w := range writes {
		checker.Add(w)
	}
	first, last := writes[0].Time, writes[len(writes)-1].Time
	checker.Settle(last, grace)
	s := checker.Summary
	fmt.Fprintf(c.Out, "%d writes from %s to %s: %d Ats, %d CronAts, %d Pods\n", s.Writes, first.In(c.local()).Format(longTime), last.In(c.local()).Format(longTime), s.Ats, s.CronAts, s.Pods)
	for _, reason := range slices.Sorted(maps.Keys(s.Ends)) {
		fmt.Fprintf(c.Out, "ended %s: %d\n", reason, s.Ends[reason])
	}
	if len(s.Late) > 0 {
		median, p99, most := s.Lateness()
		fmt.Fprintf(c.Out, "late: median %v, p99 %v, at most %v\n", median.Round(time.Millisecond), p99.Round(time.Millisecond), most.Round(time.Millisecond))
	}
	for _, violation := range checker.Violations {
		fmt.Fprintln(c.Out, violation)
	}
	if number := len(checker.Violations); number > 0 {
		return withCode(exitFailed, "%d guarantees were broken: see the list above, and the exceptions in docs/concepts/guarantees.md", number)
	}
	fmt.Fprintln(c.Out, "no guarantee was broken")
	return nil
}
