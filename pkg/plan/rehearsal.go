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

package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// A rehearsal is a Pod like that of a run, whose containers run a path that no image has. The
// kubelet does all that it does for a run (volumes, images, environment, sandbox, containers),
// up to the start of the containers, which fails. So no line of the user's code runs.

const (
	// RehearsalMargin is the minimum time before an At is due at which a rehearsal may begin.
	// The Pod of the rehearsal is gone RehearsalLead before the At is due.
	RehearsalMargin = time.Minute
	RehearsalLead   = 30 * time.Second
	// rehearsalSettle is how long the node may report an error that may pass by itself, such as
	// for a ConfigMap that was created together with the At. The kubelet tries again after 10 to
	// 15 seconds.
	rehearsalSettle = 20 * time.Second
	// rehearsalSilence is how long nothing may be seen of a Pod without a sandbox. The kubelet
	// reports a volume that it cannot mount after two minutes.
	rehearsalSilence = 150 * time.Second
	// RehearsalTime is how long a rehearsal may take: it may pull images, or wait for a new node.
	RehearsalTime = 10 * time.Minute
	// RehearsalPeriod is the interval between rehearsals that do not pass.
	RehearsalPeriod = 10 * time.Minute
	// requestPeriod is the minimum interval between rehearsals that are requested.
	requestPeriod = time.Minute
)

// rehearsalPrefix begins the message of a rehearsal that did not pass.
const rehearsalPrefix = "Rehearsed at "

// startErrors are the reasons of containers that were created, but whose command could not be
// started, for different runtimes.
var startErrors = []string{"StartError", "ContainerCannotRun", "RunContainerError"}

// newNodeEvents are the reasons of the events of Cluster Autoscaler and of Karpenter after which
// a node is added for a Pod.
var newNodeEvents = []string{"TriggeredScaleUp", "Nominated"}

// Rehearsal is the result of a rehearsal. The zero value means that there is none.
type Rehearsal struct {
	// Reason is ReasonPassed, or why the rehearsal did not pass.
	Reason string
	// Message says more about it.
	Message string
	// Time is when the rehearsal ended, in whole seconds.
	Time time.Time
}

// NewRehearsal returns the result of a rehearsal that ended now.
func NewRehearsal(reason, message string, now time.Time) Rehearsal {
	f := newForecast(reason, message)
	return Rehearsal{Reason: f.Reason, Message: f.Message, Time: now.Truncate(time.Second)}
}

// foreseesFailure reports whether the run would fail, too. Otherwise nothing is known of it,
// or the rehearsal has passed.
func foreseesFailure(reason string) bool {
	return !slices.Contains([]string{
		v1alpha1.ReasonPassed, v1alpha1.ReasonRehearsalRefused, v1alpha1.ReasonRehearsalUnschedulable, v1alpha1.ReasonContainerStarted,
		// That concerns the moment of the rehearsal.
		v1alpha1.ReasonEvicted, v1alpha1.ReasonPodDeleted,
	}, reason)
}

// AsAdmitted returns the Pod of a run with the resources and the ports of the Pod that the API
// server admitted: LimitRanges and webhooks decide on them, too.
func AsAdmitted(run, admitted *corev1.Pod) *corev1.Pod {
	run = run.DeepCopy()
	run.Spec.Resources = admitted.Spec.Resources
	from := slices.Concat(admitted.Spec.InitContainers, admitted.Spec.Containers)
	for c := range containersOf(&run.Spec) {
		if j := slices.IndexFunc(from, func(other corev1.Container) bool { return other.Name == c.Name }); j >= 0 {
			c.Resources, c.Ports = from[j].Resources, from[j].Ports
		}
	}
	return run
}

