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
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/fairqueue"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	cnatscheme "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/scheme"
	informers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions/cnat/v1alpha1"
	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/nodecache"
	"programming-kubernetes.info/cnat-controller/pkg/patch"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/preflight"
	"programming-kubernetes.info/cnat-controller/pkg/rollout"
	"programming-kubernetes.info/cnat-controller/pkg/wallclock"
	"programming-kubernetes.info/cnat-controller/pkg/written"
)

const controllerName = "cnat-controller"

// The names of the queues, for their metrics.
const (
	queueName        = "ats"
	blockedQueueName = "blocked_ats"
)

// The indexes of the caches: Pods by the At that they belong to, Ats by the one that made
// them, and Ats that have not ended by the node of spec.node.
const (
	byAt     = "at"
	byParent = "parent"
	byNode   = "node"
)

// childrenPeriod is how long the changes of an At's children are gathered before the At is
// synced: with a thousand nodes, each write counts many of them. Job does the same with its
// Pods.
const childrenPeriod = 200 * time.Millisecond

// parallelAts is how many children of an At are created at the same time.
const parallelAts = 16

// A sync that failed is retried after minErrorBackoff, then after twice as long each
// time, at most maxErrorBackoff.
const (
	minErrorBackoff = 200 * time.Millisecond
	maxErrorBackoff = time.Minute
)

// lastingFailures is the number of creations that fail in a row until more than a minute
// has passed. Then they are reported, whatever the cause.
const lastingFailures = 10

// maxSteps is the number of steps of a sync after which something must be wrong.
const maxSteps = 10

// When the controller is asked to stop, finishTimeout is how long the syncs in hand may
// take, and eventsTimeout how long it may take to write the queued events. A leader that
// cannot renew its lease stops at most 8.5 s after the last renewal, and another may take
// over after 12 s, so finishTimeout must be less than the difference.
const (
	finishTimeout = 3 * time.Second
	eventsTimeout = 5 * time.Second
)

// endOfEvents is the reason of an event that is never written: the sink has seen all
// other events when it comes.
const endOfEvents = "EndOfEvents"

// errPanic is of a sync that panicked.
var errPanic = errors.New("panic")

// Controller runs the command of each At once, at its time, in a Pod that the
// At owns.
type Controller struct {
	kubeClient kubernetes.Interface
	cnatClient clientset.Interface

	atLister   listers.AtLister
	atIndexer  cache.Indexer
	podIndexer cache.Indexer
	synced     []cache.DoneChecker
	nodes      *nodecache.Cache

	// working is false while the controller stands by: its informers fill the caches, and
	// nothing is enqueued.
	working atomic.Bool
	queue   workqueue.TypedRateLimitingInterface[cache.ObjectName]
	// blocked holds the Ats that are to be added to queue when their turn comes.
	blocked *fairqueue.Blocked
	// failures counts the creations that have failed in a row.
	failures    workqueue.TypedRateLimiter[cache.ObjectName]
	preflight   *preflight.Preflight // nil: off
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
	eventsEnded chan struct{}
	clock       clock.WithTicker

	defaultImage string

	// written has the statuses that this process has written and the cache does not have
	// yet. To decide on an older one could run a command again.
	written *written.Objects[*v1alpha1.At]
}

// NewController returns a controller that is fed by the given informers. The caller starts
// those of Pods and Ats; the controller starts that of nodes when an At needs it. The
// controller stands by until Run is called. Of the Pods it needs those that carry the label
// v1alpha1.LabelAtUID, and no others. defaultImage is the image of the container that runs
// spec.command.
func NewController(
	ctx context.Context,
	kubeClient kubernetes.Interface,
	cnatClient clientset.Interface,
	podInformer coreinformers.TypedPodInformer,
	nodeInformer coreinformers.TypedNodeInformer,
	atInformer informers.TypedAtInformer,
	defaultImage string,
) (*Controller, error) {
	return newControllerWithClock(ctx, kubeClient, cnatClient, podInformer, nodeInformer, atInformer, defaultImage, clock.RealClock{})
}

