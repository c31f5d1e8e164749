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
// its Pod: it creates the Pod with dryRun=All. Package plan decides what to do with the
// answer.
package preflight

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/queue"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/steps/workload"
)

// queueName is the name of the queue, for its metrics.
const queueName = "preflights"

// workers is the number of Ats that are checked at the same time, apart from those of other
// namespaces whose requests are slow. With one worker, the Ats of a namespace are checked
// one after the other, so that they share answers.
const workers = 1

// settleTime is the delay of a preflight after an At was created or edited. It gives
// objects that were created together with the At time to take effect, such as a namespace
// with its service account.
const settleTime = time.Second

// A refused At is checked again after refusedPeriod plus a random part of up to
// refusedJitter times refusedPeriod. The Ats in a namespace with the same Pod share an
// answer for sharedTime. They share a refusal for refusedPeriod only, so that it
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

// readsPerDryRun is the maximum number of Ats to read for each dry-run, of those that the
// cache does not have whole: if there are very many Ats, most of them have the same Pod as
// another.
const readsPerDryRun = 10

// Preflight checks Ats that are not due yet. The methods of a nil Preflight, which means
// that preflights are turned off, do nothing.
type Preflight struct {
	cnatClient clientset.Interface
	kubeClient kubernetes.Interface
	ats        listers.AtLister
	nodes      func(context.Context) ([]*corev1.Node, error)
	defaults   plan.Defaults
	clock      clock.WithTicker

	queue   *queue.Workqueue
	reads   flowcontrol.RateLimiter
	dryRuns flowcontrol.RateLimiter
	// shared has the answers to the dry-runs by plan.PodKey.
	shared *utilcache.Expiring

	lock sync.Mutex
	// found has the findings for Ats that are refused, or that were refused and whose status
	// still says so. All of these are checked again.
	found map[cache.ObjectName]finding
}

// finding is the result for an At.
type finding struct {
	uid        types.UID
	generation int64
	forecast   plan.Forecast
}

// verdict is the answer to the dry-run creation of a Pod.
type verdict struct {
	pod string // its name
	// forecast is nil if the answer does not allow a prediction; cause says why, in one line.
	forecast *plan.Forecast
	cause    string
	// retry reports whether another try may have a meaningful answer.
	retry bool
}

// newVerdict returns the verdict that ended with the given error. It does not keep the error,
// which can have any size.
func newVerdict(forecast *plan.Forecast, err error) verdict {
	v := verdict{forecast: forecast, retry: !apierrors.IsBadRequest(err)}
	if forecast == nil {
		v.cause = answer.OneLine(err.Error())
	}
	return v
}

// result returns the result of a dry-run for the metrics.
func (v verdict) result() string {
	switch {
	case v.forecast == nil:
		return metrics.PreflightUnknown
	case v.forecast.Reason == "":
		return metrics.PreflightAccepted
	default:
		return metrics.PreflightRefused
	}
}

// of returns the answer for the dry-run of the same Pod with another name.
func (v verdict) of(pod string) verdict {
	if v.forecast != nil {
		v.forecast = &plan.Forecast{
			Reason:  v.forecast.Reason,
			Message: strings.ReplaceAll(v.forecast.Message, strconv.Quote(v.pod), strconv.Quote(pod)),
		}
	}
	return v
}

// Clients are the clients of preflights. Runs must not wait for their rate limit.
type Clients struct {
	Cnat clientset.Interface
	Kube kubernetes.Interface
	// QPS is the maximum number of dry-runs per second, which must be positive.
	QPS float64
}

// New returns a Preflight. nodes lists the nodes. defaults are those for plan.NewPod.
func New(clients Clients, ats listers.AtLister, nodes func(context.Context) ([]*corev1.Node, error), defaults plan.Defaults, wallClock clock.WithTicker) *Preflight {
	p := &Preflight{
		cnatClient: clients.Cnat,
		kubeClient: clients.Kube,
		ats:        ats,
		nodes:      nodes,
		defaults:   defaults,
		clock:      wallClock,
		reads:      flowcontrol.NewTokenBucketRateLimiter(float32(readsPerDryRun*clients.QPS), 1),
		dryRuns:    flowcontrol.NewTokenBucketRateLimiter(float32(clients.QPS), 1),
		shared:     utilcache.NewExpiringWithClock(wallClock),
		found:      map[cache.ObjectName]finding{},
	}
	order := queue.NewFairOf(func() workqueue.Queue[cache.ObjectName] { return queue.NewDue(p.due) })
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](minBackoff, maxBackoff)
	p.queue = queue.NewRateLimiting(queueName, order, limiter, wallClock)
	return p
}

