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
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

func (c *cli) showCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "show NAME|cronat/NAME",
		Aliases: []string{"describe", "status"},
		Short:   "Show the details of an At or a CronAt",
		Long: `Show the details of an At: what it runs and when, its state and the reason, its attempts and
its events. Or those of a CronAt: what it runs, its next times, its Ats and its events.`,
		Example: `  kubectl at show backup-x2b4f
  kubectl at show cronat/backup`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			info, err := c.get(args[0])
			if err != nil {
				return err
			}
			if cronAt, isCronAt := info.Object.(*v1alpha1.CronAt); isCronAt {
				return c.showCronAt(cmd.Context(), cronAt)
			}
			return c.show(cmd.Context(), info.Object.(*v1alpha1.At))
		},
	}
}

func (c *cli) show(ctx context.Context, at *v1alpha1.At) error {
	// A user who can see Ats may not be able to see Pods or events: print the rest of the
	// page anyway.
	pods, podsErr := listOf[*corev1.Pod](c, "pods", ofNodes(at))
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	var newest *corev1.Pod
	for _, pod := range pods {
		if at.Status.Pod != nil && pod.UID == at.Status.Pod.UID {
			newest = pod
		}
	}

	progress, isWaiting := c.progressOf(at, newest)
	printFields(c.Out, headOf(at.Name, at), whenOf(at, c.local(), c.now()), c.statusOf(at, progress, isWaiting))
	if podsErr != nil {
		c.say("Cannot list its Pods: %v", podsErr)
	}
	err := cmp.Or(c.printNodes(at), c.attempts(at, pods))
	if isWaiting {
		err = cmp.Or(err, c.events(ctx, "Warnings of its Pod", at.Namespace, at.Status.Pod.UID, ",type=Warning"))
	}
	return cmp.Or(err, c.events(ctx, "Events", at.Namespace, at.UID, ""))
}

// field is a line of a page. Without a label, it continues the previous line.
type field struct{ label, value string }

func printFields(out io.Writer, parts ...[]field) {
	for _, field := range slices.Concat(parts...) {
		if field.value != "" {
			fmt.Fprintf(out, "%-11s%s\n", field.label, answer.OneLine(field.value))
		}
	}
}

// headOf describes what runs, and who asked for it.
func headOf(name string, at *v1alpha1.At) []field {
	spec := &at.Spec.RunSpec
	all := []field{{"Name", name}, {"Namespace", at.Namespace}, {"Requester", at.Annotations[v1alpha1.AnnotationRequester]}}
	label := "Command"
	for line := range strings.Lines(spec.Command) {
		all = append(all, field{label, line})
		label = ""
	}
	if spec.Template != nil {
		if label == "Command" {
			all = append(all, field{label, commandOf(spec)})
		}
		var images []string
		for _, container := range spec.Template.Spec.Containers {
			images = append(images, container.Image)
		}
		all = append(all, field{"Image", strings.Join(images, ", ")})
	}
	return append(all, field{"Restarts", targetOf(spec)}, field{"Runs on", placeOf(spec)}, field{"Limits", limitsOf(&at.Spec)})
}

func limitsOf(spec *v1alpha1.AtSpec) string {
	var limits []string
	add := func(format string, n *int64) {
		if n != nil {
			limits = append(limits, fmt.Sprintf(format, short(plan.Seconds(*n))))
		}
	}
	if n := ptr.Deref(spec.BackoffLimit, 0); n > 0 {
		limits = append(limits, fmt.Sprintf("at most %d further attempts", n))
	}
	add("starts at most %s late", spec.StartingDeadlineSeconds)
	add("runs at most %s", spec.ActiveDeadlineSeconds)
	if spec.TTLSecondsAfterFinished != nil {
		add("removed %s after its end", ptr.To(int64(*spec.TTLSecondsAfterFinished)))
	}
	return strings.Join(limits, ", ")
}

// whenOf shows when an At is due: in the user's time zone, in UTC, and as written.
func whenOf(at *v1alpha1.At, zone *time.Location, now time.Time) []field {
	instant, err := plan.Instant(&at.Spec)
	if err != nil {
		return []field{{"When", at.Spec.Schedule + " " + ptr.Deref(at.Spec.TimeZone, "")}}
	}
	local, utc := instant.In(zone).Format(longTime), instant.UTC().Format(longTime)
	all := []field{{"When", local + ", " + fromNow(instant, now)}}
	if utc != local {
		all = append(all, field{" ", utc})
	}
	written := at.Spec.Schedule
	if at.Spec.TimeZone != nil {
		written = inItsZone(instant)
	}
	return append(all, field{" ", written + ", as written"})
}

