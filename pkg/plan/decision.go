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
	"fmt"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
)

// World is the input of a decision.
type World struct {
	// At is nil if no At of that name exists.
	At *v1alpha1.At
	// Pods are the Pods that belong to an At of that name according to AtName, and the Pod
	// named PodName, regardless of its owner.
	Pods []*corev1.Pod
	// Parent is the At that created this one, if this At is a child; nil if the parent is
	// gone.
	Parent *v1alpha1.At
	// Children are the Ats that this At created, one for each node. ChildrenAreLive is true
	// if they were read from the API server in this sync.
	Children        []*v1alpha1.At
	ChildrenAreLive bool
	// Nodes are the nodes of the cluster. They are valid only if NodesAreKnown is true.
	Nodes         []*corev1.Node
	NodesAreKnown bool
	// NodeName is the name of the node that was looked up in this sync, or "" if none was.
	// Node is that node, or nil if it does not exist.
	NodeName string
	Node     *corev1.Node
	// NodesForbidden is the API server's error if the controller is not allowed to read
	// nodes.
	NodesForbidden error
	// Target is the workload of spec.restart, or nil if it does not exist. TargetForbidden
	// is the API server's error if the controller is not allowed to read it. TargetIsLive is
	// true if the workload was read in this sync; TargetIsShared, if it may have been read
	// moments ago for another At.
	Target          *rollout.Target
	TargetForbidden error
	TargetIsLive    bool
	TargetIsShared  bool
	// AtIsLive is true if At was read from the API server in this sync. An At from a cache
	// may be outdated, and may lack its command and template.
	AtIsLive bool
	// AtAsOf is when At was read from the API server, by the answer. For an At from a cache,
	// it is a time before which nothing was changed that is not in the cache, or the zero
	// time if that is unknown. ParentAsOf is the same for Parent.
	AtAsOf, ParentAsOf time.Time
	// PodIsLive is true if the Pod of the current attempt, or its absence, was read from the
	// API server in this sync.
	PodIsLive bool
	// PodIsAdmitted is true if the API server admitted the Pod in a dry-run in this sync.
	PodIsAdmitted bool
	// PodEvent is the newest event about the Pod of the current attempt, or nil if there is
	// none. PodEventIsRead is true if it was looked up in this sync, and PodEventIsKnown if that
	// succeeded.
	PodEvent                        *PodEvent
	PodEventIsRead, PodEventIsKnown bool
	// Rehearses is false if rehearsals are turned off.
	Rehearses bool
	// Forecast is the result of the last preflight of the At in its current form, or nil if
	// there was none.
	Forecast *Forecast
	// Now is the wall-clock time.
	Now time.Time
}

// NodesNotRead handles an error from reading nodes. A Forbidden error becomes part of the
// World; any other error is returned.
func (w *World) NodesNotRead(err error) error {
	if !apierrors.IsForbidden(err) {
		return fmt.Errorf("read nodes: %w", err)
	}
	w.NodesForbidden = err
	return nil
}

// isFresh reports whether At is recent and complete enough to create its Pod, and so is
// its parent, if it has one.
func (w *World) isFresh() bool {
	return (w.AtIsLive || IsWhole(w.At) && HasWholeStatus(w.At)) && staleness.IsFresh(w.AtAsOf, w.Now) && (ParentName(w.At) == "" || staleness.IsFresh(w.ParentAsOf, w.Now))
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
	// Status is the status to write, or nil to leave it unchanged. Unless Retry is set, the
	// next decision is based on what the API server returns for the write.
	Status *v1alpha1.AtStatus
	// Events must be recorded after the action succeeded or the status was written. If the
	// status counts an ended attempt, the last event reports that end.
	Events []Event
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

// LookForAt means: read the At from the API server, and its parent unless that is fresh,
// then decide again.
type LookForAt struct{}

// LookForPod means: read the Pod with the name of the current attempt's Pod from the API
// server, then decide again.
type LookForPod struct{}

// LookForPodEvent means: look up the newest event about the Pod, then decide again.
type LookForPodEvent struct{ Pod *corev1.Pod }

// LookForNodes means: read the nodes of the cluster, then decide again.
type LookForNodes struct{}

// LookForNode means: read a node, then decide again.
type LookForNode struct{ Name string }

// LookForTarget means: read the workload of spec.restart, then decide again.
type LookForTarget struct {
	// MayBeShared is true if it is enough that the workload was read moments ago: very many
	// Ats may wait for one rollout.
	MayBeShared bool
}

// LookForAts means: read the At's children from the API server, then decide again.
type LookForAts struct{}

// CreateAts means: create children of the At, which is live, then decide again. See
// RefusedAt and AtNameTaken for the decision after an error.
type CreateAts struct{ Ats []*v1alpha1.At }

// ResumeAts means: resume children of the At one after the other, and stop at the first
// one that has changed in the meantime.
type ResumeAts struct{ Ats []*v1alpha1.At }

// ReleaseAt means: remove the finalizer from the At.
type ReleaseAt struct{}

// TryPod means: create the Pod of an At that is live in a dry-run, then decide again. See
// IsAdmitted and Refused for its answer.
type TryPod struct{}

// CreatePod means: create the Pod (see NewPod) of an At that is fresh. See Refused for the
// decision after an error.
type CreatePod struct {
	// Due is the time since which that Pod could have been created, for the metrics. It is
	// the latest of: the scheduled time, and the times at which the At was created, resumed,
	// edited (in whole seconds) or unblocked.
	Due time.Time
}

// RestartTarget means: restart the workload of spec.restart as it was read, then decide
// again. See RefusedRestart for the decision after an error.
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

// NameOf returns the name of an action for the log.
func NameOf(action any) string {
	if action == nil {
		return "none"
	}
	return reflect.TypeOf(action).Name()
}

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
