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
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	k8smetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	cnatfake "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/fake"
	cnatscheme "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/scheme"
	typedcnatv1alpha1 "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/typed/cnat/v1alpha1"
	cnatinformers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions"
	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/connect"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/events"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/patch"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/wallclock"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/metrics/ats"
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

// events returns the recorded events, after which there are no more.
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
	at.Status.Reason, at.Status.Message = v1alpha1.ReasonDeadlineExceeded, "The run took longer than spec.activeDeadlineSeconds (60)."
	at.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionFailureTarget, Status: metav1.ConditionTrue, ObservedGeneration: 1,
		LastTransitionTime: metav1.Time{Time: due.Add(time.Minute)}, Reason: at.Status.Reason, Message: at.Status.Message,
	}}
}

func withStartingDeadline(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = ptr.To[int64](30) }

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

func TestSyncHandler(t *testing.T) {
	const (
		lost     = "Pod example-at-pod was deleted before the controller saw how it ended; the command will not run again."
		conflict = "Pod example-at-pod already exists and does not belong to this At: delete that Pod, or give the At another name."
		tooLate  = "It did not run: it could not start within spec.startingDeadlineSeconds (30) of the scheduled time."
		complete = "The command ended with exit code 0."
		unread   = `spec.schedule "at noon" is invalid: write a time in RFC 3339 format, such as 2035-12-24T10:12:00Z`
	)
	createPod := clienttesting.NewCreateAction(podsResource, name.Namespace, plan.NewPod(newAt(), defaults))
	getPod := clienttesting.NewGetAction(podsResource, name.Namespace, "example-at-pod")
	deletePod := clienttesting.NewDeleteActionWithOptions(podsResource, name.Namespace, "example-at-pod",
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID("pod-uid")), ResourceVersion: ptr.To("1")}})
	getAt := clienttesting.NewGetAction(atsResource, name.Namespace, name.Name)
	releasePod := func(uid string) clienttesting.Action {
		return clienttesting.NewPatchAction(podsResource, name.Namespace, "example-at-pod", types.StrategicMergePatchType,
			fmt.Appendf(nil, `{"metadata":{"uid":%q,"$deleteFromPrimitiveList/finalizers":["cnat.programming-kubernetes.info/tracking"]}}`, uid))
	}
	deleteAt := clienttesting.NewDeleteActionWithOptions(atsResource, name.Namespace, name.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID("at-uid")), ResourceVersion: ptr.To("1")}})
	writeStatus := func(at *v1alpha1.At) clienttesting.Action {
		return clienttesting.NewUpdateSubresourceAction(atsResource, "status", name.Namespace, at)
	}
	forbidden := apierrors.NewForbidden(podsResource.GroupResource(), "example-at-pod", errors.New("exceeded quota"))
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "example-at-pod", field.ErrorList{field.Required(field.NewPath("spec", "containers"), "")})

	denied := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "example-at-pod", field.ErrorList{field.Invalid(field.NewPath("spec", "hostNetwork"), true, "not here")})
	denied.ErrStatus.Message = `admission webhook "policy.example.com" denied the request: ` + denied.ErrStatus.Message
	const overdue = "Pod example-at-pod of an earlier At with this name still exists: run kubectl describe pod example-at-pod to see what it is waiting for."

	for testName, tc := range map[string]struct {
		world
		now time.Time
		// written is what the controller wrote last, and the cache does not have
		written *v1alpha1.At
		// faults of the API server, by verb and resource
		faults map[string]error
		// expectations
		wantKube   []clienttesting.Action
		wantCnat   []clienttesting.Action
		wantEvents []string
		wantDelay  time.Duration
		wantErr    string
	}{
		"the At is gone": {
			world: world{}, now: due,
		},
		"not due yet": {
			world: world{ats: []*v1alpha1.At{newAt()}}, now: due.Add(-10 * time.Second),
			wantDelay: 10 * time.Second,
		},
		"due: one read of the At, one create, and nothing else": {
			world: world{ats: []*v1alpha1.At{newAt()}}, now: due,
			wantKube:  []clienttesting.Action{createPod},
			wantCnat:  []clienttesting.Action{getAt},
			wantDelay: time.Minute,
		},
		"due, the Pod was already created, but the response was lost": {
			world: world{ats: []*v1alpha1.At{newAt()}, livePods: []*corev1.Pod{newPod(corev1.PodPending)}}, now: due,
			wantKube:   []clienttesting.Action{createPod, getPod},
			wantCnat:   []clienttesting.Action{getAt, writeStatus(newAt(running))},
			wantDelay:  time.Minute,
			wantEvents: []string{"Normal SuccessfulCreate Created Pod example-at-pod"},
		},
		"due, an unrelated Pod has the name": {
			world: world{ats: []*v1alpha1.At{newAt()}, livePods: []*corev1.Pod{newPod(corev1.PodSucceeded, noOwner)}}, now: due,
			wantKube:   []clienttesting.Action{createPod, getPod},
			wantCnat:   []clienttesting.Action{getAt, writeStatus(newAt(blocked(v1alpha1.ReasonPodNameConflict, conflict)))},
			wantEvents: []string{"Warning PodNameConflict " + conflict},
			wantErr:    "does not belong to this At",
		},
		"due, an unrelated Pod still has the name": {
			world: world{
				ats:      []*v1alpha1.At{newAt(blocked(v1alpha1.ReasonPodNameConflict, conflict))},
				livePods: []*corev1.Pod{newPod(corev1.PodSucceeded, noOwner)},
			}, now: due,
			wantKube: []clienttesting.Action{createPod, getPod},
			wantCnat: []clienttesting.Action{getAt},
			wantErr:  "does not belong to this At",
		},
		"due, the Pod of an earlier At with this name still exists": {
			world: world{
				ats:        []*v1alpha1.At{newAt()},
				cachedPods: []*corev1.Pod{newPod(corev1.PodSucceeded, earlier, released)},
			}, now: due,
			wantErr: "earlier At",
		},
		"due, the unrelated Pod is deleted between create and get": {
			world: world{ats: []*v1alpha1.At{newAt()}, livePods: []*corev1.Pod{newPod(corev1.PodSucceeded, noOwner)}}, now: due,
			faults:   map[string]error{"get pods": apierrors.NewNotFound(podsResource.GroupResource(), "example-at-pod")},
			wantKube: []clienttesting.Action{createPod, getPod},
			wantCnat: []clienttesting.Action{getAt},
			wantErr:  "has since been deleted", wantDelay: time.Minute,
		},
		"due, refused by quota": {
			world: world{ats: []*v1alpha1.At{newAt()}}, now: due,
			faults:     map[string]error{"create pods": forbidden},
			wantKube:   []clienttesting.Action{createPod},
			wantCnat:   []clienttesting.Action{getAt, writeStatus(newAt(blocked(v1alpha1.ReasonPodRefused, "create Pod: "+forbidden.Error())))},
			wantEvents: []string{"Warning PodRefused create Pod: " + forbidden.Error()},
			wantErr:    "exceeded quota",
		},
		"due, the Pod is invalid": {
			world: world{ats: []*v1alpha1.At{newAt()}}, now: due,
			faults:   map[string]error{"create pods": invalid},
			wantKube: []clienttesting.Action{createPod},
			wantCnat: []clienttesting.Action{getAt, writeStatus(newAt(
				ended(v1alpha1.ConditionFailed, v1alpha1.ReasonInvalidPod, "create Pod: "+invalid.Error(), due),
				func(at *v1alpha1.At) { at.Status.Message = "create Pod: " + invalid.Error() },
			))},
			wantEvents: []string{"Warning InvalidPod create Pod: " + invalid.Error()},
		},
		"due, the API server is unavailable": {
			world: world{ats: []*v1alpha1.At{newAt()}}, now: due,
			faults:   map[string]error{"create pods": errors.New("connection refused")},
			wantKube: []clienttesting.Action{createPod},
			wantCnat: []clienttesting.Action{getAt},
			wantErr:  "connection refused",
		},
		"invalid schedule": {
			world: world{ats: []*v1alpha1.At{newAt(func(at *v1alpha1.At) { at.Spec.Schedule = "at noon" })}}, now: due,
			wantCnat: []clienttesting.Action{writeStatus(newAt(
				blocked(v1alpha1.ReasonInvalidSchedule, unread), func(at *v1alpha1.At) { at.Spec.Schedule = "at noon" },
			))},
			wantEvents: []string{"Warning InvalidSchedule " + unread},
		},
		"the Pod is seen": {
			world: world{ats: []*v1alpha1.At{newAt()}, cachedPods: []*corev1.Pod{newPod(corev1.PodPending)}}, now: due,
			wantCnat:   []clienttesting.Action{writeStatus(newAt(running))},
			wantDelay:  time.Minute,
			wantEvents: []string{"Normal SuccessfulCreate Created Pod example-at-pod"},
		},
		"the Pod is seen, the status is already written": {
			world: world{ats: []*v1alpha1.At{newAt(running)}, cachedPods: []*corev1.Pod{newPod(corev1.PodPending)}}, now: due,
			wantDelay: time.Minute,
		},
		"the Pod has succeeded": {
			world: world{ats: []*v1alpha1.At{newAt(running)}, cachedPods: []*corev1.Pod{newPod(corev1.PodSucceeded)}}, now: due.Add(time.Minute),
			wantCnat: []clienttesting.Action{writeStatus(newAt(running,
				ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, complete, due.Add(time.Minute)),
				func(at *v1alpha1.At) { at.Status.Pod.Phase = corev1.PodSucceeded },
			))},
			wantEvents: []string{"Normal Completed " + complete},
			wantDelay:  9500 * time.Millisecond, // The Pod keeps its finalizer.
		},
		"the write of the end fails: no event, and a retry": {
			world: world{ats: []*v1alpha1.At{newAt(running)}, cachedPods: []*corev1.Pod{newPod(corev1.PodSucceeded)}}, now: due.Add(time.Minute),
			faults: map[string]error{"patch ats": apierrors.NewConflict(atsResource.GroupResource(), name.Name, errors.New("modified"))},
			wantCnat: []clienttesting.Action{writeStatus(newAt(running,
				ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, complete, due.Add(time.Minute)),
				func(at *v1alpha1.At) { at.Status.Pod.Phase = corev1.PodSucceeded },
			))},
			wantErr: "modified",
		},
		"the At is deleted before the end is written": {
			world: world{ats: []*v1alpha1.At{newAt(running)}, cachedPods: []*corev1.Pod{newPod(corev1.PodSucceeded)}}, now: due.Add(time.Minute),
			faults: map[string]error{"patch ats": apierrors.NewNotFound(atsResource.GroupResource(), name.Name)},
			wantCnat: []clienttesting.Action{writeStatus(newAt(running,
				ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, complete, due.Add(time.Minute)),
				func(at *v1alpha1.At) { at.Status.Pod.Phase = corev1.PodSucceeded },
			)), getAt},
		},
		"the At with a time to live is deleted before the end is written": {
			world: world{ats: []*v1alpha1.At{newAt(running, withTTL)}, cachedPods: []*corev1.Pod{newPod(corev1.PodSucceeded)}}, now: due.Add(time.Minute),
			faults: map[string]error{"patch ats": apierrors.NewNotFound(atsResource.GroupResource(), name.Name)},
			wantCnat: []clienttesting.Action{writeStatus(newAt(running, withTTL,
				ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, complete, due.Add(time.Minute)),
				func(at *v1alpha1.At) { at.Status.Pod.Phase = corev1.PodSucceeded },
			)), getAt},
		},
		"the recorded Pod is missing in the cache, but exists": {
			world: world{ats: []*v1alpha1.At{newAt(running)}, livePods: []*corev1.Pod{newPod(corev1.PodPending)}}, now: due,
			wantKube:  []clienttesting.Action{getPod},
			wantDelay: time.Minute,
		},
		"the recorded Pod exists, but the cache has that of an earlier At": {
			world: world{
				ats:        []*v1alpha1.At{newAt(running)},
				cachedPods: []*corev1.Pod{newPod(corev1.PodSucceeded, earlier, released)},
				livePods:   []*corev1.Pod{newPod(corev1.PodPending)},
			}, now: due,
			wantKube:  []clienttesting.Action{getPod},
			wantDelay: time.Minute,
		},
		"stale cache: the At is done and its Pod gone": {
			world: world{ats: []*v1alpha1.At{newAt()}}, now: due,
			written: newAt(running, ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, complete, due), newerVersion),
		},
		"stale cache: RUNNING is already written": {
			world: world{ats: []*v1alpha1.At{newAt()}, cachedPods: []*corev1.Pod{newPod(corev1.PodPending)}}, now: due,
			written:   newAt(running, newerVersion),
			wantDelay: time.Minute,
		},
		"beyond the starting deadline": {
			world: world{ats: []*v1alpha1.At{newAt(withStartingDeadline)}}, now: due.Add(time.Minute),
			wantKube: []clienttesting.Action{getPod},
			wantCnat: []clienttesting.Action{writeStatus(newAt(withStartingDeadline,
				ended(v1alpha1.ConditionFailed, v1alpha1.ReasonStartingDeadlineExceeded, tooLate, due.Add(time.Minute)),
				func(at *v1alpha1.At) { at.Status.Message = tooLate },
			))},
			wantEvents: []string{"Warning StartingDeadlineExceeded " + tooLate},
		},
		"beyond the starting deadline, but the Pod exists, which is not in the cache": {
			world: world{ats: []*v1alpha1.At{newAt(withStartingDeadline)}, livePods: []*corev1.Pod{newPod(corev1.PodPending)}}, now: due.Add(time.Minute),
			wantKube:   []clienttesting.Action{getPod},
			wantCnat:   []clienttesting.Action{writeStatus(newAt(withStartingDeadline, running))},
			wantDelay:  time.Minute,
			wantEvents: []string{"Normal SuccessfulCreate Created Pod example-at-pod"},
		},
		"the recorded Pod is gone": {
			world: world{ats: []*v1alpha1.At{newAt(running)}}, now: due.Add(time.Minute),
			wantKube: []clienttesting.Action{getPod},
			wantCnat: []clienttesting.Action{writeStatus(newAt(running,
				ended(v1alpha1.ConditionFailed, v1alpha1.ReasonPodLost, lost, due.Add(time.Minute)),
				func(at *v1alpha1.At) {
					at.Status.Message, at.Status.Failed = lost, 1
					at.Status.LastFailureTime = at.Status.CompletionTime
				},
			))},
			wantEvents: []string{"Warning PodLost " + lost},
		},
		"the read of the missing recorded Pod fails": {
			world: world{ats: []*v1alpha1.At{newAt(running)}}, now: due.Add(time.Minute),
			faults:   map[string]error{"get pods": errors.New("connection refused")},
			wantKube: []clienttesting.Action{getPod},
			wantErr:  "connection refused",
		},
		"the active deadline has passed: the status is written, then the Pod is deleted": {
			world: world{ats: []*v1alpha1.At{newAt(running, withActiveDeadline)}, cachedPods: []*corev1.Pod{newPod(corev1.PodPending)}, livePods: []*corev1.Pod{newPod(corev1.PodPending)}}, now: due.Add(time.Minute),
			wantKube:  []clienttesting.Action{deletePod},
			wantCnat:  []clienttesting.Action{writeStatus(newAt(running, withActiveDeadline, stopping))},
			wantDelay: time.Minute,
		},
		"the active deadline has passed, the status cannot be written: the Pod is not deleted": {
			world:    world{ats: []*v1alpha1.At{newAt(running, withActiveDeadline)}, cachedPods: []*corev1.Pod{newPod(corev1.PodPending)}, livePods: []*corev1.Pod{newPod(corev1.PodPending)}},
			now:      due.Add(time.Minute),
			faults:   map[string]error{"patch ats": errors.New("connection refused")},
			wantCnat: []clienttesting.Action{writeStatus(newAt(running, withActiveDeadline, stopping))},
			wantErr:  "connection refused",
		},
		"to be stopped: only this version of the Pod is deleted": {
			world:    world{ats: []*v1alpha1.At{newAt(running, withActiveDeadline, stopping)}, cachedPods: []*corev1.Pod{newPod(corev1.PodPending)}, livePods: []*corev1.Pod{newPod(corev1.PodPending)}},
			now:      due.Add(time.Minute),
			wantKube: []clienttesting.Action{deletePod}, wantDelay: time.Minute,
		},
		"to be stopped, the Pod is already gone": {
			world: world{ats: []*v1alpha1.At{newAt(running, withActiveDeadline, stopping)}, cachedPods: []*corev1.Pod{newPod(corev1.PodPending)}}, now: due.Add(time.Minute),
			wantKube: []clienttesting.Action{deletePod}, wantDelay: time.Minute,
		},
		"to be stopped, the Pod has changed since": {
			world:    world{ats: []*v1alpha1.At{newAt(running, withActiveDeadline, stopping)}, cachedPods: []*corev1.Pod{newPod(corev1.PodPending)}},
			now:      due.Add(time.Minute),
			faults:   map[string]error{"delete pods": apierrors.NewConflict(podsResource.GroupResource(), "example-at-pod", errors.New("modified"))},
			wantKube: []clienttesting.Action{deletePod}, wantDelay: time.Minute,
		},
		"to be stopped, the API server is unavailable": {
			world: world{ats: []*v1alpha1.At{newAt(running, withActiveDeadline, stopping)}, cachedPods: []*corev1.Pod{newPod(corev1.PodPending)}}, now: due.Add(time.Minute),
			faults:   map[string]error{"delete pods": errors.New("connection refused")},
			wantKube: []clienttesting.Action{deletePod},
			wantErr:  "connection refused", wantDelay: time.Minute,
		},
		"due, but another controller has run it, and its Pod is gone": {
			world: world{
				ats:     []*v1alpha1.At{newAt()},
				liveAts: []*v1alpha1.At{newAt(running, ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, complete, due))},
			}, now: due,
			wantCnat: []clienttesting.Action{getAt},
		},
		"due, but deleted, which is not in the cache": {
			world: world{ats: []*v1alpha1.At{newAt()}, liveAts: []*v1alpha1.At{}}, now: due,
			wantCnat: []clienttesting.Action{getAt},
		},
		"due, but the read of the At fails": {
			world:    world{ats: []*v1alpha1.At{newAt()}},
			now:      due,
			faults:   map[string]error{"get ats": errors.New("connection refused")},
			wantCnat: []clienttesting.Action{getAt},
			wantErr:  "connection refused",
		},
		"the end is written: the Pod keeps its finalizer": {
			world: world{
				ats:        []*v1alpha1.At{newAt(running, ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, complete, due))},
				cachedPods: []*corev1.Pod{newPod(corev1.PodSucceeded)}, livePods: []*corev1.Pod{newPod(corev1.PodSucceeded)},
			}, now: due,
			wantDelay: 9500 * time.Millisecond,
		},
		"the end is written and the delay has passed: the Pod is released": {
			world: world{
				ats:        []*v1alpha1.At{newAt(running, ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, complete, due))},
				cachedPods: []*corev1.Pod{newPod(corev1.PodSucceeded)}, livePods: []*corev1.Pod{newPod(corev1.PodSucceeded)},
			}, now: due.Add(9500 * time.Millisecond),
			wantKube: []clienttesting.Action{releasePod("pod-uid")},
		},
		"the end is written, the Pod is already gone": {
			world: world{
				ats:        []*v1alpha1.At{newAt(running, ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, complete, due))},
				cachedPods: []*corev1.Pod{newPod(corev1.PodSucceeded)},
			}, now: due.Add(9500 * time.Millisecond),
			wantKube: []clienttesting.Action{releasePod("pod-uid")},
		},
		"the end is written, another Pod has the name by now": {
			world: world{
				ats:        []*v1alpha1.At{newAt(running, ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, complete, due))},
				cachedPods: []*corev1.Pod{newPod(corev1.PodSucceeded)},
			}, now: due.Add(9500 * time.Millisecond),
			faults: map[string]error{"patch pods": apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "example-at-pod",
				field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), "pod-uid", "field is immutable")})},
			wantKube: []clienttesting.Action{releasePod("pod-uid")},
		},
		"the end is written, a policy denies the release": {
			world: world{
				ats:        []*v1alpha1.At{newAt(running, ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, complete, due))},
				cachedPods: []*corev1.Pod{newPod(corev1.PodSucceeded)},
			}, now: due.Add(9500 * time.Millisecond),
			faults: map[string]error{"patch pods": &apierrors.StatusError{ErrStatus: metav1.Status{
				Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Message: "denied by a policy",
				Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Message: "denied by a policy"}}},
			}}},
			wantKube:   []clienttesting.Action{releasePod("pod-uid")},
			wantEvents: []string{"Warning PodNotReleased remove the finalizer of Pod example-at-pod: denied by a policy"},
			wantErr:    "denied by a policy",
		},
		"the release is refused: the time to live still ends": {
			world: world{
				ats:        []*v1alpha1.At{newAt(running, ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, complete, due), withTTL)},
				cachedPods: []*corev1.Pod{newPod(corev1.PodSucceeded)},
			}, now: due.Add(time.Minute),
			faults:     map[string]error{"patch pods": forbidden},
			wantKube:   []clienttesting.Action{releasePod("pod-uid")},
			wantCnat:   []clienttesting.Action{deleteAt},
			wantEvents: []string{"Warning PodNotReleased remove the finalizer of Pod example-at-pod: " + forbidden.Error()},
			wantErr:    "exceeded quota",
		},
		"the release of the first attempt is refused: the next one still starts": {
			world: world{
				ats:        []*v1alpha1.At{newAt(running, nextAttempt)},
				cachedPods: []*corev1.Pod{newPod(corev1.PodFailed)},
			}, now: due.Add(time.Minute),
			faults: map[string]error{"patch pods": forbidden},
			wantKube: []clienttesting.Action{
				clienttesting.NewCreateAction(podsResource, name.Namespace, plan.NewPod(newAt(running, nextAttempt), defaults)),
				releasePod("pod-uid"),
			},
			wantCnat:   []clienttesting.Action{getAt},
			wantEvents: []string{"Warning PodNotReleased remove the finalizer of Pod example-at-pod: " + forbidden.Error()},
			wantErr:    "exceeded quota", wantDelay: time.Minute,
		},
		"the release of the Pod of an earlier At is refused: the name conflict is still reported": {
			world:    world{ats: []*v1alpha1.At{newAt()}, cachedPods: []*corev1.Pod{newPod(corev1.PodRunning, earlier)}},
			now:      due.Add(time.Minute),
			faults:   map[string]error{"patch pods": forbidden},
			wantKube: []clienttesting.Action{releasePod("earlier-pod")},
			wantCnat: []clienttesting.Action{writeStatus(newAt(blocked(v1alpha1.ReasonPodNameConflict, overdue), func(at *v1alpha1.At) {
				at.Status.Conditions[0].LastTransitionTime.Time = due.Add(time.Minute)
			}))},
			wantEvents: []string{"Warning PodNameConflict " + overdue, "Warning PodNotReleased remove the finalizer of Pod example-at-pod: " + forbidden.Error()},
			wantErr:    "exceeded quota",
		},
		"done, a delayed creation request creates a second Pod: deleted": {
			world: world{
				ats:        []*v1alpha1.At{newAt(running, ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, complete, due))},
				cachedPods: []*corev1.Pod{newPod(corev1.PodRunning, second)}, livePods: []*corev1.Pod{newPod(corev1.PodRunning, second)},
			}, now: due,
			wantKube: []clienttesting.Action{clienttesting.NewDeleteActionWithOptions(podsResource, name.Namespace, "example-at-pod",
				metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID("second")), ResourceVersion: ptr.To("1")}})},
			wantEvents: []string{"Warning UnexpectedPod Pod example-at-pod was created a second time after its attempt had been counted: deleting it."},
		},
		"a webhook denies the Pod with causes like the API server's: retried": {
			world: world{ats: []*v1alpha1.At{newAt()}}, now: due,
			faults:     map[string]error{"create pods": denied},
			wantKube:   []clienttesting.Action{createPod},
			wantCnat:   []clienttesting.Action{getAt, writeStatus(newAt(blocked(v1alpha1.ReasonPodRefused, "create Pod: "+denied.Error())))},
			wantEvents: []string{"Warning PodRefused create Pod: " + denied.Error()},
			wantErr:    "denied the request",
		},
		"the end is written, the API server is unavailable": {
			world: world{
				ats:        []*v1alpha1.At{newAt(running, ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, complete, due))},
				cachedPods: []*corev1.Pod{newPod(corev1.PodSucceeded)},
			}, now: due.Add(9500 * time.Millisecond),
			faults:   map[string]error{"patch pods": errors.New("connection refused")},
			wantKube: []clienttesting.Action{releasePod("pod-uid")},
			wantErr:  "connection refused",
		},
		"the At is gone, its Pod still exists: released": {
			world:    world{cachedPods: []*corev1.Pod{newPod(corev1.PodRunning)}, livePods: []*corev1.Pod{newPod(corev1.PodRunning)}},
			now:      due,
			wantKube: []clienttesting.Action{releasePod("pod-uid")},
			wantCnat: []clienttesting.Action{getAt},
		},
		"the At is recreated, the Pod of the earlier one still exists: released": {
			world:    world{ats: []*v1alpha1.At{newAt()}, cachedPods: []*corev1.Pod{newPod(corev1.PodRunning, earlier)}},
			now:      due,
			wantKube: []clienttesting.Action{releasePod("earlier-pod")},
			wantCnat: []clienttesting.Action{getAt},
			wantErr:  "earlier At",
		},
		"the At is not in the cache yet, but its Pod is: kept": {
			world: world{liveAts: []*v1alpha1.At{newAt()}, cachedPods: []*corev1.Pod{newPod(corev1.PodRunning)}}, now: due,
			wantCnat: []clienttesting.Action{getAt},
		},
		"the read of the missing At fails: its Pod is kept": {
			world: world{cachedPods: []*corev1.Pod{newPod(corev1.PodRunning)}}, now: due,
			faults:   map[string]error{"get ats": errors.New("connection refused")},
			wantCnat: []clienttesting.Action{getAt},
			wantErr:  "connection refused",
		},
		"the time to live has expired: this version of the At is deleted": {
			world: world{ats: []*v1alpha1.At{newAt(ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, complete, due), withTTL)}}, now: due.Add(time.Minute),
			wantCnat: []clienttesting.Action{deleteAt},
		},
		"the time to live has expired, but the At has been edited since": {
			world: world{ats: []*v1alpha1.At{newAt(ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, complete, due), withTTL)}}, now: due.Add(time.Minute),
			faults:   map[string]error{"delete ats": apierrors.NewConflict(atsResource.GroupResource(), name.Name, errors.New("modified"))},
			wantCnat: []clienttesting.Action{deleteAt},
			wantErr:  "modified",
		},
		"done, the Pod gone: nothing, not even a read": {
			world: world{ats: []*v1alpha1.At{newAt(running, ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, complete, due))}}, now: due.Add(time.Minute),
		},
	} {
		t.Run(testName, func(t *testing.T) {
			f := newFixture(t, tc.world, testingclock.NewFakeClock(tc.now))
			if tc.written != nil {
				f.cache.Written.Remember(tc.written)
			}
			for verbAndResource, err := range tc.faults {
				verb, resource, _ := strings.Cut(verbAndResource, " ")
				fault := func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err }
				f.kubeClient.PrependReactor(verb, resource, fault)
				f.cnatClient.PrependReactor(verb, resource, fault)
			}
			_, ctx := ktesting.NewTestContext(t)

			delay, err := f.syncHandler(ctx, name)

			if delay != tc.wantDelay {
				t.Errorf("delay %v, want %v", delay, tc.wantDelay)
			}
			if (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("error %v, want %q", err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.wantKube, f.kubeClient.Actions(), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("actions on Pods (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantCnat, writes(t, tc.ats, f.cnatClient.Actions()), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("actions on Ats (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantEvents, f.events()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

// writes returns the actions. For each patch of the first At's status, it returns the
// resulting At.
func writes(t *testing.T, ats []*v1alpha1.At, actions []clienttesting.Action) []clienttesting.Action {
	t.Helper()
	for i, action := range actions {
		patch, ok := action.(clienttesting.PatchAction)
		if !ok {
			continue
		}
		before, err := json.Marshal(ats[0])
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(patch.GetPatch()), `"resourceVersion":"`+ats[0].ResourceVersion+`"`) {
			t.Errorf("patch %s, want the resourceVersion that was decided on", patch.GetPatch())
		}
		after, err := jsonpatch.MergePatch(before, patch.GetPatch())
		if err != nil {
			t.Fatal(err)
		}
		at := &v1alpha1.At{}
		if err := json.Unmarshal(after, at); err != nil {
			t.Fatal(err)
		}
		actions[i] = clienttesting.NewUpdateSubresourceAction(action.GetResource(), action.GetSubresource(), action.GetNamespace(), at)
		ats = []*v1alpha1.At{at}
	}
	return actions
}

func TestProcessNextWorkItem(t *testing.T) {
	// next returns the time until there was an item to process.
	next := func(t *testing.T, f *fixture) time.Duration {
		t.Helper()
		_, ctx := ktesting.NewTestContext(t)
		start := time.Now()
		if !f.processNextWorkItem(ctx) {
			t.Fatal("the queue is shut down")
		}
		return time.Since(start)
	}
	in := func(delay time.Duration) world {
		return world{ats: []*v1alpha1.At{newAt(func(at *v1alpha1.At) {
			at.Spec.Schedule = time.Now().Add(delay).Format(time.RFC3339Nano)
		})}}
	}

	t.Run("not due: comes back when it is, and only then", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, in(1500*time.Millisecond), clock.RealClock{})
			f.queue.Add(name)
			if !f.IsBusy() {
				t.Error("it is not busy while an At waits for a worker")
			}
			got := []time.Duration{next(t, f)}
			if f.IsBusy() {
				t.Error("it is busy although the At is not due")
			}
			got = append(got, next(t, f))
			if diff := cmp.Diff([]time.Duration{0, 1500 * time.Millisecond}, got); diff != "" {
				t.Errorf("waits (-want +got):\n%s", diff)
			}
			if got := len(f.kubeClient.Actions()); got != 1 {
				t.Errorf("%d requests, want the create", got)
			}
			synctest.Wait()
			if got := f.queue.Len(); got != 0 {
				t.Errorf("%d items in the queue, want none", got)
			}
		})
	})
	t.Run("refused: comes back with growing back-off, which success forgets", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, in(0), clock.RealClock{})
			refusals := 9
			f.kubeClient.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				refusals--
				return refusals >= 0, nil, apierrors.NewForbidden(podsResource.GroupResource(), "example-at-pod", fmt.Errorf("exceeded quota, refusal %d", refusals))
			})
			go f.queue.RunBlocked(t.Context())
			f.queue.Add(name)
			next(t, f)
			for i := range 8 {
				backoff := 200 * time.Millisecond << i
				if got, longest := next(t, f), backoff+backoff/2+100*time.Millisecond; got < backoff || got > longest {
					t.Errorf("after refusal %d a wait of %v, want from %v to %v", i+1, got, backoff, longest)
				}
			}
			if got := next(t, f); got < 40*time.Second || got > 61*time.Second {
				t.Errorf("finally a wait of %v, want from 40 s to a minute", got)
			}
			if f.queue.IsRetried(name) {
				t.Error("retries are remembered, want none")
			}
		})
	})
	t.Run("refused: comes back for its deadline, even beyond the horizon and without a retry", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := in(0)
			w.ats[0].Spec.StartingDeadlineSeconds = ptr.To(int64(2 * horizon.Seconds()))
			f := newFixture(t, w, clock.RealClock{})
			f.kubeClient.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewForbidden(podsResource.GroupResource(), "example-at-pod", errors.New("exceeded quota"))
			})
			f.queue.Add(name)
			next(t, f)
			go f.search(t.Context())
			for _, want := range []int{0, 1} {
				time.Sleep(horizon)
				synctest.Wait()
				if got := f.queue.Len(); got != want {
					t.Errorf("%d items in the queue, want %d", got, want)
				}
			}
		})
	})
	t.Run("a panic: comes back, and the others are worked on", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, in(0), clock.RealClock{})
			panics := 1
			f.kubeClient.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				if panics--; panics >= 0 {
					panic("an unexpected object")
				}
				return false, nil, nil
			})
			f.queue.Add(name)
			got := []time.Duration{next(t, f), next(t, f)}
			if diff := cmp.Diff([]time.Duration{0, 200 * time.Millisecond}, got); diff != "" {
				t.Errorf("waits (-want +got):\n%s", diff)
			}
		})
	})
	t.Run("shut down", func(t *testing.T) {
		f := newFixture(t, world{}, clock.RealClock{})
		f.queue.ShutDown()
		if f.processNextWorkItem(t.Context()) {
			t.Error("continues after the shutdown")
		}
	})
}

