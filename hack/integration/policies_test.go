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
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// podManifest returns the Pod that the controller creates for an At, with changes.
func podManifest(t *testing.T, at *v1alpha1.At, change ...func(*corev1.Pod)) string {
	t.Helper()
	pod := plan.NewPod(at, plan.Defaults{Image: "a"})
	for _, c := range change {
		c(pod)
	}
	out, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	return `{"apiVersion": "v1", "kind": "Pod", ` + string(out[1:])
}

// TestControllerPermissionsPolicy uses the controller's token as an attacker: it cannot make
// itself permanent.
func TestControllerPermissionsPolicy(t *testing.T) {
	t.Parallel()
	controller := actAs(t, serviceAccountID, systemNamespace)
	patch := func(object, patch string) attempt { return merges(object+"s/"+serviceAccount, patch) }
	const refused = "may change nothing of service accounts, roles and role bindings but the finalizer"
	controller.waitDenied(t, refused, patch("serviceaccount", `{"metadata":{"annotations":{"a":"b"}}}`))
	subjects := fmt.Sprintf(`{"subjects":[{"kind":"ServiceAccount","namespace":%[1]q,"name":%[2]q},{"kind":"ServiceAccount","namespace":"default","name":"default"}]}`, systemNamespace, serviceAccount)
	const noRules, aggregate = `{"rules":[]}`, `{"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"a":"b"}}]}}`
	attacks := map[string][]string{
		"serviceaccount":     {`{"automountServiceAccountToken":false}`, `{"imagePullSecrets":[{"name":"a"}]}`, `{"secrets":[{"name":"a"}]}`},
		"clusterrole":        {noRules, aggregate},
		"clusterrolebinding": {subjects, `{"subjects":null}`},
		"role":               {noRules},
		"rolebinding":        {subjects, `{"subjects":null}`},
	}
	for object, attacked := range attacks {
		for _, change := range append(attacked,
			`{"metadata":{"annotations":{"a":"b"}}}`,
			`{"metadata":{"labels":{"rbac.authorization.k8s.io/aggregate-to-view":"true"}}}`,
			`{"metadata":{"labels":null}}`,
			`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"b"}]}}`,
			`{"metadata":{"finalizers":["example.com/other"]}}`,
			`{"metadata":{"finalizers":["`+v1alpha1.FinalizerReleasePods+`"],"labels":{"a":"b"}}}`,
		) {
			denied := refused
			if regexp.MustCompile(`"(rules|aggregationRule|ownerReferences)"`).MatchString(change) {
				denied = " " // The API server may refuse these itself, in other words.
			}
			controller.want(t, denied, patch(object, change), "dryRun", "All")
		}
		for _, change := range []string{`{"metadata":{"finalizers":["` + v1alpha1.FinalizerReleasePods + `"]}}`, `{"metadata":{"finalizers":null}}`} {
			controller.want(t, "", patch(object, change), "dryRun", "All")
		}
	}

	// Others are not restricted.
	kubectl(t, "", "annotate", "--dry-run=server", "-n", systemNamespace, "serviceaccount/"+serviceAccount, "a=b")
}

