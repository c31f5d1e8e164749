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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

// TestDecideWaiting covers Ats whose Pod is recorded, but has not started.
func TestDecideWaiting(t *testing.T) {
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

		want string
	}{
		"for less than 20 seconds: waited for":    {status: recorded, age: EventDelay - 1, want: "wait 1ns"},
		"no event: waited for":                    {status: recorded, age: EventDelay, known: true, want: "wait 40s"},
		"an event that is no warning: waited for": {status: recorded, age: EventDelay, known: true, event: event(false, "Pulling", 0, after(EventDelay)), want: "wait 40s"},
		"a volume is missing: reported": {
			status: recorded, age: EventDelay, known: true, event: event(true, "FailedMount", 0, after(EventDelay)),
			want: "Blocked VolumeNotMounted: Pod example-at-pod: FailedMount: words; Warning VolumeNotMounted",
		},
		"its busy node has not read a ConfigMap yet: waited for": {status: recorded, age: EventDelay, known: true, event: unread(after(EventDelay)), want: "wait 40s"},
		"its busy node has not read a ConfigMap for a minute: reported": {
			status: recorded, age: Grace, known: true, event: unread(after(EventDelay)),
			want: `Blocked PodPending: Pod example-at-pod: the command has not started for a minute: FailedMount: MountVolume.SetUp failed for volume "kube-api-access" : failed to sync configmap cache: timed out waiting for the condition. See kubectl describe pod example-at-pod -n default; Warning PodPending`,
		},
		"its busy node has not read a Secret for a container yet: waited for": {
			status: recorded, age: EventDelay - 1, pod: waiting("CreateContainerConfigError", "failed to sync secret cache: timed out waiting for the condition"),
			want: "wait 1ns",
		},
		"a volume was missing, and its sandbox exists now: waited for": {
			status: recorded, age: EventDelay, known: true, event: event(true, "FailedMount", 0, after(EventDelay)), pod: sandboxed,
			want: "wait 40s",
		},
		"no sandbox: reported": {
			status: recorded, age: EventDelay, known: true, event: event(true, "FailedCreatePodSandBox", 0, after(EventDelay)),
			want: "Blocked SandboxNotCreated: Pod example-at-pod: FailedCreatePodSandBox: words; Warning SandboxNotCreated",
		},
		"a volume cannot be attached: reported": {
			status: recorded, age: EventDelay, known: true, event: event(true, "FailedAttachVolume", 0, after(EventDelay)),
			want: "Blocked VolumeNotMounted: Pod example-at-pod: FailedAttachVolume: words; Warning VolumeNotMounted",
		},
		"a device cannot be mapped: reported": {
			status: recorded, age: EventDelay, known: true, event: event(true, "FailedMapVolume", 0, after(EventDelay)),
			want: "Blocked VolumeNotMounted: Pod example-at-pod: FailedMapVolume: words; Warning VolumeNotMounted",
		},
		"the network of the node is not ready: reported": {
			status: recorded, age: EventDelay, known: true, event: event(true, "NetworkNotReady", 0, after(EventDelay)),
			want: "Blocked SandboxNotCreated: Pod example-at-pod: NetworkNotReady: words; Warning SandboxNotCreated",
		},
		"a resource is not prepared: reported": {
			status: recorded, age: EventDelay, known: true, event: event(true, "FailedPrepareDynamicResources", 0, after(EventDelay)),
			want: "Blocked SandboxNotCreated: Pod example-at-pod: FailedPrepareDynamicResources: words; Warning SandboxNotCreated",
		},
		"a warning that keeps no Pod from starting: waited for": {status: recorded, age: EventDelay, known: true, event: event(true, "DNSConfigForming", 0, after(EventDelay)), want: "wait 40s"},
		"a warning that keeps no Pod from starting, for a minute: reported": {
			status: recorded, age: Grace, known: true, event: event(true, "DNSConfigForming", 0, after(Grace)),
			want: "Blocked PodPending: Pod example-at-pod: the command has not started for a minute: DNSConfigForming: words. See kubectl describe pod example-at-pod -n default; Warning PodPending",
		},
		"reported, and its events cannot be read: kept": {status: recordedWith(v1alpha1.ReasonVolumeNotMounted), age: time.Hour, want: "wait 1m0s"},
		"its events cannot be read, for a minute: reported": {
			status: recorded, age: Grace,
			want: "Blocked PodPending: Pod example-at-pod: the command has not started for a minute. See kubectl describe pod example-at-pod -n default; Warning PodPending",
		},
		"reported, and still so: not written again": {
			status: running(corev1.PodPending, blocked(earlier, v1alpha1.ReasonVolumeNotMounted, "Pod example-at-pod: FailedMount: words")), age: time.Hour, known: true, event: event(true, "FailedMount", time.Minute, after(time.Hour)),
			want: "wait 1m0s",
		},
		"another volume is missing now: only the message is written": {
			status: recordedWith(v1alpha1.ReasonVolumeNotMounted), age: time.Hour, known: true, event: event(true, "FailedMount", time.Minute, after(time.Hour)),
			want: "Blocked VolumeNotMounted: Pod example-at-pod: FailedMount: words (since 09:12:00)",
		},
		"an old warning: only that it is pending": {
			status: recordedWith(v1alpha1.ReasonVolumeNotMounted), age: time.Hour, known: true, event: event(true, "FailedMount", maxEventAge+1, after(time.Hour)),
			want: "Blocked PodPending: Pod example-at-pod: the command has not started for a minute: FailedMount: words. See kubectl describe pod example-at-pod -n default (since 09:12:00); Warning PodPending",
		},
		"no event for a minute: reported": {
			status: recorded, age: Grace, known: true,
			want: "Blocked PodPending: Pod example-at-pod: the command has not started for a minute. See kubectl describe pod example-at-pod -n default; Warning PodPending",
		},
		"reported, for another cause now: only the message is written": {
			status: recordedWith(v1alpha1.ReasonPodPending), age: time.Hour, known: true, event: event(false, "Pulling", time.Minute, after(Grace)),
			want: "Blocked PodPending: Pod example-at-pod: the command has not started for a minute: Pulling: words. See kubectl describe pod example-at-pod -n default (since 09:12:00)",
		},
		"pulling an image for a minute: reported": {
			status: recorded, age: Grace, known: true, event: event(false, "Pulling", time.Minute, after(Grace)),
			want: "Blocked PodPending: Pod example-at-pod: the command has not started for a minute: Pulling: words. See kubectl describe pod example-at-pod -n default; Warning PodPending",
		},
		"a scheduling gate for a minute: reported": {
			status: recorded, age: Grace, known: true, pod: gated,
			want: "Blocked PodPending: Pod example-at-pod: the command has not started for a minute: SchedulingGated: gates. See kubectl describe pod example-at-pod -n default; Warning PodPending",
		},
		"no node, for long: reported": {
			status: recorded, age: unschedulableDelay, pod: unschedulable(created),
			want: "Blocked Unschedulable: Pod example-at-pod: 0/1 nodes are available; Warning Unschedulable",
		},
		"no node, for a moment: waited for": {
			status: recorded, age: EventDelay, pod: unschedulable(after(time.Second)),
			want: "wait 26s",
		},
		"an init container runs: nothing is wrong": {
			status: recordedWith(v1alpha1.ReasonPodPending), age: time.Hour, pod: withInitContainers(runs("clone")),
			want: "no Blocked",
		},
		"an init container has just ended: waited for": {
			status: recorded, age: time.Hour, pod: func(pod *corev1.Pod) {
				pod.Status.InitContainerStatuses = []corev1.ContainerStatus{exited("clone", 0, "Completed", "")}
				pod.Status.InitContainerStatuses[0].State.Terminated.FinishedAt = metav1.Time{Time: after(time.Hour - time.Second)}
			},
			want: "wait 19s",
		},
		"it has just got a node: waited for": {
			status: recorded, age: time.Hour, pod: scheduled(after(time.Hour - time.Second)),
			want: "wait 19s",
		},
		"its status says why: not looked up": {status: running(corev1.PodPending, imagePullFailed(earlier, "words")), age: time.Hour, pod: waiting("ImagePullBackOff", "words"), want: "wait 1m0s"},
		"its status says why, and repeats it during the back-off: not written again": {
			status: running(corev1.PodPending, imagePullFailed(earlier, "Container command: ErrImagePull: words")), age: time.Hour, pod: waiting("ImagePullBackOff", `Back-off pulling image "private": ErrImagePull: words`),
			want: "wait 1m0s",
		},
		"its status says nothing during the back-off: not written again": {
			status: running(corev1.PodPending, imagePullFailed(earlier, "Container command: ErrImagePull: words")), age: time.Hour, pod: waiting("ImagePullBackOff", `Back-off pulling image "private"`),
			want: "wait 1m0s",
		},
		"its last pull failed for another cause, seen during the back-off: only the message is written": {
			status: running(corev1.PodPending, imagePullFailed(earlier, "Container command: ErrImagePull: no credentials")), age: time.Hour, pod: waiting("ImagePullBackOff", `Back-off pulling image "private": ErrImagePull: not found`),
			want: `Blocked ImagePullFailed: Container command: ImagePullBackOff: Back-off pulling image "private": ErrImagePull: not found (since 09:12:00)`,
		},
		"its second ConfigMap is missing, too: only the message is written": {
			status: running(corev1.PodPending, blocked(earlier, v1alpha1.ReasonContainerNotCreated, "Container command: CreateContainerConfigError: first")), age: time.Hour, pod: waiting("CreateContainerConfigError", "second"),
			want: "Blocked ContainerNotCreated: Container command: CreateContainerConfigError: second (since 09:12:00)",
		},
		"its status says why on two lines: not written again": {
			status: running(corev1.PodPending, imagePullFailed(earlier, answer.OneLine("Container command: ErrImagePull: a\nb"))), age: time.Hour, pod: waiting("ErrImagePull", "a\nb"),
			want: "wait 1m0s",
		},
		"its status no longer says why, and its node has just written it: kept": {status: recordedWith(v1alpha1.ReasonContainerNotCreated), age: time.Hour, known: true, pod: writtenAt(after(time.Hour - Grace + 1)), want: "wait 1m0s"},
		"its status no longer says why, for a minute: only that it is pending": {
			status: recordedWith(v1alpha1.ReasonContainerNotCreated), age: time.Hour, known: true, pod: writtenAt(after(time.Hour - Grace)),
			want: "Blocked PodPending: Pod example-at-pod: the command has not started for a minute. See kubectl describe pod example-at-pod -n default (since 09:12:00); Warning PodPending",
		},
		"a rehearsal reported a volume: removed when the Pod exists":                          {status: rehearsed(v1alpha1.ReasonVolumeNotMounted), want: "no Blocked"},
		"a rehearsal reported a container, and the node has just written the status: removed": {status: rehearsed(v1alpha1.ReasonContainerNotCreated), pod: writtenAt(created), want: "no Blocked"},
		"a rehearsal reported a volume, and it is still missing: reported again, in its own words": {
			status: rehearsed(v1alpha1.ReasonVolumeNotMounted), age: EventDelay, known: true, event: event(true, "FailedMount", 0, after(EventDelay)),
			want: "Blocked VolumeNotMounted: Pod example-at-pod: FailedMount: words; Warning VolumeNotMounted",
		},
		"a rehearsal reported an image, and it is still missing: reported again, in its own words": {
			status: rehearsed(v1alpha1.ReasonImagePullFailed), pod: waiting("ImagePullBackOff", "words"),
			want: "Blocked ImagePullFailed: Container command: ImagePullBackOff: words; Warning ImagePullFailed",
		},
		"it runs: no longer reported": {
			status: recordedWith(v1alpha1.ReasonPodPending), age: time.Hour, pod: func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodRunning },
			want: "Pod.Phase=Running; no Blocked",
		},
		"it is being deleted: no longer reported": {status: recordedWith(v1alpha1.ReasonPodPending), age: time.Hour, pod: deleted, want: "no Blocked"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := pendingPod()
			if tc.pod != nil {
				tc.pod(pod)
			}
			explained(&tc.status)
			w := World{At: newAt(withStatus(tc.status)), Pods: podsOf(pod), PodEvent: tc.event, PodEventIsKnown: tc.known, Now: after(tc.age)}
			if got := textOf(w, Decide(w)); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
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
	for waiting, want := range map[string]string{
		"ErrImagePull": v1alpha1.ReasonImagePullFailed, "ImagePullBackOff": v1alpha1.ReasonImagePullFailed, "InvalidImageName": v1alpha1.ReasonImagePullFailed,
		"ErrImageNeverPull": v1alpha1.ReasonImagePullFailed, "ImageInspectError": v1alpha1.ReasonImagePullFailed, "RegistryUnavailable": v1alpha1.ReasonImagePullFailed,
		"SignatureValidationFailed": v1alpha1.ReasonImagePullFailed, "CreateContainerConfigError": v1alpha1.ReasonContainerNotCreated, "CreateContainerError": v1alpha1.ReasonContainerNotCreated,
		"ContainerCreating": "", "PodInitializing": "", "CrashLoopBackOff": "",
	} {
		pod := pendingPod(withInitContainers(exited("first", 0, "Completed", ""), waits("clone", waiting, "words")))
		reason, message := podBlocker(pod, now)
		if reason != want || reason != "" && message != "Container clone: "+waiting+": words" {
			t.Errorf("%s: %s, %s", waiting, reason, message)
		}
	}
}
