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

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
)

// A rollout is checked again after a tenth of the time that it has taken so far, within
// these limits. Watching all workloads would cost more and need more permissions.
const (
	minRolloutPeriod = 2 * time.Second
	maxRolloutPeriod = 15 * time.Second
)

// TargetNotRead handles an error from reading the workload of spec.restart. A NotFound or
// Forbidden error becomes part of the World; any other error is returned.
func (w *World) TargetNotRead(err error) error {
	w.Target, w.TargetForbidden, w.TargetIsShared = nil, nil, false
	switch {
	case apierrors.IsForbidden(err):
		w.TargetForbidden = err
	case !answer.IsNotFound(err, w.At.Spec.Restart.Name):
		return fmt.Errorf("read the workload: %w", err)
	}
	w.TargetIsLive = true
	return nil
}

// decideRestartDue decides for an At whose restart has been due since the given instant.
// The phase becomes RUNNING before the workload is restarted, so that the At cannot be
// edited in between.
func decideRestartDue(w World, instant time.Time) Decision {
	at, target := w.At, w.Target
	left := startingTimeLeft(at, instant, w.Now)
	if waitsForRollout(at) && !w.AtIsLive && left > 0 {
		// It goes on waiting without reading the At and its Pod each time.
		switch {
		case !w.TargetIsLive && !w.TargetIsShared:
			return Decision{Action: LookForTarget{MayBeShared: true}}
		case target != nil && target.Rolling && !isRestarted(target, restartTime(at, instant), w.Now):
			return waitForRollout(w, instant)
		}
	}
	switch {
	case !w.AtIsLive:
		return Decision{Action: LookForAt{}}
	case !w.PodIsLive:
		// The At may have had a command when it was due, and its Pod may not be in the cache.
		return Decision{Action: LookForPod{}}
	case left <= 0:
		return writeStartingDeadlineExceeded(at, w.Now)
	case !w.TargetIsLive:
		return Decision{Action: LookForTarget{}}
	case w.TargetForbidden != nil:
		return retryBlocked(at, w.Now, v1alpha1.ReasonRestartForbidden, errors.New(restartForbiddenMessage(w.TargetForbidden)))
	}
	reason, message := unfit(at, target)
	switch {
	case reason != "":
		return writeDone(at, nil, w.Now, reason, message)
	case isRestarted(target, restartTime(at, instant), w.Now):
		// The rollout belongs to this restart.
	case target.Rolling:
		return waitForRollout(w, instant)
	case target.Desired == 0:
		return writeDone(at, nil, w.Now, v1alpha1.ReasonCompleted, fmt.Sprintf("%s has no Pods to replace: there was nothing to do.", target))
	}
	status := at.Status.DeepCopy()
	removeBlocked(status)
	status.Phase = v1alpha1.PhaseRunning
	status.StartTime = &metav1.Time{Time: w.Now}
	if !instant.IsZero() {
		status.ScheduledTime = &metav1.Time{Time: instant}
	}
	status.Restart = &v1alpha1.AtRestartStatus{UID: target.UID, Desired: target.Desired}
	status.Reason, status.Message = "", fmt.Sprintf("Restarting %s.", target)
	return write(at, status)
}

// waitsForRollout reports whether an At is known to wait for another rollout.
func waitsForRollout(at *v1alpha1.At) bool {
	blocked := Blocked(at)
	return blocked != nil && blocked.Reason == v1alpha1.ReasonRolloutInProgress
}

// waitForRollout returns the decision to wait for a rollout that is not that of this restart.
func waitForRollout(w World, instant time.Time) Decision {
	d := writeBlocked(w.At, w.Now, v1alpha1.ReasonRolloutInProgress, fmt.Sprintf("%s is already being rolled out: the restart waits until all of its Pods are updated.", w.Target))
	d.Delay = min(startingTimeLeft(w.At, instant, w.Now), rolloutPeriod(w.Now.Sub(instant)))
	return d
}

