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
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	kubefake "k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/fake"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

var now = time.Date(2026, 3, 27, 14, 0, 0, 0, time.UTC)

// world is a command line with fake clients.
type world struct {
	*cli
	stdout, stderr bytes.Buffer
	cnat           *fake.Clientset
}

func newWorld(t *testing.T, stdin string, ats ...runtime.Object) *world {
	t.Helper()
	t.Setenv("KUBECONFIG", "/none")
	w := &world{cnat: fake.NewSimpleClientset(ats...)}
	w.cli = &cli{
		IOStreams: genericiooptions.IOStreams{In: strings.NewReader(stdin), Out: &w.stdout, ErrOut: &w.stderr},
		config:    genericclioptions.NewConfigFlags(true),
		now:       func() time.Time { return now },
		kube:      kubefake.NewSimpleClientset(),
	}
	w.cli.cnat = w.cnat
	w.getter = fakeServer{getter{w.config}, w}
	return w
}

func (w *world) run(t *testing.T, args ...string) int {
	t.Helper()
	return execute(t.Context(), w.command(), args)
}

func newAt(name string, change func(*v1alpha1.At)) *v1alpha1.At {
	at := &v1alpha1.At{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "uid", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		Spec:       v1alpha1.AtSpec{Schedule: "2026-03-28T10:12:00+01:00", RunSpec: v1alpha1.RunSpec{Command: "echo YAY"}},
		Status:     v1alpha1.AtStatus{Phase: v1alpha1.PhasePending},
	}
	if change != nil {
		change(at)
	}
	return at
}

func done(reason string, exitCode int32) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) {
		condition := v1alpha1.ConditionFailed
		if reason == v1alpha1.ReasonCompleted {
			condition = v1alpha1.ConditionComplete
		}
		at.Status = v1alpha1.AtStatus{
			Phase: v1alpha1.PhaseDone, Reason: reason, Message: "told", ExitCode: &exitCode,
			Conditions: []metav1.Condition{{Type: condition, Status: metav1.ConditionTrue, Reason: reason}},
		}
	}
}

