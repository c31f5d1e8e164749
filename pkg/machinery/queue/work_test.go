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
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// worked is a Workqueue with the number of its items in flight.
type worked struct {
	*Workqueue
	lock     sync.Mutex
	inFlight map[string]int // by namespace
	done     int
}

// work calls test with a Workqueue whose items take as long as process.
func work(t *testing.T, workers int, process func(context.Context), test func(w *worked)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](time.Second, time.Minute)
		w := &worked{Workqueue: NewRateLimiting("", NewFair(), limiter, clock.RealClock{}), inFlight: map[string]int{}}
		var running sync.WaitGroup
		for range w.Start(workers) {
			running.Go(func() {
				for {
					item, shutdown := w.Get()
					if shutdown {
						return
					}
					w.count(item, 1)
					process(w.Context(t.Context(), item))
					w.count(item, -1)
					w.Done(item)
				}
			})
		}
		defer func() {
			w.ShutDown()
			running.Wait()
		}()
		test(w)
	})
}

func (w *worked) count(item cache.ObjectName, change int) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.inFlight[item.Namespace] += change
	w.done += max(0, -change)
}

// add adds a number of items of a namespace, and returns how many of them are in flight a
// second later.
func (w *worked) add(namespace string, number int) int {
	for i := range number {
		w.Add(cache.NewObjectName(namespace, fmt.Sprint(i)))
	}
	time.Sleep(time.Second)
	w.lock.Lock()
	defer w.lock.Unlock()
	return w.inFlight[namespace]
}

// request makes a request that takes a minute.
func request(ctx context.Context) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://hangs", http.NoBody)
	if err != nil {
		panic(err)
	}
	_, _ = NewTransport(hanging{}).RoundTrip(request)
}

type hanging struct{}

func (hanging) RoundTrip(*http.Request) (*http.Response, error) {
	time.Sleep(time.Minute)
	return nil, http.ErrHandlerTimeout
}

// TestWorkShares adds items of one namespace after the other, all of whose requests hang:
// each namespace has its share of what the earlier ones have left.
func TestWorkShares(t *testing.T) {
	for name, tc := range map[string]struct {
		workers int
		want    []int
	}{
		"one worker":             {1, []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
		"some workers":           {16, []int{16, 14, 12, 10, 9, 8, 7, 6, 5, 5}},
		"half of all":            {64, []int{64, 32, 16, 8, 4, 2, 1, 1, 0, 0}},
		"more than usually half": {100, []int{100, 50, 25, 12, 6, 3, 2, 1, 1, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			work(t, tc.workers, request, func(w *worked) {
				const many = 200
				var got []int
				for i := range tc.want {
					got = append(got, w.add(fmt.Sprint(i), many))
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("in flight (-want +got):\n%s", diff)
				}
				time.Sleep(time.Duration(many*len(tc.want)) * time.Minute)
				w.lock.Lock()
				defer w.lock.Unlock()
				if w.done != many*len(tc.want) || w.Len() != 0 || len(w.turns.shares.inFlight) != 0 || w.turns.shares.all != 0 || w.turns.occupied != 0 {
					t.Errorf("%d items done; %d wait, %v in flight: want %d done and nothing left", w.done, w.Len(), w.turns.shares, many*len(tc.want))
				}
			})
		})
	}
}

// TestWorkWithoutRequest has items that take long for another reason, such as the client's
// rate limiter: each occupies a worker until it is done.
func TestWorkWithoutRequest(t *testing.T) {
	work(t, 16, func(context.Context) { time.Sleep(time.Minute) }, func(w *worked) {
		got := []int{w.add("first", 100), w.add("second", 1)}
		if diff := cmp.Diff([]int{16, 0}, got); diff != "" {
			t.Errorf("in flight (-want +got):\n%s", diff)
		}
		if !w.IsBusy() {
			t.Error("it is not busy while items wait for a worker")
		}
		time.Sleep(time.Minute)
		if got := w.add("second", 0); got != 1 {
			t.Errorf("%d items of the second namespace in flight, want its turn", got)
		}
	})
}

// TestParallel has several items of a namespace in flight: they divide its share.
func TestParallel(t *testing.T) {
	var lock sync.Mutex
	var got []int
	work(t, 16, func(ctx context.Context) {
		lock.Lock()
		got = append(got, Parallel(ctx, 10))
		lock.Unlock()
		request(ctx)
	}, func(w *worked) {
		for i := range 5 {
			w.Add(cache.NewObjectName("namespace", fmt.Sprint(i)))
			time.Sleep(time.Second)
		}
		w.add("other", 1)
	})
	if diff := cmp.Diff([]int{10, 8, 5, 4, 3, 10}, got); diff != "" {
		t.Errorf("parallel requests (-want +got):\n%s", diff)
	}
	if got := Parallel(t.Context(), 10); got != 10 {
		t.Errorf("%d parallel requests without an item, want 10", got)
	}
}

// TestWorkShutDown shuts a queue down: the items in flight end, the others do not begin.
func TestWorkShutDown(t *testing.T) {
	work(t, 16, request, func(w *worked) {
		w.add("namespace", 100)
		if w.IsBusy() {
			t.Error("it is busy while items wait only for others of their namespace")
		}
		w.ShutDown()
		time.Sleep(time.Hour)
		w.lock.Lock()
		defer w.lock.Unlock()
		if w.done != 16 {
			t.Errorf("%d items were processed, want 16", w.done)
		}
	})
}

// TestWorkTouch adds an item again between its choice and its Get: it is not processed twice
// at the same time, and nothing is left of it.
func TestWorkTouch(t *testing.T) {
	item := cache.NewObjectName("namespace", "item")
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](time.Second, time.Minute)
	q := NewRateLimiting("", NewPrioritized(1, func(cache.ObjectName) int { return 0 }, clock.RealClock{}), limiter, clock.RealClock{})
	defer q.ShutDown()
	q.Start(16)
	q.Add(item)
	if !q.turns.next() {
		t.Fatal("the queue is shut down")
	}
	q.Add(item)
	if got, _ := q.TypedRateLimitingInterface.Get(); got != item {
		t.Fatalf("got %s", got)
	}
	if q.Len() != 0 {
		t.Errorf("%d items wait, want none", q.Len())
	}
	q.Done(item)
}
