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
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
)

func newNode(name string, mutate ...func(*corev1.Node)) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	for _, m := range mutate {
		m(node)
	}
	return node
}

func withLabel(key, value string) func(*corev1.Node) {
	return func(node *corev1.Node) { node.Labels[key] = value }
}

func withTaint(key string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(node *corev1.Node) {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: effect})
	}
}

func cordoned(node *corev1.Node) { node.Spec.Unschedulable = true }

// nodes returns the status of a run on nodes whose children all exist.
func nodes(active, waiting, succeeded, failed int32) *v1alpha1.AtNodesStatus {
	desired := active + waiting + succeeded + failed
	return &v1alpha1.AtNodesStatus{
		Desired: desired, Active: active, Waiting: waiting, Succeeded: succeeded, Failed: failed,
		Progress: fmt.Sprintf("%d/%d", succeeded, desired), StartTime: &metav1.Time{Time: due},
	}
}

// withNodes makes an At run on nodes.
func withNodes(status *v1alpha1.AtNodesStatus) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) {
		at.Spec.Nodes = &v1alpha1.AtNodes{}
		if status != nil {
			at.Status.Phase, at.Status.Nodes, at.Status.StartTime = v1alpha1.PhaseRunning, status, &metav1.Time{Time: due}
		}
	}
}

// newChildOn returns the child of newAt for a node.
func newChildOn(node string, mutate ...func(*v1alpha1.At)) *v1alpha1.At {
	child := newChild(newAt(withNodes(nil)), node)
	child.UID, child.Generation = "uid-of-child", 2
	child.CreationTimestamp = metav1.Time{Time: due}
	child.Status.Phase = v1alpha1.PhasePending
	for _, m := range mutate {
		m(child)
	}
	return child
}

func newRunningChild(node string) *v1alpha1.At {
	return newChildOn(node, func(at *v1alpha1.At) { at.Status.Phase = v1alpha1.PhaseRunning })
}

func newEndedChild(node, reason, message string) *v1alpha1.At {
	return newChildOn(node, withDone(v1alpha1.ConditionFailed, due), func(at *v1alpha1.At) {
		at.Status.Reason, at.Status.Message = reason, message
		if reason == v1alpha1.ReasonCompleted {
			at.Status.Conditions[0].Type = v1alpha1.ConditionComplete
		}
	})
}

func heldChild(node string) *v1alpha1.At {
	return newChildOn(node, func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) })
}

// namesOf returns the names of Ats, each after a space.
func namesOf(ats []*v1alpha1.At) string {
	var names strings.Builder
	for _, at := range ats {
		names.WriteString(" " + at.Name)
	}
	return names.String()
}