// NewRehearsalPod returns the Pod of a rehearsal for the Pod of a run. owner is the At or the
// CronAt, of the given kind.
func NewRehearsalPod(owner metav1.Object, kind string, run *corev1.Pod) *corev1.Pod {
	spec := run.Spec.DeepCopy()
	leaveOutMade(spec)
	// In a rehearsal, init containers run beside the others: the kubelet would not try a second init
	// container after the first has failed. So they request no resources. The first container
	// requests what they need in addition.
	beside := run.DeepCopy()
	beside.Spec.InitContainers = slices.DeleteFunc(beside.Spec.InitContainers, func(c corev1.Container) bool { return !isSidecar(&c) })
	for i := range spec.InitContainers {
		if c := &spec.InitContainers[i]; !isSidecar(c) {
			c.Ports = nil
			c.Resources.Requests, c.Resources.Limits = none(c.Resources.Requests), none(c.Resources.Limits)
		}
	}
	options, first := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}, &spec.Containers[0].Resources
	first.Requests = addMissing(first.Requests, resourcehelper.PodRequests(run, options), resourcehelper.PodRequests(beside, options))
	first.Limits = addMissing(first.Limits, resourcehelper.PodLimits(run, options), resourcehelper.PodLimits(beside, options))
	for name, limit := range first.Limits {
		if request := first.Requests[name]; limit.Cmp(request) < 0 {
			first.Limits[name] = request
		}
	}
	spec.Containers = slices.Concat(spec.Containers, spec.InitContainers)
	for i := range spec.Containers {
		rehearse(&spec.Containers[i], owner.GetUID())
	}
	spec.InitContainers, spec.ReadinessGates = nil, nil
	spec.RestartPolicy = corev1.RestartPolicyNever
	spec.TerminationGracePeriodSeconds = ptr.To[int64](1)
	// If no controller is left to delete it, the kubelet ends it.
	spec.ActiveDeadlineSeconds = ptr.To(int64((RehearsalTime + 2*time.Minute) / time.Second))
	// A rehearsal must not preempt other Pods.
	spec.PriorityClassName, spec.Priority, spec.PreemptionPolicy = "", nil, nil

	annotations := maps.Clone(run.Annotations)
	maps.DeleteFunc(annotations, func(key, _ string) bool { return strings.HasPrefix(key, v1alpha1.SchemeGroupVersion.Group+"/") })
	const suffix = "-rehearsal"
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:            Shorten(owner.GetName(), validation.DNS1123LabelMaxLength-len(suffix)) + suffix,
			Namespace:       owner.GetNamespace(),
			Labels:          map[string]string{v1alpha1.LabelRehearsalOf: string(owner.GetUID())},
			Annotations:     annotations,
			OwnerReferences: OwnedBy(owner, kind),
		},
		Spec: *spec,
	}
}

// IsRehearsal reports whether a Pod is that of a rehearsal: a label alone can be anybody's.
func IsRehearsal(pod *corev1.Pod) bool {
	owner := cmp.Or(Owner(pod, v1alpha1.AtKind), Owner(pod, v1alpha1.CronAtKind))
	return owner != nil && string(owner.UID) == pod.Labels[v1alpha1.LabelRehearsalOf] && !IsTracked(pod)
}

// rehearsalPath is the command of a rehearsal's containers. No image has it.
func rehearsalPath(owner types.UID) string { return "/cnat-rehearsal-" + string(owner) }

// rehearse makes a container run rehearsalPath. What comes after its start is removed. The ports
// of the node stay: the scheduler looks for a node where they are free.
func rehearse(container *corev1.Container, owner types.UID) {
	container.Command, container.Args = []string{rehearsalPath(owner)}, nil
	container.Ports = slices.DeleteFunc(container.Ports, func(port corev1.ContainerPort) bool { return port.HostPort == 0 })
	container.Lifecycle, container.ResizePolicy = nil, nil
	container.LivenessProbe, container.ReadinessProbe, container.StartupProbe = nil, nil, nil
	container.RestartPolicy, container.RestartPolicyRules = nil, nil
	container.Stdin, container.StdinOnce, container.TTY = false, false, false
}

// leaveOutMade removes from each container what an init container before it may make: a path of a
// volume that it can write. In a rehearsal it is not there, and the node would make a directory of that
// name, which the run would find.
func leaveOutMade(spec *corev1.PodSpec) {
	written := sets.Set[string]{}
	for i := range spec.InitContainers {
		mounts := slices.Clone(spec.InitContainers[i].VolumeMounts)
		leaveOutIn(&spec.InitContainers[i], written)
		for _, mount := range mounts {
			if !mount.ReadOnly {
				written.Insert(mount.Name)
			}
		}
	}
	for i := range spec.Containers {
		leaveOutIn(&spec.Containers[i], written)
	}
}

