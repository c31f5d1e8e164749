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
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

// EventDelay is how long a Pod may wait for its first container before its events are read. That
// takes a request, and the status of most Pods says enough.
const EventDelay = 20 * time.Second

// unschedulableDelay is how long the scheduler may look for a node before that is reported: an
// autoscaled cluster takes a while to add one.
const unschedulableDelay = 45 * time.Second

// maxEventAge is the age of a Warning event up to which it counts. The kubelet repeats one
// every two minutes, and for a busy Pod every five.
const maxEventAge = 6 * time.Minute

// PodEvent is an event about a Pod. The zero value means that there is none.
type PodEvent struct {
	Warning         bool
	Reason, Message string
	// Time is when it was last recorded.
	Time time.Time
}

// Compare returns a positive number if e says more about the present than other: it is newer or,
// within the same second, a warning.
func (e *PodEvent) Compare(other *PodEvent) int {
	return cmp.Or(e.Time.Truncate(time.Second).Compare(other.Time.Truncate(time.Second)), cmp.Compare(rank(e), rank(other)), e.Time.Compare(other.Time))
}

func rank(e *PodEvent) int {
	if e.Warning {
		return 1
	}
	return 0
}

// mirrorBlocked sets condition Blocked to what keeps the containers of the Pod from starting.
// It returns an event if the reason is new.
func (v *view) mirrorBlocked(status *v1alpha1.AtStatus) []Event {
	reason, message := v.blocker()
	blocked := ptr.Deref(meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionBlocked), metav1.Condition{})
	if IsForecast(&blocked) {
		// It was not about this Pod.
		removeBlocked(status)
		blocked = metav1.Condition{}
	}
	switch {
	case reason != "":
	case isOfContainer(blocked.Reason) && isWaiting(v.pod) && v.Now.Sub(WrittenAt(v.pod, "status")) < Grace:
		return nil // The node may be starting the container now.
	case isSilent(blocked.Reason) && isWaiting(v.pod) && v.PodEvent == nil:
		return nil // until the events are known
	case v.waitsLong():
		reason, message = silentBlocker(v.pod, v.PodEvent, v.Now)
	}
	switch {
	case reason == "":
		removeBlocked(status)
		return nil
	case blocked.Reason == reason && !isNews(message, blocked.Message):
		return nil
	default:
		return v.setBlocked(status, reason, message)
	}
}

// blocker returns what, according to the status of the Pod, keeps it from starting or from
// ending: an API reason and a sentence. The reason is empty if nothing does.
func (v *view) blocker() (reason, message string) {
	if reason, message = podBlocker(v.pod, v.Now); reason != "" {
		return reason, message
	}
	if reason, message = sidecarBlocker(v.pod, v.Now); reason != "" {
		return reason, message
	}
	return v.restartBlocker()
}

// WantsPodEvent returns the Pod of the current attempt if its events may say why its command has
// not started, or nil.
func WantsPodEvent(w World) *corev1.Pod {
	v := newView(w)
	if !v.owned || !v.waitsLong() {
		return nil
	}
	if reason, _ := v.blocker(); reason != "" {
		return nil
	}
	return v.pod
}

// waitsLong reports whether a Pod that is not to be stopped has waited so long for its start that
// something is wrong.
func (v *view) waitsLong() bool {
	return isWaiting(v.pod) && v.Now.Sub(waitsSince(v.pod)) >= EventDelay && v.activeLeft > 0 && failureTarget(v.At) == nil
}

// checkStart returns when to find out why the command has not started.
func (v *view) checkStart() time.Duration {
	reason, _ := v.blocker()
	age := v.Now.Sub(waitsSince(v.pod))
	switch {
	case reason == "" && isUnschedulable(v.pod):
		return unschedulableDelay - v.Now.Sub(unscheduled(v.pod).LastTransitionTime.Time)
	case reason != "", !isWaiting(v.pod), age >= Grace:
		return checkDelay
	case age < EventDelay:
		return EventDelay - age
	default:
		return Grace - age
	}
}

// isWaiting reports whether a container of a Pod waits for its start, while no other but
// sidecars runs, and not for the scheduler.
func isWaiting(pod *corev1.Pod) bool {
	return pod.Status.Phase != corev1.PodRunning && !hasEnded(pod) && pod.DeletionTimestamp == nil && !isUnschedulable(pod) &&
		!slices.ContainsFunc(containerStatuses(pod), func(status corev1.ContainerStatus) bool {
			return status.State.Running != nil && !isNameOfSidecar(pod, status.Name)
		})
}

// waitsSince returns since when a Pod that is waiting has been: since it has a node, or since
// its last init container ended or, if that is a sidecar, first started.
func waitsSince(pod *corev1.Pod) time.Time {
	since := pod.CreationTimestamp.Time
	if condition := podCondition(pod, corev1.PodScheduled, corev1.ConditionTrue); condition != nil && condition.LastTransitionTime.After(since) {
		since = condition.LastTransitionTime.Time
	}
	for _, status := range pod.Status.InitContainerStatuses {
		if terminated := status.State.Terminated; terminated != nil && terminated.FinishedAt.After(since) {
			since = terminated.FinishedAt.Time
		}
		if running := status.State.Running; running != nil && status.RestartCount == 0 && running.StartedAt.After(since) {
			since = running.StartedAt.Time
		}
	}
	return since
}

func containerStatuses(pod *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
}

