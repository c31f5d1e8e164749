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
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestWebhook uses an admission webhook that denies the Pod with the status and the
// causes of the API server's own validation, then is down, and then admits the Pod.
func TestWebhook(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	var allow, down atomic.Bool
	startWebhook(t, namespace, func() *admissionv1.AdmissionResponse {
		if down.Load() {
			return nil
		}
		return &admissionv1.AdmissionResponse{Allowed: allow.Load(), Result: &metav1.Status{
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity, Message: `Pod "at-pod" is invalid: spec.hostNetwork: not here`,
			Details: &metav1.StatusDetails{Kind: "Pod", Name: "at-pod", Causes: []metav1.StatusCause{{Type: metav1.CauseTypeFieldValueInvalid, Field: "spec.hostNetwork", Message: "not here"}}},
		}}
	})
	waitRefused(t, newAt(namespace, "at", time.Now(), "true"))
	startController(t, namespace)
	at := createAt(t, newAt(namespace, "at", time.Now(), "true"))
	if blocked := waitBlocked(t, namespace, v1alpha1.ReasonPodRefused); !strings.Contains(blocked.Message, `admission webhook "policy.example.com" denied the request`) {
		t.Errorf("message %q, want that of the webhook's denial", blocked.Message)
	}
	down.Store(true)
	waitAt(t, namespace, "at", "to report that the webhook is down", func(at *v1alpha1.At) bool {
		return at.Status.Reason == v1alpha1.ReasonPodRefused && strings.Contains(at.Status.Message, `failed calling webhook "policy.example.com"`)
	})
	allow.Store(true)
	down.Store(false)
	waitPhase(t, namespace, "at", v1alpha1.PhaseRunning)
	waitUnblocked(t, namespace)
	waitEvents(t, at, map[string]int32{v1alpha1.ReasonPodRefused: 1, v1alpha1.ReasonSuccessfulCreate: 1})
}

// startWebhook starts an admission webhook that answers each creation of a Pod in a
// namespace until the end of the test. If its answer is nil, it is down.
func startWebhook(t *testing.T, namespace string, answer func() *admissionv1.AdmissionResponse) {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		response := answer()
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || response == nil {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		response.UID = review.Request.UID
		review.Response = response
		_ = json.NewEncoder(w).Encode(review)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	hook := fmt.Sprintf(`{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: %[1]s}, webhooks: [{
		name: policy.example.com, sideEffects: None, admissionReviewVersions: [v1], namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}},
		rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}], clientConfig: {url: %[2]q, caBundle: %[3]s}}]}`,
		namespace, server.URL, base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	kubectl(t, hook, "create", "-f", "-")
	cleanUp(t, hook, "delete", "-f", "-")
}
