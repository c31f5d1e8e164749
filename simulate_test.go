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

// The global source of math/rand, from which back-offs of client-go get their jitter, can be
// seeded:
//go:debug randseednop=0

package main

import (
	"context"
	"flag"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	clientfeatures "k8s.io/client-go/features"
	clientfeaturestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/rest"

	"programming-kubernetes.info/cnat-controller/pkg/machinery/connect"
	"programming-kubernetes.info/cnat-controller/pkg/testing/audit"
	"programming-kubernetes.info/cnat-controller/pkg/testing/simulation"
)

// hack/simulate.sh sets them.
var (
	simulateSeed    = flag.Uint64("simulate-seed", 1, "seed of the first history")
	simulateDays    = flag.Int("simulate-days", 1, "number of days of a history")
	simulateDay     = flag.Duration("simulate-day", 6*time.Hour, "duration of a day")
	simulateFor     = flag.Duration("simulate-for", 0, "time for histories with the next seeds")
	simulateTrace   = flag.String("simulate-trace", "", "file for the requests and changes")
	simulateMutants = flag.Bool("simulate-mutants", false, "try all mutants, not only the quick ones")
	simulateV       = flag.Int("simulate-v", 0, "verbosity of the controllers' logs in that file")
)

// startProgram runs the program as main does, without its endpoints.
func startProgram(ctx context.Context, config *rest.Config, settings simulation.Settings) error {
	o := &options{
		workers: 1, defaults: defaults, restartAnnotations: true,
		leaderElect: settings.Identity != "", leaderElectNamespace: "cnat-system", leaderElectIdentity: settings.Identity,
	}
	if !settings.NoPreflights {
		o.preflightQPS, o.rehearsals, o.namespaceRehearsals = 5, 10, 2
	}
	config.Wrap(connect.Concise)
	p, err := newProgram(ctx, o, config, settings.Clock)
	if err != nil {
		return err
	}
	return runProgram(ctx, p)
}

// runProgram runs a program, and ends the goroutines of its queues, also if it has never worked.
func runProgram(ctx context.Context, p *program) error {
	err := p.run(ctx)
	if !p.controller.working.Load() {
		stopped, stop := context.WithCancel(ctx)
		stop()
		p.cronController.Run(stopped, 1)
		p.runAnnotations(stopped)
		p.controller.Run(stopped, 1)
		p.controller.preflight.Run(stopped)
	}
	return err
}

// simulate simulates one history.
func simulate(t *testing.T, o simulation.Options) (result simulation.Result) {
	t.Helper()
	o.Start = startProgram
	// With it, informers get what a watch lists in the order of a map.
	clientfeaturestesting.SetFeatureDuringTest(t, clientfeatures.WatchListClient, !o.NoPreflights)
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // There is little to keep, and much garbage.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))   // More would run goroutines in any order.
	synctest.Test(t, func(t *testing.T) { result = simulation.Run(t, o) })
	return result
}

// TestSimulate runs the whole program for days, and checks its history.
func TestSimulate(t *testing.T) {
	o := simulation.Options{Seed: *simulateSeed, Days: *simulateDays, Day: *simulateDay, Verbosity: *simulateV}
	if *simulateTrace != "" {
		file, err := os.Create(*simulateTrace)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = file.Close() }()
		o.Trace = file
	}
	for start := time.Now(); ; o.Seed++ {
		o.NoPreflights = o.Seed%2 == 1 // so that these can be repeated
		result := simulate(t, o)
		t.Logf("seed %d, after %v: %s", o.Seed, time.Since(start).Round(time.Second), &result)
		for _, violation := range result.Violations {
			t.Error(violation)
		}
		if t.Failed() || time.Since(start) >= *simulateFor {
			return
		}
	}
}

// randomOrder is true if the order of goroutines is random.
var randomOrder = false

// TestSimulateAgain simulates the same history twice. Without preflights, nothing differs: they
// let two dry-runs that are due at the same instant take turns in a random order.
func TestSimulateAgain(t *testing.T) {
	if randomOrder {
		t.Skip("the race detector runs goroutines in a random order")
	}
	// With this seed, the order in which informers list makes a difference.
	o := simulation.Options{Seed: 15, Days: 1, Day: 3 * time.Hour, NoPreflights: true}
	first, second := simulate(t, o), simulate(t, o)
	if first.Hash != second.Hash || first.Requests == 0 {
		t.Errorf("the histories differ:\n%s\n%s", &first, &second)
	}
}

// quickMutants are the mutants that are noticed within seconds.
var quickMutants = []string{"the name is no lock", "half a second early", "a running Pod counts as ended", "a suspension is ignored"}

// TestSimulateMutants breaks the program in many ways. The simulation notices each, and nothing
// in the same history of the whole program.
func TestSimulateMutants(t *testing.T) {
	controlled := map[[2]any]bool{}
	control := func(t *testing.T, o simulation.Options) {
		t.Helper()
		key := [2]any{o.Seed, o.NoPreflights}
		if controlled[key] {
			return
		}
		controlled[key], o.Mutant = true, nil
		if result := simulate(t, o); len(result.Violations) > 0 || result.Summary.Ats == 0 {
			t.Errorf("seed %d without a mutant: %v, %s", o.Seed, result.Violations, &result)
		}
	}
	for name, mutant := range simulation.Mutants {
		if !*simulateMutants && !slices.Contains(quickMutants, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			o := simulation.Options{Days: 1, Day: 8 * time.Hour, Mutant: &mutant, NoPreflights: !mutant.Preflights}
			for ; o.Seed < 10; o.Seed++ {
				result := simulate(t, o)
				if i := slices.IndexFunc(result.Violations, func(v audit.Violation) bool { return v.Rule == mutant.Want }); i >= 0 {
					t.Logf("seed %d, %d requests: %s", o.Seed, result.Requests, result.Violations[i])
					control(t, o)
					return
				}
			}
			t.Errorf("nothing was noticed that breaks the promise %q", mutant.Want)
		})
	}
}
