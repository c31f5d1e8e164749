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
	"flag"
	"fmt"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

const (
	annotations      = restarts + "/annotations"
	serviceAccount   = "cnat-controller"
	serviceAccountID = "system:serviceaccount:" + systemNamespace + ":" + serviceAccount
)

// All controllers of these tests run as the deployed service account, with the
// permissions of artifacts/deploy/rbac.yaml, artifacts/restarts and
// artifacts/restarts/annotations, and under the policies of artifacts/deploy/policy. At the end,
// the granted permissions must equal those that were used.
func init() {
	beforeAll, afterAll = becomeServiceAccount, compareGranted
}

// controllerBinary returns the path of the controller.
func controllerBinary() string { return filepath.Join(programs, "cnat-controller") }

// becomeServiceAccount builds the controller, unless another process has, and creates the prerequisites of
// these tests in dir.
func becomeServiceAccount(dir string) error {
	if !ownCluster {
		build := exec.Command("go", "build", fmt.Sprintf("-race=%v", raceEnabled), "-o", controllerBinary(), root)
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build the controller: %w\n%s", err, out)
		}
	}
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
	return writeToken(path, token.Status.Token)
}

// writeToken writes the kubeconfig of a user with a token.
func writeToken(path, token string) error {
	config, err := clientcmd.LoadFromFile(os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	for _, user := range config.AuthInfos {
		*user = clientcmdapi.AuthInfo{Token: token}
	}
	return clientcmd.WriteToFile(*config, path)
}

// grants returns the permissions that manifests bind to the service account of the controller, a line each.
func grants(manifests string) (map[string]bool, error) {
	type object struct {
		metav1.TypeMeta
		metav1.ObjectMeta `json:"metadata"`
		Rules             []rbacv1.PolicyRule
		RoleRef           rbacv1.RoleRef
		Subjects          []rbacv1.Subject
	}
	rules := map[string][]rbacv1.PolicyRule{} // by kind, namespace and name
	var bindings []object
	objects, err := decode[object](manifests)
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		rules[o.Kind+o.Namespace+"/"+o.Name] = o.Rules
		if slices.ContainsFunc(o.Subjects, func(subject rbacv1.Subject) bool { return subject.Name == serviceAccount }) {
			bindings = append(bindings, o)
		}
	}
	granted := map[string]bool{}
	for _, binding := range bindings {
		scope := everywhere
		if binding.Namespace == binding.Subjects[0].Namespace {
			scope = inside
		} else if binding.Namespace != "" {
			scope = ofAts
		}
		for _, rule := range rules[binding.RoleRef.Kind+binding.Namespace+"/"+binding.RoleRef.Name] {
			if len(rule.NonResourceURLs) > 0 || len(rule.ResourceNames) > 1 || len(rule.APIGroups) > 1 {
				return nil, fmt.Errorf("an unsupported rule: %v", rule)
			}
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					granted[permission(scope, verb, rule.APIGroups[0], resource, strings.Join(rule.ResourceNames, ""))] = true
				}
			}
		}
	}
	return granted, nil
}

// The scopes of permissions: everywhere, or a single namespace, as in docs/reference/permissions.md.
const (
	everywhere = "everywhere"
	inside     = "its own"
	ofAts      = "the Ats'"
)

// permission returns a permission in one line, with the resource as in ats.cnat.programming-kubernetes.info/status.
func permission(scope, verb, group, resource, name string) string {
	resource, subresource, _ := strings.Cut(resource, "/")
	return strings.TrimSpace(fmt.Sprintf("%s: %s %s %s", scope, verb, strings.Trim(strings.Trim(resource+"."+group, ".")+"/"+subresource, "/"), name))
}

