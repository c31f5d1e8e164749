//go:build e2e

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
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// podFault keeps the containers of a Pod from starting, in a way that the API server does not
// see. In its texts, NAME is for what is missing, and NAMESPACE is that of the test.
type podFault struct {
	// pod and container are fields with the fault. A container without an image succeeds.
	pod, container string
	// prepare creates what the fault needs, and fix removes the fault: manifests, and arguments of
	// kubectl, or of localcluster load-image. Without fix, the fault stays.
	prepare, fix []string
	// slow means that the node retries so slowly that the test does not wait for it.
	slow bool
	// expectations
	reason, message string
}

const (
	mounted = "volumeMounts: [{name: data, mountPath: /data}]"
	ofClaim = "volumes: [{name: data, persistentVolumeClaim: {claimName: NAME}}]"

	claim  = `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: NAME}, spec: {storageClassName: "", accessModes: [ReadWriteOncePod], resources: {requests: {storage: 1Mi}}}}`
	volume = `{apiVersion: v1, kind: PersistentVolume, metadata: {name: NAME, labels: {test: podfaults}}, spec: {capacity: {storage: 1Mi}, accessModes: [ReadWriteOncePod],
		hostPath: {path: /tmp}, claimRef: {namespace: NAMESPACE, name: NAME}, nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [`
)

// podFaults have one or two of each row of the table in docs/tasks/rehearsal.md, and each reason.
var podFaults = map[string]podFault{
	"no image": {
		container: "image: localhost:1/none:1",
		reason:    "ImagePullFailed", message: `^Container main: (ErrImagePull|ImagePullBackOff): .*localhost:1/none:1`,
	},
	"no image yet": {
		container: `image: localhost/late:NAME, imagePullPolicy: Never, command: [/busybox, "true"]`, fix: []string{"load-image localhost/late:NAME=/bin/busybox"},
		reason: "ImagePullFailed", message: `^Container main: ErrImageNeverPull: `,
	},
	"no ConfigMap of the environment": {
		container: "envFrom: [{configMapRef: {name: NAME}}]", fix: []string{"create configmap NAME"},
		reason: "ContainerNotCreated", message: `^Container main: CreateContainerConfigError: configmap "NAME" not found`,
	},
	"no Secret of a volume": {
		pod: "volumes: [{name: data, secret: {secretName: NAME}}]", container: mounted, fix: []string{"create secret generic NAME"}, slow: true,
		reason: "VolumeNotMounted", message: `^Pod .*: FailedMount: MountVolume.SetUp failed for volume "data" : secret "NAME" not found`,
	},
	"no claim": {
		pod: ofClaim, container: mounted, fix: []string{volume + "localhost]}]}]}}}}", claim},
		reason: "Unschedulable", message: `^Pod .*: .*persistentvolumeclaim "NAME" not found`,
	},
	"a volume in another zone": {
		pod: ofClaim, container: mounted, prepare: []string{volume + "elsewhere]}]}]}}}}", claim},
		reason: "Unschedulable", message: `^Pod .*: .*PersistentVolume's node affinity`,
	},
	"tainted node": {
		pod: "nodeSelector: {tainted: NAME}",
		// By its name it is not the first node, which docs/tasks/every-node.md uses.
		prepare: []string{`{apiVersion: v1, kind: Node, metadata: {name: NAME, labels: {test: podfaults, tainted: NAME, type: virtual-kubelet}}, spec: {taints: [{key: example.com/reserved, effect: NoSchedule}]}}`},
		reason:  "Unschedulable", message: `^Pod .*: .*had untolerated taint`,
	},
	"not enough CPU": {
		container: "resources: {limits: {cpu: 1000}}",
		reason:    "Unschedulable", message: `^Pod .*: .*Insufficient cpu`,
	},
	"no such runtime": {
		pod:     "runtimeClassName: NAME",
		prepare: []string{"{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: NAME, labels: {test: podfaults}}, handler: none}"},
		reason:  "SandboxNotCreated", message: `^Pod .*: FailedCreatePodSandBox: .*no runtime for "none" is configured`,
	},
	"an image that runs as root": {
		container: "securityContext: {runAsNonRoot: true}",
		reason:    "ContainerNotCreated", message: `^Container main: CreateContainerConfigError: container has runAsNonRoot and image will run as root`,
	},
}

