//go:build integration

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

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// The writes of a run on nodes, in order. For writes that occur on each node, that of
// node b fails.
const (
	parentRunning  = "write RUNNING"
	createChild    = "create a child"
	recordNodes    = "record the nodes"
	resumeChild    = "resume a child"
	createChildPod = "create a child's Pod"
	childDone      = "write DONE of a child"
	parentDone     = "write DONE"
	releaseChild   = "release a child"
)

// Events that can happen while a write of a run on nodes hangs, in addition to those of
// any run.
const (
	podsDeleted           = "the Pods are deleted"
	childrenDeleted       = "the children are deleted"
	cordoned              = "a node is cordoned"
	removed               = "a node is removed"
	added                 = "a node is added"
	readded               = "a node is removed, and added again"
	staleCordoned         = "the cache of Ats is stale, and a node is cordoned"
	secondAllDeleted      = "a second controller runs it, and its children and Pods are deleted"
	secondWithoutThatNode = "a second controller runs it, and the node is cordoned"
)

// nodesSample has the cases of TestNodeFaults that are not left to hack/soak.sh: each
// write fails in each way, and each event is combined with several writes. The cases that
// are most likely to run a command twice, or not at all, are all here: a creation or a
// resumption that arrives late, or is sent again by a controller that does not know what
// has happened.
var nodesSample = map[string]map[string][]string{
	parentRunning:  {fails: {added}, lost: {stale}, dies: {cordoned}},
	createChild:    {fails: {removed}, lost: {staleCordoned}, dies: {cordoned, readded}, slow: {childrenDeleted, secondAllDeleted, secondWithoutThatNode}},
	recordNodes:    {fails: {childrenDeleted}, lost: {stale}, dies: {removed}},
	resumeChild:    {fails: {second}, lost: {stale}, dies: {childrenDeleted}, slow: {restart, secondDeleted}},
	createChildPod: {fails: {secondDeleted}, lost: {podsDeleted}, dies: {readded}, slow: {second}},
	childDone:      {fails: {stale}, lost: {removed}, dies: {podsDeleted}},
	parentDone:     {fails: {second}, lost: {childrenDeleted}, dies: {restart}},
	releaseChild:   {fails: {restart}, lost: {stale}, dies: {childrenDeleted}},
}

// TestNodeFaults makes each write of a run on nodes fail in each way while another event
// happens. Each time, there is at most one Pod per node and one end with consistent
// counts, and nothing is left behind. In half of the cases, the nodes take turns.
func TestNodeFaults(t *testing.T) {
	t.Parallel()
	cases := 0
	for _, write := range []string{parentRunning, createChild, recordNodes, resumeChild, createChildPod, childDone, parentDone, releaseChild} {
		for _, how := range []string{fails, lost, dies, slow} {
			if how == slow && write != createChild && write != resumeChild && write != createChildPod {
				continue // A precondition or the finalizer makes this equivalent to a failed request.
			}
			for _, what := range []string{restart, podsDeleted, childrenDeleted, stale, second, secondDeleted, secondAllDeleted, secondWithoutThatNode, cordoned, staleCordoned, removed, added, readded} {
				if write == createChildPod && (what == secondAllDeleted || what == secondDeleted && how == slow) {
					continue // The name of the Pod is only a lock for some seconds: see TestSlowCreation.
				}
				cases++
				if !*soakFaults && !slices.Contains(nodesSample[write][how], what) {
					continue
				}
				name, inTurn := fmt.Sprintf("%s %s, %s", write, how, what), write == resumeChild || cases%2 == 0
				if inTurn {
					name += ", in turn"
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					testNodeFault(t, write, how, what, inTurn)
				})
			}
		}
	}
}

func testNodeFault(t *testing.T, write, how, what string, inTurn bool) {
	t.Helper()
	namespace := newNamespace(t)
	f := startFleet(t, namespace, "a", "b", "c")
	p := newProxy(t, how, write)
	kind := func(request *http.Request) string { return kindOnNode(request, "at-"+f.name("b")) }
	behind := what == stale || what == staleCordoned || strings.HasPrefix(what, second)
	if behind {
		p.with(kind, "ats")
	} else {
		p.with(kind)
	}
	at := newNodesAt(f)
	most := countPods(t, namespace, func(pod *corev1.Pod) bool {
		// A deleted Pod does not start, and nothing reports the end of a Pod on a removed node.
		return isEnded(pod) || pod.DeletionTimestamp != nil && (pod.Spec.NodeName == "" || what == removed || what == readded)
	})
	switch {
	case inTurn:
		at.Spec.Nodes.MaxConcurrent = ptr.To(intstr.FromInt32(1))
	case write != parentDone && write != releaseChild:
		// The event must affect something that is running.
		f.hold(true, "a", "c")
	}
	c := startController(t, namespace, "-master="+p.url)
	t.Cleanup(p.resume)
	createAt(t, at)
	p.waitWrong(t)
	killed := how == dies || what == restart
	if killed {
		c.kill(t)
	}
	meanwhile(t, f, what)
	p.resume()
	switch {
	case killed && !strings.HasPrefix(what, second):
		startController(t, namespace)
	case behind:
		// The controller must show what it does without further information.
		time.Sleep(time.Second)
	}
	p.release()
	f.hold(false, "a", "c")

	at = waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	waitReleased(t, namespace)
	waitChildrenReleased(t, namespace)
	children := childrenOf(t, namespace)
	undisturbed := what != podsDeleted && what != childrenDeleted && what != removed && what != readded
	reason := at.Status.Reason
	if reason != v1alpha1.ReasonCompleted && (undisturbed || reason != v1alpha1.ReasonNodesFailed) {
		t.Errorf("it ended as %s: %s", reason, at.Status.Message)
	}
	nodes := nodesOf(at)
	if nodes.Active != 0 || nodes.Desired != nodes.Succeeded+nodes.Failed+nodes.Waiting {
		t.Errorf("the counts do not add up: %+v", nodes)
	}
	if left := what == childrenDeleted || what == secondAllDeleted; !left && int(nodes.Desired) != len(children) {
		t.Errorf("%d children, and %d nodes are counted", len(children), nodes.Desired)
	}
	created := map[string]int{}
	for _, creation := range requests(t, namespace, "create", "pods") {
		created[creation.ObjectRef.Name]++
	}
	for _, short := range []string{"a", "b", "c", "d"} {
		child := "at-" + f.name(short)
		pods, starts, least := created[child+"-pod"], f.starts(short), 0
		if undisturbed && (children[child] || short == "a" || short == "c") {
			least = 1
		}
		if pods < least || pods > 1 || len(starts) < least || len(starts) > 1 {
			t.Errorf("on node %s %d Pods were created and %d started, want from %d to 1", short, pods, len(starts), least)
		}
	}
	if got := most(); inTurn && got > 1 {
		t.Errorf("%d Pods ran at the same time", got)
	}
	deleteAt(t, namespace)
	waitAllGone(t, namespace)
}

