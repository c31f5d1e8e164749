//go:build integration

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
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/version"
)

// served returns the URL of an endpoint, as logged by the controller.
func served(t *testing.T, c *controller, what string) string {
	t.Helper()
	said := regexp.MustCompile(`"Serving ` + what + `" address="(.*)" https=(true|false)`)
	var match []string
	eventually(t, what+" to be served", func(context.Context) (bool, error) {
		match = said.FindStringSubmatch(c.output())
		return match != nil, nil
	})
	if match[2] == "true" {
		return "https://" + match[1]
	}
	return "http://" + match[1]
}

// TestMetrics ends Ats in different ways and checks that each is counted, and that the
// controller serves the series that the dashboard and the alerts use.
func TestMetrics(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	c := startController(t, namespace, "-restart-annotations")
	waitLog(t, c, "Starting controller")
	url := served(t, c, "metrics") + "/metrics"
	kubectl(t, fmt.Sprintf(`
{apiVersion: %[1]s, kind: CronAt, metadata: {name: never}, spec: {schedule: 0 0 30 2 *, atTemplate: {spec: {command: "true"}}}}
---
{apiVersion: %[1]s, kind: CronAt, metadata: {name: cronat}, spec: {schedule: 0 0 1 1 *, atTemplate: {spec: {command: "true"}}}}
---
{apiVersion: %[1]s, kind: At, metadata: {name: succeeds}, spec: {schedule: "0001-01-01T00:00:00Z", command: "true"}}
---
{apiVersion: %[1]s, kind: At, metadata: {name: fails}, spec: {schedule: "0001-01-01T00:00:00Z", command: "true"}}
---
{apiVersion: %[1]s, kind: At, metadata: {name: runs}, spec: {schedule: "0001-01-01T00:00:00Z", command: "true"}}
---
{apiVersion: %[1]s, kind: At, metadata: {name: suspended}, spec: {schedule: "0001-01-01T00:00:00Z", command: "true", suspend: true}}
---
{apiVersion: %[1]s, kind: At, metadata: {name: late}, spec: {schedule: "0001-01-01T00:00:00Z", command: "true", startingDeadlineSeconds: 0}}
---
{apiVersion: v1, kind: Pod, metadata: {name: refused-pod}, spec: {containers: [{name: a, image: a}]}}
---
{apiVersion: %[1]s, kind: At, metadata: {name: refused}, spec: {schedule: "0001-01-01T00:00:00Z", command: "true"}}
`, v1alpha1.SchemeGroupVersion)+"---\n"+annotatable("Deployment", "web", fmt.Sprintf("%q: %q", scheduleAnnotation, "25 o'clock")), "create", "-n", namespace, "-f", "-")
	waitCronAt(t, namespace, "cronat", "to have a next time", func(cronAt *v1alpha1.CronAt) bool { return cronAt.Status.NextScheduleTime != nil })
	endPod(t, waitPod(t, namespace, "succeeds-pod"), corev1.PodSucceeded, 0)
	endPod(t, waitPod(t, namespace, "fails-pod"), corev1.PodFailed, 1)
	wantCreated(t, namespace, "pods", "succeeds-pod", "fails-pod", "runs-pod")
	// The unit tests count the others.
	want := []string{`cnat_ats{namespace="` + namespace + `",state="done"} 3`, `cnat_ats_blocked{namespace="` + namespace + `",reason="PodNameConflict"} 1`}
	// hack/tools/promcheck checks the queries against these.
	granted, err := os.ReadFile(root + "/hack/tools/promcheck/testdata/served.txt")
	if err != nil {
		t.Fatal(err)
	}
	var body, lacks string
	err = poll(t.Context(), t.Name()+": all of it to be in the metrics", func(context.Context) (bool, error) {
		_, body = get(t, url, "")
		got := seriesOf(body)
		for series := range seriesOf(string(granted)) {
			if strings.HasPrefix(series, "cnat_cronat_overdue_seconds") || strings.Contains(series, `state="frozen"`) || strings.HasPrefix(series, "leader_election_") {
				continue // While a controller works, no CronAt is overdue. Without a Freeze, nothing is frozen. TestHelm has a leader.
			}
			if lacks = series; !got[series] {
				return false, nil
			}
		}
		for _, lacks = range want {
			if !strings.Contains(body, "\n"+lacks+"\n") {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		t.Fatalf("%v: there is no %s", err, lacks)
	}
	wantOutput(t, body, `cnat_build_info\{goversion="go.*",revision=".*",version="`+version.Version+`"\} 1`)

	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Errorf("promlint: %s: %s", problem.Metric, problem.Text)
	}
}

var variableLabel = regexp.MustCompile(`\b(at|cronat|host|namespace)="[^"]*"`)

// seriesOf returns the names and labels of metrics, without the values of labels that
// differ between test runs.
func seriesOf(metrics string) map[string]bool {
	series := map[string]bool{}
	for line := range strings.Lines(metrics) {
		if end := strings.LastIndex(line, " "); end > 0 && !strings.HasPrefix(line, "#") {
			series[variableLabel.ReplaceAllString(line[:end], `$1=""`)] = true
		}
	}
	return series
}

// TestMetricsSecure requests the metrics as users with and without permission. Namespaces
// are not counted by name.
func TestMetricsSecure(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	for _, name := range []string{"prometheus", "elsewhere"} {
		kubectl(t, "", "create", "serviceaccount", name, "-n", namespace)
	}
	// A controller that is not in a Pod is in the namespace of its kubeconfig.
	for name, in := range map[string]string{"prometheus": metav1.NamespaceDefault, "elsewhere": namespace} {
		kubectl(t, "", "create", "rolebinding", namespace, "-n", in, "--clusterrole=cnat-metrics-reader", "--serviceaccount="+namespace+":"+name)
	}
	cleanUp(t, "", "delete", "rolebinding", namespace, "-n", metav1.NamespaceDefault)
	createAt(t, newAt(namespace, "at", time.Now().Add(time.Hour), "true"))
	c := startController(t, namespace, "-metrics-secure", "-metrics-namespaces=0", "-tls-cert-file=/nowhere/tls.crt", "-tls-private-key-file=/nowhere/tls.key")
	waitLog(t, c, "The certificate of the metrics is self-signed")
	url := served(t, c, "metrics") + "/metrics"
	token := func(name string) string {
		return strings.TrimSpace(kubectl(t, "", "create", "token", "-n", namespace, name, "--duration=10m"))
	}
	eventually(t, "the metrics for whom has the role", func(context.Context) (bool, error) {
		status, body := get(t, url, token("prometheus")) // A new token each time, which is not in the cache.
		return status == http.StatusOK && strings.Contains(body, `cnat_ats{namespace="_other",state="pending"} 1`), nil
	})
	for token, want := range map[string]int{"": http.StatusUnauthorized, "made-up": http.StatusUnauthorized, token("elsewhere"): http.StatusForbidden} {
		if status, body := getSecure(t, url, token); status != want || strings.Contains(body, "cnat_") {
			t.Errorf("answered %d, want %d", status, want)
		}
	}
}