func newControllerWithClock(
	ctx context.Context,
	kubeClient kubernetes.Interface,
	cnatClient clientset.Interface,
	podInformer coreinformers.TypedPodInformer,
	nodeInformer coreinformers.TypedNodeInformer,
	atInformer informers.TypedAtInformer,
	defaultImage string,
	wallClock clock.WithTicker,
) (*Controller, error) {
	// Shutdown ends the broadcaster, not ctx: the last syncs record events after ctx is done.
	broadcaster := record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx)))
	c := &Controller{
		kubeClient:   kubeClient,
		cnatClient:   cnatClient,
		atLister:     atInformer.Lister(),
		atIndexer:    atInformer.Informer().GetIndexer(),
		podIndexer:   podInformer.Informer().GetIndexer(),
		queue:        fairqueue.NewRateLimiting(queueName, workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](minErrorBackoff, maxErrorBackoff), wallClock),
		blocked:      fairqueue.NewBlocked(blockedQueueName, wallClock),
		failures:     workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](0, 0),
		broadcaster:  broadcaster,
		eventsEnded:  make(chan struct{}),
		recorder:     broadcaster.NewRecorder(cnatscheme.Scheme, corev1.EventSource{Component: controllerName}),
		clock:        wallClock,
		defaultImage: defaultImage,
	}
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
	c.synced = []cache.DoneChecker{atHandler.HasSyncedChecker(), podHandler.HasSyncedChecker()}
	return c, nil
}

// Run waits until the caches are filled, works with the given number of workers until
// ctx is done, and returns when the syncs in hand are finished. It is called once.
//
// The caches of a controller that stood by may be behind the API server. That is as safe
// as a watch that is behind while the controller works: a Pod is created only after the
// At was read from the API server, the name of the Pod is a lock, and every other write
// has a precondition. Waiting for the caches to catch up could take a minute, because an
// idle watch reports the current resourceVersion only that often.
func (c *Controller) Run(ctx context.Context, workers int) {
	defer utilruntime.HandleCrashWithContext(ctx)
	logger := klog.FromContext(ctx)

	c.broadcaster.StartStructuredLogging(3)
	c.broadcaster.StartRecordingToSink(&eventSink{
		EventSink: &typedcorev1.EventSinkImpl{Interface: c.kubeClient.CoreV1().Events("")},
		ended:     c.eventsEnded,
	})

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
	for range workers {
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
	// An idle controller allocates nothing, so what the first list left would stay for minutes.
	debug.FreeOSMemory()
	<-ctx.Done()
}

// Shutdown writes the events that are still queued. It is called after Run, when the
// lease is released, so that the events do not delay the next leader.
func (c *Controller) Shutdown() {
	if c.working.Load() {
		c.recorder.Event(&corev1.ObjectReference{}, corev1.EventTypeNormal, endOfEvents, "All events are written.")
		select {
		case <-c.eventsEnded:
		case <-c.clock.After(eventsTimeout):
		}
	}
	c.broadcaster.Shutdown()
}

// eventSink writes events, in the order in which they are recorded, until endOfEvents.
type eventSink struct {
	record.EventSink
	ended chan<- struct{}
}

// Create writes an event.
func (s *eventSink) Create(event *corev1.Event) (*corev1.Event, error) {
	if event.Reason == endOfEvents {
		close(s.ended)
		return event, nil
	}
	return s.EventSink.Create(event)
}

// enqueueAll enqueues the Ats in the cache, those that are due first because there may be
// very many others, and the Ats that are gone and have Pods in the cache. Those that have
// nothing to do but to wait are not synced at once: the maps of a queue through which very
// many Ats have gone stay large, and each would have a preflight.
func (c *Controller) enqueueAll() {
	ats, _ := c.atLister.List(labels.Everything()) // Reading from a cache does not fail.
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
		world := plan.World{At: at, Pods: c.podsOf(name), Parent: c.parentOf(at), Now: c.clock.Now()}
		decision := plan.Decide(world)
		switch {
		case len(world.Pods) > 0 || decision.Action != nil || decision.Status != nil || plan.WantsForecastAtStart(at, c.clock.Now()):
			c.queue.Add(name)
		case decision.Delay > 0:
			c.queue.AddAfter(name, decision.Delay)
		}
	}
	for _, obj := range c.podIndexer.List() {
		pod := obj.(*corev1.Pod)
		if _, err := c.atLister.Ats(pod.Namespace).Get(plan.AtName(pod)); err != nil {
			c.enqueueOwner(pod)
		}
	}
}

