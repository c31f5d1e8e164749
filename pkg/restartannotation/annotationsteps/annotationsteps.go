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
	"errors"
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
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
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
	Clock          clock.PassiveClock
	// Workloads and CronAts have what is in the caches, as annotationplan.Keep and
	// cronplan.KeepCronAt return it.
	Workloads map[v1alpha1.RestartKind]cache.KeyGetter
	CronAts   listers.CronAtLister
}

// errOutdated is the error if something else has changed the CronAt meanwhile.
var errOutdated = answer.Blocked("CacheOutdated", errors.New("the CronAt has changed: waiting for the cache"))

// Sync observes a workload, decides, and takes one step: its watch brings the next one. If the API
// server refuses the step, the decision is what follows from that.
func (s *Steps) Sync(ctx context.Context, kind v1alpha1.RestartKind, name cache.ObjectName, decide func(*annotationplan.World) annotationplan.Decision) (*annotationplan.World, annotationplan.Decision) {
	world := &annotationplan.World{Kind: kind, CronAt: s.CronAt(kind, name), Now: s.Clock.Now()}
	// Reading from a cache cannot fail.
	if object, exists, _ := s.Workloads[kind].GetByKey(name.String()); exists {
		world.Workload = object.(*metav1.PartialObjectMetadata)
	}
	decision := decide(world)
	if annotationplan.NeedsLive(*world, decision) {
		if err := s.read(ctx, world); err != nil {
			return world, annotationplan.Decision{Retry: err}
		}
		decision = decide(world)
	}
	err := s.take(ctx, world, decision)
	cronAt := annotationplan.Name(kind, name.Name)
	switch {
	case err == nil:
		return world, decision
	case apierrors.IsAlreadyExists(err), answer.IsConflict(err, cronAt), answer.IsNotFound(err, cronAt):
		return world, annotationplan.Decision{Retry: errOutdated}
	}
	return world, annotationplan.Refused(err)
}

// read reads the workload and its CronAt. A workload that is not the one in the cache counts as
// none: the cache reports that later.
func (s *Steps) read(ctx context.Context, world *annotationplan.World) error {
	namespace, name := world.Workload.Namespace, world.Workload.Name
	workload, err := s.MetadataClient.Resource(Resource(world.Kind)).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case answer.IsNotFound(err, name), err == nil && workload.UID != world.Workload.UID:
		klog.FromContext(ctx).V(2).Info("Workload in the cache does not exist, waiting for the cache")
		world.Workload, world.IsLive = nil, true
		return nil
	case err != nil:
		return fmt.Errorf("read the workload: %w", err)
	}
	cronAtName := annotationplan.Name(world.Kind, name)
	cronAt, err := s.Client.CnatV1alpha1().CronAts(namespace).Get(ctx, cronAtName, metav1.GetOptions{})
	switch {
	case answer.IsNotFound(err, cronAtName):
		cronAt = nil
	case err != nil:
		return fmt.Errorf("read the CronAt: %w", err)
	}
	world.Workload, world.CronAt, world.IsLive = annotationplan.Keep(workload), cronAt, true
	return nil
}

// CronAt returns the cached CronAt with the name that belongs to a workload, or nil if
// there is none.
func (s *Steps) CronAt(kind v1alpha1.RestartKind, workload cache.ObjectName) *v1alpha1.CronAt {
	cronAt, err := s.CronAts.CronAts(workload.Namespace).Get(annotationplan.Name(kind, workload.Name))
	if err != nil { // The only possible error: it is not in the cache.
		return nil
	}
	return cronAt
}

// take takes the step that was decided, if there is one.
func (s *Steps) take(ctx context.Context, world *annotationplan.World, decision annotationplan.Decision) error {
	if decision.Action == nil {
		return nil
	}
	cronAts := s.Client.CnatV1alpha1().CronAts(world.Workload.Namespace)
	var body []byte
	var err error
	switch action := decision.Action.(type) {
	case annotationplan.CreateCronAt:
		_, err = cronAts.Create(ctx, action.CronAt, metav1.CreateOptions{})
	case annotationplan.PatchCronAt:
		body = patch.Spec(world.CronAt, annotationplan.OwnLabels(world.CronAt), action.CronAt.Labels, world.CronAt.Spec, action.CronAt.Spec)
	case annotationplan.AdoptCronAt:
		body = patch.Owner(world.CronAt, action.Owner)
	case annotationplan.DeleteCronAt:
		err = cronAts.Delete(ctx, world.CronAt.Name, metav1.DeleteOptions{
			Preconditions:     &metav1.Preconditions{UID: &world.CronAt.UID, ResourceVersion: &world.CronAt.ResourceVersion},
			PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
		})
	default:
		err = fmt.Errorf("unknown action %T", action)
	}
	if body != nil {
		_, err = cronAts.Patch(ctx, world.CronAt.Name, types.MergePatchType, body, metav1.PatchOptions{})
	}
	if err == nil {
		klog.FromContext(ctx).V(2).Info("Wrote CronAt", "cronAt", klog.KRef(world.Workload.Namespace, annotationplan.Name(world.Kind, world.Workload.Name)), "reason", decision.Event.Reason)
	}
	return err
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
