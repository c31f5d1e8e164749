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
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// TestStartFails starts the controller in ways that must fail: it must exit and print one
// line that says what to do.
func TestStartFails(t *testing.T) {
	t.Parallel()
	// Some checks only run where the CRD is installed.
	taken := takePort(t, "127.0.0.1:0")
	for name, tc := range map[string]struct {
		env  []string
		args []string
		want string
	}{
		"wrong path":         {args: []string{"-kubeconfig=/nowhere/config"}, want: "cnat-controller: load the kubeconfig: stat /nowhere/config: no such file or directory; check -kubeconfig and $KUBECONFIG\n"},
		"wrong path in env":  {env: []string{"KUBECONFIG=/nowhere/config"}, want: "cnat-controller: $KUBECONFIG names /nowhere/config, which does not exist: correct or unset it\n"},
		"nothing configured": {env: []string{"KUBECONFIG=", "HOME=/nowhere"}, want: "no API server is configured: pass -kubeconfig"},
		"unreachable server": {args: []string{"-master=https://127.0.0.1:1"}, want: "cnat-controller: cannot reach the API server at https://127.0.0.1:1: "},
		"wrong token": {
			args: []string{"-kubeconfig=" + adminConfig(t, func(admin *clientcmdapi.AuthInfo) { *admin = clientcmdapi.AuthInfo{Token: "wrong"} })},
			want: "does not know the controller's credentials: Unauthorized; check -kubeconfig\n",
		},
		"no permission": {
			args: []string{"-kubeconfig=" + adminConfig(t, func(admin *clientcmdapi.AuthInfo) { admin.Impersonate = "nobody" })},
			want: "refuses the controller: ats.cnat.programming-kubernetes.info is forbidden",
		},
		"argument":                     {args: []string{"run"}, want: `cnat-controller: unexpected argument "run": all options are flags, see -help` + "\n"},
		"no workers":                   {args: []string{"-workers=0"}, want: "cnat-controller: -workers is 0: it must be at least 1\n"},
		"negative namespaces":          {args: []string{"-metrics-namespaces=-1"}, want: "cnat-controller: -metrics-namespaces is -1: it must not be negative; 0 counts all namespaces together\n"},
		"certificate without key":      {args: []string{"-tls-cert-file=tls.crt"}, want: "cnat-controller: -tls-cert-file and -tls-private-key-file belong together: set both\n"},
		"certificate for nothing":      {args: []string{"-tls-cert-file=tls.crt", "-tls-private-key-file=tls.key"}, want: "cnat-controller: -tls-cert-file needs -metrics-secure: set both\n"},
		"no address for the health":    {args: []string{"-health-probe-bind-address=8081"}, want: "missing port in address; see -health-probe-bind-address\n"},
		"no address for the metrics":   {args: []string{"-metrics-bind-address=8080"}, want: "missing port in address; see -metrics-bind-address\n"},
		"taken address of the health":  {args: []string{"-health-probe-bind-address=" + taken}, want: "address already in use; see -health-probe-bind-address\n"},
		"taken address of the metrics": {args: []string{"-metrics-bind-address=" + taken}, want: "address already in use; see -metrics-bind-address\n"},
		"negative rate of dry-runs":    {args: []string{"-preflight-qps=-1"}, want: "cnat-controller: -preflight-qps is -1: it must not be negative; 0 turns preflights off\n"},
		"unknown format of the log":    {args: []string{"-logging-format=xml"}, want: "cnat-controller: -logging-format is \"xml\": it must be text or json\n"},
		"limit without a quantity":     {args: []string{"-default-limits=memory"}, want: "cnat-controller: -default-limits is \"memory\": \"memory\" is not a quantity of cpu, memory or ephemeral-storage; write for example cpu=10m,memory=16Mi\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, binary, append([]string{"-metrics-bind-address=127.0.0.1:0", "-health-probe-bind-address=127.0.0.1:0"}, tc.args...)...)
			cmd.Env = append(os.Environ(), tc.env...)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("ended with %v, want exit code 1", err)
			}
			// The log may name the API server first.
			said := regexp.MustCompile(`(?m)^I\d{4} .*\n`).ReplaceAllString(string(out), "")
			if !strings.Contains(said, tc.want) || strings.Count(said, "\n") != 1 {
				t.Errorf("it says:\n%swant one line:\n%s", out, tc.want)
			}
		})
	}
}

// TestDefaultAddressesTaken starts the controller while its default addresses are in use:
// it must work without them.
func TestDefaultAddressesTaken(t *testing.T) {
	t.Parallel()
	takePort(t, "127.0.0.1:9383")
	takePort(t, "127.0.0.1:9384")
	namespace := newNamespace(t)
	c := startWith(t, namespace)
	waitLog(t, c, "to serve it, set -health-probe-bind-address")
	waitLog(t, c, "to serve it, set -metrics-bind-address")
	createAt(t, newAt(namespace, "at", time.Now(), "true"))
	waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
}

// takePort listens on a port until the end of the test, unless it is in use. It returns
// the address.
func takePort(t *testing.T, address string) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return address
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

// TestPermissionComesLate starts the controller before it is granted anything.
func TestPermissionComesLate(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	c := startController(t, namespace, "-leader-elect", "-leader-elect-resource-namespace="+namespace,
		"-kubeconfig="+adminConfig(t, func(admin *clientcmdapi.AuthInfo) { admin.Impersonate = namespace }))
	waitLog(t, c, "Ats cannot be listed, and do not run until they can")
	_, err := kubeClient.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "late"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: namespace}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	createAt(t, newAt(namespace, "at", time.Now(), "true"))
	waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
}

