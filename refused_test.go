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
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestRefusedForever makes the API server refuse a Pod with a different message each
// time: the status follows, but the tries are still a back-off apart.
func TestRefusedForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var creates atomic.Int32
		_, ats := runController(t, clock.RealClock{}, func() error {
			return apierrors.NewForbidden(podsResource.GroupResource(), "example-at-pod", fmt.Errorf("request %d", creates.Add(1)))
		})
		if _, err := ats.Create(t.Context(), newAt(func(at *v1alpha1.At) { at.Spec.Schedule = time.Now().Format(time.RFC3339) }), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		// 9 tries until the back-off reaches its maximum. After that, one in 40 to 60 seconds.
		if got := creates.Load(); got < 60 || got > 100 {
			t.Errorf("%d tries within an hour, want one in 40 to 60 seconds finally", got)
		}
		at, err := ats.Get(t.Context(), name.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("request %d", creates.Load()); !strings.Contains(at.Status.Conditions[0].Message, want) {
			t.Errorf("condition %+v, want the message of the last refusal: %s", at.Status.Conditions[0], want)
		}
	})
}

// TestLastingFailure makes the API server too busy to create the Pod: the failure is
// reported after it has lasted for more than a minute, until the Pod is created.
func TestLastingFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var let atomic.Bool
		_, ats := runController(t, clock.RealClock{}, func() error {
			if let.Load() {
				return nil
			}
			return apierrors.NewTooManyRequests("busy", 1)
		})
		if _, err := ats.Create(t.Context(), newAt(func(at *v1alpha1.At) { at.Spec.Schedule = time.Now().Format(time.RFC3339) }), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		reasonAfter := func(wait time.Duration) string {
			time.Sleep(wait)
			at, err := ats.Get(t.Context(), name.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return at.Status.Reason
		}
		if got := reasonAfter(time.Minute); got != "" {
			t.Errorf("reason %s within a minute, want none", got)
		}
		if got := reasonAfter(time.Minute); got != v1alpha1.ReasonPodNotCreated {
			t.Errorf("reason %q after two minutes, want PodNotCreated", got)
		}
		let.Store(true)
		if got := reasonAfter(2 * time.Minute); got != "" {
			t.Errorf("reason %s when the Pod is created, want none", got)
		}
	})
}

// TestBlockedAndGone uses a webhook that is down while very many Ats are due. When it is
// back, the Ats do not wait for each other, and none misses its starting deadline.
func TestBlockedAndGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 1000
		start := time.Now()
		var created atomic.Int32
		_, ats := runController(t, clock.RealClock{}, func() error {
			if time.Since(start) < time.Minute {
				return apierrors.NewInternalError(errors.New("failed calling webhook"))
			}
			created.Add(1)
			return nil
		})
		for i := range many {
			at := newAt(func(at *v1alpha1.At) {
				at.Name, at.UID = fmt.Sprint("at-", i), types.UID(fmt.Sprint(i))
				at.Spec.Schedule, at.Spec.StartingDeadlineSeconds = start.Format(time.RFC3339), ptr.To[int64](150)
			})
			if _, err := ats.Create(t.Context(), at, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2*time.Minute + 10*time.Second)
		if got := created.Load(); got != many {
			t.Errorf("%d Pods created 70 s after the webhook is back, want %d", got, many)
		}
	})
}

// TestRetries makes each Pod fail a second after its creation. Each further attempt is a
// new Pod with a longer delay, and the last one is the end.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type attempt struct {
			pod string
			at  time.Duration
		}
		start := time.Now()
		var attempts, releases []attempt
		var lock sync.Mutex
		kubeClient, ats := runController(t, clock.RealClock{}, func() error { return nil })
		pods := kubeClient.CoreV1().Pods(name.Namespace)
		watcher, err := pods.Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for event := range watcher.ResultChan() {
				pod, ok := event.Object.(*corev1.Pod)
				if !ok {
					return // the end of the test
				}
				lock.Lock()
				switch {
				case event.Type == watch.Added:
					attempts = append(attempts, attempt{pod.Name, time.Since(start)})
					time.AfterFunc(time.Second, func() {
						pod.Status.Phase = corev1.PodFailed
						if _, err := pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
							t.Error(err)
						}
					})
				case len(pod.Finalizers) == 0:
					releases = append(releases, attempt{pod.Name, time.Since(start)})
				}
				lock.Unlock()
			}
		}()
		at := newAt(func(at *v1alpha1.At) {
			at.Spec.Schedule, at.Spec.BackoffLimit = start.Format(time.RFC3339), ptr.To[int32](2)
		})
		if _, err := ats.Create(t.Context(), at, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		lock.Lock()
		defer lock.Unlock()
		want := []attempt{{"example-at-pod", 0}, {"example-at-pod-1", 11 * time.Second}, {"example-at-pod-2", 32 * time.Second}}
		if diff := cmp.Diff(want, attempts, cmp.AllowUnexported(attempt{})); diff != "" {
			t.Errorf("attempts (-want +got):\n%s", diff)
		}
		// Each failed after a second.
		want = []attempt{{"example-at-pod", 10500 * time.Millisecond}, {"example-at-pod-1", 21500 * time.Millisecond}, {"example-at-pod-2", 42500 * time.Millisecond}}
		if diff := cmp.Diff(want, releases, cmp.AllowUnexported(attempt{})); diff != "" {
			t.Errorf("releases (-want +got):\n%s", diff)
		}
		at, err = ats.Get(t.Context(), name.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if at.Status.Reason != v1alpha1.ReasonPodFailed || at.Status.Failed != 3 {
			t.Errorf("reason %s after %d failed attempts, want PodFailed after 3", at.Status.Reason, at.Status.Failed)
		}
	})
}
