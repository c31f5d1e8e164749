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
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	informers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/steps"
)

// worker explores with the real steps.
type worker struct {
	client  client
	clock   *clocktesting.FakePassiveClock
	steps   *steps.Steps
	claimed bool // whether it mattered if the step claimed a write
}

type noRecorder struct{ record.EventRecorder }

// Event implements record.EventRecorder.
func (noRecorder) Event(runtime.Object, string, string, string) {}

func newWorker() *worker {
	w := &worker{clock: clocktesting.NewFakePassiveClock(epoch)}
	w.steps = &steps.Steps{
		KubeClient: &w.client,
		CnatClient: cnatClient{client: &w.client},
		Recorder:   noRecorder{},
		Clock:      w.clock,
		Failures:   workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](0, 0),
		Defaults:   plan.Defaults{Image: "busybox"},
	}
	// The informers never run: what the caches have is in the state.
	var err error
	w.steps.Cache, err = steps.NewCache(
		informers.NewSharedInformerFactory(cnatClient{client: &w.client}, 0).Cnat().V1alpha1().Ats(),
		kubeinformers.NewSharedInformerFactory(&w.client, 0).Core().V1().Pods())
	if err != nil {
		panic(err)
	}
	return w
}

// prepare makes the steps forget what the state has.
func (w *worker) prepare(now time.Time, claims bool) {
	w.clock.SetTime(now)
	w.steps.Failures.Forget(cache.NewObjectName(namespace, atName))
	w.steps.Freshness = staleness.NewTracker(func() string { return "" })
	if !claims {
		w.steps.Freshness.Claim(now)
	}
}

// observe checks a request just before it is sent.
func (x *explorer) observe(s *state, world *plan.World, request any) {
	create, ok := request.(createPod)
	if !ok {
		return
	}
	due, err := plan.Instant(&world.At.Spec)
	if next := world.At.Status.NextAttemptTime; next != nil {
		due = next.Time
	}
	if err != nil || s.clock().Before(due) {
		s.violation = fmt.Sprintf("Pod %s is created before it is due", create.pod.Name)
	}
	for _, h := range s.held {
		if h.uid == string(world.At.UID) && s.since(h.since) > staleness.FreshFor.Seconds() {
			s.violation = fmt.Sprintf("Pod %s is created %.1f s after the At was suspended or deleted", create.pod.Name, s.since(h.since))
		}
	}
}

var ranks = map[v1alpha1.AtPhase]int{"": 0, v1alpha1.PhasePending: 0, v1alpha1.PhaseRunning: 1, v1alpha1.PhaseDone: 2}

// check looks at what is stored.
func (s *state) check() {
	if s.at == nil || s.violation != "" {
		return
	}
	now := status{string(s.at.UID), ranks[s.at.Status.Phase], s.at.Status.Failed}
	if s.highest.uid == now.uid && (now.phase < s.highest.phase || now.failed < s.highest.failed) {
		s.violation = fmt.Sprintf("the status goes back: from %+v to %+v", s.highest, now)
	}
	s.highest = now
	if s.at.Status.Pod == nil {
		return
	}
	recorded := s.at.Status.Pod
	if !slices.Contains(s.made, start{now.uid + "/" + recorded.Name, string(recorded.UID)}) {
		s.violation = fmt.Sprintf("Pod %s is recorded, which was not created for this At", recorded.UID)
		return
	}
	code, ok := map[string]string{v1alpha1.ReasonCompleted: "=0", v1alpha1.ReasonCommandFailed: "=1"}[s.at.Status.Reason]
	if ok && now.phase == 2 && !slices.Contains(s.ended, string(recorded.UID)+code) {
		s.violation = fmt.Sprintf("it is recorded that Pod %s ended with %s, which did not happen: %v", recorded.UID, code, s.ended)
	}
}

// settle goes on without faults until nothing happens any more, and returns what is wrong at
// the end. good has the states that end well.
func (x *explorer) settle(s *state, w *worker, good *sync.Map) error {
	var passed [][16]byte
	for range 500 {
		key := s.key()
		if _, ok := good.Load(key); ok {
			break
		}
		passed = append(passed, key)
		next := x.goOn(s, w)
		if next == nil {
			if err := s.hasEnded(); err != nil {
				return err
			}
			break
		}
		if s = next; s.violation != "" {
			return errors.New(s.violation)
		}
		if len(passed) == 500 {
			return errors.New("it does not come to an end")
		}
	}
	for _, key := range passed {
		good.Store(key, true)
	}
	return nil
}

