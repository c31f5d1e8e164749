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

// Package steps takes the steps that package plan decides on: it calls the API server and
// updates the world from the answers.
//
// Each step is a case of Take and a method of its own. The files group them by object:
// at.go, the At itself; pod.go, its Pods; children.go, the Ats of nodes; restart.go, the
// workload of spec.restart.
package steps

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/events"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/patch"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/steps/nodecache"
	"programming-kubernetes.info/cnat-controller/pkg/steps/podevents"
	"programming-kubernetes.info/cnat-controller/pkg/steps/workload"
)

// lastingFailures is the number of consecutive failed creations after which a failure is
// reported, whatever its cause. They take about a minute.
const lastingFailures = 9

// Steps takes the steps of all Ats. Several workers may use it concurrently.
type Steps struct {
	*Cache
	KubeClient kubernetes.Interface
	CnatClient clientset.Interface
	Nodes      *nodecache.Cache
	PodEvents  *podevents.Reader
	// Targets has the workloads that were read recently.
	Targets  *workload.Targets
	Recorder record.EventRecorder
	Clock    clock.PassiveClock
	// Failures counts consecutive failures to create a Pod.
	Failures workqueue.TypedRateLimiter[cache.ObjectName]
	// Defaults are those of the Pod of an At without spec.template.
	Defaults plan.Defaults
	// Parallel is the number of requests for one At at the same time.
	Parallel int
}

// Take takes the step that was decided. It returns the decision or, if the API server
// refused the step, the decision that follows. again reports whether to decide again now,
// based on the changes to world.
func (s *Steps) Take(ctx context.Context, name cache.ObjectName, world *plan.World, decision plan.Decision) (_ plan.Decision, again bool, err error) {
	switch action := decision.Action.(type) {
	case nil:
	case plan.LookForAt:
		return decision, true, s.lookForAt(ctx, name, world)
	case plan.LookForPod:
		return decision, true, s.lookForPod(ctx, world)
	case plan.LookForPodEvent:
		return decision, true, s.lookForPodEvent(ctx, world, action.Pod)
	case plan.LookForNodes:
		return decision, true, s.lookForNodes(ctx, world)
	case plan.LookForNode:
		return decision, true, s.lookForNode(ctx, world, action.Name)
	case plan.LookForTarget:
		return decision, true, s.lookForTarget(ctx, world, action.MayBeShared)
	case plan.LookForAts:
		return decision, true, s.lookForAts(ctx, world)
	case plan.CreateAts:
		other, err := s.createAts(ctx, world, action.Ats)
		switch {
		case other != nil:
			decision = plan.AtNameTaken(*world, other)
		case err != nil:
			decision = plan.RefusedAt(*world, fmt.Errorf("create At: %w", err))
		default:
			return decision, true, nil
		}
	case plan.ResumeAts:
		return decision, false, s.resumeAts(ctx, world, action.Ats)
	case plan.ReleaseAt:
		return decision, true, s.releaseAt(ctx, world)
	case plan.TryPod:
		err := s.tryPod(ctx, name, world)
		if world.PodIsAdmitted {
			return decision, true, nil
		}
		decision = s.refusedPod(name, world, err)
	case plan.CreatePod:
		pod, err := s.createPod(ctx, name, world, action)
		if apierrors.IsAlreadyExists(err) {
			err = s.lookForPod(ctx, world)
			if err == nil && !world.HasPod() {
				err = errors.New("the Pod already existed but has since been deleted")
			}
			return decision, true, err
		}
		if err == nil {
			s.Failures.Forget(name)
			// Statuses are written after the Pods of the other Ats that are due: the event of the
			// Pod triggers that. But one At in each 100 ms goes on now. When its status write comes
			// back through the watch, the cache is known to have all edits made before it, so that
			// the others that are due need not be read. A large At would take too long to write.
			if plan.IsSmall(&world.At.Spec.RunSpec) && s.Freshness.Claim(s.Clock.Now()) {
				world.Pods = append(world.Pods, plan.KeepPod(pod))
				return decision, true, nil
			}
			return decision, false, nil
		}
		decision = s.refusedPod(name, world, err)
	case plan.RestartTarget:
		err := s.restartTarget(ctx, world, action)
		if err == nil {
			return decision, true, nil
		}
		decision = plan.RefusedRestart(*world, fmt.Errorf("restart %s: %w", world.Target, err))
	case plan.DeletePod:
		return decision, false, s.removePod(ctx, world.At, action, decision.Events)
	case plan.ReleasePod:
		return decision, false, s.releasePod(ctx, world.At, action.Pod)
	case plan.DeleteAt:
		return decision, false, s.removeAt(ctx, world.At)
	default:
		return decision, false, fmt.Errorf("unknown action %T", action)
	}
	if decision.Status == nil {
		return decision, false, nil
	}
	if !world.AtIsLive && !plan.HasWholeStatus(world.At) {
		// The patch would write the shortened texts.
		return decision, true, s.lookForAt(ctx, name, world)
	}
	at, err := s.writeStatus(ctx, world.At, decision)
	if err != nil {
		return decision, false, err
	}
	// PodIsLive may refer to the Pod of another attempt.
	world.At, world.AtIsLive, world.AtAsOf, world.PodIsLive = at, at != nil, s.Clock.Now(), false
	return decision, decision.Retry == nil, nil
}

