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
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// pinToNode adds to the node affinity of a Pod that it must run on the given node, like
// the DaemonSet controller. The scheduler still decides whether the node has room.
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
		// One term without other requirements.
		*required = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}}
	}
	for i := range (*required).NodeSelectorTerms {
		term := &(*required).NodeSelectorTerms[i]
		// An empty term in the template matches no node, not even this one.
		if isNew || len(term.MatchExpressions)+len(term.MatchFields) > 0 {
			term.MatchFields = append(term.MatchFields, corev1.NodeSelectorRequirement{
				Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
			})
		}
	}
}

// nodeNameVariable is the environment variable with the name of the node.
const nodeNameVariable = "NODE_NAME"

// addNodeName sets nodeNameVariable in the containers that do not set it themselves. It comes
// first, so that other variables can refer to it.
func addNodeName(spec *corev1.PodSpec) {
	variable := corev1.EnvVar{Name: nodeNameVariable, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}
	for container := range containersOf(spec) {
		if !slices.ContainsFunc(container.Env, func(own corev1.EnvVar) bool { return own.Name == variable.Name }) {
			container.Env = slices.Insert(container.Env, 0, variable)
		}
	}
}

// NodeOf returns the name of the node that the run needs now, or "". If the node is gone, the run
// cannot start or continue.
func NodeOf(w World) string {
	v := newView(w)
	switch {
	case v.owned && !hasEnded(v.pod):
		return v.pod.Annotations[v1alpha1.AnnotationNode]
	case v.isDue() || w.At.Status.Phase == v1alpha1.PhaseRunning && !recorded(w.At):
		return w.At.Spec.Node
	default:
		return ""
	}
}

// nodeIsGone reports whether the node is gone. A node of the same name that was added after the
// given time is a different node.
func (w *World) nodeIsGone(since metav1.Time) bool {
	if ParentName(w.At) != "" {
		// It was chosen when the child was created.
		since = w.At.CreationTimestamp
	}
	return w.Node == nil || !since.IsZero() && since.Time.Before(w.Node.CreationTimestamp.Time)
}

// checkNode decides whether the next attempt of an At with spec.node must wait or be
// cancelled because of its node. decided is false if the node exists.
func (v *view) checkNode() (d Decision, decided bool) {
	at := v.At
	switch {
	case at.Spec.Node == "":
		return Decision{}, false
	case v.NodesErr != nil:
		return v.waitForNodes(), true
	case !v.nodeIsGone(ptr.Deref(at.Status.StartTime, metav1.Time{})):
		return Decision{}, false
	case v.Refusal != nil:
		return v.refused(v1alpha1.ReasonPodRefused, v.Refusal), true
	default:
		return v.writeDone(nil, v1alpha1.ReasonNodeGone, v.withBlocker(fmt.Sprintf("Node %s does not exist or was removed: the command did not run.", at.Spec.Node))), true
	}
}

// nodesPeriod is the interval at which an At that depends on nodes looks whether they are known.
const nodesPeriod = time.Second

// waitForNodes decides for an At that depends on nodes which are not known.
func (v *view) waitForNodes() Decision {
	if apierrors.IsForbidden(v.NodesErr) {
		return v.retryBlocked(v1alpha1.ReasonNodesForbidden, errors.New(nodesForbiddenMessage(v.NodesErr)))
	}
	return Decision{Delay: min(v.leftToStart(), nodesPeriod)}
}

func nodesForbiddenMessage(err error) string {
	return fmt.Sprintf("spec.node and spec.nodes require that the controller can get, list and watch nodes: %v", err)
}

// decideOnNode decides for an At whose Pod has not ended and is pinned to a node. decided
// is false if the node exists.
func (v *view) decideOnNode() (d Decision, decided bool) {
	pod := v.pod
	node := pod.Annotations[v1alpha1.AnnotationNode]
	target := failureTarget(v.At)
	switch {
	case target != nil && target.Reason == v1alpha1.ReasonNodeGone && pod.DeletionTimestamp != nil:
		// No kubelet reports the end of the Pod.
		return v.writeDone(pod, target.Reason, target.Message), true
	case node == "" || target != nil || v.NodesErr != nil || !v.nodeIsGone(pod.CreationTimestamp):
		return Decision{}, false
	case pod.Spec.NodeName == "":
		return v.writeFailureTarget(v1alpha1.ReasonNodeGone, fmt.Sprintf("Node %s was removed: the command did not run.", node)), true
	default:
		return v.writeFailureTarget(v1alpha1.ReasonNodeGone, fmt.Sprintf("Node %s was removed while Pod %s was on it: the outcome of the command is unknown.", node, pod.Name)), true
	}
}
