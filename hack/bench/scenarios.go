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
	"maps"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// far is the time at which pending Ats are due.
var far = time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC)

const mib = 1 << 20

// scenarios are the measurements, each in its own cluster. number is the size.
var scenarios = map[string]func(b *bench, ctx context.Context, number int) error{
	"lone": (*bench).loneOnly,
	// The commands end immediately, or take longCommand.
	"burst":      (*bench).burst,
	"burst-long": (*bench).burst,
	"distant":    (*bench).distant,
	"node":       (*bench).realNode, // needs a node
	"cronjob":    (*bench).cronJob,
	"pending":    (*bench).pending,
	"memory":     (*bench).memory,
	"nodes":      (*bench).nodes,
	"cronats":    (*bench).cronAts,
	"tenants":    (*bench).tenants,
	"hostile":    (*bench).hostile,
	"scale":      (*bench).scale,
	"writes":     (*bench).writes,
}

// loneOnly is lone without any other objects.
func (b *bench) loneOnly(ctx context.Context, number int) error {
	if err := b.start(ctx); err != nil {
		return err
	}
	return b.lone(ctx, number, 300*time.Millisecond, 10, 50)
}

// lone creates Ats that become due one at a time, and reports how late their Pods are
// according to the watch. The limits are in milliseconds.
func (b *bench) lone(ctx context.Context, number int, gap time.Duration, p50, p99 float64) error {
	late, err := b.lateness(ctx, number, gap)
	if err != nil {
		return err
	}
	b.report("earliest, late by", milliseconds(late[0]), "ms", nil)
	b.report("median, late by", milliseconds(median(late)), "ms", &p50)
	b.report("99th of 100, late by", milliseconds(percentile99(late)), "ms", &p99)
	return nil
}

func median(sorted []time.Duration) time.Duration       { return sorted[len(sorted)/2] }
func percentile99(sorted []time.Duration) time.Duration { return sorted[len(sorted)*99/100] }

// lateness creates Ats that become due one at a time, and returns how late their Pods
// are, sorted.
func (b *bench) lateness(ctx context.Context, number int, gap time.Duration) ([]time.Duration, error) {
	namespace, err := b.newNamespace(ctx)
	if err != nil {
		return nil, err
	}
	pods, err := b.seePods(ctx, namespace)
	if err != nil {
		return nil, err
	}
	defer pods.stop()
	first := time.Now().Add(5 * time.Second)
	due := map[string]time.Time{}
	for i := range number {
		at := newAt(fmt.Sprintf("at-%06d", i), first.Add(time.Duration(i)*gap))
		due[plan.PodName(at)] = first.Add(time.Duration(i) * gap)
		if _, err := b.cnat.CnatV1alpha1().Ats(namespace).Create(ctx, at, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
	}
	if _, err := pods.wait(ctx, number, time.Duration(number)*gap+time.Minute, "Pods"); err != nil {
		return nil, err
	}
	var late []time.Duration
	for name, at := range pods.at {
		late = append(late, at.Sub(due[name]))
	}
	slices.Sort(late)
	if late[0] < 0 {
		return nil, errors.New("it was early")
	}
	return late, nil
}

// cronJob creates CronJobs that become due at one instant, for comparison.
func (b *bench) cronJob(ctx context.Context, number int) error {
	if _, err := b.bare(ctx, warmUp); err != nil {
		return err
	}
	bare, err := b.bare(ctx, number)
	if err != nil {
		return err
	}
	namespace, err := b.newNamespace(ctx)
	if err != nil {
		return err
	}
	pods, err := b.seePods(ctx, namespace)
	if err != nil {
		return err
	}
	defer pods.stop()
	if err := b.playKubelet(ctx, namespace, 0, nil); err != nil {
		return err
	}
	due, err := b.createCronJobs(ctx, namespace, number)
	if err != nil {
		return err
	}
	last, err := pods.wait(ctx, number, 10*time.Minute, "Pods of CronJobs")
	if err != nil {
		return err
	}
	b.report("CronJob: last Pod late", last.Sub(due).Seconds(), "s", nil)
	b.report("CronJob: last Pod late, to the bare loop", last.Sub(due).Seconds()/bare.Seconds(), "times", nil)
	return nil
}

// createCronJobs creates CronJobs that are due at the next full minute after all have been
// created, and returns that time.
func (c *cluster) createCronJobs(ctx context.Context, namespace string, number int) (time.Time, error) {
	due := time.Now().Add(time.Minute + 5*time.Second + time.Duration(number)*10*time.Millisecond).Truncate(time.Minute).UTC()
	template := corev1.PodTemplateSpec{Spec: plan.NewPod(newAt("at", due), plan.Defaults{Image: "busybox:1.37.0"}).Spec}
	err := each(ctx, number, func(i int) error {
		_, err := c.kube.BatchV1().CronJobs(namespace).Create(ctx, &batchv1.CronJob{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("cronjob-%06d", i)},
			Spec: batchv1.CronJobSpec{
				Schedule:    due.Format("4 15 2 1 *"),
				TimeZone:    ptr.To("UTC"),
				JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: template}},
			},
		}, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return due, err
	}
	if time.Now().After(due) {
		return due, errors.New("the machine is too slow: the CronJobs were not there before they were due")
	}
	return due, nil
}

// marker is the At, among the pending ones, that the controller processes last. It is
// due.
const marker = "marker"

// pendingNamespaces is the number of namespaces with pending Ats.
const pendingNamespaces = 10

