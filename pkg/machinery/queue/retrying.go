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
