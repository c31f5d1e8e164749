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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	kubetesting "k8s.io/client-go/testing"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// fakeServer answers requests with the objects of the fake clientsets.
type fakeServer struct {
	getter
	*world
}

func (s fakeServer) ToRESTConfig() (*rest.Config, error) {
	return &rest.Config{Host: "http://fake", Transport: s}, nil
}

// RoundTrip implements http.RoundTripper.
func (s fakeServer) RoundTrip(request *http.Request) (*http.Response, error) {
	body, err := s.answer(request)
	var status apierrors.APIStatus
	code := http.StatusOK
	switch {
	case errors.As(err, &status):
		failure := status.Status()
		code = int(failure.Code)
		body, err = encode(&failure)
	case err != nil:
		return nil, err
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Request: request}, err
}

// encode returns an object as the body of an answer.
func encode(object runtime.Object) (io.ReadCloser, error) {
	body, err := runtime.Encode(serializer.NewCodecFactory(kinds).LegacyCodec(kinds.PrioritizedVersionsAllGroups()...), object)
	return io.NopCloser(bytes.NewReader(body)), err
}

// answer does what a request asks for, as the fake clientsets do.
func (s fakeServer) answer(request *http.Request) (io.ReadCloser, error) {
	fake := &s.cnat.Fake
	path := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	group := schema.GroupVersion{Version: path[1]}
	rest := path[2:]
	if path[0] == "apis" {
		group, rest = schema.GroupVersion{Group: path[1], Version: path[2]}, path[3:]
	}
	if group != v1alpha1.SchemeGroupVersion {
		fake = &s.kube.Fake
	}
	namespace := ""
	if len(rest) > 2 && rest[0] == "namespaces" {
		namespace, rest = rest[1], rest[2:]
	}
	resource := group.WithResource(rest[0])
	kind, err := kindOfResource(resource)
	if err != nil {
		return nil, err
	}
	empty, err := kinds.New(kind)
	if err != nil {
		return nil, err
	}
	var body []byte
	if request.Body != nil {
		if body, err = io.ReadAll(request.Body); err != nil {
			return nil, err
		}
	}
	query := request.URL.Query()
	options := metav1.ListOptions{LabelSelector: query.Get("labelSelector"), FieldSelector: query.Get("fieldSelector")}
	var action kubetesting.Action
	switch {
	case request.Method == http.MethodDelete:
		var options metav1.DeleteOptions
		if err := json.Unmarshal(body, &options); err != nil {
			return nil, err
		}
		action = kubetesting.NewDeleteActionWithOptions(resource, namespace, rest[1], options)
	case request.Method == http.MethodPatch:
		options := metav1.PatchOptions{DryRun: query["dryRun"]}
		action = kubetesting.NewPatchActionWithOptions(resource, namespace, rest[1], types.PatchType(request.Header.Get("Content-Type")), body, options)
	case request.Method == http.MethodPost:
		if err := runtime.DecodeInto(serializer.NewCodecFactory(kinds).UniversalDeserializer(), body, empty); err != nil {
			return nil, err
		}
		empty.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		action = kubetesting.NewCreateActionWithOptions(resource, namespace, empty, metav1.CreateOptions{DryRun: query["dryRun"]})
	case len(rest) > 2: // The only subresource is a log.
		options := &corev1.PodLogOptions{Container: query.Get("container"), Follow: query.Has("follow"), Previous: query.Has("previous")}
		return s.kube.CoreV1().Pods(namespace).GetLogs(rest[1], options).Stream(request.Context())
	case len(rest) > 1:
		action = kubetesting.NewGetAction(resource, namespace, rest[1])
	default:
		if query.Has("watch") {
			watcher, err := fake.InvokesWatch(kubetesting.NewWatchActionWithOptions(resource, namespace, options))
			if err != nil {
				return nil, err
			}
			return watched(watcher, options), nil
		}
		action = kubetesting.NewListActionWithOptions(resource, kind, namespace, options)
		if empty, err = kinds.New(group.WithKind(kind.Kind + "List")); err != nil {
			return nil, err
		}
	}
	object, err := fake.Invokes(action, empty)
	if object == nil {
		object = &metav1.Status{Status: metav1.StatusSuccess}
	}
	if err == nil && meta.IsListType(object) {
		err = selected(object, options)
	}
	if err != nil {
		return nil, err
	}
	return encode(object)
}

// kindOfResource returns the kind of a resource in a request.
func kindOfResource(resource schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	if resource.Resource == "events" {
		return corev1.SchemeGroupVersion.WithKind("Event"), nil
	}
	return mapper.KindFor(resource)
}

// closing is a body that does something when it is closed.
type closing struct {
	io.Reader
	then func()
}

func (c closing) Close() error {
	c.then()
	return nil
}

// watched returns what a watcher reports on the objects that the options select.
func watched(watcher watch.Interface, options metav1.ListOptions) io.ReadCloser {
	reader, writer := io.Pipe()
	go func() {
		for event := range watcher.ResultChan() {
			if isSelected, err := selects(options, event.Object); err == nil && !isSelected {
				continue
			}
			object, err := encode(event.Object)
			if err != nil {
				writer.CloseWithError(err)
				return
			}
			raw, _ := io.ReadAll(object)
			if json.NewEncoder(writer).Encode(metav1.WatchEvent{Type: string(event.Type), Object: runtime.RawExtension{Raw: raw}}) != nil {
				return
			}
		}
		_ = writer.Close()
	}()
	return closing{reader, watcher.Stop}
}

// selects reports whether options select an object.
func selects(options metav1.ListOptions, object runtime.Object) (bool, error) {
	selector, err := labels.Parse(options.LabelSelector)
	if err != nil {
		return false, err
	}
	name, isOne := strings.CutPrefix(options.FieldSelector, "metadata.name=")
	of := object.(metav1.Object)
	return selector.Matches(labels.Set(of.GetLabels())) && (!isOne || of.GetName() == name), nil
}

// selected removes the objects from a list that the options do not select.
func selected(list runtime.Object, options metav1.ListOptions) error {
	var found []runtime.Object
	err := meta.EachListItem(list, func(item runtime.Object) error {
		isSelected, err := selects(options, item)
		if isSelected {
			found = append(found, item)
		}
		return err
	})
	return errors.Join(err, meta.SetList(list, found))
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
