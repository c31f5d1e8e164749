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

package annotationplan

import (
	"errors"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

const (
	uid         = types.UID("web-uid")
	schedule    = v1alpha1.AnnotationRestartSchedule
	timeZone    = v1alpha1.AnnotationRestartTimeZone
	suspend     = v1alpha1.AnnotationRestartSuspend
	scheduleKey = "annotation " + schedule
)

var now = time.Date(2026, 12, 24, 10, 12, 0, 0, time.UTC)

func newWorkload(annotations map[string]string, mutate ...func(*metav1.PartialObjectMetadata)) *metav1.PartialObjectMetadata {
	workload := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: "web", Namespace: "shop", UID: uid, Annotations: annotations,
		CreationTimestamp: metav1.Time{Time: now.Add(-time.Hour)},
	}}
	for _, m := range mutate {
		m(workload)
	}
	return workload
}

// newOwn returns the CronAt of the workload for "0 3 * * 1-5" in Europe/Berlin.
func newOwn(mutate ...func(*v1alpha1.CronAt)) *v1alpha1.CronAt {
	cronAt := &v1alpha1.CronAt{
		ObjectMeta: metav1.ObjectMeta{
			Name: "deployment-web", Namespace: "shop",
			Labels:          map[string]string{"app.kubernetes.io/managed-by": "cnat-controller"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: uid, Controller: ptr.To(true)}},
		},
		Spec: v1alpha1.CronAtSpec{
			Schedule:                "0 3 * * 1-5",
			TimeZone:                ptr.To("Europe/Berlin"),
			StartingDeadlineSeconds: ptr.To[int64](1800),
			ConcurrencyPolicy:       v1alpha1.ForbidConcurrent,
			SpreadSeconds:           ptr.To[int32](60),
			AtTemplate: v1alpha1.AtTemplateSpec{Spec: v1alpha1.RunSpec{
				Restart:               &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"},
				ActiveDeadlineSeconds: ptr.To[int64](43200),
			}},
		},
	}
	for _, m := range mutate {
		m(cronAt)
	}
	return cronAt
}

func normal(reason, message string) *plan.Event {
	return &plan.Event{Type: corev1.EventTypeNormal, Reason: reason, Message: message}
}

// equate compares errors like the worker, which only checks for ErrBlocked.
var equate = cmp.Comparer(func(a, b error) bool {
	return (a == nil) == (b == nil) && errors.Is(a, answer.ErrBlocked) == errors.Is(b, answer.ErrBlocked)
})

