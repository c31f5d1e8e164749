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
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

const (
	deploy           = root + "/artifacts/deploy"
	restarts         = root + "/artifacts/restarts"
	systemNamespace  = "cnat-system"
	serviceAccount   = "cnat-controller"
	serviceAccountID = "system:serviceaccount:" + systemNamespace + ":" + serviceAccount
)

// All controllers of these tests run as the deployed service account, with the
// permissions of artifacts/deploy/rbac.yaml, artifacts/restarts and
// artifacts/restarts/annotations, and under the policies of artifacts/deploy/policy. At the end,
// the granted permissions must equal those that were used.
func init() {
	beforeAll, grantLease, afterAll = becomeServiceAccount, grantLeaseTo, compareGranted
}

// becomeServiceAccount creates the prerequisites of these tests in dir before all of
// them.
func becomeServiceAccount(dir string) error {
	apply := exec.Command("kubectl", "apply", "-f", deploy+"/00-namespace.yaml", "-f", deploy+"/rbac.yaml", "-f", deploy+"/roles.yaml", "-f", deploy+"/policy", "-f", restarts, "-f", annotations)
	if out, err := apply.CombinedOutput(); err != nil {
		return fmt.Errorf("apply the RBAC and the policies: %w\n%s", err, out)
	}
	controllerConfig = filepath.Join(dir, "service-account.kubeconfig")
	return writeConfig(controllerConfig, systemNamespace, serviceAccount)
}

// writeConfig writes the kubeconfig of a service account.
func writeConfig(path, namespace, name string) error {
	token, err := kubeClient.CoreV1().ServiceAccounts(namespace).CreateToken(context.Background(), name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](12 * 60 * 60)},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	config, err := clientcmd.LoadFromFile(os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	for _, user := range config.AuthInfos {
		*user = clientcmdapi.AuthInfo{Token: token.Status.Token}
	}
	return clientcmd.WriteToFile(*config, path)
}

// grantLeaseTo grants in another namespace what the Role for the lease grants in that of
// the controller.
func grantLeaseTo(t *testing.T, namespace string) {
	t.Helper()
	_, role, err := readRBAC(deploy + "/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, err = kubeClient.RbacV1().Roles(namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: role.Name}, Rules: role.Rules}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return
	}
	if err == nil {
		_, err = kubeClient.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role.Name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: systemNamespace, Name: serviceAccount}},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	waitAllowed(t, serviceAccountID, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "create", Group: "coordination.k8s.io", Resource: "leases"})
}

// readRBAC returns the ClusterRole and the Role in a file of manifests, or nil if there
// is none.
func readRBAC(path string) (*rbacv1.ClusterRole, *rbacv1.Role, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	var clusterRole *rbacv1.ClusterRole
	var role *rbacv1.Role
	decoder := yaml.NewYAMLOrJSONDecoder(file, 4096)
	for {
		var object struct {
			metav1.TypeMeta
			metav1.ObjectMeta `json:"metadata"`
			Rules             []rbacv1.PolicyRule
		}
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			return clusterRole, role, nil
		} else if err != nil {
			return nil, nil, err
		}
		switch object.Kind {
		case "ClusterRole":
			clusterRole = &rbacv1.ClusterRole{ObjectMeta: object.ObjectMeta, Rules: object.Rules}
		case "Role":
			role = &rbacv1.Role{ObjectMeta: object.ObjectMeta, Rules: object.Rules}
		}
	}
}

// permissions returns the permissions in the rules of a role, one word each.
func permissions(t *testing.T, scope string, rules []rbacv1.PolicyRule) map[string]bool {
	t.Helper()
	granted, err := tryPermissions(scope, rules)
	if err != nil {
		t.Fatal(err)
	}
	return granted
}

func tryPermissions(scope string, rules []rbacv1.PolicyRule) (map[string]bool, error) {
	granted := map[string]bool{}
	for _, rule := range rules {
		if len(rule.NonResourceURLs) > 0 || len(rule.ResourceNames) > 1 {
			return nil, fmt.Errorf("an unsupported rule: %v", rule)
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					granted[permission(scope, verb, group, resource, strings.Join(rule.ResourceNames, ""))] = true
				}
			}
		}
	}
	return granted, nil
}

