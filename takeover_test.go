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
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/connect"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// TestTakeover lets a leader run an At and then ends the leader. The watches of the
// standby have not reported anything about that when it takes over. It must not run the
// At again, and must bring it to its end.
func TestTakeover(t *testing.T) {
	for testName, tc := range map[string]struct {
		cutOff bool // the leader is cut off once it has created the Pod
		ended  bool // the Pod ends while the leader works, and is deleted
		pods   int  // remaining Pods
	}{
		"before the status is written": {cutOff: true, pods: 1},
		"while the Pod runs":           {pods: 1},
		"after the end":                {ended: true},
	} {
		t.Run(testName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := fakeserver.New(clock.RealClock{})
				var created atomic.Int32
				var isCutOff atomic.Bool
				count := func(request *http.Request) (*http.Response, error) {
					creates := isCreation(t, request, "example-at-pod")
					response, err := server.RoundTrip(request)
					if creates && err == nil && response.StatusCode == http.StatusCreated {
						created.Add(1)
						isCutOff.Store(tc.cutOff)
					}
					return response, err
				}
				kubeClient, cnatClient := harness.NewClients(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
					if isCutOff.Load() {
						return nil, errors.New("the network is down")
					}
					return count(request)
				}))
				stopLeader := work(t, standBy(t, kubeClient, cnatClient, clock.RealClock{}))
				watches := harness.NewWatches(t, harness.RoundTripper(count))
				kubeClient, cnatClient = harness.NewClients(t, watches)
				standby := standBy(t, kubeClient, cnatClient, clock.RealClock{})

				kubeClient, cnatClient = harness.NewClients(t, server)
				pods, ats := kubeClient.CoreV1().Pods(name.Namespace), cnatClient.CnatV1alpha1().Ats(name.Namespace)
				endPod := func() {
					t.Helper()
					pod := harness.Get(t, pods, "example-at-pod")
					pod.Status.Phase = corev1.PodSucceeded
					harness.UpdateStatus(t, pods, pod)
				}
				at := newAt(func(at *v1alpha1.At) { at.Spec.Schedule = time.Now().Add(time.Minute).Format(time.RFC3339) })
				harness.Create(t, ats, at)
				time.Sleep(30 * time.Second)
				watches.Hold()
				time.Sleep(time.Minute)
				if tc.ended {
					endPod()
					harness.Delete(t, pods, "example-at-pod")
					time.Sleep(time.Minute)
				}
				if cached, pods := standby.cache.At(name), standby.cache.PodsOf(name); cached == nil || cached.Status.Phase != v1alpha1.PhasePending || len(pods) > 0 {
					t.Fatalf("the caches of the standby are not stale: they have %v, and %d Pods", cached, len(pods))
				}
				stopLeader()

				work(t, standby)
				time.Sleep(time.Hour)
				if at, err := ats.Get(t.Context(), name.Name, metav1.GetOptions{}); err != nil || at.Status.Phase == v1alpha1.PhasePending {
					t.Errorf("the At is still %s, %v: the standby did nothing", at.Status.Phase, err)
				}
				watches.Release()
				if !tc.ended {
					endPod()
				}
				time.Sleep(time.Hour)
				at = harness.Get(t, ats, name.Name)
				if at.Status.Reason != v1alpha1.ReasonCompleted {
					t.Errorf("phase %s, reason %s; want it Completed", at.Status.Phase, at.Status.Reason)
				}
				if list, err := pods.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != tc.pods {
					t.Errorf("%d Pods are left, %v; want %d", len(list.Items), err, tc.pods)
				}
				if got := created.Load(); got != 1 {
					t.Errorf("%d Pods were created, want one", got)
				}
			})
		})
	}
}

// TestSlowCreation delays the creation of a Pod while another controller runs the At, or
// its second attempt, to the end, and a user deletes all its Pods. The Pod's name is not
// free yet: the creation is refused, up to 8.4 s later.
func TestSlowCreation(t *testing.T) {
	t.Parallel()
	for _, pod := range []string{"example-at-pod", "example-at-pod-1"} {
		for _, fraction := range []time.Duration{0, 500 * time.Millisecond, 950 * time.Millisecond} {
			for _, delay := range []time.Duration{time.Second, 4 * time.Second, 8400 * time.Millisecond} {
				t.Run(fmt.Sprintf("%s at %v, %v late", pod, fraction, delay), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { testSlowCreation(t, pod, fraction, delay) })
				})
			}
		}
	}
}

