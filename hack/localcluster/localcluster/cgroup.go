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
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
)

const cgroupPrefix = "/localcluster-" // followed by the PID of the process that created it

func cgroupPath(pid int) string { return cgroupPrefix + strconv.Itoa(pid) }

func newCgroup(path string) (cgroups.Manager, error) {
	return manager.New(&cgroups.Cgroup{Path: path, Resources: &cgroups.Resources{}})
}

// removeCgroups removes the cgroups of this process and of processes that are gone.
func removeCgroups() error {
	found, _ := filepath.Glob("/sys/fs/cgroup" + cgroupPrefix + "*") // version 2
	v1, _ := filepath.Glob("/sys/fs/cgroup/*" + cgroupPrefix + "*")
	var errs []error
	for _, path := range append(found, v1...) {
		pid, err := strconv.Atoi(strings.TrimPrefix("/"+filepath.Base(path), cgroupPrefix))
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
