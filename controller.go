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
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/fairqueue"
	"programming-kubernetes.info/cnat-controller/pkg/freshness"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	informers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions/cnat/v1alpha1"
	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/nodecache"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/preflight"
	"programming-kubernetes.info/cnat-controller/pkg/ratelimit"
	"programming-kubernetes.info/cnat-controller/pkg/steps"
	"programming-kubernetes.info/cnat-controller/pkg/wallclock"
	"programming-kubernetes.info/cnat-controller/pkg/workload"
	"programming-kubernetes.info/cnat-controller/pkg/written"
)

const controllerName = "cnat-controller"

// Queue names, for their metrics.
const (
	queueName        = "ats"
	blockedQueueName = "blocked_ats"
)

// Indexes of the caches: Pods by the At that they belong to, Ats by their parent, and Ats
// that have not ended by the node in spec.node.
const (
	byAt     = "at"
	byParent = "parent"
	byNode   = "node"
)

// childrenPeriod is how long changes of an At's children are collected before the At is
// synced: with a thousand nodes, each status write covers many of them. Job does the same
// with its Pods.
const childrenPeriod = 200 * time.Millisecond

// A failed sync is retried after minErrorBackoff. The back-off doubles with each failure,
// up to maxErrorBackoff.
const (
	minErrorBackoff = 200 * time.Millisecond
	maxErrorBackoff = time.Minute
)

// maxSteps is the number of steps of a sync after which something must be wrong.
const maxSteps = 10

// The queue holds only what must be synced within horizon. The rest is in the cache, which
// is searched each searchPeriod: an entry of the queue needs memory, too, and that of a
// deleted At stays until its time. searchPeriod is not an hour, so that searches do not
// always coincide with bursts on the hour.
const (
	searchPeriod = 50 * time.Minute
	horizon      = time.Hour
)

// startTime is the time after the start at which an idle controller has usually synced and
// checked all Ats that need it.
const startTime = 20 * time.Second

// finishTimeout is how long running syncs may take when the controller is stopped. A
// leader that cannot renew its lease stops at most 8.5 s after the last renewal, and keeps
// the lease while syncs run. Another may take over after 12 s: finishTimeout must be less
// than the difference.
const finishTimeout = 3 * time.Second

// Controller runs the command of each At once, at its scheduled time, in a Pod that the
// At owns.
type Controller struct {
	atLister   listers.AtLister
	atIndexer  cache.Indexer
	podIndexer cache.Indexer
	synced     []cache.DoneChecker
	nodes      *nodecache.Cache

	// working is false while the controller is on standby: its informers fill the caches,
	// but nothing is enqueued.
	working atomic.Bool
	queue   *fairqueue.Workqueue
	// blocked holds the Ats that wait for their turn to be added to queue.
	blocked   *fairqueue.Blocked
	preflight *preflight.Preflight // nil: off
	steps     *steps.Steps
	clock     clock.WithTicker

	// written has the statuses that this process has written and that are not in the cache
	// yet. A decision based on an older status could run a command again.
	written *written.Objects[*v1alpha1.At]
	// freshness tells how old the Ats in the cache can be.
	freshness *freshness.Tracker
}

