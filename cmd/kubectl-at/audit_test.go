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
	"strings"
	"testing"
)

// auditLines are the creation of an At, and that of its Pod a second before it is due.
const auditLines = `{"stage":"ResponseComplete","verb":"create","requestURI":"/","objectRef":{"apiGroup":"cnat.programming-kubernetes.info","resource":"ats"},"responseStatus":{"code":201},"requestReceivedTimestamp":"2026-12-24T10:00:00.000000Z","stageTimestamp":"2026-12-24T10:00:00.000000Z","responseObject":{"kind":"At","metadata":{"name":"at","namespace":"default","uid":"at","resourceVersion":"1"},"spec":{"schedule":"2026-12-24T10:01:00Z"}}}
{"stage":"ResponseComplete","verb":"create","requestURI":"/","objectRef":{"resource":"pods"},"responseStatus":{"code":201},"requestReceivedTimestamp":"2026-12-24T10:00:59.000000Z","stageTimestamp":"2026-12-24T10:00:59.000000Z","responseObject":{"kind":"Pod","metadata":{"name":"at-pod","namespace":"default","uid":"p","resourceVersion":"2","ownerReferences":[{"kind":"At","uid":"at","controller":true}]}}}
`

// auditBlocked are another At, whose Pod is refused for a reason that is not printable, and a
// later write.
const auditBlocked = `{"stage":"ResponseComplete","verb":"create","requestURI":"/","objectRef":{"apiGroup":"cnat.programming-kubernetes.info","resource":"ats"},"responseStatus":{"code":201},"requestReceivedTimestamp":"2026-12-24T10:00:00.000000Z","stageTimestamp":"2026-12-24T10:00:00.000000Z","responseObject":{"kind":"At","metadata":{"name":"blocked","namespace":"default","uid":"blocked","resourceVersion":"3"},"spec":{"schedule":"2026-12-24T10:01:00Z"},"status":{"phase":"PENDING","reason":"Pod\u001bRefused"}}}
{"stage":"ResponseComplete","verb":"get","requestURI":"/","objectRef":{"resource":"pods"},"responseStatus":{"code":200},"stageTimestamp":"2026-12-24T10:11:01.000000Z"}
`

// auditDeployment is the creation of a Deployment.
const auditDeployment = `{"stage":"ResponseComplete","verb":"create","requestURI":"/","objectRef":{"apiGroup":"apps","resource":"deployments"},"responseStatus":{"code":201},"requestReceivedTimestamp":"2026-12-24T10:00:00.000000Z","stageTimestamp":"2026-12-24T10:00:00.000000Z","responseObject":{"kind":"Deployment","metadata":{"name":"web","namespace":"default","uid":"web","resourceVersion":"4"}}}
`

// TestAudit checks audit logs from the standard input.
func TestAudit(t *testing.T) {
	for name, tc := range map[string]struct {
		log  string
		code int
		want string // in the output
	}{
		"early":       {auditLines, exitFailed, "2026-12-24T10:00:59.000Z early: At default/at: it starts 1s before its time, 2026-12-24T10:01:00Z\n"},
		"in time":     {strings.ReplaceAll(auditLines, "10:00:59", "10:01:00"), 0, "no guarantee was broken"},
		"counts":      {auditLines, exitFailed, ": 1 At, 0 CronAts, 1 Pod\n"},
		"one":         {auditLines, exitFailed, "broken guarantees: 1."},
		"short":       {auditLines, exitFailed, "the log is shorter than --grace 10m0s: it cannot show what is lost\n"},
		"blocked":     {auditLines + auditBlocked, exitFailed, "\nblocked Pod Refused: 1\n"},
		"no restarts": {auditLines, exitFailed, "restarts are not checked: the log has no answers to writes of Deployments\n"},
		"restarts":    {auditLines + auditDeployment, exitFailed, "restarts of Deployments: 0\n"},
		"some restarts": {auditLines + auditDeployment + strings.ReplaceAll(auditDeployment, "responseObject", "omitted"), exitFailed,
			"not all restarts are checked: 1 write of Deployments without an answer\n"},
		"no answers": {strings.ReplaceAll(auditLines, "responseObject", "omitted"), exitError, "set the level of ats, cronats and pods to RequestResponse"},
		"not JSON":   {"x", exitError, "standard input: line 1 is not an audit event"},
		"empty":      {"", exitError, "the log has no write of an At"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.log)
			code := w.run(t, "audit", "-")
			if out := w.stdout.String() + w.stderr.String(); code != tc.code || !strings.Contains(out, tc.want) {
				t.Errorf("exit code %d, output %q; want %d and %q", code, out, tc.code, tc.want)
			}
		})
	}
}
