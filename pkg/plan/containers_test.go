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

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// restarted lets the node restart a container n times after it has failed.
func restarted(name string, n, exitCode int32, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name: name, RestartCount: n,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: exitCode, Message: message, FinishedAt: metav1.Time{Time: endTime},
		}},
	}
}

// backingOff is the status of a container that waits for a restart after it has failed.
func backingOff(status corev1.ContainerStatus) corev1.ContainerStatus {
	status.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s"}}
	return status
}

// withSidecar adds a sidecar that runs since it was started n times.
func withSidecar(n int32) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.InitContainers = []corev1.Container{{Name: "proxy", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}}
		status := restarted("proxy", n, 1, "")
		status.State.Running.StartedAt = metav1.Time{Time: created}
		pod.Status.InitContainerStatuses = []corev1.ContainerStatus{status}
	}
}

func restartingCondition(message string) metav1.Condition {
	return blocked(now, v1alpha1.ReasonContainerRestarting, message)
}

// withFailure is an At whose Pod is being stopped because the command has failed too often.
func withFailure(at *v1alpha1.At) {
	at.Status = running(corev1.PodRunning, condition(v1alpha1.ConditionFailureTarget, metav1.ConditionTrue, now, v1alpha1.ReasonCommandFailed, "words"))
	at.Status.ExitCode = ptr.To[int32](1)
}

