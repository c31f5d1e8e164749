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
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
)

const (
	cgroupPrefix = "localcluster-" // followed by the PID of the process that created it
	// limitedCgroup is the cgroup of a limited command, below the one with the limit, because
	// in version 2 only leaves have processes.
	limitedCgroup = "command"
)

// cgroupParent returns the cgroup below which this process creates others: the one that
// limits this process, or the root.
func cgroupParent() string {
	own, err := cgroups.ParseCgroupFile("/proc/self/cgroup")
	if err != nil {
		return "/"
	}
	for _, controller := range []string{"cpu", ""} { // version 1 and 2
		if parent, name := path.Split(own[controller]); name == limitedCgroup && strings.Contains(parent, cgroupPrefix) {
			return parent
		}
	}
	return "/"
}

func cgroupPath(pid int) string { return cgroupParent() + cgroupPrefix + strconv.Itoa(pid) }

func newCgroup(path string) (cgroups.Manager, error) {
	return manager.New(&cgroups.Cgroup{Path: path, Resources: &cgroups.Resources{}})
}

// removeCgroups removes the cgroups of this process and of processes that are gone.
func removeCgroups() error {
	pattern := cgroupPath(0)
	pattern = strings.TrimSuffix(pattern, "0") + "*"
	found, _ := filepath.Glob("/sys/fs/cgroup" + pattern) // version 2
	v1, _ := filepath.Glob("/sys/fs/cgroup/*" + pattern)
	var errs []error
	for _, path := range append(found, v1...) {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(path), cgroupPrefix))
		if err != nil || pid != os.Getpid() && syscall.Kill(pid, 0) == nil {
			continue
		}
		cgroup, err := newCgroup(cgroupPath(pid))
		if err == nil {
			err = cgroup.Destroy()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// runLimited runs a command, and everything that it starts, with the time of that many
// processors, such as 0.5.
func runLimited(ctx context.Context, cpus string, command []string) (err error) {
	const period = 100_000 // microseconds, the kernel's default
	number, err := strconv.ParseFloat(cpus, 64)
	quota := int64(number * period)
	if err != nil || quota < period/100 || quota > 1000*period {
		return fmt.Errorf("%q is not a number of processors: write for example 0.5", cpus)
	}
	if err := removeCgroups(); err != nil {
		return err
	}
	limit := cgroupPath(os.Getpid())
	outer, err := newCgroup(limit)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeCgroups()) }()
	inner, err := newCgroup(path.Join(limit, limitedCgroup))
	if err != nil {
		return err
	}
	if err := errors.Join(outer.Apply(-1), outer.Set(&cgroups.Resources{CpuPeriod: period, CpuQuota: quota})); err != nil {
		return fmt.Errorf("limit the processors: %w", err)
	}
	// It waits until it is in the cgroup.
	gate, open, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", `read _ <&3; exec 3<&-; exec "$@"`, "sh"}, command...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{gate}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = inner.Apply(cmd.Process.Pid)
	if err != nil {
		_ = cmd.Process.Kill()
	}
	_, _ = gate.Close(), open.Close()
	return errors.Join(err, cmd.Wait())
}
