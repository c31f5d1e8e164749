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
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// maxMessage is the most characters that a message may have; the CRD allows
// 32768 in a condition, and an API server's refusal can be of any length.
const maxMessage = 4096

// finish ends an At: well if reason is Completed, badly otherwise. A message of
// the command's goes before ours in the status.
func finish(at *v1alpha1.At, pod *corev1.Pod, now time.Time, reason, message string) Decision {
	message = cut(message)
	status := at.Status.DeepCopy()
	completionTime := now
	if pod != nil {
		status = started(at, pod)
		if terminated := commandTerminated(pod); terminated != nil {
			status.ExitCode = ptr.To(terminated.ExitCode)
			status.Message = terminated.Message
			if !terminated.FinishedAt.IsZero() {
				completionTime = terminated.FinishedAt.Time
			}
		}
	}
	if status.Message == "" && reason != v1alpha1.ReasonCompleted {
		status.Message = message
	}
	if meta.IsStatusConditionFalse(status.Conditions, v1alpha1.ConditionReady) {
		// What stood in the way of a run that is over is of no concern.
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionReady)
	}
	status.Phase = v1alpha1.PhaseDone
	status.Reason = reason
	status.CompletionTime = &metav1.Time{Time: completionTime}

	condition := metav1.Condition{
		Type:               v1alpha1.ConditionFailed,
		Status:             metav1.ConditionTrue,
		ObservedGeneration: at.Generation,
		LastTransitionTime: metav1.Time{Time: now},
		Reason:             reason,
		Message:            message,
	}
	event := &Event{Type: corev1.EventTypeWarning, Reason: reason, Message: message}
	if reason == v1alpha1.ReasonCompleted {
		condition.Type = v1alpha1.ConditionComplete
		event.Type = corev1.EventTypeNormal
	}
	meta.SetStatusCondition(&status.Conditions, condition)
	d := decision(at, status, event)
	if at.Spec.TTLSecondsAfterFinished != nil {
		d.Delay = again
	}
	return d
}

// started returns the status of an At whose Pod exists.
func started(at *v1alpha1.At, pod *corev1.Pod) *v1alpha1.AtStatus {
	status := at.Status.DeepCopy()
	if status.Pod == nil {
		status.Phase = v1alpha1.PhaseRunning
		status.StartTime = pod.CreationTimestamp.DeepCopy()
		// The Pod knows what it was created for; spec.schedule may be another by now.
		// metav1.Time writes the first instant of year 1 as null.
		if instant, err := time.Parse(time.RFC3339, pod.Annotations[v1alpha1.AnnotationScheduledTime]); err == nil && !instant.IsZero() {
			status.ScheduledTime = &metav1.Time{Time: instant}
		}
		if meta.IsStatusConditionFalse(status.Conditions, v1alpha1.ConditionReady) {
			setReady(at, status, pod.CreationTimestamp.Time)
		}
	}
	// One write for a change of phase: an address that comes in between waits for it.
	if status.Pod == nil || status.Pod.Phase != pod.Status.Phase {
		status.Pod = &v1alpha1.AtPod{
			Name:      pod.Name,
			UID:       pod.UID,
			Phase:     pod.Status.Phase,
			PodIP:     pod.Status.PodIP,
			HostIP:    pod.Status.HostIP,
			NodeName:  pod.Spec.NodeName,
			StartTime: pod.Status.StartTime.DeepCopy(),
		}
	}
	return status
}

// notReady sets condition Ready to False. The event comes with the change, not
// with every new wording of the message.
func notReady(at *v1alpha1.At, now time.Time, reason, message string) Decision {
	message = cut(message)
	before := meta.FindStatusCondition(at.Status.Conditions, v1alpha1.ConditionReady)
	status := at.Status.DeepCopy()
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type:               v1alpha1.ConditionReady,
		Status:             metav1.ConditionFalse,
		ObservedGeneration: at.Generation,
		LastTransitionTime: metav1.Time{Time: now},
		Reason:             reason,
		Message:            message,
	})
	var event *Event
	if before == nil || before.Status != metav1.ConditionFalse || before.Reason != reason {
		event = &Event{Type: corev1.EventTypeWarning, Reason: reason, Message: message}
	}
	return decision(at, status, event)
}

// setReady sets condition Ready to True.
func setReady(at *v1alpha1.At, status *v1alpha1.AtStatus, now time.Time) {
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type:               v1alpha1.ConditionReady,
		Status:             metav1.ConditionTrue,
		ObservedGeneration: at.Generation,
		LastTransitionTime: metav1.Time{Time: now},
		Reason:             v1alpha1.ReasonRunnable,
		Message:            "What stood in the way is gone.",
	})
}

// decision returns the decision to write status, unless it is what the At has.
func decision(at *v1alpha1.At, status *v1alpha1.AtStatus, event *Event) Decision {
	if equality.Semantic.DeepEqual(&at.Status, status) {
		return Decision{}
	}
	status.ObservedGeneration = at.Generation
	return Decision{Status: status, Event: event}
}

func cut(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage], "") + "…"
}
