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

import "time"

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
