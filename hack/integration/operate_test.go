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
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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

	createCronAt(t, newCronAt(namespace, "0 0 30 2 *", func(cronAt *v1alpha1.CronAt) { cronAt.Name = "never" }))
	createCronAt(t, newCronAt(namespace, "0 0 1 1 *"))
	waitCronAt(t, namespace, "to have a next time", func(cronAt *v1alpha1.CronAt) bool { return cronAt.Status.NextScheduleTime != nil })
	// The controller does not expect that anybody else writes it, and so does not notice.
	overdue := []byte(`{"status":{"nextScheduleTime":"2000-01-01T00:00:00Z"}}`)
	if _, err := cnatClient.CnatV1alpha1().CronAts(namespace).Patch(t.Context(), "cronat", types.MergePatchType, overdue, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	kubectl(t, annotatable("Deployment", "web", fmt.Sprintf("%q: %q", scheduleAnnotation, "25 o'clock")), "create", "-n", namespace, "-f", "-")

	due := time.Now().Add(time.Second)
	for name, change := range map[string]func(*v1alpha1.At){
		"succeeds":  func(*v1alpha1.At) {},
		"fails":     func(at *v1alpha1.At) { at.Spec.BackoffLimit = ptr.To[int32](1) },
		"runs":      func(*v1alpha1.At) {},
		"pending":   func(at *v1alpha1.At) { at.Spec.Schedule = "2099-01-01T00:00:00Z" },
		"suspended": func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) },
		"late": func(at *v1alpha1.At) {
			at.Spec.StartingDeadlineSeconds = ptr.To[int64](0)
			at.Spec.Schedule = "2000-01-01T00:00:00Z"
		},
	} {
		at := newAt(namespace, name, due, "true")
		change(at)
		createAt(t, at)
	}
	kubectl(t, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "refused-pod"}, "spec": {"containers": [{"name": "a", "image": "a"}]}}`, "create", "-n", namespace, "-f", "-")
	createAt(t, newAt(namespace, "refused", due, "true"))

	endPod(t, waitPod(t, namespace, "succeeds-pod"), corev1.PodSucceeded, 0, "")
	endPod(t, waitPod(t, namespace, "fails-pod"), corev1.PodFailed, 1, "")
	endPod(t, waitPod(t, namespace, "fails-pod-1"), corev1.PodFailed, 1, "")
	for _, name := range []string{"succeeds", "fails", "late"} {
		waitPhase(t, namespace, name, v1alpha1.PhaseDone)
	}
	waitPhase(t, namespace, "runs", v1alpha1.PhaseRunning)

	wantCreates(t, namespace, 4)
	runs, attempts := `cnat_runs_total{namespace="`+namespace+`",reason=`, `cnat_attempts_total{namespace="`+namespace+`",reason=`
	want := []string{
		`cnat_ats{namespace="` + namespace + `",state="blocked"} 1`, `cnat_ats{namespace="` + namespace + `",state="done"} 3`, `cnat_ats{namespace="` + namespace + `",state="pending"} 1`,
		`cnat_ats{namespace="` + namespace + `",state="running"} 1`, `cnat_ats{namespace="` + namespace + `",state="suspended"} 1`,
		`cnat_ats_blocked{namespace="` + namespace + `",reason="PodNameConflict"} 1`,
		`cnat_cronats_blocked{namespace="` + namespace + `",reason="InvalidSchedule"} 1`,
		`cnat_restart_annotations_blocked{namespace="` + namespace + `",reason="InvalidRestartSchedule"} 1`,
		`cnat_oldest_due_age_seconds 0`, `cnat_unexpected_pods_total 0`,
		runs + `"Completed"} 1`, runs + `"CommandFailed"} 1`, runs + `"StartingDeadlineExceeded"} 1`, runs + `"Evicted"} 0`,
		attempts + `"Completed"} 1`, attempts + `"CommandFailed"} 2`, attempts + `"PodLost"} 0`,
		`cnat_runs_total{namespace="_other",reason="CommandFailed"} 0`,
		// A creation whose answer came too late is not measured.
		fmt.Sprintf(`cnat_start_lateness_seconds_count %d`, len(requests(t, namespace, "create", "pods"))),
	}
	patterns := []string{`cnat_cronat_overdue_seconds{cronat="cronat",namespace="` + namespace + `"} \S+\n`, `cnat_build_info{goversion="go.*",revision=".*",version="` + version.Version + `"} 1`,
		`cnat_sync_duration_seconds_count{result="blocked"} [1-9]`, `workqueue_depth{name="ats"} \d+`, `rest_client_requests_total{code="201",`}
	var body string
	eventually(t, "all of it to be in the metrics", func(context.Context) (bool, error) {
		_, body = get(t, url, "")
		lines := strings.Split(body, "\n")
		lacksLine := func(line string) bool { return !slices.Contains(lines, line) }
		lacks := func(pattern string) bool { return !regexp.MustCompile(pattern).MatchString(body) }
		return !slices.ContainsFunc(want, lacksLine) && !slices.ContainsFunc(patterns, lacks), nil
	})

	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Errorf("promlint: %s: %s", problem.Metric, problem.Text)
	}
	// hack/tools/promcheck checks the queries against these.
	granted, err := os.ReadFile(root + "/hack/tools/promcheck/testdata/served.txt")
	if err != nil {
		t.Fatal(err)
	}
	got := seriesOf(body + ofLeader)
	for series := range seriesOf(string(granted)) {
		if !got[series] {
			t.Errorf("promcheck's testdata has a series that is not served: %s", series)
		}
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

var variableLabel = regexp.MustCompile(`(cronat|host|namespace)="[^"]*"`)

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
	clusterRole := func(name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}
	}
	// A controller that is not in a Pod is in the namespace of its kubeconfig.
	for name, in := range map[string]struct{ namespace, role string }{
		"prometheus": {metav1.NamespaceDefault, "cnat-metrics-reader"},
		"elsewhere":  {namespace, "cnat-metrics-reader"},
		"admin":      {metav1.NamespaceDefault, "admin"},
	} {
		bindRole(t, namespace, name, nil)
		binding := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: namespace + "-" + name},
			RoleRef:    clusterRole(in.role),
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
		}
		if _, err := kubeClient.RbacV1().RoleBindings(in.namespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := kubeClient.RbacV1().RoleBindings(in.namespace).Delete(context.Background(), binding.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
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

// TestHealth checks the health endpoints while the API server does not respond, while the
// controller is on standby, and while it works.
func TestHealth(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	t.Cleanup(busy.Close)
	starts := startController(t, namespace, "-leader-elect", "-leader-elect-resource-namespace="+namespace, "-master="+busy.URL)
	if err := checkHealth(t, starts, "503 the caches are not filled yet: see the log\n"); err != nil {
		t.Errorf("one that starts: %v", err)
	}
	for range maxLeaders {
		namespace := newNamespace(t)
		leader := startLeader(t, namespace)
		standby := startController(t, namespace, "-leader-elect", "-leader-elect-resource-namespace="+namespace)
		waitLog(t, standby, "Attempting to acquire leader lease")
		err := errors.Join(checkHealth(t, leader, "200 ok\n"), checkHealth(t, standby, "200 ok\n"))
		if leader.lostLease() || standby.lostLease() {
			continue
		}
		if err = errors.Join(err, leader.stop(syscall.SIGTERM), standby.stop(syscall.SIGTERM)); err != nil {
			t.Errorf("a leader, and one that is on standby: %v", err)
		}
		return
	}
	t.Error("each leader lost its lease")
}

// checkHealth checks the health endpoints of a controller, unless it loses its lease.
func checkHealth(t *testing.T, c *controller, ready string) error {
	t.Helper()
	url := served(t, c, "health")
	status, body, err := tryGet(t, url+"/healthz", "")
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("/healthz answers %d %s", status, body)
	}
	eventually(t, "/readyz to answer "+ready, func(context.Context) (bool, error) {
		status, body, err := tryGet(t, url+"/readyz", "")
		return err == nil && fmt.Sprintf("%d %s", status, body) == ready || c.lostLease(), nil
	})
	status, _, err = tryGet(t, url+"/metrics", "")
	if err == nil && status != http.StatusNotFound {
		return fmt.Errorf("the metrics are served at the health address: %d", status)
	}
	return err
}

// TestLogs reads the lifecycle of an At from the log in both formats.
func TestLogs(t *testing.T) {
	t.Parallel()
	want := []string{
		"At added", "At changed", "Created Pod", "Wrote status RUNNING", "Wrote status DONE Completed",
		"At deleted", "Deleted At, its time to live has expired", "Released Pod", // in any order
	}
	for _, format := range []string{"text", "json"} {
		for _, verbosity := range []string{"2", "5"} {
			t.Run(format+" "+verbosity, func(t *testing.T) {
				t.Parallel()
				namespace := newNamespace(t)
				// Without preflights: one that takes long is logged, too.
				c := startController(t, namespace, "-v="+verbosity, "-logging-format="+format, "-preflight-qps=0")
				waitLog(t, c, "*v1alpha1.At + event handler") // which has the objects that existed at the start
				at := newAt(namespace, "at", time.Now().Add(time.Hour), "true")
				at.Spec.TTLSecondsAfterFinished = ptr.To[int32](0)
				createAt(t, at)
				waitLog(t, c, "At added")
				update(t, namespace, func(at *v1alpha1.At) { at.Spec.Schedule = "2000-01-01T00:00:00Z" })
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
					if at == namespace+"/at" && (verbosity == "2" || slices.Contains(want, message)) {
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
}

// TestLogHasNoTexts has a secret in each text that users, webhooks and commands write. The status has
// what a webhook says; the log has only that it was refused. (With -v=8 and higher, client-go logs
// whole requests.)
func TestLogHasNoTexts(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			var allow atomic.Bool
			startWebhook(t, namespace, 30, func() *admissionv1.AdmissionResponse {
				return &admissionv1.AdmissionResponse{Allowed: allow.Load(), Warnings: []string{secret}, Result: &metav1.Status{Code: http.StatusForbidden, Reason: secret, Message: secret}}
			})
			waitRefused(t, newAt(namespace, "probe", time.Now(), "true"))
			c := startController(t, namespace, "-v=7", "-logging-format="+format, "-restart-annotations")
			for name, due := range map[string]time.Time{"at": time.Now(), "later": time.Now().Add(time.Hour)} {
				at := newAt(namespace, name, due, "")
				setTemplate(at, func(spec *corev1.PodSpec) {
					spec.NodeSelector = map[string]string{secret: secret}
					spec.Containers[0].Command, spec.Containers[0].Args = []string{secret}, []string{secret}
					spec.Containers[0].Env = []corev1.EnvVar{{Name: secret, Value: secret}}
				})
				at.Labels, at.Annotations = map[string]string{secret: secret}, map[string]string{secret: secret}
				createAt(t, at)
			}
			createAt(t, newAt(namespace, "command", time.Now(), "curl -u root:"+secret))
			createWorkload(t, namespace, v1alpha1.RestartDeployment, "")
			kubectl(t, "", "annotate", "-n", namespace, "deployment/web", scheduleAnnotation+"="+secret)
			for _, name := range []string{"at", "later"} {
				if blocked := waitBlockedAt(t, namespace, name, v1alpha1.ReasonPodRefused); !strings.Contains(blocked.Message, secret) {
					t.Errorf("condition Blocked of At %s does not have the webhook's message: %s", name, blocked.Message)
				}
			}
			waitLog(t, c, "PodRefused: create Pod: 403 Forbidden")
			allow.Store(true)
			endPod(t, waitPod(t, namespace, "at-pod"), corev1.PodFailed, 1, secret)
			if at := waitPhase(t, namespace, "at", v1alpha1.PhaseDone); !strings.Contains(at.Status.Message, secret) {
				t.Errorf("the status does not have the command's message: %s", at.Status.Message)
			}
			eventually(t, "the restart annotation to be reported", func(context.Context) (bool, error) {
				return strings.Contains(kubectl(t, "", "events", "-n", namespace), v1alpha1.ReasonInvalidRestartSchedule), nil
			})
			for line := range strings.Lines(c.output()) {
				if strings.Contains(line, secret) {
					t.Errorf("the log has a text of a user: %s", line)
				}
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

// TestVersion checks the version, which is also part of the requests to the API server.
func TestVersion(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), binary, "-version").CombinedOutput()
	if want := "cnat-controller " + version.Version + " ("; err != nil || !strings.HasPrefix(string(out), want) {
		t.Errorf("-version prints %q, %v; want %s", out, err, want)
	}
	namespace := newNamespace(t)
	startController(t, namespace)
	createAt(t, newAt(namespace, "at", time.Now(), "true"))
	for _, request := range wantCreates(t, namespace, 1) {
		if want := "cnat-controller/" + version.Version; request.UserAgent != want {
			t.Errorf("user agent %q, want %q", request.UserAgent, want)
		}
	}
}
