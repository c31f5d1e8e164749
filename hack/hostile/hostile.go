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

// Package hostile does what a user with the ClusterRole edit in one namespace can do to harm
// the users of others. hack/integration and hack/bench use it.
package hostile

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"
	"k8s.io/client-go/util/workqueue"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// largest is the size of the largest objects, a little less than etcd accepts. smallest is
// the size below which an object harms nobody.
const (
	largest  = 1_300_000
	smallest = 10_000
)

// parallel is the number of requests of a tenant at the same time.
const parallel = 4

var (
	ats     = v1alpha1.SchemeGroupVersion.WithResource("ats")
	cronAts = v1alpha1.SchemeGroupVersion.WithResource("cronats")
	pods    = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
)

// Tenant is the user of a namespace, and has its name.
type Tenant struct {
	// Client has the permissions of the user.
	Client    dynamic.Interface
	Namespace string
	// Log says what the API server refuses.
	Log func(format string, args ...any)

	filled []target
}

// target is an object that the tenant has created.
type target struct {
	resource schema.GroupVersionResource
	name     string
}

// object is the content of an At or CronAt: metadata and the fields of a RunSpec.
type object struct{ metadata, run map[string]any }

// shapes are contents of about the given size, by what they have much of.
var shapes = map[string]func(size int) object{
	"command": func(size int) object {
		return object{run: map[string]any{"command": strings.Repeat("x", size)}}
	},
	"argument": func(size int) object {
		return container(map[string]any{"args": []any{strings.Repeat("x", size)}})
	},
	"arguments": func(size int) object {
		return container(map[string]any{"args": many(size/4, func(int) any { return "x" })})
	},
	"digits": func(size int) object {
		return container(map[string]any{"resources": map[string]any{"limits": map[string]any{"cpu": strings.Repeat("9", size)}}})
	},
	"resources": func(size int) object {
		limits := map[string]any{}
		for i := range size / 30 {
			limits[fmt.Sprintf("example.com/r%06d", i)] = "1"
		}
		return container(map[string]any{"resources": map[string]any{"limits": limits}})
	},
	"invalid-variables": func(size int) object {
		return container(map[string]any{"env": many(size/20, func(i int) any { return map[string]any{"name": fmt.Sprintf("=%d", i)} })})
	},
	"containers": func(size int) object {
		return template(map[string]any{"containers": many(size/40, func(i int) any {
			return map[string]any{"name": fmt.Sprintf("c%d", i), "image": "x"}
		})})
	},
	"volumes": func(size int) object {
		run := container(nil)
		run.spec()["volumes"] = many(size/40, func(i int) any {
			return map[string]any{"name": fmt.Sprintf("v%d", i), "emptyDir": map[string]any{}}
		})
		return run
	},
	"template-annotations": func(size int) object {
		run := container(nil)
		run.run["template"].(map[string]any)["metadata"] = map[string]any{"annotations": map[string]any{"a": strings.Repeat("x", size)}}
		return run
	},
	"selector-values": func(size int) object {
		return selector("matchExpressions", []any{map[string]any{"key": "a", "operator": "In", "values": many(size/4, func(int) any { return "x" })}})
	},
	"selector-labels": func(size int) object {
		labels := map[string]any{}
		for i := range size / 20 {
			labels[fmt.Sprintf("l%06d", i)] = "x"
		}
		return selector("matchLabels", labels)
	},
	"annotations": func(size int) object {
		return metadata("annotations", map[string]any{"example.com/a": strings.Repeat("x", size)})
	},
	"labels": func(size int) object {
		labels := map[string]any{}
		for i := range size / 20 {
			labels[fmt.Sprintf("l%06d", i)] = "x"
		}
		return metadata("labels", labels)
	},
	"finalizers": func(size int) object {
		return metadata("finalizers", many(size/25, func(i int) any { return fmt.Sprintf("example.com/f%06d", i) }))
	},
	"owners": func(size int) object {
		return metadata("ownerReferences", many(size/100, func(i int) any {
			return owner("v1", "ConfigMap", fmt.Sprintf("c%06d", i), fmt.Sprintf("uid-%06d", i))
		}))
	},
}

func many(number int, value func(i int) any) []any {
	values := make([]any, number)
	for i := range values {
		values[i] = value(i)
	}
	return values
}

func metadata(field string, value any) object {
	return object{metadata: map[string]any{field: value}, run: map[string]any{"command": "true"}}
}

func template(spec map[string]any) object {
	return object{run: map[string]any{"template": map[string]any{"spec": spec}}}
}

