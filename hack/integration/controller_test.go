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
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/version"
)

// TestStartFails starts the controller where it cannot use the API server: it must exit and print one
// line that says what to do. TestValidate has the flags.
func TestStartFails(t *testing.T) {
	t.Parallel()
	wrong, nobody := filepath.Join(t.TempDir(), "wrong"), filepath.Join(t.TempDir(), "nobody")
	if err := errors.Join(writeToken(wrong, "wrong"), writeConfig(nobody, metav1.NamespaceDefault, "default")); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		env  []string
		args []string
		want string
	}{
		"wrong path":         {args: []string{"-kubeconfig=/nowhere/config"}, want: "cnat-controller: load the kubeconfig: stat /nowhere/config: no such file or directory; check -kubeconfig and $KUBECONFIG\n"},
		"nothing configured": {env: []string{"KUBECONFIG=", "HOME=/nowhere"}, want: "no API server is configured: pass -kubeconfig"},
		"unreachable server": {args: []string{"-master=https://127.0.0.1:1"}, want: "cnat-controller: cannot reach the API server at https://127.0.0.1:1: "},
		"wrong token":        {args: []string{"-kubeconfig=" + wrong}, want: "does not know the controller's credentials: Unauthorized; check -kubeconfig\n"},
		"no permission":      {args: []string{"-kubeconfig=" + nobody}, want: "refuses the controller: ats.cnat.programming-kubernetes.info is forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, controllerBinary(), append([]string{"-metrics-bind-address=127.0.0.1:0", "-health-probe-bind-address=127.0.0.1:0"}, tc.args...)...)
			cmd.Env = append(os.Environ(), tc.env...)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("ended with %v, want exit code 1", err)
			}
			// The log may name the API server first.
			said := regexp.MustCompile(`(?m)^I\d{4} .*\n`).ReplaceAllString(string(out), "")
			if !strings.Contains(said, tc.want) || strings.Count(said, "\n") != 1 {
				t.Errorf("it says:\n%swant one line:\n%s", out, tc.want)
			}
		})
	}
}

// TestFirstList checks that the first lists are consistent: an API server may answer a list
// that does not have to be with an outdated state.
func TestFirstList(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startWithEnv(t, []string{"KUBE_FEATURE_WatchListClient=false"}, namespace)
	createAt(t, newAt(namespace, "at", time.Now(), "true"))
	waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
	lists := requests(t, namespace, "list", "ats")
	if len(lists) < 2 || slices.ContainsFunc(lists, func(list request) bool { return strings.Contains(list.RequestURI, "resourceVersion=") }) {
		t.Errorf("lists %+v, want one of the start and one of the informer, both of now", lists)
	}
}

// TestSchedule runs an At with the longest name that has been due since year 1, and counts its writes. The controller's
// cache does not have the template, the annotation and the managed fields, which stay. It logs in JSON.
func TestSchedule(t *testing.T) {
	t.Parallel()
	namespace, name := newNamespace(t), strings.Repeat("a.b", 84)+"c"
	c := startController(t, namespace, "-logging-format=json")
	kubectl(t, fmt.Sprintf(`{apiVersion: %s, kind: At, metadata: {name: %s}, spec: {schedule: "0001-01-01T00:00:00Z",
		template: {spec: {containers: [{name: main, image: image}], initContainers: [{name: first, image: image}]}}}}`, v1alpha1.SchemeGroupVersion, name), "apply", "-n", namespace, "-f", "-")
	pod := waitPod(t, namespace, plan.NameOfPod(name, 0))
	at := waitPhase(t, namespace, name, v1alpha1.PhaseRunning)
	if !metav1.IsControlledBy(pod, at) || pod.Labels[v1alpha1.LabelAtUID] != string(at.UID) || at.Status.StartTime == nil || at.Status.Pod == nil || at.Status.Pod.UID != pod.UID {
		t.Errorf("status %+v, owners of the Pod %v, labels %v", at.Status, pod.OwnerReferences, pod.Labels)
	}
	endPod(t, pod, corev1.PodSucceeded, 0)
	at = waitPhase(t, namespace, name, v1alpha1.PhaseDone)
	wantEnd(t, at, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
	if at.Spec.Template == nil || at.Annotations[corev1.LastAppliedConfigAnnotation] == "" || len(at.ManagedFields) < 2 {
		t.Errorf("something is gone: template %v, annotations %v, managed fields %v", at.Spec.Template, at.Annotations, at.ManagedFields)
	}
	waitEvents(t, at, map[string]int32{v1alpha1.ReasonSuccessfulCreate: 1, v1alpha1.ReasonCompleted: 1})
	creates := creations(t, namespace, "pods")
	if writes := len(creates) + len(requests(t, namespace, "update", "ats/status")); writes != 3 {
		t.Errorf("%d writes, want 3: the Pod, RUNNING, DONE", writes)
	}
	if want := "cnat-controller/" + version.Version; creates[0].UserAgent != want {
		t.Errorf("user agent %q, want %q", creates[0].UserAgent, want)
	}
	waitLog(t, c, `"msg":"Created Pod"`)
}

// TestDeletion deletes an At whose Pod has not ended, in all ways: nothing is left behind. TestInCluster
// deletes the namespace of a command that runs.
func TestDeletion(t *testing.T) {
	t.Parallel()
	for _, cascade := range []string{"background", "foreground", "orphan"} {
		t.Run(cascade, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			startController(t, namespace)
			createAt(t, newAt(namespace, "at", time.Now(), "true"))
			waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
			kubectl(t, "", "delete", "-n", namespace, "--wait=false", "at/at", "--cascade="+cascade)
			waitGone(t, namespace, "ats/at")
			if cascade == "orphan" {
				// The garbage collector deletes a Pod of which it learns after its owner is gone.
				kubectl(t, "", "delete", "-n", namespace, "--ignore-not-found", "--wait=false", "pod/at-pod")
			}
			waitGone(t, namespace, "pods/at-pod")
		})
	}
}

