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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// decideEnded decides for an At whose Pod has ended.
func decideEnded(at *v1alpha1.At, pod *corev1.Pod, now time.Time) Decision {
	target := failureTarget(at)
	if target != nil && pod.DeletionTimestamp != nil {
		return writeDone(at, pod, now, target.Reason, target.Message)
	}
	if pod.Status.Phase == corev1.PodSucceeded {
		return writeDone(at, pod, now, v1alpha1.ReasonCompleted, "The command ended with exit code 0.")
	}
	reason, message := failureReason(pod)
	last := at.Status.Failed >= ptr.Deref(at.Spec.BackoffLimit, 0)
	tooLate := activeTimeLeft(at, statusWithPod(at, pod), now) <= attemptBackoff(at.Status.Failed+1)
	if last || tooLate || target != nil {
		return writeDone(at, pod, now, reason, message)
	}
	return writeNextAttempt(at, pod, now, reason, message)
}

// decideGone decides for an At whose recorded Pod is not there.
func decideGone(w World) Decision {
	return decideLost(w, nil, fmt.Sprintf("Pod %s was deleted before its end was seen; the command is not run again.", w.At.Status.Pod.Name))
}

// decideAbandoned decides for an At whose Pod was deleted by force, and whose end the
// node does not report.
func decideAbandoned(w World, pod *corev1.Pod) Decision {
	return decideLost(w, pod, fmt.Sprintf("Pod %s was deleted by force, and its node does not report its end; the command is not run again.", pod.Name))
}

// decideLost decides for an At whose Pod's outcome will never be known. pod is nil if it
// is gone.
func decideLost(w World, pod *corev1.Pod, message string) Decision {
	if !w.PodIsLive {
		return Decision{Action: LookForPod{}}
	}
	if target := failureTarget(w.At); target != nil {
		return writeDone(w.At, pod, w.Now, target.Reason, target.Message)
	}
	return writeDone(w.At, pod, w.Now, v1alpha1.ReasonPodLost, message)
}

// writeNextAttempt records an attempt that has failed, and announces the next.
func writeNextAttempt(at *v1alpha1.At, pod *corev1.Pod, now time.Time, reason, message string) Decision {
	status := statusWithOutcome(at, pod)
	command := status.Message
	status.Failed++
	status.LastFailureTime = &metav1.Time{Time: now}
	// Rounded up, because the API's times have no fractions of seconds.
	next := now.Add(attemptBackoff(status.Failed) + time.Second - 1).Truncate(time.Second)
	status.NextAttemptTime = &metav1.Time{Time: next}
	announcement := fmt.Sprintf("Attempt %d of %d failed, the next is due at %s: %s", status.Failed, int64(*at.Spec.BackoffLimit)+1, next.UTC().Format(time.RFC3339), message)
	status.Reason, status.Message = v1alpha1.ReasonBackOff, OneLine(announcement)
	if command != "" {
		status.Message = OneLine(announcement + " Message: " + command)
	}
	removeBlocked(status)
	return write(at, status, append(podEvents(at, pod), newEvent(corev1.EventTypeWarning, reason, announcement))...)
}

// failureReason returns why a Pod has failed: a reason of the API, and a sentence.
func failureReason(pod *corev1.Pod) (reason, message string) {
	terminated := commandTerminated(pod)
	// Whoever deletes a Pod for reasons that are not the Pod's own sets this condition:
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
	case isDeletedBeforeEnd(pod, terminated):
		message = fmt.Sprintf("Pod %s was deleted before its command had ended", pod.Name)
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

// isDeletedBeforeEnd says whether somebody deleted a Pod before its command had ended.
func isDeletedBeforeEnd(pod *corev1.Pod, terminated *corev1.ContainerStateTerminated) bool {
	if pod.DeletionTimestamp == nil {
		return false
	}
	// deletionTimestamp is when the grace period ends.
	grace := time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second
	return terminated == nil || !terminated.FinishedAt.Time.Before(pod.DeletionTimestamp.Add(-grace))
}
