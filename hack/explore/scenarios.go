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
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// due is when the At of a scenario is due, in seconds.
const due = 60

// forever is after the end of a scenario, in seconds.
const forever = 1e6

// newAt returns the At of a scenario.
func newAt(change func(spec *v1alpha1.AtSpec)) *v1alpha1.At {
	at := &v1alpha1.At{ObjectMeta: metav1.ObjectMeta{Name: "at"}, Spec: v1alpha1.AtSpec{
		Schedule: epoch.Add(due * time.Second).Format(time.RFC3339),
		RunSpec:  v1alpha1.RunSpec{Command: "true"},
	}}
	if change != nil {
		change(&at.Spec)
	}
	return at
}

// worker is the label of the nodes on which an At runs.
var worker = map[string]string{"role": "worker"}

func newNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: worker}}
}

// maxFlight is for how many seconds a request may be on its way: the controller gives a creation
// up 8 s after it has read the At.
const maxFlight = 8

var scenarios = []scenario{
	{
		// One At, and what users do around its time.
		name:     "at",
		objects:  one,
		instants: []float64{59, 60, 60.25, 61},
		left:     budget{edits: 1},
		edits:    []edit{suspend, postpone, deleteAt, deletePod, stripLabel, stripOwner, takePodName},
	},
	{
		// One At that a user suspends, moves or deletes while watches are behind and a request fails.
		name:     "edited",
		objects:  one,
		instants: []float64{60, 60.25, 61},
		left:     budget{faults: 1, edits: 1},
		lag:      1,
		edits:    []edit{suspend, postpone, deleteAt},
	},
	{
		// An At that is suspended and resumed.
		name:     "resume",
		objects:  one,
		instants: []float64{59, 60, 61},
		left:     budget{edits: 2},
		edits:    []edit{suspend, resume},
	},
	{
		// One At, and watches that are behind by any number of events.
		name:     "lag",
		objects:  one,
		instants: []float64{59, 60, 60.25, 61},
		lag:      100,
	},
	{
		// One At, of which a request fails, or arrives late.
		name:     "late",
		objects:  one,
		instants: []float64{60, 68, 71},
		left:     budget{faults: 1},
		lag:      1,
	},
	{
		// One At, of which a request fails and a controller is killed.
		name:     "crash",
		objects:  one,
		instants: []float64{60, 71},
		left:     budget{faults: 1, crashes: 1},
		lag:      1,
	},
	{
		// One At with a second attempt.
		name:     "retries",
		objects:  twice,
		instants: []float64{60, 71, 90},
		left:     budget{edits: 1},
		edits:    []edit{suspend, deleteAt, deletePod},
		fails:    true,
	},
	{
		// One At whose first attempt has failed, of which a request fails and a Pod is deleted.
		name:     "again",
		objects:  twice,
		instants: []float64{60, 71.75, 79.75, 90},
		begins:   []string{"the command fails in at-pod"},
		left:     budget{faults: 1, edits: 1},
		lag:      1,
		edits:    []edit{deletePod},
		fails:    true,
	},
	{
		// One At, of which a request fails and the Pod is deleted.
		// A condition has whole seconds: the name of the Pod of 60.75 is free 8.75 s later. A request of
		// 60.75 arrives until 68.75.
		name:     "deleted",
		objects:  one,
		instants: []float64{60.75, 68.75, 71},
		left:     budget{faults: 1, edits: 1},
		edits:    []edit{deletePod},
	},
	{
		// An At that is deleted, and created again with the same name.
		name:     "successor",
		objects:  one,
		instants: []float64{60, 71},
		left:     budget{edits: 2},
		edits:    []edit{deleteAt, createAgain},
	},
	{
		// One At with a starting deadline, watches that are behind, and a Freeze that users write, move and delete.
		name:     "freeze",
		objects:  []metav1.Object{newAt(func(spec *v1alpha1.AtSpec) { spec.StartingDeadlineSeconds = ptr.To[int64](20) })},
		instants: []float64{60, 71, 90},
		left:     budget{edits: 2},
		lag:      1,
		edits:    []edit{freezeUntil(71), freezeUntil(forever), unfreeze},
	},
	{
		// One At whose first attempt has failed before a Freeze that ends, of which a request fails and a controller is killed.
		name:     "thaw",
		objects:  twice,
		instants: []float64{60, 71, 90},
		begins:   []string{"the command fails in at-pod", "a user writes the Freeze until 90 s"},
		left:     budget{faults: 1, edits: 1, crashes: 1},
		lag:      1,
		edits:    []edit{freezeUntil(90)},
		fails:    true,
	},
	{
		// An At on two nodes after the first one, watches that are behind, and a Freeze that users write and delete.
		name:     "freeze-nodes",
		objects:  onNodes,
		instants: []float64{60, 71},
		begins:   []string{"the command succeeds in at-a-pod"},
		left:     budget{edits: 2},
		lag:      1,
		edits:    []edit{freezeUntil(71), unfreeze},
	},
	{
		// A Deployment that is restarted, watches that are behind, and a Freeze that users write and delete.
		name:     "freeze-restart",
		objects:  ofDeployment,
		instants: []float64{60, 71},
		left:     budget{edits: 2},
		lag:      1,
		edits:    []edit{freezeUntil(71), unfreeze},
	},
	{
		// A CronAt with two times, watches that are behind, and a Freeze that users write, move and delete.
		name:     "skip",
		objects:  []metav1.Object{newCronAt(v1alpha1.ForbidConcurrent)},
		instants: []float64{0, 60, 61, 120, 130},
		begins:   []string{"it is 00:01:00.0"},
		left:     budget{edits: 2},
		lag:      1,
		edits:    []edit{freezeUntil(61), freezeUntil(forever), unfreeze},
	},
	{
		// An At on two nodes, one after the other, until one fails.
		name:     "nodes",
		objects:  onNodes,
		instants: []float64{60, 71},
		left:     budget{edits: 1},
		edits:    []edit{suspend, deleteAt, deletePod, deleteChild, removeNode, replaceNode, addNode, cordon},
		fails:    true,
	},
	{
		// The same after the first node, and a request fails.
		name:     "children",
		objects:  onNodes,
		instants: []float64{60, 71},
		begins:   []string{"the command succeeds in at-a-pod"},
		left:     budget{faults: 1, edits: 1},
		lag:      1,
		edits:    []edit{suspend, deleteAt, deletePod, deleteChild, cordon},
		fails:    true,
	},
	{
		// A Deployment that is restarted, and what users do with it.
		name:     "restart",
		objects:  ofDeployment,
		instants: []float64{59, 60, 61, 71},
		left:     budget{edits: 1},
		edits:    []edit{suspend, deleteAt, restartIt, undoRestart, scale, deleteDeployment},
	},
	{
		// A Deployment that is restarted, and a request fails.
		name:     "rollout",
		objects:  ofDeployment,
		instants: []float64{60, 71},
		left:     budget{faults: 1, edits: 1},
		lag:      1,
		edits:    []edit{restartIt, scale},
	},
	{
		// A CronAt at the first of two times that do not overlap, without history, of which a request fails.
		name:     "forbid",
		objects:  []metav1.Object{newCronAt(v1alpha1.ForbidConcurrent)},
		instants: []float64{0, 60, 61, 120, 130},
		begins:   []string{"it is 00:01:00.0"},
		left:     budget{faults: 1, edits: 1},
		lag:      1,
		edits:    []edit{suspendCronAt, deleteCronAt, deleteScheduled},
	},
	{
		// A CronAt whose second time replaces the first one, and a controller that is killed.
		name:     "replace",
		objects:  []metav1.Object{newCronAt(v1alpha1.ReplaceConcurrent)},
		instants: []float64{0, 60, 61, 120, 130},
		begins:   []string{"it is 00:01:00.0"},
		left:     budget{edits: 1, crashes: 1},
		edits:    []edit{suspendCronAt, deleteCronAt, deleteScheduled},
	},
	{
		// A CronAt whose times may overlap, from its second time on, of which a request fails.
		name:     "allow",
		objects:  []metav1.Object{newCronAt(v1alpha1.AllowConcurrent)},
		instants: []float64{0, 60, 120, 130},
		begins:   []string{"the Pod starts of cron-29453761", "it is 00:02:00.0"},
		left:     budget{faults: 1, edits: 1},
		lag:      1,
		edits:    []edit{deleteScheduled},
	},
}