// enqueue enqueues an At if the controller works. If it stands by, Run will enqueue what
// the caches hold by then, and a handler runs after the cache has changed.
func (c *Controller) enqueue(name cache.ObjectName) {
	if c.working.Load() {
		c.queue.Add(name)
	}
}

// HasSynced returns true once the caches are filled.
func (c *Controller) HasSynced() bool {
	return !slices.ContainsFunc(c.synced, func(synced cache.DoneChecker) bool { return !cache.IsDone(synced) })
}

func (c *Controller) addAt(logger klog.Logger, at *v1alpha1.At, isInInitialList bool) {
	if !isInInitialList { // Those may be very many.
		logger.V(2).Info("At added", "at", klog.KObj(at), "schedule", at.Spec.Schedule, "timeZone", ptr.Deref(at.Spec.TimeZone, ""))
	}
	c.enqueue(cache.MetaObjectToName(at))
	c.enqueueParent(at)
}

// updateAt enqueues an At whose spec has changed, or that is being deleted. A change
// of the status alone is the controller's own write. If it enqueued the At, a status
// that changes with each refusal of the Pod would bypass the back-off.
func (c *Controller) updateAt(logger klog.Logger, old, cur *v1alpha1.At) {
	c.written.Seen(cur)
	if old.UID != cur.UID {
		// The informer missed that one was deleted, and another created by its name.
		c.deleteAt(logger, informers.DeletedAt{OptionalObj: old})
		c.addAt(logger, cur, false)
		return
	}
	if old.Generation != cur.Generation {
		logger.V(2).Info("At changed", "at", klog.KObj(cur), "generation", cur.Generation, "schedule", cur.Spec.Schedule, "timeZone", ptr.Deref(cur.Spec.TimeZone, ""), "suspend", ptr.Deref(cur.Spec.Suspend, false))
	}
	if old.Generation != cur.Generation || plan.ParentName(old) != plan.ParentName(cur) || old.DeletionTimestamp.IsZero() != cur.DeletionTimestamp.IsZero() {
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
	if at.OptionalObj != nil {
		c.written.Forget(at.OptionalObj.UID)
		c.enqueueParent(at.OptionalObj)
	}
	c.enqueue(at.GetObjectName())
	c.enqueueAts(byParent, at.GetObjectName().String())
}

// enqueueParent enqueues the At that made the given one, if there is one.
func (c *Controller) enqueueParent(child *v1alpha1.At) {
	if parent := plan.ParentName(child); parent != "" && c.working.Load() {
		c.queue.AddAfter(cache.NewObjectName(child.Namespace, parent), childrenPeriod)
	}
}

// enqueueOnNode enqueues the Ats that need a node, which was added or is gone.
func (c *Controller) enqueueOnNode(node string) { c.enqueueAts(byNode, node) }

// enqueueAts enqueues the Ats that an index has under a value.
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

// enqueueOwner enqueues the At that a Pod belongs to, by its name. The sync compares
// the UID: a Pod of an earlier At of that name matters too, because the present At waits
// until it is gone.
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

	start := c.clock.Now()
	delay, err := c.syncOrRecover(ctx, name)
	metrics.SyncDuration.WithLabelValues(resultOf(err)).Observe(c.clock.Since(start).Seconds())
	switch {
	case errors.Is(err, plan.ErrBlocked):
		// The At's status or an event reports it.
		klog.FromContext(ctx).V(2).Info("At is blocked, retrying later", "at", klog.KRef(name.Parts()), "reason", plan.OneLine(err.Error()))
		c.blocked.Add(name)
	case err != nil:
		klog.FromContext(ctx).Error(errors.New(plan.OneLine(err.Error())), "Sync failed, retrying later", "at", klog.KRef(name.Parts()))
		c.queue.AddRateLimited(name)
	default:
		c.queue.Forget(name)
		c.blocked.Forget(name)
	}
	if delay > 0 {
		c.queue.AddAfter(name, delay)
	}
	return true
}