// decideRestart decides for an At whose restart has begun: it restarts the workload, or
// follows its rollout.
func decideRestart(w World) Decision {
	restarted := wasRestarted(w.At)
	switch {
	case !restarted && !w.AtIsLive:
		// Do not trust the cache: another controller may have restarted the workload, and a
		// user may have reverted that.
		return Decision{Action: LookForAt{}}
	case restarted && !w.TargetIsLive && !w.TargetIsShared:
		return Decision{Action: LookForTarget{MayBeShared: true}}
	case restarted:
		d := followRollout(w)
		if ends := d.Status != nil && d.Status.Phase == v1alpha1.PhaseDone; ends && !w.TargetIsLive {
			// The end must not depend on a workload as it was before the restart.
			return Decision{Action: LookForTarget{}}
		}
		return d
	case !w.TargetIsLive:
		return Decision{Action: LookForTarget{}}
	case !staleness.IsFresh(w.AtAsOf, w.Now):
		// Looking for the workload took long.
		return Decision{Action: LookForAt{}}
	default:
		return restartNow(w)
	}
}

// restartNow restarts the workload. The workload's annotation is the lock: if it has the
// time of this restart or a later time, the workload has been restarted.
func restartNow(w World) Decision {
	at, target, instant := w.At, w.Target, restartInstant(w.At)
	since := restartTime(at, instant)
	switch {
	case isTarget(at, target) && isRestarted(target, since, w.Now):
		return recordRestart(w, since)
	case w.isHeld():
		return writeUnblocked(at, 0)
	case startingTimeLeft(at, instant, w.Now) <= 0:
		return writeStartingDeadlineExceeded(at, w.Now)
	case w.TargetForbidden != nil:
		return retryBlocked(at, w.Now, v1alpha1.ReasonRestartForbidden, errors.New(restartForbiddenMessage(w.TargetForbidden)))
	case !isTarget(at, target):
		return writeTargetDeleted(at, w.Now)
	}
	if reason, message := unfit(at, target); reason != "" {
		return writeDone(at, nil, w.Now, reason, message)
	}
	due := dueSince(at, nil, instant)
	if isBlockedByOthers(at) || due.Before(at.Status.StartTime.Time) {
		// It was blocked until then.
		due = at.Status.StartTime.Time
	}
	return Decision{Action: RestartTarget{Time: since, Due: due}}
}

// recordRestart records that the workload was restarted at the given time or later. The
// deadline for the rollout counts from now.
func recordRestart(w World, since time.Time) Decision {
	status := w.At.Status.DeepCopy()
	removeBlocked(status)
	setProgress(status, w.Target)
	status.StartTime = &metav1.Time{Time: w.Now}
	status.Restart.RestartedAt = &metav1.Time{Time: *w.Target.RestartedAt}
	message := fmt.Sprintf("Restarted %s", w.Target)
	if w.Target.RestartedAt.After(since) {
		message = fmt.Sprintf("%s was already restarted at %s, after the scheduled time: it is not restarted again.", w.Target, w.Target.RestartedAt.UTC().Format(time.RFC3339))
	}
	return write(w.At, status, NewEvent(corev1.EventTypeNormal, v1alpha1.ReasonRestarted, message))
}

// isTarget reports whether a workload is the one that the restart began with.
func isTarget(at *v1alpha1.At, target *rollout.Target) bool {
	return target != nil && target.UID == at.Status.Restart.UID
}

func writeTargetDeleted(at *v1alpha1.At, now time.Time) Decision {
	return writeDone(at, nil, now, v1alpha1.ReasonTargetNotFound, fmt.Sprintf("%s %s was deleted during its restart.", at.Spec.Restart.Kind, at.Spec.Restart.Name))
}

// RefusedRestart returns the decision after the API server answered the restart of the
// workload with err.
func RefusedRestart(w World, err error) Decision {
	return refused(w, v1alpha1.ReasonRestartRefused, err)
}

