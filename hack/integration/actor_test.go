//go:build integration

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

package integration

import (
	"cmp"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat"
	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// actor is a user who tries what policies allow or deny, without a process of kubectl for each request.
type actor struct {
	client    rest.Interface
	namespace string
}

// actAs returns an actor in a namespace: a user, or the administrator if the name is "".
func actAs(t *testing.T, name, namespace string) actor {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Impersonate.UserName = -1, name
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return actor{client.Discovery().RESTClient(), namespace}
}

// attempt is a request of an actor.
type attempt struct {
	method string
	// object is a resource, with the name of an object, and perhaps a subresource.
	object      string
	contentType string
	body        string
}

// groupOf returns the API group of a resource, of which there may be a name or a subresource.
func groupOf(resource string) string {
	resource, _, _ = strings.Cut(resource, "/")
	switch {
	case slices.Contains([]string{"ats", "cronats", "freezes"}, resource):
		return cnat.GroupName
	case slices.Contains([]string{"deployments", "statefulsets", "daemonsets"}, resource):
		return "apps"
	case strings.Contains(resource, "role"):
		return rbacv1.GroupName
	}
	return ""
}

// path returns the path of an object in the namespace of the actor, of OBJECT@NAMESPACE, or of one that is in none.
func (a actor) path(object string) []string {
	object, namespace, _ := strings.Cut(object, "@")
	group := groupOf(object)
	version := map[string]string{"": "/api/v1", cnat.GroupName: "/apis/" + v1alpha1.SchemeGroupVersion.String()}[group]
	version = cmp.Or(version, "/apis/"+group+"/v1")
	if strings.HasPrefix(object, "clusterrole") || strings.HasPrefix(object, "namespaces/") {
		return []string{version, object}
	}
	return []string{version, "namespaces", cmp.Or(namespace, a.namespace), object}
}

// send sends a request. Parameters are pairs, such as dryRun and All.
func (a actor) send(t *testing.T, what attempt, parameters ...string) (string, error) {
	t.Helper()
	request := a.client.Verb(what.method).AbsPath(a.path(what.object)...).SetHeader("Content-Type", what.contentType).SetHeader("Accept", runtime.ContentTypeJSON).Body([]byte(what.body))
	if what.method != http.MethodDelete {
		request.Param("fieldManager", "cnat-controller")
	}
	for i := 0; i < len(parameters); i += 2 {
		request.Param(parameters[i], parameters[i+1])
	}
	result := request.Do(t.Context())
	answer, _ := result.Raw()
	return string(answer), result.Error() // which has the message of the status
}
