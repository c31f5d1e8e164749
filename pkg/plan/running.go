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
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// decideRunning decides for an At whose Pod has not ended.
func (v *view) decideRunning() Decision {
	pod, status, events := v.pod, v.statusWithPod(), v.podEvents()
	if !v.stopRestarts(status) {
		events = append(events, v.mirrorBlocked(status)...)
	}
	d := v.write(status, events...)
	if d.Status != nil {
		return d
	}
	d.Delay = checkDelay
	switch {
	case isDeletedByForce(pod):
		d.Delay = min(Grace-v.Now.Sub(pod.DeletionTimestamp.Time), checkDelay)
	case pod.DeletionTimestamp != nil:
	case failureTarget(v.At) != nil:
		d.Action = DeletePod{Pod: pod}
	case v.activeLeft <= 0:
		// Write the reason before deleting the Pod: the deletion alone does not tell why.
		return v.writeFailureTarget(v1alpha1.ReasonDeadlineExceeded, v.activeDeadlineMessage())
	default:
		d.Delay = min(v.activeLeft, v.checkStart())
	}
	return d
}
