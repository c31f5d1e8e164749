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
)

// settle goes on without faults until nothing happens any more, and returns what is wrong at
// the end, and what has happened. good has the states that end well.
func (x *explorer) settle(s *state, p *replayer, good *keys) ([]string, error) {
	var passed []key
	var history []string
	for range 500 {
		k := s.key()
		if good.has(k) {
			break
		}
		passed = append(passed, k)
		what, next := x.goOn(s, p)
		if next == nil {
			if err := s.hasEnded(); err != nil {
				return history, err
			}
			break
		}
		history = append(history, what)
		s = next
		if s.check(); s.violation != "" {
			return history, errors.New(s.violation)
		}
		if len(passed) == 500 {
			return history, errors.New("it does not come to an end")
		}
	}
	for _, k := range passed {
		good.add(k)
	}
	return history, nil
}

// goOn returns the next state of a world that works, or nil if nothing more happens.
func (x *explorer) goOn(s *state, p *replayer) (string, *state) {
	n := s.copy()
	n.flying = nil
	for i := range n.controllers {
		if c := &n.controllers[i]; c.sync != nil {
			return n.finishSync(p, i, c.sync.name)
		}
		c := &n.controllers[i]
		c.catchUp(0)
	}
	before := n.key()
	for i := range n.controllers {
		for _, name := range x.names(&n.controllers[i]) {
			// A sync that only reads changes nothing.
			if what, synced := n.copy().finishSync(p, i, name); synced.key() != before {
				return what, synced
			}
		}
	}
	if cluster := x.cluster(n); len(cluster) > 0 {
		return cluster[0].what, cluster[0].next
	}
	if int(n.now) < len(x.instants)-1 {
		n = n.tick()
		return "it is " + n.clock().Format("15:04:05.0"), n
	}
	return "", nil
}

// finishSync takes the steps of a sync to its end.
func (s *state) finishSync(p *replayer, i int, name string) (string, *state) {
	what := "controller " + string(rune('A'+i))
	for {
		c := &s.controllers[i]
		o := s.x.turn(p, c, name, s.now)
		if o.request == nil {
			if c.sync != nil {
				*c = s.x.finish(p, *c, s)
			}
			c.counted = o.counted
			return what, s
		}
		what += ": " + o.step
		s.x.execute(s, p, i, beginning{*c, name, "", o}, faults[0], false)
		s.check()
		if s.controllers[i].sync == nil {
			return what, s
		}
	}
}

// keys is a set of keys.
type keys [256]struct {
	sync.Mutex
	keys map[key]struct{}
}

func (k *keys) has(key key) bool {
	shard := &k[byte(key[0])]
	shard.Lock()
	defer shard.Unlock()
	_, found := shard.keys[key]
	return found
}

// add adds a key and reports whether it is new.
func (k *keys) add(added key) bool {
	shard := &k[byte(added[0])]
	shard.Lock()
	defer shard.Unlock()
	if shard.keys == nil {
		shard.keys = map[key]struct{}{}
	}
	before := len(shard.keys)
	shard.keys[added] = struct{}{}
	return len(shard.keys) > before
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

// visit is a state to explore, and where it comes from.
type visit struct {
	state  *state
	parent int32
	index  int32
	err    error
	then   []string
}

// run explores all states, at most limit.
func (x *explorer) run(limit, workers int) result {
	var seen, good keys
	type step struct {
		parent int32
		what   uint32
	}
	steps := []step{{parent: -1}}
	var names []string
	numbers := map[string]uint32{}
	first := x.initial()
	seen.add(first.key())
	frontier := []visit{{state: first}}
	result := result{complete: true}
	for ; len(frontier) > 0; result.depth++ {
		var next []visit
		var lock sync.Mutex
		var taken atomic.Int64
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				p := newReplayer(x)
				for {
					i := int(taken.Add(1)) - 1
					if i >= len(frontier) {
						return
					}
					v := &frontier[i]
					var fresh []visit
					var whats []string
					for _, t := range x.transitions(v.state, p) {
						t.next.check()
						if !seen.add(t.next.key()) {
							continue
						}
						n := visit{state: t.next, parent: v.index}
						if t.next.violation != "" {
							n.err = errors.New(t.next.violation)
						} else {
							n.then, n.err = x.settle(t.next, p, &good)
						}
						fresh, whats = append(fresh, n), append(whats, t.what)
					}
					v.state = nil
					lock.Lock()
					for i, n := range fresh {
						number, ok := numbers[whats[i]]
						if !ok {
							number = uint32(len(names))
							names = append(names, whats[i])
							numbers[whats[i]] = number
						}
						n.index = int32(len(steps))
						steps = append(steps, step{n.parent, number})
						if n.err != nil && result.err == nil {
							result.err = n.err
							for i := n.index; i > 0; i = steps[i].parent {
								result.history = append(result.history, names[steps[i].what])
							}
							slices.Reverse(result.history)
							result.history = append(x.beginning(), result.history...)
							if len(n.then) > 0 {
								result.history = append(append(result.history, "and then, without faults:"), n.then...)
							}
						}
						n.then = nil
						next = append(next, n)
					}
					stop := result.err != nil || len(steps) > limit
					lock.Unlock()
					if stop {
						return
					}
				}
			})
		}
		wg.Wait()
		frontier = next
		if result.err != nil || len(steps) > limit {
			result.complete = false
			break
		}
	}
	result.states = len(steps)
	return result
}

// beginning returns the history before the first state.
func (x *explorer) beginning() []string {
	var history []string
	for _, what := range x.scenario.begins {
		history = append(history, "without faults, until: "+what)
	}
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
