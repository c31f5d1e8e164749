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
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/metadata/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

const (
	namespace = "shop"
	nightly   = "0 3 * * *"
	weekly    = "0 4 * * 0"
)

// world has the CronAts in a fake API server, which counts the writes of controllers, and
// the workloads in the fake clientset of client-go.
type world struct {
	*fakeserver.Server
	person    clientset.Interface
	workloads *fake.FakeMetadataClient
	recorder  *record.FakeRecorder
	version   int
	writes    atomic.Int64
}

func newWorld(t *testing.T) *world {
	t.Helper()
	scheme := fake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	w := &world{Server: fakeserver.New(clock.RealClock{}), workloads: fake.NewSimpleMetadataClient(scheme), recorder: record.NewFakeRecorder(10_000)}
	_, w.person = harness.NewClients(t, w.Server)
	return w
}

// RoundTrip implements http.RoundTripper, for controllers. A write from a cache that lags
// does not count: the API server refuses it as a conflict.
func (w *world) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := w.Server.RoundTrip(request)
	if request.Method != http.MethodGet && (err != nil || response.StatusCode != http.StatusConflict) {
		w.writes.Add(1)
	}
	return response, err
}

// run runs a controller with the given transport for CronAts until stop is called. It
// returns the controller's log.
func run(t *testing.T, w *world, transport http.RoundTripper) (stop func(), logged func() string) {
	t.Helper()
	ctx, logged := harness.Logged(t, 0)
	_, client := harness.NewClients(t, transport)
	c, err := NewController(ctx, client, w.workloads, metav1.NamespaceAll, w.recorder, clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	stop = harness.Run(ctx, t, func(ctx context.Context) { c.Run(ctx, 2) })
	synctest.Wait()
	return stop, logged
}

// set creates or changes Deployment web, with the given annotations.
func (w *world) set(t *testing.T, annotations map[string]string) {
	t.Helper()
	w.setNamed(t, "web", annotations)
}

// setNamed creates or changes a Deployment, with the given annotations.
func (w *world) setNamed(t *testing.T, name string, annotations map[string]string) {
	t.Helper()
	deployments := appsv1.SchemeGroupVersion.WithResource("deployments")
	w.version++
	workload := &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID(name + "-uid"), ResourceVersion: strconv.Itoa(w.version),
			Labels: map[string]string{"app": "web"}, Annotations: annotations,
		},
	}
	err := w.workloads.Tracker().Update(deployments, workload, namespace)
	if apierrors.IsNotFound(err) {
		err = w.workloads.Tracker().Create(deployments, workload, namespace)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func annotated(schedule string) map[string]string {
	return map[string]string{v1alpha1.AnnotationRestartSchedule: schedule}
}

// cronAt returns the CronAt of Deployment web, or nil if there is none.
func (w *world) cronAt(t *testing.T) *v1alpha1.CronAt {
	t.Helper()
	cronAt, err := w.person.CnatV1alpha1().CronAts(namespace).Get(t.Context(), "deployment-web", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return cronAt
}

func (w *world) edit(t *testing.T, edit func(*v1alpha1.CronAt)) {
	t.Helper()
	cronAt := w.cronAt(t)
	edit(cronAt)
	harness.Update(t, w.person.CnatV1alpha1().CronAts(namespace), cronAt)
}

// wantSchedule checks that the CronAt has a schedule or, if that is empty, that there is
// no CronAt.
func (w *world) wantSchedule(t *testing.T, want string) {
	t.Helper()
	cronAt := w.cronAt(t)
	if want == "" {
		if cronAt != nil {
			t.Errorf("got CronAt %+v, want none", cronAt)
		}
		return
	}
	if cronAt == nil || cronAt.Spec.Schedule != want || !metav1.IsControlledBy(cronAt, &metav1.ObjectMeta{UID: "web-uid"}) || ptr.Deref(cronAt.Spec.AtTemplate.Spec.Restart, v1alpha1.AtRestart{}).Name != "web" {
		t.Errorf("got CronAt %+v, want one of schedule %q", cronAt, want)
	}
}

// wantEvents checks the events since the last call, given by the beginnings of their
// texts, and the number of writes by controllers.
func (w *world) wantEvents(t *testing.T, writes int64, want ...string) {
	t.Helper()
	var got []string
	for len(w.recorder.Events) > 0 {
		got = append(got, <-w.recorder.Events)
	}
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("got the events %q, want %q", got, want)
	}
	if got := w.writes.Swap(0); got != writes {
		t.Errorf("%d writes, want %d", got, writes)
	}
}

// TestFollow changes annotations and CronAt one after the other.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.set(t, nil)
		run(t, w, w)
		w.wantEvents(t, 0)

		w.set(t, annotated(nightly))
		synctest.Wait()
		w.wantSchedule(t, nightly)
		w.wantEvents(t, 1, "Normal SuccessfulCreate Created CronAt deployment-web")
		made := w.cronAt(t).UID

		w.set(t, annotated(weekly))
		synctest.Wait()
		w.wantSchedule(t, weekly)
		w.wantEvents(t, 1, "Normal SuccessfulUpdate")

		w.edit(t, func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Schedule, cronAt.Spec.Suspend = nightly, ptr.To(true) })
		synctest.Wait()
		w.wantSchedule(t, weekly)
		w.wantEvents(t, 1, "Normal SuccessfulUpdate")
		if cronAt := w.cronAt(t); cronAt.UID != made || !ptr.Deref(cronAt.Spec.Suspend, false) {
			t.Errorf("CronAt %+v, want that of before, still suspended", cronAt)
		}

		// A mistake does not end the pause.
		w.set(t, annotated("all night"))
		synctest.Wait()
		w.wantSchedule(t, weekly)
		w.wantEvents(t, 0, "Warning InvalidRestartSchedule")
		w.set(t, annotated(nightly))
		synctest.Wait()
		w.wantSchedule(t, nightly)
		w.wantEvents(t, 1, "Normal SuccessfulUpdate")
		if cronAt := w.cronAt(t); cronAt.UID != made || !ptr.Deref(cronAt.Spec.Suspend, false) {
			t.Errorf("CronAt %+v, want that of before, still suspended", cronAt)
		}
		w.edit(t, func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = nil })
		synctest.Wait()
		w.wantEvents(t, 0)

		w.set(t, annotated("every night"))
		synctest.Wait()
		w.wantSchedule(t, "")
		w.wantEvents(t, 1, "Normal SuccessfulDelete", "Warning InvalidRestartSchedule annotation cnat.programming-kubernetes.info/restart-schedule \"every night\" is invalid")
		w.set(t, map[string]string{v1alpha1.AnnotationRestartSchedule: "every night", "a": "b"})
		time.Sleep(time.Hour)
		w.wantEvents(t, 0)
		w.set(t, annotated("each night"))
		synctest.Wait()
		w.wantEvents(t, 0, "Warning InvalidRestartSchedule")

		w.set(t, annotated(nightly))
		synctest.Wait()
		w.wantSchedule(t, nightly)
		w.wantEvents(t, 1, "Normal SuccessfulCreate")
		w.set(t, annotated("each night"))
		synctest.Wait()
		w.wantEvents(t, 1, "Normal SuccessfulDelete", "Warning InvalidRestartSchedule")
		w.set(t, annotated(nightly))
		synctest.Wait()
		w.wantEvents(t, 1, "Normal SuccessfulCreate")

		harness.Delete(t, w.person.CnatV1alpha1().CronAts(namespace), "deployment-web")
		synctest.Wait()
		w.wantSchedule(t, nightly)
		w.wantEvents(t, 1, "Normal SuccessfulCreate")

		w.set(t, nil)
		synctest.Wait()
		w.wantSchedule(t, "")
		w.wantEvents(t, 1, "Normal SuccessfulDelete")
		w.set(t, map[string]string{v1alpha1.AnnotationRestartTimeZone: "Europe/Berlin"})
		synctest.Wait()
		w.wantEvents(t, 0, "Warning InvalidRestartSchedule")
		time.Sleep(time.Hour)
		w.wantEvents(t, 0)
	})
}

