//go:build integration || e2e

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

// Package integration tests the controller's binary against the real API server
// that $KUBECONFIG names. With the tag integration it plays the kubelet, so the
// cluster must have no node; with the tag e2e real containers run, so it must
// have one. hack/test.sh starts both kinds.
package integration

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/steps/workload"
)

const (
	root            = "../.." // of the repository
	crd             = root + "/artifacts/examples/cnat-crd.yaml"
	deploy          = root + "/artifacts/deploy"
	restarts        = root + "/artifacts/restarts"
	systemNamespace = "cnat-system"
	// patience is the limit for anything that must happen: on a slow machine, a rehearsal finds
	// the cause only the second time, ten minutes later. A test that fails says what is missing; one
	// that waits for a minute, what it waits for.
	patience = 12 * time.Minute
)

var (
	kubeClient    kubernetes.Interface
	cnatClient    clientset.Interface
	dynamicClient dynamic.Interface
	programs      string // folder of the programs that these tests have built

	// installs means that the test of this process installs cnat itself.
	installs bool

	// controllerConfig is the kubeconfig of the controllers, which beforeAll may create in dir. beforeAll also
	// builds the programs; afterAll checks what the controllers have done.
	controllerConfig = os.Getenv("KUBECONFIG")
	beforeAll        func(dir string) error
	afterAll         = func() error { return nil }

	// sharedLog returns the log of the controller that all tests share, if there is one.
	sharedLog = func() string { return "" }
)

func TestMain(m *testing.M) {
	code, err := setUpAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		code = 1
	}
	os.Exit(code)
}

func setUpAndRun(m *testing.M) (int, error) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return 0, fmt.Errorf("these tests need a cluster, hack/test.sh starts one: %w", err)
	}
	config.QPS = -1
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return retrier{next} })
	// As in the controller: protobuf costs less.
	protobuf := rest.CopyConfig(config)
	protobuf.ContentType = runtime.ContentTypeProtobuf
	protobuf.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	if kubeClient, err = kubernetes.NewForConfig(protobuf); err != nil {
		return 0, err
	}
	if cnatClient, err = clientset.NewForConfig(config); err != nil {
		return 0, err
	}
	if dynamicClient, err = dynamic.NewForConfig(config); err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "cnat-integration-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	// First, because the API server takes some seconds to know it everywhere.
	if !installs {
		if out, err := runKubectl(context.Background(), "", "apply", "-f", crd); err != nil {
			return 0, fmt.Errorf("apply the CRD: %w\n%s", err, out)
		}
	}
	programs = cmp.Or(os.Getenv(programsVariable), dir)
	if installs {
		return m.Run(), nil
	}
	if err := beforeAll(dir); err != nil {
		return 0, err
	}
	if err := poll(context.Background(), "Ats to be served", areServed); err != nil {
		return 0, err
	}
	if err := ownersKnown(controllerConfig); err != nil {
		return 0, err
	}
	before, err := clusterObjects(context.Background())
	if err != nil {
		return 0, err
	}
	if code := m.Run(); code != 0 {
		return code, nil
	}
	if ownCluster {
		return 0, nil // which will be gone
	}
	return 0, errors.Join(nothingLeft(context.Background(), before), afterAll())
}

// ownersKnown waits until the API server allows controllers to create Pods owned by an At,
// up to half a minute after the CRD was installed. config is their kubeconfig.
func ownersKnown(config string) error {
	rest, err := clientcmd.BuildConfigFromFlags("", config)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return err
	}
	probe := newAt(metav1.NamespaceDefault, "probe", time.Now(), "true")
	probe.UID = "probe"
	return poll(context.Background(), "the API server to know the CRD", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Pods(probe.Namespace).Create(ctx, plan.NewPod(probe, plan.Defaults{Image: "busybox:1.37.0"}), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil, nil
	})
}

const (
	// programsVariable names the folder of the programs that another process has built.
	programsVariable = "CNAT_TEST_PROGRAMS"
	// ownClusterVariable names the test for which this process was started.
	ownClusterVariable = "CNAT_TEST_OWN_CLUSTER"
)

// ownCluster reports whether the cluster was started for one test.
var ownCluster = os.Getenv(ownClusterVariable) != ""

// ownClusters has an element for each such cluster that runs, of those that may run at once: six or
// seven with two processors, because they mostly wait.
var ownClusters = sync.OnceValue(func() chan struct{} { return make(chan struct{}, parallel()/2) })

