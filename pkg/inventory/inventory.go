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

// Package inventory serves the metrics that count the existing objects at each scrape.
package inventory

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
	cnatmetrics "programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

var (
	// Label state is one of the constants of plan.State.
	atsDesc = metrics.NewDesc("cnat_ats",
		"Number of Ats, by namespace and state: pending (not due yet), due (not started although the scheduled time has come), blocked, frozen (waits for the end of a Freeze), suspended, running, done. Ats that are being deleted are not counted.",
		[]string{"namespace", "state"}, nil, metrics.ALPHA, "")
	// Label reason is one of the reasons of condition Blocked in v1alpha1.
	blockedDesc = metrics.NewDesc("cnat_ats_blocked",
		"Number of Ats that are blocked, by namespace and the reason of their condition Blocked: before their start (state blocked) or while they run.",
		[]string{"namespace", "reason"}, nil, metrics.ALPHA, "")
	overdueDesc = metrics.NewDesc("cnat_oldest_due_age_seconds",
		"How long the next Pod of an At has been due but not created, although nothing blocks it: the maximum over all Ats, 0 if there is none.",
		nil, nil, metrics.ALPHA, "")
	// Label reason is one of the reasons of condition Failed in v1alpha1. An alert must say
	// which At failed. There are no more time series at once than of cnat_runs_total.
	failedDesc = metrics.NewDesc("cnat_last_failure_timestamp_seconds",
		"When the At failed that was the last to fail, by namespace and reason, in seconds since the epoch. Only of the namespaces that have their own value, and of Ats that exist.",
		[]string{"namespace", "reason", "at"}, nil, metrics.ALPHA, "")
)

// Objects are what the metrics with label namespace are about.
type Objects struct {
	Ats     listers.AtLister
	CronAts listers.CronAtLister
	// BlockedAnnotations returns the workloads whose restart annotations cannot be applied,
	// and the reasons. It is nil if restart annotations are off.
	BlockedAnnotations func() map[cache.ObjectName]string
	// Working returns false on standby: existing objects are not counted then.
	Working func() bool
}

// Register registers the metrics with label namespace. Call it only once, before the
// controller works. At most limit namespaces have their own value of that label. Each scrape
// counts the existing objects.
func Register(objects Objects, limit int) {
	cnatmetrics.Namespaces.SetLimit(limit)
	legacyregistry.CustomMustRegister(newCollector(objects, clock.RealClock{}, cnatmetrics.Namespaces, cnatmetrics.Runs, cnatmetrics.Attempts))
}

type collector struct {
	metrics.BaseStableCollector
	objects    Objects
	clock      clock.PassiveClock
	namespaces *cnatmetrics.NamespaceLabels
	counters   []*cnatmetrics.Counter

	lock sync.Mutex // Scrapes may be concurrent.
}

func newCollector(objects Objects, clock clock.PassiveClock, namespaces *cnatmetrics.NamespaceLabels, counters ...*cnatmetrics.Counter) *collector {
	return &collector{objects: objects, clock: clock, namespaces: namespaces, counters: counters}
}

func (c *collector) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, desc := range []*metrics.Desc{atsDesc, blockedDesc, overdueDesc, failedDesc, blockedCronAtsDesc, overdueCronAtsDesc, blockedAnnotationsDesc} {
		ch <- desc
	}
	for _, counter := range c.counters {
		counter.Describe(ch)
	}
}

// series has the label values of a time series: namespace, and state or reason.
type series struct{ namespace, value string }

func (c *collector) CollectWithStability(ch chan<- metrics.Metric) {
	c.lock.Lock()
	defer c.lock.Unlock()
	ats, _ := c.objects.Ats.List(labels.Everything()) // Reading from a cache cannot fail.
	present := sets.New[string]()
	for _, at := range ats {
		present.Insert(at.Namespace)
	}
	if !c.objects.Working() {
		// The first failure after a takeover must be an increase.
		c.sendCounters(ch, present)
		return
	}
	now := c.clock.Now()
	states, blocked, oldest := c.countAts(ats, now)
	blockedCronAts, overdueCronAts := c.countCronAts(now)
	blockedAnnotations := c.countAnnotations()
	for _, numbers := range []map[series]int{blockedCronAts, blockedAnnotations} {
		for s := range numbers {
			present.Insert(s.namespace)
		}
	}
	c.sendCounters(ch, present)
	c.send(ch, atsDesc, states)
	c.send(ch, blockedDesc, blocked)
	ch <- metrics.NewLazyConstMetric(overdueDesc, metrics.GaugeValue, oldest.Seconds())
	c.sendLastFailures(ch, ats)
	c.send(ch, blockedCronAtsDesc, blockedCronAts)
	c.send(ch, blockedAnnotationsDesc, blockedAnnotations)
	for _, o := range overdueCronAts {
		ch <- metrics.NewLazyConstMetric(overdueCronAtsDesc, metrics.GaugeValue, o.age.Seconds(), o.namespace, o.name)
	}
}

// sendCounters sends the counters, with the labels for the namespaces that have objects.
func (c *collector) sendCounters(ch chan<- metrics.Metric, present sets.Set[string]) {
	c.namespaces.Update(present)
	for _, counter := range c.counters {
		counter.Collect(ch)
	}
}

