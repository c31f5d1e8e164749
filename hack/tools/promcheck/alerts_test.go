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
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"sigs.k8s.io/yaml"
)

// minutes is the length of each scenario.
const minutes = 300

// healthy has the series of a controller that starts 60 Ats a minute. The values, one a
// minute, are in the notation of "promtool test rules".
var healthy = map[string]string{
	`leader_election_master_status{name="cnat-controller",pod="a"}`: `1x300`,
	`leader_election_master_status{name="cnat-controller",pod="b"}`: `0x300`,
	`cnat_ats{namespace="shop",state="due"}`:                        `3x300`,
	`cnat_oldest_due_age_seconds`:                                   `0.2x300`,
	`cnat_start_lateness_seconds_bucket{le="1"}`:                    `0+60x300`,
	`cnat_start_lateness_seconds_bucket{le="10"}`:                   `0+60x300`,
	`cnat_start_lateness_seconds_bucket{le="30"}`:                   `0+60x300`,
	`cnat_start_lateness_seconds_bucket{le="+Inf"}`:                 `0+60x300`,
	`cnat_runs_total{namespace="_other",reason="CommandFailed"}`:    `0x300`,
	`cnat_runs_total{namespace="shop",reason="Completed"}`:          `0+60x300`,
	`cnat_runs_total{namespace="shop",reason="CommandFailed"}`:      `0x300`,
	`process_start_time_seconds`:                                    `-3600x300`,
	`cnat_unexpected_pods_total`:                                    `0x300`,
	`cnat_sync_duration_seconds_count{result="success"}`:            `0+240x300`,
	`cnat_sync_duration_seconds_count{result="blocked"}`:            `0x300`,
	`cnat_sync_duration_seconds_count{result="error"}`:              `0x300`,
	`cnat_sync_duration_seconds_count{result="panic"}`:              `0x300`,
}

