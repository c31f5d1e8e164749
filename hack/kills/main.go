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
// docs/contributing/kills.md: see hack/kills.sh.
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
	mutantsFile = "hack/kills/mutants.txt"
	page        = "docs/contributing/kills.md"
	module      = "programming-kubernetes.info/cnat-controller/"
	unnoticed   = "not noticed"
)

func main() {
	run := flag.String("run", "", "only mutants whose names match this regular expression")
	onlyUnit := flag.Bool("unit", false, "only the unit tests")
	flag.Parse()
	if err := update(*run, *onlyUnit); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// update tries the mutants that match a pattern, and updates their rows of the page.
func update(pattern string, onlyUnit bool) error {
	dir, err := os.MkdirTemp("", "kills")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	matches, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	mutants, err := read()
	if err != nil {
		return err
	}
	packages, err := listPackages()
	if err != nil {
		return err
	}
	rows := readRows()
	known := map[string]bool{}
	for _, m := range mutants {
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
			if !onlyUnit {
				layer = tryLayer(dir, name)
			}
			rows[name] = [2]string{tried, layer}
			fmt.Fprintf(os.Stderr, "%s: %s; %s\n", name, rows[name][0], rows[name][1])
		}
	}
	maps.DeleteFunc(rows, func(name string, _ [2]string) bool { return !known[name] })
	return write(rows)
}

// mutant is a change of the source.
type mutant struct {
	names []string // with the layer that has a mutant of that name
	edits []edit
}

// edit replaces a text of a file.
type edit struct{ file, remove, add string }

