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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
)

// A rollout is checked again after a tenth of the time that it has taken so far, within
// these limits. Watching all workloads would cost more and need more permissions.
const (
	minRolloutPeriod = 2 * time.Second
	maxRolloutPeriod = 15 * time.Second
)

// WantsTarget reports whether the workload of spec.restart has to be known.
func WantsTarget(w World) bool {
	return w.At.Spec.Restart != nil && !isDone(w.At) && (isRestart(w.At) || newView(w).isDue())
}

// decideRestartDue decides for an At whose restart has been due since the given instant.
// The phase becomes RUNNING before the workload is restarted, so that the At cannot be
// edited in between.
func (v *view) decideRestartDue() Decision {
	if d, decided := v.checkTarget(v.instant); decided {
		return d
	}
	target := v.Target
	switch {
	case isRestarted(target, restartTime(v.At, v.instant), v.Now):
		// The rollout belongs to this restart.
	case target.Rolling:
		return v.waitForRollout()
	case target.Desired == 0:
		return v.writeDone(nil, v1alpha1.ReasonCompleted, fmt.Sprintf("%s has no Pods to replace: there was nothing to do.", target))
	}
	status := v.statusOfStart()
	status.Restart = &v1alpha1.AtRestartStatus{UID: target.UID, Desired: target.Desired}
	status.Message = fmt.Sprintf("Restarting %s.", target)
	return v.write(status)
}

// checkTarget decides if a restart that was due at the given instant cannot begin, or go on.
func (v *view) checkTarget(instant time.Time) (d Decision, decided bool) {
	reason, message := unfit(v.At, v.Target)
	switch {
	case v.startingTimeLeft(instant) <= 0:
		return v.writeStartingDeadlineExceeded(), true
	case v.TargetForbidden != nil:
		return v.retryRestartForbidden(), true
	case reason != "":
		return v.writeDone(nil, reason, message), true
	default:
		return Decision{}, false
	}
}

// waitForRollout returns the decision to wait for a rollout that is not that of this restart.
func (v *view) waitForRollout() Decision {
	d := v.writeBlocked(v1alpha1.ReasonRolloutInProgress, fmt.Sprintf("%s is already being rolled out: the restart waits until all of its Pods are updated.", v.Target))
	d.Delay = min(v.startingLeft, rolloutPeriod(v.Now.Sub(v.instant)))
	return d
}

// decideRestart decides for an At whose restart has begun. The workload's annotation is the lock:
// if it has the time of this restart or a later time, the workload has been restarted.
func (v *view) decideRestart() Decision {
	at, target := v.At, v.Target
	instant := ptr.Deref(at.Status.ScheduledTime, metav1.Time{}).Time // when it was due
	since := restartTime(at, instant)
	switch {
	case isTarget(at, target) && isRestarted(target, since, v.Now):
		return v.recordRestart(since)
	case v.isHeld():
		return v.writeUnblocked(0)
	}
	if d, decided := v.checkTarget(instant); decided {
		return d
	}
	return Decision{Action: RestartTarget{Time: since, Due: v.startableSince(instant)}}
}

// recordRestart records that the workload was restarted at the given time or later. The
// deadline for the rollout counts from now.
func (v *view) recordRestart(since time.Time) Decision {
	status := v.At.Status.DeepCopy()
	removeBlocked(status)
	setProgress(status, v.Target)
	status.StartTime = &metav1.Time{Time: v.Now}
	status.Restart.RestartedAt = &metav1.Time{Time: *v.Target.RestartedAt}
	message := fmt.Sprintf("Restarted %s", v.Target)
	if v.Target.RestartedAt.After(since) {
		message = fmt.Sprintf("%s was already restarted at %s, after the scheduled time: it is not restarted again.", v.Target, v.Target.RestartedAt.UTC().Format(time.RFC3339))
	}
	return v.write(status, NewEvent(corev1.EventTypeNormal, v1alpha1.ReasonRestarted, message))
}

// isTarget reports whether a workload is the one that the restart began with.
func isTarget(at *v1alpha1.At, target *rollout.Target) bool {
	return target != nil && target.UID == at.Status.Restart.UID
}

// unfit returns why a workload cannot be restarted; reason is empty if it can.
func unfit(at *v1alpha1.At, target *rollout.Target) (reason, message string) {
	restart := at.Spec.Restart
	switch {
	case isRestart(at) && !isTarget(at, target):
		return v1alpha1.ReasonTargetNotFound, fmt.Sprintf("%s %s was deleted during its restart.", restart.Kind, restart.Name)
	case target == nil:
		return v1alpha1.ReasonTargetNotFound, fmt.Sprintf("%s %s does not exist.", restart.Kind, restart.Name)
	case target.Paused:
		return v1alpha1.ReasonTargetPaused, fmt.Sprintf("%s is paused and would not roll out a restart: see kubectl rollout resume.", target)
	case target.OnDelete:
		return v1alpha1.ReasonTargetOnDelete, fmt.Sprintf("%s has the update strategy OnDelete: a restart would not replace any Pod. Set spec.updateStrategy.type to RollingUpdate.", target)
	default:
		return "", ""
	}
}

