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

// Package plan decides what happens to an At next. It is pure: it reads the
// objects and the time that it is given, and calls nobody.
package plan

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// maxDelay is the longest time after which the clock is looked at again. A timer
// runs on monotonic time: without this, a step of the wall clock, or the machine
// asleep, would make an At late by as much.
const maxDelay = time.Minute

// again is the delay after a write of the status that something else has to
// follow: the write itself wakes nobody.
const again = time.Nanosecond

// releaseDelay is how long after a controller saw the end of its attempt a Pod keeps its
// finalizer, and with it its name. The name is the lock against running a command
// twice: another controller may have looked at the At before that end was recorded, and
// its creation still be on its way. It is shorter than minBackoff, so that nothing of an
// attempt is left to do when the next one is due; and with half a second in it, since
// the API's times are whole seconds, as most schedules are: creations go first.
const releaseDelay = 9500 * time.Millisecond

// overdue is how long what should pass by itself may be in the way without a word
// of it: the Pod of an earlier At, the want of a node, or a Pod deleted by force.
const overdue = time.Minute

// ErrBlocked is in Decision.Retry when the At's status tells what stands in the
// way, or when it is but a matter of moments.
var ErrBlocked = errors.New("blocked")

// Decision is the one step to take next. The zero value is: nothing to do until
// the At or its Pod changes.
type Decision struct {
	// CreatePod is set when the Pod (see NewPod) is to be created. What follows
	// depends on the answer: see Refused.
	CreatePod bool
	// Due is since when that Pod could have been created: the time of the attempt or, if
	// that was later, when the At was created, resumed or edited, in whole seconds.
	Due time.Time
	// DeletePod is the Pod to delete; nil if there is none.
	DeletePod *corev1.Pod
	// ReleasePod is the Pod to take the finalizer from, for its outcome has been in the
	// status for a while, or is of no concern; nil if there is none.
	ReleasePod *corev1.Pod
	// DeleteAt is set when the At is to be deleted.
	DeleteAt bool
	// Status is the status to write; nil if it is to stay as it is.
	Status *v1alpha1.AtStatus
	// Event is to be recorded once the status is written; nil if there is none.
	Event *Event
	// Confirm is set when the step rests on there being no Pod, which a cache
	// cannot know: look for it in the API server, and decide again.
	Confirm bool
	// Delay is the time after which to decide again; 0 if there is no need.
	Delay time.Duration
	// Retry is set when to decide again with back-off, and says why.
	Retry error
}

// Event is an event on an At.
type Event struct {
	// Type is corev1.EventTypeNormal or corev1.EventTypeWarning.
	Type string
	// Reason is one of the reason constants of the API.
	Reason string
	// Message is for people.
	Message string
}

// Decide returns the one step that is next for an At. pods are the Pods that
// AtName says are of an At of that name, and the Pod that has the name that PodName
// gives, whoever owns it. now is the wall clock.
func Decide(at *v1alpha1.At, pods []*corev1.Pod, now time.Time) Decision {
	var pod, counted *corev1.Pod
	for _, candidate := range pods {
		if isCounted(at, candidate) {
			counted = candidate
		}
		if candidate.Name == PodName(at) {
			pod = candidate
		}
	}
	if counted == nil {
		return decideRun(at, pod, now)
	}
	wait := releaseTime(at).Sub(now)
	// Far off it is only if the end was written by another clock.
	if wait <= 0 || wait > overdue {
		return Decision{ReleasePod: counted}
	}
	d := decideRun(at, pod, now)
	if d.Delay == 0 || d.Delay > wait {
		d.Delay = wait
	}
	return d
}

// decideRun decides for an At, but for the release of its Pods. pod is the Pod that has
// the name of the present attempt's, or nil.
func decideRun(at *v1alpha1.At, pod *corev1.Pod, now time.Time) Decision {
	if at.DeletionTimestamp != nil {
		return Decision{}
	}
	if at.Status.Phase == v1alpha1.PhaseDone {
		return decideDone(at, now)
	}
	if d := decideSuspended(at, now); d.Status != nil {
		return d
	}
	owned := pod != nil && IsOf(pod, at)
	switch {
	case recorded(at) && (!owned || pod.UID != at.Status.Pod.UID):
		return decideLost(at, nil, now, fmt.Sprintf("Pod %s was deleted before its end was seen; the command is not run again.", at.Status.Pod.Name))
	case owned && hasEnded(pod):
		return decideEnded(at, pod, now)
	case owned && isAbandoned(pod, now):
		return decideLost(at, pod, now, fmt.Sprintf("Pod %s was deleted by force, and its node does not say that it has ended; the command is not run again.", pod.Name))
	case owned:
		return decideRunning(at, pod, now)
	case at.Status.NextAttemptTime != nil:
		return decideNextAttempt(at, pod, now)
	default:
		return decidePending(at, pod, now)
	}
}

