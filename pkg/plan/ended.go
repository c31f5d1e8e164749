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
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
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

// decideGone decides for an At whose recorded Pod no longer exists.
func decideGone(w World) Decision {
	return decideLost(w, nil, fmt.Sprintf("Pod %s was deleted before the controller saw how it ended; the command will not run again.", w.At.Status.Pod.Name))
}

// decideAbandoned decides for an At whose Pod was force-deleted, and whose node does not
// report how the Pod ended.
func decideAbandoned(w World, pod *corev1.Pod) Decision {
	return decideLost(w, pod, fmt.Sprintf("Pod %s was force-deleted, and its node has not reported how it ended; the command will not run again.", pod.Name))
}

// decideLost decides for an At whose Pod's outcome will never be known. pod is nil if the
// Pod is gone.
func decideLost(w World, pod *corev1.Pod, message string) Decision {
	if !w.PodIsLive {
		return Decision{Action: LookForPod{}}
	}
	if target := failureTarget(w.At); target != nil {
		return writeDone(w.At, pod, w.Now, target.Reason, target.Message)
	}
	return writeDone(w.At, pod, w.Now, v1alpha1.ReasonPodLost, message)
}

// writeNextAttempt records a failed attempt and announces the next one.
func writeNextAttempt(at *v1alpha1.At, pod *corev1.Pod, now time.Time, reason, message string) Decision {
	status := statusWithOutcome(at, pod)
	command := status.Message
	status.Failed++
	status.LastFailureTime = &metav1.Time{Time: now}
	// Round up, because API times have no fractions of a second.
	next := now.Add(attemptBackoff(status.Failed) + time.Second - 1).Truncate(time.Second)
	status.NextAttemptTime = &metav1.Time{Time: next}
	announcement := fmt.Sprintf("Attempt %d of %d failed, the next is due at %s: %s", status.Failed, int64(*at.Spec.BackoffLimit)+1, next.UTC().Format(time.RFC3339), message)
	status.Reason, status.Message = v1alpha1.ReasonBackOff, answer.OneLine(announcement)
	if command != "" {
		status.Message = answer.OneLine(announcement + " Message: " + command)
	}
	removeBlocked(status)
	return write(at, status, append(podEvents(at, pod), NewEvent(corev1.EventTypeWarning, reason, announcement))...)
}
