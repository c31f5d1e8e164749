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
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
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
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

const (
	controllerName = "cnat-controller"
	queueName      = "ats"
)

// byAt is the index of the Pods by the At that they belong to.
const byAt = "at"

// What could not be done is tried again after minBackoff, then after twice as
// long each time, at most maxBackoff.
const (
	minBackoff = 200 * time.Millisecond
	maxBackoff = time.Minute
)

// errPanic is of a sync that panicked.
var errPanic = errors.New("panic")

// Controller runs the command of each At once, at its time, in a Pod that the
// At owns.
type Controller struct {
	kubeClient kubernetes.Interface
	cnatClient clientset.Interface

	atLister   listers.AtLister
	podIndexer cache.Indexer
	synced     []cache.DoneChecker

	queue       workqueue.TypedRateLimitingInterface[cache.ObjectName]
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
	clock       clock.WithTicker

	defaultImage string

	// written holds the Ats as the API server returned them after the last write
	// of their status, until the cache has them too. To decide on an older one
	// could run its command again.
	written     map[types.UID]*v1alpha1.At
	writtenLock sync.Mutex
}

// NewController returns a controller that is fed by the given informers, which
// the caller starts. Of the Pods it needs those that carry the label
// v1alpha1.LabelAtUID, and no others. defaultImage is the image of the container
// that runs spec.command.
func NewController(
	ctx context.Context,
	kubeClient kubernetes.Interface,
	cnatClient clientset.Interface,
	podInformer coreinformers.TypedPodInformer,
	atInformer informers.TypedAtInformer,
	defaultImage string,
) (*Controller, error) {
	return newControllerWithClock(ctx, kubeClient, cnatClient, podInformer, atInformer, defaultImage, clock.RealClock{})
}

func newControllerWithClock(
	ctx context.Context,
	kubeClient kubernetes.Interface,
	cnatClient clientset.Interface,
	podInformer coreinformers.TypedPodInformer,
	atInformer informers.TypedAtInformer,
	defaultImage string,
	wallClock clock.WithTicker,
) (*Controller, error) {
	// The end of ctx is not the end of the events: the last syncs tell theirs after it.
	broadcaster := record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx)))
	c := &Controller{
		kubeClient: kubeClient,
		cnatClient: cnatClient,
		atLister:   atInformer.Lister(),
		podIndexer: podInformer.Informer().GetIndexer(),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](minBackoff, maxBackoff),
			workqueue.TypedRateLimitingQueueConfig[cache.ObjectName]{DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(
				workqueue.TypedDelayingQueueConfig[cache.ObjectName]{Name: queueName, Clock: wallClock, Queue: workqueue.NewTypedWithConfig(
					workqueue.TypedQueueConfig[cache.ObjectName]{Name: queueName, Clock: wallClock, Queue: fairqueue.New()},
				)},
			)},
		),
		broadcaster:  broadcaster,
		recorder:     broadcaster.NewRecorder(cnatscheme.Scheme, corev1.EventSource{Component: controllerName}),
		clock:        wallClock,
		defaultImage: defaultImage,
		written:      map[types.UID]*v1alpha1.At{},
	}

	err := podInformer.Informer().AddIndexers(cache.Indexers{byAt: func(obj any) ([]string, error) {
		pod := obj.(*corev1.Pod)
		return []string{cache.NewObjectName(pod.Namespace, plan.AtName(pod)).String()}, nil
	}})
	if err != nil {
		return nil, fmt.Errorf("add the index of Pods: %w", err)
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
	c.synced = []cache.DoneChecker{atHandler.HasSyncedChecker(), podHandler.HasSyncedChecker()}
	return c, nil
}

// Run waits for the caches, works with the given number of workers until ctx is
// done, and returns when the last worker has ended its sync.
func (c *Controller) Run(ctx context.Context, workers int) {
	defer utilruntime.HandleCrashWithContext(ctx)
	logger := klog.FromContext(ctx)

	c.broadcaster.StartStructuredLogging(3)
	c.broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.kubeClient.CoreV1().Events("")})
	defer c.broadcaster.Shutdown()

	logger.Info("Starting controller", "workers", workers)
	var wg sync.WaitGroup
	defer func() {
		logger.Info("Shutting down controller")
		c.queue.ShutDown()
		wg.Wait()
	}()

	if !cache.WaitFor(klog.NewContext(ctx, logger.V(2)), "caches to sync", c.synced...) {
		return
	}
	for range workers {
		wg.Go(func() {
			for c.processNextWorkItem(ctx) {
			}
		})
	}
	<-ctx.Done()
}