// TestStartup starts the controller while the CRD is missing, is created later, or has an
// older version.
func TestStartup(t *testing.T) {
	if !inOwnCluster(t) {
		return
	}
	t.Run("missing CRD", func(t *testing.T) {
		kubectl(t, "", "delete", "--ignore-not-found", "-f", crd)
		namespace := newNamespace(t)
		c := startController(t, namespace)
		waitLog(t, c, "kubectl apply -f artifacts/examples/cnat-crd.yaml")
		applyCRD(t)
		createAt(t, newAt(namespace, "at", time.Now(), "true"))
		waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
	})

	// The CRD and the permissions of a version without CronAts: Ats run, and CronAts run
	// once both are applied.
	t.Run("no CronAts yet", func(t *testing.T) {
		content, err := os.ReadFile(crd)
		if err != nil {
			t.Fatal(err)
		}
		ofAts, _, _ := strings.Cut(strings.TrimPrefix(string(content), "---\n"), "\n---\n")
		kubectl(t, "", "delete", "--ignore-not-found", "-f", crd)
		kubectl(t, ofAts, "apply", "-f", "-")
		namespace := newNamespace(t)
		clusterRole, _, err := readRBAC(deploy + "/rbac.yaml")
		if err != nil {
			t.Fatal(err)
		}
		user := bindRole(t, namespace, "earlier", slices.DeleteFunc(slices.Clone(clusterRole.Rules), func(rule rbacv1.PolicyRule) bool {
			return slices.ContainsFunc(rule.Resources, func(resource string) bool { return resource == "cronats" || resource == "cronats/status" })
		}))
		config := filepath.Join(t.TempDir(), "config")
		if err := writeConfig(config, namespace, "earlier"); err != nil {
			t.Fatal(err)
		}
		waitAllowed(t, user, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "create", Resource: "pods"})
		c := startController(t, namespace, "-kubeconfig="+config)
		waitLog(t, c, "CronAts cannot be listed, and do not run until they can: apply artifacts/examples/cnat-crd.yaml and the permissions that come with it")
		createAt(t, newAt(namespace, "at", time.Now(), "true"))
		waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)

		applyCRD(t)
		createDue(t, newCronAt(namespace, ""))
		role, err := kubeClient.RbacV1().Roles(namespace).Get(t.Context(), "earlier", metav1.GetOptions{})
		if err == nil {
			role.Rules = clusterRole.Rules
			_, err = kubeClient.RbacV1().Roles(namespace).Update(t.Context(), role, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		waitCronAt(t, namespace, "to run", func(cronAt *v1alpha1.CronAt) bool { return cronAt.Status.Active > 0 })
		createAt(t, newAt(namespace, "another", time.Now(), "true"))
		waitPhase(t, namespace, "another", v1alpha1.PhaseRunning)
		// Without a controller, the finalizers of its Ats would keep the CRD from being
		// deleted.
		kubectl(t, "", "delete", "cronat/cronat", "-n", namespace)
		waitAts(t, namespace, 2)
	})

	// An At and a CronAt that were stored before the CRD had its validation rules.
	t.Run("invalid schedule", func(t *testing.T) {
		content, err := os.ReadFile(crd)
		if err != nil {
			t.Fatal(err)
		}
		kubectl(t, "", "delete", "--ignore-not-found", "-f", crd)
		kubectl(t, strings.NewReplacer("rule: self.matches('^[0-9]{4}-", "rule: true || self.matches('^[0-9]{4}-", "rule: self.findAll(", "rule: true || self.findAll(").Replace(string(content)), "apply", "-f", "-")
		eventually(t, "Ats to be served", areServed)
		namespace := newNamespace(t)
		at := newAt(namespace, "at", time.Now(), "true")
		at.Spec.Schedule = "tomorrow"
		eventually(t, "the API server to take the weaker rules", func(context.Context) (bool, error) {
			created, err := cnatClient.CnatV1alpha1().Ats(namespace).Create(t.Context(), at, metav1.CreateOptions{})
			if err == nil {
				at = created
			}
			return err == nil, ignoreInvalid(err)
		})
		createCronAt(t, newCronAt(namespace, "*-5 * * * *"))
		applyCRD(t)
		eventually(t, "the API server to take the rules", func(context.Context) (bool, error) {
			_, err := cnatClient.CnatV1alpha1().CronAts(namespace).Create(t.Context(), newCronAt(namespace, "60 * * * *"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return apierrors.IsInvalid(err), nil
		})
		startController(t, namespace)
		waitBlocked(t, namespace, v1alpha1.ReasonInvalidSchedule)
		cronAt := waitCronAt(t, namespace, "to be blocked", func(cronAt *v1alpha1.CronAt) bool { return cronAt.Status.Reason == v1alpha1.ReasonInvalidSchedule })
		wantOutput(t, cronAt.Status.Message, `^spec.schedule "\*-5 \* \* \* \*" is invalid: minute "\*-5": write numbers from 0 to 59`)
		patchCronAt(t, namespace, `{"spec":{"schedule":"* * * * *"}}`)
		waitCronAt(t, namespace, "to run", func(cronAt *v1alpha1.CronAt) bool { return cronAt.Status.Active == 1 && cronAt.Status.Reason == "" })
		update(t, namespace, func(at *v1alpha1.At) { at.Spec.Schedule = time.Now().Add(time.Hour).UTC().Format(time.RFC3339) })
		waitUnblocked(t, namespace)
		update(t, namespace, func(at *v1alpha1.At) { at.Spec.Schedule = time.Now().UTC().Format(time.RFC3339) })
		waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
		waitEvents(t, at, map[string]int32{v1alpha1.ReasonInvalidSchedule: 1, v1alpha1.ReasonSuccessfulCreate: 1})
	})
}

// TestFirstList checks that the first lists are consistent: an API server may answer a list
// that does not have to be with an outdated state.
func TestFirstList(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startBinary(t, binary, []string{"KUBE_FEATURE_WatchListClient=false"}, namespace, "-metrics-bind-address=127.0.0.1:0", "-health-probe-bind-address=127.0.0.1:0")
	createAt(t, newAt(namespace, "at", time.Now(), "true"))
	waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
	lists := requests(t, namespace, "list", "ats")
	if len(lists) < 2 {
		t.Errorf("%d lists, want one of the start and one of the informer", len(lists))
	}
	for _, list := range lists {
		if strings.Contains(list.RequestURI, "resourceVersion=") {
			t.Errorf("a list that need not be of now: %s", list.RequestURI)
		}
	}
}

// TestSchedule checks that an At that has been due since year 1 runs immediately.
func TestSchedule(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	at := createAt(t, newAt(namespace, "at", time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), "true"))
	pod := waitPod(t, namespace, "at-pod")
	if !metav1.IsControlledBy(pod, at) || pod.Labels[v1alpha1.LabelAtUID] != string(at.UID) {
		t.Errorf("the Pod does not belong to the At: owners %v, labels %v", pod.OwnerReferences, pod.Labels)
	}
	at = waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
	if at.Status.StartTime == nil || at.Status.Pod == nil || at.Status.Pod.UID != pod.UID {
		t.Errorf("status says %+v, the Pod's UID is %s", at.Status, pod.UID)
	}

	endPod(t, pod, corev1.PodSucceeded, 0, "")
	at = waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	wantEnd(t, at, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
	waitEvents(t, at, map[string]int32{v1alpha1.ReasonSuccessfulCreate: 1, v1alpha1.ReasonRanAtOnce: 1, v1alpha1.ReasonCompleted: 1})
	if writes := len(creations(t, namespace)) + len(requests(t, namespace, "patch", "ats/status")); writes != 3 {
		t.Errorf("%d writes, want 3: the Pod, RUNNING, DONE", writes)
	}
}

// TestNeverEarly creates many Ats that are due within two seconds, each at its own
// millisecond. It gets from the API server when the creation of each Pod was received.
func TestNeverEarly(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	const number = 50
	first := time.Now().Add(3 * time.Second).Truncate(time.Millisecond)
	due := map[string]time.Time{}
	for i := range number {
		at := newAt(namespace, fmt.Sprintf("at-%d", i), first.Add(time.Duration(i)*41*time.Millisecond), "true")
		if i%2 == 1 {
			at.Spec.Schedule = first.Add(time.Duration(i) * 41 * time.Millisecond).In(time.FixedZone("", -(5*60+30)*60)).Format(time.RFC3339Nano)
		}
		createAt(t, at)
		due[at.Name+"-pod"] = first.Add(time.Duration(i) * 41 * time.Millisecond)
	}
	for name := range due {
		waitPod(t, namespace, name)
	}
	creates := wantCreates(t, namespace, number)
	var latest time.Duration
	for _, create := range creates {
		late := create.RequestReceivedTimestamp.Sub(due[create.ObjectRef.Name])
		if late < 0 {
			t.Errorf("Pod %s was created %v early", create.ObjectRef.Name, -late)
		}
		latest = max(latest, late)
	}
	t.Logf("the latest of %d was %v late", number, latest)
}

// inTime calls do, with a namespace in which a controller runs and a time, until do
// returns before that time: a slow machine needs several tries. It returns the last
// namespace.
func inTime(t *testing.T, do func(namespace string, due time.Time) error) string {
	t.Helper()
	for lead := 3 * time.Second; ; lead *= 2 {
		namespace := newNamespace(t)
		startController(t, namespace)
		due := time.Now().Add(lead).Truncate(time.Millisecond)
		err := do(namespace, due)
		if time.Now().Before(due) {
			if err != nil {
				t.Fatal(err)
			}
			return namespace
		}
	}
}

func TestEditToEarlier(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	createAt(t, newAt(namespace, "at", time.Now().Add(time.Hour), "true"))
	update(t, namespace, func(at *v1alpha1.At) { at.Spec.Schedule = time.Now().UTC().Format(time.RFC3339) })
	waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
}

func TestEditToLater(t *testing.T) {
	t.Parallel()
	var second time.Time
	namespace := inTime(t, func(namespace string, first time.Time) error {
		createAt(t, newAt(namespace, "at", first, "echo first"))
		second = first.Add(3 * time.Second)
		return tryUpdate(t.Context(), namespace, func(at *v1alpha1.At) {
			at.Spec.Schedule = second.UTC().Format(time.RFC3339Nano)
			at.Spec.Command = "echo second"
		})
	})
	pod := waitPod(t, namespace, "at-pod")
	if got := pod.Spec.Containers[0].Command[2]; got != "echo second" {
		t.Errorf("it runs %q, want what was written last", got)
	}
	creates := wantCreates(t, namespace, 1)
	if creates[0].RequestReceivedTimestamp.Before(&metav1.MicroTime{Time: second}) {
		t.Errorf("created %+v, want at %v", creates, second)
	}
}

// TestDeletedWhilePendingNeverRuns uses a second At that is due later to know when the
// time of the first one has passed.
func TestDeletedWhilePendingNeverRuns(t *testing.T) {
	t.Parallel()
	namespace := inTime(t, func(namespace string, due time.Time) error {
		createAt(t, newAt(namespace, "deleted", due, "true"))
		createAt(t, newAt(namespace, "later", due.Add(time.Second), "true"))
		return cnatClient.CnatV1alpha1().Ats(namespace).Delete(t.Context(), "deleted", metav1.DeleteOptions{})
	})
	waitPod(t, namespace, "later-pod")
	wantCreates(t, namespace, 1)
}

func TestRecreated(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	createAt(t, newAt(namespace, "at", time.Now(), "true"))
	first := waitPod(t, namespace, "at-pod")
	endPod(t, first, corev1.PodSucceeded, 0, "")
	waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	deleteAt(t, namespace)
	at := createAt(t, newAt(namespace, "at", time.Now(), "true"))
	started := waitPhase(t, namespace, "at", v1alpha1.PhaseRunning).Status.StartTime
	second := waitPod(t, namespace, "at-pod")
	if second.UID == first.UID || !metav1.IsControlledBy(second, at) {
		t.Errorf("the Pod is %s of %v, want a new one of the new At", second.UID, second.OwnerReferences)
	}
	var slow []string
	// A busy garbage collector may keep the first Pod for long. API times have no fractions of a second.
	if started.Sub(schedule(t, at).Truncate(time.Second)) >= plan.Grace {
		slow = append(slow, v1alpha1.ReasonPodNameConflict)
	}
	waitEvents(t, at, map[string]int32{v1alpha1.ReasonSuccessfulCreate: 1}, slow...)
}

func TestStrangersPod(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	pods := kubeClient.CoreV1().Pods(namespace)
	stranger, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "at-pod", Labels: map[string]string{"app": "stranger"}},
		Spec: corev1.PodSpec{
			SchedulerName: "nobody", // so that no scheduler writes the Pod
			Containers:    []corev1.Container{{Name: "stranger", Image: "stranger"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	endPod(t, stranger, corev1.PodSucceeded, 0, "")
	stranger = waitPod(t, namespace, "at-pod")

	startController(t, namespace)
	at := createAt(t, newAt(namespace, "at", time.Now(), "true"))
	waitBlocked(t, namespace, v1alpha1.ReasonPodNameConflict)
	eventually(t, "three tries", func(context.Context) (bool, error) {
		return len(requestsOf(t, namespace, "create", "pods")) >= 3, nil
	})
	if got := waitPod(t, namespace, "at-pod"); got.ResourceVersion != stranger.ResourceVersion {
		t.Errorf("the stranger's Pod was changed:\n%+v\n%+v", stranger, got)
	}
	if at := waitPhase(t, namespace, "at", v1alpha1.PhasePending); at.Status.Pod != nil {
		t.Errorf("the stranger's Pod was adopted: %+v", at.Status)
	}

	if err := pods.Delete(t.Context(), "at-pod", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
	waitUnblocked(t, namespace)
	waitEvents(t, at, map[string]int32{v1alpha1.ReasonPodNameConflict: 1, v1alpha1.ReasonSuccessfulCreate: 1})
}

func TestQuota(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	admitNoPods(t, namespace)
	startController(t, namespace)
	at := createAt(t, newAt(namespace, "at", time.Now(), "true"))
	refused := waitBlocked(t, namespace, v1alpha1.ReasonPodRefused)
	if want := "exceeded quota"; !strings.Contains(refused.Message, want) {
		t.Errorf("condition Blocked says %q, want the refusal's words: %s", refused.Message, want)
	}
	kubectl(t, "", "delete", "-n", namespace, "quota/quota")
	waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
	waitUnblocked(t, namespace)
	waitEvents(t, at, map[string]int32{v1alpha1.ReasonPodRefused: 1, v1alpha1.ReasonSuccessfulCreate: 1})
}

// TestRestart kills the controller in each phase of a run: the next controller continues
// the run, and the command runs once.
func TestRestart(t *testing.T) {
	t.Parallel()
	for name, killIn := range map[string]func(t *testing.T, c *controller, namespace string, due time.Time){
		"PENDING": func(t *testing.T, c *controller, namespace string, _ time.Time) {
			t.Helper()
			c.kill(t)
		},
		"PENDING, and back when it is overdue": func(t *testing.T, c *controller, namespace string, due time.Time) {
			t.Helper()
			c.kill(t)
			eventually(t, "the At to be due", func(context.Context) (bool, error) { return time.Now().After(due), nil })
		},
		"RUNNING": func(t *testing.T, c *controller, namespace string, _ time.Time) {
			t.Helper()
			waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
			c.kill(t)
		},
		"RUNNING, and back when the Pod has ended": func(t *testing.T, c *controller, namespace string, _ time.Time) {
			t.Helper()
			waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
			c.kill(t)
			endPod(t, waitPod(t, namespace, "at-pod"), corev1.PodSucceeded, 0, "")
		},
		"DONE": func(t *testing.T, c *controller, namespace string, _ time.Time) {
			t.Helper()
			endPod(t, waitPod(t, namespace, "at-pod"), corev1.PodSucceeded, 0, "")
			waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
			c.kill(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			due := time.Now().Add(2 * time.Second)
			createAt(t, newAt(namespace, "at", due, "true"))
			killIn(t, startController(t, namespace), namespace, due)
			startController(t, namespace)

			pod := waitPod(t, namespace, "at-pod")
			if pod.Status.Phase != corev1.PodSucceeded {
				endPod(t, pod, corev1.PodSucceeded, 0, "")
			}
			at := waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
			wantEnd(t, at, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
			wantCreates(t, namespace, 1)
		})
	}
}

// TestPodDeletedWhileAway deletes the Pod while no controller is running: the Pod stays
// until it is counted.
func TestPodDeletedWhileAway(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startAndKill(t, namespace)
	if err := kubeClient.CoreV1().Pods(namespace).Delete(t.Context(), "at-pod", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if pod := waitPod(t, namespace, "at-pod"); pod.DeletionTimestamp == nil {
		t.Error("the Pod is not deleted")
	}
	startController(t, namespace)
	at := waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	wantEnd(t, at, v1alpha1.ConditionFailed, v1alpha1.ReasonPodDeleted)
	waitPodGone(t, namespace)
	waitEvents(t, at, map[string]int32{v1alpha1.ReasonSuccessfulCreate: 1, v1alpha1.ReasonPodDeleted: 1})
	wantCreates(t, namespace, 1)
}

// TestPodAbandoned force-deletes the Pod of a dead node: it stays, and the deletion is
// recognizable as forced. The test of the same name next to the controller covers the end
// of the attempt a minute later.
func TestPodAbandoned(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	nodes := kubeClient.CoreV1().Nodes()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Spec: corev1.NodeSpec{Unschedulable: true}}
	if _, err := nodes.Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nodes.Delete(context.Background(), node.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	at := newAt(namespace, "at", time.Now(), "true")
	at.Spec.BackoffLimit = ptr.To[int32](5)
	createAt(t, at)
	waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
	err := kubeClient.CoreV1().Pods(namespace).Bind(t.Context(), &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: "at-pod"},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node.Name},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// The scheduler may write the status, too.
	kubectl(t, "", "patch", "-n", namespace, "pod/at-pod", "--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Running"}}`)
	kubectl(t, "", "delete", "-n", namespace, "--force", "--grace-period=0", "--wait=false", "pod/at-pod")
	pod := waitPod(t, namespace, "at-pod")
	if pod.DeletionTimestamp == nil || pod.DeletionGracePeriodSeconds == nil || *pod.DeletionGracePeriodSeconds != 0 {
		t.Errorf("deleted by force, the Pod has %v, %v", pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds)
	}
	waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
}

// TestPodLost removes the Pod by force, starting with its finalizer, while no controller
// is running.
func TestPodLost(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startAndKill(t, namespace)
	kubectl(t, "", "patch", "-n", namespace, "pod/at-pod", "-p", `{"metadata":{"finalizers":null}}`)
	kubectl(t, "", "delete", "-n", namespace, "pod/at-pod")
	startController(t, namespace)
	at := waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	wantEnd(t, at, v1alpha1.ConditionFailed, v1alpha1.ReasonPodLost)
	waitEvents(t, at, map[string]int32{v1alpha1.ReasonSuccessfulCreate: 1, v1alpha1.ReasonPodLost: 1})
	wantCreates(t, namespace, 1)
}

// startAndKill lets a controller start the At named at, then kills it.
func startAndKill(t *testing.T, namespace string) {
	t.Helper()
	c := startController(t, namespace)
	createAt(t, newAt(namespace, "at", time.Now(), "true"))
	// A killed process may not have written its last events.
	waitEvents(t, waitPhase(t, namespace, "at", v1alpha1.PhaseRunning), map[string]int32{v1alpha1.ReasonSuccessfulCreate: 1})
	c.kill(t)
}

// TestDeletion deletes an At whose Pod has not ended, in all ways, with a controller and
// before one is started: nothing is left behind.
func TestDeletion(t *testing.T) {
	t.Parallel()
	for how, remove := range map[string]func(t *testing.T, namespace string){
		"in background": func(t *testing.T, namespace string) {
			t.Helper()
			kubectl(t, "", "delete", "-n", namespace, "--cascade=background", "--wait=false", "at/at")
		},
		"in foreground": func(t *testing.T, namespace string) {
			t.Helper()
			kubectl(t, "", "delete", "-n", namespace, "--cascade=foreground", "--wait=false", "at/at")
		},
		"leaving the Pod": func(t *testing.T, namespace string) {
			t.Helper()
			kubectl(t, "", "delete", "-n", namespace, "--cascade=orphan", "--wait=false", "at/at")
			waitAtGone(t, namespace)
			// The garbage collector deletes a Pod of which it learns after its owner is gone.
			kubectl(t, "", "delete", "-n", namespace, "--ignore-not-found", "--wait=false", "pod/at-pod")
		},
		"with its namespace": func(t *testing.T, namespace string) {
			t.Helper()
			kubectl(t, "", "delete", "--wait=false", "namespace/"+namespace)
		},
	} {
		for _, away := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, the controller away: %v", how, away), func(t *testing.T) {
				t.Parallel()
				namespace := newNamespace(t)
				c := startController(t, namespace)
				at := newAt(namespace, "at", time.Now(), "true")
				at.Spec.BackoffLimit = ptr.To[int32](5)
				createAt(t, at)
				waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
				if away {
					c.kill(t)
				}
				remove(t, namespace)
				if away {
					eventually(t, "the Pod to be deleted", func(ctx context.Context) (bool, error) {
						pod, err := kubeClient.CoreV1().Pods(namespace).Get(ctx, "at-pod", metav1.GetOptions{})
						return err == nil && pod.DeletionTimestamp != nil, err
					})
					startController(t, namespace)
				}
				waitPodGone(t, namespace)
				waitAtGone(t, namespace)
			})
		}
	}
}

func waitPodGone(t *testing.T, namespace string) {
	t.Helper()
	eventually(t, "the Pod to be gone", func(ctx context.Context) (bool, error) {
		_, err := kubeClient.CoreV1().Pods(namespace).Get(ctx, "at-pod", metav1.GetOptions{})
		return apierrors.IsNotFound(err), ignoreNotFound(err)
	})
}

func waitAtGone(t *testing.T, namespace string) {
	t.Helper()
	eventually(t, "the At to be gone", func(ctx context.Context) (bool, error) {
		_, err := cnatClient.CnatV1alpha1().Ats(namespace).Get(ctx, "at", metav1.GetOptions{})
		return apierrors.IsNotFound(err), ignoreNotFound(err)
	})
}

func TestTimeZone(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	// A zone without daylight-saving time, so that the test works at any hour.
	kolkata, err := time.LoadLocation("Asia/Kolkata")
	if err != nil {
		t.Fatal(err)
	}
	due := time.Now().Add(2 * time.Second).Truncate(time.Second)
	at := newAt(namespace, "at", due, "true")
	at.Spec.Schedule, at.Spec.TimeZone = due.In(kolkata).Format("2006-01-02T15:04:05"), ptr.To("Asia/Kolkata")
	createAt(t, at)
	at = waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
	if !at.Status.ScheduledTime.Time.Equal(due) {
		t.Errorf("status.scheduledTime is %v, want %v", at.Status.ScheduledTime, due)
	}
	if create := wantCreates(t, namespace, 1)[0]; create.RequestReceivedTimestamp.Time.Before(due) {
		t.Errorf("the Pod was created at %v, before %v", create.RequestReceivedTimestamp, due)
	}
}

// TestTimeZoneMistakes makes each mistake that only the controller can find, and corrects
// it.
func TestTimeZoneMistakes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ schedule, timeZone, want string }{
		"skipped":  {"2026-03-29T02:30:00", "Europe/Berlin", "2026-03-29T03:30:00+02:00 or 2026-03-29T01:30:00+01:00"},
		"repeated": {"2026-10-25T02:30:00", "Europe/Berlin", "2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			startController(t, namespace)
			at := newAt(namespace, "at", time.Now(), "true")
			at.Spec.Schedule, at.Spec.TimeZone = tc.schedule, &tc.timeZone
			at = createAt(t, at)
			if got := waitBlocked(t, namespace, v1alpha1.ReasonInvalidSchedule); !strings.Contains(got.Message, tc.want) {
				t.Errorf("condition Blocked says %q, want %q", got.Message, tc.want)
			}
			update(t, namespace, func(at *v1alpha1.At) {
				at.Spec.Schedule, at.Spec.TimeZone = time.Now().UTC().Format(time.RFC3339), nil
			})
			waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
			waitUnblocked(t, namespace)
			waitEvents(t, at, map[string]int32{v1alpha1.ReasonInvalidSchedule: 1, v1alpha1.ReasonSuccessfulCreate: 1})
		})
	}
}

// TestCommand reads the log of the Pod of an At without a template.
func TestCommand(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	createAt(t, newAt(namespace, "at", time.Now(), "echo \"$HOME\" |\n wc -c # 🌍"))
	container := waitPod(t, namespace, "at-pod").Spec.Containers[0]
	if want := []string{"/bin/sh", "-c", "echo \"$$HOME\" |\n wc -c # 🌍"}; !slices.Equal(container.Command, want) || len(container.Args) > 0 {
		t.Errorf("the container runs %q %q, want %q", container.Command, container.Args, want)
	}
}

// TestTemplate compares the Pod with one that a user would create from the same spec, and
// that has the same defaults.
func TestTemplate(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	objects, _ := readGolden(t, filepath.Join(golden, "valid", "template-of-many-fields.yaml"))
	var at v1alpha1.At
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objects[0].Object, &at); err != nil {
		t.Fatal(err)
	}
	_, err := kubeClient.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: at.Spec.Template.Spec.ServiceAccountName},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	at.Name, at.Namespace, at.Spec.Schedule = "at", namespace, time.Now().UTC().Format(time.RFC3339)
	at.Spec.BackoffLimit, at.Spec.Template.Spec.PriorityClassName = ptr.To[int32](1), "" // Without retries, nothing is restarted.
	want := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "at-pod"}, Spec: *at.Spec.Template.Spec.DeepCopy()}
	want.Spec.Containers[0].Command = []string{"/bin/sh", "-c", "test -f /data/clone && ./migrate"}
	want.Spec.InitContainers[0].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	want.Spec.InitContainers[1].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	want, err = kubeClient.CoreV1().Pods(namespace).Create(t.Context(), want, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		t.Fatal(err)
	}
	created := createAt(t, &at)
	got := waitPod(t, namespace, "at-pod")
	if diff := cmp.Diff(want.Spec, got.Spec); diff != "" {
		t.Errorf("spec of the Pod (-want +got):\n%s", diff)
	}
	if got.Labels["app"] != "shop" || got.Labels[v1alpha1.LabelAtUID] != string(created.UID) || got.Annotations["kubectl.kubernetes.io/default-container"] != "migrate" {
		t.Errorf("labels %v, annotations %v; want the template's and the At's", got.Labels, got.Annotations)
	}
}

// TestTemplateIsKept reads a started At with a Go client, and writes it back with another
// field changed.
func TestTemplateIsKept(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	kubectl(t, `{"apiVersion": "cnat.programming-kubernetes.info/v1alpha1", "kind": "At", "metadata": {"name": "at"}, "spec": {
		"schedule": "0001-01-01T00:00:00Z", "template": {"spec": {"containers": [{"name": "main", "image": "image"}], "initContainers": [{"name": "first", "image": "image"}]}}}}`,
		"apply", "-n", namespace, "-f", "-")
	at := waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
	// The controller's cache does not contain them.
	if at.Spec.Template == nil || at.Annotations[corev1.LastAppliedConfigAnnotation] == "" || len(at.ManagedFields) < 2 {
		t.Errorf("something is gone: template %v, annotations %v, managed fields %v", at.Spec.Template, at.Annotations, at.ManagedFields)
	}
	update(t, namespace, func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) })
	waitCondition(t, namespace, v1alpha1.ConditionSuspended, metav1.ConditionTrue, v1alpha1.ReasonSuspended)
}

// TestInvalidPod uses a template with well-formed fields that do not make a valid Pod.
func TestInvalidPod(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	at := newAt(namespace, "at", time.Now(), "")
	at.Spec.BackoffLimit = ptr.To[int32](5)
	at.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "main", Image: "image", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
	}}}}
	createAt(t, at)
	at = waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	if want := `spec.containers[0].volumeMounts[0].name: Not found: "data"`; at.Status.Reason != v1alpha1.ReasonInvalidPod || !strings.Contains(at.Status.Message, want) {
		t.Errorf("reason %s, message %q; want InvalidPod, %s", at.Status.Reason, at.Status.Message, want)
	}
	if created := creations(t, namespace); len(created) > 0 {
		t.Errorf("it was created: %+v", created)
	}
}

// TestBackoffLimit lets the first attempt fail, kills the controller before the second
// attempt, and lets the second attempt succeed.
func TestBackoffLimit(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	c := startController(t, namespace)
	at := newAt(namespace, "at", time.Now(), "true")
	at.Spec.BackoffLimit = ptr.To[int32](1)
	at = createAt(t, at)
	endPod(t, waitPod(t, namespace, "at-pod"), corev1.PodFailed, 3, "no such host")
	at = waitVersion(t, at, "to wait for its second attempt", func(at *v1alpha1.At) bool { return at.Status.NextAttemptTime != nil })
	if at.Status.Phase != v1alpha1.PhaseRunning || at.Status.Failed != 1 || at.Status.ExitCode == nil || *at.Status.ExitCode != 3 || at.Status.Reason != v1alpha1.ReasonBackOff || !strings.Contains(at.Status.Message, "exit code 3. Message: no such host") {
		t.Errorf("status %+v, want RUNNING with what the first attempt left", at.Status)
	}
	next := at.Status.NextAttemptTime.Time
	// A killed process may not have written its last events.
	eventually(t, "the event of the first attempt", func(ctx context.Context) (bool, error) {
		events, err := kubeClient.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + v1alpha1.ReasonCommandFailed})
		return err == nil && len(events.Items) == 1, err
	})
	c.kill(t)
	startController(t, namespace)

	second := waitPod(t, namespace, "at-pod-1")
	at = waitAt(t, namespace, "at", "to run its second attempt", func(at *v1alpha1.At) bool { return at.Status.NextAttemptTime == nil })
	if at.Status.Pod.UID != second.UID || at.Status.ExitCode != nil || at.Status.Message != "" {
		t.Errorf("status %+v, want nothing of the first attempt", at.Status)
	}
	endPod(t, second, corev1.PodSucceeded, 0, "")
	at = waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	wantEnd(t, at, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
	if at.Status.Failed != 1 || *at.Status.ExitCode != 0 {
		t.Errorf("%d failed attempts, exit code %d; want 1 and 0", at.Status.Failed, *at.Status.ExitCode)
	}
	creates := wantCreates(t, namespace, 2)
	if got := creates[1].RequestReceivedTimestamp.Time; got.Before(next) || next.Sub(creates[0].RequestReceivedTimestamp.Time) < 10*time.Second {
		t.Errorf("attempts at %v and %v, announced for %v; want 10 s between", creates[0].RequestReceivedTimestamp, got, next)
	}
	if got := waitPod(t, namespace, "at-pod"); got.DeletionTimestamp != nil {
		t.Error("the Pod of the first attempt is deleted")
	}
	waitEvents(t, at, map[string]int32{v1alpha1.ReasonSuccessfulCreate: 2, v1alpha1.ReasonCommandFailed: 1, v1alpha1.ReasonCompleted: 1})
}

func TestSuspend(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	at := newAt(namespace, "at", time.Now(), "true")
	at.Spec.Suspend = ptr.To(true)
	at = createAt(t, at)
	waitCondition(t, namespace, v1alpha1.ConditionSuspended, metav1.ConditionTrue, v1alpha1.ReasonSuspended)
	// Another At that was created later runs. This one would have run, too.
	createAt(t, newAt(namespace, "later", time.Now(), "true"))
	waitPhase(t, namespace, "later", v1alpha1.PhaseRunning)
	wantCreates(t, namespace, 1)

	update(t, namespace, func(at *v1alpha1.At) { at.Spec.Suspend = nil })
	waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
	waitCondition(t, namespace, v1alpha1.ConditionSuspended, metav1.ConditionFalse, v1alpha1.ReasonResumed)
	waitEvents(t, at, map[string]int32{v1alpha1.ReasonSuspended: 1, v1alpha1.ReasonResumed: 1, v1alpha1.ReasonSuccessfulCreate: 1})

	// Running commands continue.
	update(t, namespace, func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) })
	waitCondition(t, namespace, v1alpha1.ConditionSuspended, metav1.ConditionTrue, v1alpha1.ReasonSuspended)
	endPod(t, waitPod(t, namespace, "at-pod"), corev1.PodSucceeded, 0, "")
	wantEnd(t, waitPhase(t, namespace, "at", v1alpha1.PhaseDone), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
}

// TestStartingDeadlineSeconds has one At that is too late when the controller starts, one
// that is not, and one that is too late when it is resumed.
func TestStartingDeadlineSeconds(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	ago := time.Now().Add(-time.Minute)
	for name, seconds := range map[string]int64{"at": 10, "in-time": 3600, "suspended": 10} {
		at := newAt(namespace, name, ago, "true")
		at.Spec.StartingDeadlineSeconds = &seconds
		at.Spec.Suspend = ptr.To(name == "suspended")
		createAt(t, at)
	}
	startController(t, namespace)
	at := waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	if at.Status.Reason != v1alpha1.ReasonStartingDeadlineExceeded || !meta.IsStatusConditionTrue(at.Status.Conditions, v1alpha1.ConditionFailed) || at.Status.StartTime != nil {
		t.Errorf("status %+v, want Failed/StartingDeadlineExceeded, never started", at.Status)
	}
	waitEvents(t, at, map[string]int32{v1alpha1.ReasonStartingDeadlineExceeded: 1})
	waitPhase(t, namespace, "in-time", v1alpha1.PhaseRunning)

	waitAt(t, namespace, "suspended", "to be suspended", func(at *v1alpha1.At) bool {
		return meta.IsStatusConditionTrue(at.Status.Conditions, v1alpha1.ConditionSuspended) && at.Status.Phase == v1alpha1.PhasePending
	})
	kubectl(t, "", "patch", "-n", namespace, "at/suspended", "--type=merge", "-p", `{"spec":{"suspend":false}}`)
	if at := waitPhase(t, namespace, "suspended", v1alpha1.PhaseDone); at.Status.Reason != v1alpha1.ReasonStartingDeadlineExceeded {
		t.Errorf("reason %s, want StartingDeadlineExceeded", at.Status.Reason)
	}
	wantCreates(t, namespace, 1)
}

func TestTTLSecondsAfterFinished(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	ends := map[string]time.Time{}
	for name, seconds := range map[string]*int32{"zero": ptr.To[int32](0), "ten": ptr.To[int32](10), "at": nil} {
		at := newAt(namespace, name, time.Now(), "true")
		at.Spec.TTLSecondsAfterFinished = seconds
		createAt(t, at)
		pod := waitPod(t, namespace, name+"-pod")
		// Before the controller sees it.
		ends[name] = time.Now()
		endPod(t, pod, corev1.PodSucceeded, 0, "")
	}
	waitGone := func(name string) {
		t.Helper()
		eventually(t, "At "+name+" and its Pod to be gone", func(ctx context.Context) (bool, error) {
			_, err := cnatClient.CnatV1alpha1().Ats(namespace).Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				_, err = kubeClient.CoreV1().Pods(namespace).Get(ctx, name+"-pod", metav1.GetOptions{})
			}
			return apierrors.IsNotFound(err), ignoreNotFound(err)
		})
	}
	waitGone("zero")
	waitGone("ten")
	// Edits after the end count.
	waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	update(t, namespace, func(at *v1alpha1.At) { at.Spec.TTLSecondsAfterFinished = ptr.To[int32](3600) })
	update(t, namespace, func(at *v1alpha1.At) { at.Spec.TTLSecondsAfterFinished = ptr.To[int32](1) })
	waitGone("at")

	deletions := requests(t, namespace, "delete", "ats")
	if len(deletions) != 3 {
		t.Errorf("%d deletions, want 3: %+v", len(deletions), deletions)
	}
	for _, deletion := range deletions {
		// Not before the names of its Pods may be free. The TTL of "at" was set later.
		ttl := map[string]time.Duration{"zero": 9500 * time.Millisecond, "ten": 10 * time.Second}[deletion.ObjectRef.Name]
		// API times have no fractions of a second.
		if after := deletion.RequestReceivedTimestamp.Sub(ends[deletion.ObjectRef.Name]); after < ttl-time.Second {
			t.Errorf("%s was deleted %v after its end, want %v", deletion.ObjectRef.Name, after, ttl)
		}
	}
}

// TestActiveDeadlineSeconds uses a Pod that never gets a node, so that a kubelet's own
// deadline does not apply.
func TestActiveDeadlineSeconds(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	at := newAt(namespace, "at", time.Now(), "true")
	at.Spec.ActiveDeadlineSeconds = ptr.To[int64](2)
	createAt(t, at)
	at = waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	wantEnd(t, at, v1alpha1.ConditionFailed, v1alpha1.ReasonDeadlineExceeded)
	if took := at.Status.CompletionTime.Sub(at.Status.StartTime.Time); took < 2*time.Second {
		t.Errorf("it was stopped after %v, want 2 s", took)
	}
	waitEvents(t, at, map[string]int32{v1alpha1.ReasonSuccessfulCreate: 1, v1alpha1.ReasonDeadlineExceeded: 1})
	wantCreates(t, namespace, 1)
}

// TestStatus follows a run of two attempts, and has a subtest for each field of the
// status.
func TestStatus(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	due := time.Now().Add(3 * time.Second).Truncate(time.Second)
	at := newAt(namespace, "at", due, "true")
	at.Spec.BackoffLimit = ptr.To[int32](1)
	at.Spec.Suspend = ptr.To(true)
	at = createAt(t, at)
	held := waitAt(t, namespace, "at", "to be suspended", func(at *v1alpha1.At) bool {
		return meta.IsStatusConditionTrue(at.Status.Conditions, v1alpha1.ConditionSuspended)
	})
	update(t, namespace, func(at *v1alpha1.At) { at.Spec.Suspend = nil })
	first := waitPod(t, namespace, "at-pod")
	started := waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
	first.Status.HostIP, first.Status.PodIP = "192.0.2.1", "192.0.2.2"
	first.Status.HostIPs, first.Status.PodIPs = []corev1.HostIP{{IP: "192.0.2.1"}}, []corev1.PodIP{{IP: "192.0.2.2"}}
	endPod(t, first, corev1.PodRunning, 0, "")
	mirrored := waitVersion(t, started, "to show that its Pod runs", func(at *v1alpha1.At) bool { return at.Status.Pod.Phase == corev1.PodRunning })
	endPod(t, first, corev1.PodFailed, 3, "no such host")
	between := waitVersion(t, mirrored, "to have failed once", func(at *v1alpha1.At) bool { return at.Status.Failed == 1 })
	if between.Status.NextAttemptTime == nil {
		t.Fatalf("the second attempt was not announced: %+v", between.Status)
	}
	endPod(t, waitPod(t, namespace, "at-pod-1"), corev1.PodFailed, 4, "no such file")
	done := waitPhase(t, namespace, "at", v1alpha1.PhaseDone)

	t.Run("phase", func(t *testing.T) {
		for i, want := range []v1alpha1.AtPhase{v1alpha1.PhasePending, v1alpha1.PhasePending, v1alpha1.PhaseRunning, v1alpha1.PhaseRunning, v1alpha1.PhaseRunning, v1alpha1.PhaseDone} {
			if got := []*v1alpha1.At{at, held, started, mirrored, between, done}[i].Status.Phase; got != want {
				t.Errorf("step %d: %s, want %s", i, got, want)
			}
		}
	})
	t.Run("conditions", func(t *testing.T) {
		wantEnd(t, done, v1alpha1.ConditionFailed, v1alpha1.ReasonCommandFailed)
		for condition, status := range map[string]string{"Suspended": "False", "Failed": "True"} {
			kubectl(t, "", "wait", "-n", namespace, "--for=condition="+condition+"="+status, "--timeout="+patience.String(), "at/at")
		}
		before, after := meta.FindStatusCondition(started.Status.Conditions, "Suspended"), meta.FindStatusCondition(done.Status.Conditions, "Suspended")
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("Suspended has changed without a change of spec.suspend:\n%s", diff)
		}
		if before.ObservedGeneration != 2 {
			t.Errorf("Suspended has generation %d, want 2", before.ObservedGeneration)
		}
	})
	t.Run("reason", func(t *testing.T) {
		if started.Status.Reason != "" || between.Status.Reason != v1alpha1.ReasonBackOff || done.Status.Reason != v1alpha1.ReasonCommandFailed {
			t.Errorf("%q, %q, %q; want none, BackOff, CommandFailed", started.Status.Reason, between.Status.Reason, done.Status.Reason)
		}
	})
	t.Run("scheduledTime, startTime, completionTime", func(t *testing.T) {
		if got := done.Status.ScheduledTime; !got.Time.Equal(due) {
			t.Errorf("scheduledTime %v, want %v", got, due)
		}
		if got := done.Status.StartTime; !got.Equal(&first.CreationTimestamp) {
			t.Errorf("startTime %v, want the creation of the first Pod, %v", got, first.CreationTimestamp)
		}
		if got := done.Status.CompletionTime; between.Status.CompletionTime != nil || got.Sub(first.CreationTimestamp.Time) < 10*time.Second {
			t.Errorf("completionTime %v, then %v; want it after the second attempt", between.Status.CompletionTime, got)
		}
	})
	t.Run("pod", func(t *testing.T) {
		want := &v1alpha1.AtPod{Name: "at-pod", UID: first.UID, AtGeneration: 2, Phase: corev1.PodRunning, HostIP: "192.0.2.1", PodIP: "192.0.2.2", StartTime: mirrored.Status.Pod.StartTime}
		if diff := cmp.Diff(want, mirrored.Status.Pod); diff != "" || want.StartTime == nil {
			t.Errorf("the first attempt (-want +got):\n%s", diff)
		}
		if got := done.Status.Pod; got.Name != "at-pod-1" || got.Phase != corev1.PodFailed {
			t.Errorf("%+v, want the second attempt, failed", got)
		}
	})
	t.Run("failed", func(t *testing.T) {
		if started.Status.Failed != 0 || between.Status.Failed != 1 || done.Status.Failed != 2 {
			t.Errorf("%d, %d, %d; want 0, 1, 2", started.Status.Failed, between.Status.Failed, done.Status.Failed)
		}
	})
	t.Run("lastFailureTime, nextAttemptTime", func(t *testing.T) {
		first, second := between.Status.LastFailureTime, done.Status.LastFailureTime
		if started.Status.LastFailureTime != nil || first == nil || second.Sub(first.Time) < 10*time.Second {
			t.Errorf("lastFailureTime %v, then %v; want them ten seconds apart", first, second)
		}
		if wait := between.Status.NextAttemptTime.Sub(first.Time); wait < 10*time.Second || wait > 12*time.Second || done.Status.NextAttemptTime != nil {
			t.Errorf("nextAttemptTime %v after the failure, then %v; want 10s, none", wait, done.Status.NextAttemptTime)
		}
	})
	t.Run("exitCode, message", func(t *testing.T) {
		for at, want := range map[*v1alpha1.At]string{
			started: "<nil> ",
			between: "3 Attempt 1 of 2 failed, the next is due at " + between.Status.NextAttemptTime.UTC().Format(time.RFC3339) + ": The command ended with exit code 3. Message: no such host",
			done:    "4 no such file",
		} {
			got := fmt.Sprintf("%v %s", at.Status.ExitCode, at.Status.Message)
			if code := at.Status.ExitCode; code != nil {
				got = fmt.Sprintf("%d %s", *code, at.Status.Message)
			}
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
	})
	t.Run("observedGeneration", func(t *testing.T) {
		if at.Status.ObservedGeneration != 0 || held.Status.ObservedGeneration != 1 || done.Status.ObservedGeneration != 2 {
			t.Errorf("%d, %d, %d; want 0, 1, 2", at.Status.ObservedGeneration, held.Status.ObservedGeneration, done.Status.ObservedGeneration)
		}
	})
}

// TestExtremes runs Ats with fields of maximum size.
func TestExtremes(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*v1alpha1.At){
		"numbers": func(at *v1alpha1.At) {
			at.Spec.Schedule = "0001-01-01T00:00:00Z"
			at.Spec.StartingDeadlineSeconds, at.Spec.ActiveDeadlineSeconds = ptr.To[int64](math.MaxInt64), ptr.To[int64](math.MaxInt64)
			at.Spec.BackoffLimit, at.Spec.TTLSecondsAfterFinished = ptr.To[int32](math.MaxInt32), ptr.To[int32](math.MaxInt32)
		},
		"a template of 1 MiB with 200 environment variables": func(at *v1alpha1.At) {
			at.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "image"}}}}
			for i := range 200 {
				at.Spec.Template.Spec.Containers[0].Env = append(at.Spec.Template.Spec.Containers[0].Env,
					corev1.EnvVar{Name: fmt.Sprintf("V%d", i), Value: strings.Repeat("v", 1<<20/200)})
			}
		},
		"a name": func(at *v1alpha1.At) { at.Name = strings.Repeat("a", 253) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			startController(t, namespace)
			at := newAt(namespace, "at", time.Now(), "true")
			edit(at)
			createAt(t, at)
			created := waitPhase(t, namespace, at.Name, v1alpha1.PhaseRunning)
			pod := waitPod(t, namespace, created.Status.Pod.Name)
			if at.Spec.Template != nil {
				if diff := cmp.Diff(at.Spec.Template.Spec.Containers[0].Env, pod.Spec.Containers[0].Env); diff != "" {
					t.Errorf("the environment (-want +got):\n%s", diff)
				}
			}
			endPod(t, pod, corev1.PodSucceeded, 0, "")
			wantEnd(t, waitPhase(t, namespace, at.Name, v1alpha1.PhaseDone), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
		})
	}
}

// TestNames runs Ats with names of maximum length.
func TestNames(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	for _, name := range []string{
		strings.Repeat("a", 59), strings.Repeat("a", 60), strings.Repeat("a", 64),
		strings.Repeat("a", 48) + "." + strings.Repeat("b", 60), strings.Repeat("a.b", 84) + "c",
	} {
		createAt(t, newAt(namespace, name, time.Now(), "true"))
		waitPhase(t, namespace, name, v1alpha1.PhaseRunning)
	}
}

// adminConfig returns the path of a kubeconfig file with an edited user.
func adminConfig(t *testing.T, edit func(*clientcmdapi.AuthInfo)) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		edit(user)
	}
	path := filepath.Join(t.TempDir(), "config")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// kill kills the process, which simulates a crash.
func (c *controller) kill(t *testing.T) {
	t.Helper()
	var exit *exec.ExitError
	if err := c.stop(syscall.SIGKILL); !errors.As(err, &exit) {
		t.Fatalf("killed, it ended with: %v", err)
	}
}

func waitPod(t *testing.T, namespace, name string) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	eventually(t, "Pod "+name, func(ctx context.Context) (bool, error) {
		got, err := kubeClient.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			pod = got
		}
		return err == nil, ignoreNotFound(err)
	})
	return pod
}

// endPod updates a Pod like a kubelet whose container has ended.
func endPod(t *testing.T, pod *corev1.Pod, phase corev1.PodPhase, exitCode int32, message string) {
	t.Helper()
	now := metav1.Now()
	status := pod.Status.DeepCopy()
	status.Phase, status.StartTime, status.ContainerStatuses = phase, &now, exited(pod, exitCode, message)
	patch, err := json.Marshal(map[string]any{"status": status})
	if err == nil {
		_, err = kubeClient.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// exited returns the status of a container that has just ended.
func exited(pod *corev1.Pod, code int32, message string) []corev1.ContainerStatus {
	return []corev1.ContainerStatus{{
		Name: pod.Spec.Containers[0].Name,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: code, Message: message, FinishedAt: metav1.Now(),
		}},
	}}
}

// update edits the At named at like a user.
func update(t *testing.T, namespace string, edit func(*v1alpha1.At)) {
	t.Helper()
	if err := tryUpdate(t.Context(), namespace, edit); err != nil {
		t.Fatal(err)
	}
}

func tryUpdate(ctx context.Context, namespace string, edit func(*v1alpha1.At)) error {
	ats := cnatClient.CnatV1alpha1().Ats(namespace)
	return retry.RetryOnConflict(wait.Backoff{Duration: 10 * time.Millisecond, Steps: 1000}, func() error {
		at, err := ats.Get(ctx, "at", metav1.GetOptions{})
		if err != nil {
			return err
		}
		edit(at)
		_, err = ats.Update(ctx, at, metav1.UpdateOptions{})
		return err
	})
}

// deleteAt deletes the At named at.
func deleteAt(t *testing.T, namespace string) {
	t.Helper()
	if err := cnatClient.CnatV1alpha1().Ats(namespace).Delete(t.Context(), "at", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// waitUnblocked waits until nothing blocks the At named at, and its status has no reason.
func waitUnblocked(t *testing.T, namespace string) {
	t.Helper()
	waitAt(t, namespace, "at", "to be blocked no longer", func(at *v1alpha1.At) bool {
		blocked := meta.FindStatusCondition(at.Status.Conditions, v1alpha1.ConditionBlocked)
		return blocked == nil && at.Status.Reason == "" && at.Status.Message == "" || blocked != nil && slices.Contains(slowReasons, blocked.Reason)
	})
}

// waitCondition waits until the At named at has the condition.
func waitCondition(t *testing.T, namespace, conditionType string, status metav1.ConditionStatus, reason string) {
	t.Helper()
	waitAt(t, namespace, "at", fmt.Sprintf("to be %s=%s/%s", conditionType, status, reason), func(at *v1alpha1.At) bool {
		condition := meta.FindStatusCondition(at.Status.Conditions, conditionType)
		return condition != nil && condition.Status == status && condition.Reason == reason
	})
}

func ignoreInvalid(err error) error {
	if apierrors.IsInvalid(err) {
		return nil
	}
	return err
}