func TestChooseNodes(t *testing.T) {
	template := func(edit func(*corev1.PodSpec)) func(*v1alpha1.At) {
		return func(at *v1alpha1.At) {
			at.Spec.Template = &corev1.PodTemplateSpec{}
			edit(&at.Spec.Template.Spec)
		}
	}
	tolerates := func(key string) func(*v1alpha1.At) {
		return template(func(spec *corev1.PodSpec) {
			spec.Tolerations = []corev1.Toleration{{Key: key, Operator: corev1.TolerationOpExists}}
		})
	}
	selects := func(key, value string) func(*v1alpha1.At) {
		return func(at *v1alpha1.At) { at.Spec.Nodes.Selector.MatchLabels = map[string]string{key: value} }
	}
	all := []*corev1.Node{
		newNode("plain"),
		newNode("cordoned", cordoned),
		newNode("cordoned-and-tainted", cordoned, withTaint(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)),
		newNode("control-plane", withTaint("node-role.kubernetes.io/control-plane", corev1.TaintEffectNoSchedule)),
		newNode("no-execute", withTaint("dedicated", corev1.TaintEffectNoExecute)),
		newNode("not-preferred", withTaint("dedicated", corev1.TaintEffectPreferNoSchedule)),
		newNode("not-ready", withTaint(corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule), withTaint(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)),
		newNode("virtual", withLabel("type", "virtual-kubelet")),
		newNode("fargate", withLabel("eks.amazonaws.com/compute-type", "fargate")),
		newNode("gpu", withLabel("accelerator", "gpu")),
		newNode("typed", withLabel("type", "large")),
	}
	plain := []string{"gpu", "not-preferred", "not-ready", "plain", "typed"}
	with := func(more ...string) []string {
		names := slices.Concat(plain, more)
		slices.Sort(names)
		return names
	}
	for name, tc := range map[string]struct {
		edit func(*v1alpha1.At)
		want []string
	}{
		"all":                        {func(*v1alpha1.At) {}, plain},
		"by the selector":            {selects("accelerator", "gpu"), []string{"gpu"}},
		"none":                       {selects("accelerator", "none"), nil},
		"by the node selector":       {template(func(spec *corev1.PodSpec) { spec.NodeSelector = map[string]string{"accelerator": "gpu"} }), []string{"gpu"}},
		"tolerated":                  {tolerates("node-role.kubernetes.io/control-plane"), with("control-plane")},
		"tolerated, to be executed":  {tolerates("dedicated"), with("no-execute")},
		"cordons are tolerated":      {tolerates(corev1.TaintNodeUnschedulable), with("cordoned", "cordoned-and-tainted")},
		"all is tolerated":           {tolerates(""), with("cordoned", "cordoned-and-tainted", "control-plane", "no-execute")},
		"virtual nodes are selected": {selects("type", "virtual-kubelet"), []string{"virtual"}},
		"Fargate is selected by the template": {template(func(spec *corev1.PodSpec) {
			spec.NodeSelector = map[string]string{"eks.amazonaws.com/compute-type": "fargate"}
		}), []string{"fargate"}},
		"by the affinity": {template(func(spec *corev1.PodSpec) {
			spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{
					{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "accelerator", Operator: corev1.NodeSelectorOpExists}}},
					{MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"plain"}}}},
				},
			}}}
		}), []string{"gpu", "plain"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := ChooseNodes(newAt(withNodes(nil), tc.edit), all)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	at := newAt(withNodes(nil))
	at.Spec.Nodes.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}
	if got, _, err := ChooseNodes(at, all); err == nil {
		t.Errorf("a selector with an unknown operator selects %v", got)
	}

	for name, tc := range map[string]struct {
		edit func(*v1alpha1.At)
		want map[string]int
	}{
		"all": {func(*v1alpha1.At) {}, map[string]int{
			"cordoned": 2, "with the taint node-role.kubernetes.io/control-plane:NoSchedule": 1, "with the taint dedicated:NoExecute": 1, "virtual": 2,
		}},
		"by the selector":      {selects("accelerator", "gpu"), map[string]int{}},
		"all is tolerated":     {tolerates(""), map[string]int{"virtual": 2}},
		"by the node selector": {template(func(spec *corev1.PodSpec) { spec.NodeSelector = map[string]string{"accelerator": "gpu"} }), map[string]int{"not selected by the template": len(all) - 1}},
	} {
		_, omitted, err := ChooseNodes(newAt(withNodes(nil), tc.edit), all)
		if diff := cmp.Diff(tc.want, omitted); err != nil || diff != "" {
			t.Errorf("%s: the omitted nodes (-want +got): %v\n%s", name, err, diff)
		}
	}
}

func TestPinToNode(t *testing.T) {
	name := corev1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"n1"}}
	gpu := corev1.NodeSelectorRequirement{Key: "accelerator", Operator: corev1.NodeSelectorOpExists}
	for what, tc := range map[string]struct{ template, want []corev1.NodeSelectorTerm }{
		"no terms":              {nil, []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{name}}}},
		"a term":                {[]corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{gpu}}}, []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{gpu}, MatchFields: []corev1.NodeSelectorRequirement{name}}}},
		"one that matches none": {[]corev1.NodeSelectorTerm{{}}, []corev1.NodeSelectorTerm{{}}},
		"a term with a name":    {[]corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{name}}}, []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{name, name}}}},
	} {
		t.Run(what, func(t *testing.T) {
			spec := &corev1.PodSpec{}
			if tc.template != nil {
				spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: tc.template}}}
			}
			pinToNode(spec, "n1")
			got := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestChildHasRequester checks that a child has the requester of its parent, and no other
// annotation of it.
func TestChildHasRequester(t *testing.T) {
	parent := newAt(withNodes(nil))
	if got := newChild(parent, "n1").Annotations; len(got) > 0 {
		t.Errorf("got %v, want none", got)
	}
	parent.Annotations = map[string]string{v1alpha1.AnnotationRequester: "alice", "other": "x"}
	if diff := cmp.Diff(map[string]string{v1alpha1.AnnotationRequester: "alice"}, newChild(parent, "n1").Annotations); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestChildName(t *testing.T) {
	if got := ChildName("at", "node.example.com"); got != "at-node.example.com" {
		t.Error(got)
	}
	long := strings.Repeat("a", 253)
	first, second := ChildName(long, "first"), ChildName(long, "second")
	if first == second || len(first) > 253 || len(second) > 253 {
		t.Errorf("%s and %s", first, second)
	}
}

// nodesForbidden is the answer to a controller that may not read nodes.
var nodesForbidden = &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonForbidden, Code: 403, Message: "no"}}

