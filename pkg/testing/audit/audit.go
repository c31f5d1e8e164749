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

// Package audit checks the guarantees of cnat against a history: the writes that an API server
// has stored in a simulation, in their order.
//
// The rules are written without the decisions that they check. The history shows each object since its
// creation. A Pod may have started before its status says so.
package audit

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// Write is a change of an object that the API server has stored.
type Write struct {
	// Time is when it was stored, and Sent is when its client sent it.
	Sent, Time time.Time
	// Created is true for the first write of an object.
	Created bool
	// Gone is true if the object does not exist any more after the write.
	Gone bool
	// Object is an At, a CronAt, a Freeze, a Pod, a Node or a Deployment, after the write. It must
	// not change.
	Object metav1.Object
}

// Rule is a promise.
type Rule string

// The promises.
const (
	Once     Rule = "once"     // Nothing runs a second time.
	NotEarly Rule = "early"    // Nothing starts before its time.
	Honored  Rule = "honored"  // Nothing starts after a suspension, a deletion or a later time, or in a Freeze.
	Limits   Rule = "limits"   // No more than allowed runs at the same time.
	NotLost  Rule = "lost"     // What is due starts, what has ended is recorded, nothing is left over.
	True     Rule = "true"     // What is recorded has happened.
	Reported Rule = "reported" // What does not start says why.
)

// Violation is a broken promise.
type Violation struct {
	Time    time.Time
	Rule    Rule
	Object  string
	Message string
}

// String returns the violation in one line.
func (v Violation) String() string {
	return fmt.Sprintf("%s %s: %s: %s", v.Time.UTC().Format("2006-01-02T15:04:05.000Z"), v.Rule, v.Object, v.Message)
}

// Checker checks a history.
type Checker struct {
	// MaxLate is how late the first Pod of an At may be created, if nothing blocks it, and how late
	// the end of a Pod may be recorded, for the Ats that are created from now on. 0 means no limit.
	MaxLate time.Duration

	// System is the namespace whose Freezes hold everywhere.
	System string

	Violations []Violation
	Summary    Summary

	now     time.Time // of the write
	noticed time.Time // when the last step of the clock must have been noticed
	ats     map[types.UID]*at
	cronAts map[types.UID]*cronAt
	pods    map[types.UID]*pod

	deployments map[types.UID]*deployment
	freezes     map[types.UID][]*freeze
	nodes       map[string]labels.Set // also those that are gone
	namespaces  map[string]labels.Set
}

// Summary says what a history contains.
type Summary struct {
	Writes, Ats, CronAts, Pods, Restarts int
	// Ends counts the Ats that ended, by their reason.
	Ends map[string]int
	// Late is how late the first Pods were created, of the Ats that nothing blocked.
	Late []time.Duration
}

// NewChecker returns a Checker of a history that has no writes yet.
func NewChecker() *Checker {
	return &Checker{
		Summary: Summary{Ends: map[string]int{}},
		ats:     map[types.UID]*at{}, cronAts: map[types.UID]*cronAt{}, pods: map[types.UID]*pod{},
		deployments: map[types.UID]*deployment{}, freezes: map[types.UID][]*freeze{}, nodes: map[string]labels.Set{}, namespaces: map[string]labels.Set{},
	}
}

// editDelay is how long before its start an edit must have been stored, so that it has to be
// honored: half a second, and 100 ms for the way of the answer to the controller.
const editDelay = 600 * time.Millisecond

// Add checks the next write.
func (c *Checker) Add(w Write) {
	c.now = w.Time
	c.Summary.Writes++
	switch object := w.Object.(type) {
	case *v1alpha1.At:
		c.addAt(w, object)
	case *v1alpha1.CronAt:
		c.addCronAt(w, object)
	case *v1alpha1.Freeze:
		c.addFreeze(w, object)
	case *corev1.Pod:
		c.addPod(w, object)
	case *corev1.Node:
		c.nodes[object.Name] = object.Labels
	case *corev1.Namespace:
		c.namespaces[object.Name] = object.Labels
	case *appsv1.Deployment:
		c.addDeployment(w, object)
	}
}

// noticeTime is how long it may take to notice that the clock was stepped.
const noticeTime = time.Minute

