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
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"programming-kubernetes.info/cnat-controller/cmd/kubectl-at/timespec"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

func (c *cli) suspendCommand() *cobra.Command {
	return c.suspension("suspend", "suspended", "Keep an At or a CronAt from starting", `Keep an At from starting and from retrying, or a CronAt from creating Ats. Running Ats
continue.`, true)
}

func (c *cli) resumeCommand() *cobra.Command {
	return c.suspension("resume", "resumed", "Let a suspended At or CronAt start", `Let a suspended At start: immediately if its time has passed. Or let a CronAt create
Ats again; times that have passed do not run.`, false)
}

func (c *cli) suspension(verb, done, short, long string, suspend bool) *cobra.Command {
	var output *output
	cmd := &cobra.Command{
		Use:     verb + " NAME|cronat/NAME...",
		Short:   short,
		Long:    long,
		Example: fmt.Sprintf("  kubectl at %s backup-x2b4f\n  kubectl at %s cronat/backup", verb, verb),
		Args:    cobra.MinimumNArgs(1),
		RunE: c.forEach(&output, func(cmd *cobra.Command, name string, isCronAt bool) error {
			spec := map[string]any{"suspend": suspend}
			if isCronAt {
				return c.suspendCronAt(cmd.Context(), output, name, spec)
			}
			_, err := edit(cmd.Context(), c, output, c.ats, name, spec, func(at *v1alpha1.At) error {
				if at.Status.Phase == v1alpha1.PhaseDone {
					return fmt.Errorf("%s is done: there is nothing to %s", ref(at), verb)
				}
				return nil
			})
			return err
		}),
	}
	output = addOutput(cmd, done)
	return cmd
}

// forEach returns a command that does something with each of the named objects. It prints all
// errors but the last one, which it returns.
func (c *cli) forEach(output **output, do func(cmd *cobra.Command, name string, isCronAt bool) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := (*output).validate(); err != nil {
			return err
		}
		var failed error
		for _, arg := range args {
			name, isCronAt, err := splitName(arg)
			if err == nil {
				err = c.connect()
			}
			if err == nil {
				err = do(cmd, name, isCronAt)
			}
			if err != nil {
				if failed != nil {
					fmt.Fprintln(c.ErrOut, "error:", failed)
				}
				failed = err
			}
		}
		return failed
	}
}

// suspendCronAt suspends or resumes a CronAt, and prints when it is due.
func (c *cli) suspendCronAt(ctx context.Context, output *output, name string, spec map[string]any) error {
	cronAt, err := edit(ctx, c, output, c.cronAts, name, spec, func(cronAt *v1alpha1.CronAt) error {
		workload := metav1.GetControllerOf(cronAt)
		if workload == nil || spec["suspend"] == true || cronAt.Labels[v1alpha1.AnnotationRestartSuspend] == "" {
			return nil
		}
		// The controller would suspend it again.
		return fmt.Errorf("%s is suspended by the annotation of its workload: run %s",
			refCronAt(cronAt), c.kubectl("annotate %s %s -n %s %s-", strings.ToLower(workload.Kind), workload.Name, cronAt.Namespace, v1alpha1.AnnotationRestartSuspend))
	})
	if err != nil {
		return err
	}
	return c.announceNext(output, cronAt, c.now().Truncate(time.Second))
}

func (c *cli) moveCommand() *cobra.Command {
	var output *output
	past := false
	cmd := &cobra.Command{
		Use:   "move NAME TIME",
		Short: "Change the time of an At",
		Long:  "Change the time of an At that has not started. See kubectl at --help for the syntax of TIME.",
		Example: `  kubectl at move backup-x2b4f tomorrow 10:12
  kubectl at move backup-x2b4f now + 2 hours`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := atName(args[0], func(name string) string { return "change its schedule with " + c.kubectl("edit cronat %s", name) })
			if err != nil {
				return err
			}
			if err := output.validate(); err != nil {
				return err
			}
			t, now, err := c.parseTime(args[1:], past)
			if err != nil {
				return err
			}
			return c.move(cmd.Context(), output, name, t, now, &wait{})
		},
	}
	output = addOutput(cmd, "moved")
	cmd.Flags().BoolVar(&past, "past", false, "Allow a time in the past, which means immediately")
	return cmd
}