// The scopes of permissions: everywhere, or a single namespace.
const (
	everywhere = "everywhere"
	inside     = "in its namespace"
)

func permission(scope, verb, group, resource, name string) string {
	return strings.TrimSpace(fmt.Sprintf("%s: %s %s %s", scope, verb, strings.TrimSuffix(resource+"."+group, "."), name))
}

// finalizers are permissions that no request uses: the API server checks them when a Pod
// or an At is created whose owner reference blocks the owner's deletion.
// TestFinalizersPermission runs a controller without them.
var finalizers = []string{everywhere + ": update ats/finalizers." + cnat.GroupName, everywhere + ": update cronats/finalizers." + cnat.GroupName}

// held returns the permissions for -hold-permissions. In this cluster, a controller that
// holds the permissions would work in the namespaces of all tests. TestUninstall uses them.
func held() map[string]bool {
	asked := map[string]bool{permission(inside, "get", "", "namespaces", ""): true}
	for _, verb := range []string{"get", "list", "patch", "watch"} {
		asked[permission(inside, verb, "", "serviceaccounts", serviceAccount)] = true
		for _, resource := range []string{"roles", "rolebindings"} {
			asked[permission(inside, verb, rbacv1.GroupName, resource, serviceAccount)] = true
			asked[permission(everywhere, verb, rbacv1.GroupName, "cluster"+resource, serviceAccount)] = true
		}
	}
	return asked
}

// compareGranted compares the permissions that are granted to the service account with
// those that it used, if all tests ran.
func compareGranted() error {
	if flag.Lookup("test.run").Value.String() != "" || flag.Lookup("test.skip").Value.String() != "" {
		return nil
	}
	clusterRole, role, err := readRBAC(deploy + "/rbac.yaml")
	if err != nil {
		return err
	}
	granted, err := tryPermissions(everywhere, clusterRole.Rules)
	if err != nil {
		return err
	}
	ofRole, err := tryPermissions(inside, role.Rules)
	if err != nil {
		return err
	}
	maps.Copy(granted, ofRole)
	for _, dir := range []string{restarts, annotations} {
		optional, _, err := readRBAC(dir + "/rbac.yaml")
		if err != nil {
			return err
		}
		ofOptional, err := tryPermissions(everywhere, optional.Rules)
		if err != nil {
			return err
		}
		maps.Copy(granted, ofOptional)
	}
	// Both allowed and denied requests: a denied one means that a permission is missing.
	asked := held()
	asked[finalizers[0]], asked[finalizers[1]] = true, true
	requests, err := auditLog()
	if err != nil {
		return err
	}
	for i := range requests {
		r := &requests[i]
		if r.User.Username != serviceAccountID || r.ObjectRef == nil {
			continue
		}
		scope, name := everywhere, ""
		if r.resource() == "leases" {
			scope = inside
			if r.Verb != "create" { // rules cannot restrict it to an object
				name = r.ObjectRef.Name
			}
		}
		asked[permission(scope, r.Verb, r.ObjectRef.APIGroup, r.resource(), name)] = true
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(granted)), slices.Sorted(maps.Keys(asked))); diff != "" {
		return fmt.Errorf("what rbac.yaml of artifacts/deploy, artifacts/restarts and artifacts/restarts/annotations grants is not what the tests need (-granted +asked for):\n%s", diff)
	}
	return nil
}

