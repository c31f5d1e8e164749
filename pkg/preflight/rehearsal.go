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
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/connect"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/queue"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/steps/podevents"
)

// rehearsalsName is the name of the queue of rehearsals, for its metrics.
const rehearsalsName = "rehearsals"

const (
	// followPeriod is the interval at which the Pod of a rehearsal is read.
	followPeriod = time.Second
	// unknownPeriod is the time after which a rehearsal without a result is repeated.
	unknownPeriod = time.Minute
	// removeTimeout is how long the deletion of a rehearsal's Pod may take, and goneTimeout how
	// long the Pod may be there after that until another rehearsal begins.
	removeTimeout = 2 * time.Second
	goneTimeout   = 30 * time.Second
)

// maxRehearsedNodes is the number of nodes, of those that spec.nodes selects, on which a
// rehearsal takes place. They are others each time.
const maxRehearsedNodes = 3

// rehearsals rehearses what a preflight found to be accepted. Each rehearsal has a worker
// from the creation of its Pod until the Pod is gone.
type rehearsals struct {
	*Preflight
	events *podevents.Reader
	queue  *queue.Workqueue // of items: see Checks.item

	lock sync.Mutex
	// found has the results that are not in a status yet, by item.
	found map[cache.ObjectName]rehearsed
}

// rehearsed is the result of a rehearsal of an object.
type rehearsed struct {
	uid        types.UID
	generation int64
	result     plan.Rehearsal
}

func newRehearsals(p *Preflight) *rehearsals {
	order := queue.NewFairOf(func() workqueue.Queue[cache.ObjectName] { return queue.NewDue(p.due) })
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](minBackoff, maxBackoff)
	return &rehearsals{
		Preflight: p,
		events:    podevents.NewReader(p.kubeClient.CoreV1(), p.clock),
		queue:     queue.NewRateLimiting(rehearsalsName, order, limiter, p.clock),
		found:     map[cache.ObjectName]rehearsed{},
	}
}

