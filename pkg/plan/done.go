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
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// decideDone decides when to delete an At that has ended.
func decideDone(at *v1alpha1.At, now time.Time) Decision {
	end := endSeen(at)
	if at.Spec.TTLSecondsAfterFinished == nil || end.IsZero() {
		return Decision{}
	}
	ttl := max(Seconds(*at.Spec.TTLSecondsAfterFinished), minTTL)
	if wait := end.Add(ttl).Sub(now); wait > 0 {
		return Decision{Delay: wait}
	}
	return Decision{Action: DeleteAt{}}
}

// writeDone ends an At: it is Complete if reason is Completed, and Failed otherwise. pod
// is the Pod that has ended, or nil.
func writeDone(at *v1alpha1.At, pod *corev1.Pod, now time.Time, reason, message string) Decision {
	var events []Event
	status := at.Status.DeepCopy()
	status.Message = ""
	status.CompletionTime = &metav1.Time{Time: now}
	if pod != nil {
		events = podEvents(at, pod)
		status = statusWithOutcome(at, pod)
		status.CompletionTime = completionTime(pod, now)
	}
	end := newCondition(at, v1alpha1.ConditionComplete, now, reason, message)
	eventType := corev1.EventTypeNormal
	if reason != v1alpha1.ReasonCompleted {
		end.Type = v1alpha1.ConditionFailed
		eventType = corev1.EventTypeWarning
		if pod != nil || recorded(at) {
			status.Failed++
			status.LastFailureTime = &metav1.Time{Time: now}
		}
		if status.Message == "" {
			status.Message = end.Message
		}
	}
	if target := failureTarget(at); target != nil && target.Reason != reason {
		// It ended before the controller could stop it.
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionFailureTarget)
	}
	removeBlocked(status)
	meta.SetStatusCondition(&status.Conditions, end)
	status.Phase = v1alpha1.PhaseDone
	status.Reason = reason
	status.NextAttemptTime = nil
	return write(at, status, append(events, NewEvent(eventType, reason, message))...)
}

// completionTime returns when the command ended, or now if that is unknown.
func completionTime(pod *corev1.Pod, now time.Time) *metav1.Time {
	if terminated := commandTerminated(pod); terminated != nil && !terminated.FinishedAt.IsZero() {
		return terminated.FinishedAt.DeepCopy()
	}
	return &metav1.Time{Time: now}
}

// DeletableAt returns the earliest time at which an At that has ended may be deleted.
func DeletableAt(at *v1alpha1.At) time.Time { return endSeen(at).Add(minTTL) }
