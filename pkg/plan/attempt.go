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
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// Between two attempts is minBackoff, twice as long each time, at most
// maxBackoff: as in Job.
const (
	minBackoff = 10 * time.Second
	maxBackoff = 6 * time.Minute
)

// backoff returns how long after the given number of failed attempts the next one
// follows.
func backoff(failed int32) time.Duration {
	delay := minBackoff
	for ; failed > 1 && delay < maxBackoff; failed-- {
		delay *= 2
	}
	return min(delay, maxBackoff)
}

// timeLeft returns how long the run may still take by spec.activeDeadlineSeconds.
func timeLeft(at *v1alpha1.At, status *v1alpha1.AtStatus, now time.Time) time.Duration {
	if at.Spec.ActiveDeadlineSeconds == nil || status.StartTime == nil {
		return math.MaxInt64
	}
	// A Duration ends after 292 years, the seconds of a spec do not.
	limit := min(*at.Spec.ActiveDeadlineSeconds, math.MaxInt64/int64(time.Second))
	return status.StartTime.Add(time.Duration(limit) * time.Second).Sub(now)
}

func deadlineExceeded(at *v1alpha1.At) string {
	return withObstacle(at, fmt.Sprintf("The run took longer than spec.activeDeadlineSeconds allows, which is %d.", *at.Spec.ActiveDeadlineSeconds))
}

// failure returns why a Pod has failed: a reason of the API, and a sentence.
func failure(pod *corev1.Pod) (reason, message string) {
	terminated := commandTerminated(pod)
	// So says whoever deletes a Pod for reasons that are not the Pod's own:
	// https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
	disruption := slices.IndexFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
		return condition.Type == corev1.DisruptionTarget && condition.Status == corev1.ConditionTrue
	})
	switch {
	case pod.Status.Phase != corev1.PodFailed && isDeletedUnscheduled(pod):
		return v1alpha1.ReasonPodFailed, fmt.Sprintf("Pod %s was deleted before it had a node: the command did not run.", pod.Name)
	case disruption >= 0:
		condition := pod.Status.Conditions[disruption]
		return v1alpha1.ReasonEvicted, join(fmt.Sprintf("Pod %s was evicted", pod.Name), condition.Reason, condition.Message)
	case pod.Status.Reason == v1alpha1.ReasonEvicted:
		return v1alpha1.ReasonEvicted, join(fmt.Sprintf("Pod %s was evicted", pod.Name), pod.Status.Message)
	case pod.Status.Reason == v1alpha1.ReasonDeadlineExceeded:
		return v1alpha1.ReasonDeadlineExceeded, join(fmt.Sprintf("Pod %s took longer than its template allows", pod.Name), pod.Status.Message)
	case terminated == nil || terminated.ExitCode == 0:
	case terminated.Reason == v1alpha1.ReasonOOMKilled:
		return v1alpha1.ReasonOOMKilled, fmt.Sprintf("The command ended with exit code %d: it used more memory than its container may.", terminated.ExitCode)
	default:
		return v1alpha1.ReasonCommandFailed, fmt.Sprintf("The command ended with exit code %d.", terminated.ExitCode)
	}
	message = join(fmt.Sprintf("Pod %s failed", pod.Name), pod.Status.Reason, pod.Status.Message)
	// Sidecars, which are init containers, may end as they like when the others have.
	for _, container := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses) {
		if other := container.State.Terminated; other != nil && other.ExitCode != 0 {
			message = join(message, fmt.Sprintf("container %s ended with exit code %d", container.Name, other.ExitCode), other.Message)
			break
		}
	}
	return v1alpha1.ReasonPodFailed, message
}

// obstacle returns what keeps a Pod from starting: a reason of the API, and a
// sentence. The reason is empty if nothing does.
func obstacle(pod *corev1.Pod, now time.Time) (reason, message string) {
	for _, condition := range pod.Status.Conditions {
		// A cluster that grows when there is need of it takes a while.
		if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonUnschedulable && now.Sub(condition.LastTransitionTime.Time) >= overdue {
			return v1alpha1.ReasonUnschedulable, join("Pod "+pod.Name, condition.Message)
		}
	}
	for _, container := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		waiting := container.State.Waiting
		if waiting == nil {
			continue
		}
		// These are the kubelet's words: pkg/kubelet/images/types.go and
		// pkg/kubelet/kuberuntime/kuberuntime_container.go of Kubernetes.
		switch waiting.Reason {
		case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed":
			reason = v1alpha1.ReasonImagePullFailed
		case "CreateContainerConfigError", "CreateContainerError":
			reason = v1alpha1.ReasonContainerNotCreated
		default:
			continue
		}
		return reason, join("Container "+container.Name, waiting.Reason, waiting.Message)
	}
	return "", ""
}

// join joins those of the parts that are not empty.
func join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ": ")
}
