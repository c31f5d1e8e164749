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

package plan

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

func TestStateOf(t *testing.T) {
	blocked := blocked(due, v1alpha1.ReasonPodRefused, "quota")
	forecast := blocked
	forecast.Message = forecastPrefix + "quota"
	next := *nextAttempt(1, due.Add(20*time.Second))
	nextBlocked := *changed(next, func(status *v1alpha1.AtStatus) { status.Conditions = []metav1.Condition{blocked} })
	child := newChildOn("n1", withStatus(next))
	parent := counted(nodes(1, 0, 0, 0))
	for name, tc := range map[string]struct {
		at, parent *v1alpha1.At
		after      time.Duration // from the instant until now
		want       string
	}{
		"before the next attempt":            {newAt(withStatus(next)), nil, time.Second, "running, overdue for 0s"},
		"at its time":                        {newAt(), nil, 0, "due, overdue for 0s"},
		"a moment before its time":           {newAt(), nil, -1, "pending, overdue for 0s"},
		"resumed after its time":             {pendingAt(resumed(due.Add(50 * time.Second))), nil, time.Minute, "due, overdue for 10s"},
		"blocked":                            {pendingAt(blocked), nil, time.Hour, "blocked, overdue for 0s"},
		"blocked and suspended":              {newAt(withStatus(pendingWith(blocked)), withSuspend), nil, time.Hour, "suspended, overdue for 0s"},
		"forecast before its time":           {pendingAt(forecast), nil, -1, "blocked, overdue for 0s"},
		"forecast at its time":               {pendingAt(forecast), nil, time.Second, "due, overdue for 1s"},
		"schedule without instant":           {newAt(withSchedule("tomorrow")), nil, time.Hour, "pending, overdue for 0s"},
		"after the next attempt":             {newAt(withStatus(next)), nil, time.Minute, "running, overdue for 40s"},
		"next attempt blocked":               {newAt(withStatus(nextBlocked)), nil, time.Minute, "running, overdue for 0s"},
		"next attempt suspended":             {newAt(withStatus(next), withSuspendedRun), nil, time.Minute, "running, overdue for 0s"},
		"of a child":                         {child, parent, time.Minute, "running, overdue for 40s"},
		"of a child, the parent suspended":   {child, counted(nodes(1, 0, 0, 0), withSuspend), time.Minute, "running, overdue for 0s"},
		"to be restarted":                    {restarts(begun()), nil, time.Minute, "running, overdue for 56s"},
		"to be restarted, refused":           {restarts(restartBlocked(begun(), v1alpha1.ReasonRestartRefused, "no")), nil, time.Minute, "running, overdue for 0s"},
		"restarted":                          {restarts(following()), nil, time.Minute, "running, overdue for 0s"},
		"done":                               {newAt(withDone(v1alpha1.ConditionFailed, due), withSuspend), nil, time.Hour, "done, overdue for 0s"},
		"done, but for the write of Blocked": {newAt(withStatus(*changed(pendingWith(blocked), func(status *v1alpha1.AtStatus) { status.Phase = v1alpha1.PhaseDone }))), nil, time.Hour, "done, overdue for 0s"},
	} {
		state, overdue := StateOf(tc.at, tc.parent, due.Add(tc.after))
		if got := fmt.Sprintf("%s, overdue for %v", state, overdue); got != tc.want {
			t.Errorf("%s: got %s, want %s", name, got, tc.want)
		}
	}
}
