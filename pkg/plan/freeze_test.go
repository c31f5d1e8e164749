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
	"cmp"
	"errors"
	"regexp"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/freeze"
)

// christmas is a Freeze that holds for an hour.
func christmas(w *World) {
	w.Frozen = &freeze.Hold{Freeze: "cnat-system/christmas", Reason: "Change freeze", Until: w.Now.Add(time.Hour)}
}

// startsRun matches the texts of decisions that start a Pod, a run on nodes, or a restart.
var startsRun = regexp.MustCompile(`^CreatePod|^RestartTarget|Phase=RUNNING.*(Nodes=|Restart.UID)`)

// testFrozen checks that a Freeze holds what starts something, and nothing else.
func testFrozen(t *testing.T, w World) {
	t.Helper()
	if w.Frozen != nil {
		return
	}
	w.Live, w.AsOf = LiveAll, w.Now
	free := textOf(w, Decide(w))
	christmas(&w)
	d := Decide(w)
	if got := textOf(w, d); !startsRun.MatchString(free) {
		if got != free {
			t.Errorf("in a Freeze, got %s, want %s", got, free)
		}
		return
	}
	if want := w.Frozen.String(); d.Action != nil || d.Status == nil || d.Status.Phase != w.At.Status.Phase || d.Status.Reason != v1alpha1.ReasonFrozen || d.Status.Message != want ||
		len(d.Events) != 1 || d.Events[0] != NewEvent(corev1.EventTypeNormal, v1alpha1.ReasonFrozen, want) || TrueCondition(d.Status.Conditions, v1alpha1.ConditionBlocked) != nil {
		t.Fatalf("in a Freeze, got %s", textOf(w, d))
	}
	w.At = w.At.DeepCopy()
	w.At.Status = *d.Status
	testThaw(t, w)
}

// testThaw checks how an At that a Freeze holds waits for its end.
func testThaw(t *testing.T, w World) {
	t.Helper()
	state := map[v1alpha1.AtPhase]State{v1alpha1.PhaseRunning: StateRunning}[w.At.Status.Phase]
	if got, overdue := StateOf(w.At, w.Parent, w.Now.Add(time.Minute)); got != cmp.Or(state, StateFrozen) || overdue != 0 {
		t.Errorf("frozen: state %s, overdue for %s", got, overdue)
	}
	if got := textOf(w, Decide(w)); got != "wait "+min(time.Hour, newView(w).leftToStart()).String() {
		t.Errorf("frozen, got %s", got)
	}
	w.Frozen.Until = w.Now.Add(2 * time.Hour)
	if d := Decide(w); d.Status == nil || d.Status.Message != w.Frozen.String() || len(d.Events) > 0 {
		t.Errorf("the Freeze ends later: got %s", textOf(w, d))
	}
	w.Frozen = nil
	d := Decide(w)
	if create, creates := d.Action.(CreatePod); !startsRun.MatchString(textOf(w, d)) || creates && create.Due != w.Now || d.Status != nil && IsFrozen(&v1alpha1.At{Status: *d.Status}) {
		t.Errorf("after the Freeze: got %s", textOf(w, d))
	}
	w.FreezesUnknown = errors.New("unknown")
	if d := Decide(w); !errors.Is(d.Retry, w.FreezesUnknown) || d.Action != nil || d.Status != nil {
		t.Errorf("without knowing: got %s", textOf(w, d))
	}
}

// TestFreeze covers deadlines in a Freeze, and what ends the wait for it besides its end. testFrozen
// covers each start.
func TestFreeze(t *testing.T) {
	frozen := func(at *v1alpha1.At) {
		at.Status.Conditions = append(at.Status.Conditions, condition(v1alpha1.ConditionFrozen, metav1.ConditionTrue, due, v1alpha1.ReasonFrozen, christmasMessage))
	}
	testDecide(t, map[string]decideCase{
		"suspended": {at: newAt(frozen, withSuspend), world: christmas, want: "Suspended Suspended: Nothing starts while spec.suspend is true.; no Frozen; Normal Suspended"},
		"an invalid edit": {
			at: newAt(frozen, withSchedule("never")), world: christmas,
			want: `Blocked InvalidSchedule: spec.schedule "never" is invalid: write a time in RFC 3339 format, such as 2035-12-24T10:12:00Z; no Frozen; Warning InvalidSchedule`,
		},
	})
}

const christmasMessage = "Freeze cnat-system/christmas holds until 2026-12-24T11:12:04Z: Change freeze"
