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
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// defaultImage is the image of a template that is only needed for --env. It equals the
// default of the controller's -default-image.
const defaultImage = "busybox:1.37.0"

// podFlags specify the Pod that runs the command.
type podFlags struct {
	image, from, file, serviceAccount string
	env, envFrom                      []string
}

func (f *podFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.image, "image", "", "Image in which the command runs")
	flags.StringArrayVar(&f.env, "env", nil, "Environment variable as NAME=VALUE; can be repeated. Without --image, --from or -f, the image is then "+defaultImage)
	flags.StringArrayVar(&f.envFrom, "env-from", nil, "Environment variables from secret/NAME or configmap/NAME; can be repeated")
	flags.StringVar(&f.serviceAccount, "service-account", "", "Service account of the Pod, whose token the command can use")
	flags.StringVar(&f.from, "from", "", "Copy the Pod of cronjob/NAME or job/NAME; or the main container of deployment/NAME, for another command")
	flags.StringVarP(&f.file, "filename", "f", "", "YAML or JSON file, or a URL of one, with a Pod, a Pod template, or a Job or a CronJob, whose Pod is copied; - means standard input")
}

func (f *podFlags) validate() error {
	if f.from != "" && f.file != "" {
		return usageError("--from and -f both specify the Pod: remove one of the two")
	}
	if kind, _ := f.source(); f.from != "" && kind == "" {
		return usageError("--from is %q: write cronjob/NAME, job/NAME or deployment/NAME", f.from)
	}
	for _, env := range f.env {
		if name, _, found := strings.Cut(env, "="); !found || name == "" {
			return usageError("--env is %q: write NAME=VALUE", env)
		}
	}
	for _, from := range f.envFrom {
		if _, err := parseEnvFrom(from); err != nil {
			return err
		}
	}
	if problems := validation.IsDNS1123Subdomain(f.serviceAccount); f.serviceAccount != "" && len(problems) > 0 {
		return usageError("--service-account is %q: %s", f.serviceAccount, strings.Join(problems, "; "))
	}
	return nil
}

// parseEnvFrom returns the source of --env-from.
func parseEnvFrom(text string) (corev1.EnvFromSource, error) {
	kind, name := reference(text, "secret", "configmap")
	local := corev1.LocalObjectReference{Name: name}
	switch kind {
	case "secret":
		return corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: local}}, nil
	case "configmap":
		return corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: local}}, nil
	}
	return corev1.EnvFromSource{}, usageError("--env-from is %q: write secret/NAME or configmap/NAME", text)
}

// source returns the kind and the name of the object in --from.
func (f *podFlags) source() (kind, name string) {
	return reference(f.from, "cronjob", "job", "deployment")
}

// isServer reports whether the Pod is that of a server, whose own command does not end.
func (f *podFlags) isServer() bool {
	kind, _ := f.source()
	return kind == "deployment"
}

// hasPod reports whether the Pod is copied.
func (f *podFlags) hasPod() bool { return f.from != "" || f.file != "" }

// runs reports whether the Pod has its own command.
func (f *podFlags) runs() bool { return f.hasPod() && !f.isServer() }

// source is the object from which a template was copied. cronJob is set if it is a
// CronJob.
type source struct {
	name    string
	cronJob *batchv1.CronJob
}

// podTemplate returns the template of the Pod, with the main container first, or nil if the controller's default
// suffices, and the object from which it was copied.
func (r *run) podTemplate(ctx context.Context) (*corev1.PodTemplateSpec, source, error) {
	var template *corev1.PodTemplateSpec
	var from source
	var err error
	f := &r.pod
	switch {
	case f.from != "":
		template, from, err = r.copyTemplate(ctx)
	case f.file != "":
		template, from, err = r.readTemplate(ctx)
	case f.image != "":
		// Settings that are safe for any image. The image determines the user and its rights.
		template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy:                corev1.RestartPolicyNever,
			AutomountServiceAccountToken: ptr.To(false),
			EnableServiceLinks:           ptr.To(false),
			SecurityContext:              &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers:                   []corev1.Container{{Name: "command", SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false)}}},
		}}
	case len(f.env) > 0 || len(f.envFrom) > 0 || f.serviceAccount != "":
		// The same rights as the Pod of an At without a template.
		template = &corev1.PodTemplateSpec{Spec: plan.NewPod(&v1alpha1.At{}, plan.Defaults{Image: defaultImage}).Spec}
	default:
		return nil, source{}, nil
	}
	if err != nil {
		return nil, source{}, err
	}
	if len(template.Spec.Containers) == 0 {
		return nil, source{}, usageError("the Pod has no container")
	}
	spec := &template.Spec
	// The API runs a command in the first container, and reports the exit code of the main one.
	i := mainContainer(template.Annotations, spec.Containers)
	spec.Containers = slices.Concat(spec.Containers[i:i+1], spec.Containers[:i], spec.Containers[i+1:])
	if f.isServer() && len(spec.Containers) > 1 {
		fmt.Fprintf(r.ErrOut, "Of %s, only the container %s is copied: the others would not end.\n", f.from, spec.Containers[0].Name)
		spec.Containers = spec.Containers[:1]
	}
	if f.serviceAccount != "" {
		spec.ServiceAccountName, spec.DeprecatedServiceAccount = f.serviceAccount, ""
		if !f.hasPod() {
			spec.AutomountServiceAccountToken = nil
		}
	}
	first := &spec.Containers[0]
	if f.image != "" {
		first.Image = f.image
	}
	for _, env := range f.env {
		name, value, _ := strings.Cut(env, "=")
		first.Env = slices.DeleteFunc(first.Env, func(v corev1.EnvVar) bool { return v.Name == name })
		first.Env = append(first.Env, corev1.EnvVar{Name: name, Value: value})
	}
	for _, text := range f.envFrom {
		envFrom, err := parseEnvFrom(text)
		if err != nil {
			return nil, source{}, err
		}
		first.EnvFrom = append(first.EnvFrom, envFrom)
	}
	return template, from, nil
}

