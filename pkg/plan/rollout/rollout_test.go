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

// textOf returns what a target says of its rollout.
func textOf(t *Target) string {
	text := t.Progress()
	for _, flag := range []struct {
		name  string
		isSet bool
	}{{"rolling", t.Rolling}, {"complete", t.Complete}, {"failed", t.Failed}, {"cannot be restarted", t.Paused || t.OnDelete}} {
		if flag.isSet {
			text += ", " + flag.name
		}
	}
	return text
}

func check(t *testing.T, name string, target *Target, want string) {
	t.Helper()
	if got := textOf(target); got != want {
		t.Errorf("%s: %s, want %s", name, got, want)
	}
}

func TestDeployment(t *testing.T) {
	three := ptr.To[int32](3)
	for name, tc := range map[string]struct {
		generation, replicas, updated, available int32 // in the status
		reason                                   string
		want                                     string
	}{
		"not observed":         {1, 3, 3, 3, progressDeadlineExceeded, "0 of 3 updated, 3 available, rolling"},
		"none is updated":      {2, 3, 0, 3, "", "0 of 3 updated, 3 available, rolling"},
		"old ones are left":    {2, 4, 3, 3, "", "3 of 3 updated, 3 available, rolling"},
		"one is not available": {2, 3, 3, 2, "", "3 of 3 updated, 2 available"},
		"complete":             {2, 3, 3, 3, "NewReplicaSetAvailable", "3 of 3 updated, 3 available, complete"},
		"no progress":          {2, 4, 1, 3, progressDeadlineExceeded, "1 of 3 updated, 3 available, failed"},
	} {
		status := appsv1.DeploymentStatus{ObservedGeneration: int64(tc.generation), Replicas: tc.replicas, UpdatedReplicas: tc.updated, AvailableReplicas: tc.available}
		status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Reason: tc.reason}}
		check(t, name, FromDeployment(&appsv1.Deployment{ObjectMeta: metadata, Spec: appsv1.DeploymentSpec{Replicas: three}, Status: status}), tc.want)
	}
	one := &appsv1.Deployment{ObjectMeta: metadata, Status: appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1}}
	check(t, "one replica by default", FromDeployment(one), "1 of 1 updated, 1 available, complete")
	one.Spec.Paused = true
	check(t, "paused", FromDeployment(one), "1 of 1 updated, 1 available, complete, cannot be restarted")
}

func TestStatefulSet(t *testing.T) {
	three := ptr.To[int32](3)
	for name, tc := range map[string]struct {
		generation, partition, updated, ready int32
		want                                  string
	}{
		"not observed":                            {1, 0, 3, 3, "0 of 3 updated, 3 available, rolling"},
		"one is updated":                          {2, 0, 1, 3, "1 of 3 updated, 3 available, rolling"},
		"one is not ready":                        {2, 0, 3, 2, "3 of 3 updated, 2 available"},
		"complete":                                {2, 0, 3, 3, "3 of 3 updated, 3 available, complete"},
		"complete up to the partition":            {2, 2, 1, 3, "1 of 1 updated, 3 available, complete"},
		"one below the partition is not ready":    {2, 2, 1, 2, "1 of 1 updated, 2 available"},
		"the partition leaves nothing to restart": {2, 4, 0, 3, "0 of 0 updated, 3 available, complete"},
	} {
		set := &appsv1.StatefulSet{ObjectMeta: metadata, Spec: appsv1.StatefulSetSpec{Replicas: three}}
		set.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: &tc.partition}
		set.Status = appsv1.StatefulSetStatus{ObservedGeneration: int64(tc.generation), UpdatedReplicas: tc.updated, ReadyReplicas: tc.ready}
		check(t, name, FromStatefulSet(set), tc.want)
	}
	set := &appsv1.StatefulSet{ObjectMeta: metadata, Status: appsv1.StatefulSetStatus{ObservedGeneration: 2, UpdatedReplicas: 1, ReadyReplicas: 1}}
	set.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
	check(t, "OnDelete, one replica by default", FromStatefulSet(set), "1 of 1 updated, 1 available, complete, cannot be restarted")
	set.Spec.UpdateStrategy.Type, set.Status.CurrentRevision, set.Status.UpdateRevision = "", "a", "b"
	check(t, "two revisions without a strategy", FromStatefulSet(set), "1 of 1 updated, 1 available")
}

func TestDaemonSet(t *testing.T) {
	for name, tc := range map[string]struct {
		generation, updated, available int32
		want                           string
	}{
		"not observed":         {1, 3, 3, "0 of 3 updated, 3 available, rolling"},
		"one is updated":       {2, 1, 3, "1 of 3 updated, 3 available, rolling"},
		"one is not available": {2, 3, 2, "3 of 3 updated, 2 available"},
		"complete":             {2, 3, 3, "3 of 3 updated, 3 available, complete"},
	} {
		status := appsv1.DaemonSetStatus{ObservedGeneration: int64(tc.generation), DesiredNumberScheduled: 3, UpdatedNumberScheduled: tc.updated, NumberAvailable: tc.available}
		set := &appsv1.DaemonSet{ObjectMeta: metadata, Status: status}
		check(t, name, FromDaemonSet(set), tc.want)
		set.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType
		check(t, name+", OnDelete", FromDaemonSet(set), tc.want+", cannot be restarted")
	}
}

func TestProgress(t *testing.T) {
	deployment := &appsv1.Deployment{ObjectMeta: metadata, Status: appsv1.DeploymentStatus{ObservedGeneration: 2, Conditions: []appsv1.DeploymentCondition{
		{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "exceeded quota"},
	}}}
	check(t, "refused", FromDeployment(deployment), "0 of 1 updated, 0 available; exceeded quota, rolling")
	deployment.Status.Conditions[0].Status = corev1.ConditionFalse
	check(t, "no longer", FromDeployment(deployment), "0 of 1 updated, 0 available, rolling")
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
		template := &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AnnotationRestartedAt: tc.value}}}
		got := newTarget(v1alpha1.RestartDeployment, &metadata, template)
		if diff := cmp.Diff(tc.want, got.RestartedAt); diff != "" || got.Annotation != tc.value {
			t.Errorf("%s: annotation %q (-want +got)\n%s", name, got.Annotation, diff)
		}
	}
}
