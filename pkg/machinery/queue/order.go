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
	"sync"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/buffer"
)

// order is the storage of a Queue. It has two lanes, of which the first is for what is urgent.
// In each of them, the namespaces take turns.
type order struct {
	isUrgent func(cache.ObjectName) bool // nil: none is

	lock  sync.Mutex
	lanes [2]lane
	// laneOf has the lane of each item in the queue. What an item has left in another lane does not
	// count.
	laneOf  map[cache.ObjectName]int
	waiting map[string]int // the number of items in the queue, by namespace

	total, perNamespace int            // see Queue.StartLimited
	inFlight            map[string]int // by namespace
	allInFlight         int
	isShutDown          bool
}

var _ workqueue.Queue[cache.ObjectName] = &order{}

func newOrder(isUrgent func(cache.ObjectName) bool) *order {
	o := &order{isUrgent: isUrgent, laneOf: map[cache.ObjectName]int{}, waiting: map[string]int{}, inFlight: map[string]int{}}
	o.start(maxInFlight, maxInFlight)
	for i := range o.lanes {
		o.lanes[i].items = map[string]*buffer.Ring[cache.ObjectName]{}
	}
	return o
}

func (o *order) start(total, perNamespace int) {
	o.lock.Lock()
	defer o.lock.Unlock()
	o.total, o.perNamespace = total, perNamespace
}

func (o *order) shutDown() {
	o.lock.Lock()
	defer o.lock.Unlock()
	o.isShutDown = true
}

// Touch implements workqueue.Queue: an item that is in the queue may have become urgent.
func (o *order) Touch(item cache.ObjectName) {
	o.lock.Lock()
	defer o.lock.Unlock()
	if to := o.choose(item); to < o.laneOf[item] {
		o.laneOf[item] = to
		o.lanes[to].push(item)
	}
}

// Push implements workqueue.Queue.
func (o *order) Push(item cache.ObjectName) {
	o.lock.Lock()
	defer o.lock.Unlock()
	to := o.choose(item)
	o.laneOf[item] = to
	o.lanes[to].push(item)
	o.waiting[item.Namespace]++
}

// choose returns the lane for an item.
func (o *order) choose(item cache.ObjectName) int {
	if o.isUrgent != nil && o.isUrgent(item) {
		return 0
	}
	return 1
}

// Len implements workqueue.Queue. Items of a namespace that is not open do not count: the end of
// one that is in flight lets the next one begin.
func (o *order) Len() int {
	o.lock.Lock()
	defer o.lock.Unlock()
	for namespace := range o.waiting { // There are few in flight, so few are not open.
		if !o.isShutDown && o.isOpen(namespace) {
			return len(o.laneOf)
		}
	}
	return 0
}

// Pop implements workqueue.Queue. There is an open item, because Len is not 0.
func (o *order) Pop() cache.ObjectName {
	o.lock.Lock()
	defer o.lock.Unlock()
	for i := range o.lanes {
		for {
			item, ok := o.lanes[i].pop(o.isOpen)
			if !ok {
				break
			}
			if lane, isQueued := o.laneOf[item]; isQueued && lane == i {
				o.begin(item)
				return item
			}
		}
	}
	return cache.ObjectName{}
}

func (o *order) begin(item cache.ObjectName) {
	if delete(o.laneOf, item); len(o.laneOf) == 0 {
		o.laneOf = map[cache.ObjectName]int{} // A map never shrinks.
	}
	if o.waiting[item.Namespace]--; o.waiting[item.Namespace] == 0 {
		delete(o.waiting, item.Namespace)
	}
	o.inFlight[item.Namespace]++
	o.allInFlight++
}

func (o *order) end(item cache.ObjectName) {
	o.lock.Lock()
	defer o.lock.Unlock()
	o.allInFlight--
	if o.inFlight[item.Namespace]--; o.inFlight[item.Namespace] == 0 {
		delete(o.inFlight, item.Namespace)
	}
}

// isOpen reports whether an item of a namespace may be processed. What the namespaces have beside
// their first item is at most half of the total. The end of an item lets only one begin: the
// worker that has ended it takes that one, and no other worker is woken.
func (o *order) isOpen(namespace string) bool {
	switch {
	case o.allInFlight >= o.total:
		return false
	case o.inFlight[namespace] == 0:
		return true
	default:
		return o.inFlight[namespace] < o.perNamespace && o.allInFlight-len(o.inFlight) < o.total/2
	}
}

// lane has items in the order in which they were added, by namespace.
type lane struct {
	items map[string]*buffer.Ring[cache.ObjectName] // none is empty
	turns buffer.Ring[string]                       // the namespaces that have items
}

func (l *lane) push(item cache.ObjectName) {
	items := l.items[item.Namespace]
	if items == nil {
		items = &buffer.Ring[cache.ObjectName]{}
		l.items[item.Namespace] = items
		l.turns.WriteOne(item.Namespace)
	}
	items.WriteOne(item)
}

// pop removes and returns the next item whose namespace is open.
func (l *lane) pop(isOpen func(namespace string) bool) (cache.ObjectName, bool) {
	for range l.turns.Len() {
		namespace, _ := l.turns.ReadOne()
		if !isOpen(namespace) {
			l.turns.WriteOne(namespace)
			continue
		}
		item, _ := l.items[namespace].ReadOne()
		if l.items[namespace].Len() > 0 {
			l.turns.WriteOne(namespace)
		} else {
			delete(l.items, namespace)
		}
		return item, true
	}
	return cache.ObjectName{}, false
}