// TestMetrics checks that runs and attempts are counted by their namespaces, and syncs by
// their results.
func TestMetrics(t *testing.T) {
	registerMetrics()
	failed := func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}}}
	}
	// The counters, in the order of the expected numbers.
	counters := func(t *testing.T) []float64 {
		t.Helper()
		var values []float64
		of := map[string]string{"namespace": name.Namespace}
		runs, err := testutil.GetCounterValuesFromGatherer(legacyregistry.DefaultGatherer, "cnat_runs_total", of, "reason")
		if err != nil {
			t.Fatal(err)
		}
		attempts, err := testutil.GetCounterValuesFromGatherer(legacyregistry.DefaultGatherer, "cnat_attempts_total", of, "reason")
		if err != nil {
			t.Fatal(err)
		}
		for _, reason := range []string{v1alpha1.ReasonCompleted, v1alpha1.ReasonCommandFailed, v1alpha1.ReasonPodLost} {
			values = append(values, runs[reason], attempts[reason])
		}
		values = append(values, runs[v1alpha1.ReasonInvalidPod])
		for _, histogram := range []k8smetrics.ObserverMetric{
			metrics.StartLateness.ObserverMetric,
			metrics.SyncDuration.WithLabelValues(metrics.ResultSuccess), metrics.SyncDuration.WithLabelValues(metrics.ResultBlocked),
			metrics.SyncDuration.WithLabelValues(metrics.ResultError), metrics.SyncDuration.WithLabelValues(metrics.ResultPanic),
		} {
			count, err := testutil.GetHistogramMetricCount(histogram)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, float64(count))
		}
		return values
	}
	lateness := func(t *testing.T) float64 {
		t.Helper()
		sum, err := testutil.GetHistogramMetricValue(metrics.StartLateness.ObserverMetric)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	for testName, tc := range map[string]struct {
		world
		now    time.Time
		faults map[string]error
		panics bool
		// expectations: runs and attempts that were Completed, CommandFailed, PodLost, runs
		// of an InvalidPod; starts; syncs by success, blocked, error, panic
		want []float64
		late float64 // seconds
	}{
		"not due yet": {
			world: world{ats: []*v1alpha1.At{newAt()}}, now: due.Add(-time.Second),
			want: []float64{0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0},
		},
		"started": {
			world: world{ats: []*v1alpha1.At{newAt()}}, now: due.Add(1500 * time.Millisecond),
			want: []float64{0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0}, late: 1.5,
		},
		"completed": {
			world: world{ats: []*v1alpha1.At{newAt(running)}, cachedPods: []*corev1.Pod{newPod(corev1.PodSucceeded)}}, now: due,
			want: []float64{1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0},
		},
		"failed": {
			world: world{ats: []*v1alpha1.At{newAt(running)}, cachedPods: []*corev1.Pod{newPod(corev1.PodFailed, failed)}}, now: due,
			want: []float64{0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0},
		},
		"failed, another attempt follows": {
			world: world{
				ats:        []*v1alpha1.At{newAt(running, func(at *v1alpha1.At) { at.Spec.BackoffLimit = ptr.To[int32](1) })},
				cachedPods: []*corev1.Pod{newPod(corev1.PodFailed, failed)},
			}, now: due,
			want: []float64{0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0},
		},
		"lost": {
			world: world{ats: []*v1alpha1.At{newAt(running)}}, now: due,
			want: []float64{0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0},
		},
		"invalid: a run without an attempt": {
			world: world{ats: []*v1alpha1.At{newAt()}}, now: due,
			faults: map[string]error{"create pods": apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "example-at-pod", field.ErrorList{field.Required(field.NewPath("spec", "containers"), "")})},
			want:   []float64{0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0},
		},
		"refused": {
			world: world{ats: []*v1alpha1.At{newAt()}}, now: due,
			faults: map[string]error{"create pods": apierrors.NewForbidden(podsResource.GroupResource(), "example-at-pod", errors.New("exceeded quota"))},
			want:   []float64{0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0},
		},
		"the end cannot be written: not counted": {
			world: world{ats: []*v1alpha1.At{newAt(running)}, cachedPods: []*corev1.Pod{newPod(corev1.PodSucceeded)}}, now: due,
			faults: map[string]error{"patch ats": apierrors.NewInternalError(errors.New("etcd is unavailable"))},
			want:   []float64{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0},
		},
		"a panic": {
			world: world{ats: []*v1alpha1.At{newAt()}}, now: due, panics: true,
			want: []float64{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
		},
	} {
		t.Run(testName, func(t *testing.T) {
			f := newFixture(t, tc.world, testingclock.NewFakeClock(tc.now))
			for fault, err := range tc.faults {
				verb, resource, _ := strings.Cut(fault, " ")
				reactor := func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err }
				f.kubeClient.PrependReactor(verb, resource, reactor)
				f.cnatClient.PrependReactor(verb, resource, reactor)
			}
			if tc.panics {
				f.cnatClient.PrependReactor("get", "ats", func(clienttesting.Action) (bool, runtime.Object, error) {
					panic("an unexpected object")
				})
			}
			before, lateBefore := counters(t), lateness(t)
			f.queue.Add(name)
			_, ctx := ktesting.NewTestContext(t)
			f.processNextWorkItem(ctx)
			got := counters(t)
			for i := range got {
				got[i] -= before[i]
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("counted (-want +got):\n%s", diff)
			}
			if got := lateness(t) - lateBefore; math.Abs(got-tc.late) > 1e-6 {
				t.Errorf("late by %v s, want %v", got, tc.late)
			}
		})
	}
}

