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
	"cmp"
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// judge checks how long something took. The limit only applies where tests with time
// limits run.
func judge(t *testing.T, what string, took, limit time.Duration) {
	t.Helper()
	t.Logf("%s after %v", what, took)
	if *soakTrials > 1 && took > limit {
		t.Errorf("%s after %v, want at most %v", what, took, limit)
	}
}

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

// TestPreflight makes the API server refuse, in each way, the Pod of an At that is due in
// an hour. The refusal is reported, with one event. At its time, another At is refused for the
// same reason. When the cause is gone, the At runs.
func TestPreflight(t *testing.T) {
	t.Parallel()
	const policy = `
{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: NAMESPACE}, spec: {
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE]}]}, validations: [{expression: "false", message: no Pods here}]}}
---
{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicyBinding, metadata: {name: NAMESPACE}, spec: {
  policyName: NAMESPACE, validationActions: [Deny], matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAMESPACE}}}}}`
	for name, tc := range map[string]struct {
		// refuse and fix are commands of kubectl that make the API server refuse the Pods of
		// NAMESPACE, and admit them again. change does so for the Pod of the At.
		refuse, input string
		change        func(spec *corev1.PodSpec, namespace string)
		fix, cleanUp  string
		// expectations
		reason, message string
	}{
		"quota": {
			refuse: "create quota quota --hard=pods=0", fix: "delete quota/quota",
			message: "exceeded quota: quota, requested: pods=1",
		},
		"Pod Security": {
			refuse: "label namespace/NAMESPACE pod-security.kubernetes.io/enforce=restricted", fix: "label --overwrite namespace/NAMESPACE pod-security.kubernetes.io/enforce=privileged",
			change:  func(spec *corev1.PodSpec, _ string) { spec.HostNetwork = true },
			message: `violates PodSecurity "restricted:latest": host namespaces \(hostNetwork=true\)`,
		},
		"service account": {
			change: func(spec *corev1.PodSpec, _ string) { spec.ServiceAccountName = "late" }, fix: "create serviceaccount late",
			message: `serviceaccount "late" not found`,
		},
		"priority class": {
			change: func(spec *corev1.PodSpec, namespace string) { spec.PriorityClassName = namespace },
			fix:    "create priorityclass NAMESPACE --value=1", cleanUp: "delete priorityclass/NAMESPACE",
			message: "no PriorityClass with name",
		},
		"invalid field": {
			change: func(spec *corev1.PodSpec, _ string) {
				spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
			},
			fix:    `patch at/at --type=json -p [{"op":"remove","path":"/spec/template/spec/containers/0/volumeMounts"}]`,
			reason: v1alpha1.ReasonInvalidPod, message: `Pod "at-pod" is invalid: spec.containers\[0\].volumeMounts\[0\].name: Not found: "data"`,
		},
		"policy": {
			refuse: "apply -f -", input: policy, fix: "delete validatingadmissionpolicybinding/NAMESPACE", cleanUp: "delete validatingadmissionpolicy/NAMESPACE",
			message: `ValidatingAdmissionPolicy '.*' with binding '.*' denied request: no Pods here`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			in := strings.NewReplacer("NAMESPACE", namespace)
			run := func(command, input string) {
				t.Helper()
				kubectl(t, in.Replace(input), append([]string{"-n", namespace}, strings.Fields(in.Replace(command))...)...)
			}
			at := newAt(namespace, "at", time.Now().Add(time.Hour), "true")
			if tc.change != nil {
				setTemplate(at, func(spec *corev1.PodSpec) { tc.change(spec, namespace) })
			}
			if tc.refuse != "" {
				run(tc.refuse, tc.input)
			}
			if tc.cleanUp != "" {
				t.Cleanup(func() {
					if out, err := runKubectl(context.Background(), "", strings.Fields(in.Replace(tc.cleanUp))...); err != nil {
						t.Errorf("%v: %s", err, out)
					}
				})
			}
			waitRefused(t, at)
			waitLog(t, startController(t, namespace), "Starting controller")

			reason := cmp.Or(tc.reason, v1alpha1.ReasonPodRefused)
			at = createAt(t, at)
			blocked := waitBlocked(t, namespace, reason)
			// API times have no fractions of a second.
			judge(t, "reported", blocked.LastTransitionTime.Sub(at.CreationTimestamp.Time), 3*time.Second)
			wantOutput(t, blocked.Message, `^If it were due now: create Pod: .*`+tc.message)
			waitEvents(t, at, map[string]int32{reason: 1})

			due := newAt(namespace, "due", time.Now(), "")
			due.Spec.RunSpec = at.Spec.RunSpec
			createAt(t, due)
			refused := waitAt(t, namespace, "due", "to be refused", func(at *v1alpha1.At) bool { return at.Status.Reason == reason })
			wantOutput(t, refused.Status.Message, `^create Pod: .*`+strings.ReplaceAll(tc.message, "at-pod", "due-pod"))
			kubectl(t, "", "delete", "-n", namespace, "at/due", "--timeout="+patience.String())

			run(tc.fix, "")
			fixed := time.Now()
			if *soakTrials > 1 {
				waitUnblocked(t, namespace)
				judge(t, "removed", time.Since(fixed), time.Minute)
			}
			runNow(t, namespace, "at")
			waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
			waitUnblocked(t, namespace)
			waitEvents(t, at, map[string]int32{reason: 1, v1alpha1.ReasonSuccessfulCreate: 1})
			wantCreates(t, namespace, 1)
		})
	}
}

// TestRehearsalYields uses up a quota with a rehearsal that does not end. It ends when another At
// is due, and says so.
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
	other := waitPhase(t, namespace, "other", v1alpha1.PhaseRunning)
	var rehearsed *metav1.Condition
	waitAt(t, namespace, "at", "to be rehearsed", func(at *v1alpha1.At) bool {
		rehearsed = meta.FindStatusCondition(at.Status.Conditions, v1alpha1.ConditionRehearsed)
		return rehearsed != nil
	})
	// Otherwise nothing had removed the gate for a minute.
	isSoon := other.Status.StartTime.Sub(other.CreationTimestamp.Time) < 20*time.Second
	if isSoon && rehearsed.Reason != v1alpha1.ReasonRehearsalRefused {
		t.Errorf("condition %+v, want RehearsalRefused", rehearsed)
	}
}
