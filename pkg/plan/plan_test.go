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
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
)

const (
	uid    types.UID = "at-uid"
	podUID types.UID = "pod-uid"
)

var (
	due     = time.Date(2026, 12, 24, 10, 12, 0, 0, time.UTC)
	created = due.Add(10 * time.Millisecond)
	endTime = due.Add(3 * time.Second)
	now     = due.Add(4 * time.Second)
	earlier = due.Add(-time.Hour)
)

func newAt(mutate ...func(*v1alpha1.At)) *v1alpha1.At {
	at := &v1alpha1.At{
		ObjectMeta: metav1.ObjectMeta{Name: "example-at", Namespace: "default", UID: uid, Generation: 2},
		Spec:       v1alpha1.AtSpec{Schedule: "2026-12-24T10:12:00Z", RunSpec: v1alpha1.RunSpec{Command: "echo YAY"}},
		Status:     v1alpha1.AtStatus{Phase: v1alpha1.PhasePending},
	}
	for _, m := range mutate {
		m(at)
	}
	return at
}

func withStatus(status v1alpha1.AtStatus) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) { at.Status = status }
}

func withSchedule(schedule string) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) { at.Spec.Schedule = schedule }
}

func withoutOwner(pod *corev1.Pod) { pod.OwnerReferences = nil }

func newPod(phase corev1.PodPhase, mutate ...func(*corev1.Pod)) *corev1.Pod {
	pod := NewPod(newAt(), Defaults{Image: "image"})
	pod.UID = podUID
	pod.CreationTimestamp = metav1.Time{Time: created}
	pod.Spec.NodeName = "node"
	pod.Status.Phase = phase
	for _, m := range mutate {
		m(pod)
	}
	return pod
}

func ownedBy(owners ...metav1.OwnerReference) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.OwnerReferences, pod.Labels, pod.Finalizers = owners, nil, nil
	}
}

// podsOf is a list of a Pod, or of none.
func podsOf(pod *corev1.Pod) []*corev1.Pod {
	if pod == nil {
		return nil
	}
	return []*corev1.Pod{pod}
}

func terminated(exitCode int32, message string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name:  "sidecar",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 99}},
		}, {
			Name: "command",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: exitCode, Message: message, FinishedAt: metav1.Time{Time: endTime},
			}},
		}}
	}
}

// running is the status of an At whose Pod was seen in the given phase.
func running(phase corev1.PodPhase, conditions ...metav1.Condition) v1alpha1.AtStatus {
	return v1alpha1.AtStatus{
		Phase:              v1alpha1.PhaseRunning,
		ScheduledTime:      &metav1.Time{Time: due},
		StartTime:          &metav1.Time{Time: created},
		Pod:                &v1alpha1.AtPod{Name: "example-at-pod", UID: podUID, AtGeneration: 2, Phase: phase, NodeName: "node"},
		ObservedGeneration: 2,
		Conditions:         conditions,
	}
}

func condition(conditionType string, status metav1.ConditionStatus, at time.Time, reason, message string) metav1.Condition {
	return metav1.Condition{
		Type: conditionType, Status: status, ObservedGeneration: 2,
		LastTransitionTime: metav1.Time{Time: at}, Reason: reason, Message: message,
	}
}

func warning(reason, message string) Event {
	return Event{Type: corev1.EventTypeWarning, Reason: reason, Message: message}
}

func withSuspended(at *v1alpha1.At) {
	at.Spec.Suspend = ptr.To(true)
	at.Status = v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, ObservedGeneration: 2, Conditions: []metav1.Condition{suspended(earlier)}}
	explained(&at.Status)
}

func suspended(since time.Time) metav1.Condition {
	return condition(v1alpha1.ConditionSuspended, metav1.ConditionTrue, since, v1alpha1.ReasonSuspended, "Nothing starts while spec.suspend is true.")
}

func resumed(since time.Time) metav1.Condition {
	return condition(v1alpha1.ConditionSuspended, metav1.ConditionFalse, since, v1alpha1.ReasonResumed, "The At is no longer suspended.")
}

func withActiveDeadline(seconds int64) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) { at.Spec.ActiveDeadlineSeconds = &seconds }
}

func withBackoffLimit(limit int32) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) { at.Spec.BackoffLimit = &limit }
}

// withSuspendedRun suspends an At that has begun to run.
func withSuspendedRun(at *v1alpha1.At) {
	at.Spec.Suspend = ptr.To(true)
	at.Status.Conditions = []metav1.Condition{suspended(earlier)}
}

func withTTL(seconds int32) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) { at.Spec.TTLSecondsAfterFinished = &seconds }
}

func withDone(conditionType string, since time.Time) func(*v1alpha1.At) {
	return withStatus(v1alpha1.AtStatus{
		Phase:      v1alpha1.PhaseDone,
		Conditions: []metav1.Condition{condition(conditionType, metav1.ConditionTrue, since, "Any", "")},
	})
}

// deleted is a Pod that is to go.
func deleted(pod *corev1.Pod) {
	pod.DeletionTimestamp = &metav1.Time{Time: now}
}

// deletedByForce is a Pod that was to go at once.
func deletedByForce(at time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: at}, ptr.To[int64](0)
	}
}

// second is the Pod of the second attempt.
func second(pod *corev1.Pod) { pod.Name, pod.UID = "example-at-pod-1", "second" }

func waiting(reason, message string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "command", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
		}}
	}
}

func imagePullFailed(since time.Time, message string) metav1.Condition {
	return condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, since, v1alpha1.ReasonImagePullFailed, message)
}

func failureTargetCondition(since time.Time, message string) metav1.Condition {
	return condition(v1alpha1.ConditionFailureTarget, metav1.ConditionTrue, since, v1alpha1.ReasonDeadlineExceeded, message)
}

var stopping = failureTargetCondition(earlier, deadlineMessage)

// nextAttempt is the status of an At which waits for its next attempt.
func nextAttempt(failed int32, next time.Time) *v1alpha1.AtStatus {
	status := running(corev1.PodFailed)
	status.Failed, status.ExitCode = failed, ptr.To[int32](1)
	status.Reason, status.Message = v1alpha1.ReasonBackOff, "the attempt failed"
	status.NextAttemptTime = &metav1.Time{Time: next}
	status.LastFailureTime = &metav1.Time{Time: next.Add(-attemptBackoff(failed))}
	return &status
}

// announced is the status of an At whose next attempt was announced just now.
func announced(status *v1alpha1.AtStatus, message string, mutate ...func(*v1alpha1.AtStatus)) *v1alpha1.AtStatus {
	status.Message = message
	for _, m := range mutate {
		m(status)
	}
	return status
}

// secondRunning is the status of an At whose second attempt is in the given phase.
func secondRunning(phase corev1.PodPhase) *v1alpha1.AtStatus {
	status := running(phase)
	status.Failed, status.LastFailureTime = 1, &metav1.Time{Time: now.Add(-10 * time.Second)}
	status.Pod.Name, status.Pod.UID = "example-at-pod-1", "second"
	return &status
}

// ends is the decision to end an At that has the given status so far.
func ends(from v1alpha1.AtStatus, conditionType, reason, message string, mutate ...func(*v1alpha1.AtStatus)) Decision {
	status := from.DeepCopy()
	status.Phase = v1alpha1.PhaseDone
	status.ObservedGeneration = 2
	status.Reason = reason
	status.CompletionTime = &metav1.Time{Time: now}
	status.Conditions = append(status.Conditions, condition(conditionType, metav1.ConditionTrue, now, reason, message))
	event := Event{Type: corev1.EventTypeNormal, Reason: reason, Message: message}
	if conditionType == v1alpha1.ConditionFailed {
		status.Message = message
		event.Type = corev1.EventTypeWarning
	}
	for _, m := range mutate {
		m(status)
	}
	if status.Failed > from.Failed {
		status.LastFailureTime = status.Conditions[len(status.Conditions)-1].LastTransitionTime.DeepCopy()
	}
	return Decision{Status: status, Events: []Event{event}}
}

func failed(from v1alpha1.AtStatus, reason, message string, mutate ...func(*v1alpha1.AtStatus)) Decision {
	return ends(from, v1alpha1.ConditionFailed, reason, message, mutate...)
}

func complete(mutate ...func(*v1alpha1.AtStatus)) Decision {
	return ends(running(corev1.PodSucceeded), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, completedMessage, mutate...)
}

