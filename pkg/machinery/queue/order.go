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
	"cmp"
	"sync"
	"time"

	"github.com/google/btree"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/buffer"
)

// order is the storage of a Queue. It has two lanes, of which the first is for what is due. In each
// of them, the namespaces take turns.
type order struct {
	dueSince func(cache.ObjectName) time.Time // nil: nothing is due

	lock    sync.Mutex
	lanes   [2]lane
	entries map[cache.ObjectName]entry
	pushed  int

	total, perNamespace int            // see Queue.StartLimited
	inFlight            map[string]int // by namespace
	allInFlight         int
	isShutDown          bool
}

var _ workqueue.Queue[cache.ObjectName] = &order{}

func newOrder(dueSince func(cache.ObjectName) time.Time) *order {
	o := &order{dueSince: dueSince, entries: map[cache.ObjectName]entry{}, inFlight: map[string]int{}}
	o.limit(maxInFlight, maxInFlight)
	for i := range o.lanes {
		o.lanes[i].items = map[string]*btree.BTreeG[entry]{}
	}
	return o
}

func (o *order) limit(total, perNamespace int) {
	o.lock.Lock()
	defer o.lock.Unlock()
	o.total, o.perNamespace = total, perNamespace
}

func (o *order) shutDown() {
	o.lock.Lock()
	defer o.lock.Unlock()
	o.isShutDown = true
}

// Touch implements workqueue.Queue: an item that is in the queue may have become due.
func (o *order) Touch(item cache.ObjectName) {
	o.lock.Lock()
	defer o.lock.Unlock()
	if was := o.entries[item]; was.due.IsZero() {
		o.laneOf(was).remove(was)
		o.insert(item, was.number)
	}
}

// Push implements workqueue.Queue.
func (o *order) Push(item cache.ObjectName) {
	o.lock.Lock()
	defer o.lock.Unlock()
	o.pushed++
	o.insert(item, o.pushed)
}

func (o *order) insert(item cache.ObjectName, number int) {
	added := entry{item: item, number: number}
	if o.dueSince != nil {
		added.due = o.dueSince(item)
	}
	o.entries[item] = added
	o.laneOf(added).insert(added)
}

func (o *order) laneOf(e entry) *lane {
	if e.due.IsZero() {
		return &o.lanes[1]
	}
	return &o.lanes[0]
}

// Len implements workqueue.Queue. Items of a namespace that is not open do not count: the end of
// one that is in flight lets the next one begin.
func (o *order) Len() int {
	o.lock.Lock()
	defer o.lock.Unlock()
	for _, lane := range o.lanes {
		for namespace, items := range lane.items { // There are few in flight, so few are not open.
			if !o.isShutDown && items.Len() > 0 && o.isOpen(namespace) {
				return len(o.entries)
			}
		}
	}
	return 0
}

// Pop implements workqueue.Queue. There is an open item, because Len is not 0.
func (o *order) Pop() cache.ObjectName {
	o.lock.Lock()
	defer o.lock.Unlock()
	for i := range o.lanes {
		if first, ok := o.lanes[i].pop(o.isOpen); ok {
			o.begin(first.item)
			return first.item
		}
	}
	return cache.ObjectName{}
}

func (o *order) begin(item cache.ObjectName) {
	if delete(o.entries, item); len(o.entries) == 0 {
		o.entries = map[cache.ObjectName]entry{} // A map never shrinks.
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

// isOpen reports whether a worker may begin an item of a namespace. Each namespace may have one item
// in flight. All further ones together are at most half of the total. When an item ends, its worker
// takes the next one, and no other worker wakes up.
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

// entry is an item in the queue.
type entry struct {
	item   cache.ObjectName
	due    time.Time // zero: not yet
	number int       // of the Push
}

func goesFirst(a, b entry) bool {
	return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.number, b.number)) < 0
}

// lane has items by namespace: those that have been due for longest go first, or else those that
// were added first.
type lane struct {
	items map[string]*btree.BTreeG[entry]
	turns buffer.Ring[string] // the keys of items
}

// degree of the trees. Most of them have few items.
const degree = 8

func (l *lane) insert(added entry) {
	namespace := added.item.Namespace
	if l.items[namespace] == nil {
		l.items[namespace] = btree.NewG(degree, goesFirst)
		l.turns.WriteOne(namespace)
	}
	l.items[namespace].ReplaceOrInsert(added)
}

func (l *lane) remove(e entry) { l.items[e.item.Namespace].Delete(e) }

// pop removes and returns the first item of the next namespace that is open.
func (l *lane) pop(isOpen func(namespace string) bool) (entry, bool) {
	for range l.turns.Len() {
		namespace, _ := l.turns.ReadOne()
		items := l.items[namespace]
		var first entry
		found := false
		if isOpen(namespace) {
			first, found = items.DeleteMin()
		}
		if items.Len() > 0 {
			l.turns.WriteOne(namespace)
		} else {
			delete(l.items, namespace)
		}
		if found {
			return first, true
		}
	}
	return entry{}, false
}
