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

package main

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestManyFinalizers releases an At with more finalizers than are cached. It keeps those of
// others.
func TestManyFinalizers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ats := runController(t, clock.RealClock{}, func() error { return nil })
		var others []string
		for i := range 20 {
			others = append(others, fmt.Sprintf("example.com/%d", i))
		}
		at := newAt(func(at *v1alpha1.At) {
			at.Spec.Schedule = time.Now().Add(time.Hour).Format(time.RFC3339)
			at.Finalizers = append(slices.Clone(others), v1alpha1.FinalizerTracking)
		})
		if _, err := ats.Create(t.Context(), at, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		got, err := ats.Get(t.Context(), at.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.Finalizers, others) {
			t.Errorf("got finalizers %q, want %q", got.Finalizers, others)
		}
	})
}
