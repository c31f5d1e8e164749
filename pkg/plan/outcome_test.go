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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestFailureReason covers why a Pod has failed: the container that runs the command, which an
// annotation names, another one, or what ended the Pod.
func TestFailureReason(t *testing.T) {
	const wasDeleted = "PodDeleted: Pod example-at-pod was deleted before it ended"
	requested := due.Add(time.Minute)
	// deleted is a Pod that a user deletes with a grace period of 30 seconds.
	deleted := func(pod *corev1.Pod) {
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: requested.Add(30 * time.Second)}, ptr.To[int64](30)
	}
	says := func(reason, message string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Status.Reason, pod.Status.Message = reason, message }
	}
	disrupted := func(reason, message string) func(*corev1.Pod) {
		return withCondition(corev1.DisruptionTarget, corev1.ConditionTrue, reason, message, due)
	}
	restarting := waits("command", "CrashLoopBackOff", "")
	restarting.LastTerminationState = finished(requested.Add(-time.Minute), 4).State
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"between two starts":                {failedPod(withContainers(restarting)), "CommandFailed: The command ended with exit code 4."},
		"its node knows nothing of it":      {failedPod(withContainers(exited("command", 137, statusUnknown, ""))), "PodFailed: Pod example-at-pod failed: container command ended with exit code 137"},
		"evicted by its node":               {failedPod(says("Evicted", "The node was low on resource: memory.")), "Evicted: Pod example-at-pod was evicted: The node was low on resource: memory."},
		"evicted, and the command fails":    {failedPod(disrupted("EvictionByEvictionAPI", "evicting"), withContainers(exited("command", 143, "Error", ""))), "Evicted: Pod example-at-pod was evicted: EvictionByEvictionAPI: evicting"},
		"evicted, which deletes it":         {failedPod(deleted, disrupted("EvictionByEvictionAPI", ""), withContainers(finished(requested, 137))), "Evicted: Pod example-at-pod was evicted: EvictionByEvictionAPI"},
		"the template's own deadline":       {failedPod(says("DeadlineExceeded", "words"), withContainers(exited("command", 143, "Error", ""))), "DeadlineExceeded: Pod example-at-pod ran longer than its template allows: words"},
		"another container":                 {failedPod(withContainers(exited("command", 0, "OOMKilled", ""), exited("upload", 1, "Error", "no route"))), "PodFailed: Pod example-at-pod failed: container upload ended with exit code 1: no route"},
		"another, and a sidecar stopped so": {failedPod(withInitContainers(exited("log", 143, "Error", "")), withContainers(exited("command", 0, "Completed", ""), exited("upload", 1, "Error", ""))), "PodFailed: Pod example-at-pod failed: container upload ended with exit code 1"},
		"an init container":                 {failedPod(withInitContainers(exited("first", 0, "Completed", ""), exited("clone", 128, "Error", "")), waiting("PodInitializing", "")), "PodFailed: Pod example-at-pod failed: container clone ended with exit code 128"},
		"no reason is reported":             {failedPod(), "PodFailed: Pod example-at-pod failed"},
		"terminated by a deletion":          {failedPod(deleted, withContainers(finished(requested.Add(-5*time.Second), 143))), wasDeleted + "; the exit code was 143."},
		"ended itself after a deletion":     {failedPod(deleted, withContainers(finished(requested, 3))), wasDeleted + "; the exit code was 3."},
		"removed by its node, which had seen the deletion": {
			failedPod(removedByNode(requested.Add(2*time.Second), 2, 2), withContainers(finished(requested, 3))), wasDeleted + "; the exit code was 3.",
		},
		"… but the command had failed long before": {
			failedPod(removedByNode(requested.Add(time.Hour), 2, 2), withContainers(finished(requested, 3))), "CommandFailed: The command ended with exit code 3.",
		},
		"… or its node had reported that before the deletion": {
			failedPod(removedByNode(requested.Add(2*time.Second), 2, 1), withContainers(finished(requested, 3))), "CommandFailed: The command ended with exit code 3.",
		},
		"… or its node reports no generation": {
			failedPod(removedByNode(requested.Add(2*time.Second), 0, 0), withContainers(finished(requested, 3))), "CommandFailed: The command ended with exit code 3.",
		},
		"deleted, another container stopped": {failedPod(deleted, withContainers(finished(earlier, 0), exited("helper", 137, "Error", ""))), wasDeleted + "; the exit code was 0."},
		"deleted, another had failed":        {failedPod(deleted, withContainers(finished(earlier, 0), exited("helper", 3, "Error", ""))), "PodFailed: Pod example-at-pod failed: container helper ended with exit code 3"},
		"deleted, out of memory before":      {failedPod(deleted, withContainers(exited("command", 137, "OOMKilled", ""))), "OOMKilled: The command ended with exit code 137: it used more memory than its container's limit."},
		"deleted, had failed before":         {failedPod(deleted, withContainers(finished(requested.Add(-time.Second), 3))), "CommandFailed: The command ended with exit code 3."},
	} {
		if reason, message := failureReason(tc.pod); reason+": "+message != tc.want {
			t.Errorf("%s: got %s: %s, want %s", name, reason, message, tc.want)
		}
	}
}
