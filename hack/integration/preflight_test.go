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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// Maximum durations in TestPreflight if nothing else uses the processors: from the
// creation of the At to the report of a refusal (API times have no fractions of a
// second), and from the removal of the cause to the removal of the report.
const (
	reportTime = 3 * time.Second
	fixTime    = time.Minute
)

// TestPreflight makes the API server refuse, in each way, the Pod of an At that is due in
// an hour. The refusal is reported, with one event, until the cause is gone. Then the At
// runs.
func TestPreflight(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		// refuse makes the API server refuse the Pods of a namespace, or of the At.
		refuse func(t *testing.T, namespace string, at *v1alpha1.At)
		// fix removes the cause of the refusal.
		fix func(t *testing.T, namespace string)
		// expectations
		reason, message string
	}{
		"quota": {
			func(t *testing.T, namespace string, _ *v1alpha1.At) {
				t.Helper()
				kubectl(t, "", "create", "-n", namespace, "quota", "quota", "--hard=pods=0")
			},
			func(t *testing.T, namespace string) {
				t.Helper()
				kubectl(t, "", "delete", "-n", namespace, "quota/quota")
			},
			v1alpha1.ReasonPodRefused, "exceeded quota: quota, requested: pods=1",
		},
		"Pod Security": {
			func(t *testing.T, namespace string, at *v1alpha1.At) {
				t.Helper()
				kubectl(t, "", "label", "namespace/"+namespace, "pod-security.kubernetes.io/enforce=restricted")
				setTemplate(at, func(spec *corev1.PodSpec) { spec.HostNetwork = true })
			},
			func(t *testing.T, namespace string) {
				t.Helper()
				allowNodeAccess(t, namespace)
			},
			v1alpha1.ReasonPodRefused, `violates PodSecurity "restricted:latest": host namespaces (hostNetwork=true)`,
		},
		"service account": {
			func(_ *testing.T, _ string, at *v1alpha1.At) {
				setTemplate(at, func(spec *corev1.PodSpec) { spec.ServiceAccountName = "late" })
			},
			func(t *testing.T, namespace string) {
				t.Helper()
				kubectl(t, "", "create", "-n", namespace, "serviceaccount", "late")
			},
			v1alpha1.ReasonPodRefused, `serviceaccount "late" not found`,
		},
		"priority class": {
			func(_ *testing.T, namespace string, at *v1alpha1.At) {
				setTemplate(at, func(spec *corev1.PodSpec) { spec.PriorityClassName = namespace })
			},
			func(t *testing.T, namespace string) {
				t.Helper()
				classes := kubeClient.SchedulingV1().PriorityClasses()
				if _, err := classes.Create(t.Context(), &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Value: 1}, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := classes.Delete(context.Background(), namespace, metav1.DeleteOptions{}); err != nil {
						t.Error(err)
					}
				})
			},
			v1alpha1.ReasonPodRefused, "no PriorityClass with name",
		},
		"runtime class": {
			func(_ *testing.T, namespace string, at *v1alpha1.At) {
				setTemplate(at, func(spec *corev1.PodSpec) { spec.RuntimeClassName = &namespace })
			},
			func(t *testing.T, namespace string) {
				t.Helper()
				createRuntimeClass(t, namespace, namespace)
			},
			v1alpha1.ReasonPodRefused, "pod rejected: RuntimeClass .* not found",
		},
		"invalid field": {
			func(_ *testing.T, _ string, at *v1alpha1.At) {
				setTemplate(at, func(spec *corev1.PodSpec) {
					spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
				})
			},
			func(t *testing.T, namespace string) {
				t.Helper()
				update(t, namespace, func(at *v1alpha1.At) { at.Spec.Template.Spec.Containers[0].VolumeMounts = nil })
			},
			v1alpha1.ReasonInvalidPod, `Pod "at-pod" is invalid: spec.containers[0].volumeMounts[0].name: Not found: "data"`,
		},
		"webhook": {
			func(t *testing.T, namespace string, _ *v1alpha1.At) {
				t.Helper()
				startWebhook(t, namespace, 30, func() *admissionv1.AdmissionResponse {
					ns, err := kubeClient.CoreV1().Namespaces().Get(context.Background(), namespace, metav1.GetOptions{})
					return &admissionv1.AdmissionResponse{Allowed: err == nil && ns.Labels["allow"] != "", Result: &metav1.Status{Message: "not on a Friday"}}
				})
			},
			func(t *testing.T, namespace string) {
				t.Helper()
				kubectl(t, "", "label", "namespace/"+namespace, "allow=true")
			},
			v1alpha1.ReasonPodRefused, `admission webhook "policy.example.com" denied the request: not on a Friday`,
		},
		"policy": {
			func(t *testing.T, namespace string, _ *v1alpha1.At) {
				t.Helper()
				createPolicy(t, namespace, "false")
			},
			func(t *testing.T, namespace string) {
				t.Helper()
				kubectl(t, "", "delete", "validatingadmissionpolicybinding/"+namespace)
			},
			v1alpha1.ReasonPodRefused, `ValidatingAdmissionPolicy '.*' with binding '.*' denied request: no Pods here`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			at := newAt(namespace, "at", time.Now().Add(time.Hour), "true")
			tc.refuse(t, namespace, at)
			waitRefused(t, at)
			c := startController(t, namespace)
			waitLog(t, c, "Starting controller")

			at = createAt(t, at)
			blocked := waitBlocked(t, namespace, tc.reason)
			judge(t, "reported", blocked.LastTransitionTime.Sub(at.CreationTimestamp.Time), reportTime)
			message := strings.NewReplacer("(", `\(`, ")", `\)`, "[", `\[`, "]", `\]`).Replace(tc.message)
			wantOutput(t, blocked.Message, `^If it were due now: create Pod: .*`+message)
			waitEvents(t, at, map[string]int32{tc.reason: 1})

			// At its time, another one is refused for the same reason.
			due := newAt(namespace, "due", time.Now(), "")
			due.Spec.RunSpec = at.Spec.RunSpec
			createAt(t, due)
			refused := waitAt(t, namespace, "due", "to be refused", func(at *v1alpha1.At) bool { return at.Status.Reason == tc.reason })
			wantOutput(t, refused.Status.Message, `^create Pod: .*`+strings.ReplaceAll(message, "at-pod", "due-pod"))
			kubectl(t, "", "delete", "-n", namespace, "at/due", "--timeout="+patience.String())

			tc.fix(t, namespace)
			fixed := time.Now()
			waitUnblocked(t, namespace)
			judge(t, "removed", time.Since(fixed), fixTime)
			update(t, namespace, func(at *v1alpha1.At) { at.Spec.Schedule = time.Now().UTC().Format(time.RFC3339) })
			waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
			waitEvents(t, at, map[string]int32{tc.reason: 1, v1alpha1.ReasonSuccessfulCreate: 1})
			wantCreates(t, namespace, 1)
			// The report, the observation of the edit, the removal, and RUNNING.
			writes := slices.DeleteFunc(requests(t, namespace, "patch", "ats/status"), func(r request) bool { return r.ObjectRef.Name != at.Name })
			if len(writes) > 4 {
				t.Errorf("%d writes of the status, want at most 4", len(writes))
			}
		})
	}
}

