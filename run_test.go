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
	"io"
	"net/http"
	"path"
	"slices"
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
	"programming-kubernetes.info/cnat-controller/pkg/machinery/connect"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/queue"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// TestRun runs the whole controller, including informers, in virtual time: an At is
// created, moved, and runs at its instant, which may be beyond the horizon of the queue.
func TestRun(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{time.Hour, 3*time.Hour + 40*time.Minute, 30 * time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testRun(t, ahead) })
		})
	}
}

func testRun(t *testing.T, ahead time.Duration) {
	t.Helper()
	var creates atomic.Int32
	var createdAt atomic.Pointer[time.Time]
	_, ats := runController(t, clock.RealClock{}, func() error {
		creates.Add(1)
		createdAt.Store(ptr.To(time.Now()))
		return nil
	})
	scheduled := time.Now().Add(ahead)
	at := harness.Create(t, ats, newAt(func(at *v1alpha1.At) { at.Spec.Schedule = scheduled.Format(time.RFC3339) }))
	time.Sleep(10 * time.Minute)
	scheduled = scheduled.Add(30 * time.Minute)
	at.Spec.Schedule = scheduled.Format(time.RFC3339)
	at.Generation = 2
	harness.Update(t, ats, at)
	time.Sleep(time.Until(scheduled) - time.Nanosecond)
	synctest.Wait()
	if early := createdAt.Load(); early != nil {
		t.Fatalf("the Pod was created at %v, due is %v", early, scheduled)
	}
	time.Sleep(time.Second)
	synctest.Wait()
	if got := createdAt.Load(); got == nil || !got.Equal(scheduled) || creates.Load() != 1 {
		t.Errorf("%d creations, the last at %v; want one at %v", creates.Load(), got, scheduled)
	}
	at = harness.Get(t, ats, name.Name)
	if at.Status.Phase != v1alpha1.PhaseRunning {
		t.Errorf("phase %s, want RUNNING", at.Status.Phase)
	}
}

// TestBeyondHorizon waits for what is due after the start, and beyond the horizon of the
// queue.
func TestBeyondHorizon(t *testing.T) {
	const ahead = queue.Horizon + queue.SweepPeriod + 5*time.Minute
	synctest.Test(t, func(t *testing.T) {
		ctx, start := t.Context(), time.Now()
		_, ats := runController(t, clock.RealClock{}, func() error {
			return apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("exceeded quota"))
		})
		for _, at := range []*v1alpha1.At{
			newAt(ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, "", start), func(at *v1alpha1.At) {
				at.Name, at.UID, at.Spec.TTLSecondsAfterFinished = "done", "done", ptr.To(int32(ahead.Seconds()))
			}),
			newAt(func(at *v1alpha1.At) {
				at.Name, at.UID, at.Spec.Schedule = "refused", "refused", start.Format(time.RFC3339)
				at.Spec.StartingDeadlineSeconds = ptr.To(int64(ahead.Seconds()))
			}),
		} {
			harness.Create(t, ats, at)
		}
		time.Sleep(ahead - time.Second)
		synctest.Wait()
		if _, err := ats.Get(ctx, "done", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		if at, err := ats.Get(ctx, "refused", metav1.GetOptions{}); err != nil || at.Status.Phase != v1alpha1.PhasePending {
			t.Errorf("the refused At is %s, want PENDING: %v", at.Status.Phase, err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if _, err := ats.Get(ctx, "done", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the At is still there after its time to live: %v", err)
		}
		if at, err := ats.Get(ctx, "refused", metav1.GetOptions{}); err != nil || at.Status.Phase != v1alpha1.PhaseDone {
			t.Errorf("the refused At is %s after its starting deadline, want DONE: %v", at.Status.Phase, err)
		}
	})
}

// TestClockStep steps the wall clock while an At is waiting: the At is never early, and
// at most a minute late.
func TestClockStep(t *testing.T) {
	t.Parallel()
	for testName, tc := range map[string]struct{ dueIn, step, want time.Duration }{
		"forward":                            {90 * time.Minute, time.Hour, 90 * time.Minute},
		"forward beyond the time, or asleep": {30 * time.Minute, time.Hour, time.Hour + 10*time.Minute},
		"back":                               {30 * time.Minute, -time.Hour, 30 * time.Minute},
		"back, just before the time":         {10*time.Minute + time.Second, -time.Hour, 10*time.Minute + time.Second},
	} {
		t.Run(testName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				wall, start := &harness.Clock{}, time.Now()
				var createdAt atomic.Int64 // by the wall clock, from the start
				_, ats := runController(t, wall, func() error {
					createdAt.Store(int64(wall.Now().Sub(start)))
					return nil
				})
				harness.Create(t, ats, newAt(func(at *v1alpha1.At) { at.Spec.Schedule = start.Add(tc.dueIn).Format(time.RFC3339) }))
				time.Sleep(10*time.Minute + 500*time.Millisecond)
				wall.Set(tc.step)
				time.Sleep(3 * time.Hour)
				got := time.Duration(createdAt.Load())
				if got < tc.dueIn || got < tc.want || got > tc.want+queue.SweepPeriod {
					t.Errorf("the Pod was created after %v by the wall clock, want %v, or up to a minute later", got, tc.want)
				}
			})
		})
	}
}

