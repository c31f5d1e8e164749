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

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	typedcnatv1alpha1 "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/typed/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/queue"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// TestProxyAnswers lets a proxy answer one request instead of the API server: that an
// object does not exist, or that it conflicts. For each request of two runs, the runs end as
// they do without that answer.
func TestProxyAnswers(t *testing.T) {
	t.Parallel()
	for _, code := range []int{http.StatusNotFound, http.StatusConflict} {
		requests := 1
		for n := 0; n < requests; n++ {
			t.Run(fmt.Sprintf("%d for request %d", code, n), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { requests = testProxyAnswer(t, code, n) })
			})
		}
		if requests < 30 {
			t.Errorf("the runs have %d requests, want more", requests)
		}
	}
}

// testProxyAnswer answers the request with the given number. It returns how many requests
// were sent.
func testProxyAnswer(t *testing.T, code, number int) (sent int) {
	t.Helper()
	server := fakeserver.New(clock.RealClock{})
	kubeClient, cnatClient := harness.NewClients(t, server)
	pods, ats := kubeClient.CoreV1().Pods(name.Namespace), cnatClient.CnatV1alpha1().Ats(name.Namespace)
	for _, node := range []string{"a", "b"} {
		harness.Create(t, kubeClient.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	}

	var started atomic.Bool
	var requests atomic.Int32
	var lock sync.Mutex
	var answered string
	controllerKube, controllerCnat := harness.NewClients(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
		isEvent := path.Base(request.URL.Path) == "events" || path.Base(path.Dir(request.URL.Path)) == "events"
		if !started.Load() || harness.IsWatch(request) || isEvent || int(requests.Add(1))-1 != number {
			return server.RoundTrip(request)
		}
		lock.Lock()
		answered = request.Method + " " + request.URL.Path
		lock.Unlock()
		return fakeserver.AnswerAsProxy(request, code), nil
	}))
	runWithClients(t, controllerKube, controllerCnat, clock.RealClock{})
	started.Store(true)

	// The first attempt fails.
	due := time.Now().Add(time.Minute).Format(time.RFC3339)
	for _, at := range []*v1alpha1.At{
		newAt(func(at *v1alpha1.At) {
			at.Name, at.Spec.Schedule, at.Spec.BackoffLimit = "single", due, ptr.To[int32](1)
			at.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}
			at.Spec.TTLSecondsAfterFinished = ptr.To[int32](60)
		}),
		newAt(func(at *v1alpha1.At) {
			at.Name, at.Spec.Schedule = "nodes", due
			at.Spec.Nodes = &v1alpha1.AtNodes{MaxConcurrent: ptr.To(intstr.FromInt32(1))}
		}),
	} {
		harness.Create(t, ats, at)
	}
	for range 60 {
		time.Sleep(5 * time.Second)
		list := harness.List(t, pods)
		for _, pod := range list.Items {
			if pod.Status.Phase != corev1.PodPending {
				continue
			}
			pod.Status.Phase = corev1.PodSucceeded
			if pod.Name == "single-pod" {
				pod.Status.Phase = corev1.PodFailed
			}
			harness.UpdateStatus(t, pods, &pod)
		}
	}
	lock.Lock()
	defer lock.Unlock()
	list := harness.List(t, ats)
	var left []string
	for _, at := range list.Items {
		left = append(left, at.Name)
		if at.Status.Reason != v1alpha1.ReasonCompleted || len(at.Finalizers) > 0 {
			t.Errorf("%s: At %s is %s (%s) with finalizers %v, want it Completed and released", answered, at.Name, at.Status.Phase, at.Status.Reason, at.Finalizers)
		}
	}
	if want := []string{"nodes", "nodes-a", "nodes-b"}; !slices.Equal(left, want) {
		t.Errorf("%s: Ats %v are left, want %v", answered, left, want)
	}
	// Nobody collects garbage.
	podList := harness.List(t, pods)
	for _, pod := range podList.Items {
		if len(pod.Finalizers) > 0 {
			t.Errorf("%s: Pod %s is not released", answered, pod.Name)
		}
	}
	return int(requests.Load())
}

