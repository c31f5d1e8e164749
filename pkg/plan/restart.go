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
	"programming-kubernetes.info/cnat-controller/pkg/rollout"
)

// A rollout is looked at again after a tenth of the time that it has taken, within these
// limits. To watch all workloads of a cluster would cost more, and need more permission.
const (
	minRolloutPeriod = time.Second
	maxRolloutPeriod = 15 * time.Second
)

// TargetNotRead takes an error of reading the workload of spec.restart: that there is none,
// or that the controller may not read it, is something to decide on. Any other error is
// returned.
func (w *World) TargetNotRead(err error) error {
	w.Target, w.TargetForbidden = nil, nil
	switch {
	case apierrors.IsForbidden(err):
		w.TargetForbidden = err
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("look for the workload: %w", err)
	}
	w.TargetIsLive = true
	return nil
}

// startRestart decides for an At whose restart is due since the given instant. The
// annotation of the workload is the lock against restarting it twice: a restart since the
// instant is this one, or makes this one unnecessary.
func startRestart(w World, instant time.Time) Decision {
	at, target := w.At, w.Target
	left := startingTimeLeft(at, instant, w.Now)
	switch {
	case !w.AtIsLive:
		return Decision{Action: LookForAt{}}
	case !w.PodIsLive:
		// The At may have had a command when it was due, and the cache not have its Pod.
		return Decision{Action: LookForPod{}}
	case !w.TargetIsLive:
		return Decision{Action: LookForTarget{}}
	case target != nil && target.RestartedSince(instant):
		return followRollout(w, instant)
	case left <= 0:
		return writeStartingDeadlineExceeded(at, w.Now)
	case w.TargetForbidden != nil:
		return retryBlocked(at, w.Now, v1alpha1.ReasonRestartForbidden, errors.New(restartForbiddenMessage(w.TargetForbidden)))
	}
	reason, message := unfit(at, target)
	switch {
	case reason != "":
		return writeDone(at, nil, w.Now, reason, message)
	case target.Rolling:
		d := writeBlocked(at, w.Now, v1alpha1.ReasonRolloutInProgress, fmt.Sprintf("%s is being rolled out already: the restart waits until all of its Pods are updated.", target))
		d.Delay = min(left, rolloutPeriod(w.Now.Sub(instant)))
		return d
	case target.Desired == 0:
		return writeDone(at, nil, w.Now, v1alpha1.ReasonCompleted, fmt.Sprintf("%s has no Pods that a restart would replace: there was nothing to do.", target))
	}
	due := dueSince(at, nil, instant)
	if isBlockedByOthers(at) {
		// Until now.
		due = w.Now
	}
	return Decision{Action: RestartTarget{Instant: instant, Due: due}, Delay: delayUntilDeadline(at, w.Now)}
}

// RefusedRestart returns what follows when the API server answered the restart of the
// workload with err.
func RefusedRestart(w World, err error) Decision {
	return refused(w, v1alpha1.ReasonRestartRefused, err)
}

// unfit says why a workload cannot be restarted; reason is empty if it can.
func unfit(at *v1alpha1.At, target *rollout.Target) (reason, message string) {
	restart := at.Spec.Restart
	switch {
	case target == nil:
		return v1alpha1.ReasonTargetNotFound, fmt.Sprintf("%s %s does not exist.", restart.Kind, restart.Name)
	case target.Paused:
		return v1alpha1.ReasonTargetPaused, fmt.Sprintf("%s is paused, and would not roll out a restart: see kubectl rollout resume.", target)
	case target.OnDelete:
		return v1alpha1.ReasonTargetOnDelete, fmt.Sprintf("%s has the update strategy OnDelete: a restart would replace no Pod. Set spec.updateStrategy.type to RollingUpdate.", target)
	default:
		return "", ""
	}
}

func restartForbiddenMessage(err error) string {
	return fmt.Sprintf("%v: an administrator of the cluster permits restarts with kubectl apply -f artifacts/restarts", err)
}

