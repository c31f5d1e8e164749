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
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
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

// wantAnswer fails the test if a request that a policy must deny was admitted or has another
// answer, or if one that it must admit, with an empty denied, was not.
func wantAnswer(t *testing.T, what, out string, err error, denied string) {
	t.Helper()
	if denied == "" && err != nil || denied != "" && (err == nil || !strings.Contains(out, denied)) {
		t.Errorf("%s: got %v: %s\nwant %q", what, err, out, denied)
	}
}

// TestControllerPermissionsPolicy uses the controller's token as an attacker: it cannot make
// itself permanent.
func TestControllerPermissionsPolicy(t *testing.T) {
	t.Parallel()
	try := func(object, patch string) (string, error) {
		return tryKubectl(t, "", "patch", "--dry-run=server", "--as="+serviceAccountID, "-n", systemNamespace, object+"/"+serviceAccount, "--type=merge", "-p", patch)
	}
	const refused = "may change nothing of service accounts, roles and role bindings but the finalizer"
	eventually(t, "the policy to be in force", func(context.Context) (bool, error) {
		out, err := try("serviceaccount", `{"metadata":{"annotations":{"a":"b"}}}`)
		return err != nil && strings.Contains(out, refused), nil
	})
	subjects := fmt.Sprintf(`{"subjects":[{"kind":"ServiceAccount","namespace":%[1]q,"name":%[2]q},{"kind":"ServiceAccount","namespace":"default","name":"default"}]}`, systemNamespace, serviceAccount)
	const noRules, aggregate = `{"rules":[]}`, `{"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"a":"b"}}]}}`
	attacks := map[string][]string{
		"serviceaccount":     {`{"automountServiceAccountToken":false}`, `{"imagePullSecrets":[{"name":"a"}]}`, `{"secrets":[{"name":"a"}]}`},
		"clusterrole":        {noRules, aggregate},
		"clusterrolebinding": {subjects, `{"subjects":null}`},
		"role":               {noRules},
		"rolebinding":        {subjects, `{"subjects":null}`},
	}
	for object, patches := range attacks {
		for _, patch := range append(patches,
			`{"metadata":{"annotations":{"a":"b"}}}`,
			`{"metadata":{"labels":{"rbac.authorization.k8s.io/aggregate-to-view":"true"}}}`,
			`{"metadata":{"labels":null}}`,
			`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"b"}]}}`,
			`{"metadata":{"finalizers":["example.com/other"]}}`,
			`{"metadata":{"finalizers":["`+v1alpha1.FinalizerReleasePods+`"],"labels":{"a":"b"}}}`,
		) {
			out, err := try(object, patch)
			if regexp.MustCompile(`"(rules|aggregationRule|ownerReferences)"`).MatchString(patch) && err != nil {
				continue // The API server may refuse these itself.
			}
			wantAnswer(t, "patch "+object+" with "+patch, out, err, refused)
		}
		for _, patch := range []string{`{"metadata":{"finalizers":["` + v1alpha1.FinalizerReleasePods + `"]}}`, `{"metadata":{"finalizers":null}}`} {
			out, err := try(object, patch)
			wantAnswer(t, "patch "+object+" with "+patch, out, err, "")
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
	at := newAt(namespace, "at", time.Now(), "true")
	at.UID = "uid"
	try := func(namespace string, change func(*corev1.PodSpec)) (string, error) {
		at.Namespace = namespace
		return tryKubectl(t, podManifest(t, at, func(pod *corev1.Pod) { change(&pod.Spec) }), "create", "--dry-run=server", "--as="+serviceAccountID, "-n", namespace, "-f", "-")
	}
	security := func(change func(*corev1.SecurityContext)) func(*corev1.PodSpec) {
		return func(spec *corev1.PodSpec) { change(spec.Containers[0].SecurityContext) }
	}
	inInit := func(change func(*corev1.PodSpec)) func(*corev1.PodSpec) {
		return func(spec *corev1.PodSpec) {
			init := *spec.Containers[0].DeepCopy()
			init.Name = "init"
			changed := &corev1.PodSpec{Containers: []corev1.Container{init}}
			change(changed)
			spec.InitContainers = changed.Containers
		}
	}
	privileged := security(func(s *corev1.SecurityContext) { s.Privileged, s.AllowPrivilegeEscalation = ptr.To(true), nil })
	capability := func(name corev1.Capability) func(*corev1.PodSpec) {
		return security(func(s *corev1.SecurityContext) { s.Capabilities.Add = []corev1.Capability{name} })
	}
	hostPort := func(spec *corev1.PodSpec) {
		spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
	}
	hostProcess := func(spec *corev1.PodSpec) {
		spec.HostNetwork, spec.OS = true, &corev1.PodOS{Name: corev1.Windows}
		spec.Containers[0].SecurityContext = nil
		spec.SecurityContext = &corev1.PodSecurityContext{WindowsOptions: &corev1.WindowsSecurityContextOptions{HostProcess: ptr.To(true)}}
	}
	volume := func(source corev1.VolumeSource) func(*corev1.PodSpec) {
		return func(spec *corev1.PodSpec) { spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}} }
	}
	eventually(t, "the policy to be in force", func(context.Context) (bool, error) {
		out, err := try(namespace, privileged)
		return err != nil && strings.Contains(out, "access to the node"), nil
	})
	for name, tc := range map[string]struct {
		change func(*corev1.PodSpec)
		denied string // empty: allowed
	}{
		"nothing":                    {func(*corev1.PodSpec) {}, ""},
		"an ordinary volume":         {volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}), ""},
		"an ordinary port":           {func(spec *corev1.PodSpec) { spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80}} }, ""},
		"an ordinary capability":     {capability("NET_BIND_SERVICE"), ""},
		"no security context":        {func(spec *corev1.PodSpec) { spec.SecurityContext, spec.Containers[0].SecurityContext = nil, nil }, ""},
		"hostNetwork":                {func(spec *corev1.PodSpec) { spec.HostNetwork = true }, "(hostNetwork)"},
		"hostPID":                    {func(spec *corev1.PodSpec) { spec.HostPID = true }, "(hostPID)"},
		"hostIPC":                    {func(spec *corev1.PodSpec) { spec.HostIPC = true }, "(hostIPC)"},
		"hostPath":                   {volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}), "(hostPath)"},
		"hostPort":                   {hostPort, "(hostPort)"},
		"hostPort, init container":   {inInit(hostPort), "(hostPort)"},
		"privileged":                 {privileged, "(privileged)"},
		"privileged, init container": {inInit(privileged), "(privileged)"},
		"a capability":               {capability("SYS_ADMIN"), "(capabilities)"},
		"all capabilities":           {inInit(capability("ALL")), "(capabilities)"},
		"hostProcess":                {hostProcess, "(hostNetwork, hostProcess)"},
		"procMount": {func(spec *corev1.PodSpec) {
			spec.HostUsers = ptr.To(false)
			spec.Containers[0].SecurityContext.ProcMount = ptr.To(corev1.UnmaskedProcMount)
		}, "(procMount)"},
		"two": {func(spec *corev1.PodSpec) { spec.HostPID, spec.HostIPC = true, true }, "(hostPID, hostIPC)"},
	} {
		out, err := try(namespace, tc.change)
		wantAnswer(t, name, out, err, tc.denied)
		out, err = try(allowed, tc.change)
		wantAnswer(t, name+", allowed", out, err, "")
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
	spec := `{"schedule": "2099-01-01T00:00:00Z", %s}`
	cronSpec := `{"schedule": "0 0 1 1 *", "atTemplate": {"spec": {%s}}}`
	manifest := func(kind, spec, run string) string {
		return fmt.Sprintf(`{"apiVersion": %q, "kind": %q, "metadata": {"name": "at"}, "spec": %s}`, v1alpha1.SchemeGroupVersion, kind, fmt.Sprintf(spec, run))
	}
	const command, restart = `"command": "true"`, `"restart": {"kind": "Deployment", "name": "coredns"}`
	// create creates as a user, or as the administrator of these tests.
	create := func(user, namespace, input string) (string, error) {
		at.Namespace = namespace
		args := []string{"create", "--dry-run=server", "-n", namespace, "-f", "-"}
		if user != "" {
			args = append(args, "--as="+user)
		}
		return tryKubectl(t, input, args...)
	}
	const denied = "cnat runs no Pods in namespace "
	eventually(t, "the policy to be in force", func(context.Context) (bool, error) {
		out, err := create("", metav1.NamespaceSystem, manifest(v1alpha1.AtKind, spec, command))
		return err != nil && strings.Contains(out, denied), nil
	})
	for _, namespace := range []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, metav1.NamespaceDefault} {
		want := denied + namespace + ": use another namespace, or ask an administrator"
		if namespace == metav1.NamespaceDefault {
			want = ""
		}
		at.Namespace = namespace
		for _, tc := range []struct{ what, user, input, denied string }{
			{"an At", "", manifest(v1alpha1.AtKind, spec, command), want},
			{"a CronAt", "", manifest(v1alpha1.CronAtKind, cronSpec, command), want},
			{"a restart", "", manifest(v1alpha1.AtKind, spec, restart), ""},
			{"a CronAt of restarts", "", manifest(v1alpha1.CronAtKind, cronSpec, restart), ""},
			{"a Pod of the controller", serviceAccountID, podManifest(t, at), want},
			{"a Pod of somebody else", "", podManifest(t, at), ""},
		} {
			out, err := create(tc.user, namespace, tc.input)
			if tc.denied == "" && strings.Contains(out, "serviceaccount \"default\" not found") {
				continue // in a namespace of Kubernetes
			}
			wantAnswer(t, tc.what+" in "+namespace, out, err, tc.denied)
		}
	}
}

