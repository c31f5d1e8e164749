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
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

func TestRestart(t *testing.T) {
	for flag, want := range map[string]v1alpha1.AtRestart{
		"deploy/web":            {Kind: v1alpha1.RestartDeployment, Name: "web"},
		"deployments.apps/web":  {Kind: v1alpha1.RestartDeployment, Name: "web"},
		"sts/web":               {Kind: v1alpha1.RestartStatefulSet, Name: "web"},
		"DaemonSet/web":         {Kind: v1alpha1.RestartDaemonSet, Name: "web"},
		"statefulset.apps/my.0": {Kind: v1alpha1.RestartStatefulSet, Name: "my.0"},
	} {
		t.Run(flag, func(t *testing.T) {
			// Standard input is not a command.
			w := newWorld(t, "echo YAY")
			if code := w.run(t, "now", "--tz=UTC", "--restart", flag, "--ttl=1h"); code != 0 {
				t.Fatalf("exit code %d: %s", code, w.stderr.String())
			}
			if code := w.run(t, "every", "@daily", "--tz=UTC", "--restart", flag, "--ttl=1h"); code != 0 {
				t.Fatalf("exit code %d: %s", code, w.stderr.String())
			}
			ats, err := w.cnat.CnatV1alpha1().Ats("default").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(ats.Items) != 1 {
				t.Fatalf("%d Ats, %v", len(ats.Items), err)
			}
			cronAts, err := w.cnat.CnatV1alpha1().CronAts("default").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(cronAts.Items) != 1 {
				t.Fatalf("%d CronAts, %v", len(cronAts.Items), err)
			}
			run := v1alpha1.RunSpec{Restart: &want, TTLSecondsAfterFinished: ptr.To[int32](3600)}
			for name, got := range map[string]v1alpha1.RunSpec{ats.Items[0].Name: ats.Items[0].Spec.RunSpec, cronAts.Items[0].Name: cronAts.Items[0].Spec.AtTemplate.Spec} {
				if diff := cmp.Diff(run, got); diff != "" || !strings.HasPrefix(name, "restart-"+strings.ReplaceAll(want.Name, ".", "-")+"-") {
					t.Errorf("%s: -want +got:\n%s", name, diff)
				}
			}
		})
	}
}

func TestUsageOfRestart(t *testing.T) {
	for name, tc := range map[string]struct {
		args   []string
		stderr string
	}{
		"another kind":   {[]string{"--restart=job/web"}, `--restart is "job/web": write deployment/NAME, statefulset/NAME or daemonset/NAME`},
		"no kind":        {[]string{"--restart=web"}, `--restart is "web"`},
		"no name":        {[]string{"--restart=deployment/"}, `--restart is "deployment/"`},
		"empty":          {[]string{"--restart="}, `--restart is ""`},
		"a command":      {[]string{"--restart=deployment/web", "--", "x"}, "remove what follows --"},
		"a template":     {[]string{"--restart=deployment/web", "--from=deployment/web"}, "--from applies to a command, but --restart runs none"},
		"a file":         {[]string{"--restart=deployment/web", "-f", "-"}, "--filename applies to a command"},
		"an image":       {[]string{"--restart=deployment/web", "--image=x"}, "--image applies to a command"},
		"an environment": {[]string{"--restart=deployment/web", "--env=A=b"}, "--env applies to a command"},
		"a node":         {[]string{"--restart=deployment/web", "--node=x"}, "--node applies to a command"},
		"nodes":          {[]string{"--restart=deployment/web", "--nodes=all"}, "--nodes applies to a command"},
		"attempts":       {[]string{"--restart=deployment/web", "--retries=1"}, "--retries applies to a command"},
		"output":         {[]string{"--restart=deployment/web", "--logs"}, "a restart has none: use --wait"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "")
			code := w.run(t, append([]string{"now"}, tc.args...)...)
			if code != exitUsage || !strings.Contains(w.stderr.String(), tc.stderr) || len(w.cnat.Actions()) > 0 {
				t.Errorf("exit code %d, want %d; stderr %q, want %q; requests: %v", code, exitUsage, w.stderr.String(), tc.stderr, w.cnat.Actions())
			}
		})
	}
}

// TestPagesOfRestart shows an At that restarts a workload.
func TestPagesOfRestart(t *testing.T) {
	at := newAt("at", func(at *v1alpha1.At) {
		at.Spec.Command, at.Spec.Restart = "", &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}
		at.Status = v1alpha1.AtStatus{
			Phase: v1alpha1.PhaseRunning, Message: "1 of 3 updated, 3 available", StartTime: &metav1.Time{Time: now},
			Restart: &v1alpha1.AtRestartStatus{Desired: 3, Updated: 1, Available: 3},
		}
	})
	if got, want := stateLine(at, now.Add(5e9)), "RUNNING for 5s, 1 of 3 updated, 3 available"; got != want {
		t.Errorf("the line of progress is %q, want %q", got, want)
	}
	for args, want := range map[string]string{"list": " restart deployment/web\n", "show at": "\nRestarts   deployment/web\n", "logs at": "error: at/at restarts deployment/web, which has no output"} {
		w := newWorld(t, "", at)
		w.run(t, strings.Fields(args)...)
		if got := w.stdout.String() + w.stderr.String(); !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %q", args, got, want)
		}
	}
}

