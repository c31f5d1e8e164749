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
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// defaultImage is the image of a template that is only needed for --env. It equals the
// default of the controller's -default-image.
const defaultImage = "busybox:1.37.0"

// sourceKinds are the kinds of --from.
var sourceKinds = []string{"CronJob", "Job", "Deployment", "StatefulSet", "DaemonSet", v1alpha1.AtKind, v1alpha1.CronAtKind}

// podFlags specify the Pod that runs the command.
type podFlags struct {
	image, from, file, serviceAccount string
	env, envFrom                      []string
	sources                           []corev1.EnvFromSource // envFrom, after validate
}

func (f *podFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.image, "image", "", "Image in which the command runs")
	flags.StringArrayVar(&f.env, "env", nil, "Environment variable as NAME=VALUE; can be repeated. Without --image, --from or -f, the image is then "+defaultImage)
	flags.StringArrayVar(&f.envFrom, "env-from", nil, "Environment variables from secret/NAME or configmap/NAME; can be repeated")
	flags.StringVar(&f.serviceAccount, "service-account", "", "Service account of the Pod, whose token the command can use")
	flags.StringVar(&f.from, "from", "", "Copy the Pod of cronjob/NAME or job/NAME; the main container of deployment/NAME, for another command; or the whole run of at/NAME or cronat/NAME")
	flags.StringVarP(&f.file, "filename", "f", "", "YAML or JSON file, or a URL of one, with a Pod, or with what makes Pods, such as a PodTemplate, a Job or a CronJob; - means standard input")
}

func (f *podFlags) validate() error {
	if f.from != "" && f.file != "" {
		return usageError("--from and -f both specify the Pod: remove one of the two")
	}
	if kind, _ := reference(f.from); f.from != "" && !slices.Contains(sourceKinds, kind) {
		return usageError("--from is %q: write cronjob/NAME, job/NAME or deployment/NAME; or at/NAME or cronat/NAME for the same run once more", f.from)
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

// source is what a run is copied from.
type source struct {
	name string
	spec v1alpha1.RunSpec
	// isServer is true if its own command does not end.
	isServer bool
	cronJob  *batchv1.CronJob // if it is one
}

// sourceOf returns what an object runs.
func sourceOf(object runtime.Object) (from source, err error) {
	var template corev1.PodTemplateSpec
	switch object := object.(type) {
	case *v1alpha1.At:
		return source{name: object.Name, spec: object.Spec.RunSpec}, nil
	case *v1alpha1.CronAt:
		return source{name: object.Name, spec: object.Spec.AtTemplate.Spec}, nil
	case *batchv1.CronJob:
		from.name, template, from.cronJob = object.Name, object.Spec.JobTemplate.Spec.Template, object
	case *batchv1.Job:
		from.name, template = object.Name, object.Spec.Template
	case *corev1.PodTemplate:
		from.name, template = object.Name, object.Template
	case *corev1.Pod:
		from.name, template = object.Name, corev1.PodTemplateSpec{ObjectMeta: object.ObjectMeta, Spec: object.Spec}
	case *appsv1.Deployment:
		from.name, template, from.isServer = object.Name, object.Spec.Template, true
	case *appsv1.StatefulSet:
		from.name, template, from.isServer = object.Name, object.Spec.Template, true
	case *appsv1.DaemonSet:
		from.name, template, from.isServer = object.Name, object.Spec.Template, true
	default:
		return from, fmt.Errorf("it contains a %s: it must contain a Pod, or what makes Pods, such as a Job", object.GetObjectKind().GroupVersionKind().Kind)
	}
	from.spec.Template = cleanTemplate(template)
	if from.isServer {
		ofServer(from.spec.Template)
	}
	return from, nil
}

// copied returns what --from or -f name, with the other flags for the Pod. The main container is
// the first one. The template is nil if the controller's default suffices.
func (r *run) copied(ctx context.Context) (from source, err error) {
	f := &r.pod
	switch {
	case f.from != "":
		from, err = r.readObject()
	case f.file != "":
		from, err = r.readFile(ctx)
	}
	if err != nil {
		return from, err
	}
	switch {
	case from.spec.Template != nil:
	case f.image != "":
		// Settings that are safe for any image. The image determines the user and its rights.
		from.spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy:                corev1.RestartPolicyNever,
			AutomountServiceAccountToken: ptr.To(false),
			EnableServiceLinks:           ptr.To(false),
			SecurityContext:              &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers:                   []corev1.Container{{Name: "command", SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false)}}},
		}}
	case len(f.env) > 0 || len(f.envFrom) > 0 || f.serviceAccount != "":
		// The same rights as the Pod of an At without a template.
		from.spec.Template = &corev1.PodTemplateSpec{Spec: plan.NewPod(&v1alpha1.At{}, plan.Defaults{Image: defaultImage}).Spec}
	default:
		return from, nil
	}
	spec := &from.spec.Template.Spec
	if len(spec.Containers) == 0 {
		return from, usageError("%s: the Pod has no container", cmp.Or(f.from, f.file))
	}
	// The API runs a command in the first container, and reports the exit code of the main one.
	i := mainContainer(from.spec.Template.Annotations, spec.Containers)
	spec.Containers = slices.Concat(spec.Containers[i:i+1], spec.Containers[:i], spec.Containers[i+1:])
	if from.isServer && len(spec.Containers) > 1 {
		fmt.Fprintf(r.ErrOut, "Of %s, only the container %s is copied: the others would not end.\n", cmp.Or(f.from, f.file), spec.Containers[0].Name)
		spec.Containers = spec.Containers[:1]
	}
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

