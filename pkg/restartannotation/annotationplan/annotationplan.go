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

// Package annotationplan decides what to do with the CronAt of a workload whose
// annotations schedule restarts. Like package plan, it is pure.
package annotationplan

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// Fields of a CronAt that is created from annotations, besides those that the annotations
// set.
const (
	// startingDeadlineSeconds is how late a restart may begin. It bridges a control-plane
	// upgrade or the end of a slow rollout, and keeps a nightly restart out of working
	// hours.
	startingDeadlineSeconds = 30 * 60
	// spreadSeconds keeps many workloads with the same schedule from restarting in the same
	// second. Each restart still begins in the scheduled minute.
	spreadSeconds = 60
	// activeDeadlineSeconds is when a rollout that does not end is reported as failed: a
	// StatefulSet or DaemonSet has no limit of its own. It is long enough for a rollout of
	// very many Pods, and short enough for the restart of the next night to begin.
	activeDeadlineSeconds = 12 * 60 * 60
)

// maxNameLength is the maximum length of a CronAt's name, such that the names of its Ats
// fit into a label.
const maxNameLength = 52

// Kinds are the kinds of workloads that can be annotated.
var Kinds = []v1alpha1.RestartKind{v1alpha1.RestartDaemonSet, v1alpha1.RestartDeployment, v1alpha1.RestartStatefulSet}

// World is what is observed of a workload and its CronAt: from the caches or, where NeedsLive says
// so, from the API server.
type World struct {
	// Kind is the kind of the workload.
	Kind v1alpha1.RestartKind
	// Workload is the workload as returned by Keep, or nil if it does not exist.
	Workload *metav1.PartialObjectMetadata
	// CronAt is the CronAt with the name that belongs to the workload, or nil if there is
	// none.
	CronAt *v1alpha1.CronAt
	// IsLive is true if both were read from the API server in this sync. The caches may be
	// outdated, and have only a part of a CronAt.
	IsLive bool
	// Now is the wall-clock time.
	Now time.Time
}

// Decision is the next step. The zero value means that there is nothing to do until the
// workload or the CronAt changes.
type Decision struct {
	// Action is what to do, or nil.
	Action any
	// Event must be recorded on the workload after the action succeeded, or immediately if
	// there is none. One of a mistake in the annotations says what to write.
	Event *plan.Event
	// Retry is non-nil if the step must be retried with back-off, and is the cause.
	Retry error
}

// Blocked returns the reason why the annotations cannot be applied, or "". It is one of
// the reasons of events in v1alpha1.
func (d Decision) Blocked() string {
	if d.Event == nil || d.Event.Type != corev1.EventTypeWarning {
		return ""
	}
	return d.Event.Reason
}

// CreateCronAt means: create the CronAt.
type CreateCronAt struct{ CronAt *v1alpha1.CronAt }

// PatchCronAt means: change this version of the CronAt from what is before to what is after.
type PatchCronAt struct{ Before, After *v1alpha1.CronAt }

// DeleteCronAt means: delete this version of the CronAt.
type DeleteCronAt struct{}

// NeedsLive reports whether the workload and its CronAt must be read from the API server before a
// decision is made again and acted on. Without that, a controller whose cache lags would undo what
// another one or the garbage collector does, and these would do it again, without delay until the
// cache is up to date.
func NeedsLive(w World, d Decision) bool { return !w.IsLive && (d.Action != nil || d.Retry != nil) }

// Decide returns the next step for a workload, as if what was observed were the truth.
func Decide(w World) Decision {
	if w.Workload == nil || w.Workload.DeletionTimestamp != nil {
		// The garbage collector deletes the CronAt.
		return Decision{}
	}
	want, mistake := newCronAt(w)
	isOwn := w.CronAt != nil && (metav1.IsControlledBy(w.CronAt, w.Workload) || isOrphan(w))
	var d Decision
	switch {
	case isOwn && w.CronAt.DeletionTimestamp != nil:
		// Its deletion triggers the next step.
	case want == nil && isOwn && mistake != "" && ptr.Deref(w.CronAt.Spec.Suspend, false):
		// It restarts nothing, and stays suspended when the mistake is fixed.
	case want == nil && isOwn && isManaged(w.CronAt):
		// An invalid schedule restarts nothing: the owner no longer wants the earlier schedule.
		d.Action = DeleteCronAt{}
		d.Event = newEvent(corev1.EventTypeNormal, v1alpha1.ReasonSuccessfulDelete, "Deleted CronAt "+w.CronAt.Name)
	case want == nil:
	case w.CronAt == nil:
		d.Action = CreateCronAt{want}
		d.Event = newEvent(corev1.EventTypeNormal, v1alpha1.ReasonSuccessfulCreate, "Created CronAt "+want.Name)
	case !isOwn:
		return nameTaken(w)
	default:
		byHand := ptr.Deref(w.CronAt.Spec.Suspend, false) && w.CronAt.Labels[v1alpha1.AnnotationRestartSuspend] == ""
		if byHand || !ptr.Deref(want.Spec.Suspend, false) && !ptr.Deref(w.CronAt.Spec.Suspend, false) {
			// Users suspend the CronAt to stop the restarts without editing the workload.
			want.Spec.Suspend = w.CronAt.Spec.Suspend
			delete(want.Labels, v1alpha1.AnnotationRestartSuspend)
		}
		before, verb := ownPart(w.CronAt), "Adopted "
		if !isOrphan(w) {
			before.OwnerReferences, verb = want.OwnerReferences, "Updated "
		}
		if !equality.Semantic.DeepEqual(want, before) {
			want.UID, want.ResourceVersion = w.CronAt.UID, w.CronAt.ResourceVersion
			d.Action = PatchCronAt{before, want}
			d.Event = newEvent(corev1.EventTypeNormal, v1alpha1.ReasonSuccessfulUpdate, verb+"CronAt "+want.Name)
		}
	}
	if mistake != "" && d.Action == nil {
		d.Event = newEvent(corev1.EventTypeWarning, v1alpha1.ReasonInvalidRestartSchedule, mistake)
	}
	return d
}

