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
	"sync"
	"testing"
)

func TestPrefixed(t *testing.T) {
	var out bytes.Buffer
	p := &prefixed{out: &out, lock: &sync.Mutex{}, prefix: "[n] "}
	for _, data := range []string{"a", "b\nc\n\nd", "e", "\n", "f"} {
		if n, err := p.Write([]byte(data)); n != len(data) || err != nil {
			t.Errorf("%q: %d, %v", data, n, err)
		}
	}
	p.end()
	p.end()
	if want := "[n] ab\n[n] c\n[n] \n[n] de\n[n] f\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
