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
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// A node has its own mount, PID and network namespaces, so that it leaves nothing on the
// machine except its cgroups and a higher limit of inotify instances: when the first
// process in these namespaces ends, or this process ends in any way, the kernel removes
// everything. A pair of network devices connects the node with the machine. One of them is
// on a bridge that the node shares with its Pods.
//
// machine                 | node
// API server              | kubelet, containerd   kube-proxy
// SUBNET.1  localcluster* ----- eth0 - SUBNET.2 cni0 - Pods from SUBNET.10
const (
	networks         = "127.0.0.0/8,10.0.0.0/8," // of all clusters, their Pods and their Services
	nodeName         = "localhost"
	nodeAddress      = ".2"
	nodePID          = "node.pid"               // file with the ID of the node's first process
	containerdSocket = "/run/localcluster.sock" // used by no other containerd until the node has its own /run
	proxyHealthPort  = 10256
)

// hidden are folders of which a node has its own in-memory version: kubelet, containerd
// and the CNI plugins store their data there.
var hidden = []string{"/run", "/var/lib", "/var/log", "/opt"}

// sysctls are machine-wide settings with the values that kubelet would set. Instead,
// kubelet finds files that already contain these values.
var sysctls = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// raiseInotifyInstances raises the number of inotify instances that root may have, until
// the machine restarts. A cluster with a node needs 12, and one for each kubectl logs -f,
// which otherwise ends with an error. Linux allows 128, for several clusters and everything
// else that root runs.
func raiseInotifyInstances() error {
	const file, enough = "/proc/sys/fs/inotify/max_user_instances", 1024
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || limit >= enough {
		return err
	}
	return os.WriteFile(file, []byte(strconv.Itoa(enough)), 0)
}

// freeSubnet returns the first three numbers of a network in which this machine has no
// address, for example 10.231.7.
func freeSubnet() (string, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for _, i := range rand.Perm(256) {
		subnet := net.IPNet{IP: net.IPv4(10, 231, byte(i), 0), Mask: net.CIDRMask(24, 32)}
		taken := slices.ContainsFunc(addresses, func(address net.Addr) bool {
			network, ok := address.(*net.IPNet)
			return ok && (subnet.Contains(network.IP) || network.Contains(subnet.IP))
		})
		if !taken && claim(subnet.String()) {
			return strings.TrimSuffix(subnet.IP.String(), ".0"), nil
		}
	}
	return "", errors.New("this machine has addresses in all of 10.231.0.0/16")
}

// startNode starts the node, which runs until ctx is done.
func (c *cluster) startNode(ctx context.Context, subnet string) error {
	for _, program := range []string{"runc", "nft", "ip", busybox} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("a node needs the Debian packages runc, nftables, iproute2 and busybox-static: %w", err)
		}
	}
	for _, dir := range hidden {
		for _, needed := range []string{c.dir, c.bin} {
			if strings.HasPrefix(needed+"/", dir+"/") {
				return fmt.Errorf("%s is in %s, which a node replaces with its own folder: choose another folder", needed, dir)
			}
		}
	}
	if err := removeCgroups(); err != nil {
		return err
	}
	if err := raiseInotifyInstances(); err != nil {
		say("kubectl logs -f may end too early: %v", err)
	}
	cgroup, err := newCgroup(cgroupPath(os.Getpid()))
	if err == nil {
		err = cgroup.Apply(-1)
	}
	if err != nil {
		return fmt.Errorf("create a cgroup: %w", err)
	}
	log, err := os.Create(c.logFile("node"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := c.command(ctx, log, "localcluster", "node", c.dir, subnet)
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET
	if err := cmd.Start(); err != nil {
		return err
	}
	c.components.Go(func() {
		_ = cmd.Wait()
		c.fail(fmt.Errorf("the node ended with %v: see %s", cmd.ProcessState, log.Name()))
	})
	pid := strconv.Itoa(cmd.Process.Pid)
	device := "cnat" + pid
	return errors.Join(os.WriteFile(c.path(nodePID), []byte(pid), 0o600), ip(ctx,
		"link add "+device+" type veth peer name eth0 netns "+pid,
		"address add "+subnet+".1/24 dev "+device,
		"link set "+device+" up"))
}

// ip runs commands of ip(8).
func ip(ctx context.Context, commands ...string) error {
	cmd := exec.CommandContext(ctx, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip: %w: %s", err, output)
	}
	return nil
}

// runFirst runs this program again and ends when that child ends. It reaps all processes
// that the kernel reparents to the first process of a PID namespace.
func runFirst() error {
	child, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return err
		}
		if pid == child.Pid {
			return fmt.Errorf("exit status %d", status.ExitStatus())
		}
	}
}

