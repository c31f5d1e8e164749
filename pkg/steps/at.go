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

package steps

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/events"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/patch"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/queue"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// read reads from the API server what a decision needs.
func (s *Steps) read(ctx context.Context, name cache.ObjectName, world *plan.World, need plan.Reads) error {
	before := world.At
	if need == plan.LiveAll && plan.WantsTarget(*world) {
		// Before the At: see needs in package plan.
		if err := s.readTarget(ctx, world, false); err != nil {
			return err
		}
	}
	if err := s.readAt(ctx, name, world); err != nil || world.At == nil {
		return err
	}
	if need == plan.LiveAll && equality.Semantic.DeepEqual(before.Spec.Restart, world.At.Spec.Restart) && equality.Semantic.DeepEqual(before.Status.Restart, world.At.Status.Restart) {
		world.Live = plan.LiveAll
		if err := s.readRun(ctx, world); err != nil {
			return err
		}
	}
	return s.observeNodes(ctx, world)
}

// readRun reads what shows whether the run of a live At can start, or has ended.
func (s *Steps) readRun(ctx context.Context, world *plan.World) error {
	if world.At.Status.Nodes != nil {
		return s.readChildren(ctx, world)
	}
	if world.At.Status.Restart != nil {
		return nil
	}
	if err := s.readPod(ctx, world); err != nil {
		return err
	}
	if plan.WantsTrial(*world) {
		s.tryPod(ctx, world)
	}
	return nil
}

// readAt reads the At and, unless the cache is fresh, its parent.
func (s *Steps) readAt(ctx context.Context, name cache.ObjectName, world *plan.World) error {
	names := []string{name.Name}
	parentAsOf := s.Freshness.AsOf(s.Clock.Now()) // in the cache
	if world.At != nil && !staleness.IsFresh(parentAsOf, s.Clock.Now()) {
		if parent := plan.ParentName(world.At); parent != "" {
			names = append(names, parent)
		}
	}
	// Both at the same time: one after the other, one of them would always be too old on a slow
	// API server.
	var ats [2]*v1alpha1.At
	var asOf [2]time.Time
	var errs [2]error
	workqueue.ParallelizeUntil(ctx, s.Parallel, len(names), func(i int) {
		errs[i] = queue.Recovered(func() (err error) {
			ats[i], err = s.getAt(ctx, name.Namespace, names[i])
			return err
		})
		asOf[i] = s.Clock.Now()
	})
	if err := cmp.Or(errs[0], errs[1], ctx.Err()); err != nil { // If ctx has ended, not all were read.
		return err
	}
	world.At, world.Live, world.AsOf = ats[0], plan.LiveAt, asOf[0]
	if world.At == nil {
		return nil
	}
	s.addRelatives(world)
	parent := plan.ParentName(world.At)
	if len(names) > 1 && names[1] == parent {
		parentAsOf = asOf[1]
		// The cache has the parent, too, as it has its child: unless the parent is gone.
		if live := ats[1]; live == nil || world.Parent != nil && staleness.IsNewer(live, world.Parent) {
			world.Parent = live
		}
	}
	if parent != "" && parentAsOf.Before(world.AsOf) {
		world.AsOf = parentAsOf
	}
	return nil
}

// getAt reads an At. It returns nil if the At does not exist.
func (s *Steps) getAt(ctx context.Context, namespace, name string) (*v1alpha1.At, error) {
	client := s.CnatClient.CnatV1alpha1()
	at, err := client.Ats(namespace).Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		return at, nil
	}
	if err = answer.UnlessGone(ctx, client.RESTClient(), v1alpha1.SchemeGroupVersion.WithResource("ats"), name, err); err != nil {
		return nil, fmt.Errorf("read At %s: %w", name, err)
	}
	return nil, nil
}

// releaseAt removes the finalizer from a child.
func (s *Steps) releaseAt(ctx context.Context, at *v1alpha1.At) error {
	body := patch.WithoutFinalizer(at, v1alpha1.FinalizerTracking)
	released, err := s.CnatClient.CnatV1alpha1().Ats(at.Namespace).Patch(ctx, at.Name, types.MergePatchType, body, metav1.PatchOptions{})
	switch {
	case answer.IsNotFound(err, at.Name):
		return nil
	case err != nil:
		return events.Report(s.Recorder, at, v1alpha1.ReasonAtNotReleased, fmt.Errorf("remove the finalizer of the At: %w", err))
	}
	s.Written.Remember(released)
	klog.FromContext(ctx).V(2).Info("Released At")
	return nil
}

// removeAt deletes the At unless it has changed since the decision: an edit of its TTL in
// the meantime causes a conflict.
func (s *Steps) removeAt(ctx context.Context, at *v1alpha1.At) error {
	err := s.CnatClient.CnatV1alpha1().Ats(at.Namespace).Delete(ctx, at.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &at.UID, ResourceVersion: &at.ResourceVersion},
	})
	switch {
	case answer.IsNotFound(err, at.Name):
		return nil
	case err != nil:
		return events.Report(s.Recorder, at, v1alpha1.ReasonAtNotDeleted, fmt.Errorf("delete the At: %w", err))
	}
	klog.FromContext(ctx).V(2).Info("Deleted At, its time to live has expired")
	return nil
}