// TestOutage makes the API server unavailable immediately after it has answered the read
// of a due At. This At, one that becomes due during the outage, and one that is created
// after it, all start within five seconds of the API server's return.
func TestOutage(t *testing.T) {
	t.Parallel()
	for _, outage := range []time.Duration{time.Second, 7 * time.Second, 61 * time.Second, time.Hour + 7*time.Second} {
		t.Run(outage.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := fakeserver.New(clock.RealClock{})
				var lock sync.Mutex
				var left time.Time
				created := map[string][]time.Time{}
				kubeClient, cnatClient := harness.NewClients(t, connect.Patient(harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
					var creates string
					for _, at := range []string{"looked", "during", "after"} {
						if isCreation(t, request, at+"-pod") {
							creates = at
						}
					}
					response, err := server.RoundTrip(request)
					lock.Lock()
					defer lock.Unlock()
					if creates != "" && err == nil && response.StatusCode == http.StatusCreated {
						created[creates] = append(created[creates], time.Now())
					}
					if path.Base(request.URL.Path) == "looked" && left.IsZero() {
						left = time.Now()
						server.SetAway(true)
					}
					return response, err
				})))
				runWithClients(t, kubeClient, cnatClient, clock.RealClock{})
				_, person := harness.NewClients(t, server)
				create := func(atName string, due time.Time) {
					t.Helper()
					harness.Create(t, person.CnatV1alpha1().Ats(name.Namespace), newAt(func(at *v1alpha1.At) { at.Name, at.Spec.Schedule = atName, due.Format(time.RFC3339Nano) }))
				}
				due := time.Now().Add(10 * time.Minute)
				create("looked", due)
				create("during", due.Add(outage/3))
				time.Sleep(time.Until(due.Add(outage)))
				server.SetAway(false)
				returned := time.Now()
				create("after", returned)
				time.Sleep(time.Hour)
				lock.Lock()
				defer lock.Unlock()
				if !left.Equal(due) {
					t.Fatalf("it left at %v, want %v", left, due)
				}
				for _, at := range []string{"looked", "during", "after"} {
					if got := created[at]; len(got) != 1 || got[0].Before(returned) || got[0].After(returned.Add(5*time.Second)) {
						t.Errorf("the Pod of At %s was created at %v, want once within 5 s of %v", at, got, returned)
					}
				}
			})
		})
	}
}

