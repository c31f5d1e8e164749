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
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// The requests of a run that a proxy can stop. A look is the read just before the creation of a
// Pod.
const (
	look         = "look at the At"
	create       = "create the Pod"
	writeRunning = "write RUNNING"
	release      = "release the Pod"
	createNext   = "create the next Pod"
	releaseNext  = "release the next Pod"
)

// The ways in which a request can fail.
const (
	fails = "fails before it is sent"
	slow  = "is delayed on its way"
)

// proxy is a proxy between a controller and the API server. It makes a single request
// fail, and can hold back the events of Ats and Pods.
type proxy struct {
	url string
	how string
	// requests are kinds of requests: of each, the proxy makes the first one fail.
	requests []string
	// wrong is closed when the request has failed. A hanging request then hangs until goOn
	// is closed. answered is closed when a delayed request has its response.
	wrong, goOn, answered chan struct{}

	transport http.RoundTripper
	hit       atomic.Bool

	lock sync.Mutex
	held map[string]chan struct{} // by resource: while it exists, events are held back
}

// newProxy returns a proxy that makes the first of the given requests fail.
func newProxy(t *testing.T, how string, requests ...string) *proxy {
	t.Helper()
	p := &proxy{how: how, requests: requests, wrong: make(chan struct{}), goOn: make(chan struct{}), answered: make(chan struct{})}
	p.url = forward(t, func(transport http.RoundTripper) http.RoundTripper {
		p.transport = transport
		return p
	})
	t.Cleanup(func() {
		p.resume()
		p.release()
	})
	return p
}

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

// RoundTrip implements http.RoundTripper.
func (p *proxy) RoundTrip(request *http.Request) (*http.Response, error) {
	if slices.Contains(p.requests, kindOf(request)) && p.hit.CompareAndSwap(false, true) {
		close(p.wrong)
		<-p.goOn
		if p.how == slow {
			defer close(p.answered)
			// The request arrives, even if the controller is gone by then.
			return p.transport.RoundTrip(request.WithContext(context.WithoutCancel(request.Context())))
		}
		return nil, errInjected
	}
	response, err := p.transport.RoundTrip(request)
	if err == nil && request.URL.Query().Get("watch") != "" {
		response.Body = &heldBody{ReadCloser: response.Body, proxy: p, resource: path.Base(request.URL.Path)}
	}
	return response, err
}

var errInjected = errors.New("injected fault")

// waitWrong waits until the request has failed.
func (p *proxy) waitWrong(t *testing.T) {
	t.Helper()
	waitClosed(t, "the failing request", p.wrong)
}

// resume lets the hanging request continue, and waits for its response if it was delayed.
func (p *proxy) resume() {
	p.lock.Lock()
	select {
	case <-p.goOn:
	default:
		close(p.goOn)
	}
	p.lock.Unlock()
	if p.how == slow && p.hit.Load() {
		<-p.answered
	}
}

// waitClosed waits until a channel is closed or has an element.
func waitClosed[T any](t *testing.T, what string, channel <-chan T) T {
	t.Helper()
	defer announce(t.Name() + ": " + what)()
	select {
	case element := <-channel:
		return element
	case <-time.After(patience):
		t.Fatalf("waiting for %s: timed out", what)
		panic("unreachable")
	}
}

// bodyOf returns the body of a request and restores it.
func bodyOf(request *http.Request) []byte {
	body, _ := io.ReadAll(request.Body)
	request.Body = io.NopCloser(bytes.NewReader(body))
	return body
}

// kindOf returns which request of a run a request is, or "" if it is none.
func kindOf(request *http.Request) string {
	switch {
	case isPreflight(request.UserAgent()) || isDryRun(request.URL.RawQuery):
	case request.Method == http.MethodGet && strings.HasSuffix(request.URL.Path, "/ats/at"):
		return look
	case request.Method == http.MethodPost && strings.HasSuffix(request.URL.Path, "/pods"):
		if bytes.Contains(bodyOf(request), []byte("at-pod-1")) {
			return createNext
		}
		return create
	case request.Method == http.MethodPatch && strings.HasSuffix(request.URL.Path, "/pods/at-pod-1"):
		return releaseNext
	case request.Method == http.MethodPatch && strings.Contains(request.URL.Path, "/pods/"):
		return release
	case request.Method == http.MethodPatch && strings.HasSuffix(request.URL.Path, "/status"):
		var at v1alpha1.At
		switch {
		case json.Unmarshal(bodyOf(request), &at) != nil:
			return ""
		case at.Status.Pod != nil:
			return writeRunning
		}
	}
	return ""
}

