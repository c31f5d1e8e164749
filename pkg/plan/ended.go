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

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// decideEnded decides for an At whose Pod has ended.
func (v *view) decideEnded() Decision {
	at, pod, target := v.At, v.pod, failureTarget(v.At)
	if pod.Status.Phase == corev1.PodSucceeded {
		message := "The command ended with exit code 0."
		if lacksMemory(pod) {
			message += " " + memoryMessage
		}
		return v.writeDone(pod, v1alpha1.ReasonCompleted, message)
	}
	reason, message := failureReason(pod)
	hasRun := recorded(at) && at.Status.Pod.Phase == corev1.PodRunning || !hasNotRun(pod)
	if !hasRun && target == nil {
		return v.decideNotStarted(reason, message)
	}
	n, _ := failures(pod)
	failed, allowed := v.attempts(n + 1)
	status := v.statusWithOutcome()
	status.Failed++
	tooLate := v.withStatus(status).leftToStart() <= attemptBackoff(status.Failed)
	if failed >= allowed || tooLate || target != nil {
		return v.writeDone(pod, reason, message)
	}
	next := v.setNextAttempt(status, status.Failed)
	announcement := fmt.Sprintf("Attempt %d of %d failed, the next is due at %s: %s", failed, allowed, next, message)
	command := status.Message
	status.Reason, status.Message = v1alpha1.ReasonBackOff, announcement
	if command != "" {
		status.Message = announcement + " Message: " + command
	}
	removeBlocked(status)
	return v.write(status, append(v.podEvents(), NewEvent(corev1.EventTypeWarning, reason, announcement))...)
}

// decideGone decides for an At whose recorded Pod no longer exists.
func (v *view) decideGone() Decision {
	return v.writeDone(nil, v1alpha1.ReasonPodLost, fmt.Sprintf("Pod %s was deleted before the controller saw how it ended; the command will not run again.", v.At.Status.Pod.Name))
}

// decideAbandoned decides for an At whose Pod was force-deleted, and whose node does not
// report how the Pod ended.
func (v *view) decideAbandoned() Decision {
	return v.writeDone(v.pod, v1alpha1.ReasonPodLost, fmt.Sprintf("Pod %s was force-deleted, and its node has not reported how it ended; the command will not run again.", v.pod.Name))
}

// decideNotStarted decides for an At whose Pod failed before anything of it started. Another Pod
// follows, unless it would be too late.
func (v *view) decideNotStarted(reason, message string) Decision {
	status := v.statusWithOutcome()
	status.NotStarted++
	if v.withStatus(status).leftToStart() <= attemptBackoff(status.NotStarted) {
		return v.writeDone(v.pod, reason, message)
	}
	next := v.setNextAttempt(status, status.NotStarted)
	events := v.setBlocked(status, v1alpha1.ReasonPodNotStarted, fmt.Sprintf("Pod %s did not start, the next is due at %s: %s", v.pod.Name, next, message))
	return v.write(status, append(v.podEvents(), events...)...)
}

// setNextAttempt sets when the next Pod is due after a number of others, and returns that time.
func (v *view) setNextAttempt(status *v1alpha1.AtStatus, number int32) string {
	status.LastFailureTime = &metav1.Time{Time: v.Now}
	// Round up, because API times have no fractions of a second.
	next := v.Now.Add(attemptBackoff(number) + time.Second - 1).Truncate(time.Second)
	status.NextAttemptTime = &metav1.Time{Time: next}
	return next.UTC().Format(time.RFC3339)
}

// decideDone decides when to delete an At that has ended.
func (v *view) decideDone() Decision {
	end, seconds := endSeen(v.At), v.At.Spec.TTLSecondsAfterFinished
	if seconds == nil || end.IsZero() {
		return Decision{}
	}
	ttl := max(Seconds(*seconds), minTTL)
	if wait := end.Add(ttl).Sub(v.Now); wait > 0 {
		return Decision{Delay: wait}
	}
	return Decision{Action: DeleteAt{}}
}

// DeletableAt returns the earliest time at which an At that has ended may be deleted.
func DeletableAt(at *v1alpha1.At) time.Time { return endSeen(at).Add(minTTL) }
