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
	"net/http"
	"path"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	typedcnatv1alpha1 "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/typed/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/preflight"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// preflightWorld is a controller with preflights and an API server that can refuse Pods.
type preflightWorld struct {
	t      *testing.T
	start  time.Time
	person typedcnatv1alpha1.AtInterface
	pods   typedcorev1.PodInterface

	lock    sync.Mutex
	refuses bool
	hasRoom func() bool                // for a Pod; nil: always
	asked   map[string][]time.Duration // since the start: dry-runs, creations, writes of the status, Warnings
}

// withPreflight calls test with a running controller, which was changed before its start.
func withPreflight(t *testing.T, test func(w *preflightWorld), changes ...func(*Controller)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := fakeserver.New(clock.RealClock{})
		w := &preflightWorld{t: t, start: time.Now(), asked: map[string][]time.Duration{}}
		kubeClient, cnatClient := harness.NewClients(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
			if !w.isRefused(request) {
				return server.RoundTrip(request)
			}
			return fakeserver.Refuse(request, apierrors.NewForbidden(podsResource.GroupResource(), "example-at-pod", errors.New("exceeded quota: pods")))
		}))
		kubePerson, person := harness.NewClients(t, server)
		w.pods = kubePerson.CoreV1().Pods(name.Namespace)
		w.person = person.CnatV1alpha1().Ats(name.Namespace)
		c := standBy(t, kubeClient, cnatClient, clock.RealClock{})
		c.preflight = preflight.New(preflight.Clients{Cnat: cnatClient, Kube: kubeClient, QPS: 5, Rehearsals: 10, NamespaceRehearsals: 2}, c.nodes.List, defaults, clock.RealClock{})
		c.checks = c.preflight.Ats(c.cache.Ats)
		c.checks.Notify(c.queue.Add)
		for _, change := range changes {
			change(c)
		}
		work(t, c)
		test(w)
	})
}

// isRefused reports whether the API server refuses a request, and records the request.
func (w *preflightWorld) isRefused(request *http.Request) bool {
	what := request.Method + " " + path.Base(request.URL.Path)
	if request.URL.Query().Has("dryRun") {
		what = "dry-run " + path.Base(request.URL.Path)
	}
	w.lock.Lock()
	defer w.lock.Unlock()
	switch what {
	case "dry-run pods", "POST pods", "PATCH status", "POST events":
		w.asked[what] = append(w.asked[what], time.Since(w.start))
		return strings.HasSuffix(what, "pods") && (w.refuses || w.hasRoom != nil && !w.hasRoom())
	}
	return false
}

func (w *preflightWorld) setRefuses(refuses bool) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.refuses = refuses
}

