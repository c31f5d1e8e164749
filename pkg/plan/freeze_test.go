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
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/freeze"
	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
)

// liveWorld returns a World in which an At may do whatever it wants to.
func liveWorld(at *v1alpha1.At) World {
	return World{At: at, Live: LiveAll, AsOf: now, Now: now}
}

func christmas() *freeze.Hold {
	return &freeze.Hold{Freeze: "cnat-system/christmas", Reason: "Change freeze", Until: now.Add(time.Hour)}
}

const christmasMessage = "Freeze cnat-system/christmas holds until 2026-12-24T11:12:04Z: Change freeze"

// TestFreeze covers each start while a Freeze holds, and what goes on.
func TestFreeze(t *testing.T) {
	target := &rollout.Target{Kind: v1alpha1.RestartDeployment, Name: "web", UID: "target", Desired: 1}
	restarts := func(at *v1alpha1.At) {
		at.Spec.RunSpec = v1alpha1.RunSpec{Restart: &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}}
	}
	for name, tc := range map[string]struct {
		at    *v1alpha1.At
		world func(*World)
		// expectations
		frozen bool
		action string
		delay  time.Duration // once the status is written
	}{
		"a first Pod":                  {at: newAt(), frozen: true, delay: time.Hour},
		"a first Pod, with a deadline": {at: newAt(withStartingDeadline(600)), frozen: true, delay: 600*time.Second + time.Second - now.Sub(due)},
		"a first Pod, after that":      {at: newAt(withStartingDeadline(0)), world: func(w *World) { w.Now = now.Add(time.Minute) }, action: "done"},
		"a first Pod that was blocked": {at: newAt(withStatus(pendingWith(blocked(due, v1alpha1.ReasonPodRefused, "quota")))), frozen: true, delay: time.Hour},
		"not due yet":                  {at: newAt(), world: func(w *World) { w.Now = due.Add(-time.Second) }},
		"suspended":                    {at: newAt(withSuspended)},
		"a further attempt":            {at: newAt(withStatus(*nextAttempt(1, now)), withBackoffLimit(2)), frozen: true, delay: time.Hour},
		"a further attempt, not due":   {at: newAt(withStatus(*nextAttempt(1, now.Add(time.Second))), withBackoffLimit(2))},
		"a run on nodes":               {at: newAt(func(at *v1alpha1.At) { at.Spec.Nodes = &v1alpha1.AtNodes{} }), frozen: true, delay: time.Hour},
		"a restart":                    {at: newAt(restarts), world: func(w *World) { w.Target = target }, frozen: true, delay: time.Hour},
		"a restart that was begun": {
			at: newAt(restarts, withStatus(v1alpha1.AtStatus{
				Phase: v1alpha1.PhaseRunning, StartTime: &metav1.Time{Time: now}, ScheduledTime: &metav1.Time{Time: due}, ObservedGeneration: 2,
				Restart: &v1alpha1.AtRestartStatus{UID: "target", Desired: 1},
			})),
			world: func(w *World) { w.Target = target }, frozen: true, delay: time.Hour,
		},
		"a Pod that exists":   {at: newAt(), world: func(w *World) { w.Pods = []*corev1.Pod{newPod(corev1.PodRunning)} }, action: "running"},
		"a command that runs": {at: newAt(withStatus(running(corev1.PodRunning))), world: func(w *World) { w.Pods = []*corev1.Pod{newPod(corev1.PodSucceeded)} }, action: "done"},
	} {
		t.Run(name, func(t *testing.T) {
			w := liveWorld(tc.at)
			if tc.world != nil {
				tc.world(&w)
			}
			if free := Decide(w); tc.frozen != newView(w).starts(free) {
				t.Fatalf("without a Freeze, it is %+v", free)
			}
			w.Frozen = christmas()
			d := Decide(w)
			switch {
			case d.Action != nil:
				t.Fatalf("it takes the step %s", NameOf(d.Action))
			case tc.frozen:
				if d.Status == nil || d.Status.Reason != v1alpha1.ReasonFrozen || d.Status.Message != christmasMessage || d.Status.Phase != w.At.Status.Phase {
					t.Fatalf("got %+v", d.Status)
				}
				if want := []Event{{Type: corev1.EventTypeNormal, Reason: v1alpha1.ReasonFrozen, Message: christmasMessage}}; !cmp.Equal(d.Events, want) {
					t.Errorf("events %+v", d.Events)
				}
				if Blocked(&v1alpha1.At{Status: *d.Status}) != nil {
					t.Error("it is blocked")
				}
			case d.Status != nil && d.Status.Reason == v1alpha1.ReasonFrozen:
				t.Fatalf("it is frozen: %+v", d.Status)
			case tc.action == "running" && (d.Status == nil || d.Status.Phase != v1alpha1.PhaseRunning), tc.action == "done" && (d.Status == nil || d.Status.Phase != v1alpha1.PhaseDone):
				t.Fatalf("got %+v", d.Status)
			}
			if !tc.frozen {
				return
			}

			w.At = w.At.DeepCopy()
			w.At.Status = *d.Status
			if d := Decide(w); d.Status != nil || d.Action != nil || d.Delay != tc.delay {
				t.Errorf("then: got %+v, want a delay of %s", d, tc.delay)
			}
			want := StateFrozen
			if w.At.Status.Phase == v1alpha1.PhaseRunning {
				want = StateRunning
			}
			if state, overdue := StateOf(w.At, nil, now.Add(time.Minute)); state != want || overdue != 0 {
				t.Errorf("state %s, overdue for %s", state, overdue)
			}
			later := w
			later.Frozen = christmas()
			later.Frozen.Until = now.Add(2 * time.Hour)
			if d := Decide(later); d.Status == nil || d.Status.Message == christmasMessage || len(d.Events) > 0 {
				t.Errorf("the Freeze ends later: got %+v", d)
			}

			w.Frozen = nil
			d = Decide(w)
			if !newView(w).starts(d) {
				t.Errorf("after the Freeze: got %+v", d)
			}
			if create, ok := d.Action.(CreatePod); ok && create.Due != w.Now {
				t.Errorf("it was due at %s, want %s", create.Due, w.Now)
			}
			if d.Status != nil && IsFrozen(&v1alpha1.At{Status: *d.Status}) {
				t.Errorf("it is still frozen: %+v", d.Status)
			}
			w.FreezesUnknown = errors.New("unknown")
			if d := Decide(w); !errors.Is(d.Retry, w.FreezesUnknown) || d.Action != nil || d.Status != nil {
				t.Errorf("without knowing: got %+v", d)
			}
		})
	}
}

