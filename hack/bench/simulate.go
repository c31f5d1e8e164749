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
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	goruntime "runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/scheme"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/queue"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

const (
	tenants = 10_000 // namespaces
	atOnce  = 10_000 // Ats that are due at one instant
	workers = 16     // as many as the controller has by default
)

// simulate measures without a cluster: how a number of Ats would spread over shards, and
// what one process needs for them with the cache, the queue and the decisions of the
// controller.
func (b *bench) simulate(number int) error {
	debug.SetGCPercent(20) // like the controller
	b.scenario, b.number = "simulate", number
	b.spread(number)
	for _, part := range []int{number / 10, number * 3 / 10, number} {
		b.number = part
		if err := b.oneProcess(part); err != nil {
			return err
		}
	}
	return nil
}

func tenant(i int) string { return fmt.Sprintf("tenant-%05d", i) }

// spread reports the load of the largest of a number of shards, and what moves when their
// number changes. Some namespaces have very many Ats, in random order.
func (b *bench) spread(number int) {
	random := rand.New(rand.NewPCG(1, 1))
	skewed, even := make([]int, tenants), make([]int, tenants)
	zipf, order := rand.NewZipf(random, 1.1, 10, tenants-1), random.Perm(tenants)
	for i := range number {
		skewed[order[zipf.Uint64()]]++
		even[i%tenants]++
	}
	b.report("the largest namespace", 100*float64(slices.Max(skewed))/float64(number), "% of the Ats", nil)
	for _, method := range []struct {
		name    string
		shardOf func(shards int) []int
	}{{"rendezvous", rendezvous}, {"ranges", ranges}} {
		for _, shards := range []int{2, 4, 8, 16} {
			now := method.shardOf(shards)
			b.report(fmt.Sprintf("%s, %d shards, even namespaces: the largest, to the mean", method.name, shards), largest(now, even, shards), "times", nil)
			b.report(fmt.Sprintf("%s, %d shards, skewed namespaces: the largest, to the mean", method.name, shards), largest(now, skewed, shards), "times", nil)
			for _, change := range []int{shards - 1, shards + 1} {
				then, moved := method.shardOf(change), 0
				for i := range tenants {
					if now[i] != then[i] {
						moved++
					}
				}
				b.report(fmt.Sprintf("%s, %d shards, then %d: moved", method.name, shards, change), 100*float64(moved)/tenants, "% of the namespaces", nil)
			}
		}
	}
}

// largest returns the number of Ats of the largest shard, divided by the mean.
func largest(shardOf, ats []int, shards int) float64 {
	sums, all := make([]int, shards), 0
	for i, shard := range shardOf {
		sums[shard] += ats[i]
		all += ats[i]
	}
	return float64(slices.Max(sums)) * float64(shards) / float64(all)
}

// rendezvous returns the shard of each namespace: the one whose hash with it is the highest.
func rendezvous(shards int) []int {
	shardOf := make([]int, tenants)
	for i := range tenants {
		highest := uint64(0)
		for shard := range shards {
			sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", tenant(i), shard))
			if hash := binary.BigEndian.Uint64(sum[:]); hash >= highest {
				highest, shardOf[i] = hash, shard
			}
		}
	}
	return shardOf
}

// ranges returns the shard of each namespace if the API server selects equal ranges of
// hashes, by its own code.
func ranges(shards int) []int {
	bounds := make([]string, shards+1)
	for shard := range shards {
		bounds[shard] = fmt.Sprintf("0x%016x", ^uint64(0)/uint64(shards)*uint64(shard))
	}
	bounds[shards] = "0x10000000000000000"
	shardOf := make([]int, tenants)
	for shard := range shards {
		selector := sharding.NewSelector(sharding.ShardRangeRequirement{Key: "object.metadata.namespace", Start: bounds[shard], End: bounds[shard+1]})
		for i := range tenants {
			matches, err := selector.Matches(&v1alpha1.At{ObjectMeta: metav1.ObjectMeta{Namespace: tenant(i)}})
			utilruntime.Must(err) // An error would mean that the selector does not know the field.
			if matches {
				shardOf[i] = shard
			}
		}
	}
	return shardOf
}

