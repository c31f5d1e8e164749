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
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

const (
	// verdictTime is how long the preflight of a new or edited object may take. If all is well,
	// the controller writes nothing, so there is nothing else to wait for.
	verdictTime = 10 * time.Second
	// rehearsalTime is the same for a rehearsal, for which the controller takes ten minutes at most.
	// With nodes, there are up to three, one after the other.
	rehearsalTime      = 11 * time.Minute
	nodesRehearsalTime = 31 * time.Minute
)

func (c *cli) checkCommand() *cobra.Command {
	again := false
	cmd := &cobra.Command{
		Use:   "check NAME|cronat/NAME",
		Short: "Find out whether a run would be refused",
		Long: `Find out whether a run would be refused at its time. Wait up to 10 seconds for the preflight of the
controller, which reports only refusals, and up to 11 minutes for a rehearsal, if you asked for
one, or 31 with nodes; and ask the API server whether you could create the Pod, or restart the
workload, now. The exit code is 3 if the run would not start, and 124 if a rehearsal was asked
for and none has passed. The output says what was not checked.

With --again, the controller rehearses again, also what has passed, but not within a minute after the
last rehearsal.`,
		Example: `  kubectl at check backup-x2b4f
  kubectl at check cronat/backup
  kubectl at check backup-x2b4f --again`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			info, err := c.get(args[0])
			if err != nil {
				return err
			}
			of := info.Object.(object)
			ago := c.now().Sub(later(of.GetCreationTimestamp().Time, plan.WrittenAt(of, "")))
			if again && !hasBegun(asAt(of)) {
				if err := c.requestRehearsal(info); err != nil {
					return err
				}
				of, ago = info.Object.(object), 0
			}
			return c.check(cmd.Context(), of, ago, c.Out)
		},
	}
	cmd.Flags().BoolVar(&again, "again", false, "Rehearse again, although the last rehearsal has passed or is not repeated yet")
	return cmd
}

// requestRehearsal asks the controller for another rehearsal.
func (c *cli) requestRehearsal(info *resource.Info) error {
	return (&writer{cli: c}).write(info, func() error {
		of := info.Object.(object)
		at := asAt(of)
		switch {
		case at.Spec.Restart != nil:
			return usageError("%s restarts a workload, so there is no Pod to rehearse: remove --again", ref(of))
		case !at.Spec.Rehearse:
			return usageError("%s has no rehearsals: set rehearse: true in the spec of its run with %s", ref(of), c.kubectl("edit %s -n %s", ref(of), of.GetNamespace()))
		}
		requested := c.now()
		if last := at.Status.RehearsedAt; last != nil { // The clock of the controller may be ahead.
			requested = later(requested, last.Add(time.Second))
		}
		of.SetAnnotations(labels.Merge(of.GetAnnotations(), labels.Set{v1alpha1.AnnotationRehearsalRequestedAt: requested.UTC().Format(time.RFC3339)}))
		return nil
	})
}

// check prints the verdict on an At or a CronAt that was written some time ago, and returns a refusal
// as an error.
func (c *cli) check(ctx context.Context, of object, ago time.Duration, out io.Writer) error {
	at := asAt(of)
	if hasBegun(at) {
		return fmt.Errorf("%s has started: see %s", ref(of), c.kubectl("at show %s", of.GetName()))
	}
	limit, none := verdictTime, c.noPreflight(of)
	noRehearsal := none
	_, isAt := of.(*v1alpha1.At)
	if isAt {
		if _, comes := plan.UntilRehearsal(at, c.now()); !comes {
			noRehearsal = "There is none in the minute before the run."
		}
	}
	switch {
	case none != "" && at.Status.ObservedGeneration == at.Generation:
		limit = 0
	case at.Spec.Rehearse && noRehearsal == "":
		if limit = rehearsalTime; at.Spec.Nodes != nil {
			limit = nodesRehearsalTime
		}
		noRehearsal = c.noController("None has ended in time. Others come first, a run is refused for quota, -rehearsals is 0, or no")
	}
	left := limit - max(0, ago)
	if isAt && limit > verdictTime {
		left = min(left, max(verdictTime, instantOf(at).Sub(c.now())-plan.RehearsalLead))
	}
	if _, isKnown := verdictOn(of); !isKnown && limit > verdictTime && left > 0 {
		c.say("waiting for the rehearsal of %s, %s at most", ref(of), short(left))
	}
	why, last, unseen := c.verdict(ctx, of, left)
	if err := ctx.Err(); err != nil {
		return err
	}
	if apierrors.IsForbidden(unseen) {
		return fmt.Errorf("what the controller reports on %s is not known: %w", ref(of), unseen)
	}
	result := rehearsalOf(last)
	asked, rehearsal, hasPassed := "", "", result != nil && result.Status == metav1.ConditionTrue
	if why == "" {
		asked, why = c.dryRun(ctx, of)
	}
	switch {
	case why != "":
		if result != nil && isBlockedByRehearsal(last) {
			why += fmt.Sprintf(" (rehearsed again at once with %s)", c.kubectl("at check %s --again", ref(of)))
		}
		return refused(of, why)
	case result != nil:
		rehearsal = c.rehearsed(last) + ": " + result.Message
	case at.Spec.Rehearse:
		rehearsal = noRehearsal
	}
	missing, notAllowed, suspended := "", "", ""
	if ptr.Deref(at.Spec.Suspend, false) {
		suspended = "Nothing starts until " + c.kubectl("at resume %s", ref(of)) + "."
	}
	if !hasPassed {
		missing, notAllowed = c.missing(of)
	}
	printFields(out, []field{
		{"Suspended", suspended},
		{"Preflight", cmp.Or(none, "The controller has reported nothing against "+ref(of)+".")},
		{"Rehearsal", rehearsal},
		{"Dry-run", asked},
		{"Missing", strings.TrimSpace(missing + " " + notAllowed)},
		{"Unchecked", uncheckedOf(&at.Spec.RunSpec, hasPassed)},
	})
	if at.Spec.Rehearse && !hasPassed {
		return withCode(exitTimeout, "no rehearsal of %s has passed, so it is not known whether it would start", ref(of))
	}
	return nil
}

