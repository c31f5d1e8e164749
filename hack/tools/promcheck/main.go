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
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
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
	textParser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := textParser.TextToMetricFamilies(metrics)
	if err != nil {
		return fmt.Errorf("parse the metrics: %w", err)
	}
	series := seriesOf(families)
	wrong := 0
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
				fmt.Fprintf(os.Stderr, "%s: %s\n  in %s\n", file, fault, query)
				wrong++
			}
		}
		fmt.Fprintf(os.Stdout, "%s: %d queries\n", file, len(queries))
	}
	if wrong > 0 {
		return fmt.Errorf("%d faults", wrong)
	}
	return nil
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
func seriesOf(families map[string]*dto.MetricFamily) []labels.Labels {
	var series []labels.Labels
	for name, family := range families {
		for _, metric := range family.GetMetric() {
			add := func(name string, more ...string) {
				builder := labels.NewBuilder(labels.FromStrings(more...))
				builder.Set(model.MetricNameLabel, name)
				for _, pair := range metric.GetLabel() {
					builder.Set(pair.GetName(), pair.GetValue())
				}
				series = append(series, builder.Labels())
			}
			switch family.GetType() {
			case dto.MetricType_HISTOGRAM:
				add(name + "_count")
				add(name + "_sum")
				for _, bucket := range metric.GetHistogram().GetBucket() {
					add(name+"_bucket", "le", number(bucket.GetUpperBound()))
				}
			case dto.MetricType_SUMMARY:
				add(name + "_count")
				add(name + "_sum")
				for _, quantile := range metric.GetSummary().GetQuantile() {
					add(name, "quantile", number(quantile.GetQuantile()))
				}
			default:
				add(name)
			}
		}
	}
	return series
}

func number(value float64) string { return strconv.FormatFloat(value, 'g', -1, 64) }

// check returns what is wrong with a query.
func check(query string, series []labels.Labels) []string {
	expr, err := parser.ParseExpr(grafana.Replace(query))
	if err != nil {
		return []string{err.Error()}
	}
	var faults []string
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch node := node.(type) {
		case *parser.VectorSelector:
			if len(find(node, series)) == 0 {
				faults = append(faults, fmt.Sprintf("no series matches %s", node))
			}
		case *parser.AggregateExpr:
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
func find(selector *parser.VectorSelector, series []labels.Labels) []labels.Labels {
	var found []labels.Labels
	for _, candidate := range series {
		matches := !slices.ContainsFunc(selector.LabelMatchers, func(matcher *labels.Matcher) bool {
			return !slices.Contains(targetLabels, matcher.Name) && !matcher.Matches(candidate.Get(matcher.Name))
		})
		if matches {
			found = append(found, candidate)
		}
	}
	return found
}

// hasLabel says whether a selector within the expression selects a series with the
// label.
func hasLabel(expr parser.Expr, label string, series []labels.Labels) bool {
	has := false
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			has = has || slices.ContainsFunc(find(selector, series), func(found labels.Labels) bool { return found.Has(label) })
		}
		return nil
	})
	return has
}
