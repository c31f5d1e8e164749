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
)

// TestDecideNextAttempt covers Ats that wait for their next attempt.
func TestDecideNextAttempt(t *testing.T) {
	testDecide(t, map[string]decideCase{
		"between two attempts, the limit lowered: the announced attempt follows": {at: newAt(withStatus(*nextAttempt(1, now))), want: "CreatePod due 10:12:04; wait 1m0s; read At"},
		"between two attempts, the active deadline has passed": {
			at: newAt(withStatus(*nextAttempt(1, now.Add(10*time.Second))), withBackoffLimit(2), withActiveDeadline(10)), now: created.Add(10 * time.Second),
			want: "Phase=DONE; CompletionTime=10:12:10.01; no NextAttemptTime; Failed DeadlineExceeded: The run took longer than spec.activeDeadlineSeconds (10).; Warning DeadlineExceeded; read all",
		},
		"between two attempts: the next is waited for": {at: newAt(withStatus(*nextAttempt(1, now.Add(10*time.Second))), withBackoffLimit(2)), want: "wait 10s"},
		"the next attempt is due, an unrelated Pod has its name": {
			at: newAt(withStatus(*nextAttempt(1, now)), withBackoffLimit(2)), pod: runningPod(second, ownedBy()),
			want: "Blocked PodNameConflict: Pod example-at-pod-1 already exists and does not belong to this At: delete that Pod, or give the At another name.; Warning PodNameConflict; retry blocked",
		},
	})
}