// HasSynced says whether the caches have what the API server had when they were
// filled.
func (c *Controller) HasSynced() bool {
	return !slices.ContainsFunc(c.synced, func(synced cache.DoneChecker) bool { return !cache.IsDone(synced) })
}

func (c *Controller) addAt(logger klog.Logger, at *v1alpha1.At, isInInitialList bool) {
	if !isInInitialList { // Those may be very many.
		logger.V(2).Info("At added", "at", klog.KObj(at), "schedule", at.Spec.Schedule, "timeZone", ptr.Deref(at.Spec.TimeZone, ""))
	}
	c.queue.Add(cache.MetaObjectToName(at))
}

// updateAt enqueues an At that a person has changed. A mere change of its status
// is the controller's own and calls for nothing: the Pod's events do, or the
// time. Were it enqueued, a status that changes with each refusal of the Pod
// would go round without back-off.
func (c *Controller) updateAt(logger klog.Logger, old, cur *v1alpha1.At) {
	c.forgetWritten(cur)
	if old.UID != cur.UID {
		// The informer missed that one was deleted, and another created by its name.
		c.deleteAt(logger, informers.DeletedAt{OptionalObj: old})
		c.addAt(logger, cur, false)
		return
	}
	if old.Generation != cur.Generation {
		logger.V(2).Info("At changed", "at", klog.KObj(cur), "generation", cur.Generation, "schedule", cur.Spec.Schedule, "timeZone", ptr.Deref(cur.Spec.TimeZone, ""), "suspend", ptr.Deref(cur.Spec.Suspend, false))
	}
	if old.Generation != cur.Generation || old.DeletionTimestamp.IsZero() != cur.DeletionTimestamp.IsZero() {
		c.queue.Add(cache.MetaObjectToName(cur))
	}
}

