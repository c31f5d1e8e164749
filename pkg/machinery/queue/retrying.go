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
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

// A failed sync is retried after minErrorBackoff. The back-off doubles with each failure,
// up to maxErrorBackoff.
const (
	minErrorBackoff = 200 * time.Millisecond
	maxErrorBackoff = time.Minute
)

// Retrying is a workqueue that decides when an item is tried again.
type Retrying struct {
	*Workqueue
	blocked *Blocked
}

// NewRetrying returns a workqueue with the given order. name is for its metrics, and for
// those of its queue of blocked items, with the prefix blocked_.
func NewRetrying(name string, order Order, wallClock clock.WithTicker) *Retrying {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](minErrorBackoff, maxErrorBackoff)
	return &Retrying{NewRateLimiting(name, order, limiter, wallClock), NewBlocked("blocked_"+name, wallClock)}
}

// Settle must be called with the result of the sync of an item.
func (r *Retrying) Settle(ctx context.Context, item cache.ObjectName, err error) {
	if err == nil {
		r.Forget(item)
		r.blocked.Forget(item)
		return
	}
	logger, isBlocked := klog.FromContext(ctx), errors.Is(err, answer.ErrBlocked)
	message := answer.OneLine(err.Error())
	if isBlocked { // The object's status or an event reports it.
		logger.V(2).Info("Blocked, retrying later", "reason", message)
	} else {
		logger.Error(errors.New(message), "Sync failed, retrying later")
	}
	if isBlocked || !answer.IsTransient(err) {
		r.blocked.Add(item)
	} else {
		r.AddRateLimited(item)
	}
}

// IsRetried reports whether the last sync of an item failed or was blocked.
func (r *Retrying) IsRetried(item cache.ObjectName) bool {
	return r.NumRequeues(item) > 0 || r.blocked.Retries(item) > 0
}

// RunBlocked adds each blocked item to the queue when its turn has come, until ctx is done.
func (r *Retrying) RunBlocked(ctx context.Context) { r.blocked.Run(ctx, r.Add) }

// ShutDown shuts the queue down.
func (r *Retrying) ShutDown() {
	r.Workqueue.ShutDown()
	r.blocked.ShutDown()
}

// Recovered returns the error of work. It turns a panic into one: a defect that concerns one
// object must not stop the work on all others.
func Recovered(work func() error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: %v\n%s", answer.ErrPanic, cause, debug.Stack())
		}
	}()
	return work()
}

// A blocked item is retried after minBackoff. The back-off doubles each time, up to
// maxBackoff, plus a random part of up to jitter times that. In total, only one blocked
// item is retried in each period, with namespaces taking turns. Each item that is no
// longer blocked lets gain others through immediately: once the cause is gone, items do
// not wait for each other.
const (
	minBackoff = 200 * time.Millisecond
	maxBackoff = 40 * time.Second
	jitter     = 0.5
	period     = 100 * time.Millisecond
	gain       = 2
)

// Blocked holds blocked items until it is time to retry them.
type Blocked struct {
	queue  workqueue.TypedRateLimitingInterface[cache.ObjectName]
	clock  clock.WithTicker
	passes chan struct{} // has an element for each item that does not have to wait for its turn
}

// NewBlocked returns an empty Blocked. name is for the metrics of its queue.
func NewBlocked(name string, wallClock clock.WithTicker) *Blocked {
	limiter := jittered{workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](minBackoff, maxBackoff)}
	return &Blocked{queue: newRateLimiting(name, NewFair(), limiter, wallClock), clock: wallClock, passes: make(chan struct{}, 2*gain)}
}

// Add adds an item that is blocked or still blocked.
func (b *Blocked) Add(item cache.ObjectName) { b.queue.AddRateLimited(item) }

// Forget must be called for each item that is not, or no longer, blocked.
func (b *Blocked) Forget(item cache.ObjectName) {
	if b.queue.NumRequeues(item) == 0 {
		return
	}
	b.queue.Forget(item)
	for range gain {
		select {
		case b.passes <- struct{}{}:
		default:
		}
	}
}

// Retries returns how often the item was added since the last Forget.
func (b *Blocked) Retries(item cache.ObjectName) int { return b.queue.NumRequeues(item) }

// Run calls retry for each item whose turn has come, until ctx is done. After that, Add
// has no effect.
func (b *Blocked) Run(ctx context.Context, retry func(cache.ObjectName)) {
	defer context.AfterFunc(ctx, b.queue.ShutDown)()
	for {
		item, shutdown := b.queue.Get()
		if shutdown {
			return
		}
		b.queue.Done(item)
		retry(item)
		select {
		case <-ctx.Done():
			return
		case <-b.clock.After(period):
		case <-b.passes:
		}
	}
}

// ShutDown shuts the queue down.
func (b *Blocked) ShutDown() { b.queue.ShutDown() }

// jittered is a rate limiter that separates items that were added together.
type jittered struct {
	workqueue.TypedRateLimiter[cache.ObjectName]
}

// When implements workqueue.TypedRateLimiter.
func (j jittered) When(item cache.ObjectName) time.Duration {
	return wait.Jitter(j.TypedRateLimiter.When(item), jitter)
}