// TestReservedMetadataPolicy imitates what the controller creates, as a user who may write
// Pods and Ats, also their status, in the namespace.
func TestReservedMetadataPolicy(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	user := bindRole(t, namespace, "forger", []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods", "pods/status", "pods/binding", "bindings", "pods/ephemeralcontainers", "pods/resize"}, Verbs: []string{"*"}},
		{APIGroups: []string{cnat.GroupName}, Resources: []string{"ats", "cronats"}, Verbs: []string{"*"}},
	})
	waitAllowed(t, user, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "create", Group: cnat.GroupName, Resource: "ats"})
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
	create := func(user, input string) (string, error) {
		return tryKubectl(t, input, "create", "--dry-run=server", "--as="+user, "-n", namespace, "-f", "-")
	}
	const refused = "only the cnat controller sets the labels"
	eventually(t, "the policy to be in force", func(context.Context) (bool, error) {
		out, err := create(user, pod(label(v1alpha1.LabelAtUID)))
		return err != nil && strings.Contains(out, refused), nil
	})
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
		want := ""
		if tc.denied {
			want = refused
		}
		out, err := create(user, tc.input)
		wantAnswer(t, "create "+tc.input, out, err, want)
	}
	// A Pod template with the label.
	for _, controller := range []string{"replicaset-controller", "job-controller", "daemon-set-controller", "statefulset-controller", "replication-controller"} {
		out, err := create("system:serviceaccount:kube-system:"+controller, pod(label(v1alpha1.LabelAtUID)))
		wantAnswer(t, controller, out, err, refused)
	}

	// Edits.
	const child, released = "child", "released"
	kubectl(t, strings.Replace(pod(`"labels": {"a": "b"}`), "at-pod", "mine", 1), "create", "--as="+user, "-n", namespace, "-f", "-")
	kubectl(t, strings.Replace(at(label(v1alpha1.LabelCronAtUID)+","+finalizer(v1alpha1.FinalizerScheduled)+","+ofCronAt), "forged", child, 1), "create", "-n", namespace, "-f", "-")
	run := podManifest(t, victim, func(pod *corev1.Pod) { pod.Name = released })
	kubectl(t, run, "create", "-n", namespace, "-f", "-")
	for _, tc := range []struct {
		object, subresource, metadata string
		denied                        bool
	}{
		{"pod/mine", "", `"labels": {"a": "c"}`, false},
		{"pod/mine", "", label(v1alpha1.LabelAtUID), true},
		{"pod/mine", "", label(v1alpha1.LabelRehearsalOf), true},
		{"pod/mine", "", finalizer(v1alpha1.FinalizerTracking), true},
		{"pod/mine", "", ofAt, true},
		{"pod/mine", "status", `"labels": {"a": "c"}`, false},
		{"pod/mine", "status", label(v1alpha1.LabelAtUID), true},
		{"pod/mine", "status", finalizer(v1alpha1.FinalizerTracking), true},
		{"pod/" + released, "", `"labels": {"a": "c"}`, false},
		{"pod/" + released, "", `"labels": {"` + v1alpha1.LabelAtUID + `": "other"}`, true},
		{"pod/" + released, "", `"labels": null`, false},
		{"pod/" + released, "", `"ownerReferences": null`, false},
		{"pod/" + released, "", `"finalizers": null`, false},
		{"at/" + child, "", `"labels": {"a": "c"}`, false},
		{"at/" + child, "", `"labels": {"` + v1alpha1.LabelCronAtUID + `": "other"}`, true},
		{"at/" + child, "", label(v1alpha1.LabelAtUID), true},
		{"at/" + child, "", `"labels": null`, false}, // TestPolicy checks who may.
		{"at/" + child, "", `"finalizers": null`, true},
		{"at/" + child, "", `"ownerReferences": null`, true},
		{"at/" + child, "", strings.Replace(ofCronAt, `"name": "at"`, `"name": "other"`, 1), true},
		{"at/" + child, "", strings.Replace(ofCronAt, "/v1alpha1", "/v9", 1), true},
		{"at/" + child, "", strings.Replace(ofCronAt, "/v1alpha1", "/"+strings.Repeat("v", 300), 1), true},
		{"at/" + child, "", strings.Replace(ofCronAt, `"controller": true`, `"controller": true, "blockOwnerDeletion": false`, 1), false},
		{"at/at", "", label(v1alpha1.LabelCronAtUID), true},
		{"at/at", "", ofAt, true},
		{"at/at", "", finalizer(v1alpha1.FinalizerTracking), true},
	} {
		args := []string{"patch", "--dry-run=server", "--as=" + user, "-n", namespace, tc.object, "--type=merge", "-p", `{"metadata":{` + tc.metadata + `}}`}
		if tc.subresource != "" {
			args = append(args, "--subresource="+tc.subresource)
		}
		want := ""
		if tc.denied {
			want = refused
		}
		out, err := tryKubectl(t, "", args...)
		wantAnswer(t, fmt.Sprintf("patch %s %s with %s", tc.object, tc.subresource, tc.metadata), out, err, want)
	}
	for _, path := range []string{"pods/mine/binding", "bindings"} {
		for metadata, want := range map[string]string{`"labels": {"a": "b"}`: "", label(v1alpha1.LabelAtUID): refused} {
			out, err := tryKubectl(t, binding(metadata), "create", "--as="+user, "--raw=/api/v1/namespaces/"+namespace+"/"+path+"?dryRun=All", "-f", "-")
			wantAnswer(t, path+" with "+metadata, out, err, want)
		}
	}
	// These cannot change metadata.
	through := []byte(`{"metadata":{"labels":{"through":"subresource"},"annotations":{"through":"subresource"}}}`)
	for _, subresource := range []string{"ephemeralcontainers", "resize"} {
		if _, err := kubeClient.CoreV1().Pods(namespace).Patch(t.Context(), "mine", types.MergePatchType, through, metav1.PatchOptions{}, subresource); err != nil {
			t.Errorf("patch %s: %v", subresource, err)
		}
	}
	if _, err := cnatClient.CnatV1alpha1().Ats(namespace).Patch(t.Context(), "at", types.MergePatchType, through, metav1.PatchOptions{}, "status"); err != nil {
		t.Errorf("patch ats/status: %v", err)
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

	// A reference to another kind with the UID of the At does not make it the owner.
	startController(t, namespace)
	kubectl(t, pod(owner("v1", "ConfigMap", true)), "create", "--as="+user, "-n", namespace, "-f", "-")
	kubectl(t, "", "patch", "-n", namespace, "at/at", "--type=merge", "-p", `{"spec":{"suspend":false,"schedule":"2000-01-01T00:00:00Z"}}`)
	waitAt(t, namespace, "at", "to run or to be blocked", func(at *v1alpha1.At) bool {
		if at.Status.Phase == v1alpha1.PhaseRunning && at.Status.Pod != nil {
			forged := waitPod(t, namespace, "at-pod").Labels[v1alpha1.LabelAtUID] == ""
			if forged {
				t.Errorf("a forged Pod counts as the run")
			}
			return true
		}
		return at.Status.Reason == v1alpha1.ReasonPodNameConflict
	})
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
	only := bindRole(t, namespace, "only", []rbacv1.PolicyRule{{APIGroups: []string{"apps"}, Resources: append(slices.Clone(resources), status...), Verbs: []string{"get"}}, {APIGroups: []string{"apps"}, Resources: status, Verbs: []string{"patch", "update"}}})
	both := bindRole(t, namespace, "both", []rbacv1.PolicyRule{{APIGroups: []string{"apps"}, Resources: append(slices.Clone(resources), status...), Verbs: []string{"get", "patch"}}})
	waitAllowed(t, both, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "patch", Group: "apps", Resource: resources[0], Name: "web"})
	for kind, resource := range restartKinds {
		kubectl(t, fmt.Sprintf(`{"apiVersion": "apps/v1", "kind": %q, "metadata": {"name": "web", "annotations": {%q: "0 3 * * *"}}, "spec": {"selector": {"matchLabels": {"app": "web"}},
			"template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "a"}]}}}}`, kind, v1alpha1.AnnotationRestartSchedule), "create", "-n", namespace, "-f", "-")
		try := func(user, annotations string) (string, error) {
			return tryKubectl(t, "", "patch", "--as="+user, "-n", namespace, resource+"/web", "--subresource=status", "--dry-run=server", "--type=merge", "-p", `{"metadata":{"annotations":`+annotations+`}}`)
		}
		denied := fmt.Sprintf("restart %s web, and user %s may not patch it in namespace %s: ask for a role that may patch %s.apps, such as edit", kind, only, namespace, resource)
		eventually(t, "the policy to be in force", func(context.Context) (bool, error) {
			out, err := try(only, `{"`+v1alpha1.AnnotationRestartSchedule+`":null}`)
			return err != nil && strings.Contains(out, denied), nil
		})
		for _, annotation := range []string{v1alpha1.AnnotationRestartSchedule, v1alpha1.AnnotationRestartTimeZone, v1alpha1.AnnotationRestartSuspend} {
			patch := fmt.Sprintf(`{%q: "x"}`, annotation)
			out, err := try(only, patch)
			wantAnswer(t, resource+" "+patch, out, err, denied)
			out, err = try(both, patch)
			wantAnswer(t, resource+" "+patch, out, err, "")
		}
		out, err := try(only, `{"a": "b"}`)
		wantAnswer(t, resource+", another annotation", out, err, "")
	}
}

