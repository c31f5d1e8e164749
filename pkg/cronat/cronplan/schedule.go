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

package cronplan

import (
	"fmt"
	"hash/fnv"
	"sort"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/zones"
)

// maxCounted is the maximum number of missed times to count at once.
const maxCounted = 100

// everyHour has the bits of all hours.
const everyHour = 1<<24 - 1

// schedule is a cron expression in a time zone.
type schedule struct {
	expression cron.Schedule
	location   *time.Location
	// passing is true if the expression follows elapsed time, not the hour that the clocks
	// show.
	passing bool
}

// parse returns the schedule of a spec. The error is a sentence that says what is wrong
// and what to write.
func parse(spec *v1alpha1.CronAtSpec) (*schedule, error) {
	name := ptr.Deref(spec.TimeZone, "UTC")
	location, err := zones.Load(name)
	if err != nil {
		return nil, fmt.Errorf("spec.timeZone %q is unknown: write a name from the IANA time zone database, such as Europe/Berlin", name)
	}
	// The CRD refuses this, too.
	if strings.Contains(spec.Schedule, "TZ") {
		return nil, fmt.Errorf("spec.schedule %q has a time zone: set spec.timeZone", spec.Schedule)
	}
	expression, err := parseExpression(spec.Schedule)
	if err != nil {
		return nil, fmt.Errorf("spec.schedule %q is invalid: %w", spec.Schedule, err)
	}
	s := &schedule{expression: expression, location: location}
	if fields, ok := expression.(*cron.SpecSchedule); ok {
		s.passing = fields.Hour&everyHour == everyHour
	}
	return s, nil
}

// Validate returns an error if the schedule of a spec is invalid.
func Validate(spec *v1alpha1.CronAtSpec) error {
	_, err := parse(spec)
	return err
}

// Next returns the first n times after now at which a CronAt is due, in its time zone. It
// returns none if the CronAt is suspended, and fewer than n if there are not enough
// within five years.
func Next(cronAt *v1alpha1.CronAt, now time.Time, n int) ([]time.Time, error) {
	if err := Validate(&cronAt.Spec); err != nil {
		return nil, err
	}
	v := newView(World{CronAt: cronAt, Now: now})
	var times []time.Time
	for t := v.next; len(times) < n && !t.IsZero(); t = v.schedule.next(t) {
		times = append(times, t.Add(v.shift).In(v.schedule.location))
	}
	if len(times) == 0 && !isSuspended(cronAt) {
		return nil, errNever(&cronAt.Spec)
	}
	return times, nil
}

// errNever returns the error for a valid schedule that has no time.
func errNever(spec *v1alpha1.CronAtSpec) error {
	return fmt.Errorf("spec.schedule %q has no time within the next five years", spec.Schedule)
}

// next returns the first scheduled time after t, or the zero time if there is none within
// five years.
//
// The expression only ever sees times in UTC: a wall-clock time is represented by the
// same time in UTC, where all days have the same length. In other zones, robfig/cron
// loses days that have no midnight.
func (s *schedule) next(t time.Time) time.Time {
	if _, constant := s.expression.(cron.ConstantDelaySchedule); constant {
		return s.expression.Next(t.UTC())
	}
	if s.passing {
		return s.nextPassing(t)
	}
	for shown := zones.WallClock(t.In(s.location)); ; {
		if shown = s.expression.Next(shown); shown.IsZero() {
			return time.Time{}
		}
		// If the clocks repeat the time, its first occurrence may be before t.
		if instant := firstShowing(shown, s.location); instant.After(t) {
			return instant
		}
	}
}

// nextPassing is next for an expression that follows elapsed time. It searches the
// periods between two clock changes one after the other.
func (s *schedule) nextPassing(t time.Time) time.Time {
	for limit := t.AddDate(5, 0, 0); !t.After(limit); {
		shown := zones.WallClock(t.In(s.location))
		candidate := s.expression.Next(shown)
		if candidate.IsZero() {
			return time.Time{}
		}
		instant := t.Add(candidate.Sub(shown)).UTC()
		_, change := t.In(s.location).ZoneBounds()
		if change.IsZero() || instant.Before(change) {
			return instant
		}
		// The last second before the change, as if the clocks had already changed.
		_, offset := change.In(s.location).Zone()
		if candidate = s.expression.Next(change.UTC().Add(time.Duration(offset)*time.Second - time.Second)); candidate.IsZero() {
			return time.Time{}
		}
		instant = candidate.Add(-time.Duration(offset) * time.Second)
		if _, end := change.In(s.location).ZoneBounds(); end.IsZero() || instant.Before(end) {
			return instant
		}
		t = change
	}
	return time.Time{}
}

// firstShowing returns the first instant at which the clocks show a time, or the first
// instant after the gap if they skip it.
func firstShowing(shown time.Time, location *time.Location) time.Time {
	before, _, times := zones.Showing(shown, location)
	if times == 0 {
		// With the offset before the gap, the skipped time is after the gap.
		before, _ = before.ZoneBounds()
	}
	return before.UTC()
}

// latest returns the latest scheduled time after floor that is not after limit, or the
// zero time. It calls next about 30 times, regardless of how far apart floor and limit
// are.
func (s *schedule) latest(floor, limit time.Time) time.Time {
	first := s.next(floor)
	if first.IsZero() || first.After(limit) {
		return time.Time{}
	}
	if every, ok := s.expression.(cron.ConstantDelaySchedule); ok {
		// The times of the expression depend on floor.
		return first.Add(limit.Sub(first).Truncate(every.Delay))
	}
	// next is monotonic, which allows a binary search.
	seconds := sort.Search(int(limit.Sub(first)/time.Second)+1, func(i int) bool {
		next := s.next(first.Add(time.Duration(i) * time.Second))
		return next.IsZero() || next.After(limit)
	})
	if seconds == 0 {
		return first
	}
	return s.next(first.Add(time.Duration(seconds-1) * time.Second))
}

// count returns the number of scheduled times after floor that are not after limit, at most
// maxCounted.
func (s *schedule) count(floor, limit time.Time) int64 {
	n := int64(0)
	for t := s.next(floor); n < maxCounted && !t.IsZero() && !t.After(limit); t = s.next(t) {
		n++
	}
	return n
}

// shiftOf returns how long after their scheduled time the Ats of a CronAt are due. It
// depends only on the UID, so it never changes.
func shiftOf(cronAt *v1alpha1.CronAt) time.Duration {
	spread := ptr.Deref(cronAt.Spec.SpreadSeconds, 0)
	if spread <= 0 {
		return 0
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(cronAt.UID))
	return time.Duration(hash.Sum32()%uint32(spread)) * time.Second
}
