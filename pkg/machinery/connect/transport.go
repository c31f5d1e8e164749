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
	"context"
	"io"
	"net/http"
	"path"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// maxError is the length up to which an error is read. A client cannot read more of a longer one
// than its status code.
const maxError = 64 << 10

// Concise returns a transport that does not read long errors of the API server to their end.
//
// An error may be much larger than the request: for each mistake in a Pod, the API server
// repeats the value and explains the rule twice. Users can therefore make it answer with
// many megabytes.
func Concise(next http.RoundTripper) http.RoundTripper { return concise{next} }

type concise struct{ next http.RoundTripper }

func (t concise) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(request)
	if err == nil && response.StatusCode >= http.StatusBadRequest && response.Body != nil {
		response.Body = shortBody{io.LimitReader(response.Body, maxError), response.Body}
	}
	return response, err
}

type shortBody struct {
	io.Reader
	io.Closer
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
