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
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	cnatscheme "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/scheme"
	informers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions/cnat/v1alpha1"
	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

const controllerName = "cnat-controller"

// What could not be done is tried again after minBackoff, then after twice as
// long each time, at most maxBackoff.
const (
	minBackoff = 200 * time.Millisecond
	maxBackoff = time.Minute
)

// Controller runs the command of each At once, at its time, in a Pod that the
// At owns.
type Controller struct {
	kubeClient kubernetes.Interface
	cnatClient clientset.Interface

	atLister  listers.AtLister
	podLister corelisters.PodLister
	synced    []cache.DoneChecker

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
		podLister:  podInformer.Lister(),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](minBackoff, maxBackoff),
			workqueue.TypedRateLimitingQueueConfig[cache.ObjectName]{Name: "ats", Clock: wallClock},
		),
		broadcaster:  broadcaster,
		recorder:     broadcaster.NewRecorder(cnatscheme.Scheme, corev1.EventSource{Component: controllerName}),
		clock:        wallClock,
		defaultImage: defaultImage,
		written:      map[types.UID]*v1alpha1.At{},
	}

	atHandler, err := atInformer.TypedInformer().AddTypedEventHandler(informers.AtHandlerFuncs{
		AddFunc:    c.addAt,
		UpdateFunc: c.updateAt,
		DeleteFunc: c.deleteAt,
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

func (c *Controller) addAt(at *v1alpha1.At) {
	c.queue.Add(cache.MetaObjectToName(at))
}

// updateAt enqueues an At that a person has changed. A mere change of its status
// is the controller's own and calls for nothing: the Pod's events do, or the
// time. Were it enqueued, a status that changes with each refusal of the Pod
// would go round without back-off.
func (c *Controller) updateAt(old, cur *v1alpha1.At) {
	c.forgetWritten(cur)
	if old.UID != cur.UID {
		// The informer missed that one was deleted, and another created by its name.
		c.deleteAt(informers.DeletedAt{OptionalObj: old})
		return
	}
	if old.Generation != cur.Generation || old.DeletionTimestamp.IsZero() != cur.DeletionTimestamp.IsZero() {
		c.queue.Add(cache.MetaObjectToName(cur))
	}
}

func (c *Controller) deleteAt(at informers.DeletedAt) {
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

// enqueueOwner enqueues the At that pod names as its controller. The UID is left
// to plan.Decide: when the Pod of an earlier At goes, the At that has the name
// now is waiting to hear of it.
func (c *Controller) enqueueOwner(pod *corev1.Pod) {
	if owner := plan.OwnerAt(pod); owner != nil {
		c.queue.Add(cache.NewObjectName(pod.Namespace, owner.Name))
	}
}

func (c *Controller) processNextWorkItem(ctx context.Context) bool {
	name, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(name)

	delay, err := c.syncHandler(ctx, name)
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

// syncHandler takes the one step that is next for an At. It returns the delay
// after which to look at the At again, 0 if there is no need, or an error if the
// step is to be tried again with back-off.
func (c *Controller) syncHandler(ctx context.Context, name cache.ObjectName) (time.Duration, error) {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "at", klog.KRef(name.Parts()))
	ctx = klog.NewContext(ctx, logger)

	at, err := c.atLister.Ats(name.Namespace).Get(name.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	at = c.latest(at)
	pod, err := orNil(c.podLister.Pods(at.Namespace).Get(plan.PodName(at)))
	if err != nil {
		return 0, err
	}
	decision := plan.Decide(at, pod, c.clock.Now())
	if decision.Confirm {
		pod, err = orNil(c.kubeClient.CoreV1().Pods(at.Namespace).Get(ctx, plan.PodName(at), metav1.GetOptions{}))
		if err != nil {
			return 0, fmt.Errorf("look for the Pod: %w", err)
		}
		decision = plan.Decide(at, pod, c.clock.Now())
	}
	logger.V(4).Info("Syncing", "phase", at.Status.Phase, "createPod", decision.CreatePod, "deletePod", decision.DeletePod, "deleteAt", decision.DeleteAt, "writeStatus", decision.Status != nil, "delay", decision.Delay)
	switch {
	case decision.CreatePod:
		decision, err = c.createPod(ctx, at, decision.Delay)
	case decision.DeletePod:
		err = c.removePod(ctx, pod)
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

// orNil makes no Pod and no error of a Pod that is not found.
func orNil(pod *corev1.Pod, err error) (*corev1.Pod, error) {
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return pod, err
}

// createPod creates the At's Pod and returns what follows from the API server's
// answer, which is the delay if it was created. The Pod's name is the lock against
// running a command twice.
func (c *Controller) createPod(ctx context.Context, at *v1alpha1.At, delay time.Duration) (plan.Decision, error) {
	pods := c.kubeClient.CoreV1().Pods(at.Namespace)
	pod, err := pods.Create(ctx, plan.NewPod(at, c.defaultImage), metav1.CreateOptions{})
	switch {
	case err == nil:
		klog.FromContext(ctx).V(2).Info("Created Pod", "pod", klog.KObj(pod))
		c.recorder.Eventf(at, corev1.EventTypeNormal, v1alpha1.ReasonSuccessfulCreate, "Created Pod %s", pod.Name)
		// The informer's event of the Pod brings the next step.
		return plan.Decision{Delay: delay}, nil
	case apierrors.IsAlreadyExists(err):
		pod, err := pods.Get(ctx, plan.PodName(at), metav1.GetOptions{})
		if err != nil {
			return plan.Decision{}, fmt.Errorf("get the Pod that exists already: %w", err)
		}
		return plan.Decide(at, pod, c.clock.Now()), nil
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
	klog.FromContext(ctx).V(2).Info("Deleted At, its time to live is over")
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
	if event := decision.Event; event != nil {
		c.recorder.Event(at, event.Type, event.Reason, event.Message)
	}
	return nil
}

// latest returns the At as this process last wrote it, if that is newer than
// what the cache has.
func (c *Controller) latest(cached *v1alpha1.At) *v1alpha1.At {
	c.writtenLock.Lock()
	defer c.writtenLock.Unlock()
	if written := c.written[cached.UID]; written != nil && newer(written, cached) {
		return written
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
