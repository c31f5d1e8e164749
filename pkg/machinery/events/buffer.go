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
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
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