// TestShutdown stops a controller while very many Ats are due: it finishes the running
// syncs, and starts no others.
func TestShutdown(t *testing.T) {
	const workers, number = 2, 20
	for testName, tc := range map[string]struct {
		create time.Duration // how long a creation takes
		// expectations
		took    time.Duration
		created int32
		failed  int // syncs
	}{
		"nothing running":    {created: number},
		"creations running":  {create: time.Second, took: 500 * time.Millisecond, created: workers},
		"the creations hang": {create: time.Hour, took: queue.FinishTimeout, failed: workers},
	} {
		t.Run(testName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := fakeserver.New(clock.RealClock{})
				var created atomic.Int32
				kubeClient, cnatClient := harness.NewClients(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
					if !harness.Creates(request, "pods") {
						return server.RoundTrip(request)
					}
					select {
					case <-time.After(tc.create):
					case <-request.Context().Done():
						return nil, request.Context().Err()
					}
					response, err := server.RoundTrip(request)
					if err == nil && response.StatusCode == http.StatusCreated {
						created.Add(1)
					}
					return response, err
				}))
				ctx, logged := harness.Logged(t, 5)
				stop := workIn(ctx, t, standBy(t, kubeClient, cnatClient, clock.RealClock{}))
				_, person := harness.NewClients(t, server)
				for i := range number {
					harness.Create(t, person.CnatV1alpha1().Ats(name.Namespace), newAt(func(at *v1alpha1.At) {
						at.Name, at.Spec.Schedule = fmt.Sprint("at-", i), time.Now().Format(time.RFC3339)
					}))
				}
				time.Sleep(500 * time.Millisecond)
				asked := time.Now()
				stop()
				if took := time.Since(asked); took != tc.took {
					t.Errorf("it took %v, want %v", took, tc.took)
				}
				if created.Load() != tc.created {
					t.Errorf("%d Pods were created, want %d", created.Load(), tc.created)
				}
				log := logged()
				if failed := strings.Count(log, "Sync failed"); failed != tc.failed {
					t.Errorf("%d syncs failed, want %d:\n%s", failed, tc.failed, log)
				}
				time.Sleep(24 * time.Hour) // until the requests that hang have ended
			})
		})
	}
}

// TestFreshness lets an At become due every 10 ms. While the watch reports the
// controller's own writes, the controller does not read each At before it creates its
// Pod. An At that a person has suspended, moved or deleted half a second before never gets
// a Pod, even if the watch lags.
func TestFreshness(t *testing.T) {
	t.Parallel()
	const number, edited = 600, 3 // every third
	for testName, tc := range map[string]struct {
		lags               func(int) time.Duration // how long the watch lags, beginning in the nth second
		minReads, maxReads int32
	}{
		"watch is up to date": {lags: func(int) time.Duration { return 0 }, minReads: 1, maxReads: 20},
		"watch lags a bit":    {lags: func(int) time.Duration { return 300 * time.Millisecond }, minReads: 1, maxReads: 60},
		"watch lags at times": {lags: func(n int) time.Duration { return time.Duration(n) * 200 * time.Millisecond }, minReads: 50, maxReads: 350},
		"watch stops":         {lags: func(int) time.Duration { return time.Minute }, minReads: 500, maxReads: 650},
	} {
		t.Run(testName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := fakeserver.New(clock.RealClock{})
				var lagUntil atomic.Pointer[time.Time]
				lagUntil.Store(&time.Time{})
				var reads atomic.Int32
				kubeClient, cnatClient := harness.NewClients(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
					isWatch := harness.IsWatch(request)
					if !isWatch {
						time.Sleep(3 * time.Millisecond)
					}
					if request.Method == http.MethodGet && path.Base(path.Dir(request.URL.Path)) == "ats" {
						reads.Add(1)
					}
					response, err := server.RoundTrip(request)
					if err == nil && isWatch {
						response.Body = &late{response.Body, &lagUntil}
					}
					return response, err
				}))
				runWithClients(t, kubeClient, cnatClient, clock.RealClock{})
				kubeClient, cnatClient = harness.NewClients(t, server)
				ats := cnatClient.CnatV1alpha1().Ats(name.Namespace)
				first := time.Now().Add(time.Minute)
				for i := range number {
					harness.Create(t, ats, newAt(func(at *v1alpha1.At) {
						at.Name, at.Spec.Schedule = fmt.Sprint("at-", i), first.Add(time.Duration(i)*10*time.Millisecond).Format(time.RFC3339Nano)
					}))
				}
				time.Sleep(time.Until(first))
				reads.Store(0)
				for i := range number {
					if i%100 == 50 {
						until := time.Now().Add(tc.lags(i / 100))
						lagUntil.Store(&until)
					}
					if i%edited == 0 && i >= 51 {
						// It is due in half a second and one millisecond.
						at := fmt.Sprint("at-", i)
						var err error
						switch i / edited % 3 {
						case 0:
							_, err = ats.Patch(t.Context(), at, types.MergePatchType, []byte(`{"spec":{"suspend":true}}`), metav1.PatchOptions{})
						case 1:
							_, err = ats.Patch(t.Context(), at, types.MergePatchType, []byte(`{"spec":{"schedule":"2099-01-01T00:00:00Z"}}`), metav1.PatchOptions{})
						case 2:
							err = ats.Delete(t.Context(), at, metav1.DeleteOptions{})
						}
						if err != nil {
							t.Fatal(err)
						}
					}
					time.Sleep(time.Until(first.Add(time.Duration(i+1)*10*time.Millisecond - 501*time.Millisecond)))
				}
				time.Sleep(10 * time.Second)
				got := reads.Load()
				time.Sleep(time.Minute) // until the watch no longer lags
				pods := harness.List(t, kubeClient.CoreV1().Pods(name.Namespace))
				created := map[string]bool{}
				for _, pod := range pods.Items {
					created[pod.Name] = true
				}
				for i := range number {
					at := fmt.Sprint("at-", i)
					if want := i < 51 || i%edited != 0; created[at+"-pod"] != want {
						t.Errorf("the Pod of %s was created: %v, want %v", at, !want, want)
					}
				}
				if got < tc.minReads || got > tc.maxReads {
					t.Errorf("%d Ats were read for %d runs, want %d to %d", got, len(created), tc.minReads, tc.maxReads)
				}
			})
		})
	}
}