// explained gives a status that is not DONE the reason and the message of its conditions.
func explained(status *v1alpha1.AtStatus) {
	if status == nil || status.Phase == v1alpha1.PhaseDone {
		return
	}
	for _, condition := range status.Conditions {
		holds := condition.Type != v1alpha1.ConditionSuspended || status.Phase != v1alpha1.PhaseRunning || status.NextAttemptTime != nil || status.Nodes != nil
		if condition.Status == metav1.ConditionTrue && holds {
			status.Reason, status.Message = condition.Reason, condition.Message
		}
	}
}

func attempts(failed int32) func(*v1alpha1.AtStatus) {
	return func(status *v1alpha1.AtStatus) { status.Failed = failed }
}

// withCreation is a decision about a Pod that was not recorded before.
func withCreation(d Decision) Decision {
	d.Events = append([]Event{createdEvent}, d.Events...)
	return d
}

const (
	completedMessage = "The command ended with exit code 0."
	deadlineMessage  = "The run took longer than spec.activeDeadlineSeconds (10)."
	tooLateMessage   = "It did not run: it could not start within spec.startingDeadlineSeconds (3) of the scheduled time."
	overdueMessage   = "Pod example-at-pod of an earlier At with this name still exists: run kubectl describe pod example-at-pod to see what it is waiting for."
	lostMessage      = "Pod example-at-pod was deleted before the controller saw how it ended; the command will not run again."
	announcement     = "Attempt 1 of 3 failed, the next is due at 2026-12-24T10:12:14Z: The command ended with exit code 1."
	conflictMessage  = "Pod example-at-pod already exists and does not belong to this At: delete that Pod, or give the At another name."
	invalidMessage   = `spec.schedule "tomorrow" is invalid: write a time in RFC 3339 format, such as 2035-12-24T10:12:00Z`
)

var (
	createdEvent       = Event{Type: corev1.EventTypeNormal, Reason: v1alpha1.ReasonSuccessfulCreate, Message: "Created Pod example-at-pod"}
	secondCreatedEvent = Event{Type: corev1.EventTypeNormal, Reason: v1alpha1.ReasonSuccessfulCreate, Message: "Created Pod example-at-pod-1"}

	// errAny stands for an error that is not ErrBlocked.
	errAny = errors.New("any")
	// equate compares errors like the worker.
	equate = cmp.Options{cmpopts.EquateEmpty(), cmp.Comparer(func(a, b error) bool {
		return (a == nil) == (b == nil) && errors.Is(a, answer.ErrBlocked) == errors.Is(b, answer.ErrBlocked)
	})}
)

