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
)

// TestDecideEnded covers Ats whose Pod has ended.
func TestDecideEnded(t *testing.T) {
	testDecide(t, map[string]decideCase{
		"the next attempt succeeds": {
			at: newAt(withStatus(*secondRunning(corev1.PodRunning)), withBackoffLimit(2)), pod: succeededPod(second),
			want: "Phase=DONE; CompletionTime=10:12:04; Pod.Phase=Succeeded; Complete Completed: The command ended with exit code 0.; Normal Completed",
		},
		"success": {
			at: runningAt(), pod: succeededPod(terminated(0, "written to the termination log")),
			want: "Phase=DONE; ExitCode=0; CompletionTime=10:12:03; Pod.Phase=Succeeded; Complete Completed: The command ended with exit code 0.; says Completed: written to the termination log; Normal Completed",
		},
		"success, never seen before": {
			pod:  succeededPod(),
			want: "Phase=DONE; ScheduledTime=10:12:00; StartTime=10:12:00.01; CompletionTime=10:12:04; Pod.Name=example-at-pod; Pod.UID=pod-uid; Pod.AtGeneration=2; Pod.Phase=Succeeded; Pod.NodeName=node; Complete Completed: The command ended with exit code 0.; Normal SuccessfulCreate: Created Pod example-at-pod; Normal Completed",
		},
		"failure, in the container that an annotation names": {
			at: runningAt(), pod: failedPod(named("second")),
			want: "Phase=DONE; ExitCode=3; CompletionTime=10:12:04; Pod.Phase=Failed; Failed=1; LastFailureTime=10:12:04; Failed CommandFailed: The command ended with exit code 3.; Warning CommandFailed",
		},
		"failure, in the first container": {
			at: runningAt(), pod: failedPod(named("third")),
			want: "Phase=DONE; ExitCode=2; CompletionTime=10:12:04; Pod.Phase=Failed; Failed=1; LastFailureTime=10:12:04; Failed CommandFailed: The command ended with exit code 2.; Warning CommandFailed",
		},
		"failure with a message": {
			at: runningAt(), pod: failedPod(terminated(3, "no such host")),
			want: "Phase=DONE; ExitCode=3; CompletionTime=10:12:03; Pod.Phase=Failed; Failed=1; LastFailureTime=10:12:04; Failed CommandFailed: The command ended with exit code 3.; says CommandFailed: no such host; Warning CommandFailed",
		},
		"failure of another container, with a message that could pass for a log line": {
			at: runningAt(), pod: failedPod(func(pod *corev1.Pod) {
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{exited("other", 1, "", "\x1b[2Jgone\nI1224 10:12:00.000000 all is well\n")}
			}),
			want: "Phase=DONE; CompletionTime=10:12:04; Pod.Phase=Failed; Failed=1; LastFailureTime=10:12:04; Failed PodFailed: Pod example-at-pod failed: container other ended with exit code 1:  [2Jgone I1224 10:12:00.000000 all is well; Warning PodFailed",
		},
		"the last attempt fails": {
			at: newAt(withStatus(*secondRunning(corev1.PodRunning)), withBackoffLimit(1)), pod: failedPod(second),
			want: "Phase=DONE; CompletionTime=10:12:04; Pod.Phase=Failed; Failed=2; LastFailureTime=10:12:04; Failed PodFailed: Pod example-at-pod-1 failed; Warning PodFailed",
		},
		"about to be stopped, but succeeded first": {
			at: newAt(withStatus(running(corev1.PodRunning, stopping)), withActiveDeadline(10)), pod: succeededPod(),
			want: "Phase=DONE; CompletionTime=10:12:04; Pod.Phase=Succeeded; Complete Completed: The command ended with exit code 0.; no FailureTarget; Normal Completed",
		},
		"about to be stopped, but failed first: no further attempt": {
			at: newAt(withStatus(running(corev1.PodRunning, stopping)), withActiveDeadline(10), withBackoffLimit(5)), pod: failedPod(),
			want: "Phase=DONE; CompletionTime=10:12:04; Pod.Phase=Failed; Failed=1; LastFailureTime=10:12:04; Failed PodFailed: Pod example-at-pod failed; no FailureTarget; Warning PodFailed",
		},
		"deleted by a user before the active deadline, ended after it": {
			at: runningAt(withActiveDeadline(2)), pod: failedPod(deleted),
			want: "Phase=DONE; CompletionTime=10:12:04; Pod.Phase=Failed; Failed=1; LastFailureTime=10:12:04; Failed PodDeleted: Pod example-at-pod was deleted before it ended.; Warning PodDeleted",
		},
		"deleted by a user, and removed by its node, which had seen that": {
			at: runningAt(), pod: failedPod(removedByNode(now, 2, 2), withContainers(exited("command", 3, "Error", "")), func(pod *corev1.Pod) {
				pod.Status.ContainerStatuses[0].State.Terminated.FinishedAt.Time = now.Add(-time.Second)
			}),
			want: "Phase=DONE; ExitCode=3; CompletionTime=10:12:03; Pod.Phase=Failed; Failed=1; LastFailureTime=10:12:04; Failed PodDeleted: Pod example-at-pod was deleted before it ended; the exit code was 3.; Warning PodDeleted",
		},
		"the Pod is force-deleted, and its node has reported: counted": {
			at: runningAt(), pod: succeededPod(deletedByForce(earlier)),
			want: "Phase=DONE; CompletionTime=10:12:04; Pod.Phase=Succeeded; Complete Completed: The command ended with exit code 0.; Normal Completed",
		},
		"the Pod is deleted before it has a node: it has ended": {
			at: newAt(withStatus(running(corev1.PodPending))), pod: pendingPod(deleted, func(pod *corev1.Pod) { pod.Spec.NodeName = "" }),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed=1; LastFailureTime=10:12:04; Failed PodDeleted: Pod example-at-pod was deleted before it had a node: the command did not run.; Warning PodDeleted",
		},
	})
}

