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
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// state is all that decides what can happen next. Objects are never changed, only replaced.
type state struct {
	x   *explorer
	now int // in instants

	// What the API server stores.
	at      *v1alpha1.At
	pods    []*corev1.Pod // by name
	version int           // the last resource version
	uids    []counted     // how many objects had each name

	controllers [2]controller
	flying      []flying // requests that may be executed later
	left        budget

	// What happened, for the checks.
	made      []start  // all Pods
	started   []start  // Pods whose command may have started
	held      []held   // Ats that must not start, by what users want
	highest   status   // of the present At
	ended     []string // Pods with their exit codes
	violation string
}

type counted struct {
	name   string
	number int
}

// held is an At that must not start since an instant.
type held struct {
	uid   string
	since int
}

// start is a Pod, and the attempt that it is for: the UID of the At and the name of the Pod.
type start struct{ attempt, pod string }

func startOf(pod *corev1.Pod) start {
	return start{string(plan.ControllerOf(pod).UID) + "/" + pod.Name, string(pod.UID)}
}

// status is what never goes back.
type status struct {
	uid    string
	phase  int
	failed int32
}

// budget is what may still go wrong, or be done by users.
type budget struct{ faults, edits, crashes int }

// event is news for a watch.
type event struct {
	at      *v1alpha1.At
	pod     *corev1.Pod
	deleted bool
}

// controller is one of two that are running, such as during a network partition.
type controller struct {
	at   *v1alpha1.At
	pods []*corev1.Pod
	// atNews and podNews have not been delivered yet.
	atNews, podNews []event
	written         *v1alpha1.At // the At as last written
	// A write whose news the watch has not delivered yet, and when it was sent: then, nothing
	// older is missing in the cache.
	sentVersion, sentAt, freshAt int
	sync                         *syncing // nil: idle
}

// syncing is a sync between two of its steps.
type syncing struct {
	world *plan.World
	pods  []*corev1.Pod
	stage int // 0: the run; i: the i-th of pods
}

type flying struct {
	request any
	since   int
}

// fault is what happens to a request.
type fault int

const (
	none fault = iota
	requestLost
	answerLost
	requestDelayed
	refused
)

func (f fault) String() string {
	return [...]string{"", "the request is lost", "the answer is lost", "the request is delayed", "the API server refuses"}[f]
}

// scenario is what is explored.
type scenario struct {
	name string
	doc  string
	at   func() *v1alpha1.At
	// instants are the times that exist, in seconds.
	instants []float64
	left     budget
	edits    []edit
	// fails is true if commands may fail.
	fails bool
	// flight is how long, in seconds, a delayed request may take.
	flight float64
}

// edit is something that users do.
type edit struct {
	name string
	do   func(s *state) bool // false: not possible
}

// explorer explores one scenario.
type explorer struct {
	scenario scenario
	// instants are those of the scenario, and later ones for what remains to be done.
	instants []float64
	decide   func(plan.World) plan.Decision
	cleanUp  func(plan.World, *corev1.Pod) plan.Decision
	// send lets a mutant change a request.
	send func(request any) any
	// begins is the history from which on all is explored.
	begins []string
	// strict also checks what docs/concepts/guarantees.md excludes.
	strict bool
}

