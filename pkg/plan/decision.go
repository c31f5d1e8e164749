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
	"programming-kubernetes.info/cnat-controller/pkg/freeze"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
)

// World is the input of a decision: what was observed.
type World struct {
	// At is nil if no At of that name exists.
	At *v1alpha1.At
	// Pods are the Pods that belong to an At of that name according to AtName, and the Pod
	// named PodName, regardless of its owner.
	Pods []*corev1.Pod
	// Parent is the At that created this one, if this At is a child; nil if the parent is
	// gone.
	Parent *v1alpha1.At
	// Children are the Ats that this At created, one for each node.
	Children []*v1alpha1.At
	// Node is the node that NodeOf names, or nil if it does not exist. Nodes are those of the
	// cluster, if WantsNodes. NodesErr is why neither is known: the cache of nodes is not
	// filled yet, or the controller is not allowed to read nodes.
	Node     *corev1.Node
	Nodes    []*corev1.Node
	NodesErr error
	// Target is the workload of spec.restart, if WantsTarget, or nil if it does not exist.
	// TargetForbidden is the API server's error if the controller is not allowed to read it.
	Target          *rollout.Target
	TargetForbidden error
	// PodEvent is the newest event about the Pod of the current attempt, if WantsPodEvent: the
	// zero value if there is none, or nil if that is unknown.
	PodEvent *PodEvent
	// Refusal is the answer of the API server to the creation of the Pod in a dry-run, if
	// WantsTrial, unless it would admit the Pod.
	Refusal error
	// Failures is how many times in a row the Pod could not be created.
	Failures int
	// Live is what was read from the API server. The rest is from caches, which may be
	// outdated, and lack long commands and templates.
	Live Reads
	// AsOf is a time: At and Parent have all changes that were made before it. It is the zero time
	// if that is unknown.
	AsOf time.Time
	// Frozen is the Freeze that keeps the At from starting anything, or nil. FreezesUnknown is why
	// that is not known.
	Frozen         *freeze.Hold
	FreezesUnknown error
	// Rehearses is false if rehearsals are turned off.
	Rehearses bool
	// Forecast is the result of the last preflight of the At in its current form, or nil if
	// there was none.
	Forecast *Forecast
	// Now is the wall-clock time.
	Now time.Time
}

// Reads says what is read from the API server.
type Reads int

// What can be read.
const (
	// Cached is nothing: all is from caches.
	Cached Reads = iota
	// LiveAt is the At, and its parent unless the cache is fresh.
	LiveAt
	// LiveAll is that, and what shows whether the run can start or has ended: the Pod with the
	// name of the current attempt's Pod, its node, the children or the workload.
	LiveAll
)

// needs returns what must be read before a decision is carried out. A decision from the cache
// alone must not start anything, and must not end a run unless a Pod shows its end.
func (w *World) needs(d Decision) Reads {
	isFresh := staleness.IsFresh(w.AsOf, w.Now)
	need := Cached
	switch action := d.Action.(type) {
	case CreatePod:
		// Another controller may have run the At, and its Pod may be gone. Or a user may have just
		// edited, suspended or deleted the At or its parent.
		if !isFresh || w.Live < LiveAt && !IsWhole(w.At) {
			return LiveAt
		}
	case ResumeAts:
		if !isFresh {
			return max(LiveAt, w.needsOfStatus(&w.At.Status))
		}
	case RestartTarget:
		// Another controller may have restarted the workload, and a user may have reverted that.
		if !isFresh {
			return LiveAll
		}
		need = LiveAll
	case CreateAts:
		need = LiveAt
	case ReleaseAt:
		if !HasAllFinalizers(w.At) {
			need = LiveAt
		}
	case ReleasePod:
		if w.At == nil || !IsOf(action.Pod, w.At) {
			need = LiveAt // The At may not be in the cache yet.
		}
	}
	if d.Status != nil {
		need = max(need, w.needsOfStatus(d.Status))
	}
	if need <= w.Live {
		return Cached
	}
	return need
}

