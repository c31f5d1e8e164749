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

package uninstall

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronsteps"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/connect"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/steps"
)

const (
	parallel     = 16
	searchPeriod = 100 * time.Millisecond
)

// Release removes the finalizers of all Pods and Ats of a namespace, or of all namespaces.
// It returns when none is left, or with an error when ctx is done.
func Release(ctx context.Context, ats *steps.Steps, cronAts *cronsteps.Steps, namespace string) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, searchPeriod, true, func(ctx context.Context) (bool, error) {
		var left int
		left, last = release(ctx, ats, cronAts, namespace)
		if left == 0 && apierrors.IsForbidden(last) {
			return false, last // A role is gone: this does not change.
		}
		return left == 0 && last == nil, nil
	})
	if err != nil {
		return cmp.Or(last, err)
	}
	return nil
}

// release takes the next steps for each object that has a finalizer, and returns their
// number.
func release(ctx context.Context, ats *steps.Steps, cronAts *cronsteps.Steps, namespace string) (int, error) {
	podsOf := map[cache.ObjectName][]*corev1.Pod{}
	err := connect.Each(ctx, ats.KubeClient.CoreV1().Pods(namespace).List, metav1.ListOptions{LabelSelector: v1alpha1.LabelAtUID}, func(pod *corev1.Pod) {
		if slices.Contains(pod.Finalizers, v1alpha1.FinalizerTracking) {
			name := cache.NewObjectName(pod.Namespace, plan.AtName(pod))
			podsOf[name] = append(podsOf[name], plan.KeepPod(pod))
		}
	})
	if err != nil {
		return 0, err
	}
	client := ats.CnatClient.CnatV1alpha1()
	var children []*v1alpha1.At
	scheduledOf := map[cache.ObjectName][]*v1alpha1.At{}
	err = connect.Each(ctx, client.Ats(namespace).List, metav1.ListOptions{}, func(at *v1alpha1.At) {
		at = plan.KeepAt(at)
		if plan.IsScheduled(at) {
			name := cache.NewObjectName(at.Namespace, cronplan.CronAtName(at))
			scheduledOf[name] = append(scheduledOf[name], at)
		}
		if slices.Contains(at.Finalizers, v1alpha1.FinalizerTracking) {
			children = append(children, at)
		}
	})
	if err != nil {
		// The CRD may be gone.
		if err := answer.UnlessGone(ctx, client.RESTClient(), v1alpha1.SchemeGroupVersion.WithResource("ats"), "", err); err != nil {
			return 0, err
		}
	}

	var tasks []func() error
	for name, pods := range podsOf {
		tasks = append(tasks, func() error { return ats.Leave(ctx, name, pods) })
	}
	for _, at := range children {
		tasks = append(tasks, func() error { return ats.LeaveAt(ctx, at) })
	}
	for name, scheduled := range scheduledOf {
		tasks = append(tasks, func() error { return cronAts.Leave(ctx, name, scheduled) })
	}
	errs := make([]error, len(tasks))
	workqueue.ParallelizeUntil(ctx, parallel, len(tasks), func(i int) { errs[i] = tasks[i]() })
	return len(tasks), errors.Join(errs...)
}