func TestCreate(t *testing.T) {
	for name, tc := range map[string]struct {
		args  []string
		stdin string
		// expectations
		spec v1alpha1.AtSpec
	}{
		"a command line": {
			args: []string{"2026-03-28T10:12:00+01:00", "--", "date; echo YAY"},
			spec: v1alpha1.AtSpec{Schedule: "2026-03-28T10:12:00+01:00", RunSpec: v1alpha1.RunSpec{Command: "date; echo YAY"}},
		},
		"words, flags between them": {
			args: []string{"now", "--retries=2", "+", "2", "--tz=Europe/Berlin", "hours", "--suspend", "--", "echo", "a b"},
			spec: v1alpha1.AtSpec{Schedule: "2026-03-27T17:00:00+01:00", Suspend: ptr.To(true), RunSpec: v1alpha1.RunSpec{Command: "echo 'a b'", BackoffLimit: ptr.To[int32](2)}},
		},
		"lines of standard input": {
			args: []string{"now", "--tz=UTC"}, stdin: "a\n\n  b\n\n",
			spec: v1alpha1.AtSpec{Schedule: "2026-03-27T14:00:00Z", RunSpec: v1alpha1.RunSpec{Command: "a\n\n  b"}},
		},
		"a script with an interpreter": {
			args: []string{"now", "--tz=utc"}, stdin: "#!/usr/bin/env python3\nprint('a')\n",
			spec: v1alpha1.AtSpec{Schedule: "2026-03-27T14:00:00Z", RunSpec: v1alpha1.RunSpec{Command: "exec /usr/bin/env python3 /dev/stdin <<'END'\n#!/usr/bin/env python3\nprint('a')\nEND"}},
		},
		"a script as Windows writes it": {
			args: []string{"now", "--tz=utc"}, stdin: "\ufeff#!/bin/bash\r\necho a\r\n\r\n",
			spec: v1alpha1.AtSpec{Schedule: "2026-03-27T14:00:00Z", RunSpec: v1alpha1.RunSpec{Command: "exec /bin/bash /dev/stdin <<'END'\n#!/bin/bash\necho a\nEND"}},
		},
		"limits": {
			args: []string{"now", "--tz=UTC", "--active-deadline=1h", "--starting-deadline=0", "--ttl=7d", "--", "x"},
			spec: v1alpha1.AtSpec{
				Schedule:                "2026-03-27T14:00:00Z",
				StartingDeadlineSeconds: ptr.To[int64](0),
				RunSpec:                 v1alpha1.RunSpec{Command: "x", ActiveDeadlineSeconds: ptr.To[int64](3600), TTLSecondsAfterFinished: ptr.To[int32](604800)},
			},
		},
		"an image": {
			args: []string{"now", "--tz=UTC", "--image=shop:1", "--env=A=b=c", "--", "x"},
			spec: v1alpha1.AtSpec{Schedule: "2026-03-27T14:00:00Z", RunSpec: v1alpha1.RunSpec{Command: "x", Template: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy:                corev1.RestartPolicyNever,
				AutomountServiceAccountToken: ptr.To(false),
				EnableServiceLinks:           ptr.To(false),
				SecurityContext:              &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
				Containers: []corev1.Container{{
					Name: "command", Image: "shop:1", Env: []corev1.EnvVar{{Name: "A", Value: "b=c"}},
					SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false)},
				}},
			}}}},
		},
		"an image, and its program": {
			args: []string{"now", "--tz=UTC", "--image=shop:1", "--", "/shop", "$(HOME)", "$HOME"},
			spec: v1alpha1.AtSpec{Schedule: "2026-03-27T14:00:00Z", RunSpec: v1alpha1.RunSpec{Template: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy:                corev1.RestartPolicyNever,
				AutomountServiceAccountToken: ptr.To(false),
				EnableServiceLinks:           ptr.To(false),
				SecurityContext:              &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
				Containers: []corev1.Container{{
					Name: "command", Image: "shop:1", Command: []string{"/shop", "$$(HOME)", "$HOME"},
					SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false)},
				}},
			}}}},
		},
		"an image, and arguments for its program": {
			args: []string{"now", "--tz=UTC", "--image=shop:1", "--env=A=b", "--args", "--", "migrate up"},
			spec: v1alpha1.AtSpec{Schedule: "2026-03-27T14:00:00Z", RunSpec: v1alpha1.RunSpec{Template: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy:                corev1.RestartPolicyNever,
				AutomountServiceAccountToken: ptr.To(false),
				EnableServiceLinks:           ptr.To(false),
				SecurityContext:              &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
				Containers: []corev1.Container{{
					Name: "command", Image: "shop:1", Args: []string{"migrate up"}, Env: []corev1.EnvVar{{Name: "A", Value: "b"}},
					SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false)},
				}},
			}}}},
		},
		"another container than that of the annotation": {
			args:  []string{"now", "--tz=UTC", "-f", "-", "--container=a", "--", "x"},
			stdin: `{apiVersion: v1, kind: Pod, metadata: {annotations: {kubectl.kubernetes.io/default-container: b}}, spec: {containers: [{name: b, image: b}, {name: a, image: a}]}}`,
			spec: v1alpha1.AtSpec{Schedule: "2026-03-27T14:00:00Z", RunSpec: v1alpha1.RunSpec{Command: "x", Template: &corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{plan.DefaultContainer: "a"}},
				Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "a", Image: "a"}, {Name: "b", Image: "b"}}},
			}}},
		},
		"the main container of a template": {
			args: []string{"now", "--tz=UTC", "-f", "-", "--env=A=b", "--env-from=secret/s", "--env-from=cm/c", "--service-account=sa", "--", "x", "y"},
			stdin: `{apiVersion: v1, kind: Pod, metadata: {annotations: {kubectl.kubernetes.io/default-container: b}},
				spec: {serviceAccount: old, serviceAccountName: old, containers: [{name: a, image: a}, {name: b, image: b, args: [z]}]}}`,
			spec: v1alpha1.AtSpec{Schedule: "2026-03-27T14:00:00Z", RunSpec: v1alpha1.RunSpec{Template: &corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{plan.DefaultContainer: "b"}},
				Spec: corev1.PodSpec{
					RestartPolicy: corev1.RestartPolicyNever, ServiceAccountName: "sa",
					Containers: []corev1.Container{
						{
							Name: "b", Image: "b", Command: []string{"x", "y"}, Env: []corev1.EnvVar{{Name: "A", Value: "b"}},
							EnvFrom: []corev1.EnvFromSource{
								{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}},
								{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "c"}}},
							},
						},
						{Name: "a", Image: "a"},
					},
				},
			}}},
		},
		"a template and a command": {
			args: []string{"now", "--tz=UTC", "-f", "-", "--", "x"}, stdin: "{apiVersion: v1, kind: Pod, spec: {containers: [{name: a, image: b}]}}",
			spec: v1alpha1.AtSpec{Schedule: "2026-03-27T14:00:00Z", RunSpec: v1alpha1.RunSpec{Command: "x", Template: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "a", Image: "b"}},
			}}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.stdin)
			if code := w.run(t, append([]string{"--name=at"}, tc.args...)...); code != 0 {
				t.Fatalf("exit code %d: %s", code, w.stderr.String())
			}
			if want := "at.cnat.programming-kubernetes.info/at created\n"; w.stdout.String() != want {
				t.Errorf("stdout %q, want %q", w.stdout.String(), want)
			}
			at, err := w.cnat.CnatV1alpha1().Ats("default").Get(t.Context(), "at", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.spec, at.Spec, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("the spec (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	for name, tc := range map[string]struct {
		args   []string
		stderr string
	}{
		"no time":             {[]string{"--", "x"}, "there is no time"},
		"no command":          {[]string{"now"}, "there is no command"},
		"an empty command":    {[]string{"now", "--", ""}, "there is no command"},
		"no time, but a flag": {[]string{"--wait"}, "there is no time"},
		"no time, but a command on standard input": {nil, "there is no time"},
		"an empty command with a template":         {[]string{"now", "--from=cronjob/x", "--", ""}, "there is no command"},
		"nothing after --":                         {[]string{"now", "--"}, "there is no command"},
		"not a time":                               {[]string{"soon", "--", "x"}, "soon\n^^^^"},
		"a mistyped command":                       {[]string{"lst"}, `"lst" is neither a time nor a command: did you mean kubectl at list?`},
		"a shortened command":                      {[]string{"expl", "noon"}, "did you mean kubectl at explain?"},
		"a word for another command":               {[]string{"start", "backup"}, `"start" is neither a time nor a command: did you mean kubectl at run-now?`},
		"a word for two commands":                  {[]string{"-n", "shop", "stop", "backup"}, `did you mean kubectl at rm or suspend?`},
		"a forgotten --":                           {[]string{"tomorrow", "10:12", "echo", "hello"}, `"echo" is not part of a time: write -- before a command, as in kubectl at TIME`},
		"a forgotten --, flags before":             {[]string{"--tz", "America/New_York", "--image", "shop:1", "tomorrow", "10:12", "./migrate"}, `error: "./migrate" is not part of a time: write -- before a command, as in kubectl at TIME [flags] -- COMMAND` + "\n"},
		"a forgotten --, another's namespace":      {[]string{"now", "kubectl", "-n", "shop", "delete", "pod", "x"}, `error: "kubectl" is not part of a time: write -- before a command, as in kubectl at TIME [flags] -- COMMAND` + "\n"},
		"a forgotten --, a flag of both":           {[]string{"now", "echo", "-n", "hello"}, `error: "echo" is not part of a time: write -- before a command, as in kubectl at TIME`},
		"a forgotten --, an unknown flag":          {[]string{"tomorrow", "10:12", "rm", "-rf", "/tmp/x"}, `error: "rm" is not part of a time: write -- before a command, as in kubectl at TIME`},
		"a forgotten --, a bad value":              {[]string{"now", "ls", "-la"}, `error: "ls" is not part of a time: write -- before a command, as in kubectl at TIME`},
		"a forgotten --, no value":                 {[]string{"now", "read", "-n"}, `error: "read" is not part of a time: write -- before a command, as in kubectl at TIME`},
		"a forgotten --, help":                     {[]string{"tomorrow", "10:12", "pg_dump", "-h", "db", "shop"}, `error: "pg_dump" is not part of a time: write -- before a command, as in kubectl at TIME`},
		"a forgotten --, flags in one word":        {[]string{"2am -name x"}, `"-name" is not part of a time`},
		"an abbreviation as a zone":                {[]string{"10:12", "--tz=est", "--", "x"}, `error: --tz is "est": an abbreviation can mean several zones, so write a name such as America/New_York`},
		"an unknown zone":                          {[]string{"10:12", "--tz=Europe/Berln", "--", "x"}, `error: --tz is "Europe/Berln": write a name from the IANA time zone database, such as Europe/Berlin`},
		"the same in one word":                     {[]string{"now + 2 h ./migrate up"}, `"./migrate" is not part of a time`},
		"a misspelled time":                        {[]string{"10:12", "tomorow"}, `error: "tomorow" is not part of a time`},
		"a foreign zone":                           {[]string{"10:12", "PST", "--tz=UTC"}, `error: "PST" is not in force in UTC then`},
		"a day that does not exist":                {[]string{"31", "feb"}, `error: "31 feb" is not a date`},
		"an amount":                                {[]string{"5m"}, `error: "5m" is neither a time of day nor a sum`},
		"a letter":                                 {[]string{"q"}, `error: "q" is not understood`},
		"soon":                                     {[]string{"soon"}, `error: "soon" is not understood: write a time`},
		"wait and dry run":                         {[]string{"now", "--wait", "--dry-run=client", "--", "x"}, "--wait cannot be used with --dry-run=client"},
		"timeout alone":                            {[]string{"now", "--timeout=1s", "--", "x"}, "require --wait or --logs"},
		"a bad dry run":                            {[]string{"now", "--dry-run=maybe", "--", "x"}, "must be none, client or server"},
		"two templates":                            {[]string{"now", "--from=job/x", "-f", "-"}, "remove one of the two"},
		"a bad source":                             {[]string{"now", "--from=service/x"}, `--from is "service/x": write cronjob/NAME, job/NAME, pod/NAME or deployment/NAME`},
		"a container of nothing":                   {[]string{"now", "-c", "x", "--", "x"}, "add --from or -f, or remove it"},
		"a container that does not exist":          {[]string{"now", "-f", "testdata/copy/pod-written.yaml", "-c", "x", "--", "x"}, `--container is "x", but -f testdata/copy/pod-written.yaml has no such container: choose one of tidy, log`},
		"arguments of nothing":                     {[]string{"now", "--args", "--", "x"}, "add --from, -f or --image, or remove it"},
		"no arguments":                             {[]string{"now", "--image=x", "--args"}, "there are no arguments for --args: write them after --"},
		"arguments of a command":                   {[]string{"now", "-f", "testdata/copy/cronjob-onfailure.yaml", "--args", "--", "x"}, "the arguments of the container nightly are in its command: write the whole COMMAND after --, without --args"},
		"another namespace":                        {[]string{"-n", "a", "now", "-f", "testdata/copy/cronjob-limits.yaml"}, `its namespace is "shop", but --namespace is "a": write the same one, or remove --namespace`},
		"a bad environment":                        {[]string{"now", "--env=A", "--", "x"}, "write NAME=VALUE"},
		"another source of an environment":         {[]string{"now", "--env-from=pod/x", "--", "x"}, "write secret/NAME or configmap/NAME"},
		"a bad service account":                    {[]string{"now", "--service-account=A", "--", "x"}, `--service-account is "A"`},
		"bad labels":                               {[]string{"now", "--labels=a", "--", "x"}, "write NAME=VALUE, separated by commas"},
		"a dry run without a value":                {[]string{"now", "--dry-run", "--", "x"}, `--dry-run is "empty": it must be none, client or server`},
		"a bad output of a list":                   {[]string{"list", "-o", "xml"}, ",yaml, or wide. Other formats: "},
		"an output of kubectl get":                 {[]string{"list", "-o", "custom-columns=A:.b"}, "Other formats: kubectl get at -o FORMAT"},
		"a bad selector of a list":                 {[]string{"list", "-l", "a=b=c"}, `--selector is "a=b=c"`},
		"a list of one":                            {[]string{"get", "backup"}, "a list has no names: write kubectl at show backup\n"},
		"nothing to remove":                        {[]string{"rm"}, "error: write kubectl at rm NAME|cronat/NAME... [flags]: see kubectl at rm --help\n"},
		"no time to move to":                       {[]string{"move", "x"}, "error: write kubectl at move NAME TIME [flags]: see kubectl at move --help\n"},
		"two to show":                              {[]string{"show", "x", "y"}, "error: write kubectl at show NAME|cronat/NAME [flags]: see"},
		"a schedule without its own":               {[]string{"-n", "shop", "every", "--from=job/a"}, "as in kubectl at -n shop every @daily --from job/a"},
		"a wait without a unit":                    {[]string{"wait", "cronat/x", "--timeout", "10"}, "write whole seconds, such as 90s, 1h30m or 7d: see kubectl at wait --help\n"},
		"no field":                                 {[]string{"now", "--bakoff=3", "--", "x"}, "unknown flag: --bakoff: see kubectl at --help\n"},
		"a past year":                              {[]string{"2025-12-24T10:12:00Z", "--past", "--", "x"}, "2025-12-24T10:12:00Z is 93d3h ago, so the controller takes it for a mistake: write now instead, or add --starting-deadline"},
		"a rehearsal of what runs at once":         {[]string{"now", "--rehearse", "--", "x"}, "--rehearse is for a run that is due in more than a minute"},
		"a rehearsal of what runs soon":            {[]string{"now", "+", "1", "minute", "--rehearse", "--check", "--", "x"}, "remove --rehearse, or choose a later time"},
		"attempts from 1":                          {[]string{"logs", "x", "--attempt=-1"}, "the first one is 1"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "")
			if code := w.run(t, tc.args...); code != exitUsage || !strings.Contains(w.stderr.String(), tc.stderr) {
				t.Errorf("exit code %d, want %d; stderr %q, want %q", code, exitUsage, w.stderr.String(), tc.stderr)
			}
			if len(w.cnat.Actions()) > 0 {
				t.Errorf("requests: %v", w.cnat.Actions())
			}
		})
	}
}

