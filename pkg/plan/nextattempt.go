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
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// decideNextAttempt decides for an At whose last attempt has failed.
func (v *view) decideNextAttempt() Decision {
	left := v.activeLeft
	wait := v.At.Status.NextAttemptTime.Sub(v.Now)
	if d, decided := v.checkNode(); decided && left > 0 {
		return d
	}
	switch {
	case left <= 0 && !v.PodIsLive:
		return Decision{Action: LookForPod{}}
	case left <= 0:
		return v.writeDone(nil, v1alpha1.ReasonDeadlineExceeded, v.activeDeadlineMessage())
	case wait > 0:
		return v.writeUnblocked(min(wait, left))
	case v.isHeld() && left == noLimit:
		return v.writeUnblocked(0)
	case v.isHeld():
		return v.writeUnblocked(left)
	default:
		return v.startAttempt(v.At.Status.NextAttemptTime.Time)
	}
}
