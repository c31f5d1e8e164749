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
	"errors"
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

type roundTripper func() (*http.Response, error)

func (r roundTripper) RoundTrip(*http.Request) (*http.Response, error) { return r() }

func TestPatient(t *testing.T) {
	refused := fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
	reset := fmt.Errorf("read: %w", syscall.ECONNRESET)
	for name, tc := range map[string]struct {
		method string
		path   string
		errs   []error // of the first requests; the next is answered
		// expectations
		requests   int
		err        error
		took       time.Duration
		retryAfter string
	}{
		"a read, connections are refused for a while": {http.MethodGet, "/api/v1/pods", []error{refused, refused, refused}, 4, nil, 3 * time.Second, "1"},
		"a read that breaks off":                      {http.MethodGet, "/api/v1/pods", []error{reset}, 1, reset, 0, ""},
		"a creation, connections are refused":         {http.MethodPost, "/api/v1/namespaces/a/pods", []error{refused}, 1, refused, 0, ""},
		"a creation":                                  {http.MethodPost, "/api/v1/namespaces/a/pods", nil, 1, nil, 0, ""},
		"an event":                                    {http.MethodPost, "/api/v1/namespaces/a/events", nil, 1, nil, 0, "1"},
		"another write":                               {http.MethodPatch, "/api/v1/namespaces/a/pods/pods", nil, 1, nil, 0, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				requests := 0
				transport := Patient(roundTripper(func() (*http.Response, error) {
					requests++
					if requests <= len(tc.errs) {
						return nil, tc.errs[requests-1]
					}
					return &http.Response{Header: http.Header{"Retry-After": {"1"}}}, nil
				}))
				request, err := http.NewRequestWithContext(t.Context(), tc.method, "https://server"+tc.path, nil)
				if err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				response, err := transport.RoundTrip(request) //nolint:bodyclose // It has none.
				if requests != tc.requests || !errors.Is(err, tc.err) || time.Since(start) != tc.took {
					t.Errorf("%d requests, %v, after %v; want %d, %v, after %v", requests, err, time.Since(start), tc.requests, tc.err, tc.took)
				}
				if err == nil && response.Header.Get("Retry-After") != tc.retryAfter {
					t.Errorf("Retry-After is %q, want %q", response.Header.Get("Retry-After"), tc.retryAfter)
				}
			})
		})
	}
}

func TestPatientGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := Patient(roundTripper(func() (*http.Response, error) { return nil, syscall.ECONNREFUSED }))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://server", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := transport.RoundTrip(request); !errors.Is(err, context.DeadlineExceeded) { //nolint:bodyclose // It has none.
			t.Errorf("it returned %v", err)
		}
	})
}
