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
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	bridgeName    = "cnat0"
	bridgeAddress = "10.88.0.1"
	podCIDR       = "10.88.0.0/16"
	nodeName      = "localhost"
	// shimSockets is outside the cluster's folder because its name may not
	// have more than 42 characters. There is one node per machine anyway.
	shimSockets = "/run/cnat-localcluster"
)

// hostPaths are outside the folder and cannot be configured.
var hostPaths = []string{"/var/lib/kubelet", "/var/lib/cni", "/var/log/containers", "/run/containerd", "/opt/containerd"}

// sysctls are changed by kubelet, kube-proxy and the bridge plugin.
var sysctls = []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes", "net/ipv4/ip_forward", "net/ipv4/conf/all/route_localnet"}

const containerdTOML = `version = 3
root = "$DIR/containerd/root"
state = "$DIR/containerd/state"
imports = []
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "$DIR/containerd/state/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$DIR/containerd/opt"
[plugins."io.containerd.shim.v1.manager"]
  socket_dir = "$SOCKETS"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "localhost/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  netns_mounts_under_state_dir = true
  # Without CAP_SYS_RESOURCE runc could not lower the score, and would die.
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      Root = "$DIR/containerd/state/runc"
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["$BIN"]
    conf_dir = "$DIR/cni"
    use_internal_loopback = true
`

const cniConflist = `{
  "cniVersion": "1.0.0",
  "name": "cnat-localcluster",
  "plugins": [{
    "type": "bridge",
    "bridge": "$BRIDGE",
    "isDefaultGateway": true,
    "ipam": {
      "type": "host-local",
      "dataDir": "$DIR/cni/addresses",
      "ranges": [[{"subnet": "$PODCIDR", "rangeStart": "10.88.0.10"}]]
    }
  }]
}
`

