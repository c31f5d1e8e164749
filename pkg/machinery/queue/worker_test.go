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
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

var item = cache.NewObjectName("namespace", "name")

// TestProcessNext syncs an item, and looks when the item comes back.
func TestProcessNext(t *testing.T) {
	RegisterMetrics()
	failure := errors.New("connection refused")
	for name, tc := range map[string]struct {
		delay  time.Duration
		err    error
		panics bool
		// expectations
		result   string
		min, max time.Duration // 0: it does not come back
	}{
		"nothing more to do": {result: ResultSuccess},
		"later":              {delay: time.Minute, result: ResultSuccess, min: time.Minute, max: time.Minute},
		"the sweep adds it":  {delay: Horizon + 1, result: ResultSuccess},
		"fails":              {err: failure, result: ResultError, min: minBackoff, max: 3 * minBackoff / 2},
		"fails, and there is less time left": {
			delay: time.Millisecond, err: failure, result: ResultError, min: time.Millisecond, max: time.Millisecond,
		},
		"blocked": {err: answer.Blocked("PodRefused", failure), result: ResultBlocked, min: minBackoff, max: 3 * minBackoff / 2},
		"panics":  {panics: true, result: ResultPanic, min: minBackoff, max: 3 * minBackoff / 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := NewRetrying("", nil, clock.RealClock{})
				defer q.ShutDown()
				sync := func(context.Context, cache.ObjectName) (time.Duration, error) {
					if tc.panics {
						panic("an unexpected object")
					}
					return tc.delay, tc.err
				}
				before := syncs(t, tc.result)
				q.Add(item)
				if !q.ProcessNext(t.Context(), "object", sync) || syncs(t, tc.result) != before+1 {
					t.Errorf("no sync with the result %s", tc.result)
				}
				if got := q.IsRetried(item); got != (tc.result != ResultSuccess) {
					t.Errorf("retried: %t", got)
				}
				start := time.Now()
				time.AfterFunc(time.Hour, q.ShutDown)
				tc.panics, tc.delay, tc.err = false, 0, nil
				if comesBack := q.ProcessNext(t.Context(), "object", sync); comesBack != (tc.max > 0) {
					t.Errorf("comes back: %t, after %v", comesBack, time.Since(start))
				}
				if wait := time.Since(start); tc.max > 0 && (wait < tc.min || wait > tc.max+time.Millisecond) {
					t.Errorf("comes back after %v, want from %v to %v", wait, tc.min, tc.max)
				}
				if q.IsRetried(item) {
					t.Error("a failure is remembered after a success")
				}
			})
		})
	}
}

func syncs(t *testing.T, result string) uint64 {
	t.Helper()
	count, err := testutil.GetHistogramMetricCount(SyncDuration.WithLabelValues(result))
	if err != nil {
		t.Fatal(err)
	}
	return count
}

// TestRetries lets the syncs of very many items fail: each is retried within a minute, and they
// do not come at the same instant.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 1000
		q := NewRetrying("", nil, clock.RealClock{})
		defer q.ShutDown()
		last, at := map[cache.ObjectName]time.Time{}, map[time.Time]int{}
		for i := range many {
			q.Add(cache.NewObjectName("namespace", fmt.Sprint(i)))
		}
		for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); {
			q.ProcessNext(t.Context(), "object", func(_ context.Context, item cache.ObjectName) (time.Duration, error) {
				if wait := time.Since(last[item]); !last[item].IsZero() && wait > time.Minute+time.Millisecond {
					t.Fatalf("%s is retried after %v", item, wait)
				}
				last[item] = time.Now()
				if time.Until(end) < time.Minute {
					at[time.Now().Truncate(time.Second)]++
				}
				return 0, answer.Blocked("PodRefused", errors.New("exceeded quota"))
			})
		}
		for second, retries := range at {
			if retries > many/10 {
				t.Errorf("%d of %d are retried in the second %v", retries, many, second)
			}
		}
	})
}

// TestRun ends a queue whose syncs hang, or hardly: they have some seconds to finish.
func TestRun(t *testing.T) {
	for takes, want := range map[time.Duration]time.Duration{time.Second: time.Second, time.Hour: FinishTimeout} {
		synctest.Test(t, func(t *testing.T) {
			q := NewRetrying("", nil, clock.RealClock{})
			ctx, stop := context.WithCancel(t.Context())
			q.Add(item)
			time.AfterFunc(time.Minute, stop)
			start := time.Now()
			q.Run(ctx, 1, "object", func(ctx context.Context, _ cache.ObjectName) (time.Duration, error) {
				select {
				case <-ctx.Done():
				case <-time.After(time.Minute + takes):
				}
				return 0, ctx.Err()
			}, func(bool) {})
			if got := time.Since(start) - time.Minute; got != want {
				t.Errorf("syncs that take %v: it ends after %v, want %v", takes, got, want)
			}
		})
	}
}

// TestSweep looks at the cache now and each minute. On standby, nothing is added.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewRetrying("", nil, clock.RealClock{})
		q.Standby.Store(true)
		q.Add(item)
		q.AddAfter(item, time.Second)
		ctx, stop := context.WithTimeout(t.Context(), 150*time.Second)
		defer stop()
		start := time.Now()
		var got []time.Duration
		q.Run(ctx, 1, "object", func(context.Context, cache.ObjectName) (time.Duration, error) {
			t.Error("it was added on standby")
			return 0, nil
		}, func(isFirst bool) {
			if got = append(got, time.Since(start)); isFirst != (len(got) == 1) {
				t.Errorf("sweep %d: first %v", len(got), isFirst)
			}
		})
		if diff := cmp.Diff([]time.Duration{0, time.Minute, 2 * time.Minute}, got); diff != "" {
			t.Errorf("sweeps (-want +got):\n%s", diff)
		}

		q = NewRetrying("", nil, clock.RealClock{})
		defer q.ShutDown()
		q.AddStep(item, false, 0)
		q.AddStep(item, false, Horizon+1)
		time.Sleep(time.Hour)
		if q.Len() != 0 {
			t.Error("something is in the queue although nothing is due")
		}
		q.AddStep(item, false, Horizon)
		time.Sleep(Horizon)
		synctest.Wait()
		if q.Len() != 1 {
			t.Error("what is due within the horizon is not in the queue")
		}
		q.ProcessNext(t.Context(), "object", func(context.Context, cache.ObjectName) (time.Duration, error) {
			return 0, errors.New("connection refused")
		})
		if q.AddStep(item, true, 0); q.Len() != 0 {
			t.Error("it does not wait for its back-off")
		}
		q.Forget(item)
		if q.AddStep(item, true, 0); q.Len() != 1 {
			t.Error("a step is not in the queue")
		}
	})
}

// TestHandlers enqueues what may have changed.
func TestHandlers(t *testing.T) {
	var got []string
	handlers := Handlers(func(pod *corev1.Pod) { got = append(got, pod.Name) })
	pod := func(name, version string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
	}
	handlers.OnAdd(pod("added", "1"), true)
	handlers.OnUpdate(pod("changed", "1"), pod("changed", "2"))
	handlers.OnUpdate(pod("resynced", "1"), pod("resynced", "1"))
	handlers.OnDelete(cache.DeletedObject[*corev1.Pod]{OptionalObj: pod("deleted", "1")})
	handlers.OnDelete(cache.DeletedObject[*corev1.Pod]{FinalStateUnknown: &cache.DeletedFinalStateUnknown{Key: "a/unknown"}})
	if diff := cmp.Diff([]string{"added", "changed", "deleted"}, got); diff != "" {
		t.Errorf("enqueued (-want +got):\n%s", diff)
	}
}
