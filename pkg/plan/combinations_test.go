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
	"maps"
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

// scenario is what happens to an At.
type scenario struct {
	// world
	status v1alpha1.AtStatus
	pod    *corev1.Pod
	late   float64 // seconds after the instant
	// expectations
	want string // "POD" is what the Pod runs, and where
}

// effect is what a field does, whatever other field is set beside it, except for some.
type effect struct {
	scenario
	except string
}

// TestCombinations checks what happens for each pair of optional fields when both are
// set. docs/reference/combinations.md describes the results.
func TestCombinations(t *testing.T) {
	pending := v1alpha1.AtStatus{Phase: v1alpha1.PhasePending}
	foreseen := newAt(withStatus(pending)).Status
	foreseen.Conditions = []metav1.Condition{blocked(earlier, v1alpha1.ReasonImagePullFailed, rehearsalPrefix+"2026-12-24T10:01:00Z: no image")}
	held := newAt(withSuspended).Status
	run := running(corev1.PodRunning)
	waits := *nextAttempt(1, due.Add(20*time.Second))
	end := newAt(withDone(v1alpha1.ConditionFailed, due)).Status
	chosen := v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning, StartTime: &metav1.Time{Time: due}, Nodes: &v1alpha1.AtNodesStatus{}}
	oneIsLeft := v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning, StartTime: &metav1.Time{Time: due}, Nodes: nodes(1, 0, 0, 0)}
	restarting := following()
	restarting.StartTime = &metav1.Time{Time: due}
	isHeld := func(status v1alpha1.AtStatus) v1alpha1.AtStatus {
		return *changed(status, func(status *v1alpha1.AtStatus) { status.Conditions = []metav1.Condition{suspended()} })
	}
	const tooLate = "Phase=DONE; CompletionTime=10:12:04; Failed StartingDeadlineExceeded; Warning StartingDeadlineExceeded"

	effects := map[string]map[string]effect{
		"activeDeadlineSeconds": {
			"the command is stopped":        {scenario{run, runningPod(), 10.01, "FailureTarget DeadlineExceeded"}, "nodes restart suspend"},
			"the limit counts from the run": {scenario{run, runningPod(), 4, "wait 6.01s"}, "nodes restart suspend"},
		},
		"backoffLimit": {
			"another attempt":                 {scenario{waits, nil, 20, "create example-at-pod-1: POD"}, "activeDeadlineSeconds nodes suspend"},
			"one that is made is not the end": {scenario{run, failedPod(), 60, "Pod.Phase=Failed; Failed=1; LastFailureTime=10:13:00; NextAttemptTime=10:13:10; says BackOff: Attempt 1 of 3 failed, the next is due at 2026-12-24T10:13:10Z: Pod example-at-pod failed; Warning PodFailed: Attempt 1 of 3 failed, the next is due at 2026-12-24T10:13:10Z: Pod example-at-pod failed"}, "activeDeadlineSeconds nodes suspend"},
		},
		"command": {"it runs": {scenario{pending, nil, 0, "create example-at-pod: POD"}, "nodes suspend"}},
		"node":    {"it runs there": {scenario{pending, nil, 0, "create example-at-pod: POD"}, "suspend"}},
		"rehearse": {
			"it runs, whatever its rehearsal found": {scenario{foreseen, nil, 0, "create example-at-pod: POD"}, "nodes suspend"},
			"and not before its time":               {scenario{foreseen, nil, -1e-9, "preflight; wait 1ns"}, "suspend"},
		},
		"startingDeadlineSeconds": {
			"it starts until then":  {scenario{pending, nil, 3.999999999, "create example-at-pod: POD"}, "nodes restart suspend"},
			"too late, it does not": {scenario{pending, nil, 4, tooLate}, "suspend"},
		},
		"suspend":  {"it does not start": {scenario{held, nil, 3600, "nothing"}, ""}},
		"template": {"its Pod runs": {scenario{pending, nil, 0, "create example-at-pod: POD"}, "nodes suspend"}},
		"timeZone": {"not before the clocks there show the time": {scenario{pending, nil, -1e-9, "preflight; wait 1ns"}, "suspend"}},
		"ttlSecondsAfterFinished": {
			"it is kept until then":           {scenario{end, nil, 29, "wait 1s"}, ""},
			"it is deleted, however it ended": {scenario{end, nil, 30, "DeleteAt"}, ""},
		},
	}
	scenarios := map[string]map[string]scenario{
		"activeDeadlineSeconds + backoffLimit": {
			"an attempt that would start too late is not made": {run, failedPod(), 0.01, "Phase=DONE; CompletionTime=10:12:00.01; Pod.Phase=Failed; Failed=1; LastFailureTime=10:12:00.01; Failed PodFailed; Warning PodFailed"},
			"the limit is for all attempts together":           {waits, nil, 10.01, "Phase=DONE; CompletionTime=10:12:10.01; no NextAttemptTime; Failed DeadlineExceeded; Warning DeadlineExceeded"},
		},
		"activeDeadlineSeconds + nodes": {
			"the limit applies to each node": {chosen, nil, 0, `create Ats example-at-n1 example-at-n2: {"schedule":"2026-12-24T10:12:00Z","command":"echo YAY","node":"n1","activeDeadlineSeconds":10}`},
			"and not to the whole run":       {oneIsLeft, nil, 3600, "nothing"},
		},
		"activeDeadlineSeconds + suspend": {
			"a running command is stopped anyway":  {isHeld(run), runningPod(), 10.01, "FailureTarget DeadlineExceeded"},
			"between attempts, the time continues": {isHeld(waits), nil, 10.01, "Phase=DONE; CompletionTime=10:12:10.01; no NextAttemptTime; Failed DeadlineExceeded; Warning DeadlineExceeded"},
		},
		"activeDeadlineSeconds + template": {
			"the template's own limit applies to each attempt": {run, failedPod(func(pod *corev1.Pod) { pod.Status.Reason = "DeadlineExceeded" }), 5, "Phase=DONE; CompletionTime=10:12:05; Pod.Phase=Failed; Failed=1; LastFailureTime=10:12:05; Failed DeadlineExceeded; Warning DeadlineExceeded"},
		},
		"activeDeadlineSeconds + restart": {
			"the rollout is no longer followed": {restarting, nil, 10, "Phase=DONE; CompletionTime=10:12:10; Failed DeadlineExceeded; Warning DeadlineExceeded"},
		},
		"backoffLimit + nodes": {
			"the limit applies to each node": {chosen, nil, 0, `create Ats example-at-n1 example-at-n2: {"schedule":"2026-12-24T10:12:00Z","command":"echo YAY","node":"n1","backoffLimit":2}`},
		},
		"backoffLimit + suspend": {
			"no attempt is added": {isHeld(waits), nil, 20, "nothing"},
		},
		"command + nodes": {
			"it runs on each": {chosen, nil, 0, `create Ats example-at-n1 example-at-n2: {"schedule":"2026-12-24T10:12:00Z","command":"echo YAY","node":"n1"}`},
		},
		"nodes + startingDeadlineSeconds": {
			"too late, it runs on none":                       {chosen, nil, 4, tooLate},
			"once it may run on all nodes, it does not count": {oneIsLeft, nil, 3600, "nothing"},
		},
		"nodes + suspend": {
			"no nodes are chosen": {isHeld(chosen), nil, 0, "nothing"},
		},
		"nodes + template": {
			"the template's Pod runs on each": {chosen, nil, 0, `create Ats example-at-n1 example-at-n2: {"schedule":"2026-12-24T10:12:00Z","template":{"metadata":{},"spec":{"containers":[{"name":"own","image":"own","command":["own"],"resources":{}}]}},"node":"n1"}`},
		},
		"nodes + timeZone": {
			"the named zone counts, wherever the nodes are": {chosen, nil, 0, `create Ats example-at-n1 example-at-n2: {"schedule":"2026-12-24T11:12:00","timeZone":"Europe/Berlin","command":"echo YAY","node":"n1"}`},
		},
		"nodes + rehearse": {
			"it runs on each, whatever its rehearsal found": {chosen, nil, 0, `create Ats example-at-n1 example-at-n2: {"schedule":"2026-12-24T10:12:00Z","command":"echo YAY","node":"n1"}`},
		},
		"rehearse + startingDeadlineSeconds": {
			"too late, it does not run, whatever its rehearsal found": {foreseen, nil, 4, strings.Replace(tooLate, "; Warning", "; no Blocked; Warning", 1)},
		},
		"rehearse + suspend": {
			"it is rehearsed before its time": {held, nil, -3600, "preflight; wait 49m17.117s"},
		},
		"restart + suspend": {
			"a rollout that has begun continues": {isHeld(restarting), nil, 5, "wait 2s"},
		},
		"restart + timeZone": {
			"it is restarted when the clocks there show the time": {pending, nil, 0, "Phase=RUNNING; ScheduledTime=10:12:00; StartTime=10:12:00; Restart.UID=web; Restart.Desired=5; says Restarting Deployment web."},
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
			holds := map[string]scenario{}
			maps.Copy(holds, scenarios[pair])
			delete(scenarios, pair)
			for field, other := range map[string]string{first: second, second: first} {
				for what, e := range effects[field] {
					if !slices.Contains(strings.Fields(e.except), other) {
						holds[field+": "+what] = e.scenario
					}
				}
			}
			if len(holds) == 0 {
				t.Errorf("nothing is said of %s", pair)
			}
			for what, tc := range holds {
				t.Run(pair+": "+what, func(t *testing.T) { tc.test(t, first, second) })
			}
		}
	}
	for pair := range scenarios {
		t.Errorf("%s is no pair of optional fields", pair)
	}
}

// test sets two fields.
func (tc scenario) test(t *testing.T, fields ...string) {
	t.Helper()
	at := newAt(withStatus(*tc.status.DeepCopy()))
	if slices.Contains(fields, "template") {
		at.Spec.Command = ""
	}
	for _, field := range fields {
		optional[field](&at.Spec)
	}
	runs := "image /bin/sh -c echo YAY"
	if at.Spec.Template != nil {
		runs = strings.ReplaceAll(runs, "image", "own")
		if at.Spec.Command == "" {
			runs = "own own"
		}
	}
	if at.Spec.Node != "" {
		runs += " on n1"
	}
	explained(&at.Status)
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
	if got, want := describe(world, decision), strings.Replace(tc.want, "POD", runs, 1); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	testFrozen(t, world)
	testRest(t, world)
	testKept(t, world)
	if _, overdue := StateOf(at, nil, world.Now); overdue > 0 && decision.Action == nil && decision.Status == nil {
		t.Errorf("it is overdue for %v, but has no step to take", overdue)
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
