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
	"container/list"
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/queue"
)

// maxSize is the number of bytes that waiting events may need. It is enough for the
// events of about 25,000 runs.
const maxSize = 48 << 20

// entrySize is the number of bytes that an entry needs without its message and its patch.
// TestSize measures it.
const entrySize = 960

// entry is an event that waits to be written.
type entry struct {
	event    *corev1.Event
	patch    []byte // what changes if the event was recorded before; nil if it is new
	recorded time.Time
}

func (e *entry) size() int { return entrySize + len(e.event.Message) + len(e.patch) }

// buffer holds the events that wait to be written. If it is full, it drops the oldest
// Normal event or, if there is none, the oldest Warning.
type buffer struct {
	maxSize int
	added   chan struct{} // has an element if entries were added since the last receive

	lock sync.Mutex
	// In the order in which they were recorded.
	normal, warnings list.List
	size             int
}

func newBuffer(maxSize int) *buffer {
	return &buffer{maxSize: maxSize, added: make(chan struct{}, 1)}
}

// add adds an entry. A repeated event replaces an entry that still waits.
func (b *buffer) add(e *entry) {
	b.lock.Lock()
	defer b.lock.Unlock()
	class := &b.normal
	if e.event.Type == corev1.EventTypeWarning {
		class = &b.warnings
	}
	if waiting := find(class, e); waiting != nil {
		b.size -= waiting.size()
		waiting.event = e.event
		if waiting.patch != nil {
			waiting.patch = e.patch
		}
		b.size += waiting.size()
	} else {
		class.PushBack(e)
		b.size += e.size()
	}
	for b.size > b.maxSize {
		class := &b.normal
		if class.Len() == 0 {
			class = &b.warnings
		}
		b.remove(class, class.Front())
		droppedEvents.WithLabelValues(full).Inc()
	}
	b.count()
	select {
	case b.added <- struct{}{}:
	default:
	}
}

// take removes and returns the oldest entry of a namespace that is open. It returns nil if
// no such entry was recorded by the given time.
func (b *buffer) take(until time.Time, isOpen func(namespace string) bool) *entry {
	b.lock.Lock()
	defer b.lock.Unlock()
	class, found := &b.normal, oldest(&b.normal, isOpen)
	if warning := oldest(&b.warnings, isOpen); found == nil || warning != nil && recorded(warning).Before(recorded(found)) {
		class, found = &b.warnings, warning
	}
	if found == nil || recorded(found).After(until) {
		return nil
	}
	e := b.remove(class, found)
	b.count()
	return e
}

// len returns the number of entries.
func (b *buffer) len() int {
	b.lock.Lock()
	defer b.lock.Unlock()
	return b.normal.Len() + b.warnings.Len()
}

// clear drops all entries, and returns their number.
func (b *buffer) clear() int {
	b.lock.Lock()
	defer b.lock.Unlock()
	left := b.normal.Len() + b.warnings.Len()
	b.normal.Init()
	b.warnings.Init()
	b.size = 0
	b.count()
	droppedEvents.WithLabelValues(shutdown).Add(float64(left))
	return left
}

// find returns the waiting entry that an entry repeats, or nil. Few events are repeated.
func find(class *list.List, e *entry) *entry {
	if e.patch == nil {
		return nil
	}
	for element := class.Back(); element != nil; element = element.Prev() {
		waiting := element.Value.(*entry)
		if waiting.event.Name == e.event.Name && waiting.event.Namespace == e.event.Namespace {
			return waiting
		}
	}
	return nil
}

// remove removes and returns an entry of a class.
func (b *buffer) remove(class *list.List, element *list.Element) *entry {
	e := class.Remove(element).(*entry)
	b.size -= e.size()
	return e
}

func (b *buffer) count() {
	waitingEvents.Set(float64(b.normal.Len() + b.warnings.Len()))
}

// oldest returns the oldest entry of a class in a namespace that is open, or nil.
func oldest(class *list.List, isOpen func(namespace string) bool) *list.Element {
	element := class.Front()
	for element != nil && !isOpen(element.Value.(*entry).event.Namespace) {
		element = element.Next()
	}
	return element
}

func recorded(element *list.Element) time.Time { return element.Value.(*entry).recorded }

// writers is the number of events of a single namespace that are written at the same time,
// and maxWriters that of all. A webhook or the back-off can make that take long: each
// namespace has its share (see queue.Shares).
const (
	writers    = 16
	maxWriters = 128
)

