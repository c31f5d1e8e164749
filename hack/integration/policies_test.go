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
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

var (
	definition   = regexp.MustCompile(`^([A-Z]+) = (.*)$`)
	alternatives = regexp.MustCompile(`\(([^()|]*\|[^()]*)\)`)
)

// TestPolicies sends the requests of testdata/policies.txt, which users and a stolen token of the controller may send or not.
func TestPolicies(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/policies.txt")
	if err != nil {
		t.Fatal(err)
	}
	sections := strings.Split(string(text), "\n== ")
	for _, section := range sections[1:] {
		name, lines, _ := strings.Cut(section, "\n")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			if strings.HasSuffix(name, "with artifacts/requester") {
				installRequester(t, namespace)
			}
			tryPolicies(t, namespace, sections[0]+"\n"+lines)
		})
	}
}

// tryPolicies does what the lines of a section say.
func tryPolicies(t *testing.T, namespace, section string) {
	t.Helper()
	texts, retry := []string{"NAMESPACE", namespace}, true
	for line := range strings.Lines(section) {
		line = strings.NewReplacer(texts...).Replace(strings.TrimSpace(line))
		text := definition.FindStringSubmatch(line)
		user, isUser := strings.CutPrefix(line, "user ")
		switch {
		case line == "", strings.HasPrefix(line, "#"):
			continue
		case text != nil:
			texts = append(texts, "$"+text[1], text[2])
			continue
		case isUser:
			name, role, _ := strings.Cut(user, ": ")
			texts = append(texts, "$"+name, bindRole(t, namespace, name, role))
			continue
		}
		for _, row := range choices(line) {
			row, isReal := strings.CutPrefix(row, "+")
			request, want, isDenied := strings.Cut(row, " => ")
			if !isDenied {
				request, want, _ = strings.Cut(row, " ~> ")
			}
			words := append(strings.SplitN(request, " ", 4), "{}")
			user, isKnown := map[string]string{"admin": "", "controller": serviceAccountID}[words[0]]
			switch {
			case strings.Contains(words[0], ":"):
				user = words[0]
			case !isKnown:
				user = "system:serviceaccount:" + namespace + ":" + words[0]
			}
			if !isReal {
				words[2] += "?dryRun=All"
			}
			what, parameters := requestOf(t, words[1], words[2], words[3], nil)
			want = strings.ReplaceAll(want, "USER", user)
			var answer string
			var err error
			isTrue := func(context.Context) (bool, error) {
				answer, err = actAs(t, user, namespace).send(t, what, parameters...)
				if isDenied {
					return err != nil && strings.Contains(err.Error(), want), nil
				}
				return err == nil && strings.Contains(answer, want), nil
			}
			if retry && want != "" {
				eventually(t, row, isTrue)
				retry = false
			} else if ok, _ := isTrue(t.Context()); !ok {
				t.Errorf("%s: got %v, %s", row, err, answer)
			}
			var object metav1.PartialObjectMetadata
			if isReal && json.Unmarshal([]byte(answer), &object) == nil {
				texts = append(texts, "UID("+object.Name+")", string(object.UID))
			}
		}
	}
}

// choices returns a line with each choice of its alternatives.
func choices(line string) (lines []string) {
	match := alternatives.FindStringSubmatch(line)
	if match == nil {
		return []string{line}
	}
	for choice := range strings.SplitSeq(match[1], "|") {
		lines = append(lines, choices(strings.ReplaceAll(line, match[0], choice))...)
	}
	return lines
}

// installRequester installs artifacts/requester for the namespace, until the test has ended.
func installRequester(t *testing.T, namespace string) {
	t.Helper()
	if !strings.Contains(kubectl(t, "", "get", "--raw=/apis/admissionregistration.k8s.io/v1"), `"mutatingadmissionpolicies"`) {
		t.Skip("this version of Kubernetes has no MutatingAdmissionPolicies")
	}
	policy, err := os.ReadFile(root + "/artifacts/requester/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const binding = "  policyName: cnat-requester\n"
	selected := strings.Replace(string(policy), binding, binding+"  matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: "+namespace+"}}}\n", 1)
	kubectl(t, selected, "apply", "-f", "-")
	cleanUp(t, selected, "delete", "-f", "-")
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
		sets, err := isAllowed(t.Context(), user, authorizationv1.ResourceAttributes{Namespace: "default", Verb: "update", Group: cnat.GroupName, Resource: "ats", Subresource: "status"})
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

// TestRevokeToken shows that a finalizer keeps permissions and tokens alive, and what
// revokes them, as described in docs/security.md.
func TestRevokeToken(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	bindRole(t, namespace, serviceAccount, "list pods")
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
		cleanUp(t, "", "delete", "validatingadmissionpolicy", policy.Name)
		created = waitObject(t, policies, created.Name, "to be checked", func(policy *admissionregistrationv1.ValidatingAdmissionPolicy) bool {
			return policy.Status.ObservedGeneration == policy.Generation && policy.Status.TypeChecking != nil
		})
		for _, warning := range created.Status.TypeChecking.ExpressionWarnings {
			t.Errorf("%s: %s: %s", created.Name, warning.FieldRef, warning.Warning)
		}
	}
}