// TestFinalizersPermission runs a controller without the permissions that no request
// uses.
func TestFinalizersPermission(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	clusterRole, _, err := readRBAC(deploy + "/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rules := slices.DeleteFunc(slices.Clone(clusterRole.Rules), func(rule rbacv1.PolicyRule) bool { return slices.Contains(rule.Resources, "ats/finalizers") })
	if len(permissions(t, "", rules)) != len(permissions(t, "", clusterRole.Rules))-len(finalizers) {
		t.Fatalf("%v are not granted by a rule of their own", finalizers)
	}
	user := bindRole(t, namespace, "less", rules)
	config := filepath.Join(t.TempDir(), "config")
	if err := writeConfig(config, namespace, "less"); err != nil {
		t.Fatal(err)
	}
	waitAllowed(t, user, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "create", Resource: "pods"})
	startController(t, namespace, "-kubeconfig="+config)
	createAt(t, newAt(namespace, "at", time.Now(), "true"))
	refused := waitBlocked(t, namespace, v1alpha1.ReasonPodRefused)
	const want = "cannot set blockOwnerDeletion"
	if !strings.Contains(refused.Message, want) {
		t.Errorf("condition Blocked says %q, want %q", refused.Message, want)
	}
	createDue(t, newCronAt(namespace, ""))
	cronAt := waitCronAt(t, namespace, "to be blocked", func(cronAt *v1alpha1.CronAt) bool { return cronAt.Status.Reason == v1alpha1.ReasonAtRefused })
	if !strings.Contains(cronAt.Status.Message, want) {
		t.Errorf("the CronAt says %q, want %q", cronAt.Status.Message, want)
	}
}

// bindRole creates a service account with the rules in the namespace, and returns its
// user name.
func bindRole(t *testing.T, namespace, name string, rules []rbacv1.PolicyRule) string {
	t.Helper()
	_, err := kubeClient.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err == nil {
		_, err = kubeClient.RbacV1().Roles(namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return bind(t, namespace, name, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name})
}

// bind binds a role to a service account in its namespace, and returns its user name.
func bind(t *testing.T, namespace, name string, role rbacv1.RoleRef) string {
	t.Helper()
	_, err := kubeClient.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    role,
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return "system:serviceaccount:" + namespace + ":" + name
}

var (
	permissionRow  = regexp.MustCompile("(?m)^\\| (`[a-z0-9./,` -]+?`)(?: named `([a-z-]+)`)? \\| ([a-z, ]+) \\| ([^|]+) \\| ([^|]+) \\| [^|]+ \\|$")
	permissionLine = regexp.MustCompile(`(?m)^(\S*) +\[(.*?)\] +\[(.*?)\] +\[(.*?)\]$`)
)

// TestPermissions compares docs/reference/permissions.md with what Kubernetes lists after each
// installation.
func TestPermissions(t *testing.T) {
	if !inOwnCluster(t) {
		return
	}
	page, err := os.ReadFile(root + "/docs/reference/permissions.md")
	if err != nil {
		t.Fatal(err)
	}
	main, optional, _ := strings.Cut(string(page), "\n## Restarts\n")
	restarting, annotating, _ := strings.Cut(optional, "\n## Restart annotations\n")
	// Those that becomeServiceAccount has created.
	kubectl(t, "", "delete", "clusterrolebindings,rolebindings", "-A", "-l", "app.kubernetes.io/name="+serviceAccount)
	const namespaced = "cnat-default"
	kubectl(t, "", "create", "namespace", namespaced)
	ofEverybody := listPermissions(t, metav1.NamespaceDefault, "system:serviceaccount:default:nobody")
	// In this order.
	for _, tc := range []struct {
		install []string
		tables  string
		column  int
		its     string // namespace
	}{
		{[]string{"-k", root + "/artifacts/namespaced"}, main + restarting + annotating, 5, namespaced},
		{[]string{"-k", deploy}, main, 4, systemNamespace},
		{[]string{"-f", restarts}, main + restarting, 4, systemNamespace},
		{[]string{"-k", annotations}, main + restarting + annotating, 4, systemNamespace},
	} {
		kubectl(t, "", append([]string{"apply"}, tc.install...)...)
		for _, namespace := range []string{tc.its, metav1.NamespaceDefault, metav1.NamespaceSystem} {
			want := map[string]bool{}
			for _, row := range permissionRow.FindAllStringSubmatch(tc.tables, -1) {
				where := row[tc.column]
				if where == "everywhere" || where == "its own" && namespace == tc.its || where == "the Ats'" && namespace == metav1.NamespaceDefault {
					for resource := range strings.SplitSeq(strings.ReplaceAll(row[1], "`", ""), ", ") {
						addPermissions(want, resource, row[2], strings.Split(row[3], ", "))
					}
				}
			}
			var diff string
			// The API server knows new bindings within seconds.
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			err := poll(ctx, t.Name()+": the permissions", func(context.Context) (bool, error) {
				got := listPermissions(t, namespace, "system:serviceaccount:"+tc.its+":"+serviceAccount)
				maps.DeleteFunc(got, func(permission string, _ bool) bool { return ofEverybody[permission] })
				diff = cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got)))
				return diff == "", nil
			})
			cancel()
			if err != nil {
				t.Fatalf("after kubectl apply %s, in namespace %s (-page +listed): %v\n%s", strings.Join(tc.install, " "), namespace, err, diff)
			}
		}
	}
}

