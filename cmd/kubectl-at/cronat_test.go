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

package main

import (
	"math"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

func newCronAt(name string, change func(*v1alpha1.CronAt)) *v1alpha1.CronAt {
	cronAt := &v1alpha1.CronAt{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "cronat-uid", CreationTimestamp: metav1.NewTime(now.AddDate(0, 0, -1))},
		Spec: v1alpha1.CronAtSpec{
			Schedule: "0 3 * * *", TimeZone: ptr.To("Europe/Berlin"), ConcurrencyPolicy: v1alpha1.ForbidConcurrent,
			AtTemplate: v1alpha1.AtTemplateSpec{
				Metadata: v1alpha1.AtTemplateMeta{Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}},
				Spec:     v1alpha1.RunSpec{Command: "echo YAY", BackoffLimit: ptr.To[int32](2)},
			},
		},
		Status: v1alpha1.CronAtStatus{
			LastScheduleTime: ptr.To(metav1.NewTime(now.Add(-12 * time.Hour))), NextScheduleTime: ptr.To(metav1.NewTime(now.Add(12 * time.Hour))),
			ObservedSchedule: &v1alpha1.ObservedSchedule{Schedule: "0 3 * * *", TimeZone: "Europe/Berlin", Since: metav1.NewTime(now.AddDate(0, 0, -1))},
		},
	}
	if change != nil {
		change(cronAt)
	}
	return cronAt
}

// lines returns a text without the spaces used for alignment.
func lines(text string) []string {
	var all []string
	for line := range strings.Lines(text) {
		all = append(all, strings.Join(strings.Fields(line), " "))
	}
	return all
}

