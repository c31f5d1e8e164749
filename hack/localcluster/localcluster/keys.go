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
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm"
	kubeconfigutil "k8s.io/kubernetes/cmd/kubeadm/app/util/kubeconfig"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pkiutil"
)

// writeKeys creates all keys, certificates and kubeconfigs for an API server at host and
// a node at address.
func (c *cluster) writeKeys(host, address string, port int) error {
	const name = "localcluster"
	config := func(name string, organization ...string) *pkiutil.CertConfig {
		return &pkiutil.CertConfig{
			EncryptionAlgorithm: kubeadm.EncryptionAlgorithmECDSAP256,
			Config: certutil.Config{
				CommonName:   name,
				Organization: organization,
				Usages:       []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			},
		}
	}
	ca, caKey, err := pkiutil.NewCertificateAuthority(config(name))
	if err != nil {
		return err
	}
	serviceAccounts, err := pkiutil.GeneratePrivateKey(kubeadm.EncryptionAlgorithmECDSAP256)
	if err != nil {
		return err
	}
	err = errors.Join(
		pkiutil.WriteCert(c.path("pki"), "ca", ca),
		pkiutil.WriteKey(c.path("pki"), "sa", serviceAccounts),
		pkiutil.WritePublicKey(c.path("pki"), "sa", serviceAccounts.Public()))
	if err != nil {
		return err
	}
	for file, config := range map[string]*pkiutil.CertConfig{
		"admin":                   config("admin", "system:masters"),
		"kube-apiserver":          config("kube-apiserver"),
		"kube-controller-manager": config("system:kube-controller-manager", "system:masters"),
		"kube-scheduler":          config("system:kube-scheduler"),
		"kube-proxy":              config("system:kube-proxy"),
		"kubelet":                 config("system:node:"+nodeName, "system:nodes"),
	} {
		if file == "kube-apiserver" || file == "kubelet" {
			config.Usages = append(config.Usages, x509.ExtKeyUsageServerAuth)
			config.AltNames.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
			for _, ip := range []string{"127.0.0.1", host, firstServiceIP, address} {
				config.AltNames.IPs = append(config.AltNames.IPs, net.ParseIP(ip))
			}
		}
		cert, key, err := pkiutil.NewCertAndKey(ca, caKey, config)
		if err != nil {
			return fmt.Errorf("certificate %s: %w", file, err)
		}
		if err := pkiutil.WriteCertAndKey(c.path("pki"), file, cert, key); err != nil {
			return err
		}
		keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
		if err != nil {
			return err
		}
		path := c.path("config", file+".kubeconfig")
		if file == "admin" {
			path = c.path("admin.kubeconfig")
		}
		// The kubeconfig contains the keys, so that it can be copied anywhere.
		kubeconfig := kubeconfigutil.CreateWithCerts(fmt.Sprintf("https://%s:%d", host, port), name, file, pkiutil.EncodeCertPEM(ca), keyPEM, pkiutil.EncodeCertPEM(cert))
		if err := kubeconfigutil.WriteToDisk(path, kubeconfig); err != nil {
			return err
		}
	}
	return nil
}
