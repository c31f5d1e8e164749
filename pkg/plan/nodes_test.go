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
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

func newNode(name string, mutate ...func(*corev1.Node)) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	return edited(node, mutate...)
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
	return edited(child, mutate...)
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
		newNode("pressed", withTaint(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule), withTaint(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule),
			withTaint(corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule), withTaint(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule),
			withTaint("node.cloudprovider.kubernetes.io/uninitialized", corev1.TaintEffectNoSchedule)),
		newNode("virtual", withLabel("type", "virtual-kubelet")),
		newNode("fargate", withLabel("eks.amazonaws.com/compute-type", "fargate")),
		newNode("gpu", withLabel("accelerator", "gpu")),
		newNode("typed", withLabel("type", "large")),
	}
	const plain, tainted = "gpu not-preferred not-ready plain pressed typed", "with the taint dedicated:NoExecute:1 with the taint node-role.kubernetes.io/control-plane:NoSchedule:1"
	for name, tc := range map[string]struct {
		edit func(*v1alpha1.At)
		want string // those that are chosen, and how many are omitted, and why
	}{
		"all":                        {func(*v1alpha1.At) {}, "[" + plain + "] map[cordoned:2 virtual:2 " + tainted + "]"},
		"by the selector":            {selects("accelerator", "gpu"), "[gpu] map[]"},
		"by the node selector":       {template(func(spec *corev1.PodSpec) { spec.NodeSelector = map[string]string{"accelerator": "gpu"} }), "[gpu] map[not selected by the template:11]"},
		"tolerated":                  {tolerates("node-role.kubernetes.io/control-plane"), "[control-plane " + plain + "] map[cordoned:2 virtual:2 with the taint dedicated:NoExecute:1]"},
		"cordons are tolerated":      {tolerates(corev1.TaintNodeUnschedulable), "[cordoned cordoned-and-tainted " + plain + "] map[virtual:2 " + tainted + "]"},
		"all is tolerated":           {tolerates(""), "[control-plane cordoned cordoned-and-tainted gpu no-execute not-preferred not-ready plain pressed typed] map[virtual:2]"},
		"virtual nodes are selected": {selects("type", "virtual-kubelet"), "[virtual] map[]"},
		"Fargate is selected by the template": {template(func(spec *corev1.PodSpec) {
			spec.NodeSelector = map[string]string{"eks.amazonaws.com/compute-type": "fargate"}
		}), "[fargate] map[not selected by the template:11]"},
		"by the affinity": {template(func(spec *corev1.PodSpec) {
			spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{
					{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "accelerator", Operator: corev1.NodeSelectorOpExists}}},
					{MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"plain"}}}},
				},
			}}}
		}), "[gpu plain] map[not selected by the template:10]"},
	} {
		t.Run(name, func(t *testing.T) {
			got, omitted, err := ChooseNodes(newAt(withNodes(nil), tc.edit), all)
			if text := fmt.Sprint(got, " ", omitted); err != nil || text != tc.want {
				t.Errorf("got  %s, %v\nwant %s", text, err, tc.want)
			}
		})
	}
	at := newAt(withNodes(nil))
	at.Spec.Nodes.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}
	if got, _, err := ChooseNodes(at, all); err == nil {
		t.Errorf("a selector with an unknown operator selects %v", got)
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
	expect(t, "annotations", map[string]string{v1alpha1.AnnotationRequester: "alice"}, newChild(parent, "n1").Annotations)
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

func noNode(w *World) { w.Node = nil }

// newerNode replaces the node by another one of the same name.
func newerNode(w *World) { w.Node.CreationTimestamp = metav1.Time{Time: due.Add(time.Second)} }

func nodesUnreadable(w *World) { w.NodesErr = nodesForbidden }

// counted is an At with spec.nodes, and that status.
func counted(status *v1alpha1.AtNodesStatus, mutate ...func(*v1alpha1.At)) *v1alpha1.At {
	return edited(newAt(withNodes(status)), mutate...)
}

// children are those on the given nodes, each with its states.
func children(texts ...string) (ats []*v1alpha1.At) {
	for _, text := range texts {
		node, states, _ := strings.Cut(text, " ")
		child := newChildOn(node)
		for state := range strings.FieldsSeq(states) {
			switch state {
			case "running":
				child.Status.Phase = v1alpha1.PhaseRunning
			case "held":
				held(child)
			case "deleted":
				child.DeletionTimestamp = &metav1.Time{Time: due}
			case "refused":
				refusedWith("quota")(child)
			case "failed":
				child = newEndedChild(node, v1alpha1.ReasonCommandFailed, "exit code 1")
			default:
				child = newEndedChild(node, state, "")
			}
		}
		ats = append(ats, child)
	}
	return ats
}

func oneAtATime(at *v1alpha1.At) { at.Spec.Nodes.MaxConcurrent = ptr.To(intstr.FromInt32(1)) }

// TestDecideNodes covers Ats that run on nodes, from the choice of the nodes to the end.
func TestDecideNodes(t *testing.T) {
	limit := func(limit string) func(*v1alpha1.At) {
		return func(at *v1alpha1.At) { at.Spec.Nodes.MaxConcurrent = ptr.To(intstr.Parse(limit)) }
	}
	maxFailed := func(number int32) func(*v1alpha1.At) {
		return func(at *v1alpha1.At) { at.Spec.Nodes.MaxFailed = &number }
	}
	noSelector := func(at *v1alpha1.At) {
		at.Spec.Nodes.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}
	}
	choosing := &v1alpha1.AtNodesStatus{}
	testDecide(t, map[string]decideCase{
		"due": {at: counted(nil), want: "Phase=RUNNING; ScheduledTime=10:12:00; StartTime=10:12:04; Nodes=; read all"},
		"due, with an invalid selector": {
			at: counted(nil, noSelector), dropped: true,
			want: `Blocked InvalidSelector: spec.nodes.selector is not a label selector: "Like" is not a valid label selector operator; Warning InvalidSelector`,
		},
		"an invalid selector, too late": {
			at:   counted(nil, noSelector, withStartingDeadline(0)),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed StartingDeadlineExceeded: It did not run: it could not start within spec.startingDeadlineSeconds (0) of the scheduled time.; Warning StartingDeadlineExceeded; read all",
		},
		"the nodes are not known": {at: counted(choosing), world: func(w *World) { w.NodesErr = errors.New("not synced") }, want: "wait 1s"},
		"the nodes are forbidden": {
			at: counted(choosing), world: nodesUnreadable,
			want: "Blocked NodesForbidden: spec.node and spec.nodes require that the controller can get, list and watch nodes: no; Warning NodesForbidden; retry blocked",
		},
		"no node": {
			at: counted(choosing), world: func(w *World) { w.Nodes = nil },
			want: "Phase=DONE; CompletionTime=10:12:04; Failed NoNodes: No node matches spec.nodes: check the labels (kubectl get nodes --show-labels), cordons and taints.; Warning NoNodes; read all",
		},
		"one is missing":           {at: counted(choosing), children: children("n1", "n3"), want: "CreateAts example-at-n2; read At"},
		"suspended until its turn": {at: counted(choosing, oneAtATime), children: children("n1", "n3"), want: "CreateAts example-at-n2 suspended; read At"},
		"all exist, one of a node that is gone": {
			at: counted(choosing), children: children("n1", "n2", "n3", "n4"),
			want: "Nodes.Desired=4; Nodes.Active=4; Nodes.Progress=0/4; Nodes.StartTime=10:12:04; Normal SuccessfulCreate: Created Ats for 4 nodes; read all",
		},

		"all have ended": {
			at: counted(nodes(2, 0, 1, 0)), children: children("n1 Completed", "n2 failed", "n3 NodeGone"),
			want: "Phase=DONE; CompletionTime=10:12:04; Nodes.Failed=2; no Nodes.Active; Failed NodesFailed: The command failed on 2 of 3 nodes: n2 (CommandFailed: exit code 1), n3 (NodeGone).; Warning NodesFailed; read all",
		},
		"all have succeeded": {
			at: counted(nodes(1, 0, 0, 0)), children: children("n1 Completed"),
			want: "Phase=DONE; CompletionTime=10:12:04; Nodes.Succeeded=1; Nodes.Progress=1/1; no Nodes.Active; Complete Completed: The command ended with exit code 0 on 1 of 1 nodes.; Normal Completed; read all",
		},
		"one was created late": {at: counted(nodes(0, 0, 1, 0)), children: children("n1 Completed", "n2 running"), want: "Nodes.Desired=2; Nodes.Active=1; Nodes.Progress=1/2"},
		"one is gone": {
			at: counted(nodes(1, 0, 1, 0)), children: children("n1 Completed"),
			want: "Phase=DONE; CompletionTime=10:12:04; Nodes.Failed=1; no Nodes.Active; Failed NodesFailed: The command failed on 1 of 2 nodes: 1 more.; Warning NodesFailed; read all",
		},

		"a percentage is rounded up": {
			at: counted(nodes(0, 3, 0, 0), limit("34%")), children: children("n3 held", "n2 held", "n1 held"),
			want: "ResumeAts example-at-n1 example-at-n2; read At",
		},
		"the limit was removed": {
			at: counted(nodes(0, 3, 0, 0)), children: children("n3 held", "n2 held", "n1 held"),
			want: "ResumeAts example-at-n1 example-at-n2 example-at-n3; read At",
		},
		"the next, and one is gone": {at: counted(nodes(0, 2, 0, 0)), children: children("n1 held"), want: "ResumeAts example-at-n1; read all"},
		"one is gone, another runs": {
			at: counted(nodes(1, 0, 1, 0)), children: children("n1 running"),
			want: "Nodes.Failed=1; Nodes.Progress=0/2; no Nodes.Succeeded; says The command failed on 1 of 2 nodes: 1 more.; read all",
		},
		"none while it is suspended": {at: counted(nodes(0, 1, 1, 0), withSuspendedRun), children: children("n1 Completed", "n2 held"), want: "nothing"},
		"one that is deleted is active": {
			at: counted(nodes(1, 1, 0, 1), oneAtATime), children: children("n2 failed", "n3 held deleted", "n4 held"),
			want: "says The command failed on 1 of 3 nodes: n2 (CommandFailed: exit code 1).",
		},

		"as many failed as allowed": {at: counted(nodes(1, 1, 0, 0), oneAtATime, maxFailed(1)), children: children("n2 failed", "n3 held"), want: "ResumeAts example-at-n3; read At"},
		"more failed than allowed": {
			at: counted(nodes(1, 1, 0, 0), oneAtATime, maxFailed(0)), children: children("n2 failed", "n3 held"),
			want: "Phase=DONE; CompletionTime=10:12:04; Nodes.Failed=1; no Nodes.Active; Failed NodesFailed: The command failed on 1 of 2 nodes: n2 (CommandFailed: exit code 1). The command was not started on 1 nodes: more nodes failed than spec.nodes.maxFailed allows.; Warning NodesFailed; read all",
		},
		"more were allowed to fail when some were NotStarted": {
			at: counted(nodes(1, 1, 0, 0), maxFailed(5)), children: children("n2 failed", "n3 NotStarted"),
			want: "Phase=DONE; CompletionTime=10:12:04; Nodes.Failed=1; no Nodes.Active; Failed NodesFailed: The command failed on 1 of 2 nodes: n2 (CommandFailed: exit code 1). The command was not started on 1 nodes: more nodes failed than spec.nodes.maxFailed allows.; Warning NodesFailed; read all",
		},
		"an unrelated Pod has the name":          {at: counted(nil), pod: pendingPod(ownedBy()), want: "Phase=RUNNING; ScheduledTime=10:12:00; StartTime=10:12:04; Nodes=; read all"},
		"suspended beyond the starting deadline": {at: counted(choosing, withSuspendedRun, withStartingDeadline(1)), want: "nothing"},
		"the affinity is invalid": {
			at: counted(choosing, func(at *v1alpha1.At) {
				at.Spec.Template = &corev1.PodTemplateSpec{}
				at.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: "Like"}}}},
				}}}
			}), dropped: true,
			want: `Phase=DONE; CompletionTime=10:12:04; Failed InvalidPod: spec.template.spec: the node affinity is invalid: nodeSelectorTerms[0].matchExpressions[0].operator: Unsupported value: "Like": supported values: "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"; Warning InvalidPod; read all`,
		},
	})
}

