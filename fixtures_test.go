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
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	cnatfake "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/fake"
	cnatscheme "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/scheme"
	typedcnatv1alpha1 "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/typed/cnat/v1alpha1"
	cnatinformers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/events"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

var defaults = plan.Defaults{Image: "busybox:test"}

var (
	due  = time.Date(2026, 12, 24, 10, 12, 0, 0, time.UTC)
	name = cache.ObjectName{Namespace: "default", Name: "example-at"}

	podsResource = corev1.SchemeGroupVersion.WithResource("pods")
	atsResource  = v1alpha1.SchemeGroupVersion.WithResource("ats")
)

// fixture is a controller with fakes. The contents of its caches are set separately from
// the objects in the fake API server.
type fixture struct {
	*Controller
	kubeClient *kubefake.Clientset
	cnatClient *cnatfake.Clientset
	recorder   *record.FakeRecorder
}

type world struct {
	ats        []*v1alpha1.At
	cachedPods []*corev1.Pod
	livePods   []*corev1.Pod
	liveAts    []*v1alpha1.At // if they differ from the cache
}

func newFixture(t *testing.T, w world, clock clock.WithTicker) *fixture {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	var livePods, liveAts []runtime.Object
	for _, pod := range w.livePods {
		livePods = append(livePods, pod)
	}
	if w.liveAts == nil {
		w.liveAts = w.ats
	}
	for _, at := range w.liveAts {
		liveAts = append(liveAts, at)
	}
	f := &fixture{
		kubeClient: kubefake.NewClientset(livePods...),
		cnatClient: cnatfake.NewSimpleClientset(liveAts...),
		recorder:   record.NewFakeRecorder(10),
	}
	pods := kubeinformers.NewSharedInformerFactory(f.kubeClient, 0).Core().V1().Pods()
	nodes := kubeinformers.NewSharedInformerFactory(f.kubeClient, 0).Core().V1().Nodes()
	ats := cnatinformers.NewSharedInformerFactory(f.cnatClient, 0).Cnat().V1alpha1().Ats()
	c, err := NewController(ctx, f.kubeClient, f.cnatClient, pods, nodes, ats, nil, f.recorder, defaults, clock)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.queue.ShutDown)
	c.working.Store(true)
	c.cache.Freshness.Claim(clock.Now()) // so that a sync does not go on after the creation of a Pod
	f.Controller = c
	for _, pod := range w.cachedPods {
		if err := pods.Informer().GetStore().Add(plan.KeepPod(pod)); err != nil {
			t.Fatal(err)
		}
	}
	for _, at := range w.ats {
		if err := ats.Informer().GetStore().Add(plan.KeepAt(at)); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// events returns the recorded events, and forgets them.
func (f *fixture) events() []string {
	var events []string
	for len(f.recorder.Events) > 0 {
		events = append(events, <-f.recorder.Events)
	}
	return events
}

func newAt(mutate ...func(*v1alpha1.At)) *v1alpha1.At {
	at := &v1alpha1.At{
		ObjectMeta: metav1.ObjectMeta{Name: name.Name, Namespace: name.Namespace, UID: "at-uid", Generation: 1, ResourceVersion: "1"},
		Spec:       v1alpha1.AtSpec{Schedule: "2026-12-24T10:12:00Z", RunSpec: v1alpha1.RunSpec{Command: "echo YAY"}},
		Status:     v1alpha1.AtStatus{Phase: v1alpha1.PhasePending},
	}
	for _, m := range mutate {
		m(at)
	}
	return at
}

// running makes an At one whose Pod was seen.
func running(at *v1alpha1.At) {
	at.Status = v1alpha1.AtStatus{
		Phase:              v1alpha1.PhaseRunning,
		ScheduledTime:      &metav1.Time{Time: due},
		StartTime:          &metav1.Time{Time: due},
		Pod:                &v1alpha1.AtPod{Name: "example-at-pod", UID: "pod-uid", AtGeneration: 1, Phase: corev1.PodPending},
		ObservedGeneration: 1,
	}
}

// ended makes an At DONE.
func ended(conditionType, reason, message string, transition time.Time) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) {
		at.Status.Phase = v1alpha1.PhaseDone
		at.Status.Reason = reason
		at.Status.CompletionTime = &metav1.Time{Time: transition}
		at.Status.ObservedGeneration = 1
		at.Status.Conditions = []metav1.Condition{{
			Type: conditionType, Status: metav1.ConditionTrue, ObservedGeneration: 1,
			LastTransitionTime: metav1.Time{Time: transition}, Reason: reason, Message: message,
		}}
	}
}

func blocked(reason, message string) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) {
		at.Status.ObservedGeneration = 1
		at.Status.Reason, at.Status.Message = reason, message
		at.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionTrue, ObservedGeneration: 1,
			LastTransitionTime: metav1.Time{Time: due}, Reason: reason, Message: message,
		}}
	}
}

func newPod(phase corev1.PodPhase, mutate ...func(*corev1.Pod)) *corev1.Pod {
	pod := plan.NewPod(newAt(), defaults)
	pod.UID = "pod-uid"
	pod.ResourceVersion = "1"
	pod.CreationTimestamp = metav1.Time{Time: due}
	pod.Status.Phase = phase
	for _, m := range mutate {
		m(pod)
	}
	return pod
}

func owner(apiVersion, kind, name string, uid types.UID) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: uid, Controller: ptr.To(true)}}
	}
}

