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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// Settle checks that nothing is lost at a time when all that was to be done for as long as grace
// should have been done: when there have been no faults for that long.
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
	last := a.terms[len(a.terms)-1]
	switch {
	case a.gone:
		return
	case a.DeletionTimestamp != nil:
		c.settleDeleted(a.At, before)
		return
	case a.Status.Phase == v1alpha1.PhaseDone:
		c.settleDone(a, before)
		return
	case last.suspended, last.since.After(before):
		return
	}
	if parent := c.ats[ownerUID(a, v1alpha1.AtKind)]; parent != nil {
		if terms := parent.terms[len(parent.terms)-1]; terms.suspended || terms.deleted || terms.since.After(before) {
			return
		}
	}
	if a.Status.Phase == v1alpha1.PhaseRunning {
		c.settleRunning(a, before)
		return
	}
	overdue := !last.due.IsZero() && last.due.Before(before)
	deadline := a.Spec.StartingDeadlineSeconds
	switch {
	case !overdue:
	case deadline != nil && last.due.Add(plan.Seconds(*deadline)).Before(before):
		c.violate(NotLost, a.At, "its starting deadline has passed, but it has not ended")
	case a.Status.Reason == "":
		c.violate(Reported, a.At, "it has not started, and does not say why: it was due at %s", last.due.UTC().Format(time.RFC3339))
	default:
		c.settleBlocked(a)
	}
}

// settleDeleted checks an object that is deleted.
func (c *Checker) settleDeleted(object metav1.Object, before time.Time) {
	if object.GetDeletionTimestamp().Time.Before(before) {
		c.violate(NotLost, object, "it is deleted, but stays, with finalizers %v", object.GetFinalizers())
	}
}

// settleBlocked checks an At that is due and says what blocks it.
func (c *Checker) settleBlocked(a *at) {
	c.Summary.Blocked[a.Status.Reason]++
	if c.Free.Has(a.Namespace) {
		c.violate(NotLost, a.At, "it was due at %s, and nothing blocks it any more, but it says %s: %s", a.terms[len(a.terms)-1].due.UTC().Format(time.RFC3339), a.Status.Reason, a.Status.Message)
	}
}

// settleDone checks an At that has ended.
func (c *Checker) settleDone(a *at, before time.Time) {
	ended := a.doneSince
	if ended.IsZero() || ended.After(before) {
		return
	}
	if slices.Contains(a.Finalizers, v1alpha1.FinalizerTracking) {
		c.violate(NotLost, a.At, "it has ended, but its finalizer stays")
	}
	if ttl := a.Spec.TTLSecondsAfterFinished; ttl != nil && ended.Add(plan.Seconds(*ttl)).Before(before) && a.changed.Before(before) {
		c.violate(NotLost, a.At, "its time to live has passed, but it is not deleted")
	}
}

// settleRunning checks an At whose phase is RUNNING.
func (c *Checker) settleRunning(a *at, before time.Time) {
	lasts := slices.ContainsFunc(a.pods, func(p *pod) bool { return !p.ended() || p.changed.After(before) })
	isBlocked := a.Status.Reason != "" && a.Status.Reason != v1alpha1.ReasonBackOff
	switch {
	case a.changed.After(before), isBlocked && lasts:
	case isBlocked && (a.Spec.Nodes != nil || a.Spec.Restart != nil || len(a.pods) <= int(plan.PodsBefore(a.At))):
		c.settleBlocked(a) // If it has Pods, the end of each is counted: the next attempt is blocked.
	case a.Spec.Nodes != nil:
		if !slices.ContainsFunc(a.children, func(child *at) bool {
			return !child.gone && child.Status.Phase != v1alpha1.PhaseDone || child.changed.After(before)
		}) {
			c.violate(NotLost, a.At, "all of its Ats have ended, but it has not")
		}
	case a.Spec.Restart != nil:
		c.settleRestart(a, before)
	case a.Status.NextAttemptTime != nil && a.Status.NextAttemptTime.After(before):
	case !lasts:
		c.violate(NotLost, a.At, "all of its Pods have ended, but it has not")
	case a.Spec.ActiveDeadlineSeconds != nil && a.Status.StartTime != nil && a.Status.StartTime.Add(plan.Seconds(*a.Spec.ActiveDeadlineSeconds)+stopTime(a)).Before(before):
		c.violate(NotLost, a.At, "its deadline has passed, but it has not ended")
	}
}

// stopTime returns the time that the Pods of an At have to stop.
func stopTime(a *at) time.Duration {
	most := int64(0)
	for _, p := range a.pods {
		if !p.gone {
			most = max(most, ptr.Deref(p.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds))
		}
	}
	return time.Duration(most) * time.Second
}

// rehearsalDeadline is how long the Pod of a rehearsal exists at most: then the kubelet ends it.
const rehearsalDeadline = 12 * time.Minute

// settlePod checks that a Pod that has ended does not keep its finalizer, and that no Pod of a
// rehearsal is left.
func (c *Checker) settlePod(p *pod, before time.Time) {
	if p.at == nil {
		if !p.gone && p.changed.Add(rehearsalDeadline).Before(before) {
			c.violate(NotLost, p.Pod, "it is left from a rehearsal")
		}
		return
	}
	// A Pod without its label is an exception of the guarantees.
	if p.gone || !slices.Contains(p.Finalizers, v1alpha1.FinalizerTracking) || p.Labels[v1alpha1.LabelAtUID] == "" || p.changed.After(before) {
		return
	}
	done := p.at.gone && p.at.changed.Before(before) || !p.at.doneSince.IsZero() && p.at.doneSince.Before(before)
	if done && (p.ended() || ptr.Deref(p.DeletionGracePeriodSeconds, 1) == 0) {
		c.violate(NotLost, p.Pod, "it has ended, but its finalizer stays")
	}
}