// hold holds back the events of some resources, until release.
func (p *proxy) hold(resources ...string) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.held = map[string]chan struct{}{}
	for _, resource := range resources {
		p.held[resource] = make(chan struct{})
	}
}

func (p *proxy) release() {
	p.lock.Lock()
	defer p.lock.Unlock()
	for _, held := range p.held {
		close(held)
	}
	p.held = nil
}

// heldBody is the body of a watch response.
type heldBody struct {
	io.ReadCloser
	proxy    *proxy
	resource string
}

func (b *heldBody) Read(buffer []byte) (int, error) {
	n, err := b.ReadCloser.Read(buffer)
	b.proxy.lock.Lock()
	held := b.proxy.held[b.resource]
	b.proxy.lock.Unlock()
	if held != nil {
		<-held
	}
	return n, err
}

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
	if write == "" || isPreflight(request.UserAgent()) {
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

// writeOf returns the method and the resource of a write, such as "PATCH ats/status", or "" for
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
	f := newFleet(t, namespace, "a")
	playReadyIf(t, namespace, func(pod *corev1.Pod) bool { return pod.Labels[v1alpha1.LabelAtUID] == "" })
	createWorkload(t, namespace, v1alpha1.RestartDeployment, "replicas: 1")
	waitRolledOut(t, namespace, v1alpha1.RestartDeployment)
	kubectl(t, annotatable("Deployment", "other", ""), "create", "-n", namespace, "-f", "-")

	again := newAt(namespace, "again", time.Now(), failFirst)
	again.Spec.BackoffLimit = ptr.To[int32](1)
	expiring := newAt(namespace, "expiring", time.Now(), "true")
	expiring.Spec.TTLSecondsAfterFinished = ptr.To[int32](0)
	onNodes := newNodesAt(f)
	onNodes.Name = "nodes"
	restart := newRestart(namespace, v1alpha1.RestartDeployment)
	restart.Name = "restart"
	for _, at := range []*v1alpha1.At{again, expiring, onNodes, restart} {
		createAt(t, at)
	}
	due := createOverdue(t, newCronAt(namespace, "", func(cronAt *v1alpha1.CronAt) { cronAt.Spec.SuccessfulAtsHistoryLimit = ptr.To[int32](0) }))
	scheduled, child := fmt.Sprintf("cronat-%d", due.Unix()/60), "nodes-"+f.name("a")

	l := &lossy{writes: map[string]int{}}
	startController(t, namespace, "-restart-annotations", "-master="+forward(t, func(transport http.RoundTripper) http.RoundTripper {
		l.transport = transport
		return l
	}))
	for _, annotation := range []string{"0 3 * * *", "0 4 * * *"} {
		kubectl(t, "", "annotate", "-n", namespace, "--overwrite", "deployment/other", scheduleAnnotation+"="+annotation)
		waitNamedCronAt(t, namespace, "deployment-other", "to have schedule "+annotation, hasSchedule(annotation))
	}
	kubectl(t, "", "annotate", "-n", namespace, "deployment/other", scheduleAnnotation+"-")
	waitNamedCronAt(t, namespace, "deployment-other", "to be gone", isGone)

	for _, at := range []*v1alpha1.At{again, onNodes, restart} {
		wantEnd(t, waitPhase(t, namespace, at.Name, v1alpha1.PhaseDone), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
	}
	ran := func(cronAt *v1alpha1.CronAt) bool {
		return cronAt.Status.LastScheduleTime.Time.Equal(due) && cronAt.Status.Active == 0
	}
	waitCronAt(t, namespace, "to have run", ran)
	waitAts(t, namespace, 4) // Those that have ended are again, nodes with its child, and restart.
	waitReleased(t, namespace)
	waitChildrenReleased(t, namespace)

	pods := []string{"again-pod", "again-pod-1", "expiring-pod", child + "-pod", scheduled + "-pod"}
	wantCreates(t, namespace, len(pods))
	wantCreated(t, namespace, pods...)
	if diff := cmp.Diff(map[string]int{child: 1, scheduled: 1}, createdAts(t, namespace)); diff != "" {
		t.Errorf("Ats were created (-want +got):\n%s", diff)
	}
	if generation := generationOf(t, namespace, v1alpha1.RestartDeployment); generation != 2 {
		t.Errorf("generation %d of the Deployment, want 2", generation)
	}
	k.lock.Lock()
	defer k.lock.Unlock()
	for name, uids := range k.started {
		if len(uids) != 1 {
			t.Errorf("%d containers of %s were started", len(uids), name)
		}
	}
	l.lock.Lock()
	defer l.lock.Unlock()
	for _, write := range []string{
		"POST pods", "PATCH pods", "POST ats", "PATCH ats", "PATCH ats/status", "DELETE ats",
		"PATCH deployments", "PATCH cronats/status", "POST cronats", "PATCH cronats", "DELETE cronats",
	} {
		if l.writes[write] < 2 {
			t.Errorf("%d requests %s, want at least that which was lost, and that whose answer was", l.writes[write], write)
		}
	}
}

func deletePods(t *testing.T, namespace string) {
	t.Helper()
	if err := kubeClient.CoreV1().Pods(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
}

// TestStale covers changes that a controller does not see. An At is due. While the
// controller's look at it is in flight (or the creation of its Pod, if there is no look),
// its watches are held back. Then the look arrives. Changes made in between must count.
func TestStale(t *testing.T) {
	t.Parallel()
	setSchedule := func(schedule time.Time) func(*testing.T, string) {
		return func(t *testing.T, namespace string) {
			t.Helper()
			update(t, namespace, func(at *v1alpha1.At) { at.Spec.Schedule = schedule.UTC().Format(time.RFC3339Nano) })
		}
	}
	past, later := time.Now().Add(-time.Second), time.Now().Add(24*time.Hour)
	for name, tc := range map[string]struct {
		meanwhile func(t *testing.T, namespace string)
		// creations by both controllers once this one has decided
		creations int
		// if it runs in the end, with one more creation
		then func(t *testing.T, namespace string)
	}{
		"nothing": {
			func(*testing.T, string) {}, 1, nil,
		},
		"moved": {
			setSchedule(later), 0, setSchedule(past),
		},
		"moved, and back": {
			func(t *testing.T, namespace string) {
				t.Helper()
				setSchedule(later)(t, namespace)
				setSchedule(past)(t, namespace)
			}, 1, nil,
		},
		"suspended": {
			func(t *testing.T, namespace string) {
				t.Helper()
				update(t, namespace, func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) })
			}, 0,
			func(t *testing.T, namespace string) {
				t.Helper()
				update(t, namespace, func(at *v1alpha1.At) { at.Spec.Suspend = nil })
			},
		},
		"deleted": {
			deleteAt, 0, nil,
		},
		"deleted, and created again for later": {
			func(t *testing.T, namespace string) {
				t.Helper()
				deleteAt(t, namespace)
				createAt(t, newAt(namespace, "at", later, "true"))
			}, 0, setSchedule(past),
		},
		"run by another controller, deleted with its Pod, and created again": {
			func(t *testing.T, namespace string) {
				t.Helper()
				other := startController(t, namespace)
				waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
				waitReleased(t, namespace)
				other.kill(t)
				kubectl(t, "", "delete", "-n", namespace, "--cascade=foreground", "--timeout="+patience.String(), "at/at")
				createAt(t, newAt(namespace, "at", past, "true"))
			}, 2, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			p := newProxy(t, slow, look, create)
			playSuccess(t, namespace)
			startController(t, namespace, "-master="+p.url, "-workers=1")
			t.Cleanup(p.resume)
			createAt(t, newAt(namespace, "at", time.Now().Add(time.Second), "true"))
			p.waitWrong(t)
			p.hold("ats", "pods")
			tc.meanwhile(t, namespace)
			p.resume()
			p.release()

			// When another At has ended, the controller has decided about this one.
			createAt(t, newAt(namespace, "next", time.Now(), "true"))
			waitPhase(t, namespace, "next", v1alpha1.PhaseDone)
			wantCreated := func(want int) {
				t.Helper()
				var created map[string]int
				eventually(t, "the creations of the Pods to be logged", func(context.Context) (bool, error) {
					created = map[string]int{}
					for _, creation := range creations(t, namespace) {
						created[creation.ObjectRef.Name]++
					}
					return created["next-pod"] == 1 && created["at-pod"] >= want, nil
				})
				if created["at-pod"] != want {
					t.Errorf("%d Pods were created, want %d", created["at-pod"], want)
				}
			}
			wantCreated(tc.creations)
			if tc.then != nil {
				tc.then(t, namespace)
				tc.creations++
			}
			if tc.creations > 0 {
				waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
				wantCreated(tc.creations)
			}
		})
	}
}