func (c *Controller) deleteAt(logger klog.Logger, at informers.DeletedAt) {
	logger.V(2).Info("At deleted", "at", klog.KRef(at.GetObjectName().Parts()))
	if at.OptionalObj != nil {
		c.writtenLock.Lock()
		delete(c.written, at.OptionalObj.UID)
		c.writtenLock.Unlock()
	}
	c.queue.Add(at.GetObjectName())
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

// enqueueOwner enqueues the At that a Pod belongs to. The UID is left to the sync:
// when the Pod of an earlier At goes, the At that has the name now is waiting to
// hear of it.
func (c *Controller) enqueueOwner(pod *corev1.Pod) {
	if name := plan.AtName(pod); name != "" {
		c.queue.Add(cache.NewObjectName(pod.Namespace, name))
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
		// The At's status tells it: it is no news for the log.
		klog.FromContext(ctx).V(2).Info("Trying again later", "at", klog.KRef(name.Parts()), "reason", err)
		c.queue.AddRateLimited(name)
	case err != nil:
		klog.FromContext(ctx).Error(err, "Sync failed, trying again later", "at", klog.KRef(name.Parts()))
		c.queue.AddRateLimited(name)
	case delay > 0:
		c.queue.Forget(name)
		c.queue.AddAfter(name, delay)
	default:
		c.queue.Forget(name)
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

// syncHandler takes the one step that is next for an At. It returns the delay
// after which to look at the At again, 0 if there is no need, or an error if the
// step is to be tried again with back-off.
func (c *Controller) syncHandler(ctx context.Context, name cache.ObjectName) (time.Duration, error) {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "at", klog.KRef(name.Parts()))
	ctx = klog.NewContext(ctx, logger)

	pods, err := c.podsOf(name)
	if err != nil {
		return 0, err
	}
	at, err := orNil(c.atLister.Ats(name.Namespace).Get(name.Name))
	if err != nil {
		return 0, err
	}
	if orphan := plan.Orphan(at, pods); orphan != nil {
		return 0, c.releaseOrphan(ctx, name, orphan)
	}
	if at == nil {
		return 0, nil
	}
	at = c.latest(at)
	decision := plan.Decide(at, pods, c.clock.Now())
	if decision.CreatePod {
		// A cache is never sure: another controller may have run it, and its Pod be
		// gone, or somebody have moved, suspended or deleted it just now.
		at, err = orNil(c.cnatClient.CnatV1alpha1().Ats(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{}))
		if err != nil {
			return 0, fmt.Errorf("look for the At: %w", err)
		}
		if at == nil {
			return 0, nil
		}
		decision = plan.Decide(at, pods, c.clock.Now())
	}
	if decision.Confirm {
		pod, err := orNil(c.kubeClient.CoreV1().Pods(at.Namespace).Get(ctx, plan.PodName(at), metav1.GetOptions{}))
		if err != nil {
			return 0, fmt.Errorf("look for the Pod: %w", err)
		}
		decision = plan.Decide(at, replace(pods, plan.PodName(at), pod), c.clock.Now())
	}
	logger.V(4).Info("Syncing", "phase", at.Status.Phase, "createPod", decision.CreatePod, "deletePod", klog.KObj(decision.DeletePod), "releasePod", klog.KObj(decision.ReleasePod), "deleteAt", decision.DeleteAt, "writeStatus", decision.Status != nil, "delay", decision.Delay)
	switch {
	case decision.CreatePod:
		decision, err = c.createPod(ctx, at, pods, decision)
	case decision.DeletePod != nil:
		err = c.removePod(ctx, decision.DeletePod)
	case decision.ReleasePod != nil:
		err = c.releasePod(ctx, decision.ReleasePod)
	case decision.DeleteAt:
		err = c.removeAt(ctx, at)
	}
	if err != nil {
		return 0, err
	}
	if err := c.writeStatus(ctx, at, decision); err != nil {
		if apierrors.IsNotFound(err) {
			return 0, nil // The At is deleted, of which the cache does not know yet.
		}
		return 0, err
	}
	return decision.Delay, decision.Retry
}

// podsOf returns the Pods of all Ats that have, or had, the given name.
func (c *Controller) podsOf(name cache.ObjectName) ([]*corev1.Pod, error) {
	objects, err := c.podIndexer.ByIndex(byAt, name.String())
	pods := make([]*corev1.Pod, len(objects))
	for i, object := range objects {
		pods[i] = object.(*corev1.Pod)
	}
	return pods, err
}

// replace returns the Pods with live, which may be nil, in place of what the cache
// has of that name.
func replace(pods []*corev1.Pod, name string, live *corev1.Pod) []*corev1.Pod {
	pods = slices.DeleteFunc(pods, func(pod *corev1.Pod) bool { return pod.Name == name })
	if live != nil {
		pods = append(pods, live)
	}
	return pods
}

// orNil makes no object and no error of an object that is not found.
func orNil[T any](object *T, err error) (*T, error) {
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return object, err
}

// createPod creates the At's Pod, as was decided, and returns what follows from the API
// server's answer, which is the delay if it was created. The Pod's name is the lock
// against running a command twice.
func (c *Controller) createPod(ctx context.Context, at *v1alpha1.At, pods []*corev1.Pod, decision plan.Decision) (plan.Decision, error) {
	client := c.kubeClient.CoreV1().Pods(at.Namespace)
	pod, err := client.Create(ctx, plan.NewPod(at, c.defaultImage), metav1.CreateOptions{})
	switch {
	case err == nil:
		late := max(0, c.clock.Since(decision.Due)) // Due may be of another clock.
		metrics.StartLateness.Observe(late.Seconds())
		klog.FromContext(ctx).V(2).Info("Created Pod", "pod", klog.KObj(pod), "late", late)
		// The informer's event of the Pod brings the next step.
		return plan.Decision{Delay: decision.Delay}, nil
	case apierrors.IsAlreadyExists(err):
		pod, err := client.Get(ctx, plan.PodName(at), metav1.GetOptions{})
		if err != nil {
			return plan.Decision{}, fmt.Errorf("get the Pod that exists already: %w", err)
		}
		// It is there: what follows is a word in the status.
		return plan.Decide(at, replace(pods, pod.Name, pod), c.clock.Now()), nil
	default:
		return plan.Refused(at, fmt.Errorf("create Pod: %w", err), c.clock.Now()), nil
	}
}

// removePod deletes the At's Pod as it was when that was decided: one that has
// ended meanwhile is left as it is.
func (c *Controller) removePod(ctx context.Context, pod *corev1.Pod) error {
	err := c.kubeClient.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion},
	})
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return nil // The Pod has changed, and its event brings the next step.
	case err != nil:
		return fmt.Errorf("delete the Pod: %w", err)
	}
	klog.FromContext(ctx).V(2).Info("Deleted Pod", "pod", klog.KObj(pod))
	return nil
}