// NewController returns a controller that uses the given informers. The caller starts
// those of Pods and Ats; the controller starts that of nodes when an At needs it. The
// controller is on standby until Run is called. The informer of Pods must select exactly
// those with the label v1alpha1.LabelAtUID. defaults are for the Pod of an At without
// spec.template.
func NewController(
	ctx context.Context,
	kubeClient kubernetes.Interface,
	cnatClient clientset.Interface,
	podInformer coreinformers.TypedPodInformer,
	nodeInformer coreinformers.TypedNodeInformer,
	atInformer informers.TypedAtInformer,
	recorder record.EventRecorder,
	defaults plan.Defaults,
	wallClock clock.WithTicker,
) (*Controller, error) {
	c := &Controller{
		atLister:   atInformer.Lister(),
		atIndexer:  atInformer.Informer().GetIndexer(),
		podIndexer: podInformer.Informer().GetIndexer(),
		blocked:    fairqueue.NewBlocked(blockedQueueName, wallClock),
		clock:      wallClock,
	}
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](minErrorBackoff, maxErrorBackoff)
	// What is due goes first. What only needs status RUNNING goes last: meanwhile, the Pod may
	// end, which saves a write.
	order := fairqueue.NewPrioritized(c.isDue, fairqueue.NewPrioritized(c.isNotStarting, fairqueue.New(), wallClock), wallClock)
	c.queue = fairqueue.NewRateLimiting(queueName, order, limiter, wallClock)
	c.freshness = freshness.New(c.atIndexer.LastStoreSyncResourceVersion)
	c.written = written.New(func(namespace, name string) (*v1alpha1.At, error) { return c.atLister.Ats(namespace).Get(name) }, plan.KeepAt)

	if err := errors.Join(atInformer.Informer().SetTransform(keep), podInformer.Informer().SetTransform(keep)); err != nil {
		return nil, fmt.Errorf("set the transform of the informers: %w", err)
	}
	err := errors.Join(
		podInformer.Informer().AddIndexers(cache.Indexers{byAt: func(obj any) ([]string, error) {
			pod := obj.(*corev1.Pod)
			return []string{cache.NewObjectName(pod.Namespace, plan.AtName(pod)).String()}, nil
		}}),
		atInformer.Informer().AddIndexers(cache.Indexers{
			byParent: func(obj any) ([]string, error) {
				at := obj.(*v1alpha1.At)
				if parent := plan.ParentName(at); parent != "" {
					return []string{cache.NewObjectName(at.Namespace, parent).String()}, nil
				}
				return nil, nil
			},
			byNode: func(obj any) ([]string, error) {
				if at := obj.(*v1alpha1.At); at.Spec.Node != "" && at.Status.Phase != v1alpha1.PhaseDone {
					return []string{at.Spec.Node}, nil
				}
				return nil, nil
			},
		}))
	if err != nil {
		return nil, fmt.Errorf("add the indexes of the informers: %w", err)
	}
	logger := klog.FromContext(ctx)
	atHandler, err := atInformer.TypedInformer().AddTypedEventHandler(informers.AtDetailedHandlerFuncs{
		AddFunc:    func(at *v1alpha1.At, isInInitialList bool) { c.addAt(logger, at, isInInitialList) },
		UpdateFunc: func(old, cur *v1alpha1.At) { c.updateAt(logger, old, cur) },
		DeleteFunc: func(at informers.DeletedAt) { c.deleteAt(logger, at) },
	})
	if err != nil {
		return nil, fmt.Errorf("add the event handler for Ats: %w", err)
	}
	podHandler, err := podInformer.TypedInformer().AddTypedEventHandler(coreinformers.PodHandlerFuncs{
		AddFunc:    c.addPod,
		UpdateFunc: c.updatePod,
		DeleteFunc: c.deletePod,
	})
	if err != nil {
		return nil, fmt.Errorf("add the event handler for Pods: %w", err)
	}
	if c.nodes, err = nodecache.New(kubeClient, nodeInformer, keep, c.enqueueOnNode); err != nil {
		return nil, err
	}
	c.steps = &steps.Steps{
		KubeClient:   kubeClient,
		CnatClient:   cnatClient,
		Nodes:        c.nodes,
		Targets:      workload.NewTargets(wallClock),
		Recorder:     recorder,
		Clock:        wallClock,
		Written:      c.written,
		Freshness:    c.freshness,
		AddRelatives: c.addRelatives,
		Failures:     workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](0, 0),
		Defaults:     defaults,
	}
	c.synced = []cache.DoneChecker{atHandler.HasSyncedChecker(), podHandler.HasSyncedChecker()}
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
	var wg sync.WaitGroup
	syncCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer func() {
		logger.Info("Shutting down controller")
		c.queue.ShutDown()
		c.blocked.ShutDown()
		defer time.AfterFunc(finishTimeout, cancel).Stop()
		wg.Wait()
	}()

	if !cache.WaitFor(klog.NewContext(ctx, logger.V(2)), "caches to sync", c.synced...) {
		return
	}
	watchClock := wallclock.NewWatch(c.clock)
	c.working.Store(true)
	for range c.queue.Start(workers) {
		wg.Go(func() {
			for ctx.Err() == nil && c.processNextWorkItem(syncCtx) {
			}
		})
	}
	wg.Go(func() { c.blocked.Run(ctx, c.queue.Add) })
	wg.Go(func() { c.preflight.Run(ctx, c.queue.Add) })
	wg.Go(func() { watchClock(ctx, c.enqueueAll) })
	wg.Go(func() { c.nodes.Run(ctx) })
	c.enqueueAll()
	wg.Go(func() { c.search(ctx) })
	// An idle controller allocates nothing, so garbage from the first list would stay for
	// minutes.
	debug.FreeOSMemory()
	<-ctx.Done()
}

