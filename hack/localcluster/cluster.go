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
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// startLimit bounds a start, the building of the binaries not counted.
const startLimit = 90 * time.Second

// cluster is the one whose data is in dir, running or not.
type cluster struct {
	dir     string
	bin     string   // the binaries to start
	binDirs []string // the binaries that its processes may have, of other versions too
	state   state
	ports   ports
	began   time.Time
	died    chan death
}

// state is what `down` has to know of an `up`, written before anything starts.
type state struct {
	Bin        string
	Components []string
	Node       bool
	Ready      bool // the `up` came to its end
	// HostPaths were not there before: kubelet and containerd insist on them.
	HostPaths []string `json:",omitempty"`
	// Sysctls are the kernel's settings as they were before.
	Sysctls map[string]string `json:",omitempty"`
}

// data is all that a start writes into the folder, besides logs. Only these
// are ever removed, whatever folder --dir names.
var data = []string{"pki", "config", "etcd", "containerd", "kubelet", "cni", "pods", "audit.log", "admin.kubeconfig", "state.json"}

func newCluster(dir string) (*cluster, error) {
	root, err := cacheRoot()
	if err != nil {
		return nil, err
	}
	bin, err := binDir()
	if err != nil {
		return nil, err
	}
	if dir == "" {
		dir = filepath.Join(root, "run")
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	c := &cluster{dir: resolved(dir), bin: bin, began: time.Now(), died: make(chan death, 16)}
	if strings.ContainsAny(c.dir, " \t\n\"'\\$,:") {
		return nil, fmt.Errorf("%q cannot be used: containerd's and kubelet's configuration take no such characters in a path; choose another with --dir", c.dir)
	}
	c.binDirs, _ = filepath.Glob(filepath.Join(resolved(root), "v*"))
	c.binDirs = append(c.binDirs, resolved(bin))
	return c, c.readState()
}

func (c *cluster) readState() error {
	c.state = state{}
	content, err := os.ReadFile(c.path("state.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(content, &c.state)
	}
	if err != nil {
		return fmt.Errorf("reading what runs: %w", err)
	}
	c.binDirs = append(c.binDirs, resolved(c.state.Bin))
	return nil
}

// resolved is path without symbolic links, as /proc shows it, if it exists.
func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

func (c *cluster) writeState() error {
	content, err := json.MarshalIndent(c.state, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(c.path("state.json"), content, 0o600)
}

func (c *cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}

// lock lets one `up` or `down` at a time work on the folder.
func (c *cluster) lock() (unlock func() error, err error) {
	file, err := os.Open(c.dir)
	if err != nil {
		return nil, err
	}
	if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		file.Close()
		return nil, fmt.Errorf("another up or down is at work on %s: wait for it, or end it", c.dir)
	}
	return file.Close, c.readState() // another one may just have ended
}

// up starts the cluster and prints, on stdout, what a shell needs to use it.
func up(ctx context.Context, dir string, node bool, images []string) error {
	c, err := newCluster(dir)
	if err != nil {
		return err
	}
	if err := c.checkDir(node); err != nil {
		return err
	}
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer func() { _ = unlock() }()

	switch missing := c.missing(); {
	case c.state.Bin == "" && len(c.processes()) == 0: // nothing there
	case c.state.Ready && len(missing) == 0:
		if c.state.Node != node || c.state.Bin != c.bin {
			return fmt.Errorf("a cluster of another shape or version runs in %s: take it down first, or choose another --dir", c.dir)
		}
		say("already up in %s", c.dir)
		if err := c.loadImages(ctx, images); err != nil {
			return err
		}
		c.printExports()
		return nil
	default:
		say("an earlier cluster in %s is incomplete, not running are %q: taking it down first", c.dir, missing)
		if err := c.takeDown(); err != nil {
			return err
		}
	}

	components := controlPlane
	if node {
		components = slices.Concat(controlPlane, nodeComponents)
	}
	if err := build(ctx, c.bin, components); err != nil {
		return err
	}
	if err := os.RemoveAll(c.path("logs")); err != nil {
		return err
	}
	for _, dir := range []string{"logs", "pki", "config"} {
		if err := os.MkdirAll(c.path(dir), 0o700); err != nil {
			return err
		}
	}
	if node {
		if err := c.refuseSecondNode(); err != nil {
			return err
		}
		if err := c.installPackages(ctx); err != nil {
			return err
		}
	}
	c.began = time.Now()
	if err := c.startAll(ctx, node, images); err != nil {
		var d death
		if errors.As(err, &d) {
			c.showLog(d.name)
		}
		say("taking everything down")
		return errors.Join(err, c.takeDown())
	}
	c.printExports()
	return nil
}

func (c *cluster) startAll(ctx context.Context, node bool, images []string) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	c.state = state{Bin: c.bin, Node: node, Components: []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}}
	host := "127.0.0.1"
	if node {
		host = bridgeAddress
		c.state.Components = append(c.state.Components, "containerd", "kubelet", "kube-proxy")
		c.noteHost()
	}
	if err := c.writeState(); err != nil {
		return err
	}
	if node {
		if err := c.makeBridge(ctx); err != nil {
			return err
		}
	}
	var err error
	if c.ports, err = freePorts(host); err != nil {
		return err
	}
	api, err := c.writeKeys(host)
	if err != nil {
		return fmt.Errorf("writing keys: %w", err)
	}
	if node {
		if err := c.startContainerd(); err != nil {
			return err
		}
	}
	if err := c.startControlPlane(ctx, host, api); err != nil {
		return err
	}
	if node {
		if err := c.startNode(ctx, images); err != nil {
			return err
		}
	}
	// Until then a Pod is refused. Of all, it takes the longest.
	err = c.await(ctx, "kube-controller-manager", "Pods can be created", func(ctx context.Context) error {
		return api.get(ctx, "/api/v1/namespaces/default/serviceaccounts/default", nil)
	})
	if err != nil {
		return err
	}
	if node {
		if err := c.awaitNode(ctx, api); err != nil {
			return err
		}
	}
	select {
	case d := <-c.died:
		return d
	default:
		c.state.Ready = true
		return c.writeState()
	}
}

