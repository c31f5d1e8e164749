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
	"context"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// patches is a strategic patch, which custom resources do not have.
func patches(object, patch string) attempt {
	return attempt{http.MethodPatch, object, string(types.StrategicMergePatchType), patch}
}

func merges(object, patch string) attempt {
	return attempt{http.MethodPatch, object, string(types.MergePatchType), patch}
}

func deletes(object string) attempt {
	return attempt{http.MethodDelete, object, runtime.ContentTypeJSON, ""}
}

// want sends a request, which must be denied with the given words, or admitted if there are none.
func (a actor) want(t *testing.T, denied string, what attempt, parameters ...string) {
	t.Helper()
	if _, err := a.send(t, what, parameters...); denied == "" && err != nil || denied != "" && (err == nil || !strings.Contains(err.Error(), denied)) {
		t.Errorf("%s %s %s: got %v, want %q", what.method, what.object, what.body, err, denied)
	}
}

// waitDenied waits until a policy is in force, which denies a request.
func (a actor) waitDenied(t *testing.T, denied string, what attempt) {
	t.Helper()
	eventually(t, "the policy to be in force", func(context.Context) (bool, error) {
		_, err := a.send(t, what, "dryRun", "All")
		return err != nil && strings.Contains(err.Error(), denied), nil
	})
}

// rowOf is a row of a table of attempts, which are made in their order.
type rowOf struct {
	what   string
	do     attempt
	denied string // empty: allowed
}