// meanwhile triggers the event that happens while a write of a run on nodes hangs.
func meanwhile(t *testing.T, f *fleet, what string) {
	t.Helper()
	switch what {
	case podsDeleted:
		deletePods(t, f.namespace)
	case childrenDeleted:
		deleteChildren(t, f.namespace)
	case cordoned, staleCordoned:
		f.cordon(t, "b")
		// Wait until the cache of nodes has it.
		time.Sleep(time.Second / 2)
	case added:
		f.add(t, "d")
	case removed:
		f.remove(t, "b")
	case readded:
		f.remove(t, "b")
		// The node must be younger than the objects that were created for it.
		time.Sleep(time.Second)
		f.add(t, "b")
	case secondWithoutThatNode:
		f.cordon(t, "b")
		startController(t, f.namespace)
		// It continues when the write has arrived.
		waitChosen(t, f.namespace)
	case second, secondDeleted, secondAllDeleted:
		f.hold(false, "a", "c")
		startController(t, f.namespace)
		waitPhase(t, f.namespace, "at", v1alpha1.PhaseDone)
		if what == second {
			return
		}
		if what == secondAllDeleted {
			deleteChildren(t, f.namespace)
			eventually(t, "the children to be gone", func(context.Context) (bool, error) { return len(childrenOf(t, f.namespace)) == 0, nil })
		}
		deletePods(t, f.namespace)
		eventually(t, "the Pods to be gone", func(ctx context.Context) (bool, error) {
			pods, err := kubeClient.CoreV1().Pods(f.namespace).List(ctx, metav1.ListOptions{})
			return err == nil && len(pods.Items) == 0, err
		})
	}
}

// kindOnNode returns which write of a run on nodes a request is, or "" if it is none.
// child is the name of the child whose writes count.
func kindOnNode(request *http.Request, child string) string {
	method, path := request.Method, request.URL.Path
	if method != http.MethodPost && method != http.MethodPatch {
		return ""
	}
	body := bodyOf(request)
	if method == http.MethodPost && strings.HasSuffix(path, "/pods") {
		if strings.Contains(string(body), child+"-pod") {
			return createChildPod
		}
		return ""
	}
	var at v1alpha1.At
	if json.Unmarshal(body, &at) != nil {
		return ""
	}
	done := at.Status.Phase == v1alpha1.PhaseDone
	switch {
	case method == http.MethodPost && strings.HasSuffix(path, "/ats") && at.Name == child:
		return createChild
	case strings.HasSuffix(path, "/ats/at/status") && done:
		return parentDone
	case strings.HasSuffix(path, "/ats/at/status") && at.Status.Nodes != nil && at.Status.Nodes.StartTime != nil:
		return recordNodes
	case strings.HasSuffix(path, "/ats/at/status") && at.Status.Phase == v1alpha1.PhaseRunning:
		return parentRunning
	case strings.HasSuffix(path, "/ats/"+child+"/status") && done:
		return childDone
	case strings.HasSuffix(path, "/ats/"+child) && at.Spec.Suspend != nil:
		return resumeChild
	case strings.HasSuffix(path, "/ats/"+child) && at.Finalizers != nil:
		return releaseChild
	}
	return ""
}

// childrenOf returns the names of the children of the At named at.
func childrenOf(t *testing.T, namespace string) map[string]bool {
	t.Helper()
	ats, err := cnatClient.CnatV1alpha1().Ats(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: v1alpha1.LabelAtName + "=at"})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, at := range ats.Items {
		names[at.Name] = true
	}
	return names
}

func deleteChildren(t *testing.T, namespace string) {
	t.Helper()
	err := cnatClient.CnatV1alpha1().Ats(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: v1alpha1.LabelAtName + "=at"})
	if err != nil {
		t.Error(err)
	}
}