// parallel returns the number of tests that may run at once.
func parallel() int { return flag.Lookup("test.parallel").Value.(flag.Getter).Get().(int) }

// inOwnCluster starts a cluster with the given flags of hack/localcluster, runs this test
// again there, in another process, and returns false when it has ended. In that process, it
// returns true. It is for tests that change what other tests need, such as the CRD, or that slow
// the API server down.
func inOwnCluster(t *testing.T, flags ...string) bool {
	t.Helper()
	if os.Getenv(ownClusterVariable) == t.Name() {
		return true
	}
	args := slices.Concat([]string{"run"}, flags, []string{"--", os.Args[0], "-test.run=^" + t.Name() + "$"})
	flag.Visit(func(f *flag.Flag) {
		if f.Name != "test.run" && f.Name != "test.count" && f.Name != "test.testlogfile" {
			args = append(args, fmt.Sprintf("-%s=%s", f.Name, f.Value))
		}
	})
	cmd := exec.Command("localcluster", args...)
	cmd.Env = append(os.Environ(), programsVariable+"="+programs, ownClusterVariable+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr // where it says what it waits for
	ended := make(chan error, 1)
	go func() {
		ownClusters() <- struct{}{}
		defer func() { <-ownClusters() }()
		ended <- cmd.Run()
	}()
	// These tests take longer than others, so they begin before those that share a cluster. One
	// processor is too slow for both at once. TestInCluster needs that: Kubernetes accepts the deleted
	// token of the controller for a minute only.
	if parallel() > 9 {
		t.Parallel()
	}
	if err := <-ended; err != nil {
		t.Errorf("the test in its own cluster: %v", err)
	}
	t.Logf("%s", &out)
	return false
}

// announce says what a test waits for if stop is not called within a minute.
func announce(what string) (stop func() bool) {
	return time.AfterFunc(time.Minute, func() {
		fmt.Fprintf(os.Stderr, "%s waiting for a minute: %s\n", time.Now().Format(time.TimeOnly), what)
	}).Stop
}

// kubectl runs kubectl with input on its standard input and returns what it prints.
func kubectl(t *testing.T, input string, args ...string) string {
	t.Helper()
	out, err := tryKubectl(t, input, args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// cleanUp runs kubectl at the end of the test.
func cleanUp(t *testing.T, input string, args ...string) {
	t.Helper()
	t.Cleanup(func() {
		if out, err := runKubectl(context.Background(), input, args...); err != nil {
			t.Errorf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	})
}

func tryKubectl(t *testing.T, input string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	defer announce(t.Name() + ": kubectl " + strings.Join(args, " "))()
	return runKubectl(ctx, input, args...)
}

// runKubectl runs kubectl, and again if the API server has crashed.
func runKubectl(ctx context.Context, input string, args ...string) (string, error) {
	var out []byte
	err := wait.PollUntilContextCancel(ctx, retryPeriod, true, func(ctx context.Context) (bool, error) {
		cmd := exec.CommandContext(ctx, "kubectl", args...)
		cmd.Stdin = strings.NewReader(input)
		var err error
		if out, err = cmd.CombinedOutput(); err != nil && bytes.Contains(out, []byte(" was refused - did you specify the right host or port?")) {
			return false, nil
		}
		return true, err
	})
	return string(out), err
}

// retryPeriod is the interval between retries while an API server that has crashed is being
// restarted by hack/localcluster. Rarely, it crashes when a CRD is created: kube-openapi
// lists the OpenAPI document of a new group before it has one
// (OpenAPIService.UpdateGroupVersionLazy in pkg/handler3), and the API server itself reads
// all of them then.
const retryPeriod = 250 * time.Millisecond

// retrier is a transport that sends a request again while the API server refuses connections.
type retrier struct{ next http.RoundTripper }

func (r retrier) RoundTrip(request *http.Request) (*http.Response, error) {
	var response *http.Response
	err := wait.PollUntilContextCancel(request.Context(), retryPeriod, true, func(context.Context) (bool, error) {
		var err error
		if request.GetBody != nil {
			if request.Body, err = request.GetBody(); err != nil {
				return false, err
			}
		}
		if response, err = r.next.RoundTrip(request); utilnet.IsConnectionRefused(err) {
			return false, nil
		}
		return true, err
	})
	return response, err
}

// areServed reports whether the API server serves Ats and CronAts. kubectl wait does not
// suffice: it fails on a CRD whose status has no conditions yet.
func areServed(ctx context.Context) (bool, error) {
	_, err := cnatClient.CnatV1alpha1().Ats(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{Limit: 1})
	if err == nil {
		_, err = cnatClient.CnatV1alpha1().CronAts(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{Limit: 1})
	}
	return err == nil, ignoreNotFound(err)
}

// deleteNamespace deletes a namespace. It does not wait until it is gone, which takes long
// while the controller-manager is busy: nothingLeft does.
func deleteNamespace(ctx context.Context, namespace string) error {
	// The controllers have ended, so the Pods and Ats of unfinished runs would stay forever.
	for _, resource := range []string{"pods", "ats"} {
		found, err := list(ctx, namespace, resource, metav1.ListOptions{})
		if ignoreNotFound(err) != nil {
			return err
		}
		for _, object := range found {
			if len(object.GetFinalizers()) > 0 {
				_, err := clientOf(namespace, resource).Patch(ctx, object.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
				if ignoreNotFound(err) != nil {
					return err
				}
			}
		}
	}
	now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
	return errors.Join(
		kubeClient.CoreV1().Pods(namespace).DeleteCollection(ctx, now, metav1.ListOptions{}),
		ignoreNotFound(kubeClient.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{})))
}

// nothingLeft waits until the namespaces of the tests are gone, and other objects of the cluster that did not exist before. It
// returns an error for those that stay.
func nothingLeft(ctx context.Context, before sets.Set[string]) error {
	var left sets.Set[string]
	err := poll(ctx, "what the tests have made to be gone", func(ctx context.Context) (bool, error) {
		after, err := clusterObjects(ctx)
		left = after.Difference(before)
		return err == nil && len(left) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("%w: there is left %q", err, sets.List(left))
	}
	return nil
}

// clusterObjects returns the objects of the cluster that are in no namespace, except those
// that Kubernetes makes itself at any time.
func clusterObjects(ctx context.Context) (sets.Set[string], error) {
	resources, err := runKubectl(ctx, "", "api-resources", "--namespaced=false", "--verbs=list", "--output=name")
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, resources)
	}
	kinds := sets.New(strings.Fields(resources)...).Delete("componentstatuses", "ipaddresses.networking.k8s.io", "apiservices.apiregistration.k8s.io")
	objects, err := runKubectl(ctx, "", "get", strings.Join(sets.List(kinds), ","), "--output=name")
	return sets.New(strings.Fields(objects)...), err
}

// newNamespace creates a namespace for one test, with its name, in which Pods can be created.
func newNamespace(t *testing.T) string {
	t.Helper()
	test, _, _ := strings.Cut(strings.ToLower(t.Name()), "/")
	ns := create(t, kubeClient.CoreV1().Namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "cnat-" + test + "-"}})
	if !ownCluster { // which will be gone
		// This comes last, when the controllers have ended.
		t.Cleanup(func() {
			if t.Failed() {
				for line := range strings.Lines(sharedLog()) {
					if strings.Contains(line, ns.Name) {
						t.Log(line)
					}
				}
			}
			// The API server deletes many Pods one by one, which may take more than the minute that a
			// request may take.
			err := poll(context.Background(), fmt.Sprintf("%s: namespace %s to be deleted", t.Name(), ns.Name), func(ctx context.Context) (bool, error) {
				err := deleteNamespace(ctx, ns.Name)
				return err == nil, err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	waitObject(t, kubeClient.CoreV1().ServiceAccounts(ns.Name), "default", "to exist", exists)
	return ns.Name
}

// create creates an object.
func create[T any](t *testing.T, objects interface {
	Create(ctx context.Context, object T, options metav1.CreateOptions) (T, error)
}, object T) T {
	t.Helper()
	created, err := objects.Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// waitObject waits until an object exists and satisfies the condition, and returns it.
func waitObject[T any](t *testing.T, objects interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (T, error)
}, name, what string, condition func(T) bool) (object T) {
	t.Helper()
	eventually(t, name+" "+what, func(ctx context.Context) (bool, error) {
		var err error
		object, err = objects.Get(ctx, name, metav1.GetOptions{})
		return err == nil && condition(object), ignoreNotFound(err)
	})
	return object
}

// exists is the condition that any object satisfies.
func exists[T any](T) bool { return true }

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// eventually waits until condition holds, and fails the test if it never does.
func eventually(t *testing.T, what string, condition wait.ConditionWithContextFunc) {
	t.Helper()
	if err := poll(t.Context(), t.Name()+": "+what, condition); err != nil {
		t.Fatal(err)
	}
}

// poll waits until condition holds. It checks less and less often, because many tests
// wait at the same time and share the processors. It continues after errors of a busy API
// server or, with code 500, kubelet.
func poll(ctx context.Context, what string, condition wait.ConditionWithContextFunc) error {
	defer announce(what)()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	backoff := wait.Backoff{Duration: 10 * time.Millisecond, Factor: 1.5, Steps: 100, Cap: 250 * time.Millisecond}
	var last error
	err := backoff.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		var done bool
		if done, last = condition(ctx); last != nil && !answer.IsTransient(last) && !apierrors.IsInternalError(last) {
			return false, last
		}
		return done && last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for %s: %w", what, errors.Join(err, last))
	}
	return nil
}

// waitAllowed waits until the API server authorizes the user.
func waitAllowed(t *testing.T, user string, what authorizationv1.ResourceAttributes) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s to be allowed to %s %s", user, what.Verb, what.Resource), func(ctx context.Context) (bool, error) {
		return isAllowed(ctx, user, what)
	})
}

func isAllowed(ctx context.Context, user string, what authorizationv1.ResourceAttributes) (bool, error) {
	review, err := kubeClient.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &what},
	}, metav1.CreateOptions{})
	return err == nil && review.Status.Allowed, err
}