func TestDryRun(t *testing.T) {
	for name, tc := range map[string]struct {
		args      []string
		namespace string
		stderr    string
	}{
		"no namespace":    {[]string{"now + 1 h"}, "", "would run Fri 27 Mar 2026 15:00:00 UTC, in 1h\n"},
		"a namespace":     {[]string{"now + 1 h", "-n", "default"}, "default", "would run Fri 27 Mar 2026 15:00:00 UTC, in 1h\n"},
		"a zone in words": {[]string{"20:00 Asia/Kolkata"}, "", "would run Fri 27 Mar 2026 14:30:00 UTC (Fri 27 Mar 2026 20:00:00 Asia/Kolkata), in 30m\n"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "")
			args := append(tc.args, "--tz=UTC", "--dry-run=client", "-o", "jsonpath={.metadata.namespace}", "--", "x")
			if code := w.run(t, args...); code != 0 || w.stdout.String() != tc.namespace || w.stderr.String() != tc.stderr {
				t.Errorf("exit code %d; stdout %q, want %q; stderr %q, want %q", code, w.stdout.String(), tc.namespace, w.stderr.String(), tc.stderr)
			}
		})
	}
}

func TestListOfNone(t *testing.T) {
	w := newWorld(t, "")
	if code := w.run(t, "list", "-o", "json"); code != 0 || !strings.Contains(w.stdout.String(), `"items": []`) {
		t.Errorf("exit code %d, stdout %s", code, w.stdout.String())
	}
}

// TestEmptyCommand checks that an empty argument is not replaced by a command on standard
// input.
func TestEmptyCommand(t *testing.T) {
	w := newWorld(t, "echo YAY")
	if code := w.run(t, "now", "--", ""); code != exitUsage || len(w.cnat.Actions()) > 0 {
		t.Errorf("exit code %d, want %d; requests: %v", code, exitUsage, w.cnat.Actions())
	}
}

func TestHelp(t *testing.T) {
	w := newWorld(t, "")
	for _, args := range [][]string{{"-h"}, {"tomorrow", "10:12", "--help"}} {
		w.stdout.Reset()
		if code := w.run(t, args...); code != 0 || !strings.Contains(w.stdout.String(), "Exit codes:") || !strings.Contains(w.stdout.String(), "kubectl at -n NAMESPACE") {
			t.Errorf("%q: exit code %d, stdout %q", args, code, w.stdout.String())
		}
	}
}

// TestInterruptedInput uses a standard input that does not end.
func TestInterruptedInput(t *testing.T) {
	for name, args := range map[string][]string{"a command": {"now"}, "a template": {"now", "-f", "-"}} {
		t.Run(name, func(t *testing.T) {
			in, out := io.Pipe()
			defer func() { _ = out.Close() }()
			w := newWorld(t, "")
			w.In = in
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if code := execute(ctx, w.command(), args); code != exitInterrupted {
				t.Errorf("exit code %d, want %d; stderr %q", code, exitInterrupted, w.stderr.String())
			}
		})
	}
}

// TestCompleteNothing checks that an error of a completion does not control the terminal.
func TestCompleteNothing(t *testing.T) {
	w := newWorld(t, "")
	w.cnat.PrependReactor("list", "*", func(kubetesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("a\x1bb\nc") })
	if code := w.run(t, "__complete", "rm", ""); code != 0 || !strings.Contains(w.stderr.String(), "a b c\n") {
		t.Errorf("exit code %d, stderr %q", code, w.stderr.String())
	}
}

// TestCompleteZone completes a zone.
func TestCompleteZone(t *testing.T) {
	w := newWorld(t, "")
	if code := w.run(t, "__complete", "list", "--tz", "Europe/Berl"); code != 0 || !strings.Contains(w.stdout.String(), "\nEurope/Berlin\n") {
		t.Errorf("exit code %d, stdout %q", code, w.stdout.String())
	}
}

func TestZone(t *testing.T) {
	for tz, want := range map[string]string{"Europe/Berlin": "Europe/Berlin", ":Asia/Kolkata": "Asia/Kolkata", "UTC": "UTC", "": "Local", "/etc/localtime": "Local", "CET-1CEST": "", "Europe/Berln": "", "EST": "", ":MST": "", "CET": ""} {
		t.Setenv("TZ", tz)
		zone, err := (&cli{}).zone()
		if want == "" {
			if err == nil || !strings.Contains(err.Error(), "--tz") {
				t.Errorf("TZ=%s: got %v, %v, want an error that names --tz", tz, zone, err)
			}
		} else if got := nameOf(zone); err != nil || got != want {
			t.Errorf("TZ=%s: got %s, %v, want %s", tz, got, err, want)
		}
	}
}

// nameOf returns the name of a zone. That of time.Local depends on what $TZ was at its first
// use, in whatever test that was.
func nameOf(zone *time.Location) string {
	if zone == time.Local {
		return "Local"
	}
	return zone.String()
}

func TestProtectNumbers(t *testing.T) {
	args := []string{"10:12", "-05:00", "--retries", "-1", "-n", "-1", "--env=A=-1", "-f", "-", "-n", "x", "--", "-1"}
	got := protectNumbers(args)
	want := []string{"10:12", minus + "05:00", "--retries", "-1", "-n", "-1", "--env=A=-1", "-f", "-", "-n", "x", "--", "-1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := text(got[:2]); got != "10:12 -05:00" {
		t.Errorf("the text is %q", got)
	}
}

// TestWait ends a run in each way, while its watch ends, too.
func TestWait(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		end  func(*v1alpha1.At)
		gone bool // the At is deleted instead
		// expectations
		code   int
		stderr string
	}{
		"success":                 {end: done(v1alpha1.ReasonCompleted, 0)},
		"failure":                 {end: done(v1alpha1.ReasonCommandFailed, 7), code: 3, stderr: "error: at/at failed: CommandFailed: told (exit code 7)\n"},
		"failure, passed on":      {args: []string{"--pass-exit-code"}, end: done(v1alpha1.ReasonCommandFailed, 7), code: 7, stderr: "error: at/at failed: CommandFailed: told (exit code 7)\n"},
		"another container fails": {args: []string{"--pass-exit-code"}, end: done(v1alpha1.ReasonPodFailed, 0), code: 3, stderr: "error: at/at failed: PodFailed: told\n"},
		"too late":                {end: done(v1alpha1.ReasonStartingDeadlineExceeded, 0), code: 4, stderr: "error: at/at did not run: StartingDeadlineExceeded: told\n"},
		"deleted":                 {gone: true, code: 1, stderr: "error: at/at was deleted before it ended\n"},
		"timeout":                 {args: []string{"--timeout=1s"}, code: 124, stderr: "error: --timeout has passed: at/at is . It stays scheduled: kubectl at wait at reports its end; kubectl at rm at removes it\n"},
		"failure, whose message has the code": {
			end: func(at *v1alpha1.At) {
				done(v1alpha1.ReasonCommandFailed, 7)(at)
				at.Status.Message = "The command ended with exit code 7."
			},
			code: 3, stderr: "error: at/at failed: CommandFailed: The command ended with exit code 7.\n",
		},
	} {
		t.Run(name, inBubble(func(t *testing.T) {
			t.Helper()
			w := newWorld(t, "")
			watches := 0
			w.cnat.PrependWatchReactor("ats", func(kubetesting.Action) (bool, watch.Interface, error) {
				watches++
				watcher := watch.NewFakeWithChanSize(1, false)
				switch {
				case watches == 1:
					watcher.Stop() // like API servers from time to time
				case tc.gone:
					watcher.Delete(newAt("at", func(at *v1alpha1.At) { at.UID = "" }))
				case tc.end != nil:
					at := newAt("at", tc.end)
					at.UID = ""
					watcher.Modify(at)
				}
				return true, watcher, nil
			})
			code := w.run(t, append([]string{"now", "--name=at", "--wait"}, append(tc.args, "--", "x")...)...)
			_, stderr, _ := strings.Cut(w.stderr.String(), "\n")
			if code != tc.code || stderr != tc.stderr {
				t.Errorf("exit code %d, want %d; stderr %q, want %q", code, tc.code, stderr, tc.stderr)
			}
		}))
	}
}

