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
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

func TestPodName(t *testing.T) {
	a59, a60 := strings.Repeat("a", 59), strings.Repeat("a", 60)
	for name, tc := range map[string]struct{ at, want string }{
		"the book's":                     {"example-at", "example-at-pod"},
		"the longest that fits":          {a59, a59 + "-pod"},
		"the shortest that does not fit": {a60, strings.Repeat("a", 48) + "-11ee391211-pod"},
		"cut at a dot":                   {strings.Repeat("a", 46) + ".-b" + a60, strings.Repeat("a", 46) + "-ab23ae99ff-pod"},
	} {
		t.Run(name, func(t *testing.T) {
			got := PodName(tc.at)
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if errs := validation.IsDNS1123Label(got); len(errs) > 0 {
				t.Errorf("%q is no host name: %v", got, errs)
			}
		})
	}
	if a, b := PodName(strings.Repeat("a", 252)+"b"), PodName(strings.Repeat("a", 253)); a == b {
		t.Errorf("two Ats with one Pod name: %s", a)
	}
}

func TestNewPod(t *testing.T) {
	at := newAt(func(at *v1alpha1.At) { at.Spec.Command = `echo "$HOME" | wc -c; echo $$ $(date)` })
	want := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:      "example-at-pod",
			Namespace: "default",
			Labels: map[string]string{
				"cnat.programming-kubernetes.info/at-uid":  "at-uid",
				"cnat.programming-kubernetes.info/at-name": "example-at",
			},
			Annotations: map[string]string{"cnat.programming-kubernetes.info/scheduled-time": "2026-12-24T10:12:00Z"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "cnat.programming-kubernetes.info/v1alpha1", Kind: "At", Name: "example-at", UID: atUID,
				Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                corev1.RestartPolicyNever,
			AutomountServiceAccountToken: ptr.To(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65534), RunAsGroup: ptr.To[int64](65534),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "command", Image: "image",
				Command:                  []string{"/bin/sh", "-c", `echo "$$HOME" | wc -c; echo $$$$ $$(date)`},
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false),
					Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
	if diff := cmp.Diff(want, NewPod(at, "image")); diff != "" {
		t.Errorf("NewPod (-want +got):\n%s", diff)
	}

	at.Name = strings.Repeat("a", 64)
	if labels := NewPod(at, "image").Labels; len(labels) != 1 {
		t.Errorf("a name that is no label value is a label all the same: %v", labels)
	}
}
