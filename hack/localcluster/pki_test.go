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
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestIssue(t *testing.T) {
	ca, err := newCertificateAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.issue("server", pkix.Name{CommonName: "server"}, "127.0.0.1", "localhost"); err != nil {
		t.Fatal(err)
	}
	if err := ca.issue("client", pkix.Name{CommonName: "me", Organization: []string{"us"}}); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	for name, test := range map[string]struct {
		cert, host string
		usage      x509.ExtKeyUsage
		good       bool
	}{
		"server by address":   {"server", "127.0.0.1", x509.ExtKeyUsageServerAuth, true},
		"server by name":      {"server", "localhost", x509.ExtKeyUsageServerAuth, true},
		"server elsewhere":    {"server", "10.0.0.1", x509.ExtKeyUsageServerAuth, false},
		"server as client":    {"server", "", x509.ExtKeyUsageClientAuth, true},
		"client":              {"client", "", x509.ExtKeyUsageClientAuth, true},
		"client is no server": {"client", "", x509.ExtKeyUsageServerAuth, false},
	} {
		t.Run(name, func(t *testing.T) {
			pair, err := tls.LoadX509KeyPair(ca.path(test.cert+".crt"), ca.path(test.cert+".key"))
			if err != nil {
				t.Fatal(err)
			}
			_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: test.host, KeyUsages: []x509.ExtKeyUsage{test.usage}})
			if good := err == nil; good != test.good {
				t.Errorf("good = %v, want %v: %v", good, test.good, err)
			}
		})
	}
	files, _ := filepath.Glob(ca.path("*"))
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has the mode %v, want 0600 (%v)", file, info.Mode(), err)
		}
	}
}

func TestWriteKubeconfig(t *testing.T) {
	ca, err := newCertificateAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.issue("admin", pkix.Name{CommonName: "admin"}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := ca.writeKubeconfig(path, "https://127.0.0.1:1", "admin"); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	wants := []string{"server: https://127.0.0.1:1\n", "current-context: cnat-localcluster\n", "user: admin\n"}
	for key, file := range map[string]string{"certificate-authority-data": "ca.crt", "client-certificate-data": "admin.crt", "client-key-data": "admin.key"} {
		data, err := os.ReadFile(ca.path(file))
		if err != nil {
			t.Fatal(err)
		}
		wants = append(wants, key+": "+base64.StdEncoding.EncodeToString(data)+"\n")
	}
	for _, want := range wants {
		if !strings.Contains(string(content), want) {
			t.Errorf("no %q in\n%s", want, content)
		}
	}
}
