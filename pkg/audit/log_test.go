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

package audit

import (
	"fmt"
	"strings"
	"testing"
)

// line returns an event of an audit log about an object of a resource.
func line(second int, verb, resource, name, query, response string) string {
	return fmt.Sprintf(`{"kind":"Event","apiVersion":"audit.k8s.io/v1","stage":"ResponseComplete","verb":%q,"requestURI":"/x%s","objectRef":{"resource":%q,"namespace":"default","name":%q},"responseStatus":{"code":200},"responseObject":%s,"requestReceivedTimestamp":"2026-12-24T10:%02d:%02d.000000Z","stageTimestamp":"2026-12-24T10:%02d:%02d.005000Z"}`,
		verb, query, resource, name, response, second/60, second%60, second/60, second%60)
}

const (
	newAt     = `{"kind":"At","metadata":{"name":"at","namespace":"default","uid":"at","resourceVersion":"1"},"spec":{"schedule":"2026-12-24T10:01:00Z"},"status":{"phase":"PENDING"}}`
	logAt     = `{"kind":"At","metadata":{"name":"at","namespace":"default","uid":"at","resourceVersion":"%d"},"spec":{"schedule":"2026-12-24T10:01:00Z"},"status":{"phase":%q,"reason":%q,"pod":{"name":"at-pod","uid":"p"}}}`
	logPod    = `{"kind":"Pod","metadata":{"name":"at-pod","namespace":"default","uid":%q,"resourceVersion":"%d","ownerReferences":[{"kind":"At","uid":"at","controller":true}]},"status":{"phase":%q}}`
	logPart   = `{"kind":"PartialObjectMetadata","metadata":{"name":"at","namespace":"default","uid":"at","resourceVersion":"7","labels":{"a":"b"}}}`
	logList   = `{"kind":"PodList","items":[%s]}`
	logStatus = `{"kind":"Status","status":"Success"}`
)

// TestReadLog checks the audit log of a run, and logs that differ from it.
func TestReadLog(t *testing.T) {
	run := func(created int) []string {
		return []string{
			line(0, "create", "ats", "at", "", newAt),
			line(1, "create", "pods", "at-pod", "?dryRun=All", fmt.Sprintf(logPod, "dry", 0, "Pending")),
			line(created, "create", "pods", "at-pod", "", fmt.Sprintf(logPod, "p", 2, "Pending")),
			strings.Replace(line(created, "create", "pods", "at-pod", "", logStatus), `"resource":"pods"`, `"resource":"pods","subresource":"binding"`, 1),
			line(62, "patch", "pods", "at-pod", "", fmt.Sprintf(logPod, "p", 3, "Running")),
			line(64, "patch", "pods", "at-pod", "", fmt.Sprintf(logPod, "p", 5, "Succeeded")),
			line(63, "patch", "ats", "at", "", fmt.Sprintf(logAt, 4, "RUNNING", "")),
			line(65, "patch", "ats", "at", "", fmt.Sprintf(logAt, 6, "DONE", "Completed")),
			line(66, "get", "ats", "at", "", fmt.Sprintf(logAt, 6, "DONE", "Completed")),
			line(67, "patch", "ats", "at", "", logPart),
			line(68, "delete", "ats", "at", "", logStatus),
			line(69, "deletecollection", "pods", "", "", fmt.Sprintf(logList, fmt.Sprintf(logPod, "p", 5, "Succeeded"))),
		}
	}
	for name, tc := range map[string]struct {
		lines  []string
		writes int
		want   Rule
	}{
		"a run":          {lines: run(60), writes: 9},
		"an early one":   {lines: run(59), writes: 9, want: NotEarly},
		"a second one":   {lines: append(run(60)[:9], line(68, "delete", "pods", "at-pod", "", fmt.Sprintf(logPod, "p", 5, "Succeeded")), line(69, "create", "pods", "at-pod", "", fmt.Sprintf(logPod, "q", 8, "Pending"))), writes: 8, want: Once},
		"a wrong result": {lines: append(run(60)[:5], line(65, "patch", "ats", "at", "", fmt.Sprintf(logAt, 6, "DONE", "Completed"))), writes: 4, want: True},
	} {
		t.Run(name, func(t *testing.T) {
			writes, unusable, err := ReadLog(strings.NewReader(strings.Join(tc.lines, "\n")))
			if err != nil || unusable > 0 || len(writes) != tc.writes {
				t.Fatalf("%d writes, %d unusable, %v; want %d writes", len(writes), unusable, err, tc.writes)
			}
			c := NewChecker()
			for _, w := range writes {
				c.Add(w)
			}
			var got Rule
			for _, v := range c.Violations {
				got = v.Rule
			}
			if got != tc.want {
				t.Errorf("got %v, want rule %q", c.Violations, tc.want)
			}
		})
	}
}

// TestReadLogErrors reads what is not an audit log, or has no answers.
func TestReadLogErrors(t *testing.T) {
	if _, _, err := ReadLog(strings.NewReader("I1224 10:00:00 not JSON")); err == nil || !strings.Contains(err.Error(), "line 1 is not an audit event") {
		t.Errorf("got %v, want an error about line 1", err)
	}
	metadata := strings.Replace(line(0, "create", "ats", "at", "", "0"), `"responseObject":0,`, "", 1)
	if _, unusable, err := ReadLog(strings.NewReader(metadata)); err != nil || unusable != 1 {
		t.Errorf("%d unusable writes, %v; want one", unusable, err)
	}
}
