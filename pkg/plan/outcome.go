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
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// statusUnknown is the reason that a kubelet reports for a container about which it knows
// nothing. The exit code that comes with it is meaningless.
const statusUnknown = "ContainerStatusUnknown"

// Exit codes of containers that were stopped by SIGKILL or SIGTERM.
const (
	exitCodeKilled     = 128 + 9
	exitCodeTerminated = 128 + 15
)

// hasEnded reports whether no container of a Pod runs or ever will.
func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || isDeletedUnscheduled(pod)
}

// isAbandoned reports whether a Pod was force-deleted, that is, without waiting for its
// node, and the node has not reported how it ended. A live node reports that within
// seconds.
func isAbandoned(pod *corev1.Pod, now time.Time) bool {
	return isDeletedByForce(pod) && now.Sub(pod.DeletionTimestamp.Time) >= Grace
}

func isDeletedByForce(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
}

// isDeletedUnscheduled reports whether a Pod was deleted before it had a node. It will
// never get one, so nothing will report that the Pod has ended.
func isDeletedUnscheduled(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && pod.Spec.NodeName == ""
}

// failureReason returns why a Pod has failed: an API reason and a sentence.
func failureReason(pod *corev1.Pod) (reason, message string) {
	terminated := commandTerminated(pod)
	disruption := disruptionOf(pod)
	switch {
	case pod.Status.Phase != corev1.PodFailed && isDeletedUnscheduled(pod):
		return v1alpha1.ReasonPodDeleted, fmt.Sprintf("Pod %s was deleted before it had a node: the command did not run.", pod.Name)
	case disruption != nil:
		return v1alpha1.ReasonEvicted, join(fmt.Sprintf("Pod %s was evicted", pod.Name), disruption.Reason, disruption.Message)
	case pod.Status.Reason == v1alpha1.ReasonEvicted:
		return v1alpha1.ReasonEvicted, join(fmt.Sprintf("Pod %s was evicted", pod.Name), pod.Status.Message)
	case pod.Status.Reason == v1alpha1.ReasonDeadlineExceeded:
		return v1alpha1.ReasonDeadlineExceeded, join(fmt.Sprintf("Pod %s ran longer than its template allows", pod.Name), pod.Status.Message)
	case isEndedByDeletion(pod):
		message = fmt.Sprintf("Pod %s was deleted before it ended", pod.Name)
		if terminated != nil {
			message += fmt.Sprintf("; the exit code was %d", terminated.ExitCode)
		}
		return v1alpha1.ReasonPodDeleted, message + "."
	case terminated != nil && terminated.ExitCode != 0:
		return commandFailure(terminated)
	}
	message = join(fmt.Sprintf("Pod %s failed", pod.Name), pod.Status.Reason, pod.Status.Message)
	// Sidecars, which are init containers, may end with any exit code after the others have.
	for _, container := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses) {
		if other := container.State.Terminated; other != nil && other.ExitCode != 0 {
			message = join(message, fmt.Sprintf("container %s ended with exit code %d", container.Name, other.ExitCode), other.Message)
			break
		}
	}
	return v1alpha1.ReasonPodFailed, message
}

// commandFailure returns why a command failed: an API reason and a sentence.
func commandFailure(terminated *corev1.ContainerStateTerminated) (reason, message string) {
	reason = v1alpha1.ReasonCommandFailed
	if terminated.Reason == v1alpha1.ReasonOOMKilled {
		reason = v1alpha1.ReasonOOMKilled
	}
	return reason, endOf("The command", terminated)
}

// memoryMessage is about a command that succeeded, as its exit code says.
const memoryMessage = "A process in its container was killed: it used more memory than the container's limit."

func lacksMemory(pod *corev1.Pod) bool {
	terminated := commandTerminated(pod)
	return terminated != nil && terminated.Reason == v1alpha1.ReasonOOMKilled
}

// endOf returns a sentence that says how a container failed.
func endOf(subject string, terminated *corev1.ContainerStateTerminated) string {
	switch terminated.Reason {
	case v1alpha1.ReasonOOMKilled:
		return fmt.Sprintf("%s ended with exit code %d: it used more memory than its container's limit.", subject, terminated.ExitCode)
	case statusUnknown:
		return subject + " ended with an unknown exit code."
	}
	return fmt.Sprintf("%s ended with exit code %d.", subject, terminated.ExitCode)
}

// hasStarted reports whether a container of a Pod may have started, according to its status.
func hasStarted(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning || slices.ContainsFunc(containerStatuses(pod), func(status corev1.ContainerStatus) bool {
		return status.ContainerID != "" || status.State.Running != nil || status.RestartCount > 0 || status.LastTerminationState.Terminated != nil ||
			status.State.Terminated != nil && status.State.Terminated.Reason != statusUnknown
	})
}

