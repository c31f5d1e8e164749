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
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

// maxKeptSizes are the sizes of objects in JSON up to which they may be cached.
var maxKeptSizes = map[string]int{"At": 16 << 10, "Pod": 48 << 10}

// largeMeta fills whatever a user can write in the metadata of an object.
func largeMeta(meta *metav1.ObjectMeta) {
	long := strings.Repeat("x", 200_000)
	meta.Name, meta.Namespace = strings.Repeat("n", 253), strings.Repeat("n", 63)
	meta.Labels = map[string]string{v1alpha1.LabelAtUID: strings.Repeat("x", 63), v1alpha1.LabelCronAtUID: strings.Repeat("x", 63)}
	meta.Annotations = map[string]string{}
	for _, key := range append(slices.Clone(podAnnotations), "other") {
		meta.Annotations[key] = long
	}
	meta.Finalizers = append(slices.Repeat([]string{strings.Repeat("f", 253) + "/" + strings.Repeat("f", 63)}, 4000), v1alpha1.FinalizerTracking, v1alpha1.FinalizerScheduled)
	meta.ManagedFields = slices.Repeat([]metav1.ManagedFieldsEntry{{Manager: "manager", Time: &metav1.Time{}}}, 10_000)
	meta.OwnerReferences = append(
		[]metav1.OwnerReference{{APIVersion: v1alpha1.SchemeGroupVersion.Group + "/" + long, Kind: v1alpha1.AtKind, Name: long, UID: "uid", Controller: ptr.To(true)}},
		slices.Repeat([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "name", UID: "uid"}}, 1000)...)
}

// largeRun fills whatever the CRD admits, apart from the template.
func largeRun(run *v1alpha1.RunSpec) {
	run.Node = strings.Repeat("n", 253)
	run.Restart = &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: strings.Repeat("n", 253)}
	run.Nodes = &v1alpha1.AtNodes{MaxConcurrent: ptr.To(intstr.FromString("100%")), MaxFailed: ptr.To[int32](1)}
	run.Nodes.Selector.MatchExpressions = slices.Repeat([]metav1.LabelSelectorRequirement{{
		Key: "key", Operator: metav1.LabelSelectorOpIn, Values: slices.Repeat([]string{"a"}, 5000),
	}}, 64)
}

// TestKeptSize checks that little of an object is cached, whatever users write into it.
func TestKeptSize(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.At, *corev1.Pod){
		"a small command":   func(at *v1alpha1.At, _ *corev1.Pod) { at.Spec.Command = "true" },
		"a long command":    func(at *v1alpha1.At, _ *corev1.Pod) { at.Spec.Command = strings.Repeat("x", 32767) },
		"owned by a CronAt": func(at *v1alpha1.At, _ *corev1.Pod) { owner(at).Kind = v1alpha1.CronAtKind },
	} {
		t.Run(name, func(t *testing.T) {
			at := &v1alpha1.At{Spec: v1alpha1.AtSpec{Schedule: strings.Repeat("0", 64), TimeZone: ptr.To(strings.Repeat("🌍", 64))}}
			at.Generation = 1
			largeMeta(&at.ObjectMeta)
			largeRun(&at.Spec.RunSpec)
			// The controller writes the status.
			at.Status.Message = strings.Repeat("x", answer.MaxMessage)
			at.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionFailed, Message: at.Status.Message}}
			// The kubelet repeats the image.
			long := strings.Repeat("x", 600_000)
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "command"}}}, Status: corev1.PodStatus{Message: long}}
			largeMeta(&pod.ObjectMeta)
			for i := range 3000 {
				status := corev1.ContainerStatus{Name: fmt.Sprintf("c%d", i), State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: long}}}
				pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, status)
				pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses, status)
			}
			change(at, pod)
			for kind, kept := range map[string]any{"At": KeepAt(at), "Pod": KeepPod(pod)} {
				content, err := json.Marshal(kept)
				if err != nil {
					t.Fatal(err)
				}
				if len(content) > maxKeptSizes[kind] {
					t.Errorf("%d bytes of the %s are kept: %.3000s", len(content), kind, content)
				}
			}
		})
	}
}

// owner returns the first owner reference of an object.
func owner(object metav1.Object) *metav1.OwnerReference { return &object.GetOwnerReferences()[0] }
