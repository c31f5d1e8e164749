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

package answer_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

func TestAnswer(t *testing.T) {
	pods := corev1.Resource("pods")
	// As a webhook denies a request with a code only.
	denied := func(code int32) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Message: "admission webhook denied the request"}}
	}
	for testName, tc := range map[string]struct {
		err                  error
		isNotFound, conflict bool
	}{
		"none":                            {err: nil},
		"no answer":                       {err: errors.New("connection reset")},
		"not found":                       {err: apierrors.NewNotFound(pods, "x"), isNotFound: true},
		"not found, wrapped":              {err: fmt.Errorf("read: %w", apierrors.NewNotFound(pods, "x")), isNotFound: true},
		"the namespace is not found":      {err: apierrors.NewNotFound(corev1.Resource("namespaces"), "default")},
		"the resource is not found":       {err: apierrors.NewGenericServerResponse(http.StatusNotFound, "GET", pods, "x", "404 page not found", 0, true)},
		"a webhook answers with 404":      {err: denied(http.StatusNotFound)},
		"conflict":                        {err: apierrors.NewConflict(pods, "x", errors.New("modified")), conflict: true},
		"conflict of a quota":             {err: apierrors.NewConflict(corev1.Resource("resourcequotas"), "quota", errors.New("modified"))},
		"a proxy answers with a conflict": {err: apierrors.NewGenericServerResponse(http.StatusConflict, "PATCH", pods, "x", "", 0, true)},
		"a webhook answers with 409":      {err: denied(http.StatusConflict)},
		"already exists":                  {err: apierrors.NewAlreadyExists(pods, "x")},
	} {
		t.Run(testName, func(t *testing.T) {
			if got := answer.IsNotFound(tc.err, "x"); got != tc.isNotFound {
				t.Errorf("IsNotFound: %v", got)
			}
			if got := answer.IsConflict(tc.err, "x"); got != tc.conflict {
				t.Errorf("IsConflict: %v", got)
			}
		})
	}
}

func TestExceedsQuota(t *testing.T) {
	exceeded := errors.New("exceeded quota: pods, requested: pods=1, used: pods=1, limited: pods=1")
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"none":             {nil, false},
		"a quota":          {fmt.Errorf("create Pod: %w", apierrors.NewForbidden(corev1.Resource("pods"), "x", exceeded)), true},
		"of other objects": {apierrors.NewForbidden(v1alpha1.Resource("ats"), "x", exceeded), false},
		"without requests": {apierrors.NewForbidden(corev1.Resource("pods"), "x", errors.New("failed quota: cpu: must specify requests.cpu for: command")), false},
		"another refusal":  {apierrors.NewForbidden(corev1.Resource("pods"), "x", errors.New(`violates PodSecurity "restricted:latest"`)), false},
		"no answer":        {exceeded, false},
	} {
		if got := answer.ExceedsQuota(tc.err, "pods"); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// TestUnlessGone reads an At whose path is not found: only the API server itself can say that
// the At is gone, or its CRD.
func TestUnlessGone(t *testing.T) {
	const (
		at        = "/apis/cnat.programming-kubernetes.info/v1alpha1/namespaces/default/ats/x"
		resources = "/apis/cnat.programming-kubernetes.info/v1alpha1"
		ourGroup  = `{"groups":[{"name":"apps"},{"name":"cnat.programming-kubernetes.info"}]}`
	)
	for name, tc := range map[string]struct {
		answers map[string]string // by path; all others are not found
		want    string            // the error
	}{
		"by the API server":                {answers: map[string]string{at: `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","details":{"name":"x"},"code":404}`}},
		"the CRDs are gone":                {answers: map[string]string{"/apis": `{"groups":[{"name":"apps"}]}`}},
		"the CRD is gone, another is left": {answers: map[string]string{"/apis": ourGroup, resources: `{"resources":[{"name":"cronats"}]}`}},
		"by a proxy":                       {want: "cannot find out whether the resource exists"},
		"by a proxy, not always":           {answers: map[string]string{"/apis": ourGroup}, want: "cannot find out whether the resource exists"},
		"by a proxy, only once":            {answers: map[string]string{"/apis": ourGroup, resources: `{"resources":[{"name":"ats"}]}`}, want: "could not find the requested resource"},
	} {
		t.Run(name, func(t *testing.T) {
			clients, err := clientset.NewForConfig(fakeserver.Config(harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
				content, ok := tc.answers[request.URL.Path]
				if !ok {
					return fakeserver.AnswerAsProxy(request, http.StatusNotFound), nil
				}
				code := http.StatusOK
				if request.URL.Path == at {
					code = http.StatusNotFound
				}
				return &http.Response{StatusCode: code, Request: request, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(content))}, nil
			})))
			if err != nil {
				t.Fatal(err)
			}
			client := clients.CnatV1alpha1()
			_, err = client.Ats("default").Get(t.Context(), "x", metav1.GetOptions{})
			if err == nil {
				t.Fatal("the At exists")
			}
			err = answer.UnlessGone(t.Context(), client.RESTClient(), v1alpha1.SchemeGroupVersion.WithResource("ats"), "x", err)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestOneLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "",
		" two\nlines\t ":               "two lines",
		"\x1b[2Jgone":                  "[2Jgone",
		"right to left: \u202egnp.exe": "right to left:  gnp.exe",
		"C1: \u009b2J":                 "C1:  2J",
		"Grüße, 世界 🌍":                  "Grüße, 世界 🌍",
		strings.Repeat("🌍", 2000):      strings.Repeat("🌍", 512) + "…",
	} {
		if got := answer.OneLine(text); got != want {
			t.Errorf("%.40q: got %.60q, want %.60q", text, got, want)
		}
	}
}
