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
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

// write returns the decision to write a status without condition Frozen, or the decision to do
// nothing if the At already has that status.
func (v *view) write(status *v1alpha1.AtStatus, events ...Event) Decision {
	meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionFrozen)
	return v.writeStatus(status, events...)
}

func (v *view) writeStatus(status *v1alpha1.AtStatus, events ...Event) Decision {
	if status.Phase != v1alpha1.PhaseDone {
		explain(status)
	}
	status.Message = answer.OneLine(status.Message) // A longer one would not be kept whole, and be written in each sync.
	if equality.Semantic.DeepEqual(&v.At.Status, status) {
		return Decision{}
	}
	status.ObservedGeneration = v.At.Generation
	return Decision{Status: status, Events: events}
}

// explain sets reason and message in the status of an At that is not DONE to what the At
// waits for.
func explain(status *v1alpha1.AtStatus) {
	waits := status.Phase != v1alpha1.PhaseRunning || status.NextAttemptTime != nil || status.Nodes != nil ||
		status.Restart != nil && status.Restart.RestartedAt == nil
	isTrue := func(conditionType string) *metav1.Condition { return TrueCondition(status.Conditions, conditionType) }
	suspended := isTrue(v1alpha1.ConditionSuspended)
	if !waits {
		suspended = nil
	}
	condition := cmp.Or(isTrue(v1alpha1.ConditionFailureTarget), isTrue(v1alpha1.ConditionBlocked), suspended, isTrue(v1alpha1.ConditionFrozen))
	switch {
	case condition != nil:
		status.Reason, status.Message = condition.Reason, condition.Message
	case status.NextAttemptTime != nil && status.Reason != v1alpha1.ReasonBackOff:
		status.Reason = v1alpha1.ReasonBackOff
		status.Message = fmt.Sprintf("The last Pod failed, the next is due at %s.", status.NextAttemptTime.UTC().Format(time.RFC3339))
	case status.NextAttemptTime == nil && (status.Reason != "" || status.Nodes == nil && status.Restart == nil):
		// Otherwise, decideProgress or setProgress has set the message.
		status.Reason, status.Message = "", ""
	}
}

// statusOfStart returns the status of an At whose run starts now, without a Pod of its own.
func (v *view) statusOfStart() *v1alpha1.AtStatus {
	status := v.At.Status.DeepCopy()
	removeBlocked(status)
	status.Phase, status.Reason, status.Message = v1alpha1.PhaseRunning, "", ""
	status.StartTime = &metav1.Time{Time: v.Now}
	// metav1.Time encodes the first instant of year 1 as null.
	if !v.instant.IsZero() {
		status.ScheduledTime = &metav1.Time{Time: v.instant}
	}
	return status
}

// statusWithPod returns the status of an At whose Pod exists.
func (v *view) statusWithPod() *v1alpha1.AtStatus {
	at, pod := v.At, v.pod
	status := at.Status.DeepCopy()
	if status.Phase != v1alpha1.PhaseRunning {
		status.Phase = v1alpha1.PhaseRunning
		status.StartTime = pod.CreationTimestamp.DeepCopy()
		// The Pod records what it was created for; spec.schedule may have changed since.
		// metav1.Time encodes the first instant of year 1 as null.
		if instant, err := time.Parse(time.RFC3339, pod.Annotations[v1alpha1.AnnotationScheduledTime]); err == nil && !instant.IsZero() {
			status.ScheduledTime = &metav1.Time{Time: instant}
		}
	}
	if !recorded(at) {
		// Left over from an earlier attempt.
		status.NextAttemptTime, status.ExitCode = nil, nil
	}
	// Write once for each change of phase: addresses that become known in between wait for
	// it.
	if !recorded(at) || status.Pod.Phase != pod.Status.Phase {
		status.Pod = &v1alpha1.AtPod{
			Name:         pod.Name,
			UID:          pod.UID,
			AtGeneration: podGeneration(pod),
			Phase:        pod.Status.Phase,
			PodIP:        pod.Status.PodIP,
			HostIP:       pod.Status.HostIP,
			NodeName:     pod.Spec.NodeName,
			StartTime:    pod.Status.StartTime.DeepCopy(),
		}
	}
	return status
}

// statusWithOutcome returns the status of an At whose Pod has ended, with the exit code
// and the message of the command.
func (v *view) statusWithOutcome() *v1alpha1.AtStatus {
	status := v.statusWithPod()
	status.Message = ""
	if terminated := commandTerminated(v.pod); terminated != nil {
		status.ExitCode = ptr.To(terminated.ExitCode)
		status.Message = answer.OneLine(terminated.Message)
	}
	return status
}

// isPending reports whether the run of an At has not started.
func isPending(at *v1alpha1.At) bool {
	return at.Status.Phase != v1alpha1.PhaseRunning && !isDone(at)
}

// isDone reports whether the run of an At has ended.
func isDone(at *v1alpha1.At) bool { return at.Status.Phase == v1alpha1.PhaseDone }

