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
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

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
	// On a slow machine, a leader would lose its lease before all Ats have ended.
	ofLeader := leaderMetrics(t)
	wantOutput(t, ofLeader, `leader_election_master_status\{name="cnat-controller"\} 1\n`)

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
	waitCronAt(t, namespace, "to have a next time", func(cronAt *v1alpha1.CronAt) bool { return cronAt.Status.NextScheduleTime != nil })
	endPod(t, waitPod(t, namespace, "succeeds-pod"), corev1.PodSucceeded, 0, "")
	endPod(t, waitPod(t, namespace, "fails-pod"), corev1.PodFailed, 1, "")
	wantCreates(t, namespace, 3)
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
		got := seriesOf(body + ofLeader)
		for series := range seriesOf(string(granted)) {
			if strings.HasPrefix(series, "cnat_cronat_overdue_seconds") || strings.Contains(series, `state="frozen"`) {
				continue // While a controller works, no CronAt is overdue. Without a Freeze, nothing is frozen.
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

// leaderMetrics returns the metrics of a controller that holds a lease.
func leaderMetrics(t *testing.T) string {
	t.Helper()
	for range maxLeaders {
		leader := startLeader(t, newNamespace(t))
		_, metrics, err := tryGet(t, served(t, leader, "metrics")+"/metrics", "")
		if leader.lostLease() {
			continue
		}
		if err = errors.Join(err, leader.stop(syscall.SIGTERM)); err != nil {
			t.Fatal(err)
		}
		return metrics
	}
	t.Fatal("each leader lost its lease")
	return ""
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
	// A controller that is not in a Pod is in the namespace of its kubeconfig.
	for name, in := range map[string][2]string{
		"prometheus": {metav1.NamespaceDefault, "cnat-metrics-reader"},
		"elsewhere":  {namespace, "cnat-metrics-reader"},
		"admin":      {metav1.NamespaceDefault, "admin"},
	} {
		binding := namespace + "-" + name
		kubectl(t, "", "create", "serviceaccount", name, "-n", namespace)
		kubectl(t, "", "create", "rolebinding", binding, "-n", in[0], "--clusterrole="+in[1], "--serviceaccount="+namespace+":"+name)
		t.Cleanup(func() {
			if out, err := runKubectl(context.Background(), "", "delete", "rolebinding", binding, "-n", in[0]); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	at := newAt(namespace, "at", time.Now(), "true")
	at.Spec.Schedule = "2099-01-01T00:00:00Z"
	createAt(t, at)
	c := startController(t, namespace, "-metrics-secure", "-metrics-namespaces=0", "-tls-cert-file=/nowhere/tls.crt", "-tls-private-key-file=/nowhere/tls.key")
	waitLog(t, c, "The certificate of the metrics is self-signed")
	url := served(t, c, "metrics") + "/metrics"
	if !strings.HasPrefix(url, "https://") {
		t.Errorf("it is served at %s, not over HTTPS", url)
	}
	token := func(name string) string {
		return strings.TrimSpace(kubectl(t, "", "create", "token", "-n", namespace, name, "--duration=10m"))
	}
	eventually(t, "the metrics for whom has the role", func(context.Context) (bool, error) {
		status, body := get(t, url, token("prometheus")) // A new token each time, which is not in the cache.
		return status == http.StatusOK && strings.Contains(body, `cnat_ats{namespace="_other",state="pending"} 1`), nil
	})
	for name, tc := range map[string]struct {
		token string
		want  int
	}{
		"nobody":                        {want: http.StatusUnauthorized},
		"a stranger":                    {token: "made-up", want: http.StatusUnauthorized},
		"a reader in another namespace": {token: token("elsewhere"), want: http.StatusForbidden},
		"an admin of the namespace":     {token: token("admin"), want: http.StatusForbidden},
	} {
		status, body := getSecure(t, url, tc.token)
		if status != tc.want || strings.Contains(body, "cnat_") {
			t.Errorf("%s: answered %d, want %d", name, status, tc.want)
		}
	}
	// The role is for the metrics of cnat only.
	config, err := clientcmd.BuildConfigFromFlags("", controllerConfig)
	if err != nil {
		t.Fatal(err)
	}
	if status, body := get(t, config.Host+"/metrics", token("prometheus")); status != http.StatusForbidden {
		t.Errorf("the metrics of the API server: answered %d, want 403: %.100s", status, body)
	}
}

// TestLogs reads the lifecycle of an At from the log in both formats.
func TestLogs(t *testing.T) {
	t.Parallel()
	want := []string{
		"At added", "At changed", "Created Pod", "Wrote status RUNNING", "Wrote status DONE Completed",
		"At deleted", "Deleted At, its time to live has expired", "Released Pod", // in any order
	}
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			// Without preflights: one that takes long is logged, too.
			c := startController(t, namespace, "-v=2", "-logging-format="+format, "-preflight-qps=0")
			waitLog(t, c, "*v1alpha1.At + event handler") // which has the objects that existed at the start
			at := newAt(namespace, "at", time.Now().Add(time.Hour), "true")
			at.Spec.TTLSecondsAfterFinished = ptr.To[int32](0)
			createAt(t, at)
			waitLog(t, c, "At added")
			patchAt(t, namespace, "at", `{"spec":{"schedule":"2000-01-01T00:00:00Z"}}`)
			pod := waitPod(t, namespace, "at-pod")
			waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
			endPod(t, pod, corev1.PodSucceeded, 0, "")
			for _, message := range want[5:] {
				waitLog(t, c, message)
			}

			var got []string
			// The last line may not be complete.
			output := c.output()
			for line := range strings.Lines(output[:strings.LastIndex(output, "\n")+1]) {
				at, message := readLine(t, format, line)
				if at == namespace+"/at" {
					got = append(got, message)
				}
			}
			if len(got) == len(want) {
				slices.Sort(got[5:])
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("logged (-want +got):\n%s", diff)
			}
		})
	}
}

// traceLine matches the lines in which client-go logs a list that takes more than 10 s.
var traceLine = regexp.MustCompile(`^(I\d{4} [^]]*\] )?Trace\[`)

var textLine = regexp.MustCompile(`^[IWE]\d{4} [^]]*\] "(.*?)"(?: at="(.*?)")?(?:.* phase="(.*?)" reason="(.*?)")?`)

// readLine returns the message in a log line, and its At.
func readLine(t *testing.T, format, line string) (at, message string) {
	t.Helper()
	if format == "text" && traceLine.MatchString(line) {
		return "", ""
	}
	if format == "text" {
		match := textLine.FindStringSubmatch(line)
		if match == nil {
			t.Fatalf("not a line of the log: %s", line)
		}
		return match[2], strings.TrimSpace(strings.Join([]string{match[1], match[3], match[4]}, " "))
	}
	var object struct {
		Msg           string
		At            struct{ Name, Namespace string }
		Phase, Reason string
	}
	if err := json.Unmarshal([]byte(line), &object); err != nil {
		t.Fatalf("not a line of JSON: %v: %s", err, line)
	}
	return object.At.Namespace + "/" + object.At.Name, strings.TrimSpace(strings.Join([]string{object.Msg, object.Phase, object.Reason}, " "))
}
