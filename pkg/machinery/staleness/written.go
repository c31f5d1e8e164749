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

package staleness

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

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

// Seen must be called with each object that enters the cache.
func (o *Written[T]) Seen(cached T) {
	o.lock.Lock()
	defer o.lock.Unlock()
	if object, ok := o.objects[cached.GetUID()]; ok && !IsNewer(object, cached) {
		delete(o.objects, cached.GetUID())
	}
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
