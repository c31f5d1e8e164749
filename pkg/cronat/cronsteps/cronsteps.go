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

// Package cronsteps takes the steps that package cronplan decides on: it calls the API server and
// updates the world from the answers, as package steps does for an At.
package cronsteps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
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
	"programming-kubernetes.info/cnat-controller/pkg/machinery/events"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/patch"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/sorted"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// byCronAt is the index of Ats by the CronAt that created them.
const byCronAt = "cronat"

// Steps takes the steps of all CronAts. Several workers may use it concurrently.
type Steps struct {
	Client   clientset.Interface
	Recorder record.EventRecorder
	Clock    clock.PassiveClock
	// CronAts has those in the cache.
	CronAts listers.CronAtLister
	// Written has the statuses that this process has written and that are not in the cache
	// yet.
	Written *staleness.Written[*v1alpha1.CronAt]
	// Freshness tells how old the CronAts in the cache can be.
	Freshness *staleness.Tracker

	// Counted has the times since when Ats with the finalizer are known to be counted, by UID.
	Counted sync.Map

	ats cache.Indexer
}

// New returns Steps with the caches of two informers. It sets the transform of that of CronAts
// and adds an index to that of Ats.
func New(client clientset.Interface, cronAtInformer informers.TypedCronAtInformer, atInformer informers.TypedAtInformer, recorder record.EventRecorder, wallClock clock.PassiveClock) (*Steps, error) {
	s := &Steps{
		Client:   client,
		Recorder: recorder,
		Clock:    wallClock,
		CronAts:  cronAtInformer.Lister(),
		ats:      atInformer.Informer().GetIndexer(),
	}
	s.Freshness = staleness.NewTracker(cronAtInformer.Informer().GetIndexer().LastStoreSyncResourceVersion)
	s.Written = staleness.NewWritten(func(namespace, name string) (*v1alpha1.CronAt, error) { return s.CronAts.CronAts(namespace).Get(name) }, cronplan.KeepCronAt)
	if err := cronAtInformer.Informer().SetTransform(connect.Transform(cronplan.KeepCronAt)); err != nil {
		return nil, fmt.Errorf("set the transform of the informer: %w", err)
	}
	err := s.ats.AddIndexers(cache.Indexers{byCronAt: func(obj any) ([]string, error) {
		at := obj.(*v1alpha1.At)
		if name := cronplan.CronAtName(at); name != "" {
			return []string{cache.NewObjectName(at.Namespace, name).String()}, nil
		}
		return nil, nil
	}})
	if err != nil {
		return nil, fmt.Errorf("add the index of Ats: %w", err)
	}
	return s, nil
}

// Observe returns what the caches know of the CronAt with the given name.
func (s *Steps) Observe(name cache.ObjectName) *cronplan.World {
	now := s.Clock.Now()
	world := &cronplan.World{CronAtAsOf: s.Freshness.AsOf(now), Now: now}
	// The only possible error: it is not in the cache.
	if cronAt, err := s.CronAts.CronAts(name.Namespace).Get(name.Name); err == nil {
		world.CronAt = s.Written.Latest(cronAt)
	}
	objects, err := s.ats.ByIndex(byCronAt, name.String())
	utilruntime.Must(err) // An error would mean that the index does not exist.
	for _, object := range objects {
		world.Ats = append(world.Ats, object.(*v1alpha1.At))
	}
	sorted.ByName(world.Ats)
	s.observeCounted(world)
	return world
}

// observeCounted adds to world since when its Ats are known to be counted.
func (s *Steps) observeCounted(world *cronplan.World) {
	world.CountedSince = map[types.UID]time.Time{}
	for _, at := range world.Ats {
		if plan.IsScheduled(at) && world.IsCounted(at) {
			since, _ := s.Counted.LoadOrStore(at.UID, world.Now)
			world.CountedSince[at.UID] = since.(time.Time)
		}
	}
}

// errOutdated is the error if something else changes a CronAt while it is read.
var errOutdated = answer.Blocked("CacheOutdated", errors.New("the CronAt or its Ats have changed: waiting for the cache"))

