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
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/steps/workload"
)

// readTarget reads the workload of spec.restart, or takes it from a recent read: very many Ats may
// wait for one rollout.
func (s *Steps) readTarget(ctx context.Context, world *plan.World, mayBeShared bool) error {
	restart := world.At.Spec.Restart
	world.Target, world.TargetForbidden = nil, nil
	if target := s.Targets.Recent(world.At.Namespace, restart); target != nil && mayBeShared {
		world.Target = target
		return nil
	}
	target, err := workload.Get(ctx, s.KubeClient.AppsV1(), world.At.Namespace, restart)
	switch {
	case err == nil:
		s.Targets.Add(target)
		world.Target = target
	case apierrors.IsForbidden(err):
		world.TargetForbidden = err
	case !answer.IsNotFound(err, restart.Name):
		return fmt.Errorf("read the workload: %w", err)
	}
	return nil
}

// restartTarget restarts the workload of spec.restart, unless it has changed in the meantime. It
// returns the decision that follows.
func (s *Steps) restartTarget(ctx context.Context, world *plan.World, action plan.RestartTarget) plan.Decision {
	target, err := workload.Restart(ctx, s.KubeClient.AppsV1(), world.Target, action.Time)
	switch {
	case answer.IsNotFound(err, world.Target.Name):
		return plan.Decision{Delay: changeDelay}
	case err != nil:
		return plan.Refused(*world, v1alpha1.ReasonRestartRefused, fmt.Errorf("restart %s: %w", world.Target, err))
	}
	late := max(0, s.Clock.Since(action.Due)) // Due may come from another clock.
	metrics.StartLateness.Observe(late.Seconds())
	klog.FromContext(ctx).V(2).Info("Restarted", "kind", target.Kind, "target", klog.KRef(target.Namespace, target.Name), "late", late)
	s.Targets.Add(target)
	return plan.Decision{Delay: atOnce}
}
