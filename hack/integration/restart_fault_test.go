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
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// The writes of a restart, in order.
const (
	beginRestart   = "write RUNNING"
	restartTarget  = "restart the Deployment"
	recordRestart  = "record the restart"
	restartWritten = "write DONE"
)

// Events that can happen while a write of a restart hangs, in addition to those of any
// run.
const (
	scaled    = "a user scales the Deployment"
	restarted = "a user restarts the Deployment"
)

// restartSample has the cases of TestRestartFaults that are not left to hack/soak.sh.
var restartSample = map[string]map[string][]string{
	beginRestart:   {fails: {stale}, lost: {second}, dies: {restarted}},
	restartTarget:  {fails: {restarted}, lost: {second}, dies: {restart}, slow: {second, restarted}},
	recordRestart:  {fails: {restart}, lost: {stale}, dies: {scaled}},
	restartWritten: {fails: {second}, lost: {restart}, dies: {stale}},
}

// TestRestartFaults makes each write of a restart fail in each way while another event
// happens. Each time, the generation shows that the Deployment was restarted once, and
// the At is Complete.
func TestRestartFaults(t *testing.T) {
	t.Parallel()
	for _, write := range []string{beginRestart, restartTarget, recordRestart, restartWritten} {
		for _, how := range []string{fails, lost, dies, slow} {
			for _, what := range []string{restart, stale, second, scaled, restarted} {
				if *soakFaults || slices.Contains(restartSample[write][how], what) {
					t.Run(fmt.Sprintf("%s %s, %s", write, how, what), func(t *testing.T) {
						t.Parallel()
						testRestartFault(t, write, how, what)
					})
				}
			}
		}
	}
}

func testRestartFault(t *testing.T, write, how, what string) {
	t.Helper()
	namespace := newNamespace(t)
	playReady(t, namespace)
	before := createDeployment(t, namespace, "web")
	p := newProxy(t, how, write)
	if what == stale || what == second {
		p.with(kindOfRestart, "ats")
	} else {
		p.with(kindOfRestart)
	}
	c := startController(t, namespace, "-master="+p.url)
	t.Cleanup(p.resume)
	at := newAt(namespace, "at", time.Now().Add(time.Second), "")
	at.Spec.Restart = &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}
	createAt(t, at)
	p.waitWrong(t)
	if how == dies || what == restart {
		c.kill(t)
	}
	wantGeneration := before.Generation + 1
	switch what {
	case second:
		startController(t, namespace)
		waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	case scaled:
		wantGeneration++
		_, err := kubeClient.AppsV1().Deployments(namespace).UpdateScale(t.Context(), "web", &autoscalingv1.Scale{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: namespace}, Spec: autoscalingv1.ScaleSpec{Replicas: 2},
		}, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	case restarted:
		if write != beginRestart && (write != restartTarget || how == lost || how == dies) {
			wantGeneration++ // This restart comes after the At's. Otherwise, it would make that unnecessary.
		}
		// The annotation has whole seconds: a different second changes the template.
		time.Sleep(2 * time.Second)
		kubectl(t, "", "rollout", "restart", "-n", namespace, "deployment/web")
	}
	p.resume()
	switch {
	case what == second:
	case how == dies, what == restart:
		startController(t, namespace)
	case what == stale:
		// The controller must show what it does without further information.
		time.Sleep(time.Second)
	}
	p.release()

	wantEnd(t, waitPhase(t, namespace, "at", v1alpha1.PhaseDone), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
	if got := getDeployment(t, namespace, "web").Generation; got != wantGeneration {
		t.Errorf("generation %d, want %d", got, wantGeneration)
	}
}

// kindOfRestart returns which write of a restart a request is, or "" if it is none.
func kindOfRestart(request *http.Request) string {
	if request.Method != http.MethodPatch || isPreflight(request.UserAgent()) {
		return ""
	}
	if strings.HasSuffix(request.URL.Path, "/deployments/web") {
		return restartTarget
	}
	var at v1alpha1.At
	switch {
	case !strings.HasSuffix(request.URL.Path, "/ats/at/status") || json.Unmarshal(bodyOf(request), &at) != nil:
		return ""
	case at.Status.Phase == v1alpha1.PhaseDone:
		return restartWritten
	case at.Status.Phase == v1alpha1.PhaseRunning:
		return beginRestart
	case at.Status.Restart != nil && at.Status.Restart.RestartedAt != nil:
		return recordRestart
	default:
		return ""
	}
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

// createDeployment creates a Deployment with one Pod, and returns it when its first
// rollout is complete.
func createDeployment(t *testing.T, namespace, name string) *appsv1.Deployment {
	t.Helper()
	labels := map[string]string{"app": name}
	deployments := kubeClient.AppsV1().Deployments(namespace)
	_, err := deployments.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](1),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var deployment *appsv1.Deployment
	eventually(t, "the Deployment to be available", func(ctx context.Context) (bool, error) {
		deployment, err = deployments.Get(ctx, name, metav1.GetOptions{})
		return err == nil && deployment.Status.AvailableReplicas == 1, err
	})
	return deployment
}

func getDeployment(t *testing.T, namespace, name string) *appsv1.Deployment {
	t.Helper()
	deployment, err := kubeClient.AppsV1().Deployments(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return deployment
}
