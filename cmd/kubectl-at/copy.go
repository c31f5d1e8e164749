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
	// isServer is true if its own command does not end.
	isServer bool
	notes    []string // what differs from the source
}

func (s *source) isJob() bool { return s.kind == "Job" || s.kind == "CronJob" }

// run returns what an At of the source does.
func (s *source) run() *v1alpha1.RunSpec { return &s.spec.AtTemplate.Spec }

// The objects whose fields a rule names.
const (
	ofJob       = "Job"
	ofMetadata  = "metadata"
	ofTemplate  = "Pod template"
	ofPod       = "Pod"
	ofContainer = "container"
)

// What a copy does with a field.
const (
	fateChanged = "changed"
	fateDropped = "dropped"
	fateRefused = "refused"
)

// rule says what a copy does with fields that it does not keep as they are.
type rule struct {
	of     string
	fields []string // as in JSON
	fate   string
	why    string
	// isSilent means that nobody misses the fields.
	isSilent bool
	// ofServer rules are not for a Job or a CronJob: what these have is there for a run.
	ofServer bool
	// take drops or changes the fields, and returns those that were set. Without it, they are emptied.
	take func(*copying) []string
}

// rules apply in this order to what is not an At or a CronAt already. docs/reference/copying.md
// has them, too.
var rules = []rule{
	{of: "StatefulSet", fields: []string{"volumeClaimTemplates"}, fate: fateRefused, ofServer: true, why: "each of its Pods has its own claims. Copy one of the Pods, as in --from pod/NAME-0: it mounts the claims of that Pod"},

	{of: ofJob, fields: []string{"parallelism", "completions", "completionMode", "maxFailedIndexes", "successPolicy"}, fate: fateDropped, why: "an At has one Pod, without an index"},
	{of: ofJob, fields: []string{"backoffLimitPerIndex"}, fate: fateChanged, why: "it is the backoffLimit of the At"},
	{of: ofJob, fields: []string{"podFailurePolicy"}, fate: fateDropped, why: "each failure counts against backoffLimit"},
	{of: ofJob, fields: []string{"suspend", "managedBy", "scheduling"}, fate: fateDropped, why: "meant for the controller of the Job"},
	{of: ofMetadata, fields: []string{"labels", "annotations"}, fate: fateDropped, why: "those of the object itself, which may be for a tool such as Helm or Argo CD. --labels sets labels", take: dropOwnMetadata},

	{of: ofPod, fields: []string{"restartPolicy"}, fate: fateChanged, why: "each attempt gets a new Pod, and failures count against backoffLimit", take: neverRestart},
	{of: ofContainer, fields: []string{"restartPolicy", "restartPolicyRules"}, fate: fateDropped, why: "as restartPolicy of the Pod. A native sidecar keeps its own", take: dropContainerRestarts},
	{of: ofPod, fields: []string{"schedulingGates", "schedulingGroup"}, fate: fateDropped, why: "meant for a controller that does not know the run"},

	{of: ofPod, fields: []string{"nodeName"}, fate: fateDropped, ofServer: true, why: "the scheduler chose that node. --node chooses one", take: dropNode},
	{of: ofPod, fields: []string{"hostname", "hostnameOverride", "subdomain", "setHostnameAsFQDN"}, fate: fateDropped, ofServer: true, why: "the name of the server"},
	{of: ofPod, fields: []string{"affinity"}, fate: fateDropped, ofServer: true, why: "required terms that select the server's own Pods. Other terms stay", take: dropOwnAffinity},
	{of: ofPod, fields: []string{"topologySpreadConstraints"}, fate: fateDropped, ofServer: true, why: "constraints that select the server's own Pods. Others stay", take: dropOwnSpreading},
	{of: ofPod, fields: []string{"readinessGates"}, fate: fateDropped, ofServer: true, why: "only a server becomes ready"},
	{of: ofContainer, fields: []string{"livenessProbe", "readinessProbe", "startupProbe"}, fate: fateDropped, ofServer: true, why: "meant for the server, which does not run"},
	{of: ofContainer, fields: []string{"lifecycle"}, fate: fateDropped, ofServer: true, why: "hooks for the server. One that fails kills the command"},
	{of: ofContainer, fields: []string{"ports"}, fate: fateDropped, ofServer: true, why: "the run does not listen. A native sidecar only loses its hostPort, which the server may use", take: dropPorts},
	{of: ofTemplate, fields: []string{"labels"}, fate: fateDropped, ofServer: true, why: "a Service could select the run. Those that --labels repeats stay", take: dropLabels},

	{of: ofTemplate, fields: []string{"labels", "annotations"}, fate: fateDropped, isSilent: true, why: "those that a controller, a network plugin, kubectl or cnat added", take: dropAddedMetadata},
	{of: ofJob, fields: []string{"selector", "manualSelector", "podReplacementPolicy"}, fate: fateDropped, isSilent: true, why: "an At knows its Pod by its name"},
	{of: ofPod, fields: []string{"ephemeralContainers", "priority", "preemptionPolicy", "overhead"}, fate: fateDropped, isSilent: true, why: "the API server adds them, and may refuse them in a new Pod"},
	{of: ofPod, fields: []string{"volumes", "tolerations"}, fate: fateDropped, isSilent: true, why: "those that admission adds to each Pod: the token of the service account, five minutes for a node that is not ready", take: dropAdmitted},
	{of: ofPod, fields: []string{"serviceAccount"}, fate: fateChanged, isSilent: true, why: "it is the old name of serviceAccountName", take: renameServiceAccount},
	{of: ofContainer, fields: []string{"terminationMessagePolicy"}, fate: fateDropped, isSilent: true, why: "File is the default of the API server. That of an At also keeps the end of the output", take: dropMessagePolicy},
}

