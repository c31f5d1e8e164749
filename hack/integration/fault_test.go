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

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// The writes of a run, in order, and those that occur in between if its first attempt
// fails. A look is the read just before the creation of a Pod.
const (
	look         = "look at the At"
	create       = "create the Pod"
	writeRunning = "write RUNNING"
	mirror       = "mirror the Pod's phase"
	writeDone    = "write DONE"
	release      = "release the Pod"
	writeFailure = "write the failure"
	createNext   = "create the next Pod"
)

// The ways in which a request can fail.
const (
	fails = "fails before it is sent"
	lost  = "succeeds, but its answer is lost"
	dies  = "succeeds, and the process dies"
	slow  = "is delayed on its way"
)

// proxy is a proxy between a controller and the API server. It makes a single request
// fail, and can hold back the events of Ats and Pods.
type proxy struct {
	url string
	how string
	// requests are the kinds of requests of which the proxy makes the first one fail. kind
	// returns the kind of a request.
	requests []string
	kind     func(*http.Request) string
	// stale are the resources whose events are held back from just before the failure.
	stale []string
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
	config, err := clientcmd.BuildConfigFromFlags("", controllerConfig)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{how: how, requests: requests, kind: kindOf, wrong: make(chan struct{}), goOn: make(chan struct{}), answered: make(chan struct{})}
	if p.transport, err = rest.TransportFor(config); err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     p,
		FlushInterval: -1,
		// The connection breaks: the client cannot know whether the request succeeded.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	})
	p.url = server.URL
	t.Cleanup(func() {
		p.resume()
		p.release()
		server.CloseClientConnections()
		server.Close()
	})
	return p
}

// with sets kind and stale. The controller is another process, so the race detector sees no
// order between that and the requests but that of the lock.
func (p *proxy) with(kind func(*http.Request) string, stale ...string) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.kind, p.stale = kind, stale
}

// RoundTrip implements http.RoundTripper.
func (p *proxy) RoundTrip(request *http.Request) (*http.Response, error) {
	p.lock.Lock()
	kind, behind := p.kind, p.stale
	p.lock.Unlock()
	if slices.Contains(p.requests, kind(request)) && p.hit.CompareAndSwap(false, true) {
		if len(behind) > 0 {
			p.hold(behind...)
		}
		if p.how == lost || p.how == dies {
			response, err := p.transport.RoundTrip(request)
			if err == nil {
				_, err = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			}
			if err != nil {
				return nil, err
			}
		}
		close(p.wrong)
		<-p.goOn
		if p.how == slow {
			defer close(p.answered)
			// The request arrives, even if the controller is gone by then.
			return p.transport.RoundTrip(request.WithContext(context.WithoutCancel(request.Context())))
		}
		return nil, errors.New("injected fault")
	}
	response, err := p.transport.RoundTrip(request)
	if err == nil && request.URL.Query().Get("watch") != "" {
		response.Body = &heldBody{ReadCloser: response.Body, proxy: p, resource: path.Base(request.URL.Path)}
	}
	return response, err
}

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
	case isPreflight(request.UserAgent()):
	case request.Method == http.MethodGet && strings.HasSuffix(request.URL.Path, "/ats/at"):
		return look
	case request.Method == http.MethodPost && strings.HasSuffix(request.URL.Path, "/pods"):
		if bytes.Contains(bodyOf(request), []byte("at-pod-1")) {
			return createNext
		}
		return create
	case request.Method == http.MethodPatch && strings.Contains(request.URL.Path, "/pods/"):
		return release
	case request.Method == http.MethodPatch && strings.HasSuffix(request.URL.Path, "/status"):
		var at v1alpha1.At
		switch {
		case json.Unmarshal(bodyOf(request), &at) != nil:
			return ""
		case at.Status.NextAttemptTime != nil:
			return writeFailure
		case at.Status.Phase == v1alpha1.PhaseDone:
			return writeDone
		case at.Status.Pod != nil && at.Status.Pod.Phase == corev1.PodRunning:
			return mirror
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

// node simulates the kubelet for the Pods of the At named at: it accepts them, runs them
// and ends them, each step once the previous one is in the At's status. It stops deleted
// Pods. A first attempt fails if another one may follow. It counts the containers that it
// has started.
type node struct {
	lock    sync.Mutex
	started map[types.UID]bool
}

func startNode(t *testing.T, namespace string) *node {
	t.Helper()
	// The Pods of a node that does not exist are evicted after a while.
	nodes := kubeClient.CoreV1().Nodes()
	_, err := nodes.Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Spec:       corev1.NodeSpec{Unschedulable: true},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nodes.Delete(context.Background(), namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	n := &node{started: map[types.UID]bool{}}
	playPods(t, namespace, metav1.ListOptions{}, n.sync)
	return n
}

// playPeriod is the interval at which a simulated kubelet checks its Pods.
const playPeriod = 100 * time.Millisecond

// playPods calls sync repeatedly for the Pods of a namespace until the end of the test,
// and retries failures.
func playPods(t *testing.T, namespace string, which metav1.ListOptions, sync func(context.Context, *corev1.Pod)) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			pods, err := kubeClient.CoreV1().Pods(namespace).List(ctx, which)
			if err != nil {
				return
			}
			for i := range pods.Items {
				sync(ctx, &pods.Items[i])
			}
		}, playPeriod)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
}

