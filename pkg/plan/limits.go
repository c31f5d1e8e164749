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
	"math"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// The delay between two attempts starts at minAttemptBackoff and doubles with each
// attempt, up to maxAttemptBackoff, as in Job.
const (
	minAttemptBackoff = 10 * time.Second
	maxAttemptBackoff = 6 * time.Minute
)

// attemptBackoff returns the delay before the next attempt after the given number of
// failed attempts.
func attemptBackoff(failed int32) time.Duration {
	delay := minAttemptBackoff
	for ; failed > 1 && delay < maxAttemptBackoff; failed-- {
		delay *= 2
	}
	return min(delay, maxAttemptBackoff)
}

// noLimit is the time left if there is no limit.
const noLimit = time.Duration(math.MaxInt64)

// Seconds returns a number of seconds as a duration. A number that overflows a Duration
// (292 years) becomes the maximum, which counts as no limit.
func Seconds[T int32 | int64](number T) time.Duration {
	if int64(number) > int64(noLimit/time.Second) {
		return noLimit
	}
	return time.Duration(number) * time.Second
}

// timeLeft returns how long after now the given number of seconds after since ends.
func timeLeft(since time.Time, seconds *int64, now time.Time) time.Duration {
	if seconds == nil || Seconds(*seconds) == noLimit {
		return noLimit
	}
	// Neither Add nor Sub overflows.
	return since.Add(Seconds(*seconds)).Sub(now)
}

// activeTimeLeft returns how much longer the run may take according to
// spec.activeDeadlineSeconds, which limits the run on each node, not the run as a whole.
func activeTimeLeft(at *v1alpha1.At, status *v1alpha1.AtStatus, now time.Time) time.Duration {
	if status.StartTime == nil || isNodesRun(at) || isRestart(at) && !wasRestarted(at) {
		return noLimit
	}
	return timeLeft(status.StartTime.Time, at.Spec.ActiveDeadlineSeconds, now)
}

// StartingTimeLeft returns how long after now what is due may still start according to
// startingDeadlineSeconds, which counts whole seconds. It is math.MaxInt64 if there is no
// limit.
func StartingTimeLeft(due time.Time, seconds *int64, now time.Time) time.Duration {
	return timeLeft(due.Add(time.Second), seconds, now)
}

func startingTimeLeft(at *v1alpha1.At, instant, now time.Time) time.Duration {
	return StartingTimeLeft(instant, at.Spec.StartingDeadlineSeconds, now)
}

// lastTry is how long before its starting deadline a blocked At is tried once more,
// regardless of its back-off.
const lastTry = 2 * time.Second

// DelayUntilDeadline returns the delay until the deadline, or until just before it. After
// the deadline, the At ends if its next Pod has not been created. The delay is 0 if there
// is no deadline.
func DelayUntilDeadline(at *v1alpha1.At, now time.Time) time.Duration {
	left := activeTimeLeft(at, &at.Status, now)
	if instant, err := Instant(&at.Spec); err == nil && at.Status.NextAttemptTime == nil && !wasRestarted(at) {
		left = min(left, startingTimeLeft(at, instant, now))
	}
	switch {
	case left == noLimit:
		return 0
	case left > lastTry:
		return left - lastTry
	default:
		return max(left, 1)
	}
}

// dueSince returns the time since which the run that is due at the given instant could
// have been started: the At may have been created, resumed or edited later. For a child,
// parent is the At that created it.
func dueSince(at, parent *v1alpha1.At, instant time.Time) time.Time {
	since := instant
	later := func(t metav1.Time) {
		if since.Before(t.Time) {
			since = t.Time
		}
	}
	later(at.CreationTimestamp)
	if parent != nil {
		later(mayStartSince(parent))
	}
	if resumed := meta.FindStatusCondition(at.Status.Conditions, v1alpha1.ConditionSuspended); resumed != nil {
		later(resumed.LastTransitionTime)
	}
	// An At from a cache does not have these.
	for _, written := range at.ManagedFields {
		if written.Subresource == "" {
			later(ptr.Deref(written.Time, metav1.Time{}))
		}
	}
	return since
}

// releaseDelay is how long a Pod keeps its finalizer, and with it its name, after a
// controller saw the attempt end. The name is the lock against running a command twice:
// another controller may have read the At before that end was recorded, or have it in its
// cache for staleness.FreshFor, and its creation request may still be in flight. The delay is shorter than minAttemptBackoff, so that an
// attempt is cleaned up before the next one is due. It ends half a second after a whole
// second, because most schedules are whole seconds and creations go first.
const releaseDelay = 9500 * time.Millisecond

// minTTL is the shortest time to live. The Pods of an At are deleted with it, so they
// must be released first, which takes a moment.
const minTTL = releaseDelay + time.Second

// endSeen returns when a controller saw the end of a run, or the zero time. It differs
// from completionTime, which may come from the node's clock: a deletion must not depend
// on that clock.
func endSeen(at *v1alpha1.At) time.Time {
	for _, condition := range at.Status.Conditions {
		if condition.Status == metav1.ConditionTrue &&
			(condition.Type == v1alpha1.ConditionComplete || condition.Type == v1alpha1.ConditionFailed) {
			return condition.LastTransitionTime.Time
		}
	}
	return time.Time{}
}