// TestDecideFailedAttempt covers Ats whose Pod has failed, and may be followed by another.
func TestDecideFailedAttempt(t *testing.T) {
	testDecide(t, map[string]decideCase{
		"a failed attempt, never seen before, at a fraction of a second": {
			at: newAt(withBackoffLimit(2)), pod: failedPod(terminated(1, "no such host")), now: now.Add(1),
			want: "Phase=RUNNING; ExitCode=1; ScheduledTime=10:12:00; StartTime=10:12:00.01; Pod.Name=example-at-pod; Pod.UID=pod-uid; Pod.AtGeneration=2; Pod.Phase=Failed; Pod.NodeName=node; Failed=1; LastFailureTime=10:12:04.000000001; NextAttemptTime=10:12:15; says BackOff: Attempt 1 of 3 failed, the next is due at 2026-12-24T10:12:15Z: The command ended with exit code 1. Message: no such host; Normal SuccessfulCreate: Created Pod example-at-pod; Warning CommandFailed: Attempt 1 of 3 failed, the next is due at 2026-12-24T10:12:15Z: The command ended with exit code 1.",
		},
		"a failed attempt, evicted, another allowed": {
			at: runningAt(withBackoffLimit(1)), pod: failedPod(deleted, terminated(1, "no such host"), func(pod *corev1.Pod) { pod.Status.Reason = "Evicted" }),
			want: "ExitCode=1; Pod.Phase=Failed; Failed=1; LastFailureTime=10:12:04; NextAttemptTime=10:12:14; says BackOff: Attempt 1 of 2 failed, the next is due at 2026-12-24T10:12:14Z: Pod example-at-pod was evicted Message: no such host; Warning Evicted: Attempt 1 of 2 failed, the next is due at 2026-12-24T10:12:14Z: Pod example-at-pod was evicted",
		},
		"a failed attempt, another allowed, but not before the active deadline": {
			at: runningAt(withBackoffLimit(2), withActiveDeadline(13)), pod: failedPod(), now: created.Add(3 * time.Second),
			want: "Phase=DONE; CompletionTime=10:12:03.01; Pod.Phase=Failed; Failed=1; LastFailureTime=10:12:03.01; Failed PodFailed: Pod example-at-pod failed; Warning PodFailed",
		},
		"a failed attempt, its earlier blocker no longer matters": {
			at: newAt(withStatus(running(corev1.PodPending, imagePullFailed(""))), withBackoffLimit(2)), pod: failedPod(terminated(1, "no such host")),
			want: "ExitCode=1; Pod.Phase=Failed; Failed=1; LastFailureTime=10:12:04; NextAttemptTime=10:12:14; no Blocked; says BackOff: Attempt 1 of 3 failed, the next is due at 2026-12-24T10:12:14Z: The command ended with exit code 1. Message: no such host; Warning CommandFailed: Attempt 1 of 3 failed, the next is due at 2026-12-24T10:12:14Z: The command ended with exit code 1.",
		},
	})
}

