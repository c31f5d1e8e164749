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
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
)

// createWorkload creates a workload named web whose Pods never get a node. spec contains
// its additional fields.
func createWorkload(t *testing.T, namespace string, kind v1alpha1.RestartKind, spec string) {
	t.Helper()
	kubectl(t, fmt.Sprintf(`
apiVersion: apps/v1
kind: %s
metadata: {name: web}
spec:
  %s
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {example.com/node: none}
      containers: [{name: web, image: web}]
`, kind, spec), "create", "-n", namespace, "-f", "-")
}

// playReady simulates a kubelet whose Pods are ready immediately.
func playReady(t *testing.T, namespace string) {
	t.Helper()
	playReadyIf(t, namespace, func(*corev1.Pod) bool { return true })
}

// playReadyIf simulates a kubelet whose Pods become ready when the condition holds.
func playReadyIf(t *testing.T, namespace string, condition func(*corev1.Pod) bool) {
	t.Helper()
	playPods(t, namespace, metav1.ListOptions{}, func(ctx context.Context, pod *corev1.Pod) {
		if pod.Status.Phase == corev1.PodRunning || pod.DeletionTimestamp != nil || !condition(pod) {
			return
		}
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
		})
		_, _ = kubeClient.CoreV1().Pods(namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	})
}

// playRestart simulates a kubelet whose Pods are ready immediately, except for those that
// a restart has created: these become ready once ready is set.
func playRestart(t *testing.T, namespace string) (ready *atomic.Bool) {
	t.Helper()
	ready = &atomic.Bool{}
	playReadyIf(t, namespace, func(pod *corev1.Pod) bool {
		_, isNew := pod.Annotations[rollout.AnnotationRestartedAt]
		return !isNew || ready.Load()
	})
	return ready
}

// waitRolledOut waits until the rollout of the workload named web is complete according
// to kubectl.
func waitRolledOut(t *testing.T, namespace string, kind v1alpha1.RestartKind) {
	t.Helper()
	kubectl(t, "", "rollout", "status", "--timeout="+patience.String(), "-n", namespace, string(kind)+"/web")
}

