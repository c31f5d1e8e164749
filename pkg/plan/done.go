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

package plan

import (
	"time"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// decideDone decides when to delete an At that has ended.
func (v *view) decideDone() Decision {
	end, seconds := endSeen(v.At), v.At.Spec.TTLSecondsAfterFinished
	if seconds == nil || end.IsZero() {
		return Decision{}
	}
	ttl := max(Seconds(*seconds), minTTL)
	if wait := end.Add(ttl).Sub(v.Now); wait > 0 {
		return Decision{Delay: wait}
	}
	return Decision{Action: DeleteAt{}}
}

// DeletableAt returns the earliest time at which an At that has ended may be deleted.
func DeletableAt(at *v1alpha1.At) time.Time { return endSeen(at).Add(minTTL) }
