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

// Command slim takes CRDs on its standard input, and prints them with another schema
// below spec.template, or spec.atTemplate.spec.template, if there is one:
//   - without descriptions: with them the CRD would be too large for a client-side
//     kubectl apply, and kubectl explain pod.spec has them;
//   - without the metadata that a Pod cannot take from a template;
//   - with lists whose order counts, as it does for containers and variables, when
//     the template must not change;
//   - with the empty objects that Go clients write, so that one which reads an At
//     and writes it back does not change the template;
//   - with a creationTimestamp that Go can read.
//
// In the whole schema, it limits numbers and quantities to those that Go clients can read.
// Otherwise a single object, in any namespace, would keep the controller from listing all.
// It also limits what takes a Go client much more time or memory than its length suggests.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"sigs.k8s.io/yaml"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "slim:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	content, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	for document := range bytes.SplitSeq(content, []byte("\n---\n")) {
		crd := map[string]any{}
		if err := yaml.Unmarshal(document, &crd); err != nil {
			return err
		}
		versions, _ := at(crd, "spec")["versions"].([]any)
		if len(versions) == 0 {
			return errors.New("not a CRD")
		}
		for _, version := range versions {
			spec := at(version, "schema", "openAPIV3Schema", "properties", "spec", "properties")
			if template := at(spec, "atTemplate", "properties", "spec", "properties"); template != nil {
				spec = template
			}
			selectors := [][]string{{"nodes", "properties", "selector"}}
			if template := at(spec, "template", "properties"); template != nil {
				slimTemplate(template)
			} else if selectors = [][]string{{"selector"}, {"namespaceSelector"}}; at(spec, "windows") == nil {
				return errors.New("there is neither spec.template nor spec.windows")
			}
			for _, path := range selectors {
				limitSelector(at(spec, append(path, "properties")...))
			}
			walk(version, limit)
		}
		if document, err = yaml.Marshal(crd); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "---\n%s", document); err != nil {
			return err
		}
	}
	return nil
}

// slimTemplate changes the schema of the template of a Pod.
func slimTemplate(template any) {
	walk(template, func(schema map[string]any) {
		if _, ok := schema["description"].(string); ok {
			delete(schema, "description")
		}
		if _, ok := schema["x-kubernetes-list-type"].(string); ok {
			delete(schema, "x-kubernetes-list-type")
			delete(schema, "x-kubernetes-list-map-keys")
		}
	})
	metadata := at(template, "metadata")
	metadata["default"] = map[string]any{}
	properties := at(metadata, "properties")
	for name := range properties {
		if name != "labels" && name != "annotations" {
			delete(properties, name)
		}
	}
	// Templates that kubectl before 1.34 has printed hold it as null.
	// The format allows lower case and any fraction of a second, which Go does not.
	properties["creationTimestamp"] = map[string]any{"type": "string", "format": "date-time", "pattern": `^.{10}T[0-9:]{8}Z$`}
	for _, containers := range []string{"containers", "initContainers"} {
		at(template, "spec", "properties", containers, "items", "properties", "resources")["default"] = map[string]any{}
	}
}

// Limits for a label selector, such as that of nodes. Its keys and values have those of labels. It can name
// each node of the largest cluster that Kubernetes is tested with.
const (
	maxRequirements = 64
	maxValues       = 5000
	maxKey          = 253 + 1 + 63
	maxValue        = 63
)

// limitSelector changes the schema of a label selector.
func limitSelector(selector any) {
	matchLabels, matchExpressions := at(selector, "matchLabels"), at(selector, "matchExpressions")
	key, values := at(matchExpressions, "items", "properties", "key"), at(matchExpressions, "items", "properties", "values")
	matchLabels["maxProperties"], matchExpressions["maxItems"] = maxRequirements, maxRequirements
	key["maxLength"], values["maxItems"] = maxKey, maxValues
	at(matchLabels, "additionalProperties")["maxLength"], at(values, "items")["maxLength"] = maxValue, maxValue
}

// at returns the object at a path of keys, or nil, to which nothing can be added.
func at(node any, path ...string) map[string]any {
	object, _ := node.(map[string]any)
	for _, key := range path {
		object, _ = object[key].(map[string]any)
	}
	return object
}

// walk visits all schemas within one, and what their properties are in. A property can have the name of
// what a schema has, but then that is an object.
func walk(node any, visit func(schema map[string]any)) {
	switch node := node.(type) {
	case map[string]any:
		visit(node)
		for _, child := range node {
			walk(child, visit)
		}
	case []any:
		for _, child := range node {
			walk(child, visit)
		}
	}
}

// quantity is the pattern of controller-gen with an exponent of at most two digits.
const quantity = `^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?[0-9]{1,2}))?$`

// maxQuantity is the maximum length of a quantity: the time to read one grows with the
// square of its digits.
const maxQuantity = 64

// maxItems is the maximum length of a list of objects, and maxEmptyItems that of a list
// whose objects may be empty: an empty container needs a hundred times its length in memory.
const (
	maxItems      = 1024
	maxEmptyItems = 64
)

// limit adds minimum and maximum to numbers that are an int32 in Go: API servers before
// 1.36 ignore that format, and an IntOrString has none. It also limits quantities and
// lists of objects.
func limit(schema map[string]any) {
	isIntOrString := schema["x-kubernetes-int-or-string"] == true
	if _, ok := schema["pattern"].(string); ok && isIntOrString {
		schema["pattern"], schema["maxLength"] = quantity, maxQuantity
	} else if isIntOrString || schema["format"] == "int32" {
		if schema["minimum"] == nil {
			schema["minimum"] = math.MinInt32
		}
		if schema["maximum"] == nil {
			schema["maximum"] = math.MaxInt32
		}
	}
	if items := at(schema, "items"); items["type"] == "object" && schema["maxItems"] == nil {
		schema["maxItems"] = maxItems
		if items["required"] == nil {
			schema["maxItems"] = maxEmptyItems
		}
	}
}
