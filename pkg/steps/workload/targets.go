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
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
)

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
