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

package cronat

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	cnatinformers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/queue"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/preflight"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

const namespace = "default"

// TestMain registers the metrics once, even if the tests run several times.
func TestMain(m *testing.M) {
	metrics.Register()
	os.Exit(m.Run())
}

// world is a fake API server that counts creations.
type world struct {
	*fakeserver.Server
	person clientset.Interface
	clock  *harness.Clock

	lock    sync.Mutex
	created map[string][]time.Time // by name: when, by the wall clock
}

func newWorld(t *testing.T) *world {
	t.Helper()
	wall := &harness.Clock{}
	w := &world{Server: fakeserver.New(wall), clock: wall, created: map[string][]time.Time{}}
	_, w.person = harness.NewClients(t, w)
	return w
}

// RoundTrip implements http.RoundTripper.
func (w *world) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := w.Server.RoundTrip(request)
	if err == nil && harness.Creates(request, "ats") && response.StatusCode == http.StatusCreated {
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return nil, err
		}
		response.Body = io.NopCloser(bytes.NewReader(body))
		var at metav1.PartialObjectMetadata
		if err := json.Unmarshal(body, &at); err != nil {
			return nil, err
		}
		w.lock.Lock()
		w.created[at.Name] = append(w.created[at.Name], w.clock.Now())
		w.lock.Unlock()
	}
	return response, err
}

// run runs a controller with the given transport until the end of the test.
func run(t *testing.T, transport http.RoundTripper, wall clock.WithTicker) {
	t.Helper()
	runWith(t, transport, wall, nil, &record.FakeRecorder{})
}

// runWith is run with preflights, which may be nil, and a recorder. It runs until stop is called.
func runWith(t *testing.T, transport http.RoundTripper, wall clock.WithTicker, preflights *preflight.Preflight, recorder record.EventRecorder) (stop func()) {
	t.Helper()
	// Errors that it logs because of faults are irrelevant.
	ctx, _ := harness.Logged(t, 0)
	_, client := harness.NewClients(t, transport)
	factory := cnatinformers.NewSharedInformerFactory(client, 0)
	ats, cronAts := factory.Cnat().V1alpha1().Ats(), factory.Cnat().V1alpha1().CronAts()
	if err := ats.Informer().SetTransform(func(obj any) (any, error) { return plan.KeepAt(obj.(*v1alpha1.At)), nil }); err != nil {
		t.Fatal(err)
	}
	c, err := NewController(ctx, client, cronAts, ats, preflights.CronAts(cronAts.Lister()), recorder, wall)
	if err != nil {
		t.Fatal(err)
	}
	return harness.Run(ctx, t, func(ctx context.Context) {
		factory.StartWithContext(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { preflights.Run(ctx) })
		c.Run(ctx, 2)
		wg.Wait()
		factory.Shutdown()
	})
}

func newCronAt(schedule string, mutate ...func(*v1alpha1.CronAt)) *v1alpha1.CronAt {
	cronAt := &v1alpha1.CronAt{
		ObjectMeta: metav1.ObjectMeta{Name: "backup", Namespace: namespace},
		Spec:       v1alpha1.CronAtSpec{Schedule: schedule, AtTemplate: v1alpha1.AtTemplateSpec{Spec: v1alpha1.RunSpec{Command: "true"}}},
	}
	for _, m := range mutate {
		m(cronAt)
	}
	return cronAt
}

func (w *world) create(t *testing.T, cronAt *v1alpha1.CronAt) {
	t.Helper()
	harness.Create(t, w.person.CnatV1alpha1().CronAts(cronAt.Namespace), cronAt)
}

func (w *world) cronAt(t *testing.T) *v1alpha1.CronAt {
	t.Helper()
	cronAt := harness.Get(t, w.person.CnatV1alpha1().CronAts(namespace), "backup")
	return cronAt
}

func (w *world) edit(t *testing.T, edit func(*v1alpha1.CronAt)) {
	t.Helper()
	cronAt := w.cronAt(t)
	edit(cronAt)
	harness.Update(t, w.person.CnatV1alpha1().CronAts(namespace), cronAt)
}

func (w *world) ats(t *testing.T) []v1alpha1.At {
	t.Helper()
	ats := harness.List(t, w.person.CnatV1alpha1().Ats(namespace))
	return ats.Items
}

