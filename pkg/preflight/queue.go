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

package preflight

import (
	"container/heap"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// dueQueue is the storage for the items of a namespace. It returns the At that is due
// first. Use it only under the lock of the workqueue.
type dueQueue struct {
	due     func(cache.ObjectName) time.Time
	entries entries
	byName  map[cache.ObjectName]*entry
}

var _ workqueue.Queue[cache.ObjectName] = &dueQueue{}

func newDueQueue(due func(cache.ObjectName) time.Time) *dueQueue {
	return &dueQueue{due: due, byName: map[cache.ObjectName]*entry{}}
}

// Touch is called when an item is added again: the At may have been moved.
func (q *dueQueue) Touch(name cache.ObjectName) {
	// An item that is being processed is not in the queue.
	if e := q.byName[name]; e != nil {
		e.due = q.due(name)
		heap.Fix(&q.entries, e.index)
	}
}

// Push adds an item.
func (q *dueQueue) Push(name cache.ObjectName) {
	e := &entry{name: name, due: q.due(name)}
	q.byName[name] = e
	heap.Push(&q.entries, e)
}

// Len returns the number of items.
func (q *dueQueue) Len() int { return len(q.entries) }

// Pop removes and returns the item that is due first. The queue must not be empty.
func (q *dueQueue) Pop() cache.ObjectName {
	e := heap.Pop(&q.entries).(*entry)
	delete(q.byName, e.name)
	if len(q.entries) == 0 {
		// A map and a slice never shrink after they have held very many items.
		q.entries, q.byName = nil, map[cache.ObjectName]*entry{}
	}
	return e.name
}

type entry struct {
	name  cache.ObjectName
	due   time.Time
	index int // in entries
}

// entries is a heap.
type entries []*entry

func (e entries) Len() int           { return len(e) }
func (e entries) Less(i, j int) bool { return e[i].due.Before(e[j].due) }
func (e entries) Swap(i, j int) {
	e[i], e[j] = e[j], e[i]
	e[i].index, e[j].index = i, j
}

// Push implements heap.Interface.
func (e *entries) Push(x any) {
	added := x.(*entry)
	added.index = len(*e)
	*e = append(*e, added)
}

// Pop implements heap.Interface.
func (e *entries) Pop() any {
	last := len(*e) - 1
	popped := (*e)[last]
	(*e)[last] = nil
	*e = (*e)[:last]
	return popped
}
