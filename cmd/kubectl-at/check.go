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
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// verdictTime is how long the preflight of a new or edited object may take. If all is well, the
// controller writes nothing, so there is nothing else to wait for.
const verdictTime = 10 * time.Second

func (c *cli) checkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check NAME|cronat/NAME",
		Short: "Find out whether a run would be refused",
		Long: `Find out whether a run would be refused at its time. Wait up to 10 seconds for the preflight of the
controller, which reports only refusals, and ask the API server whether you could create
the Pod now. The exit code is 3 if it is refused. The output says what was not checked.`,
		Example: `  kubectl at check backup-x2b4f
  kubectl at check cronat/backup`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			info, err := c.get(args[0])
			if err != nil {
				return err
			}
			of := info.Object.(object)
			return c.check(cmd.Context(), of, min(changedAt(of).Add(verdictTime).Sub(c.now()), verdictTime), c.Out)
		},
	}
}

// check prints the verdict on an At or a CronAt, and returns a refusal as an error. It waits for a time
// for the controller.
func (c *cli) check(ctx context.Context, of object, limit time.Duration, out io.Writer) error {
	if at, isAt := of.(*v1alpha1.At); isAt && (at.Status.Phase == v1alpha1.PhaseRunning || at.Status.Phase == v1alpha1.PhaseDone) {
		return fmt.Errorf("%s has started: see %s", ref(of), c.kubectl("at show %s", of.GetName()))
	}
	why := c.refusal(ctx, of, limit)
	if err := ctx.Err(); err != nil {
		return err
	}
	// The verdict of a rehearsal belongs here: it knows what dry-runs cannot know.
	asked := ""
	if why == "" {
		asked, why = c.dryRunPod(ctx, of)
	}
	if why != "" {
		return refused(of, why)
	}
	printFields(out, []field{
		{"Preflight", "The controller has reported nothing against " + ref(of) + "."},
		{"Dry-run", asked},
		{"Unchecked", "Do image, ConfigMaps, Secrets and volumes exist? Does a node have room? What does the command do?"},
	})
	return nil
}

// changedAt returns when the spec of an object was last written.
func changedAt(of object) time.Time {
	at := of.GetCreationTimestamp().Time
	for _, entry := range of.GetManagedFields() {
		if entry.Subresource == "" && entry.Time != nil && entry.Time.After(at) {
			at = entry.Time.Time
		}
	}
	return at
}

// warn prints why a new object would be refused, or checks it if --check says so. Scripts, which use
// -o, do not wait.
func (c *cli) warn(ctx context.Context, output *output, of object) error {
	why := ""
	switch {
	case output.isClient(), *output.flags.OutputFormat != "" && !output.check:
	case output.dryRun == "server":
		_, why = c.dryRunPod(ctx, of)
	case output.check:
		return c.check(ctx, of, verdictTime, c.ErrOut)
	default:
		why = c.refusal(ctx, of, c.verdict)
	}
	switch {
	case why == "":
	case output.check:
		return refused(of, why)
	default:
		fmt.Fprintln(c.ErrOut, answer.OneLine(why))
	}
	return nil
}

func refused(of object, why string) error {
	return withCode(exitFailed, "%s would not start: %s", ref(of), answer.OneLine(why))
}

// refusal waits until the controller reports why an object would not start, and returns that, or
// "" after a time.
func (c *cli) refusal(ctx context.Context, of object, limit time.Duration) (why string) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	seen := func(next object, generation int64, reason, message string) bool {
		why = ""
		if next.GetUID() != of.GetUID() || reason == "" {
			return false
		}
		if reason != v1alpha1.ReasonSuspended && reason != v1alpha1.ReasonAtActive {
			why = reason + ": " + message
		}
		return generation == next.GetGeneration() // Otherwise it may be out of date.
	}
	seenAt := func(at *v1alpha1.At) bool {
		return seen(at, at.Status.ObservedGeneration, at.Status.Reason, at.Status.Message)
	}
	seenCronAt := func(cronAt *v1alpha1.CronAt) bool {
		return seen(cronAt, cronAt.Status.ObservedGeneration, cronAt.Status.Reason, cronAt.Status.Message)
	}
	// The object exists, whatever happens now.
	switch of := of.(type) {
	case *v1alpha1.At:
		if !seenAt(of) {
			_ = watchObject(ctx, io.Discard, c.ats, of.Name, seenAt)
		}
	case *v1alpha1.CronAt:
		if !seenCronAt(of) {
			_ = watchObject(ctx, io.Discard, c.cronAts, of.Name, seenCronAt)
		}
	}
	return why
}

// dryRunPod asks the API server whether the user could create the Pod of an object now. The
// controller may have other permissions.
func (c *cli) dryRunPod(ctx context.Context, of object) (asked, refused string) {
	at := &v1alpha1.At{ObjectMeta: metav1.ObjectMeta{Name: of.GetName(), Namespace: of.GetNamespace(), UID: of.GetUID()}}
	switch of := of.(type) {
	case *v1alpha1.At:
		at.Spec = of.Spec
	case *v1alpha1.CronAt:
		at.Spec.RunSpec = of.Spec.AtTemplate.Spec
	}
	if at.Spec.Restart != nil {
		return "", ""
	}
	pod := plan.NewPod(at, plan.Defaults{Image: defaultImage})
	pod.OwnerReferences, pod.Finalizers = nil, nil // These may need more permissions.
	_, err := c.kube.CoreV1().Pods(at.Namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: fieldManager})
	forecast := plan.Foresee(v1alpha1.ReasonPodRefused, err)
	switch {
	case err != nil && strings.Contains(err.Error(), ` cannot create resource "pods"`):
		return "You are not allowed to create Pods, so the Pod was not tried.", ""
	case forecast == nil:
		return fmt.Sprintf("The API server does not say whether it accepts the Pod: %v", err), ""
	case forecast.Reason != "":
		return "", fmt.Sprintf("%s: %s", forecast.Reason, forecast.Message)
	}
	return "The API server accepts the Pod now, if you create it.", ""
}
