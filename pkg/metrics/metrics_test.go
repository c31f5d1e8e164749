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

package metrics

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/testutil"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
)

func TestAts(t *testing.T) {
	due := time.Date(2026, 12, 24, 10, 12, 0, 0, time.UTC)
	ats := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	for name, at := range map[string]v1alpha1.At{
		"new":       {},
		"new-2":     {},
		"suspended": {Spec: v1alpha1.AtSpec{Suspend: ptr.To(true)}},
		"no-zone":   {Spec: v1alpha1.AtSpec{TimeZone: ptr.To("Nowhere")}, Status: v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, Conditions: ready(metav1.ConditionFalse, v1alpha1.ReasonInvalidSchedule)}},
		"refused":   {Status: v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, Conditions: ready(metav1.ConditionFalse, v1alpha1.ReasonPodRefused)}},
		"no-image":  {Status: v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning, Conditions: ready(metav1.ConditionFalse, v1alpha1.ReasonImagePullFailed)}},
		"again-ok":  {Status: v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning, Conditions: ready(metav1.ConditionTrue, v1alpha1.ReasonRunnable)}},
		"deleted":   {ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: due}}, Status: v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning}},
		"done":      {Spec: v1alpha1.AtSpec{Suspend: ptr.To(true)}, Status: v1alpha1.AtStatus{Phase: v1alpha1.PhaseDone}},
	} {
		at.Name, at.Namespace, at.Spec.Schedule = name, "default", "2026-12-24T10:12:00Z"
		if err := ats.Add(&at); err != nil {
			t.Fatal(err)
		}
	}
	help := `# HELP cnat_ats [ALPHA] Number of Ats, by state: pending (not due yet, or its schedule names no instant), due (not started although it is time), suspended, running, done. Those that are being deleted are not counted.
# TYPE cnat_ats gauge
`
	notReady := `# HELP cnat_ats_not_ready [ALPHA] Number of Ats in whose way something stands, by the reason of their condition Ready.
# TYPE cnat_ats_not_ready gauge
cnat_ats_not_ready{reason="ImagePullFailed"} 1
cnat_ats_not_ready{reason="InvalidSchedule"} 1
cnat_ats_not_ready{reason="PodRefused"} 1
`
	for name, tc := range map[string]struct {
		now       time.Time
		notSynced bool
		want      string
	}{
		"not synced": {now: due, notSynced: true},
		"before": {now: due.Add(-1), want: `cnat_ats{state="done"} 1
cnat_ats{state="due"} 0
cnat_ats{state="pending"} 4
cnat_ats{state="running"} 2
cnat_ats{state="suspended"} 1
`},
		"due": {now: due, want: `cnat_ats{state="done"} 1
cnat_ats{state="due"} 3
cnat_ats{state="pending"} 1
cnat_ats{state="running"} 2
cnat_ats{state="suspended"} 1
`},
	} {
		t.Run(name, func(t *testing.T) {
			collector := &atCollector{
				lister:    listers.NewAtLister(ats),
				hasSynced: func() bool { return !tc.notSynced },
				clock:     clocktesting.NewFakePassiveClock(tc.now),
			}
			want := help + tc.want + notReady
			if tc.notSynced {
				want = ""
			}
			if err := testutil.CustomCollectAndCompare(collector, strings.NewReader(want)); err != nil {
				t.Error(err)
			}
		})
	}
}

func ready(status metav1.ConditionStatus, reason string) []metav1.Condition {
	return []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: status, Reason: reason}}
}