// TestPodDoesNotStart lets the Pods of Ats fail in each way: of one At at its time, and of another,
// which is due in an hour, in its rehearsal.
func TestPodDoesNotStart(t *testing.T) {
	t.Parallel()
	// After the namespace is deleted, whose claims use the volumes.
	cleanUp(t, "", "delete", "persistentvolumes,nodes,runtimeclasses", "-l", "test=podfaults", "--timeout="+patience.String())
	namespace := newNamespace(t)
	// Ats and objects are named after the fault, and images and objects of the cluster also
	// after the namespace, for a cluster in which this test has run before.
	nameOf := func(fault string) string { return dashes(strings.ToLower(fault)) + "-" + namespace[len(namespace)-5:] }
	in := func(text, fault string) string {
		return strings.NewReplacer("NAMESPACE", namespace, "NAME", nameOf(fault)).Replace(text)
	}
	run := func(fault string, steps []string) {
		t.Helper()
		for _, step := range steps {
			step = in(step, fault)
			image, isImage := strings.CutPrefix(step, "load-image ")
			switch {
			case isImage:
				loadImage(t, image)
			case strings.HasPrefix(step, "{"):
				kubectl(t, step, "create", "-n", namespace, "-f", "-")
			default:
				kubectl(t, "", append([]string{"-n", namespace}, strings.Fields(step)...)...)
			}
		}
	}
	for name, fault := range podFaults {
		run(name, fault.prepare)
	}
	for name, fault := range podFaults {
		if !strings.Contains(fault.container, "image:") {
			fault.container += `, image: busybox:1.37.0, command: ["true"]`
		}
		template := in(fmt.Sprintf("automountServiceAccountToken: false, containers: [{name: main, %s}], %s", strings.TrimPrefix(fault.container, ", "), fault.pod), name)
		for suffix, due := range map[string]time.Duration{"": 0, "-early": time.Hour} {
			kubectl(t, fmt.Sprintf("{apiVersion: %s, kind: At, metadata: {name: %s}, spec: {schedule: %q, rehearse: %t, template: {spec: {%s}}}}",
				v1alpha1.SchemeGroupVersion, nameOf(name)+suffix, time.Now().Add(due).UTC().Format(time.RFC3339), due > 0, template), "create", "-n", namespace, "-f", "-")
		}
	}
	for name, fault := range podFaults {
		message, early := in(fault.message, name), nameOf(name)+"-early"
		t.Run(name+", rehearsed", func(t *testing.T) {
			blocked := waitBlockedAt(t, namespace, early, fault.reason)
			wantOutput(t, blocked.Message, `^Rehearsed at 20\S+Z: `+strings.TrimPrefix(message, "^"))
			at := waitPhase(t, namespace, early, v1alpha1.PhasePending)
			rehearsed := meta.FindStatusCondition(at.Status.Conditions, v1alpha1.ConditionRehearsed)
			if rehearsed == nil || rehearsed.Status != metav1.ConditionFalse || rehearsed.Reason != fault.reason || rehearsed.Message != blocked.Message || at.Status.RehearsedAt == nil {
				t.Errorf("condition Rehearsed %+v, rehearsed at %v; want False with reason %s", rehearsed, at.Status.RehearsedAt, fault.reason)
			}
		})
		t.Run(name+", at its time", func(t *testing.T) {
			wantOutput(t, waitBlockedAt(t, namespace, nameOf(name), fault.reason).Message, message)
		})
	}

	for name, fault := range podFaults {
		run(name, fault.fix)
		patch := `{"spec":{"schedule":"2035-12-24T10:12:00Z"}}`
		if fault.fix == nil {
			patch = `{"spec":{"template":null,"command":"true"}}`
		}
		patchAt(t, namespace, nameOf(name)+"-early", patch)
	}
	for name, fault := range podFaults {
		t.Run(name+", fixed", func(t *testing.T) {
			waitFor(t, namespace, v1alpha1.ConditionRehearsed, "at/"+nameOf(name)+"-early")
			early := waitPhase(t, namespace, nameOf(name)+"-early", v1alpha1.PhasePending)
			if early.Status.Reason != "" || early.Status.Message != "" {
				t.Errorf("status %s: %s, want none", early.Status.Reason, early.Status.Message)
			}
			waitEvents(t, early, map[string]int32{fault.reason: 1})
			if fault.fix != nil && !fault.slow {
				due := waitPhase(t, namespace, nameOf(name), v1alpha1.PhaseDone)
				wantEnd(t, due, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
				waitEvents(t, due, map[string]int32{v1alpha1.ReasonSuccessfulCreate: 1, fault.reason: 1, v1alpha1.ReasonCompleted: 1})
			}
		})
	}
	waitGone(t, namespace, "pods -l "+v1alpha1.LabelRehearsalOf)
}
