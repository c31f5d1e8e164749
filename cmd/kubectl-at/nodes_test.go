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
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	kubefake "k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

func TestCreateOnNodes(t *testing.T) {
	for name, tc := range map[string]struct {
		args  []string
		node  string
		nodes *v1alpha1.AtNodes
	}{
		"one node":  {args: []string{"--node=worker-1"}, node: "worker-1"},
		"all nodes": {args: []string{"--nodes=all"}, nodes: &v1alpha1.AtNodes{}},
		"a selector": {
			args:  []string{"--nodes", "pool=workers", "--max-concurrent=2", "--max-failed=0"},
			nodes: &v1alpha1.AtNodes{Selector: metav1.LabelSelector{MatchLabels: map[string]string{"pool": "workers"}}, MaxConcurrent: ptr.To(intstr.FromInt32(2)), MaxFailed: ptr.To[int32](0)},
		},
		"a percentage": {
			args: []string{"--nodes=zone in (a,b),!gpu", "--max-concurrent", "10%"},
			nodes: &v1alpha1.AtNodes{
				Selector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
					{Key: "gpu", Operator: metav1.LabelSelectorOpDoesNotExist},
					{Key: "zone", Operator: metav1.LabelSelectorOpIn, Values: []string{"a", "b"}},
				}},
				MaxConcurrent: ptr.To(intstr.FromString("10%")),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "")
			if code := w.run(t, append([]string{"now", "--name=at", "--tz=UTC"}, append(tc.args, "--", "x")...)...); code != 0 {
				t.Fatalf("exit code %d: %s", code, w.stderr.String())
			}
			at, err := w.cnat.CnatV1alpha1().Ats("default").Get(t.Context(), "at", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if at.Spec.Node != tc.node {
				t.Errorf("node %q, want %q", at.Spec.Node, tc.node)
			}
			if diff := cmp.Diff(tc.nodes, at.Spec.Nodes, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("nodes (-want +got):\n%s", diff)
			}
		})
	}
}

// TestOmittedNodes checks that a new object with nodes comes with a line about the nodes that it
// leaves out now.
func TestOmittedNodes(t *testing.T) {
	node := func(name string, spec corev1.NodeSpec) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": name[:1]}}, Spec: spec}
	}
	tainted := corev1.NodeSpec{Taints: []corev1.Taint{{Key: "dedicated", Value: "db", Effect: corev1.TaintEffectNoSchedule}}}
	nodes := []runtime.Object{node("a1", tainted), node("a2", corev1.NodeSpec{Unschedulable: true}), node("a3", tainted), node("a4", corev1.NodeSpec{}), node("b1", corev1.NodeSpec{})}
	const omitted = "leaves out 3 of %d nodes: 1 cordoned, 2 with the taint dedicated=db:NoSchedule\n"
	for name, tc := range map[string]struct {
		args      []string
		forbidden bool
		stderr    string
	}{
		"all nodes":        {args: []string{"noon", "--nodes=all"}, stderr: fmt.Sprintf(omitted, 5)},
		"a selector":       {args: []string{"now", "--nodes=pool=a"}, stderr: fmt.Sprintf(omitted, 4)},
		"a CronAt":         {args: []string{"every", "@daily", "--nodes=all"}, stderr: fmt.Sprintf(omitted, 5)},
		"a server dry run": {args: []string{"noon", "--nodes=all", "--dry-run=server"}, stderr: fmt.Sprintf(omitted, 5)},
		"none is left out": {args: []string{"noon", "--nodes=pool=b"}},
		"one node":         {args: []string{"noon", "--node=a1"}},
		"a client dry run": {args: []string{"noon", "--nodes=all", "--dry-run=client"}},
		"not allowed":      {args: []string{"noon", "--nodes=all"}, forbidden: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "")
			kube := kubefake.NewSimpleClientset(nodes...)
			if tc.forbidden {
				kube.PrependReactor("list", "nodes", func(kubetesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewForbidden(corev1.Resource("nodes"), "", nil)
				})
			}
			w.kube = kube
			if code := w.run(t, append(tc.args, "--name=x", "--tz=UTC", "--", "x")...); code != 0 {
				t.Fatalf("exit code %d: %s", code, w.stderr.String())
			}
			if before, _, _ := strings.Cut(w.stderr.String(), "run"); strings.TrimSuffix(before, "would ") != tc.stderr {
				t.Errorf("stderr %q, want first %q", w.stderr.String(), tc.stderr)
			}
		})
	}
}