// Add enqueues an At for a check after settleTime.
func (p *Preflight) Add(name cache.ObjectName) {
	if p != nil {
		p.queue.AddAfter(name, settleTime)
	}
}

// Forecast returns the finding for the current version of an At, or nil if nothing is
// known. Nothing is known for each At whose Pod would be accepted. If p is turned off,
// all Ats are accepted.
func (p *Preflight) Forecast(at *v1alpha1.At) *plan.Forecast {
	switch {
	case p == nil:
		return &plan.Forecast{}
	case at == nil:
		return nil
	}
	p.lock.Lock()
	defer p.lock.Unlock()
	found, ok := p.found[cache.MetaObjectToName(at)]
	if !ok || found.uid != at.UID || found.generation != at.Generation {
		return nil
	}
	return &found.forecast
}

// Run checks Ats until ctx is done, and calls changed for each At whose Forecast has
// changed.
func (p *Preflight) Run(ctx context.Context, changed func(cache.ObjectName)) {
	if p == nil {
		return
	}
	defer context.AfterFunc(ctx, p.queue.ShutDown)()
	var wg sync.WaitGroup
	defer wg.Wait()
	for range p.queue.Start(workers) {
		wg.Go(func() {
			for ctx.Err() == nil && p.processNextWorkItem(ctx, changed) {
			}
		})
	}
}

func (p *Preflight) processNextWorkItem(ctx context.Context, changed func(cache.ObjectName)) bool {
	name, shutdown := p.queue.Get()
	if shutdown {
		return false
	}
	defer p.queue.Done(name)
	if p.lookOrRecover(p.queue.Context(ctx, name), name) {
		changed(name)
	}
	return true
}

// due returns when an At is due, or the zero time if the At does not exist.
func (p *Preflight) due(name cache.ObjectName) time.Time {
	at, err := p.ats.Ats(name.Namespace).Get(name.Name)
	if err != nil {
		return time.Time{}
	}
	instant, _ := plan.Instant(&at.Spec) // An error comes with the zero time.
	return instant
}

// lookOrRecover logs a panic.
func (p *Preflight) lookOrRecover(ctx context.Context, name cache.ObjectName) (changed bool) {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "at", klog.KRef(name.Parts()))
	err := queue.Recovered(func() error {
		changed = p.look(klog.NewContext(ctx, logger), name)
		return nil
	})
	if err != nil {
		logger.Error(err, "Preflight failed")
		p.forget(name)
	}
	return changed
}

// look checks an At. It reports whether the Forecast has changed.
func (p *Preflight) look(ctx context.Context, name cache.ObjectName) bool {
	cached, err := p.ats.Ats(name.Namespace).Get(name.Name)
	if err != nil || !plan.WantsForecast(cached, p.clock.Now()) {
		p.forget(name)
		return false
	}
	at := cached
	if !plan.IsWhole(cached) {
		at, err = p.read(ctx, name)
		switch {
		case err != nil:
			return p.keep(ctx, cached, newVerdict(nil, err))
		case !plan.WantsForecast(at, p.clock.Now()):
			p.forget(name)
			return false
		}
	}
	if at.Spec.Restart != nil {
		return p.keep(ctx, at, p.askRestart(ctx, at))
	}
	v := p.ask(ctx, at)
	if plan.NeedsNodes(at) && v.forecast != nil && v.forecast.Reason == "" {
		nodes, err := p.nodes(ctx)
		v = newVerdict(plan.ForeseeNodes(at, nodes, err), err)
	}
	if at == cached && (v.result() != metrics.PreflightAccepted || plan.HasForecast(at)) {
		// The status may have to be written, no faster than if the At had been read.
		if err := p.reads.Wait(ctx); err != nil {
			return false
		}
	}
	return p.keep(ctx, at, v)
}

