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
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

// TestDecideWaiting covers Ats whose Pod is recorded, but has not started.
func TestDecideWaiting(t *testing.T) {
	const (
		pending = "Pod example-at-pod: the command has not started for a minute"
		see     = ". See kubectl describe pod example-at-pod -n default"
	)
	recorded := running(corev1.PodPending)
	recordedWith := func(reason string) v1alpha1.AtStatus {
		return running(corev1.PodPending, blocked(earlier, reason, "words"))
	}
	rehearsed := func(reason string) v1alpha1.AtStatus {
		return running(corev1.PodPending, blocked(earlier, reason, rehearsalPrefix+"2026-12-24T10:00:00Z: words"))
	}
	event := func(warning bool, reason string, age time.Duration, at time.Time) *PodEvent {
		return &PodEvent{Warning: warning, Reason: reason, Message: "words", Time: at.Add(-age)}
	}
	after := func(age time.Duration) time.Time { return created.Add(age) }
	for name, tc := range map[string]struct {
		status v1alpha1.AtStatus
		pod    func(*corev1.Pod)
		age    time.Duration
		known  bool // the events were read
		event  *PodEvent

		wantReason, wantMessage string // of a status that is written
		wantDelay               time.Duration
	}{
		"for less than 20 seconds: waited for": {
			status: recorded, age: EventDelay - 1, wantDelay: 1,
		},
		"no event: waited for": {
			status: recorded, age: EventDelay, known: true, wantDelay: Grace - EventDelay,
		},
		"an event that is no warning: waited for": {
			status: recorded, age: EventDelay, known: true, event: event(false, "Pulling", 0, after(EventDelay)), wantDelay: Grace - EventDelay,
		},
		"a volume is missing: reported": {
			status: recorded, age: EventDelay, known: true, event: event(true, "FailedMount", 0, after(EventDelay)),
			wantReason: v1alpha1.ReasonVolumeNotMounted, wantMessage: "Pod example-at-pod: FailedMount: words",
		},
		"its busy node has not read a ConfigMap yet: waited for": {
			status: recorded, age: EventDelay, known: true, event: unread(after(EventDelay)), wantDelay: Grace - EventDelay,
		},
		"its busy node has not read a ConfigMap for a minute: reported": {
			status: recorded, age: Grace, known: true, event: unread(after(EventDelay)),
			wantReason: v1alpha1.ReasonPodPending, wantMessage: pending + ": FailedMount: " + unread(now).Message + see,
		},
		"its busy node has not read a Secret for a container yet: waited for": {
			status: recorded, age: EventDelay - 1, pod: waiting("CreateContainerConfigError", "failed to sync secret cache: timed out waiting for the condition"), wantDelay: 1,
		},
		"a volume was missing, and its sandbox exists now: waited for": {
			status: recorded, age: EventDelay, known: true, event: event(true, "FailedMount", 0, after(EventDelay)),
			pod: func(pod *corev1.Pod) {
				pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}
			},
			wantDelay: Grace - EventDelay,
		},
		"no sandbox: reported": {
			status: recorded, age: EventDelay, known: true, event: event(true, "FailedCreatePodSandBox", 0, after(EventDelay)),
			wantReason: v1alpha1.ReasonSandboxNotCreated, wantMessage: "Pod example-at-pod: FailedCreatePodSandBox: words",
		},
		"a volume cannot be attached: reported": {
			status: recorded, age: EventDelay, known: true, event: event(true, "FailedAttachVolume", 0, after(EventDelay)),
			wantReason: v1alpha1.ReasonVolumeNotMounted, wantMessage: "Pod example-at-pod: FailedAttachVolume: words",
		},
		"a device cannot be mapped: reported": {
			status: recorded, age: EventDelay, known: true, event: event(true, "FailedMapVolume", 0, after(EventDelay)),
			wantReason: v1alpha1.ReasonVolumeNotMounted, wantMessage: "Pod example-at-pod: FailedMapVolume: words",
		},
		"the network of the node is not ready: reported": {
			status: recorded, age: EventDelay, known: true, event: event(true, "NetworkNotReady", 0, after(EventDelay)),
			wantReason: v1alpha1.ReasonSandboxNotCreated, wantMessage: "Pod example-at-pod: NetworkNotReady: words",
		},
		"a resource is not prepared: reported": {
			status: recorded, age: EventDelay, known: true, event: event(true, "FailedPrepareDynamicResources", 0, after(EventDelay)),
			wantReason: v1alpha1.ReasonSandboxNotCreated, wantMessage: "Pod example-at-pod: FailedPrepareDynamicResources: words",
		},
		"a warning that keeps no Pod from starting: waited for": {
			status: recorded, age: EventDelay, known: true, event: event(true, "DNSConfigForming", 0, after(EventDelay)), wantDelay: Grace - EventDelay,
		},
		"a warning that keeps no Pod from starting, for a minute: reported": {
			status: recorded, age: Grace, known: true, event: event(true, "DNSConfigForming", 0, after(Grace)),
			wantReason: v1alpha1.ReasonPodPending, wantMessage: pending + ": DNSConfigForming: words" + see,
		},
		"reported, and its events cannot be read: kept": {
			status: recordedWith(v1alpha1.ReasonVolumeNotMounted), age: time.Hour, wantDelay: checkDelay,
		},
		"its events cannot be read, for a minute: reported": {
			status: recorded, age: Grace, wantReason: v1alpha1.ReasonPodPending, wantMessage: pending + see,
		},
		"reported, and still so: not written again": {
			status: running(corev1.PodPending, blocked(earlier, v1alpha1.ReasonVolumeNotMounted, "Pod example-at-pod: FailedMount: words")),
			age:    time.Hour, known: true, event: event(true, "FailedMount", time.Minute, after(time.Hour)), wantDelay: checkDelay,
		},
		"another volume is missing now: only the message is written": {
			status: recordedWith(v1alpha1.ReasonVolumeNotMounted), age: time.Hour, known: true, event: event(true, "FailedMount", time.Minute, after(time.Hour)),
			wantReason: v1alpha1.ReasonVolumeNotMounted, wantMessage: "Pod example-at-pod: FailedMount: words",
		},
		"an old warning: only that it is pending": {
			status: recordedWith(v1alpha1.ReasonVolumeNotMounted), age: time.Hour, known: true, event: event(true, "FailedMount", maxEventAge+1, after(time.Hour)),
			wantReason: v1alpha1.ReasonPodPending, wantMessage: pending + ": FailedMount: words" + see,
		},
		"no event for a minute: reported": {
			status: recorded, age: Grace, known: true, wantReason: v1alpha1.ReasonPodPending, wantMessage: pending + see,
		},
		"reported, for another cause now: only the message is written": {
			status: recordedWith(v1alpha1.ReasonPodPending), age: time.Hour, known: true, event: event(false, "Pulling", time.Minute, after(Grace)),
			wantReason: v1alpha1.ReasonPodPending, wantMessage: pending + ": Pulling: words" + see,
		},
		"pulling an image for a minute: reported": {
			status: recorded, age: Grace, known: true, event: event(false, "Pulling", time.Minute, after(Grace)),
			wantReason: v1alpha1.ReasonPodPending, wantMessage: pending + ": Pulling: words" + see,
		},
		"a scheduling gate for a minute: reported": {
			status: recorded, age: Grace, known: true, pod: func(pod *corev1.Pod) {
				pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "SchedulingGated", Message: "gates"}}
			},
			wantReason: v1alpha1.ReasonPodPending, wantMessage: pending + ": SchedulingGated: gates" + see,
		},
		"no node, for a moment: waited for": {
			status: recorded, age: EventDelay, pod: func(pod *corev1.Pod) {
				pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: metav1.Time{Time: after(time.Second)}}}
			},
			wantDelay: unschedulableDelay - EventDelay + time.Second,
		},
		"an init container runs: nothing is wrong": {
			status: recordedWith(v1alpha1.ReasonPodPending), age: time.Hour, pod: func(pod *corev1.Pod) {
				pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "clone", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
			},
			wantReason: "removed",
		},
		"an init container has just ended: waited for": {
			status: recorded, age: time.Hour, pod: func(pod *corev1.Pod) {
				pod.Status.InitContainerStatuses = []corev1.ContainerStatus{exited("clone", 0, "Completed", "")}
				pod.Status.InitContainerStatuses[0].State.Terminated.FinishedAt = metav1.Time{Time: after(time.Hour - time.Second)}
			},
			wantDelay: EventDelay - time.Second,
		},
		"it has just got a node: waited for": {
			status: recorded, age: time.Hour, pod: func(pod *corev1.Pod) {
				pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Time{Time: after(time.Hour - time.Second)}}}
			},
			wantDelay: EventDelay - time.Second,
		},
		"its status says why: not looked up": {
			status: running(corev1.PodPending, imagePullFailed(earlier, "words")), age: time.Hour, pod: waiting("ImagePullBackOff", "words"), wantDelay: checkDelay,
		},
		"its status says why, and repeats it during the back-off: not written again": {
			status: running(corev1.PodPending, imagePullFailed(earlier, "Container command: ErrImagePull: words")), age: time.Hour, wantDelay: checkDelay,
			pod: waiting("ImagePullBackOff", `Back-off pulling image "private": ErrImagePull: words`),
		},
		"its status says nothing during the back-off: not written again": {
			status: running(corev1.PodPending, imagePullFailed(earlier, "Container command: ErrImagePull: words")), age: time.Hour, wantDelay: checkDelay,
			pod: waiting("ImagePullBackOff", `Back-off pulling image "private"`),
		},
		"its last pull failed for another cause, seen during the back-off: only the message is written": {
			status: running(corev1.PodPending, imagePullFailed(earlier, "Container command: ErrImagePull: no credentials")), age: time.Hour,
			pod:        waiting("ImagePullBackOff", `Back-off pulling image "private": ErrImagePull: not found`),
			wantReason: v1alpha1.ReasonImagePullFailed, wantMessage: `Container command: ImagePullBackOff: Back-off pulling image "private": ErrImagePull: not found`,
		},
		"its second ConfigMap is missing, too: only the message is written": {
			status: running(corev1.PodPending, blocked(earlier, v1alpha1.ReasonContainerNotCreated, "Container command: CreateContainerConfigError: first")), age: time.Hour,
			pod:        waiting("CreateContainerConfigError", "second"),
			wantReason: v1alpha1.ReasonContainerNotCreated, wantMessage: "Container command: CreateContainerConfigError: second",
		},
		"its status says why on two lines: not written again": {
			status: running(corev1.PodPending, imagePullFailed(earlier, answer.OneLine("Container command: ErrImagePull: a\nb"))), age: time.Hour, wantDelay: checkDelay,
			pod: waiting("ErrImagePull", "a\nb"),
		},
		"its status no longer says why, and its node has just written it: kept": {
			status: recordedWith(v1alpha1.ReasonContainerNotCreated), age: time.Hour, known: true, pod: writtenAt(after(time.Hour - Grace + 1)), wantDelay: checkDelay,
		},
		"its status no longer says why, for a minute: only that it is pending": {
			status: recordedWith(v1alpha1.ReasonContainerNotCreated), age: time.Hour, known: true, pod: writtenAt(after(time.Hour - Grace)),
			wantReason: v1alpha1.ReasonPodPending, wantMessage: pending + see,
		},
		"a rehearsal reported a volume: removed when the Pod exists": {
			status: rehearsed(v1alpha1.ReasonVolumeNotMounted), wantReason: "removed",
		},
		"a rehearsal reported a container, and the node has just written the status: removed": {
			status: rehearsed(v1alpha1.ReasonContainerNotCreated), pod: writtenAt(created), wantReason: "removed",
		},
		"a rehearsal reported a volume, and it is still missing: reported again, in its own words": {
			status: rehearsed(v1alpha1.ReasonVolumeNotMounted), age: EventDelay, known: true, event: event(true, "FailedMount", 0, after(EventDelay)),
			wantReason: v1alpha1.ReasonVolumeNotMounted, wantMessage: "Pod example-at-pod: FailedMount: words",
		},
		"a rehearsal reported an image, and it is still missing: reported again, in its own words": {
			status: rehearsed(v1alpha1.ReasonImagePullFailed), pod: waiting("ImagePullBackOff", "words"),
			wantReason: v1alpha1.ReasonImagePullFailed, wantMessage: "Container command: ImagePullBackOff: words",
		},
		"it runs: no longer reported": {
			status: recordedWith(v1alpha1.ReasonPodPending), age: time.Hour, pod: func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodRunning },
			wantReason: "removed",
		},
		"it is being deleted: no longer reported": {
			status: recordedWith(v1alpha1.ReasonPodPending), age: time.Hour, pod: deleted,
			wantReason: "removed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newPod(corev1.PodPending)
			if tc.pod != nil {
				tc.pod(pod)
			}
			explained(&tc.status)
			w := World{At: newAt(withStatus(tc.status)), Pods: podsOf(pod), PodEvent: tc.event, PodEventIsKnown: tc.known, Now: after(tc.age)}
			d := Decide(w)
			want := Decision{Delay: tc.wantDelay}
			switch tc.wantReason {
			case "":
			case "removed":
				want.Status = ptr.To(running(pod.Status.Phase))
			default:
				since, before := w.Now, Blocked(w.At)
				if IsForecast(before) {
					before = nil
				}
				if before != nil {
					since = earlier
				}
				want.Status = ptr.To(running(corev1.PodPending, blocked(since, tc.wantReason, tc.wantMessage)))
				if before == nil || before.Reason != tc.wantReason {
					want.Events = []Event{warning(tc.wantReason, tc.wantMessage)}
				}
			}
			explained(want.Status)
			if diff := cmp.Diff(want, d, equate); diff != "" {
				t.Errorf("Decide (-want +got):\n%s", diff)
			}
		})
	}
}

