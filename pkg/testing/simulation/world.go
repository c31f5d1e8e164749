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

// Package simulation runs whole processes of the controller in simulated time, with an API
// server in memory, tenants, nodes and faults, and checks their history with package audit.
//
// One goroutine, that of World.Run, is the world: it has a queue of events, such as a request
// that arrives at the API server, an answer that arrives at its client, a container that ends,
// or a user who edits an At. The goroutines of the processes only run between two events, until
// all of them wait. So what they do depends on the events, hardly on their order among each
// other, and a seed gives the same history until two timers end at the same instant.
//
// The processes take their wall clock from the world, which steps it. Their timers, and what
// client-go takes from the runtime, use the time of the test's bubble, which is not stepped.
// The files:
//
//   - world.go: the queue of events, and the history
//   - network.go: requests, answers and watches of the processes, and their faults
//   - process.go: starts, stops and kills processes
//   - cluster.go: the scheduler, the kubelets, the garbage collector, rollouts, namespaces
//   - tenants.go: users
//   - freezes.go: who keeps others from starting something
package simulation

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	oldrand "math/rand"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	"programming-kubernetes.info/cnat-controller/pkg/testing/audit"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// Options choose a history.
type Options struct {
	Seed uint64
	Days int
	// Day is how long a day takes, more than calmTime.
	Day time.Duration
	// NoPreflights turns preflights off. With them, two histories of a seed may differ.
	NoPreflights bool
	// Start runs a process until its context is done.
	Start Start
	// Mutant breaks a process, if it is not nil.
	Mutant *Mutant
	// Trace gets all changes, if it is not nil, and Verbosity is that of the processes' logs.
	Trace     io.Writer
	Verbosity int
}

// Result is what came of a simulation.
type Result struct {
	// Hash is that of the history.
	Hash       string
	Requests   int
	Faults     int
	Summary    audit.Summary
	Violations []audit.Violation
}

// String returns the result in one line.
func (r *Result) String() string {
	median, p99, most := r.Summary.Lateness()
	return fmt.Sprintf("history %s: %d requests, %d of them with faults, %d writes; %d Ats, %d CronAts, %d Pods, %d restarts; ends %v; late: median %v, p99 %v, at most %v",
		r.Hash, r.Requests, r.Faults, r.Summary.Writes, r.Summary.Ats, r.Summary.CronAts, r.Summary.Pods, r.Summary.Restarts,
		r.Summary.Ends, median.Round(time.Millisecond), p99.Round(time.Millisecond), most.Round(time.Millisecond))
}

// World is a simulated world.
type World struct {
	*Options
	t       *testing.T
	clock   *harness.Clock
	server  *fakeserver.Server
	checker *audit.Checker
	random  *rand.Rand
	kube    kubernetes.Interface
	cnat    clientset.Interface

	queue  []event       // in the order of their times
	number int           // of events so far
	ahead  time.Duration // how far the wall clock is ahead of the clock of timers

	network
	processes
	cluster
	tenants

	hash   hash.Hash
	result Result
}

// Run simulates a world until it is over, or a promise is broken. It must be called in a test's
// bubble.
func Run(t *testing.T, o Options) Result {
	t.Helper()
	w := &World{Options: &o, t: t, clock: &harness.Clock{}, checker: audit.NewChecker(), random: rand.New(rand.NewPCG(o.Seed, 0)), hash: sha256.New()}
	w.server = fakeserver.New(w.clock)
	w.server.Observe = w.observe
	w.arrived, w.known, w.gaveUp = make(chan struct{}, 1), map[string][]byte{}, sets.Set[string]{}
	w.cluster = newCluster()
	w.kube, w.cnat = harness.NewClients(t, w.server)
	w.checker.System = system
	w.populate()
	for day := range o.Days {
		w.tracef("day %d", day)
		w.planDay()
		w.runFor(w.Day - calmTime)
		w.calm()
		w.runFor(calmTime)
		w.checker.Settle(w.clock.Now(), settleTime)
		if len(w.checker.Violations) > 0 {
			break
		}
	}
	w.stopAll()
	w.result.Hash = fmt.Sprintf("%x", w.hash.Sum(nil)[:8])
	w.result.Summary = w.checker.Summary
	return w.result
}

// For the last calmTime of a day, there are neither faults nor edits, and everything ends. What was
// due settleTime before the end of the day must have been done by then.
const (
	calmTime   = 2 * time.Hour
	settleTime = 15 * time.Minute
)

// event is something that happens at a time.
type event struct {
	at time.Time
	do func()
}

// after lets something happen after a delay, and after what happens at that time anyway.
func (w *World) after(delay time.Duration, do func()) {
	w.number++
	at := time.Now().Add(delay)
	i := sort.Search(len(w.queue), func(i int) bool { return w.queue[i].at.After(at) })
	w.queue = slices.Insert(w.queue, i, event{at, do})
}

