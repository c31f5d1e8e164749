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

package restartannotation

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedappsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	typedv1alpha1 "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/typed/cnat/v1alpha1"
	cnatinformers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/connect"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

const (
	namespace = "shop"
	name      = "deployment-web" // of the CronAt
	nightly   = "0 3 * * *"
	weekly    = "0 4 * * 0"
)

// world is an API server with Deployment web, and a controller.
type world struct {
	t           *testing.T
	server      *fakeserver.Server
	watches     *harness.Watches
	deployments typedappsv1.DeploymentInterface // of a person, as the CronAts
	cronAts     typedv1alpha1.CronAtInterface
	recorder    *record.FakeRecorder
	*Controller
	stop   func()
	logged func() string

	lock   sync.Mutex
	fault  func(*http.Request) error // nil: none
	writes int                       // of the controller
}

// newWorld runs a controller in which the watches of a resource can be held back.
func newWorld(t *testing.T, held string, fault func(*http.Request) error) *world {
	t.Helper()
	w := &world{t: t, server: fakeserver.New(clock.RealClock{}), recorder: record.NewFakeRecorder(100), fault: fault}
	kube, cnat := harness.NewClients(t, w.server)
	w.deployments, w.cronAts = kube.AppsV1().Deployments(namespace), cnat.CnatV1alpha1().CronAts(namespace)
	w.watches = harness.NewWatches(t, harness.RoundTripper(w.roundTrip), held)
	harness.Create(t, w.deployments, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}})
	w.start()
	return w
}

func (w *world) start() {
	w.t.Helper()
	ctx, logged := harness.Logged(w.t, 0)
	_, client := harness.NewClients(w.t, w.watches)
	metadataClient, err := metadata.NewForConfig(fakeserver.Config(w.watches))
	if err != nil {
		w.t.Fatal(err)
	}
	cronAts := cnatinformers.NewSharedInformerFactory(client, 0).Cnat().V1alpha1().CronAts()
	if err := cronAts.Informer().SetTransform(connect.Transform(cronplan.KeepCronAt)); err != nil {
		w.t.Fatal(err)
	}
	if w.Controller, err = NewController(client, metadataClient, cronAts, metav1.NamespaceAll, w.recorder, clock.RealClock{}); err != nil {
		w.t.Fatal(err)
	}
	w.stop = harness.Run(ctx, w.t, func(ctx context.Context) {
		go cronAts.Informer().RunWithContext(ctx)
		w.Run(ctx, 2)
	})
	w.logged = logged
	synctest.Wait()
}

// roundTrip answers the controller. A write from a cache that lags does not count: the API server
// refuses it as a conflict.
func (w *world) roundTrip(request *http.Request) (*http.Response, error) {
	w.lock.Lock()
	fault := w.fault
	w.lock.Unlock()
	if fault != nil {
		if err := fault(request); err != nil {
			return fakeserver.Refuse(request, err)
		}
	}
	response, err := w.server.RoundTrip(request)
	if request.Method != http.MethodGet && (err != nil || response.StatusCode != http.StatusConflict) {
		w.lock.Lock()
		defer w.lock.Unlock()
		w.writes++
	}
	return response, err
}

// failWrites lets all writes of the controller fail, until they are to fail with nil.
func (w *world) failWrites(err error) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.fault = func(request *http.Request) error {
		if request.Method == http.MethodGet {
			return nil
		}
		return err
	}
}

// annotate sets the schedule of the Deployment, or removes it.
func (w *world) annotate(schedule string) {
	w.t.Helper()
	web := harness.Get(w.t, w.deployments, "web")
	web.Annotations = nil
	if schedule != "" {
		web.Annotations = map[string]string{v1alpha1.AnnotationRestartSchedule: schedule}
	}
	harness.Update(w.t, w.deployments, web)
}

func (w *world) edit(edit func(*v1alpha1.CronAt)) {
	w.t.Helper()
	cronAt := harness.Get(w.t, w.cronAts, name)
	edit(cronAt)
	harness.Update(w.t, w.cronAts, cronAt)
}

func (w *world) remove() {
	w.t.Helper()
	harness.Delete(w.t, w.cronAts, name)
}

// replace creates the CronAt again.
func (w *world) replace() {
	w.t.Helper()
	cronAt := harness.Get(w.t, w.cronAts, name)
	w.remove()
	cronAt.ResourceVersion = ""
	harness.Create(w.t, w.cronAts, cronAt)
}

func setSuspend(suspend *bool) func(*v1alpha1.CronAt) {
	return func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = suspend }
}

var suspended = setSuspend(ptr.To(true))

