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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// The writes of a run, in their order, and those that come in between if its first
// attempt fails.
var (
	writes      = []string{"create the Pod", "write RUNNING", "mirror the Pod's phase", "write DONE", "release the Pod"}
	retryWrites = []string{"write the failure", "create the next Pod"}
)

// What can happen to a write.
const (
	fails = "fails before it is sent"
	lost  = "succeeds, but its answer is lost"
	dies  = "succeeds, and the process dies"
	slow  = "is delayed on its way"
)

// proxy stands between a controller and the API server. It lets one write go
// wrong, once, and can hold back what the API server tells of Ats and of Pods.
type proxy struct {
	url   string
	write string
	how   string
	// wrong is closed when the write has gone wrong, and then it hangs until goOn is.
	wrong, goOn chan struct{}

	transport http.RoundTripper
	hit       atomic.Bool

	lock sync.Mutex
	held map[string]chan struct{} // by resource: while there is one, events are held back
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", controllerConfig)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{wrong: make(chan struct{}), goOn: make(chan struct{})}
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
		// The connection breaks: what became of the request, the client cannot know.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	})
	p.url = server.URL
	t.Cleanup(func() {
		p.release()
		server.CloseClientConnections()
		server.Close()
	})
	return p
}

// RoundTrip implements http.RoundTripper.
func (p *proxy) RoundTrip(request *http.Request) (*http.Response, error) {
	if p.write != "" && writeOf(request) == p.write && p.hit.CompareAndSwap(false, true) {
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
			return p.transport.RoundTrip(request)
		}
		return nil, errors.New("the fault that was asked for")
	}
	response, err := p.transport.RoundTrip(request)
	if err == nil && request.URL.Query().Get("watch") != "" {
		response.Body = &heldBody{ReadCloser: response.Body, proxy: p, resource: path.Base(request.URL.Path)}
	}
	return response, err
}

// waitWrong waits until the write has gone wrong.
func (p *proxy) waitWrong(t *testing.T) {
	t.Helper()
	select {
	case <-p.wrong:
	case <-time.After(patience):
		t.Fatal("the write did not come")
	}
}

// writeOf says which of the writes of a run a request is; empty if it is none.
func writeOf(request *http.Request) string {
	body := func() []byte {
		body, _ := io.ReadAll(request.Body)
		request.Body = io.NopCloser(bytes.NewReader(body))
		return body
	}
	switch {
	case request.Method == http.MethodPost && strings.HasSuffix(request.URL.Path, "/pods"):
		if bytes.Contains(body(), []byte("at-pod-1")) {
			return "create the next Pod"
		}
		return "create the Pod"
	case request.Method == http.MethodPatch && strings.Contains(request.URL.Path, "/pods/"):
		return "release the Pod"
	case request.Method == http.MethodPut && strings.HasSuffix(request.URL.Path, "/status"):
		var at v1alpha1.At
		switch {
		case json.Unmarshal(body(), &at) != nil:
			return ""
		case at.Status.NextAttemptTime != nil:
			return "write the failure"
		case at.Status.Phase == v1alpha1.PhaseDone:
			return "write DONE"
		case at.Status.Pod != nil && at.Status.Pod.Phase == corev1.PodRunning:
			return "mirror the Pod's phase"
		case at.Status.Pod != nil:
			return "write RUNNING"
		}
	}
	return ""
}

// hold holds back what the API server tells of some resources, until release.
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

// heldBody is the body of a watch's answer.
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

// node plays the kubelet of a node for the Pods of a namespace: it takes them on,
// runs them, and ends them, each step once the At tells of the one before, and
// stops those that are deleted. A first attempt fails, if another may follow. It
// counts the containers that it has started.
type node struct {
	lock    sync.Mutex
	started map[types.UID]bool
}

func startNode(t *testing.T, namespace string) *node {
	t.Helper()
	// The Pods of a node that does not exist are evicted after a while.
	_, err := kubeClient.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "played"},
		Spec:       corev1.NodeSpec{Unschedulable: true},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	n := &node{started: map[types.UID]bool{}}
	playPods(t, namespace, metav1.ListOptions{}, n.sync)
	return n
}

