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

package plan

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

const (
	uid    types.UID = "at-uid"
	podUID types.UID = "pod-uid"
)

var (
	due     = time.Date(2026, 12, 24, 10, 12, 0, 0, time.UTC)
	created = due.Add(10 * time.Millisecond)
	endTime = due.Add(3 * time.Second)
	now     = due.Add(4 * time.Second)
	earlier = due.Add(-time.Hour)
)

// edited returns an object after the given edits.
func edited[T any](object *T, edits ...func(*T)) *T {
	for _, edit := range edits {
		edit(object)
	}
	return object
}

func newAt(mutate ...func(*v1alpha1.At)) *v1alpha1.At {
	at := &v1alpha1.At{
		ObjectMeta: metav1.ObjectMeta{Name: "example-at", Namespace: "default", UID: uid, Generation: 2},
		Spec:       v1alpha1.AtSpec{Schedule: "2026-12-24T10:12:00Z", RunSpec: v1alpha1.RunSpec{Command: "echo YAY"}},
		Status:     v1alpha1.AtStatus{Phase: v1alpha1.PhasePending},
	}
	return edited(at, mutate...)
}

// runningAt is an At whose Pod was seen running.
func runningAt(mutate ...func(*v1alpha1.At)) *v1alpha1.At {
	return edited(newAt(withStatus(running(corev1.PodRunning))), mutate...)
}

func withStatus(status v1alpha1.AtStatus) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) { at.Status = status }
}

func withSchedule(schedule string) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) { at.Spec.Schedule = schedule }
}

func withoutOwner(pod *corev1.Pod) { pod.OwnerReferences = nil }

func newPod(phase corev1.PodPhase, mutate ...func(*corev1.Pod)) *corev1.Pod {
	pod := NewPod(newAt(), Defaults{Image: "image"})
	pod.UID = podUID
	pod.CreationTimestamp = metav1.Time{Time: created}
	pod.Spec.NodeName = "node"
	pod.Status.Phase = phase
	return edited(pod, mutate...)
}

func pendingPod(mutate ...func(*corev1.Pod)) *corev1.Pod { return newPod(corev1.PodPending, mutate...) }

func runningPod(mutate ...func(*corev1.Pod)) *corev1.Pod { return newPod(corev1.PodRunning, mutate...) }

func failedPod(mutate ...func(*corev1.Pod)) *corev1.Pod { return newPod(corev1.PodFailed, mutate...) }

func succeededPod(mutate ...func(*corev1.Pod)) *corev1.Pod {
	return newPod(corev1.PodSucceeded, mutate...)
}

func ownedBy(owners ...metav1.OwnerReference) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.OwnerReferences, pod.Labels, pod.Finalizers = owners, nil, nil
	}
}

// podsOf is a list of a Pod, or of none.
func podsOf(pod *corev1.Pod) []*corev1.Pod {
	if pod == nil {
		return nil
	}
	return []*corev1.Pod{pod}
}

func terminated(exitCode int32, message string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name:  "sidecar",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 99}},
		}, {
			Name: "command",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: exitCode, Message: message, FinishedAt: metav1.Time{Time: endTime},
			}},
		}}
	}
}

// running is the status of an At whose Pod was seen in the given phase.
func running(phase corev1.PodPhase, conditions ...metav1.Condition) v1alpha1.AtStatus {
	return v1alpha1.AtStatus{
		Phase:              v1alpha1.PhaseRunning,
		ScheduledTime:      &metav1.Time{Time: due},
		StartTime:          &metav1.Time{Time: created},
		Pod:                &v1alpha1.AtPod{Name: "example-at-pod", UID: podUID, AtGeneration: 2, Phase: phase, NodeName: "node"},
		ObservedGeneration: 2,
		Conditions:         conditions,
	}
}

func condition(conditionType string, status metav1.ConditionStatus, at time.Time, reason, message string) metav1.Condition {
	return metav1.Condition{
		Type: conditionType, Status: status, ObservedGeneration: 2,
		LastTransitionTime: metav1.Time{Time: at}, Reason: reason, Message: message,
	}
}

// blocked is the condition of an At that cannot start.
func blocked(since time.Time, reason, message string) metav1.Condition {
	return condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, since, reason, message)
}

