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
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/cli-runtime/pkg/resource"

	"programming-kubernetes.info/cnat-controller/cmd/kubectl-at/timespec"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
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
	cmd := &cobra.Command{
		Use:     verb + " NAME|cronat/NAME...",
		Short:   short,
		Long:    long,
		Example: fmt.Sprintf("  kubectl at %s backup-x2b4f\n  kubectl at %s cronat/backup", verb, verb),
	}
	c.forEach(cmd, done, func(output *output, info *resource.Info) error {
		err := c.edit(output, info, func() error {
			switch object := info.Object.(type) {
			case *v1alpha1.At:
				if object.Status.Phase == v1alpha1.PhaseDone {
					return fmt.Errorf("%s is done: there is nothing to %s", ref(object), verb)
				}
				object.Spec.Suspend = &suspend
			case *v1alpha1.CronAt:
				workload := metav1.GetControllerOf(object)
				if workload != nil && !suspend && object.Labels[v1alpha1.AnnotationRestartSuspend] != "" {
					// The controller would suspend it again.
					return fmt.Errorf("%s is suspended by the annotation of its workload: run %s", ref(object),
						c.kubectl("annotate %s %s -n %s %s-", strings.ToLower(workload.Kind), workload.Name, object.Namespace, v1alpha1.AnnotationRestartSuspend))
				}
				object.Spec.Suspend = &suspend
			}
			return nil
		})
		if cronAt, isCronAt := info.Object.(*v1alpha1.CronAt); isCronAt && err == nil {
			return c.announceNext(output, cronAt, c.now().Truncate(time.Second))
		}
		return err
	})
	return cmd
}

// forEach makes a command do something with each of the named objects. It prints all errors but
// the last one, which it returns.
func (c *cli) forEach(cmd *cobra.Command, done string, do func(*output, *resource.Info) error) {
	output := addOutput(cmd, done)
	cmd.Args = cobra.MinimumNArgs(1)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if err := output.validate(); err != nil {
			return err
		}
		var failed error
		for _, arg := range args {
			info, err := c.get(arg)
			if err == nil {
				err = do(output, info)
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

func (c *cli) rmCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "rm NAME|cronat/NAME...",
		Aliases: []string{"delete", "remove", "cancel", "atrm"},
		Short:   "Delete Ats and CronAts, and stop running Ats",
		Long: `Delete Ats and CronAts. Ats that have not started do not run; running Ats are
stopped; the output of finished Ats is lost. The Ats of a CronAt are deleted with it.`,
		Example: `  kubectl at rm backup-x2b4f
  kubectl at rm cronat/backup`,
	}
	c.forEach(cmd, "deleted", c.remove)
	return cmd
}

func (c *cli) moveCommand() *cobra.Command {
	var output *output
	past := false
	cmd := &cobra.Command{
		Use:   "move NAME TIME",
		Short: "Change the time of an At",
		Long: `Change the time of an At that has not started. See kubectl at --help for the syntax of TIME. A
TIME without a date is on the day on which the At is due. One without a zone is in the zone of the
At, which it keeps, unless there is --tz.`,
		Example: `  kubectl at move backup-x2b4f tomorrow 10:12
  kubectl at move backup-x2b4f 11:30
  kubectl at move backup-x2b4f now + 2 hours`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := output.validate(); err != nil {
				return err
			}
			at, info, err := c.getAt(args[0], "change its schedule with", "edit")
			if err != nil {
				return err
			}
			zone, err := c.zoneOfAt(at)
			if err != nil {
				return err
			}
			t, now, err := c.parseTime(args[1:], timespec.Options{Zone: zone, AllowPast: past, On: instantOf(at).In(zone)})
			if err != nil {
				return err
			}
			if plan.IsMistake(now.Sub(t.Instant)) {
				return usageError("%s is %s, so the controller may take it for a mistake: write now instead", t, fromNow(t.Instant, now))
			}
			return c.move(cmd.Context(), output, info, t, now, &wait{}, "")
		},
	}
	output = addOutput(cmd, "moved")
	cmd.Flags().BoolVar(&past, "past", false, "Allow a time in the past, which means immediately")
	return cmd
}

const movedToNow = "moved to now"

