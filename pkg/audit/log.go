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

package audit

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// event is what matters of an event in an audit log (audit.k8s.io/v1).
type event struct {
	Stage      string `json:"stage"`
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	ObjectRef  struct {
		Resource  string `json:"resource"`
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	ResponseObject           json.RawMessage  `json:"responseObject"`
	RequestReceivedTimestamp metav1.MicroTime `json:"requestReceivedTimestamp"`
	StageTimestamp           metav1.MicroTime `json:"stageTimestamp"`
}

// maxLine is the maximum size of a line of an audit log: objects have at most 1.5 MiB.
const maxLine = 16 << 20

// ReadLog reads the writes from an audit log, in the order in which they were stored. The log must
// have the answers to all writes of Ats, CronAts and Pods. If it has those of Deployments, restarts
// are checked, too. unusable is the number of writes without their answers.
func ReadLog(log io.Reader) (writes []Write, unusable int, err error) {
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, maxLine)
	for number := 1; lines.Scan(); number++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, 0, fmt.Errorf("line %d is not an audit event in JSON: %w", number, err)
		}
		w, isWrite, err := e.write()
		switch {
		case err != nil:
			return nil, 0, fmt.Errorf("line %d: %w", number, err)
		case w.Object != nil:
			writes = append(writes, w)
		case isWrite:
			unusable++
		}
	}
	if err := lines.Err(); err != nil {
		return nil, 0, err
	}
	slices.SortStableFunc(writes, func(a, b Write) int { return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(version(a), version(b))) })
	return inOrder(writes), unusable, nil
}

// write returns the write of an event, without an object if the event does not show it.
func (e *event) write() (w Write, isWrite bool, err error) {
	var object metav1.Object
	switch e.ObjectRef.Resource {
	case "ats":
		object = &v1alpha1.At{}
	case "cronats":
		object = &v1alpha1.CronAt{}
	case "pods":
		object = &corev1.Pod{}
	case "deployments":
		object = &appsv1.Deployment{}
	}
	isWrite = slices.Contains([]string{"create", "update", "patch", "delete"}, e.Verb)
	if object == nil || !isWrite || e.Stage != "ResponseComplete" || e.ResponseStatus.Code >= http.StatusMultipleChoices || e.isDryRun() {
		return w, false, nil
	}
	if len(e.ResponseObject) == 0 {
		return w, true, nil
	}
	var kind metav1.TypeMeta
	if err := json.Unmarshal(e.ResponseObject, &kind); err != nil {
		return w, true, err
	}
	w = Write{Sent: e.RequestReceivedTimestamp.Time, Time: e.StageTimestamp.Time, Created: e.Verb == "create"}
	if kind.Kind == "Status" {
		if e.Verb != "delete" {
			return w, false, nil // It is about a subresource, such as a binding.
		}
		// The object is known from an earlier write.
		object.SetNamespace(e.ObjectRef.Namespace)
		object.SetName(e.ObjectRef.Name)
		w.Object, w.Gone = object, true
		return w, true, nil
	}
	if err := json.Unmarshal(e.ResponseObject, object); err != nil {
		return w, true, err
	}
	mayStay := len(object.GetFinalizers()) > 0 || ptr.Deref(object.GetDeletionGracePeriodSeconds(), 0) > 0
	w.Object, w.Gone = object, !mayStay && (e.Verb == "delete" || object.GetDeletionTimestamp() != nil)
	return w, true, nil
}

func (e *event) isDryRun() bool {
	uri, err := url.Parse(e.RequestURI)
	return err == nil && uri.Query().Has("dryRun")
}

// version returns the resource version of a write, or 0 if it is unknown.
func version(w Write) uint64 {
	number, _ := strconv.ParseUint(w.Object.GetResourceVersion(), 10, 64)
	return number
}

// inOrder leaves out writes that changed nothing, or that come after later ones of the object, and
// adds the objects to deletions whose answers do not show them.
func inOrder(writes []Write) []Write {
	latest := map[string]metav1.Object{}
	var ordered []Write
	for _, w := range writes {
		key := fmt.Sprintf("%T %s/%s", w.Object, w.Object.GetNamespace(), w.Object.GetName())
		before := latest[key]
		switch {
		case w.Object.GetUID() == "" && before == nil:
			continue
		case w.Object.GetUID() == "":
			w.Object = before
		case !w.Gone && before != nil && before.GetUID() == w.Object.GetUID() && version(w) <= version(Write{Object: before}):
			continue
		}
		latest[key] = w.Object
		ordered = append(ordered, w)
	}
	return ordered
}
