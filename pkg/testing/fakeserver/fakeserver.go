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
// versions, refuses stale writes, keeps objects with finalizers, stores times in whole
// seconds, and can be made unavailable. It does no other validation or defaulting, and
// ignores selectors.
package fakeserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// kinds maps the resources that can be listed and watched to their kinds.
var kinds = map[schema.GroupResource]schema.GroupVersionKind{
	corev1.Resource("events"):    corev1.SchemeGroupVersion.WithKind("Event"),
	corev1.Resource("nodes"):     corev1.SchemeGroupVersion.WithKind("Node"),
	corev1.Resource("pods"):      corev1.SchemeGroupVersion.WithKind("Pod"),
	v1alpha1.Resource("ats"):     v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.AtKind),
	v1alpha1.Resource("cronats"): v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.CronAtKind),
}

// Server is the API server. It is an http.RoundTripper that answers each request.
type Server struct {
	clock clock.PassiveClock

	lock    sync.Mutex
	changed *sync.Cond
	away    bool
	outages int
	objects map[target]*unstructured.Unstructured
	log     []change // its length is the current version
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
}

// New returns a server without objects.
func New(wallClock clock.PassiveClock) *Server {
	s := &Server{clock: wallClock, objects: map[target]*unstructured.Unstructured{}}
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

// RoundTrip implements http.RoundTripper.
func (s *Server) RoundTrip(request *http.Request) (*http.Response, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.away {
		return nil, fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
	}
	t := targetOf(request.URL.Path)
	if request.URL.Query().Get("watch") != "" {
		return newResponse(request, http.StatusOK, s.watch(request, t)), nil
	}
	var body []byte
	if request.Body != nil {
		var err error
		if body, err = io.ReadAll(request.Body); err != nil {
			return nil, err
		}
	}
	object, err := s.serve(request.Method, t, body, request.URL.Query().Has("dryRun"))
	var refused apierrors.APIStatus
	switch {
	case errors.As(err, &refused):
		return Refuse(request, refused)
	case err != nil:
		return nil, err
	case request.Method == http.MethodPost:
		return answer(request, http.StatusCreated, object)
	default:
		return answer(request, http.StatusOK, object)
	}
}

// Refuse answers a request with an error.
func Refuse(request *http.Request, err apierrors.APIStatus) (*http.Response, error) {
	status := err.Status()
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

// serve answers a request other than a watch. dryRun applies to creations.
func (s *Server) serve(method string, t target, body []byte, dryRun bool) (any, error) {
	key := t
	key.status = ""
	switch {
	case method == http.MethodGet && t.name == "":
		kind := kinds[t.groupResource]
		return map[string]any{
			"kind": kind.Kind + "List", "apiVersion": kind.GroupVersion().String(),
			"metadata": map[string]any{"resourceVersion": strconv.Itoa(len(s.log))},
			"items":    s.list(t),
		}, nil
	case method == http.MethodPost:
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(body); err != nil {
			return nil, err
		}
		key.name = object.GetName()
		if s.objects[key] != nil {
			return nil, apierrors.NewAlreadyExists(t.groupResource, key.name)
		}
		if dryRun {
			return object, nil
		}
		object.SetUID(types.UID(fmt.Sprintf("uid-%d", len(s.log)+1)))
		object.SetCreationTimestamp(metav1.Time{Time: s.clock.Now()})
		object.SetGeneration(1)
		return s.store(watch.Added, key, object), nil
	}
	old := s.objects[key]
	if old == nil {
		return nil, apierrors.NewNotFound(t.groupResource, t.name)
	}
	switch method {
	case http.MethodGet:
		return old, nil
	case http.MethodPut:
		return s.update(t, key, old, body)
	case http.MethodPatch:
		return s.patch(t, key, old, body)
	case http.MethodDelete:
		return s.remove(key, old, body)
	default:
		return nil, fmt.Errorf("the fake server does not support %s", method)
	}
}

func (s *Server) update(t, key target, old *unstructured.Unstructured, body []byte) (any, error) {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(body); err != nil {
		return nil, err
	}
	if version := object.GetResourceVersion(); version != "" && version != old.GetResourceVersion() {
		return nil, apierrors.NewConflict(t.groupResource, t.name, fmt.Errorf("it was modified: %s, not %s", old.GetResourceVersion(), version))
	}
	if t.status != "" {
		updated := old.DeepCopy()
		updated.Object["status"] = object.Object["status"]
		return s.store(watch.Modified, key, updated), nil
	}
	object.SetGeneration(old.GetGeneration() + 1)
	return s.store(watch.Modified, key, object), nil
}

// patch applies a strategic merge patch to a Pod, or a merge patch to any other object.
func (s *Server) patch(t, key target, old *unstructured.Unstructured, body []byte) (any, error) {
	before, err := json.Marshal(old)
	if err != nil {
		return nil, err
	}
	if t.groupResource.Resource != "pods" {
		after, err := jsonpatch.MergePatch(before, body)
		if err != nil {
			return nil, err
		}
		return s.update(t, key, old, after)
	}
	after, err := strategicpatch.StrategicMergePatch(before, body, corev1.Pod{})
	if err != nil {
		return nil, err
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(after); err != nil {
		return nil, err
	}
	if object.GetUID() != old.GetUID() {
		return nil, apierrors.NewInvalid(old.GroupVersionKind().GroupKind(), key.name,
			field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), object.GetUID(), "field is immutable")})
	}
	return s.store(watch.Modified, key, object), nil
}

