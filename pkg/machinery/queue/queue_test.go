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
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// TestOrder pushes and touches items, given as namespace/name, and pops all.
func TestOrder(t *testing.T) {
	for name, tc := range map[string]struct {
		push []string // capital letters are due since then, digits are not
		due  string   // become due in the queue
		want []string
	}{
		"empty":                            {},
		"one namespace: first come":        {push: []string{"a/1", "a/2", "a/3"}, want: []string{"a/1", "a/2", "a/3"}},
		"the few do not wait for the many": {push: []string{"a/1", "a/2", "a/3", "b/1", "b/2"}, want: []string{"a/1", "b/1", "a/2", "b/2", "a/3"}},
		"each in turn":                     {push: []string{"a/1", "b/1", "b/2", "c/1", "a/2"}, want: []string{"a/1", "b/1", "c/1", "a/2", "b/2"}},
		"those that are due first":         {push: []string{"a/1", "a/A", "b/1", "b/B", "b/C"}, want: []string{"a/A", "b/B", "b/C", "a/1", "b/1"}},
		"in the order of their times":      {push: []string{"a/C", "a/A", "a/D", "b/D", "a/B"}, want: []string{"a/A", "b/D", "a/B", "a/C", "a/D"}},
		"one becomes due":                  {push: []string{"a/x", "a/y", "a/z"}, due: "y", want: []string{"a/y", "a/x", "a/z"}},
		"all become due":                   {push: []string{"a/z", "b/y", "a/x"}, due: "xyz", want: []string{"a/x", "b/y", "a/z"}},
	} {
		t.Run(name, func(t *testing.T) {
			due := ""
			q := newOrder(func(item cache.ObjectName) time.Time {
				if strings.Contains("ABCD"+due, item.Name) {
					return time.Unix(int64(item.Name[0]), 0)
				}
				return time.Time{}
			})
			for range 2 { // What is left of the first time does not count.
				due = ""
				for _, item := range tc.push {
					q.Push(named(item))
				}
				due = tc.due
				for _, item := range tc.push {
					q.Touch(named(item))
					q.Touch(named(item))
				}
				if q.Len() != len(tc.push) {
					t.Errorf("length %d, want %d", q.Len(), len(tc.push))
				}
				var got []string
				for q.Len() > 0 {
					item := q.Pop()
					q.end(item)
					got = append(got, item.String())
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("order (-want +got):\n%s", diff)
				}
			}
			if len(q.inFlight)+q.allInFlight+len(q.entries) != 0 {
				t.Errorf("something is left: %+v", q)
			}
		})
	}
}

func named(item string) cache.ObjectName {
	namespace, name, _ := strings.Cut(item, "/")
	return cache.NewObjectName(namespace, name)
}

// worked is a Queue with the number of its items that are processed.
type worked struct {
	*Queue
	lock     sync.Mutex
	inFlight map[string]int // by namespace
	done     int
}

// work calls test with a Queue each of whose items takes a minute.
func work(t *testing.T, perNamespace int, test func(w *worked)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &worked{Queue: NewRetrying("", nil, clock.RealClock{}), inFlight: map[string]int{}}
		var running sync.WaitGroup
		for range w.Start(perNamespace) {
			running.Go(func() {
				for item, shutdown := w.Get(); !shutdown; item, shutdown = w.Get() {
					w.count(item, 1)
					time.Sleep(time.Minute)
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

// add adds a number of items of a namespace, and returns how many of them are processed.
func (w *worked) add(namespace string, number int) int {
	for i := range number {
		w.Add(cache.NewObjectName(namespace, fmt.Sprint(i)))
	}
	synctest.Wait()
	w.lock.Lock()
	defer w.lock.Unlock()
	return w.inFlight[namespace]
}

// TestLimits adds very many items of one namespace after the other: the later ones have one item
// each, and later all are done.
func TestLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		perNamespace int
		want         []int
	}{
		"one":                    {1, []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
		"some":                   {16, []int{16, 16, 16, 16, 5, 1, 1, 1, 1, 1}},
		"more than usually half": {100, []int{100, 2, 1, 1, 1, 1, 1, 1, 1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			work(t, tc.perNamespace, func(w *worked) {
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
				w.order.lock.Lock()
				defer w.order.lock.Unlock()
				if w.done != many*len(tc.want) || w.order.allInFlight != 0 {
					t.Errorf("%d items done, %d in flight: want %d done and nothing left", w.done, w.order.allInFlight, many*len(tc.want))
				}
			})
		})
	}
}

// TestNoneWaits ends an item after which one of several namespaces may begin another: no worker
// stays idle.
func TestNoneWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewRetrying("", func(item cache.ObjectName) time.Time {
			if item.Name == "due" {
				return time.Now()
			}
			return time.Time{}
		}, clock.RealClock{})
		var running sync.WaitGroup
		var lock sync.Mutex
		begun, ends := map[string]int{}, make(chan struct{})
		for range q.StartLimited(4, 2) {
			running.Go(func() {
				for item, shutdown := q.Get(); !shutdown; item, shutdown = q.Get() {
					lock.Lock()
					begun[item.Namespace]++
					lock.Unlock()
					if item == named("b/1") {
						<-ends
					} else {
						time.Sleep(time.Hour)
					}
					q.Done(item)
				}
			})
		}
		defer running.Wait()
		defer q.ShutDown()
		for _, item := range []string{"a/1", "b/1", "a/due", "b/2", "a/3"} {
			q.Add(named(item))
			synctest.Wait()
		}
		close(ends)
		synctest.Wait()
		lock.Lock()
		defer lock.Unlock()
		if begun["a"] != 2 || begun["b"] != 2 {
			t.Errorf("%v have begun, want two of each namespace", begun)
		}
	})
}

// TestShutDown shuts a queue down: the items that are processed end, the others do not begin.
func TestShutDown(t *testing.T) {
	work(t, 16, func(w *worked) {
		w.add("namespace", 100)
		w.ShutDown()
		time.Sleep(time.Hour)
		w.lock.Lock()
		defer w.lock.Unlock()
		if w.done != 16 {
			t.Errorf("%d items were processed, want 16", w.done)
		}
	})
}
