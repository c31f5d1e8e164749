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
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// maxNamedNodes is of how many nodes the status says why they have failed, or are blocked.
const maxNamedNodes = 10

// maxNodeMessage is the number of bytes at which that is cut.
const maxNodeMessage = 200

const noNodesMessage = "No node matches spec.nodes: see kubectl get nodes --show-labels, and cordons and taints."

// startNodes starts a run on nodes. The phase is RUNNING before the first child is
// created, so that all children are made from the same spec.
func startNodes(w World, instant time.Time) Decision {
	if _, err := nodeSelector(w.At); err != nil {
		// From RUNNING on, nobody could correct it.
		d := writeBlocked(w.At, w.Now, v1alpha1.ReasonInvalidSelector, err.Error())
		d.Delay = delayUntilDeadline(w.At, w.Now)
		return d
	}
	if !w.PodIsLive {
		// The spec may have been another when it was due, and its Pod in no cache yet.
		return Decision{Action: LookForPod{}}
	}
	status := w.At.Status.DeepCopy()
	removeBlocked(status)
	status.Phase = v1alpha1.PhaseRunning
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

// decideChildren chooses the nodes, and creates the children that are missing. The
// children are the record of what was chosen: those that an earlier sync has created
// count, even if their nodes are gone by now.
func decideChildren(w World) Decision {
	at := w.At
	if instant, err := Instant(&at.Spec); err == nil && startingTimeLeft(at, instant, w.Now) <= 0 {
		return writeStartingDeadlineExceeded(at, w.Now)
	}
	switch {
	case isSuspended(at):
		return writeUnblocked(at, 0)
	case !w.AtIsLive: // A cache has no template.
		return Decision{Action: LookForAt{}}
	case w.NodesForbidden != nil:
		return writeNodesForbidden(w)
	case !w.NodesAreKnown:
		return Decision{Action: LookForNodes{}}
	}
	chosen, err := chooseNodes(at, w.Nodes)
	if err != nil {
		return writeBlocked(at, w.Now, v1alpha1.ReasonInvalidSelector, err.Error())
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
		return Decision{Action: CreateAts{Ats: missing}, Delay: delayUntilDeadline(at, w.Now)}
	case !w.ChildrenAreLive:
		// The cache may not have a child that an earlier sync has created, for a node that
		// is no longer chosen.
		return Decision{Action: LookForAts{}}
	case len(w.Children) == 0:
		return writeDone(at, nil, w.Now, v1alpha1.ReasonNoNodes, noNodesMessage)
	}
	status := at.Status.DeepCopy()
	removeBlocked(status)
	status.Nodes = countNodes(w.Children, len(w.Children))
	status.Nodes.StartTime = &metav1.Time{Time: w.Now}
	return write(at, status, newEvent(corev1.EventTypeNormal, v1alpha1.ReasonSuccessfulCreate, fmt.Sprintf("Created the Ats of %d nodes", len(w.Children))))
}

// RefusedAt returns what follows when the API server answered the creation of a child
// with err.
func RefusedAt(w World, err error) Decision {
	return refused(w, v1alpha1.ReasonAtRefused, err)
}

// AtNameTaken returns what follows when there is an At that is not the given At's child,
// and has the name of one.
func AtNameTaken(w World, other *v1alpha1.At) Decision {
	at := w.At
	message := fmt.Sprintf("At %s exists and is not of one of this At's nodes: delete or rename that At.", other.Name)
	if owner := parentOf(other); owner != nil && owner.Name == at.Name {
		message = fmt.Sprintf("At %s of an earlier At of this name still exists: see kubectl describe at %s for what it waits for.", other.Name, other.Name)
		if w.Now.Sub(at.Status.StartTime.Time) < grace {
			return Decision{Retry: fmt.Errorf("%w: %s", ErrBlocked, message), Delay: delayUntilDeadline(at, w.Now)}
		}
	}
	d := writeBlocked(at, w.Now, v1alpha1.ReasonAtNameConflict, message)
	d.Retry, d.Delay = fmt.Errorf("%w: %s", ErrBlocked, message), delayUntilDeadline(at, w.Now)
	return d
}

// decideProgress decides for an At whose children all exist: which ones to resume, what to
// count, and when the run has ended.
func decideProgress(w World) Decision {
	at := w.At
	// A creation that was delayed on its way, of a child for a node that is no longer
	// chosen, adds a child to those that were recorded.
	counts := countNodes(w.Children, max(int(at.Status.Nodes.Desired), len(w.Children)))
	counts.StartTime = at.Status.Nodes.StartTime
	tooMany := at.Spec.Nodes.MaxFailed != nil && counts.Failed > *at.Spec.Nodes.MaxFailed
	ended := counts.Active == 0 && (counts.Waiting == 0 || tooMany)
	// What the cache says of an At that is DONE is final. The rest may be outdated.
	if !w.ChildrenAreLive && (len(w.Children) < int(counts.Desired) || ended && counts.Waiting > 0) {
		return Decision{Action: LookForAts{}}
	}
	if ended {
		end := at.DeepCopy()
		end.Status.Nodes = counts
		if counts.Failed == 0 && counts.Waiting == 0 {
			return writeDone(end, nil, w.Now, v1alpha1.ReasonCompleted, fmt.Sprintf("The command ended with exit code 0 on %d of %d nodes.", counts.Succeeded, counts.Desired))
		}
		message := failedNodes(w.Children, counts)
		if counts.Waiting > 0 {
			message += fmt.Sprintf(" It was not started on %d nodes, because spec.nodes.maxFailed is %d.", counts.Waiting, *at.Spec.Nodes.MaxFailed)
		}
		return writeDone(end, nil, w.Now, v1alpha1.ReasonNodesFailed, message)
	}
	if resume := nextChildren(at, w.Children, counts); len(resume) > 0 && !tooMany && !isSuspended(at) {
		return Decision{Action: ResumeAts{Ats: resume}}
	}
	status := at.Status.DeepCopy()
	removeBlocked(status)
	status.Nodes = counts
	status.Message = OneLine(failedNodes(w.Children, counts) + " " + blockedNodes(w.Children, counts))
	return write(at, status)
}

// nextChildren returns the children to resume: those that wait, in the order of their
// names, as many as may be active beside those that are. Of two controllers, the one whose
// cache is behind finds the first of them changed, and stops there.
func nextChildren(at *v1alpha1.At, children []*v1alpha1.At, counts *v1alpha1.AtNodesStatus) []*v1alpha1.At {
	limit := int(counts.Desired)
	if concurrent := at.Spec.Nodes.MaxConcurrent; concurrent != nil {
		// The CRD has validated it.
		limit, _ = intstr.GetScaledValueFromIntOrPercent(concurrent, limit, true)
	}
	waiting := slices.DeleteFunc(slices.Clone(children), func(child *v1alpha1.At) bool { return stateOfChild(child) != childWaits })
	slices.SortFunc(waiting, func(a, b *v1alpha1.At) int { return cmp.Compare(a.Name, b.Name) })
	return waiting[:min(len(waiting), max(0, limit-int(counts.Active)))]
}

// countNodes returns how many of the children are in which state. A child that is gone,
// although the finalizer should have kept it, has failed.
func countNodes(children []*v1alpha1.At, desired int) *v1alpha1.AtNodesStatus {
	counts := &v1alpha1.AtNodesStatus{Desired: int32(desired), Failed: int32(max(0, desired-len(children)))}
	for _, child := range children {
		switch stateOfChild(child) {
		case childWaits:
			counts.Waiting++
		case childIsActive:
			counts.Active++
		case childSucceeded:
			counts.Succeeded++
		case childFailed:
			counts.Failed++
		}
	}
	counts.Progress = fmt.Sprintf("%d/%d", counts.Succeeded, counts.Desired)
	return counts
}

// failedNodes says on how many nodes the command has failed, and of the first ones why.
func failedNodes(children []*v1alpha1.At, counts *v1alpha1.AtNodesStatus) string {
	return nameNodes("It failed", children, counts, int(counts.Failed), func(child *v1alpha1.At) string {
		if stateOfChild(child) != childFailed {
			return ""
		}
		return join(child.Status.Reason, child.Status.Message)
	})
}

// blockedNodes says on how many nodes something blocks the command, and of the first ones
// what; empty if on none.
func blockedNodes(children []*v1alpha1.At, counts *v1alpha1.AtNodesStatus) string {
	return nameNodes("It is blocked", children, counts, 0, func(child *v1alpha1.At) string {
		if blocked := blockerOfChild(child); blocked != nil {
			return join(blocked.Reason, blocked.Message)
		}
		return ""
	})
}

// nameNodes names the first of the nodes whose children why has something to say about. If
// it has something to say about fewer than least, others of the children are gone.
func nameNodes(what string, children []*v1alpha1.At, counts *v1alpha1.AtNodesStatus, least int, why func(child *v1alpha1.At) string) string {
	named := slices.DeleteFunc(slices.Clone(children), func(child *v1alpha1.At) bool { return why(child) == "" })
	number := max(least, len(named))
	if number == 0 {
		return ""
	}
	slices.SortFunc(named, func(a, b *v1alpha1.At) int { return cmp.Compare(a.Spec.Node, b.Spec.Node) })
	var names []string
	for _, child := range named[:min(len(named), maxNamedNodes)] {
		text := why(child)
		if len(text) > maxNodeMessage {
			text = strings.ToValidUTF8(text[:maxNodeMessage], "") + "…"
		}
		names = append(names, fmt.Sprintf("%s (%s)", child.Spec.Node, text))
	}
	if more := number - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("%s on %d of %d nodes: %s.", what, number, counts.Desired, strings.Join(names, ", "))
}

// isNodesRun says whether an At's run is one on nodes. The spec does not say so: it may
// have been edited after the Pod was created.
func isNodesRun(at *v1alpha1.At) bool { return at.Status.Nodes != nil }

// allChildrenExist says whether an At's children are complete, so that they may start.
func allChildrenExist(at *v1alpha1.At) bool {
	return ptr.Deref(at.Status.Nodes, v1alpha1.AtNodesStatus{}).StartTime != nil
}
