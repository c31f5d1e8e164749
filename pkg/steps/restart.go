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

	"k8s.io/klog/v2"

	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/steps/workload"
)

// lookForTarget reads the workload of spec.restart, or takes it from a recent read.
func (s *Steps) lookForTarget(ctx context.Context, world *plan.World, mayBeShared bool) error {
	if mayBeShared {
		if target := s.Targets.Recent(world.At.Namespace, world.At.Spec.Restart); target != nil {
			world.Target, world.TargetForbidden, world.TargetIsShared = target, nil, true
			return nil
		}
	}
	target, err := workload.Get(ctx, s.KubeClient.AppsV1(), world.At.Namespace, world.At.Spec.Restart)
	if err != nil {
		return world.TargetNotRead(err)
	}
	s.Targets.Add(target)
	world.Target, world.TargetForbidden, world.TargetIsLive = target, nil, true
	if world.At.Status.Restart != nil {
		// Since the At was read, another controller may have restarted the workload, and a user
		// may have reverted that.
		world.AtIsLive = false
	}
	return nil
}

// restartTarget restarts the workload of spec.restart, unless it has changed in the
// meantime.
func (s *Steps) restartTarget(ctx context.Context, world *plan.World, action plan.RestartTarget) error {
	target, err := workload.Restart(ctx, s.KubeClient.AppsV1(), world.Target, action.Time)
	if answer.IsNotFound(err, world.Target.Name) {
		return world.TargetNotRead(err)
	}
	if err != nil {
		return err
	}
	late := max(0, s.Clock.Since(action.Due)) // Due may come from another clock.
	metrics.StartLateness.Observe(late.Seconds())
	klog.FromContext(ctx).V(2).Info("Restarted", "kind", target.Kind, "target", klog.KRef(target.Namespace, target.Name), "late", late)
	s.Targets.Add(target)
	world.Target = target
	return nil
}
