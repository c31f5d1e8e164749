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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

const (
	atUID  types.UID = "at-uid"
	podUID types.UID = "pod-uid"
)

var (
	due     = time.Date(2026, 12, 24, 10, 12, 0, 0, time.UTC)
	created = due.Add(10 * time.Millisecond)
	ended   = due.Add(3 * time.Second)
	now     = due.Add(4 * time.Second)
	earlier = due.Add(-time.Hour)
)

func newAt(mutate ...func(*v1alpha1.At)) *v1alpha1.At {
	at := &v1alpha1.At{
		ObjectMeta: metav1.ObjectMeta{Name: "example-at", Namespace: "default", UID: atUID, Generation: 2},
		Spec:       v1alpha1.AtSpec{Schedule: "2026-12-24T10:12:00Z", Command: "echo YAY"},
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

func newPod(phase corev1.PodPhase, mutate ...func(*corev1.Pod)) *corev1.Pod {
	pod := NewPod(newAt(), "image")
	pod.UID = podUID
	pod.CreationTimestamp = metav1.Time{Time: created}
	pod.Status.Phase = phase
	for _, m := range mutate {
		m(pod)
	}
	return pod
}

func ownedBy(owners ...metav1.OwnerReference) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.OwnerReferences = owners }
}

func terminated(exitCode int32, message string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name:  "sidecar",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 99}},
		}, {
			Name: commandContainer,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: exitCode, Message: message, FinishedAt: metav1.Time{Time: ended},
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
		Pod:                &v1alpha1.AtPod{Name: "example-at-pod", UID: podUID, Phase: phase},
		ObservedGeneration: 2,
		Conditions:         conditions,
	}
}

func done(from v1alpha1.AtStatus, mutate func(*v1alpha1.AtStatus)) *v1alpha1.AtStatus {
	from.Phase = v1alpha1.PhaseDone
	from.ObservedGeneration = 2
	mutate(&from)
	return &from
}

func condition(conditionType string, status metav1.ConditionStatus, at time.Time, reason, message string) metav1.Condition {
	return metav1.Condition{
		Type: conditionType, Status: status, ObservedGeneration: 2,
		LastTransitionTime: metav1.Time{Time: at}, Reason: reason, Message: message,
	}
}

func warning(reason, message string) *Event {
	return &Event{Type: corev1.EventTypeWarning, Reason: reason, Message: message}
}

func withSuspended(at *v1alpha1.At) {
	at.Spec.Suspend = ptr.To(true)
	at.Status = v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, ObservedGeneration: 2, Conditions: []metav1.Condition{suspended(earlier)}}
}

func suspended(since time.Time) metav1.Condition {
	return condition(v1alpha1.ConditionSuspended, metav1.ConditionTrue, since, v1alpha1.ReasonSuspended, "The At is held: spec.suspend is true.")
}

func resumed(since time.Time) metav1.Condition {
	return condition(v1alpha1.ConditionSuspended, metav1.ConditionFalse, since, v1alpha1.ReasonResumed, "The At is held no more.")
}

func withActiveDeadline(seconds int64) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) { at.Spec.ActiveDeadlineSeconds = &seconds }
}

func withTTL(seconds int32) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) { at.Spec.TTLSecondsAfterFinished = &seconds }
}

func withDone(conditionType string, since time.Time) func(*v1alpha1.At) {
	return withStatus(v1alpha1.AtStatus{
		Phase:      v1alpha1.PhaseDone,
		Conditions: []metav1.Condition{runnableCondition, condition(conditionType, metav1.ConditionTrue, since, "Any", "")},
	})
}

var runnableCondition = condition(v1alpha1.ConditionReady, metav1.ConditionTrue, earlier, v1alpha1.ReasonRunnable, runnableMessage)

// deletedAt is a Pod that somebody asked to delete at the given time.
func deletedAt(asked time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.DeletionTimestamp = &metav1.Time{Time: asked.Add(30 * time.Second)}
		pod.DeletionGracePeriodSeconds = ptr.To[int64](30)
	}
}

func deadlineExceeded(phase corev1.PodPhase, exitCode *int32, completion time.Time) Decision {
	const message = "The run took longer than spec.activeDeadlineSeconds allows, which is 1, and was stopped."
	return Decision{
		Status: done(running(phase), func(status *v1alpha1.AtStatus) {
			status.Reason = v1alpha1.ReasonDeadlineExceeded
			status.ExitCode = exitCode
			status.Message = message
			status.CompletionTime = &metav1.Time{Time: completion}
			status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionFailed, metav1.ConditionTrue, now, v1alpha1.ReasonDeadlineExceeded, message)}
		}),
		Event: warning(v1alpha1.ReasonDeadlineExceeded, message),
	}
}

