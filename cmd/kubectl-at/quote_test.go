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
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

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
