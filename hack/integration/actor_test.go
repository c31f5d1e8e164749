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
	"context"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

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

func creates(manifest string) attempt {
	kind := regexp.MustCompile(`"?kind"?: ?"?(\w+)`).FindStringSubmatch(manifest)[1] // the first one is its own
	return attempt{http.MethodPost, strings.ToLower(kind) + "s", runtime.ContentTypeYAML, manifest}
}

// path returns the path of an object in the namespace of the actor, or of a role of the cluster.
func (a actor) path(object string) []string {
	resource, _, _ := strings.Cut(object, "/")
	group := "/api/v1"
	switch {
	case slices.Contains([]string{"ats", "cronats", "freezes"}, resource):
		group = "/apis/" + v1alpha1.SchemeGroupVersion.String()
	case slices.Contains([]string{"deployments", "statefulsets", "daemonsets"}, resource):
		group = "/apis/apps/v1"
	case strings.Contains(resource, "role"):
		group = "/apis/rbac.authorization.k8s.io/v1"
	}
	if strings.HasPrefix(resource, "clusterrole") {
		return []string{group, object}
	}
	return []string{group, "namespaces", a.namespace, object}
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

// patches is a strategic patch, which custom resources do not have.
func patches(object, patch string) attempt {
	return attempt{http.MethodPatch, object, string(types.StrategicMergePatchType), patch}
}

func merges(object, patch string) attempt {
	return attempt{http.MethodPatch, object, string(types.MergePatchType), patch}
}

func deletes(object string) attempt {
	return attempt{http.MethodDelete, object, runtime.ContentTypeJSON, ""}
}

// want sends a request, which must be denied with the given words, or admitted if there are none.
func (a actor) want(t *testing.T, denied string, what attempt, parameters ...string) {
	t.Helper()
	if _, err := a.send(t, what, parameters...); denied == "" && err != nil || denied != "" && (err == nil || !strings.Contains(err.Error(), denied)) {
		t.Errorf("%s %s %s: got %v, want %q", what.method, what.object, what.body, err, denied)
	}
}

// waitDenied waits until a policy is in force, which denies a request.
func (a actor) waitDenied(t *testing.T, denied string, what attempt) {
	t.Helper()
	eventually(t, "the policy to be in force", func(context.Context) (bool, error) {
		_, err := a.send(t, what, "dryRun", "All")
		return err != nil && strings.Contains(err.Error(), denied), nil
	})
}

// rowOf is a row of a table of attempts, which are made in their order.
type rowOf struct {
	what   string
	do     attempt
	denied string // empty: allowed
}