// hasNotRun reports whether the status of a Pod that has failed proves that none of its
// containers ever started: its node refused it, or ended it before. A status that the node
// has not written last, or that it wrote after it was out of contact, proves nothing.
func hasNotRun(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodFailed || hasStarted(pod) {
		return false
	}
	statuses := containerStatuses(pod)
	if len(statuses) == 0 {
		return isRejectedAtOnce(pod)
	}
	// See TerminatePod in pkg/kubelet/status/status_manager.go in Kubernetes.
	isFinal := slices.ContainsFunc(statuses, func(status corev1.ContainerStatus) bool { return status.State.Terminated != nil })
	disruption := disruptionOf(pod)
	return isFinal && disruption != nil && disruption.Reason != "DeletionByTaintManager" && disruption.Reason != "DeletionByPodGC"
}

// rejectionTime is how long a busy kubelet may take to write that it refuses a Pod.
const rejectionTime = 10 * time.Second

// isRejectedAtOnce reports whether a node refused a Pod when it first saw it. After a restart, a
// kubelet may also refuse a Pod that has run, and then forgets its containers, but not its start
// time. See rejectPod in pkg/kubelet/kubelet.go in Kubernetes.
func isRejectedAtOnce(pod *corev1.Pod) bool {
	return strings.HasPrefix(pod.Status.Message, "Pod was rejected: ") && pod.Status.StartTime != nil &&
		WrittenAt(pod, "status").Sub(pod.Status.StartTime.Time).Abs() <= rejectionTime
}

// disruptionOf returns the condition that a component sets which deletes a Pod for reasons
// unrelated to the Pod, or nil:
// https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
func disruptionOf(pod *corev1.Pod) *corev1.PodCondition {
	return podCondition(pod, corev1.DisruptionTarget, corev1.ConditionTrue)
}

// isEndedByDeletion reports whether a Pod was deleted before its command ended or, if the
// command had succeeded, before another container ended.
func isEndedByDeletion(pod *corev1.Pod) bool {
	command := commandStatus(pod)
	if command == nil || command.State.Terminated == nil || command.State.Terminated.ExitCode != 0 {
		return pod.DeletionTimestamp != nil && (command == nil || wasStopped(pod, command))
	}
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(status corev1.ContainerStatus) bool { return wasStopped(pod, &status) })
}

// wasStopped reports whether a container has failed, or not ended, because its Pod was deleted.
func wasStopped(pod *corev1.Pod, status *corev1.ContainerStatus) bool {
	if pod.DeletionTimestamp == nil {
		return false
	}
	grace := ptr.Deref(pod.DeletionGracePeriodSeconds, 0)
	if grace == 0 && pod.Status.ObservedGeneration > 0 && pod.Status.ObservedGeneration == pod.Generation {
		// When the node removes the Pod, the API server sets the grace period to 0, and moves
		// deletionTimestamp to the present. The node knew of the deletion when it wrote this status.
		grace = ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, 0)
	}
	// deletionTimestamp is the end of the grace period.
	requested := pod.DeletionTimestamp.Add(-time.Duration(grace) * time.Second)
	terminated := status.State.Terminated
	return terminated == nil || terminated.ExitCode != 0 && terminated.Reason != v1alpha1.ReasonOOMKilled &&
		// The node's clock may differ.
		(!terminated.FinishedAt.Time.Before(requested) || terminated.ExitCode == exitCodeKilled || terminated.ExitCode == exitCodeTerminated)
}

// commandStatus returns the status of the container that runs the command, or nil.
func commandStatus(pod *corev1.Pod) *corev1.ContainerStatus {
	name := nameOfCommand(pod)
	if i := slices.IndexFunc(pod.Status.ContainerStatuses, func(status corev1.ContainerStatus) bool { return status.Name == name }); i >= 0 {
		return &pod.Status.ContainerStatuses[i]
	}
	return nil
}

// nameOfCommand returns the name of the container that runs the command: the default
// container or, if there is none of that name, the first.
func nameOfCommand(pod *corev1.Pod) string {
	name := pod.Annotations[DefaultContainer]
	if len(pod.Spec.Containers) > 0 && !slices.ContainsFunc(pod.Spec.Containers, func(container corev1.Container) bool { return container.Name == name }) {
		return pod.Spec.Containers[0].Name
	}
	return name // The cache has no containers if that is the name.
}

// commandTerminated returns how the container that runs the command ended. It is nil if
// the container has not ended, or if its outcome is unknown.
func commandTerminated(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	status := commandStatus(pod)
	if status == nil {
		return nil
	}
	terminated := status.State.Terminated
	if last := status.LastTerminationState.Terminated; terminated == nil && hasEnded(pod) || terminated != nil && last != nil && wasStopped(pod, status) {
		// It has failed before, and waited for its next start or was stopped.
		terminated = last
	}
	if terminated != nil && terminated.Reason == statusUnknown {
		return nil
	}
	return terminated
}
