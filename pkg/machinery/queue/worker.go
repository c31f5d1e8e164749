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
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

// A queue has only items that are due within Horizon. A sweep finds the rest in the cache in time:
// an item in the queue needs memory, stays until its time if its object is deleted, and waits for a
// timer, which does not notice that the wall clock was stepped or that the machine slept.
const (
	SweepPeriod = time.Minute
	Horizon     = 2 * SweepPeriod
)

// FinishTimeout is how long running syncs may take when a controller is stopped. A leader that
// cannot renew its lease stops at most 8.5 s after the last renewal, and keeps the lease while
// syncs run. Another may take over after 12 s: FinishTimeout must be less than the difference.
const FinishTimeout = 3 * time.Second

// Values of label result of SyncDuration.
const (
	// ResultSuccess: the sync succeeded.
	ResultSuccess = "success"
	// ResultBlocked: the object is blocked, as its status or an event reports; the sync is
	// retried later.
	ResultBlocked = "blocked"
	// ResultError: the sync failed and is retried.
	ResultError = "error"
	// ResultPanic: the sync panicked and is retried.
	ResultPanic = "panic"
)

// SyncDuration observes the duration of syncs. Label result is one of the constants.
var SyncDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
	Name:           "cnat_sync_duration_seconds",
	Help:           "Duration of a sync of an At, a CronAt, or a workload with restart annotations, by result: success, blocked (the status or an event reports the cause), error, panic.",
	Buckets:        []float64{.0001, .001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
	StabilityLevel: metrics.ALPHA,
}, []string{"result"})

// RegisterMetrics registers the metric of all queues. Call it only once.
func RegisterMetrics() {
	legacyregistry.MustRegister(SyncDuration)
	for _, result := range []string{ResultSuccess, ResultBlocked, ResultError, ResultPanic} {
		SyncDuration.WithLabelValues(result)
	}
}

// Run syncs items until ctx is done, at most perNamespace of a namespace at the same time. It
// returns when the running syncs have finished, which are canceled after FinishTimeout. kind and
// handle are those of ProcessNext. sweep is called at once, and each SweepPeriod: it must call AddStep
// for what is in the cache.
func (q *Queue) Run(ctx context.Context, perNamespace int, kind string, handle SyncHandler, sweep func(isFirst bool)) {
	syncCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	q.Standby.Store(false)
	var wg sync.WaitGroup
	for range q.Start(perNamespace) {
		wg.Go(func() {
			for ctx.Err() == nil && q.ProcessNext(syncCtx, kind, handle) {
			}
		})
	}
	wg.Go(func() {
		for isFirst := true; ctx.Err() == nil; isFirst = false {
			sweep(isFirst)
			select {
			case <-ctx.Done():
			case <-q.clock.After(SweepPeriod):
			}
		}
	})
	<-ctx.Done()
	q.ShutDown()
	defer time.AfterFunc(FinishTimeout, cancel).Stop()
	wg.Wait()
}

// SyncHandler takes the next step for an item. It returns the delay after which to sync the item
// again (0 if that is not necessary), or an error if it must be retried with back-off: the sooner
// of both counts.
type SyncHandler func(context.Context, cache.ObjectName) (time.Duration, error)

// ProcessNext waits for an item and syncs it. It returns false if the queue is shut down. kind is
// what the item is called in the log. An error is logged, unless it wraps answer.ErrBlocked, which
// is reported elsewhere.
func (q *Queue) ProcessNext(ctx context.Context, kind string, handle SyncHandler) bool {
	item, shutdown := q.Get()
	if shutdown {
		return false
	}
	defer q.Done(item)
	logger := klog.LoggerWithValues(klog.FromContext(ctx), kind, klog.KRef(item.Parts()))

	start := q.clock.Now()
	var delay time.Duration
	err := Recovered(func() (err error) {
		delay, err = handle(klog.NewContext(ctx, logger), item)
		return err
	})
	SyncDuration.WithLabelValues(resultOf(err)).Observe(q.clock.Since(start).Seconds())
	switch {
	case err == nil:
		q.Forget(item)
	case errors.Is(err, answer.ErrBlocked):
		logger.V(2).Info("Blocked, retrying later", "reason", err)
		q.AddRateLimited(item)
	default:
		logger.Error(err, "Sync failed, retrying later")
		q.AddRateLimited(item)
	}
	q.addWithinHorizon(item, delay)
	return true
}

func resultOf(err error) string {
	switch {
	case err == nil:
		return ResultSuccess
	case errors.Is(err, answer.ErrBlocked):
		return ResultBlocked
	case errors.Is(err, answer.ErrPanic):
		return ResultPanic
	default:
		return ResultError
	}
}

// Handlers returns handlers that call enqueue with each object that was added, changed or deleted. A
// deletion counts only if the last state of the object is known.
func Handlers[T interface {
	comparable
	metav1.Object
}](enqueue func(T)) cache.TypedResourceEventHandlerFuncs[T] {
	return cache.TypedResourceEventHandlerFuncs[T]{
		AddFunc: enqueue,
		UpdateFunc: func(old, cur T) {
			if old.GetResourceVersion() != cur.GetResourceVersion() {
				enqueue(cur)
			}
		},
		DeleteFunc: func(deleted cache.DeletedObject[T]) {
			if none := *new(T); deleted.OptionalObj != none {
				enqueue(deleted.OptionalObj)
			}
		},
	}
}

// AddStep adds an item: now if it has a step to take, or else after a delay, where 0 means never.
// One that is retried comes back after its back-off.
func (q *Queue) AddStep(item cache.ObjectName, hasStep bool, delay time.Duration) {
	switch {
	case !hasStep:
		q.addWithinHorizon(item, delay)
	case !q.IsRetried(item):
		q.Add(item)
	}
}

func (q *Queue) addWithinHorizon(item cache.ObjectName, delay time.Duration) {
	if 0 < delay && delay <= Horizon {
		q.AddAfter(item, delay)
	}
}

// Recovered calls work and returns its error, or one that wraps answer.ErrPanic if it panics.
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
