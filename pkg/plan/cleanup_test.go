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
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// withUID gives a Pod a UID that no status contains.
func withUID(pod *corev1.Pod) { pod.UID = "late" }

func withReleased(pod *corev1.Pod) { pod.Finalizers = nil }

func TestCleanUp(t *testing.T) {
	// done is an At whose run ended at now.
	done := func(mutate ...func(*v1alpha1.At)) *v1alpha1.At {
		at := newAt(withStatus(running(corev1.PodSucceeded)))
		at.Status.Phase = v1alpha1.PhaseDone
		at.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionComplete, metav1.ConditionTrue, now, "Any", "")}
		return edited(at, mutate...)
	}
	// doneFailed is an At whose second attempt was the last.
	doneFailed := newAt(withStatus(*secondRunning(corev1.PodFailed)))
	doneFailed.Status.Phase, doneFailed.Status.Failed = v1alpha1.PhaseDone, 2
	deletedAt := func(at *v1alpha1.At) { at.DeletionTimestamp = &metav1.Time{Time: now} }
	ofEarlierAt := func(pod *corev1.Pod) {
		pod.OwnerReferences[0].UID, pod.Labels[v1alpha1.LabelAtUID] = "earlier-uid", "earlier-uid"
	}
	const held = 9500 * time.Millisecond

	for name, tc := range map[string]struct {
		// world
		at  *v1alpha1.At
		pod *corev1.Pod
		now time.Time
		// expectations
		want string // if the At comes from a cache
	}{
		"done, in an hour by another clock: released":      {at: done(), pod: succeededPod(), now: now.Add(-time.Hour), want: "ReleasePod example-at-pod"},
		"a failed attempt, kept for long enough: released": {at: newAt(withStatus(*nextAttempt(1, now.Add(10*time.Second)))), pod: failedPod(), now: now.Add(held), want: "ReleasePod example-at-pod"},
		"the next attempt runs: released":                  {at: newAt(withStatus(*secondRunning(corev1.PodRunning))), pod: failedPod(), now: now, want: "ReleasePod example-at-pod"},
		"done, a second Pod of the last attempt: deleted": {
			at: doneFailed, pod: runningPod(second, withUID), now: now,
			want: "DeletePod example-at-pod-1 unexpected; Warning UnexpectedPod: Pod example-at-pod-1 was created a second time after its attempt had been counted: deleting it.",
		},
		"the Pod of the current attempt, not recorded yet: kept": {at: newAt(), pod: pendingPod(), now: now, want: "nothing"},
		"done: kept":                                 {at: done(), pod: succeededPod(), now: now.Add(9 * time.Second), want: "wait 500ms"},
		"done, and being deleted: released":          {at: done(deletedAt), pod: succeededPod(), now: now, want: "ReleasePod example-at-pod"},
		"done, the Pod released already":             {at: done(), pod: succeededPod(withReleased), now: now.Add(held), want: "nothing"},
		"being deleted while the Pod runs: released": {at: runningAt(deletedAt), pod: runningPod(), now: now, want: "ReleasePod example-at-pod"},
		"a failed attempt, the next is far off: kept equally long": {
			at: newAt(withStatus(*nextAttempt(3, now.Add(40*time.Second)))), pod: failedPod(func(pod *corev1.Pod) { pod.Name, pod.UID = "example-at-pod-2", "third" }), now: now.Add(9 * time.Second),
			want: "wait 500ms",
		},
		"the attempt before the last: released":                      {at: newAt(withStatus(*nextAttempt(3, now.Add(40*time.Second)))), pod: failedPod(), now: now, want: "ReleasePod example-at-pod"},
		"an At from a stale cache, the Pod of a later attempt: kept": {at: runningAt(), pod: runningPod(second), now: now, want: "nothing"},
		"done, a second Pod has the name and has ended: also deleted": {
			at: done(), pod: succeededPod(withUID), now: now,
			want: "DeletePod example-at-pod unexpected; Warning UnexpectedPod: Pod example-at-pod was created a second time after its attempt had been counted: deleting it.",
		},
		"done, a second Pod is being deleted: released in due time": {at: done(), pod: runningPod(withUID, deleted), now: now.Add(held), want: "ReleasePod example-at-pod"},
		"done without a Pod, then one appears: deleted": {
			at: newAt(withDone(v1alpha1.ConditionFailed, now)), pod: pendingPod(), now: now,
			want: "DeletePod example-at-pod unexpected; Warning UnexpectedPod: Pod example-at-pod was created a second time after its attempt had been counted: deleting it.",
		},
		"a second Pod of a failed attempt: deleted": {
			at: newAt(withStatus(*secondRunning(corev1.PodRunning))), pod: runningPod(withUID), now: now,
			want: "DeletePod example-at-pod unexpected; Warning UnexpectedPod: Pod example-at-pod was created a second time after its attempt had been counted: deleting it.",
		},
		"the At is gone: released, once confirmed":         {pod: runningPod(), now: now, want: "ReleasePod example-at-pod; read At"},
		"a Pod of an earlier At: released, once confirmed": {at: newAt(), pod: runningPod(ofEarlierAt), now: now, want: "ReleasePod example-at-pod; read At"},
		"a Pod of an earlier At, released already":         {at: newAt(), pod: runningPod(ofEarlierAt, withReleased), now: now, want: "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			world := World{At: tc.at, Pods: podsOf(tc.pod), Now: tc.now}
			d := CleanUp(world, tc.pod)
			if got := textOf(world, d); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			world.Live, d.Needs = LiveAt, Cached
			expect(t, "-on caches +live", d, CleanUp(world, tc.pod), equate)
		})
	}
}
