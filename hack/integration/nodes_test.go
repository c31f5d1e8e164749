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
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// fleet is a set of nodes of a test with simulated kubelets. They have no capacity, so
// that the scheduler does not interfere, and a label with the test's namespace.
type fleet struct {
	namespace string

	lock sync.Mutex
	// holds has the nodes whose Pods do not end.
	holds map[string]bool
	// exitCodes has the exit codes of the nodes and Pods whose commands do not end with 0.
	exitCodes map[string]int32
	// started has the Pods that were started, by node.
	started map[string][]string
}

// startFleet creates the nodes with the given short names, and simulates their kubelets.
func startFleet(t *testing.T, namespace string, names ...string) *fleet {
	t.Helper()
	f := newFleet(t, namespace, names...)
	playPods(t, namespace, metav1.ListOptions{}, f.sync)
	return f
}

// newFleet creates the nodes with the given short names.
func newFleet(t *testing.T, namespace string, names ...string) *fleet {
	t.Helper()
	f := &fleet{namespace: namespace, holds: map[string]bool{}, exitCodes: map[string]int32{}, started: map[string][]string{}}
	for _, name := range names {
		f.add(t, name)
	}
	t.Cleanup(func() {
		err := kubeClient.CoreV1().Nodes().DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "fleet=" + namespace})
		if err != nil {
			t.Error(err)
		}
	})
	return f
}

// name returns the full name of a node: nodes are cluster-scoped, and tests run at the
// same time.
func (f *fleet) name(short string) string { return f.namespace + "-" + short }