// end completes the Ats that have not ended.
func (w *world) end(t *testing.T) {
	t.Helper()
	for _, at := range w.ats(t) {
		if at.Status.Phase == v1alpha1.PhaseDone || at.DeletionTimestamp != nil {
			continue
		}
		now := metav1.Time{Time: w.clock.Now()}
		at.Status.Phase, at.Status.CompletionTime = v1alpha1.PhaseDone, &now
		at.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue, LastTransitionTime: now}}
		// Another client may write it at the same time.
		_, _ = w.person.CnatV1alpha1().Ats(namespace).UpdateStatus(t.Context(), &at, metav1.UpdateOptions{})
	}
}

// wantCreated checks that one At was created for each of the given times, none early, and
// each at most late after its time.
func (w *world) wantCreated(t *testing.T, late time.Duration, times ...time.Time) {
	t.Helper()
	w.lock.Lock()
	defer w.lock.Unlock()
	for _, want := range times {
		name := fmt.Sprintf("backup-%d", want.Unix()/60)
		got := w.created[name]
		if len(got) != 1 || got[0].Before(want) || got[0].After(want.Add(late)) {
			t.Errorf("At %s was created at %v, want once at %s", name, got, want)
		}
	}
	if len(w.created) != len(times) {
		t.Errorf("%d Ats were created, want %d: %v", len(w.created), len(times), w.created)
	}
}

// TestYearAway simulates a year without a controller: the latest time runs once.
func TestYearAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create(t, newCronAt("0 * * * *"))
		time.Sleep(365*24*time.Hour + 10*time.Minute)
		run(t, w, w.clock)
		time.Sleep(time.Minute)
		w.wantCreated(t, time.Hour, time.Now().Truncate(time.Hour))
		if got := w.cronAt(t).Status; got.Missed == nil || got.Missed.Count != 100 || !got.NextScheduleTime.Equal(&metav1.Time{Time: time.Now().Truncate(time.Hour).Add(time.Hour)}) {
			t.Errorf("missed %+v, next %s", got.Missed, got.NextScheduleTime)
		}
	})
}

// TestClockStep steps the wall clock: no time runs twice or early, and of the skipped
// times, the latest runs.
func TestClockStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		run(t, w, w.clock)
		start := time.Now().Truncate(time.Hour)
		w.create(t, newCronAt("0 * * * *"))
		time.Sleep(90 * time.Minute)
		w.clock.Set(3 * time.Hour)
		time.Sleep(queue.SweepPeriod + time.Second)
		w.wantCreated(t, 32*time.Minute, start.Add(time.Hour), start.Add(4*time.Hour))
		w.clock.Set(0)
		time.Sleep(3 * time.Hour)
		w.wantCreated(t, 32*time.Minute, start.Add(time.Hour), start.Add(4*time.Hour))
		time.Sleep(time.Hour)
		w.wantCreated(t, 32*time.Minute, start.Add(time.Hour), start.Add(4*time.Hour), start.Add(5*time.Hour))
	})
}

// TestEdits edits, suspends and resumes a CronAt: times in the past do not run.
func TestEdits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		run(t, w, w.clock)
		start := time.Now().Truncate(time.Hour)
		w.create(t, newCronAt("0 * * * *"))
		time.Sleep(65 * time.Minute)
		w.edit(t, func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Schedule = "3 * * * *" })
		time.Sleep(time.Minute)
		w.wantCreated(t, time.Second, start.Add(time.Hour))
		w.edit(t, func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = ptr.To(true) })
		time.Sleep(3 * time.Hour)
		w.edit(t, func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = nil })
		time.Sleep(time.Minute)
		w.wantCreated(t, time.Second, start.Add(time.Hour))
		if next, want := w.cronAt(t).Status.NextScheduleTime, start.Add(5*time.Hour+3*time.Minute); !next.Time.Equal(want) {
			t.Errorf("next %s, want %s", next, want)
		}
		time.Sleep(time.Hour)
		w.wantCreated(t, time.Second, start.Add(time.Hour), start.Add(5*time.Hour+3*time.Minute))
	})
}

// TestStatusEdited changes nothing but the status by hand: it is corrected at once.
func TestStatusEdited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		run(t, w, w.clock)
		w.create(t, newCronAt("0 0 1 1 *"))
		time.Sleep(time.Minute)
		cronAt := w.cronAt(t)
		cronAt.Status.Active, cronAt.Status.NextScheduleTime = 5, nil
		if _, err := w.person.CnatV1alpha1().CronAts(namespace).UpdateStatus(t.Context(), cronAt, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if got := w.cronAt(t).Status; got.Active != 0 || got.NextScheduleTime == nil {
			t.Errorf("%d are active, next %v: want none, and a time", got.Active, got.NextScheduleTime)
		}
	})
}