// uncheckedOf says what a check does not find out. hasPassed reports whether a rehearsal has passed.
func uncheckedOf(run *v1alpha1.RunSpec, hasPassed bool) string {
	switch {
	case hasPassed:
		return "What the command does."
	case run.Restart != nil:
		return "How the rollout ends."
	case run.Rehearse:
		return "Image, ConfigMaps, Secrets, volumes, room on a node. And what the command does."
	}
	return "Image, ConfigMaps, Secrets, volumes, room on a node: --rehearse tries them. And what the command does."
}

// noPreflight says why neither a preflight nor a rehearsal of a CronAt will take place, or returns "".
func (c *cli) noPreflight(of object) string {
	cronAt, isCronAt := of.(*v1alpha1.CronAt)
	switch {
	case !isCronAt:
	case cronplan.NextAt(cronAt, c.now()) == nil:
		return "There is none while no At is scheduled."
	case cronplan.MustForecastWait(cronAt):
		return "There is none until its active At has ended."
	}
	return ""
}

// asAt returns an At with what it has in common with a CronAt: what runs and whether it is suspended, and what
// the controller reports. For other kinds, it is empty.
func asAt(of object) *v1alpha1.At {
	at := &v1alpha1.At{}
	switch of := of.(type) {
	case *v1alpha1.At:
		return of
	case *v1alpha1.CronAt:
		at.ObjectMeta = of.ObjectMeta
		at.Spec = v1alpha1.AtSpec{RunSpec: of.Spec.AtTemplate.Spec, Suspend: of.Spec.Suspend, StartingDeadlineSeconds: of.Spec.StartingDeadlineSeconds}
		at.Status = v1alpha1.AtStatus{
			ObservedGeneration: of.Status.ObservedGeneration, Reason: of.Status.Reason, Message: of.Status.Message,
			Conditions: of.Status.Conditions, RehearsedAt: of.Status.RehearsedAt,
		}
	}
	return at
}

func hasBegun(at *v1alpha1.At) bool {
	return at.Status.Phase == v1alpha1.PhaseRunning || at.Status.Phase == v1alpha1.PhaseDone
}

// isRequested reports whether a rehearsal was requested that has not taken place.
func isRequested(at *v1alpha1.At) bool { return !plan.RehearsedOf(&at.Status).Requested(at).IsZero() }

// rehearsalOf returns the result of the rehearsal of the current generation, unless another one was requested.
func rehearsalOf(at *v1alpha1.At) *metav1.Condition {
	condition := meta.FindStatusCondition(at.Status.Conditions, v1alpha1.ConditionRehearsed)
	if condition != nil && condition.ObservedGeneration == at.Generation && !isRequested(at) {
		return condition
	}
	return nil
}

func isBlockedByRehearsal(at *v1alpha1.At) bool {
	blocked := meta.FindStatusCondition(at.Status.Conditions, v1alpha1.ConditionBlocked)
	return plan.IsForecast(blocked) && !plan.IsRefusal(blocked)
}

// warn prints why a new object would be refused, or what its Pod names that does not exist. It checks
// the object if --check says so. Scripts, which use -o, do not wait.
func (w *writer) warn(ctx context.Context, of object) error {
	why := ""
	switch {
	case w.isClient(), *w.format.OutputFormat != "" && !w.checks:
		return nil
	case w.isServer():
		var asked string
		if asked, why = w.cli.dryRun(ctx, of); why == "" {
			w.say("%s", asked)
		}
	case w.checks:
		return w.check(ctx, of, 0, w.ErrOut)
	default:
		why, _, _ = w.verdict(ctx, of, w.patience)
	}
	if why != "" && w.checks {
		return refused(of, why)
	}
	if why == "" {
		if why, _ = w.missing(of); why != "" && !asAt(of).Spec.Rehearse {
			why += " Nothing was rehearsed: --rehearse tries the Pod on a node."
		}
	}
	w.say("%s", why)
	return nil
}

func refused(of object, why string) error {
	return withCode(exitFailed, "%s would not start: %s", ref(of), answer.OneLine(why))
}

// verdictOn returns why an object would not start, if the controller has reported that. isKnown is
// false if it has reported nothing on the current version, not even the result of a rehearsal.
func verdictOn(of object) (why string, isKnown bool) {
	switch at := asAt(of); at.Status.Reason {
	case "", v1alpha1.ReasonAtActive, v1alpha1.ReasonSuspended:
		return "", rehearsalOf(at) != nil || hasBegun(at)
	default:
		// Otherwise it may be out of date.
		return reasonLine(at), at.Status.ObservedGeneration == at.Generation && (!isRequested(at) || !isBlockedByRehearsal(at))
	}
}

// verdict waits for what verdictOn returns, or for a time. It also returns the state then, or why it
// could not wait.
func (c *cli) verdict(ctx context.Context, of object, limit time.Duration) (why string, last *v1alpha1.At, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	seen := func(next object) (isKnown bool) {
		if next.GetUID() != of.GetUID() {
			return false
		}
		why, isKnown = verdictOn(next)
		last = asAt(next)
		return isKnown
	}
	// The object exists, whatever happens now.
	if !seen(of) {
		err = watchObject(ctx, io.Discard, c.cnat, of, seen)
	}
	return why, last, err
}
