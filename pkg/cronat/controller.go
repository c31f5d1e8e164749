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
	"fmt"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronsteps"
	"programming-kubernetes.info/cnat-controller/pkg/freeze"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	informers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/queue"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/preflight"
	"programming-kubernetes.info/cnat-controller/pkg/steps"
)

// Controller creates the Ats of each CronAt, one for each scheduled time.
type Controller struct {
	// Steps takes the steps that package cronplan decides on.
	Steps   *cronsteps.Steps
	synced  []cache.DoneChecker
	checks  *preflight.Checks
	freezes func() (*freeze.Set, error)
	queue   *queue.Queue
}

// NewController returns a controller that uses the given informers, which the caller
// starts. The informer of Ats is shared with the controller of Ats, which sets its
// transform. checks are the preflights of CronAts, which the caller runs, as well as the Freezes.
// The controller is on standby until Run is called.
func NewController(
	ctx context.Context,
	client clientset.Interface,
	cronAtInformer informers.TypedCronAtInformer,
	atInformer informers.TypedAtInformer,
	freezes steps.Freezes,
	checks *preflight.Checks,
	recorder record.EventRecorder,
	wallClock clock.WithTicker,
) (*Controller, error) {
	cronSteps, err := cronsteps.New(client, cronAtInformer, atInformer, recorder, wallClock)
	if err != nil {
		return nil, err
	}
	c := &Controller{
		Steps:   cronSteps,
		checks:  checks,
		freezes: freezes.Set,
		queue:   queue.NewRetrying("cronats", nil, wallClock),
	}
	c.queue.Standby.Store(true)
	checks.Notify(c.queue.Add)
	freezes.Notify(c.enqueueAll)
	logger := klog.FromContext(ctx)
	cronAtHandler, err := cronAtInformer.TypedInformer().AddTypedEventHandler(informers.CronAtHandlerFuncs{
		AddFunc:    func(cronAt *v1alpha1.CronAt) { c.queue.Add(cache.MetaObjectToName(cronAt)) },
		UpdateFunc: func(old, cur *v1alpha1.CronAt) { c.updateCronAt(logger, old, cur) },
		DeleteFunc: func(cronAt informers.DeletedCronAt) { c.deleteCronAt(logger, cronAt) },
	})
	if err != nil {
		return nil, fmt.Errorf("add the event handler for CronAts: %w", err)
	}
	atHandler, err := atInformer.TypedInformer().AddTypedEventHandler(informers.AtHandlerFuncs{
		AddFunc:    c.enqueueOwner,
		UpdateFunc: c.updateAt,
		DeleteFunc: func(at informers.DeletedAt) {
			if at.OptionalObj != nil {
				c.enqueueOwner(at.OptionalObj)
				c.Steps.Counted.Delete(at.OptionalObj.UID)
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
	defer c.queue.ShutDown()
	if !cache.WaitFor(klog.NewContext(ctx, logger.V(2)), "caches of CronAts to sync", c.synced...) {
		return
	}
	logger.Info("Starting controller of CronAts", "workers", workers)
	c.queue.Run(ctx, workers, "cronAt", c.syncHandler, c.sweep)
}

// sweep enqueues the CronAts that have a step to take, or will have one soon, and at first all.
func (c *Controller) sweep(isFirst bool) {
	for _, name := range c.Steps.Names() {
		decision := c.decide(c.Steps.Observe(name))
		c.queue.AddStep(name, isFirst || decision.Action != nil || decision.Status != nil || decision.Retry != nil, decision.Delay)
	}
}

// decide returns the next step, with what preflights have found out. It returns an error as Retry if
// the Freezes are not known.
func (c *Controller) decide(world *cronplan.World) cronplan.Decision {
	var err error
	if world.Freezes, err = c.freezes(); err != nil {
		return cronplan.Decision{Retry: err}
	}
	if world.CronAt != nil {
		world.Rehearses = c.checks.Rehearses()
		world.Forecast = c.checks.Forecast(world.CronAt, cronplan.RehearsedOf(&world.CronAt.Status))
	}
	return cronplan.Decide(*world)
}

// enqueueAll enqueues all CronAts after a change of Freezes: they may have another next time.
func (c *Controller) enqueueAll() {
	for _, name := range c.Steps.Names() {
		c.queue.Add(name)
	}
}

// updateCronAt enqueues a CronAt that has changed. If only the status has changed, the controller has
// probably written it, and takes the next step. That does not bypass the back-off, because the status
// may change with each refusal of an At.
func (c *Controller) updateCronAt(logger klog.Logger, old, cur *v1alpha1.CronAt) {
	c.Steps.Written.Seen(cur)
	isOther := old.UID != cur.UID
	if isOther {
		// The informer missed that the old one was deleted before a new one of that name was
		// created.
		c.deleteCronAt(logger, informers.DeletedCronAt{OptionalObj: old})
	}
	edited := old.Generation != cur.Generation
	deleted := old.DeletionTimestamp.IsZero() && !cur.DeletionTimestamp.IsZero()
	if isOther || edited || deleted {
		logger.V(2).Info("CronAt changed", "cronAt", klog.KObj(cur), "generation", cur.Generation, "suspend", ptr.Deref(cur.Spec.Suspend, false))
		c.queue.Add(cache.MetaObjectToName(cur))
	} else if old.ResourceVersion != cur.ResourceVersion {
		c.queue.AddStep(cache.MetaObjectToName(cur), true, 0)
	}
	if plan.IsNewRequest(old, cur) {
		c.checks.Add(cache.MetaObjectToName(cur))
	}
}

func (c *Controller) deleteCronAt(logger klog.Logger, cronAt informers.DeletedCronAt) {
	logger.V(2).Info("CronAt deleted", "cronAt", klog.KRef(cronAt.GetObjectName().Parts()))
	if cronAt.OptionalObj != nil {
		c.Steps.Written.Forget(cronAt.OptionalObj.UID)
	}
	c.queue.Add(cronAt.GetObjectName())
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
		c.queue.Add(cache.NewObjectName(at.Namespace, name))
	}
}

// syncHandler takes the next step for a CronAt. It returns the delay after which to sync
// it again (0 if that is not necessary), or an error if the step must be retried with
// back-off.
func (c *Controller) syncHandler(ctx context.Context, name cache.ObjectName) (time.Duration, error) {
	return c.Steps.Sync(ctx, name, func(world *cronplan.World) cronplan.Decision {
		decision := c.decide(world)
		klog.FromContext(ctx).V(4).Info("Decided", "action", fmt.Sprintf("%T", decision.Action), "writeStatus", decision.Status != nil, "delay", decision.Delay)
		if decision.Preflight {
			c.checks.Add(name)
		}
		return decision
	})
}
