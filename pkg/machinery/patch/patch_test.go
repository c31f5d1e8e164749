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

package patch

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPatches has the patches that name the UID and the version of an object, so that
// they apply to nothing else.
func TestPatches(t *testing.T) {
	object := &metav1.ObjectMeta{UID: "uid", ResourceVersion: "7", Finalizers: []string{"others", "ours", "another"}}
	unversioned := &metav1.ObjectMeta{UID: "uid", Finalizers: []string{"ours"}}
	for name, tc := range map[string]struct {
		got  []byte
		want string
	}{
		"differences alone": {
			Change(&metav1.ObjectMeta{Name: "web", Labels: map[string]string{"app": "web", "tier": "a", "old": "1"}},
				&metav1.ObjectMeta{Name: "web", UID: "uid", ResourceVersion: "7", Labels: map[string]string{"app": "web", "tier": "b"}}),
			`{"labels":{"old":null,"tier":"b"},"resourceVersion":"7","uid":"uid"}`,
		},
		"another finalizer":               {WithFinalizer(object, "mine"), `{"metadata":{"finalizers":["others","ours","another","mine"],"resourceVersion":"7","uid":"uid"}}`},
		"finalizer: those of others stay": {WithoutFinalizer(object, "ours"), `{"metadata":{"finalizers":["others","another"],"resourceVersion":"7","uid":"uid"}}`},
		"no such finalizer":               {WithoutFinalizer(object, "theirs"), `{"metadata":{"finalizers":["others","ours","another"],"resourceVersion":"7","uid":"uid"}}`},
		"whatever its version is":         {WithoutFinalizer(unversioned, "ours"), `{"metadata":{"finalizers":[],"uid":"uid"}}`},
	} {
		if string(tc.got) != tc.want {
			t.Errorf("%s: got %s\nwant %s", name, tc.got, tc.want)
		}
	}
	if len(object.Finalizers) != 3 {
		t.Errorf("the object was changed: %v", object.Finalizers)
	}
}
