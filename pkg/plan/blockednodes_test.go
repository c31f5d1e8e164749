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
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

func refusedWith(message string) func(*v1alpha1.At) {
	return func(child *v1alpha1.At) {
		child.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPodRefused, Message: message}}
		child.Status.Reason, child.Status.Message = v1alpha1.ReasonPodRefused, message
	}
}

func held(child *v1alpha1.At) { child.Spec.Suspend = ptr.To(true) }

// TestBlockedNodes covers what the status of a run on nodes says of what blocks it.
func TestBlockedNodes(t *testing.T) {
	var twelve []string
	for i := range 12 {
		twelve = append(twelve, fmt.Sprintf("n%02d refused", 11-i))
	}
	long := children("a")
	refusedWith(strings.Repeat("x", 300))(long[0])
	testDecide(t, map[string]decideCase{
		"one of three":       {at: counted(nodes(3, 0, 0, 0)), children: children("a", "b refused", "c"), want: "says The command is blocked on 1 of 3 nodes: b (PodRefused: quota)."},
		"one that waits":     {at: counted(nodes(1, 1, 0, 0), oneAtATime), children: children("a", "b held refused"), want: "nothing"},
		"one that has a Pod": {at: counted(nodes(1, 0, 0, 0)), children: children("a running refused"), want: "says The command is blocked on 1 of 1 nodes: a (PodRefused: quota)."},
		"in addition to a failed one": {
			at: counted(nodes(1, 0, 0, 1)), children: children("a failed", "b refused"),
			want: "says The command failed on 1 of 2 nodes: a (CommandFailed: exit code 1). The command is blocked on 1 of 2 nodes: b (PodRefused: quota).",
		},
		"a long message": {
			at: counted(nodes(1, 0, 0, 0)), children: long,
			want: "says The command is blocked on 1 of 1 nodes: a (PodRefused: " + strings.Repeat("x", 188) + "…).",
		},
		"very many": {
			at: counted(nodes(12, 0, 0, 0)), children: children(twelve...),
			want: "says The command is blocked on 12 of 12 nodes: n00 (PodRefused: quota), n01 (PodRefused: quota), n02 (PodRefused: quota), n03 (PodRefused: quota), n04 (PodRefused: quota), n05 (PodRefused: quota), n06 (PodRefused: quota), n07 (PodRefused: quota), n08 (PodRefused: quota), n09 (PodRefused: quota), 2 more.",
		},
	})
}

func TestConcernsParent(t *testing.T) {
	refused := newChildOn("a", refusedWith("used: pods=1"))
	for name, tc := range map[string]struct {
		old, cur *v1alpha1.At
		want     bool
	}{
		"nothing":         {newChildOn("a"), newChildOn("a"), false},
		"blocked":         {newChildOn("a"), refused, true},
		"no longer":       {refused, newChildOn("a"), true},
		"another message": {refused, newChildOn("a", refusedWith("used: pods=2")), false},
		"it has failed":   {newChildOn("a"), newEndedChild("a", v1alpha1.ReasonCommandFailed, ""), true},
		"while it waits":  {newChildOn("a", held), newChildOn("a", held), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ConcernsParent(tc.old, tc.cur); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}
