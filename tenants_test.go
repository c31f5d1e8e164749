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
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	"programming-kubernetes.info/cnat-controller/pkg/preflight"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// tenantWorkers is the number of workers of the controller, as by default.
const tenantWorkers = 16

// tenants is a controller of several namespaces, and an API server whose admission takes
// long for the Pods of some.
type tenants struct {
	t      *testing.T
	start  time.Time
	person clientset.Interface
	// admission returns how long the creation of a Pod in a namespace takes.
	admission func(namespace string) time.Duration

	lock     sync.Mutex
	creating map[string][]time.Duration // by namespace: creations of Pods that arrived, since the start
	inFlight int
	most     int // of those in flight
}

// withTenants calls test with a running controller.
func withTenants(t *testing.T, admission func(namespace string) time.Duration, test func(w *tenants)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := fakeserver.New(clock.RealClock{})
		w := &tenants{t: t, start: time.Now(), admission: admission, creating: map[string][]time.Duration{}}
		kubeClient, cnatClient := harness.NewClients(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
			if err := w.admit(request); err != nil {
				return nil, err
			}
			if strings.Contains(request.URL.Path, "/namespaces/denied/") && request.Method != http.MethodGet {
				return fakeserver.Refuse(request, apierrors.NewForbidden(podsResource.GroupResource(), "", errors.New("a webhook denied the request")))
			}
			return server.RoundTrip(request)
		}))
		_, w.person = harness.NewClients(t, server)
		c := standBy(t, kubeClient, cnatClient, clock.RealClock{})
		c.preflight = preflight.New(preflight.Clients{Cnat: cnatClient, Kube: kubeClient, QPS: 5}, c.nodes.List, defaults, clock.RealClock{})
		c.checks = c.preflight.Ats(c.cache.Ats)
		c.checks.Notify(c.queue.Add)
		_, ctx := ktesting.NewTestContext(t)
		harness.Run(ctx, t, func(ctx context.Context) { c.Run(ctx, tenantWorkers) })
		test(w)
	})
}

// admit takes as long as the admission of a request.
func (w *tenants) admit(request *http.Request) error {
	if !harness.Creates(request, "pods") {
		return nil
	}
	namespace := path.Base(path.Dir(request.URL.Path))
	isDryRun := request.URL.Query().Has("dryRun")
	w.lock.Lock()
	if !isDryRun {
		w.creating[namespace] = append(w.creating[namespace], time.Since(w.start))
		w.inFlight++
		w.most = max(w.most, w.inFlight)
	}
	w.lock.Unlock()
	defer func() {
		w.lock.Lock()
		defer w.lock.Unlock()
		if !isDryRun {
			w.inFlight--
		}
	}()
	select {
	case <-time.After(w.admission(namespace)):
		return nil
	case <-request.Context().Done():
		return request.Context().Err()
	}
}

// create creates a number of different Ats in a namespace, each due some time after the
// start.
func (w *tenants) create(namespace string, number int, due func(i int) time.Duration) {
	w.t.Helper()
	for i := range number {
		harness.Create(w.t, w.person.CnatV1alpha1().Ats(namespace), newAt(func(at *v1alpha1.At) {
			at.Namespace, at.Name = namespace, fmt.Sprint("at-", i)
			at.Spec.Command = fmt.Sprint("echo ", i)
			at.Spec.Schedule = w.start.Add(due(i)).Format(time.RFC3339Nano)
		}))
	}
}

// slow is the admission of the namespaces whose names begin with slow: it asks a registry
// that hangs.
func slow(namespace string) time.Duration {
	if strings.HasPrefix(namespace, "slow") {
		return 10 * time.Second
	}
	return 5 * time.Millisecond
}