// held returns the permissions that no request of these tests uses: the API server checks finalizers when a Pod
// or an At is created whose owner reference blocks the owner's deletion, as TestPermissionsComeLate tries, and the
// others are for tests with a node or with a cluster of their own.
func held() map[string]bool {
	asked := map[string]bool{
		permission(everywhere, "update", cnat.GroupName, "ats/finalizers", ""):     true,
		permission(everywhere, "update", cnat.GroupName, "cronats/finalizers", ""): true,
		permission(inside, "get", "", "namespaces", ""):                            true,
		permission(everywhere, "list", "", "events", ""):                           true, // TestPodDoesNotStart has Pods that wait for long.
		permission(everywhere, "list", "", "namespaces", ""):                       true, // TestFreeze selects namespaces.
	}
	for _, verb := range []string{"get", "patch"} {
		asked[permission(inside, verb, "", "serviceaccounts", serviceAccount)] = true
		for _, resource := range []string{"roles", "rolebindings"} {
			asked[permission(inside, verb, rbacv1.GroupName, resource, serviceAccount)] = true
			asked[permission(everywhere, verb, rbacv1.GroupName, "cluster"+resource, serviceAccount)] = true
		}
	}
	for verb, name := range map[string]string{"create": "", "get": serviceAccount, "update": serviceAccount} {
		asked[permission(inside, verb, "coordination.k8s.io", "leases", name)] = true // TestInCluster has a leader.
	}
	return asked
}

// readAll returns the text of files, such as manifests.
func readAll(paths ...string) (string, error) {
	var all strings.Builder
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		all.Write(text)
		all.WriteString("\n---\n")
	}
	return all.String(), nil
}

// compareGranted compares the permissions that are granted to the service account with
// those that it used, if all tests ran.
func compareGranted() error {
	if flag.Lookup("test.run").Value.String() != "" || flag.Lookup("test.skip").Value.String() != "" {
		return nil
	}
	manifests, err := readAll(deploy+"/rbac.yaml", restarts+"/rbac.yaml", restarts+"/clusterrolebinding.yaml", annotations+"/rbac.yaml")
	if err != nil {
		return err
	}
	granted, err := grants(manifests)
	if err != nil {
		return err
	}
	// Both allowed and denied requests: a denied one means that a permission is missing.
	asked := held()
	requests, err := auditLog()
	if err != nil {
		return err
	}
	for i := range requests {
		if r := &requests[i]; r.User.Username == serviceAccountID && r.ObjectRef != nil {
			asked[permission(everywhere, r.Verb, r.ObjectRef.APIGroup, r.resource(), "")] = true
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(granted)), slices.Sorted(maps.Keys(asked))); diff != "" {
		return fmt.Errorf("what rbac.yaml of artifacts/deploy, artifacts/restarts and artifacts/restarts/annotations grants is not what the tests need (-granted +asked for):\n%s", diff)
	}
	return nil
}

// TestPermissionsComeLate runs a controller that gets the permissions for finalizers late: what
// needs them is reported, and then runs.
func TestPermissionsComeLate(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	bindRole(t, namespace, "less", "get,list,patch,watch ats; update ats/status; create,get,list,patch,watch pods,events")
	config := filepath.Join(t.TempDir(), "config")
	if err := writeConfig(config, namespace, "less"); err != nil {
		t.Fatal(err)
	}
	startController(t, namespace, "-kubeconfig="+config) // without a permission for CronAts
	createAt(t, newAt(namespace, "at", time.Now(), "true"))
	wantOutput(t, waitBlocked(t, namespace, v1alpha1.ReasonPodRefused).Message, "cannot set blockOwnerDeletion")
	kubectl(t, "", "create", "role", "finalizers", "-n", namespace, "--verb=update", "--resource=ats.cnat.programming-kubernetes.info/finalizers")
	kubectl(t, "", "create", "rolebinding", "finalizers", "-n", namespace, "--role=finalizers", "--serviceaccount="+namespace+":less")
	waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
}

