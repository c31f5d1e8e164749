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
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// mutants break a promise.
var mutants = map[string]struct {
	scenario, want string
	mutate         func(x *explorer)
}{
	"no live read": {"at", "after the At was suspended", func(x *explorer) {
		x.decide = func(w plan.World) plan.Decision {
			w.AtIsLive, w.AtAsOf = w.At != nil, w.Now
			return plan.Decide(w)
		}
	}},
	"no finalizer": {"at", "runs twice", func(x *explorer) {
		x.send = func(request any) any {
			if create, ok := request.(createPod); ok {
				pod := create.pod.DeepCopy()
				pod.Finalizers = nil
				return createPod{pod}
			}
			return request
		}
	}},
	"ownership by name": {"successor", "which was not created for this At", func(x *explorer) {
		adopt := func(w plan.World) plan.World {
			if w.At == nil {
				return w
			}
			var pods []*corev1.Pod
			for _, pod := range w.Pods {
				pod = pod.DeepCopy()
				for i := range pod.OwnerReferences {
					pod.OwnerReferences[i].UID = w.At.UID
				}
				pods = append(pods, pod)
			}
			w.Pods = pods
			return w
		}
		x.decide = func(w plan.World) plan.Decision { return plan.Decide(adopt(w)) }
	}},
	"the status is written without a version": {"retries", "goes back", func(x *explorer) {
		x.send = func(request any) any {
			patch, ok := request.(patchAt)
			if !ok {
				return request
			}
			var body map[string]any
			if err := json.Unmarshal(patch.body, &body); err != nil {
				panic(err)
			}
			delete(body, "metadata")
			patch.body, _ = json.Marshal(body)
			return patch
		}
	}},
	"a Pod is released at once": {"at", "runs twice", func(x *explorer) {
		x.scenario.instants, x.scenario.left.crashes, x.scenario.edits = x.scenario.instants[1:2], 1, []edit{removePod}
		x.instants = x.instants[1:]
		x.begins = []string{
			"controller A: LookForAt", "controller A: CreatePod", "the kubelet starts at-pod",
			"the command succeeds in at-pod", "controller A: is killed and starts again",
		}
		x.cleanUp = func(w plan.World, pod *corev1.Pod) plan.Decision {
			d := plan.CleanUp(w, pod)
			if d.Action == nil && d.Delay > 0 {
				return plan.Decision{Action: plan.ReleasePod{Pod: pod}}
			}
			return d
		}
	}},
	"a Pod is never released": {"at", "the finalizer of Pod at-pod stays", func(x *explorer) {
		x.cleanUp = func(w plan.World, pod *corev1.Pod) plan.Decision {
			d := plan.CleanUp(w, pod)
			if _, releases := d.Action.(plan.ReleasePod); releases {
				return plan.Decision{}
			}
			return d
		}
	}},
	"a lost Pod is created again": {"at", "does not come to an end", func(x *explorer) {
		x.decide = func(w plan.World) plan.Decision {
			if w.At != nil && !w.HasPod() && w.At.Status.Pod != nil {
				at := w.At.DeepCopy()
				at.Status.Pod, at.Status.Phase = nil, ""
				w.At = at
			}
			return plan.Decide(w)
		}
	}},
	"a second too early": {"at", "before it is due", func(x *explorer) {
		x.decide = func(w plan.World) plan.Decision {
			w.Now = w.Now.Add(time.Second)
			w.AtAsOf = w.AtAsOf.Add(time.Second)
			return plan.Decide(w)
		}
	}},
}

// TestMutants breaks the promises: each is seen, with a small budget.
func TestMutants(t *testing.T) {
	for name, mutant := range mutants {
		t.Run(name, func(t *testing.T) {
			x := newExplorer(small(mutant.scenario))
			mutant.mutate(x)
			r := x.run(100_000, 2)
			if r.err == nil || !strings.Contains(r.err.Error(), mutant.want) {
				t.Fatalf("after %d states: %v, want that it %s\n%s", r.states, r.err, mutant.want, table(r.history))
			}
			t.Logf("after %d states: %v\n%s", r.states, r.err, table(r.history))
		})
	}
}

// small returns a scenario with few instants, and without faults.
func small(name string) scenario {
	for _, s := range scenarios {
		if s.name == name {
			s.instants = []float64{59, 60, 61}
			s.left.faults, s.left.crashes = 0, 0
			return s
		}
	}
	panic("there is no scenario " + name)
}

// TestExplore explores a part of each scenario, and of those without a mutant.
func TestExplore(t *testing.T) {
	all := scenarios
	for _, s := range scenarios {
		s := small(s.name)
		s.name += ", small"
		all = append(all, s)
	}
	for _, s := range all {
		t.Run(s.name, func(t *testing.T) {
			if r := newExplorer(s).run(2_000, 2); r.err != nil {
				t.Errorf("%v\n%s", r.err, table(r.history))
			}
		})
	}
}
