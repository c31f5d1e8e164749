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

// Package rollout knows how far the rollout of a workload is, by the rules of kubectl rollout
// status. It is pure: package workload makes the requests.
package rollout

import (
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

// AnnotationRestartedAt is the annotation of a Pod template that kubectl rollout restart
// sets. A new value changes the template, so that all Pods are replaced.
const AnnotationRestartedAt = "kubectl.kubernetes.io/restartedAt"

// progressDeadlineExceeded is the reason of condition Progressing of a Deployment whose
// rollout is stuck: TimedOutReason in pkg/controller/deployment/util in Kubernetes.
const progressDeadlineExceeded = "ProgressDeadlineExceeded"

// Target is a workload with the fields that a restart needs.
type Target struct {
	Kind            v1alpha1.RestartKind
	Namespace       string
	Name            string
	UID             types.UID
	ResourceVersion string

	// Annotation is the annotation of the last restart. RestartedAt is the time in it, or
	// nil if there is none.
	Annotation  string
	RestartedAt *time.Time
	// Paused is true if a Deployment does not roll out changes.
	Paused bool
	// OnDelete is true if the workload replaces Pods only after they were deleted manually.
	OnDelete bool

	// Desired is the number of Pods that a restart replaces. Updated is the number of these
	// that have the current template. Available is the number of available Pods with any
	// template; for a StatefulSet, of ready Pods.
	Desired, Updated, Available int32
	// Rolling is true while Pods with an earlier template are being replaced.
	Rolling bool
	// Complete is true if kubectl rollout status reports that the rollout is complete.
	Complete bool
	// Failed is true if kubectl rollout status reports that the rollout has failed.
	Failed bool
	// ReplicaFailure is why a Deployment cannot create a Pod, such as an exceeded quota, or "".
	ReplicaFailure string
}

// The rules for Complete and Failed come from pkg/polymorphichelpers/rollout_status.go in
// kubectl.

// FromDeployment returns a Deployment as a target.
func FromDeployment(d *appsv1.Deployment) *Target {
	t := newTarget(v1alpha1.RestartDeployment, d, &d.Spec.Template)
	t.Paused = d.Spec.Paused
	t.Desired, t.Available = ptr.Deref(d.Spec.Replicas, 1), d.Status.AvailableReplicas
	if d.Generation > d.Status.ObservedGeneration {
		return t
	}
	t.Updated = d.Status.UpdatedReplicas
	for _, condition := range d.Status.Conditions {
		t.Failed = t.Failed || condition.Type == appsv1.DeploymentProgressing && condition.Reason == progressDeadlineExceeded
		if condition.Type == appsv1.DeploymentReplicaFailure && condition.Status == corev1.ConditionTrue {
			t.ReplicaFailure = strings.Clone(answer.Truncate(condition.Message, answer.MaxMessage))
		}
	}
	t.Rolling = !t.Failed && (t.Updated < t.Desired || d.Status.Replicas > t.Updated)
	t.Complete = !t.Failed && !t.Rolling && t.Available >= t.Updated
	return t
}

// FromStatefulSet returns a StatefulSet as a target.
func FromStatefulSet(s *appsv1.StatefulSet) *Target {
	t := newTarget(v1alpha1.RestartStatefulSet, s, &s.Spec.Template)
	t.OnDelete = s.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType
	replicas, partition := ptr.Deref(s.Spec.Replicas, 1), int32(0)
	if s.Spec.UpdateStrategy.RollingUpdate != nil {
		partition = ptr.Deref(s.Spec.UpdateStrategy.RollingUpdate.Partition, 0)
	}
	t.Desired, t.Available = max(0, replicas-partition), s.Status.ReadyReplicas
	if s.Generation > s.Status.ObservedGeneration {
		return t
	}
	t.Updated = s.Status.UpdatedReplicas
	t.Rolling = t.Updated < t.Desired
	t.Complete = !t.Rolling && t.Available >= replicas &&
		(s.Spec.UpdateStrategy.RollingUpdate != nil || s.Status.UpdateRevision == s.Status.CurrentRevision)
	return t
}

// FromDaemonSet returns a DaemonSet as a target.
func FromDaemonSet(d *appsv1.DaemonSet) *Target {
	t := newTarget(v1alpha1.RestartDaemonSet, d, &d.Spec.Template)
	t.OnDelete = d.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType
	t.Desired, t.Available = d.Status.DesiredNumberScheduled, d.Status.NumberAvailable
	if d.Generation > d.Status.ObservedGeneration {
		return t
	}
	t.Updated = d.Status.UpdatedNumberScheduled
	t.Rolling = t.Updated < t.Desired
	t.Complete = !t.Rolling && t.Available >= t.Desired
	return t
}

// maxAnnotation is the length of an annotation, in bytes, up to which it is kept, for a message.
const maxAnnotation = 64

// newTarget returns a target without the fields that depend on the workload's status.
func newTarget(kind v1alpha1.RestartKind, object metav1.Object, template *corev1.PodTemplateSpec) *Target {
	t := &Target{
		Kind:            kind,
		Namespace:       object.GetNamespace(),
		Name:            object.GetName(),
		UID:             object.GetUID(),
		ResourceVersion: object.GetResourceVersion(),
		Rolling:         true,
	}
	annotation := template.Annotations[AnnotationRestartedAt]
	if restartedAt, err := time.Parse(time.RFC3339, annotation); err == nil {
		t.RestartedAt = &restartedAt
	}
	// Targets are cached, and users may write a long annotation.
	t.Annotation = strings.Clone(annotation[:min(len(annotation), maxAnnotation)])
	return t
}

// String returns kind and name.
func (t *Target) String() string { return fmt.Sprintf("%s %s", t.Kind, t.Name) }

// Progress describes the progress of the rollout, and what keeps it from making more.
func (t *Target) Progress() string {
	progress := fmt.Sprintf("%d of %d updated, %d available", t.Updated, t.Desired, t.Available)
	if t.ReplicaFailure != "" {
		progress += "; " + t.ReplicaFailure
	}
	return progress
}
