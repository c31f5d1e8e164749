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

// Package fakeserver is an in-memory API server for tests that run several real clients
// in virtual time (testing/synctest). Unlike the fake clientsets of client-go, it counts
// versions, refuses stale writes, keeps objects with finalizers and Pods whose containers
// have to stop, stores times in whole seconds, forgets old versions, and can be made
// unavailable. It has no admission, no validation and no garbage collection, and does not
// page lists.
package fakeserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// kinds maps the resources that can be listed and watched to their kinds.
var kinds = map[schema.GroupResource]schema.GroupVersionKind{
	corev1.Resource("events"):     corev1.SchemeGroupVersion.WithKind("Event"),
	corev1.Resource("namespaces"): corev1.SchemeGroupVersion.WithKind("Namespace"),
	corev1.Resource("nodes"):      corev1.SchemeGroupVersion.WithKind("Node"),
	corev1.Resource("pods"):       corev1.SchemeGroupVersion.WithKind("Pod"),
	appsResource("daemonsets"):    appsv1.SchemeGroupVersion.WithKind("DaemonSet"),
	appsResource("deployments"):   appsv1.SchemeGroupVersion.WithKind("Deployment"),
	appsResource("statefulsets"):  appsv1.SchemeGroupVersion.WithKind("StatefulSet"),
	v1alpha1.Resource("ats"):      v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.AtKind),
	v1alpha1.Resource("cronats"):  v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.CronAtKind),
	v1alpha1.Resource("freezes"):  v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.FreezeKind),
}

// phases are the phases of new objects.
var phases = map[schema.GroupResource]string{
	corev1.Resource("pods"):  string(corev1.PodPending),
	v1alpha1.Resource("ats"): string(v1alpha1.PhasePending),
}

func appsResource(name string) schema.GroupResource {
	return appsv1.SchemeGroupVersion.WithResource(name).GroupResource()
}

// Server is the API server. It is an http.RoundTripper that answers each request.
type Server struct {
	clock clock.PassiveClock
	// Observe is called with each change, if it is set before the first request. It must not
	// change the object.
	Observe func(eventType watch.EventType, resource schema.GroupResource, object *unstructured.Unstructured)

	lock    sync.Mutex
	changed *sync.Cond
	away    bool
	outages int
	objects map[target]*unstructured.Unstructured
	log     []change // since the version forgotten
	// forgotten is the latest version from which no watch can start.
	forgotten int
}

// target is the resource or object of a request.
type target struct {
	groupResource           schema.GroupResource
	namespace, name, status string
}

// change is a change that a watch reports.
type change struct {
	eventType watch.EventType
	target    target
	object    *unstructured.Unstructured
	old       *unstructured.Unstructured // nil if it was added
}

// New returns a server without objects.
func New(wallClock clock.PassiveClock) *Server {
	// As those of etcd, versions begin at 1: a watch from 0 would begin at any version.
	s := &Server{clock: wallClock, objects: map[target]*unstructured.Unstructured{}, forgotten: 1}
	s.changed = sync.NewCond(&s.lock)
	return s
}

// Config returns the configuration of a client whose requests go through the given
// transport, such as the server itself.
func Config(transport http.RoundTripper) *rest.Config {
	return &rest.Config{
		Host:          "http://fakeserver",
		Transport:     transport,
		QPS:           -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"},
	}
}

// SetAway makes the server unavailable, or available again. While it is unavailable, it
// refuses connections. Open connections break.
func (s *Server) SetAway(away bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.away = away
	if away {
		s.outages++
	}
	s.changed.Broadcast()
}

// Compact forgets all old versions, as etcd does: a watch that wants to begin with one of them
// has to read all objects again.
func (s *Server) Compact() {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.forgotten, s.log = s.version(), nil
}

func (s *Server) version() int { return s.forgotten + len(s.log) }

// RoundTrip implements http.RoundTripper.
func (s *Server) RoundTrip(request *http.Request) (*http.Response, error) {
	return s.roundTrip(request, false)
}

// Restore returns a transport whose requests write the status together with the rest of an object,
// like a restore of a backup of etcd.
func (s *Server) Restore() http.RoundTripper { return restoring{s} }

type restoring struct{ *Server }

// RoundTrip implements http.RoundTripper.
func (r restoring) RoundTrip(request *http.Request) (*http.Response, error) {
	return r.roundTrip(request, true)
}

