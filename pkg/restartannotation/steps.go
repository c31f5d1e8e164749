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

package restartannotation

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/patch"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/restartannotation/annotationplan"
)

// resourceOf returns the resource of a kind of workload.
func resourceOf(kind v1alpha1.RestartKind) schema.GroupVersionResource {
	resource, _ := meta.UnsafeGuessKindToResource(appsv1.SchemeGroupVersion.WithKind(string(kind)))
	return resource
}

// errOutdated is the error if something else has changed the CronAt meanwhile.
var errOutdated = answer.Blocked("CacheOutdated", errors.New("the CronAt has changed: waiting for the cache"))

// observe returns what the caches know of a workload.
func (c *Controller) observe(kind v1alpha1.RestartKind, name cache.ObjectName) *annotationplan.World {
	world := &annotationplan.World{Kind: kind, CronAt: c.cronAt(kind, name), Now: c.clock.Now()}
	// Reading from a cache cannot fail.
	if object, exists, _ := c.workloads[kind].GetIndexer().GetByKey(name.String()); exists {
		world.Workload = object.(*metav1.PartialObjectMetadata)
	}
	return world
}

// cronAt returns the cached CronAt with the name that belongs to a workload, or nil if
// there is none.
func (c *Controller) cronAt(kind v1alpha1.RestartKind, workload cache.ObjectName) *v1alpha1.CronAt {
	cronAt, err := c.cronAts.CronAts(workload.Namespace).Get(annotationplan.Name(kind, workload.Name))
	if err != nil { // The only possible error: it is not in the cache.
		return nil
	}
	return cronAt
}

// step decides, and takes one step. If the API server refuses that, the decision is what follows.
func (c *Controller) step(ctx context.Context, world *annotationplan.World) annotationplan.Decision {
	decision := annotationplan.Decide(*world)
	if annotationplan.NeedsLive(*world, decision) {
		if err := c.read(ctx, world); err != nil {
			return annotationplan.Decision{Retry: err}
		}
		decision = annotationplan.Decide(*world)
	}
	klog.FromContext(ctx).V(4).Info("Decided", "action", fmt.Sprintf("%T", decision.Action))
	if decision.Action == nil {
		return decision
	}
	cronAt := annotationplan.Name(world.Kind, world.Workload.Name)
	err := c.take(ctx, world, decision)
	switch {
	case apierrors.IsAlreadyExists(err), answer.IsConflict(err, cronAt), answer.IsNotFound(err, cronAt):
		return annotationplan.Decision{Retry: errOutdated}
	case err != nil:
		return annotationplan.Refused(err)
	}
	klog.FromContext(ctx).V(2).Info("Wrote CronAt", "cronAt", klog.KRef(world.Workload.Namespace, cronAt), "reason", decision.Event.Reason)
	return decision
}

// read reads the workload and its CronAt. A workload that is not the one in the cache counts as
// none: the cache reports that later.
func (c *Controller) read(ctx context.Context, world *annotationplan.World) error {
	namespace, name := world.Workload.Namespace, world.Workload.Name
	workload, err := c.metadataClient.Resource(resourceOf(world.Kind)).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case answer.IsNotFound(err, name), err == nil && workload.UID != world.Workload.UID:
		klog.FromContext(ctx).V(2).Info("Workload in the cache does not exist, waiting for the cache")
		world.Workload, world.IsLive = nil, true
		return nil
	case err != nil:
		return fmt.Errorf("read the workload: %w", err)
	}
	cronAtName := annotationplan.Name(world.Kind, name)
	cronAt, err := c.client.CnatV1alpha1().CronAts(namespace).Get(ctx, cronAtName, metav1.GetOptions{})
	switch {
	case answer.IsNotFound(err, cronAtName):
		cronAt = nil
	case err != nil:
		return fmt.Errorf("read the CronAt: %w", err)
	}
	world.Workload, world.CronAt, world.IsLive = annotationplan.Keep(workload), cronAt, true
	return nil
}

// take takes the step that was decided.
func (c *Controller) take(ctx context.Context, world *annotationplan.World, decision annotationplan.Decision) (err error) {
	cronAts := c.client.CnatV1alpha1().CronAts(world.Workload.Namespace)
	switch action := decision.Action.(type) {
	case annotationplan.CreateCronAt:
		_, err = cronAts.Create(ctx, action.CronAt, metav1.CreateOptions{})
	case annotationplan.PatchCronAt:
		_, err = cronAts.Patch(ctx, world.CronAt.Name, types.MergePatchType, patch.Change(action.Before, action.After), metav1.PatchOptions{})
	case annotationplan.DeleteCronAt:
		err = cronAts.Delete(ctx, world.CronAt.Name, metav1.DeleteOptions{
			Preconditions:     &metav1.Preconditions{UID: &world.CronAt.UID, ResourceVersion: &world.CronAt.ResourceVersion},
			PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
		})
	default:
		err = fmt.Errorf("unknown action %T", action)
	}
	return err
}

// record records an event on the workload.
func (c *Controller) record(world *annotationplan.World, event *plan.Event) {
	c.recorder.Event(&corev1.ObjectReference{
		APIVersion: appsv1.SchemeGroupVersion.String(),
		Kind:       string(world.Kind),
		Namespace:  world.Workload.Namespace,
		Name:       world.Workload.Name,
		UID:        world.Workload.UID,
	}, event.Type, event.Reason, event.Message)
}