// run rehearses until ctx is done.
func (r *rehearsals) run(ctx context.Context) {
	defer context.AfterFunc(ctx, r.queue.ShutDown)()
	err := connect.Until(ctx, unknownPeriod, r.removeAll, func(err error) {
		klog.FromContext(ctx).Info("The Pods of earlier rehearsals cannot be removed, and there are no rehearsals until they can", "answer", err)
	})
	if err != nil {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for range r.queue.StartExclusive(r.clients.Rehearsals, r.clients.NamespaceRehearsals) {
		wg.Go(func() {
			for ctx.Err() == nil && r.processNextWorkItem(ctx) {
			}
		})
	}
}

// removeAll removes the Pods that another controller has left.
func (r *rehearsals) removeAll(ctx context.Context) error {
	return connect.Each(ctx, r.kubeClient.CoreV1().Pods(r.clients.Namespace).List, metav1.ListOptions{LabelSelector: v1alpha1.LabelRehearsalOf}, func(pod *corev1.Pod) {
		r.remove(ctx, pod)
	})
}

func (r *rehearsals) processNextWorkItem(ctx context.Context) bool {
	item, shutdown := r.queue.Get()
	if shutdown {
		return false
	}
	defer r.queue.Done(item)
	checks, name := r.objectOf(item)
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
	if err != nil && !answer.IsNotFound(err, name.Name) {
		r.queue.AddAfter(item, unknownPeriod)
	}
	if err != nil || s.at == nil || s.waits || !s.wantsRehearsal || r.resultOf(item, s, s.rehearsed).Reason != "" {
		return
	}
	timeCtx, cancel := context.WithTimeout(ctx, s.due().Sub(r.clock.Now())-plan.RehearsalLead)
	defer cancel()
	result := r.rehearseEach(timeCtx, checks, s)
	klog.FromContext(ctx).V(2).Info("Rehearsed", "reason", result.Reason)
	switch result.Reason {
	case "":
		metrics.Rehearsals.WithLabelValues(metrics.RehearsalUnknown).Inc()
		r.queue.AddAfter(item, unknownPeriod)
		return
	case v1alpha1.ReasonPassed:
		metrics.Rehearsals.WithLabelValues(metrics.RehearsalPassed).Inc()
	default:
		metrics.Rehearsals.WithLabelValues(metrics.RehearsalFailed).Inc()
		r.Preflight.queue.AddAfter(item, plan.RehearsalPeriod)
	}
	r.lock.Lock()
	r.found[item] = rehearsed{s.GetUID(), s.GetGeneration(), result}
	r.lock.Unlock()
	checks.changed(name)
}

// resultOf returns the result of a rehearsal of the current version of an object, or the zero
// value if there is none, or the status has it.
func (r *rehearsals) resultOf(item cache.ObjectName, object metav1.Object, status plan.Rehearsed) plan.Rehearsal {
	if r == nil {
		return plan.Rehearsal{}
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	found := r.found[item]
	if found.uid == object.GetUID() && found.generation == object.GetGeneration() && !status.Has(object, found.result) {
		return found.result
	}
	delete(r.found, item)
	return plan.Rehearsal{}
}

// rehearseEach rehearses a run, with nodes on some of them. It returns the first result that
// is not ReasonPassed.
func (r *rehearsals) rehearseEach(ctx context.Context, checks *Checks, s *subject) (result plan.Rehearsal) {
	if s.at.Spec.Nodes == nil {
		return r.rehearseOne(ctx, checks, s, s.at)
	}
	nodes, err := r.nodes(ctx)
	if err != nil {
		return plan.Rehearsal{}
	}
	chosen, _ := plan.ChooseNodes(s.at, nodes) // The preflight reports an error.
	rand.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
	for _, node := range chosen[:min(len(chosen), maxRehearsedNodes)] {
		result = r.rehearseOne(ctx, checks, s, plan.OnNode(s.at, node))
		if result.Reason != v1alpha1.ReasonPassed {
			result.Message = fmt.Sprintf("Node %s: %s", node, result.Message)
			return result
		}
	}
	return result
}

// rehearseOne rehearses the run of an At. The result is the zero value if nothing is known.
func (r *rehearsals) rehearseOne(ctx context.Context, checks *Checks, s *subject, at *v1alpha1.At) (result plan.Rehearsal) {
	made := plan.NewRehearsalPod(s.Object, checks.kind.name(), plan.NewPod(at, r.defaults))
	pods := r.kubeClient.CoreV1().Pods(made.Namespace)
	createCtx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	pod, err := pods.Create(createCtx, made, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return r.removeOther(ctx, made)
	case plan.Foresee("", err) == nil: // It may pass.
		return plan.Rehearsal{}
	case err != nil:
		return plan.NewRehearsal(v1alpha1.ReasonRehearsalRefused, fmt.Sprintf("create Pod: %v", err), r.clock.Now())
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
		if r.clock.Since(current.CreationTimestamp.Time) >= plan.EventDelay {
			if event, err = r.events.Newest(ctx, current); err != nil {
				klog.FromContext(ctx).V(2).Info("The events of a Pod cannot be read", "pod", klog.KObj(pod), "answer", err)
			}
		}
		result = plan.JudgeRehearsal(current, made, event, r.clock.Now())
		return result.Reason != "", nil
	}) // An error means that there is no time left.
	return result
}

// hasChanged reports whether an object was deleted, edited, or has nothing to come any more.
func (c *Checks) hasChanged(s *subject) bool {
	cached, err := c.kind.cached(cache.MetaObjectToName(s))
	return err != nil || cached.at == nil || cached.GetUID() != s.GetUID() || cached.GetGeneration() > s.GetGeneration()
}

// removeOther handles another Pod that has the name of the one that was to be made: it may be
// left from an earlier rehearsal.
func (r *rehearsals) removeOther(ctx context.Context, made *corev1.Pod) plan.Rehearsal {
	other, err := r.kubeClient.CoreV1().Pods(made.Namespace).Get(ctx, made.Name, metav1.GetOptions{})
	switch {
	case err != nil:
	case other.Labels[v1alpha1.LabelRehearsalOf] != "":
		r.remove(ctx, other)
	default:
		return plan.NewRehearsal(v1alpha1.ReasonRehearsalRefused, fmt.Sprintf("Pod %s already exists: delete it, or give the object another name.", made.Name), r.clock.Now())
	}
	return plan.Rehearsal{}
}

// remove deletes the Pod of a rehearsal, even if ctx is done, and waits until it is gone.
func (r *rehearsals) remove(ctx context.Context, pod *corev1.Pod) {
	pods := r.kubeClient.CoreV1().Pods(pod.Namespace)
	deleteCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	err := pods.Delete(deleteCtx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	if err != nil && !answer.IsNotFound(err, pod.Name) && !answer.IsConflict(err, pod.Name) {
		klog.FromContext(ctx).Info("The Pod of a rehearsal cannot be deleted", "pod", klog.KObj(pod), "answer", err)
		return
	}
	_ = wait.PollUntilContextTimeout(ctx, followPeriod, goneTimeout, true, func(ctx context.Context) (bool, error) {
		current, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		return answer.IsNotFound(err, pod.Name) || err == nil && current.UID != pod.UID, nil
	}) // After that, the next rehearsal does not wait for it.
}
