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
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

const (
	// maxConcurrent is spec.nodes.maxConcurrent of the limited run.
	maxConcurrent = 10
	// labelFleet is the label of the benchmark's nodes. Its value is the requested number of
	// nodes.
	labelFleet = "fleet"
	// settle is how long an idle controller takes to collect its garbage, which Go does at
	// least every two minutes.
	settle = 130 * time.Second
	kib    = 1 << 10
)

// nodes compares one At for a number of nodes with the same number of Ats. Each
// measurement uses a controller that was just started, so that it cannot reuse memory of
// the other one.
func (b *bench) nodes(ctx context.Context, number int) error {
	if number < maxConcurrent {
		return fmt.Errorf("-number must be %d or more", maxConcurrent)
	}
	if err := b.createNodes(ctx, number); err != nil {
		return err
	}
	separate, err := b.measureRun(ctx, "separate Ats", number, number, func(namespace string) error {
		return each(ctx, number, func(i int) error {
			_, err := b.cnat.CnatV1alpha1().Ats(namespace).Create(ctx, newUnscheduledAt(fmt.Sprintf("separate-%06d", i)), metav1.CreateOptions{})
			return err
		})
	})
	if err != nil {
		return err
	}
	one, err := b.measureRun(ctx, "one At", number, number+1, func(namespace string) error {
		return b.createNodesAt(ctx, namespace, number, nil)
	})
	if err != nil {
		return err
	}
	b.report("one At, to separate Ats", one.took.Seconds()/separate.took.Seconds(), "times", ptr.To(1.3))
	b.report("one At: memory for each node", one.rss/kib/float64(number), "KiB", ptr.To(4.0))
	b.report("one At: memory for each node, beyond a separate At", (one.rss-separate.rss)/kib/float64(number), "KiB", nil)
	if err := one.pods.wantOnePerNode(number); err != nil {
		return err
	}

	number /= 10
	if err := b.createNodes(ctx, number); err != nil {
		return err
	}
	limited, err := b.measureRun(ctx, fmt.Sprintf("%d nodes, %d at a time", number, maxConcurrent), number, number+1, func(namespace string) error {
		return b.createNodesAt(ctx, namespace, number, ptr.To(intstr.FromInt32(maxConcurrent)))
	})
	if err != nil {
		return err
	}
	if limited.pods.most > maxConcurrent {
		return fmt.Errorf("%d Pods ran at the same time, the limit is %d", limited.pods.most, maxConcurrent)
	}
	return limited.pods.wantOnePerNode(number)
}

// newUnscheduledAt returns a due At whose Pods the scheduler ignores: a Pod that fits on
// any of very many nodes would cost the scheduler more than one for a single node.
func newUnscheduledAt(name string) *v1alpha1.At {
	at := newAt(name, time.Now())
	at.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		SchedulerName: "none",
		Containers:    []corev1.Container{{Name: "command", Image: "busybox:1.37.0"}},
	}}
	return at
}

// createNodes creates nodes without capacity, so that no other Pods are scheduled there.
func (b *bench) createNodes(ctx context.Context, number int) error {
	fleet := fmt.Sprint(number)
	return each(ctx, number, func(i int) error {
		_, err := b.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%s-%06d", fleet, i), Labels: map[string]string{labelFleet: fleet}},
		}, metav1.CreateOptions{})
		return err
	})
}

// createNodesAt creates an At for the nodes that createNodes has created.
func (b *bench) createNodesAt(ctx context.Context, namespace string, number int, concurrent *intstr.IntOrString) error {
	at := newUnscheduledAt("at")
	at.Spec.Nodes = &v1alpha1.AtNodes{
		Selector:      metav1.LabelSelector{MatchLabels: map[string]string{labelFleet: fmt.Sprint(number)}},
		MaxConcurrent: concurrent,
	}
	_, err := b.cnat.CnatV1alpha1().Ats(namespace).Create(ctx, at, metav1.CreateOptions{})
	return err
}

// run is the measurement of a run.
type run struct {
	took time.Duration
	pods *podTally
	rss  float64 // growth, in bytes
}

