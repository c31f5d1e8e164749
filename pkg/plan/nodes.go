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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

const noNodesMessage = "No node matches spec.nodes: check the labels (kubectl get nodes --show-labels), cordons and taints."

// startNodes starts a run on nodes. The phase becomes RUNNING before the first child is
// created, so that all children have the same command, template and selector.
func startNodes(w World, instant time.Time) Decision {
	if !w.AtIsLive { // A cached At has no selector.
		return Decision{Action: LookForAt{}}
	}
	if _, err := nodeSelector(w.At); err != nil {
		// Once the At is RUNNING, the selector can no longer be corrected.
		d := writeBlocked(w.At, w.Now, v1alpha1.ReasonInvalidSelector, err.Error())
		d.Delay = DelayUntilDeadline(w.At, w.Now)
		return d
	}
	if !w.PodIsLive {
		// The At may have had a command when it was due, and its Pod may not be in the cache.
		return Decision{Action: LookForPod{}}
	}
	status := w.At.Status.DeepCopy()
	removeBlocked(status)
	status.Phase, status.Reason, status.Message = v1alpha1.PhaseRunning, "", ""
	status.StartTime = &metav1.Time{Time: w.Now}
	if !instant.IsZero() {
		status.ScheduledTime = &metav1.Time{Time: instant}
	}
	status.Nodes = &v1alpha1.AtNodesStatus{}
	return write(w.At, status)
}

// decideNodes decides for an At whose run on nodes has started.
func decideNodes(w World) Decision {
	if w.At.Status.Nodes.StartTime == nil {
		return decideChildren(w)
	}
	return decideProgress(w)
}

// decideChildren chooses the nodes and creates the missing children. The children are the
// record of the choice: children from an earlier sync count even if their nodes are gone
// by now.
func decideChildren(w World) Decision {
	at := w.At
	instant, err := Instant(&at.Spec)
	switch {
	case isSuspended(at):
		return writeUnblocked(at, 0)
	case err == nil && startingTimeLeft(at, instant, w.Now) <= 0:
		return writeStartingDeadlineExceeded(at, w.Now)
	case !w.AtIsLive: // A cached At has no template.
		return Decision{Action: LookForAt{}}
	case w.NodesForbidden != nil:
		return writeNodesForbidden(w)
	case !w.NodesAreKnown:
		return Decision{Action: LookForNodes{}}
	}
	chosen, err := chooseNodes(at, w.Nodes)
	if err != nil { // The selector was read when the run started.
		return writeDone(at, nil, w.Now, v1alpha1.ReasonInvalidPod, err.Error())
	}
	existing := sets.New[string]()
	for _, child := range w.Children {
		existing.Insert(child.Name)
	}
	var missing []*v1alpha1.At
	for _, node := range chosen {
		if child := newChild(at, node); !existing.Has(child.Name) {
			missing = append(missing, child)
		}
	}
	switch {
	case len(missing) > 0:
		return Decision{Action: CreateAts{Ats: missing}, Delay: DelayUntilDeadline(at, w.Now)}
	case !w.ChildrenAreLive:
		// The cache may lack a child that an earlier sync created for a node that is no longer
		// chosen.
		return Decision{Action: LookForAts{}}
	case len(w.Children) == 0:
		return writeDone(at, nil, w.Now, v1alpha1.ReasonNoNodes, noNodesMessage)
	}
	status := at.Status.DeepCopy()
	removeBlocked(status)
	status.Reason, status.Message = "", ""
	status.Nodes = countNodes(w.Children, len(w.Children))
	status.Nodes.StartTime = &metav1.Time{Time: w.Now}
	return write(at, status, NewEvent(corev1.EventTypeNormal, v1alpha1.ReasonSuccessfulCreate, fmt.Sprintf("Created Ats for %d nodes", len(w.Children))))
}

// RefusedAt returns the decision after the API server answered the creation of a child
// with err.
func RefusedAt(w World, err error) Decision {
	return refused(w, v1alpha1.ReasonAtRefused, err)
}

// AtNameTaken returns the decision when an At that is not a child of this At has the name
// of one of its children.
func AtNameTaken(w World, other *v1alpha1.At) Decision {
	at := w.At
	message := NameTaken(v1alpha1.AtKind, other)
	if ParentName(other) == at.Name {
		message = fmt.Sprintf("At %s of an earlier At with this name still exists: run kubectl describe at %s to see what it is waiting for.", other.Name, other.Name)
		if w.Now.Sub(at.Status.StartTime.Time) < grace {
			return Decision{Retry: fmt.Errorf("%w: %s", answer.ErrBlocked, message), Delay: DelayUntilDeadline(at, w.Now)}
		}
	}
	return retryBlocked(at, w.Now, v1alpha1.ReasonAtNameConflict, errors.New(message))
}

// isNodesRun reports whether the run of an At is on nodes. The spec cannot tell: it may
// have been edited after the Pod was created.
func isNodesRun(at *v1alpha1.At) bool { return at.Status.Nodes != nil }

// allChildrenExist reports whether all children of an At have been created, so that they
// may start.
func allChildrenExist(at *v1alpha1.At) bool {
	return ptr.Deref(at.Status.Nodes, v1alpha1.AtNodesStatus{}).StartTime != nil
}
