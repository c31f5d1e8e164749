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

// Package metrics has what the controller counts of its own, for Prometheus. What
// client-go counts, of its queue, its requests and its lease, is registered beside it.
package metrics

import (
	"context"
	"runtime"

	"k8s.io/apimachinery/pkg/labels"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go's own
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/version"
)

// The values of label result of SyncDuration.
const (
	// ResultSuccess is of a sync that took its step.
	ResultSuccess = "success"
	// ResultBlocked is of a sync that is tried again later, since something stands in
	// the At's way, which its status tells.
	ResultBlocked = "blocked"
	// ResultError is of a sync that failed, and is tried again.
	ResultError = "error"
	// ResultPanic is of a sync that panicked, and is tried again.
	ResultPanic = "panic"
)

var (
	// StartLateness observes how late a Pod is when the API server says that it is
	// created: see plan.Decision.Due. One whose creation is only found later, for the
	// answer was lost, is not observed.
	StartLateness = metrics.NewHistogram(&metrics.HistogramOpts{
		Name:           "cnat_start_lateness_seconds",
		Help:           "How late Pods are created: the time since their attempt was due.",
		Buckets:        []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600},
		StabilityLevel: metrics.ALPHA,
	})
	// Runs counts the Ats whose end is in their status; an At that is deleted before has
	// none. Label reason is that of the end, as in status.reason. As with Attempts, what
	// was written is not counted if the answer was lost.
	Runs = metrics.NewCounterVec(&metrics.CounterOpts{
		Name:           "cnat_runs_total",
		Help:           "Number of Ats that have ended, by the reason of their end.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
	// Attempts counts the Pods whose end, or loss, is in the status. Label reason is as
	// that of Runs.
	Attempts = metrics.NewCounterVec(&metrics.CounterOpts{
		Name:           "cnat_attempts_total",
		Help:           "Number of attempts (Pods) that have ended, by the reason of their end.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
	// UnexpectedPods counts the Pods that were deleted because they were a second one of an
	// attempt.
	UnexpectedPods = metrics.NewCounter(&metrics.CounterOpts{
		Name:           "cnat_unexpected_pods_total",
		Help:           "Number of Pods that were deleted because their attempt had been counted already.",
		StabilityLevel: metrics.ALPHA,
	})
	// SyncDuration observes how long syncs take. Label result is one of the constants.
	SyncDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Name:           "cnat_sync_duration_seconds",
		Help:           "How long it takes to look at an At and to take its next step, by result: success, blocked (something stands in the At's way), error, panic.",
		Buckets:        []float64{.0001, .001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		StabilityLevel: metrics.ALPHA,
	}, []string{"result"})

	// Its labels are those of version.Version, version.Revision and runtime.Version.
	buildInfo = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Name:           "cnat_build_info",
		Help:           "1, with the version, the commit and the Go version of the controller.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"version", "revision", "goversion"})

	atsDesc = metrics.NewDesc("cnat_ats",
		"Number of Ats, by state: pending (not due yet, or its schedule names no instant), due (not started although it is time), suspended, running, done. Those that are being deleted are not counted.",
		[]string{"state"}, nil, metrics.ALPHA, "")
	// Label reason is one of the reasons of condition Ready in v1alpha1.
	notReadyDesc = metrics.NewDesc("cnat_ats_not_ready",
		"Number of Ats in whose way something stands, by the reason of their condition Ready.",
		[]string{"reason"}, nil, metrics.ALPHA, "")
)

// Register registers all that is counted as it happens, and is called once. Counters
// start at 0, so that the first failure is seen as an increase.
func Register() {
	legacyregistry.MustRegister(StartLateness, Runs, Attempts, UnexpectedPods, SyncDuration, buildInfo)
	for _, reason := range []string{
		v1alpha1.ReasonCompleted, v1alpha1.ReasonCommandFailed, v1alpha1.ReasonOOMKilled, v1alpha1.ReasonEvicted,
		v1alpha1.ReasonPodFailed, v1alpha1.ReasonPodDeleted, v1alpha1.ReasonPodLost, v1alpha1.ReasonDeadlineExceeded,
	} {
		Runs.WithLabelValues(reason)
		Attempts.WithLabelValues(reason)
	}
	// There is no Pod then.
	for _, reason := range []string{v1alpha1.ReasonInvalidPod, v1alpha1.ReasonStartingDeadlineExceeded} {
		Runs.WithLabelValues(reason)
	}
	for _, result := range []string{ResultSuccess, ResultBlocked, ResultError, ResultPanic} {
		SyncDuration.WithLabelValues(result)
	}
	buildInfo.WithLabelValues(version.Version, version.Revision(), runtime.Version()).Set(1)
}

// RegisterAts registers the numbers of Ats, and is called once. They are counted in
// the lister whenever somebody asks, once it has synced, which costs nothing in between.
func RegisterAts(lister listers.AtLister, hasSynced func() bool, clock clock.PassiveClock) {
	legacyregistry.CustomMustRegister(&atCollector{lister: lister, hasSynced: hasSynced, clock: clock})
}

type atCollector struct {
	metrics.BaseStableCollector
	lister    listers.AtLister
	hasSynced func() bool
	clock     clock.PassiveClock
}

func (c *atCollector) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- atsDesc
	ch <- notReadyDesc
}

func (c *atCollector) CollectWithStability(ch chan<- metrics.Metric) {
	if !c.hasSynced() {
		return
	}
	ats, err := c.lister.List(labels.Everything())
	if err != nil {
		utilruntime.HandleErrorWithContext(context.Background(), err, "Ats are not counted")
		return
	}
	now := c.clock.Now()
	states := map[plan.State]int{}
	notReady := map[string]int{}
	for _, at := range ats {
		if at.DeletionTimestamp != nil {
			continue // Nothing starts any more.
		}
		states[plan.StateOf(at, now)]++
		if blocked := plan.Blocked(at); blocked != nil {
			notReady[blocked.Reason]++
		}
	}
	for state, number := range states {
		ch <- metrics.NewLazyConstMetric(atsDesc, metrics.GaugeValue, float64(number), string(state))
	}
	for reason, number := range notReady {
		ch <- metrics.NewLazyConstMetric(notReadyDesc, metrics.GaugeValue, float64(number), reason)
	}
}
