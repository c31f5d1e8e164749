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
	"context"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// slowTime is how long a request may occupy a worker. If it were much shorter, an API server
// that is only busy would get more requests at the same time, and be slower still.
const slowTime = 500 * time.Millisecond

// minInFlight is the number of items in flight that are allowed with few workers. It is
// half of the seats that the API server has by default for the requests of all service
// accounts.
const minInFlight = 128

// Workqueue is a rate-limited workqueue.
//
// The requests of one namespace can take long, such as because of an admission webhook that
// hangs. They must not delay the others:
//
//   - An item occupies a worker until it is done, or until one of its requests is in flight
//     for longer than slowTime: from then on, the worker processes other items.
//     So workers are occupied by work that the API server really does, and the order of the
//     queue decides what comes next. A request that waits for the client's rate limit is not
//     in flight: more items would only make that queue longer.
//   - Each namespace has its share of the items in flight (see Shares). With 16 workers, the
//     total is 128 and the share an eighth of what the others leave: five namespaces whose
//     requests all hang leave about half of it.
//
// Unless the total is used up, an item of another namespace waits at most for slowTime and
// its turn.
type Workqueue struct {
	workqueue.TypedRateLimitingInterface[cache.ObjectName]
	turns *turns
}

// NewRateLimiting returns a rate-limited workqueue with the given order. name is for its
// metrics.
func NewRateLimiting(name string, order Order, limiter workqueue.TypedRateLimiter[cache.ObjectName], wallClock clock.WithTicker) *Workqueue {
	t := &turns{order: order, seats: map[cache.ObjectName]*seat{}, settle: func(int) {}}
	if settler, ok := wallClock.(Settler); ok {
		t.settle = func(rank int) { settler.Settle(name, rank) }
	}
	t.changed = sync.NewCond(&t.lock)
	return &Workqueue{turns: t, TypedRateLimitingInterface: newRateLimiting(name, storage{t}, limiter, wallClock)}
}

// Settler is a simulated clock. A queue calls Settle before it chooses an item, and package events
// before it chooses an event. Settle returns when nothing else happens any more at the current
// time, to one goroutine of a queue after the other, by their ranks: so what is chosen does not
// depend on the order in which goroutines run.
type Settler interface{ Settle(queue string, rank int) }

func newRateLimiting(name string, storage workqueue.Queue[cache.ObjectName], limiter workqueue.TypedRateLimiter[cache.ObjectName], wallClock clock.WithTicker) workqueue.TypedRateLimitingInterface[cache.ObjectName] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[cache.ObjectName]{
		DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[cache.ObjectName]{Name: name, Clock: wallClock,
			Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[cache.ObjectName]{Name: name, Clock: wallClock, Queue: storage}),
		}),
	})
}

// Start sets the number of workers; before, Get has no limits. It returns the number of
// goroutines that must call Get and Done in a loop: more than workers, because others go on
// while the requests of some are slow.
func (q *Workqueue) Start(workers int) (goroutines int) {
	q.turns.lock.Lock()
	defer q.turns.lock.Unlock()
	total := max(minInFlight, 2*workers)
	q.turns.workers, q.turns.shares = workers, NewShares(workers, total)
	return total
}

// StartExclusive is Start for items that occupy their workers for long: at most total of them
// are processed at the same time, and at most perNamespace of one namespace, or 1 if the others
// leave less.
func (q *Workqueue) StartExclusive(total, perNamespace int) (goroutines int) {
	q.turns.lock.Lock()
	defer q.turns.lock.Unlock()
	q.turns.workers, q.turns.shares = total, NewShares(perNamespace, total)
	return total
}

// Get waits until an item may be processed, and returns it. It returns true when the queue is
// shut down. The requests for the item need the context that Context returns.
func (q *Workqueue) Get() (item cache.ObjectName, shutdown bool) {
	if !q.turns.next() {
		return item, true
	}
	return q.TypedRateLimitingInterface.Get() // the item that was chosen, without waiting
}

// Done must be called when an item was processed.
func (q *Workqueue) Done(item cache.ObjectName) {
	q.turns.end(item) // first, because the item may be chosen again immediately
	q.TypedRateLimitingInterface.Done(item)
}

// Context returns the context for the requests of an item between Get and Done. They need a
// client with NewTransport.
func (q *Workqueue) Context(ctx context.Context, item cache.ObjectName) context.Context {
	q.turns.lock.Lock()
	defer q.turns.lock.Unlock()
	return context.WithValue(ctx, seatKey{}, q.turns.seats[item])
}

// IsBusy returns true while items wait for a worker. Those of a namespace that has its share
// in flight wait for that namespace.
func (q *Workqueue) IsBusy() bool { return q.Len() > 0 && q.turns.allOccupied() }

// ShutDown shuts the queue down.
func (q *Workqueue) ShutDown() {
	q.TypedRateLimitingInterface.ShutDown()
	q.turns.stop()
}

// Parallel returns how many requests may be in flight at the same time for the item whose
// context it gets, and at most the given number. The items of a namespace divide its share.
func Parallel(ctx context.Context, most int) int {
	if IsOneByOne(ctx) {
		return 1
	}
	s, ok := ctx.Value(seatKey{}).(*seat)
	if !ok {
		return most
	}
	s.turns.lock.Lock()
	defer s.turns.lock.Unlock()
	shares := s.turns.shares
	if shares == nil {
		return most
	}
	return max(1, min(most, shares.of(s.namespace)/shares.inFlight[s.namespace]))
}

type oneByOneKey struct{}

