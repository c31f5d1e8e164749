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

package cronplan

import (
	"maps"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// TestKeptEdit checks that the time of the last edit is kept. TestKeptBounds in package plan looks at
// the size of what is kept.
func TestKeptEdit(t *testing.T) {
	cronAt := newCronAt(func(cronAt *v1alpha1.CronAt) {
		cronAt.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "manager", Time: &metav1.Time{Time: ten}}}
	})
	if got := plan.WrittenAt(KeepCronAt(cronAt)); !got.Equal(ten) {
		t.Errorf("last written at %v, want %v", got, ten)
	}
}

// TestChildHasRequester checks that a child has the requester of its CronAt, also if it is
// made from the cache.
func TestChildHasRequester(t *testing.T) {
	for name, tc := range map[string]struct {
		annotations map[string]string
		small       bool
	}{
		"none":  {small: true},
		"short": {annotations: map[string]string{v1alpha1.AnnotationRequester: strings.Repeat("a", 256)}, small: true},
		"long":  {annotations: map[string]string{v1alpha1.AnnotationRequester: strings.Repeat("a", 257)}},
	} {
		t.Run(name, func(t *testing.T) {
			cronAt := newCronAt(func(cronAt *v1alpha1.CronAt) {
				cronAt.Annotations, cronAt.Spec.AtTemplate.Metadata.Labels = tc.annotations, nil
			})
			want := map[string]string{v1alpha1.AnnotationScheduledTime: "2026-12-24T10:00:00Z"}
			maps.Copy(want, tc.annotations)
			if got := newChild(cronAt, ten, 0).Annotations; !maps.Equal(got, want) {
				t.Errorf("from the CronAt: %v, want %v", got, want)
			}
			kept := KeepCronAt(cronAt)
			if IsWhole(kept) != tc.small {
				t.Fatalf("all of it is kept: %t, want %t", !tc.small, tc.small)
			}
			if got := newChild(kept, ten, 0).Annotations; tc.small && !maps.Equal(got, want) {
				t.Errorf("from the cache: %v, want %v", got, want)
			}
		})
	}
}
