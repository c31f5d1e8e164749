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

// Package events records events and, at the end of the program, writes those that are
// still queued: the broadcaster in client-go drops them.
package events

import (
	"context"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
)

// flushTimeout is the maximum time for writing the queued events.
const flushTimeout = 5 * time.Second

// endOfEvents is the reason of an event that is never written. When it reaches the sink,
// the sink has seen all other events.
const endOfEvents = "EndOfEvents"

// Recorder records events. They are written once Start is called.
type Recorder struct {
	record.EventRecorder
	broadcaster record.EventBroadcaster
	clock       clock.Clock
	started     atomic.Bool
	ended       chan struct{}
}

// NewRecorder returns a recorder for a component's events on objects of the given scheme.
// It continues after ctx is done, until Shutdown is called.
func NewRecorder(ctx context.Context, scheme *runtime.Scheme, component string, wallClock clock.Clock) *Recorder {
	broadcaster := record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx)))
	return &Recorder{
		EventRecorder: broadcaster.NewRecorder(scheme, corev1.EventSource{Component: component}),
		broadcaster:   broadcaster,
		clock:         wallClock,
		ended:         make(chan struct{}),
	}
}

// Start begins to write and log the events. Call it only once.
func (r *Recorder) Start(events typedcorev1.EventsGetter) {
	r.started.Store(true)
	r.broadcaster.StartStructuredLogging(3)
	r.broadcaster.StartRecordingToSink(&sink{
		EventSink: &typedcorev1.EventSinkImpl{Interface: events.Events("")},
		ended:     r.ended,
	})
}

// Shutdown writes the events that are still queued, for at most five seconds, and stops
// the recorder.
func (r *Recorder) Shutdown() {
	if r.started.Load() {
		r.Event(&corev1.ObjectReference{}, corev1.EventTypeNormal, endOfEvents, "All events are written.")
		select {
		case <-r.ended:
		case <-r.clock.After(flushTimeout):
		}
	}
	r.broadcaster.Shutdown()
}

// sink writes events in the order in which they were recorded, until endOfEvents.
type sink struct {
	record.EventSink
	ended chan<- struct{}
}

// Create writes an event.
func (s *sink) Create(event *corev1.Event) (*corev1.Event, error) {
	if event.Reason == endOfEvents {
		close(s.ended)
		return event, nil
	}
	return s.EventSink.Create(event)
}