// syncOrRecover makes an error of a panic: one At must not end the work on all
// others.
func (c *Controller) syncOrRecover(ctx context.Context, name cache.ObjectName) (delay time.Duration, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: %v\n%s", errPanic, cause, debug.Stack())
		}
	}()
	return c.syncHandler(ctx, name)
}

// resultOf returns the result of a sync for the metrics.
func resultOf(err error) string {
	switch {
	case err == nil:
		return metrics.ResultSuccess
	case errors.Is(err, plan.ErrBlocked):
		return metrics.ResultBlocked
	case errors.Is(err, errPanic):
		return metrics.ResultPanic
	default:
		return metrics.ResultError
	}
}

// syncHandler takes the next steps for an At: those of its run, and apart from them those
// for the Pods that the run no longer needs. It returns the delay after which to look at
// the At again, 0 if there is no need, or an error if a step must be retried with
// back-off.
func (c *Controller) syncHandler(ctx context.Context, name cache.ObjectName) (time.Duration, error) {
	ctx = klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "at", klog.KRef(name.Parts())))
	at, err := orNil(c.atLister.Ats(name.Namespace).Get(name.Name))
	if err != nil {
		return 0, err
	}
	world := &plan.World{At: at, Pods: c.podsOf(name)}
	if at != nil {
		world.At = c.written.Latest(at)
		c.addRelatives(world)
	}
	pods := world.Pods
	delay, err := c.follow(ctx, name, world, plan.Decide)
	for _, pod := range pods {
		podDelay, podErr := c.follow(ctx, name, world, func(w plan.World) plan.Decision { return plan.CleanUp(w, pod) })
		if podDelay > 0 && (delay == 0 || podDelay < delay) {
			delay = podDelay
		}
		// What blocks an At or a Pod is reported. The log is for other errors.
		if err == nil || errors.Is(err, plan.ErrBlocked) && podErr != nil {
			err = podErr
		}
	}
	return delay, err
}

// follow acts on what decide says, until there is nothing more to do now. It returns the
// delay, and the error, of the last decision.
func (c *Controller) follow(ctx context.Context, name cache.ObjectName, world *plan.World, decide func(plan.World) plan.Decision) (time.Duration, error) {
	for range maxSteps {
		world.Now, world.Forecast = c.clock.Now(), c.preflight.Forecast(world.At)
		decision := decide(*world)
		phase := v1alpha1.AtPhase("")
		if world.At != nil {
			phase = world.At.Status.Phase
		}
		klog.FromContext(ctx).V(4).Info("Decided", "phase", phase, "action", plan.NameOf(decision.Action), "writeStatus", decision.Status != nil, "delay", decision.Delay, "retry", decision.Retry)
		decision, again, err := c.act(ctx, name, world, decision)
		if err != nil {
			return decision.Delay, err
		}
		if !again {
			return decision.Delay, decision.Retry
		}
	}
	return 0, fmt.Errorf("no end after %d steps: the API server does not keep what is written; is its CRD of At an older one?", maxSteps)
}