// recorded reports whether the status contains the Pod of the current attempt.
func recorded(at *v1alpha1.At) bool {
	return at.Status.Pod != nil && at.Status.Pod.Name == PodName(at)
}

// podEvents returns the events for a Pod that is not recorded yet. The creation event is
// emitted with the status write, not with the creation: if many Ats are due at the same
// time, all Pods are created first.
func (v *view) podEvents() []Event {
	at, pod := v.At, v.pod
	if recorded(at) {
		return nil
	}
	events := []Event{NewEvent(corev1.EventTypeNormal, v1alpha1.ReasonSuccessfulCreate, "Created Pod "+pod.Name)}
	if generation := podGeneration(pod); at.Status.Phase != v1alpha1.PhaseRunning && generation != 0 && generation < at.Generation {
		events = append(events, NewEvent(corev1.EventTypeWarning, v1alpha1.ReasonEditedTooLate, fmt.Sprintf(
			"The spec was edited too late for Pod %s, which was created from generation %d: changes to schedule, timeZone, command, template, restart, node and nodes do not affect that Pod.", pod.Name, generation)))
	}
	return events
}

// podGeneration returns the generation of the At from which a Pod was created, or 0 if it
// is unknown.
func podGeneration(pod *corev1.Pod) int64 {
	generation, err := strconv.ParseInt(pod.Annotations[v1alpha1.AnnotationAtGeneration], 10, 64)
	if err != nil {
		return 0
	}
	return generation
}

// failureTarget returns the condition that reports that the run is being stopped, or nil.
func failureTarget(at *v1alpha1.At) *metav1.Condition {
	return TrueCondition(at.Status.Conditions, v1alpha1.ConditionFailureTarget)
}

// Blocked returns the condition that reports what blocks the At, or nil.
func Blocked(at *v1alpha1.At) *metav1.Condition {
	return TrueCondition(at.Status.Conditions, v1alpha1.ConditionBlocked)
}

// TrueCondition returns the condition of the given type if it is True, or nil.
func TrueCondition(conditions []metav1.Condition, conditionType string) *metav1.Condition {
	if condition := meta.FindStatusCondition(conditions, conditionType); condition != nil && condition.Status == metav1.ConditionTrue {
		return condition
	}
	return nil
}

// isBlockedByOthers reports whether the At is blocked by something other than an API
// server that fails to create its Pod. A forecast does not count: it may no longer apply
// when the At is due.
func isBlockedByOthers(at *v1alpha1.At) bool {
	blocked := Blocked(at)
	return blocked != nil && blocked.Reason != v1alpha1.ReasonPodNotCreated && blocked.Reason != v1alpha1.ReasonPodNotStarted && !HasForecast(at)
}

// IsStuck reports whether something blocks the start of a run that is due and has no
// starting deadline, so that it could start at any later time.
func IsStuck(at *v1alpha1.At) bool {
	started := isDone(at) || recorded(at) || at.Status.NextAttemptTime != nil || wasRestarted(at) || allChildrenExist(at)
	return Blocked(at) != nil && !HasForecast(at) && !started && at.Spec.StartingDeadlineSeconds == nil
}

// activeDeadlineMessage returns the message for an At that has reached its active
// deadline, with what went wrong before.
func (v *view) activeDeadlineMessage() string {
	message := fmt.Sprintf("The run took longer than spec.activeDeadlineSeconds (%d).", *v.At.Spec.ActiveDeadlineSeconds)
	if v.owned && !hasStarted(v.pod) {
		message += fmt.Sprintf(" No container of Pod %s started.", v.pod.Name)
	}
	last := NameOfPod(v.At.Name, PodsBefore(v.At)-1)
	if i := slices.IndexFunc(v.Pods, func(pod *corev1.Pod) bool { return pod.Name == last && IsOf(pod, v.At) }); i >= 0 && PodsBefore(v.At) > 0 {
		_, failure := failureReason(v.Pods[i])
		message += fmt.Sprintf(" Pod %s had failed before: %s", last, failure)
	}
	return v.withBlocker(message)
}

// withBlocker appends to a message what has blocked the At, if anything.
func (v *view) withBlocker(message string) string {
	if blocked := Blocked(v.At); blocked != nil && !HasForecast(v.At) {
		return message + " It was blocked: " + blocked.Message
	}
	return message
}

// writeBlocked returns the decision to set condition Blocked, until the deadline.
func (v *view) writeBlocked(reason, message string) Decision {
	status := v.At.Status.DeepCopy()
	events := v.setBlocked(status, reason, message)
	d := v.write(status, events...)
	d.Delay = v.untilDeadline()
	return d
}

// retryBlocked returns the decision to set condition Blocked and retry with back-off.
func (v *view) retryBlocked(reason string, cause error) Decision {
	d := v.writeBlocked(reason, cause.Error())
	d.Retry = answer.Blocked(reason, cause)
	return d
}

