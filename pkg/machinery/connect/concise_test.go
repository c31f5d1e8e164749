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

package connect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// answering is a transport that answers each request.
type answering struct {
	code        int
	contentType string
	body        []byte

	lock   sync.Mutex
	read   int // bytes, of all requests
	closed int
}

func (a *answering) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: a.code, Header: http.Header{"Content-Type": {a.contentType}}, Body: &body{bytes.NewReader(a.body), a}}, nil
}

type body struct {
	io.Reader
	answer *answering
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.answer.lock.Lock()
	defer b.answer.lock.Unlock()
	b.answer.read += n
	return n, err
}

func (b *body) Close() error {
	b.answer.lock.Lock()
	defer b.answer.lock.Unlock()
	b.answer.closed++
	return nil
}

// invalid returns the error of a Pod with the given number of invalid names.
func invalid(mistakes int) *apierrors.StatusError {
	var errs field.ErrorList
	for i := range mistakes {
		errs = append(errs, field.Invalid(field.NewPath("spec", "containers").Index(0).Child("env").Index(i).Child("name"), fmt.Sprintf("?%d", i), strings.Repeat("a rule ", 60)))
	}
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "at-pod", errs)
}

func encode(t *testing.T, contentType string, err *apierrors.StatusError) []byte {
	t.Helper()
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), contentType)
	if !ok {
		t.Fatal(contentType)
	}
	status := err.Status()
	content, encodeErr := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion), &status)
	if encodeErr != nil {
		t.Fatal(encodeErr)
	}
	return content
}

// create creates a Pod with a client that reads protobuf and JSON.
func create(t *testing.T, next http.RoundTripper) error {
	t.Helper()
	config := &rest.Config{Host: "https://server", Transport: next, QPS: -1, ContentConfig: rest.ContentConfig{
		ContentType:        runtime.ContentTypeProtobuf,
		AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
	}}
	config.Wrap(Concise())
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{}, metav1.CreateOptions{})
	return err
}

// TestRoundTrip checks what a client gets of errors, and how much of them is read.
func TestConcise(t *testing.T) {
	small, large, huge := invalid(1), invalid(300), invalid(1)
	huge.ErrStatus.Message = strings.Repeat("no ", maxRead)
	denied := apierrors.NewForbidden(corev1.Resource("pods"), "at-pod", errors.New(strings.Repeat("no ", 1<<20)))
	for name, tc := range map[string]struct {
		code        int
		contentType string
		body        []byte
		// expectations
		reason     metav1.StatusReason
		message    string // its beginning
		causes     int
		unexpected bool // it cannot be told from the answer of a proxy
	}{
		"small, JSON":     {http.StatusUnprocessableEntity, runtime.ContentTypeJSON, encode(t, runtime.ContentTypeJSON, small), metav1.StatusReasonInvalid, small.Error(), 1, false},
		"small, protobuf": {http.StatusUnprocessableEntity, runtime.ContentTypeProtobuf, encode(t, runtime.ContentTypeProtobuf, small), metav1.StatusReasonInvalid, small.Error(), 1, false},
		"large, JSON":     {http.StatusUnprocessableEntity, runtime.ContentTypeJSON, encode(t, runtime.ContentTypeJSON, large), metav1.StatusReasonInvalid, large.Error()[:4096], maxCauses, false},
		"large, protobuf": {http.StatusUnprocessableEntity, runtime.ContentTypeProtobuf, encode(t, runtime.ContentTypeProtobuf, large), metav1.StatusReasonInvalid, large.Error()[:4096], maxCauses, false},
		"denied":          {http.StatusForbidden, runtime.ContentTypeJSON, encode(t, runtime.ContentTypeJSON, denied), metav1.StatusReasonForbidden, denied.Error()[:4096], 0, false},
		"huge":            {http.StatusUnprocessableEntity, runtime.ContentTypeJSON, encode(t, runtime.ContentTypeJSON, huge), metav1.StatusReasonInvalid, "the server rejected our request", 1, true},
		"of a proxy":      {http.StatusNotFound, "text/html", bytes.Repeat([]byte("<p>"), maxSize), metav1.StatusReasonNotFound, "the server could not find the requested resource", 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			next := &answering{code: tc.code, contentType: tc.contentType, body: tc.body}
			err := create(t, next)
			var got apierrors.APIStatus
			if !errors.As(err, &got) {
				t.Fatalf("got %v, want a Status", err)
			}
			status := got.Status()
			if status.Reason != tc.reason || !strings.HasPrefix(status.Message, tc.message) || len(status.Details.Causes) != tc.causes {
				t.Errorf("got %s, %d causes, %.500s; want %s, %d causes, %.500s", status.Reason, len(status.Details.Causes), status.Message, tc.reason, tc.causes, tc.message)
			}
			if unexpected := apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse); unexpected != tc.unexpected {
				t.Errorf("unexpected: %t, want %t", unexpected, tc.unexpected)
			}
			if content, err := status.Marshal(); err != nil || len(content) > 2*maxSize {
				t.Errorf("%d bytes are kept, %v", len(content), err)
			}
			if next.read > maxRead+maxSize+1 || next.closed != 1 {
				t.Errorf("%d bytes were read, and the body was closed %d times", next.read, next.closed)
			}
		})
	}
}

// TestTurns checks that a request does not wait for its turn any longer than its context.
func TestConciseTurns(t *testing.T) {
	wrapper := Concise()
	large := encode(t, runtime.ContentTypeJSON, invalid(300))
	next := wrapper(&answering{code: http.StatusUnprocessableEntity, contentType: runtime.ContentTypeJSON, body: large})
	next.(*concise).turn <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://server", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := next.RoundTrip(request); !errors.Is(err, context.Canceled) { //nolint:bodyclose // It has none.
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