func TestDecide(t *testing.T) {
	invalidSchedule := condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, earlier, v1alpha1.ReasonInvalidSchedule, invalidMessage)
	conflict := condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, earlier, v1alpha1.ReasonPodNameConflict, conflictMessage)
	stranger := metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "example-at", UID: "job-uid", Controller: ptr.To(true)}
	earlierAt := metav1.OwnerReference{APIVersion: "cnat.programming-kubernetes.info/v1alpha1", Kind: "At", Name: "example-at", UID: "earlier-uid", Controller: ptr.To(true)}
	notController := metav1.OwnerReference{APIVersion: "cnat.programming-kubernetes.info/v1alpha1", Kind: "At", Name: "example-at", UID: uid}

	for name, tc := range map[string]struct {
		// world
		at  *v1alpha1.At
		pod *corev1.Pod
		now time.Time
		// expectations, look is the first decision if the world comes from caches
		want Decision
		look Action
	}{
		"far from due": {
			at: newAt(), now: earlier,
			want: Decision{Delay: time.Hour - lead(newAt())},
		},
		"a fraction of a second from due": {
			at: newAt(), now: due.Add(-1500 * time.Millisecond),
			want: Decision{Delay: 1500 * time.Millisecond},
		},
		"a nanosecond before due: not yet": {
			at: newAt(), now: due.Add(-1),
			want: Decision{Delay: 1},
		},
		"exactly due": {
			at: newAt(), now: due,
			want: Decision{Action: CreatePod{Due: due}, Delay: time.Minute},
		},
		"fractions of a second count": {
			at: newAt(withSchedule("2026-12-24T10:12:00.25Z")), now: due,
			want: Decision{Delay: 250 * time.Millisecond},
		},
		"an offset counts": {
			at: newAt(withSchedule("2026-12-24T11:12:30+01:00")), now: due,
			want: Decision{Delay: 30 * time.Second},
		},
		"long overdue": {
			at: newAt(withSchedule("0001-01-01T00:00:00Z")), now: now,
			want: Decision{Action: CreatePod{Due: time.Time{}}, Delay: time.Minute},
		},
		"as far as the calendar goes": {
			at: newAt(withSchedule("9999-12-31T23:59:59Z")), now: now,
			want: Decision{Delay: math.MaxInt64 - lead(newAt())},
		},
		"being deleted: nothing starts": {
			at:  newAt(func(at *v1alpha1.At) { at.DeletionTimestamp = &metav1.Time{Time: earlier} }),
			now: now, want: Decision{},
		},
		"invalid schedule: reported": {
			at: newAt(withSchedule("tomorrow")), now: now,
			want: Decision{
				Status: &v1alpha1.AtStatus{
					Phase: v1alpha1.PhasePending, ObservedGeneration: 2,
					Conditions: []metav1.Condition{condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, now, v1alpha1.ReasonInvalidSchedule, invalidMessage)},
				},
				Events: []Event{warning(v1alpha1.ReasonInvalidSchedule, invalidMessage)},
			},
		},
		"invalid schedule: reported once": {
			at: newAt(withSchedule("tomorrow"), withStatus(v1alpha1.AtStatus{
				Phase: v1alpha1.PhasePending, ObservedGeneration: 2, Conditions: []metav1.Condition{invalidSchedule},
			})),
			now: now, want: Decision{},
		},
		"schedule corrected": {
			at: newAt(withStatus(v1alpha1.AtStatus{
				Phase: v1alpha1.PhasePending, ObservedGeneration: 1,
				Conditions: []metav1.Condition{func() metav1.Condition { c := invalidSchedule; c.ObservedGeneration = 1; return c }()},
			})),
			now: earlier,
			want: Decision{
				Status: &v1alpha1.AtStatus{
					Phase: v1alpha1.PhasePending, ObservedGeneration: 2, Conditions: []metav1.Condition{},
				},
			},
		},
		"the name belongs to an unrelated Pod, not due: ignored for now": {
			at: newAt(), pod: newPod(corev1.PodRunning, ownedBy()), now: earlier,
			want: Decision{Delay: time.Hour - lead(newAt())},
		},
		"the name belongs to a Pod without an owner": {
			at: newAt(), pod: newPod(corev1.PodSucceeded, ownedBy()), now: now,
			want: Decision{
				Status: &v1alpha1.AtStatus{
					Phase: v1alpha1.PhasePending, ObservedGeneration: 2,
					Conditions: []metav1.Condition{condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, now, v1alpha1.ReasonPodNameConflict, conflictMessage)},
				},
				Events: []Event{warning(v1alpha1.ReasonPodNameConflict, conflictMessage)},
				Retry:  answer.ErrBlocked,
			},
		},
		"the name belongs to a Pod of another kind, already reported": {
			at: newAt(withStatus(v1alpha1.AtStatus{
				Phase: v1alpha1.PhasePending, ObservedGeneration: 2, Conditions: []metav1.Condition{conflict},
			})),
			pod: newPod(corev1.PodSucceeded, ownedBy(stranger)), now: now,
			want: Decision{Retry: answer.ErrBlocked},
		},
		"an owner that is not the controller does not count": {
			at: newAt(withStatus(v1alpha1.AtStatus{
				Phase: v1alpha1.PhasePending, ObservedGeneration: 2, Conditions: []metav1.Condition{conflict},
			})),
			pod: newPod(corev1.PodSucceeded, ownedBy(notController)), now: now,
			want: Decision{Retry: answer.ErrBlocked},
		},
		"a Pod of an earlier At with this name: waited for, not reported": {
			at: newAt(), pod: newPod(corev1.PodSucceeded, ownedBy(earlierAt)), now: due.Add(time.Minute - 1),
			want: Decision{Retry: answer.ErrBlocked},
		},
		"a Pod of an earlier At with this name, due long before creation: waited for, not reported": {
			at:  newAt(func(at *v1alpha1.At) { at.CreationTimestamp.Time = due.Add(time.Hour) }),
			pod: newPod(corev1.PodSucceeded, ownedBy(earlierAt)), now: due.Add(time.Hour + time.Minute - 1),
			want: Decision{Retry: answer.ErrBlocked},
		},
		"a Pod of an earlier At with this name, not being deleted: reported": {
			at: newAt(), pod: newPod(corev1.PodSucceeded, ownedBy(earlierAt)), now: due.Add(time.Minute),
			want: Decision{
				Status: &v1alpha1.AtStatus{
					Phase: v1alpha1.PhasePending, ObservedGeneration: 2,
					Conditions: []metav1.Condition{condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, due.Add(time.Minute), v1alpha1.ReasonPodNameConflict, overdueMessage)},
				},
				Events: []Event{warning(v1alpha1.ReasonPodNameConflict, overdueMessage)},
				Retry:  answer.ErrBlocked,
			},
		},
		"a Pod of an earlier At with this name, being deleted for a long time: reported": {
			at: newAt(), now: due.Add(time.Minute),
			pod: newPod(corev1.PodRunning, ownedBy(earlierAt), deleted),
			want: Decision{
				Status: &v1alpha1.AtStatus{
					Phase: v1alpha1.PhasePending, ObservedGeneration: 2,
					Conditions: []metav1.Condition{condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, due.Add(time.Minute), v1alpha1.ReasonPodNameConflict, overdueMessage)},
				},
				Events: []Event{warning(v1alpha1.ReasonPodNameConflict, overdueMessage)},
				Retry:  answer.ErrBlocked,
			},
		},
		"the Pod is seen": {
			at: newAt(), pod: newPod(corev1.PodPending), now: now,
			want: Decision{Status: ptr.To(running(corev1.PodPending)), Events: []Event{createdEvent}},
		},
		"the Pod is seen, its owner reference was removed": {
			at: newAt(), pod: newPod(corev1.PodPending, withoutOwner), now: now,
			want: Decision{Status: ptr.To(running(corev1.PodPending)), Events: []Event{createdEvent}},
		},
		"the Pod is seen, its label was changed": {
			at: newAt(), pod: newPod(corev1.PodPending, func(pod *corev1.Pod) { pod.Labels[v1alpha1.LabelAtUID] = "other" }), now: now,
			want: Decision{Status: ptr.To(running(corev1.PodPending)), Events: []Event{createdEvent}},
		},
		"the Pod runs, its owner reference was removed": {
			at: newAt(withStatus(running(corev1.PodRunning))), pod: newPod(corev1.PodRunning, withoutOwner), now: now,
			want: Decision{Delay: time.Minute},
		},
		"the Pod is seen, although the schedule has changed since": {
			at: newAt(withSchedule("2027-12-24T10:12:00Z")), pod: newPod(corev1.PodPending), now: now,
			want: Decision{Status: ptr.To(running(corev1.PodPending)), Events: []Event{createdEvent}},
		},
		"the Pod is seen, a zero time is not written": {
			at: newAt(withSchedule("0001-01-01T00:00:00Z")), now: now,
			pod: newPod(corev1.PodPending, func(pod *corev1.Pod) {
				pod.Annotations = map[string]string{v1alpha1.AnnotationScheduledTime: "0001-01-01T00:00:00Z"}
			}),
			want: Decision{Status: func() *v1alpha1.AtStatus {
				status := running(corev1.PodPending)
				status.ScheduledTime, status.Pod.AtGeneration = nil, 0
				return &status
			}(), Events: []Event{createdEvent}},
		},
		"the Pod is seen, its name conflict is gone": {
			at: newAt(withStatus(v1alpha1.AtStatus{
				Phase: v1alpha1.PhasePending, ObservedGeneration: 2, Conditions: []metav1.Condition{conflict},
			})),
			pod: newPod(corev1.PodPending), now: now,
			want: Decision{Status: ptr.To(running(corev1.PodPending)), Events: []Event{createdEvent}},
		},
		"the Pod's phase changes: mirrored": {
			at: newAt(withStatus(running(corev1.PodPending))),
			pod: newPod(corev1.PodRunning, func(pod *corev1.Pod) {
				pod.Status.PodIP, pod.Status.HostIP = "10.0.0.2", "192.168.0.1"
				pod.Status.StartTime = &metav1.Time{Time: due}
			}), now: now,
			want: Decision{Status: func() *v1alpha1.AtStatus {
				status := running(corev1.PodRunning)
				status.Pod.PodIP, status.Pod.HostIP = "10.0.0.2", "192.168.0.1"
				status.Pod.StartTime = &metav1.Time{Time: due}
				return &status
			}()},
		},
		"the Pod changes in another way: not written": {
			at:  newAt(withStatus(running(corev1.PodPending))),
			pod: newPod(corev1.PodPending, func(pod *corev1.Pod) { pod.Status.PodIP = "10.0.0.2" }), now: now,
			want: Decision{Delay: time.Minute},
		},
		"the Pod is being deleted: wait for its end": {
			at:  newAt(withStatus(running(corev1.PodRunning))),
			pod: newPod(corev1.PodRunning, deleted), now: now,
			want: Decision{Delay: time.Minute},
		},
		"success": {
			at: newAt(withStatus(running(corev1.PodRunning))), pod: newPod(corev1.PodSucceeded, terminated(0, "written to the termination log")), now: now,
			want: complete(func(status *v1alpha1.AtStatus) {
				status.ExitCode, status.Message = ptr.To[int32](0), "written to the termination log"
				status.CompletionTime = &metav1.Time{Time: endTime}
			}),
		},
		"success, never seen before": {
			at: newAt(), pod: newPod(corev1.PodSucceeded), now: now,
			want: withCreation(complete()),
		},
		"failure with a message": {
			at: newAt(withStatus(running(corev1.PodRunning))), pod: newPod(corev1.PodFailed, terminated(3, "no such host")), now: now,
			want: failed(running(corev1.PodFailed), v1alpha1.ReasonCommandFailed, "The command ended with exit code 3.", func(status *v1alpha1.AtStatus) {
				status.Failed, status.ExitCode, status.Message = 1, ptr.To[int32](3), "no such host"
				status.CompletionTime = &metav1.Time{Time: endTime}
			}),
		},
		"failure without a message": {
			at: newAt(withStatus(running(corev1.PodRunning))), pod: newPod(corev1.PodFailed, terminated(1, "")), now: now,
			want: failed(running(corev1.PodFailed), v1alpha1.ReasonCommandFailed, "The command ended with exit code 1.", func(status *v1alpha1.AtStatus) {
				status.Failed, status.ExitCode = 1, ptr.To[int32](1)
				status.CompletionTime = &metav1.Time{Time: endTime}
			}),
		},
		"failure of the Pod, not of the command": {
			at: newAt(withStatus(running(corev1.PodRunning))), pod: newPod(corev1.PodFailed), now: now,
			want: failed(running(corev1.PodFailed), v1alpha1.ReasonPodFailed, "Pod example-at-pod failed", attempts(1)),
		},
		"failure of another container, with a message that could pass for a log line": {
			at: newAt(withStatus(running(corev1.PodRunning))), now: now,
			pod: newPod(corev1.PodFailed, func(pod *corev1.Pod) {
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{exited("other", 1, "", "\x1b[2Jgone\nI1224 10:12:00.000000 all is well\n")}
			}),
			want: failed(running(corev1.PodFailed), v1alpha1.ReasonPodFailed,
				"Pod example-at-pod failed: container other ended with exit code 1:  [2Jgone I1224 10:12:00.000000 all is well", attempts(1)),
		},
		"the Pod is gone: never run again": {
			at: newAt(withStatus(running(corev1.PodRunning)), withBackoffLimit(5)), now: now,
			want: failed(running(corev1.PodRunning), v1alpha1.ReasonPodLost, lostMessage, attempts(1)), look: LookForPod{},
		},
		"the Pod is gone, and an unrelated Pod has its name": {
			at:  newAt(withStatus(running(corev1.PodRunning))),
			pod: newPod(corev1.PodSucceeded, ownedBy(), func(pod *corev1.Pod) { pod.UID = "stranger" }), now: now,
			want: failed(running(corev1.PodRunning), v1alpha1.ReasonPodLost, lostMessage, attempts(1)), look: LookForPod{},
		},
		"the Pod is gone, and another Pod claims to belong to this At": {
			at:  newAt(withStatus(running(corev1.PodRunning))),
			pod: newPod(corev1.PodSucceeded, func(pod *corev1.Pod) { pod.UID = "second" }), now: now,
			want: failed(running(corev1.PodRunning), v1alpha1.ReasonPodLost, lostMessage, attempts(1)), look: LookForPod{},
		},
		"an image cannot be pulled: reported": {
			at: newAt(withStatus(running(corev1.PodPending))), pod: newPod(corev1.PodPending, waiting("ErrImagePull", "no such image")), now: now,
			want: Decision{
				Status: ptr.To(running(corev1.PodPending, imagePullFailed(now, "Container command: ErrImagePull: no such image"))),
				Events: []Event{warning(v1alpha1.ReasonImagePullFailed, "Container command: ErrImagePull: no such image")},
			},
		},
		"an image cannot be pulled, first seen with the Pod: reported in the same write": {
			at: newAt(), pod: newPod(corev1.PodPending, waiting("ErrImagePull", "no such image")), now: now,
			want: Decision{
				Status: ptr.To(running(corev1.PodPending, imagePullFailed(now, "Container command: ErrImagePull: no such image"))),
				Events: []Event{createdEvent, warning(v1alpha1.ReasonImagePullFailed, "Container command: ErrImagePull: no such image")},
			},
		},
		"an image cannot be pulled, in other words: not written again": {
			at:  newAt(withStatus(running(corev1.PodPending, imagePullFailed(earlier, "Container command: ErrImagePull: no such image")))),
			pod: newPod(corev1.PodPending, waiting("ImagePullBackOff", "Back-off")), now: now,
			want: Decision{Delay: time.Minute},
		},
		"an image could not be pulled, but runs now": {
			at:  newAt(withStatus(running(corev1.PodPending, imagePullFailed(earlier, "")))),
			pod: newPod(corev1.PodRunning), now: now,
			want: Decision{Status: ptr.To(running(corev1.PodRunning))},
		},
		"a failed attempt, another allowed: announced": {
			at: newAt(withStatus(running(corev1.PodRunning)), withBackoffLimit(2)), pod: newPod(corev1.PodFailed, terminated(1, "no such host")), now: now,
			want: Decision{
				Status: announced(nextAttempt(1, now.Add(10*time.Second)), announcement+" Message: no such host"),
				Events: []Event{warning(v1alpha1.ReasonCommandFailed, "Attempt 1 of 3 failed, the next is due at 2026-12-24T10:12:14Z: The command ended with exit code 1.")},
			},
		},
		"a failed attempt, never seen before, at a fraction of a second": {
			at: newAt(withBackoffLimit(2)), pod: newPod(corev1.PodFailed, terminated(1, "no such host")), now: now.Add(1),
			want: Decision{
				Status: announced(nextAttempt(1, now.Add(11*time.Second)), strings.ReplaceAll(announcement, ":14Z", ":15Z")+" Message: no such host", func(status *v1alpha1.AtStatus) {
					status.LastFailureTime.Time = now.Add(1)
				}),
				Events: []Event{createdEvent, warning(v1alpha1.ReasonCommandFailed, "Attempt 1 of 3 failed, the next is due at 2026-12-24T10:12:15Z: The command ended with exit code 1.")},
			},
		},
		"a failed attempt, very many others allowed": {
			at: newAt(withStatus(running(corev1.PodRunning)), withBackoffLimit(math.MaxInt32)), pod: newPod(corev1.PodFailed, terminated(1, "no such host")), now: now,
			want: Decision{
				Status: announced(nextAttempt(1, now.Add(10*time.Second)), strings.ReplaceAll(announcement, "of 3", "of 2147483648")+" Message: no such host"),
				Events: []Event{warning(v1alpha1.ReasonCommandFailed, "Attempt 1 of 2147483648 failed, the next is due at 2026-12-24T10:12:14Z: The command ended with exit code 1.")},
			},
		},
		"a failed attempt, evicted, another allowed": {
			at: newAt(withStatus(running(corev1.PodRunning)), withBackoffLimit(1)), now: now,
			pod: newPod(corev1.PodFailed, deleted, terminated(1, "no such host"), func(pod *corev1.Pod) { pod.Status.Reason = "Evicted" }),
			want: Decision{
				Status: announced(nextAttempt(1, now.Add(10*time.Second)), "Attempt 1 of 2 failed, the next is due at 2026-12-24T10:12:14Z: Pod example-at-pod was evicted Message: no such host"),
				Events: []Event{warning(v1alpha1.ReasonEvicted, "Attempt 1 of 2 failed, the next is due at 2026-12-24T10:12:14Z: Pod example-at-pod was evicted")},
			},
		},
		"a failed attempt, another allowed, but not before the active deadline": {
			at: newAt(withStatus(running(corev1.PodRunning)), withBackoffLimit(2), withActiveDeadline(13)), pod: newPod(corev1.PodFailed), now: created.Add(3 * time.Second),
			want: failed(running(corev1.PodFailed), v1alpha1.ReasonPodFailed, "Pod example-at-pod failed", attempts(1), func(status *v1alpha1.AtStatus) {
				status.CompletionTime.Time, status.Conditions[0].LastTransitionTime.Time = created.Add(3*time.Second), created.Add(3*time.Second)
			}),
		},
		"a failed attempt, its earlier blocker no longer matters": {
			at:  newAt(withStatus(running(corev1.PodPending, imagePullFailed(earlier, ""))), withBackoffLimit(2)),
			pod: newPod(corev1.PodFailed, terminated(1, "no such host")), now: now,
			want: Decision{
				Status: func() *v1alpha1.AtStatus {
					status := announced(nextAttempt(1, now.Add(10*time.Second)), announcement+" Message: no such host")
					status.Conditions = []metav1.Condition{}
					return status
				}(),
				Events: []Event{warning(v1alpha1.ReasonCommandFailed, "Attempt 1 of 3 failed, the next is due at 2026-12-24T10:12:14Z: The command ended with exit code 1.")},
			},
		},
		"between two attempts: the next is waited for": {
			at: newAt(withStatus(*nextAttempt(1, now.Add(10*time.Second))), withBackoffLimit(2)), now: now,
			want: Decision{Delay: 10 * time.Second},
		},
		"between two attempts, a long time": {
			at: newAt(withStatus(*nextAttempt(9, now.Add(6*time.Minute))), withBackoffLimit(10)), now: now,
			want: Decision{Delay: 6 * time.Minute},
		},
		"between two attempts, suspended: waits": {
			at: newAt(withStatus(*nextAttempt(1, now)), withSuspendedRun, withBackoffLimit(2)), now: now,
			want: Decision{},
		},
		"between two attempts, the limit lowered: the announced attempt follows": {
			at: newAt(withStatus(*nextAttempt(1, now))), now: now,
			want: Decision{Action: CreatePod{Due: now}, Delay: time.Minute},
		},
		"the next attempt is due": {
			at: newAt(withStatus(*nextAttempt(1, now)), withBackoffLimit(2)), now: now,
			want: Decision{Action: CreatePod{Due: now}, Delay: time.Minute},
		},
		"the next attempt is due, an unrelated Pod has its name": {
			at: newAt(withStatus(*nextAttempt(1, now)), withBackoffLimit(2)), pod: newPod(corev1.PodRunning, second, ownedBy()), now: now,
			want: Decision{
				Status: func() *v1alpha1.AtStatus {
					status := nextAttempt(1, now)
					status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, now, v1alpha1.ReasonPodNameConflict, strings.ReplaceAll(conflictMessage, "-pod", "-pod-1"))}
					return status
				}(),
				Events: []Event{warning(v1alpha1.ReasonPodNameConflict, strings.ReplaceAll(conflictMessage, "-pod", "-pod-1"))},
				Retry:  answer.ErrBlocked,
			},
		},
		"the Pod of the next attempt is seen: the result of the first is removed": {
			at: newAt(withStatus(*nextAttempt(1, now)), withBackoffLimit(2)), pod: newPod(corev1.PodPending, second), now: now,
			want: Decision{Status: secondRunning(corev1.PodPending), Events: []Event{secondCreatedEvent}},
		},
		"the next attempt succeeds": {
			at: newAt(withStatus(*secondRunning(corev1.PodRunning)), withBackoffLimit(2)), pod: newPod(corev1.PodSucceeded, second), now: now,
			want: ends(*secondRunning(corev1.PodSucceeded), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, completedMessage),
		},
		"the last attempt fails": {
			at: newAt(withStatus(*secondRunning(corev1.PodRunning)), withBackoffLimit(1)), pod: newPod(corev1.PodFailed, second), now: now,
			want: failed(*secondRunning(corev1.PodFailed), v1alpha1.ReasonPodFailed, "Pod example-at-pod-1 failed", attempts(2)),
		},
		"the Pod of the next attempt is gone": {
			at: newAt(withStatus(*secondRunning(corev1.PodRunning)), withBackoffLimit(2)), now: now,
			want: failed(*secondRunning(corev1.PodRunning), v1alpha1.ReasonPodLost, strings.ReplaceAll(lostMessage, "-pod", "-pod-1"), attempts(2)), look: LookForPod{},
		},
		"suspended: reported": {
			at: newAt(func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) }), now: earlier,
			want: Decision{
				Status: &v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, ObservedGeneration: 2, Conditions: []metav1.Condition{suspended(earlier)}},
				Events: []Event{{Type: corev1.EventTypeNormal, Reason: v1alpha1.ReasonSuspended, Message: "Nothing starts while spec.suspend is true."}},
			},
		},
		"suspended and due: waits": {
			at: newAt(withSuspended), now: now, want: Decision{},
		},
		"suspended and due: the blocker of an earlier spec is removed": {
			at: newAt(withSuspended, func(at *v1alpha1.At) {
				stale := imagePullFailed(earlier, "")
				stale.ObservedGeneration = 1
				at.Status.Conditions = append(at.Status.Conditions, stale)
			}), now: now,
			want: Decision{Status: &v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, ObservedGeneration: 2, Conditions: []metav1.Condition{suspended(earlier)}}},
		},
		"suspended and due, regardless of the starting deadline: waits": {
			at: newAt(withSuspended, func(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = ptr.To[int64](0) }), now: now, want: Decision{},
		},
		"suspended, not due": {
			at: newAt(withSuspended), now: earlier, want: Decision{Delay: time.Hour - lead(newAt())},
		},
		"suspended with a Pod: it continues": {
			at: newAt(withSuspended), pod: newPod(corev1.PodPending), now: now,
			want: Decision{Status: ptr.To(running(corev1.PodPending, suspended(earlier))), Events: []Event{createdEvent}},
		},
		"resumed: reported": {
			at: newAt(withSuspended, func(at *v1alpha1.At) { at.Spec.Suspend = nil }), now: now,
			want: Decision{
				Status: &v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, ObservedGeneration: 2, Conditions: []metav1.Condition{resumed(now)}},
				Events: []Event{{Type: corev1.EventTypeNormal, Reason: v1alpha1.ReasonResumed, Message: "The At is no longer suspended."}},
			},
		},
		"resumed and due: runs": {
			at: newAt(withStatus(v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, Conditions: []metav1.Condition{resumed(earlier)}})), now: now,
			want: Decision{Action: CreatePod{Due: due}, Delay: time.Minute},
		},
		"resumed when it was due: due since then": {
			at: newAt(withStatus(v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, Conditions: []metav1.Condition{resumed(created)}})), now: now,
			want: Decision{Action: CreatePod{Due: created}, Delay: time.Minute},
		},
		"edited when it was due: due since then": {
			at: newAt(func(at *v1alpha1.At) {
				at.ManagedFields = []metav1.ManagedFieldsEntry{
					{Time: &metav1.Time{Time: created}}, {Time: &metav1.Time{Time: earlier}}, {}, {Subresource: "status", Time: &metav1.Time{Time: now}},
				}
			}), now: now,
			want: Decision{Action: CreatePod{Due: created}, Delay: time.Minute},
		},
		"resumed when the next attempt was due: due since then": {
			at: newAt(withStatus(*nextAttempt(1, created)), withBackoffLimit(2), func(at *v1alpha1.At) { at.Status.Conditions = append(at.Status.Conditions, resumed(now)) }), now: now,
			want: Decision{Action: CreatePod{Due: now}, Delay: time.Minute},
		},
		"created when it was due: due since then": {
			at: newAt(func(at *v1alpha1.At) { at.CreationTimestamp = metav1.Time{Time: created} }), now: now,
			want: Decision{Action: CreatePod{Due: created}, Delay: time.Minute},
		},
		"edited, nothing else changes, the status was never written: no write": {
			at: newAt(func(at *v1alpha1.At) { at.Generation = 3 }), now: earlier,
			want: Decision{Delay: time.Hour - lead(newAt())},
		},
		"edited while pending: observed": {
			at: newAt(withStatus(v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, ObservedGeneration: 1})), now: earlier,
			want: Decision{Status: &v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, ObservedGeneration: 2}, Delay: time.Hour - lead(newAt())},
		},
		"edited while running: observed": {
			at: newAt(withStatus(running(corev1.PodRunning)), func(at *v1alpha1.At) { at.Generation = 3 }), pod: newPod(corev1.PodRunning), now: now,
			want: Decision{Status: func() *v1alpha1.AtStatus {
				status := running(corev1.PodRunning)
				status.ObservedGeneration = 3
				return &status
			}(), Delay: time.Minute},
		},
		"edited when done: observed": {
			at:   newAt(withStatus(v1alpha1.AtStatus{Phase: v1alpha1.PhaseDone, ObservedGeneration: 1})),
			now:  now,
			want: Decision{Status: &v1alpha1.AtStatus{Phase: v1alpha1.PhaseDone, ObservedGeneration: 2}},
		},
		"edited between the creation of the Pod and its record: a warning, and the status has the Pod's generation": {
			at: newAt(), now: now,
			pod: newPod(corev1.PodPending, func(pod *corev1.Pod) { pod.Annotations[v1alpha1.AnnotationAtGeneration] = "1" }),
			want: Decision{
				Status: func() *v1alpha1.AtStatus {
					status := running(corev1.PodPending)
					status.Pod.AtGeneration = 1
					return &status
				}(),
				Events: []Event{createdEvent, warning(v1alpha1.ReasonEditedTooLate,
					"The spec was edited too late for Pod example-at-pod, which was created from generation 1: changes to schedule, timeZone, command, template, restart, node and nodes do not affect that Pod.")},
			},
		},
		"blocked until now: due since now": {
			at: newAt(withStatus(v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, ObservedGeneration: 2, Conditions: []metav1.Condition{conflict}})), now: now,
			want: Decision{Action: CreatePod{Due: now}, Delay: time.Minute},
		},
		"blocked, then moved to later: no longer blocked": {
			at: newAt(withStatus(v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, ObservedGeneration: 2, Conditions: []metav1.Condition{conflict}})), now: earlier,
			want: Decision{Status: &v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, ObservedGeneration: 2}},
		},
		"done: suspend has no effect": {
			at: newAt(withStatus(v1alpha1.AtStatus{Phase: v1alpha1.PhaseDone}), func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) }), now: now, want: Decision{},
		},
		"late, within the starting deadline": {
			at: newAt(func(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = ptr.To[int64](4) }), now: now.Add(time.Second - 1),
			want: Decision{Action: CreatePod{Due: due}, Delay: time.Minute},
		},
		"late, beyond the starting deadline": {
			at: newAt(func(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = ptr.To[int64](3) }), now: now,
			want: failed(v1alpha1.AtStatus{}, v1alpha1.ReasonStartingDeadlineExceeded, tooLateMessage), look: LookForPod{},
		},
		"late, beyond the starting deadline, because it was refused": {
			at: newAt(func(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = ptr.To[int64](3) }, withStatus(v1alpha1.AtStatus{
				Conditions: []metav1.Condition{condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, earlier, v1alpha1.ReasonPodRefused, "exceeded quota")},
			})), now: now,
			want: failed(v1alpha1.AtStatus{}, v1alpha1.ReasonStartingDeadlineExceeded, tooLateMessage+" It was blocked: exceeded quota"), look: LookForPod{},
		},
		"the shortest starting deadline allows less than a second": {
			at: newAt(func(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = ptr.To[int64](0) }), now: due.Add(time.Second - 1),
			want: Decision{Action: CreatePod{Due: due}, Delay: time.Minute},
		},
		"the longest starting deadline": {
			at:  newAt(withSchedule("0001-01-01T00:00:00Z"), func(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = ptr.To[int64](math.MaxInt64) }),
			now: now, want: Decision{Action: CreatePod{Due: time.Time{}}, Delay: time.Minute},
		},
		"beyond the starting deadline, with a Pod: it continues": {
			at: newAt(withStatus(running(corev1.PodPending)), func(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = ptr.To[int64](0) }), pod: newPod(corev1.PodPending), now: now,
			want: Decision{Delay: time.Minute},
		},
		"running, within the active deadline": {
			at: newAt(withStatus(running(corev1.PodRunning)), withActiveDeadline(10)), pod: newPod(corev1.PodRunning), now: created.Add(9500 * time.Millisecond),
			want: Decision{Delay: 500 * time.Millisecond},
		},
		"running, the active deadline has passed: reported first": {
			at: newAt(withStatus(running(corev1.PodRunning)), withActiveDeadline(10)), pod: newPod(corev1.PodRunning), now: created.Add(10 * time.Second),
			want: Decision{Status: ptr.To(running(corev1.PodRunning, failureTargetCondition(created.Add(10*time.Second), deadlineMessage)))},
		},
		"running, the active deadline has passed while an image cannot be pulled: both reported": {
			at:  newAt(withStatus(running(corev1.PodPending, imagePullFailed(earlier, "no such image"))), withActiveDeadline(10)),
			pod: newPod(corev1.PodPending, waiting("ErrImagePull", "")), now: created.Add(10 * time.Second),
			want: Decision{
				Status: ptr.To(running(corev1.PodPending, imagePullFailed(earlier, "no such image"),
					failureTargetCondition(created.Add(10*time.Second), deadlineMessage+" It was blocked: no such image"))),
			},
		},
		"running, the active deadline has passed, and is reported": {
			at: newAt(withStatus(running(corev1.PodRunning, stopping)), withActiveDeadline(10)), pod: newPod(corev1.PodRunning), now: now,
			want: Decision{Action: DeletePod{Pod: newPod(corev1.PodRunning)}, Delay: time.Minute},
		},
		"running, the active deadline has passed, but the status goes first": {
			at: newAt(withActiveDeadline(10)), pod: newPod(corev1.PodPending), now: created.Add(time.Hour),
			want: Decision{Status: ptr.To(running(corev1.PodPending)), Events: []Event{createdEvent}},
		},
		"running, the longest active deadline": {
			at: newAt(withStatus(running(corev1.PodRunning)), withActiveDeadline(math.MaxInt64)), pod: newPod(corev1.PodRunning), now: now,
			want: Decision{Delay: time.Minute},
		},
		"being stopped, the Pod not ended yet": {
			at: newAt(withStatus(running(corev1.PodRunning, stopping)), withActiveDeadline(10)), pod: newPod(corev1.PodRunning, deleted), now: now,
			want: Decision{Delay: time.Minute},
		},
		"being stopped, and failed because of it": {
			at: newAt(withStatus(running(corev1.PodRunning, stopping)), withActiveDeadline(10), withBackoffLimit(5)), now: now,
			pod: newPod(corev1.PodFailed, deleted, terminated(137, "")),
			want: failed(running(corev1.PodFailed, stopping), v1alpha1.ReasonDeadlineExceeded, deadlineMessage, func(status *v1alpha1.AtStatus) {
				status.Failed, status.ExitCode, status.CompletionTime = 1, ptr.To[int32](137), &metav1.Time{Time: endTime}
			}),
		},
		"being stopped, and succeeded; the limit has changed since": {
			at: newAt(withStatus(running(corev1.PodRunning, stopping))), now: now,
			pod: newPod(corev1.PodSucceeded, deleted, terminated(0, "")),
			want: failed(running(corev1.PodSucceeded, stopping), v1alpha1.ReasonDeadlineExceeded, deadlineMessage, func(status *v1alpha1.AtStatus) {
				status.Failed, status.ExitCode, status.CompletionTime = 1, ptr.To[int32](0), &metav1.Time{Time: endTime}
			}),
		},
		"being stopped, and gone": {
			at: newAt(withStatus(running(corev1.PodRunning, stopping)), withActiveDeadline(10)), now: now,
			want: failed(running(corev1.PodRunning, stopping), v1alpha1.ReasonDeadlineExceeded, deadlineMessage, attempts(1)), look: LookForPod{},
		},
		"about to be stopped, but succeeded first": {
			at: newAt(withStatus(running(corev1.PodRunning, stopping)), withActiveDeadline(10)), now: now,
			pod: newPod(corev1.PodSucceeded), want: complete(),
		},
		"about to be stopped, but failed first: no further attempt": {
			at: newAt(withStatus(running(corev1.PodRunning, stopping)), withActiveDeadline(10), withBackoffLimit(5)), now: now,
			pod:  newPod(corev1.PodFailed),
			want: failed(running(corev1.PodFailed), v1alpha1.ReasonPodFailed, "Pod example-at-pod failed", attempts(1)),
		},
		"deleted by a user before the active deadline, ended after it": {
			at: newAt(withStatus(running(corev1.PodRunning)), withActiveDeadline(2)), now: now,
			pod:  newPod(corev1.PodFailed, deleted),
			want: failed(running(corev1.PodFailed), v1alpha1.ReasonPodDeleted, "Pod example-at-pod was deleted before it ended.", attempts(1)),
		},
		"gone with unknown outcome, after the active deadline": {
			at: newAt(withStatus(running(corev1.PodRunning)), withActiveDeadline(2)), now: now,
			want: failed(running(corev1.PodRunning), v1alpha1.ReasonPodLost, lostMessage, attempts(1)), look: LookForPod{},
		},
		"ended before the active deadline, seen after it": {
			at: newAt(withStatus(running(corev1.PodRunning)), withActiveDeadline(1)), now: now,
			pod: newPod(corev1.PodSucceeded), want: complete(),
		},
		"between two attempts, the active deadline comes before the next": {
			at: newAt(withStatus(*nextAttempt(1, now.Add(10*time.Second))), withBackoffLimit(2), withActiveDeadline(10)), now: now,
			want: Decision{Delay: 6*time.Second + 10*time.Millisecond},
		},
		"between two attempts, suspended, before the active deadline": {
			at: newAt(withStatus(*nextAttempt(1, now)), withSuspendedRun, withBackoffLimit(2), withActiveDeadline(10)), now: now,
			want: Decision{Delay: 6*time.Second + 10*time.Millisecond},
		},
		"between two attempts, the active deadline has passed": {
			at: newAt(withStatus(*nextAttempt(1, now.Add(10*time.Second))), withBackoffLimit(2), withActiveDeadline(10)), now: created.Add(10 * time.Second),
			look: LookForPod{},
			want: failed(*nextAttempt(1, now.Add(10*time.Second)), v1alpha1.ReasonDeadlineExceeded, deadlineMessage, func(status *v1alpha1.AtStatus) {
				status.NextAttemptTime = nil
				status.CompletionTime.Time = created.Add(10 * time.Second)
				status.Conditions[0].LastTransitionTime.Time = created.Add(10 * time.Second)
			}),
		},
		"the end, with a time to live: checked again": {
			at: newAt(withStatus(running(corev1.PodRunning)), withTTL(60)), pod: newPod(corev1.PodSucceeded), now: now,
			want: complete(),
		},
		"done, its time to live not over": {
			at: newAt(withDone(v1alpha1.ConditionFailed, now), withTTL(30)), now: now.Add(29 * time.Second),
			want: Decision{Delay: time.Second},
		},
		"done, its time to live far from over": {
			at: newAt(withDone(v1alpha1.ConditionComplete, now), withTTL(math.MaxInt32)), now: now,
			want: Decision{Delay: math.MaxInt32 * time.Second},
		},
		"done, its time to live over": {
			at: newAt(withDone(v1alpha1.ConditionComplete, now), withTTL(30)), now: now.Add(30 * time.Second),
			want: Decision{Action: DeleteAt{}},
		},
		"done, no time to live: kept while its Pods are": {
			at: newAt(withDone(v1alpha1.ConditionComplete, now), withTTL(0)), now: now,
			want: Decision{Delay: 10500 * time.Millisecond},
		},
		"done, no time to live, its Pods no longer kept": {
			at: newAt(withDone(v1alpha1.ConditionComplete, now), withTTL(0)), now: now.Add(10500 * time.Millisecond),
			want: Decision{Action: DeleteAt{}},
		},
		"done, its time to live over, but it is being deleted": {
			at:  newAt(withDone(v1alpha1.ConditionComplete, now), withTTL(0), func(at *v1alpha1.At) { at.DeletionTimestamp = &metav1.Time{Time: now} }),
			now: now, want: Decision{},
		},
		"done without a condition, which no controller writes: kept": {
			at: newAt(withStatus(v1alpha1.AtStatus{Phase: v1alpha1.PhaseDone}), withTTL(0)), now: now, want: Decision{},
		},
		"an old At from a cache, the Pod of a later attempt exists: kept": {
			at: newAt(withStatus(running(corev1.PodRunning)), withBackoffLimit(2)), pod: newPod(corev1.PodRunning, second), now: now,
			want: failed(running(corev1.PodRunning), v1alpha1.ReasonPodLost, lostMessage, attempts(1)), look: LookForPod{},
		},
		"the Pod is force-deleted, its node may still report: waited for": {
			at:  newAt(withStatus(running(corev1.PodRunning))),
			pod: newPod(corev1.PodRunning, deletedByForce(now.Add(-time.Minute+1))), now: now,
			want: Decision{Delay: 1},
		},
		"the Pod is force-deleted, in an hour by another clock: checked anyway": {
			at:  newAt(withStatus(running(corev1.PodRunning))),
			pod: newPod(corev1.PodRunning, deletedByForce(now.Add(time.Hour))), now: now,
			want: Decision{Delay: time.Minute},
		},
		"the Pod is force-deleted, and its node does not report: lost": {
			at:  newAt(withStatus(running(corev1.PodRunning)), withBackoffLimit(5)),
			pod: newPod(corev1.PodRunning, deletedByForce(now.Add(-time.Minute))), now: now,
			look: LookForPod{},
			want: failed(running(corev1.PodRunning), v1alpha1.ReasonPodLost,
				"Pod example-at-pod was force-deleted, and its node has not reported how it ended; the command will not run again.", attempts(1)),
		},
		"the Pod is force-deleted, and its node reports only an earlier try: lost": {
			at: newAt(withStatus(running(corev1.PodRunning))),
			pod: newPod(corev1.PodRunning, deletedByForce(earlier), func(pod *corev1.Pod) {
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
					Name:                 "command",
					State:                corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
					LastTerminationState: exited("", 4, "", "").State,
				}}
			}), now: now,
			look: LookForPod{},
			want: failed(running(corev1.PodRunning), v1alpha1.ReasonPodLost,
				"Pod example-at-pod was force-deleted, and its node has not reported how it ended; the command will not run again.", attempts(1)),
		},
		"the Pod is force-deleted, its node does not report, and it was being stopped": {
			at:  newAt(withStatus(running(corev1.PodRunning, stopping)), withActiveDeadline(10)),
			pod: newPod(corev1.PodRunning, deletedByForce(earlier)), now: now,
			look: LookForPod{},
			want: failed(running(corev1.PodRunning, stopping), v1alpha1.ReasonDeadlineExceeded, deadlineMessage, attempts(1)),
		},
		"the Pod is force-deleted, and its node has reported: counted": {
			at:  newAt(withStatus(running(corev1.PodRunning))),
			pod: newPod(corev1.PodSucceeded, deletedByForce(earlier)), now: now,
			want: complete(),
		},
		"the Pod is deleted before it has a node: it has ended": {
			at:  newAt(withStatus(running(corev1.PodPending))),
			pod: newPod(corev1.PodPending, deleted, func(pod *corev1.Pod) { pod.Spec.NodeName = "" }), now: now,
			want: failed(running(corev1.PodPending), v1alpha1.ReasonPodDeleted, "Pod example-at-pod was deleted before it had a node: the command did not run.", attempts(1)),
		},
		"done, the Pod gone": {
			at:  newAt(withStatus(v1alpha1.AtStatus{Phase: v1alpha1.PhaseDone})),
			now: now, want: Decision{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			explained(&tc.at.Status)
			explained(tc.want.Status)
			before := tc.at.DeepCopy()
			world := World{At: tc.at, Pods: podsOf(tc.pod), AtIsLive: true, AtAsOf: tc.now, PodIsLive: true, Forecast: &Forecast{}, Now: tc.now}
			if diff := cmp.Diff(tc.want, Decide(world), equate); diff != "" {
				t.Errorf("Decide (-want +got):\n%s", diff)
			}
			world.AtIsLive, world.AtAsOf, world.PodIsLive = false, time.Time{}, false
			cached := tc.want
			if _, creates := tc.want.Action.(CreatePod); creates {
				cached = Decision{Action: LookForAt{}}
			} else if tc.look != nil {
				cached = Decision{Action: tc.look}
			}
			if diff := cmp.Diff(cached, Decide(world), equate); diff != "" {
				t.Errorf("Decide on caches (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tc.at); diff != "" {
				t.Errorf("Decide changed its At:\n%s", diff)
			}
		})
	}
}

