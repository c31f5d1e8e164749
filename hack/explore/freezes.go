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
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/freeze"
)

// freezeUntil returns the edit that lets a Freeze hold from the time of the At to another one, in
// seconds.
func freezeUntil(seconds float64) edit {
	instant := func(seconds float64) v1alpha1.FreezeTime {
		return v1alpha1.FreezeTime(timeAt(seconds).Format(time.RFC3339))
	}
	wanted := &v1alpha1.Freeze{ObjectMeta: metav1.ObjectMeta{Name: "freeze"}, Spec: v1alpha1.FreezeSpec{
		Windows: []v1alpha1.FreezeWindow{{From: instant(due), Until: instant(seconds)}},
	}}
	name := fmt.Sprintf("writes the Freeze until %.0f s", seconds)
	return edit{harmless: true, name: name, do: func(s *state) bool {
		return creates(name, wanted).do(s) || changes(name, freezes, wanted.Name, func(meta metav1.Object) { meta.(*v1alpha1.Freeze).Spec = wanted.Spec }, nil).do(s)
	}}
}

// obeys returns the Freezes that a controller knows.
func (c *controller) obeys() *freeze.Set {
	var known []*freeze.Freeze
	for _, o := range c.cache {
		if o.kind == freezes {
			f, err := freeze.New(o.meta.(*v1alpha1.Freeze))
			utilruntime.Must(err)
			known = append(known, f)
		}
	}
	return freeze.NewSet(namespace, known, nil)
}

// recordSkipped records which time a CronAt counts as skipped, from now on: its At must not be created.
func (s *state) recordSkipped(before, after *v1alpha1.CronAt) {
	if skipped := after.Status.Skipped; skipped != nil && skipped.Count > ptr.Deref(before.Status.Skipped, v1alpha1.MissedTimes{}).Count {
		s.hold(before.UID + types.UID(fmt.Sprintf("_%s-%d", before.Name, skipped.Last.Unix()/60)))
	}
}
