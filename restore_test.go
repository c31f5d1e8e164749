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
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// TestRestored restores the Ats of a CronAt and of a node from a backup, which drops their
// owners and statuses: they run only if a user removes the label.
func TestRestored(t *testing.T) {
	for label, finalizer := range map[string]string{
		v1alpha1.LabelCronAtUID: v1alpha1.FinalizerScheduled,
		v1alpha1.LabelAtUID:     v1alpha1.FinalizerTracking,
	} {
		t.Run(label, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kubeClient, ats := runController(t, clock.RealClock{}, func() error { return nil })
				restored := &v1alpha1.At{
					ObjectMeta: metav1.ObjectMeta{Name: "restored", Namespace: name.Namespace, Labels: map[string]string{label: "earlier"}, Finalizers: []string{finalizer}},
					Spec:       v1alpha1.AtSpec{Schedule: "1999-12-24T10:12:00Z", RunSpec: v1alpha1.RunSpec{Command: "true"}},
				}
				harness.Create(t, ats, restored)
				time.Sleep(time.Hour)
				pods := func() int {
					list := harness.List(t, kubeClient.CoreV1().Pods(name.Namespace))
					return len(list.Items)
				}
				at := harness.Get(t, ats, "restored")
				if n := pods(); n != 0 || at.Status.Reason != v1alpha1.ReasonOwnerMissing || plan.Blocked(at) == nil {
					t.Errorf("%d Pods, status %+v", n, at.Status)
				}
				harness.Patch(t, ats, "restored", `{"metadata":{"labels":{"`+label+`":null}}}`)
				time.Sleep(time.Second)
				at = harness.Get(t, ats, "restored")
				if n := pods(); n != 1 || at.Status.Phase != v1alpha1.PhaseRunning || plan.Blocked(at) != nil {
					t.Errorf("without the label: %d Pods, status %+v", n, at.Status)
				}
			})
		})
	}
}

// TestRestoredTooLate restores the At of a CronAt after its starting deadline, and one
// whose time is to come.
func TestRestoredTooLate(t *testing.T) {
	for schedule, want := range map[string]string{
		"1999-12-24T10:12:00Z": v1alpha1.ReasonStartingDeadlineExceeded,
		"2000-01-01T12:00:00Z": v1alpha1.ReasonOwnerMissing,
	} {
		t.Run(schedule, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, ats := runController(t, clock.RealClock{}, func() error { return nil })
				restored := &v1alpha1.At{
					ObjectMeta: metav1.ObjectMeta{Name: "restored", Namespace: name.Namespace, Labels: map[string]string{v1alpha1.LabelCronAtUID: "earlier"}},
					Spec:       v1alpha1.AtSpec{Schedule: schedule, StartingDeadlineSeconds: ptr.To[int64](60), RunSpec: v1alpha1.RunSpec{Command: "true"}},
				}
				harness.Create(t, ats, restored)
				wantReason := func(want string) {
					t.Helper()
					at := harness.Get(t, ats, "restored")
					if at.Status.Reason != want {
						t.Errorf("reason %s, want %s", at.Status.Reason, want)
					}
				}
				time.Sleep(time.Second)
				wantReason(want)
				time.Sleep(13 * time.Hour)
				wantReason(v1alpha1.ReasonStartingDeadlineExceeded)
			})
		})
	}
}
