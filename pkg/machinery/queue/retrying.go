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
	"runtime"
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
	blocked *blocked
}

// NewRetrying returns a workqueue with the given order. name is for its metrics, and for
// those of its queue of blocked items, with the prefix blocked_.
func NewRetrying(name string, order Order, wallClock clock.WithTicker) *Retrying {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](minErrorBackoff, maxErrorBackoff)
	return &Retrying{NewRateLimiting(name, order, limiter, wallClock), newBlocked("blocked_"+name, wallClock)}
}

// Settle must be called with the result of the sync of an item.
func (r *Retrying) Settle(ctx context.Context, item cache.ObjectName, err error) {
	if err == nil {
		r.Forget(item)
		r.blocked.Forget(item)
		return
	}
	logger, isBlocked := klog.FromContext(ctx), errors.Is(err, answer.ErrBlocked)
	if isBlocked { // The object's status or an event reports it.
		logger.V(2).Info("Blocked, retrying later", "reason", err)
	} else {
		logger.Error(err, "Sync failed, retrying later")
	}
	if isBlocked || !answer.IsTransient(err) {
		r.blocked.AddRateLimited(item)
	} else {
		r.AddRateLimited(item)
	}
}

// IsRetried reports whether the last sync of an item failed or was blocked.
func (r *Retrying) IsRetried(item cache.ObjectName) bool {
	return r.NumRequeues(item) > 0 || r.blocked.NumRequeues(item) > 0
}

// RunBlocked adds each blocked item to the queue when its turn has come, until ctx is done.
func (r *Retrying) RunBlocked(ctx context.Context) { r.blocked.run(ctx, r.Add) }

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
			if _, ok := cause.(runtime.Error); !ok {
				cause = fmt.Sprintf("%T", cause) // It may quote what a user wrote.
			}
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

// blocked is a workqueue that holds blocked items until it is time to retry them.
type blocked struct {
	workqueue.TypedRateLimitingInterface[cache.ObjectName]
	clock  clock.WithTicker
	passes chan struct{} // has an element for each item that does not have to wait for its turn
}

func newBlocked(name string, wallClock clock.WithTicker) *blocked {
	limiter := jittered{workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](minBackoff, maxBackoff)}
	return &blocked{newRateLimiting(name, NewFair(), limiter, wallClock), wallClock, make(chan struct{}, 2*gain)}
}

// Forget must be called for each item that is not, or no longer, blocked.
func (b *blocked) Forget(item cache.ObjectName) {
	if b.NumRequeues(item) == 0 {
		return
	}
	b.TypedRateLimitingInterface.Forget(item)
	for range gain {
		select {
		case b.passes <- struct{}{}:
		default:
		}
	}
}

// run calls retry for each item whose turn has come, until ctx is done. After that, items
// are no longer added.
func (b *blocked) run(ctx context.Context, retry func(cache.ObjectName)) {
	defer context.AfterFunc(ctx, b.ShutDown)()
	for {
		item, shutdown := b.Get()
		if shutdown {
			return
		}
		b.Done(item)
		retry(item)
		select {
		case <-ctx.Done():
			return
		case <-b.clock.After(period):
		case <-b.passes:
		}
	}
}

// jittered is a rate limiter that separates items that were added together.
type jittered struct {
	workqueue.TypedRateLimiter[cache.ObjectName]
}

func (j jittered) When(item cache.ObjectName) time.Duration {
	return wait.Jitter(j.TypedRateLimiter.When(item), jitter)
}