// TestSlowCreation delays the creation of a Pod until another controller has run the At
// and a user has deleted its Pods: the API server refuses the creation while the
// finalizer keeps the Pod's name. The test of the same name next to the controller covers
// how long that is.
func TestSlowCreation(t *testing.T) {
	t.Parallel()
	for write, lastRelease := range map[string]string{create: release, createNext: releaseNext} {
		t.Run(write, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			creates, releases := newProxy(t, slow, write), newProxy(t, slow, lastRelease)
			startKubelet(t, namespace)
			first := startController(t, namespace, "-master="+creates.url)
			t.Cleanup(creates.resume)
			at, attempts := newAt(namespace, "at", time.Now().Add(time.Second), "true"), 1
			if write == createNext {
				at.Spec.Command, at.Spec.BackoffLimit, attempts = failFirst, ptr.To[int32](1), 2
			}
			createAt(t, at)
			creates.waitWrong(t)
			first.kill(t) // Otherwise it gives up after 8 s, and releases the Pods.
			startController(t, namespace, "-master="+releases.url)
			t.Cleanup(releases.resume)
			wantEnd(t, waitPhase(t, namespace, "at", v1alpha1.PhaseDone), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
			deletePods(t, namespace)
			creates.resume()
			eventually(t, "the refusal of the creation", func(context.Context) (bool, error) {
				return len(requestsOf(t, namespace, "create", "pods")) > attempts, nil
			})
			wantCreates(t, namespace, attempts)
			releases.resume()
			waitReleased(t, namespace)
		})
	}
}

