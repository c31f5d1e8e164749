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

package plan

import (
	"testing"
	"time"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestDecideDone covers Ats that have ended.
func TestDecideDone(t *testing.T) {
	testDecide(t, map[string]decideCase{
		"done, no time to live: kept while its Pods are":             {at: newAt(withDone(v1alpha1.ConditionComplete, now), withoutTTL), want: "wait 10.5s"},
		"done, no time to live, its Pods no longer kept":             {at: newAt(withDone(v1alpha1.ConditionComplete, now), withoutTTL), now: now.Add(10500 * time.Millisecond), want: "DeleteAt"},
		"done without a condition, which no controller writes: kept": {at: newAt(withStatus(v1alpha1.AtStatus{Phase: v1alpha1.PhaseDone}), withoutTTL), want: "nothing"},
	})
}
