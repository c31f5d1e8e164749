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

// The global source of math/rand, from which back-offs of client-go get their jitter, can be
// seeded:
//go:debug randseednop=0

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientfeatures "k8s.io/client-go/features"
	clientfeaturestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/connect"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/safelog"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/testing/audit"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
	"programming-kubernetes.info/cnat-controller/pkg/testing/simulation"
)

// hack/simulate.sh sets them.
var (
	simulateSeed    = flag.Uint64("simulate-seed", 1, "seed of the first history")
	simulateDays    = flag.Int("simulate-days", 1, "number of days of a history")
	simulateDay     = flag.Duration("simulate-day", 8*time.Hour, "duration of a day")
	simulateFor     = flag.Duration("simulate-for", 0, "time for histories with the next seeds")
	simulateTrace   = flag.String("simulate-trace", "", "file for the requests and changes")
	simulateMutants = flag.Bool("simulate-mutants", false, "try all mutants, not only the quick ones")
	simulateV       = flag.Int("simulate-v", 0, "verbosity of the controllers' logs in that file")
)

// startProgram runs the program as main does, without its endpoints.
func startProgram(ctx context.Context, config *rest.Config, settings simulation.Settings) error {
	o := &options{
		workers: 1, defaults: defaults, restartAnnotations: true,
		leaderElect: settings.Identity != "", leaderElectNamespace: "cnat-system", leaderElectIdentity: settings.Identity,
	}
	if !settings.NoPreflights {
		o.preflightQPS, o.rehearsals, o.namespaceRehearsals = 5, 10, 2
	}
	config.Wrap(connect.Concise)
	p, err := newProgram(ctx, o, config, settings.Clock)
	if err != nil {
		return err
	}
	return runProgram(ctx, p)
}

// runProgram runs a program, and ends the goroutines of its queues, also if it has never worked.
func runProgram(ctx context.Context, p *program) error {
	err := p.run(ctx)
	if p.controller.queue.Standby.Load() {
		stopped, stop := context.WithCancel(ctx)
		stop()
		p.cronController.Run(stopped, 1)
		if p.annotations != nil {
			p.annotations.Run(stopped, 1)
		}
		p.controller.Run(stopped, 1)
		p.controller.preflight.Run(stopped)
	}
	return err
}

// unbroken are the histories without a mutant in which no promise was broken.
var unbroken = map[string]bool{}

func key(o simulation.Options) string { return fmt.Sprint(o.Seed, o.Days, o.Day, o.NoPreflights) }

// simulate simulates one history.
func simulate(t *testing.T, o simulation.Options) (result simulation.Result) {
	t.Helper()
	o.Start = startProgram
	// With it, informers get what a watch lists in the order of a map.
	clientfeaturestesting.SetFeatureDuringTest(t, clientfeatures.WatchListClient, !o.NoPreflights)
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // There is little to keep, and much garbage.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))   // More would run goroutines in any order.
	synctest.Test(t, func(t *testing.T) { result = simulation.Run(t, o) })
	if o.Mutant == nil && len(result.Violations) == 0 && result.Summary.Ats > 0 {
		unbroken[key(o)] = true
	}
	return result
}

// TestSimulate runs the whole program for days, and checks its history.
func TestSimulate(t *testing.T) {
	o := simulation.Options{Seed: *simulateSeed, Days: *simulateDays, Day: *simulateDay, Verbosity: *simulateV}
	if *simulateTrace != "" {
		file, err := os.Create(*simulateTrace)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = file.Close() }()
		o.Trace = file
	}
	for start := time.Now(); ; o.Seed++ {
		o.NoPreflights = o.Seed%2 == 1 // so that these can be repeated
		var trace bytes.Buffer
		if *simulateTrace == "" {
			o.Trace = &trace
		}
		result := simulate(t, o)
		t.Logf("seed %d, after %v: %s", o.Seed, time.Since(start).Round(time.Second), &result)
		for _, violation := range result.Violations {
			t.Errorf("%s\n%s", violation, storyOf(violation, trace.String()))
		}
		if t.Failed() || time.Since(start) >= *simulateFor {
			return
		}
	}
}

