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
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/cli-runtime/pkg/resource"

	"programming-kubernetes.info/cnat-controller/cmd/kubectl-at/timespec"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

func (c *cli) suspendCommand() *cobra.Command {
	return c.suspension("suspend", "suspended", "pause", "Keep an At or a CronAt from starting", `Keep an At from starting and from retrying, or a CronAt from creating Ats. Running Ats
continue.`, true)
}

func (c *cli) resumeCommand() *cobra.Command {
	return c.suspension("resume", "resumed", "unpause", "Let a suspended At or CronAt start", `Let a suspended At start: immediately if its time has passed. Or let a CronAt create
Ats again; times that have passed do not run.`, false)
}

func (c *cli) suspension(verb, done, alias, short, long string, suspend bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:     verb + " NAME|cronat/NAME...",
		Aliases: []string{alias},
		Short:   short,
		Long:    long,
		Example: fmt.Sprintf("  kubectl at %s backup-x2b4f\n  kubectl at %s cronat/backup", verb, verb),
	}
	c.forEach(cmd, done, c.get, func(w *writer, info *resource.Info) error {
		err := w.edit(info, func() error {
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
			c.begin()
			return w.announceNext(cronAt)
		}
		return err
	})
	return cmd
}

// forEach makes a command get each of the named objects, and do something with it.
func (c *cli) forEach(cmd *cobra.Command, done string, get func(arg string) (*resource.Info, error), do func(*writer, *resource.Info) error) {
	w := c.addWriter(cmd, done)
	cmd.Args = cobra.MinimumNArgs(1)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if err := w.validate(); err != nil {
			return err
		}
		return each(c, args, func(arg string) error {
			info, err := get(arg)
			if err != nil {
				return err
			}
			return do(w, info)
		})
	}
}

// each does something with each of several things. It prints all errors but the last one, which it returns.
func each[T any](c *cli, all []T, do func(T) error) (failed error) {
	for _, one := range all {
		if err := do(one); err != nil {
			if failed != nil {
				c.say("error: %v", failed)
			}
			failed = err
		}
	}
	return failed
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
	c.forEach(cmd, "deleted", c.get, (*writer).remove)
	return cmd
}

// move has the flags of kubectl at move.
type move struct {
	*writer
	to, selector, dueBefore string
	names, words            []string // after split
}

func (c *cli) moveCommand() *cobra.Command {
	m := move{}
	cmd := &cobra.Command{
		Use:     "move NAME TIME",
		Aliases: []string{"reschedule"},
		Short:   "Change the time of Ats",
		Long: `Change the time of an At that has not started. See kubectl at --help for the syntax of TIME. The
At keeps what TIME lacks: its date, its time of day, or its zone, unless there is --tz. A sum
counts from the time of the At: + 1 hour, - 30 minutes. now + 1 hour counts from now.

For several Ats, write --to TIME after their names; or, with --to, select those of the namespace that
have not started, with --selector, --due-before or both. All are checked first: if one has started, or would
be in the past, none is moved.`,
		Example: `  kubectl at move backup-x2b4f tomorrow 10:12
  kubectl at move backup-x2b4f monday
  kubectl at move backup-x2b4f + 1 hour
  kubectl at move backup-x2b4f now + 2 hours
  kubectl at move backup-x2b4f report-k8s2d --to "+ 1 hour"
  kubectl at move -l app=shop --due-before "monday 06:00" --to "+ 1 day"`,
		Args: func(_ *cobra.Command, args []string) error {
			return m.split(args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := m.validate(); err != nil {
				return err
			}
			infos, err := m.ats()
			if err != nil {
				return err
			}
			// If the user repeats the command, a sum must not count twice for those that were moved.
			for _, info := range infos {
				if _, err := c.reschedule(info.Object.DeepCopyObject().(*v1alpha1.At), m.time); err != nil {
					return err
				}
			}
			return each(c, infos, func(info *resource.Info) error {
				one, there := *m.writer, *c
				one.cli = &there
				if len(infos) > 1 {
					one.ErrOut = &prefixed{out: c.ErrOut, lock: &sync.Mutex{}, prefix: ref(info.Object.(*v1alpha1.At)) + " "}
				}
				return one.move(cmd.Context(), info, m.time, "")
			})
		},
	}
	m.writer = c.addWriter(cmd, "moved")
	cmd.Flags().StringVar(&m.to, "to", "", "TIME, if there are several names")
	cmd.Flags().StringVarP(&m.selector, "selector", "l", "", "Move the Ats with these labels, such as app=shop")
	cmd.Flags().StringVar(&m.dueBefore, "due-before", "", "Move the Ats that are due before this TIME")
	return cmd
}

// selects reports whether flags say which Ats to move.
func (m *move) selects() bool { return m.selector != "" || m.dueBefore != "" }

// split reads the names and the words of the time. Without --to, there is one name.
func (m *move) split(args []string) error {
	names := min(1, len(args))
	m.names, m.words = args[:names], args[names:]
	if m.to != "" {
		m.names, m.words = args, []string{m.to}
	}
	if len(m.words) == 0 || m.selects() == (len(m.names) > 0) {
		return errors.New("names, flags that select Ats, or the time are missing, or there are too many")
	}
	return nil
}

// ats reads the Ats with these names, or those that the flags select.
func (m *move) ats() (infos []*resource.Info, err error) {
	for _, name := range m.names {
		info, err := m.getAt(name)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(infos, func(other *resource.Info) bool { return other.Name == info.Name }) {
			infos = append(infos, info)
		}
	}
	if !m.selects() {
		return infos, nil
	}
	if _, err := labels.Parse(m.selector); err != nil {
		return nil, usageError("--selector is %q: %w", m.selector, err)
	}
	limit := timespec.Time{}
	if m.dueBefore != "" {
		if limit, err = m.parseTime([]string{m.dueBefore}, timespec.Options{AllowPast: true}); err != nil {
			return nil, fmt.Errorf("--due-before: %w", err)
		}
	}
	if err := m.connect(); err != nil {
		return nil, err
	}
	infos, err = m.list("ats", m.selector)
	infos = slices.DeleteFunc(infos, func(info *resource.Info) bool {
		at := info.Object.(*v1alpha1.At)
		due := instantOf(at)
		return hasBegun(at) || plan.ParentName(at) != "" || m.dueBefore != "" && (due.IsZero() || !due.Before(limit.Instant))
	})
	if err == nil && len(infos) == 0 {
		m.say("No At is moved: the flags select none that has not started.")
	}
	return infos, err
}

// time returns the new time of an At.
func (m *move) time(at *v1alpha1.At) (timespec.Time, error) {
	zone, err := m.zoneOfAt(at)
	if err != nil {
		return timespec.Time{}, err
	}
	due, err := plan.Instant(&at.Spec)
	if err != nil {
		return timespec.Time{}, fmt.Errorf("%s has no time from which it could be moved: %w, with %s", ref(at), err, m.kubectl("edit at %s", at.Name))
	}
	t, err := m.parseTime(m.words, timespec.Options{Zone: zone, On: due.In(zone)})
	if err != nil {
		err = fmt.Errorf("%s: %w", ref(at), err)
	}
	return t, err
}

const movedToNow = "moved to now"

func (c *cli) runNowCommand() *cobra.Command {
	var w *writer
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
			if err := w.validate(); err != nil {
				return err
			}
			info, err := c.get(args[0])
			if err != nil {
				return err
			}
			c.begin()
			t := timespec.Time{Instant: c.began.In(c.local())}
			cronAt, isCronAt := info.Object.(*v1alpha1.CronAt)
			if !isCronAt {
				to := func(*v1alpha1.At) (timespec.Time, error) { return t, nil }
				return w.move(cmd.Context(), info, to, fmt.Sprintf(": this uses up its planned run; %s is an additional one", c.kubectl("at now --from at/%s", info.Name)))
			}
			if w.wait.logs && cronAt.Spec.AtTemplate.Spec.Restart != nil {
				return errLogsOfRestart
			}
			done := &w.format.NamePrintFlags.Operation
			*done = strings.Replace(*done, movedToNow, "created", 1)
			return w.createAt(cmd.Context(), manualAt(cronAt, t), t.Instant)
		},
	}
	w = c.addWriter(cmd, movedToNow)
	w.wait.addFlags(cmd.Flags())
	return cmd
}