// runNode starts the components of the node, in its namespaces, until ctx is done.
func runNode(ctx context.Context, dir, subnet string) error {
	c, ctx, err := newCluster(ctx, dir)
	if err != nil {
		return err
	}
	if err := isolate(); err != nil {
		return err
	}
	address := subnet + nodeAddress
	err = c.await(ctx, "node", "the node has a network", func(ctx context.Context) error {
		if _, err := net.InterfaceByName("eth0"); err != nil {
			return err // not there yet
		}
		return ip(ctx, "link set lo up", "link add cni0 type bridge", "link set eth0 master cni0 up", "link set cni0 up",
			"address add "+address+"/24 dev cni0", "route add default via "+subnet+".1")
	})
	if err != nil {
		return err
	}
	c.start(ctx, "containerd", "--config="+c.path("config/containerd.toml"), "--address="+containerdSocket)
	err = c.await(ctx, "containerd", "containerd listens", func(ctx context.Context) error {
		connection, err := (&net.Dialer{}).DialContext(ctx, "unix", containerdSocket)
		if err != nil {
			return err
		}
		return connection.Close()
	})
	if err != nil {
		return err
	}
	c.start(ctx, "kubelet", "--config="+c.path("config/kubelet.yaml"), "--kubeconfig="+c.path("config/kubelet.kubeconfig"),
		"--hostname-override="+nodeName, "--node-ip="+address)
	c.start(ctx, "kube-proxy", "--kubeconfig="+c.path("config/kube-proxy.kubeconfig"), "--hostname-override="+nodeName,
		"--proxy-mode=nftables", "--cluster-cidr="+subnet+".0/24",
		"--masquerade-all", // Otherwise, the API server would answer Pods directly.
		// These are machine-wide settings.
		"--conntrack-max-per-core=0", "--conntrack-min=0",
		"--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
		fmt.Sprintf("--healthz-bind-address=%s:%d", address, proxyHealthPort))
	<-ctx.Done()
	return context.Cause(ctx)
}

// isolate mounts the node's own folders in the mount namespace of this process.
func isolate() error {
	mount := func(source, target, kind string, flags uintptr) error {
		if err := syscall.Mount(source, target, kind, flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", target, err)
		}
		return nil
	}
	// First, keep mounts from propagating to the machine; then allow Pods to share mounts
	// with the node.
	err := errors.Join(mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE), mount("", "/", "", syscall.MS_REC|syscall.MS_SHARED), mount("proc", "/proc", "proc", 0))
	for _, dir := range hidden {
		err = errors.Join(err, mount("tmpfs", dir, "tmpfs", 0))
	}
	for name, value := range sysctls {
		file := filepath.Join("/run", filepath.Base(name))
		err = errors.Join(err, os.WriteFile(file, []byte(value), 0o644), mount(file, "/proc/sys/"+name, "", syscall.MS_BIND))
	}
	return err
}

// awaitNode waits until Pods start on the node and reach Services.
func (c *cluster) awaitNode(ctx context.Context, client kubernetes.Interface, address string) error {
	err := c.await(ctx, "kubelet", "the node is ready", func(ctx context.Context) error {
		node, err := client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue && len(node.Spec.Taints) == 0 {
				return nil
			}
		}
		return fmt.Errorf("the node has the conditions %v and the taints %v", node.Status.Conditions, node.Spec.Taints)
	})
	if err != nil {
		return err
	}
	return c.await(ctx, "kube-proxy", "Services are reachable", func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s:%d/healthz", address, proxyHealthPort), http.NoBody)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	})
}
