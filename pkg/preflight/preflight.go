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
	"sync/atomic"
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

// urgentTime is how long before it is due an object is checked before others: it has its last
// preflight in that time.
const urgentTime = 15 * time.Minute

// A refused object is checked again after refusedPeriod plus a random part of up to
// refusedJitter times refusedPeriod. The objects in a namespace whose Pods are alike share
// an answer for sharedTime. They share a refusal for refusedPeriod only, so that it
// disappears within a minute after its cause.
const (
	refusedPeriod = 20 * time.Second
	refusedJitter = 0.5
	sharedTime    = 10 * time.Minute
)

// A preflight without an answer, because the API server is busy, a webhook is slow or the nodes are
// not cached yet, is retried maxRetries times, which takes a quarter of an hour. So is a rehearsal
// without a result, as long as it is needed. The back-off doubles each time.
const (
	minBackoff = time.Second
	maxBackoff = 10 * time.Minute
	maxRetries = 10
)

// requestTimeout is how long a request may take.
const requestTimeout = 5 * time.Second

// readsPerDryRun is the maximum number of objects to read, or to report, for each dry-run: if there
// are very many, most of their Pods are like that of another.
const readsPerDryRun = 10

// Preflight checks what is not due yet. The objects of all kinds share its limits, and the
// namespaces take turns.
type Preflight struct {
	Clients
	nodes      func(context.Context) ([]*corev1.Node, error)
	defaults   plan.Defaults
	clock      clock.WithTicker
	rehearsals *rehearsals

	kinds   map[string]*Checks
	queue   *queue.Queue // of items: see Checks.item
	reads   flowcontrol.RateLimiter
	dryRuns flowcontrol.RateLimiter
	// shared has the answers to the dry-runs by the keys of plan.PodKeys.
	shared *utilcache.Expiring
	// found has the Forecasts of items that are refused, or that were refused and whose status still
	// says so. All of these are checked again. Each is reported once in sharedTime at most.
	found *utilcache.Expiring
}

// Clients are the clients of preflights, and their limits.
type Clients struct {
	Cnat clientset.Interface
	Kube kubernetes.Interface
	// QPS is the maximum number of dry-runs per second, which must be positive.
	QPS float64
	// Rehearsals is the maximum number of rehearsals at the same time: 0 turns them off.
	// NamespaceRehearsals is that of one namespace, and at least 1.
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
		found:    utilcache.NewExpiringWithClock(wallClock),
		kinds:    map[string]*Checks{},
	}
	p.queue = p.newQueue("preflights")
	p.rehearsals = newRehearsals(p)
	return p
}

// newQueue returns a queue of items. What is due soon goes first.
func (p *Preflight) newQueue(name string) *queue.Queue {
	dueSoon := func(item cache.ObjectName) time.Time {
		checks, name := p.objectOf(item)
		if s := checks.cached(name); s.at != nil && s.due().Sub(p.clock.Now()) <= urgentTime {
			return s.due()
		}
		return time.Time{}
	}
	return queue.New(name, dueSoon, workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](minBackoff, maxBackoff), p.clock)
}

// Checks are the preflights of one kind of objects. If they are nil, preflights are turned
// off.
type Checks struct {
	p       *Preflight
	kind    string // in an owner reference
	changed func(cache.ObjectName)
	// cached returns an object from the cache, which has nothing to come if it is not there. live reads
	// it from the API server.
	cached func(cache.ObjectName) *subject
	live   func(context.Context, cache.ObjectName) (*subject, error)
}

// add adds a kind. If p is nil, it returns nil.
func (p *Preflight) add(c *Checks) *Checks {
	if p == nil {
		return nil
	}
	c.p, c.changed = p, func(cache.ObjectName) {}
	p.kinds[c.kind] = c
	return c
}

// Notify makes changed be called for each object with something new to report. Call it before Run.
func (c *Checks) Notify(changed func(cache.ObjectName)) {
	if c != nil {
		c.changed = changed
	}
}

// Add enqueues an object for a check after settleTime.
func (c *Checks) Add(name cache.ObjectName) {
	if c != nil {
		c.p.queue.AddAfter(c.item(name), settleTime)
	}
}

// Rehearses reports whether rehearsals are not turned off.
func (c *Checks) Rehearses() bool { return c != nil && c.p.Rehearsals > 0 }

// Forecast returns the finding for the current version of an object, or nil if nothing is known.
// Nothing is known for each object whose Pod would be accepted. status is the part of the status that
// is about rehearsals. A finding that has been in the status is not reported again: if another
// controller finds something else, neither writes over the other for ever. If preflights are turned
// off, everything is accepted.
func (c *Checks) Forecast(object metav1.Object, status plan.Rehearsed) *plan.Forecast {
	if c == nil {
		return &plan.Forecast{}
	}
	item := c.item(cache.MetaObjectToName(object))
	found, rehearsal := foundIn[plan.Forecast](c.p.found, item, object), c.p.rehearsals.news(item, object, status)
	forecast := plan.ForecastIn(*status.Conditions)
	switch {
	case found == nil && rehearsal.Reason == "":
		return nil
	case found != nil && !found.isIn(forecast):
		forecast = found.result
	}
	forecast.Rehearsal = rehearsal
	return &forecast
}

