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
	corev1 "k8s.io/api/core/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// decideNextAttempt decides for an At whose last attempt has failed. other is a Pod that
// does not belong to this At but has the name of the next attempt's Pod, or nil.
func decideNextAttempt(w World, other *corev1.Pod) Decision {
	at := w.At
	left := activeTimeLeft(at, &at.Status, w.Now)
	wait := at.Status.NextAttemptTime.Sub(w.Now)
	if d, decided := checkNode(w); decided && left > 0 {
		return d
	}
	switch {
	case left <= 0 && !w.PodIsLive:
		return Decision{Action: LookForPod{}}
	case left <= 0:
		return writeDone(at, nil, w.Now, v1alpha1.ReasonDeadlineExceeded, activeDeadlineMessage(at))
	case wait > 0:
		return writeUnblocked(at, min(wait, left))
	case w.isHeld() && left == noLimit:
		return writeUnblocked(at, 0)
	case w.isHeld():
		return writeUnblocked(at, left)
	default:
		return startAttempt(w, other, at.Status.NextAttemptTime.Time)
	}
}
