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

// Package freshness reports how far the cache of an informer can be behind the API
// server.
//
// A watch delivers changes in the order of their resource versions. A cache that has
// reached the resource version of a write therefore has all changes that were made before
// that write was sent. The controllers of Kubernetes compare resource versions for a
// similar reason: see KEP-5647, Stale Controller Handling.
package freshness

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

const (
	// period is the time after the last write when a further one is wanted.
	period = 100 * time.Millisecond
	// spacing is the minimum time between writes that are remembered. Others add little.
	spacing = 10 * time.Millisecond
	// memory is how long a write that is not in the cache yet is remembered.
	memory = time.Second
)

// Cache follows the writes of this process to the objects of a cache.
type Cache struct {
	reached func() string

	lock   sync.Mutex
	writes []write // that are not in the cache yet, in the order of sent
	newest write   // that is in the cache
	last   time.Time
}

type write struct {
	resourceVersion string
	sent            time.Time
}

// New returns a Cache. reached returns the resource version up to which the cache is
// complete, or "" if that is unknown, as LastStoreSyncResourceVersion of an informer's
// store does.
func New(reached func() string) *Cache {
	return &Cache{reached: reached}
}

// Wrote must be called after a write that changed an object of the cache, with the new
// resource version and the time just before the request was sent. The result of a write
// that changed nothing is as old as the last change and must not be reported.
func (c *Cache) Wrote(resourceVersion string, sent time.Time) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.update(sent)
	if sent.After(c.last) {
		c.last = sent
	}
	if len(c.writes) == 0 || sent.Sub(c.writes[len(c.writes)-1].sent) >= spacing {
		c.writes = append(c.writes, write{resourceVersion, sent})
	}
}

// WantsWrite reports whether a write is useful now, so that the cache is soon known to be
// fresh. Of concurrent callers, one gets true.
func (c *Cache) WantsWrite(now time.Time) bool {
	c.lock.Lock()
	defer c.lock.Unlock()
	if now.Sub(c.last) < period {
		return false
	}
	c.last = now
	return true
}

// AsOf returns a time before which nothing was changed that is not in the cache, or the
// zero time if that is unknown. Call it before reading from the cache.
func (c *Cache) AsOf(now time.Time) time.Time {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.update(now)
	return c.newest.sent
}

// update forgets the writes that have reached the cache, and those that are too old.
func (c *Cache) update(now time.Time) {
	reached := c.reached()
	hasReached := func(w write) bool {
		order, err := resourceversion.CompareResourceVersion(w.resourceVersion, reached)
		return err == nil && order <= 0
	}
	if !hasReached(c.newest) { // The cache was filled again with older objects.
		c.newest = write{}
	}
	kept := c.writes[:0]
	for _, w := range c.writes {
		switch {
		case hasReached(w):
			c.newest = w
		case now.Sub(w.sent) < memory:
			kept = append(kept, w)
		}
	}
	c.writes = kept
}
