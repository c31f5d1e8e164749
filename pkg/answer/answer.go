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

// Package answer interprets the errors that the API server answers with.
package answer

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IsNotFound reports whether the API server answered that the object with the given name
// does not exist. Use it instead of the function of package errors, which is true for any
// answer with code 404: from a proxy that does not reach the API server, for a resource
// whose CRD is missing, from a webhook, or about another object such as the namespace.
func IsNotFound(err error, name string) bool {
	return apierrors.IsNotFound(err) && isAbout(err, name) //nolint:forbidigo // This is the replacement.
}

// IsConflict reports whether the API server answered that the object with the given name
// is not the one, or not the version, that a request was about. Use it for the same
// reason.
func IsConflict(err error, name string) bool {
	return apierrors.IsConflict(err) && isAbout(err, name) //nolint:forbidigo // This is the replacement.
}

// isAbout reports whether an error is the API server's own answer about the object with
// the given name. For an answer that is not a Status, client-go makes up a reason and
// details, and adds a cause.
func isAbout(err error, name string) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return false
	}
	details := answer.Status().Details
	return details != nil && details.Name == name && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}
