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
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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
// It begins with those in the caches, so that nothing waits for the list of a large cluster. The
// list comes last, once: a controller that has just started may lack some in its caches.
func Release(ctx context.Context, client metadata.Interface, ats *steps.Steps, cronAts *cronsteps.Steps, namespace string) error {
	tasks, listed := cached(ats).tasks(ats, cronAts), false
	var last error
	err := backoff.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		before := len(tasks)
		tasks, last = run(ctx, tasks)
		switch {
		case len(tasks) > 0 && (listed || len(tasks) < before): // To try again is all there is, or helps.
			return false, nil
		case listed:
			return true, nil
		}
		found, err := list(ctx, client, ats, namespace)
		switch {
		case apierrors.IsForbidden(err): // A role is gone: this does not change.
			return false, err
		case err != nil:
			last = err
			return false, nil //nolint:nilerr // It is read again.
		}
		tasks, listed = found.tasks(ats, cronAts), true
		return len(tasks) == 0, nil
	})
	if err != nil {
		return cmp.Or(last, err)
	}
	return nil
}

// tracked are objects that have a finalizer of the controller.
type tracked struct {
	pods, children []cache.ObjectName
	// scheduled has the Ats of CronAts, by CronAt.
	scheduled map[cache.ObjectName][]*v1alpha1.At
}

// cached returns what the caches know.
func cached(from *steps.Steps) *tracked {
	t := &tracked{scheduled: map[cache.ObjectName][]*v1alpha1.At{}}
	for _, pod := range from.Pods() {
		t.addPod(pod)
	}
	ats, _ := from.Ats.List(labels.Everything()) // Reading from a cache cannot fail.
	for _, at := range ats {
		t.addAt(at)
	}
	return t
}

// list returns what the API server knows.
func list(ctx context.Context, client metadata.Interface, from *steps.Steps, namespace string) (*tracked, error) {
	t := &tracked{scheduled: map[cache.ObjectName][]*v1alpha1.At{}}
	pods, ats := corev1.SchemeGroupVersion.WithResource("pods"), v1alpha1.SchemeGroupVersion.WithResource("ats")
	err := connect.Each(ctx, client.Resource(pods).Namespace(namespace).List, metav1.ListOptions{LabelSelector: v1alpha1.LabelAtUID, Limit: pageSize},
		func(pod *metav1.PartialObjectMetadata) { t.addPod(pod) })
	if err != nil {
		return nil, err
	}
	err = connect.Each(ctx, client.Resource(ats).Namespace(namespace).List, metav1.ListOptions{Limit: pageSize},
		func(at *metav1.PartialObjectMetadata) { t.addAt(&v1alpha1.At{ObjectMeta: at.ObjectMeta}) })
	if err != nil { // The CRD may be gone.
		err = answer.UnlessGone(ctx, from.CnatClient.CnatV1alpha1().RESTClient(), ats, "", err)
	}
	return t, err
}

func (t *tracked) addPod(pod metav1.Object) {
	if slices.Contains(pod.GetFinalizers(), v1alpha1.FinalizerTracking) {
		t.pods = append(t.pods, cache.MetaObjectToName(pod))
	}
}

func (t *tracked) addAt(at *v1alpha1.At) {
	if plan.IsScheduled(at) {
		cronAt := cache.NewObjectName(at.Namespace, cronplan.CronAtName(at))
		t.scheduled[cronAt] = append(t.scheduled[cronAt], at)
	}
	if slices.Contains(at.Finalizers, v1alpha1.FinalizerTracking) {
		t.children = append(t.children, cache.MetaObjectToName(at))
	}
}

// task releases an object, or the Ats of a CronAt. It may be tried again.
type task func(context.Context) error

// tasks returns what releases the objects, Pods first: without them, nodes cannot be drained
// and namespaces not be deleted.
func (t *tracked) tasks(ats *steps.Steps, cronAts *cronsteps.Steps) []task {
	var tasks []task
	for _, name := range t.pods {
		tasks = append(tasks, func(ctx context.Context) error { return ats.LeavePod(ctx, name) })
	}
	for _, name := range t.children {
		tasks = append(tasks, func(ctx context.Context) error { return ats.LeaveAt(ctx, name) })
	}
	for name, scheduled := range t.scheduled {
		tasks = append(tasks, func(ctx context.Context) error { return cronAts.Leave(ctx, name, scheduled) })
	}
	return tasks
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
