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

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// naming are the fields of a Pod that name an object.
var naming = map[string]string{
	"serviceAccountName": "ServiceAccount", "claimName": "PersistentVolumeClaim",
	"configMap": "ConfigMap", "configMapRef": "ConfigMap", "configMapKeyRef": "ConfigMap",
	"secret": "Secret", "secretRef": "Secret", "secretKeyRef": "Secret", "nodePublishSecretRef": "Secret", "imagePullSecrets": "Secret",
}

// references returns the kinds and the names of the objects that a Pod names, apart from those that are optional.
func references(spec *corev1.PodSpec) (found []string) {
	var walk func(kind string, value any)
	walk = func(kind string, value any) {
		switch value := value.(type) {
		case string:
			if reference := kind + " " + value; kind != "" && !slices.Contains(found, reference) {
				found = append(found, reference)
			}
		case []any:
			for _, element := range value {
				walk(kind, element)
			}
		case map[string]any:
			if value["optional"] == true {
				return
			}
			for _, field := range slices.Sorted(maps.Keys(value)) {
				if field == "name" || field == "secretName" {
					walk(kind, value[field])
				} else {
					walk(naming[field], value[field])
				}
			}
		}
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(spec)
	utilruntime.Must(err) // It is a struct.
	walk("", fields)
	return found
}

// missing looks, with the permissions of the user, for the objects that the Pod of a run names. It says
// which do not exist, and for which the user may not look.
func (c *cli) missing(of object) (missing, notAllowed string) {
	at := asAt(of)
	if at.Spec.Restart != nil {
		return "", ""
	}
	var absent, hidden []string
	for _, reference := range references(&plan.NewPod(at, plan.Defaults{Image: defaultImage}).Spec) {
		kind, name, _ := strings.Cut(reference, " ")
		_, err := c.one(kind, name)
		switch {
		case answer.IsNotFound(err, name):
			absent = append(absent, reference)
		case isNotAllowed(err):
			hidden = append(hidden, reference)
		}
	}
	if len(absent) > 0 {
		missing = fmt.Sprintf("%s not found in namespace %s: create what is missing before the run.", strings.Join(absent, ", "), of.GetNamespace())
	}
	if len(hidden) > 0 {
		notAllowed = fmt.Sprintf("You are not allowed to get %s, so it is not known whether they exist.", strings.Join(hidden, ", "))
	}
	return missing, notAllowed
}
