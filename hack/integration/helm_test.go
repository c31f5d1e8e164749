//go:build e2e

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

package integration

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	certutil "k8s.io/client-go/util/cert"
)

const chart = root + "/artifacts/chart"

// helm runs helm, which hack/test.sh compiles.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "helm", args...)
	// It logs each symbolic link of the chart there.
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("helm %s: %w\n%s%s", strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out), err
}

// stillExists reports whether helm uninstall --wait failed because it stopped waiting early: Helm 4
// does when those objects are gone whose status it has read so far.
func stillExists(output string) bool {
	return strings.Contains(output, "still exists. status: Terminating")
}

// waitUninstalled waits until no object of the chart is left.
func waitUninstalled(t *testing.T) {
	t.Helper()
	const kinds = "deployments,services,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,networkpolicies,poddisruptionbudgets"
	eventually(t, "the objects of the chart to be gone", func(context.Context) (bool, error) {
		return kubectl(t, "", "get", kinds, "-A", "-l", "app.kubernetes.io/name=cnat-controller", "-o", "name") == "", nil
	})
}

// TestChart compares what the chart installs with what kustomize makes of the manifests.
func TestChart(t *testing.T) {
	t.Parallel()
	leftOut := slices.DeleteFunc(blocks(installPage, "yaml"), func(snippet string) bool { return !strings.Contains(snippet, "$patch: delete") })
	for name, tc := range map[string]struct {
		kustomization string
		namespace     string
		values        []string
		open          bool // without the policies
	}{
		"the default": {
			kustomization: "resources: [artifacts/deploy]",
			namespace:     systemNamespace,
		},
		"all components": {
			kustomization: `
resources: [artifacts/deploy]
components: [artifacts/requester, artifacts/restarts, artifacts/monitoring, artifacts/monitoring/certificate]
`,
			namespace: systemNamespace,
			values:    []string{"requester.enabled=true", "restarts.enabled=true", "monitoring.enabled=true", "metrics.certificate=true"},
		},
		"Prometheus elsewhere": {
			kustomization: `
resources: [artifacts/deploy]
components: [artifacts/monitoring]
patches:
- target: {kind: NetworkPolicy, name: cnat-controller}
  patch: |
    - {op: replace, path: /spec/ingress/0/from/0/namespaceSelector/matchLabels/kubernetes.io~1metadata.name, value: prometheus}
- target: {kind: RoleBinding, name: cnat-metrics}
  patch: |
    - {op: replace, path: /subjects/0/name, value: system:serviceaccounts:prometheus}
`,
			namespace: systemNamespace,
			values:    []string{"monitoring.enabled=true", "metrics.scrapers={prometheus}"},
		},
		"another namespace": {
			kustomization: `
namespace: operators
resources: [artifacts/deploy]
replacements: [{path: artifacts/deploy/Replacements}]
`,
			namespace: "operators",
		},
		"restart annotations": {
			kustomization: "{resources: [artifacts/restarts/annotations], components: [artifacts/restarts]}",
			namespace:     systemNamespace,
			values:        []string{"restarts.enabled=true", "restarts.annotations=true"},
		},
		"namespaced": {
			kustomization: "resources: [artifacts/namespaced]",
			namespace:     "cnat-default",
			values:        []string{"namespace=default"},
			open:          true,
		},
		"without the policies": {
			kustomization: "resources: [artifacts/deploy]\n" + leftOut[0],
			namespace:     systemNamespace,
			values:        []string{"policy.enabled=false"},
			open:          true,
		},
		"an image by digest": {
			kustomization: `
resources: [artifacts/deploy]
images: [{name: cnat-controller, newName: example.com/cnat, digest: "sha256:` + strings.Repeat("0", 64) + `"}]
`,
			namespace: systemNamespace,
			values:    []string{"image.repository=example.com/cnat", "image.digest=sha256:" + strings.Repeat("0", 64)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := readObjects(t, kubectl(t, "", "kustomize", artifactsWith(t, tc.kustomization)))
			isPolicy := func(name string) bool { return strings.HasPrefix(name, "ValidatingAdmissionPolicy ") }
			if slices.ContainsFunc(slices.Collect(maps.Keys(want)), isPolicy) == tc.open {
				t.Errorf("it has policies, or has none: want the opposite")
			}
			// The release's namespace is not of the chart.
			delete(want, "Namespace "+tc.namespace)
			// kustomize takes these for namespaced. kubectl ignores that.
			for _, object := range want {
				if slices.Contains([]any{"FlowSchema", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}, object["kind"]) {
					unstructured.RemoveNestedField(object, "metadata", "namespace")
				}
			}
			args := []string{"template", "cnat", chart, "--namespace=" + tc.namespace}
			for _, value := range tc.values {
				args = append(args, "--set="+value)
			}
			out, err := helm(t, args...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, readObjects(t, out)); diff != "" {
				t.Errorf("the chart installs something else (-kustomize +helm):\n%s", diff)
			}
		})
	}
}

