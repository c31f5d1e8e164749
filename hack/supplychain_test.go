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

// Package hack checks how releases are built.
package hack

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

var (
	uses      = regexp.MustCompile(`(?m)^ *-? uses: (.*)$`)
	pinned    = regexp.MustCompile(`^(\./\.github/workflows/[a-z]+\.yaml|[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+)$`)
	builder   = regexp.MustCompile(`(?m)^FROM .* golang:([0-9.]+)(?:@sha256:[0-9a-f]{64})? AS build$`)
	toolchain = regexp.MustCompile(`(?m)^toolchain go(.*)$`)
)

// TestWorkflows checks that a workflow has only the permissions of its jobs, that only one of these
// may sign, which runs nothing of the repository, and that no tag says which action runs.
func TestWorkflows(t *testing.T) {
	paths, err := filepath.Glob("../.github/workflows/*")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no workflows: %v", err)
	}
	var writes []string
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var workflow struct {
			Permissions map[string]string
			Jobs        map[string]struct {
				Environment string
				Permissions map[string]string
				Steps       []struct {
					Uses string
					With map[string]any
				}
			}
		}
		if err := yaml.Unmarshal(content, &workflow); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if workflow.Permissions == nil || len(workflow.Permissions) > 0 {
			t.Errorf("%s: has the permissions %v for all jobs, want {}", path, workflow.Permissions)
		}
		for _, match := range uses.FindAllStringSubmatch(string(content), -1) {
			if !pinned.MatchString(match[1]) {
				t.Errorf("%s: %s is not pinned to a commit, with its version in a comment", path, match[1])
			}
		}
		for name, job := range workflow.Jobs {
			for permission, access := range job.Permissions {
				if access == "write" {
					writes = append(writes, strings.Join([]string{filepath.Base(path), name, permission}, " "))
				}
			}
			if job.Permissions["id-token"] != "" && job.Environment == "" {
				t.Errorf("%s: job %s may sign without an environment", path, name)
			}
			for _, step := range job.Steps {
				if !strings.HasPrefix(step.Uses, "actions/checkout@") {
					continue
				}
				if step.With["persist-credentials"] != false {
					t.Errorf("%s: job %s leaves its token in the checkout", path, name)
				}
				if job.Permissions["id-token"] != "" {
					t.Errorf("%s: job %s may sign, and could run code of the repository", path, name)
				}
			}
		}
	}
	slices.Sort(writes)
	want := []string{
		"codeql.yaml analyze security-events",
		"release.yaml publish contents",
		"release.yaml sign attestations",
		"release.yaml sign id-token",
		"scorecard.yaml scorecard security-events",
	}
	if diff := cmp.Diff(want, writes); diff != "" {
		t.Errorf("jobs that may write (-want +got):\n%s", diff)
	}
}

// TestToolchain checks that all binaries are built with the Go of the image, which dependabot
// updates.
func TestToolchain(t *testing.T) {
	dockerfile, err := os.ReadFile("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	match := builder.FindStringSubmatch(string(dockerfile))
	if match == nil {
		t.Fatal("the Dockerfile has no builder with a version of Go")
	}
	var modules []string
	for _, pattern := range []string{"../go.mod", "*/go.mod", "tools/*/go.mod"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		modules = append(modules, paths...)
	}
	if len(modules) < 4 {
		t.Errorf("only the modules %v were found", modules)
	}
	for _, path := range modules {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := toolchain.FindStringSubmatch(string(content)); got == nil || got[1] != match[1] {
			t.Errorf("%s has not the toolchain go%s of the Dockerfile: run hack/update-codegen.sh", path, match[1])
		}
	}
}
