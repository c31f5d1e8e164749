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
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"
)

func TestCompleteImages(t *testing.T) {
	cronJob := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "backup"}}
	cronJob.Spec.JobTemplate.Spec.Template.Spec.Containers = []corev1.Container{{Image: "backup:1"}}
	for from, want := range map[string]string{"": "backup:1\n", "--from=cronjob/backup": "backup:1\n", "--from=cj/backup": "backup:1\n", "--from=job/backup": ""} {
		w := newWorld(t, "")
		w.kube = kubefake.NewSimpleClientset(cronJob)
		if code := w.run(t, "__complete", "now", from, "--image", ""); code != 0 || !strings.HasPrefix(w.stdout.String(), want+":") {
			t.Errorf("%s: exit code %d, stdout %q, want %q", from, code, w.stdout.String(), want)
		}
	}
}

// TestDownload reads the Pod from a URL.
func TestDownload(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/pod.yaml" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: main, image: x}]}")
	}))
	defer server.Close()
	for path, want := range map[string]string{"/pod.yaml": "at.cnat.programming-kubernetes.info/a-", "/none.yaml": "404 Not Found"} {
		w := newWorld(t, "")
		code := w.run(t, "now", "-f", server.URL+path)
		if got := w.stdout.String() + w.stderr.String(); !strings.Contains(got, want) || (code == 0) != (path == "/pod.yaml") {
			t.Errorf("%s: exit code %d, got %q, want %q", path, code, got, want)
		}
	}
}

func TestFile(t *testing.T) {
	const pod, spec = "apiVersion: v1\nkind: Pod\n", "spec: {containers: [{name: main, image: x}]}"
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n"
	for name, tc := range map[string]struct {
		content string
		fails   string
	}{
		"a Pod":              {content: pod + spec},
		"a Job":              {content: "apiVersion: batch/v1\nkind: Job\nspec: {template: {" + spec + "}}"},
		"a CronJob":          {content: "apiVersion: batch/v1\nkind: CronJob\nspec: {jobTemplate: {spec: {template: {" + spec + "}}}}"},
		"a PodTemplate":      {content: "apiVersion: v1\nkind: PodTemplate\ntemplate: {" + spec + "}"},
		"a Deployment":       {content: "apiVersion: apps/v1\nkind: Deployment\nspec: {template: {" + spec + "}}"},
		"an At":              {content: "apiVersion: cnat.programming-kubernetes.info/v1alpha1\nkind: At\nspec: {template: {" + spec + "}}"},
		"a CronAt":           {content: "apiVersion: cnat.programming-kubernetes.info/v1alpha1\nkind: CronAt\nspec: {atTemplate: {spec: {template: {" + spec + "}}}}"},
		"after a separator":  {content: "# one\n---\n" + pod + spec + "\n---\n# end\n"},
		"JSON":               {content: `{"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "main", "image": "x"}]}}`},
		"two Pods":           {content: pod + spec + "\n---\n" + pod + spec, fails: "it contains 2 objects: it must contain one"},
		"no kind":            {content: spec, fails: "it has no kind: a Pod begins with apiVersion: v1 and kind: Pod"},
		"no version":         {content: "kind: Job\n" + spec, fails: `it contains a Job of apiVersion "": write apiVersion: batch/v1`},
		"another kind":       {content: service, fails: `it contains a Service of apiVersion "v1": it must contain one of CronJob, Job, Pod, PodTemplate`},
		"a misspelled field": {content: pod + "spec: {containers: [{name: main, imige: x}]}", fails: `unknown field "spec.containers[0].imige"`},
		"a wrong type":       {content: pod + "spec: {containers: [{name: main, image: x, env: [{name: A, value: true}]}]}", fails: "cannot unmarshal bool into Go struct field EnvVar.spec.containers.env.value of type string"},
		"no list":            {content: pod + "spec: {containers: [{name: main, image: x, command: echo hi}]}", fails: "spec.containers.command of type []string"},
		"no number":          {content: "apiVersion: batch/v1\nkind: Job\nspec: {backoffLimit: \"3\", template: {" + spec + "}}", fails: "spec.backoffLimit of type int32"},
		"a script":           {content: "#!/bin/sh\necho a: b: c\n", fails: "If it is a script, pass it as standard input"},
		"a script of words":  {content: "echo YAY\n", fails: "If it is a script, pass it as standard input"},
		"no container":       {content: pod + "spec: {}", fails: "the Pod has no container"},
		"an At without one":  {content: "apiVersion: cnat.programming-kubernetes.info/v1alpha1\nkind: At\nspec: {template: {}}", fails: "the Pod has no container"},
		"nothing":            {content: "", fails: "it contains 0 objects"},
		"not YAML":           {content: "{", fails: "error parsing the standard input"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.content)
			args := []string{"now", "-f", "-", "--dry-run=client", "-o", "jsonpath={.spec.template.spec.containers[*].name}", "--", "x"}
			code := w.run(t, args...)
			if tc.fails != "" {
				if code != exitUsage || !strings.Contains(w.stderr.String(), tc.fails) {
					t.Errorf("exit code %d, stderr %q, want %q", code, w.stderr.String(), tc.fails)
				}
			} else if code != 0 || w.stdout.String() != "main" {
				t.Errorf("exit code %d, stdout %q, stderr %q", code, w.stdout.String(), w.stderr.String())
			}
		})
	}
}

// TestNamespaceOfFile creates the At in the namespace of the file, as kubectl create does.
func TestNamespaceOfFile(t *testing.T) {
	for _, args := range [][]string{{"now"}, {"now", "-n", "data"}} {
		w := newWorld(t, "")
		code := w.run(t, append(args, "--name=at", "--suspend", "-f", "testdata/copy/statefulset-pod.yaml", "--", "x")...)
		if _, err := w.cnat.CnatV1alpha1().Ats("data").Get(t.Context(), "at", metav1.GetOptions{}); code != 0 || err != nil || !strings.Contains(w.stderr.String(), "until kubectl at -n data resume at\n") {
			t.Errorf("%q: exit code %d, stderr %q, %v", args, code, w.stderr.String(), err)
		}
	}
}

// unanswered is a server that answers nothing before it is closed.
type unanswered chan struct{}

func (u unanswered) RoundTrip(request *http.Request) (*http.Response, error) {
	<-u
	return &http.Response{StatusCode: http.StatusNotFound, Body: http.NoBody, Request: request}, nil
}

// TestDownloadUnanswered reads the Pod from a URL whose server does not answer.
func TestDownloadUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, before := make(unanswered), http.DefaultTransport
		http.DefaultTransport = server
		defer func() {
			close(server)
			synctest.Wait() // until nobody uses the transport
			http.DefaultTransport = before
		}()
		w := newWorld(t, "")
		code := w.run(t, "now", "-f", "http://server/pod.yaml")
		if want := "error: -f http://server/pod.yaml has not answered for 30s\n"; code != exitError || w.stderr.String() != want {
			t.Errorf("exit code %d, stderr %q, want %q", code, w.stderr.String(), want)
		}
	})
}