const (
	namespace = "default"
	atName    = "at"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (s *state) clock() time.Time { return s.timeOf(s.now) }

func (s *state) timeOf(instant int) time.Time {
	return epoch.Add(time.Duration(s.x.instants[instant] * float64(time.Second)))
}

// since returns how many seconds ago an instant was.
func (s *state) since(instant int) float64 {
	return s.x.instants[s.now] - s.x.instants[instant]
}

func (s *state) notify(e event) {
	for i := range s.controllers {
		c := &s.controllers[i]
		if e.at != nil {
			e := e
			e.at = keptAt(e.at)
			c.atNews = append(slices.Clone(c.atNews), e)
		} else {
			e := e
			e.pod = keptPod(e.pod)
			e.deleted = e.deleted || e.pod.Labels[v1alpha1.LabelAtUID] == ""
			c.podNews = append(slices.Clone(c.podNews), e)
		}
	}
}

// restart makes a controller forget everything, and list.
func (s *state) restart(i int) {
	c := controller{sentVersion: -1, sentAt: -1, freshAt: -1}
	if s.at != nil {
		c.at = keptAt(s.at)
	}
	for _, pod := range s.pods {
		if pod.Labels[v1alpha1.LabelAtUID] != "" {
			c.pods = append(c.pods, keptPod(pod))
		}
	}
	s.controllers[i] = c
}

// deliverAt delivers the next news of Ats.
func (c *controller) deliverAt() {
	e := c.atNews[0]
	c.atNews = c.atNews[1:]
	if e.deleted {
		c.at = nil
		return
	}
	c.at = e.at
	if version, _ := strconv.Atoi(e.at.ResourceVersion); c.sentVersion >= 0 && version >= c.sentVersion {
		c.freshAt, c.sentVersion = c.sentAt, -1
	}
}

func (c *controller) deliverPod() {
	e := c.podNews[0]
	c.podNews = c.podNews[1:]
	c.pods = slices.DeleteFunc(slices.Clone(c.pods), func(pod *corev1.Pod) bool { return pod.Name == e.pod.Name })
	if !e.deleted {
		c.pods = append(c.pods, e.pod)
		slices.SortFunc(c.pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	}
}

// world is Cache.World.
func (s *state) world(c *controller) *plan.World {
	world := &plan.World{At: c.at, Now: s.clock(), Forecast: &plan.Forecast{}}
	if c.freshAt >= 0 {
		world.AtAsOf, world.ParentAsOf = s.timeOf(c.freshAt), s.timeOf(c.freshAt)
	}
	for _, pod := range c.pods {
		if plan.AtName(pod) == atName {
			world.Pods = append(world.Pods, pod)
		}
	}
	if world.At != nil && c.written != nil && c.written.UID == c.at.UID && staleness.IsNewer(c.written, c.at) {
		world.At = c.written
	}
	return world
}

// transition leads to another state.
type transition struct {
	what string
	next *state
}

// transitions returns all that can happen next.
func (x *explorer) transitions(s *state, w *worker) []transition {
	var all []transition
	add := func(what string, do func(n *state)) {
		n := s.copy()
		do(n)
		all = append(all, transition{what, n})
	}
	for i := range s.controllers {
		c := &s.controllers[i]
		who := "controller " + string(rune('A'+i)) + ": "
		if len(c.atNews) > 0 {
			add(who+"its watch reports the At", func(n *state) { n.controllers[i].deliverAt() })
		}
		if len(c.podNews) > 0 {
			add(who+"its watch reports a Pod", func(n *state) { n.controllers[i].deliverPod() })
		}
		for _, f := range []fault{none, requestLost, answerLost, requestDelayed, refused} {
			if f != none && s.left.faults == 0 {
				break
			}
			for _, claims := range []bool{false, true} {
				n := s.copy()
				said, happened := x.step(n, i, f, claims, w)
				if !happened {
					break
				}
				if f != none {
					n.left.faults--
					said += ": " + f.String()
				}
				all = append(all, transition{who + said, n})
				if !w.claimed {
					break // It makes no difference.
				}
			}
		}
		if s.left.crashes > 0 {
			add(who+"is killed and starts again", func(n *state) {
				n.restart(i)
				n.left.crashes--
			})
		}
	}
	for i, f := range s.flying {
		if s.since(f.since) <= x.scenario.flight {
			add("a delayed request arrives: "+describe(f.request), func(n *state) {
				n.flying = slices.Delete(slices.Clone(n.flying), i, i+1)
				_, _ = n.do(f.request)
			})
		}
		add("a delayed request is lost", func(n *state) { n.flying = slices.Delete(slices.Clone(n.flying), i, i+1) })
	}
	all = append(all, x.cluster(s)...)
	if s.left.edits > 0 {
		for _, e := range x.scenario.edits {
			n := s.copy()
			if e.do(n) {
				n.left.edits--
				all = append(all, transition{"a user " + e.name, n})
			}
		}
	}
	if s.now < len(x.scenario.instants)-1 {
		add("", func(n *state) { n.now++ })
		last := &all[len(all)-1]
		last.what = "it is " + last.next.clock().Format("15:04:05.0")
	}
	return all
}

// cluster returns what the kubelet and the garbage collector can do.
func (x *explorer) cluster(s *state) []transition {
	var all []transition
	add := func(what string, do func(n *state)) {
		n := s.copy()
		do(n)
		all = append(all, transition{what, n})
	}
	for _, pod := range s.pods {
		change := func(what string, do func(n *state, pod *corev1.Pod)) {
			add(what+" "+pod.Name, func(n *state) {
				changed := pod.DeepCopy()
				do(n, changed)
				n.setPod(changed)
			})
		}
		ends := func(code int32) func(*state, *corev1.Pod) {
			return func(n *state, pod *corev1.Pod) { endPod(n, pod, code) }
		}
		switch {
		case pod.Status.Phase == corev1.PodPending && pod.DeletionTimestamp == nil:
			change("the kubelet starts", func(n *state, pod *corev1.Pod) {
				pod.Status.Phase = corev1.PodRunning
				n.recordStart(pod)
			})
		case pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp != nil:
			change("the kubelet kills", ends(137))
		case pod.Status.Phase == corev1.PodRunning:
			change("the command succeeds in", ends(0))
			if x.scenario.fails {
				change("the command fails in", ends(1))
			}
		}
		if owner := plan.ControllerOf(pod); owner != nil && (s.at == nil || s.at.UID != owner.UID) && pod.DeletionTimestamp == nil {
			add("the garbage collector deletes "+pod.Name, func(n *state) { n.terminate(pod) })
		}
	}
	return all
}

func endPod(s *state, pod *corev1.Pod, code int32) {
	pod.Status.Phase = corev1.PodSucceeded
	if code != 0 {
		pod.Status.Phase = corev1.PodFailed
	}
	s.ended = append(slices.Clone(s.ended), fmt.Sprint(pod.UID, "=", code))
	slices.Sort(s.ended)
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name:  pod.Spec.Containers[0].Name,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error"}},
	}}
}