// TestFresh checks when an At from a cache is good enough to create its Pod.
func TestFresh(t *testing.T) {
	newAt := func(change func(*v1alpha1.At)) *v1alpha1.At {
		at := newAt()
		at.Generation = 1
		change(at)
		return at
	}
	at := newAt(func(*v1alpha1.At) {})
	edited := newAt(func(at *v1alpha1.At) { at.Generation = 2 })
	long := newAt(func(at *v1alpha1.At) { at.Spec.Command = strings.Repeat("x", maxKeptCommand+1) })
	template := newAt(func(at *v1alpha1.At) { at.Spec.Template = &corev1.PodTemplateSpec{} })
	create, look := CreatePod{Due: due}, LookForAt{}
	for name, tc := range map[string]struct {
		world World
		want  Action
	}{
		"unknown":         {World{At: at}, look},
		"new":             {World{At: at, AtAsOf: due}, create},
		"almost old":      {World{At: at, AtAsOf: due.Add(1 - staleness.FreshFor)}, create},
		"old":             {World{At: at, AtAsOf: due.Add(-staleness.FreshFor)}, look},
		"from the future": {World{At: at, AtAsOf: due.Add(1)}, look},
		"long command":    {World{At: long, AtAsOf: due}, look},
		"template":        {World{At: template, AtAsOf: due}, look},
		"edited":          {World{At: edited, AtAsOf: due}, look},
		"read":            {World{At: edited, AtIsLive: true, AtAsOf: due.Add(1 - staleness.FreshFor)}, create},
		"read long ago":   {World{At: edited, AtIsLive: true, AtAsOf: due.Add(-staleness.FreshFor)}, look},
	} {
		t.Run(name, func(t *testing.T) {
			tc.world.At, tc.world.Now = KeepAt(tc.world.At), due
			if got := Decide(tc.world).Action; got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	quota := apierrors.NewForbidden(pods, "example-at-pod", errors.New("exceeded quota: pods, requested: pods=1, used: pods=3, limited: pods=3"))
	terminating := apierrors.NewForbidden(pods, "example-at-pod", errors.New("namespace default is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "example-at-pod", field.ErrorList{field.Required(field.NewPath("spec", "containers"), "")})
	// The API server's error for a ValidatingAdmissionPolicy without its own reason.
	policy := apierrors.NewForbidden(pods, "example-at-pod", errors.New("ValidatingAdmissionPolicy 'images' denied request"))
	policy.ErrStatus.Reason, policy.ErrStatus.Code = metav1.StatusReasonInvalid, 422
	policy.ErrStatus.Details.Causes = []metav1.StatusCause{{Message: "ValidatingAdmissionPolicy 'images' denied request"}}
	// The API server's error for a webhook's denial: pkg/admission/plugin/webhook/errors.
	webhook := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "example-at-pod", field.ErrorList{field.Invalid(field.NewPath("spec", "hostNetwork"), true, "not here")})
	webhook.ErrStatus.Message = `admission webhook "policy.example.com" denied the request: ` + webhook.ErrStatus.Message
	internal := apierrors.NewInternalError(errors.New(`failed calling webhook "policy.example.com": connection refused`))
	tooLarge := apierrors.NewRequestEntityTooLargeError("limit is 3145728")
	long := apierrors.NewBadRequest(strings.Repeat("🌍", 2000))
	busy := apierrors.NewTooManyRequests("busy", 1)
	badRequest := apierrors.NewBadRequest("admission webhook says no")
	noReason := &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 400, Message: `admission webhook "policy.example.com" denied the request: no`}}

	refused := func(transition time.Time, message string) *v1alpha1.AtStatus {
		return &v1alpha1.AtStatus{
			Phase: v1alpha1.PhasePending, ObservedGeneration: 2,
			Conditions: []metav1.Condition{condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, transition, v1alpha1.ReasonPodRefused, message)},
		}
	}

	for name, tc := range map[string]struct {
		at      *v1alpha1.At
		err     error
		lasting bool
		want    Decision
	}{
		"quota: reported and retried": {
			at: newAt(), err: quota,
			want: Decision{Status: refused(now, quota.Error()), Events: []Event{warning(v1alpha1.ReasonPodRefused, quota.Error())}, Retry: answer.ErrBlocked},
		},
		"quota again: retried, not reported again": {
			at: newAt(withStatus(*refused(earlier, quota.Error()))), err: quota,
			want: Decision{Retry: answer.ErrBlocked},
		},
		"refused in other words: the condition changes, no further event": {
			at: newAt(withStatus(*refused(earlier, "used: pods=4"))), err: quota,
			want: Decision{Status: refused(earlier, quota.Error()), Retry: answer.ErrBlocked},
		},
		"a webhook's bad request": {
			at: newAt(), err: badRequest,
			want: Decision{Status: refused(now, badRequest.Error()), Events: []Event{warning(v1alpha1.ReasonPodRefused, badRequest.Error())}, Retry: answer.ErrBlocked},
		},
		"a webhook's denial without a reason": {
			at: newAt(), err: noReason,
			want: Decision{Status: refused(now, noReason.Error()), Events: []Event{warning(v1alpha1.ReasonPodRefused, noReason.Error())}, Retry: answer.ErrBlocked},
		},
		"a policy's denial": {
			at: newAt(), err: policy,
			want: Decision{Status: refused(now, policy.Error()), Events: []Event{warning(v1alpha1.ReasonPodRefused, policy.Error())}, Retry: answer.ErrBlocked},
		},
		"a webhook's denial, with causes like the API server's": {
			at: newAt(), err: webhook,
			want: Decision{Status: refused(now, webhook.Error()), Events: []Event{warning(v1alpha1.ReasonPodRefused, webhook.Error())}, Retry: answer.ErrBlocked},
		},
		"a webhook is down": {
			at: newAt(), err: internal,
			want: Decision{Status: refused(now, internal.Error()), Events: []Event{warning(v1alpha1.ReasonPodRefused, internal.Error())}, Retry: answer.ErrBlocked},
		},
		"with a starting deadline: decided again then, regardless of the back-off": {
			at:   newAt(withStatus(*refused(earlier, quota.Error())), func(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = ptr.To[int64](30) }),
			err:  quota,
			want: Decision{Retry: answer.ErrBlocked, Delay: 25 * time.Second},
		},
		"with an active deadline, for a further attempt: likewise": {
			at: newAt(withStatus(func() v1alpha1.AtStatus {
				status := *nextAttempt(1, now)
				status.Conditions = refused(earlier, quota.Error()).Conditions
				return status
			}()), withBackoffLimit(5), withActiveDeadline(30)),
			err:  quota,
			want: Decision{Retry: answer.ErrBlocked, Delay: 24*time.Second + 10*time.Millisecond},
		},
		"too large a Pod": {
			at: newAt(), err: tooLarge,
			want: Decision{Status: refused(now, tooLarge.Error()), Events: []Event{warning(v1alpha1.ReasonPodRefused, tooLarge.Error())}, Retry: answer.ErrBlocked},
		},
		"a refusal longer than a condition's message can be": {
			at: newAt(), err: long,
			want: Decision{Status: refused(now, strings.Repeat("🌍", 1024)+"…"), Events: []Event{warning(v1alpha1.ReasonPodRefused, strings.Repeat("🌍", 1024)+"…")}, Retry: answer.ErrBlocked},
		},
		"invalid, after it was refused: the refusal no longer matters": {
			at: newAt(withStatus(*refused(earlier, quota.Error()))), err: invalid,
			want: failed(v1alpha1.AtStatus{}, v1alpha1.ReasonInvalidPod, invalid.Error()),
		},
		"the namespace is being deleted: nothing to do": {
			at: newAt(), err: terminating, want: Decision{},
		},
		"invalid: the end": {
			at: newAt(), err: invalid,
			want: failed(v1alpha1.AtStatus{}, v1alpha1.ReasonInvalidPod, invalid.Error()),
		},
		"invalid, for a further attempt: the end, with no further failure counted": {
			at: newAt(withStatus(*nextAttempt(1, now)), withBackoffLimit(5)), err: invalid,
			want: failed(*nextAttempt(1, now), v1alpha1.ReasonInvalidPod, invalid.Error(), func(status *v1alpha1.AtStatus) {
				status.NextAttemptTime = nil
			}),
		},
		"quota, for a further attempt: reported and retried": {
			at: newAt(withStatus(*nextAttempt(1, now)), withBackoffLimit(5)), err: quota,
			want: Decision{
				Status: func() *v1alpha1.AtStatus {
					status := nextAttempt(1, now)
					status.Conditions = refused(now, quota.Error()).Conditions
					return status
				}(),
				Events: []Event{warning(v1alpha1.ReasonPodRefused, quota.Error())}, Retry: answer.ErrBlocked,
			},
		},
		"overloaded for a minute: reported and retried as before": {
			at: newAt(), err: busy, lasting: true,
			want: Decision{
				Status: &v1alpha1.AtStatus{
					Phase: v1alpha1.PhasePending, ObservedGeneration: 2,
					Conditions: []metav1.Condition{condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, now, v1alpha1.ReasonPodNotCreated, busy.Error())},
				},
				Events: []Event{warning(v1alpha1.ReasonPodNotCreated, busy.Error())}, Retry: errAny,
			},
		},
		"the quota's count changed in the meantime: only retried": {
			at: newAt(), err: apierrors.NewConflict(schema.GroupResource{Resource: "resourcequotas"}, "quota", errors.New("modified")), want: Decision{Retry: errAny},
		},
		"etcd is unavailable: only retried": {
			at: newAt(), err: &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 500, Message: "etcdserver: leader changed"}}, want: Decision{Retry: errAny},
		},
		"overloaded: only retried":           {at: newAt(), err: apierrors.NewTooManyRequests("busy", 1), want: Decision{Retry: errAny}},
		"the connection broke: only retried": {at: newAt(), err: errors.New("connection reset by peer"), want: Decision{Retry: errAny}},
	} {
		t.Run(name, func(t *testing.T) {
			explained(&tc.at.Status)
			explained(tc.want.Status)
			if diff := cmp.Diff(tc.want, Refused(World{At: tc.at, AtIsLive: true, Now: now}, tc.err, tc.lasting), equate); diff != "" {
				t.Errorf("Refused (-want +got):\n%s", diff)
			}
		})
	}
}

func BenchmarkDecide(b *testing.B) {
	for name, bc := range map[string]struct {
		at  *v1alpha1.At
		pod *corev1.Pod
		now time.Time
	}{
		"pending": {at: newAt(), now: earlier},
		"pending in a time zone": {at: newAt(func(at *v1alpha1.At) {
			at.Spec.Schedule, at.Spec.TimeZone = "2026-12-24T11:12:00", ptr.To("Europe/Berlin")
		}), now: earlier},
		"due":     {at: newAt(), now: now},
		"running": {at: newAt(withStatus(running(corev1.PodRunning))), pod: newPod(corev1.PodRunning), now: now},
		"ended":   {at: newAt(withStatus(running(corev1.PodRunning))), pod: newPod(corev1.PodSucceeded, terminated(0, "")), now: now},
	} {
		b.Run(name, func(b *testing.B) {
			pods := podsOf(bc.pod)
			b.ReportAllocs()
			for b.Loop() {
				Decide(World{At: bc.at, Pods: pods, Now: bc.now})
			}
		})
	}
}
