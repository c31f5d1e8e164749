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
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// forward starts a server that forwards requests to the API server, through the transport that
// wrap returns. It returns the URL of the server.
func forward(t *testing.T, wrap func(http.RoundTripper) http.RoundTripper) string {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", controllerConfig)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     wrap(transport),
		FlushInterval: -1,
		// The connection breaks: the client cannot know whether the request succeeded.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	})
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

var errInjected = errors.New("injected fault")

// playPeriod is the interval at which a simulated kubelet checks its Pods.
const playPeriod = 100 * time.Millisecond

// playPods calls sync repeatedly for the Pods of a namespace until the end of the test,
// and retries failures.
func playPods(t *testing.T, namespace string, which metav1.ListOptions, sync func(context.Context, *corev1.Pod)) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	factory := informers.NewSharedInformerFactoryWithOptions(kubeClient, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.LabelSelector, options.FieldSelector = which.LabelSelector, which.FieldSelector
		}))
	pods := factory.Core().V1().Pods().Lister().Pods(namespace)
	factory.StartWithContext(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			all, _ := pods.List(labels.Everything()) // It has no errors.
			for _, pod := range all {
				sync(ctx, pod.DeepCopy())
			}
		}, playPeriod)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
		factory.Shutdown()
	})
}

// lossy is a transport that loses requests and answers. Of the writes of a resource, it loses one
// in three, and the answer to the one that follows.
type lossy struct {
	transport http.RoundTripper
	lock      sync.Mutex
	writes    map[string]int // by method and resource
}

// RoundTrip implements http.RoundTripper.
func (l *lossy) RoundTrip(request *http.Request) (*http.Response, error) {
	write := writeOf(request)
	if write == "" || isPreflight(request.URL.RawQuery) {
		return l.transport.RoundTrip(request)
	}
	l.lock.Lock()
	number := l.writes[write]
	l.writes[write]++
	l.lock.Unlock()
	if number%3 == 0 {
		return nil, errInjected
	}
	response, err := l.transport.RoundTrip(request)
	if err == nil && number%3 == 1 {
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		return nil, errInjected
	}
	return response, err
}

// writeOf returns the method and the resource of a write, such as "PUT ats/status", or "" for
// a read and for an event.
func writeOf(request *http.Request) string {
	parts := strings.Split(request.URL.Path, "/")
	i := slices.Index(parts, "namespaces")
	if request.Method == http.MethodGet || i < 0 || len(parts) < i+3 || parts[i+2] == "events" {
		return ""
	}
	write := request.Method + " " + parts[i+2]
	if len(parts) > i+4 {
		write += "/" + parts[i+4]
	}
	return write
}

