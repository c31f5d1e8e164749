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

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"
)

func TestCleanTemplate(t *testing.T) {
	original := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Name:            "x",
			Labels:          map[string]string{"app": "shop", "batch.kubernetes.io/controller-uid": "1", "batch.kubernetes.io/job-name": "x", "controller-uid": "1", "job-name": "x", "pod-template-hash": "1"},
			Annotations:     map[string]string{"kubectl.kubernetes.io/default-container": "main"},
			OwnerReferences: []metav1.OwnerReference{{Name: "x"}},
			Finalizers:      []string{"x"},
		},
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{Name: "main"}}},
	}
	before := original.DeepCopy()
	want := &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels:      map[string]string{"app": "shop"},
			Annotations: map[string]string{"kubectl.kubernetes.io/default-container": "main"},
		},
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main"}}},
	}
	if diff := cmp.Diff(want, cleanTemplate(original)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(before, &original); diff != "" {
		t.Errorf("the original has changed:\n%s", diff)
	}
	original.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	if got := cleanTemplate(original).Spec.RestartPolicy; got != corev1.RestartPolicyOnFailure {
		t.Errorf("restartPolicy OnFailure became %s", got)
	}
}

func TestOfServer(t *testing.T) {
	template := &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "shop", "team": "a"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{LivenessProbe: &corev1.Probe{}, ReadinessProbe: &corev1.Probe{}, StartupProbe: &corev1.Probe{}}}},
	}
	got := ofServer(template)
	want := &corev1.PodTemplateSpec{
		Spec: corev1.PodSpec{Containers: []corev1.Container{{}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestImages(t *testing.T) {
	cronJob := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "backup"}}
	cronJob.Spec.JobTemplate.Spec.Template.Spec.Containers = []corev1.Container{{Image: "backup:1"}}
	for from, want := range map[string][]string{"": {"backup:1"}, "cronjob/backup": {"backup:1"}, "cj/backup": {"backup:1"}, "job/backup": nil} {
		w := newWorld(t, "")
		w.kube = kubefake.NewSimpleClientset(cronJob)
		root := w.command()
		root.SetContext(t.Context())
		if err := w.connect(); err != nil {
			t.Fatal(err)
		}
		if err := root.Flags().Set("from", from); err != nil {
			t.Fatal(err)
		}
		got, err := w.images(root)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("--from=%s: %v, -want +got:\n%s", from, err, diff)
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
		fmt.Fprint(w, "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: main, image: x}]}")
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

func TestParseTemplate(t *testing.T) {
	for name, tc := range map[string]struct {
		content string
		name    string // of the result
		fails   bool
	}{
		"a Pod":              {content: "kind: Pod\napiVersion: v1\nmetadata: {name: a}\nspec: {containers: [{name: main, image: x}]}", name: "a"},
		"a Job":              {content: "kind: Job\nmetadata: {name: c}\nspec: {template: {spec: {containers: [{name: main, image: x}]}}}", name: "c"},
		"a CronJob":          {content: "kind: CronJob\nmetadata: {name: d}\nspec: {jobTemplate: {spec: {template: {spec: {containers: [{name: main, image: x}]}}}}}", name: "d"},
		"a PodTemplate":      {content: "kind: PodTemplate\nmetadata: {name: b}\ntemplate: {spec: {containers: [{name: main, image: x}]}}", name: "b"},
		"after a separator":  {content: "# one\n---\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: main, image: x}]}\n---\n# end\n", name: "a"},
		"two Pods":           {content: "kind: Pod\nspec: {containers: [{name: main, image: x}]}\n---\nkind: Pod\n", fails: true},
		"a template":         {content: "metadata: {labels: {a: b}}\nspec: {containers: [{name: main, image: x}]}"},
		"JSON":               {content: `{"spec": {"containers": [{"name": "main"}]}}`},
		"another kind":       {content: "kind: Service", fails: true},
		"a misspelled field": {content: "kind: Pod\nspec: {containers: [{name: main, imige: x}]}", fails: true},
		"nothing":            {content: "", fails: true},
		"not YAML":           {content: "{", fails: true},
		"only the Pod spec":  {content: "containers: [{name: main}]", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			template, err := parseTemplate([]byte(tc.content))
			if (err != nil) != tc.fails {
				t.Fatalf("error %v", err)
			}
			if err == nil && (template.Name != tc.name || template.Spec.Containers[0].Name != "main") {
				t.Errorf("got %+v", template)
			}
		})
	}
}
