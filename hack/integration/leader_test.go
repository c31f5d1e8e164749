//go:build integration

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

package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestHandover ends the leader of two controllers just when an At is due: the other
// controller starts it. The tests of pkg/machinery/leader prove how long that takes; hack/soak.sh
// measures it in many trials.
func TestHandover(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		signal syscall.Signal
		want   time.Duration
	}{
		"asked to stop": {syscall.SIGTERM, 3 * time.Second},
		"killed":        {syscall.SIGKILL, 17 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var lock sync.Mutex
			var took []time.Duration
			t.Run("trials", func(t *testing.T) {
				for i := range *soakTrials {
					t.Run(fmt.Sprint(i), func(t *testing.T) {
						t.Parallel()
						duration := handover(t, tc.signal, time.Duration(i)*100*time.Millisecond)
						lock.Lock()
						defer lock.Unlock()
						took = append(took, duration)
					})
				}
			})
			if len(took) != *soakTrials {
				t.Fatalf("%d trials, want %d", len(took), *soakTrials)
			}
			slices.Sort(took)
			median, longest := took[len(took)/2], took[len(took)-1]
			t.Logf("handed over in %v at least, median %v, at most %v", took[0], median, longest)
			// A busy machine may delay some trials, but not most.
			const busy = 3 * time.Second
			if *soakTrials > 1 && (median > tc.want || longest > tc.want+busy) {
				t.Errorf("it took %v (median), %v at most; want %v, %v", median, longest, tc.want, tc.want+busy)
			}
		})
	}
}

// handover ends a leader a while after another controller has entered standby. It returns
// how long it takes until that controller has created the Pod of an At that is due then.
func handover(t *testing.T, signal syscall.Signal, after time.Duration) time.Duration {
	t.Helper()
	for range maxLeaders {
		if took, ok := tryHandover(t, signal, after); ok {
			return took
		}
	}
	t.Fatal("each leader lost its lease")
	return 0
}

// maxLeaders is how many leaders may lose their leases on a slow machine before a trial fails.
const maxLeaders = 5

// tryHandover is a trial of handover. ok is false if the leader lost its lease before the signal,
// or the standby did when it led.
func tryHandover(t *testing.T, signal syscall.Signal, after time.Duration) (took time.Duration, ok bool) {
	t.Helper()
	namespace := newNamespace(t)
	leader := startLeader(t, namespace)
	standby := startController(t, namespace, "-leader-elect", "-leader-elect-resource-namespace="+namespace)
	waitLog(t, standby, "Attempting to acquire leader lease")
	time.Sleep(after)

	if leader.lostLease() {
		return 0, false
	}
	start := time.Now()
	err := leader.stop(signal)
	if signal == syscall.SIGTERM && err != nil {
		t.Errorf("asked to stop, it ended with %v", err)
	}
	createAt(t, newAt(namespace, "at", start, "true"))
	eventually(t, "the At to run", func(ctx context.Context) (bool, error) {
		at, err := cnatClient.CnatV1alpha1().Ats(namespace).Get(ctx, "at", metav1.GetOptions{})
		return err == nil && at.Status.Phase == v1alpha1.PhaseRunning || standby.lostLease(), err
	})
	if standby.lostLease() {
		return 0, false
	}
	return wantCreates(t, namespace, 1)[0].RequestReceivedTimestamp.Sub(start), true
}

// startLeader starts a controller that holds its namespace's lease.
func startLeader(t *testing.T, namespace string) *controller {
	t.Helper()
	leader := startController(t, namespace, "-leader-elect", "-leader-elect-resource-namespace="+namespace)
	waitLog(t, leader, "Starting controller")
	return leader
}

// waitLeaderLog waits until a leader has logged the given text. It returns false if the leader lost
// its lease first.
func waitLeaderLog(t *testing.T, leader *controller, what string) bool {
	t.Helper()
	eventually(t, "the log to have "+what, func(context.Context) (bool, error) {
		return strings.Contains(leader.output(), what) || leader.lostLease(), nil
	})
	return strings.Contains(leader.output(), what)
}

// wait waits until the process has ended by itself, and returns how.
func (c *controller) wait(t *testing.T) error {
	t.Helper()
	err := waitClosed(t, "the end of the controller", c.exited)
	c.exited = nil
	return err
}