// leaveOutIn removes from a container what is in one of the volumes with the given names.
func leaveOutIn(container *corev1.Container, volumes sets.Set[string]) {
	if slices.ContainsFunc(container.VolumeMounts, func(mount corev1.VolumeMount) bool { return volumes.Has(mount.Name) }) {
		container.WorkingDir = "" // The runtime makes it.
	}
	container.VolumeMounts = slices.DeleteFunc(container.VolumeMounts, func(mount corev1.VolumeMount) bool {
		return mount.SubPath+mount.SubPathExpr != "" && volumes.Has(mount.Name)
	})
	container.Env = slices.DeleteFunc(container.Env, func(env corev1.EnvVar) bool {
		return env.ValueFrom != nil && env.ValueFrom.FileKeyRef != nil && volumes.Has(env.ValueFrom.FileKeyRef.VolumeName)
	})
}

// none returns the same resources, but nothing of them. Without it, a LimitRange would set its own.
func none(resources corev1.ResourceList) corev1.ResourceList {
	for name := range resources {
		resources[name] = resource.Quantity{}
	}
	return resources
}

// addMissing adds to resources what present lacks of wanted.
func addMissing(resources, wanted, present corev1.ResourceList) corev1.ResourceList {
	for name, missing := range wanted {
		if missing.Sub(present[name]); missing.Sign() > 0 {
			missing.Add(resources[name])
			if resources == nil {
				resources = corev1.ResourceList{}
			}
			resources[name] = missing
		}
	}
	return resources
}

// JudgeRehearsal returns the result of a rehearsal, or the zero value if it goes on. run is the
// Pod of the run. event is the newest event about the Pod of the rehearsal, or nil if that is
// unknown. Only the containers that run has count: a webhook may have added others.
func JudgeRehearsal(pod, run *corev1.Pod, event *PodEvent, now time.Time) Rehearsal {
	path := rehearsalPath(types.UID(pod.Labels[v1alpha1.LabelRehearsalOf]))
	names := slices.Concat(run.Spec.Containers, run.Spec.InitContainers)
	ours, others := pod.DeepCopy(), pod.DeepCopy()
	ours.Status.InitContainerStatuses, ours.Status.ContainerStatuses, others.Status.ContainerStatuses = nil, nil, nil
	reached := 0
	for _, status := range pod.Status.ContainerStatuses {
		terminated := cmp.Or(status.State.Terminated, status.LastTerminationState.Terminated)
		switch {
		case !slices.ContainsFunc(names, func(c corev1.Container) bool { return c.Name == status.Name }):
			others.Status.ContainerStatuses = append(others.Status.ContainerStatuses, status)
		case hasReachedStart(&status, path):
			reached++
		case terminated != nil && slices.Contains(startErrors, terminated.Reason):
			return NewRehearsal(v1alpha1.ReasonContainerNotCreated, join("Container "+status.Name, terminated.Reason, terminated.Message), now)
		case status.State.Running != nil || terminated != nil && terminated.Reason != statusUnknown:
			return NewRehearsal(v1alpha1.ReasonContainerStarted, fmt.Sprintf("Container %s started: a webhook may have replaced its command, or its image has a program at %s. The Pod was deleted.", status.Name, path), now)
		default:
			ours.Status.ContainerStatuses = append(ours.Status.ContainerStatuses, status)
		}
	}
	if reached == len(names) {
		return NewRehearsal(v1alpha1.ReasonPassed, "Each container got as far as the start of its command.", now)
	}
	if hasEnded(pod) {
		reason, message := failureReason(others)
		if reason == v1alpha1.ReasonPodFailed && isRefusedForNow(pod) {
			reason = v1alpha1.ReasonEvicted
		}
		return NewRehearsal(reason, message, now)
	}
	age := now.Sub(pod.CreationTimestamp.Time)
	mayGetNode := event == nil || slices.Contains(newNodeEvents, event.Reason)
	reason, message := podBlocker(ours, now)
	switch condition := unscheduled(pod); {
	case condition != nil && age < Grace:
		return Rehearsal{}
	case condition != nil && condition.Reason == corev1.PodReasonSchedulingGated:
		message = join("Pod "+pod.Name, condition.Reason, condition.Message)
		return NewRehearsal(v1alpha1.ReasonRehearsalUnschedulable, message+" Nothing has removed the scheduling gates of the rehearsal.", now)
	case reason == v1alpha1.ReasonUnschedulable && mayGetNode && age < RehearsalTime:
		return Rehearsal{}
	case reason == v1alpha1.ReasonUnschedulable && hasMoreRights(run):
		return NewRehearsal(v1alpha1.ReasonRehearsalUnschedulable, message+" A rehearsal has neither the priority class nor the labels of the run.", now)
	case reason != "" && age >= rehearsalSettle:
		return NewRehearsal(reason, message, now)
	}
	isOver := age >= RehearsalTime || event != nil && isSilentSince(pod, event, now.Add(-rehearsalSilence))
	switch reason, message := silentBlocker(ours, event, now); {
	case reason == "", reason == v1alpha1.ReasonPodPending && !isOver, age < EventDelay:
		return Rehearsal{}
	default:
		return NewRehearsal(reason, message, now)
	}
}