// TestSweep makes the controller miss an At that is due, a Pod to release, and a Pod of a
// deleted At: the next sweep finds them. Blocked Ats wait for their turn all the same.
func TestSweep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const blocked = 50
		start := time.Now()
		var lock sync.Mutex
		var tries []time.Duration
		server := fakeserver.New(clock.RealClock{})
		kubeClient, cnatClient := harness.NewClients(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
			if harness.Creates(request, "pods") && !isCreation(t, request, "missed-pod") {
				lock.Lock()
				tries = append(tries, time.Since(start))
				lock.Unlock()
				return fakeserver.Refuse(request, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("exceeded quota")))
			}
			return server.RoundTrip(request)
		}))
		c := standBy(t, kubeClient, cnatClient, clock.RealClock{})
		work(t, c)
		synctest.Wait()
		kubeClient, cnatClient = harness.NewClients(t, server.Restore())
		pods, ats := kubeClient.CoreV1().Pods(name.Namespace), cnatClient.CnatV1alpha1().Ats(name.Namespace)
		create := func(mutate ...func(*v1alpha1.At)) {
			t.Helper()
			at := newAt(func(at *v1alpha1.At) { at.Spec.Schedule = start.Format(time.RFC3339) })
			for _, m := range mutate {
				m(at)
			}
			created, err := ats.Create(t.Context(), at, metav1.CreateOptions{})
			if err == nil && at.Name == "done" {
				pod := plan.NewPod(created, defaults)
				pod.Status.Phase = corev1.PodSucceeded
				_, err = pods.Create(t.Context(), pod, metav1.CreateOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		for i := range blocked {
			create(func(at *v1alpha1.At) { at.Name = fmt.Sprint("blocked-", i) })
		}
		time.Sleep(queue.SweepPeriod / 2)
		c.working.Store(false)
		create(func(at *v1alpha1.At) { at.Name = "missed" })
		create(ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, "", start), func(at *v1alpha1.At) { at.Name = "done" })
		orphan := plan.NewPod(newAt(func(at *v1alpha1.At) { at.Name = "gone" }), defaults)
		harness.Create(t, pods, orphan)
		synctest.Wait()
		c.working.Store(true)
		next := queue.SweepPeriod
		time.Sleep(time.Until(start.Add(next + time.Second)))
		if _, err := pods.Get(t.Context(), "missed-pod", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		for _, name := range []string{"done-pod", "gone-pod"} {
			if pod, err := pods.Get(t.Context(), name, metav1.GetOptions{}); err != nil || len(pod.Finalizers) > 0 {
				t.Errorf("Pod %s is not released: %v", name, err)
			}
		}
		lock.Lock()
		defer lock.Unlock()
		late := 0
		for _, try := range tries {
			if try >= next {
				late++
			}
		}
		if late > blocked/4 {
			t.Errorf("%d of %d blocked Ats were retried in the second after the sweep", late, blocked)
		}
	})
}

// TestDeadlineBeyondHorizon suspends an At on a node between two attempts: its run ends at
// its deadline, which is beyond the horizon of the queue.
func TestDeadlineBeyondHorizon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const deadline = queue.Horizon + queue.SweepPeriod + 5*time.Minute
		start := time.Now()
		server := fakeserver.New(clock.RealClock{})
		kubeClient, cnatClient := harness.NewClients(t, server)
		harness.Create(t, kubeClient.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
		runWithClients(t, kubeClient, cnatClient, clock.RealClock{})
		_, cnatClient = harness.NewClients(t, server.Restore())
		ats := cnatClient.CnatV1alpha1().Ats(name.Namespace)
		at := newAt(running, nextAttempt, func(at *v1alpha1.At) {
			at.Spec.Node, at.Spec.Suspend, at.Spec.ActiveDeadlineSeconds = "a", ptr.To(true), ptr.To(int64(deadline.Seconds()))
			at.Status.StartTime, at.Status.NextAttemptTime = &metav1.Time{Time: start}, &metav1.Time{Time: start.Add(10 * time.Second)}
			at.Status.Pod = nil
		})
		harness.Create(t, ats, at)
		want := func(after time.Duration, phase v1alpha1.AtPhase) {
			t.Helper()
			time.Sleep(time.Until(start.Add(after)))
			synctest.Wait()
			if at, err := ats.Get(t.Context(), name.Name, metav1.GetOptions{}); err != nil || at.Status.Phase != phase {
				t.Errorf("after %v it is %s (%s), %v; want %s", after, at.Status.Phase, at.Status.Reason, err, phase)
			}
		}
		want(deadline-time.Second, v1alpha1.PhaseRunning)
		want(deadline+time.Second, v1alpha1.PhaseDone)
	})
}

