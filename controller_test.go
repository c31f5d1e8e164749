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
	"maps"
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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	cnatfake "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/fake"
	cnatscheme "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/scheme"
	cnatinformers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions"
	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/inventory"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/connect"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/events"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/queue"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/preflight"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

var defaults = plan.Defaults{Image: "busybox:test"}

var (
	due  = time.Date(2026, 12, 24, 10, 12, 0, 0, time.UTC)
	name = cache.ObjectName{Namespace: "default", Name: "example-at"}

	podsResource = corev1.SchemeGroupVersion.WithResource("pods")
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
	informers := cnatinformers.NewSharedInformerFactory(f.cnatClient, 0).Cnat().V1alpha1()
	ats := informers.Ats()
	c, err := NewController(ctx, f.kubeClient, f.cnatClient, pods, nodes, ats, informers.CronAts(), harness.NoFreezes{}, nil, f.recorder, defaults, clock)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.queue.ShutDown)
	c.queue.Standby.Store(false)
	c.steps.Freshness.Claim(clock.Now()) // so that a sync does not go on after the creation of a Pod
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

// answer makes requests fail, given by verb and resource.
func (f *fixture) answer(faults map[string]error) {
	for verbAndResource, err := range faults {
		verb, resource, _ := strings.Cut(verbAndResource, " ")
		fault := func(clienttesting.Action) (bool, runtime.Object, error) {
			if errors.Is(err, errPanic) {
				panic("an unexpected object")
			}
			return true, nil, err
		}
		f.kubeClient.PrependReactor(verb, resource, fault)
		f.cnatClient.PrependReactor(verb, resource, fault)
	}
}

// requests returns what was sent. The tests of pkg/steps have the details.
func (f *fixture) requests() []string {
	var sent []string
	for _, action := range slices.Concat(f.cnatClient.Actions(), f.kubeClient.Actions()) {
		request := action.GetVerb() + " " + action.GetResource().Resource
		if write, ok := action.(clienttesting.UpdateAction); ok && action.GetSubresource() == "status" {
			status := &write.GetObject().(*v1alpha1.At).Status
			request += strings.TrimRight(fmt.Sprintf(" %s %s", status.Phase, status.Reason), " ")
		}
		sent = append(sent, request)
	}
	return sent
}

// events returns types and reasons of the recorded events.
func (f *fixture) events() []string {
	var events []string
	for len(f.recorder.Events) > 0 {
		events = append(events, strings.Join(strings.Fields(<-f.recorder.Events)[:2], " "))
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

func owner(apiVersion, kind string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name.Name, UID: "at-uid", Controller: ptr.To(true)}}
	}
}

func withRestart(at *v1alpha1.At) {
	at.Spec.Command, at.Spec.Restart = "", &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}
}

// earlier makes a Pod that of an earlier At with this name.
func earlier(pod *corev1.Pod) {
	pod.OwnerReferences[0].UID, pod.UID, pod.Labels[v1alpha1.LabelAtUID] = "earlier", "earlier-pod", "earlier"
}

func released(pod *corev1.Pod) { pod.Finalizers = nil }

func newerVersion(at *v1alpha1.At) { at.ResourceVersion = "2" }

