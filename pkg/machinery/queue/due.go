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

package queue

import (
	"container/heap"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

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

// Push implements heap.Interface.
func (e *dueEntries) Push(x any) {
	added := x.(*dueEntry)
	added.index = len(*e)
	*e = append(*e, added)
}

// Pop implements heap.Interface.
func (e *dueEntries) Pop() any {
	last := len(*e) - 1
	popped := (*e)[last]
	(*e)[last] = nil
	*e = (*e)[:last]
	return popped
}
