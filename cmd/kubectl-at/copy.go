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
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// defaultBackoffLimit is the default of a Job, which the template of a CronJob does not show.
const defaultBackoffLimit = 6

// source is what a run is copied from.
type source struct {
	kind, name string
	// spec has more than an atTemplate if the source is a CronJob or a CronAt.
	spec v1alpha1.CronAtSpec
	// metadata is that of the new object.
	metadata metav1.ObjectMeta
	// isServer is true if its own command does not end.
	isServer bool
	notes    []string // what differs from the source
}

// run returns what an At of the source does.
func (s *source) run() *v1alpha1.RunSpec { return &s.spec.AtTemplate.Spec }

// The objects whose fields a rule names.
const (
	ofJob       = "Job"
	ofMetadata  = "metadata"
	ofTemplate  = "Pod template"
	ofPod       = "Pod"
	ofAffinity  = "affinity"
	ofNodeTerm  = "required node affinity"
	ofContainer = "container"
	ofSidecar   = "port of a native sidecar"
)

// What a copy does with a field.
const (
	actionChanged = "changed"
	actionDropped = "dropped"
	actionRefused = "refused"
)

// rule says what a copy does with fields that it does not keep as they are.
type rule struct {
	of     string
	fields []string // as in JSON
	action string   // dropped if it is empty
	why    string
	// change drops or changes the fields, and returns those that were set. Without it, they are emptied.
	change func(*copying) []string
}

// rules apply to what is not an At or a CronAt already. docs/reference/copying.md has them, too, and
// what clean drops.
var rules = []rule{
	{of: ofJob, fields: []string{"parallelism", "completions", "completionMode", "maxFailedIndexes", "successPolicy"}, why: "an At has one Pod, without an index"},
	{of: ofJob, fields: []string{"backoffLimitPerIndex"}, action: actionChanged, why: "it is the backoffLimit of the At"},
	{of: ofJob, fields: []string{"podFailurePolicy"}, why: "each failure counts against backoffLimit"},
	{of: ofJob, fields: []string{"suspend", "managedBy", "scheduling"}, why: "meant for the controller of the Job"},
	{of: ofMetadata, fields: []string{"labels", "annotations"}, why: "those of the object itself, which may be for a tool such as Helm or Argo CD. --labels sets labels"},
	{of: ofPod, fields: []string{"restartPolicy"}, action: actionChanged, why: "each attempt gets a new Pod. --retries sets how many may follow a failed one", change: neverRestart},
	{of: ofContainer, fields: []string{"restartPolicy", "restartPolicyRules"}, why: "as restartPolicy of the Pod"},
	{of: ofPod, fields: []string{"schedulingGates", "schedulingGroup"}, why: "meant for a controller that does not know the run"},
}

// serverRules apply to what is not from a Job or a CronJob: what these have is there for a run.
var serverRules = []rule{
	{of: "StatefulSet", fields: []string{"volumeClaimTemplates"}, action: actionRefused, why: "each of its Pods has its own claims. Copy one of the Pods, as in --from pod/NAME-0: it mounts the claims of that Pod"},
	{of: ofPod, fields: []string{"nodeName"}, why: "the scheduler chose that node. --node chooses one"},
	{of: ofNodeTerm, fields: []string{"matchFields"}, why: "it names the node of the Pod. --node chooses one"},
	{of: ofPod, fields: []string{"hostname", "hostnameOverride", "subdomain", "setHostnameAsFQDN"}, why: "the name of the server"},
	{of: ofAffinity, fields: []string{"podAffinity", "podAntiAffinity"}, why: "they place the Pods of a server. nodeAffinity stays"},
	{of: ofPod, fields: []string{"topologySpreadConstraints"}, why: "they spread the Pods of a server"},
	{of: ofPod, fields: []string{"readinessGates"}, why: "only a server becomes ready"},
	{of: ofContainer, fields: []string{"livenessProbe", "readinessProbe", "startupProbe"}, why: "meant for the server, which does not run"},
	{of: ofContainer, fields: []string{"lifecycle"}, why: "hooks for the server. One that fails kills the command"},
	{of: ofContainer, fields: []string{"ports"}, why: "the run does not listen"},
	{of: ofSidecar, fields: []string{"hostPort"}, why: "the server may use it"},
	{of: ofTemplate, fields: []string{"labels"}, why: "a Service could select the run. Those that --labels repeats stay", change: dropLabels},
}

// jobDefaults are what the API server writes into a Job, and an At does as well.
var jobDefaults = map[string]any{
	"parallelism": int32(1), "completions": int32(1), "completionMode": batchv1.NonIndexedCompletion, "suspend": false, "managedBy": batchv1.JobControllerName,
}

// copying is a copy that is being made.
type copying struct {
	source
	template *corev1.PodTemplateSpec
	parts    map[string][]any // pointers to what has fields
	keep     labels.Set       // --labels
	isJob    bool
}

