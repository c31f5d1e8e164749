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
	"reflect"
	"slices"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/freeze"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

// The bounds of all that is kept of an object. A short text is always kept whole: a name, the
// schedule of a CronAt, a command of up to maxName bytes. All longer texts of an object share
// maxTexts bytes, and a list has at most maxItems items.
const (
	maxName  = 256
	maxTexts = 16 << 10
	maxItems = 40 // more than maxKeptStatuses
)

// podAnnotations are the annotations of a Pod that this package reads.
var podAnnotations = []string{v1alpha1.AnnotationAtName, v1alpha1.AnnotationAtGeneration, v1alpha1.AnnotationScheduledTime, v1alpha1.AnnotationNode, DefaultContainer}

// maxKeptFinalizers is the number of finalizers up to which all are kept.
const maxKeptFinalizers = 8

// maxKeptStatuses is the number of containers of a Pod whose status is kept, besides that of
// the command.
const maxKeptStatuses = 32

// IsSmall reports whether a RunSpec is small enough to be kept whole.
func IsSmall(run *v1alpha1.RunSpec) bool {
	return run.Template == nil && run.Nodes == nil && len(run.Command) <= maxName
}

// KeepAt returns a copy with only those fields of an At that this package and cronplan
// read from a cache. A template, a long command, a selector and metadata may be large and
// should not be cached: every user can write them. What the command of an ended At wrote is
// not read again, unless by its parent.
func KeepAt(at *v1alpha1.At) *v1alpha1.At {
	kept := &v1alpha1.At{ObjectMeta: KeepMeta(at), Spec: at.Spec, Status: at.Status}
	kept.Spec.Template = nil
	if nodes := at.Spec.Nodes; nodes != nil {
		kept.Spec.Nodes = &v1alpha1.AtNodes{MaxConcurrent: nodes.MaxConcurrent, MaxFailed: nodes.MaxFailed} // no selector
	}
	if !IsSmall(&at.Spec.RunSpec) || at.Generation != 1 || isDone(at) {
		kept.Spec.Command = ""
	}
	if owner := cmp.Or(ownerAt(at), Owner(at, v1alpha1.CronAtKind)); owner != nil {
		kept.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	if at.Spec.Rehearse {
		kept.Annotations = KeepKeys(at.Annotations, v1alpha1.AnnotationRehearsalRequestedAt, v1alpha1.AnnotationScheduledTime)
	} else if IsScheduled(at) || Owner(at, v1alpha1.CronAtKind) != nil {
		kept.Annotations = KeepKeys(at.Annotations, v1alpha1.AnnotationScheduledTime)
	}
	if IsTracked(at) || IsScheduled(at) {
		kept.Finalizers = keepFinalizers(at.Finalizers)
	}
	if !isDone(at) {
		kept.Labels = freeze.Keep(at.Labels)
	} else if IsScheduled(at) || HasLostOwner(at) {
		kept.Labels = KeepKeys(at.Labels, v1alpha1.LabelCronAtUID, v1alpha1.LabelCronAtName, v1alpha1.LabelAtUID)
	}
	kept = Bounded(kept)
	if isDone(at) && ParentName(at) == "" {
		kept.Status.Message, kept.Status.Conditions = "", slices.Clone(kept.Status.Conditions)
		for i := range kept.Status.Conditions {
			kept.Status.Conditions[i].Message = ""
		}
	}
	return kept
}

// Bounded returns an object, of which its own lists are cut, or a copy in which no text is longer than a
// message that this program writes. Nearly all objects have only short texts. A copy of each would be
// garbage between those that are kept, which costs half of their memory when very many are listed. Maps
// are not changed: KeepKeys bounds them.
func Bounded[T interface{ DeepCopy() T }](object T) T {
	if len(textsIn(reflect.ValueOf(object), nil)) == 0 {
		return object
	}
	bounded := object.DeepCopy()
	texts := textsIn(reflect.ValueOf(bounded), nil)
	most := max(maxName, min(answer.MaxMessage, maxTexts/max(1, len(texts))))
	for _, text := range texts {
		text.SetString(unique.Make(answer.Truncate(text.String(), most)).Value()) // A condition repeats the message.
	}
	return bounded
}

// textsIn adds all texts in a value to found, and cuts the lists.
func textsIn(value reflect.Value, found []reflect.Value) []reflect.Value {
	switch value.Kind() {
	case reflect.Pointer:
		return textsIn(value.Elem(), found) // The zero Value has no kind.
	case reflect.Struct:
		for i := range value.NumField() {
			if field := value.Field(i); field.CanSet() {
				found = textsIn(field, found)
			}
		}
	case reflect.Slice:
		if value.Len() > maxItems {
			value.Set(reflect.AppendSlice(reflect.Zero(value.Type()), value.Slice(0, maxItems))) // without the array of all
		}
		for i := range value.Len() {
			found = textsIn(value.Index(i), found)
		}
	case reflect.String:
		if value.Len() > maxName {
			found = append(found, value)
		}
	}
	return found
}

// IsWhole reports whether KeepAt has kept all fields that the Pod of an At is made from.
func IsWhole(at *v1alpha1.At) bool { return at.Spec.Command != "" }

// HasAllFinalizers reports whether KeepAt has kept all finalizers of a tracked At.
func HasAllFinalizers(at *v1alpha1.At) bool { return len(at.Finalizers) <= maxKeptFinalizers }

// keepFinalizers returns all finalizers if there are few. Otherwise it returns our own and some
// others, so many that HasAllFinalizers returns false.
func keepFinalizers(from []string) []string {
	if len(from) <= maxKeptFinalizers {
		return from
	}
	kept := slices.DeleteFunc([]string{v1alpha1.FinalizerTracking, v1alpha1.FinalizerScheduled}, func(own string) bool { return !slices.Contains(from, own) })
	return append(kept, from[:maxKeptFinalizers]...)
}

// KeepPod returns a copy with only those fields of a Pod that this package reads.
func KeepPod(pod *corev1.Pod) *corev1.Pod {
	kept := &corev1.Pod{
		ObjectMeta: KeepMeta(pod),
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds,
			Containers: keepContainers(pod), InitContainers: keepSidecars(pod),
		},
		Status: corev1.PodStatus{
			Phase:                 pod.Status.Phase,
			Reason:                pod.Status.Reason,
			Message:               pod.Status.Message,
			ObservedGeneration:    pod.Status.ObservedGeneration,
			Conditions:            keepConditions(pod.Status.Conditions),
			PodIP:                 pod.Status.PodIP,
			HostIP:                pod.Status.HostIP,
			StartTime:             pod.Status.StartTime,
			InitContainerStatuses: keepStatuses(pod.Status.InitContainerStatuses, nil),
			ContainerStatuses:     keepStatuses(pod.Status.ContainerStatuses, commandStatus(pod)),
		},
	}
	kept.Labels = KeepKeys(pod.Labels, v1alpha1.LabelAtUID)
	kept.Annotations = KeepKeys(pod.Annotations, podAnnotations...)
	if owner := ControllerOf(pod); owner != nil {
		kept.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	if IsTracked(pod) {
		kept.Finalizers = []string{v1alpha1.FinalizerTracking}
	}
	if written := WrittenAt(pod, "status"); !written.IsZero() && (isWaiting(pod) || len(kept.Status.ContainerStatuses) == 0) {
		kept.ManagedFields = []metav1.ManagedFieldsEntry{{Subresource: "status", Time: &metav1.Time{Time: written}}}
	}
	return Bounded(kept)
}

// keepContainers returns the name of the first container, unless an annotation names the
// container that runs the command, as it nearly always does.
func keepContainers(pod *corev1.Pod) []corev1.Container {
	if len(pod.Spec.Containers) == 0 || slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == pod.Annotations[DefaultContainer] }) {
		return nil
	}
	return []corev1.Container{{Name: pod.Spec.Containers[0].Name}}
}

