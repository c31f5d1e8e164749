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

package audit

import (
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// Settle checks that nothing is lost when all is calm: for as long as grace, there have been no faults
// and no edits, nothing has blocked what is due, and no command has run for that long.
func (c *Checker) Settle(now time.Time, grace time.Duration) {
	c.now = now
	before := now.Add(-grace)
	for _, uid := range slices.Sorted(maps.Keys(c.ats)) {
		c.settleAt(c.ats[uid], before)
	}
	for _, uid := range slices.Sorted(maps.Keys(c.cronAts)) {
		c.settleCronAt(c.cronAts[uid], before)
	}
	for _, uid := range slices.Sorted(maps.Keys(c.pods)) {
		c.settlePod(c.pods[uid], before)
	}
}

// settleAt checks an At that had enough time.
func (c *Checker) settleAt(a *at, before time.Time) {
	due := a.terms[len(a.terms)-1].due
	switch {
	case a.gone:
	case a.DeletionTimestamp != nil:
		c.settleDeleted(a.At, before)
	case a.Status.Phase == v1alpha1.PhaseDone:
		c.settleDone(a, before)
	case a.Status.Phase == v1alpha1.PhaseRunning:
		if !a.hasChanged(before) {
			c.violate(NotLost, a.At, "it has not ended, and nothing of it has changed since %s", a.changed.UTC().Format(time.RFC3339))
		}
	case !due.Before(before):
	case a.Status.Reason == "":
		c.violate(Reported, a.At, "it has not started, and does not say why: it was due at %s", due.UTC().Format(time.RFC3339))
	default:
		c.violate(NotLost, a.At, "it was due at %s, and nothing blocks it any more, but it says %s: %s", due.UTC().Format(time.RFC3339), a.Status.Reason, a.Status.Message)
	}
}

// hasChanged reports whether an At, its Pods or its Ats have changed since a time.
func (a *at) hasChanged(since time.Time) bool {
	return a.changed.After(since) || slices.ContainsFunc(a.pods, func(p *pod) bool { return p.changed.After(since) }) ||
		slices.ContainsFunc(a.children, func(child *at) bool { return child.hasChanged(since) })
}

// settleDeleted checks an object that is deleted.
func (c *Checker) settleDeleted(object metav1.Object, before time.Time) {
	if object.GetDeletionTimestamp().Time.Before(before) {
		c.violate(NotLost, object, "it is deleted, but stays, with finalizers %v", object.GetFinalizers())
	}
}

// settleDone checks an At that has ended.
func (c *Checker) settleDone(a *at, before time.Time) {
	if a.over.After(before) {
		return
	}
	if len(a.Finalizers) > 0 {
		c.violate(NotLost, a.At, "it has ended, but its finalizers %v stay", a.Finalizers)
	}
	if ttl := a.Spec.TTLSecondsAfterFinished; ttl != nil && a.over.Add(plan.Seconds(*ttl)).Before(before) {
		c.violate(NotLost, a.At, "its time to live has passed, but it is not deleted")
	}
}

// settlePod checks that a Pod does not keep its finalizer after the end of its At, and that no Pod of a
// rehearsal is left.
func (c *Checker) settlePod(p *pod, before time.Time) {
	switch {
	case p.gone:
	case p.at == nil:
		if p.changed.Before(before) {
			c.violate(NotLost, p.Pod, "it is left from a rehearsal")
		}
	case slices.Contains(p.Finalizers, v1alpha1.FinalizerTracking) && !p.at.over.IsZero() && p.at.over.Before(before):
		c.violate(NotLost, p.Pod, "its At has ended, but its finalizer stays")
	}
}