// statusOf describes the state of an At. progress says how far a running one is.
func (c *cli) statusOf(at *v1alpha1.At, progress string, isWaiting bool) []field {
	state := string(at.Status.Phase)
	if at.Status.Reason != "" {
		state += ", " + at.Status.Reason
	}
	why, message, pod, again := c.whyOf(at, progress), "", "", ""
	if isWaiting && progress != why {
		pod = progress
	}
	if meta.IsStatusConditionTrue(at.Status.Conditions, v1alpha1.ConditionFailed) {
		again = c.kubectl("at now --from %s", ref(at))
	}
	if at.Status.Phase == v1alpha1.PhaseDone && at.Status.Message != why {
		message = at.Status.Message
	}
	return []field{
		{"State", state},
		{"Nodes", countsOf(at.Status.Nodes)},
		{"Why", why},
		{"Pod", pod},
		{"Message", message},
		{"Rehearsed", c.rehearsed(at)},
		{"Started", c.since(at.Status.StartTime)},
		{"Ended", c.since(at.Status.CompletionTime)},
		{"Exit code", exitCodeOf(at.Status.ExitCode)},
		{"Again", again},
	}
}

// rehearsed describes the last rehearsal.
func (c *cli) rehearsed(at *v1alpha1.At) string {
	condition := meta.FindStatusCondition(at.Status.Conditions, v1alpha1.ConditionRehearsed)
	if condition == nil || at.Status.RehearsedAt == nil {
		return ""
	}
	return condition.Reason + ", " + c.since(at.Status.RehearsedAt)
}

// whyOf explains the state of an At in a sentence.
func (c *cli) whyOf(at *v1alpha1.At, progress string) string {
	switch hint := c.hintOnAt(at); {
	case at.Status.Phase == v1alpha1.PhaseDone:
		end := cmp.Or(plan.TrueCondition(at.Status.Conditions, v1alpha1.ConditionComplete), plan.TrueCondition(at.Status.Conditions, v1alpha1.ConditionFailed))
		return ptr.Deref(end, metav1.Condition{Message: at.Status.Message}).Message
	case at.Status.Message != "":
		return at.Status.Message
	case hint != "" && at.Status.Phase != v1alpha1.PhaseRunning:
		return hint
	case at.Status.Phase == v1alpha1.PhaseRunning:
		return progress
	case instantOf(at).After(c.now()):
		return "It is waiting for its scheduled time."
	}
	return "It is about to start."
}

// progressOf says how far the newest attempt is, and whether its Pod has not started the command. If the
// user cannot see the Pod, pod is nil.
func (c *cli) progressOf(at *v1alpha1.At, pod *corev1.Pod) (text string, isWaiting bool) {
	const started = "It has started." // If it has ended, the status says how.
	if at.Status.Phase != v1alpha1.PhaseRunning || at.Status.Pod == nil {
		return started, false
	}
	phase, began, hasBegun := at.Status.Pod.Phase, ptr.Deref(at.Status.StartTime, at.CreationTimestamp), false
	if pod != nil {
		_, status := containerOf(pod, "")
		if status != nil && status.State.Running != nil {
			return "Its command is running.", false
		}
		phase, began, hasBegun = pod.Status.Phase, pod.CreationTimestamp, isOver(pod) || status != nil && hasStarted(status)
	}
	if hasBegun || pod == nil && phase != corev1.PodPending {
		return started, false
	}
	return fmt.Sprintf("Its Pod is %s since %s, %s: its command has not started.", phase, began.In(c.local()).Format(longTime), c.since(&began)), true
}

// since describes how far in the past or future a time is; it may be nil.
func (c *cli) since(t *metav1.Time) string {
	if t == nil {
		return ""
	}
	return fromNow(t.Time, c.now())
}

