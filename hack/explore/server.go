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
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	typedcnatv1alpha1 "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/typed/cnat/v1alpha1"
)

// The requests of a controller, as the API server gets them.
type (
	readAt    struct{ name string }
	readPod   struct{ name string }
	createPod struct{ pod *corev1.Pod }
	deletePod struct {
		name          string
		preconditions metav1.Preconditions
	}
	patchPod struct {
		name string
		body []byte
	}
	patchAt struct {
		name, subresource string
		body              []byte
	}
	deleteAt struct {
		name          string
		preconditions metav1.Preconditions
	}
)

// errLost is the error of a request that got no answer.
var errLost = errors.New("connection reset")

// do executes a request in the state. It returns the object, and the error that the API
// server answers.
func (s *state) do(request any) (any, error) {
	switch r := request.(type) {
	case readAt:
		if s.at == nil || s.at.Name != r.name {
			return nil, apierrors.NewNotFound(v1alpha1.Resource("ats"), r.name)
		}
		return s.at, nil
	case readPod:
		if pod := s.pod(r.name); pod != nil {
			return pod, nil
		}
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), r.name)
	case createPod:
		if s.pod(r.pod.Name) != nil {
			return nil, apierrors.NewAlreadyExists(corev1.Resource("pods"), r.pod.Name)
		}
		pod := r.pod.DeepCopy()
		pod.UID = s.newUID(pod.Name)
		pod.CreationTimestamp = metav1.Time{Time: s.clock().Truncate(time.Second)}
		pod.Status.Phase = corev1.PodPending
		s.made = append(slices.Clone(s.made), startOf(pod))
		s.setPod(pod)
		return s.pod(pod.Name), nil
	case deletePod:
		pod := s.pod(r.name)
		if pod == nil {
			return nil, apierrors.NewNotFound(corev1.Resource("pods"), r.name)
		}
		if err := check(corev1.Resource("pods"), pod, r.preconditions); err != nil {
			return nil, err
		}
		s.terminate(pod)
		return nil, nil
	case patchPod:
		pod := s.pod(r.name)
		if pod == nil {
			return nil, apierrors.NewNotFound(corev1.Resource("pods"), r.name)
		}
		return s.patchPod(pod, r.body)
	case patchAt:
		if s.at == nil || s.at.Name != r.name {
			return nil, apierrors.NewNotFound(v1alpha1.Resource("ats"), r.name)
		}
		return s.patchAt(r)
	case deleteAt:
		if s.at == nil || s.at.Name != r.name {
			return nil, apierrors.NewNotFound(v1alpha1.Resource("ats"), r.name)
		}
		if err := check(v1alpha1.Resource("ats"), s.at, r.preconditions); err != nil {
			return nil, err
		}
		s.setAt(nil)
		return nil, nil
	}
	panic(fmt.Sprintf("unknown request %T", request))
}

func check(resource schema.GroupResource, object metav1.Object, preconditions metav1.Preconditions) error {
	if preconditions.UID != nil && *preconditions.UID != object.GetUID() || preconditions.ResourceVersion != nil && *preconditions.ResourceVersion != object.GetResourceVersion() {
		return apierrors.NewConflict(resource, object.GetName(), errors.New("the precondition failed"))
	}
	return nil
}

