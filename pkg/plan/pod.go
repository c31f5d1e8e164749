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
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

const (
	// DefaultContainer is the annotation that names the container of a Pod that
	// kubectl logs and kubectl exec use by default.
	DefaultContainer = "kubectl.kubernetes.io/default-container"
	// nobody is the conventional UID of the user without rights.
	nobody = 65534
)

// PodName returns the name of an At's present Pod: see NameOfPod.
func PodName(at *v1alpha1.At) string { return NameOfPod(at.Name, PodsBefore(at)) }

// PodsBefore returns the number of Pods that an At had before its present one. None of them
// can run again.
func PodsBefore(at *v1alpha1.At) int32 { return at.Status.Failed + at.Status.NotStarted }

// NameOfPod returns the name of the Pod that follows the given number of others of its At:
// <at>-pod, then <at>-pod-1, and so on. A name of more than 63 characters would not make a
// host name: it is cut, and a hash of the whole At name replaces the rest.
func NameOfPod(at string, before int32) string {
	suffix := "-pod"
	if before > 0 {
		suffix += fmt.Sprintf("-%d", before)
	}
	return Shorten(at, validation.DNS1123LabelMaxLength-len(suffix)) + suffix
}

// isEarlier reports whether a Pod has the name of a Pod before the present one.
func isEarlier(at *v1alpha1.At, pod *corev1.Pod) bool {
	for before := PodsBefore(at) - 1; before >= 0; before-- {
		if pod.Name == NameOfPod(at.Name, before) {
			return true
		}
	}
	return false
}

// Defaults are what the Pod of an At without spec.template is made of.
type Defaults struct {
	// Image is the image of the container that runs spec.command.
	Image string
	// Resources are those of that container.
	Resources corev1.ResourceRequirements
}

// NewPod returns the Pod of an At's next attempt: that of spec.template or,
// without one, a container with the defaults and with no rights that the restricted Pod
// Security level does not grant.
func NewPod(at *v1alpha1.At, defaults Defaults) *corev1.Pod {
	template := at.Spec.Template.DeepCopy()
	if template == nil {
		template = defaultTemplate(defaults)
	}
	spec := &template.Spec
	spec.RestartPolicy = cmp.Or(spec.RestartPolicy, corev1.RestartPolicyNever)
	if ptr.Deref(at.Spec.BackoffLimit, 0) == 0 {
		neverRestart(spec)
	}
	for container := range containersOf(spec) {
		container.TerminationMessagePolicy = cmp.Or(container.TerminationMessagePolicy, corev1.TerminationMessageFallbackToLogsOnError)
	}
	first := &spec.Containers[0]
	if at.Spec.Command != "" {
		first.Command = []string{"/bin/sh", "-c", escape(at.Spec.Command)}
		first.Args = nil
	}

	if at.Spec.Node != "" {
		pinToNode(spec, at.Spec.Node)
		addNodeName(spec)
	}

	labels := map[string]string{}
	maps.Copy(labels, template.Labels)
	labels[v1alpha1.LabelAtUID] = string(at.UID)
	if len(at.Name) <= validation.LabelValueMaxLength {
		labels[v1alpha1.LabelAtName] = at.Name
	}
	// What a webhook adds to the Pod does not change which container counts.
	annotations := map[string]string{DefaultContainer: first.Name}
	maps.Copy(annotations, template.Annotations)
	annotations[v1alpha1.AnnotationAtName] = at.Name
	annotations[v1alpha1.AnnotationAtGeneration] = strconv.FormatInt(at.Generation, 10)
	if at.Spec.Node != "" {
		annotations[v1alpha1.AnnotationNode] = at.Spec.Node
	}
	if instant, err := Instant(&at.Spec); err == nil {
		annotations[v1alpha1.AnnotationScheduledTime] = instant.UTC().Format(time.RFC3339Nano)
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:            PodName(at),
			Namespace:       at.Namespace,
			Labels:          labels,
			Annotations:     annotations,
			Finalizers:      []string{v1alpha1.FinalizerTracking},
			OwnerReferences: OwnedBy(at, v1alpha1.AtKind),
		},
		Spec: *spec,
	}
}

// neverRestart keeps the node from restarting a container that has failed, except for
// sidecars, which must not restart the others. A run without retries must not count on being
// stopped in time: the first restart follows at once.
func neverRestart(spec *corev1.PodSpec) {
	spec.RestartPolicy = corev1.RestartPolicyNever
	for container := range containersOf(spec) {
		container.RestartPolicyRules = nil
		if !isSidecar(container) {
			container.RestartPolicy = nil
		}
	}
}

// defaultTemplate returns the template of an At that has none.
func defaultTemplate(defaults Defaults) *corev1.PodTemplateSpec {
	return &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		AutomountServiceAccountToken: ptr.To(false),
		EnableServiceLinks:           ptr.To(false),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot:   ptr.To(true),
			RunAsUser:      ptr.To[int64](nobody),
			RunAsGroup:     ptr.To[int64](nobody),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name:      "command",
			Image:     defaults.Image,
			Resources: *defaults.Resources.DeepCopy(),
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: ptr.To(false),
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}},
	}}
}

