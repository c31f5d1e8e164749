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

package cronexpr

import (
	"sort"
	"time"

	"github.com/robfig/cron/v3"

	"programming-kubernetes.info/cnat-controller/pkg/zones"
)

// everyHour has the bits of all hours.
const everyHour = 1<<24 - 1

// Schedule is a cron expression in a time zone.
type Schedule struct {
	expression cron.Schedule
	Location   *time.Location
	// passing is true if the expression follows elapsed time, not the hour that the clocks
	// show.
	passing bool
}

// Parse returns the schedule of a cron expression in a time zone. The error says what to write.
func Parse(text string, location *time.Location) (*Schedule, error) {
	expression, err := parseExpression(text)
	if err != nil {
		return nil, err
	}
	s := &Schedule{expression: expression, Location: location}
	if fields, ok := expression.(*cron.SpecSchedule); ok {
		s.passing = fields.Hour&everyHour == everyHour
	}
	return s, nil
}

// IsEvery reports whether the times follow each other at an interval, and begin with nothing.
func (s *Schedule) IsEvery() bool {
	_, constant := s.expression.(cron.ConstantDelaySchedule)
	return constant
}

// Next returns the first scheduled time after t, or the zero time if there is none within
// five years.
//
// The expression only ever sees times in UTC: a wall-clock time is represented by the
// same time in UTC, where all days have the same length. In other zones, robfig/cron
// loses days that have no midnight.
func (s *Schedule) Next(t time.Time) time.Time {
	if s.IsEvery() {
		return s.expression.Next(t.UTC())
	}
	if s.passing {
		return s.nextPassing(t)
	}
	for shown := zones.WallClock(t.In(s.Location)); ; {
		if shown = s.expression.Next(shown); shown.IsZero() {
			return time.Time{}
		}
		// If the clocks repeat the time, its first occurrence may be before t.
		if instant, _ := zones.Span(shown, s.Location); instant.After(t) {
			return instant.UTC()
		}
	}
}

// nextPassing is Next for an expression that follows elapsed time. It searches the
// periods between two clock changes one after the other.
func (s *Schedule) nextPassing(t time.Time) time.Time {
	for limit := t.AddDate(5, 0, 0); !t.After(limit); {
		shown := zones.WallClock(t.In(s.Location))
		candidate := s.expression.Next(shown)
		if candidate.IsZero() {
			return time.Time{}
		}
		instant := t.Add(candidate.Sub(shown)).UTC()
		_, change := t.In(s.Location).ZoneBounds()
		if change.IsZero() || instant.Before(change) {
			return instant
		}
		// The last second before the change, as if the clocks had already changed.
		_, offset := change.In(s.Location).Zone()
		if candidate = s.expression.Next(change.UTC().Add(time.Duration(offset)*time.Second - time.Second)); candidate.IsZero() {
			return time.Time{}
		}
		instant = candidate.Add(-time.Duration(offset) * time.Second)
		if _, end := change.In(s.Location).ZoneBounds(); end.IsZero() || instant.Before(end) {
			return instant
		}
		t = change
	}
	return time.Time{}
}

// Latest returns the latest scheduled time after floor that is not after limit, or the
// zero time. It calls Next about 30 times, regardless of how far apart floor and limit
// are.
func (s *Schedule) Latest(floor, limit time.Time) time.Time {
	first := s.Next(floor)
	if first.IsZero() || first.After(limit) {
		return time.Time{}
	}
	if every, ok := s.expression.(cron.ConstantDelaySchedule); ok {
		// The times of the expression depend on floor.
		return first.Add(limit.Sub(first).Truncate(every.Delay))
	}
	// Next is monotonic, which allows a binary search.
	seconds := sort.Search(int(limit.Sub(first)/time.Second)+1, func(i int) bool {
		next := s.Next(first.Add(time.Duration(i) * time.Second))
		return next.IsZero() || next.After(limit)
	})
	if seconds == 0 {
		return first
	}
	return s.Next(first.Add(time.Duration(seconds-1) * time.Second))
}
