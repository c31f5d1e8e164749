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
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

const policies = deploy + "/policy"

// Tests that have their own cluster install cnat themselves.
func init() {
	installs, beforeAll, afterAll = ownCluster, installAsReadme, wantNoCrash
	sharedLog = func() string {
		out, err := runKubectl(context.Background(), "", "logs", "-n", systemNamespace, "--tail=-1", "--selector=app.kubernetes.io/name=cnat-controller")
		return fmt.Sprint(out, err)
	}
	// Without the race detector, nothing needs cgo, and most packages have been compiled.
	_ = os.Setenv("CGO_ENABLED", "0")
}

// wantNoCrash returns an error if a controller has ended for another reason than a lost lease.
func wantNoCrash() error {
	pods, err := kubeClient.CoreV1().Pods(systemNamespace).List(context.Background(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=cnat-controller"})
	if err != nil {
		return err
	}
	for _, pod := range pods.Items {
		if len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].RestartCount == 0 {
			continue
		}
		if log, err := runKubectl(context.Background(), "", "logs", "-n", systemNamespace, "--previous", pod.Name); !strings.Contains(log, "lost the lease") {
			return errors.Join(fmt.Errorf("the controller was restarted, and its log says:\n%s", log), err)
		}
	}
	return nil
}

// TestInCluster installs the controller with its manifests in a namespace that enforces
// the level restricted, has it run Ats as its service account while the leader is
// removed, and deletes its namespace while Pods are running, have just ended, and are being created. The
// same with the variant for one namespace.
func TestInCluster(t *testing.T) {
	if !inOwnCluster(t, "--node") {
		return
	}
	loadImage(t, imageArchive())
	before, err := clusterObjects(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	logFailure(t, systemNamespace)

	// The order of the files does not matter: the controller waits for the CRD and is not
	// ready before, and the policies refuse nothing that is installed.
	kubectl(t, "", "apply", "-f", deploy, "-f", policies)
	eventually(t, "the log to say that the CRD is missing", func(context.Context) (bool, error) {
		out, _ := tryKubectl(t, "", "logs", "-n", systemNamespace, "deployment/cnat-controller")
		return strings.Contains(out, "Ats cannot be listed"), nil
	})
	if ready := kubectl(t, "", "get", "-n", systemNamespace, "deployment/cnat-controller", "-o", "jsonpath={.status.readyReplicas}"); ready != "" {
		t.Errorf("%s are ready without the CRD", ready)
	}
	kubectl(t, "", "apply", "-f", crd)
	waitRollout(t, systemNamespace, "deployment/cnat-controller")

	namespace := newNamespace(t)
	runs := func(name string) {
		t.Helper()
		createAt(t, newAt(namespace, name, time.Now(), "echo YAY"))
		waitFor(t, namespace, "Complete", "at/"+name)
		if got := kubectl(t, "", "logs", "-n", namespace, name+"-pod"); got != "YAY\n" {
			t.Errorf("the log says %q, want YAY", got)
		}
	}
	// The request may be refused for half a minute, until the API server's admission plugin
	// knows a new CRD.
	runs("first")
	wantOutput(t, kubectl(t, "", "get", "--raw", "/metrics"), `apiserver_flowcontrol_dispatched_requests_total\{flow_schema="cnat-leader-election",priority_level="leader-election"\} [1-9]`)
	first := leader(t, systemNamespace)
	kubectl(t, "", "delete", "-n", systemNamespace, "--ignore-not-found", "--wait=false", "pod/"+first)
	waitOtherLeader(t, systemNamespace, first)
	runs("second")

	// An administrator installs the permissions for restarts separately.
	kubectl(t, "", "create", "deployment", "web", "-n", namespace, "--image=busybox:1.37.0", "--", "sh", "-c", untilStopped)
	waitRollout(t, namespace, "deployment/web")
	createAt(t, newRestart(namespace, v1alpha1.RestartDeployment))
	blocked := waitBlocked(t, namespace, v1alpha1.ReasonRestartForbidden)
	wantOutput(t, blocked.Message, `User "system:serviceaccount:cnat-system:cnat-controller" cannot get resource "deployments"`, `the verbs get and patch, as artifacts/restarts/rbac\.yaml`)
	kubectl(t, "", "apply", "-f", restarts)
	waitFor(t, namespace, "Complete", "at/at")

	// TestOutside and TestHelm uninstall it in other ways.
	busy(t, namespace)
	kubectl(t, "", "delete", "namespace", systemNamespace)
	// This would wait for ever for a Pod or an At that has kept its finalizer.
	kubectl(t, "", "delete", "namespace", namespace)
	tryNamespaced(t)
	kubectl(t, "", "delete", "--ignore-not-found", "-f", restarts, "-f", deploy, "-f", policies, "-f", crd)
	if err := nothingLeft(t.Context(), before); err != nil {
		t.Error(err)
	}
}

// leader returns the name of the controller that leads in a namespace.
func leader(t *testing.T, namespace string) string {
	t.Helper()
	return kubectl(t, "", "get", "-n", namespace, "lease/cnat-controller", "-o", "jsonpath={.spec.holderIdentity}")
}

// waitOtherLeader waits until another controller leads than the first one.
func waitOtherLeader(t *testing.T, namespace, first string) {
	t.Helper()
	eventually(t, "another to lead", func(context.Context) (bool, error) {
		holder := leader(t, namespace)
		return holder != "" && holder != first, nil
	})
}

// logFailure logs what the controllers in a namespace have to say if the test fails.
func logFailure(t *testing.T, namespace string) {
	t.Helper()
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, command := range []string{"describe pods", "logs --prefix --tail=50 --selector=app.kubernetes.io/name=cnat-controller"} {
			out, err := runKubectl(context.Background(), "", append(strings.Fields(command), "-n", namespace)...)
			t.Logf("kubectl %s: %v\n%s", command, err, out)
		}
	})
}