// read reads an At from the API server.
func (p *Preflight) read(ctx context.Context, name cache.ObjectName) (*v1alpha1.At, error) {
	if err := p.reads.Wait(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return p.cnatClient.CnatV1alpha1().Ats(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
}

// ask returns the API server's answer to the creation of an At's Pod, which may be the
// answer for the same Pod of another At.
func (p *Preflight) ask(ctx context.Context, at *v1alpha1.At) verdict {
	pod := plan.NewPod(at, p.defaults)
	key, err := plan.PodKey(pod)
	if err != nil {
		return verdict{cause: answer.OneLine(err.Error())}
	}
	if shared, ok := p.shared.Get(key); ok {
		metrics.Preflights.WithLabelValues(metrics.PreflightShared).Inc()
		return shared.(verdict).of(pod.Name)
	}
	if err := p.dryRuns.Wait(ctx); err != nil {
		return verdict{cause: answer.OneLine(err.Error())}
	}
	dryRunCtx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err = p.kubeClient.CoreV1().Pods(at.Namespace).Create(dryRunCtx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		err = fmt.Errorf("create Pod: %w", err)
	}
	// A webhook that does not support dry-run causes a BadRequest error, and a retry will
	// not change that.
	v := newVerdict(plan.Foresee(v1alpha1.ReasonPodRefused, err), err)
	v.pod = pod.Name
	metrics.Preflights.WithLabelValues(v.result()).Inc()
	validFor := refusedPeriod
	if v.result() == metrics.PreflightAccepted || v.forecast == nil && !v.retry {
		validFor = sharedTime
	}
	p.shared.Set(key, v, validFor)
	return v
}

// askRestart reads the workload of spec.restart and restarts it with dryRun.
func (p *Preflight) askRestart(ctx context.Context, at *v1alpha1.At) verdict {
	if err := p.dryRuns.Wait(ctx); err != nil {
		return verdict{cause: answer.OneLine(err.Error())}
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	apps := p.kubeClient.AppsV1()
	target, err := workload.Get(ctx, apps, at.Namespace, at.Spec.Restart)
	forecast := plan.ForeseeRestart(at, target, err)
	if forecast != nil && forecast.Reason == "" {
		if _, err = workload.Restart(ctx, apps, target, p.clock.Now(), metav1.DryRunAll); err != nil {
			err = fmt.Errorf("restart %s: %w", target, err)
		}
		forecast = plan.Foresee(v1alpha1.ReasonRestartRefused, err)
	}
	v := newVerdict(forecast, err)
	metrics.Preflights.WithLabelValues(v.result()).Inc()
	return v
}

// keep stores the result of the answer for an At, and enqueues the At again if necessary.
// It reports whether the Forecast has changed.
func (p *Preflight) keep(ctx context.Context, at *v1alpha1.At, v verdict) bool {
	p.lock.Lock()
	defer p.lock.Unlock()
	name := cache.MetaObjectToName(at)
	before, known := p.found[name]
	// An At must be checked until nothing is found and its status has no forecast.
	again := known || plan.HasForecast(at)
	switch {
	case v.forecast != nil && (v.forecast.Reason != "" || plan.HasForecast(at)):
		p.found[name] = finding{at.UID, at.Generation, *v.forecast}
		again = true
	case v.forecast != nil:
		delete(p.found, name)
		again = false
	default:
		klog.FromContext(ctx).V(2).Info("Preflight has no result", "cause", v.cause)
	}
	switch {
	case again:
		p.queue.Forget(name)
		p.queue.AddAfter(name, wait.Jitter(refusedPeriod, refusedJitter))
	case v.forecast == nil && v.retry && p.queue.NumRequeues(name) < maxRetries:
		p.queue.AddRateLimited(name)
	default:
		p.queue.Forget(name)
	}
	changed := p.found[name] != before
	if changed {
		klog.FromContext(ctx).V(2).Info("Preflight has a new result", "reason", p.found[name].forecast.Reason)
	}
	return changed
}

// forget removes everything that is known about an At.
func (p *Preflight) forget(name cache.ObjectName) {
	p.queue.Forget(name)
	p.lock.Lock()
	defer p.lock.Unlock()
	delete(p.found, name)
}