// listPermissions returns what kubectl auth can-i --list prints for a user in a namespace.
func listPermissions(t *testing.T, namespace, user string) map[string]bool {
	t.Helper()
	listed := map[string]bool{}
	for _, line := range permissionLine.FindAllStringSubmatch(kubectl(t, "", "auth", "can-i", "--list", "--no-headers", "-n", namespace, "--as="+user), -1) {
		addPermissions(listed, line[1]+line[2], line[3], strings.Fields(line[4])) // a resource, or URLs
	}
	return listed
}

func addPermissions(to map[string]bool, resource, name string, verbs []string) {
	for _, verb := range verbs {
		to[strings.Join([]string{resource, name, verb}, " ")] = true
	}
}

// TestUserRoles checks that users with the roles view, edit and admin can read and write
// Ats.
func TestUserRoles(t *testing.T) {
	t.Parallel()
	all := []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
	for role, want := range map[string][]string{"view": all[:3], "edit": all, "admin": all} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			user := bind(t, namespace, "default", rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role})
			var got []string
			err := poll(t.Context(), t.Name()+": permissions", func(ctx context.Context) (bool, error) {
				got = nil
				for _, verb := range all {
					allowed, err := isAllowed(ctx, user, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Group: cnat.GroupName, Resource: "ats"})
					if err != nil {
						return false, err
					}
					if allowed {
						got = append(got, verb)
					}
				}
				return slices.Equal(got, want), nil
			})
			if err != nil {
				t.Errorf("may %v, want %v", got, want)
			}
		})
	}
}

