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
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/cli-runtime/pkg/resource"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// defaultImage is the image of a template that is only needed for --env. It equals the
// default of the controller's -default-image.
const defaultImage = "busybox:1.37.0"

// sourceKinds are the kinds of --from and -f.
var sourceKinds = []string{"CronJob", "Job", "Pod", "PodTemplate", "Deployment", "StatefulSet", "DaemonSet", v1alpha1.AtKind, v1alpha1.CronAtKind}

// podFlags specify the Pod that runs the command.
type podFlags struct {
	image, from, file, serviceAccount string
	container                         string
	args                              bool
	env, envFrom                      []string
	sources                           []corev1.EnvFromSource // envFrom, after validate
}

func (f *podFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.image, "image", "", "Image in which the command runs")
	flags.StringArrayVar(&f.env, "env", nil, "Environment variable as NAME=VALUE; can be repeated. Without --image, --from or -f, the image is then "+defaultImage)
	flags.StringArrayVar(&f.envFrom, "env-from", nil, "Environment variables from secret/NAME or configmap/NAME; can be repeated")
	flags.StringVar(&f.serviceAccount, "service-account", "", "Service account of the Pod, whose token the command can use")
	flags.StringVar(&f.from, "from", "", "Copy the Pod of cronjob/NAME, job/NAME or pod/NAME; the main container of deployment/NAME, for another command; or the whole run of at/NAME or cronat/NAME")
	flags.StringVarP(&f.file, "filename", "f", "", "YAML or JSON file, or a URL of one, with a Pod, or with what makes Pods, such as a PodTemplate, a Job or a CronJob; - means standard input")
	flags.StringVarP(&f.container, "container", "c", "", "With --from or -f: container that runs the command (default: that of the annotation "+plan.DefaultContainer+", or the first one)")
	flags.BoolVar(&f.args, "args", false, "With --from, -f or --image: what follows -- are arguments for the same program, instead of a COMMAND")
}

func (f *podFlags) validate() error {
	if kind, _ := reference(f.from); f.from != "" && !slices.Contains(sourceKinds, kind) {
		return usageError("--from is %q: write cronjob/NAME, job/NAME, pod/NAME or deployment/NAME; or at/NAME or cronat/NAME for the same run once more", f.from)
	}
	if f.container != "" && !f.isCopied() {
		return usageError("--container chooses a container of a copied Pod: add --from or -f, or remove it")
	}
	if f.args && !f.isCopied() && f.image == "" {
		return usageError("--args is for the program of a copied Pod or of an image: add --from, -f or --image, or remove it")
	}
	for _, env := range f.env {
		if name, _, found := strings.Cut(env, "="); !found || name == "" {
			return usageError("--env has a value without a name: write NAME=VALUE") // It may be a secret.
		}
	}
	for _, text := range f.envFrom {
		kind, name := reference(text)
		local := corev1.LocalObjectReference{Name: name}
		switch kind {
		case "Secret":
			f.sources = append(f.sources, corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: local}})
		case "ConfigMap":
			f.sources = append(f.sources, corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: local}})
		default:
			return usageError("--env-from is %q: write secret/NAME or configmap/NAME", text)
		}
	}
	if problems := validation.IsDNS1123Subdomain(f.serviceAccount); f.serviceAccount != "" && len(problems) > 0 {
		return usageError("--service-account is %q: %s", f.serviceAccount, strings.Join(problems, "; "))
	}
	return nil
}

func (f *podFlags) isCopied() bool { return f.from != "" || f.file != "" }

// name returns what the Pod is copied from.
func (f *podFlags) name() string { return cmp.Or(f.from, "-f "+f.file) }

// copied returns what --from or -f name, with the other flags for the Pod. The main container is
// the first one. The template is nil if the controller's default suffices.
func (r *run) copied() (from source, err error) {
	f := &r.pod
	var object runtime.Object
	switch {
	case f.from != "":
		if err = r.connect(); err != nil {
			return from, err
		}
		var info *resource.Info
		if info, err = r.one("", f.from); err == nil {
			object = info.Object
		}
	case f.file != "":
		object, err = r.readFile()
	}
	if err != nil {
		return from, err
	}
	if object != nil {
		if from, err = sourceOf(object, r.labelSet); err != nil {
			return from, usageError("%s: %w", f.name(), err)
		}
	}
	template := &from.run().Template
	switch {
	case *template != nil:
	case f.container != "":
		return from, usageError("--container is %q, but %s has no template with containers: remove --container", f.container, f.name())
	case f.image != "" || len(f.env) > 0 || len(f.envFrom) > 0 || f.serviceAccount != "":
		// The same rights as the Pod of an At without a template.
		*template = &corev1.PodTemplateSpec{Spec: plan.NewPod(&v1alpha1.At{}, plan.Defaults{Image: defaultImage}).Spec}
		if f.image != "" { // It determines the user and its rights.
			spec := &(*template).Spec
			spec.SecurityContext = &corev1.PodSecurityContext{SeccompProfile: spec.SecurityContext.SeccompProfile}
			spec.Containers[0].SecurityContext.Capabilities, spec.Containers[0].TerminationMessagePolicy = nil, ""
		}
	default:
		return from, nil
	}
	if err := r.chooseContainer(&from); err != nil {
		return from, err
	}
	spec := &(*template).Spec
	if f.serviceAccount != "" {
		spec.ServiceAccountName, spec.DeprecatedServiceAccount = f.serviceAccount, ""
		if !f.isCopied() {
			spec.AutomountServiceAccountToken = nil
		}
	}
	first := &spec.Containers[0]
	first.Image = cmp.Or(f.image, first.Image)
	for _, env := range f.env {
		name, value, _ := strings.Cut(env, "=")
		first.Env = slices.DeleteFunc(first.Env, func(v corev1.EnvVar) bool { return v.Name == name })
		first.Env = append(first.Env, corev1.EnvVar{Name: name, Value: value})
	}
	first.EnvFrom = append(first.EnvFrom, f.sources...)
	return from, nil
}

