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
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestDownload reads the Pod from a URL.
func TestDownload(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/pod.yaml" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: main, image: x}]}")
	}))
	defer server.Close()
	for path, want := range map[string]string{"/pod.yaml": "at.cnat.programming-kubernetes.info/a-", "/none.yaml": "404 Not Found"} {
		w := newWorld(t)
		code := w.run(t, "now", "-f", server.URL+path)
		if got := w.stdout.String() + w.stderr.String(); !strings.Contains(got, want) || (code == 0) != (path == "/pod.yaml") {
			t.Errorf("%s: exit code %d, got %q, want %q", path, code, got, want)
		}
	}
}