// TestFollowOther follows a run that another command has created.
func TestFollowOther(t *testing.T) {
	reasons := func(at *v1alpha1.At) {
		at.Status.Reason, at.Status.Message = v1alpha1.ReasonImagePullFailed, "no such image\x1b"
	}
	suspended := func(at *v1alpha1.At) {
		at.Spec.Suspend, at.Status.Reason, at.Status.Message = ptr.To(true), v1alpha1.ReasonSuspended, "spec.suspend is true."
	}
	running := func(at *v1alpha1.At) {
		inPhase(corev1.PodRunning)(at)
		at.Status.StartTime = ptr.To(metav1.NewTime(now.Add(-10 * time.Second)))
	}
	notMounted := func(at *v1alpha1.At) {
		running(at)
		at.Status.Reason, at.Status.Message = v1alpha1.ReasonVolumeNotMounted, "no such volume"
	}
	completed := func(at *v1alpha1.At) {
		done(v1alpha1.ReasonCompleted, 0)(at)
		at.Status.StartTime, at.Status.CompletionTime = ptr.To(metav1.NewTime(now.Add(-10*time.Second))), ptr.To(metav1.NewTime(now))
	}
	moved := func(at *v1alpha1.At) { at.Spec.Schedule = instantOf(at).Add(7 * 24 * time.Hour).Format(time.RFC3339) }
	const tooLong = "error: the run was due a day ago, and there is no --timeout: at/at is PENDING. It stays scheduled: kubectl at wait at reports its end; kubectl at rm at removes it\n"
	for name, tc := range map[string]struct {
		args   string
		before func(*v1alpha1.At)
		states []func(*v1alpha1.At) // between the two
		end    func(*v1alpha1.At)
		code   int
		stderr string
		after  time.Duration // 0: at most a second
	}{
		"success":        {args: "wait at", end: done(v1alpha1.ReasonCompleted, 0)},
		"ended before":   {args: "wait at --pass-exit-code", before: done(v1alpha1.ReasonCommandFailed, 7), code: 7, stderr: "error: at/at failed: CommandFailed: told (exit code 7)\n"},
		"with its log":   {args: "logs at -f", end: done(v1alpha1.ReasonCommandFailed, 7), code: 3, stderr: "error: at/at failed: CommandFailed: told (exit code 7)\n"},
		"success, timed": {args: "wait at", before: running, end: completed},
		"what it waits for": {args: "wait at", before: reasons, states: []func(*v1alpha1.At){reasons, notMounted, suspended, notMounted, running}, end: completed, stderr: "at/at: PENDING, ImagePullFailed: no such image\n" +
			"at/at: RUNNING, VolumeNotMounted: no such volume\nat/at: PENDING, Suspended: spec.suspend is true.\nat/at is suspended: it does not start until kubectl at resume at.\nat/at: RUNNING, VolumeNotMounted: no such volume\n" +
			"at/at: RUNNING for 10s, Pod at-pod Running\nat/at: Completed after 10s\n"},
		"for too long": {args: "logs at -f --timeout=1s", code: 124, stderr: "error: --timeout has passed: at/at is PENDING. It stays scheduled: kubectl at wait at reports its end; kubectl at rm at removes it\n"},
		"while suspended": {
			args: "wait at --timeout=1s -n default", before: suspended, code: 124, stderr: "at/at is suspended: it does not start until kubectl at -n default resume at.\n" +
				"error: --timeout has passed: at/at is PENDING, Suspended: spec.suspend is true. It stays scheduled: kubectl at -n default wait at reports its end; kubectl at -n default rm at removes it\n",
		},
		"for a day":       {args: "wait at", code: 124, after: 19*time.Hour + 12*time.Minute + 24*time.Hour, stderr: tooLong},
		"moved by a week": {args: "wait at", end: moved, code: 124, after: 19*time.Hour + 12*time.Minute + 8*24*time.Hour, stderr: tooLong},
		"a CronAt":        {args: "wait cronat/at", code: 2, stderr: "error: cronat/at is a CronAt: write the name of one of its Ats, as shown by kubectl at show cronat/at, or change its schedule with kubectl edit cronat/at\n"},
		"without an end":  {args: "logs at --timeout=1s", code: 2, stderr: "error: --timeout and --pass-exit-code require -f\n"},
	} {
		t.Run(name, inBubble(func(t *testing.T) {
			t.Helper()
			w := newWorld(t, "", newAt("at", tc.before))
			w.cnat.PrependWatchReactor("ats", func(kubetesting.Action) (bool, watch.Interface, error) {
				watcher := watch.NewFakeWithChanSize(len(tc.states)+1, false)
				for _, state := range tc.states {
					watcher.Modify(newAt("at", state))
				}
				if tc.end != nil {
					watcher.Modify(newAt("at", tc.end))
				}
				return true, watcher, nil
			})
			began := time.Now()
			if code := w.run(t, strings.Fields(tc.args)...); code != tc.code || w.stderr.String() != tc.stderr {
				t.Errorf("exit code %d, want %d; stderr %q, want %q", code, tc.code, w.stderr.String(), tc.stderr)
			}
			if after := time.Since(began).Truncate(2 * time.Second); after != tc.after {
				t.Errorf("it ends after %v, want %v", after, tc.after)
			}
		}))
	}
}

// TestVerdict waits for the preflight of a new object.
func TestVerdict(t *testing.T) {
	for name, tc := range map[string]struct {
		args   string
		reason string
		stderr string // after the line with the time
	}{
		"refused":              {"tomorrow 10:12 --name=at -- x", v1alpha1.ReasonPodRefused, "PodRefused: exceeded quota\n"},
		"accepted":             {"tomorrow 10:12 --name=at -- x", "", ""},
		"for a script":         {"tomorrow 10:12 --name=at -o name -- x", v1alpha1.ReasonPodRefused, ""},
		"a CronAt, refused":    {"every @daily --name=at -- x", v1alpha1.ReasonPodRefused, "PodRefused: exceeded quota\n"},
		"at once, without one": {"now --name=at -- x", v1alpha1.ReasonPodRefused, ""},
	} {
		t.Run(name, inBubble(func(t *testing.T) {
			t.Helper()
			w := newWorld(t, "")
			w.patience = 2 * time.Second
			w.cnat.PrependWatchReactor("*", func(action kubetesting.Action) (bool, watch.Interface, error) {
				watcher := watch.NewFakeWithChanSize(1, false)
				if action.GetResource().Resource == "ats" {
					watcher.Modify(newAt("at", func(at *v1alpha1.At) { at.UID, at.Status.Reason, at.Status.Message = "", tc.reason, "exceeded quota" }))
				} else {
					watcher.Modify(newCronAt("at", func(cronAt *v1alpha1.CronAt) {
						cronAt.UID, cronAt.Status.Reason, cronAt.Status.Message = "", tc.reason, "exceeded quota"
					}))
				}
				return true, watcher, nil
			})
			code := w.run(t, append([]string{"--tz=UTC"}, strings.Fields(tc.args)...)...)
			if _, stderr, _ := strings.Cut(w.stderr.String(), "\n"); code != 0 || stderr != tc.stderr {
				t.Errorf("exit code %d; stderr %q, want %q", code, w.stderr.String(), tc.stderr)
			}
		}))
	}
}

