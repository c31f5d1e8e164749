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

package simulation

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// network is what is between the processes and the API server.
type network struct {
	lock    sync.Mutex
	sending []*call       // requests that were just sent
	arrived chan struct{} // has an entry if there are some

	serving *call // the request that the API server works on
	flying  int   // requests without an answer
	watches []*streaming
	faults  int               // how many of a thousand requests go wrong
	away    bool              // connections are refused
	known   map[string][]byte // what stale reads get, by path
	gaveUp  sets.Set[string]  // the Pods that a mutant does not create any more
}

// call is a request of a process.
type call struct {
	process *process
	request *http.Request
	body    []byte
	sent    time.Time
	key     string // for the order of requests that are sent at the same time
	stale   bool   // it reads what was reported some time ago: see Mutant
	refused bool   // because of a quota that is not there any more: see Mutant
	done    chan answer
}

type answer struct {
	response *http.Response
	err      error
}

// RoundTrip implements http.RoundTripper: it sends a request of a process.
func (p *process) RoundTrip(request *http.Request) (*http.Response, error) {
	c := &call{process: p, request: request, sent: p.world.clock.Now(), done: make(chan answer, 1)}
	if request.Body != nil {
		var err error
		if c.body, err = io.ReadAll(request.Body); err != nil {
			return nil, err
		}
	}
	if p.isDead() {
		return nil, errDead
	}
	c.key = fmt.Sprint(p.name, request.Method, request.URL, string(c.body))
	p.world.send(c)
	select {
	case a := <-c.done:
		return a.response, a.err
	case <-request.Context().Done():
		return nil, request.Context().Err()
	}
}

var (
	errDead = errors.New("the process was killed")
	errLost = fmt.Errorf("read: %w", syscall.ECONNRESET)
)

func (n *network) send(c *call) {
	n.lock.Lock()
	n.sending = append(n.sending, c)
	n.lock.Unlock()
	select {
	case n.arrived <- struct{}{}:
	default:
	}
}

// accept decides what becomes of the requests that were just sent.
func (w *World) accept() {
	w.lock.Lock()
	calls := w.sending
	w.sending = nil
	w.lock.Unlock()
	slices.SortStableFunc(calls, func(a, b *call) int { return cmp.Compare(a.key, b.key) })
	for _, c := range calls {
		w.result.Requests++
		if w.Mutant != nil && w.Mutant.request != nil {
			c.request = c.request.Clone(c.request.Context())
			w.Mutant.request(c)
		}
		if !strings.Contains(c.request.URL.Path, "/leases") {
			w.tracef("%s: %s %s", c.process.name, c.request.Method, c.request.URL.RequestURI())
		}
		w.transmit(c)
	}
}

// The time that a request or its answer is on its way, and that it is delayed by at most if
// there are faults.
const (
	latency  = 10 * time.Millisecond
	maxDelay = 8 * time.Second
)

// transmit sends a request to the API server, unless a fault prevents that.
func (w *World) transmit(c *call) {
	w.flying++
	delay := w.between(latency/10, latency)
	fault := -1
	if w.random.IntN(1000) < w.faults {
		fault = w.random.IntN(9)
		w.result.Faults++
		w.tracef("fault %d: %s: %s %s", fault, c.process.name, c.request.Method, c.request.URL.Path)
	}
	refuse := func(err *apierrors.StatusError) {
		w.after(delay, func() { c.answer(must(fakeserver.Refuse(c.request, err)), nil) })
	}
	switch fault {
	case 0:
		w.after(delay, func() { c.answer(nil, errLost) })
	case 1:
		w.after(delay, func() {
			_, _ = w.serve(c)
			w.after(delay, func() { c.answer(nil, errLost) })
		})
	case 2, 3:
		w.deliver(c, w.between(0, maxDelay))
	case 4:
		code := []int{http.StatusNotFound, http.StatusConflict, http.StatusBadGateway}[w.random.IntN(3)]
		w.after(delay, func() { c.answer(fakeserver.AnswerAsProxy(c.request, code), nil) })
	case 5:
		refuse(apierrors.NewTooManyRequests("busy", 1))
	case 6:
		refuse(apierrors.NewInternalError(errors.New("etcdserver: request timed out")))
	case 7: // It hangs, and is not served.
		w.after(w.between(time.Second, 40*time.Second), func() { c.answer(nil, errLost) })
	case 8:
		refuse(apierrors.NewForbidden(corev1.Resource(path.Base(c.request.URL.Path)), "", errors.New("RBAC is not loaded yet")))
	default:
		w.deliver(c, delay)
	}
}

// deliver lets the API server serve a request after a delay.
func (w *World) deliver(c *call, delay time.Duration) {
	w.after(delay, func() {
		if hang := w.admissionTime(c); hang > 0 {
			w.after(hang, func() {
				if err := c.request.Context().Err(); err != nil { // The API server has given up, too.
					c.answer(nil, err)
					return
				}
				w.finish(c)
			})
			return
		}
		w.finish(c)
	})
}

func (w *World) finish(c *call) {
	response, err := w.serve(c)
	back := w.between(latency/10, latency)
	if err == nil && harness.IsWatch(c.request) {
		body := w.stream(c, response.Body.(*fakeserver.Stream))
		response.Body = body
	}
	w.after(back, func() { c.answer(response, err) })
}

// serve lets the API server serve a request.
func (w *World) serve(c *call) (*http.Response, error) {
	if w.away {
		return nil, fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
	}
	request := c.request.Clone(context.Background())
	request.Body = io.NopCloser(bytes.NewReader(c.body))
	w.serving = c
	defer func() { w.serving = nil }()
	if refusal := w.admit(c); refusal != nil {
		return fakeserver.Refuse(request, refusal)
	}
	if old := w.known[request.URL.Path]; c.stale && old != nil {
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(old))}, nil
	}
	response, err := w.server.RoundTrip(request)
	if err == nil && !harness.IsWatch(request) && response.Body != nil {
		response.Body = w.receivedBody(c, response.Body)
	}
	return response, err
}

