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
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/events"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// readPod reads the Pod with the name of the current attempt's Pod. The result replaces the
// cached Pod of that name.
func (s *Steps) readPod(ctx context.Context, world *plan.World) error {
	name := plan.PodName(world.At)
	pod, err := s.KubeClient.CoreV1().Pods(world.At.Namespace).Get(ctx, name, metav1.GetOptions{})
	exists := !answer.IsNotFound(err, name)
	if err != nil && exists {
		return fmt.Errorf("read the Pod: %w", err)
	}
	world.Pods = slices.DeleteFunc(slices.Clone(world.Pods), func(cached *corev1.Pod) bool { return cached.Name == name })
	if exists {
		world.Pods = append(world.Pods, pod)
	}
	return nil
}

// The first creation times out creationTimeout after the At was read. Until then, a Pod that
// another controller has created meanwhile still has its name. Slow webhooks may need more time, and
// a Pod is more important: the timeout doubles after each failed creation, up to
// maxCreationTimeout. That is longer than the API server works on a request.
const (
	creationTimeout    = 8 * time.Second
	maxCreationTimeout = 64 * time.Second
)

// sendPod sends the request that creates the At's Pod.
func (s *Steps) sendPod(ctx context.Context, world *plan.World, options metav1.CreateOptions) (*corev1.Pod, error) {
	timeout := creationTimeout
	for range world.Failures {
		timeout = min(2*timeout, maxCreationTimeout)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout-s.Clock.Now().Sub(world.AsOf))
	defer cancel()
	return s.KubeClient.CoreV1().Pods(world.At.Namespace).Create(ctx, plan.NewPod(world.At, s.Defaults), options)
}

// tryPod finds out whether the API server admits the At's Pod. Quotas count in a dry-run, too.
func (s *Steps) tryPod(ctx context.Context, world *plan.World) {
	if _, err := s.sendPod(ctx, world, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); !plan.IsAdmitted(err) {
		world.Refusal = s.failed(world, err)
	}
}

// failed counts a failed creation of a Pod.
func (s *Steps) failed(world *plan.World, err error) error {
	name := cache.MetaObjectToName(world.At)
	s.Failures.When(name)
	world.Failures = s.Failures.NumRequeues(name)
	return fmt.Errorf("create Pod: %w", err)
}

// startPod creates the At's Pod, and returns the decision or, if the API server refuses the Pod, the
// one that follows. If it adds the Pod to world, the caller must write the status now. The name of
// the Pod is the lock against running a command twice. If a creation timed out and has succeeded
// all the same, the next sync finds the Pod.
func (s *Steps) startPod(ctx context.Context, world *plan.World, decision plan.Decision, due time.Time) plan.Decision {
	pod, err := s.sendPod(ctx, world, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		decision.Retry = s.readPod(ctx, world)
		if decision.Retry == nil && !world.HasPod() {
			decision.Retry = errors.New("the Pod already existed but has since been deleted")
		}
	case err != nil:
		decision = plan.Refused(*world, v1alpha1.ReasonPodRefused, s.failed(world, err))
	default:
		late := max(0, s.Clock.Since(due)) // Due may come from another clock.
		metrics.StartLateness.Observe(late.Seconds())
		klog.FromContext(ctx).V(2).Info("Created Pod", "pod", klog.KObj(pod), "late", late)
		s.Failures.Forget(cache.MetaObjectToName(world.At))
		// The event of the Pod triggers the write of the status, so that all Pods that are due come
		// first. But each 100 ms, one At gets its status now. When that write comes back through the
		// watch, the cache has all earlier edits, and the other Ats need not be read. A large At would
		// take too long to write.
		if plan.IsSmall(&world.At.Spec.RunSpec) && s.Freshness.Claim(s.Clock.Now()) {
			world.Pods = append(world.Pods, plan.KeepPod(pod))
		}
	}
	return decision
}

// removePod deletes a Pod unless it has changed since the decision.
func (s *Steps) removePod(ctx context.Context, at *v1alpha1.At, action plan.DeletePod, after []plan.Event) error {
	pod := action.Pod
	err := s.KubeClient.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion},
	})
	switch {
	case answer.IsNotFound(err, pod.Name) || answer.IsConflict(err, pod.Name):
		return nil // The Pod's event triggers the next step.
	case err != nil:
		return events.Report(s.Recorder, at, v1alpha1.ReasonPodNotDeleted, fmt.Errorf("delete Pod %s: %w", pod.Name, err))
	}
	klog.FromContext(ctx).V(2).Info("Deleted Pod", "pod", klog.KObj(pod), "unexpected", action.Unexpected)
	if action.Unexpected {
		metrics.UnexpectedPods.Inc()
	}
	s.record(at, after)
	return nil
}

// releasePod removes the finalizer from a Pod, but not from another Pod that may have its
// name by now. at is the At that owns the name, or nil.
func (s *Steps) releasePod(ctx context.Context, at *v1alpha1.At, pod *corev1.Pod) error {
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"$deleteFromPrimitiveList/finalizers":[%q]}}`, pod.UID, v1alpha1.FinalizerTracking)
	_, err := s.KubeClient.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	switch {
	case answer.IsNotFound(err, pod.Name) || isUIDMismatch(err):
		return nil // It is gone, or another Pod has its name; the informer will report that.
	case err != nil:
		return events.Report(s.Recorder, at, v1alpha1.ReasonPodNotReleased, fmt.Errorf("remove the finalizer of Pod %s: %w", pod.Name, err))
	}
	klog.FromContext(ctx).V(2).Info("Released Pod", "pod", klog.KObj(pod))
	return nil
}

// isUIDMismatch reports whether a patch was refused because another object has that name.
// The error is Invalid then, but so is a denial by an admission policy.
func isUIDMismatch(err error) bool {
	cause, ok := apierrors.StatusCause(err, metav1.CauseTypeFieldValueInvalid)
	return ok && cause.Field == "metadata.uid"
}
