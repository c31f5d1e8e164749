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

// Command kills finds out which tests notice each mutant, and keeps the table of
// docs/contributing/kills.md: see hack/kills.sh. It gives up, with a panic, at the first error.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	page      = "docs/contributing/kills.md"
	module    = "programming-kubernetes.info/cnat-controller/"
	unnoticed = "not noticed"
)

func main() {
	pattern := flag.String("run", "", "only mutants whose names match this regular expression")
	onlyUnit := flag.Bool("unit", false, "only the unit tests")
	flag.Parse()
	matches := regexp.MustCompile(*pattern)
	dir := get(os.MkdirTemp("", "kills"))
	defer func() { must(os.RemoveAll(dir)) }()
	packages := listPackages()
	rows := readRows()
	known := map[string]bool{}
	for _, m := range read() {
		tried := ""
		for _, name := range m.names {
			known[name] = true
			if !matches.MatchString(name) {
				continue
			}
			if tried == "" {
				tried = m.try(dir, packages)
			}
			layer := cmp.Or(rows[name][1], "not tried")
			if !*onlyUnit {
				layer = tryLayer(name)
			}
			rows[name] = [2]string{tried, layer}
			fmt.Fprintf(os.Stderr, "%s: %s; %s\n", name, tried, layer)
		}
	}
	maps.DeleteFunc(rows, func(name string, _ [2]string) bool { return !known[name] })
	const header = "| --- | --- | --- |\n"
	text, _, _ := strings.Cut(string(get(os.ReadFile(page))), header)
	text += header
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		text += fmt.Sprintf("| %s | %s | %s |\n", name, strings.ReplaceAll(rows[name][0], "|", `\|`), rows[name][1])
	}
	must(os.WriteFile(page, []byte(text), 0o644))
}

// mutant is a change of the source.
type mutant struct {
	names []string // with the layer that has a mutant of that name
	edits []edit
}

// edit replaces a text of a file.
type edit struct{ file, remove, add string }

// read reads the mutants.
func read() (mutants []mutant) {
	for paragraph := range strings.SplitSeq(string(get(os.ReadFile("hack/kills/mutants.txt"))), "\n\n") {
		var m mutant
		for line := range strings.Lines(paragraph) {
			kind, text, _ := strings.Cut(strings.TrimSpace(line), " ")
			switch kind {
			case "explore:", "simulate:", "unit:":
				m.names = append(m.names, strings.TrimSpace(line))
			case "file:":
				m.edits = append(m.edits, edit{file: text})
			case "-":
				m.edits[len(m.edits)-1].remove += text + "\n"
			case "+":
				m.edits[len(m.edits)-1].add += text + "\n"
			}
		}
		if len(m.edits) > 0 {
			mutants = append(mutants, m)
		}
	}
	return mutants
}

// overlay writes the changed files to a directory, and returns a file for go test -overlay.
func (m mutant) overlay(dir string) (string, error) {
	changed := map[string]string{}
	for i, e := range m.edits {
		content := get(os.ReadFile(e.file))
		// Spaces and line breaks count as equal.
		var fields []string
		for _, field := range strings.Fields(e.remove) {
			fields = append(fields, regexp.QuoteMeta(field))
		}
		found := regexp.MustCompile(strings.Join(fields, `\s+`)).FindAllIndex(content, -1)
		if len(found) != 1 {
			return "", fmt.Errorf("%s has %q %d times, want once", e.file, strings.TrimSpace(e.remove), len(found))
		}
		copied := filepath.Join(dir, fmt.Sprintf("%d.go", i))
		must(os.WriteFile(copied, slices.Concat(content[:found[0][0]], []byte(strings.TrimSpace(e.add)), content[found[0][1]:]), 0o600))
		changed[get(filepath.Abs(e.file))] = copied
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, get(json.Marshal(map[string]any{"Replace": changed})), 0o600)
}

