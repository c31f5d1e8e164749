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
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// TestConformance sends the requests of testdata/conformance.txt to a real API server and to the one in memory, on
// which the simulation and many unit tests rely. It compares the answers.
func TestConformance(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	actual := &dialogue{actor: actAs(t, "", namespace), bind: func(d *dialogue) {
		// A node that does not exist, and that no other test names: the garbage collector of Pods
		// force-deletes those on a node that has been gone for 40 seconds.
		bind := attempt{http.MethodPost, "pods/pod/binding", runtime.ContentTypeJSON, `{"metadata":{"name":"pod"},"target":{"kind":"Node","name":"` + namespace + `"}}`}
		if _, err := d.send(t, bind); err != nil {
			t.Fatal(err)
		}
	}}
	kube, _ := harness.NewClients(t, fakeserver.New(clock.RealClock{}))
	fake := &dialogue{actor: actor{kube.Discovery().RESTClient(), namespace}, bind: func(d *dialogue) {
		d.say(t, "PUT pods/pod {spec: {nodeName: "+namespace+"}}")
	}}
	if diff := gocmp.Diff(actual.read(t), fake.read(t)); diff != "" {
		t.Errorf("the API server in memory answers differently (-real +in memory)\n%s", diff)
	}
}

// dialogue sends requests to an API server, and notes its answers.
type dialogue struct {
	actor
	bind func(d *dialogue)
	// objects are those last seen, by resource and name; first are their first versions, by UID.
	objects map[string]*unstructured.Unstructured
	first   map[types.UID]string
	// selected is the version of the last list.
	selected string
}

const template = `selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: main, image: busybox}]}}}}`

// examples are objects that nobody else changes: they are never due or scheduled, and a Pod has hours to end.
var examples = map[string]string{
	"pods":         `{apiVersion: v1, kind: Pod, metadata: {name: new, finalizers: [cnat.programming-kubernetes.info/tracking]}, spec: {schedulerName: none, terminationGracePeriodSeconds: 10800, containers: [{name: main, image: busybox}]}}`,
	"ats":          `{apiVersion: cnat.programming-kubernetes.info/v1alpha1, kind: At, metadata: {name: new}, spec: {schedule: "2099-01-01T00:00:00Z", command: "true"}}`,
	"cronats":      `{apiVersion: cnat.programming-kubernetes.info/v1alpha1, kind: CronAt, metadata: {name: new}, spec: {schedule: 0 0 29 2 *, suspend: true, atTemplate: {spec: {command: "true"}}}}`,
	"freezes":      `{apiVersion: cnat.programming-kubernetes.info/v1alpha1, kind: Freeze, metadata: {name: new}, spec: {windows: [{from: "2098-01-01T00:00:00Z", until: "2099-01-01T00:00:00Z"}]}}`,
	"deployments":  `{apiVersion: apps/v1, kind: Deployment, spec: {replicas: 0, ` + template,
	"statefulsets": `{apiVersion: apps/v1, kind: StatefulSet, spec: {replicas: 0, ` + template,
	"daemonsets":   `{apiVersion: apps/v1, kind: DaemonSet, spec: {` + template,
}

// read sends all requests, and returns them with the answers.
func (d *dialogue) read(t *testing.T) (answers []string) {
	t.Helper()
	d.objects, d.first = map[string]*unstructured.Unstructured{}, map[types.UID]string{}
	text, err := os.ReadFile("testdata/conformance.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch {
		case line == "BIND":
			d.bind(d)
		case line != "" && !strings.HasPrefix(line, "#"):
			answers = append(answers, line+": "+d.say(t, line))
		}
	}
	return append(answers, d.watch(t)...)
}

// say sends a request, and returns what matters of the answer.
func (d *dialogue) say(t *testing.T, line string) string {
	t.Helper()
	words := append(strings.SplitN(line, " ", 3), "{}")
	path, query, _ := strings.Cut(words[1], "?")
	seen, body := d.objects[strings.TrimSuffix(path, "/status")], words[2]
	if seen != nil {
		body = strings.NewReplacer("UID", string(seen.GetUID()), "OLD", fmt.Sprintf("%q", d.first[seen.GetUID()]), "VERSION", fmt.Sprintf("%q", seen.GetResourceVersion())).Replace(body)
	}
	what, parameters := requestOf(t, words[0], words[1], body, seen)
	answer, err := d.send(t, what, parameters...)
	switch {
	case err != nil:
		return refusal(err)
	case strings.HasPrefix(query, "dryRun="), what.method == http.MethodDelete && query == "": // A deleted object may be answered, or not.
		return "ok"
	}
	object, err := runtime.Decode(unstructured.UnstructuredJSONScheme, []byte(answer))
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	if list, ok := object.(*unstructured.UnstructuredList); ok {
		d.selected = list.GetResourceVersion()
		var all []string
		for i := range list.Items {
			all = append(all, d.describe(&list.Items[i]))
		}
		return strings.Join(all, "; ")
	}
	return d.describe(object.(*unstructured.Unstructured))
}

