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
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-base/metrics"
)

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