// TestServeAddressTaken serves health and metrics at addresses that are in use.
func TestServeAddressTaken(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	taken := listener.Addr().String()
	for name, tc := range map[string]struct {
		options options
		given   []string
		want    string // of the error
	}{
		"default addresses":         {options: options{healthAddress: taken, metricsAddress: taken}},
		"default addresses, secure": {options: options{healthAddress: taken, metricsAddress: taken, metricsSecure: true}},
		"address given for health":  {options: options{healthAddress: taken}, given: []string{"health-probe-bind-address"}, want: "see -health-probe-bind-address"},
		"address given for metrics": {options: options{metricsAddress: taken}, given: []string{"metrics-bind-address"}, want: "see -metrics-bind-address"},
		"another error":             {options: options{healthAddress: "8081"}, want: "missing port in address; see -health-probe-bind-address"},
		"unused addresses":          {options: options{healthAddress: "127.0.0.1:0", metricsAddress: "127.0.0.1:0"}, given: []string{"health-probe-bind-address", "metrics-bind-address"}},
		"no addresses":              {},
	} {
		t.Run(name, func(t *testing.T) {
			_, ctx := ktesting.NewTestContext(t)
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			tc.options.given = map[string]bool{}
			for _, name := range tc.given {
				tc.options.given[name] = true
			}
			err := serve(ctx, &tc.options, nil, nil, &rest.Config{})
			if (err == nil) != (tc.want == "") || err != nil && !strings.HasSuffix(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// registerMetrics registers the metrics once, even if the tests run several times:
// before, nothing is counted.
var registerMetrics = sync.OnceFunc(func() {
	metrics.Register()
	empty := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	ats.Register(ats.Objects{Ats: listers.NewAtLister(empty), CronAts: listers.NewCronAtLister(empty), Working: func() bool { return false }}, clock.RealClock{}, 1)
})

// TestRefusedForever makes the API server refuse a Pod with a different message each
// time: the status follows, but the tries are still a back-off apart.
func TestRefusedForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var creates atomic.Int32
		_, ats := runController(t, clock.RealClock{}, func() error {
			return apierrors.NewForbidden(podsResource.GroupResource(), "example-at-pod", fmt.Errorf("request %d", creates.Add(1)))
		})
		if _, err := ats.Create(t.Context(), newAt(func(at *v1alpha1.At) { at.Spec.Schedule = time.Now().Format(time.RFC3339) }), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		// 9 tries until the back-off reaches its maximum. After that, one in 40 to 60 seconds.
		if got := creates.Load(); got < 60 || got > 100 {
			t.Errorf("%d tries within an hour, want one in 40 to 60 seconds finally", got)
		}
		at, err := ats.Get(t.Context(), name.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("request %d", creates.Load()); !strings.Contains(at.Status.Conditions[0].Message, want) {
			t.Errorf("condition %+v, want the message of the last refusal: %s", at.Status.Conditions[0], want)
		}
	})
}

// TestLastingFailure makes the API server too busy to create the Pod: the failure is
// reported after it has lasted for more than a minute, until the Pod is created.
func TestLastingFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var let atomic.Bool
		_, ats := runController(t, clock.RealClock{}, func() error {
			if let.Load() {
				return nil
			}
			return apierrors.NewTooManyRequests("busy", 1)
		})
		if _, err := ats.Create(t.Context(), newAt(func(at *v1alpha1.At) { at.Spec.Schedule = time.Now().Format(time.RFC3339) }), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		reasonAfter := func(wait time.Duration) string {
			time.Sleep(wait)
			at, err := ats.Get(t.Context(), name.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return at.Status.Reason
		}
		if got := reasonAfter(time.Minute); got != "" {
			t.Errorf("reason %s within a minute, want none", got)
		}
		if got := reasonAfter(time.Minute); got != v1alpha1.ReasonPodNotCreated {
			t.Errorf("reason %q after two minutes, want PodNotCreated", got)
		}
		let.Store(true)
		if got := reasonAfter(2 * time.Minute); got != "" {
			t.Errorf("reason %s when the Pod is created, want none", got)
		}
	})
}

// TestBlockedAndGone uses a webhook that is down while very many Ats are due. When it is
// back, the Ats do not wait for each other, and none misses its starting deadline.
func TestBlockedAndGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 1000
		start := time.Now()
		var created atomic.Int32
		_, ats := runController(t, clock.RealClock{}, func() error {
			if time.Since(start) < time.Minute {
				return apierrors.NewInternalError(errors.New("failed calling webhook"))
			}
			created.Add(1)
			return nil
		})
		for i := range many {
			at := newAt(func(at *v1alpha1.At) {
				at.Name, at.UID = fmt.Sprint("at-", i), types.UID(fmt.Sprint(i))
				at.Spec.Schedule, at.Spec.StartingDeadlineSeconds = start.Format(time.RFC3339), ptr.To[int64](150)
			})
			if _, err := ats.Create(t.Context(), at, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2*time.Minute + 10*time.Second)
		if got := created.Load(); got != many {
			t.Errorf("%d Pods created 70 s after the webhook is back, want %d", got, many)
		}
	})
}

// TestRetries makes each Pod fail a second after its creation. Each further attempt is a
// new Pod with a longer delay, and the last one is the end.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type attempt struct {
			pod string
			at  time.Duration
		}
		start := time.Now()
		var attempts, releases []attempt
		var lock sync.Mutex
		kubeClient, ats := runController(t, clock.RealClock{}, func() error { return nil })
		pods := kubeClient.CoreV1().Pods(name.Namespace)
		watcher, err := pods.Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for event := range watcher.ResultChan() {
				pod, ok := event.Object.(*corev1.Pod)
				if !ok {
					return // the end of the test
				}
				lock.Lock()
				switch {
				case event.Type == watch.Added:
					attempts = append(attempts, attempt{pod.Name, time.Since(start)})
					time.AfterFunc(time.Second, func() {
						pod.Status.Phase = corev1.PodFailed
						if _, err := pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
							t.Error(err)
						}
					})
				case len(pod.Finalizers) == 0:
					releases = append(releases, attempt{pod.Name, time.Since(start)})
				}
				lock.Unlock()
			}
		}()
		at := newAt(func(at *v1alpha1.At) {
			at.Spec.Schedule, at.Spec.BackoffLimit = start.Format(time.RFC3339), ptr.To[int32](2)
		})
		if _, err := ats.Create(t.Context(), at, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		lock.Lock()
		defer lock.Unlock()
		want := []attempt{{"example-at-pod", 0}, {"example-at-pod-1", 11 * time.Second}, {"example-at-pod-2", 32 * time.Second}}
		if diff := cmp.Diff(want, attempts, cmp.AllowUnexported(attempt{})); diff != "" {
			t.Errorf("attempts (-want +got):\n%s", diff)
		}
		// Each failed after a second.
		want = []attempt{{"example-at-pod", 10500 * time.Millisecond}, {"example-at-pod-1", 21500 * time.Millisecond}, {"example-at-pod-2", 42500 * time.Millisecond}}
		if diff := cmp.Diff(want, releases, cmp.AllowUnexported(attempt{})); diff != "" {
			t.Errorf("releases (-want +got):\n%s", diff)
		}
		at, err = ats.Get(t.Context(), name.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if at.Status.Reason != v1alpha1.ReasonPodFailed || at.Status.Failed != 3 {
			t.Errorf("reason %s after %d failed attempts, want PodFailed after 3", at.Status.Reason, at.Status.Failed)
		}
	})
}