// TestAway removes the annotation while no controller is running.
func TestAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.set(t, annotated(nightly))
		stop, _ := run(t, w, w)
		w.wantSchedule(t, nightly)
		stop()
		w.wantEvents(t, 1, "Normal SuccessfulCreate")
		stop, _ = run(t, w, w)
		stop()
		w.wantEvents(t, 0)
		w.set(t, nil)
		run(t, w, w)
		w.wantSchedule(t, "")
		w.wantEvents(t, 1, "Normal SuccessfulDelete")
	})
}

// TestStranger creates a user's CronAt with the same name: it is not changed until the
// user deletes it.
func TestStranger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		stranger := &v1alpha1.CronAt{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "deployment-web"},
			Spec:       v1alpha1.CronAtSpec{Schedule: "@yearly"},
		}
		stranger = harness.Create(t, w.person.CnatV1alpha1().CronAts(namespace), stranger)
		run(t, w, w)
		w.set(t, annotated(nightly))
		time.Sleep(time.Second)
		if event := <-w.recorder.Events; !strings.HasPrefix(event, "Warning CronAtNameConflict") {
			t.Errorf("event %s", event)
		}
		w.set(t, nil)
		time.Sleep(time.Hour)
		w.set(t, annotated(nightly))
		time.Sleep(time.Hour)
		if got := w.cronAt(t); got.UID != stranger.UID || got.ResourceVersion != stranger.ResourceVersion {
			t.Errorf("CronAt %+v, want it as it was", got)
		}
		harness.Delete(t, w.person.CnatV1alpha1().CronAts(namespace), stranger.Name)
		time.Sleep(2 * time.Minute)
		w.wantSchedule(t, nightly)
	})
}