// read reads the mutants.
func read() ([]mutant, error) {
	content, err := os.ReadFile(mutantsFile)
	if err != nil {
		return nil, err
	}
	var mutants []mutant
	for paragraph := range strings.SplitSeq(string(content), "\n\n") {
		var m mutant
		for line := range strings.Lines(paragraph) {
			kind, text, _ := strings.Cut(strings.TrimSpace(line), " ")
			switch kind {
			case "explore:", "simulate:":
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
	return mutants, nil
}

// overlay writes the changed files to a directory, and returns a file for go test -overlay.
func (m mutant) overlay(dir string) (string, error) {
	changed := map[string]string{}
	for i, e := range m.edits {
		content, err := os.ReadFile(e.file)
		if err != nil {
			return "", err
		}
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
		text := string(content[:found[0][0]]) + strings.TrimSpace(e.add) + string(content[found[0][1]:])
		if err := os.WriteFile(copied, []byte(text), 0o600); err != nil {
			return "", err
		}
		path, err := filepath.Abs(e.file)
		if err != nil {
			return "", err
		}
		changed[path] = copied
	}
	content, err := json.Marshal(map[string]any{"Replace": changed})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, content, 0o600)
}

// try runs the unit tests of the packages that a mutant may break, until one fails. It returns
// which does, and the seconds that its tests took. dir is for the changed files.
func (m mutant) try(dir string, packages []testedPackage) string {
	overlay, err := m.overlay(dir)
	if err != nil {
		return "not applicable: " + err.Error()
	}
	paths := map[string]bool{}
	for _, e := range m.edits {
		paths[strings.TrimSuffix(module+filepath.Dir(e.file), "/.")] = true
	}
	affected := slices.DeleteFunc(slices.Clone(packages), func(p testedPackage) bool {
		return !paths[p.path] && !slices.ContainsFunc(p.imports, func(path string) bool { return paths[path] })
	})
	// Those of the changed files first.
	slices.SortStableFunc(affected, func(a, b testedPackage) int { return cmp.Compare(order(paths[a.path]), order(paths[b.path])) })
	for _, p := range affected {
		// The simulation is a layer of its own.
		output, err := exec.CommandContext(context.Background(), "go", "test", "-vet=off", "-count=1", "-failfast", "-timeout=5m", "-skip=^TestSimulate", "-overlay="+overlay, p.path).CombinedOutput()
		switch result := failed.FindSubmatch(output); {
		case err == nil, bytes.Contains(output, []byte("panic: test timed out")):
		case result == nil:
			return "does not compile: " + strings.Join(strings.Fields(string(output)), " ")
		default:
			return fmt.Sprintf("%s, %s s", cmp.Or(strings.TrimPrefix(p.path+"/", module), "the root"), result[1])
		}
	}
	return unnoticed
}

func order(first bool) int {
	if first {
		return 0
	}
	return 1
}

var failed = regexp.MustCompile(`(?m)^FAIL\t\S+\t([\d.]+)s$`)

// testedPackage is a package with unit tests.
type testedPackage struct {
	path    string
	imports []string
}

// listPackages returns the packages with unit tests, each after those that it imports.
func listPackages() ([]testedPackage, error) {
	output, err := exec.CommandContext(context.Background(), "go", "list", "-f", `{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{join .Deps " "}} {{join .TestImports " "}} {{join .XTestImports " "}}{{end}}`, ".", "./pkg/...").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var packages []testedPackage
	for line := range strings.Lines(string(output)) {
		if fields := strings.Fields(line); len(fields) > 0 && !strings.HasPrefix(fields[0], module+"pkg/testing/") {
			packages = append(packages, testedPackage{fields[0], fields[1:]})
		}
	}
	slices.SortStableFunc(packages, func(a, b testedPackage) int { return cmp.Compare(len(a.imports), len(b.imports)) })
	return packages, nil
}

// layers are the other layers: their packages, and the arguments of their tests of mutants.
var layers = map[string]struct {
	dir  string
	args []string
}{
	"explore":  {"hack/explore", []string{"-test.run=^TestMutants$/"}},
	"simulate": {".", []string{"-simulate-mutants", "-test.run=^TestSimulateMutants$/"}},
}

// tryLayer tries a mutant of the explorer or of the simulation there, with the compiled tests in
// dir.
func tryLayer(dir, name string) string {
	layer, title, _ := strings.Cut(name, ": ")
	tests := filepath.Join(dir, layer)
	if _, err := os.Stat(tests); err != nil {
		if output, err := exec.CommandContext(context.Background(), "go", "test", "-c", "-vet=off", "-o", tests, "./"+layers[layer].dir).CombinedOutput(); err != nil {
			return "does not compile: " + strings.Join(strings.Fields(string(output)), " ")
		}
	}
	args := slices.Clone(layers[layer].args)
	args[len(args)-1] += "^" + regexp.QuoteMeta(strings.ReplaceAll(title, " ", "_")) + "$"
	command := exec.CommandContext(context.Background(), tests, append(args, "-test.v")...)
	command.Dir = layers[layer].dir
	output, err := command.Output()
	if result := passed.FindSubmatch(output); err == nil && result != nil {
		return string(result[1]) + " s"
	}
	return unnoticed
}

// passed is the result of a mutant that was noticed, as was expected.
var passed = regexp.MustCompile(`(?m)^ +--- PASS: \S+/\S+ \(([\d.]+)s\)$`)

var row = regexp.MustCompile(`(?m)^\| (\w+: .*) \| (.*) \| (.*) \|$`)

// readRows returns the rows of the page by the names of mutants.
func readRows() map[string][2]string {
	content, _ := os.ReadFile(page) // There may be none yet.
	rows := map[string][2]string{}
	for _, match := range row.FindAllStringSubmatch(string(content), -1) {
		rows[match[1]] = [2]string{match[2], match[3]}
	}
	return rows
}

func write(rows map[string][2]string) error {
	var text strings.Builder
	text.WriteString(introduction)
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		fmt.Fprintf(&text, "| %s | %s | %s |\n", name, strings.ReplaceAll(rows[name][0], "|", `\|`), rows[name][1])
	}
	return os.WriteFile(page, []byte(text.String()), 0o644)
}

const introduction = `# Which test notices what

` + "`hack/kills.sh`" + ` makes this table. A row is a defect that somebody could make. The second column is the package whose unit tests notice it as a
change of the source (` + "`hack/kills/mutants.txt`" + `), and how long these take until they fail. The third is the explorer or the simulation, which has the same
defect between the program and its world. A change of the code or of the tests must not make a row worse.
What was not measured yet is *not tried*.

| mutant | unit tests | its own layer |
| --- | --- | --- |
`