// requestOf returns a request and its parameters. A body of POST is merged with an example of the resource, and one of PUT
// with the object before.
func requestOf(t *testing.T, method, path, body string, before *unstructured.Unstructured) (what attempt, parameters []string) {
	t.Helper()
	path, query, _ := strings.Cut(path, "?")
	resource, _, _ := strings.Cut(path, "@")
	what = attempt{method, path, runtime.ContentTypeJSON, ""}
	var merged []byte
	switch example := examples[resource]; {
	case method == http.MethodPost && example != "":
		merged, _ = yaml.YAMLToJSON([]byte(example))
	case method == http.MethodPut:
		merged, _ = before.MarshalJSON()
	case method == http.MethodPatch && strings.HasPrefix(resource, "pods/"):
		what.contentType = string(types.StrategicMergePatchType)
	case method == http.MethodPatch:
		what.contentType = string(types.MergePatchType)
	}
	content, err := yaml.YAMLToJSON([]byte(body))
	if err == nil && merged != nil {
		content, err = jsonpatch.MergePatch(merged, content)
	}
	values, queryErr := url.ParseQuery(query)
	if err = errors.Join(err, queryErr); err != nil {
		t.Fatalf("%s %s %s: %v", method, path, body, err)
	}
	for name := range values {
		parameters = append(parameters, name, values.Get(name))
	}
	if method != http.MethodGet {
		what.body = string(content)
	}
	return what, parameters
}

// refusal returns what matters of an error.
func refusal(err error) string {
	words := []string{string(apierrors.ReasonForError(err))}
	if cause, ok := apierrors.StatusCause(err, metav1.CauseTypeFieldValueInvalid); ok {
		words = append(words, cause.Field)
	}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Details != nil {
		// With it, the controller believes that an object does not exist.
		words = append(words, status.Status().Details.Name)
	}
	return strings.Join(words, " ")
}

// describe returns what matters of an object, which is now the one last seen.
func (d *dialogue) describe(object *unstructured.Unstructured) string {
	key := strings.ToLower(object.GetKind()) + "s/" + object.GetName()
	before, uid, isDeleted := d.objects[key], object.GetUID(), object.GetDeletionTimestamp() != nil
	d.objects[key], d.first[uid] = object, cmp.Or(d.first[uid], object.GetResourceVersion())
	changed, generation := before == nil || before.GetResourceVersion() != object.GetResourceVersion(), object.GetGeneration()
	phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
	reason, _, _ := unstructured.NestedString(object.Object, "status", "reason")
	suspended, _, _ := unstructured.NestedBool(object.Object, "spec", "suspend")
	restarted, _, _ := unstructured.NestedString(object.Object, "spec", "template", "metadata", "annotations", rollout.AnnotationRestartedAt)
	node, _, _ := unstructured.NestedString(object.Object, "spec", "nodeName")
	switch object.GetKind() {
	case "Deployment":
		changed = false // Its controller changes it, too.
	case "Pod":
		generation = 0 // Nobody looks at it.
		if node == "" && isDeleted {
			phase, changed = "", false // The garbage collector of Pods changes it, too.
		}
	}
	return fmt.Sprintf("%s %s, generation %d, suspend %v, restarted %q, changed: %t, deleted: %t, grace: %d, finalizers: %v", phase, reason, generation, suspended, restarted,
		changed, isDeleted, ptr.Deref(object.GetDeletionGracePeriodSeconds(), -1), object.GetFinalizers())
}

// watch returns what a watch with a selector reports from the last list on, when all has happened.
func (d *dialogue) watch(t *testing.T) (events []string) {
	t.Helper()
	stream, err := d.client.Get().AbsPath(d.path("ats")...).Param("watch", "true").Param("labelSelector", "selected").Param("resourceVersion", d.selected).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	for decoder := json.NewDecoder(stream); ; {
		var event struct {
			Type   string
			Object unstructured.Unstructured
		}
		if err := decoder.Decode(&event); err != nil {
			t.Fatalf("after %q: %v", events, err)
		}
		events = append(events, event.Type+" "+event.Object.GetName()+": "+d.describe(&event.Object))
		if event.Object.GetLabels()["last"] != "" {
			return events
		}
	}
}
