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
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// hostileNamespaces is the number of namespaces that a webhook disturbs.
const hostileNamespaces = 5

// hostileTenants reports how much later Ats start because of what webhooks of other namespaces do with the requests of
// the controller for b.number due Ats in each.
func hostileTenants(b *bench) {
	must(os.Setenv("GOMEMLIMIT", "512000000")) // as in artifacts/deploy/deployment.yaml
	for range hostileNamespaces {
		b.newNamespace()
	}
	namespaces := slices.Clone(b.namespaces)
	w := &webhook{}
	defer w.start(b, namespaces)()
	b.sleep(5 * time.Second) // until the API server knows it
	b.start()
	const others, gap = 50, 300 * time.Millisecond
	alone := b.lateness(others, gap)
	for _, behavior := range []string{hangs, denies, saysMuch} {
		w.behavior.Store(behavior)
		for _, namespace := range namespaces {
			b.each(b.number, func(i int) error {
				return b.create(ats, namespace, fmt.Sprintf("%s-%d", strings.ReplaceAll(behavior, " ", "-"), i), time.Now())
			})
		}
		late := b.lateness(others, gap)
		b.figures["a webhook that "+behavior+": median, later by, s"] = median(late) - median(alone)
		b.figures["a webhook that "+behavior+": last, later by, s"] = slices.Max(late) - slices.Max(alone)
	}
	b.figures["memory at most, MiB"] = b.memory("VmHWM")
}

// What a webhook does: one that hangs does not answer before the API server gives up, and one that says much denies with
// a message of a megabyte.
const (
	denies   = "denies"
	saysMuch = "says much"
	hangs    = "hangs"
)

// webhook is an admission webhook for all requests in some namespaces. It allows to create Ats, as the benchmark does.
type webhook struct {
	behavior atomic.Value // of string; none allows all
}

// start starts the webhook. stop removes it.
func (w *webhook) start(b *bench, namespaces []string) (stop func()) {
	server := httptest.NewUnstartedServer(w)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	hook := fmt.Sprintf(`{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: hostile}, webhooks: [{
		name: hostile.example.com, sideEffects: None, admissionReviewVersions: [v1],
		namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [%s]}]},
		rules: [{operations: ["*"], apiGroups: ["*"], apiVersions: ["*"], resources: ["*/*"]}], clientConfig: {url: %q, caBundle: %s}}]}`,
		strings.Join(namespaces, ", "), server.URL, base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	b.kubectl(hook, "create", "-f", "-")
	return func() {
		server.CloseClientConnections()
		server.Close()
		b.kubectl(hook, "delete", "-f", "-")
	}
}

// ServeHTTP implements http.Handler.
func (w *webhook) ServeHTTP(writer http.ResponseWriter, request *http.Request) {
	var review admissionv1.AdmissionReview
	must(json.NewDecoder(request.Body).Decode(&review))
	behavior := w.behavior.Load()
	isAllowed := behavior == nil || review.Request.Resource.Resource == "ats" && review.Request.SubResource == ""
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: isAllowed, Result: &metav1.Status{}}
	switch {
	case isAllowed:
	case behavior == hangs:
		<-request.Context().Done()
		return
	case behavior == saysMuch:
		review.Response.Result.Message = strings.Repeat("x", 1_000_000)
	}
	_ = json.NewEncoder(writer).Encode(review)
}
