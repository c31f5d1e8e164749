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
	"sync/atomic"

	"k8s.io/client-go/util/flowcontrol"
)

// RateLimiter is a rate limiter in which a request can wait for its turn in advance.
type RateLimiter struct{ flowcontrol.RateLimiter }

// Wait implements flowcontrol.RateLimiter.
func (l RateLimiter) Wait(ctx context.Context) error {
	if ctx.Value(paidKey{}) != nil {
		return nil
	}
	return l.RateLimiter.Wait(ctx)
}

type (
	turnKey struct{}
	paidKey struct{}
)

// WithTurn returns a context that can keep a turn.
func WithTurn(ctx context.Context) context.Context {
	return context.WithValue(ctx, turnKey{}, new(atomic.Bool))
}

// WaitAhead waits for a turn of limiter, which may be nil, and keeps it in ctx. waited is
// false if there is no limit, or ctx has a turn already: then no time has passed. WaitAhead
// fails if ctx is done.
func WaitAhead(ctx context.Context, limiter flowcontrol.RateLimiter) (waited bool, err error) {
	turn, ok := ctx.Value(turnKey{}).(*atomic.Bool)
	if !ok || limiter == nil || turn.Load() {
		return false, nil
	}
	if err := limiter.Wait(ctx); err != nil {
		return false, err
	}
	turn.Store(true)
	return true, nil
}

// TakeTurn returns a context whose request uses the turn that ctx keeps, if it keeps one.
func TakeTurn(ctx context.Context) context.Context {
	if turn, ok := ctx.Value(turnKey{}).(*atomic.Bool); ok && turn.Swap(false) {
		return context.WithValue(ctx, paidKey{}, true)
	}
	return ctx
}
