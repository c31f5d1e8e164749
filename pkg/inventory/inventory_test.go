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
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
	cnatmetrics "programming-kubernetes.info/cnat-controller/pkg/metrics"
)

var due = time.Date(2026, 12, 24, 10, 12, 0, 0, time.UTC)

var noCronAts = listers.NewCronAtLister(newIndexer())

func working() bool { return true }

func newIndexer() cache.Indexer {
	return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
}

func TestAts(t *testing.T) {
	blocked := func(phase v1alpha1.AtPhase, reason string) v1alpha1.AtStatus {
		return v1alpha1.AtStatus{Phase: phase, Conditions: []metav1.Condition{{Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionTrue, Reason: reason}}}
	}
	failed := func(reason string, ago time.Duration) v1alpha1.AtStatus {
		return v1alpha1.AtStatus{Phase: v1alpha1.PhaseDone, Conditions: []metav1.Condition{{
			Type: v1alpha1.ConditionFailed, Status: metav1.ConditionTrue, Reason: reason, LastTransitionTime: metav1.Time{Time: due.Add(-ago)},
		}}}
	}
	retries := v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning, NextAttemptTime: &metav1.Time{Time: due.Add(-10 * time.Second)}}
	ats := newIndexer()
	for key, at := range map[string]v1alpha1.At{
		"shop/new":       {},
		"shop/new-2":     {Spec: v1alpha1.AtSpec{Schedule: "2026-12-24T10:11:30Z"}},
		"bank/new":       {},
		"bank/suspended": {Spec: v1alpha1.AtSpec{Suspend: ptr.To(true)}},
		"shop/no-zone":   {Spec: v1alpha1.AtSpec{TimeZone: ptr.To("Nowhere")}, Status: blocked(v1alpha1.PhasePending, v1alpha1.ReasonInvalidSchedule)},
		"shop/refused":   {Spec: v1alpha1.AtSpec{Schedule: "2026-12-24T07:12:00Z"}, Status: blocked(v1alpha1.PhasePending, v1alpha1.ReasonPodRefused)},
		"bank/refused":   {Status: blocked(v1alpha1.PhasePending, v1alpha1.ReasonPodRefused)},
		"blog/refused":   {Status: blocked(v1alpha1.PhasePending, v1alpha1.ReasonPodRefused)},
		"blog/no-image":  {Status: blocked(v1alpha1.PhaseRunning, v1alpha1.ReasonImagePullFailed)},
		"blog/retries":   {Status: retries},
		"blog/deleted":   {ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: due}}, Spec: v1alpha1.AtSpec{Schedule: "2026-12-24T07:12:00Z"}},
		"blog/done":      {Status: v1alpha1.AtStatus{Phase: v1alpha1.PhaseDone}},
		"bank/failed-a":  {Status: failed(v1alpha1.ReasonCommandFailed, 2*time.Second)},
		"bank/failed-b":  {Status: failed(v1alpha1.ReasonCommandFailed, time.Second)},
		"bank/failed-c":  {Status: failed(v1alpha1.ReasonCommandFailed, time.Second)},
		"bank/failed-d":  {Status: failed(v1alpha1.ReasonPodLost, time.Hour)},
		"blog/frozen":    {Status: v1alpha1.AtStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionFrozen, Status: metav1.ConditionTrue}}}},
		"blog/failed":    {Status: failed(v1alpha1.ReasonPodLost, 0)},
	} {
		at.Namespace, at.Name, _ = strings.Cut(key, "/")
		if at.Spec.Schedule == "" {
			at.Spec.Schedule = "2026-12-24T10:12:00Z"
		}
		if err := ats.Add(&at); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		now        time.Time
		namespaces int
		idle       bool
		want       string
	}{
		"not working": {now: due, namespaces: 3, idle: true},
		"before most are due": {now: due.Add(-20 * time.Second), namespaces: 3, want: `
cnat_ats{namespace="bank",state="blocked"} 1
cnat_ats{namespace="bank",state="done"} 4
cnat_ats{namespace="bank",state="pending"} 1
cnat_ats{namespace="bank",state="suspended"} 1
cnat_ats{namespace="blog",state="blocked"} 1
cnat_ats{namespace="blog",state="done"} 2
cnat_ats{namespace="blog",state="frozen"} 1
cnat_ats{namespace="blog",state="running"} 2
cnat_ats{namespace="shop",state="blocked"} 2
cnat_ats{namespace="shop",state="due"} 1
cnat_ats{namespace="shop",state="pending"} 1
cnat_ats_blocked{namespace="bank",reason="PodRefused"} 1
cnat_ats_blocked{namespace="blog",reason="ImagePullFailed"} 1
cnat_ats_blocked{namespace="blog",reason="PodRefused"} 1
cnat_ats_blocked{namespace="shop",reason="InvalidSchedule"} 1
cnat_ats_blocked{namespace="shop",reason="PodRefused"} 1
cnat_last_failure_timestamp_seconds{at="failed",namespace="blog",reason="PodLost"} 1.79810712e+09
cnat_last_failure_timestamp_seconds{at="failed-c",namespace="bank",reason="CommandFailed"} 1.798107119e+09
cnat_last_failure_timestamp_seconds{at="failed-d",namespace="bank",reason="PodLost"} 1.79810352e+09
cnat_oldest_due_age_seconds 10
`},
		"more namespaces than are counted by name": {now: due.Add(time.Minute), namespaces: 1, want: `
cnat_ats{namespace="_other",state="blocked"} 3
cnat_ats{namespace="_other",state="done"} 2
cnat_ats{namespace="_other",state="due"} 2
cnat_ats{namespace="_other",state="frozen"} 1
cnat_ats{namespace="_other",state="running"} 2
cnat_ats{namespace="bank",state="blocked"} 1
cnat_ats{namespace="bank",state="done"} 4
cnat_ats{namespace="bank",state="due"} 1
cnat_ats{namespace="bank",state="suspended"} 1
cnat_ats_blocked{namespace="_other",reason="ImagePullFailed"} 1
cnat_ats_blocked{namespace="_other",reason="InvalidSchedule"} 1
cnat_ats_blocked{namespace="_other",reason="PodRefused"} 2
cnat_ats_blocked{namespace="bank",reason="PodRefused"} 1
cnat_last_failure_timestamp_seconds{at="failed-c",namespace="bank",reason="CommandFailed"} 1.798107119e+09
cnat_last_failure_timestamp_seconds{at="failed-d",namespace="bank",reason="PodLost"} 1.79810352e+09
cnat_oldest_due_age_seconds 90
`},
		"namespaces not counted by name": {now: due, want: `
cnat_ats{namespace="_other",state="blocked"} 4
cnat_ats{namespace="_other",state="done"} 6
cnat_ats{namespace="_other",state="due"} 3
cnat_ats{namespace="_other",state="frozen"} 1
cnat_ats{namespace="_other",state="running"} 2
cnat_ats{namespace="_other",state="suspended"} 1
cnat_ats_blocked{namespace="_other",reason="ImagePullFailed"} 1
cnat_ats_blocked{namespace="_other",reason="InvalidSchedule"} 1
cnat_ats_blocked{namespace="_other",reason="PodRefused"} 3
cnat_oldest_due_age_seconds 30
`},
	} {
		t.Run(name, func(t *testing.T) {
			handler := serve(newCollector(Objects{Ats: listers.NewAtLister(ats), CronAts: noCronAts, Working: func() bool { return !tc.idle }}, clocktesting.NewFakePassiveClock(tc.now), cnatmetrics.NewNamespaceLabels(tc.namespaces)))
			if diff := cmp.Diff(strings.TrimPrefix(tc.want, "\n"), scrape(handler)); diff != "" {
				t.Errorf("served (-want +got):\n%s", diff)
			}
		})
	}
}

