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
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
)

// line returns an event of an audit log about an object of a resource.
func line(second int, verb, resource, name, query, response string) string {
	group := map[string]string{"ats": v1alpha1.SchemeGroupVersion.Group, "deployments": "apps"}[resource]
	return fmt.Sprintf(`{"kind":"Event","apiVersion":"audit.k8s.io/v1","stage":"ResponseComplete","verb":%q,"requestURI":"/x%s","objectRef":{"apiGroup":%q,"resource":%q,"namespace":"default","name":%q},"responseStatus":{"code":200},"responseObject":%s,"requestReceivedTimestamp":"2026-12-24T10:%02d:%02d.000000Z","stageTimestamp":"2026-12-24T10:%02d:%02d.005000Z"}`,
		verb, query, group, resource, name, response, second/60, second%60, second/60, second%60)
}

const (
	newAt     = `{"kind":"At","metadata":{"name":"at","namespace":"default","uid":"at","resourceVersion":"1"},"spec":{"schedule":"2026-12-24T10:01:00Z"},"status":{"phase":"PENDING"}}`
	logAt     = `{"kind":"At","metadata":{"name":"at","namespace":"default","uid":"at","resourceVersion":"%d"},"spec":{"schedule":"2026-12-24T10:01:00Z"},"status":{"phase":%q,"reason":%q,"pod":{"name":"at-pod","uid":"p"},"conditions":%s}}`
	restartAt = `{"kind":"At","metadata":{"name":"at","namespace":"default","uid":"at","resourceVersion":"%d"},"spec":{"schedule":"2026-12-24T10:01:00Z","restart":{"kind":"Deployment","name":"web"}},"status":{"phase":"%s","restart":{"uid":"web","restartedAt":%s}}}`
	complete  = `[{"type":"Complete","status":"True","reason":"Completed"}]`
	logPod    = `{"kind":"Pod","metadata":{"name":"at-pod","namespace":"default","uid":%q,"resourceVersion":"%d","ownerReferences":[{"kind":"At","uid":"at","controller":true}]},"status":{"phase":%q}}`
	logTry    = `{"kind":"Pod","metadata":{"name":"n-rehearsal","namespace":"default","uid":"r","resourceVersion":"%d","labels":{"cnat.programming-kubernetes.info/rehearsal-of":"c"},"ownerReferences":[{"apiVersion":"cnat.programming-kubernetes.info/v1alpha1","kind":"CronAt","name":"n","uid":"c","controller":true}]},"status":{"phase":"Pending"}}`
	logPart   = `{"kind":"PartialObjectMetadata","metadata":{"name":"at","namespace":"default","uid":"at","resourceVersion":"7","labels":{"a":"b"}}}`
	logList   = `{"kind":"PodList","items":[%s]}`
	logStray  = `{"kind":"Pod","metadata":{"name":"stray","namespace":"default","uid":"s","resourceVersion":"9"}}`
	logDeploy = `{"kind":"Deployment","metadata":{"name":"web","namespace":"default","uid":"web","resourceVersion":"%d","managedFields":[{"manager":"m"}]},"spec":{"template":{"metadata":{"annotations":{"a":"b","kubectl.kubernetes.io/restartedAt":"x"}},"spec":{"containers":[{"name":"c"}]}}}}`
	logStatus = `{"kind":"Status","status":"Success"}`
)

