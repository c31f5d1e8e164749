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
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// maxLeaveSteps is the number of steps, apart from steps that release a Pod, after which
// something must be wrong.
const maxLeaveSteps = 10

// Leave takes the steps that plan.Leave decides for an At and its tracked Pods.
func (s *Steps) Leave(ctx context.Context, name cache.ObjectName, pods []*corev1.Pod) error {
	world := &plan.World{Pods: pods, AtIsLive: name.Name == ""}
	for range maxLeaveSteps + len(pods) {
		world.Now = s.Clock.Now()
		decision := plan.Leave(*world)
		if decision.Action == nil && decision.Status == nil {
			return nil
		}
		if _, _, err := s.Take(ctx, name, world, decision); err != nil {
			return err
		}
		if action, ok := decision.Action.(plan.ReleasePod); ok {
			world.Pods = slices.DeleteFunc(slices.Clone(world.Pods), func(pod *corev1.Pod) bool { return pod.UID == action.Pod.UID })
		}
	}
	return fmt.Errorf("no result after many steps for At %s", name)
}

// LeaveAt removes the finalizer from a child. Its parent does not create it again: before
// the parent has created all of its children none of them runs, and after that the parent
// counts a missing one as failed.
func (s *Steps) LeaveAt(ctx context.Context, at *v1alpha1.At) error {
	world := &plan.World{At: at}
	err := s.releaseAt(ctx, world)
	if err == nil && world.At != nil && slices.Contains(world.At.Finalizers, v1alpha1.FinalizerTracking) {
		return s.releaseAt(ctx, world) // It was only read, because not all of its finalizers were known.
	}
	return err
}
