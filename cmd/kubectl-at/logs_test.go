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
	"k8s.io/client-go/rest"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
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