// controller is a running controller process.
type controller struct {
	cmd    *exec.Cmd
	exited chan error

	lock sync.Mutex
	log  bytes.Buffer
}

func (c *controller) Write(p []byte) (int, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.log.Write(p)
}

func (c *controller) output() string {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.log.String()
}

// stop ends the process with the given signal, unless it has ended, and waits
// until it is gone.
func (c *controller) stop(signal syscall.Signal) error {
	if c.exited == nil {
		return nil
	}
	if err := c.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case err := <-c.exited:
		c.exited = nil
		return err
	case <-time.After(patience):
		return errors.Join(errors.New("it does not end"), c.cmd.Process.Kill())
	}
}

// startController starts the controller for one namespace. At the end of the test, the
// controller is stopped and must exit without an error.
func startController(t *testing.T, namespace string, args ...string) *controller {
	t.Helper()
	return startWithEnv(t, nil, namespace, args...)
}

// startWithEnv is startController with more environment variables. It waits for the first line of the controller: before
// that, a signal just ends it.
func startWithEnv(t *testing.T, env []string, namespace string, args ...string) *controller {
	t.Helper()
	c := &controller{exited: make(chan error, 1)}
	c.cmd = exec.Command(controllerBinary(), append([]string{
		"-v=4", "-namespace=" + namespace, "-metrics-bind-address=127.0.0.1:0", "-health-probe-bind-address=127.0.0.1:0", // Many controllers share this machine's ports.
	}, args...)...)
	c.cmd.Env = slices.Concat(os.Environ(), []string{"KUBECONFIG=" + controllerConfig}, env)
	c.cmd.Stdout, c.cmd.Stderr = c, c
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { c.exited <- c.cmd.Wait() }()
	t.Cleanup(func() {
		if err := c.stop(syscall.SIGTERM); err != nil {
			t.Errorf("the controller exited with an error: %v", err)
		}
		if t.Failed() {
			t.Logf("the controller's log:\n%s", c.output())
		}
	})
	waitLog(t, c, "\n")
	return c
}

// kill kills the process, which simulates a crash.
func (c *controller) kill(t *testing.T) {
	t.Helper()
	var exit *exec.ExitError
	if err := c.stop(syscall.SIGKILL); !errors.As(err, &exit) {
		t.Fatalf("killed, it ended with: %v", err)
	}
}

// endPod updates a Pod like a kubelet whose container has ended.
func endPod(t *testing.T, pod *corev1.Pod, phase corev1.PodPhase, exitCode int32) {
	t.Helper()
	now := metav1.Now()
	status := pod.Status.DeepCopy()
	status.Phase, status.StartTime, status.ContainerStatuses = phase, &now, exited(pod, exitCode)
	patch, err := json.Marshal(map[string]any{"status": status})
	if err == nil {
		_, err = kubeClient.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// exited returns the status of a container that has just ended.
func exited(pod *corev1.Pod, code int32) []corev1.ContainerStatus {
	return []corev1.ContainerStatus{{
		Name: pod.Spec.Containers[0].Name,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: code, FinishedAt: metav1.Now(),
		}},
	}}
}

// waitUnblocked waits until nothing blocks the At named at, and its status has no reason.
func waitUnblocked(t *testing.T, namespace string) {
	t.Helper()
	waitAt(t, namespace, "at", "to be blocked no longer", func(at *v1alpha1.At) bool {
		blocked := meta.FindStatusCondition(at.Status.Conditions, v1alpha1.ConditionBlocked)
		return blocked == nil && at.Status.Reason == "" && at.Status.Message == "" || blocked != nil && slices.Contains(slowReasons, blocked.Reason)
	})
}
