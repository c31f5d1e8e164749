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
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/answer"
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