func (s *Server) remove(key target, old *unstructured.Unstructured, body []byte) (any, error) {
	var options metav1.DeleteOptions
	if len(body) > 0 {
		if err := json.Unmarshal(body, &options); err != nil {
			return nil, err
		}
	}
	if preconditions := options.Preconditions; preconditions != nil {
		if preconditions.UID != nil && *preconditions.UID != old.GetUID() ||
			preconditions.ResourceVersion != nil && *preconditions.ResourceVersion != old.GetResourceVersion() {
			return nil, apierrors.NewConflict(key.groupResource, key.name, errors.New("a precondition does not hold"))
		}
	}
	object := old.DeepCopy()
	if object.GetDeletionTimestamp() == nil {
		object.SetDeletionTimestamp(&metav1.Time{Time: s.clock.Now()})
		object.SetDeletionGracePeriodSeconds(options.GracePeriodSeconds)
	}
	return s.store(watch.Modified, key, object), nil
}

// store stores an object, or removes it if it is deleted and has no finalizers. It
// reports the change to the watches.
func (s *Server) store(eventType watch.EventType, key target, object *unstructured.Unstructured) *unstructured.Unstructured {
	object.SetResourceVersion(strconv.Itoa(len(s.log) + 1))
	s.objects[key] = object
	if object.GetDeletionTimestamp() != nil && len(object.GetFinalizers()) == 0 {
		eventType = watch.Deleted
		delete(s.objects, key)
	}
	s.log = append(s.log, change{eventType, key, object})
	s.changed.Broadcast()
	return object
}

// isIn reports whether an object belongs to the resource and, if one is given, to the
// namespace.
func (t target) isIn(resource target) bool {
	return t.groupResource == resource.groupResource && (resource.namespace == "" || resource.namespace == t.namespace)
}

// list returns the objects of a resource.
func (s *Server) list(t target) []*unstructured.Unstructured {
	items := []*unstructured.Unstructured{}
	for key, object := range s.objects {
		if key.isIn(t) {
			items = append(items, object)
		}
	}
	slices.SortFunc(items, func(a, b *unstructured.Unstructured) int {
		return strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
	})
	return items
}

// watch returns the response body of a watch.
func (s *Server) watch(request *http.Request, t target) io.ReadCloser {
	stream := &stream{server: s, target: t, outages: s.outages, next: len(s.log)}
	if version, err := strconv.Atoi(request.URL.Query().Get("resourceVersion")); err == nil && version > 0 {
		stream.next = version
	}
	if request.URL.Query().Get("sendInitialEvents") == "true" {
		stream.next = len(s.log)
		for _, object := range s.list(t) {
			stream.write(watch.Added, object)
		}
		end := &unstructured.Unstructured{}
		end.SetGroupVersionKind(kinds[t.groupResource])
		end.SetResourceVersion(strconv.Itoa(len(s.log)))
		end.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		stream.write(watch.Bookmark, end)
	}
	context.AfterFunc(request.Context(), func() { _ = stream.Close() })
	return stream
}

// stream is the response body of a watch.
type stream struct {
	server  *Server
	target  target
	outages int // of the server, when the stream began
	next    int // index in the server's log
	buffer  bytes.Buffer
	closed  bool
}

func (s *stream) write(eventType watch.EventType, object *unstructured.Unstructured) {
	content, err := json.Marshal(map[string]any{"type": eventType, "object": object})
	if err != nil {
		panic(err)
	}
	s.buffer.Write(append(content, '\n'))
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	s.server.lock.Lock()
	defer s.server.lock.Unlock()
	for {
		switch {
		case s.closed:
			return 0, io.ErrClosedPipe
		case s.outages != s.server.outages:
			return 0, fmt.Errorf("read: %w", syscall.ECONNRESET)
		case s.buffer.Len() > 0:
			return s.buffer.Read(p)
		case s.next < len(s.server.log):
			c := s.server.log[s.next]
			s.next++
			if c.target.isIn(s.target) {
				s.write(c.eventType, c.object)
			}
		default:
			s.server.changed.Wait()
		}
	}
}

// Close implements io.Closer.
func (s *stream) Close() error {
	s.server.lock.Lock()
	defer s.server.lock.Unlock()
	s.closed = true
	s.server.changed.Broadcast()
	return nil
}
