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
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	informers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/queue"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/sorted"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/preflight"
	"programming-kubernetes.info/cnat-controller/pkg/steps"
	"programming-kubernetes.info/cnat-controller/pkg/steps/nodecache"
)

const controllerName = "cnat-controller"

// Controller runs the command of each At once, at its scheduled time, in a Pod that the
// At owns.
type Controller struct {
	synced []cache.DoneChecker

	queue     *queue.Queue
	preflight *preflight.Preflight // nil: off
	checks    *preflight.Checks    // of Ats
	steps     *steps.Steps
}

// NewController returns a controller that uses the given informers and Freezes. The caller
// starts those of Pods, Ats, CronAts and Freezes; the controller starts that of nodes when an At
// needs it. The controller is on standby until Run is called. The informer of Pods must select
// exactly those with the label v1alpha1.LabelAtUID. There are no preflights if their clients are
// nil. defaults are for the Pod of an At without spec.template.
func NewController(
	ctx context.Context,
	kubeClient kubernetes.Interface,
	cnatClient clientset.Interface,
	podInformer coreinformers.TypedPodInformer,
	nodeInformer coreinformers.TypedNodeInformer,
	atInformer informers.TypedAtInformer,
	cronAtInformer informers.CronAtInformer,
	freezes steps.Freezes,
	preflights *preflight.Clients,
	recorder record.EventRecorder,
	defaults plan.Defaults,
	wallClock clock.WithTicker,
) (*Controller, error) {
	known, err := steps.NewCache(atInformer, podInformer)
	if err != nil {
		return nil, err
	}
	c := &Controller{}
	c.queue = queue.NewRetrying("ats", c.dueSince, wallClock)
	c.queue.Standby.Store(true)
	logger := klog.FromContext(ctx)
	atHandler, err := atInformer.TypedInformer().AddTypedEventHandler(informers.AtDetailedHandlerFuncs{
		AddFunc:    func(at *v1alpha1.At, isInInitialList bool) { c.addAt(logger, at, isInInitialList) },
		UpdateFunc: func(old, cur *v1alpha1.At) { c.updateAt(logger, old, cur) },
		DeleteFunc: func(at informers.DeletedAt) { c.deleteAt(logger, at) },
	})
	if err != nil {
		return nil, fmt.Errorf("add the event handler for Ats: %w", err)
	}
	podHandler, err := podInformer.TypedInformer().AddTypedEventHandler(queue.Handlers(c.enqueueOwner))
	if err != nil {
		return nil, fmt.Errorf("add the event handler for Pods: %w", err)
	}
	nodes, err := nodecache.New(kubeClient, nodeInformer, func(node string) { c.enqueueAts(c.steps.OnNode(node)) })
	if err != nil {
		return nil, err
	}
	if preflights != nil {
		c.preflight = preflight.New(*preflights, nodes.List, defaults, wallClock)
		c.checks = c.preflight.Ats(known.Ats)
		c.checks.Notify(c.queue.Add)
	}
	c.steps = steps.New(known, kubeClient, cnatClient, nodes, cronAtInformer, freezes, recorder, wallClock, defaults)
	freezes.Notify(c.enqueueFrozen)
	c.synced = []cache.DoneChecker{atHandler.HasSyncedChecker(), podHandler.HasSyncedChecker(), freezes}
	return c, nil
}