// TestSlowStatus lets Ats become due at one instant while status writes hang: they delay
// the creation of Pods by one of two workers at most.
func TestSlowStatus(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const number, takes, hang = 500, 10 * time.Millisecond, time.Hour
		due := time.Now().Add(time.Minute)
		server := fakeserver.New(clock.RealClock{})
		var created atomic.Int32
		kubeClient, cnatClient := harness.NewClients(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
			switch {
			case request.Method == http.MethodPatch && path.Base(request.URL.Path) == "status":
				time.Sleep(min(time.Minute, time.Until(due.Add(hang))))
			case harness.Creates(request, "pods"):
				time.Sleep(takes)
				created.Add(1)
			}
			return server.RoundTrip(request)
		}))
		runWithClients(t, kubeClient, cnatClient, clock.RealClock{})
		_, person := harness.NewClients(t, server)
		for i := range number {
			harness.Create(t, person.CnatV1alpha1().Ats(name.Namespace), newAt(func(at *v1alpha1.At) {
				at.Name, at.Spec.Schedule = fmt.Sprint("at-", i), due.Format(time.RFC3339)
			}))
		}
		time.Sleep(time.Until(due.Add((number + 1) * takes)))
		if got := created.Load(); got != number {
			t.Errorf("%d of %d Pods were created", got, number)
		}
		time.Sleep(hang + time.Minute) // until the writes have ended
	})
}

// late is the response body of a watch that reports nothing until a given time.
type late struct {
	io.ReadCloser
	until *atomic.Pointer[time.Time]
}

func (l *late) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p)
	time.Sleep(time.Until(*l.until.Load()))
	return n, err
}

// TestRefusedForever makes the API server refuse a Pod with a different message each
// time: the status follows, but the tries are still a back-off apart.
func TestRefusedForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var creates atomic.Int32
		_, ats := runController(t, clock.RealClock{}, func() error {
			return apierrors.NewForbidden(podsResource.GroupResource(), "example-at-pod", fmt.Errorf("request %d", creates.Add(1)))
		})
		harness.Create(t, ats, newAt(func(at *v1alpha1.At) { at.Spec.Schedule = time.Now().Format(time.RFC3339) }))
		time.Sleep(time.Hour)
		// 9 tries until the back-off reaches its maximum. After that, one in 40 to 60 seconds.
		if got := creates.Load(); got < 60 || got > 100 {
			t.Errorf("%d tries within an hour, want one in 40 to 60 seconds finally", got)
		}
		at := harness.Get(t, ats, name.Name)
		if want := fmt.Sprintf("request %d", creates.Load()); !strings.Contains(at.Status.Conditions[0].Message, want) {
			t.Errorf("condition %+v, want the message of the last refusal: %s", at.Status.Conditions[0], want)
		}
	})
}

