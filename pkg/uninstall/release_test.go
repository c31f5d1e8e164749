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

package uninstall

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronsteps"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	cnatinformers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/steps"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// leaving is a cluster that a controller leaves.
type leaving struct {
	t          *testing.T
	server     *fakeserver.Server
	kubeClient kubernetes.Interface
	cnatClient clientset.Interface
}

func newLeaving(t *testing.T) *leaving {
	t.Helper()
	l := &leaving{t: t, server: fakeserver.New(clock.RealClock{})}
	l.kubeClient, l.cnatClient = harness.NewClients(t, l.server.Restore())
	return l
}

// release calls Release with clients that use transport.
func (l *leaving) release(transport http.RoundTripper, namespace string) error {
	l.t.Helper()
	kubeClient, cnatClient := harness.NewClients(l.t, transport)
	metadataClient, err := metadata.NewForConfig(fakeserver.Config(transport))
	if err != nil {
		l.t.Fatal(err)
	}
	informers, pods := cnatinformers.NewSharedInformerFactory(cnatClient, 0).Cnat().V1alpha1(), kubeinformers.NewSharedInformerFactory(kubeClient, 0).Core().V1().Pods()
	cronAts, err := cronsteps.New(cnatClient, informers.CronAts(), informers.Ats(), &record.FakeRecorder{}, clock.RealClock{})
	if err != nil {
		l.t.Fatal(err)
	}
	known, err := steps.NewCache(informers.Ats(), pods)
	if err != nil {
		l.t.Fatal(err)
	}
	ats := &steps.Steps{
		KubeClient: kubeClient, CnatClient: cnatClient, Recorder: &record.FakeRecorder{}, Clock: clock.RealClock{},
		Cache:    known,
		Failures: workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](0, 0), Parallel: 1,
	}
	ctx, cancel := context.WithTimeout(l.t.Context(), leaveTimeout)
	defer cancel()
	return Release(ctx, metadataClient, ats, cronAts, namespace)
}

func (l *leaving) createAt(name string, change func(*v1alpha1.At)) *v1alpha1.At {
	l.t.Helper()
	at := &v1alpha1.At{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	at.Spec.Schedule, at.Spec.Command = time.Now().Format(time.RFC3339), "true"
	change(at)
	return harness.Create(l.t, l.cnatClient.CnatV1alpha1().Ats(at.Namespace), at)
}

func (l *leaving) createPod(at *v1alpha1.At, phase corev1.PodPhase) {
	l.t.Helper()
	pod := plan.NewPod(at, plan.Defaults{Image: "a"})
	pod.Namespace, pod.Status.Phase = at.Namespace, phase
	harness.Create(l.t, l.kubeClient.CoreV1().Pods(at.Namespace), pod)
}

// tracked returns the names of all objects that have a finalizer of the controller.
func (l *leaving) tracked() []string {
	l.t.Helper()
	var names []string
	add := func(object metav1.Object) {
		if len(object.GetFinalizers()) > 0 {
			names = append(names, object.GetNamespace()+"/"+object.GetName())
		}
	}
	for _, pod := range harness.List(l.t, l.kubeClient.CoreV1().Pods(metav1.NamespaceAll)).Items {
		add(&pod)
	}
	for _, at := range harness.List(l.t, l.cnatClient.CnatV1alpha1().Ats(metav1.NamespaceAll)).Items {
		add(&at)
	}
	return names
}

// TestRelease leaves nothing with a finalizer behind, and nothing that would run a second
// time: what has run is recorded first.
func TestRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeaving(t)
		same := func(*v1alpha1.At) {}
		l.createPod(l.createAt("running", same), corev1.PodRunning)
		l.createPod(l.createAt("ended", same), corev1.PodSucceeded)
		l.createPod(&v1alpha1.At{ObjectMeta: metav1.ObjectMeta{Name: "gone", Namespace: "default", UID: "gone"}}, corev1.PodRunning)
		l.createPod(l.createAt("other", func(at *v1alpha1.At) { at.Namespace = "other" }), corev1.PodRunning)
		l.createAt("pending", same)
		l.createAt("child-a", func(at *v1alpha1.At) {
			at.Spec.Node, at.Finalizers = "a", []string{v1alpha1.FinalizerTracking}
			at.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(&metav1.ObjectMeta{Name: "child", UID: "child"}, v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.AtKind))}
		})
		cronAt, err := l.cnatClient.CnatV1alpha1().CronAts("default").Create(t.Context(), &v1alpha1.CronAt{
			ObjectMeta: metav1.ObjectMeta{Name: "nightly", Namespace: "default"},
			Spec:       v1alpha1.CronAtSpec{Schedule: "@daily", AtTemplate: v1alpha1.AtTemplateSpec{Spec: v1alpha1.RunSpec{Command: "true"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(time.Now().Truncate(24*time.Hour).Add(24*time.Hour)) + time.Second)
		scheduled := time.Now().Truncate(24 * time.Hour)
		for _, cronAt := range []*v1alpha1.CronAt{cronAt, {ObjectMeta: metav1.ObjectMeta{Name: "past", Namespace: "default", UID: "past"}}} {
			l.createAt(fmt.Sprintf("%s-%d", cronAt.Name, scheduled.Unix()/60), func(at *v1alpha1.At) {
				at.Finalizers, at.Labels = []string{v1alpha1.FinalizerScheduled}, map[string]string{v1alpha1.LabelCronAtUID: string(cronAt.UID)}
				at.Annotations = map[string]string{v1alpha1.AnnotationScheduledTime: scheduled.Format(time.RFC3339)}
				at.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(cronAt, v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.CronAtKind))}
			})
		}

		if err := l.release(l.server, "default"); err != nil {
			t.Fatal(err)
		}
		if got := l.tracked(); !slices.Equal(got, []string{"other/other-pod"}) {
			t.Errorf("%v are tracked, want only the Pod of the other namespace", got)
		}
		for name, want := range map[string]v1alpha1.AtPhase{"running": v1alpha1.PhaseRunning, "ended": v1alpha1.PhaseDone, "pending": v1alpha1.PhasePending} {
			at, err := l.cnatClient.CnatV1alpha1().Ats("default").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || at.Status.Phase != want {
				t.Errorf("At %s: got phase %q, %v, want %q", name, at.Status.Phase, err, want)
			}
		}
		cronAt, err = l.cnatClient.CnatV1alpha1().CronAts("default").Get(t.Context(), "nightly", metav1.GetOptions{})
		if err != nil || cronAt.Status.LastScheduleTime == nil || !cronAt.Status.LastScheduleTime.Time.Equal(scheduled) {
			t.Errorf("the CronAt has the last time %v, %v, want %v", cronAt.Status.LastScheduleTime, err, scheduled)
		}
	})
}

