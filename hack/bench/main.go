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

// Command bench measures the controller against the API server in $KUBECONFIG. hack/bench.sh
// runs it. It gives up, with a panic, at the first error.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// scenario is something to measure.
type scenario struct {
	measure func(b *bench)
	rounds  int                // how often it is measured by default
	limits  map[string]float64 // the targets of docs/performance.md, by figure
}

// bench is one measurement.
type bench struct {
	*cluster
	ctx        context.Context // It ends with the measurement.
	number     int             // of Ats
	binary     string          // of the controller
	controller *exec.Cmd       // nil: not running
	started    time.Time       // the controller
	namespaces []string
	figures    map[string]float64
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	name := flag.String("scenario", "", "what to measure: "+strings.Join(slices.Sorted(maps.Keys(scenarios)), ", "))
	number := flag.Int("number", 100, "number of Ats")
	rounds := flag.Int("rounds", 0, "how often it is measured; 0 means as often as the figures need")
	controller := flag.String("controller", "", "path of the controller's binary; its log is written next to it")
	against := flag.String("against", "", "path of the binary of another controller to compare with")
	flag.Parse()

	s, known := scenarios[*name]
	switch {
	case !known || *controller == "":
		fmt.Fprintln(os.Stderr, "-scenario and -controller are needed, see -help")
		os.Exit(2)
	case *rounds == 0:
		*rounds = s.rounds
		if *against != "" {
			*rounds = max(3, *rounds) // pairs
		}
	}
	binaries := []string{*controller}
	if *against != "" {
		binaries = append(binaries, *against)
	}
	c := connect(os.Getenv("KUBECONFIG"))
	measureOnce(ctx, c, func(b *bench) { b.bare(warmUp) }, 0, "")
	results := make([][]map[string]float64, len(binaries)) // by binary and round
	for round := range *rounds {
		for i := range binaries {
			// What is measured later finds a larger etcd, so the first of each pair alternates.
			i = (i + round) % len(binaries)
			figures := measureOnce(ctx, c, s.measure, *number, binaries[i])
			progress("round %d of %d, %s", round+1, *rounds, binaries[i])
			results[i] = append(results[i], figures)
		}
	}
	fmt.Printf("%s:%d\n", *name, *number)
	printTable(results, s.limits)
}

func measureOnce(ctx context.Context, c *cluster, measure func(b *bench), number int, binary string) map[string]float64 {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b := &bench{cluster: c, ctx: ctx, number: number, binary: binary, figures: map[string]float64{}}
	defer b.stop()
	measure(b)
	b.deleteNamespaces()
	return b.figures
}

// printTable prints the median and the range of each figure. With two controllers, it also
// prints what each pair of measurements has as a ratio: that of the controller to the other one.
func printTable(results [][]map[string]float64, limits map[string]float64) {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "FIGURE\tMEDIAN\tRANGE\tAT MOST\t")
	if len(results) > 1 {
		fmt.Fprintf(table, "THE OTHER\tRATIO\tOF EACH PAIR\t")
	}
	fmt.Fprintln(table)
	for _, figure := range slices.Sorted(maps.Keys(results[0][0])) {
		values, ratios := make([][]float64, len(results)), []float64{}
		for round := range results[0] {
			for i := range results {
				values[i] = append(values[i], results[i][round][figure])
			}
			if len(results) > 1 {
				ratios = append(ratios, values[0][round]/values[1][round])
			}
		}
		limit := ""
		if most, limited := limits[figure]; limited {
			limit = fmt.Sprint(most)
			if median(values[0]) > most {
				limit += ", missed"
			}
		}
		fmt.Fprintf(table, "%s\t%.4g\t%.4g to %.4g\t%s\t", figure, median(values[0]), slices.Min(values[0]), slices.Max(values[0]), limit)
		if len(results) > 1 {
			fmt.Fprintf(table, "%.4g\t%.3g\t%.3g\t", median(values[1]), median(ratios), ratios)
		}
		fmt.Fprintln(table)
	}
	must(table.Flush())
}

func median(values []float64) float64 { return quantile(values, 0.5) }

func quantile(values []float64, q float64) float64 {
	return slices.Sorted(slices.Values(values))[int(float64(len(values))*q)]
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// get returns a value that was returned without an error.
func get[T any](value T, err error) T {
	must(err)
	return value
}

var begun = time.Now()

// progress reports progress to the user.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%6.1fs  %s\n", time.Since(begun).Seconds(), fmt.Sprintf(format, args...))
}
