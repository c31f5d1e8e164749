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
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// TestKeptSize checks that little of a CronAt is cached, whatever users write into it.
func TestKeptSize(t *testing.T) {
	long := strings.Repeat("x", 200_000)
	for name, change := range map[string]func(*v1alpha1.CronAt){
		"small": func(*v1alpha1.CronAt) {},
		"nodes": func(cronAt *v1alpha1.CronAt) {
			cronAt.Spec.AtTemplate.Spec.Nodes = &v1alpha1.AtNodes{Selector: metav1.LabelSelector{MatchExpressions: slices.Repeat(
				[]metav1.LabelSelectorRequirement{{Key: "key", Operator: metav1.LabelSelectorOpIn, Values: slices.Repeat([]string{"a"}, 5000)}}, 64)}}
		},
		"template": func(cronAt *v1alpha1.CronAt) {
			cronAt.Spec.AtTemplate.Spec.Template = &corev1.PodTemplateSpec{ObjectMeta: cronAt.ObjectMeta}
		},
		"command":     func(cronAt *v1alpha1.CronAt) { cronAt.Spec.AtTemplate.Spec.Command = strings.Repeat("x", 32767) },
		"annotations": func(cronAt *v1alpha1.CronAt) { cronAt.Spec.AtTemplate.Metadata.Annotations = cronAt.Annotations },
	} {
		t.Run(name, func(t *testing.T) {
			written := time.Date(2026, time.December, 24, 10, 0, 0, 0, time.UTC)
			cronAt := &v1alpha1.CronAt{
				ObjectMeta: metav1.ObjectMeta{
					Name:            strings.Repeat("n", 253),
					Labels:          map[string]string{"label": strings.Repeat("x", 63)},
					Annotations:     map[string]string{"long": long},
					Finalizers:      slices.Repeat([]string{"example.com/finalizer"}, 10_000),
					OwnerReferences: slices.Repeat([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "name", UID: "uid"}}, 10_000),
					ManagedFields:   slices.Repeat([]metav1.ManagedFieldsEntry{{Manager: "manager", Time: &metav1.Time{Time: written}}}, 10_000),
				},
				Spec: v1alpha1.CronAtSpec{
					Schedule: strings.Repeat("🌍", 256),
					TimeZone: ptr.To(strings.Repeat("🌍", 64)),
					AtTemplate: v1alpha1.AtTemplateSpec{Spec: v1alpha1.RunSpec{
						Command: "true",
						Node:    strings.Repeat("n", 253),
						Restart: &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: strings.Repeat("n", 253)},
					}},
				},
			}
			change(cronAt)
			kept := KeepCronAt(cronAt)
			content, err := json.Marshal(kept)
			if err != nil {
				t.Fatal(err)
			}
			if most := 16 << 10; len(content) > most {
				t.Errorf("%d bytes are kept: %.3000s", len(content), content)
			}
			if got := plan.WrittenAt(kept); !got.Equal(written) {
				t.Errorf("last written at %v, want %v", got, written)
			}
		})
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