// step takes the next step of a controller that sends a request. It reports what it did. A
// sync that has nothing left to do ends, and the next one begins.
func (x *explorer) step(s *state, i int, f fault, claims bool, w *worker) (said string, happened bool) {
	c := &s.controllers[i]
	if c.sync != nil {
		if said, happened = x.stepOfSync(s, i, f, claims, w); happened {
			return said, true
		}
		c.sync = nil
	}
	return x.stepOfSync(s, i, f, claims, w)
}

func (x *explorer) stepOfSync(s *state, i int, f fault, claims bool, w *worker) (said string, happened bool) {
	c := &s.controllers[i]
	var world *plan.World
	stage := 0
	var all []*corev1.Pod
	if c.sync == nil {
		world = s.world(c)
		all = world.Pods
	} else {
		copied := *c.sync.world
		world, stage, all = &copied, c.sync.stage, c.sync.pods
	}
	w.claimed = false
	for ; stage <= len(all); stage++ {
		world.Now, world.Forecast = s.clock(), &plan.Forecast{}
		var decision plan.Decision
		if stage == 0 {
			decision = x.decide(*world)
		} else {
			decision = x.cleanUp(*world, all[stage-1])
		}
		if decision.Action == nil && decision.Status == nil {
			continue
		}
		w.client = client{state: s, fault: f, observe: func(request any) { x.observe(s, world, request) }}
		before := world.At
		w.prepare(s.clock(), claims)
		_, again, err := w.steps.Take(context.Background(), cache.NewObjectName(namespace, atName), world, decision)
		_, creates := decision.Action.(plan.CreatePod)
		w.claimed = creates && err == nil && f == none
		if w.client.at != nil && w.client.at.ResourceVersion != before.ResourceVersion {
			c.written = keptAt(w.client.at)
			c.sentVersion, _ = strconv.Atoi(w.client.at.ResourceVersion)
			c.sentAt = s.now
		}
		world.At = internAt(world.At)
		world.Pods = slices.Clone(world.Pods)
		for j := range world.Pods {
			world.Pods[j] = internPod(world.Pods[j])
		}
		if !again || err != nil {
			stage++
		}
		c.sync = &syncing{world, all, stage}
		if stage > len(all) {
			c.sync = nil
		}
		what := plan.NameOf(decision.Action)
		if decision.Status != nil {
			what = strings.TrimSpace("writes status " + string(decision.Status.Phase) + " " + decision.Status.Reason)
		}
		if err != nil && f == none {
			what += ", which fails: " + err.Error()
		}
		return what, true
	}
	return "", false
}

func (s *state) copy() *state {
	n := *s
	return &n
}