// TestSlowRead suspends an At after the controller has read it and before it creates the
// Pod, because the nodes are read, or because the creation is delayed. A creation that
// takes long for another reason succeeds.
func TestSlowRead(t *testing.T) {
	for testName, tc := range map[string]struct {
		node          string
		nodes, create time.Duration // how long these requests take before the API server has them
		suspend       time.Duration // after the due time; 0: not suspended
		created       bool
	}{
		"the nodes are read slowly":          {node: "a", nodes: 5 * time.Second, suspend: 2 * time.Second},
		"the creation is delayed":            {create: 9 * time.Second, suspend: 5 * time.Second},
		"each creation takes 10 seconds":     {create: 10 * time.Second, created: true},
		"each creation takes half a minute":  {create: 30 * time.Second, created: true},
		"the nodes are read slowly, it runs": {node: "a", nodes: 5 * time.Second, created: true},
	} {
		t.Run(testName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := fakeserver.New(clock.RealClock{})
				watches := harness.NewWatches(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
					takes := time.Duration(0)
					switch {
					case harness.IsWatch(request):
					case path.Base(request.URL.Path) == "nodes":
						takes = tc.nodes
					case isCreation(t, request, "example-at-pod"):
						takes = tc.create
					}
					select {
					case <-time.After(takes):
					case <-request.Context().Done():
						return nil, request.Context().Err()
					}
					return server.RoundTrip(request)
				}), "ats")
				kubeClient, cnatClient := harness.NewClients(t, watches)
				runWithClients(t, kubeClient, cnatClient, clock.RealClock{})
				kubeClient, cnatClient = harness.NewClients(t, server)
				ats := cnatClient.CnatV1alpha1().Ats(name.Namespace)
				harness.Create(t, kubeClient.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
				due := time.Now().Add(time.Minute)
				at := newAt(func(at *v1alpha1.At) { at.Spec.Schedule, at.Spec.Node = due.Format(time.RFC3339), tc.node })
				harness.Create(t, ats, at)
				time.Sleep(30 * time.Second)
				watches.Hold()
				if tc.suspend > 0 {
					time.Sleep(time.Until(due.Add(tc.suspend)))
					harness.Patch(t, ats, at.Name, `{"spec":{"suspend":true}}`)
				}
				time.Sleep(5 * time.Minute)
				list := harness.List(t, kubeClient.CoreV1().Pods(name.Namespace))
				if got := len(list.Items) > 0; got != tc.created {
					t.Errorf("a Pod was created: %v, want %v", got, tc.created)
				}
			})
		})
	}
}