// Sync observes a CronAt, decides, and takes one step: a status, or what a watch reports, brings the next one. It returns the
// delay after which to do that again (0 if that is not necessary), or an error if the step must be
// retried with back-off.
func (s *Steps) Sync(ctx context.Context, name cache.ObjectName, decide func(*cronplan.World) cronplan.Decision) (time.Duration, error) {
	world := s.Observe(name)
	decision := decide(world)
	cronAt, ats := cronplan.NeedsLive(*world, decision)
	if cronAt || ats {
		if err := s.read(ctx, name, world, cronAt, ats); err != nil {
			return decision.Delay, err
		}
		decision = decide(world)
		if cronAt, ats = cronplan.NeedsLive(*world, decision); cronAt || ats {
			return decision.Delay, errOutdated
		}
	}
	return s.take(ctx, world, decision, decide)
}

// Names returns the names of the CronAts in the cache, and of those that are gone and still
// have Ats.
func (s *Steps) Names() []cache.ObjectName {
	keys := sets.New(s.ats.ListIndexFuncValues(byCronAt)...)
	cronAts, _ := s.CronAts.List(labels.Everything()) // Reading from a cache cannot fail.
	for _, cronAt := range cronAts {
		keys.Insert(cache.MetaObjectToName(cronAt).String())
	}
	var names []cache.ObjectName
	for _, key := range sets.List(keys) {
		if name, err := cache.ParseObjectName(key); err == nil {
			names = append(names, name)
		}
	}
	return names
}

