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
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// verb is what a request does.
type verb string

const (
	get         verb = "get"
	list        verb = "list"
	create      verb = "create"
	try         verb = "try to create"
	remove      verb = "delete"
	patch       verb = "patch"
	writeStatus verb = "write the status of"
)

// request is a request of a controller.
type request struct {
	verb verb
	kind kind
	name string
	// uid and version are preconditions.
	uid     types.UID
	version int32
	body    string   // of a patch or a status, without the preconditions; of a deletion, the propagation policy
	object  *content // to create, or to try to
	owner   string   // of a list: the value of the label of the owner
}

// reason is why a request failed.
type reason int8

const (
	ok reason = iota
	notFound
	alreadyExists
	conflict
	otherUID
	lost
	forbidden
	proxyNotFound
	proxyConflict
)

// answer is what a controller gets for a request.
type answer struct {
	instant int8
	reason  reason
	// claims is true if the controller claims the next write of a status for itself.
	claims  bool
	objects []*object
}

// errLost is the error of a request that got no answer.
var errLost = errors.New("connection reset")

// err returns the error of a request, as client-go returns it.
func (a answer) err(r *request) error {
	resource := resources[r.kind]
	switch a.reason {
	case ok:
		return nil
	case notFound:
		return apierrors.NewNotFound(resource, r.name)
	case alreadyExists:
		return apierrors.NewAlreadyExists(resource, r.name)
	case conflict:
		return apierrors.NewConflict(resource, r.name, errors.New("the object has been modified"))
	case otherUID:
		return apierrors.NewInvalid(schema.GroupKind{Group: resource.Group, Kind: resource.Resource}, r.name, field.ErrorList{field.Invalid(field.NewPath("metadata.uid"), "", "")})
	case forbidden:
		return apierrors.NewForbidden(resource, r.name, errors.New("exceeded quota"))
	case proxyNotFound:
		return apierrors.NewGenericServerResponse(404, "get", resource, r.name, "", 0, true)
	case proxyConflict:
		method := http.MethodGet
		if r.verb == create {
			method = http.MethodPost // Then, client-go takes it for AlreadyExists.
		}
		return apierrors.NewGenericServerResponse(409, method, resource, r.name, "", 0, true)
	default:
		return errLost
	}
}

// createsPod reports whether the request is the creation of a Pod.
func (r *request) createsPod() bool { return r.verb == create && r.kind == pods }

// createsScheduled reports whether the request is the creation of an At by a CronAt.
func (r *request) createsScheduled() bool {
	return r.verb == create && r.kind == ats && plan.IsScheduled(r.object.meta.(*v1alpha1.At))
}

// starts reports whether the controller may claim a write after the request.
func (r *request) starts() bool { return r.createsPod() || r.createsScheduled() }

// restarts reports whether the request restarts a workload.
func (r *request) restarts() bool { return r.verb == patch && r.kind == deployments }

// do executes a request.
func (s *state) do(r *request) answer {
	failed := func(reason reason) answer { return answer{instant: s.now, reason: reason} }
	done := func(objects ...*object) answer { return answer{instant: s.now, objects: objects} }
	found := s.find(r.kind, r.name)
	switch {
	case r.verb == list:
		var objects []*object
		for _, o := range s.stored {
			if labels := o.meta.GetLabels(); o.kind == r.kind && (labels[v1alpha1.LabelAtUID] == r.owner || labels[v1alpha1.LabelCronAtUID] == r.owner) {
				objects = append(objects, o)
			}
		}
		return done(objects...)
	case r.verb == try:
		return done(r.object.with(0))
	case r.verb == create && found != nil:
		return failed(alreadyExists)
	case r.verb == create:
		return done(s.create(r.object))
	case found == nil:
		return failed(notFound)
	case r.verb == get:
		return done(found)
	case r.version != 0 && r.version != found.version:
		return failed(conflict)
	case r.uid != "" && r.uid != found.uid() && r.verb == remove:
		return failed(conflict)
	case r.uid != "" && r.uid != found.uid():
		return failed(otherUID)
	case r.verb == remove:
		s.checkChange(found, nil)
		var finalizers []string
		if r.body == string(metav1.DeletePropagationForeground) {
			finalizers = []string{metav1.FinalizerDeleteDependents}
		}
		s.delete(found, finalizers...)
		return done()
	default:
		after := found.change(string(r.verb)+r.body, func(meta metav1.Object) { apply(meta, r) })
		if after == found.content {
			return done(found)
		}
		if r.restarts() {
			s.recordRestart(found, after)
		}
		s.checkChange(found, after)
		s.put(after)
		if now := s.find(r.kind, r.name); now != nil {
			return done(now)
		}
		return done(after.with(found.version)) // It was the last finalizer.
	}
}

