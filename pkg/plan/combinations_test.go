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
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// optional sets each optional field of a spec.
var optional = map[string]func(*v1alpha1.AtSpec){
	"activeDeadlineSeconds": func(spec *v1alpha1.AtSpec) { spec.ActiveDeadlineSeconds = ptr.To[int64](10) },
	"backoffLimit":          func(spec *v1alpha1.AtSpec) { spec.BackoffLimit = ptr.To[int32](2) },
	"command":               func(spec *v1alpha1.AtSpec) { spec.Command = "echo YAY" },
	"node":                  func(spec *v1alpha1.AtSpec) { spec.Node = "n1" },
	"nodes":                 func(spec *v1alpha1.AtSpec) { spec.Nodes = &v1alpha1.AtNodes{} },
	"rehearse":              func(spec *v1alpha1.AtSpec) { spec.Rehearse = true },
	"restart": func(spec *v1alpha1.AtSpec) {
		spec.Command, spec.Restart = "", &v1alpha1.AtRestart{Kind: "Deployment", Name: "web"}
	},
	"template": func(spec *v1alpha1.AtSpec) {
		spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "own", Image: "own", Command: []string{"own"}}}}}
	},
	"timeZone": func(spec *v1alpha1.AtSpec) {
		spec.Schedule, spec.TimeZone = "2026-12-24T11:12:00", ptr.To("Europe/Berlin")
	},
	"startingDeadlineSeconds": func(spec *v1alpha1.AtSpec) { spec.StartingDeadlineSeconds = ptr.To[int64](3) },
	"suspend":                 func(spec *v1alpha1.AtSpec) { spec.Suspend = ptr.To(true) },
	"ttlSecondsAfterFinished": func(spec *v1alpha1.AtSpec) { spec.TTLSecondsAfterFinished = ptr.To[int32](30) },
}

// refusedPairs are the pairs that the CRD refuses.
var refusedPairs = []string{"node + nodes", "backoffLimit + restart", "command + restart", "node + restart", "nodes + restart", "rehearse + restart", "restart + template"}