// readObject returns the object of --from.
func (r *run) readObject() (source, error) {
	if err := r.connect(); err != nil {
		return source{}, err
	}
	infos, err := r.find().ResourceNames("", r.pod.from).Do().Infos()
	if err != nil {
		return source{}, err
	}
	return sourceOf(infos[0].Object)
}

// readFile returns the object in the file of -f.
func (r *run) readFile(ctx context.Context) (source, error) {
	files := resource.NewLocalBuilder().Unstructured().Flatten()
	if r.pod.file == "-" {
		files.Stream(r.In, "the standard input")
	} else {
		files.FilenameParam(false, &resource.FilenameOptions{Filenames: []string{r.pod.file}})
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, requestTimeout, noAnswer("-f "+r.pod.file, requestTimeout))
		defer cancel()
	}
	infos, err := interruptible(ctx, func() ([]*resource.Info, error) { return files.Do().Infos() })
	if ctx.Err() != nil {
		return source{}, err
	}
	switch {
	case err != nil && strings.Contains(err.Error(), "'Kind' is missing"):
		err = errors.New("it has no kind: a Pod begins with apiVersion: v1 and kind: Pod")
	case err == nil && len(infos) != 1:
		err = fmt.Errorf("it contains %d objects: it must contain one", len(infos))
	}
	var from source
	if err == nil {
		from, err = sourceIn(infos[0].Object.(*unstructured.Unstructured))
	}
	if err != nil {
		return source{}, usageError("-f %s: %w", r.pod.file, err)
	}
	return from, nil
}

// sourceIn returns what an object in a file runs.
func sourceIn(content *unstructured.Unstructured) (source, error) {
	object, err := kinds.New(content.GroupVersionKind())
	if err != nil {
		return source{}, fmt.Errorf("it contains a %s of apiVersion %q: it must contain a Pod, or what makes Pods, such as a Job", content.GetKind(), content.GetAPIVersion())
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(content.Object, object, true); err != nil {
		return source{}, err
	}
	return sourceOf(object)
}

// cleanTemplate returns a template without the fields that tie it to its controller. A
// Pod template has no owner reference: the run belongs only to the At.
func cleanTemplate(template corev1.PodTemplateSpec) *corev1.PodTemplateSpec {
	clean := template.DeepCopy()
	clean.ObjectMeta = metav1.ObjectMeta{Labels: clean.Labels, Annotations: clean.Annotations}
	maps.DeleteFunc(clean.Labels, func(key, _ string) bool {
		return slices.Contains([]string{
			batchv1.ControllerUidLabel, batchv1.JobNameLabel, "controller-uid", "job-name", "pod-template-hash",
		}, key)
	})
	if policy := clean.Spec.RestartPolicy; policy == "" || policy == corev1.RestartPolicyAlways {
		clean.Spec.RestartPolicy = corev1.RestartPolicyNever
	}
	return clean
}

// ofServer changes the template of a server. A Service may select its Pods by any of
// their labels, and must not select the run. The probes expect a server, which does not
// run in it.
func ofServer(template *corev1.PodTemplateSpec) {
	template.Labels = nil
	for i := range template.Spec.Containers {
		container := &template.Spec.Containers[i]
		container.LivenessProbe, container.ReadinessProbe, container.StartupProbe = nil, nil, nil
	}
}