// standBy returns a controller on standby, with informers that run until the end of the
// test.
func standBy(t *testing.T, kubeClient kubernetes.Interface, cnatClient clientset.Interface, wall clock.WithTicker) *Controller {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	podFactory := kubeinformers.NewSharedInformerFactory(kubeClient, 0)
	atFactory := cnatinformers.NewSharedInformerFactory(cnatClient, 0)
	cnatInformers := atFactory.Cnat().V1alpha1()
	recorder, stopEvents := events.NewRecorder(ctx, cnatscheme.Scheme, controllerName, kubeClient.CoreV1())
	c, err := NewController(ctx, kubeClient, cnatClient,
		podFactory.Core().V1().Pods(), kubeinformers.NewSharedInformerFactory(kubeClient, 0).Core().V1().Nodes(), cnatInformers.Ats(), cnatInformers.CronAts(), harness.NoFreezes{},
		nil, recorder, defaults, clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	c.steps.Clock = wall
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

// workIn runs a controller that is on standby, until the end of the test or until stop is
// called.
func workIn(t *testing.T, c *Controller, workers int) (stop func()) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	return harness.Run(ctx, t, func(ctx context.Context) { c.Run(ctx, workers) })
}

// TestSyncHandler takes an At from the queue, and says what follows: requests, those for Ats first,
// events, what is counted, and when the At is synced again. The tests of pkg/plan cover the decisions,
// those of pkg/steps the single requests.
func TestSyncHandler(t *testing.T) {
	registerMetrics()
	forbidden := apierrors.NewForbidden(podsResource.GroupResource(), "example-at-pod", errors.New("exceeded quota"))
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "example-at-pod", field.ErrorList{field.Required(field.NewPath("spec", "containers"), "")})
	unavailable := errors.New("connection refused")
	done := ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, "", due)
	exitsWith1 := func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}}}
	}
	withRetry := func(at *v1alpha1.At) { at.Spec.BackoffLimit = ptr.To[int32](1) }
	withTTL := func(at *v1alpha1.At) { at.Spec.TTLSecondsAfterFinished = ptr.To[int32](60) }
	ats := func(mutate ...func(*v1alpha1.At)) []*v1alpha1.At { return []*v1alpha1.At{newAt(mutate...)} }
	pods := func(phase corev1.PodPhase, mutate ...func(*corev1.Pod)) []*corev1.Pod {
		return []*corev1.Pod{newPod(phase, mutate...)}
	}
	for testName, tc := range map[string]struct {
		ats, liveAts         []*v1alpha1.At // in the cache, and in the API server if that differs
		cachedPods, livePods []*corev1.Pod
		after                time.Duration // since it was due
		// written is what the controller wrote last, and the cache does not have
		written *v1alpha1.At
		// faults of the API server, by verb and resource
		faults map[string]error
		want   string
	}{
		"the At is gone": {want: "sync success 1"},
		"not due yet":    {ats: ats(), after: -10 * time.Second, want: "sync success 1; again after 10s"},
		"due":            {ats: ats(), after: 1500 * time.Millisecond, want: "get ats; create pods; start 1.5; sync success 1; again after 1m0s"},
		"due, the Pod was already created, but the response was lost": {ats: ats(), livePods: pods(corev1.PodPending), want: "get ats; update ats RUNNING; create pods; get pods; Normal SuccessfulCreate; sync success 1; again at once"},
		"due, but another controller has run it":                      {ats: ats(), liveAts: ats(running, done), want: "get ats; sync success 1"},
		"due, refused":                                                {ats: ats(), faults: map[string]error{"create pods": forbidden}, want: "get ats; update ats PENDING PodRefused; create pods; Warning PodRefused; sync blocked 1; again soon"},
		"due, invalid: not an attempt":                                {ats: ats(), faults: map[string]error{"create pods": invalid}, want: "get ats; update ats DONE InvalidPod; create pods; Warning InvalidPod; run InvalidPod 1; sync success 1; again at once"},
		"due, the controller panics":                                  {ats: ats(), faults: map[string]error{"get ats": errPanic}, want: "get ats; sync panic 1; again soon"},
		"succeeded":                                                   {ats: ats(running), cachedPods: pods(corev1.PodSucceeded), want: "update ats DONE Completed; Normal Completed; attempt Completed 1; run Completed 1; sync success 1; again at once"},
		"succeeded, it cannot be written":                             {ats: ats(running), cachedPods: pods(corev1.PodSucceeded), faults: map[string]error{"update ats": unavailable}, want: "update ats DONE Completed; sync error 1; again soon"},
		"failed, an attempt follows":                                  {ats: ats(running, withRetry), cachedPods: pods(corev1.PodFailed, exitsWith1), want: "update ats RUNNING BackOff; Warning CommandFailed; attempt CommandFailed 1; sync success 1; again at once"},
		"the recorded Pod is missing in the cache, but exists":        {ats: ats(running), livePods: pods(corev1.PodPending), want: "get ats; get pods; sync success 1; again after 20s"},
		"the recorded Pod is gone":                                    {ats: ats(running), want: "get ats; update ats DONE PodLost; get pods; Warning PodLost; attempt PodLost 1; run PodLost 1; sync success 1; again at once"},
		"RUNNING is already written":                                  {ats: ats(), cachedPods: pods(corev1.PodPending), written: newAt(running, newerVersion), want: "sync success 1; again after 20s"},
		"the end is written: the Pod is released":                     {ats: ats(running, done), cachedPods: pods(corev1.PodSucceeded), after: 9500 * time.Millisecond, faults: accepted, want: "patch pods; sync success 1"},
		"the release is refused: the time to live still ends": {
			ats: ats(running, done, withTTL), cachedPods: pods(corev1.PodSucceeded), after: time.Minute, faults: map[string]error{"patch pods": forbidden},
			want: "delete ats; patch pods; Warning PodNotReleased; sync blocked 1; again soon",
		},
		"the release of the Pod of an earlier At is refused: the name conflict is still reported": {
			ats: ats(), cachedPods: pods(corev1.PodRunning, earlier), after: time.Minute, faults: map[string]error{"patch pods": forbidden},
			want: "update ats PENDING PodNameConflict; get ats; patch pods; Warning PodNameConflict; Warning PodNotReleased; sync blocked 1; again soon",
		},
		"the At is gone, its Pod is released":             {cachedPods: pods(corev1.PodRunning), faults: accepted, want: "get ats; patch pods; sync success 1"},
		"the At is not in the cache yet: its Pod is kept": {liveAts: ats(), cachedPods: pods(corev1.PodRunning), want: "get ats; sync success 1"},
		"the At cannot be read: its Pod is kept":          {cachedPods: pods(corev1.PodRunning), faults: map[string]error{"get ats": unavailable}, want: "get ats; sync error 1; again soon"},
		"a restart is due, its workload does not exist":   {ats: ats(withRestart), want: "get ats; update ats DONE TargetNotFound; get deployments; get deployments; get pods; Warning TargetNotFound; run TargetNotFound 1; sync success 1; again at once"},
		"a restart is due, its workload may not be read":  {ats: ats(withRestart), faults: map[string]error{"get deployments": forbidden}, want: "update ats PENDING RestartForbidden; get deployments; Warning RestartForbidden; sync blocked 1; again soon"},
	} {
		t.Run(testName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(time.Until(due.Add(tc.after)))
				f := newFixture(t, world{ats: tc.ats, cachedPods: tc.cachedPods, livePods: tc.livePods, liveAts: tc.liveAts}, clock.RealClock{})
				if tc.written != nil {
					f.steps.Written.Remember(tc.written)
				}
				f.answer(tc.faults)
				before := counted(t)
				f.queue.Add(name)
				_, ctx := ktesting.NewTestContext(t)
				f.queue.ProcessNext(ctx, "at", f.syncHandler)
				got := strings.Join(slices.Concat(f.requests(), f.events(), difference(before, counted(t)), f.again()), "; ")
				if got != tc.want {
					t.Errorf("\n got %s\nwant %s", got, tc.want)
				}
			})
		})
	}
}

// accepted lets the API server accept a patch of a Pod that it does not have.
var accepted = map[string]error{"patch pods": nil}

// errPanic stands for a panic of the controller.
var errPanic = errors.New("panic")

