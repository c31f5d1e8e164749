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

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	listers "programming-kubernetes.info/cnat-controller/pkg/generated/listers/cnat/v1alpha1"
)

// TestCounter counts runs in namespaces that come and go, with a limit of two: counters
// begin at 0, and never jump or vanish before their last value was served.
func TestCounter(t *testing.T) {
	labels := newNamespaceLabels(2)
	runs := newCounter("runs_total", "Runs.", labels, "Done", "Failed")
	ats := newIndexer()
	handler := serve(newCollector(Objects{Ats: listers.NewAtLister(ats), CronAts: noCronAts, Working: func() bool { return false }}, clocktesting.NewFakePassiveClock(due), labels, runs))
	for _, step := range []struct {
		name    string
		counts  string // namespaces in which a run ended as Failed
		present string // the namespaces of Ats
		want    string // namespace, Done and Failed
	}{
		{name: "nothing yet", want: "_other 0 0"},
		{name: "an At that has not ended", present: "bank", want: "_other 0 0, bank 0 0"},
		{name: "it ends", counts: "bank", present: "bank", want: "_other 0 0, bank 0 1"},
		{name: "an At that is gone when its run is served", counts: "shop", want: "_other 0 0, bank 0 1, shop 0 1"},
		{name: "the others are counted together", counts: "blog wiki shop", present: "bank shop blog", want: "_other 0 2, bank 0 1, shop 0 2"},
		{name: "the last run of a namespace is served", counts: "bank", present: "shop blog", want: "_other 0 2, bank 0 2, shop 0 2"},
		{name: "another namespace gets the slot", present: "shop blog", want: "_other 0 2, blog 0 0, shop 0 2"},
		{name: "it counts from 0", counts: "blog", present: "shop blog", want: "_other 0 2, blog 0 1, shop 0 2"},
		{name: "the first one is an other now", counts: "bank", present: "bank shop blog", want: "_other 0 3, blog 0 1, shop 0 2"},
		{name: "without Ats", want: "_other 0 3, blog 0 1, shop 0 2"},
	} {
		for namespace := range strings.FieldsSeq(step.counts) {
			runs.Inc(namespace, "Failed")
		}
		var objects []any
		for namespace := range strings.FieldsSeq(step.present) {
			objects = append(objects, &v1alpha1.At{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "at"}})
		}
		if err := ats.Replace(objects, ""); err != nil {
			t.Fatal(err)
		}
		want := ""
		for namespace := range strings.SplitSeq(step.want, ", ") {
			words := strings.Fields(namespace)
			want += `runs_total{namespace="` + words[0] + `",reason="Done"} ` + words[1] + "\n"
			want += `runs_total{namespace="` + words[0] + `",reason="Failed"} ` + words[2] + "\n"
		}
		if diff := cmp.Diff(want, scrape(handler)); diff != "" {
			t.Errorf("%s: served (-want +got):\n%s", step.name, diff)
		}
	}
}
