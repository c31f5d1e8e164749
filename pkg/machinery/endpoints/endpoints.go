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

// Package endpoints serves the health checks and the metrics of a controller over HTTP, to
// clients that it does not trust.
package endpoints

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"
)

// Serve serves the handler at the address, host:port, until ctx is done. It returns the
// actual address once that accepts connections. With a certificate, it serves HTTPS. what
// describes the content in the log.
func Serve(ctx context.Context, what, address string, certificate Certificate, handler http.Handler) (net.Addr, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	klog.FromContext(ctx).Info("Serving "+what, "address", listener.Addr(), "https", certificate != nil)
	serve(ctx, what, listener, certificate, handler)
	return listener.Addr(), nil
}

// serve is Serve for a listener. It returns at once.
func serve(ctx context.Context, what string, listener net.Listener, certificate Certificate, handler http.Handler) {
	logger := klog.FromContext(ctx)
	var protocols http.Protocols
	protocols.SetHTTP1(true) // With HTTP/2, each connection could have many requests.
	server := &http.Server{
		Handler:           handler,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		Protocols:         &protocols,
		ReadHeaderTimeout: readHeaderTimeout, // also of the TLS handshake
		ReadTimeout:       readTimeout,       // also of an idle connection
		WriteTimeout:      time.Minute,
		MaxHeaderBytes:    32 << 10, // A token has a few thousand bytes.
		ErrorLog:          log.New(errorLog{logger}, "", 0),
	}
	listener = &limitedListener{Listener: listener}
	if certificate != nil {
		listener = tls.NewListener(listener, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificate})
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			logger.Error(err, "Serving "+what+" ended")
		}
	}()
}

// errorLog counts the handshakes that fail, because any client can cause them, and logs
// the other errors of a server.
type errorLog struct{ logger klog.Logger }

func (l errorLog) Write(line []byte) (int, error) {
	if text := string(line); strings.HasPrefix(text, "http: TLS handshake error") {
		closedConnections.WithLabelValues(handshake).Inc()
		l.logger.V(4).Info("TLS handshake failed", "error", text)
	} else {
		l.logger.Error(nil, "Error of the HTTP server", "error", text)
	}
	return len(line), nil
}

// Certificate returns the certificate for a connection.
type Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// CertificateFromFiles returns the certificate in the PEM files, which it reads again for
// each connection. While a file does not exist, it returns the other certificate.
func CertificateFromFiles(certFile, keyFile string, other Certificate) Certificate {
	errorLog := rate.Sometimes{Interval: logInterval}
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(certFile, keyFile)
		if errors.Is(err, fs.ErrNotExist) {
			return other(hello)
		}
		if err != nil {
			errorLog.Do(func() { klog.FromContext(hello.Context()).Error(err, "Cannot load the certificate", "file", certFile) })
			return nil, err
		}
		return &pair, nil
	}
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

// Nobody but the operator of the controller decides how long it keeps a connection, or how
// much it logs.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	logInterval       = time.Minute // between two errors that a client can cause
)

// Any client may send any token. Accepted tokens are cached. Questions to the API server are
// limited, for each source address and in total. So guessed tokens cost little, and a few sources
// cannot lock out clients with a valid token.
const (
	allowedTTL   = 2 * time.Minute // as in the API server's own cache of tokens
	maxAllowed   = 128
	maxQuestions = 5  // per second from one source; twice as many may come at once
	maxOfAll     = 50 // per second from all sources, so that they do not delay the work
	maxSources   = 4096
	askTimeout   = 10 * time.Second
)

// Authorize passes on the requests whose bearer token the API server accepts and whose
// user has the permission. Other requests get 401 or 403, like from the API server, or 429
// if there are too many.
func Authorize(client kubernetes.Interface, permission authorizationv1.ResourceAttributes, handler http.Handler) http.Handler {
	allowed := cache.NewLRUExpireCache(maxAllowed) // No guess evicts one of them.
	sources := sources{limiters: lru.New(maxSources), ofAll: newLimiter(maxOfAll)}
	errorLog := rate.Sometimes{Interval: logInterval}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !found || token == "" {
			http.Error(w, "a bearer token is required", http.StatusUnauthorized)
			return
		}
		key := sha256.Sum256([]byte(token))
		if _, found := allowed.Get(key); found {
			handler.ServeHTTP(w, r)
			return
		}
		if !sources.accept(sourceOf(r.RemoteAddr)) {
			http.Error(w, http.StatusText(http.StatusTooManyRequests), http.StatusTooManyRequests)
			return
		}
		status, err := ask(r.Context(), client, token, permission)
		switch {
		case err != nil:
			if r.Context().Err() == nil {
				errorLog.Do(func() { klog.FromContext(r.Context()).Error(err, "Cannot authorize a request") })
			}
			http.Error(w, "cannot check your permission with the API server", http.StatusInternalServerError)
		case status != http.StatusOK:
			http.Error(w, http.StatusText(status), status)
		default:
			allowed.Add(key, nil, allowedTTL)
			handler.ServeHTTP(w, r)
		}
	})
}

// sources limits the questions for each source address, and for all together.
type sources struct {
	lock     sync.Mutex
	limiters *lru.Cache
	ofAll    flowcontrol.PassiveRateLimiter
}

func newLimiter(perSecond int) flowcontrol.PassiveRateLimiter {
	return flowcontrol.NewTokenBucketPassiveRateLimiter(float32(perSecond), 2*perSecond)
}

// accept reports whether one more question for the source is within the limits.
func (s *sources) accept(source string) bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	limiter, found := s.limiters.Get(source)
	if !found {
		limiter = newLimiter(maxQuestions)
		s.limiters.Add(source, limiter)
	}
	return limiter.(flowcontrol.PassiveRateLimiter).TryAccept() && s.ofAll.TryAccept()
}

// ask asks the API server to whom a token belongs, and whether that user has the
// permission. It returns the HTTP status for the response.
func ask(ctx context.Context, client kubernetes.Interface, token string, permission authorizationv1.ResourceAttributes) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	review, err := client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	if err != nil {
		return 0, err
	}
	if !review.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	user := review.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for name, value := range user.Extra {
		extra[name] = authorizationv1.ExtraValue(value)
	}
	access, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               user.Username,
			UID:                user.UID,
			Groups:             user.Groups,
			Extra:              extra,
			ResourceAttributes: &permission,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return 0, err
	}
	if !access.Status.Allowed {
		return http.StatusForbidden, nil
	}
	return http.StatusOK, nil
}
