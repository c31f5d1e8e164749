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
	"strings"
	"testing"

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
	bindMore := func(name string, more rbacv1.PolicyRule) string {
		return bindRole(t, namespace, name, rule("create get patch update", cnat.GroupName, "ats", "cronats"), more)
	}
	pods := bindMore("pods", rule("create", "", "pods"))
	reader := bindMore("reader", rule("get list watch update", "apps", resources...))
	ofWeb := rule("patch", "apps", resources...)
	ofWeb.ResourceNames = []string{"web"}
	web := bindMore("web", ofWeb)
	all := bindMore("all", rule("patch", "apps", resources...))
	deployments := bindMore("deployments", rule("patch", "apps", "deployments"))

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
	actAs(t, reader, namespace).waitDenied(t, denied(reader, v1alpha1.AtKind, v1alpha1.RestartDeployment, "web"), creates(manifest(v1alpha1.AtKind, v1alpha1.RestartDeployment, "web")))

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
				want := denied(tc.user, written, kind, tc.name)
				if tc.allowed {
					want = ""
				}
				actAs(t, tc.user, namespace).want(t, want, creates(manifest(written, kind, tc.name)), "dryRun", "All")
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
			patch := `{"spec":` + tc.patch + `}`
			if written == v1alpha1.CronAtKind {
				patch = `{"spec":{"atTemplate":{"spec":` + tc.patch + `}}}`
			}
			actAs(t, tc.user, namespace).want(t, tc.denied, merges(strings.ToLower(written)+"s/"+tc.name, patch), "dryRun", "All")
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
			controller := actAs(t, serviceAccountID, namespace)
			controller.waitDenied(t, "may change nothing of the spec", merges(object, `{"spec":{"minReadySeconds":1}}`))
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
				controller.want(t, tc.denied, merges(object, tc.patch))
			}
			got := kubectl(t, "", "get", "-n", namespace, object, "-o", `jsonpath={.spec.template.metadata.annotations.kubectl\.kubernetes\.io/restartedAt}`)
			if want := "2026-12-25T10:12:00Z"; got != want {
				t.Errorf("restartedAt is %q, want %q", got, want)
			}

			// Other users are not restricted.
			other := bindRole(t, namespace, "other", rule("get patch", "apps", resource))
			actAs(t, other, namespace).want(t, "", merges(object, `{"metadata":{"labels":{"b":"b"}},"spec":{"minReadySeconds":1}}`))
		})
	}
}
