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
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/version"
)

// TestStartFails starts the controller in ways that must fail: it must exit and print one
// line that says what to do.
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
		"wrong path":                {args: []string{"-kubeconfig=/nowhere/config"}, want: "cnat-controller: load the kubeconfig: stat /nowhere/config: no such file or directory; check -kubeconfig and $KUBECONFIG\n"},
		"nothing configured":        {env: []string{"KUBECONFIG=", "HOME=/nowhere"}, want: "no API server is configured: pass -kubeconfig"},
		"unreachable server":        {args: []string{"-master=https://127.0.0.1:1"}, want: "cnat-controller: cannot reach the API server at https://127.0.0.1:1: "},
		"wrong token":               {args: []string{"-kubeconfig=" + wrong}, want: "does not know the controller's credentials: Unauthorized; check -kubeconfig\n"},
		"no permission":             {args: []string{"-kubeconfig=" + nobody}, want: "refuses the controller: ats.cnat.programming-kubernetes.info is forbidden"},
		"argument":                  {args: []string{"run"}, want: `cnat-controller: unexpected argument "run": all options are flags, see -help` + "\n"},
		"no workers":                {args: []string{"-workers=0"}, want: "cnat-controller: -workers is 0: it must be at least 1\n"},
		"negative namespaces":       {args: []string{"-metrics-namespaces=-1"}, want: "cnat-controller: -metrics-namespaces is -1: it must not be negative; 0 counts all namespaces together\n"},
		"certificate without key":   {args: []string{"-tls-cert-file=tls.crt"}, want: "cnat-controller: -tls-cert-file and -tls-private-key-file belong together: set both\n"},
		"certificate for nothing":   {args: []string{"-tls-cert-file=tls.crt", "-tls-private-key-file=tls.key"}, want: "cnat-controller: -tls-cert-file needs -metrics-secure: set both\n"},
		"negative rate of dry-runs": {args: []string{"-preflight-qps=-1"}, want: "cnat-controller: -preflight-qps is -1: it must not be negative; 0 turns preflights off\n"},
		"unknown format of the log": {args: []string{"-logging-format=xml"}, want: "cnat-controller: -logging-format is \"xml\": it must be text or json\n"},
		"limit without a quantity":  {args: []string{"-default-limits=memory"}, want: "cnat-controller: -default-limits is \"memory\": \"memory\" is not a quantity of cpu, memory or ephemeral-storage; write for example cpu=10m,memory=16Mi\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, binary, append([]string{"-metrics-bind-address=127.0.0.1:0", "-health-probe-bind-address=127.0.0.1:0"}, tc.args...)...)
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

// TestStoredBefore has an At and a CronAt that were stored before the CRD had its rules.
func TestStoredBefore(t *testing.T) {
	if !inOwnCluster(t) {
		return
	}
	rules, err := os.ReadFile(crd)
	if err != nil {
		t.Fatal(err)
	}
	weaker := strings.NewReplacer("rule: self.matches('^[0-9]{4}-", "rule: true || self.matches('^[0-9]{4}-", "rule: self.findAll(", "rule: true || self.findAll(").Replace(string(rules))
	kubectl(t, weaker, "apply", "-f", "-")
	namespace := newNamespace(t)
	objects := fmt.Sprintf(`
{apiVersion: %[1]s, kind: At, metadata: {name: at}, spec: {schedule: tomorrow, command: "true"}}
---
{apiVersion: %[1]s, kind: CronAt, metadata: {name: cronat}, spec: {schedule: "*-5 * * * *", atTemplate: {spec: {command: "true"}}}}
`, v1alpha1.SchemeGroupVersion)
	eventually(t, "the API server to take the weaker rules", func(context.Context) (bool, error) {
		_, err := tryKubectl(t, objects, "apply", "-n", namespace, "-f", "-")
		return err == nil, nil
	})
	kubectl(t, "", "apply", "-f", crd)
	eventually(t, "the API server to take the rules", func(context.Context) (bool, error) {
		out, _ := tryKubectl(t, objects, "create", "--dry-run=server", "-n", namespace, "-f", "-")
		return strings.Count(out, "is invalid") == 2, nil
	})
	startController(t, namespace)
	waitBlocked(t, namespace, v1alpha1.ReasonInvalidSchedule)
	cronAt := waitCronAt(t, namespace, "to be blocked", func(cronAt *v1alpha1.CronAt) bool { return cronAt.Status.Reason == v1alpha1.ReasonInvalidSchedule })
	wantOutput(t, cronAt.Status.Message, `^spec.schedule "\*-5 \* \* \* \*" is invalid: minute "\*-5": write numbers from 0 to 59`)
	runNow(t, namespace, "at")
	waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
}

// TestFirstList checks that the first lists are consistent: an API server may answer a list
// that does not have to be with an outdated state.
func TestFirstList(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startBinary(t, binary, []string{"KUBE_FEATURE_WatchListClient=false"}, namespace)
	createAt(t, newAt(namespace, "at", time.Now(), "true"))
	waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
	lists := requests(t, namespace, "list", "ats")
	if len(lists) < 2 || slices.ContainsFunc(lists, func(list request) bool { return strings.Contains(list.RequestURI, "resourceVersion=") }) {
		t.Errorf("lists %+v, want one of the start and one of the informer, both of now", lists)
	}
}

// TestSchedule runs an At that has been due since year 1, and counts its writes. The controller's
// cache does not have the template, the annotation and the managed fields, which stay.
func TestSchedule(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	kubectl(t, fmt.Sprintf(`{apiVersion: %s, kind: At, metadata: {name: at}, spec: {schedule: "0001-01-01T00:00:00Z",
		template: {spec: {containers: [{name: main, image: image}], initContainers: [{name: first, image: image}]}}}}`, v1alpha1.SchemeGroupVersion), "apply", "-n", namespace, "-f", "-")
	pod := waitPod(t, namespace, "at-pod")
	at := waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
	if !metav1.IsControlledBy(pod, at) || pod.Labels[v1alpha1.LabelAtUID] != string(at.UID) || at.Status.StartTime == nil || at.Status.Pod == nil || at.Status.Pod.UID != pod.UID {
		t.Errorf("status %+v, owners of the Pod %v, labels %v", at.Status, pod.OwnerReferences, pod.Labels)
	}
	endPod(t, pod, corev1.PodSucceeded, 0, "")
	at = waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	wantEnd(t, at, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
	if at.Spec.Template == nil || at.Annotations[corev1.LastAppliedConfigAnnotation] == "" || len(at.ManagedFields) < 2 {
		t.Errorf("something is gone: template %v, annotations %v, managed fields %v", at.Spec.Template, at.Annotations, at.ManagedFields)
	}
	waitEvents(t, at, map[string]int32{v1alpha1.ReasonSuccessfulCreate: 1, v1alpha1.ReasonRanAtOnce: 1, v1alpha1.ReasonCompleted: 1})
	creates := creations(t, namespace)
	if writes := len(creates) + len(requests(t, namespace, "patch", "ats/status")); writes != 3 {
		t.Errorf("%d writes, want 3: the Pod, RUNNING, DONE", writes)
	}
	if want := "cnat-controller/" + version.Version; creates[0].UserAgent != want {
		t.Errorf("user agent %q, want %q", creates[0].UserAgent, want)
	}
}

// TestPodGone deletes the Pod while no controller is running: it stays until it is counted, unless
// its finalizer is removed by force.
func TestPodGone(t *testing.T) {
	t.Parallel()
	for reason, patch := range map[string]string{v1alpha1.ReasonPodDeleted: "{}", v1alpha1.ReasonPodLost: `{"metadata":{"finalizers":null}}`} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			c := startController(t, namespace)
			createAt(t, newAt(namespace, "at", time.Now(), "true"))
			// A killed process may not have written its last events.
			waitEvents(t, waitPhase(t, namespace, "at", v1alpha1.PhaseRunning), map[string]int32{v1alpha1.ReasonSuccessfulCreate: 1})
			c.kill(t)
			kubectl(t, "", "patch", "-n", namespace, "pod/at-pod", "-p", patch)
			kubectl(t, "", "delete", "-n", namespace, "--wait=false", "pod/at-pod")
			startController(t, namespace)
			at := waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
			wantEnd(t, at, v1alpha1.ConditionFailed, reason)
			waitGone(t, namespace, "pods/at-pod")
			waitEvents(t, at, map[string]int32{v1alpha1.ReasonSuccessfulCreate: 1, reason: 1})
			wantCreates(t, namespace, 1)
		})
	}
}