// TestFaults loses requests and answers of each kind of write, of all kinds of objects. Each
// time, what had to happen happens once, and nothing is left behind. hack/explore.sh and
// hack/simulate.sh do this in very many orders; here, the API server is a real one.
func TestFaults(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	k := startKubelet(t, namespace)
	createNodes(t, namespace, "a")
	playReadyIf(t, namespace, func(pod *corev1.Pod) bool { return pod.Labels[v1alpha1.LabelAtUID] == "" })
	createWorkload(t, namespace, v1alpha1.RestartDeployment, "replicas: 1")
	waitRollout(t, namespace, "deployment/web")
	kubectl(t, annotatable("Deployment", "other", ""), "create", "-n", namespace, "-f", "-")

	again := newAt(namespace, "again", time.Now(), failFirst)
	again.Spec.BackoffLimit = ptr.To[int32](1)
	expiring := newAt(namespace, "expiring", time.Now(), "true")
	expiring.Spec.TTLSecondsAfterFinished = ptr.To[int32](0)
	onNodes := newNodesAt(namespace)
	onNodes.Name = "nodes"
	restart := newRestart(namespace, v1alpha1.RestartDeployment)
	restart.Name = "restart"
	for _, at := range []*v1alpha1.At{again, expiring, onNodes, restart} {
		createAt(t, at)
	}
	cronAt := newCronAt(namespace, "")
	cronAt.Spec.SuccessfulAtsHistoryLimit = ptr.To[int32](0)
	_, scheduled := createOverdue(t, cronAt)
	child := "nodes-" + namespace + "-a"

	l := &lossy{writes: map[string]int{}}
	startController(t, namespace, "-restart-annotations", "-master="+forward(t, func(transport http.RoundTripper) http.RoundTripper {
		l.transport = transport
		return l
	}))
	for _, annotation := range []string{"0 3 * * *", "0 4 * * *"} {
		kubectl(t, "", "annotate", "-n", namespace, "--overwrite", "deployment/other", scheduleAnnotation+"="+annotation)
		waitCronAt(t, namespace, "deployment-other", "to have schedule "+annotation, hasSchedule(annotation))
	}
	kubectl(t, "", "annotate", "-n", namespace, "deployment/other", scheduleAnnotation+"-")
	waitGone(t, namespace, "cronats/deployment-other")

	for _, at := range []*v1alpha1.At{again, onNodes, restart} {
		wantEnd(t, waitPhase(t, namespace, at.Name, v1alpha1.PhaseDone), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
	}
	waitGone(t, namespace, "ats/expiring", "ats/"+scheduled)
	waitCronAt(t, namespace, "cronat", "to have run", func(cronAt *v1alpha1.CronAt) bool {
		return cronAt.Status.LastSuccessfulTime != nil && cronAt.Status.Active == 0
	})
	waitReleased(t, namespace)

	pods := []string{"again-pod", "again-pod-1", "expiring-pod", child + "-pod", scheduled + "-pod"}
	wantCreated(t, namespace, "pods", pods...)
	wantCreated(t, namespace, "ats", child, scheduled)
	if generation := kubectl(t, "", "get", "-n", namespace, "deployment/web", "-o", "jsonpath={.metadata.generation}"); generation != "2" {
		t.Errorf("generation %s of the Deployment, want 2", generation)
	}
	k.wantOnceEach(t, len(pods))
	l.lock.Lock()
	defer l.lock.Unlock()
	for _, write := range []string{
		"POST pods", "PATCH pods", "POST ats", "PATCH ats", "PUT ats/status", "DELETE ats",
		"PATCH deployments", "PUT cronats/status", "POST cronats", "PATCH cronats", "DELETE cronats",
	} {
		if l.writes[write] < 2 {
			t.Errorf("%d requests %s, want at least that which was lost, and that whose answer was", l.writes[write], write)
		}
	}
}

// annotatable returns the manifest of a workload, with annotations.
func annotatable(kind, name, annotations string) string {
	return fmt.Sprintf(`{"apiVersion": "apps/v1", "kind": %q, "metadata": {"name": %q, "annotations": {%s}}, "spec": {
		"selector": {"matchLabels": {"app": %[2]q}},
		"template": {"metadata": {"labels": {"app": %[2]q}}, "spec": {"nodeSelector": {"none": ""}, "containers": [{"name": "main", "image": "main"}]}}
	}}`, kind, name, annotations)
}

const scheduleAnnotation = v1alpha1.AnnotationRestartSchedule

// waitCronAt waits until a CronAt exists and satisfies the condition, and returns it.
func waitCronAt(t *testing.T, namespace, name, what string, condition func(*v1alpha1.CronAt) bool) *v1alpha1.CronAt {
	t.Helper()
	return waitObject(t, cnatClient.CnatV1alpha1().CronAts(namespace), name, what, condition)
}

func hasSchedule(schedule string) func(*v1alpha1.CronAt) bool {
	return func(cronAt *v1alpha1.CronAt) bool { return cronAt.Spec.Schedule == schedule }
}

// waitReleased waits until no Pod and no At of a namespace has a finalizer.
func waitReleased(t *testing.T, namespace string) {
	t.Helper()
	for _, resource := range []string{"pods", "ats"} {
		eventually(t, "the "+resource+" to be released", func(ctx context.Context) (bool, error) {
			list, err := list(ctx, namespace, resource, metav1.ListOptions{})
			return err == nil && !slices.ContainsFunc(list, func(object unstructured.Unstructured) bool { return len(object.GetFinalizers()) > 0 }), err
		})
	}
}

// waitLog waits until the controller has logged the given text.
func waitLog(t *testing.T, c *controller, what string) {
	t.Helper()
	eventually(t, "the log to have "+what, func(context.Context) (bool, error) { return strings.Contains(c.output(), what), nil })
}