// TestSlowTenants has very many Ats in namespaces with a slow admission. Those of another
// namespace start within a second, at the same time and later.
func TestSlowTenants(t *testing.T) {
	t.Parallel()
	for name, number := range map[string]int{"one namespace": 1, "five": 5, "twenty": 20} {
		t.Run(name, func(t *testing.T) {
			withTenants(t, slow, func(w *tenants) {
				const many, few = 100, 100
				for i := range number {
					// Each namespace finds the workers free that the earlier ones have left.
					w.create(fmt.Sprint("slow-", i), many, func(int) time.Duration { return time.Minute + time.Duration(i)*300*time.Millisecond })
				}
				due := func(i int) time.Duration { return time.Minute + time.Duration(i)*270*time.Millisecond }
				w.create("other", few, due)
				time.Sleep(2 * time.Minute)
				w.lock.Lock()
				defer w.lock.Unlock()
				got := w.creating["other"]
				if len(got) != few {
					t.Fatalf("%d Pods of the other namespace, want %d", len(got), few)
				}
				for i, at := range got {
					if late := at - due(i); late < 0 || late >= time.Second {
						t.Errorf("Pod %d is %v late, want less than a second", i, late)
					}
				}
				if w.most > 128 {
					t.Errorf("%d creations in flight, want 128 at most", w.most)
				}
			})
		})
	}
}

// TestSingleTenant has very many Ats in the only namespace, which uses all workers, however
// long its admission takes.
func TestSingleTenant(t *testing.T) {
	for name, admission := range map[string]time.Duration{"fast": 10 * time.Millisecond, "slow": time.Second} {
		t.Run(name, func(t *testing.T) {
			withTenants(t, func(string) time.Duration { return admission }, func(w *tenants) {
				const many = 10 * tenantWorkers
				w.create("only", many, func(int) time.Duration { return time.Minute })
				time.Sleep(2 * time.Minute)
				w.lock.Lock()
				defer w.lock.Unlock()
				got := w.creating["only"]
				if len(got) != many {
					t.Fatalf("%d Pods, want %d", len(got), many)
				}
				if last, want := slices.Max(got), time.Minute+many/tenantWorkers*admission; last > want {
					t.Errorf("the last creation begins after %v, want %v at most", last, want)
				}
				if w.most != tenantWorkers {
					t.Errorf("%d creations in flight, want one for each worker", w.most)
				}
			})
		})
	}
}

// TestDeniedStatuses has very many due Ats in a namespace that denies Pods and statuses: they
// take turns to be tried again.
func TestDeniedStatuses(t *testing.T) {
	t.Parallel()
	withTenants(t, slow, func(w *tenants) {
		const many = 500
		w.create("denied", many, func(int) time.Duration { return time.Minute })
		time.Sleep(2 * time.Minute)
		w.lock.Lock()
		defer w.lock.Unlock()
		if got := len(w.creating["denied"]); got < many || got > many+11*60 {
			t.Errorf("%d tries within a minute, want one for each At and then about ten a second", got)
		}
	})
}

// TestSlowPreflights has very many different Ats in namespaces with a slow admission. An
// At of another namespace has its preflight within seconds.
func TestSlowPreflights(t *testing.T) {
	withTenants(t, slow, func(w *tenants) {
		for i := range 5 {
			w.create(fmt.Sprint("slow-", i), 100, func(int) time.Duration { return 24 * time.Hour })
		}
		time.Sleep(30 * time.Second)
		at := newAt(func(at *v1alpha1.At) {
			at.Namespace = "other"
			// The API server in memory does not know this workload.
			at.Spec.Command, at.Spec.Restart = "", &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}
			at.Spec.Schedule = w.start.Add(48 * time.Hour).Format(time.RFC3339Nano)
		})
		ats := w.person.CnatV1alpha1().Ats(at.Namespace)
		harness.Create(t, ats, at)
		time.Sleep(5 * time.Second)
		at = harness.Get(t, ats, at.Name)
		if at.Status.Reason != v1alpha1.ReasonTargetNotFound {
			t.Errorf("reason %q, want TargetNotFound", at.Status.Reason)
		}
	})
}
