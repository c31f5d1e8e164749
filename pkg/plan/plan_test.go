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
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// decideCase is a world, and the text of the decision if it comes from caches. From the API
// server, the same follows without reading anything.
type decideCase struct {
	at       *v1alpha1.At // the default is newAt()
	parent   *v1alpha1.At
	children []*v1alpha1.At
	pod      *corev1.Pod
	world    func(*World) // what else differs, or nil
	now      time.Time    // the default is now
	dropped  bool         // It depends on what the caches drop.
	want     string
}

func testDecide(t *testing.T, cases map[string]decideCase) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, tc.test)
	}
}

func (tc decideCase) test(t *testing.T) {
	if tc.at == nil {
		tc.at = newAt()
	}
	if tc.now.IsZero() {
		tc.now = now
	}
	explained(&tc.at.Status)
	before := tc.at.DeepCopy()
	w := World{At: tc.at, Parent: tc.parent, Children: tc.children, Pods: podsOf(tc.pod), Live: LiveAll, AsOf: tc.now, Forecast: &Forecast{}, Now: tc.now}
	w.Nodes = []*corev1.Node{newNode("n1"), newNode("n2"), newNode("n3")}
	w.Node = w.Nodes[0]
	if tc.world != nil {
		tc.world(&w)
	}
	live := Decide(w)
	w.Live, w.AsOf = Cached, time.Time{}
	cached := Decide(w)
	if got := textOf(w, cached); got != tc.want {
		t.Errorf("got  %s\nwant %s", got, tc.want)
	}
	cached.Needs = Cached
	expect(t, "-on caches +live", cached, live, equate)
	expect(t, "Decide changed its At", before, tc.at)
	testFrozen(t, w)
	testRest(t, w)
	if !tc.dropped {
		testKept(t, w)
	}
}

// testRest checks that an At is not written again and again while nothing changes.
func testRest(t *testing.T, w World) {
	t.Helper()
	w.Live, w.AsOf = LiveAll, w.Now
	for range 4 {
		d := Decide(w)
		if d.Status == nil {
			return
		}
		w.At = w.At.DeepCopy()
		w.At.Status = *d.Status
	}
	t.Errorf("it is written again and again, now %s", textOf(w, Decide(w)))
}

// testKept checks that what the caches keep is enough.
func testKept(t *testing.T, all World) {
	t.Helper()
	all.Live, all.AsOf = Cached, time.Time{}
	kept := all
	kept.At, kept.Node, kept.Pods, kept.Children, kept.Nodes = KeepAt(all.At), nil, nil, nil, nil
	if all.Parent != nil {
		kept.Parent = KeepAt(all.Parent)
	}
	for _, child := range all.Children {
		kept.Children = append(kept.Children, KeepAt(child))
	}
	for _, node := range all.Nodes {
		kept.Nodes = append(kept.Nodes, KeepNode(node))
	}
	if all.Node != nil {
		kept.Node = KeepNode(all.Node)
	}
	for _, pod := range all.Pods {
		kept.Pods = append(kept.Pods, KeepPod(pod))
		if want, got := textOf(all, CleanUp(all, pod)), textOf(kept, CleanUp(kept, kept.Pods[0])); got != want || AtName(pod) != AtName(kept.Pods[0]) {
			t.Errorf("cleaned up, of what is kept: got %s, want %s", got, want)
		}
	}
	if got, want := textOf(kept, Decide(kept)), textOf(all, Decide(all)); got != want {
		t.Errorf("of what is kept:\ngot  %s\nwant %s", got, want)
	}
	state, overdue := StateOf(all.At, all.Parent, all.Now)
	if keptState, keptOverdue := StateOf(kept.At, kept.Parent, all.Now); state != keptState || overdue != keptOverdue {
		t.Errorf("state %s for %v, of what is kept %s for %v", state, overdue, keptState, keptOverdue)
	}
}

// TestDecide covers what holds for an At in any state.
func TestDecide(t *testing.T) {
	testDecide(t, map[string]decideCase{
		"being deleted: nothing starts":  {at: newAt(func(at *v1alpha1.At) { at.DeletionTimestamp = &metav1.Time{Time: earlier} }), want: "nothing"},
		"edited while pending: observed": {at: newAt(withStatus(v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, ObservedGeneration: 1})), now: earlier, want: "write; wait 49m17.117s"},
		"edited when done: observed":     {at: newAt(withStatus(v1alpha1.AtStatus{Phase: v1alpha1.PhaseDone, ObservedGeneration: 1})), want: "write; read At"},
		"done, its time to live over, but it is being deleted": {
			at:   newAt(withDone(v1alpha1.ConditionComplete, now), withoutTTL, func(at *v1alpha1.At) { at.DeletionTimestamp = &metav1.Time{Time: now} }),
			want: "nothing",
		},
	})
}
