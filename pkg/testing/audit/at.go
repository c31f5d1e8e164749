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
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// at is what the history shows of an At.
type at struct {
	*v1alpha1.At
	gone     bool
	changed  time.Time // the latest write
	terms    []terms
	pods     []*pod // in the order of their creation
	children []*at
	backoff  int32     // the highest spec.backoffLimit
	most     int       // the highest spec.nodes.maxConcurrent
	over     time.Time // since when it has ended or is gone, or the zero time
	blocked  time.Time // when it last ceased to say what blocks it
	free     time.Time // since when its CronAt could have created it, apart from its time
	maxLate  time.Duration
}

// pod is what the history shows of the Pod of an At.
type pod struct {
	*corev1.Pod
	at      *at
	gone    bool
	started bool
	changed time.Time
	over    time.Time // since when it has ended, or the zero time
}

func (p *pod) succeeded() bool { return p.Status.Phase == corev1.PodSucceeded }
func (p *pod) ended() bool {
	return p.gone || p.succeeded() || p.Status.Phase == corev1.PodFailed
}

var ranks = map[v1alpha1.AtPhase]int{v1alpha1.PhaseRunning: 1, v1alpha1.PhaseDone: 2}

func (c *Checker) addAt(w Write, object *v1alpha1.At) {
	a := c.ats[object.UID]
	if a == nil {
		a = &at{At: object, maxLate: c.MaxLate}
		c.ats[object.UID] = a
		c.Summary.Ats++
		if parent := c.ats[ownerUID(object, v1alpha1.AtKind)]; parent != nil {
			parent.children = append(parent.children, a)
			if nodes := parent.Spec.Nodes; nodes != nil && !matches(&nodes.Selector, c.nodes[object.Spec.Node]) {
				c.violate(Limits, object, "it runs on node %s, which its selector leaves out", object.Spec.Node)
			}
		}
		c.addScheduled(w, a)
	}
	c.checkStatus(a, object)
	if a.Status.Reason != "" && object.Status.Reason == "" {
		a.blocked = w.Time
	}
	if w.Gone {
		a.over = w.Time
	}
	due, _ := plan.Instant(&object.Spec) // The zero time if there is none.
	a.At, a.gone, a.changed = object, w.Gone, w.Time
	a.backoff = max(a.backoff, ptr.Deref(object.Spec.BackoffLimit, 0))
	a.most = max(a.most, a.maxConcurrent())
	a.terms = change(a.terms, terms{
		since: w.Time, due: due, deleted: object.DeletionTimestamp != nil || w.Gone,
		suspended: ptr.Deref(object.Spec.Suspend, false) || due.IsZero(), closed: isClosed(object),
	})
}

// isClosed reports whether a run on nodes must not start on further nodes.
func isClosed(object *v1alpha1.At) bool {
	nodes := object.Spec.Nodes
	return nodes != nil && (object.Status.Phase == v1alpha1.PhaseDone ||
		nodes.MaxFailed != nil && object.Status.Nodes != nil && object.Status.Nodes.Failed > *nodes.MaxFailed)
}

// maxConcurrent returns on how many nodes an At may run at the same time.
func (a *at) maxConcurrent() int {
	if a.Spec.Nodes == nil || a.Spec.Nodes.MaxConcurrent == nil {
		return math.MaxInt
	}
	desired := max(len(a.children), int(ptr.Deref(a.Status.Nodes, v1alpha1.AtNodesStatus{}).Desired))
	most, _ := intstr.GetScaledValueFromIntOrPercent(a.Spec.Nodes.MaxConcurrent, desired, true) // The CRD has validated it.
	return most
}

