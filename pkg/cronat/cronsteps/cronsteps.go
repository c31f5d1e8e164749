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
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

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

// maxLeaveSteps is the number of steps, apart from steps that release an At, after which
// something must be wrong.
const maxLeaveSteps = 10

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

	ats cache.Indexer
	// Counted records since when this process knows that an At with the finalizer is
	// counted. It is for hack/explore, and not to be used during a sync.
	Counted map[types.UID]time.Time
	lock    sync.Mutex
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
		Counted:  map[types.UID]time.Time{},
	}
	s.Freshness = staleness.NewTracker(cronAtInformer.Informer().GetIndexer().LastStoreSyncResourceVersion)
	s.Written = staleness.NewWritten(func(namespace, name string) (*v1alpha1.CronAt, error) { return s.CronAts.CronAts(namespace).Get(name) }, cronplan.KeepCronAt)
	if err := cronAtInformer.Informer().SetTransform(Keep); err != nil {
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

// Keep is the transform of the informer of CronAts. It keeps what decisions need.
func Keep(obj any) (any, error) {
	if cronAt, ok := obj.(*v1alpha1.CronAt); ok {
		return cronplan.KeepCronAt(cronAt), nil
	}
	return obj, nil
}

// World returns the World of the CronAt with the given name.
func (s *Steps) World(name cache.ObjectName) *cronplan.World {
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
	return world
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

// Decide returns the next step, by the current time.
func (s *Steps) Decide(world *cronplan.World) cronplan.Decision {
	world.Now = s.Clock.Now()
	s.addCounted(world)
	return cronplan.Decide(*world)
}

// addCounted adds to world since when its Ats are known to be counted.
func (s *Steps) addCounted(world *cronplan.World) {
	s.lock.Lock()
	defer s.lock.Unlock()
	world.CountedSince = map[types.UID]time.Time{}
	for _, at := range world.Ats {
		if !plan.IsScheduled(at) || !world.IsCounted(at) {
			continue
		}
		if _, seen := s.Counted[at.UID]; !seen {
			s.Counted[at.UID] = world.Now
		}
		world.CountedSince[at.UID] = s.Counted[at.UID]
	}
}

// Forget must be called for an At that is gone or released.
func (s *Steps) Forget(uid types.UID) {
	s.lock.Lock()
	defer s.lock.Unlock()
	delete(s.Counted, uid)
}

// Leave takes the steps that cronplan.Leave decides for a CronAt and those of its Ats that
// have the finalizer.
func (s *Steps) Leave(ctx context.Context, name cache.ObjectName, ats []*v1alpha1.At) error {
	world := &cronplan.World{Ats: ats, CronAtIsLive: name.Name == ""}
	for range maxLeaveSteps + len(ats) {
		world.Now = s.Clock.Now()
		decision := cronplan.Leave(*world)
		if decision.Action == nil && decision.Status == nil {
			return nil
		}
		if _, _, err := s.Take(ctx, name, world, decision); err != nil {
			return err
		}
	}
	return fmt.Errorf("no result after many steps for CronAt %s", name)
}

// Take takes the step that was decided. It returns the decision or, if the API server
// refused the step, the decision that follows. again reports whether to decide again now,
// based on the changes to world.
func (s *Steps) Take(ctx context.Context, name cache.ObjectName, world *cronplan.World, decision cronplan.Decision) (_ cronplan.Decision, again bool, err error) {
	switch action := decision.Action.(type) {
	case nil:
	case cronplan.LookForCronAt:
		return decision, true, s.lookForCronAt(ctx, name, world)
	case cronplan.LookForAts:
		return decision, true, s.lookForAts(ctx, world)
	case cronplan.CreateAt:
		created, err := s.createAt(ctx, action.At)
		if err == nil {
			// One CronAt in each 100 ms goes on with its status. When that comes back through the
			// watch, the cache is known to be fresh, so that the others that are due need not be
			// read. Theirs are written after all Ats are created: the event of the At triggers that.
			if s.Freshness.Claim(s.Clock.Now()) {
				replace(world, plan.KeepAt(created))
				return decision, true, nil
			}
			return decision, false, nil
		}
		var existing *v1alpha1.At
		if apierrors.IsAlreadyExists(err) {
			existing, err = s.getAt(ctx, action.At)
		}
		switch {
		case err != nil:
			decision = cronplan.Refused(*world, fmt.Errorf("create At: %w", err))
		case !world.IsChild(existing):
			decision = cronplan.AtNameTaken(*world, existing)
		default:
			// The cache may lack the Ats of earlier times, too.
			err := s.lookForAts(ctx, world)
			replace(world, existing)
			return decision, true, err
		}
	case cronplan.DeleteAts:
		return decision, true, s.deleteAts(ctx, world, action, decision.Events)
	case cronplan.ExpireAt:
		return decision, true, s.expireAt(ctx, world, action)
	case cronplan.ReleaseAt:
		return decision, true, s.releaseAt(ctx, world, action.At)
	default:
		return decision, false, fmt.Errorf("unknown action %T", action)
	}
	// There was no action, or the API server refused it.
	if decision.Status == nil {
		return decision, false, nil
	}
	if !world.CronAtIsLive && !cronplan.HasWholeStatus(world.CronAt) {
		// The patch would write the shortened texts.
		return decision, true, s.lookForCronAt(ctx, name, world)
	}
	if err := s.writeStatus(ctx, world, decision); err != nil {
		return decision, false, err
	}
	return decision, decision.Retry == nil, nil
}

// replace adds an At to world, replacing any At of that name.
func replace(world *cronplan.World, at *v1alpha1.At) {
	world.Ats = append(slices.DeleteFunc(slices.Clone(world.Ats), func(other *v1alpha1.At) bool { return other.Name == at.Name }), at)
}

// maxListAge is the age after which the Ats of a CronAt are listed again before one is created.
// If this process was paused, another controller may have created the At of an earlier time
// meanwhile, which is still running. Scheduled times are at least a minute apart.
const maxListAge = 10 * time.Second

// lookForCronAt reads the CronAt when an At may be created immediately afterwards.
func (s *Steps) lookForCronAt(ctx context.Context, name cache.ObjectName, world *cronplan.World) error {
	client := s.Client.CnatV1alpha1()
	cronAt, err := client.CronAts(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if err != nil {
		cronAt = nil
		if err := answer.UnlessGone(ctx, client.RESTClient(), v1alpha1.SchemeGroupVersion.WithResource("cronats"), name.Name, err); err != nil {
			return fmt.Errorf("read the CronAt: %w", err)
		}
	}
	if cronAt == nil || world.CronAt == nil || cronAt.UID != world.CronAt.UID || s.Clock.Since(world.AtsAsOf) > maxListAge {
		world.AtsAreLive = false
	}
	world.CronAt, world.CronAtIsLive, world.CronAtAsOf = cronAt, true, s.Clock.Now()
	return nil
}

// lookForAts reads the Ats of the CronAt. Ats that are only in the cache may be gone, or
// may have lost their label: they count until the cache is updated.
func (s *Steps) lookForAts(ctx context.Context, world *cronplan.World) error {
	ats := s.Client.CnatV1alpha1().Ats(world.CronAt.Namespace)
	options := metav1.ListOptions{LabelSelector: v1alpha1.LabelCronAtUID + "=" + string(world.CronAt.UID)}
	err := connect.Each(ctx, ats.List, options, func(at *v1alpha1.At) {
		if at = plan.KeepAt(at); world.IsChild(at) {
			replace(world, at)
		}
	})
	if err != nil {
		return fmt.Errorf("list the Ats: %w", err)
	}
	world.AtsAreLive, world.AtsAsOf = true, s.Clock.Now()
	return nil
}

// createAt creates and returns an At.
func (s *Steps) createAt(ctx context.Context, at *v1alpha1.At) (*v1alpha1.At, error) {
	created, err := s.Client.CnatV1alpha1().Ats(at.Namespace).Create(ctx, at, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	klog.FromContext(ctx).V(2).Info("Created At", "at", klog.KObj(created), "schedule", at.Spec.Schedule)
	return created, nil
}

// getAt reads the At with the name of an At that could not be created.
func (s *Steps) getAt(ctx context.Context, at *v1alpha1.At) (*v1alpha1.At, error) {
	existing, err := s.Client.CnatV1alpha1().Ats(at.Namespace).Get(ctx, at.Name, metav1.GetOptions{})
	switch {
	case answer.IsNotFound(err, at.Name):
		return nil, errors.New("the At already existed but has since been deleted")
	case err != nil:
		return nil, err
	}
	return plan.KeepAt(existing), nil
}

// deleteAts deletes Ats unless they have changed since the decision.
func (s *Steps) deleteAts(ctx context.Context, world *cronplan.World, action cronplan.DeleteAts, events []plan.Event) error {
	options := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
	if action.Replaced {
		options.PropagationPolicy = ptr.To(metav1.DeletePropagationForeground)
	}
	for i, at := range action.Ats {
		options.Preconditions = &metav1.Preconditions{UID: &at.UID, ResourceVersion: &at.ResourceVersion}
		err := s.Client.CnatV1alpha1().Ats(at.Namespace).Delete(ctx, at.Name, options)
		if err != nil && !answer.IsNotFound(err, at.Name) {
			return s.report(world.CronAt, v1alpha1.ReasonAtNotDeleted, fmt.Errorf("delete At %s: %w", at.Name, err))
		}
		deleted := at.DeepCopy()
		deleted.DeletionTimestamp = &metav1.Time{Time: world.Now}
		replace(world, deleted)
		klog.FromContext(ctx).V(2).Info("Deleted At", "at", klog.KObj(at), "replaced", action.Replaced)
		s.record(world.CronAt, events[i:i+1])
	}
	return nil
}

// expireAt sets the starting deadline of an At unless it has changed since the decision.
func (s *Steps) expireAt(ctx context.Context, world *cronplan.World, action cronplan.ExpireAt) error {
	at := action.At
	body := fmt.Appendf(nil, `{"metadata":{"uid":%q,"resourceVersion":%q},"spec":{"startingDeadlineSeconds":%d}}`, at.UID, at.ResourceVersion, action.Seconds)
	expired, err := s.Client.CnatV1alpha1().Ats(at.Namespace).Patch(ctx, at.Name, types.MergePatchType, body, metav1.PatchOptions{})
	switch {
	case answer.IsNotFound(err, at.Name):
		expired = at.DeepCopy()
		expired.Spec.StartingDeadlineSeconds = &action.Seconds
	case err != nil:
		return s.report(world.CronAt, v1alpha1.ReasonAtNotExpired, fmt.Errorf("set the starting deadline of At %s: %w", at.Name, err))
	}
	replace(world, plan.KeepAt(expired))
	klog.FromContext(ctx).V(2).Info("Expired At", "at", klog.KObj(at), "startingDeadlineSeconds", action.Seconds)
	return nil
}

// releaseAt removes the finalizer from an At.
func (s *Steps) releaseAt(ctx context.Context, world *cronplan.World, at *v1alpha1.At) error {
	released, err := s.withoutFinalizer(ctx, at)
	switch {
	case answer.IsNotFound(err, at.Name):
		released = at.DeepCopy()
		released.Finalizers = nil
	case err != nil:
		return s.report(world.CronAt, v1alpha1.ReasonAtNotReleased, fmt.Errorf("remove the finalizer of At %s: %w", at.Name, err))
	}
	replace(world, plan.KeepAt(released))
	s.Forget(at.UID)
	klog.FromContext(ctx).V(2).Info("Released At", "at", klog.KObj(at))
	return nil
}

// withoutFinalizer removes the finalizer from an At, whatever else has changed in it, and returns
// the result.
func (s *Steps) withoutFinalizer(ctx context.Context, at *v1alpha1.At) (*v1alpha1.At, error) {
	ats := s.Client.CnatV1alpha1().Ats(at.Namespace)
	release := func(at *v1alpha1.At) (*v1alpha1.At, error) {
		body, err := patch.WithoutFinalizer(at, v1alpha1.FinalizerScheduled)
		if err != nil {
			return nil, err
		}
		return ats.Patch(ctx, at.Name, types.MergePatchType, body, metav1.PatchOptions{})
	}
	if plan.HasAllFinalizers(at) {
		if released, err := release(at); !answer.IsConflict(err, at.Name) {
			return released, err
		}
	}
	whole, err := ats.Get(ctx, at.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	whole = whole.DeepCopy()
	whole.UID = at.UID
	return release(whole)
}

// writeStatus writes the decision's status and records its events. It puts the resulting
// CronAt into world.
func (s *Steps) writeStatus(ctx context.Context, world *cronplan.World, decision cronplan.Decision) error {
	cronAt := world.CronAt
	body, err := patch.Status(cronAt.ResourceVersion, &cronAt.Status, decision.Status)
	if err != nil {
		return err
	}
	updated, err := staleness.Send(s.Written, s.Freshness, s.Clock, cronAt, func() (*v1alpha1.CronAt, error) {
		return s.Client.CnatV1alpha1().CronAts(cronAt.Namespace).Patch(ctx, cronAt.Name, types.MergePatchType, body, metav1.PatchOptions{}, "status")
	})
	switch {
	case answer.IsNotFound(err, cronAt.Name):
		world.CronAt, world.CronAtIsLive = nil, true
		return nil
	case err != nil:
		return fmt.Errorf("write the status: %w", err)
	}
	klog.FromContext(ctx).V(2).Info("Wrote status", "lastScheduleTime", ptr.Deref(updated.Status.LastScheduleTime, metav1.Time{}), "active", updated.Status.Active, "reason", updated.Status.Reason)
	metrics.CronAtMissed.Add(float64(missed(decision.Status) - missed(&cronAt.Status)))
	s.record(updated, decision.Events)
	world.CronAt, world.CronAtIsLive, world.CronAtAsOf = updated, true, s.Clock.Now()
	return nil
}

func missed(status *v1alpha1.CronAtStatus) int64 {
	return ptr.Deref(status.Missed, v1alpha1.MissedTimes{}).Count
}

// report records an event on the CronAt, if there is one, for an error that will not
// resolve by itself. It returns the error to retry with.
func (s *Steps) report(cronAt *v1alpha1.CronAt, reason string, err error) error {
	if cronAt == nil {
		return err
	}
	return events.Report(s.Recorder, cronAt, reason, err)
}

func (s *Steps) record(cronAt *v1alpha1.CronAt, events []plan.Event) {
	for _, event := range events {
		s.Recorder.Event(cronAt, event.Type, event.Reason, event.Message)
	}
}