func TestHandlers(t *testing.T) {
	const group = "cnat.programming-kubernetes.info/"
	newer := func(pod *corev1.Pod) { pod.ResourceVersion = "2" }
	deleted := func(pod *corev1.Pod) cache.DeletedObject[*corev1.Pod] {
		return cache.DeletedObject[*corev1.Pod]{OptionalObj: pod}
	}

	logger, _ := ktesting.NewTestContext(t)

	for testName, tc := range map[string]struct {
		event func(*Controller)
		want  bool
	}{
		"At added":               {func(c *Controller) { c.addAt(logger, newAt(), false) }, true},
		"At in the initial list": {func(c *Controller) { c.addAt(logger, newAt(), true) }, true},
		"At edited": {func(c *Controller) {
			c.updateAt(logger, newAt(), newAt(newerVersion, func(at *v1alpha1.At) { at.Generation = 2 }))
		}, true},
		"At being deleted": {func(c *Controller) {
			c.updateAt(logger, newAt(), newAt(newerVersion, func(at *v1alpha1.At) { at.DeletionTimestamp = &metav1.Time{Time: due} }))
		}, true},
		"At recreated, seen as an update": {func(c *Controller) {
			c.updateAt(logger, newAt(), newAt(newerVersion, func(at *v1alpha1.At) { at.UID = "recreated" }))
		}, true},
		"At's status changed, by the controller": {func(c *Controller) { c.updateAt(logger, newAt(), newAt(newerVersion, running)) }, false},
		"At resynced, same resourceVersion":      {func(c *Controller) { c.updateAt(logger, newAt(), newAt()) }, false},
		"At deleted":                             {func(c *Controller) { c.deleteAt(logger, cache.DeletedObject[*v1alpha1.At]{OptionalObj: newAt()}) }, true},
		"At deleted, tombstone": {func(c *Controller) {
			c.deleteAt(logger, cache.DeletedObject[*v1alpha1.At]{FinalStateUnknown: &cache.DeletedFinalStateUnknown{Key: name.String()}})
		}, true},
		"Pod added":                          {func(c *Controller) { c.addPod(newPod(corev1.PodPending)) }, true},
		"Pod updated":                        {func(c *Controller) { c.updatePod(newPod(corev1.PodPending), newPod(corev1.PodRunning, newer)) }, true},
		"Pod resynced, same resourceVersion": {func(c *Controller) { c.updatePod(newPod(corev1.PodPending), newPod(corev1.PodPending)) }, false},
		"Pod deleted":                        {func(c *Controller) { c.deletePod(deleted(newPod(corev1.PodRunning))) }, true},
		"Pod deleted, tombstone": {func(c *Controller) {
			pod := newPod(corev1.PodRunning)
			c.deletePod(cache.DeletedObject[*corev1.Pod]{OptionalObj: pod, FinalStateUnknown: &cache.DeletedFinalStateUnknown{Key: "default/example-at-pod", Obj: pod}})
		}, true},
		"Pod deleted, tombstone without the Pod": {func(c *Controller) {
			c.deletePod(cache.DeletedObject[*corev1.Pod]{FinalStateUnknown: &cache.DeletedFinalStateUnknown{Key: "default/example-at-pod"}})
		}, false},
		"Pod of an earlier At with this name": {func(c *Controller) {
			c.deletePod(deleted(newPod("", owner(group+"v1alpha1", "At", name.Name, "earlier"))))
		}, true},
		"Pod orphaned, with its finalizer": {func(c *Controller) { c.addPod(newPod("", func(pod *corev1.Pod) { pod.OwnerReferences = nil })) }, true},
		"Pod orphaned and released": {func(c *Controller) {
			c.addPod(newPod("", released, func(pod *corev1.Pod) { pod.OwnerReferences = nil }))
		}, false},
		"Pod of another version of the group": {func(c *Controller) { c.addPod(newPod("", owner(group+"v1", "At", name.Name, "at-uid"))) }, true},
		"Pod without owner":                   {func(c *Controller) { c.addPod(newPod("", noOwner)) }, false},
		"Pod of another kind": {func(c *Controller) {
			c.addPod(newPod("", released, owner(group+"v1alpha1", "Cron", name.Name, "at-uid")))
		}, false},
		"Pod of another group": {func(c *Controller) {
			c.addPod(newPod("", released, owner("example.com/v1alpha1", "At", name.Name, "at-uid")))
		}, false},
		"Pod whose owner's group is invalid": {func(c *Controller) { c.addPod(newPod("", released, owner("a/b/c", "At", name.Name, "at-uid"))) }, false},
	} {
		t.Run(testName, func(t *testing.T) {
			f := newFixture(t, world{}, clock.RealClock{})
			tc.event(f.Controller)
			if got := f.queue.Len() == 1; got != tc.want {
				t.Fatalf("enqueued: %v, want %v", got, tc.want)
			}
			if tc.want {
				if got, _ := f.queue.Get(); got != name {
					t.Errorf("enqueued %v, want %v", got, name)
				}
			}
		})
	}
}

