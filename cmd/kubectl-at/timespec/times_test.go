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

package timespec

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// TestTimes holds Parse against testdata/times.txt: what people write, and what they mean.
func TestTimes(t *testing.T) {
	content, err := os.ReadFile("testdata/times.txt")
	if err != nil {
		t.Fatal(err)
	}
	world, seen := "", map[string]bool{}
	for i, line := range strings.Split(string(content), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if now, ok := strings.CutPrefix(line, "now: "); ok {
			world = now
			continue
		}
		text, want, accepted := strings.Cut(line, " => ")
		if !accepted {
			text, want, _ = strings.Cut(line, " !! ")
		}
		text, want = strings.TrimSpace(text), strings.TrimSpace(want)
		if seen[world+text] || want == "" {
			t.Errorf("line %d: %q has no meaning, or is there twice", i+1, text)
		}
		seen[world+text] = true
		if got := meaning(t, text, optionsOf(t, world)); got != want {
			t.Errorf("line %d: %q: got\n%s, want\n%s", i+1, text, got, want)
		}
	}
	if len(seen) < 1000 {
		t.Errorf("the table has %d inputs, want 1000", len(seen))
	}
}

// meaning returns the day and the instant that a text means, or why Parse refuses it.
func meaning(t *testing.T, text string, options Options) string {
	t.Helper()
	got, err := Parse(text, options)
	if err == nil {
		return got.Instant.Format("Mon ") + got.String()
	}
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("%q: got %v, want an Error", text, err)
	}
	// What is invalid, and what a person can do about it.
	if invalid := strings.Join(strings.Fields(text[e.Offset:e.Offset+e.Length]), " "); !strings.Contains(e.Problem, `"`+invalid+`"`) {
		t.Errorf("%q: the error does not quote %q: %s", text, invalid, e)
	}
	if _, hint, _ := strings.Cut(e.Problem, ": "); !strings.Contains(hint, "write ") {
		t.Errorf("%q: the error does not say what to write: %s", text, e)
	}
	return e.Problem
}