// state returns the CronAt, and what has happened since the last call.
func (w *world) state() string {
	w.t.Helper()
	time.Sleep(3 * time.Minute)
	state := "none"
	cronAt, err := w.cronAts.Get(w.t.Context(), name, metav1.GetOptions{})
	if err == nil {
		state = cronAt.Spec.Schedule
		if ptr.Deref(cronAt.Spec.Suspend, false) {
			state += " suspended"
		}
		if web, err := w.deployments.Get(w.t.Context(), "web", metav1.GetOptions{}); err != nil || !metav1.IsControlledBy(cronAt, web) {
			state += " of another owner"
		}
	} else if !apierrors.IsNotFound(err) {
		w.t.Error(err)
	}
	w.lock.Lock()
	defer w.lock.Unlock()
	if w.writes > 0 {
		state += fmt.Sprintf("; %d writes", w.writes)
		w.writes = 0
	}
	for last := ""; len(w.recorder.Events) > 0; {
		if reason := strings.Fields(<-w.recorder.Events)[1]; reason != last { // It is recorded with each retry.
			last = reason
			state += "; " + reason
		}
	}
	for key, reason := range w.Blocked() {
		state += fmt.Sprintf("; %s blocked: %s", key, reason)
	}
	return state
}

// step is what somebody does, and what follows within minutes.
type step struct {
	name string
	act  func(w *world)
	want string
}

func follow(t *testing.T, steps []step) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "", nil)
		for _, s := range steps {
			s.act(w)
			if got := w.state(); got != s.want {
				t.Errorf("%s:\n got %s\nwant %s", s.name, got, s.want)
			}
		}
	})
}

// annotates returns what annotates the Deployment with a schedule, or with nothing.
func annotates(schedule string) func(*world) {
	return func(w *world) { w.annotate(schedule) }
}

func edits(edit func(*v1alpha1.CronAt)) func(*world) { return func(w *world) { w.edit(edit) } }

// TestFollow changes annotations and CronAt one after the other.
func TestFollow(t *testing.T) {
	forbidden := apierrors.NewForbidden(v1alpha1.Resource("cronats"), name, errors.New("RBAC"))
	follow(t, []step{
		{"not annotated", func(*world) {}, "none"},
		{"annotated", annotates(nightly), "0 3 * * *; 1 writes; SuccessfulCreate"},
		{"changed", annotates(weekly), "0 4 * * 0; 1 writes; SuccessfulUpdate"},
		{"the CronAt is edited", edits(func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Schedule = nightly; suspended(cronAt) }), "0 4 * * 0 suspended; 1 writes; SuccessfulUpdate"},
		{"changed while it is suspended", annotates(nightly), "0 3 * * * suspended; 1 writes; SuccessfulUpdate"},
		{"resumed", edits(setSuspend(nil)), "0 3 * * *"},
		{"its label is removed", edits(func(cronAt *v1alpha1.CronAt) { cronAt.Labels = nil }), "0 3 * * *; 1 writes; SuccessfulUpdate"},
		{"a mistake", annotates("every night"), "none; 1 writes; SuccessfulDelete; InvalidRestartSchedule; shop/Deployment/web blocked: InvalidRestartSchedule"},
		{"another mistake", annotates("each night"), "none; InvalidRestartSchedule; shop/Deployment/web blocked: InvalidRestartSchedule"},
		{"fixed", annotates(nightly), "0 3 * * *; 1 writes; SuccessfulCreate"},
		{"the CronAt is deleted", (*world).remove, "0 3 * * *; 1 writes; SuccessfulCreate"},
		{"the controller restarts", func(w *world) { w.stop(); w.start() }, "0 3 * * *"},
		{"the annotation is removed meanwhile", func(w *world) { w.stop(); w.annotate(""); w.start() }, "none; 1 writes; SuccessfulDelete"},
		{"refused", func(w *world) { w.failWrites(forbidden); w.annotate(nightly) }, "none; CronAtRefused; shop/Deployment/web blocked: CronAtRefused"},
		{"no answer after the refusal", func(w *world) { w.failWrites(errors.New("connection refused")) }, "none; shop/Deployment/web blocked: CronAtRefused"},
		{"accepted", func(w *world) { w.failWrites(nil) }, "0 3 * * *; 1 writes; SuccessfulCreate"},
		{"the CronAt loses its owner", edits(func(cronAt *v1alpha1.CronAt) { cronAt.OwnerReferences = nil; suspended(cronAt) }), nightly + " suspended; 1 writes; SuccessfulUpdate"},
		{"the Deployment is deleted", func(w *world) { harness.Delete(w.t, w.deployments, "web") }, "0 3 * * * suspended of another owner"},
		{"the CronAt is orphaned", edits(func(cronAt *v1alpha1.CronAt) { cronAt.OwnerReferences = nil }), "0 3 * * * suspended of another owner"},
		{"the Deployment is created again", func(w *world) {
			harness.Create(w.t, w.deployments, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}})
		}, "0 3 * * * suspended of another owner"},
		{"and annotated", annotates(weekly), "0 4 * * 0 suspended; 1 writes; SuccessfulUpdate"},
	})
}