// difference returns what was counted meanwhile.
func difference(before, after map[string]float64) []string {
	var changes []string
	for _, what := range slices.Sorted(maps.Keys(after)) {
		if more := after[what] - before[what]; more > 0 {
			changes = append(changes, fmt.Sprintf("%s %v", what, more))
		}
	}
	return changes
}

// again returns when the At is synced again.
func (f *fixture) again() []string {
	start := time.Now()
	time.Sleep(time.Nanosecond)
	for synctest.Wait(); f.queue.Len() == 0; synctest.Wait() {
		if time.Sleep(100 * time.Millisecond); time.Since(start) > 2*time.Minute {
			return nil
		}
	}
	switch waited := time.Since(start).Round(100 * time.Millisecond); {
	case waited == 0:
		return []string{"again at once"}
	case waited < time.Second: // Back-offs are random.
		return []string{"again soon"}
	default:
		return []string{fmt.Sprint("again after ", waited)}
	}
}

// registerMetrics registers the metrics once, even if the tests run several times: before, nothing
// is counted.
var registerMetrics = sync.OnceFunc(func() {
	metrics.Register()
	empty := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	inventory.Register(inventory.Objects{Ats: listers.NewAtLister(empty), CronAts: listers.NewCronAtLister(empty), Working: func() bool { return false }}, 1)
})

// counted returns the metrics: numbers, and how late starts were.
func counted(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			last := ""
			for _, label := range metric.GetLabel() {
				last = " " + label.GetValue()
			}
			switch family.GetName() {
			case "cnat_runs_total":
				values["run"+last] += metric.GetCounter().GetValue()
			case "cnat_attempts_total":
				values["attempt"+last] += metric.GetCounter().GetValue()
			case "cnat_sync_duration_seconds":
				values["sync"+last] += float64(metric.GetHistogram().GetSampleCount())
			case "cnat_start_lateness_seconds":
				values["start"] += metric.GetHistogram().GetSampleSum()
			}
		}
	}
	return values
}

// TestHandlers reports Ats and Pods to the controller, which enqueues the At. What it has written is
// forgotten as soon as the cache has it, or something newer.
func TestHandlers(t *testing.T) {
	logger, _ := ktesting.NewTestContext(t)
	update := func(mutate ...func(*v1alpha1.At)) func(*Controller) {
		return func(c *Controller) { c.updateAt(logger, newAt(), newAt(mutate...)) }
	}
	ofPod := func(mutate ...func(*corev1.Pod)) func(*Controller) {
		return func(c *Controller) { c.enqueueOwner(newPod("", mutate...)) }
	}
	recreated := func(at *v1alpha1.At) { at.UID = "recreated" }
	orphaned := func(pod *corev1.Pod) { pod.OwnerReferences = nil }
	for testName, tc := range map[string]struct {
		event   func(*Controller)
		enqueue bool
		keeps   bool // what was written
	}{
		"At added":                        {func(c *Controller) { c.addAt(logger, newAt(), false) }, true, true},
		"At in the initial list":          {func(c *Controller) { c.addAt(logger, newAt(), true) }, true, true},
		"At edited":                       {update(newerVersion, func(at *v1alpha1.At) { at.Generation = 2 }), true, false},
		"At being deleted":                {update(newerVersion, func(at *v1alpha1.At) { at.DeletionTimestamp = &metav1.Time{Time: due} }), true, false},
		"At recreated, seen as an update": {update(newerVersion, recreated), true, false},
		"status changed":                  {update(func(at *v1alpha1.At) { at.ResourceVersion = "3" }, running), true, false},
		"status changed, as written":      {update(newerVersion, running), false, false},
		"At resynced, same version":       {update(), false, true},
		"At deleted":                      {func(c *Controller) { c.deleteAt(logger, cache.DeletedObject[*v1alpha1.At]{OptionalObj: newAt()}) }, true, false},
		"At deleted, tombstone": {func(c *Controller) {
			c.deleteAt(logger, cache.DeletedObject[*v1alpha1.At]{FinalStateUnknown: &cache.DeletedFinalStateUnknown{Key: name.String()}})
		}, true, true},
		"Pod of the At":                    {ofPod(), true, true},
		"Pod of an earlier At":             {ofPod(earlier), true, true},
		"Pod orphaned, with its finalizer": {ofPod(orphaned), true, true},
		"Pod orphaned and released":        {ofPod(orphaned, released), false, true},
		"Pod of another version":           {ofPod(owner("cnat.programming-kubernetes.info/v1", "At")), true, true},
		"Pod of another kind":              {ofPod(released, owner("cnat.programming-kubernetes.info/v1alpha1", "Cron")), false, true},
		"Pod of another group":             {ofPod(released, owner("example.com/v1alpha1", "At")), false, true},
		"Pod whose owner is invalid":       {ofPod(released, owner("a/b/c", "At")), false, true},
	} {
		t.Run(testName, func(t *testing.T) {
			f := newFixture(t, world{ats: []*v1alpha1.At{newAt()}}, clock.RealClock{})
			f.steps.Written.Remember(newAt(newerVersion, running))
			f.queue.Standby.Store(true)
			tc.event(f.Controller)
			if f.queue.Len() > 0 {
				t.Error("a standby enqueues it")
			}
			if keeps := f.steps.Written.Latest(newAt()).Status.Phase == v1alpha1.PhaseRunning; keeps != tc.keeps {
				t.Errorf("what was written is kept: %v", keeps)
			}
			f.steps.Written.Remember(newAt(newerVersion, running))
			f.queue.Standby.Store(false)
			tc.event(f.Controller)
			if got := f.queue.Len() == 1; got != tc.enqueue {
				t.Fatalf("enqueued: %v, want %v", got, tc.enqueue)
			}
			if tc.enqueue {
				if got, _ := f.queue.Get(); got != name {
					t.Errorf("enqueued %v, want %v", got, name)
				}
			}
		})
	}
}

