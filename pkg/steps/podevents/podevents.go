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

// Package podevents reads the events that say why Pods do not start.
package podevents

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/connect"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// The API server reads all events of a namespace from etcd, however few are selected. So they
// are read for all Pods of a namespace together, at most every sharedTime, readsPerSecond
// times in all, and one namespace at a time. Those of maxNamespaces are kept.
const (
	sharedTime     = 10 * time.Second
	readsPerSecond = 2
	maxNamespaces  = 16
)

// maxEvents is the number of events to read of one namespace, and maxMessage the number of
// bytes to keep of a message: everybody who can write events decides how many there are, and
// how long.
const (
	maxEvents  = 1000
	maxMessage = 512
)

// readTimeout is how long reading the events of a namespace may take.
const readTimeout = 3 * time.Second

// selector leaves out events of other objects, of Pods that start as they should, and those
// that only repeat the status of the Pod, or come before it: of the scheduler, of images and of
// containers.
var selector = func() string {
	terms := []string{"involvedObject.kind=Pod"}
	for _, reason := range []string{"FailedScheduling", "Failed", "BackOff", "Scheduled", "SandboxChanged", "Pulled", "Created", "Started", "Killing"} {
		terms = append(terms, "reason!="+reason)
	}
	return strings.Join(terms, ",")
}()

// Reader reads the events of Pods. A nil Reader finds none.
type Reader struct {
	client typedcorev1.EventsGetter
	reads  flowcontrol.PassiveRateLimiter
	recent *cache.LRUExpireCache // by namespace: events
	// reading is locked while events are read. A large page takes dozens of megabytes.
	reading sync.Mutex
}

// events are the newest event of each Pod of a namespace, of those that were read, and why there may
// be others.
type events struct {
	newest map[types.UID]*plan.PodEvent
	err    error
}

var (
	errBusy    = errors.New("read events: other events are being read")
	errTooMany = fmt.Errorf("read events: there are more than %d", maxEvents)
)

// NewReader returns a Reader that uses the given client.
func NewReader(client typedcorev1.EventsGetter, wallClock clock.Clock) *Reader {
	return &Reader{
		client: client,
		reads:  flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(readsPerSecond, 5*readsPerSecond, wallClock),
		recent: cache.NewLRUExpireCacheWithClock(maxNamespaces, wallClock),
	}
}

// Newest returns the newest event about a Pod, the zero value if there is none, or nil if that is
// unknown: the events cannot be read now, or not all. It may be a few seconds old. An error is only
// logged, because nothing depends on an event but what is reported.
func (r *Reader) Newest(ctx context.Context, pod *corev1.Pod) *plan.PodEvent {
	if r == nil {
		return &plan.PodEvent{}
	}
	event, err := r.newest(ctx, pod)
	switch {
	case err != nil:
		klog.FromContext(ctx).V(2).Info("The events of a Pod cannot be read", "pod", klog.KObj(pod), "answer", err)
	case event == nil:
		return &plan.PodEvent{}
	}
	return event
}

func (r *Reader) newest(ctx context.Context, pod *corev1.Pod) (*plan.PodEvent, error) {
	recent, ok := r.recent.Get(pod.Namespace)
	if !ok {
		if !r.reading.TryLock() {
			return nil, errBusy
		}
		defer r.reading.Unlock()
		if !r.reads.TryAccept() {
			return nil, errBusy
		}
		recent = r.read(ctx, pod.Namespace)
		// After an error, too: it would probably come again.
		r.recent.Add(pod.Namespace, recent, sharedTime)
	}
	found := recent.(events)
	return found.newest[pod.UID], found.err
}

func (r *Reader) read(ctx context.Context, namespace string) events {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	found, number := map[types.UID]*plan.PodEvent{}, 0
	err := connect.Each(ctx, r.client.Events(namespace).List, metav1.ListOptions{FieldSelector: selector}, func(event *corev1.Event) {
		if number++; number > maxEvents {
			cancel()
			return
		}
		uid, e := event.InvolvedObject.UID, fromAPI(event)
		if before := found[uid]; before == nil || e.Compare(before) > 0 {
			found[uid] = e
		}
	})
	switch {
	case number > maxEvents:
		return events{newest: found, err: errTooMany}
	case err != nil:
		return events{err: fmt.Errorf("read events: %w", err)}
	default:
		return events{newest: found}
	}
}

// fromAPI converts an event. The old and the new API of events have different times.
func fromAPI(event *corev1.Event) *plan.PodEvent {
	e := &plan.PodEvent{
		Warning: event.Type == corev1.EventTypeWarning,
		Reason:  short(event.Reason),
		Message: short(event.Message),
		Time:    event.LastTimestamp.Time,
	}
	for _, other := range []metav1.MicroTime{event.EventTime, ptr.Deref(event.Series, corev1.EventSeries{}).LastObservedTime} {
		if other.After(e.Time) {
			e.Time = other.Time
		}
	}
	return e
}

// short returns a copy, so that the event that it comes from is not kept.
func short(text string) string {
	return strings.Clone(answer.Truncate(answer.OneLine(text), maxMessage))
}