// wantAsked checks the number of requests to the API server.
func (w *preflightWorld) wantAsked(want map[string]int) {
	w.t.Helper()
	w.lock.Lock()
	defer w.lock.Unlock()
	got := map[string]int{}
	for what, times := range w.asked {
		got[what] = len(times)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// at returns the At after a while.
func (w *preflightWorld) at(after time.Duration) *v1alpha1.At {
	w.t.Helper()
	time.Sleep(after)
	synctest.Wait()
	at := harness.Get(w.t, w.person, name.Name)
	return at
}

func (w *preflightWorld) create(dueIn time.Duration) {
	w.t.Helper()
	harness.Create(w.t, w.person, newAt(func(at *v1alpha1.At) { at.Spec.Schedule = w.start.Add(dueIn).Format(time.RFC3339Nano) }))
}

// TestPreflightAccepted checks that there are two preflights, and that nothing is written
// until the At is due.
func TestPreflightAccepted(t *testing.T) {
	withPreflight(t, func(w *preflightWorld) {
		w.create(time.Hour)
		w.at(time.Hour - time.Second)
		w.wantAsked(map[string]int{"dry-run pods": 2})
		if got, from := w.asked["dry-run pods"], time.Hour-11*time.Minute; got[0] != time.Second || got[1] < from || got[1] > from+time.Minute+time.Second {
			t.Errorf("dry-runs after %v, want after 1 s and about ten minutes before it is due", got)
		}
		if at := w.at(2 * time.Second); at.Status.Phase != v1alpha1.PhaseRunning {
			t.Errorf("phase %s, want RUNNING", at.Status.Phase)
		}
		w.wantAsked(map[string]int{"dry-run pods": 2, "POST pods": 1, "PATCH status": 1, "POST events": 1})
	})
}

// slowCache has synced when the channel is closed.
type slowCache chan struct{}

func (slowCache) Name() string            { return "slow cache" }
func (c slowCache) Done() <-chan struct{} { return c }

// TestPreflightAfterSlowStart lets the caches of a controller sync five minutes after its start, in
// which an At was created.
func TestPreflightAfterSlowStart(t *testing.T) {
	const slow = 5 * time.Minute
	withPreflight(t, func(w *preflightWorld) {
		w.create(time.Hour)
		w.at(slow)
		w.wantAsked(map[string]int{})
		w.at(2 * time.Second)
		w.wantAsked(map[string]int{"dry-run pods": 1})
	}, func(c *Controller) {
		cached := make(slowCache)
		time.AfterFunc(slow, func() { close(cached) })
		c.synced = append(c.synced, cached)
	})
}

// TestPreflightRefused makes the API server refuse the Pod until ten minutes before the
// At is due.
func TestPreflightRefused(t *testing.T) {
	withPreflight(t, func(w *preflightWorld) {
		w.setRefuses(true)
		w.create(time.Hour)
		at := w.at(3 * time.Second)
		const want = `If it were due now: create Pod: pods "example-at-pod" is forbidden: exceeded quota: pods`
		if at.Status.Reason != v1alpha1.ReasonPodRefused || at.Status.Message != want || at.Status.Phase != v1alpha1.PhasePending || plan.Blocked(at) == nil {
			t.Errorf("status %+v, want PENDING, PodRefused, %q", at.Status, want)
		}
		w.at(47 * time.Minute)
		w.setRefuses(false)
		if at := w.at(time.Minute); at.Status.Reason != "" || plan.Blocked(at) != nil {
			t.Errorf("status %+v a minute after it is fixed, want no trace of it", at.Status)
		}
		if got := len(w.asked["PATCH status"]); got != 2 {
			t.Errorf("%d writes of the status, want 2", got)
		}
		if got := len(w.asked["POST events"]); got != 1 {
			t.Errorf("%d events, want 1", got)
		}
		w.at(12 * time.Minute)
		if got := w.asked["POST pods"]; len(got) != 1 || got[0] != time.Hour {
			t.Errorf("created after %v, want once, when it is due", got)
		}
	})
}

// TestPreflightStaysRefused makes the API server refuse the Pod before and after it is
// due.
func TestPreflightStaysRefused(t *testing.T) {
	withPreflight(t, func(w *preflightWorld) {
		w.setRefuses(true)
		w.create(time.Minute)
		if at := w.at(time.Minute - time.Second); !plan.HasForecast(at) {
			t.Errorf("status %+v before it is due, want a forecast", at.Status)
		}
		if at := w.at(2 * time.Second); at.Status.Reason != v1alpha1.ReasonPodRefused || plan.HasForecast(at) {
			t.Errorf("status %+v when it is due, want the current state", at.Status)
		}
		before := len(w.asked["dry-run pods"])
		w.at(10 * time.Minute)
		if got := len(w.asked["dry-run pods"]) - before; got != 0 {
			t.Errorf("%d dry-runs after it is due, want none", got)
		}
		if got := len(w.asked["POST events"]); got != 1 {
			t.Errorf("%d events, want 1", got)
		}
	})
}

// TestPreflightEdited edits a refused At.
func TestPreflightEdited(t *testing.T) {
	withPreflight(t, func(w *preflightWorld) {
		w.setRefuses(true)
		w.create(time.Hour)
		at := w.at(3 * time.Second)
		w.setRefuses(false)
		at.Spec.Template = &corev1.PodTemplateSpec{}
		at.Spec.Template.Spec.Containers = []corev1.Container{{Name: "a", Image: "other"}}
		harness.Update(t, w.person, at)
		if at := w.at(3 * time.Second); at.Status.Reason != "" || plan.Blocked(at) != nil || at.Status.ObservedGeneration != 2 {
			t.Errorf("status %+v 3 s after the edit, want no trace of the refusal", at.Status)
		}
	})
}

// TestRehearsalYields has a quota of one Pod, which a rehearsal that hangs uses up when another At
// is due: the rehearsal ends at once.
func TestRehearsalYields(t *testing.T) {
	withPreflight(t, func(w *preflightWorld) {
		w.lock.Lock()
		w.hasRoom = func() bool { return len(harness.List(t, w.pods).Items) == 0 }
		w.lock.Unlock()
		harness.Create(t, w.person, newAt(func(at *v1alpha1.At) {
			at.Name, at.UID, at.Spec.Rehearse, at.Spec.Schedule = "rehearsed", "rehearsed", true, w.start.Add(time.Hour).Format(time.RFC3339)
		}))
		w.create(time.Minute)
		w.at(59 * time.Second)
		if got := harness.List(t, w.pods).Items; len(got) != 1 || !plan.IsRehearsal(&got[0]) {
			t.Fatalf("%d Pods, want that of the rehearsal", len(got))
		}
		if at := w.at(3 * time.Second); at.Status.Phase != v1alpha1.PhaseRunning {
			t.Errorf("status %+v two seconds after it was due, want RUNNING", at.Status)
		}
	})
}

// TestRehearsalRequested asks for another rehearsal soon after one that did not pass, for which no node
// has done anything.
func TestRehearsalRequested(t *testing.T) {
	withPreflight(t, func(w *preflightWorld) {
		harness.Create(t, w.person, newAt(func(at *v1alpha1.At) {
			at.Spec.Rehearse, at.Spec.Schedule = true, w.start.Add(time.Hour).Format(time.RFC3339)
		}))
		at := w.at(4 * time.Minute)
		if at.Status.Reason != v1alpha1.ReasonPodPending || len(harness.List(t, w.pods).Items) > 0 {
			t.Fatalf("status %+v, want PodPending", at.Status)
		}
		at.Annotations = map[string]string{v1alpha1.AnnotationRehearsalRequestedAt: time.Now().UTC().Format(time.RFC3339)}
		harness.Update(t, w.person, at)
		w.at(3 * time.Second)
		if got := harness.List(t, w.pods).Items; len(got) != 1 || !plan.IsRehearsal(&got[0]) {
			t.Errorf("%d Pods after the request, want that of a rehearsal", len(got))
		}
	})
}
