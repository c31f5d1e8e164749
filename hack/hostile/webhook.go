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

package hostile

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// Behavior is how a webhook answers.
type Behavior int32

// The behaviors. A webhook that hangs does not answer before the API server gives up. One
// that says much denies with a message of a megabyte.
const (
	Allows Behavior = iota
	Denies
	SaysMuch
	Hangs
)

// String returns what the webhook does.
func (b Behavior) String() string {
	return [...]string{"allows", "denies", "says much", "hangs"}[b]
}

// timeoutSeconds is how long the API server waits for an answer, as by default.
const timeoutSeconds = 10

// Webhook is an admission webhook for all requests in some namespaces. It allows those of
// the tenants, whose users have the names of their namespaces.
type Webhook struct {
	admin    kubernetes.Interface
	name     string
	server   *httptest.Server
	behavior atomic.Int32
	refused  sync.Map // names of Pods
}

// StartWebhook starts a webhook for the given namespaces, which allows everything. name must be
// unique in the cluster.
func StartWebhook(ctx context.Context, admin kubernetes.Interface, name string, namespaces ...string) (*Webhook, error) {
	w := &Webhook{admin: admin, name: name}
	w.server = httptest.NewUnstartedServer(w)
	w.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	w.server.StartTLS()
	_, err := admin.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "hostile.example.com", SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: ptr.To[int32](timeoutSeconds),
			NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
				Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: namespaces,
			}}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"}, Scope: ptr.To(admissionregistrationv1.NamespacedScope)},
			}},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL:      ptr.To(w.server.URL),
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.server.Certificate().Raw}),
			},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		w.server.Close()
	}
	return w, err
}

// Behave changes how the webhook answers from now on.
func (w *Webhook) Behave(behavior Behavior) { w.behavior.Store(int32(behavior)) }

// HasRefused reports whether the webhook has not allowed the creation of a Pod.
func (w *Webhook) HasRefused(namespace, pod string) bool {
	_, refused := w.refused.Load(types.NamespacedName{Namespace: namespace, Name: pod})
	return refused
}

// Stop removes the webhook.
func (w *Webhook) Stop(ctx context.Context) error {
	w.server.CloseClientConnections()
	w.server.Close()
	return w.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(ctx, w.name, metav1.DeleteOptions{})
}

// ServeHTTP implements http.Handler.
func (w *Webhook) ServeHTTP(writer http.ResponseWriter, request *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(request.Body).Decode(&review); err != nil {
		http.Error(writer, err.Error(), http.StatusBadRequest)
		return
	}
	behavior := Behavior(w.behavior.Load())
	if review.Request.UserInfo.Username == review.Request.Namespace {
		behavior = Allows
	}
	if behavior != Allows && review.Request.Operation == admissionv1.Create && review.Request.Resource.Resource == "pods" {
		w.refused.Store(types.NamespacedName{Namespace: review.Request.Namespace, Name: review.Request.Name}, true)
	}
	response := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: behavior == Allows}
	switch behavior {
	case Hangs:
		<-request.Context().Done()
		return
	case SaysMuch:
		response.Result = &metav1.Status{Message: strings.Repeat("x", 1_000_000)}
	}
	review.Response = response
	_ = json.NewEncoder(writer).Encode(review)
}