// wantRestarted checks that an At that is DONE is Complete and not blocked.
func wantRestarted(t *testing.T, at *v1alpha1.At) {
	t.Helper()
	wantEnd(t, at, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
	if blocked := meta.FindStatusCondition(at.Status.Conditions, v1alpha1.ConditionBlocked); blocked != nil {
		t.Errorf("it is blocked: %+v", blocked)
	}
}

// generationOf returns how often the spec of the workload named web was written.
func generationOf(t *testing.T, namespace string, kind v1alpha1.RestartKind) int64 {
	t.Helper()
	object := &metav1.PartialObjectMetadata{}
	err := kubeClient.AppsV1().RESTClient().Get().Namespace(namespace).Resource(restartKinds[kind]).Name("web").
		SetHeader("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1").Do(t.Context()).Into(object)
	if err != nil {
		t.Fatal(err)
	}
	return object.Generation
}

// TestRestartWorkload restarts workloads whose new Pods only become ready after an event.
func TestRestartWorkload(t *testing.T) {
	t.Parallel()
	const one = "replicas: 1"
	becomeReady := func(_ *testing.T, _ string, ready *atomic.Bool) { ready.Store(true) }
	run := func(args ...string) func(*testing.T, string, *atomic.Bool) {
		return func(t *testing.T, namespace string, _ *atomic.Bool) {
			t.Helper()
			kubectl(t, "", append([]string{"-n", namespace}, args...)...)
		}
	}
	for name, tc := range map[string]struct {
		kind      v1alpha1.RestartKind
		spec      string // empty: there is no workload
		meanwhile func(t *testing.T, namespace string, ready *atomic.Bool)
		// expectations
		condition string
		reason    string
		message   string
	}{
		"a Deployment": {
			kind: v1alpha1.RestartDeployment, spec: "replicas: 2", meanwhile: becomeReady,
			condition: v1alpha1.ConditionComplete, reason: v1alpha1.ReasonCompleted, message: "^Deployment web has been restarted: 2 of 2 updated, 2 available",
		},
		"a StatefulSet": {
			kind: v1alpha1.RestartStatefulSet, spec: "replicas: 2", meanwhile: becomeReady,
			condition: v1alpha1.ConditionComplete, reason: v1alpha1.ReasonCompleted, message: "^StatefulSet web has been restarted: 2 of 2 updated, 2 available",
		},
		"deleted": {
			kind: v1alpha1.RestartDeployment, spec: one, meanwhile: run("delete", "deployment/web"),
			condition: v1alpha1.ConditionFailed, reason: v1alpha1.ReasonTargetNotFound, message: "^Deployment web was deleted during its restart",
		},
		"undone": {
			kind: v1alpha1.RestartDeployment, spec: one, meanwhile: run("rollout", "undo", "deployment/web"),
			condition: v1alpha1.ConditionFailed, reason: v1alpha1.ReasonReverted, message: "^The restart of Deployment web at ",
		},
		"no progress": {
			kind: v1alpha1.RestartDeployment, spec: one, meanwhile: run("patch", "deployment/web", "-p", `{"spec":{"progressDeadlineSeconds":1}}`),
			condition: v1alpha1.ConditionFailed, reason: v1alpha1.ReasonRolloutFailed, message: "made no progress within its spec.progressDeadlineSeconds: [01] of 1 updated, 1 available",
		},
		"too long": {
			kind: v1alpha1.RestartStatefulSet, spec: one, meanwhile: run("patch", "at/at", "--type=merge", "-p", `{"spec":{"activeDeadlineSeconds":1}}`),
			condition: v1alpha1.ConditionFailed, reason: v1alpha1.ReasonDeadlineExceeded, message: "The rollout of StatefulSet web continues: ",
		},
		"missing": {
			kind:      v1alpha1.RestartDeployment,
			condition: v1alpha1.ConditionFailed, reason: v1alpha1.ReasonTargetNotFound, message: "^Deployment web does not exist",
		},
		"paused": {
			kind: v1alpha1.RestartDeployment, spec: "paused: true",
			condition: v1alpha1.ConditionFailed, reason: v1alpha1.ReasonTargetPaused, message: "^Deployment web is paused",
		},
		"a StatefulSet that waits for deletions": {
			kind: v1alpha1.RestartStatefulSet, spec: "updateStrategy: {type: OnDelete}",
			condition: v1alpha1.ConditionFailed, reason: v1alpha1.ReasonTargetOnDelete, message: "^StatefulSet web has the update strategy OnDelete",
		},
		"a DaemonSet that waits for deletions": {
			kind: v1alpha1.RestartDaemonSet, spec: "updateStrategy: {type: OnDelete}",
			condition: v1alpha1.ConditionFailed, reason: v1alpha1.ReasonTargetOnDelete, message: "^DaemonSet web has the update strategy OnDelete",
		},
		"a Deployment without replicas": {
			kind: v1alpha1.RestartDeployment, spec: "replicas: 0",
			condition: v1alpha1.ConditionComplete, reason: v1alpha1.ReasonCompleted, message: "^Deployment web has no Pods to replace: there was nothing to do",
		},
		"a StatefulSet without replicas": {
			kind: v1alpha1.RestartStatefulSet, spec: "replicas: 0",
			condition: v1alpha1.ConditionComplete, reason: v1alpha1.ReasonCompleted, message: "^StatefulSet web has no Pods to replace: there was nothing to do",
		},
		"a DaemonSet without nodes": {
			kind: v1alpha1.RestartDaemonSet, spec: "minReadySeconds: 0",
			condition: v1alpha1.ConditionComplete, reason: v1alpha1.ReasonCompleted, message: "^DaemonSet web has no Pods to replace: there was nothing to do",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			ready := playRestart(t, namespace)
			if tc.spec != "" {
				createWorkload(t, namespace, tc.kind, tc.spec)
			}
			if tc.condition == v1alpha1.ConditionComplete || tc.meanwhile != nil {
				waitRolledOut(t, namespace, tc.kind)
			}
			restarts := 0
			if tc.meanwhile != nil {
				restarts = 1
			}
			startController(t, namespace)
			at := createAt(t, newRestart(namespace, tc.kind))
			events := map[string]int32{tc.reason: 1}
			if tc.meanwhile != nil {
				running := waitAt(t, namespace, "at", "to have restarted the workload", func(at *v1alpha1.At) bool {
					return at.Status.Restart != nil && at.Status.Restart.RestartedAt != nil
				})
				if running.Status.Phase != v1alpha1.PhaseRunning || running.Status.Restart.UID == "" || running.Status.StartTime == nil || running.Status.Message == "" {
					t.Errorf("status %+v, want how far the restart is", running.Status)
				}
				wantOutput(t, kubectl(t, "", "get", "at", "-n", namespace), `at +\S+ +RUNNING`)
				events[v1alpha1.ReasonRestarted] = 1
				wantVerdict(t, namespace, tc.kind)
				tc.meanwhile(t, namespace, ready)
			}
			done := waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
			end := meta.FindStatusCondition(done.Status.Conditions, tc.condition)
			if end == nil || end.Status != metav1.ConditionTrue || end.Reason != tc.reason || done.Status.Reason != tc.reason {
				t.Fatalf("status %+v, want %s/%s", done.Status, tc.condition, tc.reason)
			}
			wantOutput(t, end.Message, tc.message)
			if tc.meanwhile != nil && tc.reason != v1alpha1.ReasonTargetNotFound {
				wantVerdict(t, namespace, tc.kind)
			}
			waitEvents(t, at, events)
			if writes := len(requests(t, namespace, "patch", restartKinds[tc.kind])); writes != restarts {
				t.Errorf("%d restarts, want %d", writes, restarts)
			}
		})
	}
}

