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

package inventory

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"

	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
	cnatmetrics "programming-kubernetes.info/cnat-controller/pkg/metrics"
)

// TestRegister checks that there is a counter for each reason with which a run can end:
// an alert does not see the first increase of a counter that did not exist before.
func TestRegister(t *testing.T) {
	cnatmetrics.Register()
	Register(Objects{Ats: listers.NewAtLister(newIndexer()), CronAts: noCronAts, Working: working}, 100)
	types, err := parser.ParseFile(token.NewFileSet(), "../apis/cnat/v1alpha1/types.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, decl := range types.Decls {
		block, ok := decl.(*ast.GenDecl)
		if !ok || !strings.HasPrefix(block.Doc.Text(), "Reasons of the conditions Complete, Failed") {
			continue
		}
		for _, spec := range block.Specs {
			reason, err := strconv.Unquote(spec.(*ast.ValueSpec).Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			found++
			counters, err := testutil.GetCounterValuesFromGatherer(legacyregistry.DefaultGatherer, "cnat_runs_total", map[string]string{"namespace": cnatmetrics.OtherNamespaces, "reason": reason}, "reason")
			if err != nil || len(counters) != 1 {
				t.Errorf("%d counters of runs with reason %s, want 1: %v", len(counters), reason, err)
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d reasons found", found)
	}
}
