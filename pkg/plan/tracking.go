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
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// AtName returns the name of the At that a Pod belongs to, or "" if there is none. It
// uses the owner reference or, if that was removed, the annotation from the creation of
// the Pod.
func AtName(pod *corev1.Pod) string {
	if owner := ownerAt(pod); owner != nil {
		return owner.Name
	}
	if isTracked(pod) {
		return pod.Annotations[v1alpha1.AnnotationAtName]
	}
	return ""
}

// ownerAt returns the owner reference of an object if its controller is an At, or nil. It
// does not check the UID of the At.
func ownerAt(object metav1.Object) *metav1.OwnerReference { return Owner(object, v1alpha1.AtKind) }

// Owner returns the owner reference of an object to its controller if that has the given
// kind of this API group, or nil.
func Owner(object metav1.Object, kind string) *metav1.OwnerReference {
	owner := ControllerOf(object)
	if owner == nil || owner.Kind != kind {
		return nil
	}
	if gv, err := schema.ParseGroupVersion(owner.APIVersion); err != nil || gv.Group != cnat.GroupName {
		return nil
	}
	return owner
}

// ControllerOf returns the owner reference of an object to its controller, or nil. The API
// server accepts references of any length; a long one cannot refer to an existing object.
func ControllerOf(object metav1.Object) *metav1.OwnerReference {
	owner := metav1.GetControllerOf(object)
	if owner == nil || max(len(owner.APIVersion), len(owner.Kind), len(owner.Name), len(owner.UID)) > maxKept {
		return nil
	}
	return owner
}

// IsOf reports whether a Pod was created for an At. While the Pod has the finalizer, the
// label is as good as the owner reference, in case a user removed the latter.
func IsOf(pod *corev1.Pod, at *v1alpha1.At) bool {
	return metav1.IsControlledBy(pod, at) || isTracked(pod) && types.UID(pod.Labels[v1alpha1.LabelAtUID]) == at.UID
}

func isTracked(object metav1.Object) bool {
	return slices.Contains(object.GetFinalizers(), v1alpha1.FinalizerTracking)
}

// IsScheduled reports whether an At has the finalizer of Ats that a CronAt creates.
func IsScheduled(at *v1alpha1.At) bool {
	return slices.Contains(at.Finalizers, v1alpha1.FinalizerScheduled)
}
