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

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
)

// pipes is a listener in memory, so that a real server and client can run in simulated time.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	conn, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (pipes) Close() error   { return nil }
func (pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	server, client := net.Pipe()
	p <- server
	return client, nil
}

// TestLimited uses a server that does not answer, or does not end its answer in time.
func TestLimited(t *testing.T) {
	for path, want := range map[string]string{"/nothing": "", "/nothing?watch=true": "", "/half": "", "/slow": "", "/slow?watch=true": "end", "/slow?follow=true": "end"} {
		t.Run(path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				listener := pipes(make(chan net.Conn))
				server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/nothing" {
						<-r.Context().Done()
						return
					}
					w.(http.Flusher).Flush()
					var end <-chan time.Time
					if r.URL.Path == "/slow" {
						end = time.After(time.Minute)
					}
					select {
					case <-end:
						fmt.Fprint(w, "end")
					case <-r.Context().Done():
					}
				})}
				go func() { _ = server.Serve(listener) }()
				transport := &http.Transport{DialContext: listener.dial}
				defer func() {
					transport.CloseIdleConnections()
					close(listener)
					_ = server.Close()
				}()
				config := (&cli{}).limits(t.Context(), &rest.Config{Transport: transport, Timeout: 2 * time.Second})
				client, err := rest.HTTPClientFor(config)
				if err != nil {
					t.Fatal(err)
				}
				request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://server"+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				var body []byte
				response, err := client.Do(request)
				if err == nil {
					body, err = io.ReadAll(response.Body)
					_ = response.Body.Close()
				}
				if err != nil && (!strings.Contains(err.Error(), "the API server has not answered for 2s") || !isAway(err)) {
					t.Error(err)
				}
				if (err == nil) != (want != "") || string(body) != want {
					t.Errorf("got %q and %v, want %q", body, err, want)
				}
			})
		})
	}
}

// TestRequestTimeout runs commands against a server that does not answer.
func TestRequestTimeout(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0") // It accepts no connection: the kernel does.
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	for _, command := range []string{"list", "show x", "now --name=x -- x", "now --from=cronjob/x"} {
		w := newWorld(t)
		w.getter = getter{w.config}
		code := w.run(t, slices.Concat([]string{"--server=http://" + server.Addr().String(), "--request-timeout=20ms"}, strings.Fields(command))...)
		if code != exitError || !strings.Contains(w.stderr.String(), "the API server has not answered for 20ms") {
			t.Errorf("%s: exit code %d, stderr %q", command, code, w.stderr.String())
		}
	}
}

// silent is a server that never answers.
type silent struct{}

func (silent) RoundTrip(request *http.Request) (*http.Response, error) {
	<-request.Context().Done()
	return nil, context.Cause(request.Context())
}

// TestLimitedByCommand interrupts a command whose request has a context of its own.
func TestLimitedByCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		command, interrupt := context.WithTimeout(t.Context(), time.Second)
		defer interrupt()
		began := time.Now()
		request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://server", nil)
		if err != nil {
			t.Fatal(err)
		}
		config := (&cli{}).limits(command, &rest.Config{Transport: silent{}})
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.Do(request)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
	})
}
