//go:build integration

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

package integration

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestAppliedAgain creates Ats again that have ended: one that its TTL deleted, as a GitOps tool
// does that misses it, and one from a backup that has no status. With a starting deadline, as
// docs/tasks/gitops.md says, they do not run again; without one, an At does.
func TestAppliedAgain(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	ats := cnatClient.CnatV1alpha1().Ats(namespace)

	start := time.Now()
	// More than a slow machine needs to start a Pod.
	deadline := ptr.To[int64](60)
	applied, restored, unprotected := newAt(namespace, "applied", start, "true"), newAt(namespace, "restored", start, "true"), newAt(namespace, "unprotected", start, "true")
	applied.Spec.StartingDeadlineSeconds, applied.Spec.TTLSecondsAfterFinished = deadline, ptr.To[int32](0)
	restored.Spec.StartingDeadlineSeconds = deadline
	unprotected.Spec.TTLSecondsAfterFinished = ptr.To[int32](0)
	all := []*v1alpha1.At{applied, restored, unprotected}
	for _, at := range all {
		// Each is due now, so that a slow machine does not exceed the deadline.
		start = time.Now()
		at.Spec.Schedule = newAt(namespace, at.Name, start, "true").Spec.Schedule
		created := createAt(t, at)
		endPod(t, waitPod(t, namespace, at.Name+"-pod"), corev1.PodSucceeded, 0, "")
		wantEnd(t, waitVersion(t, created, "to be done", isDone), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
	}
	backup, err := ats.Get(t.Context(), restored.Name, metav1.GetOptions{})
	if err == nil {
		err = ats.Delete(t.Context(), restored.Name, metav1.DeleteOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range all {
		eventually(t, "At "+at.Name+" and its Pod to be gone", func(ctx context.Context) (bool, error) {
			_, err := ats.Get(ctx, at.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				_, err = kubeClient.CoreV1().Pods(namespace).Get(ctx, at.Name+"-pod", metav1.GetOptions{})
			}
			return apierrors.IsNotFound(err), ignoreNotFound(err)
		})
	}
	eventually(t, "the starting deadline to be over", func(context.Context) (bool, error) {
		return time.Since(start) > time.Duration(*deadline+1)*time.Second, nil
	})

	// The API server drops the status of what is created.
	backup.ResourceVersion, backup.UID = "", ""
	for _, at := range []*v1alpha1.At{applied, backup} {
		createAt(t, at)
		done := waitPhase(t, namespace, at.Name, v1alpha1.PhaseDone)
		if done.Status.Reason != v1alpha1.ReasonStartingDeadlineExceeded || !meta.IsStatusConditionTrue(done.Status.Conditions, v1alpha1.ConditionFailed) || done.Status.StartTime != nil {
			t.Errorf("%s: status %+v, want Failed/StartingDeadlineExceeded, never started", at.Name, done.Status)
		}
	}
	createAt(t, unprotected)
	endPod(t, waitPod(t, namespace, unprotected.Name+"-pod"), corev1.PodSucceeded, 0, "")
	waitPhase(t, namespace, unprotected.Name, v1alpha1.PhaseDone)
	wantCreates(t, namespace, len(all)+1)
}

func isDone(at *v1alpha1.At) bool { return at.Status.Phase == v1alpha1.PhaseDone }
