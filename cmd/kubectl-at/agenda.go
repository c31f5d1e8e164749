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
	"fmt"
	"strings"
	"time"

	ics "github.com/arran4/golang-ical"
	"github.com/spf13/cobra"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/cmd/kubectl-at/timespec"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// agenda is the answer to: what starts until a time, or what has run since a time. It is also
// the format of -o json and -o yaml.
type agenda struct {
	metav1.TypeMeta `json:",inline"`
	From            time.Time `json:"from"`
	Until           time.Time `json:"until"`
	// Starts are in order of time.
	Starts []start `json:"starts,omitempty"`
	// Runs are in order of time, those that failed first.
	Runs []pastRun `json:"runs,omitempty"`
}

// DeepCopyObject makes the agenda an object that the printers accept. They do not change it.
func (a *agenda) DeepCopyObject() runtime.Object {
	same := *a
	return &same
}

// agendaFlags are the flags of the command agenda.
type agendaFlags struct {
	*listing
	since, until string
	exitCode     bool
}

func (c *cli) agendaCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:        "agenda",
		SuggestFor: []string{"calendar", "upcoming", "timers", "next", "last"},
		Short:      "Show in one table what will start, or what has run",
		Long: `Show everything that will start, in order of time: Ats, each time of the CronAts and, beside
them, of the CronJobs of Kubernetes. A note says what is known about a start, for example that
it would fail. What starts more often than each hour, on average, is in one row.

With --since, show what has run since then, with what failed first.`,
		Example: `  kubectl at agenda -A --until 'monday 8:00'
  kubectl at agenda --since 12h
  kubectl at agenda --until 31d -o ics > team.ics`,
		Args: cobra.NoArgs,
	}
	formats := genericclioptions.NewPrintFlags("")
	formats.NamePrintFlags = nil // An agenda has no name.
	flags := &agendaFlags{listing: c.addListing(cmd, formats, "ics", "wide")}
	cmd.Flag("output").Usage += " And wide, and ics for a calendar."
	cmd.Flags().StringVar(&flags.until, "until", "", "The end: a time, or how long from now, such as 48h (default: 24h, or now with --since)")
	cmd.Flags().StringVar(&flags.since, "since", "", "Show what has run since a time, or for how long, such as 12h")
	cmd.Flags().BoolVar(&flags.exitCode, "exit-code", false, "With --since, exit with 3 if anything has failed")
	cmd.RunE = func(*cobra.Command, []string) error {
		found := &agenda{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "Agenda"}}
		if err := flags.setBounds(found); err != nil {
			return err
		}
		printer, err := flags.begin()
		if err == nil {
			err = flags.fill(found)
		}
		switch {
		case err != nil:
			return err
		case printer != nil:
			err = printer.PrintObj(found, c.Out)
		case *flags.flags.OutputFormat == "ics":
			err = found.calendar(c.now()).SerializeTo(c.Out, ics.WithNewLineWindows)
		default:
			err = flags.printAgenda(found)
		}
		if err == nil && flags.exitCode && len(found.Runs) > 0 && found.Runs[0].Failed { // Those that failed come first.
			err = withCode(exitFailed, "%s has failed: %s", ref(found.Runs[0].object), found.Runs[0].Reason)
		}
		return err
	}
	return cmd
}

// setBounds sets from when until when the agenda is.
func (f *agendaFlags) setBounds(found *agenda) (err error) {
	if f.exitCode && f.since == "" {
		return usageError("--exit-code is about what has run: set --since, too")
	}
	since, until := cmp.Or(f.since, "0s"), "24h"
	if f.since != "" {
		until = "0s"
	}
	if found.From, err = f.bound("since", since, -1); err != nil {
		return err
	}
	if found.Until, err = f.bound("until", cmp.Or(f.until, until), 1); err != nil {
		return err
	}
	if !found.Until.After(found.From) {
		return usageError("the agenda ends at %s, before it begins: for what has run, write %s", f.shown(found.Until), f.kubectl("at agenda --since 12h"))
	}
	return nil
}

