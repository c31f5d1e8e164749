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

// Package fairqueue provides workqueues in which the work of one namespace does not delay
// that of the others.
package fairqueue

import (
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/buffer"
)

// Queue is the storage of a workqueue. It returns the items of each namespace in the
// order in which they were added, and namespaces take turns. Use it only under the lock
// of the workqueue.
type Queue struct {
	items map[string]*buffer.Ring[cache.ObjectName] // by namespace; none is empty
	turns buffer.Ring[string]                       // the namespaces that have items
	len   int
}

var _ workqueue.Queue[cache.ObjectName] = &Queue{}

// New returns an empty queue.
func New() *Queue {
	return &Queue{items: map[string]*buffer.Ring[cache.ObjectName]{}}
}

// Touch does nothing: an item that is added again keeps its place.
func (q *Queue) Touch(cache.ObjectName) {}

// Push adds an item.
func (q *Queue) Push(item cache.ObjectName) {
	items := q.items[item.Namespace]
	if items == nil {
		items = &buffer.Ring[cache.ObjectName]{}
		q.items[item.Namespace] = items
		q.turns.WriteOne(item.Namespace)
	}
	items.WriteOne(item)
	q.len++
}

// Len returns the number of items.
func (q *Queue) Len() int { return q.len }

// Pop removes and returns the first item of the namespace whose turn it is. The queue
// must not be empty.
func (q *Queue) Pop() cache.ObjectName {
	namespace, _ := q.turns.ReadOne()
	items := q.items[namespace]
	item, _ := items.ReadOne()
	q.len--
	if items.Len() > 0 {
		q.turns.WriteOne(namespace)
	} else {
		delete(q.items, namespace)
	}
	return item
}
