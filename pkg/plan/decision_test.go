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

package plan

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
)

// TestFresh checks when an At from a cache is good enough to create its Pod.
func TestFresh(t *testing.T) {
	newAt := func(change func(*v1alpha1.At)) *v1alpha1.At {
		at := newAt()
		at.Generation = 1
		change(at)
		return at
	}
	at := newAt(func(*v1alpha1.At) {})
	edited := newAt(func(at *v1alpha1.At) { at.Generation = 2 })
	long := newAt(func(at *v1alpha1.At) { at.Spec.Command = strings.Repeat("x", maxName+1) })
	template := newAt(func(at *v1alpha1.At) { at.Spec.Template = &corev1.PodTemplateSpec{} })
	for name, tc := range map[string]struct {
		world World
		want  Reads
	}{
		"new":           {World{At: at, AsOf: due}, Cached},
		"almost old":    {World{At: at, AsOf: due.Add(1 - staleness.FreshFor)}, Cached},
		"old":           {World{At: at, AsOf: due.Add(-staleness.FreshFor)}, LiveAt},
		"long command":  {World{At: long, AsOf: due}, LiveAt},
		"template":      {World{At: template, AsOf: due}, LiveAt},
		"edited":        {World{At: edited, AsOf: due}, LiveAt},
		"read":          {World{At: edited, Live: LiveAt, AsOf: due.Add(1 - staleness.FreshFor)}, Cached},
		"read long ago": {World{At: edited, Live: LiveAll, AsOf: due.Add(-staleness.FreshFor)}, LiveAt},
	} {
		t.Run(name, func(t *testing.T) {
			tc.world.At, tc.world.Now = KeepAt(tc.world.At), due
			if got := Decide(tc.world); got.Action != (CreatePod{Due: due}) || got.Needs != tc.want {
				t.Errorf("got %+v, want the creation of the Pod, which needs %v", got, tc.want)
			}
		})
	}
}
