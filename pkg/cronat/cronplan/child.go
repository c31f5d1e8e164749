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

package cronplan

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/freeze"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// A child is an At that a CronAt created for a scheduled time. A scheduled time never has
// two children: the child's name is the lock, and its finalizer keeps a deleted child
// until the time is recorded in the CronAt's status. After that, the time never runs
// again.

// newChild returns a CronAt's child for a scheduled time. The child is due later by
// shift.
func newChild(cronAt *v1alpha1.CronAt, scheduled time.Time, shift time.Duration) *v1alpha1.At {
	template := cronAt.Spec.AtTemplate.DeepCopy()
	child := &v1alpha1.At{
		ObjectMeta: metav1.ObjectMeta{
			Name:            childName(cronAt, scheduled),
			Namespace:       cronAt.Namespace,
			Labels:          map[string]string{v1alpha1.LabelExcludeFromBackup: "true"},
			Annotations:     map[string]string{},
			Finalizers:      []string{v1alpha1.FinalizerScheduled},
			OwnerReferences: plan.OwnedBy(cronAt, v1alpha1.CronAtKind),
		},
		Spec: v1alpha1.AtSpec{
			Schedule:                scheduled.Add(shift).UTC().Format(time.RFC3339),
			RunSpec:                 template.Spec,
			StartingDeadlineSeconds: cronAt.Spec.StartingDeadlineSeconds,
		},
	}
	maps.Copy(child.Labels, template.Metadata.Labels)
	maps.Copy(child.Annotations, template.Metadata.Annotations)
	child.Labels[v1alpha1.LabelCronAtUID] = string(cronAt.UID)
	if len(cronAt.Name) <= validation.LabelValueMaxLength {
		child.Labels[v1alpha1.LabelCronAtName] = cronAt.Name
	}
	if requester, ok := cronAt.Annotations[v1alpha1.AnnotationRequester]; ok {
		child.Annotations[v1alpha1.AnnotationRequester] = requester
	}
	child.Annotations[v1alpha1.AnnotationScheduledTime] = scheduled.UTC().Format(time.RFC3339)
	return child
}

// childName returns the name of a CronAt's child for a scheduled time.
func childName(cronAt *v1alpha1.CronAt, scheduled time.Time) string {
	suffix := "-" + nameOf(scheduled)
	return plan.Shorten(cronAt.Name, validation.DNS1123SubdomainMaxLength-len(suffix)) + suffix
}

// nameOf returns the part of a child's name that identifies its scheduled time: the
// minutes since 1970 or, if the time is not a whole minute, the seconds.
func nameOf(scheduled time.Time) string {
	seconds := scheduled.Unix()
	if seconds%60 == 0 {
		return strconv.FormatInt(seconds/60, 10)
	}
	return strconv.FormatInt(seconds, 10)
}

// scheduledTime returns the time for which a CronAt created an At. It reads the annotation or, if a
// user has edited that, the schedule. It returns the zero time if the name of the At matches
// neither, such as that of a copy.
func scheduledTime(cronAt *v1alpha1.CronAt, at *v1alpha1.At) time.Time {
	annotated, err := time.Parse(time.RFC3339, at.Annotations[v1alpha1.AnnotationScheduledTime])
	if err == nil && at.Name == childName(cronAt, annotated) {
		return annotated.UTC()
	}
	instant, err := time.Parse(time.RFC3339, at.Spec.Schedule)
	if instant = instant.Add(-shiftOf(cronAt.UID, ptr.Deref(cronAt.Spec.SpreadSeconds, 0))); err == nil && at.Name == childName(cronAt, instant) {
		return instant.UTC()
	}
	return time.Time{}
}

// CronAtName returns the name of the CronAt that created an At, or "" if there is none.
// If the CronAt is deleted with --cascade=orphan, the At loses its owner reference, but
// neither its finalizer nor its label. Without the label, because the name was too long for one,
// the At's own name stands for that of a CronAt that is gone.
func CronAtName(at *v1alpha1.At) string {
	if owner := plan.Owner(at, v1alpha1.CronAtKind); owner != nil {
		return owner.Name
	}
	if plan.IsScheduled(at) {
		return cmp.Or(at.Labels[v1alpha1.LabelCronAtName], at.Name)
	}
	return ""
}

