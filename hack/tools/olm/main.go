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

// Command olm makes the manifests of an OLM bundle of the manifests that are installed
// without OLM, and validates the bundle.
//
//	olm DIR CSV INSTALL EXAMPLE...
//
// DIR is the bundle, and has metadata already. CSV is the ClusterServiceVersion without what
// INSTALL, all manifests in one file, and the examples say. It gives up, with a panic, at the first error.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/operators/v1alpha1"
	"github.com/operator-framework/api/pkg/validation"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) < 5 {
		fmt.Fprintln(os.Stderr, "usage: olm DIR CSV INSTALL EXAMPLE...")
		os.Exit(2)
	}
	write(os.Args[1], os.Args[2], os.Args[3], os.Args[4:])
	if err := validate(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "olm:", err)
		os.Exit(1)
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// get returns a value that was returned without an error.
func get[T any](value T, err error) T {
	must(err)
	return value
}

// as returns an object with its type.
func as[T any](object *unstructured.Unstructured) *T {
	typed := new(T)
	must(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed))
	return typed
}

func write(dir, csvPath, install string, examples []string) {
	var csv v1alpha1.ClusterServiceVersion
	must(yaml.UnmarshalStrict(get(os.ReadFile(csvPath)), &csv))
	objects := read(install)
	rest := addInstallStrategy(&csv, objects)
	addDescriptors(&csv, objects)
	// OLM's consoles show the examples as a new object of each kind.
	csv.Annotations["alm-examples"] = string(get(json.MarshalIndent(read(examples...), "", "  ")))
	object := get(runtime.DefaultUnstructuredConverter.ToUnstructured(&csv))
	delete(object, "status")
	must(os.MkdirAll(filepath.Join(dir, "manifests"), 0o755))
	for _, object := range append(rest, &unstructured.Unstructured{Object: object}) {
		name := fmt.Sprintf("%s.%s.yaml", object.GetName(), strings.ToLower(object.GetKind()))
		must(os.WriteFile(filepath.Join(dir, "manifests", name), get(yaml.Marshal(object)), 0o644))
	}
}

// read returns the objects of files.
func read(paths ...string) (objects []*unstructured.Unstructured) {
	for _, path := range paths {
		decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(get(os.ReadFile(path))), 4096)
		for {
			var object unstructured.Unstructured
			err := decoder.Decode(&object)
			if errors.Is(err, io.EOF) {
				break
			}
			if must(err); object.Object != nil {
				objects = append(objects, &object)
			}
		}
	}
	return objects
}

// addInstallStrategy adds the Deployment and its permissions to the CSV. It returns the
// objects that are manifests of the bundle beside the CSV.
func addInstallStrategy(csv *v1alpha1.ClusterServiceVersion, objects []*unstructured.Unstructured) (rest []*unstructured.Unstructured) {
	strategy := &csv.Spec.InstallStrategy.StrategySpec
	bound := map[string]string{} // the service account by the kind and name of its role
	for _, object := range objects {
		if kind := object.GetKind(); kind == "RoleBinding" || kind == "ClusterRoleBinding" {
			binding := as[rbacv1.ClusterRoleBinding](object)
			bound[binding.RoleRef.Kind+"/"+binding.RoleRef.Name] = binding.Subjects[0].Name
		}
	}
	for _, object := range objects {
		account := bound[object.GetKind()+"/"+object.GetName()]
		switch object.GetKind() {
		case "Deployment":
			deployment := as[appsv1.Deployment](object)
			// OLM gives names of its own to the roles and role bindings.
			container := &deployment.Spec.Template.Spec.Containers[0]
			container.Args = slices.DeleteFunc(container.Args, func(arg string) bool { return arg == "-hold-permissions" })
			strategy.DeploymentSpecs = append(strategy.DeploymentSpecs, v1alpha1.StrategyDeploymentSpec{
				Name: deployment.Name, Spec: deployment.Spec, Label: deployment.Labels,
			})
			csv.Annotations["containerImage"] = container.Image
			csv.Spec.RelatedImages = append(csv.Spec.RelatedImages, v1alpha1.RelatedImage{Name: deployment.Name, Image: container.Image})
			release := deployment.Labels["app.kubernetes.io/version"]
			csv.Name += "." + release
			must(csv.Spec.Version.UnmarshalJSON([]byte(`"` + strings.TrimPrefix(release, "v") + `"`)))
		case "Role", "ClusterRole":
			permissions := v1alpha1.StrategyDeploymentPermissions{ServiceAccountName: account, Rules: as[rbacv1.ClusterRole](object).Rules}
			switch {
			case account == "":
				rest = append(rest, object)
			case object.GetKind() == "Role":
				strategy.Permissions = append(strategy.Permissions, permissions)
			default:
				strategy.ClusterPermissions = append(strategy.ClusterPermissions, permissions)
			}
		case "CustomResourceDefinition", "PodDisruptionBudget", "Service":
			object.SetNamespace("") // OLM sets that of the operator.
			rest = append(rest, object)
		case "ServiceAccount", "RoleBinding", "ClusterRoleBinding", "Namespace":
			// OLM makes its own.
		case "FlowSchema", "NetworkPolicy", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding":
			// OLM does not take them in a bundle, or only newer versions do.
		default:
			panic("what to do in a bundle is not known of a " + object.GetKind())
		}
	}
	return rest
}

// addDescriptors describes the fields of each kind as its CRD does.
func addDescriptors(csv *v1alpha1.ClusterServiceVersion, objects []*unstructured.Unstructured) {
	owned := csv.Spec.CustomResourceDefinitions.Owned
	for _, object := range objects {
		i := slices.IndexFunc(owned, func(crd v1alpha1.CRDDescription) bool {
			return object.GetKind() == "CustomResourceDefinition" && crd.Name == object.GetName()
		})
		if i < 0 {
			continue
		}
		fields := as[apiextensionsv1.CustomResourceDefinition](object).Spec.Versions[0].Schema.OpenAPIV3Schema.Properties
		spec, status := fields["spec"].Properties, fields["status"].Properties
		for _, name := range slices.Sorted(maps.Keys(spec)) {
			owned[i].SpecDescriptors = append(owned[i].SpecDescriptors, v1alpha1.SpecDescriptor{Path: name, DisplayName: name, Description: spec[name].Description})
		}
		for _, name := range slices.Sorted(maps.Keys(status)) {
			owned[i].StatusDescriptors = append(owned[i].StatusDescriptors, v1alpha1.StatusDescriptor{Path: name, DisplayName: name, Description: status[name].Description})
		}
	}
}

// validate returns what OLM would find wrong with the bundle.
func validate(dir string) error {
	bundle, err := manifests.GetBundleFromDir(dir)
	if err != nil {
		return err
	}
	validators := validation.DefaultBundleValidators.WithValidators(validation.ObjectValidator, validation.OperatorHubV2Validator,
		validation.StandardCapabilitiesValidator, validation.StandardCategoriesValidator, validation.GoodPracticesValidator)
	var problems []error
	for _, result := range validators.Validate(bundle.ObjectsToValidate()...) {
		for _, problem := range append(result.Errors, result.Warnings...) {
			problems = append(problems, problem)
		}
	}
	return errors.Join(problems...)
}
