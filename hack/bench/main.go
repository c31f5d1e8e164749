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

// Command bench measures the controller against the API server in $KUBECONFIG, and prints
// each figure as a line of JSON. hack/bench.sh runs it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// result is a figure.
type result struct {
	Scenario string   `json:"scenario"`
	Number   int      `json:"number"`
	Figure   string   `json:"figure"`
	Value    float64  `json:"value"`
	Least    *float64 `json:"least,omitempty"` // of several measurements, whose median is the value
	Most     *float64 `json:"most,omitempty"`
	Unit     string   `json:"unit,omitempty"`
	AtMost   *float64 `json:"atMost,omitempty"` // the limit that must be met
}

type bench struct {
	*cluster
	binary   string // of the controller
	scenario string
	number   int
	pairs    int

	controller *process
	samples    map[string][]float64 // by figure
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	b := bench{samples: map[string][]float64{}}
	flag.StringVar(&b.scenario, "scenario", "", "what to measure: "+strings.Join(slices.Sorted(maps.Keys(scenarios)), ", "))
	flag.IntVar(&b.number, "number", 100, "number of Ats")
	flag.IntVar(&b.pairs, "pairs", 5, "how often a burst is measured")
	flag.StringVar(&b.binary, "controller", "", "path of the controller's binary; its log is written next to it")
	report := flag.String("report", "", "print a table of the figures in this file instead of measuring")
	plot := flag.String("plot", "", "with -report: draw them into this SVG file")
	simulate := flag.Bool("simulate", false, "simulate this number of Ats on one controller and on shards, without a cluster; see docs/scaling.md")
	flag.Parse()

	var err error
	switch {
	case *simulate:
		err = b.simulate(b.number)
	case *report != "":
		err = makeReport(*report, *plot)
	case scenarios[b.scenario] == nil || b.binary == "":
		err = errors.New("-scenario and -controller are needed, see -help")
	default:
		err = b.run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var err error
	if b.binary, err = filepath.Abs(b.binary); err != nil {
		return err
	}
	if b.cluster, err = connect(os.Getenv("KUBECONFIG")); err != nil {
		return err
	}
	err = scenarios[b.scenario](b, ctx, b.number)
	return errors.Join(err, b.stop())
}

// start starts the controller to measure.
func (b *bench) start(ctx context.Context, args ...string) error {
	var err error
	b.controller, err = startController(ctx, b.binary, args...)
	return err
}

// stop stops that controller if it is running.
func (b *bench) stop() error {
	if b.controller == nil || b.controller.cmd.ProcessState != nil {
		return nil
	}
	return b.controller.stop()
}

// report prints a figure.
func (b *bench) report(figure string, value float64, unit string, atMost *float64) {
	b.print(result{Figure: figure, Value: value, Unit: unit, AtMost: atMost})
}

// sample adds one of several measurements of a figure.
func (b *bench) sample(figure string, value float64) {
	progress("%s: %.4g", figure, value)
	b.samples[figure] = append(b.samples[figure], value)
}

// reportMedian prints a figure that was sampled.
func (b *bench) reportMedian(figure, unit string, atMost *float64) {
	samples := slices.Sorted(slices.Values(b.samples[figure]))
	b.print(result{Figure: figure, Value: samples[len(samples)/2], Least: &samples[0], Most: &samples[len(samples)-1], Unit: unit, AtMost: atMost})
}

func (b *bench) print(r result) {
	r.Scenario, r.Number = b.scenario, b.number
	line, err := json.Marshal(r)
	if err != nil {
		panic(err) // The number has no JSON representation.
	}
	fmt.Fprintln(os.Stdout, string(line))
}

var begun = time.Now()

// progress reports progress to the user.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%6.1fs  %s\n", time.Since(begun).Seconds(), fmt.Sprintf(format, args...))
}
