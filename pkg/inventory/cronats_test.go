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

package inventory

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
	cnatmetrics "programming-kubernetes.info/cnat-controller/pkg/metrics"
)

func TestCronAts(t *testing.T) {
	blocked := func(reason string) v1alpha1.CronAtStatus {
		return v1alpha1.CronAtStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionTrue, Reason: reason}}}
	}
	next := func(age time.Duration) v1alpha1.CronAtStatus {
		return v1alpha1.CronAtStatus{NextScheduleTime: &metav1.Time{Time: due.Add(-age)}}
	}
	deleted := metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: due}}
	many := map[string]v1alpha1.CronAt{}
	for i := range 2 * maxOverdue {
		many[fmt.Sprintf("shop/cronat-%02d", i)] = v1alpha1.CronAt{Status: next(time.Hour)}
	}
	many["bank/oldest"] = v1alpha1.CronAt{Status: next(2 * time.Hour)}
	for name, tc := range map[string]struct {
		cronAts     map[string]v1alpha1.CronAt
		annotations map[cache.ObjectName]string
		namespaces  int
		idle        bool
		want        string
	}{
		"nothing to report": {namespaces: 2, cronAts: map[string]v1alpha1.CronAt{
			"shop/new":               {},
			"shop/waits":             {Status: next(-time.Hour)},
			"shop/due a moment ago":  {Status: next(59 * time.Second)},
			"shop/is being deleted":  {ObjectMeta: deleted, Status: next(time.Hour)},
			"shop/deleted, blocked":  {ObjectMeta: deleted, Status: blocked(v1alpha1.ReasonAtRefused)},
			"shop/suspended lately":  {Spec: v1alpha1.CronAtSpec{Suspend: ptr.To(true)}, Status: next(time.Hour)},
			"shop/no longer blocked": {Status: v1alpha1.CronAtStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionFalse}}}},
		}},
		"blocked": {
			namespaces: 2,
			cronAts: map[string]v1alpha1.CronAt{
				"bank/quota":   {Status: blocked(v1alpha1.ReasonAtRefused)},
				"bank/quota-2": {Status: blocked(v1alpha1.ReasonAtRefused)},
				"bank/name":    {Status: blocked(v1alpha1.ReasonAtNameConflict)},
				"shop/never":   {Status: blocked(v1alpha1.ReasonInvalidSchedule)},
				"wiki/never":   {Status: blocked(v1alpha1.ReasonInvalidSchedule)},
			},
			annotations: map[cache.ObjectName]string{
				{Namespace: "shop", Name: "Deployment/web"}:   v1alpha1.ReasonInvalidRestartSchedule,
				{Namespace: "shop", Name: "StatefulSet/db"}:   v1alpha1.ReasonInvalidRestartSchedule,
				{Namespace: "wiki", Name: "Deployment/wiki"}:  v1alpha1.ReasonCronAtRefused,
				{Namespace: "zoo", Name: "DaemonSet/monitor"}: v1alpha1.ReasonCronAtRefused,
			},
			want: `
cnat_cronats_blocked{namespace="_other",reason="InvalidSchedule"} 1
cnat_cronats_blocked{namespace="bank",reason="AtNameConflict"} 1
cnat_cronats_blocked{namespace="bank",reason="AtRefused"} 2
cnat_cronats_blocked{namespace="shop",reason="InvalidSchedule"} 1
cnat_restart_annotations_blocked{namespace="_other",reason="CronAtRefused"} 2
cnat_restart_annotations_blocked{namespace="shop",reason="InvalidRestartSchedule"} 2
`,
		},
		"on standby": {idle: true, namespaces: 2, cronAts: map[string]v1alpha1.CronAt{
			"shop/never":   {Status: blocked(v1alpha1.ReasonInvalidSchedule)},
			"shop/overdue": {Status: next(time.Hour)},
		}},
		"overdue": {
			cronAts: map[string]v1alpha1.CronAt{"shop/nightly": {Status: next(90 * time.Second)}, "bank/hourly": {Status: next(time.Minute)}},
			want: `
cnat_cronat_overdue_seconds{cronat="hourly",namespace="bank"} 60
cnat_cronat_overdue_seconds{cronat="nightly",namespace="shop"} 90
`,
		},
		"many are overdue: the same ten each time": {cronAts: many, want: `
cnat_cronat_overdue_seconds{cronat="cronat-00",namespace="shop"} 3600
cnat_cronat_overdue_seconds{cronat="cronat-01",namespace="shop"} 3600
cnat_cronat_overdue_seconds{cronat="cronat-02",namespace="shop"} 3600
cnat_cronat_overdue_seconds{cronat="cronat-03",namespace="shop"} 3600
cnat_cronat_overdue_seconds{cronat="cronat-04",namespace="shop"} 3600
cnat_cronat_overdue_seconds{cronat="cronat-05",namespace="shop"} 3600
cnat_cronat_overdue_seconds{cronat="cronat-06",namespace="shop"} 3600
cnat_cronat_overdue_seconds{cronat="cronat-07",namespace="shop"} 3600
cnat_cronat_overdue_seconds{cronat="cronat-08",namespace="shop"} 3600
cnat_cronat_overdue_seconds{cronat="oldest",namespace="bank"} 7200
`},
	} {
		t.Run(name, func(t *testing.T) {
			cronAts := newIndexer()
			for key, cronAt := range tc.cronAts {
				cronAt.Namespace, cronAt.Name, _ = strings.Cut(key, "/")
				if err := cronAts.Add(&cronAt); err != nil {
					t.Fatal(err)
				}
			}
			handler := serve(newCollector(Objects{
				Ats:                listers.NewAtLister(newIndexer()),
				CronAts:            listers.NewCronAtLister(cronAts),
				BlockedAnnotations: func() map[cache.ObjectName]string { return tc.annotations },
				Working:            func() bool { return !tc.idle },
			}, clocktesting.NewFakePassiveClock(due), cnatmetrics.NewNamespaceLabels(tc.namespaces)))
			got := strings.Replace(scrape(handler), "cnat_oldest_due_age_seconds 0\n", "", 1)
			if diff := cmp.Diff(strings.TrimPrefix(tc.want, "\n"), got); diff != "" {
				t.Errorf("served (-want +got):\n%s", diff)
			}
		})
	}
}
