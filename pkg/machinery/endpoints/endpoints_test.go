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
)

// apiServer simulates an API server that knows the tokens "good" of alice, who may get
// /metrics, and "other" of bob, who may not. It counts requests.
func apiServer(asked *int, away *bool) *fake.Clientset {
	client := fake.NewClientset()
	client.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		*asked++
		if *away {
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
		*asked++
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		spec := review.Spec
		review.Status.Allowed = spec.User == "alice" && spec.UID == "uid" && fmt.Sprint(spec.Groups, spec.Extra) == "[group] map[extra:[value]]" &&
			*spec.NonResourceAttributes == authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"}
		return true, review, nil
	})
	return client
}

func TestAuthorize(t *testing.T) {
	for name, tc := range map[string]struct {
		header string
		path   string
		away   bool
		// expectations
		status int
		asked  int
	}{
		"may":                             {header: "Bearer good", status: 200, asked: 2},
		"not allowed":                     {header: "Bearer other", status: 403, asked: 2},
		"not allowed to get another path": {header: "Bearer good", path: "/debug", status: 403, asked: 2},
		"unknown token":                   {header: "Bearer bad", status: 401, asked: 1},
		"empty token":                     {header: "Bearer ", status: 401, asked: 0},
		"no token":                        {status: 401, asked: 0},
		"not a token":                     {header: "Basic good", status: 401, asked: 0},
		"the API server is unavailable":   {header: "Bearer good", away: true, status: 500, asked: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var asked int
			handler := Authorize(apiServer(&asked, &tc.away), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "secret") }))
			path := tc.path
			if path == "" {
				path = "/metrics"
			}
			request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
			if tc.header != "" {
				request.Header.Set("Authorization", tc.header)
			}
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, request)
			if answer.Code != tc.status || asked != tc.asked {
				t.Errorf("answered %d after %d questions, want %d after %d", answer.Code, asked, tc.status, tc.asked)
			}
			if secret := strings.Contains(answer.Body.String(), "secret"); secret != (tc.status == 200) {
				t.Errorf("answered %q", answer.Body)
			}
		})
	}
}

// TestAuthorizeRemembers checks that answers are cached for a while, each for its token
// and path, but errors are not.
func TestAuthorizeRemembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked int
		away := true
		handler := Authorize(apiServer(&asked, &away), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		get := func(token, path string, want, wantAsked int) {
			t.Helper()
			if got := getFrom(t, handler, "192.0.2.1", token, path); got != want || asked != wantAsked {
				t.Errorf("%s gets %s: answered %d after %d questions, want %d after %d", token, path, got, asked, want, wantAsked)
			}
		}
		get("good", "/metrics", 500, 1)
		away = false
		get("good", "/metrics", 200, 3)
		get("other", "/metrics", 403, 5)
		get("bad", "/metrics", 401, 6)
		get("good", "/debug", 403, 8)
		time.Sleep(refusedTTL - 1)
		get("good", "/metrics", 200, 8)
		get("other", "/metrics", 403, 8)
		get("bad", "/metrics", 401, 8)
		time.Sleep(2 * time.Nanosecond)
		get("other", "/metrics", 403, 10)
		get("bad", "/metrics", 401, 11)
		time.Sleep(allowedTTL - refusedTTL - 2*time.Nanosecond)
		get("good", "/metrics", 200, 11)
		time.Sleep(2 * time.Nanosecond)
		get("good", "/metrics", 200, 13)
	})
}

// TestAuthorizeGuesses guesses 1,000 tokens from one source: this costs the API server
// few requests, and another source with a good token is still served, whether its answer
// is cached or not.
func TestAuthorizeGuesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked int
		var away bool
		handler := Authorize(apiServer(&asked, &away), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		getFrom(t, handler, "2001:db8::1", "good", "/metrics")
		asked = 0
		statuses := map[int]int{}
		var lock sync.Mutex
		var guesses sync.WaitGroup
		for i := range 1000 {
			guesses.Go(func() {
				status := getFrom(t, handler, "192.0.2.1", fmt.Sprint("guess", i), "/metrics")
				lock.Lock()
				defer lock.Unlock()
				statuses[status]++
			})
		}
		guesses.Wait()
		if want := 2 * maxQuestions; asked != want || statuses[401] != want || statuses[429] != 1000-want {
			t.Errorf("%d questions, answered %v; want %d questions, and 429 for the rest", asked, statuses, want)
		}
		if got := getFrom(t, handler, "2001:db8::1", "good", "/metrics"); got != 200 || asked > 2*maxQuestions {
			t.Errorf("a good token whose answer is kept: answered %d after %d questions", got, asked)
		}
		if got := getFrom(t, handler, "2001:db8::1", "other", "/metrics"); got != 403 {
			t.Errorf("a token that is new, from another source: answered %d, want 403", got)
		}
		time.Sleep(allowedTTL - time.Minute)
		for i := range 1000 { // slowly, so that each is asked for
			time.Sleep(time.Second / maxQuestions)
			getFrom(t, handler, "192.0.2.1", fmt.Sprint("slow guess", i), "/metrics")
			if i%100 == 0 {
				if got := getFrom(t, handler, "2001:db8::1", "good", "/metrics"); got != 200 {
					t.Errorf("a good token, after %d guesses: answered %d", i, got)
				}
			}
		}
		getFrom(t, handler, "192.0.2.1", "one more guess", "/metrics")
		time.Sleep(time.Second / maxQuestions)
		if got := getFrom(t, handler, "192.0.2.1", "good", "/debug"); got != 403 {
			t.Errorf("the source that guessed, later: answered %d, want 403", got)
		}
	})
}

// getFrom returns the status of a response.
func getFrom(t *testing.T, handler http.Handler, source, token, path string) int {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
	request.RemoteAddr = net.JoinHostPort(source, "1234")
	request.Header.Set("Authorization", "Bearer "+token)
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, request)
	return answer.Code
}

// TestServe serves with and without a certificate until it is stopped.
func TestServe(t *testing.T) {
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	if err := errors.Join(os.WriteFile(certFile, certPEM, 0o600), os.WriteFile(keyFile, keyPEM, 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, newCertificate := range map[string]func() (Certificate, error){
		"plain":       func() (Certificate, error) { return nil, nil },
		"self-signed": SelfSigned,
		"files":       func() (Certificate, error) { return CertificateFromFiles(certFile, keyFile) },
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

func TestCertificateFromFiles(t *testing.T) {
	if _, err := CertificateFromFiles("/nowhere/tls.crt", "/nowhere/tls.key"); err == nil || !strings.Contains(err.Error(), "/nowhere/tls.crt") {
		t.Errorf("a file that is not there: %v", err)
	}
}