func TestUsageOfNodes(t *testing.T) {
	for name, tc := range map[string]struct {
		args   []string
		stderr string
	}{
		"both":                 {[]string{"--node=a", "--nodes=all"}, "remove one of the two"},
		"an empty node":        {[]string{"--node="}, "--node is empty"},
		"an empty selector":    {[]string{"--nodes="}, "--nodes is empty"},
		"a wrong selector":     {[]string{"--nodes=a=b=c"}, `--nodes is "a=b=c"`},
		"a limit alone":        {[]string{"--max-concurrent=2"}, "require --nodes"},
		"a limit for one node": {[]string{"--node=a", "--max-failed=2"}, "require --nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "")
			code := w.run(t, append(append([]string{"now"}, tc.args...), "--", "x")...)
			if code != exitUsage || !strings.Contains(w.stderr.String(), tc.stderr) || len(w.cnat.Actions()) > 0 {
				t.Errorf("exit code %d, want %d; stderr %q, want %q; requests: %v", code, exitUsage, w.stderr.String(), tc.stderr, w.cnat.Actions())
			}
		})
	}
}

// family returns an At that runs on nodes, and the At of one of them.
func family() []runtime.Object {
	parent := newAt("patch", func(at *v1alpha1.At) {
		at.Spec.Nodes = &v1alpha1.AtNodes{
			Selector:      metav1.LabelSelector{MatchLabels: map[string]string{"pool": "workers"}},
			MaxConcurrent: ptr.To(intstr.FromString("10%")), MaxFailed: ptr.To[int32](3),
		}
		at.Status = v1alpha1.AtStatus{
			Phase: v1alpha1.PhaseRunning, StartTime: &metav1.Time{Time: now},
			Message: "It failed on 1 of 5 nodes: n2 (CommandFailed: no space left on device).",
			Nodes:   &v1alpha1.AtNodesStatus{Desired: 5, Succeeded: 1, Failed: 1, Active: 1, Waiting: 2},
		}
	})
	child := newAt("patch-n1", func(at *v1alpha1.At) {
		at.Spec.Node, at.UID = "n1", "n1"
		at.Labels = map[string]string{v1alpha1.LabelAtUID: "uid"}
		at.Status = v1alpha1.AtStatus{Phase: v1alpha1.PhaseRunning, Failed: 1, Pod: &v1alpha1.AtPod{Name: "patch-n1-pod-1"}}
		at.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(parent, v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.AtKind))}
	})
	return []runtime.Object{parent, child}
}

func TestListOfNodes(t *testing.T) {
	for args, want := range map[string]string{"list": "patch\n", "list --all": "patch\npatch-n1\n"} {
		w := newWorld(t, "", family()...)
		code := w.run(t, append(strings.Fields(args), "-o", "name")...)
		if got := strings.ReplaceAll(w.stdout.String(), "at.cnat.programming-kubernetes.info/", ""); code != 0 || got != want {
			t.Errorf("%s: exit code %d, got %q, want %q", args, code, got, want)
		}
	}
}

func TestShowNodes(t *testing.T) {
	for name, want := range map[string][]string{
		"patch": {
			"Runs on    nodes with pool=workers, 10% at the same time, until more than 3 have failed\n",
			"Nodes      1 of 5 succeeded, 1 failed, 1 active, 2 waiting\n",
			"Why        It failed on 1 of 5 nodes: n2 (CommandFailed: no space left on device).\n",
			"Nodes\nNODE   NAME       PHASE     REASON   EXIT\nn1     patch-n1   RUNNING   -        -\n",
		},
		"patch-n1": {"Runs on    node n1\n"},
	} {
		w := newWorld(t, "", family()...)
		code := w.run(t, "show", name, "--tz=UTC")
		for _, line := range want {
			if code != 0 || !strings.Contains(w.stdout.String(), line) {
				t.Errorf("exit code %d, got:\n%s\nwant: %s", code, w.stdout.String(), line)
			}
		}
	}
}

