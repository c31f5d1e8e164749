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
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronsteps"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// fault is what happens to a request.
type fault struct {
	what string
	// executes is true if the API server executes the request; flies, if it may do so later.
	executes, flies bool
	reason          reason
	claims          bool // whether it claims the next write
}

var faults = []fault{
	{}, // none
	{claims: true},
	{what: "the request is lost", reason: lost},
	{what: "the answer is lost", executes: true, reason: lost},
	{what: "the request is delayed", flies: true, reason: lost},
	{what: "the API server refuses", reason: forbidden},
	{what: "a proxy answers 404", reason: proxyNotFound},
	{what: "a proxy answers 409", reason: proxyConflict},
}

// scenario is what is explored.
type scenario struct {
	name string
	// objects are what exists at first. The first one is the At.
	objects []metav1.Object
	// instants are the times that exist, in seconds: whole ones, halves or quarters, which a float
	// has exactly, so that eight seconds are eight seconds.
	instants []float64
	left     budget
	// lag is by how many events a watch may be late while no sync is in progress.
	lag   int
	edits []edit
	// fails is true if commands may fail.
	fails bool
	// begins is the history from which on all is explored.
	begins []string
}

// edit is something that users do.
type edit struct {
	name string
	do   func(s *state) bool // false: not possible
	// harmless is true if no run may fail because of it.
	harmless bool
}

// explorer explores one scenario.
type explorer struct {
	scenario scenario
	// instants are those of the scenario, and later ones for what remains to be done.
	instants []float64
	decide   func(plan.World) plan.Decision
	cleanUp  func(plan.World, *corev1.Pod) plan.Decision
	// mutateCronAt lets a mutant change the world of a CronAt before each decision.
	mutateCronAt func(s *cronsteps.Steps, w *cronplan.World)
	// send and receive let a mutant change a request, and the error of its answer.
	send    func(r *request)
	receive func(r *request, err error) error
	// flight is for how many seconds a request may be on its way.
	flight float64
	// strict also checks what docs/concepts/guarantees.md excludes.
	strict bool

	turns  sync.Map // outcomes by key
	number atomic.Int64
}

const namespace = "default"

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// maxTurns is how many outcomes are kept.
const maxTurns = 300_000

// turn returns what a controller does next, in the sync that it is in, or in a new one of the
// At with the given name.
func (x *explorer) turn(p *replayer, c *controller, name string, now int8) outcome {
	e := &encoder{bytes: make([]byte, 0, 512)}
	e.add(name, now)
	e.known(c)
	k := e.key()
	o, known := x.turns.Load(k)
	if !known {
		if x.number.Add(1)%maxTurns == 0 {
			x.turns.Clear()
		}
		replayed := p.replay(c, name, now)
		replayed.versions = e.ranks
		o = replayed
		x.turns.Store(k, o)
	}
	return o.(outcome).with(e.ranks)
}

// with returns an outcome with other resource versions in the same order.
func (o outcome) with(versions []int32) outcome {
	other := func(version int32) int32 {
		rank, _ := slices.BinarySearch(o.versions, version)
		return versions[rank]
	}
	if o.request != nil && o.request.version != 0 {
		r := *o.request
		r.version = other(r.version)
		o.request = &r
	}
	o.written, o.writes = slices.Clone(o.written), slices.Clone(o.writes)
	for i, w := range o.written {
		o.written[i] = w.with(other(w.version))
	}
	for i := range o.writes {
		o.writes[i].version = other(o.writes[i].version)
	}
	return o
}

// transition leads to another state.
type transition struct {
	what string
	next *state
}

// then leads to the state after a change.
func (s *state) then(what string, do func(n *state)) transition {
	n := s.copy()
	do(n)
	return transition{what, n}
}

// transitions returns all that can happen next.
func (x *explorer) transitions(s *state, p *replayer) []transition {
	var all []transition
	add := func(what string, do func(n *state)) { all = append(all, s.then(what, do)) }
	for i := range s.controllers {
		who := "controller " + string(rune('A'+i))
		for _, b := range x.begin(s, p, i) {
			if b.outcome.request == nil {
				add(who+b.news+": "+b.name+": sees that an At is counted", func(n *state) {
					n.controllers[i] = b.controller
					n.controllers[i].counted = b.outcome.counted
				})
				continue
			}
			for _, f := range faults {
				what, left := who+b.news+": "+b.outcome.step, s.left.faults
				if f.what != "" {
					what, left = what+": "+f.what, left-1
				}
				// A proxy's 404 for a creation is the same as a lost request.
				r := b.outcome.request
				if left >= 0 && (!f.claims || r.starts()) && (f.reason != proxyNotFound || r.verb != create) {
					add(what, func(n *state) {
						x.execute(n, p, i, b, f)
						n.left.faults = left
					})
				}
			}
		}
		if s.left.crashes > 0 {
			add(who+" is killed and starts again", func(n *state) {
				n.restart(i)
				n.left.crashes--
			})
		}
	}
	for i, f := range s.flying {
		without := func(n *state) { n.flying = slices.Delete(slices.Clone(n.flying), i, i+1) }
		what := fmt.Sprintf("%s %s", f.request.verb, f.request.name)
		if s.since(f.since) <= x.flight {
			add("a delayed request arrives: "+what, func(n *state) {
				without(n)
				n.do(f.request)
			})
		}
		add("a delayed request is lost: "+what, without)
	}
	all = append(all, x.cluster(s)...)
	if s.left.edits > 0 {
		for _, e := range x.scenario.edits {
			n := s.copy()
			if e.do(n) {
				n.left.edits--
				n.harmed = n.harmed || !e.harmless
				all = append(all, transition{"a user " + e.name, n})
			}
		}
	}
	if int(s.now) < len(x.scenario.instants)-1 {
		all = append(all, s.tick())
	}
	return all
}

