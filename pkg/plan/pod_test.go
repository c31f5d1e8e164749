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
	"maps"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

func TestPodName(t *testing.T) {
	a57, a59, a60 := strings.Repeat("a", 57), strings.Repeat("a", 59), strings.Repeat("a", 60)
	for name, tc := range map[string]struct {
		at     string
		failed int32
		want   string
	}{
		"the book's":                          {"example-at", 0, "example-at-pod"},
		"the second attempt":                  {"example-at", 1, "example-at-pod-1"},
		"the last possible attempt":           {"example-at", math.MaxInt32, "example-at-pod-2147483647"},
		"the longest that fits":               {a59, 0, a59 + "-pod"},
		"the longest that fits with a number": {a57, 9, a57 + "-pod-9"},
		"the shortest that does not fit":      {a60, 0, strings.Repeat("a", 48) + "-11ee391211-pod"},
		"one that does not fit with a number": {a57, 10, strings.Repeat("a", 45) + "-f13b2d7246-pod-10"},
		"cut at a dot":                        {strings.Repeat("a", 46) + ".-b" + a60, 0, strings.Repeat("a", 46) + "-ab23ae99ff-pod"},
	} {
		t.Run(name, func(t *testing.T) {
			got := NameOfPod(tc.at, tc.failed)
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if errs := validation.IsDNS1123Label(got); len(errs) > 0 {
				t.Errorf("%q is not a host name: %v", got, errs)
			}
		})
	}
	if a, b := NameOfPod(strings.Repeat("a", 252)+"b", 0), NameOfPod(strings.Repeat("a", 253), 0); a == b {
		t.Errorf("two Ats have the same Pod name: %s", a)
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
			Annotations: map[string]string{
				"cnat.programming-kubernetes.info/scheduled-time": "2026-12-24T10:12:00Z",
				"kubectl.kubernetes.io/default-container":         "command",
				"cnat.programming-kubernetes.info/at-generation":  "2",
				"cnat.programming-kubernetes.info/at-name":        "example-at",
			},
			Finalizers: []string{"cnat.programming-kubernetes.info/tracking"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "cnat.programming-kubernetes.info/v1alpha1", Kind: "At", Name: "example-at", UID: uid,
				Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                corev1.RestartPolicyNever,
			AutomountServiceAccountToken: ptr.To(false),
			EnableServiceLinks:           ptr.To(false),
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
	if diff := cmp.Diff(want, NewPod(at, Defaults{Image: "image"})); diff != "" {
		t.Errorf("NewPod (-want +got):\n%s", diff)
	}

	resources := corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}}
	want.Spec.Containers[0].Resources = resources
	if diff := cmp.Diff(want, NewPod(at, Defaults{Image: "image", Resources: resources})); diff != "" {
		t.Errorf("NewPod with default resources (-want +got):\n%s", diff)
	}

	at.Name = strings.Repeat("a", 64)
	if labels := NewPod(at, Defaults{Image: "image"}).Labels; len(labels) != 1 {
		t.Errorf("a name that is not a valid label value became a label: %v", labels)
	}
}