func testSlowCreation(t *testing.T, pod string, fraction, delay time.Duration) {
	t.Helper()
	server := fakeserver.New(clock.RealClock{})
	held, goOn, answer := make(chan struct{}), make(chan struct{}), make(chan int, 1)
	hold := sync.OnceFunc(func() {
		close(held)
		<-goOn
	})
	kubeClient, cnatClient := harness.NewClients(t, connect.Patient(harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
		if !isCreation(t, request, pod) {
			return server.RoundTrip(request)
		}
		hold()
		response, err := server.RoundTrip(request)
		if err == nil {
			select {
			case answer <- response.StatusCode:
			default:
			}
		}
		return response, err
	})))
	runWithClients(t, kubeClient, cnatClient, clock.RealClock{})

	kubeClient, cnatClient = harness.NewClients(t, server)
	pods, ats := kubeClient.CoreV1().Pods(name.Namespace), cnatClient.CnatV1alpha1().Ats(name.Namespace)
	ended := map[types.UID]string{} // the Pods' names
	// until simulates the kubelet every 100 ms, which ends each Pod immediately, until the At
	// is in the expected state.
	until := func(condition func(*v1alpha1.At) bool) {
		t.Helper()
		for range 1_000 {
			time.Sleep(100 * time.Millisecond)
			list := harness.List(t, pods)
			for _, p := range list.Items {
				if ended[p.UID] != "" {
					continue
				}
				ended[p.UID] = p.Name
				p.Status.Phase = corev1.PodFailed
				if p.Name == pod {
					p.Status.Phase = corev1.PodSucceeded
				}
				harness.UpdateStatus(t, pods, &p)
			}
			at := harness.Get(t, ats, name.Name)
			if condition(at) {
				return
			}
		}
		t.Fatal("the At does not continue")
	}
	at := newAt(func(at *v1alpha1.At) {
		at.Spec.Schedule = time.Now().Add(fraction).Format(time.RFC3339Nano)
		if pod == "example-at-pod-1" {
			at.Spec.BackoffLimit = ptr.To[int32](1)
		}
	})
	harness.Create(t, ats, at)
	until(func(*v1alpha1.At) bool {
		select {
		case <-held:
			return true
		default:
			return false
		}
	})
	runWithClients(t, kubeClient, cnatClient, clock.RealClock{})
	until(func(at *v1alpha1.At) bool { return at.Status.Reason == v1alpha1.ReasonCompleted })
	for _, name := range ended {
		if err := pods.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	time.Sleep(delay)
	close(goOn)
	if got := <-answer; got != http.StatusConflict {
		t.Errorf("the creation was answered %d, want %d", got, http.StatusConflict)
	}
	// Everything is deleted in the end, and nothing runs again.
	time.Sleep(time.Hour)
	list, err := pods.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) > 0 {
		t.Errorf("Pods are left: %v, %v", list.Items, err)
	}
}

// TestPodAbandoned force-deletes the Pod of a dead node: a minute later, the attempt is
// abandoned, its Pod is released, and the command is not run again.
func TestPodAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := fakeserver.New(clock.RealClock{})
		kubeClient, cnatClient := harness.NewClients(t, server)
		runWithClients(t, kubeClient, cnatClient, clock.RealClock{})
		pods, ats := kubeClient.CoreV1().Pods(name.Namespace), cnatClient.CnatV1alpha1().Ats(name.Namespace)
		at := newAt(func(at *v1alpha1.At) {
			at.Spec.Schedule, at.Spec.BackoffLimit = time.Now().Format(time.RFC3339), ptr.To[int32](5)
		})
		harness.Create(t, ats, at)
		time.Sleep(time.Hour)
		pod := harness.Get(t, pods, "example-at-pod")
		pod.Spec.NodeName, pod.Status.Phase = "dead", corev1.PodRunning
		harness.Update(t, pods, pod)
		time.Sleep(time.Hour)
		if err := pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
			t.Fatal(err)
		}
		for after, want := range []v1alpha1.AtPhase{59: v1alpha1.PhaseRunning, 61: v1alpha1.PhaseDone, 80: v1alpha1.PhaseDone} {
			at = harness.Get(t, ats, name.Name)
			if want != "" && (at.Status.Phase != want || want == v1alpha1.PhaseDone && at.Status.Reason != v1alpha1.ReasonPodLost) {
				t.Errorf("after %d s: phase %s, reason %s; want %s", after, at.Status.Phase, at.Status.Reason, want)
			}
			time.Sleep(time.Second)
		}
		list, err := pods.List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) > 0 {
			t.Errorf("Pods are left: %v, %v", list.Items, err)
		}
	})
}
