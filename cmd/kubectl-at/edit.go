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
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/timespec"
)

func (c *cli) suspendCommand() *cobra.Command {
	return c.suspension("suspend", "suspended", "Keep an At from starting", "Keep an At from starting, and from further attempts. What runs already goes on.", true)
}

func (c *cli) resumeCommand() *cobra.Command {
	return c.suspension("resume", "resumed", "Let a suspended At start", "Let a suspended At start. If its time has passed, it starts at once.", false)
}

func (c *cli) suspension(verb, done, short, long string, suspend bool) *cobra.Command {
	var output *output
	cmd := &cobra.Command{
		Use:     verb + " NAME",
		Short:   short,
		Long:    long,
		Example: fmt.Sprintf("  kubectl at %s backup-x2b4f", verb),
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.edit(cmd.Context(), output, args[0], map[string]any{"suspend": suspend}, func(at *v1alpha1.At) error {
				if at.Status.Phase == v1alpha1.PhaseDone {
					return fmt.Errorf("%s is done: there is nothing to %s", ref(at), verb)
				}
				return nil
			})
		},
	}
	output = addOutput(cmd, done)
	return cmd
}

func (c *cli) moveCommand() *cobra.Command {
	var output *output
	past := false
	cmd := &cobra.Command{
		Use:   "move NAME TIME",
		Short: "Give an At another time",
		Long:  "Give an At that has not started another time. kubectl at --help says how a TIME is written.",
		Example: `  kubectl at move backup-x2b4f tomorrow 10:12
  kubectl at move backup-x2b4f now + 2 hours`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			now := c.now().Truncate(time.Second)
			t, err := c.parseTime(args[1:], now, past)
			if err != nil {
				return err
			}
			return c.move(cmd.Context(), output, args[0], t, now)
		},
	}
	output = addOutput(cmd, "moved")
	cmd.Flags().BoolVar(&past, "past", false, "Allow a time in the past, which means at once")
	return cmd
}

func (c *cli) runNowCommand() *cobra.Command {
	var output *output
	cmd := &cobra.Command{
		Use:     "run-now NAME",
		Short:   "Run an At now instead of at its time",
		Long:    "Run an At that has not started now, instead of at its time. A suspended one starts when it is resumed.",
		Example: "  kubectl at run-now backup-x2b4f",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			zone, err := c.zone()
			if err != nil {
				return err
			}
			now := c.now().Truncate(time.Second)
			return c.move(cmd.Context(), output, args[0], timespec.Time{Instant: now.In(zone)}, now)
		},
	}
	output = addOutput(cmd, "moved to now")
	return cmd
}

// move gives an At another instant, and says when that is.
func (c *cli) move(ctx context.Context, output *output, name string, t timespec.Time, now time.Time) error {
	suspended := false
	spec := map[string]any{"schedule": t.String(), "timeZone": nil}
	err := c.edit(ctx, output, name, spec, func(at *v1alpha1.At) error {
		suspended = ptr.Deref(at.Spec.Suspend, false)
		switch at.Status.Phase {
		case v1alpha1.PhaseRunning:
			return fmt.Errorf("%s has started already: its time cannot be changed. kubectl at logs %s -f follows it, kubectl at rm %s stops it", ref(at), name, name)
		case v1alpha1.PhaseDone:
			return fmt.Errorf("%s is done: create another one to run its command again", ref(at))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := c.announce(output.runs(), t.Instant, now); err != nil {
		return err
	}
	if suspended {
		fmt.Fprintf(c.ErrOut, "at/%s is suspended: it does not start before kubectl at resume %s.\n", name, name)
	}
	return nil
}

// edit changes the spec of an At as allowed has seen it: if it changes meanwhile, allowed
// is asked again.
func (c *cli) edit(ctx context.Context, output *output, name string, spec map[string]any, allowed func(*v1alpha1.At) error) error {
	if err := output.validate(); err != nil {
		return err
	}
	ats, _, err := c.ats()
	if err != nil {
		return err
	}
	var at *v1alpha1.At
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		seen, err := ats.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := allowed(seen); err != nil {
			return err
		}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"resourceVersion": seen.ResourceVersion},
			"spec":     spec,
		})
		if err != nil {
			return err
		}
		if output.isClient() {
			at, err = patched(seen, patch)
			return err
		}
		at, err = ats.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{DryRun: output.serverDryRun(), FieldManager: fieldManager})
		return err
	})
	if err != nil {
		return err
	}
	return output.print(c, at)
}

// patched returns what a merge patch makes of an At.
func patched(at *v1alpha1.At, patch []byte) (*v1alpha1.At, error) {
	original, err := json.Marshal(at)
	if err != nil {
		return nil, err
	}
	merged, err := jsonpatch.MergePatch(original, patch)
	if err != nil {
		return nil, err
	}
	result := &v1alpha1.At{}
	return result, json.Unmarshal(merged, result)
}
