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

// Package leader lets one of several controllers work, and the others stand by.
package leader

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Of the lease, which the leader renews each retryPeriod. Whoever ends without
// releasing it is succeeded after leaseDuration, and whoever has not heard of a renewal
// for renewDeadline stops its work. It saves work, and is no fence: an answer may be
// late, or lost.
const (
	leaseDuration = 12 * time.Second
	renewDeadline = 8 * time.Second
	retryPeriod   = 500 * time.Millisecond
)

// Run calls work once this process holds the lease of the given name, and returns
// what it returns. The context of work is done when ctx is, or when the lease is
// lost, which is an error. identity is the name of this process in the lease; one that
// is started anew by the same name has the lease at once. If it is empty, it is one
// that no other process has. config is that of a client without load, which could
// keep it from renewing. health is told of the elector.
func Run(ctx context.Context, config *rest.Config, namespace, name, identity string, health *leaderelection.HealthzAdaptor, work func(context.Context) error) error {
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

func run(ctx context.Context, lock resourcelock.Interface, name string, health *leaderelection.HealthzAdaptor, work func(context.Context) error) error {
	var elector *leaderelection.LeaderElector
	var leads atomic.Bool
	worked := make(chan error, 1)
	// The lease is released when the work has ended, not when it is asked to.
	leaseCtx, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            lock,
		Name:            name,
		LeaseDuration:   leaseDuration,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				leads.Store(true)
				defer release()
				leading, stop := context.WithCancel(leading)
				defer stop()
				defer context.AfterFunc(ctx, stop)()
				// The elector itself ends leading only when it has tried to release the
				// lease, which an API server that hangs draws out beyond the lease's end.
				go wait.UntilWithContext(leading, func(context.Context) {
					if !elector.IsLeader() || elector.Check(renewDeadline-leaseDuration) != nil {
						stop()
					}
				}, retryPeriod)
				worked <- work(leading)
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("create the leader elector: %w", err)
	}
	health.SetLeaderElection(elector)
	defer context.AfterFunc(ctx, func() {
		if !leads.Load() {
			release()
		}
	})()
	elector.Run(leaseCtx)
	if leads.Load() {
		err = <-worked
	}
	if err == nil && ctx.Err() == nil {
		return fmt.Errorf("lost the lease %s: another controller may be at work", lock.Describe())
	}
	return err
}
