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

// Package preflight finds out, before an At is due, whether the API server would accept
// its Pod: it creates the Pod with dryRun=All. For a CronAt, it does that with the Pod of
// the At that it would create next. Packages plan and cronplan decide what to do with the
// answer.
//
// subject.go says what is checked, ask.go asks the API server, and this file decides when,
// and keeps the findings. rehearsal.go rehearses what is accepted, and remove.go removes the Pods
// of rehearsals.
package preflight

import (
	"context"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/queue"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// workers is the number of objects that are checked at the same time, apart from those of
// other namespaces whose requests are slow. With one worker, the objects of a namespace are
// checked one after the other, so that they share answers.
const workers = 1

// settleTime is the delay of a preflight after an object was created or edited. It gives
// what was created together with it time to take effect, such as a namespace with its
// service account.
const settleTime = time.Second

// A refused object is checked again after refusedPeriod plus a random part of up to
// refusedJitter times refusedPeriod. The objects in a namespace whose Pods are alike share
// an answer for sharedTime. They share a refusal for refusedPeriod only, so that it
// disappears within a minute after its cause.
const (
	refusedPeriod = 20 * time.Second
	refusedJitter = 0.5
	sharedTime    = 10 * time.Minute
)

// A preflight without an answer, because the API server is busy or a webhook is slow, is
// retried maxRetries times, first after minBackoff. The back-off doubles each time.
const (
	minBackoff = 30 * time.Second
	maxBackoff = 10 * time.Minute
	maxRetries = 5
)

// requestTimeout is how long a request may take.
const requestTimeout = 5 * time.Second

// readsPerDryRun is the maximum number of objects to read for each dry-run, of those that
// the cache does not have whole: if there are very many, most of their Pods are like that of
// another.
const readsPerDryRun = 10

// Preflight checks what is not due yet. The objects of all kinds share its limits, and the
// namespaces take turns.
type Preflight struct {
	Clients
	nodes    func(context.Context) ([]*corev1.Node, error)
	defaults plan.Defaults
	clock    clock.WithTicker

	rehearsals *rehearsals // nil: off

	kinds   map[string]*Checks // by prefix
	queue   *queue.Queue       // of items: see Checks.item
	reads   flowcontrol.RateLimiter
	dryRuns flowcontrol.RateLimiter
	// shared has the answers to the dry-runs by the keys of plan.PodKeys.
	shared *utilcache.Expiring

	lock sync.Mutex
	// found has the findings for items that are refused, or that were refused and whose
	// status still says so. All of these are checked again.
	found map[cache.ObjectName]finding
}

// finding is the result for an object.
type finding struct {
	uid        types.UID
	generation int64
	forecast   plan.Forecast
}

// Clients are the clients of preflights, and their limits.
type Clients struct {
	Cnat clientset.Interface
	Kube kubernetes.Interface
	// QPS is the maximum number of dry-runs per second, which must be positive.
	QPS float64
	// Rehearsals is the maximum number of rehearsals at the same time, and NamespaceRehearsals
	// that of one namespace. 0 turns them off.
	Rehearsals, NamespaceRehearsals int
	// Namespace is where to look for the Pods of earlier rehearsals; "" means all namespaces.
	Namespace string
}

// New returns a Preflight that checks nothing until Ats or CronAts is called. nodes lists
// the nodes. defaults are those for plan.NewPod.
func New(clients Clients, nodes func(context.Context) ([]*corev1.Node, error), defaults plan.Defaults, wallClock clock.WithTicker) *Preflight {
	p := &Preflight{
		Clients:  clients,
		nodes:    nodes,
		defaults: defaults,
		clock:    wallClock,
		reads:    flowcontrol.NewTokenBucketRateLimiter(float32(readsPerDryRun*clients.QPS), 1),
		dryRuns:  flowcontrol.NewTokenBucketRateLimiter(float32(clients.QPS), 1),
		shared:   utilcache.NewExpiringWithClock(wallClock),
		kinds:    map[string]*Checks{},
		found:    map[cache.ObjectName]finding{},
	}
	p.queue = p.newQueue("preflights")
	if clients.Rehearsals > 0 && clients.NamespaceRehearsals > 0 {
		p.rehearsals = newRehearsals(p)
	}
	return p
}

// newQueue returns a queue of items.
func (p *Preflight) newQueue(name string) *queue.Queue {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](minBackoff, maxBackoff)
	return queue.New(name, p.isUrgent, limiter, p.clock)
}

