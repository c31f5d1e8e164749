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
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// createNodes creates nodes, with the namespace before their names and as a label. They have no kubelet and no capacity, so
// that the scheduler does not interfere.
func createNodes(t *testing.T, namespace string, names ...string) {
	t.Helper()
	for _, name := range names {
		create(t, kubeClient.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: namespace + "-" + name, Labels: map[string]string{"nodes": namespace}}})
	}
	cleanUp(t, "", "delete", "nodes", "-l", "nodes="+namespace)
}

// newNodesAt returns a due At for the nodes of a namespace.
func newNodesAt(namespace string) *v1alpha1.At {
	at := newAt(namespace, "at", time.Now(), "true")
	at.Spec.Nodes = &v1alpha1.AtNodes{Selector: metav1.LabelSelector{MatchLabels: map[string]string{"nodes": namespace}}}
	return at
}

// TestNodesSecret has a user who may write Ats and Pods in a namespace whose quota admits no
// Pod. Whatever the Ats ask for, the user learns neither which nodes there are nor how many.
func TestNodesSecret(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	createNodes(t, namespace, "a", "secret")
	admitPods(t, namespace, 0)
	user := bindRole(t, namespace, "tenant", "get,list ats; get,list pods,events")
	startController(t, namespace)

	runs := map[string]string{
		"some":    "nodes: {selector: {matchLabels: {nodes: " + namespace + "}}}",
		"none":    "nodes: {selector: {matchLabels: {nodes: none}}}",
		"there":   "node: " + namespace + "-a",
		"nowhere": "node: " + namespace + "-b",
	}
	var manifests strings.Builder
	for name, run := range runs {
		for suffix, due := range map[string]time.Duration{"-now": 0, "-later": time.Hour} {
			fmt.Fprintf(&manifests, "---\n{kind: At, apiVersion: %s, metadata: {name: %s}, spec: {schedule: %q, command: \"true\", %s}}\n",
				v1alpha1.SchemeGroupVersion, name+suffix, time.Now().Add(due).UTC().Format(time.RFC3339), run)
		}
	}
	kubectl(t, manifests.String(), "create", "-n", namespace, "-f", "-")
	refusal := regexp.MustCompile(`^(If it were due now: )?create Pod: pods "\S+" is forbidden: exceeded quota: quota, requested: pods=1, used: pods=0, limited: pods=0$`)
	for name := range runs {
		for _, suffix := range []string{"-now", "-later"} {
			waitBlockedAt(t, namespace, name+suffix, v1alpha1.ReasonPodRefused)
		}
	}
	ats, err := cnatClient.CnatV1alpha1().Ats(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range ats.Items {
		if at.Status.Phase != v1alpha1.PhasePending || at.Status.Nodes != nil || at.Status.Message != "" && !refusal.MatchString(at.Status.Message) {
			t.Errorf("At %s tells %+v", at.Name, at.Status)
		}
	}
	seen := kubectl(t, "", "get", "ats,pods,events", "--as="+user, "-n", namespace, "-o", "json")
	for _, secret := range []string{namespace + "-secret", v1alpha1.ReasonNoNodes, v1alpha1.ReasonNodeGone, v1alpha1.ReasonNodesForbidden, "No node matches", "does not exist"} {
		if strings.Contains(seen, secret) {
			t.Errorf("the user sees %q", secret)
		}
	}
}