// act takes the step that was decided. It returns the decision or, if the API server
// refused the step, the one that follows; and whether to decide again now, on what it has
// changed in world.
func (c *Controller) act(ctx context.Context, name cache.ObjectName, world *plan.World, decision plan.Decision) (_ plan.Decision, again bool, err error) {
	switch action := decision.Action.(type) {
	case nil:
	case plan.LookForAt:
		return decision, true, c.lookForAt(ctx, name, world)
	case plan.LookForPod:
		return decision, true, c.lookForPod(ctx, world)
	case plan.LookForNodes:
		return decision, true, c.lookForNodes(ctx, world)
	case plan.LookForNode:
		return decision, true, c.lookForNode(ctx, world, action.Name)
	case plan.LookForTarget:
		return decision, true, c.lookForTarget(ctx, world)
	case plan.LookForAts:
		return decision, true, c.lookForAts(ctx, world)
	case plan.CreateAts:
		other, err := c.createAts(ctx, world, action.Ats)
		switch {
		case other != nil:
			decision = plan.AtNameTaken(*world, other)
		case err != nil:
			decision = plan.RefusedAt(*world, fmt.Errorf("create At: %w", err))
		default:
			return decision, true, nil
		}
	case plan.ResumeAts:
		return decision, false, c.resumeAts(ctx, world.At, action.Ats)
	case plan.ReleaseAt:
		return decision, true, c.releaseAt(ctx, world)
	case plan.CreatePod:
		err := c.createPod(ctx, world.At, action)
		if apierrors.IsAlreadyExists(err) {
			err = c.lookForPod(ctx, world)
			if err == nil && !world.HasPod() {
				err = errors.New("the Pod existed when it was to be created, and is gone")
			}
			return decision, true, err
		}
		if err == nil {
			c.failures.Forget(name)
			return decision, false, nil
		}
		c.failures.When(name)
		decision = plan.Refused(*world, fmt.Errorf("create Pod: %w", err), c.failures.NumRequeues(name) >= lastingFailures)
	case plan.RestartTarget:
		err := c.restartTarget(ctx, world, action)
		if err == nil {
			return decision, true, nil
		}
		decision = plan.RefusedRestart(*world, fmt.Errorf("restart %s: %w", world.Target, err))
	case plan.DeletePod:
		return decision, false, c.removePod(ctx, world.At, action, decision.Events)
	case plan.ReleasePod:
		return decision, false, c.releasePod(ctx, world.At, action.Pod)
	case plan.DeleteAt:
		return decision, false, c.removeAt(ctx, world.At)
	default:
		return decision, false, fmt.Errorf("unknown action %T", action)
	}
	if decision.Status == nil {
		if decision.Preflight {
			c.preflight.Add(name)
		}
		return decision, false, nil
	}
	at, err := orNil(c.writeStatus(ctx, world.At, decision))
	if err != nil {
		return decision, false, err
	}
	// What PodIsLive was said of may be the Pod of another attempt.
	world.At, world.AtIsLive, world.PodIsLive = at, at != nil, false
	return decision, decision.Retry == nil, nil
}

// podsOf returns the Pods of all Ats that have, or had, the given name.
func (c *Controller) podsOf(name cache.ObjectName) []*corev1.Pod {
	return indexed[corev1.Pod](c.podIndexer, byAt, name.String())
}

// parentOf returns the At that has the name of the one that made a child; nil if there is
// none.
func (c *Controller) parentOf(at *v1alpha1.At) *v1alpha1.At {
	name := plan.ParentName(at)
	if name == "" {
		return nil
	}
	parent, err := c.atLister.Ats(at.Namespace).Get(name)
	if err != nil { // It is not in the cache. There are no other errors.
		return nil
	}
	return c.written.Latest(parent)
}

// addRelatives adds to world the At that made the At, and those that the At has made.
func (c *Controller) addRelatives(world *plan.World) {
	world.Parent, world.Children, world.ChildrenAreLive = c.parentOf(world.At), nil, false
	for _, child := range indexed[v1alpha1.At](c.atIndexer, byParent, cache.MetaObjectToName(world.At).String()) {
		if plan.IsChildOf(child, world.At) {
			world.Children = append(world.Children, c.written.Latest(child))
		}
	}
}

// indexed returns the objects that an index has under a value.
func indexed[T any](indexer cache.Indexer, index, value string) []*T {
	objects, err := indexer.ByIndex(index, value)
	utilruntime.Must(err) // An error would mean that there is no such index.
	found := make([]*T, len(objects))
	for i, object := range objects {
		found[i] = object.(*T)
	}
	return found
}