// patchAt edits an At like a user.
func patchAt(t *testing.T, namespace, name, patch string) {
	t.Helper()
	if _, err := cnatClient.CnatV1alpha1().Ats(namespace).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// runNow makes an At due.
func runNow(t *testing.T, namespace, name string) {
	t.Helper()
	patchAt(t, namespace, name, `{"spec":{"schedule":"`+time.Now().UTC().Format(time.RFC3339)+`"}}`)
}

// waitGone waits until objects of a namespace are gone: all of a resource, such as pods, those with a label
// ("pods -l LABEL"), or one by its name ("pods/NAME").
func waitGone(t *testing.T, namespace string, objects ...string) {
	t.Helper()
	for _, object := range objects {
		resource, label, _ := strings.Cut(object, " -l ")
		which := metav1.ListOptions{LabelSelector: label}
		resource, name, isOne := strings.Cut(resource, "/")
		if isOne {
			which.FieldSelector = "metadata.name=" + name
		}
		eventually(t, object+" to be gone", func(ctx context.Context) (bool, error) {
			list, err := list(ctx, namespace, resource, which)
			return err == nil && len(list) == 0, err
		})
	}
}

// clientOf returns a client for Pods, or for objects of cnat.
func clientOf(namespace, resource string) dynamic.ResourceInterface {
	group := v1alpha1.SchemeGroupVersion
	if resource == "pods" {
		group = corev1.SchemeGroupVersion
	}
	return dynamicClient.Resource(group.WithResource(resource)).Namespace(namespace)
}

func list(ctx context.Context, namespace, resource string, which metav1.ListOptions) ([]unstructured.Unstructured, error) {
	list, err := clientOf(namespace, resource).List(ctx, which)
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func newAt(namespace, name string, schedule time.Time, command string) *v1alpha1.At {
	return &v1alpha1.At{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1alpha1.AtSpec{Schedule: schedule.UTC().Format(time.RFC3339Nano), RunSpec: v1alpha1.RunSpec{Command: command}},
	}
}

// newRestart returns a due At named at that restarts the workload named web.
func newRestart(namespace string, kind v1alpha1.RestartKind) *v1alpha1.At {
	at := newAt(namespace, "at", time.Now(), "")
	at.Spec.Restart = &v1alpha1.AtRestart{Kind: kind, Name: "web"}
	return at
}

func createAt(t *testing.T, at *v1alpha1.At) *v1alpha1.At {
	t.Helper()
	return create(t, cnatClient.CnatV1alpha1().Ats(at.Namespace), at)
}

// newCronAt returns a CronAt named cronat.
func newCronAt(namespace, schedule string) *v1alpha1.CronAt {
	return &v1alpha1.CronAt{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "cronat"},
		Spec:       v1alpha1.CronAtSpec{Schedule: schedule, AtTemplate: v1alpha1.AtTemplateSpec{Spec: v1alpha1.RunSpec{Command: "true"}}},
	}
}

func createCronAt(t *testing.T, cronAt *v1alpha1.CronAt) {
	t.Helper()
	create(t, cnatClient.CnatV1alpha1().CronAts(cronAt.Namespace), cronAt)
}

// waitCollector waits until the garbage collector knows the Ats. Up to a minute after the CRD was installed, it does not: then it
// never deletes their Pods if the CRD is deleted, and it deletes what should lose its owner.
func waitCollector(t *testing.T, namespace string) {
	t.Helper()
	createAt(t, newAt(namespace, "probe", time.Now().Add(time.Hour), "true"))
	kubectl(t, "", "delete", "-n", namespace, "at/probe", "--cascade=foreground", "--timeout="+patience.String()) // Only the garbage collector ends that.
}

// waitAt waits until the At satisfies the condition, and returns it.
func waitAt(t *testing.T, namespace, name, what string, condition func(*v1alpha1.At) bool) *v1alpha1.At {
	t.Helper()
	return waitObject(t, cnatClient.CnatV1alpha1().Ats(namespace), name, what, condition)
}

func waitPod(t *testing.T, namespace, name string) *corev1.Pod {
	t.Helper()
	return waitObject(t, kubeClient.CoreV1().Pods(namespace), name, "to exist", exists)
}

// waitRollout waits until the rollout of an object in a namespace is complete according to kubectl.
func waitRollout(t *testing.T, namespace, object string) {
	t.Helper()
	kubectl(t, "", "rollout", "status", "-n", namespace, "--timeout="+patience.String(), object)
}

func waitPhase(t *testing.T, namespace, name string, phase v1alpha1.AtPhase) *v1alpha1.At {
	t.Helper()
	return waitAt(t, namespace, name, "to be "+string(phase), func(at *v1alpha1.At) bool { return at.Status.Phase == phase })
}

// waitBlocked is waitBlockedAt for the At named at.
func waitBlocked(t *testing.T, namespace, reason string) metav1.Condition {
	t.Helper()
	return waitBlockedAt(t, namespace, "at", reason)
}

// waitBlockedAt waits until an At is blocked for the given reason, and returns the condition.
// The reason and the message of the status must be the same.
func waitBlockedAt(t *testing.T, namespace, name, reason string) metav1.Condition {
	t.Helper()
	var blocked metav1.Condition
	at := waitAt(t, namespace, name, "to be blocked: "+reason, func(at *v1alpha1.At) bool {
		condition := meta.FindStatusCondition(at.Status.Conditions, v1alpha1.ConditionBlocked)
		blocked = ptr.Deref(condition, metav1.Condition{})
		return blocked.Status == metav1.ConditionTrue && blocked.Reason == reason
	})
	if at.Status.Reason != blocked.Reason || at.Status.Message != blocked.Message {
		t.Errorf("status %s: %q, condition Blocked %s: %q; want the same", at.Status.Reason, at.Status.Message, blocked.Reason, blocked.Message)
	}
	return blocked
}

// wantEnd checks the status of an At that is DONE.
func wantEnd(t *testing.T, at *v1alpha1.At, condition, reason string) {
	t.Helper()
	got := meta.FindStatusCondition(at.Status.Conditions, condition)
	if got == nil || got.Status != metav1.ConditionTrue || got.Reason != reason || at.Status.Reason != reason {
		t.Errorf("reason %s and conditions %+v, want %s/%s", at.Status.Reason, at.Status.Conditions, condition, reason)
	}
	for _, other := range []string{v1alpha1.ConditionComplete, v1alpha1.ConditionFailed} {
		if other != condition && meta.IsStatusConditionTrue(at.Status.Conditions, other) {
			t.Errorf("it is both %s and %s", condition, other)
		}
	}
	if at.Status.CompletionTime == nil || at.Status.StartTime == nil {
		t.Errorf("start %v, completion %v: want both", at.Status.StartTime, at.Status.CompletionTime)
	}
}

// slowReasons are the reasons that a Pod may have for a while on a slow machine, although nothing is wrong
// with it.
var slowReasons = []string{v1alpha1.ReasonUnschedulable, v1alpha1.ReasonVolumeNotMounted, v1alpha1.ReasonSandboxNotCreated, v1alpha1.ReasonPodPending}

// moreSlowEvents is how many more events of a slow reason are accepted. With half a processor, two
// more were seen. An event that is repeated with each retry is soon beyond.
const moreSlowEvents = 5

// waitEvents waits until an object has the expected number of events for each reason. A slow node or
// scheduler lets a Pod wait: a few more events may have such a reason. If
// there are too many, it does not wait for them to disappear.
func waitEvents(t *testing.T, object metav1.Object, want map[string]int32) {
	t.Helper()
	got := map[string]int32{}
	err := poll(t.Context(), fmt.Sprintf("%s: the events %v", t.Name(), want), func(ctx context.Context) (bool, error) {
		events, err := kubeClient.CoreV1().Events(object.GetNamespace()).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(object.GetUID())})
		if err != nil {
			return false, err
		}
		clear(got)
		for _, event := range events.Items {
			got[event.Reason] += event.Count
		}
		for _, reason := range slowReasons {
			if more := got[reason] - want[reason]; more > 0 && more <= moreSlowEvents {
				got[reason] = want[reason]
			}
		}
		maps.DeleteFunc(got, func(_ string, number int32) bool { return number == 0 })
		for reason, number := range got {
			if number > want[reason] {
				return true, nil
			}
		}
		return maps.Equal(got, want), nil
	})
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("events: got %v, want %v: %v", got, want, err)
	}
}

