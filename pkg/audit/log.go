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
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// event is what matters of an event in an audit log (audit.k8s.io/v1).
type event struct {
	Stage      string `json:"stage"`
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	ObjectRef  struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
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
		found, isWrite, err := e.writes()
		switch {
		case err != nil:
			return nil, 0, fmt.Errorf("line %d: %w", number, err)
		case len(found) == 0 && isWrite:
			unusable++
		}
		writes = append(writes, found...)
	}
	if err := lines.Err(); err != nil {
		return nil, 0, err
	}
	slices.SortStableFunc(writes, func(a, b Write) int { return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(version(a), version(b))) })
	return inOrder(writes), unusable, nil
}

// newObject returns an empty object of a resource, or nil if the checks do not need it.
func newObject(resource string) metav1.Object {
	switch resource {
	case "ats":
		return &v1alpha1.At{}
	case "cronats":
		return &v1alpha1.CronAt{}
	case "pods":
		return &corev1.Pod{}
	case "deployments":
		return &appsv1.Deployment{}
	default:
		return nil
	}
}

// writes returns the writes of an event. Without its answer, there are none although isWrite is true.
func (e *event) writes() (writes []Write, isWrite bool, err error) {
	object := newObject(e.ObjectRef.Resource)
	// The effects of other subresources, such as a binding or an eviction, are in later writes.
	isWrite = object != nil && slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, e.Verb) &&
		(e.ObjectRef.Subresource == "" || e.ObjectRef.Subresource == "status") &&
		e.Stage == "ResponseComplete" && e.ResponseStatus.Code < http.StatusMultipleChoices && !e.isDryRun()
	if !isWrite || len(e.ResponseObject) == 0 {
		return nil, isWrite, nil
	}
	var answer struct {
		Kind  string            `json:"kind"`
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(e.ResponseObject, &answer); err != nil {
		return nil, true, err
	}
	w := Write{Sent: e.RequestReceivedTimestamp.Time, Time: e.StageTimestamp.Time, Created: e.Verb == "create", Object: object}
	deletes := strings.HasPrefix(e.Verb, "delete")
	switch {
	case answer.Kind == "Status" && deletes:
		// The object is known from an earlier write.
		object.SetNamespace(e.ObjectRef.Namespace)
		object.SetName(e.ObjectRef.Name)
		w.Gone = true
		return []Write{w}, true, nil
	case strings.HasSuffix(answer.Kind, "List"):
		for _, item := range answer.Items {
			w.Object = newObject(e.ObjectRef.Resource)
			if err := json.Unmarshal(item, w.Object); err != nil {
				return nil, true, err
			}
			w.Gone = !mayStay(w.Object)
			writes = append(writes, w)
		}
		return writes, len(writes) > 0, nil
	}
	if answer.Kind == "PartialObjectMetadata" {
		w.Object = &metav1.PartialObjectMetadata{}
	}
	if err := json.Unmarshal(e.ResponseObject, w.Object); err != nil {
		return nil, true, err
	}
	w.Gone = !mayStay(w.Object) && (deletes || w.Object.GetDeletionTimestamp() != nil)
	if partial, ok := w.Object.(*metav1.PartialObjectMetadata); ok {
		object.SetNamespace(partial.Namespace)
		object.SetName(partial.Name)
		w.Object, w.metadata = object, &partial.ObjectMeta
	}
	return []Write{w}, true, nil
}

// mayStay reports whether something keeps an object that is deleted.
func mayStay(object metav1.Object) bool {
	return len(object.GetFinalizers()) > 0 || ptr.Deref(object.GetDeletionGracePeriodSeconds(), 0) > 0
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

// inOrder leaves out writes that changed nothing, or that come after later ones of the object. If an
// answer does not show the object, or only its metadata, the rest is that of the write before.
func inOrder(writes []Write) []Write {
	latest := map[string]metav1.Object{}
	var ordered []Write
	for _, w := range writes {
		key := fmt.Sprintf("%T %s/%s", w.Object, w.Object.GetNamespace(), w.Object.GetName())
		before := latest[key]
		if w.Object.GetUID() == "" { // The answer does not show it.
			if before == nil || w.metadata != nil && w.metadata.UID != before.GetUID() {
				continue
			}
			w.Object = before.(runtime.Object).DeepCopyObject().(metav1.Object)
			if w.metadata != nil {
				w.Object.SetResourceVersion(w.metadata.ResourceVersion)
				w.Object.SetFinalizers(w.metadata.Finalizers)
				w.Object.SetLabels(w.metadata.Labels)
				w.Object.SetOwnerReferences(w.metadata.OwnerReferences)
				w.Object.SetDeletionTimestamp(w.metadata.DeletionTimestamp)
			}
		}
		if !w.Gone && before != nil && before.GetUID() == w.Object.GetUID() && version(w) <= version(Write{Object: before}) {
			continue
		}
		latest[key] = w.Object
		ordered = append(ordered, w)
	}
	return ordered
}
