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

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// scenarios are the measurements. The size of each is the number after its name, in hack/bench.sh.
var scenarios = map[string]scenario{
	"lone":       {loneOnly, 1, map[string]float64{"median, ms": 10, "p99, ms": 50}},
	"burst":      {burst(0), 5, burstLimits},
	"burst-long": {burst(longCommand), 3, burstLimits},
	"cronjob":    {cronJob, 1, nil},
	"cronats":    {cronAt, 2, map[string]float64{"CronAts: last Pod, to Ats": 2, "spread over a minute: most in a second, of 1,000": 40}},
	"nodes":      {nodes, 1, map[string]float64{"one At: DONE, to separate Ats": 1.3}},
	"tenants":    {tenants, 1, map[string]float64{"the small tenant's last Pod, s": 1}},
	"pending":    {pending, 1, map[string]float64{"ready, s": 20, "idle, % of a core": 0.1, "RSS, MiB": 130, "writes for those pending": 0, "p99, ms": 100}},
	"memory":     {memory, 1, map[string]float64{"RSS after, to before": 1.5}},
	"node":       {realNode, 1, nil}, // needs a node
	"hostile":    {hostileTenants, 1, nil},
}

var burstLimits = map[string]float64{
	"last Pod, to the floor": 1.2, "all DONE, to the floor": 1.15,
	"requests for each run: writes": 4, "requests for each run: reads": 0.05, "requests for each run: events": 2,
}

const (
	// marker is the At, among the pending ones, that the controller processes last. It is due.
	marker = "marker"
	// pendingNamespaces is the number of namespaces with pending Ats.
	pendingNamespaces = 10
)

// far is the time at which pending Ats are due.
var far = time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC)

func loneOnly(b *bench) {
	b.start()
	b.lone(300 * time.Millisecond)
}

// lone reports how late the Pods of Ats are that become due one at a time.
func (b *bench) lone(gap time.Duration) {
	late := b.lateness(b.number, gap)
	b.figures["earliest, ms"] = slices.Min(late) * 1000
	b.figures["median, ms"] = median(late) * 1000
	b.figures["p99, ms"] = quantile(late, 0.99) * 1000
}

// lateness creates Ats that become due one at a time, and returns how many seconds late their Pods are.
func (b *bench) lateness(number int, gap time.Duration) []float64 {
	namespace := b.newNamespace()
	pods := b.seePods(namespace)
	first := time.Now().Add(5 * time.Second)
	for i := range number {
		must(b.create(ats, namespace, fmt.Sprintf("at-%06d", i), first.Add(time.Duration(i)*gap)))
	}
	return b.late(pods, number, first, gap)
}

// tenants creates very many Ats in one namespace and ten in another, all due at one instant.
func tenants(b *bench) {
	many, few := b.newNamespace(), b.newNamespace()
	b.start()
	pods := b.seePods(few)
	due := b.createDue(ats, many, b.number)
	b.createAll(ats, few, 10, due)
	b.figures["the small tenant's last Pod, s"] = slices.Max(b.late(pods, 10, due, 0))
}

// createPending creates Ats that are due in the far future, and returns their namespaces.
func (b *bench) createPending(number int) (namespaces []string) {
	for range pendingNamespaces {
		namespace := b.newNamespace()
		b.createAll(ats, namespace, number/pendingNamespaces, far)
		namespaces = append(namespaces, namespace)
		progress("%d of %d Ats", len(namespaces)*number/pendingNamespaces, number)
	}
	return namespaces
}

// pending reports what very many pending Ats cost while nothing is due, and how late an At is then.
func pending(b *bench) {
	namespaces := b.createPending(b.number)
	last := slices.Max(namespaces)
	b.sleep(plan.Grace) // A controller that starts checks in advance only what is newer.
	must(b.create(ats, last, marker, time.Now()))
	pods := b.seePods(last)
	b.start()
	b.figures["ready, s"] = b.late(pods, 1, b.started, 0)[0]
	b.sleep(30 * time.Second)
	before := b.cpu()
	b.sleep(time.Minute)
	b.figures["idle, % of a core"] = 100 * (b.cpu() - before) / time.Minute.Seconds()
	b.figures["RSS, MiB"] = b.memory("VmRSS")
	b.figures["writes for those pending"] = b.requests(namespaces...)["writes"]
	b.number = 100
	b.lone(200 * time.Millisecond)
}

// memory reports whether the memory of very many deleted Ats is released.
func memory(b *bench) {
	b.start()
	b.createPending(warmUp) // The controller's base usage is not measured.
	b.sleep(10 * time.Second)
	b.deleteNamespaces()
	b.sleep(time.Minute)
	before := b.memory("VmRSS")
	b.createPending(b.number)
	b.figures["RSS before, MiB"] = before
	b.figures["RSS with all, MiB"] = b.memory("VmRSS")
	b.deleteNamespaces()
	b.sleep(2 * time.Minute)
	b.figures["RSS two minutes after, MiB"] = b.memory("VmRSS")
	b.figures["RSS after, to before"] = b.memory("VmRSS") / before
}

// realNode reports how late the first byte of the output of commands on a real node is, by the
// time at which the container runtime has read it.
func realNode(b *bench) {
	b.start()
	b.outputs(ats, 1) // The first Pod of a node takes longer.
	for name, k := range map[string]kind{"At": ats, "CronAt": cronAts, "CronJob": cronJobs} {
		late := b.outputs(k, b.number)
		b.figures[name+": first output, s"] = slices.Min(late)
		b.figures[name+": median output, s"] = median(late)
		b.figures[name+": last output, s"] = slices.Max(late)
	}
}

func (b *bench) outputs(k kind, number int) (late []float64) {
	namespace := b.newNamespace()
	succeeded := b.watchPods(namespace, hasSucceeded, nil)
	due := b.createDue(k, namespace, number)
	b.late(succeeded, number, due, 0)
	for name := range succeeded.at {
		output := get(b.kube.CoreV1().Pods(namespace).GetLogs(name, &corev1.PodLogOptions{Timestamps: true}).DoRaw(b.ctx))
		first, _, _ := strings.Cut(string(output), " ")
		late = append(late, get(time.Parse(time.RFC3339Nano, first)).Sub(due).Seconds())
	}
	b.deleteNamespaces()
	return late
}
