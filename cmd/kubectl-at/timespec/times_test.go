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
	"regexp"
	"slices"
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
		options := optionsOf(t, world)
		if got := meaning(t, text, options); got != want {
			t.Errorf("line %d: %q: got\n%s, want\n%s", i+1, text, got, want)
		}
		followHints(t, text, options)
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

// What an error says to write: a time or a part of one in quotes, a zone, a date. What it says to omit, or
// to write something before, is not that.
var (
	quotedHint = regexp.MustCompile(`(?:^|as|or|offset) "([^"]+)"`)
	zoneHint   = regexp.MustCompile(`(?:zone|offset) such as ([^ ,]+)`)
	dateHint   = regexp.MustCompile(`\b[0-9]{4}-[0-9]{2}-[0-9]{2}[^ ,]*`)
)

// otherMistakes are inputs that have a second mistake, or are in the past, so what the error says to write is
// refused too.
var otherMistakes = []string{
	"5M",                               // minutes or months
	"2026-12-24-",                      // The example goes back, and needs a time of day.
	"noon+1000",                        // at 19:00
	"noon + 1000",                      // at 19:00
	"02:30",                            // At 02:40, the clocks show it again: the first time has passed.
	"2026-03-08 2:30 America/New_York", // three weeks ago
	"Mar 8 2026 02:30 Etc/GMT+5",       // in five hours, or five hours ago
}

// followHints checks that what an error says to write is accepted: as a time, or instead of the invalid
// word.
func followHints(t *testing.T, text string, options Options) {
	t.Helper()
	_, err := Parse(text, options)
	var e *Error
	if !errors.As(err, &e) {
		return
	}
	_, hint, _ := strings.Cut(e.Problem, "write ")
	hints := dateHint.FindAllString(hint, -1)
	for _, found := range quotedHint.FindAllStringSubmatch(hint, -1) {
		hints = append(hints, found[1])
	}
	for _, found := range zoneHint.FindAllStringSubmatch(hint, -1) {
		hints = append(hints, "now "+found[1])
	}
	for _, hint := range hints {
		_, err := Parse(hint, options)
		if err != nil {
			_, err = Parse(text[:e.Offset]+hint+text[e.Offset+e.Length:], options)
		}
		if err != nil && !slices.Contains(otherMistakes, text) {
			t.Errorf("%q: %s\nIf one writes that: %s", text, e, err)
		}
	}
}