// TestPolicy checks the policy cnat-create-pods: users can only write Ats if they can
// create the Pod.
func TestPolicy(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	ats := []rbacv1.PolicyRule{{APIGroups: []string{cnat.GroupName}, Resources: []string{"ats", "cronats"}, Verbs: []string{"create", "get", "patch", "delete"}}}
	less := bindRole(t, namespace, "less", ats)
	enough := bindRole(t, namespace, "enough", append(slices.Clone(ats), rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"create"}}))
	for _, user := range []string{less, enough} {
		waitAllowed(t, user, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "create", Group: cnat.GroupName, Resource: "ats"})
	}
	manifest := func(name string) string {
		return fmt.Sprintf(`{"apiVersion": "%s", "kind": "At", "metadata": {"name": %q}, "spec": {"schedule": "2099-01-01T00:00:00Z", "command": "true"}}`, v1alpha1.SchemeGroupVersion, name)
	}
	denied := "an At runs a Pod, and user " + less + " may not create Pods in namespace " + namespace + ": ask for a role that may, such as edit"
	eventually(t, "the policy to be in force", func(context.Context) (bool, error) {
		out, err := tryKubectl(t, manifest("at"), "create", "--dry-run=server", "--as="+less, "-n", namespace, "-f", "-")
		return err != nil && strings.Contains(out, denied), nil
	})

	kubectl(t, manifest("at"), "create", "--as="+enough, "-n", namespace, "-f", "-")
	cronAt := fmt.Sprintf(`{"apiVersion": "%s", "kind": "CronAt", "metadata": {"name": "cronat"}, "spec": {"schedule": "0 0 1 1 *", "atTemplate": {"spec": {"command": "true"}}}}`, v1alpha1.SchemeGroupVersion)
	out, err := tryKubectl(t, cronAt, "create", "--as="+less, "-n", namespace, "-f", "-")
	if err == nil || !strings.Contains(out, strings.Replace(denied, "an At runs a Pod", "a CronAt runs Pods", 1)) {
		t.Errorf("a CronAt was admitted: %s", out)
	}
	kubectl(t, cronAt, "create", "--as="+enough, "-n", namespace, "-f", "-")
	kubectl(t, "", "patch", "--as="+enough, "-n", namespace, "at/at", "--type=merge", "-p", `{"spec":{"command":"false"}}`)
	// All users who can write Ats can write anything but the spec.
	kubectl(t, "", "label", "--as="+less, "-n", namespace, "at/at", "a=b")
	if out, err := tryKubectl(t, "", "patch", "--as="+less, "-n", namespace, "at/at", "--type=merge", "-p", `{"spec":{"command":"true"}}`); err == nil || !strings.Contains(out, denied) {
		t.Errorf("an edit of the command was admitted: %s", out)
	}
	// To remove such a label runs the At.
	for _, label := range []string{v1alpha1.LabelAtUID, v1alpha1.LabelCronAtUID} {
		kubectl(t, "", "label", "-n", namespace, "at/at", label+"=gone")
		if out, err := tryKubectl(t, "", "label", "--as="+less, "-n", namespace, "at/at", label+"-"); err == nil || !strings.Contains(out, denied) {
			t.Errorf("the removal of label %s was admitted: %s", label, out)
		}
		kubectl(t, "", "label", "--as="+enough, "-n", namespace, "at/at", label+"-")
	}

	// The policy does not affect the garbage collector.
	kubectl(t, "", "delete", "--as="+less, "-n", namespace, "--cascade=foreground", "--wait=false", "at/at")
	waitAtGone(t, namespace)
}