// patchPod removes finalizers: the controller patches Pods for nothing else.
func (s *state) patchPod(pod *corev1.Pod, body []byte) (any, error) {
	var patch struct {
		Metadata struct {
			UID        types.UID `json:"uid"`
			Finalizers []string  `json:"$deleteFromPrimitiveList/finalizers"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(body, &patch); err != nil {
		panic(err)
	}
	if patch.Metadata.UID != "" && patch.Metadata.UID != pod.UID {
		err := apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), pod.Name, nil)
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeFieldValueInvalid, Field: "metadata.uid"}}
		return nil, err
	}
	pod = pod.DeepCopy()
	pod.Finalizers = slices.DeleteFunc(pod.Finalizers, func(name string) bool { return slices.Contains(patch.Metadata.Finalizers, name) })
	s.setPod(pod)
	return pod, nil
}

func (s *state) patchAt(r patchAt) (any, error) {
	var patch struct {
		Metadata struct {
			UID             types.UID `json:"uid"`
			ResourceVersion string    `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(r.body, &patch); err != nil {
		panic(err)
	}
	if patch.Metadata.ResourceVersion != "" && patch.Metadata.ResourceVersion != s.at.ResourceVersion {
		return nil, apierrors.NewConflict(v1alpha1.Resource("ats"), r.name, errors.New("the object has been modified"))
	}
	before, err := json.Marshal(s.at)
	if err != nil {
		panic(err)
	}
	after, err := jsonpatch.MergePatch(before, r.body)
	if err != nil {
		panic(err)
	}
	at := &v1alpha1.At{}
	if err := json.Unmarshal(after, at); err != nil {
		panic(err)
	}
	if r.subresource == "status" {
		status := at.Status
		at = s.at.DeepCopy()
		at.Status = status
	}
	s.setAt(at)
	return s.at, nil
}

// newUID returns a UID for the next object of that name.
func (s *state) newUID(name string) types.UID {
	number := 0
	s.uids = slices.Clone(s.uids)
	i := slices.IndexFunc(s.uids, func(u counted) bool { return u.name == name })
	if i < 0 {
		s.uids = append(s.uids, counted{name, 0})
		i = len(s.uids) - 1
	}
	s.uids[i].number++
	number = s.uids[i].number
	return types.UID(name + "#" + strconv.Itoa(number))
}

func (s *state) newVersion() string {
	s.version++
	return strconv.Itoa(s.version)
}

// setAt stores the At, or removes it if at is nil, and tells the watches.
func (s *state) setAt(at *v1alpha1.At) {
	if at == nil {
		s.notify(event{at: s.at, deleted: true})
		s.at = nil
		return
	}
	at.ResourceVersion = s.newVersion()
	s.at = internAt(at)
	s.notify(event{at: s.at})
}

func (s *state) pod(name string) *corev1.Pod {
	for _, pod := range s.pods {
		if pod.Name == name {
			return pod
		}
	}
	return nil
}

// setPod stores a Pod, or removes it if it is being deleted and has neither a finalizer nor a
// running container.
func (s *state) setPod(pod *corev1.Pod) {
	s.pods = slices.DeleteFunc(slices.Clone(s.pods), func(other *corev1.Pod) bool { return other.Name == pod.Name })
	pod.ResourceVersion = s.newVersion()
	pod = internPod(pod)
	if pod.DeletionTimestamp != nil && len(pod.Finalizers) == 0 && pod.Status.Phase != corev1.PodRunning {
		s.notify(event{pod: pod, deleted: true})
		return
	}
	s.pods = append(s.pods, pod)
	slices.SortFunc(s.pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	s.notify(event{pod: pod})
}

// terminate begins to delete a Pod.
func (s *state) terminate(pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil {
		return
	}
	pod = pod.DeepCopy()
	pod.DeletionTimestamp = &metav1.Time{Time: s.clock().Add(30 * time.Second).Truncate(time.Second)}
	seconds := int64(30)
	pod.DeletionGracePeriodSeconds = &seconds
	s.setPod(pod)
}

// client is what a controller sends its requests to. A fault happens to its first request.
type client struct {
	kubernetes.Interface
	state *state
	fault fault
	at    *v1alpha1.At // what the API server returned for a write
	// observe is called with each request just before it is executed.
	observe func(request any)
}

// send sends a request.
func (c *client) send(request any) (any, error) {
	fault := c.fault
	c.fault = none
	if c.state.x.send != nil {
		request = c.state.x.send(request)
	}
	c.observe(request)
	switch fault {
	case requestLost:
		return nil, errLost
	case requestDelayed:
		c.state.flying = append(slices.Clone(c.state.flying), flying{request, c.state.now})
		return nil, errLost
	case refused:
		return nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("exceeded quota"))
	case answerLost:
		_, _ = c.state.do(request)
		return nil, errLost
	}
	object, err := c.state.do(request)
	if at, ok := object.(*v1alpha1.At); ok && isWrite(request) {
		c.at = at
	}
	return object, err
}

func isWrite(request any) bool {
	switch request.(type) {
	case readAt, readPod:
		return false
	}
	return true
}

func sendFor[T any](c *client, request any) (*T, error) {
	object, err := c.send(request)
	if err != nil {
		return nil, err
	}
	return object.(*T), nil
}

// CoreV1 implements kubernetes.Interface.
func (c *client) CoreV1() typedcorev1.CoreV1Interface { return core{client: c} }

type core struct {
	typedcorev1.CoreV1Interface
	client *client
}

// Pods implements typedcorev1.PodsGetter.
func (c core) Pods(string) typedcorev1.PodInterface { return pods{client: c.client} }

type pods struct {
	typedcorev1.PodInterface
	client *client
}

// Create implements typedcorev1.PodInterface, as do the others.
func (p pods) Create(_ context.Context, pod *corev1.Pod, _ metav1.CreateOptions) (*corev1.Pod, error) {
	return sendFor[corev1.Pod](p.client, createPod{pod})
}

func (p pods) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Pod, error) {
	return sendFor[corev1.Pod](p.client, readPod{name})
}

func (p pods) Delete(_ context.Context, name string, options metav1.DeleteOptions) error {
	_, err := p.client.send(deletePod{name, *options.Preconditions})
	return err
}

func (p pods) Patch(_ context.Context, name string, _ types.PatchType, body []byte, _ metav1.PatchOptions, _ ...string) (*corev1.Pod, error) {
	return sendFor[corev1.Pod](p.client, patchPod{name, body})
}

// cnatClient is the client for Ats.
type cnatClient struct {
	clientset.Interface
	client *client
}

// CnatV1alpha1 implements clientset.Interface.
func (c cnatClient) CnatV1alpha1() typedcnatv1alpha1.CnatV1alpha1Interface {
	return cnatV1alpha1{client: c.client}
}

type cnatV1alpha1 struct {
	typedcnatv1alpha1.CnatV1alpha1Interface
	client *client
}

// RESTClient implements typedcnatv1alpha1.CnatV1alpha1Interface.
func (cnatV1alpha1) RESTClient() rest.Interface { return unlimited{} }

type unlimited struct{ rest.Interface }

// GetRateLimiter implements rest.Interface.
func (unlimited) GetRateLimiter() flowcontrol.RateLimiter { return nil }

// Ats implements typedcnatv1alpha1.AtsGetter.
func (c cnatV1alpha1) Ats(string) typedcnatv1alpha1.AtInterface { return ats{client: c.client} }

type ats struct {
	typedcnatv1alpha1.AtInterface
	client *client
}

// Get implements typedcnatv1alpha1.AtInterface, as do the others.
func (a ats) Get(_ context.Context, name string, _ metav1.GetOptions) (*v1alpha1.At, error) {
	return sendFor[v1alpha1.At](a.client, readAt{name})
}

func (a ats) Delete(_ context.Context, name string, options metav1.DeleteOptions) error {
	_, err := a.client.send(deleteAt{name, *options.Preconditions})
	return err
}

func (a ats) Patch(_ context.Context, name string, _ types.PatchType, body []byte, _ metav1.PatchOptions, subresources ...string) (*v1alpha1.At, error) {
	request := patchAt{name: name, body: body}
	if len(subresources) > 0 {
		request.subresource = subresources[0]
	}
	return sendFor[v1alpha1.At](a.client, request)
}
