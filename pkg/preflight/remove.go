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
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/connect"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

const (
	// removeTimeout is how long a request to delete a Pod may take, and goneTimeout how long the
	// Pod may be there after the rehearsal until another one begins.
	removeTimeout = 2 * time.Second
	goneTimeout   = 30 * time.Second
	// leftPeriod is the time after which Pods that may have been left are removed.
	leftPeriod = time.Minute
)

// nameTaken handles another Pod that has the name of the one that was to be made: it may be that of
// another controller or of a CronAt with the name of the At, or left from an earlier rehearsal.
func (r *rehearsals) nameTaken(ctx context.Context, made *corev1.Pod) plan.Rehearsal {
	other, err := r.p.Kube.CoreV1().Pods(made.Namespace).Get(ctx, made.Name, metav1.GetOptions{})
	switch {
	case err != nil:
	case !plan.IsRehearsal(other):
		return plan.NewRehearsal(v1alpha1.ReasonRehearsalRefused, fmt.Sprintf("Pod %s already exists: delete it, or give the object another name.", made.Name), r.p.clock.Now())
	case r.p.clock.Since(other.CreationTimestamp.Time) > plan.RehearsalTime: // Nobody waits for it.
		_, _ = r.delete(ctx, other)
	}
	return plan.Rehearsal{}
}

// remove deletes the Pod of a rehearsal, even if ctx is done, and waits until it is gone.
func (r *rehearsals) remove(ctx context.Context, pod *corev1.Pod) {
	if isGone, err := r.delete(ctx, pod); err != nil || isGone {
		return
	}
	pods := r.p.Kube.CoreV1().Pods(pod.Namespace)
	_ = wait.PollUntilContextTimeout(ctx, followPeriod, goneTimeout, true, func(ctx context.Context) (bool, error) {
		current, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		return answer.IsNotFound(err, pod.Name) || err == nil && current.UID != pod.UID, nil
	}) // After that, the next rehearsal does not wait for it.
}

// delete deletes the Pod of a rehearsal, even if ctx is done. If that fails, removeLeft tries
// again.
func (r *rehearsals) delete(ctx context.Context, pod *corev1.Pod) (isGone bool, err error) {
	deleteCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	err = r.p.Kube.CoreV1().Pods(pod.Namespace).Delete(deleteCtx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	if answer.IsNotFound(err, pod.Name) || answer.IsConflict(err, pod.Name) {
		return true, nil
	}
	if err != nil {
		klog.FromContext(ctx).Info("The Pod of a rehearsal cannot be deleted; retrying", "pod", klog.KObj(pod), "answer", err)
		r.mayHaveLeft()
	}
	return false, err
}

// mayHaveLeft makes removeLeft look for Pods that are left.
func (r *rehearsals) mayHaveLeft() {
	select {
	case r.left <- struct{}{}:
	default: // It will look.
	}
}

// removeLeft removes the Pods that are left, by this or an earlier controller, until ctx is
// done.
func (r *rehearsals) removeLeft(ctx context.Context) {
	for {
		// A Pod that is being deleted may wait for the finalizers of others.
		err := connect.Each(ctx, r.p.Kube.CoreV1().Pods(r.p.Namespace).List, metav1.ListOptions{LabelSelector: v1alpha1.LabelRehearsalOf}, func(pod *corev1.Pod) {
			if _, isActive := r.active.Load(pod.Labels[v1alpha1.LabelRehearsalOf]); plan.IsRehearsal(pod) && pod.DeletionTimestamp == nil && !isActive {
				_, _ = r.delete(ctx, pod)
			}
		})
		if err != nil {
			klog.FromContext(ctx).Info("The Pods of rehearsals cannot be listed; retrying", "answer", err)
			r.mayHaveLeft()
		}
		select {
		case <-ctx.Done():
			return
		case <-r.left:
		}
		// The API server may still work on a creation that timed out.
		select {
		case <-ctx.Done():
			return
		case <-r.p.clock.After(leftPeriod):
		}
	}
}