// TestRestartWrites checks the writes of a restart.
func TestRestartWrites(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	playReady(t, namespace)
	createWorkload(t, namespace, v1alpha1.RestartDeployment, "replicas: 1")
	waitRolledOut(t, namespace, v1alpha1.RestartDeployment)
	startController(t, namespace)
	at := newRestart(namespace, v1alpha1.RestartDeployment)
	due := time.Now().Truncate(time.Second).Add(3900 * time.Millisecond)
	at.Spec.Schedule = due.In(time.FixedZone("", 3600)).Format(time.RFC3339Nano)
	if created := createAt(t, at).CreationTimestamp.Time; created.After(due) {
		due = created // on a slow machine
	}
	wantRestarted(t, waitPhase(t, namespace, "at", v1alpha1.PhaseDone))
	deployment, err := kubeClient.AppsV1().Deployments(namespace).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := deployment.Spec.Template.Annotations[rollout.AnnotationRestartedAt], due.UTC().Format(time.RFC3339); got != want {
		t.Errorf("restarted at %q, want %q", got, want)
	}
	owners := map[string]string{}
	for _, entry := range deployment.ManagedFields {
		if strings.Contains(entry.FieldsV1.String(), rollout.AnnotationRestartedAt) {
			owners[entry.Manager] = entry.Subresource
		}
	}
	if _, ours := owners["cnat-controller"]; !ours || len(owners) != 1 {
		t.Errorf("the annotation belongs to %v, want cnat-controller", owners)
	}
}

// TestRestartWaits uses a workload that is being rolled out when its restart is due.
func TestRestartWaits(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	createWorkload(t, namespace, v1alpha1.RestartStatefulSet, "replicas: 2")
	startController(t, namespace)
	at := createAt(t, newRestart(namespace, v1alpha1.RestartStatefulSet))
	waitBlocked(t, namespace, v1alpha1.ReasonRolloutInProgress)
	playReady(t, namespace)
	wantRestarted(t, waitPhase(t, namespace, "at", v1alpha1.PhaseDone))
	waitEvents(t, at, map[string]int32{v1alpha1.ReasonRolloutInProgress: 1, v1alpha1.ReasonRestarted: 1, v1alpha1.ReasonCompleted: 1})
}

// TestRestartPreflight uses restarts that are not due: they are tried with dry-run, and
// nothing is restarted.
func TestRestartPreflight(t *testing.T) {
	t.Parallel()
	for kind, resource := range restartKinds {
		t.Run(resource, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			createWorkload(t, namespace, kind, "minReadySeconds: 0")
			before := generationOf(t, namespace, kind)
			startController(t, namespace)
			at := newRestart(namespace, kind)
			at.Spec.Schedule = "2099-01-01T00:00:00Z"
			createAt(t, at)
			eventually(t, "a dry-run", func(context.Context) (bool, error) {
				return slices.ContainsFunc(requestsOf(t, namespace, "patch", resource), func(r request) bool { return r.ResponseStatus.Code == http.StatusOK }), nil
			})
			if after := generationOf(t, namespace, kind); after != before {
				t.Errorf("generation %d, want %d: it was restarted", after, before)
			}
		})
	}
}

// TestRestartForbidden runs a controller for a single namespace, and grants
// artifacts/restarts later, as described in docs/install.md.
func TestRestartForbidden(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	clusterRole, _, err := readRBAC(deploy + "/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	user := bindRole(t, namespace, "less", clusterRole.Rules)
	config := filepath.Join(t.TempDir(), "config")
	if err := writeConfig(config, namespace, "less"); err != nil {
		t.Fatal(err)
	}
	waitAllowed(t, user, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "create", Resource: "pods"})
	playReady(t, namespace)
	createWorkload(t, namespace, v1alpha1.RestartDeployment, "replicas: 1")
	waitRolledOut(t, namespace, v1alpha1.RestartDeployment)
	startController(t, namespace, "-kubeconfig="+config)
	later := newRestart(namespace, v1alpha1.RestartDeployment)
	later.Name, later.Spec.Schedule = "later", "2099-01-01T00:00:00Z"
	createAt(t, later)
	createAt(t, newRestart(namespace, v1alpha1.RestartDeployment))

	const want = "grant this user the verbs get and patch"
	if blocked := waitBlocked(t, namespace, v1alpha1.ReasonRestartForbidden); !strings.Contains(blocked.Message, want) || !strings.Contains(blocked.Message, user) {
		t.Errorf("condition Blocked says %q, want %q and %q", blocked.Message, want, user)
	}
	waitAt(t, namespace, "later", "to be blocked by its preflight", func(at *v1alpha1.At) bool {
		return at.Status.Reason == v1alpha1.ReasonRestartForbidden && strings.HasPrefix(at.Status.Message, "If it were due now: ") && strings.Contains(at.Status.Message, want)
	})
	kubectl(t, "", "create", "rolebinding", "cnat-restarts", "-n", namespace, "--clusterrole=cnat-controller-restarts", "--serviceaccount="+namespace+":less")
	wantRestarted(t, waitPhase(t, namespace, "at", v1alpha1.PhaseDone))
	waitAt(t, namespace, "later", "to be blocked no longer", func(at *v1alpha1.At) bool { return at.Status.Reason == "" })
}

