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

	"k8s.io/apimachinery/pkg/util/intstr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

// maxNamedNodes is the number of nodes that a message names. maxNodeMessage is the number
// of bytes to which the message about each node is truncated.
const (
	maxNamedNodes  = 10
	maxNodeMessage = 200
)

// decideProgress decides for an At whose children all exist: which children to resume,
// what to count, and when the run has ended.
func (v *view) decideProgress() Decision {
	at := v.At
	// A delayed creation request for a node that is no longer chosen may add a child to
	// those that were recorded.
	counts := countNodes(v.Children, max(int(at.Status.Nodes.Desired), len(v.Children)))
	counts.StartTime = at.Status.Nodes.StartTime
	waiting := waitingChildren(v.Children)
	tooMany := tooManyFailed(at, counts)
	ended := counts.Active == 0 && (len(waiting) == 0 || tooMany)
	switch {
	case ended:
		return v.writeNodesDone(counts)
	case !tooMany && !isSuspended(at):
		if room := concurrent(at, counts) - int(counts.Active); room > 0 && len(waiting) > 0 {
			return Decision{Action: ResumeAts{Ats: waiting[:min(room, len(waiting), maxResumed)]}}
		}
	}
	status := at.Status.DeepCopy()
	removeBlocked(status)
	status.Nodes = counts
	status.Reason = ""
	status.Message = failedNodes(v.Children, counts) + " " + blockedNodes(v.Children, counts)
	return v.write(status)
}

// writeNodesDone ends a run on nodes.
func (v *view) writeNodesDone(counts *v1alpha1.AtNodesStatus) Decision {
	status := v.At.Status.DeepCopy()
	status.Nodes = counts
	v = v.withStatus(status)
	if counts.Failed == 0 && counts.Waiting == 0 {
		return v.writeDone(nil, v1alpha1.ReasonCompleted, fmt.Sprintf("The command ended with exit code 0 on %d of %d nodes.", counts.Succeeded, counts.Desired))
	}
	message := failedNodes(v.Children, counts)
	if counts.Waiting > 0 {
		message += fmt.Sprintf(" The command was not started on %d nodes: more nodes failed than spec.nodes.maxFailed allows.", counts.Waiting)
	}
	return v.writeDone(nil, v1alpha1.ReasonNodesFailed, message)
}

// tooManyFailed reports whether the command has failed on more nodes than
// spec.nodes.maxFailed allows.
func tooManyFailed(at *v1alpha1.At, counts *v1alpha1.AtNodesStatus) bool {
	return at.Spec.Nodes != nil && at.Spec.Nodes.MaxFailed != nil && counts != nil && counts.Failed > *at.Spec.Nodes.MaxFailed
}

// concurrent returns the number of nodes on which the command may run at the same time.
func concurrent(at *v1alpha1.At, counts *v1alpha1.AtNodesStatus) int {
	desired := int(counts.Desired)
	if at.Spec.Nodes.MaxConcurrent == nil {
		return desired
	}
	limit, _ := intstr.GetScaledValueFromIntOrPercent(at.Spec.Nodes.MaxConcurrent, desired, true) // The CRD has validated it.
	return limit
}

// maxResumed is the number of children to resume before the limits are checked again.
const maxResumed = 50

// waitingChildren returns the children that may be resumed, sorted by name. If two
// controllers work on the At, the one with the stale cache finds that the first child has
// changed, and stops there.
func waitingChildren(children []*v1alpha1.At) []*v1alpha1.At {
	waiting := slices.DeleteFunc(slices.Clone(children), func(child *v1alpha1.At) bool {
		return stateOfChild(child) != childWaits || isDone(child)
	})
	slices.SortFunc(waiting, func(a, b *v1alpha1.At) int { return cmp.Compare(a.Name, b.Name) })
	return waiting
}

// countNodes returns how many children are in each state. A child that is gone despite
// its finalizer counts as failed.
func countNodes(children []*v1alpha1.At, desired int) *v1alpha1.AtNodesStatus {
	number := map[childState]int32{childFailed: int32(max(0, desired-len(children)))}
	for _, child := range children {
		number[stateOfChild(child)]++
	}
	return &v1alpha1.AtNodesStatus{
		Desired: int32(desired), Waiting: number[childWaits], Active: number[childIsActive], Succeeded: number[childSucceeded], Failed: number[childFailed],
		Progress: fmt.Sprintf("%d/%d", number[childSucceeded], desired),
	}
}

// failedNodes returns a message with the number of nodes on which the command failed, and
// the reasons for the first ones.
func failedNodes(children []*v1alpha1.At, counts *v1alpha1.AtNodesStatus) string {
	return nameNodes("The command failed", children, counts, int(counts.Failed), func(child *v1alpha1.At) string {
		if stateOfChild(child) != childFailed {
			return ""
		}
		return join(child.Status.Reason, child.Status.Message)
	})
}

// blockedNodes returns a message with the number of nodes on which the command is
// blocked, and the reasons for the first ones; "" if there are none.
func blockedNodes(children []*v1alpha1.At, counts *v1alpha1.AtNodesStatus) string {
	return nameNodes("The command is blocked", children, counts, 0, func(child *v1alpha1.At) string {
		if blocked := blockerOfChild(child); blocked != nil {
			return join(blocked.Reason, blocked.Message)
		}
		return ""
	})
}

// nameNodes returns a message that names the first nodes for whose children why returns a
// text. If there are fewer of these than least, the other children are gone.
func nameNodes(what string, children []*v1alpha1.At, counts *v1alpha1.AtNodesStatus, least int, why func(child *v1alpha1.At) string) string {
	named := slices.DeleteFunc(slices.Clone(children), func(child *v1alpha1.At) bool { return why(child) == "" })
	number := max(least, len(named))
	if number == 0 {
		return ""
	}
	slices.SortFunc(named, func(a, b *v1alpha1.At) int { return cmp.Compare(a.Spec.Node, b.Spec.Node) })
	var names []string
	for _, child := range named[:min(len(named), maxNamedNodes)] {
		names = append(names, fmt.Sprintf("%s (%s)", child.Spec.Node, answer.Truncate(why(child), maxNodeMessage)))
	}
	if more := number - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("%s on %d of %d nodes: %s.", what, number, counts.Desired, strings.Join(names, ", "))
}