// orNil makes no object and no error of an object that is not found.
func orNil[T any](object *T, err error) (*T, error) {
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return object, err
}

// lookForAt reads the At.
func (c *Controller) lookForAt(ctx context.Context, name cache.ObjectName, world *plan.World) error {
	at, err := orNil(c.cnatClient.CnatV1alpha1().Ats(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{}))
	if err != nil {
		return fmt.Errorf("look for the At: %w", err)
	}
	world.At, world.AtIsLive = at, true
	if at != nil {
		c.addRelatives(world)
	}
	return nil
}

// lookForNodes reads the nodes.
func (c *Controller) lookForNodes(ctx context.Context, world *plan.World) error {
	nodes, err := c.nodes.List(ctx)
	if err != nil {
		return world.NodesNotRead(err)
	}
	world.Nodes, world.NodesAreKnown = nodes, true
	return nil
}

// lookForNode reads a node.
func (c *Controller) lookForNode(ctx context.Context, world *plan.World, name string) error {
	node, err := c.nodes.Get(ctx, name)
	if err != nil {
		return world.NodesNotRead(err)
	}
	world.NodeName, world.Node = name, node
	return nil
}

// lookForTarget reads the workload of spec.restart.
func (c *Controller) lookForTarget(ctx context.Context, world *plan.World) error {
	target, err := rollout.Get(ctx, c.kubeClient.AppsV1(), world.At.Namespace, world.At.Spec.Restart)
	if err != nil {
		return world.TargetNotRead(err)
	}
	world.Target, world.TargetForbidden, world.TargetIsLive = target, nil, true
	return nil
}

// restartTarget restarts the workload of spec.restart, unless it has changed meanwhile.
func (c *Controller) restartTarget(ctx context.Context, world *plan.World, action plan.RestartTarget) error {
	target, err := rollout.Restart(ctx, c.kubeClient.AppsV1(), world.Target, action.Instant)
	if apierrors.IsNotFound(err) {
		return world.TargetNotRead(err)
	}
	if err != nil {
		return err
	}
	late := max(0, c.clock.Since(action.Due)) // Due may be of another clock.
	metrics.StartLateness.Observe(late.Seconds())
	klog.FromContext(ctx).V(2).Info("Restarted", "kind", target.Kind, "target", klog.KRef(target.Namespace, target.Name), "late", late)
	world.Target = target
	return nil
}

// lookForAts reads the children of the At.
func (c *Controller) lookForAts(ctx context.Context, world *plan.World) error {
	ats := c.cnatClient.CnatV1alpha1().Ats(world.At.Namespace)
	var children []*v1alpha1.At
	// In pages, because a template may be large.
	list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return ats.List(ctx, options)
	})
	err := list.EachListItem(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelAtUID + "=" + string(world.At.UID)}, func(object runtime.Object) error {
		if child := object.(*v1alpha1.At); plan.IsChildOf(child, world.At) {
			children = append(children, plan.KeepAt(child))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for the Ats of the nodes: %w", err)
	}
	world.Children, world.ChildrenAreLive = children, true
	return nil
}

// createAts creates children of the At, and adds them to world. It returns an At that is not
// the At's child, and has the name of one.
func (c *Controller) createAts(ctx context.Context, world *plan.World, children []*v1alpha1.At) (other *v1alpha1.At, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	found := make([]*v1alpha1.At, len(children))
	workqueue.ParallelizeUntil(ctx, parallelAts, len(children), func(i int) {
		ats := c.cnatClient.CnatV1alpha1().Ats(children[i].Namespace)
		child, err := ats.Create(ctx, children[i], metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			child, err = ats.Get(ctx, children[i].Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				err = errors.New("the At existed when it was to be created, and is gone")
			}
		}
		if err != nil {
			cancel(err) // The others would fail, too.
			return
		}
		found[i] = plan.KeepAt(child)
	})
	created := 0
	for _, child := range found {
		switch {
		case child == nil:
		case plan.IsChildOf(child, world.At):
			world.Children = append(world.Children, child)
			created++
		default:
			other = child
		}
	}
	klog.FromContext(ctx).V(2).Info("Created the Ats of nodes", "created", created, "missing", len(children)-created)
	return other, context.Cause(ctx)
}