// goOn returns the next state of a world that works, or nil if nothing more happens.
func (x *explorer) goOn(s *state, w *worker) *state {
	n := s.copy()
	n.flying = nil
	for i := range n.controllers {
		c := &n.controllers[i]
		switch {
		case len(c.atNews) > 0:
			c.deliverAt()
			return n
		case len(c.podNews) > 0:
			c.deliverPod()
			return n
		}
	}
	for i := range n.controllers {
		synced := n.copy()
		for happened := true; happened; {
			_, happened = x.stepOfSync(synced, i, none, false, w)
			synced.check()
			happened = happened && synced.controllers[i].sync != nil
		}
		synced.controllers[i].sync = nil
		if synced.key() != n.key() {
			return synced
		}
	}
	if cluster := x.cluster(n); len(cluster) > 0 {
		cluster[0].next.check()
		return cluster[0].next
	}
	if n.now < len(x.instants)-1 {
		n.now++
		return n
	}
	return nil
}

// hasEnded returns what is wrong in a state in which nothing more happens.
func (s *state) hasEnded() error {
	for _, pod := range s.pods {
		// A Pod without its label is an exception of the guarantees.
		if slices.Contains(pod.Finalizers, v1alpha1.FinalizerTracking) && pod.Labels[v1alpha1.LabelAtUID] != "" {
			return fmt.Errorf("the finalizer of Pod %s stays", pod.Name)
		}
	}
	if s.at != nil && s.at.Status.Phase != v1alpha1.PhaseDone && !ptr.Deref(s.at.Spec.Suspend, false) {
		return fmt.Errorf("the At is %s, %s: %s", s.at.Status.Phase, s.at.Status.Reason, s.at.Status.Message)
	}
	return nil
}

// result is what an exploration has found.
type result struct {
	states, depth int
	complete      bool
	// err is the first violation, and history the shortest way to it.
	err     error
	history []string
}

type visit struct {
	state  *state
	parent int32
}

// run explores all states, at most limit.
func (x *explorer) run(limit, workers int) result {
	seen := map[[16]byte]struct{}{}
	var parents []int32
	var whats []string
	names := map[string]string{}
	first := x.initial()
	seen[first.key()] = struct{}{}
	parents, whats = append(parents, -1), append(whats, "")
	frontier := []visit{{first, 0}}
	var good sync.Map
	result := result{complete: true}
	type found struct {
		what   string
		state  *state
		key    [16]byte
		parent int32
		err    error
	}
	for ; len(frontier) > 0; result.depth++ {
		var next []visit
		var lock sync.Mutex
		var at atomic.Int64
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				w := newWorker()
				for {
					i := int(at.Add(1)) - 1
					if i >= len(frontier) {
						return
					}
					v := frontier[i]
					var all []found
					for _, t := range x.transitions(v.state, w) {
						t.next.check()
						f := found{what: t.what, state: t.next, parent: v.parent, key: t.next.key()}
						if t.next.violation != "" {
							f.err = errors.New(t.next.violation)
						}
						all = append(all, f)
					}
					lock.Lock()
					fresh := all[:0]
					for _, f := range all {
						if _, ok := seen[f.key]; ok && f.err == nil {
							continue
						}
						seen[f.key] = struct{}{}
						fresh = append(fresh, f)
					}
					lock.Unlock()
					for i := range fresh {
						if fresh[i].err == nil {
							fresh[i].err = x.settle(fresh[i].state, w, &good)
						}
					}
					lock.Lock()
					for _, f := range fresh {
						what, ok := names[f.what]
						if !ok {
							what = f.what
							names[what] = what
						}
						parents, whats = append(parents, f.parent), append(whats, what)
						index := int32(len(parents) - 1)
						if f.err != nil && result.err == nil {
							result.err = f.err
							for i := index; i > 0; i = parents[i] {
								result.history = append(result.history, whats[i])
							}
							slices.Reverse(result.history)
						}
						next = append(next, visit{f.state, index})
					}
					lock.Unlock()
				}
			})
		}
		wg.Wait()
		frontier = next
		if result.err != nil || len(seen) > limit {
			result.complete = len(frontier) == 0
			break
		}
	}
	result.states = len(seen)
	return result
}

func (x *explorer) initial() *state {
	s := &state{x: x, left: x.scenario.left}
	s.createAt()
	s.restart(0)
	s.restart(1)
	w := newWorker()
	for _, what := range x.begins {
		all := x.transitions(s, w)
		i := slices.IndexFunc(all, func(t transition) bool { return t.what == what })
		if i < 0 {
			panic("this cannot happen now: " + what)
		}
		s = all[i].next
	}
	return s
}

// createAt creates the At of the scenario.
func (s *state) createAt() {
	at := s.x.scenario.at()
	at.Namespace, at.Name, at.UID, at.Generation = namespace, atName, s.newUID(atName), 1
	at.CreationTimestamp.Time = s.clock().Truncate(time.Second)
	at.Status.Phase = v1alpha1.PhasePending
	s.setAt(at)
}

// table formats a history.
func table(history []string) string {
	var b strings.Builder
	for i, what := range history {
		fmt.Fprintf(&b, "%3d  %s\n", i+1, what)
	}
	return b.String()
}
