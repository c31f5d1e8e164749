//go:build e2e

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
package integration

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestLocalCluster ends clusters with a node, other than that of the other tests, with
// Ctrl-C and with kill -9 at several moments of their start. No process, mount or network
// device is left, and nothing else once the next cluster has run in the same folder.
func TestLocalCluster(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var pids []int
	for _, moment := range []string{"the API server is ready", "the node is ready"} {
		for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT} {
			cmd := exec.Command("localcluster", "run", "--node", "--dir="+dir)
			stderr, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cmd.Process.Kill() })
			pids = append(pids, cmd.Process.Pid)
			var output strings.Builder
			lines := bufio.NewScanner(io.TeeReader(stderr, &output))
			for lines.Scan() && !strings.Contains(lines.Text(), moment) {
			}
			if len(processes(t, dir)) < 7 {
				t.Errorf("only the processes %v run", processes(t, dir))
			}
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(&output, stderr)
			_ = cmd.Wait()
			// The kernel takes a moment to remove a namespace.
			var left []string
			err = poll(t.Context(), t.Name()+": everything to be gone", func(context.Context) (bool, error) {
				left = processes(t, dir)
				if signal == syscall.SIGINT {
					left = append(left, leftovers(t, dir, pids)...)
				}
				return len(left) == 0, nil
			})
			if err != nil {
				t.Errorf("after %v at %q there are still %q; it said:\n%s", signal, moment, left, output.String())
			}
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 || entries[0].Name() != "logs" {
		t.Errorf("%s has %v, want the logs only: %v", dir, entries, err)
	}
}

// processes returns the processes whose command line contains a folder.
func processes(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range paths {
		if cmdline, err := os.ReadFile(path); err == nil && bytes.Contains(cmdline, []byte(dir)) {
			found = append(found, string(bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '})))
		}
	}
	return found
}

// leftovers returns what is left on the machine of ended clusters in a folder with the
// process IDs pids.
func leftovers(t *testing.T, dir string, pids []int) []string {
	t.Helper()
	var found []string
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) {
			found = append(found, line)
		}
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, device := range interfaces {
		if node, isNode := strings.CutPrefix(device.Name, "cnat"); isNode {
			if _, err := os.Stat("/proc/" + node); err != nil {
				found = append(found, "network device "+device.Name)
			}
		}
	}
	for _, pid := range pids {
		for _, pattern := range []string{"/sys/fs/cgroup/localcluster-%d", "/sys/fs/cgroup/*/localcluster-%d", "/sys/fs/cgroup/*/localcluster-*/localcluster-%d"} {
			cgroups, err := filepath.Glob(fmt.Sprintf(pattern, pid))
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, cgroups...)
		}
	}
	return found
}
