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

package endpoints

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

func TestMain(m *testing.M) {
	RegisterMetrics()
	os.Exit(m.Run())
}

// network is a listener in memory, whose clients choose their addresses.
type network struct {
	net.Listener // There is none: a call of its other methods panics.
	dialed       chan net.Conn
}

func (n network) Accept() (net.Conn, error) {
	connection, open := <-n.dialed
	if !open {
		return nil, net.ErrClosed
	}
	return connection, nil
}

func (n network) Close() error {
	close(n.dialed)
	return nil
}

func (n network) dial(source string) net.Conn {
	client, server := net.Pipe()
	n.dialed <- from{server, source}
	return client
}

// from is a connection of a client with that address.
type from struct {
	net.Conn
	source string
}

func (f from) RemoteAddr() net.Addr { return f }
func (from) Network() string        { return "tcp" }
func (f from) String() string       { return net.JoinHostPort(f.source, "1234") }

var selfSigned = sync.OnceValues(SelfSigned)

// serving serves a handler to a test, in which logged returns what is logged.
func serving(t *testing.T, certificate Certificate, handler http.Handler, test func(t *testing.T, n network, logged func() string)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		logger, logged := bufferedLogger(t)
		ctx, stop := context.WithCancel(klog.NewContext(t.Context(), logger))
		defer stop()
		n := network{dialed: make(chan net.Conn)}
		serve(ctx, "it", n, certificate, handler)
		test(t, n, logged)
	})
}

// attack serves the metrics, over HTTPS and for alice only, or health, to a test that attacks them.
// Nothing may be logged.
func attack(t *testing.T, secure bool, test func(t *testing.T, n network)) {
	t.Helper()
	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	var certificate Certificate
	if secure {
		handler = (&apiServer{}).authorize(handler)
		var err error
		if certificate, err = selfSigned(); err != nil {
			t.Fatal(err)
		}
	}
	serving(t, certificate, handler, func(t *testing.T, n network, logged func() string) {
		t.Helper()
		test(t, n)
		if logged() != "" {
			t.Errorf("logged: %s", logged())
		}
	})
}

// bufferedLogger returns a logger with the verbosity that is deployed, and what it has logged.
func bufferedLogger(t *testing.T) (klog.Logger, func() string) {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(2)))
	return logger, logger.GetSink().(ktesting.Underlier).GetBuffer().String
}

func closed(t *testing.T, reason string) int {
	t.Helper()
	count, err := testutil.GetCounterMetricValue(closedConnections.WithLabelValues(reason))
	if err != nil {
		t.Fatal(err)
	}
	return int(count)
}

// secure does the handshake of a client.
func secure(t *testing.T, connection net.Conn) net.Conn {
	t.Helper()
	client := tls.Client(connection, &tls.Config{InsecureSkipVerify: true})
	if err := client.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return client
}

