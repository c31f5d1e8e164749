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

// statusUnknown is the reason that a kubelet gives for the end of a container of which it
// knows nothing, beside an exit code that means nothing.
const statusUnknown = "ContainerStatusUnknown"

// What a container ends with that is stopped by SIGKILL or SIGTERM.
const (
	exitCodeKilled     = 128 + 9
	exitCodeTerminated = 128 + 15
)

// hasEnded says whether nothing of a Pod runs, or ever will.
func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || isDeletedUnscheduled(pod)
}

// isAbandoned says whether somebody has deleted a Pod by force, that is, without
// waiting for its node, and nobody says how it ended: a node that lives does so in
// some seconds.
func isAbandoned(pod *corev1.Pod, now time.Time) bool {
	return isDeletedByForce(pod) && now.Sub(pod.DeletionTimestamp.Time) >= grace
}

func isDeletedByForce(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
}

// isDeletedUnscheduled says whether a Pod was deleted before it had a node. It gets
// none any more, and so nobody will say that it has ended.
func isDeletedUnscheduled(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && pod.Spec.NodeName == ""
}

// failureReason returns why a Pod has failed: a reason of the API, and a sentence.
func failureReason(pod *corev1.Pod) (reason, message string) {
	terminated := commandTerminated(pod)
	// A component that deletes a Pod for reasons that are not the Pod's own sets this condition:
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
		return v1alpha1.ReasonDeadlineExceeded, join(fmt.Sprintf("Pod %s took longer than its template allows", pod.Name), pod.Status.Message)
	case isEndedByDeletion(pod):
		message = fmt.Sprintf("Pod %s was deleted before it had ended", pod.Name)
		if terminated != nil {
			message += fmt.Sprintf("; the exit code was %d", terminated.ExitCode)
		}
		return v1alpha1.ReasonPodDeleted, message + "."
	case terminated == nil || terminated.ExitCode == 0:
	case terminated.Reason == v1alpha1.ReasonOOMKilled:
		return v1alpha1.ReasonOOMKilled, fmt.Sprintf("The command ended with exit code %d: it used more memory than its container may.", terminated.ExitCode)
	default:
		return v1alpha1.ReasonCommandFailed, fmt.Sprintf("The command ended with exit code %d.", terminated.ExitCode)
	}
	message = join(fmt.Sprintf("Pod %s failed", pod.Name), pod.Status.Reason, pod.Status.Message)
	// Sidecars, which are init containers, may end as they like when the others have.
	for _, container := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses) {
		if other := container.State.Terminated; other != nil && other.ExitCode != 0 {
			message = join(message, fmt.Sprintf("container %s ended with exit code %d", container.Name, other.ExitCode), other.Message)
			break
		}
	}
	return v1alpha1.ReasonPodFailed, message
}

// isEndedByDeletion says whether somebody deleted a Pod before its command had ended or,
// if that had succeeded, before another container had.
func isEndedByDeletion(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp == nil {
		return false
	}
	// deletionTimestamp is when the grace period ends.
	requested := pod.DeletionTimestamp.Add(-time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second)
	stopped := func(status *corev1.ContainerStatus) bool {
		terminated := status.State.Terminated
		return terminated == nil || terminated.ExitCode != 0 && terminated.Reason != v1alpha1.ReasonOOMKilled &&
			// The node's clock may be another.
			(!terminated.FinishedAt.Time.Before(requested) || terminated.ExitCode == exitCodeKilled || terminated.ExitCode == exitCodeTerminated)
	}
	command := commandStatus(pod)
	if command == nil || command.State.Terminated == nil || command.State.Terminated.ExitCode != 0 {
		return command == nil || stopped(command)
	}
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(status corev1.ContainerStatus) bool { return stopped(&status) })
}

// commandStatus returns the status of the container that counts: the default container
// or, if there is none of that name, the first. It is nil if there is none.
func commandStatus(pod *corev1.Pod) *corev1.ContainerStatus {
	for _, name := range []string{pod.Annotations[defaultContainer], pod.Spec.Containers[0].Name} {
		if i := slices.IndexFunc(pod.Status.ContainerStatuses, func(status corev1.ContainerStatus) bool { return status.Name == name }); i >= 0 {
			return &pod.Status.ContainerStatuses[i]
		}
	}
	return nil
}

// commandTerminated returns how the container that counts has ended. It is nil if it has
// not ended, or if nobody knows how.
func commandTerminated(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	status := commandStatus(pod)
	if status == nil {
		return nil
	}
	terminated := status.State.Terminated
	if terminated == nil && hasEnded(pod) {
		// With restartPolicy OnFailure it may have waited for its next start.
		terminated = status.LastTerminationState.Terminated
	}
	if terminated != nil && terminated.Reason == statusUnknown {
		return nil
	}
	return terminated
}