// sync takes the next step with a Pod.
func (n *node) sync(ctx context.Context, pod *corev1.Pod) {
	pods := kubeClient.CoreV1().Pods(pod.Namespace)
	at, err := cnatClient.CnatV1alpha1().Ats(pod.Namespace).Get(ctx, "at", metav1.GetOptions{})
	if err != nil {
		return
	}
	recorded := corev1.PodPhase("")
	if at.Status.Pod != nil && at.Status.Pod.UID == pod.UID {
		recorded = at.Status.Pod.Phase
	}
	switch {
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return
	case pod.Spec.NodeName == "":
		_ = pods.Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, UID: pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: pod.Namespace},
		}, metav1.CreateOptions{})
		return
	case pod.DeletionTimestamp != nil:
		pod.Status.Phase = corev1.PodFailed
		pod.Status.ContainerStatuses = exited(pod, 143, "")
	case pod.Status.Phase == corev1.PodPending && recorded == corev1.PodPending:
		n.lock.Lock()
		n.started[pod.UID] = true
		n.lock.Unlock()
		pod.Status.Phase = corev1.PodRunning
	case pod.Status.Phase == corev1.PodRunning && recorded == corev1.PodRunning:
		pod.Status.Phase = corev1.PodSucceeded
		pod.Status.ContainerStatuses = exited(pod, 0, "")
		if pod.Name == "at-pod" && at.Spec.BackoffLimit != nil {
			pod.Status.Phase = corev1.PodFailed
			pod.Status.ContainerStatuses = exited(pod, 3, "")
		}
	default:
		return
	}
	_, _ = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
}

// Events that can happen while a failing write hangs.
const (
	restart       = "the controller restarts"
	deleted       = "the Pod is deleted"
	stale         = "the cache of Ats is stale"
	second        = "a second controller runs it"
	secondDeleted = "a second controller runs it, and its Pod is deleted"
)

// sample has the cases of TestFaults that are not left to hack/soak.sh: each write fails
// in each way, and each event is combined with several writes. 28 of the 105 cases are
// duplicates. If the process dies, it has no cache that could be stale and no second try,
// so three of the events are just its restart. After a restart, a write whose response is
// lost is equivalent to one during which the process dies. The cases that are most likely
// to run a command twice are all here: a creation that is sent again because of a stale
// cache, or after a second controller has run the At and the Pod is gone.
var sample = map[string]map[string][]string{
	create:       {fails: {stale, secondDeleted}, lost: {second, secondDeleted}, dies: {deleted}},
	writeRunning: {fails: {deleted}, lost: {stale}, dies: {restart}},
	mirror:       {fails: {second}, lost: {deleted}, dies: {restart}},
	writeDone:    {fails: {restart}, lost: {secondDeleted}, dies: {deleted}},
	release:      {fails: {second}, lost: {stale}, dies: {restart}},
	writeFailure: {fails: {secondDeleted}, lost: {stale}, dies: {deleted}},
	createNext:   {fails: {stale, secondDeleted}, lost: {second, secondDeleted}, dies: {restart}},
}

// TestFaults makes each write of a run fail in each way while another event happens. Each
// time, there is one Pod per attempt and one end, and nothing is left behind.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, write := range []string{create, writeRunning, mirror, writeDone, release, writeFailure, createNext} {
		for _, how := range []string{fails, lost, dies} {
			for _, what := range []string{restart, deleted, stale, second, secondDeleted} {
				if *soakFaults || slices.Contains(sample[write][how], what) {
					t.Run(fmt.Sprintf("%s %s, %s", write, how, what), func(t *testing.T) {
						t.Parallel()
						testFault(t, write, how, what)
					})
				}
			}
		}
	}
}

