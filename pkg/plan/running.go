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
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// decideRunning decides for an At whose Pod has not ended.
func (v *view) decideRunning() Decision {
	pod, status := v.pod, v.statusWithPod()
	events := append(v.podEvents(), v.mirrorBlocked(status)...)
	d := v.write(status, events...)
	if d.Status != nil {
		return d
	}
	d.Delay = checkDelay
	switch {
	case isDeletedByForce(pod):
		d.Delay = min(Grace-v.Now.Sub(pod.DeletionTimestamp.Time), checkDelay)
	case pod.DeletionTimestamp != nil:
	case failureTarget(v.At) != nil:
		d.Action = DeletePod{Pod: pod}
	case v.activeLeft <= 0:
		// Write the reason before deleting the Pod: the deletion alone does not tell why.
		return v.writeFailureTarget(v1alpha1.ReasonDeadlineExceeded, v.activeDeadlineMessage())
	default:
		d.Delay = min(v.activeLeft, checkDelay)
	}
	return d
}

// mirrorBlocked sets condition Blocked to what the node and the scheduler report about
// the Pod's start. It returns an event if the reason is new.
func (v *view) mirrorBlocked(status *v1alpha1.AtStatus) []Event {
	reason, message := podBlocker(v.pod, v.Now)
	if reason == "" {
		removeBlocked(status)
		return nil
	}
	if blocked := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionBlocked); blocked != nil && blocked.Reason == reason {
		// The node reports the same problem in alternating words.
		return nil
	}
	return v.setBlocked(status, reason, message)
}

// podBlocker returns what keeps a Pod from starting: an API reason and a sentence. The
// reason is empty if nothing does.
func podBlocker(pod *corev1.Pod, now time.Time) (reason, message string) {
	for _, condition := range pod.Status.Conditions {
		// An autoscaled cluster takes a while to add a node.
		if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonUnschedulable && now.Sub(condition.LastTransitionTime.Time) >= Grace {
			return v1alpha1.ReasonUnschedulable, join("Pod "+pod.Name, condition.Message)
		}
	}
	for _, container := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		waiting := container.State.Waiting
		if waiting == nil {
			continue
		}
		// These reasons come from the kubelet: pkg/kubelet/images/types.go and
		// pkg/kubelet/kuberuntime/kuberuntime_container.go in Kubernetes.
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
