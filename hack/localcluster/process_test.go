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
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestMentions(t *testing.T) {
	for cmdline, want := range map[string]bool{
		"etcd\x00--data-dir=/x/run/etcd\x00": true,
		"prog\x00/x/run\x00":                 true,
		"prog\x00--a=/x/run,b\x00":           true,
		"prog\x00/x/run2 /x/run/a\x00":       true,
		"prog\x00/x/run2/etcd\x00":           false,
		"prog\x00/x/ru\x00n\x00":             false,
		"":                                   false,
	} {
		if got := mentions([]byte(cmdline), "/x/run"); got != want {
			t.Errorf("%q: %v, want %v", cmdline, got, want)
		}
	}
}

// daemon starts a shell under the name given that blocks until it is killed.
func daemon(t *testing.T, bin, name, script string, args ...string) {
	t.Helper()
	shell, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(bin, name)
	if err := os.WriteFile(program, shell, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, append([]string{"-c", script + " echo ready; read x", "sh"}, args...)...)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	for try := 0; ; try++ {
		err := cmd.Start()
		if err == nil {
			break
		}
		// A fork of a parallel test may still hold the file that was written.
		if !errors.Is(err, syscall.ETXTBSY) || try == 100 {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	ended := make(chan struct{})
	if _, err := io.ReadFull(output, make([]byte, len("ready"))); err != nil {
		t.Fatal(err)
	}
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
}

func TestStopEndsOnlyOurs(t *testing.T) {
	bin, foreign, dir := t.TempDir(), t.TempDir(), t.TempDir()
	c := &cluster{dir: dir, binDirs: []string{bin}}
	daemon(t, bin, "polite", "", dir+"/x")
	daemon(t, bin, "stubborn", "trap '' TERM;", dir+"/x")
	daemon(t, bin, "spared", "", dir+"/x")
	daemon(t, bin, "neighbour", "", dir+"2/x") // of another cluster
	daemon(t, foreign, "stranger", "", dir+"/x")
	neighbour := &cluster{dir: dir + "2", binDirs: []string{bin}}

	names := func(c *cluster) (names []string) {
		for _, p := range c.processes() {
			names = append(names, p.name)
		}
		slices.Sort(names)
		return names
	}
	if got, want := names(c), []string{"polite", "spared", "stubborn"}; !slices.Equal(got, want) {
		t.Fatalf("ours are %q, want %q", got, want)
	}
	c.stop(100*time.Millisecond, "polite", "stubborn", "neighbour", "stranger")
	if got, want := names(c), []string{"spared"}; !slices.Equal(got, want) {
		t.Errorf("after stop ours are %q, want %q", got, want)
	}
	if got, want := names(neighbour), []string{"neighbour"}; !slices.Equal(got, want) {
		t.Errorf("the neighbour's are %q, want %q", got, want)
	}
}

func TestAwaitEndsWithADeath(t *testing.T) {
	bin, dir := t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "logs"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "etcd"), []byte("#!/bin/sh\necho no space >&2; exit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	c := &cluster{dir: dir, bin: bin, died: make(chan death, 1)}
	if err := c.start("etcd"); err != nil {
		t.Fatal(err)
	}
	err := c.await(t.Context(), "etcd", "never", func(context.Context) error { return errors.New("not yet") })
	var d death
	if !errors.As(err, &d) || d.name != "etcd" || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("got %v, want the death of etcd", err)
	}
	if got := tail(c.logFile("etcd"), 20); !slices.Equal(got, []string{"no space"}) {
		t.Errorf("log %q", got)
	}
}

func TestTail(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	for name, test := range map[string]struct {
		content string
		want    []string
	}{
		"fewer":            {"a\nb\n", []string{"a", "b"}},
		"more":             {"a\nb\nc\nd\n", []string{"b", "c", "d"}},
		"no newline":       {"a\nb\nc\nd", []string{"b", "c", "d"}},
		"empty":            {"", []string{""}},
		"torn line left":   {long + "\na\nb\n", []string{"a", "b"}},
		"one endless line": {long, []string{long[:64<<10]}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := tail(path, 3); !slices.Equal(got, test.want) {
				t.Errorf("got %.100q, want %.100q", got, test.want)
			}
		})
	}
}
