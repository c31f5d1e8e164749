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
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// unattended is the time after which an At that is due but has no status counts as not
// processed by any controller.
const unattended = 10 * time.Second

// wait has the flags that follow a run.
type wait struct {
	wait, logs, passExitCode bool
	timeout                  seconds
	container                string // whose log it is; "" for the one that counts
}

// waitCommand follows a run that another command has created.
func (c *cli) waitCommand() *cobra.Command {
	w := wait{wait: true}
	cmd := &cobra.Command{
		Use:   "wait NAME",
		Short: "Wait for the end of a run",
		Long: `Wait for the end of a run. The exit code reports the outcome, like that of kubectl at TIME
--wait: see kubectl at --help. A line says when the run makes progress, and why it makes none.`,
		Example: "  kubectl at wait backup-x2b4f --timeout 1h",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			info, err := c.getAt(args[0])
			if err != nil {
				return err
			}
			return c.follow(cmd.Context(), info.Object.(*v1alpha1.At), &w)
		},
	}
	w.addLimits(cmd.Flags(), "")
	return cmd
}

func (w *wait) addFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&w.wait, "wait", false, "Wait for the end of the run; the exit code reports the outcome")
	flags.BoolVar(&w.logs, "logs", false, "Print the output of each attempt while it is running, and wait for the end")
	w.addLimits(flags, "With --wait or --logs: ")
}

func (w *wait) addLimits(flags *pflag.FlagSet, when string) {
	flags.Var(&w.timeout, "timeout", when+"stop waiting after this time (exit code 124); the run continues (default: a day after the run is due)")
	flags.BoolVar(&w.passExitCode, "pass-exit-code", false, when+"if the command fails, exit with its exit code")
}

func (w *wait) enabled() bool { return w.wait || w.logs }