func (c *cli) runNowCommand() *cobra.Command {
	var output *output
	var w wait
	cmd := &cobra.Command{
		Use:   "run-now NAME|cronat/NAME",
		Short: "Run an At now instead of at its time, or a CronAt once more",
		Long: `Run an At that has not started yet now instead of at its time. A suspended At starts when it is
resumed. This uses up the planned run; kubectl at now --from at/NAME is an additional one.

For a CronAt, create an additional At now, like kubectl create job --from for a CronJob, even
if the CronAt is suspended. This At does not count as part of the schedule: it runs regardless
of the concurrency policy, has no starting deadline, and is not affected by the history
limits. It is deleted with the CronAt.`,
		Example: `  kubectl at run-now backup-x2b4f
  kubectl at run-now cronat/backup --logs`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cmp.Or(output.validate(), w.validate(output)); err != nil {
				return err
			}
			info, err := c.get(args[0])
			if err != nil {
				return err
			}
			now := c.now().Truncate(time.Second)
			t := timespec.Time{Instant: now.In(c.local())}
			switch object := info.Object.(type) {
			case *v1alpha1.At:
				return c.move(cmd.Context(), output, info, t, now, &w, fmt.Sprintf(": this uses up its planned run; %s is an additional one", c.kubectl("at now --from %s", ref(object))))
			case *v1alpha1.CronAt:
				if w.logs && object.Spec.AtTemplate.Spec.Restart != nil {
					return errLogsOfRestart
				}
				done := &output.flags.NamePrintFlags.Operation
				*done = strings.Replace(*done, movedToNow, "created", 1)
				return c.createAt(cmd.Context(), output, manualAt(object, t), t.Instant, now, &w)
			}
			return nil
		},
	}
	output = addOutput(cmd, movedToNow)
	w.addFlags(cmd.Flags())
	return cmd
}

// move changes the time of an At, prints what it was, with a remark, and what it is, and follows the run.
func (c *cli) move(ctx context.Context, output *output, info *resource.Info, t timespec.Time, now time.Time, w *wait, remark string) error {
	var was v1alpha1.AtSpec
	err := c.edit(output, info, func() error {
		at := info.Object.(*v1alpha1.At)
		was = at.Spec
		switch {
		case w.logs && at.Spec.Restart != nil:
			return errLogsOfRestart
		case at.Status.Phase == v1alpha1.PhaseRunning:
			return fmt.Errorf("%s has already started: its time cannot be changed. %s follows it, %s stops it", ref(at), c.kubectl("at logs %s -f", at.Name), c.kubectl("at rm %s", at.Name))
		case at.Status.Phase == v1alpha1.PhaseDone:
			return fmt.Errorf("%s is done: %s runs it once more", ref(at), c.kubectl("at TIME --from at/%s", at.Name))
		}
		at.Spec.Schedule, at.Spec.TimeZone = t.String(), nil
		if zone := was.TimeZone; zone != nil && t.Instant.Location().String() == *zone {
			// Keep the zone, unless its clocks show that time twice.
			kept := v1alpha1.AtSpec{Schedule: t.Instant.Format(wallClockTime), TimeZone: zone}
			if _, err := plan.Instant(&kept); err == nil {
				at.Spec.Schedule, at.Spec.TimeZone = kept.Schedule, zone
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if before, err := plan.Instant(&was); err == nil {
		c.announce("was", before, now, remark)
	}
	return c.announceAt(ctx, output, info.Object.(*v1alpha1.At), t.Instant, now, w)
}

// manualAt returns an At from a CronAt. The CronAt owns it for garbage collection, but is
// not its controller. Otherwise it would count as an At of the schedule: Forbid would
// wait for it, Replace would delete it, and the history limits would count it.
func manualAt(cronAt *v1alpha1.CronAt, t timespec.Time) *v1alpha1.At {
	template := cronAt.Spec.AtTemplate.DeepCopy()
	at := &v1alpha1.At{
		ObjectMeta: metav1.ObjectMeta{
			Name:        plan.ChildName(cronAt.Name, "manual-"+rand.String(5)),
			Namespace:   cronAt.Namespace,
			Labels:      template.Metadata.Labels,
			Annotations: map[string]string{v1alpha1.AnnotationInstantiate: "manual"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: v1alpha1.CronAtKind, Name: cronAt.Name, UID: cronAt.UID,
			}},
		},
		Spec: v1alpha1.AtSpec{Schedule: t.String(), RunSpec: template.Spec},
	}
	maps.Copy(at.Annotations, template.Metadata.Annotations)
	return at
}
