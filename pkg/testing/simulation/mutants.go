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

package simulation

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
	"programming-kubernetes.info/cnat-controller/pkg/testing/audit"
)

// Mutant breaks a process: what it sends, what it gets, or its clock. A simulation has to notice
// that.
type Mutant struct {
	request func(c *call)
	receive func(w *World, resource string, content []byte) []byte // answers to reads, and reports of watches
	delay   time.Duration                                          // of the reports of watches
	clock   func(clock.WithTicker) clock.WithTicker
	// Want is the promise that it breaks.
	Want audit.Rule
	// Preflights is true if it breaks these, or rehearsals.
	Preflights bool
}

// Mutants are those that are tried, by what they break.
var Mutants = map[string]Mutant{
	"no finalizer": {Want: audit.NotLost, request: func(c *call) {
		c.editPod(func(pod *unstructured.Unstructured) { pod.SetFinalizers(nil) })
	}},
	"the name is no lock": {Want: audit.Once, request: func(c *call) {
		c.editPod(func(pod *unstructured.Unstructured) {
			pod.SetName(fmt.Sprint(pod.GetName(), "-", c.process.world.number))
		})
	}},
	"no live read": {Want: audit.Honored, delay: 5 * time.Second, request: func(c *call) {
		// The API server in memory has no cache: it reads what the process knows.
		c.stale = c.is(http.MethodGet, "ats") && path.Base(c.request.URL.Path) != "ats"
	}},
	"no precondition": {Want: audit.True, request: func(c *call) {
		if c.is(http.MethodPut, "ats") { // The API server refuses an update without a version.
			c.request.Method, c.request.Header = http.MethodPatch, http.Header{"Content-Type": {string(types.MergePatchType)}}
		}
		if c.is(http.MethodPatch, "ats") {
			c.body = must(jsonpatch.MergePatch(c.body, []byte(`{"metadata":{"resourceVersion":null}}`)))
		}
	}},
	"half a second early":             {Want: audit.NotEarly, clock: func(c clock.WithTicker) clock.WithTicker { return ahead{c} }},
	"a suspension is ignored":         {Want: audit.Honored, receive: replace("ats", `"suspend":true`, `"suspend":false`)},
	"a starting deadline is ignored":  {Want: audit.Honored, receive: replace("ats", `"startingDeadlineSeconds":`, `"ignored":`)},
	"a running Pod counts as ended":   {Want: audit.True, receive: replace("pods", `"phase":"Running"`, `"phase":"Succeeded"`)},
	"events of Pods are lost":         {Want: audit.NotLost, receive: lose("pods")},
	"events of Ats are lost":          {Want: audit.Reported, receive: lose("ats")},
	"a missed time is not counted":    {Want: audit.NotLost, request: countNone},
	"a status is not written":         {Want: audit.NotLost, request: discardStatuses},
	"a Pod is not released":           {Want: audit.NotLost, request: func(c *call) { c.refused = c.is(http.MethodPatch, "pods") }},
	"an At is not released":           {Want: audit.NotLost, request: discardAll(http.MethodPatch, "ats", "")},
	"an At is not deleted":            {Want: audit.NotLost, request: discardAll(http.MethodDelete, "ats", "")},
	"a Pod is not created":            {Want: audit.True, request: discard(http.MethodPost, "pods", "")},
	"a scheduled At is not created":   {Want: audit.True, request: discardScheduled},
	"a refused At is not tried again": {Want: audit.NotLost, request: giveUp(isRefused)},
	"a restart is not sent":           {Want: audit.True, request: discardAll(http.MethodPatch, "deployments", "")},
	"a restart is taken for granted":  {Want: audit.True, receive: pretendRestart},
	"a failure counts as Complete":    {Want: audit.True, request: failComplete},
	"a rehearsal is not deleted":      {Want: audit.NotLost, request: discardAll(http.MethodDelete, "pods", ""), Preflights: true},
	"a selector of nodes is ignored":  {Want: audit.Limits, receive: replace("ats", `"selector":{"matchLabels":{"pool":"x"}}`, `"selector":{}`)},
	"a clock step is not noticed":     {Want: audit.NotLost, clock: func(c clock.WithTicker) clock.WithTicker { return deaf{c} }},

	"a Freeze is not seen":                {Want: audit.Honored, receive: hideFreezes(math.MaxInt64)},
	"a Freeze is seen an hour late":       {Want: audit.Honored, receive: hideFreezes(time.Hour)},
	"a Freeze does not end":               {Want: audit.True, receive: replace("freezes", `"until":"2`, `"until":"3`)},
	"a Freeze of another namespace holds": {Want: audit.True, receive: replace("freezes", `"namespace":"b"`, `"namespace":"`+system+`"`)},
	"the selector of a Freeze is ignored": {Want: audit.True, receive: replace("freezes", `"selector":`, `"ignored":`)},
	"labels of namespaces are ignored":    {Want: audit.Honored, receive: replace("namespaces", `"`+labelFloor+`":`, `"ignored":`)},
	"a skipped time starts":               {Want: audit.Honored, receive: replace("cronats", `"metadata":{`, `"metadata":{"labels":{"`+v1alpha1.LabelIgnoreFreezes+`":"true"},`)},
	"what has waited does not start":      {Want: audit.NotLost, request: giveUp(hasWaited)},
	"an exemption is ignored":             {Want: audit.True, receive: replace("cronats", v1alpha1.LabelIgnoreFreezes, "ignored")},
}

