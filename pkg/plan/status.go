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
	"strings"
	"time"
	"unicode"

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

// recorded says whether the status has the Pod of the present attempt.
func recorded(at *v1alpha1.At) bool {
	return at.Status.Pod != nil && at.Status.Pod.Name == PodName(at)
}

// finish ends an At: well if reason is Completed, badly otherwise. pod is the Pod
// that has ended, or nil.
func finish(at *v1alpha1.At, pod *corev1.Pod, now time.Time, reason, message string) Decision {
	message = cut(message)
	status := at.Status.DeepCopy()
	status.CompletionTime = &metav1.Time{Time: now}
	if pod != nil {
		status = ended(at, pod)
		status.CompletionTime = completionTime(pod, now)
	}
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
	} else {
		fail(status, pod != nil || recorded(at), message)
	}
	if target := failureTarget(at); target != nil && target.Reason != reason {
		// It ended by itself before it could be stopped.
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionFailureTarget)
	}
	if meta.IsStatusConditionFalse(status.Conditions, v1alpha1.ConditionReady) {
		// What stood in the way of a run that is over is of no concern.
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionReady)
	}
	status.Phase = v1alpha1.PhaseDone
	status.Reason = reason
	status.NextAttemptTime = nil
	meta.SetStatusCondition(&status.Conditions, condition)
	d := decision(at, status, event)
	if pod != nil || at.Spec.TTLSecondsAfterFinished != nil {
		d.Delay = again
	}
	return d
}

// retry ends an attempt that has failed, and announces another.
func retry(at *v1alpha1.At, pod *corev1.Pod, now time.Time, reason, message string) Decision {
	status := ended(at, pod)
	fail(status, true, message)
	// Rounded up, for the API's times have no fractions of seconds.
	next := now.Add(backoff(status.Failed) + time.Second - 1).Truncate(time.Second)
	status.NextAttemptTime = &metav1.Time{Time: next}
	if meta.IsStatusConditionFalse(status.Conditions, v1alpha1.ConditionReady) {
		setReady(at, status, now)
	}
	d := decision(at, status, &Event{Type: corev1.EventTypeWarning, Reason: reason, Message: cut(fmt.Sprintf(
		"Attempt %d of %d failed, the next is due at %s: %s", status.Failed, int64(*at.Spec.BackoffLimit)+1, next.UTC().Format(time.RFC3339), message))})
	d.Delay = again
	return d
}

// fail says in the status that the run, and with it an attempt if there was one, has
// failed. A message of the command's goes before ours.
func fail(status *v1alpha1.AtStatus, attempted bool, message string) {
	if attempted {
		status.Failed++
	}
	if status.Message == "" {
		status.Message = cut(message)
	}
}

// started returns the status of an At whose Pod exists.
func started(at *v1alpha1.At, pod *corev1.Pod) *v1alpha1.AtStatus {
	status := at.Status.DeepCopy()
	if status.Phase != v1alpha1.PhaseRunning {
		status.Phase = v1alpha1.PhaseRunning
		status.StartTime = pod.CreationTimestamp.DeepCopy()
		// The Pod knows what it was created for; spec.schedule may be another by now.
		// metav1.Time writes the first instant of year 1 as null.
		if instant, err := time.Parse(time.RFC3339, pod.Annotations[v1alpha1.AnnotationScheduledTime]); err == nil && !instant.IsZero() {
			status.ScheduledTime = &metav1.Time{Time: instant}
		}
	}
	if !recorded(at) {
		// What is left of an earlier attempt.
		status.NextAttemptTime, status.ExitCode, status.Message = nil, nil, ""
	}
	// One write for a change of phase: an address that comes in between waits for it.
	if !recorded(at) || status.Pod.Phase != pod.Status.Phase {
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

// ended returns the status of an At whose Pod has ended, with what the command
// left.
func ended(at *v1alpha1.At, pod *corev1.Pod) *v1alpha1.AtStatus {
	status := started(at, pod)
	if terminated := commandTerminated(pod); terminated != nil {
		status.ExitCode = ptr.To(terminated.ExitCode)
		status.Message = terminated.Message
	}
	return status
}

// completionTime returns when the command ended; if that is not known, now.
func completionTime(pod *corev1.Pod, now time.Time) *metav1.Time {
	if terminated := commandTerminated(pod); terminated != nil && !terminated.FinishedAt.IsZero() {
		return terminated.FinishedAt.DeepCopy()
	}
	return &metav1.Time{Time: now}
}

// stop announces that the run is to be stopped, and why.
func stop(at *v1alpha1.At, now time.Time, reason, message string) Decision {
	status := at.Status.DeepCopy()
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type:               v1alpha1.ConditionFailureTarget,
		Status:             metav1.ConditionTrue,
		ObservedGeneration: at.Generation,
		LastTransitionTime: metav1.Time{Time: now},
		Reason:             reason,
		Message:            cut(message),
	})
	d := decision(at, status, nil)
	d.Delay = again
	return d
}

// failureTarget returns the condition that says that the run is being stopped, or
// nil.
func failureTarget(at *v1alpha1.At) *metav1.Condition {
	if condition := meta.FindStatusCondition(at.Status.Conditions, v1alpha1.ConditionFailureTarget); condition != nil && condition.Status == metav1.ConditionTrue {
		return condition
	}
	return nil
}

// mirrorReady sets condition Ready to what the node says about the Pod's start.
func mirrorReady(at *v1alpha1.At, status *v1alpha1.AtStatus, pod *corev1.Pod, now time.Time) *Event {
	ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	reason, message := obstacle(pod, now)
	switch {
	case reason == "":
		if ready != nil && ready.Status == metav1.ConditionFalse {
			setReady(at, status, now)
		}
		return nil
	case ready != nil && ready.Status == metav1.ConditionFalse && ready.Reason == reason:
		// The node words it in more ways than one, in turn.
		return nil
	default:
		return setNotReady(at, status, now, reason, message)
	}
}

// withObstacle adds to a message what stood in the way, if anything did.
func withObstacle(at *v1alpha1.At, message string) string {
	if ready := meta.FindStatusCondition(at.Status.Conditions, v1alpha1.ConditionReady); ready != nil && ready.Status == metav1.ConditionFalse {
		return message + " What stood in the way: " + ready.Message
	}
	return message
}

// notReady returns the decision to set condition Ready to False.
func notReady(at *v1alpha1.At, now time.Time, reason, message string) Decision {
	status := at.Status.DeepCopy()
	event := setNotReady(at, status, now, reason, message)
	return decision(at, status, event)
}

// setNotReady sets condition Ready to False. The event comes with the change, not
// with every new wording of the message.
func setNotReady(at *v1alpha1.At, status *v1alpha1.AtStatus, now time.Time, reason, message string) *Event {
	message = cut(message)
	before := meta.FindStatusCondition(at.Status.Conditions, v1alpha1.ConditionReady)
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type:               v1alpha1.ConditionReady,
		Status:             metav1.ConditionFalse,
		ObservedGeneration: at.Generation,
		LastTransitionTime: metav1.Time{Time: now},
		Reason:             reason,
		Message:            message,
	})
	if before != nil && before.Status == metav1.ConditionFalse && before.Reason == reason {
		return nil
	}
	return &Event{Type: corev1.EventTypeWarning, Reason: reason, Message: message}
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

// cut makes a line of a message, not longer than maxMessage. Some of it is other
// people's text, which is not to move the cursor of whoever reads it, or to pass for a
// line of a log.
func cut(message string) string {
	message = strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, message))
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage], "") + "…"
}
