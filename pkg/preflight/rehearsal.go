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

package preflight

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/queue"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/steps/podevents"
)

const (
	// createTimeout is how long the creation of a Pod may take: a webhook may need 30 s. If the answer
	// is lost, the Pod has to be gone before the next rehearsal, which is minutes later.
	createTimeout = 35 * time.Second
	// followPeriod is the interval at which the Pod of a rehearsal is read.
	followPeriod = time.Second
	// yieldTime is how long no rehearsal begins in a namespace after a run was refused there. The run
	// is tried again meanwhile.
	yieldTime = 10 * time.Second
)

// maxRehearsedNodes is the number of nodes, of those that spec.nodes selects, on which a
// rehearsal takes place. The next one begins after them, or with the one on which it did not
// pass. That is remembered for maxRemembered objects.
const (
	maxRehearsedNodes = 3
	maxRemembered     = 1000
)

// rehearsals rehearses what a preflight found to be accepted. Each rehearsal has a worker
// from the creation of its Pod until the Pod is gone.
type rehearsals struct {
	p      *Preflight
	events *podevents.Reader
	queue  *queue.Queue // of items: see Checks.item

	// next has the node with which the next rehearsal begins, by item.
	next *lru.Cache

	// found has the last result of each item, for RehearsalPeriod. It stays after the status has it,
	// because an older version of the object may still be read.
	found *utilcache.Expiring
	// active has an ongoing for each rehearsal that goes on, by the UID of the owner.
	active sync.Map
	// held has the namespaces in which no rehearsal may begin now.
	held *utilcache.Expiring
	// left has an element if a Pod may have been left.
	left chan struct{}
}

// ongoing is a rehearsal that goes on.
type ongoing struct {
	namespace string
	cancel    context.CancelCauseFunc
}

var errYield = errors.New("a run of the namespace was refused for quota")

// rehearsed is the result of a rehearsal of an object.
type rehearsed struct {
	uid        types.UID
	generation int64
	result     plan.Rehearsal
}

func newRehearsals(p *Preflight) *rehearsals {
	return &rehearsals{
		p:      p,
		events: podevents.NewReader(p.Kube.CoreV1(), p.clock),
		queue:  p.newQueue("rehearsals"),
		next:   lru.New(maxRemembered),
		held:   utilcache.NewExpiringWithClock(p.clock),
		found:  utilcache.NewExpiringWithClock(p.clock),
		left:   make(chan struct{}, 1),
	}
}

// add enqueues an item for its rehearsal, or for the preflight before it. v is the result of the
// preflight.
func (r *rehearsals) add(item cache.ObjectName, s *subject, v verdict) {
	if r == nil || !s.rehearses {
		return
	}
	result := v.result()
	switch {
	case s.untilRehearsal > 0:
		r.p.queue.AddAfter(item, s.untilRehearsal)
	case result == metrics.PreflightAccepted, result == metrics.PreflightUnknown && !v.retry: // A webhook does not support dry-run.
		r.queue.Add(item)
	case result == metrics.PreflightUnknown:
		r.p.queue.AddAfter(item, plan.RehearsalPeriod)
	}
}

// run rehearses until ctx is done.
func (r *rehearsals) run(ctx context.Context) {
	defer context.AfterFunc(ctx, r.queue.ShutDown)()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { r.removeLeft(ctx) })
	for range r.queue.StartLimited(r.p.Rehearsals, r.p.NamespaceRehearsals) {
		wg.Go(func() {
			for ctx.Err() == nil && r.processNextWorkItem(ctx) {
			}
		})
	}
}

func (r *rehearsals) processNextWorkItem(ctx context.Context) bool {
	item, shutdown := r.queue.Get()
	if shutdown {
		return false
	}
	defer r.queue.Done(item)
	checks, name := r.p.objectOf(item)
	logger := klog.LoggerWithValues(klog.FromContext(ctx), checks.kind.String(), klog.KRef(name.Parts()))
	err := queue.Recovered(func() error {
		r.rehearse(klog.NewContext(ctx, logger), item, checks, name)
		return nil
	})
	if err != nil {
		logger.Error(err, "Rehearsal failed")
	}
	return true
}

