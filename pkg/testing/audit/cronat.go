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
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// cronAt is what the history shows of a CronAt.
type cronAt struct {
	*v1alpha1.CronAt
	gone    bool
	blocked time.Time // when it last ceased to say what blocks it
	terms   []terms
	made    map[string]bool // the names of its Ats
	times   sets.Set[int64] // the scheduled times of its Ats, in seconds since 1970
	ats     []*at
	tally   *tally
}

// tally says up to which scheduled time each one has an At or counts as missed or skipped, as long as the
// schedule stays the same, and the CronAt is not suspended.
type tally struct {
	schedule v1alpha1.ObservedSchedule
	until    time.Time
	missed   int64
	skipped  int64
}

func (c *Checker) addCronAt(w Write, object *v1alpha1.CronAt) {
	known := c.cronAts[object.UID]
	if known == nil {
		known = &cronAt{CronAt: object, made: map[string]bool{}, times: sets.Set[int64]{}}
		c.cronAts[object.UID] = known
		c.Summary.CronAts++
	}
	if last, next := known.Status.LastScheduleTime, object.Status.LastScheduleTime; last != nil && (next == nil || next.Before(last)) {
		c.violate(True, object, "its last scheduled time goes back from %v to %v", last, next)
	} else if next != nil && !next.Equal(last) && !next.Before(&object.CreationTimestamp) && !known.times.Has(next.Unix()) {
		c.violate(True, object, "its time %s is recorded, but has no At", next.UTC().Format(time.RFC3339))
		known.tally = nil
	}
	c.checkTimes(w.Sent, known, object)
	if known.Status.Reason != "" && object.Status.Reason == "" {
		known.blocked = w.Time
	}
	known.CronAt, known.gone = object, w.Gone
	known.terms = change(known.terms, terms{
		since: w.Time, deleted: object.DeletionTimestamp != nil || w.Gone, suspended: ptr.Deref(object.Spec.Suspend, false),
		overlaps: object.Spec.ConcurrencyPolicy == v1alpha1.AllowConcurrent || object.Spec.ConcurrencyPolicy == "",
	})
}

// checkTimes checks that each scheduled time that is past has an At or counts as missed, or as skipped
// if a Freeze held then, and only one of these.
func (c *Checker) checkTimes(sent time.Time, known *cronAt, object *v1alpha1.CronAt) {
	status := &object.Status
	before, missed, skipped := known.tally, ptr.Deref(status.Missed, v1alpha1.MissedTimes{}), ptr.Deref(status.Skipped, v1alpha1.MissedTimes{})
	known.tally = nil
	if status.ObservedSchedule == nil || object.DeletionTimestamp != nil || meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionSuspended) {
		return
	}
	now := &tally{schedule: *status.ObservedSchedule, missed: missed.Count, skipped: skipped.Count}
	for _, t := range []time.Time{now.schedule.Since.Time, ptr.Deref(status.LastScheduleTime, metav1.Time{}).Time, missed.Last.Time, skipped.Last.Time} {
		if t.After(now.until) {
			now.until = t
		}
	}
	known.tally = now
	if known.Status.ObservedSchedule == nil && object.Generation <= 1 {
		before = &tally{schedule: now.schedule, until: now.schedule.Since.Time} // It was just seen for the first time.
	}
	expression := parse(now.schedule.Schedule)
	if before == nil || !equality.Semantic.DeepEqual(before.schedule, now.schedule) || expression == nil {
		return
	}
	skips := now.skipped - before.skipped
	rise := now.missed - before.missed + skips
	if rise >= maxCounted {
		return
	}
	var without []time.Time
	for t := expression.Next(before.until.UTC()); !t.IsZero() && !t.After(now.until); t = expression.Next(t) {
		if !known.times.Has(t.Unix()) {
			without = append(without, t)
		}
	}
	period := fmt.Sprintf("after %s, until %s", before.until.UTC().Format(time.RFC3339), now.until.UTC().Format(time.RFC3339))
	switch number := int64(len(without)); {
	case number > rise:
		c.violate(NotLost, object, "%d of its times %s have no At, but %d more count as missed or skipped", number, period, rise)
	case number < rise:
		c.violate(True, object, "%d of its times %s have no At, but %d more count as missed or skipped", number, period, rise)
	case now.schedule.SpreadSeconds > 0: // When exactly its Ats are due is not known here.
	default:
		if least, most := c.countFrozen(without, sent, object); skips < least || skips > most {
			c.violate(True, object, "%d of its times %s count as skipped, but a Freeze has held for %d to %d", skips, period, least, most)
		}
	}
}

