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
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// State is the state of an At in the metrics.
type State string

// The states of an At.
const (
	// StatePending: not due yet, or a child that waits for its parent.
	StatePending State = "pending"
	// StateDue: due, but its first Pod is not recorded yet.
	StateDue State = "due"
	// StateBlocked: PENDING, and condition Blocked is True.
	StateBlocked State = "blocked"
	// StateSuspended: PENDING, and spec.suspend is true.
	StateSuspended State = "suspended"
	// StateRunning: the phase is RUNNING.
	StateRunning State = "running"
	// StateDone: the phase is DONE.
	StateDone State = "done"
)

// StateOf returns the state of an At that is not being deleted. For a child, parent is
// the At that created it, or nil if the parent is gone. overdue is how long the
// controller could have created the Pod of the first or next attempt but has not recorded
// it. It is 0 if no Pod is due, or if the At is suspended or blocked by something other
// than the API server.
func StateOf(at, parent *v1alpha1.At, now time.Time) (state State, overdue time.Duration) {
	waits := isSuspended(at) || isBlockedByOthers(at)
	switch {
	case at.Status.Phase == v1alpha1.PhaseDone:
		return StateDone, 0
	case isNodesRun(at) && !waits && !allChildrenExist(at):
		return StateRunning, max(0, now.Sub(at.Status.StartTime.Time))
	case isRestart(at) && !waits && !wasRestarted(at):
		return StateRunning, max(0, now.Sub(at.Status.StartTime.Time))
	case at.Status.Phase == v1alpha1.PhaseRunning && (waits || at.Status.NextAttemptTime == nil):
		return StateRunning, 0
	case at.Status.Phase == v1alpha1.PhaseRunning:
		return StateRunning, max(0, now.Sub(dueSince(at, parent, at.Status.NextAttemptTime.Time)))
	case isSuspended(at):
		return StateSuspended, 0
	case waits:
		return StateBlocked, 0
	}
	switch instant, err := Instant(&at.Spec); {
	case err == nil && !now.Before(instant) && !waitsForParent(at, parent):
		return StateDue, max(0, now.Sub(dueSince(at, parent, instant)))
	case HasForecast(at):
		return StateBlocked, 0
	default:
		return StatePending, 0
	}
}

// IsStarting reports whether an At has Pods, none of which has ended, while its phase is
// still PENDING.
func IsStarting(at *v1alpha1.At, pods []*corev1.Pod) bool {
	return at.Status.Phase == v1alpha1.PhasePending && len(pods) > 0 && !slices.ContainsFunc(pods, hasEnded)
}