// podBlocker returns what, according to its status, keeps a Pod from starting: an API reason
// and a sentence. The reason is empty if nothing does.
func podBlocker(pod *corev1.Pod, now time.Time) (reason, message string) {
	if isUnschedulable(pod) {
		if condition := unscheduled(pod); now.Sub(condition.LastTransitionTime.Time) >= unschedulableDelay {
			return v1alpha1.ReasonUnschedulable, join("Pod "+pod.Name, condition.Message)
		}
		return "", ""
	}
	for _, container := range containerStatuses(pod) {
		waiting := container.State.Waiting
		if waiting == nil || isUnknownYet(waiting.Message) {
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

// unscheduled returns the condition that says why a Pod has no node, or nil.
func unscheduled(pod *corev1.Pod) *corev1.PodCondition {
	return podCondition(pod, corev1.PodScheduled, corev1.ConditionFalse)
}

// podCondition returns the condition of a Pod of the given type if it has the given status, or nil.
func podCondition(pod *corev1.Pod, conditionType corev1.PodConditionType, status corev1.ConditionStatus) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if condition := &pod.Status.Conditions[i]; condition.Type == conditionType && condition.Status == status {
			return condition
		}
	}
	return nil
}

func isUnschedulable(pod *corev1.Pod) bool {
	condition := unscheduled(pod)
	return condition != nil && condition.Reason == corev1.PodReasonUnschedulable
}

// blockingEvents are the reasons of Warning events after which a Pod does not start until their
// cause is gone, and what they mean for an At. They are those of pkg/kubelet/events/event.go and
// of the attach-detach controller in Kubernetes. Others warn of what may keep no Pod from starting.
var blockingEvents = map[string]string{
	"FailedMount":                   v1alpha1.ReasonVolumeNotMounted,
	"FailedAttachVolume":            v1alpha1.ReasonVolumeNotMounted,
	"FailedMapVolume":               v1alpha1.ReasonVolumeNotMounted,
	"FailedCreatePodSandBox":        v1alpha1.ReasonSandboxNotCreated,
	"NetworkNotReady":               v1alpha1.ReasonSandboxNotCreated,
	"FailedPrepareDynamicResources": v1alpha1.ReasonSandboxNotCreated,
}

// isUnknownYet reports whether the message of a busy kubelet says only that it has not read a
// ConfigMap or a Secret yet. Usually, its next try succeeds or says what is missing. If not,
// silentBlocker reports ReasonPodPending. See pkg/kubelet/util/manager/watch_based_manager.go in
// Kubernetes.
func isUnknownYet(message string) bool {
	return strings.Contains(message, "failed to sync configmap cache") || strings.Contains(message, "failed to sync secret cache")
}

// hasSandbox reports whether a Pod has its volumes, its sandbox and its network. So no blocking event
// concerns it any longer.
func hasSandbox(pod *corev1.Pod) bool {
	return podCondition(pod, corev1.PodReadyToStartContainers, corev1.ConditionTrue) != nil
}

// silentBlocker returns what keeps a Pod from starting whose status does not say so. event is
// the newest event about it, or nil if that is unknown. The reason is empty if there may be nothing.
func silentBlocker(pod *corev1.Pod, event *PodEvent, now time.Time) (reason, message string) {
	if isUnschedulable(pod) {
		return "", ""
	}
	if event != nil && event.Warning && !hasSandbox(pod) && now.Sub(event.Time) <= maxEventAge && blockingEvents[event.Reason] != "" && !isUnknownYet(event.Message) {
		return blockingEvents[event.Reason], join("Pod "+pod.Name, event.Reason, event.Message)
	}
	if now.Sub(waitsSince(pod)) < Grace {
		return "", ""
	}
	message = fmt.Sprintf("Pod %s: the command has not started for a minute", pod.Name)
	waiting := slices.IndexFunc(containerStatuses(pod), func(status corev1.ContainerStatus) bool {
		// What every container has before its start says nothing.
		return status.State.Waiting != nil && status.State.Waiting.Message != ""
	})
	switch condition := unscheduled(pod); {
	case condition != nil:
		message = join(message, condition.Reason, condition.Message)
	case waiting >= 0:
		status := containerStatuses(pod)[waiting]
		message = join(message, "container "+status.Name, status.State.Waiting.Reason, status.State.Waiting.Message)
	case event != nil:
		message = join(message, event.Reason, event.Message)
	}
	return v1alpha1.ReasonPodPending, fmt.Sprintf("%s. See kubectl describe pod %s -n %s", message, pod.Name, pod.Namespace)
}

// isOfContainer reports whether the reason of a condition comes from the status of a container.
func isOfContainer(reason string) bool {
	return reason == v1alpha1.ReasonImagePullFailed || reason == v1alpha1.ReasonContainerNotCreated
}

// isNews reports whether a message says more than the one that is reported for the same reason. The
// kubelet repeats a problem in other words: with the ID of another sandbox, without its cause when it
// gives up waiting for volumes, and during the back-off of a pull with the last error or, before
// Kubernetes 1.32, without. See pkg/kubelet/volumemanager/volume_manager.go and
// pkg/kubelet/images/image_manager.go in Kubernetes.
func isNews(message, reported string) bool {
	message = ids.ReplaceAllString(answer.OneLine(message), "")
	reported = ids.ReplaceAllString(reported, "")
	if message == reported || strings.Contains(message, "Unable to attach or mount volumes") {
		return false
	}
	container, backOff, isBackOff := strings.Cut(message, "ImagePullBackOff: ")
	if !isBackOff {
		return true
	}
	_, pullError, isRepeated := strings.Cut(backOff, `": `)
	return isRepeated && container+pullError != reported
}

// ids matches the IDs of containers and sandboxes.
var ids = regexp.MustCompile(`[0-9a-f]{32,}`)

// isSilent reports whether silentBlocker returned the reason of a condition.
func isSilent(reason string) bool {
	return slices.Contains([]string{v1alpha1.ReasonVolumeNotMounted, v1alpha1.ReasonSandboxNotCreated, v1alpha1.ReasonPodPending}, reason)
}
