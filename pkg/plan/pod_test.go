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
	"math"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

func TestPodName(t *testing.T) {
	a57, a59, a60 := strings.Repeat("a", 57), strings.Repeat("a", 59), strings.Repeat("a", 60)
	for name, tc := range map[string]struct {
		at     string
		failed int32
		want   string
	}{
		"the book's":                          {"example-at", 0, "example-at-pod"},
		"the second attempt":                  {"example-at", 1, "example-at-pod-1"},
		"the last possible attempt":           {"example-at", math.MaxInt32, "example-at-pod-2147483647"},
		"the longest that fits":               {a59, 0, a59 + "-pod"},
		"the longest that fits with a number": {a57, 9, a57 + "-pod-9"},
		"the shortest that does not fit":      {a60, 0, strings.Repeat("a", 48) + "-11ee391211-pod"},
		"one that does not fit with a number": {a57, 10, strings.Repeat("a", 45) + "-f13b2d7246-pod-10"},
		"cut at a dot":                        {strings.Repeat("a", 46) + ".-b" + a60, 0, strings.Repeat("a", 46) + "-ab23ae99ff-pod"},
	} {
		t.Run(name, func(t *testing.T) {
			got := NameOfPod(tc.at, tc.failed)
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if errs := validation.IsDNS1123Label(got); len(errs) > 0 {
				t.Errorf("%q is not a host name: %v", got, errs)
			}
		})
	}
	if a, b := NameOfPod(strings.Repeat("a", 252)+"b", 0), NameOfPod(strings.Repeat("a", 253), 0); a == b {
		t.Errorf("two Ats have the same Pod name: %s", a)
	}
}

func TestNewPod(t *testing.T) {
	at := newAt(func(at *v1alpha1.At) { at.Spec.Command = `echo "$HOME" | wc -c; echo $$ $(date)` })
	want := parse[corev1.Pod](`
metadata:
  name: example-at-pod
  namespace: default
  labels:
    cnat.programming-kubernetes.info/at-uid: at-uid
    cnat.programming-kubernetes.info/at-name: example-at
  annotations:
    cnat.programming-kubernetes.info/scheduled-time: "2026-12-24T10:12:00Z"
    cnat.programming-kubernetes.info/at-generation: "2"
    cnat.programming-kubernetes.info/at-name: example-at
    kubectl.kubernetes.io/default-container: command
  finalizers: [cnat.programming-kubernetes.info/tracking]
  ownerReferences:
  - {apiVersion: cnat.programming-kubernetes.info/v1alpha1, kind: At, name: example-at, uid: at-uid, controller: true, blockOwnerDeletion: true}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  enableServiceLinks: false
  securityContext: {runAsNonRoot: true, runAsUser: 65534, runAsGroup: 65534, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: command
    image: image
    command: [/bin/sh, -c, 'echo "$$HOME" | wc -c; echo $$$$ $$(date)']
    terminationMessagePolicy: FallbackToLogsOnError
    resources: {limits: {memory: 64Mi}}
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
`)
	expect(t, "NewPod", want, NewPod(at, Defaults{Image: "image", Resources: want.Spec.Containers[0].Resources}))

	at.Name = strings.Repeat("a", 64)
	if labels := NewPod(at, Defaults{Image: "image"}).Labels; len(labels) != 1 {
		t.Errorf("a name that is not a valid label value became a label: %v", labels)
	}
}