// measureRun measures a run of the given number of commands: from the first request of
// create until that number of Ats are DONE.
func (b *bench) measureRun(ctx context.Context, what string, commands, ats int, create func(namespace string) error) (_ run, err error) {
	namespace, err := b.newNamespace(ctx)
	if err != nil {
		return run{}, err
	}
	address, err := freeAddress()
	if err != nil {
		return run{}, err
	}
	if err := b.start(ctx, "-namespace="+namespace, "-metrics-bind-address="+address); err != nil {
		return run{}, err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	done, err := b.seeDone(ctx, namespace)
	if err != nil {
		return run{}, err
	}
	defer done.stop()
	if err := b.playKubelet(ctx, namespace, 0, nil); err != nil {
		return run{}, err
	}
	// The controller's base usage is not measured.
	if err := b.createAts(ctx, namespace, warmUp, time.Now()); err != nil {
		return run{}, err
	}
	if _, err := done.wait(ctx, warmUp, time.Minute, "Ats DONE, to begin with"); err != nil {
		return run{}, err
	}
	before, err := b.look(ctx, namespace, address)
	if err != nil {
		return run{}, err
	}
	pods, err := b.tallyPods(ctx, namespace)
	if err != nil {
		return run{}, err
	}
	defer pods.stop()
	start := time.Now()
	if err := create(namespace); err != nil {
		return run{}, err
	}
	last, err := done.wait(ctx, warmUp+ats, 10*time.Minute, "Ats DONE")
	if err != nil {
		return run{}, err
	}
	after, err := b.look(ctx, namespace, address)
	if err != nil {
		return run{}, err
	}
	r := run{took: last.Sub(start), pods: pods, rss: after.rss - before.rss}
	for request, count := range before.requests {
		after.requests[request] -= count
	}
	b.report(what, r.took.Seconds(), "s", nil)
	writes, reads, _, events := sum(after.requests)
	b.report(what+": writes for each command", writes/float64(commands), "", nil)
	b.report(what+": reads for each command", reads/float64(commands), "", nil)
	b.report(what+": events for each command", events/float64(commands), "", nil)
	b.report(what+": CPU of the controller for each command", milliseconds(after.cpu-before.cpu)/float64(commands), "ms", nil)
	b.report(what+": growth of RSS for each command", r.rss/kib/float64(commands), "KiB", nil)
	b.report(what+": growth of the heap for each command", (after.heap-before.heap)/kib/float64(commands), "KiB", nil)
	return r, nil
}

// state is the controller's memory in bytes, and its use of CPU and requests.
type state struct {
	rss, heap float64
	cpu       time.Duration
	requests  map[string]int
}

// look returns the state of a controller after it has become idle. The controller serves
// its metrics at the given address.
func (b *bench) look(ctx context.Context, namespace, address string) (s state, err error) {
	progress("idle for %v", settle)
	if err := sleep(ctx, settle); err != nil {
		return s, err
	}
	if s.rss, _, err = b.controller.rss(); err != nil {
		return s, err
	}
	if s.heap, err = liveHeap(ctx, address); err != nil {
		return s, err
	}
	if s.cpu, err = b.controller.cpu(); err != nil {
		return s, err
	}
	s.requests, err = b.requests(namespace)
	return s, err
}

// freeAddress returns an unused address of this machine.
func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

// liveHeap returns how much memory was in use after the controller's last garbage collection.
func liveHeap(ctx context.Context, address string) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, "go_gc_heap_live_bytes "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, errors.New("the controller has no metric go_gc_heap_live_bytes")
}

// podTally counts the Pods of a namespace.
type podTally struct {
	stop func()

	lock    sync.Mutex
	unended map[types.UID]bool
	most    int // at the same time
	onNode  map[string]map[types.UID]bool
}

// tallyPods counts the Pods that are created from now on.
func (b *bench) tallyPods(ctx context.Context, namespace string) (*podTally, error) {
	watcher, err := b.watchPods(ctx, namespace)
	if err != nil {
		return nil, err
	}
	t := &podTally{stop: watcher.Stop, unended: map[types.UID]bool{}, onNode: map[string]map[types.UID]bool{}}
	go func() {
		for event := range watcher.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok {
				t.add(pod, event.Type == watch.Deleted)
			}
		}
	}()
	return t, nil
}

func (t *podTally) add(pod *corev1.Pod, isDeleted bool) {
	t.lock.Lock()
	defer t.lock.Unlock()
	node := pod.Annotations[v1alpha1.AnnotationNode]
	if t.onNode[node] == nil {
		t.onNode[node] = map[types.UID]bool{}
	}
	t.onNode[node][pod.UID] = true
	if isDeleted || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		delete(t.unended, pod.UID)
	} else {
		t.unended[pod.UID] = true
	}
	t.most = max(t.most, len(t.unended))
}

// wantOnePerNode returns an error unless each of the nodes had exactly one Pod.
func (t *podTally) wantOnePerNode(nodes int) error {
	t.lock.Lock()
	defer t.lock.Unlock()
	for node, pods := range t.onNode {
		if node == "" || len(pods) != 1 {
			return fmt.Errorf("node %q had %d Pods, want one", node, len(pods))
		}
	}
	if len(t.onNode) != nodes {
		return fmt.Errorf("%d nodes had a Pod, want %d", len(t.onNode), nodes)
	}
	return nil
}
