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
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	"programming-kubernetes.info/cnat-controller/pkg/freeze"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// start is something that will start, unless its state says why not.
type start struct {
	entry
	// State is what is known about the start: empty, or one of the constants below.
	State string `json:"state,omitempty"`
	// Message explains the state.
	Message string `json:"message,omitempty"`
	// Repeats is the schedule of what starts again and again after this, too often for a row each.
	Repeats string `json:"repeats,omitempty"`
}

// The states of a start.
const (
	startWouldFail  = "WouldFail"  // by a preflight or a rehearsal
	startBlocked    = "Blocked"    // something keeps it from starting
	startSuspended  = "Suspended"  // it does not start until it is resumed
	startMayOverlap = "MayOverlap" // the run before may not have ended by then
	startRetries    = "Retries"    // the run has failed and is tried again
	startFrozen     = "Frozen"     // it waits for the end of a Freeze
	startSkipped    = "Skipped"    // its CronAt skips it because of a Freeze
)

// note describes what is known about a start.
func (s *start) note() string {
	words := map[string]string{startWouldFail: "would fail", startBlocked: "blocked", startSuspended: "suspended", startMayOverlap: "may overlap", startRetries: "tried again", startFrozen: "waits", startSkipped: "skipped"}
	note := words[s.State]
	if s.Message != "" {
		note += ": " + s.Message
	}
	if s.Repeats != "" {
		note = strings.TrimPrefix(note+"; ", "; ") + "again and again: " + s.Repeats
	}
	return note
}

// startsOf returns what starts from now until a time. The Ats of the nodes of an At are part of that.
func startsOf(ats []*v1alpha1.At, cronAts []*v1alpha1.CronAt, cronJobs []*batchv1.CronJob, freezes *freeze.Set, now, until time.Time) (all []start) {
	for _, at := range ats {
		if s, starts := startOfAt(at, now); starts && !s.Time.After(until) {
			all = append(all, s)
		}
	}
	took := durations(ats)
	for _, cronAt := range cronAts {
		all = append(all, startsOfCronAt(cronAt, cronAt, took[string(cronAt.UID)], now, until)...)
	}
	for i := range all {
		all[i].setFrozen(freezes, now)
	}
	for _, cronJob := range cronJobs {
		all = append(all, startsOfCronAt(cronJob, cronAtOf(cronJob), 0, now, until)...)
	}
	slices.SortStableFunc(all, func(a, b start) int { return a.Time.Compare(b.Time) })
	return all
}

// startOfAt returns the next start of an At, which may be that of a further attempt.
func startOfAt(at *v1alpha1.At, now time.Time) (s start, starts bool) {
	instant, err := plan.Instant(&at.Spec)
	if err != nil || at.DeletionTimestamp != nil || at.Status.Phase == v1alpha1.PhaseDone || plan.ParentName(at) != "" {
		return start{}, false
	}
	if at.Status.Phase == v1alpha1.PhaseRunning {
		next := at.Status.NextAttemptTime
		if next == nil {
			return start{}, false
		}
		instant, s.State = next.Time, startRetries
		s.Message = fmt.Sprintf("%d failed", at.Status.Failed)
	}
	s.entry = newEntry(at, commandOf(&at.Spec.RunSpec))
	s.Time = instant.UTC()
	s.setState(now)
	return s, true
}

// setState sets what is known about the next start of an At or a CronAt.
func (s *start) setState(now time.Time) {
	of := asAt(s.object)
	switch blocked := plan.Blocked(of); {
	case ptr.Deref(of.Spec.Suspend, false):
		s.State, s.Message = startSuspended, ""
	case plan.IsForecast(blocked):
		s.State, s.Message = startWouldFail, blocked.Message
	case blocked != nil:
		s.State, s.Message = startBlocked, blocked.Message
	case isUnattended(s.object, now):
		s.State, s.Message = startBlocked, "there is no controller"
	}
}

// setFrozen sets what a Freeze does to a start: an At waits, and a CronAt skips the time.
func (s *start) setFrozen(freezes *freeze.Set, now time.Time) {
	hold := freezes.Holding(freeze.NewSubject(s.object), later(s.Time, now))
	if hold == nil || s.State == startSuspended {
		return
	}
	s.State, s.Message = startFrozen, hold.String()
	if s.Kind == v1alpha1.CronAtKind {
		s.State = startSkipped
	}
}

// durations returns how long the last run of each CronAt took, by its UID.
func durations(ats []*v1alpha1.At) map[string]time.Duration {
	took, last := map[string]time.Duration{}, map[string]time.Time{}
	for _, at := range ats {
		uid := at.Labels[v1alpha1.LabelCronAtUID]
		began, ended := at.Status.StartTime, at.Status.CompletionTime
		if uid != "" && began != nil && ended != nil && !began.Time.Before(last[uid]) {
			took[uid], last[uid] = ended.Sub(began.Time), began.Time
		}
	}
	return took
}

// startsOfCronAt returns the times of a CronAt, or of a CronJob with the same schedule or, if there are more than one in
// each hour on average, only the first. What is known is about the next one, except that each may begin before the
// one before has ended, as long as that takes as long as the last. If the schedule is invalid, there are none.
func startsOfCronAt(of object, cronAt *v1alpha1.CronAt, took time.Duration, now, until time.Time) (all []start) {
	resumed := *cronAt
	resumed.Spec.Suspend = nil
	limit := int(until.Sub(now)/time.Hour) + 1
	times, _ := cronplan.Next(&resumed, now, limit+1)
	entry := newEntry(of, commandOf(&cronAt.Spec.AtTemplate.Spec))
	for i, at := range times {
		if at.After(until) {
			break
		}
		s := start{entry: entry}
		if s.Time = at.UTC(); i > 0 && took > at.Sub(times[i-1]) {
			s.State, s.Message = startMayOverlap, "the last run took "+short(took)
		}
		all = append(all, s)
	}
	if len(all) > limit {
		all = all[:1]
		all[0].Repeats = cronAt.Spec.Schedule
	}
	switch {
	case len(all) == 0:
	case ptr.Deref(cronAt.Spec.Suspend, false):
		all = all[:1]
		all[0].State = startSuspended
	default:
		all[0].setState(now)
	}
	return all
}
