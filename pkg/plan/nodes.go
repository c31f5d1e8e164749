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

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

const noNodesMessage = "No node matches spec.nodes: check the labels (kubectl get nodes --show-labels), cordons and taints."

// startNodes starts a run on nodes. The phase becomes RUNNING before the first child is
// created, so that all children have the same command, template and selector.
func (v *view) startNodes() Decision {
	if _, err := nodeSelector(v.At); err != nil {
		// Once the At is RUNNING, the selector can no longer be corrected.
		return v.writeBlocked(v1alpha1.ReasonInvalidSelector, err.Error())
	}
	if v.Refusal != nil {
		return v.refused(v1alpha1.ReasonPodRefused, v.Refusal)
	}
	status := v.statusOfStart()
	status.Nodes = &v1alpha1.AtNodesStatus{}
	return v.write(status)
}

// decideChildren chooses the nodes and creates the missing children. The children are the
// record of the choice: children from an earlier sync count even if their nodes are gone
// by now.
func (v *view) decideChildren() Decision {
	at := v.At
	switch {
	case isSuspended(at):
		return v.writeUnblocked(0)
	case v.startingLeft <= 0:
		return v.writeStartingDeadlineExceeded()
	case v.NodesErr != nil:
		return v.waitForNodes()
	}
	chosen, _, err := ChooseNodes(at, v.Nodes)
	if err != nil { // The selector was read when the run started.
		return v.writeDone(nil, v1alpha1.ReasonInvalidPod, err.Error())
	}
	existing := sets.New[string]()
	for _, child := range v.Children {
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
		return Decision{Action: CreateAts{Ats: missing}, Delay: v.untilDeadline()}
	case len(v.Children) == 0:
		return v.writeDone(nil, v1alpha1.ReasonNoNodes, noNodesMessage)
	}
	status := at.Status.DeepCopy()
	removeBlocked(status)
	status.Reason, status.Message = "", ""
	status.Nodes = countNodes(v.Children, len(v.Children))
	status.Nodes.StartTime = &metav1.Time{Time: v.Now}
	return v.write(status, NewEvent(corev1.EventTypeNormal, v1alpha1.ReasonSuccessfulCreate, fmt.Sprintf("Created Ats for %d nodes", len(v.Children))))
}

// AtNameTaken returns the decision when an At that is not a child of this At has the name
// of one of its children.
func AtNameTaken(w World, other *v1alpha1.At) Decision {
	isEarlier := ParentName(other) == w.At.Name
	return newView(w).waitForName(v1alpha1.ReasonAtNameConflict, NameTaken(v1alpha1.AtKind, other, isEarlier), isEarlier, w.At.Status.StartTime.Time)
}

// WantsNodes reports whether the nodes of the cluster have to be known, to choose from them.
func WantsNodes(w World) bool {
	return isNodesRun(w.At) && !isDone(w.At) && !allChildrenExist(w.At)
}

// isNodesRun reports whether the run of an At is on nodes. The spec cannot tell: it may
// have been edited after the Pod was created.
func isNodesRun(at *v1alpha1.At) bool { return at.Status.Nodes != nil }

// allChildrenExist reports whether all children of an At have been created, so that they
// may start.
func allChildrenExist(at *v1alpha1.At) bool {
	return isNodesRun(at) && at.Status.Nodes.StartTime != nil
}

// virtualNodes maps labels to the values that mark nodes that are not machines.
var virtualNodes = map[string]string{
	"type":                           "virtual-kubelet",
	"eks.amazonaws.com/compute-type": "fargate",
}

// passingTaints are temporary taints that do not exclude a node: its Pod waits until they
// are gone. Otherwise a node that happens to be not ready would be skipped without anyone
// noticing.
var passingTaints = []string{
	corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure,
	corev1.TaintNodePIDPressure, corev1.TaintNodeNetworkUnavailable, "node.cloudprovider.kubernetes.io/uninitialized",
}

// ChooseNodes returns the sorted names of the nodes on which an At runs its command
// according to spec.nodes. omitted counts the other nodes that spec.nodes.selector matches, by
// what describes them. The error reports what is wrong with the selector or with the
// template's node affinity.
func ChooseNodes(at *v1alpha1.At, nodes []*corev1.Node) (chosen []string, omitted map[string]int, err error) {
	selector, err := nodeSelector(at)
	if err != nil {
		return nil, nil, err
	}
	pod := &corev1.Pod{}
	if at.Spec.Template != nil {
		pod.Spec = at.Spec.Template.Spec
	}
	affinity := nodeaffinity.GetRequiredNodeAffinity(pod)
	omitted = map[string]int{}
	for _, node := range nodes {
		if !selector.Matches(labels.Set(node.Labels)) {
			continue
		}
		matches, err := affinity.Match(node)
		if err != nil {
			return nil, nil, fmt.Errorf("spec.template.spec: the node affinity is invalid: %w", err)
		}
		why := cmp.Or(untolerated(pod, node), virtual(pod, selector, node))
		if !matches {
			why = "not selected by the template"
		}
		if why != "" {
			omitted[why]++
		} else {
			chosen = append(chosen, node.Name)
		}
	}
	slices.Sort(chosen)
	return chosen, omitted, nil
}

// nodeSelector returns the selector of spec.nodes.
func nodeSelector(at *v1alpha1.At) (labels.Selector, error) {
	selector, err := metav1.LabelSelectorAsSelector(&at.Spec.Nodes.Selector)
	if err != nil {
		return nil, fmt.Errorf("spec.nodes.selector is not a label selector: %w", err)
	}
	return selector, nil
}

// untolerated describes a node whose cordon or taint a Pod does not tolerate, or returns "". It
// ignores temporary taints.
func untolerated(pod *corev1.Pod, node *corev1.Node) string {
	taints := node.Spec.Taints
	if node.Spec.Unschedulable {
		// Like the scheduler: the taint may not be there yet.
		taints = append(slices.Clone(taints), corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	taint, isTainted := corev1helpers.FindMatchingUntoleratedTaint(logr.Logger{}, taints, pod.Spec.Tolerations, func(taint *corev1.Taint) bool {
		return taint.Effect != corev1.TaintEffectPreferNoSchedule && !slices.Contains(passingTaints, taint.Key)
	}, true)
	switch {
	case !isTainted:
		return ""
	case taint.Key == corev1.TaintNodeUnschedulable:
		return "cordoned"
	}
	return "with the taint " + taint.ToString()
}

// virtual describes a node that is not a machine, unless the selector or the Pod asks for such
// nodes, or returns "".
func virtual(pod *corev1.Pod, selector labels.Selector, node *corev1.Node) string {
	requirements, _ := selector.Requirements()
	for label, value := range virtualNodes {
		isAskedFor := pod.Spec.NodeSelector[label] != "" || slices.ContainsFunc(requirements, func(r labels.Requirement) bool { return r.Key() == label })
		if node.Labels[label] == value && !isAskedFor {
			return "virtual"
		}
	}
	return ""
}