// one is an At with one attempt, twice one with two.
var (
	one   = []metav1.Object{newAt(nil)}
	twice = []metav1.Object{newAt(func(spec *v1alpha1.AtSpec) { spec.BackoffLimit = ptr.To[int32](1) })}
)

// onNodes is an At on two of three nodes, one after the other, until one fails.
var onNodes = []metav1.Object{newAt(func(spec *v1alpha1.AtSpec) {
	spec.Nodes = &v1alpha1.AtNodes{MaxConcurrent: ptr.To(intstr.FromInt32(1)), MaxFailed: ptr.To[int32](0), Selector: metav1.LabelSelector{MatchLabels: worker}}
}), newNode("a"), newNode("b"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "control"}}}

// ofDeployment is an At that restarts a Deployment.
var ofDeployment = []metav1.Object{newAt(func(spec *v1alpha1.AtSpec) {
	spec.Command = ""
	spec.Restart = &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}
}), newDeployment()}

// lastTime is the second time of a CronAt.
var lastTime = epoch.Add(2 * due * time.Second)

// newCronAt returns a CronAt with two times, one minute after the other.
func newCronAt(policy v1alpha1.ConcurrencyPolicy) *v1alpha1.CronAt {
	return &v1alpha1.CronAt{ObjectMeta: metav1.ObjectMeta{Name: "cron"}, Spec: v1alpha1.CronAtSpec{
		Schedule: "1,2 0 1 1 *", TimeZone: ptr.To("Etc/UTC"), ConcurrencyPolicy: policy,
		SuccessfulAtsHistoryLimit: ptr.To[int32](0), FailedAtsHistoryLimit: ptr.To[int32](0),
		AtTemplate: v1alpha1.AtTemplateSpec{Spec: v1alpha1.RunSpec{Command: "true"}},
	}}
}

func newDeployment() *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](1)},
		Status:     appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1},
	}
}
