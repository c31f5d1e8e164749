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
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestMoveConflict moves an At by an amount while another user moves it: the amount counts from the time that it replaces.
func TestMoveConflict(t *testing.T) {
	w := newWorld(t, newAt("at", nil))
	first := true
	w.cnat.PrependReactor("patch", "ats", func(kubetesting.Action) (bool, runtime.Object, error) {
		if !first {
			return false, nil, nil
		}
		first = false
		moved := newAt("at", func(at *v1alpha1.At) { at.Spec.Schedule = "2026-03-30T10:12:00+01:00" })
		if err := w.cnat.Tracker().Update(v1alpha1.SchemeGroupVersion.WithResource("ats"), moved, "default"); err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewConflict(v1alpha1.Resource("ats"), "at", nil)
	})
	code := w.run(t, "move", "at", "+", "1", "hour", "--tz=UTC")
	at, err := w.cnat.CnatV1alpha1().Ats("default").Get(t.Context(), "at", metav1.GetOptions{})
	if code != 0 || err != nil || at.Spec.Schedule != "2026-03-30T10:12:00Z" {
		t.Errorf("exit code %d, error %v, stderr %q, spec %v", code, err, w.stderr.String(), at.Spec)
	}
}
