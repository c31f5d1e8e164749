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
	"bytes"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

func TestStateLine(t *testing.T) {
	started := metav1.NewTime(now.Add(-90 * time.Second))
	for name, tc := range map[string]struct {
		change func(*v1alpha1.At)
		want   string
	}{
		"scheduled": {nil, "PENDING, starts in 19h12m"},
		"due":       {func(at *v1alpha1.At) { at.Spec.Schedule = "2026-03-27T14:00:00Z" }, "PENDING"},
		"blocked": {
			func(at *v1alpha1.At) {
				at.Status.Reason, at.Status.Message = v1alpha1.ReasonPodRefused, "exceeded quota"
			},
			"PENDING, PodRefused: exceeded quota",
		},
		"running": {
			func(at *v1alpha1.At) {
				at.Status = v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning, StartTime: &started, Pod: &v1alpha1.AtPod{Name: "at-pod", Phase: "Running"}}
			},
			"RUNNING for 1m30s, Pod at-pod Running",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := stateLine(newAt("at", tc.change), now); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestProgress(t *testing.T) {
	var terminal, output bytes.Buffer
	p := &progress{out: &terminal, now: func() time.Time { return now }, width: 19}
	at := newAt("at", nil)
	p.show(at)
	fmt.Fprintln(p.over(&terminal, false), "a hint")
	p.show(at)
	fmt.Fprintln(p.over(&output, true), "output")
	p.show(at) // no longer shown
	const line, cleared = "\r\x1b[KPENDING, starts in", "\r\x1b[K"
	if want := line + cleared + "a hint\n" + line + cleared; terminal.String() != want || output.String() != "output\n" {
		t.Errorf("got %q, want %q", terminal.String(), want)
	}
}

func TestWhy(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1alpha1.At)
		pod    *corev1.Pod
		want   string
	}{
		"scheduled":     {nil, nil, "It is waiting for its scheduled time."},
		"due":           {func(at *v1alpha1.At) { at.Spec.Schedule = "2026-03-27T14:00:00Z" }, nil, "It is about to start."},
		"nobody":        {func(at *v1alpha1.At) { at.Spec.Schedule = "2026-03-27T13:59:00Z" }, nil, "Its time has passed and no controller is processing it: is cnat-controller running? See kubectl get pods -A -l app.kubernetes.io/name=cnat-controller."},
		"suspended":     {func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) }, nil, "at/at is suspended: it does not start until kubectl at resume at."},
		"with a reason": {func(at *v1alpha1.At) { at.Status.Reason, at.Status.Message = "PodRefused", "exceeded quota" }, nil, "exceeded quota"},
		"started":       {inPhase(""), nil, "It has started."},
		"no Pod":        {func(at *v1alpha1.At) { at.Status.Phase = v1alpha1.PhaseRunning }, nil, "It has started."},
		"Pod not seen":  {inPhase(corev1.PodRunning), nil, "It has started."},
		"pending":       {inPhase(corev1.PodPending), nil, "Its Pod is Pending since Fri 27 Mar 2026 13:00:00 UTC, 1h ago: its command has not started."},
		"pending Pod":   {inPhase(corev1.PodPending), podWith(corev1.PodPending, corev1.ContainerState{}), "Its Pod is Pending since Fri 27 Mar 2026 13:59:00 UTC, 1m ago: its command has not started."},
		"sidecar":       {inPhase(corev1.PodRunning), podWith(corev1.PodRunning, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}), "Its Pod is Running since Fri 27 Mar 2026 13:59:00 UTC, 1m ago: its command has not started."},
		"running":       {inPhase(corev1.PodPending), podWith(corev1.PodRunning, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}), "Its command is running."},
		"ended":         {inPhase(corev1.PodRunning), podWith(corev1.PodRunning, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}), "It has started."},
		"status says more": {
			func(at *v1alpha1.At) {
				inPhase(corev1.PodRunning)(at)
				at.Status.Reason, at.Status.Message = "CommandRestarting", "Container command has failed 3 times, last with exit code 1."
			}, podWith(corev1.PodRunning, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}), "Container command has failed 3 times, last with exit code 1.",
		},
		"evicted": {inPhase(corev1.PodPending), podWith(corev1.PodFailed, corev1.ContainerState{}), "It has started."},
		"restarted": {inPhase(corev1.PodRunning), func() *corev1.Pod {
			pod := podWith(corev1.PodRunning, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}})
			pod.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{}
			return pod
		}(), "It has started."},
		"done": {
			func(at *v1alpha1.At) {
				done(v1alpha1.ReasonCommandFailed, 1)(at)
				at.Status.Conditions[0].Message = "The command ended with exit code 1."
			},
			nil, "The command ended with exit code 1.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := (&cli{tz: "UTC"}).whyOf(newAt("at", tc.change), tc.pod, now); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// inPhase returns a change that makes an At run in a Pod of a phase.
func inPhase(phase corev1.PodPhase) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) {
		at.Status.Phase, at.Status.Pod = v1alpha1.PhaseRunning, &v1alpha1.AtPod{Name: "at-pod", UID: "pod", Phase: phase}
	}
}

// podWith returns the Pod of an At in a phase, with a state of its container.
func podWith(phase corev1.PodPhase, state corev1.ContainerState) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "at-pod", UID: "pod", Labels: map[string]string{v1alpha1.LabelAtUID: "uid"}, CreationTimestamp: metav1.NewTime(now.Add(-time.Minute))},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "command"}}},
		Status:     corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{{Name: "command", State: state}}},
	}
}
