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

package main

import (
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	k8smetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
	"programming-kubernetes.info/cnat-controller/pkg/metrics/ats"
)

// TestMetrics checks that runs and attempts are counted by their namespaces, and syncs by
// their results.
func TestMetrics(t *testing.T) {
	registerMetrics()
	failed := func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}}}
	}
	// The counters, in the order of the expected numbers.
	counters := func(t *testing.T) []float64 {
		t.Helper()
		var values []float64
		of := map[string]string{"namespace": name.Namespace}
		runs, err := testutil.GetCounterValuesFromGatherer(legacyregistry.DefaultGatherer, "cnat_runs_total", of, "reason")
		if err != nil {
			t.Fatal(err)
		}
		attempts, err := testutil.GetCounterValuesFromGatherer(legacyregistry.DefaultGatherer, "cnat_attempts_total", of, "reason")
		if err != nil {
			t.Fatal(err)
		}
		for _, reason := range []string{v1alpha1.ReasonCompleted, v1alpha1.ReasonCommandFailed, v1alpha1.ReasonPodLost} {
			values = append(values, runs[reason], attempts[reason])
		}
		values = append(values, runs[v1alpha1.ReasonInvalidPod])
		for _, histogram := range []k8smetrics.ObserverMetric{
			metrics.StartLateness.ObserverMetric,
			metrics.SyncDuration.WithLabelValues(metrics.ResultSuccess), metrics.SyncDuration.WithLabelValues(metrics.ResultBlocked),
			metrics.SyncDuration.WithLabelValues(metrics.ResultError), metrics.SyncDuration.WithLabelValues(metrics.ResultPanic),
		} {
			count, err := testutil.GetHistogramMetricCount(histogram)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, float64(count))
		}
		return values
	}
	lateness := func(t *testing.T) float64 {
		t.Helper()
		sum, err := testutil.GetHistogramMetricValue(metrics.StartLateness.ObserverMetric)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	for testName, tc := range map[string]struct {
		world
		now    time.Time
		faults map[string]error
		panics bool
		// expectations: runs and attempts that were Completed, CommandFailed, PodLost, runs
		// of an InvalidPod; starts; syncs by success, blocked, error, panic
		want []float64
		late float64 // seconds
	}{
		"not due yet": {
			world: world{ats: []*v1alpha1.At{newAt()}}, now: due.Add(-time.Second),
			want: []float64{0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0},
		},
		"started": {
			world: world{ats: []*v1alpha1.At{newAt()}}, now: due.Add(1500 * time.Millisecond),
			want: []float64{0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0}, late: 1.5,
		},
		"completed": {
			world: world{ats: []*v1alpha1.At{newAt(running)}, cachedPods: []*corev1.Pod{newPod(corev1.PodSucceeded)}}, now: due,
			want: []float64{1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0},
		},
		"failed": {
			world: world{ats: []*v1alpha1.At{newAt(running)}, cachedPods: []*corev1.Pod{newPod(corev1.PodFailed, failed)}}, now: due,
			want: []float64{0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0},
		},
		"failed, another attempt follows": {
			world: world{
				ats:        []*v1alpha1.At{newAt(running, func(at *v1alpha1.At) { at.Spec.BackoffLimit = ptr.To[int32](1) })},
				cachedPods: []*corev1.Pod{newPod(corev1.PodFailed, failed)},
			}, now: due,
			want: []float64{0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0},
		},
		"lost": {
			world: world{ats: []*v1alpha1.At{newAt(running)}}, now: due,
			want: []float64{0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0},
		},
		"invalid: a run without an attempt": {
			world: world{ats: []*v1alpha1.At{newAt()}}, now: due,
			faults: map[string]error{"create pods": apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "example-at-pod", field.ErrorList{field.Required(field.NewPath("spec", "containers"), "")})},
			want:   []float64{0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0},
		},
		"refused": {
			world: world{ats: []*v1alpha1.At{newAt()}}, now: due,
			faults: map[string]error{"create pods": apierrors.NewForbidden(podsResource.GroupResource(), "example-at-pod", errors.New("exceeded quota"))},
			want:   []float64{0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0},
		},
		"the end cannot be written: not counted": {
			world: world{ats: []*v1alpha1.At{newAt(running)}, cachedPods: []*corev1.Pod{newPod(corev1.PodSucceeded)}}, now: due,
			faults: map[string]error{"patch ats": apierrors.NewInternalError(errors.New("etcd is unavailable"))},
			want:   []float64{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0},
		},
		"a panic": {
			world: world{ats: []*v1alpha1.At{newAt()}}, now: due, panics: true,
			want: []float64{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
		},
	} {
		t.Run(testName, func(t *testing.T) {
			f := newFixture(t, tc.world, testingclock.NewFakeClock(tc.now))
			for fault, err := range tc.faults {
				verb, resource, _ := strings.Cut(fault, " ")
				reactor := func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err }
				f.kubeClient.PrependReactor(verb, resource, reactor)
				f.cnatClient.PrependReactor(verb, resource, reactor)
			}
			if tc.panics {
				f.cnatClient.PrependReactor("get", "ats", func(clienttesting.Action) (bool, runtime.Object, error) {
					panic("an unexpected object")
				})
			}
			before, lateBefore := counters(t), lateness(t)
			f.queue.Add(name)
			_, ctx := ktesting.NewTestContext(t)
			f.processNextWorkItem(ctx)
			got := counters(t)
			for i := range got {
				got[i] -= before[i]
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("counted (-want +got):\n%s", diff)
			}
			if got := lateness(t) - lateBefore; math.Abs(got-tc.late) > 1e-6 {
				t.Errorf("late by %v s, want %v", got, tc.late)
			}
		})
	}
}

// registerMetrics registers the metrics once, even if the tests run several times:
// before, nothing is counted.
var registerMetrics = sync.OnceFunc(func() {
	metrics.Register()
	empty := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	ats.Register(ats.Objects{Ats: listers.NewAtLister(empty), CronAts: listers.NewCronAtLister(empty), Working: func() bool { return false }}, clock.RealClock{}, 1)
})