// TestUnanswered interrupts requests, or gets no answer.
func TestUnanswered(t *testing.T) {
	const at, cronAt = ": at/x may have been created: see kubectl at show x\n", ": cronat/x may have been created: see kubectl at show cronat/x\n"
	for name, tc := range map[string]struct {
		args        string
		err         error
		interrupted bool
		code        int
		stderr      string
	}{
		"interrupted":             {"now --name=x -- x", context.Canceled, true, exitInterrupted, "error: interrupted: context canceled" + at},
		"a CronAt, interrupted":   {"every @daily --tz=UTC --name=x -- x", context.Canceled, true, exitInterrupted, "error: interrupted: context canceled" + cronAt},
		"no answer":               {"now --name=x -- x", noAnswer("the API server", requestTimeout), false, exitError, "error: the API server has not answered for 30s" + at},
		"cut":                     {"now --name=x -- x", io.ErrUnexpectedEOF, false, exitError, "error: unexpected EOF" + at},
		"refused":                 {"now --name=x -- x", apierrors.NewBadRequest("no"), false, exitError, "error: no\n"},
		"not connected":           {"now --name=x -- x", errors.New("no such host"), false, exitError, "error: no such host\n"},
		"moved":                   {"move x noon", context.Canceled, true, exitInterrupted, `error: interrupted: Patch "http://fake/apis/cnat.programming-kubernetes.info/v1alpha1/namespaces/default/ats/x?fieldManager=kubectl-at": context canceled: at/x may have been changed: see kubectl at show x` + "\n"},
		"suspended, no answer":    {"suspend x", noAnswer("the API server", requestTimeout), false, exitError, `error: Patch "http://fake/apis/cnat.programming-kubernetes.info/v1alpha1/namespaces/default/ats/x?fieldManager=kubectl-at": the API server has not answered for 30s: at/x may have been changed: see kubectl at show x` + "\n"},
		"removed":                 {"rm cronat/x", context.Canceled, true, exitInterrupted, `error: interrupted: Delete "http://fake/apis/cnat.programming-kubernetes.info/v1alpha1/namespaces/default/cronats/x": context canceled: cronat/x may have been deleted: see kubectl at show cronat/x` + "\n"},
		"not removed":             {"rm x", apierrors.NewBadRequest("no"), false, exitError, "error: no\n"},
		"interrupted, not a POST": {"show x", context.Canceled, true, exitInterrupted, `error: interrupted: Get "http://fake/apis/cnat.programming-kubernetes.info/v1alpha1/namespaces/default/ats/x": context canceled` + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "", newAt("x", nil), newCronAt("x", nil))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w.cnat.PrependReactor("*", "*", func(action kubetesting.Action) (bool, runtime.Object, error) {
				if action.GetVerb() == "get" && tc.args != "show x" {
					return false, nil, nil
				}
				if tc.interrupted {
					cancel()
				}
				return true, nil, tc.err
			})
			if code := execute(ctx, w.command(), strings.Fields(tc.args)); code != tc.code || w.stderr.String() != tc.stderr {
				t.Errorf("exit code %d, want %d; stderr %q, want %q", code, tc.code, w.stderr.String(), tc.stderr)
			}
		})
	}
}

// TestFollowGone deletes or replaces the At while kubectl at logs -f waits.
func TestFollowGone(t *testing.T) {
	for name, tc := range map[string]struct {
		event  watch.Event
		stderr string
	}{
		"deleted": {
			watch.Event{Type: watch.Deleted, Object: newAt("at", nil)},
			"error: at/at was deleted before it ended\n",
		},
		"replaced": {
			watch.Event{Type: watch.Modified, Object: newAt("at", func(at *v1alpha1.At) { at.UID = "another" })},
			"error: at/at was deleted and created again before it ended\n",
		},
	} {
		t.Run(name, inBubble(func(t *testing.T) {
			t.Helper()
			w := newWorld(t, "", newAt("at", nil))
			w.cnat.PrependWatchReactor("ats", func(kubetesting.Action) (bool, watch.Interface, error) {
				watcher := watch.NewFakeWithChanSize(1, false)
				watcher.Action(tc.event.Type, tc.event.Object)
				return true, watcher, nil
			})
			if code := w.run(t, "logs", "at", "-f"); code != exitError || w.stderr.String() != tc.stderr {
				t.Errorf("exit code %d, want %d; stderr %q, want %q", code, exitError, w.stderr.String(), tc.stderr)
			}
		}))
	}
}

// inBubble returns a test that runs in virtual time.
func inBubble(test func(*testing.T)) func(*testing.T) {
	return func(t *testing.T) { synctest.Test(t, test) }
}

// rehearsedAs returns the part of a status that is about a rehearsal that did not pass.
func rehearsedAs(reason string, ago time.Duration) ([]metav1.Condition, *metav1.Time) {
	return []metav1.Condition{{Type: v1alpha1.ConditionRehearsed, Status: metav1.ConditionFalse, Reason: reason}}, ptr.To(metav1.NewTime(now.Add(-ago)))
}

func TestList(t *testing.T) {
	at := func(name, schedule string, change func(*v1alpha1.At)) runtime.Object {
		return newAt(name, func(at *v1alpha1.At) {
			at.Spec.Schedule = schedule
			if change != nil {
				change(at)
			}
		})
	}
	ats := []runtime.Object{
		at("later", "2026-03-28T10:12:00+01:00", func(at *v1alpha1.At) {
			at.Labels = map[string]string{"a": "b"}
			at.Annotations = map[string]string{v1alpha1.AnnotationRequester: "alice"}
			at.Status.Conditions, at.Status.RehearsedAt = rehearsedAs(v1alpha1.ReasonRehearsalRefused, 5*time.Minute)
		}),
		at("zone", "2026-03-27T20:00:00", func(at *v1alpha1.At) { at.Spec.TimeZone = ptr.To("Asia/Kolkata") }),
		at("nobody", "2026-03-27T13:59:00Z", nil),
		at("over", "2026-03-27T12:00:00Z", done(v1alpha1.ReasonCompleted, 0)),
		at("image", "2026-03-29T12:00:00Z", func(at *v1alpha1.At) {
			at.Spec.Command = ""
			at.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: "shop:1"}}}}
		}),
	}
	for name, tc := range map[string]struct {
		args []string
		want []string
	}{
		"scheduled": {
			args: []string{"list", "--tz=Europe/Berlin"},
			want: []string{
				"NAME WHEN IN PHASE REASON COMMAND",
				"nobody 2026-03-27 14:59:00 CET 1m ago PENDING NoController echo YAY",
				"zone 2026-03-27 15:30:00 CET in 30m PENDING - echo YAY",
				"later 2026-03-28 10:12:00 CET in 19h12m PENDING - echo YAY",
				"image 2026-03-29 14:00:00 CEST in 1d22h PENDING - image shop:1",
			},
		},
		"selected": {args: []string{"list", "--tz=UTC", "-l", "a=b", "--no-headers"}, want: []string{"later 2026-03-28 09:12:00 UTC in 19h12m PENDING - echo YAY"}},
		"labels, by its alias, any case of the zone": {
			args: []string{"ls", "--tz=europe/berlin", "-l", "a", "--show-labels"},
			want: []string{"NAME WHEN IN PHASE REASON COMMAND LABELS", "later 2026-03-28 10:12:00 CET in 19h12m PENDING - echo YAY a=b"},
		},
		"wide": {
			args: []string{"list", "--tz=UTC", "-l", "a=b", "-o", "wide"},
			want: []string{"NAME WHEN IN PHASE REASON COMMAND EXIT POD NODE REHEARSED REQUESTER", "later 2026-03-28 09:12:00 UTC in 19h12m PENDING - echo YAY - - - RehearsalRefused, 5m ago alice"},
		},
		"names of all": {
			args: []string{"list", "--all", "-o", "name"},
			want: []string{
				"at.cnat.programming-kubernetes.info/over", "at.cnat.programming-kubernetes.info/nobody", "at.cnat.programming-kubernetes.info/zone",
				"at.cnat.programming-kubernetes.info/later", "at.cnat.programming-kubernetes.info/image",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "", ats...)
			if code := w.run(t, tc.args...); code != 0 {
				t.Fatalf("exit code %d: %s", code, w.stderr.String())
			}
			var got []string
			for line := range strings.Lines(w.stdout.String()) {
				got = append(got, strings.Join(strings.Fields(line), " "))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestTerminal checks that text from the cluster does not control the terminal, nor fakes
// another line.
func TestTerminal(t *testing.T) {
	const evil = "a\x1b]0;b\ac\rd\u009be\u202ef\ng"
	at := newAt("at", func(at *v1alpha1.At) {
		at.Spec.Command, at.Spec.Template = "", &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: evil}}}}
		at.Spec.Schedule, at.Spec.TimeZone = evil, ptr.To(evil)
		at.Status.Reason, at.Status.Message = evil, evil
		at.Annotations = map[string]string{v1alpha1.AnnotationRequester: evil}
	})
	cronAt := newCronAt("backup", func(cronAt *v1alpha1.CronAt) {
		cronAt.Spec.Schedule, cronAt.Spec.TimeZone, cronAt.Status.Message = evil, ptr.To(evil), evil
		cronAt.Spec.AtTemplate.Spec, cronAt.Annotations = at.Spec.RunSpec, at.Annotations
	})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "at-pod", Labels: map[string]string{v1alpha1.LabelAtUID: "uid"}},
		Spec:       corev1.PodSpec{NodeName: evil, Containers: []corev1.Container{{}}},
	}
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"}, InvolvedObject: corev1.ObjectReference{UID: "uid"}, Reason: evil, Message: evil}
	cronJob := newCronJob(func(cronJob *batchv1.CronJob) {
		cronJob.Spec.JobTemplate.Spec.Template.Spec.Containers[0].Image = evil
	})
	for _, args := range []string{"list -o wide", "show at", "show cronat/backup", "logs at", "rm at", "__complete rm ''", "__complete now --image ''"} {
		t.Run(args, func(t *testing.T) {
			w := newWorld(t, "", at, cronAt)
			w.kube = kubefake.NewSimpleClientset(pod, event, cronJob)
			w.cnat.PrependReactor("delete", "ats", func(kubetesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New(evil) })
			w.run(t, strings.Split(strings.ReplaceAll(args, "''", ""), " ")...)
			out := w.stdout.String() + w.stderr.String()
			if strings.ContainsAny(out, "\x1b\a\r\u009b\u202e") || !strings.Contains(out, "c") {
				t.Errorf("got %q", out)
			}
		})
	}
}

