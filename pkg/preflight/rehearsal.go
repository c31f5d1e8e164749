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
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// followPeriod is the interval at which the Pod of a rehearsal is read.
const followPeriod = time.Second

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
	// found has the last result of each item, for RehearsalPeriod.
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
	end       context.CancelFunc
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
	result := v.result()
	switch {
	case !s.rehearses || r.p.Rehearsals == 0:
	case s.untilRehearsal > 0:
		r.p.queue.AddAfter(item, s.untilRehearsal)
	case result == metrics.PreflightAccepted, result == metrics.PreflightUnknown && !v.retry: // A webhook does not support dry-run.
		r.queue.Add(item)
	case result == metrics.PreflightUnknown:
		r.p.queue.AddAfter(item, plan.RehearsalPeriod)
	}
}

// rehearse rehearses the next run of an object, if that is needed.
func (r *rehearsals) rehearse(ctx context.Context, checks *Checks, name cache.ObjectName) {
	item := checks.item(name)
	s, err := checks.read(ctx, name)
	if err != nil && !answer.IsNotFound(err, name.Name) {
		r.queue.AddRateLimited(item)
		return
	}
	switch {
	case s.waits:
		r.p.again(item)
	case !s.rehearses || r.news(item, s, s.rehearsed).Reason != "": // Its status will have the result.
	case s.untilRehearsal > 0: // The cache did not have the last result yet.
		r.p.queue.AddAfter(item, s.untilRehearsal)
	default:
		result := r.rehearseInTime(ctx, checks, s)
		klog.FromContext(ctx).V(2).Info("Rehearsed", "reason", result.Reason)
		switch result.Reason {
		case "":
			metrics.Rehearsals.WithLabelValues(metrics.RehearsalUnknown).Inc()
			r.queue.AddRateLimited(item)
			return
		case v1alpha1.ReasonPassed:
			metrics.Rehearsals.WithLabelValues(metrics.RehearsalPassed).Inc()
		default:
			metrics.Rehearsals.WithLabelValues(metrics.RehearsalFailed).Inc()
			r.p.queue.AddAfter(item, plan.RehearsalPeriod)
		}
		// It stays after the status has it, because an older version of the object may still be read.
		r.found.Set(item, newFinding(s, result), plan.RehearsalPeriod)
		checks.changed(name)
	}
	r.queue.Forget(item)
}

// news returns the last result for the current version of an object if its status does not have it,
// or the zero value.
func (r *rehearsals) news(item cache.ObjectName, object metav1.Object, status plan.Rehearsed) plan.Rehearsal {
	found := foundIn[plan.Rehearsal](r.found, item, object)
	if found == nil || !status.IsNews(object, found.result) {
		return plan.Rehearsal{}
	}
	return found.result
}

// rehearseInTime rehearses the next run of an object, until it is nearly due or the rehearsal has to
// yield. The result is the zero value if nothing is known.
func (r *rehearsals) rehearseInTime(ctx context.Context, checks *Checks, s *subject) (result plan.Rehearsal) {
	ctx, end := context.WithTimeout(ctx, s.due().Sub(r.p.clock.Now())-plan.RehearsalLead)
	defer end()
	r.active.Store(string(s.GetUID()), ongoing{s.GetNamespace(), end})
	defer r.active.Delete(string(s.GetUID()))
	if !r.isHeld(s.GetNamespace()) {
		result = r.rehearseEach(ctx, checks, s)
	}
	if result.Reason == "" && r.isHeld(s.GetNamespace()) {
		return plan.NewRehearsal(v1alpha1.ReasonRehearsalRefused, "Ended because a run of the namespace was refused for quota.", r.p.clock.Now())
	}
	return result
}

func (r *rehearsals) isHeld(namespace string) bool {
	_, ok := r.held.Get(namespace)
	return ok
}

// Yield ends the rehearsals of a namespace, because a run was refused for quota, which they may use.
// If there are any, no other begins for RehearsalPeriod, so that this is not repeated sooner.
func (c *Checks) Yield(namespace string) {
	if c == nil {
		return
	}
	r := c.p.rehearsals
	r.active.Range(func(_, value any) bool {
		if o := value.(ongoing); o.namespace == namespace {
			r.held.Set(namespace, nil, plan.RehearsalPeriod)
			o.end()
		}
		return true
	})
}

// rehearseEach rehearses a run, with nodes on some of them. It returns the first result that
// is not ReasonPassed.
func (r *rehearsals) rehearseEach(ctx context.Context, checks *Checks, s *subject) (result plan.Rehearsal) {
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
	item, begin := checks.item(cache.MetaObjectToName(s)), rand.IntN(len(chosen))
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
	made := plan.NewRehearsalPod(s.Object, checks.kind, run)
	pods := r.p.Kube.CoreV1().Pods(made.Namespace)
	// Also if there is no time left: the answer says what to delete.
	createCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
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
		if r.p.clock.Since(current.CreationTimestamp.Time) >= plan.EventDelay {
			event = r.events.Newest(ctx, current)
		}
		result = plan.JudgeRehearsal(current, run, event, r.p.clock.Now())
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

// hasChanged reports whether an object was deleted, was edited, is due at another time, or waits.
func (c *Checks) hasChanged(s *subject) bool {
	cached := c.cached(cache.MetaObjectToName(s))
	return cached.at == nil || cached.GetUID() != s.GetUID() || cached.GetGeneration() > s.GetGeneration() || !cached.due().Equal(s.due())
}
