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
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

func blockedBy(reason, message string) func(*v1alpha1.At) {
	return func(child *v1alpha1.At) {
		child.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionTrue, Reason: reason, Message: message}}
		child.Status.Reason, child.Status.Message = reason, message
	}
}

func held(child *v1alpha1.At) { child.Spec.Suspend = ptr.To(true) }

func TestBlockedNodes(t *testing.T) {
	refused := blockedBy(v1alpha1.ReasonPodRefused, "exceeded quota")
	var twelve []*v1alpha1.At
	named := make([]string, maxNamedNodes)
	for i := range 12 {
		twelve = append(twelve, newChildOn(fmt.Sprintf("n%02d", 11-i), refused))
	}
	for i := range named {
		named[i] = fmt.Sprintf("n%02d (PodRefused: exceeded quota)", i)
	}
	for name, tc := range map[string]struct {
		children []*v1alpha1.At
		want     string
	}{
		"none":           {[]*v1alpha1.At{newChildOn("a"), newChildOn("b")}, ""},
		"one of three":   {[]*v1alpha1.At{newChildOn("a"), newChildOn("b", refused), newChildOn("c")}, "It is blocked on 1 of 3 nodes: b (PodRefused: exceeded quota)."},
		"one that waits": {[]*v1alpha1.At{newChildOn("a"), newChildOn("b", refused, held)}, ""},
		"one that has a Pod": {[]*v1alpha1.At{newChildOn("a", blockedBy(v1alpha1.ReasonImagePullFailed, "no"), func(child *v1alpha1.At) {
			child.Status.Phase = v1alpha1.PhaseRunning
		})}, "It is blocked on 1 of 1 nodes: a (ImagePullFailed: no)."},
		"in addition to a failed one": {
			[]*v1alpha1.At{newEndedChild("a", v1alpha1.ReasonCommandFailed, "no"), newChildOn("b", refused)},
			"It failed on 1 of 2 nodes: a (CommandFailed: no). It is blocked on 1 of 2 nodes: b (PodRefused: exceeded quota).",
		},
		"a long message": {[]*v1alpha1.At{newChildOn("a", blockedBy("PodRefused", strings.Repeat("x", 300)))}, "It is blocked on 1 of 1 nodes: a (PodRefused: " + strings.Repeat("x", 188) + "…)."},
		"very many":      {twelve, "It is blocked on 12 of 12 nodes: " + strings.Join(named, ", ") + ", 2 more."},
	} {
		t.Run(name, func(t *testing.T) {
			at := newAt(withNodes(&v1alpha1.AtNodesStatus{Desired: int32(len(tc.children)), StartTime: &metav1.Time{Time: due}}))
			at.Spec.Nodes.MaxConcurrent = ptr.To(intstr.FromInt32(1)) // The next one waits.
			d := newView(World{At: at, Children: tc.children, Now: now}).decideProgress()
			if d.Status == nil || d.Status.Message != tc.want || d.Status.Reason != "" || len(d.Events) > 0 {
				t.Fatalf("status %+v, events %v; want the message %q alone", d.Status, d.Events, tc.want)
			}
			at.Status = *d.Status
			if d := newView(World{At: at, Children: tc.children, Now: now}).decideProgress(); d.Status != nil {
				t.Errorf("the status is written again: %+v", d.Status)
			}
		})
	}
}

func TestConcernsParent(t *testing.T) {
	refused := newChildOn("a", blockedBy(v1alpha1.ReasonPodRefused, "used: pods=1"))
	for name, tc := range map[string]struct {
		old, cur *v1alpha1.At
		want     bool
	}{
		"nothing":         {newChildOn("a"), newChildOn("a"), false},
		"blocked":         {newChildOn("a"), refused, true},
		"no longer":       {refused, newChildOn("a"), true},
		"another reason":  {refused, newChildOn("a", blockedBy(v1alpha1.ReasonPodNameConflict, "")), true},
		"another message": {refused, newChildOn("a", blockedBy(v1alpha1.ReasonPodRefused, "used: pods=2")), false},
		"it runs":         {newChildOn("a"), newChildOn("a", func(at *v1alpha1.At) { at.Status.Phase = v1alpha1.PhaseRunning }), false},
		"it has failed":   {newChildOn("a"), newEndedChild("a", v1alpha1.ReasonCommandFailed, ""), true},
		"it is resumed":   {heldChild("a"), newChildOn("a"), true},
		"while it waits":  {heldChild("a"), heldChild("a"), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ConcernsParent(tc.old, tc.cur); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}
