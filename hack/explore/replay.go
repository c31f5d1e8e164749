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
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	kubeinformers "k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronsteps"
	"programming-kubernetes.info/cnat-controller/pkg/freeze"
	cnatfake "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/fake"
	informers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/steps"
	"programming-kubernetes.info/cnat-controller/pkg/steps/nodecache"
	"programming-kubernetes.info/cnat-controller/pkg/steps/workload"
)

// A sync is replayed: the real decisions and steps run from its beginning with the answers
// that the state has, up to the request that has no answer yet. So no step has to be stopped
// in its middle, and a state needs to have nothing of what is on a stack.

// outcome is what a controller does next.
type outcome struct {
	// request is the next request, and step the step that it belongs to; nil if the sync ends.
	request *request
	step    string
	// written and writes are what the controller remembers if the sync ends.
	written []*object
	writes  []write
	counted []counted
	// versions are those of what the controller knows, sorted.
	versions []int32
}

// replayer replays syncs. It is for one goroutine.
type replayer struct {
	clients
	x       *explorer
	clock   *clocktesting.FakePassiveClock
	steps   *steps.Steps
	cron    *cronsteps.Steps
	stores  map[kind]cache.Indexer
	freezes *freeze.Set
	reached string
	answers []answer
	// pending is the first request without an answer.
	pending *request
	writes  []write
	counted map[types.UID]time.Time // what cron.Counted remembers
}

// errPending is the error of a request without an answer. What follows from it is ignored.
var errPending = errors.New("pending")

func newReplayer(x *explorer) *replayer {
	p := &replayer{x: x, clock: clocktesting.NewFakePassiveClock(epoch)}
	p.answerWith(p.send)
	kube, cnat := &p.kube, cnatClient{&p.cnat}
	// These find nothing, and the caches get what the controller knows.
	kubeFactory, cnatFactory := kubeinformers.NewSharedInformerFactory(kubefake.NewClientset(), 0), informers.NewSharedInformerFactory(cnatfake.NewSimpleClientset(), 0)
	kubeInformers, cnatInformers := kubeFactory.Core().V1(), cnatFactory.Cnat().V1alpha1()
	atInformer, podInformer := cnatInformers.Ats(), kubeInformers.Pods()
	known, err := steps.NewCache(atInformer, podInformer)
	utilruntime.Must(err)
	nodeCache, err := nodecache.New(kube, kubeInformers.Nodes(), func(string) {})
	utilruntime.Must(err)
	p.cron, err = cronsteps.New(cnat, cnatInformers.CronAts(), atInformer, &record.FakeRecorder{}, p.clock)
	utilruntime.Must(err)
	p.stores = map[kind]cache.Indexer{cronAts: cnatInformers.CronAts().Informer().GetIndexer(), ats: atInformer.Informer().GetIndexer(), pods: podInformer.Informer().GetIndexer(), nodes: kubeInformers.Nodes().Informer().GetIndexer()}
	p.steps = &steps.Steps{
		Cache:      known,
		KubeClient: kube,
		CnatClient: cnat,
		Nodes:      nodeCache,
		Recorder:   &record.FakeRecorder{},
		Clock:      p.clock,
		Failures:   workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](0, 0),
		Defaults:   plan.Defaults{Image: "busybox"},
		Parallel:   1,
		Freezes:    func() (*freeze.Set, error) { return p.freezes, nil },
		CronAts:    cnatInformers.CronAts(),
	}
	kubeFactory.Start(wait.NeverStop)
	cnatFactory.Start(wait.NeverStop)
	kubeFactory.WaitForCacheSync(wait.NeverStop)
	cnatFactory.WaitForCacheSync(wait.NeverStop)
	return p
}

// replay returns what a controller does at an instant: in the sync that it is in, or in a new
// one of the At with the given name.
func (p *replayer) replay(c *controller, name string, now int8) outcome {
	p.prepare(c, now)
	key := cache.NewObjectName(namespace, name)
	sync := p.syncAt
	if c.own == cronAts {
		sync = p.syncCronAt
	}
	step := sync(key, now)
	if p.pending != nil {
		return outcome{request: p.pending, step: name + ": " + step}
	}
	// Of several at the same time, the first one is remembered.
	o := outcome{writes: slices.CompactFunc(slices.Concat(c.writes, p.writes), func(a, b write) bool { return a.instant == b.instant })}
	for _, cached := range c.cache {
		if cached.kind == c.own {
			if latest := p.latest(cached.meta); latest.GetResourceVersion() != cached.meta.GetResourceVersion() {
				o.written = append(o.written, intern(clone(latest)).with(parseVersion(latest.GetResourceVersion())))
			}
		}
		if since, ok := p.counted[cached.uid()]; ok {
			instant := slices.IndexFunc(p.x.instants, func(seconds float64) bool { return timeAt(seconds).Equal(since) })
			o.counted = append(o.counted, counted{cached.uid(), int8(instant)})
		}
	}
	return o
}

func (p *replayer) latest(cached metav1.Object) metav1.Object {
	if cronAt, ok := cached.(*v1alpha1.CronAt); ok {
		return p.cron.Written.Latest(cronAt)
	}
	return p.steps.Written.Latest(cached.(*v1alpha1.At))
}

