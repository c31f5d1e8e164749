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
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// Containers of a Pod that its node restarts, and containers that keep a Pod from ending.

// failures returns how often containers of a Pod have failed that its node restarts, and the
// container that failed last, or nil. As in Job, each restart is a retry. While a container
// waits for a restart, its last failure counts already, so that none follows beyond the limit.
func failures(pod *corev1.Pod) (n int32, last *corev1.ContainerStatus) {
	statuses := containerStatuses(pod)
	for i := range statuses {
		status := &statuses[i]
		number := status.RestartCount
		if waitsForRestart(pod, status) {
			number++
		}
		// What has not failed was restarted with another container.
		if terminated := lastFailure(status); number == 0 || isNameOfSidecar(pod, status.Name) || terminated.ExitCode == 0 && terminated.Reason != statusUnknown {
			continue
		}
		n += number
		if last == nil || failedAt(last).Before(failedAt(status)) {
			last = status
		}
	}
	return n, last
}

// waitsForRestart reports whether a container has failed and its node will restart it. Before it says
// so, the node shows for a while that the container has ended.
func waitsForRestart(pod *corev1.Pod, status *corev1.ContainerStatus) bool {
	if waiting := status.State.Waiting; waiting != nil {
		return waiting.Reason == "CrashLoopBackOff"
	}
	return status.RestartCount > 0 && !hasEnded(pod) && hasFailed(status)
}

func hasFailed(status *corev1.ContainerStatus) bool {
	return status.State.Terminated != nil && status.State.Terminated.ExitCode != 0
}

// lastFailure returns how a container that its node restarts failed last.
func lastFailure(status *corev1.ContainerStatus) corev1.ContainerStateTerminated {
	if hasFailed(status) {
		return *status.State.Terminated
	}
	return ptr.Deref(status.LastTerminationState.Terminated, corev1.ContainerStateTerminated{Reason: statusUnknown})
}

func failedAt(status *corev1.ContainerStatus) time.Time { return lastFailure(status).FinishedAt.Time }

func isNameOfSidecar(pod *corev1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(container corev1.Container) bool { return container.Name == name && isSidecar(&container) })
}

// isSidecar reports whether an init container runs beside the others:
// https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/
func isSidecar(container *corev1.Container) bool {
	return ptr.Deref(container.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways
}

// attempts returns the number of attempts that have failed, if n of them failed in the present
// Pod, and the number that spec.backoffLimit allows.
func (v *view) attempts(n int32) (failed, allowed int64) {
	return int64(v.At.Status.Failed) + int64(n), int64(ptr.Deref(v.At.Spec.BackoffLimit, 0)) + 1
}

// restartBlocker returns an API reason and a sentence if the node restarts containers of the
// Pod because they have failed.
func (v *view) restartBlocker() (reason, message string) {
	n, last := failures(v.pod)
	if n == 0 || v.pod.DeletionTimestamp != nil || failureTarget(v.At) != nil {
		return "", ""
	}
	failed, allowed := v.attempts(n)
	_, message = failureOf(v.pod, last)
	return v1alpha1.ReasonContainerRestarting, fmt.Sprintf("Attempt %d of %d failed, and the node restarts container %s in Pod %s: %s", failed, allowed, last.Name, v.pod.Name, message)
}

// failureOf returns why a container that its node restarts failed last: an API reason and a
// sentence with its output.
func failureOf(pod *corev1.Pod, status *corev1.ContainerStatus) (reason, message string) {
	terminated := lastFailure(status)
	if reason, message = commandFailure(&terminated); status.Name != nameOfCommand(pod) {
		reason, message = v1alpha1.ReasonPodFailed, endOf("Container "+status.Name, &terminated)
	}
	if terminated.Message != "" {
		message += " Message: " + terminated.Message
	}
	return reason, message
}

// stopRestarts sets condition FailureTarget, and returns true, if containers of the Pod have
// failed more often than spec.backoffLimit allows.
func (v *view) stopRestarts(status *v1alpha1.AtStatus) bool {
	n, last := failures(v.pod)
	failed, allowed := v.attempts(n)
	if n == 0 || failed < allowed || v.pod.DeletionTimestamp != nil || failureTarget(v.At) != nil {
		return false
	}
	reason, message := failureOf(v.pod, last)
	if failed > allowed { // There was no controller, or an older one.
		message = fmt.Sprintf("%d attempts failed: %s", failed, message)
	} else if failed > 1 {
		message = fmt.Sprintf("Attempt %d of %d failed: %s", failed, allowed, message)
	}
	if terminated := lastFailure(last); last.Name == nameOfCommand(v.pod) && terminated.Reason != statusUnknown {
		status.ExitCode = &terminated.ExitCode
	}
	removeBlocked(status)
	v.setFailureTarget(status, reason, message)
	return true
}

// sidecarBlocker returns an API reason and a sentence if the command has ended for a while, and
// another container keeps the Pod running.
func sidecarBlocker(pod *corev1.Pod, now time.Time) (reason, message string) {
	terminated := commandTerminated(pod)
	running := slices.IndexFunc(pod.Status.ContainerStatuses, func(status corev1.ContainerStatus) bool { return status.State.Running != nil })
	if terminated == nil || running < 0 || pod.DeletionTimestamp != nil || now.Sub(terminated.FinishedAt.Time) < Grace {
		return "", ""
	}
	name := pod.Status.ContainerStatuses[running].Name
	message = fmt.Sprintf("The command ended with exit code %d, but container %s still runs, so Pod %s does not end. A container in initContainers with restartPolicy Always is stopped when the command ends.", terminated.ExitCode, name, pod.Name)
	if terminated.Message != "" {
		message += " Message: " + terminated.Message
	}
	return v1alpha1.ReasonSidecarRunning, message
}