func TestCompleteRestart(t *testing.T) {
	w := newWorld(t, "")
	named := metav1.ObjectMeta{Namespace: "default", Name: "web"}
	w.kube = kubefake.NewSimpleClientset(&appsv1.Deployment{ObjectMeta: named}, &appsv1.StatefulSet{ObjectMeta: named}, &appsv1.DaemonSet{ObjectMeta: named})
	if code := w.run(t, "__complete", "now", "--restart", ""); code != 0 || !strings.HasPrefix(w.stdout.String(), "daemonset/web\ndeployment/web\nstatefulset/web\n:") {
		t.Errorf("exit code %d, stdout %q", code, w.stdout.String())
	}
}

func TestStem(t *testing.T) {
	for command, want := range map[string]string{
		"echo YAY":                           "echo",
		"/usr/bin/pg_dump -h db shop":        "pg-dump",
		"kubectl rollout restart deploy/x":   "kubectl",
		"PGPASSWORD=secret psql -c 'x'":      "psql",
		"mysql -psecret":                     "mysql",
		"curl https://user:secret@host":      "curl",
		"'my tool' --now":                    "at",
		"PW='my secret' ./migrate":           "at",
		`PW="a b" ./migrate`:                 "at",
		`PW=a\ b ./migrate`:                  "at",
		"PW=$(cat secret) ./migrate":         "at",
		"A=1 PW='my secret' ./migrate":       "at",
		"'PW=my secret' ./migrate":           "at",
		"--password=secret":                  "at",
		"$SECRET":                            "at",
		"for i in 1 2; do echo $i; done":     "for",
		"python3.11 main.py":                 "python3-11",
		"grüße":                              "gr-e",
		"日本":                                 "at",
		"":                                   "at",
		"A=1":                                "at",
		strings.Repeat("a", 100):             strings.Repeat("a", maxStem),
		"tool " + strings.Repeat("word ", 9): "tool",
		"#!/usr/bin/awk -f\nBEGIN {}":        "awk",
		"2024-report":                        "2024-report",
		"login hunter2":                      "login",
	} {
		t.Run(command, func(t *testing.T) {
			if got := stem(command); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

func FuzzGenerateName(f *testing.F) {
	f.Add("echo YAY")
	f.Add("-a --b ../c/ .d")
	f.Fuzz(func(t *testing.T, command string) {
		name := generateName(command)
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			t.Errorf("%s: %v", name, problems)
		}
		if len(name+"-pod-99") > validation.DNS1123LabelMaxLength {
			t.Errorf("%s is too long for the names of its Pods", name)
		}
	})
}

func TestShellCommand(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"a command line":         {[]string{"echo $HOME | wc"}, "echo $HOME | wc"},
		"plain words":            {[]string{"pg_dump", "-h", "db", "--file=/backup/shop.sql", "a@b", "10%"}, "pg_dump -h db --file=/backup/shop.sql a@b 10%"},
		"spaces":                 {[]string{"echo", "a  b"}, "echo 'a  b'"},
		"nothing":                {[]string{"echo", ""}, "echo ''"},
		"a single quote":         {[]string{"echo", "it's"}, `echo 'it'\''s'`},
		"a variable":             {[]string{"echo", "$HOME"}, "echo '$HOME'"},
		"an assignment":          {[]string{"A=1", "B=2"}, "'A=1' B=2"},
		"a reserved word":        {[]string{"if", "if"}, "'if' if"},
		"a program with a space": {[]string{"a b", "c"}, "'a b' c"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := shellCommand(tc.args); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// TestInterpreted lets a real shell run scripts.
func TestInterpreted(t *testing.T) {
	for script, want := range map[string]string{
		"#!/bin/sh\necho $0":                    "sh\n", // as it is
		"#!/bin/sh -e\nfalse\necho no":          "",
		"#!/bin/cat\n$HOME 'x' \\\nEND\nEND_\n": "#!/bin/cat\n$HOME 'x' \\\nEND\nEND_\n\n",
		"#! /usr/bin/env cat\nx":                "#! /usr/bin/env cat\nx\n",
		"#!/bin/cat":                            "#!/bin/cat\n",
		"# no interpreter\necho x":              "x\n",
	} {
		out, _ := exec.CommandContext(t.Context(), "sh", "-c", interpreted(script)).Output()
		if string(out) != want {
			t.Errorf("%q: got %q, want %q", script, out, want)
		}
	}
}

// FuzzShellCommand lets a real shell parse the quoted words.
func FuzzShellCommand(f *testing.F) {
	for _, seed := range []string{"", "a b", "it's", "$(id)", "\\", "*", "~", "a\nb", "!", "#", "ä", "-e", "\x01\xff", "a=b", "{a,b}"} {
		f.Add(seed, "x")
	}
	shell, err := exec.LookPath("sh")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		// Arguments cannot contain NUL.
		a, b = strings.ReplaceAll(a, "\x00", ""), strings.ReplaceAll(b, "\x00", "")
		args := []string{"printf", `<%s>\n`, a, b}
		out, err := exec.CommandContext(t.Context(), shell, "-c", shellCommand(args)).Output()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff("<"+a+">\n<"+b+">\n", string(out)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

func TestSeconds(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "90s": 90, "1h30m": 5400, "7d": 604800, "596523h14m7s": math.MaxInt32} {
		var s seconds
		if err := s.Set(text); err != nil || *s.value != want {
			t.Errorf("%s: %v, %v", text, s.value, err)
		}
	}
	for _, text := range []string{"", "90", "-7d", "1.5s", "100ms", "soon", "d", "1w", "99999999999", "99999d", "596523h14m8s", "24856d"} {
		var s seconds
		if err := s.Set(text); err == nil {
			t.Errorf("%s is understood as %ds", text, *s.value)
		}
	}
}
