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

// Package preflight finds out, before an At is due, whether the API server would accept its
// Pod: it creates the Pod with dryRun=All. It only asks. What to do with the answer is
// decided in package plan.
package preflight

import (
	"context"
	"fmt"
	"runtime/debug"
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
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/rollout"
)

// queueName is the name of the queue, for its metrics.
const queueName = "preflights"

// settleTime is how long after an At was created or edited its preflight is. Within it, what
// was created together with the At comes into effect, such as a namespace with its service
// account.
const settleTime = time.Second

// A refused At is looked at again after refusedPeriod, up to refusedJitter times longer. An
// answer is shared by the Ats of a namespace with the same Pod for sharedTime or, so that a
// refusal is gone within a minute of its cause, for refusedPeriod.
const (
	refusedPeriod = 20 * time.Second
	refusedJitter = 0.5
	sharedTime    = 10 * time.Minute
)

// A preflight without an answer, because the API server is busy or a webhook is slow, is
// tried again maxRetries times: after minBackoff, then after twice as long each time.
const (
	minBackoff = 30 * time.Second
	maxBackoff = 10 * time.Minute
	maxRetries = 5
)

// requestTimeout is how long a request may take.
const requestTimeout = 5 * time.Second

// readsPerDryRun is how many Ats are read for each dry-run at most: most of very many have
// the Pod of another.
const readsPerDryRun = 10

// Preflight looks at Ats that are not due yet. The methods of a nil Preflight, which is
// one that is turned off, do nothing.
type Preflight struct {
	cnatClient clientset.Interface
	kubeClient kubernetes.Interface
	ats        listers.AtLister
	nodes      func(context.Context) ([]*corev1.Node, error)
	defaults   plan.Defaults
	clock      clock.WithTicker

	queue   workqueue.TypedRateLimitingInterface[cache.ObjectName]
	reads   flowcontrol.RateLimiter
	dryRuns flowcontrol.RateLimiter
	// shared has the answers to the dry-runs, by plan.PodKey.
	shared *utilcache.Expiring

	lock sync.Mutex
	// found has what was found for those Ats that are refused, or that were refused and
	// whose status still says so. All of them are looked at again.
	found map[cache.ObjectName]finding
}

// finding is what was found for an At.
type finding struct {
	uid        types.UID
	generation int64
	forecast   plan.Forecast
}

// answer is that to the dry-run of the creation of a Pod.
type answer struct {
	pod string // its name
	// forecast is nil if the answer says nothing; err is the reason.
	forecast *plan.Forecast
	err      error
	// retry reports whether another try may have an answer that says something.
	retry bool
}

// result returns the result of a dry-run for the metrics.
func (a answer) result() string {
	switch {
	case a.forecast == nil:
		return metrics.PreflightUnknown
	case a.forecast.Reason == "":
		return metrics.PreflightAccepted
	default:
		return metrics.PreflightRefused
	}
}

// of returns the answer as that to the dry-run of the same Pod by another name.
func (a answer) of(pod string) answer {
	if a.forecast != nil {
		a.forecast = &plan.Forecast{
			Reason:  a.forecast.Reason,
			Message: strings.ReplaceAll(a.forecast.Message, strconv.Quote(a.pod), strconv.Quote(pod)),
		}
	}
	return a
}

// New returns a Preflight that makes at most qps dry-runs a second, more than 0. nodes lists
// the nodes. defaults are those for plan.NewPod.
func New(cnatClient clientset.Interface, kubeClient kubernetes.Interface, ats listers.AtLister, nodes func(context.Context) ([]*corev1.Node, error), defaults plan.Defaults, qps float64, wallClock clock.WithTicker) *Preflight {
	p := &Preflight{
		cnatClient: cnatClient,
		kubeClient: kubeClient,
		ats:        ats,
		nodes:      nodes,
		defaults:   defaults,
		clock:      wallClock,
		reads:      flowcontrol.NewTokenBucketRateLimiter(float32(readsPerDryRun*qps), 1),
		dryRuns:    flowcontrol.NewTokenBucketRateLimiter(float32(qps), 1),
		shared:     utilcache.NewExpiringWithClock(wallClock),
		found:      map[cache.ObjectName]finding{},
	}
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](minBackoff, maxBackoff)
	p.queue = workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[cache.ObjectName]{
		DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[cache.ObjectName]{Name: queueName, Clock: wallClock,
			Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[cache.ObjectName]{Name: queueName, Clock: wallClock, Queue: newDueQueue(p.due)}),
		}),
	})
	return p
}

// Add has an At looked at in a moment.
func (p *Preflight) Add(name cache.ObjectName) {
	if p != nil {
		p.queue.AddAfter(name, settleTime)
	}
}

// Forecast returns what was found for an At as it is; nil if nothing is known, which is so
// for each At whose Pod was found to be accepted. If p is turned off, all are accepted.
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

// Run looks at Ats until ctx is done, and calls changed for each At whose Forecast has
// changed.
func (p *Preflight) Run(ctx context.Context, changed func(cache.ObjectName)) {
	if p == nil {
		return
	}
	defer context.AfterFunc(ctx, p.queue.ShutDown)()
	for ctx.Err() == nil { // A queue that is shut down gives out what it has.
		name, shutdown := p.queue.Get()
		if shutdown {
			return
		}
		if p.lookOrRecover(ctx, name) {
			changed(name)
		}
		p.queue.Done(name)
	}
}

// due returns when an At is due; the zero time if there is no such At.
func (p *Preflight) due(name cache.ObjectName) time.Time {
	at, err := p.ats.Ats(name.Namespace).Get(name.Name)
	if err != nil {
		return time.Time{}
	}
	instant, _ := plan.Instant(&at.Spec) // An error comes with the zero time.
	return instant
}