// request is a request that the API server has logged.
type request struct {
	Verb                     string
	RequestURI               string
	UserAgent                string
	User                     struct{ Username string }
	RequestReceivedTimestamp metav1.MicroTime
	ObjectRef                *struct{ APIGroup, Resource, Subresource, Namespace, Name string }
	ResponseStatus           struct{ Code int }
}

// resource returns the resource of the request ("pods", "ats/status"), or "" if there is
// none.
func (r *request) resource() string {
	if r.ObjectRef == nil {
		return ""
	}
	return strings.TrimSuffix(r.ObjectRef.Resource+"/"+r.ObjectRef.Subresource, "/")
}

// audit is the part of the API server's audit log that has been read: the requests of
// controllers.
var audit struct {
	lock     sync.Mutex
	read     int64 // bytes
	requests []request
}

// auditLog returns the requests of controllers that the API server has logged.
func auditLog() ([]request, error) {
	audit.lock.Lock()
	defer audit.lock.Unlock()
	file, err := os.Open(filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), "audit.log"))
	if err != nil {
		return nil, fmt.Errorf("these tests need the audit log that hack/localcluster keeps: %w", err)
	}
	defer file.Close()
	if _, err := file.Seek(audit.read, io.SeekStart); err != nil {
		return nil, err
	}
	reader := bufio.NewReaderSize(file, 1<<20)
	for {
		line, err := reader.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return audit.requests, nil // The last line may be incomplete.
		}
		if err != nil {
			return nil, err
		}
		audit.read += int64(len(line))
		// A killed API server may leave an incomplete line.
		line = line[max(0, bytes.LastIndex(line, []byte(`{"kind":"Event","apiVersion":"audit.k8s.io/`))):]
		if !bytes.Contains(line, []byte("cnat-controller")) {
			continue
		}
		var r request
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, err
		}
		audit.requests = append(audit.requests, r)
	}
}