// TestOrphan removes the owner of a CronAt: the workload adopts the CronAt, but only if
// it has the annotation.
func TestOrphan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.set(t, annotated(nightly))
		run(t, w, w)
		w.wantEvents(t, 1, "Normal SuccessfulCreate")
		w.edit(t, func(cronAt *v1alpha1.CronAt) { cronAt.OwnerReferences, cronAt.Spec.Suspend = nil, ptr.To(true) })
		time.Sleep(time.Hour)
		w.wantSchedule(t, nightly)
		w.wantEvents(t, 1, "Normal SuccessfulUpdate Adopted CronAt deployment-web")
		if !ptr.Deref(w.cronAt(t).Spec.Suspend, false) {
			t.Error("it is no longer suspended")
		}
		deployments := appsv1.SchemeGroupVersion.WithResource("deployments")
		if err := w.workloads.Tracker().Delete(deployments, namespace, "web"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.edit(t, func(cronAt *v1alpha1.CronAt) { cronAt.OwnerReferences = nil })
		time.Sleep(time.Hour)
		w.set(t, nil)
		time.Sleep(time.Hour)
		w.wantEvents(t, 0)
		w.set(t, annotated(weekly))
		time.Sleep(time.Hour)
		w.wantSchedule(t, weekly)
		w.wantEvents(t, 2, "Normal SuccessfulUpdate Adopted", "Normal SuccessfulUpdate Updated")
	})
}

