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

package fakeserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
)

// Stream is the response body of a watch.
type Stream struct {
	server  *Server
	request *request
	outages int // of the server, when the stream began
	next    int // the version of the next change
	buffer  bytes.Buffer
	closed  bool
}

// watch returns the response body of a watch.
func (s *Server) watch(ctx context.Context, r *request) *Stream {
	stream := &Stream{server: s, request: r, outages: s.outages, next: s.version() + 1}
	if version, err := strconv.Atoi(r.query.Get("resourceVersion")); err == nil && version > 0 {
		stream.next = version + 1
	}
	if r.query.Get("sendInitialEvents") == "true" {
		stream.next = s.version() + 1
		for _, object := range s.list(r) {
			stream.write(watch.Added, r.shown(object))
		}
		stream.bookmark(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	context.AfterFunc(ctx, func() { _ = stream.Close() })
	return stream
}

func (s *Stream) write(eventType watch.EventType, object any) {
	content, err := json.Marshal(map[string]any{"type": eventType, "object": object})
	if err != nil {
		panic(err)
	}
	s.buffer.Write(append(content, '\n'))
}

// Bookmark reports the current version, as an API server does about once a minute.
func (s *Stream) Bookmark() {
	s.server.lock.Lock()
	defer s.server.lock.Unlock()
	for s.buffer.Len() == 0 && s.report() { // The changes come first.
	}
	s.bookmark(nil)
}

func (s *Stream) bookmark(annotations map[string]string) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kinds[s.request.groupResource])
	object.SetResourceVersion(strconv.Itoa(s.server.version()))
	object.SetAnnotations(annotations)
	s.write(watch.Bookmark, s.request.shown(object))
}

// report writes the next change to the buffer if it concerns the watch. It returns false if
// there is no further change.
func (s *Stream) report() bool {
	if s.next > s.server.version() {
		return false
	}
	if s.next <= s.server.forgotten {
		status := apierrors.NewResourceExpired(fmt.Sprintf("version %d is too old", s.next-1)).Status()
		status.Kind, status.APIVersion = "Status", "v1"
		s.write(watch.Error, status)
		s.next, s.closed = s.server.version()+1, true
		return true
	}
	c := s.server.log[s.next-s.server.forgotten-1]
	s.next++
	if !c.target.isIn(s.request.target) {
		return true
	}
	was, is := s.request.selects(c.old), s.request.selects(c.object) && c.eventType != watch.Deleted
	switch object := s.request.shown(c.object); {
	case is && was:
		s.write(watch.Modified, object)
	case is:
		s.write(watch.Added, object)
	case was:
		s.write(watch.Deleted, object)
	}
	return true
}

// Next returns what the watch has to report by now, or nil.
func (s *Stream) Next() []byte {
	s.server.lock.Lock()
	defer s.server.lock.Unlock()
	for !s.closed && s.report() {
	}
	content := bytes.Clone(s.buffer.Bytes())
	s.buffer.Reset()
	return content
}

// Read implements io.Reader.
func (s *Stream) Read(p []byte) (int, error) {
	s.server.lock.Lock()
	defer s.server.lock.Unlock()
	for {
		switch {
		case s.outages != s.server.outages:
			return 0, fmt.Errorf("read: %w", syscall.ECONNRESET)
		case s.buffer.Len() > 0:
			return s.buffer.Read(p)
		case s.closed:
			return 0, io.ErrClosedPipe
		case !s.report():
			s.server.changed.Wait()
		}
	}
}

// Close implements io.Closer.
func (s *Stream) Close() error {
	s.server.lock.Lock()
	defer s.server.lock.Unlock()
	s.closed = true
	s.server.changed.Broadcast()
	return nil
}