// requests returns the controller's requests on a resource in a namespace that succeeded,
// except those of preflights and rehearsals. On a slow machine, others may precede them: a watch that
// lags, or a response that comes too late, makes the controller send a request again,
// which the API server refuses.
func requests(t *testing.T, namespace, verb, resource string) []request {
	t.Helper()
	return slices.DeleteFunc(requestsOf(t, namespace, verb, resource), func(r request) bool {
		return isPreflight(r.RequestURI) || isRehearsal(r.ObjectRef.Name) || r.ResponseStatus.Code >= http.StatusBadRequest
	})
}

// isPreflight reports whether the request with the given URI changes nothing.
func isPreflight(uri string) bool { return strings.Contains(uri, "dryRun=All") }

// isRehearsal reports whether a Pod has the name of one that rehearses.
func isRehearsal(pod string) bool { return strings.HasSuffix(pod, "-rehearsal") }

// requestsOf returns all of the controller's requests on a resource in a namespace.
func requestsOf(t *testing.T, namespace, verb, resource string) []request {
	t.Helper()
	all, err := auditLog()
	if err != nil {
		t.Fatal(err)
	}
	var found []request
	for i := range all {
		if r := &all[i]; r.Verb == verb && r.resource() == resource && r.ObjectRef.Namespace == namespace && strings.HasPrefix(r.UserAgent, "cnat-controller") {
			found = append(found, *r)
		}
	}
	return found
}

