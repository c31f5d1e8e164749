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

// Package steps observes the world, and takes the steps that package plan decides on: it calls
// the API server.
//
// Observe and Step are what a sync of an At is made of. The files group the requests by
// object: at.go, the At itself; pod.go, its Pods; children.go, the Ats of nodes; restart.go, the
// workload of spec.restart.
package steps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/freeze"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	informers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/steps/nodecache"
	"programming-kubernetes.info/cnat-controller/pkg/steps/podevents"
	"programming-kubernetes.info/cnat-controller/pkg/steps/workload"
)

// Steps takes the steps of all Ats. Several workers may use it concurrently.
type Steps struct {
	*Cache
	KubeClient kubernetes.Interface
	CnatClient clientset.Interface
	Nodes      *nodecache.Cache
	PodEvents  *podevents.Reader
	// Targets has the workloads that were read recently.
	Targets  *workload.Targets
	Recorder record.EventRecorder
	Clock    clock.PassiveClock
	// Freezes returns those that the controller obeys. CronAts has the CronAt of an At, because a
	// Freeze may select that by its labels.
	Freezes func() (*freeze.Set, error)
	CronAts informers.CronAtInformer
	// Failures counts consecutive failures to create a Pod. It is not the counter of the queue: no other
	// failure gives a creation more time, in which it could come late.
	Failures workqueue.TypedRateLimiter[cache.ObjectName]
	// Defaults are those of the Pod of an At without spec.template.
	Defaults plan.Defaults
	// Parallel is the number of requests for one At at the same time.
	Parallel int
}

// parallel is the number of requests for one At at the same time, such as those that create the
// Ats of its nodes.
const parallel = 16

// Freezes are those that a controller obeys, such as a freezecache.Cache. The error of Set says that
// they are not known: nothing may start then. Notify makes changed be called after each change, once
// the controllers run.
type Freezes interface {
	cache.DoneChecker
	Set() (*freeze.Set, error)
	Notify(changed func())
}

// New returns Steps with the given cache.
func New(known *Cache, kubeClient kubernetes.Interface, cnatClient clientset.Interface, nodes *nodecache.Cache, cronAts informers.CronAtInformer, freezes Freezes, recorder record.EventRecorder, wallClock clock.Clock, defaults plan.Defaults) *Steps {
	return &Steps{
		Cache:      known,
		KubeClient: kubeClient,
		CnatClient: cnatClient,
		Nodes:      nodes,
		PodEvents:  podevents.NewReader(kubeClient.CoreV1(), wallClock),
		Targets:    workload.NewTargets(wallClock),
		Recorder:   recorder,
		Clock:      wallClock,
		Freezes:    freezes.Set,
		CronAts:    cronAts,
		Failures:   workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](0, 0),
		Defaults:   defaults,
		Parallel:   parallel,
	}
}

// Observe returns the World of the At with the given name, from the caches, with what no cache
// has.
func (s *Steps) Observe(ctx context.Context, name cache.ObjectName) (*plan.World, error) {
	asOf := s.Freshness.AsOf(s.Clock.Now()) // before reading from the cache
	world := s.World(name)
	world.Now = s.Clock.Now()
	world.AsOf, world.Failures = asOf, s.Failures.NumRequeues(name)
	if world.At == nil {
		// A creation may have failed after the At was deleted.
		s.Failures.Forget(name)
		return world, nil
	}
	if pod := plan.WantsPodEvent(*world); pod != nil {
		world.PodEvent = s.PodEvents.Newest(ctx, pod)
	}
	if plan.WantsTarget(*world) {
		if err := s.readTarget(ctx, world, true); err != nil {
			return world, err
		}
	}
	return world, s.observeNodes(ctx, world)
}

