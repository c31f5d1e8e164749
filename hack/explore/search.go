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
	"slices"
	"strings"
	"sync"
	"unique"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
)

// settle goes on without faults until nothing happens any more, and returns what has happened, and
// what is wrong. good has the states that end well.
func (x *explorer) settle(s *state, p *replayer, good *keys) (history []string, err error) {
	var passed []key
	for range 500 {
		if s.violation != "" {
			return history, errors.New(s.violation)
		}
		var t transition
		if k := s.key(); !good.has(k) {
			passed = append(passed, k)
			if t = x.goOn(s, p); t.next == nil {
				err = s.hasEnded()
			}
		}
		switch {
		case err != nil:
			return history, err
		case t.next == nil:
			good.add(passed...)
			return nil, nil
		}
		history, s = append(history, "without faults: "+t.what), t.next
		s.check()
	}
	return history, errors.New("it does not come to an end")
}

// goOn leads to the next state of a world that works, or nowhere if nothing more happens.
func (x *explorer) goOn(s *state, p *replayer) transition {
	n := s.copy()
	n.flying = nil
	for i := range n.controllers {
		n.controllers[i].catchUp(0)
	}
	before := n.key()
	for i := range n.controllers {
		for _, b := range x.begin(n, p, i) {
			// A sync that only reads changes nothing.
			if t := n.copy().finishSync(p, i, b); t.next.key() != before {
				return t
			}
		}
	}
	if cluster := x.cluster(n); len(cluster) > 0 {
		return cluster[0]
	}
	if int(n.now) < len(x.instants)-1 {
		return n.tick()
	}
	return transition{}
}

// finishSync takes the steps of a sync to its end.
func (s *state) finishSync(p *replayer, i int, b beginning) transition {
	what := "controller " + string(rune('A'+i))
	for b.outcome.request != nil {
		what += ": " + b.outcome.step
		s.x.execute(s, p, i, b, faults[0])
		s.check()
		if s.controllers[i].sync == nil {
			return transition{what, s}
		}
		b = s.x.begin(s, p, i)[0]
	}
	s.controllers[i] = b.controller
	s.controllers[i].counted = b.outcome.counted
	return transition{what, s}
}

// keys is a set of keys.
type keys struct {
	sync.Mutex
	known sets.Set[key]
}

func (k *keys) has(key key) bool {
	k.Lock()
	defer k.Unlock()
	return k.known.Has(key)
}

// add adds keys and reports whether one is new.
func (k *keys) add(keys ...key) bool {
	k.Lock()
	defer k.Unlock()
	before := len(k.known)
	return len(k.known.Insert(keys...)) > before
}

// result is what an exploration has found.
type result struct {
	states, depth int
	complete      bool
	// err is the first violation. history is the shortest way to it, and then what follows
	// without faults.
	err     error
	history []string
}

// visit is a state to explore, and how it was reached.
type visit struct {
	state *state
	last  *step
}

// step is what led from one state to the next one.
type step struct {
	before *step
	what   unique.Handle[string]
}

// run explores all states, at most limit.
func (x *explorer) run(limit, workers int) result {
	seen, good := keys{known: sets.New[key]()}, keys{known: sets.New[key]()}
	replayers := sync.Pool{New: func() any { return newReplayer(x) }}
	first := x.initial()
	seen.add(first.key())
	frontier := []visit{{state: first}}
	found := result{states: 1, complete: true}
	for len(frontier) > 0 {
		var next []visit
		var lock sync.Mutex
		ctx, stop := context.WithCancel(context.Background())
		workqueue.ParallelizeUntil(ctx, workers, len(frontier), func(i int) {
			p := replayers.Get().(*replayer)
			defer replayers.Put(p)
			v := frontier[i]
			frontier[i].state = nil
			for _, t := range x.transitions(v.state, p) {
				t.next.check()
				if !seen.add(t.next.key()) {
					continue
				}
				last := &step{v.last, unique.Make(t.what)}
				then, err := x.settle(t.next, p, &good)
				lock.Lock()
				next = append(next, visit{t.next, last})
				if found.states++; err != nil && found.err == nil {
					found.err, found.history = err, append(x.history(last), then...)
				}
				if found.err != nil || found.states > limit {
					found.complete = false
					stop()
				}
				lock.Unlock()
			}
		})
		stop()
		if !found.complete {
			break
		}
		frontier = next
		found.depth++
	}
	return found
}

// history returns what happened before a state, the beginning included.
func (x *explorer) history(last *step) (history []string) {
	for ; last != nil; last = last.before {
		history = append(history, last.what.Value())
	}
	for _, what := range slices.Backward(x.scenario.begins) {
		history = append(history, "without faults, until: "+what)
	}
	slices.Reverse(history)
	return history
}

// table formats a history.
func table(history []string) string {
	var b strings.Builder
	for i, what := range history {
		fmt.Fprintf(&b, "%3d  %s\n", i+1, what)
	}
	return b.String()
}