// TestTakeover has what is in the caches of a standby. When that takes over, it enqueues first what
// is due, and only later what just needs to wait.
func TestTakeover(t *testing.T) { synctest.Test(t, testTakeover) }

func testTakeover(t *testing.T) {
	t.Helper()
	called := func(name, schedule string, mutate ...func(*v1alpha1.At)) *v1alpha1.At {
		at := newAt(mutate...)
		at.Name, at.Spec.Schedule = name, schedule
		return at
	}
	w := world{cachedPods: []*corev1.Pod{newPod(corev1.PodRunning)}} // Its At is gone.
	for i := range 1000 {
		w.ats = append(w.ats, called(fmt.Sprint("pending-", i), "2000-01-01T01:00:00Z"))
		w.ats = append(w.ats, called(fmt.Sprint("done-", i), "2000-01-01T00:00:00Z", running, ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, "", due)))
	}
	w.ats = append(w.ats, called("invalid", "tomorrow"), called("due", "2000-01-01T00:00:00Z"))
	f := newFixture(t, w, clock.RealClock{}) // It is the year 2000.
	start := f.steps.Clock.Now()
	f.sweep(true, start)
	if got := f.queue.Len(); got != 3 {
		t.Errorf("%d items in the queue after the takeover, want those that are due, invalid, and gone", got)
	}
	if got, _ := f.queue.Get(); got.Name != "due" {
		t.Errorf("first in the queue is %s, want the At that is due", got)
	}
	for f.queue.Len() > 1 {
		f.queue.Get()
	}
	if got, _ := f.queue.Get(); got != name {
		t.Errorf("last in the queue is %s, want %s, whose Pod is left", got, name)
	}
	for range 60 {
		time.Sleep(time.Minute)
		f.sweep(false, start)
	}
	synctest.Wait()
	if got := f.queue.Len(); got != 1000 {
		t.Errorf("%d items in the queue when they are due, want 1000", got)
	}
}

// TestOrder checks that Ats that are due go first.
func TestOrder(t *testing.T) {
	var w world
	add := func(name string, phase v1alpha1.AtPhase, podPhase corev1.PodPhase) {
		at := newAt(func(at *v1alpha1.At) { at.Name, at.UID, at.Status.Phase = name, types.UID(name), phase })
		w.ats = append(w.ats, at)
		if podPhase != "" {
			pod := plan.NewPod(at, defaults)
			pod.Status.Phase = podPhase
			w.cachedPods = append(w.cachedPods, pod)
		}
	}
	add("starting", v1alpha1.PhasePending, corev1.PodRunning)
	add("running", v1alpha1.PhaseRunning, corev1.PodRunning)
	add("failed", v1alpha1.PhasePending, corev1.PodFailed)
	add("succeeded", v1alpha1.PhaseRunning, corev1.PodSucceeded)
	add("done", v1alpha1.PhaseDone, corev1.PodSucceeded)
	add("due", v1alpha1.PhasePending, "")
	f := newFixture(t, w, testingclock.NewFakeClock(due))
	for _, at := range w.ats {
		f.queue.Add(cache.MetaObjectToName(at))
	}
	f.queue.Add(cache.NewObjectName(name.Namespace, "deleted"))
	var got []string
	for f.queue.Len() > 0 {
		name, _ := f.queue.Get()
		f.queue.Done(name)
		got = append(got, name.Name)
	}
	if diff := cmp.Diff([]string{"due", "starting", "running", "failed", "succeeded", "done", "deleted"}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// stage is the whole controller over an API server in memory, and what changed there.
type stage struct {
	t      *testing.T
	start  time.Time
	wall   *harness.Clock
	server *fakeserver.Server
	// kube and cnat are the clients of users, kubelets, and of a restore, which writes statuses, too.
	kube kubernetes.Interface
	cnat clientset.Interface
	*Controller
	stop func()

	lock    sync.Mutex
	round   time.Duration
	changes []string
	phases  map[string]string // the last status of each At
}

// newStage runs a controller with some workers until the end of the test. Its requests go through
// answer, which may delay or refuse them. It may be changed before its start.
func newStage(t *testing.T, workers int, answer func(s *stage, request *http.Request) error, changes ...func(*stage)) *stage {
	t.Helper()
	s := &stage{t: t, start: time.Now(), wall: &harness.Clock{}, round: 100 * time.Millisecond, phases: map[string]string{}}
	s.server = fakeserver.New(s.wall)
	s.server.Observe = s.observe
	s.kube, s.cnat = harness.NewClients(t, s.server.Restore())
	kubeClient, cnatClient := harness.NewClients(t, connect.Patient(harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
		if err := answer(s, request); err != nil {
			return fakeserver.Refuse(request, err)
		}
		return s.server.RoundTrip(request)
	})))
	s.Controller = standBy(t, kubeClient, cnatClient, s.wall)
	for _, change := range changes {
		change(s)
	}
	s.stop = workIn(t, s.Controller, workers)
	synctest.Wait()
	return s
}

// addPreflights adds what main adds, with rehearsals.
func (s *stage) addPreflights() {
	clients := preflight.Clients{Cnat: s.steps.CnatClient, Kube: s.steps.KubeClient, QPS: 5, Rehearsals: 10, NamespaceRehearsals: 2}
	s.preflight = preflight.New(clients, s.steps.Nodes.List, defaults, clock.RealClock{})
	s.checks = s.preflight.Ats(s.steps.Ats)
	s.checks.Notify(s.queue.Add)
}

