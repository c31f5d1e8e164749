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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestStateOfHeld checks that a child between two attempts is not overdue while its parent is
// suspended.
func TestStateOfHeld(t *testing.T) {
	for name, tc := range map[string]struct {
		suspend bool
		want    time.Duration
	}{"parent suspended": {true, 0}, "parent resumed": {false, 40 * time.Second}} {
		parent := newAt(withNodes(nodes(1, 0, 0, 0)))
		parent.Spec.Suspend = ptr.To(tc.suspend)
		child := newRunningChild("n1")
		child.Status = *nextAttempt(1, due.Add(20*time.Second))
		if state, overdue := StateOf(child, parent, due.Add(time.Minute)); state != StateRunning || overdue != tc.want {
			t.Errorf("%s: got %s, overdue for %v; want it overdue for %v", name, state, overdue, tc.want)
		}
	}
}

func TestStateOf(t *testing.T) {
	instant := time.Date(2026, 12, 24, 10, 12, 0, 0, time.UTC)
	at := func(after time.Duration) *metav1.Time { return &metav1.Time{Time: instant.Add(after)} }
	condition := func(conditionType string, status metav1.ConditionStatus, transition *metav1.Time) metav1.Condition {
		return metav1.Condition{Type: conditionType, Status: status, LastTransitionTime: *transition}
	}
	blocked := condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, at(time.Second))
	forecast := blocked
	forecast.Message = "If it were due now: exceeded quota"
	suspended := v1alpha1.AtSpec{Suspend: ptr.To(true)}
	for name, tc := range map[string]struct {
		spec    v1alpha1.AtSpec
		created *metav1.Time
		status  v1alpha1.AtStatus
		after   time.Duration // from the instant until now
		want    State
		overdue time.Duration
	}{
		"a moment before its time":   {after: -1, want: StatePending},
		"at its time":                {want: StateDue},
		"after its time":             {after: time.Minute, want: StateDue, overdue: time.Minute},
		"created after its time":     {created: at(40 * time.Second), after: time.Minute, want: StateDue, overdue: 20 * time.Second},
		"created by a later clock":   {created: at(2 * time.Minute), after: time.Minute, want: StateDue},
		"resumed after its time":     {status: v1alpha1.AtStatus{Conditions: []metav1.Condition{condition(v1alpha1.ConditionSuspended, metav1.ConditionFalse, at(50*time.Second))}}, after: time.Minute, want: StateDue, overdue: 10 * time.Second},
		"suspended":                  {spec: suspended, after: time.Minute, want: StateSuspended},
		"suspended before its time":  {spec: suspended, after: -time.Minute, want: StateSuspended},
		"blocked":                    {status: v1alpha1.AtStatus{Conditions: []metav1.Condition{blocked}}, after: time.Hour, want: StateBlocked},
		"blocked and suspended":      {spec: suspended, status: v1alpha1.AtStatus{Conditions: []metav1.Condition{blocked}}, after: time.Hour, want: StateSuspended},
		"forecast before its time":   {status: v1alpha1.AtStatus{Conditions: []metav1.Condition{forecast}}, after: -1, want: StateBlocked},
		"forecast at its time":       {status: v1alpha1.AtStatus{Conditions: []metav1.Condition{forecast}}, after: time.Second, want: StateDue, overdue: time.Second},
		"schedule without instant":   {spec: v1alpha1.AtSpec{Schedule: "2027-03-28T02:30:00", TimeZone: ptr.To("Europe/Berlin")}, after: 9000 * time.Hour, want: StatePending},
		"running":                    {status: v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning}, after: time.Hour, want: StateRunning},
		"running, Pod blocked":       {status: v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning, Conditions: []metav1.Condition{blocked}}, after: time.Hour, want: StateRunning},
		"before the next attempt":    {status: v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning, NextAttemptTime: at(time.Hour)}, after: time.Minute, want: StateRunning},
		"after the next attempt":     {status: v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning, NextAttemptTime: at(time.Minute)}, after: time.Hour, want: StateRunning, overdue: 59 * time.Minute},
		"next attempt blocked":       {status: v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning, NextAttemptTime: at(time.Minute), Conditions: []metav1.Condition{blocked}}, after: time.Hour, want: StateRunning},
		"next attempt suspended":     {spec: suspended, status: v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning, NextAttemptTime: at(time.Minute)}, after: time.Hour, want: StateRunning},
		"done":                       {status: v1alpha1.AtStatus{Phase: v1alpha1.PhaseDone}, after: time.Hour, want: StateDone},
		"done, blocked until then":   {status: v1alpha1.AtStatus{Phase: v1alpha1.PhaseDone, Conditions: []metav1.Condition{blocked}}, after: time.Hour, want: StateDone},
		"done while it is suspended": {spec: suspended, status: v1alpha1.AtStatus{Phase: v1alpha1.PhaseDone}, after: time.Hour, want: StateDone},
	} {
		t.Run(name, func(t *testing.T) {
			at := &v1alpha1.At{Spec: tc.spec, Status: tc.status}
			at.CreationTimestamp = ptr.Deref(tc.created, metav1.Time{Time: instant.Add(-time.Hour)})
			if at.Spec.Schedule == "" {
				at.Spec.Schedule = "2026-12-24T10:12:00Z"
			}
			state, overdue := StateOf(at, nil, instant.Add(tc.after))
			if state != tc.want || overdue != tc.overdue {
				t.Errorf("got %s, overdue for %v; want %s, %v", state, overdue, tc.want, tc.overdue)
			}
		})
	}
}