// TestLastingFailure makes the API server too busy to create the Pod: the failure is
// reported after it has lasted for about a minute, until the Pod is created.
func TestLastingFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var let atomic.Bool
		_, ats := runController(t, clock.RealClock{}, func() error {
			if let.Load() {
				return nil
			}
			return apierrors.NewTooManyRequests("busy", 1)
		})
		harness.Create(t, ats, newAt(func(at *v1alpha1.At) { at.Spec.Schedule = time.Now().Format(time.RFC3339) }))
		reasonAfter := func(wait time.Duration) string {
			time.Sleep(wait)
			at := harness.Get(t, ats, name.Name)
			return at.Status.Reason
		}
		if got := reasonAfter(50 * time.Second); got != "" {
			t.Errorf("reason %s within 50 seconds, want none", got)
		}
		if got := reasonAfter(30 * time.Second); got != v1alpha1.ReasonPodNotCreated {
			t.Errorf("reason %q after 80 seconds, want PodNotCreated", got)
		}
		let.Store(true)
		if got := reasonAfter(time.Minute); got == v1alpha1.ReasonPodNotCreated {
			t.Errorf("reason %s when the Pod is created", got)
		}
	})
}

// TestPodDoesNotStart has a node that cannot pull the image: that is reported at once.
func TestPodDoesNotStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kubeClient, ats := runController(t, clock.RealClock{}, func() error { return nil })
		harness.Create(t, ats, newAt(func(at *v1alpha1.At) { at.Spec.Schedule = time.Now().Format(time.RFC3339) }))
		time.Sleep(time.Second)
		pods := kubeClient.CoreV1().Pods(name.Namespace)
		pod := harness.Get(t, pods, "example-at-pod")
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"},
		}}}
		if _, err := pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if at := harness.Get(t, ats, name.Name); at.Status.Reason != v1alpha1.ReasonImagePullFailed {
			t.Errorf("reason %q a second after the Pod has failed to pull it, want ImagePullFailed", at.Status.Reason)
		}
	})
}

// TestBlockedAndGone uses a webhook that is down while very many Ats are due. When it is
// back, the Ats do not wait for each other, and none misses its starting deadline.
func TestBlockedAndGone(t *testing.T) {
	t.Parallel()
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
			harness.Create(t, ats, newAt(func(at *v1alpha1.At) {
				at.Name, at.UID = fmt.Sprint("at-", i), types.UID(fmt.Sprint(i))
				at.Spec.Schedule, at.Spec.StartingDeadlineSeconds = start.Format(time.RFC3339), ptr.To[int64](150)
			}))
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
		harness.Create(t, ats, at)
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
		at = harness.Get(t, ats, name.Name)
		if at.Status.Reason != v1alpha1.ReasonPodFailed || at.Status.Failed != 3 {
			t.Errorf("reason %s after %d failed attempts, want PodFailed after 3", at.Status.Reason, at.Status.Failed)
		}
	})
}

// TestManyFinalizers releases an At with more finalizers than are cached. It keeps those of
// others.
func TestManyFinalizers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ats := runController(t, clock.RealClock{}, func() error { return nil })
		var others []string
		for i := range 20 {
			others = append(others, fmt.Sprintf("example.com/%d", i))
		}
		at := newAt(func(at *v1alpha1.At) {
			at.Spec.Schedule = time.Now().Add(time.Hour).Format(time.RFC3339)
			at.Finalizers = append(slices.Clone(others), v1alpha1.FinalizerTracking)
		})
		harness.Create(t, ats, at)
		synctest.Wait()
		got := harness.Get(t, ats, at.Name)
		if !slices.Equal(got.Finalizers, others) {
			t.Errorf("got finalizers %q, want %q", got.Finalizers, others)
		}
	})
}