// creations returns the creations of Pods or Ats by the controller in a namespace, in their order.
func creations(t *testing.T, namespace, resource string) []request {
	t.Helper()
	creates := requests(t, namespace, "create", resource)
	// On a slow machine, the API server may create an object, but answer that it has timed out.
	all := requestsOf(t, namespace, "create", resource)
	for _, r := range all {
		isCounted := slices.ContainsFunc(creates, func(create request) bool { return create.ObjectRef.Name == r.ObjectRef.Name })
		if r.ResponseStatus.Code != http.StatusGatewayTimeout || isPreflight(r.RequestURI) || isRehearsal(r.ObjectRef.Name) || isCounted {
			continue
		}
		// It exists, or it did when its creation was retried.
		existed := slices.ContainsFunc(all, func(retry request) bool {
			return retry.ObjectRef.Name == r.ObjectRef.Name && retry.ResponseStatus.Code == http.StatusConflict
		})
		if found, err := list(t.Context(), namespace, resource, metav1.ListOptions{FieldSelector: "metadata.name=" + r.ObjectRef.Name}); existed || err == nil && len(found) > 0 {
			creates = append(creates, r)
		}
	}
	slices.SortStableFunc(creates, func(a, b request) int {
		return a.RequestReceivedTimestamp.Compare(b.RequestReceivedTimestamp.Time)
	})
	return creates
}