// TestStaleParent suspends or deletes the parent of an At on a node without the
// controller's knowledge, or while the At is read: the At neither starts nor is it resumed.
func TestStaleParent(t *testing.T) {
	for what, act := range map[string]func(context.Context, typedcnatv1alpha1.AtInterface) error{
		"suspended": func(ctx context.Context, ats typedcnatv1alpha1.AtInterface) error {
			_, err := ats.Patch(ctx, name.Name, types.MergePatchType, []byte(`{"spec":{"suspend":true}}`), metav1.PatchOptions{})
			return err
		},
		"deleted": func(ctx context.Context, ats typedcnatv1alpha1.AtInterface) error {
			return ats.Delete(ctx, name.Name, metav1.DeleteOptions{})
		},
	} {
		for when, tc := range map[string]struct{ waits, duringRead bool }{
			"before it starts":     {},
			"before it is resumed": {waits: true},
			"while it is read":     {duringRead: true},
		} {
			t.Run(what+" "+when, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					server := fakeserver.New(clock.RealClock{})
					watches := harness.NewWatches(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
						readsChild := request.Method == http.MethodGet && path.Base(request.URL.Path) == plan.ChildName(name.Name, "a")
						// A write that comes back at once would show that the child need not be read.
						if tc.duringRead && (readsChild || path.Base(request.URL.Path) == "status") {
							time.Sleep(3 * time.Second)
						}
						return server.RoundTrip(request)
					}), "ats")
					kubeClient, cnatClient := harness.NewClients(t, watches)
					standby := standBy(t, kubeClient, cnatClient, clock.RealClock{})
					kubeClient, cnatClient = harness.NewClients(t, server.Restore())
					ats := cnatClient.CnatV1alpha1().Ats(name.Namespace)
					harness.Create(t, kubeClient.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
					now := metav1.Time{Time: time.Now()}
					parent := harness.Create(t, ats, newAt(func(at *v1alpha1.At) {
						at.Spec.Schedule = now.Format(time.RFC3339)
						at.Spec.Nodes = &v1alpha1.AtNodes{MaxConcurrent: ptr.To(intstr.FromInt32(1))}
						at.Status = v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning, StartTime: &now, Nodes: &v1alpha1.AtNodesStatus{Desired: 1, StartTime: &now}}
					}))
					child := harness.Create(t, ats, newAt(func(at *v1alpha1.At) {
						at.Name, at.Spec.Node, at.Finalizers = plan.ChildName(parent.Name, "a"), "a", []string{v1alpha1.FinalizerTracking}
						at.Spec.Schedule, at.Spec.Suspend = now.Format(time.RFC3339), ptr.To(tc.waits)
						at.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(parent, v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.AtKind))}
					}))
					synctest.Wait()
					if tc.duringRead {
						work(t, standby)
						time.Sleep(time.Second)
					}
					if !tc.duringRead {
						watches.Hold()
					}
					if err := act(t.Context(), ats); err != nil {
						t.Fatal(err)
					}
					if !tc.duringRead {
						time.Sleep(time.Second)
						work(t, standby)
					}
					time.Sleep(time.Minute)
					pods, err := kubeClient.CoreV1().Pods(name.Namespace).List(t.Context(), metav1.ListOptions{})
					if err != nil || len(pods.Items) > 0 {
						t.Errorf("%d Pods were created, %v; want none", len(pods.Items), err)
					}
					got := harness.Get(t, ats, child.Name)
					if ptr.Deref(got.Spec.Suspend, false) != tc.waits {
						t.Error("the child was resumed")
					}
				})
			})
		}
	}
}

// TestBlockedAndDeleted deletes an At that could not be started: nothing is left of it in
// the queue, and a new At of that name begins again with its failures.
func TestBlockedAndDeleted(t *testing.T) {
	t.Parallel()
	for testName, refusal := range map[string]error{
		"refused": apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("exceeded quota")),
		"busy":    apierrors.NewTooManyRequests("busy", 1),
	} {
		t.Run(testName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				server := fakeserver.New(clock.RealClock{})
				kubeClient, cnatClient := harness.NewClients(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
					var refused apierrors.APIStatus
					if isCreation(t, request, "example-at-pod") && errors.As(refusal, &refused) {
						return fakeserver.Refuse(request, refused)
					}
					return server.RoundTrip(request)
				}))
				ctx, logged := harness.Logged(t, 4)
				c := standBy(t, kubeClient, cnatClient, clock.RealClock{})
				workIn(ctx, t, c)
				_, cnatClient = harness.NewClients(t, server)
				ats := cnatClient.CnatV1alpha1().Ats(name.Namespace)
				create := func() {
					t.Helper()
					harness.Create(t, ats, newAt(func(at *v1alpha1.At) {
						at.Spec.Schedule, at.Spec.StartingDeadlineSeconds = start.Format(time.RFC3339), ptr.To[int64](24*3600)
					}))
				}
				remove := func() {
					t.Helper()
					harness.Delete(t, ats, name.Name)
				}
				create()
				time.Sleep(10 * time.Minute)
				if c.steps.Failures.NumRequeues(name) < 10 {
					t.Errorf("%d failures, want more", c.steps.Failures.NumRequeues(name))
				}
				remove()
				create() // before the controller notices
				synctest.Wait()
				// Both the deletion and the creation may cause a sync that finds the new At.
				if got := c.steps.Failures.NumRequeues(name); got > 2 {
					t.Errorf("the new At has %d failures", got)
				}
				remove()
				time.Sleep(2 * time.Hour)
				if got := c.steps.Failures.NumRequeues(name); got > 0 {
					t.Errorf("the deleted At has %d failures", got)
				}
				syncs := strings.Count(logged(), "Decided")
				time.Sleep(24 * time.Hour)
				if got := strings.Count(logged(), "Decided") - syncs; got > 0 {
					t.Errorf("the deleted At was synced %d times", got)
				}
			})
		})
	}
}