// TestRefused makes the API server refuse the CronAt: that is reported and retried, and the earlier
// schedule stays.
func TestRefused(t *testing.T) {
	const policy = `cronats.cnat.programming-kubernetes.info "deployment-web" is forbidden: ValidatingAdmissionPolicy 'change-freeze' with binding 'change-freeze' denied request: no change today`
	details := metav1.StatusDetails{Group: v1alpha1.SchemeGroupVersion.Group, Kind: "cronats", Name: "deployment-web", Causes: []metav1.StatusCause{{Message: policy}}}
	weeklyIsInvalid := apierrors.NewInvalid(v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.CronAtKind).GroupKind(), "deployment-web",
		field.ErrorList{field.Invalid(field.NewPath("spec", "schedule"), weekly, "must be a cron expression")}).ErrStatus
	for name, tc := range map[string]struct {
		refusal metav1.Status
		event   string
	}{
		"by a policy": {
			refusal: metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "denied"},
			event:   "Warning CronAtRefused denied",
		},
		"by a policy without a reason": {
			refusal: metav1.Status{Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: policy, Details: &details},
			event:   "Warning CronAtRefused " + policy,
		},
		"as invalid": {
			refusal: weeklyIsInvalid,
			event:   "Warning CronAtRefused CronAt.cnat.programming-kubernetes.info \"deployment-web\" is invalid: spec.schedule",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var refuse atomic.Bool
				run(t, w, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
					if !refuse.Load() || request.Method != http.MethodPost && request.Method != http.MethodPatch {
						return w.RoundTrip(request)
					}
					refusal := tc.refusal
					refusal.TypeMeta, refusal.Status = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, metav1.StatusFailure
					content, err := json.Marshal(refusal)
					return &http.Response{StatusCode: int(tc.refusal.Code), Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(string(content))), Request: request}, err
				}))
				w.set(t, annotated(nightly))
				synctest.Wait()
				w.wantEvents(t, 1, "Normal SuccessfulCreate")
				refuse.Store(true)
				w.set(t, annotated(weekly))
				time.Sleep(50 * time.Millisecond)
				w.wantSchedule(t, nightly)
				w.wantEvents(t, 0, tc.event)
				time.Sleep(time.Hour)
				refuse.Store(false)
				time.Sleep(2 * time.Minute)
				w.wantSchedule(t, weekly)
			})
		})
	}
}

// TestForbidden runs a controller that may not list StatefulSets at first.
func TestForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.set(t, annotated(nightly))
		var allowed atomic.Bool
		w.workloads.PrependReactor("list", "statefulsets", func(kubetesting.Action) (bool, runtime.Object, error) {
			return !allowed.Load(), nil, apierrors.NewForbidden(appsv1.Resource("statefulsets"), "", errors.New("RBAC"))
		})
		_, logged := run(t, w, w)
		time.Sleep(time.Minute)
		w.wantSchedule(t, "")
		if log := logged(); strings.Count(log, "grant this user the rules of artifacts/restarts/annotations/rbac.yaml") != 1 || !strings.Contains(log, `statefulsets.apps is forbidden: RBAC`) {
			t.Errorf("it has logged: %s", log)
		}
		allowed.Store(true)
		time.Sleep(permissionPeriod + time.Second)
		w.wantSchedule(t, nightly)
	})
}

// TestNoPermissionError makes the first list fail with an error other than a missing
// permission.
func TestNoPermissionError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.workloads.PrependReactor("list", "statefulsets", func(kubetesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewServiceUnavailable("not yet")
		})
		_, logged := run(t, w, w)
		time.Sleep(time.Minute)
		if log := logged(); strings.Count(log, "Restart annotations have no effect") != 1 || strings.Contains(log, "apply") {
			t.Errorf("it has logged: %s", log)
		}
	})
}

// TestStale changes the CronAt without the controller's knowledge.
func TestStale(t *testing.T) {
	for what, act := range map[string]func(*testing.T, *world){
		"edited": func(t *testing.T, w *world) {
			t.Helper()
			w.edit(t, func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = ptr.To(true) })
		},
		"deleted": func(t *testing.T, w *world) {
			t.Helper()
			if err := w.person.CnatV1alpha1().CronAts(namespace).Delete(t.Context(), "deployment-web", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		},
		"replaced": func(t *testing.T, w *world) {
			t.Helper()
			cronAt := w.cronAt(t)
			cronAts := w.person.CnatV1alpha1().CronAts(namespace)
			if err := cronAts.Delete(t.Context(), "deployment-web", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
			cronAt.ResourceVersion = ""
			if _, err := cronAts.Create(t.Context(), cronAt, metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		},
	} {
		for annotation, annotations := range map[string]map[string]string{"changed": annotated(weekly), "removed": nil, "broken": annotated("never")} {
			t.Run(what+" and "+annotation, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					w.set(t, annotated(nightly))
					watches := harness.NewWatches(t, w)
					run(t, w, watches)
					w.wantSchedule(t, nightly)
					watches.Hold()
					act(t, w)
					w.set(t, annotations)
					time.Sleep(time.Second)
					want := strings.TrimPrefix(annotations[v1alpha1.AnnotationRestartSchedule], "never")
					if what == "edited" && annotation == "broken" {
						// It is suspended.
						want = nightly
					}
					w.wantSchedule(t, want)
					if cronAt := w.cronAt(t); what == "edited" && cronAt != nil && !ptr.Deref(cronAt.Spec.Suspend, false) {
						t.Error("it is no longer suspended")
					}
				})
			})
		}
	}
}