// artifactsWith returns a folder with a kustomization.yaml and a copy of the manifests.
func artifactsWith(t *testing.T, kustomization string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "artifacts"), os.DirFS(root+"/artifacts")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// readObjects returns the objects of manifests by kind and name, without what only Helm says.
func readObjects(t *testing.T, manifests string) map[string]map[string]any {
	t.Helper()
	objects := map[string]map[string]any{}
	found, err := decode[unstructured.Unstructured](manifests)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range found {
		if object.Object == nil {
			continue
		}
		for _, field := range [][]string{
			{"labels", "app.kubernetes.io/managed-by"}, {"labels", "helm.sh/chart"}, {"annotations", "helm.sh/resource-policy"},
		} {
			unstructured.RemoveNestedField(object.Object, append([]string{"metadata"}, field...)...)
		}
		objects[object.GetKind()+" "+object.GetName()] = object.Object
	}
	return objects
}

// TestChartValues has values that the chart must refuse.
func TestChartValues(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"replica=1":                             "additional properties 'replica' not allowed",
		"replicas=two":                          "got string, want integer",
		"image.digest=v1":                       "does not match pattern",
		"args={workers=1}":                      "does not match pattern",
		"namespace=team,requester.enabled=true": "/requester/enabled",
		"namespace=team,restarts.enabled=true":  "/restarts/enabled",
		"namespace=default":                     "must not be that of the release",
		"restarts.annotations=true":             "/restarts/enabled",
		"metrics.scrapers=null":                 "missing property 'scrapers'",
	} {
		if _, err := helm(t, "template", "cnat", chart, "--set="+value); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with %s: got %v, want %q", value, err, want)
		}
	}
}

// TestChartNotes wants the notes to say what is possible without the policies if the chart does not install them.
func TestChartNotes(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]bool{"replicas=2": false, "policy.enabled=false": true, "namespace=team": true} {
		out, err := helm(t, "install", "cnat", chart, "--namespace="+systemNamespace, "--dry-run=client", "--set="+value)
		if err != nil {
			t.Fatal(err)
		}
		if _, notes, _ := strings.Cut(out, "\nNOTES:\n"); strings.Contains(notes, "without permission to do either") != want {
			t.Errorf("with %s, the notes say:\n%s", value, notes)
		}
	}
}

