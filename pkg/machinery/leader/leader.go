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

// Package leader lets one of several controllers work while the others are on standby.
package leader

import (
	"context"
	"fmt"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/retry"
)

// The leader renews the lease every retryPeriod. If the leader exits without releasing
// the lease, another process takes over after leaseDuration. If the leader cannot renew
// the lease for renewDeadline, it asks its work to stop. The work must end before
// leaseDuration. The lease avoids duplicate work, but does not guarantee that only one
// process works: a request may still be in flight when the lease is lost.
const (
	leaseDuration = 12 * time.Second
	renewDeadline = 8 * time.Second
	retryPeriod   = 500 * time.Millisecond
)

// releaseTimeout is how long a process tries to release the lease.
const releaseTimeout = 2 * time.Second

// Run calls work once this process holds the lease with the given name, and returns after
// work has returned. The context of work is done when ctx is done, or when the lease is
// lost, which is an error. identity is the name of this process in the lease. A process
// that restarts with the same name gets the lease immediately. If identity is empty, Run
// generates a unique one. config must belong to a client without other load, which could
// delay the renewals. Run connects health to the elector.
func Run(ctx context.Context, config *rest.Config, namespace, name, identity string, health *leaderelection.HealthzAdaptor, work func(context.Context)) error {
	if identity == "" {
		hostname, err := os.Hostname()
		if err != nil {
			return err
		}
		identity = fmt.Sprintf("%s_%s", hostname, uuid.NewUUID())
	}
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, namespace, name,
		resourcelock.ResourceLockConfig{Identity: identity}, config, renewDeadline)
	if err != nil {
		return fmt.Errorf("create the lease's client: %w", err)
	}
	return run(ctx, lock, name, health, work)
}

func run(ctx context.Context, lock resourcelock.Interface, name string, health *leaderelection.HealthzAdaptor, work func(context.Context)) error {
	started, ended := make(chan context.Context, 1), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          lock,
		Name:          name,
		LeaseDuration: leaseDuration,
		RenewDeadline: renewDeadline,
		RetryPeriod:   retryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) { started <- leading },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("create the leader elector: %w", err)
	}
	health.SetLeaderElection(elector)
	// The lease is renewed until the work has ended, not until ctx is done.
	leaseCtx, stopRenewing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRenewing()
	go func() {
		defer close(ended)
		elector.Run(leaseCtx)
	}()
	select {
	case <-ctx.Done():
	case leading := <-started:
		leading, stop := context.WithCancel(leading)
		defer stop()
		defer context.AfterFunc(ctx, stop)()
		work(leading)
	}
	stopRenewing()
	<-ended
	if elector.IsLeader() {
		_ = release(ctx, lock) // If that fails, the lease runs out.
	}
	if ctx.Err() == nil {
		return fmt.Errorf("lost the lease %s: another controller may be working", lock.Describe())
	}
	return nil
}

// release releases the lease if this process has it. The elector would do that as soon as it
// cannot renew the lease, before the work has ended.
func release(ctx context.Context, lock resourcelock.Interface) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		record, _, err := lock.Get(ctx)
		if err != nil || record.HolderIdentity != lock.Identity() {
			return err
		}
		record.HolderIdentity, record.LeaseDurationSeconds = "", 1
		return lock.Update(ctx, *record)
	})
}
