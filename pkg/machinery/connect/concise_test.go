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
	"errors"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// body is the body of an answer.
type body struct {
	*bytes.Reader // how much was not read
	closed        bool
}

func (b *body) Close() error {
	b.closed = true
	return nil
}

// TestConcise checks what a client gets of errors, and how much of them is read.
func TestConcise(t *testing.T) {
	for name, tc := range map[string]struct {
		repeats int // of a text in the message
		whole   bool
	}{
		"short": {10, true},
		"long":  {1 << 20, false},
	} {
		for _, contentType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
			t.Run(name+" "+contentType, func(t *testing.T) {
				denied := apierrors.NewForbidden(corev1.Resource("pods"), "at-pod", errors.New(strings.Repeat("no ", tc.repeats)))
				info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), contentType)
				content, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion), &denied.ErrStatus)
				if err != nil {
					t.Fatal(err)
				}
				answer := &body{Reader: bytes.NewReader(content)}
				config := &rest.Config{Host: "https://server", ContentConfig: rest.ContentConfig{AcceptContentTypes: contentType}, Transport: roundTripper(func() (*http.Response, error) {
					return &http.Response{StatusCode: http.StatusForbidden, Header: http.Header{"Content-Type": {contentType}}, Body: answer}, nil
				})}
				config.Wrap(Concise)
				client, err := kubernetes.NewForConfig(config)
				if err != nil {
					t.Fatal(err)
				}
				_, err = client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{}, metav1.CreateOptions{})
				if !apierrors.IsForbidden(err) || (err.Error() == denied.Error()) != tc.whole || len(err.Error()) > maxError {
					t.Errorf("got %.200v, want all of it: %v", err, tc.whole)
				}
				// An error that is cut off counts like one of a proxy.
				if apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) == tc.whole {
					t.Errorf("it is taken for one of the API server: %v", !tc.whole)
				}
				if read := len(content) - answer.Len(); read > maxError || !answer.closed {
					t.Errorf("%d bytes were read, and the body was closed: %v", read, answer.closed)
				}
			})
		}
	}
}