// requestRehearsal asks for a rehearsal.
func (s *stage) requestRehearsal() {
	s.edit(fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationRehearsalRequestedAt, time.Now().UTC().Format(time.RFC3339)))
}

// hasRoom accepts Pods after five minutes, but for a quarter of an hour only one at a time.
func hasRoom(s *stage, request *http.Request) error {
	since := time.Since(s.start)
	if !harness.Creates(request, "pods") || since > 20*time.Minute+11*time.Second {
		return nil
	}
	if isTaken := !request.URL.Query().Has("dryRun") && len(harness.List(s.t, s.kube.CoreV1().Pods(name.Namespace)).Items) > 0; isTaken || since < 5*time.Minute {
		return apierrors.NewForbidden(podsResource.GroupResource(), "example-at-pod", errors.New("exceeded quota: pods"))
	}
	return nil
}

// observe notes what changes: Pods are created and released, and Ats have another state.
func (s *stage) observe(eventType watch.EventType, resource schema.GroupResource, object *unstructured.Unstructured) {
	what := ""
	switch name := object.GetName(); {
	case resource.Resource == "pods" && eventType == watch.Added:
		what = "creates " + name
		time.AfterFunc(time.Second, func() { s.startPod(name) })
	case resource.Resource == "pods" && len(object.GetFinalizers()) == 0 && eventType == watch.Deleted:
		what = "removes " + name
	case resource.Resource == "pods" && len(object.GetFinalizers()) == 0 && object.GetLabels()[v1alpha1.LabelRehearsalOf] == "":
		what = "releases " + name
	case resource.Resource == "ats" && eventType == watch.Deleted:
		what = "deletes " + name
		delete(s.phases, name)
	case resource.Resource == "ats":
		phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
		reason, _, _ := unstructured.NestedString(object.Object, "status", "reason")
		if what = strings.TrimSpace(phase + " " + reason); s.phases[name] == what || s.phases[name] == "" {
			s.phases[name], what = what, ""
		} else {
			s.phases[name] = what
		}
	}
	if what != "" && strings.HasPrefix(object.GetName(), name.Name) { // not of others
		s.lock.Lock()
		defer s.lock.Unlock()
		s.changes = append(s.changes, fmt.Sprint(time.Since(s.start).Round(s.round), " ", what))
	}
}

// create creates an At that is due some time after the start.
func (s *stage) create(dueIn time.Duration, mutate ...func(*v1alpha1.At)) {
	s.t.Helper()
	at := newAt(append([]func(*v1alpha1.At){func(at *v1alpha1.At) { at.Spec.Schedule = s.start.Add(dueIn).Format(time.RFC3339Nano) }}, mutate...)...)
	harness.Create(s.t, s.cnat.CnatV1alpha1().Ats(at.Namespace), at)
}

func (s *stage) edit(patch string) {
	s.t.Helper()
	harness.Patch(s.t, s.cnat.CnatV1alpha1().Ats(name.Namespace), name.Name, patch)
}

func (s *stage) remove() {
	s.t.Helper()
	harness.Delete(s.t, s.cnat.CnatV1alpha1().Ats(name.Namespace), name.Name)
}

// startPod lets its node start a Pod.
func (s *stage) startPod(podName string) {
	pods := s.kube.CoreV1().Pods(name.Namespace)
	pod, err := pods.Get(context.Background(), podName, metav1.GetOptions{})
	if err == nil && pod.Status.Phase == corev1.PodPending && !plan.IsRehearsal(pod) {
		pod.Status.Phase = corev1.PodRunning
		_, _ = pods.UpdateStatus(context.Background(), pod, metav1.UpdateOptions{}) // It may be gone.
	}
}

// endPod lets the command of the Pod succeed.
func (s *stage) endPod() {
	s.t.Helper()
	pods := s.kube.CoreV1().Pods(name.Namespace)
	pod := harness.Get(s.t, pods, "example-at-pod")
	pod.Status.Phase = corev1.PodSucceeded
	harness.UpdateStatus(s.t, pods, pod)
}

// delayed lets the creation of each Pod take some time on its way.
func delayed(by time.Duration) func(*stage, *http.Request) error {
	return func(_ *stage, request *http.Request) error {
		if !harness.Creates(request, "pods") {
			return nil
		}
		select {
		case <-time.After(by):
			return nil
		case <-request.Context().Done():
			return request.Context().Err()
		}
	}
}

// refuses refuses to create Pods for some time after the start.
func refuses(err error, until time.Duration) func(*stage, *http.Request) error {
	return func(s *stage, request *http.Request) error {
		if harness.Creates(request, "pods") && time.Since(s.start) < until {
			return err
		}
		return nil
	}
}

