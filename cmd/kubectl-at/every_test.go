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
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

func getCronAt(t *testing.T, w *world, name string) *v1alpha1.CronAt {
	t.Helper()
	cronAt, err := w.cnat.CnatV1alpha1().CronAts("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return cronAt
}

func TestEvery(t *testing.T) {
	runs := func(spec v1alpha1.RunSpec) v1alpha1.AtTemplateSpec { return v1alpha1.AtTemplateSpec{Spec: spec} }
	for name, tc := range map[string]struct {
		args  []string
		stdin string
		// expectations
		spec   v1alpha1.CronAtSpec
		stderr string
	}{
		"a command line": {
			args:   []string{"0 3 * * *", "--tz=Europe/Berlin", "--", "date; echo YAY"},
			spec:   v1alpha1.CronAtSpec{Schedule: "0 3 * * *", TimeZone: ptr.To("Europe/Berlin"), AtTemplate: runs(v1alpha1.RunSpec{Command: "date; echo YAY"})},
			stderr: "runs next Sat 28 Mar 2026 03:00:00 CET (02:00Z), in 12h\n",
		},
		"words, and lines of standard input": {
			args: []string{"*/20", "*", "*", "--tz=UTC", "*", "1-5"}, stdin: "a\nb\n",
			spec:   v1alpha1.CronAtSpec{Schedule: "*/20 * * * 1-5", TimeZone: ptr.To("UTC"), AtTemplate: runs(v1alpha1.RunSpec{Command: "a\nb"})},
			stderr: "runs next Fri 27 Mar 2026 14:20:00 UTC, in 20m\n",
		},
		"all of its fields": {
			args: []string{
				"@every 90m", "--tz=UTC", "--concurrency=Forbid", "--starting-deadline=1h", "--spread=0", "--successful-history=0", "--failed-history=5",
				"--retries=2", "--active-deadline=10m", "--ttl=1d", "--node=n", "--labels=a=b", "--", "x",
			},
			spec: v1alpha1.CronAtSpec{
				Schedule: "@every 90m", TimeZone: ptr.To("UTC"), ConcurrencyPolicy: v1alpha1.ForbidConcurrent,
				StartingDeadlineSeconds: ptr.To[int64](3600), SpreadSeconds: ptr.To[int32](0),
				SuccessfulAtsHistoryLimit: ptr.To[int32](0), FailedAtsHistoryLimit: ptr.To[int32](5),
				AtTemplate: v1alpha1.AtTemplateSpec{
					Metadata: v1alpha1.AtTemplateMeta{Labels: map[string]string{"a": "b"}},
					Spec: v1alpha1.RunSpec{
						Command: "x", Node: "n", BackoffLimit: ptr.To[int32](2), ActiveDeadlineSeconds: ptr.To[int64](600), TTLSecondsAfterFinished: ptr.To[int32](86400),
					},
				},
			},
			stderr: "runs next Fri 27 Mar 2026 15:30:00 UTC, in 1h30m\n",
		},
		"suspended": {
			args:   []string{"@daily", "--tz=UTC", "--suspend", "--", "x"},
			spec:   v1alpha1.CronAtSpec{Schedule: "@daily", TimeZone: ptr.To("UTC"), Suspend: ptr.To(true), AtTemplate: runs(v1alpha1.RunSpec{Command: "x"})},
			stderr: "suspended: nothing starts until kubectl at resume cronat/cronat\n",
		},
		"a schedule that may be misread": {
			args: []string{"*/90\u00a00 1  * 1 ", "--tz=UTC", "--", "x"},
			spec: v1alpha1.CronAtSpec{Schedule: "*/90 0 1 * 1", TimeZone: ptr.To("UTC"), AtTemplate: runs(v1alpha1.RunSpec{Command: "x"})},
			stderr: "minute */90 means minute 0 of each hour, not every 90 minutes: for that, write \"@every 90m\"\n" +
				"day of month 1 and day of week 1: it runs on each day that matches one of them, not only on days that match both\n" +
				"runs next Mon 30 Mar 2026 00:00:00 UTC, in 2d10h\n",
		},
		"its own schedule, the Pod of a CronJob": {
			args: []string{"@daily", "--tz=UTC", "--from=cronjob/backup"},
			spec: v1alpha1.CronAtSpec{Schedule: "@daily", TimeZone: ptr.To("UTC"), AtTemplate: runs(v1alpha1.RunSpec{Template: &corev1.PodTemplateSpec{
				Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Image: "backup:1"}}},
			}, BackoffLimit: ptr.To[int32](6)})},
			stderr: "Copied backoffLimit 6, and the deadline and the TTL if there are any, unless --retries, --active-deadline or --ttl set others.\n" +
				"cronjob/backup still runs, if the cluster has it: suspend it with kubectl patch cronjob/backup -p '{\"spec\":{\"suspend\":true}}'\nruns next Sat 28 Mar 2026 00:00:00 UTC, in 10h\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.stdin)
			w.kube = kubefake.NewSimpleClientset(newCronJob(nil))
			if code := w.run(t, append([]string{"every", "--name=cronat"}, tc.args...)...); code != 0 {
				t.Fatalf("exit code %d: %s", code, w.stderr.String())
			}
			if want := "cronat.cnat.programming-kubernetes.info/cronat created\n"; w.stdout.String() != want {
				t.Errorf("stdout %q, want %q", w.stdout.String(), want)
			}
			if w.stderr.String() != tc.stderr {
				t.Errorf("stderr %q, want %q", w.stderr.String(), tc.stderr)
			}
			if diff := cmp.Diff(tc.spec, getCronAt(t, w, "cronat").Spec); diff != "" {
				t.Errorf("the spec (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUsageOfEvery(t *testing.T) {
	for name, tc := range map[string]struct {
		args   []string
		stderr string
	}{
		"no schedule":         {[]string{"--", "x"}, `there is no schedule, and only a CronJob`},
		"no schedule to copy": {[]string{"--from=job/x"}, "as in kubectl at every @daily --from job/x"},
		"none in a file":      {[]string{"-f", "testdata/copy/podtemplate.yaml"}, "there is no schedule, and only a CronJob or a CronAt has one"},
		"an empty schedule":   {[]string{"", "--from=cronjob/x"}, "there is no schedule"},
		"a wrong field":       {[]string{"0 25 * * *", "--", "x"}, `schedule "0 25 * * *" is invalid: hour "25": write numbers from 0 to 23`},
		"too few fields":      {[]string{"0", "3", "--", "x"}, `schedule "0 3" is invalid: it does not have five fields: write minute, hour`},
		"not in quotes":       {[]string{"0", "3", "README.md", "*", "*", "--", "x"}, `day of month "README.md": write numbers from 1 to 31, ranges such as 2-5, steps such as */2, lists such as 2,4, or *. Write the schedule in quotes`},
		"too often":           {[]string{"@every 30s", "--", "x"}, `schedule "@every 30s" is invalid: the duration is too short: write "@every 1m" or longer`},
		"never":               {[]string{"0 0 30 2 *", "--", "x"}, "has no time within the next five years"},
		"a zone in it":        {[]string{"TZ=UTC 0 3 * * *", "--", "x"}, "has a time zone: name it with --tz"},
		"no command":          {[]string{"@daily"}, "there is no command"},
		"a wrong policy":      {[]string{"@daily", "--concurrency=never", "--", "x"}, `--concurrency is "never": it must be Allow, Forbid, Replace`},
		"an empty policy":     {[]string{"@daily", "--concurrency=", "--", "x"}, `--concurrency is ""`},
		"waiting":             {[]string{"@daily", "--wait", "--", "x"}, "unknown flag: --wait"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "")
			code := w.run(t, append([]string{"every", "--tz=UTC"}, tc.args...)...)
			if code != exitUsage || !strings.Contains(w.stderr.String(), tc.stderr) || len(w.cnat.Actions()) > 0 {
				t.Errorf("exit code %d, want %d; stderr %q, want %q; requests: %v", code, exitUsage, w.stderr.String(), tc.stderr, w.cnat.Actions())
			}
		})
	}
}

