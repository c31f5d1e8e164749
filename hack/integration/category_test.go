//go:build integration

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

package integration

import (
	"strings"
	"testing"
	"time"
)

// TestCategory deletes everything of category all in a namespace, as users do with
// workloads. That includes what is pending, and kubectl explain says so.
func TestCategory(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	createAt(t, newAt(namespace, "at", time.Now().Add(time.Hour), "true"))
	createCronAt(t, newCronAt(namespace, "@yearly"))
	// What kubectl has cached may be from before the CRD.
	cache := "--cache-dir=" + t.TempDir()
	wantOutput(t, kubectl(t, "", "get", "all", cache, "-n", namespace, "-o", "name"), `(^|\n)at\.cnat\.programming-kubernetes\.info/at\n`, `cronat\.cnat\.programming-kubernetes\.info/cronat\n`)
	kubectl(t, "", "delete", "all", "--all", cache, "-n", namespace)
	if left := kubectl(t, "", "get", "ats,cronats", "-n", namespace, "-o", "name"); left != "" {
		t.Errorf("there is left: %s", left)
	}
	for _, kind := range []string{"at", "cronat"} {
		explained := strings.Join(strings.Fields(kubectl(t, "", "explain", kind)), " ")
		wantOutput(t, explained, "kubectl delete all --all deletes")
	}
}