// TestRestartRefused runs a controller that can read but not patch workloads.
func TestRestartRefused(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	clusterRole, _, err := readRBAC(deploy + "/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	user := bindRole(t, namespace, "reader", append(clusterRole.Rules, rbacv1.PolicyRule{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"get"}}))
	config := filepath.Join(t.TempDir(), "config")
	if err := writeConfig(config, namespace, "reader"); err != nil {
		t.Fatal(err)
	}
	waitAllowed(t, user, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "get", Group: "apps", Resource: "deployments"})
	playReady(t, namespace)
	createWorkload(t, namespace, v1alpha1.RestartDeployment, "replicas: 1")
	waitRolledOut(t, namespace, v1alpha1.RestartDeployment)
	startController(t, namespace, "-kubeconfig="+config)
	createAt(t, newRestart(namespace, v1alpha1.RestartDeployment))
	if blocked := waitBlocked(t, namespace, v1alpha1.ReasonRestartRefused); !strings.Contains(blocked.Message, `cannot patch resource "deployments"`) {
		t.Errorf("condition Blocked says %q, want that it may not patch", blocked.Message)
	}
}

// TestRestartOfCronAt lets the At of a CronAt restart a workload under the policies.
func TestRestartOfCronAt(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	playReady(t, namespace)
	createWorkload(t, namespace, v1alpha1.RestartDeployment, "replicas: 1")
	waitRolledOut(t, namespace, v1alpha1.RestartDeployment)
	before := generationOf(t, namespace, v1alpha1.RestartDeployment)
	due := createOverdue(t, newCronAt(namespace, "", func(cronAt *v1alpha1.CronAt) {
		cronAt.Spec.AtTemplate.Spec = v1alpha1.RunSpec{Restart: &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}}
	}))
	startController(t, namespace)
	waitCronAt(t, namespace, "to have run", func(cronAt *v1alpha1.CronAt) bool {
		return cronAt.Status.LastScheduleTime.Time.Equal(due) && cronAt.Status.LastSuccessfulTime != nil
	})
	if restarts := generationOf(t, namespace, v1alpha1.RestartDeployment) - before; restarts != 1 {
		t.Errorf("it was restarted %d times, want once", restarts)
	}
}

// TestRestartOnce runs two controllers at the same time, kills one and replaces it: each
// workload is restarted once.
func TestRestartOnce(t *testing.T) {
	t.Parallel()
	const number = 4
	var namespaces []string
	before := map[string]int64{}
	for range number {
		namespace := newNamespace(t)
		playReady(t, namespace)
		createWorkload(t, namespace, v1alpha1.RestartDeployment, "replicas: 1")
		namespaces = append(namespaces, namespace)
	}
	for _, namespace := range namespaces {
		waitRolledOut(t, namespace, v1alpha1.RestartDeployment)
		before[namespace] = generationOf(t, namespace, v1alpha1.RestartDeployment)
	}
	for i, namespace := range namespaces {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			killed := startController(t, namespace)
			startController(t, namespace)
			at := newRestart(namespace, v1alpha1.RestartDeployment)
			at.Spec.Schedule = time.Now().Add(2 * time.Second).UTC().Format(time.RFC3339Nano)
			at = createAt(t, at)
			if i%2 == 0 {
				waitVersion(t, at, "to be RUNNING", func(at *v1alpha1.At) bool { return at.Status.Phase == v1alpha1.PhaseRunning })
			}
			killed.kill(t)
			startController(t, namespace)
			wantRestarted(t, waitPhase(t, namespace, "at", v1alpha1.PhaseDone))
			if restarts := generationOf(t, namespace, v1alpha1.RestartDeployment) - before[namespace]; restarts != 1 {
				t.Errorf("it was restarted %d times, want once", restarts)
			}
		})
	}
}