// Run waits until the caches have synced, works with the given number of workers until
// ctx is done, and returns when the running syncs have finished. Call it only once.
//
// After standby, the caches may lag behind the API server. That is as safe as a watch
// that lags while the controller works: a Pod is created only after the At was read from
// the API server, or while the watch reports the writes of this process. The name of the
// Pod is a lock, and every other write has a precondition. Waiting for the caches to catch
// up could take a minute, because an idle watch reports the current resourceVersion only
// that often.
func (c *Controller) Run(ctx context.Context, workers int) {
	defer utilruntime.HandleCrashWithContext(ctx)
	logger := klog.FromContext(ctx)
	logger.Info("Starting controller", "workers", workers)
	start := c.steps.Clock.Now()
	defer c.queue.ShutDown()
	if !cache.WaitFor(klog.NewContext(ctx, logger.V(2)), "caches to sync", c.synced...) {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer logger.Info("Shutting down controller")
	wg.Go(func() { c.preflight.Run(ctx) })
	wg.Go(func() { c.steps.Nodes.Run(ctx) })
	c.queue.Run(ctx, workers, "at", c.syncHandler, func(isFirst bool) { c.sweep(isFirst, start) })
}

// syncHandler observes the world of an At, and takes the next step: one for its run, and one for
// each Pod that the run no longer needs. It returns the delay after which to sync the At again
// (0 if that is not necessary), or an error if a step must be retried with back-off.
func (c *Controller) syncHandler(ctx context.Context, name cache.ObjectName) (time.Duration, error) {
	world, err := c.steps.Observe(ctx, name)
	if err != nil {
		return 0, err
	}
	pods := world.Pods
	delay, err := c.steps.Step(ctx, name, world, c.decide)
	for _, pod := range pods {
		podDelay, podErr := c.steps.Step(ctx, name, world, func(w plan.World) plan.Decision { return plan.CleanUp(w, pod) })
		if podDelay > 0 && (delay == 0 || podDelay < delay) {
			delay = podDelay
		}
		// Blocked Ats and Pods are reported elsewhere. Prefer other errors for the log.
		if err == nil || errors.Is(err, answer.ErrBlocked) && podErr != nil {
			err = podErr
		}
	}
	if answer.ExceedsQuota(err, "pods") {
		c.checks.Yield(name.Namespace)
	}
	return delay, err
}

// decide decides with what preflights know, and asks for one if that is needed.
func (c *Controller) decide(world plan.World) plan.Decision {
	world.Rehearses = c.checks.Rehearses()
	if world.At != nil {
		world.Forecast = c.checks.Forecast(world.At, plan.RehearsedOf(&world.At.Status))
	}
	decision := plan.Decide(world)
	if decision.Preflight {
		c.checks.Add(cache.MetaObjectToName(world.At))
	}
	return decision
}

func (c *Controller) addAt(logger klog.Logger, at *v1alpha1.At, isInInitialList bool) {
	if !isInInitialList { // The initial list may be very long.
		due, _ := plan.Instant(&at.Spec) // not the schedule itself, which may have any text
		logger.V(2).Info("At added", "at", klog.KObj(at), "due", due)
	}
	c.queue.Add(cache.MetaObjectToName(at))
	c.enqueueParent(at)
}

// updateAt enqueues an At that has changed. It ignores a status that this process has written: the
// sync that wrote it has said when the next sync is. It also ignores each status of an At that is
// being retried, because its message may change with each refusal of the Pod.
func (c *Controller) updateAt(logger klog.Logger, old, cur *v1alpha1.At) {
	isOwn := c.steps.Written.Seen(cur)
	if old.UID != cur.UID {
		// The informer missed that the old one was deleted before a new one of that name was
		// created.
		c.deleteAt(logger, informers.DeletedAt{OptionalObj: old})
		c.addAt(logger, cur, false)
		return
	}
	if old.Generation != cur.Generation {
		due, _ := plan.Instant(&cur.Spec)
		logger.V(2).Info("At changed", "at", klog.KObj(cur), "generation", cur.Generation, "due", due, "suspend", ptr.Deref(cur.Spec.Suspend, false))
	}
	name := cache.MetaObjectToName(cur)
	isNews := old.ResourceVersion != cur.ResourceVersion && !isOwn && !c.queue.IsRetried(name)
	if isNews || old.Generation != cur.Generation || plan.ParentName(old) != plan.ParentName(cur) || plan.HasLostOwner(old) != plan.HasLostOwner(cur) || old.DeletionTimestamp.IsZero() != cur.DeletionTimestamp.IsZero() {
		c.queue.Add(name)
	}
	if plan.IsNewRequest(old, cur) {
		c.checks.Add(name)
	}
	if plan.ParentName(old) != plan.ParentName(cur) {
		c.enqueueParent(old)
	}
	if plan.ConcernsParent(old, cur) {
		c.enqueueParent(cur)
	}
	if plan.ConcernsChildren(old, cur) {
		c.enqueueAts(c.steps.ChildrenOf(name))
	}
}

func (c *Controller) deleteAt(logger klog.Logger, at informers.DeletedAt) {
	logger.V(2).Info("At deleted", "at", klog.KRef(at.GetObjectName().Parts()))
	// An At of that name may already have been created again.
	c.steps.Failures.Forget(at.GetObjectName())
	if at.OptionalObj != nil {
		c.steps.Written.Forget(at.OptionalObj.UID)
		c.enqueueParent(at.OptionalObj)
	}
	c.queue.Add(at.GetObjectName())
	c.enqueueAts(c.steps.ChildrenOf(at.GetObjectName()))
}

// childrenPeriod is how long changes of an At's children are collected before the At is
// synced: with a thousand nodes, each status write covers many of them. Job does the same
// with its Pods.
const childrenPeriod = 200 * time.Millisecond

// enqueueParent enqueues the parent of an At, if there is one.
func (c *Controller) enqueueParent(child *v1alpha1.At) {
	if parent := plan.ParentName(child); parent != "" {
		c.queue.AddAfter(cache.NewObjectName(child.Namespace, parent), childrenPeriod)
	}
}

// enqueueFrozen enqueues what a Freeze holds, after a change of Freezes. What one of them begins to
// hold notices that when it is due.
func (c *Controller) enqueueFrozen() {
	c.enqueueAts(c.ats(plan.IsFrozen))
}

// ats returns the Ats in the cache that are wanted.
func (c *Controller) ats(wanted func(*v1alpha1.At) bool) []*v1alpha1.At {
	ats, _ := c.steps.Ats.List(labels.Everything()) // Reading from a cache cannot fail.
	return sorted.ByName(slices.DeleteFunc(ats, func(at *v1alpha1.At) bool { return !wanted(at) }))
}

func (c *Controller) enqueueAts(ats []*v1alpha1.At) {
	for _, at := range ats {
		c.queue.Add(cache.MetaObjectToName(at))
	}
}

// enqueueOwner enqueues the At that a Pod belongs to, by name. The sync compares the UID:
// a Pod of an earlier At with that name matters too, because the current At waits until
// it is gone.
func (c *Controller) enqueueOwner(pod *corev1.Pod) {
	if name := plan.AtName(pod); name != "" {
		c.queue.Add(cache.NewObjectName(pod.Namespace, name))
	}
}

// sweep enqueues the Ats that have a step to take, or will have one soon. Most steps follow an
// event. This finds those that are left from before start, when the controller started, and those
// for which time must pass.
func (c *Controller) sweep(isFirst bool, start time.Time) {
	mayHaveStep := func(at *v1alpha1.At) bool { return isFirst || !plan.IsFarOff(at, c.steps.Clock.Now(), queue.Horizon) }
	for _, at := range c.ats(mayHaveStep) {
		c.enqueueStep(at, isFirst && plan.WantsForecastAtStart(at, start, c.steps.Clock.Now()))
	}
	for _, pod := range c.steps.Orphans() {
		c.enqueueOwner(pod)
	}
}

// enqueueStep enqueues an At for its next step, unless that is beyond queue.Horizon. With hasStep,
// that is now.
func (c *Controller) enqueueStep(at *v1alpha1.At, hasStep bool) {
	name := cache.MetaObjectToName(at)
	world := c.steps.World(name)
	world.Rehearses = c.checks.Rehearses()
	c.steps.ObserveNow(world)
	decision := plan.Decide(*world)
	hasStep = hasStep || decision.Action != nil || decision.Status != nil || decision.Retry != nil ||
		slices.ContainsFunc(world.Pods, func(pod *corev1.Pod) bool { return plan.CleanUp(*world, pod).Action != nil })
	c.queue.AddStep(name, hasStep, decision.Delay)
}

// dueSince returns the time of an At that is due and has no Pod yet, or zero: these go first in the
// queue.
func (c *Controller) dueSince(name cache.ObjectName) time.Time {
	at := c.steps.At(name)
	if at == nil || len(c.steps.PodsOf(name)) > 0 {
		return time.Time{}
	}
	if state, _ := plan.StateOf(at, c.steps.ParentOf(at), c.steps.Clock.Now()); state != plan.StateDue && state != plan.StateFrozen {
		return time.Time{}
	}
	due, _ := plan.Instant(&at.Spec)
	return due
}

// HasSynced returns true once the caches have synced.
func (c *Controller) HasSynced() bool {
	return !slices.ContainsFunc(c.synced, func(synced cache.DoneChecker) bool { return !cache.IsDone(synced) })
}