// unread is what a busy kubelet says of a ConfigMap that it has not read yet.
func unread(instant time.Time) *PodEvent {
	return &PodEvent{
		Warning: true, Reason: "FailedMount", Time: instant,
		Message: `MountVolume.SetUp failed for volume "kube-api-access" : failed to sync configmap cache: timed out waiting for the condition`,
	}
}

// writtenAt lets the kubelet write the status of a Pod.
func writtenAt(instant time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.ManagedFields = []metav1.ManagedFieldsEntry{
			{Manager: "kubelet", Time: &metav1.Time{Time: now}},
			{Manager: "kubelet", Subresource: "status", Time: &metav1.Time{Time: instant}},
		}
	}
}

// TestComparePodEvents covers which of two events is the newest.
func TestComparePodEvents(t *testing.T) {
	second := due.Truncate(time.Second)
	for name, tc := range map[string]struct {
		e, other PodEvent
		want     int
	}{
		"newer":                         {PodEvent{Time: second.Add(time.Second)}, PodEvent{Time: second, Warning: true}, 1},
		"older":                         {PodEvent{Time: second, Warning: true}, PodEvent{Time: second.Add(time.Second)}, -1},
		"a warning of the same second":  {PodEvent{Time: second, Warning: true}, PodEvent{Time: second.Add(time.Millisecond)}, 1},
		"newer, within the same second": {PodEvent{Time: second.Add(time.Millisecond)}, PodEvent{Time: second}, 1},
		"the same":                      {PodEvent{Time: second}, PodEvent{Time: second}, 0},
	} {
		if got := tc.e.Compare(&tc.other); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

func TestPodBlocker(t *testing.T) {
	type result struct{ reason, message string }
	for waitingReason, want := range map[string]result{
		"ErrImagePull":               {v1alpha1.ReasonImagePullFailed, "Container command: ErrImagePull: words"},
		"ImagePullBackOff":           {v1alpha1.ReasonImagePullFailed, "Container command: ImagePullBackOff: words"},
		"InvalidImageName":           {v1alpha1.ReasonImagePullFailed, "Container command: InvalidImageName: words"},
		"CreateContainerConfigError": {v1alpha1.ReasonContainerNotCreated, "Container command: CreateContainerConfigError: words"},
		"CreateContainerError":       {v1alpha1.ReasonContainerNotCreated, "Container command: CreateContainerError: words"},
		"ContainerCreating":          {},
		"PodInitializing":            {},
		"CrashLoopBackOff":           {},
	} {
		reason, message := podBlocker(newPod(corev1.PodPending, waiting(waitingReason, "words")), now)
		if diff := cmp.Diff(want, result{reason, message}, cmp.AllowUnexported(result{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", waitingReason, diff)
		}
	}
	init := newPod(corev1.PodPending, waiting("PodInitializing", ""), func(pod *corev1.Pod) {
		pod.Status.InitContainerStatuses = []corev1.ContainerStatus{
			exited("first", 0, "Completed", ""),
			{Name: "clone", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImageNeverPull"}}},
		}
	})
	if reason, message := podBlocker(init, now); reason != v1alpha1.ReasonImagePullFailed || message != "Container clone: ErrImageNeverPull" {
		t.Errorf("of an init container: %s, %s", reason, message)
	}
	unschedulable := newPod(corev1.PodPending, func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			Message: "0/1 nodes are available", LastTransitionTime: metav1.Time{Time: due},
		}}
	})
	if reason, message := podBlocker(unschedulable, due.Add(unschedulableDelay)); reason != v1alpha1.ReasonUnschedulable || message != "Pod example-at-pod: 0/1 nodes are available" {
		t.Errorf("without a node for long: %s, %s", reason, message)
	}
	if reason, _ := podBlocker(unschedulable, due.Add(unschedulableDelay-1)); reason != "" {
		t.Errorf("without a node for less: %s", reason)
	}
}
