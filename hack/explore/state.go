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
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
)

// state is all that decides what can happen next. What it refers to is never changed, only
// replaced.
type state struct {
	x       *explorer
	now     int8 // in instants
	stored  []*object
	version int32 // the last resource version

	controllers [2]controller
	flying      []flying // requests that may be executed later
	left        budget

	// What happened, for the checks.
	made      []types.UID // all Pods and Ats that have existed, sorted
	started   []types.UID // Pods whose command may have started, and restarts
	ended     []ended
	held      []hold
	highest   []status
	harmed    bool // by a user, so that runs may fail
	violation string
}

// ended is a Pod whose command ended.
type ended struct {
	uid  types.UID
	code int32
}

// hold says that an At must not start since an instant, or from the beginning if that is -1.
type hold struct {
	uid   types.UID
	since int8
	// until is when it may start, in seconds, or 0 for never.
	until int64
}

// status is what never goes back. phase is the phase of an At, or the last scheduled time of a
// CronAt.
type status struct {
	uid    types.UID
	phase  int
	failed int32
}

// budget is what may still go wrong, or be done by users.
type budget struct{ faults, edits, crashes int }

// event is news for a watch.
type event struct {
	*object
	deleted bool
}

// controller is a controller of Ats or of CronAts, one of two that are running, such as during
// a network partition. Its caches change only while it is between two syncs.
type controller struct {
	own   kind // what it controls
	cache []*object
	news  [kinds][]event // that its watches have not delivered
	// reached is the resource version up to which the cache of its own kind is complete.
	reached int32
	// written are Ats as it has written them, if that is not in the cache yet. writes are its
	// writes of the last half second.
	written []*object
	writes  []write
	// counted is since when it knows that Ats of a CronAt are counted.
	counted []counted
	sync    *syncing // nil: idle
}

type counted struct {
	uid   types.UID
	since int8
}

type write struct {
	version int32
	instant int8
}

// syncing is a sync in progress.
type syncing struct {
	name    string // of the At
	answers []answer
}

type flying struct {
	request *request
	since   int8
}

func (s *state) copy() *state {
	n := *s
	return &n
}

func (s *state) clock() time.Time { return s.x.timeOf(s.now) }

func (x *explorer) timeOf(instant int8) time.Time { return timeAt(x.instants[instant]) }

func timeAt(seconds float64) time.Time {
	return epoch.Add(time.Duration(seconds * float64(time.Second)))
}

// since returns how many seconds ago an instant was.
func (s *state) since(instant int8) float64 {
	return s.x.instants[s.now] - s.x.instants[instant]
}

// notify gives the watches a new version of an object.
func (s *state) notify(o *object, deleted bool) {
	if !s.x.own().watches(o.kind) {
		return
	}
	e := event{o.kept().with(o.version), deleted || !isWatched(o)}
	for i := range s.controllers {
		news := &s.controllers[i].news[o.kind]
		*news = append(slices.Clip(*news), e)
		s.controllers[i].catchUp(s.x.scenario.lag)
	}
}

// isWatched reports whether an object has the label by which a watch of Pods selects.
func isWatched(o *object) bool {
	return o.kind != pods || o.meta.GetLabels()[v1alpha1.LabelAtUID] != ""
}

// catchUp delivers news until no watch lags by more events than that.
func (c *controller) catchUp(lag int) {
	if c.sync != nil {
		return
	}
	var late [kinds]int
	for k, news := range c.news {
		late[k] = max(0, len(news)-lag)
	}
	c.deliver(late)
}

// restart makes a controller forget everything, and list.
func (s *state) restart(i int) {
	c := controller{own: s.x.own(), reached: s.version}
	for _, o := range s.stored {
		if c.own.watches(o.kind) && isWatched(o) {
			c.cache = append(c.cache, o.kept().with(o.version))
		}
	}
	s.controllers[i] = c
}

// deliver delivers the oldest news of each kind.
func (c *controller) deliver(numbers [kinds]int) {
	if numbers == [kinds]int{} {
		return
	}
	for k, number := range numbers {
		for _, e := range c.news[k][:number] {
			c.cache = slices.DeleteFunc(slices.Clone(c.cache), func(o *object) bool { return o.is(e.kind, e.name()) })
			if !e.deleted {
				c.cache = append(c.cache, e.object)
			}
			if e.kind == c.own {
				c.reached = e.version
			}
		}
		c.news[k] = c.news[k][number:]
	}
	slices.SortFunc(c.cache, compareObjects)
	c.written = slices.DeleteFunc(slices.Clone(c.written), func(w *object) bool {
		return !slices.ContainsFunc(c.cache, func(o *object) bool { return o.kind == c.own && o.uid() == w.uid() && w.version > o.version })
	})
}