// TestStandby changes objects while a controller is on standby: nothing is enqueued. When
// the controller takes over, it enqueues the objects in its caches: first those that are
// due, and only later those that just need to wait.
func TestStandby(t *testing.T) {
	synctest.Test(t, testStandby)
}

func testStandby(t *testing.T) {
	logger, _ := ktesting.NewTestContext(t)
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
	f.working.Store(false)
	for range 2 {
		f.addAt(logger, newAt(), false)
		f.updateAt(logger, newAt(), newAt(newerVersion, func(at *v1alpha1.At) { at.Generation = 2 }))
		f.deleteAt(logger, cache.DeletedObject[*v1alpha1.At]{OptionalObj: newAt()})
		f.addPod(newPod(corev1.PodPending))
	}
	if got := f.queue.Len(); got != 0 {
		t.Fatalf("%d items in the queue of a standby, want none", got)
	}
	f.working.Store(true)
	f.enqueueAll()
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
	time.Sleep(time.Hour)
	synctest.Wait()
	if got := f.queue.Len(); got != 1000 {
		t.Errorf("%d items in the queue when they are due, want 1000", got)
	}
}

func TestWrittenIsForgottenOnceTheCacheHasIt(t *testing.T) {
	logger, _ := ktesting.NewTestContext(t)
	for testName, event := range map[string]func(*Controller){
		"updated": func(c *Controller) { c.updateAt(logger, newAt(), newAt(newerVersion)) },
		"recreated, seen as an update": func(c *Controller) {
			c.updateAt(logger, newAt(), newAt(newerVersion, func(at *v1alpha1.At) { at.UID = "recreated" }))
		},
		"deleted": func(c *Controller) { c.deleteAt(logger, cache.DeletedObject[*v1alpha1.At]{OptionalObj: newAt()}) },
	} {
		t.Run(testName, func(t *testing.T) {
			f := newFixture(t, world{ats: []*v1alpha1.At{newAt()}}, clock.RealClock{})
			f.cache.Written.Remember(newAt(newerVersion, running))
			if got := f.cache.Written.Latest(newAt()); got.Status.Phase != v1alpha1.PhaseRunning {
				t.Errorf("phase %s, want what was written", got.Status.Phase)
			}
			event(f.Controller)
			if got := f.cache.Written.Latest(newAt()); got.Status.Phase == v1alpha1.PhaseRunning {
				t.Error("what was written is remembered, want what the cache has")
			}
		})
	}
}

// TestOrder checks that Ats that are due go first, and that those go last that only need
// status RUNNING.
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
	if diff := cmp.Diff([]string{"due", "running", "failed", "succeeded", "done", "deleted", "starting"}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// TestRun runs the whole controller, including informers, in virtual time: an At is
// created, moved, and runs at its instant, which may be beyond the horizon of the queue.
func TestRun(t *testing.T) {
	for _, ahead := range []time.Duration{time.Hour, searchPeriod + 40*time.Minute, 30 * time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testRun(t, ahead) })
		})
	}
}

