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

package ats

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-base/metrics"

	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
)

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