func TestNewPodFromTemplate(t *testing.T) {
	template := func(mutate ...func(*corev1.PodTemplateSpec)) *corev1.PodTemplateSpec {
		template := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy:  corev1.RestartPolicyNever,
			InitContainers: []corev1.Container{{Name: "init", Image: "a", TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError}},
			Containers: []corev1.Container{
				{Name: "first", Image: "b", Command: []string{"/b"}, Args: []string{"$(HOME)"}, TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError},
				{Name: "second", Image: "c", TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError},
			},
			ServiceAccountName: "runner",
		}}
		for _, m := range mutate {
			m(template)
		}
		return template
	}
	same := func(*corev1.PodTemplateSpec) {}
	for name, tc := range map[string]struct {
		command string
		given   func(*corev1.PodTemplateSpec)
		// expectations
		want            func(*corev1.PodTemplateSpec)
		wantLabels      map[string]string
		wantAnnotations map[string]string
	}{
		"verbatim": {given: same, want: same},
		"with a command: it replaces the first container's own": {
			command: "echo $HOME", given: same,
			want: func(template *corev1.PodTemplateSpec) {
				template.Spec.Containers[0].Command, template.Spec.Containers[0].Args = []string{"/bin/sh", "-c", "echo $$HOME"}, nil
			},
		},
		"omitted fields are set": {
			given: func(template *corev1.PodTemplateSpec) {
				template.Spec.RestartPolicy = ""
				template.Spec.InitContainers[0].TerminationMessagePolicy = ""
				template.Spec.Containers[1].TerminationMessagePolicy = ""
			},
			want: same,
		},
		"set fields are kept": {
			given: func(template *corev1.PodTemplateSpec) {
				template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
				template.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageReadFile
			},
			want: func(template *corev1.PodTemplateSpec) {
				template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
				template.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageReadFile
			},
		},
		"labels and annotations, reserved ones are not overridden": {
			given: func(template *corev1.PodTemplateSpec) {
				template.Labels = map[string]string{"app": "backup", v1alpha1.LabelAtUID: "mine", v1alpha1.LabelAtName: "mine"}
				template.Annotations = map[string]string{"note": "night", v1alpha1.AnnotationScheduledTime: "never", DefaultContainer: "second"}
			},
			want:            same,
			wantLabels:      map[string]string{"app": "backup"},
			wantAnnotations: map[string]string{"note": "night", DefaultContainer: "second"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			at := newAt(withBackoffLimit(1), func(at *v1alpha1.At) { at.Spec.Command, at.Spec.Template = tc.command, template(tc.given) })
			before := at.DeepCopy()
			labels := map[string]string{v1alpha1.LabelAtUID: "at-uid", v1alpha1.LabelAtName: "example-at"}
			maps.Copy(labels, tc.wantLabels)
			annotations := map[string]string{v1alpha1.AnnotationScheduledTime: "2026-12-24T10:12:00Z", v1alpha1.AnnotationAtName: "example-at", v1alpha1.AnnotationAtGeneration: "2", DefaultContainer: "first"}
			maps.Copy(annotations, tc.wantAnnotations)

			// They are not for templates.
			defaults := Defaults{Image: "image", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}}}
			got := NewPod(at, defaults)

			if diff := cmp.Diff(template(tc.want).Spec, got.Spec); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(labels, got.Labels); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(annotations, got.Annotations); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, at); diff != "" {
				t.Errorf("NewPod changed its At:\n%s", diff)
			}
		})
	}
}

// TestNodeName checks that each container of a run on a node knows the name of the node.
func TestNodeName(t *testing.T) {
	name := corev1.EnvVar{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}
	own, other := corev1.EnvVar{Name: "NODE_NAME", Value: "own"}, corev1.EnvVar{Name: "A", Value: "$(NODE_NAME)"}
	at := newAt(func(at *v1alpha1.At) {
		at.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{}},
			Containers:     []corev1.Container{{Env: []corev1.EnvVar{other}}, {Env: []corev1.EnvVar{other, own}}},
		}}
	})
	for node, want := range map[string][][]corev1.EnvVar{
		"":   {nil, {other}, {other, own}},
		"n1": {{name}, {name, other}, {other, own}},
	} {
		at.Spec.Node = node
		spec := NewPod(at, Defaults{}).Spec
		if diff := cmp.Diff(want, [][]corev1.EnvVar{spec.InitContainers[0].Env, spec.Containers[0].Env, spec.Containers[1].Env}); diff != "" {
			t.Errorf("on node %q (-want +got):\n%s", node, diff)
		}
	}
	at.Spec.Template, at.Spec.Node = nil, "n1"
	if diff := cmp.Diff([]corev1.EnvVar{name}, NewPod(at, Defaults{}).Spec.Containers[0].Env); diff != "" {
		t.Errorf("without a template (-want +got):\n%s", diff)
	}
}
