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

// Package metrics defines the controller's own metrics for Prometheus. It also registers
// those of client-go: for queues, requests and the lease.
package metrics

import (
	"runtime"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of client-go

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/endpoints"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/queue"
	"programming-kubernetes.info/cnat-controller/pkg/version"
)

// Values of label result of Preflights.
const (
	// PreflightAccepted: the API server would accept the Pod.
	PreflightAccepted = "accepted"
	// PreflightRefused: the API server would refuse the Pod.
	PreflightRefused = "refused"
	// PreflightUnknown: the answer does not tell whether the API server would accept the
	// Pod.
	PreflightUnknown = "unknown"
	// PreflightShared: the answer to an earlier dry-run of the same Pod was used.
	PreflightShared = "shared"
)

// Values of label result of Rehearsals.
const (
	// RehearsalPassed: each container got as far as the start of its command.
	RehearsalPassed = "passed"
	// RehearsalFailed: something kept a container from starting, or the Pod was refused.
	RehearsalFailed = "failed"
	// RehearsalUnknown: the rehearsal was stopped, such as by an edit, and has no result.
	RehearsalUnknown = "unknown"
)

// attemptReasons are the reasons with which an attempt, and a run, can end. runReasons are
// those of a run without a Pod.
var (
	attemptReasons = []string{
		v1alpha1.ReasonCompleted, v1alpha1.ReasonCommandFailed, v1alpha1.ReasonOOMKilled, v1alpha1.ReasonEvicted,
		v1alpha1.ReasonPodFailed, v1alpha1.ReasonPodDeleted, v1alpha1.ReasonPodLost, v1alpha1.ReasonNodeGone, v1alpha1.ReasonDeadlineExceeded,
	}
	runReasons = []string{
		v1alpha1.ReasonInvalidPod, v1alpha1.ReasonStartingDeadlineExceeded, v1alpha1.ReasonNoNodes, v1alpha1.ReasonNodesFailed,
		v1alpha1.ReasonNotStarted, v1alpha1.ReasonAtDeleted, v1alpha1.ReasonTargetNotFound, v1alpha1.ReasonTargetPaused,
		v1alpha1.ReasonTargetOnDelete, v1alpha1.ReasonReverted, v1alpha1.ReasonRolloutFailed,
	}
)

// Namespaces are the values of label namespace of all metrics.
var Namespaces = NewNamespaceLabels(0)

var (
	// StartLateness observes how late a Pod is when the API server confirms its creation:
	// see plan.CreatePod. It does not observe a Pod whose creation is only discovered later
	// because the response was lost.
	StartLateness = metrics.NewHistogram(&metrics.HistogramOpts{
		Name:           "cnat_start_lateness_seconds",
		Help:           "How late Pods are created: the time since their attempt was due and not blocked.",
		Buckets:        []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600},
		StabilityLevel: metrics.ALPHA,
	})
	// Runs counts the Ats whose end is in their status. Label reason is the value of
	// status.reason at the end. Runs does not count an At that is deleted before its end, or
	// an end whose status write succeeded but whose response was lost.
	Runs = NewCounter("cnat_runs_total", "Number of Ats that have ended, by namespace and the reason of their end.",
		Namespaces, slices.Concat(attemptReasons, runReasons)...)
	// Attempts counts the Pods whose end or loss is in the status. Label reason and the
	// exceptions are those of Runs.
	Attempts = NewCounter("cnat_attempts_total", "Number of attempts (Pods) that have ended, by namespace and the reason of their end.",
		Namespaces, attemptReasons...)
	// UnexpectedPods counts the Pods that were deleted because they were the second one of
	// an attempt.
	UnexpectedPods = metrics.NewCounter(&metrics.CounterOpts{
		Name:           "cnat_unexpected_pods_total",
		Help:           "Number of Pods that were deleted because their attempt had already been counted.",
		StabilityLevel: metrics.ALPHA,
	})
	// Preflights counts the checks whether the API server would accept the Pod of an At.
	// Label result is one of the constants.
	Preflights = metrics.NewCounterVec(&metrics.CounterOpts{
		Name:           "cnat_preflights_total",
		Help:           "Number of preflights of Ats, by result: accepted, refused, unknown (the answer to the dry-run does not concern the Pod), shared (the answer for the same Pod of another At was used).",
		StabilityLevel: metrics.ALPHA,
	}, []string{"result"})
	// Rehearsals counts the rehearsals of Ats and CronAts. Label result is one of the constants.
	Rehearsals = metrics.NewCounterVec(&metrics.CounterOpts{
		Name:           "cnat_rehearsals_total",
		Help:           "Number of rehearsals of Ats and CronAts, by result: passed, failed, unknown (stopped, such as by an edit).",
		StabilityLevel: metrics.ALPHA,
	}, []string{"result"})
	// CronAtMissed counts the scheduled times of CronAts for which no At was created.
	CronAtMissed = metrics.NewCounter(&metrics.CounterOpts{
		Name:           "cnat_cronat_missed_total",
		Help:           "Number of scheduled times of CronAts for which no At was created.",
		StabilityLevel: metrics.ALPHA,
	})
	// CronAtSkipped counts the scheduled times of CronAts in a Freeze.
	CronAtSkipped = metrics.NewCounter(&metrics.CounterOpts{
		Name:           "cnat_cronat_skipped_total",
		Help:           "Number of scheduled times of CronAts for which no At was created, because a Freeze held.",
		StabilityLevel: metrics.ALPHA,
	})

	// Its labels are those of version.Version, version.Revision and runtime.Version.
	buildInfo = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Name:           "cnat_build_info",
		Help:           "1, with the version, the commit and the Go version of the controller.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"version", "revision", "goversion"})
)