// bound returns the time that a flag means: TIME, or a duration from now in the given direction.
func (c *cli) bound(flag, value string, direction time.Duration) (time.Time, error) {
	var limit seconds
	if limit.Set(value) == nil {
		return c.began.Add(direction * plan.Seconds(*limit.value)), nil
	}
	t, err := c.parseTime(strings.Fields(value), timespec.Options{AllowPast: true})
	if err != nil {
		return time.Time{}, usageError("--%s is %q: %w. A duration such as 12h is possible, too", flag, value, err)
	}
	return t.Instant, nil
}

// fill reads the objects that the agenda is made of.
func (f *agendaFlags) fill(found *agenda) error {
	ats, err := f.listAts(f.selector)
	if err != nil {
		return err
	}
	if f.since != "" {
		jobs, err := listIfAllowed[*batchv1.Job](f.cli, "jobs", f.selector)
		found.Runs = runsOf(ats, jobs, found.From, found.Until, f.now())
		return err
	}
	cronAts, err := f.listCronAts(f.selector)
	if err != nil {
		return err
	}
	cronJobs, err := listIfAllowed[*batchv1.CronJob](f.cli, "cronjobs", f.selector)
	found.Starts = startsOf(ats, cronAts, cronJobs, f.freezes(f.namespace), found.From, found.Until)
	return err
}

// listIfAllowed returns the objects of a kind. If the user may not list them, it says so and returns none: an agenda
// without them is of use, too. A cluster that does not know the kind has none.
func listIfAllowed[T runtime.Object](c *cli, kind, selector string) ([]T, error) {
	all, err := listOf[T](c, kind, selector)
	switch {
	case apierrors.IsForbidden(err):
		c.say("Cannot list %s: %v", kind, err)
		return nil, nil
	case apierrors.IsNotFound(err):
		return nil, nil
	}
	return all, err
}

func (f *agendaFlags) printAgenda(found *agenda) error {
	switch {
	case len(found.Starts)+len(found.Runs) > 0:
	case f.since != "":
		f.say("Nothing has run since %s, or it has been removed.", f.shown(found.From))
	default:
		f.say("Nothing starts until %s.", f.shown(found.Until))
	}
	starts := newTable("Time", "In", "Name", "Note", "wide", "Command")
	for _, s := range found.Starts {
		starts.add(s.object, f.shown(s.Time), fromNow(s.Time, f.now()), ref(s.object), s.note(), clip(s.Command, maxCommand))
	}
	runs := newTable("Time", "Took", "Name", "Reason", "Exit", "Message", "wide", "Command")
	for _, r := range found.Runs {
		took := ""
		if r.TookSeconds != nil {
			took = short(plan.Seconds(*r.TookSeconds))
		}
		runs.add(r.object, f.shown(r.Time), took, ref(r.object), r.Reason, exitCodeOf(r.ExitCode), clip(r.Message, 2*maxCommand), clip(r.Command, maxCommand))
	}
	return cmp.Or(starts.print(f.cli, "", f.table), runs.print(f.cli, "", f.table))
}

// calendar returns the agenda as in RFC 5545. An event does not mark its time as busy.
func (a *agenda) calendar(now time.Time) *ics.Calendar {
	calendar := ics.NewCalendar()
	calendar.SetProductId("-//cnat//kubectl at agenda//EN")
	calendar.SetMethod(ics.MethodPublish)
	add := func(e entry, until time.Time, note string) {
		event := calendar.AddEvent(fmt.Sprintf("%s-%d@cnat.programming-kubernetes.info", e.object.GetUID(), e.Time.Unix()))
		event.SetDtStampTime(now)
		event.SetStartAt(e.Time)
		event.SetEndAt(until)
		event.SetSummary(ref(e.object) + " (" + e.Namespace + ")")
		event.SetDescription(strings.TrimSpace(note + "\n" + e.Command))
		event.SetTimeTransparency(ics.TransparencyTransparent)
	}
	for _, s := range a.Starts {
		add(s.entry, s.Time, s.note())
	}
	for _, r := range a.Runs {
		add(r.entry, ptr.Deref(r.Ended, r.Time), strings.TrimSpace(r.Reason+"\n"+r.Message))
	}
	return calendar
}

// entry is what starts and runs have in common.
type entry struct {
	Time      time.Time `json:"time"`
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Command   string    `json:"command,omitempty"`
	object    object
}

func newEntry(object object, command string) entry {
	return entry{Kind: kindOf(object).Kind, Namespace: object.GetNamespace(), Name: object.GetName(), Command: command, object: object}
}
