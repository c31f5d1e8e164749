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

// Package queue provides workqueues in which the work of one namespace does not delay that
// of the others, and decides when failed work is tried again.
package queue

import (
	"container/heap"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/buffer"
)

// Order is the storage of a workqueue that can leave out namespaces. Use it only under a
// lock, such as that of the workqueue.
type Order interface {
	workqueue.Queue[cache.ObjectName]
	// PopFrom removes and returns the next item whose namespace is open. It reports whether
	// there is one.
	PopFrom(isOpen func(namespace string) bool) (cache.ObjectName, bool)
}

// Fair is an Order in which namespaces take turns.
type Fair struct {
	newItems func() workqueue.Queue[cache.ObjectName]
	items    map[string]workqueue.Queue[cache.ObjectName] // by namespace; none is empty
	turns    buffer.Ring[string]                          // the namespaces that have items
	len      int
}

var _ Order = &Fair{}

// NewFair returns an empty queue. It returns the items of each namespace in the order in which
// they were added. An item that is added again keeps its place.
func NewFair() *Fair {
	return NewFairOf(func() workqueue.Queue[cache.ObjectName] { return &fifo{} })
}

// NewFairOf returns an empty queue. newItems returns the storage for the items of a namespace,
// which is empty.
func NewFairOf(newItems func() workqueue.Queue[cache.ObjectName]) *Fair {
	return &Fair{newItems: newItems, items: map[string]workqueue.Queue[cache.ObjectName]{}}
}

// Touch is called when an item is added again.
func (q *Fair) Touch(item cache.ObjectName) {
	if items := q.items[item.Namespace]; items != nil {
		items.Touch(item)
	}
}

// Push adds an item.
func (q *Fair) Push(item cache.ObjectName) {
	items := q.items[item.Namespace]
	if items == nil {
		items = q.newItems()
		q.items[item.Namespace] = items
		q.turns.WriteOne(item.Namespace)
	}
	items.Push(item)
	q.len++
}

// Len returns the number of items.
func (q *Fair) Len() int { return q.len }

// Pop removes and returns the first item of the namespace whose turn it is. The queue
// must not be empty.
func (q *Fair) Pop() cache.ObjectName { return pop(q) }

// PopFrom implements Order. It may look at each namespace that is not open.
func (q *Fair) PopFrom(isOpen func(namespace string) bool) (cache.ObjectName, bool) {
	for range q.turns.Len() {
		namespace, _ := q.turns.ReadOne()
		if !isOpen(namespace) {
			q.turns.WriteOne(namespace)
			continue
		}
		items := q.items[namespace]
		item := items.Pop()
		q.len--
		if items.Len() > 0 {
			q.turns.WriteOne(namespace)
		} else {
			delete(q.items, namespace)
		}
		return item, true
	}
	return cache.ObjectName{}, false
}

// pop removes and returns the next item of an Order that is not empty.
func pop(order Order) cache.ObjectName {
	item, _ := order.PopFrom(func(string) bool { return true })
	return item
}

// fifo is the storage for the items of a namespace.
type fifo struct {
	buffer.Ring[cache.ObjectName]
}

// Touch does nothing.
func (f *fifo) Touch(cache.ObjectName) {}

// Push adds an item.
func (f *fifo) Push(item cache.ObjectName) { f.WriteOne(item) }

// Pop removes and returns the first item.
func (f *fifo) Pop() cache.ObjectName {
	item, _ := f.ReadOne()
	return item
}

// Due is the storage of a workqueue that returns the item that is due first. Use it only
// under the lock of the workqueue.
type Due struct {
	due     func(cache.ObjectName) time.Time
	entries dueEntries
	byName  map[cache.ObjectName]*dueEntry
}

var _ workqueue.Queue[cache.ObjectName] = &Due{}

// NewDue returns an empty queue. due returns when an item is due.
func NewDue(due func(cache.ObjectName) time.Time) *Due {
	return &Due{due: due, byName: map[cache.ObjectName]*dueEntry{}}
}

// Touch is called when an item is added again: its time may have changed.
func (q *Due) Touch(name cache.ObjectName) {
	// An item that is being processed is not in the queue.
	if e := q.byName[name]; e != nil {
		e.due = q.due(name)
		heap.Fix(&q.entries, e.index)
	}
}

// Push adds an item.
func (q *Due) Push(name cache.ObjectName) {
	e := &dueEntry{name: name, due: q.due(name)}
	q.byName[name] = e
	heap.Push(&q.entries, e)
}

// Len returns the number of items.
func (q *Due) Len() int { return len(q.entries) }

// Pop removes and returns the item that is due first. The queue must not be empty.
func (q *Due) Pop() cache.ObjectName {
	e := heap.Pop(&q.entries).(*dueEntry)
	delete(q.byName, e.name)
	if len(q.entries) == 0 {
		// A map and a slice never shrink after they have held very many items.
		q.entries, q.byName = nil, map[cache.ObjectName]*dueEntry{}
	}
	return e.name
}

type dueEntry struct {
	name  cache.ObjectName
	due   time.Time
	index int // in entries
}

// dueEntries is a heap.
type dueEntries []*dueEntry

func (e dueEntries) Len() int           { return len(e) }
func (e dueEntries) Less(i, j int) bool { return e[i].due.Before(e[j].due) }
func (e dueEntries) Swap(i, j int) {
	e[i], e[j] = e[j], e[i]
	e[i].index, e[j].index = i, j
}

func (e *dueEntries) Push(x any) {
	added := x.(*dueEntry)
	added.index = len(*e)
	*e = append(*e, added)
}

func (e *dueEntries) Pop() any {
	last := len(*e) - 1
	popped := (*e)[last]
	(*e)[last] = nil
	*e = (*e)[:last]
	return popped
}