// TestController runs the whole controller with one At, which is due after a minute. What users,
// nodes, networks and clocks do at random is simulated: see simulate_test.go.
func TestController(t *testing.T) {
	t.Parallel()
	quota, busy := apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("exceeded quota")), apierrors.NewTooManyRequests("busy", 1)
	const day = 24 * time.Hour
	long := apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New(strings.Repeat("x", 3000)))
	for testName, tc := range map[string]struct {
		at     func(at *v1alpha1.At)
		answer func(s *stage, request *http.Request) error
		// acts are what others do, by the time since the start
		acts  map[time.Duration]func(s *stage)
		round time.Duration // of the times of changes; by default a tenth of a second
		// preflights are off by default.
		preflights bool
		lasts      time.Duration // by default a quarter of an hour
		// expectations
		want string // what changes, by the time since the start
	}{
		"it runs and is deleted": {
			at:   func(at *v1alpha1.At) { at.Spec.TTLSecondsAfterFinished = ptr.To[int32](600) }, // beyond the horizon of the queue
			acts: map[time.Duration]func(s *stage){70 * time.Second: (*stage).endPod},
			want: "1m0s creates example-at-pod; 1m0s RUNNING; 1m10s DONE Completed; 1m19.5s releases example-at-pod; 11m10s deletes example-at",
		},
		"it is moved beyond the horizon": {
			acts:  map[time.Duration]func(s *stage){time.Second: func(s *stage) { s.edit(`{"spec":{"schedule":"2000-01-01T02:00:00.5Z"}}`) }},
			lasts: 2*time.Hour + time.Minute, want: "2h0m0.5s creates example-at-pod; 2h0m0.5s RUNNING",
		},
		"the clock is stepped beyond its time": {
			acts: map[time.Duration]func(s *stage){
				0:                         func(s *stage) { s.edit(`{"spec":{"schedule":"2000-01-01T00:30:00Z"}}`) },
				630500 * time.Millisecond: func(s *stage) { s.wall.Set(time.Hour) },
			},
			want: "11m0s creates example-at-pod; 11m0s RUNNING",
		},
		"the clock is stepped back just before its time": {
			acts:  map[time.Duration]func(s *stage){59500 * time.Millisecond: func(s *stage) { s.wall.Set(-time.Hour) }},
			lasts: 2 * time.Hour, want: "1h1m0s creates example-at-pod; 1h1m0s RUNNING",
		},
		"the API server is away when it is due": {
			acts: map[time.Duration]func(s *stage){
				50 * time.Second: func(s *stage) { s.server.SetAway(true) },
				time.Hour:        func(s *stage) { s.server.SetAway(false) },
			},
			round: 10 * time.Second, lasts: 2 * time.Hour,
			want: "1h0m0s creates example-at-pod; 1h0m0s RUNNING",
		},
		"its watches lose it": {
			acts: map[time.Duration]func(s *stage){
				0:               func(s *stage) { s.queue.Standby.Store(true); s.remove() },
				time.Second:     func(s *stage) { s.create(-time.Second) },
				2 * time.Second: func(s *stage) { s.queue.Standby.Store(false) },
			},
			want: "0s deletes example-at; 1m0s creates example-at-pod; 1m0s RUNNING",
		},
		"a Pod whose At is gone": {
			acts: map[time.Duration]func(s *stage){0: func(s *stage) {
				s.queue.Standby.Store(true)
				s.remove()
				harness.Create(s.t, s.kube.CoreV1().Pods(name.Namespace), newPod(corev1.PodRunning))
				synctest.Wait()
				s.queue.Standby.Store(false)
			}},
			want: "0s deletes example-at; 0s creates example-at-pod; 1m0s releases example-at-pod",
		},
		"others have very many finalizers": {
			at: func(at *v1alpha1.At) {
				for i := range 20 {
					at.Finalizers = append(at.Finalizers, fmt.Sprintf("example.com/%d", i))
				}
				at.Finalizers = append(at.Finalizers, v1alpha1.FinalizerTracking)
			},
			acts: map[time.Duration]func(s *stage){time.Second: func(s *stage) {
				if got := harness.Get(s.t, s.cnat.CnatV1alpha1().Ats(name.Namespace), name.Name).Finalizers; len(got) != 20 {
					s.t.Errorf("finalizers %v, want those of others", got)
				}
			}},
			want: "1m0s creates example-at-pod; 1m0s RUNNING",
		},
		"it was restored from a backup, without its owner": {
			at:   func(at *v1alpha1.At) { at.Labels = map[string]string{v1alpha1.LabelCronAtUID: "earlier"} },
			acts: map[time.Duration]func(s *stage){5 * time.Minute: func(s *stage) { s.edit(`{"metadata":{"labels":null}}`) }},
			want: "0s PENDING OwnerMissing; 5m0s creates example-at-pod; 5m0s RUNNING",
		},
		"it was restored from a backup, and has a starting deadline": {
			at: func(at *v1alpha1.At) {
				at.Labels, at.Spec.StartingDeadlineSeconds = map[string]string{v1alpha1.LabelAtUID: "earlier"}, ptr.To[int64](60)
			},
			want: "0s PENDING OwnerMissing; 2m1s DONE StartingDeadlineExceeded",
		},
		"a creation is delayed, meanwhile it is suspended": {
			answer: delayed(9 * time.Second),
			acts:   map[time.Duration]func(s *stage){65 * time.Second: func(s *stage) { s.edit(`{"spec":{"suspend":true}}`) }},
			want:   "1m8s PENDING Suspended",
		},
		"each creation takes half a minute": {
			answer: delayed(30 * time.Second), round: time.Minute,
			want: "2m0s creates example-at-pod; 2m0s RUNNING",
		},
		"it cannot be read for a while, and the first creation gets no more time": {
			answer: func(s *stage, request *http.Request) error {
				deadline, _ := request.Context().Deadline()
				switch isLate := time.Until(deadline) > 8*time.Second; {
				case harness.Creates(request, "pods") && isLate:
					s.t.Error("the creation may come late")
				case request.Method == http.MethodGet && path.Base(request.URL.Path) == name.Name && time.Since(s.start) < 70*time.Second:
					return apierrors.NewInternalError(errors.New("away"))
				}
				return nil
			},
			round: time.Minute, want: "1m0s creates example-at-pod; 1m0s RUNNING",
		},
		"the API server is busy": {
			answer: refuses(busy, 3*time.Minute), round: 2 * time.Minute, // back-offs are random
			want: "2m0s PENDING PodNotCreated; 4m0s creates example-at-pod; 4m0s RUNNING",
		},
		"it is blocked until its starting deadline": {
			at:     func(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = ptr.To[int64](600) }, // beyond the horizon of the queue
			answer: refuses(quota, day), want: "1m0s PENDING PodRefused; 11m1s DONE StartingDeadlineExceeded",
		},
		"it is refused with a long message, and edited": {
			answer: refuses(long, day), acts: map[time.Duration]func(s *stage){
				5 * time.Minute: func(s *stage) { s.edit(`{"spec":{"ttlSecondsAfterFinished":1000}}`) },
				10 * time.Minute: func(s *stage) {
					if at := harness.Get(s.t, s.cnat.CnatV1alpha1().Ats(name.Namespace), name.Name); len(at.Status.Message) != answer.MaxMessage+len("…") || at.Status.ObservedGeneration != 2 {
						s.t.Errorf("status %+v", at.Status)
					}
					s.remove()
				},
			},
			want: "1m0s PENDING PodRefused; 10m0s deletes example-at",
		},
		"it is deleted while it is tried, and created again": {
			answer: refuses(busy, day), round: time.Minute,
			acts: map[time.Duration]func(s *stage){
				10 * time.Minute:  (*stage).remove,
				601 * time.Second: func(s *stage) { s.create(-time.Second) },
				13 * time.Minute:  (*stage).remove,
				14 * time.Minute: func(s *stage) {
					if s.queue.Len() > 0 || s.queue.IsRetried(name) || s.steps.Failures.NumRequeues(name) > 0 {
						s.t.Error("something is left of the deleted At")
					}
				},
			},
			want: "2m0s PENDING PodNotCreated; 10m0s deletes example-at; 11m0s PENDING PodNotCreated; 13m0s deletes example-at",
		},
		"it is checked, rehearsed, and rehearsed on request, which yields to a run": {
			preflights: true, answer: hasRoom, round: 2 * time.Minute, lasts: time.Hour + 2*time.Minute, // retries are random
			at: func(at *v1alpha1.At) { at.Spec.Rehearse, at.Spec.Schedule = true, "2000-01-01T01:00:00Z" },
			acts: map[time.Duration]func(s *stage){
				10 * time.Minute: (*stage).requestRehearsal,
				20 * time.Minute: func(s *stage) {
					s.requestRehearsal()
					s.create(20*time.Minute+10*time.Second, func(at *v1alpha1.At) { at.Name = "other" })
				},
				20*time.Minute + 12*time.Second: func(s *stage) {
					if at := harness.Get(s.t, s.cnat.CnatV1alpha1().Ats(name.Namespace), "other"); at.Status.Phase != v1alpha1.PhaseRunning {
						s.t.Errorf("status %+v two seconds after it was due, want RUNNING", at.Status)
					}
				},
			},
			want: "0s PENDING PodRefused; 6m0s PENDING; 6m0s creates example-at-rehearsal; 8m0s removes example-at-rehearsal; 8m0s PENDING PodPending; 10m0s creates example-at-rehearsal; 12m0s removes example-at-rehearsal; 20m0s creates example-at-rehearsal; 20m0s removes example-at-rehearsal; 20m0s PENDING; 30m0s creates example-at-rehearsal; 32m0s removes example-at-rehearsal; 32m0s PENDING PodPending; 42m0s creates example-at-rehearsal; 46m0s removes example-at-rehearsal; 56m0s creates example-at-rehearsal; 58m0s removes example-at-rehearsal; 1h0m0s creates example-at-pod; 1h0m0s RUNNING",
		},
		"the controller is stopped during a creation": {
			answer: delayed(time.Second),
			acts:   map[time.Duration]func(s *stage){60500 * time.Millisecond: func(s *stage) { s.stopsAfter(500 * time.Millisecond) }},
			want:   "1m1s creates example-at-pod; 1m1s RUNNING",
		},
		"the controller is stopped, a creation hangs": {
			answer: delayed(time.Hour),
			acts:   map[time.Duration]func(s *stage){60500 * time.Millisecond: func(s *stage) { s.stopsAfter(queue.FinishTimeout) }},
		},
	} {
		t.Run(testName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if tc.answer == nil {
					tc.answer = func(*stage, *http.Request) error { return nil }
				}
				s := newStage(t, 2, tc.answer, func(s *stage) {
					if tc.preflights {
						s.addPreflights()
					}
				})
				s.round = max(s.round, tc.round)
				s.create(time.Minute, func(at *v1alpha1.At) {
					if tc.at != nil {
						tc.at(at)
					}
				})
				for _, after := range slices.Sorted(maps.Keys(tc.acts)) {
					time.Sleep(time.Until(s.start.Add(after)))
					tc.acts[after](s)
				}
				time.Sleep(time.Until(s.start.Add(max(tc.lasts, 15*time.Minute))))
				s.lock.Lock()
				defer s.lock.Unlock()
				if got := strings.Join(s.changes, "; "); got != tc.want {
					t.Errorf("\n got %s\nwant %s", got, tc.want)
				}
			})
		})
	}
}