// TestStranger creates a user's CronAt with the same name: it is not changed until the
// user deletes it.
func TestStranger(t *testing.T) {
	follow(t, []step{
		{"it exists", func(w *world) {
			harness.Create(w.t, w.cronAts, &v1alpha1.CronAt{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.CronAtSpec{Schedule: "@yearly"}})
		}, "@yearly of another owner"},
		{"annotated", annotates(nightly), "@yearly of another owner; CronAtNameConflict; shop/Deployment/web blocked: CronAtNameConflict"},
		{"no longer annotated", annotates(""), "@yearly of another owner"},
		{"annotated again", annotates(nightly), "@yearly of another owner; CronAtNameConflict; shop/Deployment/web blocked: CronAtNameConflict"},
		{"it is deleted", (*world).remove, "0 3 * * *; 1 writes; SuccessfulCreate"},
		{"without its label, it could be a user's", func(w *world) {
			w.stop()
			w.edit(func(cronAt *v1alpha1.CronAt) { cronAt.Labels = nil })
			w.annotate("")
			w.start()
		}, "0 3 * * *"},
	})
}

// TestStale changes what the controller has in a cache without its knowledge. The explorer has the other ways.
func TestStale(t *testing.T) {
	for testName, tc := range map[string]struct {
		held string
		act  func(w *world)
		want string
	}{
		"the CronAt is edited, the annotation broken":    {held: "cronats", act: func(w *world) { w.edit(suspended); w.annotate("never") }, want: "0 3 * * * suspended; InvalidRestartSchedule; shop/Deployment/web blocked: InvalidRestartSchedule"},
		"the CronAt is replaced, the annotation removed": {held: "cronats", act: func(w *world) { w.replace(); w.annotate("") }, want: "none; 1 writes; SuccessfulDelete"},
		"the Deployment is replaced": {held: "deployments", act: func(w *world) {
			web := harness.Get(w.t, w.deployments, "web")
			harness.Delete(w.t, w.deployments, "web")
			web.ResourceVersion = ""
			harness.Create(w.t, w.deployments, web)
			w.remove()
		}, want: "none"},
	} {
		t.Run(testName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, tc.held, nil)
				w.annotate(nightly)
				w.state()
				w.watches.Hold()
				tc.act(w)
				if got := w.state(); got != tc.want {
					t.Errorf("\n got %s\nwant %s", got, tc.want)
				}
			})
		})
	}
}

// TestEditedMeanwhile suspends the CronAt just before its deletion arrives: a broken annotation does
// not delete what a user has suspended.
func TestEditedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w *world
		suspend := sync.OnceFunc(func() { w.edit(suspended) })
		w = newWorld(t, "", func(request *http.Request) error {
			if request.Method == http.MethodDelete {
				suspend()
			}
			return nil
		})
		w.annotate(nightly)
		w.state()
		w.annotate("never")
		if got, want := w.state(), "0 3 * * * suspended; InvalidRestartSchedule; shop/Deployment/web blocked: InvalidRestartSchedule"; got != want {
			t.Errorf("\n got %s\nwant %s", got, want)
		}
	})
}

// TestPermission runs a controller that cannot list StatefulSets at first.
func TestPermission(t *testing.T) {
	const hint = ": grant this user the rules of artifacts/restarts/annotations/rbac.yaml"
	for testName, tc := range map[string]struct {
		err  error
		hint bool
	}{
		"forbidden":     {apierrors.NewForbidden(appsv1.Resource("statefulsets"), "", errors.New("RBAC")), true},
		"not available": {apierrors.NewServiceUnavailable("not yet"), false},
	} {
		t.Run(testName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, "", func(request *http.Request) error {
					if strings.HasSuffix(request.URL.Path, "/statefulsets") {
						return tc.err
					}
					return nil
				})
				w.annotate(nightly)
				if got := w.state(); got != "none" {
					t.Errorf("got %s", got)
				}
				if log := w.logged(); strings.Count(log, "Restart annotations have no effect") != 1 || strings.Contains(log, hint) != tc.hint || !strings.Contains(log, tc.err.Error()) {
					t.Errorf("it has logged: %s", log)
				}
				w.failWrites(nil)
				if got, want := w.state(), nightly+"; 1 writes; SuccessfulCreate"; got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			})
		})
	}
}