// Checks are the preflights of one kind of objects. If they are nil, preflights are turned
// off.
type Checks struct {
	p       *Preflight
	kind    kind
	changed func(cache.ObjectName)
}

// Add enqueues an object for a check after settleTime.
func (c *Checks) Add(name cache.ObjectName) {
	if c != nil {
		c.p.queue.AddAfter(c.item(name), settleTime)
	}
}

// Rehearses reports whether rehearsals are not turned off.
func (c *Checks) Rehearses() bool { return c != nil && c.p.rehearsals != nil }

// Forecast returns the finding for the current version of an object, whose status says the
// given about rehearsals, or nil if nothing is known. Nothing is known for each object whose
// Pod would be accepted. If preflights are turned off, everything is accepted.
func (c *Checks) Forecast(object metav1.Object, status plan.Rehearsed) *plan.Forecast {
	if c == nil {
		return &plan.Forecast{}
	}
	item := c.item(cache.MetaObjectToName(object))
	rehearsal := c.p.rehearsals.resultOf(item, object, status)
	c.p.lock.Lock()
	defer c.p.lock.Unlock()
	found, ok := c.p.found[item]
	switch {
	case ok && found.uid == object.GetUID() && found.generation == object.GetGeneration():
		forecast := found.forecast
		forecast.Rehearsal = rehearsal
		return &forecast
	case rehearsal.Reason != "":
		return &plan.Forecast{Rehearsal: rehearsal}
	default:
		return nil
	}
}

// add adds a kind. changed is called for each object whose Forecast has changed.
func (p *Preflight) add(kind kind, changed func(cache.ObjectName)) *Checks {
	checks := &Checks{p, kind, changed}
	p.kinds[kind.prefix()] = checks
	return checks
}

// item returns the name of an object in the queue, where all kinds are.
func (c *Checks) item(name cache.ObjectName) cache.ObjectName {
	return cache.NewObjectName(name.Namespace, c.kind.prefix()+name.Name)
}

// objectOf is the reverse of item.
func (p *Preflight) objectOf(item cache.ObjectName) (*Checks, cache.ObjectName) {
	i := strings.LastIndex(item.Name, "/") + 1
	return p.kinds[item.Name[:i]], cache.NewObjectName(item.Namespace, item.Name[i:])
}

// Run checks objects until ctx is done. If p is nil, it does nothing.
func (p *Preflight) Run(ctx context.Context) {
	if p == nil {
		return
	}
	defer context.AfterFunc(ctx, p.queue.ShutDown)()
	var wg sync.WaitGroup
	defer wg.Wait()
	if p.rehearsals != nil {
		wg.Go(func() { p.rehearsals.run(ctx) })
	}
	for range p.queue.Start(workers) {
		wg.Go(func() {
			for ctx.Err() == nil && p.processNextWorkItem(ctx) {
			}
		})
	}
}

func (p *Preflight) processNextWorkItem(ctx context.Context) bool {
	item, shutdown := p.queue.Get()
	if shutdown {
		return false
	}
	defer p.queue.Done(item)
	checks, name := p.objectOf(item)
	if checks.lookOrRecover(ctx, name) {
		checks.changed(name)
	}
	return true
}

// urgentTime is how long before it is due an object is checked before others: it has its last
// preflight in that time.
const urgentTime = 15 * time.Minute