// stopsAfter stops the controller, which takes some time.
func (s *stage) stopsAfter(want time.Duration) {
	s.t.Helper()
	asked := time.Now()
	if s.stop(); time.Since(asked) != want {
		s.t.Errorf("it took %v, want %v", time.Since(asked), want)
	}
}

// TestBurst lets very many Ats be due within two seconds, or at once. While the watch reports the
// controller's own writes, it does not read each. Statuses that are written slowly delay the creations
// of one worker at most.
func TestBurst(t *testing.T) {
	t.Parallel()
	const number = 200
	for testName, tc := range map[string]struct {
		every, status time.Duration // between two that are due, and that a status takes
		// expectations
		minReads, maxReads int64
	}{
		"within two seconds":                  {every: 10 * time.Millisecond, minReads: 1, maxReads: 30},
		"at once, and statuses take a minute": {status: time.Minute, minReads: number, maxReads: number + 10},
	} {
		t.Run(testName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var reads atomic.Int64
				s := newStage(t, 2, func(s *stage, request *http.Request) error {
					switch {
					case path.Base(request.URL.Path) == "status" && time.Since(s.start) < 2*time.Minute:
						time.Sleep(3*time.Millisecond + tc.status)
					case strings.Contains(request.URL.Path, "/ats/") && request.Method == http.MethodGet:
						reads.Add(1)
						fallthrough
					case harness.Creates(request, "pods"):
						time.Sleep(3 * time.Millisecond)
					}
					return nil
				})
				for i := range number {
					s.create(time.Minute+time.Duration(i)*tc.every, func(at *v1alpha1.At) { at.Name = fmt.Sprint("at-", i) })
				}
				time.Sleep(time.Until(s.start.Add(time.Minute - time.Second)))
				reads.Store(0)
				time.Sleep(3*time.Second + 100*time.Millisecond)
				if got := len(harness.List(t, s.kube.CoreV1().Pods(name.Namespace)).Items); got != number {
					t.Errorf("%d of %d Pods were created in time", got, number)
				}
				if got := reads.Load(); got < tc.minReads || got > tc.maxReads {
					t.Errorf("%d reads, want %d to %d", got, tc.minReads, tc.maxReads)
				}
				time.Sleep(10 * time.Minute) // until the writes have ended
			})
		})
	}
}

