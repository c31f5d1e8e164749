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
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// If a class has not been empty for patience, one of its items is returned after share items of
// earlier classes.
const (
	patience = 10 * time.Second
	share    = 7
)

// Prioritized is an Order that returns items of an earlier class before those of later
// ones. In each class, namespaces take turns.
type Prioritized struct {
	classOf func(cache.ObjectName) int
	clock   clock.PassiveClock
	classes []class
	queued  map[cache.ObjectName]int // the class of each item
}

type class struct {
	items *Fair
	// stale are the items that have moved to an earlier class: their entries in items do not
	// count.
	stale   sets.Set[cache.ObjectName]
	waiting time.Time // since when there are items
	turns   int       // the number of items of earlier classes since the last one of this class
}

var _ Order = &Prioritized{}

// NewPrioritized returns an empty queue with the given number of classes. classOf returns the
// class of an item, from 0. It is called under the lock of the workqueue with each item that
// is added.
func NewPrioritized(classes int, classOf func(cache.ObjectName) int, wallClock clock.PassiveClock) *Prioritized {
	p := &Prioritized{classOf: classOf, clock: wallClock, queued: map[cache.ObjectName]int{}}
	for range classes {
		p.classes = append(p.classes, class{items: NewFair(), stale: sets.New[cache.ObjectName]()})
	}
	return p
}

// Touch is called when an item is added again. It may move to an earlier class, but not to a
// later one. Otherwise, it keeps its place.
func (p *Prioritized) Touch(item cache.ObjectName) {
	if from, to := p.queued[item], p.classOf(item); to < from {
		p.classes[from].stale.Insert(item)
		p.push(item, to)
	}
}

// Push adds an item.
func (p *Prioritized) Push(item cache.ObjectName) { p.push(item, p.classOf(item)) }

func (p *Prioritized) push(item cache.ObjectName, to int) {
	p.queued[item] = to
	c := &p.classes[to]
	if c.len() == 0 {
		c.waiting = p.clock.Now()
	}
	if c.stale.Has(item) {
		c.stale.Delete(item) // Its entry counts again.
	} else {
		c.items.Push(item)
	}
}

func (c *class) len() int { return c.items.Len() - c.stale.Len() }

// Len returns the number of items.
func (p *Prioritized) Len() int { return len(p.queued) }

// Pop removes and returns the next item. The queue must not be empty.
func (p *Prioritized) Pop() cache.ObjectName { return pop(p) }

// PopFrom implements Order.
func (p *Prioritized) PopFrom(isOpen func(namespace string) bool) (cache.ObjectName, bool) {
	for i, c := range p.classes {
		if i > 0 && c.len() > 0 && c.turns >= share && p.clock.Since(c.waiting) >= patience {
			if item, ok := p.popClass(i, isOpen); ok {
				return item, true
			}
		}
	}
	for i := range p.classes {
		if item, ok := p.popClass(i, isOpen); ok {
			return item, true
		}
	}
	return cache.ObjectName{}, false
}

func (p *Prioritized) popClass(i int, isOpen func(namespace string) bool) (cache.ObjectName, bool) {
	c := &p.classes[i]
	item, ok := c.items.PopFrom(isOpen)
	for ; ok && c.stale.Has(item); item, ok = c.items.PopFrom(isOpen) {
		c.stale.Delete(item)
	}
	if !ok {
		return item, false
	}
	c.turns = 0
	for later := range p.classes[i+1:] {
		p.classes[i+1+later].turns++
	}
	if delete(p.queued, item); len(p.queued) == 0 {
		p.queued = map[cache.ObjectName]int{} // A map never shrinks.
	}
	return item, true
}
