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
)

// TestDecideWaiting covers Ats whose Pod is recorded, but has not started.
func TestDecideWaiting(t *testing.T) {
	recordedWith := func(reason string) v1alpha1.AtStatus {
		return running(corev1.PodPending, blocked(earlier, reason, "words"))
	}
	rehearsed := func(reason string) v1alpha1.AtStatus {
		return running(corev1.PodPending, blocked(earlier, reason, rehearsalPrefix+"2026-12-24T10:00:00Z: words"))
	}
	says := func(reason string) *PodEvent { return &PodEvent{Reason: reason, Message: "words"} }
	warns := func(reason string) *PodEvent {
		return &PodEvent{Warning: true, Reason: reason, Message: "words"}
	}
	after := func(age time.Duration) time.Time { return created.Add(age) }
	for name, tc := range map[string]struct {
		status   v1alpha1.AtStatus // the default is that of a Pod that was recorded
		pod      func(*corev1.Pod)
		age      time.Duration
		known    bool // the events were read
		event    *PodEvent
		eventAge time.Duration
		want     string
	}{
		"no event: waited for": {age: EventDelay, known: true, want: "wait 40s"},
		"its busy node has not read a ConfigMap for a minute: reported": {
			age: Grace, event: unread(after(EventDelay)),
			want: `Blocked PodPending: Pod example-at-pod: the command has not started for a minute: FailedMount: MountVolume.SetUp failed for volume "kube-api-access" : failed to sync configmap cache: timed out waiting for the condition. See kubectl describe pod example-at-pod -n default; Warning PodPending`,
		},
		"its busy node has not read a Secret for a container yet: waited for": {
			pod: waiting("CreateContainerConfigError", "failed to sync secret cache: timed out waiting for the condition"), age: EventDelay - 1,
			want: "wait 1ns",
		},
		"a volume was missing, and its sandbox exists now: waited for": {pod: sandboxed, age: EventDelay, event: warns("FailedMount"), want: "wait 40s"},
		"no sandbox: reported": {
			age: EventDelay, event: warns("FailedCreatePodSandBox"),
			want: "Blocked SandboxNotCreated: Pod example-at-pod: FailedCreatePodSandBox: words; Warning SandboxNotCreated",
		},
		"a volume cannot be attached: reported": {
			age: EventDelay, event: warns("FailedAttachVolume"),
			want: "Blocked VolumeNotMounted: Pod example-at-pod: FailedAttachVolume: words; Warning VolumeNotMounted",
		},
		"a device cannot be mapped: reported": {
			age: EventDelay, event: warns("FailedMapVolume"),
			want: "Blocked VolumeNotMounted: Pod example-at-pod: FailedMapVolume: words; Warning VolumeNotMounted",
		},
		"the network of the node is not ready: reported": {
			age: EventDelay, event: warns("NetworkNotReady"),
			want: "Blocked SandboxNotCreated: Pod example-at-pod: NetworkNotReady: words; Warning SandboxNotCreated",
		},
		"a resource is not prepared: reported": {
			age: EventDelay, event: warns("FailedPrepareDynamicResources"),
			want: "Blocked SandboxNotCreated: Pod example-at-pod: FailedPrepareDynamicResources: words; Warning SandboxNotCreated",
		},
		"a warning that keeps no Pod from starting, for a minute: reported": {
			age: Grace, event: warns("DNSConfigForming"),
			want: "Blocked PodPending: Pod example-at-pod: the command has not started for a minute: DNSConfigForming: words. See kubectl describe pod example-at-pod -n default; Warning PodPending",
		},
		"reported, and its events cannot be read: kept": {status: recordedWith(v1alpha1.ReasonVolumeNotMounted), age: time.Hour, want: "wait 1m0s"},
		"its events cannot be read, for a minute: reported": {
			age:  Grace,
			want: "Blocked PodPending: Pod example-at-pod: the command has not started for a minute. See kubectl describe pod example-at-pod -n default; Warning PodPending",
		},
		"another volume is missing now: only the message is written": {
			status: recordedWith(v1alpha1.ReasonVolumeNotMounted), age: time.Hour, event: warns("FailedMount"), eventAge: time.Minute,
			want: "Blocked VolumeNotMounted: Pod example-at-pod: FailedMount: words (since 09:12:00)",
		},
		"an old warning: only that it is pending": {
			status: recordedWith(v1alpha1.ReasonVolumeNotMounted), age: time.Hour, event: warns("FailedMount"), eventAge: maxEventAge + 1,
			want: "Blocked PodPending: Pod example-at-pod: the command has not started for a minute: FailedMount: words. See kubectl describe pod example-at-pod -n default (since 09:12:00); Warning PodPending",
		},
		"pulling an image for a minute: reported": {
			age: Grace, event: says("Pulling"), eventAge: time.Minute,
			want: "Blocked PodPending: Pod example-at-pod: the command has not started for a minute: Pulling: words. See kubectl describe pod example-at-pod -n default; Warning PodPending",
		},
		"a scheduling gate for a minute: reported": {
			pod: gated, age: Grace, known: true,
			want: "Blocked PodPending: Pod example-at-pod: the command has not started for a minute: SchedulingGated: gates. See kubectl describe pod example-at-pod -n default; Warning PodPending",
		},
		"no node, for long: reported": {
			pod: unschedulable(created), age: unschedulableDelay,
			want: "Blocked Unschedulable: Pod example-at-pod: 0/1 nodes are available; Warning Unschedulable",
		},
		"no node, for a moment: waited for":        {pod: unschedulable(after(time.Second)), age: EventDelay, want: "wait 26s"},
		"an init container runs: nothing is wrong": {status: recordedWith(v1alpha1.ReasonPodPending), pod: withInitContainers(runs("clone")), age: time.Hour, want: "no Blocked"},
		"an init container has just ended: waited for": {
			pod: func(pod *corev1.Pod) {
				pod.Status.InitContainerStatuses = []corev1.ContainerStatus{exited("clone", 0, "Completed", "")}
				pod.Status.InitContainerStatuses[0].State.Terminated.FinishedAt = metav1.Time{Time: after(time.Hour - time.Second)}
			}, age: time.Hour,
			want: "wait 19s",
		},
		"its status says why: not looked up": {
			status: running(corev1.PodPending, imagePullFailed("words")), pod: waiting("ImagePullBackOff", "words"), age: time.Hour,
			want: "wait 1m0s",
		},
		"its last pull failed for another cause, seen during the back-off: only the message is written": {
			status: running(corev1.PodPending, imagePullFailed("Container command: ErrImagePull: no credentials")), pod: waiting("ImagePullBackOff", `Back-off pulling image "private": ErrImagePull: not found`), age: time.Hour,
			want: `Blocked ImagePullFailed: Container command: ImagePullBackOff: Back-off pulling image "private": ErrImagePull: not found (since 09:12:00)`,
		},
		"its status no longer says why, and its node has just written it: kept": {
			status: recordedWith(v1alpha1.ReasonContainerNotCreated), pod: writtenAt(after(time.Hour - Grace + 1)), age: time.Hour, known: true,
			want: "wait 1m0s",
		},
		"its status no longer says why, for a minute: only that it is pending": {
			status: recordedWith(v1alpha1.ReasonContainerNotCreated), pod: writtenAt(after(time.Hour - Grace)), age: time.Hour, known: true,
			want: "Blocked PodPending: Pod example-at-pod: the command has not started for a minute. See kubectl describe pod example-at-pod -n default (since 09:12:00); Warning PodPending",
		},
		"a rehearsal reported a volume, and it is still missing: reported again, in its own words": {
			status: rehearsed(v1alpha1.ReasonVolumeNotMounted), age: EventDelay, event: warns("FailedMount"),
			want: "Blocked VolumeNotMounted: Pod example-at-pod: FailedMount: words; Warning VolumeNotMounted",
		},
		"a rehearsal reported an image, and it is still missing: reported again, in its own words": {
			status: rehearsed(v1alpha1.ReasonImagePullFailed), pod: waiting("ImagePullBackOff", "words"),
			want: "Blocked ImagePullFailed: Container command: ImagePullBackOff: words; Warning ImagePullFailed",
		},
		"it is being deleted: no longer reported": {status: recordedWith(v1alpha1.ReasonPodPending), pod: deleted, age: time.Hour, want: "no Blocked"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := pendingPod()
			if tc.pod != nil {
				tc.pod(pod)
			}
			if tc.status.Phase == "" {
				tc.status = running(corev1.PodPending)
			}
			explained(&tc.status)
			if tc.event == nil && tc.known {
				tc.event = &PodEvent{}
			}
			w := World{At: newAt(withStatus(tc.status)), Pods: podsOf(pod), PodEvent: tc.event, Now: after(tc.age)}
			if tc.event != nil && tc.event.Time.IsZero() {
				tc.event.Time = w.Now.Add(-tc.eventAge)
			}
			if got := textOf(w, Decide(w)); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			testRest(t, w)
			testKept(t, w)
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
		wantMessage := map[bool]string{true: "Container clone: " + waiting + ": words"}[want != ""]
		if reason, message := podBlocker(pod, now); reason != want || message != wantMessage {
			t.Errorf("%s: %s, %s", waiting, reason, message)
		}
	}
}