// TestAlerts evaluates the alerts over time: these must fire and no others.
func TestAlerts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.yaml")
	var rule struct{ Spec json.RawMessage }
	read(t, "prometheusrule.yaml", &rule)
	if err := os.WriteFile(file, rule.Spec, 0o600); err != nil {
		t.Fatal(err)
	}
	var monitor struct {
		Spec struct{ Endpoints []struct{ HonorLabels bool } }
	}
	read(t, "servicemonitor.yaml", &monitor)
	honorLabels := monitor.Spec.Endpoints[0].HonorLabels

	fired := map[string]bool{}
	for name, tc := range map[string]struct {
		series map[string]string // instead of, or beside, those of healthy
		want   []string          // severity, alert, and the minutes from which and up to which it fires
		says   string            // a description
	}{
		"steady traffic": {},
		"bursts that take some minutes": {series: map[string]string{
			`cnat_oldest_due_age_seconds`: `0x50 10+50x5 0x50 10+50x5 0x200`,
		}},
		"no Ats at all": {series: map[string]string{
			`cnat_ats{namespace="shop",state="due"}`:             ``,
			`cnat_oldest_due_age_seconds`:                        `0x300`,
			`cnat_start_lateness_seconds_bucket{le="1"}`:         `0x300`,
			`cnat_start_lateness_seconds_bucket{le="10"}`:        `0x300`,
			`cnat_start_lateness_seconds_bucket{le="30"}`:        `0x300`,
			`cnat_start_lateness_seconds_bucket{le="+Inf"}`:      `0x300`,
			`cnat_sync_duration_seconds_count{result="success"}`: `0x300`,
		}},
		"a quota refuses the Pods for hours": {
			series: map[string]string{
				`cnat_ats{namespace="shop",state="blocked"}`:                `_x29 5x240 stale`,
				`cnat_ats_blocked{namespace="shop",reason="PodRefused"}`:    `_x29 5x240 stale`,
				`cnat_sync_duration_seconds_count{result="blocked"}`:        `0x30 0+5x270`,
				`cnat_ats_blocked{namespace="_other",reason="PodRefused"}`:  `_x29 1x5 stale`,
				`cnat_ats_blocked{namespace="bank",reason="PodNotCreated"}`: `_x29 1x240 stale`,
			},
			want: []string{`warning CnatBlocked{namespace="shop", reason="PodRefused"} 39-269`},
		},
		"CronAts and restart annotations are blocked for a moment": {series: map[string]string{
			`cnat_cronats_blocked{namespace="shop",reason="AtRefused"}`:                          `_x30 1x5 stale`,
			`cnat_restart_annotations_blocked{namespace="shop",reason="InvalidRestartSchedule"}`: `_x30 1x5 stale`,
		}},
		"CronAts and restart annotations are blocked for hours": {
			series: map[string]string{
				`cnat_cronats_blocked{namespace="shop",reason="AtRefused"}`:                          `_x29 2x240 stale`,
				`cnat_cronats_blocked{namespace="_other",reason="InvalidSchedule"}`:                  `_x29 1x240 stale`,
				`cnat_cronats_blocked{namespace="bank",reason="AtBlocked"}`:                          `_x29 1x240 stale`,
				`cnat_ats_blocked{namespace="bank",reason="ContainerNotCreated"}`:                    `_x29 1x240 stale`, // that At
				`cnat_cronats_blocked{namespace="bank",reason="PodRefused"}`:                         `_x29 1x240 stale`, // a forecast
				`cnat_restart_annotations_blocked{namespace="bank",reason="InvalidRestartSchedule"}`: `_x29 3x240 stale`,
				`cnat_restart_annotations_blocked{namespace="_other",reason="CronAtNameConflict"}`:   `_x29 1x240 stale`,
				`cnat_restart_annotations_blocked{namespace="bank",reason="CronAtRefused",pod="a"}`:  `_x29 1x100 stale`,
				`cnat_restart_annotations_blocked{namespace="bank",reason="CronAtRefused",pod="b"}`:  `_x130 1x50 stale`,
			},
			want: []string{
				`warning CnatBlocked{namespace="bank", reason="ContainerNotCreated"} 39-269`,
				`warning CnatCronAtBlocked{namespace="_other", reason="InvalidSchedule"} 39-269`,
				`warning CnatCronAtBlocked{namespace="bank", reason="PodRefused"} 39-269`,
				`warning CnatCronAtBlocked{namespace="shop", reason="AtRefused"} 39-269`,
				`warning CnatRestartAnnotationBlocked{namespace="_other", reason="CronAtNameConflict"} 39-269`,
				`warning CnatRestartAnnotationBlocked{namespace="bank", reason="CronAtRefused"} 39-180`,
				`warning CnatRestartAnnotationBlocked{namespace="bank", reason="InvalidRestartSchedule"} 39-269`,
			},
		},
		"a controller that was away comes back": {series: map[string]string{
			`cnat_cronat_overdue_seconds{namespace="shop",cronat="nightly"}`: `_x59 7200x2 stale`,
		}},
		"CronAts miss times": {
			series: map[string]string{`cnat_cronat_missed_total{namespace="cnat-system"}`: `0x59 1+1x9 10x200`},
			want:   []string{`info CnatCronAtMissed{namespace="cnat-system"} 60-127`},
		},
		"a CronAt does not run": {
			series: map[string]string{
				`cnat_cronat_overdue_seconds{namespace="shop",cronat="nightly",pod="a"}`: `_x59 60+60x29 stale`,
				`cnat_cronat_overdue_seconds{namespace="shop",cronat="nightly",pod="b"}`: `_x89 1860+60x29 stale`,
				`cnat_cronat_overdue_seconds{namespace="shop",cronat="hourly",pod="a"}`:  `_x59 60+60x3 stale`,
			},
			want: []string{`warning CnatCronAtOverdue{cronat="nightly", namespace="shop"} 65-118`},
		},
		"Ats do not start": {
			series: map[string]string{`cnat_oldest_due_age_seconds`: `0x59 0+60x60 0x200`},
			want:   []string{`warning CnatStuck{namespace="cnat-system"} 67-120`},
		},
		"the API server is slow": {
			series: map[string]string{
				`cnat_oldest_due_age_seconds`:                 `0x59 25x60 0x200`,
				`cnat_start_lateness_seconds_bucket{le="1"}`:  `0+60x60 3600x60 3600+60x200`,
				`cnat_start_lateness_seconds_bucket{le="10"}`: `0+60x60 3600x60 3600+60x200`,
			},
			want: []string{`warning CnatLate{namespace="cnat-system"} 61-130`},
		},
		"nobody leads": {
			series: map[string]string{`leader_election_master_status{name="cnat-controller",pod="a"}`: `1x59 0x240`},
			want:   []string{`critical CnatNoLeader{namespace="cnat-system"} 62-300`},
		},
		"the other leads after a minute": {series: map[string]string{
			`leader_election_master_status{name="cnat-controller",pod="a"}`: `1x59 0x240`,
			`leader_election_master_status{name="cnat-controller",pod="b"}`: `0x60 1x240`,
		}},
		"no controller is scraped": {
			series: map[string]string{
				`leader_election_master_status{name="cnat-controller",pod="a"}`: `1x59 stale`,
				`leader_election_master_status{name="cnat-controller",pod="b"}`: `0x59 stale`,
			},
			want: []string{`critical CnatNoLeader{name="cnat-controller"} 62-300`},
		},
		"commands fail": {
			series: map[string]string{
				`cnat_runs_total{namespace="shop",reason="CommandFailed"}`:                                   `0x59 2x240`,
				`cnat_last_failure_timestamp_seconds{namespace="shop",reason="CommandFailed",at="backup-1"}`: `_x59 3590 stale`,
				`cnat_last_failure_timestamp_seconds{namespace="shop",reason="CommandFailed",at="backup-2"}`: `_x60 3600x240`,
				`cnat_last_failure_timestamp_seconds{namespace="shop",reason="PodLost",at="sync"}`:           `3000x300`,
				`cnat_last_failure_timestamp_seconds{namespace="bank",reason="CommandFailed",at="backup-3"}`: `3700x300`,
			},
			want: []string{`info CnatFailing{namespace="shop", reason="CommandFailed"} 60-73`},
			says: "2 in the last 15 minutes. This is for the owner of the namespace. To see the last one: kubectl at show backup-2 -n shop. To see all: kubectl at agenda --since 1h.",
		},
		"commands fail in namespaces without their own value": {
			series: map[string]string{`cnat_runs_total{namespace="_other",reason="CommandFailed"}`: `0x59 2x240`},
			want:   []string{`info CnatFailing{namespace="_other", reason="CommandFailed"} 60-73`},
			says:   "This is for the owner of the namespace. To see all: kubectl at agenda --since 1h.",
		},
		"the first command of a namespace fails": {
			series: map[string]string{`cnat_runs_total{namespace="bank",reason="CommandFailed"}`: `_x59 1x240`},
			want:   []string{`info CnatFailing{namespace="bank", reason="CommandFailed"} 59-73`},
		},
		"commands fail when the controller starts": {
			series: map[string]string{
				`cnat_runs_total{namespace="shop",reason="CommandFailed"}`: `_x59 2x240`,
				`process_start_time_seconds`:                               `_x59 3600x240`,
			},
			want: []string{`info CnatFailing{namespace="shop", reason="CommandFailed"} 59-73`},
		},
		"a namespace gets its own value": {series: map[string]string{
			`cnat_runs_total{namespace="_other",reason="CommandFailed"}`: `7x300`,
			`cnat_runs_total{namespace="bank",reason="CommandFailed"}`:   `_x59 0x240`,
		}},
		"a namespace loses its own value": {series: map[string]string{
			`cnat_runs_total{namespace="bank",reason="CommandFailed"}`: `5x59 stale`,
		}},
		"the controller is not scraped for half an hour": {series: map[string]string{
			`cnat_runs_total{namespace="shop",reason="CommandFailed"}`: `5x59 _x30 5x210`,
			`process_start_time_seconds`:                               `-3600x59 _x30 -3600x210`,
		}},
		"a second Pod of an attempt": {
			series: map[string]string{`cnat_unexpected_pods_total`: `0x59 1x240`},
			want:   []string{`warning CnatUnexpectedPod{namespace="cnat-system"} 60-118`},
		},
		"a Pod that terminates in time": {series: map[string]string{
			`kube_pod_owner{namespace="shop",pod="close-shop-pod",owner_kind="At"}`:    `1x300`,
			`kube_pod_deletion_timestamp{namespace="shop",pod="close-shop-pod"}`:       `_x59 3600x4 stale`,
			`kube_pod_owner{namespace="shop",pod="web-0",owner_kind="StatefulSet"}`:    `1x300`,
			`kube_pod_deletion_timestamp{namespace="shop",pod="web-0"}`:                `_x59 3600x240`,
			`kube_pod_owner{namespace="shop",pod="not-deleted-pod",owner_kind="At"}`:   `1x300`,
			`kube_pod_owner{namespace="bank",pod="close-shop-pod",owner_kind="At"}`:    `1x300`,
			`kube_pod_owner{namespace="shop",pod="other-pod",owner_kind="ReplicaSet"}`: `1x300`,
		}},
		"a Pod that nobody releases": {
			series: map[string]string{
				`kube_pod_owner{namespace="shop",pod="close-shop-pod",owner_kind="At"}`: `1x120 stale`,
				`kube_pod_deletion_timestamp{namespace="shop",pod="close-shop-pod"}`:    `_x59 3600x60 stale`,
			},
			want: []string{`warning CnatPodTerminating{namespace="shop"} 66-119`},
		},
		"a single error": {series: map[string]string{
			`cnat_sync_duration_seconds_count{result="error"}`: `0x59 1x240`,
		}},
		"errors again and again": {
			series: map[string]string{`cnat_sync_duration_seconds_count{result="error"}`: `0x59 1+1x60 61x240`},
			want:   []string{`warning CnatSyncErrors{namespace="cnat-system"} 75-123`},
		},
		"panics again and again": {
			series: map[string]string{`cnat_sync_duration_seconds_count{result="panic"}`: `0x59 1+1x60 61x240`},
			want:   []string{`warning CnatSyncErrors{namespace="cnat-system"} 75-123`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			series := maps.Clone(healthy)
			maps.Copy(series, tc.series)
			input := "load 1m\n"
			for metric, values := range series {
				if values != "" {
					input += "  " + scraped(t, metric, honorLabels) + " " + values + "\n"
				}
			}
			got, said := firing(t, file, input)
			if !strings.Contains(said, tc.says) {
				t.Errorf("nothing says %q:\n%s", tc.says, said)
			}
			slices.Sort(got)
			if !slices.Equal(got, tc.want) {
				t.Errorf("these fire:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
			for _, alert := range got {
				fired[strings.FieldsFunc(alert, func(r rune) bool { return r == ' ' || r == '{' })[1]] = true
			}
		})
	}
	for _, group := range load(t, nil, file) {
		for _, rule := range group.Rules() {
			if !fired[rule.Name()] {
				t.Errorf("%s fires in no scenario", rule.Name())
			}
		}
	}
}

// read reads a file of artifacts/monitoring.
func read(t *testing.T, name string, object any) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("../../../artifacts/monitoring", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(content, object); err != nil {
		t.Fatal(err)
	}
}

// scraped returns a series as Prometheus stores it, with the label namespace of the target,
// the controller.
func scraped(t *testing.T, series string, honorLabels bool) string {
	t.Helper()
	metric, err := parser.ParseMetric(series)
	if err != nil {
		t.Fatal(err)
	}
	builder := labels.NewBuilder(metric)
	if namespace := metric.Get("namespace"); namespace == "" || !honorLabels {
		builder.Set("exported_namespace", namespace).Set("namespace", "cnat-system")
	}
	return builder.Labels().String()
}

// firing returns which alerts of a rules file fire, and when, while series are scraped, and all that
// they say.
func firing(t *testing.T, file, series string) (ended []string, said string) {
	t.Helper()
	storage, err := promqltest.NewLazyLoader(series, promqltest.LazyLoaderOpts{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := storage.Close(); err != nil {
			t.Error(err)
		}
	})
	since := map[string]int{}
	loaded := load(t, storage, file)
	for minute := range minutes + 1 {
		now := time.Unix(0, 0).Add(time.Duration(minute) * time.Minute)
		storage.WithSamplesTill(now, func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		})
		still := map[string]int{}
		for _, group := range loaded {
			group.Eval(t.Context(), now)
			for _, rule := range group.Rules() {
				if err := rule.LastError(); err != nil {
					t.Fatal(err)
				}
				for _, alert := range rule.(*rules.AlertingRule).ActiveAlerts() {
					if alert.State != rules.StateFiring {
						continue
					}
					alert.Annotations.Range(func(annotation labels.Label) {
						said += annotation.Value + "\n"
						if strings.Contains(annotation.Value, "<error") {
							t.Errorf("%s of %s is %q", annotation.Name, rule.Name(), annotation.Value)
						}
					})
					name := alert.Labels.Get("severity") + " " + rule.Name() + labels.NewBuilder(alert.Labels).Del("alertname", "severity").Labels().String()
					still[name] = minute
					if from, ok := since[name]; ok {
						still[name] = from
					}
				}
			}
		}
		for name, from := range since {
			if _, ok := still[name]; !ok {
				ended = append(ended, fmt.Sprintf("%s %d-%d", name, from, minute-1))
			}
		}
		since = still
	}
	for name, from := range since {
		ended = append(ended, fmt.Sprintf("%s %d-%d", name, from, minutes))
	}
	return ended, said
}

// load loads the groups of a rules file, to be evaluated with the series of storage.
func load(t *testing.T, storage *promqltest.LazyLoader, file string) map[string]*rules.Group {
	t.Helper()
	options := &rules.ManagerOptions{Context: t.Context(), Logger: promslog.NewNopLogger(), NotifyFunc: func(context.Context, string, ...*rules.Alert) {}}
	if storage != nil {
		options.QueryFunc = rules.EngineQueryFunc(storage.QueryEngine(), storage.Storage())
		options.Appendable = storage.Storage()
	}
	groups, errs := rules.NewManager(options).LoadGroups(time.Minute, labels.EmptyLabels(), "", nil, false, file)
	if errs != nil {
		t.Fatal(errs)
	}
	return groups
}
