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
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

// TestDecideNextAttempt covers Ats that wait for their next attempt.
func TestDecideNextAttempt(t *testing.T) {
	testDecide(t, map[string]decideCase{
		"between two attempts: the next is waited for": {
			at:   newAt(withStatus(*nextAttempt(1, now.Add(10*time.Second))), withBackoffLimit(2)),
			want: Decision{Delay: 10 * time.Second},
		},
		"between two attempts, a long time": {
			at:   newAt(withStatus(*nextAttempt(9, now.Add(6*time.Minute))), withBackoffLimit(10)),
			want: Decision{Delay: 6 * time.Minute},
		},
		"between two attempts, the limit lowered: the announced attempt follows": {at: newAt(withStatus(*nextAttempt(1, now))), want: creates(now)},
		"the next attempt is due": {at: newAt(withStatus(*nextAttempt(1, now)), withBackoffLimit(2)), want: creates(now)},
		"the next attempt is due, an unrelated Pod has its name": {
			at: newAt(withStatus(*nextAttempt(1, now)), withBackoffLimit(2)), pod: newPod(corev1.PodRunning, second, ownedBy()),
			want: Decision{
				Status: changed(*nextAttempt(1, now), func(status *v1alpha1.AtStatus) {
					status.Conditions = []metav1.Condition{blocked(now, v1alpha1.ReasonPodNameConflict, strings.ReplaceAll(conflictMessage, "-pod", "-pod-1"))}
				}),
				Events: []Event{warning(v1alpha1.ReasonPodNameConflict, strings.ReplaceAll(conflictMessage, "-pod", "-pod-1"))},
				Retry:  answer.ErrBlocked,
			},
		},
		"between two attempts, the active deadline comes before the next": {
			at:   newAt(withStatus(*nextAttempt(1, now.Add(10*time.Second))), withBackoffLimit(2), withActiveDeadline(10)),
			want: Decision{Delay: 6*time.Second + 10*time.Millisecond},
		},
		"between two attempts, the active deadline has passed": {
			at: newAt(withStatus(*nextAttempt(1, now.Add(10*time.Second))), withBackoffLimit(2), withActiveDeadline(10)), now: created.Add(10 * time.Second),
			needs: LiveAll,
			want: failed(*nextAttempt(1, now.Add(10*time.Second)), v1alpha1.ReasonDeadlineExceeded, deadlineMessage, func(status *v1alpha1.AtStatus) {
				status.NextAttemptTime = nil
				status.CompletionTime.Time = created.Add(10 * time.Second)
				status.Conditions[0].LastTransitionTime.Time = created.Add(10 * time.Second)
			}),
		},
	})
}
