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
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

// maxKeptSizes are the sizes of objects in JSON up to which they may be cached.
var maxKeptSizes = map[string]int{"At": 16 << 10, "Pod": 48 << 10}

// largeMeta fills whatever a user can write in the metadata of an object.
func largeMeta(meta *metav1.ObjectMeta, kind string) {
	long := strings.Repeat("x", 200_000)
	meta.Name, meta.Namespace = strings.Repeat("n", 253), strings.Repeat("n", 63)
	meta.Labels = map[string]string{v1alpha1.LabelAtUID: strings.Repeat("x", 63), v1alpha1.LabelCronAtUID: strings.Repeat("x", 63)}
	meta.Annotations = map[string]string{}
	for _, key := range append(slices.Clone(podAnnotations), "other") {
		meta.Annotations[key] = long
	}
	meta.Finalizers = append(slices.Repeat([]string{strings.Repeat("f", 253) + "/" + strings.Repeat("f", 63)}, 4000), v1alpha1.FinalizerTracking, v1alpha1.FinalizerScheduled)
	meta.ManagedFields = slices.Repeat([]metav1.ManagedFieldsEntry{{Manager: "manager", Time: &metav1.Time{}}}, 10_000)
	meta.OwnerReferences = append(
		[]metav1.OwnerReference{{APIVersion: v1alpha1.SchemeGroupVersion.Group + "/" + long, Kind: kind, Name: long, UID: "uid", Controller: ptr.To(true)}},
		slices.Repeat([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "name", UID: "uid"}}, 1000)...)
}

// largeRun fills whatever the CRD admits, apart from the template.
func largeRun(run *v1alpha1.RunSpec) {
	run.Node = strings.Repeat("n", 253)
	run.Restart = &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: strings.Repeat("n", 253)}
	run.Nodes = &v1alpha1.AtNodes{MaxConcurrent: ptr.To(intstr.FromString("100%")), MaxFailed: ptr.To[int32](1)}
	run.Nodes.Selector.MatchExpressions = slices.Repeat([]metav1.LabelSelectorRequirement{{
		Key: "key", Operator: metav1.LabelSelectorOpIn, Values: slices.Repeat([]string{"a"}, 5000),
	}}, 64)
}

// TestKeptSize checks that little of an object is cached, whatever users write into it.
func TestKeptSize(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.At, *corev1.Pod){
		"all":             func(*v1alpha1.At, *corev1.Pod) {},
		"a small command": func(at *v1alpha1.At, _ *corev1.Pod) { at.Spec.Command = "true" },
		"a long command":  func(at *v1alpha1.At, _ *corev1.Pod) { at.Spec.Command = strings.Repeat("x", 32767) },
		"a template": func(at *v1alpha1.At, _ *corev1.Pod) {
			at.Spec.Template = &corev1.PodTemplateSpec{ObjectMeta: at.ObjectMeta}
		},
		"a long UID": func(at *v1alpha1.At, pod *corev1.Pod) {
			owner(at).Name, owner(at).UID = "name", "u"+owner(at).UID
			owner(pod).Name = "name"
		},
		"a long kind": func(at *v1alpha1.At, pod *corev1.Pod) {
			owner(at).Name, owner(pod).Name = "name", "name"
			owner(pod).Kind = strings.Repeat("K", 100_000)
		},
		"few finalizers": func(at *v1alpha1.At, pod *corev1.Pod) {
			at.Finalizers = at.Finalizers[3999:]
			pod.Finalizers = at.Finalizers
		},
		"owned by a CronAt": func(at *v1alpha1.At, _ *corev1.Pod) { owner(at).Kind = v1alpha1.CronAtKind },
	} {
		t.Run(name, func(t *testing.T) {
			at := &v1alpha1.At{Spec: v1alpha1.AtSpec{Schedule: strings.Repeat("0", 64), TimeZone: ptr.To(strings.Repeat("🌍", 64))}}
			at.Generation = 1
			largeMeta(&at.ObjectMeta, v1alpha1.AtKind)
			largeRun(&at.Spec.RunSpec)
			// The controller writes the status.
			at.Status.Message = strings.Repeat("x", answer.MaxMessage)
			at.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionFailed, Message: at.Status.Message}}
			// The kubelet repeats the image.
			long := strings.Repeat("x", 600_000)
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "command"}}}, Status: corev1.PodStatus{Message: long}}
			largeMeta(&pod.ObjectMeta, v1alpha1.AtKind)
			for i := range 3000 {
				status := corev1.ContainerStatus{Name: fmt.Sprintf("c%d", i), State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: long}}}
				pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, status)
				pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses, status)
			}
			change(at, pod)
			for kind, kept := range map[string]any{"At": KeepAt(at), "Pod": KeepPod(pod)} {
				content, err := json.Marshal(kept)
				if err != nil {
					t.Fatal(err)
				}
				if len(content) > maxKeptSizes[kind] {
					t.Errorf("%d bytes of the %s are kept: %.3000s", len(content), kind, content)
				}
			}
		})
	}
}

