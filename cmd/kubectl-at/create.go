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
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/cmd/kubectl-at/timespec"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

const createLong = `Run a command once, at a given time, in a Pod of the cluster.

Everything before -- is the TIME, with or without quotes:

  now   now + 2 hours   +90m   in 2h30m   noon   midnight   teatime
  10:12   1012   10am   tomorrow 10:12   friday noon   24 dec 10:12
  2035-12-24 10:12   24.12.2035   2035-12-24T10:12:00+01:00

A time zone (Europe/Berlin, UTC, UTC+1) or "+ 2 hours" may follow. Without a zone, the time
is in the zone of --tz or of your machine. A time that has passed today means tomorrow. A date in
the past, and what two people can read differently, is an error that says what to write.
kubectl at explain TIME shows how a time is understood.

Everything after -- is the COMMAND: a single argument is a command line for /bin/sh. Several
run exactly as they are: with --image, --from or -f as a program and its arguments, without a
shell; otherwise in /bin/sh, where kill, test or exit is a shell built-in. With --args, they are
arguments for the program that is copied, or that of the image. Without a COMMAND, it is read
from standard input.

--from and -f copy a run. What belongs to a server is not copied, such as probes, ports and
labels, and containers do not restart in the Pod. Each change is a line on standard error;
docs/reference/copying.md lists them.

Flags follow at, since kubectl takes none before the name of a plugin: kubectl at -n NAMESPACE
list, not kubectl -n NAMESPACE at list.

kubectl at every SCHEDULE runs it repeatedly. It creates a CronAt, which other commands
accept as cronat/NAME; NAME alone means an At.

Exit codes: 0 created, or with --wait the run succeeded; 1 error from the API server or the
connection to it; 2 wrong usage, or the time was not understood; 3 the run failed; 4 it missed
its starting deadline; 124 --timeout passed, or with --check no rehearsal did; 130 interrupted.
Ctrl-C stops watching, not the run.`

const createExample = `  # In two hours, and follow it to its end
  kubectl at now + 2 hours --logs -- pg_dump -h db shop

  # A command line for the shell
  kubectl at tomorrow 10:12 -- 'date; echo YAY > /tmp/yay'

  # Read the command from standard input, like at(1)
  echo 'echo YAY' | kubectl at noon

  # With the image, environment and volumes of a CronJob, now instead of at night
  kubectl at now --from cronjob/backup --wait

  # A migration: another command in the Pod of a Deployment
  kubectl at 2035-12-24 03:00 Europe/Berlin --from deployment/shop --retries 2 -- ./migrate up

  # The program of a CronJob with other arguments
  kubectl at now --from cronjob/report --args -- monthly

  # A rolling restart at night
  kubectl at 03:00 --restart deployment/shop --wait

  # Once on each node of a pool, two at the same time
  kubectl at 02:00 --nodes pool=workers --max-concurrent 2 --wait -f pod.yaml

  # At three in the morning from Monday to Friday
  kubectl at every "0 3 * * 1-5" --from deployment/shop -- ./tidy

  # Only show what would be created
  kubectl at friday 18:00 --dry-run=client -o yaml -- echo YAY`

// create has the flags of kubectl at TIME.
type create struct {
	*run
	past bool
}

func (c *cli) createCommand() *cobra.Command {
	o := &create{}
	cmd := &cobra.Command{
		Use:         "at TIME [flags] [-- COMMAND...]",
		Short:       "Run a command once, at a given time",
		Long:        createLong,
		Example:     createExample,
		Args:        cobra.ArbitraryArgs,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl at"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && cmd.ArgsLenAtDash() < 0 && cmd.Flags().NFlag() == 0 && isTerminal(c.In) {
				return cmd.Help()
			}
			words, command := cutCommand(cmd, args)
			return o.create(cmd.Context(), words, command)
		},
	}
	o.run = c.addRun(cmd)
	cmd.Flags().BoolVar(&o.past, "past", false, "Allow a time in the past, which means immediately")
	o.wait.addFlags(cmd.Flags())
	return cmd
}

// cutCommand returns the arguments before and after --. Without it, command is nil.
func cutCommand(cmd *cobra.Command, args []string) (words, command []string) {
	if dash := cmd.ArgsLenAtDash(); dash >= 0 {
		return args[:dash], args[dash:]
	}
	return args, nil
}

func (o *create) create(ctx context.Context, words, command []string) error {
	if len(words) == 0 {
		return usageError("there is no time: write it before --, as in kubectl at now + 2 hours -- echo YAY")
	}
	// First: without --, the flags of a command are taken for flags of kubectl at.
	t, err := o.parseTime(words, timespec.Options{AllowPast: o.past})
	if err != nil {
		return err
	}
	if err := o.validate(command); err != nil {
		return err
	}
	if o.startingDeadline.value == nil && plan.IsMistake(o.began.Sub(t.Instant)) {
		return usageError("%s is %s, so the controller takes it for a mistake: write now instead, or add --starting-deadline, which says how late the command may start", t, fromNow(t.Instant, o.began))
	}
	if o.rehearse && t.Instant.Sub(o.began) <= plan.RehearsalMargin {
		return usageError("--rehearse is for a run that is due in more than a minute, because no rehearsal begins in the minute before it: remove --rehearse, or choose a later time")
	}
	from, err := o.describe(command)
	if err != nil {
		return err
	}
	from.metadata.Labels = labels.Merge(from.spec.AtTemplate.Metadata.Labels, from.metadata.Labels)
	from.metadata.Annotations = from.spec.AtTemplate.Metadata.Annotations
	at := &v1alpha1.At{
		ObjectMeta: from.metadata,
		Spec:       v1alpha1.AtSpec{Schedule: t.String(), StartingDeadlineSeconds: o.startingDeadline.value, RunSpec: *from.run()},
	}
	if o.suspend {
		at.Spec.Suspend = ptr.To(true)
	}
	return o.createAt(ctx, at, t.Instant)
}

// createAt creates an At for an instant, prints it and when it runs, and follows it.
func (w *writer) createAt(ctx context.Context, at *v1alpha1.At, instant time.Time) error {
	if w.checks && !instant.After(w.began) {
		return usageError("--check is for a later time: this run starts at once, and --wait reports how it ends")
	}
	if err := w.create(ctx, at); err != nil {
		return err
	}
	if err := w.announceAt(ctx, at, instant); err != nil || w.wait.enabled() || !instant.After(w.began) {
		return err
	}
	return w.warn(ctx, at)
}

// announceAt prints when an At that has been written runs, and follows it.
func (w *writer) announceAt(ctx context.Context, at *v1alpha1.At, instant time.Time) error {
	if ptr.Deref(at.Spec.Suspend, false) {
		w.say("suspended, due %s: it does not start until %s", instant.In(w.local()).Format(longTime), w.kubectl("at resume %s", at.Name))
	} else {
		w.announce(w.runs(), instant, "")
		w.announceFreeze(at, later(instant, w.began))
	}
	if w.wait.enabled() {
		return w.follow(ctx, at, &w.wait)
	}
	return nil
}
