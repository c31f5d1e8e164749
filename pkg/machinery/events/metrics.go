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

package events

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Values of label reason of dropped.
const (
	// full: too many events waited.
	full = "full"
	// filtered: too many events of one type were recorded for one object.
	filtered = "filtered"
	// refused: the API server refused the event, such as in a namespace that is being
	// deleted.
	refused = "refused"
	// failed: the event could not be written with several tries.
	failed = "failed"
	// shutdown: the controller stopped before it could write the event.
	shutdown = "shutdown"
)

var (
	// waiting is the number of events that wait to be written.
	waiting = metrics.NewGauge(&metrics.GaugeOpts{
		Name:           "cnat_events_waiting",
		Help:           "Number of events that wait to be written.",
		StabilityLevel: metrics.ALPHA,
	})
	// dropped counts the events that were not written. Label reason is one of the
	// constants.
	dropped = metrics.NewCounterVec(&metrics.CounterOpts{
		Name:           "cnat_events_dropped_total",
		Help:           "Number of events that were not written, by reason: full (too many waited), filtered (too many for one object), refused (by the API server), failed (several tries), shutdown (the controller stopped).",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
)

// RegisterMetrics registers the metrics of all recorders. Call it only once.
func RegisterMetrics() {
	legacyregistry.MustRegister(waiting, dropped)
	for _, reason := range []string{full, filtered, refused, failed, shutdown} {
		dropped.WithLabelValues(reason)
	}
}
