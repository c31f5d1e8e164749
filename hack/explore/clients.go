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
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedappsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	restfake "k8s.io/client-go/rest/fake"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	"programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/scheme"
	typedcnatv1alpha1 "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/typed/cnat/v1alpha1"
)

func send[T any](p *replayer, r *request) (T, error) {
	var none T
	objects, err := p.send(r)
	if err != nil {
		return none, err
	}
	return objects[0].meta.(T), nil
}

// requests sends the requests for one kind.
type requests[T metav1.Object] struct {
	*replayer
	kind kind
}

// Create implements the interfaces of client-go for each kind, as do the next methods.
func (c requests[T]) Create(_ context.Context, object T, options metav1.CreateOptions) (T, error) {
	r := &request{verb: create, kind: c.kind, name: object.GetName(), object: intern(clone(object))}
	if len(options.DryRun) > 0 {
		r.verb = try
	}
	return send[T](c.replayer, r)
}

func (c requests[T]) Get(_ context.Context, name string, _ metav1.GetOptions) (T, error) {
	return send[T](c.replayer, &request{verb: get, kind: c.kind, name: name})
}

func (c requests[T]) Delete(_ context.Context, name string, options metav1.DeleteOptions) error {
	r := &request{verb: remove, kind: c.kind, name: name, uid: *options.Preconditions.UID, version: parseVersion(*options.Preconditions.ResourceVersion)}
	if options.PropagationPolicy != nil {
		r.body = string(*options.PropagationPolicy)
	}
	_, err := c.send(r)
	return err
}

func (c requests[T]) Patch(_ context.Context, name string, _ types.PatchType, body []byte, _ metav1.PatchOptions, subresources ...string) (T, error) {
	r := &request{verb: patch, kind: c.kind, name: name}
	if len(subresources) > 0 {
		r.verb = patchStatus
	}
	r.body, r.uid, r.version = splitPatch(body)
	return send[T](c.replayer, r)
}

// The clients. They have the methods that the steps use; the others would panic.
type (
	kubeClient struct {
		kubernetes.Interface
		*replayer
	}
	core struct {
		typedcorev1.CoreV1Interface
		*replayer
	}
	apps struct {
		typedappsv1.AppsV1Interface
		*replayer
	}
	metadataClient struct {
		metadata.Interface
		*replayer
	}
	workloadClient struct {
		metadata.Getter
		*replayer
	}
	cnatClient struct {
		clientset.Interface
		*replayer
	}
	cnatV1alpha1 struct {
		typedcnatv1alpha1.CnatV1alpha1Interface
		*replayer
	}

	// The methods of requests come before those that are embedded twice.
	allOfPods        struct{ typedcorev1.PodInterface }
	allOfNodes       struct{ typedcorev1.NodeInterface }
	allOfDeployments struct {
		typedappsv1.DeploymentInterface
	}
	allOfAts     struct{ typedcnatv1alpha1.AtInterface }
	allOfCronAts struct {
		typedcnatv1alpha1.CronAtInterface
	}

	podClient struct {
		allOfPods
		requests[*corev1.Pod]
	}
	nodeClient struct {
		allOfNodes
		requests[*corev1.Node]
	}
	deploymentClient struct {
		allOfDeployments
		requests[*appsv1.Deployment]
	}
	atClient struct {
		allOfAts
		requests[*v1alpha1.At]
	}
	cronAtClient struct {
		allOfCronAts
		requests[*v1alpha1.CronAt]
	}
)

// CoreV1 implements kubernetes.Interface.
func (c kubeClient) CoreV1() typedcorev1.CoreV1Interface { return core{replayer: c.replayer} }

// AppsV1 implements kubernetes.Interface.
func (c kubeClient) AppsV1() typedappsv1.AppsV1Interface { return apps{replayer: c.replayer} }

// Pods implements typedcorev1.PodsGetter.
func (c core) Pods(string) typedcorev1.PodInterface {
	return podClient{requests: requests[*corev1.Pod]{c.replayer, pods}}
}

// Nodes implements typedcorev1.NodesGetter.
func (c core) Nodes() typedcorev1.NodeInterface {
	return nodeClient{requests: requests[*corev1.Node]{c.replayer, nodes}}
}

// Deployments implements typedappsv1.DeploymentsGetter.
func (c apps) Deployments(string) typedappsv1.DeploymentInterface {
	return deploymentClient{requests: requests[*appsv1.Deployment]{c.replayer, deployments}}
}

// Resource implements metadata.Interface. There are Deployments only.
func (c metadataClient) Resource(schema.GroupVersionResource) metadata.Getter {
	return workloadClient{replayer: c.replayer}
}

// Namespace implements metadata.Getter.
func (c workloadClient) Namespace(string) metadata.ResourceInterface { return c }

// Get implements metadata.ResourceInterface.
func (c workloadClient) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*metav1.PartialObjectMetadata, error) {
	return send[*metav1.PartialObjectMetadata](c.replayer, &request{verb: get, kind: deployments, name: name})
}

// CnatV1alpha1 implements clientset.Interface.
func (c cnatClient) CnatV1alpha1() typedcnatv1alpha1.CnatV1alpha1Interface {
	return cnatV1alpha1{replayer: c.replayer}
}

// RESTClient implements typedcnatv1alpha1.CnatV1alpha1Interface.
func (cnatV1alpha1) RESTClient() rest.Interface { return discoveryClient }

// discoveryClient has no rate limit. It answers that the API server has Ats and CronAts.
// rest/fake has a RESTClient, too, which is not for use by goroutines at the same time.
var discoveryClient = func() rest.Interface {
	client, err := rest.RESTClientForConfigAndClient(&rest.Config{
		ContentConfig: rest.ContentConfig{GroupVersion: &v1alpha1.SchemeGroupVersion, NegotiatedSerializer: scheme.Codecs},
		QPS:           -1,
	}, restfake.CreateHTTPClient(func(r *http.Request) (*http.Response, error) {
		recorder := httptest.NewRecorder()
		recorder.Header().Set("Content-Type", "application/json")
		if strings.TrimSuffix(r.URL.Path, "/") == "/apis" {
			fmt.Fprintf(recorder, `{"groups":[{"name":%q}]}`, v1alpha1.SchemeGroupVersion.Group)
		} else {
			fmt.Fprint(recorder, `{"resources":[{"name":"ats"},{"name":"cronats"}]}`)
		}
		return recorder.Result(), nil
	}))
	if err != nil {
		panic(err)
	}
	return client
}()

// Ats implements typedcnatv1alpha1.AtsGetter.
func (c cnatV1alpha1) Ats(string) typedcnatv1alpha1.AtInterface {
	return atClient{requests: requests[*v1alpha1.At]{c.replayer, ats}}
}

func (c atClient) List(_ context.Context, options metav1.ListOptions) (*v1alpha1.AtList, error) {
	_, owner, _ := strings.Cut(options.LabelSelector, "=")
	objects, err := c.send(&request{verb: list, kind: ats, owner: owner})
	found := &v1alpha1.AtList{}
	for _, o := range objects {
		found.Items = append(found.Items, *o.at())
	}
	return found, err
}

// CronAts implements typedcnatv1alpha1.CronAtsGetter.
func (c cnatV1alpha1) CronAts(string) typedcnatv1alpha1.CronAtInterface {
	return cronAtClient{requests: requests[*v1alpha1.CronAt]{c.replayer, cronAts}}
}