// TestRevokeToken shows that a finalizer keeps permissions and tokens alive, and what
// revokes them, as described in docs/security.md.
func TestRevokeToken(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	held := metav1.ObjectMeta{Name: serviceAccount, Finalizers: []string{v1alpha1.FinalizerReleasePods}}
	user := bindRole(t, namespace, held.Name, []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}})
	hold := `{"metadata":{"finalizers":["` + v1alpha1.FinalizerReleasePods + `"]}}`
	for _, object := range []string{"serviceaccount/", "rolebinding/"} {
		kubectl(t, "", "patch", "-n", namespace, object+held.Name, "--type=merge", "-p", hold)
	}
	waitAllowed(t, user, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "list", Resource: "pods"})
	token, err := kubeClient.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), held.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", controllerConfig)
	if err != nil {
		t.Fatal(err)
	}
	config.BearerToken, config.BearerTokenFile = token.Status.Token, ""
	thief, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	use := func(ctx context.Context) error {
		_, err := thief.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		return err
	}

	kubectl(t, "", "delete", "--wait=false", "-n", namespace, "rolebinding/"+held.Name, "serviceaccount/"+held.Name)
	if err := use(t.Context()); err != nil {
		t.Errorf("the token of deleted permissions: %v", err)
	}
	kubectl(t, "", "patch", "-n", namespace, "rolebinding/"+held.Name, "--type=merge", "-p", `{"subjects":null}`)
	eventually(t, "the permissions to be revoked", func(ctx context.Context) (bool, error) { return apierrors.IsForbidden(use(ctx)), nil })
	kubectl(t, "", "patch", "-n", namespace, "serviceaccount/"+held.Name, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	eventually(t, "the token to be revoked", func(ctx context.Context) (bool, error) { return apierrors.IsUnauthorized(use(ctx)), nil })
	// Another service account of the name does not revive it.
	kubectl(t, "", "create", "serviceaccount", "-n", namespace, held.Name)
	if err := use(t.Context()); !apierrors.IsUnauthorized(err) {
		t.Errorf("the token of an earlier service account: %v", err)
	}
	kubectl(t, "", "patch", "-n", namespace, "rolebinding/"+held.Name, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
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
