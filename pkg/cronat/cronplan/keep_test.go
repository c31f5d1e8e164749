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

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestChildHasRequester checks that a child has the requester of its CronAt, also if it is made from
// the cache, unless that is too long to be kept.
func TestChildHasRequester(t *testing.T) {
	for length, kept := range map[int]bool{0: true, 256: true, 257: false} {
		cronAt := newCronAt(func(cronAt *v1alpha1.CronAt) {
			cronAt.Annotations = map[string]string{v1alpha1.AnnotationRequester: strings.Repeat("a", length)}
			cronAt.Spec.AtTemplate.Metadata.Labels = nil
		})
		want := map[string]string{v1alpha1.AnnotationScheduledTime: "2026-12-24T10:00:00Z", v1alpha1.AnnotationRequester: strings.Repeat("a", length)}
		cached := KeepCronAt(cronAt)
		if got := newChild(cronAt, ten, 0).Annotations; !maps.Equal(got, want) {
			t.Errorf("length %d, from the CronAt: %v", length, got)
		}
		if got := newChild(cached, ten, 0).Annotations; IsWhole(cached) != kept || kept && !maps.Equal(got, want) {
			t.Errorf("length %d, from the cache: %v", length, got)
		}
	}
}
