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
	"crypto/sha256"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"
)

// Anybody may send any token. What the API server answers is kept, and the number of
// questions from each source address is limited, so that guesses cost the API server
// little, and do not lock out those with a valid token.
const (
	allowedTTL   = 2 * time.Minute // as in the API server's own cache of tokens
	refusedTTL   = 10 * time.Second
	maxAnswers   = 128 // of each kind
	maxQuestions = 5   // a second from one source
	maxSources   = 4096
	askTimeout   = 10 * time.Second
)

// request is what an answer is for.
type request struct {
	token [sha256.Size]byte
	path  string
}

// Authorize lets through the requests whose bearer token the API server knows and whose
// user may get the path, as a rule of a ClusterRole for nonResourceURLs says. Other
// requests get 401 or 403, as from the API server, or 429 if there are too many from
// one source.
func Authorize(client kubernetes.Interface, handler http.Handler) http.Handler {
	// In one cache, guesses would evict the good answers.
	allowed, refused := cache.NewLRUExpireCache(maxAnswers), cache.NewLRUExpireCache(maxAnswers)
	sources := sources{limiters: lru.New(maxSources)}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !found || token == "" {
			http.Error(w, "a bearer token is required", http.StatusUnauthorized)
			return
		}
		key := request{sha256.Sum256([]byte(token)), r.URL.Path}
		if _, found := allowed.Get(key); found {
			handler.ServeHTTP(w, r)
			return
		}
		if status, found := refused.Get(key); found {
			http.Error(w, http.StatusText(status.(int)), status.(int))
			return
		}
		if !sources.accept(r.RemoteAddr) {
			http.Error(w, http.StatusText(http.StatusTooManyRequests), http.StatusTooManyRequests)
			return
		}
		status, err := ask(r.Context(), client, token, r.URL.Path)
		switch {
		case err != nil:
			if r.Context().Err() == nil {
				klog.FromContext(r.Context()).Error(err, "Cannot check who may get this", "path", r.URL.Path)
			}
			http.Error(w, "cannot ask the API server whether you may get this", http.StatusInternalServerError)
		case status != http.StatusOK:
			refused.Add(key, status, refusedTTL)
			http.Error(w, http.StatusText(status), status)
		default:
			allowed.Add(key, nil, allowedTTL)
			handler.ServeHTTP(w, r)
		}
	})
}

// sources limits the questions from each source address.
type sources struct {
	lock     sync.Mutex
	limiters *lru.Cache
}

// accept returns whether one more question from remoteAddr, host:port, is within the limit.
func (s *sources) accept(remoteAddr string) bool {
	host, _, err := net.SplitHostPort(remoteAddr)
	if err != nil {
		return false
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	limiter, found := s.limiters.Get(host)
	if !found {
		limiter = flowcontrol.NewTokenBucketPassiveRateLimiter(maxQuestions, 2*maxQuestions)
		s.limiters.Add(host, limiter)
	}
	return limiter.(flowcontrol.PassiveRateLimiter).TryAccept()
}

// ask asks the API server whose token this is, and whether that user may get the path. It
// returns the HTTP status for the answer.
func ask(ctx context.Context, client kubernetes.Interface, token, path string) (int, error) {
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
			User:                  user.Username,
			UID:                   user.UID,
			Groups:                user.Groups,
			Extra:                 extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
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
