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
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestZoneName(t *testing.T) {
	local := time.Local
	t.Cleanup(func() { time.Local = local })
	time.Local = time.FixedZone("Local", 3600)
	for tz, want := range map[string]string{"Europe/Berlin": "Europe/Berlin", "UTC": "UTC", "Europe/Berln": "$TZ", "/none": "the name of your time zone is unknown"} {
		t.Setenv("TZ", tz)
		name, err := (&cli{}).zoneName()
		if got := name + fmt.Sprint(err); !strings.Contains(got, want) {
			t.Errorf("TZ=%s: got %q and %v, want %s", tz, name, err, want)
		}
	}
}

func TestLocalZone(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "zoneinfo", "Europe", "Berlin"), filepath.Join(dir, "localtime")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	local := time.FixedZone("Local", 3600)
	for path, want := range map[string]string{link: "Europe/Berlin", file: "Europe/Berlin", dir: "", "/none": ""} {
		if got := localZone(path, local); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
	if got := localZone("/none", time.UTC); got != "UTC" {
		t.Errorf("without a file: got %q, want UTC", got)
	}
}