// TestNodes lets a node be chosen by its name, and by a selector, which the cache does not have. The list
// of nodes hangs for an hour: both runs wait for it.
func TestNodes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const known = time.Hour
		s := newStage(t, 2, func(s *stage, request *http.Request) error {
			if path.Base(request.URL.Path) == "nodes" && request.Method == http.MethodGet && request.URL.Query().Get("limit") != "1" {
				select {
				case <-time.After(time.Until(s.start.Add(known))):
				case <-request.Context().Done():
				}
			}
			return request.Context().Err()
		})
		for _, node := range []string{"a", "b"} {
			harness.Create(t, s.kube.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{"name": node}}})
		}
		s.create(time.Minute, func(at *v1alpha1.At) { at.Name, at.Spec.Node = "on-a", "a" })
		s.create(time.Minute, func(at *v1alpha1.At) {
			at.Spec.Nodes = &v1alpha1.AtNodes{Selector: metav1.LabelSelector{MatchLabels: map[string]string{"name": "a"}}}
		})
		for after, want := range []int{0, 2} {
			time.Sleep(time.Until(s.start.Add(time.Duration(after)*known + 2*time.Minute)))
			if got := len(harness.List(t, s.kube.CoreV1().Pods(name.Namespace)).Items); got != want {
				t.Errorf("%d Pods after %v, want %d", got, time.Since(s.start), want)
			}
		}
	})
}

// TestSlowTenants has very many Ats in namespaces whose admission takes ten seconds. Those of another
// start within a second. A single namespace may use all workers.
func TestSlowTenants(t *testing.T) {
	t.Parallel()
	const workers, many = 16, 100
	for testName, slow := range map[string]int{"no other": 0, "one other": 1, "twenty others": 20} {
		t.Run(testName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var lock sync.Mutex
				var starts []time.Duration
				inFlight, most := 0, 0
				s := newStage(t, workers, func(s *stage, request *http.Request) error {
					if !harness.Creates(request, "pods") {
						return nil
					}
					takes := 5 * time.Millisecond
					lock.Lock()
					if strings.Contains(request.URL.Path, "/slow-") {
						takes = 10 * time.Second
					} else {
						starts = append(starts, time.Since(s.start))
					}
					inFlight++
					most = max(most, inFlight)
					lock.Unlock()
					defer func() {
						lock.Lock()
						defer lock.Unlock()
						inFlight--
					}()
					return delayed(takes)(nil, request)
				})
				due := func(i int) time.Duration {
					if slow == 0 {
						return time.Minute
					}
					return time.Minute + time.Duration(i)*270*time.Millisecond
				}
				for i := range many {
					called := func(at *v1alpha1.At) { at.Name = fmt.Sprint("at-", i) }
					for j := range slow {
						// Each namespace finds the workers free that the earlier ones have left.
						s.create(time.Minute+time.Duration(j)*300*time.Millisecond, called, func(at *v1alpha1.At) { at.Namespace = fmt.Sprint("slow-", j) })
					}
					s.create(due(i), called)
				}
				time.Sleep(2 * time.Minute)
				lock.Lock()
				defer lock.Unlock()
				if len(starts) != many {
					t.Fatalf("%d Pods of the fast namespace, want %d", len(starts), many)
				}
				for i, at := range starts {
					if late := at - due(i); late < 0 || late >= time.Second {
						t.Errorf("Pod %d is %v late, want less than a second", i, late)
					}
				}
				if most < workers || most > 128 {
					t.Errorf("%d creations in flight, want %d to 128", most, workers)
				}
			})
		})
	}
}

// TestSlowPreflights has very many different Ats in namespaces with a slow admission. An At of
// another namespace has its preflight within seconds.
func TestSlowPreflights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, 2, delayed(10*time.Second), (*stage).addPreflights)
		for i := range 500 {
			s.create(24*time.Hour, func(at *v1alpha1.At) {
				at.Namespace, at.Name, at.Spec.Command = fmt.Sprint("slow-", i%5), fmt.Sprint("at-", i), fmt.Sprint("echo ", i)
			})
		}
		time.Sleep(30 * time.Second)
		s.create(48*time.Hour, withRestart)
		time.Sleep(5 * time.Second)
		if at := harness.Get(t, s.cnat.CnatV1alpha1().Ats(name.Namespace), name.Name); at.Status.Reason != v1alpha1.ReasonTargetNotFound {
			t.Errorf("reason %q, want TargetNotFound", at.Status.Reason)
		}
	})
}
