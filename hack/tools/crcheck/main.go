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

// Command crcheck reads manifests from standard input, and fails if one of the Prometheus
// operator or of cert-manager has a field that its type does not have: the test clusters have
// neither of them.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := check(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "crcheck:", err)
		os.Exit(1)
	}
}

func check(manifests io.Reader) error {
	missing := map[metav1.TypeMeta]any{
		{APIVersion: "monitoring.coreos.com/v1", Kind: "PrometheusRule"}: &monitoringv1.PrometheusRule{},
		{APIVersion: "monitoring.coreos.com/v1", Kind: "ServiceMonitor"}: &monitoringv1.ServiceMonitor{},
		{APIVersion: "cert-manager.io/v1", Kind: "Certificate"}:          &certmanagerv1.Certificate{},
		{APIVersion: "cert-manager.io/v1", Kind: "Issuer"}:               &certmanagerv1.Issuer{},
	}
	content, err := io.ReadAll(manifests)
	if err != nil {
		return err
	}
	for manifest := range bytes.SplitSeq(content, []byte("\n---\n")) {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(manifest, &kind); err != nil {
			return err
		}
		if object, ok := missing[kind]; ok {
			if err := yaml.UnmarshalStrict(manifest, object); err != nil {
				return fmt.Errorf("%s: %w", kind.Kind, err)
			}
			delete(missing, kind)
		}
	}
	for kind := range missing {
		return fmt.Errorf("there is no %s", kind.Kind)
	}
	return nil
}
