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
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestBook is the book's scenario as a person types it: the example, due in an
// hour, then brought forward, and the log.
func TestBook(t *testing.T) {
	t.Parallel()
	installCRD(t)
	namespace := newNamespace(t)
	startController(t, namespace)
	example, err := os.ReadFile(root + "/artifacts/examples/cnat-example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	apply := func(in time.Duration) string {
		due := time.Now().Add(in).UTC().Format(time.RFC3339)
		kubectl(t, strings.ReplaceAll(string(example), "2019-04-12T10:12:00Z", due), "apply", "-n", namespace, "-f", "-")
		return due
	}
	due := apply(time.Hour)
	wantOutput(t, kubectl(t, "", "get", "ats", "-n", namespace), `example-at +`+due+` +PENDING +\d+s`)
	due = apply(2 * time.Second)
	kubectl(t, "", "wait", "-n", namespace, "--for=condition=Complete", "--timeout=60s", "at/example-at")
	wantOutput(t, kubectl(t, "", "get", "at,pods", "-n", namespace), `example-at +`+due+` +DONE +Completed +0 +\d+s`, `pod/example-at-pod +0/1 +Completed +0`)
	wantOutput(t, kubectl(t, "", "get", "at", "-o", "wide", "-n", namespace), `NODE +STARTED +COMPLETED`, `example-at-pod +localhost +\d+s +\d+s`)
	if got := kubectl(t, "", "logs", "-n", namespace, "example-at-pod"); got != "YAY\n" {
		t.Errorf("the log says %q, want YAY", got)
	}
}

func TestCommands(t *testing.T) {
	t.Parallel()
	installCRD(t)
	// Pods of the default image must be let in by the strictest level.
	namespace := newNamespace(t)
	kubectl(t, "", "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
	startController(t, namespace)
	for name, tc := range map[string]struct {
		command string
		// expectations
		exitCode int32
		log      string
		message  string
	}{
		"success":              {command: "true"},
		"quotes":               {command: `echo "it's" 'a "test"'`, log: "it's a \"test\"\n"},
		"pipe":                 {command: "printf 'b\\na\\n' | sort", log: "a\nb\n"},
		"variables":            {command: `A=1; B='$A'; echo "$A ${B} $HOSTNAME"`, log: "1 $A variables-pod\n"},
		"substitution":         {command: `echo $(echo $(echo a)) $((1+1))`, log: "a 2\n"},
		"not the kubelet's":    {command: `echo '$(PATH)' '$$(PATH)' '$$'`, log: "$(PATH) $$(PATH) $$\n"},
		"the shell's pid":      {command: `test "$$" = 1 && echo $$`, log: "1\n"},
		"lines":                {command: "set -e\necho a\n\necho b", log: "a\nb\n"},
		"unicode":              {command: "echo grüß 🌍", log: "grüß 🌍\n"},
		"redirection":          {command: "echo a > /tmp/a; cat < /tmp/a", log: "a\n"},
		"failure":              {command: "echo no such host >&2; exit 3", exitCode: 3, log: "no such host\n", message: "no such host\n"},
		"failure, silent":      {command: "exit 255", exitCode: 255, message: "The command ended with exit code 255."},
		"no such program":      {command: "nonesuch", exitCode: 127, log: "/bin/sh: nonesuch: not found\n", message: "/bin/sh: nonesuch: not found\n"},
		"termination message":  {command: "echo log; printf told > /dev/termination-log", log: "log\n", message: "told"},
		"not root, no service": {command: "id -u; ls /var/run/secrets 2>/dev/null | wc -l", log: "65534\n0\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			name := strings.Trim(regexp.MustCompile("[^a-z]+").ReplaceAllString(name, "-"), "-")
			createAt(t, newAt(namespace, name, time.Now(), tc.command))
			at := waitPhase(t, namespace, name, v1alpha1.PhaseDone)
			if at.Status.ExitCode == nil || *at.Status.ExitCode != tc.exitCode || at.Status.Message != tc.message {
				t.Errorf("exit code %v, message %q; want %d, %q", at.Status.ExitCode, at.Status.Message, tc.exitCode, tc.message)
			}
			if got := kubectl(t, "", "logs", "-n", namespace, at.Status.Pod.Name); got != tc.log {
				t.Errorf("log %q, want %q", got, tc.log)
			}
			condition := "Complete"
			if tc.exitCode != 0 {
				condition = "Failed"
			}
			kubectl(t, "", "wait", "-n", namespace, "--for=condition="+condition, "--timeout=1s", "at/"+name)
		})
	}
}