func (c *call) answer(response *http.Response, err error) {
	c.process.world.flying--
	if err != nil || response.StatusCode >= http.StatusBadRequest || strings.Contains(c.request.URL.Path, "/leases") {
		c.process.world.reseed()
	}
	if c.process.isDead() {
		response, err = nil, errDead
	}
	c.done <- answer{response, err}
}

// streaming is a watch of a process.
type streaming struct {
	call   *call
	source *fakeserver.Stream
	last   time.Time // when the latest report arrives
	closed bool

	lock    sync.Mutex
	changed *sync.Cond
	buffer  bytes.Buffer
	err     error
}

// bookmarkPeriod is the time between bookmarks, which is shorter in an API server.
const bookmarkPeriod = 5 * time.Minute

// stream returns the body of the answer to a watch.
func (w *World) stream(c *call, source *fakeserver.Stream) *streaming {
	s := &streaming{call: c, source: source}
	s.changed = sync.NewCond(&s.lock)
	w.watches = append(w.watches, s)
	context.AfterFunc(c.request.Context(), func() { _ = s.Close() })
	query := c.request.URL.Query()
	timeout, err := strconv.Atoi(query.Get("timeoutSeconds"))
	if err != nil {
		timeout = 600
	}
	w.after(time.Duration(timeout)*time.Second+w.between(0, time.Second), func() { w.end(s, io.EOF) })
	if query.Get("allowWatchBookmarks") != "true" {
		return s
	}
	var bookmark func()
	bookmark = func() {
		if !s.closed {
			source.Bookmark()
			w.after(bookmarkPeriod, bookmark)
		}
	}
	w.after(w.between(0, bookmarkPeriod), bookmark)
	return s
}

// pump sends what the watches have to report.
func (w *World) pump() {
	w.watches = slices.DeleteFunc(w.watches, func(s *streaming) bool { return s.closed || s.isClosed() })
	for _, s := range w.watches {
		content := s.source.Next()
		if len(content) == 0 {
			continue
		}
		for line := range bytes.Lines(content) {
			if line = w.received(s.call, line); len(line) == 0 {
				continue
			}
			arrival := time.Now().Add(w.between(latency/10, latency))
			if w.Mutant != nil {
				arrival = arrival.Add(w.Mutant.delay)
			}
			if !arrival.After(s.last) {
				arrival = s.last.Add(w.between(1, latency/10))
			}
			s.last = arrival
			w.after(time.Until(arrival), func() { s.deliver(line) })
		}
	}
}

// delayWatches lets the watches of a process report nothing for a time.
func (w *World) delayWatches(p *process, by time.Duration) {
	for _, s := range w.watches {
		if s.call.process == p {
			s.last = time.Now().Add(by + w.between(0, time.Second))
		}
	}
}

// breakWatches ends the watches of a process.
func (w *World) breakWatches(p *process, err error) {
	for _, s := range w.watches {
		if s.call.process == p {
			// Not at the same time: informers wait for random times after that.
			w.after(w.between(0, latency), func() { w.end(s, err) })
		}
	}
}

func (s *streaming) deliver(content []byte) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.buffer.Write(content)
	s.changed.Broadcast()
}

// end ends a watch.
func (w *World) end(s *streaming, err error) {
	w.reseed()
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.closed = true; s.err == nil {
		s.err = err
	}
	s.changed.Broadcast()
}

func (s *streaming) isClosed() bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.err != nil
}

// Read implements io.Reader.
func (s *streaming) Read(p []byte) (int, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	for s.err == nil && s.buffer.Len() == 0 {
		s.changed.Wait()
	}
	if s.buffer.Len() > 0 && !s.call.process.isDead() {
		return s.buffer.Read(p)
	}
	return 0, s.err
}

// Close implements io.Closer.
func (s *streaming) Close() error {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.err == nil {
		s.err = io.ErrClosedPipe
	}
	s.changed.Broadcast()
	return s.source.Close()
}

// creates returns the namespace of a request that creates an object of a resource.
func (c *call) creates(resource string) (namespace string, ok bool) {
	if !harness.Creates(c.request, resource) {
		return "", false
	}
	_, rest, _ := strings.Cut(c.request.URL.Path, "/namespaces/")
	namespace, _, _ = strings.Cut(rest, "/")
	return namespace, true
}

// admissionTime returns how long admission webhooks take for a request.
func (w *World) admissionTime(c *call) time.Duration {
	if namespace, ok := c.creates("pods"); ok && namespace == hostile {
		return w.between(0, 2*maxDelay)
	}
	return 0
}

// admit returns why the API server refuses a request, or nil.
func (w *World) admit(c *call) *apierrors.StatusError {
	if c.request.Method != http.MethodPost && !c.refused {
		return nil
	}
	resource := path.Base(c.request.URL.Path)
	namespace, _ := c.creates(resource)
	switch {
	case w.terminating[namespace]:
		err := apierrors.NewForbidden(corev1.Resource(resource), "", fmt.Errorf("namespace %s is being terminated", namespace))
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause, Field: "metadata.namespace"}}
		return err
	case resource == "pods" && w.quota[namespace], c.refused:
		return apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("exceeded quota: pods"))
	case resource == "pods" && namespace == hostile && w.chance(50):
		return apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("admission webhook denied the request: "+strings.Repeat("no ", 10_000)))
	default:
		return nil
	}
}
