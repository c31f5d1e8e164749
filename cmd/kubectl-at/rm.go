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
		Use:     "rm NAME...",
		Aliases: []string{"delete"},
		Short:   "Delete Ats, and stop those that are running",
		Long:    "Delete Ats. Ats that have not started do not run; those that are running are stopped; the output of those that are done is lost.",
		Example: "  kubectl at rm backup-x2b4f",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			if err := output.validate(); err != nil {
				return err
			}
			var failed error
			for _, name := range names {
				if err := c.rm(cmd.Context(), output, name); err != nil {
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

func (c *cli) rm(ctx context.Context, output *output, name string) error {
	ats, _, err := c.ats()
	if err != nil {
		return err
	}
	at, err := ats.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if !output.isClient() {
		options := metav1.DeleteOptions{DryRun: output.serverDryRun(), Preconditions: metav1.NewUIDPreconditions(string(at.UID))}
		if err := ats.Delete(ctx, name, options); err != nil {
			return err
		}
	}
	return output.print(c, at)
}