// Leave records the times of a CronAt whose Ats have the finalizer, and releases these Ats, while the
// controller is being uninstalled.
func (s *Steps) Leave(ctx context.Context, name cache.ObjectName, ats []*v1alpha1.At) error {
	world := &cronplan.World{Ats: slices.Clone(ats), Now: s.Clock.Now()}
	if err := s.readCronAt(ctx, name, world); err != nil {
		return err
	}
	if world.CronAt != nil {
		if err := s.readAts(ctx, world); err != nil {
			return err
		}
	}
	if status := cronplan.Leave(*world); status != nil {
		updated, err := s.writeStatus(ctx, world.CronAt, status)
		if err != nil {
			return err
		}
		world.CronAt = updated
	}
	for _, at := range world.Ats {
		if plan.IsScheduled(at) && world.IsCounted(at) {
			if err := s.releaseAt(ctx, world.CronAt, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// take takes the step that was decided.
func (s *Steps) take(ctx context.Context, world *cronplan.World, decision cronplan.Decision, decide func(*cronplan.World) cronplan.Decision) (time.Duration, error) {
	var err error
	switch action := decision.Action.(type) {
	case nil:
	case cronplan.CreateAt:
		if decision, err = s.create(ctx, world, decision, action.At, decide); err != nil {
			return decision.Delay, err
		}
	case cronplan.DeleteAt:
		err = s.deleteAt(ctx, world.CronAt, action, decision.Events)
	case cronplan.ExpireAt:
		err = s.expireAt(ctx, world.CronAt, action)
	case cronplan.ReleaseAt:
		err = s.releaseAt(ctx, world.CronAt, action.At)
	default:
		err = fmt.Errorf("unknown action %T", action)
	}
	if err != nil || decision.Status == nil {
		return decision.Delay, cmp.Or(err, decision.Retry)
	}
	updated, err := s.writeStatus(ctx, world.CronAt, decision.Status)
	if err != nil {
		return decision.Delay, err
	}
	if equality.Semantic.DeepEqual(&cronplan.KeepCronAt(updated).Status, &world.CronAt.Status) {
		// Others have written so much to the status that the cache does not keep all of ours: the next
		// sync would do the same.
		return decision.Delay, decision.Retry
	}
	s.record(updated, decision.Events)
	if decision.Retry != nil {
		return decision.Delay, decision.Retry
	}
	return atOnce, nil
}

// atOnce is the delay until the sync after a status was written. Its event may come too soon: while the
// CronAt counts as one that is retried, it does not enqueue the CronAt.
const atOnce = time.Nanosecond

// create creates an At. It returns the decision that follows, of which only the status is left to
// write.
func (s *Steps) create(ctx context.Context, world *cronplan.World, decision cronplan.Decision, at *v1alpha1.At, decide func(*cronplan.World) cronplan.Decision) (cronplan.Decision, error) {
	ats := s.Client.CnatV1alpha1().Ats(at.Namespace)
	created, err := ats.Create(ctx, at, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		var existing *v1alpha1.At
		existing, err = ats.Get(ctx, at.Name, metav1.GetOptions{})
		switch {
		case answer.IsNotFound(err, at.Name), err == nil && world.IsChild(existing):
			return decision, errOutdated
		case err == nil:
			return cronplan.AtNameTaken(*world, existing), nil
		}
	}
	if err != nil {
		return cronplan.Refused(*world, fmt.Errorf("create At: %w", err)), nil
	}
	klog.FromContext(ctx).V(2).Info("Created At", "at", klog.KObj(created), "schedule", at.Spec.Schedule)
	if !s.Freshness.Claim(s.Clock.Now()) {
		return decision, nil
	}
	// One CronAt in each 100 ms goes on with its status. When that comes back through the
	// watch, the cache is known to be fresh, so that the others that are due need not be
	// read. Theirs are written after all Ats are created: the event of the At triggers that.
	world.Ats = append(world.Ats, plan.KeepAt(created))
	recorded := decide(world)
	recorded.Delay = decision.Delay
	return recorded, nil
}

// read reads the CronAt, its Ats, or both: the CronAt last, because the list may take long.
func (s *Steps) read(ctx context.Context, name cache.ObjectName, world *cronplan.World, cronAt, ats bool) error {
	if ats {
		if err := s.readAts(ctx, world); err != nil {
			return err
		}
	}
	if cronAt {
		if err := s.readCronAt(ctx, name, world); err != nil {
			return err
		}
	}
	world.Now = s.Clock.Now()
	s.observeCounted(world)
	return nil
}

func (s *Steps) readCronAt(ctx context.Context, name cache.ObjectName, world *cronplan.World) error {
	client := s.Client.CnatV1alpha1()
	cronAt, err := client.CronAts(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if err != nil {
		cronAt = nil
		if err := answer.UnlessGone(ctx, client.RESTClient(), v1alpha1.SchemeGroupVersion.WithResource("cronats"), name.Name, err); err != nil {
			return fmt.Errorf("read the CronAt: %w", err)
		}
	}
	if cronAt == nil || world.CronAt == nil || cronAt.UID != world.CronAt.UID {
		world.AtsAsOf = time.Time{}
	}
	world.CronAt, world.CronAtIsLive, world.CronAtAsOf = cronAt, true, s.Clock.Now()
	return nil
}

// readAts reads the Ats of the CronAt. Ats that are only in the cache may be gone, or
// may have lost their label: they count until the cache is updated.
func (s *Steps) readAts(ctx context.Context, world *cronplan.World) error {
	ats := s.Client.CnatV1alpha1().Ats(world.CronAt.Namespace)
	options := metav1.ListOptions{LabelSelector: v1alpha1.LabelCronAtUID + "=" + string(world.CronAt.UID)}
	err := connect.Each(ctx, ats.List, options, func(at *v1alpha1.At) {
		if at = plan.KeepAt(at); world.IsChild(at) {
			world.Ats = append(slices.DeleteFunc(world.Ats, func(other *v1alpha1.At) bool { return other.Name == at.Name }), at)
		}
	})
	if err != nil {
		return fmt.Errorf("list the Ats: %w", err)
	}
	world.AtsAsOf = s.Clock.Now()
	return nil
}

// deleteAt deletes an At unless it has changed since the decision.
func (s *Steps) deleteAt(ctx context.Context, cronAt *v1alpha1.CronAt, action cronplan.DeleteAt, after []plan.Event) error {
	at, propagation := action.At, metav1.DeletePropagationBackground
	if action.Replaced {
		propagation = metav1.DeletePropagationForeground
	}
	err := s.Client.CnatV1alpha1().Ats(at.Namespace).Delete(ctx, at.Name, metav1.DeleteOptions{
		PropagationPolicy: &propagation,
		Preconditions:     &metav1.Preconditions{UID: &at.UID, ResourceVersion: &at.ResourceVersion},
	})
	if err != nil && !answer.IsNotFound(err, at.Name) {
		return events.Report(s.Recorder, cronAt, v1alpha1.ReasonAtNotDeleted, fmt.Errorf("delete At %s: %w", at.Name, err))
	}
	klog.FromContext(ctx).V(2).Info("Deleted At", "at", klog.KObj(at), "replaced", action.Replaced)
	s.record(cronAt, after)
	return nil
}

// expireAt sets the starting deadline of an At unless it has changed since the decision.
func (s *Steps) expireAt(ctx context.Context, cronAt *v1alpha1.CronAt, action cronplan.ExpireAt) error {
	at := action.At
	body := fmt.Appendf(nil, `{"metadata":{"uid":%q,"resourceVersion":%q},"spec":{"startingDeadlineSeconds":%d}}`, at.UID, at.ResourceVersion, action.Seconds)
	_, err := s.Client.CnatV1alpha1().Ats(at.Namespace).Patch(ctx, at.Name, types.MergePatchType, body, metav1.PatchOptions{})
	if err != nil && !answer.IsNotFound(err, at.Name) {
		return events.Report(s.Recorder, cronAt, v1alpha1.ReasonAtNotExpired, fmt.Errorf("set the starting deadline of At %s: %w", at.Name, err))
	}
	klog.FromContext(ctx).V(2).Info("Expired At", "at", klog.KObj(at), "startingDeadlineSeconds", action.Seconds)
	return nil
}

// releaseAt removes the finalizer from an At.
func (s *Steps) releaseAt(ctx context.Context, cronAt *v1alpha1.CronAt, at *v1alpha1.At) error {
	if err := s.withoutFinalizer(ctx, at); err != nil && !answer.IsNotFound(err, at.Name) {
		return events.Report(s.Recorder, cronAt, v1alpha1.ReasonAtNotReleased, fmt.Errorf("remove the finalizer of At %s: %w", at.Name, err))
	}
	s.Counted.Delete(at.UID)
	klog.FromContext(ctx).V(2).Info("Released At", "at", klog.KObj(at))
	return nil
}

// withoutFinalizer removes the finalizer from an At, whatever else has changed in it.
func (s *Steps) withoutFinalizer(ctx context.Context, at *v1alpha1.At) error {
	ats := s.Client.CnatV1alpha1().Ats(at.Namespace)
	release := func(at *v1alpha1.At) error {
		_, err := ats.Patch(ctx, at.Name, types.MergePatchType, patch.WithoutFinalizer(at, v1alpha1.FinalizerScheduled), metav1.PatchOptions{})
		return err
	}
	if plan.HasAllFinalizers(at) {
		if err := release(at); !answer.IsConflict(err, at.Name) {
			return err
		}
	}
	whole, err := ats.Get(ctx, at.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	whole = whole.DeepCopy()
	whole.UID = at.UID
	return release(whole)
}

// writeStatus writes a status, and returns the CronAt with it.
func (s *Steps) writeStatus(ctx context.Context, cronAt *v1alpha1.CronAt, status *v1alpha1.CronAtStatus) (*v1alpha1.CronAt, error) {
	// The API server keeps metadata and spec.
	body := &v1alpha1.CronAt{ObjectMeta: metav1.ObjectMeta{Name: cronAt.Name, Namespace: cronAt.Namespace, ResourceVersion: cronAt.ResourceVersion}, Status: *status}
	updated, err := staleness.Send(s.Written, s.Freshness, s.Clock, cronAt, func() (*v1alpha1.CronAt, error) {
		return s.Client.CnatV1alpha1().CronAts(cronAt.Namespace).UpdateStatus(ctx, body, metav1.UpdateOptions{})
	})
	switch {
	case answer.IsNotFound(err, cronAt.Name):
		return nil, errOutdated
	case err != nil:
		return nil, fmt.Errorf("write the status: %w", err)
	}
	klog.FromContext(ctx).V(2).Info("Wrote status", "lastScheduleTime", ptr.Deref(updated.Status.LastScheduleTime, metav1.Time{}), "active", updated.Status.Active, "reason", updated.Status.Reason)
	metrics.CronAtMissed.Add(float64(cronplan.Count(status.Missed) - cronplan.Count(cronAt.Status.Missed)))
	metrics.CronAtSkipped.Add(float64(cronplan.Count(status.Skipped) - cronplan.Count(cronAt.Status.Skipped)))
	return updated, nil
}

func (s *Steps) record(cronAt *v1alpha1.CronAt, events []plan.Event) {
	for _, event := range events {
		s.Recorder.Event(cronAt, event.Type, event.Reason, event.Message)
	}
}
