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
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

const (
	serviceCIDR    = "10.96.0.0/24"
	firstServiceIP = "10.96.0.1"
)

// freePorts returns free ports. They are below the kernel's range for outgoing
// connections, so that none of them is taken before it is used.
func freePorts(number int) ([]int, error) {
	var ports []int
	for tries := 0; len(ports) < number; tries++ {
		port := 20000 + rand.IntN(10000)
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if tries > 100 {
			return nil, fmt.Errorf("no free port: %w", err)
		}
		if err == nil && listener.Close() == nil && claim(fmt.Sprint("port ", port)) {
			ports = append(ports, port)
		}
	}
	return ports, nil
}

// claims are open sockets, which the kernel closes when this process ends.
var claims []net.Listener

// claim reports whether no other cluster has claimed something that it will use soon, and
// claims it until this process ends.
func claim(what string) bool {
	listener, err := net.Listen("unix", "@localcluster "+what)
	if err == nil {
		claims = append(claims, listener)
	}
	return err == nil
}

// startControlPlane starts etcd, the API server, the controller-manager and the
// scheduler, which wait for each other. The API server gets the first port.
func (c *cluster) startControlPlane(ctx context.Context, host string, node bool, ports []int) {
	pki := func(file string) string { return c.path("pki", file) }
	etcd := fmt.Sprintf("https://127.0.0.1:%d", ports[1])
	peer := fmt.Sprintf("http://127.0.0.1:%d", ports[2])
	c.start(ctx, "etcd",
		"--name=localcluster", "--data-dir="+c.path("etcd"), "--log-level=warn",
		"--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=localcluster="+peer,
		"--client-cert-auth", "--trusted-ca-file="+pki("ca.crt"),
		"--cert-file="+pki("kube-apiserver.crt"), "--key-file="+pki("kube-apiserver.key"),
		"--unsafe-no-fsync") // the data does not have to survive a crash of the machine
	args := []string{
		"--etcd-servers=" + etcd, "--etcd-cafile=" + pki("ca.crt"),
		"--etcd-certfile=" + pki("kube-apiserver.crt"), "--etcd-keyfile=" + pki("kube-apiserver.key"),
		"--bind-address=" + host, "--advertise-address=" + host, fmt.Sprintf("--secure-port=%d", ports[0]),
		"--tls-cert-file=" + pki("kube-apiserver.crt"), "--tls-private-key-file=" + pki("kube-apiserver.key"),
		"--client-ca-file=" + pki("ca.crt"),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
		"--service-cluster-ip-range=" + serviceCIDR,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + pki("sa.pub"), "--service-account-signing-key-file=" + pki("sa.key"),
		"--kubelet-certificate-authority=" + pki("ca.crt"),
		"--kubelet-client-certificate=" + pki("admin.crt"), "--kubelet-client-key=" + pki("admin.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--allow-privileged",
		"--audit-policy-file=" + c.path("config", "audit-policy.yaml"), "--audit-log-path=" + c.path("audit.log"),
		"--audit-log-maxsize=100000", // in a single file, for all measurements
	}
	if !node {
		// The Service `kubernetes` must not have a loopback address; without Pods, it is not needed.
		args = append(args, "--endpoint-reconciler-type=none")
	}
	c.start(ctx, "kube-apiserver", args...)
	clientArgs := func(name string, port int) []string {
		return []string{"--kubeconfig=" + c.path("config", name+".kubeconfig"), "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--leader-elect=false"}
	}
	// As an administrator, it starts some seconds faster than with a service account for
	// each controller. Its limits on requests are for machines that it shares; here, a hundred
	// namespaces that are deleted at once would keep it busy for a minute.
	c.start(ctx, "kube-controller-manager", append(clientArgs("kube-controller-manager", ports[3]),
		"--kube-api-qps=200", "--kube-api-burst=400",
		"--service-account-private-key-file="+pki("sa.key"), "--root-ca-file="+pki("ca.crt"),
		"--flex-volume-plugin-dir="+c.path("config", "flex-volumes"))...) // otherwise it creates one in /usr/libexec
	c.start(ctx, "kube-scheduler", clientArgs("kube-scheduler", ports[4])...)
}