// bindRole creates a service account with a role in the namespace, such as "get,list pods,ats; patch deployments named web".
// It returns its user name when the API server knows the role.
func bindRole(t *testing.T, namespace, name, role string) string {
	t.Helper()
	var rules []rbacv1.PolicyRule
	for text := range strings.SplitSeq(role, "; ") {
		text, named, isNamed := strings.Cut(text, " named ")
		verbs, resources, _ := strings.Cut(text, " ")
		rule := rbacv1.PolicyRule{Verbs: strings.Split(verbs, ","), APIGroups: []string{groupOf(strings.Split(resources, ",")[0])}, Resources: strings.Split(resources, ",")}
		if isNamed {
			rule.ResourceNames = []string{named}
		}
		rules = append(rules, rule)
	}
	create(t, kubeClient.CoreV1().ServiceAccounts(namespace), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}})
	create(t, kubeClient.RbacV1().Roles(namespace), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules})
	user := bind(t, namespace, name, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name})
	resource, subresource, _ := strings.Cut(rules[0].Resources[0], "/")
	waitAllowed(t, user, authorizationv1.ResourceAttributes{
		Namespace: namespace, Verb: rules[0].Verbs[0], Group: rules[0].APIGroups[0], Resource: resource, Subresource: subresource, Name: strings.Join(rules[0].ResourceNames, ""),
	})
	return user
}

// bind binds a role to a service account in its namespace, and returns its user name.
func bind(t *testing.T, namespace, name string, role rbacv1.RoleRef) string {
	t.Helper()
	create(t, kubeClient.RbacV1().RoleBindings(namespace), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    role,
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
	})
	return "system:serviceaccount:" + namespace + ":" + name
}

var permissionRow = regexp.MustCompile("(?m)^\\| (`[a-z0-9./,` -]+?`)(?: named `([a-z-]+)`)? \\| ([a-z, ]+) \\| ([^|]+) \\| ([^|]+) \\| [^|]+ \\|$")

// TestPermissions compares docs/reference/permissions.md with the manifests of each installation.
func TestPermissions(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(root + "/docs/reference/permissions.md")
	if err != nil {
		t.Fatal(err)
	}
	main, optional, _ := strings.Cut(string(page), "\n## Restarts\n")
	restarting, _, _ := strings.Cut(optional, "\n## Restart annotations\n")
	for _, tc := range []struct {
		base   string // a folder for kustomize
		more   []string
		tables string
		column int
	}{
		{root + "/artifacts/namespaced", nil, string(page), 5},
		{deploy, nil, main, 4},
		{deploy, []string{restarts + "/rbac.yaml", restarts + "/clusterrolebinding.yaml"}, main + restarting, 4},
		{deploy, []string{restarts + "/rbac.yaml", restarts + "/clusterrolebinding.yaml", annotations + "/rbac.yaml"}, string(page), 4},
	} {
		want := map[string]bool{}
		for _, row := range permissionRow.FindAllStringSubmatch(tc.tables, -1) {
			for resource := range strings.SplitSeq(strings.ReplaceAll(row[1], "`", ""), ", ") {
				for verb := range strings.SplitSeq(row[3], ", ") {
					if where := row[tc.column]; slices.Contains([]string{everywhere, inside, ofAts}, where) {
						want[permission(where, verb, "", resource, row[2])] = true
					}
				}
			}
		}
		more, err := readAll(tc.more...)
		if err != nil {
			t.Fatal(err)
		}
		got, err := grants(kubectl(t, "", "kustomize", tc.base) + "\n---\n" + more)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s %v: %v (-page +manifests)\n%s", tc.base, tc.more, err, diff)
		}
	}
}

// TestUserRoles checks that users with the roles view, edit and admin can read and write
// Ats.
func TestUserRoles(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	all := []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
	for role, want := range map[string][]string{"view": all[:3], "edit": all, "admin": all} {
		user := bind(t, namespace, role, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role})
		eventually(t, role+" to be allowed to "+strings.Join(want, ", ")+", and no more", func(ctx context.Context) (bool, error) {
			for _, verb := range all {
				allowed, err := isAllowed(ctx, user, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Group: cnat.GroupName, Resource: "ats"})
				if err != nil || allowed != slices.Contains(want, verb) {
					return false, err
				}
			}
			return true, nil
		})
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
