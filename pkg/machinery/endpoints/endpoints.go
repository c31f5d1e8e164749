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

// Package endpoints serves the health checks and the metrics of a controller over HTTP.
package endpoints

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
)

// Serve serves the handler at the address, host:port, until ctx is done. It returns the
// actual address once that accepts connections. With a certificate, it serves HTTPS. what
// describes the content in the log.
func Serve(ctx context.Context, what, address string, certificate Certificate, handler http.Handler) (net.Addr, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	logger := klog.FromContext(ctx)
	logger.Info("Serving "+what, "address", listener.Addr(), "https", certificate != nil)
	server := &http.Server{
		Handler:        handler,
		BaseContext:    func(net.Listener) context.Context { return ctx },
		ReadTimeout:    10 * time.Second,
		WriteTimeout:   time.Minute,
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: 32 << 10, // A token has a few thousand bytes.
	}
	if certificate != nil {
		listener = tls.NewListener(listener, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificate})
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			logger.Error(err, "Serving "+what+" ended")
		}
	}()
	return listener.Addr(), nil
}

// Certificate returns the certificate for a connection.
type Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// CertificateFromFiles returns the certificate in the PEM files. It reads the files again
// for each connection. It returns an error if the files cannot be read now.
func CertificateFromFiles(certFile, keyFile string) (Certificate, error) {
	load := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(certFile, keyFile)
		return &pair, err
	}
	_, err := load(nil)
	return load, err
}

// SelfSigned creates a self-signed certificate for this process, valid for a year.
func SelfSigned() (Certificate, error) {
	hostname, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey(hostname, nil, nil)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }, err
}

// Check responds with ok, or with 503 and the error of the check.
func Check(check func(*http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := check(r); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
}
