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

package freeze

import (
	"fmt"
	"time"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronexpr"
	"programming-kubernetes.info/cnat-controller/pkg/zones"
)

// window is a time at which a Freeze holds, once or repeatedly.
type window interface {
	// end returns the end of the window that contains t, or the zero time.
	end(t time.Time) time.Time
	// next returns when the window next begins after t, or the zero time.
	next(t time.Time) time.Time
}

// once is a window from an instant until another, which does not belong to it.
type once struct{ from, until time.Time }

func (w once) end(t time.Time) time.Time {
	if t.Before(w.from) || !t.Before(w.until) {
		return time.Time{}
	}
	return w.until
}

func (w once) next(t time.Time) time.Time {
	if w.from.After(t) {
		return w.from
	}
	return time.Time{}
}

// repeated is a window that begins at each time of a schedule.
type repeated struct {
	schedule *cronexpr.Schedule
	duration time.Duration
}

func (w repeated) end(t time.Time) time.Time {
	latest := w.schedule.Latest(t.Add(-w.duration), t)
	if latest.IsZero() {
		return time.Time{}
	}
	return latest.Add(w.duration)
}

func (w repeated) next(t time.Time) time.Time { return w.schedule.Next(t) }

// parseWindow returns a window. The error says what is wrong with it.
func parseWindow(spec *v1alpha1.FreezeWindow, location *time.Location) (window, error) {
	if spec.Schedule != "" {
		return parseRepeated(spec, location)
	}
	from, _, err := instants(spec.From, location)
	if err != nil {
		return nil, fmt.Errorf("from %q %w", spec.From, err)
	}
	_, until, err := instants(spec.Until, location)
	if err != nil {
		return nil, fmt.Errorf("until %q %w", spec.Until, err)
	}
	if !from.Before(until) {
		return nil, fmt.Errorf("until %q must be after from %q: the window never comes", spec.Until, spec.From)
	}
	return once{from, until}, nil
}

func parseRepeated(spec *v1alpha1.FreezeWindow, location *time.Location) (window, error) {
	schedule, err := cronexpr.Parse(spec.Schedule, location)
	switch {
	case err != nil:
		return nil, fmt.Errorf("schedule %q is invalid: %w", spec.Schedule, err)
	case schedule.IsEvery():
		return nil, fmt.Errorf("schedule %q has no beginning: write a time, such as \"0 18 * * 5\"", spec.Schedule)
	case schedule.Next(epoch).IsZero():
		return nil, fmt.Errorf("schedule %q never comes", spec.Schedule)
	case spec.DurationSeconds <= 0:
		return nil, fmt.Errorf("durationSeconds %d must be positive", spec.DurationSeconds)
	}
	return repeated{schedule, time.Duration(spec.DurationSeconds) * time.Second}, nil
}

// epoch is a time from which any schedule that ever comes comes within five years.
var epoch = time.Date(2024, time.January, 1, 0, 0, 0, 0, time.UTC)

// instants returns the first and the last instant that a text means. They differ if the clocks
// repeat it. If the clocks skip it, both are the instant at which they do.
func instants(text v1alpha1.FreezeTime, location *time.Location) (first, last time.Time, err error) {
	if instant, err := time.Parse(time.RFC3339, string(text)); err == nil {
		return instant, instant, nil
	}
	shown, err := time.Parse(zones.Layout, string(text))
	if err != nil {
		return time.Time{}, time.Time{}, fmt.Errorf("is invalid: write a date and time, such as 2026-12-23T16:00:00, or with a zone 2026-12-23T16:00:00Z")
	}
	first, last = zones.Span(shown, location)
	return first, last, nil
}