func TestDecide(t *testing.T) {
	berlin := map[string]string{schedule: "0 3 * * 1-5", timeZone: "Europe/Berlin"}
	broken := map[string]string{schedule: "0 25 * * *"}
	const brokenMessage = scheduleKey + ` "0 25 * * *" is invalid: hour "25": write numbers from 0 to 23, ranges such as 1-4, steps such as */2, lists such as 1,3, or *`
	created := normal("SuccessfulCreate", "Created CronAt deployment-web")
	updated := normal("SuccessfulUpdate", "Updated CronAt deployment-web")
	deleted := normal("SuccessfulDelete", "Deleted CronAt deployment-web")
	deleting := func(cronAt *v1alpha1.CronAt) { cronAt.DeletionTimestamp = &metav1.Time{Time: now} }
	suspended := func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = ptr.To(true) }
	with := func(annotations map[string]string, key, value string) map[string]string {
		annotations = maps.Clone(annotations)
		annotations[key] = value
		return annotations
	}
	frozen := with(berlin, suspend, "true")
	byAnnotation := func(cronAt *v1alpha1.CronAt) {
		cronAt.Spec.Suspend = ptr.To(true)
		cronAt.Labels[suspend] = "true"
	}
	orphan := func(cronAt *v1alpha1.CronAt) { cronAt.OwnerReferences = nil }
	stranger := func(cronAt *v1alpha1.CronAt) { cronAt.OwnerReferences, cronAt.Labels = nil, nil }
	otherRestart := func(cronAt *v1alpha1.CronAt) { cronAt.Spec.AtTemplate.Spec.Restart.Name = "db" }
	otherKind := func(cronAt *v1alpha1.CronAt) { cronAt.Spec.AtTemplate.Spec.Restart.Kind = v1alpha1.RestartDaemonSet }
	command := func(cronAt *v1alpha1.CronAt) { cronAt.Spec.AtTemplate.Spec = v1alpha1.RunSpec{Command: "true"} }
	unlabelled := func(cronAt *v1alpha1.CronAt) { cronAt.Labels = nil }
	leapDays := func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Schedule, cronAt.Spec.TimeZone = "0 0 29 2 *", nil }
	eachMinute := func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Schedule, cronAt.Spec.TimeZone = "@every 1m", nil }
	adopt := Decision{Action: AdoptCronAt{newOwn().OwnerReferences[0]}, Event: normal("SuccessfulUpdate", "Adopted CronAt deployment-web")}
	earlier := func(cronAt *v1alpha1.CronAt) { cronAt.OwnerReferences[0].UID = "earlier-uid" }
	young := func(workload *metav1.PartialObjectMetadata) {
		workload.CreationTimestamp = metav1.Time{Time: now.Add(-time.Second)}
	}
	conflict := &plan.Event{Type: corev1.EventTypeWarning, Reason: "CronAtNameConflict", Message: "CronAt deployment-web already exists and was not created for this Deployment: delete that CronAt."}

	for name, tc := range map[string]struct {
		// world
		workload *metav1.PartialObjectMetadata
		cronAt   *v1alpha1.CronAt
		cached   bool

		want Decision
	}{
		"no workload":                         {},
		"no workload, but a CronAt":           {cronAt: newOwn()},
		"no annotation":                       {workload: newWorkload(nil)},
		"no annotation, unrelated CronAt":     {workload: newWorkload(nil), cronAt: newOwn(stranger)},
		"no annotation, earlier workload":     {workload: newWorkload(nil), cronAt: newOwn(earlier)},
		"a removed annotation":                {workload: newWorkload(nil), cronAt: newOwn(), want: Decision{Action: DeleteCronAt{}, Event: deleted}},
		"already being deleted":               {workload: newWorkload(nil), cronAt: newOwn(deleting)},
		"annotated":                           {workload: newWorkload(berlin), want: Decision{Action: CreateCronAt{newOwn()}, Event: created}},
		"annotated, in the cache":             {workload: newWorkload(berlin), cached: true, want: Decision{Action: "read"}},
		"annotated, the CronAt exists":        {workload: newWorkload(berlin), cronAt: newOwn()},
		"annotated, deleted workload":         {workload: newWorkload(berlin, func(w *metav1.PartialObjectMetadata) { w.DeletionTimestamp = &metav1.Time{Time: now} })},
		"annotated, deleted CronAt":           {workload: newWorkload(berlin), cronAt: newOwn(deleting)},
		"deleted CronAt, unlabelled":          {workload: newWorkload(berlin), cronAt: newOwn(deleting, unlabelled), want: Decision{Retry: answer.ErrBlocked}},
		"invalid, deleted CronAt":             {workload: newWorkload(broken), cronAt: newOwn(deleting), want: Decision{Mistake: brokenMessage}},
		"with a line break at the end":        {workload: newWorkload(map[string]string{schedule: " 0 3 * * 1-5\n", timeZone: "Europe/Berlin\n"}), cronAt: newOwn()},
		"suspended by a user":                 {workload: newWorkload(berlin), cronAt: newOwn(suspended)},
		"with another annotation":             {workload: newWorkload(map[string]string{"a": "b", schedule: "0 3 * * 1-5", timeZone: "Europe/Berlin"}), cronAt: newOwn()},
		"a user's label":                      {workload: newWorkload(berlin), cronAt: newOwn(func(cronAt *v1alpha1.CronAt) { cronAt.Labels["team"] = "shop" })},
		"without a time zone":                 {workload: newWorkload(map[string]string{schedule: "0 3 * * 1-5"}), want: Decision{Action: CreateCronAt{newOwn(func(cronAt *v1alpha1.CronAt) { cronAt.Spec.TimeZone = nil })}, Event: created}},
		"a changed schedule":                  {workload: newWorkload(map[string]string{schedule: "@daily", timeZone: "Europe/Berlin"}), cronAt: newOwn(), want: Decision{Action: PatchCronAt{newOwn(func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Schedule = "@daily" })}, Event: updated}},
		"a removed time zone":                 {workload: newWorkload(map[string]string{schedule: "0 3 * * 1-5"}), cronAt: newOwn(), want: Decision{Action: PatchCronAt{newOwn(func(cronAt *v1alpha1.CronAt) { cronAt.Spec.TimeZone = nil })}, Event: updated}},
		"a spec edited by a user":             {workload: newWorkload(berlin), cronAt: newOwn(suspended, func(cronAt *v1alpha1.CronAt) { cronAt.Spec.AtTemplate.Spec.Restart.Name = "db" }), want: Decision{Action: PatchCronAt{newOwn(suspended)}, Event: updated}},
		"a label removed by a user":           {workload: newWorkload(berlin), cronAt: newOwn(func(cronAt *v1alpha1.CronAt) { cronAt.Labels = nil }), want: Decision{Action: PatchCronAt{newOwn()}, Event: updated}},
		"an unrelated CronAt in the cache":    {workload: newWorkload(berlin), cached: true, cronAt: newOwn(stranger), want: Decision{Action: "read"}},
		"an unrelated CronAt":                 {workload: newWorkload(berlin), cronAt: newOwn(stranger), want: Decision{Event: conflict, Retry: answer.ErrBlocked}},
		"of an earlier workload":              {workload: newWorkload(berlin, young), cronAt: newOwn(earlier), want: Decision{Retry: answer.ErrBlocked}},
		"of an earlier workload, for long":    {workload: newWorkload(berlin), cronAt: newOwn(earlier), want: Decision{Event: conflict, Retry: answer.ErrBlocked}},
		"of a new workload, unrelated CronAt": {workload: newWorkload(berlin, young), cronAt: newOwn(stranger), want: Decision{Event: conflict, Retry: answer.ErrBlocked}},
		"an orphan":                           {workload: newWorkload(berlin), cronAt: newOwn(orphan), want: adopt},
		"removed, in the cache":               {workload: newWorkload(nil), cached: true, cronAt: newOwn(), want: Decision{Action: "read"}},
		"broken, in the cache":                {workload: newWorkload(broken), cached: true, cronAt: newOwn(), want: Decision{Action: "read"}},
		"changed, in the cache":               {workload: newWorkload(frozen), cached: true, cronAt: newOwn(), want: Decision{Action: "read"}},
		"unchanged, in the cache":             {workload: newWorkload(frozen), cached: true, cronAt: newOwn(byAnnotation)},
		"an orphan, a cached workload":        {workload: newWorkload(berlin), cached: true, cronAt: newOwn(orphan), want: Decision{Action: "read"}},
		"an orphan, broken":                   {workload: newWorkload(broken), cronAt: newOwn(orphan), want: Decision{Action: adopt.Action, Event: adopt.Event, Mistake: brokenMessage}},
		"an orphan, not annotated":            {workload: newWorkload(nil), cronAt: newOwn(orphan)},
		"an orphan that is being deleted":     {workload: newWorkload(berlin), cronAt: newOwn(orphan, deleting), want: Decision{Event: conflict, Retry: answer.ErrBlocked}},
		"an orphan of another workload":       {workload: newWorkload(berlin), cronAt: newOwn(orphan, otherRestart), want: Decision{Event: conflict, Retry: answer.ErrBlocked}},
		"an orphan of another kind":           {workload: newWorkload(berlin), cronAt: newOwn(orphan, otherKind), want: Decision{Event: conflict, Retry: answer.ErrBlocked}},
		"an orphan with a command":            {workload: newWorkload(berlin), cronAt: newOwn(orphan, command), want: Decision{Event: conflict, Retry: answer.ErrBlocked}},
		"a broken schedule":                   {workload: newWorkload(broken), want: Decision{Mistake: brokenMessage}},
		"broken after a valid one":            {workload: newWorkload(broken), cronAt: newOwn(), want: Decision{Action: DeleteCronAt{}, Event: deleted, Mistake: brokenMessage}},
		"broken while it is suspended":        {workload: newWorkload(broken), cronAt: newOwn(suspended), want: Decision{Mistake: brokenMessage}},
		"suspended by annotation":             {workload: newWorkload(frozen), want: Decision{Action: CreateCronAt{newOwn(byAnnotation)}, Event: created}},
		"suspended by annotation later":       {workload: newWorkload(frozen), cronAt: newOwn(), want: Decision{Action: PatchCronAt{newOwn(byAnnotation)}, Event: updated}},
		"suspended by annotation, again":      {workload: newWorkload(frozen), cronAt: newOwn(byAnnotation)},
		"and resumed by hand":                 {workload: newWorkload(frozen), cronAt: newOwn(byAnnotation, func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = nil }), want: Decision{Action: PatchCronAt{newOwn(byAnnotation)}, Event: updated}},
		"and the annotation is removed":       {workload: newWorkload(berlin), cronAt: newOwn(byAnnotation), want: Decision{Action: PatchCronAt{newOwn()}, Event: updated}},
		"and the annotation is false":         {workload: newWorkload(with(berlin, suspend, "false\n")), cronAt: newOwn(byAnnotation), want: Decision{Action: PatchCronAt{newOwn()}, Event: updated}},
		"by annotation and before by hand":    {workload: newWorkload(frozen), cronAt: newOwn(suspended)},
		"by hand, the annotation is false":    {workload: newWorkload(with(berlin, suspend, "false")), cronAt: newOwn(suspended)},
		"suspended without a schedule":        {workload: newWorkload(map[string]string{suspend: "true"})},
		"neither true nor false": {workload: newWorkload(with(berlin, suspend, "yes")), cronAt: newOwn(), want: Decision{
			Action: DeleteCronAt{}, Event: deleted,
			Mistake: `annotation cnat.programming-kubernetes.info/restart-suspend "yes" is invalid: write true or false`,
		}},
		"removed while it is suspended": {workload: newWorkload(nil), cronAt: newOwn(suspended), want: Decision{Action: DeleteCronAt{}, Event: deleted}},
		"fixed while it is suspended":   {workload: newWorkload(map[string]string{schedule: "@daily", timeZone: "Europe/Berlin"}), cronAt: newOwn(suspended), want: Decision{Action: PatchCronAt{newOwn(suspended, func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Schedule = "@daily" })}, Event: updated}},
		"an empty schedule": {workload: newWorkload(map[string]string{schedule: ""}), want: Decision{
			Mistake: scheduleKey + ` "" is invalid: it does not have five fields: write minute, hour, day of month, month and day of week, such as "0 3 * * 1-5", or @hourly, @daily, @weekly, @monthly, @yearly or "@every 90m"`,
		}},
		"a schedule that has no time": {workload: newWorkload(map[string]string{schedule: "0 0 30 2 *"}), want: Decision{
			Mistake: scheduleKey + ` "0 0 30 2 *" has no time within the next five years`,
		}},
		"a schedule of leap days":   {workload: newWorkload(map[string]string{schedule: "0 0 29 2 *"}), want: Decision{Action: CreateCronAt{newOwn(leapDays)}, Event: created}},
		"a schedule of each minute": {workload: newWorkload(map[string]string{schedule: "@every 1m"}), want: Decision{Action: CreateCronAt{newOwn(eachMinute)}, Event: created}},
		"a schedule of seconds": {workload: newWorkload(map[string]string{schedule: "@every 59s"}), want: Decision{
			Mistake: scheduleKey + ` "@every 59s" is invalid: the duration is too short: write "@every 1m" or longer`,
		}},
		"a schedule of no time": {workload: newWorkload(map[string]string{schedule: "@every -5m"}), want: Decision{
			Mistake: scheduleKey + ` "@every -5m" is invalid: write a duration of at least a minute in hours, minutes and seconds, such as "@every 90m" or "@every 1h30m"`,
		}},
		"a schedule with a zone": {workload: newWorkload(map[string]string{schedule: "TZ=UTC 0 3 * * *"}), want: Decision{
			Mistake: scheduleKey + ` "TZ=UTC 0 3 * * *" has a time zone: set annotation cnat.programming-kubernetes.info/restart-time-zone`,
		}},
		"an unknown zone": {workload: newWorkload(map[string]string{schedule: "0 3 * * *", timeZone: "Europe/Berln"}), want: Decision{
			Mistake: `annotation cnat.programming-kubernetes.info/restart-time-zone "Europe/Berln" is unknown: write a name from the IANA time zone database, such as Europe/Berlin`,
		}},
		"a zone alone": {workload: newWorkload(map[string]string{timeZone: "Europe/Berlin"}), cronAt: newOwn(), want: Decision{
			Action: DeleteCronAt{}, Event: deleted,
			Mistake: `annotation cnat.programming-kubernetes.info/restart-time-zone requires annotation cnat.programming-kubernetes.info/restart-schedule: write a cron expression, such as "0 3 * * 1-5"`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := World{Kind: v1alpha1.RestartDeployment, Workload: tc.workload, CronAt: tc.cronAt, IsLive: !tc.cached, Now: now}
			got := Decide(w)
			if NeedsLive(w, got) {
				got = Decision{Action: "read"}
			}
			if diff := cmp.Diff(tc.want, got, equate); diff != "" {
				t.Errorf("Decide (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	cronAts := schema.GroupResource{Resource: "cronats"}
	for name, tc := range map[string]struct {
		err  error
		want Decision
	}{
		"no answer":   {errors.New("connection reset"), Decision{Retry: errors.New("any")}},
		"a busy one":  {apierrors.NewTooManyRequests("busy", 1), Decision{Retry: errors.New("any")}},
		"a quota":     {apierrors.NewForbidden(cronAts, "deployment-web", errors.New("exceeded quota")), Decision{Retry: answer.ErrBlocked, Event: &plan.Event{Type: "Warning", Reason: "CronAtRefused", Message: `cronats "deployment-web" is forbidden: exceeded quota`}}},
		"a webhook's": {&apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusBadRequest, Message: "denied"}}, Decision{Retry: answer.ErrBlocked, Event: &plan.Event{Type: "Warning", Reason: "CronAtRefused", Message: "denied"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Refused(tc.err), equate); diff != "" {
				t.Errorf("Refused (-want +got):\n%s", diff)
			}
		})
	}
}

func TestName(t *testing.T) {
	names := map[string]bool{}
	for _, tc := range []struct {
		kind           v1alpha1.RestartKind
		workload, want string
	}{
		{v1alpha1.RestartDeployment, "web", "deployment-web"},
		{v1alpha1.RestartStatefulSet, "db", "statefulset-db"},
		{v1alpha1.RestartDaemonSet, "log.agent", "daemonset-log.agent"},
		{v1alpha1.RestartDeployment, strings.Repeat("a", 41), "deployment-" + strings.Repeat("a", 41)},
		{v1alpha1.RestartDeployment, strings.Repeat("a", 42), "deployment-" + strings.Repeat("a", 30) + "-f81b625e16"},
		{v1alpha1.RestartDeployment, strings.Repeat("a", 43), "deployment-" + strings.Repeat("a", 30) + "-c3b9996371"},
		{v1alpha1.RestartDeployment, strings.Repeat("a", 29) + "." + strings.Repeat("a", 223), "deployment-" + strings.Repeat("a", 29) + "-0a3f97ae1a"},
	} {
		got := Name(tc.kind, tc.workload)
		if got != tc.want || len(got) > maxNameLength || len(validation.IsDNS1123Subdomain(got)) > 0 || names[got] {
			t.Errorf("%s %s: got %s, want %s, a name of its own", tc.kind, tc.workload, got, tc.want)
		}
		names[got] = true
	}
}

func TestOwner(t *testing.T) {
	for name, tc := range map[string]struct {
		owner metav1.OwnerReference
		want  bool
	}{
		"a Deployment":                  {metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Controller: ptr.To(true)}, true},
		"a StatefulSet":                 {metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Controller: ptr.To(true)}, true},
		"a DaemonSet of a version":      {metav1.OwnerReference{APIVersion: "apps/v2", Kind: "DaemonSet", Controller: ptr.To(true)}, true},
		"not as the controller":         {metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment"}, false},
		"a ReplicaSet":                  {metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Controller: ptr.To(true)}, false},
		"a Deployment of another group": {metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Deployment", Controller: ptr.To(true)}, false},
		"a Deployment of no version":    {metav1.OwnerReference{APIVersion: "a/b/c", Kind: "Deployment", Controller: ptr.To(true)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			tc.owner.Name = "web"
			kind, workload, ok := Owner(&v1alpha1.CronAt{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{tc.owner}}})
			if ok != tc.want || ok && (string(kind) != tc.owner.Kind || workload != "web") {
				t.Errorf("got %v, %s %s", ok, kind, workload)
			}
		})
	}
}