// ObserveNow adds to world what time it is and, if the At is due, which Freeze holds it. That must be
// known just before a decision: reading the At may have taken long.
func (s *Steps) ObserveNow(world *plan.World) {
	world.Now = s.Clock.Now()
	if world.Frozen, world.FreezesUnknown = nil, nil; world.At == nil || !plan.MayStartAt(world.At, world.Now) {
		return
	}
	set, err := s.Freezes()
	if world.FreezesUnknown = err; set.IsEmpty() {
		return
	}
	var makers []metav1.Object
	maker := world.At
	if world.Parent != nil {
		maker = world.Parent
		makers = append(makers, maker)
	}
	if owner := plan.Owner(maker, v1alpha1.CronAtKind); owner != nil {
		cronAt, err := s.CronAts.Lister().CronAts(maker.Namespace).Get(owner.Name)
		switch {
		case err == nil && cronAt.UID == owner.UID:
			makers = append(makers, cronAt)
		case !s.CronAts.Informer().HasSynced():
			world.FreezesUnknown = errCronAtsUnknown
			return
		}
	}
	world.Frozen = set.Holding(freeze.NewSubject(world.At, makers...), world.Now)
}

// errCronAtsUnknown is the answer to whether a Freeze holds the At of a CronAt while that is not known.
var errCronAtsUnknown = errors.New("the CronAts have not been listed yet: a Freeze may concern the one of this At")

// Delays until the next sync: atOnce if no event reports the step, and changeDelay if something
// has changed while it was read.
const (
	atOnce      = time.Nanosecond
	changeDelay = 100 * time.Millisecond
)

// maxReads is how often a sync reads: the At, and then the rest.
const maxReads = 2

// Step takes the step that decide returns for a world or, if the caches are not enough for it,
// for what the API server says. It returns the delay after which to decide again, 0 if that
// is not necessary, or an error if the step must be retried with back-off.
func (s *Steps) Step(ctx context.Context, name cache.ObjectName, world *plan.World, decide func(plan.World) plan.Decision) (time.Duration, error) {
	// What is decided from the At alone may need all the rest: a cache has no selector of nodes.
	for reads := 0; ; reads++ {
		decision := s.decideNow(ctx, world, decide)
		switch {
		case decision.Needs == plan.Cached:
			return s.act(ctx, name, world, decide, decision)
		case reads == maxReads:
			return changeDelay, nil
		}
		if err := s.read(ctx, name, world, decision.Needs); err != nil {
			return decision.Delay, err
		}
	}
}

func (s *Steps) decideNow(ctx context.Context, world *plan.World, decide func(plan.World) plan.Decision) plan.Decision {
	s.ObserveNow(world)
	decision := decide(*world)
	phase := v1alpha1.AtPhase("")
	if world.At != nil {
		phase = world.At.Status.Phase
	}
	klog.FromContext(ctx).V(4).Info("Decided", "phase", phase, "action", reflect.TypeOf(decision.Action), "writeStatus", decision.Status != nil, "delay", decision.Delay, "retry", decision.Retry, "live", world.Live, "needs", decision.Needs)
	return decision
}

// act carries out a decision. If the API server refuses the action, it writes what follows.
func (s *Steps) act(ctx context.Context, name cache.ObjectName, world *plan.World, decide func(plan.World) plan.Decision, decision plan.Decision) (time.Duration, error) {
	var err error
	switch action := decision.Action.(type) {
	case nil:
	case plan.CreatePod:
		decision = s.startPod(ctx, world, decision, action.Due)
		if decision.Retry == nil && world.HasPod() {
			return s.Step(ctx, name, world, decide)
		}
	case plan.CreateAts:
		decision = s.createAts(ctx, world, decision, action.Ats)
	case plan.RestartTarget:
		decision = s.restartTarget(ctx, world, action)
	case plan.ResumeAts:
		err = s.resumeAts(ctx, world, action.Ats)
	case plan.ReleaseAt:
		err = s.releaseAt(ctx, world.At)
	case plan.DeletePod:
		err = s.removePod(ctx, world.At, action, decision.Events)
	case plan.ReleasePod:
		err = s.releasePod(ctx, world.At, action.Pod)
	case plan.DeleteAt:
		err = s.removeAt(ctx, world.At)
	default:
		err = fmt.Errorf("unknown action %T", action)
	}
	if err != nil || decision.Status == nil {
		return decision.Delay, cmp.Or(err, decision.Retry)
	}
	return s.writeStatus(ctx, world.At, decision)
}