// refusedPod counts a failed creation of a Pod, and returns the decision that follows.
func (s *Steps) refusedPod(name cache.ObjectName, world *plan.World, err error) plan.Decision {
	s.Failures.When(name)
	return plan.Refused(*world, fmt.Errorf("create Pod: %w", err), s.Failures.NumRequeues(name) >= lastingFailures)
}

// writeStatus writes the decision's status and records its events. It returns the
// resulting At, or nil if the At is gone.
func (s *Steps) writeStatus(ctx context.Context, at *v1alpha1.At, decision plan.Decision) (*v1alpha1.At, error) {
	body, err := patch.Status(at.ResourceVersion, &at.Status, decision.Status)
	if err != nil {
		return nil, err
	}
	updated, err := staleness.Send(s.Written, s.Freshness, s.Clock, at, func() (*v1alpha1.At, error) {
		return s.CnatClient.CnatV1alpha1().Ats(at.Namespace).Patch(ctx, at.Name, types.MergePatchType, body, metav1.PatchOptions{}, "status")
	})
	switch {
	case answer.IsNotFound(err, at.Name):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("write the status: %w", err)
	}
	klog.FromContext(ctx).V(2).Info("Wrote status", "phase", updated.Status.Phase, "reason", updated.Status.Reason)
	countEnds(at, decision.Status, decision.Events)
	s.record(updated, decision.Events)
	return updated, nil
}

// countEnds counts in the metrics the run and the attempt that ended with a status
// change. The last event is that of the end.
func countEnds(at *v1alpha1.At, after *v1alpha1.AtStatus, events []plan.Event) {
	before := &at.Status
	if after.Phase == v1alpha1.PhaseDone && before.Phase != v1alpha1.PhaseDone {
		metrics.Runs.Inc(at.Namespace, after.Reason)
	}
	if after.Failed > before.Failed || after.Reason == v1alpha1.ReasonCompleted && before.Phase != v1alpha1.PhaseDone && after.Pod != nil {
		metrics.Attempts.Inc(at.Namespace, events[len(events)-1].Reason)
	}
}

// report records an event on the At, if there is one, for an error that will not resolve
// by itself. It returns the error to retry with.
func (s *Steps) report(at *v1alpha1.At, reason string, err error) error {
	if at == nil {
		return err
	}
	return events.Report(s.Recorder, at, reason, err)
}

func (s *Steps) record(at *v1alpha1.At, events []plan.Event) {
	for _, event := range events {
		s.Recorder.Event(at, event.Type, event.Reason, event.Message)
	}
}

// maxLeaveSteps is the number of steps after which something must be wrong.
const maxLeaveSteps = 10

// LeavePod releases the Pod with the given name, if it has the finalizer, with the steps that
// plan.Leave decides.
func (s *Steps) LeavePod(ctx context.Context, name cache.ObjectName) error {
	pod, err := s.KubeClient.CoreV1().Pods(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	switch {
	case answer.IsNotFound(err, name.Name):
		return nil
	case err != nil:
		return fmt.Errorf("read Pod %s: %w", name, err)
	case !slices.Contains(pod.Finalizers, v1alpha1.FinalizerTracking):
		return nil
	}
	at := cache.NewObjectName(name.Namespace, plan.AtName(pod))
	world := &plan.World{Pods: []*corev1.Pod{plan.KeepPod(pod)}, AtIsLive: at.Name == ""}
	for range maxLeaveSteps {
		world.Now = s.Clock.Now()
		decision := plan.Leave(*world)
		if _, _, err := s.Take(ctx, at, world, decision); err != nil {
			return err
		}
		if _, released := decision.Action.(plan.ReleasePod); released {
			return nil
		}
	}
	return fmt.Errorf("no result after many steps for Pod %s", name)
}

// LeaveAt removes the finalizer from the child with the given name, if it has one. Its parent
// does not create it again: before the parent has created all of its children none of them
// runs, and after that the parent counts a missing one as failed.
func (s *Steps) LeaveAt(ctx context.Context, name cache.ObjectName) error {
	world := &plan.World{}
	err := s.lookForAt(ctx, name, world)
	if err != nil || world.At == nil || !slices.Contains(world.At.Finalizers, v1alpha1.FinalizerTracking) {
		return err
	}
	return s.releaseAt(ctx, world)
}
