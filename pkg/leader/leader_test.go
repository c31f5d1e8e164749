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
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// fixture is a leader in a time of its own, whose API server is a fake that can
// hang.
type fixture struct {
	client *fake.Clientset
	health *leaderelection.HealthzAdaptor
	hangs  atomic.Bool
	// asked is closed when its work is asked to stop; it does once goOn is.
	asked, goOn chan struct{}
	returned    chan error
}

func start(t *testing.T) (*fixture, context.CancelFunc) {
	t.Helper()
	f := &fixture{client: fake.NewClientset(), health: leaderelection.NewLeaderHealthzAdaptor(0), asked: make(chan struct{}), goOn: make(chan struct{}), returned: make(chan error, 1)}
	f.client.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		if !f.hangs.Load() {
			return false, nil, nil
		}
		time.Sleep(time.Minute)
		return true, nil, errors.New("timed out")
	})
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: "default", Name: "lease"},
		Client:     f.client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: "leader"},
	}
	ctx, cancel := context.WithCancel(t.Context())
	works := make(chan struct{})
	go func() {
		f.returned <- run(ctx, lock, "lease", f.health, func(ctx context.Context) error {
			close(works)
			<-ctx.Done()
			close(f.asked)
			<-f.goOn
			return nil
		})
	}()
	<-works
	return f, cancel
}

func (f *fixture) lease(t *testing.T) *coordinationv1.Lease {
	t.Helper()
	lease, err := f.client.CoordinationV1().Leases("default").Get(t.Context(), "lease", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// TestRelease asks a leader to stop: it keeps the lease as long as it works.
func TestRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, cancel := start(t)
		time.Sleep(time.Minute)
		cancel()
		<-f.asked
		time.Sleep(time.Minute)
		if lease := f.lease(t); *lease.Spec.HolderIdentity != "leader" || time.Since(lease.Spec.RenewTime.Time) > 2*retryPeriod {
			t.Errorf("the lease is held by %q and was renewed at %v, while it works", *lease.Spec.HolderIdentity, lease.Spec.RenewTime)
		}
		if err := f.health.Check(nil); err != nil {
			t.Errorf("it is said to be ill while it holds the lease: %v", err)
		}
		close(f.goOn)
		if err := <-f.returned; err != nil {
			t.Errorf("it returned %v", err)
		}
		if holder := f.lease(t).Spec.HolderIdentity; *holder != "" {
			t.Errorf("the lease is held by %q, who does not work", *holder)
		}
	})
}

// TestHangs has the API server hang: a leader stops its work while the lease is its
// own, and says why.
func TestHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, cancel := start(t)
		defer cancel()
		time.Sleep(time.Minute)
		f.hangs.Store(true)
		begin := time.Now()
		<-f.asked
		if took := time.Since(begin); took > renewDeadline+retryPeriod {
			t.Errorf("it went on for %v, want at most %v", took, renewDeadline+retryPeriod)
		}
		// The work does not stop, as it should: whoever asks for its health, ends it.
		time.Sleep(leaseDuration)
		if err := f.health.Check(nil); err == nil {
			t.Error("it is said to be well when the lease has run out")
		}
		close(f.goOn)
		if err := <-f.returned; err == nil || !strings.HasPrefix(err.Error(), "lost the lease default/lease: ") {
			t.Errorf("it returned: %v", err)
		}
	})
}
