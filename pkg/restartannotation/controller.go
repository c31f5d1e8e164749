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

// Package restartannotation contains the controller for the annotations that schedule
// restarts of a workload. It creates, updates and deletes a CronAt for each annotated
// workload. The controller of CronAts does everything else.
package restartannotation

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	informers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions/cnat/v1alpha1"
	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/connect"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/queue"
	"programming-kubernetes.info/cnat-controller/pkg/restartannotation/annotationplan"
)

// permissionPeriod is the interval at which the controller tries to list the resources
// that it watches, until it succeeds.
const permissionPeriod = 10 * time.Second

// Controller creates the CronAts of annotated workloads.
type Controller struct {
	client         clientset.Interface
	metadataClient metadata.Interface
	namespace      string
	recorder       record.EventRecorder
	clock          clock.PassiveClock

	// workloads has an informer for each kind, for metadata only.
	workloads map[v1alpha1.RestartKind]cache.SharedIndexInformer
	cronAts   listers.CronAtLister
	synced    []cache.DoneChecker

	// The items are workloads (see keyOf).
	queue *queue.Queue

	// blocked has the workloads whose annotations cannot be applied, and the reasons.
	lock    sync.Mutex
	blocked map[cache.ObjectName]string
}

// NewController returns a controller for the workloads of one namespace, or of all. It
// has its own informers of these, which Run starts, because no other controller needs them. The
// informer of CronAts is shared with the controller of CronAts, which sets its transform. The
// controller is on standby until Run is called.
func NewController(
	client clientset.Interface,
	metadataClient metadata.Interface,
	cronAtInformer informers.TypedCronAtInformer,
	namespace string,
	recorder record.EventRecorder,
	wallClock clock.WithTicker,
) (*Controller, error) {
	c := &Controller{
		client:         client,
		metadataClient: metadataClient,
		namespace:      namespace,
		recorder:       recorder,
		clock:          wallClock,
		workloads:      map[v1alpha1.RestartKind]cache.SharedIndexInformer{},
		cronAts:        cronAtInformer.Lister(),
		queue:          queue.NewRetrying("restart_annotations", nil, wallClock),
		blocked:        map[cache.ObjectName]string{},
	}
	c.queue.Standby.Store(true)
	for _, kind := range annotationplan.Kinds {
		resource := resourceOf(kind)
		// Without the index by namespace, which is not used.
		informer := metadatainformer.NewFilteredMetadataInformer(metadataClient, resource, namespace, 0, cache.Indexers{}, connect.Current).Informer()
		if err := informer.SetTransform(connect.Transform(annotationplan.Keep)); err != nil {
			return nil, fmt.Errorf("set the transform of the informer of %s: %w", resource.Resource, err)
		}
		handlers := queue.Handlers(func(workload *metav1.PartialObjectMetadata) { c.addWorkload(kind, workload) })
		handlers.UpdateFunc = func(old, cur *metav1.PartialObjectMetadata) {
			if annotationplan.Concerns(old, cur) {
				c.addWorkload(kind, old)
				c.addWorkload(kind, cur)
			}
		}
		handler, err := cache.NewTypedSharedIndexInformer[*metav1.PartialObjectMetadata](informer).AddTypedEventHandler(handlers)
		if err != nil {
			return nil, fmt.Errorf("add the event handler for %s: %w", resource.Resource, err)
		}
		c.workloads[kind] = informer
		c.synced = append(c.synced, handler.HasSyncedChecker())
	}
	handlers := queue.Handlers(c.enqueueOwner)
	handlers.UpdateFunc = c.updateCronAt
	handler, err := cronAtInformer.TypedInformer().AddTypedEventHandler(handlers)
	if err != nil {
		return nil, fmt.Errorf("add the event handler for CronAts: %w", err)
	}
	c.synced = append(c.synced, handler.HasSyncedChecker())
	return c, nil
}

