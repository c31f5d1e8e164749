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

// Package workload reads and restarts the workloads that pkg/plan/rollout describes.
package workload

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	typedappsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
)

// FieldManager is the owner of the annotation in metadata.managedFields. It must not
// begin with kubectl, because Flux reverts the changes of such managers.
const FieldManager = "cnat-controller"

// Get reads the workload to restart.
func Get(ctx context.Context, apps typedappsv1.AppsV1Interface, namespace string, restart *v1alpha1.AtRestart) (*rollout.Target, error) {
	switch options := (metav1.GetOptions{}); restart.Kind {
	case v1alpha1.RestartDeployment:
		return toTarget(rollout.FromDeployment)(apps.Deployments(namespace).Get(ctx, restart.Name, options))
	case v1alpha1.RestartStatefulSet:
		return toTarget(rollout.FromStatefulSet)(apps.StatefulSets(namespace).Get(ctx, restart.Name, options))
	case v1alpha1.RestartDaemonSet:
		return toTarget(rollout.FromDaemonSet)(apps.DaemonSets(namespace).Get(ctx, restart.Name, options))
	default:
		return nil, errUnknownKind
	}
}

// Foresee reads the workload of an At and restarts it with dryRun. Without a forecast, the error says why.
func Foresee(ctx context.Context, apps typedappsv1.AppsV1Interface, at *v1alpha1.At, now time.Time) (*plan.Forecast, error) {
	target, err := Get(ctx, apps, at.Namespace, at.Spec.Restart)
	forecast := plan.ForeseeRestart(at, target, err)
	if forecast == nil || forecast.Reason != "" {
		return forecast, err
	}
	if _, err = Restart(ctx, apps, target, now, metav1.DryRunAll); err != nil {
		err = fmt.Errorf("restart %s: %w", target, err)
	}
	return plan.Foresee(v1alpha1.ReasonRestartRefused, err), err
}

// Restart restarts a workload. If the workload has changed since it was read, that is a
// conflict. The given time, truncated to seconds, becomes the time of the restart. If the
// API server does not store it, the error is Forbidden. With dryRun, nothing is stored.
func Restart(ctx context.Context, apps typedappsv1.AppsV1Interface, t *rollout.Target, at time.Time, dryRun ...string) (*rollout.Target, error) {
	annotation := at.UTC().Format(time.RFC3339)
	body := fmt.Appendf(nil, `{"metadata":{"uid":%q,"resourceVersion":%q},"spec":{"template":{"metadata":{"annotations":{%q:%q}}}}}`,
		t.UID, t.ResourceVersion, rollout.AnnotationRestartedAt, annotation)
	restarted, err := patch(ctx, apps, t, body, metav1.PatchOptions{FieldManager: FieldManager, DryRun: dryRun})
	if err == nil && restarted.Annotation != annotation {
		err = apierrors.NewForbidden(schema.GroupResource{Group: appsv1.GroupName, Resource: string(t.Kind)}, t.Name,
			fmt.Errorf("a webhook or a policy removes annotation %s of the Pod template", rollout.AnnotationRestartedAt))
	}
	if err != nil {
		return nil, err
	}
	return restarted, nil
}

func patch(ctx context.Context, apps typedappsv1.AppsV1Interface, t *rollout.Target, body []byte, options metav1.PatchOptions) (*rollout.Target, error) {
	switch t.Kind {
	case v1alpha1.RestartDeployment:
		return toTarget(rollout.FromDeployment)(apps.Deployments(t.Namespace).Patch(ctx, t.Name, types.MergePatchType, body, options))
	case v1alpha1.RestartStatefulSet:
		return toTarget(rollout.FromStatefulSet)(apps.StatefulSets(t.Namespace).Patch(ctx, t.Name, types.MergePatchType, body, options))
	case v1alpha1.RestartDaemonSet:
		return toTarget(rollout.FromDaemonSet)(apps.DaemonSets(t.Namespace).Patch(ctx, t.Name, types.MergePatchType, body, options))
	default:
		return nil, errUnknownKind
	}
}

// toTarget converts the result of a request.
func toTarget[T any](from func(T) *rollout.Target) func(T, error) (*rollout.Target, error) {
	return func(object T, err error) (*rollout.Target, error) {
		if err != nil {
			return nil, err
		}
		return from(object), nil
	}
}

var errUnknownKind = errors.New("workloads of the kind of spec.restart cannot be restarted")

// A workload that was read can be shared for sharedTime. At most maxTargets are kept.
const (
	sharedTime = time.Second
	maxTargets = 1024
)

// Targets has the workloads that were read recently. While very many Ats wait for one
// rollout, each worker reads its workload at most once a second.
type Targets struct{ recent *cache.LRUExpireCache }

type targetKey struct {
	namespace string
	restart   v1alpha1.AtRestart
}

// NewTargets returns Targets that are empty.
func NewTargets(wallClock clock.PassiveClock) *Targets {
	return &Targets{recent: cache.NewLRUExpireCacheWithClock(maxTargets, wallClock)}
}

// Add must be called with each workload that was read or restarted.
func (t *Targets) Add(target *rollout.Target) {
	t.recent.Add(targetKey{target.Namespace, v1alpha1.AtRestart{Kind: target.Kind, Name: target.Name}}, target, sharedTime)
}

// Recent returns a workload that was read recently, or nil. It must not be changed.
func (t *Targets) Recent(namespace string, restart *v1alpha1.AtRestart) *rollout.Target {
	target, ok := t.recent.Get(targetKey{namespace, *restart})
	if !ok {
		return nil
	}
	return target.(*rollout.Target)
}