// TestPreflightOfRestart uses a restart that is due in an hour and whose workload does
// not exist yet. The controller reads the workload and tries the restart with its own
// permissions.
func TestPreflightOfRestart(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	playReady(t, namespace)
	startController(t, namespace)
	at := newAt(namespace, "at", time.Now().Add(time.Hour), "")
	at.Spec.Restart = &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}
	createAt(t, at)
	blocked := waitBlocked(t, namespace, v1alpha1.ReasonTargetNotFound)
	wantOutput(t, blocked.Message, `^If it were due now: Deployment web does not exist\.$`)
	createWorkload(t, namespace, v1alpha1.RestartDeployment, "replicas: 1")
	waitRolledOut(t, namespace, v1alpha1.RestartDeployment)
	waitUnblocked(t, namespace)
	if generation := generationOf(t, namespace, v1alpha1.RestartDeployment); generation != 1 {
		t.Errorf("generation %d after the preflight, want 1", generation)
	}
}

// TestPreflightOfCronAt makes the API server refuse the Pod of a CronAt's next At, by a
// quota and then by an edit of the template. That is reported, with one event each, until
// the cause is gone.
func TestPreflightOfCronAt(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	kubectl(t, "", "create", "-n", namespace, "quota", "quota", "--hard=pods=0")
	waitRefused(t, newAt(namespace, "at", time.Now().Add(time.Hour), "true"))
	c := startController(t, namespace)
	waitLog(t, c, "Starting controller of CronAts")
	cronAt := createCronAt(t, newCronAt(namespace, "0 0 29 2 *"))
	blocked := waitCronAt(t, namespace, "to be refused", func(cronAt *v1alpha1.CronAt) bool { return cronAt.Status.Reason == v1alpha1.ReasonPodRefused })
	judge(t, "reported", plan.TrueCondition(blocked.Status.Conditions, v1alpha1.ConditionBlocked).LastTransitionTime.Sub(cronAt.CreationTimestamp.Time), reportTime)
	wantOutput(t, blocked.Status.Message, `^If it were due now: create Pod: pods "cronat-\d+-pod" is forbidden: exceeded quota: quota, requested: pods=1`)
	waitEvents(t, cronAt, map[string]int32{v1alpha1.ReasonPodRefused: 1})
	wantOutput(t, kubectl(t, "", "get", "cronat", "-n", namespace, "-o", "wide"), `MESSAGE\n.*If it were due now: create Pod: `)

	isFine := func(cronAt *v1alpha1.CronAt) bool {
		return cronAt.Status.Reason == "" && len(cronAt.Status.Conditions) == 0
	}
	kubectl(t, "", "delete", "-n", namespace, "quota/quota")
	fixed := time.Now()
	waitCronAt(t, namespace, "not to be refused any longer", isFine)
	judge(t, "removed", time.Since(fixed), fixTime)

	template := `{"spec":{"atTemplate":{"spec":{"template":{"spec":{"containers":[{"name":"a","image":"a"}],"serviceAccountName":%s}}}}}}`
	patchCronAt(t, namespace, strings.Replace(template, "%s", `"late"`, 1))
	blocked = waitCronAt(t, namespace, "to be refused after an edit", func(cronAt *v1alpha1.CronAt) bool { return cronAt.Status.Reason == v1alpha1.ReasonPodRefused })
	wantOutput(t, blocked.Status.Message, `^If it were due now: create Pod: .*serviceaccount "late" not found`)
	waitEvents(t, cronAt, map[string]int32{v1alpha1.ReasonPodRefused: 2})
	patchCronAt(t, namespace, strings.Replace(template, "%s", "null", 1))
	waitCronAt(t, namespace, "to be fixed", isFine)
	wantCreates(t, namespace, 0)
}