// checkStatus checks a status against the one before, and against what has happened.
func (c *Checker) checkStatus(a *at, next *v1alpha1.At) {
	before, after := a.Status, next.Status
	if ranks[after.Phase] < ranks[before.Phase] || after.Failed < before.Failed {
		c.violate(True, next, "its status goes back from %s with %d failed to %s with %d failed", before.Phase, before.Failed, after.Phase, after.Failed)
	}
	if a.At == next || before.Phase != v1alpha1.PhaseDone {
		c.checkConditions(next)
	}
	if before.Phase == v1alpha1.PhaseDone {
		before.ObservedGeneration, after.ObservedGeneration = 0, 0
		if a.At != next && !equality.Semantic.DeepEqual(before, after) {
			c.violate(True, next, "its status changes after its end")
		}
		return
	}
	c.checkRestarted(a, next)
	recorded := c.recorded(a, next)
	if after.Phase != v1alpha1.PhaseDone {
		return
	}
	a.over = c.now
	c.Summary.Ends[after.Reason]++
	due, _ := plan.Instant(&next.Spec)
	switch reason := after.Reason; {
	case reason == v1alpha1.ReasonCompleted && recorded != nil && !recorded.succeeded():
		c.violate(True, next, "it is Completed, but its Pod %s is %s", recorded.Name, recorded.Status.Phase)
	case reason == v1alpha1.ReasonCommandFailed && recorded != nil && recorded.Status.Phase != corev1.PodFailed:
		c.violate(True, next, "its command has failed, but its Pod %s is %s", recorded.Name, recorded.Status.Phase)
	case reason == v1alpha1.ReasonPodLost && recorded != nil && !recorded.gone && recorded.DeletionTimestamp == nil && slices.Contains(recorded.Finalizers, v1alpha1.FinalizerTracking):
		c.violate(True, next, "its Pod %s is lost, but exists", recorded.Name)
	case reason == v1alpha1.ReasonPodLost && recorded != nil && recorded.succeeded():
		c.violate(NotLost, next, "its Pod %s is recorded as lost, but has succeeded", recorded.Name)
	case reason == v1alpha1.ReasonCompleted && after.Pod == nil && next.Spec.Nodes == nil && next.Spec.Restart == nil:
		c.violate(True, next, "it is Completed, but had no Pod")
	case reason == v1alpha1.ReasonStartingDeadlineExceeded && next.Spec.StartingDeadlineSeconds != nil && c.now.Before(due.Add(plan.Seconds(*next.Spec.StartingDeadlineSeconds))):
		c.violate(True, next, "its starting deadline has not passed")
	case reason == v1alpha1.ReasonStartingDeadlineExceeded && slices.ContainsFunc(a.pods, func(p *pod) bool { return p.started }):
		c.violate(True, next, "it says that it has not started, but it has")
	case reason == v1alpha1.ReasonDeadlineExceeded && next.Spec.ActiveDeadlineSeconds != nil && after.StartTime != nil && c.now.Before(after.StartTime.Add(plan.Seconds(*next.Spec.ActiveDeadlineSeconds))):
		c.violate(True, next, "its deadline has not passed")
	case after.Nodes != nil:
		c.checkCounts(a, next)
	case reason == v1alpha1.ReasonCompleted && a.maxLate > 0 && recorded != nil && !recorded.over.IsZero() && c.now.Sub(recorded.over) > a.maxLate:
		c.violate(NotLost, next, "its end is recorded %v after its Pod %s has ended", c.now.Sub(recorded.over), recorded.Name)
	}
}

// checkConditions checks that an At is either Complete or Failed when it has ended, for its reason,
// and neither before.
func (c *Checker) checkConditions(object *v1alpha1.At) {
	status := &object.Status
	var ends []string
	for _, condition := range status.Conditions {
		if condition.Status == metav1.ConditionTrue && (condition.Type == v1alpha1.ConditionComplete || condition.Type == v1alpha1.ConditionFailed) {
			ends = append(ends, condition.Type+"/"+condition.Reason)
		}
	}
	var want []string
	switch {
	case status.Phase != v1alpha1.PhaseDone:
	case status.Reason == v1alpha1.ReasonCompleted:
		want = []string{v1alpha1.ConditionComplete + "/" + status.Reason}
	default:
		want = []string{v1alpha1.ConditionFailed + "/" + status.Reason}
	}
	if !slices.Equal(ends, want) {
		c.violate(True, object, "it is %s with reason %q, but its conditions say %v", status.Phase, status.Reason, ends)
	}
}