func (s *Server) roundTrip(request *http.Request, restores bool) (*http.Response, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.away {
		return nil, fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
	}
	if found := discover(request.URL.Path); found != nil {
		return answer(request, http.StatusOK, found)
	}
	r := requestOf(request)
	r.restores = restores
	if request.URL.Query().Get("watch") != "" {
		return newResponse(request, http.StatusOK, s.watch(request.Context(), r)), nil
	}
	if request.Body != nil {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, err
		}
		r.body = body
	}
	switch object, err := s.serve(r); {
	case err != nil:
		return Refuse(request, err)
	case request.Method == http.MethodPost:
		return answer(request, http.StatusCreated, object)
	default:
		return answer(request, http.StatusOK, object)
	}
}

// Refuse answers a request with an error of the API server. Any other one breaks the connection.
func Refuse(request *http.Request, err error) (*http.Response, error) {
	var refused apierrors.APIStatus
	if !errors.As(err, &refused) {
		return nil, err
	}
	status := refused.Status()
	status.Kind, status.APIVersion = "Status", "v1"
	return answer(request, int(status.Code), status)
}

// AnswerAsProxy answers a request with a code, as a proxy that does not reach the API
// server does.
func AnswerAsProxy(request *http.Request, code int) *http.Response {
	response := newResponse(request, code, io.NopCloser(strings.NewReader(fmt.Sprint("default backend - ", code))))
	response.Header.Set("Content-Type", "text/plain; charset=utf-8")
	return response
}

func answer(request *http.Request, code int, object any) (*http.Response, error) {
	content, err := json.Marshal(object)
	return newResponse(request, code, io.NopCloser(bytes.NewReader(content))), err
}

func newResponse(request *http.Request, code int, body io.ReadCloser) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Request: request, Body: body}
}

// discover returns the groups or the resources of the API server, if the path is theirs.
func discover(path string) any {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case parts[0] != "apis" || len(parts) > 3:
		return nil
	case len(parts) < 3:
		groups := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for resource := range kinds {
			groups.Groups = append(groups.Groups, metav1.APIGroup{Name: resource.Group})
		}
		return groups
	}
	version := schema.GroupVersion{Group: parts[1], Version: parts[2]}
	resources := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version.String()}
	for resource, kind := range kinds {
		if kind.GroupVersion() == version {
			resources.APIResources = append(resources.APIResources, metav1.APIResource{Name: resource.Resource, Kind: kind.Kind})
		}
	}
	return resources
}

// request is a parsed request.
type request struct {
	target
	method      string
	contentType string
	body        []byte
	query       url.Values
	selector    labels.Selector
	// metadataOnly is true if the client wants objects without spec and status.
	metadataOnly bool
	// restores is true if it writes the status, too.
	restores bool
}

func requestOf(from *http.Request) *request {
	r := &request{
		target: targetOf(from.URL.Path), method: from.Method, query: from.URL.Query(), contentType: from.Header.Get("Content-Type"),
		metadataOnly: strings.Contains(from.Header.Get("Accept"), "as=PartialObjectMetadata"),
	}
	var err error
	if r.selector, err = labels.Parse(r.query.Get("labelSelector")); err != nil {
		r.selector = labels.Nothing()
	}
	return r
}

// targetOf parses the path of a request.
func targetOf(path string) target {
	var t target
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] == "apis" {
		t.groupResource.Group = parts[1]
		parts = parts[1:]
	}
	parts = parts[2:]
	if parts[0] == "namespaces" && len(parts) > 2 {
		t.namespace = parts[1]
		parts = parts[2:]
	}
	for i, part := range []*string{&t.groupResource.Resource, &t.name, &t.status} {
		if i < len(parts) {
			*part = parts[i]
		}
	}
	return t
}

// shown returns what a client gets of an object.
func (r *request) shown(object *unstructured.Unstructured) map[string]any {
	if !r.metadataOnly {
		return object.Object
	}
	return map[string]any{
		"kind": "PartialObjectMetadata", "apiVersion": metav1.SchemeGroupVersion.String(),
		"metadata": object.Object["metadata"],
	}
}