// TestDeleteCascades deletes an At whose command is running.
func TestDeleteCascades(t *testing.T) {
	t.Parallel()
	installCRD(t)
	namespace := newNamespace(t)
	startController(t, namespace)
	createAt(t, newAt(namespace, "at", time.Now(), "trap 'exit 0' TERM; sleep 3600 & wait"))
	waitAt(t, namespace, "at", "to run", func(at *v1alpha1.At) bool { return at.Status.Pod != nil && at.Status.Pod.Phase == "Running" })
	kubectl(t, "", "delete", "-n", namespace, "at/at")
	eventually(t, "the Pod to be gone", func(ctx context.Context) (bool, error) {
		_, err := kubeClient.CoreV1().Pods(namespace).Get(ctx, "at-pod", metav1.GetOptions{})
		return apierrors.IsNotFound(err), ignoreNotFound(err)
	})
}

// TestPodDeleted deletes the Pod of a command that is running: it failed, and
// does not run again.
func TestPodDeleted(t *testing.T) {
	t.Parallel()
	installCRD(t)
	namespace := newNamespace(t)
	startController(t, namespace)
	createAt(t, newAt(namespace, "at", time.Now(), "trap 'exit 7' TERM; sleep 3600 & wait"))
	waitAt(t, namespace, "at", "to run", func(at *v1alpha1.At) bool { return at.Status.Pod != nil && at.Status.Pod.Phase == "Running" })
	kubectl(t, "", "delete", "-n", namespace, "pod/at-pod")
	at := waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	if at.Status.ExitCode == nil || *at.Status.ExitCode != 7 || at.Status.Reason != v1alpha1.ReasonCommandFailed {
		t.Errorf("exit code %v, reason %s; want 7, CommandFailed", at.Status.ExitCode, at.Status.Reason)
	}
	wantCreates(t, namespace, 1)
}

// TestActiveDeadline stops a command that takes too long, and keeps what it left.
func TestActiveDeadline(t *testing.T) {
	t.Parallel()
	installCRD(t)
	namespace := newNamespace(t)
	startController(t, namespace)
	at := newAt(namespace, "at", time.Now(), "trap 'echo stopped; exit 5' TERM; sleep 3600 & wait")
	at.Spec.ActiveDeadlineSeconds = ptr.To[int64](4)
	createAt(t, at)
	at = waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	if at.Status.Reason != v1alpha1.ReasonDeadlineExceeded || at.Status.ExitCode == nil || *at.Status.ExitCode != 5 || at.Status.Message != "stopped\n" {
		t.Errorf("status %+v, want DeadlineExceeded, exit code 5, stopped", at.Status)
	}
	wantCreates(t, namespace, 1)
}