// countAts returns the numbers of Ats by state, and of blocked Ats by reason, and how long
// the oldest one has been due.
func (c *collector) countAts(ats []*v1alpha1.At, now time.Time) (states, blocked map[series]int, oldest time.Duration) {
	states, blocked = map[series]int{}, map[series]int{}
	for _, at := range ats {
		if at.DeletionTimestamp != nil {
			continue // Nothing more starts.
		}
		var parent *v1alpha1.At
		if name := plan.ParentName(at); name != "" {
			parent, _ = c.objects.Ats.Ats(at.Namespace).Get(name) // It may be gone.
		}
		state, overdue := plan.StateOf(at, parent, now)
		oldest = max(oldest, overdue)
		states[series{at.Namespace, string(state)}]++
		if condition := plan.Blocked(at); condition != nil {
			blocked[series{at.Namespace, condition.Reason}]++
		}
	}
	return states, blocked, oldest
}

// failure is the end of an At that failed.
type failure struct {
	at   string
	time time.Time
}

// sendLastFailures sends which At was the last to fail, by namespace and reason. The name of
// the At means nothing without that of the namespace.
func (c *collector) sendLastFailures(ch chan<- metrics.Metric, ats []*v1alpha1.At) {
	last := map[series]failure{}
	for _, at := range ats {
		failed := plan.TrueCondition(at.Status.Conditions, v1alpha1.ConditionFailed)
		if failed == nil || c.namespaces.Of(at.Namespace) != at.Namespace {
			continue
		}
		s, f := series{at.Namespace, failed.Reason}, failure{at.Name, failed.LastTransitionTime.Time}
		// The same one at each scrape, although the cache has no order.
		if before := last[s]; cmp.Or(f.time.Compare(before.time), cmp.Compare(f.at, before.at)) > 0 {
			last[s] = f
		}
	}
	for s, f := range last {
		ch <- metrics.NewLazyConstMetric(failedDesc, metrics.GaugeValue, float64(f.time.Unix()), s.namespace, s.value, f.at)
	}
}

// send sends numbers by namespace, with the labels of the namespaces.
func (c *collector) send(ch chan<- metrics.Metric, desc *metrics.Desc, numbers map[series]int) {
	sums := map[series]int{}
	for s, number := range numbers {
		sums[series{c.namespaces.Of(s.namespace), s.value}] += number
	}
	for s, number := range sums {
		ch <- metrics.NewLazyConstMetric(desc, metrics.GaugeValue, float64(number), s.namespace, s.value)
	}
}

var (
	// Label reason is one of the reasons of condition Blocked in v1alpha1.
	blockedCronAtsDesc = metrics.NewDesc("cnat_cronats_blocked",
		"Number of CronAts that are blocked, by namespace and the reason of their condition Blocked. CronAts that are being deleted are not counted.",
		[]string{"namespace", "reason"}, nil, metrics.ALPHA, "")
	// Label reason is one of the reasons of Warning events of workloads in v1alpha1.
	blockedAnnotationsDesc = metrics.NewDesc("cnat_restart_annotations_blocked",
		"Number of workloads whose restart annotations cannot be applied, by namespace and reason: InvalidRestartSchedule, CronAtNameConflict, CronAtRefused.",
		[]string{"namespace", "reason"}, nil, metrics.ALPHA, "")
	// The only metric with the name of an object: an alert must say which CronAt does not
	// run. maxOverdue and minOverdue limit the number of time series, also over time.
	overdueCronAtsDesc = metrics.NewDesc("cnat_cronat_overdue_seconds",
		"How long the next scheduled time of a CronAt has been past without a reaction of the controller. Only the ten CronAts that have been overdue the longest, and only from one minute on.",
		[]string{"namespace", "cronat"}, nil, metrics.ALPHA, "")
)

// At most maxOverdue CronAts are served by name, and each only after minOverdue: a time
// that is handled as it should be never makes a time series.
const (
	maxOverdue = 10
	minOverdue = time.Minute
)

// overdue is a CronAt whose next scheduled time has been past for age.
type overdue struct {
	namespace, name string
	age             time.Duration
}

// countCronAts returns the numbers of blocked CronAts by reason, and the CronAts that have
// been overdue the longest.
func (c *collector) countCronAts(now time.Time) (blocked map[series]int, oldest []overdue) {
	cronAts, _ := c.objects.CronAts.List(labels.Everything()) // Reading from a cache cannot fail.
	blocked = map[series]int{}
	for _, cronAt := range cronAts {
		if cronAt.DeletionTimestamp != nil {
			continue
		}
		if condition := cronplan.Blocked(cronAt); condition != nil {
			blocked[series{cronAt.Namespace, condition.Reason}]++
		}
		if age := cronplan.Overdue(cronAt, now); age >= minOverdue {
			oldest = append(oldest, overdue{cronAt.Namespace, cronAt.Name, age})
		}
	}
	// The same ones at each scrape, so that their alerts last.
	slices.SortFunc(oldest, func(a, b overdue) int {
		return cmp.Or(cmp.Compare(b.age, a.age), cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
	})
	return blocked, oldest[:min(len(oldest), maxOverdue)]
}

// countAnnotations returns the numbers of workloads whose restart annotations cannot be
// applied, by reason.
func (c *collector) countAnnotations() map[series]int {
	blocked := map[series]int{}
	if c.objects.BlockedAnnotations != nil {
		for workload, reason := range c.objects.BlockedAnnotations() {
			blocked[series{workload.Namespace, reason}]++
		}
	}
	return blocked
}
