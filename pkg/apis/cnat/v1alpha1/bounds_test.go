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

package v1alpha1

import (
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// TestBounds checks that the CRDs limit whatever takes a client much more time or memory
// than its length suggests. The goroutine that reads the watch decodes the objects of all
// namespaces.
func TestBounds(t *testing.T) {
	file, err := os.Open("../../../../artifacts/examples/cnat-crd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	decoder := yaml.NewYAMLOrJSONDecoder(file, 4096)
	found := map[string]int{}
	for {
		var crd any
		err := decoder.Decode(&crd)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		checkBounds(t, "", crd, found)
	}
	for _, kind := range []string{"quantity", "list", "selector"} {
		if found[kind] == 0 {
			t.Errorf("found no %s", kind)
		}
	}
}

// freezeSpec is the path of the spec of the kind whose spec has selectors of its own.
const freezeSpec = ".spec.versions.schema.openAPIV3Schema.properties.spec.properties."

func checkBounds(t *testing.T, path string, node any, found map[string]int) {
	t.Helper()
	switch node := node.(type) {
	case map[string]any:
		limit := func(kind, key string, most float64) {
			found[kind]++
			if got, ok := node[key].(float64); !ok || got > most {
				t.Errorf("%s is a %s with %s %v, want at most %v", path, kind, key, node[key], most)
			}
		}
		if _, ok := node["pattern"].(string); ok && node["x-kubernetes-int-or-string"] == true {
			limit("quantity", "maxLength", 64)
		}
		if items, _ := node["items"].(map[string]any); items["type"] == "object" {
			most := 1024.0
			// An empty window is refused.
			if items["required"] == nil && !strings.HasSuffix(path, ".windows") {
				most = 64
			}
			limit("list", "maxItems", most)
		}
		if selector, _ := node["properties"].(map[string]any); strings.HasSuffix(path, ".nodes.properties.selector") || slices.Contains([]string{freezeSpec + "selector", freezeSpec + "namespaceSelector"}, path) {
			node, _ = selector["matchLabels"].(map[string]any)
			limit("selector", "maxProperties", 64)
			node = selector["matchExpressions"].(map[string]any)["items"].(map[string]any)["properties"].(map[string]any)["values"].(map[string]any)
			limit("selector", "maxItems", 5000)
			node, _ = node["items"].(map[string]any)
			limit("selector", "maxLength", 63)
			return
		}
		for key, child := range node {
			checkBounds(t, path+"."+key, child, found)
		}
	case []any:
		for _, child := range node {
			checkBounds(t, path, child, found)
		}
	}
}