func TestDryRunOfEvery(t *testing.T) {
	w := newWorld(t, "")
	w.now = func() time.Time { return time.Date(2026, 3, 28, 11, 0, 0, 0, time.UTC) }
	args := []string{"every", "30 2 * * *", "--tz=Europe/Berlin", "--spread=5m", "--dry-run=client", "-o", "jsonpath={.kind} {.spec.timeZone}", "--", "x"}
	want := "would run next Sun 29 Mar 2026 03:00:00 CEST (01:00Z), in 14h, plus a delay of less than 5m\n"
	if code := w.run(t, args...); code != 0 || w.stdout.String() != "CronAt Europe/Berlin" || w.stderr.String() != want || len(w.cnat.Actions()) > 0 {
		t.Errorf("exit code %d; stdout %q; stderr %q, want %q; requests: %v", code, w.stdout.String(), w.stderr.String(), want, w.cnat.Actions())
	}
}

func newCronJob(change func(*batchv1.CronJob)) *batchv1.CronJob {
	cronJob := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "backup"}}
	cronJob.Spec.Schedule = "0 3 * * *"
	cronJob.Spec.JobTemplate.Spec.Template.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Image: "backup:1"}}}
	if change != nil {
		change(cronJob)
	}
	return cronJob
}

func TestMigrate(t *testing.T) {
	const (
		stillRuns = "cronjob/backup still runs, if the cluster has it: suspend it with kubectl patch cronjob/backup -p '{\"spec\":{\"suspend\":true}}'\n"
		noZone    = "The CronJob has no time zone and uses that of the cluster's controller manager. The CronAt uses UTC: if that is wrong, specify the time zone with --tz.\n"
		limits    = "Copied backoffLimit 6, and the deadline and the TTL if there are any, unless --retries, --active-deadline or --ttl set others.\n"
	)
	full := func(cronJob *batchv1.CronJob) {
		cronJob.Spec.TimeZone = ptr.To("Asia/Kolkata")
		cronJob.Spec.StartingDeadlineSeconds = ptr.To[int64](60)
		cronJob.Spec.ConcurrencyPolicy = batchv1.ReplaceConcurrent
		cronJob.Spec.Suspend = ptr.To(true)
		cronJob.Spec.SuccessfulJobsHistoryLimit, cronJob.Spec.FailedJobsHistoryLimit = ptr.To[int32](2), ptr.To[int32](0)
		cronJob.Spec.JobTemplate.ObjectMeta = metav1.ObjectMeta{Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}}
		job := &cronJob.Spec.JobTemplate.Spec
		job.BackoffLimit, job.ActiveDeadlineSeconds, job.TTLSecondsAfterFinished = ptr.To[int32](4), ptr.To[int64](600), ptr.To[int32](7)
		job.Parallelism, job.Completions = ptr.To[int32](1), ptr.To[int32](1)
	}
	template := &corev1.PodTemplateSpec{Spec: newCronJob(nil).Spec.JobTemplate.Spec.Template.Spec}
	for name, tc := range map[string]struct {
		args    []string
		cronJob func(*batchv1.CronJob)
		// expectations
		name   string
		spec   v1alpha1.CronAtSpec
		stderr string
	}{
		"the minimum": {
			name:   "backup",
			spec:   v1alpha1.CronAtSpec{Schedule: "0 3 * * *", TimeZone: ptr.To("UTC"), AtTemplate: v1alpha1.AtTemplateSpec{Spec: v1alpha1.RunSpec{Template: template, BackoffLimit: ptr.To[int32](6)}}},
			stderr: limits + noZone + stillRuns + "runs next Sat 28 Mar 2026 08:45:00 +0545 (03:00Z), in 13h\n",
		},
		"all fields": {
			args: []string{"--suspend=false"}, cronJob: full, name: "backup",
			spec: v1alpha1.CronAtSpec{
				Schedule: "0 3 * * *", TimeZone: ptr.To("Asia/Kolkata"), Suspend: ptr.To(false), StartingDeadlineSeconds: ptr.To[int64](60),
				ConcurrencyPolicy: v1alpha1.ReplaceConcurrent, SuccessfulAtsHistoryLimit: ptr.To[int32](2), FailedAtsHistoryLimit: ptr.To[int32](0),
				AtTemplate: v1alpha1.AtTemplateSpec{
					Metadata: v1alpha1.AtTemplateMeta{Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}},
					Spec:     v1alpha1.RunSpec{Template: template, BackoffLimit: ptr.To[int32](4), ActiveDeadlineSeconds: ptr.To[int64](600), TTLSecondsAfterFinished: ptr.To[int32](7)},
				},
			},
			stderr: "Copied backoffLimit 4, and the deadline and the TTL if there are any, unless --retries, --active-deadline or --ttl set others.\n" +
				"runs next Sat 28 Mar 2026 03:15:00 +0545 (Fri 27 Mar 21:30Z, Sat 28 Mar 2026 03:00:00 Asia/Kolkata), in 7h30m\n",
		},
		"flags": {
			args: []string{
				"--tz=Europe/Berlin", "--name=another", "--concurrency=Allow", "--starting-deadline=0", "--successful-history=3", "--failed-history=1",
				"--retries=0", "--active-deadline=1h", "--ttl=0", "--", "x",
			},
			cronJob: func(cronJob *batchv1.CronJob) { full(cronJob); cronJob.Spec.TimeZone = nil }, name: "another",
			spec: v1alpha1.CronAtSpec{
				Schedule: "0 3 * * *", TimeZone: ptr.To("Europe/Berlin"), Suspend: ptr.To(true), StartingDeadlineSeconds: ptr.To[int64](0),
				ConcurrencyPolicy: v1alpha1.AllowConcurrent, SuccessfulAtsHistoryLimit: ptr.To[int32](3), FailedAtsHistoryLimit: ptr.To[int32](1),
				AtTemplate: v1alpha1.AtTemplateSpec{
					Metadata: v1alpha1.AtTemplateMeta{Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}},
					Spec:     v1alpha1.RunSpec{Command: "x", Template: template, BackoffLimit: ptr.To[int32](0), ActiveDeadlineSeconds: ptr.To[int64](3600), TTLSecondsAfterFinished: ptr.To[int32](0)},
				},
			},
			stderr: "Copied backoffLimit 4, and the deadline and the TTL if there are any, unless --retries, --active-deadline or --ttl set others.\n" +
				"suspended: nothing starts until kubectl at resume cronat/another\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "")
			t.Setenv("TZ", "Asia/Kathmandu")
			w.kube = kubefake.NewSimpleClientset(newCronJob(tc.cronJob))
			if code := w.run(t, append([]string{"every", "--from=cj/backup"}, tc.args...)...); code != 0 {
				t.Fatalf("exit code %d: %s", code, w.stderr.String())
			}
			if w.stderr.String() != tc.stderr {
				t.Errorf("stderr:\n%swant:\n%s", w.stderr.String(), tc.stderr)
			}
			if diff := cmp.Diff(tc.spec, getCronAt(t, w, tc.name).Spec); diff != "" {
				t.Errorf("the spec (-want +got):\n%s", diff)
			}
		})
	}
}