// TestNothingDue checks that the age is served even if nothing is due, because the
// alert's expression needs it.
func TestNothingDue(t *testing.T) {
	handler := serve(newCollector(Objects{Ats: listers.NewAtLister(newIndexer()), CronAts: noCronAts, Working: working}, clocktesting.NewFakePassiveClock(due), cnatmetrics.NewNamespaceLabels(100)))
	if got, want := scrape(handler), "cnat_oldest_due_age_seconds 0\n"; got != want {
		t.Errorf("served: %s, want %s", got, want)
	}
}

// TestNamespaceLabels checks which namespaces are counted by name, with a limit of two.
func TestNamespaceLabels(t *testing.T) {
	ats := newIndexer()
	handler := serve(newCollector(Objects{Ats: listers.NewAtLister(ats), CronAts: noCronAts, Working: working}, clocktesting.NewFakePassiveClock(due), cnatmetrics.NewNamespaceLabels(2)))
	for _, step := range []struct {
		present string // one namespace a word
		want    string
	}{
		{"d e", "d e"},
		{"a b d e", "_other d e"}, // Those that came first keep their places.
		{"a e", "a e"},
		{"e", "e"},
		{"", ""},
		{"e", "e"}, // Its place is still there.
		{"b c", "b c"},
		{"a b", "a b"},
		{"a b c", "_other a b"},
	} {
		var objects []any
		for namespace := range strings.FieldsSeq(step.present) {
			objects = append(objects, &v1alpha1.At{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "at"}})
		}
		if err := ats.Replace(objects, ""); err != nil {
			t.Fatal(err)
		}
		var labels []string
		for _, match := range namespaceLabel.FindAllStringSubmatch(scrape(handler), -1) {
			labels = append(labels, match[1])
		}
		if strings.Join(labels, " ") != step.want {
			t.Errorf("of %q it counts by name %q, want %q", step.present, labels, step.want)
		}
	}
}

var namespaceLabel = regexp.MustCompile(`cnat_ats{namespace="(.*?)"`)

func serve(collector metrics.StableCollector) http.Handler {
	registry := metrics.NewKubeRegistry()
	registry.CustomMustRegister(collector)
	return metrics.HandlerFor(registry, metrics.HandlerOpts{})
}

// scrape returns the served metrics without comments.
func scrape(handler http.Handler) string {
	response := httptest.NewRecorder()
	handler.ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return comment.ReplaceAllString(response.Body.String(), "")
}

var comment = regexp.MustCompile(`(?m)^#.*\n`)
