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
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// TestStream uses an API server that serves one Pod and its log, which is interrupted.
func TestStream(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	for name, tc := range map[string]struct {
		states []corev1.ContainerState // for each list of the Pod
		logs   []string                // for each request for the log; - cuts the connection, ! is an error
		want   string
	}{
		"a Pod that has ended":      {states: []corev1.ContainerState{ended}, logs: []string{"a\nb\n"}, want: "a\nb\n"},
		"it ends":                   {states: []corev1.ContainerState{running, ended}, logs: []string{"a\nb\n"}, want: "a\nb\n"},
		"the connection is cut":     {states: []corev1.ContainerState{running, ended}, logs: []string{"a\nb-", "a\nb\nc\n"}, want: "a\nb\nc\n"},
		"its log ends before it":    {states: []corev1.ContainerState{running, ended}, logs: []string{"a\n", "a\nb\n"}, want: "a\nb\n"},
		"cut repeatedly":            {states: []corev1.ContainerState{running, ended}, logs: []string{"a\n-", "a\n-", "a\nb\n"}, want: "a\nb\n"},
		"an error before the first": {states: []corev1.ContainerState{ended}, logs: []string{"!", "a\n"}, want: "a\n"},
		"a Pod of another object":   {states: []corev1.ContainerState{ended}, logs: []string{"a\n"}, want: ""},
		"no output":                 {states: []corev1.ContainerState{ended}, logs: []string{""}, want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // It waits for a second before each retry.
			at := newAt("at", func(at *v1alpha1.At) { at.Status.Pod = &v1alpha1.AtPod{Name: "at-pod"} })
			var lists, logs atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch {
				case strings.HasSuffix(r.URL.Path, "/log"):
					log := tc.logs[min(int(logs.Add(1)), len(tc.logs))-1]
					if log == "!" {
						http.Error(w, "no kubelet", http.StatusInternalServerError)
						return
					}
					text, cut := strings.CutSuffix(log, "-")
					fmt.Fprint(w, text)
					if cut {
						w.(http.Flusher).Flush()
						panic(http.ErrAbortHandler)
					}
				case r.URL.Query().Get("watch") != "":
					// It ends immediately, and the Pod is listed again.
				default:
					pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "at-pod"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}
					if name != "a Pod of another object" {
						pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(at, v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.AtKind))}
					}
					state := tc.states[min(int(lists.Add(1)), len(tc.states))-1]
					pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: state}}
					if state.Terminated != nil {
						pod.Status.Phase = corev1.PodSucceeded
					}
					list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []corev1.Pod{pod}}
					list.ResourceVersion = "1"
					if err := json.NewEncoder(w).Encode(list); err != nil {
						t.Error(err)
					}
				}
			}))
			defer server.Close()
			kube, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			var stdout bytes.Buffer
			s := (&cli{kube: kube}).streamLogs(t.Context(), &stdout, at, "")
			s.look(at)
			err = s.finish()
			if isForeign := strings.Contains(fmt.Sprint(err), "belongs to another object"); isForeign != (name == "a Pod of another object") || err != nil && !isForeign || stdout.String() != tc.want {
				t.Errorf("got %q, %v, want %q", stdout.String(), err, tc.want)
			}
		})
	}
}

