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
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/watch"
	kubefake "k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestTranscripts runs the command lines of testdata/transcripts, whose README.md explains the files.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/transcripts/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			rows := strings.Split(string(content), "\n== ")
			for i, row := range rows[1:] {
				name, want, _ := strings.Cut(row, "\n")
				t.Run(name, inBubble(func(t *testing.T) {
					t.Helper()
					got := newTranscript(t).play(t, rows[0], want)
					if diff := gocmp.Diff(strings.TrimSpace(want), got); diff != "" && !*update {
						t.Errorf("-want +got:\n%s", diff)
					}
					rows[i+1] = name + "\n" + got + "\n"
				}))
			}
			if *update {
				if err := os.WriteFile(file, []byte(strings.Join(rows, "\n== ")), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// transcript is a command line, and what happens around it.
type transcript struct {
	*world
	stdin   []string
	objects map[string]runtime.Object // by their words in the transcript
	later   []watch.Event             // what watches report
}

func newTranscript(t *testing.T) *transcript {
	t.Helper()
	x := &transcript{world: newWorld(t), objects: map[string]runtime.Object{}}
	x.kube, x.patience = kubefake.NewClientset(), patience
	began := time.Now()
	x.now = func() time.Time { return now.Add(time.Since(began)) }
	t.Setenv("TZ", "UTC")
	rand.Seed(1) // the generated names
	x.kube.PrependReactor("list", "events", x.events)
	for _, fake := range []*kubetesting.Fake{&x.cnat.Fake, &x.kube.Fake} {
		fake.PrependWatchReactor("*", func(action kubetesting.Action) (bool, watch.Interface, error) {
			watcher := watch.NewFakeWithChanSize(len(x.later), false)
			for _, event := range x.later {
				if kind, err := mapper.KindFor(action.GetResource()); err == nil && kind == event.Object.GetObjectKind().GroupVersionKind() {
					watcher.Action(event.Type, event.Object.DeepCopyObject())
				}
			}
			return true, watcher, nil
		})
	}
	return x
}

// events returns the events that field selectors select, which the fake clientset ignores.
func (x *transcript) events(action kubetesting.Action) (bool, runtime.Object, error) {
	list, err := x.kube.Tracker().List(action.GetResource(), corev1.SchemeGroupVersion.WithKind("Event"), action.GetNamespace())
	if err != nil {
		return true, nil, err
	}
	selector := action.(kubetesting.ListAction).GetListRestrictions().Fields
	events := list.(*corev1.EventList)
	events.Items = slices.DeleteFunc(events.Items, func(event corev1.Event) bool {
		return !selector.Matches(fields.Set{"involvedObject.uid": string(event.InvolvedObject.UID), "type": event.Type})
	})
	return true, events, nil
}

// word matches a word of a command line; single quotes keep spaces.
var word = regexp.MustCompile(`(?:'[^']*'|[^' ])+`)

// play does what the lines before the output say, and returns them with the output.
func (x *transcript) play(t *testing.T, common, row string) string {
	t.Helper()
	for line := range strings.Lines(common) {
		x.prepare(t, strings.TrimSpace(line))
	}
	var got strings.Builder
	for line := range strings.Lines(row) {
		line = strings.TrimSuffix(line, "\n")
		fmt.Fprintln(&got, line)
		args, isCommand := strings.CutPrefix(line, "$ ")
		if !isCommand {
			x.prepare(t, line)
			continue
		}
		words := []string{}
		for _, found := range word.FindAllString(args, -1) {
			words = append(words, strings.ReplaceAll(found, "'", ""))
		}
		x.In = strings.NewReader(strings.Join(x.stdin, "\n"))
		began := time.Now()
		code := x.run(t, words...)
		for line := range strings.Lines(x.stdout.String()) {
			fmt.Fprintln(&got, strings.TrimSuffix(line, "\n"))
		}
		for line := range strings.Lines(x.stderr.String()) {
			got.WriteString("! " + line)
		}
		for _, action := range slices.Concat(x.cnat.Actions(), x.kube.Actions()) {
			fmt.Fprint(&got, request(t, action))
		}
		if code != 0 {
			fmt.Fprintf(&got, "= %d\n", code)
		}
		if waited := time.Since(began).Truncate(50 * time.Millisecond); waited > 0 { // without the jitter of a retry
			fmt.Fprintf(&got, "~ %v\n", waited)
		}
		break
	}
	return strings.TrimSpace(got.String())
}

// prepare does what a line before the command says.
func (x *transcript) prepare(t *testing.T, line string) {
	t.Helper()
	verb, rest, _ := strings.Cut(line, " ")
	what, rest, _ := strings.Cut(rest, " ")
	switch verb {
	case "has":
		object := x.object(t, what, rest)
		tracker := x.kube.Tracker()
		if object.GetObjectKind().GroupVersionKind().GroupVersion() == v1alpha1.SchemeGroupVersion {
			tracker = x.cnat.Tracker()
		}
		if err := tracker.Add(object.DeepCopyObject()); err != nil {
			t.Fatal(err)
		}
	case "later":
		x.later = append(x.later, watch.Event{Type: watch.Modified, Object: x.object(t, what, rest)})
	case "gone":
		x.later = append(x.later, watch.Event{Type: watch.Deleted, Object: x.object(t, what, rest)})
	case "fail":
		resource, reason, _ := strings.Cut(rest, " ")
		resource, name, _ := strings.Cut(resource, "/")
		for _, fake := range []*kubetesting.Fake{&x.cnat.Fake, &x.kube.Fake} {
			fake.PrependReactor(what, resource, func(action kubetesting.Action) (bool, runtime.Object, error) {
				named, hasName := action.(interface{ GetName() string })
				return name == "" || hasName && named.GetName() == name, nil, failure(resource, reason)
			})
		}
	case "conflict":
		changed, isFirst := x.object(t, what, rest), true
		x.cnat.PrependReactor("patch", "*", func(action kubetesting.Action) (bool, runtime.Object, error) {
			if !isFirst {
				return false, nil, nil
			}
			isFirst = false
			err := x.cnat.Tracker().Update(action.GetResource(), changed, action.GetNamespace())
			return true, nil, cmp.Or(err, failure(action.GetResource().Resource, "Conflict"))
		})
	case "env":
		t.Setenv(what, rest)
	case "at":
		instant, err := time.Parse(time.RFC3339, what)
		if err != nil {
			t.Fatal(err)
		}
		x.now = func() time.Time { return instant }
	case "<":
		x.stdin = append(x.stdin, strings.TrimPrefix(strings.TrimPrefix(line, "<"), " "))
	}
}

// object returns KIND/NAME with a patch: at first of a default, later of what it was before.
func (x *transcript) object(t *testing.T, what, patch string) runtime.Object {
	t.Helper()
	before := x.objects[what]
	if before == nil {
		before = blank(t, what)
	}
	old, err := json.Marshal(before)
	if err != nil {
		t.Fatal(err)
	}
	change, err := yaml.YAMLToJSON([]byte(cmp.Or(patch, "{}")))
	if err != nil {
		t.Fatal(err)
	}
	merged, err := jsonpatch.MergePatch(old, change)
	if err != nil {
		t.Fatal(err)
	}
	after, err := kinds.New(before.GetObjectKind().GroupVersionKind())
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(merged, after); err != nil {
		t.Fatal(err)
	}
	x.objects[what] = after
	return after
}

// blank returns a default At or CronAt, or another object that has only a name.
func blank(t *testing.T, what string) runtime.Object {
	t.Helper()
	kind, name, _ := strings.Cut(what, "/")
	versions := kinds.PrioritizedVersionsAllGroups()
	i := slices.IndexFunc(versions, func(version schema.GroupVersion) bool { return kinds.Recognizes(version.WithKind(kind)) })
	if i < 0 {
		t.Fatalf("there is no kind %s", kind)
	}
	created, err := kinds.New(versions[i].WithKind(kind))
	if err != nil {
		t.Fatal(err)
	}
	named := created.(object)
	switch kind {
	case v1alpha1.AtKind:
		named = newAt(name, nil)
	case v1alpha1.CronAtKind:
		named = newCronAt(name, nil)
	case "Node":
		named.SetName(name)
	default:
		named.SetName(name)
		named.SetNamespace("default")
	}
	named.GetObjectKind().SetGroupVersionKind(versions[i].WithKind(kind))
	return named
}

// failure returns the answer of an API server with a reason and a message, or of a connection.
func failure(resource, text string) error {
	reason, message, _ := strings.Cut(text, " ")
	codes := map[string]int32{"Forbidden": http.StatusForbidden, "ServiceUnavailable": http.StatusServiceUnavailable, "NotFound": http.StatusNotFound, "Conflict": http.StatusConflict}
	switch reason {
	case "NoConnection":
		return errRefused
	case "NoKind":
		return apierrors.NewGenericServerResponse(http.StatusNotFound, "", v1alpha1.Resource(resource), "", "", 0, true)
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: codes[reason], Reason: metav1.StatusReason(reason), Message: message, Details: &metav1.StatusDetails{Kind: resource}}}
}

// request returns the line for a request that writes.
func request(t *testing.T, action kubetesting.Action) string {
	t.Helper()
	line := fmt.Sprintf("> %s %s", action.GetVerb(), action.GetResource().Resource)
	var body any
	var dryRun []string
	switch action := action.(type) {
	case kubetesting.CreateActionImpl:
		body, dryRun = action.Object, action.CreateOptions.DryRun
		if action.GetResource().Resource == "pods" {
			pod := action.Object.(metav1.Object)
			body = map[string]any{"labels": pod.GetLabels(), "owners": pod.GetOwnerReferences(), "finalizers": pod.GetFinalizers()}
		}
	case kubetesting.PatchActionImpl:
		line += "/" + action.Name
		body, dryRun = json.RawMessage(action.Patch), action.PatchOptions.DryRun
	case kubetesting.DeleteActionImpl:
		line += "/" + action.Name
		body, dryRun = action.DeleteOptions.Preconditions, action.DeleteOptions.DryRun
	case kubetesting.GenericActionImpl:
		line, body = "> log", action.Value
	default:
		return ""
	}
	content, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	if len(dryRun) > 0 {
		line += " (dry run)"
	}
	return line + " " + string(content) + "\n"
}
