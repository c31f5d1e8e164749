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
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
)

// restartKinds maps the kinds of workloads that can be restarted to their resources.
var restartKinds = map[v1alpha1.RestartKind]string{
	v1alpha1.RestartDeployment:  "deployments",
	v1alpha1.RestartStatefulSet: "statefulsets",
	v1alpha1.RestartDaemonSet:   "daemonsets",
}

// createWorkload creates a workload named web, a DaemonSet for the nodes of the namespace. No kubelet runs its Pods. spec
// contains its additional fields.
func createWorkload(t *testing.T, namespace string, kind v1alpha1.RestartKind, spec string) {
	t.Helper()
	kubectl(t, fmt.Sprintf(`
apiVersion: apps/v1
kind: %[1]s
metadata: {name: web}
spec:
  %[2]s
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {nodes: %[3]s}
      tolerations: [{operator: Exists}]
      containers: [{name: web, image: web}]
`, kind, spec, namespace), "create", "-n", namespace, "-f", "-")
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

// TestRestartWorkload restarts workloads whose new Pods only become ready after an event, and
// compares what it observes with kubectl. TestRestartFails has a node.
func TestRestartWorkload(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		kind      v1alpha1.RestartKind
		meanwhile []string // arguments of kubectl; none: the new Pods become ready
		// expectations
		condition, reason, message string
	}{
		"a StatefulSet": {
			v1alpha1.RestartStatefulSet, nil,
			v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, "^StatefulSet web has been restarted: 2 of 2 updated, 2 available",
		},
		"a DaemonSet": {
			v1alpha1.RestartDaemonSet, nil,
			v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, "^DaemonSet web has been restarted: 2 of 2 updated, 2 available",
		},
		"undone": {
			v1alpha1.RestartDeployment, []string{"rollout", "undo", "deployment/web"},
			v1alpha1.ConditionFailed, v1alpha1.ReasonReverted, "^The restart of Deployment web at ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			var ready atomic.Bool
			playReadyIf(t, namespace, func(pod *corev1.Pod) bool {
				return pod.Annotations[rollout.AnnotationRestartedAt] == "" || ready.Load()
			})
			spec := "replicas: 2"
			if tc.kind == v1alpha1.RestartDaemonSet {
				createNodes(t, namespace, "a", "b")
				spec = "minReadySeconds: 0"
			}
			createWorkload(t, namespace, tc.kind, spec)
			waitRollout(t, namespace, string(tc.kind)+"/web")
			startController(t, namespace)
			createAt(t, newRestart(namespace, tc.kind))
			at := waitAt(t, namespace, "at", "to have restarted the workload", func(at *v1alpha1.At) bool {
				return at.Status.Restart != nil && at.Status.Restart.RestartedAt != nil
			})
			if at.Status.Phase != v1alpha1.PhaseRunning || at.Status.Restart.UID == "" || at.Status.StartTime == nil || at.Status.Message == "" {
				t.Errorf("status %+v, want how far the restart is", at.Status)
			}
			wantVerdict(t, namespace, tc.kind)
			if len(tc.meanwhile) == 0 {
				ready.Store(true)
			} else {
				kubectl(t, "", append([]string{"-n", namespace}, tc.meanwhile...)...)
			}
			at = waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
			wantEnd(t, at, tc.condition, tc.reason)
			wantOutput(t, meta.FindStatusCondition(at.Status.Conditions, tc.condition).Message, tc.message)
			wantVerdict(t, namespace, tc.kind)
			waitEvents(t, at, map[string]int32{v1alpha1.ReasonRestarted: 1, tc.reason: 1})
			if writes := len(requests(t, namespace, "patch", restartKinds[tc.kind])); writes != 1 {
				t.Errorf("%d restarts, want one", writes)
			}
		})
	}
}

// TestRestartWrites checks what a restart writes, and as whom: the preflight changes nothing.
func TestRestartWrites(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	playReadyIf(t, namespace, func(*corev1.Pod) bool { return true })
	for kind, resource := range restartKinds {
		createWorkload(t, namespace, kind, "minReadySeconds: 0")
		at := newRestart(namespace, kind)
		at.Name, at.Spec.Schedule = resource, "2099-01-01T00:00:00Z"
		createAt(t, at)
	}
	waitRollout(t, namespace, "deployment/web")
	startController(t, namespace)
	for _, resource := range restartKinds {
		eventually(t, "a dry-run for "+resource, func(context.Context) (bool, error) {
			return slices.ContainsFunc(requestsOf(t, namespace, "patch", resource), func(r request) bool { return r.ResponseStatus.Code == http.StatusOK }), nil
		})
	}
	runNow(t, namespace, "deployments")
	wantEnd(t, waitPhase(t, namespace, "deployments", v1alpha1.PhaseDone), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
	deployment, err := kubeClient.AppsV1().Deployments(namespace).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owners := map[string]string{}
	for _, entry := range deployment.ManagedFields {
		if strings.Contains(entry.FieldsV1.String(), rollout.AnnotationRestartedAt) {
			owners[entry.Manager] = entry.Subresource
		}
	}
	if diff := cmp.Diff(map[string]string{"cnat-controller": ""}, owners); diff != "" || deployment.Generation != 2 {
		t.Errorf("generation %d, the annotation belongs to (-want +got):\n%s", deployment.Generation, diff)
	}
}

// TestRestartAnnotation annotates a workload: a CronAt follows, and is deleted with the workload. A schedule
// that only the API server refuses, with a no-break space, is reported with one event, also if it is set again.
func TestRestartAnnotation(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace, "-restart-annotations")
	annotate := func(schedule string) {
		t.Helper()
		kubectl(t, "", "annotate", "-n", namespace, "--overwrite", "deployment/web", scheduleAnnotation+"="+schedule)
	}
	kubectl(t, annotatable("Deployment", "web", fmt.Sprintf("%q: %q", scheduleAnnotation, "0 3 * * 1-5")), "create", "-n", namespace, "-f", "-")
	cronAt := waitCronAt(t, namespace, "deployment-web", "to be followed", func(cronAt *v1alpha1.CronAt) bool {
		return hasSchedule("0 3 * * 1-5")(cronAt) && cronAt.Status.NextScheduleTime != nil
	})
	if owner := metav1.GetControllerOf(cronAt); owner == nil || owner.Kind != "Deployment" || owner.Name != "web" {
		t.Errorf("the owners are %v", cronAt.OwnerReferences)
	}
	// The second refusal repeats the event of the first: the recorder patches it.
	for refusals := 1; refusals <= 2; refusals++ {
		annotate("0\u00a04 * * *")
		eventually(t, fmt.Sprintf("refusal %d to be reported", refusals), func(ctx context.Context) (bool, error) {
			events, err := kubeClient.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=Warning,reason=" + v1alpha1.ReasonCronAtRefused})
			return err == nil && len(events.Items) == 1 && int(events.Items[0].Count) >= refusals && strings.Contains(events.Items[0].Message, "must be a cron expression"), err
		})
		schedule := fmt.Sprintf("0 %d * * *", refusals)
		annotate(schedule)
		waitCronAt(t, namespace, "deployment-web", "to be corrected", hasSchedule(schedule))
	}
	kubectl(t, "", "delete", "-n", namespace, "deployment/web")
	waitGone(t, namespace, "cronats")
}
