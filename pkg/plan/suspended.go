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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

func isSuspended(at *v1alpha1.At) bool {
	return ptr.Deref(at.Spec.Suspend, false)
}

// isHeld reports whether nothing may start because the At is suspended, or because its
// parent is suspended or being deleted.
func (w *World) isHeld() bool {
	return isSuspended(w.At) || w.isChild() && w.Parent != nil && (isSuspended(w.Parent) || w.Parent.DeletionTimestamp != nil)
}

// decideSuspended keeps condition Suspended in sync with spec.suspend.
func (v *view) decideSuspended() Decision {
	at, suspend := v.At, isSuspended(v.At)
	if suspend == meta.IsStatusConditionTrue(at.Status.Conditions, v1alpha1.ConditionSuspended) {
		return Decision{}
	}
	condition := v.newCondition(v1alpha1.ConditionSuspended, v1alpha1.ReasonSuspended, "Nothing starts while spec.suspend is true.")
	if !suspend {
		condition.Status = metav1.ConditionFalse
		condition.Reason = v1alpha1.ReasonResumed
		condition.Message = "The At is no longer suspended."
	}
	status := at.Status.DeepCopy()
	meta.SetStatusCondition(&status.Conditions, condition)
	if ParentName(at) != "" {
		// No event: the parent suspends and resumes its children, and there may be very many of
		// them.
		return v.write(status)
	}
	return v.write(status, NewEvent(corev1.EventTypeNormal, condition.Reason, condition.Message))
}
