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

// Package plan decides the next step of an At. It is pure: it reads only the objects and
// the time that it is given, and calls no other component.
//
// decision.go has the World and the Decision. Decide has one function for each state of an At:
//
//   - pending.go, running.go, ended.go: a run of a Pod
//   - nodes.go, progress.go, child.go: a run on nodes, which has a child At for each node
//   - restart.go: a restart of a workload, which has no Pod
//   - cleanup.go: the Pods that a run no longer needs
//
// They use:
//
//   - schedule.go, past.go, freeze.go: when a run is due, and may start
//   - forecast.go, rehearsal.go: what a preflight has found out before that
//   - node.go: the node of a single At
//   - containers.go, waiting.go, outcome.go: what the status of a Pod says
//   - status.go: the status to write
//   - pod.go: the Pod to create, and whose a Pod is
//   - keep.go: what the caches keep of an object
package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// view is a World with what follows from it, derived once. Its At exists.
type view struct {
	World
	// pod is the Pod that has the name of the current attempt's Pod, or nil. owned is true if
	// it belongs to the At.
	pod   *corev1.Pod
	owned bool
	// instant is when the run is due, or scheduleErr says why that is unknown. startingLeft is
	// how long the run may still start; activeLeft, how long it may still take.
	instant                  time.Time
	scheduleErr              error
	startingLeft, activeLeft time.Duration
}

func newView(w World) *view {
	v := &view{World: w, pod: w.pod(), startingLeft: noLimit}
	v.owned = v.pod != nil && IsOf(v.pod, w.At)
	if v.instant, v.scheduleErr = Instant(&w.At.Spec); v.scheduleErr == nil {
		v.startingLeft = v.startingTimeLeft(v.instant)
	}
	v.activeLeft = v.activeTimeLeft()
	return v
}

// withStatus returns the view of an At that has the given status.
func (v *view) withStatus(status *v1alpha1.AtStatus) *view {
	at, changed := *v.At, v.World
	at.Status = *status
	changed.At = &at
	return newView(changed)
}

// Decide returns the next step of an At's run, as if the world were the truth.
func Decide(w World) Decision {
	if w.At == nil || isLeaving(w.At) {
		return Decision{}
	}
	v := newView(w)
	d := v.freeze(v.decideRun())
	// A status that was never written has no observed generation and needs no write.
	if observed := w.At.Status.ObservedGeneration; d.Action == nil && d.Status == nil && observed != 0 && observed != w.At.Generation {
		status := w.At.Status.DeepCopy()
		status.ObservedGeneration = w.At.Generation
		d.Status = status
	}
	d.Needs = w.needs(d)
	return d
}

func (v *view) decideRun() Decision {
	at, pod := v.At, v.pod
	if d, decided := v.decideByParent(); decided {
		return d
	}
	if isDone(at) {
		return v.decideDone()
	}
	if d := v.decideSuspended(); d.Status != nil {
		return d
	}
	switch {
	case isNodesRun(at) && !allChildrenExist(at):
		return v.decideChildren()
	case isNodesRun(at):
		return v.decideProgress()
	case isRestart(at) && !wasRestarted(at):
		return v.decideRestart()
	case isRestart(at):
		return v.followRollout()
	}
	if v.owned && !hasEnded(pod) {
		if d, decided := v.decideOnNode(); decided {
			return d
		}
	}
	switch {
	case recorded(at) && (!v.owned || pod.UID != at.Status.Pod.UID):
		return v.decideGone()
	case v.owned && hasEnded(pod):
		return v.decideEnded()
	case v.owned && isAbandoned(pod, v.Now):
		return v.decideAbandoned()
	case v.owned:
		return v.decideRunning()
	case at.Status.NextAttemptTime != nil:
		return v.decideNextAttempt()
	default:
		return v.decidePending()
	}
}

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
	// StateFrozen: PENDING, and condition Frozen is True.
	StateFrozen State = "frozen"
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
// it. It is 0 if no Pod is due, or if the At or its parent is suspended, or the At is
// blocked by something other than the API server, or waits for the end of a Freeze.
func StateOf(at, parent *v1alpha1.At, now time.Time) (state State, overdue time.Duration) {
	since := func(t time.Time) time.Duration { return max(0, now.Sub(t)) }
	isRunning := at.Status.Phase == v1alpha1.PhaseRunning
	switch {
	case isDone(at):
		return StateDone, 0
	case isRunning && (IsFrozen(at) || isBlockedByOthers(at) || (&World{At: at, Parent: parent}).isHeld()):
		return StateRunning, 0
	case isNodesRun(at) && !allChildrenExist(at), isRestart(at) && !wasRestarted(at):
		return StateRunning, since(at.Status.StartTime.Time)
	case isRunning && at.Status.NextAttemptTime != nil:
		return StateRunning, since(dueSince(at, parent, at.Status.NextAttemptTime.Time))
	case isRunning:
		return StateRunning, 0
	case IsFrozen(at):
		return StateFrozen, 0
	case isSuspended(at):
		return StateSuspended, 0
	case isBlockedByOthers(at):
		return StateBlocked, 0
	}
	switch instant, err := Instant(&at.Spec); {
	case err == nil && !now.Before(instant) && !waitsForParent(at, parent):
		return StateDue, since(dueSince(at, parent, instant))
	case HasForecast(at):
		return StateBlocked, 0
	default:
		return StatePending, 0
	}
}
