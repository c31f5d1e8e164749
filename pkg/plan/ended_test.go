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
	"math"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestDecideEnded covers Ats whose Pod has ended.
func TestDecideEnded(t *testing.T) {
	testDecide(t, map[string]decideCase{
		"success": {
			at: newAt(withStatus(running(corev1.PodRunning))), pod: newPod(corev1.PodSucceeded, terminated(0, "written to the termination log")),
			want: complete(func(status *v1alpha1.AtStatus) {
				status.ExitCode, status.Message = ptr.To[int32](0), "written to the termination log"
				status.CompletionTime = &metav1.Time{Time: endTime}
			}),
		},
		"success, never seen before": {at: newAt(), pod: newPod(corev1.PodSucceeded), want: withCreation(complete())},
		"failure with a message": {
			at: newAt(withStatus(running(corev1.PodRunning))), pod: newPod(corev1.PodFailed, terminated(3, "no such host")),
			want: failed(running(corev1.PodFailed), v1alpha1.ReasonCommandFailed, "The command ended with exit code 3.", func(status *v1alpha1.AtStatus) {
				status.Failed, status.ExitCode, status.Message = 1, ptr.To[int32](3), "no such host"
				status.CompletionTime = &metav1.Time{Time: endTime}
			}),
		},
		"failure without a message": {
			at: newAt(withStatus(running(corev1.PodRunning))), pod: newPod(corev1.PodFailed, terminated(1, "")),
			want: failed(running(corev1.PodFailed), v1alpha1.ReasonCommandFailed, "The command ended with exit code 1.", func(status *v1alpha1.AtStatus) {
				status.Failed, status.ExitCode = 1, ptr.To[int32](1)
				status.CompletionTime = &metav1.Time{Time: endTime}
			}),
		},
		"failure of the Pod, not of the command": {
			at: newAt(withStatus(running(corev1.PodRunning))), pod: newPod(corev1.PodFailed),
			want: failed(running(corev1.PodFailed), v1alpha1.ReasonPodFailed, "Pod example-at-pod failed", attempts(1)),
		},
		"failure of another container, with a message that could pass for a log line": {
			at: newAt(withStatus(running(corev1.PodRunning))),
			pod: newPod(corev1.PodFailed, func(pod *corev1.Pod) {
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{exited("other", 1, "", "\x1b[2Jgone\nI1224 10:12:00.000000 all is well\n")}
			}),
			want: failed(running(corev1.PodFailed), v1alpha1.ReasonPodFailed,
				"Pod example-at-pod failed: container other ended with exit code 1:  [2Jgone I1224 10:12:00.000000 all is well", attempts(1)),
		},
		"the next attempt succeeds": {
			at: newAt(withStatus(*secondRunning(corev1.PodRunning)), withBackoffLimit(2)), pod: newPod(corev1.PodSucceeded, second),
			want: ends(*secondRunning(corev1.PodSucceeded), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, completedMessage),
		},
		"the last attempt fails": {
			at: newAt(withStatus(*secondRunning(corev1.PodRunning)), withBackoffLimit(1)), pod: newPod(corev1.PodFailed, second),
			want: failed(*secondRunning(corev1.PodFailed), v1alpha1.ReasonPodFailed, "Pod example-at-pod-1 failed", attempts(2)),
		},
		"being stopped, and failed because of it": {
			at:  newAt(withStatus(running(corev1.PodRunning, stopping)), withActiveDeadline(10), withBackoffLimit(5)),
			pod: newPod(corev1.PodFailed, deleted, terminated(137, "")),
			want: failed(running(corev1.PodFailed, stopping), v1alpha1.ReasonDeadlineExceeded, deadlineMessage, func(status *v1alpha1.AtStatus) {
				status.Failed, status.ExitCode, status.CompletionTime = 1, ptr.To[int32](137), &metav1.Time{Time: endTime}
			}),
		},
		"being stopped, and succeeded; the limit has changed since": {
			at:  newAt(withStatus(running(corev1.PodRunning, stopping))),
			pod: newPod(corev1.PodSucceeded, deleted, terminated(0, "")),
			want: failed(running(corev1.PodSucceeded, stopping), v1alpha1.ReasonDeadlineExceeded, deadlineMessage, func(status *v1alpha1.AtStatus) {
				status.Failed, status.ExitCode, status.CompletionTime = 1, ptr.To[int32](0), &metav1.Time{Time: endTime}
			}),
		},
		"about to be stopped, but succeeded first": {
			at:  newAt(withStatus(running(corev1.PodRunning, stopping)), withActiveDeadline(10)),
			pod: newPod(corev1.PodSucceeded), want: complete(),
		},
		"about to be stopped, but failed first: no further attempt": {
			at:   newAt(withStatus(running(corev1.PodRunning, stopping)), withActiveDeadline(10), withBackoffLimit(5)),
			pod:  newPod(corev1.PodFailed),
			want: failed(running(corev1.PodFailed), v1alpha1.ReasonPodFailed, "Pod example-at-pod failed", attempts(1)),
		},
		"deleted by a user before the active deadline, ended after it": {
			at:   newAt(withStatus(running(corev1.PodRunning)), withActiveDeadline(2)),
			pod:  newPod(corev1.PodFailed, deleted),
			want: failed(running(corev1.PodFailed), v1alpha1.ReasonPodDeleted, "Pod example-at-pod was deleted before it ended.", attempts(1)),
		},
		"ended before the active deadline, seen after it": {
			at:  newAt(withStatus(running(corev1.PodRunning)), withActiveDeadline(1)),
			pod: newPod(corev1.PodSucceeded), want: complete(),
		},
		"the end, with a time to live: checked again": {
			at: newAt(withStatus(running(corev1.PodRunning)), withTTL(60)), pod: newPod(corev1.PodSucceeded),
			want: complete(),
		},
		"the Pod is force-deleted, and its node has reported: counted": {
			at:   newAt(withStatus(running(corev1.PodRunning))),
			pod:  newPod(corev1.PodSucceeded, deletedByForce(earlier)),
			want: complete(),
		},
		"the Pod is deleted before it has a node: it has ended": {
			at:   newAt(withStatus(running(corev1.PodPending))),
			pod:  newPod(corev1.PodPending, deleted, func(pod *corev1.Pod) { pod.Spec.NodeName = "" }),
			want: failed(running(corev1.PodPending), v1alpha1.ReasonPodDeleted, "Pod example-at-pod was deleted before it had a node: the command did not run.", attempts(1)),
		},
	})
}

