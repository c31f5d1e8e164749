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
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
)

var permission = authorizationv1.ResourceAttributes{Namespace: "home", Verb: "get", Group: "example.com", Resource: "metrics"}

// apiServer simulates an API server that knows the tokens "good" of alice, who has the
// permission, and "other" of bob, who does not. It counts requests.
type apiServer struct {
	asked int
	away  bool
}

// authorize lets those through to a handler who have the permission.
func (s *apiServer) authorize(handler http.Handler) http.Handler {
	client := fake.NewClientset()
	client.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		s.asked++
		if s.away {
			return true, nil, errors.New("connection refused")
		}
		review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		user, known := map[string]string{"good": "alice", "other": "bob"}[review.Spec.Token]
		review.Status = authenticationv1.TokenReviewStatus{Authenticated: known, User: authenticationv1.UserInfo{
			Username: user, UID: "uid", Groups: []string{"group"}, Extra: map[string]authenticationv1.ExtraValue{"extra": {"value"}},
		}}
		return true, review, nil
	})
	client.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		s.asked++
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		spec := review.Spec
		review.Status.Allowed = spec.User == "alice" && spec.UID == "uid" && fmt.Sprint(spec.Groups, spec.Extra) == "[group] map[extra:[value]]" &&
			spec.NonResourceAttributes == nil && *spec.ResourceAttributes == permission
		return true, review, nil
	})
	return Authorize(client, permission, handler)
}

// guarded is a handler that an API server guards.
type guarded struct {
	apiServer
	http.Handler
}

func newGuarded() *guarded {
	g := &guarded{}
	g.Handler = g.authorize(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "secret") }))
	return g
}

// get returns the status of the answer to a source with the content of a header.
func (g *guarded) get(ctx context.Context, source, header string) int {
	request := httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", http.NoBody)
	request.RemoteAddr = net.JoinHostPort(source, "1234")
	request.Header.Set("Authorization", header)
	answer := httptest.NewRecorder()
	g.ServeHTTP(answer, request)
	if (answer.Body.String() == "secret") != (answer.Code == http.StatusOK) {
		return -1
	}
	return answer.Code
}

// TestAuthorize does not ask the API server without a token. TestAuthorizeRemembers has tokens.
func TestAuthorize(t *testing.T) {
	g := newGuarded()
	for _, header := range []string{"Bearer ", "Basic good"} {
		if status := g.get(t.Context(), "192.0.2.1", header); status != http.StatusUnauthorized || g.asked > 0 {
			t.Errorf("%q: answered %d after %d questions, want 401 after none", header, status, g.asked)
		}
	}
}

// TestAuthorizeRemembers checks that a permission is cached for a while, and nothing else.
func TestAuthorizeRemembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded()
		g.away = true
		get := func(token string, want, wantAsked int) {
			t.Helper()
			if got := g.get(t.Context(), "192.0.2.1", "Bearer "+token); got != want || g.asked != wantAsked {
				t.Errorf("%s: answered %d after %d questions, want %d after %d", token, got, g.asked, want, wantAsked)
			}
		}
		get("good", 500, 1)
		g.away = false
		get("good", 200, 3)
		get("other", 403, 5)
		get("bad", 401, 6)
		time.Sleep(allowedTTL - 1)
		get("good", 200, 6)
		get("other", 403, 8)
		get("bad", 401, 9)
		time.Sleep(2 * time.Nanosecond)
		get("good", 200, 11)
	})
}

// TestAuthorizeLogs asks an API server that is away with 1,000 tokens, each from another
// source, so that each is asked for. This is logged at most once a minute.
func TestAuthorizeLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded()
		g.away = true
		logger, logged := bufferedLogger(t)
		for i := range 1000 {
			g.get(klog.NewContext(t.Context(), logger), fmt.Sprintf("192.0.%d.%d", i/250, i%250), fmt.Sprint("Bearer guess", i))
			time.Sleep(90 * time.Second / 1000)
		}
		if got := strings.Count(logged(), "Cannot authorize a request"); g.asked != 1000 || got != 2 {
			t.Errorf("in one and a half minutes, %d questions are logged %d times, want 1000 questions logged twice:\n%s", g.asked, got, logged())
		}
	})
}

// TestAuthorizeGuesses guesses 1,000 tokens from one source: this costs the API server
// few requests, and another source with a good token is still served, whether its answer
// is cached or not.
func TestAuthorizeGuesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded()
		g.get(t.Context(), "2001:db8::1", "Bearer good")
		g.asked = 0
		statuses := map[int]int{}
		var lock sync.Mutex
		var guesses sync.WaitGroup
		for i := range 1000 {
			guesses.Go(func() {
				status := g.get(t.Context(), "192.0.2.1", fmt.Sprint("Bearer guess", i))
				lock.Lock()
				defer lock.Unlock()
				statuses[status]++
			})
		}
		guesses.Wait()
		if want := 2 * maxQuestions; g.asked != want || statuses[401] != want || statuses[429] != 1000-want {
			t.Errorf("%d questions, answered %v; want %d questions, and 429 for the rest", g.asked, statuses, want)
		}
		if got := g.get(t.Context(), "2001:db8::1", "Bearer good"); got != 200 || g.asked > 2*maxQuestions {
			t.Errorf("a good token whose answer is kept: answered %d after %d questions", got, g.asked)
		}
		if got := g.get(t.Context(), "2001:db8::1", "Bearer other"); got != 403 {
			t.Errorf("a token that is new, from another source: answered %d, want 403", got)
		}
		time.Sleep(allowedTTL - time.Minute)
		for i := range 1000 { // slowly, so that each is asked for
			time.Sleep(time.Second / maxQuestions)
			g.get(t.Context(), "192.0.2.1", fmt.Sprint("Bearer slow guess", i))
			if i%100 == 0 {
				if got := g.get(t.Context(), "2001:db8::1", "Bearer good"); got != 200 {
					t.Errorf("a good token, after %d guesses: answered %d", i, got)
				}
			}
		}
		g.get(t.Context(), "192.0.2.1", "Bearer one more guess")
		time.Sleep(time.Second / maxQuestions)
		if got := g.get(t.Context(), "192.0.2.1", "Bearer other"); got != 403 {
			t.Errorf("the source that guessed, later: answered %d, want 403", got)
		}
	})
}

