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
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
// request must succeed.
func createWeb(t *testing.T, namespace string) {
	t.Helper()
	server, client, _ := strings.Cut(web, "---\napiVersion: v1\nkind: Pod")
	kubectl(t, server, "apply", "-n", namespace, "-f", "-")
	waitFor(t, namespace, "Available", "deployment/web")
	kubectl(t, "apiVersion: v1\nkind: Pod"+client, "apply", "-n", namespace, "-f", "-")
	waitFor(t, namespace, "Ready", "pod/client")
	waitAnswers(t, namespace, 1)
}

// waitRestarted waits until the restart of web has ended. A replica must be available all the time: one that is not
// takes a second to become ready, so that this is seen.
func waitRestarted(t *testing.T, namespace, name, condition, reason string) {
	t.Helper()
	wantEnd(t, waitAt(t, namespace, name, "to have ended", func(at *v1alpha1.At) bool {
		web, err := kubeClient.AppsV1().Deployments(namespace).Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil || web.Status.AvailableReplicas < 1 {
			t.Errorf("%d replicas are available: %v", web.Status.AvailableReplicas, err)
		}
		return at.Status.Phase == v1alpha1.PhaseDone
	}), condition, reason)
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
	createWeb(t, namespace)
	for _, name := range []string{"first", "second"} {
		at := newRestart(namespace, v1alpha1.RestartDeployment)
		at.Name = name
		createAt(t, at)
		waitRestarted(t, namespace, name, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
	}
	waitAnswers(t, namespace, 10)
}

// TestRestartFails restarts a Deployment with a broken configuration: the new Pods do not
// become ready, and the old ones continue to serve.
func TestRestartFails(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	createWeb(t, namespace)
	kubectl(t, "", "patch", "-n", namespace, "configmap/web", "-p", `{"data":{"CONFIG":"bad"}}`)
	kubectl(t, "", "patch", "-n", namespace, "deployment/web", "-p", `{"spec":{"progressDeadlineSeconds":10}}`)
	createAt(t, newRestart(namespace, v1alpha1.RestartDeployment))
	waitRestarted(t, namespace, "at", v1alpha1.ConditionFailed, v1alpha1.ReasonRolloutFailed)
	// A Pod that is new after the deadline counts as progress once more.
	eventually(t, "kubectl to say that the deadline is exceeded", func(context.Context) (bool, error) {
		return strings.Contains(wantVerdict(t, namespace, v1alpha1.RestartDeployment), "exceeded its progress deadline"), nil
	})
	waitAnswers(t, namespace, 10)
}