// try runs the unit tests of the packages that a mutant may break, until one fails. It returns
// which does, and the seconds that its tests took. dir is for the changed files.
func (m mutant) try(dir string, packages [][]string) string {
	overlay, err := m.overlay(dir)
	if err != nil {
		return "not applicable: " + err.Error()
	}
	changed := map[string]bool{}
	for _, e := range m.edits {
		changed[strings.TrimSuffix(module+filepath.Dir(e.file), "/.")] = true
	}
	var own, others []string
	for _, p := range packages {
		if changed[p[0]] {
			own = append(own, p[0])
		} else if slices.ContainsFunc(p, func(path string) bool { return changed[path] }) {
			others = append(others, p[0])
		}
	}
	for _, path := range append(own, others...) {
		// The simulation is a layer of its own.
		output, err := runGo("test", "-vet=off", "-count=1", "-failfast", "-timeout=5m", "-skip=^TestSimulate", "-overlay="+overlay, path)
		switch result := failed.FindSubmatch(output); {
		case err == nil, bytes.Contains(output, []byte("panic: test timed out")):
		case result == nil:
			return "does not compile: " + strings.Join(strings.Fields(string(output)), " ")
		default:
			return fmt.Sprintf("%s, %s s", cmp.Or(strings.TrimPrefix(path+"/", module), "the root"), result[1])
		}
	}
	return unnoticed
}

var failed = regexp.MustCompile(`(?m)^FAIL\t\S+\t([\d.]+)s$`)

func runGo(args ...string) ([]byte, error) {
	return exec.CommandContext(context.Background(), "go", args...).CombinedOutput()
}

// listPackages returns the packages with unit tests, each after those that it imports, and with their
// names behind its own.
func listPackages() (packages [][]string) {
	output := get(runGo("list", "-f", `{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{join .Deps " "}} {{join .TestImports " "}} {{join .XTestImports " "}}{{end}}`, ".", "./pkg/..."))
	for line := range strings.Lines(string(output)) {
		if fields := strings.Fields(line); len(fields) > 0 && !strings.HasPrefix(fields[0], module+"pkg/testing/") {
			packages = append(packages, fields)
		}
	}
	slices.SortStableFunc(packages, func(a, b []string) int { return cmp.Compare(len(a), len(b)) })
	return packages
}

// layers are the packages of the other layers, and the flags of their tests of mutants.
var layers = map[string][]string{
	"explore":  {"./hack/explore"},
	"simulate": {".", "-simulate-mutants"},
}

// tryLayer tries a mutant of the explorer or of the simulation there.
func tryLayer(name string) string {
	title, test, _ := strings.Cut(name, ": ")
	layer, known := layers[title]
	if !known {
		return "none"
	}
	run := "-run=^Test(Simulate)?Mutants$/^" + regexp.QuoteMeta(strings.ReplaceAll(test, " ", "_")) + "$"
	output, err := runGo(append([]string{"test", "-vet=off", "-count=1", "-timeout=0", "-v", run}, layer...)...)
	switch result := passed.FindSubmatch(output); {
	case err == nil && result != nil:
		return string(result[1]) + " s"
	case bytes.Contains(output, []byte("--- FAIL: ")):
		return unnoticed
	default:
		return "does not run: " + strings.Join(strings.Fields(string(output)), " ")
	}
}

// passed is the result of a mutant that was noticed, as was expected.
var passed = regexp.MustCompile(`(?m)^ +--- PASS: \S+/\S+ \(([\d.]+)s\)$`)

var row = regexp.MustCompile(`(?m)^\| (\w+: .*) \| (.*) \| (.*) \|$`)

// readRows returns the rows of the page by the names of mutants.
func readRows() map[string][2]string {
	rows := map[string][2]string{}
	for _, match := range row.FindAllStringSubmatch(string(get(os.ReadFile(page))), -1) {
		rows[match[1]] = [2]string{match[2], match[3]}
	}
	return rows
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
