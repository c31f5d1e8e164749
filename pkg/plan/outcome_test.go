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
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

func TestFailureReason(t *testing.T) {
	type result struct{ reason, message string }
	disrupted := []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionFalse},
		{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting"},
	}
	for name, tc := range map[string]struct {
		status corev1.PodStatus
		want   result
	}{
		"the command": {
			corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{exited("helper", 99, "Error", ""), exited("command", 3, "Error", "no such host")}},
			result{v1alpha1.ReasonCommandFailed, "The command ended with exit code 3."},
		},
		"out of memory": {
			corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{exited("command", 137, "OOMKilled", "")}},
			result{v1alpha1.ReasonOOMKilled, "The command ended with exit code 137: it used more memory than its container's limit."},
		},
		"evicted by its node": {
			corev1.PodStatus{Reason: "Evicted", Message: "The node was low on resource: memory."},
			result{v1alpha1.ReasonEvicted, "Pod example-at-pod was evicted: The node was low on resource: memory."},
		},
		"evicted by a drain, and the command fails of it": {
			corev1.PodStatus{Conditions: disrupted, ContainerStatuses: []corev1.ContainerStatus{exited("command", 143, "Error", "")}},
			result{v1alpha1.ReasonEvicted, "Pod example-at-pod was evicted: EvictionByEvictionAPI: Eviction API: evicting"},
		},
		"the template's own deadline": {
			corev1.PodStatus{Reason: "DeadlineExceeded", Message: "Pod was active on the node longer than the specified deadline", ContainerStatuses: []corev1.ContainerStatus{exited("command", 143, "Error", "")}},
			result{v1alpha1.ReasonDeadlineExceeded, "Pod example-at-pod ran longer than its template allows: Pod was active on the node longer than the specified deadline"},
		},
		"another container": {
			corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{exited("command", 0, "Completed", ""), exited("upload", 1, "Error", "no route")}},
			result{v1alpha1.ReasonPodFailed, "Pod example-at-pod failed: container upload ended with exit code 1: no route"},
		},
		"an init container": {
			corev1.PodStatus{
				InitContainerStatuses: []corev1.ContainerStatus{exited("first", 0, "Completed", ""), exited("clone", 128, "Error", "")},
				ContainerStatuses:     []corev1.ContainerStatus{{Name: "command", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}}},
			},
			result{v1alpha1.ReasonPodFailed, "Pod example-at-pod failed: container clone ended with exit code 128"},
		},
		"out of memory, which the command took well, and another container": {
			corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{exited("command", 0, "OOMKilled", ""), exited("upload", 1, "Error", "")}},
			result{v1alpha1.ReasonPodFailed, "Pod example-at-pod failed: container upload ended with exit code 1"},
		},
		"another container, and a sidecar that was stopped then": {
			corev1.PodStatus{
				InitContainerStatuses: []corev1.ContainerStatus{exited("log", 143, "Error", "")},
				ContainerStatuses:     []corev1.ContainerStatus{exited("command", 0, "Completed", ""), exited("upload", 1, "Error", "")},
			},
			result{v1alpha1.ReasonPodFailed, "Pod example-at-pod failed: container upload ended with exit code 1"},
		},
		"with its node": {
			corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC", Message: "PodGC: node no longer exists"}}},
			result{v1alpha1.ReasonEvicted, "Pod example-at-pod was evicted: DeletionByPodGC: PodGC: node no longer exists"},
		},
		"no reason is reported": {
			corev1.PodStatus{}, result{v1alpha1.ReasonPodFailed, "Pod example-at-pod failed"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newPod(corev1.PodFailed)
			pod.Status = tc.status
			pod.Status.Phase = corev1.PodFailed
			reason, message := failureReason(pod)
			if diff := cmp.Diff(tc.want, result{reason, message}, cmp.AllowUnexported(result{})); diff != "" {
				t.Errorf("failure (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDeletedPod covers Pods that a user deletes with a grace period of 30 seconds.
func TestDeletedPod(t *testing.T) {
	const wasDeleted = "Pod example-at-pod was deleted before it ended"
	requested := due.Add(time.Minute)
	for name, tc := range map[string]struct {
		status corev1.PodStatus
		want   string
	}{
		"killed by the deletion": {
			corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{finished(requested.Add(30*time.Second), 137)}},
			"PodDeleted: " + wasDeleted + "; the exit code was 137.",
		},
		"ended by itself when it was asked to": {
			corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{finished(requested, 3)}},
			"PodDeleted: " + wasDeleted + "; the exit code was 3.",
		},
		"not started yet": {corev1.PodStatus{}, "PodDeleted: " + wasDeleted + "."},
		"killed by the deletion, by a node whose clock is behind": {
			corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{finished(requested.Add(-5*time.Second), 137)}},
			"PodDeleted: " + wasDeleted + "; the exit code was 137.",
		},
		"between two starts of its container": {
			corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
				Name:                 "command",
				State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
				LastTerminationState: finished(requested.Add(-time.Minute), 1).State,
			}}},
			"PodDeleted: " + wasDeleted + "; the exit code was 1.",
		},
		"the command had succeeded, another container was stopped": {
			corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{finished(requested.Add(-time.Minute), 0), exited("helper", 137, "Error", "")}},
			"PodDeleted: " + wasDeleted + "; the exit code was 0.",
		},
		"the command had succeeded, another container had failed": {
			corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{finished(requested.Add(-time.Minute), 0), exited("helper", 3, "Error", "")}},
			"PodFailed: Pod example-at-pod failed: container helper ended with exit code 3",
		},
		"out of memory before": {
			corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{exited("command", 137, "OOMKilled", "")}},
			"OOMKilled: The command ended with exit code 137: it used more memory than its container's limit.",
		},
		"failed before": {
			corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{finished(requested.Add(-time.Second), 3)}},
			"CommandFailed: The command ended with exit code 3.",
		},
		"evicted, which deletes it": {
			corev1.PodStatus{
				Conditions:        []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI"}},
				ContainerStatuses: []corev1.ContainerStatus{finished(requested.Add(30*time.Second), 137)},
			},
			"Evicted: Pod example-at-pod was evicted: EvictionByEvictionAPI",
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newPod(corev1.PodFailed)
			pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: requested.Add(30 * time.Second)}, ptr.To[int64](30)
			tc.status.Phase = corev1.PodFailed
			pod.Status = tc.status
			if reason, message := failureReason(pod); reason+": "+message != tc.want {
				t.Errorf("got %s: %s, want %s", reason, message, tc.want)
			}
		})
	}
}

