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
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// TestColumns checks that kubectl get shows the reason for the state of each At.
func TestColumns(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	kubectl(t, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "name-taken-pod"}, "spec": {"schedulerName": "nobody", "containers": [{"name": "a", "image": "a"}]}}`, "create", "-n", namespace, "-f", "-")
	for name, change := range map[string]func(*v1alpha1.AtSpec){
		"pending":   func(spec *v1alpha1.AtSpec) { spec.Schedule = "2099-01-01T00:00:00Z" },
		"suspended": func(spec *v1alpha1.AtSpec) { spec.Suspend = ptr.To(true) },
		"skipped": func(spec *v1alpha1.AtSpec) {
			spec.Schedule, spec.TimeZone = "2026-03-29T02:30:00", ptr.To("Europe/Berlin")
		},
		"name-taken": func(*v1alpha1.AtSpec) {},
		"too-late": func(spec *v1alpha1.AtSpec) {
			spec.Schedule, spec.StartingDeadlineSeconds = "2000-01-01T00:00:00Z", ptr.To[int64](0)
		},
	} {
		at := newAt(namespace, name, time.Now(), "true")
		change(&at.Spec)
		createAt(t, at)
	}
	want := []string{
		"name-taken PENDING PodNameConflict",
		"pending 2099-01-01T00:00:00Z PENDING",
		"skipped 2026-03-29T02:30:00 Europe/Berlin PENDING InvalidSchedule",
		"suspended PENDING Suspended",
		"too-late 2000-01-01T00:00:00Z DONE StartingDeadlineExceeded",
	}
	var table string
	eventually(t, "all reasons", func(context.Context) (bool, error) {
		table = kubectl(t, "", "get", "at", "-n", namespace, "--sort-by=.metadata.name")
		for _, row := range want {
			words := strings.Fields(row)
			for line := range strings.Lines(table) {
				if cells := strings.Fields(line); cells[0] == words[0] && !strings.Contains(strings.Join(cells, " "), strings.Join(words[len(words)-2:], " ")) {
					return false, nil
				}
			}
		}
		return true, nil
	})
	if header := strings.Join(strings.Fields(table)[:8], " "); header != "NAME SCHEDULE TIMEZONE PHASE REASON EXIT NODES AGE" {
		t.Errorf("columns %s", header)
	}
}

// TestObservedGeneration edits a pending and a finished At: tools such as Argo CD and
// kstatus, which wait until the status matches the latest spec, do not wait long.
func TestObservedGeneration(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	observed := func(at *v1alpha1.At) bool { return at.Status.ObservedGeneration == at.Generation }

	createAt(t, newAt(namespace, "at", time.Now().Add(time.Hour), "true"))
	update(t, namespace, func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) })
	waitAt(t, namespace, "at", "to be suspended", func(at *v1alpha1.At) bool { return at.Status.Reason == v1alpha1.ReasonSuspended })
	update(t, namespace, func(at *v1alpha1.At) { at.Spec.Command = "false" })
	waitAt(t, namespace, "at", "to have its edit observed while suspended", observed)
	update(t, namespace, func(at *v1alpha1.At) {
		at.Spec.Suspend, at.Spec.Schedule = nil, time.Now().UTC().Format(time.RFC3339)
	})
	endPod(t, waitPod(t, namespace, "at-pod"), corev1.PodSucceeded, 0, "")
	waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	update(t, namespace, func(at *v1alpha1.At) { at.Spec.TTLSecondsAfterFinished = ptr.To[int32](3600) })
	waitAt(t, namespace, "at", "to have its edit observed when done", observed)
}

// TestWebhook uses an admission webhook that denies the Pod with the status and the
// causes of the API server's own validation, then is down, and then admits the Pod.
func TestWebhook(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	var allow, down atomic.Bool
	startWebhook(t, namespace, 30, func() *admissionv1.AdmissionResponse {
		if down.Load() {
			return nil
		}
		return &admissionv1.AdmissionResponse{Allowed: allow.Load(), Result: &metav1.Status{
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity, Message: `Pod "at-pod" is invalid: spec.hostNetwork: not here`,
			Details: &metav1.StatusDetails{Kind: "Pod", Name: "at-pod", Causes: []metav1.StatusCause{{Type: metav1.CauseTypeFieldValueInvalid, Field: "spec.hostNetwork", Message: "not here"}}},
		}}
	})
	probe := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "probe"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}}}
	eventually(t, "the webhook to be in force", func(ctx context.Context) (bool, error) {
		_, err := kubeClient.CoreV1().Pods(namespace).Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "denied the request"), nil
	})

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
func startWebhook(t *testing.T, namespace string, timeout int32, answer func() *admissionv1.AdmissionResponse) {
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
	hooks := kubeClient.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := hooks.Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "policy.example.com", SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: ptr.To(timeout),
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL:      ptr.To(server.URL),
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hooks.Delete(context.WithoutCancel(t.Context()), namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// TestUnexpectedPod creates the Pod of a finished At once more, like a delayed creation
// request: it is deleted.
func TestUnexpectedPod(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	c := startController(t, namespace)
	at := createAt(t, newAt(namespace, "at", time.Now(), "true"))
	endPod(t, waitPod(t, namespace, "at-pod"), corev1.PodSucceeded, 0, "")
	waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	kubectl(t, "", "delete", "-n", namespace, "pod/at-pod", "--grace-period=0", "--force")
	waitPodGone(t, namespace)

	pod := plan.NewPod(at, plan.Defaults{Image: "image"})
	pod.Spec.SchedulerName = "nobody"
	if _, err := kubeClient.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitPodGone(t, namespace)
	waitEvents(t, at, map[string]int32{v1alpha1.ReasonSuccessfulCreate: 1, v1alpha1.ReasonCompleted: 1, v1alpha1.ReasonUnexpectedPod: 1})
	if _, metrics := get(t, served(t, c, "metrics")+"/metrics", ""); !strings.Contains(metrics, "\ncnat_unexpected_pods_total 1\n") {
		t.Error("the Pod is not counted")
	}
}
