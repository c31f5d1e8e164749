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
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

func TestCommands(t *testing.T) {
	t.Parallel()
	// The strictest level must admit Pods of the default image.
	namespace := newNamespace(t)
	kubectl(t, "", "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
	for name, tc := range map[string]struct {
		command string
		// expectations
		exitCode int32
		log      string
		message  string
	}{
		// One Pod for everything that must be printed: each Pod takes a second to start.
		"shell": {
			command: `set -e
echo "it's" 'a "test"'
printf 'b\na\n' | sort
A=1; B='$A'; echo "$A ${B} $HOSTNAME"
echo $(echo $(echo a)) $((1+1))
echo '$(PATH)' '$$(PATH)' '$$'
test "$$" = 1 && echo $$

echo grüß 🌍
echo a > /tmp/a; cat < /tmp/a`,
			log: "it's a \"test\"\na\nb\n1 $A shell-pod\na 2\n$(PATH) $$(PATH) $$\n1\ngrüß 🌍\na\n",
		},
		"failure":              {command: "echo no such host >&2; exit 3", exitCode: 3, log: "no such host\n", message: "no such host"},
		"no such program":      {command: "nonesuch", exitCode: 127, log: "/bin/sh: nonesuch: not found\n", message: "/bin/sh: nonesuch: not found"},
		"termination message":  {command: "echo log; printf told > /dev/termination-log", log: "log\n", message: "told"},
		"not root, no service": {command: "id -u; ls /var/run/secrets 2>/dev/null | wc -l", log: "65534\n0\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			name := dashes(name)
			createAt(t, newAt(namespace, name, time.Now(), tc.command))
			at := waitPhase(t, namespace, name, v1alpha1.PhaseDone)
			if at.Status.ExitCode == nil || *at.Status.ExitCode != tc.exitCode || at.Status.Message != tc.message {
				t.Errorf("exit code %v, message %q; want %d, %q", at.Status.ExitCode, at.Status.Message, tc.exitCode, tc.message)
			}
			got, err := kubeClient.CoreV1().Pods(namespace).GetLogs(at.Status.Pod.Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
			if err != nil || string(got) != tc.log {
				t.Errorf("log %q, %v, want %q", got, err, tc.log)
			}
			condition := v1alpha1.ConditionComplete
			if tc.exitCode != 0 {
				condition = v1alpha1.ConditionFailed
			}
			if !meta.IsStatusConditionTrue(at.Status.Conditions, condition) {
				t.Errorf("conditions %+v, want %s", at.Status.Conditions, condition)
			}
		})
	}
}

// TestEvicted stops the Pod of a running command in each way that is not its own end. Its output stays.
func TestEvicted(t *testing.T) {
	t.Parallel()
	for reason, stop := range map[string]func(t *testing.T, namespace string){
		v1alpha1.ReasonEvicted: func(t *testing.T, namespace string) { // like a drain
			t.Helper()
			if err := kubeClient.CoreV1().Pods(namespace).EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "at-pod"}}); err != nil {
				t.Fatal(err)
			}
		},
		v1alpha1.ReasonPodDeleted: func(t *testing.T, namespace string) {
			t.Helper()
			kubectl(t, "", "delete", "-n", namespace, "pod/at-pod", "--wait=false")
		},
		v1alpha1.ReasonDeadlineExceeded: func(t *testing.T, namespace string) {
			t.Helper()
			patchAt(t, namespace, "at", `{"spec":{"activeDeadlineSeconds":1}}`)
		},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			at := createAt(t, newAt(namespace, "at", time.Now(), "trap 'echo stopped; exit 5' TERM; echo ready; sleep 3600 & wait"))
			waitReady(t, namespace)
			stop(t, namespace)
			at = waitPhase(t, namespace, at.Name, v1alpha1.PhaseDone)
			if at.Status.Reason != reason || at.Status.ExitCode == nil || *at.Status.ExitCode != 5 || !strings.HasSuffix(at.Status.Message, "ready stopped") {
				t.Errorf("status %+v, want %s, exit code 5, what it printed", at.Status, reason)
			}
			wantCreated(t, namespace, "pods", "at-pod")
			waitEvents(t, at, map[string]int32{v1alpha1.ReasonSuccessfulCreate: 1, reason: 1})
		})
	}
}