// storyOf returns the last lines of a trace that may explain a violation. Its history need not come
// again: what is due at the same instant may take turns in a random order.
func storyOf(violation audit.Violation, trace string) string {
	const length = 100
	name := path.Base(violation.Object)
	if i := strings.LastIndex(trace, violation.Time.UTC().Format("01-02T15:04:05.000000000")); i >= 0 {
		line, _, _ := strings.Cut(trace[i:], "\n")
		trace = trace[:i] + line
	}
	lines := slices.DeleteFunc(strings.Split(trace, "\n"), func(line string) bool {
		isRead := strings.Contains(line, ": GET ")
		return !strings.Contains(line, name) && (isRead || !strings.Contains(line, "freezes") && !strings.Contains(line, " the "))
	})
	return strings.Join(lines[max(0, len(lines)-length):], "\n")
}

// TestSimulateAgain simulates the same history twice. Without preflights, nothing differs: they
// let two dry-runs that are due at the same instant take turns in a random order.
func TestSimulateAgain(t *testing.T) {
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector runs goroutines in a random order")
	}
	// With this seed, the order in which informers list makes a difference, and that in which an event
	// reaches two handlers makes none.
	o := simulation.Options{Seed: 27, Days: 1, Day: 3 * time.Hour, NoPreflights: true}
	first, second := simulate(t, o), simulate(t, o)
	if first.Hash != second.Hash || first.Requests == 0 {
		t.Errorf("the histories differ:\n%s\n%s", &first, &second)
	}
}

// quickMutants are the mutants that are noticed within seconds.
var quickMutants = []string{"the name is no lock", "half a second early", "a running Pod counts as ended", "a suspension is ignored"}

// TestSimulateMutants breaks the program in many ways. The simulation notices each, and nothing
// in the same history of the whole program.
func TestSimulateMutants(t *testing.T) {
	for name, mutant := range simulation.Mutants {
		if !*simulateMutants && !slices.Contains(quickMutants, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			const seeds = 11
			for i := range seeds {
				// The first one of most is the history of TestSimulate.
				o := simulation.Options{Seed: uint64(i+1) % seeds, Days: 1, Day: 8 * time.Hour, Mutant: &mutant, NoPreflights: !mutant.Preflights}
				result := simulate(t, o)
				if i := slices.IndexFunc(result.Violations, func(v audit.Violation) bool { return v.Rule == mutant.Want }); i >= 0 {
					t.Logf("seed %d, %d requests: %s", o.Seed, result.Requests, result.Violations[i])
					o.Mutant = nil
					if !unbroken[key(o)] {
						if result := simulate(t, o); !unbroken[key(o)] {
							t.Errorf("seed %d without a mutant: %v, %s", o.Seed, result.Violations, &result)
						}
					}
					return
				}
				t.Logf("seed %d, %v: %s", o.Seed, result.Violations, &result)
			}
			t.Errorf("nothing was noticed that breaks the promise %q", mutant.Want)
		})
	}
}

// startedProgram runs the whole program over an API server in memory. What it asks may be answered
// otherwise: a nil response means as the server does.
func startedProgram(ctx context.Context, t *testing.T, server *fakeserver.Server, o *options, otherwise func(*http.Request) (*http.Response, error)) (stop context.CancelFunc, ended chan error) {
	t.Helper()
	ctx, stop = context.WithCancel(ctx)
	t.Cleanup(stop)
	o.workers, o.defaults = 1, defaults
	config := fakeserver.Config(server)
	config.Wrap(func(http.RoundTripper) http.RoundTripper {
		return harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
			if response, err := otherwise(request); response != nil || err != nil {
				return response, err
			}
			return server.RoundTrip(request)
		})
	})
	p, err := newProgram(ctx, o, config, clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	ended = make(chan error, 1)
	go func() { ended <- runProgram(ctx, p) }()
	return stop, ended
}

// denied is the answer of a webhook or a policy.
func denied(request *http.Request, message string) (*http.Response, error) {
	return fakeserver.Refuse(request, apierrors.NewForbidden(podsResource.GroupResource(), "", errors.New(message)))
}