// unfit returns why a workload cannot be restarted; reason is empty if it can.
func unfit(at *v1alpha1.At, target *rollout.Target) (reason, message string) {
	restart := at.Spec.Restart
	switch {
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

// restartForbiddenMessage says what the user that err names needs. artifacts/restarts would
// grant it to the service account of artifacts/deploy, which may be another user.
func restartForbiddenMessage(err error) string {
	return fmt.Sprintf("%v: ask a cluster administrator to grant this user the verbs get and patch, as artifacts/restarts/rbac.yaml does", err)
}

// followRollout follows the rollout of a restarted workload.
func followRollout(w World) Decision {
	target, left := w.Target, activeTimeLeft(w.At, &w.At.Status, w.Now)
	switch {
	case w.TargetForbidden != nil && left <= 0:
		return writeDone(w.At, nil, w.Now, v1alpha1.ReasonDeadlineExceeded, activeDeadlineMessage(w.At))
	case w.TargetForbidden != nil:
		return retryBlocked(w.At, w.Now, v1alpha1.ReasonRestartForbidden, errors.New(restartForbiddenMessage(w.TargetForbidden)))
	case !isTarget(w.At, target):
		return writeTargetDeleted(w.At, w.Now)
	}
	at := w.At.DeepCopy()
	setProgress(&at.Status, target)
	switch {
	case target.RestartedAt == nil || target.RestartedAt.Before(at.Status.Restart.RestartedAt.Time):
		return writeDone(at, nil, w.Now, v1alpha1.ReasonReverted, fmt.Sprintf("The restart of %s at %s was reverted, for example by kubectl rollout undo or a GitOps tool: its annotation %s is now %q.",
			target, at.Status.Restart.RestartedAt.UTC().Format(time.RFC3339), rollout.AnnotationRestartedAt, target.Annotation))
	case target.OnDelete:
		reason, message := unfit(at, target)
		return writeDone(at, nil, w.Now, reason, message)
	case target.Complete:
		return writeDone(at, nil, w.Now, v1alpha1.ReasonCompleted, fmt.Sprintf("%s has been restarted: %s.", target, target.Progress()))
	case target.Failed:
		return writeDone(at, nil, w.Now, v1alpha1.ReasonRolloutFailed, fmt.Sprintf("The rollout of %s made no progress within its spec.progressDeadlineSeconds: %s. See kubectl rollout status and kubectl rollout undo.", target, target.Progress()))
	case left <= 0:
		return writeDone(at, nil, w.Now, v1alpha1.ReasonDeadlineExceeded, activeDeadlineMessage(at)+fmt.Sprintf(" The rollout of %s continues: %s.", target, target.Progress()))
	}
	removeBlocked(&at.Status)
	var events []Event
	if target.Paused {
		events = setBlocked(w.At, &at.Status, w.Now, v1alpha1.ReasonTargetPaused, fmt.Sprintf("%s was paused during its rollout: see kubectl rollout resume.", target))
	}
	d := write(w.At, &at.Status, events...)
	d.Delay = min(left, rolloutPeriod(w.Now.Sub(at.Status.StartTime.Time)))
	return d
}

// setProgress sets the progress of the rollout in a status that has a restart.
func setProgress(status *v1alpha1.AtStatus, target *rollout.Target) {
	status.Restart.Desired, status.Restart.Updated, status.Restart.Available = target.Desired, target.Updated, target.Available
	status.Reason, status.Message = "", target.Progress()
}

// restartInstant returns when the restart that an At follows was due.
func restartInstant(at *v1alpha1.At) time.Time {
	if at.Status.ScheduledTime == nil {
		return time.Time{}
	}
	return at.Status.ScheduledTime.Time
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
	return at != nil && (at.Equal(since) || at.After(since) && at.Before(now.Add(grace)))
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
