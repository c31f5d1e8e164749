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
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/connect"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/events"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/queue"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/steps/nodecache"
)

// readChildren reads the children of the At.
func (s *Steps) readChildren(ctx context.Context, world *plan.World) error {
	ats := s.CnatClient.CnatV1alpha1().Ats(world.At.Namespace)
	var children []*v1alpha1.At
	options := metav1.ListOptions{LabelSelector: v1alpha1.LabelAtUID + "=" + string(world.At.UID)}
	err := connect.Each(ctx, ats.List, options, func(child *v1alpha1.At) {
		if plan.IsChildOf(child, world.At) {
			children = append(children, plan.KeepAt(child))
		}
	})
	if err != nil {
		return fmt.Errorf("list the Ats of the nodes: %w", err)
	}
	world.Children = children
	return nil
}

// createAts creates children of the At. It returns the decision or, if one of them could not be
// created or its name belongs to another At, the one that follows.
func (s *Steps) createAts(ctx context.Context, world *plan.World, decision plan.Decision, children []*v1alpha1.At) plan.Decision {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	found := make([]*v1alpha1.At, len(children))
	workqueue.ParallelizeUntil(ctx, s.Parallel, len(children), func(i int) {
		err := queue.Recovered(func() (err error) {
			found[i], err = s.createAt(ctx, children[i])
			return err
		})
		if err != nil {
			cancel(err) // The others would also fail.
		}
	})
	created := 0
	for _, child := range found {
		switch {
		case child == nil:
		case plan.IsChildOf(child, world.At):
			created++
		default:
			return plan.AtNameTaken(*world, child)
		}
	}
	klog.FromContext(ctx).V(2).Info("Created Ats for nodes", "created", created, "missing", len(children)-created)
	if err := context.Cause(ctx); err != nil {
		return plan.Refused(*world, v1alpha1.ReasonAtRefused, fmt.Errorf("create At: %w", err))
	}
	return decision
}

// createAt creates a child, or reads the At that has its name.
func (s *Steps) createAt(ctx context.Context, child *v1alpha1.At) (*v1alpha1.At, error) {
	ats := s.CnatClient.CnatV1alpha1().Ats(child.Namespace)
	found, err := ats.Create(ctx, child, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		found, err = ats.Get(ctx, child.Name, metav1.GetOptions{})
		if answer.IsNotFound(err, child.Name) {
			err = errors.New("the At already existed but has since been deleted")
		}
	}
	if err != nil {
		return nil, err
	}
	return found, nil
}

// resumeAts resumes children of the At, as long as the At is fresh.
func (s *Steps) resumeAts(ctx context.Context, world *plan.World, children []*v1alpha1.At) error {
	for i, child := range children {
		if i > 0 && !staleness.IsFresh(world.AsOf, s.Clock.Now()) {
			return nil // The events of the resumed children trigger the next step.
		}
		patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"resourceVersion":%q},"spec":{"suspend":false}}`, child.UID, child.ResourceVersion)
		resumed, err := s.CnatClient.CnatV1alpha1().Ats(child.Namespace).Patch(ctx, child.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		switch {
		case answer.IsNotFound(err, child.Name) || answer.IsConflict(err, child.Name):
			return nil // The child's event triggers the next step.
		case err != nil:
			return events.Report(s.Recorder, world.At, v1alpha1.ReasonAtNotResumed, fmt.Errorf("resume At %s: %w", child.Name, err))
		}
		s.Written.Remember(resumed)
		klog.FromContext(ctx).V(2).Info("Resumed the At of a node", "child", klog.KObj(child))
	}
	return nil
}

// observeNodes adds the nodes that matter to world. A node that is missing in the cache is looked
// for if the world is live.
func (s *Steps) observeNodes(ctx context.Context, world *plan.World) (err error) {
	world.Node, world.Nodes, world.NodesErr = nil, nil, nil
	if plan.WantsNodes(*world) {
		world.Nodes, err = s.Nodes.List(ctx)
	} else if name := plan.NodeOf(*world); name != "" {
		world.Node, err = s.Nodes.Get(ctx, name, world.Live == plan.LiveAll)
	}
	if apierrors.IsForbidden(err) || errors.Is(err, nodecache.ErrNotSynced) {
		world.NodesErr, err = err, nil
	}
	if err != nil {
		return fmt.Errorf("read nodes: %w", err)
	}
	return nil
}
