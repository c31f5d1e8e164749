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
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	ics "github.com/arran4/golang-ical"
	gocmp "github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

func cronJobAt(name, schedule string) *batchv1.CronJob {
	return &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-of-" + name), CreationTimestamp: metav1.NewTime(now.AddDate(0, 0, -1))},
		Spec: batchv1.CronJobSpec{Schedule: schedule, JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "clean:1"}}},
		}}}},
	}
}

// ended is an At that ran for a period, with an exit code.
func ended(name string, began time.Duration, took time.Duration, exitCode int32, labels map[string]string) *v1alpha1.At {
	reason := v1alpha1.ReasonCompleted
	if exitCode != 0 {
		reason = v1alpha1.ReasonCommandFailed
	}
	return newAt(name, func(at *v1alpha1.At) {
		done(reason, exitCode)(at)
		at.Labels = labels
		at.Status.StartTime, at.Status.CompletionTime = ptr.To(metav1.NewTime(now.Add(began))), ptr.To(metav1.NewTime(now.Add(began+took)))
	})
}

func TestAgenda(t *testing.T) {
	blocked := func(message string) []metav1.Condition {
		return []metav1.Condition{{Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionTrue, Reason: "r", Message: message}}
	}
	const header = "TIME IN NAME NOTE"
	observed := func(cronAt *v1alpha1.CronAt) { cronAt.Status.LastScheduleTime = nil }
	for name, tc := range map[string]struct {
		args     []string
		objects  []runtime.Object
		cronJobs []runtime.Object
		// expectations
		stdout []string
		stderr string
		code   int
	}{
		"nothing": {stderr: "Nothing starts until 2026-03-28 14:00:00 UTC.\n"},
		"Ats, each time of CronAts and CronJobs, in order of time": {
			objects:  []runtime.Object{newAt("at", nil), newCronAt("backup", observed), newAt("later", func(at *v1alpha1.At) { at.Spec.Schedule = "2026-03-28T14:00:01Z" })},
			cronJobs: []runtime.Object{cronJobAt("clean", "0 20,21 * * *")},
			stdout: []string{
				header,
				"2026-03-27 20:00:00 UTC in 6h cronjob/clean -",
				"2026-03-27 21:00:00 UTC in 7h cronjob/clean -",
				"2026-03-28 02:00:00 UTC in 12h cronat/backup -",
				"2026-03-28 09:12:00 UTC in 19h12m at/at -",
			},
		},
		"the end is included, wide": {
			args: []string{"--until", "2026-03-28 09:12 UTC", "-o", "wide"}, objects: []runtime.Object{newAt("at", nil)},
			stdout: []string{header + " COMMAND", "2026-03-28 09:12:00 UTC in 19h12m at/at - echo YAY"},
		},
		"more than hourly is one row": {
			args: []string{"--until", "2h"},
			objects: []runtime.Object{newCronAt("often", func(cronAt *v1alpha1.CronAt) {
				observed(cronAt)
				cronAt.Spec.Schedule, cronAt.Status.ObservedSchedule.Schedule = "*/20 * * * *", "*/20 * * * *"
			})},
			cronJobs: []runtime.Object{cronJobAt("hourly", "30 * * * *")},
			stdout: []string{
				header, "2026-03-27 14:20:00 UTC in 20m cronat/often again and again: */20 * * * *",
				"2026-03-27 14:30:00 UTC in 30m cronjob/hourly -", "2026-03-27 15:30:00 UTC in 1h30m cronjob/hourly -",
			},
		},
		"what is known": {
			objects: []runtime.Object{
				newAt("blocked", func(at *v1alpha1.At) {
					at.Spec.Schedule, at.Status.Conditions = "2026-03-27T13:00:00Z", blocked("no quota")
				}),
				newAt("retries", func(at *v1alpha1.At) {
					at.Status = v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning, Failed: 2, NextAttemptTime: ptr.To(metav1.NewTime(now.Add(time.Minute)))}
				}),
				newAt("runs", func(at *v1alpha1.At) { at.Status = v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning} }),
				newAt("suspended", func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) }),
				newAt("would-fail", func(at *v1alpha1.At) { at.Status.Conditions = blocked("If it were due now: no Secret") }),
				newAt(plan.ChildName("at", "n1"), func(at *v1alpha1.At) {
					at.Spec.Node = "n1"
					at.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(newAt("at", nil), v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.AtKind))}
				}),
				newCronAt("backup", func(cronAt *v1alpha1.CronAt) { observed(cronAt); cronAt.Spec.Suspend = ptr.To(true) }),
			},
			cronJobs: []runtime.Object{func() *batchv1.CronJob {
				job := cronJobAt("off", "0 15,16 * * *")
				job.Spec.Suspend = ptr.To(true)
				return job
			}()},
			stdout: []string{
				header,
				"2026-03-27 13:00:00 UTC 1h ago at/blocked blocked: no quota",
				"2026-03-27 14:01:00 UTC in 1m at/retries tried again: 2 failed",
				"2026-03-27 15:00:00 UTC in 1h cronjob/off suspended",
				"2026-03-28 02:00:00 UTC in 12h cronat/backup suspended",
				"2026-03-28 09:12:00 UTC in 19h12m at/suspended suspended",
				"2026-03-28 09:12:00 UTC in 19h12m at/would-fail would fail: If it were due now: no Secret",
			},
		},
		"Freezes: an At waits, a CronAt skips the time, and a CronJob knows nothing of it": {
			objects: []runtime.Object{
				newAt("at", nil), newCronAt("backup", observed), newAt("later", func(at *v1alpha1.At) { at.Spec.Schedule = "2026-03-28T13:00:00Z" }),
				&v1alpha1.Freeze{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "night"},
					Spec:       v1alpha1.FreezeSpec{Reason: "ask #ops", Windows: []v1alpha1.FreezeWindow{{From: "2026-03-27T20:00:00Z", Until: "2026-03-28T12:00:00Z"}}},
				},
			},
			cronJobs: []runtime.Object{cronJobAt("clean", "0 21 * * *")},
			stdout: []string{
				header,
				"2026-03-27 21:00:00 UTC in 7h cronjob/clean -",
				"2026-03-28 02:00:00 UTC in 12h cronat/backup skipped: Freeze night holds until 2026-03-28T12:00:00Z: ask #ops",
				"2026-03-28 09:12:00 UTC in 19h12m at/at waits: Freeze night holds until 2026-03-28T12:00:00Z: ask #ops",
				"2026-03-28 13:00:00 UTC in 23h at/later -",
			},
		},
		"the run before takes longer": {
			args: []string{"--until", "2d"},
			objects: []runtime.Object{
				newCronAt("backup", observed), ended("backup-1", -30*time.Hour, 25*time.Hour, 0, map[string]string{v1alpha1.LabelCronAtUID: "cronat-uid"}),
			},
			stdout: []string{header, "2026-03-28 02:00:00 UTC in 12h cronat/backup -", "2026-03-29 01:00:00 UTC in 1d11h cronat/backup may overlap: the last run took 1d1h"},
		},
		"the end before now": {
			args: []string{"--until", "2026-03-26 10:00"}, code: exitUsage,
			stderr: "error: the agenda ends at 2026-03-26 10:00:00 UTC, before it begins: for what has run, write kubectl at agenda --since 12h\n",
		},
		"no time":                      {args: []string{"--until", "whenever"}, code: exitUsage, stderr: "error: --until is \"whenever\": .* A duration such as 12h is possible, too\n.*"},
		"exit code of what is to come": {args: []string{"--exit-code"}, code: exitUsage, stderr: "error: --exit-code is about what has run: set --since, too\n"},
		"no format":                    {args: []string{"-o", "xml"}, code: exitUsage, stderr: "error: unable to match a printer suitable for the output format \"xml\", allowed formats are: go-template,go-template-file,json,jsonpath,jsonpath-as-json,jsonpath-file,kyaml,template,templatefile,yaml, or ics, wide. Other formats: kubectl get at -o FORMAT\n"},
		"no label":                     {args: []string{"-l", "=="}, code: exitUsage, stderr: "error: --selector is \"==\": .*\n"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.objects...)
			w.kube = kubefake.NewSimpleClientset(tc.cronJobs...)
			code := w.run(t, append([]string{"agenda", "--tz=UTC"}, tc.args...)...)
			wantOutput(t, w, code, tc.code, tc.stdout, tc.stderr)
		})
	}
}

