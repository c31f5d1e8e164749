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
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// certificateAuthority signs every certificate of one cluster. Its key never
// leaves the process: nobody can sign anything for this cluster afterwards.
type certificateAuthority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

// newCertificateAuthority makes a CA and writes its certificate to dir/ca.crt.
func newCertificateAuthority(dir string) (*certificateAuthority, error) {
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "cnat-localcluster"},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	ca := &certificateAuthority{dir: dir}
	var err error
	if ca.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	der, err := sign(template, template, ca.key.Public(), ca.key)
	if err != nil {
		return nil, err
	}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	return ca, writePEM(ca.path("ca.crt"), "CERTIFICATE", der)
}

func (ca *certificateAuthority) path(file string) string { return filepath.Join(ca.dir, file) }

// issue writes dir/name.crt and dir/name.key. The certificate is good for
// clients, and for servers too if hosts are given.
func (ca *certificateAuthority) issue(name string, subject pkix.Name, hosts ...string) error {
	template := &x509.Certificate{
		Subject:     subject,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if len(hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	key, err := newKey(ca.path(name + ".key"))
	if err != nil {
		return err
	}
	der, err := sign(template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", name, err)
	}
	return writePEM(ca.path(name+".crt"), "CERTIFICATE", der)
}

// newKeyPair writes a private key and its public key, as service account
// tokens are signed and verified with.
func newKeyPair(privatePath, publicPath string) error {
	key, err := newKey(privatePath)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	return writePEM(publicPath, "PUBLIC KEY", der)
}

func newKey(path string) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, writePEM(path, "EC PRIVATE KEY", der)
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	// An hour back, for a clock that is set while the cluster runs.
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().AddDate(1, 0, 0)
	return x509.CreateCertificate(rand.Reader, template, parent, public, key)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// writeKubeconfig writes a kubeconfig that carries its keys inside, so that it
// can be copied anywhere.
func (ca *certificateAuthority) writeKubeconfig(path, server, name string) error {
	var encoded [3]string
	for i, file := range []string{"ca.crt", name + ".crt", name + ".key"} {
		data, err := os.ReadFile(ca.path(file))
		if err != nil {
			return err
		}
		encoded[i] = base64.StdEncoding.EncodeToString(data)
	}
	return os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: cnat-localcluster
  cluster:
    server: %s
    certificate-authority-data: %s
users:
- name: %s
  user:
    client-certificate-data: %s
    client-key-data: %s
contexts:
- name: cnat-localcluster
  context:
    cluster: cnat-localcluster
    user: %[3]s
current-context: cnat-localcluster
`, server, encoded[0], name, encoded[1], encoded[2]), 0o600)
}
