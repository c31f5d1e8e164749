//go:build linux

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
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestComponentsAreInGoMod(t *testing.T) {
	if v := kubernetesVersion(); !regexp.MustCompile(`^v1\.\d+\.\d+$`).MatchString(v) {
		t.Errorf("Kubernetes version %q", v)
	}
	for _, c := range append(controlPlane, nodeComponents...) {
		if !strings.Contains(string(goMod), "\t"+c.pkg+"\n") {
			t.Errorf("go.mod has no tool %s", c.pkg)
		}
	}
}

func TestCheckDir(t *testing.T) {
	for name, test := range map[string]struct {
		entries []string
		suffix  string
		node    bool
		want    string
	}{
		"new":                {suffix: "a/b"},
		"logs of an earlier": {entries: []string{"logs"}},
		"a cluster's":        {entries: []string{"logs", "etcd", "state.json"}},
		"somebody's":         {entries: []string{"thesis.tex"}, want: `holds "thesis.tex"`},
		"long":               {suffix: strings.Repeat("x", 100)},
		"long for a node":    {suffix: strings.Repeat("x", 100), node: true, want: "too long"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), test.suffix)
			for _, entry := range test.entries {
				if err := os.WriteFile(filepath.Join(dir, entry), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			err := (&cluster{dir: dir}).checkDir(test.node)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestTakeDownLeavesWhatIsNotOurs(t *testing.T) {
	c := &cluster{dir: t.TempDir()}
	for _, file := range []string{"thesis.tex", "logs/etcd.log", "etcd/data", "state.json"} {
		if err := os.MkdirAll(filepath.Dir(c.path(file)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(c.path(file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.takeDown(); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]bool{"thesis.tex": true, "logs/etcd.log": true, "etcd": false, "state.json": false} {
		if _, err := os.Stat(c.path(file)); (err == nil) != want {
			t.Errorf("%s: there is %v, want %v", file, err == nil, want)
		}
	}
}
