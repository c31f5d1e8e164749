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

// otherNamespaces is the value of label namespace for all namespaces without their own
// value. No namespace can have this name.
const otherNamespaces = "_other"

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

// RegisterAts registers the metrics of existing Ats. Call it only once. Each scrape
// computes them from the lister if working returns true. At most the given number of
// namespaces have their own value of label namespace.
func RegisterAts(lister listers.AtLister, working func() bool, clock clock.PassiveClock, namespaces int) {
	legacyregistry.CustomMustRegister(newAtCollector(lister, working, clock, namespaces))
}

type atCollector struct {
	metrics.BaseStableCollector
	lister  listers.AtLister
	working func() bool
	clock   clock.PassiveClock

	mu         sync.Mutex // Scrapes may be concurrent.
	namespaces namespaceLabels
}

func newAtCollector(lister listers.AtLister, working func() bool, clock clock.PassiveClock, namespaces int) *atCollector {
	return &atCollector{
		lister:     lister,
		working:    working,
		clock:      clock,
		namespaces: namespaceLabels{limit: namespaces, labelled: sets.New[string]()},
	}
}

func (c *atCollector) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- atsDesc
	ch <- blockedDesc
	ch <- overdueDesc
}

// series has the label values of a time series: namespace, and state or reason.
type series struct{ namespace, value string }

func (c *atCollector) CollectWithStability(ch chan<- metrics.Metric) {
	if !c.working() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
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

// namespaceLabels decides which namespaces have their own value of label namespace.
type namespaceLabels struct {
	limit    int
	labelled sets.Set[string] // at most limit
}

// update must be called with the namespaces that have Ats. A namespace keeps its value
// until it has no Ats and another namespace needs the slot, so that its time series
// continue. If several namespaces need a slot, the first ones in alphabetical order get
// it.
func (l *namespaceLabels) update(present sets.Set[string]) {
	waiting := sets.List(present.Difference(l.labelled))
	if len(l.labelled)+len(waiting) > l.limit {
		l.labelled = l.labelled.Intersection(present)
	}
	l.labelled.Insert(waiting[:min(len(waiting), l.limit-len(l.labelled))]...)
}

// of returns the label value for a namespace.
func (l *namespaceLabels) of(namespace string) string {
	if l.labelled.Has(namespace) {
		return namespace
	}
	return otherNamespaces
}