func testFault(t *testing.T, write, how, what string) {
	t.Helper()
	namespace := newNamespace(t)
	p := newProxy(t, how, write)
	n := startNode(t, namespace)
	c := startController(t, namespace, "-master="+p.url)
	t.Cleanup(p.resume)
	at, attempts := newAt(namespace, "at", time.Now().Add(time.Second), "true"), 1
	if write == writeFailure || write == createNext {
		at.Spec.BackoffLimit, attempts = ptr.To[int32](1), 2
	}
	createAt(t, at)
	behind := what == stale || what == second || what == secondDeleted
	if behind {
		waitLog(t, c, `phase="PENDING"`)
		p.hold("ats")
	}
	p.waitWrong(t)
	if how == dies {
		c.kill(t)
	}
	switch what {
	case deleted:
		deletePods(t, namespace)
	case second, secondDeleted:
		startController(t, namespace)
		waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
		if what == secondDeleted {
			deletePods(t, namespace)
			eventually(t, "the Pods to be gone", func(ctx context.Context) (bool, error) {
				pods, err := kubeClient.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
				return err == nil && len(pods.Items) == 0, err
			})
		}
	case restart:
		if how != dies {
			c.kill(t)
		}
	}
	p.resume()
	switch {
	case how == dies && (what == second || what == secondDeleted):
	case how == dies, what == restart:
		startController(t, namespace)
	case behind:
		// The controller must show what it does without further information.
		time.Sleep(time.Second)
	}
	p.release()

	at = waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	switch {
	case at.Status.Reason == v1alpha1.ReasonCompleted && meta.IsStatusConditionTrue(at.Status.Conditions, v1alpha1.ConditionComplete):
	case (at.Status.Reason == v1alpha1.ReasonCommandFailed || at.Status.Reason == v1alpha1.ReasonPodDeleted) && what == deleted && meta.IsStatusConditionTrue(at.Status.Conditions, v1alpha1.ConditionFailed):
	default:
		t.Errorf("it ended as %s: %+v", at.Status.Reason, at.Status.Conditions)
	}
	waitReleased(t, namespace)
	n.lock.Lock()
	defer n.lock.Unlock()
	created := requests(t, namespace, "create", "pods")
	if len(created) != attempts || len(n.started) > attempts {
		t.Errorf("%d Pods were created and %d containers started, want %d", len(created), len(n.started), attempts)
	}
	if len(created) == 2 && created[0].ObjectRef.Name == created[1].ObjectRef.Name {
		t.Errorf("Pod %s was created twice", created[0].ObjectRef.Name)
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
			startNode(t, namespace)
			startController(t, namespace, "-master="+p.url, "-workers=1")
			t.Cleanup(p.resume)
			createAt(t, newAt(namespace, "at", time.Now().Add(time.Second), "true"))
			p.waitWrong(t)
			p.hold("ats", "pods")
			tc.meanwhile(t, namespace)
			p.resume()
			p.release()

			// With a single worker, another At is processed, and logged, after this one.
			createAt(t, newAt(namespace, "next", time.Now(), "true"))
			waitPhase(t, namespace, "next", v1alpha1.PhaseRunning)
			wantCreated := func(want int) {
				t.Helper()
				var created map[string]int
				eventually(t, "the creation of the next Pod to be logged", func(context.Context) (bool, error) {
					created = map[string]int{}
					for _, creation := range requests(t, namespace, "create", "pods") {
						created[creation.ObjectRef.Name]++
					}
					return created["next-pod"] == 1, nil
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
	for _, write := range []string{create, createNext} {
		t.Run(write, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			creates, releases := newProxy(t, slow, write), newProxy(t, slow, release)
			startNode(t, namespace)
			startController(t, namespace, "-master="+creates.url)
			t.Cleanup(creates.resume)
			at, attempts := newAt(namespace, "at", time.Now().Add(time.Second), "true"), 1
			if write == createNext {
				at.Spec.BackoffLimit, attempts = ptr.To[int32](1), 2
			}
			createAt(t, at)
			creates.waitWrong(t)
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