// TestControllerPolicy uses the controller's token as an attacker: the policy
// cnat-controller-pods only allows what the controller does with Pods.
func TestControllerPolicy(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	at := createAt(t, newAt(namespace, "at", time.Now().Add(time.Hour), "true"))
	manifest := func(name string, change func(*corev1.Pod)) string {
		return podManifest(t, at, func(pod *corev1.Pod) {
			pod.Name = name
			pod.Finalizers = append(pod.Finalizers, "example.com/other")
			change(pod)
		})
	}
	same := func(*corev1.Pod) {}
	unlabelled := func(pod *corev1.Pod) { delete(pod.Labels, v1alpha1.LabelAtUID) }
	stranger := func(pod *corev1.Pod) {
		unlabelled(pod)
		pod.Finalizers, pod.OwnerReferences = nil, nil
	}
	rehearsal := func(pod *corev1.Pod) {
		pod.Labels, pod.Finalizers = map[string]string{v1alpha1.LabelRehearsalOf: string(at.UID)}, nil
	}
	owned := func(apiVersion, kind string, uid types.UID) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "at", UID: uid, Controller: ptr.To(true)}}
		}
	}
	group := v1alpha1.SchemeGroupVersion.String()
	both := func(pod *corev1.Pod) { pod.Labels[v1alpha1.LabelRehearsalOf] = string(at.UID) }
	// Act as the controller.
	try := func(input string, args ...string) (string, error) {
		return tryKubectl(t, input, append([]string{"--as=" + serviceAccountID, "-n", namespace}, args...)...)
	}
	eventually(t, "the policy to be in force", func(context.Context) (bool, error) {
		_, err := try(manifest("none", unlabelled), "create", "--dry-run=server", "-f", "-")
		return err != nil, nil
	})
	kubectl(t, manifest("stranger", stranger), "create", "-n", namespace, "-f", "-")
	kubectl(t, manifest("stripped", unlabelled), "create", "-n", namespace, "-f", "-")

	const release = `{"metadata":{"$deleteFromPrimitiveList/finalizers":["` + v1alpha1.FinalizerTracking + `"]}}`
	create := []string{"create", "-f", "-"}
	patch := func(pod, patch string) []string { return []string{"patch", "pod/" + pod, "-p", patch} }
	remove := func(pod string) []string { return []string{"delete", "--wait=false", "pod/" + pod} }
	// In this order.
	for _, tc := range []struct {
		what   string
		input  string
		args   []string
		denied string // empty: allowed
	}{
		{"create a Pod with the label", manifest("at-pod", same), create, ""},
		{"create a Pod without the label", manifest("none", unlabelled), create, "may create only Pods that"},
		{"create a rehearsal", manifest("at-rehearsal", rehearsal), create, ""},
		{"create a rehearsal of a CronAt", manifest("cronat-rehearsal", func(pod *corev1.Pod) {
			rehearsal(pod)
			owned(group, v1alpha1.CronAtKind, at.UID)(pod)
		}), create, ""},
		{"create a Pod with both labels", manifest("none", both), create, "may create only Pods that"},
		{"create a stranger's Pod", manifest("none", stranger), create, "may create only Pods that"},
		{"create a Pod without an owner", manifest("none", func(pod *corev1.Pod) { pod.OwnerReferences = nil }), create, "may create only Pods that"},
		{"create a Pod whose owner is not its controller", manifest("none", func(pod *corev1.Pod) { pod.OwnerReferences[0].Controller = nil }), create, "may create only Pods that"},
		{"create a Pod of another At than the label's", manifest("none", owned(group, v1alpha1.AtKind, "other")), create, "may create only Pods that"},
		{"create a Pod of a CronAt", manifest("none", owned(group, v1alpha1.CronAtKind, at.UID)), create, "may create only Pods that"},
		{"create a Pod of another kind", manifest("none", owned("v1", "ConfigMap", at.UID)), create, "may create only Pods that"},
		{"create a Pod of an At of another group", manifest("none", owned("example.com/v1", v1alpha1.AtKind, at.UID)), create, "may create only Pods that"},
		{"create a Pod in its own namespace", manifest("none", func(pod *corev1.Pod) { pod.Namespace = systemNamespace }), []string{"create", "--namespace=" + systemNamespace, "-f", "-"}, "cnat runs no Pods in the namespace of its controller"},
		{"change the image", "", patch("at-pod", `{"spec":{"containers":[{"name":"command","image":"b"}]}}`), "may change nothing of a Pod but"},
		{"change a label", "", patch("at-pod", `{"metadata":{"labels":{"a":"b"}}}`), "may change nothing of a Pod but"},
		{"remove the label", "", patch("at-pod", `{"metadata":{"labels":{"`+v1alpha1.LabelAtUID+`":null}}}`), "may change nothing of a Pod but"},
		{"change an annotation", "", patch("at-pod", `{"metadata":{"annotations":{"a":"b"}}}`), "may change nothing of a Pod but"},
		{"remove the owner", "", patch("at-pod", `{"metadata":{"ownerReferences":null}}`), "may change nothing of a Pod but"},
		{"remove another finalizer", "", patch("at-pod", `{"metadata":{"$deleteFromPrimitiveList/finalizers":["example.com/other"]}}`), "may change nothing of a Pod but"},
		{"remove both finalizers", "", patch("at-pod", `{"metadata":{"finalizers":null}}`), "may change nothing of a Pod but"},
		{"remove the finalizer, and change a label", "", patch("at-pod", `{"metadata":{"labels":{"a":"b"},`+release[len(`{"metadata":{`):]), "may change nothing of a Pod but"},
		{"label a stranger's Pod", "", patch("stranger", `{"metadata":{"labels":{"`+v1alpha1.LabelAtUID+`":"a"}}}`), "may change nothing of a Pod but"},
		{"label a stranger's Pod as a rehearsal", "", patch("stranger", `{"metadata":{"labels":{"`+v1alpha1.LabelRehearsalOf+`":"a"}}}`), "may change nothing of a Pod but"},
		{"change a rehearsal", "", patch("at-rehearsal", `{"metadata":{"labels":{"a":"b"}}}`), "may change nothing of a Pod but"},
		{"add the finalizer to a stranger's Pod", "", patch("stranger", `{"metadata":{"finalizers":["`+v1alpha1.FinalizerTracking+`"]}}`), "may change nothing of a Pod but"},
		{"delete a stranger's Pod", "", remove("stranger"), "may delete only Pods with the label"},
		{"delete a rehearsal", "", remove("at-rehearsal"), ""},
		{"delete a Pod with the label", "", remove("at-pod"), ""},
		{"remove the finalizer", "", patch("at-pod", release), ""},
		{"remove it again", "", patch("at-pod", release), ""},
		{"delete a Pod whose label a user has removed", "", remove("stripped"), ""},
		{"remove its finalizer", "", patch("stripped", release), ""},
		{"delete it without the finalizer", "", remove("stripped"), "may delete only Pods with the label"},
	} {
		out, err := try(tc.input, tc.args...)
		wantAnswer(t, tc.what, out, err, tc.denied)
	}
	for name, want := range map[string][]string{"at-pod": {"example.com/other"}, "stripped": {"example.com/other"}, "stranger": nil} {
		if pod := waitPod(t, namespace, name); !slices.Equal(pod.Finalizers, want) {
			t.Errorf("Pod %s has the finalizers %v, want %v", name, pod.Finalizers, want)
		}
	}
}

