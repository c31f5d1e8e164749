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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestDecideSuspended covers Ats that are, or were, suspended.
func TestDecideSuspended(t *testing.T) {
	testDecide(t, map[string]decideCase{
		"between two attempts, suspended: waits": {at: newAt(withStatus(*nextAttempt(1, now)), withSuspendedRun, withBackoffLimit(2)), want: Decision{}},
		"suspended: reported": {
			at: newAt(func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) }), now: earlier,
			want: Decision{
				Status: ptr.To(pendingWith(suspended(earlier))),
				Events: []Event{{Type: corev1.EventTypeNormal, Reason: v1alpha1.ReasonSuspended, Message: "Nothing starts while spec.suspend is true."}},
			},
		},
		"suspended and due: waits": {at: newAt(withSuspended), want: Decision{}},
		"suspended and due: the blocker of an earlier spec is removed": {
			at: newAt(withSuspended, func(at *v1alpha1.At) {
				stale := imagePullFailed(earlier, "")
				stale.ObservedGeneration = 1
				at.Status.Conditions = append(at.Status.Conditions, stale)
			}),
			want: Decision{Status: ptr.To(pendingWith(suspended(earlier)))},
		},
		"suspended and due, regardless of the starting deadline: waits": {at: newAt(withSuspended, withStartingDeadline(0)), want: Decision{}},
		"suspended, not due": {at: newAt(withSuspended), now: earlier, want: Decision{Delay: time.Hour - Lead(newAt().UID)}},
		"suspended with a Pod: it continues": {
			at: newAt(withSuspended), pod: newPod(corev1.PodPending),
			want: Decision{Status: ptr.To(running(corev1.PodPending, suspended(earlier))), Events: []Event{createdEvent}},
		},
		"suspended while its Pod runs, which succeeds: complete": {
			at: newAt(withSuspended, withStatus(running(corev1.PodRunning, suspended(earlier)))), pod: newPod(corev1.PodSucceeded),
			want: ends(running(corev1.PodSucceeded, suspended(earlier)), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, completedMessage),
		},
		"resumed: reported": {
			at: newAt(withSuspended, func(at *v1alpha1.At) { at.Spec.Suspend = nil }),
			want: Decision{
				Status: ptr.To(pendingWith(resumed(now))),
				Events: []Event{{Type: corev1.EventTypeNormal, Reason: v1alpha1.ReasonResumed, Message: "The At is no longer suspended."}},
			},
		},
		"resumed and due: runs": {
			at:   newAt(withStatus(v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, Conditions: []metav1.Condition{resumed(earlier)}})),
			want: creates(due),
		},
		"resumed when it was due: due since then": {
			at:   newAt(withStatus(v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, Conditions: []metav1.Condition{resumed(created)}})),
			want: creates(created),
		},
		"resumed when the next attempt was due: due since then": {
			at:   newAt(withStatus(*nextAttempt(1, created)), withBackoffLimit(2), func(at *v1alpha1.At) { at.Status.Conditions = append(at.Status.Conditions, resumed(now)) }),
			want: creates(now),
		},
		"done: suspend has no effect": {
			at: newAt(withStatus(v1alpha1.AtStatus{Phase: v1alpha1.PhaseDone}), func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) }), want: Decision{},
		},
		"between two attempts, suspended, before the active deadline": {
			at:   newAt(withStatus(*nextAttempt(1, now)), withSuspendedRun, withBackoffLimit(2), withActiveDeadline(10)),
			want: Decision{Delay: 6*time.Second + 10*time.Millisecond},
		},
	})
}
