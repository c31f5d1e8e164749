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
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-base/metrics"
)

// scraped serves a counter while there are objects in some namespaces.
type scraped struct {
	metrics.BaseStableCollector
	labels  *NamespaceLabels
	counter *Counter
	present sets.Set[string]
}

func (s *scraped) DescribeWithStability(ch chan<- *metrics.Desc) { s.counter.Describe(ch) }

func (s *scraped) CollectWithStability(ch chan<- metrics.Metric) {
	s.labels.Update(s.present)
	s.counter.Collect(ch)
}

var comment = regexp.MustCompile(`(?m)^#.*\n`)

// TestCounter counts runs in namespaces that come and go, with a limit of two: counters
// begin at 0, and never jump or vanish before their last value was served.
func TestCounter(t *testing.T) {
	labels := NewNamespaceLabels(2)
	runs := NewCounter("runs_total", "Runs.", labels, "Done", "Failed")
	collector := &scraped{labels: labels, counter: runs}
	registry := metrics.NewKubeRegistry()
	registry.CustomMustRegister(collector)
	handler := metrics.HandlerFor(registry, metrics.HandlerOpts{})
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
		collector.present = sets.New(strings.Fields(step.present)...)
		want := ""
		for namespace := range strings.SplitSeq(step.want, ", ") {
			words := strings.Fields(namespace)
			want += `runs_total{namespace="` + words[0] + `",reason="Done"} ` + words[1] + "\n"
			want += `runs_total{namespace="` + words[0] + `",reason="Failed"} ` + words[2] + "\n"
		}
		response := httptest.NewRecorder()
		handler.ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if diff := cmp.Diff(want, comment.ReplaceAllString(response.Body.String(), "")); diff != "" {
			t.Errorf("%s: served (-want +got):\n%s", step.name, diff)
		}
	}
}