// enqueueAll enqueues the Ats in the cache, and deleted Ats that still have Pods in the
// cache. Ats that are due go first, because there may be very many others. Ats that only
// need to wait are not synced immediately: each of them would have a preflight, and the
// maps of a queue never shrink.
func (c *Controller) enqueueAll() {
	ats, _ := c.atLister.List(labels.Everything()) // Reading from a cache cannot fail.
	var later []*v1alpha1.At
	for _, at := range ats {
		if state, _ := plan.StateOf(at, c.parentOf(at), c.clock.Now()); state == plan.StateDue || state == plan.StateRunning {
			c.queue.Add(cache.MetaObjectToName(at))
		} else {
			later = append(later, at)
		}
	}
	for _, at := range later {
		name := cache.MetaObjectToName(at)
		world := c.cachedWorld(at)
		decision := plan.Decide(world)
		switch {
		case len(world.Pods) > 0 || decision.Action != nil || decision.Status != nil || plan.WantsForecastAtStart(at, world.Now):
			c.queue.Add(name)
		default:
			c.enqueueAfter(name, decision.Delay)
		}
	}
	c.enqueueDeleted()
}

// enqueueDeleted enqueues the deleted Ats that still have Pods in the cache.
func (c *Controller) enqueueDeleted() {
	for _, obj := range c.podIndexer.List() {
		pod := obj.(*corev1.Pod)
		if _, err := c.atLister.Ats(pod.Namespace).Get(plan.AtName(pod)); err != nil {
			c.enqueueOwner(pod)
		}
	}
}

// enqueue enqueues an At unless the controller is on standby. In that case, Run will
// enqueue everything that is in the caches by then: a handler runs after the cache has
// changed.
func (c *Controller) enqueue(name cache.ObjectName) {
	if c.working.Load() {
		c.queue.Add(name)
	}
}

// cachedWorld returns what the cache knows about an At.
func (c *Controller) cachedWorld(at *v1alpha1.At) plan.World {
	return plan.World{At: at, Pods: c.podsOf(cache.MetaObjectToName(at)), Parent: c.parentOf(at), Now: c.clock.Now()}
}

// search enqueues the Ats whose delay was beyond the horizon and is not any more, until
// ctx is done. It also enqueues those with a step to take now, in case a sync has
// ended too early. It leaves all others alone: they wait for their turn, or for an event.
func (c *Controller) search(ctx context.Context) {
	for period := startTime; ; period = searchPeriod {
		select {
		case <-ctx.Done():
			return
		case <-c.clock.After(period):
		}
		ats, _ := c.atLister.List(labels.Everything())
		for _, at := range ats {
			if ctx.Err() != nil {
				return
			}
			name, world := cache.MetaObjectToName(at), c.cachedWorld(at)
			decision := plan.Decide(world)
			hasStep := decision.Action != nil || decision.Status != nil ||
				slices.ContainsFunc(world.Pods, func(pod *corev1.Pod) bool { return plan.CleanUp(world, pod).Action != nil })
			switch {
			case hasStep && (c.queue.NumRequeues(name) > 0 || c.blocked.Retries(name) > 0):
				// It waits for its turn. If very many others do, too, its deadline may come first.
				c.enqueueAfter(name, cmp.Or(decision.Delay, plan.DelayUntilDeadline(at, world.Now)))
			case hasStep:
				c.queue.Add(name)
			default:
				c.enqueueAfter(name, decision.Delay)
			}
		}
		c.enqueueDeleted()
		if !c.IsBusy() {
			debug.FreeOSMemory() // the garbage of the start, or of the search
		}
	}
}

