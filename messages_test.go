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
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// TestLongMessages has an At whose messages are longer than what is kept of them. What the status
// has is never the shortened text, and it is written only when it changes.
func TestLongMessages(t *testing.T) {
	t.Parallel()
	text := func(end string) string { return strings.Repeat("x", 3000) + end }
	synctest.Test(t, func(t *testing.T) {
		server := fakeserver.New(clock.RealClock{})
		var writes atomic.Int32
		server.Observe = func(_ watch.EventType, resource schema.GroupResource, object *unstructured.Unstructured) {
			if resource == v1alpha1.Resource("ats") {
				writes.Add(1)
				if status := fmt.Sprint(object.Object["status"]); strings.Contains(status, "…") {
					t.Errorf("a shortened text was written: %s", status)
				}
			}
		}
		var refusal atomic.Value
		refusal.Store("")
		var reads atomic.Int32
		kube, cnat := harness.NewClients(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
			if message := refusal.Load().(string); message != "" && harness.Creates(request, "pods") {
				return fakeserver.Refuse(request, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: message}})
			}
			if request.Method == http.MethodGet && strings.Contains(request.URL.Path, "/ats/") {
				reads.Add(1)
			}
			return server.RoundTrip(request)
		}))
		runWithClients(t, kube, cnat, clock.RealClock{})
		_, person := harness.NewClients(t, server)
		ats, pods := person.CnatV1alpha1().Ats("default"), kube.CoreV1().Pods("default")
		// expect waits, and checks the message and how often the At was written.
		expect := func(what, message string, want int32) {
			t.Helper()
			time.Sleep(5 * time.Minute)
			if at := harness.Get(t, ats, name.Name); !strings.HasSuffix(at.Status.Message, message) {
				t.Errorf("%s: status %+v", what, at.Status)
			}
			if got := writes.Swap(0); got != want {
				t.Errorf("%s: the At was written %d times, want %d", what, got, want)
			}
		}
		edit := func(change func(*v1alpha1.At)) {
			t.Helper()
			at := harness.Get(t, ats, name.Name)
			change(at)
			harness.Update(t, ats, at)
		}
		refusal.Store(text("one"))
		harness.Create(t, ats, newAt(func(at *v1alpha1.At) { at.Spec.Schedule = time.Now().Format(time.RFC3339) }))
		expect("refused", text("one"), 2)
		refusal.Store(text("another"))
		expect("refused with another end", text("another"), 1)
		edit(func(at *v1alpha1.At) { at.Spec.TTLSecondsAfterFinished = ptr.To[int32](1e6) })
		expect("edited", text("another"), 2)
		refusal.Store("")
		time.Sleep(5 * time.Minute)
		pod := harness.Get(t, pods, name.Name+"-pod")
		pod.Status.Phase = corev1.PodFailed
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: plan.NewPod(newAt(), defaults).Spec.Containers[0].Name, State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: text("output")},
		}}}
		writes.Store(0)
		harness.UpdateStatus(t, pods, pod)
		expect("failed", text("output"), 1)
		edit(func(at *v1alpha1.At) { at.Spec.TTLSecondsAfterFinished = ptr.To[int32](2e6) })
		expect("edited when it had ended", text("output"), 2)

		harness.Delete(t, ats, name.Name)
		harness.Delete(t, pods, pod.Name)
		time.Sleep(time.Minute)
		harness.Create(t, ats, newAt(func(at *v1alpha1.At) {
			at.UID, at.Spec.Schedule, at.Spec.ActiveDeadlineSeconds = "next", time.Now().Format(time.RFC3339), ptr.To[int64](900)
		}))
		time.Sleep(time.Second)
		pod = harness.Get(t, pods, pod.Name)
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: text("image")},
		}}}
		harness.UpdateStatus(t, pods, pod)
		time.Sleep(time.Second)
		writes.Store(0)
		reads.Store(0)
		expect("waiting", text("image"), 0)
		if got := reads.Load(); got > 0 {
			t.Errorf("the At was read %d times although nothing changed", got)
		}
		time.Sleep(10 * time.Minute) // until the deadline
		expect("at its deadline", text("image"), 2)
	})
}

// TestLongMessagesOfCronAts has a CronAt whose Ats are refused with a long message. It is suspended
// and resumed, which writes all conditions.
func TestLongMessagesOfCronAts(t *testing.T) {
	t.Parallel()
	message := strings.Repeat("x", 3000) + "end"
	synctest.Test(t, func(t *testing.T) {
		server := fakeserver.New(clock.RealClock{})
		server.Observe = func(_ watch.EventType, _ schema.GroupResource, object *unstructured.Unstructured) {
			if status := fmt.Sprint(object.Object["status"]); strings.Contains(status, "…") {
				t.Errorf("a shortened text was written: %s", status)
			}
		}
		_, ctx := ktesting.NewTestContext(t)
		ctx, stop := context.WithCancel(ctx)
		p, err := newProgram(ctx, &options{workers: 1, defaults: defaults}, fakeserver.Config(harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
			if harness.Creates(request, "ats") {
				return fakeserver.Refuse(request, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: message}})
			}
			return server.RoundTrip(request)
		})), clock.RealClock{})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- runProgram(ctx, p) }()
		_, person := harness.NewClients(t, server)
		cronAts := person.CnatV1alpha1().CronAts("default")
		harness.Create(t, cronAts, &v1alpha1.CronAt{ObjectMeta: metav1.ObjectMeta{Name: "cron", Namespace: "default"}, Spec: v1alpha1.CronAtSpec{
			Schedule: "* * * * *", AtTemplate: v1alpha1.AtTemplateSpec{Spec: v1alpha1.RunSpec{Command: "true"}},
		}})
		for _, suspend := range []bool{false, true, false} {
			cronAt := harness.Get(t, cronAts, "cron")
			cronAt.Spec.Suspend = &suspend
			harness.Update(t, cronAts, cronAt)
			time.Sleep(150 * time.Second)
			cronAt = harness.Get(t, cronAts, "cron")
			blocked := cronplan.Blocked(cronAt)
			if suspend == (blocked != nil && strings.HasSuffix(blocked.Message, message)) {
				t.Errorf("suspended: %v, conditions %v", suspend, cronAt.Status.Conditions)
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