const kubeletYAML = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://$DIR/containerd/state/containerd.sock
podLogsDir: $DIR/pods
volumePluginDir: $DIR/kubelet/volume-plugins
address: $NODEIP
healthzPort: 0
tlsCertFile: $DIR/pki/kubelet.crt
tlsPrivateKeyFile: $DIR/pki/kubelet.key
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $DIR/pki/ca.crt}
authorization: {mode: Webhook}
# There is no DNS in the cluster. Nobody listens there, so a question fails at
# once, and kubelet does not warn of it at each Pod.
clusterDNS: [$NODEIP]
clusterDomain: cluster.local
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
# A full disk is the machine's own affair. 0 is refused.
evictionHard:
  memory.available: 1Mi
  nodefs.available: 0.1%
  nodefs.inodesFree: 0.1%
  imagefs.available: 0.1%
  imagefs.inodesFree: 0.1%
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
`

// needNode says what a node needs and this process does not have.
func needNode() error {
	if os.Geteuid() != 0 {
		return errors.New("a node needs root, to make mounts, cgroups and a network: run it as root, or leave out --node for the control plane alone")
	}
	// Not every root has them in its PATH, and containerd's shim looks for runc.
	return os.Setenv("PATH", os.Getenv("PATH")+":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin")
}

// noteHost notes what is there before the node changes it.
func (c *cluster) noteHost() {
	for _, path := range append([]string{shimSockets}, hostPaths...) {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			c.state.HostPaths = append(c.state.HostPaths, path)
		}
	}
	c.state.Sysctls = map[string]string{}
	for _, name := range sysctls {
		if value, err := os.ReadFile("/proc/sys/" + name); err == nil {
			c.state.Sysctls[name] = strings.TrimSpace(string(value))
		}
	}
}

// refuseSecondNode keeps off a machine that is a Kubernetes node already: the
// two would share network tables and cgroups, which the end of this one removes.
func (c *cluster) refuseSecondNode() error {
	kubelets := c.scan(func(pid int) (string, bool) {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)) // fails for a zombie, which does no harm
		return "kubelet", err == nil && filepath.Base(exe) == "kubelet"
	})
	if len(kubelets) > 0 {
		return fmt.Errorf("a kubelet runs on this machine already (process %d): one node per machine; end that first, or leave out --node", kubelets[0].pid)
	}
	return nil
}

func (c *cluster) installPackages(ctx context.Context) error {
	var missing []string
	for program, pkg := range map[string]string{"runc": "runc", "nft": "nftables", "ip": "iproute2"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, pkg)
		}
	}
	if content, err := os.ReadFile("/bin/busybox"); err != nil || !isStatic(content) {
		missing = append(missing, "busybox-static")
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	say("installing the Debian packages %s with apt-get (log: %s)", strings.Join(missing, " "), c.logFile("apt-get"))
	log, err := os.Create(c.logFile("apt-get"))
	if err != nil {
		return err
	}
	defer log.Close()
	for _, args := range [][]string{{"update"}, append([]string{"install", "-y", "--no-install-recommends"}, missing...)} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Run(); err != nil {
			c.showLog("apt-get")
			return fmt.Errorf("apt-get failed; the node needs what these Debian packages bring: %s: %w", strings.Join(missing, " "), err)
		}
	}
	return nil
}

// makeBridge makes the network of the node. The API server listens there, so
// that Pods reach it. The bridge's alias tells whose it is.
func (c *cluster) makeBridge(ctx context.Context) error {
	if alias, err := bridgeAlias(); err == nil {
		return fmt.Errorf("the bridge %s is there already (of the cluster in %q): one node per machine; take that down first", bridgeName, alias)
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	_, pods, _ := net.ParseCIDR(podCIDR)
	for _, address := range addresses {
		if ip, ok := address.(*net.IPNet); ok && pods.Contains(ip.IP) {
			return fmt.Errorf("this machine has the address %s already: the node's network %s would get in its way", ip, podCIDR)
		}
	}
	for _, args := range [][]string{
		{"link", "add", bridgeName, "type", "bridge"},
		{"link", "set", bridgeName, "alias", c.dir, "up"},
		{"address", "add", bridgeAddress + "/16", "dev", bridgeName},
	} {
		if output, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, output)
		}
	}
	return nil
}

func bridgeAlias() (string, error) {
	alias, err := os.ReadFile("/sys/class/net/" + bridgeName + "/ifalias")
	return strings.TrimSpace(string(alias)), err
}

// ownsBridge counts one without an alias as ours if we were about to make one.
func (c *cluster) ownsBridge() bool {
	alias, err := bridgeAlias()
	return err == nil && (alias == c.dir || alias == "" && c.state.Node)
}

func (c *cluster) startContainerd() error {
	for file, text := range map[string]string{
		"config/containerd.toml": containerdTOML,
		"config/kubelet.yaml":    kubeletYAML,
		"cni/10-bridge.conflist": cniConflist,
	} {
		text = os.Expand(text, func(name string) string {
			return map[string]string{"DIR": c.dir, "BIN": c.bin, "SOCKETS": shimSockets,
				"BRIDGE": bridgeName, "NODEIP": bridgeAddress, "PODCIDR": podCIDR}[name]
		})
		if err := os.MkdirAll(filepath.Dir(c.path(file)), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(c.path(file), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return c.start("containerd", "--config="+c.path("config/containerd.toml"))
}

// startNode waits for containerd, brings in the images, and starts kubelet and
// kube-proxy.
func (c *cluster) startNode(ctx context.Context, images []string) error {
	err := c.await(ctx, "containerd", "containerd answers", func(ctx context.Context) error {
		output, err := c.ctr(ctx, "version").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, output)
		}
		return nil
	})
	if err != nil {
		return err
	}
	busybox, err := busyboxImages(ctx)
	if err != nil {
		return err
	}
	if err := c.importImages(ctx, busybox...); err != nil {
		return err
	}
	if err := c.loadImages(ctx, images); err != nil {
		return err
	}
	err = c.start("kubelet",
		"--config="+c.path("config/kubelet.yaml"), "--kubeconfig="+c.path("config/kubelet.kubeconfig"),
		"--root-dir="+c.path("kubelet"), "--cert-dir="+c.path("pki"),
		"--hostname-override="+nodeName, "--node-ip="+bridgeAddress)
	if err != nil {
		return err
	}
	return c.start("kube-proxy",
		"--kubeconfig="+c.path("config/kube-proxy.kubeconfig"), "--hostname-override="+nodeName,
		"--proxy-mode=nftables", "--cluster-cidr="+podCIDR,
		// These are the machine's own affair.
		"--conntrack-max-per-core=0", "--conntrack-min=0",
		"--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
		fmt.Sprintf("--healthz-bind-address=127.0.0.1:%d", c.ports.proxyHealth),
		fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", c.ports.proxyMetrics))
}

// awaitNode waits until Pods start on the node and reach Services.
func (c *cluster) awaitNode(ctx context.Context, api *apiClient) error {
	err := c.await(ctx, "kubelet", "the node is ready", func(ctx context.Context) error {
		var node struct {
			Spec   struct{ Taints []any }
			Status struct {
				Conditions []struct{ Type, Status, Message string }
			}
		}
		if err := api.get(ctx, "/api/v1/nodes/"+nodeName, &node); err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == "Ready" && condition.Status != "True" {
				return errors.New(condition.Message)
			}
		}
		if len(node.Spec.Taints) > 0 || len(node.Status.Conditions) == 0 {
			return fmt.Errorf("the node's taints %v", node.Spec.Taints)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.await(ctx, "kube-proxy", "Services are reachable", func(ctx context.Context) error {
		return api.get(ctx, fmt.Sprintf("http://127.0.0.1:%d/healthz", c.ports.proxyHealth), nil)
	})
}

// stopContainers ends all containers: through containerd if it lives, else, or
// if that does not end them, by ending the shims and what they run.
func (c *cluster) stopContainers() {
	const shim = "containerd-shim-runc-v2"
	procs := c.processes()
	if len(named(procs, "containerd")) > 0 && len(named(procs, shim)) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if ids, err := c.ctr(ctx, "tasks", "list", "--quiet").Output(); err == nil {
			_ = c.ctr(ctx, append([]string{"tasks", "delete", "--force"}, strings.Fields(string(ids))...)...).Run()
		}
	}
	// A shim adopts what its containers leave, hence again until there is none.
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		running := c.children(named(c.processes(), shim))
		if len(running) == 0 {
			break
		}
		for _, p := range running {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
	}
	c.stop(time.Second, shim)
}

// cleanHost undoes what the node did to the machine outside its folder, and
// unmounts what is left inside: nothing is removed through a mount.
func (c *cluster) cleanHost() error {
	for range 10 { // a mount may hide another one
		mounts := mountPoints(c.dir)
		slices.SortFunc(mounts, func(a, b string) int { return len(b) - len(a) })
		for _, mount := range mounts {
			_ = syscall.Unmount(mount, syscall.MNT_DETACH)
		}
		if len(mounts) == 0 {
			break
		}
	}
	if left := mountPoints(c.dir); len(left) > 0 {
		return fmt.Errorf("cannot unmount %s: unmount it by hand, then run down again", left[0])
	}
	_, err := bridgeAlias()
	if bridge := err == nil; bridge && !c.ownsBridge() || !bridge && !c.state.Node {
		return nil // no node was here, or the one that is here is another cluster's
	} else if bridge {
		if output, err := exec.Command("ip", "link", "delete", bridgeName).CombinedOutput(); err != nil {
			return fmt.Errorf("deleting the bridge %s: %w: %s", bridgeName, err, output)
		}
	}
	var errs []error
	for _, family := range []string{"ip", "ip6"} {
		_ = exec.Command("nft", "delete", "table", family, "kube-proxy").Run() // it may have had no time to make it
	}
	cgroups, _ := filepath.Glob("/sys/fs/cgroup/*/kubepods")
	for _, root := range append(cgroups, "/sys/fs/cgroup/kubepods") {
		var dirs []string
		_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) { // leaves first
			_ = syscall.Rmdir(dir) // refused for one that is in use
		}
	}
	for _, path := range c.state.HostPaths {
		errs = append(errs, os.RemoveAll(path))
	}
	for name, value := range c.state.Sysctls {
		errs = append(errs, os.WriteFile("/proc/sys/"+name, []byte(value), 0o644))
	}
	return errors.Join(errs...)
}

// mountPoints lists the mounts below the folders.
func mountPoints(dirs ...string) []string {
	content, _ := os.ReadFile("/proc/self/mountinfo")
	var found []string
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		mount := strings.ReplaceAll(fields[4], `\040`, " ")
		if slices.ContainsFunc(dirs, func(dir string) bool { return strings.HasPrefix(mount, dir+"/") }) {
			found = append(found, mount)
		}
	}
	return found
}
