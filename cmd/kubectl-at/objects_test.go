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
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	kubetesting "k8s.io/client-go/testing"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// fakeServer lets the clients of resource.Builder reach the objects of the fake clientsets.
type fakeServer struct {
	getter
	*world
}

func (s fakeServer) ToRESTConfig() (*rest.Config, error) {
	return &rest.Config{Host: "http://fake", Transport: s}, nil
}

// RoundTrip implements http.RoundTripper.
func (s fakeServer) RoundTrip(request *http.Request) (*http.Response, error) {
	object, err := s.answer(request)
	var status apierrors.APIStatus
	code := http.StatusOK
	switch {
	case errors.As(err, &status):
		failure := status.Status()
		object, code = &failure, int(failure.Code)
	case err != nil:
		return nil, err
	}
	body, err := runtime.Encode(serializer.NewCodecFactory(kinds).LegacyCodec(kinds.PrioritizedVersionsAllGroups()...), object)
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), Request: request}, err
}

// answer does what a request asks for, as the fake clientsets do.
func (s fakeServer) answer(request *http.Request) (runtime.Object, error) {
	fake := &s.cnat.Fake
	path := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	group := schema.GroupVersion{Version: path[1]}
	rest := path[2:]
	if path[0] == "apis" {
		group, rest = schema.GroupVersion{Group: path[1], Version: path[2]}, path[3:]
	}
	if group != v1alpha1.SchemeGroupVersion {
		fake = &s.kube.(*kubefake.Clientset).Fake
	}
	namespace := ""
	if len(rest) > 2 && rest[0] == "namespaces" {
		namespace, rest = rest[1], rest[2:]
	}
	kind, err := mapper.KindFor(group.WithResource(rest[0]))
	if err != nil {
		return nil, err
	}
	empty, err := kinds.New(kind)
	if err != nil {
		return nil, err
	}
	var action kubetesting.Action
	body := new(bytes.Buffer)
	if request.Body != nil {
		_, err = body.ReadFrom(request.Body)
	}
	switch {
	case err != nil:
		return nil, err
	case request.Method == http.MethodDelete:
		var options metav1.DeleteOptions
		if err := json.Unmarshal(body.Bytes(), &options); err != nil {
			return nil, err
		}
		action = kubetesting.NewDeleteActionWithOptions(group.WithResource(rest[0]), namespace, rest[1], options)
	case request.Method == http.MethodPatch:
		action = kubetesting.NewPatchAction(group.WithResource(rest[0]), namespace, rest[1], types.MergePatchType, body.Bytes())
	case len(rest) > 1:
		action = kubetesting.NewGetAction(group.WithResource(rest[0]), namespace, rest[1])
	default:
		action = kubetesting.NewListAction(group.WithResource(rest[0]), kind, namespace, metav1.ListOptions{})
		if empty, err = kinds.New(group.WithKind(kind.Kind + "List")); err != nil {
			return nil, err
		}
	}
	object, err := fake.Invokes(action, empty)
	if object == nil {
		object = &metav1.Status{Status: metav1.StatusSuccess}
	}
	if err != nil || !meta.IsListType(object) {
		return object, err
	}
	return object, selected(object, request.URL.Query().Get("labelSelector"))
}

// selected removes the objects from a list that a label selector does not select.
func selected(list runtime.Object, text string) error {
	selector, err := labels.Parse(text)
	if err != nil {
		return err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	var found []runtime.Object
	for _, item := range items {
		if selector.Matches(labels.Set(item.(metav1.Object).GetLabels())) {
			found = append(found, item)
		}
	}
	return meta.SetList(list, found)
}

func TestReference(t *testing.T) {
	for text, want := range map[string]string{
		"at/x": "At x", "ats/x": "At x", "At.cnat.programming-kubernetes.info/x": "At x", "ca/x": "CronAt x", "cronats/x": "CronAt x",
		"cronat.cnat.programming-kubernetes.info/x": "CronAt x", "deploy/x": "Deployment x", "Deployment/x": "Deployment x",
		"daemonsets.apps/x": "DaemonSet x", "sts/x": "StatefulSet x", "cj/x": "CronJob x", "cm/x": "ConfigMap x", "secrets/x": "Secret x", "jobs.batch/x": "Job x",
		"x": " ", "/x": " ", "at/": " ", "at/x/y": " ", "service/x": " ", "ats.apps/x": " ",
	} {
		kind, name := reference(text)
		if got := kind + " " + name; got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}
