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

package workload

import (
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
)

// TestTargets looks for a workload a second after it was read, and for others.
func TestTargets(t *testing.T) {
	target := &rollout.Target{Kind: v1alpha1.RestartDeployment, Namespace: "default", Name: "web"}
	for name, tc := range map[string]struct {
		namespace string
		restart   v1alpha1.AtRestart
		after     time.Duration
		want      bool
	}{
		"at once":             {"default", v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}, 0, true},
		"almost a second old": {"default", v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}, time.Second - 1, true},
		"too old":             {"default", v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}, time.Second + 1, false},
		"another namespace":   {"other", v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}, 0, false},
		"another name":        {"default", v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "api"}, 0, false},
		"another kind":        {"default", v1alpha1.AtRestart{Kind: v1alpha1.RestartStatefulSet, Name: "web"}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			wall := testingclock.NewFakePassiveClock(instant)
			targets := NewTargets(wall)
			targets.Add(target)
			wall.SetTime(instant.Add(tc.after))
			if got := targets.Recent(tc.namespace, &tc.restart); (got == target) != tc.want || got != nil && got != target {
				t.Errorf("got %+v, want it: %v", got, tc.want)
			}
		})
	}
}