// TestDecideRestarts covers Pods whose node restarts containers that have failed.
func TestDecideRestarts(t *testing.T) {
	const first = "Attempt 1 of 3 failed, and the node restarts container command in Pod example-at-pod: The command ended with exit code 1. Message: mail"
	running1 := running(corev1.PodRunning)
	at := func(limit int32) *v1alpha1.At { return newAt(withStatus(running1), withBackoffLimit(limit)) }
	testDecide(t, map[string]decideCase{
		"the command has failed and runs again: reported": {
			at: at(2), pod: runningPod(withContainers(restarted("command", 1, 1, "mail"))),
			want: "Blocked ContainerRestarting: Attempt 1 of 3 failed, and the node restarts container command in Pod example-at-pod: The command ended with exit code 1. Message: mail; Warning ContainerRestarting",
		},
		"the command has failed and waits for its restart: reported": {
			at: at(2), pod: runningPod(withContainers(backingOff(restarted("command", 0, 1, "mail")))),
			want: "Blocked ContainerRestarting: Attempt 1 of 3 failed, and the node restarts container command in Pod example-at-pod: The command ended with exit code 1. Message: mail; Warning ContainerRestarting",
		},
		"it fails again, with other words: the message is written, without an event": {
			at: newAt(withStatus(running(corev1.PodRunning, restartingCondition(first))), withBackoffLimit(3)), pod: runningPod(withContainers(restarted("command", 2, 3, ""))),
			want: "Blocked ContainerRestarting: Attempt 2 of 4 failed, and the node restarts container command in Pod example-at-pod: The command ended with exit code 3.",
		},
		"two containers fail: their failures are added, the latest is reported": {
			at: at(9), pod: runningPod(withContainers(restarted("command", 2, 1, "mail"), func() corev1.ContainerStatus {
				other := restarted("other", 3, 4, "later")
				other.LastTerminationState.Terminated.FinishedAt = metav1.Time{Time: now}
				return other
			}())),
			want: "Blocked ContainerRestarting: Attempt 5 of 10 failed, and the node restarts container other in Pod example-at-pod: Container other ended with exit code 4. Message: later; Warning ContainerRestarting",
		},
		"earlier attempts count, too: stopped": {
			at: newAt(withStatus(*secondRunning(corev1.PodRunning)), withBackoffLimit(1)), pod: runningPod(second, withContainers(restarted("command", 1, 1, ""))),
			want: "ExitCode=1; FailureTarget CommandFailed: Attempt 2 of 2 failed: The command ended with exit code 1.",
		},
		"the command fails as often as allowed, and waits for its restart: stopped": {
			at: at(2), pod: runningPod(withContainers(backingOff(restarted("command", 2, 1, "mail")))),
			want: "ExitCode=1; FailureTarget CommandFailed: Attempt 3 of 3 failed: The command ended with exit code 1. Message: mail",
		},
		"the command fails as often as allowed, and its node does not yet say that it restarts it: stopped": {
			at: at(1), pod: runningPod(withContainers(func() corev1.ContainerStatus {
				status := restarted("command", 1, 1, "mail")
				status.State = exited("command", 2, "Error", "later").State
				return status
			}())),
			want: "ExitCode=2; FailureTarget CommandFailed: Attempt 2 of 2 failed: The command ended with exit code 2. Message: later",
		},
		"a container fails that its node does not restart: waited for": {
			at: at(1), pod: runningPod(withContainers(exited("command", 2, "Error", ""), runs("other")), func(pod *corev1.Pod) {
				pod.Status.ContainerStatuses[0].State.Terminated.FinishedAt = metav1.Time{Time: endTime}
			}),
			want: "wait 1m0s",
		},
		"restarted although no retry is allowed, for example by a webhook: stopped": {
			at: at(0), pod: runningPod(withContainers(restarted("command", 1, 1, ""))),
			want: "ExitCode=1; FailureTarget CommandFailed: The command ended with exit code 1.",
		},
		"out of memory: stopped with that reason": {
			at: at(0), pod: runningPod(withContainers(func() corev1.ContainerStatus {
				status := restarted("command", 1, 137, "")
				status.LastTerminationState.Terminated.Reason = v1alpha1.ReasonOOMKilled
				return status
			}())),
			want: "ExitCode=137; FailureTarget OOMKilled: The command ended with exit code 137: it used more memory than its container's limit.",
		},
		"an init container fails too often: stopped": {
			at: at(1), pod: runningPod(withInitContainers(backingOff(restarted("clone", 1, 128, "no such repository")))),
			want: "FailureTarget PodFailed: Attempt 2 of 2 failed: Container clone ended with exit code 128. Message: no such repository",
		},
		"its status was lost: stopped": {
			at: at(0), pod: runningPod(withContainers(corev1.ContainerStatus{Name: "command", RestartCount: 1})),
			want: "FailureTarget CommandFailed: The command ended with an unknown exit code.",
		},
		"restarted while there was no controller: stopped, with the number": {
			at: at(1), pod: runningPod(withContainers(restarted("command", 7, 1, ""))),
			want: "ExitCode=1; FailureTarget CommandFailed: 7 attempts failed: The command ended with exit code 1.",
		},
		"an init container succeeds again, because all containers are restarted: no failure": {at: at(1), pod: runningPod(withInitContainers(restarted("clone", 3, 0, ""))), want: "wait 1m0s"},
		"a sidecar is restarted: no failure":                                                 {at: at(0), pod: runningPod(withSidecar(5)), want: "wait 1m0s"},
		"being stopped: deleted": {
			at: newAt(withFailure), pod: runningPod(withContainers(restarted("command", 1, 1, ""))),
			want: "DeletePod example-at-pod; wait 1m0s",
		},
		"stopped while it ran again: ends with the failure, not with the signal": {
			at: newAt(withFailure), pod: failedPod(deleted, withContainers(func() corev1.ContainerStatus {
				status := restarted("command", 1, 1, "mail")
				status.State = exited("command", 137, "Error", "").State
				return status
			}())),
			want: "Phase=DONE; CompletionTime=10:12:03; Pod.Phase=Failed; Failed=1; LastFailureTime=10:12:04; Failed CommandFailed: words; says CommandFailed: mail; Warning CommandFailed",
		},
		"succeeds in the end": {
			at: at(2), pod: succeededPod(withContainers(func() corev1.ContainerStatus {
				status := restarted("command", 1, 1, "mail")
				status.State = finished(endTime, 0).State
				return status
			}())),
			want: "Phase=DONE; ExitCode=0; CompletionTime=10:12:03; Pod.Phase=Succeeded; Complete Completed: The command ended with exit code 0.; Normal Completed",
		},
		"its Pod fails after a restart: that restart was a retry": {
			at: at(1), pod: failedPod(withContainers(func() corev1.ContainerStatus {
				status := restarted("command", 1, 1, "mail")
				status.State = finished(endTime, 2).State
				return status
			}())),
			want: "Phase=DONE; ExitCode=2; CompletionTime=10:12:03; Pod.Phase=Failed; Failed=1; LastFailureTime=10:12:04; Failed CommandFailed: The command ended with exit code 2.; Warning CommandFailed",
		},
		"success, although a process used too much memory: said": {
			at: newAt(withStatus(running1)), pod: succeededPod(withContainers(exited("command", 0, v1alpha1.ReasonOOMKilled, ""))),
			want: "Phase=DONE; ExitCode=0; CompletionTime=10:12:04; Pod.Phase=Succeeded; Complete Completed: The command ended with exit code 0. A process in its container was killed: it used more memory than the container's limit.; says Completed: A process in its container was killed: it used more memory than the container's limit.; Normal Completed",
		},
	})
}