// While the controllers are busy, events wait for at most maxHold. In a burst there are
// moments without work, so that the controllers are idle only after quietPeriod without
// work. They are observed each pollPeriod while events wait.
const (
	maxHold     = 30 * time.Second
	quietPeriod = time.Second
	pollPeriod  = 100 * time.Millisecond
)

// An event that cannot be written is retried after minBackoff. The back-off doubles with
// each try, up to maxBackoff. The last try is after about a minute and a half.
const (
	maxTries   = 12
	minBackoff = time.Second
	maxBackoff = 10 * time.Second
)

// flushTimeout is the maximum time for writing the waiting events at the end.
const flushTimeout = 5 * time.Second

// run writes the events until Shutdown is called.
func (r *Recorder) run(client typedcorev1.EventsGetter, busy func() bool) {
	defer close(r.stopped)
	var wg sync.WaitGroup
	defer wg.Wait()
	shares := queue.NewShares(writers, maxWriters)
	written := make(chan string, maxWriters) // namespaces
	settle := func() {}
	if settler, ok := r.clock.(queue.Settler); ok {
		settle = func() { settler.Settle("events", 0) }
	}
	var lastBusy time.Time
	for r.ctx.Err() == nil {
		settle()
		// Before the next event is taken: what is recorded after that is in added.
		stopping, waiting := r.isStopping(), r.buffer.len() > 0
		now := r.clock.Now()
		until := now
		if busy() {
			lastBusy = now
		}
		if now.Sub(lastBusy) < quietPeriod && !stopping {
			until = now.Add(-maxHold)
		}
		if e := r.buffer.take(until, shares.IsOpen); e != nil {
			shares.Begin(e.event.Namespace)
			wg.Go(func() {
				r.write(client, e)
				written <- e.event.Namespace
			})
			continue
		}
		added, poll, stop := r.buffer.added, (<-chan time.Time)(nil), r.stopping.Done()
		if waiting {
			added, poll = nil, r.clock.After(pollPeriod)
		} else if stopping {
			return
		}
		if stopping {
			stop = nil
		}
		select {
		case <-added:
		case namespace := <-written:
			shares.End(namespace)
		case <-poll:
		case <-stop:
		}
	}
}

func (r *Recorder) isStopping() bool { return r.stopping.Err() != nil }

// write writes an event. It returns when the event is written or dropped.
func (r *Recorder) write(client typedcorev1.EventsGetter, e *entry) {
	backoff := minBackoff
	for try := 1; ; try++ {
		wasStopping := r.isStopping()
		err := put(r.ctx, client.Events(e.event.Namespace), e)
		object := klog.KRef(e.event.InvolvedObject.Namespace, e.event.InvolvedObject.Name)
		switch {
		case err == nil:
			return
		case !answer.IsTransient(err):
			droppedEvents.WithLabelValues(refused).Inc()
			// Other refusals are likely to have the same cause, such as missing permission.
			if isExpected := answer.IsNotFound(err, e.event.Namespace) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause); !isExpected && !r.refused.Swap(true) {
				r.logger.Error(err, "The API server refuses an event; further refusals are not logged", "object", object, "reason", e.event.Reason)
			}
			return
		case wasStopping || r.ctx.Err() != nil:
			droppedEvents.WithLabelValues(shutdown).Inc()
			r.unwritten.Add(1)
			return
		case try == maxTries:
			droppedEvents.WithLabelValues(failed).Inc()
			r.logger.Error(err, "Cannot write an event", "object", object, "reason", e.event.Reason, "tries", try)
			return
		}
		select {
		case <-r.clock.After(backoff):
		case <-r.stopping.Done():
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// put makes the requests for an event.
func put(ctx context.Context, client typedcorev1.EventInterface, e *entry) error {
	if e.patch != nil {
		err := patch(ctx, client, e)
		if !answer.IsNotFound(err, e.event.Name) {
			return err
		}
		// It has expired, or is about to be created.
	}
	_, err := client.Create(ctx, e.event, metav1.CreateOptions{})
	switch {
	case !apierrors.IsAlreadyExists(err):
		return err
	case e.patch != nil:
		return patch(ctx, client, e)
	default:
		return nil // The response to an earlier try was lost.
	}
}

func patch(ctx context.Context, client typedcorev1.EventInterface, e *entry) error {
	_, err := client.Patch(ctx, e.event.Name, types.StrategicMergePatchType, e.patch, metav1.PatchOptions{})
	return err
}