// Run waits until the controller may list the resources that it watches, and until the
// caches have synced. It works with the given number of workers until ctx is done, and
// returns when the running syncs have finished. Call it only once.
//
// On standby, the controller has no cache of workloads: its work after a takeover is not urgent.
func (c *Controller) Run(ctx context.Context, workers int) {
	defer utilruntime.HandleCrashWithContext(ctx)
	logger := klog.FromContext(ctx)
	defer c.queue.ShutDown()
	if c.waitForPermission(ctx) != nil {
		return
	}
	c.queue.Standby.Store(false) // The informers that start now report all workloads.
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, kind := range annotationplan.Kinds {
		informer := c.workloads[kind]
		wg.Go(func() { informer.RunWithContext(ctx) })
	}
	if !cache.WaitFor(klog.NewContext(ctx, logger.V(2)), "caches of workloads to sync", c.synced...) {
		return
	}
	logger.Info("Starting controller of restart annotations", "workers", workers)
	c.queue.Run(ctx, workers, "workload", c.syncHandler, func(bool) {}) // Each step follows an event.
}

// waitForPermission returns nil once the workloads and CronAts can be listed. An informer
// without the permission would not report how to fix that. It logs each new error once.
func (c *Controller) waitForPermission(ctx context.Context) error {
	return connect.Until(ctx, permissionPeriod, c.list, func(err error) {
		hint := ""
		if apierrors.IsForbidden(err) {
			hint = ": grant this user the rules of artifacts/restarts/annotations/rbac.yaml, or remove -restart-annotations"
		}
		klog.FromContext(ctx).Error(err, "Restart annotations have no effect until the controller can list workloads"+hint)
	})
}

// list returns the error from listing the watched resources.
func (c *Controller) list(ctx context.Context) error {
	options := metav1.ListOptions{Limit: 1}
	for _, kind := range annotationplan.Kinds {
		if _, err := c.metadataClient.Resource(resourceOf(kind)).Namespace(c.namespace).List(ctx, options); err != nil {
			return err
		}
	}
	_, err := c.client.CnatV1alpha1().CronAts(c.namespace).List(ctx, options)
	return err
}

// keyOf returns the item of a workload in the queue.
func keyOf(kind v1alpha1.RestartKind, namespace, name string) cache.ObjectName {
	return cache.NewObjectName(namespace, string(kind)+"/"+name)
}

// addWorkload enqueues a workload that has the annotations, or a CronAt.
func (c *Controller) addWorkload(kind v1alpha1.RestartKind, workload *metav1.PartialObjectMetadata) {
	if annotationplan.IsAnnotated(workload) || c.cronAt(kind, cache.MetaObjectToName(workload)) != nil {
		c.queue.Add(keyOf(kind, workload.Namespace, workload.Name))
	}
}

// updateCronAt enqueues the workload of a CronAt that was edited. Changes to the status
// are ignored.
func (c *Controller) updateCronAt(old, cur *v1alpha1.CronAt) {
	before := old.ObjectMeta
	before.ResourceVersion = cur.ResourceVersion
	if equality.Semantic.DeepEqual(before, cur.ObjectMeta) {
		return
	}
	c.enqueueOwner(old)
	c.enqueueOwner(cur)
}

// enqueueOwner enqueues the workload of a CronAt, if the CronAt has the name that belongs
// to that workload.
func (c *Controller) enqueueOwner(cronAt *v1alpha1.CronAt) {
	if kind, name, ok := annotationplan.Owner(cronAt); ok && annotationplan.Name(kind, name) == cronAt.Name {
		c.queue.Add(keyOf(kind, cronAt.Namespace, name))
	}
}

// syncHandler takes the next step for a workload: its watch brings the one after it. After an
// error, it must be retried with back-off. There is never a delay.
func (c *Controller) syncHandler(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	kind, name, _ := strings.Cut(key.Name, "/")
	world := c.observe(v1alpha1.RestartKind(kind), cache.NewObjectName(key.Namespace, name))
	decision := c.step(ctx, world)
	if decision.Event != nil {
		c.record(world, decision.Event)
	}
	c.report(key, decision)
	return 0, decision.Retry
}

// report remembers whether the annotations of a workload can be applied. If the decision does not
// tell, because the cause will disappear within moments, nothing changes.
func (c *Controller) report(key cache.ObjectName, decision annotationplan.Decision) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if reason := decision.Blocked(); reason != "" {
		c.blocked[key] = reason
	} else if decision.Retry == nil {
		delete(c.blocked, key)
	}
}

// Blocked returns the workloads whose annotations cannot be applied, by kind and name, and
// the reasons.
func (c *Controller) Blocked() map[cache.ObjectName]string {
	c.lock.Lock()
	defer c.lock.Unlock()
	return maps.Clone(c.blocked)
}
