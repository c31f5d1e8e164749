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
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
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
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	k8smetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/queue"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/metrics/ats"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// TestSyncHandler takes all steps of a sync. The tests of pkg/plan cover the decisions, those
// of pkg/steps the single steps.
func TestSyncHandler(t *testing.T) {
	const (
		lost     = "Pod example-at-pod was deleted before the controller saw how it ended; the command will not run again."
		conflict = "Pod example-at-pod already exists and does not belong to this At: delete that Pod, or give the At another name."
		tooLate  = "It did not run: it could not start within spec.startingDeadlineSeconds (30) of the scheduled time."
		complete = "The command ended with exit code 0."
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
		"the At is gone": {world: world{}, now: due},
		"not due yet":    {world: world{ats: []*v1alpha1.At{newAt()}}, now: due.Add(-10 * time.Second), wantDelay: 10 * time.Second},
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
			wantDelay:  20 * time.Second,
			wantEvents: []string{"Normal SuccessfulCreate Created Pod example-at-pod"},
		},
		"due, an unrelated Pod has the name": {
			world: world{ats: []*v1alpha1.At{newAt()}, livePods: []*corev1.Pod{newPod(corev1.PodSucceeded, noOwner)}}, now: due,
			wantKube:   []clienttesting.Action{createPod, getPod},
			wantCnat:   []clienttesting.Action{getAt, writeStatus(newAt(blocked(v1alpha1.ReasonPodNameConflict, conflict)))},
			wantEvents: []string{"Warning PodNameConflict " + conflict},
			wantErr:    "does not belong to this At",
		},
		"the Pod is seen": {
			world: world{ats: []*v1alpha1.At{newAt()}, cachedPods: []*corev1.Pod{newPod(corev1.PodPending)}}, now: due,
			wantCnat:   []clienttesting.Action{writeStatus(newAt(running))},
			wantDelay:  20 * time.Second,
			wantEvents: []string{"Normal SuccessfulCreate Created Pod example-at-pod"},
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
		"the At is deleted before the end is written": {
			world: world{ats: []*v1alpha1.At{newAt(running)}, cachedPods: []*corev1.Pod{newPod(corev1.PodSucceeded)}}, now: due.Add(time.Minute),
			faults: map[string]error{"patch ats": apierrors.NewNotFound(atsResource.GroupResource(), name.Name)},
			wantCnat: []clienttesting.Action{writeStatus(newAt(running,
				ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, complete, due.Add(time.Minute)),
				func(at *v1alpha1.At) { at.Status.Pod.Phase = corev1.PodSucceeded },
			)), getAt},
		},
		"the recorded Pod is missing in the cache, but exists": {
			world: world{ats: []*v1alpha1.At{newAt(running)}, livePods: []*corev1.Pod{newPod(corev1.PodPending)}}, now: due,
			wantKube:  []clienttesting.Action{getPod},
			wantDelay: 20 * time.Second,
		},
		"the recorded Pod exists, but the cache has that of an earlier At": {
			world: world{
				ats:        []*v1alpha1.At{newAt(running)},
				cachedPods: []*corev1.Pod{newPod(corev1.PodSucceeded, earlier, released)},
				livePods:   []*corev1.Pod{newPod(corev1.PodPending)},
			}, now: due,
			wantKube:  []clienttesting.Action{getPod},
			wantDelay: 20 * time.Second,
		},
		"stale cache: the At is done and its Pod gone": {
			world: world{ats: []*v1alpha1.At{newAt()}}, now: due,
			written: newAt(running, ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, complete, due), newerVersion),
		},
		"stale cache: RUNNING is already written": {
			world: world{ats: []*v1alpha1.At{newAt()}, cachedPods: []*corev1.Pod{newPod(corev1.PodPending)}}, now: due,
			written:   newAt(running, newerVersion),
			wantDelay: 20 * time.Second,
		},
		"beyond the starting deadline, but the Pod exists, which is not in the cache": {
			world: world{ats: []*v1alpha1.At{newAt(withShortDeadline)}, livePods: []*corev1.Pod{newPod(corev1.PodPending)}}, now: due.Add(15 * time.Second),
			wantKube:   []clienttesting.Action{getPod},
			wantCnat:   []clienttesting.Action{writeStatus(newAt(withShortDeadline, running))},
			wantDelay:  5 * time.Second,
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
		"due, but another controller has run it, and its Pod is gone": {
			world: world{
				ats:     []*v1alpha1.At{newAt()},
				liveAts: []*v1alpha1.At{newAt(running, ended(v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, complete, due))},
			}, now: due,
			wantCnat: []clienttesting.Action{getAt},
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
			got := []time.Duration{next(t, f), next(t, f)}
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
			next(t, f)
			if got := next(t, f); got < 200*time.Millisecond || got > 300*time.Millisecond {
				t.Errorf("a wait of %v, want from 200 to 300 ms", got)
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
	go f.sweep(t.Context(), f.clock.Now())
	synctest.Wait()
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
			queue.SyncDuration.WithLabelValues(queue.ResultSuccess), queue.SyncDuration.WithLabelValues(queue.ResultBlocked),
			queue.SyncDuration.WithLabelValues(queue.ResultError), queue.SyncDuration.WithLabelValues(queue.ResultPanic),
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
		"not due yet": {world: world{ats: []*v1alpha1.At{newAt()}}, now: due.Add(-time.Second), want: []float64{0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}},
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
		"lost": {world: world{ats: []*v1alpha1.At{newAt(running)}}, now: due, want: []float64{0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0}},
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
		"a panic": {world: world{ats: []*v1alpha1.At{newAt()}}, now: due, panics: true, want: []float64{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}},
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

// registerMetrics registers the metrics once, even if the tests run several times:
// before, nothing is counted.
var registerMetrics = sync.OnceFunc(func() {
	metrics.Register()
	empty := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	ats.Register(ats.Objects{Ats: listers.NewAtLister(empty), CronAts: listers.NewCronAtLister(empty), Working: func() bool { return false }}, clock.RealClock{}, 1)
})