// checkDir makes the folder, and refuses one that holds anything of others.
func (c *cluster) checkDir(node bool) error {
	// The longest socket in the folder; the kernel takes 107 characters.
	const longest = "/containerd/state/containerd.sock.ttrpc"
	if most := 107 - len(longest); node && len(c.dir) > most {
		return fmt.Errorf("%s is too long by %d characters for the sockets in it: choose a shorter folder with --dir", c.dir, len(c.dir)-most)
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Name() != "logs" && !slices.Contains(data, entry.Name()) {
			return fmt.Errorf("%s is not a local cluster's folder, it holds %q: choose an empty one with --dir", c.dir, entry.Name())
		}
	}
	c.dir = resolved(c.dir)
	return nil
}

// missing names the components that were started and do not run.
func (c *cluster) missing() []string {
	procs := c.processes()
	var names []string
	for _, name := range c.state.Components {
		if len(named(procs, name)) == 0 {
			names = append(names, name)
		}
	}
	return names
}

func (c *cluster) printExports() {
	fmt.Printf("export PATH=%s:\"$PATH\"\n", c.bin)
	if c.state.Node && os.Getenv("HTTPS_PROXY")+os.Getenv("https_proxy") != "" {
		fmt.Printf("export NO_PROXY=\"$NO_PROXY,%s\"\n", bridgeAddress)
	}
	fmt.Printf("export KUBECONFIG=%s\n", c.path("admin.kubeconfig"))
}

// down stops everything, from whatever state it is in.
func down(dir string) error {
	c, err := newCluster(dir)
	if err != nil {
		return err
	}
	procs := c.processes()
	if len(procs) == 0 && c.state.Bin == "" && !c.ownsBridge() {
		say("nothing is running in %s", c.dir)
		return nil
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil { // somebody removed it under a running cluster
		return err
	}
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer func() { _ = unlock() }()
	for _, name := range c.missing() {
		say("%s had ended before", name)
		c.showLog(name)
	}
	return c.takeDown()
}

// takeDown stops the components in the order of who needs whom, undoes what
// they did to the machine, and removes the data but not the logs.
func (c *cluster) takeDown() error {
	began := time.Now()
	c.stop(5*time.Second, "kubelet", "kube-proxy", "kube-controller-manager", "kube-scheduler")
	c.stopContainers()
	c.stop(5*time.Second, "containerd", "kube-apiserver")
	c.stop(5*time.Second, "etcd")
	if procs := c.processes(); len(procs) > 0 {
		return fmt.Errorf("process %d (%s) does not end", procs[0].pid, procs[0].name)
	}
	if err := c.cleanHost(); err != nil {
		return err
	}
	for _, name := range data {
		if err := os.RemoveAll(c.path(name)); err != nil {
			return err
		}
	}
	say("down after %.1fs; the logs stay in %s", time.Since(began).Seconds(), c.path("logs"))
	return nil
}

// status prints a line per component, and says whether all of them run.
func status(dir string) (bool, error) {
	c, err := newCluster(dir)
	if err != nil {
		return false, err
	}
	procs := c.processes()
	if c.state.Bin == "" && len(procs) == 0 {
		fmt.Printf("no cluster in %s\n", c.dir)
		return false, nil
	}
	for _, name := range c.state.Components {
		if running := named(procs, name); len(running) > 0 {
			fmt.Printf("%-24s running (%d)\n", name, running[0].pid)
		} else if _, err := os.Stat(c.logFile(name)); err != nil {
			fmt.Printf("%-24s stopped\n", name) // its turn to start never came
		} else {
			fmt.Printf("%-24s crashed\n", name)
			c.showLog(name)
		}
	}
	return c.state.Bin != "" && len(c.missing()) == 0, nil
}