// pendingWith is the status of a pending At with the given conditions.
func pendingWith(conditions ...metav1.Condition) v1alpha1.AtStatus {
	status := v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, ObservedGeneration: 2, Conditions: conditions}
	explained(&status)
	return status
}

// pendingAt is an At with the given conditions that has not run.
func pendingAt(conditions ...metav1.Condition) *v1alpha1.At {
	return newAt(withStatus(pendingWith(conditions...)))
}

func withSuspend(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) }

func withSuspended(at *v1alpha1.At) {
	at.Spec.Suspend = ptr.To(true)
	at.Status = v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, ObservedGeneration: 2, Conditions: []metav1.Condition{suspended()}}
	explained(&at.Status)
}

func suspended() metav1.Condition {
	return condition(v1alpha1.ConditionSuspended, metav1.ConditionTrue, earlier, v1alpha1.ReasonSuspended, "Nothing starts while spec.suspend is true.")
}

func resumed(since time.Time) metav1.Condition {
	return condition(v1alpha1.ConditionSuspended, metav1.ConditionFalse, since, v1alpha1.ReasonResumed, "The At is no longer suspended.")
}

func withStartingDeadline(seconds int64) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = &seconds }
}

func withActiveDeadline(seconds int64) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) { at.Spec.ActiveDeadlineSeconds = &seconds }
}

func withBackoffLimit(limit int32) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) { at.Spec.BackoffLimit = &limit }
}

// withSuspendedRun suspends an At that has begun to run.
func withSuspendedRun(at *v1alpha1.At) {
	at.Spec.Suspend = ptr.To(true)
	at.Status.Conditions = []metav1.Condition{suspended()}
}

func withoutTTL(at *v1alpha1.At) { at.Spec.TTLSecondsAfterFinished = ptr.To[int32](0) }

func withDone(conditionType string, since time.Time) func(*v1alpha1.At) {
	return withStatus(v1alpha1.AtStatus{
		Phase:      v1alpha1.PhaseDone,
		Conditions: []metav1.Condition{condition(conditionType, metav1.ConditionTrue, since, "Any", "")},
	})
}

// deleted is a Pod that is to go.
func deleted(pod *corev1.Pod) {
	pod.DeletionTimestamp = &metav1.Time{Time: now}
}

// deletedByForce is a Pod that was to go at once.
func deletedByForce(at time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: at}, ptr.To[int64](0)
	}
}

// removedByNode is a Pod that its node removes, after a deletion of the given generation. Its node has
// reported another one. Its grace period is 30 seconds.
func removedByNode(at time.Time, deletion, reported int64) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		deletedByForce(at)(pod)
		pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](30)
		pod.Generation, pod.Status.ObservedGeneration = deletion, reported
	}
}

// second is the Pod of the second attempt.
func second(pod *corev1.Pod) { pod.Name, pod.UID = "example-at-pod-1", "second" }

// waits, runs and exited are states of a container.
func waits(name, reason, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
}

func runs(name string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
}

func withContainers(statuses ...corev1.ContainerStatus) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.ContainerStatuses = statuses }
}

func withInitContainers(statuses ...corev1.ContainerStatus) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.InitContainerStatuses = statuses }
}

func waiting(reason, message string) func(*corev1.Pod) {
	return withContainers(waits("command", reason, message))
}

func withCondition(conditionType corev1.PodConditionType, status corev1.ConditionStatus, reason, message string, since time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: conditionType, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.Time{Time: since}}}
	}
}

func scheduled(since time.Time) func(*corev1.Pod) {
	return withCondition(corev1.PodScheduled, corev1.ConditionTrue, "", "", since)
}

func unschedulable(since time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.NodeName = ""
		withCondition(corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable, "0/1 nodes are available", since)(pod)
	}
}

// gated is a Pod with a scheduling gate.
func gated(pod *corev1.Pod) {
	pod.Spec.NodeName = ""
	withCondition(corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonSchedulingGated, "gates", due)(pod)
}

// sandboxed is a Pod with volumes and network.
func sandboxed(pod *corev1.Pod) {
	withCondition(corev1.PodReadyToStartContainers, corev1.ConditionTrue, "", "", due)(pod)
}