func (f *fleet) add(t *testing.T, short string, edits ...func(*corev1.Node)) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.name(short), Labels: map[string]string{"fleet": f.namespace}}}
	for _, edit := range edits {
		edit(node)
	}
	if _, err := kubeClient.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (f *fleet) remove(t *testing.T, short string) {
	t.Helper()
	if err := kubeClient.CoreV1().Nodes().Delete(t.Context(), f.name(short), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// hold keeps the Pods of some nodes from ending, or lets them end again.
func (f *fleet) hold(hold bool, shorts ...string) {
	f.lock.Lock()
	defer f.lock.Unlock()
	for _, short := range shorts {
		f.holds[f.name(short)] = hold
	}
}

// end makes the commands on some nodes end with the given exit code.
func (f *fleet) end(exitCode int32, shorts ...string) {
	f.lock.Lock()
	defer f.lock.Unlock()
	for _, short := range shorts {
		f.exitCodes[f.name(short)] = exitCode
	}
}

// endPod makes the command of a Pod end with the given exit code.
func (f *fleet) endPod(exitCode int32, pod string) {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.exitCodes[pod] = exitCode
}

// starts returns the Pods that were started on a node.
func (f *fleet) starts(short string) []string {
	f.lock.Lock()
	defer f.lock.Unlock()
	return slices.Clone(f.started[f.name(short)])
}

// sync takes the next step with a Pod.
func (f *fleet) sync(ctx context.Context, pod *corev1.Pod) {
	pods := kubeClient.CoreV1().Pods(pod.Namespace)
	node := pod.Annotations[v1alpha1.AnnotationNode]
	f.lock.Lock()
	holds, exitCode := f.holds[node], max(f.exitCodes[node], f.exitCodes[pod.Name])
	f.lock.Unlock()
	switch {
	case isEnded(pod):
		if pod.DeletionTimestamp != nil && *pod.DeletionGracePeriodSeconds > 0 {
			_ = pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		}
		return
	case pod.Spec.NodeName == "":
		if _, err := kubeClient.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); err == nil && pod.DeletionTimestamp == nil {
			_ = pods.Bind(ctx, &corev1.Binding{
				ObjectMeta: metav1.ObjectMeta{Name: pod.Name, UID: pod.UID},
				Target:     corev1.ObjectReference{Kind: "Node", Name: node},
			}, metav1.CreateOptions{})
		}
		return
	case pod.DeletionTimestamp != nil:
		pod.Status.Phase, pod.Status.ContainerStatuses = corev1.PodFailed, exited(pod, 143, "")
	case pod.Status.Phase == corev1.PodPending:
		f.lock.Lock()
		if !slices.Contains(f.started[node], string(pod.UID)) {
			f.started[node] = append(f.started[node], string(pod.UID))
		}
		f.lock.Unlock()
		pod.Status.Phase = corev1.PodRunning
	case holds:
		return
	case exitCode != 0:
		pod.Status.Phase, pod.Status.ContainerStatuses = corev1.PodFailed, exited(pod, exitCode, "")
	default:
		pod.Status.Phase, pod.Status.ContainerStatuses = corev1.PodSucceeded, exited(pod, 0, "")
	}
	_, _ = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
}

// newNodesAt returns a due At for all nodes of a fleet.
func newNodesAt(f *fleet) *v1alpha1.At {
	at := newAt(f.namespace, "at", time.Now(), "true")
	at.Spec.Nodes = &v1alpha1.AtNodes{Selector: metav1.LabelSelector{MatchLabels: map[string]string{"fleet": f.namespace}}}
	return at
}

// wantNodes checks the counts of nodes in the status of an At.
func wantNodes(t *testing.T, at *v1alpha1.At, want v1alpha1.AtNodesStatus) {
	t.Helper()
	got := ptr.Deref(at.Status.Nodes, v1alpha1.AtNodesStatus{})
	got.StartTime = nil
	want.Progress = fmt.Sprintf("%d/%d", want.Succeeded, want.Desired)
	if got != want {
		t.Errorf("status.nodes is %+v, want %+v", got, want)
	}
}

// wantOnceEach checks that exactly one Pod was created, and one started, for each of the
// nodes.
func wantOnceEach(t *testing.T, f *fleet, shorts ...string) {
	t.Helper()
	var want []string
	for _, short := range shorts {
		want = append(want, "at-"+f.name(short)+"-pod")
		if starts := f.starts(short); len(starts) != 1 {
			t.Errorf("%d Pods were started on node %s: %v, want one", len(starts), short, starts)
		}
	}
	wantCreated(t, f.namespace, want...)
}

// nodesOf returns the status of an At's nodes, which may be empty.
func nodesOf(at *v1alpha1.At) v1alpha1.AtNodesStatus {
	return ptr.Deref(at.Status.Nodes, v1alpha1.AtNodesStatus{})
}

// waitChosen waits until the At named at has an At for each of its nodes.
func waitChosen(t *testing.T, namespace string) {
	t.Helper()
	waitAt(t, namespace, "at", "to have chosen its nodes", func(at *v1alpha1.At) bool { return nodesOf(at).StartTime != nil })
}

// wantCreated checks that exactly the given Pods were created in a namespace.
func wantCreated(t *testing.T, namespace string, want ...string) {
	t.Helper()
	var got []string
	for _, creation := range creations(t, namespace) {
		got = append(got, creation.ObjectRef.Name)
	}
	slices.Sort(got)
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("Pods were created %v, want %v", got, want)
	}
}

