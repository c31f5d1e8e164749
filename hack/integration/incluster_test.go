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
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

const (
	deploy          = root + "/artifacts/deploy"
	restarts        = root + "/artifacts/restarts"
	systemNamespace = "cnat-system"
)

// TestInCluster installs the controller with its manifests in a namespace that enforces
// the level restricted, has it run Ats as its service account while the leader is
// removed, and uninstalls it.
func TestInCluster(t *testing.T) {
	if !inOwnCluster(t, "--node") {
		return
	}
	buildImage(t)
	kubectl(t, "", "delete", "--ignore-not-found", "-f", crd)
	t.Cleanup(func() {
		if t.Failed() {
			for _, command := range []string{"describe pods", "logs --prefix --tail=50 --selector=app.kubernetes.io/name=cnat-controller"} {
				out, err := exec.Command("kubectl", append(strings.Fields(command), "-n", systemNamespace)...).CombinedOutput()
				t.Logf("kubectl %s: %v\n%s", command, err, out)
			}
		}
	})

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
	applyCRD(t)
	waitRollout(t, systemNamespace, "deployment/cnat-controller")

	// Applying twice, in all ways, changes nothing. kubectl's output does not tell, because
	// it reports each PodDisruptionBudget as configured.
	versions := func() string {
		t.Helper()
		var list struct {
			Items []metav1.PartialObjectMetadata
		}
		if err := json.Unmarshal([]byte(kubectl(t, "", "get", "-f", root+"/artifacts/install.yaml", "-o", "json")), &list); err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, object := range list.Items {
			version := fmt.Sprint("generation ", object.Generation)
			if object.Generation == 0 {
				version = object.ResourceVersion
			}
			lines = append(lines, fmt.Sprintf("%s %s: %s", object.Kind, object.Name, version))
		}
		return strings.Join(lines, "\n")
	}
	// The leader adds its finalizer to its permissions.
	for _, object := range []string{"serviceaccount", "role", "rolebinding", "clusterrole", "clusterrolebinding"} {
		eventually(t, "the finalizer of the "+object, func(context.Context) (bool, error) {
			return strings.Contains(kubectl(t, "", "get", "-n", systemNamespace, object+"/cnat-controller", "-o", "jsonpath={.metadata.finalizers}"), v1alpha1.FinalizerReleasePods), nil
		})
	}
	installed := versions()
	for _, args := range [][]string{{"-f", deploy, "-f", policies, "-f", crd}, {"-k", deploy}, {"-f", root + "/artifacts/install.yaml"}} {
		kubectl(t, "", append([]string{"apply"}, args...)...)
		if diff := cmp.Diff(installed, versions()); diff != "" {
			t.Errorf("apply %s (-before +after):\n%s", strings.Join(args, " "), diff)
		}
	}

	namespace := newNamespace(t)
	runs := func(name string) *v1alpha1.At {
		t.Helper()
		at := createAt(t, newAt(namespace, name, time.Now(), "echo YAY"))
		waitFor(t, namespace, "Complete", "at/"+name)
		if got := kubectl(t, "", "logs", "-n", namespace, name+"-pod"); got != "YAY\n" {
			t.Errorf("the log says %q, want YAY", got)
		}
		return at
	}
	// The request may be refused for half a minute, until the API server's admission plugin
	// knows a new CRD.
	runs("first")

	leader := func() string {
		t.Helper()
		return kubectl(t, "", "get", "-n", systemNamespace, "lease/cnat-controller", "-o", "jsonpath={.spec.holderIdentity}")
	}
	var first string
	eventually(t, "a leader", func(context.Context) (bool, error) {
		first = leader()
		return first != "", nil
	})
	counted := "1"
	if wantOnlyLostLeases(t) {
		runs("again") // The new leader may not have counted the first.
		counted = "[12]"
	}
	metrics := podMetrics(t, first)
	wantOutput(t, metrics, `cnat_runs_total\{namespace=".*",reason="Completed"\} `+counted+`\n`, `leader_election_master_status\{name="cnat-controller"\} 1\n`, `cnat_ats\{namespace=".*",state="done"\} `+counted+`\n`,
		`go_gc_gomemlimit_bytes 5.12e\+08\n`)
	eventually(t, "one Pod to be allowed to be drained", func(context.Context) (bool, error) { // A slow Pod may not be ready for a while.
		return kubectl(t, "", "get", "-n", systemNamespace, "pdb/cnat-controller", "-o", "jsonpath={.status.disruptionsAllowed}") == "1", nil
	})
	wantOutput(t, kubectl(t, "", "get", "--raw", "/metrics"), `apiserver_flowcontrol_dispatched_requests_total\{flow_schema="cnat-leader-election",priority_level="leader-election"\} [1-9]`)

	kubectl(t, "", "delete", "-n", systemNamespace, "--wait=false", "pod/"+first)
	eventually(t, "another to lead", func(context.Context) (bool, error) {
		holder := leader()
		return holder != "" && holder != first, nil
	})
	waitEvents(t, runs("second"), map[string]int32{v1alpha1.ReasonSuccessfulCreate: 1, v1alpha1.ReasonCompleted: 1})
	waitRollout(t, systemNamespace, "deployment/cnat-controller")
	wantOnlyLostLeases(t)

	// An administrator installs the permissions for restarts separately.
	kubectl(t, "", "create", "deployment", "web", "-n", namespace, "--image=busybox:1.37.0", "--", "sleep", "3600")
	waitRollout(t, namespace, "deployment/web")
	createAt(t, newRestart(namespace, v1alpha1.RestartDeployment))
	blocked := waitBlocked(t, namespace, v1alpha1.ReasonRestartForbidden)
	wantOutput(t, blocked.Message, `User "system:serviceaccount:cnat-system:cnat-controller" cannot get resource "deployments"`, `the verbs get and patch, as artifacts/restarts/rbac\.yaml`)
	kubectl(t, "", "apply", "-f", restarts)
	waitFor(t, namespace, "Complete", "at/at")

	// TestReadme covers the removal of running Ats.
	kubectl(t, "", "delete", "--ignore-not-found", "-f", restarts, "-f", deploy, "-f", policies)
	left := kubectl(t, "", "get", "namespaces,clusterroles,clusterrolebindings,flowschemas,validatingadmissionpolicies,validatingadmissionpolicybindings", "-l", "app.kubernetes.io/name=cnat-controller", "-o", "name")
	if left != "" {
		t.Errorf("there is left: %s", left)
	}
}

