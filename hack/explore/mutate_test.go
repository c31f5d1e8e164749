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

package main

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronsteps"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// mutant breaks a promise in a world, in which that promise holds without the mutation.
type mutant struct {
	scenario, want string
	world          func(x *explorer) // nil: the scenario as it is
	mutate         func(x *explorer)
}

// decides returns a mutant of the world that decisions are made on.
func decides(change func(w *plan.World)) func(x *explorer) {
	return func(x *explorer) {
		x.decide = func(w plan.World) plan.Decision {
			if w.At != nil {
				w.At = w.At.DeepCopy()
				change(&w)
			}
			return plan.Decide(w)
		}
	}
}

// becomes returns a mutant of the decisions.
func becomes(change func(w plan.World, d *plan.Decision)) func(x *explorer) {
	return func(x *explorer) {
		x.decide = func(w plan.World) plan.Decision {
			d := plan.Decide(w)
			change(w, &d)
			return d
		}
	}
}

// omits returns a mutant of the decisions without those with an action.
func omits[T any](mistaken func(w plan.World) bool) func(x *explorer) {
	return becomes(func(w plan.World, d *plan.Decision) {
		if _, omitted := d.Action.(T); omitted && (mistaken == nil || mistaken(w)) {
			*d = plan.Decision{}
		}
	})
}

// seesPods returns a mutant of the Pods that decisions are made on.
func seesPods(change func(at *v1alpha1.At, pod *corev1.Pod)) func(x *explorer) {
	return decides(func(w *plan.World) {
		w.Pods = slices.Clone(w.Pods)
		for i := range w.Pods {
			w.Pods[i] = w.Pods[i].DeepCopy()
			change(w.At, w.Pods[i])
		}
	})
}

// seesCronAt returns a mutant of the CronAt that decisions are made on.
func seesCronAt(change func(s *cronsteps.Steps, w *cronplan.World)) func(x *explorer) {
	return cronAt(func(s *cronsteps.Steps, w *cronplan.World) {
		if w.CronAt != nil {
			w.CronAt = w.CronAt.DeepCopy()
			change(s, w)
		}
	})
}

// cleansUp returns a mutant of the decisions for the Pods that are no longer needed.
func cleansUp(change func(w plan.World, pod *corev1.Pod, d plan.Decision) plan.Decision) func(x *explorer) {
	return func(x *explorer) {
		x.cleanUp = func(w plan.World, pod *corev1.Pod) plan.Decision { return change(w, pod, plan.CleanUp(w, pod)) }
	}
}

// cronAt returns a mutant of the world that the decisions for a CronAt are made on.
func cronAt(change func(s *cronsteps.Steps, w *cronplan.World)) func(x *explorer) {
	return func(x *explorer) { x.mutateCronAt = change }
}

// sends returns a mutant of the requests.
func sends(change func(r *request)) func(x *explorer) {
	return func(x *explorer) { x.send = change }
}

// all returns several mutants at once.
func all(mutations ...func(x *explorer)) func(x *explorer) {
	return func(x *explorer) {
		for _, mutate := range mutations {
			mutate(x)
		}
	}
}

// within limits a scenario to some instants, to faults and crashes, and to what users may do.
// Watches may be behind by any number of events.
func within(instants []float64, left budget, edits ...edit) func(x *explorer) {
	return func(x *explorer) {
		x.scenario.instants, x.scenario.left, x.scenario.edits, x.scenario.begins = instants, left, edits, nil
		x.instants, x.scenario.lag = later(instants), 100
	}
}

// after explores from the end of a history on.
func after(history ...string) func(x *explorer) {
	return func(x *explorer) { x.scenario.begins = history }
}

// succeeds lets no command fail.
func succeeds(x *explorer) { x.scenario.fails = false }

// TestMutants breaks the promises: each mutation is seen, with a small budget, and is the only reason.
func TestMutants(t *testing.T) {
	for name, mutant := range mutants {
		t.Run(name, mutant.test)
	}
}

// exceptions drop an assumption of docs/concepts/guarantees.md.
var exceptions = map[string]mutant{
	"a deleted At does not run again": {"at", "runs twice",
		all(within([]float64{60}, budget{edits: 1}, deleteAt), after("controller A: at: reads the At", "controller B: at: reads the At", "controller B: at: CreatePod", "the kubelet starts at-pod", "the command succeeds in at-pod")), strictly},
	"a restart that is not recorded is not undone": {"restart", "is restarted twice",
		within([]float64{60}, budget{edits: 1}, undoRestart), strictly},
	"a creation takes at most nine seconds": {"deleted", "runs twice",
		all(within([]float64{60.75, 71}, budget{faults: 1, edits: 1}, deletePod), after(append(delayed, "it is 00:01:11.0")...)),
		func(x *explorer) { x.flight = 11 }},
}

func strictly(x *explorer) { x.strict = true }

// TestExceptions drops assumptions: what the guarantees exclude is seen, and only then.
func TestExceptions(t *testing.T) {
	for name, exception := range exceptions {
		t.Run(name, exception.test)
	}
}

func (m mutant) test(t *testing.T) {
	t.Helper()
	r := m.run(100_000, true)
	if r.err == nil || !strings.Contains(r.err.Error(), m.want) {
		t.Fatalf("after %d states: %v, want that it %s\n%s", r.states, r.err, m.want, table(r.history))
	}
	t.Logf("after %d states: %v\n%s", r.states, r.err, table(r.history))
	if r := m.run(r.states, false); r.err != nil {
		t.Errorf("without the mutation: %v\n%s", r.err, table(r.history))
	}
}

// run explores the world of a mutant, with or without the mutation.
func (m mutant) run(limit int, mutated bool) result {
	x := newExplorer(find(m.scenario))
	if m.world != nil {
		m.world(x)
	}
	if mutated {
		m.mutate(x)
	}
	return x.run(limit, 2)
}