// IsChild reports whether the CronAt in w created an At. While the At has the finalizer, the label
// is as good as the owner reference, which a user may have removed. A user may also have copied them
// from a child, so the name must match the scheduled time. That time must not be in the future, unless
// a controller whose clock was ahead has recorded it.
func (w *World) IsChild(at *v1alpha1.At) bool {
	if w.CronAt == nil {
		return false
	}
	isLabeled := plan.IsScheduled(at) && types.UID(at.Labels[v1alpha1.LabelCronAtUID]) == w.CronAt.UID
	if !isLabeled && !plan.IsOwnedBy(at, w.CronAt, v1alpha1.CronAtKind) {
		return false
	}
	scheduled := scheduledTime(w.CronAt, at)
	return !scheduled.IsZero() && (!scheduled.After(w.Now) || w.isRecorded(scheduled))
}

// isRecorded reports whether a scheduled time is in the CronAt's status.
func (w *World) isRecorded(scheduled time.Time) bool {
	return !later(w.CronAt.Status.LastScheduleTime, scheduled)
}

// IsCounted reports whether the scheduled time of an At with the finalizer is recorded in
// the CronAt's status, or no longer matters because the CronAt is gone or being deleted.
func (w *World) IsCounted(at *v1alpha1.At) bool {
	if !w.IsChild(at) {
		return w.CronAtIsLive
	}
	return w.CronAt.DeletionTimestamp != nil || w.isRecorded(scheduledTime(w.CronAt, at))
}

// children returns the Ats that the CronAt created.
func (w *World) children() []*v1alpha1.At {
	return slices.DeleteFunc(slices.Clone(w.Ats), func(at *v1alpha1.At) bool { return !w.IsChild(at) })
}

// strangers returns the other Ats that have the finalizer: their CronAt is gone.
func (w *World) strangers() []*v1alpha1.At {
	return slices.DeleteFunc(slices.Clone(w.Ats), func(at *v1alpha1.At) bool { return !plan.IsScheduled(at) || w.IsChild(at) })
}

func isDone(at *v1alpha1.At) bool { return at.Status.Phase == v1alpha1.PhaseDone }

// Concerns reports whether the CronAt of an At must be synced after the At changed:
// because the CronAt counts, reports or waits for the change. The message of a blocked At
// may change with each retry: the CronAt does not follow such changes.
func Concerns(old, cur *v1alpha1.At) bool {
	was, is := ptr.Deref(plan.Blocked(old), metav1.Condition{}), ptr.Deref(plan.Blocked(cur), metav1.Condition{})
	return isDone(old) != isDone(cur) || was.Reason != is.Reason ||
		old.DeletionTimestamp.IsZero() != cur.DeletionTimestamp.IsZero() || plan.IsScheduled(old) != plan.IsScheduled(cur)
}

// IsSmall reports whether all of a CronAt's template is kept.
func IsSmall(cronAt *v1alpha1.CronAt) bool {
	template := &cronAt.Spec.AtTemplate
	return plan.IsSmall(&template.Spec) && len(template.Metadata.Labels) == 0 && len(template.Metadata.Annotations) == 0
}

// IsWhole reports whether a CronAt from a cache has its template.
func IsWhole(cronAt *v1alpha1.CronAt) bool {
	run := &cronAt.Spec.AtTemplate.Spec
	return run.Command != "" || run.Restart != nil
}

// KeepCronAt returns a copy with only those fields of a CronAt that this package and annotationplan
// read from a cache. The CronAt of a workload has a small template.
func KeepCronAt(cronAt *v1alpha1.CronAt) *v1alpha1.CronAt {
	kept := &v1alpha1.CronAt{
		ObjectMeta: plan.KeepMeta(cronAt),
		Spec:       cronAt.Spec,
		Status:     cronAt.Status,
	}
	keys := []string{v1alpha1.AnnotationRequester}
	if cronAt.Spec.AtTemplate.Spec.Rehearse {
		keys = append(keys, v1alpha1.AnnotationRehearsalRequestedAt)
	}
	kept.Annotations = plan.KeepKeys(cronAt.Annotations, keys...)
	kept.Labels = freeze.Keep(cronAt.Labels)
	if owner := plan.ControllerOf(cronAt); owner != nil {
		kept.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	if !IsSmall(cronAt) || kept.Annotations[v1alpha1.AnnotationRequester] != cronAt.Annotations[v1alpha1.AnnotationRequester] {
		kept.Spec.AtTemplate = v1alpha1.AtTemplateSpec{Spec: v1alpha1.RunSpec{Rehearse: cronAt.Spec.AtTemplate.Spec.Rehearse}}
	}
	if edited := plan.WrittenAt(cronAt, ""); !edited.IsZero() {
		kept.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &metav1.Time{Time: edited}}}
	}
	return plan.Bounded(kept)
}
