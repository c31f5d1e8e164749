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
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/yaml"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files of testdata")

// TestCopy copies the manifests of testdata/copy with -f, and the same objects in the cluster with
// --from: for an At and for a CronAt. The golden files have what is printed.
func TestCopy(t *testing.T) {
	every := map[string]string{"cronjob-onfailure": "", "cronjob-limits": "0 4 * * *", "cronat": "", "old-cronjob": ""}
	commands := map[string]string{
		"cronjob-limits": "--args -- monthly", "deployment-proxy-first": "-c shop -- ./migrate up", "deployment-default-container": "-- date", "deployment-spread": "--args -- migrate",
		"statefulset-claims": "-- date", "statefulset-pod": "--retries=1 -- pg_dump", "daemonset-hostport": "-- /agent --once", "daemonset-pod": "-- date",
		"pod-written": "-l network=db", "job-live": "--retries=0 --ttl=1h",
	}
	files, err := filepath.Glob("testdata/copy/*.yaml")
	if err != nil || len(files) < 18 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			golden := strings.TrimSuffix(file, ".yaml") + ".txt"
			schedule, isSet := every[name]
			if !isSet {
				schedule = "@daily"
			}
			var got strings.Builder
			for _, args := range [][]string{{"now + 1 hour", "--name=at"}, {"every", schedule, "--name=cronat"}} {
				args = slices.DeleteFunc(args, func(arg string) bool { return arg == "" })
				args = append(args, "--dry-run=client", "-o=yaml", "-f", file)
				fromFile := copyOf(t, file, append(args, strings.Fields(commands[name])...))
				fmt.Fprintf(&got, "$ kubectl at %s %s\n%s\n", strings.Join(args[:len(args)-4], " "), commands[name], fromFile)
				if name == "old-cronjob" { // The cluster has none.
					continue
				}
				fromCluster := copyOf(t, file, slices.Concat(args[:len(args)-2], []string{"--from"}, strings.Fields(commands[name])))
				if diff := cmp.Diff(fromFile, fromCluster); diff != "" {
					t.Errorf("%q: -f and --from differ (-f +from):\n%s", args, diff)
				}
			}
			if *update {
				if err := os.WriteFile(golden, []byte(got.String()), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", golden, diff)
			}
		})
	}
}

// TestCopyingPage compares docs/reference/copying.md with the rules, and finds each field of what is copied in it.
func TestCopyingPage(t *testing.T) {
	content, err := os.ReadFile("../../docs/reference/copying.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(content)
	sections := map[string]string{}
	for _, section := range strings.Split(page, "\n## ")[1:] {
		heading, text, _ := strings.Cut(section, "\n")
		sections[heading] = text
	}
	want := map[string]string{}
	for section, rules := range map[string][]rule{"Changed in each copy": rules, "Not from a Job or a CronJob": serverRules} {
		for _, rule := range rules {
			if rule.action == "" {
				rule.action = actionDropped
			}
			want[section] += fmt.Sprintf("| %s | `%s` | %s | %s |\n", rule.of, strings.Join(rule.fields, "`, `"), rule.action, rule.why)
		}
	}
	for section, rows := range want {
		_, got, _ := strings.Cut(sections[section], "| --- | --- | --- | --- |\n")
		got, _, _ = strings.Cut(got+"\n", "\n\n")
		if diff := cmp.Diff(strings.TrimSpace(rows), strings.TrimSpace(got)); diff != "" {
			t.Errorf("docs/reference/copying.md, %s (-want +got):\n%s", section, diff)
		}
	}
	for of, fields := range map[string]any{
		"CronJob": batchv1.CronJobSpec{}, ofJob: batchv1.JobSpec{}, ofPod: corev1.PodSpec{}, ofContainer: corev1.Container{},
	} {
		for field := range reflect.TypeOf(fields).Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			row := regexp.MustCompile(`(?m)^\| ` + of + ` \| .*` + "`" + name + "`")
			if n := len(row.FindAllString(page, -1)); n != 1 {
				t.Errorf("docs/reference/copying.md has %d rows with the field %s of a %s", n, name, of)
			}
		}
	}
}

// copyOf runs a command, and returns what it prints: messages, then the object. --from gets the
// object of the file.
func copyOf(t *testing.T, file string, args []string) string {
	t.Helper()
	w := newWorld(t)
	source := "-f " + file
	if i := slices.Index(args, "--from"); i >= 0 {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var fields unstructured.Unstructured
		if err := yaml.Unmarshal(content, &fields.Object); err != nil {
			t.Fatal(err)
		}
		object, err := kinds.New(fields.GroupVersionKind())
		if err != nil {
			t.Fatal(err)
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields.Object, object); err != nil {
			t.Fatal(err)
		}
		namespace := "default"
		if fields.GetNamespace() != "" {
			namespace = fields.GetNamespace()
			args = append([]string{"-n", namespace}, args...)
			i += 2
		}
		object.(metav1.Object).SetNamespace(namespace)
		if cronAt, isCronAt := object.(*v1alpha1.CronAt); isCronAt {
			err = w.cnat.Tracker().Add(cronAt)
		} else {
			w.kube = kubefake.NewSimpleClientset(object)
		}
		if err != nil {
			t.Fatal(err)
		}
		source = strings.ToLower(fields.GetKind()) + "/" + fields.GetName()
		args = slices.Insert(args, i+1, source)
	}
	t.Setenv("TZ", "UTC")
	w.run(t, args...)
	// The cluster may not have what is in a file.
	same := strings.NewReplacer("error: "+source, "error: SOURCE")
	return same.Replace(w.stderr.String()) + w.stdout.String()
}

// TestCopyKeepsNodeTermsOfJobs: an empty term selects no node. Without it, the run would go to any node.
func TestCopyKeepsNodeTermsOfJobs(t *testing.T) {
	terms := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}}
	job := &batchv1.Job{}
	job.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms.DeepCopy()}}
	from, err := sourceOf(job, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := from.run().Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if diff := cmp.Diff(terms, got); diff != "" {
		t.Errorf("required node affinity (-want +got):\n%s", diff)
	}
}