// TestDecideSidecar covers containers that run beside the command.
func TestDecideSidecar(t *testing.T) {
	const message = "The command ended with exit code 3, but container proxy still runs, so Pod example-at-pod does not end. A container in initContainers with restartPolicy Always is stopped when the command ends. Message: no such host"
	proxy := runs("proxy")
	command := func(pod *corev1.Pod) {
		status := exited("command", 3, "Error", "no such host")
		status.State.Terminated.FinishedAt = metav1.Time{Time: endTime}
		withContainers(status, proxy)(pod)
	}
	status := running(corev1.PodRunning)
	late := endTime.Add(Grace)
	testDecide(t, map[string]decideCase{
		"the command has ended a moment ago: waited for": {at: newAt(withStatus(status)), pod: runningPod(command), now: late.Add(-1), want: "wait 1m0s"},
		"the command has ended a minute ago: reported": {
			at: newAt(withStatus(status)), pod: runningPod(command), now: late,
			want: "Blocked SidecarRunning: The command ended with exit code 3, but container proxy still runs, so Pod example-at-pod does not end. A container in initContainers with restartPolicy Always is stopped when the command ends. Message: no such host; Warning SidecarRunning",
		},
		"the Pod is being deleted: no longer reported": {
			at: newAt(withStatus(running(corev1.PodRunning, blocked(earlier, v1alpha1.ReasonSidecarRunning, message)))), pod: runningPod(command, deleted), now: late,
			want: "no Blocked",
		},
	})
}

// TestWantsPodEvent covers when the events of a Pod are read whose command does not start, while a
// sidecar runs.
func TestWantsPodEvent(t *testing.T) {
	notStarting := pendingPod(withSidecar(0), withContainers(waits("command", "PodInitializing", "")))
	world := World{At: newAt(withStatus(running(corev1.PodPending))), Pods: podsOf(notStarting)}
	for age, want := range map[time.Duration]*corev1.Pod{EventDelay - 1: nil, EventDelay: notStarting} {
		world.Now = created.Add(age)
		if got := WantsPodEvent(world); got != want {
			t.Errorf("after %v: %v", age, got)
		}
	}
}