// waitAllGone waits until a namespace has no At and no Pod.
func waitAllGone(t *testing.T, namespace string) {
	t.Helper()
	eventually(t, "nothing to be left behind", func(ctx context.Context) (bool, error) {
		pods, err := kubeClient.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil || len(pods.Items) > 0 {
			return false, err
		}
		ats, err := cnatClient.CnatV1alpha1().Ats(namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(ats.Items) == 0, err
	})
}

// waitChildrenReleased waits until no At of a namespace has the finalizer.
func waitChildrenReleased(t *testing.T, namespace string) {
	t.Helper()
	eventually(t, "each At to be released", func(ctx context.Context) (bool, error) {
		ats, err := cnatClient.CnatV1alpha1().Ats(namespace).List(ctx, metav1.ListOptions{})
		return err == nil && !slices.ContainsFunc(ats.Items, func(at v1alpha1.At) bool { return len(at.Finalizers) > 0 }), err
	})
}

func TestNodes(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	f := startFleet(t, namespace, "a", "b", "c")
	f.add(t, "cordoned", func(node *corev1.Node) { node.Spec.Unschedulable = true })
	f.add(t, "tainted", func(node *corev1.Node) {
		node.Spec.Taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
	})
	f.add(t, "virtual", func(node *corev1.Node) { node.Labels["type"] = "virtual-kubelet" })
	startController(t, namespace)
	at := createAt(t, newNodesAt(f))
	at = waitPhase(t, namespace, at.Name, v1alpha1.PhaseDone)
	wantEnd(t, at, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
	wantNodes(t, at, v1alpha1.AtNodesStatus{Desired: 3, Succeeded: 3})
	waitEvents(t, at, map[string]int32{v1alpha1.ReasonSuccessfulCreate: 1, v1alpha1.ReasonCompleted: 1})
	wantOnceEach(t, f, "a", "b", "c")
	waitChildrenReleased(t, namespace)
	wantOutput(t, kubectl(t, "", "get", "-n", namespace, "at/at"), `NODES +AGE\n.* 3/3 `)

	// A node that joins later is not included, whatever happens to the children.
	f.add(t, "late")
	kubectl(t, "", "delete", "-n", namespace, "at", "-l", v1alpha1.LabelAtName+"=at")
	time.Sleep(time.Second)
	wantOnceEach(t, f, "a", "b", "c")

	deleteAt(t, namespace)
	waitAllGone(t, namespace)
}

// countPods counts the Pods of a namespace that have not ended after each change. most
// returns the maximum so far.
func countPods(t *testing.T, namespace string, ended func(*corev1.Pod) bool) (most func() int) {
	t.Helper()
	pods := kubeClient.CoreV1().Pods(namespace)
	before, err := pods.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(before.Items) > 0 {
		t.Fatalf("%d Pods, error %v; want none yet", len(before.Items), err)
	}
	// The API server ends the watches of slow readers.
	watcher, err := watchtools.NewRetryWatcherWithContext(t.Context(), before.ResourceVersion, &cache.ListWatch{WatchFuncWithContext: pods.Watch})
	if err != nil {
		t.Fatal(err)
	}
	highest := make(chan int, 1)
	go func() {
		running, most := map[types.UID]bool{}, 0
		for event := range watcher.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok {
				break
			}
			running[pod.UID] = true
			if event.Type == watch.Deleted || ended(pod) {
				delete(running, pod.UID)
			}
			most = max(most, len(running))
		}
		highest <- most
	}()
	return func() int {
		watcher.Stop()
		return <-highest
	}
}

func isEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// TestMaxConcurrent counts the Pods that have not ended after each change.
func TestMaxConcurrent(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	var names []string
	for i := range 30 {
		names = append(names, fmt.Sprintf("n%02d", i))
	}
	f := startFleet(t, namespace, names...)
	f.hold(true, names...)
	most := countPods(t, namespace, isEnded)
	startController(t, namespace)
	at := newNodesAt(f)
	at.Spec.Nodes.MaxConcurrent = ptr.To(intstr.FromInt32(10))
	createAt(t, at)
	// A second controller, whose caches lag in other ways.
	startController(t, namespace)
	eventually(t, "ten Pods", func(context.Context) (bool, error) { return len(creations(t, namespace)) >= 10, nil })
	f.hold(false, names...)
	at = waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	wantEnd(t, at, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
	wantNodes(t, at, v1alpha1.AtNodesStatus{Desired: 30, Succeeded: 30})
	wantOnceEach(t, f, names...)
	if got := most(); got != 10 {
		t.Errorf("at most %d Pods ran at the same time, want 10", got)
	}
}

func TestMaxFailed(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	f := startFleet(t, namespace, "a", "b", "c", "d", "e")
	f.end(3, "b", "c")
	startController(t, namespace)
	at := newNodesAt(f)
	at.Spec.Nodes.MaxConcurrent = ptr.To(intstr.FromString("20%"))
	at.Spec.Nodes.MaxFailed = ptr.To[int32](1)
	createAt(t, at)
	at = waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	wantEnd(t, at, v1alpha1.ConditionFailed, v1alpha1.ReasonNodesFailed)
	wantNodes(t, at, v1alpha1.AtNodesStatus{Desired: 5, Succeeded: 1, Failed: 2, Waiting: 2})
	want := fmt.Sprintf("It failed on 2 of 5 nodes: %s (CommandFailed: The command ended with exit code 3.), %s (CommandFailed: The command ended with exit code 3.). It was not started on 2 nodes because more nodes had failed than spec.nodes.maxFailed allows.", f.name("b"), f.name("c"))
	if at.Status.Message != want {
		t.Errorf("message %q, want %q", at.Status.Message, want)
	}
	for _, name := range []string{"d", "e"} {
		child := waitPhase(t, namespace, "at-"+f.name(name), v1alpha1.PhaseDone)
		if child.Status.Reason != v1alpha1.ReasonNotStarted {
			t.Errorf("the At of node %s ended as %s", name, child.Status.Reason)
		}
	}
	waitChildrenReleased(t, namespace)
	wantOnceEach(t, f, "a", "b", "c")
}

// TestNodeGone removes nodes at several moments.
func TestNodeGone(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	f := startFleet(t, namespace, "running", "again", "ended", "pending")
	f.hold(true, "running", "again")
	startController(t, namespace)
	on := func(short string) *v1alpha1.At {
		at := newAt(namespace, short, time.Now(), "true")
		at.Spec.Node = f.name(short)
		return at
	}
	wantGone := func(name string, pods int) {
		t.Helper()
		at := waitPhase(t, namespace, name, v1alpha1.PhaseDone)
		if at.Status.Reason != v1alpha1.ReasonNodeGone || !strings.Contains(at.Status.Message, f.name(name)) {
			t.Errorf("At %s ended as %s: %s", name, at.Status.Reason, at.Status.Message)
		}
		created := 0
		for _, creation := range creations(t, namespace) {
			if strings.HasPrefix(creation.ObjectRef.Name, name+"-pod") {
				created++
			}
		}
		if created != pods {
			t.Errorf("%d Pods were created for At %s, want %d", created, name, pods)
		}
	}
	createAt(t, on("none"))
	wantGone("none", 0)

	createAt(t, on("ended"))
	at := waitPhase(t, namespace, "ended", v1alpha1.PhaseDone)
	wantEnd(t, at, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
	if at.Status.Pod.NodeName != f.name("ended") {
		t.Errorf("it ran on %s", at.Status.Pod.NodeName)
	}

	// Its retries cannot run anywhere, either.
	running := on("running")
	running.Spec.BackoffLimit = ptr.To[int32](3)
	for _, at := range []*v1alpha1.At{running, on("again")} {
		createAt(t, at)
		waitAt(t, namespace, at.Name, "to have a Pod on its node", func(at *v1alpha1.At) bool { return at.Status.Pod != nil && at.Status.Pod.Phase == corev1.PodRunning })
	}
	f.remove(t, "running")
	wantGone("running", 1)
	// The node must be created in a later second than the Pod.
	time.Sleep(time.Second)
	f.remove(t, "again")
	f.add(t, "again")
	wantGone("again", 1)
	if starts := f.starts("again"); len(starts) != 1 {
		t.Errorf("%d Pods were started on a node that was added again", len(starts))
	}

	// A Pod that does not fit on any node.
	pending := on("pending")
	pending.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "busybox"}}}}
	pending.Spec.Template.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/never"}}
	createAt(t, pending)
	waitPhase(t, namespace, "pending", v1alpha1.PhaseRunning)
	f.remove(t, "pending")
	wantGone("pending", 1)
}

