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
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// staticELF is the shortest file that counts as a static binary: a header alone.
var staticELF = append([]byte("\x7fELF\x02\x01\x01"+strings.Repeat("\x00", 9)+"\x02\x00\x3e\x00\x01\x00\x00\x00"), make([]byte, 40)...)

type tarEntry struct {
	header  *tar.Header
	content []byte
}

func untar(t *testing.T, archive []byte) map[string]tarEntry {
	t.Helper()
	entries := map[string]tarEntry{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return entries
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := entries[header.Name]; twice {
			t.Errorf("%s is there twice", header.Name)
		}
		entries[header.Name] = tarEntry{header, content}
	}
}

func TestWriteArchive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, staticELF, 0o755); err != nil {
		t.Fatal(err)
	}
	first, err := binaryImage("first:v1", path)
	if err != nil {
		t.Fatal(err)
	}
	second := first
	second.names, second.user = []string{"second:v1", "second:latest"}, ""
	var buf bytes.Buffer
	if err := writeArchive(&buf, first, second); err != nil {
		t.Fatal(err)
	}
	archive := untar(t, buf.Bytes())

	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal(archive["manifest.json"].content, &manifest); err != nil || len(manifest) != 2 {
		t.Fatalf("manifest %s: %v", archive["manifest.json"].content, err)
	}
	if got := manifest[1].RepoTags; !slices.Equal(got, second.names) {
		t.Errorf("names %q, want %q", got, second.names)
	}
	var config struct {
		OS     string
		Config struct {
			User       string
			Entrypoint []string
		}
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	if err := json.Unmarshal(archive[manifest[0].Config].content, &config); err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Config.User != "65532:65532" || !slices.Equal(config.Config.Entrypoint, []string{"/program"}) {
		t.Errorf("configuration %+v", config)
	}
	layer := archive[manifest[0].Layers[0]].content
	if want := fmt.Sprintf("sha256:%x", sha256.Sum256(layer)); !slices.Equal(config.RootFS.DiffIDs, []string{want}) {
		t.Errorf("layers %q, want %q", config.RootFS.DiffIDs, want)
	}

	root := untar(t, layer)
	for name, mode := range map[string]int64{"program": 0o755, "tmp/": 0o1777, "etc/passwd": 0o644, "home/": 0o755, "bin/": 0o755} {
		if entry, ok := root[name]; !ok || entry.header.Mode != mode {
			t.Errorf("%s: %+v, want the mode %o", name, entry.header, mode)
		}
	}
	if !bytes.Equal(root["program"].content, staticELF) {
		t.Error("the binary in the image is another one")
	}
}

func TestBinaryImageRefusesWhatCannotRun(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{text, "/bin/sh"} { // a script, a dynamic binary
		if _, err := binaryImage("x", path); err == nil || !strings.Contains(err.Error(), "CGO_ENABLED=0") {
			t.Errorf("%s: %v", path, err)
		}
	}
}
