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

// While there are urgent items for longer than patience, share of them are returned for
// each of the others.
const (
	patience = 10 * time.Second
	share    = 7
)

// Prioritized is an Order that returns urgent items, in the order of a Fair, before others.
type Prioritized struct {
	isUrgent func(cache.ObjectName) bool
	clock    clock.PassiveClock
	urgent   *Fair
	rest     Order
	// hurried are the items in urgent. stale are those that became urgent while they were in
	// rest: their entries there do not count.
	hurried, stale sets.Set[cache.ObjectName]
	waiting        time.Time // since when there are others
	turns          int       // the number of urgent items since the last other one
}

var _ Order = &Prioritized{}

// NewPrioritized returns an empty queue. isUrgent is called with each item that is added,
// under the lock of the workqueue. rest must be an empty queue for the other items.
func NewPrioritized(isUrgent func(cache.ObjectName) bool, rest Order, wallClock clock.PassiveClock) *Prioritized {
	return &Prioritized{isUrgent: isUrgent, clock: wallClock, urgent: NewFair(), rest: rest, hurried: sets.New[cache.ObjectName](), stale: sets.New[cache.ObjectName]()}
}

// Touch is called when an item is added again: it may be urgent by now. Otherwise, it keeps
// its place.
func (p *Prioritized) Touch(item cache.ObjectName) {
	switch {
	case p.hurried.Has(item):
	case p.isUrgent(item):
		p.stale.Insert(item)
		p.hurry(item)
	default:
		p.rest.Touch(item)
	}
}

// Push adds an item.
func (p *Prioritized) Push(item cache.ObjectName) {
	if p.isUrgent(item) {
		p.hurry(item)
		return
	}
	if p.others() == 0 {
		p.waiting = p.clock.Now()
	}
	if p.stale.Has(item) {
		p.stale.Delete(item)
		p.rest.Touch(item)
	} else {
		p.rest.Push(item)
	}
}

func (p *Prioritized) hurry(item cache.ObjectName) {
	p.urgent.Push(item)
	p.hurried.Insert(item)
}

// others returns the number of items that are not urgent.
func (p *Prioritized) others() int { return p.rest.Len() - p.stale.Len() }

// Len returns the number of items.
func (p *Prioritized) Len() int { return p.urgent.Len() + p.others() }

// Pop removes and returns the next item. The queue must not be empty.
func (p *Prioritized) Pop() cache.ObjectName { return pop(p) }

// PopFrom implements Order.
func (p *Prioritized) PopFrom(isOpen func(namespace string) bool) (cache.ObjectName, bool) {
	isOthersTurn := p.others() > 0 && p.turns >= share && p.clock.Since(p.waiting) >= patience
	if !isOthersTurn {
		if item, ok := p.popUrgent(isOpen); ok {
			return item, true
		}
	}
	if item, ok := p.popOther(isOpen); ok || !isOthersTurn {
		return item, ok
	}
	return p.popUrgent(isOpen)
}

func (p *Prioritized) popUrgent(isOpen func(namespace string) bool) (cache.ObjectName, bool) {
	item, ok := p.urgent.PopFrom(isOpen)
	if !ok {
		return item, false
	}
	p.turns++
	if p.hurried.Delete(item); p.urgent.Len() == 0 {
		p.hurried = sets.New[cache.ObjectName]() // A map never shrinks.
	}
	return item, true
}

func (p *Prioritized) popOther(isOpen func(namespace string) bool) (cache.ObjectName, bool) {
	for {
		item, ok := p.rest.PopFrom(isOpen)
		if !ok {
			return item, false
		}
		if !p.stale.Has(item) {
			p.turns = 0
			return item, true
		}
		p.stale.Delete(item)
	}
}
