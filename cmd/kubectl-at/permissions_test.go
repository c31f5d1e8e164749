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
	"os"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	kubetesting "k8s.io/client-go/testing"
)

var (
	// A command, and what it needs: verbs and resources.
	permissionsRow = regexp.MustCompile("(?m)^\\| `kubectl at ([^`]+)` \\| (.*) \\|$")
	permissionsOf  = regexp.MustCompile("([a-z, ]+) `([a-z/]+)`")
)

// TestCommandPermissions runs each command of the table of docs/tasks/ci.md as a user who has just what the table
// says, and as users who lack one verb of that. That to create Pods is needed, too, is the policy's.
func TestCommandPermissions(t *testing.T) {
	page, err := os.ReadFile("../../docs/tasks/ci.md")
	if err != nil {
		t.Fatal(err)
	}
	const (
		succeeded = "{status: {phase: Succeeded, containerStatuses: [{name: a, state: {terminated: {}}}]}}\n"
		finished  = "{metadata: {uid: null}, status: {phase: DONE, reason: Completed, pod: {name: new-pod, uid: \"\"}, conditions: [{type: Complete, status: \"True\"}]}}\n"
		ended     = "later At/new " + finished + "later Pod/new-pod " + succeeded
		objects   = "has At/at\nhas CronAt/yearly\nhas CronJob/yearly {spec: {schedule: 0 0 1 1 *, jobTemplate: {spec: {template: {spec: {containers: [{name: a, image: a}]}}}}}}\n" +
			"has Pod/new-pod {metadata: {ownerReferences: [{apiVersion: cnat.programming-kubernetes.info/v1alpha1, controller: true, kind: At, name: new, uid: \"\"}]}, spec: {containers: [{name: a}]}}\n"
	)
	commands := map[string]string{
		"TIME":                     "$ now + 1 hour -- true",
		"TIME --wait":              ended + "$ now --name=new --wait -- true",
		"TIME --logs":              ended + "$ now --name=new --logs -- true",
		"TIME --from at/NAME":      "$ now + 1 hour --from=at/at",
		"TIME --from cronjob/NAME": "$ now + 1 hour --from=cronjob/yearly",
		"every SCHEDULE":           "$ every @yearly -- true",
		"agenda":                   "$ agenda",
		"list":                     "$ list",
		"show NAME":                "$ show at",
		"wait NAME":                "later At/at {status: {phase: DONE, conditions: [{type: Complete, status: \"True\"}]}}\n$ wait at",
		"logs NAME":                "has At/new " + finished + "$ logs new",
		"logs NAME -f":             "has At/new {metadata: {uid: null}, status: {phase: RUNNING, pod: {name: new-pod, uid: \"\"}}}\n" + ended + "$ logs new -f",
		"move NAME TIME":           "$ move at now + 2 hours",
		"suspend NAME":             "$ suspend at",
		"resume NAME":              "$ resume at",
		"run-now NAME":             "$ run-now at",
		"run-now cronat/NAME":      "$ run-now cronat/yearly",
		"rm NAME":                  "$ rm at",
	}
	rows := permissionsRow.FindAllStringSubmatch(string(page), -1)
	if len(rows) != len(commands) {
		t.Errorf("the page has %d commands, want %d", len(rows), len(commands))
	}
	for _, row := range rows {
		all := sets.New[string]()
		for _, match := range permissionsOf.FindAllStringSubmatch(row[2], -1) {
			for verb := range strings.SplitSeq(match[1], ",") {
				all.Insert(strings.TrimSpace(verb) + " " + match[2])
			}
		}
		try := func(granted sets.Set[string], want string) {
			t.Run(row[1]+" "+want, inBubble(func(t *testing.T) {
				t.Helper()
				x := newTranscript(t)
				x.grant(granted)
				if said := x.play(t, objects, commands[row[1]]); strings.Contains(said, "cannot") != (want != "") || !strings.Contains(said, want) {
					t.Errorf("want %q, got:\n%s", want, said)
				}
			}))
		}
		try(all, "")
		for lacks := range all.Clone().Delete("create pods") {
			try(all.Clone().Delete(lacks), "cannot "+lacks)
		}
	}
}

// grant lets the API server refuse all requests other than the granted ones: verbs with resources.
func (x *transcript) grant(granted sets.Set[string]) {
	refusal := func(action kubetesting.Action) error {
		resource := strings.TrimSuffix(action.GetResource().Resource+"/"+action.GetSubresource(), "/")
		if what := action.GetVerb() + " " + resource; !granted.Has(what) {
			return failure(resource, "Forbidden cannot "+what)
		}
		return nil
	}
	for _, fake := range []*kubetesting.Fake{&x.cnat.Fake, &x.kube.Fake} {
		fake.PrependReactor("*", "*", func(action kubetesting.Action) (bool, runtime.Object, error) {
			err := refusal(action)
			return err != nil, nil, err
		})
		fake.PrependWatchReactor("*", func(action kubetesting.Action) (bool, watch.Interface, error) {
			err := refusal(action)
			return err != nil, nil, err
		})
	}
}
