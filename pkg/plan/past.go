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
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// A schedule that is between minMistake and maxMistake in the past when an At is created is
// taken for a mistake: a mistyped month or year, or an At that has run and was created again.
// An At that was applied a little late runs. So does one whose time is further in the past:
// nobody mistypes that, and such a time is the usual way to say now in a manifest.
const (
	minMistake = 24 * time.Hour
	maxMistake = 2 * 366 * 24 * time.Hour
)

// IsMistake reports whether a schedule that is so long in the past is taken for a mistake.
func IsMistake(past time.Duration) bool { return minMistake < past && past <= maxMistake }

// createdLate returns how long after its time an At was created. For an At that another
// object created, that tells nothing about what a user wrote.
func (v *view) createdLate() time.Duration {
	if ParentName(v.At) != "" || IsScheduled(v.At) || Owner(v.At, v1alpha1.CronAtKind) != nil {
		return 0
	}
	return v.At.CreationTimestamp.Sub(v.instant)
}

// isMistaken reports whether a user must say if the At is meant to run.
func (v *view) isMistaken() bool {
	// The message of OwnerMissing says how to run the At. What a Freeze holds had passed this check.
	saidSo := v.At.Spec.StartingDeadlineSeconds != nil || ptr.Deref(Blocked(v.At), metav1.Condition{}).Reason == v1alpha1.ReasonOwnerMissing || IsFrozen(v.At)
	return IsMistake(v.createdLate()) && !saidSo
}

func (v *view) writeScheduleInPast() Decision {
	return v.writeBlocked(v1alpha1.ReasonScheduleInPast, fmt.Sprintf(
		"spec.schedule was %s in the past when the At was created, so nothing runs: correct it. To run the At now, set spec.schedule to the present time. If an At may start that late, set spec.startingDeadlineSeconds.",
		days(v.createdLate())))
}

// days returns a duration in whole days: the API server truncates times to seconds.
func days(duration time.Duration) string {
	if days := duration.Round(24*time.Hour) / (24 * time.Hour); days != 1 {
		return fmt.Sprintf("%d days", days)
	}
	return "1 day"
}

// WrittenAt returns the time of the last write to a subresource of an object, such as its status, or
// to the rest of it if that is empty. It returns the zero time if that is unknown.
func WrittenAt(object metav1.Object, subresource string) time.Time {
	var last time.Time
	for _, written := range object.GetManagedFields() {
		if written.Subresource == subresource && written.Time != nil && last.Before(written.Time.Time) {
			last = written.Time.Time
		}
	}
	return last
}