// TestServer copies the Pod of a Deployment.
func TestServer(t *testing.T) {
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "shop"}}
	deployment.Spec.Template.Annotations = map[string]string{plan.DefaultContainer: "shop"}
	deployment.Spec.Template.Spec.Containers = []corev1.Container{{Name: "proxy", Image: "proxy:1"}, {Name: "shop", Image: "shop:1", Args: []string{"serve"}}}
	for name, tc := range map[string]struct {
		args  []string
		stdin string
		// expectations
		containers []corev1.Container // nil: an error
		command    string
		stderr     string
	}{
		"another command":   {args: []string{"--", "x"}, containers: []corev1.Container{{Name: "shop", Image: "shop:1", Args: []string{"serve"}}}, command: "x", stderr: "Of the containers proxy, shop, only shop is copied: the others would not end. --container chooses another.\n"},
		"another program":   {args: []string{"--", "x", "y"}, containers: []corev1.Container{{Name: "shop", Image: "shop:1", Command: []string{"x", "y"}}}},
		"on standard input": {stdin: "x\n", containers: []corev1.Container{{Name: "shop", Image: "shop:1", Args: []string{"serve"}}}, command: "x"},
		"its own command":   {stderr: "there is no command: write it after --, or pipe it into the standard input. That of deployment/shop would not end\n"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.stdin)
			w.kube = kubefake.NewSimpleClientset(deployment)
			code := w.run(t, append([]string{"now", "--name=at", "--from=deploy/shop"}, tc.args...)...)
			stderr := strings.ReplaceAll(w.stderr.String(), "deploy/", "deployment/")
			if code != 0 && tc.containers != nil || !strings.Contains(stderr, tc.stderr) {
				t.Fatalf("exit code %d, stderr %q, want %q", code, w.stderr.String(), tc.stderr)
			}
			at, err := w.cnat.CnatV1alpha1().Ats("default").Get(t.Context(), "at", metav1.GetOptions{})
			if tc.containers == nil {
				if !apierrors.IsNotFound(err) || code != exitUsage {
					t.Errorf("exit code %d, got %v and %v", code, at, err)
				}
				return
			}
			if diff := cmp.Diff(tc.containers, at.Spec.Template.Spec.Containers); diff != "" || at.Spec.Command != tc.command {
				t.Errorf("command %q, want %q; containers -want +got:\n%s", at.Spec.Command, tc.command, diff)
			}
		})
	}
}