// TestDecideFailedAttempt covers Ats whose Pod has failed, and may be followed by another.
func TestDecideFailedAttempt(t *testing.T) {
	testDecide(t, map[string]decideCase{
		"a failed attempt, another allowed: announced": {
			at: newAt(withStatus(running(corev1.PodRunning)), withBackoffLimit(2)), pod: newPod(corev1.PodFailed, terminated(1, "no such host")),
			want: Decision{
				Status: announced(nextAttempt(1, now.Add(10*time.Second)), announcement+" Message: no such host"),
				Events: []Event{warning(v1alpha1.ReasonCommandFailed, announcement)},
			},
		},
		"a failed attempt, never seen before, at a fraction of a second": {
			at: newAt(withBackoffLimit(2)), pod: newPod(corev1.PodFailed, terminated(1, "no such host")), now: now.Add(1),
			want: Decision{
				Status: announced(nextAttempt(1, now.Add(11*time.Second)), strings.ReplaceAll(announcement, ":14Z", ":15Z")+" Message: no such host", func(status *v1alpha1.AtStatus) { status.LastFailureTime.Time = now.Add(1) }),
				Events: []Event{createdEvent, warning(v1alpha1.ReasonCommandFailed, "Attempt 1 of 3 failed, the next is due at 2026-12-24T10:12:15Z: The command ended with exit code 1.")},
			},
		},
		"a failed attempt, very many others allowed": {
			at: newAt(withStatus(running(corev1.PodRunning)), withBackoffLimit(math.MaxInt32)), pod: newPod(corev1.PodFailed, terminated(1, "no such host")),
			want: Decision{
				Status: announced(nextAttempt(1, now.Add(10*time.Second)), strings.ReplaceAll(announcement, "of 3", "of 2147483648")+" Message: no such host"),
				Events: []Event{warning(v1alpha1.ReasonCommandFailed, "Attempt 1 of 2147483648 failed, the next is due at 2026-12-24T10:12:14Z: The command ended with exit code 1.")},
			},
		},
		"a failed attempt, evicted, another allowed": {
			at:  newAt(withStatus(running(corev1.PodRunning)), withBackoffLimit(1)),
			pod: newPod(corev1.PodFailed, deleted, terminated(1, "no such host"), func(pod *corev1.Pod) { pod.Status.Reason = "Evicted" }),
			want: Decision{
				Status: announced(nextAttempt(1, now.Add(10*time.Second)), "Attempt 1 of 2 failed, the next is due at 2026-12-24T10:12:14Z: Pod example-at-pod was evicted Message: no such host"),
				Events: []Event{warning(v1alpha1.ReasonEvicted, "Attempt 1 of 2 failed, the next is due at 2026-12-24T10:12:14Z: Pod example-at-pod was evicted")},
			},
		},
		"a failed attempt, another allowed, but not before the active deadline": {
			at: newAt(withStatus(running(corev1.PodRunning)), withBackoffLimit(2), withActiveDeadline(13)), pod: newPod(corev1.PodFailed), now: created.Add(3 * time.Second),
			want: failed(running(corev1.PodFailed), v1alpha1.ReasonPodFailed, "Pod example-at-pod failed", attempts(1), func(status *v1alpha1.AtStatus) {
				status.CompletionTime.Time, status.Conditions[0].LastTransitionTime.Time = created.Add(3*time.Second), created.Add(3*time.Second)
			}),
		},
		"a failed attempt, its earlier blocker no longer matters": {
			at:  newAt(withStatus(running(corev1.PodPending, imagePullFailed(earlier, ""))), withBackoffLimit(2)),
			pod: newPod(corev1.PodFailed, terminated(1, "no such host")),
			want: Decision{
				Status: changed(*announced(nextAttempt(1, now.Add(10*time.Second)), announcement+" Message: no such host"), func(status *v1alpha1.AtStatus) { status.Conditions = []metav1.Condition{} }),
				Events: []Event{warning(v1alpha1.ReasonCommandFailed, announcement)},
			},
		},
	})
}