// TestNewPodFromTemplate covers what becomes of the spec of a template. The default resources and
// the default image are not for templates.
func TestNewPodFromTemplate(t *testing.T) {
	for name, tc := range map[string]struct {
		command, node string
		retries       int32
		given, want   string
	}{
		"only what is omitted is set": {
			retries: 1,
			given:   `{serviceAccountName: runner, initContainers: [{name: init}], containers: [{name: a, command: [a], args: [$(HOME)]}, {name: b, terminationMessagePolicy: File}]}`,
			want: `{serviceAccountName: runner, initContainers: [{name: init, terminationMessagePolicy: FallbackToLogsOnError}], restartPolicy: Never,
				containers: [{name: a, command: [a], args: [$(HOME)], terminationMessagePolicy: FallbackToLogsOnError}, {name: b, terminationMessagePolicy: File}]}`,
		},
		"a command replaces that of the first container": {
			command: "echo $HOME",
			given:   `{containers: [{name: a, command: [a], args: [$(HOME)]}, {name: b, command: [b]}]}`,
			want: `{restartPolicy: Never, containers: [{name: a, command: [/bin/sh, -c, echo $$HOME], terminationMessagePolicy: FallbackToLogsOnError},
				{name: b, command: [b], terminationMessagePolicy: FallbackToLogsOnError}]}`,
		},
		"with retries, its node may restart it": {
			retries: 1,
			given:   `{restartPolicy: OnFailure, containers: [{restartPolicy: Never, restartPolicyRules: [{action: Restart}], terminationMessagePolicy: File}]}`,
			want:    `{restartPolicy: OnFailure, containers: [{restartPolicy: Never, restartPolicyRules: [{action: Restart}], terminationMessagePolicy: File}]}`,
		},
		"without retries, only sidecars are restarted": {
			given: `{restartPolicy: OnFailure, containers: [{restartPolicy: Never, restartPolicyRules: [{action: Restart}], terminationMessagePolicy: File}],
				initContainers: [{restartPolicy: Always, restartPolicyRules: [{action: Restart}], terminationMessagePolicy: File}, {restartPolicy: OnFailure, terminationMessagePolicy: File}]}`,
			want: `{restartPolicy: Never, containers: [{terminationMessagePolicy: File}],
				initContainers: [{restartPolicy: Always, terminationMessagePolicy: File}, {terminationMessagePolicy: File}]}`,
		},
		"each container knows its node": {
			node: "n1",
			given: `{containers: [{env: [{name: A, value: $(NODE_NAME)}], terminationMessagePolicy: File}, {env: [{name: A}, {name: NODE_NAME, value: own}], terminationMessagePolicy: File}],
				initContainers: [{terminationMessagePolicy: File}]}`,
			want: `{restartPolicy: Never, initContainers: [{env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}], terminationMessagePolicy: File}],
				containers: [{env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}, {name: A, value: $(NODE_NAME)}], terminationMessagePolicy: File},
					{env: [{name: A}, {name: NODE_NAME, value: own}], terminationMessagePolicy: File}],
				affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [n1]}]}]}}}}`,
		},
		"each term of its affinity, except one that matches no node": {
			node: "n1",
			given: `{containers: [{env: [{name: NODE_NAME}], terminationMessagePolicy: File}], affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution:
				{nodeSelectorTerms: [{matchExpressions: [{key: gpu, operator: Exists}]}, {}, {matchFields: [{key: metadata.name, operator: In, values: [n2]}]}]}}}}`,
			want: `{restartPolicy: Never, containers: [{env: [{name: NODE_NAME}], terminationMessagePolicy: File}], affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution:
				{nodeSelectorTerms: [{matchExpressions: [{key: gpu, operator: Exists}], matchFields: [{key: metadata.name, operator: In, values: [n1]}]}, {},
					{matchFields: [{key: metadata.name, operator: In, values: [n2]}, {key: metadata.name, operator: In, values: [n1]}]}]}}}}`,
		},
	} {
		at := newAt(withBackoffLimit(tc.retries))
		at.Spec.Command, at.Spec.Node, at.Spec.Template = tc.command, tc.node, &corev1.PodTemplateSpec{Spec: *parse[corev1.PodSpec](tc.given)}
		before := at.DeepCopy()
		defaults := Defaults{Image: "image", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}}}
		expect(t, name, *parse[corev1.PodSpec](tc.want), NewPod(at, defaults).Spec)
		expect(t, name+": the At itself", before, at)
	}
}

// TestReservedMetadata checks that a template can have labels and annotations, but not those of
// the controller.
func TestReservedMetadata(t *testing.T) {
	at := newAt()
	at.Spec.Template = parse[corev1.PodTemplateSpec](`
metadata:
  labels: {app: backup, cnat.programming-kubernetes.info/at-uid: mine, cnat.programming-kubernetes.info/at-name: mine}
  annotations: {note: night, cnat.programming-kubernetes.info/scheduled-time: never, kubectl.kubernetes.io/default-container: second}
spec: {containers: [{name: first}, {name: second}]}
`)
	own, got := NewPod(newAt(), Defaults{}), NewPod(at, Defaults{})
	own.Labels["app"], own.Annotations["note"], own.Annotations[DefaultContainer] = "backup", "night", "second"
	expect(t, "labels", own.Labels, got.Labels)
	expect(t, "annotations", own.Annotations, got.Annotations)
}