// TestDeletion deletes an At whose Pod has not ended, in all ways, with a controller and
// before one is started: nothing is left behind.
func TestDeletion(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"at/at --cascade=background", "at/at --cascade=foreground", "at/at --cascade=orphan", "namespace/NAMESPACE"} {
		for _, away := range []bool{false, true} {
			if !away && strings.Contains(how, "NAMESPACE") {
				continue // It takes a minute. TestNamespaced deletes the namespace of a command that runs.
			}
			t.Run(fmt.Sprintf("%s, the controller away: %v", how, away), func(t *testing.T) {
				t.Parallel()
				namespace := newNamespace(t)
				c := startController(t, namespace)
				at := newAt(namespace, "at", time.Now(), "true")
				at.Spec.BackoffLimit = ptr.To[int32](5)
				createAt(t, at)
				waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
				if away {
					c.kill(t)
				}
				kubectl(t, "", append([]string{"delete", "-n", namespace, "--wait=false"}, strings.Fields(strings.Replace(how, "NAMESPACE", namespace, 1))...)...)
				if strings.Contains(how, "orphan") {
					waitGone(t, namespace, "ats/at")
					// The garbage collector deletes a Pod of which it learns after its owner is gone.
					kubectl(t, "", "delete", "-n", namespace, "--ignore-not-found", "--wait=false", "pod/at-pod")
				}
				if away {
					eventually(t, "the Pod to be deleted", func(context.Context) (bool, error) {
						return waitPod(t, namespace, "at-pod").DeletionTimestamp != nil, nil
					})
					startController(t, namespace)
				}
				waitGone(t, namespace, "pods/at-pod")
				waitGone(t, namespace, "ats/at")
			})
		}
	}
}

