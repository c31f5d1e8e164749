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

package freezecache

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/freeze"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// faulty is a transport to a server that fails as the test says.
type faulty struct {
	next http.RoundTripper
	// refusal is the answer to each list of Freezes, and silent keeps watches from reporting.
	refused string // the resource whose lists get refusal
	refusal atomic.Pointer[apierrors.StatusError]
	silent  atomic.Bool
	lists   atomic.Int32
}

func (f *faulty) RoundTrip(request *http.Request) (*http.Response, error) {
	isWatch := request.URL.Query().Get("watch") != ""
	if refusal := f.refusal.Load(); refusal != nil && strings.HasSuffix(request.URL.Path, f.refused) && request.Method == http.MethodGet {
		return fakeserver.Refuse(request, refusal)
	}
	if strings.HasSuffix(request.URL.Path, "/freezes") && request.Method == http.MethodGet && !isWatch {
		f.lists.Add(1)
	}
	if isWatch && f.silent.Load() {
		<-request.Context().Done()
		return nil, request.Context().Err()
	}
	return f.next.RoundTrip(request)
}

// world is a Cache that runs, and the server.
type world struct {
	*Cache
	transport *faulty
	server    *fakeserver.Server
	users     clientset.Interface
	changes   atomic.Int32
	logged    func() string
}

func start(t *testing.T) *world {
	t.Helper()
	return startRefused(t, "/freezes", nil)
}

// startRefused is start while lists of a resource are refused.
func startRefused(t *testing.T, resource string, refusal *apierrors.StatusError) *world {
	t.Helper()
	w := &world{server: fakeserver.New(clock.RealClock{})}
	w.transport = &faulty{next: w.server, refused: resource}
	w.transport.refusal.Store(refusal)
	_, w.users = harness.NewClients(t, w.server)
	_, client := harness.NewClients(t, w.transport)
	metadataClient, err := metadata.NewForConfig(fakeserver.Config(w.transport))
	if err != nil {
		t.Fatal(err)
	}
	ctx, logged := harness.Logged(t, 0)
	w.logged = logged
	w.Cache = New(client, metadataClient, metav1.NamespaceAll, "cnat-system", clock.RealClock{})
	w.Notify(func() { w.changes.Add(1) })
	harness.Run(ctx, t, w.Run)
	return w
}

func (w *world) create(t *testing.T, namespace, name string, selector *metav1.LabelSelector) {
	t.Helper()
	harness.Create(t, w.users.CnatV1alpha1().Freezes(namespace), &v1alpha1.Freeze{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.FreezeSpec{Windows: []v1alpha1.FreezeWindow{{From: "2000-01-01T00:00:00Z", Until: "2100-01-01T00:00:00Z"}}, NamespaceSelector: selector},
	})
}

// holds returns the Freeze that holds in a namespace, or an error.
func (w *world) holds(namespace string) string {
	set, err := w.Set()
	if err != nil {
		return err.Error()
	}
	if hold := set.Holding(freeze.NewSubject(&v1alpha1.At{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "a"}}), time.Now()); hold != nil {
		return hold.Freeze
	}
	return ""
}

func (w *world) expect(t *testing.T, namespace, want string) {
	t.Helper()
	if got := w.holds(namespace); got != want {
		t.Errorf("namespace %s: got %q, want %q", namespace, got, want)
	}
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		synctest.Wait()
		<-w.Done()
		w.expect(t, "team", "")
		w.create(t, "team", "own", nil)
		synctest.Wait()
		w.expect(t, "team", "own")
		w.expect(t, "other", "")
		w.create(t, "cnat-system", "christmas", nil)
		synctest.Wait()
		w.expect(t, "other", "cnat-system/christmas")
		for namespace, name := range map[string]string{"team": "own", "cnat-system": "christmas"} {
			if err := w.users.CnatV1alpha1().Freezes(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		w.expect(t, "team", "")
		if got := w.changes.Load(); got != 4 {
			t.Errorf("%d changes were reported, want 4", got)
		}
		time.Sleep(time.Minute)
		if got := w.changes.Load(); got != 4 {
			t.Errorf("%d changes were reported after a minute, want 4", got)
		}
	})
}

// TestSilent checks that what no watch reports is known after 30 seconds.
func TestSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.transport.silent.Store(true)
		synctest.Wait()
		w.create(t, "team", "own", nil)
		time.Sleep(maxAge)
		w.expect(t, "team", "own")
		if err := w.users.CnatV1alpha1().Freezes("team").Delete(t.Context(), "own", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(maxAge)
		w.expect(t, "team", "")
	})
}