// forget removes what no longer makes a difference. A sync in progress began with it.
func (c *controller) forget(s *state) {
	if len(c.writes) > 0 && c.sync == nil {
		c.writes = slices.DeleteFunc(slices.Clone(c.writes), func(w write) bool { return s.since(w.instant) >= staleness.FreshFor.Seconds() })
	}
}

// encoder makes a key. Of resource versions, only the order matters: their ranks are encoded.
type encoder struct {
	bytes    []byte
	versions []int   // at which positions of bytes there is a version
	ranks    []int32 // the versions, sorted
}

// add encodes values, which are equal if they print the same.
func (e *encoder) add(values ...any) { e.bytes = fmt.Appendln(e.bytes, values...) }

func (e *encoder) version(version int32) {
	e.versions = append(e.versions, len(e.bytes))
	e.bytes = binary.BigEndian.AppendUint32(e.bytes, uint32(version))
}

func (e *encoder) objects(objects []*object) {
	e.bytes = append(e.bytes, byte(len(objects)))
	for _, o := range objects {
		e.object(o)
	}
}

func (e *encoder) object(o *object) {
	e.bytes = binary.BigEndian.AppendUint32(e.bytes, o.id)
	e.version(o.version)
}

// known encodes what decides the next request of a controller.
func (e *encoder) known(c *controller) {
	e.objects(c.cache)
	e.objects(c.written)
	e.add(len(c.writes), c.arrived(), c.counted)
	for _, w := range c.writes {
		e.version(w.version)
		e.add(w.instant)
	}
	if c.sync == nil {
		return
	}
	e.add(c.sync.name, len(c.sync.answers))
	for _, a := range c.sync.answers {
		e.add(a.instant, a.reason, a.claims)
		e.objects(a.objects)
	}
}

// arrived returns how many of the writes are in the cache.
func (c *controller) arrived() int {
	i := slices.IndexFunc(c.writes, func(w write) bool { return w.version > c.reached })
	if i < 0 {
		return len(c.writes)
	}
	return i
}

func (e *encoder) controller(c *controller) {
	e.known(c)
	for _, news := range c.news {
		e.bytes = append(e.bytes, byte(len(news)))
		for _, n := range news {
			e.object(n.object)
			e.bytes = strconv.AppendBool(e.bytes, n.deleted)
		}
	}
}

func (e *encoder) request(r *request) {
	e.add(r.verb, r.kind, r.name, r.uid, r.owner, r.body)
	e.version(r.version)
	if r.object != nil {
		e.add(r.object.id)
	}
}

// rank replaces each version by its rank.
func (e *encoder) rank() {
	for _, at := range e.versions {
		e.ranks = append(e.ranks, int32(binary.BigEndian.Uint32(e.bytes[at:])))
	}
	slices.Sort(e.ranks)
	e.ranks = slices.Compact(e.ranks)
	for _, at := range e.versions {
		rank, _ := slices.BinarySearch(e.ranks, int32(binary.BigEndian.Uint32(e.bytes[at:])))
		binary.BigEndian.PutUint32(e.bytes[at:], uint32(rank))
	}
}

// key identifies a state or a turn.
type key [2]uint64

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func (e *encoder) key() key {
	e.rank()
	return key{maphash.Bytes(seeds[0], e.bytes), maphash.Bytes(seeds[1], e.bytes)}
}

// key identifies a state: equal states have equal keys. The two controllers are
// interchangeable.
func (s *state) key() key {
	history := fmt.Append(nil, s.now, s.left, s.harmed, s.made, s.started, s.ended, s.held, s.highest, len(s.flying))
	a := s.encode(history, 0, 1).key()
	b := s.encode(history, 1, 0).key()
	if b[0] < a[0] {
		return b
	}
	return a
}

func (s *state) encode(history []byte, first, second int) *encoder {
	e := &encoder{bytes: append(make([]byte, 0, 1024), history...), versions: make([]int, 0, 64)}
	e.objects(s.stored)
	e.controller(&s.controllers[first])
	e.controller(&s.controllers[second])
	for _, f := range s.flying {
		e.add(f.since)
		e.request(f.request)
	}
	return e
}
