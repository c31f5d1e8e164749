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
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// minOutputs is the number of outputs of each kind at least, in several rounds if necessary.
const minOutputs = 5

// realNode runs commands on a node that is real, by Ats, CronAts and CronJobs, kind after kind. Those of a
// round are due at one instant. It reports how late the first byte of their output is.
func (b *bench) realNode(ctx context.Context, number int) error {
	if err := b.start(ctx); err != nil {
		return err
	}
	kinds := []struct {
		name   string
		create func(ctx context.Context, namespace string, number int) (time.Time, error)
	}{
		{"At", b.createDue},
		{"CronAt", func(ctx context.Context, namespace string, number int) (time.Time, error) {
			return b.createCronAts(ctx, namespace, number, 0)
		}},
		{"CronJob", b.createCronJobs},
	}
	// The first Pod of a node takes longer.
	if _, err := b.outputs(ctx, 1, b.createDue); err != nil {
		return err
	}
	for range (minOutputs + number - 1) / number {
		for _, kind := range kinds {
			late, err := b.outputs(ctx, number, kind.create)
			if err != nil {
				return err
			}
			for _, by := range late {
				b.sample(kind.name+": first output late", by.Seconds())
			}
		}
	}
	for _, kind := range kinds {
		b.reportMedian(kind.name+": first output late", "s", nil)
	}
	return nil
}

// outputs creates what runs a number of commands at one instant, and returns how late their first
// output was, by the time at which the container runtime has read it.
func (b *bench) outputs(ctx context.Context, number int, create func(ctx context.Context, namespace string, number int) (time.Time, error)) ([]time.Duration, error) {
	namespace, err := b.newNamespace(ctx)
	if err != nil {
		return nil, err
	}
	watcher, err := b.watchPods(ctx, namespace)
	if err != nil {
		return nil, err
	}
	succeeded := observe(watcher, func(object runtime.Object) bool {
		return object.(*corev1.Pod).Status.Phase == corev1.PodSucceeded
	})
	defer succeeded.stop()
	due, err := create(ctx, namespace, number)
	if err != nil {
		return nil, err
	}
	if _, err := succeeded.wait(ctx, number, 10*time.Minute, "Pods that have succeeded"); err != nil {
		return nil, err
	}
	pods, err := b.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var late []time.Duration
	for _, pod := range pods.Items {
		output, err := b.kube.CoreV1().Pods(namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Timestamps: true}).DoRaw(ctx)
		if err != nil {
			return nil, err
		}
		first, text, _ := strings.Cut(string(output), " ")
		at, err := time.Parse(time.RFC3339Nano, first)
		if err != nil || text != "YAY\n" {
			return nil, fmt.Errorf("the log of Pod %s is %q", pod.Name, output)
		}
		late = append(late, at.Sub(due))
	}
	if len(late) != number {
		return nil, fmt.Errorf("there are %d Pods, want %d", len(late), number)
	}
	if slices.Min(late) < 0 {
		return nil, errors.New("it was early")
	}
	return late, b.deleteNamespace(ctx, namespace)
}
