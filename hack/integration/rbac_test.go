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
func permissions(scope string, rules []rbacv1.PolicyRule) (map[string]bool, error) {
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
// TestPermissionsComeLate runs a controller without them.
var finalizers = []string{everywhere + ": update ats/finalizers." + cnat.GroupName, everywhere + ": update cronats/finalizers." + cnat.GroupName}

// held returns the permissions that only tests with a node or with a cluster of their own use, such as those
// for -hold-permissions: in this cluster, a controller that holds them would work in the namespaces of all tests.
func held() map[string]bool {
	asked := map[string]bool{
		permission(inside, "get", "", "namespaces", ""):      true,
		permission(everywhere, "list", "", "events", ""):     true, // TestPodDoesNotStart has Pods that wait for long.
		permission(everywhere, "list", "", "namespaces", ""): true, // TestFreeze selects namespaces.
	}
	for _, verb := range []string{"get", "patch"} {
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
	granted, err := permissions(everywhere, clusterRole.Rules)
	if err != nil {
		return err
	}
	ofRole, err := permissions(inside, role.Rules)
	if err != nil {
		return err
	}
	maps.Copy(granted, ofRole)
	for _, dir := range []string{restarts, annotations} {
		optional, _, err := readRBAC(dir + "/rbac.yaml")
		if err != nil {
			return err
		}
		ofOptional, err := permissions(everywhere, optional.Rules)
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

// TestPermissionsComeLate runs a controller that gets its permissions one after the other: what
// needs them is reported, and then runs.
func TestPermissionsComeLate(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	clusterRole, _, err := readRBAC(deploy + "/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	user := bindRole(t, namespace, "less", slices.DeleteFunc(slices.Clone(clusterRole.Rules), func(rule rbacv1.PolicyRule) bool {
		return slices.ContainsFunc(rule.Resources, func(resource string) bool {
			return strings.HasPrefix(resource, "cronats") || resource == "ats/finalizers" || resource == "nodes"
		})
	})...)
	config := filepath.Join(t.TempDir(), "config")
	if err := writeConfig(config, namespace, "less"); err != nil {
		t.Fatal(err)
	}
	f := startFleet(t, namespace, "a")
	createWorkload(t, namespace, v1alpha1.RestartDeployment, "replicas: 0")
	kubectl(t, "", "annotate", "-n", namespace, "deployment/web", scheduleAnnotation+"=@daily")
	_, scheduled := createOverdue(t, newCronAt(namespace, ""))
	c := startController(t, namespace, "-restart-annotations", "-kubeconfig="+config)
	waitLog(t, c, "CronAts cannot be listed, and do not run until they can: apply artifacts/examples/cnat-crd.yaml and the permissions that come with it")
	waitLog(t, c, "Restart annotations have no effect until the controller can list workloads: grant this user the rules of artifacts/restarts/annotations/rbac.yaml")
	createAt(t, newAt(namespace, "at", time.Now(), "true"))
	wantOutput(t, waitBlocked(t, namespace, v1alpha1.ReasonPodRefused).Message, "cannot set blockOwnerDeletion")

	kubectl(t, "", "create", "role", "finalizers", "-n", namespace, "--verb=update", "--resource=ats.cnat.programming-kubernetes.info/finalizers")
	kubectl(t, "", "create", "rolebinding", "finalizers", "-n", namespace, "--role=finalizers", "--serviceaccount="+namespace+":less")
	waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
	onNodes, pinned, restart, later := newNodesAt(f), newAt(namespace, "pinned", time.Now(), "true"), newRestart(namespace, v1alpha1.RestartDeployment), newRestart(namespace, v1alpha1.RestartDeployment)
	onNodes.Name, restart.Name, later.Name = "nodes", "restart", "later"
	pinned.Spec.Node, later.Spec.Schedule = f.name("a"), "2099-01-01T00:00:00Z"
	reasons := map[*v1alpha1.At][2]string{
		onNodes: {v1alpha1.ReasonNodesForbidden, `require that the controller can get, list and watch nodes: nodes is forbidden: User "` + user + `"`},
		pinned:  {v1alpha1.ReasonNodesForbidden, "nodes is forbidden"},
		restart: {v1alpha1.ReasonRestartForbidden, "^.*" + user + ".*grant this user the verbs get and patch"},
		later:   {v1alpha1.ReasonRestartForbidden, "^If it were due now: .*grant this user the verbs get and patch"},
	}
	for at := range reasons {
		createAt(t, at)
	}
	for at, want := range reasons {
		wantOutput(t, waitBlockedAt(t, namespace, at.Name, want[0]).Message, want[1])
	}
	wantCreated(t, namespace, "at-pod")

	kubectl(t, "", "create", "clusterrolebinding", namespace, "--clusterrole=cnat-controller", "--serviceaccount="+namespace+":less")
	t.Cleanup(func() {
		if out, err := runKubectl(context.Background(), "", "delete", "clusterrolebinding", namespace); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	for _, role := range []string{"cnat-controller-restarts", "cnat-controller-restart-annotations"} {
		kubectl(t, "", "create", "rolebinding", role, "-n", namespace, "--clusterrole="+role, "--serviceaccount="+namespace+":less")
	}
	for _, name := range []string{"nodes", "pinned", "restart"} {
		if at := waitPhase(t, namespace, name, v1alpha1.PhaseDone); at.Status.Reason != v1alpha1.ReasonCompleted {
			t.Errorf("At %s ended as %s: %s", name, at.Status.Reason, at.Status.Message)
		}
	}
	waitPod(t, namespace, scheduled+"-pod")
	waitAt(t, namespace, "later", "to be blocked no longer", func(at *v1alpha1.At) bool { return at.Status.Reason == "" })
	waitNamedCronAt(t, namespace, "deployment-web", "to follow", hasSchedule("@daily"))
}

// rule returns a rule of a role. The verbs are separated by spaces.
func rule(verbs, group string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: strings.Fields(verbs)}
}

// bindRole creates a service account with the rules in the namespace. It returns its
// user name when the API server knows them.
func bindRole(t *testing.T, namespace, name string, rules ...rbacv1.PolicyRule) string {
	t.Helper()
	_, err := kubeClient.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err == nil {
		_, err = kubeClient.RbacV1().Roles(namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
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
	ats := rule("create get patch delete", cnat.GroupName, "ats", "cronats")
	user := bindRole(t, namespace, "less", ats)
	less, enough := actAs(t, user, namespace), actAs(t, bindRole(t, namespace, "enough", ats, rule("create", "", "pods")), namespace)
	denied := "an At runs a Pod, and user " + user + " may not create Pods in namespace " + namespace + ": ask for a role that may, such as edit"
	at := creates(fmt.Sprintf(`{apiVersion: %s, kind: At, metadata: {name: at}, spec: {schedule: "2099-01-01T00:00:00Z", command: "true"}}`, v1alpha1.SchemeGroupVersion))
	cronAt := creates(fmt.Sprintf(`{apiVersion: %s, kind: CronAt, metadata: {name: cronat}, spec: {schedule: 0 0 1 1 *, atTemplate: {spec: {command: "true"}}}}`, v1alpha1.SchemeGroupVersion))
	less.waitDenied(t, denied, at)
	less.want(t, strings.Replace(denied, "an At runs a Pod", "a CronAt runs Pods", 1), cronAt)
	enough.want(t, "", at)
	enough.want(t, "", cronAt)
	enough.want(t, "", merges("ats/at", `{"spec":{"command":"false"}}`))
	less.want(t, denied, merges("ats/at", `{"spec":{"command":"true"}}`))
	// All users who can write Ats can write anything but the spec.
	less.want(t, "", merges("ats/at", `{"metadata":{"labels":{"a":"b"}}}`))
	// To remove such a label runs the At.
	for _, label := range []string{v1alpha1.LabelAtUID, v1alpha1.LabelCronAtUID} {
		actAs(t, "", namespace).want(t, "", merges("ats/at", `{"metadata":{"labels":{"`+label+`":"gone"}}}`))
		remove := merges("ats/at", `{"metadata":{"labels":{"`+label+`":null}}}`)
		less.want(t, denied, remove)
		enough.want(t, "", remove)
	}

	// The policy does not affect the garbage collector.
	less.want(t, "", deletes("ats/at"), "propagationPolicy", "Foreground")
	waitGone(t, namespace, "ats/at")
}

// TestControllerPolicy uses the controller's token as an attacker: the policy
// cnat-controller-pods only allows what the controller does with Pods.
func TestControllerPolicy(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	at := createAt(t, newAt(namespace, "at", time.Now().Add(time.Hour), "true"))
	admin, controller := actAs(t, "", namespace), actAs(t, serviceAccountID, namespace)
	pod := func(name, metadata string) attempt {
		return creates(fmt.Sprintf(`{kind: Pod, apiVersion: v1, metadata: {name: %s, %s}, spec: {containers: [{name: command, image: a}]}}`, name, metadata))
	}
	label := func(key string) string { return fmt.Sprintf("labels: {%s: %s}, ", key, at.UID) }
	owner := func(apiVersion, kind, uid string) string {
		return fmt.Sprintf("ownerReferences: [{apiVersion: %s, kind: %s, name: at, uid: %s, controller: true}], ", apiVersion, kind, uid)
	}
	group, uid := v1alpha1.SchemeGroupVersion.String(), string(at.UID)
	ofRun, ofRehearsal, owned := label(v1alpha1.LabelAtUID), label(v1alpha1.LabelRehearsalOf), owner(group, "At", uid)
	const finalizers = "finalizers: [" + v1alpha1.FinalizerTracking + ", example.com/other]"
	controller.waitDenied(t, "may create only", pod("none", owned+finalizers))
	admin.want(t, "", pod("stranger", ""))
	admin.want(t, "", pod("stripped", owned+finalizers))

	const created, changed, deleted = "may create only Pods that", "may change nothing of a Pod but", "may delete only Pods with the label"
	const release = `{"metadata":{"$deleteFromPrimitiveList/finalizers":["` + v1alpha1.FinalizerTracking + `"]}}`
	// In this order.
	for _, tc := range []rowOf{
		{"create a Pod with the label", pod("at-pod", ofRun+owned+finalizers), ""},
		{"create a Pod without the label", pod("none", owned+finalizers), created},
		{"create a rehearsal", pod("at-rehearsal", ofRehearsal+owned), ""},
		{"create a rehearsal of a CronAt", pod("cronat-rehearsal", ofRehearsal+owner(group, "CronAt", uid)), ""},
		{"create a Pod with both labels", pod("none", strings.Replace(ofRun, "}", ", "+v1alpha1.LabelRehearsalOf+": a}", 1)+owned+finalizers), created},
		{"create a stranger's Pod", pod("none", ""), created},
		{"create a Pod without an owner", pod("none", ofRun+finalizers), created},
		{"create a Pod whose owner is not its controller", pod("none", ofRun+strings.Replace(owned, "true", "false", 1)+finalizers), created},
		{"create a Pod of another At than the label's", pod("none", ofRun+owner(group, "At", "other")+finalizers), created},
		{"create a Pod of a CronAt", pod("none", ofRun+owner(group, "CronAt", uid)+finalizers), created},
		{"create a Pod of another kind", pod("none", ofRun+owner("v1", "ConfigMap", uid)+finalizers), created},
		{"create a Pod of an At of another group", pod("none", ofRun+owner("example.com/v1", "At", uid)+finalizers), created},
		{"change the image", patches("pods/at-pod", `{"spec":{"containers":[{"name":"command","image":"b"}]}}`), changed},
		{"change a label", patches("pods/at-pod", `{"metadata":{"labels":{"a":"b"}}}`), changed},
		{"remove the label", patches("pods/at-pod", `{"metadata":{"labels":{"`+v1alpha1.LabelAtUID+`":null}}}`), changed},
		{"change an annotation", patches("pods/at-pod", `{"metadata":{"annotations":{"a":"b"}}}`), changed},
		{"remove the owner", patches("pods/at-pod", `{"metadata":{"ownerReferences":null}}`), changed},
		{"remove another finalizer", patches("pods/at-pod", `{"metadata":{"$deleteFromPrimitiveList/finalizers":["example.com/other"]}}`), changed},
		{"remove both finalizers", patches("pods/at-pod", `{"metadata":{"finalizers":null}}`), changed},
		{"remove the finalizer, and change a label", patches("pods/at-pod", `{"metadata":{"labels":{"a":"b"},`+release[len(`{"metadata":{`):]), changed},
		{"label a stranger's Pod", patches("pods/stranger", `{"metadata":{"labels":{"`+v1alpha1.LabelAtUID+`":"a"}}}`), changed},
		{"label a stranger's Pod as a rehearsal", patches("pods/stranger", `{"metadata":{"labels":{"`+v1alpha1.LabelRehearsalOf+`":"a"}}}`), changed},
		{"change a rehearsal", patches("pods/at-rehearsal", `{"metadata":{"labels":{"a":"b"}}}`), changed},
		{"add the finalizer to a stranger's Pod", patches("pods/stranger", `{"metadata":{"finalizers":["`+v1alpha1.FinalizerTracking+`"]}}`), changed},
		{"delete a stranger's Pod", deletes("pods/stranger"), deleted},
		{"delete a rehearsal", deletes("pods/at-rehearsal"), ""},
		{"delete a Pod with the label", deletes("pods/at-pod"), ""},
		{"remove the finalizer", patches("pods/at-pod", release), ""},
		{"remove it again", patches("pods/at-pod", release), ""},
		{"delete a Pod whose label a user has removed", deletes("pods/stripped"), ""},
		{"remove its finalizer", patches("pods/stripped", release), ""},
		{"delete it without the finalizer", deletes("pods/stripped"), deleted},
	} {
		controller.want(t, tc.denied, tc.do)
	}
	// The level restricted, which the namespace enforces, would refuse other Pods.
	inSystem := creates(podManifest(t, at, func(pod *corev1.Pod) { pod.Namespace = systemNamespace }))
	actAs(t, serviceAccountID, systemNamespace).want(t, "cnat runs no Pods in the namespace of its controller", inSystem, "dryRun", "All")
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
	admin, controller := actAs(t, "", namespace), actAs(t, serviceAccountID, namespace)
	at := func(name, metadata, spec string) attempt {
		return creates(fmt.Sprintf(`{kind: At, apiVersion: %s, metadata: {name: %s, %s}, spec: {schedule: "2099-01-01T00:00:00Z", command: "true", %s}}`, v1alpha1.SchemeGroupVersion, name, metadata, spec))
	}
	admin.want(t, "", at("parent", "", "nodes: {selector: {}}"))
	admin.want(t, "", at("held", "", "suspend: true"))
	uid := kubectl(t, "", "get", "-n", namespace, "at/parent", "-o", "jsonpath={.metadata.uid}")
	labels := func(key, value string) string { return fmt.Sprintf("labels: {%s: %s}, ", key, value) }
	owner := func(kind string) string {
		return fmt.Sprintf("ownerReferences: [{apiVersion: %s, kind: %s, name: parent, uid: %s, controller: true}], ", v1alpha1.SchemeGroupVersion, kind, uid)
	}
	finalizers := func(name string) string { return "finalizers: [" + name + ", example.com/other]" }
	const onNode = "node: n1, suspend: true"
	byLabel, tracked, scheduled := labels(v1alpha1.LabelAtUID, uid), finalizers(v1alpha1.FinalizerTracking), finalizers(v1alpha1.FinalizerScheduled)
	controller.waitDenied(t, "may create only", at("none", owner("At")+tracked, onNode))
	const created, spec, metadata = "may create only the Ats of the nodes", "may change nothing of the spec", "may change nothing of the metadata"
	// In this order.
	for _, tc := range []rowOf{
		{"create the At of a node", at("child", byLabel+owner("At")+tracked, onNode), ""},
		{"create one without the label", at("none", owner("At")+tracked, onNode), created},
		{"create one with another label", at("none", labels(v1alpha1.LabelAtUID, "other")+owner("At")+tracked, onNode), created},
		{"create one without an owner", at("none", byLabel+tracked, onNode), created},
		{"create one for no node", at("none", byLabel+owner("At")+tracked, "suspend: true"), created},
		{"create one of a CronAt", at("cron-child", labels(v1alpha1.LabelCronAtUID, uid)+owner("CronAt")+scheduled, ""), ""},
		{"create one of a CronAt without the label", at("none", owner("CronAt")+scheduled, ""), created},
		{"create one of a Job", at("none", labels(v1alpha1.LabelCronAtUID, uid)+owner("Job")+scheduled, ""), created},
		{"change the command of one of a CronAt", merges("ats/cron-child", `{"spec":{"command":"false"}}`), spec},
		{"limit the start of one of a CronAt", merges("ats/cron-child", `{"spec":{"startingDeadlineSeconds":60}}`), ""},
		{"change that limit", merges("ats/cron-child", `{"spec":{"startingDeadlineSeconds":61}}`), spec},
		{"limit the start of one of a node", merges("ats/child", `{"spec":{"startingDeadlineSeconds":60}}`), spec},
		{"limit the start, and resume", merges("ats/child", `{"spec":{"startingDeadlineSeconds":60,"suspend":false}}`), spec},
		{"remove the finalizer of one of a CronAt", merges("ats/cron-child", `{"metadata":{"finalizers":["example.com/other"]}}`), ""},
		{"change the command", merges("ats/child", `{"spec":{"command":"false"}}`), spec},
		{"change the command, and resume", merges("ats/child", `{"spec":{"command":"false","suspend":false}}`), spec},
		{"change the schedule of a person's At", merges("ats/parent", `{"spec":{"schedule":"2035-12-24T10:12:00Z"}}`), spec},
		{"resume a person's At", merges("ats/held", `{"spec":{"suspend":false}}`), spec},
		{"suspend a person's At", merges("ats/parent", `{"spec":{"suspend":true}}`), spec},
		{"remove another finalizer", merges("ats/child", `{"metadata":{"finalizers":["`+v1alpha1.FinalizerTracking+`"]}}`), metadata},
		{"change a label", merges("ats/child", `{"metadata":{"labels":{"a":"b"}}}`), metadata},
		{"remove the owner", merges("ats/child", `{"metadata":{"ownerReferences":null}}`), metadata},
		{"resume it", merges("ats/child", `{"spec":{"suspend":false}}`), ""},
		{"remove the finalizer", merges("ats/child", `{"metadata":{"finalizers":["example.com/other"]}}`), ""},
	} {
		controller.want(t, tc.denied, tc.do)
	}
	for _, name := range []string{"ats/child", "ats/cron-child"} {
		admin.want(t, "", merges(name, `{"metadata":{"finalizers":null}}`))
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