// needsOfStatus returns what must be read before a status is written.
func (w *World) needsOfStatus(status *v1alpha1.AtStatus) Reads {
	before, pod, target := &w.At.Status, w.pod(), TrueCondition(status.Conditions, v1alpha1.ConditionFailureTarget)
	if isDone(w.At) {
		return LiveAt // The cache lacks its messages.
	}
	hasEndedPod := pod != nil && status.Pod != nil && pod.UID == status.Pod.UID && hasEnded(pod)
	ends := status.Phase == v1alpha1.PhaseDone && !hasEndedPod
	losesNode := target != nil && target.Reason == v1alpha1.ReasonNodeGone && failureTarget(w.At) == nil
	starts := status.Nodes != nil && before.Nodes == nil || status.Restart != nil && before.Restart == nil
	// A child that is missing counts as failed, and all may start when they have been created.
	counts := before.Nodes != nil && (len(w.Children) < int(before.Nodes.Desired) || before.Nodes.StartTime.IsZero() && !status.Nodes.StartTime.IsZero())
	if ends || losesNode || starts || counts {
		return LiveAll
	}
	return Cached
}

// pod returns the Pod with the name of the current attempt's Pod, or nil.
func (w *World) pod() *corev1.Pod {
	name := PodName(w.At)
	if i := slices.IndexFunc(w.Pods, func(pod *corev1.Pod) bool { return pod.Name == name }); i >= 0 {
		return w.Pods[i]
	}
	return nil
}

// HasPod reports whether a Pod with the name of the current attempt's Pod exists.
func (w *World) HasPod() bool { return w.pod() != nil }

// Decision is the next step. The zero value means that there is nothing to do until the
// At or its Pods change.
type Decision struct {
	// Action is what to do besides writing the status: one of the types below, or nil. A
	// decision never has both an action and a status.
	Action any
	// Status is the status to write, or nil to leave it unchanged.
	Status *v1alpha1.AtStatus
	// Events must be recorded after the action succeeded or the status was written. If the
	// status counts an ended attempt, the last event reports that end.
	Events []Event
	// Needs is what must be read before the action or the write, to decide again from that.
	Needs Reads
	// Preflight is true if a preflight is needed: see Forecast.
	Preflight bool
	// Delay is the time after which to decide again, provided that the wall clock is not
	// stepped in the meantime; 0 if that is not necessary.
	Delay time.Duration
	// Retry is non-nil if the step must be retried with back-off, and is the cause. If it
	// wraps answer.ErrBlocked, the status reports the cause, or the cause will disappear within
	// moments. With Retry, a Delay other than 0 is the time after which to decide again at
	// the latest.
	Retry error
}

// CreateAts means: create children of the At. See Refused and AtNameTaken for the decision after an error.
type CreateAts struct{ Ats []*v1alpha1.At }

// ResumeAts means: resume children of the At one after the other, and stop at the first
// one that has changed in the meantime.
type ResumeAts struct{ Ats []*v1alpha1.At }

// ReleaseAt means: remove the finalizer from the At.
type ReleaseAt struct{}

// CreatePod means: create the Pod (see NewPod). See Refused for the
// decision after an error.
type CreatePod struct {
	// Due is the time since which that Pod could have been created, for the metrics. It is
	// the latest of: the scheduled time, and the times at which the At was created, resumed,
	// edited (in whole seconds) or unblocked.
	Due time.Time
}

// RestartTarget means: restart the workload of spec.restart as it was read. See Refused for the decision after an error.
type RestartTarget struct {
	// Time is the value of the workload's annotation.
	Time time.Time
	// Due is the time since which the restart could have begun, for the metrics, as in
	// CreatePod.
	Due time.Time
}

// DeletePod means: delete a Pod.
type DeletePod struct {
	Pod *corev1.Pod
	// Unexpected is true if the Pod is the second one of an attempt.
	Unexpected bool
}

// ReleasePod means: remove the finalizer from a Pod.
type ReleasePod struct{ Pod *corev1.Pod }

// DeleteAt means: delete the At.
type DeleteAt struct{}

// Event is an event on an At.
type Event struct {
	// Type is corev1.EventTypeNormal or corev1.EventTypeWarning.
	Type string
	// Reason is one of the reason constants of the API.
	Reason string
	// Message is the text for users.
	Message string
}

// checkDelay is the interval at which the Pod of a run is checked even if no events
// arrive: a user may have removed the label by which the informer selects the Pod.
const checkDelay = time.Minute

// Grace is how long a controller waits before it reports a problem that should resolve
// itself, such as the Pod of an earlier At, a Pod without a node, a force-deleted Pod.
const Grace = time.Minute