// writeUnblocked returns the decision to remove condition Blocked or, if it is not set, to wait for
// the given time. PodNotStarted stays until there is another Pod.
func (v *view) writeUnblocked(delay time.Duration) Decision {
	status := v.At.Status.DeepCopy()
	if blocked := Blocked(v.At); blocked == nil || blocked.Reason != v1alpha1.ReasonPodNotStarted {
		removeBlocked(status)
	}
	if d := v.write(status); d.Status != nil {
		return d
	}
	return Decision{Delay: delay}
}

// setBlocked sets condition Blocked. It returns an event if the reason changes, not if
// only the message changes.
func (v *view) setBlocked(status *v1alpha1.AtStatus, reason, message string) []Event {
	before := ptr.Deref(TrueCondition(status.Conditions, v1alpha1.ConditionBlocked), metav1.Condition{})
	meta.SetStatusCondition(&status.Conditions, v.newCondition(v1alpha1.ConditionBlocked, reason, message))
	if before.Reason == reason {
		return nil
	}
	return []Event{NewEvent(corev1.EventTypeWarning, reason, message)}
}

func removeBlocked(status *v1alpha1.AtStatus) {
	meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionBlocked)
}

func (v *view) newCondition(conditionType, reason, message string) metav1.Condition {
	return NewCondition(v.At, v.Now, conditionType, reason, message)
}

// NewCondition returns a condition of an object with status True.
func NewCondition(object metav1.Object, now time.Time, conditionType, reason, message string) metav1.Condition {
	return metav1.Condition{
		Type:               conditionType,
		Status:             metav1.ConditionTrue,
		ObservedGeneration: object.GetGeneration(),
		LastTransitionTime: metav1.Time{Time: now},
		Reason:             reason,
		Message:            answer.OneLine(message),
	}
}

// NewEvent returns an event with the message in one line.
func NewEvent(eventType, reason, message string) Event {
	return Event{Type: eventType, Reason: reason, Message: answer.OneLine(message)}
}

// join joins the parts that are not empty.
func join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ": ")
}

// writeDone ends an At: it is Complete if reason is Completed, and Failed otherwise. pod
// is the Pod that has ended, or nil. If the run was being stopped, and its Pod was deleted, that is
// the reason instead.
func (v *view) writeDone(pod *corev1.Pod, reason, message string) Decision {
	var events []Event
	target := failureTarget(v.At)
	if target != nil && (pod == nil || pod.DeletionTimestamp != nil) {
		reason, message = target.Reason, target.Message
	}
	status := v.At.Status.DeepCopy()
	status.Message = ""
	status.CompletionTime = &metav1.Time{Time: v.Now}
	if pod != nil {
		events = v.podEvents()
		status = v.statusWithOutcome()
		status.CompletionTime = completionTime(pod, v.Now)
	}
	end := v.newCondition(v1alpha1.ConditionComplete, reason, message)
	eventType := corev1.EventTypeNormal
	if reason != v1alpha1.ReasonCompleted {
		end.Type = v1alpha1.ConditionFailed
		eventType = corev1.EventTypeWarning
		if pod != nil || recorded(v.At) {
			status.Failed++
			status.LastFailureTime = &metav1.Time{Time: v.Now}
		}
		status.Message = cmp.Or(status.Message, end.Message)
	} else if pod != nil && lacksMemory(pod) {
		status.Message = cmp.Or(status.Message, memoryMessage)
	}
	if target != nil && target.Reason != reason {
		// It ended before the controller could stop it.
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionFailureTarget)
	}
	removeBlocked(status)
	meta.SetStatusCondition(&status.Conditions, end)
	status.Phase = v1alpha1.PhaseDone
	status.Reason = reason
	status.NextAttemptTime = nil
	return v.write(status, append(events, NewEvent(eventType, reason, message))...)
}

// completionTime returns when the command ended, or now if that is unknown.
func completionTime(pod *corev1.Pod, now time.Time) *metav1.Time {
	if terminated := commandTerminated(pod); terminated != nil && !terminated.FinishedAt.IsZero() {
		return terminated.FinishedAt.DeepCopy()
	}
	return &metav1.Time{Time: now}
}

func (v *view) writeStartingDeadlineExceeded() Decision {
	return v.writeDone(nil, v1alpha1.ReasonStartingDeadlineExceeded, v.withBlocker(fmt.Sprintf("It did not run: it could not start within spec.startingDeadlineSeconds (%d) of the scheduled time.", *v.At.Spec.StartingDeadlineSeconds)))
}

// writeFailureTarget announces that the run is being stopped and why.
func (v *view) writeFailureTarget(reason, message string) Decision {
	status := v.At.Status.DeepCopy()
	v.setFailureTarget(status, reason, message)
	return v.write(status)
}

func (v *view) setFailureTarget(status *v1alpha1.AtStatus, reason, message string) {
	meta.SetStatusCondition(&status.Conditions, v.newCondition(v1alpha1.ConditionFailureTarget, reason, message))
}
