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
	fmt.Fprintln(p.above(&terminal), "a hint")
	p.show(at)
	fmt.Fprintln(p.clearing(&output), "output")
	p.show(at) // no longer shown
	const line, cleared = "\r\x1b[KPENDING, starts in", "\r\x1b[K"
	if want := line + cleared + "a hint\n" + line + cleared; terminal.String() != want || output.String() != "output\n" {
		t.Errorf("got %q, want %q", terminal.String(), want)
	}
}

func TestWhy(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1alpha1.At)
		want   string
	}{
		"scheduled":     {nil, "It is waiting for its scheduled time."},
		"due":           {func(at *v1alpha1.At) { at.Spec.Schedule = "2026-03-27T14:00:00Z" }, "It is about to start."},
		"nobody":        {func(at *v1alpha1.At) { at.Spec.Schedule = "2026-03-27T13:59:00Z" }, "Its time has passed and no controller is processing it: is cnat-controller running? See kubectl get pods -A -l app.kubernetes.io/name=cnat-controller."},
		"suspended":     {func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) }, "It is suspended: it does not start until kubectl at resume at."},
		"with a reason": {func(at *v1alpha1.At) { at.Status.Reason, at.Status.Message = "PodRefused", "exceeded quota" }, "exceeded quota"},
		"running":       {func(at *v1alpha1.At) { at.Status.Phase = v1alpha1.PhaseRunning }, "Its command is running."},
		"done": {
			func(at *v1alpha1.At) {
				done(v1alpha1.ReasonCommandFailed, 1)(at)
				at.Status.Conditions[0].Message = "The command ended with exit code 1."
			},
			"The command ended with exit code 1.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := (&cli{}).whyOf(newAt("at", tc.change), now); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