// TestLogs prints the output of an At whose Pod has an init container, a sidecar and the command.
func TestLogs(t *testing.T) {
	ended := func(code int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	for name, tc := range map[string]struct {
		args  string
		phase corev1.PodPhase
		// of the containers: the state, and how the previous one ended
		init, sidecar, command, initBefore, commandBefore corev1.ContainerState
		// expectations
		container string // "" if there is no request for a log
		previous  bool
		stderr    string
	}{
		"the command runs":        {init: ended(0), sidecar: running, command: running, container: "command"},
		"the command has ended":   {phase: corev1.PodFailed, init: ended(0), sidecar: ended(0), command: ended(1), container: "command"},
		"it has not started":      {init: ended(0), sidecar: running, command: waiting, container: "command"},
		"nothing has started":     {init: waiting, sidecar: waiting, command: waiting, container: "command"},
		"an init container runs":  {init: running, sidecar: waiting, command: waiting, container: "init", stderr: "pod/at-pod: the command has not started. This is the output of container init\n"},
		"an init container ended": {phase: corev1.PodFailed, init: ended(3), sidecar: waiting, command: waiting, container: "init", stderr: "pod/at-pod: the command has not started. This is the output of container init, which ended with exit code 3\n"},
		"an init container waits for its restart": {
			init: waiting, initBefore: ended(3), sidecar: waiting, command: waiting, container: "init", previous: true,
			stderr: "pod/at-pod: the command has not started. This is the output of container init, which ended with exit code 3 and will start again\n",
		},
		"a sidecar does not start": {init: ended(0), sidecar: ended(4), command: waiting, container: "sidecar", stderr: "pod/at-pod: the command has not started. This is the output of container sidecar, which ended with exit code 4\n"},
		"the command waits for its restart": {
			init: ended(0), sidecar: running, command: waiting, commandBefore: ended(1), container: "command", previous: true,
			stderr: "pod/at-pod: this is the output of container command, which ended with exit code 1 and will start again\n",
		},
		"the command has ended, its Pod has not": {
			init: ended(0), sidecar: running, command: ended(1), container: "command",
			stderr: "pod/at-pod: this is the output of container command, which ended with exit code 1\n",
		},
		"the command runs again":  {init: ended(0), sidecar: running, command: running, commandBefore: ended(1), container: "command"},
		"another container":       {args: "-c sidecar", init: ended(0), sidecar: running, command: running, container: "sidecar"},
		"an init container":       {args: "--container=init", init: ended(0), sidecar: running, command: running, container: "init"},
		"one that does not exist": {args: "-c none", init: ended(0), sidecar: running, command: running, stderr: `error: read the log of Pod at-pod: it has no container "none": choose one of init, sidecar, command` + "\n"},
		"followed, none": {
			args: "-f -c none", phase: corev1.PodFailed, init: ended(3), sidecar: waiting, command: waiting,
			stderr: `The log is incomplete: read the log of Pod at-pod: it has no container "none": choose one of init, sidecar, command` + "\n",
		},
		"followed, an init container failed": {
			args: "-f", phase: corev1.PodFailed, init: ended(3), sidecar: waiting, command: waiting, container: "init",
			stderr: "pod/at-pod: the command has not started. This is the output of container init, which ended with exit code 3\n",
		},
		"followed, another container": {args: "-f -c sidecar", phase: corev1.PodFailed, init: ended(0), sidecar: ended(0), command: ended(1), container: "sidecar"},
	} {
		t.Run(name, func(t *testing.T) {
			at := newAt("at", func(at *v1alpha1.At) {
				done(v1alpha1.ReasonCommandFailed, 1)(at)
				at.Status.Pod = &v1alpha1.AtPod{Name: "at-pod"}
			})
			always := corev1.ContainerRestartPolicyAlways
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "default", Name: "at-pod",
					OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(at, v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.AtKind))},
				},
				Spec: corev1.PodSpec{
					InitContainers: []corev1.Container{{Name: "init"}, {Name: "sidecar", RestartPolicy: &always}},
					Containers:     []corev1.Container{{Name: "command"}},
				},
				Status: corev1.PodStatus{
					Phase: tc.phase,
					InitContainerStatuses: []corev1.ContainerStatus{
						{Name: "init", State: tc.init, LastTerminationState: tc.initBefore},
						{Name: "sidecar", State: tc.sidecar, Started: ptr.To(tc.sidecar.Running != nil)},
					},
					ContainerStatuses: []corev1.ContainerStatus{{Name: "command", State: tc.command, LastTerminationState: tc.commandBefore}},
				},
			}
			w := newWorld(t, "", at)
			kube := kubefake.NewSimpleClientset(pod)
			w.kube = kube
			w.run(t, append([]string{"logs", "at"}, strings.Fields(tc.args)...)...)
			stderr, _, _ := strings.Cut(w.stderr.String(), "error: at/at failed")
			if stderr != tc.stderr {
				t.Errorf("stderr %q, want %q", stderr, tc.stderr)
			}
			var asked *corev1.PodLogOptions
			for _, action := range kube.Actions() {
				if action.GetSubresource() == "log" {
					asked = action.(kubetesting.GenericAction).GetValue().(*corev1.PodLogOptions)
				}
			}
			if got := ptr.Deref(asked, corev1.PodLogOptions{}); got.Container != tc.container || got.Previous != tc.previous {
				t.Errorf("container %q, previous %t, want %q, %t", got.Container, got.Previous, tc.container, tc.previous)
			}
		})
	}
}

func TestContainerOf(t *testing.T) {
	pod := &corev1.Pod{
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}, {Name: "b"}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "b"}}},
	}
	if name, status := containerOf(pod, ""); name != "a" || status != nil {
		t.Errorf("got %s, %v; want the first, without a status", name, status)
	}
	pod.Annotations = map[string]string{plan.DefaultContainer: "b"}
	if name, status := containerOf(pod, ""); name != "b" || status == nil {
		t.Errorf("got %s, %v; want b", name, status)
	}
	pod.Annotations[plan.DefaultContainer] = "none"
	if name, _ := containerOf(pod, ""); name != "a" {
		t.Errorf("got %s, want the first", name)
	}
}
