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
	"fmt"
	"testing"
	"time"
)

func TestProgress(t *testing.T) {
	var terminal, output bytes.Buffer
	p := &progress{out: &terminal, now: func() time.Time { return now }, width: 19}
	at := newAt("at", nil)
	p.show(at)
	fmt.Fprintln(p.over(&terminal, false), "a hint")
	p.show(at)
	fmt.Fprintln(p.over(&output, true), "output")
	p.show(at) // no longer shown
	const line, cleared = "\r\x1b[KPENDING, starts in", "\r\x1b[K"
	if want := line + cleared + "a hint\n" + line + cleared; terminal.String() != want || output.String() != "output\n" {
		t.Errorf("got %q, want %q", terminal.String(), want)
	}
}