// stubs are CRDs of the Prometheus operator and of cert-manager that take everything.
func stubs() string {
	var out strings.Builder
	for _, crd := range [][3]string{
		{"monitoring.coreos.com", "ServiceMonitor", "servicemonitors"}, {"monitoring.coreos.com", "PrometheusRule", "prometheusrules"},
		{"cert-manager.io", "Issuer", "issuers"}, {"cert-manager.io", "Certificate", "certificates"},
	} {
		fmt.Fprintf(&out, `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[3]s.%[1]s}
spec:
  group: %[1]s
  names: {kind: %[2]s, plural: %[3]s}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, crd[0], crd[1], crd[2])
	}
	return out.String()
}

// tryChart runs an At with the chart of docs/install.md, in a namespace that enforces the level restricted, and upgrades it
// to the chart as it is packaged, with all of its options. It returns a namespace with Pods in every state.
func tryChart(t *testing.T) (ats string) {
	t.Helper()
	const namespace = systemNamespace
	must := func(args ...string) {
		t.Helper()
		if _, err := helm(t, append(args, "--namespace="+namespace)...); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "Ats to be served", areServed)
	ats = newNamespace(t)
	complete := func(name string) {
		t.Helper()
		waitFor(t, ats, "Complete", "at/"+name)
	}
	createAt(t, newAt(ats, "first", time.Now(), "true"))
	complete("first")

	// As cert-manager would.
	certificate := metricsCertificate(t, namespace)
	createAt(t, newAt(ats, "pending", time.Now().Add(time.Hour), "true"))
	dir := t.TempDir()
	must("package", chart, "--destination="+dir)
	packaged, err := filepath.Glob(dir + "/cnat-*.tgz")
	if err != nil || len(packaged) != 1 {
		t.Fatalf("helm package made %v: %v", packaged, err)
	}
	must("upgrade", "cnat", packaged[0], "--wait", "--timeout="+patience.String(), "--set=replicas=1", "--set=args={-metrics-namespaces=7}",
		"--set=restarts.enabled=true", "--set=restarts.annotations=true", "--set=monitoring.enabled=true", "--set=metrics.certificate=true")
	kubectl(t, "", "patch", "-n", ats, "at/pending", "--type=merge", "-p", `{"spec":{"schedule":"2000-01-01T00:00:00Z"}}`)
	complete("pending")
	kubectl(t, "", "get", "-n", namespace, "servicemonitors/cnat-controller", "prometheusrules/cnat-controller", "certificates/cnat-metrics")
	var pods *corev1.PodList
	eventually(t, "a single Pod", func(ctx context.Context) (bool, error) {
		var err error
		pods, err = kubeClient.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(pods.Items) == 1, err
	})
	address := net.JoinHostPort(pods.Items[0].Status.PodIP, "8443")
	connection, err := (&tls.Dialer{Config: &tls.Config{RootCAs: certificate, ServerName: "cnat-controller-metrics"}}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatalf("the metrics do not have the certificate: %v", err)
	}
	_ = connection.Close()
	// The tokens of Prometheus, and of a person.
	kubectl(t, "", "create", "namespace", "monitoring")
	kubectl(t, "", "create", "serviceaccount", "-n", "monitoring", "prometheus-k8s")
	for account, in := range map[string]string{"prometheus-k8s": "monitoring", "cnat-metrics": namespace} {
		token := strings.TrimSpace(kubectl(t, "", "create", "token", "-n", in, account, "--duration=10m"))
		status, body := getSecure(t, "https://"+address+"/metrics", token)
		if status != http.StatusOK {
			t.Errorf("the token of service account %s gets status %d", account, status)
		}
		wantOutput(t, body, `leader_election_master_status\{name="cnat-controller"\} 1\n`, `go_gc_gomemlimit_bytes 5.12e\+08\n`)
	}
	kubectl(t, "", "delete", "namespace", "monitoring")

	busy(t, ats)
	return ats
}

// wantChartGone checks that helm uninstall has left the CRDs and the Ats, and nothing else, and that the chart can be installed again.
func wantChartGone(t *testing.T, ats string) {
	t.Helper()
	kinds := "deployments,services,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets,servicemonitors,prometheusrules,certificates,issuers"
	if left := kubectl(t, "", "get", kinds, "-A", "-l", "app.kubernetes.io/name=cnat-controller", "-o", "name"); left != "" {
		t.Errorf("there is left: %s", left)
	}
	for _, at := range []string{"first", "pending", "running"} {
		kubectl(t, "", "get", "-n", ats, "at/"+at)
	}
	if _, err := helm(t, "install", "cnat", chart, "--dry-run=server", "--namespace="+systemNamespace); err != nil {
		t.Error(err)
	}
	// This would wait for ever for a Pod or an At that has kept its finalizer.
	kubectl(t, "", "delete", "namespace", ats)
}

// metricsCertificate makes the Secret that cert-manager would make, and returns what verifies
// the certificate.
func metricsCertificate(t *testing.T, namespace string) *x509.CertPool {
	t.Helper()
	certificate, key, err := certutil.GenerateSelfSignedCertKey("cnat-controller-metrics", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	create(t, kubeClient.CoreV1().Secrets(namespace), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "cnat-metrics-certificate"},
		Type:       corev1.SecretTypeTLS,
		Data:       map[string][]byte{"tls.crt": certificate, "ca.crt": certificate, "tls.key": key},
	})
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certificate)
	return pool
}
