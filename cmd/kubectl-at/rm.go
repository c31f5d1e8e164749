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
	"context"
	"fmt"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (c *cli) rmCommand() *cobra.Command {
	var output *output
	cmd := &cobra.Command{
		Use:     "rm NAME|cronat/NAME...",
		Aliases: []string{"delete"},
		Short:   "Delete Ats and CronAts, and stop running Ats",
		Long: `Delete Ats and CronAts. Ats that have not started do not run; running Ats are
stopped; the output of finished Ats is lost. The Ats of a CronAt are deleted with it.`,
		Example: `  kubectl at rm backup-x2b4f
  kubectl at rm cronat/backup`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := output.validate(); err != nil {
				return err
			}
			var failed error
			for _, arg := range args {
				if err := c.rm(cmd.Context(), output, arg); err != nil {
					if failed != nil {
						fmt.Fprintln(c.ErrOut, "error:", failed)
					}
					failed = err
				}
			}
			return failed
		},
	}
	output = addOutput(cmd, "deleted")
	return cmd
}

func (c *cli) rm(ctx context.Context, output *output, arg string) error {
	name, isCronAt, err := splitName(arg)
	if err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	if isCronAt {
		return remove(ctx, c, output, c.cronAts, name)
	}
	return remove(ctx, c, output, c.ats, name)
}

// remove deletes an object.
func remove[P object](ctx context.Context, c *cli, output *output, client client[P], name string) error {
	seen, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if !output.isClient() {
		options := metav1.DeleteOptions{DryRun: output.serverDryRun(), Preconditions: metav1.NewUIDPreconditions(string(seen.GetUID()))}
		if err := client.Delete(ctx, name, options); err != nil {
			return err
		}
	}
	return output.print(c, seen)
}
