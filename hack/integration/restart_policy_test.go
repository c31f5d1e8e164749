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
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// restartKinds maps the kinds of workloads that can be restarted to their resources.
var restartKinds = map[v1alpha1.RestartKind]string{
	v1alpha1.RestartDeployment:  "deployments",
	v1alpha1.RestartStatefulSet: "statefulsets",
	v1alpha1.RestartDaemonSet:   "daemonsets",
}

// TestRestartPolicy checks the policy cnat-restarts: users can only write Ats and CronAts
// that restart a workload if they can patch that workload. They do not need permission to
// create Pods.
func TestRestartPolicy(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	resources := []string{"deployments", "statefulsets", "daemonsets"}
	rules := []rbacv1.PolicyRule{{APIGroups: []string{cnat.GroupName}, Resources: []string{"ats", "cronats"}, Verbs: []string{"create", "get", "patch", "update"}}}
	bindMore := func(name string, more rbacv1.PolicyRule) string {
		user := bindRole(t, namespace, name, append(slices.Clone(rules), more))
		waitAllowed(t, user, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "create", Group: cnat.GroupName, Resource: "cronats"})
		return user
	}
	pods := bindMore("pods", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"create"}})
	reader := bindMore("reader", rbacv1.PolicyRule{APIGroups: []string{"apps"}, Resources: resources, Verbs: []string{"get", "list", "watch", "update"}})
	web := bindMore("web", rbacv1.PolicyRule{APIGroups: []string{"apps"}, Resources: resources, ResourceNames: []string{"web"}, Verbs: []string{"patch"}})
	all := bindMore("all", rbacv1.PolicyRule{APIGroups: []string{"apps"}, Resources: resources, Verbs: []string{"patch"}})
	deployments := bindMore("deployments", rbacv1.PolicyRule{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"patch"}})

	manifest := func(kind string, restart v1alpha1.RestartKind, name string) string {
		spec := fmt.Sprintf(`{"restart": {"kind": %q, "name": %q}}`, restart, name)
		if kind == v1alpha1.AtKind {
			spec = `{"schedule": "2099-01-01T00:00:00Z", ` + spec[1:]
		} else {
			spec = `{"schedule": "0 0 1 1 *", "atTemplate": {"spec": ` + spec + `}}`
		}
		return fmt.Sprintf(`{"apiVersion": "%s", "kind": %q, "metadata": {"generateName": "restart-"}, "spec": %s}`, v1alpha1.SchemeGroupVersion, kind, spec)
	}
	denied := func(user, kind string, restart v1alpha1.RestartKind, name string) string {
		return fmt.Sprintf("the %s restarts %s %s, and user %s may not patch it in namespace %s: ask for a role that may patch %s.apps, such as edit",
			kind, restart, name, user, namespace, restartKinds[restart])
	}
	create := func(user, input string) (string, error) {
		return tryKubectl(t, input, "create", "--dry-run=server", "--as="+user, "-n", namespace, "-f", "-")
	}
	eventually(t, "the policy to be in force", func(context.Context) (bool, error) {
		out, err := create(reader, manifest(v1alpha1.AtKind, v1alpha1.RestartDeployment, "web"))
		return err != nil && strings.Contains(out, denied(reader, v1alpha1.AtKind, v1alpha1.RestartDeployment, "web")), nil
	})

	for kind := range restartKinds {
		for _, tc := range []struct {
			user, name string
			allowed    bool
		}{
			{pods, "web", false},
			{reader, "web", false},
			{web, "web", true},
			{web, "db", false},
			{all, "db", true},
			{deployments, "db", kind == v1alpha1.RestartDeployment},
		} {
			for _, written := range []string{v1alpha1.AtKind, v1alpha1.CronAtKind} {
				out, err := create(tc.user, manifest(written, kind, tc.name))
				if want := denied(tc.user, written, kind, tc.name); (err == nil) != tc.allowed || err != nil && !strings.Contains(out, want) {
					t.Errorf("%s creates %s of %s %s: %s\nwant %v or: %s", tc.user, written, kind, tc.name, out, tc.allowed, want)
				}
			}
		}
	}

	// Edits: from one workload to another, and between a restart and a command.
	kubectl(t, fmt.Sprintf(`
{apiVersion: %[1]s, kind: At, metadata: {name: restarts}, spec: {schedule: "2099-01-01T00:00:00Z", restart: {kind: Deployment, name: web}}}
---
{apiVersion: %[1]s, kind: At, metadata: {name: runs}, spec: {schedule: "2099-01-01T00:00:00Z", command: "true"}}
---
{apiVersion: %[1]s, kind: CronAt, metadata: {name: restarts}, spec: {schedule: "0 0 1 1 *", atTemplate: {spec: {restart: {kind: Deployment, name: web}}}}}
---
{apiVersion: %[1]s, kind: CronAt, metadata: {name: runs}, spec: {schedule: "0 0 1 1 *", atTemplate: {spec: {command: "true"}}}}
`, v1alpha1.SchemeGroupVersion), "create", "-n", namespace, "-f", "-")
	for _, written := range []string{v1alpha1.AtKind, v1alpha1.CronAtKind} {
		patch := func(user, name, patch string) (string, error) {
			if written == v1alpha1.CronAtKind {
				patch = `{"atTemplate":{"spec":` + patch + `}}`
			}
			return tryKubectl(t, "", "patch", "--dry-run=server", "--as="+user, "-n", namespace, written+"/"+name, "--type=merge", "-p", `{"spec":`+patch+`}`)
		}
		const db, sts, deadline, command = `{"restart":{"name":"db"}}`, `{"restart":{"kind":"StatefulSet"}}`, `{"activeDeadlineSeconds":60}`, `{"restart":null,"command":"true"}`
		const restartWeb, restartDB = `{"command":null,"restart":{"kind":"Deployment","name":"web"}}`, `{"command":null,"restart":{"kind":"Deployment","name":"db"}}`
		runsPod := "may not create Pods in namespace " + namespace
		for _, tc := range []struct {
			user, name, patch string
			denied            string // empty: allowed
		}{
			{all, "restarts", db, ""},
			{web, "restarts", deadline, ""},
			{web, "restarts", db, denied(web, written, v1alpha1.RestartDeployment, "db")},
			{deployments, "restarts", sts, denied(deployments, written, v1alpha1.RestartStatefulSet, "web")},
			{reader, "restarts", deadline, denied(reader, written, v1alpha1.RestartDeployment, "web")},
			{web, "restarts", command, runsPod},
			{pods, "restarts", command, ""},
			{web, "runs", restartWeb, ""},
			{web, "runs", restartDB, denied(web, written, v1alpha1.RestartDeployment, "db")},
			{pods, "runs", restartWeb, denied(pods, written, v1alpha1.RestartDeployment, "web")},
		} {
			out, err := patch(tc.user, tc.name, tc.patch)
			wantAnswer(t, fmt.Sprintf("%s patches %s %s with %s", tc.user, written, tc.name, tc.patch), out, err, tc.denied)
		}
		// All users who can write Ats can write anything but the spec.
		kubectl(t, "", "label", "--as="+reader, "-n", namespace, written+"/restarts", "a=b")
	}
	// To remove such a label runs the At.
	kubectl(t, "", "label", "-n", namespace, "at/restarts", v1alpha1.LabelCronAtUID+"=gone")
	want := denied(pods, v1alpha1.AtKind, v1alpha1.RestartDeployment, "web")
	if out, err := tryKubectl(t, "", "label", "--as="+pods, "-n", namespace, "at/restarts", v1alpha1.LabelCronAtUID+"-"); err == nil || !strings.Contains(out, want) {
		t.Errorf("the removal of a label was admitted: %s", out)
	}
	kubectl(t, "", "label", "--as="+web, "-n", namespace, "at/restarts", v1alpha1.LabelCronAtUID+"-")
}