// releasePod takes the finalizer from a Pod, and from no other that may have its
// name by now.
func (c *Controller) releasePod(ctx context.Context, pod *corev1.Pod) error {
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"$deleteFromPrimitiveList/finalizers":[%q]}}`, pod.UID, v1alpha1.FinalizerTracking)
	_, err := c.kubeClient.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err) || isUIDMismatch(err):
		return nil // It is gone, or another has its name; its event tells.
	case err != nil:
		return fmt.Errorf("take the finalizer from the Pod: %w", err)
	}
	klog.FromContext(ctx).V(2).Info("Released Pod", "pod", klog.KObj(pod))
	return nil
}

// isUIDMismatch says whether a patch was refused since the object of that name is
// another one. It is Invalid then; but so is what an admission policy denies.
func isUIDMismatch(err error) bool {
	cause, ok := apierrors.StatusCause(err, metav1.CauseTypeFieldValueInvalid)
	return ok && cause.Field == "metadata.uid"
}

// releaseOrphan takes the finalizer from a Pod whose At is gone. If that is there
// all the same, the cache does not have it yet, and will tell when it has.
func (c *Controller) releaseOrphan(ctx context.Context, name cache.ObjectName, pod *corev1.Pod) error {
	at, err := orNil(c.cnatClient.CnatV1alpha1().Ats(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{}))
	if err != nil {
		return fmt.Errorf("look for the At: %w", err)
	}
	if at != nil && plan.IsOf(pod, at) {
		return nil
	}
	return c.releasePod(ctx, pod)
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
		return fmt.Errorf("delete the At: %w", err)
	}
	klog.FromContext(ctx).V(2).Info("Asked for the At's deletion, its time to live is over")
	return nil
}

// writeStatus writes the decision's status, if it has one, and then tells of it.
func (c *Controller) writeStatus(ctx context.Context, at *v1alpha1.At, decision plan.Decision) error {
	if decision.Status == nil {
		return nil
	}
	updated := at.DeepCopy()
	updated.Status = *decision.Status
	updated, err := c.cnatClient.CnatV1alpha1().Ats(at.Namespace).UpdateStatus(ctx, updated, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("update status: %w", err)
	}
	c.rememberWritten(updated)
	klog.FromContext(ctx).V(2).Info("Wrote status", "phase", updated.Status.Phase, "reason", updated.Status.Reason)
	countEnds(at, updated, decision.Event)
	// Told once it is recorded, not when it is done: of many that are due at one time, all
	// are created first.
	if pod := updated.Status.Pod; pod != nil && (at.Status.Pod == nil || at.Status.Pod.UID != pod.UID) {
		c.recorder.Eventf(at, corev1.EventTypeNormal, v1alpha1.ReasonSuccessfulCreate, "Created Pod %s", pod.Name)
	}
	if event := decision.Event; event != nil {
		c.recorder.Event(at, event.Type, event.Reason, event.Message)
	}
	return nil
}

// countEnds counts the run and the attempt that have ended with a change of status,
// which the event tells.
func countEnds(before, after *v1alpha1.At, event *plan.Event) {
	if after.Status.Phase == v1alpha1.PhaseDone {
		metrics.Runs.WithLabelValues(after.Status.Reason).Inc()
	}
	if after.Status.Failed > before.Status.Failed || after.Status.Reason == v1alpha1.ReasonCompleted {
		metrics.Attempts.WithLabelValues(event.Reason).Inc()
	}
}

// latest returns the At as this process last wrote it, if that is newer than
// what was read from the cache.
func (c *Controller) latest(cached *v1alpha1.At) *v1alpha1.At {
	c.writtenLock.Lock()
	defer c.writtenLock.Unlock()
	if written := c.written[cached.UID]; written != nil {
		if newer(written, cached) {
			return written
		}
		return cached
	}
	// What was forgotten since cached was read is in the cache by now.
	if current, err := c.atLister.Ats(cached.Namespace).Get(cached.Name); err == nil && current.UID == cached.UID {
		return current
	}
	return cached
}

func (c *Controller) rememberWritten(at *v1alpha1.At) {
	c.writtenLock.Lock()
	defer c.writtenLock.Unlock()
	// The handlers run after the cache has changed: what it does not have yet
	// they will hear of, and forget.
	if cached, err := c.atLister.Ats(at.Namespace).Get(at.Name); err == nil && cached.UID == at.UID && newer(at, cached) {
		c.written[at.UID] = at
	}
}

func (c *Controller) forgetWritten(cached *v1alpha1.At) {
	c.writtenLock.Lock()
	defer c.writtenLock.Unlock()
	if written := c.written[cached.UID]; written != nil && !newer(written, cached) {
		delete(c.written, cached.UID)
	}
}

// newer says whether a is a later version of the same object than b.
func newer(a, b *v1alpha1.At) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order > 0
}
