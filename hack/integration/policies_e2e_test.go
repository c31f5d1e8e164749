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
	"slices"
	"strings"
	"testing"
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

// TestPoliciesAreInstalled finds the policies in each installation, unless they are left out as docs/install.md
// says. TestChart compares the chart with the others. What they refuse is tried without a node.
func TestPoliciesAreInstalled(t *testing.T) {
	t.Parallel()
	snippets := blocks(t, installPage, "yaml")
	leftOut := slices.IndexFunc(snippets, func(snippet string) bool { return strings.Contains(snippet, "$patch: delete") })
	if leftOut < 0 {
		t.Fatalf("%s does not say how to leave the policies out", installPage)
	}
	withoutPolicies, err := helm(t, "template", "cnat", chart, "--set=policy.enabled=false")
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Count(kubectl(t, "", "kustomize", policies), "kind: ValidatingAdmissionPolicy")
	for way, manifests := range map[string]string{
		"install.yaml":        readPage(t, "artifacts/install.yaml"),
		"kustomize":           kubectl(t, "", "kustomize", deploy),
		"kustomize, left out": kubectl(t, "", "kustomize", artifactsWith(t, "resources: [artifacts/deploy]\n"+snippets[leftOut])),
		"Helm, left out":      withoutPolicies,
	} {
		want := all
		if strings.Contains(way, "left out") {
			want = 0
		}
		if got := strings.Count(manifests, "kind: ValidatingAdmissionPolicy"); got != want || all < 20 {
			t.Errorf("%s: it has %d policies and bindings, want %d", way, got, want)
		}
	}
}
