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
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// TestReadme runs the commands of the README, each as it stands there. It is not
// parallel: it takes the CRD away in the end, and its controllers see all namespaces. It
// comes after TestInCluster, for the garbage collector needs half a minute to notice a new
// CRD, which the deletion in foreground would wait for.
func TestReadme(t *testing.T) {
	home := t.TempDir()
	config, err := os.ReadFile(os.Getenv("KUBECONFIG"))
	if err == nil {
		err = os.Mkdir(filepath.Join(home, ".kube"), 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(home, ".kube", "config"), config, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	var controller *exec.Cmd
	var log bytes.Buffer
	t.Cleanup(func() {
		if controller != nil && controller.ProcessState == nil {
			_ = controller.Process.Kill()
			_ = controller.Wait()
		}
		if t.Failed() {
			t.Logf("the controller's log:\n%s", log.String())
		}
	})
	for _, command := range readmeCommands(t) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		shell := exec.CommandContext(ctx, "bash", "-c", command)
		shell.Dir = root
		switch {
		case strings.HasPrefix(command, "hack/"):
			continue // .ci/run runs them.
		case strings.HasPrefix(command, "./cnat-controller"):
			// The signal is for the controller, not for the shell; and it is not waited for.
			shell = exec.Command("bash", "-c", "exec "+command)
			shell.Dir = root
			shell.Env = append(os.Environ(), "HOME="+home, "KUBECONFIG=")
			shell.Stdout, shell.Stderr = &log, &log
			if err := shell.Start(); err != nil {
				t.Fatal(err)
			}
			controller = shell
			continue
		case strings.HasPrefix(command, "kubectl delete ats"):
			// There is something to stop.
			createAt(t, newAt("default", "runs", time.Now(), "trap 'exit 0' TERM; sleep 3600 & wait"))
			waitPhase(t, "default", "runs", v1alpha1.PhaseRunning)
		case strings.HasPrefix(command, "kubectl get pods"):
			leavePod(t)
		case strings.HasPrefix(command, "docker build"):
			if err := errors.Join(controller.Process.Signal(syscall.SIGTERM), controller.Wait()); err != nil {
				t.Fatalf("the controller ended badly: %v", err)
			}
			buildImage(t)
			kubectl(t, "", "delete", "at/example-at")
			continue
		}
		out, err := shell.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		switch {
		case strings.HasPrefix(command, "kubectl delete ats"):
			if left := kubectl(t, "", "get", "pods", "-A", "-l", v1alpha1.LabelAtUID, "-o", "name"); left != "" {
				t.Errorf("Pods are left: %s", left)
			}
		case strings.HasPrefix(command, "kubectl logs") && string(out) != "YAY\n":
			t.Errorf("%s: got %q, want YAY", command, out)
		case strings.HasPrefix(command, "kubectl rollout"):
			kubectl(t, "", "apply", "-f", root+"/artifacts/examples/cnat-example.yaml")
			kubectl(t, "", "wait", "--for=condition=Complete", "--timeout=180s", "at/example-at")
			at := waitPhase(t, "default", "example-at", v1alpha1.PhaseDone)
			waitEvents(t, at, map[string]int32{v1alpha1.ReasonSuccessfulCreate: 1, v1alpha1.ReasonCompleted: 1})
		}
	}
}

// leavePod leaves a Pod behind as a controller does that is removed too early, and
// wants it to be gone at the end.
func leavePod(t *testing.T) {
	t.Helper()
	at := newAt("default", "left", time.Now(), "true")
	at.UID = "left"
	pods := kubeClient.CoreV1().Pods("default")
	pod := plan.NewPod(at, plan.Defaults{Image: "busybox:1.37.0"})
	pod.OwnerReferences = nil
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := poll(context.Background(), patience, func(ctx context.Context) (bool, error) {
			_, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
			return apierrors.IsNotFound(err), ignoreNotFound(err)
		})
		if err != nil {
			t.Errorf("waiting for the Pod that was left behind to be gone: %v", err)
		}
	})
}

// readmeCommands returns the lines of the README's console blocks.
func readmeCommands(t *testing.T) []string {
	t.Helper()
	readme, err := os.ReadFile(root + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	for _, block := range strings.Split(string(readme), "```console\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		for line := range strings.Lines(block) {
			command, _, _ := strings.Cut(line, "#")
			commands = append(commands, strings.TrimSpace(command))
		}
	}
	return commands
}