// TestRecreated deletes a CronAt just after a run and creates it again: the Ats of the
// earlier one are released, and the time does not run again.
func TestRecreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		run(t, w, w.clock)
		start := time.Now().Truncate(time.Hour)
		w.create(t, newCronAt("0 * * * *"))
		time.Sleep(time.Until(start.Add(time.Hour + time.Second)))
		harness.Delete(t, w.person.CnatV1alpha1().CronAts(namespace), "backup")
		w.create(t, newCronAt("0 * * * *"))
		time.Sleep(time.Minute)
		w.wantCreated(t, time.Second, start.Add(time.Hour))
		for _, at := range w.ats(t) {
			if plan.IsScheduled(&at) {
				t.Errorf("At %s is not released", at.Name)
			}
		}
		time.Sleep(time.Hour)
		w.wantCreated(t, time.Second, start.Add(time.Hour), start.Add(2*time.Hour))
	})
}

// TestStaleLook suspends, edits or deletes a CronAt without the controller's knowledge:
// the controller reads it before it creates an At.
func TestStaleLook(t *testing.T) {
	for what, act := range map[string]func(*testing.T, *world){
		"suspended": func(t *testing.T, w *world) {
			t.Helper()
			w.edit(t, func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = ptr.To(true) })
		},
		"edited": func(t *testing.T, w *world) {
			t.Helper()
			w.edit(t, func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Schedule = "0 0 1 1 *" })
		},
		"deleted": func(t *testing.T, w *world) {
			t.Helper()
			if err := w.person.CnatV1alpha1().CronAts(namespace).Delete(t.Context(), "backup", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				watches := harness.NewWatches(t, w)
				run(t, watches, w.clock)
				w.create(t, newCronAt("0 * * * *"))
				time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour - time.Second)))
				watches.Hold()
				act(t, w)
				time.Sleep(10 * time.Second)
				w.wantCreated(t, 0)
			})
		})
	}
}

// TestFreshness lets many CronAts become due at one instant: while the watch reports the
// writes of the controller, few of them are read. If the watch begins to lag, the
// controller reads them again after half a second.
func TestFreshness(t *testing.T) {
	const number = 500
	for what, tc := range map[string]struct {
		lags     bool
		min, max int32
	}{
		"watch is up to date": {min: 1, max: number / 20},
		"watch lags":          {lags: true, min: number / 4, max: number * 3 / 4},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var reads atomic.Int32
				watches := harness.NewWatches(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
					if !harness.IsWatch(request) {
						time.Sleep(3 * time.Millisecond)
					}
					if request.Method == http.MethodGet && path.Base(path.Dir(request.URL.Path)) == "cronats" {
						reads.Add(1)
					}
					return w.RoundTrip(request)
				}))
				run(t, watches, w.clock)
				due := time.Now().Truncate(time.Hour).Add(time.Hour)
				w.createMany(t, number, "0 * * * *")
				time.Sleep(time.Until(due))
				reads.Store(0)
				if tc.lags {
					time.Sleep(100 * time.Millisecond)
					watches.Hold()
				}
				time.Sleep(5 * time.Second)
				if got := reads.Load(); got < tc.min || got > tc.max {
					t.Errorf("%d CronAts were read, want %d to %d", got, tc.min, tc.max)
				}
				if ats := w.ats(t); len(ats) != number {
					t.Errorf("%d Ats were created, want %d", len(ats), number)
				}
				watches.Release()
				time.Sleep(time.Minute)
				w.wantRecorded(t, number, due)
			})
		})
	}
}

// createMany creates a number of CronAts.
func (w *world) createMany(t *testing.T, number int, schedule string) {
	t.Helper()
	for i := range number {
		w.create(t, newCronAt(schedule, func(cronAt *v1alpha1.CronAt) { cronAt.Name = fmt.Sprintf("cronat-%d", i) }))
	}
}

// wantRecorded checks that a number of CronAts have recorded a time and missed none.
func (w *world) wantRecorded(t *testing.T, number int, due time.Time) {
	t.Helper()
	cronAts := harness.List(t, w.person.CnatV1alpha1().CronAts(namespace))
	for _, cronAt := range cronAts.Items {
		if last := cronAt.Status.LastScheduleTime; last == nil || last.Time.Before(due) || cronAt.Status.Missed != nil {
			t.Errorf("CronAt %s: last %v, missed %+v; want %s, and none", cronAt.Name, last, cronAt.Status.Missed, due)
		}
	}
	if len(cronAts.Items) != number {
		t.Errorf("%d CronAts, want %d", len(cronAts.Items), number)
	}
}

