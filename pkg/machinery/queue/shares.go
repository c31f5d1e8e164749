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

package queue

// Shares limits how many items each namespace has in flight. Use it only under a lock.
//
// There is a total. A namespace may have a share of what the others leave of it, and at least
// one item. The share is such that a single namespace can have as many in flight as there are
// workers, and no more: workers/total. Thus k namespaces whose items all hang leave
// total*(1-share)^k to the others, in whatever order they come.
type Shares struct {
	workers, total int
	inFlight       map[string]int // by namespace
	all            int            // the sum of inFlight
}

// NewShares returns Shares without items in flight. total must be more than workers.
func NewShares(workers, total int) *Shares {
	return &Shares{workers: workers, total: total, inFlight: map[string]int{}}
}

// IsOpen reports whether a namespace may have another item in flight.
func (s *Shares) IsOpen(namespace string) bool {
	return s.all < s.total && s.inFlight[namespace] < s.of(namespace)
}

// Begin counts an item of a namespace that is open.
func (s *Shares) Begin(namespace string) {
	s.inFlight[namespace]++
	s.all++
}

// End is called when an item is done.
func (s *Shares) End(namespace string) {
	s.all--
	if s.inFlight[namespace]--; s.inFlight[namespace] == 0 {
		delete(s.inFlight, namespace)
	}
}

// of returns the share of a namespace.
func (s *Shares) of(namespace string) int {
	left := s.total - (s.all - s.inFlight[namespace])
	return max(1, left*s.workers/s.total)
}
