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

// Package patient has an HTTP transport for clients that outlast their API server:
// one that is away, so that connections are refused. One that hangs, or a proxy before
// it that answers in its place, is left to client-go.
package patient

import (
	"context"
	"net/http"
	"path"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// retryPeriod is how often is asked again where nobody listens.
const retryPeriod = time.Second

type transport struct {
	next http.RoundTripper
	told atomic.Bool
}

// New returns a transport that asks again each second where nobody listens, so that
// what waits for an answer has it as soon as the API server is back, and not after the
// back-off of an informer, which grows to a minute.
//
// Only what is read is asked for again. The creation of a Pod must rest on what was
// read just before, so client-go, too, is kept from sending it again by itself.
func New(next http.RoundTripper) http.RoundTripper {
	return &transport{next: next}
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet {
		response, err := t.next.RoundTrip(request)
		if err == nil && request.Method == http.MethodPost && path.Base(request.URL.Path) == "pods" {
			// What client-go goes by.
			response.Header.Del("Retry-After")
		}
		return response, err
	}
	var response *http.Response
	err := wait.PollUntilContextCancel(request.Context(), retryPeriod, true, func(ctx context.Context) (bool, error) {
		var err error
		response, err = t.next.RoundTrip(request)
		if refused := utilnet.IsConnectionRefused(err); !refused {
			t.told.Store(false)
			return true, err
		}
		if !t.told.Swap(true) {
			klog.FromContext(ctx).Info("The API server cannot be reached; waiting for it", "answer", err)
		}
		return false, nil
	})
	return response, err
}