// jobDefaults are what the API server writes into a Job, and an At does as well.
var jobDefaults = map[string]any{
	"parallelism": int32(1), "completions": int32(1), "completionMode": batchv1.NonIndexedCompletion, "suspend": false, "managedBy": batchv1.JobControllerName,
}

// copying is a copy that is being made.
type copying struct {
	template *corev1.PodTemplateSpec
	own      metav1.ObjectMeta // of the object that has the template
	// parts are pointers to what has fields.
	parts map[string][]any
	keep  labels.Set // --labels
	isJob bool
}

// sourceOf returns what an object runs, as a copy that keeps those of the Pod's labels that
// --labels repeats.
func sourceOf(object runtime.Object, keep labels.Set) (from source, err error) {
	object = object.DeepCopyObject()
	kinds, _, err := kinds.ObjectKinds(object)
	if err != nil {
		return from, err
	}
	from.kind, from.name = kinds[0].Kind, object.(metav1.Object).GetName()
	c := &copying{keep: keep, parts: map[string][]any{}}
	switch object := object.(type) {
	case *v1alpha1.At:
		*from.run() = object.Spec.RunSpec
		return from, nil
	case *v1alpha1.CronAt:
		from.spec = object.Spec
		return from, nil
	case *batchv1.CronJob:
		from.spec = v1alpha1.CronAtSpec{
			Schedule: object.Spec.Schedule, TimeZone: object.Spec.TimeZone, Suspend: object.Spec.Suspend, StartingDeadlineSeconds: object.Spec.StartingDeadlineSeconds,
			ConcurrencyPolicy:         v1alpha1.ConcurrencyPolicy(object.Spec.ConcurrencyPolicy),
			SuccessfulAtsHistoryLimit: object.Spec.SuccessfulJobsHistoryLimit, FailedAtsHistoryLimit: object.Spec.FailedJobsHistoryLimit,
		}
		from.spec.AtTemplate.Metadata = v1alpha1.AtTemplateMeta{Labels: object.Spec.JobTemplate.Labels, Annotations: object.Spec.JobTemplate.Annotations}
		from.limit(c, object.ObjectMeta, &object.Spec.JobTemplate.Spec)
	case *batchv1.Job:
		from.limit(c, object.ObjectMeta, &object.Spec)
	case *corev1.PodTemplate:
		c.template = &object.Template
	case *corev1.Pod:
		c.template = &corev1.PodTemplateSpec{ObjectMeta: object.ObjectMeta, Spec: object.Spec}
		owner := metav1.GetControllerOfNoCopy(object)
		from.isServer = owner != nil && owner.Kind != "Job" && owner.Kind != v1alpha1.AtKind
	case *appsv1.Deployment:
		c.template, from.isServer = &object.Spec.Template, true
	case *appsv1.StatefulSet:
		c.template, from.isServer = &object.Spec.Template, true
		c.parts["StatefulSet"] = []any{&object.Spec}
	case *appsv1.DaemonSet:
		c.template, from.isServer = &object.Spec.Template, true
	}
	// A Pod template has no owner reference: the run belongs only to the At.
	c.template.ObjectMeta = metav1.ObjectMeta{Labels: c.template.Labels, Annotations: c.template.Annotations}
	from.run().Template = c.template
	from.notes, err = c.apply()
	return from, err
}