// wantOnlyLostLeases reports whether Pods of the controller were restarted because they lost their
// lease: a slow machine may stand still for so long. Any other reason fails the test.
func wantOnlyLostLeases(t *testing.T) (lost bool) {
	t.Helper()
	pods, err := kubeClient.CoreV1().Pods(systemNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods.Items {
		for _, status := range pod.Status.ContainerStatuses {
			if status.RestartCount == 0 {
				continue
			}
			if log, _ := tryKubectl(t, "", "logs", "--previous", "-n", systemNamespace, pod.Name); !strings.Contains(log, "lost the lease") {
				t.Errorf("Pod %s was restarted %d times: %+v", pod.Name, status.RestartCount, status.LastTerminationState)
			}
			lost = true
		}
	}
	return lost
}

// podMetrics returns the metrics of a controller's Pod, like Prometheus.
func podMetrics(t *testing.T, name string) string {
	t.Helper()
	kubectl(t, "", "create", "serviceaccount", "-n", systemNamespace, "prometheus")
	kubectl(t, "", "create", "rolebinding", "-n", systemNamespace, "prometheus", "--clusterrole=cnat-metrics-reader", "--serviceaccount="+systemNamespace+":prometheus")
	pod, err := kubeClient.CoreV1().Pods(systemNamespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var body string
	eventually(t, "the metrics of Pod "+name, func(context.Context) (bool, error) {
		token := strings.TrimSpace(kubectl(t, "", "create", "token", "-n", systemNamespace, "prometheus"))
		var status int
		status, body = get(t, "https://"+net.JoinHostPort(pod.Status.PodIP, "8443")+"/metrics", token)
		return status == 200, nil
	})
	return body
}

// TestNamespaced installs the variant that only works in one namespace, without permissions
// elsewhere, at the level restricted. Then it deletes that namespace while a command runs.
func TestNamespaced(t *testing.T) {
	t.Parallel()
	buildImage(t)
	home, namespace, other := newNamespace(t), newNamespace(t), newNamespace(t)
	for _, name := range []string{home, namespace} {
		kubectl(t, "", "label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
	}
	artifacts := filepath.Join(t.TempDir(), "artifacts")
	if err := os.CopyFS(artifacts, os.DirFS(root+"/artifacts")); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(artifacts, "namespaced")
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
	for line := range strings.Lines(kubectl(t, "", "apply", "-k", dir)) {
		if strings.HasPrefix(line, "clusterrole") || strings.HasPrefix(line, "namespace") || strings.HasPrefix(line, "customresource") {
			t.Errorf("it is not in its namespaces only: %s", line)
		}
	}
	waitRollout(t, home, "deployment/cnat-controller")
	createAt(t, newAt(home, "at", time.Now(), "true"))
	createAt(t, newAt(other, "at", time.Now(), "true"))
	createAt(t, newAt(namespace, "at", time.Now(), "true"))
	waitFor(t, namespace, "Complete", "at/at")
	for _, elsewhere := range []string{home, other} {
		if at := waitAt(t, elsewhere, "at", "to be there", func(*v1alpha1.At) bool { return true }); at.Status.Phase != v1alpha1.PhasePending {
			t.Errorf("the At of another namespace is %s", at.Status.Phase)
		}
	}
	user := "system:serviceaccount:" + home + ":cnat-controller"
	for _, in := range []string{"--namespace=" + home, "--namespace=" + other, "--all-namespaces"} {
		if out, err := tryKubectl(t, "", "auth", "can-i", "create", "pods", "--as="+user, in); err == nil {
			t.Errorf("it may create Pods %s: %s", in, out)
		}
	}
	// The service account of the controller is out of reach of who may create Ats.
	impostor := newAt(namespace, "impostor", time.Now(), "true")
	impostor.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		ServiceAccountName: "cnat-controller",
		Containers:         []corev1.Container{{Name: "main", Image: "busybox:1.37.0"}},
	}}
	createAt(t, impostor)
	waitAt(t, namespace, "impostor", "to be refused", func(at *v1alpha1.At) bool {
		return at.Status.Reason == v1alpha1.ReasonPodRefused && strings.Contains(at.Status.Message, "service account")
	})

	createAt(t, newAt(namespace, "runs", time.Now(), "trap 'exit 0' TERM; sleep 3600 & wait"))
	waitPhase(t, namespace, "runs", v1alpha1.PhaseRunning)
	kubectl(t, "", "delete", "namespace", namespace)
	// Controllers that start now are refused and wait. They release their permissions all the same.
	kubectl(t, "", "delete", "pods", "-n", home, "--all")
	kubectl(t, "", "delete", "--ignore-not-found", "-k", dir)
	eventually(t, "the Pods of the controller to be gone", func(ctx context.Context) (bool, error) {
		pods, err := kubeClient.CoreV1().Pods(home).List(ctx, metav1.ListOptions{})
		return err == nil && len(pods.Items) == 0, err
	})
}