// TestPodEnds runs templates that end in each possible way.
func TestPodEnds(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	// command is a container that runs a command.
	command := func(name, command string, more ...string) string {
		return fmt.Sprintf("{name: %s, image: busybox:1.37.0, command: [sh, -c, %q], %s}", name, command, strings.Join(more, ", "))
	}
	for name, tc := range map[string]struct {
		retries int32
		pod     string // fields of its template
		// expectations
		reason   string
		exitCode string // or one of these
		message  string
	}{
		"the default container counts": {
			pod:    `metadata: {annotations: {kubectl.kubernetes.io/default-container: b}}, spec: {containers: [` + command("a", "true") + "," + command("b", "echo b; exit 6") + "]}",
			reason: v1alpha1.ReasonCommandFailed, exitCode: "6", message: "b",
		},
		"another container fails": {
			pod:    "spec: {containers: [" + command("a", "true") + "," + command("b", "echo b; exit 6") + "]}",
			reason: v1alpha1.ReasonPodFailed, exitCode: "0", message: "Pod another-container-fails-pod failed: container b ended with exit code 6: b",
		},
		"an init container fails": {
			pod:    "spec: {initContainers: [" + command("i", "exit 7") + "], containers: [" + command("a", "true") + "]}",
			reason: v1alpha1.ReasonPodFailed, exitCode: "<nil>", message: "Pod an-init-container-fails-pod failed: container i ended with exit code 7",
		},
		"out of memory": {
			pod:    "spec: {containers: [" + command("a", "exec tail /dev/zero", "resources: {limits: {memory: 32Mi}}") + "]}",
			reason: v1alpha1.ReasonOOMKilled, exitCode: "137", message: "The command ended with exit code 137: it used more memory than its container's limit.",
		},
		"the template's own deadline": {
			// A very busy node may not have started the container by then.
			pod:    "spec: {activeDeadlineSeconds: 15, terminationGracePeriodSeconds: 1, containers: [" + command("a", "sleep 3600") + "]}",
			reason: v1alpha1.ReasonDeadlineExceeded, exitCode: "137 <nil>", message: "Pod the-template-s-own-deadline-pod ran longer than its template allows: Pod was active on the node longer than the specified deadline",
		},
		"restarted by the node": {
			retries: 1,
			pod: "spec: {restartPolicy: OnFailure, volumes: [{name: data, emptyDir: {}}], containers: [" +
				command("a", "test -f /data/again || { touch /data/again; exit 1; }", "volumeMounts: [{name: data, mountPath: /data}]") + "]}",
			reason: v1alpha1.ReasonCompleted, exitCode: "0",
		},
		"an init container is restarted too often": {
			retries: 1, pod: "spec: {restartPolicy: OnFailure, initContainers: [" + command("i", "echo clone; exit 7") + "], containers: [" + command("a", "true") + "]}",
			reason: v1alpha1.ReasonPodFailed, exitCode: "<nil>", message: "Attempt 2 of 2 failed: Container i ended with exit code 7. Message: clone",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kubectl(t, fmt.Sprintf("{apiVersion: %s, kind: At, metadata: {name: %s}, spec: {schedule: %q, backoffLimit: %d, template: {%s}}}",
				v1alpha1.SchemeGroupVersion, dashes(name), time.Now().UTC().Format(time.RFC3339), tc.retries, tc.pod), "create", "-n", namespace, "-f", "-")
			at := waitPhase(t, namespace, dashes(name), v1alpha1.PhaseDone)
			exitCode := "<nil>"
			if at.Status.ExitCode != nil {
				exitCode = fmt.Sprint(*at.Status.ExitCode)
			}
			if at.Status.Reason != tc.reason || !slices.Contains(strings.Fields(tc.exitCode), exitCode) || at.Status.Message != tc.message {
				t.Errorf("reason %s, exit code %s, message %q; want %s, %s, %q", at.Status.Reason, exitCode, at.Status.Message, tc.reason, tc.exitCode, tc.message)
			}
			pod, err := kubeClient.CoreV1().Pods(namespace).Get(t.Context(), at.Status.Pod.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
				if status.RestartCount > tc.retries {
					t.Errorf("container %s was restarted %d times, want at most %d", status.Name, status.RestartCount, tc.retries)
				}
			}
		})
	}
}

// TestRefusedByNode runs a Pod on a node that refuses it until it gets a label: another one follows.
func TestRefusedByNode(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	node := kubectl(t, "", "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
	at := newAt(namespace, "at", time.Now(), "echo YAY")
	at.Spec.BackoffLimit = ptr.To[int32](2) // for Pods that a very busy node refuses too late
	at.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		NodeName: node, NodeSelector: map[string]string{namespace: "yes"}, Containers: []corev1.Container{{Name: "a", Image: "busybox:1.37.0"}},
	}}
	createAt(t, at)
	waitAt(t, namespace, "at", "to wait for its next Pod", func(at *v1alpha1.At) bool { return at.Status.NotStarted+at.Status.Failed > 0 })
	kubectl(t, "", "label", "node", node, namespace+"=yes")
	cleanUp(t, "", "label", "node", node, namespace+"-")
	wantEnd(t, waitPhase(t, namespace, "at", v1alpha1.PhaseDone), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
}

