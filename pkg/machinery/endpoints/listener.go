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
	"net"
	"slices"
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Each endpoint keeps at most these numbers of connections. A connection with TLS needs 30 to
// 70 kB.
const (
	maxConnections       = 128
	maxSourceConnections = 8
)

// Values of label reason of closedConnections.
const (
	handshake = "handshake" // The TLS handshake failed, or took too long.
	replaced  = "replaced"  // There were too many connections, and this was the oldest.
)

var closedConnections = metrics.NewCounterVec(&metrics.CounterOpts{
	Name:           "cnat_connections_closed_total",
	Help:           "Number of connections of clients to the endpoints that the controller closed, by reason: handshake (the TLS handshake failed, or took too long), replaced (there were too many, and it was the oldest).",
	StabilityLevel: metrics.ALPHA,
}, []string{"reason"})

// RegisterMetrics registers the metrics of all endpoints. Call it only once.
func RegisterMetrics() {
	legacyregistry.MustRegister(closedConnections)
	for _, reason := range []string{handshake, replaced} {
		closedConnections.WithLabelValues(reason)
	}
}

// limitedListener accepts each connection. If there are too many, it closes the oldest: that of
// the same source, or else that of all. So those of the kubelet and of Prometheus, which are
// short, do not wait until the connections of others time out.
type limitedListener struct {
	net.Listener
	lock sync.Mutex
	open []*connection // the oldest first
}

// Accept is that of net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: accepted, source: sourceOf(accepted.RemoteAddr().String()), listener: l}
	if oldest := l.add(c); oldest != nil {
		closedConnections.WithLabelValues(replaced).Inc()
		_ = oldest.Close()
	}
	return c, nil
}

// add adds a connection, and returns the one to close for it, or nil.
func (l *limitedListener) add(c *connection) *connection {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.open = append(l.open, c)
	var ofSource []*connection
	for _, open := range l.open {
		if open.source == c.source {
			ofSource = append(ofSource, open)
		}
	}
	switch {
	case len(ofSource) > maxSourceConnections:
		return ofSource[0]
	case len(l.open) > maxConnections:
		return l.open[0]
	}
	return nil
}

type connection struct {
	net.Conn
	source   string
	listener *limitedListener
}

// Close is that of net.Conn.
func (c *connection) Close() error {
	c.listener.lock.Lock()
	c.listener.open = slices.DeleteFunc(c.listener.open, func(open *connection) bool { return open == c })
	c.listener.lock.Unlock()
	return c.Conn.Close()
}

// sourceOf returns the address in remoteAddr, host:port. An IPv6 address counts alone, because
// all Pods of a node may share a /64.
func sourceOf(remoteAddr string) string {
	host, _, _ := net.SplitHostPort(remoteAddr)
	return host
}