// sourceOf returns what an object runs, as a copy that keeps those of the Pod's labels that
// --labels repeats.
func sourceOf(object runtime.Object, keep labels.Set) (source, error) {
	object = object.DeepCopyObject()
	c := &copying{source: source{kind: kindOf(object).Kind, name: object.(metav1.Object).GetName()}, keep: keep, parts: map[string][]any{}}
	switch object := object.(type) {
	case *v1alpha1.At:
		*c.run() = object.Spec.RunSpec
		return c.source, nil
	case *v1alpha1.CronAt:
		c.spec = object.Spec
		return c.source, nil
	case *batchv1.CronJob:
		c.spec = cronAtOf(object).Spec
		c.limit(&object.ObjectMeta, &object.Spec.JobTemplate.Spec)
	case *batchv1.Job:
		c.limit(&object.ObjectMeta, &object.Spec)
	case *corev1.PodTemplate:
		c.template = &object.Template
	case *corev1.Pod:
		c.template = &corev1.PodTemplateSpec{ObjectMeta: object.ObjectMeta, Spec: object.Spec}
		owner := metav1.GetControllerOfNoCopy(object)
		c.isServer = owner != nil && owner.Kind != "Job" && owner.Kind != v1alpha1.AtKind
	case *appsv1.Deployment:
		c.template, c.isServer = &object.Spec.Template, true
	case *appsv1.StatefulSet:
		c.template, c.isServer = &object.Spec.Template, true
		c.parts["StatefulSet"] = []any{&object.Spec}
	case *appsv1.DaemonSet:
		c.template, c.isServer = &object.Spec.Template, true
	}
	// A Pod template has no owner reference: the run belongs only to the At.
	c.template.ObjectMeta = metav1.ObjectMeta{Labels: c.template.Labels, Annotations: c.template.Annotations}
	c.run().Template = c.template
	err := c.apply()
	return c.source, err
}

// cronAtOf returns a CronAt with the schedule, the policies and the Pod template of a CronJob.
func cronAtOf(cronJob *batchv1.CronJob) *v1alpha1.CronAt {
	spec, template := &cronJob.Spec, &cronJob.Spec.JobTemplate
	return &v1alpha1.CronAt{ObjectMeta: cronJob.ObjectMeta, Spec: v1alpha1.CronAtSpec{
		Schedule: spec.Schedule, TimeZone: spec.TimeZone, Suspend: spec.Suspend, StartingDeadlineSeconds: spec.StartingDeadlineSeconds,
		ConcurrencyPolicy:         v1alpha1.ConcurrencyPolicy(spec.ConcurrencyPolicy),
		SuccessfulAtsHistoryLimit: spec.SuccessfulJobsHistoryLimit, FailedAtsHistoryLimit: spec.FailedJobsHistoryLimit,
		AtTemplate: v1alpha1.AtTemplateSpec{
			Metadata: v1alpha1.AtTemplateMeta{Labels: template.Labels, Annotations: template.Annotations},
			Spec:     v1alpha1.RunSpec{Template: &template.Spec.Template},
		},
	}}
}

// limit copies the limits of a Job, which has the template.
func (c *copying) limit(own *metav1.ObjectMeta, job *batchv1.JobSpec) {
	run := c.run()
	run.BackoffLimit = ptr.To(ptr.Deref(cmp.Or(job.BackoffLimitPerIndex, job.BackoffLimit), defaultBackoffLimit))
	run.ActiveDeadlineSeconds, run.TTLSecondsAfterFinished = job.ActiveDeadlineSeconds, job.TTLSecondsAfterFinished
	c.notes = append(c.notes, fmt.Sprintf("Copied backoffLimit %d, and the deadline and the TTL if there are any, unless --retries, --active-deadline or --ttl set others.", *run.BackoffLimit))
	maps.DeleteFunc(own.Annotations, isAdded)
	c.template, c.isJob = &job.Template, true
	c.parts[ofMetadata], c.parts[ofJob] = []any{own}, []any{job}
}

// addParts adds the parts of the Pod template.
func (c *copying) addParts() {
	spec := &c.template.Spec
	add := func(of string, part any) { c.parts[of] = append(c.parts[of], part) }
	add(ofPod, spec)
	for i := range spec.Containers {
		add(ofContainer, &spec.Containers[i])
	}
	for i := range spec.InitContainers {
		container := &spec.InitContainers[i]
		if ptr.Deref(container.RestartPolicy, "") != corev1.ContainerRestartPolicyAlways {
			add(ofContainer, container)
			continue
		}
		for j := range container.Ports {
			add(ofSidecar, &container.Ports[j])
		}
	}
	if spec.Affinity == nil {
		return
	}
	add(ofAffinity, spec.Affinity)
	if nodes := spec.Affinity.NodeAffinity; nodes != nil && nodes.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for i := range nodes.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			add(ofNodeTerm, &nodes.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[i])
		}
	}
}