// TestCombinations checks what happens for each pair of optional fields when both are
// set. docs/concepts/at.md describes the results.
func TestCombinations(t *testing.T) {
	type scenario struct {
		// world
		status v1alpha1.AtStatus
		pod    *corev1.Pod
		late   float64 // seconds after the instant
		// expectations
		want string
	}
	pending := v1alpha1.AtStatus{Phase: v1alpha1.PhasePending}
	foreseen := newAt(withStatus(pending)).Status
	foreseen.Conditions = []metav1.Condition{blocked(earlier, v1alpha1.ReasonImagePullFailed, rehearsalPrefix+"2026-12-24T10:01:00Z: no image")}
	explained(&foreseen)
	held := newAt(withSuspended).Status
	run := running(corev1.PodRunning)
	runHeld := running(corev1.PodRunning, suspended())
	waits := *nextAttempt(1, due.Add(20*time.Second))
	waitsHeld := *nextAttempt(1, due.Add(20*time.Second))
	waitsHeld.Conditions = append(waitsHeld.Conditions, suspended())
	explained(&waitsHeld)
	end := newAt(withDone(v1alpha1.ConditionFailed, due)).Status
	chosen := v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning, StartTime: &metav1.Time{Time: due}, Nodes: &v1alpha1.AtNodesStatus{}}
	chosenHeld := *chosen.DeepCopy()
	chosenHeld.Conditions = append(chosenHeld.Conditions, suspended())
	explained(&chosenHeld)
	oneIsLeft := v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning, StartTime: &metav1.Time{Time: due}, Nodes: nodes(1, 0, 0, 0)}
	restarting := v1alpha1.AtStatus{
		Phase: v1alpha1.PhaseRunning, StartTime: &metav1.Time{Time: due}, ScheduledTime: &metav1.Time{Time: due},
		Restart: &v1alpha1.AtRestartStatus{UID: "web", RestartedAt: &metav1.Time{Time: due}, Desired: 5, Updated: 3, Available: 4}, Message: "3 of 5 updated, 4 available",
	}
	restartingHeld := *restarting.DeepCopy()
	restartingHeld.Conditions = []metav1.Condition{suspended()}

	scenarios := map[string]map[string]scenario{
		"activeDeadlineSeconds + backoffLimit": {
			"an attempt that would start too late is not made": {run, failedPod(), 0.01, "Phase=DONE; CompletionTime=10:12:00.01; Pod.Phase=Failed; Failed=1; LastFailureTime=10:12:00.01; Failed PodFailed; Warning PodFailed"},
			"the limit is for all attempts together":           {waits, nil, 10.01, "Phase=DONE; CompletionTime=10:12:10.01; no NextAttemptTime; Failed DeadlineExceeded; Warning DeadlineExceeded"},
		},
		"activeDeadlineSeconds + command": {
			"the command is stopped": {run, runningPod(), 10.01, "FailureTarget DeadlineExceeded"},
		},
		"activeDeadlineSeconds + node": {
			"the command is stopped": {run, runningPod(), 10.01, "FailureTarget DeadlineExceeded"},
		},
		"activeDeadlineSeconds + nodes": {
			"the limit applies to each node": {chosen, nil, 0, `create Ats example-at-n1 example-at-n2: {"schedule":"2026-12-24T10:12:00Z","command":"echo YAY","node":"n1","activeDeadlineSeconds":10}`},
			"and not to the whole run":       {oneIsLeft, nil, 3600, "nothing"},
		},
		"activeDeadlineSeconds + startingDeadlineSeconds": {
			"before the start, only startingDeadlineSeconds counts": {pending, nil, 4, "Phase=DONE; CompletionTime=10:12:04; Failed StartingDeadlineExceeded; Warning StartingDeadlineExceeded"},
			"after the start, only activeDeadlineSeconds counts":    {run, runningPod(), 4, "wait 6.01s"},
		},
		"activeDeadlineSeconds + suspend": {
			"a running command is stopped anyway":  {runHeld, runningPod(), 10.01, "FailureTarget DeadlineExceeded"},
			"between attempts, the time continues": {waitsHeld, nil, 10.01, "Phase=DONE; CompletionTime=10:12:10.01; no NextAttemptTime; Failed DeadlineExceeded; Warning DeadlineExceeded"},
			"before the start, it does not":        {held, nil, 3600, "nothing"},
		},
		"activeDeadlineSeconds + template": {
			"the template's own limit applies to each attempt": {run, failedPod(func(pod *corev1.Pod) { pod.Status.Reason = "DeadlineExceeded" }), 5, "Phase=DONE; CompletionTime=10:12:05; Pod.Phase=Failed; Failed=1; LastFailureTime=10:12:05; Failed DeadlineExceeded; Warning DeadlineExceeded"},
		},
		"activeDeadlineSeconds + timeZone": {
			"seconds are seconds": {run, runningPod(), 10.01, "FailureTarget DeadlineExceeded"},
		},
		"activeDeadlineSeconds + ttlSecondsAfterFinished": {
			"activeDeadlineSeconds ends the run":           {run, runningPod(), 60, "FailureTarget DeadlineExceeded"},
			"ttlSecondsAfterFinished counts from that end": {end, nil, 29, "wait 1s"},
		},
		"backoffLimit + command": {
			"the same command again": {waits, nil, 20, "create example-at-pod-1: image /bin/sh -c echo YAY"},
		},
		"backoffLimit + node": {
			"again on the same node": {waits, nil, 20, "create example-at-pod-1: image /bin/sh -c echo YAY on n1"},
		},
		"backoffLimit + nodes": {
			"the limit applies to each node": {chosen, nil, 0, `create Ats example-at-n1 example-at-n2: {"schedule":"2026-12-24T10:12:00Z","command":"echo YAY","node":"n1","backoffLimit":2}`},
		},
		"backoffLimit + startingDeadlineSeconds": {
			"the deadline is for the first attempt": {waits, nil, 20, "create example-at-pod-1: image /bin/sh -c echo YAY"},
		},
		"backoffLimit + suspend": {
			"no attempt is added": {waitsHeld, nil, 20, "nothing"},
		},
		"backoffLimit + template": {
			"the same Pod again": {waits, nil, 20, "create example-at-pod-1: own own"},
		},
		"backoffLimit + timeZone": {
			"the zone is for the first attempt": {waits, nil, 20, "create example-at-pod-1: image /bin/sh -c echo YAY"},
		},
		"backoffLimit + ttlSecondsAfterFinished": {
			"a failed attempt followed by another is not the end": {run, failedPod(), 60, "Pod.Phase=Failed; Failed=1; LastFailureTime=10:13:00; NextAttemptTime=10:13:10; says BackOff: Attempt 1 of 3 failed, the next is due at 2026-12-24T10:13:10Z: Pod example-at-pod failed; Warning PodFailed: Attempt 1 of 3 failed, the next is due at 2026-12-24T10:13:10Z: Pod example-at-pod failed"},
		},
		"command + node": {
			"it runs there": {pending, nil, 0, "create example-at-pod: image /bin/sh -c echo YAY on n1"},
		},
		"command + nodes": {
			"it runs on each": {chosen, nil, 0, `create Ats example-at-n1 example-at-n2: {"schedule":"2026-12-24T10:12:00Z","command":"echo YAY","node":"n1"}`},
		},
		"command + startingDeadlineSeconds": {
			"too late, it does not run": {pending, nil, 4, "Phase=DONE; CompletionTime=10:12:04; Failed StartingDeadlineExceeded; Warning StartingDeadlineExceeded"},
		},
		"command + suspend": {
			"it does not run": {held, nil, 3600, "nothing"},
		},
		"command + template": {
			"the command runs in the template's first container": {pending, nil, 0, "create example-at-pod: own /bin/sh -c echo YAY"},
		},
		"command + timeZone": {
			"it runs when the clocks there show the time": {pending, nil, 0, "create example-at-pod: image /bin/sh -c echo YAY"},
			"and not before": {pending, nil, -1e-9, "preflight; wait 1ns"},
		},
		"command + ttlSecondsAfterFinished": {
			"it is deleted with the At": {end, nil, 30, "DeleteAt"},
		},
		"node + startingDeadlineSeconds": {
			"too late, it does not run": {pending, nil, 4, "Phase=DONE; CompletionTime=10:12:04; Failed StartingDeadlineExceeded; Warning StartingDeadlineExceeded"},
		},
		"node + suspend": {
			"it does not run": {held, nil, 3600, "nothing"},
		},
		"node + template": {
			"the template's Pod runs there": {pending, nil, 0, "create example-at-pod: own own on n1"},
		},
		"node + timeZone": {
			"the named zone counts, wherever the node is": {pending, nil, 0, "create example-at-pod: image /bin/sh -c echo YAY on n1"},
		},
		"node + ttlSecondsAfterFinished": {
			"it is deleted with the At": {end, nil, 30, "DeleteAt"},
		},
		"nodes + startingDeadlineSeconds": {
			"too late, it runs on none":                       {chosen, nil, 4, "Phase=DONE; CompletionTime=10:12:04; Failed StartingDeadlineExceeded; Warning StartingDeadlineExceeded"},
			"once it may run on all nodes, it does not count": {oneIsLeft, nil, 3600, "nothing"},
		},
		"nodes + suspend": {
			"it does not run":     {held, nil, 3600, "nothing"},
			"no nodes are chosen": {chosenHeld, nil, 0, "nothing"},
		},
		"nodes + template": {
			"the template's Pod runs on each": {chosen, nil, 0, `create Ats example-at-n1 example-at-n2: {"schedule":"2026-12-24T10:12:00Z","template":{"metadata":{},"spec":{"containers":[{"name":"own","image":"own","command":["own"],"resources":{}}]}},"node":"n1"}`},
		},
		"nodes + timeZone": {
			"the named zone counts, wherever the nodes are": {chosen, nil, 0, `create Ats example-at-n1 example-at-n2: {"schedule":"2026-12-24T11:12:00","timeZone":"Europe/Berlin","command":"echo YAY","node":"n1"}`},
		},
		"nodes + ttlSecondsAfterFinished": {
			"the children are deleted with the At": {end, nil, 30, "DeleteAt"},
		},
		"activeDeadlineSeconds + restart": {
			"the rollout is no longer followed": {restarting, nil, 10, "Phase=DONE; CompletionTime=10:12:10; Failed DeadlineExceeded; Warning DeadlineExceeded"},
		},
		"activeDeadlineSeconds + rehearse": {
			"the limit counts from the run, not from its rehearsal": {run, runningPod(), 4, "wait 6.01s"},
		},
		"backoffLimit + rehearse": {
			"a rehearsal is no attempt": {foreseen, nil, 0, "create example-at-pod: image /bin/sh -c echo YAY"},
		},
		"command + rehearse": {
			"whatever its rehearsal found, it runs": {foreseen, nil, 0, "create example-at-pod: image /bin/sh -c echo YAY"},
			"and not before its time":               {foreseen, nil, -1e-9, "preflight; wait 1ns"},
		},
		"node + rehearse": {
			"whatever its rehearsal there found, it runs there": {foreseen, nil, 0, "create example-at-pod: image /bin/sh -c echo YAY on n1"},
		},
		"nodes + rehearse": {
			"whatever its rehearsal found, it runs on each": {chosen, nil, 0, `create Ats example-at-n1 example-at-n2: {"schedule":"2026-12-24T10:12:00Z","command":"echo YAY","node":"n1"}`},
		},
		"rehearse + startingDeadlineSeconds": {
			"too late, it does not run, whatever its rehearsal found": {foreseen, nil, 4, "Phase=DONE; CompletionTime=10:12:04; Failed StartingDeadlineExceeded; no Blocked; Warning StartingDeadlineExceeded"},
		},
		"rehearse + suspend": {
			"it does not run":                 {held, nil, 3600, "nothing"},
			"it is rehearsed before its time": {held, nil, -3600, "preflight; wait 49m17.117s"},
		},
		"rehearse + template": {
			"whatever its rehearsal found, it runs": {foreseen, nil, 0, "create example-at-pod: own own"},
		},
		"rehearse + timeZone": {
			"it runs when the clocks there show the time": {foreseen, nil, 0, "create example-at-pod: image /bin/sh -c echo YAY"},
		},
		"rehearse + ttlSecondsAfterFinished": {
			"seconds are seconds": {end, nil, 30, "DeleteAt"},
		},
		"restart + startingDeadlineSeconds": {
			"too late, nothing is restarted": {pending, nil, 4, "Phase=DONE; CompletionTime=10:12:04; Failed StartingDeadlineExceeded; Warning StartingDeadlineExceeded"},
		},
		"restart + suspend": {
			"nothing is restarted":               {held, nil, 3600, "nothing"},
			"a rollout that has begun continues": {restartingHeld, nil, 5, "wait 2s"},
		},
		"restart + timeZone": {
			"it is restarted when the clocks there show the time": {pending, nil, 0, "Phase=RUNNING; ScheduledTime=10:12:00; StartTime=10:12:00; Restart.UID=web; Restart.Desired=5; says Restarting Deployment web."},
			"and not before": {pending, nil, -1e-9, "preflight; wait 1ns"},
		},
		"restart + ttlSecondsAfterFinished": {
			"the workload stays when the At goes": {end, nil, 30, "DeleteAt"},
		},
		"startingDeadlineSeconds + suspend": {
			"suspended beyond the deadline": {held, nil, 3600, "nothing"},
		},
		"startingDeadlineSeconds + template": {
			"too late, it does not run": {pending, nil, 4, "Phase=DONE; CompletionTime=10:12:04; Failed StartingDeadlineExceeded; Warning StartingDeadlineExceeded"},
		},
		"startingDeadlineSeconds + timeZone": {
			"the deadline counts from the zone's instant": {pending, nil, 3.999999999, "create example-at-pod: image /bin/sh -c echo YAY"},
			"and ends a second later":                     {pending, nil, 4, "Phase=DONE; CompletionTime=10:12:04; Failed StartingDeadlineExceeded; Warning StartingDeadlineExceeded"},
		},
		"startingDeadlineSeconds + ttlSecondsAfterFinished": {
			"an At that never ran is also deleted": {end, nil, 30, "DeleteAt"},
		},
		"suspend + template": {
			"it does not run": {held, nil, 3600, "nothing"},
		},
		"suspend + timeZone": {
			"suspended when the clocks show the time": {held, nil, 0, "nothing"},
		},
		"suspend + ttlSecondsAfterFinished": {
			"an ended At is not affected": {end, nil, 30, "DeleteAt"},
		},
		"template + timeZone": {
			"it runs when the clocks there show the time": {pending, nil, 0, "create example-at-pod: own own"},
		},
		"template + ttlSecondsAfterFinished": {
			"it is deleted with the At": {end, nil, 30, "DeleteAt"},
		},
		"timeZone + ttlSecondsAfterFinished": {
			"seconds are seconds": {end, nil, 30, "DeleteAt"},
		},
	}

	var names []string
	for _, field := range reflect.VisibleFields(reflect.TypeFor[v1alpha1.AtSpec]()) {
		if name, isOptional := strings.CutSuffix(field.Tag.Get("json"), ",omitempty"); isOptional {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for i, first := range names {
		for _, second := range names[i+1:] {
			pair := first + " + " + second
			if slices.Contains(refusedPairs, pair) {
				continue
			}
			if len(scenarios[pair]) == 0 {
				t.Errorf("nothing is said of %s", pair)
			}
			for what, tc := range scenarios[pair] {
				t.Run(pair+": "+what, func(t *testing.T) {
					at := newAt(withStatus(tc.status))
					if first == "template" || second == "template" {
						at.Spec.Command = ""
					}
					optional[first](&at.Spec)
					optional[second](&at.Spec)
					at.Status.ObservedGeneration = at.Generation
					now := due.Add(time.Duration(tc.late * float64(time.Second)).Round(1))
					world := World{At: at, Pods: podsOf(tc.pod), Live: LiveAll, AsOf: now, Now: now}
					world.Nodes = []*corev1.Node{newNode("n1"), newNode("n2")}
					world.Node = world.Nodes[0]
					world.Target = newTarget()
					if isRestart(at) {
						world.Target = rollingTarget()
					}
					if desired := ptr.Deref(at.Status.Nodes, v1alpha1.AtNodesStatus{}).Desired; desired > 0 {
						world.Children = []*v1alpha1.At{newRunningChild("n1")}
					}
					decision := Decide(world)
					if got := describe(world, decision); got != tc.want {
						t.Errorf("got  %s\nwant %s", got, tc.want)
					}
					testFrozen(t, world)
					testRest(t, world)
					testKept(t, world)
					if _, overdue := StateOf(at, nil, world.Now); overdue > 0 && decision.Action == nil && decision.Status == nil {
						t.Errorf("it is overdue for %v, but has no step to take", overdue)
					}
				})
			}
			delete(scenarios, pair)
		}
	}
	for pair := range scenarios {
		t.Errorf("%s is no pair of optional fields", pair)
	}
}

// messages matches the messages of conditions.
var messages = regexp.MustCompile(`((?:Failed|Complete|FailureTarget|Blocked) \w+): [^;]*`)

// describe is textOf with what is created, but without messages.
func describe(w World, d Decision) string {
	switch action := d.Action.(type) {
	case CreatePod:
		pod := NewPod(w.At, Defaults{Image: "image"})
		container := pod.Spec.Containers[0]
		what := fmt.Sprintf("create %s: %s %s", pod.Name, container.Image, strings.Join(container.Command, " "))
		if pod.Spec.Affinity != nil {
			what += " on " + w.Node.Name
		}
		return what
	case CreateAts:
		spec, _ := json.Marshal(action.Ats[0].Spec)
		return fmt.Sprintf("create Ats%s: %s", namesOf(action.Ats), spec)
	default:
		return messages.ReplaceAllString(textOf(w, d), "$1")
	}
}