// TestDecideByParent covers the parts of a child's decisions that depend on its parent.
func TestDecideByParent(t *testing.T) {
	deleting := func(at *v1alpha1.At) { at.DeletionTimestamp = &metav1.Time{Time: now} }
	orphaned := func(at *v1alpha1.At) { at.OwnerReferences = nil }
	released := func(at *v1alpha1.At) { at.Finalizers = nil }
	done := func(at *v1alpha1.At) { at.Status.Phase = v1alpha1.PhaseDone }
	running := newAt(withNodes(nodes(1, 0, 0, 0)))
	ended := newAt(withNodes(nodes(0, 0, 0, 1)), done)
	leaving := newAt(withNodes(nodes(1, 0, 0, 0)), deleting)
	held := newAt(withNodes(nodes(1, 0, 0, 0)), withSuspendedRun)
	tooMany := newAt(withNodes(nodes(1, 0, 0, 1)), func(at *v1alpha1.At) { at.Spec.Nodes.MaxFailed = ptr.To[int32](0) })
	childPod := func(phase corev1.PodPhase, mutate ...func(*corev1.Pod)) *corev1.Pod {
		pod := NewPod(newChildOn("n1"), Defaults{Image: "image"})
		pod.UID, pod.CreationTimestamp, pod.Spec.NodeName, pod.Status.Phase = podUID, metav1.Time{Time: created}, "n1", phase
		return edited(pod, mutate...)
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
	testDecide(t, map[string]decideCase{
		"the parent is being deleted, it runs": {
			parent: leaving, at: newChildOn("n1", withPod), pod: childPod(corev1.PodSucceeded),
			want: "Phase=DONE; CompletionTime=10:12:04; Pod.AtGeneration=2; Pod.Phase=Succeeded; Complete Completed: The command ended with exit code 0.; Normal Completed",
		},
		"the parent is suspended, it runs": {
			parent: held, at: newChildOn("n1", withPod), pod: childPod(corev1.PodSucceeded),
			want: "Phase=DONE; CompletionTime=10:12:04; Pod.AtGeneration=2; Pod.Phase=Succeeded; Complete Completed: The command ended with exit code 0.; Normal Completed",
		},
		"it may start":                              {parent: running, at: newChildOn("n1"), want: "CreatePod due 10:12:00; wait 1m0s; read At"},
		"not all exist":                             {parent: newAt(withNodes(&v1alpha1.AtNodesStatus{})), at: newChildOn("n1"), want: "nothing"},
		"the parent is outdated":                    {parent: newAt(withNodes(nil)), at: newChildOn("n1"), want: "nothing"},
		"it waits for its turn":                     {parent: running, at: newChildOn("n1", withSuspended), want: "nothing"},
		"an At that happens to own it":              {parent: newAt(), at: newChildOn("n1", released), want: "CreatePod due 10:12:00; wait 1m0s; read At"},
		"the parent is gone":                        {at: newChildOn("n1"), want: "ReleaseAt"},
		"the parent is gone, it is released":        {at: newChildOn("n1", released), want: "nothing"},
		"the parent has another UID":                {parent: newAt(withNodes(nodes(1, 0, 0, 0)), func(at *v1alpha1.At) { at.UID = "other" }), at: newChildOn("n1"), want: "ReleaseAt"},
		"the parent is being deleted":               {parent: leaving, at: newChildOn("n1"), want: "nothing"},
		"the parent is being deleted, it has ended": {parent: leaving, at: newChildOn("n1", done), want: "ReleaseAt"},
		"the parent is suspended":                   {parent: held, at: newChildOn("n1"), want: "nothing"},
		"too many have failed": {
			parent: tooMany, at: newChildOn("n1"),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed NotStarted: More nodes failed than spec.nodes.maxFailed allows: the command was not started on this node.; Warning NotStarted; read all",
		},
		"too many have failed, it waits": {parent: tooMany, at: newChildOn("n1", withSuspended), want: "nothing"},
		"too many have failed, it has a Pod": {
			parent: tooMany, at: newChildOn("n1"), pod: childPod(corev1.PodRunning),
			want: "Phase=RUNNING; ScheduledTime=10:12:00; StartTime=10:12:00.01; Pod.Name=example-at-n1-pod; Pod.UID=pod-uid; Pod.AtGeneration=2; Pod.Phase=Running; Pod.NodeName=n1; Normal SuccessfulCreate: Created Pod example-at-n1-pod",
		},
		"a retry is due, and the node is gone": {
			parent: running, at: newChildOn("n1", func(at *v1alpha1.At) { at.Status = *nextAttempt(1, now.Add(time.Minute)) }), world: noNode,
			want: "Phase=DONE; CompletionTime=10:12:04; no NextAttemptTime; Failed NodeGone: Node n1 does not exist or was removed: the command did not run.; Warning NodeGone; read all",
		},
		"the parent was deleted without it": {at: newChildOn("n1", orphaned), want: "ReleaseAt"},
		"and it is released": {
			at:   newChildOn("n1", released, orphaned),
			want: "Blocked OwnerMissing: Label cnat.programming-kubernetes.info/at-uid says that another object created this At, but the At has no such owner. It may have run before: it may be a copy, or restored from a backup. Delete it. Or, to run it, remove the label: kubectl label at example-at-n1 -n default cnat.programming-kubernetes.info/at-uid-; Warning OwnerMissing",
		},
		"and a user removes its label": {at: newChildOn("n1", released, func(at *v1alpha1.At) { at.OwnerReferences, at.Labels = nil, nil }), want: "CreatePod due 10:12:00; wait 1m0s; read At"},
		"the parent has ended": {
			parent: ended, at: newChildOn("n1"),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed NotStarted: At example-at has ended: the command was not started on this node.; Warning NotStarted; read all",
		},
		"the parent has ended, and it has": {parent: ended, at: newChildOn("n1", done), want: "ReleaseAt"},
		"it has ended":                     {parent: running, at: newChildOn("n1", done), want: "nothing"},
		"it is deleted": {
			parent: running, at: newChildOn("n1", deleting),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed AtDeleted: This At was deleted before it ended.; Warning AtDeleted; read all",
		},
		"it is deleted while it runs": {
			parent: running, at: newChildOn("n1", withPod, deleting), pod: childPod(corev1.PodRunning),
			want: "FailureTarget AtDeleted: This At was deleted before it ended.",
		},
		"it is being stopped": {
			parent: running, at: newChildOn("n1", withPod, deleting, stopped("AtDeleted")), pod: childPod(corev1.PodRunning),
			want: "DeletePod example-at-n1-pod; wait 1m0s",
		},
		"it was stopped": {
			parent: running, at: newChildOn("n1", withPod, deleting, stopped("AtDeleted")), pod: childPod(corev1.PodFailed, deleted),
			want: "Phase=DONE; CompletionTime=10:12:04; Pod.AtGeneration=2; Pod.Phase=Failed; Failed=1; LastFailureTime=10:12:04; Failed AtDeleted: why; Warning AtDeleted",
		},
		"it is deleted, and had ended": {
			parent: running, at: newChildOn("n1", withPod, deleting), pod: childPod(corev1.PodSucceeded),
			want: "Phase=DONE; CompletionTime=10:12:04; Pod.AtGeneration=2; Pod.Phase=Succeeded; Complete Completed: The command ended with exit code 0.; Normal Completed",
		},
		"it is deleted, and its Pod is gone": {
			parent: running, at: newChildOn("n1", withPod, deleting),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed=1; LastFailureTime=10:12:04; Failed PodLost: Pod example-at-n1-pod was deleted before the controller saw how it ended; the command will not run again.; Warning PodLost; read all",
		},
		"the node was added again": {
			parent: running, at: newChildOn("n1"), world: newerNode,
			want: "Phase=DONE; CompletionTime=10:12:04; Failed NodeGone: Node n1 does not exist or was removed: the command did not run.; Warning NodeGone; read all",
		},
		"the nodes are forbidden": {
			parent: running, at: newChildOn("n1"), world: nodesUnreadable,
			want: "Blocked NodesForbidden: spec.node and spec.nodes require that the controller can get, list and watch nodes: no; Warning NodesForbidden; retry blocked",
		},
		"it runs, the node is gone": {
			parent: running, at: newChildOn("n1", withPod), pod: childPod(corev1.PodRunning), world: noNode,
			want: "FailureTarget NodeGone: Node n1 was removed while Pod example-at-n1-pod was on it: the outcome of the command is unknown.; read all",
		},
		"it runs, the node was added again": {
			parent: running, at: newChildOn("n1", withPod), pod: childPod(corev1.PodRunning), world: newerNode,
			want: "FailureTarget NodeGone: Node n1 was removed while Pod example-at-n1-pod was on it: the outcome of the command is unknown.; read all",
		},
		"the node is gone, the Pod is being deleted": {
			parent: running, at: newChildOn("n1", withPod, stopped("NodeGone")), pod: childPod(corev1.PodRunning), world: noNode,
			want: "DeletePod example-at-n1-pod; wait 1m0s",
		},
		"the node is gone, no kubelet ends the Pod": {
			parent: running, at: newChildOn("n1", withPod, stopped("NodeGone")), pod: childPod(corev1.PodRunning, deleted), world: noNode,
			want: "Phase=DONE; CompletionTime=10:12:04; Failed=1; LastFailureTime=10:12:04; Failed NodeGone: why; Warning NodeGone; read all",
		},
		"the node is gone, the Pod had ended": {
			parent: running, at: newChildOn("n1", withPod), pod: childPod(corev1.PodSucceeded), world: noNode,
			want: "Phase=DONE; CompletionTime=10:12:04; Pod.AtGeneration=2; Pod.Phase=Succeeded; Complete Completed: The command ended with exit code 0.; Normal Completed",
		},
	})
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