// syncAt is syncHandler of the controller of Ats. It returns what the step does that has no
// answer yet.
func (p *replayer) syncAt(key cache.ObjectName, now int8) (what string) {
	ctx := context.Background()
	world, err := p.steps.Observe(ctx, key)
	if err != nil {
		return "observes"
	}
	pods := world.Pods
	step := func(decide func(plan.World) plan.Decision) bool {
		_, _ = p.steps.Step(ctx, key, world, func(w plan.World) plan.Decision {
			p.tick(now)
			p.steps.ObserveNow(&w)
			w.Forecast = &plan.Forecast{}
			d := decide(w)
			if p.pending == nil {
				what = nameOf(d)
			}
			return d
		})
		return p.pending == nil
	}
	if !step(p.x.decide) {
		return what
	}
	for _, pod := range pods {
		if !step(func(w plan.World) plan.Decision { return p.x.cleanUp(w, pod) }) {
			break
		}
	}
	return what
}

// nameOf says what is done for a decision.
func nameOf(d plan.Decision) string {
	switch {
	case d.Needs == plan.LiveAt:
		return "reads the At"
	case d.Needs == plan.LiveAll:
		return "reads all"
	case d.Status != nil:
		return strings.TrimSpace("writes status " + string(d.Status.Phase) + " " + d.Status.Reason)
	default:
		return strings.TrimPrefix(fmt.Sprintf("%T", d.Action), "plan.")
	}
}

// syncCronAt is that of the controller of CronAts.
func (p *replayer) syncCronAt(key cache.ObjectName, now int8) string {
	what := ""
	_, _ = p.cron.Sync(context.Background(), key, func(world *cronplan.World) cronplan.Decision {
		p.tick(now)
		world.Now, world.Freezes = p.clock.Now(), p.freezes
		maps.Copy(p.counted, world.CountedSince)
		if p.x.mutateCronAt != nil {
			p.x.mutateCronAt(p.cron, world)
		}
		decision := cronplan.Decide(*world)
		what = strings.TrimPrefix(fmt.Sprintf("%T", decision.Action), "cronplan.")
		if decision.Status != nil {
			what = strings.TrimSpace("writes status " + decision.Status.Reason)
		}
		return decision
	})
	return what
}

// prepare gives the steps what the controller knows.
func (p *replayer) prepare(c *controller, now int8) {
	p.kube.ClearActions()
	p.cnat.ClearActions()
	var all [kinds][]any
	for _, o := range c.cache {
		all[o.kind] = append(all[o.kind], o.meta)
	}
	for k, store := range p.stores {
		utilruntime.Must(store.Replace(all[k], ""))
	}
	p.freezes = c.obeys()
	p.answers, p.pending, p.writes = nil, nil, nil
	if c.sync != nil {
		p.answers = c.sync.answers
	}
	p.steps.Failures = workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](0, 0)
	p.steps.Targets = workload.NewTargets(p.clock)
	p.steps.Written = staleness.NewWritten(func(ns, name string) (*v1alpha1.At, error) { return p.steps.Ats.Ats(ns).Get(name) }, plan.KeepAt)
	p.cron.Written = staleness.NewWritten(func(ns, name string) (*v1alpha1.CronAt, error) { return p.cron.CronAts.CronAts(ns).Get(name) }, cronplan.KeepCronAt)
	for _, o := range c.written {
		if o.kind == cronAts {
			p.cron.Written.Remember(o.cronAt())
		} else {
			p.steps.Written.Remember(o.at())
		}
	}
	p.cron.Counted.Clear()
	p.counted = map[types.UID]time.Time{}
	for _, known := range c.counted {
		p.counted[known.uid] = p.x.timeOf(known.since)
		p.cron.Counted.Store(known.uid, p.counted[known.uid])
	}
	// The writes are remembered as if none of them were in the cache.
	p.reached = "1"
	p.steps.Freshness = staleness.NewTracker(func() string { return p.reached })
	for _, w := range c.writes {
		sent := p.x.timeOf(w.instant)
		p.steps.Freshness.Answered(p.steps.Freshness.Sending(sent), formatVersion(w.version), sent)
	}
	p.cron.Freshness = p.steps.Freshness
	p.reached = formatVersion(c.reached)
	p.tick(now)
}

// tick sets the clock to when the next request is answered.
func (p *replayer) tick(now int8) {
	if len(p.answers) > 0 {
		now = p.answers[0].instant
	}
	p.clock.SetTime(p.x.timeOf(now))
}

// send returns the answer to a request.
func (p *replayer) send(r *request) ([]*object, error) {
	if p.pending != nil {
		return nil, errPending
	}
	if p.x.send != nil {
		p.x.send(r)
	}
	if len(p.answers) == 0 {
		p.pending = r
		return nil, errPending
	}
	a := p.answers[0]
	p.clock.SetTime(p.x.timeOf(a.instant))
	p.answers = p.answers[1:]
	if r.starts() && a.reason == ok && !a.claims {
		p.steps.Freshness.Claim(p.clock.Now()) // Another worker has claimed it.
	}
	if r.verb == writeStatus && r.kind == p.x.own() && a.reason == ok && a.objects[0].version != r.version {
		p.writes = append(p.writes, write{a.objects[0].version, a.instant})
	}
	err := a.err(r)
	if p.x.receive != nil {
		err = p.x.receive(r, err)
	}
	return a.objects, err
}