// TestDecideLost covers Ats whose Pod is gone, or abandoned by its node.
func TestDecideLost(t *testing.T) {
	testDecide(t, map[string]decideCase{
		"the Pod is gone: never run again": {
			at:   newAt(withStatus(running(corev1.PodRunning)), withBackoffLimit(5)),
			want: failed(running(corev1.PodRunning), v1alpha1.ReasonPodLost, lostMessage, attempts(1)), needs: LiveAll,
		},
		"the Pod is gone, and an unrelated Pod has its name": {
			at:   newAt(withStatus(running(corev1.PodRunning))),
			pod:  newPod(corev1.PodSucceeded, ownedBy(), func(pod *corev1.Pod) { pod.UID = "stranger" }),
			want: failed(running(corev1.PodRunning), v1alpha1.ReasonPodLost, lostMessage, attempts(1)), needs: LiveAll,
		},
		"the Pod is gone, and another Pod claims to belong to this At": {
			at:   newAt(withStatus(running(corev1.PodRunning))),
			pod:  newPod(corev1.PodSucceeded, func(pod *corev1.Pod) { pod.UID = "second" }),
			want: failed(running(corev1.PodRunning), v1alpha1.ReasonPodLost, lostMessage, attempts(1)), needs: LiveAll,
		},
		"the Pod of the next attempt is gone": {
			at:   newAt(withStatus(*secondRunning(corev1.PodRunning)), withBackoffLimit(2)),
			want: failed(*secondRunning(corev1.PodRunning), v1alpha1.ReasonPodLost, strings.ReplaceAll(lostMessage, "-pod", "-pod-1"), attempts(2)), needs: LiveAll,
		},
		"being stopped, and gone": {
			at:   newAt(withStatus(running(corev1.PodRunning, stopping)), withActiveDeadline(10)),
			want: failed(running(corev1.PodRunning, stopping), v1alpha1.ReasonDeadlineExceeded, deadlineMessage, attempts(1)), needs: LiveAll,
		},
		"gone with unknown outcome, after the active deadline": {
			at:   newAt(withStatus(running(corev1.PodRunning)), withActiveDeadline(2)),
			want: failed(running(corev1.PodRunning), v1alpha1.ReasonPodLost, lostMessage, attempts(1)), needs: LiveAll,
		},
		"an old At from a cache, the Pod of a later attempt exists: kept": {
			at: newAt(withStatus(running(corev1.PodRunning)), withBackoffLimit(2)), pod: newPod(corev1.PodRunning, second),
			want: failed(running(corev1.PodRunning), v1alpha1.ReasonPodLost, lostMessage, attempts(1)), needs: LiveAll,
		},
		"the Pod is force-deleted, and its node does not report: lost": {
			at:    newAt(withStatus(running(corev1.PodRunning)), withBackoffLimit(5)),
			pod:   newPod(corev1.PodRunning, deletedByForce(now.Add(-time.Minute))),
			needs: LiveAll,
			want:  failed(running(corev1.PodRunning), v1alpha1.ReasonPodLost, abandonedMessage, attempts(1)),
		},
		"the Pod is force-deleted, and its node reports only an earlier try: lost": {
			at: newAt(withStatus(running(corev1.PodRunning))),
			pod: newPod(corev1.PodRunning, deletedByForce(earlier), func(pod *corev1.Pod) {
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
					Name:                 "command",
					State:                corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
					LastTerminationState: exited("", 4, "", "").State,
				}}
			}),
			needs: LiveAll,
			want:  failed(running(corev1.PodRunning), v1alpha1.ReasonPodLost, abandonedMessage, attempts(1)),
		},
		"the Pod is force-deleted, its node does not report, and it was being stopped": {
			at:    newAt(withStatus(running(corev1.PodRunning, stopping)), withActiveDeadline(10)),
			pod:   newPod(corev1.PodRunning, deletedByForce(earlier)),
			needs: LiveAll,
			want:  failed(running(corev1.PodRunning, stopping), v1alpha1.ReasonDeadlineExceeded, deadlineMessage, attempts(1)),
		},
	})
}
