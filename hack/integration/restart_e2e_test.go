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
	"strings"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// web is a server with two replicas and a Service, and a client that sends one request
// after the other. When a server is stopped, it loses no request: it continues for some
// seconds, until all components know that it must not get any more.
const web = `
apiVersion: v1
kind: ConfigMap
metadata: {name: web}
data: {CONFIG: good}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: busybox:1.37.0
        command: [/bin/sh, -c, "trap exit TERM; test $CONFIG = good && httpd -f -p 8080 -h /etc & sleep 3600 & wait"]
        envFrom: [{configMapRef: {name: web}}]
        readinessProbe:
          httpGet: {path: /passwd, port: 8080}
          periodSeconds: 1
          timeoutSeconds: 30
        lifecycle: {preStop: {sleep: {seconds: 20}}}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: client
    image: busybox:1.37.0
    command: [/bin/sh, -c, "while true; do printf 'GET /passwd HTTP/1.0\r\n\r\n' | nc -w 30 $WEB_SERVICE_HOST 80 | grep -q '200 OK' && echo answered || echo lost; sleep 0.2; done"]
`

// createWeb creates web and waits until its client has a response. From then on, each
// request must succeed. It returns the minimum number of available replicas so far.
func createWeb(t *testing.T, namespace string) (leastAvailable func() int32) {
	t.Helper()
	server, client, _ := strings.Cut(web, "---\napiVersion: v1\nkind: Pod")
	kubectl(t, server, "apply", "-n", namespace, "-f", "-")
	waitFor(t, namespace, "Available", "deployment/web")
	deployments := kubeClient.AppsV1().Deployments(namespace)
	list, err := deployments.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watcher := retryWatch(t.Context(), t, list.ResourceVersion, deployments.Watch)
	var least atomic.Int32
	least.Store(2)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for event := range watcher.ResultChan() {
			deployment, ok := event.Object.(*appsv1.Deployment)
			if !ok {
				t.Errorf("the watch ended: %v", event.Object)
				return
			}
			least.Store(min(least.Load(), deployment.Status.AvailableReplicas))
		}
	}()
	t.Cleanup(func() {
		watcher.Stop()
		<-ended
	})
	kubectl(t, "apiVersion: v1\nkind: Pod"+client, "apply", "-n", namespace, "-f", "-")
	waitFor(t, namespace, "Ready", "pod/client")
	waitAnswers(t, namespace, 1)
	return least.Load
}

// retryWatch watches from a version on until ctx is done. It goes on where the API server ends a
// watch, for example because its cache is too far behind etcd.
func retryWatch(ctx context.Context, t *testing.T, version string, start func(context.Context, metav1.ListOptions) (watch.Interface, error)) watch.Interface {
	t.Helper()
	watcher, err := watchtools.NewRetryWatcherWithContext(ctx, version, &cache.ListWatch{WatchFuncWithContext: start})
	if err != nil {
		t.Fatal(err)
	}
	return watcher
}

// waitAnswers waits until the client has the given number of further responses. No
// request may have failed.
func waitAnswers(t *testing.T, namespace string, more int) {
	t.Helper()
	before := -1
	eventually(t, "answers", func(ctx context.Context) (bool, error) {
		log, err := kubeClient.CoreV1().Pods(namespace).GetLogs("client", &corev1.PodLogOptions{}).DoRaw(ctx)
		if lost := strings.Count(string(log), "lost"); lost > 0 {
			t.Fatalf("%d requests were lost:\n%s", lost, log)
		}
		number := strings.Count(string(log), "answered")
		if before < 0 {
			before = number
		}
		return err == nil && number >= before+more, err
	})
}

// TestRestartLosesNothing restarts a Deployment twice: there is always a replica, and no
// request fails.
func TestRestartLosesNothing(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	leastAvailable := createWeb(t, namespace)
	for _, name := range []string{"first", "second"} {
		at := newRestart(namespace, v1alpha1.RestartDeployment)
		at.Name = name
		createAt(t, at)
		wantEnd(t, waitPhase(t, namespace, name, v1alpha1.PhaseDone), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
	}
	waitAnswers(t, namespace, 10)
	if least := leastAvailable(); least < 1 {
		t.Errorf("at some time, %d replicas were available", least)
	}
}

// TestRestartFails restarts a Deployment with a broken configuration: the new Pods do not
// become ready, and the old ones continue to serve.
func TestRestartFails(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	leastAvailable := createWeb(t, namespace)
	kubectl(t, "", "patch", "-n", namespace, "configmap/web", "-p", `{"data":{"CONFIG":"bad"}}`)
	kubectl(t, "", "patch", "-n", namespace, "deployment/web", "-p", `{"spec":{"progressDeadlineSeconds":10}}`)
	createAt(t, newRestart(namespace, v1alpha1.RestartDeployment))
	wantEnd(t, waitPhase(t, namespace, "at", v1alpha1.PhaseDone), v1alpha1.ConditionFailed, v1alpha1.ReasonRolloutFailed)
	// A Pod that is new after the deadline counts as progress once more.
	eventually(t, "kubectl to say that the deadline is exceeded", func(context.Context) (bool, error) {
		return strings.Contains(wantVerdict(t, namespace, v1alpha1.RestartDeployment), "exceeded its progress deadline"), nil
	})
	waitAnswers(t, namespace, 10)
	if least := leastAvailable(); least < 1 {
		t.Errorf("at some time, %d replicas were available", least)
	}
}

// TestRestartDaemonSet restarts a DaemonSet, and compares each observed state with kubectl's output.
// TestRestartWorkload has the other kinds.
func TestRestartDaemonSet(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	kubectl(t, `{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: web}, spec: {minReadySeconds: 2, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}},
		spec: {containers: [{name: web, image: busybox:1.37.0, command: [sh, -c, "trap exit TERM; sleep 3600 & wait"]}]}}}}`, "create", "-n", namespace, "-f", "-")
	waitRollout(t, namespace, "daemonset/web")
	before := kubectl(t, "", "get", "pods", "-n", namespace, "-o", "jsonpath={.items[0].metadata.name}")
	createAt(t, newRestart(namespace, v1alpha1.RestartDaemonSet))
	waitAt(t, namespace, "at", "to have started", func(at *v1alpha1.At) bool { return at.Status.StartTime != nil })
	for !rolledOut.MatchString(wantVerdict(t, namespace, v1alpha1.RestartDaemonSet)) {
	}
	wantEnd(t, waitPhase(t, namespace, "at", v1alpha1.PhaseDone), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
	waitGone(t, namespace, "pods/"+before)
}