// attempts prints the Pods of a run.
func (c *cli) attempts(at *v1alpha1.At, pods []*corev1.Pod) error {
	table := newTable("#", "Pod", "Phase", "Exit", "Node", "Created", "Ran")
	for _, pod := range pods {
		number := "?"
		for n := range newestAttempt(at) + 1 {
			if plan.NameOfPod(at.Name, n) == pod.Name {
				number = fmt.Sprint(n + 1)
			}
		}
		exitCode, ran := "", ""
		if _, status := containerOf(pod, ""); status != nil {
			if running := status.State.Running; running != nil {
				ran = short(c.now().Sub(running.StartedAt.Time))
			} else if ended := cmp.Or(status.State.Terminated, status.LastTerminationState.Terminated); ended != nil {
				exitCode, ran = fmt.Sprint(ended.ExitCode), short(ended.FinishedAt.Sub(ended.StartedAt.Time))
			}
		}
		table.add(pod, number, pod.Name, string(pod.Status.Phase), exitCode, pod.Spec.NodeName, c.since(&pod.CreationTimestamp), ran)
	}
	return table.print(c, "Attempts", printers.PrintOptions{})
}

// events prints the events of the object with a UID that a further field selector selects.
func (c *cli) events(ctx context.Context, title, namespace string, uid types.UID, more string) error {
	list, err := c.kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(uid) + more})
	if err != nil {
		c.say("Cannot list events: %v", err)
		return nil
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
	table := newTable("When", "Type", "Reason", "Message")
	for _, event := range list.Items {
		table.add(&event, c.since(&event.LastTimestamp), event.Type, event.Reason, event.Message)
	}
	return table.print(c, title, printers.PrintOptions{})
}

// nextTimes is the number of times that the page of a CronAt shows.
const nextTimes = 3

func (c *cli) showCronAt(ctx context.Context, cronAt *v1alpha1.CronAt) error {
	ats, atsErr := c.listAts("") // Those of run-now have no label.
	spec := &cronAt.Spec
	printFields(c.Out,
		headOf(ref(cronAt), asAt(cronAt)),
		[]field{{"Schedule", spec.Schedule + ", " + zoneOf(cronAt)}, {"Policy", policyOf(spec)}},
		nextTimesOf(cronAt, c.local(), c.now()), c.stateOfCronAt(cronAt))
	if atsErr != nil {
		c.say("Cannot list its Ats: %v", atsErr)
	}
	ats = slices.DeleteFunc(ats, func(at *v1alpha1.At) bool {
		return !slices.ContainsFunc(at.OwnerReferences, func(owner metav1.OwnerReference) bool { return owner.UID == cronAt.UID })
	})
	return cmp.Or(c.printTable("Ats", ats, printers.PrintOptions{Wide: true}), c.events(ctx, "Events", cronAt.Namespace, cronAt.UID, ""))
}

// policyOf describes the other settings of a CronAt.
func policyOf(spec *v1alpha1.CronAtSpec) string {
	policy := string(spec.ConcurrencyPolicy)
	if spread := ptr.Deref(spec.SpreadSeconds, 0); spread > 0 {
		policy += ", spread over " + short(plan.Seconds(spread))
	}
	return policy + fmt.Sprintf(", keeps %d succeeded and %d failed", ptr.Deref(spec.SuccessfulAtsHistoryLimit, 3), ptr.Deref(spec.FailedAtsHistoryLimit, 1))
}

// nextTimesOf shows when a CronAt is due, in the user's time zone and its own.
func nextTimesOf(cronAt *v1alpha1.CronAt, zone *time.Location, now time.Time) []field {
	times, err := cronplan.Next(cronAt, now, nextTimes)
	if err != nil {
		return []field{{"Next", "never: " + err.Error()}}
	}
	var all []field
	label := "Next"
	for _, next := range times {
		all = append(all, field{label, when(next, zone, now)})
		label = ""
	}
	return all
}

// stateOfCronAt describes what a CronAt has done and what prevents more.
func (c *cli) stateOfCronAt(cronAt *v1alpha1.CronAt) []field {
	status := &cronAt.Status
	why := status.Message
	if isUnattended(cronAt, c.now()) {
		why = c.noController("No")
	}
	missed := ""
	if status.Missed != nil {
		missed = fmt.Sprintf("%d, the last %s", status.Missed.Count, c.since(&status.Missed.Last))
	}
	return []field{
		{"Active", fmt.Sprint(status.Active)},
		{"State", c.reasonOf(cronAt)},
		{"Why", why},
		{"Rehearsed", c.rehearsed(asAt(cronAt))},
		{"Last", c.since(status.LastScheduleTime)},
		{"Succeeded", c.since(status.LastSuccessfulTime)},
		{"Missed", missed},
	}
}
