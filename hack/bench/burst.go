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
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// warmUp is the number of Pods to create before the measurement, so that the API server is
// warmed up by then.
const warmUp = 500

// longCommand is how long the commands of burst-long take.
const longCommand = 8 * time.Second

// pause is how long the cluster has nothing to do before something is measured.
const pause = 3 * time.Second

// span is how long a number of runs took.
type span struct {
	lastPod time.Duration // until a watch showed the last Pod
	end     time.Duration // until the end of the last run was recorded
	server  float64       // the processor time of the API server, in seconds
}

// burst creates Ats that become due at one instant, several times, and compares each with a
// bare loop and with the floor, both measured just before.
func (b *bench) burst(ctx context.Context, number int) error {
	lasts := time.Duration(0)
	if b.scenario == "burst-long" {
		lasts = longCommand
	}
	if err := b.createRecordCRD(ctx); err != nil {
		return err
	}
	if _, err := b.bare(ctx, warmUp); err != nil {
		return err
	}
	for range b.pairs {
		bare, err := b.bare(ctx, number)
		if err != nil {
			return err
		}
		floor, err := b.floor(ctx, number, lasts, b.cluster)
		if err != nil {
			return err
		}
		took, err := b.runBurst(ctx, number, lasts)
		if err != nil {
			return err
		}
		b.samplePair(bare, floor, took, lasts)
	}
	b.reportPairs(nil, ptr.To(1.2), ptr.To(1.15))
	b.reportRequests()
	return nil
}

// samplePair samples a burst and what was measured just before.
func (b *bench) samplePair(bare time.Duration, floor, took span, lasts time.Duration) {
	perRun := 1000 / float64(b.number)
	b.sample("floor: processor time of the API server for each run", floor.server*perRun)
	b.sample("until all DONE: processor time of the API server for each run", took.server*perRun)
	b.sample("bare loop: last Pod", bare.Seconds())
	b.sample("floor: last Pod", floor.lastPod.Seconds())
	b.sample("floor: all recorded", floor.end.Seconds())
	b.sample("last Pod late", took.lastPod.Seconds())
	b.sample("all DONE", took.end.Seconds())
	b.sample("last Pod late, to the bare loop", took.lastPod.Seconds()/bare.Seconds())
	b.sample("last Pod late, to the floor", took.lastPod.Seconds()/floor.lastPod.Seconds())
	// The duration of the commands does not count.
	b.sample("all DONE, to the floor", (took.end-lasts).Seconds()/(floor.end-lasts).Seconds())
}

// reportPairs reports what samplePair has sampled. The limits are multiples of the last Pod of the
// bare loop, and of the floor.
func (b *bench) reportPairs(toBare, lastPod, allDone *float64) {
	for _, figure := range []string{"bare loop: last Pod", "floor: last Pod", "floor: all recorded", "last Pod late", "all DONE"} {
		b.reportMedian(figure, "s", nil)
	}
	for _, figure := range []string{"floor: processor time of the API server for each run", "until all DONE: processor time of the API server for each run"} {
		b.reportMedian(figure, "ms", nil)
	}
	b.reportMedian("last Pod late, to the bare loop", "times", toBare)
	b.reportMedian("last Pod late, to the floor", "times", lastPod)
	b.reportMedian("all DONE, to the floor", "times", allDone)
}

// podsToCreate creates a namespace, and returns the Pods that the controller would create in it.
// They have no finalizer, because nothing would remove it.
func (c *cluster) podsToCreate(ctx context.Context, number int) (namespace string, pods []*corev1.Pod, err error) {
	if namespace, err = c.newNamespace(ctx); err != nil {
		return "", nil, err
	}
	pods = make([]*corev1.Pod, number)
	return namespace, pods, each(ctx, number, func(i int) error {
		at := newAt(fmt.Sprintf("at-%06d", i), far)
		at.Spec.Suspend = ptr.To(true)
		at, err := c.cnat.CnatV1alpha1().Ats(namespace).Create(ctx, at, metav1.CreateOptions{})
		if err == nil {
			pods[i] = plan.NewPod(at, plan.Defaults{Image: "busybox:1.37.0"})
			pods[i].Finalizers = nil
		}
		return err
	})
}

