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
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// run runs a queue of blocked items until the end of the test. It returns the queue, and a function
// that returns the items that were retried since its last call.
func run(t *testing.T) (*blocked, func() []cache.ObjectName) {
	t.Helper()
	b := newBlocked("", clock.RealClock{})
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(b.ShutDown)
	t.Cleanup(cancel)
	var retried []cache.ObjectName
	go b.run(ctx, func(item cache.ObjectName) { retried = append(retried, item) })
	return b, func() []cache.ObjectName {
		synctest.Wait()
		got := retried
		retried = nil
		return got
	}
}

// TestBlocked adds very many permanently blocked items: only a limited number per second
// is retried, and another namespace takes its turn.
func TestBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, retried := run(t)
		for i := range 10_000 {
			b.AddRateLimited(cache.ObjectName{Namespace: "many", Name: fmt.Sprint(i)})
		}
		time.Sleep(10 * time.Second)
		if got := len(retried()); got < 95 || got > 100 {
			t.Errorf("%d retries in ten seconds, want one each %v", got, period)
		}
		few := cache.ObjectName{Namespace: "few", Name: "one"}
		b.AddRateLimited(few)
		time.Sleep(time.Second)
		for _, item := range retried() {
			if item == few {
				return
			}
		}
		t.Error("the one of another namespace was not retried within a second")
	})
}

// TestUnblocked removes the blocker of very many items: they do not wait for each other.
func TestUnblocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, retried := run(t)
		for i := range 3_000 {
			b.AddRateLimited(cache.ObjectName{Namespace: "many", Name: fmt.Sprint(i)})
		}
		time.Sleep(time.Second)
		left := 3_000
		for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			for _, item := range retried() {
				left--
				b.Forget(item)
			}
		}
		if left > 0 {
			t.Errorf("%d items wait still, a second after what blocked them is gone", left)
		}
	})
}