// wantEachOnce checks that a number of Ats were created, none of them twice.
func (w *world) wantEachOnce(t *testing.T, number int) {
	t.Helper()
	w.lock.Lock()
	defer w.lock.Unlock()
	for name, times := range w.created {
		if len(times) != 1 {
			t.Errorf("At %s was created at %v, want once", name, times)
		}
	}
	if len(w.created) != number {
		t.Errorf("%d Ats were created, want %d", len(w.created), number)
	}
}

// TestBurst creates many CronAts that are due at one instant: the Ats are created before
// most of the statuses are written.
func TestBurst(t *testing.T) {
	const number = 500
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var recorded, before atomic.Int64 // before: when the last At was created
		run(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
			if !request.URL.Query().Has("watch") {
				time.Sleep(5 * time.Millisecond)
			}
			switch request.Method {
			case http.MethodPost:
				before.Store(recorded.Load())
			case http.MethodPatch:
				body, err := io.ReadAll(request.Body)
				if err != nil {
					return nil, err
				}
				request.Body = io.NopCloser(bytes.NewReader(body))
				if bytes.Contains(body, []byte("lastScheduleTime")) {
					recorded.Add(1)
				}
			}
			return w.RoundTrip(request)
		}), w.clock)
		due := time.Now().Truncate(time.Hour).Add(time.Hour)
		w.createMany(t, number, "0 * * * *")
		time.Sleep(time.Until(due) + 15*time.Second)
		if got := before.Load(); got > number/5 {
			t.Errorf("%d of %d statuses were written before the last At was created", got, number)
		}
		w.wantRecorded(t, number, due)
		w.wantEachOnce(t, number)
	})
}

// TestBurstOften creates many CronAts that are due as often as possible.
func TestBurstOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const number = 100
		w := newWorld(t)
		run(t, w, w.clock)
		w.createMany(t, number, "@every 1m")
		start := time.Now()
		time.Sleep(15*time.Minute + 2*time.Second)
		w.wantRecorded(t, number, start.Add(14*time.Minute))
		w.wantEachOnce(t, 15*number)
	})
}

// TestSlowTenants has very many CronAts in namespaces whose webhooks hang. That of another
// namespace is not delayed.
func TestSlowTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		run(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
			if request.Method == http.MethodPost && strings.Contains(request.URL.Path, "/slow-") {
				time.Sleep(10 * time.Second)
			}
			return w.RoundTrip(request)
		}), w.clock)
		due := time.Now().Truncate(time.Hour).Add(time.Hour)
		for i := range 3 {
			for j := range 100 {
				w.create(t, newCronAt("0 * * * *", func(cronAt *v1alpha1.CronAt) {
					cronAt.Namespace, cronAt.Name = fmt.Sprint("slow-", i), fmt.Sprint("slow-", j)
				}))
			}
		}
		w.create(t, newCronAt("0 * * * *"))
		time.Sleep(time.Until(due) + time.Minute)
		w.lock.Lock()
		defer w.lock.Unlock()
		got := w.created[fmt.Sprintf("backup-%d", due.Unix()/60)]
		if len(got) != 1 || got[0].Sub(due) >= 2*time.Second { // Each of the two workers here may be lent twice, for half a second each.
			t.Errorf("the At was created at %v, want once within two seconds after %v", got, due)
		}
	})
}

// TestSlowList suspends a CronAt after it was read, while its Ats are listed, without the
// controller's knowledge: no At is created.
func TestSlowList(t *testing.T) {
	for testName, suspend := range map[string]bool{"suspended": true, "not suspended": false} {
		t.Run(testName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var slow atomic.Bool
				watches := harness.NewWatches(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
					if slow.Load() && !harness.IsWatch(request) && request.Method == http.MethodGet && path.Base(request.URL.Path) == "ats" {
						time.Sleep(5 * time.Second)
					}
					return w.RoundTrip(request)
				}))
				run(t, watches, w.clock)
				w.create(t, newCronAt("0 * * * *", func(cronAt *v1alpha1.CronAt) { cronAt.Spec.ConcurrencyPolicy = v1alpha1.ForbidConcurrent }))
				due := time.Now().Truncate(time.Hour).Add(time.Hour)
				time.Sleep(time.Until(due) - time.Second)
				slow.Store(true)
				watches.Hold()
				time.Sleep(time.Until(due) + 2*time.Second)
				if suspend {
					w.edit(t, func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = ptr.To(true) })
				}
				time.Sleep(time.Minute)
				w.lock.Lock()
				created := len(w.created)
				w.lock.Unlock()
				if got, want := created > 0, !suspend; got != want {
					t.Errorf("an At was created: %v, want %v", got, want)
				}
			})
		})
	}
}