// enqueueAfter enqueues an At after a delay; 0 means never. If the delay is beyond the
// horizon, search does it later.
func (c *Controller) enqueueAfter(name cache.ObjectName, delay time.Duration) {
	if 0 < delay && delay <= horizon {
		c.queue.AddAfter(name, delay)
	}
}

// IsBusy returns true while Ats wait for a worker, and not only for others of their namespace.
func (c *Controller) IsBusy() bool { return c.queue.IsBusy() }

// isDue reports whether an At is due and does not have a Pod yet.
func (c *Controller) isDue(name cache.ObjectName) bool {
	at, err := c.atLister.Ats(name.Namespace).Get(name.Name)
	if err != nil { // The only possible error: it is not in the cache.
		return false
	}
	state, _ := plan.StateOf(at, c.parentOf(at), c.clock.Now())
	return state == plan.StateDue && len(c.podsOf(name)) == 0
}

// isNotStarting reports whether an At needs more than status RUNNING.
func (c *Controller) isNotStarting(name cache.ObjectName) bool {
	at, err := c.atLister.Ats(name.Namespace).Get(name.Name)
	return err != nil || !plan.IsStarting(c.written.Latest(at), c.podsOf(name))
}

// HasSynced returns true once the caches have synced.
func (c *Controller) HasSynced() bool {
	return !slices.ContainsFunc(c.synced, func(synced cache.DoneChecker) bool { return !cache.IsDone(synced) })
}

func (c *Controller) addAt(logger klog.Logger, at *v1alpha1.At, isInInitialList bool) {
	if !isInInitialList { // The initial list may be very long.
		logger.V(2).Info("At added", "at", klog.KObj(at), "schedule", at.Spec.Schedule, "timeZone", ptr.Deref(at.Spec.TimeZone, ""))
	}
	c.enqueue(cache.MetaObjectToName(at))
	c.enqueueParent(at)
}

// updateAt enqueues an At whose spec has changed, or that is being deleted. If only the
// status has changed, the controller has written it itself. Enqueuing the At would then
// bypass the back-off, because the status may change with each refusal of the Pod.
func (c *Controller) updateAt(logger klog.Logger, old, cur *v1alpha1.At) {
	c.written.Seen(cur)
	if old.UID != cur.UID {
		// The informer missed that the old one was deleted before a new one of that name was
		// created.
		c.deleteAt(logger, informers.DeletedAt{OptionalObj: old})
		c.addAt(logger, cur, false)
		return
	}
	if old.Generation != cur.Generation {
		logger.V(2).Info("At changed", "at", klog.KObj(cur), "generation", cur.Generation, "schedule", cur.Spec.Schedule, "timeZone", ptr.Deref(cur.Spec.TimeZone, ""), "suspend", ptr.Deref(cur.Spec.Suspend, false))
	}
	if old.Generation != cur.Generation || plan.ParentName(old) != plan.ParentName(cur) || plan.HasLostOwner(old) != plan.HasLostOwner(cur) || old.DeletionTimestamp.IsZero() != cur.DeletionTimestamp.IsZero() {
		c.enqueue(cache.MetaObjectToName(cur))
	}
	if plan.ParentName(old) != plan.ParentName(cur) {
		c.enqueueParent(old)
	}
	if plan.ConcernsParent(old, cur) {
		c.enqueueParent(cur)
	}
	if plan.ConcernsChildren(old, cur) {
		c.enqueueAts(byParent, cache.MetaObjectToName(cur).String())
	}
}

