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
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
)

// event is what matters of an event in an audit log (audit.k8s.io/v1).
type event struct {
	Stage      string `json:"stage"`
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	ObjectRef  struct {
		APIGroup    string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	RequestObject            json.RawMessage  `json:"requestObject"`
	ResponseObject           json.RawMessage  `json:"responseObject"`
	RequestReceivedTimestamp metav1.MicroTime `json:"requestReceivedTimestamp"`
	StageTimestamp           metav1.MicroTime `json:"stageTimestamp"`
}

// Log is an audit log in one or more files. It must have the answers to all writes of Ats, CronAts
// and Pods. If it has those of Deployments, restarts are checked, too.
type Log struct {
	// First and Last are the times of its first and its last event.
	First, Last time.Time
	// Unusable is the number of writes of Ats, CronAts and Pods without their answers.
	Unusable int
	// Deployments is the number of writes of Deployments. UnusableDeployments is the number of
	// those without their answers, which are not among them.
	Deployments, UnusableDeployments int

	writes  []Write
	pods    int                 // the writes of all Pods
	ourPods sets.Set[types.UID] // the Pods of Ats
}

// Read reads a file. Its last line may be incomplete: it may be written at this time.
func (l *Log) Read(name string, file io.Reader) error {
	lines := bufio.NewReader(file)
	for number, isLast := 1, false; !isLast; number++ {
		line, err := lines.ReadBytes('\n')
		if isLast = errors.Is(err, io.EOF); err != nil && !isLast {
			return fmt.Errorf("%s: %w", name, err)
		}
		if len(bytes.TrimSpace(line)) > 0 {
			var e event
			err := json.Unmarshal(line, &e)
			switch {
			case err != nil && isLast && isIncomplete(line):
			case err != nil:
				return fmt.Errorf("%s: line %d is not an audit event in JSON: %w", name, number, err)
			default:
				if err := l.add(&e); err != nil {
					return fmt.Errorf("%s: line %d: %w", name, number, err)
				}
			}
		}
	}
	return nil
}

// isIncomplete reports whether something is the beginning of a JSON value.
func isIncomplete(line []byte) bool {
	var value json.RawMessage
	return errors.Is(json.NewDecoder(bytes.NewReader(line)).Decode(&value), io.ErrUnexpectedEOF)
}

func (l *Log) add(e *event) error {
	if t := e.StageTimestamp.Time; !t.IsZero() {
		if l.First.IsZero() || t.Before(l.First) {
			l.First = t
		}
		if t.After(l.Last) {
			l.Last = t
		}
	}
	found, isWrite, err := e.writes()
	if err != nil {
		return err
	}
	switch resource := e.ObjectRef.Resource; {
	case !isWrite:
	case resource == "deployments":
		l.Deployments += len(found)
		// Their status has no restarts.
		if len(found) == 0 && e.ObjectRef.Subresource == "" {
			l.UnusableDeployments++
			found = e.unclear(&appsv1.Deployment{})
		}
	case len(found) == 0:
		l.Unusable++
	case resource == "pods":
		l.pods += len(found)
	}
	for _, w := range found {
		if l.isNeeded(w) {
			l.writes = append(l.writes, w.reduced())
		}
	}
	return nil
}

// isNeeded is false for the Pods of others. Most Pods of a cluster are.
func (l *Log) isNeeded(w Write) bool {
	pod, isPod := w.Object.(*corev1.Pod)
	if !isPod || w.uid == "" && (!w.unclear || !w.Created) || l.ourPods.Has(w.uid) {
		return true // A deletion without a UID is small.
	}
	meta := &pod.ObjectMeta
	if w.metadata != nil {
		meta = w.metadata
	}
	if ownerUID(meta, v1alpha1.AtKind) == "" && meta.Labels[v1alpha1.LabelAtUID] == "" && meta.Labels[v1alpha1.LabelRehearsalOf] == "" {
		return false
	}
	if l.ourPods == nil {
		l.ourPods = sets.Set[types.UID]{}
	}
	l.ourPods.Insert(w.uid) // Somebody may remove its owner and its label.
	return true
}

// reduced returns a write without what the checks do not need.
func (w Write) reduced() Write {
	w.Object.SetManagedFields(nil)
	if w.metadata != nil {
		w.metadata.ManagedFields = nil
	}
	switch object := w.Object.(type) {
	case *corev1.Pod:
		object.Spec = corev1.PodSpec{TerminationGracePeriodSeconds: object.Spec.TerminationGracePeriodSeconds}
	case *appsv1.Deployment:
		small := &appsv1.Deployment{Status: object.Status}
		small.Name, small.Namespace, small.UID = object.Name, object.Namespace, object.UID
		small.ResourceVersion, small.Generation = object.ResourceVersion, object.Generation
		small.Spec.Replicas = object.Spec.Replicas
		if restarted, ok := object.Spec.Template.Annotations[rollout.AnnotationRestartedAt]; ok {
			small.Spec.Template.Annotations = map[string]string{rollout.AnnotationRestartedAt: restarted}
		}
		w.Object = small
	}
	return w
}

// Writes returns the writes in the order in which they were stored, or says why they are not enough.
func (l *Log) Writes() ([]Write, error) {
	if l.Unusable > 0 {
		return nil, fmt.Errorf("the log lacks the answers to %d of the writes of Ats, CronAts and Pods: set the level of ats, cronats and pods to RequestResponse in the audit policy", l.Unusable)
	}
	writes := inOrder(l.writes)
	created := sets.Set[types.UID]{}
	known := false
	for _, w := range writes {
		object, isAt := w.Object.(*v1alpha1.At)
		_, isDeployment := w.Object.(*appsv1.Deployment)
		known = known || !isDeployment && !w.unclear
		if isAt && w.Created {
			created.Insert(object.UID)
		}
		if isAt && object.Status.Pod != nil && created.Has(object.UID) && l.pods == 0 {
			return nil, errors.New("the log has no writes of Pods: add pods with level RequestResponse to the audit policy")
		}
	}
	if !known {
		return nil, errors.New("the log has no write of an At, a CronAt or a Pod of an At")
	}
	return writes, nil
}

// newObject returns an empty object of a resource, or nil if the checks do not need it.
func newObject(resource schema.GroupResource) metav1.Object {
	switch resource {
	case v1alpha1.Resource("ats"):
		return &v1alpha1.At{}
	case v1alpha1.Resource("cronats"):
		return &v1alpha1.CronAt{}
	case corev1.Resource("pods"):
		return &corev1.Pod{}
	case appsv1.Resource("deployments"):
		return &appsv1.Deployment{}
	default:
		return nil
	}
}

// writes returns the writes of an event. Without its answer, there are none although isWrite is true.
func (e *event) writes() (writes []Write, isWrite bool, err error) {
	resource := schema.GroupResource{Group: e.ObjectRef.APIGroup, Resource: e.ObjectRef.Resource}
	object := newObject(resource)
	// The effects of other subresources, such as a binding or an eviction, are in later writes.
	isWrite = object != nil && slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, e.Verb) &&
		(e.ObjectRef.Subresource == "" || e.ObjectRef.Subresource == "status") &&
		e.Stage == "ResponseComplete" && !e.isDryRun()
	if isWrite && e.ResponseStatus.Code >= http.StatusInternalServerError {
		return e.unclear(object), false, nil
	}
	isWrite = isWrite && e.ResponseStatus.Code < http.StatusMultipleChoices
	if !isWrite || len(e.ResponseObject) == 0 {
		return nil, isWrite, nil
	}
	var answer struct {
		Kind    string            `json:"kind"`
		Items   []json.RawMessage `json:"items"`
		Details struct {
			UID types.UID `json:"uid"`
		} `json:"details"`
	}
	if err := json.Unmarshal(e.ResponseObject, &answer); err != nil {
		return nil, true, err
	}
	w := Write{
		Sent: e.RequestReceivedTimestamp.Time, Time: e.StageTimestamp.Time, Object: object,
		Created: e.Verb == "create" || e.ResponseStatus.Code == http.StatusCreated, // Server-side apply creates with a patch.
	}
	deletes := strings.HasPrefix(e.Verb, "delete")
	switch {
	case answer.Kind == "Status" && deletes:
		// The object is known from an earlier write.
		object.SetNamespace(e.ObjectRef.Namespace)
		object.SetName(e.ObjectRef.Name)
		w.Gone, w.uid = true, answer.Details.UID
		return []Write{w}, true, nil
	case strings.HasSuffix(answer.Kind, "List"):
		for _, item := range answer.Items {
			w.Object = newObject(resource)
			if err := json.Unmarshal(item, w.Object); err != nil {
				return nil, true, err
			}
			w.Gone, w.listed, w.uid = !mayStay(w.Object), true, w.Object.GetUID()
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
	w.Gone, w.uid = !mayStay(w.Object) && (deletes || w.Object.GetDeletionTimestamp() != nil), w.Object.GetUID()
	if partial, ok := w.Object.(*metav1.PartialObjectMetadata); ok {
		object.SetNamespace(partial.Namespace)
		object.SetName(partial.Name)
		object.SetResourceVersion(partial.ResourceVersion)
		w.Object, w.metadata = object, &partial.ObjectMeta
	}
	return []Write{w}, true, nil
}

// unclear returns a write that may have been stored, although its answer is an error: such an answer
// may come after the client has ended, or has given up.
func (e *event) unclear(object metav1.Object) []Write {
	if e.Verb == "create" {
		_ = json.Unmarshal(e.RequestObject, object) // It says which At a Pod belongs to.
	}
	object.SetNamespace(e.ObjectRef.Namespace)
	object.SetName(e.ObjectRef.Name)
	return []Write{{Sent: e.RequestReceivedTimestamp.Time, Time: e.StageTimestamp.Time, Object: object, Created: e.Verb == "create", unclear: true}}
}

// mayStay reports whether something keeps an object that is deleted.
func mayStay(object metav1.Object) bool {
	return len(object.GetFinalizers()) > 0 || ptr.Deref(object.GetDeletionGracePeriodSeconds(), 0) > 0
}

func (e *event) isDryRun() bool {
	uri, err := url.Parse(e.RequestURI)
	return err == nil && uri.Query().Has("dryRun")
}