// follow watches a run to its end and returns the outcome as an error.
func (c *cli) follow(ctx context.Context, at *v1alpha1.At, w *wait) error {
	untilOvertime := func(at *v1alpha1.At) time.Duration {
		return min(max(0, instantOf(at).Sub(c.now())), math.MaxInt64-overtime) + overtime
	}
	limit, cause := untilOvertime(at), withCode(exitTimeout, "the run was due a day ago, and there is no --timeout")
	if w.timeout.value != nil {
		limit, cause = plan.Seconds(*w.timeout.value), withCode(exitTimeout, "--timeout has passed")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(limit, func() { cancel(cause) })
	defer timer.Stop()
	states, watched := make(chan *v1alpha1.At), make(chan error, 1)
	go func() {
		watched <- watchObject(ctx, c.ErrOut, c.cnat, at, func(next *v1alpha1.At) bool {
			select {
			case states <- next:
			case <-ctx.Done():
			}
			return false
		})
	}()

	var logs *streams
	if w.logs {
		logs = c.streamLogs(ctx, c.Out, at, w.container)
	}
	logs.look(at)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	hinted, shown, watching := "", "", false
	for at.Status.Phase != v1alpha1.PhaseDone {
		if stage := stageOf(at); stage != shown {
			shown = stage
			c.say("%s: %s", ref(at), c.stateLine(at))
		}
		if watching { // A new object says nothing about the controller.
			if hint := c.hintOnAt(at); hint != hinted {
				hinted = hint
				c.say("%s", hint)
			}
		}
		select {
		case next := <-states:
			if next.UID != at.UID {
				return fmt.Errorf("%s was deleted and created again before it ended", ref(at))
			}
			if w.timeout.value == nil && !instantOf(next).Equal(instantOf(at)) {
				timer.Reset(untilOvertime(next))
			}
			at, watching = next, true
			logs.look(at)
		case err := <-watched:
			switch {
			case ctx.Err() != nil:
				return c.stopped(ctx, at)
			case errors.Is(err, errGone):
				return fmt.Errorf("%s was deleted before it ended", ref(at))
			}
			return fmt.Errorf("watch %s: %w", ref(at), err)
		case <-tick.C:
		}
	}
	err := logs.finish()
	if err = cmp.Or(context.Cause(ctx), err); err != nil {
		c.say("The log is incomplete: %v", err)
	}
	failed := outcome(at, w.passExitCode)
	if began, ended := at.Status.StartTime, at.Status.CompletionTime; began != nil && ended != nil && failed == nil {
		c.say("%s: %s after %s", ref(at), at.Status.Reason, short(ended.Sub(began.Time)))
	}
	return failed
}

// overtime is how long to wait after the time of a run without --timeout: a script must not
// wait forever for what is suspended, blocked or hanging.
const overtime = day

// stopped returns the error for watching that ended before the run.
func (c *cli) stopped(ctx context.Context, at *v1alpha1.At) error {
	state, goesOn := strings.TrimSuffix(c.stateLine(at), "."), "The run continues"
	if at.Status.Phase != v1alpha1.PhaseRunning {
		goesOn = "It stays scheduled"
	}
	goesOn = fmt.Sprintf("%s is %s. %s: %s reports its end; %s removes it", ref(at), state, goesOn, c.kubectl("at wait %s", at.Name), c.kubectl("at rm %s", at.Name))
	var timeout *coded
	if errors.As(context.Cause(ctx), &timeout) {
		return fmt.Errorf("%w: %s", timeout, goesOn)
	}
	return withCode(exitInterrupted, "stopped watching: %s", goesOn)
}

// reasonLine returns the reason for the state of an At, and the message.
func reasonLine(at *v1alpha1.At) string {
	if at.Status.Message == "" {
		return at.Status.Reason
	}
	return at.Status.Reason + ": " + at.Status.Message
}

// outcome returns the outcome of a run as an error, or nil if it succeeded.
func outcome(at *v1alpha1.At, passExitCode bool) error {
	if meta.IsStatusConditionTrue(at.Status.Conditions, v1alpha1.ConditionComplete) {
		return nil
	}
	how := reasonLine(at)
	if at.Status.Reason == v1alpha1.ReasonStartingDeadlineExceeded {
		return withCode(exitMissed, "%s did not run: %s", ref(at), how)
	}
	exitCode := int(ptr.Deref(at.Status.ExitCode, 0))
	if exitCode != 0 && !strings.Contains(how, fmt.Sprintf("exit code %d", exitCode)) {
		how += fmt.Sprintf(" (exit code %d)", exitCode)
	}
	code := exitFailed
	if passExitCode && exitCode != 0 {
		code = exitCode
	}
	return withCode(code, "%s failed: %s", ref(at), how)
}

// hintOnAt says why an At does not start if no status does.
func (c *cli) hintOnAt(at *v1alpha1.At) string {
	switch {
	case ptr.Deref(at.Spec.Suspend, false):
		return fmt.Sprintf("%s is suspended: it does not start until %s.", ref(at), c.kubectl("at resume %s", at.Name))
	case isUnattended(at, c.now()):
		return c.noController("Its time has passed and no")
	}
	return ""
}

// isUnattended reports whether no controller has processed an object for a while that is due, or a new CronAt.
func isUnattended(of object, now time.Time) bool {
	at := asAt(of)
	var overdue time.Duration
	switch of := of.(type) {
	case *v1alpha1.At:
		_, overdue = plan.StateOf(of, nil, now)
	case *v1alpha1.CronAt:
		if overdue = cronplan.Overdue(of, now); of.Status.ObservedSchedule == nil {
			overdue = now.Sub(of.CreationTimestamp.Time)
		}
	}
	return overdue > unattended && at.Status.Reason == "" && !hasBegun(at)
}

// noController asks the user to check the controller.
func (c *cli) noController(beginning string) string {
	return beginning + " controller is processing it: is cnat-controller running? See " + c.kubectl("get pods -A -l app.kubernetes.io/name=cnat-controller") + "."
}

// stageOf returns what changes when a run makes progress, or begins or ceases to do so.
func stageOf(at *v1alpha1.At) string {
	switch reason := at.Status.Reason; {
	case reason == v1alpha1.ReasonSuspended: // Users know that.
		return ""
	case reason != "" || at.Status.Phase != v1alpha1.PhaseRunning:
		return reason
	}
	return string(at.Status.Phase) + doingOf(at)
}

// doingOf describes what a running At does, for the end of a line.
func doingOf(at *v1alpha1.At) string {
	switch {
	case at.Status.Nodes != nil:
		return ", nodes: " + countsOf(at.Status.Nodes)
	case at.Status.Restart != nil:
		return ", " + at.Status.Message
	case at.Status.Pod != nil:
		return fmt.Sprintf(", Pod %s %s", at.Status.Pod.Name, at.Status.Pod.Phase)
	}
	return ""
}

// stateLine describes the state of an At in one line.
func (c *cli) stateLine(at *v1alpha1.At) string {
	line, now := string(at.Status.Phase), c.now()
	instant, err := plan.Instant(&at.Spec)
	switch {
	case at.Status.Reason != "":
		line += ", " + reasonLine(at)
	case at.Status.Phase == v1alpha1.PhaseRunning:
		line += " for " + short(now.Sub(ptr.Deref(at.Status.StartTime, at.CreationTimestamp).Time)) + doingOf(at)
	case err == nil && instant.After(now):
		line += ", starts " + fromNow(instant.Add(time.Second-1), now)
	}
	return line
}
