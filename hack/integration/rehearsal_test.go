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

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// In these tests, rehearsals do not pass by themselves: there is no node.

// newRehearsed returns an At named at that is rehearsed.
func newRehearsed(namespace string, schedule time.Time) *v1alpha1.At {
	at := newAt(namespace, "at", schedule, "true")
	at.Spec.Rehearse = true
	return at
}

// TestRehearsalRefused uses a policy that admits the Pods of runs, but not those of rehearsals.
func TestRehearsalRefused(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	createPolicy(t, namespace, "!('"+v1alpha1.LabelRehearsalOf+"' in object.metadata.?labels.orValue({}))")
	at := newRehearsed(namespace, time.Now().Add(time.Hour))
	at.UID = "probe"
	waitPodRefused(t, plan.NewRehearsalPod(at, v1alpha1.AtKind, plan.NewPod(at, plan.Defaults{Image: "busybox:1.37.0"})))
	startController(t, namespace)
	at = createAt(t, at)
	rehearsed := waitRehearsed(t, namespace)
	if rehearsed.Status != metav1.ConditionFalse || rehearsed.Reason != v1alpha1.ReasonRehearsalRefused {
		t.Errorf("condition %+v, want RehearsalRefused", rehearsed)
	}
	wantOutput(t, rehearsed.Message, `^Rehearsed at \S+: create Pod: .*ValidatingAdmissionPolicy '.*' with binding '.*' denied request: no Pods here`)
	waitUnblocked(t, namespace) // Nothing is known of the run.
	wantOutput(t, kubectl(t, "", "get", "at", "-o", "wide", "-n", namespace), `^NAME .* REHEARSED +REQUESTER +MESSAGE\nat .* RehearsalRefused +\n$`)
	waitEvents(t, at, map[string]int32{v1alpha1.ReasonRehearsalRefused: 1})
	update(t, namespace, func(at *v1alpha1.At) { at.Spec.Schedule = time.Now().UTC().Format(time.RFC3339) })
	waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
}

// TestRehearsalKilled kills the controller during a rehearsal. The next one removes the Pod, even
// if nothing is rehearsed any more.
func TestRehearsalKilled(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	c := startController(t, namespace)
	createAt(t, newRehearsed(namespace, time.Now().Add(time.Hour)))
	waitPod(t, namespace, "at-rehearsal")
	c.kill(t)
	update(t, namespace, func(at *v1alpha1.At) { at.Spec.Rehearse = false })
	startController(t, namespace)
	waitRehearsalsGone(t, namespace)
}

// newGated returns an At named at whose rehearsal does not end soon.
func newGated(namespace string, schedule time.Time) *v1alpha1.At {
	at := newRehearsed(namespace, schedule)
	setTemplate(at, func(spec *corev1.PodSpec) {
		spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}}
	})
	return at
}

// TestRehearsalYields uses up a quota with a rehearsal. It ends when another At is due, and says so.
func TestRehearsalYields(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	admitPods(t, namespace, 1)
	createAt(t, newGated(namespace, time.Now().Add(time.Hour)))
	waitPod(t, namespace, "at-rehearsal")
	other := createAt(t, newAt(namespace, "other", time.Now(), "true"))
	other = waitVersion(t, other, "to be refused", func(at *v1alpha1.At) bool { return at.Status.Reason == v1alpha1.ReasonPodRefused })
	other = waitVersion(t, other, "to start", func(at *v1alpha1.At) bool { return at.Status.Phase == v1alpha1.PhaseRunning })
	rehearsed := waitRehearsed(t, namespace)
	// Otherwise nothing had removed the gate for a minute.
	isSoon := other.Status.StartTime.Sub(other.CreationTimestamp.Time) < 20*time.Second
	if isSoon && rehearsed.Reason != v1alpha1.ReasonRehearsalRefused {
		t.Errorf("condition %+v, want RehearsalRefused", rehearsed)
	}
}

// TestRehearsalDoesNotDelay fills a quota of one Pod with a rehearsal that does not end. Another
// At, which is due meanwhile, runs, and the At itself runs at its time.
func TestRehearsalDoesNotDelay(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	c := startController(t, namespace)
	waitLog(t, c, "Starting controller")
	admitPods(t, namespace, 1)
	var at *v1alpha1.At
	// A slow machine needs more time to begin a rehearsal.
	for lead, rehearses := 100*time.Second, false; !rehearses; lead *= 2 {
		if lead > 400*time.Second {
			t.Fatal("no rehearsal of the At has begun")
		}
		if at != nil {
			t.Logf("no rehearsal began within %v before the At was due", lead/2)
			kubectl(t, "", "delete", "-n", namespace, "at/at")
		}
		at = createAt(t, newGated(namespace, time.Now().Add(lead)))
		eventually(t, "a rehearsal, or the time after which none begins", func(ctx context.Context) (bool, error) {
			late := time.Until(schedule(t, at)) < plan.RehearsalLead
			pod, err := kubeClient.CoreV1().Pods(namespace).Get(ctx, "at-rehearsal", metav1.GetOptions{})
			rehearses = err == nil && pod.Labels[v1alpha1.LabelRehearsalOf] == string(at.UID)
			return rehearses || late, ignoreNotFound(err)
		})
	}
	// So late that no other rehearsal begins.
	time.Sleep(time.Until(schedule(t, at)) - 50*time.Second)
	createAt(t, newAt(namespace, "other", time.Now(), "true"))
	other := waitPhase(t, namespace, "other", v1alpha1.PhaseRunning)
	if meta.IsStatusConditionTrue(other.Status.Conditions, v1alpha1.ConditionBlocked) {
		t.Errorf("status %+v, want no obstacle", other.Status)
	}
	waitRehearsalsGone(t, namespace)
	kubectl(t, "", "delete", "-n", namespace, "at/other")
	// On a slow machine, the quota may still count the Pod of the other At when the At is due.
	slow := []string{v1alpha1.ReasonRehearsalRefused, v1alpha1.ReasonRehearsalUnschedulable} // for the other At, or the gate
	eventually(t, "the quota to be free", func(ctx context.Context) (bool, error) {
		quota, err := kubeClient.CoreV1().ResourceQuotas(namespace).Get(ctx, "quota", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		if time.Until(schedule(t, at)) < 10*time.Second {
			slow = append(slow, v1alpha1.ReasonPodRefused)
			return true, nil
		}
		return quota.Status.Used.Pods().IsZero(), nil
	})
	ran := waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
	judge(t, "started", ran.Status.StartTime.Sub(schedule(t, at)), 2*time.Second)
	waitEvents(t, at, map[string]int32{v1alpha1.ReasonSuccessfulCreate: 1}, slow...)
	if _, err := kubeClient.CoreV1().Pods(namespace).Get(t.Context(), "at-rehearsal", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the rehearsal: got %v, want none", err)
	}
}

func schedule(t *testing.T, at *v1alpha1.At) time.Time {
	t.Helper()
	instant, err := plan.Instant(&at.Spec)
	if err != nil {
		t.Fatal(err)
	}
	return instant
}

// waitRehearsed waits until the At named at has condition Rehearsed.
func waitRehearsed(t *testing.T, namespace string) metav1.Condition {
	t.Helper()
	var rehearsed *metav1.Condition
	waitAt(t, namespace, "at", "to be rehearsed", func(at *v1alpha1.At) bool {
		rehearsed = meta.FindStatusCondition(at.Status.Conditions, v1alpha1.ConditionRehearsed)
		return rehearsed != nil
	})
	return *rehearsed
}