// maxCounted is how many missed times are counted at once, at most.
const maxCounted = 100

// parse returns a cron expression, or nil if it follows the time since its last time.
func parse(schedule string) cron.Schedule {
	expression, err := cron.ParseStandard(schedule)
	if _, elapsed := expression.(cron.ConstantDelaySchedule); elapsed || err != nil {
		return nil
	}
	return expression
}

// addScheduled checks the creation of an At by a CronAt.
func (c *Checker) addScheduled(w Write, a *at) {
	owner := c.cronAts[ownerUID(a, v1alpha1.CronAtKind)]
	if owner == nil || !plan.IsScheduled(a.At) {
		return
	}
	if w.Created {
		c.checkScheduled(w, owner, a)
		a.free = owner.freeSince(w.Time)
	}
	owner.made[a.Name] = true
	owner.times.Insert(scheduledTime(a).Unix())
	owner.ats = append(owner.ats, a)
}

func (c *Checker) checkScheduled(w Write, owner *cronAt, a *at) {
	history := owner.terms
	if due, err := plan.Instant(&a.Spec); err == nil {
		history = append(history[:0:0], history...)
		for i := range history {
			history[i].due = due
		}
	}
	c.mayStart(owner.CronAt, w.Sent, history)
	if due, err := plan.Instant(&a.Spec); err == nil {
		if surely, _ := c.frozen(due, w.Sent.Add(-editDelay-seenTime), w.Sent, owner.CronAt); surely {
			c.violate(Honored, owner.CronAt, "its At %s is created although a Freeze holds at its time", a.Name)
		}
	}
	if owner.made[a.Name] && owner.DeletionTimestamp == nil && !owner.gone {
		c.violate(Once, owner.CronAt, "its At %s is created twice", a.Name)
	}
	for _, t := range within(history, w.Sent.Add(-editDelay), w.Sent) {
		if t.overlaps {
			return
		}
	}
	for _, other := range owner.ats {
		if !other.gone && other.Status.Phase != v1alpha1.PhaseDone {
			c.violate(Limits, owner.CronAt, "its At %s is created although At %s has not ended", a.Name, other.Name)
		}
	}
}

// freeSince returns since when a CronAt can create its next At, apart from the time of that.
func (k *cronAt) freeSince(now time.Time) time.Time {
	observed, last := k.Status.ObservedSchedule, k.terms[len(k.terms)-1]
	if k.Status.Reason != "" || observed == nil || k.Generation != k.Status.ObservedGeneration {
		return now // Something blocks it, or it was just edited.
	}
	free := slices.MaxFunc([]time.Time{last.since, observed.Since.Time, k.blocked}, time.Time.Compare)
	for _, other := range k.ats {
		if !last.overlaps && other.over.After(free) {
			free = other.over
		}
	}
	return free
}

// scheduledTime returns the time in the name of the At of a CronAt.
func scheduledTime(a *at) time.Time {
	minutes, _ := strconv.ParseInt(a.Name[strings.LastIndex(a.Name, "-")+1:], 10, 64)
	if t := time.Unix(minutes*60, 0); t.Year() < 3000 {
		return t
	}
	return time.Unix(minutes, 0) // They are seconds.
}

// settleCronAt checks a CronAt that had enough time.
func (c *Checker) settleCronAt(known *cronAt, before time.Time) {
	if known.gone {
		return
	}
	if known.DeletionTimestamp != nil {
		c.settleDeleted(known.CronAt, before)
		return
	}
	expression := parse(known.Spec.Schedule)
	if expression == nil || known.terms[len(known.terms)-1].suspended {
		return
	}
	until := known.CreationTimestamp.Time // Nothing has looked at it yet.
	if known.tally != nil {
		until = known.tally.until
	}
	spread := plan.Seconds(ptr.Deref(known.Spec.SpreadSeconds, 0))
	if due := expression.Next(until.UTC()); due.Add(spread).Before(before) {
		c.violate(NotLost, known.CronAt, "its time %s has no At, and counts neither as missed nor as skipped, with reason %q", due.Format(time.RFC3339), known.Status.Reason)
	}
}