// TestFreezeOfCronAts has an At that is due, and that a Freeze holds because of the label of its CronAt.
// The CronAts cannot be listed at first, so nobody knows.
func TestFreezeOfCronAts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := fakeserver.New(clock.RealClock{})
		_, person := harness.NewClients(t, server)
		cnat := person.CnatV1alpha1()
		now := time.Now()
		cronAt := harness.Create(t, cnat.CronAts("default"), &v1alpha1.CronAt{
			ObjectMeta: metav1.ObjectMeta{Name: "cron", Namespace: "default", Labels: map[string]string{"team": "x"}}, Spec: v1alpha1.CronAtSpec{Schedule: "0 0 29 2 *"},
		})
		due := &v1alpha1.At{ObjectMeta: metav1.ObjectMeta{Name: "at", Namespace: "default"}, Spec: v1alpha1.AtSpec{Schedule: now.Format(time.RFC3339), RunSpec: v1alpha1.RunSpec{Command: "true"}}}
		due.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(cronAt, v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.CronAtKind))}
		harness.Create(t, cnat.Ats("default"), due)
		harness.Create(t, cnat.Freezes("default"), &v1alpha1.Freeze{ObjectMeta: metav1.ObjectMeta{Name: "freeze", Namespace: "default"}, Spec: v1alpha1.FreezeSpec{
			Selector: &metav1.LabelSelector{MatchLabels: cronAt.Labels},
			Windows:  []v1alpha1.FreezeWindow{{From: v1alpha1.FreezeTime(now.Format(time.RFC3339)), Until: v1alpha1.FreezeTime(now.Add(time.Hour).Format(time.RFC3339))}},
		}})
		known := now.Add(5 * time.Second)
		stop, ended := startedProgram(t.Context(), t, server, &options{}, func(request *http.Request) (*http.Response, error) {
			if path.Base(request.URL.Path) == "cronats" && time.Now().Before(known) {
				return fakeserver.Refuse(request, apierrors.NewInternalError(errors.New("not yet")))
			}
			return nil, nil
		})
		time.Sleep(4 * time.Second)
		if at := harness.Get(t, cnat.Ats("default"), "at"); at.Status.Phase == v1alpha1.PhaseRunning {
			t.Errorf("it has started: %+v", at.Status)
		}
		time.Sleep(40 * time.Second) // less than until the next sweep
		if at := harness.Get(t, cnat.Ats("default"), "at"); !plan.IsFrozen(at) {
			t.Errorf("it is not held: %+v", at.Status)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// secret is in each text that a user controls.
const secret = "hunter2"

// TestLogHasNoTexts lets the program work on objects that have a secret in each text that users
// control, while webhooks and nodes repeat it. It is not in the log, which says what failed.
func TestLogHasNoTexts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		denies func(request *http.Request) bool
		want   string // in the log
	}{
		"nothing is denied":    {func(*http.Request) bool { return false }, `"Created Pod"`},
		"writes are denied":    {func(r *http.Request) bool { return r.Method != http.MethodGet && path.Base(r.URL.Path) != "status" }, "create Pod: 403 Forbidden"},
		"statuses are denied":  {func(r *http.Request) bool { return r.Method != http.MethodGet && path.Base(r.URL.Path) == "status" }, "write the status: 403 Forbidden"},
		"Deployments are gone": {func(r *http.Request) bool { return path.Base(path.Dir(r.URL.Path)) == "deployments" }, `"Created Pod"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := fakeserver.New(clock.RealClock{})
				var lock sync.Mutex
				var log bytes.Buffer
				logger := safelog.New(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(writerFunc(func(p []byte) (int, error) {
					lock.Lock()
					defer lock.Unlock()
					return log.Write(p)
				})), textlogger.Verbosity(7))))
				o := &options{restartAnnotations: true, preflightQPS: 5, rehearsals: 10, namespaceRehearsals: 2}
				stop, ended := startedProgram(klog.NewContext(t.Context(), logger), t, server, o, func(request *http.Request) (*http.Response, error) {
					if tc.denies(request) {
						return denied(request, secret)
					}
					return nil, nil
				})
				time.Sleep(time.Second)
				writeSecrets(t, server)
				time.Sleep(2 * time.Minute)
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
				lock.Lock()
				defer lock.Unlock()
				if !strings.Contains(log.String(), tc.want) {
					t.Errorf("the log does not have %q", tc.want)
				}
				for line := range strings.Lines(log.String()) {
					if strings.Contains(line, secret) {
						t.Errorf("the log has a text of a user: %s", line)
					}
				}
			})
		})
	}
}

type writerFunc func(p []byte) (int, error)

// Write implements io.Writer.
func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// writeSecrets creates objects of all kinds, as users do, and lets nodes report about their Pods.
func writeSecrets(t *testing.T, server *fakeserver.Server) {
	t.Helper()
	kube, cnat := harness.NewClients(t, server)
	now := time.Now()
	soon, later := now.Add(5*time.Second).Format(time.RFC3339), now.Add(time.Hour).Format(time.RFC3339)
	texts := map[string]string{secret: secret}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: "default", Labels: texts, Annotations: map[string]string{secret: secret, v1alpha1.AnnotationRehearsalRequestedAt: secret}}
	}
	template := &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: texts, Annotations: texts}, Spec: corev1.PodSpec{
		NodeSelector: texts, Containers: []corev1.Container{{Name: secret, Image: secret, Args: []string{secret}, Env: []corev1.EnvVar{{Name: secret, Value: secret}}}},
	}}
	invalid := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: secret, Operator: secret}}}
	for name, spec := range map[string]v1alpha1.AtSpec{
		"command":    {Schedule: soon, RunSpec: v1alpha1.RunSpec{Command: secret}},
		"template":   {Schedule: soon, RunSpec: v1alpha1.RunSpec{Template: template}},
		"rehearsed":  {Schedule: later, RunSpec: v1alpha1.RunSpec{Template: template, Rehearse: true}},
		"schedule":   {Schedule: secret, RunSpec: v1alpha1.RunSpec{Command: secret}},
		"zone":       {Schedule: "2099-01-01T00:00:00", TimeZone: ptr.To(secret), RunSpec: v1alpha1.RunSpec{Command: secret}},
		"nodes":      {Schedule: soon, RunSpec: v1alpha1.RunSpec{Command: secret, Nodes: &v1alpha1.AtNodes{Selector: metav1.LabelSelector{MatchLabels: texts}}}},
		"no-nodes":   {Schedule: soon, RunSpec: v1alpha1.RunSpec{Command: secret, Nodes: &v1alpha1.AtNodes{Selector: invalid}}},
		"node":       {Schedule: soon, RunSpec: v1alpha1.RunSpec{Command: secret, Node: secret}},
		"restart":    {Schedule: soon, RunSpec: v1alpha1.RunSpec{Restart: &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "invalid"}}},
		"wrong-kind": {Schedule: soon, RunSpec: v1alpha1.RunSpec{Restart: &v1alpha1.AtRestart{Kind: secret, Name: "invalid"}}},
	} {
		harness.Create(t, cnat.CnatV1alpha1().Ats("default"), &v1alpha1.At{ObjectMeta: meta(name), Spec: spec})
	}
	for name, schedule := range map[string]string{"every-minute": "* * * * *", "invalid": secret, "zone": "TZ=" + secret + " 0 0 * * *"} {
		harness.Create(t, cnat.CnatV1alpha1().CronAts("default"), &v1alpha1.CronAt{ObjectMeta: meta(name), Spec: v1alpha1.CronAtSpec{
			Schedule: schedule, AtTemplate: v1alpha1.AtTemplateSpec{Metadata: v1alpha1.AtTemplateMeta{Labels: texts, Annotations: texts}, Spec: v1alpha1.RunSpec{Template: template}},
		}})
	}
	harness.Create(t, kube.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: texts}})
	for name, annotations := range map[string]map[string]string{
		"invalid":  {v1alpha1.AnnotationRestartSchedule: secret},
		"zone":     {v1alpha1.AnnotationRestartSchedule: "0 0 * * *", v1alpha1.AnnotationRestartTimeZone: secret},
		"suspends": {v1alpha1.AnnotationRestartSchedule: "0 0 * * *", v1alpha1.AnnotationRestartSuspend: secret},
	} {
		harness.Create(t, kube.AppsV1().Deployments("default"), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Annotations: annotations}})
	}
	time.Sleep(30 * time.Second)
	pods := kube.CoreV1().Pods("default")
	for i, pod := range harness.List(t, pods).Items {
		harness.Create(t, kube.CoreV1().Events("default"), &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("event-", i), Namespace: "default"}, Type: corev1.EventTypeWarning, Reason: secret, Message: secret, LastTimestamp: metav1.Now(),
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: pod.Name, Namespace: "default", UID: pod.UID},
		})
		state := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: secret, Message: secret}}
		for _, phase := range []corev1.PodPhase{corev1.PodPending, corev1.PodFailed} {
			pod.Status = corev1.PodStatus{Phase: phase, Reason: secret, Message: secret, ContainerStatuses: []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, Image: secret, State: state}}}
			pod.ResourceVersion = ""
			harness.UpdateStatus(t, pods, &pod)
			time.Sleep(10 * time.Second)
			state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: secret, Message: secret}}
		}
	}
	harness.Patch(t, cnat.CnatV1alpha1().Ats("default"), "rehearsed", fmt.Sprintf(`{"spec":{"schedule":%q,"timeZone":%q}}`, secret, secret))
}

// TestLastRelease stops a program that may not list Ats. If it leads, and is being uninstalled, it
// releases its permissions.
func TestLastRelease(t *testing.T) {
	for testName, tc := range map[string]struct {
		answer  int           // to the lists of Ats, if they fail
		lease   time.Duration // for which another program has the lease
		deleted bool          // the permissions are being deleted when it is asked to stop
		hangs   bool          // the API server does not answer any more then
		// expectations
		kept bool
		took time.Duration // at most
	}{
		"refused":                        {answer: http.StatusForbidden, kept: true, took: 4 * time.Second},
		"before the API server is ready": {answer: http.StatusServiceUnavailable, deleted: true, took: 4 * time.Second},
		"on standby, another leads":      {lease: time.Hour, deleted: true, kept: true, took: 3 * time.Second},
		"the API server hangs":           {answer: http.StatusForbidden, hangs: true, deleted: true, kept: true, took: 24 * time.Second},
	} {
		t.Run(testName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const namespace = "cnat-system"
				server := fakeserver.New(clock.RealClock{})
				kubeClient, _ := harness.NewClients(t, server)
				accounts, rbac := kubeClient.CoreV1().ServiceAccounts(namespace), kubeClient.RbacV1()
				meta := metav1.ObjectMeta{Name: controllerName, Finalizers: []string{v1alpha1.FinalizerReleasePods}}
				harness.Create(t, accounts, &corev1.ServiceAccount{ObjectMeta: meta})
				harness.Create(t, rbac.Roles(namespace), &rbacv1.Role{ObjectMeta: meta})
				harness.Create(t, rbac.RoleBindings(namespace), &rbacv1.RoleBinding{ObjectMeta: meta})
				harness.Create(t, rbac.ClusterRoles(), &rbacv1.ClusterRole{ObjectMeta: meta})
				harness.Create(t, rbac.ClusterRoleBindings(), &rbacv1.ClusterRoleBinding{ObjectMeta: meta})
				if tc.lease > 0 {
					harness.Create(t, kubeClient.CoordinationV1().Leases(namespace), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: controllerName}, Spec: coordinationv1.LeaseSpec{
						HolderIdentity: ptr.To("another"), LeaseDurationSeconds: ptr.To(int32(tc.lease.Seconds())), RenewTime: &metav1.MicroTime{Time: time.Now()},
					}})
				}
				var hangs atomic.Bool
				start := time.Now()
				o := &options{holdPermissions: true, leaderElect: true, leaderElectNamespace: namespace, leaderElectIdentity: "this"}
				stop, ended := startedProgram(t.Context(), t, server, o, func(request *http.Request) (*http.Response, error) {
					switch {
					case hangs.Load():
						<-request.Context().Done()
						return nil, request.Context().Err()
					case path.Base(request.URL.Path) == "selfsubjectreviews":
						response := fakeserver.AnswerAsProxy(request, http.StatusCreated)
						response.Header.Set("Content-Type", "application/json")
						response.Body = io.NopCloser(strings.NewReader(`{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":"system:serviceaccount:cnat-system:cnat-controller"}}}`))
						return response, nil
					case tc.answer != 0 && request.URL.Query().Get("limit") == "1":
						return fakeserver.AnswerAsProxy(request, tc.answer), nil
					case request.Method == http.MethodPatch: // The server is locked while it reads.
						body, err := io.ReadAll(request.Body)
						request.Body = io.NopCloser(bytes.NewReader(body))
						return nil, err
					}
					return nil, nil
				})
				time.Sleep(3 * time.Second)
				if tc.deleted {
					harness.Delete(t, accounts, controllerName)
					harness.Delete(t, rbac.ClusterRoleBindings(), controllerName)
				}
				hangs.Store(tc.hangs)
				stop()
				if err := <-ended; err != nil {
					t.Errorf("it ended with %v", err)
				}
				if took := time.Since(start); took > tc.took {
					t.Errorf("it ended after %v, want %v at most", took, tc.took)
				}
				if kept := len(harness.Get(t, rbac.Roles(namespace), controllerName).Finalizers) > 0; kept != tc.kept {
					t.Errorf("the role has its finalizer: %v, want %v", kept, tc.kept)
				}
				gone := tc.deleted && !tc.kept
				if _, err := accounts.Get(t.Context(), controllerName, metav1.GetOptions{}); apierrors.IsNotFound(err) != gone {
					t.Errorf("the service account is gone: %v, want %v", err, gone)
				}
			})
		})
	}
}