func testRun(t *testing.T, ahead time.Duration) {
	t.Helper()
	var creates atomic.Int32
	var createdAt atomic.Pointer[time.Time]
	ctx := t.Context()
	_, ats := runController(t, clock.RealClock{}, func() error {
		creates.Add(1)
		createdAt.Store(ptr.To(time.Now()))
		return nil
	})
	scheduled := time.Now().Add(ahead)
	at := newAt(func(at *v1alpha1.At) { at.Spec.Schedule = scheduled.Format(time.RFC3339) })
	at, err := ats.Create(ctx, at, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Minute)
	scheduled = scheduled.Add(30 * time.Minute)
	at.Spec.Schedule = scheduled.Format(time.RFC3339)
	at.Generation = 2
	if _, err = ats.Update(ctx, at, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(scheduled) - time.Nanosecond)
	synctest.Wait()
	if early := createdAt.Load(); early != nil {
		t.Fatalf("the Pod was created at %v, due is %v", early, scheduled)
	}
	time.Sleep(time.Second)
	synctest.Wait()
	if got := createdAt.Load(); got == nil || !got.Equal(scheduled) || creates.Load() != 1 {
		t.Errorf("%d creations, the last at %v; want one at %v", creates.Load(), got, scheduled)
	}
	if at, err = ats.Get(ctx, name.Name, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if at.Status.Phase != v1alpha1.PhaseRunning {
		t.Errorf("phase %s, want RUNNING", at.Status.Phase)
	}
}

// TestBeyondHorizon waits for what is due after the start, and beyond the horizon of the
// queue.
func TestBeyondHorizon(t *testing.T) {
	const ahead = horizon + searchPeriod + 5*time.Minute
	synctest.Test(t, func(t *testing.T) {
		ctx, start := t.Context(), time.Now()
		_, ats := runController(t, clock.RealClock{}, func() error {
			return apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("exceeded quota"))
		})
		for _, at := range []*v1alpha1.At{
			newAt(ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, "", start), func(at *v1alpha1.At) {
				at.Name, at.UID, at.Spec.TTLSecondsAfterFinished = "done", "done", ptr.To(int32(ahead.Seconds()))
			}),
			newAt(func(at *v1alpha1.At) {
				at.Name, at.UID, at.Spec.Schedule = "refused", "refused", start.Format(time.RFC3339)
				at.Spec.StartingDeadlineSeconds = ptr.To(int64(ahead.Seconds()))
			}),
		} {
			if _, err := ats.Create(ctx, at, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(ahead - time.Second)
		synctest.Wait()
		if _, err := ats.Get(ctx, "done", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		if at, err := ats.Get(ctx, "refused", metav1.GetOptions{}); err != nil || at.Status.Phase != v1alpha1.PhasePending {
			t.Errorf("the refused At is %s, want PENDING: %v", at.Status.Phase, err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if _, err := ats.Get(ctx, "done", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the At is still there after its time to live: %v", err)
		}
		if at, err := ats.Get(ctx, "refused", metav1.GetOptions{}); err != nil || at.Status.Phase != v1alpha1.PhaseDone {
			t.Errorf("the refused At is %s after its starting deadline, want DONE: %v", at.Status.Phase, err)
		}
	})
}

// TestClockStep steps the wall clock while an At is waiting: the At is never early, and
// at most a second late.
func TestClockStep(t *testing.T) {
	for testName, tc := range map[string]struct{ dueIn, step, want time.Duration }{
		"forward":                            {90 * time.Minute, time.Hour, 90 * time.Minute},
		"forward beyond the time, or asleep": {30 * time.Minute, time.Hour, time.Hour + 10*time.Minute},
		"back":                               {30 * time.Minute, -time.Hour, 30 * time.Minute},
		"back, just before the time":         {10*time.Minute + time.Second, -time.Hour, 10*time.Minute + time.Second},
	} {
		t.Run(testName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				wall, start := &harness.Clock{}, time.Now()
				var createdAt atomic.Int64 // by the wall clock, from the start
				_, ats := runController(t, wall, func() error {
					createdAt.Store(int64(wall.Now().Sub(start)))
					return nil
				})
				at := newAt(func(at *v1alpha1.At) { at.Spec.Schedule = start.Add(tc.dueIn).Format(time.RFC3339) })
				if _, err := ats.Create(t.Context(), at, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				// Avoid the moments at which the clock is checked.
				time.Sleep(10*time.Minute + 500*time.Millisecond)
				wall.Set(tc.step)
				time.Sleep(3 * time.Hour)
				got := time.Duration(createdAt.Load())
				if got < tc.dueIn || got < tc.want || got > tc.want+wallclock.Period {
					t.Errorf("the Pod was created after %v by the wall clock, want %v, or up to a second later", got, tc.want)
				}
			})
		})
	}
}

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
	kubeClient, cnatClient = harness.NewClients(t, server)
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
	recorder := events.NewRecorder(ctx, cnatscheme.Scheme, controllerName, clock.RealClock{})
	recorder.Start(kubeClient.CoreV1(), func() bool { return false })
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
	return harness.Run(ctx, t, func(ctx context.Context) {
		c.Run(ctx, 2)
		writeEvents(c)
	})
}

// writeEvents writes the queued events of a controller from standBy.
func writeEvents(c *Controller) { c.steps.Recorder.(*events.Recorder).Shutdown() }

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

// TestOutage makes the API server unavailable immediately after it has answered the read
// of a due At. This At, one that becomes due during the outage, and one that is created
// after it, all start within five seconds of the API server's return.
func TestOutage(t *testing.T) {
	for _, outage := range []time.Duration{time.Second, 7 * time.Second, 61 * time.Second, time.Hour + 7*time.Second} {
		t.Run(outage.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := fakeserver.New(clock.RealClock{})
				var lock sync.Mutex
				var left time.Time
				created := map[string][]time.Time{}
				kubeClient, cnatClient := harness.NewClients(t, connect.Patient(harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
					var creates string
					for _, at := range []string{"looked", "during", "after"} {
						if isCreation(t, request, at+"-pod") {
							creates = at
						}
					}
					response, err := server.RoundTrip(request)
					lock.Lock()
					defer lock.Unlock()
					if creates != "" && err == nil && response.StatusCode == http.StatusCreated {
						created[creates] = append(created[creates], time.Now())
					}
					if path.Base(request.URL.Path) == "looked" && left.IsZero() {
						left = time.Now()
						server.SetAway(true)
					}
					return response, err
				})))
				runWithClients(t, kubeClient, cnatClient, clock.RealClock{})
				_, person := harness.NewClients(t, server)
				create := func(name string, due time.Time) {
					t.Helper()
					at := newAt(func(at *v1alpha1.At) { at.Name, at.Spec.Schedule = name, due.Format(time.RFC3339Nano) })
					if _, err := person.CnatV1alpha1().Ats(at.Namespace).Create(t.Context(), at, metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				due := time.Now().Add(10 * time.Minute)
				create("looked", due)
				create("during", due.Add(outage/3))
				time.Sleep(time.Until(due.Add(outage)))
				server.SetAway(false)
				returned := time.Now()
				create("after", returned)
				time.Sleep(time.Hour)
				lock.Lock()
				defer lock.Unlock()
				if !left.Equal(due) {
					t.Fatalf("it left at %v, want %v", left, due)
				}
				for _, at := range []string{"looked", "during", "after"} {
					if got := created[at]; len(got) != 1 || got[0].Before(returned) || got[0].After(returned.Add(5*time.Second)) {
						t.Errorf("the Pod of At %s was created at %v, want once within 5 s of %v", at, got, returned)
					}
				}
			})
		})
	}
}

// TestShutdown stops a controller while very many Ats are due: it finishes the running
// syncs, starts no others, and writes the queued events.
func TestShutdown(t *testing.T) {
	const workers, number = 2, 20
	for testName, tc := range map[string]struct {
		create, event time.Duration // how long these requests take
		// expectations
		took            time.Duration
		created, events int32
		failed          int // syncs
	}{
		"nothing running":       {created: number, events: number},
		"creations running":     {create: time.Second, took: 500 * time.Millisecond, created: workers, events: 1},
		"the creations hang":    {create: time.Hour, took: finishTimeout, failed: workers},
		"events are queued":     {event: time.Second, took: 1500 * time.Millisecond, created: number, events: number},
		"the first event hangs": {event: time.Hour, took: 5 * time.Second, created: number},
	} {
		t.Run(testName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := fakeserver.New(clock.RealClock{})
				var created, events atomic.Int32
				kubeClient, cnatClient := harness.NewClients(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
					if request.Method != http.MethodPost {
						return server.RoundTrip(request)
					}
					takes, done := tc.create, &created
					if path.Base(request.URL.Path) == "events" {
						takes, done = tc.event, &events
					}
					select {
					case <-time.After(takes):
					case <-request.Context().Done():
						return nil, request.Context().Err()
					}
					response, err := server.RoundTrip(request)
					if err == nil && response.StatusCode == http.StatusCreated {
						done.Add(1)
					}
					return response, err
				}))
				ctx, logged := harness.Logged(t, 5)
				stop := workIn(ctx, t, standBy(t, kubeClient, cnatClient, clock.RealClock{}))
				_, person := harness.NewClients(t, server)
				for i := range number {
					at := newAt(func(at *v1alpha1.At) {
						at.Name, at.Spec.Schedule = fmt.Sprint("at-", i), time.Now().Format(time.RFC3339)
					})
					if _, err := person.CnatV1alpha1().Ats(at.Namespace).Create(t.Context(), at, metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(500 * time.Millisecond)
				asked := time.Now()
				stop()
				if took := time.Since(asked); took != tc.took {
					t.Errorf("it took %v, want %v", took, tc.took)
				}
				if created.Load() != tc.created || events.Load() != tc.events {
					t.Errorf("%d Pods and %d events were created, want %d, %d", created.Load(), events.Load(), tc.created, tc.events)
				}
				log := logged()
				if failed := strings.Count(log, "Sync failed"); failed != tc.failed {
					t.Errorf("%d syncs failed, want %d:\n%s", failed, tc.failed, log)
				}
				time.Sleep(24 * time.Hour) // until the requests that hang have ended
			})
		})
	}
}

// TestFreshness lets an At become due every 10 ms. While the watch reports the
// controller's own writes, the controller does not read each At before it creates its
// Pod. An At that a person has suspended, moved or deleted half a second before never gets
// a Pod, even if the watch lags.
func TestFreshness(t *testing.T) {
	const number, edited = 600, 3 // every third
	for testName, tc := range map[string]struct {
		lags               func(int) time.Duration // how long the watch lags, beginning in the nth second
		minReads, maxReads int32
	}{
		"watch is up to date": {lags: func(int) time.Duration { return 0 }, minReads: 1, maxReads: 20},
		"watch lags a bit":    {lags: func(int) time.Duration { return 300 * time.Millisecond }, minReads: 1, maxReads: 60},
		"watch lags at times": {lags: func(n int) time.Duration { return time.Duration(n) * 200 * time.Millisecond }, minReads: 50, maxReads: 350},
		"watch stops":         {lags: func(int) time.Duration { return time.Minute }, minReads: 500, maxReads: 650},
	} {
		t.Run(testName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := fakeserver.New(clock.RealClock{})
				var lagUntil atomic.Pointer[time.Time]
				lagUntil.Store(&time.Time{})
				var reads atomic.Int32
				kubeClient, cnatClient := harness.NewClients(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
					isWatch := harness.IsWatch(request)
					if !isWatch {
						time.Sleep(3 * time.Millisecond)
					}
					if request.Method == http.MethodGet && path.Base(path.Dir(request.URL.Path)) == "ats" {
						reads.Add(1)
					}
					response, err := server.RoundTrip(request)
					if err == nil && isWatch {
						response.Body = &late{response.Body, &lagUntil}
					}
					return response, err
				}))
				runWithClients(t, kubeClient, cnatClient, clock.RealClock{})
				kubeClient, cnatClient = harness.NewClients(t, server)
				ats := cnatClient.CnatV1alpha1().Ats(name.Namespace)
				first := time.Now().Add(time.Minute)
				for i := range number {
					at := newAt(func(at *v1alpha1.At) {
						at.Name, at.Spec.Schedule = fmt.Sprint("at-", i), first.Add(time.Duration(i)*10*time.Millisecond).Format(time.RFC3339Nano)
					})
					if _, err := ats.Create(t.Context(), at, metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(time.Until(first))
				reads.Store(0)
				for i := range number {
					if i%100 == 50 {
						until := time.Now().Add(tc.lags(i / 100))
						lagUntil.Store(&until)
					}
					if i%edited == 0 && i >= 51 {
						// It is due in half a second and one millisecond.
						at := fmt.Sprint("at-", i)
						var err error
						switch i / edited % 3 {
						case 0:
							_, err = ats.Patch(t.Context(), at, types.MergePatchType, []byte(`{"spec":{"suspend":true}}`), metav1.PatchOptions{})
						case 1:
							_, err = ats.Patch(t.Context(), at, types.MergePatchType, []byte(`{"spec":{"schedule":"2099-01-01T00:00:00Z"}}`), metav1.PatchOptions{})
						case 2:
							err = ats.Delete(t.Context(), at, metav1.DeleteOptions{})
						}
						if err != nil {
							t.Fatal(err)
						}
					}
					time.Sleep(time.Until(first.Add(time.Duration(i+1)*10*time.Millisecond - 501*time.Millisecond)))
				}
				time.Sleep(10 * time.Second)
				got := reads.Load()
				time.Sleep(time.Minute) // until the watch no longer lags
				pods, err := kubeClient.CoreV1().Pods(name.Namespace).List(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				created := map[string]bool{}
				for _, pod := range pods.Items {
					created[pod.Name] = true
				}
				for i := range number {
					at := fmt.Sprint("at-", i)
					if want := i < 51 || i%edited != 0; created[at+"-pod"] != want {
						t.Errorf("the Pod of %s was created: %v, want %v", at, !want, want)
					}
				}
				if got < tc.minReads || got > tc.maxReads {
					t.Errorf("%d Ats were read for %d runs, want %d to %d", got, len(created), tc.minReads, tc.maxReads)
				}
			})
		})
	}
}

