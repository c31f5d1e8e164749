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
	corev1 "k8s.io/api/core/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// Leave decides for an At while the controller is being uninstalled. Nothing starts. A Pod
// is released when its run cannot start a second time: the At is gone or being deleted, or
// its status has the Pod.
func Leave(w World) Decision {
	if !w.AtIsLive {
		return Decision{Action: LookForAt{}}
	}
	var attempt *corev1.Pod // whose outcome the status may lack
	if at := w.At; at != nil && !isLeaving(at) && at.Status.Phase != v1alpha1.PhaseDone && !isNodesRun(at) && !isRestart(at) {
		if v := newView(w); v.owned && (!recorded(at) || v.pod.UID == at.Status.Pod.UID) {
			attempt = v.pod
			d := v.decideRunning()
			if hasEnded(attempt) {
				d = v.decideEnded()
			}
			if d.Status != nil {
				return d
			}
		}
	}
	for _, pod := range w.Pods {
		if isTracked(pod) && (pod != attempt || isCounted(w.At, pod) || recorded(w.At)) {
			return Decision{Action: ReleasePod{Pod: pod}}
		}
	}
	return Decision{}
}
