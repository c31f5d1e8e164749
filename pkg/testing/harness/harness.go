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

// Package harness has what the tests of several controllers share: they run against package
// fakeserver, in virtual time (testing/synctest).
package harness

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/freeze"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
)

func init() {
	// The second handler sleeps until a time that may be that of another test.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
}

// NewClients returns clients with the given transport.
func NewClients(t *testing.T, transport http.RoundTripper) (kubernetes.Interface, clientset.Interface) {
	t.Helper()
	config := fakeserver.Config(transport)
	kubeClient, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	cnatClient, err := clientset.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return kubeClient, cnatClient
}

// Run calls run, whose context ends when the test ends or stop is called. Both wait until run
// has returned.
func Run(ctx context.Context, t *testing.T, run func(ctx context.Context)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// Logged returns a context with a logger that does not print anything, and what it has
// logged.
func Logged(t *testing.T, verbosity int) (ctx context.Context, logged func() string) {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.Verbosity(verbosity), ktesting.BufferLogs(true)))
	return klog.NewContext(t.Context(), logger), logger.GetSink().(ktesting.Underlier).GetBuffer().String
}

// NoFreezes are the Freezes of a controller that obeys none.
type NoFreezes struct{}

// Name implements cache.DoneChecker.
func (NoFreezes) Name() string { return "no Freezes" }

// Done implements cache.DoneChecker.
func (NoFreezes) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

// Set implements steps.Freezes.
func (NoFreezes) Set() (*freeze.Set, error) { return nil, nil }

// Notify implements steps.Freezes.
func (NoFreezes) Notify(func()) {}

// Clock is a wall clock that is set, or that continues while the machine sleeps. Timers do
// not notice that.
type Clock struct {
	clock.RealClock
	ahead atomic.Int64
}

// Set sets the clock to a time that is ahead of the clock of timers.
func (c *Clock) Set(ahead time.Duration) { c.ahead.Store(int64(ahead)) }

// Now implements clock.PassiveClock.
func (c *Clock) Now() time.Time { return c.RealClock.Now().Add(time.Duration(c.ahead.Load())) }

// Since implements clock.PassiveClock.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
