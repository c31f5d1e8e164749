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
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/preflight"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// slowCache has synced when the channel is closed.
type slowCache chan struct{}

func (slowCache) Name() string            { return "slow cache" }
func (c slowCache) Done() <-chan struct{} { return c }

// TestPreflights follows an At from its creation, while the caches of the controller have not synced
// yet, through a refusal, a rehearsal, one on request that yields to another At, and its run.
func TestPreflights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, start := fakeserver.New(clock.RealClock{}), time.Now()
		var lock sync.Mutex
		var hasRoom func() bool // for a Pod
		setRoom := func(has func() bool) {
			lock.Lock()
			defer lock.Unlock()
			hasRoom = has
		}
		asked := map[string][]time.Duration{} // since the start
		kubeClient, cnatClient := harness.NewClients(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
			what := request.Method + " " + path.Base(request.URL.Path)
			if request.URL.Query().Has("dryRun") {
				what = "dry-run " + path.Base(request.URL.Path)
			}
			lock.Lock()
			defer lock.Unlock()
			asked[what] = append(asked[what], time.Since(start))
			if (what == "POST pods" || what == "dry-run pods") && !hasRoom() {
				return fakeserver.Refuse(request, apierrors.NewForbidden(podsResource.GroupResource(), "example-at-pod", errors.New("exceeded quota: pods")))
			}
			return server.RoundTrip(request)
		}))
		wantAsked := func(what string, want int) {
			t.Helper()
			lock.Lock()
			defer lock.Unlock()
			if got := asked[what]; len(got) != want {
				t.Errorf("%s after %v, want %d of them", what, got, want)
			}
		}
		kubePerson, person := harness.NewClients(t, server)
		pods, ats := kubePerson.CoreV1().Pods(name.Namespace), person.CnatV1alpha1().Ats(name.Namespace)
		wantRehearsal := func() {
			t.Helper()
			if got := harness.List(t, pods).Items; len(got) != 1 || !plan.IsRehearsal(&got[0]) {
				t.Errorf("%d Pods, want that of a rehearsal", len(got))
			}
		}
		at := func(after time.Duration, name string) *v1alpha1.At {
			time.Sleep(after)
			synctest.Wait()
			return harness.Get(t, ats, name)
		}
		c := standBy(t, kubeClient, cnatClient, clock.RealClock{})
		c.preflight = preflight.New(preflight.Clients{Cnat: cnatClient, Kube: kubeClient, QPS: 5, Rehearsals: 10, NamespaceRehearsals: 2}, c.nodes.List, defaults, clock.RealClock{})
		c.checks = c.preflight.Ats(c.cache.Ats)
		c.checks.Notify(c.queue.Add)
		cached := make(slowCache)
		time.AfterFunc(5*time.Minute, func() { close(cached) })
		c.synced = append(c.synced, cached)
		work(t, c)

		setRoom(func() bool { return false })
		harness.Create(t, ats, newAt(func(at *v1alpha1.At) {
			at.Spec.Rehearse, at.Spec.Schedule = true, start.Add(time.Hour).Format(time.RFC3339)
		}))
		at(5*time.Minute, name.Name)
		wantAsked("dry-run pods", 0)
		got := at(3*time.Second, name.Name)
		wantAsked("dry-run pods", 1)
		if want := `If it were due now: create Pod: pods "example-at-pod" is forbidden: exceeded quota: pods`; got.Status.Reason != v1alpha1.ReasonPodRefused || got.Status.Message != want {
			t.Errorf("status %+v, want PodRefused, %q", got.Status, want)
		}
		if got := at(5*time.Minute, name.Name); !plan.HasForecast(got) {
			t.Errorf("status %+v, want that it stays refused", got.Status)
		}
		wantAsked("PATCH status", 1)
		wantAsked("POST events", 1)

		setRoom(func() bool { return len(harness.List(t, pods).Items) == 0 }) // for one Pod
		if got := at(40*time.Second, name.Name); plan.Blocked(got) != nil {
			t.Errorf("status %+v when there is room, want no trace of the refusal", got.Status)
		}
		wantRehearsal()
		got = at(4*time.Minute, name.Name) // No node does anything.
		if got.Status.Reason != v1alpha1.ReasonPodPending || len(harness.List(t, pods).Items) > 0 {
			t.Fatalf("status %+v, want PodPending", got.Status)
		}
		got.Annotations = map[string]string{v1alpha1.AnnotationRehearsalRequestedAt: time.Now().UTC().Format(time.RFC3339)}
		harness.Update(t, ats, got)
		at(3*time.Second, name.Name)
		wantRehearsal()

		harness.Create(t, ats, newAt(func(at *v1alpha1.At) {
			at.Name, at.UID, at.Spec.Schedule = "other", "other", time.Now().Add(10*time.Second).Format(time.RFC3339)
		}))
		if got := at(12*time.Second, "other"); got.Status.Phase != v1alpha1.PhaseRunning {
			t.Errorf("status %+v two seconds after it was due, want RUNNING", got.Status)
		}

		setRoom(func() bool { return true })
		at(time.Until(start.Add(time.Hour-time.Second)), name.Name)
		creations := func() []time.Duration {
			lock.Lock()
			defer lock.Unlock()
			return slices.Clone(asked["POST pods"])
		}
		before := creations()
		at(2*time.Second, name.Name)
		if after := creations(); !slices.Equal(after, append(before, time.Hour)) {
			t.Errorf("Pods are created after %v, want one more than %v after an hour", after, before)
		}
	})
}
