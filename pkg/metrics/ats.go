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

package metrics

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

var (
	// Label state is one of the constants of plan.State.
	atsDesc = metrics.NewDesc("cnat_ats",
		"Number of Ats, by namespace and state: pending (not due yet), due (not started although the scheduled time has come), blocked, suspended, running, done. Ats that are being deleted are not counted.",
		[]string{"namespace", "state"}, nil, metrics.ALPHA, "")
	// Label reason is one of the reasons of condition Blocked in v1alpha1.
	blockedDesc = metrics.NewDesc("cnat_ats_blocked",
		"Number of Ats that are blocked, by namespace and the reason of their condition Blocked: before their start (state blocked) or while they run.",
		[]string{"namespace", "reason"}, nil, metrics.ALPHA, "")
	overdueDesc = metrics.NewDesc("cnat_oldest_due_age_seconds",
		"How long the next Pod of an At has been due but not created, although nothing blocks it: the maximum over all Ats, 0 if there is none.",
		nil, nil, metrics.ALPHA, "")
)

// RegisterAts registers the metrics with label namespace. Call it only once, before the
// controller works. At most limit namespaces have their own value of that label. Each
// scrape counts the existing Ats in the lister if working returns true.
func RegisterAts(lister listers.AtLister, working func() bool, clock clock.PassiveClock, limit int) {
	namespaces.limit = limit
	legacyregistry.CustomMustRegister(newAtCollector(lister, working, clock, namespaces, Runs, Attempts))
}

type atCollector struct {
	metrics.BaseStableCollector
	lister     listers.AtLister
	working    func() bool
	clock      clock.PassiveClock
	namespaces *namespaceLabels
	counters   []*Counter

	lock sync.Mutex // Scrapes may be concurrent.
}

func newAtCollector(lister listers.AtLister, working func() bool, clock clock.PassiveClock, namespaces *namespaceLabels, counters ...*Counter) *atCollector {
	return &atCollector{lister: lister, working: working, clock: clock, namespaces: namespaces, counters: counters}
}

func (c *atCollector) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- atsDesc
	ch <- blockedDesc
	ch <- overdueDesc
	for _, counter := range c.counters {
		ch <- counter.desc
	}
}

// series has the label values of a time series: namespace, and state or reason.
type series struct{ namespace, value string }

func (c *atCollector) CollectWithStability(ch chan<- metrics.Metric) {
	c.lock.Lock()
	defer c.lock.Unlock()
	ats, err := c.lister.List(labels.Everything())
	if err != nil {
		utilruntime.HandleErrorWithContext(context.Background(), err, "Cannot count Ats")
		return
	}
	now := c.clock.Now()
	states, blocked := map[series]int{}, map[series]int{}
	var oldest time.Duration
	for _, at := range ats {
		if at.DeletionTimestamp != nil {
			continue // Nothing more starts.
		}
		var parent *v1alpha1.At
		if name := plan.ParentName(at); name != "" {
			parent, _ = c.lister.Ats(at.Namespace).Get(name) // It may be gone.
		}
		state, overdue := plan.StateOf(at, parent, now)
		oldest = max(oldest, overdue)
		states[series{at.Namespace, string(state)}]++
		if condition := plan.Blocked(at); condition != nil {
			blocked[series{at.Namespace, condition.Reason}]++
		}
	}
	present := sets.New[string]()
	for s := range states {
		present.Insert(s.namespace)
	}
	c.namespaces.update(present)
	// Also while the controller is on standby: the first failure after a takeover must be an
	// increase.
	for _, counter := range c.counters {
		counter.collect(ch)
	}
	if !c.working() {
		return
	}
	c.send(ch, atsDesc, states)
	c.send(ch, blockedDesc, blocked)
	ch <- metrics.NewLazyConstMetric(overdueDesc, metrics.GaugeValue, oldest.Seconds())
}

// send sends numbers by namespace, with the labels of the namespaces.
func (c *atCollector) send(ch chan<- metrics.Metric, desc *metrics.Desc, numbers map[series]int) {
	sums := map[series]int{}
	for s, number := range numbers {
		sums[series{c.namespaces.of(s.namespace), s.value}] += number
	}
	for s, number := range sums {
		ch <- metrics.NewLazyConstMetric(desc, metrics.GaugeValue, float64(number), s.namespace, s.value)
	}
}
