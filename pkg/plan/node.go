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
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// virtualNodes are the labels, and their values, of nodes that are no machines.
var virtualNodes = map[string]string{
	"type":                           "virtual-kubelet",
	"eks.amazonaws.com/compute-type": "fargate",
}

// passingTaints are the taints of a node that is chosen all the same: its Pod waits until
// they are gone. Otherwise a node that happens not to be ready would be left out, and
// nobody would see it.
var passingTaints = []string{
	corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure,
	corev1.TaintNodePIDPressure, corev1.TaintNodeNetworkUnavailable, "node.cloudprovider.kubernetes.io/uninitialized",
}

// chooseNodes returns the names of those of the nodes on which an At runs its command by
// spec.nodes, in their order. The error says what is wrong with the selector, or with the
// template's node affinity.
func chooseNodes(at *v1alpha1.At, nodes []*corev1.Node) ([]string, error) {
	selector, err := nodeSelector(at)
	if err != nil {
		return nil, err
	}
	pod := &corev1.Pod{}
	if at.Spec.Template != nil {
		pod.Spec = at.Spec.Template.Spec
	}
	affinity := nodeaffinity.GetRequiredNodeAffinity(pod)
	asksFor := func(label string) bool {
		requirements, _ := selector.Requirements()
		return pod.Spec.NodeSelector[label] != "" || slices.ContainsFunc(requirements, func(r labels.Requirement) bool { return r.Key() == label })
	}
	var chosen []string
	for _, node := range nodes {
		if !selector.Matches(labels.Set(node.Labels)) {
			continue
		}
		matches, err := affinity.Match(node)
		if err != nil {
			return nil, fmt.Errorf("spec.template.spec: the node affinity is invalid: %w", err)
		}
		if !matches || !tolerates(pod, node) {
			continue
		}
		isVirtual := false
		for label, value := range virtualNodes {
			isVirtual = isVirtual || node.Labels[label] == value && !asksFor(label)
		}
		if !isVirtual {
			chosen = append(chosen, node.Name)
		}
	}
	slices.Sort(chosen)
	return chosen, nil
}

// nodeSelector returns the selector of spec.nodes.
func nodeSelector(at *v1alpha1.At) (labels.Selector, error) {
	selector, err := metav1.LabelSelectorAsSelector(&at.Spec.Nodes.Selector)
	if err != nil {
		return nil, fmt.Errorf("spec.nodes.selector is not a label selector: %w", err)
	}
	return selector, nil
}

// tolerates says whether a Pod may run on a node by the node's cordon and its taints, but for
// those that pass by themselves.
func tolerates(pod *corev1.Pod, node *corev1.Node) bool {
	taints := node.Spec.Taints
	if node.Spec.Unschedulable {
		// As the scheduler does it: the taint may not be there yet.
		taints = append(slices.Clone(taints), corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	_, isTainted := corev1helpers.FindMatchingUntoleratedTaint(logr.Logger{}, taints, pod.Spec.Tolerations, func(taint *corev1.Taint) bool {
		return taint.Effect != corev1.TaintEffectPreferNoSchedule && !slices.Contains(passingTaints, taint.Key)
	}, true)
	return !isTainted
}

// pinToNode adds to the node affinity of a Pod that it must run on the given node, as the
// DaemonSet controller does it. The scheduler still decides whether there is room.
func pinToNode(spec *corev1.PodSpec, node string) {
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	if spec.Affinity.NodeAffinity == nil {
		spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	required := &spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	isNew := *required == nil
	if isNew {
		// One term that says nothing else.
		*required = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}}
	}
	for i := range (*required).NodeSelectorTerms {
		term := &(*required).NodeSelectorTerms[i]
		// A term of the template that says nothing matches no node, not even this one.
		if isNew || len(term.MatchExpressions)+len(term.MatchFields) > 0 {
			term.MatchFields = append(term.MatchFields, corev1.NodeSelectorRequirement{
				Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
			})
		}
	}
}

// nodeIsGone says whether the node that was looked for is gone. One of its name that was
// added after the given time is another.
func (w *World) nodeIsGone(since metav1.Time) bool {
	if ParentName(w.At) != "" {
		// It was chosen when the child was created.
		since = w.At.CreationTimestamp
	}
	return w.Node == nil || !since.IsZero() && since.Time.Before(w.Node.CreationTimestamp.Time)
}

// checkNode decides whether the next attempt of an At with spec.node has to wait, or is
// not to be, because of its node. decided is false if the node is there.
func checkNode(w World) (d Decision, decided bool) {
	at := w.At
	switch {
	case at.Spec.Node == "":
		return Decision{}, false
	case w.NodesForbidden != nil:
		return writeNodesForbidden(w), true
	case w.NodeName != at.Spec.Node:
		return Decision{Action: LookForNode{Name: at.Spec.Node}}, true
	case !w.nodeIsGone(ptr.Deref(at.Status.StartTime, metav1.Time{})):
		return Decision{}, false
	case !w.PodIsLive:
		return Decision{Action: LookForPod{}}, true
	default:
		return writeDone(at, nil, w.Now, v1alpha1.ReasonNodeGone, withBlocker(at, fmt.Sprintf("Node %s does not exist (any more): the command did not run.", at.Spec.Node))), true
	}
}

// writeNodesForbidden returns the decision of an At that needs to know the nodes, which the
// controller may not read.
func writeNodesForbidden(w World) Decision {
	return retryBlocked(w.At, w.Now, v1alpha1.ReasonNodesForbidden, errors.New(nodesForbiddenMessage(w.NodesForbidden)))
}

func nodesForbiddenMessage(err error) string {
	return fmt.Sprintf("spec.node and spec.nodes need a controller that may get, list and watch nodes: %v", err)
}

// decideOnNode decides for an At whose Pod has not ended and was made for one node. decided
// is false if the node is there.
func decideOnNode(w World, pod *corev1.Pod) (d Decision, decided bool) {
	node := pod.Annotations[v1alpha1.AnnotationNode]
	target := failureTarget(w.At)
	switch {
	case target != nil && target.Reason == v1alpha1.ReasonNodeGone && pod.DeletionTimestamp != nil:
		// No kubelet reports the end of the Pod.
		return writeDone(w.At, pod, w.Now, target.Reason, target.Message), true
	case node == "" || target != nil || w.NodesForbidden != nil:
		return Decision{}, false
	case w.NodeName != node:
		return Decision{Action: LookForNode{Name: node}}, true
	case !w.nodeIsGone(pod.CreationTimestamp):
		return Decision{}, false
	case pod.Spec.NodeName == "":
		return writeFailureTarget(w.At, w.Now, v1alpha1.ReasonNodeGone, fmt.Sprintf("Node %s does not exist any more: the command did not run.", node)), true
	default:
		return writeFailureTarget(w.At, w.Now, v1alpha1.ReasonNodeGone, fmt.Sprintf("Node %s was removed while Pod %s was on it: how the command ended is not known.", node, pod.Name)), true
	}
}