// checkCounts checks how many nodes the status of an At that has ended counts.
func (c *Checker) checkCounts(a *at, next *v1alpha1.At) {
	var succeeded, failed int32
	for _, child := range a.children {
		switch reason := child.Status.Reason; {
		case reason == v1alpha1.ReasonCompleted:
			succeeded++
		case child.Status.Phase == v1alpha1.PhaseDone && reason != v1alpha1.ReasonNotStarted, child.gone:
			failed++
		}
	}
	if counts := next.Status.Nodes; counts.Succeeded != succeeded || counts.Failed != failed {
		c.violate(True, next, "it counts %d succeeded and %d failed, but %d and %d of its Ats have", counts.Succeeded, counts.Failed, succeeded, failed)
	} else if next.Status.Reason == v1alpha1.ReasonCompleted && succeeded < counts.Desired {
		c.violate(True, next, "it is Completed, but only %d of its Ats are", succeeded)
	}
}

// recorded returns the Pod that a status records, or nil if there is none.
func (c *Checker) recorded(a *at, next *v1alpha1.At) *pod {
	if next.Status.Pod == nil {
		return nil
	}
	p := c.pods[next.Status.Pod.UID]
	switch {
	case p == nil:
		c.violate(True, next, "it records Pod %s, which was not created", next.Status.Pod.Name)
	case p.at != a:
		c.violate(True, next, "it records Pod %s, which is not its own", p.Name)
		return nil
	}
	return p
}

// ownerUID returns the UID of an object's controller if that has the given kind.
func ownerUID(object metav1.Object, kind string) types.UID {
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil && owner.Kind == kind {
		return owner.UID
	}
	return ""
}

func (c *Checker) addPod(w Write, object *corev1.Pod) {
	p := c.pods[object.UID]
	if plan.IsRehearsal(object) || p != nil && p.at == nil { // It runs no command.
		if p == nil {
			p = &pod{changed: w.Time}
			c.pods[object.UID] = p
		}
		p.Pod, p.gone = object, w.Gone
		return
	}
	if p == nil {
		p = &pod{at: c.ats[ownerUID(object, v1alpha1.AtKind)]}
		if p.at == nil {
			return // It belongs to no At.
		}
		c.pods[object.UID] = p
		p.Pod = object
		c.Summary.Pods++
		c.checkCreation(w, p)
		p.at.pods = append(p.at.pods, p)
	}
	started := p.started || hasStarted(object)
	if started && !p.started {
		c.checkStart(p)
	}
	p.Pod, p.started, p.gone, p.changed = object, started, w.Gone, w.Time
	if p.over.IsZero() && p.ended() {
		p.over = w.Time
	}
}

// hasStarted reports whether a command may have started.
func hasStarted(object *corev1.Pod) bool {
	return object.Status.Phase == corev1.PodRunning || object.Status.Phase == corev1.PodSucceeded ||
		slices.ContainsFunc(object.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
			return s.State.Running != nil || s.State.Terminated != nil && !s.State.Terminated.StartedAt.IsZero()
		})
}

// lateCreation is how long a creation may take until the name of its Pod can be free again.
const lateCreation = 9 * time.Second