// apply applies the rules, and notes what they did.
func (c *copying) apply() error {
	c.addParts()
	all := rules
	if !c.isJob {
		all = slices.Concat(rules, serverRules)
	}
	for _, rule := range all {
		var found []string
		parts := c.parts[rule.of]
		if rule.change != nil {
			found, parts = rule.change(c), nil
		}
		for _, part := range parts {
			found = append(found, empty(part, rule.fields)...)
		}
		slices.Sort(found)
		note := strings.Join(slices.Compact(found), ", ") + ": " + rule.why
		switch {
		case len(found) == 0:
		case rule.action == actionRefused:
			return fmt.Errorf("it has %s", note)
		default:
			action := cmp.Or(rule.action, actionDropped)
			c.notes = append(c.notes, strings.ToUpper(action[:1])+action[1:]+" "+note+".")
		}
	}
	c.clean()
	return nil
}

// clean drops what nobody misses.
func (c *copying) clean() {
	spec := &c.template.Spec
	maps.DeleteFunc(c.template.Labels, isAdded)
	maps.DeleteFunc(c.template.Annotations, isAdded)
	spec.ServiceAccountName = cmp.Or(spec.ServiceAccountName, spec.DeprecatedServiceAccount)
	empty(spec, []string{"ephemeralContainers", "priority", "preemptionPolicy", "overhead", "serviceAccount"})
	if nodes := ptr.Deref(spec.Affinity, corev1.Affinity{}).NodeAffinity; nodes != nil && !c.isJob {
		// A term that has lost its matchFields selects no node.
		required := ptr.Deref(nodes.RequiredDuringSchedulingIgnoredDuringExecution, corev1.NodeSelector{})
		if !slices.ContainsFunc(required.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool { return len(term.MatchExpressions)+len(term.MatchFields) > 0 }) {
			nodes.RequiredDuringSchedulingIgnoredDuringExecution = nil
		}
	}
	isToken := func(name string) bool { return strings.HasPrefix(name, "kube-api-access-") }
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(volume corev1.Volume) bool { return isToken(volume.Name) })
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			container := &containers[i]
			container.VolumeMounts = slices.DeleteFunc(container.VolumeMounts, func(mount corev1.VolumeMount) bool { return isToken(mount.Name) })
			if container.TerminationMessagePolicy == corev1.TerminationMessageReadFile {
				container.TerminationMessagePolicy = ""
			}
		}
	}
	spec.Tolerations = slices.DeleteFunc(spec.Tolerations, func(toleration corev1.Toleration) bool {
		return (toleration.Key == corev1.TaintNodeNotReady || toleration.Key == corev1.TaintNodeUnreachable) && ptr.Deref(toleration.TolerationSeconds, 0) == 300
	})
}

// empty empties fields of a struct by their names in JSON. It returns those that differed from the
// defaults.
func empty(object any, names []string) (found []string) {
	value := reflect.ValueOf(object).Elem()
	for i := range value.NumField() {
		field := value.Field(i)
		name, _, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ",")
		if !slices.Contains(names, name) || field.IsZero() || field.Kind() == reflect.Map && field.Len() == 0 {
			continue
		}
		if reflect.Indirect(field).Interface() != jobDefaults[name] {
			found = append(found, name)
		}
		field.SetZero()
	}
	return found
}

// isAdded reports whether a label or an annotation was added to an object after a user wrote it.
func isAdded(key, _ string) bool {
	prefix, _, _ := strings.Cut(key, "/")
	switch prefix {
	case cnat.GroupName, "cni.projectcalico.org", "k8s.ovn.org", "k8s.v1.cni.cncf.io":
		return true
	}
	return strings.HasPrefix(key, "kubernetes.io/config.") || slices.Contains([]string{
		batchv1.ControllerUidLabel, batchv1.JobNameLabel, "controller-uid", "job-name", "pod-template-hash",
		corev1.LastAppliedConfigAnnotation, "kubectl.kubernetes.io/restartedAt",
	}, key)
}

func dropLabels(c *copying) []string {
	kept, lost := map[string]string{}, []string{}
	for key, value := range c.template.Labels {
		if c.keep.Has(key) && c.keep[key] == value {
			kept[key] = value
		} else if !isAdded(key, value) {
			lost = append(lost, key)
		}
	}
	c.template.Labels = kept
	if len(lost) == 0 {
		return nil
	}
	slices.Sort(lost)
	return []string{"labels " + strings.Join(lost, ", ")}
}

func neverRestart(c *copying) (found []string) {
	policy := &c.template.Spec.RestartPolicy
	if *policy == corev1.RestartPolicyOnFailure { // Always is the default.
		found = append(found, "restartPolicy OnFailure to Never")
	}
	*policy = corev1.RestartPolicyNever
	return found
}