func withActiveDeadline(at *v1alpha1.At) { at.Spec.ActiveDeadlineSeconds = ptr.To[int64](60) }

// stopping makes an At one that is about to be stopped because of its active deadline.
func stopping(at *v1alpha1.At) {
	at.Status.Reason, at.Status.Message = v1alpha1.ReasonDeadlineExceeded, "The run took longer than spec.activeDeadlineSeconds (60). No container of Pod example-at-pod started."
	at.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionFailureTarget, Status: metav1.ConditionTrue, ObservedGeneration: 1,
		LastTransitionTime: metav1.Time{Time: due.Add(time.Minute)}, Reason: at.Status.Reason, Message: at.Status.Message,
	}}
}

func withShortDeadline(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = ptr.To[int64](10) }

func withTTL(at *v1alpha1.At) { at.Spec.TTLSecondsAfterFinished = ptr.To[int32](60) }

func noOwner(pod *corev1.Pod) { pod.OwnerReferences, pod.Labels, pod.Finalizers = nil, nil, nil }

// earlier makes a Pod that of an earlier At with this name.
func earlier(pod *corev1.Pod) {
	owner("cnat.programming-kubernetes.info/v1alpha1", "At", name.Name, "earlier")(pod)
	pod.UID, pod.Labels[v1alpha1.LabelAtUID] = "earlier-pod", "earlier"
}

// second makes a Pod a later one with the same name as that of the run.
func second(pod *corev1.Pod) { pod.UID = "second" }

// nextAttempt makes an At one whose first attempt has failed and whose second is due.
func nextAttempt(at *v1alpha1.At) {
	at.Spec.BackoffLimit = ptr.To[int32](1)
	at.Status.Failed, at.Status.LastFailureTime, at.Status.NextAttemptTime = 1, &metav1.Time{Time: due}, &metav1.Time{Time: due.Add(10 * time.Second)}
}

func released(pod *corev1.Pod) { pod.Finalizers = nil }

func newerVersion(at *v1alpha1.At) { at.ResourceVersion = "2" }

// runController runs the whole controller against an API server in memory until the end of
// the test. Its wall clock may differ from that of its timers. create is called for each
// creation of a Pod, which is refused with the error that it returns.
func runController(t *testing.T, wall clock.WithTicker, create func() error) (kubernetes.Interface, typedcnatv1alpha1.AtInterface) {
	t.Helper()
	server := fakeserver.New(clock.RealClock{})
	kubeClient, cnatClient := harness.NewClients(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
		if harness.Creates(request, "pods") {
			var refused apierrors.APIStatus
			if errors.As(create(), &refused) {
				return fakeserver.Refuse(request, refused)
			}
		}
		return server.RoundTrip(request)
	}))
	runWithClients(t, kubeClient, cnatClient, wall)
	kubeClient, cnatClient = harness.NewClients(t, server.Restore())
	return kubeClient, cnatClient.CnatV1alpha1().Ats(name.Namespace)
}

// runWithClients runs the whole controller, including informers, until the end of the
// test.
func runWithClients(t *testing.T, kubeClient kubernetes.Interface, cnatClient clientset.Interface, wall clock.WithTicker) {
	t.Helper()
	work(t, standBy(t, kubeClient, cnatClient, wall))
	synctest.Wait()
}

// standBy returns a controller on standby, with informers that run until the end of the
// test.
func standBy(t *testing.T, kubeClient kubernetes.Interface, cnatClient clientset.Interface, wall clock.WithTicker) *Controller {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	podFactory := kubeinformers.NewSharedInformerFactory(kubeClient, 0)
	atFactory := cnatinformers.NewSharedInformerFactory(cnatClient, 0)
	recorder, stopEvents := events.NewRecorder(ctx, cnatscheme.Scheme, controllerName, kubeClient.CoreV1())
	c, err := NewController(ctx, kubeClient, cnatClient,
		podFactory.Core().V1().Pods(), kubeinformers.NewSharedInformerFactory(kubeClient, 0).Core().V1().Nodes(), atFactory.Cnat().V1alpha1().Ats(),
		nil, recorder, defaults, clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	c.clock, c.steps.Clock = wall, wall
	if c.HasSynced() {
		t.Error("the caches are filled before the informers run")
	}
	podFactory.StartWithContext(ctx)
	atFactory.StartWithContext(ctx)
	t.Cleanup(func() {
		cancel()
		stopEvents()
		podFactory.Shutdown()
		atFactory.Shutdown()
	})
	synctest.Wait()
	if !c.HasSynced() {
		t.Error("the caches do not sync on standby")
	}
	return c
}

// work runs a controller that is on standby, until the end of the test or until stop is
// called.
func work(t *testing.T, c *Controller) (stop func()) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	return workIn(ctx, t, c)
}

func workIn(ctx context.Context, t *testing.T, c *Controller) (stop func()) {
	t.Helper()
	return harness.Run(ctx, t, func(ctx context.Context) { c.Run(ctx, 2) })
}

// isCreation reports whether a request creates the Pod with the given name.
func isCreation(t *testing.T, request *http.Request, pod string) bool {
	t.Helper()
	if !harness.Creates(request, "pods") {
		return false
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		t.Error(err)
	}
	request.Body = io.NopCloser(bytes.NewReader(body))
	return bytes.Contains(body, fmt.Appendf(nil, `"name":%q,"namespace"`, pod))
}
