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
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// MayStartAt reports whether a decision at a time may start something: then the World must have
// what holds the At.
func MayStartAt(at *v1alpha1.At, now time.Time) bool {
	instant, err := Instant(&at.Spec)
	return !isDone(at) && err == nil && !now.Before(instant)
}

// freeze returns a decision as it is, unless it starts something while a Freeze holds. Every start
// goes through here.
func (v *view) freeze(d Decision) Decision {
	switch {
	case !v.starts(d):
		return d
	case v.Frozen != nil:
		return v.writeFrozen()
	case v.FreezesUnknown != nil:
		return Decision{Retry: v.FreezesUnknown, Delay: v.untilDeadline()}
	default:
		return d
	}
}

// starts reports whether a decision starts a Pod, a restart, or a run on nodes. The Ats of the nodes
// are held themselves.
func (v *view) starts(d Decision) bool {
	switch d.Action.(type) {
	case CreatePod, RestartTarget:
		return true
	}
	return d.Status != nil && d.Status.Phase == v1alpha1.PhaseRunning && v.At.Status.Phase != v1alpha1.PhaseRunning && !v.owned
}

// writeFrozen returns the decision to set condition Frozen, and to wait for the end of the Freeze or
// for the deadline.
func (v *view) writeFrozen() Decision {
	status := v.At.Status.DeepCopy()
	removeBlocked(status)
	meta.SetStatusCondition(&status.Conditions, v.newCondition(v1alpha1.ConditionFrozen, v1alpha1.ReasonFrozen, v.Frozen.String()))
	var events []Event
	if !IsFrozen(v.At) {
		events = append(events, NewEvent(corev1.EventTypeNormal, v1alpha1.ReasonFrozen, v.Frozen.String()))
	}
	if d := v.writeStatus(status, events...); d.Status != nil {
		return d
	}
	return Decision{Delay: min(v.Frozen.Until.Sub(v.Now), v.leftToStart())}
}

// IsFrozen reports whether an At waits for the end of a Freeze, according to its status.
func IsFrozen(at *v1alpha1.At) bool {
	return TrueCondition(at.Status.Conditions, v1alpha1.ConditionFrozen) != nil
}