// playPods calls sync again and again for the Pods of a namespace, until the end of
// the test. What does not succeed is done again.
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
		}, pollPeriod)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
}

// sync does the next step with a Pod.
func (n *node) sync(ctx context.Context, pod *corev1.Pod) {
	pods := kubeClient.CoreV1().Pods(pod.Namespace)
	at, err := cnatClient.CnatV1alpha1().Ats(pod.Namespace).Get(ctx, "at", metav1.GetOptions{})
	if err != nil {
		return
	}
	told := corev1.PodPhase("")
	if at.Status.Pod != nil && at.Status.Pod.UID == pod.UID {
		told = at.Status.Pod.Phase
	}
	switch {
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return
	case pod.Spec.NodeName == "":
		_ = pods.Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, UID: pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: "played"},
		}, metav1.CreateOptions{})
		return
	case pod.DeletionTimestamp != nil:
		pod.Status.Phase = corev1.PodFailed
		pod.Status.ContainerStatuses = exited(pod, 143, "")
	case pod.Status.Phase == corev1.PodPending && told == corev1.PodPending:
		n.lock.Lock()
		n.started[pod.UID] = true
		n.lock.Unlock()
		pod.Status.Phase = corev1.PodRunning
	case pod.Status.Phase == corev1.PodRunning && told == corev1.PodRunning:
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