// serve answers a request other than a watch.
func (s *Server) serve(r *request) (any, error) {
	key := r.target
	key.status = ""
	switch {
	case r.method == http.MethodGet && r.name == "":
		return s.answerList(r), nil
	case r.method == http.MethodPost:
		object, err := decode(r.contentType, r.body)
		if err != nil {
			return nil, err
		}
		key.name = object.GetName()
		if s.objects[key] != nil {
			return nil, apierrors.NewAlreadyExists(r.groupResource, key.name)
		}
		object.SetNamespace(key.namespace)
		object.SetUID(types.UID(fmt.Sprintf("uid-%d", s.version()+1)))
		object.SetCreationTimestamp(metav1.Time{Time: s.clock.Now()})
		object.SetGeneration(1)
		if !r.restores && r.groupResource != corev1.Resource("nodes") { // A kubelet creates its node with a status.
			delete(object.Object, "status")
		}
		if phase, ok := phases[r.groupResource]; ok {
			if _, found, _ := unstructured.NestedString(object.Object, "status", "phase"); !found {
				_ = unstructured.SetNestedField(object.Object, phase, "status", "phase")
			}
		}
		return s.store(r, watch.Added, key, object), nil
	}
	old := s.objects[key]
	if old == nil {
		return nil, apierrors.NewNotFound(r.groupResource, r.name)
	}
	switch r.method {
	case http.MethodGet:
		return r.shown(old), nil
	case http.MethodPut:
		object, err := decode(r.contentType, r.body)
		if err != nil {
			return nil, err
		}
		return s.update(r, key, old, object)
	case http.MethodPatch:
		return s.patch(r, key, old)
	case http.MethodDelete:
		return s.remove(r, key, old)
	default:
		return nil, fmt.Errorf("the fake server does not support %s", r.method)
	}
}

// answerList returns the list of objects that a request selects.
func (s *Server) answerList(r *request) map[string]any {
	kind := kinds[r.groupResource]
	if r.metadataOnly {
		kind = metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata")
	}
	items := []map[string]any{}
	for _, object := range s.list(r) {
		items = append(items, r.shown(object))
	}
	return map[string]any{
		"kind": kind.Kind + "List", "apiVersion": kind.GroupVersion().String(),
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version())},
		"items":    items,
	}
}

// decode reads an object in JSON or protobuf.
func decode(contentType string, body []byte) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	if contentType != runtime.ContentTypeProtobuf {
		return object, object.UnmarshalJSON(body)
	}
	typed, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, err
	}
	object.Object, err = runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	return object, err
}

func (s *Server) update(r *request, key target, old, object *unstructured.Unstructured) (any, error) {
	switch version := object.GetResourceVersion(); {
	case version == "" && r.groupResource.Group == cnat.GroupName:
		return nil, apierrors.NewInvalid(old.GroupVersionKind().GroupKind(), key.name,
			field.ErrorList{field.Invalid(field.NewPath("metadata", "resourceVersion"), version, "must be specified for an update")})
	case version != "" && version != old.GetResourceVersion():
		return nil, apierrors.NewConflict(r.groupResource, r.name, fmt.Errorf("it was modified: %s, not %s", old.GetResourceVersion(), version))
	}
	if uid := object.GetUID(); uid != "" && uid != old.GetUID() {
		return nil, apierrors.NewInvalid(old.GroupVersionKind().GroupKind(), key.name,
			field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), uid, "field is immutable")})
	}
	if r.status != "" {
		updated := old.DeepCopy()
		updated.Object["status"] = object.Object["status"]
		return s.store(r, watch.Modified, key, updated), nil
	}
	if status := old.Object["status"]; !r.restores {
		if delete(object.Object, "status"); status != nil {
			object.Object["status"] = status
		}
	}
	object.SetUID(old.GetUID())
	object.SetCreationTimestamp(old.GetCreationTimestamp())
	object.SetDeletionTimestamp(old.GetDeletionTimestamp())
	object.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
	object.SetGeneration(old.GetGeneration())
	// Those of a Deployment are copied to its ReplicaSets.
	copied := old.GetKind() == "Deployment" && !maps.Equal(object.GetAnnotations(), old.GetAnnotations())
	if copied || !equality.Semantic.DeepEqual(object.Object["spec"], old.Object["spec"]) {
		object.SetGeneration(old.GetGeneration() + 1)
	}
	return s.store(r, watch.Modified, key, object), nil
}