// TestControllerAtsPolicy uses the controller's token as an attacker: under the policy
// cnat-controller-ats, it can only create Ats of nodes and of CronAts, resume the former,
// and limit the start of the latter.
func TestControllerAtsPolicy(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	parent := newAt(namespace, "parent", time.Now().Add(time.Hour), "true")
	parent.Spec.Nodes = &v1alpha1.AtNodes{}
	parent = createAt(t, parent)
	held := newAt(namespace, "held", time.Now().Add(time.Hour), "true")
	held.Spec.Suspend = ptr.To(true)
	createAt(t, held)
	child := newAt(namespace, "child", time.Now().Add(time.Hour), "true")
	child.Labels = map[string]string{v1alpha1.LabelAtUID: string(parent.UID)}
	child.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(parent, v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.AtKind))}
	child.Finalizers = []string{v1alpha1.FinalizerTracking, "example.com/other"}
	child.Spec.Node, child.Spec.Suspend = "n1", ptr.To(true)
	manifest := func(name string, change func(*v1alpha1.At)) string {
		at := child.DeepCopy()
		at.Name, at.APIVersion, at.Kind = name, v1alpha1.SchemeGroupVersion.String(), v1alpha1.AtKind
		change(at)
		out, err := json.Marshal(at)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	ofCronAt := func(at *v1alpha1.At) {
		at.OwnerReferences[0].Kind, at.Spec.Node = v1alpha1.CronAtKind, ""
		at.Labels = map[string]string{v1alpha1.LabelCronAtUID: string(parent.UID)}
		at.Finalizers[0] = v1alpha1.FinalizerScheduled
	}
	// Act as the controller.
	try := func(input string, args ...string) (string, error) {
		return tryKubectl(t, input, append(args, "--as="+serviceAccountID, "-n", namespace)...)
	}
	unlabelled := func(at *v1alpha1.At) { at.Labels = nil }
	eventually(t, "the policy to be in force", func(context.Context) (bool, error) {
		_, err := try(manifest("none", unlabelled), "create", "--dry-run=server", "-f", "-")
		return err != nil, nil
	})
	create := []string{"create", "-f", "-"}
	patch := func(at, patch string) []string { return []string{"patch", "at/" + at, "--type=merge", "-p", patch} }
	// In this order.
	for _, tc := range []struct {
		what   string
		input  string
		args   []string
		denied string // empty: allowed
	}{
		{"create the At of a node", manifest("child", func(*v1alpha1.At) {}), create, ""},
		{"create one without the label", manifest("none", unlabelled), create, "may create only the Ats of the nodes"},
		{"create one with another label", manifest("none", func(at *v1alpha1.At) { at.Labels[v1alpha1.LabelAtUID] = "other" }), create, "may create only the Ats of the nodes"},
		{"create one without an owner", manifest("none", func(at *v1alpha1.At) { at.OwnerReferences = nil }), create, "may create only the Ats of the nodes"},
		{"create one for no node", manifest("none", func(at *v1alpha1.At) { at.Spec.Node = "" }), create, "may create only the Ats of the nodes"},
		{"create one of a CronAt", manifest("cron-child", ofCronAt), create, ""},
		{"create one of a CronAt without the label", manifest("none", func(at *v1alpha1.At) { ofCronAt(at); at.Labels = nil }), create, "may create only the Ats of the nodes"},
		{"create one of a Job", manifest("none", func(at *v1alpha1.At) {
			ofCronAt(at)
			at.OwnerReferences[0].Kind, at.OwnerReferences[0].BlockOwnerDeletion = "Job", nil
		}), create, "may create only the Ats of the nodes"},
		{"change the command of one of a CronAt", "", patch("cron-child", `{"spec":{"command":"false"}}`), "may change nothing of the spec"},
		{"limit the start of one of a CronAt", "", patch("cron-child", `{"spec":{"startingDeadlineSeconds":60}}`), ""},
		{"change that limit", "", patch("cron-child", `{"spec":{"startingDeadlineSeconds":61}}`), "may change nothing of the spec"},
		{"limit the start of one of a node", "", patch("child", `{"spec":{"startingDeadlineSeconds":60}}`), "may change nothing of the spec"},
		{"limit the start, and resume", "", patch("child", `{"spec":{"startingDeadlineSeconds":60,"suspend":false}}`), "may change nothing of the spec"},
		{"remove the finalizer of one of a CronAt", "", patch("cron-child", `{"metadata":{"finalizers":["example.com/other"]}}`), ""},
		{"change the command", "", patch("child", `{"spec":{"command":"false"}}`), "may change nothing of the spec"},
		{"change the command, and resume", "", patch("child", `{"spec":{"command":"false","suspend":false}}`), "may change nothing of the spec"},
		{"change the schedule of a person's At", "", patch("parent", `{"spec":{"schedule":"2035-12-24T10:12:00Z"}}`), "may change nothing of the spec"},
		{"resume a person's At", "", patch("held", `{"spec":{"suspend":false}}`), "may change nothing of the spec"},
		{"suspend a person's At", "", patch("parent", `{"spec":{"suspend":true}}`), "may change nothing of the spec"},
		{"remove another finalizer", "", patch("child", `{"metadata":{"finalizers":["`+v1alpha1.FinalizerTracking+`"]}}`), "may change nothing of the metadata"},
		{"change a label", "", patch("child", `{"metadata":{"labels":{"a":"b"}}}`), "may change nothing of the metadata"},
		{"remove the owner", "", patch("child", `{"metadata":{"ownerReferences":null}}`), "may change nothing of the metadata"},
		{"resume it", "", patch("child", `{"spec":{"suspend":false}}`), ""},
		{"remove the finalizer", "", patch("child", `{"metadata":{"finalizers":["example.com/other"]}}`), ""},
	} {
		out, err := try(tc.input, tc.args...)
		wantAnswer(t, tc.what, out, err, tc.denied)
	}
	for _, at := range []string{"at/child", "at/cron-child"} {
		kubectl(t, "", "patch", "-n", namespace, at, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	}
}

// TestControllerAtsPolicyIsComplete checks that the policy covers each field of the spec:
// the controller can only change suspend.
func TestControllerAtsPolicyIsComplete(t *testing.T) {
	t.Parallel()
	policy, err := os.ReadFile(deploy + "/policy/controller-ats.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[v1alpha1.AtSpec]()) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" || name == "suspend" {
			continue
		}
		same := regexp.MustCompile(`object\.spec\.\??` + name + ` == variables\.before\.spec\.\??` + name + `\b`)
		if !same.Match(policy) {
			t.Errorf("the policy does not cover %s", name)
		}
	}
}