// TestFaults lets each write of a run go wrong in each way, while something else
// happens. Each time there is one Pod an attempt, one end, and nothing is left behind.
func TestFaults(t *testing.T) {
	t.Parallel()
	installCRD(t)
	const restart, deleted, stale, second = "plain restart", "the Pod is deleted", "the cache of Ats is stale", "a second controller runs it"
	deletePods := func(t *testing.T, namespace string) {
		t.Helper()
		if err := kubeClient.CoreV1().Pods(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
	}
	waitDone := func(t *testing.T, namespace string) {
		t.Helper()
		waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	}
	// They happen while the write hangs.
	meanwhiles := map[string]func(t *testing.T, namespace string){
		restart: func(*testing.T, string) {},
		deleted: deletePods,
		stale:   func(*testing.T, string) {},
		second: func(t *testing.T, namespace string) {
			t.Helper()
			startController(t, namespace)
			waitDone(t, namespace)
		},
		second + ", and its Pod is deleted": func(t *testing.T, namespace string) {
			t.Helper()
			startController(t, namespace)
			waitDone(t, namespace)
			deletePods(t, namespace)
			eventually(t, "the Pod to be gone", func(ctx context.Context) (bool, error) {
				pods, err := kubeClient.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
				return err == nil && len(pods.Items) == 0, err
			})
		},
	}
	for _, write := range slices.Concat(writes, retryWrites) {
		for _, how := range []string{fails, lost, dies} {
			for what, meanwhile := range meanwhiles {
				t.Run(fmt.Sprintf("%s %s, %s", write, how, what), func(t *testing.T) {
					t.Parallel()
					namespace := newNamespace(t)
					p := newProxy(t)
					p.write, p.how = write, how
					n := startNode(t, namespace)
					c := startController(t, namespace, "-master="+p.url)
					goOn := sync.OnceFunc(func() { close(p.goOn) })
					t.Cleanup(goOn)
					at, attempts := newAt(namespace, "at", time.Now().Add(time.Second), "true"), 1
					if slices.Contains(retryWrites, write) {
						at.Spec.BackoffLimit, attempts = ptr.To[int32](1), 2
					}
					createAt(t, at)
					behind := what == stale || strings.HasPrefix(what, second)
					if behind {
						waitLog(t, c, `phase="PENDING"`)
						p.hold("ats")
					}
					p.waitWrong(t)
					if how == dies {
						c.kill(t)
					}
					meanwhile(t, namespace)
					if what == restart && how != dies {
						c.kill(t)
					}
					goOn()
					switch {
					case how == dies && strings.HasPrefix(what, second):
					case how == dies, what == restart:
						startController(t, namespace)
					case behind:
						// For the controller to show what it does without knowing better.
						time.Sleep(time.Second)
					}
					p.release()

					at = waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
					switch {
					case at.Status.Reason == v1alpha1.ReasonCompleted && meta.IsStatusConditionTrue(at.Status.Conditions, v1alpha1.ConditionComplete):
					case (at.Status.Reason == v1alpha1.ReasonCommandFailed || at.Status.Reason == v1alpha1.ReasonPodFailed) && what == deleted && meta.IsStatusConditionTrue(at.Status.Conditions, v1alpha1.ConditionFailed):
					default:
						t.Errorf("it ended as %s: %+v", at.Status.Reason, at.Status.Conditions)
					}
					waitReleased(t, namespace)
					n.lock.Lock()
					defer n.lock.Unlock()
					created := creations(t, namespace)
					if len(created) != attempts || len(n.started) > attempts {
						t.Errorf("%d Pods were created and %d containers started, want %d", len(created), len(n.started), attempts)
					}
					if len(created) == 2 && created[0].ObjectRef.Name == created[1].ObjectRef.Name {
						t.Errorf("Pod %s was created twice", created[0].ObjectRef.Name)
					}
				})
			}
		}
	}
}

// TestStale has things happen of which a controller does not hear, for its watches
// are held back until a second after an At was due.
func TestStale(t *testing.T) {
	t.Parallel()
	installCRD(t)
	for name, tc := range map[string]struct {
		meanwhile func(t *testing.T, namespace string, due time.Time)
		// expectations
		creations int
		after     time.Duration // at the earliest, from the time when it was due first
		phase     v1alpha1.AtPhase
	}{
		"nothing": {
			func(*testing.T, string, time.Time) {}, 1, 0, v1alpha1.PhaseDone,
		},
		"moved": {
			func(t *testing.T, namespace string, due time.Time) {
				t.Helper()
				update(t, namespace, func(at *v1alpha1.At) { at.Spec.Schedule = due.Add(3 * time.Second).UTC().Format(time.RFC3339Nano) })
			}, 1, 3 * time.Second, v1alpha1.PhaseDone,
		},
		"moved, and back": {
			func(t *testing.T, namespace string, due time.Time) {
				t.Helper()
				update(t, namespace, func(at *v1alpha1.At) { at.Spec.Schedule = "2099-01-01T00:00:00Z" })
				update(t, namespace, func(at *v1alpha1.At) { at.Spec.Schedule = due.UTC().Format(time.RFC3339Nano) })
			}, 1, 0, v1alpha1.PhaseDone,
		},
		"suspended": {
			func(t *testing.T, namespace string, _ time.Time) {
				t.Helper()
				update(t, namespace, func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) })
			}, 0, 0, v1alpha1.PhasePending,
		},
		"deleted": {
			func(t *testing.T, namespace string, _ time.Time) {
				t.Helper()
				deleteAt(t, namespace)
			}, 0, 0, "",
		},
		"deleted, and created again for later": {
			func(t *testing.T, namespace string, due time.Time) {
				t.Helper()
				deleteAt(t, namespace)
				createAt(t, newAt(namespace, "at", due.Add(3*time.Second), "true"))
			}, 1, 3 * time.Second, v1alpha1.PhaseDone,
		},
		"run by another controller, deleted with its Pod, and created again": {
			func(t *testing.T, namespace string, due time.Time) {
				t.Helper()
				other := startController(t, namespace)
				waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
				waitReleased(t, namespace)
				other.kill(t)
				kubectl(t, "", "delete", "-n", namespace, "--cascade=foreground", "--timeout=60s", "at/at")
				createAt(t, newAt(namespace, "at", due, "true"))
			}, 2, 0, v1alpha1.PhaseDone,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			p := newProxy(t)
			startNode(t, namespace)
			c := startController(t, namespace, "-master="+p.url)
			due := time.Now().Add(10 * time.Second)
			createAt(t, newAt(namespace, "at", due, "true"))
			waitLog(t, c, `phase="PENDING"`)
			p.hold("ats", "pods")
			if time.Until(due) < time.Second {
				t.Fatal("the machine is too slow for this test")
			}
			tc.meanwhile(t, namespace, due)
			time.Sleep(time.Until(due.Add(time.Second)))
			p.release()

			if tc.phase != "" {
				waitPhase(t, namespace, "at", tc.phase)
			}
			created := creations(t, namespace)
			if len(created) != tc.creations {
				t.Fatalf("%d Pods were created, want %d", len(created), tc.creations)
			}
			for _, create := range created {
				if late := create.RequestReceivedTimestamp.Sub(due); late < tc.after {
					t.Errorf("a Pod was created %v after the first time, want at least %v", late, tc.after)
				}
			}
		})
	}
}