func imagePullFailed(message string) metav1.Condition {
	return blocked(earlier, v1alpha1.ReasonImagePullFailed, message)
}

func failureTargetCondition(since time.Time, message string) metav1.Condition {
	return condition(v1alpha1.ConditionFailureTarget, metav1.ConditionTrue, since, v1alpha1.ReasonDeadlineExceeded, message)
}

var (
	conflict = blocked(earlier, v1alpha1.ReasonPodNameConflict, conflictMessage)
	stopping = failureTargetCondition(earlier, deadlineMessage)
)

// nextAttempt is the status of an At which waits for its next attempt.
func nextAttempt(failed int32, next time.Time) *v1alpha1.AtStatus {
	status := running(corev1.PodFailed)
	status.Failed, status.ExitCode = failed, ptr.To[int32](1)
	status.Reason, status.Message = v1alpha1.ReasonBackOff, "the attempt failed"
	status.NextAttemptTime = &metav1.Time{Time: next}
	status.LastFailureTime = &metav1.Time{Time: next.Add(-attemptBackoff(failed))}
	return &status
}

// changed is a status that differs from another.
func changed(from v1alpha1.AtStatus, mutate ...func(*v1alpha1.AtStatus)) *v1alpha1.AtStatus {
	return edited(&from, mutate...)
}

// secondRunning is the status of an At whose second attempt is in the given phase.
func secondRunning(phase corev1.PodPhase) *v1alpha1.AtStatus {
	status := running(phase)
	status.Failed, status.LastFailureTime = 1, &metav1.Time{Time: now.Add(-10 * time.Second)}
	status.Pod.Name, status.Pod.UID = "example-at-pod-1", "second"
	return &status
}

// explained gives a status that is not DONE the reason and the message of its conditions.
func explained(status *v1alpha1.AtStatus) {
	if status == nil {
		return
	}
	if reason, message := explanation(status); reason != "" && status.Phase != v1alpha1.PhaseDone {
		status.Reason, status.Message = reason, message
	}
}

// explanation returns the reason and the message that follow from the conditions of a status.
func explanation(status *v1alpha1.AtStatus) (reason, message string) {
	for _, condition := range status.Conditions {
		waits := status.Phase != v1alpha1.PhaseRunning || status.NextAttemptTime != nil || status.Nodes != nil
		isEnd := condition.Type == v1alpha1.ConditionComplete || condition.Type == v1alpha1.ConditionFailed
		switch {
		case condition.Status != metav1.ConditionTrue, condition.Type == v1alpha1.ConditionRehearsed,
			condition.Type == v1alpha1.ConditionSuspended && !waits, isEnd != (status.Phase == v1alpha1.PhaseDone):
		case condition.Type == v1alpha1.ConditionComplete:
			reason, message = condition.Reason, ""
		default:
			reason, message = condition.Reason, condition.Message
		}
	}
	return reason, message
}

const (
	deadlineMessage = "The run took longer than spec.activeDeadlineSeconds (10)."
	conflictMessage = "Pod example-at-pod already exists and does not belong to this At: delete that Pod, or give the At another name."
)

// equate compares errors like the worker.
var equate = cmp.Options{cmpopts.EquateEmpty(), cmp.Comparer(func(a, b error) bool {
	return (a == nil) == (b == nil) && errors.Is(a, answer.ErrBlocked) == errors.Is(b, answer.ErrBlocked)
})}

// named has an annotation for its container, and ends with another exit code in each.
func named(name string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Annotations[DefaultContainer], pod.Spec.Containers = name, []corev1.Container{{Name: "first"}, {Name: "second"}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{exited("injected", 1, "", ""), exited("first", 2, "", ""), exited("second", 3, "", "")}
	}
}

// exited is the status of a container that has ended.
func exited(name string, exitCode int32, reason, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: exitCode, Reason: reason, Message: message},
	}}
}

func finished(at time.Time, exitCode int32) corev1.ContainerStatus {
	status := exited("command", exitCode, "Error", "")
	status.State.Terminated.FinishedAt = metav1.Time{Time: at}
	return status
}

// expect reports how what there is differs from what is wanted.
func expect(t *testing.T, what string, want, got any, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// parse returns an object from YAML.
func parse[T any](text string) *T {
	object := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
		panic(err)
	}
	return object
}
