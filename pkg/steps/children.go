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
	"programming-kubernetes.info/cnat-controller/pkg/machinery/queue"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// lookForAts reads the children of the At.
func (s *Steps) lookForAts(ctx context.Context, world *plan.World) error {
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
	world.Children, world.ChildrenAreLive = children, true
	return nil
}

// createAts creates children of the At and adds them to world. If the name of a child
// belongs to another At, createAts returns that At.
func (s *Steps) createAts(ctx context.Context, world *plan.World, children []*v1alpha1.At) (other *v1alpha1.At, err error) {
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
			world.Children = append(world.Children, child)
			created++
		default:
			other = child
		}
	}
	klog.FromContext(ctx).V(2).Info("Created Ats for nodes", "created", created, "missing", len(children)-created)
	return other, context.Cause(ctx)
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
	return plan.KeepAt(found), nil
}

// resumeAts resumes children of the At, as long as the At is fresh.
func (s *Steps) resumeAts(ctx context.Context, world *plan.World, children []*v1alpha1.At) error {
	for i, child := range children {
		if i > 0 && !staleness.IsFresh(world.AtAsOf, s.Clock.Now()) {
			return nil // The events of the resumed children trigger the next step.
		}
		patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"resourceVersion":%q},"spec":{"suspend":false}}`, child.UID, child.ResourceVersion)
		resumed, err := s.CnatClient.CnatV1alpha1().Ats(child.Namespace).Patch(ctx, child.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		switch {
		case answer.IsNotFound(err, child.Name) || answer.IsConflict(err, child.Name):
			return nil // The child's event triggers the next step.
		case err != nil:
			return s.report(world.At, v1alpha1.ReasonAtNotResumed, fmt.Errorf("resume At %s: %w", child.Name, err))
		}
		s.Written.Remember(resumed)
		klog.FromContext(ctx).V(2).Info("Resumed the At of a node", "child", klog.KObj(child))
	}
	return nil
}

// lookForNodes reads the nodes.
func (s *Steps) lookForNodes(ctx context.Context, world *plan.World) error {
	nodes, err := s.Nodes.List(ctx)
	if err != nil {
		return world.NodesNotRead(err)
	}
	world.Nodes, world.NodesAreKnown = nodes, true
	return nil
}

// lookForNode reads a node.
func (s *Steps) lookForNode(ctx context.Context, world *plan.World, name string) error {
	node, err := s.Nodes.Get(ctx, name)
	if err != nil {
		return world.NodesNotRead(err)
	}
	world.NodeName, world.Node = name, node
	return nil
}