// recordStart records that the command of a Pod may have started. The command of an At that
// was deleted meanwhile may run twice, by the guarantees.
func (s *state) recordStart(pod *corev1.Pod) {
	owner := plan.ControllerOf(pod).UID
	isExcluded := !s.x.strict && (s.at == nil || s.at.UID != owner)
	started := startOf(pod)
	runs := int32(1)
	for _, other := range s.started {
		if !strings.HasPrefix(other.attempt, string(owner)+"/") {
			continue
		}
		runs++
		switch {
		case isExcluded:
		case other.attempt == started.attempt:
			s.violation = fmt.Sprintf("attempt %s runs twice: in Pod %s, then in Pod %s", started.attempt, other.pod, started.pod)
		case !slices.ContainsFunc(s.ended, func(ended string) bool {
			return strings.HasPrefix(ended, other.pod+"=") && ended != other.pod+"=0"
		}):
			s.violation = fmt.Sprintf("Pod %s runs although Pod %s has not failed", started.pod, other.pod)
		}
	}
	if most := 1 + ptr.Deref(s.x.scenario.at().Spec.BackoffLimit, 0); runs > most && !isExcluded && s.violation == "" {
		s.violation = fmt.Sprintf("%d attempts run, want at most %d", runs, most)
	}
	s.started = append(slices.Clone(s.started), started)
	slices.SortFunc(s.started, func(a, b start) int { return strings.Compare(a.pod, b.pod) })
}

func describe(request any) string {
	switch r := request.(type) {
	case createPod:
		return "create Pod " + r.pod.Name
	case patchAt:
		return "patch the At: " + string(r.body)
	default:
		return fmt.Sprintf("%T", request)
	}
}

// interned has one pointer for equal versions of an object, and hashes their content without
// the resource version.
var interned, contents, kept sync.Map

type versionKey struct {
	content uint64
	version string
}

func intern[T any](object *T, version string, content any) *T {
	if _, ok := contents.Load(object); ok {
		return object
	}
	text, err := json.Marshal(content)
	if err != nil {
		panic(err)
	}
	sum := fnv.New64a()
	sum.Write(text)
	canonical, _ := interned.LoadOrStore(versionKey{sum.Sum64(), version}, object)
	contents.LoadOrStore(canonical, sum.Sum64())
	return canonical.(*T)
}

func internAt(at *v1alpha1.At) *v1alpha1.At {
	if at == nil {
		return nil
	}
	content := *at
	content.ResourceVersion = ""
	return intern(at, at.ResourceVersion, content)
}

func internPod(pod *corev1.Pod) *corev1.Pod {
	content := *pod
	content.ResourceVersion = ""
	return intern(pod, pod.ResourceVersion, content)
}

// keptAt is what a cache keeps of a stored At.
func keptAt(at *v1alpha1.At) *v1alpha1.At {
	if known, ok := kept.Load(at); ok {
		return known.(*v1alpha1.At)
	}
	known := internAt(plan.KeepAt(at))
	kept.Store(at, known)
	return known
}

func keptPod(pod *corev1.Pod) *corev1.Pod {
	if known, ok := kept.Load(pod); ok {
		return known.(*corev1.Pod)
	}
	known := internPod(plan.KeepPod(pod))
	kept.Store(pod, known)
	return known
}

func contentOf(object any) uint64 {
	hash, ok := contents.Load(object)
	if !ok {
		panic("an object is not interned")
	}
	return hash.(uint64)
}

// key identifies a state: equal states have equal keys. The two controllers are
// interchangeable, and of resource versions only the order matters.
func (s *state) key() [16]byte {
	ab, ba := s.encode(0, 1), s.encode(1, 0)
	text := ab
	if string(ba) < string(ab) {
		text = ba
	}
	sum := fnv.New128a()
	sum.Write(text)
	return [16]byte(sum.Sum(nil))
}

type encoder struct {
	bytes    []byte
	versions []int // at which positions of bytes there is a version
}

func (e *encoder) int(n int) { e.bytes = binary.AppendVarint(e.bytes, int64(n)) }

func (e *encoder) string(text string) {
	e.int(len(text))
	e.bytes = append(e.bytes, text...)
}

func (e *encoder) ver(text string) {
	version, _ := strconv.Atoi(text)
	e.versions = append(e.versions, len(e.bytes))
	e.bytes = binary.BigEndian.AppendUint32(e.bytes, uint32(version))
}

func (e *encoder) at(at *v1alpha1.At) {
	if at == nil {
		e.int(0)
		return
	}
	e.bytes = binary.BigEndian.AppendUint64(e.bytes, contentOf(at))
	e.ver(at.ResourceVersion)
}

