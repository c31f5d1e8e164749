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

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// TestScheduleInPast creates an At a year late, also with nodes and for a restart: nothing
// starts, and nothing is written more than once, until the time is corrected.
func TestScheduleInPast(t *testing.T) {
	t.Parallel()
	for what, mutate := range map[string]func(*v1alpha1.At){
		"command": func(*v1alpha1.At) {},
		"nodes":   func(at *v1alpha1.At) { at.Spec.Nodes = &v1alpha1.AtNodes{} },
		"restart": func(at *v1alpha1.At) {
			at.Spec.Command, at.Spec.Restart = "", &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, ats := runController(t, clock.RealClock{}, func() error { return nil })
				at := &v1alpha1.At{
					ObjectMeta: metav1.ObjectMeta{Name: "late", Namespace: name.Namespace},
					Spec:       v1alpha1.AtSpec{Schedule: time.Now().AddDate(-1, 0, 0).Format(time.RFC3339), RunSpec: v1alpha1.RunSpec{Command: "true"}},
				}
				mutate(at)
				harness.Create(t, ats, at)
				time.Sleep(time.Second)
				synctest.Wait()
				reported := harness.Get(t, ats, "late")
				if reported.Status.Reason != v1alpha1.ReasonScheduleInPast || plan.Blocked(reported) == nil {
					t.Errorf("status %+v, want ScheduleInPast", reported.Status)
				}
				time.Sleep(24 * time.Hour)
				at = harness.Get(t, ats, "late")
				if at.ResourceVersion != reported.ResourceVersion {
					t.Errorf("status %+v a day later, want the same", at.Status)
				}
				harness.Patch(t, ats, "late", `{"spec":{"schedule":"`+time.Now().Format(time.RFC3339)+`"}}`)
				time.Sleep(time.Second)
				synctest.Wait()
				if at := harness.Get(t, ats, "late"); at.Status.Phase == "" || at.Status.Phase == v1alpha1.PhasePending || plan.Blocked(at) != nil {
					t.Errorf("status %+v when it is corrected, want a run", at.Status)
				}
			})
		})
	}
}