// limit copies the limits of a Job, which has the template.
func (s *source) limit(c *copying, own metav1.ObjectMeta, job *batchv1.JobSpec) {
	run := s.run()
	run.BackoffLimit = ptr.To(ptr.Deref(cmp.Or(job.BackoffLimitPerIndex, job.BackoffLimit), defaultBackoffLimit))
	run.ActiveDeadlineSeconds, run.TTLSecondsAfterFinished = job.ActiveDeadlineSeconds, job.TTLSecondsAfterFinished
	c.template, c.own, c.isJob, c.parts[ofJob] = &job.Template, own, true, []any{job}
}

// apply applies the rules, and returns what they did.
func (c *copying) apply() (notes []string, err error) {
	c.parts[ofPod] = []any{&c.template.Spec}
	for i := range c.template.Spec.Containers {
		c.parts[ofContainer] = append(c.parts[ofContainer], &c.template.Spec.Containers[i])
	}
	for _, rule := range rules {
		if rule.ofServer && c.isJob {
			continue
		}
		var found []string
		for _, part := range c.parts[rule.of] {
			if rule.take == nil {
				found = append(found, empty(part, rule.fields)...)
			}
		}
		if rule.take != nil {
			found = rule.take(c)
		}
		slices.Sort(found)
		note := strings.Join(slices.Compact(found), ", ") + ": " + rule.why
		switch {
		case len(found) == 0 || rule.isSilent:
		case rule.fate == fateRefused:
			return nil, fmt.Errorf("it has %s", note)
		default:
			notes = append(notes, strings.ToUpper(rule.fate[:1])+rule.fate[1:]+" "+note+".")
		}
	}
	return notes, nil
}

// empty empties fields of a struct by their names in JSON. It returns those that differed from the
// defaults.
func empty(object any, names []string) (found []string) {
	value := reflect.ValueOf(object).Elem()
	for i := range value.NumField() {
		field := value.Field(i)
		name, _, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ",")
		if !slices.Contains(names, name) || field.IsZero() {
			continue
		}
		if reflect.Indirect(field).Interface() != jobDefaults[name] {
			found = append(found, name)
		}
		field.SetZero()
	}
	return found
}

// containers calls change for each container of the Pod.
func (c *copying) containers(change func(container *corev1.Container, isInit bool)) {
	for i := range c.template.Spec.InitContainers {
		change(&c.template.Spec.InitContainers[i], true)
	}
	for i := range c.template.Spec.Containers {
		change(&c.template.Spec.Containers[i], false)
	}
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

func dropAddedMetadata(c *copying) []string {
	maps.DeleteFunc(c.template.Labels, isAdded)
	maps.DeleteFunc(c.template.Annotations, isAdded)
	return nil
}

func dropOwnMetadata(c *copying) (found []string) {
	for what, added := range map[string]map[string]string{"labels": c.own.Labels, "annotations": c.own.Annotations} {
		maps.DeleteFunc(added, isAdded)
		if len(added) > 0 {
			found = append(found, what+" "+strings.Join(slices.Sorted(maps.Keys(added)), ", "))
		}
	}
	return found
}

func dropLabels(c *copying) (found []string) {
	lost := maps.Clone(c.template.Labels)
	maps.DeleteFunc(lost, isAdded)
	maps.DeleteFunc(lost, func(key, value string) bool { return c.keep.Has(key) && c.keep.Get(key) == value })
	maps.DeleteFunc(c.template.Labels, func(key, _ string) bool { _, isLost := lost[key]; return isLost })
	if len(lost) == 0 {
		return nil
	}
	return []string{"labels " + strings.Join(slices.Sorted(maps.Keys(lost)), ", ")}
}

func neverRestart(c *copying) (found []string) {
	policy := &c.template.Spec.RestartPolicy
	if *policy == corev1.RestartPolicyOnFailure { // Always is the default.
		found = append(found, "restartPolicy OnFailure to Never")
	}
	*policy = corev1.RestartPolicyNever
	return found
}

func dropContainerRestarts(c *copying) (found []string) {
	c.containers(func(container *corev1.Container, isInit bool) {
		if !isInit || ptr.Deref(container.RestartPolicy, "") != corev1.ContainerRestartPolicyAlways {
			found = append(found, empty(container, []string{"restartPolicy", "restartPolicyRules"})...)
		}
	})
	return found
}

func dropNode(c *copying) []string {
	found := empty(&c.template.Spec, []string{"nodeName"})
	affinity := c.template.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return found
	}
	// The Pod of a DaemonSet.
	required := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	for i := range required.NodeSelectorTerms {
		found = append(found, empty(&required.NodeSelectorTerms[i], []string{"matchFields"})...)
	}
	required.NodeSelectorTerms = slices.DeleteFunc(required.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool { return len(term.MatchExpressions) == 0 })
	if len(required.NodeSelectorTerms) == 0 {
		affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = nil
	}
	return found
}