// TestDefaultPod has options for the Pod, but no image.
func TestDefaultPod(t *testing.T) {
	w := newWorld(t, "")
	if code := w.run(t, "now", "--name=at", "--labels=a=b,c=d", "--service-account=sa", "--", "x", "y"); code != 0 {
		t.Fatalf("exit code %d: %s", code, w.stderr.String())
	}
	at, err := w.cnat.CnatV1alpha1().Ats("default").Get(t.Context(), "at", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spec := at.Spec.Template.Spec
	if at.Spec.Command != "x y" || spec.ServiceAccountName != "sa" || spec.AutomountServiceAccountToken != nil || spec.Containers[0].Image != defaultImage {
		t.Errorf("got %v", at.Spec)
	}
	if diff := cmp.Diff(map[string]string{"a": "b", "c": "d"}, at.Labels); diff != "" {
		t.Errorf("labels: %s", diff)
	}
}

// TestHints checks that the commands in hints reach the same namespace and cluster.
func TestHints(t *testing.T) {
	forbidden := apierrors.NewForbidden(v1alpha1.Resource("ats"), "", errors.New(`User "x" cannot list resource "ats" in API group "cnat.programming-kubernetes.info" at the cluster scope`))
	for name, tc := range map[string]struct {
		args   string
		before func(*v1alpha1.At)
		err    error
		want   string
	}{
		"none in the namespace": {"show none -n default", nil, nil, "kubectl at -n default list --all shows those of the namespace, kubectl at list --all -A those of all namespaces.\n"},
		"a name that is taken":  {"now --name=at -n default -- x", nil, nil, "remove the other one with kubectl at -n default rm at/NAME.\n"},
		"suspended":             {"now --name=new -n default --suspend --tz=UTC -- x", nil, nil, "suspended, due Fri 27 Mar 2026 14:00:00 UTC: it does not start until kubectl at -n default resume new\n"},
		"suspended, run now": {
			"run-now at --tz=UTC", func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) }, nil,
			"suspended, due Fri 27 Mar 2026 14:00:00 UTC: it does not start until kubectl at resume at\n",
		},
		"not installed":      {"list -n default --context=x", nil, apierrors.NewGenericServerResponse(http.StatusNotFound, "list", v1alpha1.Resource("ats"), "", "", 0, true), "Install it with kubectl apply --context=x -f install.yaml, which"},
		"another CronAt":     {"move cronat/backup now -n default", nil, nil, "kubectl edit -n default cronat/backup\n"},
		"may not view":       {"list -A -n default", nil, forbidden, "\nYou need a role that allows this, such as the cluster role view to read, or edit to write. Ask a cluster administrator; kubectl auth -n default whoami shows your user.\n"},
		"another word: list": {"get -n default --all", done(v1alpha1.ReasonCompleted, 0), nil, "DONE"},
		"another word: show": {"describe at", nil, nil, "Command    echo YAY\n"},
		"another word: rm":   {"cancel at", nil, nil, "deleted\n"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "", newAt("at", tc.before))
			if tc.err != nil {
				w.cnat.PrependReactor("list", "*", func(kubetesting.Action) (bool, runtime.Object, error) { return true, nil, tc.err })
			}
			w.run(t, strings.Fields(tc.args)...)
			if got := w.stdout.String() + w.stderr.String(); !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestKubectl(t *testing.T) {
	w := newWorld(t, "")
	if err := w.command().ParseFlags([]string{"--context", "a&b", "-n=x", "--kubeconfig=/none"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"kubectl at --kubeconfig=/none --context='a&b' -n x rm a-n -f",
		"kubectl at --kubeconfig=/none --context='a&b' list -A",
		"kubectl patch --kubeconfig=/none --context='a&b' cronjob/a -n y",
	} {
		verb, rest, _ := strings.Cut(strings.TrimPrefix(want, "kubectl "), " ")
		if got := w.kubectl("%s %s", verb, strings.TrimPrefix(strings.TrimPrefix(rest, "--kubeconfig=/none --context='a&b' "), "-n x ")); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestLogsOnly checks that only the log is written to standard output.
func TestLogsOnly(t *testing.T) { synctest.Test(t, testLogsOnly) }

func testLogsOnly(t *testing.T) {
	t.Helper()
	w := newWorld(t, "")
	code := w.run(t, "now", "--name=at", "--logs", "--timeout=1s", "--", "x")
	if code != exitTimeout || w.stdout.Len() > 0 || !strings.HasPrefix(w.stderr.String(), "at.cnat.programming-kubernetes.info/at created\n") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, w.stdout.String(), w.stderr.String())
	}
}

func TestEdit(t *testing.T) {
	running := func(at *v1alpha1.At) { at.Status.Phase = v1alpha1.PhaseRunning }
	for name, tc := range map[string]struct {
		args   []string
		before func(*v1alpha1.At)
		// expectations
		after  func(*v1alpha1.At)
		code   int
		stdout string
	}{
		"move": {
			args: []string{"move", "at", "now", "+", "2", "hours", "--tz=UTC"},
			before: func(at *v1alpha1.At) {
				at.Spec.Schedule, at.Spec.TimeZone = "2026-03-28T10:12:00", ptr.To("Europe/Berlin")
			},
			after: func(at *v1alpha1.At) { at.Spec.Schedule, at.Spec.TimeZone = "2026-03-27T16:00:00Z", nil }, stdout: "moved\n",
		},
		"move on its day, in its zone": {
			args: []string{"move", "at", "11:30"},
			before: func(at *v1alpha1.At) {
				at.Spec.Schedule, at.Spec.TimeZone = "2027-07-01T10:12:00", ptr.To("Europe/Berlin")
			},
			after: func(at *v1alpha1.At) {
				at.Spec.Schedule, at.Spec.TimeZone = "2027-07-01T11:30:00", ptr.To("Europe/Berlin")
			}, stdout: "moved\n",
		},
		"move on its day, by its offset": {
			args: []string{"move", "at", "3am"}, before: func(at *v1alpha1.At) { at.Spec.Schedule = "2027-07-01T10:12:00+05:30" },
			after: func(at *v1alpha1.At) { at.Spec.Schedule = "2027-07-01T03:00:00+05:30" }, stdout: "moved\n",
		},
		"move, with a zone": {
			args: []string{"move", "at", "3am", "Asia/Kolkata"}, before: func(at *v1alpha1.At) { at.Spec.Schedule = "2027-07-01T10:12:00+02:00" },
			after: func(at *v1alpha1.At) { at.Spec.Schedule = "2027-07-01T03:00:00+05:30" }, stdout: "moved\n",
		},
		"move, in another zone": {
			args: []string{"move", "at", "3am", "--tz=Asia/Kolkata"}, before: func(at *v1alpha1.At) { at.Spec.Schedule = "2027-07-01T01:12:00+02:00" },
			after: func(at *v1alpha1.At) { at.Spec.Schedule = "2027-07-01T03:00:00+05:30" }, stdout: "moved\n",
		},
		"run now": {args: []string{"run-now", "at", "--tz=UTC"}, after: func(at *v1alpha1.At) { at.Spec.Schedule = "2026-03-27T14:00:00Z" }, stdout: "moved to now\n"},
		"suspend": {args: []string{"suspend", "at"}, after: func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) }, stdout: "suspended\n"},
		"suspend a running At": {
			args: []string{"suspend", "at"}, before: running,
			after: func(at *v1alpha1.At) { running(at); at.Spec.Suspend = ptr.To(true) }, stdout: "suspended\n",
		},
		"resume": {
			args: []string{"resume", "at"}, before: func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) },
			after: func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(false) }, stdout: "resumed\n",
		},
		"client dry run":        {args: []string{"suspend", "at", "--dry-run=client"}, after: func(*v1alpha1.At) {}, stdout: "suspended (dry run)\n"},
		"move to a past year":   {args: []string{"move", "at", "2025-12-24T10:12:00Z"}, after: func(*v1alpha1.At) {}, code: exitUsage},
		"move a running At":     {args: []string{"move", "at", "now"}, before: running, after: running, code: 1},
		"move a finished At":    {args: []string{"run-now", "at"}, before: done(v1alpha1.ReasonCompleted, 0), after: done(v1alpha1.ReasonCompleted, 0), code: 1},
		"suspend a finished At": {args: []string{"suspend", "at"}, before: done(v1alpha1.ReasonCompleted, 0), after: done(v1alpha1.ReasonCompleted, 0), code: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "", newAt("at", tc.before))
			if tc.stdout != "" {
				tc.stdout = "at.cnat.programming-kubernetes.info/at " + tc.stdout
			}
			if code := w.run(t, tc.args...); code != tc.code || w.stdout.String() != tc.stdout {
				t.Fatalf("exit code %d, want %d; stdout %q, want %q; stderr %q", code, tc.code, w.stdout.String(), tc.stdout, w.stderr.String())
			}
			got, err := w.cnat.CnatV1alpha1().Ats("default").Get(t.Context(), "at", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(newAt("at", tc.after), got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestEditConflict edits an At that changes in the meantime.
func TestEditConflict(t *testing.T) {
	w := newWorld(t, "", newAt("at", func(at *v1alpha1.At) { at.ResourceVersion = "7" }))
	var patches []string
	w.cnat.PrependReactor("patch", "ats", func(action kubetesting.Action) (bool, runtime.Object, error) {
		patches = append(patches, string(action.(kubetesting.PatchAction).GetPatch()))
		if len(patches) == 1 {
			return true, nil, apierrors.NewConflict(v1alpha1.Resource("ats"), "at", nil)
		}
		return false, nil, nil
	})
	code := w.run(t, "suspend", "at")
	const patch = `{"metadata":{"resourceVersion":"7"},"spec":{"suspend":true}}`
	if diff := cmp.Diff([]string{patch, patch}, patches); code != 0 || diff != "" {
		t.Errorf("exit code %d, stderr %q, patches -want +got:\n%s", code, w.stderr.String(), diff)
	}
}

// TestAgain runs the same once more.
func TestAgain(t *testing.T) {
	spec := func(change func(*v1alpha1.RunSpec)) v1alpha1.RunSpec {
		spec := v1alpha1.RunSpec{
			Command: "echo YAY", Node: "n", BackoffLimit: ptr.To[int32](2), ActiveDeadlineSeconds: ptr.To[int64](60),
			Template: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "b"}}}},
		}
		if change != nil {
			change(&spec)
		}
		return spec
	}
	for args, want := range map[string]v1alpha1.RunSpec{
		"--from=at/at":          spec(nil),
		"--from=cronats/backup": {Command: "echo YAY", BackoffLimit: ptr.To[int32](2)},
		"--from=at/restart":     {Restart: &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}},
		"--from=at/at -- x":     spec(func(spec *v1alpha1.RunSpec) { spec.Command = "x" }),
		"--from=at/at --retries=0 --ttl=1m --active-deadline=5m --image=c": spec(func(spec *v1alpha1.RunSpec) {
			spec.BackoffLimit, spec.TTLSecondsAfterFinished, spec.ActiveDeadlineSeconds = ptr.To[int32](0), ptr.To[int32](60), ptr.To[int64](300)
			spec.Template.Spec.Containers[0].Image = "c"
		}),
		"--from=at/at --nodes=all -- x y": spec(func(spec *v1alpha1.RunSpec) {
			spec.Command, spec.Node, spec.Nodes = "", "", &v1alpha1.AtNodes{}
			spec.Template.Spec.Containers[0].Command = []string{"x", "y"}
		}),
	} {
		w := newWorld(t, "", newCronAt("backup", nil), newAt("at", func(at *v1alpha1.At) {
			done(v1alpha1.ReasonCommandFailed, 7)(at)
			at.Annotations = map[string]string{v1alpha1.AnnotationRequester: "alice"}
			at.Spec.Suspend, at.Spec.RunSpec = ptr.To(true), spec(nil)
		}), newAt("restart", func(at *v1alpha1.At) {
			at.Spec.RunSpec = v1alpha1.RunSpec{Restart: &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}}
		}))
		if code := w.run(t, append([]string{"now", "--name=again", "--tz=UTC"}, strings.Fields(args)...)...); code != 0 {
			t.Errorf("%s: exit code %d: %s", args, code, w.stderr.String())
			continue
		}
		at, err := w.cnat.CnatV1alpha1().Ats("default").Get(t.Context(), "again", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(v1alpha1.AtSpec{Schedule: "2026-03-27T14:00:00Z", RunSpec: want}, at.Spec); diff != "" {
			t.Errorf("%s: -want +got:\n%s", args, diff)
		}
		if requester, ok := at.Annotations[v1alpha1.AnnotationRequester]; ok {
			t.Errorf("%s: the copy has the requester %s", args, requester)
		}
	}
}

