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

package uninstall

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// apiServer is an API server that has the controller's permissions. Like a real one, it
// authorizes a request before it reads the body, and it refuses everything as soon as one
// of the permissions is gone.
type apiServer struct {
	t       *testing.T
	lock    sync.Mutex
	objects map[string]*metav1.PartialObjectMetadata // by path
	gone    int
	// forbidden is the path of an object that the controller may not read.
	forbidden string
	refused   int
	// busy is how many changes are refused at first.
	busy int
}

func newAPIServer(t *testing.T, paths ...string) (*apiServer, *rest.Config) {
	t.Helper()
	s := &apiServer{t: t, objects: map[string]*metav1.PartialObjectMetadata{}}
	for _, path := range paths {
		name := path[strings.LastIndex(path, "/")+1:]
		s.objects[path] = &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
			ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1", UID: "uid"},
		}
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return s, &rest.Config{Host: server.URL}
}

// change changes all permissions.
func (s *apiServer) change(mutate func(*metav1.PartialObjectMetadata)) {
	s.lock.Lock()
	defer s.lock.Unlock()
	for _, path := range paths[1:] {
		mutate(s.objects[path])
	}
}

// authorize returns the object of a request.
func (s *apiServer) authorize(request *http.Request) (*metav1.PartialObjectMetadata, int) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.gone > 0 {
		s.refused++
		return nil, http.StatusForbidden
	}
	if request.Method == http.MethodPatch && s.busy > 0 {
		s.busy--
		return nil, http.StatusTooManyRequests
	}
	if request.URL.Path == s.forbidden {
		return nil, http.StatusForbidden
	}
	object := s.objects[request.URL.Path]
	if object == nil {
		return nil, http.StatusNotFound
	}
	return object.DeepCopy(), http.StatusOK
}

// ServeHTTP implements http.Handler.
func (s *apiServer) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if strings.HasSuffix(request.URL.Path, "/selfsubjectreviews") {
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(authenticationv1.SelfSubjectReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "SelfSubjectReview"},
			Status:   authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: "system:serviceaccount:cnat-system:cnat-controller"}},
		})
		return
	}
	object, code := s.authorize(request)
	if object == nil {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reasons[code],
			Details: &metav1.StatusDetails{Name: path.Base(request.URL.Path)},
		})
		return
	}
	if request.Method == http.MethodPatch {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return // The client has given up: nothing changes.
		}
		var patch metav1.PartialObjectMetadata
		if err := json.Unmarshal(body, &patch); err != nil {
			s.t.Errorf("PATCH %s: %v", request.URL.Path, err)
		}
		s.lock.Lock()
		object.Finalizers = patch.Finalizers
		s.objects[request.URL.Path] = object
		if object.DeletionTimestamp != nil && len(object.Finalizers) == 0 {
			delete(s.objects, request.URL.Path)
			s.gone++
		}
		s.lock.Unlock()
	}
	_ = json.NewEncoder(w).Encode(object)
}

var deletedAt = metav1.Date(2026, time.December, 24, 10, 12, 0, 0, time.UTC)

var reasons = map[int]metav1.StatusReason{http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusTooManyRequests: metav1.StatusReasonTooManyRequests}

var paths = []string{
	"/api/v1/namespaces/cnat-system",
	"/api/v1/namespaces/cnat-system/serviceaccounts/cnat-controller",
	"/apis/rbac.authorization.k8s.io/v1/namespaces/cnat-system/roles/cnat-controller",
	"/apis/rbac.authorization.k8s.io/v1/namespaces/cnat-system/rolebindings/cnat-controller",
	"/apis/rbac.authorization.k8s.io/v1/clusterroles/cnat-controller",
	"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/cnat-controller",
}

// TestFindSameNamespace refuses to work on the namespace of the controller.
func TestFindSameNamespace(t *testing.T) {
	_, config := newAPIServer(t)
	for namespace, refused := range map[string]bool{"cnat-system": true, "default": false, metav1.NamespaceAll: false} {
		if _, err := Find(t.Context(), config, "cnat-controller", namespace); (err != nil) != refused {
			t.Errorf("namespace %q: got %v, want an error: %v", namespace, err, refused)
		}
	}
}

// TestReleasePermissions removes the finalizer of objects that are all needed to remove it.
func TestReleasePermissions(t *testing.T) {
	for name, tc := range map[string]struct {
		missing   string
		forbidden string
		// deleted is whether the objects are being deleted.
		deleted bool
	}{
		"being deleted":                   {deleted: true},
		"being deleted, one gone already": {deleted: true, missing: paths[2]},
		"the namespace is being deleted":  {},
		"being deleted, one out of reach": {deleted: true, forbidden: paths[5]},
	} {
		t.Run(name, func(t *testing.T) {
			server, config := newAPIServer(t, paths...)
			permissions, err := Find(t.Context(), config, "cnat-controller", "")
			if err != nil {
				t.Fatal(err)
			}
			server.change(func(object *metav1.PartialObjectMetadata) {
				object.Finalizers = []string{v1alpha1.FinalizerReleasePods}
				if tc.deleted {
					object.DeletionTimestamp = &deletedAt
				}
			})
			delete(server.objects, tc.missing)
			server.forbidden = tc.forbidden
			if err := permissions.release(t.Context()); err != nil {
				t.Errorf("release: %v", err)
			}
			if server.refused > 0 {
				t.Errorf("%d requests were refused", server.refused)
			}
			for path, object := range server.objects {
				if path != paths[0] && path != tc.forbidden && (tc.deleted || len(object.Finalizers) > 0) {
					t.Errorf("%s is left with the finalizers %v", path, object.Finalizers)
				}
			}
		})
	}
}

// TestHold ends the work when the controller is asked to stop.
func TestHold(t *testing.T) {
	for name, tc := range map[string]struct {
		// deleted are the paths of what is being deleted by then.
		deleted []string
		// releaseErr is the error from releasing the Pods.
		releaseErr error
		busy       int
		want       bool
	}{
		"a restart":         {},
		"the namespace":     {deleted: paths[:1], want: true},
		"the permissions":   {deleted: paths[1:], want: true},
		"one of them":       {deleted: paths[5:], want: true},
		"some Pods stay":    {deleted: paths, releaseErr: context.DeadlineExceeded, want: true},
		"a busy API server": {deleted: paths, busy: 3, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			server, config := newAPIServer(t, paths...)
			permissions, err := Find(t.Context(), config, "cnat-controller", "")
			if err != nil {
				t.Fatal(err)
			}
			server.busy = tc.busy
			for path, object := range server.objects {
				object.Finalizers = []string{v1alpha1.FinalizerReleasePods}
				if slices.Contains(tc.deleted, path) {
					object.DeletionTimestamp = &deletedAt
				}
			}
			var steps []string
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			uninstalled := permissions.Hold(ctx, func(context.Context) { steps = append(steps, "work") }, func(ctx context.Context) error {
				steps = append(steps, "release")
				return errors.Join(ctx.Err(), tc.releaseErr)
			})
			want := []string{"work"}
			if tc.want {
				want = append(want, "release")
			}
			if uninstalled != tc.want || !slices.Equal(steps, want) {
				t.Errorf("uninstalled: %v, steps %v; want %v, %v", uninstalled, steps, tc.want, want)
			}
			for _, path := range paths[1:] {
				object := server.objects[path]
				if held := object != nil && len(object.Finalizers) > 0; held == tc.want {
					t.Errorf("%s is held: %v, want %v", path, held, !tc.want)
				}
			}
		})
	}
}