// Refused returns what follows when the API server answered the creation of the
// Pod with err: the end, if the Pod is invalid; another try, told in condition
// Ready, if the namespace or the cluster does not let it in; just another try, if
// err says nothing about the Pod.
func Refused(at *v1alpha1.At, err error, now time.Time) Decision {
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		// The At goes with its namespace.
		return Decision{}
	case isInvalidPod(err):
		return finish(at, nil, now, v1alpha1.ReasonInvalidPod, err.Error())
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		d := notReady(at, now, v1alpha1.ReasonPodRefused, err.Error())
		d.Retry = fmt.Errorf("%w: %w", ErrBlocked, err)
		return d
	default:
		return Decision{Retry: err}
	}
}

// isInvalidPod says whether err is the validation of the Pod itself, which names
// the fields at fault. An admission policy that denies the Pod is Invalid too by
// default, but names none, and may be changed.
func isInvalidPod(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(cause metav1.StatusCause) bool { return cause.Field != "" })
}

// decideDone decides for an At that has ended: when to delete it.
func decideDone(at *v1alpha1.At, now time.Time) Decision {
	end := endSeen(at)
	if at.Spec.TTLSecondsAfterFinished == nil || end.IsZero() {
		return Decision{}
	}
	// Its Pods would go with it.
	ttl := max(time.Duration(*at.Spec.TTLSecondsAfterFinished)*time.Second, releaseDelay)
	if wait := end.Add(ttl).Sub(now); wait > 0 {
		return Decision{Delay: min(wait, maxDelay)}
	}
	return Decision{DeleteAt: true}
}

