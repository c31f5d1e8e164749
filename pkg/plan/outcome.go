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
	// A component that deletes a Pod for reasons unrelated to the Pod sets this condition:
	// https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
	disruption := slices.IndexFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
		return condition.Type == corev1.DisruptionTarget && condition.Status == corev1.ConditionTrue
	})
	switch {
	case pod.Status.Phase != corev1.PodFailed && isDeletedUnscheduled(pod):
		return v1alpha1.ReasonPodDeleted, fmt.Sprintf("Pod %s was deleted before it had a node: the command did not run.", pod.Name)
	case disruption >= 0:
		condition := pod.Status.Conditions[disruption]
		return v1alpha1.ReasonEvicted, join(fmt.Sprintf("Pod %s was evicted", pod.Name), condition.Reason, condition.Message)
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
	case terminated == nil || terminated.ExitCode == 0:
	case terminated.Reason == v1alpha1.ReasonOOMKilled:
		return v1alpha1.ReasonOOMKilled, fmt.Sprintf("The command ended with exit code %d: it used more memory than its container's limit.", terminated.ExitCode)
	default:
		return v1alpha1.ReasonCommandFailed, fmt.Sprintf("The command ended with exit code %d.", terminated.ExitCode)
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

// isEndedByDeletion reports whether a Pod was deleted before its command ended or, if the
// command had succeeded, before another container ended.
func isEndedByDeletion(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp == nil {
		return false
	}
	// deletionTimestamp is the end of the grace period.
	requested := pod.DeletionTimestamp.Add(-time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second)
	stopped := func(status *corev1.ContainerStatus) bool {
		terminated := status.State.Terminated
		return terminated == nil || terminated.ExitCode != 0 && terminated.Reason != v1alpha1.ReasonOOMKilled &&
			// The node's clock may differ.
			(!terminated.FinishedAt.Time.Before(requested) || terminated.ExitCode == exitCodeKilled || terminated.ExitCode == exitCodeTerminated)
	}
	command := commandStatus(pod)
	if command == nil || command.State.Terminated == nil || command.State.Terminated.ExitCode != 0 {
		return command == nil || stopped(command)
	}
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(status corev1.ContainerStatus) bool { return stopped(&status) })
}

// commandStatus returns the status of the container that runs the command: the default
// container or, if there is none of that name, the first. It is nil if there is none.
func commandStatus(pod *corev1.Pod) *corev1.ContainerStatus {
	names := []string{pod.Annotations[DefaultContainer]}
	if len(pod.Spec.Containers) > 0 { // The cache does not have them if that is the name.
		names = append(names, pod.Spec.Containers[0].Name)
	}
	for _, name := range names {
		if i := slices.IndexFunc(pod.Status.ContainerStatuses, func(status corev1.ContainerStatus) bool { return status.Name == name }); i >= 0 {
			return &pod.Status.ContainerStatuses[i]
		}
	}
	return nil
}

// commandTerminated returns how the container that runs the command ended. It is nil if
// the container has not ended, or if its outcome is unknown.
func commandTerminated(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	status := commandStatus(pod)
	if status == nil {
		return nil
	}
	terminated := status.State.Terminated
	if terminated == nil && hasEnded(pod) {
		// With restartPolicy OnFailure, it may have been waiting for its next start.
		terminated = status.LastTerminationState.Terminated
	}
	if terminated != nil && terminated.Reason == statusUnknown {
		return nil
	}
	return terminated
}
