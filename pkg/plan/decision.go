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
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/rollout"
)

// World is what a decision rests on.
type World struct {
	// At is the At; nil if there is none of that name.
	At *v1alpha1.At
	// Pods are the Pods that AtName says are of an At of that name, and the Pod that has
	// the name PodName gives, of any owner.
	Pods []*corev1.Pod
	// Parent is, if the At is one of a node, the At that made it; nil if that is gone.
	Parent *v1alpha1.At
	// Children are the Ats that the At has made, one for each node. ChildrenAreLive is
	// set if they were read from the API server in this sync.
	Children        []*v1alpha1.At
	ChildrenAreLive bool
	// Nodes are the nodes of the cluster, if NodesAreKnown.
	Nodes         []*corev1.Node
	NodesAreKnown bool
	// NodeName is the name of the node that was looked for in this sync; empty if none
	// was. Node is that node; nil if it does not exist.
	NodeName string
	Node     *corev1.Node
	// NodesForbidden is the answer of the API server, if the controller may not read nodes.
	NodesForbidden error
	// Target is the workload of spec.restart; nil if there is none. TargetForbidden is the
	// answer of the API server, if the controller may not read it. TargetIsLive is set if
	// it was looked for in this sync.
	Target          *rollout.Target
	TargetForbidden error
	TargetIsLive    bool
	// AtIsLive is set if At was read from the API server in this sync. From a cache it
	// may be outdated, and without its command and template.
	AtIsLive bool
	// PodIsLive is set if the Pod of the present attempt, or that there is none, was
	// read from the API server in this sync.
	PodIsLive bool
	// Forecast is what the last preflight of the At, as it is, has found; nil if there was
	// none.
	Forecast *Forecast
	// Now is the wall clock.
	Now time.Time
}

// NodesNotRead takes an error of reading nodes: that the controller may not is something to
// decide on. Any other error is returned.
func (w *World) NodesNotRead(err error) error {
	if !apierrors.IsForbidden(err) {
		return fmt.Errorf("look for nodes: %w", err)
	}
	w.NodesForbidden = err
	return nil
}

// pod returns the Pod that has the name of the present attempt's, or nil.
func (w *World) pod() *corev1.Pod {
	name := PodName(w.At)
	if i := slices.IndexFunc(w.Pods, func(pod *corev1.Pod) bool { return pod.Name == name }); i >= 0 {
		return w.Pods[i]
	}
	return nil
}

// HasPod says whether there is a Pod that has the name of the present attempt's.
func (w *World) HasPod() bool { return w.pod() != nil }

// Decision is the next step. The zero value is: nothing to do until the At or its
// Pods change.
type Decision struct {
	// Action is what to do beside writing the status; nil if there is nothing. A
	// decision has an action or a status, not both.
	Action Action
	// Status is the status to write; nil if it stays as it is. What to do next is then to
	// be decided on what the API server returns, unless Retry is set.
	Status *v1alpha1.AtStatus
	// Events are to be recorded once the action is done, or the status written. If the
	// status counts an attempt that has ended, the last event is of that end.
	Events []Event
	// Preflight is set if a preflight is needed: see Forecast.
	Preflight bool
	// Delay is the time after which to decide again, if the wall clock is not stepped
	// meanwhile; 0 if there is no need.
	Delay time.Duration
	// Retry is set if the step must be retried with back-off, and says why. With
	// ErrBlocked the status reports the cause, or it will be gone in a moment. Delay,
	// unless it is 0, is then the time after which to decide again at the latest.
	Retry error
}

// Action is one of the types below.
type Action interface{ isAction() }

// LookForAt is to read the At from the API server, and to decide again.
type LookForAt struct{}

// LookForPod is to read the Pod that has the name of the present attempt's from the API
// server, and to decide again.
type LookForPod struct{}

// LookForNodes is to read the nodes of the cluster, and to decide again.
type LookForNodes struct{}

// LookForNode is to read a node, and to decide again.
type LookForNode struct{ Name string }

// LookForTarget is to read the workload of spec.restart, and to decide again.
type LookForTarget struct{}

// LookForAts is to read the At's children from the API server, and to decide again.
type LookForAts struct{}

// CreateAts is to create children of the At, which is live, and to decide again. What
// follows an error depends on the answer: see RefusedAt and AtNameTaken.
type CreateAts struct{ Ats []*v1alpha1.At }

// ResumeAts is to resume children of the At, one after the other, and to stop at the
// first that has changed meanwhile.
type ResumeAts struct{ Ats []*v1alpha1.At }

// ReleaseAt is to take the finalizer from the At.
type ReleaseAt struct{}

// CreatePod is to create the Pod (see NewPod) of an At that is live. What follows
// depends on the answer: see Refused.
type CreatePod struct {
	// Due is since when that Pod could have been created, for the metrics: since its
	// time or, if that is later, since the At was created, resumed, edited (in whole
	// seconds) or no longer blocked.
	Due time.Time
}

// RestartTarget is to restart the workload of spec.restart as it was read, and to decide
// again. What follows an error depends on the answer: see RefusedRestart.
type RestartTarget struct {
	// Time is the time that the annotation of the workload gets.
	Time time.Time
	// Due is since when the restart could have begun, for the metrics: as in CreatePod.
	Due time.Time
}

// DeletePod is to delete a Pod.
type DeletePod struct {
	Pod *corev1.Pod
	// Unexpected is set if the Pod is a second one of an attempt.
	Unexpected bool
}

// ReleasePod is to take the finalizer from a Pod.
type ReleasePod struct{ Pod *corev1.Pod }

// DeleteAt is to delete the At.
type DeleteAt struct{}

// NameOf returns the name of an action, for the log.
func NameOf(action Action) string {
	if action == nil {
		return "none"
	}
	return reflect.TypeOf(action).Name()
}

func (LookForAt) isAction()     {}
func (LookForPod) isAction()    {}
func (LookForNodes) isAction()  {}
func (LookForNode) isAction()   {}
func (LookForTarget) isAction() {}
func (LookForAts) isAction()    {}
func (CreateAts) isAction()     {}
func (ResumeAts) isAction()     {}
func (ReleaseAt) isAction()     {}
func (CreatePod) isAction()     {}
func (RestartTarget) isAction() {}
func (DeletePod) isAction()     {}
func (ReleasePod) isAction()    {}
func (DeleteAt) isAction()      {}

// Event is an event on an At.
type Event struct {
	// Type is corev1.EventTypeNormal or corev1.EventTypeWarning.
	Type string
	// Reason is one of the reason constants of the API.
	Reason string
	// Message is for people.
	Message string
}

// ErrBlocked is in Decision.Retry if the At's status reports what blocks it, or if it
// is a matter of moments.
var ErrBlocked = errors.New("blocked")

// checkDelay is how often the Pod of a run is looked for in case its events do not come:
// somebody may remove the label by which the informer selects it.
const checkDelay = time.Minute

// grace is how long what should pass by itself is not reported: the Pod of an earlier
// At, a Pod without a node, a Pod deleted by force.
const grace = time.Minute