// TestSlowStatus lets Ats become due at one instant while status writes hang: they delay
// the creation of Pods by one of two workers at most.
func TestSlowStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const number, takes, hang = 500, 10 * time.Millisecond, time.Hour
		due := time.Now().Add(time.Minute)
		server := fakeserver.New(clock.RealClock{})
		var created atomic.Int32
		kubeClient, cnatClient := harness.NewClients(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
			switch {
			case request.Method == http.MethodPatch && path.Base(request.URL.Path) == "status":
				time.Sleep(min(time.Minute, time.Until(due.Add(hang))))
			case harness.Creates(request, "pods"):
				time.Sleep(takes)
				created.Add(1)
			}
			return server.RoundTrip(request)
		}))
		runWithClients(t, kubeClient, cnatClient, clock.RealClock{})
		_, person := harness.NewClients(t, server)
		for i := range number {
			at := newAt(func(at *v1alpha1.At) {
				at.Name, at.Spec.Schedule = fmt.Sprint("at-", i), due.Format(time.RFC3339)
			})
			if _, err := person.CnatV1alpha1().Ats(name.Namespace).Create(t.Context(), at, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Until(due.Add((number + 1) * takes)))
		if got := created.Load(); got != number {
			t.Errorf("%d of %d Pods were created", got, number)
		}
		time.Sleep(hang + time.Minute) // until the writes have ended
	})
}

// late is the response body of a watch that reports nothing until a given time.
type late struct {
	io.ReadCloser
	until *atomic.Pointer[time.Time]
}

func (l *late) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p)
	time.Sleep(time.Until(*l.until.Load()))
	return n, err
}

// TestTakeover lets a leader run an At and then ends the leader. The watches of the
// standby have not reported anything about that when it takes over. It must not run the
// At again, and must bring it to its end.
func TestTakeover(t *testing.T) {
	for testName, tc := range map[string]struct {
		cutOff bool // the leader is cut off once it has created the Pod
		ended  bool // the Pod ends while the leader works, and is deleted
		pods   int  // remaining Pods
	}{
		"before the status is written": {cutOff: true, pods: 1},
		"while the Pod runs":           {pods: 1},
		"after the end":                {ended: true},
	} {
		t.Run(testName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := fakeserver.New(clock.RealClock{})
				var created atomic.Int32
				var isCutOff atomic.Bool
				count := func(request *http.Request) (*http.Response, error) {
					creates := isCreation(t, request, "example-at-pod")
					response, err := server.RoundTrip(request)
					if creates && err == nil && response.StatusCode == http.StatusCreated {
						created.Add(1)
						isCutOff.Store(tc.cutOff)
					}
					return response, err
				}
				kubeClient, cnatClient := harness.NewClients(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
					if isCutOff.Load() {
						return nil, errors.New("the network is down")
					}
					return count(request)
				}))
				stopLeader := work(t, standBy(t, kubeClient, cnatClient, clock.RealClock{}))
				watches := harness.NewWatches(t, harness.RoundTripper(count))
				kubeClient, cnatClient = harness.NewClients(t, watches)
				standby := standBy(t, kubeClient, cnatClient, clock.RealClock{})

				kubeClient, cnatClient = harness.NewClients(t, server)
				pods, ats := kubeClient.CoreV1().Pods(name.Namespace), cnatClient.CnatV1alpha1().Ats(name.Namespace)
				endPod := func() {
					t.Helper()
					pod, err := pods.Get(t.Context(), "example-at-pod", metav1.GetOptions{})
					if err != nil {
						t.Fatal(err)
					}
					pod.Status.Phase = corev1.PodSucceeded
					if _, err = pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				at := newAt(func(at *v1alpha1.At) { at.Spec.Schedule = time.Now().Add(time.Minute).Format(time.RFC3339) })
				if _, err := ats.Create(t.Context(), at, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(30 * time.Second)
				watches.Hold()
				time.Sleep(time.Minute)
				if tc.ended {
					endPod()
					if err := pods.Delete(t.Context(), "example-at-pod", metav1.DeleteOptions{}); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Minute)
				}
				if cached, pods := standby.cache.At(name), standby.cache.PodsOf(name); cached == nil || cached.Status.Phase != v1alpha1.PhasePending || len(pods) > 0 {
					t.Fatalf("the caches of the standby are not stale: they have %v, and %d Pods", cached, len(pods))
				}
				stopLeader()

				work(t, standby)
				time.Sleep(time.Hour)
				if at, err := ats.Get(t.Context(), name.Name, metav1.GetOptions{}); err != nil || at.Status.Phase == v1alpha1.PhasePending {
					t.Errorf("the At is still %s, %v: the standby did nothing", at.Status.Phase, err)
				}
				watches.LetGo()
				if !tc.ended {
					endPod()
				}
				time.Sleep(time.Hour)
				at, err := ats.Get(t.Context(), name.Name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if at.Status.Reason != v1alpha1.ReasonCompleted {
					t.Errorf("phase %s, reason %s; want it Completed", at.Status.Phase, at.Status.Reason)
				}
				if list, err := pods.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != tc.pods {
					t.Errorf("%d Pods are left, %v; want %d", len(list.Items), err, tc.pods)
				}
				if got := created.Load(); got != 1 {
					t.Errorf("%d Pods were created, want one", got)
				}
			})
		})
	}
}

// TestSlowCreation delays the creation of a Pod while another controller runs the At, or
// its second attempt, to the end, and a user deletes all its Pods. The Pod's name is not
// free yet: the creation is refused, up to 8.4 s later.
func TestSlowCreation(t *testing.T) {
	for _, pod := range []string{"example-at-pod", "example-at-pod-1"} {
		for _, fraction := range []time.Duration{0, 500 * time.Millisecond, 950 * time.Millisecond} {
			for _, delay := range []time.Duration{time.Second, 4 * time.Second, 8400 * time.Millisecond} {
				t.Run(fmt.Sprintf("%s at %v, %v late", pod, fraction, delay), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { testSlowCreation(t, pod, fraction, delay) })
				})
			}
		}
	}
}

func testSlowCreation(t *testing.T, pod string, fraction, delay time.Duration) {
	t.Helper()
	server := fakeserver.New(clock.RealClock{})
	held, goOn, answer := make(chan struct{}), make(chan struct{}), make(chan int, 1)
	hold := sync.OnceFunc(func() {
		close(held)
		<-goOn
	})
	kubeClient, cnatClient := harness.NewClients(t, connect.Patient(harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
		if !isCreation(t, request, pod) {
			return server.RoundTrip(request)
		}
		hold()
		response, err := server.RoundTrip(request)
		if err == nil {
			select {
			case answer <- response.StatusCode:
			default:
			}
		}
		return response, err
	})))
	runWithClients(t, kubeClient, cnatClient, clock.RealClock{})

	kubeClient, cnatClient = harness.NewClients(t, server)
	pods, ats := kubeClient.CoreV1().Pods(name.Namespace), cnatClient.CnatV1alpha1().Ats(name.Namespace)
	ended := map[types.UID]string{} // the Pods' names
	// until simulates the kubelet every 100 ms, which ends each Pod immediately, until the At
	// is in the expected state.
	until := func(condition func(*v1alpha1.At) bool) {
		t.Helper()
		for range 1_000 {
			time.Sleep(100 * time.Millisecond)
			list, err := pods.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range list.Items {
				if ended[p.UID] != "" {
					continue
				}
				ended[p.UID] = p.Name
				p.Status.Phase = corev1.PodFailed
				if p.Name == pod {
					p.Status.Phase = corev1.PodSucceeded
				}
				if _, err := pods.UpdateStatus(t.Context(), &p, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			at, err := ats.Get(t.Context(), name.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if condition(at) {
				return
			}
		}
		t.Fatal("the At does not continue")
	}
	at := newAt(func(at *v1alpha1.At) {
		at.Spec.Schedule = time.Now().Add(fraction).Format(time.RFC3339Nano)
		if pod == "example-at-pod-1" {
			at.Spec.BackoffLimit = ptr.To[int32](1)
		}
	})
	if _, err := ats.Create(t.Context(), at, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(func(*v1alpha1.At) bool {
		select {
		case <-held:
			return true
		default:
			return false
		}
	})
	runWithClients(t, kubeClient, cnatClient, clock.RealClock{})
	until(func(at *v1alpha1.At) bool { return at.Status.Reason == v1alpha1.ReasonCompleted })
	for _, name := range ended {
		if err := pods.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	time.Sleep(delay)
	close(goOn)
	if got := <-answer; got != http.StatusConflict {
		t.Errorf("the creation was answered %d, want %d", got, http.StatusConflict)
	}
	// Everything is deleted in the end, and nothing runs again.
	time.Sleep(time.Hour)
	list, err := pods.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) > 0 {
		t.Errorf("Pods are left: %v, %v", list.Items, err)
	}
}

// TestPodAbandoned force-deletes the Pod of a dead node: a minute later, the attempt is
// abandoned, its Pod is released, and the command is not run again.
func TestPodAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := fakeserver.New(clock.RealClock{})
		kubeClient, cnatClient := harness.NewClients(t, server)
		runWithClients(t, kubeClient, cnatClient, clock.RealClock{})
		pods, ats := kubeClient.CoreV1().Pods(name.Namespace), cnatClient.CnatV1alpha1().Ats(name.Namespace)
		at := newAt(func(at *v1alpha1.At) {
			at.Spec.Schedule, at.Spec.BackoffLimit = time.Now().Format(time.RFC3339), ptr.To[int32](5)
		})
		if _, err := ats.Create(t.Context(), at, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		pod, err := pods.Get(t.Context(), "example-at-pod", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pod.Spec.NodeName, pod.Status.Phase = "dead", corev1.PodRunning
		if _, err = pods.Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if err = pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
			t.Fatal(err)
		}
		for after, want := range []v1alpha1.AtPhase{59: v1alpha1.PhaseRunning, 61: v1alpha1.PhaseDone, 80: v1alpha1.PhaseDone} {
			if at, err = ats.Get(t.Context(), name.Name, metav1.GetOptions{}); err != nil {
				t.Fatal(err)
			}
			if want != "" && (at.Status.Phase != want || want == v1alpha1.PhaseDone && at.Status.Reason != v1alpha1.ReasonPodLost) {
				t.Errorf("after %d s: phase %s, reason %s; want %s", after, at.Status.Phase, at.Status.Reason, want)
			}
			time.Sleep(time.Second)
		}
		list, err := pods.List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) > 0 {
			t.Errorf("Pods are left: %v, %v", list.Items, err)
		}
	})
}