func (c *Controller) deleteAt(logger klog.Logger, at informers.DeletedAt) {
	logger.V(2).Info("At deleted", "at", klog.KRef(at.GetObjectName().Parts()))
	// An At of that name may already have been created again.
	c.steps.Failures.Forget(at.GetObjectName())
	if at.OptionalObj != nil {
		c.written.Forget(at.OptionalObj.UID)
		c.enqueueParent(at.OptionalObj)
	}
	c.enqueue(at.GetObjectName())
	c.enqueueAts(byParent, at.GetObjectName().String())
}

// enqueueParent enqueues the parent of an At, if there is one.
func (c *Controller) enqueueParent(child *v1alpha1.At) {
	if parent := plan.ParentName(child); parent != "" && c.working.Load() {
		c.queue.AddAfter(cache.NewObjectName(child.Namespace, parent), childrenPeriod)
	}
}

// enqueueOnNode enqueues the Ats that need a node that was added or removed.
func (c *Controller) enqueueOnNode(node string) { c.enqueueAts(byNode, node) }

// enqueueAts enqueues the Ats that an index lists for a value.
func (c *Controller) enqueueAts(index, value string) {
	for _, at := range indexed[v1alpha1.At](c.atIndexer, index, value) {
		c.enqueue(cache.MetaObjectToName(at))
	}
}

func (c *Controller) addPod(pod *corev1.Pod) {
	c.enqueueOwner(pod)
}

func (c *Controller) updatePod(old, cur *corev1.Pod) {
	if old.ResourceVersion != cur.ResourceVersion {
		c.enqueueOwner(cur)
	}
}

func (c *Controller) deletePod(pod coreinformers.DeletedPod) {
	if pod.OptionalObj != nil {
		c.enqueueOwner(pod.OptionalObj)
	}
}

// enqueueOwner enqueues the At that a Pod belongs to, by name. The sync compares the UID:
// a Pod of an earlier At with that name matters too, because the current At waits until
// it is gone.
func (c *Controller) enqueueOwner(pod *corev1.Pod) {
	if name := plan.AtName(pod); name != "" {
		c.enqueue(cache.NewObjectName(pod.Namespace, name))
	}
}

func (c *Controller) processNextWorkItem(ctx context.Context) bool {
	name, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(name)
	ctx = c.queue.Context(ctx, name)

	start := c.clock.Now()
	delay, err := c.syncOrRecover(ctx, name)
	metrics.SyncDuration.WithLabelValues(metrics.ResultOf(err)).Observe(c.clock.Since(start).Seconds())
	switch {
	case errors.Is(err, plan.ErrBlocked):
		// The At's status or an event reports it.
		klog.FromContext(ctx).V(2).Info("At is blocked, retrying later", "at", klog.KRef(name.Parts()), "reason", plan.OneLine(err.Error()))
		c.blocked.Add(name)
	case err != nil:
		klog.FromContext(ctx).Error(errors.New(plan.OneLine(err.Error())), "Sync failed, retrying later", "at", klog.KRef(name.Parts()))
		if plan.IsTransient(err) {
			c.queue.AddRateLimited(name)
		} else {
			c.blocked.Add(name)
		}
	default:
		c.queue.Forget(name)
		c.blocked.Forget(name)
	}
	c.enqueueAfter(name, delay)
	return true
}

// syncOrRecover turns a panic into an error: one At must not stop the work on all others.
func (c *Controller) syncOrRecover(ctx context.Context, name cache.ObjectName) (delay time.Duration, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: %v\n%s", metrics.ErrPanic, cause, debug.Stack())
		}
	}()
	return c.syncHandler(ctx, name)
}