// checkCreation checks the creation of a Pod.
func (c *Checker) checkCreation(w Write, p *pod) {
	a := p.at
	first := len(a.pods) == 0
	parent := c.ats[ownerUID(a, v1alpha1.AtKind)]
	for _, needed := range []*at{a, parent} {
		switch {
		case needed == nil:
		case first:
			c.mayStart(a.At, w.Sent, needed.terms)
		default:
			c.mayStart(a.At, w.Sent, started(needed.terms))
		}
	}
	if deadline := a.Spec.StartingDeadlineSeconds; first && parent == nil && deadline != nil {
		last := a.terms[len(a.terms)-1]
		if end := last.due.Add(plan.Seconds(*deadline) + time.Second); w.Sent.Sub(last.since) > editDelay && w.Sent.After(end) {
			c.violate(Honored, a.At, "it starts %v after its starting deadline", w.Sent.Sub(end))
		}
	}
	c.checkFrozen(a, w.Sent)
	if first && parent == nil {
		c.checkLate(w, a)
	}
	// What runs again after a deletion, or is created very late, is an exception of the guarantees.
	if w.Time.Sub(w.Sent) >= lateCreation || a.DeletionTimestamp != nil || a.gone {
		return
	}
	if next := a.Status.NextAttemptTime; next != nil && !first && w.Sent.Before(next.Time) {
		c.violate(NotEarly, a.At, "its next attempt starts %v before its time", next.Sub(w.Sent))
	}
	if slices.ContainsFunc(a.pods, func(other *pod) bool { return other.Name == p.Name }) {
		c.violate(Once, a.At, "its Pod %s is created twice", p.Name)
	}
}

// checkLate notes how late an At starts, and checks that. What blocks or holds an At, or makes its
// CronAt wait, is no delay.
func (c *Checker) checkLate(w Write, a *at) {
	last := a.terms[len(a.terms)-1]
	waited := a.Status.Reason == v1alpha1.ReasonFrozen
	if a.Status.Reason != "" && !waited || last.suspended || last.due.IsZero() {
		return
	}
	changed := last.since
	if len(a.terms) == 1 && !a.free.IsZero() {
		changed = a.free // It should have been created at its time.
	}
	since := slices.MaxFunc([]time.Time{last.due, changed, a.blocked, c.noticed}, time.Time.Compare)
	late := max(0, w.Time.Sub(since))
	if !waited {
		c.Summary.Late = append(c.Summary.Late, late)
	}
	if a.maxLate > 0 && late > a.maxLate && !c.mayHaveWaited(a, w.Time.Add(-a.maxLate), w.Time) {
		c.violate(NotLost, a.At, "it starts %v late", late)
	}
}

// started returns the terms of an At that has started: its time has come, whatever is edited,
// and it goes on, whatever fails on other nodes.
func started(history []terms) []terms {
	history = slices.Clone(history)
	for i := range history {
		history[i].due, history[i].closed = time.Time{}, false
	}
	return history
}

// checkStart checks that no other Pod of the At runs, and that there are not too many.
func (c *Checker) checkStart(p *pod) {
	a := p.at
	if a.DeletionTimestamp != nil || a.gone {
		return // What runs again after a deletion is an exception of the guarantees.
	}
	runs := int32(1)
	for _, other := range a.pods {
		if other == p || !other.started {
			continue
		}
		runs++
		if !other.ended() || other.succeeded() {
			c.violate(Once, a.At, "its Pod %s starts although its Pod %s is %s", p.Name, other.Name, other.Status.Phase)
		}
	}
	if runs > a.backoff+1 {
		c.violate(Once, a.At, "%d of its Pods have started, more than its backoffLimit of %d allows", runs, a.backoff)
	}
	c.checkConcurrency(a)
}

// checkConcurrency checks spec.nodes.maxConcurrent when another child starts. What runs on a node
// that is gone does not count.
func (c *Checker) checkConcurrency(child *at) {
	parent := c.ats[ownerUID(child, v1alpha1.AtKind)]
	if parent == nil {
		return
	}
	running := 1
	for _, other := range parent.children {
		if other != child && other.Status.Reason != v1alpha1.ReasonNodeGone && slices.ContainsFunc(other.pods, func(p *pod) bool { return p.started && !p.ended() }) {
			running++
		}
	}
	if most := max(parent.most, parent.maxConcurrent()); running > most {
		c.violate(Limits, parent.At, "it runs on %d nodes at the same time, with maxConcurrent %d", running, most)
	}
}