// TestPreflightOfManyCronAts creates CronAts that differ in nothing but the command: they
// cost one dry-run.
func TestPreflightOfManyCronAts(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	c := startController(t, namespace)
	for i := range 50 {
		createCronAt(t, newCronAt(namespace, "0 0 29 2 *", func(cronAt *v1alpha1.CronAt) {
			cronAt.Name = fmt.Sprint("cronat-", i)
			cronAt.Spec.AtTemplate.Spec.Command = fmt.Sprint("echo ", i)
		}))
	}
	waitPreflights(t, c, "shared", 49)
	if accepted := waitPreflights(t, c, "accepted", 1); accepted != 1 {
		t.Errorf("%d dry-runs were accepted, want one", accepted)
	}
}

// judge checks how long something took. The limit only applies where tests with time
// limits run.
func judge(t *testing.T, what string, took, limit time.Duration) {
	t.Helper()
	t.Logf("%s after %v", what, took)
	if *soakTrials > 1 && took > limit {
		t.Errorf("%s after %v, want at most %v", what, took, limit)
	}
}

// setTemplate gives an At a template.
func setTemplate(at *v1alpha1.At, change func(*corev1.PodSpec)) {
	at.Spec.Template = &corev1.PodTemplateSpec{Spec: plan.NewPod(at, plan.Defaults{Image: "busybox:1.37.0"}).Spec}
	change(&at.Spec.Template.Spec)
}

