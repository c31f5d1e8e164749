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
	"k8s.io/apimachinery/pkg/util/validation"
)

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
