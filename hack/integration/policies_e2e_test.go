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
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

const policies = deploy + "/policy"

// The tests run with the policies, except those that install something themselves.
func init() {
	beforeAll = func(string) error {
		if ownCluster {
			return nil
		}
		if out, err := runKubectl(context.Background(), "", "apply", "-f", policies); err != nil {
			return fmt.Errorf("apply the policies: %w\n%s", err, out)
		}
		return nil
	}
}

// TestPoliciesAreInstalled installs in each way, and attacks as a user who may write Ats and CronAts, and nothing
// else. The policies refuse that, unless they were left out.
func TestPoliciesAreInstalled(t *testing.T) {
	if !inOwnCluster(t) {
		return
	}
	kubectl(t, "", "delete", "--ignore-not-found", "-f", crd)
	namespace := newNamespace(t)
	grant(t, namespace, "attacker", []authorizationv1.ResourceAttributes{
		{Namespace: namespace, Verb: "create", Group: cnat.GroupName, Resource: "ats"},
		{Namespace: namespace, Verb: "create", Group: cnat.GroupName, Resource: "cronats"},
	})
	attacker := actAs(t, "attacker", namespace)
	attacks := []struct{ kind, spec, refused string }{
		{"At", `{schedule: "2099-01-01T00:00:00Z", command: id}`, "an At runs a Pod, and user attacker may not create Pods in namespace " + namespace + ": ask for a role that may, such as edit"},
		{"At", `{schedule: "2099-01-01T00:00:00Z", template: {spec: {serviceAccountName: admin, containers: [{name: main, image: busybox}]}}}`, "an At runs a Pod, and user attacker may not create Pods"},
		{"CronAt", `{schedule: "0 0 1 1 *", atTemplate: {spec: {command: id}}}`, "a CronAt runs Pods, and user attacker may not create Pods"},
		{"At", `{schedule: "2099-01-01T00:00:00Z", restart: {kind: Deployment, name: web}}`, "the At restarts Deployment web, and user attacker may not patch it in namespace " + namespace + ": ask for a role that may patch deployments.apps, such as edit"},
		{"CronAt", `{schedule: "0 0 1 1 *", atTemplate: {spec: {restart: {kind: StatefulSet, name: db}}}}`, "the CronAt restarts StatefulSet db, and user attacker may not patch it"},
	}

	snippets := blocks(t, installPage, "yaml")
	leftOut := slices.IndexFunc(snippets, func(snippet string) bool { return strings.Contains(snippet, "$patch: delete") })
	if leftOut < 0 {
		t.Fatalf("%s does not say how to leave the policies out", installPage)
	}
	without := artifactsWith(t, "resources: [artifacts/deploy]\n"+snippets[leftOut])
	// The default was once to have none.
	oldChart := filepath.Join(without, "artifacts/chart")
	values, err := os.ReadFile(oldChart + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	old := strings.Replace(string(values), "policy:\n  enabled: true", "policy:\n  enabled: false", 1)
	if err := os.WriteFile(oldChart+"/values.yaml", []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(command string) {
		t.Helper()
		args := strings.Fields(command)
		if args[0] == "kubectl" {
			kubectl(t, "", args[1:]...)
		} else if _, err := helm(t, append(args[1:], "--namespace=cnat-helm")...); err != nil {
			t.Fatal(err)
		}
	}
	const manifest = root + "/artifacts/install.yaml"
	const upgrade = "helm upgrade cnat " + chart + " --reset-then-reuse-values"
	// In this order: what is not removed is upgraded.
	for _, way := range []struct {
		name, install, remove string
		isOpen                bool
	}{
		{"kustomize, left out", "kubectl apply -k " + without, "", true},
		{"install.yaml, as an upgrade", "kubectl apply -f " + manifest, "kubectl delete --ignore-not-found -f " + manifest, false},
		{"kustomize", "kubectl apply -k " + deploy, "kubectl delete --ignore-not-found -k " + deploy, false},
		{"Helm", "helm install cnat " + chart + " --create-namespace", "helm uninstall cnat", false},
		{"Helm, left out", "helm install cnat " + chart + " --set=policy.enabled=false", "", true},
		{"Helm, left out in an upgrade", upgrade, "helm uninstall cnat", true},
		{"Helm, with the old default", "helm install cnat " + oldChart, "", true},
		{"Helm, as an upgrade", upgrade, "helm uninstall cnat", false},
	} {
		run(way.install)
		if found := kubectl(t, "", "get", "validatingadmissionpolicies", "-o", "name"); (found == "") != way.isOpen {
			t.Fatalf("%s: there are the policies %q", way.name, found)
		}
		for _, attack := range attacks {
			attempt := creates(fmt.Sprintf("{kind: %s, apiVersion: %s, metadata: {name: attack}, spec: %s}", attack.kind, v1alpha1.SchemeGroupVersion, attack.spec))
			eventually(t, fmt.Sprintf("%s: the answer to %s", way.name, attempt.body), func(context.Context) (bool, error) {
				_, err := attacker.send(t, attempt, "dryRun", "All")
				return err == nil && way.isOpen || err != nil && !way.isOpen && strings.Contains(err.Error(), attack.refused), nil
			})
		}
		if way.remove != "" {
			run(way.remove)
		}
	}
}
