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
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"
)

const (
	serviceCIDR     = "10.96.0.0/24"
	firstServiceIP  = "10.96.0.1"
	auditPolicyYAML = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
# Whatever the controller asks for as its service account.
- level: Metadata
  userGroups: ["system:serviceaccounts:cnat-system"]
- level: Metadata
  resources:
  - group: ""
    resources: [pods, pods/*, events]
  - group: events.k8s.io
  - group: coordination.k8s.io
    resources: [leases]
  - group: cnat.programming-kubernetes.info
- level: None
`
)

type ports struct {
	etcd, etcdPeer, api, controllerManager, scheduler, proxyHealth, proxyMetrics int
}

// freePorts picks ports that nobody listens on, below those that the kernel
// gives to outgoing connections, so that none is taken before its use.
func freePorts(apiHost string) (ports, error) {
	var p ports
	taken := map[int]bool{}
	for _, port := range []*int{&p.etcd, &p.etcdPeer, &p.api, &p.controllerManager, &p.scheduler, &p.proxyHealth, &p.proxyMetrics} {
		for tries := 0; *port == 0; tries++ {
			host := "127.0.0.1"
			if port == &p.api {
				host = apiHost
			}
			candidate := 20000 + rand.IntN(10000)
			listener, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(candidate)))
			if err != nil && tries > 100 {
				return p, fmt.Errorf("no free port on %s: %w", host, err)
			}
			if err != nil {
				continue
			}
			_ = listener.Close()
			if !taken[candidate] {
				taken[candidate], *port = true, candidate
			}
		}
	}
	return p, nil
}

// apiClient asks the API server, and etcd, as the administrator.
type apiClient struct {
	http *http.Client
	url  string
}

// writeKeys makes all keys, certificates and kubeconfigs.
func (c *cluster) writeKeys(host string) (*apiClient, error) {
	ca, err := newCertificateAuthority(c.path("pki"))
	if err != nil {
		return nil, err
	}
	if err := newKeyPair(ca.path("service-accounts.key"), ca.path("service-accounts.pub")); err != nil {
		return nil, err
	}
	url := fmt.Sprintf("https://%s:%d", host, c.ports.api)
	for name, subject := range map[string]pkix.Name{
		"admin":                   {CommonName: "admin", Organization: []string{"system:masters"}},
		"kube-apiserver":          {CommonName: "kube-apiserver"},
		"kube-controller-manager": {CommonName: "system:kube-controller-manager"},
		"kube-scheduler":          {CommonName: "system:kube-scheduler"},
		"kube-proxy":              {CommonName: "system:kube-proxy"},
		"kubelet":                 {CommonName: "system:node:" + nodeName, Organization: []string{"system:nodes"}},
	} {
		var hosts []string
		if name == "kube-apiserver" || name == "kubelet" {
			hosts = []string{"127.0.0.1", bridgeAddress, firstServiceIP, "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
		}
		if err := ca.issue(name, subject, hosts...); err != nil {
			return nil, err
		}
		path := c.path("config", name+".kubeconfig")
		if name == "admin" {
			path = c.path("admin.kubeconfig")
		}
		if err := ca.writeKubeconfig(path, url, name); err != nil {
			return nil, err
		}
	}
	client, err := tls.LoadX509KeyPair(ca.path("admin.crt"), ca.path("admin.key"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	return &apiClient{url: url, http: &http.Client{
		Timeout: 5 * time.Second,
		Transport: &http.Transport{ // without a proxy, whatever the environment says
			TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{client}},
		},
	}}, nil
}

// get fetches a path of the API server, or a whole URL, into an object if given.
func (a *apiClient) get(ctx context.Context, path string, into any) error {
	if path[0] == '/' {
		path = a.url + path
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	response, err := a.http.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %.500s", path, response.Status, body)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(body, into)
}

// startControlPlane starts etcd and the API server, and when that is ready the
// controller-manager and the scheduler.
func (c *cluster) startControlPlane(ctx context.Context, host string, api *apiClient) error {
	pki := func(file string) string { return c.path("pki", file) }
	etcd := fmt.Sprintf("https://127.0.0.1:%d", c.ports.etcd)
	peer := fmt.Sprintf("http://127.0.0.1:%d", c.ports.etcdPeer)
	err := c.start("etcd",
		"--name=localcluster", "--data-dir="+c.path("etcd"), "--log-level=warn",
		"--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=localcluster="+peer,
		"--client-cert-auth", "--trusted-ca-file="+pki("ca.crt"),
		"--cert-file="+pki("kube-apiserver.crt"), "--key-file="+pki("kube-apiserver.key"),
		"--unsafe-no-fsync") // the data need not outlive the machine
	if err != nil {
		return err
	}
	err = c.await(ctx, "etcd", "etcd answers", func(ctx context.Context) error {
		return api.get(ctx, etcd+"/health", nil)
	})
	if err != nil {
		return err
	}

	if err := os.WriteFile(c.path("config", "audit-policy.yaml"), []byte(auditPolicyYAML), 0o600); err != nil {
		return err
	}
	args := []string{
		"--etcd-servers=" + etcd, "--etcd-cafile=" + pki("ca.crt"),
		"--etcd-certfile=" + pki("kube-apiserver.crt"), "--etcd-keyfile=" + pki("kube-apiserver.key"),
		"--bind-address=" + host, "--advertise-address=" + host, fmt.Sprintf("--secure-port=%d", c.ports.api),
		"--tls-cert-file=" + pki("kube-apiserver.crt"), "--tls-private-key-file=" + pki("kube-apiserver.key"),
		"--client-ca-file=" + pki("ca.crt"),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
		"--service-cluster-ip-range=" + serviceCIDR,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + pki("service-accounts.pub"),
		"--service-account-signing-key-file=" + pki("service-accounts.key"),
		"--kubelet-certificate-authority=" + pki("ca.crt"),
		"--kubelet-client-certificate=" + pki("admin.crt"), "--kubelet-client-key=" + pki("admin.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--allow-privileged",
		"--audit-policy-file=" + c.path("config", "audit-policy.yaml"), "--audit-log-path=" + c.path("audit.log"),
		"--audit-log-maxsize=100000", // in one file, whatever is measured
	}
	if !c.state.Node {
		// The Service `kubernetes` may not lead to a loopback address; without Pods nobody needs it.
		args = append(args, "--endpoint-reconciler-type=none")
	}
	if err := c.start("kube-apiserver", args...); err != nil {
		return err
	}
	clientArgs := func(name string, port int) []string {
		config := c.path("config", name+".kubeconfig")
		return []string{"--kubeconfig=" + config, "--authentication-kubeconfig=" + config, "--authorization-kubeconfig=" + config,
			"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--leader-elect=false"}
	}
	err = c.await(ctx, "kube-apiserver", "the API server is ready", func(ctx context.Context) error {
		return api.get(ctx, "/readyz", nil)
	})
	if err != nil {
		return err
	}
	err = c.start("kube-controller-manager", append(clientArgs("kube-controller-manager", c.ports.controllerManager),
		"--use-service-account-credentials",
		"--service-account-private-key-file="+pki("service-accounts.key"), "--root-ca-file="+pki("ca.crt"),
		"--flex-volume-plugin-dir="+c.path("config/flex-volumes"), // else it makes one under /usr/libexec
		"--controllers=*,-nodeipam,-cloud-node-lifecycle,-service-lb-controller,-node-route-controller")...)
	if err != nil {
		return err
	}
	return c.start("kube-scheduler", clientArgs("kube-scheduler", c.ports.scheduler)...)
}
