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
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestLeave takes the steps of Leave until there is none, and compares them.
func TestLeave(t *testing.T) {
	deleted := func(at *v1alpha1.At) { at.DeletionTimestamp = &metav1.Time{Time: now} }
	for name, tc := range map[string]struct {
		// world; the At is nil if it is gone
		at   *v1alpha1.At
		pods []*corev1.Pod
		// expectations
		want []string
	}{
		"the At is gone":          {pods: []*corev1.Pod{runningPod()}, want: []string{"ReleasePod example-at-pod"}},
		"the At is being deleted": {at: newAt(deleted), pods: []*corev1.Pod{runningPod()}, want: []string{"ReleasePod example-at-pod"}},
		"running":                 {at: runningAt(), pods: []*corev1.Pod{runningPod()}, want: []string{"ReleasePod example-at-pod"}},
		"ended":                   {at: runningAt(), pods: []*corev1.Pod{succeededPod()}, want: []string{"DONE", "ReleasePod example-at-pod"}},
		"a Pod with another name": {at: newAt(), pods: []*corev1.Pod{runningPod(func(pod *corev1.Pod) { pod.Name = "forged" })}, want: []string{"ReleasePod forged"}},
		"a run on nodes":          {at: newAt(func(at *v1alpha1.At) { at.Status.Nodes = &v1alpha1.AtNodesStatus{} }), pods: []*corev1.Pod{succeededPod()}, want: []string{"ReleasePod example-at-pod"}},
		"released":                {at: newAt(), pods: []*corev1.Pod{runningPod(withReleased)}, want: []string{"RUNNING"}},
		"the second attempt, just created": {
			at:   newAt(withStatus(*secondRunning(corev1.PodRunning)), func(at *v1alpha1.At) { at.Status.Pod = nil }),
			pods: []*corev1.Pod{failedPod(), runningPod(func(pod *corev1.Pod) { pod.Name = "example-at-pod-1" })},
			want: []string{"RUNNING", "ReleasePod example-at-pod", "ReleasePod example-at-pod-1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			world := World{At: tc.at, Pods: tc.pods, Live: LiveAt, Now: now}
			var got []string
			for range 10 {
				d := Leave(world)
				if release, ok := d.Action.(ReleasePod); ok {
					got = append(got, "ReleasePod "+release.Pod.Name)
					world.Pods = slices.DeleteFunc(slices.Clone(world.Pods), func(pod *corev1.Pod) bool { return pod == release.Pod })
				} else if d.Status != nil {
					got = append(got, string(d.Status.Phase))
					world.At = world.At.DeepCopy()
					world.At.Status = *d.Status
				} else if d.Action != nil {
					t.Fatalf("it starts %+v", d.Action)
				}
			}
			expect(t, "steps", tc.want, got)
		})
	}
}