// bare creates the same Pods as the controller in a bare loop, and returns how long that took.
func (c *cluster) bare(ctx context.Context, number int) (time.Duration, error) {
	namespace, toCreate, err := c.podsToCreate(ctx, number)
	if err != nil {
		return 0, err
	}
	pods, err := c.seePods(ctx, namespace)
	if err != nil {
		return 0, err
	}
	defer pods.stop()
	if err := sleep(ctx, pause); err != nil {
		return 0, err
	}
	start := time.Now()
	err = each(ctx, number, func(i int) error {
		_, err := c.kube.CoreV1().Pods(namespace).Create(ctx, toCreate[i], metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return 0, err
	}
	last, err := pods.wait(ctx, number, 5*time.Minute, "Pods of the bare loop")
	if err != nil {
		return 0, err
	}
	return last.Sub(start), c.deleteNamespace(ctx, namespace)
}

// runBurst starts a controller, creates Ats that become due at one instant and whose commands
// take lasts, and returns how late the last Pod and the last end were. args are those of the
// controller.
func (b *bench) runBurst(ctx context.Context, number int, lasts time.Duration, args ...string) (took span, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	namespace, err := b.newNamespace(ctx)
	if err != nil {
		return took, err
	}
	if err := b.start(ctx, append(args, "-namespace="+namespace)...); err != nil {
		return took, err
	}
	pods, err := b.seePods(ctx, namespace)
	if err != nil {
		return took, err
	}
	defer pods.stop()
	done, err := b.seeDone(ctx, namespace)
	if err != nil {
		return took, err
	}
	defer done.stop()
	if err := b.playKubelet(ctx, namespace, lasts, nil); err != nil {
		return took, err
	}
	due, err := b.createDue(ctx, namespace, number)
	if err != nil {
		return took, err
	}
	before, err := b.usage(ctx)
	if err != nil {
		return took, err
	}
	last, err := pods.wait(ctx, number, 10*time.Minute, "Pods")
	if err != nil {
		return took, err
	}
	end, err := done.wait(ctx, number, 10*time.Minute, "Ats DONE")
	if err != nil {
		return took, err
	}
	after, err := b.usage(ctx)
	if err != nil {
		return took, err
	}
	if err := b.sampleRequests(ctx, namespace, number); err != nil {
		return took, err
	}
	return span{last.Sub(due), end.Sub(due), after.cpu - before.cpu}, errors.Join(b.deleteNamespace(ctx, namespace), b.stop())
}

// createDue creates Ats that are due once all have been created, and returns that time.
func (c *cluster) createDue(ctx context.Context, namespace string, number int) (time.Time, error) {
	due := time.Now().Add(5*time.Second + time.Duration(number)*6*time.Millisecond).Truncate(time.Millisecond)
	if err := c.createAts(ctx, namespace, number, due); err != nil {
		return due, err
	}
	if time.Until(due) < time.Second {
		return due, errors.New("the machine is too slow: the Ats were not there before they were due")
	}
	progress("%d Ats are due in %v", number, time.Until(due).Round(time.Second))
	return due, nil
}

// sampleRequests waits for the last requests of the controller, and samples those of a run.
func (b *bench) sampleRequests(ctx context.Context, namespace string, runs int) error {
	progress("waiting for the last requests")
	var counts map[string]int
	for before := -1; ; {
		var err error
		if counts, err = b.requests(namespace); err != nil {
			return err
		}
		total := 0
		for _, count := range counts {
			total += count
		}
		if total == before {
			break
		}
		before = total
		// Pods are released some time after the end.
		if err := sleep(ctx, 10*time.Second); err != nil {
			return err
		}
	}
	writes, reads, looks, events := sum(counts)
	b.sample("writes a run", writes/float64(runs))
	b.sample("reads a run", reads/float64(runs))
	b.sample("requests of preflights a run", looks/float64(runs))
	b.sample("requests for events a run", events/float64(runs))

	list, err := b.kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "source=cnat-controller"})
	if err != nil {
		return err
	}
	count, late := 0, time.Duration(0)
	for _, event := range list.Items {
		count += int(event.Count)
		late = max(late, event.CreationTimestamp.Sub(event.FirstTimestamp.Time))
	}
	b.sample("events a run", float64(count)/float64(runs))
	b.sample("last event late", late.Seconds())
	return nil
}

// reportRequests reports what sampleRequests has sampled.
func (b *bench) reportRequests() {
	b.reportMedian("writes a run", "", ptr.To(4.0))
	b.reportMedian("reads a run", "", ptr.To(0.05))
	b.reportMedian("requests of preflights a run", "", nil)
	b.reportMedian("requests for events a run", "", nil)
	b.reportMedian("events a run", "", ptr.To(2.0))
	b.reportMedian("last event late", "s", ptr.To(60.0))
}

// sum returns the sum of the requests that cluster.requests has counted; looks are those
// of preflights.
func sum(counts map[string]int) (writes, reads, looks, events float64) {
	for request, count := range counts {
		verb, resource, _ := strings.Cut(request, " ")
		switch {
		case request == preflights:
			looks += float64(count)
		case resource == "events":
			events += float64(count)
		case verb == "get":
			reads += float64(count)
		case verb != "list" && verb != "watch":
			writes += float64(count)
		}
	}
	return writes, reads, looks, events
}