// TestPodStripped removes from a Pod everything that identifies its owner, before
// anything about it is recorded.
func TestPodStripped(t *testing.T) {
	t.Parallel()
	for what, patch := range map[string]string{
		"owner": `{"metadata":{"ownerReferences":null}}`,
		"label": `{"metadata":{"labels":{"` + v1alpha1.LabelAtUID + `":"other"}}}`,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			p := newProxy(t, fails, writeRunning)
			c := startController(t, namespace, "-master="+p.url)
			createAt(t, newAt(namespace, "at", time.Now(), "true"))
			p.waitWrong(t)
			c.kill(t)
			kubectl(t, "", "patch", "-n", namespace, "pod/at-pod", "--type=merge", "-p", patch)
			startController(t, namespace)
			waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
			endPod(t, waitPod(t, namespace, "at-pod"), corev1.PodSucceeded, 0, "")
			wantEnd(t, waitPhase(t, namespace, "at", v1alpha1.PhaseDone), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
			waitReleased(t, namespace)
			wantCreates(t, namespace, 1)
		})
	}
}

// waitReleased waits until no Pod of a namespace has the finalizer.
func waitReleased(t *testing.T, namespace string) {
	t.Helper()
	eventually(t, "each Pod to be released", func(ctx context.Context) (bool, error) {
		pods, err := kubeClient.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		return err == nil && !slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool { return len(pod.Finalizers) > 0 }), err
	})
}

// waitLog waits until the controller has logged the given text.
func waitLog(t *testing.T, c *controller, what string) {
	t.Helper()
	eventually(t, "the log to have "+what, func(context.Context) (bool, error) { return strings.Contains(c.output(), what), nil })
}