func (s *Server) patch(r *request, key target, old *unstructured.Unstructured) (any, error) {
	before, err := json.Marshal(old.Object)
	if err != nil {
		return nil, err
	}
	var after []byte
	if types.PatchType(r.contentType) == types.StrategicMergePatchType {
		after, err = strategicpatch.StrategicMergePatch(before, r.body, corev1.Pod{}) // Nobody applies one to anything else.
	} else {
		after, err = jsonpatch.MergePatch(before, r.body)
	}
	if err != nil {
		return nil, err
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(after); err != nil {
		return nil, err
	}
	return s.update(r, key, old, object)
}

func (s *Server) remove(r *request, key target, old *unstructured.Unstructured) (any, error) {
	var options metav1.DeleteOptions
	if len(r.body) > 0 {
		// Its protobuf has no kind.
		if r.contentType == runtime.ContentTypeProtobuf {
			if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(r.body, nil, &options); err != nil {
				return nil, err
			}
		} else if err := json.Unmarshal(r.body, &options); err != nil {
			return nil, err
		}
	}
	if preconditions := options.Preconditions; preconditions != nil {
		if preconditions.UID != nil && *preconditions.UID != old.GetUID() ||
			preconditions.ResourceVersion != nil && *preconditions.ResourceVersion != old.GetResourceVersion() {
			return nil, apierrors.NewConflict(key.groupResource, key.name, errors.New("a precondition does not hold"))
		}
	}
	if len(options.DryRun) > 0 { // A deletion says it in its body.
		r.query.Set("dryRun", metav1.DryRunAll)
	}
	object := old.DeepCopy()
	grace := gracePeriod(old, options.GracePeriodSeconds)
	switch current := object.GetDeletionGracePeriodSeconds(); {
	case object.GetDeletionTimestamp() == nil:
		object.SetDeletionTimestamp(&metav1.Time{Time: s.clock.Now().Add(time.Duration(grace) * time.Second)})
		object.SetDeletionGracePeriodSeconds(&grace)
		object.SetGeneration(object.GetGeneration() + 1)
		if policy := options.PropagationPolicy; policy != nil && *policy == metav1.DeletePropagationForeground {
			object.SetFinalizers(append(object.GetFinalizers(), metav1.FinalizerDeleteDependents))
		}
	case current != nil && grace < *current:
		object.SetDeletionGracePeriodSeconds(&grace)
	}
	return s.store(r, watch.Modified, key, object), nil
}

// gracePeriod returns how many seconds an object may take to be deleted. That is 0 unless it
// is a Pod on a node whose containers have to stop.
func gracePeriod(object *unstructured.Unstructured, given *int64) int64 {
	node, _, _ := unstructured.NestedString(object.Object, "spec", "nodeName")
	phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
	switch {
	case node == "" || object.GetKind() != "Pod" || phase == string(corev1.PodSucceeded) || phase == string(corev1.PodFailed):
		return 0
	case given != nil:
		return *given
	}
	if seconds, found, _ := unstructured.NestedInt64(object.Object, "spec", "terminationGracePeriodSeconds"); found {
		return seconds
	}
	return corev1.DefaultTerminationGracePeriodSeconds
}

// store stores an object, or removes it if it is deleted and nothing keeps it. It reports the
// change to the watches. A dry-run stores nothing.
func (s *Server) store(r *request, eventType watch.EventType, key target, object *unstructured.Unstructured) map[string]any {
	old := s.objects[key]
	if old != nil {
		object.SetResourceVersion(old.GetResourceVersion())
		if equality.Semantic.DeepEqual(old.Object, object.Object) {
			return old.Object
		}
	}
	if r.query.Has("dryRun") {
		return object.Object
	}
	version, reported := strconv.Itoa(s.version()+1), object
	if object.GetDeletionTimestamp() != nil && len(object.GetFinalizers()) == 0 && ptr.Deref(object.GetDeletionGracePeriodSeconds(), 0) == 0 {
		eventType = watch.Deleted
		delete(s.objects, key)
		// Watches get what was stored before, with the version of the deletion.
		reported = old.DeepCopy()
	} else {
		s.objects[key] = object
	}
	reported.SetResourceVersion(version)
	s.log = append(s.log, change{eventType, key, reported, old})
	if s.Observe != nil {
		s.Observe(eventType, key.groupResource, reported)
	}
	s.changed.Broadcast()
	return object.Object
}

// isIn reports whether an object belongs to the resource and, if one is given, to the
// namespace.
func (t target) isIn(resource target) bool {
	return t.groupResource == resource.groupResource && (resource.namespace == "" || resource.namespace == t.namespace)
}

// list returns the objects that a list or a watch selects.
func (s *Server) list(r *request) []*unstructured.Unstructured {
	var items []*unstructured.Unstructured
	for key, object := range s.objects {
		if key.isIn(r.target) && r.selects(object) {
			items = append(items, object)
		}
	}
	slices.SortFunc(items, func(a, b *unstructured.Unstructured) int {
		return strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
	})
	return items
}

func (r *request) selects(object *unstructured.Unstructured) bool {
	return object != nil && r.selector.Matches(labels.Set(object.GetLabels()))
}