// rehearse rehearses the next run of an object, if that is needed.
func (r *rehearsals) rehearse(ctx context.Context, item cache.ObjectName, checks *Checks, name cache.ObjectName) {
	s, err := checks.read(ctx, name, nil)
	switch {
	case answer.IsNotFound(err, name.Name):
		r.queue.Forget(item)
		return
	case err != nil:
		r.retry(item)
		return
	case s.at != nil && s.waits:
		r.queue.Forget(item)
		r.p.again(item)
		return
	case s.at == nil || !s.rehearses || r.resultOf(item, s, s.rehearsed).Reason != "":
		r.queue.Forget(item)
		return
	case s.untilRehearsal > 0: // The cache did not have the last result yet.
		r.queue.Forget(item)
		r.p.queue.AddAfter(item, s.untilRehearsal)
		return
	}
	timeCtx, stop := context.WithTimeout(ctx, s.due().Sub(r.p.clock.Now())-plan.RehearsalLead)
	defer stop()
	timeCtx, cancel := context.WithCancelCause(timeCtx)
	defer cancel(nil)
	r.active.Store(string(s.GetUID()), ongoing{s.GetNamespace(), cancel})
	defer r.active.Delete(string(s.GetUID()))
	if _, isHeld := r.held.Get(s.GetNamespace()); isHeld {
		cancel(errYield)
	}
	result := r.rehearseEach(timeCtx, item, checks, s)
	if result.Reason == "" && errors.Is(context.Cause(timeCtx), errYield) {
		result = plan.NewRehearsal(v1alpha1.ReasonRehearsalRefused, fmt.Sprintf("Ended because %v.", errYield), r.p.clock.Now())
	}
	klog.FromContext(ctx).V(2).Info("Rehearsed", "reason", result.Reason)
	switch result.Reason {
	case "":
		metrics.Rehearsals.WithLabelValues(metrics.RehearsalUnknown).Inc()
		r.retry(item)
		return
	case v1alpha1.ReasonPassed:
		metrics.Rehearsals.WithLabelValues(metrics.RehearsalPassed).Inc()
	default:
		metrics.Rehearsals.WithLabelValues(metrics.RehearsalFailed).Inc()
		r.p.queue.AddAfter(item, plan.RehearsalPeriod)
	}
	r.queue.Forget(item)
	if checks.hasChanged(s) {
		return
	}
	r.found.Set(item, rehearsed{s.GetUID(), s.GetGeneration(), result}, plan.RehearsalPeriod)
	checks.changed(name)
}

// Yield ends the rehearsals of a namespace, and begins no other for a moment: a run may need the
// quota that they use. It reports whether there was one.
func (c *Checks) Yield(namespace string) (ended bool) {
	if !c.Rehearses() {
		return false
	}
	r := c.p.rehearsals
	r.held.Set(namespace, nil, yieldTime)
	r.active.Range(func(_, value any) bool {
		if o := value.(ongoing); o.namespace == namespace {
			o.cancel(errYield)
			ended = true
		}
		return true
	})
	return ended
}

// retry enqueues an item whose rehearsal has no result.
func (r *rehearsals) retry(item cache.ObjectName) {
	if r.queue.NumRequeues(item) < maxRetries {
		r.queue.AddRateLimited(item)
		return
	}
	r.queue.Forget(item)
	r.p.queue.AddAfter(item, plan.RehearsalPeriod)
}

// resultOf returns the result of a rehearsal of the current version of an object, or the zero
// value if there is none, or the status has it.
func (r *rehearsals) resultOf(item cache.ObjectName, object metav1.Object, status plan.Rehearsed) plan.Rehearsal {
	if r == nil {
		return plan.Rehearsal{}
	}
	value, _ := r.found.Get(item)
	found, _ := value.(rehearsed)
	if found.uid != object.GetUID() || found.generation != object.GetGeneration() || !status.IsNews(object, found.result) {
		return plan.Rehearsal{}
	}
	return found.result
}