// lookOrRecover logs a panic: one At must not end the work on all others.
func (p *Preflight) lookOrRecover(ctx context.Context, name cache.ObjectName) (changed bool) {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "at", klog.KRef(name.Parts()))
	defer func() {
		if cause := recover(); cause != nil {
			logger.Error(fmt.Errorf("panic: %v\n%s", cause, debug.Stack()), "Preflight failed")
			p.forget(name)
		}
	}()
	return p.look(klog.NewContext(ctx, logger), name)
}

// look looks at an At. It returns whether its Forecast has changed.
func (p *Preflight) look(ctx context.Context, name cache.ObjectName) bool {
	cached, err := p.ats.Ats(name.Namespace).Get(name.Name)
	if err != nil || !plan.WantsForecast(cached, p.clock.Now()) {
		p.forget(name)
		return false
	}
	// The cache has neither command nor template.
	live, err := p.read(ctx, name)
	switch {
	case err == nil && plan.WantsForecast(live, p.clock.Now()) && live.Spec.Restart != nil:
		return p.keep(ctx, live, p.askRestart(ctx, live))
	case err == nil && plan.WantsForecast(live, p.clock.Now()):
		a := p.ask(ctx, live)
		if plan.NeedsNodes(live) && a.forecast != nil && a.forecast.Reason == "" {
			nodes, err := p.nodes(ctx)
			a = answer{forecast: plan.ForeseeNodes(live, nodes, err), err: err, retry: true}
		}
		return p.keep(ctx, live, a)
	case err == nil || apierrors.IsNotFound(err):
		p.forget(name)
		return false
	default:
		return p.keep(ctx, cached, answer{err: err, retry: true})
	}
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
// answer to the creation of the same Pod of another At.
func (p *Preflight) ask(ctx context.Context, at *v1alpha1.At) answer {
	pod := plan.NewPod(at, p.defaults)
	key, err := plan.PodKey(pod)
	if err != nil {
		return answer{err: err}
	}
	if shared, ok := p.shared.Get(key); ok {
		metrics.Preflights.WithLabelValues(metrics.PreflightShared).Inc()
		return shared.(answer).of(pod.Name)
	}
	if err := p.dryRuns.Wait(ctx); err != nil {
		return answer{err: err}
	}
	dryRunCtx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err = p.kubeClient.CoreV1().Pods(at.Namespace).Create(dryRunCtx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		err = fmt.Errorf("create Pod: %w", err)
	}
	// A webhook that does not support dry-run is a bad request, and will be one again.
	a := answer{pod: pod.Name, forecast: plan.Foresee(v1alpha1.ReasonPodRefused, err), err: err, retry: !apierrors.IsBadRequest(err)}
	metrics.Preflights.WithLabelValues(a.result()).Inc()
	validFor := refusedPeriod
	if a.result() == metrics.PreflightAccepted || a.forecast == nil && !a.retry {
		validFor = sharedTime
	}
	p.shared.Set(key, a, validFor)
	return a
}

// askRestart reads the workload of spec.restart, and restarts it with dryRun.
func (p *Preflight) askRestart(ctx context.Context, at *v1alpha1.At) answer {
	if err := p.dryRuns.Wait(ctx); err != nil {
		return answer{err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	apps := p.kubeClient.AppsV1()
	target, err := rollout.Get(ctx, apps, at.Namespace, at.Spec.Restart)
	forecast := plan.ForeseeRestart(at, target, err)
	if forecast != nil && forecast.Reason == "" {
		if _, err = rollout.Restart(ctx, apps, target, p.clock.Now(), metav1.DryRunAll); err != nil {
			err = fmt.Errorf("restart %s: %w", target, err)
		}
		forecast = plan.Foresee(v1alpha1.ReasonRestartRefused, err)
	}
	a := answer{forecast: forecast, err: err, retry: !apierrors.IsBadRequest(err)}
	metrics.Preflights.WithLabelValues(a.result()).Inc()
	return a
}

// keep keeps what the answer means for an At, and has it looked at again if there is need.
// It returns whether its Forecast has changed.
func (p *Preflight) keep(ctx context.Context, at *v1alpha1.At, a answer) bool {
	p.lock.Lock()
	defer p.lock.Unlock()
	name := cache.MetaObjectToName(at)
	before, known := p.found[name]
	// What is found, or was written, must be looked at until it is gone.
	again := known || plan.HasForecast(at)
	switch {
	case a.forecast != nil && (a.forecast.Reason != "" || plan.HasForecast(at)):
		p.found[name] = finding{at.UID, at.Generation, *a.forecast}
		again = true
	case a.forecast != nil:
		delete(p.found, name)
		again = false
	default:
		klog.FromContext(ctx).V(2).Info("Preflight has no answer", "cause", plan.OneLine(a.err.Error()))
	}
	switch {
	case again:
		p.queue.Forget(name)
		p.queue.AddAfter(name, wait.Jitter(refusedPeriod, refusedJitter))
	case a.forecast == nil && a.retry && p.queue.NumRequeues(name) < maxRetries:
		p.queue.AddRateLimited(name)
	default:
		p.queue.Forget(name)
	}
	changed := p.found[name] != before
	if changed {
		klog.FromContext(ctx).V(2).Info("Preflight has another answer", "reason", p.found[name].forecast.Reason)
	}
	return changed
}

// forget drops what is known of an At.
func (p *Preflight) forget(name cache.ObjectName) {
	p.queue.Forget(name)
	p.lock.Lock()
	defer p.lock.Unlock()
	delete(p.found, name)
}