// OneByOne returns a context with which requests are sent one after the other, for
// hack/explore, which must know their order.
func OneByOne(ctx context.Context) context.Context {
	return context.WithValue(ctx, oneByOneKey{}, true)
}

// IsOneByOne reports whether a context comes from OneByOne.
func IsOneByOne(ctx context.Context) bool { return ctx.Value(oneByOneKey{}) != nil }

// turns decides which item is processed next.
type turns struct {
	lock    sync.Mutex
	changed *sync.Cond
	order   Order
	settle  func(rank int) // see Settler
	// settling is how many goroutines are in settle.
	settling int
	chosen   *cache.ObjectName // the item for the next Pop
	stopped  bool

	workers, occupied int
	shares            *Shares                    // nil: no limits
	seats             map[cache.ObjectName]*seat // of the items in flight
}

// seat is the place of an item in flight.
type seat struct {
	turns     *turns
	namespace string
	occupies  bool // a worker
}

// seatKey is the key of the seat in the context of an item.
type seatKey struct{}

func (t *turns) stop() {
	t.lock.Lock()
	defer t.lock.Unlock()
	t.stopped = true
	t.changed.Broadcast()
}

// next waits until an item may be processed, and chooses it. It returns false when the queue
// is shut down.
func (t *turns) next() bool {
	t.lock.Lock()
	defer t.lock.Unlock()
	for !t.stopped {
		if t.order.Len() > 0 {
			t.settling++
			rank := t.settling
			t.lock.Unlock()
			t.settle(rank)
			t.lock.Lock()
			t.settling--
		}
		if t.stopped {
			return false
		}
		if item, ok := t.choose(); ok {
			t.chosen = &item
			t.seats[item] = &seat{turns: t, namespace: item.Namespace, occupies: true}
			t.occupied++
			return true
		}
		t.changed.Wait()
	}
	return false
}

func (t *turns) choose() (item cache.ObjectName, ok bool) {
	switch {
	case t.chosen != nil:
		return item, false // It is another goroutine's turn.
	case t.shares == nil:
		return t.order.PopFrom(func(string) bool { return true })
	case t.occupied < t.workers:
		if item, ok = t.order.PopFrom(t.shares.IsOpen); ok {
			t.shares.Begin(item.Namespace)
		}
	}
	return item, ok
}

func (t *turns) allOccupied() bool {
	t.lock.Lock()
	defer t.lock.Unlock()
	return t.occupied >= t.workers
}

// leave frees the worker of an item.
func (s *seat) leave() {
	s.turns.lock.Lock()
	defer s.turns.lock.Unlock()
	if s.occupies {
		s.occupies = false
		s.turns.occupied--
		s.turns.changed.Signal()
	}
}

// end is called when an item is done.
func (t *turns) end(item cache.ObjectName) {
	t.lock.Lock()
	s := t.seats[item]
	delete(t.seats, item)
	if t.shares != nil {
		t.shares.End(item.Namespace)
	}
	t.changed.Signal()
	t.lock.Unlock()
	s.leave()
}

// storage is the storage of the workqueue, from which next takes the items.
type storage struct {
	*turns
}

func (s storage) Touch(item cache.ObjectName) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.order.Touch(item)
}

func (s storage) Push(item cache.ObjectName) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.order.Push(item)
	s.changed.Signal()
}

func (s storage) Len() int {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.chosen != nil {
		return s.order.Len() + 1
	}
	return s.order.Len()
}

func (s storage) Pop() cache.ObjectName {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.chosen == nil {
		return s.order.Pop()
	}
	item := *s.chosen
	s.chosen = nil
	s.changed.Signal() // There may be another one.
	return item
}

// transport gives the worker of an item back while a request takes long.
type transport struct {
	next http.RoundTripper
}

// NewTransport returns a transport for the clients of what processes items. Nothing in between
// must wait, such as for another try.
func NewTransport(next http.RoundTripper) http.RoundTripper { return transport{next} }

func (t transport) RoundTrip(request *http.Request) (*http.Response, error) {
	if s, ok := request.Context().Value(seatKey{}).(*seat); ok && s != nil {
		defer time.AfterFunc(slowTime, s.leave).Stop()
	}
	return t.next.RoundTrip(request)
}

// Shares limits how many items each namespace has in flight. Use it only under a lock.
//
// There is a total. A namespace may have a share of what the others leave of it, and at least
// one item. The share is such that a single namespace can have as many in flight as there are
// workers, and no more: workers/total. Thus k namespaces whose items all hang leave
// total*(1-share)^k to the others, in whatever order they come.
type Shares struct {
	workers, total int
	inFlight       map[string]int // by namespace
	all            int            // the sum of inFlight
}

// NewShares returns Shares without items in flight. total must be more than workers.
func NewShares(workers, total int) *Shares {
	return &Shares{workers: workers, total: total, inFlight: map[string]int{}}
}

// IsOpen reports whether a namespace may have another item in flight.
func (s *Shares) IsOpen(namespace string) bool {
	return s.all < s.total && s.inFlight[namespace] < s.of(namespace)
}

// Begin counts an item of a namespace that is open.
func (s *Shares) Begin(namespace string) {
	s.inFlight[namespace]++
	s.all++
}

// End is called when an item is done.
func (s *Shares) End(namespace string) {
	s.all--
	if s.inFlight[namespace]--; s.inFlight[namespace] == 0 {
		delete(s.inFlight, namespace)
	}
}

// of returns the share of a namespace.
func (s *Shares) of(namespace string) int {
	left := s.total - (s.all - s.inFlight[namespace])
	return max(1, left*s.workers/s.total)
}