func TestPlaceOf(t *testing.T) {
	if got := placeOf(&v1alpha1.RunSpec{Nodes: &v1alpha1.AtNodes{}}); got != "all nodes" {
		t.Errorf("got %q, want all nodes", got)
	}
}

// TestLogsOfNodes prints the output of a node, which is "fake logs".
func TestLogsOfNodes(t *testing.T) {
	const line = "[n1] fake logs\n"
	for args, want := range map[string]struct{ stdout, stderr string }{
		"logs patch":                {line, ""},
		"logs patch --attempt=1":    {line, ""},
		"logs patch --attempt=3":    {"", "error: at/patch has no attempt 3: RUNNING for 0s, nodes: 1 of 5 succeeded, 1 failed, 1 active, 2 waiting\n"},
		"logs patch --attempt=1 -f": {"", "error: --attempt cannot be used with -f: remove one of the two\n"},
		"logs patch -f":             {line, "attempt 2: pod/patch-n1-pod-1\nerror: at/patch failed: NodesFailed\n"},
		"now --name=patch --nodes=all --logs --tz=UTC -- x": {
			line, "at.cnat.programming-kubernetes.info/patch created\nruns Fri 27 Mar 2026 14:00:00 UTC, at once\nattempt 2: pod/patch-n1-pod-1\nerror: at/patch failed: NodesFailed\n",
		},
	} {
		t.Run(args, inBubble(func(t *testing.T) {
			t.Helper()
			objects := family()
			if strings.HasPrefix(args, "now") {
				objects = objects[1:]
				objects[0].(*v1alpha1.At).Labels[v1alpha1.LabelAtUID] = ""
			}
			w := newWorld(t, "", objects...)
			var pods []runtime.Object
			for _, name := range []string{"patch-n1-pod", "patch-n1-pod-1"} {
				pods = append(pods, &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: "default", Name: name,
						OwnerReferences: []metav1.OwnerReference{{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: v1alpha1.AtKind, Name: "patch-n1", UID: "n1", Controller: ptr.To(true)}},
					},
					Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}},
					Status: corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{
						{Name: "a", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}},
					}},
				})
			}
			w.kube = kubefake.NewSimpleClientset(pods...)
			w.cnat.PrependWatchReactor("ats", func(action kubetesting.Action) (bool, watch.Interface, error) {
				watcher := watch.NewFakeWithChanSize(1, false)
				parent := family()[0].(*v1alpha1.At)
				if strings.HasPrefix(args, "now") {
					parent.UID = ""
				}
				parent.Status.Phase, parent.Status.Reason, parent.Status.Message = v1alpha1.PhaseDone, v1alpha1.ReasonNodesFailed, ""
				if action.(kubetesting.WatchAction).GetWatchRestrictions().Labels.Empty() {
					watcher.Modify(parent)
				}
				return true, watcher, nil
			})
			w.run(t, strings.Fields(args)...)
			if w.stdout.String() != want.stdout || w.stderr.String() != want.stderr {
				t.Errorf("stdout %q, want %q; stderr %q, want %q", w.stdout.String(), want.stdout, w.stderr.String(), want.stderr)
			}
		}))
	}
}

func TestPrefixed(t *testing.T) {
	var out bytes.Buffer
	p := &prefixed{out: &out, lock: &sync.Mutex{}, prefix: "[n] "}
	for _, data := range []string{"a", "b\nc\n\nd", "e", "\n", "f"} {
		if n, err := p.Write([]byte(data)); n != len(data) || err != nil {
			t.Errorf("%q: %d, %v", data, n, err)
		}
	}
	p.end()
	p.end()
	if want := "[n] ab\n[n] c\n[n] \n[n] de\n[n] f\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestStateLineOfNodes(t *testing.T) {
	want := "RUNNING for 0s, nodes: 1 of 5 succeeded, 1 failed, 1 active, 2 waiting"
	if got := stateLine(family()[0].(*v1alpha1.At), now); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCompleteNodes(t *testing.T) {
	w := newWorld(t, "")
	w.kube = kubefake.NewSimpleClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "db-1"}})
	if code := w.run(t, "__complete", "now", "--node", "w"); code != 0 || !strings.HasPrefix(w.stdout.String(), "db-1\nworker-1\n:") {
		t.Errorf("exit code %d, stdout %q", code, w.stdout.String())
	}
}
