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
	"io"
	"math"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/timespec"
)

const createLong = `Run a command once, at a given time, in a Pod of the cluster.

Everything before -- is the TIME, with or without quotes:

  now   now + 2 hours   +90m   in 2h30m   noon   midnight   teatime
  10:12   1012   10am   tomorrow 10:12   next friday   24 dec 10:12
  2026-12-24 10:12   24.12.2026   2026-12-24T10:12:00+01:00

A time zone (Europe/Berlin, UTC, +01:00) or "+ 2 hours" may follow. Without a zone the time
is that of --tz, or of your own clock. A time that has passed today means tomorrow; a date in
the past is an error. kubectl at explain TIME shows how a time is understood.

What follows -- is the COMMAND: a single argument is a command line for /bin/sh, several
run exactly as they are, in /bin/sh: kill, test or exit is the shell's own. Without a
COMMAND, the lines of the standard input are it.

Exit codes: 0 created, or with --wait the run succeeded; 1 error of the API server or on
the way to it; 2 wrong usage, or the time was not understood; 3 the run failed; 4 it missed
its starting deadline; 124 --timeout passed; 130 interrupted. Ctrl-C ends the watching, not
the run.`

const createExample = `  # In two hours, and follow it to its end
  kubectl at now + 2 hours --logs -- pg_dump -h db shop

  # A command line for the shell
  kubectl at tomorrow 10:12 -- 'date; echo YAY > /tmp/yay'

  # The lines of the standard input, as at(1) reads them
  echo 'echo YAY' | kubectl at noon

  # With the image, the environment and the volumes of a CronJob, now and not at night
  kubectl at now --from cronjob/backup --wait

  # A migration with another command in the Pod of a Deployment
  kubectl at 2026-12-24 03:00 Europe/Berlin --from deployment/shop --retries 2 -- ./migrate up

  # Once on each node of a pool, two at the same time
  kubectl at 02:00 --nodes pool=workers --max-concurrent 2 --wait -f pod.yaml

  # Only show what would be created
  kubectl at friday 18:00 --dry-run=client -o yaml -- echo YAY`

// create holds the flags of kubectl at TIME.
type create struct {
	*cli
	output *output
	wait   wait

	name             string
	past, suspend    bool
	retries          int32
	activeDeadline   seconds
	startingDeadline seconds
	ttl              seconds
	pod              podFlags
	nodes            nodeFlags
}

func (c *cli) createCommand() *cobra.Command {
	o := &create{cli: c, activeDeadline: seconds{least: 1}, ttl: seconds{most: math.MaxInt32}}
	cmd := &cobra.Command{
		Use:     "at TIME [flags] [-- COMMAND...]",
		Short:   "Run a command once, at a given time",
		Long:    createLong,
		Example: createExample,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			words, command := args, []string(nil)
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				words, command = args[:dash], args[dash:]
			}
			if len(args) == 0 && cmd.ArgsLenAtDash() < 0 && cmd.Flags().NFlag() == 0 && !hasInput(c.In) {
				return cmd.Help()
			}
			return o.run(cmd, words, command)
		},
	}
	o.output = addOutput(cmd, "created")
	flags := cmd.Flags()
	flags.StringVar(&o.name, "name", "", "Name of the At (default: one that says what runs)")
	flags.BoolVar(&o.past, "past", false, "Allow a time in the past, which means at once")
	flags.BoolVar(&o.suspend, "suspend", false, "Create it suspended: it does not start before kubectl at resume")
	flags.Int32Var(&o.retries, "retries", 0, "Number of further attempts after a failed one")
	flags.Var(&o.activeDeadline, "active-deadline", "How long the run may take, with all attempts")
	flags.Var(&o.startingDeadline, "starting-deadline", "How late after its time the run may start; later it fails and never runs")
	flags.Var(&o.ttl, "ttl", "Delete the At, and its Pods, this long after its end")
	o.pod.addFlags(flags)
	o.nodes.addFlags(flags)
	o.wait.addFlags(flags)
	return cmd
}

func (o *create) run(cmd *cobra.Command, words, command []string) error {
	if err := o.validate(cmd, words); err != nil {
		return err
	}
	if cmd.ArgsLenAtDash() >= 0 && strings.TrimSpace(strings.Join(command, "")) == "" {
		return usageError("there is no command after --: write one, or leave out --")
	}
	now := o.now().Truncate(time.Second) // as t
	t, err := o.parseTime(words, now, o.past)
	if err != nil {
		return mistakenCommand(cmd, words, err)
	}
	at, err := o.newAt(cmd, t, command)
	if err != nil {
		return err
	}
	if !o.output.isClient() {
		if at, err = o.create(cmd.Context(), at); err != nil {
			return err
		}
	}
	if err := o.output.print(o.cli, at); err != nil {
		return err
	}
	verb := o.output.runs()
	if o.suspend {
		verb = "suspended, due"
	}
	if err := o.announce(verb, t.Instant, now); err != nil {
		return err
	}
	if o.wait.enabled() {
		return o.follow(cmd.Context(), at, &o.wait)
	}
	return nil
}

