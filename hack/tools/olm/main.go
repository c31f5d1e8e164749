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
// INSTALL, all manifests in one file, and the examples say.
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

	"github.com/operator-framework/api/pkg/lib/version"
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
	err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4:])
	if err == nil {
		err = validate(os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "olm:", err)
		os.Exit(1)
	}
}

func run(dir, csvPath, install string, examples []string) error {
	content, err := os.ReadFile(csvPath)
	if err != nil {
		return err
	}
	var csv v1alpha1.ClusterServiceVersion
	if err := yaml.UnmarshalStrict(content, &csv); err != nil {
		return fmt.Errorf("%s: %w", csvPath, err)
	}
	objects, err := read(install)
	if err != nil {
		return err
	}
	rest, err := addInstallStrategy(&csv, objects)
	if err != nil {
		return err
	}
	if err := addDescriptors(&csv, objects); err != nil {
		return err
	}
	if err := addExamples(&csv, examples); err != nil {
		return err
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&csv)
	if err != nil {
		return err
	}
	delete(object, "status")
	if err := os.MkdirAll(filepath.Join(dir, "manifests"), 0o755); err != nil {
		return err
	}
	for _, object := range append(rest, &unstructured.Unstructured{Object: object}) {
		content, err := yaml.Marshal(object)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("%s.%s.yaml", object.GetName(), strings.ToLower(object.GetKind()))
		if err := os.WriteFile(filepath.Join(dir, "manifests", name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// read returns the objects of a file.
func read(path string) ([]*unstructured.Unstructured, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		var object unstructured.Unstructured
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if object.Object != nil {
			objects = append(objects, &object)
		}
	}
}

// addInstallStrategy adds the Deployment and its permissions to the CSV. It returns the
// objects that are manifests of the bundle beside the CSV.
func addInstallStrategy(csv *v1alpha1.ClusterServiceVersion, objects []*unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	strategy := &csv.Spec.InstallStrategy.StrategySpec
	bound := map[string]string{} // the service account by the kind and name of its role
	for _, object := range objects {
		if kind := object.GetKind(); kind == "RoleBinding" || kind == "ClusterRoleBinding" {
			var binding rbacv1.ClusterRoleBinding
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &binding); err != nil {
				return nil, err
			}
			bound[binding.RoleRef.Kind+"/"+binding.RoleRef.Name] = binding.Subjects[0].Name
		}
	}
	var rest []*unstructured.Unstructured
	for _, object := range objects {
		account := bound[object.GetKind()+"/"+object.GetName()]
		switch object.GetKind() {
		case "Deployment":
			var deployment appsv1.Deployment
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &deployment); err != nil {
				return nil, err
			}
			// OLM gives names of its own to the roles and role bindings.
			container := &deployment.Spec.Template.Spec.Containers[0]
			container.Args = slices.DeleteFunc(container.Args, func(arg string) bool { return arg == "-hold-permissions" })
			strategy.DeploymentSpecs = append(strategy.DeploymentSpecs, v1alpha1.StrategyDeploymentSpec{
				Name: deployment.Name, Spec: deployment.Spec, Label: deployment.Labels,
			})
			image := deployment.Spec.Template.Spec.Containers[0].Image
			csv.Annotations["containerImage"] = image
			csv.Spec.RelatedImages = append(csv.Spec.RelatedImages, v1alpha1.RelatedImage{Name: deployment.Name, Image: image})
			release := deployment.Labels["app.kubernetes.io/version"]
			csv.Name += "." + release
			var err error
			if csv.Spec.Version, err = parseVersion(release); err != nil {
				return nil, err
			}
		case "Role", "ClusterRole":
			if account == "" {
				rest = append(rest, object)
				continue
			}
			var role rbacv1.ClusterRole
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role); err != nil {
				return nil, err
			}
			permissions := v1alpha1.StrategyDeploymentPermissions{ServiceAccountName: account, Rules: role.Rules}
			if role.Kind == "Role" {
				strategy.Permissions = append(strategy.Permissions, permissions)
			} else {
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
			return nil, fmt.Errorf("what to do with a %s in a bundle is not known", object.GetKind())
		}
	}
	return rest, nil
}

func parseVersion(release string) (version.OperatorVersion, error) {
	var v version.OperatorVersion
	err := v.UnmarshalJSON([]byte(`"` + strings.TrimPrefix(release, "v") + `"`))
	return v, err
}

// addDescriptors describes the fields of each kind as its CRD does.
func addDescriptors(csv *v1alpha1.ClusterServiceVersion, objects []*unstructured.Unstructured) error {
	owned := csv.Spec.CustomResourceDefinitions.Owned
	for _, object := range objects {
		i := slices.IndexFunc(owned, func(crd v1alpha1.CRDDescription) bool {
			return object.GetKind() == "CustomResourceDefinition" && crd.Name == object.GetName()
		})
		if i < 0 {
			continue
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &crd); err != nil {
			return err
		}
		fields := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties
		for _, name := range slices.Sorted(maps.Keys(fields["spec"].Properties)) {
			owned[i].SpecDescriptors = append(owned[i].SpecDescriptors, v1alpha1.SpecDescriptor{
				Path: name, DisplayName: name, Description: fields["spec"].Properties[name].Description,
			})
		}
		for _, name := range slices.Sorted(maps.Keys(fields["status"].Properties)) {
			owned[i].StatusDescriptors = append(owned[i].StatusDescriptors, v1alpha1.StatusDescriptor{
				Path: name, DisplayName: name, Description: fields["status"].Properties[name].Description,
			})
		}
	}
	return nil
}

// addExamples adds what OLM's consoles show as a new object of each kind.
func addExamples(csv *v1alpha1.ClusterServiceVersion, paths []string) error {
	var examples []*unstructured.Unstructured
	for _, path := range paths {
		objects, err := read(path)
		if err != nil {
			return err
		}
		examples = append(examples, objects...)
	}
	content, err := json.MarshalIndent(examples, "", "  ")
	csv.Annotations["alm-examples"] = string(content)
	return err
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