// TestDecideLost covers Ats whose Pod is gone, or abandoned by its node.
func TestDecideLost(t *testing.T) {
	testDecide(t, map[string]decideCase{
		"the Pod of the next attempt is gone": {
			at:   newAt(withStatus(*secondRunning(corev1.PodRunning)), withBackoffLimit(2)),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed=2; LastFailureTime=10:12:04; Failed PodLost: Pod example-at-pod-1 was deleted before the controller saw how it ended; the command will not run again.; Warning PodLost; read all",
		},
		"gone with unknown outcome, after the active deadline": {
			at:   runningAt(withActiveDeadline(2)),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed=1; LastFailureTime=10:12:04; Failed PodLost: Pod example-at-pod was deleted before the controller saw how it ended; the command will not run again.; Warning PodLost; read all",
		},
		"the Pod is gone: never run again": {
			at:   runningAt(withBackoffLimit(5)),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed=1; LastFailureTime=10:12:04; Failed PodLost: Pod example-at-pod was deleted before the controller saw how it ended; the command will not run again.; Warning PodLost; read all",
		},
		"the Pod is gone, and an unrelated Pod has its name": {
			at: runningAt(), pod: succeededPod(ownedBy(), func(pod *corev1.Pod) { pod.UID = "stranger" }),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed=1; LastFailureTime=10:12:04; Failed PodLost: Pod example-at-pod was deleted before the controller saw how it ended; the command will not run again.; Warning PodLost; read all",
		},
		"the Pod is gone, and another Pod claims to belong to this At": {
			at: runningAt(), pod: succeededPod(func(pod *corev1.Pod) { pod.UID = "second" }),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed=1; LastFailureTime=10:12:04; Failed PodLost: Pod example-at-pod was deleted before the controller saw how it ended; the command will not run again.; Warning PodLost; read all",
		},
		"being stopped, and gone": {
			at:   newAt(withStatus(running(corev1.PodRunning, stopping)), withActiveDeadline(10)),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed=1; LastFailureTime=10:12:04; Failed DeadlineExceeded: The run took longer than spec.activeDeadlineSeconds (10).; Warning DeadlineExceeded; read all",
		},
		"the Pod is force-deleted, and its node does not report: lost": {
			at: runningAt(withBackoffLimit(5)), pod: runningPod(deletedByForce(now.Add(-time.Minute))),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed=1; LastFailureTime=10:12:04; Failed PodLost: Pod example-at-pod was force-deleted, and its node has not reported how it ended; the command will not run again.; Warning PodLost; read all",
		},
		"the Pod is force-deleted, and its node reports only an earlier try: lost": {
			at: runningAt(), pod: runningPod(deletedByForce(earlier), func(pod *corev1.Pod) {
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
					Name:                 "command",
					State:                corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
					LastTerminationState: exited("", 4, "", "").State,
				}}
			}),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed=1; LastFailureTime=10:12:04; Failed PodLost: Pod example-at-pod was force-deleted, and its node has not reported how it ended; the command will not run again.; Warning PodLost; read all",
		},
	})
}