// endSeen returns when a controller saw the end of a run, or the zero time: the clock of
// the node, which completionTime may be of, is not to be trusted with a deletion.
func endSeen(at *v1alpha1.At) time.Time {
	for _, condition := range at.Status.Conditions {
		if condition.Status == metav1.ConditionTrue &&
			(condition.Type == v1alpha1.ConditionComplete || condition.Type == v1alpha1.ConditionFailed) {
			return condition.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// releaseTime returns when to take the finalizer from those of the At's Pods of which
// the outcome is in the status.
func releaseTime(at *v1alpha1.At) time.Time {
	switch {
	case at.DeletionTimestamp != nil:
		return time.Time{}
	case at.Status.Phase == v1alpha1.PhaseDone:
		return endSeen(at).Add(releaseDelay)
	case at.Status.NextAttemptTime != nil:
		return at.Status.NextAttemptTime.Add(releaseDelay - backoff(at.Status.Failed))
	default:
		// The next attempt has begun.
		return time.Time{}
	}
}

// decideSuspended keeps condition Suspended in step with spec.suspend.
func decideSuspended(at *v1alpha1.At, now time.Time) Decision {
	suspend := ptr.Deref(at.Spec.Suspend, false)
	if suspend == meta.IsStatusConditionTrue(at.Status.Conditions, v1alpha1.ConditionSuspended) {
		return Decision{}
	}
	condition := metav1.Condition{
		Type:               v1alpha1.ConditionSuspended,
		Status:             metav1.ConditionTrue,
		ObservedGeneration: at.Generation,
		LastTransitionTime: metav1.Time{Time: now},
		Reason:             v1alpha1.ReasonSuspended,
		Message:            "Nothing starts while spec.suspend is true.",
	}
	if !suspend {
		condition.Status = metav1.ConditionFalse
		condition.Reason = v1alpha1.ReasonResumed
		condition.Message = "The At is held no more."
	}
	status := at.Status.DeepCopy()
	meta.SetStatusCondition(&status.Conditions, condition)
	d := decision(at, status, &Event{Type: corev1.EventTypeNormal, Reason: condition.Reason, Message: condition.Message})
	d.Delay = again
	return d
}

// decidePending decides for an At that has no Pod yet. other is somebody else's
// Pod that has its name, or nil.
func decidePending(at *v1alpha1.At, other *corev1.Pod, now time.Time) Decision {
	instant, err := Instant(&at.Spec)
	if err != nil {
		return notReady(at, now, v1alpha1.ReasonInvalidSchedule, err.Error())
	}
	late := now.Sub(instant)
	if late >= 0 && !ptr.Deref(at.Spec.Suspend, false) {
		if limit := at.Spec.StartingDeadlineSeconds; limit != nil && int64(late/time.Second) > *limit {
			d := finish(at, nil, now, v1alpha1.ReasonStartingDeadlineExceeded, withObstacle(at,
				fmt.Sprintf("It was later than spec.startingDeadlineSeconds allows, which is %d: the command did not run.", *limit)))
			d.Confirm = true
			return d
		}
		return start(at, other, dueSince(at, instant), now)
	}
	var d Decision
	if ready := meta.FindStatusCondition(at.Status.Conditions, v1alpha1.ConditionReady); ready != nil && ready.ObservedGeneration != at.Generation {
		// What stood in the way was said of an earlier spec.
		status := at.Status.DeepCopy()
		setReady(at, status, now)
		d = decision(at, status, nil)
	}
	if late < 0 {
		d.Delay = min(instant.Sub(now), maxDelay)
	}
	return d
}

// decideNextAttempt decides for an At whose last attempt has failed. other is
// somebody else's Pod that has the name of the next one, or nil.
func decideNextAttempt(at *v1alpha1.At, other *corev1.Pod, now time.Time) Decision {
	left := timeLeft(at, &at.Status, now)
	wait := at.Status.NextAttemptTime.Sub(now)
	switch {
	case left <= 0:
		d := finish(at, nil, now, v1alpha1.ReasonDeadlineExceeded, deadlineExceeded(at))
		d.Confirm = true
		return d
	case wait > 0:
		return Decision{Delay: min(wait, left, maxDelay)}
	case ptr.Deref(at.Spec.Suspend, false):
		return Decision{Delay: min(left, maxDelay)}
	default:
		return start(at, other, dueSince(at, at.Status.NextAttemptTime.Time), now)
	}
}

// dueSince returns since when what is due at the given instant could have been started:
// the At may have been created, resumed, or written otherwise, later.
func dueSince(at *v1alpha1.At, instant time.Time) time.Time {
	since := instant
	later := func(t metav1.Time) {
		if since.Before(t.Time) {
			since = t.Time
		}
	}
	later(at.CreationTimestamp)
	if resumed := meta.FindStatusCondition(at.Status.Conditions, v1alpha1.ConditionSuspended); resumed != nil {
		later(resumed.LastTransitionTime)
	}
	// A cache may not have these.
	for _, written := range at.ManagedFields {
		if written.Subresource == "" {
			later(ptr.Deref(written.Time, metav1.Time{}))
		}
	}
	return since
}

// start starts an attempt that has been due since the given time.
func start(at *v1alpha1.At, other *corev1.Pod, since, now time.Time) Decision {
	if other != nil {
		return decideConflict(at, other, since, now)
	}
	// The delay is in case that the Pod's events do not come: its label may be
	// taken away.
	return Decision{CreatePod: true, Due: since, Delay: maxDelay}
}

// decideConflict decides for an At that has been due since the given time while
// its Pod's name is taken.
func decideConflict(at *v1alpha1.At, pod *corev1.Pod, since, now time.Time) Decision {
	message := fmt.Sprintf("Pod %s exists and is not this At's: delete or rename that Pod, or give the At another name.", pod.Name)
	if owner := ownerAt(pod); owner != nil && owner.Name == at.Name {
		if pod.DeletionTimestamp != nil {
			since = pod.DeletionTimestamp.Time
		}
		if now.Sub(since) < overdue {
			return Decision{Retry: fmt.Errorf("%w: Pod %s of an earlier At of this name is still there", ErrBlocked, pod.Name)}
		}
		message = fmt.Sprintf("Pod %s of an earlier At of this name should be gone and is not: look at it with kubectl describe pod %s.", pod.Name, pod.Name)
	}
	d := notReady(at, now, v1alpha1.ReasonPodNameConflict, message)
	d.Retry = fmt.Errorf("%w: %s", ErrBlocked, message)
	return d
}

// decideRunning decides for an At whose Pod has not ended.
func decideRunning(at *v1alpha1.At, pod *corev1.Pod, now time.Time) Decision {
	status := started(at, pod)
	event := mirrorReady(at, status, pod, now)
	d := decision(at, status, event)
	d.Delay = maxDelay // As in start.
	stopping := failureTarget(at) != nil
	left := timeLeft(at, status, now)
	switch {
	case isDeletedByForce(pod):
		d.Delay = min(overdue-now.Sub(pod.DeletionTimestamp.Time), maxDelay)
	case pod.DeletionTimestamp != nil:
	case left > 0 && !stopping:
		d.Delay = min(left, maxDelay)
	case d.Status != nil:
		d.Delay = again
	case stopping:
		d.DeletePod = pod
	default:
		// Said before it is done: from a deletion alone nobody could tell later why
		// it was.
		return stop(at, now, v1alpha1.ReasonDeadlineExceeded, deadlineExceeded(at))
	}
	return d
}

// decideLost decides for an At of whose Pod, which is nil if it is gone, nobody
// will say how it ended.
func decideLost(at *v1alpha1.At, pod *corev1.Pod, now time.Time, message string) Decision {
	reason := v1alpha1.ReasonPodLost
	if target := failureTarget(at); target != nil {
		reason, message = target.Reason, target.Message
	}
	d := finish(at, pod, now, reason, message)
	d.Confirm = true
	return d
}

// decideEnded decides for an At whose Pod has ended.
func decideEnded(at *v1alpha1.At, pod *corev1.Pod, now time.Time) Decision {
	target := failureTarget(at)
	if target != nil && pod.DeletionTimestamp != nil {
		return finish(at, pod, now, target.Reason, target.Message)
	}
	if pod.Status.Phase == corev1.PodSucceeded {
		return finish(at, pod, now, v1alpha1.ReasonCompleted, "The command ended with exit code 0.")
	}
	reason, message := failure(pod)
	if at.Status.Failed >= ptr.Deref(at.Spec.BackoffLimit, 0) || target != nil || timeLeft(at, started(at, pod), now) <= backoff(at.Status.Failed+1) {
		return finish(at, pod, now, reason, message)
	}
	return retry(at, pod, now, reason, message)
}
