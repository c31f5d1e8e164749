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
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// setTemplate gives an At a template.
func setTemplate(at *v1alpha1.At, change func(*corev1.PodSpec)) {
	at.Spec.Template = &corev1.PodTemplateSpec{Spec: plan.NewPod(at, plan.Defaults{Image: "busybox:1.37.0"}).Spec}
	change(&at.Spec.Template.Spec)
}

// waitRefused waits until the API server refuses the Pod of an At that must not be
// created yet.
func waitRefused(t *testing.T, at *v1alpha1.At) {
	t.Helper()
	probe := at.DeepCopy()
	probe.UID = "probe"
	eventually(t, "the Pod to be refused", func(ctx context.Context) (bool, error) {
		_, err := kubeClient.CoreV1().Pods(at.Namespace).Create(ctx, plan.NewPod(probe, plan.Defaults{Image: "busybox:1.37.0"}), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		// A quota refuses any Pod until its status has been computed.
		return err != nil && !strings.Contains(err.Error(), "status unknown for quota"), nil
	})
}

// TestPreflight makes the API server refuse, in several ways, the Pod of an At that is due in
// an hour. The refusal is reported, with one event. At its time, another At is refused for the
// same reason. When the cause is gone, the At runs.
func TestPreflight(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		// refuse and fix are commands of kubectl that make the API server refuse the Pods of
		// NAMESPACE, and admit them again. change does so for the Pod of the At.
		refuse string
		change func(spec *corev1.PodSpec)
		fix    string
		// expectations
		reason, message string
	}{
		"quota": {
			refuse: "create quota quota --hard=pods=0", fix: "delete quota/quota",
			reason: v1alpha1.ReasonPodRefused, message: "exceeded quota: quota, requested: pods=1",
		},
		"Pod Security": {
			refuse: "label namespace/NAMESPACE pod-security.kubernetes.io/enforce=restricted", fix: "label --overwrite namespace/NAMESPACE pod-security.kubernetes.io/enforce=privileged",
			change: func(spec *corev1.PodSpec) { spec.HostNetwork = true },
			reason: v1alpha1.ReasonPodRefused, message: `violates PodSecurity "restricted:latest": host namespaces \(hostNetwork=true\)`,
		},
		"service account": {
			change: func(spec *corev1.PodSpec) { spec.ServiceAccountName = "late" }, fix: "create serviceaccount late",
			reason: v1alpha1.ReasonPodRefused, message: `serviceaccount "late" not found`,
		},
		"invalid field": {
			change: func(spec *corev1.PodSpec) {
				spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
			},
			fix:    `patch at/at --type=json -p [{"op":"remove","path":"/spec/template/spec/containers/0/volumeMounts"}]`,
			reason: v1alpha1.ReasonInvalidPod, message: `Pod "at-pod" is invalid: spec.containers\[0\].volumeMounts\[0\].name: Not found: "data"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			run := func(command string) {
				t.Helper()
				if command != "" {
					kubectl(t, "", append([]string{"-n", namespace}, strings.Fields(strings.ReplaceAll(command, "NAMESPACE", namespace))...)...)
				}
			}
			at := newAt(namespace, "at", time.Now().Add(time.Hour), "true")
			if tc.change != nil {
				setTemplate(at, tc.change)
			}
			run(tc.refuse)
			waitRefused(t, at)
			startController(t, namespace)
			at = createAt(t, at)
			wantOutput(t, waitBlocked(t, namespace, tc.reason).Message, `^If it were due now: create Pod: .*`+tc.message)
			waitEvents(t, at, map[string]int32{tc.reason: 1})

			due := newAt(namespace, "due", time.Now(), "")
			due.Spec.RunSpec = at.Spec.RunSpec
			createAt(t, due)
			refused := waitAt(t, namespace, "due", "to be refused", func(at *v1alpha1.At) bool { return at.Status.Reason == tc.reason })
			wantOutput(t, refused.Status.Message, `^create Pod: .*`+strings.ReplaceAll(tc.message, "at-pod", "due-pod"))
			kubectl(t, "", "delete", "-n", namespace, "at/due", "--timeout="+patience.String())

			run(tc.fix)
			runNow(t, namespace, "at")
			waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
			waitUnblocked(t, namespace)
			waitEvents(t, at, map[string]int32{tc.reason: 1, v1alpha1.ReasonSuccessfulCreate: 1})
			wantCreated(t, namespace, "pods", "at-pod")
		})
	}
}

// admitPods creates the quota named quota, and returns when it is in force.
func admitPods(t *testing.T, namespace string, number int) {
	t.Helper()
	kubectl(t, "", "create", "-n", namespace, "quota", "quota", fmt.Sprintf("--hard=pods=%d", number))
	waitObject(t, kubeClient.CoreV1().ResourceQuotas(namespace), "quota", "to be in force", func(quota *corev1.ResourceQuota) bool { return len(quota.Status.Hard) > 0 })
}

// TestRehearsalYields uses up a quota with a rehearsal that does not end. It ends when another At
// is due.
func TestRehearsalYields(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	admitPods(t, namespace, 1)
	at := newAt(namespace, "at", time.Now().Add(time.Hour), "true")
	setTemplate(at, func(spec *corev1.PodSpec) {
		spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}}
	})
	at.Spec.Rehearse = true
	createAt(t, at)
	waitPod(t, namespace, "at-rehearsal")
	createAt(t, newAt(namespace, "other", time.Now(), "true"))
	waitPhase(t, namespace, "other", v1alpha1.PhaseRunning)
	waitGone(t, namespace, "pods/at-rehearsal")
}
