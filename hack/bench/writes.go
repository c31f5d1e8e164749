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
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// writes reports what each write of a run costs the API server, and what a record of the floor costs.
// It depends less than time on what else the machine does: compare the writes of one run.
func (b *bench) writes(ctx context.Context, number int) error {
	if err := b.createRecordCRD(ctx); err != nil {
		return err
	}
	if _, err := b.bare(ctx, warmUp); err != nil {
		return err
	}
	namespace, pods, err := b.podsToCreate(ctx, number)
	if err != nil {
		return err
	}
	if err := b.createRecords(ctx, namespace, pods); err != nil {
		return err
	}
	now := time.Now().UTC().Format(time.RFC3339)
	kinds := []struct {
		what string
		do   func(i int) error
	}{
		{"create a Pod", func(i int) (err error) {
			pods[i].Finalizers = []string{v1alpha1.FinalizerTracking}
			pods[i], err = b.kube.CoreV1().Pods(namespace).Create(ctx, pods[i], metav1.CreateOptions{})
			return err
		}},
		{"the kubelet's status of a Pod", func(i int) error { return b.writePodStatus(ctx, pods[i], false) }},
		{"the status of a record", func(i int) error {
			return b.writeRecord(ctx, namespace, pods[i].Name)
		}},
		{"the status DONE of an At", func(i int) error {
			patch := fmt.Appendf(nil, `{"status":{"phase":"DONE","reason":"Completed","message":"The command ended with exit code 0.","scheduledTime":%q,"startTime":%q,"completionTime":%q,"exitCode":0,"observedGeneration":1,"pod":{"name":%q,"uid":%q,"phase":"Succeeded"},"conditions":[{"type":"Complete","status":"True","reason":"Completed","message":"The command ended with exit code 0.","lastTransitionTime":%q,"observedGeneration":1}]}}`, now, now, now, pods[i].Name, pods[i].UID, now)
			_, err := b.cnat.CnatV1alpha1().Ats(namespace).Patch(ctx, fmt.Sprintf("at-%06d", i), types.MergePatchType, patch, metav1.PatchOptions{}, "status")
			return err
		}},
		{"remove the finalizer of a Pod", func(i int) error {
			patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"$deleteFromPrimitiveList/finalizers":[%q]}}`, pods[i].UID, v1alpha1.FinalizerTracking)
			_, err := b.kube.CoreV1().Pods(namespace).Patch(ctx, pods[i].Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			return err
		}},
		{"create an event", func(i int) error {
			_, err := b.kube.CoreV1().Events(namespace).Create(ctx, &corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprint("event-", i), Namespace: namespace},
				InvolvedObject: corev1.ObjectReference{Kind: "At", Namespace: namespace, Name: fmt.Sprintf("at-%06d", i), UID: pods[i].UID, APIVersion: v1alpha1.SchemeGroupVersion.String()},
				Reason:         "Completed", Message: "The command ended with exit code 0.", Source: corev1.EventSource{Component: "cnat-controller"},
				FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(), Count: 1, Type: "Normal",
			}, metav1.CreateOptions{})
			return err
		}},
	}
	for _, kind := range kinds {
		if err := sleep(ctx, pause); err != nil {
			return err
		}
		before, err := b.usage(ctx)
		if err != nil {
			return err
		}
		if err := each(ctx, number, kind.do); err != nil {
			return fmt.Errorf("%s: %w", kind.what, err)
		}
		after, err := b.usage(ctx)
		if err != nil {
			return err
		}
		b.report(kind.what+": processor time of the API server", (after.cpu-before.cpu)*1000/float64(number), "ms", nil)
	}
	return nil
}
