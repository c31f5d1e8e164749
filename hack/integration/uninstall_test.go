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
	"maps"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestUninstall uninstalls the controller in the ways that TestReadme and TestHelm do not have, with a single
// command, while Pods are running, have just ended, and are being created. No Pod, At or
// namespace of a user stays behind, and nothing of the cluster.
func TestUninstall(t *testing.T) {
	if !inOwnCluster(t, "--node") {
		return
	}
	buildImage(t)
	kubectl(t, "", "delete", "--ignore-not-found", "-f", crd)
	t.Run("not installed yet", testKubectlAtNotInstalled)
	const manifest = root + "/artifacts/install.yaml"
	withRestarts := kustomization(t)
	for _, way := range []struct {
		name      string
		install   []string
		uninstall []string
		// after removes what the way leaves on purpose.
		after []string
	}{
		{
			name:      "kustomize",
			install:   []string{"apply", "-k", withRestarts},
			uninstall: []string{"delete", "--ignore-not-found", "-k", withRestarts},
		},
		{
			name:      "namespace",
			install:   []string{"apply", "-f", manifest},
			uninstall: []string{"delete", "namespace/" + systemNamespace},
			after:     []string{"delete", "--ignore-not-found", "-f", manifest},
		},
	} {
		ok := t.Run(way.name, func(t *testing.T) {
			asBefore := remember(t)
			kubectl(t, "", way.install...)
			waitRollout(t, systemNamespace, "deployment/cnat-controller")
			namespace := newNamespace(t)
			busy(t, namespace)
			kubectl(t, "", way.uninstall...)

			// This would wait for ever for a Pod or an At that has kept its finalizer.
			kubectl(t, "", "delete", "namespace", namespace)
			if way.after != nil {
				kubectl(t, "", way.after...)
			}
			asBefore()
		})
		if !ok {
			return // The next way would find what this one has left.
		}
	}
}

// remember returns a function that waits until the cluster has no other objects than now,
// besides those in namespaces.
func remember(t *testing.T) (asBefore func()) {
	t.Helper()
	before, err := clusterObjects(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		eventually(t, "the cluster to be as before", func(ctx context.Context) (bool, error) {
			after, err := clusterObjects(ctx)
			maps.DeleteFunc(after, func(object string, _ bool) bool { return before[object] })
			if len(after) > 0 {
				t.Logf("there is left: %v", slices.Sorted(maps.Keys(after)))
			}
			return err == nil && len(after) == 0, err
		})
	}
}

// busy returns when a namespace has Pods and Ats with finalizers in every state.
func busy(t *testing.T, namespace string) {
	t.Helper()
	const sleep = "trap 'exit 0' TERM; sleep 3600 & wait"
	createAt(t, newAt(namespace, "running", time.Now(), sleep))
	nodes := newAt(namespace, "nodes", time.Now(), sleep)
	nodes.Spec.Nodes = &v1alpha1.AtNodes{Selector: metav1.LabelSelector{}}
	createAt(t, nodes)
	cronAt := &v1alpha1.CronAt{
		ObjectMeta: metav1.ObjectMeta{Name: "cronat"},
		Spec: v1alpha1.CronAtSpec{
			Schedule:          "* * * * *",
			ConcurrencyPolicy: v1alpha1.ForbidConcurrent, // A slow node would have a hundred Pods.
			AtTemplate:        v1alpha1.AtTemplateSpec{Spec: v1alpha1.RunSpec{Command: "true"}},
		},
	}
	if _, err := cnatClient.CnatV1alpha1().CronAts(namespace).Create(t.Context(), cronAt, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitPhase(t, namespace, "running", v1alpha1.PhaseRunning)
	eventually(t, "the At of a node to run", func(ctx context.Context) (bool, error) {
		ats, err := cnatClient.CnatV1alpha1().Ats(namespace).List(ctx, metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(ats.Items, func(at v1alpha1.At) bool {
			return at.Spec.Node != "" && at.Status.Phase == v1alpha1.PhaseRunning
		}), err
	})
	createAt(t, newAt(namespace, "ended", time.Now(), "true"))
	waitPhase(t, namespace, "ended", v1alpha1.PhaseDone)
	for _, name := range []string{"new-1", "new-2", "new-3"} {
		createAt(t, newAt(namespace, name, time.Now(), sleep))
	}
	eventually(t, "a new Pod", func(ctx context.Context) (bool, error) {
		_, err := kubeClient.CoreV1().Pods(namespace).Get(ctx, "new-1-pod", metav1.GetOptions{})
		return err == nil, ignoreNotFound(err)
	})
}