func container(fields map[string]any) object {
	container := map[string]any{"name": "c", "image": "x"}
	for field, value := range fields {
		container[field] = value
	}
	return template(map[string]any{"containers": []any{container}})
}

func selector(field string, value any) object {
	return object{run: map[string]any{"command": "true", "nodes": map[string]any{"selector": map[string]any{field: value}}}}
}

func (o object) spec() map[string]any {
	return o.run["template"].(map[string]any)["spec"].(map[string]any)
}

func owner(apiVersion, kind, name, uid string) map[string]any {
	return map[string]any{"apiVersion": apiVersion, "kind": kind, "name": name, "uid": uid}
}

// of returns an At or CronAt that is due in the far future.
func (o object) of(resource schema.GroupVersionResource, name string) *unstructured.Unstructured {
	content := map[string]any{"apiVersion": v1alpha1.SchemeGroupVersion.String()}
	if resource == ats {
		spec := map[string]any{"schedule": "2099-01-01T00:00:00Z"}
		for field, value := range o.run {
			spec[field] = value
		}
		content["kind"], content["spec"] = v1alpha1.AtKind, spec
	} else {
		content["kind"] = v1alpha1.CronAtKind
		content["spec"] = map[string]any{"schedule": "0 0 1 1 *", "atTemplate": map[string]any{"spec": o.run}}
	}
	meta := map[string]any{"name": name}
	for field, value := range o.metadata {
		meta[field] = value
	}
	content["metadata"] = meta
	return &unstructured.Unstructured{Object: content}
}

// Fill creates a number of the largest Ats and CronAts of each shape that the API server
// accepts.
func (t *Tenant) Fill(ctx context.Context, number int) error {
	for shape, content := range shapes {
		for _, resource := range []schema.GroupVersionResource{ats, cronAts} {
			size, err := t.largest(ctx, resource, shape, content)
			if err != nil {
				return err
			}
			if size == 0 {
				continue
			}
			for i := range number {
				t.filled = append(t.filled, target{resource, fmt.Sprintf("%s-%d", shape, i)})
			}
			err = each(ctx, number, func(ctx context.Context, i int) error {
				_, err := t.Client.Resource(resource).Namespace(t.Namespace).Create(ctx, content(size).of(resource, fmt.Sprintf("%s-%d", shape, i)), metav1.CreateOptions{})
				if apierrors.IsTimeout(err) { // The API server is the one that it harms.
					return nil
				}
				return err
			})
			if err != nil {
				return fmt.Errorf("create %s with %s: %w", resource.Resource, shape, err)
			}
		}
	}
	return nil
}