// wantOutput compares what a command has printed. stderr is a regular expression.
func wantOutput(t *testing.T, w *world, code, wantCode int, stdout []string, stderr string) {
	t.Helper()
	if code != wantCode || !regexp.MustCompile("(?s)^"+stderr+"$").MatchString(w.stderr.String()) {
		t.Errorf("exit code %d, want %d; stderr %q, want %q", code, wantCode, w.stderr.String(), stderr)
	}
	if diff := gocmp.Diff(stdout, lines(w.stdout.String())); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestAgendaSince(t *testing.T) {
	job := func(name string, condition batchv1.JobConditionType, reason, message string) *batchv1.Job {
		return &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: name, UID: "job-uid",
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "CronJob", Name: "clean", Controller: ptr.To(true)}},
			},
			Status: batchv1.JobStatus{
				StartTime:  ptr.To(metav1.NewTime(now.Add(-3 * time.Hour))),
				Conditions: []batchv1.JobCondition{{Type: condition, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now.Add(-2 * time.Hour))}},
			},
		}
	}
	stranger := job("stranger", batchv1.JobComplete, "", "")
	stranger.OwnerReferences = nil
	const header = "TIME TOOK NAME REASON EXIT MESSAGE"
	objects := []runtime.Object{
		ended("ok", -5*time.Hour, time.Minute, 0, nil), ended("failed", -4*time.Hour, 90*time.Second, 3, nil), ended("before", -20*time.Hour, time.Minute, 0, nil),
		newAt("runs", func(at *v1alpha1.At) {
			at.Status = v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning, StartTime: ptr.To(metav1.NewTime(now.Add(-20 * time.Hour)))}
		}),
		newAt("late", func(at *v1alpha1.At) {
			at.Status = v1alpha1.AtStatus{Phase: v1alpha1.PhaseDone, Reason: v1alpha1.ReasonStartingDeadlineExceeded, Conditions: []metav1.Condition{{
				Type: v1alpha1.ConditionFailed, Status: metav1.ConditionTrue, Message: "It did not run.", LastTransitionTime: metav1.NewTime(now.Add(-time.Hour)),
			}}}
		}),
		newAt("pending", nil),
	}
	failed := []string{
		"2026-03-27 10:00:00 UTC 1m30s at/failed CommandFailed 3 told",
		"2026-03-27 11:00:00 UTC 1h job/bad BackoffLimitExceeded - Job has reached the limit",
		"2026-03-27 13:00:00 UTC - at/late StartingDeadlineExceeded - It did not run.",
	}
	for name, tc := range map[string]struct {
		args []string
		err  error // of the list of Jobs
		// expectations
		stdout []string
		stderr string
		code   int
	}{
		"what failed is first": {
			args: []string{"--since", "12h"},
			stdout: append(append([]string{header}, failed...), "2026-03-26 18:00:00 UTC - at/runs RUNNING - -",
				"2026-03-27 09:00:00 UTC 1m at/ok Completed 0 told", "2026-03-27 11:00:00 UTC 1h job/good Complete - -"),
		},
		"a period": {
			args:   []string{"--since", "2026-03-26 17:00", "--until", "2026-03-26 20:00 UTC"},
			stdout: []string{header, "2026-03-26 18:00:00 UTC 1m at/before Completed 0 told", "2026-03-26 18:00:00 UTC - at/runs RUNNING - -"},
		},
		"exit code, and nothing has failed": {
			args:   []string{"--since", "2026-03-26 17:00", "--until", "2026-03-26 20:00 UTC", "--exit-code"},
			stdout: []string{header, "2026-03-26 18:00:00 UTC 1m at/before Completed 0 told", "2026-03-26 18:00:00 UTC - at/runs RUNNING - -"},
		},
		"exit code": {
			args:   []string{"--since", "70m", "--exit-code", "--no-headers"},
			stdout: []string{failed[2], "2026-03-26 18:00:00 UTC - at/runs RUNNING - -"},
			stderr: "error: at/late has failed: StartingDeadlineExceeded\n", code: exitFailed,
		},
		"nothing":            {args: []string{"--since", "1m", "-l", "a=b"}, stderr: "Nothing has run since 2026-03-27 13:59:00 UTC, or it has been removed.\n"},
		"Jobs are forbidden": {args: []string{"--since", "70m", "--no-headers"}, err: apierrors.NewForbidden(batchv1.Resource("jobs"), "", nil), stdout: []string{failed[2], "2026-03-26 18:00:00 UTC - at/runs RUNNING - -"}, stderr: "Cannot list jobs: .*\n"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, objects...)
			kube := kubefake.NewSimpleClientset(job("bad", batchv1.JobFailed, "BackoffLimitExceeded", "Job has reached the limit"), job("good", batchv1.JobComplete, "", ""), stranger)
			if tc.err != nil {
				kube.PrependReactor("list", "jobs", func(kubetesting.Action) (bool, runtime.Object, error) { return true, nil, tc.err })
			}
			w.kube = kube
			code := w.run(t, append([]string{"agenda", "--tz=UTC"}, tc.args...)...)
			wantOutput(t, w, code, tc.code, tc.stdout, tc.stderr)
		})
	}
}