// TestDecideNodes covers Ats that run on nodes, from the choice of the nodes to the end.
func TestDecideNodes(t *testing.T) {
	limit := func(limit string) func(*v1alpha1.At) {
		return func(at *v1alpha1.At) { at.Spec.Nodes.MaxConcurrent = ptr.To(intstr.Parse(limit)) }
	}
	maxFailed := func(number int32) func(*v1alpha1.At) {
		return func(at *v1alpha1.At) { at.Spec.Nodes.MaxFailed = &number }
	}
	completed := newEndedChild("n1", v1alpha1.ReasonCompleted, "")
	failed := newEndedChild("n2", v1alpha1.ReasonCommandFailed, "exit code 1")
	notStarted := newEndedChild("n3", v1alpha1.ReasonNotStarted, "")
	deleting := newChildOn("n3", func(at *v1alpha1.At) {
		at.Spec.Suspend, at.DeletionTimestamp = ptr.To(true), &metav1.Time{Time: due}
	})
	noSelector := func(at *v1alpha1.At) {
		at.Spec.Nodes.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}
	}
	choosing := &v1alpha1.AtNodesStatus{}
	for name, tc := range map[string]struct {
		at          *v1alpha1.At
		children    []*v1alpha1.At
		edit        func(*World)
		want        string
		wantNodes   *v1alpha1.AtNodesStatus
		wantMessage string
	}{
		"not due": {at: newAt(withNodes(nil), withSchedule("2026-12-24T10:12:05Z")), want: "wait 1s"},
		"due":     {at: newAt(withNodes(nil)), want: "RUNNING", wantNodes: choosing},
		"due, but its Pod exists from before an edit": {at: newAt(withNodes(nil)), edit: func(w *World) { w.Pods = podsOf(newPod(corev1.PodPending)) }, want: "RUNNING"},
		"due, with an invalid selector":               {at: newAt(withNodes(nil), noSelector), want: "PENDING", wantMessage: `spec.nodes.selector is not a label selector: "Like" is not a valid label selector operator`},
		"an invalid selector, too late":               {at: newAt(withNodes(nil), noSelector, func(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = ptr.To[int64](0) }), want: "DONE Failed/StartingDeadlineExceeded"},
		"the nodes are not known":                     {at: newAt(withNodes(choosing)), edit: func(w *World) { w.NodesErr = errors.New("not synced") }, want: "nothing"},
		"the nodes are forbidden": {at: newAt(withNodes(choosing)), edit: func(w *World) { w.NodesErr = nodesForbidden }, want: "RUNNING", wantNodes: choosing,
			wantMessage: "spec.node and spec.nodes require that the controller can get, list and watch nodes: no"},
		"no node": {at: newAt(withNodes(choosing)), edit: func(w *World) { w.Nodes = nil }, want: "DONE Failed/NoNodes", wantNodes: choosing,
			wantMessage: "No node matches spec.nodes: check the labels (kubectl get nodes --show-labels), cordons and taints."},
		"one is missing": {at: newAt(withNodes(choosing)), children: []*v1alpha1.At{newChildOn("n1"), newChildOn("n3")},
			want: `create Ats example-at-n2: {"schedule":"2026-12-24T10:12:00Z","command":"echo YAY","node":"n2"}`},
		"suspended until its turn": {at: newAt(withNodes(choosing), limit("1")), children: []*v1alpha1.At{newChildOn("n1"), newChildOn("n3")},
			want: `create Ats example-at-n2: {"schedule":"2026-12-24T10:12:00Z","command":"echo YAY","node":"n2","suspend":true}`},
		"all exist, one of a node that is gone": {at: newAt(withNodes(choosing)), children: []*v1alpha1.At{newChildOn("n1"), newChildOn("n2"), newChildOn("n3"), newChildOn("n4")},
			want: "RUNNING", wantNodes: &v1alpha1.AtNodesStatus{Desired: 4, Active: 4, Progress: "0/4", StartTime: &metav1.Time{Time: now}}},

		"nothing has changed": {at: newAt(withNodes(nodes(2, 0, 1, 0))), children: []*v1alpha1.At{completed, newRunningChild("n2"), newChildOn("n3")}, want: "nothing"},
		"one has failed": {at: newAt(withNodes(nodes(2, 0, 1, 0))), children: []*v1alpha1.At{completed, failed, newChildOn("n3")}, want: "RUNNING", wantNodes: nodes(1, 0, 1, 1),
			wantMessage: "It failed on 1 of 3 nodes: n2 (CommandFailed: exit code 1)."},
		"all have ended": {at: newAt(withNodes(nodes(2, 0, 1, 0))), children: []*v1alpha1.At{completed, failed, newEndedChild("n3", v1alpha1.ReasonNodeGone, "gone")}, want: "DONE Failed/NodesFailed", wantNodes: nodes(0, 0, 1, 2),
			wantMessage: "It failed on 2 of 3 nodes: n2 (CommandFailed: exit code 1), n3 (NodeGone: gone)."},
		"all have succeeded":   {at: newAt(withNodes(nodes(1, 0, 0, 0))), children: []*v1alpha1.At{completed}, want: "DONE Complete/Completed", wantNodes: nodes(0, 0, 1, 0)},
		"one was created late": {at: newAt(withNodes(nodes(0, 0, 1, 0))), children: []*v1alpha1.At{completed, newRunningChild("n2")}, want: "RUNNING", wantNodes: nodes(1, 0, 1, 0)},
		"one is gone": {at: newAt(withNodes(nodes(1, 0, 1, 0))), children: []*v1alpha1.At{completed}, want: "DONE Failed/NodesFailed", wantNodes: nodes(0, 0, 1, 1),
			wantMessage: "It failed on 1 of 2 nodes: 1 more."},

		"the next in order":             {at: newAt(withNodes(nodes(1, 2, 0, 0)), limit("2")), children: []*v1alpha1.At{heldChild("n3"), heldChild("n2"), newRunningChild("n1")}, want: "resume Ats example-at-n2"},
		"more than one":                 {at: newAt(withNodes(nodes(0, 3, 0, 0)), limit("2")), children: []*v1alpha1.At{heldChild("n3"), heldChild("n2"), heldChild("n1")}, want: "resume Ats example-at-n1 example-at-n2"},
		"a percentage is rounded up":    {at: newAt(withNodes(nodes(0, 3, 0, 0)), limit("34%")), children: []*v1alpha1.At{heldChild("n3"), heldChild("n2"), heldChild("n1")}, want: "resume Ats example-at-n1 example-at-n2"},
		"the At was read long ago":      {at: newAt(withNodes(nodes(0, 3, 0, 0)), limit("2")), children: []*v1alpha1.At{heldChild("n3"), heldChild("n2"), heldChild("n1")}, edit: func(w *World) { w.AsOf = now.Add(-staleness.FreshFor) }, want: "read 1"},
		"the limit was removed":         {at: newAt(withNodes(nodes(0, 3, 0, 0))), children: []*v1alpha1.At{heldChild("n3"), heldChild("n2"), heldChild("n1")}, want: "resume Ats example-at-n1 example-at-n2 example-at-n3"},
		"the limit was lowered":         {at: newAt(withNodes(nodes(2, 1, 0, 0)), limit("1")), children: []*v1alpha1.At{newRunningChild("n1"), newRunningChild("n2"), heldChild("n3")}, want: "nothing"},
		"none while it is suspended":    {at: newAt(withNodes(nodes(0, 1, 1, 0)), withSuspendedRun, func(at *v1alpha1.At) { explained(&at.Status) }), children: []*v1alpha1.At{completed, heldChild("n2")}, want: "nothing"},
		"one that is deleted is active": {at: newAt(withNodes(nodes(1, 1, 0, 1)), limit("1")), children: []*v1alpha1.At{failed, deleting, heldChild("n4")}, want: "RUNNING", wantNodes: nodes(1, 1, 0, 1), wantMessage: "It failed on 1 of 3 nodes: n2 (CommandFailed: exit code 1)."},

		"as many failed as allowed": {at: newAt(withNodes(nodes(1, 1, 0, 0)), limit("1"), maxFailed(1)), children: []*v1alpha1.At{failed, heldChild("n3")}, want: "resume Ats example-at-n3"},
		"more failed than allowed, some are active": {at: newAt(withNodes(nodes(2, 1, 0, 0)), limit("1"), maxFailed(0)), children: []*v1alpha1.At{newRunningChild("n1"), failed, heldChild("n3")}, want: "RUNNING", wantNodes: nodes(1, 1, 0, 1),
			wantMessage: "It failed on 1 of 3 nodes: n2 (CommandFailed: exit code 1)."},
		"more failed than allowed": {at: newAt(withNodes(nodes(1, 1, 0, 0)), limit("1"), maxFailed(0)), children: []*v1alpha1.At{failed, heldChild("n3")}, want: "DONE Failed/NodesFailed", wantNodes: nodes(0, 1, 0, 1),
			wantMessage: "It failed on 1 of 2 nodes: n2 (CommandFailed: exit code 1). It was not started on 1 nodes because more nodes had failed than spec.nodes.maxFailed allows."},
		"more were allowed to fail when some were not started": {at: newAt(withNodes(nodes(1, 1, 0, 0)), maxFailed(5)), children: []*v1alpha1.At{failed, notStarted}, want: "DONE Failed/NodesFailed", wantNodes: nodes(0, 1, 0, 1)},
		"an unrelated Pod has the name":                        {at: newAt(withNodes(nil)), edit: func(w *World) { w.Pods = podsOf(newPod(corev1.PodPending, ownedBy())) }, want: "RUNNING", wantNodes: choosing},
		"suspended beyond the starting deadline": {at: newAt(withNodes(choosing), withSuspendedRun, func(at *v1alpha1.At) {
			at.Spec.StartingDeadlineSeconds = ptr.To[int64](1)
			explained(&at.Status)
		}), want: "nothing"},
		"the affinity is invalid": {at: newAt(withNodes(choosing), func(at *v1alpha1.At) {
			at.Spec.Template = &corev1.PodTemplateSpec{}
			at.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: "Like"}}}},
			}}}
		}), want: "DONE Failed/InvalidPod", wantNodes: choosing},
		"done": {at: newAt(withNodes(nodes(0, 1, 0, 1)), func(at *v1alpha1.At) { at.Status.Phase = v1alpha1.PhaseDone }), children: []*v1alpha1.At{failed, notStarted}, want: "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			world := World{At: tc.at, Children: tc.children, Live: LiveAll, AsOf: now, Now: now}
			world.Nodes = []*corev1.Node{newNode("n1"), newNode("n2"), newNode("n3")}
			if tc.edit != nil {
				tc.edit(&world)
			}
			d := Decide(world)
			if got := describe(tc.at, d, now); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			if d.Status == nil {
				return
			}
			if diff := cmp.Diff(tc.wantNodes, d.Status.Nodes); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if tc.wantMessage != "" && d.Status.Message != tc.wantMessage {
				t.Errorf("message %q, want %q", d.Status.Message, tc.wantMessage)
			}
		})
	}
}

