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

// Package annotationsteps takes the steps that package annotationplan decides on: it calls the API
// server and updates the world from the answers, as package steps does for an At.
package annotationsteps

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/patch"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/restartannotation/annotationplan"
)

// Kinds are the kinds of workloads that can be annotated.
var Kinds = []v1alpha1.RestartKind{v1alpha1.RestartDaemonSet, v1alpha1.RestartDeployment, v1alpha1.RestartStatefulSet}

// Resource returns the resource of a kind of workload.
func Resource(kind v1alpha1.RestartKind) schema.GroupVersionResource {
	return appsv1.SchemeGroupVersion.WithResource(map[v1alpha1.RestartKind]string{
		v1alpha1.RestartDaemonSet:   "daemonsets",
		v1alpha1.RestartDeployment:  "deployments",
		v1alpha1.RestartStatefulSet: "statefulsets",
	}[kind])
}

// Steps takes the steps of all workloads. Several workers may use it concurrently.
type Steps struct {
	Client         clientset.Interface
	MetadataClient metadata.Interface
	Recorder       record.EventRecorder
	// Workloads and CronAts have what is in the caches, as annotationplan.Keep and KeepCronAt
	// return it.
	Workloads map[v1alpha1.RestartKind]cache.KeyGetter
	CronAts   cache.KeyGetter
}

// World returns the World of a workload, without the time.
func (s *Steps) World(kind v1alpha1.RestartKind, name cache.ObjectName) *annotationplan.World {
	world := &annotationplan.World{Kind: kind, CronAt: s.CronAt(kind, name)}
	// Reading from a cache cannot fail.
	if object, exists, _ := s.Workloads[kind].GetByKey(name.String()); exists {
		world.Workload = object.(*metav1.PartialObjectMetadata)
	}
	return world
}

// CronAt returns the cached CronAt with the name that belongs to a workload, or nil if
// there is none.
func (s *Steps) CronAt(kind v1alpha1.RestartKind, workload cache.ObjectName) *v1alpha1.CronAt {
	// Reading from a cache cannot fail.
	if object, exists, _ := s.CronAts.GetByKey(cache.NewObjectName(workload.Namespace, annotationplan.Name(kind, workload.Name)).String()); exists {
		return object.(*v1alpha1.CronAt)
	}
	return nil
}

// Take takes the step that was decided and updates world. After an error, the step must be
// retried with back-off.
func (s *Steps) Take(ctx context.Context, world *annotationplan.World, decision annotationplan.Decision) error {
	cronAts := s.Client.CnatV1alpha1().CronAts(world.Workload.Namespace)
	var sent, written *v1alpha1.CronAt
	var err error
	switch action := decision.Action.(type) {
	case annotationplan.LookForWorkload:
		return s.lookForWorkload(ctx, world)
	case annotationplan.LookForCronAt:
		return s.lookForCronAt(ctx, world)
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
		return s.lookForCronAt(ctx, world)
	case sent != nil && annotationplan.IsInvalidSchedule(err, world.CronAt, sent):
		world.Invalid = err
		return nil
	case err != nil:
		return err
	}
	world.CronAt, world.CronAtIsLive = written, true
	klog.FromContext(ctx).V(2).Info("Wrote CronAt", "cronAt", klog.KRef(world.Workload.Namespace, annotationplan.Name(world.Kind, world.Workload.Name)), "reason", decision.Event.Reason)
	s.Record(world, decision.Event)
	return nil
}

// lookForWorkload reads the workload. A workload that is not the one in the cache counts as
// none.
func (s *Steps) lookForWorkload(ctx context.Context, world *annotationplan.World) error {
	workloads := s.MetadataClient.Resource(Resource(world.Kind)).Namespace(world.Workload.Namespace)
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
func (s *Steps) lookForCronAt(ctx context.Context, world *annotationplan.World) error {
	name := annotationplan.Name(world.Kind, world.Workload.Name)
	cronAt, err := s.Client.CnatV1alpha1().CronAts(world.Workload.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case answer.IsNotFound(err, name):
		cronAt = nil
	case err != nil:
		return fmt.Errorf("read the CronAt: %w", err)
	}
	world.CronAt, world.CronAtIsLive = cronAt, true
	return nil
}

// Record records an event on the workload, if there is one.
func (s *Steps) Record(world *annotationplan.World, event *plan.Event) {
	if event == nil {
		return
	}
	s.Recorder.Event(&corev1.ObjectReference{
		APIVersion: appsv1.SchemeGroupVersion.String(),
		Kind:       string(world.Kind),
		Namespace:  world.Workload.Namespace,
		Name:       world.Workload.Name,
		UID:        world.Workload.UID,
	}, event.Type, event.Reason, event.Message)
}