// finding is what was found for a version of an object.
type finding[T comparable] struct {
	uid        types.UID
	generation int64
	result     T
	isReported atomic.Bool // by the status
}

// isIn notes whether the status, which reports the given, has had the result.
func (f *finding[T]) isIn(reported T) bool {
	if reported == f.result {
		f.isReported.Store(true)
	}
	return f.isReported.Load()
}

func newFinding[T comparable](object metav1.Object, result T) *finding[T] {
	return &finding[T]{uid: object.GetUID(), generation: object.GetGeneration(), result: result}
}

// foundIn returns what was found for the current version of an object, or nil.
func foundIn[T comparable](findings *utilcache.Expiring, item cache.ObjectName, object metav1.Object) *finding[T] {
	value, _ := findings.Get(item)
	found, ok := value.(*finding[T])
	if !ok || found.uid != object.GetUID() || found.generation != object.GetGeneration() {
		return nil
	}
	return found
}

// item returns the name of an object in the queue, where all kinds are. No name has a slash.
func (c *Checks) item(name cache.ObjectName) cache.ObjectName {
	return cache.NewObjectName(name.Namespace, c.kind+"/"+name.Name)
}

// objectOf is the reverse of item.
func (p *Preflight) objectOf(item cache.ObjectName) (*Checks, cache.ObjectName) {
	kind, name, _ := strings.Cut(item.Name, "/")
	return p.kinds[kind], cache.NewObjectName(item.Namespace, name)
}

// Run checks objects until ctx is done. If p is nil, it does nothing.
func (p *Preflight) Run(ctx context.Context) {
	if p == nil {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { p.rehearsals.removeLeft(ctx) })
	p.work(ctx, &wg, p.rehearsals.queue, p.rehearsals.queue.StartLimited(p.Rehearsals, p.NamespaceRehearsals), p.rehearsals.rehearse)
	p.work(ctx, &wg, p.queue, p.queue.Start(workers), func(ctx context.Context, c *Checks, name cache.ObjectName) { c.check(ctx, name) })
	<-ctx.Done()
	p.queue.ShutDown()
	p.rehearsals.queue.ShutDown()
}

// work starts goroutines that call do with each object of a queue.
func (p *Preflight) work(ctx context.Context, wg *sync.WaitGroup, items *queue.Queue, goroutines int, do func(context.Context, *Checks, cache.ObjectName)) {
	for range goroutines {
		wg.Go(func() {
			for item, shutdown := items.Get(); !shutdown && ctx.Err() == nil; item, shutdown = items.Get() {
				checks, name := p.objectOf(item)
				logger := klog.LoggerWithValues(klog.FromContext(ctx), strings.ToLower(checks.kind[:1])+checks.kind[1:], klog.KRef(name.Parts()))
				err := queue.Recovered(func() error {
					do(klog.NewContext(ctx, logger), checks, name)
					return nil
				})
				if err != nil {
					logger.Error(err, "Preflight failed")
				}
				items.Done(item)
			}
		})
	}
}

// check checks an object.
func (c *Checks) check(ctx context.Context, name cache.ObjectName) {
	item, s := c.item(name), c.cached(name)
	if s.at != nil && !s.isWhole {
		if live, err := c.read(ctx, name); err == nil {
			s = live
		}
	}
	if s.at == nil {
		c.p.queue.Forget(item)
		c.p.found.Delete(item)
		if s.waits {
			c.p.again(item)
		}
		return
	}
	v := verdict{retry: true}
	if s.isWhole {
		v = c.p.ask(ctx, s.at)
	}
	c.p.rehearsals.add(item, s, v)
	if found := c.keep(item, s, v); found != nil && c.p.reads.Wait(ctx) == nil {
		klog.FromContext(ctx).V(2).Info("Preflight has a new result", "reason", found.result.Reason)
		c.changed(name)
	}
}

// read reads an object from the API server.
func (c *Checks) read(ctx context.Context, name cache.ObjectName) (*subject, error) {
	if err := c.p.reads.Wait(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s, err := c.live(ctx, name)
	s.isWhole = err == nil
	return s, err
}

// keep stores the result for a subject, and enqueues its item again if necessary. It returns a finding
// that is new, and not in the status.
func (c *Checks) keep(item cache.ObjectName, s *subject, v verdict) (news *finding[plan.Forecast]) {
	p, reported := c.p, plan.ForecastIn(*s.rehearsed.Conditions)
	found := foundIn[plan.Forecast](p.found, item, s)
	switch {
	case v.forecast == nil:
	case *v.forecast == plan.Forecast{} && reported == plan.Forecast{}:
		p.found.Delete(item)
		found = nil
	case found == nil || found.result != *v.forecast:
		found = newFinding(s, *v.forecast)
		p.found.Set(item, found, sharedTime)
		news = found
	}
	if found != nil && found.isIn(reported) {
		news = nil
	}
	switch {
	case found != nil || reported != plan.Forecast{}:
		p.queue.Forget(item)
		p.again(item)
	case v.forecast == nil && v.retry && p.queue.NumRequeues(item) < maxRetries:
		p.queue.AddRateLimited(item)
	default:
		p.queue.Forget(item)
	}
	return news
}

// again enqueues an item that is refused, or has to wait, for another check.
func (p *Preflight) again(item cache.ObjectName) {
	p.queue.AddAfter(item, wait.Jitter(refusedPeriod, refusedJitter))
}