// create stores a new object.
func (s *state) create(c *content) *object {
	uid := s.newUID(c.meta)
	s.put(c.change(fmt.Sprint("create ", uid, s.clock().UnixMilli()), func(meta metav1.Object) {
		if c.kind != nodes {
			meta.SetNamespace(namespace)
		}
		meta.SetUID(uid)
		meta.SetCreationTimestamp(metav1.Time{Time: s.clock().Truncate(time.Second)})
		switch o := meta.(type) {
		case *v1alpha1.At:
			o.Generation, o.Status.Phase = 1, v1alpha1.PhasePending
		case *v1alpha1.CronAt:
			o.Generation = 1
		case *corev1.Pod:
			o.Status.Phase = corev1.PodPending
		case *appsv1.Deployment:
			o.Generation = 1
		}
	}))
	if c.kind == ats && s.x.own() == ats {
		s.holdUntilDue(uid, c.meta.(*v1alpha1.At), -1)
	}
	return s.find(c.kind, c.meta.GetName())
}

// apply changes an object by a patch, or by a status.
func apply(meta metav1.Object, r *request) {
	object := reflect.ValueOf(meta).Elem()
	if r.verb == writeStatus {
		status := object.FieldByName("Status")
		status.SetZero()
		utilruntime.Must(json.Unmarshal([]byte(r.body), status.Addr().Interface()))
		return
	}
	before, err := json.Marshal(meta)
	utilruntime.Must(err)
	var after []byte
	if r.kind == pods {
		after, err = strategicpatch.StrategicMergePatch(before, []byte(r.body), meta)
	} else {
		after, err = jsonpatch.MergePatch(before, []byte(r.body))
	}
	utilruntime.Must(err)
	spec := object.FieldByName("Spec").Interface()
	object.SetZero()
	utilruntime.Must(json.Unmarshal(after, meta))
	if r.kind != pods && !equality.Semantic.DeepEqual(spec, object.FieldByName("Spec").Interface()) {
		meta.SetGeneration(meta.GetGeneration() + 1)
	}
}

// find returns a stored object, or nil.
func (s *state) find(k kind, name string) *object {
	for _, o := range s.stored {
		if o.is(k, name) {
			return o
		}
	}
	return nil
}

// withUID returns the stored object that can own others and has a UID, or nil.
func (s *state) withUID(uid types.UID) *object {
	for _, o := range s.stored {
		if o.kind != pods && o.kind != nodes && o.uid() == uid {
			return o
		}
	}
	return nil
}

// put stores an object and reports it to the watches. An object that is being deleted is gone
// if it has no finalizer and no container that may still run.
func (s *state) put(c *content) {
	s.version++
	o := c.with(s.version)
	gone := o.meta.GetDeletionTimestamp() != nil && len(o.meta.GetFinalizers()) == 0 && ptr.Deref(o.meta.GetDeletionGracePeriodSeconds(), 0) == 0
	i, found := slices.BinarySearchFunc(s.stored, o, compareObjects)
	s.stored = slices.Clone(s.stored)
	switch {
	case !found:
		s.stored = slices.Insert(s.stored, i, o)
	case gone:
		s.stored = slices.Delete(s.stored, i, i+1)
	default:
		s.stored[i] = o
	}
	s.notify(o, gone)
}

// delete deletes an object, which also gets some finalizers.
func (s *state) delete(o *object, finalizers ...string) {
	if o.meta.GetDeletionTimestamp() != nil {
		return
	}
	seconds := int64(0)
	if o.kind == pods && o.pod().Status.Phase == corev1.PodRunning {
		seconds = corev1.DefaultTerminationGracePeriodSeconds
	}
	when := metav1.Time{Time: s.clock().Add(time.Duration(seconds) * time.Second).Truncate(time.Second)}
	s.put(o.change(fmt.Sprint("delete ", when.Unix(), finalizers), func(meta metav1.Object) {
		meta.SetDeletionTimestamp(&when)
		meta.SetDeletionGracePeriodSeconds(&seconds)
		meta.SetGeneration(meta.GetGeneration() + 1)
		meta.SetFinalizers(append(meta.GetFinalizers(), finalizers...))
	}))
}

// splitPatch removes the preconditions from a patch.
func splitPatch(body []byte) (rest string, uid types.UID, version int32) {
	var content map[string]any
	utilruntime.Must(json.Unmarshal(body, &content))
	if metadata, ok := content["metadata"].(map[string]any); ok {
		if text, ok := metadata["uid"].(string); ok {
			uid = types.UID(text)
		}
		if text, ok := metadata["resourceVersion"].(string); ok {
			version = parseVersion(text)
		}
		delete(metadata, "uid")
		delete(metadata, "resourceVersion")
	}
	text, err := json.Marshal(content)
	utilruntime.Must(err)
	return string(text), uid, version
}

func formatVersion(version int32) string { return strconv.Itoa(int(version)) }

func parseVersion(text string) int32 {
	version, err := strconv.ParseInt(text, 10, 32)
	utilruntime.Must(err)
	return int32(version)
}