// TestRefusedAt checks that a refused child is created again with back-off. A delay would
// come before that.
func TestRefusedAt(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*v1alpha1.At)
		want time.Duration
	}{
		"no limit":                    {func(*v1alpha1.At) {}, 0},
		"the limit on a node is over": {func(at *v1alpha1.At) { at.Spec.ActiveDeadlineSeconds = ptr.To[int64](1) }, 0},
		"a deadline for the start":    {func(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = ptr.To[int64](65) }, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			at := newAt(withNodes(&v1alpha1.AtNodesStatus{}), tc.edit)
			if d := RefusedAt(World{At: at, Now: now}, errors.New("no")); d.Delay != tc.want || d.Retry == nil {
				t.Errorf("delay %v and retry %v, want %v and a retry", d.Delay, d.Retry, tc.want)
			}
		})
	}
}

// TestDecideByParent covers the parts of a child's decisions that depend on its parent.
func TestDecideByParent(t *testing.T) {
	deleting := func(at *v1alpha1.At) { at.DeletionTimestamp = &metav1.Time{Time: now} }
	released := func(at *v1alpha1.At) { at.Finalizers = nil }
	done := func(at *v1alpha1.At) { at.Status.Phase = v1alpha1.PhaseDone }
	running := newAt(withNodes(nodes(1, 0, 0, 0)))
	ended := newAt(withNodes(nodes(0, 0, 0, 1)), done)
	leaving := newAt(withNodes(nodes(1, 0, 0, 0)), deleting)
	held := newAt(withNodes(nodes(1, 0, 0, 0)), withSuspendedRun)
	tooMany := newAt(withNodes(nodes(1, 0, 0, 1)), func(at *v1alpha1.At) { at.Spec.Nodes.MaxFailed = ptr.To[int32](0) })
	podOf := func(child *v1alpha1.At, mutate ...func(*corev1.Pod)) *corev1.Pod {
		pod := NewPod(child, Defaults{Image: "image"})
		pod.UID, pod.CreationTimestamp, pod.Spec.NodeName, pod.Status.Phase = podUID, metav1.Time{Time: created}, "n1", corev1.PodRunning
		for _, m := range mutate {
			m(pod)
		}
		return pod
	}
	withPod := func(at *v1alpha1.At) {
		at.Status.Phase, at.Status.Pod = v1alpha1.PhaseRunning, &v1alpha1.AtPod{Name: "example-at-n1-pod", UID: podUID, Phase: corev1.PodRunning, NodeName: "n1"}
	}
	stopped := func(reason string) func(*v1alpha1.At) {
		return func(at *v1alpha1.At) {
			at.Status.Conditions = append(at.Status.Conditions, condition(v1alpha1.ConditionFailureTarget, metav1.ConditionTrue, now, reason, "why"))
			explained(&at.Status)
		}
	}
	onNode := newAt(func(at *v1alpha1.At) { at.Spec.Node = "n1" })
	for name, tc := range map[string]struct {
		parent *v1alpha1.At
		child  *v1alpha1.At
		pod    *corev1.Pod
		edit   func(*World)
		want   string
	}{
		"it may start":                               {parent: running, child: newChildOn("n1"), want: "create example-at-n1-pod: image /bin/sh -c echo YAY on n1"},
		"not all exist":                              {parent: newAt(withNodes(&v1alpha1.AtNodesStatus{})), child: newChildOn("n1"), want: "nothing"},
		"the parent is outdated":                     {parent: newAt(withNodes(nil)), child: newChildOn("n1"), want: "nothing"},
		"it waits for its turn":                      {parent: running, child: newChildOn("n1", withSuspended), want: "nothing"},
		"an At that happens to own it":               {parent: newAt(), child: newChildOn("n1", released), want: "create example-at-n1-pod: image /bin/sh -c echo YAY on n1"},
		"an At of another name":                      {parent: running, child: newChildOn("n1", released, func(at *v1alpha1.At) { at.Name = "other" }), want: "create other-pod: image /bin/sh -c echo YAY on n1"},
		"an At whose owner is gone":                  {child: newChildOn("n1", released, func(at *v1alpha1.At) { at.Name = "other" }), want: "create other-pod: image /bin/sh -c echo YAY on n1"},
		"a Pod was tried, the node does not exist":   {child: onNode, edit: func(w *World) { w.Node = nil }, want: "DONE Failed/NodeGone"},
		"the parent is gone":                         {child: newChildOn("n1"), want: "ReleaseAt"},
		"the parent is gone, it is released":         {child: newChildOn("n1", released), want: "nothing"},
		"the parent has another UID":                 {parent: newAt(withNodes(nodes(1, 0, 0, 0)), func(at *v1alpha1.At) { at.UID = "other" }), child: newChildOn("n1"), want: "ReleaseAt"},
		"the parent is being deleted":                {parent: leaving, child: newChildOn("n1"), want: "nothing"},
		"the parent is being deleted, and it is":     {parent: leaving, child: newChildOn("n1", deleting), want: "DONE Failed/AtDeleted"},
		"the parent is being deleted, it runs":       {parent: leaving, child: newChildOn("n1", withPod), pod: podOf(newChildOn("n1"), func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded }), want: "DONE Complete/Completed"},
		"the parent is being deleted, it has ended":  {parent: leaving, child: newChildOn("n1", done), want: "ReleaseAt"},
		"the parent is suspended":                    {parent: held, child: newChildOn("n1"), want: "nothing"},
		"the parent is suspended, it runs":           {parent: held, child: newChildOn("n1", withPod), pod: podOf(newChildOn("n1"), func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded }), want: "DONE Complete/Completed"},
		"the parent is suspended, a retry is due":    {parent: held, child: newChildOn("n1", func(at *v1alpha1.At) { at.Status = *nextAttempt(1, due) }), want: "nothing"},
		"too many have failed":                       {parent: tooMany, child: newChildOn("n1"), want: "DONE Failed/NotStarted"},
		"too many have failed, it waits":             {parent: tooMany, child: newChildOn("n1", withSuspended), want: "nothing"},
		"too many have failed, it has a Pod":         {parent: tooMany, child: newChildOn("n1"), pod: podOf(newChildOn("n1")), want: "RUNNING"},
		"a retry is due, and the node is gone":       {parent: running, child: newChildOn("n1", func(at *v1alpha1.At) { at.Status = *nextAttempt(1, now.Add(time.Minute)) }), edit: func(w *World) { w.Node = nil }, want: "DONE Failed/NodeGone"},
		"the parent was deleted without it":          {child: newChildOn("n1", func(at *v1alpha1.At) { at.OwnerReferences = nil }), want: "ReleaseAt"},
		"and it is released":                         {child: newChildOn("n1", released, func(at *v1alpha1.At) { at.OwnerReferences = nil }), want: "PENDING"},
		"and a user removes its label":               {child: newChildOn("n1", released, func(at *v1alpha1.At) { at.OwnerReferences, at.Labels = nil, nil }), want: "create example-at-n1-pod: image /bin/sh -c echo YAY on n1"},
		"the parent has ended":                       {parent: ended, child: newChildOn("n1"), want: "DONE Failed/NotStarted"},
		"the parent has ended, and it has":           {parent: ended, child: newChildOn("n1", done), want: "ReleaseAt"},
		"it has ended":                               {parent: running, child: newChildOn("n1", done), want: "nothing"},
		"it is deleted":                              {parent: running, child: newChildOn("n1", deleting), want: "DONE Failed/AtDeleted"},
		"it is deleted while it waits":               {parent: running, child: newChildOn("n1", withSuspended, deleting), want: "DONE Failed/AtDeleted"},
		"it is deleted while it runs":                {parent: running, child: newChildOn("n1", withPod, deleting), pod: podOf(newChildOn("n1")), want: "FailureTarget/AtDeleted"},
		"it is being stopped":                        {parent: running, child: newChildOn("n1", withPod, deleting, stopped("AtDeleted")), pod: podOf(newChildOn("n1")), want: "delete Pod"},
		"it was stopped":                             {parent: running, child: newChildOn("n1", withPod, deleting, stopped("AtDeleted")), pod: podOf(newChildOn("n1"), deleted, func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }), want: "DONE Failed/AtDeleted"},
		"it is deleted, and had ended":               {parent: running, child: newChildOn("n1", withPod, deleting), pod: podOf(newChildOn("n1"), func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded }), want: "DONE Complete/Completed"},
		"it is deleted, and its Pod is gone":         {parent: running, child: newChildOn("n1", withPod, deleting), want: "DONE Failed/PodLost"},
		"it is leaving":                              {parent: running, child: newChildOn("n1", released, deleting), want: "nothing"},
		"the parent was read long ago":               {parent: running, child: newChildOn("n1"), edit: func(w *World) { w.AsOf = now.Add(-staleness.FreshFor) }, want: "read 1"},
		"the node is gone":                           {parent: running, child: newChildOn("n1"), edit: func(w *World) { w.Node = nil }, want: "DONE Failed/NodeGone"},
		"the node was added again":                   {parent: running, child: newChildOn("n1"), edit: func(w *World) { w.Node.CreationTimestamp = metav1.Time{Time: due.Add(time.Second)} }, want: "DONE Failed/NodeGone"},
		"the nodes are forbidden":                    {parent: running, child: newChildOn("n1"), edit: func(w *World) { w.NodesErr = nodesForbidden }, want: "PENDING"},
		"it runs, the node is gone":                  {parent: running, child: newChildOn("n1", withPod), pod: podOf(newChildOn("n1")), edit: func(w *World) { w.Node = nil }, want: "FailureTarget/NodeGone"},
		"it runs, the node was added again":          {parent: running, child: newChildOn("n1", withPod), pod: podOf(newChildOn("n1")), edit: func(w *World) { w.Node.CreationTimestamp = metav1.Time{Time: due.Add(time.Second)} }, want: "FailureTarget/NodeGone"},
		"the node is gone, the Pod is being deleted": {parent: running, child: newChildOn("n1", withPod, stopped("NodeGone")), pod: podOf(newChildOn("n1")), edit: func(w *World) { w.Node = nil }, want: "delete Pod"},
		"the node is gone, no kubelet ends the Pod":  {parent: running, child: newChildOn("n1", withPod, stopped("NodeGone")), pod: podOf(newChildOn("n1"), deleted), edit: func(w *World) { w.Node = nil }, want: "DONE Failed/NodeGone"},
		"the node is gone, the Pod had ended":        {parent: running, child: newChildOn("n1", withPod), pod: podOf(newChildOn("n1"), func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded }), edit: func(w *World) { w.Node = nil }, want: "DONE Complete/Completed"},
	} {
		t.Run(name, func(t *testing.T) {
			world := World{At: tc.child, Parent: tc.parent, Pods: podsOf(tc.pod), Live: LiveAll, AsOf: now, Node: newNode("n1"), Now: now}
			if tc.edit != nil {
				tc.edit(&world)
			}
			if got := describe(tc.child, Decide(world), now); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// TestNameTaken checks what a run on nodes advises if an At has the name of one of its
// children. That of another run must not be deleted.
func TestNameTaken(t *testing.T) {
	ownedBy := func(kind, owner string) *v1alpha1.At {
		at := &v1alpha1.At{ObjectMeta: metav1.ObjectMeta{Name: "a-b-c", Namespace: metav1.NamespaceDefault}}
		if kind != "" {
			at.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: kind, Name: owner, UID: "other", Controller: ptr.To(true)}}
			at.Spec.Node = "c"
		}
		return at
	}
	for name, tc := range map[string]struct {
		other *v1alpha1.At
		want  string
	}{
		"nobody's":     {ownedBy("", ""), "At a-b-c already exists and was not created by this At: delete that At."},
		"another At's": {ownedBy(v1alpha1.AtKind, "a-b"), "At a-b-c already exists and belongs to At a-b: create this At under another name, or delete At a-b if you no longer need it."},
		"a CronAt's":   {ownedBy(v1alpha1.CronAtKind, "a-b"), "At a-b-c already exists and belongs to CronAt a-b: create this At under another name, or delete CronAt a-b if you no longer need it."},
	} {
		t.Run(name, func(t *testing.T) {
			if got := AtNameTaken(World{At: newAt(withNodes(&v1alpha1.AtNodesStatus{})), Now: now}, tc.other).Status.Message; got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// TestWantsTrial covers when the API server is asked whether it would admit a Pod, and what its refusal means.
func TestWantsTrial(t *testing.T) {
	refusal := apierrors.NewForbidden(corev1.Resource("pods"), "example-at-pod", errors.New("exceeded quota"))
	onNode := func(at *v1alpha1.At) { at.Spec.Node = "n1" }
	running := newAt(withNodes(nodes(1, 0, 0, 0)))
	for name, tc := range map[string]struct {
		at, parent *v1alpha1.At
		want       bool
	}{
		"a run on nodes":                     {newAt(withNodes(nil)), nil, true},
		"a run on a node":                    {newAt(onNode), nil, true},
		"a run on any node":                  {newAt(), nil, false},
		"not due":                            {newAt(onNode, withSchedule("2026-12-24T10:12:05Z")), nil, false},
		"too late":                           {newAt(onNode, withStartingDeadline(0)), nil, false},
		"it had an attempt":                  {newAt(withStatus(*nextAttempt(1, due)), onNode), nil, false},
		"it was admitted when it became due": {running, nil, false},
		"a child":                            {newChildOn("n1"), running, false},
		"a user made it a child":             {newChildOn("n1", func(at *v1alpha1.At) { at.Finalizers = nil }), newAt(), true},
	} {
		t.Run(name, func(t *testing.T) {
			world := World{At: tc.at, Parent: tc.parent, Live: LiveAll, AsOf: now, Now: now}
			if got := WantsTrial(world); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
			// Neither the nodes nor a node that does not exist have any effect.
			world.Refusal = refusal
			if got := Decide(world); tc.want && (got.Status == nil || got.Status.Reason != v1alpha1.ReasonPodRefused) {
				t.Errorf("after a refusal: %+v", got)
			}
		})
	}
}

// TestNeeds covers what must be read before a run on nodes goes on from a cache.
func TestNeeds(t *testing.T) {
	completed := newEndedChild("n1", v1alpha1.ReasonCompleted, "")
	for name, tc := range map[string]struct {
		at       *v1alpha1.At
		children []*v1alpha1.At
		want     Reads
	}{
		"it starts":                  {newAt(withNodes(nil)), nil, LiveAll},
		"a cache has no template":    {newAt(withNodes(&v1alpha1.AtNodesStatus{})), []*v1alpha1.At{newChildOn("n2")}, LiveAt},
		"all children exist":         {newAt(withNodes(&v1alpha1.AtNodesStatus{})), []*v1alpha1.At{newChildOn("n1")}, LiveAll},
		"a child is missing":         {newAt(withNodes(nodes(1, 0, 1, 0))), []*v1alpha1.At{newRunningChild("n1")}, LiveAll},
		"one has ended":              {newAt(withNodes(nodes(2, 0, 0, 0))), []*v1alpha1.At{completed, newRunningChild("n2")}, Cached},
		"all have ended":             {newAt(withNodes(nodes(1, 0, 0, 0))), []*v1alpha1.At{completed}, LiveAll},
		"the next may run":           {newAt(withNodes(nodes(0, 1, 0, 0))), []*v1alpha1.At{heldChild("n1")}, LiveAt},
		"the next may run, one lost": {newAt(withNodes(nodes(0, 2, 0, 0))), []*v1alpha1.At{heldChild("n1")}, LiveAll},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Decide(World{At: tc.at, Children: tc.children, Nodes: []*corev1.Node{newNode("n1")}, Now: now}); got.Needs != tc.want {
				t.Errorf("needs %v, want %v: %+v", got.Needs, tc.want, got)
			}
		})
	}
}