// tryNamespaced installs the variant that only works in one namespace, without permissions
// elsewhere, at the level restricted. Then it deletes that namespace while a command runs.
func tryNamespaced(t *testing.T) {
	t.Helper()
	home, namespace, other := newNamespace(t), newNamespace(t), newNamespace(t)
	for _, name := range []string{home, namespace} {
		kubectl(t, "", "label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
	}
	dir := filepath.Join(artifactsWith(t, ""), "artifacts/namespaced")
	for file, edit := range map[string][2]string{
		"kustomization.yaml": {"namespace: cnat-default\n", "namespace: " + home + "\n"},
		"settings.yaml":      {"namespace: default\n", "namespace: " + namespace + "\n"},
	} {
		content, err := os.ReadFile(filepath.Join(dir, file))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), []byte(strings.ReplaceAll(string(content), edit[0], edit[1])), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	kubectl(t, "", "apply", "-k", dir)
	waitRollout(t, home, "deployment/cnat-controller")
	createAt(t, newAt(other, "at", time.Now(), "true"))
	createAt(t, newAt(namespace, "at", time.Now(), "true"))
	waitFor(t, namespace, "Complete", "at/at")
	waitPhase(t, other, "at", v1alpha1.PhasePending)

	runs := newAt(namespace, "runs", time.Now(), untilStopped)
	// The deletion of a namespace waits for half of the grace period of its Pods.
	runs.Spec.Template = &corev1.PodTemplateSpec{Spec: plan.NewPod(runs, plan.Defaults{Image: "busybox:1.37.0"}).Spec}
	runs.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](4)
	createAt(t, runs)
	waitPhase(t, namespace, "runs", v1alpha1.PhaseRunning)
	kubectl(t, "", "delete", "namespace", namespace)
	// Controllers that start now are refused and wait. The leader releases their permissions all the same.
	first := leader(t, home)
	kubectl(t, "", "delete", "pods", "-n", home, "--all")
	waitOtherLeader(t, home, first)
	kubectl(t, "", "delete", "--ignore-not-found", "-k", dir)
	kubectl(t, "", "delete", "namespace", home, other)
}

// untilStopped is a command that ends when it is stopped.
const untilStopped = "trap 'exit 0' TERM; sleep 3600 & wait"

// busy returns when a namespace has Pods and Ats with finalizers in every state.
func busy(t *testing.T, namespace string) {
	t.Helper()
	createAt(t, newAt(namespace, "running", time.Now(), untilStopped))
	nodes := newAt(namespace, "nodes", time.Now(), untilStopped)
	nodes.Spec.Nodes = &v1alpha1.AtNodes{Selector: metav1.LabelSelector{}}
	createAt(t, nodes)
	cronAt := newCronAt(namespace, "* * * * *")
	cronAt.Spec.ConcurrencyPolicy = v1alpha1.ForbidConcurrent // A slow node would have a hundred Pods.
	createCronAt(t, cronAt)
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
		createAt(t, newAt(namespace, name, time.Now(), untilStopped))
	}
	waitPod(t, namespace, "new-1-pod")
}
