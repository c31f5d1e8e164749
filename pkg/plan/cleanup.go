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
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// CleanUp decides what to do with a Pod in w that the run no longer needs: a Pod of a
// deleted At, a Pod of an attempt that is already counted, or a second Pod of an attempt.
func CleanUp(w World, pod *corev1.Pod) Decision {
	d := cleanUp(w, pod)
	d.Needs = w.needs(d)
	return d
}

func cleanUp(w World, pod *corev1.Pod) Decision {
	at := w.At
	belongs := at != nil && !isLeaving(at) && IsOf(pod, at)
	switch {
	case belongs && isUnexpected(at, pod):
		message := fmt.Sprintf("Pod %s was created a second time after its attempt had been counted: deleting it.", pod.Name)
		return Decision{Action: DeletePod{Pod: pod, Unexpected: true}, Events: []Event{NewEvent(corev1.EventTypeWarning, v1alpha1.ReasonUnexpectedPod, message)}}
	case !IsTracked(pod):
		return Decision{}
	case belongs:
		seen, isCounted := countedAt(at, pod)
		if !isCounted {
			return Decision{}
		}
		// A longer wait comes from another clock.
		if wait := seen.Add(ReleaseDelay).Sub(w.Now); 0 < wait && wait <= ReleaseDelay {
			return Decision{Delay: wait}
		}
	}
	return Decision{Action: ReleasePod{Pod: pod}}
}

// isUnexpected reports whether a Pod is the second one of an attempt that is already
// counted: its creation was delayed until the first Pod was gone. A Pod that has ended
// looks like the first one, unless its UID is in the status.
func isUnexpected(at *v1alpha1.At, pod *corev1.Pod) bool {
	known := ptr.Deref(at.Status.Pod, v1alpha1.AtPod{})
	switch {
	case pod.DeletionTimestamp != nil || pod.UID == known.UID:
		return false
	case isNodesRun(at):
		// The At ran a command before an edit. It no longer has a Pod of its own.
		return !hasEnded(pod)
	case pod.Name == known.Name:
		return true
	case isEarlier(at, pod), isDone(at) && pod.Name == PodName(at):
		return !hasEnded(pod)
	default:
		// The Pod of the current attempt, or of a later one if the At comes from a stale cache.
		return false
	}
}

// isLeaving reports whether an At is being deleted and its outcome is no longer needed.
func isLeaving(at *v1alpha1.At) bool { return at.DeletionTimestamp != nil && !IsTracked(at) }

// countedAt reports whether the status contains the outcome of the given Pod, and when a controller
// saw that: the zero time if that was two attempts before the current one.
func countedAt(at *v1alpha1.At, pod *corev1.Pod) (seen time.Time, isCounted bool) {
	switch {
	case isDone(at):
		return endSeen(at), true
	case !isEarlier(at, pod):
		return time.Time{}, false
	case at.Status.LastFailureTime != nil && pod.Name == NameOfPod(at.Name, PodsBefore(at)-1):
		return at.Status.LastFailureTime.Time, true
	default:
		return time.Time{}, true
	}
}

// ReleaseDelay is how long a Pod keeps its finalizer, and with it its name, after a
// controller saw the attempt end. The name is the lock against running a command twice:
// another controller may have read the At before that end was recorded, or have it in its
// cache for staleness.FreshFor, and its creation request may still be in flight. The delay
// is shorter than minAttemptBackoff, so that an attempt is cleaned up before the next one is
// due. It ends half a second after a whole second, because most schedules are whole seconds
// and creations go first.
const ReleaseDelay = 9500 * time.Millisecond

// minTTL is the shortest time to live. The Pods of an At are deleted with it, so they
// must be released first, which takes a moment.
const minTTL = ReleaseDelay + time.Second

// endSeen returns when a controller saw the end of a run, or the zero time. It differs
// from completionTime, which may come from the node's clock: a deletion must not depend
// on that clock.
func endSeen(at *v1alpha1.At) time.Time {
	end := cmp.Or(TrueCondition(at.Status.Conditions, v1alpha1.ConditionComplete), TrueCondition(at.Status.Conditions, v1alpha1.ConditionFailed))
	return ptr.Deref(end, metav1.Condition{}).LastTransitionTime.Time
}

// Leave decides for an At while the controller is being uninstalled. Nothing starts. A Pod
// is released when its run cannot start a second time: the At is gone or being deleted, or
// its status has the Pod. w.At is live.
func Leave(w World) Decision {
	var attempt *corev1.Pod // whose outcome the status may lack
	if at := w.At; at != nil && !isLeaving(at) && !isDone(at) && !isNodesRun(at) && !isRestart(at) {
		if v := newView(w); v.owned && (!recorded(at) || v.pod.UID == at.Status.Pod.UID) {
			attempt = v.pod
			d := v.decideRunning()
			if hasEnded(attempt) {
				d = v.decideEnded()
			}
			if d.Status != nil {
				return d
			}
		}
	}
	for _, pod := range w.Pods {
		if IsTracked(pod) && (pod != attempt || recorded(w.At)) {
			return Decision{Action: ReleasePod{Pod: pod}}
		}
	}
	return Decision{}
}
