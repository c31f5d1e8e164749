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

// Package answer interprets the errors that the API server answers with, and says what they
// mean for a sync and for people.
package answer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// IsNotFound reports whether the API server answered that the object with the given name
// does not exist. Use it instead of the function of package errors, which is true for any
// answer with code 404: from a proxy that does not reach the API server, for a resource
// whose CRD is missing, from a webhook, or about another object such as the namespace.
func IsNotFound(err error, name string) bool {
	return apierrors.IsNotFound(err) && isAbout(err, name) //nolint:forbidigo // This is the replacement.
}

// UnlessGone returns err, the error of a request for the object with the given name or, if
// that is empty, for a list. It returns nil if the object is gone: the API server says so, or
// no longer has the resource, because its CRD was deleted.
func UnlessGone(ctx context.Context, client rest.Interface, resource schema.GroupVersionResource, name string, err error) error {
	switch {
	case IsNotFound(err, name):
		return nil
	case !apierrors.IsNotFound(err): //nolint:forbidigo // Discovery tells whether it is the resource that is missing.
		return err
	}
	switch exists, discoveryErr := hasResource(ctx, client, resource); {
	case discoveryErr != nil:
		return fmt.Errorf("%w; cannot find out whether the resource exists: %w", err, discoveryErr)
	case exists:
		return err
	default:
		return nil
	}
}

// hasResource reports whether the API server has a resource. It takes no error for an
// answer, unlike the functions of package discovery.
func hasResource(ctx context.Context, client rest.Interface, resource schema.GroupVersionResource) (bool, error) {
	var groups metav1.APIGroupList
	if err := get(ctx, client, "/apis", &groups); err != nil {
		return false, err
	}
	if !slices.ContainsFunc(groups.Groups, func(group metav1.APIGroup) bool { return group.Name == resource.Group }) {
		return false, nil
	}
	var resources metav1.APIResourceList
	if err := get(ctx, client, path.Join("/apis", resource.Group, resource.Version), &resources); err != nil {
		return false, err
	}
	return slices.ContainsFunc(resources.APIResources, func(found metav1.APIResource) bool { return found.Name == resource.Resource }), nil
}

// get reads an object of the discovery API.
func get(ctx context.Context, client rest.Interface, path string, into any) error {
	body, err := client.Get().AbsPath(path).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
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
	status, details := statusOf(err)
	return status != nil && status.Details != nil && details.Name == name && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// statusOf returns the answer that an error is or wraps, or nil, and its details.
func statusOf(err error) (*metav1.Status, metav1.StatusDetails) {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return nil, metav1.StatusDetails{}
	}
	status := answer.Status()
	return &status, ptr.Deref(status.Details, metav1.StatusDetails{})
}

// IsInvalid reports whether the API server's own validation refuses an object of the given
// kind. A webhook or a policy that denies the object may answer with the same reason and causes,
// and may answer differently later. Only the API server's own answer has this prefix in its
// message.
func IsInvalid(err error, kind schema.GroupKind) bool {
	status, details := statusOf(err)
	return apierrors.IsInvalid(err) && details.Kind == kind.Kind && len(details.Causes) > 0 &&
		strings.HasPrefix(status.Message, fmt.Sprintf("%s %q is invalid: ", kind, details.Name))
}

// ExceedsQuota reports whether a quota has no room for an object of the given resource.
func ExceedsQuota(err error, resource string) bool {
	status, details := statusOf(err)
	return apierrors.IsForbidden(err) && details.Kind == resource && strings.Contains(status.Message, "exceeded quota: ")
}

// IsTransient reports whether a request that failed with err may soon succeed without
// intervention.
func IsTransient(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonUnknown: // etcd's own errors, and no answer at all
		// A webhook that denies an object may omit the reason.
		status, _ := statusOf(err)
		return status == nil || status.Code >= http.StatusInternalServerError
	case metav1.StatusReasonNotFound: // by a proxy that does not reach the API server
		return apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
	case metav1.StatusReasonConflict, // of the quota's count
		metav1.StatusReasonServerTimeout, metav1.StatusReasonTimeout,
		metav1.StatusReasonTooManyRequests, metav1.StatusReasonServiceUnavailable,
		metav1.StatusReasonUnauthorized: // while a token is renewed
		return true
	default:
		return false
	}
}

// ErrBlocked is in the error of a sync if the object's status or an event reports what blocks
// it, or if the cause will disappear within moments.
var ErrBlocked = errors.New("blocked")

// Blocked returns an error that is ErrBlocked. reason is one of this program, and is logged;
// cause may have any text, which is for the status or an event.
func Blocked(reason string, cause error) error { return &blocked{reason, cause} }

type blocked struct {
	reason string
	cause  error
}

func (b *blocked) Error() string        { return "blocked: " + b.cause.Error() }
func (b *blocked) Is(target error) bool { return target == ErrBlocked }
func (b *blocked) Unwrap() error        { return b.cause }

// Refused returns the error to retry with after the API server refused to create an object: nil if
// the object is not needed, because its namespace is being deleted, err if that may disappear within
// moments, and otherwise an error that is ErrBlocked.
func Refused(reason string, err error) error {
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case IsTransient(err):
		return err
	default:
		return Blocked(reason, err)
	}
}

// ErrPanic is the error of a sync that panicked.
var ErrPanic = errors.New("panic")

// MaxMessage is the number of bytes to which a message is truncated, so that it can be kept in a
// cache. An API server's refusal can have any length.
const MaxMessage = 2048

// OneLine returns text from the API server or from a command as one line of at most 2 KiB
// without control characters, so that it can neither move the reader's cursor nor pass
// for a log line.
func OneLine(text string) string {
	return Truncate(strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)), MaxMessage)
}

// Truncate returns at most the given number of bytes of a text, and "…" if there are more.
func Truncate(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// ForLog returns a text of an error that may be logged. It replaces the message of the API server,
// which may quote what a user or a webhook wrote, by the code of its answer. If something blocks an
// object, it returns the reason. The rest of an error, such as what was tried, is this program's own.
func ForLog(err error) string {
	switch e := err.(type) { //nolint:errorlint // The causes come next.
	case apierrors.APIStatus:
		code := int(e.Status().Code)
		return strings.TrimSpace(fmt.Sprint(code, " ", http.StatusText(code)))
	case *blocked:
		if status, _ := statusOf(e.cause); status != nil {
			return e.reason + ": " + ForLog(e.cause)
		}
		return e.reason
	}
	text := err.Error()
	for _, cause := range causes(err) {
		whole, logged := cause.Error(), ForLog(cause)
		if !strings.Contains(text, whole) {
			return logged
		}
		text = strings.Replace(text, whole, logged, 1)
	}
	return OneLine(text)
}

// causes returns the errors that an error wraps.
func causes(err error) []error {
	switch e := err.(type) { //nolint:errorlint // These are the ways to wrap.
	case interface{ Unwrap() error }:
		if cause := e.Unwrap(); cause != nil {
			return []error{cause}
		}
	case interface{ Unwrap() []error }:
		return e.Unwrap()
	case utilerrors.Aggregate:
		return e.Errors()
	}
	return nil
}