// TestStaleRecord hides a new At from the controller that has created it: the controller
// looks for it.
func TestStaleRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		watches := harness.NewWatches(t, w)
		run(t, watches, w.clock)
		w.create(t, newCronAt("0 * * * *"))
		due := time.Now().Truncate(time.Hour).Add(time.Hour)
		time.Sleep(time.Until(due) - time.Second)
		watches.Hold()
		time.Sleep(time.Until(due) + 10*time.Second)
		w.wantRecorded(t, 1, due)
		w.wantCreated(t, time.Second, due)
	})
}

// TestStandby checks that there is no work on standby.
func TestStandby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, client := harness.NewClients(t, w)
		factory := cnatinformers.NewSharedInformerFactory(client, 0)
		c, err := NewController(t.Context(), client, factory.Cnat().V1alpha1().CronAts(), factory.Cnat().V1alpha1().Ats(), (*preflight.Checks)(nil), &record.FakeRecorder{}, w.clock)
		if err != nil {
			t.Fatal(err)
		}
		defer c.queue.ShutDown()
		c.queue.Add(cache.NewObjectName(namespace, "backup"))
		if got := c.queue.Len(); got != 0 {
			t.Errorf("%d items in the queue of a standby", got)
		}
	})
}

// TestBlockedAllow lets the Pods of a CronAt be refused for two days, with concurrencyPolicy
// Allow and without a starting deadline. When the cause is gone, one At starts.
func TestBlockedAllow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		run(t, w, w.clock)
		w.create(t, newCronAt("*/10 * * * *"))
		ats := w.person.CnatV1alpha1().Ats(namespace)
		time.Sleep(time.Minute)
		for range 2 * 24 * 6 {
			time.Sleep(10 * time.Minute)
			for _, at := range w.ats(t) {
				now := metav1.Time{Time: w.clock.Now()}
				switch instant, err := plan.Instant(&at.Spec); {
				case err != nil:
					t.Fatal(err)
				case at.Status.Phase == v1alpha1.PhaseDone:
					continue
				case plan.StartingTimeLeft(instant, at.Spec.StartingDeadlineSeconds, now.Time) <= 0:
					at.Status.Phase, at.Status.CompletionTime = v1alpha1.PhaseDone, &now
					at.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionFailed, Status: metav1.ConditionTrue, LastTransitionTime: now, Reason: v1alpha1.ReasonStartingDeadlineExceeded}}
				default:
					at.Status.Phase = v1alpha1.PhasePending
					at.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionTrue, LastTransitionTime: now, Reason: v1alpha1.ReasonPodRefused, Message: "exceeded quota"}}
				}
				harness.UpdateStatus(t, ats, &at)
			}
		}
		var left []string
		for _, at := range w.ats(t) {
			if at.Status.Phase != v1alpha1.PhaseDone && at.Spec.StartingDeadlineSeconds == nil {
				left = append(left, at.Name)
			}
		}
		if len(left) != 1 {
			t.Errorf("%d Ats can still start, want 1: %v", len(left), left)
		}
	})
}

// TestManyFinalizers releases an At with more finalizers than are cached. It keeps those of
// others.
func TestManyFinalizers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		run(t, w, w.clock)
		w.create(t, newCronAt("0 * * * *"))
		time.Sleep(time.Hour + time.Second)
		var others []string
		for i := range 20 {
			others = append(others, fmt.Sprintf("example.com/%d", i))
		}
		for _, at := range w.ats(t) {
			at.Finalizers = append(slices.Clone(others), at.Finalizers...)
			harness.Update(t, w.person.CnatV1alpha1().Ats(namespace), &at)
		}
		time.Sleep(time.Minute)
		ats := w.ats(t)
		if len(ats) != 1 || !slices.Equal(ats[0].Finalizers, others) {
			t.Errorf("got %v, want one At with finalizers %q", ats, others)
		}
	})
}

// TestPageSize checks that few Ats are read at a time: each may be large.
func TestPageSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		limits := map[string]bool{}
		run(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
			if query := request.URL.Query(); query.Has("labelSelector") {
				w.lock.Lock()
				limits[query.Get("limit")] = true
				w.lock.Unlock()
			}
			return w.RoundTrip(request)
		}), w.clock)
		w.create(t, newCronAt("0 * * * *", func(cronAt *v1alpha1.CronAt) { cronAt.Spec.ConcurrencyPolicy = v1alpha1.ForbidConcurrent }))
		time.Sleep(time.Hour + time.Minute)
		w.lock.Lock()
		defer w.lock.Unlock()
		if !limits["20"] || len(limits) != 1 {
			t.Errorf("got limits %v, want 20", limits)
		}
	})
}