// largest returns the size of the largest object of a shape that the API server accepts, or
// 0 if there is none.
func (t *Tenant) largest(ctx context.Context, resource schema.GroupVersionResource, shape string, content func(size int) object) (int, error) {
	var refusal error
	for size := largest; size >= smallest; size /= 2 {
		_, err := t.Client.Resource(resource).Namespace(t.Namespace).Create(ctx, content(size).of(resource, shape+"-0"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		switch {
		case err == nil && refusal == nil:
			return size, nil
		case err == nil:
			t.Log("%s with %s: %d bytes, more are refused: %s", resource.Resource, shape, size, short(refusal))
			return size, nil
		case !apierrors.IsInvalid(err) && !apierrors.IsRequestEntityTooLargeError(err) && !apierrors.IsBadRequest(err) && !apierrors.IsTimeout(err):
			return 0, fmt.Errorf("create %s with %s: %w", resource.Resource, shape, err)
		}
		refusal = err
	}
	t.Log("%s with %s are refused: %s", resource.Resource, shape, short(refusal))
	return 0, nil
}

func short(err error) string {
	text := err.Error()
	return text[:min(len(text), 200)]
}

// Edit edits what Fill has created, one object after the other, until ctx is done. It
// returns the number of edits.
func (t *Tenant) Edit(ctx context.Context) (int, error) {
	for edits := 0; ; edits++ {
		target := t.filled[edits%len(t.filled)]
		field := "ttlSecondsAfterFinished"
		if target.resource == cronAts {
			field = "startingDeadlineSeconds"
		}
		patch := fmt.Appendf(nil, `{"spec":{%q:%d}}`, field, 1000+edits)
		_, err := t.Client.Resource(target.resource).Namespace(t.Namespace).Patch(ctx, target.name, types.MergePatchType, patch, metav1.PatchOptions{})
		switch {
		case ctx.Err() != nil:
			return edits, nil //nolint:nilerr // It was stopped.
		case err != nil && !apierrors.IsNotFound(err) && !apierrors.IsTooManyRequests(err) && !apierrors.IsTimeout(err) && !apierrors.IsConflict(err):
			return edits, err
		}
	}
}

// create creates an object. On a slow machine, the tenant's own webhook may still be busy with
// what came before, so it is asked until it answers.
func (t *Tenant) create(ctx context.Context, resource schema.GroupVersionResource, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	var created *unstructured.Unstructured
	err := retry.OnError(wait.Backoff{Duration: time.Second, Steps: 300}, apierrors.IsInternalError, func() error {
		var err error
		created, err = t.Client.Resource(resource).Namespace(t.Namespace).Create(ctx, object, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("create %s %s: %w", resource.Resource, object.GetName(), err)
	}
	return created, nil
}

// Forge creates a number of Pods, Ats and CronAts each with the labels, owners and finalizers
// that the controller uses.
func (t *Tenant) Forge(ctx context.Context, number int) error {
	controlledBy := func(owner *unstructured.Unstructured) []metav1.OwnerReference {
		ref := metav1.NewControllerRef(owner, owner.GroupVersionKind())
		ref.BlockOwnerDeletion = nil // For that, the user would need more permissions.
		return []metav1.OwnerReference{*ref}
	}
	var logged atomic.Bool
	return each(ctx, number, func(ctx context.Context, i int) error {
		name := "forged-" + strconv.Itoa(i)
		cronAt := metadata("finalizers", []any{v1alpha1.FinalizerScheduled, v1alpha1.FinalizerTracking}).of(cronAts, name)
		cronAt.SetLabels(map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy, v1alpha1.LabelAtUID: "uid", v1alpha1.LabelCronAtUID: "uid"})
		cronAt, err := t.create(ctx, cronAts, cronAt)
		if err != nil {
			return err
		}
		at := metadata("finalizers", []any{v1alpha1.FinalizerScheduled, v1alpha1.FinalizerTracking}).of(ats, name)
		at.SetLabels(map[string]string{v1alpha1.LabelCronAtUID: string(cronAt.GetUID()), v1alpha1.LabelCronAtName: name, v1alpha1.LabelAtUID: "uid", v1alpha1.LabelAtName: name})
		at.SetOwnerReferences(controlledBy(cronAt))
		at, err = t.create(ctx, ats, at)
		if err != nil {
			if !logged.Swap(true) {
				t.Log("forged Ats are refused: %s", short(err))
			}
			return nil
		}
		pod := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Pod",
			"metadata": map[string]any{"name": name + "-pod", "finalizers": []any{v1alpha1.FinalizerTracking}},
			"spec":     map[string]any{"schedulerName": "nobody", "containers": []any{map[string]any{"name": "c", "image": "x"}}},
		}}
		pod.SetLabels(map[string]string{v1alpha1.LabelAtUID: string(at.GetUID()), v1alpha1.LabelAtName: name})
		pod.SetOwnerReferences(controlledBy(at))
		if _, err := t.create(ctx, pods, pod); err != nil {
			return err
		}
		stranger := pod.DeepCopy()
		stranger.SetName(name + "-stranger")
		stranger.SetOwnerReferences(nil)
		stranger.SetLabels(map[string]string{v1alpha1.LabelAtUID: "uid", v1alpha1.LabelAtName: name})
		_, err = t.create(ctx, pods, stranger)
		return err
	})
}

// Due creates a number of Ats that are due at once. prefix is that of their names.
func (t *Tenant) Due(ctx context.Context, prefix string, number int, due time.Time) error {
	return t.due(ctx, prefix, number, due, func(i int) object {
		return object{run: map[string]any{"command": fmt.Sprint("echo ", i)}}
	})
}

// Many creates a number of small Ats that are due at once. Their Pods are invalid, and the API
// server says so at length: each At ends with two messages of the largest size.
func (t *Tenant) Many(ctx context.Context, number int, due time.Time) error {
	return t.due(ctx, "many", number, due, func(int) object { return shapes["invalid-variables"](1000) })
}

func (t *Tenant) due(ctx context.Context, prefix string, number int, due time.Time, content func(i int) object) error {
	return each(ctx, number, func(ctx context.Context, i int) error {
		at := content(i).of(ats, fmt.Sprintf("%s-%d", prefix, i))
		if err := unstructured.SetNestedField(at.Object, due.UTC().Format(time.RFC3339), "spec", "schedule"); err != nil {
			return err
		}
		_, err := t.create(ctx, ats, at)
		return err
	})
}

// each calls do for each i below number, several at a time, and returns the first error.
func each(ctx context.Context, number int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	workqueue.ParallelizeUntil(ctx, parallel, number, func(i int) {
		if err := do(ctx, i); err != nil {
			cancel(err)
		}
	})
	return context.Cause(ctx)
}