// wantCreated checks which Pods or Ats the controller has created in a namespace, each once. It waits,
// because the log is written after the response.
func wantCreated(t *testing.T, namespace, resource string, want ...string) {
	t.Helper()
	var got []string
	eventually(t, fmt.Sprintf("the creations of %q", want), func(context.Context) (bool, error) {
		got = nil
		for _, r := range creations(t, namespace, resource) {
			got = append(got, r.ObjectRef.Name)
		}
		return len(got) >= len(want), nil
	})
	slices.Sort(got)
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("the controller created %s %q, want %q", resource, got, want)
	}
}

var (
	rolledOut     = regexp.MustCompile(`successfully rolled out|roll out complete|rolling update complete`)
	rolloutFailed = regexp.MustCompile(`exceeded its progress deadline`)
)

// wantVerdict checks that the controller and kubectl rollout status agree on the rollout
// of the workload named web, and returns kubectl's output.
func wantVerdict(t *testing.T, namespace string, kind v1alpha1.RestartKind) string {
	t.Helper()
	var said string
	restart := &v1alpha1.AtRestart{Kind: kind, Name: "web"}
	eventually(t, "a verdict of kubectl on what the controller reads", func(ctx context.Context) (bool, error) {
		target, err := workload.Get(ctx, kubeClient.AppsV1(), namespace, restart)
		if err != nil {
			return false, err
		}
		said, _ = tryKubectl(t, "", "rollout", "status", "--watch=false", "-n", namespace, string(kind)+"/web")
		after, err := workload.Get(ctx, kubeClient.AppsV1(), namespace, restart)
		if err != nil || after.ResourceVersion != target.ResourceVersion {
			return false, err
		}
		if target.Complete != rolledOut.MatchString(said) || target.Failed != rolloutFailed.MatchString(said) {
			t.Errorf("complete %v, failed %v (%s); kubectl says: %s", target.Complete, target.Failed, target.Progress(), said)
		}
		return true, nil
	})
	return strings.TrimSpace(said)
}

// wantOutput checks that the output of a command matches each of the patterns.
func wantOutput(t *testing.T, got string, want ...string) {
	t.Helper()
	for _, pattern := range want {
		if !regexp.MustCompile(pattern).MatchString(got) {
			t.Errorf("got:\n%s\nwant: %s", got, pattern)
		}
	}
}

// decode returns the objects of manifests.
func decode[T any](manifests string) (objects []T, err error) {
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifests), 4096)
	for {
		var object T
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
}

// get returns the status and the body of a response. It does not verify certificates.
func get(t *testing.T, url, token string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

// getSecure is get for metrics that need a token, which a busy API server may not check in time.
func getSecure(t *testing.T, url, token string) (status int, body string) {
	t.Helper()
	eventually(t, "the API server to check the token", func(context.Context) (bool, error) {
		status, body = get(t, url, token)
		return status != http.StatusInternalServerError, nil
	})
	return status, body
}
