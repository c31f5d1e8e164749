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

// Package staleness keeps controllers from acting on what is no longer true. Tracker reports
// how far the cache of an informer can be behind the API server. Written remembers what was
// written until it is in the cache.
//
// A watch delivers changes in the order of their resource versions. A cache that has
// reached the resource version of a write therefore has all changes that were made before
// that write was sent. The controllers of Kubernetes compare resource versions for a
// similar reason: see KEP-5647, Stale Controller Handling.
package staleness

import (
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/utils/clock"
)

const (
	// period is the interval between claimed writes.
	period = 100 * time.Millisecond
	// slowPeriod is the interval between claimed writes while they are slow, or not answered.
	slowPeriod = 10 * time.Second
)

// Tracker follows a cache, and the writes of this process to the objects in it.
type Tracker struct {
	reached func() string

	lock   sync.Mutex
	writes []reply   // that are not in the cache yet, in the order of their answers
	newest reply     // that is in the cache
	next   time.Time // when a write can be claimed
}

// Write is a write that is being sent.
type Write struct {
	sent   time.Time
	before string // the resource version of the cache
}

type reply struct {
	resourceVersion string
	sent            time.Time
}

// NewTracker returns a Tracker. reached returns the resource version up to which the cache is
// complete, or "" if that is unknown: for example, LastStoreSyncResourceVersion of an
// informer's store.
func NewTracker(reached func() string) *Tracker {
	return &Tracker{reached: reached}
}

// Claim returns true to one of concurrent callers if a write is useful now, so that the
// cache is soon known to be fresh. That caller must send one. While writes are slow, they
// are rarely useful, and the other workers should not wait for theirs.
func (t *Tracker) Claim(now time.Time) bool {
	t.lock.Lock()
	defer t.lock.Unlock()
	if now.Before(t.next) {
		return false
	}
	t.next = now.Add(slowPeriod)
	return true
}

// Sending must be called just before a write is sent.
func (t *Tracker) Sending(now time.Time) Write {
	return Write{sent: now, before: t.reached()}
}

// Answered must be called with the answer to each write: the new resource version or, if
// the write failed or changed nothing, "". An object that was not changed is as old as
// its last change.
func (t *Tracker) Answered(w Write, resourceVersion string, now time.Time) {
	t.lock.Lock()
	defer t.lock.Unlock()
	if now.Sub(w.sent) < FreshFor {
		t.next = w.sent.Add(period)
	}
	// After a restore of etcd, a resource version may be lower than that of the cache.
	if order, err := resourceversion.CompareResourceVersion(resourceVersion, w.before); err == nil && order > 0 {
		t.writes = append(t.writes, reply{resourceVersion, w.sent})
	}
}

// Send sends a write of an object, of which before is the last version, and remembers the
// answer.
func Send[T metav1.Object](written *Written[T], tracker *Tracker, clock clock.PassiveClock, before T, send func() (T, error)) (T, error) {
	write := tracker.Sending(clock.Now())
	after, err := send()
	changed := ""
	if err == nil && after.GetResourceVersion() != before.GetResourceVersion() {
		changed = after.GetResourceVersion()
	}
	tracker.Answered(write, changed, clock.Now())
	if err == nil {
		written.Remember(after)
	}
	return after, err
}

// AsOf returns a time: the cache has all changes that were made before it. It is the zero time if
// that is unknown. Call AsOf before reading from the cache.
func (t *Tracker) AsOf(now time.Time) time.Time {
	t.lock.Lock()
	defer t.lock.Unlock()
	reached := t.reached()
	inCache := func(w reply) bool {
		order, err := resourceversion.CompareResourceVersion(w.resourceVersion, reached)
		return err == nil && order <= 0
	}
	if !inCache(t.newest) { // The cache was filled again with older objects.
		t.newest = reply{}
	}
	for len(t.writes) > 0 {
		switch first := t.writes[0]; {
		case !inCache(first):
			if now.Sub(first.sent) < FreshFor {
				return t.newest.sent
			}
		case first.sent.After(t.newest.sent):
			t.newest = first
		}
		t.writes = t.writes[1:]
	}
	return t.newest.sent
}

// FreshFor is the maximum age of an object that is not read again before a controller acts
// on it: an edit that was made earlier than that is always honored.
const FreshFor = 500 * time.Millisecond

// IsFresh reports whether an object is recent enough to act on it. asOf is when it was
// read or, for an object from a cache, a time before which nothing was changed that is not
// in the cache.
func IsFresh(asOf, now time.Time) bool {
	// Also compare the wall clock: the monotonic clock does not count the time during which a
	// machine sleeps.
	age, wallAge := now.Sub(asOf), now.Round(0).Sub(asOf.Round(0))
	return 0 <= age && age < FreshFor && 0 <= wallAge && wallAge < FreshFor
}

// Written holds written objects that are not in the cache yet.
type Written[T metav1.Object] struct {
	cached func(namespace, name string) (T, error)
	keep   func(T) T

	lock    sync.Mutex
	objects map[types.UID]T
}

// NewWritten returns an empty Written. cached reads an object from the cache. keep returns the
// part of an object to remember.
func NewWritten[T metav1.Object](cached func(namespace, name string) (T, error), keep func(T) T) *Written[T] {
	return &Written[T]{cached: cached, keep: keep, objects: map[types.UID]T{}}
}

// Latest returns the last written version of an object if that is newer than the given
// version from the cache.
func (o *Written[T]) Latest(cached T) T {
	o.lock.Lock()
	defer o.lock.Unlock()
	if object, ok := o.objects[cached.GetUID()]; ok {
		if IsNewer(object, cached) {
			return object
		}
		return cached
	}
	// Objects that were forgotten after cached was read are in the cache by now.
	if current, err := o.cached(cached.GetNamespace(), cached.GetName()); err == nil && current.GetUID() == cached.GetUID() {
		return current
	}
	return cached
}

// Remember must be called with each written object.
func (o *Written[T]) Remember(object T) {
	o.lock.Lock()
	defer o.lock.Unlock()
	// The informer's handlers run after the cache has changed. If the cache does not have
	// the object yet, Seen will be called.
	if cached, err := o.cached(object.GetNamespace(), object.GetName()); err == nil && cached.GetUID() == object.GetUID() && IsNewer(object, cached) {
		o.objects[object.GetUID()] = o.keep(object)
	}
}

// Seen must be called with each object that enters the cache. isOwn is true if the object is known
// to have no changes but those of Remember. It is false if the answer to a write arrives later.
func (o *Written[T]) Seen(cached T) (isOwn bool) {
	o.lock.Lock()
	defer o.lock.Unlock()
	object, ok := o.objects[cached.GetUID()]
	if ok && !IsNewer(object, cached) {
		delete(o.objects, cached.GetUID())
	}
	return ok && !IsNewer(cached, object)
}

// Forget must be called for each object that is gone.
func (o *Written[T]) Forget(uid types.UID) {
	o.lock.Lock()
	defer o.lock.Unlock()
	delete(o.objects, uid)
}

// IsNewer reports whether a is a later version of the same kind of object than b.
func IsNewer(a, b metav1.Object) bool {
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order > 0
}
