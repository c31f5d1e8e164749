//go:build integration

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

package integration

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestScheduleInPast creates an At whose year is mistyped: it does not run until that is
// corrected. One that may start that late runs at once, with an event.
func TestScheduleInPast(t *testing.T) {
	t.Parallel()
	past := time.Now().AddDate(0, 0, -364)
	t.Run("mistyped", func(t *testing.T) {
		t.Parallel()
		namespace := newNamespace(t)
		startController(t, namespace)
		at := createAt(t, newAt(namespace, "at", past, "true"))
		blocked := waitBlocked(t, namespace, v1alpha1.ReasonScheduleInPast)
		wantOutput(t, blocked.Message, `^spec.schedule was 364 days in the past when the At was created, so nothing runs: correct it\.`)
		wantOutput(t, kubectl(t, "", "get", "at", "-n", namespace, "-o", "wide"), `MESSAGE\n.*PENDING +ScheduleInPast .*spec.schedule was 364 days in the past`)
		wantCreates(t, namespace, 0)
		update(t, namespace, func(at *v1alpha1.At) { at.Spec.Schedule = time.Now().UTC().Format(time.RFC3339) })
		endPod(t, waitPod(t, namespace, "at-pod"), corev1.PodSucceeded, 0, "")
		kubectl(t, "", "wait", "--for=jsonpath={.status.phase}=DONE", "--timeout="+patience.String(), "-n", namespace, "at/at")
		waitEvents(t, at, map[string]int32{v1alpha1.ReasonScheduleInPast: 1, v1alpha1.ReasonSuccessfulCreate: 1, v1alpha1.ReasonCompleted: 1})
	})
	t.Run("with a starting deadline", func(t *testing.T) {
		t.Parallel()
		namespace := newNamespace(t)
		startController(t, namespace)
		late := newAt(namespace, "at", past, "true")
		late.Spec.StartingDeadlineSeconds = ptr.To[int64](365 * 24 * 3600)
		at := createAt(t, late)
		waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
		waitEvents(t, at, map[string]int32{v1alpha1.ReasonRanAtOnce: 1, v1alpha1.ReasonSuccessfulCreate: 1})
	})
	t.Run("edited", func(t *testing.T) {
		t.Parallel()
		namespace := newNamespace(t)
		startController(t, namespace)
		at := createAt(t, newAt(namespace, "at", time.Now().Add(time.Hour), "true"))
		update(t, namespace, func(at *v1alpha1.At) { at.Spec.Schedule = past.UTC().Format(time.RFC3339) })
		waitBlocked(t, namespace, v1alpha1.ReasonScheduleInPast)
		update(t, namespace, func(at *v1alpha1.At) { at.Spec.Schedule = "2019-04-12T10:12:00Z" })
		waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
		waitEvents(t, at, map[string]int32{v1alpha1.ReasonScheduleInPast: 1, v1alpha1.ReasonRanAtOnce: 1, v1alpha1.ReasonSuccessfulCreate: 1})
	})
}