// between returns a random duration.
func (w *World) between(least, most time.Duration) time.Duration {
	return least + time.Duration(w.random.Int64N(int64(most-least)))
}

// chance returns true with a probability in percent.
func (w *World) chance(percent int) bool { return w.random.IntN(100) < percent }

// reseed seeds the source of what client-go adds to its delays. It is called before events after
// which such a delay follows, so that an earlier difference has no effect.
func (w *World) reseed() {
	oldrand.Seed(int64(w.Seed)<<32 + int64(w.number)) //nolint:staticcheck // Nothing else determines it.
}

// runFor lets events happen for a time.
func (w *World) runFor(d time.Duration) {
	over := false
	w.after(d, func() { over = true })
	for !over && (w.stopped || len(w.checker.Violations) == 0) {
		synctest.Wait() // until the processes wait
		w.accept()
		if left := time.Until(w.queue[0].at); left > 0 {
			timer := time.NewTimer(left)
			select {
			case <-w.arrived:
			case <-timer.C:
			}
			timer.Stop()
			continue
		}
		next := w.queue[0]
		w.queue = w.queue[1:]
		next.do()
		w.pump()
	}
}

// stepClock steps the wall clock of all machines, as after a sleep, when no request is on its way.
func (w *World) stepClock(by time.Duration) {
	if w.flying > 0 {
		w.after(latency, func() { w.stepClock(by) })
		return
	}
	w.tracef("the clock is stepped by %v", by)
	w.ahead += by
	w.clock.Set(w.ahead)
	w.checker.Step(w.clock.Now(), by)
}

// must stops the simulation if a request of the world itself fails.
func must[T any](object T, err error) T {
	if err != nil {
		panic(err)
	}
	return object
}

func (w *World) tracef(format string, args ...any) {
	line := w.clock.Now().UTC().Format("01-02T15:04:05.000000000 ") + fmt.Sprintf(format, args...) + "\n"
	_, _ = io.WriteString(w.hash, line)
	if w.Trace != nil {
		_, _ = io.WriteString(w.Trace, line)
	}
}

// observe gets each change that the API server stores. It must not send requests.
func (w *World) observe(eventType watch.EventType, resource schema.GroupResource, object *unstructured.Unstructured) {
	by, sent := "the world", w.clock.Now()
	if c := w.serving; c != nil {
		by, sent = c.process.name, c.sent
	}
	content := must(json.Marshal(object.Object))
	_, _ = w.hash.Write(content)
	if resource.Resource == "leases" {
		return
	}
	if resource.Resource == "ats" && w.Mutant != nil && w.Mutant.delay > 0 {
		path := fmt.Sprintf("/apis/%s/namespaces/%s/ats/%s", v1alpha1.SchemeGroupVersion, object.GetNamespace(), object.GetName())
		w.after(w.Mutant.delay, func() { w.known[path] = content })
	}
	w.tracef("%s: %s %s %s/%s %s", by, eventType, resource.Resource, object.GetNamespace(), object.GetName(), summary(object))
	typed := typedOf(resource.Resource, object)
	if typed == nil {
		return
	}
	w.checker.Add(audit.Write{
		Sent: sent, Time: w.clock.Now(), Object: typed,
		Created: eventType == watch.Added, Gone: eventType == watch.Deleted,
	})
	w.changed(eventType, typed)
}

// typedOf returns an object as its type, or nil if the world does not need it.
func typedOf(resource string, object *unstructured.Unstructured) metav1.Object {
	var typed metav1.Object
	switch resource {
	case "ats":
		typed = &v1alpha1.At{}
	case "cronats":
		typed = &v1alpha1.CronAt{}
	case "freezes":
		typed = &v1alpha1.Freeze{}
	case "pods":
		typed = &corev1.Pod{}
	case "namespaces":
		typed = &corev1.Namespace{}
	case "nodes":
		typed = &corev1.Node{}
	case "deployments":
		typed = &appsv1.Deployment{}
	default:
		return nil
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
		panic(err)
	}
	return typed
}

// summary is what a trace shows of an object.
func summary(object *unstructured.Unstructured) string {
	field := func(fields ...string) string {
		value, _, _ := unstructured.NestedFieldNoCopy(object.Object, fields...)
		if value == nil {
			return ""
		}
		return fmt.Sprint(" ", value)
	}
	text := object.GetResourceVersion() + field("status", "phase") + field("status", "reason") + field("spec", "schedule") + field("spec", "suspend")
	if object.GetDeletionTimestamp() != nil {
		text += " deleted"
	}
	return text + field("metadata", "finalizers") + field("message")
}