// resumeAts resumes children of the At.
func (c *Controller) resumeAts(ctx context.Context, at *v1alpha1.At, children []*v1alpha1.At) error {
	for _, child := range children {
		patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"resourceVersion":%q},"spec":{"suspend":false}}`, child.UID, child.ResourceVersion)
		resumed, err := c.cnatClient.CnatV1alpha1().Ats(child.Namespace).Patch(ctx, child.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		switch {
		case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
			return nil // The child's event brings the next step.
		case err != nil:
			return c.report(at, v1alpha1.ReasonAtNotResumed, fmt.Errorf("resume At %s: %w", child.Name, err))
		}
		c.written.Remember(resumed)
		klog.FromContext(ctx).V(2).Info("Resumed the At of a node", "child", klog.KObj(child))
	}
	return nil
}

// releaseAt takes the finalizer from an At of a node.
func (c *Controller) releaseAt(ctx context.Context, world *plan.World) error {
	at := world.At
	body, err := patch.WithoutFinalizer(at, v1alpha1.FinalizerTracking)
	if err != nil {
		return err
	}
	released, err := orNil(c.cnatClient.CnatV1alpha1().Ats(at.Namespace).Patch(ctx, at.Name, types.MergePatchType, body, metav1.PatchOptions{}))
	if err != nil {
		return c.report(at, v1alpha1.ReasonAtNotReleased, fmt.Errorf("remove the finalizer of the At: %w", err))
	}
	if released != nil {
		c.written.Remember(released)
	}
	world.At, world.AtIsLive = released, released != nil
	klog.FromContext(ctx).V(2).Info("Released At")
	return nil
}

// lookForPod reads the Pod that has the name of the present attempt's, and puts it in
// place of what the cache has of that name.
func (c *Controller) lookForPod(ctx context.Context, world *plan.World) error {
	name := plan.PodName(world.At)
	pod, err := orNil(c.kubeClient.CoreV1().Pods(world.At.Namespace).Get(ctx, name, metav1.GetOptions{}))
	if err != nil {
		return fmt.Errorf("look for the Pod: %w", err)
	}
	pods := []*corev1.Pod{}
	for _, cached := range world.Pods {
		if cached.Name != name {
			pods = append(pods, cached)
		}
	}
	if pod != nil {
		pods = append(pods, pod)
	}
	world.Pods, world.PodIsLive = pods, true
	return nil
}

// createPod creates the At's Pod. Its name is the lock against running a command twice.
func (c *Controller) createPod(ctx context.Context, at *v1alpha1.At, action plan.CreatePod) error {
	pod, err := c.kubeClient.CoreV1().Pods(at.Namespace).Create(ctx, plan.NewPod(at, c.defaultImage), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	late := max(0, c.clock.Since(action.Due)) // Due may be of another clock.
	metrics.StartLateness.Observe(late.Seconds())
	// The informer's event of the Pod brings the next step.
	klog.FromContext(ctx).V(2).Info("Created Pod", "pod", klog.KObj(pod), "late", late)
	return nil
}

// removePod deletes a Pod as it was when that was decided: one that has changed
// meanwhile is left as it is.
func (c *Controller) removePod(ctx context.Context, at *v1alpha1.At, action plan.DeletePod, events []plan.Event) error {
	pod := action.Pod
	err := c.kubeClient.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion},
	})
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return nil // The Pod's event brings the next step.
	case err != nil:
		return c.report(at, v1alpha1.ReasonPodNotDeleted, fmt.Errorf("delete Pod %s: %w", pod.Name, err))
	}
	klog.FromContext(ctx).V(2).Info("Deleted Pod", "pod", klog.KObj(pod), "unexpected", action.Unexpected)
	if action.Unexpected {
		metrics.UnexpectedPods.Inc()
	}
	c.record(at, events)
	return nil
}

// releasePod takes the finalizer from a Pod, and from no other that may have its name
// by now. at is the At that has the name of the Pod's, or nil.
func (c *Controller) releasePod(ctx context.Context, at *v1alpha1.At, pod *corev1.Pod) error {
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"$deleteFromPrimitiveList/finalizers":[%q]}}`, pod.UID, v1alpha1.FinalizerTracking)
	_, err := c.kubeClient.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err) || isUIDMismatch(err):
		return nil // It is gone, or another has its name; the informer sees it.
	case err != nil:
		return c.report(at, v1alpha1.ReasonPodNotReleased, fmt.Errorf("remove the finalizer of Pod %s: %w", pod.Name, err))
	}
	klog.FromContext(ctx).V(2).Info("Released Pod", "pod", klog.KObj(pod))
	return nil
}