func TestCommandTerminated(t *testing.T) {
	statuses := []corev1.ContainerStatus{exited("injected", 1, "", ""), exited("first", 2, "", ""), exited("second", 3, "", "")}
	restarting := corev1.ContainerStatus{
		Name:                 "first",
		State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: exited("", 4, "", "").State,
	}
	for name, tc := range map[string]struct {
		annotation string
		statuses   []corev1.ContainerStatus
		want       int32 // -1 if there is none
	}{
		"the default container":           {"second", statuses, 3},
		"no such container: the first":    {"third", statuses, 2},
		"not started":                     {"first", nil, -1},
		"running":                         {"first", []corev1.ContainerStatus{{Name: "first"}}, -1},
		"unknown":                         {"first", []corev1.ContainerStatus{exited("first", 137, "ContainerStatusUnknown", "")}, -1},
		"between two starts of a restart": {"first", []corev1.ContainerStatus{restarting}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newPod(corev1.PodFailed, func(pod *corev1.Pod) {
				pod.Annotations[DefaultContainer] = tc.annotation
				pod.Spec.Containers = []corev1.Container{{Name: "first"}, {Name: "second"}}
				pod.Status.ContainerStatuses = tc.statuses
			})
			got := int32(-1)
			if terminated := commandTerminated(pod); terminated != nil {
				got = terminated.ExitCode
			}
			if got != tc.want {
				t.Errorf("exit code %d, want %d", got, tc.want)
			}
		})
	}
}