// wantScrape requests the metrics, or health, from the source.
func wantScrape(t *testing.T, n network, source string, secure bool) {
	t.Helper()
	url := "http://it/"
	if secure {
		url = "https://it/"
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer good")
	client := &http.Client{Transport: &http.Transport{
		DialContext:     func(context.Context, string, string) (net.Conn, error) { return n.dial(source), nil },
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true,
	}}
	began := time.Now()
	answer, err := client.Do(request)
	if err != nil {
		t.Errorf("from %s: %v", source, err)
		return
	}
	_ = answer.Body.Close()
	if waited := time.Since(began); answer.StatusCode != http.StatusOK || waited > 0 {
		t.Errorf("from %s: answered %d after %s, want 200 at once", source, answer.StatusCode, waited)
	}
}

// TestIdleConnections opens hundreds of connections that do nothing. The server keeps few of
// them for some seconds, and answers others meanwhile.
func TestIdleConnections(t *testing.T) {
	const attempts = 3 * maxConnections / 2
	for name, tc := range map[string]struct {
		secure bool
		source func(i int) string
		open   int // at the end
	}{
		"metrics, one source":      {secure: true, source: func(int) string { return "127.0.0.1" }, open: maxSourceConnections},
		"health, one IPv6 network": {source: func(i int) string { return fmt.Sprint("2001:db8::", i) }, open: maxConnections},
	} {
		t.Run(name, func(t *testing.T) {
			attack(t, tc.secure, func(t *testing.T, n network) {
				t.Helper()
				before := closed(t, replaced)
				var open atomic.Int32
				for i := range attempts {
					connection := n.dial(tc.source(i))
					if tc.secure {
						connection = secure(t, connection)
					}
					open.Add(1)
					go func() {
						_, _ = io.Copy(io.Discard, connection)
						open.Add(-1)
					}()
				}
				synctest.Wait()
				if got := int(open.Load()); got != tc.open {
					t.Errorf("the server keeps %d connections, want %d", got, tc.open)
				}
				if got := closed(t, replaced) - before; got != attempts-tc.open {
					t.Errorf("%d connections count as replaced, want %d", got, attempts-tc.open)
				}
				for _, source := range []string{"127.0.0.2", tc.source(0)} {
					wantScrape(t, n, source, tc.secure)
				}
				time.Sleep(readHeaderTimeout)
				synctest.Wait()
				if got := open.Load(); got != 0 {
					t.Errorf("after %s, the server keeps %d idle connections", readHeaderTimeout, got)
				}
			})
		})
	}
}

// TestSlowClients checks when the server closes the connection of a client that is slow.
func TestSlowClients(t *testing.T) {
	for name, tc := range map[string]struct {
		plain bool   // without a handshake
		sends string // then nothing
		want  time.Duration
	}{
		"no handshake":         {plain: true, want: readHeaderTimeout},
		"a part of the header": {sends: "GET /metrics HTTP/1.1\r\nHost: it\r\nAuthor", want: readHeaderTimeout},
		"idle after a request": {sends: "GET /metrics HTTP/1.1\r\nHost: it\r\n\r\n", want: readTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			attack(t, true, func(t *testing.T, n network) {
				t.Helper()
				connection := n.dial("192.0.2.1")
				if !tc.plain {
					connection = secure(t, connection)
				}
				began := time.Now()
				go func() { _, _ = io.WriteString(connection, tc.sends) }()
				_, _ = io.Copy(io.Discard, connection)
				if got := time.Since(began); got != tc.want {
					t.Errorf("it is closed after %s, want %s", got, tc.want)
				}
			})
		})
	}
}

// TestLargeRequests sends a header without an end. The server does not read it.
func TestLargeRequests(t *testing.T) {
	attack(t, true, func(t *testing.T, n network) {
		t.Helper()
		connection := secure(t, n.dial("192.0.2.1"))
		go func() { _, _ = io.Copy(io.Discard, connection) }()
		begin := strings.NewReader("GET /metrics HTTP/1.1\r\nHost: it\r\nAuthorization: Bearer ")
		sent, err := io.Copy(connection, io.MultiReader(begin, io.LimitReader(zeros{}, 1_000_000)))
		if err == nil || sent > 300_000 {
			t.Errorf("it sent %d bytes, and then got %v", sent, err)
		}
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

// TestBadHandshakes counts handshakes that fail, and logs nothing.
func TestBadHandshakes(t *testing.T) {
	for name, begin := range map[string]func(*testing.T, net.Conn){
		"an old version": func(t *testing.T, connection net.Conn) {
			t.Helper()
			client := tls.Client(connection, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
			if err := client.HandshakeContext(t.Context()); err == nil {
				t.Error("the server accepts TLS 1.1")
			}
		},
		"closed": func(*testing.T, net.Conn) {},
	} {
		t.Run(name, func(t *testing.T) {
			attack(t, true, func(t *testing.T, n network) {
				t.Helper()
				before := closed(t, handshake)
				for range 20 {
					connection := n.dial("192.0.2.1")
					begin(t, connection)
					_ = connection.Close()
					synctest.Wait()
				}
				if got := closed(t, handshake) - before; got != 20 {
					t.Errorf("%d of 20 are counted", got)
				}
			})
		})
	}
}

// TestPanicIsLogged has a handler that panics: that is an error of the controller.
func TestPanicIsLogged(t *testing.T) {
	oops := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("oops") })
	serving(t, nil, oops, func(t *testing.T, n network, logged func() string) {
		t.Helper()
		connection := n.dial("192.0.2.1")
		go func() { _, _ = io.WriteString(connection, "GET / HTTP/1.1\r\nHost: it\r\n\r\n") }()
		_, _ = io.Copy(io.Discard, connection)
		synctest.Wait()
		if !strings.Contains(logged(), "oops") {
			t.Errorf("logged: %q", logged())
		}
	})
}