// selectsOwn reports whether a selector selects the Pods of the template.
func (c *copying) selectsOwn(selector *metav1.LabelSelector) bool {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(c.template.Labels))
}

func dropOwnAffinity(c *copying) (found []string) {
	drop := func(name string, terms *[]corev1.PodAffinityTerm) {
		n := len(*terms)
		*terms = slices.DeleteFunc(*terms, func(term corev1.PodAffinityTerm) bool { return c.selectsOwn(term.LabelSelector) })
		if len(*terms) < n {
			found = append(found, name)
		}
	}
	affinity := c.template.Spec.Affinity
	if affinity != nil && affinity.PodAffinity != nil {
		drop("podAffinity", &affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	if affinity != nil && affinity.PodAntiAffinity != nil {
		drop("podAntiAffinity", &affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	return found
}

func dropOwnSpreading(c *copying) (found []string) {
	constraints := &c.template.Spec.TopologySpreadConstraints
	n := len(*constraints)
	*constraints = slices.DeleteFunc(*constraints, func(constraint corev1.TopologySpreadConstraint) bool { return c.selectsOwn(constraint.LabelSelector) })
	if len(*constraints) < n {
		found = append(found, "topologySpreadConstraints")
	}
	return found
}

func dropPorts(c *copying) (found []string) {
	c.containers(func(container *corev1.Container, isInit bool) {
		if !isInit {
			found = append(found, empty(container, []string{"ports"})...)
		}
		for i := range container.Ports {
			found = append(found, empty(&container.Ports[i], []string{"hostPort"})...)
		}
	})
	return found
}

func dropAdmitted(c *copying) []string {
	isToken := func(name string) bool { return strings.HasPrefix(name, "kube-api-access-") }
	spec := &c.template.Spec
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(volume corev1.Volume) bool { return isToken(volume.Name) })
	c.containers(func(container *corev1.Container, _ bool) {
		container.VolumeMounts = slices.DeleteFunc(container.VolumeMounts, func(mount corev1.VolumeMount) bool { return isToken(mount.Name) })
	})
	spec.Tolerations = slices.DeleteFunc(spec.Tolerations, func(toleration corev1.Toleration) bool {
		return (toleration.Key == corev1.TaintNodeNotReady || toleration.Key == corev1.TaintNodeUnreachable) && ptr.Deref(toleration.TolerationSeconds, 0) == 300
	})
	return nil
}

func renameServiceAccount(c *copying) []string {
	spec := &c.template.Spec
	if spec.ServiceAccountName == "" {
		spec.ServiceAccountName = spec.DeprecatedServiceAccount
	}
	spec.DeprecatedServiceAccount = ""
	return nil
}

func dropMessagePolicy(c *copying) []string {
	c.containers(func(container *corev1.Container, _ bool) {
		if container.TerminationMessagePolicy == corev1.TerminationMessageReadFile {
			container.TerminationMessagePolicy = ""
		}
	})
	return nil
}
