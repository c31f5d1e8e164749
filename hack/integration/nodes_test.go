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
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// fleet is a set of nodes of a test with simulated kubelets. They have no capacity, so
// that the scheduler does not interfere, and a label with the test's namespace.
type fleet struct{ namespace string }

// startFleet creates the nodes with the given short names, and simulates their kubelets.
func startFleet(t *testing.T, namespace string, names ...string) *fleet {
	t.Helper()
	f := newFleet(t, namespace, names...)
	playPods(t, namespace, metav1.ListOptions{LabelSelector: v1alpha1.LabelAtUID}, playNode)
	return f
}

// newFleet creates the nodes with the given short names.
func newFleet(t *testing.T, namespace string, names ...string) *fleet {
	t.Helper()
	f := &fleet{namespace}
	for _, name := range names {
		f.add(t, name)
	}
	t.Cleanup(func() {
		err := kubeClient.CoreV1().Nodes().DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "fleet=" + namespace})
		if err != nil {
			t.Error(err)
		}
	})
	return f
}

// name returns the full name of a node: nodes are cluster-scoped, and tests run at the
// same time.
func (f *fleet) name(short string) string { return f.namespace + "-" + short }

func (f *fleet) add(t *testing.T, short string) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.name(short), Labels: map[string]string{"fleet": f.namespace}}}
	if _, err := kubeClient.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// playNode takes the next step of a scheduler and a kubelet with a Pod.
func playNode(ctx context.Context, pod *corev1.Pod) {
	pods := kubeClient.CoreV1().Pods(pod.Namespace)
	switch {
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		if pod.DeletionTimestamp != nil && *pod.DeletionGracePeriodSeconds > 0 {
			_ = pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		}
	case pod.Spec.NodeName == "":
		_ = pods.Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, UID: pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: pod.Annotations[v1alpha1.AnnotationNode]},
		}, metav1.CreateOptions{})
	default:
		pod.Status.Phase, pod.Status.ContainerStatuses = corev1.PodSucceeded, exited(pod, 0)
		_, _ = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	}
}

// newNodesAt returns a due At for all nodes of a fleet.
func newNodesAt(f *fleet) *v1alpha1.At {
	at := newAt(f.namespace, "at", time.Now(), "true")
	at.Spec.Nodes = &v1alpha1.AtNodes{Selector: metav1.LabelSelector{MatchLabels: map[string]string{"fleet": f.namespace}}}
	return at
}

// wantCreated checks that exactly the given Pods were created in a namespace.
func wantCreated(t *testing.T, namespace string, want ...string) {
	t.Helper()
	var got []string
	for _, creation := range creations(t, namespace) {
		got = append(got, creation.ObjectRef.Name)
	}
	slices.Sort(got)
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("Pods were created %v, want %v", got, want)
	}
}

// TestNodesSecret has a user who may write Ats and Pods in a namespace whose quota admits no
// Pod. Whatever the Ats ask for, the user learns neither which nodes there are nor how many.
func TestNodesSecret(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	f := startFleet(t, namespace, "a", "secret")
	admitPods(t, namespace, 0)
	user := bindRole(t, namespace, "tenant", "get,list ats; get,list pods,events")
	startController(t, namespace)

	runs := map[string]string{
		"some":    "nodes: {selector: {matchLabels: {fleet: " + namespace + "}}}",
		"none":    "nodes: {selector: {matchLabels: {fleet: none}}}",
		"there":   "node: " + f.name("a"),
		"nowhere": "node: " + f.name("b"),
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
	for _, secret := range []string{f.name("secret"), v1alpha1.ReasonNoNodes, v1alpha1.ReasonNodeGone, v1alpha1.ReasonNodesForbidden, "No node matches", "does not exist"} {
		if strings.Contains(seen, secret) {
			t.Errorf("the user sees %q", secret)
		}
	}

	// Who may run a Pod learns all that.
	kubectl(t, "", "delete", "-n", namespace, "quota/quota")
	for name, want := range map[string]string{"some": v1alpha1.ReasonCompleted, "none": v1alpha1.ReasonNoNodes, "there": v1alpha1.ReasonCompleted, "nowhere": v1alpha1.ReasonNodeGone} {
		if at := waitPhase(t, namespace, name+"-now", v1alpha1.PhaseDone); at.Status.Reason != want {
			t.Errorf("At %s ended as %s: %s, want %s", at.Name, at.Status.Reason, at.Status.Message, want)
		}
	}
}
