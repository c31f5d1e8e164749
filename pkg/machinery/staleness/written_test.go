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

package staleness

import (
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func version(uid types.UID, resourceVersion string) *metav1.ObjectMeta {
	return &metav1.ObjectMeta{Name: "a", UID: uid, ResourceVersion: resourceVersion}
}

func TestWritten(t *testing.T) {
	for name, tc := range map[string]struct {
		// what the cache has when 2 is written, when the sync has read it, and now; nil: nothing
		before, read, now *metav1.ObjectMeta
		events            func(*Written[*metav1.ObjectMeta])
		want              string
	}{
		"the cache lags":              {before: version("a", "1"), read: version("a", "1"), now: version("a", "1"), want: "2"},
		"the cache was faster":        {before: version("a", "2"), read: version("a", "1"), now: version("a", "2"), want: "2"},
		"the cache has it by now":     {before: version("a", "1"), read: version("a", "2"), now: version("a", "2"), want: "2"},
		"forgotten after it was read": {before: version("a", "1"), read: version("a", "1"), now: version("a", "3"), events: func(w *Written[*metav1.ObjectMeta]) { w.Seen(version("a", "3")) }, want: "3"},
		"an earlier version was seen": {before: version("a", "1"), read: version("a", "1"), now: version("a", "1"), events: func(w *Written[*metav1.ObjectMeta]) { w.Seen(version("a", "1")) }, want: "2"},
		"deleted after it was read":   {before: version("a", "1"), read: version("a", "1"), events: func(w *Written[*metav1.ObjectMeta]) { w.Forget("a") }, want: "1"},
		"another object has its name": {before: version("b", "1"), read: version("a", "1"), now: version("b", "1"), want: "1"},
	} {
		t.Run(name, func(t *testing.T) {
			cached := tc.before
			w := NewWritten(func(string, string) (*metav1.ObjectMeta, error) {
				if cached == nil {
					return nil, errors.New("not found")
				}
				return cached, nil
			}, func(object *metav1.ObjectMeta) *metav1.ObjectMeta { return object })
			w.Remember(version("a", "2"))
			cached = tc.now
			if tc.events != nil {
				tc.events(w)
				if left := len(w.objects); tc.want != "2" && left > 0 {
					t.Errorf("%d objects are remembered", left)
				}
			}
			if got := w.Latest(tc.read).ResourceVersion; got != tc.want {
				t.Errorf("got version %s, want %s", got, tc.want)
			}
		})
	}
}

// TestSeen covers which changes are known to be this process's own.
func TestSeen(t *testing.T) {
	for seen, want := range map[string]bool{"1": true, "2": true, "3": false} {
		w := NewWritten(func(string, string) (*metav1.ObjectMeta, error) { return version("a", "1"), nil }, func(object *metav1.ObjectMeta) *metav1.ObjectMeta { return object })
		w.Remember(version("a", "2"))
		if got := w.Seen(version("a", seen)); got != want {
			t.Errorf("version %s is its own: %v, want %v", seen, got, want)
		}
		if w.Seen(version("b", seen)) {
			t.Error("another object is its own")
		}
	}
}
