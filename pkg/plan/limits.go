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
	"math"
	"time"

	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// Between two attempts is minAttemptBackoff, twice as long each time, at most
// maxAttemptBackoff: as in Job.
const (
	minAttemptBackoff = 10 * time.Second
	maxAttemptBackoff = 6 * time.Minute
)

// attemptBackoff returns how long after the given number of failed attempts the next one
// follows.
func attemptBackoff(failed int32) time.Duration {
	delay := minAttemptBackoff
	for ; failed > 1 && delay < maxAttemptBackoff; failed-- {
		delay *= 2
	}
	return min(delay, maxAttemptBackoff)
}

// noLimit is the time left without a limit. A limit in seconds that does not fit a
// Duration, which ends after 292 years, is none.
const (
	noLimit    = time.Duration(math.MaxInt64)
	maxSeconds = int64(noLimit/time.Second) - 1
)

// activeTimeLeft returns how long the run may still take by spec.activeDeadlineSeconds.
func activeTimeLeft(at *v1alpha1.At, status *v1alpha1.AtStatus, now time.Time) time.Duration {
	limit := at.Spec.ActiveDeadlineSeconds
	if limit == nil || *limit > maxSeconds || status.StartTime == nil {
		return noLimit
	}
	return status.StartTime.Add(time.Duration(*limit) * time.Second).Sub(now)
}

// startingTimeLeft returns how long after now the run may still start by
// spec.startingDeadlineSeconds, which counts whole seconds from the instant.
func startingTimeLeft(at *v1alpha1.At, instant, now time.Time) time.Duration {
	limit := at.Spec.StartingDeadlineSeconds
	if limit == nil || *limit > maxSeconds {
		return noLimit
	}
	return instant.Add(time.Duration(*limit+1) * time.Second).Sub(now)
}

func deadlineExceeded(at *v1alpha1.At) string {
	return withBlocker(at, fmt.Sprintf("The run took longer than spec.activeDeadlineSeconds allows, which is %d.", *at.Spec.ActiveDeadlineSeconds))
}

func isSuspended(at *v1alpha1.At) bool {
	return ptr.Deref(at.Spec.Suspend, false)
}