func (p *Preflight) isUrgent(item cache.ObjectName) bool {
	checks, name := p.objectOf(item)
	return checks.kind.dueAt(name).Sub(p.clock.Now()) <= urgentTime
}

// lookOrRecover logs a panic.
func (c *Checks) lookOrRecover(ctx context.Context, name cache.ObjectName) (changed bool) {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), c.kind.String(), klog.KRef(name.Parts()))
	err := queue.Recovered(func() error {
		changed = c.look(klog.NewContext(ctx, logger), name)
		return nil
	})
	if err != nil {
		logger.Error(err, "Preflight failed")
		c.p.forget(c.item(name))
	}
	return changed
}

// look checks an object. It reports whether the Forecast has changed.
func (c *Checks) look(ctx context.Context, name cache.ObjectName) bool {
	item := c.item(name)
	s, err := c.kind.cached(name)
	switch {
	case err != nil || s.at == nil:
		c.p.forget(item)
		return false
	case s.waits:
		known := c.p.forget(item)
		c.p.again(item)
		return known
	}
	isWhole := s.isWhole
	if !isWhole {
		if s, err = c.read(ctx, name, s); err != nil {
			v := newVerdict(nil, err)
			c.p.rehearsals.add(item, s, v)
			return c.p.keep(ctx, item, s, v)
		}
		if s.at == nil {
			c.p.forget(item)
			return false
		}
	}
	v := c.p.ask(ctx, s.at)
	c.p.rehearsals.add(item, s, v)
	if isWhole && s.at.Spec.Restart == nil && (v.result() != metrics.PreflightAccepted || s.isRefused) {
		// The status may have to be written, no faster than if the object had been read.
		if err := c.p.reads.Wait(ctx); err != nil {
			return false
		}
	}
	return c.p.keep(ctx, item, s, v)
}

// read reads an object from the API server. After an error, it returns what was cached.
func (c *Checks) read(ctx context.Context, name cache.ObjectName, cached *subject) (*subject, error) {
	if err := c.p.reads.Wait(ctx); err != nil {
		return cached, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	live, err := c.kind.live(ctx, name)
	if err != nil {
		return cached, err
	}
	return live, nil
}

// keep stores the result of the answer for a subject, and enqueues its item again if
// necessary. It reports whether the Forecast has changed.
func (p *Preflight) keep(ctx context.Context, item cache.ObjectName, s *subject, v verdict) bool {
	p.lock.Lock()
	defer p.lock.Unlock()
	before, known := p.found[item]
	// It must be checked until nothing is found and its status has no forecast.
	again := known || s.isRefused
	switch {
	case v.forecast != nil && (v.forecast.Reason != "" || s.isRefused):
		p.found[item] = finding{s.GetUID(), s.GetGeneration(), *v.forecast}
		again = true
	case v.forecast != nil:
		delete(p.found, item)
		again = false
	default:
		klog.FromContext(ctx).V(2).Info("Preflight has no result", "cause", v.cause)
	}
	switch {
	case again:
		p.queue.Forget(item)
		p.again(item)
	case v.forecast == nil && v.retry && p.queue.NumRequeues(item) < maxRetries:
		p.queue.AddRateLimited(item)
	default:
		p.queue.Forget(item)
	}
	changed := p.found[item] != before
	if changed {
		klog.FromContext(ctx).V(2).Info("Preflight has a new result", "reason", p.found[item].forecast.Reason)
	}
	return changed
}

// again enqueues an item that is refused, or has to wait, for another check.
func (p *Preflight) again(item cache.ObjectName) {
	p.queue.AddAfter(item, wait.Jitter(refusedPeriod, refusedJitter))
}

// forget removes everything that is known about an item. It reports whether anything was
// found.
func (p *Preflight) forget(item cache.ObjectName) (known bool) {
	p.queue.Forget(item)
	p.lock.Lock()
	defer p.lock.Unlock()
	_, known = p.found[item]
	delete(p.found, item)
	return known
}
