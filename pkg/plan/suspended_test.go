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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestDecideSuspended covers Ats that are, or were, suspended.
func TestDecideSuspended(t *testing.T) {
	testDecide(t, map[string]decideCase{
		"between two attempts, suspended: waits": {at: newAt(withStatus(*nextAttempt(1, now)), withSuspendedRun, withBackoffLimit(2)), want: "nothing"},
		"suspended: reported": {
			at: newAt(func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) }), now: earlier,
			want: "Suspended Suspended: Nothing starts while spec.suspend is true.; Normal Suspended",
		},
		"suspended and due: the blocker of an earlier spec is removed": {
			at: newAt(withSuspended, func(at *v1alpha1.At) {
				stale := imagePullFailed("")
				stale.ObservedGeneration = 1
				at.Status.Conditions = append(at.Status.Conditions, stale)
			}),
			want: "no Blocked",
		},
		"suspended, not due": {at: newAt(withSuspended), now: earlier, want: "wait 49m17.117s"},
		"suspended while its Pod runs, which succeeds: complete": {
			at: runningAt(withSuspendedRun), pod: succeededPod(),
			want: "Phase=DONE; CompletionTime=10:12:04; Pod.Phase=Succeeded; Complete Completed: The command ended with exit code 0.; Normal Completed",
		},
		"resumed: reported": {
			at:   newAt(withSuspended, func(at *v1alpha1.At) { at.Spec.Suspend = nil }),
			want: "not Suspended Resumed: The At is no longer suspended.; Normal Resumed",
		},
		"resumed when it was due: due since then": {
			at:   newAt(withStatus(v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, Conditions: []metav1.Condition{resumed(created)}})),
			want: "CreatePod due 10:12:00.01; wait 1m0s; read At",
		},
		"between two attempts, suspended, before the active deadline": {at: newAt(withStatus(*nextAttempt(1, now)), withSuspendedRun, withBackoffLimit(2), withActiveDeadline(10)), want: "wait 4.01s"},
	})
}