// allowNodeAccess lets the Ats of a namespace run Pods with access to their node.
func allowNodeAccess(t *testing.T, namespace string) {
	t.Helper()
	kubectl(t, "", "label", "--overwrite", "namespace/"+namespace, "pod-security.kubernetes.io/enforce=privileged")
}

// waitFor waits until kubectl wait finds the condition of an object in a namespace.
func waitFor(t *testing.T, namespace, condition, object string) {
	t.Helper()
	kubectl(t, "", "wait", "-n", namespace, "--for=condition="+condition, "--timeout="+patience.String(), object)
}

// waitReady waits until the command of the At named at has printed something.
func waitReady(t *testing.T, namespace string) {
	t.Helper()
	waitAt(t, namespace, "at", "to run", func(at *v1alpha1.At) bool { return at.Status.Pod != nil && at.Status.Pod.Phase == corev1.PodRunning })
	eventually(t, "the command to print", func(ctx context.Context) (bool, error) {
		log, err := kubeClient.CoreV1().Pods(namespace).GetLogs("at-pod", &corev1.PodLogOptions{}).DoRaw(ctx)
		return len(log) > 0, err
	})
}

// dashes turns the name of a test into an object name.
func dashes(name string) string {
	return strings.Trim(regexp.MustCompile("[^a-z]+").ReplaceAllString(name, "-"), "-")
}

// TestExamples applies each example with its time replaced by now, and waits for its end.
func TestExamples(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob(root + "/artifacts/examples/cnat-example*.yaml")
	if err != nil || len(paths) < 2 {
		t.Fatalf("%d examples: %v", len(paths), err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			allowNodeAccess(t, namespace)
			// The API server must also accept it unchanged.
			kubectl(t, "", "apply", "--dry-run=server", "-n", namespace, "-f", path)
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(content), "kind: "+v1alpha1.FreezeKind) {
				return // It runs nothing.
			}
			schedule := time.Now().UTC().Format("2006-01-02T15:04:05Z")
			if strings.Contains(string(content), "timeZone: ") {
				schedule = strings.TrimSuffix(schedule, "Z")
			}
			if strings.Contains(string(content), "kind: "+v1alpha1.CronAtKind) {
				schedule = "* * * * *"
			}
			example := string(content)
			for field, value := range map[string]string{
				"schedule": fmt.Sprintf("%q", schedule), "timeZone": "UTC", "node": "localhost",
				"startingDeadlineSeconds": "3600", // A slow machine may need more than a minute.
			} {
				example = regexp.MustCompile(`(?m)^( *)`+field+`: .*`).ReplaceAllString(example, "${1}"+field+": "+value)
			}
			kubectl(t, example, "apply", "-n", namespace, "-f", "-")
			// waitAny waits until any At has the condition: a CronAt deletes its oldest.
			waitAny := func(condition string) (name string) {
				t.Helper()
				eventually(t, "an At to be "+condition, func(ctx context.Context) (bool, error) {
					ats, err := cnatClient.CnatV1alpha1().Ats(namespace).List(ctx, metav1.ListOptions{LabelSelector: "!" + v1alpha1.LabelAtUID})
					if err != nil {
						return false, err
					}
					for _, at := range ats.Items {
						if meta.IsStatusConditionTrue(at.Status.Conditions, condition) {
							name = at.Name
						}
					}
					return name != "", nil
				})
				return name
			}
			if strings.Contains(example, "suspend: true") {
				patchAt(t, namespace, waitAny(v1alpha1.ConditionSuspended), `{"spec":{"suspend":false}}`)
			}
			name := waitAny(v1alpha1.ConditionComplete)
			if strings.Contains(example, "nodes:") {
				wantOutput(t, kubectl(t, "", "get", "-n", namespace, "at/"+name), `DONE +Completed +1/1 `)
			}
		})
	}
}

// loadImage loads an image with a static binary, or an archive, into the node.
func loadImage(t *testing.T, image string) {
	t.Helper()
	if out, err := load(image); err != nil {
		t.Fatalf("load the image: %v\n%s", err, out)
	}
}

func load(image string) ([]byte, error) {
	return exec.Command("localcluster", "load-image", filepath.Dir(os.Getenv("KUBECONFIG")), image).CombinedOutput()
}
