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
	"net/http"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
)

// How the API server is asked who somebody is. Anybody may send any token: so few are
// looked at in a second that they cost the API server little, and that an answer is
// not put out of the cache before its time.
const (
	answerTTL    = 10 * time.Second // how long an answer is believed
	maxAnswers   = 128
	maxQuestions = 5 // a second
	askTimeout   = 10 * time.Second
)

// request is what an answer is of.
type request struct {
	token [sha256.Size]byte
	path  string
}

// Authorize lets those in whose bearer token the API server knows, and who may get the
// path, as a rule of their ClusterRole for nonResourceURLs says. The others are
// answered 401 and 403, as the API server would; 429 if too many ask at once.
func Authorize(client kubernetes.Interface, handler http.Handler) http.Handler {
	answers := cache.NewLRUExpireCache(maxAnswers)
	questions := flowcontrol.NewTokenBucketPassiveRateLimiter(maxQuestions, 2*maxQuestions)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !found || token == "" {
			http.Error(w, "a bearer token is needed", http.StatusUnauthorized)
			return
		}
		key := request{sha256.Sum256([]byte(token)), r.URL.Path}
		answer, found := answers.Get(key)
		if !found {
			if !questions.TryAccept() {
				http.Error(w, http.StatusText(http.StatusTooManyRequests), http.StatusTooManyRequests)
				return
			}
			status, err := ask(r.Context(), client, token, r.URL.Path)
			if err != nil {
				if r.Context().Err() == nil {
					klog.FromContext(r.Context()).Error(err, "Cannot tell who may get this", "path", r.URL.Path)
				}
				http.Error(w, "the API server does not tell whether you may", http.StatusInternalServerError)
				return
			}
			answers.Add(key, status, answerTTL)
			answer = status
		}
		if status := answer.(int); status != http.StatusOK {
			http.Error(w, http.StatusText(status), status)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// ask asks the API server who has the token, and whether they may get the path. It
// returns the HTTP status that follows.
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
