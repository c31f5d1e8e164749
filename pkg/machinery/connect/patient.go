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

package connect

import (
	"context"
	"net/http"
	"path"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
)

// retryPeriod is the interval between retries while connections are refused.
const retryPeriod = time.Second

type patient struct {
	next     http.RoundTripper
	reported atomic.Bool
}

// Patient returns a transport that retries every second while connections are refused.
// Clients therefore get their response as soon as the API server is back, not after the
// back-off of an informer, which grows to a minute. Two other cases are left to client-go:
// an API server that hangs, and a proxy that answers instead of the API server.
//
// It only retries reads. The creation of a Pod must be based on what was read immediately
// before, so client-go is also prevented from retrying it.
func Patient(next http.RoundTripper) http.RoundTripper {
	return &patient{next: next}
}

// RoundTrip implements http.RoundTripper.
func (t *patient) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet {
		response, err := t.next.RoundTrip(request)
		if err == nil && request.Method == http.MethodPost && path.Base(request.URL.Path) == "pods" {
			// client-go checks this to decide whether to retry.
			response.Header.Del("Retry-After")
		}
		return response, err
	}
	var response *http.Response
	err := wait.PollUntilContextCancel(request.Context(), retryPeriod, true, func(ctx context.Context) (bool, error) {
		var err error
		response, err = t.next.RoundTrip(request)
		if refused := utilnet.IsConnectionRefused(err); !refused {
			t.reported.Store(false)
			return true, err
		}
		if !t.reported.Swap(true) {
			klog.FromContext(ctx).Info("The API server is unreachable; waiting for it", "answer", err)
		}
		return false, nil
	})
	return response, err
}

// RateLimiter is a rate limiter in which a request can wait for its turn in advance.
type RateLimiter struct{ flowcontrol.RateLimiter }

type turnsKey struct{}

// WithTurns returns a context that can keep turns.
func WithTurns(ctx context.Context) context.Context {
	return context.WithValue(ctx, turnsKey{}, new(atomic.Int32))
}

// Wait implements flowcontrol.RateLimiter. It uses a turn that ctx keeps, if it keeps one.
func (l RateLimiter) Wait(ctx context.Context) error {
	if turns, ok := ctx.Value(turnsKey{}).(*atomic.Int32); ok {
		for left := turns.Load(); left > 0; left = turns.Load() {
			if turns.CompareAndSwap(left, left-1) {
				return nil
			}
		}
	}
	return l.RateLimiter.Wait(ctx)
}

// WaitAhead waits until ctx keeps turns of limiter for the given number of requests, so that
// they can be sent one after the other without waiting. limiter is nil if there is no limit.
// waited is false if nothing had to be waited for. WaitAhead fails if ctx is done.
func WaitAhead(ctx context.Context, limiter flowcontrol.RateLimiter, requests int32) (waited bool, err error) {
	limited, ok := limiter.(RateLimiter)
	turns, keeps := ctx.Value(turnsKey{}).(*atomic.Int32)
	for ok && keeps && turns.Load() < requests {
		if err := limited.RateLimiter.Wait(ctx); err != nil {
			return waited, err
		}
		turns.Add(1)
		waited = true
	}
	return waited, nil
}