// is reports whether a request is for a resource, or an object of it.
func (c *call) is(method, resource string) bool {
	return c.request.Method == method && slices.Contains(strings.Split(c.request.URL.Path, "/"), resource)
}

// editPod changes a Pod that is created.
func (c *call) editPod(edit func(*unstructured.Unstructured)) {
	if _, ok := c.creates("pods"); !ok {
		return
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(c.body, nil, nil)
	if err != nil {
		panic(err)
	}
	pod := &unstructured.Unstructured{Object: must(runtime.DefaultUnstructuredConverter.ToUnstructured(object))}
	edit(pod)
	c.body = must(json.Marshal(pod))
	c.request.Header.Set("Content-Type", runtime.ContentTypeJSON)
}

// discard makes some requests of a kind succeed without an effect.
func discard(method, resource, subresource string) func(c *call) {
	all := discardAll(method, resource, subresource)
	return func(c *call) {
		if c.process.world.chance(30) {
			all(c)
		}
	}
}

// discardAll makes all requests of a kind succeed without an effect.
func discardAll(method, resource, subresource string) func(c *call) {
	return func(c *call) {
		isStatus := path.Base(c.request.URL.Path) == "status"
		if c.is(method, resource) && isStatus == (subresource == "status") {
			url := *c.request.URL
			query := url.Query()
			query.Set("dryRun", "All")
			url.RawQuery, c.request.URL = query.Encode(), &url
		}
	}
}

// discardStatuses discards what is written to the statuses of Ats in the first ten seconds of each
// minute, while all is calm. The answer shows that nothing was written: a single one would be written again at once.
func discardStatuses(c *call) {
	if c.process.world.quiet && c.sent.Second() < 10 {
		discardAll(http.MethodPut, "ats", "status")(c)
	}
}

// discardScheduled makes some creations of the Ats of CronAts succeed without an effect.
func discardScheduled(c *call) {
	if bytes.Contains(c.body, []byte(v1alpha1.LabelCronAtUID)) {
		discard(http.MethodPost, "ats", "")(c)
	}
}

// giveUp lets no Pod be created that was once to be created while something was the case.
func giveUp(was func(w *World, pod *unstructured.Unstructured) bool) func(c *call) {
	return func(c *call) {
		c.editPod(func(pod *unstructured.Unstructured) {
			w := c.process.world
			name := c.request.URL.Path + "/" + pod.GetName()
			if was(w, pod) {
				w.gaveUp.Insert(name)
			}
			c.refused = w.gaveUp.Has(name)
		})
	}
}

// isRefused reports whether a quota has no room for a Pod.
func isRefused(w *World, pod *unstructured.Unstructured) bool { return w.quota[pod.GetNamespace()] }

// hasWaited reports whether the At of a Pod waits for the end of a Freeze.
func hasWaited(w *World, pod *unstructured.Unstructured) bool {
	at, ok := w.live[metav1.GetControllerOf(pod).UID].(*v1alpha1.At)
	return ok && at.Status.Reason == v1alpha1.ReasonFrozen
}

// hideFreezes hides the Freezes that were created less than some time ago.
func hideFreezes(age time.Duration) func(*World, string, []byte) []byte {
	return func(w *World, of string, content []byte) []byte {
		var received struct {
			Object *v1alpha1.Freeze `json:"object"` // in the report of a watch
			v1alpha1.FreezeList
		}
		if of != "freezes" || json.Unmarshal(content, &received) != nil {
			return content
		}
		isHidden := func(freeze v1alpha1.Freeze) bool { return w.clock.Since(freeze.CreationTimestamp.Time) < age }
		switch {
		case received.Object == nil:
			received.Items = slices.DeleteFunc(received.Items, isHidden)
			return must(json.Marshal(received.FreezeList))
		case isHidden(*received.Object):
			return nil
		default:
			return content
		}
	}
}

// failComplete makes failures Complete, in the conditions of Ats.
func failComplete(c *call) {
	if c.is(http.MethodPut, "ats") {
		c.body = bytes.ReplaceAll(c.body, []byte(`"type":"Failed"`), []byte(`"type":"Complete"`))
	}
}

var missedCount = regexp.MustCompile(`"count":\d+`)

// countNone lets CronAts count no missed times.
func countNone(c *call) {
	if c.is(http.MethodPut, "cronats") {
		c.body = missedCount.ReplaceAll(c.body, []byte(`"count":0`))
	}
}

var restartedAt = regexp.MustCompile(`"` + regexp.QuoteMeta(rollout.AnnotationRestartedAt) + `":"[^"]*"`)

// pretendRestart reports restarts that have not happened.
func pretendRestart(w *World, of string, content []byte) []byte {
	if of != "deployments" {
		return content
	}
	return restartedAt.ReplaceAll(content, []byte(fmt.Sprintf("%q:%q", rollout.AnnotationRestartedAt, w.clock.Now().UTC().Format(time.RFC3339))))
}

// replace replaces a text in what a process gets.
func replace(resource, old, with string) func(*World, string, []byte) []byte {
	return func(_ *World, of string, content []byte) []byte {
		if of != resource {
			return content
		}
		return bytes.ReplaceAll(content, []byte(old), []byte(with))
	}
}

// lose removes some reports from watches.
func lose(resource string) func(*World, string, []byte) []byte {
	return func(w *World, of string, content []byte) []byte {
		if of != resource || !bytes.HasPrefix(content, []byte(`{"object"`)) || bytes.Contains(content, []byte(`"BOOKMARK"`)) || !w.chance(3) {
			return content
		}
		return nil
	}
}

// ahead is a clock that is half a second ahead.
type ahead struct{ clock.WithTicker }

// Now implements clock.PassiveClock.
func (a ahead) Now() time.Time { return a.WithTicker.Now().Add(500 * time.Millisecond) }

// deaf is a clock that hardly ever wakes what looks at the wall clock each minute.
type deaf struct{ clock.WithTicker }

// After implements clock.Clock.
func (d deaf) After(delay time.Duration) <-chan time.Time {
	if delay == time.Minute {
		delay = 24 * time.Hour
	}
	return d.WithTicker.After(delay)
}

// received returns what a process gets instead of an answer or of a report.
func (w *World) received(c *call, content []byte) []byte {
	if w.Mutant == nil || w.Mutant.receive == nil {
		return content
	}
	for _, resource := range []string{"ats", "cronats", "freezes", "pods", "deployments", "namespaces"} {
		if c.is(http.MethodGet, resource) {
			return w.Mutant.receive(w, resource, content)
		}
	}
	return content
}

// receivedBody is received for the body of an answer.
func (w *World) receivedBody(c *call, body io.ReadCloser) io.ReadCloser {
	return io.NopCloser(bytes.NewReader(w.received(c, must(io.ReadAll(body)))))
}
