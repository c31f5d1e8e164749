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
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	restfake "k8s.io/client-go/rest/fake"
	clienttesting "k8s.io/client-go/testing"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	cnatfake "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/fake"
	"programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/scheme"
	typedcnatv1alpha1 "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/typed/cnat/v1alpha1"
)

// clients send what is asked of them to the API server of the explorer.
type clients struct {
	kube kubefake.Clientset
	cnat cnatfake.Clientset
}

func (c *clients) answerWith(send func(r *request) ([]*object, error)) {
	react := func(action clienttesting.Action) (bool, runtime.Object, error) {
		r := newRequest(action)
		objects, err := send(r)
		switch {
		case r.verb == list:
			found := &v1alpha1.AtList{}
			for _, o := range objects {
				found.Items = append(found.Items, *o.at())
			}
			return true, found, err
		case len(objects) == 0 || err != nil:
			return true, nil, err
		}
		return true, objects[0].meta.(runtime.Object), nil
	}
	c.kube.AddReactor("*", "*", react)
	c.cnat.AddReactor("*", "*", react)
}

func newRequest(action clienttesting.Action) *request {
	r := &request{verb: verb(action.GetVerb()), kind: kind(slices.Index(resources[:], action.GetResource().GroupResource()))}
	switch a := action.(type) {
	case clienttesting.CreateActionImpl:
		created := a.Object.(metav1.Object)
		r.name, r.object = created.GetName(), intern(created)
		if len(a.CreateOptions.DryRun) > 0 {
			r.verb = try
		}
	case clienttesting.GetActionImpl:
		r.name = a.Name
	case clienttesting.ListActionImpl:
		_, r.owner, _ = strings.Cut(a.ListRestrictions.Labels.String(), "=")
	case clienttesting.DeleteActionImpl:
		options := a.DeleteOptions
		r.name, r.uid, r.version = a.Name, *options.Preconditions.UID, parseVersion(*options.Preconditions.ResourceVersion)
		if options.PropagationPolicy != nil {
			r.body = string(*options.PropagationPolicy)
		}
	case clienttesting.PatchActionImpl:
		r.name = a.Name
		r.body, r.uid, r.version = splitPatch(a.Patch)
	case clienttesting.UpdateActionImpl: // of a status
		written := a.Object.(metav1.Object)
		body, err := json.Marshal(reflect.ValueOf(written).Elem().FieldByName("Status").Interface())
		utilruntime.Must(err)
		r.verb, r.name, r.body, r.version = writeStatus, written.GetName(), string(body), parseVersion(written.GetResourceVersion())
	}
	return r
}

// cnatClient is a fake one with a client for discovery.
type (
	cnatClient   struct{ clientset.Interface }
	cnatV1alpha1 struct {
		typedcnatv1alpha1.CnatV1alpha1Interface
	}
)

// CnatV1alpha1 implements clientset.Interface.
func (c cnatClient) CnatV1alpha1() typedcnatv1alpha1.CnatV1alpha1Interface {
	return cnatV1alpha1{c.Interface.CnatV1alpha1()}
}

// RESTClient implements typedcnatv1alpha1.CnatV1alpha1Interface. Discovery finds Ats and CronAts: one answer
// is both the list of groups and that of resources.
func (cnatV1alpha1) RESTClient() rest.Interface {
	const answer = `{"groups":[{"name":%q}],"resources":[{"name":"ats"},{"name":"cronats"}]}`
	return &restfake.RESTClient{NegotiatedSerializer: scheme.Codecs, Client: restfake.CreateHTTPClient(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(fmt.Sprintf(answer, v1alpha1.SchemeGroupVersion.Group)))}, nil
	})}
}