// reschedule sets the time of an At that has not started, and returns it.
func (c *cli) reschedule(at *v1alpha1.At, to func(*v1alpha1.At) (timespec.Time, error)) (instant time.Time, err error) {
	switch at.Status.Phase {
	case v1alpha1.PhaseRunning:
		return instant, fmt.Errorf("%s has already started: its time cannot be changed. %s follows it, %s stops it", ref(at), c.kubectl("at logs %s -f", at.Name), c.kubectl("at rm %s", at.Name))
	case v1alpha1.PhaseDone:
		return instant, fmt.Errorf("%s is done: %s runs it once more", ref(at), c.kubectl("at TIME --from at/%s", at.Name))
	}
	t, err := to(at)
	if err != nil {
		return instant, err
	}
	zone := at.Spec.TimeZone
	at.Spec.Schedule, at.Spec.TimeZone = t.String(), nil
	if zone != nil && t.Instant.Location().String() == *zone {
		// Keep the zone, unless its clocks show that time twice.
		kept := v1alpha1.AtSpec{Schedule: t.Instant.Format(wallClockTime), TimeZone: zone}
		if _, err := plan.Instant(&kept); err == nil {
			at.Spec.Schedule, at.Spec.TimeZone = kept.Schedule, zone
		}
	}
	return t.Instant, nil
}

// move changes the time of an At, prints what it was, with a remark, and what it is, and follows the run.
func (w *writer) move(ctx context.Context, info *resource.Info, to func(*v1alpha1.At) (timespec.Time, error), remark string) error {
	var was v1alpha1.AtSpec
	var instant time.Time
	err := w.edit(info, func() (err error) {
		at := info.Object.(*v1alpha1.At)
		was = at.Spec
		if w.wait.logs && at.Spec.Restart != nil {
			return errLogsOfRestart
		}
		instant, err = w.reschedule(at, to)
		return err
	})
	if err != nil {
		return err
	}
	if before, err := plan.Instant(&was); err == nil {
		w.announce("was", before, remark)
	}
	return w.announceAt(ctx, info.Object.(*v1alpha1.At), instant)
}

// manualAt returns an At from a CronAt. The CronAt owns it for garbage collection, but is
// not its controller. Otherwise it would count as an At of the schedule: Forbid would
// wait for it, Replace would delete it, and the history limits would count it.
func manualAt(cronAt *v1alpha1.CronAt, t timespec.Time) *v1alpha1.At {
	template := cronAt.Spec.AtTemplate.DeepCopy()
	return &v1alpha1.At{
		ObjectMeta: metav1.ObjectMeta{
			Name:        plan.ChildName(cronAt.Name, "manual-"+rand.String(5)),
			Namespace:   cronAt.Namespace,
			Labels:      template.Metadata.Labels,
			Annotations: labels.Merge(labels.Set{v1alpha1.AnnotationInstantiate: "manual"}, template.Metadata.Annotations),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: v1alpha1.CronAtKind, Name: cronAt.Name, UID: cronAt.UID,
			}},
		},
		Spec: v1alpha1.AtSpec{Schedule: t.String(), RunSpec: template.Spec},
	}
}