// TestStatusPatch writes a status over one with fields that are unknown to this version:
// these and unchanged fields stay.
func TestStatusPatch(t *testing.T) {
	stored := []byte(`{"metadata": {"resourceVersion": "1"}, "spec": {"command": "true"}, "status": {"phase": "RUNNING", "newer": "field", "message": "old", "pod": {"name": "example-at-pod", "uid": "pod-uid", "newer": "field"}}}`)
	at := &v1alpha1.At{}
	if err := json.Unmarshal(stored, at); err != nil {
		t.Fatal(err)
	}
	status := at.Status.DeepCopy()
	status.Phase, status.Message, status.Pod.Phase = v1alpha1.PhaseDone, "", corev1.PodSucceeded
	body, err := patch.Status(at.ResourceVersion, &plan.KeepAt(at).Status, status)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(body), `{"metadata":{"resourceVersion":"1"},"status":{"message":null,"phase":"DONE","pod":{"phase":"Succeeded"}}}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	after, err := jsonpatch.MergePatch(stored, body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"newer":"field","phase":"DONE"`, `"newer":"field","phase":"Succeeded"`, `"command":"true"`} {
		if !strings.Contains(string(after), want) {
			t.Errorf("the status is %s afterwards, want %s", after, want)
		}
	}
}

// TestKeep compares the decisions based on a whole At and its Pod with those based on the
// fields in the caches, which contain nothing large.
func TestKeep(t *testing.T) {
	large := strings.Repeat("x", 1<<20)
	fill := func(at *v1alpha1.At) {
		at.Labels, at.Annotations, at.Spec.Command = map[string]string{"large": large}, map[string]string{"large": large}, large
		at.Spec.Template = &corev1.PodTemplateSpec{}
		at.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: large}}
		at.Finalizers, at.OwnerReferences = []string{large}, []metav1.OwnerReference{{Name: large}}
		at.CreationTimestamp = metav1.Time{Time: due.Add(time.Second)}
	}
	fillPod := func(pod *corev1.Pod) {
		pod.Labels["large"], pod.Annotations["large"] = large, large
		pod.Finalizers = append(pod.Finalizers, large)
		pod.OwnerReferences = append(pod.OwnerReferences, metav1.OwnerReference{Name: large})
		pod.Spec.NodeName = "node"
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: large})
		pod.Status.PodIP, pod.Status.HostIP, pod.Status.StartTime = "192.0.2.1", "192.0.2.2", &metav1.Time{Time: due}
	}
	container := func(state, last corev1.ContainerState) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{Name: "command", Image: large, State: state, LastTerminationState: last}}
	}
	failed := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Message: "no such host", FinishedAt: metav1.Time{Time: due}}}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"}}
	condition := func(conditionType corev1.PodConditionType, status corev1.ConditionStatus, reason string) []corev1.PodCondition {
		return []corev1.PodCondition{{Type: conditionType, Status: status, Reason: reason, Message: "words", LastTransitionTime: metav1.Time{Time: due}}}
	}
	ats := map[string]func(*v1alpha1.At){
		"plain":     func(*v1alpha1.At) {},
		"suspended": func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) },
		"zoned": func(at *v1alpha1.At) {
			at.Spec.Schedule, at.Spec.TimeZone = "2026-12-24T11:12:00", ptr.To("Europe/Berlin")
		},
		"deleted":  func(at *v1alpha1.At) { at.DeletionTimestamp = &metav1.Time{Time: due} },
		"deadline": withStartingDeadline,
		"running":  running,
		"limited":  func(at *v1alpha1.At) { running(at); withActiveDeadline(at) },
		"retries":  func(at *v1alpha1.At) { running(at); at.Spec.BackoffLimit = ptr.To[int32](1) },
		"restarting": func(at *v1alpha1.At) {
			withRestart(at)
			at.Status.Phase, at.Status.StartTime = v1alpha1.PhaseRunning, &metav1.Time{Time: due}
			at.Status.Restart = &v1alpha1.AtRestartStatus{UID: "web", RestartedAt: &metav1.Time{Time: due}}
		},
		"done, kept": func(at *v1alpha1.At) { ended(v1alpha1.ConditionComplete, "Completed", "", due)(at); withTTL(at) },
	}
	pods := map[string]func(*corev1.Pod){
		"running":   func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodRunning },
		"succeeded": func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded },
		"failed": func(pod *corev1.Pod) {
			pod.Status.Phase, pod.Status.ContainerStatuses = corev1.PodFailed, container(failed, corev1.ContainerState{})
		},
		"restarted": func(pod *corev1.Pod) {
			pod.Status.Phase, pod.Status.ContainerStatuses = corev1.PodFailed, container(waiting, failed)
		},
		"no image": func(pod *corev1.Pod) { pod.Status.ContainerStatuses = container(waiting, corev1.ContainerState{}) },
		"init failed": func(pod *corev1.Pod) {
			pod.Status.Phase, pod.Status.InitContainerStatuses = corev1.PodFailed, container(failed, corev1.ContainerState{})
		},
		"evicted": func(pod *corev1.Pod) {
			pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, "Evicted", "words"
		},
		"drained": func(pod *corev1.Pod) {
			pod.Status.Phase, pod.Status.Conditions = corev1.PodFailed, condition(corev1.DisruptionTarget, corev1.ConditionTrue, "words")
		},
		"unschedulable": func(pod *corev1.Pod) {
			pod.Status.Conditions = condition(corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable)
		},
		"deleted": func(pod *corev1.Pod) {
			pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: due}, ptr.To[int64](0)
		},
		"no owner":      func(pod *corev1.Pod) { pod.OwnerReferences = nil },
		"no label":      func(pod *corev1.Pod) { delete(pod.Labels, v1alpha1.LabelAtUID) },
		"other At's":    earlier,
		"released":      released,
		"older":         func(pod *corev1.Pod) { pod.Annotations[v1alpha1.AnnotationAtGeneration] = "0" },
		"of another At": func(pod *corev1.Pod) { pod.OwnerReferences = nil; pod.Annotations[v1alpha1.AnnotationAtName] = "other" },
	}
	for atName, changeAt := range ats {
		at := newAt(changeAt)
		fill(at)
		keptAt := plan.KeepAt(at)
		if size := len(fmt.Sprintf("%+v", keptAt)); size > 5_000 {
			t.Errorf("%s: %d bytes of an At are kept, including large fields", atName, size)
		}
		for podName, changePod := range pods {
			pod := newPod(corev1.PodPending, changePod)
			fillPod(pod)
			keptPod := plan.KeepPod(pod)
			if size := len(fmt.Sprintf("%+v", keptPod)); size > 10_000 {
				t.Errorf("%s: %d bytes of a Pod are kept, including large fields", podName, size)
			}
			if all, kept := plan.AtName(pod), plan.AtName(keptPod); all != kept {
				t.Errorf("%s: the At's name is %q, of what is kept %q", podName, all, kept)
			}
			for _, now := range []time.Time{due.Add(-time.Second), due, due.Add(2 * time.Minute)} {
				world := plan.World{At: at, Pods: []*corev1.Pod{pod}, PodIsLive: true, TargetIsLive: true, Now: now}
				cached := plan.World{At: keptAt, Pods: []*corev1.Pod{keptPod}, PodIsLive: true, TargetIsLive: true, Now: now}
				equate := cmp.Options{cmpopts.EquateEmpty(), cmp.Comparer(func(a, b *corev1.Pod) bool { return (a == nil) == (b == nil) }), cmp.Comparer(func(a, b error) bool { return fmt.Sprint(a) == fmt.Sprint(b) })}
				if diff := cmp.Diff(plan.Decide(world), plan.Decide(cached), equate...); diff != "" {
					t.Errorf("%s, Pod %s, at %v: decided (-on all +on what is kept):\n%s", atName, podName, now, diff)
				}
				if diff := cmp.Diff(plan.CleanUp(world, pod), plan.CleanUp(cached, keptPod), equate...); diff != "" {
					t.Errorf("%s, Pod %s, at %v: cleaned up (-on all +on what is kept):\n%s", atName, podName, now, diff)
				}
				state, overdue := plan.StateOf(at, nil, now)
				if keptState, keptOverdue := plan.StateOf(keptAt, nil, now); state != keptState || overdue != keptOverdue {
					t.Errorf("%s, at %v: state %s for %v, of what is kept %s for %v", atName, now, state, overdue, keptState, keptOverdue)
				}
			}
		}
	}
}

// TestCaches checks that the caches of a controller, and the statuses that it has
// written, only contain what it needs.
func TestCaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kubeClient, cnatClient := kubefake.NewClientset(), cnatfake.NewSimpleClientset()
		c := standBy(t, kubeClient, cnatClient, clock.RealClock{})
		t.Cleanup(c.queue.ShutDown)
		t.Cleanup(func() { writeEvents(c) })
		long := strings.Repeat("echo YAY;", 100)
		at := newAt(func(at *v1alpha1.At) {
			at.Spec.Schedule, at.Spec.Command = time.Now().Add(time.Hour).Format(time.RFC3339), long
		})
		if _, err := cnatClient.CnatV1alpha1().Ats(name.Namespace).Create(t.Context(), at, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := kubeClient.CoreV1().Pods(name.Namespace).Create(t.Context(), newPod(corev1.PodPending), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		cached := c.cache.At(name)
		if cached == nil || cached.Spec.Command != "" {
			t.Fatalf("the cache holds %+v, want an At without its long command", cached)
		}
		pods := c.cache.PodsOf(name)
		if len(pods) != 1 || len(pods[0].Spec.Containers[0].Command) > 0 {
			t.Errorf("the cache holds %+v, want a Pod without its command", pods)
		}
		c.cache.Written.Remember(newAt(newerVersion, func(at *v1alpha1.At) { at.Spec.Command = long }))
		if written := c.cache.Written.Latest(cached); written == cached || written.Spec.Command != "" {
			t.Errorf("the controller remembers %+v, want an At without its long command", written)
		}
	})
}