// tick leads to the next instant.
func (s *state) tick() transition {
	n := s.copy()
	n.now++
	for i := range n.controllers {
		n.controllers[i].forget(n)
	}
	return transition{"it is " + n.clock().Format("15:04:05.0"), n}
}

// beginning is a sync that begins or goes on, or one without a request that changes what the
// controller knows.
type beginning struct {
	controller controller
	name, news string
	outcome    outcome
}

// begin returns the syncs in which a controller can do something now: the one that it is in,
// or those that begin after its watches have delivered some of their news.
func (x *explorer) begin(s *state, p *replayer, i int) []beginning {
	c := s.controllers[i]
	if c.sync != nil {
		if o := x.turn(p, &c, c.sync.name, s.now); o.request != nil {
			return []beginning{{c, c.sync.name, "", o}}
		}
		c = x.finish(p, c, s)
	}
	var all []beginning
	for _, numbers := range c.deliveries() {
		d := c
		d.deliver(numbers)
		for _, name := range x.names(&d) {
			if o := x.turn(p, &d, name, s.now); o.request != nil || len(o.counted) > len(d.counted) {
				all = append(all, beginning{d, name, newsOf(numbers), o})
			}
		}
	}
	return all
}

// deliveries returns how many news of each kind the watches can deliver.
func (c *controller) deliveries() [][kinds]int {
	all := make([][kinds]int, 1)
	for k, news := range c.news {
		for _, numbers := range all {
			for i := range news {
				numbers[k] = i + 1
				all = append(all, numbers)
			}
		}
	}
	return all
}

func newsOf(numbers [kinds]int) string {
	var news []string
	for k, number := range numbers {
		if number > 0 {
			news = append(news, fmt.Sprintf("%d %s", number, kind(k)))
		}
	}
	if len(news) == 0 {
		return ""
	}
	return " (news of " + strings.Join(news, ", ") + ")"
}

// own returns what the controllers control: the kind of the first object.
func (x *explorer) own() kind { return kindOf(x.scenario.objects[0]) }

// names returns the names of what a controller can sync.
func (x *explorer) names(c *controller) []string {
	var names []string
	for _, o := range c.cache {
		name := ""
		switch o.kind {
		case c.own:
			name = o.name()
		case pods:
			name = plan.AtName(o.pod())
		case ats:
			name = cronplan.CronAtName(o.at())
		}
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// finish ends a sync that has nothing left to do.
func (x *explorer) finish(p *replayer, c controller, s *state) controller {
	o := x.turn(p, &c, c.sync.name, s.now)
	c.written, c.writes, c.counted, c.sync = o.written, o.writes, o.counted, nil
	c.catchUp(x.scenario.lag)
	c.forget(s)
	return c
}

// execute sends the request of a controller, and lets the fault happen to it.
func (x *explorer) execute(n *state, p *replayer, i int, b beginning, f fault) {
	r := b.outcome.request
	n.controllers[i] = b.controller
	c := &n.controllers[i]
	n.observe(r, c)
	next := &syncing{name: b.name}
	if c.sync != nil {
		next.answers = slices.Clip(c.sync.answers)
	}
	c.sync = next
	a := answer{instant: n.now, reason: f.reason}
	switch {
	case f.what == "":
		a = n.do(r)
		a.claims = f.claims
	case f.executes:
		n.do(r)
	case f.flies:
		n.flying = append(slices.Clip(n.flying), flying{r, n.now})
	}
	next.answers = append(next.answers, a)
	if x.turn(p, c, b.name, n.now).request == nil {
		*c = x.finish(p, *c, n)
	}
}

func (x *explorer) initial() *state {
	s := &state{x: x, left: x.scenario.left}
	for _, o := range x.scenario.objects {
		s.create(intern(clone(o)))
	}
	s.restart(0)
	s.restart(1)
	p := newReplayer(x)
	for _, what := range x.scenario.begins {
		s = x.goOnUntil(s, p, what)
		s.check()
	}
	return s
}

// goOnUntil goes on without faults until something can happen, and then it happens.
func (x *explorer) goOnUntil(s *state, p *replayer, what string) *state {
	var history []string
	for s != nil {
		for _, t := range x.transitions(s, p) {
			if t.what == what {
				return t.next
			}
		}
		t := x.goOn(s, p)
		history, s = append(history, t.what), t.next
	}
	panic("this cannot happen: " + what + "; what can:\n" + table(history))
}

func compareObjects(a, b *object) int {
	if a.kind != b.kind {
		return int(a.kind) - int(b.kind)
	}
	return strings.Compare(a.name(), b.name())
}
