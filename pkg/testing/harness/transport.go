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

package harness

import (
	"io"
	"net/http"
	"path"
	"slices"
	"sync/atomic"
	"testing"
)

// RoundTripper is the transport of a client.
type RoundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (r RoundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// IsWatch reports whether a request is a watch.
func IsWatch(request *http.Request) bool { return request.URL.Query().Has("watch") }

// Creates reports whether a request creates an object of a resource.
func Creates(request *http.Request, resource string) bool {
	return request.Method == http.MethodPost && path.Base(request.URL.Path) == resource
}

// Watches is a transport whose watches can be held back: they report nothing more until
// they are released, or until the end of the test.
type Watches struct {
	transport http.RoundTripper
	resources []string
	held      atomic.Bool
	released  chan struct{}
	end       <-chan struct{}
}

// NewWatches returns a transport that can hold back the watches of the given resources, or
// all watches if none are given.
func NewWatches(t *testing.T, transport http.RoundTripper, resources ...string) *Watches {
	t.Helper()
	return &Watches{transport: transport, resources: resources, released: make(chan struct{}), end: t.Context().Done()}
}

// Hold holds back what the watches report from now on.
func (w *Watches) Hold() { w.held.Store(true) }

// Release ends Hold. Call it once.
func (w *Watches) Release() { close(w.released) }

// RoundTrip implements http.RoundTripper.
func (w *Watches) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := w.transport.RoundTrip(request)
	if err == nil && IsWatch(request) && (len(w.resources) == 0 || slices.Contains(w.resources, path.Base(request.URL.Path))) {
		response.Body = &watch{response.Body, w}
	}
	return response, err
}

// watch is the answer to a watch.
type watch struct {
	io.ReadCloser
	watches *Watches
}

func (w *watch) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if w.watches.held.Load() {
		select {
		case <-w.watches.released:
		case <-w.watches.end:
		}
	}
	return n, err
}
