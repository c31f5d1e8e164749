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
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/metadata"
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
	// parallel is the number of objects that are released at the same time.
	parallel = 64
	// pageSize is the number of objects whose metadata are read at a time.
	pageSize = 500
)

// backoff is how long to wait before what has failed is tried again.
var backoff = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Steps: 10, Cap: 5 * time.Second}

// Release removes the finalizers of all Pods and Ats of a namespace, or of all namespaces. It
// returns when none is left, or with an error when ctx is done.
//
// It lists them, because the caches may lack those that were created last. Pods come first: without
// them, nodes cannot be drained and namespaces not be deleted.
func Release(ctx context.Context, client metadata.Interface, ats *steps.Steps, cronAts *cronsteps.Steps, namespace string) error {
	lists := []func(context.Context) ([]task, error){
		func(ctx context.Context) ([]task, error) { return listPods(ctx, client, ats, namespace) },
		func(ctx context.Context) ([]task, error) { return listAts(ctx, client, ats, cronAts, namespace) },
	}
	var tasks []task
	var last error
	err := backoff.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		if len(lists) > 0 {
			found, err := lists[0](ctx)
			switch {
			case apierrors.IsForbidden(err): // A role is gone: this does not change.
				return false, err
			case err != nil:
				last = err
				return false, nil //nolint:nilerr // It is listed again.
			}
			tasks, lists = append(tasks, found...), lists[1:]
		}
		tasks, last = run(ctx, tasks)
		return len(lists)+len(tasks) == 0, nil
	})
	if err != nil {
		return cmp.Or(last, err)
	}
	return nil
}

// task releases an object, or the Ats of a CronAt. It may be tried again.
type task func(context.Context) error

// listPods returns what releases the Pods.
func listPods(ctx context.Context, client metadata.Interface, ats *steps.Steps, namespace string) (tasks []task, err error) {
	pods := client.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(namespace)
	err = connect.Each(ctx, pods.List, metav1.ListOptions{LabelSelector: v1alpha1.LabelAtUID, Limit: pageSize}, func(pod *metav1.PartialObjectMetadata) {
		if plan.IsTracked(pod) {
			name := cache.MetaObjectToName(pod)
			tasks = append(tasks, func(ctx context.Context) error { return ats.LeavePod(ctx, name) })
		}
	})
	return tasks, err
}

// listAts returns what releases the Ats of nodes and those of CronAts.
func listAts(ctx context.Context, client metadata.Interface, ats *steps.Steps, cronAts *cronsteps.Steps, namespace string) (tasks []task, err error) {
	resource := v1alpha1.SchemeGroupVersion.WithResource("ats")
	scheduled := map[cache.ObjectName][]*v1alpha1.At{} // by CronAt
	err = connect.Each(ctx, client.Resource(resource).Namespace(namespace).List, metav1.ListOptions{Limit: pageSize}, func(listed *metav1.PartialObjectMetadata) {
		at := &v1alpha1.At{ObjectMeta: listed.ObjectMeta}
		if plan.IsScheduled(at) {
			cronAt := cache.NewObjectName(at.Namespace, cronplan.CronAtName(at))
			scheduled[cronAt] = append(scheduled[cronAt], at)
		}
		if plan.IsTracked(at) {
			name := cache.MetaObjectToName(at)
			tasks = append(tasks, func(ctx context.Context) error { return ats.LeaveAt(ctx, name) })
		}
	})
	if err != nil { // The CRD may be gone.
		return nil, answer.UnlessGone(ctx, ats.CnatClient.CnatV1alpha1().RESTClient(), resource, "", err)
	}
	for name, ofCronAt := range scheduled {
		tasks = append(tasks, func(ctx context.Context) error { return cronAts.Leave(ctx, name, ofCronAt) })
	}
	return tasks, nil
}

// run returns the tasks that have failed, in the same order, and the first error.
func run(ctx context.Context, tasks []task) (failed []task, first error) {
	errs := make([]error, len(tasks))
	workqueue.ParallelizeUntil(ctx, parallel, len(tasks), func(i int) { errs[i] = tasks[i](ctx) })
	if err := ctx.Err(); err != nil {
		return tasks, err // Not all were tried.
	}
	for i, err := range errs {
		if err != nil {
			failed, first = append(failed, tasks[i]), cmp.Or(first, err)
		}
	}
	return failed, first
}
