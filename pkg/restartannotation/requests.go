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
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/patch"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/restartannotation/annotationplan"
)

// act takes the step that was decided and updates world. After an error, the step must be
// retried with back-off.
func (c *Controller) act(ctx context.Context, world *annotationplan.World, decision annotationplan.Decision) error {
	logger := klog.FromContext(ctx)
	cronAts := c.client.CnatV1alpha1().CronAts(world.Workload.Namespace)
	var sent, written *v1alpha1.CronAt
	var err error
	switch action := decision.Action.(type) {
	case annotationplan.LookForWorkload:
		return c.lookForWorkload(ctx, world)
	case annotationplan.LookForCronAt:
		return c.lookForCronAt(ctx, world)
	case annotationplan.CreateCronAt:
		sent = action.CronAt
		written, err = cronAts.Create(ctx, sent, metav1.CreateOptions{})
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			// The workload is deleted with its namespace.
			world.Workload = nil
			return nil
		}
	case annotationplan.PatchCronAt:
		sent = action.CronAt
		var body []byte
		if body, err = patch.Spec(world.CronAt, annotationplan.OwnLabels(world.CronAt), sent.Labels, world.CronAt.Spec, sent.Spec); err != nil {
			return err
		}
		written, err = cronAts.Patch(ctx, world.CronAt.Name, types.MergePatchType, body, metav1.PatchOptions{})
	case annotationplan.AdoptCronAt:
		var body []byte
		if body, err = patch.Owner(world.CronAt, action.Owner); err != nil {
			return err
		}
		written, err = cronAts.Patch(ctx, world.CronAt.Name, types.MergePatchType, body, metav1.PatchOptions{})
	case annotationplan.DeleteCronAt:
		err = cronAts.Delete(ctx, world.CronAt.Name, metav1.DeleteOptions{
			Preconditions:     &metav1.Preconditions{UID: &world.CronAt.UID, ResourceVersion: &world.CronAt.ResourceVersion},
			PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
		})
	default:
		return fmt.Errorf("unknown action %T", action)
	}
	switch {
	case apierrors.IsAlreadyExists(err), world.CronAt != nil && (answer.IsConflict(err, world.CronAt.Name) || answer.IsNotFound(err, world.CronAt.Name)):
		return c.lookForCronAt(ctx, world)
	case sent != nil && annotationplan.IsInvalidSchedule(err, world.CronAt, sent):
		world.Invalid = err
		return nil
	case err != nil:
		return err
	}
	world.CronAt, world.CronAtIsLive = written, true
	logger.V(2).Info(decision.Event.Message)
	c.record(world, decision.Event)
	return nil
}

// lookForWorkload reads the workload. A workload that is not the one in the cache counts as
// none.
func (c *Controller) lookForWorkload(ctx context.Context, world *annotationplan.World) error {
	workloads := c.metadataClient.Resource(appsv1.SchemeGroupVersion.WithResource(resources[world.Kind])).Namespace(world.Workload.Namespace)
	workload, err := workloads.Get(ctx, world.Workload.Name, metav1.GetOptions{})
	switch {
	case answer.IsNotFound(err, world.Workload.Name), err == nil && workload.UID != world.Workload.UID:
		klog.FromContext(ctx).V(2).Info("Workload in the cache does not exist, waiting for the cache")
		world.Workload = nil
		return nil
	case err != nil:
		return fmt.Errorf("read the workload: %w", err)
	}
	world.Workload, world.WorkloadIsLive = annotationplan.Keep(workload), true
	return nil
}

// lookForCronAt reads the CronAt.
func (c *Controller) lookForCronAt(ctx context.Context, world *annotationplan.World) error {
	name := annotationplan.Name(world.Kind, world.Workload.Name)
	cronAt, err := c.client.CnatV1alpha1().CronAts(world.Workload.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case answer.IsNotFound(err, name):
		cronAt = nil
	case err != nil:
		return fmt.Errorf("read the CronAt: %w", err)
	}
	world.CronAt, world.CronAtIsLive = cronAt, true
	return nil
}

// record records an event on the workload, if there is one.
func (c *Controller) record(world *annotationplan.World, event *plan.Event) {
	if event == nil {
		return
	}
	c.recorder.Event(&corev1.ObjectReference{
		APIVersion: appsv1.SchemeGroupVersion.String(),
		Kind:       string(world.Kind),
		Namespace:  world.Workload.Namespace,
		Name:       world.Workload.Name,
		UID:        world.Workload.UID,
	}, event.Type, event.Reason, event.Message)
}