// waitRefused waits until the API server refuses the Pod of an At that must not be
// created yet.
func waitRefused(t *testing.T, at *v1alpha1.At) {
	t.Helper()
	waitPodRefused(t, probePod(at))
}

// probePod returns a Pod like that of an At, which may not exist yet.
func probePod(at *v1alpha1.At) *corev1.Pod {
	probe := at.DeepCopy()
	probe.UID = "probe"
	return plan.NewPod(probe, plan.Defaults{Image: "busybox:1.37.0"})
}

// waitPodRefused waits until the API server refuses a Pod, which it does not create.
func waitPodRefused(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	eventually(t, "the Pod to be refused", func(ctx context.Context) (bool, error) {
		_, err := kubeClient.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		// A quota refuses any Pod until its status has been computed.
		return err != nil && !strings.Contains(err.Error(), "status unknown for quota"), nil
	})
}

// createPolicy creates an admission policy that admits only the Pods of a namespace for which
// the CEL expression is true.
func createPolicy(t *testing.T, namespace, expression string) {
	t.Helper()
	policies := kubeClient.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	_, err := policies.Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
				},
			}}},
			Validations: []admissionregistrationv1.Validation{{Expression: expression, Message: "no Pods here"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bindings := kubeClient.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	t.Cleanup(func() {
		ctx := context.Background()
		if err := ignoreNotFound(bindings.Delete(ctx, namespace, metav1.DeleteOptions{})); err != nil {
			t.Error(err)
		}
		if err := policies.Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	_, err = bindings.Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName:        namespace,
			ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			MatchResources:    &admissionregistrationv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// dryRuns returns the dry-runs of preflights in a namespace.
func dryRuns(t *testing.T, namespace string) []request {
	t.Helper()
	found := slices.DeleteFunc(requestsOf(t, namespace, "create", "pods"), func(r request) bool { return !isPreflight(r.UserAgent) })
	for i := range found {
		if !isDryRun(found[i].RequestURI) {
			t.Errorf("a preflight creates a Pod: %+v", found[i])
		}
	}
	return found
}

// waitPreflights waits until the only running controller has counted at least the given
// number of preflights with the given result, and returns how many it has counted. On a slow
// machine, the first result is unknown, and preflights are repeated.
func waitPreflights(t *testing.T, c *controller, result string, least int) int {
	t.Helper()
	url := served(t, c, "metrics") + "/metrics"
	counted := regexp.MustCompile(`cnat_preflights_total\{result="` + result + `"\} (\d+)\n`)
	number := 0
	eventually(t, fmt.Sprintf("%d preflights: %s", least, result), func(context.Context) (bool, error) {
		_, metrics := get(t, url, "")
		if match := counted.FindStringSubmatch(metrics); match != nil {
			number, _ = strconv.Atoi(match[1])
		}
		return number >= least, nil
	})
	return number
}

// TestPreflightAccepted uses Ats whose Pods the API server would accept: there is one
// dry-run for all of them, and nothing is written.
func TestPreflightAccepted(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	c := startController(t, namespace)
	ats := map[types.UID]string{}
	for _, name := range []string{"at", "second", "third"} {
		at := createAt(t, newAt(namespace, name, time.Now().Add(time.Hour), "true"))
		ats[at.UID] = at.ResourceVersion
	}
	waitPreflights(t, c, "shared", 2)
	if accepted := waitPreflights(t, c, "accepted", 1); accepted != 1 {
		t.Errorf("%d dry-runs were accepted, want one", accepted)
	}
	// On a slow machine, the only one may be sent again.
	eventually(t, "the dry-run to be logged", func(context.Context) (bool, error) { return len(dryRuns(t, namespace)) > 0, nil })
	for _, name := range []string{"at", "second", "third"} {
		if at := waitPhase(t, namespace, name, v1alpha1.PhasePending); at.ResourceVersion != ats[at.UID] {
			t.Errorf("At %s was written: %+v", name, at)
		}
		if _, err := kubeClient.CoreV1().Pods(namespace).Get(t.Context(), name+"-pod", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("Pod of At %s: got %v, want none", name, err)
		}
	}
	update(t, namespace, func(at *v1alpha1.At) { at.Spec.Schedule = time.Now().UTC().Format(time.RFC3339) })
	waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
	wantCreates(t, namespace, 1)
}

// TestPreflightUnknown uses a slow webhook, which does not allow a prediction for the
// Pod.
func TestPreflightUnknown(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	slow := make(chan struct{})
	startWebhook(t, namespace, 2, func() *admissionv1.AdmissionResponse {
		<-slow
		return &admissionv1.AdmissionResponse{Allowed: true}
	})
	quick := sync.OnceFunc(func() { close(slow) })
	t.Cleanup(quick)
	at := newAt(namespace, "at", time.Now().Add(time.Hour), "true")
	waitRefused(t, at)
	c := startController(t, namespace)
	at = createAt(t, at)
	waitPreflights(t, c, "unknown", 1)
	if got := waitPhase(t, namespace, "at", v1alpha1.PhasePending); got.ResourceVersion != at.ResourceVersion {
		t.Errorf("the At was written: %+v", got)
	}
	// On a slow machine, even a quick answer of the webhook may come too late.
	kubectl(t, "", "patch", "validatingwebhookconfiguration/"+namespace, "--type=json", "-p", `[{"op":"replace","path":"/webhooks/0/failurePolicy","value":"Ignore"}]`)
	eventually(t, "the webhook to be ignored", func(ctx context.Context) (bool, error) {
		_, err := kubeClient.CoreV1().Pods(namespace).Create(ctx, probePod(at), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil, nil
	})
	quick()
	update(t, namespace, func(at *v1alpha1.At) { at.Spec.Schedule = time.Now().UTC().Format(time.RFC3339) })
	waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
	waitEvents(t, at, map[string]int32{v1alpha1.ReasonSuccessfulCreate: 1})
}

// TestPreflightRestart removes the cause of a refusal while no controller is running, and
// lets the At become due while the API server still refuses its Pod.
func TestPreflightRestart(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string // of the second controller
	}{
		"with preflights":    {},
		"without preflights": {[]string{"-preflight-qps=0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			quotas := kubeClient.CoreV1().ResourceQuotas(namespace)
			quota := &corev1.ResourceQuota{
				ObjectMeta: metav1.ObjectMeta{Name: "quota"},
				Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}},
			}
			if _, err := quotas.Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			at := newAt(namespace, "at", time.Now().Add(time.Hour), "true")
			waitRefused(t, at)
			c := startController(t, namespace)
			at = createAt(t, at)
			waitBlocked(t, namespace, v1alpha1.ReasonPodRefused)
			// A killed process may not have written its last events.
			waitEvents(t, at, map[string]int32{v1alpha1.ReasonPodRefused: 1})
			c.kill(t)
			if err := quotas.Delete(t.Context(), "quota", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			startController(t, namespace, tc.args...)
			waitUnblocked(t, namespace)
			if got := creations(t, namespace); len(got) > 0 {
				t.Errorf("Pods were created before the At was due: %+v", got)
			}
		})
	}
}