func TestListOfCronAts(t *testing.T) {
	const header = "NAME SCHEDULE TIMEZONE NEXT IN LAST ACTIVE REASON COMMAND"
	ats := []string{"NAME WHEN IN PHASE REASON COMMAND", "at 2026-03-28 09:12:00 UTC in 19h12m PENDING - echo YAY"}
	cronAts := []string{
		header,
		"cronat/new 0 3 * * * UTC - - - 0 NoController echo YAY",
		"cronat/suspended 0 3 * * * Europe/Berlin - - 12h ago 0 Suspended echo YAY",
		"cronat/backup 0 3 * * * Europe/Berlin 2026-03-28 02:00:00 UTC in 12h 12h ago 1 - echo YAY",
	}
	objects := []runtime.Object{
		newCronAt("backup", func(cronAt *v1alpha1.CronAt) { cronAt.Status.Active = 1 }),
		newCronAt("new", func(cronAt *v1alpha1.CronAt) { cronAt.Status, cronAt.Spec.TimeZone = v1alpha1.CronAtStatus{}, nil }),
		newCronAt("suspended", func(cronAt *v1alpha1.CronAt) {
			cronAt.Labels = map[string]string{"a": "b"}
			cronAt.Status.NextScheduleTime, cronAt.Status.Reason = nil, v1alpha1.ReasonSuspended
			cronAt.Annotations = map[string]string{v1alpha1.AnnotationRequester: "alice"}
			cronAt.Status.Conditions, cronAt.Status.RehearsedAt = rehearsedAs(v1alpha1.ReasonContainerStarted, time.Hour)
		}),
	}
	notKnown := apierrors.NewGenericServerResponse(http.StatusNotFound, "list", v1alpha1.Resource("cronats"), "", "", 0, true)
	forbidden := apierrors.NewForbidden(v1alpha1.Resource("cronats"), "", nil)
	for name, tc := range map[string]struct {
		args    []string
		objects []runtime.Object
		err     error // of the list of CronAts
		// expectations
		stdout []string
		stderr string
		code   int
	}{
		"both":               {objects: append(objects, newAt("at", nil)), stdout: append(append(ats, ""), cronAts...)},
		"CronAts only":       {objects: objects, stdout: cronAts},
		"Ats only":           {objects: []runtime.Object{newAt("at", nil)}, stdout: ats},
		"names, of Ats only": {args: []string{"-o", "name"}, objects: append(objects, newAt("at", nil)), stdout: []string{"at.cnat.programming-kubernetes.info/at"}},
		"wide": {args: []string{"-l", "a=b", "-o", "wide"}, objects: objects, stdout: []string{
			header + " REHEARSED REQUESTER", "cronat/suspended 0 3 * * * Europe/Berlin - - 12h ago 0 Suspended echo YAY ContainerStarted, 1h ago alice",
		}},
		"no CRD of CronAts":     {objects: []runtime.Object{newAt("at", nil)}, err: notKnown, stdout: ats},
		"CronAts are forbidden": {objects: []runtime.Object{newAt("at", nil)}, err: forbidden, stdout: ats, stderr: "Cannot list CronAts: .* forbidden: .*\n"},
		"no connection":         {objects: []runtime.Object{newAt("at", nil)}, err: errRefused, stderr: "error: .*\n.*\n", code: exitError},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "", tc.objects...)
			if tc.err != nil {
				w.cnat.PrependReactor("list", "cronats", func(kubetesting.Action) (bool, runtime.Object, error) { return true, nil, tc.err })
			}
			code := w.run(t, append([]string{"list", "--tz=UTC"}, tc.args...)...)
			if code != tc.code || !regexp.MustCompile("^"+tc.stderr+"$").MatchString(w.stderr.String()) {
				t.Errorf("exit code %d, want %d; stderr %q, want %q", code, tc.code, w.stderr.String(), tc.stderr)
			}
			if diff := cmp.Diff(tc.stdout, lines(w.stdout.String())); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestShowCronAt(t *testing.T) {
	cronAt := newCronAt("backup", func(cronAt *v1alpha1.CronAt) {
		cronAt.Spec.StartingDeadlineSeconds, cronAt.Spec.SpreadSeconds = ptr.To[int64](60), ptr.To[int32](0)
		cronAt.Spec.AtTemplate.Spec.ActiveDeadlineSeconds = ptr.To[int64](math.MaxInt64)
		cronAt.Status.Reason, cronAt.Status.Message = v1alpha1.ReasonAtBlocked, "At x is blocked."
		cronAt.Annotations = map[string]string{v1alpha1.AnnotationRequester: "alice"}
		cronAt.Status.Missed = &v1alpha1.MissedTimes{Count: 2, Last: metav1.NewTime(now.Add(-36 * time.Hour))}
	})
	owned := newAt("backup-manual-abcde", func(at *v1alpha1.At) {
		done(v1alpha1.ReasonCommandFailed, 7)(at)
		at.OwnerReferences = []metav1.OwnerReference{{UID: cronAt.UID}}
	})
	w := newWorld(t, "", cronAt, owned, newAt("another", nil))
	if code := w.run(t, "show", "cronat/backup", "--tz=Europe/Berlin"); code != 0 {
		t.Fatalf("exit code %d: %s", code, w.stderr.String())
	}
	want := []string{
		"Name cronat/backup", "Namespace default", "Requester alice", "Command echo YAY", "Limits at most 2 further attempts, starts at most 1m late, runs at most 106751d23h",
		"Schedule 0 3 * * *, Europe/Berlin", "Policy Forbid, keeps 3 succeeded and 1 failed",
		"Next Sat 28 Mar 2026 03:00:00 CET (02:00Z), in 12h", "Sun 29 Mar 2026 03:00:00 CEST (01:00Z), in 1d11h", "Mon 30 Mar 2026 03:00:00 CEST (01:00Z), in 2d11h",
		"Active 0", "State AtBlocked", "Why At x is blocked.", "Last 12h ago", "Missed 2, the last 1d12h ago",
		"Ats", "NAME WHEN IN PHASE REASON COMMAND EXIT POD NODE REHEARSED REQUESTER",
		"backup-manual-abcde 2026-03-28 10:12:00 CET in 19h12m DONE CommandFailed echo YAY 7 - - - -",
	}
	if diff := cmp.Diff(want, lines(w.stdout.String())); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestChangeCronAt(t *testing.T) {
	suspended := func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = ptr.To(true) }
	for name, tc := range map[string]struct {
		args   []string
		before func(*v1alpha1.CronAt)
		// expectations
		after          func(*v1alpha1.CronAt) // nil: it is deleted
		stdout, stderr string
	}{
		"suspend": {args: []string{"suspend", "cronat/backup"}, after: suspended, stdout: "suspended\n", stderr: "suspended: nothing starts until kubectl at resume cronat/backup\n"},
		"resume": {
			args: []string{"resume", "cronats/backup", "--tz=UTC"}, before: suspended, after: func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = ptr.To(false) },
			stdout: "resumed\n", stderr: "runs next Sat 28 Mar 2026 02:00:00 UTC (Sat 28 Mar 2026 03:00:00 Europe/Berlin), in 12h\n",
		},
		"client dry run": {args: []string{"suspend", "cronat/backup", "--dry-run=client"}, after: func(*v1alpha1.CronAt) {}, stdout: "suspended (dry run)\n", stderr: "suspended: .*\n"},
		"rm":             {args: []string{"rm", "cronat/backup"}, stdout: "deleted\n"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "", newCronAt("backup", tc.before))
			code := w.run(t, tc.args...)
			if stdout := "cronat.cnat.programming-kubernetes.info/backup " + tc.stdout; code != 0 || w.stdout.String() != stdout {
				t.Fatalf("exit code %d; stdout %q, want %q; stderr %q", code, w.stdout.String(), stdout, w.stderr.String())
			}
			if !regexp.MustCompile("^" + strings.NewReplacer("(", `\(`, ")", `\)`).Replace(tc.stderr) + "$").MatchString(w.stderr.String()) {
				t.Errorf("stderr %q, want %q", w.stderr.String(), tc.stderr)
			}
			got, err := w.cnat.CnatV1alpha1().CronAts("default").Get(t.Context(), "backup", metav1.GetOptions{})
			if tc.after == nil {
				if !apierrors.IsNotFound(err) {
					t.Errorf("got %v and %v, want it to be gone", got, err)
				}
			} else if diff := cmp.Diff(newCronAt("backup", tc.after), got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestResumeAnnotated resumes a CronAt that is suspended by the annotation of its workload,
// which the controller would undo.
func TestResumeAnnotated(t *testing.T) {
	w := newWorld(t, "", newCronAt("deployment-web", func(cronAt *v1alpha1.CronAt) {
		cronAt.Spec.Suspend = ptr.To(true)
		cronAt.Labels = map[string]string{v1alpha1.AnnotationRestartSuspend: "true"}
		cronAt.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "web", Controller: ptr.To(true)}}
	}))
	code := w.run(t, "resume", "cronat/deployment-web")
	want := "cronat/deployment-web is suspended by the annotation of its workload: run kubectl annotate deployment web -n default cnat.programming-kubernetes.info/restart-suspend-"
	if code == 0 || !strings.Contains(w.stderr.String(), want) {
		t.Errorf("exit code %d, stderr %q, want %q", code, w.stderr.String(), want)
	}
}

// TestRunCronAt runs a suspended CronAt manually.
func TestRunCronAt(t *testing.T) {
	w := newWorld(t, "", newCronAt("backup", func(cronAt *v1alpha1.CronAt) {
		cronAt.Annotations = map[string]string{v1alpha1.AnnotationRequester: "alice"}
		cronAt.Spec.Suspend, cronAt.Spec.StartingDeadlineSeconds = ptr.To(true), ptr.To[int64](60)
	}))
	code := w.run(t, "run-now", "cronat/backup", "--tz=UTC")
	stdout := regexp.MustCompile(`^at\.cnat\.programming-kubernetes\.info/(backup-manual-[a-z0-9]{5}) created\n$`).FindStringSubmatch(w.stdout.String())
	if stderr := "runs Fri 27 Mar 2026 14:00:00 UTC, at once\n"; code != 0 || stdout == nil || w.stderr.String() != stderr {
		t.Fatalf("exit code %d; stdout %q; stderr %q, want %q", code, w.stdout.String(), w.stderr.String(), stderr)
	}
	got, err := w.cnat.CnatV1alpha1().Ats("default").Get(t.Context(), stdout[1], metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := &v1alpha1.At{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: stdout[1],
			Labels:          map[string]string{"a": "b"},
			Annotations:     map[string]string{"c": "d", "cnat.programming-kubernetes.info/instantiate": "manual"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "cnat.programming-kubernetes.info/v1alpha1", Kind: "CronAt", Name: "backup", UID: "cronat-uid"}},
		},
		Spec: v1alpha1.AtSpec{Schedule: "2026-03-27T14:00:00Z", RunSpec: v1alpha1.RunSpec{Command: "echo YAY", BackoffLimit: ptr.To[int32](2)}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestErrorsOfCronAts(t *testing.T) {
	notKnown := apierrors.NewGenericServerResponse(http.StatusNotFound, "post", v1alpha1.Resource("cronats"), "", "", 0, true)
	for name, tc := range map[string]struct {
		args   []string
		err    error // of all requests for CronAts
		stderr string
		code   int
	}{
		"a CronAt without its kind": {[]string{"show", "backup"}, nil, `error: there is no At "backup", but there is a CronAt: write cronat/backup`, exitError},
		"to be removed":             {[]string{"rm", "backup"}, nil, `write cronat/backup`, exitError},
		"to be suspended":           {[]string{"suspend", "backup"}, nil, `write cronat/backup`, exitError},
		"an At that does not exist": {[]string{"show", "none"}, nil, `kubectl at list --all shows those`, exitError},
		"the same, without CronAts": {[]string{"show", "none"}, notKnown, `kubectl at list --all shows those`, exitError},
		"one that does not exist":   {[]string{"show", "cronat/none"}, nil, `kubectl at list --all shows those`, exitError},
		"another kind":              {[]string{"show", "cronjob/backup"}, nil, `"cronjob/backup" is not a name: write NAME or at/NAME for an At, cronat/NAME for a CronAt`, exitUsage},
		"the output of all":         {[]string{"logs", "cronat/backup"}, nil, "write the name of one of its Ats, as shown by kubectl at show cronat/backup, or", exitUsage},
		"another time":              {[]string{"move", "cronat/backup", "now"}, nil, "change its schedule with kubectl edit cronat/backup", exitUsage},
		"a name that is taken":      {[]string{"every", "@daily", "--tz=UTC", "--name=backup", "--", "x"}, nil, "remove the other one with kubectl at rm cronat/NAME", exitError},
		"no CRD":                    {[]string{"every", "@daily", "--tz=UTC", "--", "x"}, notKnown, "The cluster does not know cronats: cnat is not installed, or too old. Install it with", exitError},
		"following with a dry run":  {[]string{"run-now", "cronat/backup", "--wait", "--dry-run=client"}, nil, "--wait cannot be used with --dry-run=client", exitUsage},
		"the output of a restart":   {[]string{"run-now", "cronat/restart", "--logs"}, nil, "use --wait", exitUsage},
		"the output of a moved one": {[]string{"run-now", "restart", "--logs"}, nil, "use --wait", exitUsage},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "", newCronAt("backup", nil),
				newCronAt("restart", func(cronAt *v1alpha1.CronAt) { cronAt.Spec.AtTemplate.Spec.Restart = &v1alpha1.AtRestart{} }),
				newAt("restart", func(at *v1alpha1.At) { at.Spec.Restart = &v1alpha1.AtRestart{} }))
			if tc.err != nil {
				w.cnat.PrependReactor("*", "cronats", func(kubetesting.Action) (bool, runtime.Object, error) { return true, nil, tc.err })
			}
			code := w.run(t, tc.args...)
			if code != tc.code || !strings.Contains(w.stderr.String(), tc.stderr) {
				t.Errorf("exit code %d, want %d; stderr %q, want %q", code, tc.code, w.stderr.String(), tc.stderr)
			}
		})
	}
}