func (o *create) validate(cmd *cobra.Command, words []string) error {
	if len(words) == 0 {
		return usageError("there is no time: write it before --, as in kubectl at now + 2 hours -- echo YAY")
	}
	if err := o.output.validate(); err != nil {
		return err
	}
	if err := o.wait.validate(); err != nil {
		return err
	}
	if o.wait.enabled() && o.output.dryRun != "none" {
		return usageError("--wait means nothing with --dry-run=%s: leave out one of the two", o.output.dryRun)
	}
	if o.retries < 0 {
		return usageError("--retries is %d: it must not be negative", o.retries)
	}
	if problems := validation.IsDNS1123Subdomain(o.name); cmd.Flags().Changed("name") && len(problems) > 0 {
		return usageError("--name is %q: %s", o.name, strings.Join(problems, "; "))
	}
	if err := o.nodes.validate(&o.wait); err != nil {
		return err
	}
	return o.pod.validate()
}

// mistakenCommand adds to an error about the first word of a time the command that may
// have been meant.
func mistakenCommand(cmd *cobra.Command, words []string, err error) error {
	var mistake *timespec.Error
	if errors.As(err, &mistake) && mistake.Offset == 0 {
		if names := cmd.Root().SuggestionsFor(words[0]); len(names) > 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "%q is neither a time nor a command. Did you mean kubectl at %s?\n", words[0], names[0])
		}
	}
	return err
}

// newAt returns the At that the flags describe.
func (o *create) newAt(cmd *cobra.Command, t timespec.Time, command []string) (*v1alpha1.At, error) {
	namespace, isGiven, err := o.config.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, err
	}
	at := &v1alpha1.At{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: o.name},
		Spec: v1alpha1.AtSpec{
			Schedule:                t.String(),
			StartingDeadlineSeconds: o.startingDeadline.value,
			RunSpec: v1alpha1.RunSpec{
				Command:               shellCommand(command),
				ActiveDeadlineSeconds: o.activeDeadline.value,
			},
		},
	}
	if err := o.nodes.apply(&at.Spec); err != nil {
		return nil, err
	}
	if o.suspend {
		at.Spec.Suspend = ptr.To(true)
	}
	if o.retries > 0 {
		at.Spec.BackoffLimit = ptr.To(o.retries)
	}
	if o.ttl.value != nil {
		at.Spec.TTLSecondsAfterFinished = ptr.To(int32(*o.ttl.value))
	}
	if o.output.isClient() && !isGiven {
		at.Namespace = "" // as kubectl create: what is printed fits any namespace
	}
	what := at.Spec.Command
	source := ""
	if at.Spec.Template, source, err = o.podTemplate(cmd.Context(), namespace); err != nil {
		return nil, err
	}
	if at.Spec.Command == "" && !o.pod.runs() {
		if at.Spec.Command, err = o.readCommand(cmd.Context()); err != nil {
			return nil, err
		}
		what = at.Spec.Command
	}
	if source != "" {
		what = source
	}
	if at.Name == "" {
		at.Name = generateName(what)
	}
	return at, nil
}

// readCommand returns the lines of the standard input.
func (o *create) readCommand(ctx context.Context) (string, error) {
	const missing = "there is no command: write it after --, or pipe its lines into the standard input"
	if isTerminal(o.In) {
		return "", usageError(missing)
	}
	lines, err := interruptible(ctx, func() ([]byte, error) { return io.ReadAll(o.In) })
	if err != nil {
		return "", fmt.Errorf("read the command from the standard input: %w", err)
	}
	if strings.TrimSpace(string(lines)) == "" {
		return "", usageError(missing)
	}
	return strings.TrimRight(string(lines), "\n"), nil
}

// interruptible reads something that might take for ever, until a signal arrives.
func interruptible(ctx context.Context, read func() ([]byte, error)) ([]byte, error) {
	var content []byte
	done := make(chan error, 1)
	go func() {
		var err error
		content, err = read()
		done <- err
	}()
	select {
	case err := <-done:
		return content, err
	case <-ctx.Done():
		return nil, withCode(exitInterrupted, "interrupted: nothing was created")
	}
}

// hasInput says whether a program or a file is the standard input.
func hasInput(stream any) bool {
	file, ok := stream.(*os.File)
	if !ok {
		return true
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice == 0
}

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

func (o *create) create(ctx context.Context, at *v1alpha1.At) (*v1alpha1.At, error) {
	ats, _, err := o.ats()
	if err != nil {
		return nil, err
	}
	return ats.Create(ctx, at, metav1.CreateOptions{DryRun: o.output.serverDryRun(), FieldValidation: metav1.FieldValidationStrict, FieldManager: fieldManager})
}

// fieldManager is the name under which the API server records what this program writes.
const fieldManager = "kubectl-at"