// TestKeep checks that only the necessary fields of a workload are kept.
func TestKeep(t *testing.T) {
	workload := newWorkload(map[string]string{"a": "b"})
	workload.ResourceVersion = "7"
	want := workload.DeepCopy()
	want.Annotations = nil
	workload.Labels = map[string]string{"a": "b"}
	workload.Finalizers = []string{"example.com/a"}
	workload.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "a"}}
	workload.OwnerReferences = []metav1.OwnerReference{{Name: "a"}}
	if diff := cmp.Diff(want, Keep(workload)); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	workload.Annotations[timeZone] = "UTC"
	want.Annotations = map[string]string{timeZone: "UTC"}
	kept := Keep(workload)
	if diff := cmp.Diff(want, kept); diff != "" || !IsAnnotated(kept) {
		t.Errorf("kept of one with an annotation (-want +got):\n%s", diff)
	}
	changed := kept.DeepCopy()
	changed.ResourceVersion = "8"
	if Concerns(kept, changed) {
		t.Error("a change of something else concerns")
	}
	changed.Annotations[timeZone] = "Europe/Berlin"
	if !Concerns(kept, changed) {
		t.Error("a change of the annotation does not concern")
	}
}

// TestLongTemplate writes a long template into the CronAt: it is not in the cache, but is removed.
func TestLongTemplate(t *testing.T) {
	cronAt := &v1alpha1.CronAt{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy}},
		Spec:       v1alpha1.CronAtSpec{AtTemplate: v1alpha1.AtTemplateSpec{Spec: v1alpha1.RunSpec{Command: strings.Repeat("x", 200_000)}}},
	}
	w := World{Kind: v1alpha1.RestartDeployment, Workload: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: "web", UID: "web", Annotations: map[string]string{v1alpha1.AnnotationRestartSchedule: "0 3 * * *"},
	}}, Now: time.Date(2026, time.December, 24, 10, 0, 0, 0, time.UTC)}
	cronAt.OwnerReferences = []metav1.OwnerReference{newOwner(w)}
	w.CronAt = KeepCronAt(cronAt)
	if !NeedsLive(w, Decide(w)) {
		t.Error("a CronAt without its template is not read")
	}
	w.CronAt, w.IsLive = cronAt, true
	if got, ok := Decide(w).Action.(PatchCronAt); !ok {
		t.Errorf("got %T for a CronAt that was edited, want %T", Decide(w).Action, got)
	}
}