// withoutAnswer returns an event at the level Metadata.
func withoutAnswer(line string) string {
	return line[:strings.Index(line, `"responseObject"`)] + line[strings.Index(line, `"requestReceivedTimestamp"`):]
}

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
			line(63, "patch", "ats", "at", "", fmt.Sprintf(logAt, 4, "RUNNING", "", "[]")),
			line(65, "patch", "ats", "at", "", fmt.Sprintf(logAt, 6, "DONE", "Completed", complete)),
			line(66, "get", "ats", "at", "", fmt.Sprintf(logAt, 6, "DONE", "Completed", complete)),
			line(67, "patch", "ats", "at", "", logPart),
			line(68, "delete", "ats", "at", "", logStatus),
			line(69, "deletecollection", "pods", "", "", fmt.Sprintf(logList, fmt.Sprintf(logPod, "p", 5, "Succeeded"))),
		}
	}
	create, stray := line(0, "create", "ats", "at", "", newAt), line(70, "create", "pods", "stray", "", logStray)
	failed := func(second int, verb, resource, name, query string) string {
		return strings.Replace(line(second, verb, resource, name, query, logStatus), `"code":200`, `"code":504`, 1)
	}
	restart := []string{
		line(0, "create", "ats", "at", "", fmt.Sprintf(restartAt, 1, "PENDING", "null")),
		line(1, "create", "deployments", "web", "", fmt.Sprintf(logDeploy, 2)),
		withoutAnswer(line(60, "patch", "deployments", "web", "", "0")),
		line(62, "patch", "ats", "at", "", fmt.Sprintf(restartAt, 4, "RUNNING", `"2026-12-24T10:01:00Z"`)),
		line(61, "patch", "deployments", "web", "", fmt.Sprintf(logDeploy, 3)),
	}
	kept := strings.Replace(newAt, `"uid"`, `"finalizers":["x/y"],"uid"`, 1)
	for name, tc := range map[string]struct {
		lines  []string
		writes int
		want   Rule
		gone   bool // after the last write
		settle bool // an hour later
	}{
		"a run":         {lines: run(60), writes: 9},
		"an early one":  {lines: run(59), writes: 9, want: NotEarly},
		"a second one":  {lines: append(run(60)[:9], line(68, "delete", "pods", "at-pod", "", fmt.Sprintf(logPod, "p", 5, "Succeeded")), line(69, "create", "pods", "at-pod", "", fmt.Sprintf(logPod, "q", 8, "Pending"))), writes: 8, want: Once},
		"applied early": {lines: append(run(60)[:2], strings.Replace(line(59, "patch", "pods", "at-pod", "", fmt.Sprintf(logPod, "p", 2, "Pending")), `"code":200`, `"code":201`, 1)), writes: 2, want: NotEarly},
		// The clock of the second API server is behind.
		"a clock behind":               {lines: append(run(60)[:5], line(65, "patch", "ats", "at", "", fmt.Sprintf(logAt, 6, "DONE", "Completed", complete)), line(66, "patch", "pods", "at-pod", "", fmt.Sprintf(logPod, "p", 5, "Succeeded"))), writes: 5},
		"a deletion by a clock behind": {lines: append(run(60)[:9], line(64, "delete", "ats", "at", "", strings.Replace(logStatus, "}", `,"details":{"uid":"at"}}`, 1))), writes: 7, gone: true},
		"a deletion of an earlier At":  {lines: append(run(60)[:9], line(64, "delete", "ats", "at", "", strings.Replace(logStatus, "}", `,"details":{"uid":"earlier"}}`, 1))), writes: 6},
		"deleted with others":          {lines: append(run(60)[:1], line(58, "deletecollection", "ats", "", "", fmt.Sprintf(logList, kept)), run(60)[2]), writes: 3, want: Honored},
		"deleted, and with others":     {lines: append(run(60)[:1], line(57, "delete", "ats", "at", "", strings.NewReplacer(`"uid"`, `"deletionTimestamp":"2026-12-24T10:00:57Z","uid"`, `"resourceVersion":"1"`, `"resourceVersion":"2"`).Replace(kept)), line(58, "deletecollection", "ats", "", "", fmt.Sprintf(logList, kept))), writes: 2},
		"a rehearsal that is left":     {lines: append(run(60), line(70, "create", "pods", "n-rehearsal", "", fmt.Sprintf(logTry, 10))), writes: 10, settle: true, want: NotLost},
		"a rehearsal without its owner": {lines: append(run(60), line(70, "create", "pods", "n-rehearsal", "", fmt.Sprintf(logTry, 10)),
			line(71, "patch", "pods", "n-rehearsal", "", strings.NewReplacer(`"ownerReferences"`, `"x"`, "Pending", "Running").Replace(fmt.Sprintf(logTry, 11)))), writes: 11},
		"an end that is not recorded":   {lines: run(60)[:7], writes: 5, settle: true, want: NotLost},
		"an end without an answer":      {lines: append(run(60)[:7], failed(65, "patch", "ats", "at", "")), writes: 6, settle: true},
		"a Pod that was not created":    {lines: []string{create, stray, run(60)[6]}, writes: 2, want: True},
		"a Pod without an answer":       {lines: []string{create, stray, strings.Replace(failed(60, "create", "pods", "at-pod", ""), `"responseObject"`, `"requestObject":`+fmt.Sprintf(logPod, "", 0, "Pending")+`,"responseObject"`, 1), run(60)[6]}, writes: 3},
		"resumed without an answer":     {lines: []string{strings.Replace(create, `"spec":{`, `"spec":{"suspend":true,`, 1), failed(50, "patch", "ats", "at", ""), run(60)[2]}, writes: 3},
		"not resumed":                   {lines: []string{strings.Replace(create, `"spec":{`, `"spec":{"suspend":true,`, 1), run(60)[2]}, writes: 2, want: Honored},
		"a restart without an answer":   {lines: restart[:4], writes: 4},
		"a restart that was not":        {lines: []string{restart[0], restart[1], restart[3]}, writes: 3, want: True},
		"a restart with a later answer": {lines: []string{restart[0], restart[1], restart[2], restart[4], restart[3]}, writes: 5, want: True},
		"Pods of others":                {lines: append(run(60), stray), writes: 9},
		"a Pod without its owner":       {lines: append(run(60)[:9], line(68, "patch", "pods", "at-pod", "", strings.Replace(fmt.Sprintf(logPod, "p", 7, "Succeeded"), "ownerReferences", "x", 1))), writes: 7},
		"Pods of another group":         {lines: append(run(60), strings.Replace(line(70, "create", "pods", "at-pod", "", fmt.Sprintf(logPod, "q", 9, "Pending")), `"apiGroup":""`, `"apiGroup":"example.com"`, 1)), writes: 9},
		"a wrong result":                {lines: append(run(60)[:5], line(65, "patch", "ats", "at", "", fmt.Sprintf(logAt, 6, "DONE", "Completed", complete))), writes: 4, want: True},
	} {
		t.Run(name, func(t *testing.T) {
			var log Log
			if err := log.Read("audit.log", strings.NewReader(strings.Join(tc.lines, "\n"))); err != nil {
				t.Fatal(err)
			}
			writes, err := log.Writes()
			if err != nil || len(writes) != tc.writes {
				t.Fatalf("%d writes, %v; want %d writes", len(writes), err, tc.writes)
			}
			if tc.gone && !writes[len(writes)-1].Gone {
				t.Errorf("the last write is %+v, want a deletion", writes[len(writes)-1])
			}
			c := NewChecker()
			for _, w := range writes {
				c.Add(w)
			}
			if tc.settle {
				c.Settle(log.Last.Add(time.Hour), time.Minute)
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

// TestReadLogErrors reads logs that are not enough.
func TestReadLogErrors(t *testing.T) {
	create := line(0, "create", "ats", "at", "", newAt)
	ran := line(62, "patch", "ats", "at", "", fmt.Sprintf(logAt, 4, "RUNNING", "", "[]"))
	deployed := line(1, "create", "deployments", "web", "", fmt.Sprintf(logDeploy, 2))
	for name, tc := range map[string]struct {
		log                     string
		want                    string
		deployments, unanswered int
	}{
		"no JSON":                     {log: create + "\nI1224 10:00:00 not JSON", want: "audit.log: line 2 is not an audit event"},
		"an incomplete line":          {log: create[:strings.Index(create, `"verb"`)] + "\n" + create, want: "audit.log: line 1 is not an audit event"},
		"an incomplete last line":     {log: create + "\n" + create[:100]},
		"a long line":                 {log: strings.Repeat(" ", 17<<20) + create},
		"empty lines":                 {log: "\n\r\n" + create + "\n\n"},
		"an At without answer":        {log: withoutAnswer(create), want: "the log lacks the answers to 1 of the writes of Ats, CronAts and Pods"},
		"a Pod without answer":        {log: create + "\n" + withoutAnswer(line(1, "create", "pods", "x", "", "0")), want: "the log lacks the answers to 1 of the writes of Ats, CronAts and Pods"},
		"no Pods":                     {log: create + "\n" + ran, want: "the log has no writes of Pods"},
		"no Pods, from a later time":  {log: ran},
		"only Deployments":            {log: deployed, want: "the log has no write of an At", deployments: 1},
		"a Deployment":                {log: create + "\n" + deployed, deployments: 1},
		"a Deployment without answer": {log: create + "\n" + withoutAnswer(deployed), unanswered: 1},
		"a status without answer":     {log: create + "\n" + withoutAnswer(strings.Replace(deployed, `"deployments"`, `"deployments","subresource":"status"`, 1))},
	} {
		t.Run(name, func(t *testing.T) {
			var log Log
			err := log.Read("audit.log", strings.NewReader(tc.log))
			if err == nil {
				_, err = log.Writes()
			}
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if log.Deployments != tc.deployments || log.UnusableDeployments != tc.unanswered {
				t.Errorf("%d writes of Deployments, %d without answer; want %d and %d", log.Deployments, log.UnusableDeployments, tc.deployments, tc.unanswered)
			}
		})
	}
}

// TestReduced checks what is kept of objects.
func TestReduced(t *testing.T) {
	var log Log
	pod := strings.Replace(fmt.Sprintf(logPod, "p", 2, "Pending"), `"status"`, `"spec":{"terminationGracePeriodSeconds":5,"containers":[{"name":"c"}]},"status"`, 1)
	lines := line(0, "create", "ats", "at", "", strings.Replace(newAt, `"name"`, `"managedFields":[{"manager":"m"}],"name"`, 1)) + "\n" +
		line(1, "create", "pods", "at-pod", "", pod) + "\n" + line(2, "create", "deployments", "web", "", fmt.Sprintf(logDeploy, 3))
	if err := log.Read("audit.log", strings.NewReader(lines)); err != nil {
		t.Fatal(err)
	}
	writes, err := log.Writes()
	if err != nil || len(writes) != 3 {
		t.Fatalf("%d writes, %v", len(writes), err)
	}
	for _, w := range writes {
		if len(w.Object.GetManagedFields()) > 0 {
			t.Errorf("%T has managed fields", w.Object)
		}
	}
	want := corev1.PodSpec{TerminationGracePeriodSeconds: ptr.To[int64](5)}
	if diff := cmp.Diff(want, writes[1].Object.(*corev1.Pod).Spec); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{rollout.AnnotationRestartedAt: "x"}, writes[2].Object.(*appsv1.Deployment).Spec.Template.Annotations); diff != "" {
		t.Error(diff)
	}
}