// Register registers all metrics except those of package inventory. Call it only once. Counters
// start at 0, so that the first failure is an increase.
func Register() {
	endpoints.RegisterMetrics()
	queue.RegisterMetrics()
	legacyregistry.MustRegister(StartLateness, UnexpectedPods, Preflights, Rehearsals, CronAtMissed, CronAtSkipped, buildInfo)
	for _, result := range []string{PreflightAccepted, PreflightRefused, PreflightUnknown, PreflightShared} {
		Preflights.WithLabelValues(result)
	}
	for _, result := range []string{RehearsalPassed, RehearsalFailed, RehearsalUnknown} {
		Rehearsals.WithLabelValues(result)
	}
	buildInfo.WithLabelValues(version.Version, version.Revision(), runtime.Version()).Set(1)
}

// OtherNamespaces is the value of label namespace for all namespaces without their own
// value. No namespace can have this name.
const OtherNamespaces = "_other"

// NamespaceLabels decides which namespaces have their own value of label namespace. It is
// safe for concurrent use.
type NamespaceLabels struct {
	lock     sync.Mutex
	limit    int
	labelled sets.Set[string] // at most limit
	// unserved has the namespaces in labelled that were counted since the last update.
	unserved sets.Set[string]
}

// NewNamespaceLabels returns labels for at most limit namespaces.
func NewNamespaceLabels(limit int) *NamespaceLabels {
	return &NamespaceLabels{limit: limit, labelled: sets.New[string](), unserved: sets.New[string]()}
}

// SetLimit changes the number of namespaces that have their own value.
func (l *NamespaceLabels) SetLimit(limit int) {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.limit = limit
}

// Update must be called at each scrape, with the namespaces that have objects. A namespace
// keeps its value until it has no objects, its counters were served, and another namespace
// needs the slot, so that its time series continue. If several namespaces need a slot, the
// first ones in alphabetical order get it.
func (l *NamespaceLabels) Update(present sets.Set[string]) {
	l.lock.Lock()
	defer l.lock.Unlock()
	waiting := sets.List(present.Difference(l.labelled))
	if len(l.labelled)+len(waiting) > l.limit {
		l.labelled = l.labelled.Intersection(present.Union(l.unserved))
	}
	l.labelled.Insert(waiting[:min(len(waiting), l.limit-len(l.labelled))]...)
	l.unserved.Clear()
}

// Of returns the label value for a namespace.
func (l *NamespaceLabels) Of(namespace string) string {
	l.lock.Lock()
	defer l.lock.Unlock()
	if l.labelled.Has(namespace) {
		return namespace
	}
	return OtherNamespaces
}

// Counter counts what ended in each namespace, by reason. All series begin at 0, so that
// the first failure is an increase.
//
// A count stays where it was counted: if a namespace gets its own value of label
// namespace, or loses it, the series of all other values continue without a jump.
type Counter struct {
	desc       *metrics.Desc
	reasons    []string
	namespaces *NamespaceLabels
	counts     map[[2]string]int // by namespace and reason, guarded by namespaces.lock
}

// NewCounter returns a counter of what ends with one of the given reasons.
func NewCounter(name, help string, namespaces *NamespaceLabels, reasons ...string) *Counter {
	return &Counter{
		desc:       metrics.NewDesc(name, help, []string{"namespace", "reason"}, nil, metrics.ALPHA, ""),
		reasons:    reasons,
		namespaces: namespaces,
		counts:     map[[2]string]int{},
	}
}

// Inc counts what ended in a namespace for a reason.
func (c *Counter) Inc(namespace, reason string) {
	l := c.namespaces
	l.lock.Lock()
	defer l.lock.Unlock()
	label := OtherNamespaces
	if l.labelled.Has(namespace) || len(l.labelled) < l.limit {
		l.labelled.Insert(namespace)
		l.unserved.Insert(namespace)
		label = namespace
	}
	c.counts[[2]string{label, reason}]++
}

// Describe sends the description of the series.
func (c *Counter) Describe(ch chan<- *metrics.Desc) { ch <- c.desc }

// Collect sends the series of all namespaces that have their own label value, and of the
// others together.
func (c *Counter) Collect(ch chan<- metrics.Metric) {
	c.namespaces.lock.Lock()
	defer c.namespaces.lock.Unlock()
	labels := c.namespaces.labelled.Clone().Insert(OtherNamespaces)
	for label := range labels {
		for _, reason := range c.reasons {
			c.counts[[2]string{label, reason}] += 0
		}
	}
	for s, count := range c.counts {
		if !labels.Has(s[0]) {
			delete(c.counts, s)
			continue
		}
		ch <- metrics.NewLazyConstMetric(c.desc, metrics.CounterValue, float64(count), s[0], s[1])
	}
}
