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
	"cmp"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// pastRun is something that has run, or should have.
type pastRun struct {
	entry
	Ended *time.Time `json:"ended,omitempty"`
	// TookSeconds is how long it took, or nil if it never started or still runs.
	TookSeconds *int64 `json:"tookSeconds,omitempty"`
	Failed      bool   `json:"failed"`
	ExitCode    *int32 `json:"exitCode,omitempty"`
	Reason      string `json:"reason"`
	Message     string `json:"message,omitempty"`
}

// runsOf returns what has run in a period: Ats, and the Jobs of CronJobs.
func runsOf(ats []*v1alpha1.At, jobs []*batchv1.Job, from, until, now time.Time) (all []pastRun) {
	for _, at := range ats {
		if plan.ParentName(at) == "" {
			all = append(all, runOfAt(at))
		}
	}
	for _, job := range jobs {
		if owner := metav1.GetControllerOf(job); owner != nil && owner.Kind == "CronJob" {
			all = append(all, runOfJob(job))
		}
	}
	all = slices.DeleteFunc(all, func(r pastRun) bool {
		ended := ptr.Deref(r.Ended, now)
		return r.Time.IsZero() || r.Time.After(until) || ended.Before(from)
	})
	slices.SortStableFunc(all, func(a, b pastRun) int { return cmp.Or(rankOf(a)-rankOf(b), a.Time.Compare(b.Time)) })
	return all
}

func rankOf(r pastRun) int {
	if r.Failed {
		return 0
	}
	return 1
}

// newRun returns a run from its times, which may be missing. What ended without a start has
// that time only.
func newRun(first entry, began, ended *metav1.Time) pastRun {
	r := pastRun{entry: first}
	if ended != nil {
		r.Time, r.Ended = ended.UTC(), ptr.To(ended.UTC())
	}
	if began != nil {
		r.Time = began.UTC()
	}
	if began != nil && ended != nil {
		r.TookSeconds = ptr.To(int64(ended.Sub(began.Time) / time.Second))
	}
	return r
}

func runOfAt(at *v1alpha1.At) pastRun {
	ended, failed := at.Status.CompletionTime, plan.TrueCondition(at.Status.Conditions, v1alpha1.ConditionFailed)
	if ended == nil && failed != nil { // It never started.
		ended = &failed.LastTransitionTime
	}
	r := newRun(newEntry(at, commandOf(&at.Spec.RunSpec)), at.Status.StartTime, ended)
	r.Reason, r.Message, r.ExitCode = cmp.Or(at.Status.Reason, string(at.Status.Phase)), at.Status.Message, at.Status.ExitCode
	if failed != nil {
		r.Failed, r.Message = true, cmp.Or(r.Message, failed.Message)
	}
	return r
}

func runOfJob(job *batchv1.Job) pastRun {
	ended := job.Status.CompletionTime
	i := slices.IndexFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed)
	})
	if ended == nil && i >= 0 {
		ended = &job.Status.Conditions[i].LastTransitionTime
	}
	r := newRun(newEntry(job, commandOf(&v1alpha1.RunSpec{Template: &job.Spec.Template})), job.Status.StartTime, ended)
	r.Reason = "Running"
	if i >= 0 {
		end := job.Status.Conditions[i]
		r.Failed, r.Reason, r.Message = end.Type == batchv1.JobFailed, cmp.Or(end.Reason, string(end.Type)), end.Message
	}
	return r
}
