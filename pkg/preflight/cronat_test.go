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

package preflight

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// cronAt creates a CronAt that is due each day at noon, and stores it.
func (f *fixture) cronAt(name string, mutate ...func(*v1alpha1.CronAt)) *v1alpha1.CronAt {
	f.t.Helper()
	cronAt := &v1alpha1.CronAt{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", UID: types.UID(name), Generation: 1, CreationTimestamp: metav1.Time{Time: f.start}},
		Spec:       v1alpha1.CronAtSpec{Schedule: "0 12 * * *", AtTemplate: v1alpha1.AtTemplateSpec{Spec: v1alpha1.RunSpec{Command: "echo " + name}}},
	}
	f.storeCronAt(cronAt, mutate...)
	return cronAt
}

// storeCronAt is store for a CronAt.
func (f *fixture) storeCronAt(cronAt *v1alpha1.CronAt, mutate ...func(*v1alpha1.CronAt)) {
	f.t.Helper()
	store(f, "cronats", f.cronAts, cronAt, cronplan.KeepCronAt, mutate)
}

// cronForecast returns what is known of the next At of a CronAt.
func (f *fixture) cronForecast(cronAt *v1alpha1.CronAt) *plan.Forecast {
	return f.crons.Forecast(cronAt, cronplan.RehearsedOf(&cronAt.Status))
}

// nextPod is the name of the Pod of the next At of CronAt a: the minutes are those of the first noon.
const nextPod = "a-15778800-pod"

// blockedBy sets condition Blocked in the status of a CronAt.
func blockedBy(reason, message string) func(*v1alpha1.CronAt) {
	return func(cronAt *v1alpha1.CronAt) {
		cronAt.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionTrue, Reason: reason, Message: message}}
	}
}

// TestCronAt makes the API server refuse the Pod of a CronAt's next At for a minute, beside
// an At of the same name. The cache does not have its template. Later, it is suspended.
func TestCronAt(t *testing.T) {
	run(t, func(f *fixture) {
		at := f.at("a", 24*time.Hour, unlike)
		f.add(2*time.Second, at)
		f.setAnswer(refusal)
		cronAt := f.cronAt("a", func(cronAt *v1alpha1.CronAt) {
			cronAt.Spec.AtTemplate.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "image"}}}}
		})
		f.add(2*time.Second, cronAt)
		f.wantList("changes", &f.changed, "a 3.02s")
		if got, want := f.cronForecast(cronAt), podRefused(nextPod); got == nil || *got != *want {
			t.Errorf("Forecast %+v, want %+v", got, want)
		}
		f.wantForecast(at, nil)
		edited := cronAt.DeepCopy()
		edited.Generation = 2
		if got := f.cronForecast(edited); got != nil {
			t.Errorf("Forecast after an edit: %+v", got)
		}

		f.storeCronAt(cronAt, blockedBy(v1alpha1.ReasonPodRefused, "If it were due now: refused")) // as the controller does
		f.setAnswer(nil)
		f.add(time.Minute)
		if got := f.cronForecast(cronAt); got == nil || got.Reason != "" {
			t.Errorf("Forecast when it is fixed: %+v", got)
		}
		f.storeCronAt(cronAt, func(cronAt *v1alpha1.CronAt) { cronAt.Status.Conditions = nil }) // as the controller does
		time.Sleep(time.Minute)
		f.wantNothingKept()

		f.setAnswer(refusal)
		f.storeCronAt(cronAt, func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = ptr.To(true) })
		f.add(time.Minute, cronAt)
		if got := f.cronForecast(cronAt); got != nil {
			t.Errorf("Forecast when it is suspended: %+v", got)
		}
	})
}

// TestCronAtWaits checks that a CronAt whose At must end first, or says itself what is
// wrong, is checked when that is over. What was found before does not count any more.
func TestCronAtWaits(t *testing.T) {
	for name, wait := range map[string]func(*v1alpha1.CronAt){
		"Forbid": func(cronAt *v1alpha1.CronAt) {
			cronAt.Spec.ConcurrencyPolicy, cronAt.Status.Active = v1alpha1.ForbidConcurrent, 1
		},
		"blocked": blockedBy(v1alpha1.ReasonAtBlocked, "At a-1 is blocked: PodRefused"),
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(f *fixture) {
				f.answer = refusal
				cronAt := f.cronAt("a")
				f.add(2*time.Second, cronAt)
				f.wantList("changes", &f.changed, "a 1s")
				f.storeCronAt(cronAt, wait)
				f.add(time.Minute)
				if got := f.cronForecast(cronAt); got != nil {
					t.Errorf("Forecast %+v, want nothing known", got)
				}
				f.taken(&f.dryRuns)
				f.add(10*time.Minute, cronAt)
				f.wantList("dry-runs while it waits", &f.dryRuns)
				f.storeCronAt(cronAt, func(cronAt *v1alpha1.CronAt) { cronAt.Status = v1alpha1.CronAtStatus{} })
				f.add(31 * time.Second)
				if got := f.cronForecast(cronAt); got == nil || got.Reason != v1alpha1.ReasonPodRefused {
					t.Errorf("Forecast %+v, want PodRefused", got)
				}
			})
		})
	}
	run(t, func(f *fixture) {
		cronAt := f.cronAt("a", func(cronAt *v1alpha1.CronAt) { cronAt.Status.Active = 1 })
		f.add(2*time.Second, cronAt)
		f.wantList("dry-runs with Allow", &f.dryRuns, nextPod+" 1s")
	})
}

// TestManyCronAts creates a thousand CronAts that differ in nothing but the command, and as
// many Ats: they cost one dry-run. Those of another namespace do not wait for them.
func TestManyCronAts(t *testing.T) {
	run(t, func(f *fixture) {
		for i := range 1000 {
			f.add(0, f.cronAt(fmt.Sprint("cronat-", i)))
			f.add(0, f.at(fmt.Sprint("at-", i), 24*time.Hour))
		}
		f.add(2*time.Second, f.cronAt("other", func(cronAt *v1alpha1.CronAt) { cronAt.Namespace = "bank" }))
		if got := f.taken(&f.dryRuns); len(got) != 2 {
			t.Errorf("dry-runs %v, want one for each namespace", got)
		}
		f.wantNothingKept()
	})
}