// isRefusedForNow reports whether the kubelet of a Pod refused it for a reason that may pass:
// it has no room by now, or it is being shut down. See pkg/kubelet/lifecycle/predicate.go and
// pkg/kubelet/nodeshutdown in Kubernetes.
func isRefusedForNow(pod *corev1.Pod) bool {
	return strings.HasPrefix(pod.Status.Reason, "OutOf") || pod.Status.Reason == "NodeShutdown"
}

// isSilentSince reports whether nothing has been seen of a Pod without a sandbox since the given
// time. With a sandbox, it may pull images for as long as that takes.
func isSilentSince(pod *corev1.Pod, event *PodEvent, since time.Time) bool {
	return !hasSandbox(pod) && !waitsSince(pod).After(since) && !WrittenAt(pod, "status").After(since) &&
		(isUnknownYet(event.Message) || !event.Time.After(since))
}

// hasMoreRights reports whether the scheduler may have room for the Pod of a run but not for that
// of its rehearsal.
func hasMoreRights(run *corev1.Pod) bool {
	affinity := ptr.Deref(run.Spec.Affinity, corev1.Affinity{})
	return run.Spec.PriorityClassName != "" || affinity.PodAffinity != nil
}

// hasReachedStart reports whether a container got as far as the start of its command, which
// does not exist. containerd reports that when it starts the container, CRI-O when it creates
// it. Both name the path.
func hasReachedStart(status *corev1.ContainerStatus, path string) bool {
	terminated := cmp.Or(status.State.Terminated, status.LastTerminationState.Terminated)
	return terminated != nil && slices.Contains(startErrors, terminated.Reason) && strings.Contains(terminated.Message, path) ||
		status.State.Waiting != nil && strings.Contains(status.State.Waiting.Message, path)
}

// Rehearsed is the part of a status that is about rehearsals.
type Rehearsed struct {
	Conditions *[]metav1.Condition
	At         **metav1.Time
}

// current returns condition Rehearsed if it is about the given generation, or nil.
func (r Rehearsed) current(generation int64) *metav1.Condition {
	condition := meta.FindStatusCondition(*r.Conditions, v1alpha1.ConditionRehearsed)
	if condition == nil || condition.ObservedGeneration != generation || *r.At == nil {
		return nil
	}
	return condition
}

