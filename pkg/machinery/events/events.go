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

// Package events records events and writes them when no run has to wait for that. The
// broadcaster in client-go drops events when more are recorded than it can write, and at
// the end of the program.
package events

import (
	"context"
	"fmt"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/client-go/tools/reference"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

// Numbers of events that client-go's correlator remembers, to count those that are
// repeated. A Warning may be repeated for as long as its cause exists. Most Normal events
// happen once.
const (
	normalRecords  = 512
	warningRecords = 4096
)

// Recorder records events. They are written once Start is called.
type Recorder struct {
	scheme *runtime.Scheme
	source corev1.EventSource
	clock  clock.Clock
	logger klog.Logger
	// correlators count repeated events, combine similar ones and limit those of an object,
	// by the type of the event.
	correlators map[string]*record.EventCorrelator
	buffer      *buffer

	ctx       context.Context // of the requests
	cancel    context.CancelFunc
	started   atomic.Bool
	stopping  context.Context // done when Shutdown is called
	stop      context.CancelFunc
	stopped   chan struct{} // closed when no event is written any more
	refused   atomic.Bool   // whether a refusal was logged
	unwritten atomic.Int64  // how many events could not be written after Shutdown was called
}

var _ record.EventRecorder = &Recorder{}

// NewRecorder returns a recorder for a component's events on objects of the given scheme.
// It continues after ctx is done, until Shutdown is called.
func NewRecorder(ctx context.Context, scheme *runtime.Scheme, component string, wallClock clock.Clock) *Recorder {
	r := &Recorder{
		scheme: scheme,
		source: corev1.EventSource{Component: component},
		clock:  wallClock,
		logger: klog.FromContext(ctx),
		correlators: map[string]*record.EventCorrelator{
			corev1.EventTypeNormal:  record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{LRUCacheSize: normalRecords, Clock: wallClock}),
			corev1.EventTypeWarning: record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{LRUCacheSize: warningRecords, Clock: wallClock}),
		},
		buffer:  newBuffer(maxSize),
		stopped: make(chan struct{}),
	}
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	r.stopping, r.stop = context.WithCancel(r.ctx)
	return r
}

// Start begins to write the events. Call it only once. While busy returns true, events
// wait, but not for long.
func (r *Recorder) Start(client typedcorev1.EventsGetter, busy func() bool) {
	r.started.Store(true)
	go r.run(client, busy)
}

// Shutdown writes the events that are still waiting, for at most flushTimeout, and stops
// the recorder. Call it only once.
func (r *Recorder) Shutdown() {
	r.stop()
	if r.started.Load() {
		select {
		case <-r.stopped:
		case <-r.clock.After(flushTimeout):
		}
		r.cancel()
		<-r.stopped
	}
	r.cancel()
	if dropped := int64(r.buffer.clear()) + r.unwritten.Load(); dropped > 0 {
		r.logger.Info("Stopped before all events were written", "dropped", dropped)
	}
}

// Event implements record.EventRecorder.
func (r *Recorder) Event(object runtime.Object, eventType, reason, message string) {
	r.AnnotatedEventf(object, nil, eventType, reason, "%s", message)
}

// Eventf implements record.EventRecorder.
func (r *Recorder) Eventf(object runtime.Object, eventType, reason, format string, args ...any) {
	r.AnnotatedEventf(object, nil, eventType, reason, format, args...)
}

// maxMessage is the length of a message, in bytes, as in events.k8s.io. The correlators keep the
// messages of the last thousands of events.
const maxMessage = 1024

// AnnotatedEventf implements record.EventRecorder.
func (r *Recorder) AnnotatedEventf(object runtime.Object, annotations map[string]string, eventType, reason, format string, args ...any) {
	ref, err := reference.GetReference(r.scheme, object)
	correlator := r.correlators[eventType]
	if err != nil || correlator == nil {
		r.logger.Error(err, "Cannot record an event", "eventType", eventType, "reason", reason)
		return
	}
	now := r.clock.Now()
	namespace := ref.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:        util.GenerateEventName(ref.Name, now.UnixNano()),
			Namespace:   namespace,
			Annotations: annotations,
		},
		InvolvedObject:      *ref,
		Reason:              reason,
		Message:             answer.Truncate(fmt.Sprintf(format, args...), maxMessage),
		Source:              r.source,
		FirstTimestamp:      metav1.NewTime(now),
		LastTimestamp:       metav1.NewTime(now),
		Count:               1,
		Type:                eventType,
		ReportingController: r.source.Component,
	}
	r.logger.V(3).Info("Event occurred", "object", klog.KRef(ref.Namespace, ref.Name), "kind", ref.Kind, "apiVersion", ref.APIVersion, "type", eventType, "reason", reason)
	// The correlator works on the order in which the events happen. It is not informed of
	// what was written, because it needs only the name, which it knows, and the count, which
	// may have increased in the meantime.
	result, err := correlator.EventCorrelate(event)
	switch {
	case err != nil:
		r.logger.Error(err, "Cannot correlate an event", "eventType", eventType, "reason", reason)
	case result.Skip:
		droppedEvents.WithLabelValues(filtered).Inc()
	default:
		r.buffer.add(&entry{event: result.Event, patch: result.Patch, recorded: now})
	}
}

// Report records a Warning on an object for an error that will not resolve by itself. It
// returns the error to retry with.
func Report(recorder record.EventRecorder, object runtime.Object, reason string, err error) error {
	if answer.IsTransient(err) {
		return err
	}
	recorder.Event(object, corev1.EventTypeWarning, reason, answer.OneLine(err.Error()))
	return answer.Blocked(reason, err)
}

// Values of label reason of droppedEvents.
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
	// waitingEvents is the number of events that wait to be written.
	waitingEvents = metrics.NewGauge(&metrics.GaugeOpts{
		Name:           "cnat_events_waiting",
		Help:           "Number of events that wait to be written.",
		StabilityLevel: metrics.ALPHA,
	})
	// droppedEvents counts the events that were not written. Label reason is one of the
	// constants.
	droppedEvents = metrics.NewCounterVec(&metrics.CounterOpts{
		Name:           "cnat_events_dropped_total",
		Help:           "Number of events that were not written, by reason: full (too many waited), filtered (too many for one object), refused (by the API server), failed (several tries), shutdown (the controller stopped).",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
)

// RegisterMetrics registers the metrics of all recorders. Call it only once.
func RegisterMetrics() {
	legacyregistry.MustRegister(waitingEvents, droppedEvents)
	for _, reason := range []string{full, filtered, refused, failed, shutdown} {
		droppedEvents.WithLabelValues(reason)
	}
}