// containersOf returns all containers of a Pod, to change them: first the init containers.
func containersOf(spec *corev1.PodSpec) iter.Seq[*corev1.Container] {
	return func(yield func(*corev1.Container) bool) {
		for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
			for i := range containers {
				if !yield(&containers[i]) {
					return
				}
			}
		}
	}
}

// escape protects a command from the kubelet, which replaces $(NAME) and $$ in a
// container's command before it starts it: the shell is to see what was written.
func escape(command string) string {
	return strings.ReplaceAll(command, "$", "$$")
}

// PodKeys returns two keys. like is the same for two Pods if they differ only in what
// NewPod derives from the At's name, UID, generation and time, and in the commands of their
// containers. same also depends on the commands.
func PodKeys(pod *corev1.Pod) (like, same string) {
	stripped := pod.DeepCopy()
	stripped.Name, stripped.OwnerReferences = "", nil
	for _, key := range []string{v1alpha1.LabelAtUID, v1alpha1.LabelAtName} {
		delete(stripped.Labels, key)
	}
	for _, key := range []string{v1alpha1.AnnotationAtName, v1alpha1.AnnotationAtGeneration, v1alpha1.AnnotationScheduledTime} {
		delete(stripped.Annotations, key)
	}
	same = hashOf(stripped)
	for container := range containersOf(&stripped.Spec) {
		container.Command, container.Args = nil, nil
	}
	return hashOf(stripped), same
}

func hashOf(pod *corev1.Pod) string {
	content, err := json.Marshal(pod)
	utilruntime.Must(err) // Whatever the API server has decoded can be encoded.
	sum := sha256.Sum256(content)
	return string(sum[:])
}

// AtName returns the name of the At that a Pod belongs to, or "" if there is none. It
// uses the owner reference or, if that was removed, the annotation from the creation of
// the Pod.
func AtName(pod *corev1.Pod) string {
	if owner := ownerAt(pod); owner != nil {
		return owner.Name
	}
	if IsTracked(pod) {
		return pod.Annotations[v1alpha1.AnnotationAtName]
	}
	return ""
}

// ownerAt returns the owner reference of an object if its controller is an At, or nil. It
// does not check the UID of the At.
func ownerAt(object metav1.Object) *metav1.OwnerReference { return Owner(object, v1alpha1.AtKind) }

// Owner returns the owner reference of an object to its controller if that has the given
// kind of this API group, or nil.
func Owner(object metav1.Object, kind string) *metav1.OwnerReference {
	owner := ControllerOf(object)
	if owner == nil || owner.Kind != kind {
		return nil
	}
	if gv, err := schema.ParseGroupVersion(owner.APIVersion); err != nil || gv.Group != cnat.GroupName {
		return nil
	}
	return owner
}

// ControllerOf returns the owner reference of an object to its controller, or nil. The API
// server accepts references of any length; a long one cannot refer to an existing object.
func ControllerOf(object metav1.Object) *metav1.OwnerReference {
	owner := metav1.GetControllerOf(object)
	if owner == nil || max(len(owner.APIVersion), len(owner.Kind), len(owner.Name), len(owner.UID)) > maxName {
		return nil
	}
	return owner
}

// OwnedBy returns the owner references of what owner, which has the given kind of this API group,
// creates.
func OwnedBy(owner metav1.Object, kind string) []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(owner, v1alpha1.SchemeGroupVersion.WithKind(kind))}
}

// IsOwnedBy reports whether owner, which has the given kind of this API group, is the
// controller of an object. The UID alone is not enough: the admission policies let users
// write references to other kinds, with any UID.
func IsOwnedBy(object, owner metav1.Object, kind string) bool {
	ref := Owner(object, kind)
	return ref != nil && ref.UID == owner.GetUID()
}

// IsOf reports whether a Pod was created for an At. While the Pod has the finalizer, the
// label is as good as the owner reference, in case a user removed the latter.
func IsOf(pod *corev1.Pod, at *v1alpha1.At) bool {
	return IsOwnedBy(pod, at, v1alpha1.AtKind) || IsTracked(pod) && types.UID(pod.Labels[v1alpha1.LabelAtUID]) == at.UID
}

// IsTracked reports whether a Pod or an At has the finalizer of Pods and of the Ats of nodes.
func IsTracked(object metav1.Object) bool {
	return slices.Contains(object.GetFinalizers(), v1alpha1.FinalizerTracking)
}

// IsScheduled reports whether an At has the finalizer of Ats that a CronAt creates.
func IsScheduled(at *v1alpha1.At) bool {
	return slices.Contains(at.Finalizers, v1alpha1.FinalizerScheduled)
}