// TestAuthorizeGuessesOfMany guesses a token from each of 1,000 sources at once.
func TestAuthorizeGuessesOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded()
		g.get(t.Context(), "2001:db8::1", "Bearer good")
		g.asked = 0
		for i := range 1000 {
			g.get(t.Context(), fmt.Sprintf("192.0.%d.%d", i/250, i%250), fmt.Sprint("Bearer guess", i))
		}
		if g.asked > 2*maxOfAll {
			t.Errorf("%d questions, want at most %d", g.asked, 2*maxOfAll)
		}
		if got := g.get(t.Context(), "2001:db8::1", "Bearer good"); got != 200 {
			t.Errorf("a good token whose answer is kept: answered %d", got)
		}
		time.Sleep(time.Second)
		if got := g.get(t.Context(), "2001:db8::2", "Bearer other"); got != 403 {
			t.Errorf("a new token, a second later: answered %d, want 403", got)
		}
	})
}

// TestServe serves with and without a certificate until it is stopped.
func TestServe(t *testing.T) {
	for name, newCertificate := range map[string]func() (Certificate, error){
		"plain":       func() (Certificate, error) { return nil, nil },
		"self-signed": SelfSigned,
	} {
		t.Run(name, func(t *testing.T) {
			certificate, err := newCertificate()
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			address, err := Serve(ctx, "it", "127.0.0.1:0", certificate, Check(func(r *http.Request) error {
				if r.URL.Path == "/bad" {
					return errors.New("not yet")
				}
				return nil
			}))
			if err != nil {
				t.Fatal(err)
			}
			url := "http://" + address.String()
			if certificate != nil {
				url = "https://" + address.String()
			}
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
			for path, want := range map[string]string{"/good": "200 ok\n", "/bad": "503 not yet\n"} {
				answer, err := client.Get(url + path)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(answer.Body)
				if got := fmt.Sprintf("%d %s", answer.StatusCode, body); got != want || err != nil {
					t.Errorf("%s: got %q, %v; want %q", path, got, err, want)
				}
				_ = answer.Body.Close()
			}
			if _, err := Serve(ctx, "it", address.String(), nil, nil); err == nil || !strings.Contains(err.Error(), "address already in use") {
				t.Errorf("served twice at one address: %v", err)
			}
			stop()
			deadline := time.Now().Add(10 * time.Second)
			for {
				answer, err := client.Get(url + "/good")
				if err != nil {
					break
				}
				_ = answer.Body.Close()
				if time.Now().After(deadline) {
					t.Fatal("it goes on serving")
				}
			}
		})
	}
}

// TestCertificateFromFiles has a certificate in files that come later, are replaced, and break.
func TestCertificateFromFiles(t *testing.T) {
	certFile, keyFile := filepath.Join(t.TempDir(), "tls.crt"), filepath.Join(t.TempDir(), "tls.key")
	other := &tls.Certificate{}
	certificate := CertificateFromFiles(certFile, keyFile, func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return other, nil })
	if got, err := certificate(nil); got != other || err != nil {
		t.Errorf("without files: got %v, %v; want the other certificate", got, err)
	}
	for range 2 {
		certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey("localhost", nil, nil)
		if err = errors.Join(err, os.WriteFile(certFile, certPEM, 0o600), os.WriteFile(keyFile, keyPEM, 0o600)); err != nil {
			t.Fatal(err)
		}
		want, err := tls.X509KeyPair(certPEM, keyPEM)
		if got, gotErr := certificate(nil); err != nil || gotErr != nil || !bytes.Equal(got.Certificate[0], want.Certificate[0]) {
			t.Errorf("with files: got %v, %v; want what is in them", got, gotErr)
		}
	}
	if err := os.WriteFile(certFile, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	serving(t, certificate, http.NotFoundHandler(), func(t *testing.T, n network, logged func() string) {
		t.Helper()
		for range 3 {
			client := tls.Client(n.dial("192.0.2.1"), &tls.Config{InsecureSkipVerify: true})
			if err := client.HandshakeContext(t.Context()); err == nil {
				t.Error("with a broken file, a handshake succeeds")
			}
			_ = client.Close()
		}
		synctest.Wait()
		if strings.Count(logged(), "Cannot load the certificate") != 1 {
			t.Errorf("a broken file is not logged once:\n%s", logged())
		}
	})
}