// rehearseEach rehearses a run, with nodes on some of them. It returns the first result that
// is not ReasonPassed.
func (r *rehearsals) rehearseEach(ctx context.Context, item cache.ObjectName, checks *Checks, s *subject) (result plan.Rehearsal) {
	if s.at.Spec.Nodes == nil {
		return r.rehearseOne(ctx, checks, s, s.at)
	}
	nodes, err := r.p.nodes(ctx)
	if err != nil {
		return plan.Rehearsal{}
	}
	chosen, _, _ := plan.ChooseNodes(s.at, nodes) // The preflight reports an error.
	if len(chosen) == 0 {
		return plan.Rehearsal{}
	}
	begin := rand.IntN(len(chosen))
	if next, ok := r.next.Get(item); ok {
		begin, _ = slices.BinarySearch(chosen, next.(string))
	}
	node := func(i int) string { return chosen[(begin+i)%len(chosen)] }
	number := min(len(chosen), maxRehearsedNodes)
	for i := range number {
		r.next.Add(item, node(i))
		result = r.rehearseOne(ctx, checks, s, plan.OnNode(s.at, node(i)))
		switch result.Reason {
		case v1alpha1.ReasonPassed:
		case v1alpha1.ReasonRehearsalRefused: // No node has to do with that, and who cannot run a Pod must not learn which there are.
			return result
		default:
			result.Message = fmt.Sprintf("Node %s: %s", node(i), result.Message)
			return result
		}
	}
	r.next.Add(item, node(number))
	return result
}

// rehearseOne rehearses the run of an At. The result is the zero value if nothing is known.
func (r *rehearsals) rehearseOne(ctx context.Context, checks *Checks, s *subject, at *v1alpha1.At) (result plan.Rehearsal) {
	if ctx.Err() != nil {
		return plan.Rehearsal{}
	}
	run := r.admitted(ctx, plan.NewPod(at, r.p.defaults))
	made := plan.NewRehearsalPod(s.Object, checks.kind.name(), run)
	pods := r.p.Kube.CoreV1().Pods(made.Namespace)
	createCtx, cancel := forCreation(ctx)
	defer cancel()
	pod, err := pods.Create(createCtx, made, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return r.nameTaken(ctx, made)
	case err != nil && plan.Foresee("", err) == nil: // It may pass. The Pod may have been created all the same.
		r.mayHaveLeft()
		return plan.Rehearsal{}
	case err != nil:
		return plan.NewRehearsal(v1alpha1.ReasonRehearsalRefused, fmt.Sprintf("create Pod: %v", err), r.p.clock.Now())
	}
	defer r.remove(ctx, pod)
	_ = wait.PollUntilContextCancel(ctx, followPeriod, false, func(ctx context.Context) (bool, error) {
		current, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		switch {
		case answer.IsNotFound(err, pod.Name), err == nil && current.UID != pod.UID, checks.hasChanged(s):
			return true, nil
		case err != nil:
			return false, nil //nolint:nilerr // It is read again.
		}
		var event *plan.PodEvent
		isKnown := false
		if r.p.clock.Since(current.CreationTimestamp.Time) >= plan.EventDelay {
			if event, err = r.events.Newest(ctx, current); err != nil {
				klog.FromContext(ctx).V(2).Info("The events of a Pod cannot be read", "pod", klog.KObj(pod), "answer", err)
			}
			isKnown = err == nil
		}
		result = plan.JudgeRehearsal(current, run, event, isKnown, r.p.clock.Now())
		return result.Reason != "", nil
	}) // An error means that there is no time left.
	return result
}

// admitted returns the Pod of a run as the API server would admit it. If that is not known, for
// example because a webhook does not support dry-run, it returns the Pod as it is.
func (r *rehearsals) admitted(ctx context.Context, run *corev1.Pod) *corev1.Pod {
	admitted, err := r.p.dryRun(ctx, run)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("A rehearsal asks for the resources of its template", "answer", err)
		return run
	}
	return plan.AsAdmitted(run, admitted)
}

// forCreation returns a context for the creation of a Pod. Once ctx is done, it goes on for
// requestTimeout, because the answer says what to delete.
func forCreation(ctx context.Context) (context.Context, context.CancelFunc) {
	creation, cancel := context.WithTimeout(context.WithoutCancel(ctx), createTimeout)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(requestTimeout, cancel) })
	return creation, func() {
		stop()
		cancel()
	}
}

// hasChanged reports whether an object was deleted, was edited, or is due at another time.
func (c *Checks) hasChanged(s *subject) bool {
	cached, err := c.kind.cached(cache.MetaObjectToName(s))
	return err != nil || cached.at == nil || cached.GetUID() != s.GetUID() || cached.GetGeneration() > s.GetGeneration() || !cached.due().Equal(s.due())
}