// writeStatus writes the decision's status and records its events. It returns the same as Step.
func (s *Steps) writeStatus(ctx context.Context, at *v1alpha1.At, decision plan.Decision) (time.Duration, error) {
	// The API server keeps metadata and spec.
	body := &v1alpha1.At{ObjectMeta: metav1.ObjectMeta{Name: at.Name, Namespace: at.Namespace, ResourceVersion: at.ResourceVersion}, Status: *decision.Status}
	updated, err := staleness.Send(s.Written, s.Freshness, s.Clock, at, func() (*v1alpha1.At, error) {
		return s.CnatClient.CnatV1alpha1().Ats(at.Namespace).UpdateStatus(ctx, body, metav1.UpdateOptions{})
	})
	switch {
	case answer.IsNotFound(err, at.Name):
		return 0, nil // Its deletion will be reported.
	case err != nil:
		return decision.Delay, fmt.Errorf("write the status: %w", err)
	case equality.Semantic.DeepEqual(&plan.KeepAt(updated).Status, &at.Status):
		// Others have written so much to the status that the cache does not keep all of ours: the next
		// sync would do the same.
		return decision.Delay, decision.Retry
	}
	klog.FromContext(ctx).V(2).Info("Wrote status", "phase", updated.Status.Phase, "reason", updated.Status.Reason)
	countEnds(at, decision.Status, decision.Events)
	s.record(updated, decision.Events)
	if decision.Retry != nil {
		return decision.Delay, decision.Retry
	}
	return atOnce, nil
}

// countEnds counts in the metrics the run and the attempt that ended with a status
// change. The last event is that of the end.
func countEnds(at *v1alpha1.At, after *v1alpha1.AtStatus, events []plan.Event) {
	before := &at.Status
	if after.Phase == v1alpha1.PhaseDone && before.Phase != v1alpha1.PhaseDone {
		metrics.Runs.Inc(at.Namespace, after.Reason)
	}
	if after.Failed > before.Failed || after.Reason == v1alpha1.ReasonCompleted && before.Phase != v1alpha1.PhaseDone && after.Pod != nil {
		metrics.Attempts.Inc(at.Namespace, events[len(events)-1].Reason)
	}
}

func (s *Steps) record(at *v1alpha1.At, events []plan.Event) {
	for _, event := range events {
		s.Recorder.Event(at, event.Type, event.Reason, event.Message)
	}
}

// LeavePod releases the Pod with the given name, if it has the finalizer: see plan.Leave.
func (s *Steps) LeavePod(ctx context.Context, name cache.ObjectName) error {
	pod, err := s.KubeClient.CoreV1().Pods(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	switch {
	case answer.IsNotFound(err, name.Name):
		return nil
	case err != nil:
		return fmt.Errorf("read Pod %s: %w", name, err)
	case !plan.IsTracked(pod):
		return nil
	}
	world := &plan.World{Pods: []*corev1.Pod{plan.KeepPod(pod)}}
	for range 2 { // The first write may be that of the status.
		if at := plan.AtName(pod); at != "" {
			if world.At, err = s.getAt(ctx, name.Namespace, at); err != nil {
				return err
			}
		}
		world.Now = s.Clock.Now()
		decision := plan.Leave(*world)
		if release, ok := decision.Action.(plan.ReleasePod); ok {
			return s.releasePod(ctx, world.At, release.Pod)
		}
		if decision.Status == nil {
			break
		}
		if _, err := s.writeStatus(ctx, world.At, decision); err != nil {
			return err
		}
	}
	return fmt.Errorf("the end of Pod %s is not recorded yet", name)
}

// LeaveAt removes the finalizer from the child with the given name, if it has one. Its parent
// does not create it again: before the parent has created all of its children none of them
// runs, and after that the parent counts a missing one as failed.
func (s *Steps) LeaveAt(ctx context.Context, name cache.ObjectName) error {
	at, err := s.getAt(ctx, name.Namespace, name.Name)
	if err != nil || at == nil || !plan.IsTracked(at) {
		return err
	}
	return s.releaseAt(ctx, at)
}