// isManaged reports whether a CronAt says that it was created for the annotations of its workload.
func isManaged(cronAt *v1alpha1.CronAt) bool {
	return cronAt.Labels[v1alpha1.LabelManagedBy] == v1alpha1.ManagedBy
}

// isOrphan reports whether an annotated workload must adopt the CronAt: it was created for
// a workload of this kind and name, which was deleted with --cascade=orphan.
func isOrphan(w World) bool {
	if w.CronAt == nil || w.CronAt.DeletionTimestamp != nil || len(w.CronAt.OwnerReferences) > 0 || !isManaged(w.CronAt) {
		return false
	}
	restart := w.CronAt.Spec.AtTemplate.Spec.Restart
	return restart != nil && restart.Kind == w.Kind && restart.Name == w.Workload.Name && IsAnnotated(w.Workload)
}

// nameTaken returns the decision when the name belongs to a CronAt of another owner.
func nameTaken(w World) Decision {
	message := fmt.Sprintf("CronAt %s already exists and was not created for this %s: delete that CronAt.", w.CronAt.Name, w.Kind)
	d := Decision{Retry: answer.Blocked(v1alpha1.ReasonCronAtNameConflict, errors.New(message))}
	if kind, name, ok := Owner(w.CronAt); ok && kind == w.Kind && name == w.Workload.Name && w.Now.Sub(w.Workload.CreationTimestamp.Time) < plan.Grace {
		// It belongs to an earlier workload, and the garbage collector will delete it.
		return d
	}
	d.Event = newEvent(corev1.EventTypeWarning, v1alpha1.ReasonCronAtNameConflict, message)
	return d
}

// Refused returns the decision after the API server answered an action with err. err does
// not mean that the CronAt exists, has changed or is gone.
func Refused(err error) Decision {
	d := Decision{Retry: answer.Refused(v1alpha1.ReasonCronAtRefused, err)}
	if errors.Is(d.Retry, answer.ErrBlocked) {
		d.Event = newEvent(corev1.EventTypeWarning, v1alpha1.ReasonCronAtRefused, err.Error())
	}
	return d
}

func newEvent(eventType, reason, message string) *plan.Event {
	return ptr.To(plan.NewEvent(eventType, reason, message))
}

// newCronAt returns the CronAt for the annotations of a workload. It is nil if there are
// no annotations, or if they are invalid; then mistake says why.
func newCronAt(w World) (cronAt *v1alpha1.CronAt, mistake string) {
	schedule, hasSchedule := annotation(w.Workload, v1alpha1.AnnotationRestartSchedule)
	timeZone, hasTimeZone := annotation(w.Workload, v1alpha1.AnnotationRestartTimeZone)
	if !hasSchedule {
		if hasTimeZone {
			mistake = fmt.Sprintf("annotation %s requires annotation %s: write a cron expression, such as \"0 3 * * 1-5\"", v1alpha1.AnnotationRestartTimeZone, v1alpha1.AnnotationRestartSchedule)
		}
		return nil, mistake
	}
	spec := v1alpha1.CronAtSpec{
		Schedule:                schedule,
		StartingDeadlineSeconds: ptr.To[int64](startingDeadlineSeconds),
		ConcurrencyPolicy:       v1alpha1.ForbidConcurrent,
		SpreadSeconds:           ptr.To[int32](spreadSeconds),
		AtTemplate: v1alpha1.AtTemplateSpec{Spec: v1alpha1.RunSpec{
			Restart:               &v1alpha1.AtRestart{Kind: w.Kind, Name: w.Workload.Name},
			ActiveDeadlineSeconds: ptr.To[int64](activeDeadlineSeconds),
		}},
	}
	if hasTimeZone {
		spec.TimeZone = &timeZone
	}
	if _, err := cronplan.Next(&v1alpha1.CronAt{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Time{Time: w.Now}}, Spec: spec}, w.Now, 1); err != nil {
		return nil, explain(err)
	}
	labels := map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy}
	switch suspend, hasSuspend := annotation(w.Workload, v1alpha1.AnnotationRestartSuspend); {
	case suspend == "true":
		// The label tells it from a suspension by hand, which the annotation does not end.
		spec.Suspend, labels[v1alpha1.AnnotationRestartSuspend] = ptr.To(true), "true"
	case hasSuspend && suspend != "false":
		return nil, answer.OneLine(fmt.Sprintf("annotation %s %q is invalid: write true or false", v1alpha1.AnnotationRestartSuspend, suspend))
	}
	return &v1alpha1.CronAt{
		ObjectMeta: metav1.ObjectMeta{
			Name:      Name(w.Kind, w.Workload.Name),
			Namespace: w.Workload.Namespace,
			Labels:    labels,
			// Without blockOwnerDeletion, which would require a permission for the workload.
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: appsv1.SchemeGroupVersion.String(),
				Kind:       string(w.Kind),
				Name:       w.Workload.Name,
				UID:        w.Workload.UID,
				Controller: ptr.To(true),
			}},
		},
		Spec: spec,
	}, ""
}

