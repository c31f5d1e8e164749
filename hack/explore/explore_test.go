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
	"os"
	"runtime/debug"
	"slices"
	"testing"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // There is little to keep, and much garbage.
	os.Exit(m.Run())
}

func find(name string) scenario {
	i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })
	return scenarios[i]
}

// TestExplore explores a part of each scenario.
func TestExplore(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			if r := newExplorer(s).run(3_000, 2); r.err != nil {
				t.Errorf("%v\n%s", r.err, table(r.history))
			}
		})
	}
}

// TestKey checks that equal states lead to equal states: that a key has all that decides what
// happens next.
func TestKey(t *testing.T) {
	const depth = 5
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			x := newExplorer(s)
			p := newReplayer(x)
			next := map[key]map[key]string{} // the successors of a state, by its key
			frontier := []*state{x.initial()}
			for range depth {
				var all []*state
				for _, s := range frontier {
					known, again := next[s.key()]
					if again {
						x.turns.Clear()
					}
					successors := map[key]string{}
					for _, t := range x.transitions(s, p) {
						t.next.check()
						successors[t.next.key()] = t.what
						all = append(all, t.next)
					}
					next[s.key()] = successors
					for _, pair := range [][2]map[key]string{{successors, known}, {known, successors}} {
						for k, what := range pair[0] {
							if _, ok := pair[1][k]; again && !ok {
								t.Fatalf("%q leads from a state to another one than from an equal state", what)
							}
						}
					}
				}
				if len(all) > 300 {
					all = all[:300]
				}
				frontier = all
			}
		})
	}
}