// syncHandler takes the next steps for an At: first those of its run, then those for the
// Pods that the run no longer needs. It returns the delay after which to sync the At
// again (0 if that is not necessary), or an error if a step must be retried with
// back-off.
func (c *Controller) syncHandler(ctx context.Context, name cache.ObjectName) (time.Duration, error) {
	ctx = klog.NewContext(ratelimit.NewContext(ctx), klog.LoggerWithValues(klog.FromContext(ctx), "at", klog.KRef(name.Parts())))
	asOf := c.freshness.AsOf(c.clock.Now())
	world := &plan.World{AtAsOf: asOf, ParentAsOf: asOf, Pods: c.podsOf(name)}
	// The only possible error: it is not in the cache.
	if at, err := c.atLister.Ats(name.Namespace).Get(name.Name); err == nil {
		world.At = c.written.Latest(at)
		c.addRelatives(world)
	} else {
		// A creation may have failed after deleteAt.
		c.steps.Failures.Forget(name)
	}
	pods := world.Pods
	delay, err := c.follow(ctx, name, world, plan.Decide)
	for _, pod := range pods {
		podDelay, podErr := c.follow(ctx, name, world, func(w plan.World) plan.Decision { return plan.CleanUp(w, pod) })
		if podDelay > 0 && (delay == 0 || podDelay < delay) {
			delay = podDelay
		}
		// Blocked Ats and Pods are reported elsewhere. Prefer other errors for the log.
		if err == nil || errors.Is(err, plan.ErrBlocked) && podErr != nil {
			err = podErr
		}
	}
	return delay, err
}

// follow takes the steps that decide returns until there is nothing more to do now. It
// returns the delay and the error of the last decision.
func (c *Controller) follow(ctx context.Context, name cache.ObjectName, world *plan.World, decide func(plan.World) plan.Decision) (time.Duration, error) {
	for range maxSteps {
		world.Now, world.Forecast = c.clock.Now(), c.preflight.Forecast(world.At)
		decision := decide(*world)
		phase := v1alpha1.AtPhase("")
		if world.At != nil {
			phase = world.At.Status.Phase
		}
		klog.FromContext(ctx).V(4).Info("Decided", "phase", phase, "action", plan.NameOf(decision.Action), "writeStatus", decision.Status != nil, "delay", decision.Delay, "retry", decision.Retry)
		if decision.Preflight {
			c.preflight.Add(name)
		}
		decision, again, err := c.steps.Take(ctx, name, world, decision)
		if err != nil {
			return decision.Delay, err
		}
		if !again {
			return decision.Delay, decision.Retry
		}
	}
	return 0, fmt.Errorf("no result after %d steps: the API server does not store all fields; is its At CRD outdated?", maxSteps)
}

// podsOf returns the Pods of all Ats that have, or had, the given name.
func (c *Controller) podsOf(name cache.ObjectName) []*corev1.Pod {
	return indexed[corev1.Pod](c.podIndexer, byAt, name.String())
}

// parentOf returns the At with the name of a child's parent, or nil if there is none.
func (c *Controller) parentOf(at *v1alpha1.At) *v1alpha1.At {
	name := plan.ParentName(at)
	if name == "" {
		return nil
	}
	parent, err := c.atLister.Ats(at.Namespace).Get(name)
	if err != nil { // The only possible error: it is not in the cache.
		return nil
	}
	return c.written.Latest(parent)
}

// addRelatives adds the parent and the children of the At to world.
func (c *Controller) addRelatives(world *plan.World) {
	world.Parent, world.Children, world.ChildrenAreLive = c.parentOf(world.At), nil, false
	for _, child := range indexed[v1alpha1.At](c.atIndexer, byParent, cache.MetaObjectToName(world.At).String()) {
		if plan.IsChildOf(child, world.At) {
			world.Children = append(world.Children, c.written.Latest(child))
		}
	}
}

// indexed returns the objects that an index lists for a value.
func indexed[T any](indexer cache.Indexer, index, value string) []*T {
	objects, err := indexer.ByIndex(index, value)
	utilruntime.Must(err) // An error would mean that the index does not exist.
	found := make([]*T, len(objects))
	for i, object := range objects {
		found[i] = object.(*T)
	}
	return found
}

// keep is the transform of the informers.
func keep(obj any) (any, error) {
	switch object := obj.(type) {
	case *v1alpha1.At:
		return plan.KeepAt(object), nil
	case *corev1.Pod:
		return plan.KeepPod(object), nil
	case *corev1.Node:
		return plan.KeepNode(object), nil
	default:
		return obj, nil
	}
}
