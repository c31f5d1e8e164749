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

package simulation

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// system is the namespace of the controller. A Freeze in it holds in all others.
const system = "cnat-system"

// labelFloor is a label of namespaces.
const labelFloor = "floor"

// labels returns the labels of an At or a CronAt, on which it may depend whether a Freeze holds it.
func (w *World) labels() map[string]string {
	labels := map[string]string{}
	if w.chance(40) {
		labels["team"] = "x"
	}
	if w.chance(20) {
		labels[v1alpha1.LabelIgnoreFreezes] = "true"
	}
	return labels
}

// freeze writes a Freeze that is edited and deleted later.
func (w *World) freeze() {
	if w.quiet {
		return
	}
	freeze := w.writeFreeze(20 * time.Minute)
	edit := func(do func(found *v1alpha1.Freeze)) {
		w.after(w.between(0, 30*time.Minute), func() {
			if found, ok := w.live[freeze.UID].(*v1alpha1.Freeze); ok {
				do(found.DeepCopy())
			}
		})
	}
	edit(func(found *v1alpha1.Freeze) {
		found.Spec.Windows = append(found.Spec.Windows[w.random.IntN(2):], w.window(20*time.Minute, found.Spec.TimeZone))
		must(w.cnat.CnatV1alpha1().Freezes(found.Namespace).Update(w.t.Context(), found, metav1.UpdateOptions{}))
	})
	edit(func(found *v1alpha1.Freeze) { w.delete(found) })
}

// window returns a window of a few minutes that may begin somewhat later, or that repeats if it may.
// Some have instants, some have times that the clocks of a time zone show.
func (w *World) window(later time.Duration, zone *string) v1alpha1.FreezeWindow {
	if later > 0 && w.chance(30) {
		return v1alpha1.FreezeWindow{Schedule: fmt.Sprintf("%d-59/%d * * * *", w.random.IntN(10), 10+w.random.IntN(20)), DurationSeconds: 60 + w.random.Int32N(300)}
	}
	from := w.clock.Now().Add(w.between(-later/2-1, later+1)).In(must(time.LoadLocation(ptr.Deref(zone, "UTC"))))
	until := from.Add(w.between(time.Minute, 6*time.Minute))
	layout := time.RFC3339
	if w.chance(50) {
		layout = "2006-01-02T15:04:05"
	}
	return v1alpha1.FreezeWindow{From: v1alpha1.FreezeTime(from.Format(layout)), Until: v1alpha1.FreezeTime(until.Format(layout))}
}

// writeFreeze lets a user freeze a namespace, or the operator some or all of them.
func (w *World) writeFreeze(later time.Duration) *v1alpha1.Freeze {
	freeze := &v1alpha1.Freeze{ObjectMeta: metav1.ObjectMeta{Name: w.name("freeze"), Namespace: system}}
	some := namespaces[w.random.IntN(3)]
	switch {
	case w.chance(50) && !w.terminating[some]:
		freeze.Namespace = some
	case w.chance(30):
		freeze.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: some}}
	case w.chance(30):
		freeze.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{labelFloor: "1"}}
	}
	switch w.random.IntN(4) {
	case 0:
		freeze.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}}
	case 1:
		freeze.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: v1alpha1.LabelCronAtName, Operator: metav1.LabelSelectorOpDoesNotExist}}}
	}
	if w.chance(30) {
		freeze.Spec.TimeZone = ptr.To("Asia/Kolkata")
	}
	freeze.Spec.Windows = []v1alpha1.FreezeWindow{w.window(later, freeze.Spec.TimeZone)}
	return must(w.cnat.CnatV1alpha1().Freezes(freeze.Namespace).Create(w.t.Context(), freeze, metav1.CreateOptions{}))
}
