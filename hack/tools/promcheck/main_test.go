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
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const served = `# TYPE ats gauge
ats{state="due"} 1
ats{state="done"} 2
# TYPE late_seconds histogram
late_seconds_bucket{le="0.5"} 1
late_seconds_bucket{le="+Inf"} 2
late_seconds_sum 3
late_seconds_count 2
# TYPE pause_seconds summary
pause_seconds{quantile="0.5"} 1
pause_seconds_sum 3
pause_seconds_count 2
`

// TestArtifacts checks what is installed against what is served.
func TestArtifacts(t *testing.T) {
	served, err := os.Open("testdata/served.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()
	cluster, err := os.Open("testdata/kube-state-metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	const monitoring = "../../../artifacts/monitoring/"
	if err := run(io.MultiReader(served, cluster), []string{monitoring + "grafana/dashboard.json", monitoring + "prometheusrule.yaml"}); err != nil {
		t.Error(err)
	}
}

func TestRun(t *testing.T) {
	for name, tc := range map[string]struct {
		query string
		wrong bool
	}{
		"a metric":                   {query: `ats`},
		"a label's value":            {query: `ats{state="due"} > 0`},
		"a label of the target's":    {query: `sum by (namespace) (ats{job=~"$job"})`},
		"a histogram":                {query: `histogram_quantile(0.99, sum by (le) (rate(late_seconds_bucket[$__rate_interval])))`},
		"the last bucket":            {query: `late_seconds_bucket{le="+Inf"}`},
		"a summary":                  {query: `pause_seconds{quantile="0.5"}`},
		"grouped by a label":         {query: `sum by (state) (ats)`},
		"not PromQL":                 {query: `sum by ats`, wrong: true},
		"no such metric":             {query: `rate(at[5m])`, wrong: true},
		"no such value":              {query: `ats{state="dew"}`, wrong: true},
		"no such label":              {query: `ats{phase="due"}`, wrong: true},
		"grouped by a missing label": {query: `sum by (phase) (ats)`, wrong: true},
		"one of two is wrong":        {query: `ats / at`, wrong: true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "rules.yaml")
			if err := os.WriteFile(path, []byte("groups:\n- rules:\n  - expr: |-\n      "+tc.query+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := run(strings.NewReader(served), []string{path}); (err != nil) != tc.wrong {
				t.Errorf("got %v, want an error: %v", err, tc.wrong)
			}
		})
	}
	t.Run("no query", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "rules.yaml")
		if err := os.WriteFile(path, []byte("groups: []\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := run(strings.NewReader(served), []string{path}); err == nil {
			t.Error("a file without queries passes")
		}
	})
}