// isUIDMismatch says whether a patch was refused because the object of that name is
// another one. It is Invalid then; but so is what an admission policy denies.
func isUIDMismatch(err error) bool {
	cause, ok := apierrors.StatusCause(err, metav1.CauseTypeFieldValueInvalid)
	return ok && cause.Field == "metadata.uid"
}

// removeAt deletes the At as it was when that was decided: an edit of its TTL
// meanwhile makes it a conflict.
func (c *Controller) removeAt(ctx context.Context, at *v1alpha1.At) error {
	err := c.cnatClient.CnatV1alpha1().Ats(at.Namespace).Delete(ctx, at.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &at.UID, ResourceVersion: &at.ResourceVersion},
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return c.report(at, v1alpha1.ReasonAtNotDeleted, fmt.Errorf("delete the At: %w", err))
	}
	klog.FromContext(ctx).V(2).Info("Deleted At, its time to live is over")
	return nil
}

// writeStatus writes the decision's status and records its events. It returns the At as
// the API server has it then.
func (c *Controller) writeStatus(ctx context.Context, at *v1alpha1.At, decision plan.Decision) (*v1alpha1.At, error) {
	body, err := patch.Status(at.ResourceVersion, &at.Status, decision.Status)
	if err != nil {
		return nil, err
	}
	updated, err := c.cnatClient.CnatV1alpha1().Ats(at.Namespace).Patch(ctx, at.Name, types.MergePatchType, body, metav1.PatchOptions{}, "status")
	if err != nil {
		return nil, fmt.Errorf("write the status: %w", err)
	}
	c.written.Remember(updated)
	klog.FromContext(ctx).V(2).Info("Wrote status", "phase", updated.Status.Phase, "reason", updated.Status.Reason)
	countEnds(&at.Status, decision.Status, decision.Events)
	c.record(updated, decision.Events)
	return updated, nil
}

// countEnds counts the run and the attempt that have ended with a change of status,
// the last of whose events is that of the end.
func countEnds(before, after *v1alpha1.AtStatus, events []plan.Event) {
	if after.Phase == v1alpha1.PhaseDone && before.Phase != v1alpha1.PhaseDone {
		metrics.Runs.WithLabelValues(after.Reason).Inc()
	}
	if after.Failed > before.Failed || after.Reason == v1alpha1.ReasonCompleted && before.Phase != v1alpha1.PhaseDone && after.Pod != nil {
		metrics.Attempts.WithLabelValues(events[len(events)-1].Reason).Inc()
	}
}

// report reports an error that will not pass by itself in an event on the At, if there is
// one, and returns the error to retry with.
func (c *Controller) report(at *v1alpha1.At, reason string, err error) error {
	if at == nil || plan.IsTransient(err) {
		return err
	}
	c.record(at, []plan.Event{{Type: corev1.EventTypeWarning, Reason: reason, Message: plan.OneLine(err.Error())}})
	return fmt.Errorf("%w: %w", plan.ErrBlocked, err)
}

func (c *Controller) record(at *v1alpha1.At, events []plan.Event) {
	for _, event := range events {
		c.recorder.Event(at, event.Type, event.Reason, event.Message)
	}
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
