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
	"strings"
	"testing"

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
		"'my tool' --now":                    "my",
		"for i in 1 2; do echo $i; done":     "for",
		"python3.11 main.py":                 "python3-11",
		"grüße":                              "gr-e",
		"日本":                                 "at",
		"":                                   "at",
		"A=1":                                "at",
		strings.Repeat("a", 100):             strings.Repeat("a", maxStem),
		"tool " + strings.Repeat("word ", 9): "tool",
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
