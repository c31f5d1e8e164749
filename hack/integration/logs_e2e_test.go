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
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestKubectlAtLogs prints the output of containers other than the one that runs the command.
func TestKubectlAtLogs(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t)}
	startController(t, k.namespace)
	shell := func(name, command string) corev1.Container {
		return corev1.Container{Name: name, Image: "busybox:1.37.0", Command: []string{"sh", "-c", command}}
	}
	create := func(name string, template corev1.PodSpec) {
		at := newAt(k.namespace, name, time.Now(), "")
		at.Spec.BackoffLimit, at.Spec.Template = ptr.To[int32](0), &corev1.PodTemplateSpec{Spec: template}
		if template.RestartPolicy == corev1.RestartPolicyOnFailure {
			at.Spec.BackoffLimit = ptr.To[int32](9)
		}
		createAt(t, at)
	}
	create("init", corev1.PodSpec{InitContainers: []corev1.Container{shell("fetch", "echo no such host; exit 3")}, Containers: []corev1.Container{shell("main", "true")}})
	create("two", corev1.PodSpec{Containers: []corev1.Container{shell("main", "echo main"), shell("other", "echo other")}})
	create("restarts", corev1.PodSpec{RestartPolicy: corev1.RestartPolicyOnFailure, Containers: []corev1.Container{shell("main", "echo try; exit 1")}})

	waitPhase(t, k.namespace, "init", v1alpha1.PhaseDone)
	const fetch = `pod/init-pod: the command has not started\. This is the output of container fetch, which ended with exit code 3\n`
	k.run(t, "logs", "init").want(t, 0, "no such host\n", fetch)
	k.run(t, "logs", "init", "-f").want(t, 3, "no such host\n", fetch+`error: at/init failed: [^\n]*\n`)

	waitPhase(t, k.namespace, "two", v1alpha1.PhaseDone)
	k.run(t, "logs", "two").want(t, 0, "main\n", "")
	k.run(t, "logs", "two", "-c", "other").want(t, 0, "other\n", "")
	k.run(t, "logs", "two", "-c", "none").want(t, 1, "", `error: read the log of Pod two-pod: it has no container "none": choose one of main, other\n`)

	wantOutput(t, waitBlockedAt(t, k.namespace, "restarts", v1alpha1.ReasonContainerRestarting).Message,
		"of 10 failed, and the node restarts container main in Pod restarts-pod: The command ended with exit code 1. Message: try")
	eventually(t, "the command to wait for its restart", func(ctx context.Context) (bool, error) {
		pod, err := kubeClient.CoreV1().Pods(k.namespace).Get(ctx, "restarts-pod", metav1.GetOptions{})
		if err != nil || len(pod.Status.ContainerStatuses) == 0 {
			return false, ignoreNotFound(err)
		}
		status := pod.Status.ContainerStatuses[0]
		return status.RestartCount >= 1 && status.State.Running == nil, nil
	})
	// The node may take a minute to report that the container waits.
	k.run(t, "logs", "restarts").want(t, 0, "try\n", `(pod/restarts-pod: this is the output of container main, which ended with exit code 1( and will start again)?\n)?`)
}