// keepSidecars returns the names of the first sidecars.
func keepSidecars(pod *corev1.Pod) []corev1.Container {
	var kept []corev1.Container
	for i := range pod.Spec.InitContainers[:min(len(pod.Spec.InitContainers), maxKeptStatuses)] {
		if container := &pod.Spec.InitContainers[i]; isSidecar(container) {
			kept = append(kept, corev1.Container{Name: container.Name, RestartPolicy: container.RestartPolicy})
		}
	}
	return kept
}

// keepConditions returns the conditions of a Pod that this package reads.
func keepConditions(from []corev1.PodCondition) []corev1.PodCondition {
	var kept []corev1.PodCondition
	for _, condition := range from {
		if slices.Contains([]corev1.PodConditionType{corev1.PodScheduled, corev1.PodReadyToStartContainers, corev1.DisruptionTarget}, condition.Type) {
			kept = append(kept, condition)
		}
	}
	return kept
}

// KeepNode returns a copy with only those fields of a node that this package reads. Users cannot
// write Nodes, and an At may ask for any label and taint: so there is no other bound.
func KeepNode(node *corev1.Node) *corev1.Node {
	kept := &corev1.Node{
		ObjectMeta: KeepMeta(node),
		Spec:       corev1.NodeSpec{Taints: node.Spec.Taints, Unschedulable: node.Spec.Unschedulable},
	}
	kept.Labels = node.Labels
	return kept
}

// KeepMeta returns the metadata of an object without what a user may write.
func KeepMeta(object metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:                       object.GetName(),
		Namespace:                  unique.Make(object.GetNamespace()).Value(),
		UID:                        object.GetUID(),
		ResourceVersion:            object.GetResourceVersion(),
		Generation:                 object.GetGeneration(),
		CreationTimestamp:          object.GetCreationTimestamp(),
		DeletionTimestamp:          object.GetDeletionTimestamp(),
		DeletionGracePeriodSeconds: object.GetDeletionGracePeriodSeconds(),
	}
}

// KeepKeys returns the given keys of labels or annotations, if they are there. Values of ours are never longer than a name.
func KeepKeys(from map[string]string, keys ...string) map[string]string {
	kept := map[string]string{}
	for _, key := range keys {
		if value, ok := from[key]; ok && len(value) <= maxName {
			kept[key] = value
		}
	}
	return kept
}

// keepStatuses returns the status of the container that runs the command, which is nil if it
// is not among these, and those of the first others.
func keepStatuses(from []corev1.ContainerStatus, command *corev1.ContainerStatus) []corev1.ContainerStatus {
	kept := make([]corev1.ContainerStatus, 0, min(len(from), maxKeptStatuses+1))
	for i := range from {
		if status := &from[i]; status == command || len(kept) < maxKeptStatuses {
			kept = append(kept, corev1.ContainerStatus{
				Name: status.Name, State: status.State, LastTerminationState: status.LastTerminationState, RestartCount: status.RestartCount, ContainerID: status.ContainerID,
			})
		}
	}
	return kept
}