func (e *encoder) pod(pod *corev1.Pod) {
	e.bytes = binary.BigEndian.AppendUint64(e.bytes, contentOf(pod))
	e.ver(pod.ResourceVersion)
}

func (e *encoder) pods(pods []*corev1.Pod) {
	e.int(len(pods))
	for _, pod := range pods {
		e.pod(pod)
	}
}

func (e *encoder) news(news []event) {
	e.int(len(news))
	for _, n := range news {
		if n.at != nil {
			e.at(n.at)
		} else {
			e.pod(n.pod)
		}
		if n.deleted {
			e.int(1)
		}
	}
}

// withoutVersion separates the resource version from a patch.
func withoutVersion(body []byte) (rest, version string) {
	var patch map[string]any
	if err := json.Unmarshal(body, &patch); err != nil {
		panic(err)
	}
	if metadata, ok := patch["metadata"].(map[string]any); ok {
		version, _ = metadata["resourceVersion"].(string)
		delete(metadata, "resourceVersion")
	}
	text, err := json.Marshal(patch)
	if err != nil {
		panic(err)
	}
	return string(text), version
}

func (s *state) encode(first, second int) []byte {
	e := &encoder{bytes: make([]byte, 0, 512)}
	e.int(s.now)
	e.at(s.at)
	e.pods(s.pods)
	for _, u := range s.uids {
		e.string(u.name)
		e.int(u.number)
	}
	for _, i := range []int{first, second} {
		c := &s.controllers[i]
		e.at(c.at)
		e.pods(c.pods)
		e.news(c.atNews)
		e.news(c.podNews)
		written := c.written
		if written != nil && (c.at == nil || c.at.UID != written.UID || !staleness.IsNewer(written, c.at)) {
			written = nil // It makes no difference.
		}
		e.at(written)
		if c.sentVersion >= 0 {
			e.ver(strconv.Itoa(c.sentVersion))
			e.int(c.sentAt)
		}
		e.int(c.freshAt)
		if c.sync == nil {
			e.int(0)
			continue
		}
		w := c.sync.world
		e.int(1 + c.sync.stage)
		e.at(w.At)
		e.pods(w.Pods)
		e.pods(c.sync.pods)
		flags := 0
		if w.AtIsLive {
			flags |= 1
		}
		if w.PodIsLive {
			flags |= 2
		}
		e.int(flags)
		e.int(int(w.AtAsOf.Sub(epoch) / time.Millisecond))
	}
	e.int(len(s.flying))
	for _, f := range s.flying {
		e.int(f.since)
		switch r := f.request.(type) {
		case createPod:
			e.string(fmt.Sprintf("create %s %s %v", r.pod.Name, r.pod.Labels[v1alpha1.LabelAtUID], r.pod.Annotations))
		case deletePod:
			e.string("delete " + r.name + string(*r.preconditions.UID))
			e.ver(*r.preconditions.ResourceVersion)
		case deleteAt:
			e.string("delete " + r.name + string(*r.preconditions.UID))
			e.ver(*r.preconditions.ResourceVersion)
		case patchPod:
			e.string(string(r.body))
		case patchAt:
			body, version := withoutVersion(r.body)
			e.string(body)
			e.ver(version)
		default:
			e.string(fmt.Sprintf("%#v", r))
		}
	}
	e.int(s.left.faults)
	e.int(s.left.edits)
	e.int(s.left.crashes)
	for _, starts := range [][]start{s.made, s.started} {
		e.int(len(starts))
		for _, started := range starts {
			e.string(started.attempt)
			e.string(started.pod)
		}
	}
	for _, ended := range s.ended {
		e.string(ended)
	}
	e.int(len(s.held))
	for _, h := range s.held {
		e.string(h.uid)
		e.int(h.since)
	}
	e.string(s.highest.uid)
	e.int(s.highest.phase)
	e.int(int(s.highest.failed))
	// Replace each version by its rank.
	var versions []uint32
	for _, at := range e.versions {
		versions = append(versions, binary.BigEndian.Uint32(e.bytes[at:]))
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(versions)))
	for i, at := range e.versions {
		rank, _ := slices.BinarySearch(sorted, versions[i])
		binary.BigEndian.PutUint32(e.bytes[at:], uint32(rank))
	}
	return e.bytes
}
