//go:build e2e

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
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat"
)

var (
	// A command, and what it needs: verbs and resources.
	permissionsRow = regexp.MustCompile("(?m)^\\| `kubectl at ([^`]+)` \\| (.*) \\|$")
	permissionsOf  = regexp.MustCompile("([a-z, ]+) `([a-z/]+)`")
	resourceGroups = map[string]string{"ats": cnat.GroupName, "cronats": cnat.GroupName, "cronjobs": "batch"}
)

// slowPod has a container that starts some seconds after its Pod exists, so that its log must be waited for.
const slowPod = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "slow"}, "spec": {
	"initContainers": [{"name": "wait", "image": "busybox:1.37.0", "command": ["sleep", "5"]}],
	"containers": [{"name": "main", "image": "busybox:1.37.0", "command": ["echo", "YAY"]}]}}`

// TestCommandPermissions runs each command of the table of docs/tasks/ci.md as a user who has just what the table
// says, and as users who lack one verb of that.
func TestCommandPermissions(t *testing.T) {
	t.Parallel()
	k := at{namespace: newNamespace(t), stdin: slowPod}
	startController(t, k.namespace)
	k.run(t, "now", "--name=done", "--wait", "--", "true").want(t, 0, atResource+"done created\n", runs)
	k.run(t, "every", "@yearly", "--name=yearly", "--suspend", "--", "true").want(t, 0, ".*", ".*")
	kubectl(t, "", "create", "cronjob", "yearly", "-n", k.namespace, "--image=busybox:1.37.0", "--schedule=@yearly", "--", "true")

	// What stands for the words in capitals. NEW is an At for each user.
	commands := map[string][]string{
		"TIME":                     {"now + 1 hour", "--", "true"},
		"TIME --wait":              {"now", "--wait", "--", "true"},
		"TIME --logs":              {"now", "--logs", "-f", "-"},
		"TIME --from at/NAME":      {"now + 1 hour", "--from=at/done"},
		"TIME --from cronjob/NAME": {"now + 1 hour", "--from=cronjob/yearly"},
		"every SCHEDULE":           {"every", "@yearly", "--suspend", "--", "true"},
		"agenda":                   {"agenda"},
		"list":                     {"list"},
		"show NAME":                {"show", "done"},
		"wait NAME":                {"wait", "NEW", "--timeout=3s"},
		"logs NAME":                {"logs", "done"},
		"logs NAME -f":             {"logs", "NEW", "-f"},
		"move NAME TIME":           {"move", "NEW", "now + 2 hours"},
		"suspend NAME":             {"suspend", "NEW"},
		"resume NAME":              {"resume", "NEW"},
		"run-now NAME":             {"run-now", "NEW"},
		"run-now cronat/NAME":      {"run-now", "cronat/yearly"},
		"rm NAME":                  {"rm", "NEW"},
	}
	rows := permissionsRow.FindAllStringSubmatch(readPage(t, ciPage), -1)
	if len(rows) != len(commands) {
		t.Errorf("%s has %d commands, want %d", ciPage, len(rows), len(commands))
	}
	for i, row := range rows {
		var all []authorizationv1.ResourceAttributes
		for _, match := range permissionsOf.FindAllStringSubmatch(row[2], -1) {
			for verb := range strings.SplitSeq(match[1], ",") {
				resource, subresource, _ := strings.Cut(match[2], "/")
				all = append(all, authorizationv1.ResourceAttributes{
					Namespace: k.namespace, Verb: strings.TrimSpace(verb), Group: resourceGroups[resource], Resource: resource, Subresource: subresource,
				})
			}
		}
		args := commands[row[1]]
		if len(args) == 0 || len(all) == 0 {
			t.Errorf("%s has %q, which is not tried", ciPage, row[0])
			continue
		}
		try := func(user, want string, granted []authorizationv1.ResourceAttributes) {
			t.Run(row[1]+" "+want, func(t *testing.T) {
				t.Parallel()
				grant(t, k.namespace, user, granted)
				args := slices.Clone(args)
				if own := slices.Index(args, "NEW"); own >= 0 {
					args[own] = user
					if row[1] == "logs NAME -f" {
						k.run(t, "now", "--name="+user, "-f", "-").want(t, 0, ".*", ".*")
					} else {
						createAt(t, newAt(k.namespace, user, time.Now().Add(time.Hour), "true"))
					}
				}
				got := k.run(t, slices.Insert(args, 1, "--as="+user)...)
				if want == "" && strings.Contains(got.stderr, " cannot ") || !strings.Contains(got.stderr, want) {
					t.Errorf("exit code %d, stderr:\n%swant %q", got.code, got.stderr, want)
				}
			})
		}
		try(fmt.Sprintf("enough-%d", i), "", all)
		for j, lacks := range all {
			refused := fmt.Sprintf("cannot %s resource %q", lacks.Verb, resourceOf(lacks))
			if lacks.Verb == "create" && lacks.Resource == "pods" {
				refused = "may not create Pods in namespace" // by the policy
			}
			try(fmt.Sprintf("less-%d-%d", i, j), refused, slices.Delete(slices.Clone(all), j, j+1))
		}
	}
}

// resourceOf returns the name of a resource or a subresource in a rule.
func resourceOf(p authorizationv1.ResourceAttributes) string {
	return strings.TrimSuffix(p.Resource+"/"+p.Subresource, "/")
}

// grant gives a user permissions in a namespace.
func grant(t *testing.T, namespace, user string, permissions []authorizationv1.ResourceAttributes) {
	t.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: user}}
	for _, p := range permissions {
		role.Rules = append(role.Rules, rbacv1.PolicyRule{
			APIGroups: []string{p.Group}, Resources: []string{resourceOf(p)}, Verbs: []string{p.Verb},
		})
	}
	if _, err := kubeClient.RbacV1().Roles(namespace).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "", "create", "rolebinding", user, "-n", namespace, "--role="+user, "--user="+user)
	for _, p := range permissions {
		waitAllowed(t, user, p)
	}
}
