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

// Command explore checks the promises of cnat in every interleaving.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// newExplorer explores a scenario with the real decisions.
func newExplorer(s scenario) *explorer {
	return &explorer{
		scenario: s,
		instants: later(s.instants),
		flight:   maxFlight,
		decide:   plan.Decide,
		cleanUp:  plan.CleanUp,
	}
}

// later returns the instants of a scenario, and those in which what remains is done.
func later(instants []float64) []float64 {
	last := instants[len(instants)-1]
	return append(slices.Clone(instants), last+20, last+40, last+100, last+1000, last+2000)
}

func main() {
	limit := flag.Int("limit", 1_200_000, "The number of states after which to stop.")
	strict := flag.Bool("strict", false, "Also check what docs/concepts/guarantees.md excludes, to see it happen.")
	faults := flag.Int("faults", -1, "The number of requests that fail. By default, that of the scenario.")
	edits := flag.Int("edits", -1, "The number of edits by users. By default, that of the scenario.")
	crashes := flag.Int("crashes", -1, "The number of times that a controller is killed. By default, that of the scenario.")
	lag := flag.Int("lag", -1, "By how many events a watch may be late. By default, that of the scenario.")
	flag.Parse()
	klog.LogToStderr(false)
	only := flag.Arg(0)
	if flag.NArg() > 1 || only != "" && !slices.ContainsFunc(scenarios, func(s scenario) bool { return s.name == only }) {
		fmt.Fprintf(os.Stderr, "%q is not a scenario of hack/explore/scenarios.go, after the flags\n", flag.Args())
		os.Exit(2)
	}
	failed := false
	for _, s := range scenarios {
		if only != "" && only != s.name {
			continue
		}
		for given, budget := range map[*int]*int{faults: &s.left.faults, edits: &s.left.edits, crashes: &s.left.crashes, lag: &s.lag} {
			if *given >= 0 {
				*budget = *given
			}
		}
		x := newExplorer(s)
		x.strict = *strict
		begun := time.Now()
		r := x.run(*limit, runtime.GOMAXPROCS(0))
		fmt.Printf("%s: %d states, depth %d, %.0f s, complete: %t\n", s.name, r.states, r.depth, time.Since(begun).Seconds(), r.complete)
		if r.err != nil {
			failed = true
			fmt.Printf("%v\n%s", r.err, table(r.history))
		}
	}
	if failed {
		os.Exit(1)
	}
}
