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

// Package patch creates the merge patches that controllers use.
package patch

import (
	"encoding/json"
	"slices"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Status returns the patch that sets the status of an object, unless the object was
// modified after the given version. The patch only contains differences: it does not
// touch fields that were set by a newer controller and are unknown to this one.
func Status(resourceVersion string, before, after any) ([]byte, error) {
	return diff(
		map[string]any{"status": before},
		map[string]any{"metadata": map[string]any{"resourceVersion": resourceVersion}, "status": after},
	)
}

// Spec returns the patch that changes labels and spec of an object, unless the object was
// modified in the meantime. It does not touch labels and fields that neither before nor
// after contains.
func Spec(object metav1.Object, labelsBefore, labelsAfter map[string]string, before, after any) ([]byte, error) {
	return diff(
		map[string]any{"metadata": map[string]any{"labels": labelsBefore}, "spec": before},
		map[string]any{"metadata": metadata(object, "labels", labelsAfter), "spec": after},
	)
}

// Owner returns the patch that gives an object a single owner, unless the object was
// modified in the meantime.
func Owner(object metav1.Object, owner metav1.OwnerReference) ([]byte, error) {
	return json.Marshal(map[string]any{"metadata": metadata(object, "ownerReferences", []metav1.OwnerReference{owner})})
}

// WithoutFinalizer returns the patch that removes a finalizer, unless the object was
// modified in the meantime.
func WithoutFinalizer(object metav1.Object, finalizer string) ([]byte, error) {
	finalizers := slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(name string) bool { return name == finalizer })
	return json.Marshal(map[string]any{"metadata": metadata(object, "finalizers", finalizers)})
}

// metadata returns metadata with a field. With UID and version, the API server answers
// Conflict if the object is another one, or was modified.
func metadata(object metav1.Object, field string, value any) map[string]any {
	return map[string]any{"uid": object.GetUID(), "resourceVersion": object.GetResourceVersion(), field: value}
}

// diff returns the patch from before to after.
func diff(before, after any) ([]byte, error) {
	was, err := json.Marshal(before)
	if err != nil {
		return nil, err
	}
	is, err := json.Marshal(after)
	if err != nil {
		return nil, err
	}
	return jsonpatch.CreateMergePatch(was, is)
}
