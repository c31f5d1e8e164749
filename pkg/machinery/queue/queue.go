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

// Package queue has the workqueue of the controllers: client-go's, with an order and with limits
// by namespace, so that no namespace keeps others from running.
package queue

import (
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// A sync that fails is retried after minBackoff. The back-off doubles with each failure, up to
// maxBackoff, and up to jitter times as much is added: what fails at the same instant, such as
// everything behind an exhausted quota, is not retried at the same instant.
const (
	minBackoff = 200 * time.Millisecond
	maxBackoff = 40 * time.Second
	jitter     = 0.5
)

// maxInFlight is the number of items that are processed at the same time, unless one namespace
// may have more than half of it. It is half of the seats that the API server has by
// default for the requests of all service accounts.
const maxInFlight = 128

// Queue is a rate-limited workqueue. What is due goes first, in the order of its times, and the
// namespaces take turns.
// The requests of one namespace can take long, such as because of an admission webhook that
// hangs, so the items of a namespace that are processed at the same time are limited: see Start.
type Queue struct {
	workqueue.TypedRateLimitingInterface[cache.ObjectName]
	order *order
	clock clock.Clock
	// While Standby is true, Add and AddAfter do nothing: the first sweep of Run, which ends it, finds
	// what is in the caches by then. A handler of an informer runs after the cache has changed.
	Standby atomic.Bool
}

// New returns a Queue. name is for its metrics. dueSince, which may be nil, returns since when an
// item is due, or zero if it is not; it is asked each time the item is added.
func New(name string, dueSince func(cache.ObjectName) time.Time, limiter workqueue.TypedRateLimiter[cache.ObjectName], wallClock clock.WithTicker) *Queue {
	storage := newOrder(dueSince)
	return &Queue{order: storage, clock: wallClock, TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[cache.ObjectName]{
		DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[cache.ObjectName]{
			Name: name, Clock: wallClock,
			Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[cache.ObjectName]{Name: name, Clock: wallClock, Queue: storage}),
		}),
	})}
}

// NewRetrying returns a Queue for Run.
func NewRetrying(name string, dueSince func(cache.ObjectName) time.Time, wallClock clock.WithTicker) *Queue {
	return New(name, dueSince, jittered{workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](minBackoff, maxBackoff)}, wallClock)
}

type jittered struct {
	workqueue.TypedRateLimiter[cache.ObjectName]
}

// When implements workqueue.TypedRateLimiter.
func (j jittered) When(item cache.ObjectName) time.Duration {
	return wait.Jitter(j.TypedRateLimiter.When(item), jitter)
}

// Start sets the number of items of a namespace that are processed at the same time. It returns
// the number of goroutines that must call Get and Done in a loop. Half of them are for the first
// item of each namespace: if everything hangs in any number of namespaces, the others still have
// 64 places, of one item each.
func (q *Queue) Start(perNamespace int) (goroutines int) {
	return q.StartLimited(max(maxInFlight, 2*perNamespace), perNamespace)
}

// StartLimited is Start with a total.
func (q *Queue) StartLimited(total, perNamespace int) (goroutines int) {
	q.order.limit(total, perNamespace)
	return total
}

// Add implements workqueue.TypedInterface.
func (q *Queue) Add(item cache.ObjectName) {
	if !q.Standby.Load() {
		q.TypedRateLimitingInterface.Add(item)
	}
}

// AddAfter implements workqueue.TypedDelayingInterface.
func (q *Queue) AddAfter(item cache.ObjectName, delay time.Duration) {
	if !q.Standby.Load() {
		q.TypedRateLimitingInterface.AddAfter(item, delay)
	}
}

// Done must be called when an item was processed.
func (q *Queue) Done(item cache.ObjectName) {
	q.order.end(item)
	q.TypedRateLimitingInterface.Done(item)
}

// ShutDown ends the queue. The items in it are not processed.
func (q *Queue) ShutDown() {
	q.order.shutDown()
	q.TypedRateLimitingInterface.ShutDown()
}

// IsRetried reports whether the last sync of an item failed.
func (q *Queue) IsRetried(item cache.ObjectName) bool { return q.NumRequeues(item) > 0 }