// createPending creates Ats that are due in the far future, and returns their namespaces.
func (b *bench) createPending(ctx context.Context, number int) ([]string, error) {
	var namespaces []string
	for range pendingNamespaces {
		namespace, err := b.newNamespace(ctx)
		if err != nil {
			return nil, err
		}
		namespaces = append(namespaces, namespace)
	}
	for i, namespace := range namespaces {
		if err := b.createAts(ctx, namespace, number/pendingNamespaces, far); err != nil {
			return nil, err
		}
		progress("%d of %d Ats", (i+1)*number/pendingNamespaces, number)
	}
	return namespaces, nil
}

// pending creates very many pending Ats, and reports their cost.
func (b *bench) pending(ctx context.Context, number int) error {
	namespaces, err := b.createPending(ctx, number)
	if err != nil {
		return err
	}
	last := slices.Max(namespaces)
	if _, err := b.cnat.CnatV1alpha1().Ats(last).Create(ctx, newAt(marker, time.Now()), metav1.CreateOptions{}); err != nil {
		return err
	}
	pods, err := b.seePods(ctx, last)
	if err != nil {
		return err
	}
	defer pods.stop()
	if err := b.start(ctx); err != nil {
		return err
	}
	armed, err := pods.wait(ctx, 1, 10*time.Minute, "Pods of the marker")
	if err != nil {
		return err
	}
	b.report("from start to armed", armed.Sub(b.controller.started).Seconds(), "s", ptr.To(20.0))
	progress("idle for a minute and a half")
	if err := sleep(ctx, 30*time.Second); err != nil {
		return err
	}
	before, err := b.controller.cpu()
	if err != nil {
		return err
	}
	start := time.Now()
	if err := sleep(ctx, time.Minute); err != nil {
		return err
	}
	after, err := b.controller.cpu()
	if err != nil {
		return err
	}
	b.report("idle CPU", 100*(after-before).Seconds()/time.Since(start).Seconds(), "% of a core", ptr.To(0.1))
	rss, most, err := b.controller.rss()
	if err != nil {
		return err
	}
	b.report("RSS", rss/mib, "MiB", ptr.To(130.0))
	b.report("RSS at most", most/mib, "MiB", nil)
	writes := 0
	for _, namespace := range namespaces {
		counts, err := b.requests(namespace)
		if err != nil {
			return err
		}
		maps.DeleteFunc(counts, func(request string, _ int) bool {
			return strings.HasPrefix(request, "list ") || strings.HasPrefix(request, "watch ") || strings.HasPrefix(request, "get ") || request == preflights
		})
		for _, count := range counts {
			writes += count
		}
	}
	b.report("writes for those pending", float64(writes), "", ptr.To(0.0))
	return b.lone(ctx, 100, 200*time.Millisecond, 100, 100)
}

// memory creates and deletes very many Ats, and reports whether their memory is released.
func (b *bench) memory(ctx context.Context, number int) error {
	if err := b.start(ctx); err != nil {
		return err
	}
	// The controller's base usage is not measured.
	if err := b.comeAndGo(ctx, warmUp, func() error { return sleep(ctx, 10*time.Second) }); err != nil {
		return err
	}
	if err := sleep(ctx, time.Minute); err != nil {
		return err
	}
	before, _, err := b.controller.rss()
	if err != nil {
		return err
	}
	b.report("RSS before", before/mib, "MiB", nil)
	err = b.comeAndGo(ctx, number, func() error {
		full, _, err := b.controller.rss()
		b.report("RSS with all", full/mib, "MiB", nil)
		return err
	})
	if err != nil {
		return err
	}
	gone := time.Now()
	var now float64
	for time.Since(gone) < 2*time.Minute {
		if now, _, err = b.controller.rss(); err != nil {
			return err
		}
		progress("RSS is %.1f MiB, %v after the end, before it was %.1f MiB", now/mib, time.Since(gone).Round(time.Second), before/mib)
		if err := sleep(ctx, 10*time.Second); err != nil {
			return err
		}
	}
	b.report("RSS two minutes after", now/mib, "MiB", nil)
	b.report("RSS after, to before", now/before, "times", ptr.To(1.5))
	return nil
}

// comeAndGo creates Ats that are due in the far future, calls meanwhile, and deletes the
// Ats.
func (b *bench) comeAndGo(ctx context.Context, number int, meanwhile func() error) error {
	namespaces, err := b.createPending(ctx, number)
	if err != nil {
		return err
	}
	if err := meanwhile(); err != nil {
		return err
	}
	return b.deleteAts(ctx, namespaces)
}

// deleteAts deletes all Ats in some namespaces.
func (b *bench) deleteAts(ctx context.Context, namespaces []string) error {
	progress("deleting all")
	return each(ctx, len(namespaces), func(i int) error {
		ats := b.cnat.CnatV1alpha1().Ats(namespaces[i])
		// A request must finish within a minute.
		for {
			_ = ats.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
			left, err := ats.List(ctx, metav1.ListOptions{Limit: 1})
			if err != nil || len(left.Items) == 0 {
				return err
			}
		}
	})
}

// tenants creates very many Ats in one namespace and ten in another, all due at one
// instant.
func (b *bench) tenants(ctx context.Context, number int) error {
	many, err := b.newNamespace(ctx)
	if err != nil {
		return err
	}
	few, err := b.newNamespace(ctx)
	if err != nil {
		return err
	}
	if err := b.start(ctx); err != nil {
		return err
	}
	pods, err := b.seePods(ctx, few)
	if err != nil {
		return err
	}
	defer pods.stop()
	due, err := b.createDue(ctx, many, number)
	if err != nil {
		return err
	}
	if err := b.createAts(ctx, few, 10, due); err != nil {
		return err
	}
	last, err := pods.wait(ctx, 10, 10*time.Minute, "Pods of the small tenant")
	if err != nil {
		return err
	}
	b.report("small tenant's last Pod late", last.Sub(due).Seconds(), "s", ptr.To(1.0))
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
