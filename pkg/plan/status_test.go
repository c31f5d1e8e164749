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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestExplain checks that reason and message report what the At waits for in every phase.
func TestExplain(t *testing.T) {
	blocked := condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, earlier, v1alpha1.ReasonPodRefused, "exceeded quota")
	noImage := condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, earlier, v1alpha1.ReasonImagePullFailed, "no such image")
	pending := func(conditions ...metav1.Condition) v1alpha1.AtStatus {
		return v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, Reason: "stale", Message: "stale", Conditions: conditions}
	}
	waits := func(reason, message string, conditions ...metav1.Condition) v1alpha1.AtStatus {
		status := *nextAttempt(1, now)
		status.Reason, status.Message, status.Conditions = reason, message, conditions
		return status
	}
	for name, tc := range map[string]struct {
		status v1alpha1.AtStatus
		want   string
	}{
		"suspended":                  {pending(suspended()), "Suspended: Nothing starts while spec.suspend is true."},
		"being stopped":              {running(corev1.PodRunning, noImage, stopping), "DeadlineExceeded: " + deadlineMessage},
		"between attempts, resumed":  {waits(v1alpha1.ReasonSuspended, "held", resumed(earlier)), "BackOff: The last Pod failed, the next is due at 2026-12-24T10:12:04Z."},
		"between attempts, refused":  {waits(v1alpha1.ReasonBackOff, "as announced", blocked), "PodRefused: exceeded quota"},
		"of a status of an older At": {running(corev1.PodRunning, condition("Ready", metav1.ConditionFalse, earlier, "Any", "")), ": "},
	} {
		t.Run(name, func(t *testing.T) {
			explain(&tc.status)
			if got := tc.status.Reason + ": " + tc.status.Message; got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
