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
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"k8s.io/apimachinery/pkg/util/sets"
)

// makeReport prints a table of the figures in a file, and draws the series in it.
func makeReport(path, svg string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	var results []result
	for decoder := json.NewDecoder(file); ; {
		var r result
		if err := decoder.Decode(&r); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		results = append(results, r)
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "SCENARIO\tNUMBER\tFIGURE\tVALUE\tRANGE\tAT MOST\t")
	for _, r := range results {
		between, atMost, verdict := "", "", ""
		if r.Least != nil {
			between = fmt.Sprintf("%.4g to %.4g", *r.Least, *r.Most)
		}
		if r.AtMost != nil {
			atMost = fmt.Sprintf("%g %s", *r.AtMost, r.Unit)
			if r.Value > *r.AtMost {
				verdict = "missed"
			}
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%.4g %s\t%s\t%s\t%s\n", r.Scenario, r.Number, r.Figure, r.Value, r.Unit, between, atMost, verdict)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	printSeries(results)
	if svg == "" {
		return nil
	}
	return drawSeries(results, svg)
}

// printSeries prints the figures that were measured with several numbers as rows of a table in
// Markdown, with a column for each number.
func printSeries(results []result) {
	values, numbers := map[[2]string]map[int]string{}, sets.New[int]()
	var order [][2]string
	for _, r := range results {
		row := [2]string{r.Scenario, r.Figure}
		if values[row] == nil {
			values[row] = map[int]string{}
			order = append(order, row)
		}
		values[row][r.Number] = strings.TrimSpace(fmt.Sprintf("%.3g %s", r.Value, r.Unit))
	}
	order = slices.DeleteFunc(order, func(row [2]string) bool { return len(values[row]) < 2 })
	for _, row := range order {
		numbers = numbers.Union(sets.KeySet(values[row]))
	}
	if len(order) == 0 {
		return
	}
	header, rule := "| scenario | figure |", "| --- | --- |"
	for _, number := range sets.List(numbers) {
		header, rule = header+fmt.Sprintf(" %d |", number), rule+" --- |"
	}
	fmt.Printf("\n%s\n%s\n", header, rule)
	for _, row := range order {
		fmt.Printf("| %s | %s |", row[0], row[1])
		for _, number := range sets.List(numbers) {
			fmt.Printf(" %s |", values[row][number])
		}
		fmt.Println()
	}
}
