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
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

const (
	podSuffix = "-pod"
	// commandContainer is the name of the container that runs spec.command.
	commandContainer = "command"
	// nobody is the conventional UID of the user without rights.
	nobody = 65534
)

// PodName returns the name of the Pod of the At with the given name: <at>-pod. A
// name of more than 63 characters would not make a host name: it is cut, and a
// hash of the whole At name takes the place of what is lost.
func PodName(at string) string {
	if len(at)+len(podSuffix) <= validation.DNS1123LabelMaxLength {
		return at + podSuffix
	}
	sum := sha256.Sum256([]byte(at))
	tail := "-" + hex.EncodeToString(sum[:5]) + podSuffix
	return strings.TrimRight(at[:validation.DNS1123LabelMaxLength-len(tail)], "-.") + tail
}

// OwnerAt returns the owner reference of the At that pod names as its controller,
// or nil. Whether the At still has that UID is another question.
func OwnerAt(pod *corev1.Pod) *metav1.OwnerReference {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != v1alpha1.AtKind {
		return nil
	}
	if gv, err := schema.ParseGroupVersion(owner.APIVersion); err != nil || gv.Group != cnat.GroupName {
		return nil
	}
	return owner
}

// NewPod returns the Pod of an At: one container of the given image that runs
// spec.command, with no rights that the restricted Pod Security level does not grant.
func NewPod(at *v1alpha1.At, image string) *corev1.Pod {
	labels := map[string]string{v1alpha1.LabelAtUID: string(at.UID)}
	if len(at.Name) <= validation.LabelValueMaxLength {
		labels[v1alpha1.LabelAtName] = at.Name
	}
	annotations := map[string]string{}
	if instant, err := Instant(&at.Spec); err == nil {
		annotations[v1alpha1.AnnotationScheduledTime] = instant.UTC().Format(time.RFC3339Nano)
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:            PodName(at.Name),
			Namespace:       at.Namespace,
			Labels:          labels,
			Annotations:     annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(at, v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.AtKind))},
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                corev1.RestartPolicyNever,
			AutomountServiceAccountToken: ptr.To(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   ptr.To(true),
				RunAsUser:      ptr.To[int64](nobody),
				RunAsGroup:     ptr.To[int64](nobody),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name:                     commandContainer,
				Image:                    image,
				Command:                  []string{"/bin/sh", "-c", escape(at.Spec.Command)},
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false),
					Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

// escape protects a command from the kubelet, which replaces $(NAME) and $$ in a
// container's command before it starts it: the shell is to see what was written.
func escape(command string) string {
	return strings.ReplaceAll(command, "$", "$$")
}

// commandTerminated returns how the command's container ended; nil if it has not.
func commandTerminated(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	for i := range pod.Status.ContainerStatuses {
		if container := &pod.Status.ContainerStatuses[i]; container.Name == commandContainer {
			return container.State.Terminated
		}
	}
	return nil
}
