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

package leader

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
)

// process is a process that leads or is on standby, in virtual time.
type process struct {
	server *fakeserver.Server
	health *leaderelection.HealthzAdaptor
	stop   context.CancelFunc // asks it to stop
	hangs  atomic.Bool        // none of its requests is answered
	fails  atomic.Bool        // its renewals are refused
	// works is closed when its work starts, and asked when the work is asked to stop. The
	// work stops once goOn is closed.
	works, asked, goOn chan struct{}
	returned           chan error
}

// RoundTrip implements http.RoundTripper.
func (p *process) RoundTrip(request *http.Request) (*http.Response, error) {
	if p.hangs.Load() {
		<-request.Context().Done()
		return nil, request.Context().Err()
	}
	if p.fails.Load() && request.Method == http.MethodPut {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, err
		}
		if !bytes.Contains(body, []byte(`"holderIdentity":""`)) {
			return fakeserver.Refuse(request, apierrors.NewInternalError(errors.New("no space left")))
		}
		request.Body = io.NopCloser(bytes.NewReader(body))
	}
	return p.server.RoundTrip(request)
}

// start starts a process with the given name.
func start(t *testing.T, server *fakeserver.Server, identity string) *process {
	t.Helper()
	p := &process{
		server: server, health: leaderelection.NewLeaderHealthzAdaptor(0),
		works: make(chan struct{}), asked: make(chan struct{}), goOn: make(chan struct{}), returned: make(chan error, 1),
	}
	ctx, cancel := context.WithCancel(t.Context())
	p.stop = cancel
	go func() {
		p.returned <- Run(ctx, fakeserver.Config(p), "default", "lease", identity, p.health, func(ctx context.Context) {
			close(p.works)
			<-ctx.Done()
			close(p.asked)
			<-p.goOn
		})
	}()
	return p
}

// startLeader starts a process that leads.
func startLeader(t *testing.T) *process {
	t.Helper()
	p := start(t, fakeserver.New(clock.RealClock{}), "leader")
	<-p.works
	return p
}

func (p *process) lease(t *testing.T) *coordinationv1.Lease {
	t.Helper()
	client, err := kubernetes.NewForConfig(fakeserver.Config(p.server))
	if err != nil {
		t.Fatal(err)
	}
	lease, err := client.CoordinationV1().Leases("default").Get(t.Context(), "lease", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// TestRelease stops a leader: it keeps the lease as long as it works.
func TestRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startLeader(t)
		time.Sleep(time.Minute)
		p.stop()
		<-p.asked
		time.Sleep(time.Minute)
		if lease := p.lease(t); *lease.Spec.HolderIdentity != "leader" || time.Since(lease.Spec.RenewTime.Time) > 2*retryPeriod {
			t.Errorf("the lease is held by %q and was renewed at %v, while it works", *lease.Spec.HolderIdentity, lease.Spec.RenewTime)
		}
		if err := p.health.Check(nil); err != nil {
			t.Errorf("it is reported as unhealthy while it holds the lease: %v", err)
		}
		close(p.goOn)
		if err := <-p.returned; err != nil {
			t.Errorf("it returned %v", err)
		}
		if holder := p.lease(t).Spec.HolderIdentity; *holder != "" {
			t.Errorf("the lease is held by %q, which does not work", *holder)
		}
	})
}

// TestHangs makes the API server hang: a leader stops its work while it still owns the
// lease, and reports why.
func TestHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startLeader(t)
		defer p.stop()
		time.Sleep(time.Minute)
		p.hangs.Store(true)
		begin := time.Now()
		<-p.asked
		if took := time.Since(begin); took > renewDeadline+retryPeriod {
			t.Errorf("it went on for %v, want at most %v", took, renewDeadline+retryPeriod)
		}
		// The work does not stop as it should. The liveness probe then ends it.
		time.Sleep(leaseDuration)
		if err := p.health.Check(nil); err == nil {
			t.Error("it is said to be well when the lease has run out")
		}
		close(p.goOn)
		if err := <-p.returned; err == nil || !strings.HasPrefix(err.Error(), "lost the lease default/lease: ") {
			t.Errorf("it returned: %v", err)
		}
	})
}

// TestRenewalsFail lets the renewals of the lease fail until the leader asks its work to
// stop. The leader could release the lease, but keeps it until the work has stopped.
func TestRenewalsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startLeader(t)
		defer p.stop()
		standby := start(t, p.server, "standby")
		defer standby.stop()
		defer close(standby.goOn)
		time.Sleep(time.Minute)
		p.fails.Store(true)
		<-p.asked
		time.Sleep(3*time.Second - retryPeriod) // as long as the work may take
		if holder := p.lease(t).Spec.HolderIdentity; *holder != "leader" {
			t.Errorf("the lease is held by %q while the leader works", *holder)
		}
		close(p.goOn)
		if err := <-p.returned; err == nil {
			t.Error("it returned no error")
		}
		time.Sleep(time.Duration((1+leaderelection.JitterFactor)*float64(retryPeriod)) + time.Millisecond) // the longest interval between two tries of the standby
		if holder := p.lease(t).Spec.HolderIdentity; *holder != "standby" {
			t.Errorf("the lease is held by %q when the leader has stopped", *holder)
		}
	})
}

// TestHandover ends a leader while another process is on standby, at each moment between
// two renewals. docs/concepts/guarantees.md promises that an At that is due then starts within 3 s if the
// leader is stopped, and within 17 s if it is killed. One second of that is reserved for
// the caches and the Pod, the rest is for the lease.
func TestHandover(t *testing.T) {
	const rest = time.Second
	for name, tc := range map[string]struct {
		kill bool
		want time.Duration
	}{
		"asked to stop":     {false, 3*time.Second - rest},
		"killed or cut off": {true, 17*time.Second - rest},
	} {
		t.Run(name, func(t *testing.T) {
			for phase := time.Duration(0); phase < 4*retryPeriod; phase += retryPeriod / 10 {
				synctest.Test(t, func(t *testing.T) {
					leader := startLeader(t)
					standby := start(t, leader.server, "standby")
					close(leader.goOn)
					close(standby.goOn)
					time.Sleep(time.Minute + phase)
					begin := time.Now()
					if tc.kill {
						leader.hangs.Store(true)
					} else {
						leader.stop()
					}
					select {
					case <-standby.works:
					case <-time.After(time.Hour):
						t.Fatal("no process leads")
					}
					if took := time.Since(begin); took > tc.want {
						t.Errorf("%v after a minute: it took %v, want at most %v", phase, took, tc.want)
					}
					// A process that is cut off has already stopped its work.
					select {
					case <-leader.asked:
					default:
						t.Errorf("%v after a minute: both work", phase)
					}
					leader.stop()
					<-leader.returned //nolint:errcheck // It may have lost the lease, or not.
					standby.stop()
					if err := <-standby.returned; err != nil {
						t.Errorf("the standby returned %v", err)
					}
				})
			}
		})
	}
}