// TestRestartControllerPolicy uses the controller's token as an attacker: under the
// policy cnat-controller-restarts, it can restart a workload, but cannot change anything
// else in it.
func TestRestartControllerPolicy(t *testing.T) {
	t.Parallel()
	for kind, resource := range restartKinds {
		t.Run(resource, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			object := resource + "/web"
			kubectl(t, fmt.Sprintf(`
apiVersion: apps/v1
kind: %s
metadata: {name: web, labels: {app: web}, annotations: {example.com/a: a}, finalizers: [example.com/other]}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}, annotations: {example.com/a: a}}
    spec: {containers: [{name: web, image: web}]}
`, kind), "create", "-n", namespace, "-f", "-")
			t.Cleanup(func() {
				// Otherwise its namespace would stay forever.
				_, err := kubeClient.AppsV1().RESTClient().Patch(types.MergePatchType).Namespace(namespace).Resource(resource).Name("web").
					Body([]byte(`{"metadata":{"finalizers":null}}`)).Do(context.Background()).Raw()
				if err != nil {
					t.Error(err)
				}
			})
			try := func(user, patch string, flags ...string) (string, error) {
				return tryKubectl(t, "", append(flags, "patch", "--as="+user, "-n", namespace, object, "--type=merge", "--field-manager=cnat-controller", "-p", patch)...)
			}
			eventually(t, "the policy to be in force", func(context.Context) (bool, error) {
				out, err := try(serviceAccountID, `{"spec":{"minReadySeconds":1}}`, "--dry-run=server")
				return err != nil && strings.Contains(out, "may change nothing of the spec"), nil
			})
			const spec, metadata = "may change nothing of the spec of a workload", "may change nothing of the metadata of a workload"
			restart := func(at string) string {
				return `{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"` + at + `"}}}}}`
			}
			// In this order.
			for _, tc := range []struct {
				patch  string
				denied string // empty: allowed
			}{
				{restart("2035-12-24T10:12:00Z"), ""},
				{restart("2026-12-25T10:12:00Z"), ""},
				{`{"spec":{"replicas":3}}`, spec},
				{`{"spec":{"minReadySeconds":1}}`, spec},
				{`{"spec":{"revisionHistoryLimit":1}}`, spec},
				{`{"spec":{"template":{"spec":{"containers":[{"name":"web","image":"other"}]}}}}`, spec},
				{`{"spec":{"template":{"spec":{"serviceAccountName":"admin"}}}}`, spec},
				{`{"spec":{"template":{"metadata":{"labels":{"b":"b"}}}}}`, spec},
				{`{"spec":{"template":{"metadata":{"annotations":{"example.com/b":"b"}}}}}`, spec},
				{`{"spec":{"template":{"metadata":{"annotations":{"example.com/a":"b"}}}}}`, spec},
				{`{"spec":{"template":{"metadata":{"annotations":{"example.com/a":null}}}}}`, spec},
				{`{"spec":{"template":{"metadata":{"annotations":null}}}}`, spec},
				{`{"spec":{"minReadySeconds":1,` + restart("2026-12-26T10:12:00Z")[len(`{"spec":{`):], spec},
				{`{"metadata":{"labels":{"b":"b"}}}`, metadata},
				{`{"metadata":{"annotations":{"example.com/a":null}}}`, metadata},
				{`{"metadata":{"finalizers":null}}`, metadata},
				{`{"metadata":{"labels":null},` + restart("2026-12-26T10:12:00Z")[1:], metadata},
			} {
				if resource == "daemonsets" && strings.Contains(tc.patch, "replicas") {
					continue // It has none.
				}
				out, err := try(serviceAccountID, tc.patch)
				wantAnswer(t, "patch "+tc.patch, out, err, tc.denied)
			}
			got := kubectl(t, "", "get", "-n", namespace, object, "-o", `jsonpath={.spec.template.metadata.annotations.kubectl\.kubernetes\.io/restartedAt}`)
			if want := "2026-12-25T10:12:00Z"; got != want {
				t.Errorf("restartedAt is %q, want %q", got, want)
			}

			// Other users are not restricted.
			other := bindRole(t, namespace, "other", []rbacv1.PolicyRule{{APIGroups: []string{"apps"}, Resources: []string{resource}, Verbs: []string{"get", "patch"}}})
			waitAllowed(t, other, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "patch", Group: "apps", Resource: resource, Name: "web"})
			if out, err := try(other, `{"metadata":{"labels":{"b":"b"}},"spec":{"minReadySeconds":1}}`); err != nil {
				t.Errorf("another user: %v: %s", err, out)
			}
		})
	}
}
