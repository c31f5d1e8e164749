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
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	kubefake "k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

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

// TestLogsOfNodes prints the output of a node, which is "fake logs".
func TestLogsOfNodes(t *testing.T) {
	const line = "[n1] fake logs\n"
	for args, want := range map[string]struct{ stdout, stderr string }{
		"logs patch":             {line, ""},
		"logs patch --attempt=1": {line, ""},
		"logs patch --attempt=3": {"", "error: at/patch has no attempt 3: RUNNING for 0s, nodes: 1 of 5 succeeded, 1 failed, 1 active, 2 waiting\n"},
		"logs patch -f":          {line, "attempt 2: pod/patch-n1-pod-1\nerror: at/patch failed: NodesFailed\n"},
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
			w := newWorld(t, objects...)
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
			// The progress comes before or after what is said of the log.
			stderr := strings.Replace(w.stderr.String(), "at/patch: RUNNING for 0s, nodes: 1 of 5 succeeded, 1 failed, 1 active, 2 waiting\n", "", 1)
			if w.stdout.String() != want.stdout || stderr != want.stderr {
				t.Errorf("stdout %q, want %q; stderr %q, want %q", w.stdout.String(), want.stdout, stderr, want.stderr)
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
