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
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"

	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

// An error of at most maxSize is passed on as it is. A larger one, of at most maxRead, is
// shortened: texts to maxText, and the list of causes to maxCauses. Of one that is even
// larger, or not from an API server, the first maxSize are passed on.
const (
	maxSize   = 64 << 10
	maxRead   = 8 << 20
	maxText   = 8 << 10
	maxCauses = 4
)

// Concise returns a function that wraps transports, so that they shorten the errors of the
// API server. One large error is read at a time, so that their number does not matter for the
// memory.
//
// An error may be much larger than the request: for each mistake in a Pod, the API server
// repeats the value and explains the rule twice. Users can therefore make it answer with
// many megabytes.
func Concise() transport.WrapperFunc {
	turn := make(chan struct{}, 1)
	return func(next http.RoundTripper) http.RoundTripper { return &concise{next, turn} }
}

type concise struct {
	next http.RoundTripper
	turn chan struct{}
}

func (t *concise) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(request)
	if err != nil || response.StatusCode < http.StatusBadRequest || response.Body == nil {
		return response, err
	}
	whole := response.Body
	defer func() { _ = whole.Close() }()
	body, err := read(whole, maxSize+1)
	if err != nil {
		return nil, err
	}
	if len(body) <= maxSize {
		response.Body = io.NopCloser(bytes.NewReader(body))
		return response, nil
	}
	short, err := t.shorten(request.Context(), body, whole)
	if err != nil {
		return nil, err
	}
	shortened := *response
	shortened.Header = response.Header.Clone()
	if short == nil {
		short = body[:maxSize]
	} else {
		shortened.Header.Set("Content-Type", runtime.ContentTypeJSON)
	}
	shortened.Header.Set("Content-Length", strconv.Itoa(len(short)))
	shortened.ContentLength, shortened.Body = int64(len(short)), io.NopCloser(bytes.NewReader(short))
	return &shortened, nil
}

// shorten returns the error in JSON, shortened, or nil if it is too large or not from an
// API server. head is what was read of it, rest the remainder.
func (t *concise) shorten(ctx context.Context, head []byte, rest io.Reader) ([]byte, error) {
	select {
	case t.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-t.turn }()
	tail, err := read(rest, maxRead)
	if err != nil || len(tail) == maxRead {
		return nil, err
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(append(head, tail...), nil, nil)
	status, ok := object.(*metav1.Status)
	if err != nil || !ok {
		return nil, nil // It is not from an API server.
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	status.Message = answer.Truncate(status.Message, maxText)
	if details := status.Details; details != nil {
		details.Causes = details.Causes[:min(len(details.Causes), maxCauses)]
		for i := range details.Causes {
			cause := &details.Causes[i]
			cause.Message, cause.Field = answer.Truncate(cause.Message, maxText), answer.Truncate(cause.Field, maxText)
		}
	}
	return json.Marshal(status)
}

// read reads at most the given number of bytes.
func read(body io.Reader, most int64) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(body, most))
	if err != nil {
		return nil, fmt.Errorf("read the error of the API server: %w", err)
	}
	return content, nil
}

// retryPeriod is the interval between retries while connections are refused.
const retryPeriod = time.Second

type patient struct {
	next     http.RoundTripper
	reported atomic.Bool
}

// Patient returns a transport that retries every second while connections are refused.
// Clients therefore get their response as soon as the API server is back, not after the
// back-off of an informer, which grows to a minute. Two other cases are left to client-go:
// an API server that hangs, and a proxy that answers instead of the API server.
//
// It only retries reads. The creation of a Pod must be based on what was read immediately
// before, so client-go is also prevented from retrying it.
func Patient(next http.RoundTripper) http.RoundTripper {
	return &patient{next: next}
}

func (t *patient) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet {
		response, err := t.next.RoundTrip(request)
		if err == nil && request.Method == http.MethodPost && path.Base(request.URL.Path) == "pods" {
			// client-go checks this to decide whether to retry.
			response.Header.Del("Retry-After")
		}
		return response, err
	}
	var response *http.Response
	err := wait.PollUntilContextCancel(request.Context(), retryPeriod, true, func(ctx context.Context) (bool, error) {
		var err error
		response, err = t.next.RoundTrip(request)
		if refused := utilnet.IsConnectionRefused(err); !refused {
			t.reported.Store(false)
			return true, err
		}
		if !t.reported.Swap(true) {
			klog.FromContext(ctx).Info("The API server is unreachable; waiting for it", "answer", err)
		}
		return false, nil
	})
	return response, err
}