// TestNodeAccessPolicy uses the controller's token as an attacker: it can create Pods with
// access to their node only where a namespace allows that explicitly.
func TestNodeAccessPolicy(t *testing.T) {
	t.Parallel()
	namespace, allowed := newNamespace(t), newNamespace(t)
	allowNodeAccess(t, allowed)
	pod := func(spec string) attempt {
		return creates(fmt.Sprintf(`{kind: Pod, apiVersion: v1, metadata: {name: at-pod, labels: {%s: a}, finalizers: [%s],
			ownerReferences: [{apiVersion: %s, kind: At, name: at, uid: a, controller: true}]}, spec: {%s}}`, v1alpha1.LabelAtUID, v1alpha1.FinalizerTracking, v1alpha1.SchemeGroupVersion, spec))
	}
	const containers, initContainers = "containers: [{name: c, image: a", "containers: [{name: c, image: a}], initContainers: [{name: i, image: a"
	controller, elsewhere := actAs(t, serviceAccountID, namespace), actAs(t, serviceAccountID, allowed)
	controller.waitDenied(t, "access to the node", pod("hostPID: true, "+containers+"}]"))
	for _, tc := range []struct {
		spec   string
		denied string // empty: allowed
	}{
		{containers + "}]", ""},
		{"volumes: [{name: v, emptyDir: {}}], " + containers + "}]", ""},
		{containers + ", ports: [{containerPort: 80}]}]", ""},
		{containers + ", securityContext: {capabilities: {add: [NET_BIND_SERVICE]}}}]", ""},
		{"hostNetwork: true, " + containers + "}]", "(hostNetwork)"},
		{"hostPID: true, " + containers + "}]", "(hostPID)"},
		{"hostPID: true, hostIPC: true, " + containers + "}]", "(hostPID, hostIPC)"},
		{"volumes: [{name: v, hostPath: {path: /}}], " + containers + "}]", "(hostPath)"},
		{containers + ", ports: [{containerPort: 80, hostPort: 80}]}]", "(hostPort)"},
		{initContainers + ", ports: [{containerPort: 80, hostPort: 80}]}]", "(hostPort)"},
		{containers + ", securityContext: {privileged: true}}]", "(privileged)"},
		{initContainers + ", securityContext: {privileged: true}}]", "(privileged)"},
		{containers + ", securityContext: {capabilities: {add: [SYS_ADMIN]}}}]", "(capabilities)"},
		{initContainers + ", securityContext: {capabilities: {add: [ALL]}}}]", "(capabilities)"},
		{"hostNetwork: true, os: {name: windows}, securityContext: {windowsOptions: {hostProcess: true}}, " + containers + "}]", "(hostNetwork, hostProcess)"},
		{"hostUsers: false, " + containers + ", securityContext: {procMount: Unmasked}}]", "(procMount)"},
	} {
		controller.want(t, tc.denied, pod(tc.spec), "dryRun", "All")
		elsewhere.want(t, "", pod(tc.spec), "dryRun", "All")
	}

	// The author of the At learns what to do, and can do it.
	startController(t, namespace)
	access := newAt(namespace, "at", time.Now().Add(time.Hour), "true")
	setTemplate(access, func(spec *corev1.PodSpec) { spec.HostPID = true })
	createAt(t, access)
	blocked := waitBlocked(t, namespace, v1alpha1.ReasonPodRefused)
	wantOutput(t, blocked.Message, `^If it were due now: create Pod: pods "at-pod" is forbidden: .* cnat runs Pods with access to the node \(hostPID\) only in namespaces that allow it: use another namespace, or run kubectl label namespace `+namespace+` pod-security.kubernetes.io/enforce=privileged$`)
	wantOutput(t, kubectl(t, "", "get", "at", "-n", namespace, "-o", "wide"), `MESSAGE\n.*kubectl label namespace `)
	allowNodeAccess(t, namespace)
	waitUnblocked(t, namespace)
}

// TestSystemNamespacesPolicy checks that cnat runs no Pods in the namespaces of Kubernetes:
// neither the authors of Ats, who learn that at once, nor the controller's token.
func TestSystemNamespacesPolicy(t *testing.T) {
	t.Parallel()
	at := newAt("", "at", time.Now(), "true")
	at.UID = "uid"
	ats := func(run string) attempt {
		return creates(fmt.Sprintf(`{kind: At, apiVersion: %s, metadata: {name: at}, spec: {schedule: "2099-01-01T00:00:00Z", %s}}`, v1alpha1.SchemeGroupVersion, run))
	}
	cronAts := func(run string) attempt {
		return creates(fmt.Sprintf(`{kind: CronAt, apiVersion: %s, metadata: {name: at}, spec: {schedule: 0 0 1 1 *, atTemplate: {spec: {%s}}}}`, v1alpha1.SchemeGroupVersion, run))
	}
	const command, restart = `command: "true"`, "restart: {kind: Deployment, name: coredns}"
	const denied = "cnat runs no Pods in namespace "
	actAs(t, "", metav1.NamespaceSystem).waitDenied(t, denied, ats(command))
	for _, namespace := range []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, metav1.NamespaceDefault} {
		want := denied + namespace + ": use another namespace, or ask an administrator"
		if namespace == metav1.NamespaceDefault {
			want = ""
		}
		at.Namespace = namespace
		admin, controller, pod := actAs(t, "", namespace), actAs(t, serviceAccountID, namespace), creates(podManifest(t, at))
		admin.want(t, want, ats(command), "dryRun", "All")
		admin.want(t, want, cronAts(command), "dryRun", "All")
		admin.want(t, "", ats(restart), "dryRun", "All")
		admin.want(t, "", cronAts(restart), "dryRun", "All")
		controller.want(t, want, pod, "dryRun", "All")
		if _, err := admin.send(t, pod, "dryRun", "All"); err != nil && !strings.Contains(err.Error(), `serviceaccount "default" not found`) { // in a namespace of Kubernetes
			t.Errorf("a Pod of somebody else in %s: %v", namespace, err)
		}
	}
}