func TestZoneName(t *testing.T) {
	local := time.Local
	t.Cleanup(func() { time.Local = local })
	time.Local = time.FixedZone("Local", 3600)
	for tz, want := range map[string]string{"Europe/Berlin": "Europe/Berlin", "UTC": "UTC", "Europe/Berln": "$TZ", "/none": "the name of your time zone is unknown"} {
		t.Setenv("TZ", tz)
		name, err := (&cli{}).zoneName()
		if got := name + fmt.Sprint(err); !strings.Contains(got, want) {
			t.Errorf("TZ=%s: got %q and %v, want %s", tz, name, err, want)
		}
	}
}

func TestLocalZone(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "zoneinfo", "Europe", "Berlin"), filepath.Join(dir, "localtime")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	local := time.FixedZone("Local", 3600)
	for path, want := range map[string]string{link: "Europe/Berlin", file: "Europe/Berlin", dir: "", "/none": ""} {
		if got := localZone(path, local); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
	if got := localZone("/none", time.UTC); got != "UTC" {
		t.Errorf("without a file: got %q, want UTC", got)
	}
}

// TestEveryOverridesZone: --tz also applies to a schedule that is copied with a zone.
func TestEveryOverridesZone(t *testing.T) {
	o := &every{run: &run{cli: &cli{tz: "Europe/Berlin"}}}
	spec := v1alpha1.CronAtSpec{TimeZone: ptr.To("Asia/Tokyo")}
	if err := o.setZone(&spec, false, "CronJob"); err != nil || *spec.TimeZone != "Europe/Berlin" {
		t.Errorf("zone %q, error %v, want Europe/Berlin", *spec.TimeZone, err)
	}
}