// chooseContainer makes the main container the first one: the API runs a command there. A server
// keeps no other.
func (r *run) chooseContainer(from *source) error {
	template := from.run().Template
	spec := &template.Spec
	if len(spec.Containers) == 0 {
		return usageError("%s: the Pod has no container", r.pod.name())
	}
	names := namesOf(spec.Containers)
	i, chosen := mainContainer(template.Annotations, spec.Containers), r.pod.container
	if chosen != "" {
		if i = slices.Index(names, chosen); i < 0 {
			return usageError("--container is %q, but %s has no such container: choose one of %s", chosen, r.pod.name(), strings.Join(names, ", "))
		}
		if _, isSet := template.Annotations[plan.DefaultContainer]; isSet {
			template.Annotations[plan.DefaultContainer] = chosen
		}
	}
	spec.Containers = slices.Concat(spec.Containers[i:i+1], spec.Containers[:i], spec.Containers[i+1:])
	note := "Of the containers %s, %s is the one that runs a COMMAND, and whose exit code counts. --container chooses another."
	if from.isServer {
		note = "Of the containers %s, only %s is copied: the others would not end. --container chooses another."
		spec.Containers = spec.Containers[:1]
	}
	if len(names) > 1 && (from.isServer || chosen == "") {
		from.notes = append(from.notes, fmt.Sprintf(note, strings.Join(names, ", "), names[i]))
	}
	return nil
}

// readFile returns the object in the file of -f.
func (r *run) readFile() (object runtime.Object, err error) {
	files := resource.NewLocalBuilder().Unstructured().Flatten()
	if r.pod.file == "-" {
		files.Stream(r.In, "the standard input")
	} else {
		files.FilenameParam(false, &resource.FilenameOptions{Filenames: []string{r.pod.file}})
	}
	infos, err := files.Do().Infos()
	switch {
	case err != nil && strings.Contains(err.Error(), "'Kind' is missing"):
		err = errors.New("it has no kind: a Pod begins with apiVersion: v1 and kind: Pod")
	case err != nil && notObject.MatchString(err.Error()):
		err = fmt.Errorf("it is not an object in YAML or JSON: %w. If it is a script, pass it as standard input: kubectl at TIME < FILE", err)
	case err == nil && len(infos) != 1:
		err = fmt.Errorf("it contains %d objects: it must contain one", len(infos))
	}
	if err == nil {
		object, err = decode(infos[0].Object.(*unstructured.Unstructured))
	}
	if err == nil {
		err = r.enter(infos[0].Namespace)
	}
	if err != nil {
		err = usageError("%s: %w", r.pod.name(), err)
	}
	return object, err
}

// notObject matches the errors for a text.
var notObject = regexp.MustCompile(`unstructured\.detector|error parsing`)

// enter makes the namespace of an object in a file that of the command, as kubectl create does.
func (r *run) enter(namespace string) error {
	given := r.flags.Lookup("namespace")
	switch {
	case namespace == "":
		return nil
	case given.Changed && given.Value.String() != namespace:
		return fmt.Errorf("its namespace is %q, but --namespace is %q: write the same one, or remove --namespace", namespace, given.Value)
	}
	return r.flags.Set("namespace", namespace)
}

// strict refuses fields that do not exist.
var strict = serializer.NewCodecFactory(kinds, serializer.EnableStrict).UniversalDeserializer()

// decode returns an object in a file.
func decode(content *unstructured.Unstructured) (runtime.Object, error) {
	kind := content.GroupVersionKind()
	known, err := mapper.KindFor(schema.GroupVersionResource{Resource: strings.ToLower(kind.Kind)})
	if err != nil || !slices.Contains(sourceKinds, known.Kind) {
		return nil, fmt.Errorf("it contains a %s of apiVersion %q: it must contain one of %s", kind.Kind, content.GetAPIVersion(), strings.Join(sourceKinds, ", "))
	}
	if kind != known {
		return nil, fmt.Errorf("it contains a %s of apiVersion %q: write apiVersion: %s, and the fields of that version", kind.Kind, content.GetAPIVersion(), known.GroupVersion())
	}
	data, err := content.MarshalJSON()
	if err != nil {
		return nil, err
	}
	object, _, err := strict.Decode(data, nil, nil)
	return object, err
}