// TestEditedMeanwhile suspends the CronAt just before its deletion arrives: a broken annotation does
// not delete what a user has suspended.
func TestEditedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		suspend := sync.OnceFunc(func() {
			w.edit(t, func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = ptr.To(true) })
		})
		run(t, w, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
			if request.Method == http.MethodDelete {
				suspend()
			}
			return w.RoundTrip(request)
		}))
		w.set(t, annotated(nightly))
		synctest.Wait()
		w.set(t, annotated("never"))
		time.Sleep(time.Minute)
		w.wantSchedule(t, nightly)
		w.wantEvents(t, 1, "Normal SuccessfulCreate", "Warning")
	})
}

// TestStaleWorkload deletes a workload that is still in the cache: there is no CronAt
// until the cache is updated.
func TestStaleWorkload(t *testing.T) {
	gone := func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(appsv1.Resource("deployments"), "web")
	}
	replaced := func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web", UID: "other-uid", Annotations: annotated(nightly)}}, nil
	}
	deleting := func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web", UID: "web-uid", DeletionTimestamp: &metav1.Time{Time: time.Now()}, Annotations: annotated(nightly)}}, nil
	}
	for name, get := range map[string]kubetesting.ReactionFunc{"gone": gone, "replaced": replaced, "being deleted": deleting} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var stale atomic.Bool
				stale.Store(true)
				w.workloads.PrependReactor("get", "deployments", func(action kubetesting.Action) (bool, runtime.Object, error) {
					if stale.Load() {
						return get(action)
					}
					return false, nil, nil
				})
				run(t, w, w)
				w.set(t, annotated(nightly))
				time.Sleep(time.Hour)
				w.wantSchedule(t, "")
				w.wantEvents(t, 0)
				stale.Store(false)
				w.set(t, annotated(weekly))
				time.Sleep(time.Second)
				w.wantSchedule(t, weekly)
				w.wantEvents(t, 1, "Normal SuccessfulCreate")
			})
		})
	}
}

// TestSuspendAnnotation suspends the restarts of a workload by its annotation: a CronAt that
// is created again is suspended, too, and the end of the annotation resumes it.
func TestSuspendAnnotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.set(t, nil)
		run(t, w, w)
		frozen := annotated(nightly)
		frozen[v1alpha1.AnnotationRestartSuspend] = "true"
		wantSuspended := func(want bool) {
			t.Helper()
			synctest.Wait()
			cronAt := w.cronAt(t)
			if cronAt == nil || ptr.Deref(cronAt.Spec.Suspend, false) != want {
				t.Errorf("CronAt %+v, want suspended: %v", cronAt, want)
			}
		}
		w.set(t, annotated(nightly))
		wantSuspended(false)
		w.set(t, frozen)
		wantSuspended(true)
		harness.Delete(t, w.person.CnatV1alpha1().CronAts(namespace), "deployment-web")
		wantSuspended(true)
		w.set(t, annotated(nightly))
		wantSuspended(false)
		w.edit(t, func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = ptr.To(true) })
		wantSuspended(true)
		w.set(t, frozen)
		wantSuspended(true)
		w.set(t, annotated(nightly))
		wantSuspended(true) // As by hand before.
		w.edit(t, func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = nil })
		wantSuspended(false)
	})
}