// TestNodesForecast checks that problems with nodes are reported before the At is due.
func TestNodesForecast(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	f := startFleet(t, namespace)
	startController(t, namespace)
	at := newNodesAt(f)
	at.Spec.Schedule = time.Now().Add(time.Hour).Format(time.RFC3339)
	createAt(t, at)
	blocked := waitBlocked(t, namespace, v1alpha1.ReasonNoNodes)
	wantOutput(t, blocked.Message, "^If it were due now: No node matches spec.nodes")
	f.add(t, "a")
	waitUnblocked(t, namespace)
	update(t, namespace, func(at *v1alpha1.At) { at.Spec.Nodes, at.Spec.Node = nil, f.name("b") })
	blocked = waitBlocked(t, namespace, v1alpha1.ReasonNodeGone)
	wantOutput(t, blocked.Message, "^If it were due now: Node "+f.name("b")+" does not exist")
	update(t, namespace, func(at *v1alpha1.At) { at.Spec.Node, at.Spec.Schedule = f.name("a"), time.Now().Format(time.RFC3339) })
	at = waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	wantEnd(t, at, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
}

// TestChildDeleted deletes children and their Pods at several moments: the node has
// failed, and the command does not run there again.
func TestChildDeleted(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	f := startFleet(t, namespace, "a", "b", "c", "d", "e")
	f.hold(true, "b", "c", "d")
	startController(t, namespace)
	at := newNodesAt(f)
	at.Spec.Nodes.MaxConcurrent = ptr.To(intstr.FromInt32(4))
	at.Spec.BackoffLimit = ptr.To[int32](0)
	createAt(t, at)
	ats := cnatClient.CnatV1alpha1().Ats(namespace)
	child := func(short string) string { return "at-" + f.name(short) }
	waitAt(t, namespace, "at", "to count the first node", func(at *v1alpha1.At) bool { return nodesOf(at).Succeeded >= 1 })
	for _, short := range []string{"b", "c", "d"} {
		waitAt(t, namespace, child(short), "to have started", func(at *v1alpha1.At) bool { return at.Status.Pod != nil && at.Status.Pod.Phase == corev1.PodRunning })
	}
	// The child is running; it has ended; its Pod is deleted; both are deleted.
	for _, short := range []string{"a", "b", "d"} {
		if err := ats.Delete(t.Context(), child(short), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, short := range []string{"c", "d"} {
		if err := kubeClient.CoreV1().Pods(namespace).Delete(t.Context(), child(short)+"-pod", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	at = waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	wantEnd(t, at, v1alpha1.ConditionFailed, v1alpha1.ReasonNodesFailed)
	wantNodes(t, at, v1alpha1.AtNodesStatus{Desired: 5, Succeeded: 2, Failed: 3})
	wantOutput(t, at.Status.Message, f.name("b")+` \(AtDeleted: `, f.name("c")+` \(PodDeleted: `)
	eventually(t, "the deleted Ats to be gone", func(ctx context.Context) (bool, error) {
		list, err := ats.List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 3, err
	})
	wantOnceEach(t, f, "a", "b", "c", "d", "e")
}

// TestNodesSuspended suspends an At before and while its children run.
func TestNodesSuspended(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	f := startFleet(t, namespace, "a", "b", "c")
	f.hold(true, "a")
	startController(t, namespace)
	at := newNodesAt(f)
	at.Spec.Nodes.MaxConcurrent = ptr.To(intstr.FromInt32(1))
	at.Spec.Suspend = ptr.To(true)
	createAt(t, at)
	waitCondition(t, namespace, v1alpha1.ConditionSuspended, metav1.ConditionTrue, v1alpha1.ReasonSuspended)
	update(t, namespace, func(at *v1alpha1.At) { at.Spec.Suspend = nil })
	waitChosen(t, namespace)
	waitPhase(t, namespace, "at-"+f.name("a"), v1alpha1.PhaseRunning)
	update(t, namespace, func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) })
	waitCondition(t, namespace, v1alpha1.ConditionSuspended, metav1.ConditionTrue, v1alpha1.ReasonSuspended)
	f.hold(false, "a")
	waitAt(t, namespace, "at", "to count the first node", func(at *v1alpha1.At) bool { return at.Status.Nodes.Succeeded == 1 })
	time.Sleep(time.Second)
	at = waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
	wantNodes(t, at, v1alpha1.AtNodesStatus{Desired: 3, Succeeded: 1, Waiting: 2})
	if at.Status.Reason != v1alpha1.ReasonSuspended {
		t.Errorf("reason %q", at.Status.Reason)
	}
	update(t, namespace, func(at *v1alpha1.At) { at.Spec.Suspend = nil })
	at = waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	wantEnd(t, at, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
	wantOnceEach(t, f, "a", "b", "c")
}