// TestSlowCreation has the creation of a Pod delayed on its way until after another
// controller has run the At, and somebody has deleted its Pods.
func TestSlowCreation(t *testing.T) {
	t.Parallel()
	installCRD(t)
	for _, write := range []string{"create the Pod", "create the next Pod"} {
		t.Run(write, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			p := newProxy(t)
			p.write, p.how = write, slow
			startNode(t, namespace)
			startController(t, namespace, "-master="+p.url)
			goOn := sync.OnceFunc(func() { close(p.goOn) })
			t.Cleanup(goOn)
			at, attempts := newAt(namespace, "at", time.Now().Add(time.Second), "true"), 1
			if write == "create the next Pod" {
				at.Spec.BackoffLimit, attempts = ptr.To[int32](1), 2
			}
			createAt(t, at)
			p.waitWrong(t)
			startController(t, namespace)
			at = waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
			if err := kubeClient.CoreV1().Pods(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
				t.Fatal(err)
			}
			// Long enough for them to go, if nothing kept them.
			time.Sleep(2 * time.Second)
			if end := meta.FindStatusCondition(at.Status.Conditions, v1alpha1.ConditionComplete); end == nil || time.Since(end.LastTransitionTime.Time) > 7*time.Second {
				t.Fatalf("the machine is too slow for this test, or the At did not end well: %+v", at.Status)
			}
			goOn()
			for i, create := range wantCreates(t, namespace, attempts+1) {
				want := http.StatusCreated
				if i == attempts {
					want = http.StatusConflict
				}
				if create.ResponseStatus.Code != want {
					t.Errorf("creation %d, of Pod %s, was answered %d, want %d", i, create.ObjectRef.Name, create.ResponseStatus.Code, want)
				}
			}
			waitReleased(t, namespace)
		})
	}
}

// TestPodStripped has somebody take from a Pod what says whose it is, before anything
// of it is recorded.
func TestPodStripped(t *testing.T) {
	t.Parallel()
	installCRD(t)
	for what, patch := range map[string]string{
		"owner": `{"metadata":{"ownerReferences":null}}`,
		"label": `{"metadata":{"labels":{"` + v1alpha1.LabelAtUID + `":"other"}}}`,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			p := newProxy(t)
			p.write, p.how = "write RUNNING", fails
			t.Cleanup(func() { close(p.goOn) })
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
	tolerantly(t, "each Pod to be released", func(ctx context.Context) (bool, error) {
		pods, err := kubeClient.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		return err == nil && !slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool { return len(pod.Finalizers) > 0 }), err
	})
}

// creations returns the creations of Pods in a namespace that succeeded.
func creations(t *testing.T, namespace string) []request {
	t.Helper()
	return slices.DeleteFunc(requests(t, namespace, "create", "pods"), func(create request) bool {
		return create.ResponseStatus.Code != http.StatusCreated
	})
}

// waitLog waits until the controller has logged what is given.
func waitLog(t *testing.T, c *controller, what string) {
	t.Helper()
	eventually(t, "the word "+what, func(context.Context) (bool, error) { return strings.Contains(c.output(), what), nil })
}
