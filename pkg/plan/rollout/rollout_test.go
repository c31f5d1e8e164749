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

package rollout

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

var (
	instant  = time.Date(2026, 12, 24, 10, 12, 0, 0, time.UTC)
	metadata = metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "uid", ResourceVersion: "7", Generation: 2}
)

// state contains the fields of a workload besides its name.
type state struct {
	desired, updated, available       int32
	rolling, complete, failed, cannot bool
}

func stateOf(t *Target) state {
	return state{t.Desired, t.Updated, t.Available, t.Rolling, t.Complete, t.Failed, t.Paused || t.OnDelete}
}

func TestDeployment(t *testing.T) {
	progressing := func(reason string) []appsv1.DeploymentCondition {
		return []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Reason: reason}}
	}
	for name, tc := range map[string]struct {
		spec   appsv1.DeploymentSpec
		status appsv1.DeploymentStatus
		want   state
	}{
		"not observed": {
			spec:   appsv1.DeploymentSpec{Replicas: ptr.To[int32](3)},
			status: appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 3, UpdatedReplicas: 3, AvailableReplicas: 3, Conditions: progressing("ProgressDeadlineExceeded")},
			want:   state{desired: 3, available: 3, rolling: true},
		},
		"none is updated": {
			spec:   appsv1.DeploymentSpec{Replicas: ptr.To[int32](3)},
			status: appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 3, AvailableReplicas: 3},
			want:   state{desired: 3, available: 3, rolling: true},
		},
		"old ones are left": {
			spec:   appsv1.DeploymentSpec{Replicas: ptr.To[int32](3)},
			status: appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 4, UpdatedReplicas: 3, AvailableReplicas: 3},
			want:   state{desired: 3, updated: 3, available: 3, rolling: true},
		},
		"one is not available": {
			spec:   appsv1.DeploymentSpec{Replicas: ptr.To[int32](3)},
			status: appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 3, UpdatedReplicas: 3, AvailableReplicas: 2},
			want:   state{desired: 3, updated: 3, available: 2},
		},
		"complete": {
			spec:   appsv1.DeploymentSpec{Replicas: ptr.To[int32](3)},
			status: appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 3, UpdatedReplicas: 3, AvailableReplicas: 3, Conditions: progressing("NewReplicaSetAvailable")},
			want:   state{desired: 3, updated: 3, available: 3, complete: true},
		},
		"one replica by default": {
			status: appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1},
			want:   state{desired: 1, updated: 1, available: 1, complete: true},
		},
		"no replicas": {
			spec:   appsv1.DeploymentSpec{Replicas: ptr.To[int32](0)},
			status: appsv1.DeploymentStatus{ObservedGeneration: 2},
			want:   state{complete: true},
		},
		"no progress": {
			spec:   appsv1.DeploymentSpec{Replicas: ptr.To[int32](3)},
			status: appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 4, UpdatedReplicas: 1, AvailableReplicas: 3, Conditions: progressing("ProgressDeadlineExceeded")},
			want:   state{desired: 3, updated: 1, available: 3, failed: true},
		},
		"paused": {
			spec:   appsv1.DeploymentSpec{Replicas: ptr.To[int32](0), Paused: true},
			status: appsv1.DeploymentStatus{ObservedGeneration: 2},
			want:   state{complete: true, cannot: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := stateOf(FromDeployment(&appsv1.Deployment{ObjectMeta: metadata, Spec: tc.spec, Status: tc.status})); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestStatefulSet(t *testing.T) {
	rollingUpdate := func(partition int32) appsv1.StatefulSetUpdateStrategy {
		return appsv1.StatefulSetUpdateStrategy{RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &partition}}
	}
	for name, tc := range map[string]struct {
		spec   appsv1.StatefulSetSpec
		status appsv1.StatefulSetStatus
		want   state
	}{
		"not observed": {
			spec:   appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3), UpdateStrategy: rollingUpdate(0)},
			status: appsv1.StatefulSetStatus{ObservedGeneration: 1, UpdatedReplicas: 3, ReadyReplicas: 3},
			want:   state{desired: 3, available: 3, rolling: true},
		},
		"one is updated": {
			spec:   appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3), UpdateStrategy: rollingUpdate(0)},
			status: appsv1.StatefulSetStatus{ObservedGeneration: 2, UpdatedReplicas: 1, ReadyReplicas: 3},
			want:   state{desired: 3, updated: 1, available: 3, rolling: true},
		},
		"one is not ready": {
			spec:   appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3), UpdateStrategy: rollingUpdate(0)},
			status: appsv1.StatefulSetStatus{ObservedGeneration: 2, UpdatedReplicas: 3, ReadyReplicas: 2},
			want:   state{desired: 3, updated: 3, available: 2},
		},
		"complete": {
			spec:   appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3), UpdateStrategy: rollingUpdate(0)},
			status: appsv1.StatefulSetStatus{ObservedGeneration: 2, UpdatedReplicas: 3, ReadyReplicas: 3},
			want:   state{desired: 3, updated: 3, available: 3, complete: true},
		},
		"complete up to the partition": {
			spec:   appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3), UpdateStrategy: rollingUpdate(2)},
			status: appsv1.StatefulSetStatus{ObservedGeneration: 2, UpdatedReplicas: 1, ReadyReplicas: 3},
			want:   state{desired: 1, updated: 1, available: 3, complete: true},
		},
		"one below the partition is not ready": {
			spec:   appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3), UpdateStrategy: rollingUpdate(2)},
			status: appsv1.StatefulSetStatus{ObservedGeneration: 2, UpdatedReplicas: 1, ReadyReplicas: 2},
			want:   state{desired: 1, updated: 1, available: 2},
		},
		"the partition leaves nothing to restart": {
			spec:   appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3), UpdateStrategy: rollingUpdate(4)},
			status: appsv1.StatefulSetStatus{ObservedGeneration: 2, ReadyReplicas: 3},
			want:   state{available: 3, complete: true},
		},
		"two revisions without a strategy": {
			spec:   appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3)},
			status: appsv1.StatefulSetStatus{ObservedGeneration: 2, UpdatedReplicas: 3, ReadyReplicas: 3, CurrentRevision: "a", UpdateRevision: "b"},
			want:   state{desired: 3, updated: 3, available: 3},
		},
		"OnDelete": {
			spec:   appsv1.StatefulSetSpec{UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}},
			status: appsv1.StatefulSetStatus{ObservedGeneration: 2, UpdatedReplicas: 1, ReadyReplicas: 1},
			want:   state{desired: 1, updated: 1, available: 1, complete: true, cannot: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := stateOf(FromStatefulSet(&appsv1.StatefulSet{ObjectMeta: metadata, Spec: tc.spec, Status: tc.status})); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestDaemonSet(t *testing.T) {
	for name, tc := range map[string]struct {
		strategy appsv1.DaemonSetUpdateStrategyType
		status   appsv1.DaemonSetStatus
		want     state
	}{
		"not observed": {
			status: appsv1.DaemonSetStatus{ObservedGeneration: 1, DesiredNumberScheduled: 3, UpdatedNumberScheduled: 3, NumberAvailable: 3},
			want:   state{desired: 3, available: 3, rolling: true},
		},
		"one is updated": {
			status: appsv1.DaemonSetStatus{ObservedGeneration: 2, DesiredNumberScheduled: 3, UpdatedNumberScheduled: 1, NumberAvailable: 3},
			want:   state{desired: 3, updated: 1, available: 3, rolling: true},
		},
		"one is not available": {
			status: appsv1.DaemonSetStatus{ObservedGeneration: 2, DesiredNumberScheduled: 3, UpdatedNumberScheduled: 3, NumberAvailable: 2},
			want:   state{desired: 3, updated: 3, available: 2},
		},
		"complete": {
			status: appsv1.DaemonSetStatus{ObservedGeneration: 2, DesiredNumberScheduled: 3, UpdatedNumberScheduled: 3, NumberAvailable: 3},
			want:   state{desired: 3, updated: 3, available: 3, complete: true},
		},
		"OnDelete": {
			strategy: appsv1.OnDeleteDaemonSetStrategyType,
			status:   appsv1.DaemonSetStatus{ObservedGeneration: 2},
			want:     state{complete: true, cannot: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			daemonSet := &appsv1.DaemonSet{ObjectMeta: metadata, Status: tc.status}
			daemonSet.Spec.UpdateStrategy.Type = tc.strategy
			if got := stateOf(FromDaemonSet(daemonSet)); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestProgress(t *testing.T) {
	deployment := &appsv1.Deployment{ObjectMeta: metadata, Status: appsv1.DeploymentStatus{ObservedGeneration: 2, Conditions: []appsv1.DeploymentCondition{
		{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "exceeded quota"},
	}}}
	if got, want := FromDeployment(deployment).Progress(), "0 of 1 updated, 0 available; exceeded quota"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	deployment.Status.Conditions[0].Status = corev1.ConditionFalse
	if got, want := FromDeployment(deployment).Progress(), "0 of 1 updated, 0 available"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestRestartedAt(t *testing.T) {
	for name, tc := range map[string]struct {
		value string
		want  *time.Time
	}{
		"never":           {},
		"at the instant":  {value: "2026-12-24T10:12:00Z", want: &instant},
		"in another zone": {value: "2026-12-24T11:12:00+01:00", want: &instant},
		"not a time":      {value: "yes"},
	} {
		t.Run(name, func(t *testing.T) {
			template := &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AnnotationRestartedAt: tc.value}}}
			got := newTarget(v1alpha1.RestartDeployment, &metadata, template)
			if diff := cmp.Diff(tc.want, got.RestartedAt); diff != "" || got.Annotation != tc.value {
				t.Errorf("annotation %q (-want +got)\n%s", got.Annotation, diff)
			}
		})
	}
}
