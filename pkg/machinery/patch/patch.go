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
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// Change returns the patch with the differences between two states of an object. If only the second
// has a UID and a resource version, it applies to no other object and no other version.
func Change(before, after any) []byte {
	patch, err := jsonpatch.CreateMergePatch(encode(before), encode(after))
	utilruntime.Must(err)
	return patch
}

// WithFinalizer returns the patch that adds a finalizer, unless the object was modified in the
// meantime.
func WithFinalizer(object metav1.Object, finalizer string) []byte {
	return finalizers(object, append(slices.Clone(object.GetFinalizers()), finalizer))
}

// WithoutFinalizer returns the patch that removes a finalizer, unless the object was
// modified in the meantime.
func WithoutFinalizer(object metav1.Object, finalizer string) []byte {
	return finalizers(object, slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(name string) bool { return name == finalizer }))
}

// finalizers returns the patch that sets the finalizers. With UID and version, the API server answers
// Conflict if the object is another one, or was modified. A version that is empty is left out.
func finalizers(object metav1.Object, finalizers []string) []byte {
	meta := map[string]any{"uid": object.GetUID(), "finalizers": finalizers}
	if version := object.GetResourceVersion(); version != "" {
		meta["resourceVersion"] = version
	}
	return encode(map[string]any{"metadata": meta})
}

// encode returns a value in JSON. Whatever comes from the API server can be encoded.
func encode(value any) []byte {
	content, err := json.Marshal(value)
	utilruntime.Must(err)
	return content
}
