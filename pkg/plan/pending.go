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
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

// decidePending decides for an At that has no Pod yet.
func (v *view) decidePending() Decision {
	switch {
	case v.scheduleErr != nil:
		return v.writeBlocked(v1alpha1.ReasonInvalidSchedule, v.scheduleErr.Error())
	case HasLostOwner(v.At) && v.startingLeft > 0:
		return v.blockLostOwner()
	case v.Now.Before(v.instant):
		return v.decideNotDue()
	case v.isHeld():
		return v.writeUnblocked(0)
	case v.isMistaken():
		return v.writeScheduleInPast()
	case v.At.Spec.Restart != nil:
		return v.decideRestartDue()
	case v.startingLeft > 0 && v.At.Spec.Nodes != nil:
		return v.startNodes()
	case v.startingLeft > 0:
		return v.startAttempt(v.instant)
	default:
		return v.writeStartingDeadlineExceeded()
	}
}

// decideNotDue decides for a pending At that is due at a future instant.
func (v *view) decideNotDue() Decision {
	at := v.At
	delay := v.instant.Sub(v.Now)
	if lead := Lead(at.UID); delay > lead {
		delay -= lead
	}
	if v.instant.Sub(v.Now) <= forecastMargin {
		// A write this late would delay the run.
		return Decision{Delay: delay, Preflight: v.Forecast == nil}
	}
	forecast := ptr.Deref(v.Forecast, Forecast{})
	status := at.Status.DeepCopy()
	rehearsed, events := RehearsedOf(status).Observe(at, at.Spec.Rehearse && v.Rehearses, forecast.Rehearsal, v.Now)
	switch {
	case v.Forecast == nil && IsRefusal(Blocked(at)): // It stays until there is a new one.
	case forecast.Reason != "":
		events = v.setBlocked(status, forecast.Reason, forecast.Sentence())
	case rehearsed != nil:
		events = v.setBlocked(status, rehearsed.Reason, rehearsed.Message)
	default:
		removeBlocked(status)
	}
	d := v.write(status, events...)
	if d.Status == nil {
		d.Delay, d.Preflight = delay, v.Forecast == nil
	}
	return d
}

// blockLostOwner decides for an At whose owner is missing: only a user can tell whether it
// has run.
func (v *view) blockLostOwner() Decision {
	label := lostOwnerLabel(v.At)
	return v.writeBlocked(v1alpha1.ReasonOwnerMissing, fmt.Sprintf(
		"Label %s says that another object created this At, but the At has no such owner. It may have run before: it may be a copy, or restored from a backup. Delete it. Or, to run it, remove the label: kubectl label at %s -n %s %s-",
		label, v.At.Name, v.At.Namespace, label))
}

// startAttempt starts an attempt that has been due since the given instant.
func (v *view) startAttempt(instant time.Time) Decision {
	if v.pod != nil {
		return v.waitForPodName(dueSince(v.At, v.Parent, instant))
	}
	if d, decided := v.checkNode(); decided {
		return d
	}
	return Decision{Action: CreatePod{Due: v.startableSince(instant)}, Delay: checkDelay}
}

// startableSince is dueSince, unless the At was blocked or frozen until now.
func (v *view) startableSince(instant time.Time) time.Time {
	if isBlockedByOthers(v.At) || IsFrozen(v.At) {
		return v.Now
	}
	return dueSince(v.At, v.Parent, instant)
}

// waitForPodName decides for an At that has been due since the given time, while another Pod
// has the name of its Pod.
func (v *view) waitForPodName(since time.Time) Decision {
	other, owner := v.pod, ownerAt(v.pod)
	isEarlier := owner != nil && owner.Name == v.At.Name
	message := fmt.Sprintf("Pod %s already exists and does not belong to this At: delete that Pod, or give the At another name.", other.Name)
	if isEarlier {
		message = fmt.Sprintf("Pod %s of an earlier At with this name still exists: run kubectl describe pod %s to see what it is waiting for.", other.Name, other.Name)
	}
	return v.waitForName(v1alpha1.ReasonPodNameConflict, message, isEarlier, since)
}

// waitForName decides for an At that has needed a name since the given time, which another object
// has. What is left of an earlier At should be gone within moments.
func (v *view) waitForName(reason, message string, isEarlier bool, since time.Time) Decision {
	err := errors.New(message)
	if isEarlier && v.Now.Sub(since) < Grace {
		return Decision{Retry: answer.Blocked(reason, err), Delay: v.untilDeadline()}
	}
	return v.retryBlocked(reason, err)
}

// isDue reports whether the time of an At that has not run has come.
func (v *view) isDue() bool {
	return isPending(v.At) && v.scheduleErr == nil && !v.Now.Before(v.instant)
}