// Step is called after the clock was stepped to now. What has happened is as long ago as before.
func (c *Checker) Step(now time.Time, by time.Duration) {
	c.now, c.noticed = now, now.Add(noticeTime)
	shift := func(times ...*time.Time) {
		for _, t := range times {
			if !t.IsZero() {
				*t = t.Add(by)
			}
		}
	}
	for _, a := range c.ats {
		shift(&a.changed, &a.over, &a.blocked, &a.free)
		for i := range a.terms {
			shift(&a.terms[i].since)
		}
	}
	for _, known := range c.cronAts {
		for i := range known.terms {
			shift(&known.terms[i].since)
		}
	}
	for _, p := range c.pods {
		shift(&p.changed, &p.over)
	}
	for _, d := range c.deployments {
		shift(&d.changed)
	}
	for _, versions := range c.freezes {
		for _, f := range versions {
			shift(&f.since, &f.until)
		}
	}
}

func (c *Checker) violate(rule Rule, object metav1.Object, format string, args ...any) {
	kind := reflect.TypeOf(object).Elem().Name()
	c.Violations = append(c.Violations, Violation{c.now, rule, fmt.Sprintf("%s %s/%s", kind, object.GetNamespace(), object.GetName()), fmt.Sprintf(format, args...)})
}

// Lateness returns the median, the 99th percentile and the maximum of Late.
func (s *Summary) Lateness() (median, p99, most time.Duration) {
	if len(s.Late) == 0 {
		return 0, 0, 0
	}
	sorted := slices.Sorted(slices.Values(s.Late))
	return sorted[len(sorted)/2], sorted[len(sorted)*99/100], sorted[len(sorted)-1]
}

// terms say whether an object may start something, since a time.
type terms struct {
	since     time.Time
	due       time.Time // of an At; the zero time if its schedule is invalid
	suspended bool
	deleted   bool
	overlaps  bool // of a CronAt: its Ats may run at the same time
	closed    bool // of an At with nodes: nothing may start on further nodes
}

// change appends terms if they differ from the latest ones.
func change(history []terms, next terms) []terms {
	if len(history) > 0 {
		last := history[len(history)-1]
		if last.since = next.since; last == next {
			return history
		}
	}
	return append(history, next)
}

// within returns the terms that were valid at any time from one instant to another.
func within(history []terms, from, to time.Time) []terms {
	var valid []terms
	for i, t := range history {
		if !t.since.After(to) && (i == len(history)-1 || !history[i+1].since.Before(from)) {
			valid = append(valid, t)
		}
	}
	return valid
}

// mayStart checks that a start that was sent at some time respects terms that were valid shortly
// before. An At that is part of another one needs the terms of both.
func (c *Checker) mayStart(object metav1.Object, sent time.Time, history []terms) {
	if respects(sent, history) {
		return
	}
	valid := within(history, sent.Add(-editDelay), sent)
	last := valid[len(valid)-1]
	switch {
	case last.deleted:
		c.violate(Honored, object, "it starts %v after it, or what it belongs to, was deleted", sent.Sub(last.since))
	case last.closed:
		c.violate(Limits, object, "it starts %v after its run had ended, or had failed on more nodes than maxFailed", sent.Sub(last.since))
	case last.suspended:
		c.violate(Honored, object, "it starts %v after it, or what it belongs to, was suspended", sent.Sub(last.since))
	case len(history) > 1 && sent.Sub(last.since) < time.Minute && slices.ContainsFunc(history, func(t terms) bool { return !t.due.After(sent) }):
		c.violate(Honored, object, "it starts %v after its time was moved to %s", sent.Sub(last.since), last.due.UTC().Format(time.RFC3339))
	default:
		c.violate(NotEarly, object, "it starts %v before its time, %s", last.due.Sub(sent), last.due.UTC().Format(time.RFC3339Nano))
	}
}

// respects reports whether a start that was sent at some time respects terms that were valid
// shortly before, or there were none yet.
func respects(sent time.Time, history []terms) bool {
	valid := within(history, sent.Add(-editDelay), sent)
	return len(valid) == 0 || slices.ContainsFunc(valid, func(t terms) bool {
		return !t.suspended && !t.deleted && !t.closed && !t.due.After(sent)
	})
}