// annotation returns the value of an annotation. It removes the line break at the end of
// a YAML block.
func annotation(workload *metav1.PartialObjectMetadata, key string) (string, bool) {
	value, ok := workload.Annotations[key]
	return strings.TrimSpace(value), ok
}

// explain returns the text of an error about CronAt fields, in terms of the annotations.
func explain(err error) string {
	return answer.OneLine(strings.NewReplacer("spec.schedule", "annotation "+v1alpha1.AnnotationRestartSchedule, "spec.timeZone", "annotation "+v1alpha1.AnnotationRestartTimeZone).Replace(err.Error()))
}

// Name returns the name of the CronAt of a workload, such as deployment-web.
func Name(kind v1alpha1.RestartKind, workload string) string {
	return plan.Shorten(strings.ToLower(string(kind))+"-"+workload, maxNameLength)
}

// Owner returns the workload that is the controller of a CronAt according to its owner
// reference; ok is false if there is none. It does not check the UID of the workload.
func Owner(cronAt *v1alpha1.CronAt) (kind v1alpha1.RestartKind, name string, ok bool) {
	owner := plan.ControllerOf(cronAt)
	if owner == nil {
		return "", "", false
	}
	gv, err := schema.ParseGroupVersion(owner.APIVersion)
	kind = v1alpha1.RestartKind(owner.Kind)
	return kind, owner.Name, err == nil && gv.Group == appsv1.GroupName && slices.Contains(Kinds, kind)
}

// IsAnnotated reports whether a workload has one of the annotations. To be suspended alone
// has no effect.
func IsAnnotated(workload *metav1.PartialObjectMetadata) bool {
	_, hasSchedule := workload.Annotations[v1alpha1.AnnotationRestartSchedule]
	_, hasTimeZone := workload.Annotations[v1alpha1.AnnotationRestartTimeZone]
	return hasSchedule || hasTimeZone
}

// maxAnnotation is the length of an annotation, in bytes, up to which it is kept. No schedule
// and no time zone that the CRD admits is as long: 256 characters have at most 1024 bytes.
const maxAnnotation = 1025

// Keep returns a copy with only those fields of a workload that this package and an
// informer read: there may be very many workloads, and only few have the annotations.
func Keep(workload *metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata {
	kept := &metav1.PartialObjectMetadata{ObjectMeta: plan.KeepMeta(workload)}
	for _, key := range []string{v1alpha1.AnnotationRestartSchedule, v1alpha1.AnnotationRestartTimeZone, v1alpha1.AnnotationRestartSuspend} {
		if value, ok := annotation(workload, key); ok {
			metav1.SetMetaDataAnnotation(&kept.ObjectMeta, key, answer.Truncate(value, maxAnnotation))
		}
	}
	return kept
}

// ownPart returns what of a CronAt is set from the workload and its annotations, but no owner.
func ownPart(cronAt *v1alpha1.CronAt) *v1alpha1.CronAt {
	return &v1alpha1.CronAt{
		ObjectMeta: metav1.ObjectMeta{
			Name:      cronAt.Name,
			Namespace: cronAt.Namespace,
			Labels:    plan.KeepKeys(cronAt.Labels, v1alpha1.LabelManagedBy, v1alpha1.AnnotationRestartSuspend),
		},
		Spec: cronAt.Spec,
	}
}

// Concerns reports whether a change of a workload requires a decision.
func Concerns(old, cur *metav1.PartialObjectMetadata) bool {
	return old.UID != cur.UID || !equality.Semantic.DeepEqual(old.Annotations, cur.Annotations) || old.DeletionTimestamp.IsZero() != cur.DeletionTimestamp.IsZero()
}
