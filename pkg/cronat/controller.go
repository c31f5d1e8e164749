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

// Package cronat has the controller of CronAts. It makes, counts and prunes Ats, and leaves
// all else to the controller of Ats.
package cronat

import (
	"context"
	"errors"
	"fmt"
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
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	informers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions/cnat/v1alpha1"
	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/connect"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/patch"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/queue"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/wallclock"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// queueName is the name of the queue, for its metrics.
const queueName = "cronats"

// byCronAt is the index of Ats by the CronAt that created them.
const byCronAt = "cronat"

// maxDelay is the maximum time until a CronAt is synced again: one that is deleted stays
// in the queue until then.
const maxDelay = time.Hour

// maxSteps is the number of steps of a sync, apart from steps that release an At, after
// which something must be wrong.
const maxSteps = 10

// recordsPerSecond is the number of new Ats per second that are recorded immediately. The
// others follow after cronplan.RecordDelay.
const recordsPerSecond = 20

// finishTimeout is how long running syncs may take when the controller is stopped, as in
// the controller of Ats.
const finishTimeout = 3 * time.Second

// Controller creates the Ats of each CronAt, one for each scheduled time.
type Controller struct {
	client   clientset.Interface
	recorder record.EventRecorder
	clock    clock.WithTicker

	lister    listers.CronAtLister
	atIndexer cache.Indexer
	synced    []cache.DoneChecker

	// working is false while the controller is on standby: its informers fill the caches,
	// but nothing is enqueued.
	working atomic.Bool
	queue   *queue.Retrying
	// records limits how many new Ats are recorded immediately.
	records flowcontrol.PassiveRateLimiter

	// written has the statuses that this process has written and that are not in the cache
	// yet.
	written *staleness.Written[*v1alpha1.CronAt]
	// freshness tells how old the CronAts in the cache can be.
	freshness *staleness.Tracker

	// counted records since when this process knows that an At with the finalizer is
	// counted.
	countedLock sync.Mutex
	counted     map[types.UID]time.Time
}

// NewController returns a controller that uses the given informers, which the caller
// starts. The informer of Ats is shared with the controller of Ats, which sets its
// transform. The controller is on standby until Run is called.
func NewController(
	ctx context.Context,
	client clientset.Interface,
	cronAtInformer informers.TypedCronAtInformer,
	atInformer informers.TypedAtInformer,
	recorder record.EventRecorder,
	wallClock clock.WithTicker,
) (*Controller, error) {
	c := &Controller{
		client:    client,
		recorder:  recorder,
		clock:     wallClock,
		lister:    cronAtInformer.Lister(),
		atIndexer: atInformer.Informer().GetIndexer(),
		queue:     queue.NewRetrying(queueName, queue.NewFair(), wallClock),
		records:   flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(recordsPerSecond, recordsPerSecond, wallClock),
		counted:   map[types.UID]time.Time{},
	}
	c.freshness = staleness.NewTracker(cronAtInformer.Informer().GetIndexer().LastStoreSyncResourceVersion)
	c.written = staleness.NewWritten(func(namespace, name string) (*v1alpha1.CronAt, error) { return c.lister.CronAts(namespace).Get(name) }, cronplan.KeepCronAt)

	if err := cronAtInformer.Informer().SetTransform(keep); err != nil {
		return nil, fmt.Errorf("set the transform of the informer: %w", err)
	}
	err := atInformer.Informer().AddIndexers(cache.Indexers{byCronAt: func(obj any) ([]string, error) {
		at := obj.(*v1alpha1.At)
		if name := cronplan.CronAtName(at); name != "" {
			return []string{cache.NewObjectName(at.Namespace, name).String()}, nil
		}
		return nil, nil
	}})
	if err != nil {
		return nil, fmt.Errorf("add the index of Ats: %w", err)
	}
	logger := klog.FromContext(ctx)
	cronAtHandler, err := cronAtInformer.TypedInformer().AddTypedEventHandler(informers.CronAtHandlerFuncs{
		AddFunc:    func(cronAt *v1alpha1.CronAt) { c.enqueue(cache.MetaObjectToName(cronAt)) },
		UpdateFunc: func(old, cur *v1alpha1.CronAt) { c.updateCronAt(logger, old, cur) },
		DeleteFunc: func(cronAt informers.DeletedCronAt) { c.deleteCronAt(logger, cronAt) },
	})
	if err != nil {
		return nil, fmt.Errorf("add the event handler for CronAts: %w", err)
	}
	atHandler, err := atInformer.TypedInformer().AddTypedEventHandler(informers.AtHandlerFuncs{
		AddFunc:    c.enqueueOwnerOfNew,
		UpdateFunc: c.updateAt,
		DeleteFunc: func(at informers.DeletedAt) {
			if at.OptionalObj != nil {
				c.enqueueOwner(at.OptionalObj)
				c.forgetCounted(at.OptionalObj.UID)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("add the event handler for Ats: %w", err)
	}
	c.synced = []cache.DoneChecker{cronAtHandler.HasSyncedChecker(), atHandler.HasSyncedChecker()}
	return c, nil
}

// Run waits until the caches have synced, works with the given number of workers until
// ctx is done, and returns when the running syncs have finished. Call it only once.
func (c *Controller) Run(ctx context.Context, workers int) {
	defer utilruntime.HandleCrashWithContext(ctx)
	logger := klog.FromContext(ctx)
	var wg sync.WaitGroup
	syncCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer func() {
		c.queue.ShutDown()
		defer time.AfterFunc(finishTimeout, cancel).Stop()
		wg.Wait()
	}()

	if !cache.WaitFor(klog.NewContext(ctx, logger.V(2)), "caches of CronAts to sync", c.synced...) {
		return
	}
	logger.Info("Starting controller of CronAts", "workers", workers)
	watchClock := wallclock.NewWatch(c.clock)
	c.working.Store(true)
	for range c.queue.Start(workers) {
		wg.Go(func() {
			for ctx.Err() == nil && c.processNextWorkItem(syncCtx) {
			}
		})
	}
	wg.Go(func() { c.queue.RunBlocked(ctx) })
	wg.Go(func() { watchClock(ctx, c.enqueueAll) })
	c.enqueueAll()
	<-ctx.Done()
}

// IsBusy returns true while CronAts wait for a worker, and not only for others of their
// namespace.
func (c *Controller) IsBusy() bool { return c.queue.IsBusy() }

// enqueueAll enqueues all CronAts, including deleted ones that still have Ats.
func (c *Controller) enqueueAll() {
	cronAts, _ := c.lister.List(labels.Everything()) // Reading from a cache cannot fail.
	for _, cronAt := range cronAts {
		c.queue.Add(cache.MetaObjectToName(cronAt))
	}
	for _, key := range c.atIndexer.ListIndexFuncValues(byCronAt) {
		if name, err := cache.ParseObjectName(key); err == nil {
			c.queue.Add(name)
		}
	}
}

// enqueue enqueues a CronAt unless the controller is on standby. In that case, Run will
// enqueue everything that is in the caches by then.
func (c *Controller) enqueue(name cache.ObjectName) {
	if c.working.Load() {
		c.queue.Add(name)
	}
}

// updateCronAt enqueues a CronAt whose spec has changed, or that is being deleted. If
// only the status has changed, the controller has written it itself.
func (c *Controller) updateCronAt(logger klog.Logger, old, cur *v1alpha1.CronAt) {
	c.written.Seen(cur)
	isOther := old.UID != cur.UID
	if isOther {
		// The informer missed that the old one was deleted before a new one of that name was
		// created.
		c.deleteCronAt(logger, informers.DeletedCronAt{OptionalObj: old})
	}
	edited := old.Generation != cur.Generation
	deleted := old.DeletionTimestamp.IsZero() && !cur.DeletionTimestamp.IsZero()
	if isOther || edited || deleted {
		logger.V(2).Info("CronAt changed", "cronAt", klog.KObj(cur), "generation", cur.Generation, "schedule", cur.Spec.Schedule, "timeZone", ptr.Deref(cur.Spec.TimeZone, ""), "suspend", ptr.Deref(cur.Spec.Suspend, false))
		c.enqueue(cache.MetaObjectToName(cur))
	}
}

func (c *Controller) deleteCronAt(logger klog.Logger, cronAt informers.DeletedCronAt) {
	logger.V(2).Info("CronAt deleted", "cronAt", klog.KRef(cronAt.GetObjectName().Parts()))
	if cronAt.OptionalObj != nil {
		c.written.Forget(cronAt.OptionalObj.UID)
	}
	c.enqueue(cronAt.GetObjectName())
}

func (c *Controller) updateAt(old, cur *v1alpha1.At) {
	if cronplan.CronAtName(old) != cronplan.CronAtName(cur) {
		c.enqueueOwner(old)
		c.enqueueOwner(cur)
	} else if cronplan.Concerns(old, cur) {
		c.enqueueOwner(cur)
	}
}

// enqueueOwner enqueues the CronAt that created an At, if there is one.
func (c *Controller) enqueueOwner(at *v1alpha1.At) {
	if name := cronplan.CronAtName(at); name != "" {
		c.enqueue(cache.NewObjectName(at.Namespace, name))
	}
}

// enqueueOwnerOfNew is enqueueOwner for a new At. In a burst, most Ats are recorded
// later: what is due goes first.
func (c *Controller) enqueueOwnerOfNew(at *v1alpha1.At) {
	name := cronplan.CronAtName(at)
	if name == "" || !c.working.Load() {
		return
	}
	delay := cronplan.RecordDelay
	if c.records.TryAccept() {
		delay = 0
	}
	c.queue.AddAfter(cache.NewObjectName(at.Namespace, name), delay)
}

func (c *Controller) processNextWorkItem(ctx context.Context) bool {
	name, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(name)
	ctx = c.queue.Context(klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "cronAt", klog.KRef(name.Parts()))), name)

	start := c.clock.Now()
	var delay time.Duration
	err := queue.Catch(func() (err error) {
		delay, err = c.syncHandler(ctx, name)
		return err
	})
	metrics.SyncDuration.WithLabelValues(metrics.ResultOf(err)).Observe(c.clock.Since(start).Seconds())
	c.queue.Settle(ctx, name, err)
	if delay > 0 {
		c.queue.AddAfter(name, min(delay, maxDelay))
	}
	return true
}

// syncHandler takes the next steps for a CronAt. It returns the delay after which to sync
// it again (0 if that is not necessary), or an error if a step must be retried with
// back-off.
func (c *Controller) syncHandler(ctx context.Context, name cache.ObjectName) (time.Duration, error) {
	ctx = connect.WithTurn(ctx)
	world := &cronplan.World{CronAtAsOf: c.freshness.AsOf(c.clock.Now())}
	// The only possible error: it is not in the cache.
	if cronAt, err := c.lister.CronAts(name.Namespace).Get(name.Name); err == nil {
		world.CronAt = c.written.Latest(cronAt)
	}
	objects, err := c.atIndexer.ByIndex(byCronAt, name.String())
	utilruntime.Must(err) // An error would mean that the index does not exist.
	for _, object := range objects {
		world.Ats = append(world.Ats, object.(*v1alpha1.At))
	}
	steps := maxSteps + len(world.Ats)
	for range steps {
		world.Now = c.clock.Now()
		c.addCounted(world)
		decision := cronplan.Decide(*world)
		klog.FromContext(ctx).V(4).Info("Decided", "action", fmt.Sprintf("%T", decision.Action), "writeStatus", decision.Status != nil, "delay", decision.Delay)
		decision, again, err := c.act(ctx, name, world, decision)
		if err != nil {
			return decision.Delay, err
		}
		if !again {
			return decision.Delay, decision.Retry
		}
	}
	return 0, fmt.Errorf("no result after %d steps: the API server does not store all fields; is its CronAt CRD outdated?", steps)
}

// Leave takes the steps that cronplan.Leave decides for a CronAt and those of its Ats that
// have the finalizer.
func (c *Controller) Leave(ctx context.Context, name cache.ObjectName, ats []*v1alpha1.At) error {
	world := &cronplan.World{Ats: ats, CronAtIsLive: name.Name == ""}
	for range maxSteps + len(ats) {
		world.Now = c.clock.Now()
		decision := cronplan.Leave(*world)
		if decision.Action == nil && decision.Status == nil {
			return nil
		}
		if _, _, err := c.act(ctx, name, world, decision); err != nil {
			return err
		}
	}
	return fmt.Errorf("no result after many steps for CronAt %s", name)
}

// addCounted adds to world since when its Ats are known to be counted.
func (c *Controller) addCounted(world *cronplan.World) {
	c.countedLock.Lock()
	defer c.countedLock.Unlock()
	world.CountedSince = map[types.UID]time.Time{}
	for _, at := range world.Ats {
		if !plan.IsScheduled(at) || !world.IsCounted(at) {
			continue
		}
		if _, seen := c.counted[at.UID]; !seen {
			c.counted[at.UID] = world.Now
		}
		world.CountedSince[at.UID] = c.counted[at.UID]
	}
}

// forgetCounted is called for an At that is gone or released.
func (c *Controller) forgetCounted(uid types.UID) {
	c.countedLock.Lock()
	defer c.countedLock.Unlock()
	delete(c.counted, uid)
}

// act takes the step that was decided. It returns the decision or, if the API server
// refused the step, the decision that follows. again reports whether to decide again now,
// based on the changes to world.
func (c *Controller) act(ctx context.Context, name cache.ObjectName, world *cronplan.World, decision cronplan.Decision) (_ cronplan.Decision, again bool, err error) {
	switch action := decision.Action.(type) {
	case nil:
	case cronplan.LookForCronAt:
		return decision, true, c.lookForCronAt(ctx, name, world)
	case cronplan.LookForAts:
		return decision, true, c.lookForAts(ctx, world)
	case cronplan.CreateAt:
		// Then it has to be decided again: the CronAt may have been edited meanwhile.
		if waited, err := connect.WaitAhead(ctx, c.client.CnatV1alpha1().RESTClient().GetRateLimiter()); waited || err != nil {
			return decision, true, err
		}
		created, err := c.createAt(ctx, action.At)
		if err == nil {
			if c.freshness.Claim(c.clock.Now()) {
				replace(world, plan.KeepAt(created))
				return decision, true, nil
			}
			return decision, false, nil
		}
		var existing *v1alpha1.At
		if apierrors.IsAlreadyExists(err) {
			existing, err = c.getAt(ctx, action.At)
		}
		switch {
		case err != nil:
			decision = cronplan.Refused(*world, fmt.Errorf("create At: %w", err))
		case !world.IsChild(existing):
			decision = cronplan.AtNameTaken(*world, existing)
		default:
			// The cache may lack the Ats of earlier times, too.
			err := c.lookForAts(ctx, world)
			replace(world, existing)
			return decision, true, err
		}
	case cronplan.DeleteAts:
		return decision, true, c.deleteAts(ctx, world, action, decision.Events)
	case cronplan.ExpireAt:
		return decision, true, c.expireAt(ctx, world, action)
	case cronplan.ReleaseAt:
		return decision, true, c.releaseAt(ctx, world, action.At)
	default:
		return decision, false, fmt.Errorf("unknown action %T", action)
	}
	// There was no action, or the API server refused it.
	if decision.Status == nil {
		return decision, false, nil
	}
	if err := c.writeStatus(ctx, world, decision); err != nil {
		return decision, false, err
	}
	return decision, decision.Retry == nil, nil
}

// replace adds an At to world, replacing any At of that name.
func replace(world *cronplan.World, at *v1alpha1.At) {
	world.Ats = append(slices.DeleteFunc(slices.Clone(world.Ats), func(other *v1alpha1.At) bool { return other.Name == at.Name }), at)
}

// lookForCronAt reads the CronAt.
func (c *Controller) lookForCronAt(ctx context.Context, name cache.ObjectName, world *cronplan.World) error {
	client := c.client.CnatV1alpha1()
	cronAt, err := client.CronAts(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if err != nil {
		cronAt = nil
		if err := answer.UnlessGone(ctx, client.RESTClient(), v1alpha1.SchemeGroupVersion.WithResource("cronats"), name.Name, err); err != nil {
			return fmt.Errorf("read the CronAt: %w", err)
		}
	}
	if cronAt == nil || world.CronAt == nil || cronAt.UID != world.CronAt.UID {
		world.AtsAreLive = false
	}
	world.CronAt, world.CronAtIsLive, world.CronAtAsOf = cronAt, true, c.clock.Now()
	return nil
}

// lookForAts reads the Ats of the CronAt. Ats that are only in the cache may be gone, or
// may have lost their label: they count until the cache is updated.
func (c *Controller) lookForAts(ctx context.Context, world *cronplan.World) error {
	ats := c.client.CnatV1alpha1().Ats(world.CronAt.Namespace)
	list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return ats.List(ctx, options)
	})
	// One page is read while the previous one is processed.
	list.PageSize, list.PageBufferSize = plan.PageSize, 0
	err := list.EachListItem(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelCronAtUID + "=" + string(world.CronAt.UID)}, func(object runtime.Object) error {
		if at := plan.KeepAt(object.(*v1alpha1.At)); world.IsChild(at) {
			replace(world, at)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list the Ats: %w", err)
	}
	world.AtsAreLive = true
	return nil
}

// createAt creates and returns an At.
func (c *Controller) createAt(ctx context.Context, at *v1alpha1.At) (*v1alpha1.At, error) {
	created, err := c.client.CnatV1alpha1().Ats(at.Namespace).Create(connect.TakeTurn(ctx), at, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	klog.FromContext(ctx).V(2).Info("Created At", "at", klog.KObj(created), "schedule", created.Spec.Schedule)
	return created, nil
}

// getAt reads the At with the name of an At that could not be created.
func (c *Controller) getAt(ctx context.Context, at *v1alpha1.At) (*v1alpha1.At, error) {
	existing, err := c.client.CnatV1alpha1().Ats(at.Namespace).Get(ctx, at.Name, metav1.GetOptions{})
	switch {
	case answer.IsNotFound(err, at.Name):
		return nil, errors.New("the At already existed but has since been deleted")
	case err != nil:
		return nil, err
	}
	return plan.KeepAt(existing), nil
}

// deleteAts deletes Ats unless they have changed since the decision.
func (c *Controller) deleteAts(ctx context.Context, world *cronplan.World, action cronplan.DeleteAts, events []plan.Event) error {
	options := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
	if action.Replaced {
		options.PropagationPolicy = ptr.To(metav1.DeletePropagationForeground)
	}
	for i, at := range action.Ats {
		options.Preconditions = &metav1.Preconditions{UID: &at.UID, ResourceVersion: &at.ResourceVersion}
		err := c.client.CnatV1alpha1().Ats(at.Namespace).Delete(ctx, at.Name, options)
		if err != nil && !answer.IsNotFound(err, at.Name) {
			return c.report(world.CronAt, v1alpha1.ReasonAtNotDeleted, fmt.Errorf("delete At %s: %w", at.Name, err))
		}
		deleted := at.DeepCopy()
		deleted.DeletionTimestamp = &metav1.Time{Time: world.Now}
		replace(world, deleted)
		klog.FromContext(ctx).V(2).Info("Deleted At", "at", klog.KObj(at), "replaced", action.Replaced)
		c.record(world.CronAt, events[i:i+1])
	}
	return nil
}

// expireAt sets the starting deadline of an At unless it has changed since the decision.
func (c *Controller) expireAt(ctx context.Context, world *cronplan.World, action cronplan.ExpireAt) error {
	at := action.At
	body := fmt.Appendf(nil, `{"metadata":{"uid":%q,"resourceVersion":%q},"spec":{"startingDeadlineSeconds":%d}}`, at.UID, at.ResourceVersion, action.Seconds)
	expired, err := c.client.CnatV1alpha1().Ats(at.Namespace).Patch(ctx, at.Name, types.MergePatchType, body, metav1.PatchOptions{})
	switch {
	case answer.IsNotFound(err, at.Name):
		expired = at.DeepCopy()
		expired.Spec.StartingDeadlineSeconds = &action.Seconds
	case err != nil:
		return c.report(world.CronAt, v1alpha1.ReasonAtNotExpired, fmt.Errorf("set the starting deadline of At %s: %w", at.Name, err))
	}
	replace(world, plan.KeepAt(expired))
	klog.FromContext(ctx).V(2).Info("Expired At", "at", klog.KObj(at), "startingDeadlineSeconds", action.Seconds)
	return nil
}

// releaseAt removes the finalizer from an At.
func (c *Controller) releaseAt(ctx context.Context, world *cronplan.World, at *v1alpha1.At) error {
	released, err := c.withoutFinalizer(ctx, at)
	switch {
	case answer.IsNotFound(err, at.Name):
		released = at.DeepCopy()
		released.Finalizers = nil
	case err != nil:
		return c.report(world.CronAt, v1alpha1.ReasonAtNotReleased, fmt.Errorf("remove the finalizer of At %s: %w", at.Name, err))
	}
	replace(world, plan.KeepAt(released))
	c.forgetCounted(at.UID)
	klog.FromContext(ctx).V(2).Info("Released At", "at", klog.KObj(at))
	return nil
}

// withoutFinalizer removes the finalizer from an At, and returns the result.
func (c *Controller) withoutFinalizer(ctx context.Context, at *v1alpha1.At) (*v1alpha1.At, error) {
	ats := c.client.CnatV1alpha1().Ats(at.Namespace)
	if !plan.HasAllFinalizers(at) {
		whole, err := ats.Get(ctx, at.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		whole.UID, at = at.UID, whole
	}
	body, err := patch.WithoutFinalizer(at, v1alpha1.FinalizerScheduled)
	if err != nil {
		return nil, err
	}
	return ats.Patch(ctx, at.Name, types.MergePatchType, body, metav1.PatchOptions{})
}

// writeStatus writes the decision's status and records its events. It puts the resulting
// CronAt into world.
func (c *Controller) writeStatus(ctx context.Context, world *cronplan.World, decision cronplan.Decision) error {
	cronAt := world.CronAt
	body, err := patch.Status(cronAt.ResourceVersion, &cronAt.Status, decision.Status)
	if err != nil {
		return err
	}
	write := c.freshness.Sending(c.clock.Now())
	updated, err := c.client.CnatV1alpha1().CronAts(cronAt.Namespace).Patch(ctx, cronAt.Name, types.MergePatchType, body, metav1.PatchOptions{}, "status")
	c.freshness.Answered(write, staleness.Changed(cronAt, updated, err), c.clock.Now())
	switch {
	case answer.IsNotFound(err, cronAt.Name):
		world.CronAt, world.CronAtIsLive = nil, true
		return nil
	case err != nil:
		return fmt.Errorf("write the status: %w", err)
	}
	c.written.Remember(updated)
	klog.FromContext(ctx).V(2).Info("Wrote status", "lastScheduleTime", ptr.Deref(updated.Status.LastScheduleTime, metav1.Time{}), "active", updated.Status.Active, "reason", updated.Status.Reason)
	metrics.CronAtMissed.Add(float64(missed(decision.Status) - missed(&cronAt.Status)))
	c.record(updated, decision.Events)
	world.CronAt, world.CronAtIsLive, world.CronAtAsOf = updated, true, c.clock.Now()
	return nil
}

func missed(status *v1alpha1.CronAtStatus) int64 {
	return ptr.Deref(status.Missed, v1alpha1.MissedTimes{}).Count
}

// report records an event on the CronAt, if there is one, for an error that will not
// resolve by itself. It returns the error to retry with.
func (c *Controller) report(cronAt *v1alpha1.CronAt, reason string, err error) error {
	if cronAt == nil || answer.IsTransient(err) {
		return err
	}
	c.record(cronAt, []plan.Event{{Type: corev1.EventTypeWarning, Reason: reason, Message: answer.OneLine(err.Error())}})
	return fmt.Errorf("%w: %w", answer.ErrBlocked, err)
}

func (c *Controller) record(cronAt *v1alpha1.CronAt, events []plan.Event) {
	for _, event := range events {
		c.recorder.Event(cronAt, event.Type, event.Reason, event.Message)
	}
}

// keep is the transform of the informer.
func keep(obj any) (any, error) {
	if cronAt, ok := obj.(*v1alpha1.CronAt); ok {
		return cronplan.KeepCronAt(cronAt), nil
	}
	return obj, nil
}
