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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// createdAt makes an At created at a time that is known.
func createdAt(t time.Time) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) { at.CreationTimestamp = metav1.Time{Time: t} }
}

// editedSince makes an At edited at a given time. Its status was written later.
func editedSince(t time.Time) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) {
		at.ManagedFields = []metav1.ManagedFieldsEntry{
			{Time: &metav1.Time{Time: earlier}}, {Time: &metav1.Time{Time: t}}, {Time: &metav1.Time{Time: t.AddDate(1, 0, 0)}, Subresource: "status"},
		}
	}
}

func ownedByCronAt(at *v1alpha1.At) {
	at.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: v1alpha1.CronAtKind, Name: "a", UID: "a", Controller: ptr.To(true)}}
}

// TestScheduleInPast uses Ats whose time is long past. Those that were created only then do
// not run, unless they have a starting deadline, or nobody can have mistyped the time.
func TestScheduleInPast(t *testing.T) {
	late := due.AddDate(0, 0, 364) // a year was mistyped
	testDecide(t, map[string]decideCase{
		"for a restart": {
			at: newAt(createdAt(late), func(at *v1alpha1.At) {
				at.Spec.Restart = &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}
			}), now: late,
			want: "Blocked ScheduleInPast: spec.schedule was 364 days in the past when the At was created, so nothing runs: correct it. To run the At now, set spec.schedule to the present time. If an At may start that late, set spec.startingDeadlineSeconds.; Warning ScheduleInPast",
		},
		"created 364 days later": {
			at: newAt(createdAt(late)), now: late,
			want: "Blocked ScheduleInPast: spec.schedule was 364 days in the past when the At was created, so nothing runs: correct it. To run the At now, set spec.schedule to the present time. If an At may start that late, set spec.startingDeadlineSeconds.; Warning ScheduleInPast",
		},
		"with a starting deadline": {at: newAt(createdAt(late), withStartingDeadline(365*24*3600)), now: late, want: "CreatePod due 2027-12-23 10:12:00; wait 1m0s; read At"},
		"created a day later":      {at: newAt(createdAt(due.AddDate(0, 0, 1))), now: late, want: "CreatePod due 2026-12-25 10:12:00; wait 1m0s; read At"},
		"edited 364 days later":    {at: newAt(createdAt(earlier), editedSince(late)), now: late, dropped: true, want: "CreatePod due 2027-12-23 10:12:00; wait 1m0s; read At"},
		"an At of a CronAt":        {at: newAt(createdAt(late), ownedByCronAt), now: late, want: "CreatePod due 2027-12-23 10:12:00; wait 1m0s; read At"},
		"OwnerMissing, the label was removed": {
			at: newAt(withStatus(pendingWith(blocked(late, v1alpha1.ReasonOwnerMissing, ""))), createdAt(late)), now: late,
			want: "CreatePod due 2027-12-23 10:12:00; wait 1m0s; read At",
		},
		"created two years later": {
			at: newAt(withStatus(pendingWith(blocked(late, v1alpha1.ReasonScheduleInPast, ""))), createdAt(due.AddDate(2, 0, 0))), now: due.AddDate(2, 0, 0),
			want: "Blocked ScheduleInPast: spec.schedule was 731 days in the past when the At was created, so nothing runs: correct it. To run the At now, set spec.schedule to the present time. If an At may start that late, set spec.startingDeadlineSeconds. (since 2027-12-23 10:12:00)",
		},
		"the example of the book": {at: newAt(createdAt(late), withSchedule("2019-04-12T10:12:00Z")), now: late, want: "CreatePod due 2027-12-23 10:12:00; wait 1m0s; read At"},
		"for nodes": {
			at: newAt(createdAt(late), func(at *v1alpha1.At) { at.Spec.Nodes = &v1alpha1.AtNodes{} }), now: late,
			want: "Blocked ScheduleInPast: spec.schedule was 364 days in the past when the At was created, so nothing runs: correct it. To run the At now, set spec.schedule to the present time. If an At may start that late, set spec.startingDeadlineSeconds.; Warning ScheduleInPast",
		},
	})
}