// TestReservedMetadataPolicy imitates what the controller creates, as a user who may write
// Pods and Ats, also their status, in the namespace.
func TestReservedMetadataPolicy(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	user := bindRole(t, namespace, "forger", rule("*", "", "pods", "pods/status", "pods/binding", "bindings", "pods/ephemeralcontainers", "pods/resize"), rule("*", cnat.GroupName, "ats", "cronats"))
	victim := newAt(namespace, "at", time.Now().Add(time.Hour), "true")
	victim.Spec.Suspend = ptr.To(true)
	victim = createAt(t, victim)
	uid := string(victim.UID)

	pod := func(metadata string) string {
		return `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "at-pod", ` + metadata + `}, "spec": {"containers": [{"name": "c", "image": "a"}]}}`
	}
	binding := func(metadata string) string {
		return `{"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "mine", ` + metadata + `}, "target": {"kind": "Node", "name": "n1"}}`
	}
	at := func(metadata string) string {
		return fmt.Sprintf(`{"apiVersion": %q, "kind": "At", "metadata": {"name": "forged", %s}, "spec": {"schedule": "2099-01-01T00:00:00Z", "command": "true"}}`, v1alpha1.SchemeGroupVersion, metadata)
	}
	label := func(key string) string { return fmt.Sprintf(`"labels": {%q: %q}`, key, uid) }
	finalizer := func(name string) string { return fmt.Sprintf(`"finalizers": [%q]`, name) }
	owner := func(apiVersion, kind string, controller bool) string {
		return fmt.Sprintf(`"ownerReferences": [{"apiVersion": %q, "kind": %q, "name": "at", "uid": %q, "controller": %v}]`, apiVersion, kind, uid, controller)
	}
	ofAt := owner(v1alpha1.SchemeGroupVersion.String(), v1alpha1.AtKind, true)
	ofCronAt := owner(v1alpha1.SchemeGroupVersion.String(), v1alpha1.CronAtKind, true)
	forger, admin := actAs(t, user, namespace), actAs(t, "", namespace)
	const refused = "only the cnat controller sets the labels"
	answer := map[bool]string{true: refused}
	forger.waitDenied(t, refused, creates(pod(label(v1alpha1.LabelAtUID))))
	for _, tc := range []struct {
		input  string
		denied bool
	}{
		{pod(`"labels": {"a": "b"}, "finalizers": ["example.com/a"]`), false},
		{pod(label(v1alpha1.LabelAtUID)), true},
		{pod(`"labels": {"` + v1alpha1.LabelAtUID + `": ""}`), true},
		{pod(label(v1alpha1.LabelRehearsalOf)), true},
		{pod(finalizer(v1alpha1.FinalizerTracking)), true},
		{pod(ofAt), true},
		{pod(ofCronAt), true},
		{pod(owner(v1alpha1.SchemeGroupVersion.String(), v1alpha1.AtKind, false)), false},
		{pod(owner("apps/v1", "ReplicaSet", true)), false},
		{at(label(v1alpha1.LabelAtName)), false},
		{at(label(v1alpha1.LabelAtUID)), true},
		{at(label(v1alpha1.LabelCronAtUID)), true},
		{at(finalizer(v1alpha1.FinalizerTracking)), true},
		{at(finalizer(v1alpha1.FinalizerScheduled)), true},
		{at(ofAt), true},
		{at(ofCronAt), true},
		{at(owner(v1alpha1.SchemeGroupVersion.String(), v1alpha1.CronAtKind, false)), false}, // kubectl at run-now
	} {
		forger.want(t, answer[tc.denied], creates(tc.input), "dryRun", "All")
	}
	// A Pod template with the label.
	for _, controller := range []string{"replicaset-controller", "job-controller", "daemon-set-controller", "statefulset-controller", "replication-controller"} {
		actAs(t, "system:serviceaccount:kube-system:"+controller, namespace).want(t, refused, creates(pod(label(v1alpha1.LabelAtUID))), "dryRun", "All")
	}

	// Edits.
	const child, released = "child", "released"
	forger.want(t, "", creates(strings.Replace(pod(`"labels": {"a": "b"}`), "at-pod", "mine", 1)))
	admin.want(t, "", creates(strings.Replace(at(label(v1alpha1.LabelCronAtUID)+","+finalizer(v1alpha1.FinalizerScheduled)+","+ofCronAt), "forged", child, 1)))
	admin.want(t, "", creates(podManifest(t, victim, func(pod *corev1.Pod) { pod.Name = released })))
	for _, tc := range []struct {
		object, metadata string
		denied           bool
	}{
		{"pods/mine", `"labels": {"a": "c"}`, false},
		{"pods/mine", label(v1alpha1.LabelAtUID), true},
		{"pods/mine", label(v1alpha1.LabelRehearsalOf), true},
		{"pods/mine", finalizer(v1alpha1.FinalizerTracking), true},
		{"pods/mine", ofAt, true},
		{"pods/mine/status", `"labels": {"a": "c"}`, false},
		{"pods/mine/status", label(v1alpha1.LabelAtUID), true},
		{"pods/mine/status", finalizer(v1alpha1.FinalizerTracking), true},
		{"pods/" + released, `"labels": {"a": "c"}`, false},
		{"pods/" + released, `"labels": {"` + v1alpha1.LabelAtUID + `": "other"}`, true},
		{"pods/" + released, `"labels": null`, false},
		{"pods/" + released, `"ownerReferences": null`, false},
		{"pods/" + released, `"finalizers": null`, false},
		{"ats/" + child, `"labels": {"a": "c"}`, false},
		{"ats/" + child, `"labels": {"` + v1alpha1.LabelCronAtUID + `": "other"}`, true},
		{"ats/" + child, label(v1alpha1.LabelAtUID), true},
		{"ats/" + child, `"labels": null`, false}, // TestPolicy checks who may.
		{"ats/" + child, `"finalizers": null`, true},
		{"ats/" + child, `"ownerReferences": null`, true},
		{"ats/" + child, strings.Replace(ofCronAt, `"name": "at"`, `"name": "other"`, 1), true},
		{"ats/" + child, strings.Replace(ofCronAt, "/v1alpha1", "/v9", 1), true},
		{"ats/" + child, strings.Replace(ofCronAt, "/v1alpha1", "/"+strings.Repeat("v", 300), 1), true},
		{"ats/" + child, strings.Replace(ofCronAt, `"controller": true`, `"controller": true, "blockOwnerDeletion": false`, 1), false},
		{"ats/at", label(v1alpha1.LabelCronAtUID), true},
		{"ats/at", ofAt, true},
		{"ats/at", finalizer(v1alpha1.FinalizerTracking), true},
	} {
		forger.want(t, answer[tc.denied], merges(tc.object, `{"metadata":{`+tc.metadata+`}}`), "dryRun", "All")
	}
	for _, path := range []string{"pods/mine/binding", "bindings"} {
		for metadata, want := range map[string]string{`"labels": {"a": "b"}`: "", label(v1alpha1.LabelAtUID): refused} {
			bind := creates(binding(metadata))
			bind.object = path
			forger.want(t, want, bind, "dryRun", "All")
		}
	}
	// These cannot change metadata.
	for _, object := range []string{"pods/mine/ephemeralcontainers", "pods/mine/resize", "ats/at/status"} {
		admin.want(t, "", merges(object, `{"metadata":{"labels":{"through":"subresource"},"annotations":{"through":"subresource"}}}`))
	}
	if out := kubectl(t, "", "get", "-n", namespace, "pod/mine", "at/at", "-o", "jsonpath={.items[*].metadata.labels}{.items[*].metadata.annotations}"); strings.Contains(out, "through") {
		t.Errorf("a subresource changes metadata: %s", out)
	}
	kubectl(t, "", "patch", "-n", namespace, "pod/"+released, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)

	// The garbage collector removes owner references.
	cronAt := createCronAt(t, newCronAt(namespace, "0 0 1 1 *"))
	orphan := newAt(namespace, "orphan", time.Now().Add(time.Hour), "true")
	orphan.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(cronAt, v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.CronAtKind))}
	createAt(t, orphan)
	// It deletes what has lost its owner. Then it has seen what was created before.
	lost := newAt(namespace, "lost", time.Now().Add(time.Hour), "true")
	lost.OwnerReferences = slices.Clone(orphan.OwnerReferences)
	lost.OwnerReferences[0].UID = "gone"
	createAt(t, lost)
	eventually(t, "the garbage collector to see the Ats", func(ctx context.Context) (bool, error) {
		_, err := cnatClient.CnatV1alpha1().Ats(namespace).Get(ctx, "lost", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
	kubectl(t, "", "delete", "--as="+user, "--cascade=orphan", "--wait=false", "-n", namespace, "cronat/cronat")
	waitAt(t, namespace, "orphan", "to lose its owner", func(at *v1alpha1.At) bool { return len(at.OwnerReferences) == 0 })
}

// TestSystemIdentities checks that no controller of Kubernetes that creates Pods, for users
// who may create its objects, may set the labels of the cnat controller.
func TestSystemIdentities(t *testing.T) {
	t.Parallel()
	bindings, err := kubeClient.RbacV1().ClusterRoleBindings().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	users := map[string]bool{"system:kube-controller-manager": true, "system:kube-scheduler": true}
	for _, binding := range bindings.Items {
		for _, subject := range binding.Subjects {
			if subject.Kind == rbacv1.ServiceAccountKind && subject.Namespace == metav1.NamespaceSystem {
				users["system:serviceaccount:kube-system:"+subject.Name] = true
			}
		}
	}
	if len(users) < 20 {
		t.Fatalf("found only %v", users)
	}
	for user := range users {
		creates, err := isAllowed(t.Context(), user, authorizationv1.ResourceAttributes{Namespace: "default", Verb: "create", Resource: "pods"})
		if err != nil {
			t.Fatal(err)
		}
		sets, err := isAllowed(t.Context(), user, authorizationv1.ResourceAttributes{Namespace: "default", Verb: "patch", Group: cnat.GroupName, Resource: "ats", Subresource: "status"})
		if err != nil {
			t.Fatal(err)
		}
		if creates && sets {
			t.Errorf("%s may do both", user)
		}
		if user == "system:serviceaccount:kube-system:generic-garbage-collector" && !sets {
			t.Errorf("the garbage collector may not remove owner references")
		}
	}
}

// TestRestartAnnotationsPolicy checks the policy cnat-restart-annotations: who may patch only
// the status of a workload cannot have it restarted.
func TestRestartAnnotationsPolicy(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	var resources, status []string
	for _, resource := range restartKinds {
		resources, status = append(resources, resource), append(status, resource+"/status")
	}
	read := rule("get", "apps", append(slices.Clone(resources), status...)...)
	only := bindRole(t, namespace, "only", rule("patch update", "apps", status...), read)
	both := bindRole(t, namespace, "both", rule("patch", "apps", append(resources, status...)...), read)
	for kind, resource := range restartKinds {
		createWorkload(t, namespace, kind, "minReadySeconds: 0")
		kubectl(t, "", "annotate", "-n", namespace, resource+"/web", v1alpha1.AnnotationRestartSchedule+"=0 3 * * *")
		annotate := func(annotations string) attempt {
			return merges(resource+"/web/status", `{"metadata":{"annotations":`+annotations+`}}`)
		}
		denied := fmt.Sprintf("restart %s web, and user %s may not patch it in namespace %s: ask for a role that may patch %s.apps, such as edit", kind, only, namespace, resource)
		less, enough := actAs(t, only, namespace), actAs(t, both, namespace)
		less.waitDenied(t, denied, annotate(`{"`+v1alpha1.AnnotationRestartSchedule+`":null}`))
		for _, annotation := range []string{v1alpha1.AnnotationRestartSchedule, v1alpha1.AnnotationRestartTimeZone, v1alpha1.AnnotationRestartSuspend} {
			less.want(t, denied, annotate(fmt.Sprintf(`{%q: "x"}`, annotation)), "dryRun", "All")
			enough.want(t, "", annotate(fmt.Sprintf(`{%q: "x"}`, annotation)), "dryRun", "All")
		}
		less.want(t, "", annotate(`{"a": "b"}`), "dryRun", "All")
	}
}

// TestRevokeToken shows that a finalizer keeps permissions and tokens alive, and what
// revokes them, as described in docs/security.md.
func TestRevokeToken(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	bindRole(t, namespace, serviceAccount, rule("list", "", "pods"))
	account, binding := "serviceaccount/"+serviceAccount, "rolebinding/"+serviceAccount
	for _, object := range []string{account, binding} {
		kubectl(t, "", "patch", "-n", namespace, object, "--type=merge", "-p", `{"metadata":{"finalizers":["`+v1alpha1.FinalizerReleasePods+`"]}}`)
	}
	thief := filepath.Join(t.TempDir(), "config")
	if err := writeConfig(thief, namespace, serviceAccount); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "", "delete", "--wait=false", "-n", namespace, binding, account)
	for _, step := range []struct{ object, patch, answer string }{
		{account, "{}", "No resources found"}, // nothing is revoked
		{binding, `{"subjects":null}`, "Forbidden"},
		{account, `{"metadata":{"finalizers":null}}`, "Unauthorized"},
	} {
		kubectl(t, "", "patch", "-n", namespace, step.object, "--type=merge", "-p", step.patch)
		eventually(t, "the answer to be "+step.answer, func(context.Context) (bool, error) {
			out, _ := tryKubectl(t, "", "get", "pods", "-n", namespace, "--kubeconfig="+thief)
			return strings.Contains(out, step.answer), nil
		})
	}
	kubectl(t, "", "patch", "-n", namespace, binding, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
}

// TestPoliciesTypes lets the API server check the types of the policies. It does not where the
// version is *, so that they are checked with the version of these tests.
func TestPoliciesTypes(t *testing.T) {
	t.Parallel()
	policies := kubeClient.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	list, err := policies.List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=cnat"})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) < 9 {
		t.Errorf("there are only %d policies", len(list.Items))
	}
	for _, policy := range list.Items {
		policy.ObjectMeta = metav1.ObjectMeta{Name: policy.Name + "-types"}
		for i := range policy.Spec.MatchConstraints.ResourceRules {
			rule := &policy.Spec.MatchConstraints.ResourceRules[i]
			rule.APIVersions = []string{"v1"}
			if slices.Contains(rule.APIGroups, cnat.GroupName) {
				rule.APIVersions = []string{v1alpha1.SchemeGroupVersion.Version}
			}
		}
		created, err := policies.Create(t.Context(), &policy, metav1.CreateOptions{})
		if err != nil {
			t.Errorf("%s: %v", policy.Name, err)
			continue
		}
		t.Cleanup(func() {
			if err := policies.Delete(context.Background(), created.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		eventually(t, created.Name+" to be checked", func(ctx context.Context) (bool, error) {
			created, err = policies.Get(ctx, created.Name, metav1.GetOptions{})
			return err == nil && created.Status.ObservedGeneration == created.Generation && created.Status.TypeChecking != nil, err
		})
		for _, warning := range created.Status.TypeChecking.ExpressionWarnings {
			t.Errorf("%s: %s: %s", created.Name, warning.FieldRef, warning.Warning)
		}
	}
}
