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
// Decide has one function for each state of an At, in a file of its own: pending.go,
// running.go, ended.go, nextattempt.go, done.go. An At with spec.nodes creates a child At
// for each node: nodes.go chooses the nodes, progress.go counts the children, and
// child.go decides what the children wait for. node.go handles the node of a single At.
// restart.go handles an At with spec.restart, which has no Pod. CleanUp decides for the
// Pods that a run no longer needs.
package plan

import (
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// Decide returns the next step of an At's run.
func Decide(w World) Decision {
	if w.At == nil || isLeaving(w.At) {
		return Decision{}
	}
	d := decideRun(w)
	// A status that was never written has no observed generation and needs no write.
	if observed := w.At.Status.ObservedGeneration; d.Action == nil && d.Status == nil && observed != 0 && observed != w.At.Generation {
		status := w.At.Status.DeepCopy()
		status.ObservedGeneration = w.At.Generation
		d.Status = status
	}
	return d
}

func decideRun(w World) Decision {
	at, pod := w.At, w.pod()
	if d, decided := decideByParent(w); decided {
		return d
	}
	if at.Status.Phase == v1alpha1.PhaseDone {
		return decideDone(at, w.Now)
	}
	if d := decideSuspended(at, w.Now); d.Status != nil {
		return d
	}
	if isNodesRun(at) {
		return decideNodes(w)
	}
	if isRestart(at) {
		return decideRestart(w)
	}
	owned := pod != nil && IsOf(pod, at)
	if owned && !hasEnded(pod) {
		if d, decided := decideOnNode(w, pod); decided {
			return d
		}
	}
	switch {
	case recorded(at) && (!owned || pod.UID != at.Status.Pod.UID):
		return decideGone(w)
	case owned && hasEnded(pod):
		return decideEnded(at, pod, w.Now)
	case owned && isAbandoned(pod, w.Now):
		return decideAbandoned(w, pod)
	case owned:
		return decideRunning(at, pod, w.Now)
	case at.Status.NextAttemptTime != nil:
		return decideNextAttempt(w, pod)
	default:
		return decidePending(w, pod)
	}
}