// owner returns the first owner reference of an object.
func owner(object metav1.Object) *metav1.OwnerReference { return &object.GetOwnerReferences()[0] }

// TestKeptSelector checks that an At with nodes does not start with the selector of a cached
// At, which has none.
func TestKeptSelector(t *testing.T) {
	at := newAt(func(at *v1alpha1.At) {
		at.Spec.Nodes = &v1alpha1.AtNodes{Selector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}}
	})
	if got := Decide(World{At: KeepAt(at), Now: now}).Needs; got != LiveAll {
		t.Errorf("needs %v for a cached At, want all", got)
	}
	live := Decide(World{At: at, Live: LiveAll, Now: now})
	if live.Status == nil || live.Status.Reason != v1alpha1.ReasonInvalidSelector {
		t.Errorf("got %+v, want %s", live.Status, v1alpha1.ReasonInvalidSelector)
	}
}

// TestKeep compares the decisions based on a whole At and its Pod with those based on the
// fields in the caches, which contain nothing large.
func TestKeep(t *testing.T) {
	large := strings.Repeat("x", 1<<20)
	fill := func(at *v1alpha1.At) {
		at.Labels, at.Annotations, at.Spec.Command = map[string]string{"large": large}, map[string]string{"large": large}, large
		at.Spec.Template = &corev1.PodTemplateSpec{}
		at.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: large}}
		at.Finalizers, at.OwnerReferences = []string{large}, []metav1.OwnerReference{{Name: large}}
		at.CreationTimestamp = metav1.Time{Time: due.Add(time.Second)}
	}
	fillPod := func(pod *corev1.Pod) {
		pod.Labels["large"], pod.Annotations["large"] = large, large
		pod.Finalizers = append(pod.Finalizers, large)
		pod.OwnerReferences = append(pod.OwnerReferences, metav1.OwnerReference{Name: large})
		pod.Spec.NodeName = "node"
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: large})
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Message: large})
		pod.Status.PodIP, pod.Status.HostIP, pod.Status.StartTime = "192.0.2.1", "192.0.2.2", &metav1.Time{Time: due}
	}
	container := func(state, last corev1.ContainerState) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{Name: "command", Image: large, State: state, LastTerminationState: last}}
	}
	failed := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Message: "no such host", FinishedAt: metav1.Time{Time: due}}}
	noImage := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"}}
	condition := func(conditionType corev1.PodConditionType, status corev1.ConditionStatus, reason string) []corev1.PodCondition {
		return []corev1.PodCondition{{Type: conditionType, Status: status, Reason: reason, Message: "words", LastTransitionTime: metav1.Time{Time: due}}}
	}
	ats := map[string]func(*v1alpha1.At){
		"plain":     func(*v1alpha1.At) {},
		"suspended": func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) },
		"zoned": func(at *v1alpha1.At) {
			at.Spec.Schedule, at.Spec.TimeZone = "2026-12-24T11:12:00", ptr.To("Europe/Berlin")
		},
		"deleted":  func(at *v1alpha1.At) { at.DeletionTimestamp = &metav1.Time{Time: due} },
		"deadline": withStartingDeadline(30),
		"running":  withStatus(running(corev1.PodPending)),
		"limited":  func(at *v1alpha1.At) { at.Status = running(corev1.PodPending); withActiveDeadline(60)(at) },
		"blocked":  withStatus(running(corev1.PodPending, blocked(due, v1alpha1.ReasonContainerNotCreated, "words"))),
		"retries":  func(at *v1alpha1.At) { at.Status = running(corev1.PodPending); withBackoffLimit(1)(at) },
		"restarting": func(at *v1alpha1.At) {
			withRestart(at)
			at.Status.Phase, at.Status.StartTime = v1alpha1.PhaseRunning, &metav1.Time{Time: due}
			at.Status.Restart = &v1alpha1.AtRestartStatus{UID: "web", RestartedAt: &metav1.Time{Time: due}}
		},
		"done, kept": func(at *v1alpha1.At) { withDone(v1alpha1.ConditionComplete, due)(at); withTTL(60)(at) },
	}
	pods := map[string]func(*corev1.Pod){
		"running":   func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodRunning },
		"succeeded": func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded },
		"failed": func(pod *corev1.Pod) {
			pod.Status.Phase, pod.Status.ContainerStatuses = corev1.PodFailed, container(failed, corev1.ContainerState{})
		},
		"failed, with a sidecar": func(pod *corev1.Pod) {
			pod.Spec.Containers = append([]corev1.Container{{Name: "sidecar"}}, pod.Spec.Containers...)
			pod.Status.Phase = corev1.PodFailed
			pod.Status.ContainerStatuses = append([]corev1.ContainerStatus{{Name: "sidecar", State: noImage}}, container(failed, corev1.ContainerState{})...)
		},
		"failed, by a container that no annotation names": func(pod *corev1.Pod) {
			pod.Annotations[DefaultContainer] = "gone"
			pod.Spec.Containers = append([]corev1.Container{{Name: "command"}}, corev1.Container{Name: "sidecar"})
			pod.Status.Phase = corev1.PodFailed
			pod.Status.ContainerStatuses = append([]corev1.ContainerStatus{{Name: "sidecar", State: noImage}}, container(failed, corev1.ContainerState{})...)
		},
		"restarted": func(pod *corev1.Pod) {
			pod.Status.Phase, pod.Status.ContainerStatuses = corev1.PodFailed, container(noImage, failed)
		},
		"no image": func(pod *corev1.Pod) { pod.Status.ContainerStatuses = container(noImage, corev1.ContainerState{}) },
		"starting": writtenAt(due.Add(90 * time.Second)),
		"mounted": func(pod *corev1.Pod) {
			pod.Status.Conditions = condition(corev1.PodReadyToStartContainers, corev1.ConditionTrue, "")
		},
		"init failed": func(pod *corev1.Pod) {
			pod.Status.Phase, pod.Status.InitContainerStatuses = corev1.PodFailed, container(failed, corev1.ContainerState{})
		},
		"evicted": func(pod *corev1.Pod) {
			pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, "Evicted", "words"
		},
		"drained": func(pod *corev1.Pod) {
			pod.Status.Phase, pod.Status.Conditions = corev1.PodFailed, condition(corev1.DisruptionTarget, corev1.ConditionTrue, "words")
		},
		"unschedulable": func(pod *corev1.Pod) {
			pod.Status.Conditions = condition(corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable)
		},
		"deleted": func(pod *corev1.Pod) {
			pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: due}, ptr.To[int64](0)
		},
		"no owner": func(pod *corev1.Pod) { pod.OwnerReferences = nil },
		"no label": func(pod *corev1.Pod) { delete(pod.Labels, v1alpha1.LabelAtUID) },
		"other At's": func(pod *corev1.Pod) {
			pod.UID, owner(pod).UID, pod.Labels[v1alpha1.LabelAtUID] = "earlier-pod", "earlier", "earlier"
		},
		"released":      withReleased,
		"older":         func(pod *corev1.Pod) { pod.Annotations[v1alpha1.AnnotationAtGeneration] = "0" },
		"of another At": func(pod *corev1.Pod) { pod.OwnerReferences = nil; pod.Annotations[v1alpha1.AnnotationAtName] = "other" },
	}
	for atName, changeAt := range ats {
		at := newAt(changeAt)
		fill(at)
		keptAt := KeepAt(at)
		if size := len(fmt.Sprintf("%+v", keptAt)); size > 5_000 {
			t.Errorf("%s: %d bytes of an At are kept, including large fields", atName, size)
		}
		for podName, changePod := range pods {
			pod := newPod(corev1.PodPending, changePod)
			fillPod(pod)
			keptPod := KeepPod(pod)
			if size := len(fmt.Sprintf("%+v", keptPod)); size > 10_000 {
				t.Errorf("%s: %d bytes of a Pod are kept, including large fields", podName, size)
			}
			if all, kept := AtName(pod), AtName(keptPod); all != kept {
				t.Errorf("%s: the At's name is %q, of what is kept %q", podName, all, kept)
			}
			for _, now := range []time.Time{due.Add(-time.Second), due, due.Add(2 * time.Minute)} {
				world := World{
					At: at, Pods: []*corev1.Pod{pod}, Now: now,
					PodEvent: &PodEvent{Warning: true, Reason: "FailedMount", Time: now}, PodEventIsKnown: true,
				}
				cached := world
				cached.At, cached.Pods = keptAt, []*corev1.Pod{keptPod}
				equate := cmp.Options{cmpopts.EquateEmpty(), cmp.Comparer(func(a, b *corev1.Pod) bool { return (a == nil) == (b == nil) }), cmp.Comparer(func(a, b error) bool { return fmt.Sprint(a) == fmt.Sprint(b) })}
				if diff := cmp.Diff(Decide(world), Decide(cached), equate...); diff != "" {
					t.Errorf("%s, Pod %s, at %v: decided (-on all +on what is kept):\n%s", atName, podName, now, diff)
				}
				if diff := cmp.Diff(CleanUp(world, pod), CleanUp(cached, keptPod), equate...); diff != "" {
					t.Errorf("%s, Pod %s, at %v: cleaned up (-on all +on what is kept):\n%s", atName, podName, now, diff)
				}
				state, overdue := StateOf(at, nil, now)
				if keptState, keptOverdue := StateOf(keptAt, nil, now); state != keptState || overdue != keptOverdue {
					t.Errorf("%s, at %v: state %s for %v, of what is kept %s for %v", atName, now, state, overdue, keptState, keptOverdue)
				}
			}
		}
	}
}