// TestExamples applies each example, its time replaced by now, and waits for its end.
func TestExamples(t *testing.T) {
	t.Parallel()
	installCRD(t)
	paths, err := filepath.Glob(root + "/artifacts/examples/cnat-example*.yaml")
	if err != nil || len(paths) < 2 {
		t.Fatalf("%d examples: %v", len(paths), err)
	}
	schedule := regexp.MustCompile(`schedule: .*`)
	timeZone := regexp.MustCompile(`timeZone: .*`)
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".yaml")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			startController(t, namespace)
			example, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			// As it stands it must be let in, too.
			kubectl(t, string(example), "apply", "--dry-run=server", "-n", namespace, "-f", "-")
			now := time.Now().UTC().Format("2006-01-02T15:04:05")
			if timeZone.Match(example) {
				example = timeZone.ReplaceAll(example, []byte("timeZone: UTC"))
			} else {
				now += "Z"
			}
			example = schedule.ReplaceAll(example, []byte(`schedule: "`+now+`"`))
			kubectl(t, string(example), "apply", "-n", namespace, "-f", "-")
			ats, err := cnatClient.CnatV1alpha1().Ats(namespace).List(t.Context(), metav1.ListOptions{})
			if err != nil || len(ats.Items) != 1 {
				t.Fatalf("%d Ats, %v", len(ats.Items), err)
			}
			at := &ats.Items[0]
			if at.Spec.Suspend != nil && *at.Spec.Suspend {
				kubectl(t, "", "wait", "-n", namespace, "--for=condition=Suspended", "at/"+at.Name)
				kubectl(t, "", "patch", "-n", namespace, "at/"+at.Name, "--type=merge", "-p", `{"spec":{"suspend":false}}`)
			}
			kubectl(t, "", "wait", "-n", namespace, "--for=condition=Complete", "--timeout=60s", "at/"+at.Name)
		})
	}
}

// TestReadme runs the commands of the README, each as it stands there. It is not
// parallel: it takes the CRD away in the end, and its controllers see all namespaces.
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
		shell := exec.Command("bash", "-c", "exec "+command)
		shell.Dir = root
		switch {
		case strings.HasPrefix(command, "hack/"):
			continue // .ci/run runs them.
		case strings.HasPrefix(command, "./cnat-controller"):
			shell.Env = append(os.Environ(), "HOME="+home, "KUBECONFIG=")
			shell.Stdout, shell.Stderr = &log, &log
			if err := shell.Start(); err != nil {
				t.Fatal(err)
			}
			controller = shell
			continue
		case strings.HasPrefix(command, "docker build"):
			if err := errors.Join(controller.Process.Signal(syscall.SIGTERM), controller.Wait()); err != nil {
				t.Fatalf("the controller ended badly: %v", err)
			}
			loadImage(t)
			kubectl(t, "", "delete", "at/example-at")
			continue
		}
		out, err := shell.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		switch {
		case strings.HasPrefix(command, "kubectl logs") && string(out) != "YAY\n":
			t.Errorf("%s: got %q, want YAY", command, out)
		case strings.HasPrefix(command, "kubectl rollout"):
			kubectl(t, "", "apply", "-f", root+"/artifacts/examples/cnat-example.yaml")
			kubectl(t, "", "wait", "--for=condition=Complete", "--timeout=60s", "at/example-at")
			at := waitPhase(t, "default", "example-at", v1alpha1.PhaseDone)
			waitEvents(t, at, map[string]int32{v1alpha1.ReasonSuccessfulCreate: 1, v1alpha1.ReasonCompleted: 1})
		}
	}
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

// loadImage stands in for docker build and docker push: it makes the same image
// as the Dockerfile, and brings it to the node.
func loadImage(t *testing.T) {
	t.Helper()
	static := filepath.Join(t.TempDir(), "cnat-controller")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", static, root)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the controller: %v\n%s", err, out)
	}
	load := exec.Command("go", "run", ".", "load-image", "-dir="+filepath.Dir(os.Getenv("KUBECONFIG")), "cnat-controller:v0.1.0="+static)
	load.Dir = root + "/hack/localcluster"
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("load the image: %v\n%s", err, out)
	}
}

func wantOutput(t *testing.T, got string, want ...string) {
	t.Helper()
	for _, pattern := range want {
		if !regexp.MustCompile(pattern).MatchString(got) {
			t.Errorf("got:\n%s\nwant: %s", got, pattern)
		}
	}
}