// TestShow shows a failed run, and one that does not start.
func TestShow(t *testing.T) {
	warning := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"}, InvolvedObject: corev1.ObjectReference{UID: "pod"}, LastTimestamp: metav1.NewTime(now.Add(-time.Minute)),
		Type: corev1.EventTypeWarning, Reason: "FailedMount", Message: `configmap "c" not found`,
	}
	failed := newAt("at", done(v1alpha1.ReasonCommandFailed, 7))
	for name, tc := range map[string]struct {
		at   *v1alpha1.At
		pod  *corev1.Pod
		want string
		not  string
	}{
		"requester": {at: newAt("at", func(at *v1alpha1.At) {
			at.Annotations = map[string]string{v1alpha1.AnnotationRequester: "alice"}
		}), want: "Namespace  default\nRequester  alice\nCommand ", not: "Warnings"},
		"failed":    {at: failed, want: "Again      kubectl at now --from at/at\n", not: "Warnings"},
		"pending":   {at: newAt("at", inPhase(corev1.PodPending)), pod: podWith(corev1.PodPending, corev1.ContainerState{}), want: "Warnings of its Pod\nWHEN     TYPE      REASON        MESSAGE\n1m ago   Warning   FailedMount   configmap \"c\" not found\n", not: "running"},
		"of its At": {at: newAt("at", inPhase(corev1.PodPending)), want: "Why        Its Pod is Pending since Fri 27 Mar 2026 13:00:00 UTC, 1h ago: its command has not started.\nWarnings of its Pod\n", not: "running"},
		"blocked": {at: newAt("at", func(at *v1alpha1.At) {
			inPhase(corev1.PodPending)(at)
			at.Status.Reason, at.Status.Message = v1alpha1.ReasonVolumeNotMounted, `configmap "c" not found`
		}), want: "State      RUNNING, VolumeNotMounted\nWhy        configmap \"c\" not found\nPod        Its Pod is Pending since Fri 27 Mar 2026 13:00:00 UTC, 1h ago: its command has not started.\nWarnings of its Pod\n", not: "running"},
		"running": {at: newAt("at", inPhase(corev1.PodRunning)), pod: podWith(corev1.PodRunning, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}), want: "Why        Its command is running.\n", not: "Warnings"},
		"restarting": {at: newAt("at", func(at *v1alpha1.At) {
			inPhase(corev1.PodRunning)(at)
			at.Status.Reason, at.Status.Message = "CommandRestarting", "Container command has failed 3 times, last with exit code 1."
		}), pod: func() *corev1.Pod {
			pod := podWith(corev1.PodRunning, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}})
			pod.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1}
			return pod
		}(), want: "State      RUNNING, CommandRestarting\nWhy        Container command has failed 3 times, last with exit code 1.\nAttempts\n" +
			"#     POD      PHASE     EXIT   NODE   CREATED   RAN\n1     at-pod   Running   1      -      1m ago    0s\n", not: "Pod  "},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "", tc.at)
			kube := kubefake.NewSimpleClientset()
			if tc.pod != nil {
				kube = kubefake.NewSimpleClientset(tc.pod)
			}
			// The fake clientset ignores the field selector.
			kube.PrependReactor("list", "events", func(action kubetesting.Action) (bool, runtime.Object, error) {
				events := &corev1.EventList{}
				if selector := action.(kubetesting.ListAction).GetListRestrictions().Fields.String(); selector == "involvedObject.uid=pod,type=Warning" || selector == "type=Warning,involvedObject.uid=pod" {
					events.Items = append(events.Items, *warning)
				}
				return true, events, nil
			})
			w.kube = kube
			code := w.run(t, "show", "at", "--tz=UTC")
			if out := w.stdout.String(); code != 0 || !strings.Contains(out, tc.want) || strings.Contains(out, tc.not) {
				t.Errorf("exit code %d; got:\n%s%s\nwant:\n%s\nnot %q", code, out, w.stderr.String(), tc.want, tc.not)
			}
		})
	}
}

// TestEditSeveral names an object that does not exist among others.
func TestEditSeveral(t *testing.T) {
	w := newWorld(t, "", newAt("a", nil), newAt("b", nil), newCronAt("c", nil))
	code := w.run(t, "suspend", "a", "none", "x/y", "b", "cronat/c")
	stdout := "at.cnat.programming-kubernetes.info/a suspended\nat.cnat.programming-kubernetes.info/b suspended\ncronat.cnat.programming-kubernetes.info/c suspended\n"
	if code != exitUsage || w.stdout.String() != stdout || !strings.Contains(w.stderr.String(), `"none" not found`) {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, w.stdout.String(), w.stderr.String())
	}
}

func TestAttempts(t *testing.T) {
	for name, tc := range map[string]struct {
		status v1alpha1.AtStatus
		newest int32
	}{
		"none":               {v1alpha1.AtStatus{}, -1},
		"the first":          {v1alpha1.AtStatus{Pod: &v1alpha1.AtPod{Name: "at-pod"}}, 0},
		"the first failed":   {v1alpha1.AtStatus{Pod: &v1alpha1.AtPod{Name: "at-pod"}, Failed: 1}, 0},
		"the second":         {v1alpha1.AtStatus{Pod: &v1alpha1.AtPod{Name: "at-pod-1"}, Failed: 1}, 1},
		"the second to fail": {v1alpha1.AtStatus{Pod: &v1alpha1.AtPod{Name: "at-pod-1"}, Failed: 2}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := newestAttempt(newAt("at", func(at *v1alpha1.At) { at.Status = tc.status })); got != tc.newest {
				t.Errorf("got %d, want %d", got, tc.newest)
			}
		})
	}
}

var errRefused = &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}

// TestAway uses an API server that refuses requests, at first or permanently.
func TestAway(t *testing.T) {
	unauthorized := apierrors.NewUnauthorized("no")
	const gone = "error: at/at was deleted before it ended\n"
	away := func(err error) string { return fmt.Sprintf("The API server does not respond: %v; retrying\n", err) }
	for name, tc := range map[string]struct {
		fails int // requests
		err   error
		// expectations
		lists  int
		stderr string // the beginning
	}{
		"no connection for long":   {60, errRefused, 61, away(errRefused) + gone},
		"no etcd":                  {60, apierrors.NewServiceUnavailable("no"), 61, away(errors.New("no")) + gone},
		"credentials are renewed":  {4, unauthorized, 5, away(unauthorized) + gone},
		"credentials are refused":  {60, unauthorized, 5, away(unauthorized) + "error: watch at/at: no\nThe cluster does not accept your credentials"},
		"a certificate is refused": {60, &net.OpError{Op: "remote error", Err: errors.New("bad certificate")}, 1, "error: watch at/at: remote error: bad certificate\n"},
		"a plugin fails":           {60, errors.New("getting credentials: exit status 1"), 1, "error: watch at/at: getting credentials: exit status 1\n"},
	} {
		t.Run(name, inBubble(func(t *testing.T) {
			t.Helper()
			w := newWorld(t, "")
			lists := 0
			w.cnat.PrependReactor("list", "ats", func(kubetesting.Action) (bool, runtime.Object, error) {
				lists++
				if lists <= tc.fails {
					return true, nil, tc.err
				}
				return true, &v1alpha1.AtList{}, nil
			})
			began := time.Now()
			w.now = func() time.Time { return now.Add(time.Since(began)) }
			code := w.run(t, "now", "--name=at", "--wait", "--", "x")
			_, stderr, _ := strings.Cut(w.stderr.String(), "\n")
			if code != exitError || lists != tc.lists || !strings.HasPrefix(stderr, tc.stderr) {
				t.Errorf("exit code %d, %d lists, want %d; stderr %q, want %q", code, lists, tc.lists, stderr, tc.stderr)
			}
		}))
	}
}

// TestWatchObject uses a server that is unavailable for a moment.
func TestWatchObject(t *testing.T) { synctest.Test(t, testWatchObject) }

func testWatchObject(t *testing.T) {
	t.Helper()
	w := newWorld(t, "", newAt("at", nil))
	fails := 1
	w.cnat.PrependReactor("list", "ats", func(kubetesting.Action) (bool, runtime.Object, error) {
		fails--
		return fails >= 0, nil, errRefused
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := watchObject(ctx, &w.stderr, w.cnat.CnatV1alpha1().Ats("default"), "at", func(at *v1alpha1.At) bool { return at.Name == "at" })
	if err != nil || fails >= 0 {
		t.Errorf("error %v, %d failures left", err, fails+1)
	}
}
