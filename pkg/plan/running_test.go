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

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestDecideRunning covers Ats whose Pod has not ended.
func TestDecideRunning(t *testing.T) {
	testDecide(t, map[string]decideCase{
		"the Pod is seen, its owner reference was removed": {
			pod:  pendingPod(withoutOwner),
			want: "Phase=RUNNING; ScheduledTime=10:12:00; StartTime=10:12:00.01; Pod.Name=example-at-pod; Pod.UID=pod-uid; Pod.AtGeneration=2; Pod.Phase=Pending; Pod.NodeName=node; Normal SuccessfulCreate: Created Pod example-at-pod",
		},
		"the Pod is seen, its label was changed": {
			pod:  pendingPod(func(pod *corev1.Pod) { pod.Labels[v1alpha1.LabelAtUID] = "other" }),
			want: "Phase=RUNNING; ScheduledTime=10:12:00; StartTime=10:12:00.01; Pod.Name=example-at-pod; Pod.UID=pod-uid; Pod.AtGeneration=2; Pod.Phase=Pending; Pod.NodeName=node; Normal SuccessfulCreate: Created Pod example-at-pod",
		},
		"the Pod is seen, a zero time is not written": {
			at: newAt(withSchedule("0001-01-01T00:00:00Z")), pod: pendingPod(func(pod *corev1.Pod) {
				pod.Annotations = map[string]string{v1alpha1.AnnotationScheduledTime: "0001-01-01T00:00:00Z"}
			}),
			want: "Phase=RUNNING; StartTime=10:12:00.01; Pod.Name=example-at-pod; Pod.UID=pod-uid; Pod.Phase=Pending; Pod.NodeName=node; Normal SuccessfulCreate: Created Pod example-at-pod",
		},
		"the Pod's phase changes: mirrored": {
			at: newAt(withStatus(running(corev1.PodPending))), pod: runningPod(func(pod *corev1.Pod) {
				pod.Status.PodIP, pod.Status.HostIP = "10.0.0.2", "192.168.0.1"
				pod.Status.StartTime = &metav1.Time{Time: due}
			}),
			want: "Pod.Phase=Running; Pod.PodIP=10.0.0.2; Pod.HostIP=192.168.0.1; Pod.StartTime=10:12:00",
		},
		"an image cannot be pulled, first seen with the Pod: reported in the same write": {
			pod:  pendingPod(waiting("ErrImagePull", "no such image")),
			want: "Phase=RUNNING; ScheduledTime=10:12:00; StartTime=10:12:00.01; Pod.Name=example-at-pod; Pod.UID=pod-uid; Pod.AtGeneration=2; Pod.Phase=Pending; Pod.NodeName=node; Blocked ImagePullFailed: Container command: ErrImagePull: no such image; Normal SuccessfulCreate: Created Pod example-at-pod; Warning ImagePullFailed",
		},
		"an image cannot be pulled, in other words: not written again": {
			at: newAt(withStatus(running(corev1.PodPending, imagePullFailed("Container command: ErrImagePull: no such image")))), pod: pendingPod(waiting("ImagePullBackOff", "Back-off")),
			want: "wait 1m0s",
		},
		"the Pod of the next attempt is seen: the result of the first is removed": {
			at: newAt(withStatus(*nextAttempt(1, now)), withBackoffLimit(2)), pod: pendingPod(second),
			want: "Pod.Name=example-at-pod-1; Pod.UID=second; Pod.Phase=Pending; no ExitCode; no NextAttemptTime; Normal SuccessfulCreate: Created Pod example-at-pod-1",
		},
		"edited between the creation of the Pod and its record: a warning, and the status has the Pod's generation": {
			pod:  pendingPod(func(pod *corev1.Pod) { pod.Annotations[v1alpha1.AnnotationAtGeneration] = "1" }),
			want: "Phase=RUNNING; ScheduledTime=10:12:00; StartTime=10:12:00.01; Pod.Name=example-at-pod; Pod.UID=pod-uid; Pod.AtGeneration=1; Pod.Phase=Pending; Pod.NodeName=node; Normal SuccessfulCreate: Created Pod example-at-pod; Warning EditedTooLate: The spec was edited too late for Pod example-at-pod, which was created from generation 1: changes to schedule, timeZone, command, template, restart, node and nodes do not affect that Pod.",
		},
		"the Pod is force-deleted, its node may still report: waited for":       {at: runningAt(), pod: runningPod(deletedByForce(now.Add(-time.Minute + 1))), want: "wait 1ns"},
		"the Pod is force-deleted, in an hour by another clock: checked anyway": {at: runningAt(), pod: runningPod(deletedByForce(now.Add(time.Hour))), want: "wait 1m0s"},
	})
}

// TestDecideActiveDeadline covers Ats whose Pod has not ended, and may only run for a while.
func TestDecideActiveDeadline(t *testing.T) {
	testDecide(t, map[string]decideCase{
		"running, the active deadline has passed: reported first": {
			at: runningAt(withActiveDeadline(10)), pod: runningPod(), now: created.Add(10 * time.Second),
			want: "FailureTarget DeadlineExceeded: The run took longer than spec.activeDeadlineSeconds (10).",
		},
		"running, the active deadline has passed while an image cannot be pulled: both reported": {
			at: newAt(withStatus(running(corev1.PodPending, imagePullFailed("Container command: ErrImagePull: no such image"))), withActiveDeadline(10)), pod: pendingPod(waiting("ErrImagePull", "no such image")), now: created.Add(10 * time.Second),
			want: "FailureTarget DeadlineExceeded: The run took longer than spec.activeDeadlineSeconds (10). No container of Pod example-at-pod started. It was blocked: Container command: ErrImagePull: no such image",
		},
		"running, the active deadline has passed, but the status goes first": {
			at: newAt(withActiveDeadline(10)), pod: runningPod(), now: created.Add(time.Hour),
			want: "Phase=RUNNING; ScheduledTime=10:12:00; StartTime=10:12:00.01; Pod.Name=example-at-pod; Pod.UID=pod-uid; Pod.AtGeneration=2; Pod.Phase=Running; Pod.NodeName=node; Normal SuccessfulCreate: Created Pod example-at-pod",
		},
		"being stopped, the Pod not ended yet": {at: newAt(withStatus(running(corev1.PodRunning, stopping)), withActiveDeadline(10)), pod: runningPod(deleted), want: "wait 1m0s"},
	})
}