func (v *view) retryRestartForbidden() Decision {
	return v.retryBlocked(v1alpha1.ReasonRestartForbidden, errors.New(restartForbiddenMessage(v.TargetForbidden)))
}

// restartForbiddenMessage says what the user that err names needs. artifacts/restarts would
// grant it to the service account of artifacts/deploy, which may be another user.
func restartForbiddenMessage(err error) string {
	return fmt.Sprintf("%v: ask a cluster administrator to grant this user the verbs get and patch, as artifacts/restarts/rbac.yaml does", err)
}

// followRollout follows the rollout of a restarted workload.
func (v *view) followRollout() Decision {
	target, left := v.Target, v.activeLeft
	reason, message := unfit(v.At, target)
	switch {
	case v.TargetForbidden != nil && left <= 0:
		return v.writeDone(nil, v1alpha1.ReasonDeadlineExceeded, v.activeDeadlineMessage())
	case v.TargetForbidden != nil:
		return v.retryRestartForbidden()
	case !isTarget(v.At, target):
		return v.writeDone(nil, reason, message)
	}
	status := v.At.Status.DeepCopy()
	setProgress(status, target)
	progressed := v.withStatus(status)
	switch {
	case target.RestartedAt == nil || target.RestartedAt.Before(status.Restart.RestartedAt.Time):
		return progressed.writeDone(nil, v1alpha1.ReasonReverted, fmt.Sprintf("The restart of %s at %s was reverted, for example by kubectl rollout undo or a GitOps tool: its annotation %s is now %q.",
			target, status.Restart.RestartedAt.UTC().Format(time.RFC3339), rollout.AnnotationRestartedAt, target.Annotation))
	case target.OnDelete:
		return progressed.writeDone(nil, reason, message)
	case target.Complete:
		return progressed.writeDone(nil, v1alpha1.ReasonCompleted, fmt.Sprintf("%s has been restarted: %s.", target, target.Progress()))
	case target.Failed:
		return progressed.writeDone(nil, v1alpha1.ReasonRolloutFailed, fmt.Sprintf("The rollout of %s made no progress within its spec.progressDeadlineSeconds: %s. See kubectl rollout status and kubectl rollout undo.", target, target.Progress()))
	case left <= 0:
		return progressed.writeDone(nil, v1alpha1.ReasonDeadlineExceeded, v.activeDeadlineMessage()+fmt.Sprintf(" The rollout of %s continues: %s.", target, target.Progress()))
	}
	var events []Event
	if target.Paused {
		events = v.setBlocked(status, v1alpha1.ReasonTargetPaused, fmt.Sprintf("%s was paused during its rollout: see kubectl rollout resume.", target))
	} else {
		removeBlocked(status)
	}
	d := v.write(status, events...)
	d.Delay = min(left, rolloutPeriod(v.Now.Sub(status.StartTime.Time)))
	return d
}

// setProgress sets the progress of the rollout in a status that has a restart.
func setProgress(status *v1alpha1.AtStatus, target *rollout.Target) {
	status.Restart.Desired, status.Restart.Updated, status.Restart.Available = target.Desired, target.Updated, target.Available
	status.Reason, status.Message = "", target.Progress()
}

// restartTime returns the value of a workload's annotation: the time at which the restart
// was due or, if the At was created later, its creation time. An At that is deleted and
// created again therefore restarts the workload again.
func restartTime(at *v1alpha1.At, instant time.Time) time.Time {
	if created := at.CreationTimestamp.Time; created.After(instant) {
		instant = created
	}
	return instant.UTC().Truncate(time.Second)
}

// isRestarted reports whether a workload was restarted at the given time or later. A
// future time comes from another clock or was written by hand, and is ignored.
func isRestarted(target *rollout.Target, since, now time.Time) bool {
	at := target.RestartedAt
	return at != nil && (at.Equal(since) || at.After(since) && at.Before(now.Add(Grace)))
}

func rolloutPeriod(elapsed time.Duration) time.Duration {
	return min(max(elapsed/10, minRolloutPeriod), maxRolloutPeriod)
}

// isRestart reports whether the run of an At is a restart.
func isRestart(at *v1alpha1.At) bool { return at.Status.Restart != nil }

// wasRestarted reports whether the restart of an At's workload is recorded.
func wasRestarted(at *v1alpha1.At) bool {
	return isRestart(at) && at.Status.Restart.RestartedAt != nil
}

// ForeseeRestart returns a forecast for a restart from reading the workload of
// spec.restart; nil if the result does not allow a prediction.
func ForeseeRestart(at *v1alpha1.At, target *rollout.Target, err error) *Forecast {
	switch {
	case apierrors.IsForbidden(err):
		return newForecast(v1alpha1.ReasonRestartForbidden, restartForbiddenMessage(err))
	case err != nil && !answer.IsNotFound(err, at.Spec.Restart.Name):
		return nil
	}
	reason, message := unfit(at, target)
	return newForecast(reason, message)
}