// Observe updates the status of an object with a result, if it is news. Without one, it removes that of
// another generation, or one that is no longer wanted. failure is the condition that foresees
// that a run fails, or nil. events report a result that foresees nothing.
func (r Rehearsed) Observe(object metav1.Object, wanted bool, result Rehearsal, now time.Time) (failure *metav1.Condition, events []Event) {
	before, isNews := ptr.Deref(r.current(object.GetGeneration()), metav1.Condition{}), r.IsNews(object, result)
	switch {
	case !wanted || !isNews && before.Reason == "":
		meta.RemoveStatusCondition(r.Conditions, v1alpha1.ConditionRehearsed)
		*r.At = nil
		return nil, nil
	case isNews:
		message := result.Message
		if result.Reason != v1alpha1.ReasonPassed {
			message = rehearsalPrefix + result.Time.UTC().Format(time.RFC3339) + ": " + message
		}
		condition := NewCondition(object, now, v1alpha1.ConditionRehearsed, result.Reason, message)
		if result.Reason != v1alpha1.ReasonPassed {
			condition.Status = metav1.ConditionFalse
		}
		meta.SetStatusCondition(r.Conditions, condition)
		*r.At = &metav1.Time{Time: result.Time}
	}
	switch current := r.current(object.GetGeneration()); {
	case foreseesFailure(current.Reason):
		return current, nil
	case current.Status == metav1.ConditionFalse && current.Reason != before.Reason:
		return nil, []Event{NewEvent(corev1.EventTypeWarning, current.Reason, current.Message)}
	default:
		return nil, nil
	}
}

// IsNews reports whether a result is newer than what the status says, maybe because another
// controller has written it. So each result is written at most once, however many controllers
// there are.
func (r Rehearsed) IsNews(object metav1.Object, result Rehearsal) bool {
	return result.Reason != "" && (r.current(object.GetGeneration()) == nil || result.Time.After((*r.At).Time))
}

// Requested returns when a rehearsal was requested that has not taken place, or the zero time.
func (r Rehearsed) Requested(object metav1.Object) time.Time {
	requested, err := time.Parse(time.RFC3339, object.GetAnnotations()[v1alpha1.AnnotationRehearsalRequestedAt])
	if err != nil || *r.At != nil && !requested.After((*r.At).Time) {
		return time.Time{}
	}
	return requested
}

// IsNewRequest reports whether a rehearsal was requested between two versions of an object.
func IsNewRequest(old, cur metav1.Object) bool {
	const key = v1alpha1.AnnotationRehearsalRequestedAt
	return old.GetAnnotations()[key] != cur.GetAnnotations()[key]
}

// Until returns the time until the next rehearsal for a run that is due at the given time; 0 or less
// means now. wanted is false if none is needed, or if the preflight before the run starts it. A
// rehearsal is needed if the object is new or was edited, if a user requested one, or if the last
// one did not pass. It is also needed if the run is near and the last one is older than gap.
func (r Rehearsed) Until(object metav1.Object, due, now time.Time, gap time.Duration) (wait time.Duration, wanted bool) {
	left, lead, requested := due.Sub(now), Lead(object.GetUID()), r.Requested(object)
	condition := r.current(object.GetGeneration())
	switch {
	case left < RehearsalMargin:
		return 0, false
	case condition == nil:
		return 0, true
	case !requested.IsZero() && requested.Sub(now) < RehearsalPeriod: // The clock of the user may be ahead.
		return max(requested.Sub(now), (*r.At).Add(requestPeriod).Sub(now)), true
	case condition.Status != metav1.ConditionTrue:
		return (*r.At).Add(RehearsalPeriod).Sub(now), true
	default:
		return 0, left <= lead && (*r.At).Before(&metav1.Time{Time: due.Add(-lead)}) && now.Sub((*r.At).Time) >= gap
	}
}

// RehearsedOf returns the part of an At's status that is about rehearsals.
func RehearsedOf(status *v1alpha1.AtStatus) Rehearsed {
	return Rehearsed{&status.Conditions, &status.RehearsedAt}
}

// UntilRehearsal returns the time until an At needs a rehearsal, if its Pod is not refused.
func UntilRehearsal(at *v1alpha1.At, now time.Time) (wait time.Duration, wanted bool) {
	instant, err := Instant(&at.Spec)
	if !at.Spec.Rehearse || err != nil {
		return 0, false
	}
	return RehearsedOf(&at.Status).Until(at, instant, now, 0)
}

// OnNode returns an At that runs only on the given node, of those that spec.nodes selects.
func OnNode(at *v1alpha1.At, node string) *v1alpha1.At {
	one := *at
	one.Spec.Nodes, one.Spec.Node = nil, node
	return &one
}