// TestDecideNotStarted covers Pods that a node refused or lost before anything of them started.
func TestDecideNotStarted(t *testing.T) {
	refused := func(pod *corev1.Pod) {
		pod.Status.Reason, pod.Status.Message = "OutOfcpu", "Pod was rejected: Node didn't have enough resource: cpu"
		pod.Status.StartTime = &metav1.Time{Time: due}
		writtenAt(due.Add(rejectionTime))(pod)
	}
	refusedLater := func(pod *corev1.Pod) {
		refused(pod)
		writtenAt(due.Add(rejectionTime + 1))(pod)
	}
	disrupted := func(reason string, statuses ...corev1.ContainerStatus) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			withCondition(corev1.DisruptionTarget, corev1.ConditionTrue, reason, "", due)(pod)
			pod.Status.ContainerStatuses = statuses
			deleted(pod)
		}
	}
	preempted := func(status corev1.ContainerStatus) func(*corev1.Pod) {
		return disrupted("PreemptionByScheduler", status)
	}
	lost := exited("command", 137, statusUnknown, "The container could not be located when the pod was terminated")
	ran := lost
	ran.ContainerID = "containerd://1"
	waits := waits("command", "ContainerCreating", "")
	pending := running(corev1.PodPending)
	at := func(mutate ...func(*v1alpha1.At)) *v1alpha1.At {
		return edited(newAt(withStatus(pending)), mutate...)
	}
	testDecide(t, map[string]decideCase{
		"its node refused it: created again, although there are no retries": {
			at: at(), pod: failedPod(refused),
			want: "Pod.Phase=Failed; Pod.StartTime=10:12:00; NotStarted=1; LastFailureTime=10:12:04; NextAttemptTime=10:12:14; Blocked PodNotStarted: Pod example-at-pod did not start, the next is due at 2026-12-24T10:12:14Z: Pod example-at-pod failed: OutOfcpu: Pod was rejected: Node didn't have enough resource: cpu; Warning PodNotStarted",
		},
		"its node refused it after a restart, when it may have run: failed": {
			at: at(), pod: failedPod(refusedLater),
			want: "Phase=DONE; CompletionTime=10:12:04; Pod.Phase=Failed; Pod.StartTime=10:12:00; Failed=1; LastFailureTime=10:12:04; Failed PodFailed: Pod example-at-pod failed: OutOfcpu: Pod was rejected: Node didn't have enough resource: cpu; Warning PodFailed",
		},
		"its node refused it, but it was seen running: failed": {
			at: runningAt(), pod: failedPod(refused),
			want: "Phase=DONE; CompletionTime=10:12:04; Pod.Phase=Failed; Pod.StartTime=10:12:00; Failed=1; LastFailureTime=10:12:04; Failed PodFailed: Pod example-at-pod failed: OutOfcpu: Pod was rejected: Node didn't have enough resource: cpu; Warning PodFailed",
		},
		"its node was out of contact before it was evicted: failed": {
			at: at(), pod: failedPod(disrupted("DeletionByTaintManager", lost)),
			want: "Phase=DONE; CompletionTime=10:12:04; Pod.Phase=Failed; Failed=1; LastFailureTime=10:12:04; Failed Evicted: Pod example-at-pod was evicted: DeletionByTaintManager; Warning Evicted",
		},
		"it was preempted before it started: created again": {
			at: at(), pod: failedPod(preempted(lost)),
			want: "Pod.Phase=Failed; NotStarted=1; LastFailureTime=10:12:04; NextAttemptTime=10:12:14; Blocked PodNotStarted: Pod example-at-pod did not start, the next is due at 2026-12-24T10:12:14Z: Pod example-at-pod was evicted: PreemptionByScheduler; Warning PodNotStarted",
		},
		"it was preempted, and its container had an ID: failed": {
			at: at(), pod: failedPod(preempted(ran)),
			want: "Phase=DONE; CompletionTime=10:12:04; Pod.Phase=Failed; Failed=1; LastFailureTime=10:12:04; Failed Evicted: Pod example-at-pod was evicted: PreemptionByScheduler; Warning Evicted",
		},
		"it was preempted, and its node has not written the end: failed": {
			at: at(), pod: failedPod(preempted(waits)),
			want: "Phase=DONE; CompletionTime=10:12:04; Pod.Phase=Failed; Failed=1; LastFailureTime=10:12:04; Failed Evicted: Pod example-at-pod was evicted: PreemptionByScheduler; Warning Evicted",
		},
		"it was evicted while an init container ran: failed": {
			at: at(), pod: failedPod(preempted(waits), withInitContainers(exited("clone", 143, "Error", ""))),
			want: "Phase=DONE; CompletionTime=10:12:04; Pod.Phase=Failed; Failed=1; LastFailureTime=10:12:04; Failed Evicted: Pod example-at-pod was evicted: PreemptionByScheduler; Warning Evicted",
		},
		"a user deleted it before it started: failed": {
			at: at(), pod: failedPod(deleted, withContainers(lost)),
			want: "Phase=DONE; CompletionTime=10:12:04; Pod.Phase=Failed; Failed=1; LastFailureTime=10:12:04; Failed PodDeleted: Pod example-at-pod was deleted before it ended.; Warning PodDeleted",
		},
		"it was refused, and the next would be too late for the starting deadline: failed": {
			at: at(withStartingDeadline(10)), pod: failedPod(refused),
			want: "Phase=DONE; CompletionTime=10:12:04; Pod.Phase=Failed; Pod.StartTime=10:12:00; Failed=1; LastFailureTime=10:12:04; Failed PodFailed: Pod example-at-pod failed: OutOfcpu: Pod was rejected: Node didn't have enough resource: cpu; Warning PodFailed",
		},
		"the next is awaited: what kept the last one from starting stays": {
			at: newAt(withStatus(*changed(*notStarted(now.Add(time.Second)), func(status *v1alpha1.AtStatus) {
				status.Conditions = []metav1.Condition{blocked(earlier, v1alpha1.ReasonPodNotStarted, "words")}
			}))),
			want: "wait 1s",
		},
		"the next would be too late for the starting deadline: failed": {
			at: newAt(withStatus(*notStarted(now.Add(time.Hour))), withStartingDeadline(3)), now: due.Add(4 * time.Second),
			want: "Phase=DONE; CompletionTime=10:12:04; no NextAttemptTime; Failed StartingDeadlineExceeded: It did not run: it could not start within spec.startingDeadlineSeconds (3) of the scheduled time.; Warning StartingDeadlineExceeded; read all",
		},
	})
	if got := PodName(newAt(withStatus(*notStarted(now)))); got != "example-at-pod-1" {
		t.Errorf("the next Pod is %s", got)
	}
}

