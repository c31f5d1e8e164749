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
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	informers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// watches is the number of namespaces with an informer of their own.
const watches = 100

// usage is what the API server and etcd use.
type usage struct{ memory, cpu, etcd float64 }

// usage returns the current usage: bytes after a garbage collection, seconds, and bytes.
func (c *cluster) usage(ctx context.Context) (usage, error) {
	client := c.kube.CoreV1().RESTClient()
	if _, err := client.Get().AbsPath("/debug/pprof/heap").Param("gc", "1").DoRaw(ctx); err != nil {
		return usage{}, err
	}
	metrics, err := client.Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return usage{}, err
	}
	sums := map[string]float64{}
	for line := range bytes.Lines(metrics) {
		name, value, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		name, _, _ = strings.Cut(name, "{")
		if number, err := strconv.ParseFloat(value, 64); err == nil {
			sums[name] += number
		}
	}
	u := usage{sums["go_memstats_heap_alloc_bytes"] + sums["go_memstats_stack_inuse_bytes"], sums["process_cpu_seconds_total"], sums["apiserver_storage_size_bytes"]}
	if u.memory == 0 || u.cpu == 0 || u.etcd == 0 {
		return u, errors.New("the API server does not report its usage")
	}
	return u, nil
}

// scale reports what a number of pending Ats cost the API server and etcd, at three sizes, because
// part of that does not depend on the number. Then it reports what an informer of all
// namespaces and informers of single namespaces cost.
func (b *bench) scale(ctx context.Context, number int) error {
	if _, err := b.createPending(ctx, warmUp); err != nil {
		return err
	}
	const sizes = 3
	for size := range sizes {
		before, err := b.usage(ctx)
		if err != nil {
			return err
		}
		if _, err := b.createPending(ctx, number/sizes); err != nil {
			return err
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
		after, err := b.usage(ctx)
		if err != nil {
			return err
		}
		more := fmt.Sprintf("from %d to %d Ats: ", size*number/sizes, (size+1)*number/sizes)
		b.report(more+"etcd", (after.etcd-before.etcd)/float64(number/sizes), "bytes for each more", nil)
		b.report(more+"memory of the API server", (after.memory-before.memory)/float64(number/sizes), "bytes for each more", nil)
	}

	if err := b.inform(ctx, "an informer of all namespaces", []string{""}); err != nil {
		return err
	}
	namespaces := make([]string, watches)
	if err := each(ctx, watches, func(i int) (err error) {
		namespaces[i], err = b.newNamespace(ctx)
		return err
	}); err != nil {
		return err
	}
	return b.inform(ctx, "informers of "+strconv.Itoa(watches)+" empty namespaces", namespaces)
}

// inform starts an informer of Ats for each namespace, and reports what they cost.
func (b *bench) inform(ctx context.Context, what string, namespaces []string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	before, err := b.usage(ctx)
	if err != nil {
		return err
	}
	own, start := inUse(), time.Now()
	var synced []cache.DoneChecker
	for _, namespace := range namespaces {
		informer := informers.NewFilteredAtInformer(b.cnat, namespace, 0, cache.Indexers{}, nil)
		if err := informer.SetTransform(func(object any) (any, error) { return plan.KeepAt(object.(*v1alpha1.At)), nil }); err != nil {
			return err
		}
		go informer.RunWithContext(ctx)
		synced = append(synced, informer.HasSyncedChecker())
	}
	for _, informer := range synced {
		select {
		case <-informer.Done():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	b.report(what+": synced after", time.Since(start).Seconds(), "s", nil)
	after, err := b.usage(ctx)
	if err != nil {
		return err
	}
	b.report(what+": memory of the client", (inUse()-own)/mib, "MiB", nil)
	b.report(what+": memory of the API server", (after.memory-before.memory)/mib, "MiB", nil)
	b.report(what+": processor time of the API server", after.cpu-before.cpu, "s", nil)
	return nil
}

// inUse returns the bytes that are in use in this process.
func inUse() float64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc + stats.StackInuse)
}

// processorTime returns what this process has used so far.
func processorTime() time.Duration {
	var used syscall.Rusage
	utilruntime.Must(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