// TestAgendaFormats tests the formats for programs: JSON with the names that scripts use, and a
// calendar that a public parser of RFC 5545 reads.
func TestAgendaFormats(t *testing.T) {
	at := newAt("at", func(at *v1alpha1.At) { at.Spec.Command = strings.Repeat("echo 'a, b; c\\d' ü\n", 10) })
	w := newWorld(t, at)
	if code := w.run(t, "agenda", "--tz=UTC", "-o", "json"); code != 0 {
		t.Fatal(w.stderr.String())
	}
	var document map[string]any
	if err := json.Unmarshal(w.stdout.Bytes(), &document); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": "Agenda", "from": "2026-03-27T14:00:00Z", "until": "2026-03-28T14:00:00Z",
		"starts": []any{map[string]any{"time": "2026-03-28T09:12:00Z", "kind": "At", "namespace": "default", "name": "at", "command": commandOf(&at.Spec.RunSpec)}},
	}
	if diff := gocmp.Diff(want, document); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	var got []string
	for _, args := range [][]string{{"agenda", "-o", "ics"}, {"agenda", "-o", "ics", "--since", "12h"}} {
		w := newWorld(t, at, ended("night", -2*time.Hour, time.Hour, 1, nil))
		if code := w.run(t, args...); code != 0 {
			t.Fatal(w.stderr.String())
		}
		for line := range strings.SplitSeq(w.stdout.String(), "\r\n") {
			if len(line) > 75 {
				t.Errorf("a line of %d octets, RFC 5545 allows 75: %q", len(line), line)
			}
		}
		got = append(got, eventsOf(t, &w.stdout)...)
	}
	wantEvents := []string{
		fmt.Sprintln("2026-03-28 09:12:00 +0000 UTC 0s at/at (default)", commandOf(&at.Spec.RunSpec)),
		"2026-03-27 12:00:00 +0000 UTC 1h0m0s at/night (default) CommandFailed\ntold\necho YAY\n",
	}
	if diff := gocmp.Diff(wantEvents, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// eventsOf returns the events of a calendar, as a public parser reads them.
func eventsOf(t *testing.T, text io.Reader) (events []string) {
	t.Helper()
	calendar, err := ics.ParseCalendar(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, event := range calendar.Events() {
		start, startErr := event.GetStartAt()
		end, endErr := event.GetEndAt()
		if err := cmp.Or(startErr, endErr); err != nil {
			t.Fatal(err)
		}
		events = append(events, fmt.Sprintln(start, end.Sub(start), event.GetProperty(ics.ComponentPropertySummary).Value, event.GetProperty(ics.ComponentPropertyDescription).Value))
	}
	return events
}

// TestAgendaOfMany expects 10,000 CronAts of each minute in well under two seconds, without the
// requests.
func TestAgendaOfMany(t *testing.T) {
	cronAts := make([]*v1alpha1.CronAt, 10_000)
	for i := range cronAts {
		cronAts[i] = newCronAt(fmt.Sprint("c", i), func(cronAt *v1alpha1.CronAt) {
			cronAt.Spec.Schedule, cronAt.Status.ObservedSchedule.Schedule = "* * * * *", "* * * * *"
		})
	}
	if starts := startsOf(nil, cronAts, nil, nil, now, now.Add(24*time.Hour)); len(starts) != len(cronAts) {
		t.Errorf("%d starts", len(starts))
	}
}