func (c *cli) runNowCommand() *cobra.Command {
	var output *output
	var w wait
	cmd := &cobra.Command{
		Use:   "run-now NAME|cronat/NAME",
		Short: "Run an At now instead of at its time, or a CronAt once more",
		Long: `Run an At that has not started yet now instead of at its time. A suspended At starts when it is
resumed.

For a CronAt, create an additional At now, like kubectl create job --from for a CronJob, even
if the CronAt is suspended. This At does not count as part of the schedule: it runs regardless
of the concurrency policy, has no starting deadline, and is not affected by the history
limits. It is deleted with the CronAt.`,
		Example: `  kubectl at run-now backup-x2b4f
  kubectl at run-now cronat/backup --logs`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, isCronAt, err := splitName(args[0])
			if err != nil {
				return err
			}
			if isCronAt {
				output.flags.NamePrintFlags.Operation = "created"
			}
			if err := cmp.Or(output.validate(), w.validate(output)); err != nil {
				return err
			}
			zone, err := c.zone()
			if err != nil {
				return err
			}
			now := c.now().Truncate(time.Second)
			t := timespec.Time{Instant: now.In(zone)}
			if isCronAt {
				return c.runCronAt(cmd.Context(), output, name, t, now, &w)
			}
			return c.move(cmd.Context(), output, name, t, now, &w)
		},
	}
	output = addOutput(cmd, "moved to now")
	w.addFlags(cmd.Flags())
	return cmd
}

// move changes the time of an At, prints when that is, and follows the run.
func (c *cli) move(ctx context.Context, output *output, name string, t timespec.Time, now time.Time, w *wait) error {
	if err := c.connect(); err != nil {
		return err
	}
	spec := map[string]any{"schedule": t.String(), "timeZone": nil}
	at, err := edit(ctx, c, output, c.ats, name, spec, func(at *v1alpha1.At) error {
		switch {
		case w.logs && at.Spec.Restart != nil:
			return errLogsOfRestart
		case at.Status.Phase == v1alpha1.PhaseRunning:
			return fmt.Errorf("%s has already started: its time cannot be changed. %s follows it, %s stops it", ref(at), c.kubectl("at logs %s -f", name), c.kubectl("at rm %s", name))
		case at.Status.Phase == v1alpha1.PhaseDone:
			return fmt.Errorf("%s is done: create a new one to run its command again", ref(at))
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.announceAt(ctx, output, at, t.Instant, now, w)
}

func (c *cli) rmCommand() *cobra.Command {
	var output *output
	cmd := &cobra.Command{
		Use:     "rm NAME|cronat/NAME...",
		Aliases: []string{"delete", "remove", "cancel", "atrm"},
		Short:   "Delete Ats and CronAts, and stop running Ats",
		Long: `Delete Ats and CronAts. Ats that have not started do not run; running Ats are
stopped; the output of finished Ats is lost. The Ats of a CronAt are deleted with it.`,
		Example: `  kubectl at rm backup-x2b4f
  kubectl at rm cronat/backup`,
		Args: cobra.MinimumNArgs(1),
		RunE: c.forEach(&output, func(cmd *cobra.Command, name string, isCronAt bool) error {
			if isCronAt {
				return remove(cmd.Context(), c, output, c.cronAts, name)
			}
			return remove(cmd.Context(), c, output, c.ats, name)
		}),
	}
	output = addOutput(cmd, "deleted")
	return cmd
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

// client is the client for one kind of object in one namespace.
type client[P object] interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (P, error)
	Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
	Patch(ctx context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string) (P, error)
}

// edit changes the spec of an object that allowed has accepted, and prints it. If the
// object changes in the meantime, edit calls allowed again.
func edit[T any, P interface {
	*T
	object
}](ctx context.Context, c *cli, output *output, client client[P], name string, spec map[string]any, allowed func(P) error) (P, error) {
	var edited P
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		seen, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := allowed(seen); err != nil {
			return err
		}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"resourceVersion": seen.GetResourceVersion()},
			"spec":     spec,
		})
		if err != nil {
			return err
		}
		if output.isClient() {
			edited, err = patched((*T)(seen), patch)
			return err
		}
		edited, err = client.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{DryRun: output.serverDryRun(), FieldManager: fieldManager})
		return err
	})
	if err != nil {
		return nil, err
	}
	return edited, output.print(c, edited)
}

// patched returns the result of a merge patch of an object.
func patched[T any](object *T, patch []byte) (*T, error) {
	original, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	merged, err := jsonpatch.MergePatch(original, patch)
	if err != nil {
		return nil, err
	}
	result := new(T)
	return result, json.Unmarshal(merged, result)
}