// copyTemplate returns the Pod template of --from and its object.
func (r *run) copyTemplate(ctx context.Context) (*corev1.PodTemplateSpec, source, error) {
	kind, name := r.pod.source()
	if err := r.connect(); err != nil {
		return nil, source{}, err
	}
	switch kind {
	case "cronjob":
		cronJob, err := r.kube.BatchV1().CronJobs(r.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, source{}, err
		}
		return cleanTemplate(cronJob.Spec.JobTemplate.Spec.Template), source{name, cronJob}, nil
	case "job":
		job, err := r.kube.BatchV1().Jobs(r.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, source{}, err
		}
		return cleanTemplate(job.Spec.Template), source{name: name}, nil
	default:
		deployment, err := r.kube.AppsV1().Deployments(r.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, source{}, err
		}
		return ofServer(cleanTemplate(deployment.Spec.Template)), source{name: name}, nil
	}
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
func ofServer(template *corev1.PodTemplateSpec) *corev1.PodTemplateSpec {
	template.Labels = nil
	for i := range template.Spec.Containers {
		container := &template.Spec.Containers[i]
		container.LivenessProbe, container.ReadinessProbe, container.StartupProbe = nil, nil, nil
	}
	return template
}

// readTemplate returns the Pod template in the file of -f, and its name.
func (r *run) readTemplate(ctx context.Context) (*corev1.PodTemplateSpec, source, error) {
	content, err := interruptible(ctx, func() ([]byte, error) {
		switch file := r.pod.file; {
		case file == "-":
			return io.ReadAll(r.In)
		case strings.HasPrefix(file, "https://"), strings.HasPrefix(file, "http://"):
			return download(ctx, file)
		default:
			return os.ReadFile(file)
		}
	})
	if ctx.Err() != nil {
		return nil, source{}, err
	}
	if err != nil {
		return nil, source{}, usageError("%w", err)
	}
	template, err := parseTemplate(content)
	if err != nil {
		return nil, source{}, usageError("-f %s: %w", r.pod.file, err)
	}
	return cleanTemplate(*template), source{name: template.Name}, nil
}

// download returns the content of a URL.
func download(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := (&http.Client{Timeout: requestTimeout}).Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, response.Status)
	}
	return io.ReadAll(response.Body)
}

// parseTemplate parses a Pod or a PodTemplate, or the Pod template of a Job or a CronJob, or
// one without a kind.
func parseTemplate(content []byte) (*corev1.PodTemplateSpec, error) {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	content = nil
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		var value any
		if err := yaml.Unmarshal(document, &value); err != nil {
			return nil, err
		}
		switch {
		case value == nil: // only comments
		case content != nil:
			return nil, errors.New("it contains more than one document: it must contain one Pod or Pod template")
		default:
			content = document
		}
	}
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(content, &kind); err != nil {
		return nil, err
	}
	switch kind.Kind {
	case "Pod":
		var pod corev1.Pod
		err := yaml.UnmarshalStrict(content, &pod)
		return &corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}, err
	case "PodTemplate":
		var template corev1.PodTemplate
		err := yaml.UnmarshalStrict(content, &template)
		return named(template.Name, template.Template), err
	case "Job":
		var job batchv1.Job
		err := yaml.UnmarshalStrict(content, &job)
		return named(job.Name, job.Spec.Template), err
	case "CronJob":
		var cronJob batchv1.CronJob
		err := yaml.UnmarshalStrict(content, &cronJob)
		return named(cronJob.Name, cronJob.Spec.JobTemplate.Spec.Template), err
	case "":
		var template corev1.PodTemplateSpec
		if err := yaml.UnmarshalStrict(content, &template); err != nil {
			return nil, err
		}
		if len(template.Spec.Containers) == 0 {
			return nil, errors.New("it contains no Pod: spec.containers is missing")
		}
		return &template, nil
	}
	return nil, fmt.Errorf("it contains a %s: it must contain a Pod, a Pod template, a Job or a CronJob", kind.Kind)
}

// named gives a template the name of its object.
func named(name string, template corev1.PodTemplateSpec) *corev1.PodTemplateSpec {
	template.Name = name
	return &template
}
