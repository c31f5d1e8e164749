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
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

const (
	uid      = types.UID("web-uid")
	schedule = v1alpha1.AnnotationRestartSchedule
	timeZone = v1alpha1.AnnotationRestartTimeZone
	suspend  = v1alpha1.AnnotationRestartSuspend
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

// describe returns a text for a decision, such as "creates 0 3 * * 1-5 Europe/Berlin, Normal SuccessfulCreate …".
func describe(d Decision) string {
	var parts []string
	switch action := d.Action.(type) {
	case CreateCronAt:
		parts = append(parts, "creates "+wanted(action.CronAt))
	case PatchCronAt:
		parts = append(parts, "updates to "+wanted(action.After))
	case DeleteCronAt:
		parts = append(parts, "deletes")
	}
	if d.Event != nil {
		parts = append(parts, d.Event.Type+" "+d.Event.Reason+" "+d.Event.Message)
	}
	if d.Retry != nil {
		parts = append(parts, fmt.Sprintf("retries, blocked: %v", errors.Is(d.Retry, answer.ErrBlocked)))
	}
	return strings.Join(parts, "; ")
}

// wanted returns what annotations set. All else must be as always.
func wanted(cronAt *v1alpha1.CronAt) string {
	spec, always := &cronAt.Spec, newOwn()
	text := spec.Schedule + " " + ptr.Deref(spec.TimeZone, "UTC")
	if ptr.Deref(spec.Suspend, false) {
		text += " suspended"
	}
	if cronAt.Labels[suspend] == "true" {
		text += " by annotation"
		always.Labels[suspend] = "true"
	}
	always.Spec.Schedule, always.Spec.TimeZone, always.Spec.Suspend = spec.Schedule, spec.TimeZone, spec.Suspend
	return text + cmp.Diff(always, cronAt)
}

// TestDecide decides with the caches of a controller. If something must be read, it decides again.
func TestDecide(t *testing.T) {
	annotated := func(scheduled, zone, suspended string) map[string]string {
		annotations := map[string]string{schedule: scheduled, timeZone: zone, suspend: suspended}
		maps.DeleteFunc(annotations, func(_, value string) bool { return value == "" })
		return annotations
	}
	const workdays, zone = "0 3 * * 1-5", "Europe/Berlin"
	berlin, broken, frozen := annotated(workdays, zone, ""), annotated("0 25 * * *", "", ""), annotated(workdays, zone, "true")
	gone := func(workload *metav1.PartialObjectMetadata) { workload.DeletionTimestamp = &metav1.Time{Time: now} }
	young := func(workload *metav1.PartialObjectMetadata) {
		workload.CreationTimestamp = metav1.Time{Time: now.Add(-time.Second)}
	}
	deleting := func(cronAt *v1alpha1.CronAt) { cronAt.DeletionTimestamp = &metav1.Time{Time: now} }
	suspended := func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = ptr.To(true) }
	byAnnotation := func(cronAt *v1alpha1.CronAt) {
		suspended(cronAt)
		cronAt.Labels[suspend] = "true"
	}
	orphan := func(cronAt *v1alpha1.CronAt) { cronAt.OwnerReferences = nil }
	unlabelled := func(cronAt *v1alpha1.CronAt) { cronAt.Labels = nil }
	earlier := func(cronAt *v1alpha1.CronAt) { cronAt.OwnerReferences[0].UID = "earlier-uid" }
	team := func(cronAt *v1alpha1.CronAt) { cronAt.Labels["team"] = "shop" }
	otherRestart := func(cronAt *v1alpha1.CronAt) { cronAt.Spec.AtTemplate.Spec.Restart.Name = "db" }
	otherKind := func(cronAt *v1alpha1.CronAt) { cronAt.Spec.AtTemplate.Spec.Restart.Kind = v1alpha1.RestartDaemonSet }
	command := func(cronAt *v1alpha1.CronAt) {
		cronAt.Spec.AtTemplate.Spec = v1alpha1.RunSpec{Command: strings.Repeat("x", 200_000)} // not kept in the cache
	}
	for name, tc := range map[string]struct {
		workload *metav1.PartialObjectMetadata
		cronAt   *v1alpha1.CronAt
		want     string
	}{
		"no workload":                      {},
		"no annotation":                    {workload: newWorkload(nil)},
		"a removed annotation":             {workload: newWorkload(nil), cronAt: newOwn(), want: "reads; deletes; Normal SuccessfulDelete Deleted CronAt deployment-web"},
		"already being deleted":            {workload: newWorkload(nil), cronAt: newOwn(deleting)},
		"annotated":                        {workload: newWorkload(berlin), want: "reads; creates 0 3 * * 1-5 Europe/Berlin; Normal SuccessfulCreate Created CronAt deployment-web"},
		"annotated, the CronAt exists":     {workload: newWorkload(berlin), cronAt: newOwn()},
		"annotated, deleted workload":      {workload: newWorkload(berlin, gone)},
		"with a line break at the end":     {workload: newWorkload(annotated(" 0 3 * * 1-5\n", "Europe/Berlin\n", "")), cronAt: newOwn()},
		"suspended by a user":              {workload: newWorkload(berlin), cronAt: newOwn(suspended)},
		"a user's label":                   {workload: newWorkload(berlin), cronAt: newOwn(team)},
		"a changed schedule":               {workload: newWorkload(annotated("@daily", zone, "")), cronAt: newOwn(), want: "reads; updates to @daily Europe/Berlin; Normal SuccessfulUpdate Updated CronAt deployment-web"},
		"a long command set by a user":     {workload: newWorkload(berlin), cronAt: newOwn(command), want: "reads; updates to 0 3 * * 1-5 Europe/Berlin; Normal SuccessfulUpdate Updated CronAt deployment-web"},
		"a label removed by a user":        {workload: newWorkload(berlin), cronAt: newOwn(unlabelled), want: "reads; updates to 0 3 * * 1-5 Europe/Berlin; Normal SuccessfulUpdate Updated CronAt deployment-web"},
		"an unrelated CronAt":              {workload: newWorkload(berlin), cronAt: newOwn(orphan, unlabelled), want: "reads; Warning CronAtNameConflict CronAt deployment-web already exists and was not created for this Deployment: delete that CronAt.; retries, blocked: true"},
		"of an earlier workload":           {workload: newWorkload(berlin, young), cronAt: newOwn(earlier), want: "reads; retries, blocked: true"},
		"of an earlier workload, for long": {workload: newWorkload(berlin), cronAt: newOwn(earlier), want: "reads; Warning CronAtNameConflict CronAt deployment-web already exists and was not created for this Deployment: delete that CronAt.; retries, blocked: true"},
		"an orphan":                        {workload: newWorkload(berlin), cronAt: newOwn(orphan), want: "reads; updates to 0 3 * * 1-5 Europe/Berlin; Normal SuccessfulUpdate Adopted CronAt deployment-web"},
		"an orphan, broken":                {workload: newWorkload(broken), cronAt: newOwn(orphan), want: "reads; deletes; Normal SuccessfulDelete Deleted CronAt deployment-web"},
		"an orphan, not annotated":         {workload: newWorkload(nil), cronAt: newOwn(orphan)},
		"an orphan that is being deleted":  {workload: newWorkload(berlin), cronAt: newOwn(orphan, deleting), want: "reads; Warning CronAtNameConflict CronAt deployment-web already exists and was not created for this Deployment: delete that CronAt.; retries, blocked: true"},
		"an orphan of another workload":    {workload: newWorkload(berlin), cronAt: newOwn(orphan, otherRestart), want: "reads; Warning CronAtNameConflict CronAt deployment-web already exists and was not created for this Deployment: delete that CronAt.; retries, blocked: true"},
		"an orphan of another kind":        {workload: newWorkload(berlin), cronAt: newOwn(orphan, otherKind), want: "reads; Warning CronAtNameConflict CronAt deployment-web already exists and was not created for this Deployment: delete that CronAt.; retries, blocked: true"},
		"an orphan with a command":         {workload: newWorkload(berlin), cronAt: newOwn(orphan, command), want: "reads; Warning CronAtNameConflict CronAt deployment-web already exists and was not created for this Deployment: delete that CronAt.; retries, blocked: true"},
		"a broken schedule":                {workload: newWorkload(broken), want: `Warning InvalidRestartSchedule annotation cnat.programming-kubernetes.info/restart-schedule "0 25 * * *" is invalid: hour "25": write numbers from 0 to 23, ranges such as 1-4, steps such as */2, lists such as 1,3, or *`},
		"removed, without the label":       {workload: newWorkload(nil), cronAt: newOwn(unlabelled)},
		"broken, without the label":        {workload: newWorkload(broken), cronAt: newOwn(unlabelled), want: `Warning InvalidRestartSchedule annotation cnat.programming-kubernetes.info/restart-schedule "0 25 * * *" is invalid: hour "25": write numbers from 0 to 23, ranges such as 1-4, steps such as */2, lists such as 1,3, or *`},
		"broken after a valid one":         {workload: newWorkload(broken), cronAt: newOwn(), want: "reads; deletes; Normal SuccessfulDelete Deleted CronAt deployment-web"},
		"broken while it is suspended":     {workload: newWorkload(broken), cronAt: newOwn(suspended), want: `Warning InvalidRestartSchedule annotation cnat.programming-kubernetes.info/restart-schedule "0 25 * * *" is invalid: hour "25": write numbers from 0 to 23, ranges such as 1-4, steps such as */2, lists such as 1,3, or *`},
		"suspended by annotation later":    {workload: newWorkload(frozen), cronAt: newOwn(), want: "reads; updates to 0 3 * * 1-5 Europe/Berlin suspended by annotation; Normal SuccessfulUpdate Updated CronAt deployment-web"},
		"suspended by annotation, again":   {workload: newWorkload(frozen), cronAt: newOwn(byAnnotation)},
		"and resumed by hand": {
			workload: newWorkload(frozen), cronAt: newOwn(byAnnotation, func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = ptr.To(false) }),
			want: "reads; updates to 0 3 * * 1-5 Europe/Berlin suspended by annotation; Normal SuccessfulUpdate Updated CronAt deployment-web",
		},
		"and the annotation is removed":    {workload: newWorkload(berlin), cronAt: newOwn(byAnnotation), want: "reads; updates to 0 3 * * 1-5 Europe/Berlin; Normal SuccessfulUpdate Updated CronAt deployment-web"},
		"by annotation and before by hand": {workload: newWorkload(frozen), cronAt: newOwn(suspended)},
		"by hand, the annotation is false": {workload: newWorkload(annotated(workdays, zone, "false")), cronAt: newOwn(suspended)},
		"suspended without a schedule":     {workload: newWorkload(annotated("", "", "true"))},
		"neither true nor false":           {workload: newWorkload(annotated(workdays, zone, "yes")), want: `Warning InvalidRestartSchedule annotation cnat.programming-kubernetes.info/restart-suspend "yes" is invalid: write true or false`},
		"removed while it is suspended":    {workload: newWorkload(nil), cronAt: newOwn(suspended), want: "reads; deletes; Normal SuccessfulDelete Deleted CronAt deployment-web"},
		"a schedule of leap days":          {workload: newWorkload(annotated("0 0 29 2 *", "", "")), want: "reads; creates 0 0 29 2 * UTC; Normal SuccessfulCreate Created CronAt deployment-web"},
		"an unknown zone":                  {workload: newWorkload(annotated(workdays, "Europe/Berln", "")), want: `Warning InvalidRestartSchedule annotation cnat.programming-kubernetes.info/restart-time-zone "Europe/Berln" is unknown: write a name from the IANA time zone database, such as Europe/Berlin`},
		"a zone alone":                     {workload: newWorkload(annotated("", zone, "")), want: `Warning InvalidRestartSchedule annotation cnat.programming-kubernetes.info/restart-time-zone requires annotation cnat.programming-kubernetes.info/restart-schedule: write a cron expression, such as "0 3 * * 1-5"`},
	} {
		t.Run(name, func(t *testing.T) {
			w := World{Kind: v1alpha1.RestartDeployment, Now: now}
			if tc.workload != nil {
				w.Workload = Keep(tc.workload)
			}
			if tc.cronAt != nil {
				w.CronAt = cronplan.KeepCronAt(tc.cronAt)
			}
			d, reads := Decide(w), ""
			if NeedsLive(w, d) {
				w.CronAt, w.IsLive = tc.cronAt, true
				d, reads = Decide(w), "reads; "
			}
			if got := reads + describe(d); got != tc.want {
				t.Errorf("\n got %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"no answer":   {err: errors.New("connection reset"), want: "retries, blocked: false"},
		"a quota":     {err: apierrors.NewForbidden(v1alpha1.Resource("cronats"), "deployment-web", errors.New("exceeded quota")), want: `Warning CronAtRefused cronats.cnat.programming-kubernetes.info "deployment-web" is forbidden: exceeded quota; retries, blocked: true`},
		"a webhook's": {err: &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusBadRequest, Message: "denied"}}, want: "Warning CronAtRefused denied; retries, blocked: true"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := describe(Refused(tc.err)); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
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
		{v1alpha1.RestartDaemonSet, "log.agent", "daemonset-log.agent"},
		{v1alpha1.RestartDeployment, strings.Repeat("a", 41), "deployment-" + strings.Repeat("a", 41)},
		{v1alpha1.RestartDeployment, strings.Repeat("a", 42), "deployment-" + strings.Repeat("a", 30) + "-f81b625e16"},
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
		apiVersion, kind string
		controller, want bool
	}{
		"a StatefulSet":                 {"apps/v1", "StatefulSet", true, true},
		"a DaemonSet of a version":      {"apps/v2", "DaemonSet", true, true},
		"not as the controller":         {"apps/v1", "Deployment", false, false},
		"a ReplicaSet":                  {"apps/v1", "ReplicaSet", true, false},
		"a Deployment of another group": {"example.com/v1", "Deployment", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			owner := metav1.OwnerReference{APIVersion: tc.apiVersion, Kind: tc.kind, Name: "web", Controller: &tc.controller}
			kind, workload, ok := Owner(newOwn(func(cronAt *v1alpha1.CronAt) { cronAt.OwnerReferences = []metav1.OwnerReference{owner} }))
			if ok != tc.want || ok && (string(kind) != tc.kind || workload != "web") {
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
