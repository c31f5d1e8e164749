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
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a running process of the cluster.
type process struct {
	pid  int
	name string // of its binary
}

// processes finds the cluster's processes. There are no pid files that could
// be stale or name a stranger: a process is ours if its binary is one of ours
// and its command line names our folder.
func (c *cluster) processes() []process {
	return c.scan(func(pid int) (string, bool) {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)) // fails for a zombie and for other users' processes
		if err != nil {
			return "", false
		}
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			return "", false
		}
		exe = strings.TrimSuffix(exe, " (deleted)")
		name := filepath.Base(exe)
		return name, name != "kubectl" && // which is the user's own
			slices.Contains(c.binDirs, filepath.Dir(exe)) && mentions(cmdline, c.dir)
	})
}

// children finds the children of a process, whatever they are.
func (c *cluster) children(parents []process) []process {
	return c.scan(func(pid int) (string, bool) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return "", false
		}
		// "pid (name) state ppid …", and the name may contain anything.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		ppid, err := strconv.Atoi(string(fields[1]))
		return "", err == nil && string(fields[0]) != "Z" &&
			slices.ContainsFunc(parents, func(p process) bool { return p.pid == ppid })
	})
}

func (c *cluster) scan(match func(pid int) (name string, ok bool)) []process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if name, ok := match(pid); ok {
			found = append(found, process{pid, name})
		}
	}
	return found
}

// mentions says whether a NUL-separated command line names dir or a path in it.
func mentions(cmdline []byte, dir string) bool {
	for arg := range bytes.SplitSeq(cmdline, []byte{0}) {
		for rest := string(arg); ; {
			_, after, found := strings.Cut(rest, dir)
			if !found {
				break
			}
			if after == "" || strings.ContainsRune("/,:", rune(after[0])) {
				return true
			}
			rest = after
		}
	}
	return false
}

func named(procs []process, names ...string) []process {
	var found []process
	for _, p := range procs {
		if slices.Contains(names, p.name) {
			found = append(found, p)
		}
	}
	return found
}

// stop ends the named components: politely, and after the grace by force.
func (c *cluster) stop(grace time.Duration, names ...string) {
	const force = 10 * time.Second // for the kernel to end what it is asked to
	// Asked once: to Kubernetes' components a second SIGTERM means at once.
	signal := syscall.SIGTERM
	for began := time.Now(); time.Since(began) < grace+force; time.Sleep(20 * time.Millisecond) {
		procs := named(c.processes(), names...)
		if len(procs) == 0 {
			return
		}
		if time.Since(began) >= grace {
			signal = syscall.SIGKILL
		}
		for _, p := range procs {
			_ = syscall.Kill(p.pid, signal) // gone meanwhile is as good
		}
		signal = 0 // which only asks whether it is there
	}
}

// death is the end of a component that was to run.
type death struct {
	name string
	err  error
}

func (d death) Error() string {
	if d.err == nil {
		return d.name + " ended by itself"
	}
	return fmt.Sprintf("%s ended: %v", d.name, d.err)
}

// start runs a component as a daemon: a session of its own, so that neither
// Ctrl-C nor the end of the terminal reaches it.
func (c *cluster) start(name string, args ...string) error {
	log, err := os.Create(c.logFile(name))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(c.bin, name), args...)
	cmd.Dir = c.dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// A proxy for the Internet would swallow what the components say to each other.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool {
		name, _, _ := strings.Cut(s, "=")
		return strings.HasSuffix(strings.ToLower(name), "_proxy")
	})
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { c.died <- death{name, cmd.Wait()} }()
	return nil
}

// await asks again and again until check succeeds, a component dies, or ctx
// ends. What it waits for is said by the component named.
func (c *cluster) await(ctx context.Context, name, what string, check func(context.Context) error) error {
	for {
		err := check(ctx)
		if err == nil {
			say("%4.1fs %s", time.Since(c.began).Seconds(), what)
			return nil
		}
		select {
		case d := <-c.died:
			return d
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return errors.New("interrupted")
			}
			return death{name, fmt.Errorf("not in time: waited for %q, but %w", what, err)}
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (c *cluster) logFile(name string) string { return c.path("logs", name+".log") }

// showLog prints the end of a component's log.
func (c *cluster) showLog(name string) {
	const lines, width = 20, 400
	fmt.Fprintf(os.Stderr, "--- the end of %s:\n", c.logFile(name))
	for _, line := range tail(c.logFile(name), lines) {
		if len(line) > width {
			line = line[:width] + "…"
		}
		fmt.Fprintln(os.Stderr, "    "+line)
	}
}

// tail returns the last n lines of a file, or fewer if they are very long.
func tail(path string, n int) []string {
	file, err := os.Open(path)
	if err != nil {
		return []string{err.Error()}
	}
	defer file.Close()
	const most = 64 << 10
	cut := false
	if info, err := file.Stat(); err == nil && info.Size() > most {
		_, err = file.Seek(-most, io.SeekEnd)
		cut = err == nil
	}
	data, err := io.ReadAll(file)
	if err != nil {
		return []string{err.Error()}
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	if cut && len(lines) > 1 {
		lines = lines[1:] // the first one is a torn half
	}
	return lines[max(0, len(lines)-n):]
}