// WantsTrial reports whether the API server has to be asked in a dry-run if it would admit the
// Pod, before the nodes have any effect: an At of a user who cannot run a Pod must not tell
// that user which nodes there are. Of a run that has started, a Pod was admitted.
func WantsTrial(w World) bool {
	v := newView(w)
	wasAdmitted := v.Parent != nil && isNodesRun(v.Parent)
	return NeedsNodes(w.At) && v.isDue() && v.startingLeft > 0 && !wasAdmitted
}

// IsAdmitted reports whether err, the API server's answer to the trial, says nothing against the Pod.
func IsAdmitted(err error) bool {
	return err == nil || apierrors.IsAlreadyExists(err) || supportsNoDryRun(err)
}

// lastingFailures is the number of creations that have failed in a row after which a failure is
// reported, whatever its cause. They take about a minute.
const lastingFailures = 9

// Refused returns the decision after the API server answered an action with err. If a Pod is
// invalid, the At ends. If the answer will not change by itself, the At is Blocked with the given
// reason and retried. Otherwise it is only retried, unless the creation of its Pod has been failing
// for a while: then the At is Blocked in this case, too.
func Refused(w World, reason string, err error) Decision { return newView(w).refused(reason, err) }

func (v *view) refused(reason string, err error) Decision {
	retry := answer.Refused(reason, err)
	d := Decision{}
	switch {
	case isInvalidPod(err):
		return v.writeDone(nil, v1alpha1.ReasonInvalidPod, err.Error())
	case errors.Is(retry, answer.ErrBlocked):
		return v.retryBlocked(reason, err)
	case retry != nil && reason == v1alpha1.ReasonPodRefused && v.Failures >= lastingFailures:
		d = v.writeBlocked(v1alpha1.ReasonPodNotCreated, err.Error())
	}
	d.Retry, d.Delay = retry, v.untilDeadline()
	return d
}

// isInvalidPod reports whether the API server's own validation refuses the Pod.
func isInvalidPod(err error) bool {
	return answer.IsInvalid(err, corev1.SchemeGroupVersion.WithKind("Pod").GroupKind())
}

// dueSince returns the time since which the run that is due at the given instant could
// have been started: the At may have been created, resumed or edited later. For a child,
// parent is the At that created it.
func dueSince(at, parent *v1alpha1.At, instant time.Time) time.Time {
	since := instant
	later := func(t time.Time) {
		if since.Before(t) {
			since = t
		}
	}
	later(at.CreationTimestamp.Time)
	if parent != nil && allChildrenExist(parent) {
		later(parent.Status.Nodes.StartTime.Time)
	}
	if isRestart(at) {
		later(at.Status.StartTime.Time)
	}
	if resumed := meta.FindStatusCondition(at.Status.Conditions, v1alpha1.ConditionSuspended); resumed != nil {
		later(resumed.LastTransitionTime.Time)
	}
	later(WrittenAt(at, "")) // An At from a cache does not have it.
	return since
}

// decideNextAttempt decides for an At whose last Pod has failed.
func (v *view) decideNextAttempt() Decision {
	left := v.leftToStart()
	wait := v.At.Status.NextAttemptTime.Sub(v.Now)
	if d, decided := v.checkNode(); decided && left > 0 {
		return d
	}
	switch {
	case v.activeLeft <= 0:
		return v.writeDone(nil, v1alpha1.ReasonDeadlineExceeded, v.activeDeadlineMessage())
	case left <= 0:
		return v.writeStartingDeadlineExceeded()
	case wait > 0:
		return v.writeUnblocked(min(wait, left))
	case v.isHeld():
		return v.writeUnblocked(v.untilDeadline())
	default:
		return v.startAttempt(v.At.Status.NextAttemptTime.Time)
	}
}

func isSuspended(at *v1alpha1.At) bool {
	return ptr.Deref(at.Spec.Suspend, false)
}

// isHeld reports whether nothing may start because the At is suspended, or because its
// parent is suspended or being deleted.
func (w *World) isHeld() bool {
	return isSuspended(w.At) || w.isChild() && w.Parent != nil && (isSuspended(w.Parent) || w.Parent.DeletionTimestamp != nil)
}

// decideSuspended keeps condition Suspended in sync with spec.suspend.
func (v *view) decideSuspended() Decision {
	at, suspend := v.At, isSuspended(v.At)
	if suspend == meta.IsStatusConditionTrue(at.Status.Conditions, v1alpha1.ConditionSuspended) {
		return Decision{}
	}
	condition := v.newCondition(v1alpha1.ConditionSuspended, v1alpha1.ReasonSuspended, "Nothing starts while spec.suspend is true.")
	if !suspend {
		condition.Status = metav1.ConditionFalse
		condition.Reason = v1alpha1.ReasonResumed
		condition.Message = "The At is no longer suspended."
	}
	status := at.Status.DeepCopy()
	meta.SetStatusCondition(&status.Conditions, condition)
	if ParentName(at) != "" {
		// No event: the parent suspends and resumes its children, and there may be very many of
		// them.
		return v.write(status)
	}
	return v.write(status, NewEvent(corev1.EventTypeNormal, condition.Reason, condition.Message))
}