// TestAway checks that nothing may start when the Freezes have not been read for 30 seconds, and
// that they are read as soon as possible.
func TestAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.create(t, "team", "own", nil)
		synctest.Wait()
		w.expect(t, "team", "own")
		w.server.SetAway(true)
		time.Sleep(period)
		w.expect(t, "team", "own")
		time.Sleep(maxAge)
		if _, err := w.Set(); !errors.Is(err, errOutdated) {
			t.Errorf("got %v", err)
		}
		w.server.SetAway(false)
		time.Sleep(2 * retryPeriod)
		w.expect(t, "team", "own")
	})
}

// TestAbsent checks that everything runs without the CRD or the permission, that the log says so
// once, and that it ends when there is one.
func TestAbsent(t *testing.T) {
	for name, refusal := range map[string]*apierrors.StatusError{
		"no CRD":        apierrors.NewNotFound(v1alpha1.Resource("freezes"), ""),
		"no permission": apierrors.NewForbidden(v1alpha1.Resource("freezes"), "", errors.New("no role")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t)
				w.create(t, "team", "own", nil)
				synctest.Wait()
				w.transport.refusal.Store(refusal)
				time.Sleep(period + (minAbsences-2)*retryPeriod)
				w.transport.refusal.Store(nil)
				w.expect(t, "team", "own") // That was not long enough.
				time.Sleep(2 * retryPeriod)
				w.transport.refusal.Store(refusal)
				time.Sleep(period + minAbsences*retryPeriod)
				w.expect(t, "team", "")
				time.Sleep(10 * time.Minute)
				if got := strings.Count(w.logged(), "Freezes cannot be listed"); got != 1 {
					t.Errorf("logged %d times:\n%s", got, w.logged())
				}
				w.transport.refusal.Store(nil)
				time.Sleep(maxAge)
				w.expect(t, "team", "own")
			})
		})
	}
}

// TestNotReady starts with an API server that knows no permissions at first: Freezes are not known
// until it does.
func TestNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startRefused(t, "/freezes", apierrors.NewForbidden(v1alpha1.Resource("freezes"), "", errors.New("no role")))
		w.create(t, "team", "own", nil)
		time.Sleep((minAbsences - 2) * retryPeriod)
		if _, err := w.Set(); !errors.Is(err, errOutdated) {
			t.Errorf("got %v", err)
		}
		w.transport.refusal.Store(nil)
		time.Sleep(2 * retryPeriod)
		w.expect(t, "team", "own")
	})
}

// TestNamespaces checks that labels of namespaces are read if a Freeze needs them, and again.
func TestNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		kubeClient, _ := harness.NewClients(t, w.server)
		for _, name := range []string{"team", "lab"} {
			harness.Create(t, kubeClient.CoreV1().Namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"stage": name}}})
		}
		w.create(t, "cnat-system", "christmas", &metav1.LabelSelector{MatchLabels: map[string]string{"stage": "team"}})
		time.Sleep(time.Second)
		w.expect(t, "team", "cnat-system/christmas")
		w.expect(t, "lab", "")
		lab := harness.Get(t, kubeClient.CoreV1().Namespaces(), "lab")
		lab.Labels["stage"] = "team"
		if _, err := kubeClient.CoreV1().Namespaces().Update(t.Context(), lab, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		changes := w.changes.Load()
		time.Sleep(maxAge)
		w.expect(t, "lab", "cnat-system/christmas")
		if w.changes.Load() != changes+1 {
			t.Errorf("%d changes were reported, want 1", w.changes.Load()-changes)
		}
	})
}

// TestNamespacesForbidden lets selectors of namespaces see only names while namespaces cannot be listed.
func TestNamespacesForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startRefused(t, "/namespaces", apierrors.NewForbidden(corev1.Resource("namespaces"), "", errors.New("no role")))
		kubeClient, _ := harness.NewClients(t, w.server)
		harness.Create(t, kubeClient.CoreV1().Namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: map[string]string{"stage": "live"}}})
		w.create(t, "cnat-system", "by-label", &metav1.LabelSelector{MatchLabels: map[string]string{"stage": "live"}})
		w.create(t, "cnat-system", "by-name", &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: []string{"lab"}},
			{Key: "stage", Operator: metav1.LabelSelectorOpDoesNotExist},
		}})
		time.Sleep(minAbsences * retryPeriod)
		w.expect(t, "team", "")
		w.expect(t, "lab", "cnat-system/by-name")
		if !strings.Contains(w.logged(), "sees only their names") {
			t.Errorf("logged:\n%s", w.logged())
		}
		w.transport.refusal.Store(nil)
		time.Sleep(maxAge)
		w.expect(t, "team", "cnat-system/by-label")
	})
}