// TestExtremes runs Ats with names of maximum length and with a template of 1 MiB.
func TestExtremes(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	for _, name := range []string{strings.Repeat("a", 60), strings.Repeat("a", 253), strings.Repeat("a.b", 84) + "c"} {
		createAt(t, newAt(namespace, name, time.Now(), "true"))
		waitPhase(t, namespace, name, v1alpha1.PhaseRunning)
	}
	at := newAt(namespace, "large", time.Now(), "true")
	setTemplate(at, func(spec *corev1.PodSpec) {
		for i := range 200 {
			spec.Containers[0].Env = append(spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("V%d", i), Value: strings.Repeat("v", 1<<20/200)})
		}
	})
	createAt(t, at)
	if diff := cmp.Diff(at.Spec.Template.Spec.Containers[0].Env, waitPod(t, namespace, "large-pod").Spec.Containers[0].Env); diff != "" {
		t.Errorf("the environment (-want +got):\n%s", diff)
	}
}

// kill kills the process, which simulates a crash.
func (c *controller) kill(t *testing.T) {
	t.Helper()
	var exit *exec.ExitError
	if err := c.stop(syscall.SIGKILL); !errors.As(err, &exit) {
		t.Fatalf("killed, it ended with: %v", err)
	}
}

func waitPod(t *testing.T, namespace, name string) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	eventually(t, "Pod "+name, func(ctx context.Context) (bool, error) {
		got, err := kubeClient.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			pod = got
		}
		return err == nil, ignoreNotFound(err)
	})
	return pod
}

// endPod updates a Pod like a kubelet whose container has ended.
func endPod(t *testing.T, pod *corev1.Pod, phase corev1.PodPhase, exitCode int32, message string) {
	t.Helper()
	now := metav1.Now()
	status := pod.Status.DeepCopy()
	status.Phase, status.StartTime, status.ContainerStatuses = phase, &now, exited(pod, exitCode, message)
	patch, err := json.Marshal(map[string]any{"status": status})
	if err == nil {
		_, err = kubeClient.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// exited returns the status of a container that has just ended.
func exited(pod *corev1.Pod, code int32, message string) []corev1.ContainerStatus {
	return []corev1.ContainerStatus{{
		Name: pod.Spec.Containers[0].Name,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: code, Message: message, FinishedAt: metav1.Now(),
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
