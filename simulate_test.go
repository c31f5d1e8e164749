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
	"testing"
	"testing/synctest"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/machinery/connect"
	"programming-kubernetes.info/cnat-controller/pkg/testing/simulation"
)

// hack/simulate.sh sets them.
var (
	simulateSeed  = flag.Uint64("simulate-seed", 1, "seed of the first history")
	simulateDays  = flag.Int("simulate-days", 1, "days of a history")
	simulateFor   = flag.Duration("simulate-for", 0, "time for further seeds")
	simulateTrace = flag.String("simulate-trace", "", "file for the changes")
	simulateV     = flag.Int("simulate-v", 0, "verbosity of the controllers' logs in the trace")
)

// startProgram runs the program as main does, without its endpoints.
func startProgram(ctx context.Context, config *rest.Config, identity string, wallClock clock.WithTicker) error {
	o := &options{
		workers: 1, defaults: defaults, preflightQPS: 5, restartAnnotations: true,
		leaderElect: identity != "", leaderElectNamespace: "cnat-system", leaderElectIdentity: identity,
	}
	config.Wrap(connect.Concise())
	p, err := newProgram(ctx, o, config, wallClock)
	if err != nil {
		return err
	}
	err = p.run(ctx)
	if !p.controller.working.Load() {
		// It has never worked. The goroutines of its queues would stay.
		stopped, stop := context.WithCancel(ctx)
		stop()
		p.cronController.Run(stopped, 1)
		p.runAnnotations(stopped)
		p.controller.Run(stopped, 1)
		p.controller.preflight.Run(stopped, p.controller.queue.Add)
	}
	return err
}

// simulate simulates one history.
func simulate(t *testing.T, o simulation.Options) (result simulation.Result) {
	t.Helper()
	o.Start = startProgram
	handlers := utilruntime.ErrorHandlers
	defer func() { utilruntime.ErrorHandlers = handlers }()
	utilruntime.ErrorHandlers = handlers[:1]        // The other one sleeps until a time of the last simulation.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // More would run goroutines in any order.
	synctest.Test(t, func(t *testing.T) { result = simulation.Run(t, o) })
	return result
}

// TestSimulate runs the whole program for days.
func TestSimulate(t *testing.T) {
	o := simulation.Options{Seed: *simulateSeed, Days: *simulateDays, Verbosity: *simulateV}
	if *simulateTrace != "" {
		file, err := os.Create(*simulateTrace)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = file.Close() }()
		o.Trace = file
	}
	for start := time.Now(); ; o.Seed++ {
		began := time.Now()
		result := simulate(t, o)
		median, p99, most := result.Summary.Lateness()
		t.Logf("seed %d, %d days in %.1fs: history %s, %d requests, %d faults, %d writes, %d Ats, %d CronAts, %d Pods, %d restarts; ends %v; blocked at the end of a day %v; late: median %v, p99 %v, at most %v",
			o.Seed, o.Days, time.Since(began).Seconds(), result.Hash, result.Requests, result.Faults, result.Summary.Writes, result.Summary.Ats, result.Summary.CronAts, result.Summary.Pods, result.Summary.Restarts,
			result.Summary.Ends, result.Summary.Blocked, median, p99, most)
		for _, violation := range result.Violations {
			t.Error(violation)
		}
		if t.Failed() || time.Since(start) >= *simulateFor {
			return
		}
	}
}