// oneProcess reports what a number of pending Ats cost in this process, and how fast its
// queue is when more are due at one instant.
func (b *bench) oneProcess(number int) error {
	ats := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	queue := queue.New("simulate", nil, workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](time.Second, time.Minute), clock.RealClock{})
	defer queue.ShutDown()
	before := inUse()
	decoding, err := fill(ats, 0, number, far)
	if err != nil {
		return err
	}
	cached := inUse()
	b.report("decoding", microseconds(decoding, number), "µs for each At", nil)
	b.report("cache", (cached-before)/float64(number), "bytes for each At", nil)

	start := processorTime()
	for _, object := range ats.List() {
		if isDue(object.(*v1alpha1.At)) {
			return fmt.Errorf("%v is due", object)
		}
	}
	b.report("deciding", microseconds(processorTime()-start, number), "µs for each At", nil)
	start = processorTime()
	goruntime.GC()
	b.report("garbage collection", (processorTime() - start).Seconds(), "s", nil)

	due := time.Now().Add(10 * time.Second)
	if _, err := fill(ats, number, number+atOnce, due); err != nil {
		return err
	}
	for i := number; i < number+atOnce; i++ {
		queue.AddAfter(cache.NewObjectName(tenant(i%tenants), fmt.Sprintf("at-%07d", i)), time.Until(due))
	}
	start = processorTime()
	var wg sync.WaitGroup
	var done atomic.Int64
	for range workers {
		wg.Go(func() {
			for name, shutdown := queue.Get(); !shutdown; name, shutdown = queue.Get() {
				object, exists, _ := ats.GetByKey(name.String()) // Reading from a cache cannot fail.
				if !exists || !isDue(object.(*v1alpha1.At)) {
					panic(fmt.Sprintf("%s is not due", name))
				}
				queue.Done(name)
				if done.Add(1) == atOnce {
					queue.ShutDown()
				}
			}
		})
	}
	wg.Wait()
	b.report(fmt.Sprintf("%d due at one instant: from the queue, and deciding", atOnce), microseconds(processorTime()-start, atOnce), "µs for each At", nil)
	return nil
}

// isDue decides as the controller does, and returns true if an At is due.
func isDue(at *v1alpha1.At) bool {
	return plan.Decide(plan.World{At: at, Now: time.Now()}).Action != nil
}

// fill adds Ats as the API server sends them, and returns the processor time for
// decoding them and adding them to the cache.
func fill(ats cache.Indexer, from, to int, due time.Time) (decoding time.Duration, err error) {
	created := time.Now()
	for i := from; i < to; i++ {
		at := newAt(fmt.Sprintf("at-%07d", i), due)
		at.APIVersion, at.Kind = v1alpha1.SchemeGroupVersion.String(), "At"
		at.Namespace, at.UID = tenant(i%tenants), types.UID(uuid.NewUUID())
		at.ResourceVersion, at.Generation, at.CreationTimestamp = fmt.Sprint(1_000_000+i), 1, metav1.NewTime(created)
		at.ManagedFields = []metav1.ManagedFieldsEntry{{
			Manager: "bench", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: at.APIVersion, Time: &at.CreationTimestamp,
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{".":{},"f:command":{},"f:schedule":{}}}`),
		}}
		at.Status.Phase = v1alpha1.PhasePending
		text, err := json.Marshal(at)
		if err != nil {
			return 0, err
		}
		start := processorTime()
		decoded := &v1alpha1.At{}
		if err := runtime.DecodeInto(scheme.Codecs.UniversalDeserializer(), text, decoded); err != nil {
			return 0, err
		}
		if err := ats.Add(plan.KeepAt(decoded)); err != nil {
			return 0, err
		}
		decoding += processorTime() - start
	}
	return decoding, nil
}

func microseconds(all time.Duration, number int) float64 {
	return float64(all.Microseconds()) / float64(number)
}
