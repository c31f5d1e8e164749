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

// Command promcheck checks the queries of Prometheus rules and Grafana dashboards
// against the metrics on its standard input, as a controller serves them: each query
// must parse, and each of its selectors must match a series. Its tests also evaluate the
// alerts over time.
//
// Usage: promcheck FILE.yaml|FILE.json... <METRICS
package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

// targetLabels are labels that Prometheus adds to any series.
var targetLabels = []string{"cluster", "instance", "job", "namespace", "pod"}

// grafana replaces the variables of a dashboard, as Grafana does.
var grafana = strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$namespace", ".*")

func main() {
	if err := run(os.Stdin, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "promcheck:", err)
		os.Exit(1)
	}
}

func run(metrics io.Reader, files []string) error {
	served, err := io.ReadAll(metrics)
	if err != nil {
		return err
	}
	series, err := seriesOf(served)
	if err != nil {
		return err
	}
	var faults []error
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var document any
		if err := yaml.Unmarshal(content, &document); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		queries := queriesOf(document)
		if len(queries) == 0 {
			return fmt.Errorf("%s has no query", file)
		}
		for _, query := range queries {
			for _, fault := range check(query, series) {
				faults = append(faults, fmt.Errorf("%s: %s\n  in %s", file, fault, query))
			}
		}
		fmt.Fprintf(os.Stdout, "%s: %d queries\n", file, len(queries))
	}
	return errors.Join(faults...)
}

// queriesOf returns the values of all keys expr in a document.
func queriesOf(document any) []string {
	var queries []string
	switch value := document.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			if query, ok := value[key].(string); ok && key == "expr" {
				queries = append(queries, query)
				continue
			}
			queries = append(queries, queriesOf(value[key])...)
		}
	case []any:
		for _, element := range value {
			queries = append(queries, queriesOf(element)...)
		}
	}
	return queries
}

// seriesOf returns the series that Prometheus makes of metrics.
func seriesOf(metrics []byte) (series []labels.Labels, err error) {
	metricsParser := textparse.NewPromParser(metrics, labels.NewSymbolTable(), false)
	for {
		entry, err := metricsParser.Next()
		switch {
		case errors.Is(err, io.EOF):
			return series, nil
		case err != nil:
			return nil, fmt.Errorf("parse the metrics: %w", err)
		case entry == textparse.EntrySeries:
			var one labels.Labels
			metricsParser.Labels(&one)
			series = append(series, one)
		}
	}
}

// check returns what is wrong with a query.
func check(query string, series []labels.Labels) []string {
	expr, err := parser.ParseExpr(grafana.Replace(query))
	if err != nil {
		return []string{err.Error()}
	}
	var faults []string
	for _, selector := range parser.ExtractSelectors(expr) {
		if len(find(selector, series)) == 0 {
			faults = append(faults, fmt.Sprintf("no series matches %s", selector))
		}
	}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if node, ok := node.(*parser.AggregateExpr); ok {
			for _, label := range node.Grouping {
				if !slices.Contains(targetLabels, label) && !hasLabel(node.Expr, label, series) {
					faults = append(faults, fmt.Sprintf("no series has the label %s, by which %s groups", label, node))
				}
			}
		}
		return nil
	})
	return faults
}

// find returns the series that a selector selects.
func find(selector []*labels.Matcher, series []labels.Labels) (found []labels.Labels) {
	for _, candidate := range series {
		if !slices.ContainsFunc(selector, func(matcher *labels.Matcher) bool {
			return !slices.Contains(targetLabels, matcher.Name) && !matcher.Matches(candidate.Get(matcher.Name))
		}) {
			found = append(found, candidate)
		}
	}
	return found
}

// hasLabel says whether a selector within the expression selects a series with the label.
func hasLabel(expr parser.Expr, label string, series []labels.Labels) bool {
	return slices.ContainsFunc(parser.ExtractSelectors(expr), func(selector []*labels.Matcher) bool {
		return slices.ContainsFunc(find(selector, series), func(found labels.Labels) bool { return found.Has(label) })
	})
}