// followRollout begins to follow the rollout of a restart.
func followRollout(w World, instant time.Time) Decision {
	status := w.At.Status.DeepCopy()
	removeBlocked(status)
	status.Phase = v1alpha1.PhaseRunning
	status.StartTime = &metav1.Time{Time: w.Now}
	if !instant.IsZero() {
		status.ScheduledTime = &metav1.Time{Time: instant}
	}
	setProgress(status, w.Target)
	message := fmt.Sprintf("Restarted %s", w.Target)
	if w.Target.RestartedAt.After(instant) {
		message = fmt.Sprintf("%s was restarted at %s, after its time: that is followed.", w.Target, w.Target.RestartedAt.UTC().Format(time.RFC3339))
	}
	return write(w.At, status, newEvent(corev1.EventTypeNormal, v1alpha1.ReasonRestarted, message))
}

// decideRollout decides for an At whose workload is restarted.
func decideRollout(w World) Decision {
	at, target := w.At, w.Target
	left := activeTimeLeft(at, &at.Status, w.Now)
	switch {
	case !w.TargetIsLive:
		return Decision{Action: LookForTarget{}}
	case w.TargetForbidden != nil && left > 0:
		return retryBlocked(at, w.Now, v1alpha1.ReasonRestartForbidden, errors.New(restartForbiddenMessage(w.TargetForbidden)))
	case w.TargetForbidden != nil:
		return writeDone(at, nil, w.Now, v1alpha1.ReasonDeadlineExceeded, activeDeadlineMessage(at))
	case target == nil || target.UID != at.Status.Restart.UID:
		return writeDone(at, nil, w.Now, v1alpha1.ReasonTargetNotFound, fmt.Sprintf("%s %s was deleted during its rollout.", at.Spec.Restart.Kind, at.Spec.Restart.Name))
	}
	next := at.DeepCopy()
	setProgress(&next.Status, target)
	switch {
	case !target.RestartedSince(restartInstant(at)):
		return writeDone(next, nil, w.Now, v1alpha1.ReasonReverted, fmt.Sprintf("Somebody removed the restart from %s during its rollout, as kubectl rollout undo and GitOps tools do.", target))
	case target.Complete:
		return writeDone(next, nil, w.Now, v1alpha1.ReasonCompleted, fmt.Sprintf("%s is restarted: %s.", target, target.Progress()))
	case target.Failed:
		return writeDone(next, nil, w.Now, v1alpha1.ReasonRolloutFailed, fmt.Sprintf("The rollout of %s made no progress within its spec.progressDeadlineSeconds: %s. See kubectl rollout status, and kubectl rollout undo.", target, target.Progress()))
	case left <= 0:
		return writeDone(next, nil, w.Now, v1alpha1.ReasonDeadlineExceeded, activeDeadlineMessage(at)+fmt.Sprintf(" The rollout of %s goes on: %s.", target, target.Progress()))
	}
	removeBlocked(&next.Status)
	d := write(at, &next.Status)
	d.Delay = min(left, rolloutPeriod(w.Now.Sub(at.Status.StartTime.Time)))
	return d
}

// setProgress sets how far the rollout is.
func setProgress(status *v1alpha1.AtStatus, target *rollout.Target) {
	status.Restart = &v1alpha1.AtRestartStatus{UID: target.UID, Desired: target.Desired, Updated: target.Updated, Available: target.Available}
	status.Reason, status.Message = "", target.Progress()
}

// restartInstant returns when the restart that an At follows was due.
func restartInstant(at *v1alpha1.At) time.Time {
	if at.Status.ScheduledTime == nil {
		return time.Time{}
	}
	return at.Status.ScheduledTime.Time
}

func rolloutPeriod(elapsed time.Duration) time.Duration {
	return min(max(elapsed/10, minRolloutPeriod), maxRolloutPeriod)
}

// isRestart says whether an At's run is a restart.
func isRestart(at *v1alpha1.At) bool { return at.Status.Restart != nil }

// ForeseeRestart returns what reading the workload of spec.restart says about its restart;
// nil if it says nothing.
func ForeseeRestart(at *v1alpha1.At, target *rollout.Target, err error) *Forecast {
	switch {
	case apierrors.IsForbidden(err):
		return &Forecast{Reason: v1alpha1.ReasonRestartForbidden, Message: restartForbiddenMessage(err)}
	case err != nil && !apierrors.IsNotFound(err):
		return nil
	}
	reason, message := unfit(at, target)
	return &Forecast{Reason: reason, Message: message}
}