// notStarted is the status of an At whose first Pod did not start.
func notStarted(next time.Time) *v1alpha1.AtStatus {
	status := running(corev1.PodFailed)
	status.NotStarted, status.LastFailureTime, status.NextAttemptTime = 1, &metav1.Time{Time: now}, &metav1.Time{Time: next}
	return &status
}

// TestIsNews covers which message replaces another one of the same reason.
func TestIsNews(t *testing.T) {
	const sandbox = "Pod example-at-pod: FailedCreatePodSandBox: sandbox "
	for name, tc := range map[string]struct {
		message, reported string
		want              bool
	}{
		"another cause":         {`FailedMount: secret "b" not found`, `FailedMount: secret "a" not found`, true},
		"more nodes":            {"Unschedulable: 0/4 nodes", "Unschedulable: 0/3 nodes", true},
		"of another sandbox":    {sandbox + "0123456789abcdef0123456789abcdef: no network", sandbox + "fedcba9876543210fedcba9876543210: no network", false},
		"without its cause":     {"FailedMount: Unable to attach or mount volumes: unmounted volumes=[a]: timed out waiting for the condition", `FailedMount: secret "a" not found`, false},
		"of a pull, repeated":   {`ImagePullBackOff: Back-off pulling image "a": ErrImagePull: words`, "ErrImagePull: words", false},
		"of a pull, other":      {`ImagePullBackOff: Back-off pulling image "a": ErrImagePull: others`, "ErrImagePull: words", true},
		"in more than one line": {"a\nb", "a b", false},
	} {
		if got := isNews(tc.message, tc.reported); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