// TestThaw covers what ends the wait for a Freeze besides its end.
func TestThaw(t *testing.T) {
	frozen := func(at *v1alpha1.At) {
		at.Status.Phase, at.Status.Reason, at.Status.Message = v1alpha1.PhasePending, v1alpha1.ReasonFrozen, christmasMessage
		at.Status.Conditions = append(at.Status.Conditions, condition(v1alpha1.ConditionFrozen, metav1.ConditionTrue, due, v1alpha1.ReasonFrozen, christmasMessage))
	}
	for name, tc := range map[string]struct {
		at    *v1alpha1.At
		world func(*World)
		want  v1alpha1.AtStatus // phase and reason
	}{
		"a later time":    {at: newAt(frozen), world: func(w *World) { w.Now = due.Add(-time.Minute) }, want: v1alpha1.AtStatus{Phase: v1alpha1.PhasePending}},
		"a suspension":    {at: newAt(frozen, func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) }), want: v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, Reason: v1alpha1.ReasonSuspended}},
		"the deadline":    {at: newAt(frozen, withStartingDeadline(0)), world: func(w *World) { w.Now = now.Add(time.Minute) }, want: v1alpha1.AtStatus{Phase: v1alpha1.PhaseDone, Reason: v1alpha1.ReasonStartingDeadlineExceeded}},
		"a Pod after all": {at: newAt(frozen), world: func(w *World) { w.Pods = []*corev1.Pod{newPod(corev1.PodRunning)} }, want: v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning}},
		"an invalid edit": {at: newAt(frozen, withSchedule("never")), want: v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, Reason: v1alpha1.ReasonInvalidSchedule}},
	} {
		t.Run(name, func(t *testing.T) {
			w := liveWorld(tc.at)
			w.Frozen = christmas()
			if tc.world != nil {
				tc.world(&w)
			}
			d := Decide(w)
			if d.Status == nil || d.Status.Phase != tc.want.Phase || d.Status.Reason != tc.want.Reason || IsFrozen(&v1alpha1.At{Status: *d.Status}) {
				t.Errorf("got %+v", d.Status)
			}
		})
	}
}