const (
	completedMessage = "The command ended with exit code 0."
	overdueMessage   = "Pod example-at-pod of an earlier At of this name should be gone and is not: look at it with kubectl describe pod example-at-pod."
	lostMessage      = "Pod example-at-pod was deleted before its end was seen; the command is not run again."
	conflictMessage  = "Pod example-at-pod exists and is not this At's: delete or rename that Pod, or give the At another name."
	invalidMessage   = `spec.schedule "tomorrow" cannot be read: write an instant as RFC 3339 does, such as 2026-12-24T10:12:00Z`
	runnableMessage  = "What stood in the way is gone."
)

var (
	// errAny stands for an error that is not ErrBlocked.
	errAny = errors.New("any")
	// equateErrors compares errors by what they mean to the worker.
	equateErrors = cmp.Comparer(func(a, b error) bool {
		return (a == nil) == (b == nil) && errors.Is(a, ErrBlocked) == errors.Is(b, ErrBlocked)
	})
)

func TestDecide(t *testing.T) {
	invalidSchedule := condition(v1alpha1.ConditionReady, metav1.ConditionFalse, earlier, v1alpha1.ReasonInvalidSchedule, invalidMessage)
	conflict := condition(v1alpha1.ConditionReady, metav1.ConditionFalse, earlier, v1alpha1.ReasonPodNameConflict, conflictMessage)
	runnable := func(at time.Time) metav1.Condition {
		return condition(v1alpha1.ConditionReady, metav1.ConditionTrue, at, v1alpha1.ReasonRunnable, runnableMessage)
	}
	stranger := metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "example-at", UID: "job-uid", Controller: ptr.To(true)}
	earlierAt := metav1.OwnerReference{APIVersion: "cnat.programming-kubernetes.info/v1alpha1", Kind: "At", Name: "example-at", UID: "earlier-uid", Controller: ptr.To(true)}
	notController := metav1.OwnerReference{APIVersion: "cnat.programming-kubernetes.info/v1alpha1", Kind: "At", Name: "example-at", UID: atUID}

	for name, tc := range map[string]struct {
		// world
		at  *v1alpha1.At
		pod *corev1.Pod
		now time.Time
		// expectations
		want Decision
	}{
		"far from due: the clock is looked at again in a minute": {
			at: newAt(), now: earlier,
			want: Decision{Delay: time.Minute},
		},
		"less than a minute from due: exactly then": {
			at: newAt(), now: due.Add(-1500 * time.Millisecond),
			want: Decision{Delay: 1500 * time.Millisecond},
		},
		"a nanosecond before due: not yet": {
			at: newAt(), now: due.Add(-1),
			want: Decision{Delay: 1},
		},
		"exactly due": {
			at: newAt(), now: due,
			want: Decision{CreatePod: true},
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
			want: Decision{CreatePod: true},
		},
		"as far as the calendar goes": {
			at: newAt(withSchedule("9999-12-31T23:59:59Z")), now: now,
			want: Decision{Delay: time.Minute},
		},
		"being deleted: nothing starts": {
			at:  newAt(func(at *v1alpha1.At) { at.DeletionTimestamp = &metav1.Time{Time: earlier} }),
			now: now, want: Decision{},
		},
		"unreadable schedule: told": {
			at: newAt(withSchedule("tomorrow")), now: now,
			want: Decision{
				Status: &v1alpha1.AtStatus{
					Phase: v1alpha1.PhasePending, ObservedGeneration: 2,
					Conditions: []metav1.Condition{condition(v1alpha1.ConditionReady, metav1.ConditionFalse, now, v1alpha1.ReasonInvalidSchedule, invalidMessage)},
				},
				Event: warning(v1alpha1.ReasonInvalidSchedule, invalidMessage),
			},
		},
		"unreadable schedule: told once": {
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
					Phase: v1alpha1.PhasePending, ObservedGeneration: 2, Conditions: []metav1.Condition{runnable(earlier)},
				},
				Delay: time.Minute,
			},
		},
		"the name is taken by a stranger, not due: no concern yet": {
			at: newAt(), pod: newPod(corev1.PodRunning, ownedBy()), now: earlier,
			want: Decision{Delay: time.Minute},
		},
		"the name is taken by a Pod without owner": {
			at: newAt(), pod: newPod(corev1.PodSucceeded, ownedBy()), now: now,
			want: Decision{
				Status: &v1alpha1.AtStatus{
					Phase: v1alpha1.PhasePending, ObservedGeneration: 2,
					Conditions: []metav1.Condition{condition(v1alpha1.ConditionReady, metav1.ConditionFalse, now, v1alpha1.ReasonPodNameConflict, conflictMessage)},
				},
				Event: warning(v1alpha1.ReasonPodNameConflict, conflictMessage),
				Retry: ErrBlocked,
			},
		},
		"the name is taken by a Pod of another kind, told before": {
			at: newAt(withStatus(v1alpha1.AtStatus{
				Phase: v1alpha1.PhasePending, ObservedGeneration: 2, Conditions: []metav1.Condition{conflict},
			})),
			pod: newPod(corev1.PodSucceeded, ownedBy(stranger)), now: now,
			want: Decision{Retry: ErrBlocked},
		},
		"an owner that is not the controller does not make it ours": {
			at: newAt(withStatus(v1alpha1.AtStatus{
				Phase: v1alpha1.PhasePending, ObservedGeneration: 2, Conditions: []metav1.Condition{conflict},
			})),
			pod: newPod(corev1.PodSucceeded, ownedBy(notController)), now: now,
			want: Decision{Retry: ErrBlocked},
		},
		"the Pod of an earlier At of this name: waited for, no word of it": {
			at: newAt(), pod: newPod(corev1.PodSucceeded, ownedBy(earlierAt)), now: now,
			want: Decision{Retry: ErrBlocked},
		},
		"the Pod of an earlier At of this name is about to go: waited for, no word of it": {
			at: newAt(), now: now,
			pod: newPod(corev1.PodRunning, ownedBy(earlierAt), func(pod *corev1.Pod) {
				pod.DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Minute + 1)}
			}),
			want: Decision{Retry: ErrBlocked},
		},
		"the Pod of an earlier At of this name is overdue to go: told": {
			at: newAt(), now: now,
			pod: newPod(corev1.PodRunning, ownedBy(earlierAt), func(pod *corev1.Pod) {
				pod.DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Minute)}
			}),
			want: Decision{
				Status: &v1alpha1.AtStatus{
					Phase: v1alpha1.PhasePending, ObservedGeneration: 2,
					Conditions: []metav1.Condition{condition(v1alpha1.ConditionReady, metav1.ConditionFalse, now, v1alpha1.ReasonPodNameConflict, overdueMessage)},
				},
				Event: warning(v1alpha1.ReasonPodNameConflict, overdueMessage),
				Retry: ErrBlocked,
			},
		},
		"the Pod is seen": {
			at: newAt(), pod: newPod(corev1.PodPending), now: now,
			want: Decision{Status: ptr.To(running(corev1.PodPending)), Delay: time.Minute},
		},
		"the Pod is seen, though the schedule was moved since": {
			at: newAt(withSchedule("2027-12-24T10:12:00Z")), pod: newPod(corev1.PodPending), now: now,
			want: Decision{Status: ptr.To(running(corev1.PodPending)), Delay: time.Minute},
		},
		"the Pod is seen, the zero time is not written": {
			at: newAt(withSchedule("0001-01-01T00:00:00Z")), now: now,
			pod: newPod(corev1.PodPending, func(pod *corev1.Pod) {
				pod.Annotations = map[string]string{v1alpha1.AnnotationScheduledTime: "0001-01-01T00:00:00Z"}
			}),
			want: Decision{Status: func() *v1alpha1.AtStatus {
				status := running(corev1.PodPending)
				status.ScheduledTime = nil
				return &status
			}(), Delay: time.Minute},
		},
		"the Pod is seen, what stood in the way is gone": {
			at: newAt(withStatus(v1alpha1.AtStatus{
				Phase: v1alpha1.PhasePending, ObservedGeneration: 2, Conditions: []metav1.Condition{conflict},
			})),
			pod: newPod(corev1.PodPending), now: now,
			want: Decision{Status: ptr.To(running(corev1.PodPending, runnable(created))), Delay: time.Minute},
		},
		"the Pod's phase changes: mirrored": {
			at: newAt(withStatus(running(corev1.PodPending))),
			pod: newPod(corev1.PodRunning, func(pod *corev1.Pod) {
				pod.Spec.NodeName = "node"
				pod.Status.PodIP, pod.Status.HostIP = "10.0.0.2", "192.168.0.1"
				pod.Status.StartTime = &metav1.Time{Time: due}
			}), now: now,
			want: Decision{Status: func() *v1alpha1.AtStatus {
				status := running(corev1.PodRunning)
				status.Pod.NodeName, status.Pod.PodIP, status.Pod.HostIP = "node", "10.0.0.2", "192.168.0.1"
				status.Pod.StartTime = &metav1.Time{Time: due}
				return &status
			}(), Delay: time.Minute},
		},
		"the Pod changes in another way: not written": {
			at:  newAt(withStatus(running(corev1.PodPending))),
			pod: newPod(corev1.PodPending, func(pod *corev1.Pod) { pod.Spec.NodeName = "node" }), now: now,
			want: Decision{Delay: time.Minute},
		},
		"the Pod is being deleted: its end is waited for": {
			at: newAt(withStatus(running(corev1.PodRunning))),
			pod: newPod(corev1.PodRunning, func(pod *corev1.Pod) {
				pod.DeletionTimestamp = &metav1.Time{Time: now}
			}), now: now,
			want: Decision{Delay: time.Minute},
		},
		"success": {
			at: newAt(withStatus(running(corev1.PodRunning))), pod: newPod(corev1.PodSucceeded, terminated(0, "written to the termination log")), now: now,
			want: Decision{
				Status: done(running(corev1.PodSucceeded), func(status *v1alpha1.AtStatus) {
					status.Reason = v1alpha1.ReasonCompleted
					status.ExitCode = ptr.To[int32](0)
					status.Message = "written to the termination log"
					status.CompletionTime = &metav1.Time{Time: ended}
					status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionComplete, metav1.ConditionTrue, now, v1alpha1.ReasonCompleted, completedMessage)}
				}),
				Event: &Event{Type: corev1.EventTypeNormal, Reason: v1alpha1.ReasonCompleted, Message: completedMessage},
			},
		},
		"success, of which nothing was seen before": {
			at: newAt(), pod: newPod(corev1.PodSucceeded), now: now,
			want: Decision{
				Status: done(running(corev1.PodSucceeded), func(status *v1alpha1.AtStatus) {
					status.Reason = v1alpha1.ReasonCompleted
					status.CompletionTime = &metav1.Time{Time: now}
					status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionComplete, metav1.ConditionTrue, now, v1alpha1.ReasonCompleted, completedMessage)}
				}),
				Event: &Event{Type: corev1.EventTypeNormal, Reason: v1alpha1.ReasonCompleted, Message: completedMessage},
			},
		},
		"failure with a message": {
			at: newAt(withStatus(running(corev1.PodRunning))), pod: newPod(corev1.PodFailed, terminated(3, "no such host")), now: now,
			want: Decision{
				Status: done(running(corev1.PodFailed), func(status *v1alpha1.AtStatus) {
					status.Reason = v1alpha1.ReasonCommandFailed
					status.ExitCode = ptr.To[int32](3)
					status.Message = "no such host"
					status.CompletionTime = &metav1.Time{Time: ended}
					status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionFailed, metav1.ConditionTrue, now, v1alpha1.ReasonCommandFailed, "The command ended with exit code 3.")}
				}),
				Event: warning(v1alpha1.ReasonCommandFailed, "The command ended with exit code 3."),
			},
		},
		"failure without a message": {
			at: newAt(withStatus(running(corev1.PodRunning))), pod: newPod(corev1.PodFailed, terminated(1, "")), now: now,
			want: Decision{
				Status: done(running(corev1.PodFailed), func(status *v1alpha1.AtStatus) {
					status.Reason = v1alpha1.ReasonCommandFailed
					status.ExitCode = ptr.To[int32](1)
					status.Message = "The command ended with exit code 1."
					status.CompletionTime = &metav1.Time{Time: ended}
					status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionFailed, metav1.ConditionTrue, now, v1alpha1.ReasonCommandFailed, "The command ended with exit code 1.")}
				}),
				Event: warning(v1alpha1.ReasonCommandFailed, "The command ended with exit code 1."),
			},
		},
		"failure of the Pod, not of the command": {
			at: newAt(withStatus(running(corev1.PodRunning))),
			pod: newPod(corev1.PodFailed, func(pod *corev1.Pod) {
				pod.Status.Reason, pod.Status.Message = "Evicted", "The node was low on resource: memory."
			}), now: now,
			want: Decision{
				Status: done(running(corev1.PodFailed), func(status *v1alpha1.AtStatus) {
					status.Reason = v1alpha1.ReasonPodFailed
					status.Message = "Pod example-at-pod failed before the command had ended: Evicted: The node was low on resource: memory."
					status.CompletionTime = &metav1.Time{Time: now}
					status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionFailed, metav1.ConditionTrue, now, v1alpha1.ReasonPodFailed, status.Message)}
				}),
				Event: warning(v1alpha1.ReasonPodFailed, "Pod example-at-pod failed before the command had ended: Evicted: The node was low on resource: memory."),
			},
		},
		"the Pod is gone: never run again": {
			at: newAt(withStatus(running(corev1.PodRunning))), now: now,
			want: Decision{
				Status: done(running(corev1.PodRunning), func(status *v1alpha1.AtStatus) {
					status.Reason = v1alpha1.ReasonPodLost
					status.Message = lostMessage
					status.CompletionTime = &metav1.Time{Time: now}
					status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionFailed, metav1.ConditionTrue, now, v1alpha1.ReasonPodLost, lostMessage)}
				}),
				Event:   warning(v1alpha1.ReasonPodLost, lostMessage),
				Confirm: true,
			},
		},
		"the Pod is gone, and a stranger has its name": {
			at:  newAt(withStatus(running(corev1.PodRunning))),
			pod: newPod(corev1.PodSucceeded, ownedBy(), func(pod *corev1.Pod) { pod.UID = "stranger" }), now: now,
			want: Decision{
				Status: done(running(corev1.PodRunning), func(status *v1alpha1.AtStatus) {
					status.Reason = v1alpha1.ReasonPodLost
					status.Message = lostMessage
					status.CompletionTime = &metav1.Time{Time: now}
					status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionFailed, metav1.ConditionTrue, now, v1alpha1.ReasonPodLost, lostMessage)}
				}),
				Event:   warning(v1alpha1.ReasonPodLost, lostMessage),
				Confirm: true,
			},
		},
		"the Pod is gone, and another claims to be this At's": {
			at:  newAt(withStatus(running(corev1.PodRunning))),
			pod: newPod(corev1.PodSucceeded, func(pod *corev1.Pod) { pod.UID = "second" }), now: now,
			want: Decision{
				Status: done(running(corev1.PodRunning), func(status *v1alpha1.AtStatus) {
					status.Reason = v1alpha1.ReasonPodLost
					status.Message = lostMessage
					status.CompletionTime = &metav1.Time{Time: now}
					status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionFailed, metav1.ConditionTrue, now, v1alpha1.ReasonPodLost, lostMessage)}
				}),
				Event:   warning(v1alpha1.ReasonPodLost, lostMessage),
				Confirm: true,
			},
		},
		"suspended: told": {
			at: newAt(func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) }), now: earlier,
			want: Decision{
				Status: &v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, ObservedGeneration: 2, Conditions: []metav1.Condition{suspended(earlier)}},
				Event:  &Event{Type: corev1.EventTypeNormal, Reason: v1alpha1.ReasonSuspended, Message: "The At is held: spec.suspend is true."},
				Delay:  again,
			},
		},
		"suspended and due: held": {
			at: newAt(withSuspended), now: now, want: Decision{},
		},
		"suspended and due, whatever the starting deadline: held": {
			at: newAt(withSuspended, func(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = ptr.To[int64](0) }), now: now, want: Decision{},
		},
		"suspended, not due": {
			at: newAt(withSuspended), now: earlier, want: Decision{Delay: time.Minute},
		},
		"suspended with a Pod: it goes on": {
			at: newAt(withSuspended), pod: newPod(corev1.PodPending), now: now,
			want: Decision{Status: ptr.To(running(corev1.PodPending, suspended(earlier))), Delay: time.Minute},
		},
		"resumed: told": {
			at: newAt(withSuspended, func(at *v1alpha1.At) { at.Spec.Suspend = nil }), now: now,
			want: Decision{
				Status: &v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, ObservedGeneration: 2, Conditions: []metav1.Condition{resumed(now)}},
				Event:  &Event{Type: corev1.EventTypeNormal, Reason: v1alpha1.ReasonResumed, Message: "The At is held no more."},
				Delay:  again,
			},
		},
		"resumed and due: runs": {
			at: newAt(withStatus(v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, Conditions: []metav1.Condition{resumed(earlier)}})), now: now,
			want: Decision{CreatePod: true},
		},
		"done: suspend has no meaning": {
			at: newAt(withStatus(v1alpha1.AtStatus{Phase: v1alpha1.PhaseDone}), func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) }), now: now, want: Decision{},
		},
		"late, within the starting deadline": {
			at: newAt(func(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = ptr.To[int64](4) }), now: now.Add(time.Second - 1),
			want: Decision{CreatePod: true},
		},
		"late, beyond the starting deadline": {
			at: newAt(func(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = ptr.To[int64](3) }), now: now,
			want: Decision{
				Status: done(v1alpha1.AtStatus{}, func(status *v1alpha1.AtStatus) {
					status.Reason = v1alpha1.ReasonStartingDeadlineExceeded
					status.Message = "It was later than spec.startingDeadlineSeconds allows, which is 3: the command did not run."
					status.CompletionTime = &metav1.Time{Time: now}
					status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionFailed, metav1.ConditionTrue, now, v1alpha1.ReasonStartingDeadlineExceeded, status.Message)}
				}),
				Event:   warning(v1alpha1.ReasonStartingDeadlineExceeded, "It was later than spec.startingDeadlineSeconds allows, which is 3: the command did not run."),
				Confirm: true,
			},
		},
		"the least starting deadline allows less than a second": {
			at: newAt(func(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = ptr.To[int64](0) }), now: due.Add(time.Second - 1),
			want: Decision{CreatePod: true},
		},
		"the longest starting deadline": {
			at:  newAt(withSchedule("0001-01-01T00:00:00Z"), func(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = ptr.To[int64](math.MaxInt64) }),
			now: now, want: Decision{CreatePod: true},
		},
		"beyond the starting deadline, with a Pod: it goes on": {
			at: newAt(withStatus(running(corev1.PodPending)), func(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = ptr.To[int64](0) }), pod: newPod(corev1.PodPending), now: now,
			want: Decision{Delay: time.Minute},
		},
		"running, within the active deadline": {
			at: newAt(withStatus(running(corev1.PodRunning)), withActiveDeadline(10)), pod: newPod(corev1.PodRunning), now: created.Add(9500 * time.Millisecond),
			want: Decision{Delay: 500 * time.Millisecond},
		},
		"running, the active deadline has come": {
			at: newAt(withStatus(running(corev1.PodRunning)), withActiveDeadline(10)), pod: newPod(corev1.PodRunning), now: created.Add(10 * time.Second),
			want: Decision{DeletePod: true, Delay: time.Minute},
		},
		"running, the active deadline has come, but the status goes first": {
			at: newAt(withActiveDeadline(10)), pod: newPod(corev1.PodPending), now: created.Add(time.Hour),
			want: Decision{Status: ptr.To(running(corev1.PodPending)), Delay: again},
		},
		"running, the longest active deadline": {
			at: newAt(withStatus(running(corev1.PodRunning)), withActiveDeadline(math.MaxInt64)), pod: newPod(corev1.PodRunning), now: now,
			want: Decision{Delay: time.Minute},
		},
		"stopped for the active deadline, the Pod not ended yet": {
			at: newAt(withStatus(running(corev1.PodRunning)), withActiveDeadline(10)), pod: newPod(corev1.PodRunning, deletedAt(created.Add(10*time.Second))), now: created.Add(time.Minute),
			want: Decision{Delay: time.Minute},
		},
		"stopped for the active deadline, and failed of it": {
			at: newAt(withStatus(running(corev1.PodRunning)), withActiveDeadline(1)), now: now,
			pod:  newPod(corev1.PodFailed, deletedAt(created.Add(time.Second)), terminated(137, "")),
			want: deadlineExceeded(corev1.PodFailed, ptr.To[int32](137), ended),
		},
		"stopped for the active deadline, and calls it a success": {
			at: newAt(withStatus(running(corev1.PodRunning)), withActiveDeadline(1)), now: now,
			pod:  newPod(corev1.PodSucceeded, deletedAt(created.Add(time.Second)), terminated(0, "")),
			want: deadlineExceeded(corev1.PodSucceeded, ptr.To[int32](0), ended),
		},
		"stopped for the active deadline, and gone": {
			at: newAt(withStatus(running(corev1.PodRunning)), withActiveDeadline(1)), now: now,
			want: func() Decision {
				d := deadlineExceeded(corev1.PodRunning, nil, now)
				d.Confirm = true
				return d
			}(),
		},
		"deleted by somebody before the active deadline, ended after it": {
			at: newAt(withStatus(running(corev1.PodRunning)), withActiveDeadline(2)), now: now,
			pod: newPod(corev1.PodFailed, deletedAt(created.Add(time.Second)), terminated(143, "")),
			want: Decision{
				Status: done(running(corev1.PodFailed), func(status *v1alpha1.AtStatus) {
					status.Reason = v1alpha1.ReasonCommandFailed
					status.ExitCode = ptr.To[int32](143)
					status.Message = "The command ended with exit code 143."
					status.CompletionTime = &metav1.Time{Time: ended}
					status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionFailed, metav1.ConditionTrue, now, v1alpha1.ReasonCommandFailed, status.Message)}
				}),
				Event: warning(v1alpha1.ReasonCommandFailed, "The command ended with exit code 143."),
			},
		},
		"ended before the active deadline, seen after it": {
			at: newAt(withStatus(running(corev1.PodRunning)), withActiveDeadline(1)), now: now,
			pod: newPod(corev1.PodSucceeded, terminated(0, "")),
			want: Decision{
				Status: done(running(corev1.PodSucceeded), func(status *v1alpha1.AtStatus) {
					status.Reason = v1alpha1.ReasonCompleted
					status.ExitCode = ptr.To[int32](0)
					status.CompletionTime = &metav1.Time{Time: ended}
					status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionComplete, metav1.ConditionTrue, now, v1alpha1.ReasonCompleted, completedMessage)}
				}),
				Event: &Event{Type: corev1.EventTypeNormal, Reason: v1alpha1.ReasonCompleted, Message: completedMessage},
			},
		},
		"the end, with a time to live: looked at again": {
			at: newAt(withStatus(running(corev1.PodRunning)), withTTL(60)), pod: newPod(corev1.PodSucceeded), now: now,
			want: Decision{
				Status: done(running(corev1.PodSucceeded), func(status *v1alpha1.AtStatus) {
					status.Reason = v1alpha1.ReasonCompleted
					status.CompletionTime = &metav1.Time{Time: now}
					status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionComplete, metav1.ConditionTrue, now, v1alpha1.ReasonCompleted, completedMessage)}
				}),
				Event: &Event{Type: corev1.EventTypeNormal, Reason: v1alpha1.ReasonCompleted, Message: completedMessage},
				Delay: again,
			},
		},
		"done, its time to live not over": {
			at: newAt(withDone(v1alpha1.ConditionFailed, now), withTTL(30)), now: now.Add(29 * time.Second),
			want: Decision{Delay: time.Second},
		},
		"done, its time to live far from over": {
			at: newAt(withDone(v1alpha1.ConditionComplete, now), withTTL(math.MaxInt32)), now: now,
			want: Decision{Delay: time.Minute},
		},
		"done, its time to live over": {
			at: newAt(withDone(v1alpha1.ConditionComplete, now), withTTL(30)), now: now.Add(30 * time.Second),
			want: Decision{DeleteAt: true},
		},
		"done, no time to live": {
			at: newAt(withDone(v1alpha1.ConditionComplete, now), withTTL(0)), now: now,
			want: Decision{DeleteAt: true},
		},
		"done, its time to live over, but it is being deleted": {
			at:  newAt(withDone(v1alpha1.ConditionComplete, now), withTTL(0), func(at *v1alpha1.At) { at.DeletionTimestamp = &metav1.Time{Time: now} }),
			now: now, want: Decision{},
		},
		"done without a condition, which nobody writes: kept": {
			at: newAt(withStatus(v1alpha1.AtStatus{Phase: v1alpha1.PhaseDone}), withTTL(0)), now: now, want: Decision{},
		},
		"done, the Pod there": {
			at:  newAt(withStatus(v1alpha1.AtStatus{Phase: v1alpha1.PhaseDone})),
			pod: newPod(corev1.PodFailed), now: now, want: Decision{},
		},
		"done, the Pod gone": {
			at:  newAt(withStatus(v1alpha1.AtStatus{Phase: v1alpha1.PhaseDone})),
			now: now, want: Decision{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := tc.at.DeepCopy()
			got := Decide(tc.at, tc.pod, tc.now)
			if diff := cmp.Diff(tc.want, got, equateErrors); diff != "" {
				t.Errorf("Decide (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tc.at); diff != "" {
				t.Errorf("Decide changed the At that it was given:\n%s", diff)
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
	// As the API server makes it of a ValidatingAdmissionPolicy without a reason of its own.
	policy := apierrors.NewForbidden(pods, "example-at-pod", errors.New("ValidatingAdmissionPolicy 'images' denied request"))
	policy.ErrStatus.Reason, policy.ErrStatus.Code = metav1.StatusReasonInvalid, 422
	policy.ErrStatus.Details.Causes = []metav1.StatusCause{{Message: "ValidatingAdmissionPolicy 'images' denied request"}}
	tooLarge := apierrors.NewRequestEntityTooLargeError("limit is 3145728")
	long := apierrors.NewBadRequest(strings.Repeat("🌍", 2000))
	badRequest := apierrors.NewBadRequest("admission webhook says no")

	refused := func(transition time.Time, message string) *v1alpha1.AtStatus {
		return &v1alpha1.AtStatus{
			Phase: v1alpha1.PhasePending, ObservedGeneration: 2,
			Conditions: []metav1.Condition{condition(v1alpha1.ConditionReady, metav1.ConditionFalse, transition, v1alpha1.ReasonPodRefused, message)},
		}
	}

	for name, tc := range map[string]struct {
		at   *v1alpha1.At
		err  error
		want Decision
	}{
		"quota: told, and tried again": {
			at: newAt(), err: quota,
			want: Decision{Status: refused(now, quota.Error()), Event: warning(v1alpha1.ReasonPodRefused, quota.Error()), Retry: ErrBlocked},
		},
		"quota again: tried again, no word of it": {
			at: newAt(withStatus(*refused(earlier, quota.Error()))), err: quota,
			want: Decision{Retry: ErrBlocked},
		},
		"refused in other words: the condition follows, the event does not come again": {
			at: newAt(withStatus(*refused(earlier, "used: pods=4"))), err: quota,
			want: Decision{Status: refused(earlier, quota.Error()), Retry: ErrBlocked},
		},
		"a webhook's bad request": {
			at: newAt(), err: badRequest,
			want: Decision{Status: refused(now, badRequest.Error()), Event: warning(v1alpha1.ReasonPodRefused, badRequest.Error()), Retry: ErrBlocked},
		},
		"a policy's denial": {
			at: newAt(), err: policy,
			want: Decision{Status: refused(now, policy.Error()), Event: warning(v1alpha1.ReasonPodRefused, policy.Error()), Retry: ErrBlocked},
		},
		"too large a Pod": {
			at: newAt(), err: tooLarge,
			want: Decision{Status: refused(now, tooLarge.Error()), Event: warning(v1alpha1.ReasonPodRefused, tooLarge.Error()), Retry: ErrBlocked},
		},
		"a refusal longer than a condition's message can be": {
			at: newAt(), err: long,
			want: Decision{Status: refused(now, strings.Repeat("🌍", 1024)+"…"), Event: warning(v1alpha1.ReasonPodRefused, strings.Repeat("🌍", 1024)+"…"), Retry: ErrBlocked},
		},
		"invalid, after it was refused: the refusal is of no concern any more": {
			at: newAt(withStatus(*refused(earlier, quota.Error()))), err: invalid,
			want: Decision{
				Status: done(v1alpha1.AtStatus{}, func(status *v1alpha1.AtStatus) {
					status.Reason = v1alpha1.ReasonInvalidPod
					status.Message = invalid.Error()
					status.CompletionTime = &metav1.Time{Time: now}
					status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionFailed, metav1.ConditionTrue, now, v1alpha1.ReasonInvalidPod, invalid.Error())}
				}),
				Event: warning(v1alpha1.ReasonInvalidPod, invalid.Error()),
			},
		},
		"the namespace goes: nothing to do": {
			at: newAt(), err: terminating, want: Decision{},
		},
		"invalid: the end": {
			at: newAt(), err: invalid,
			want: Decision{
				Status: done(v1alpha1.AtStatus{}, func(status *v1alpha1.AtStatus) {
					status.Reason = v1alpha1.ReasonInvalidPod
					status.Message = invalid.Error()
					status.CompletionTime = &metav1.Time{Time: now}
					status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionFailed, metav1.ConditionTrue, now, v1alpha1.ReasonInvalidPod, invalid.Error())}
				}),
				Event: warning(v1alpha1.ReasonInvalidPod, invalid.Error()),
			},
		},
		"overloaded: just another try":     {at: newAt(), err: apierrors.NewTooManyRequests("busy", 1), want: Decision{Retry: errAny}},
		"the connection broke: just again": {at: newAt(), err: errors.New("connection reset by peer"), want: Decision{Retry: errAny}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Refused(tc.at, tc.err, now), equateErrors); diff != "" {
				t.Errorf("Refused (-want +got):\n%s", diff)
			}
		})
	}
}
