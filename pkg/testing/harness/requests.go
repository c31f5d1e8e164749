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

package harness

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// These requests of a person succeed, or the test fails. They take the clients of client-go
// for one kind of object.

// Create creates an object.
func Create[T any](t *testing.T, client interface {
	Create(ctx context.Context, object T, options metav1.CreateOptions) (T, error)
}, object T) T {
	t.Helper()
	return must(client.Create(t.Context(), object, metav1.CreateOptions{}))(t)
}

// Get reads an object.
func Get[T any](t *testing.T, client interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (T, error)
}, name string) T {
	t.Helper()
	return must(client.Get(t.Context(), name, metav1.GetOptions{}))(t)
}

// List lists objects.
func List[T any](t *testing.T, client interface {
	List(ctx context.Context, options metav1.ListOptions) (T, error)
}) T {
	t.Helper()
	return must(client.List(t.Context(), metav1.ListOptions{}))(t)
}

// Update replaces an object, apart from its status.
func Update[T any](t *testing.T, client interface {
	Update(ctx context.Context, object T, options metav1.UpdateOptions) (T, error)
}, object T) T {
	t.Helper()
	return must(client.Update(t.Context(), object, metav1.UpdateOptions{}))(t)
}

// UpdateStatus replaces the status of an object.
func UpdateStatus[T any](t *testing.T, client interface {
	UpdateStatus(ctx context.Context, object T, options metav1.UpdateOptions) (T, error)
}, object T) T {
	t.Helper()
	return must(client.UpdateStatus(t.Context(), object, metav1.UpdateOptions{}))(t)
}

// Patch applies a merge patch to an object.
func Patch[T any](t *testing.T, client interface {
	Patch(ctx context.Context, name string, patchType types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string) (T, error)
}, name, patch string) T {
	t.Helper()
	return must(client.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
}

// Delete deletes an object.
func Delete(t *testing.T, client interface {
	Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
}, name string) {
	t.Helper()
	if err := client.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func must[T any](object T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return object
	}
}