// TestReleaseRefused ends at once when the controller has no permission, and tries again
// after other errors.
func TestReleaseRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeaving(t)
		l.createPod(l.createAt("running", func(*v1alpha1.At) {}), corev1.PodRunning)
		refusals := 0
		err := l.release(harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
			refusals++
			return fakeserver.Refuse(request, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", nil))
		}), "")
		if !apierrors.IsForbidden(err) || refusals != 1 {
			t.Errorf("got %v after %d requests, want that it is forbidden after one", err, refusals)
		}
		failures := 5
		err = l.release(harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
			if failures > 0 {
				failures--
				return fakeserver.Refuse(request, apierrors.NewInternalError(http.ErrHandlerTimeout))
			}
			return l.server.RoundTrip(request)
		}), "")
		if got := l.tracked(); err != nil || len(got) > 0 {
			t.Errorf("got %v, and %v are tracked, want nothing", err, got)
		}
	})
}

// TestReleaseMany releases the Pods of a large installation first, and reads the many Ats
// that need nothing only afterwards, once, although one Pod is refused for some time.
func TestReleaseMany(t *testing.T) {
	const ats, running, latency, refused = 100_000, 500, 20 * time.Millisecond, 10 * time.Second
	synctest.Test(t, func(t *testing.T) {
		l := newLeaving(t)
		for i := range running {
			l.createPod(l.createAt(fmt.Sprintf("running-%d", i), func(*v1alpha1.At) {}), corev1.PodRunning)
		}
		start := time.Now()
		var lock sync.Mutex
		var released []time.Duration
		pages, refusals := 0, 0
		transport := harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
			time.Sleep(latency)
			lock.Lock()
			defer lock.Unlock()
			name := path.Base(request.URL.Path)
			switch {
			case request.Method == http.MethodGet && name == "ats":
				pages++
				return answerPage(request, ats)
			case request.Method == http.MethodPatch && name == "running-7-pod" && time.Since(start) < refused:
				refusals++
				return fakeserver.Refuse(request, apierrors.NewInternalError(http.ErrHandlerTimeout))
			case request.Method == http.MethodPatch && strings.HasSuffix(name, "-pod"):
				released = append(released, time.Since(start))
			}
			return l.server.RoundTrip(request)
		})
		if err := l.release(transport, ""); err != nil {
			t.Error(err)
		}
		if got := l.tracked(); len(got) > 0 {
			t.Errorf("%v are tracked", got)
		}
		if first, last := released[0], released[running-2]; first > time.Second || last > 15*time.Second {
			t.Errorf("the first Pod was released after %v, the last that was not refused after %v: want a second and 15 seconds at most", first, last)
		}
		if took := time.Since(start); took > leaveTimeout || pages != ats/pageSize || refusals > 10 {
			t.Errorf("it took %v, %d pages of Ats and %d tries for the Pod that was refused: want %v at most, %d, and 10 at most", took, pages, refusals, leaveTimeout, ats/pageSize)
		}
	})
}

// answerPage answers a request for a page of the metadata of a number of objects.
func answerPage(request *http.Request, number int) (*http.Response, error) {
	query := request.URL.Query()
	limit, err := strconv.Atoi(query.Get("limit"))
	if err != nil {
		return nil, err
	}
	from, _ := strconv.Atoi(query.Get("continue"))
	page := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"}}
	to := min(from+limit, number)
	for i := range to - from {
		page.Items = append(page.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("at-%d", from+i), Namespace: "default"}})
	}
	if to < number {
		page.Continue = strconv.Itoa(to)
	}
	body, err := json.Marshal(page)
	response := fakeserver.AnswerAsProxy(request, http.StatusOK)
	response.Header.Set("Content-Type", "application/json")
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response, err
}

// TestNoTime checks that what was not tried does not count as released.
func TestNoTime(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tasks := make([]task, 1000)
	for i := range tasks {
		tasks[i] = func(context.Context) error {
			cancel()
			return nil
		}
	}
	if failed, err := run(ctx, tasks); len(failed) == 0 || err == nil {
		t.Errorf("%d of %d are left, %v; want that not all are released", len(failed), len(tasks), err)
	}
}
