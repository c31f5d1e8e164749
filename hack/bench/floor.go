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

package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// records are the smallest objects that can say how a run has ended: custom resources, as those of
// any program that is not part of Kubernetes. They are in the group of Ats, so that the
// API server writes its audit log about them, too.
var records = schema.GroupVersionResource{Group: v1alpha1.SchemeGroupVersion.Group, Version: "v1", Resource: "records"}

// recordCRD is their CRD.
const recordCRD = `{
	"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "records.cnat.programming-kubernetes.info"},
	"spec": {
		"group": "cnat.programming-kubernetes.info", "scope": "Namespaced", "names": {"plural": "records", "kind": "Record"},
		"versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": {
			"type": "object", "properties": {"status": {"type": "object", "properties": {
				"exitCode": {"type": "integer"}, "completionTime": {"type": "string", "format": "date-time"}
			}}}
		}}}]
	}
}`

func (c *cluster) createRecordCRD(ctx context.Context) error {
	crd := &unstructured.Unstructured{}
	if err := crd.UnmarshalJSON([]byte(recordCRD)); err != nil {
		return err
	}
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	if _, err := c.dynamic.Resource(crds).Create(ctx, crd, metav1.CreateOptions{}); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := c.dynamic.Resource(records).List(ctx, metav1.ListOptions{Limit: 1})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
}

// floor does only what no system can leave out for a number of runs: it creates the Pod, the
// kubelet writes the Pod's status, and then it writes a record. It has as many requests at the
// same time as the controller has workers. As in the controller, the Pods come first. The kubelet may be nearer
// to the API server.
func (c *cluster) floor(ctx context.Context, number int, lasts time.Duration, kubelet *cluster) (took span, err error) {
	ctx, stop := context.WithTimeout(ctx, 10*time.Minute)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	namespace, toCreate, err := c.podsToCreate(ctx, number)
	if err != nil {
		return took, err
	}
	if err := c.createRecords(ctx, namespace, toCreate); err != nil {
		return took, err
	}
	pods, err := c.seePods(ctx, namespace)
	if err != nil {
		return took, err
	}
	defer pods.stop()
	ended, err := c.endedPods(ctx, namespace, number)
	if err != nil {
		return took, err
	}
	if err := kubelet.playKubelet(ctx, namespace, lasts, nil); err != nil {
		return took, err
	}
	if err := sleep(ctx, pause); err != nil {
		return took, err
	}
	before, err := c.usage(ctx)
	if err != nil {
		return took, err
	}
	var created, recorded atomic.Int64
	start := time.Now()
	err = each(ctx, parallel, func(int) error {
		for i := int(created.Add(1)); i <= number; i = int(created.Add(1)) {
			if _, err := c.kube.CoreV1().Pods(namespace).Create(ctx, toCreate[i-1], metav1.CreateOptions{}); err != nil {
				cancel(err) // The others must not wait for it.
				return err
			}
		}
		for int(recorded.Add(1)) <= number {
			select {
			case name := <-ended:
				if err := c.writeRecord(ctx, namespace, name); err != nil {
					cancel(err)
					return err
				}
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	took.end = time.Since(start)
	if err != nil {
		return took, err
	}
	last, err := pods.wait(ctx, number, time.Minute, "Pods of the floor")
	if err != nil {
		return took, err
	}
	took.lastPod = last.Sub(start)
	after, err := c.usage(ctx)
	took.server = after.cpu - before.cpu
	return took, errors.Join(err, c.deleteNamespace(ctx, namespace))
}

// createRecords creates a record for each Pod, with its name.
func (c *cluster) createRecords(ctx context.Context, namespace string, pods []*corev1.Pod) error {
	return each(ctx, len(pods), func(i int) error {
		record := &unstructured.Unstructured{Object: map[string]any{}}
		record.SetAPIVersion(records.GroupVersion().String())
		record.SetKind("Record")
		record.SetName(pods[i].Name)
		_, err := c.dynamic.Resource(records).Namespace(namespace).Create(ctx, record, metav1.CreateOptions{})
		return err
	})
}

// writeRecord writes into a record that its run has succeeded.
func (c *cluster) writeRecord(ctx context.Context, namespace, name string) error {
	patch := fmt.Appendf(nil, `{"status":{"exitCode":0,"completionTime":%q}}`, time.Now().UTC().Format(time.RFC3339))
	_, err := c.dynamic.Resource(records).Namespace(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// endedPods returns a channel of the names of the Pods that have succeeded.
func (c *cluster) endedPods(ctx context.Context, namespace string, number int) (<-chan string, error) {
	watcher, err := c.watchPods(ctx, namespace)
	if err != nil {
		return nil, err
	}
	names := make(chan string, number)
	go func() {
		sent := sets.New[string]()
		for event := range watcher.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok && pod.Status.Phase == corev1.PodSucceeded && !sent.Has(pod.Name) {
				sent.Insert(pod.Name)
				names <- pod.Name
			}
		}
	}()
	return names, nil
}
