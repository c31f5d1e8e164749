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
	create, look := CreatePod{Due: due}, LookForAt{}
	for name, tc := range map[string]struct {
		world World
		want  any
	}{
		"unknown":         {World{At: at}, look},
		"new":             {World{At: at, AtAsOf: due}, create},
		"almost old":      {World{At: at, AtAsOf: due.Add(1 - staleness.FreshFor)}, create},
		"old":             {World{At: at, AtAsOf: due.Add(-staleness.FreshFor)}, look},
		"from the future": {World{At: at, AtAsOf: due.Add(1)}, look},
		"long command":    {World{At: long, AtAsOf: due}, look},
		"template":        {World{At: template, AtAsOf: due}, look},
		"edited":          {World{At: edited, AtAsOf: due}, look},
		"read":            {World{At: edited, AtIsLive: true, AtAsOf: due.Add(1 - staleness.FreshFor)}, create},
		"read long ago":   {World{At: edited, AtIsLive: true, AtAsOf: due.Add(-staleness.FreshFor)}, look},
	} {
		t.Run(name, func(t *testing.T) {
			tc.world.At, tc.world.Now = KeepAt(tc.world.At), due
			if got := Decide(tc.world).Action; got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}
