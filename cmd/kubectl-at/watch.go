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
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

const (
	// requestTimeout limits each request, except for those that follow something.
	requestTimeout = 30 * time.Second
	// retryPeriod is the interval between requests while the API server does not respond.
	retryPeriod = time.Second
	// maxRefusals is how often in a row the API server may reject the credentials. A token
	// may be renewed in the meantime.
	maxRefusals = 5
)

// errNoAnswer means that a request has reached its limit.
var errNoAnswer = errors.New("has not answered for")

func noAnswer(limit time.Duration) error {
	return fmt.Errorf("the API server %w %s", errNoAnswer, limit)
}

// limited limits the time for the answer to each request, and for its body, unless that follows
// something. A request ends with the command, even if it has a context of its own.
type limited struct {
	http.RoundTripper
	command context.Context
	limit   time.Duration
}

func (l limited) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(request.Context())
	stop := context.AfterFunc(l.command, func() { cancel(l.command.Err()) })
	timer := time.AfterFunc(l.limit, func() { // It does no harm if the request has ended.
		stop()
		cancel(noAnswer(l.limit))
	})
	response, err := l.RoundTripper.RoundTrip(request.WithContext(ctx))
	if query := request.URL.Query(); query.Has("watch") || query.Has("follow") {
		timer.Stop()
	}
	return response, err
}

// errGone means that the watched object does not exist or no longer exists.
var errGone = errors.New("does not exist")

// watchObject calls seen with the named object and with each later state of it, until
// seen returns true. Like kubectl wait, it lists again whenever the watch ends: it misses
// no state that matters, and survives a restart of the API server and an expired
// resourceVersion. Once the object is deleted, it calls seen with the last state and
// returns errGone. It retries while the API server does not respond, and writes the first
// of several consecutive errors to errOut.
func watchObject[T object](ctx context.Context, errOut io.Writer, client rest.Interface, of T, seen func(T) bool) error {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, of.GetName())
	return watchObjects(ctx, errOut, cache.NewListWatchFromClient(client, resourceOf(of), of.GetNamespace(), selector), true, seen)
}

// watchObjects does the same for what a client lists, if that is not one object until that is deleted.
func watchObjects[T object](ctx context.Context, errOut io.Writer, client *cache.ListWatch, isOne bool, seen func(T) bool) error {
	failed, refused := false, 0
	for {
		done, err := watchOnce(ctx, client, isOne, func(item T) bool {
			failed, refused = false, 0
			return seen(item)
		})
		switch {
		case done || ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, watchtools.ErrWatchClosed), apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		case errors.Is(err, errGone), !isAway(err):
			return err
		default:
			if apierrors.IsUnauthorized(err) {
				refused++
			}
			if refused >= maxRefusals {
				return err
			}
			if !failed {
				fmt.Fprintf(errOut, "The API server does not respond: %v; retrying\n", err)
			}
			failed = true
		}
		select {
		case <-ctx.Done():
		case <-time.NewTimer(retryPeriod).C:
		}
	}
}

// isAway reports whether an error may be temporary: an API server that cannot respond
// now, or a network failure. Errors from exec plugins and undecodable responses are permanent.
func isAway(err error) bool {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return answer.IsTransient(err)
	}
	var operation *net.OpError
	return errors.As(err, &operation) || isUnanswered(err)
}

func watchOnce[T object](ctx context.Context, client *cache.ListWatch, isOne bool, seen func(T) bool) (bool, error) {
	list, err := client.ListWithContext(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return false, err
	}
	for _, item := range items {
		if seen(item.(T)) {
			return true, nil
		}
	}
	if isOne && len(items) == 0 {
		return false, errGone
	}
	watcher, err := client.WatchWithContext(ctx, metav1.ListOptions{ResourceVersion: list.(metav1.ListInterface).GetResourceVersion()})
	if err != nil {
		return false, err
	}
	_, err = watchtools.UntilWithoutRetry(ctx, watcher, func(event watch.Event) (bool, error) {
		if event.Type == watch.Error {
			return false, apierrors.FromObject(event.Object)
		}
		if item, ok := event.Object.(T); ok && seen(item) {
			return true, nil
		}
		if event.Type == watch.Deleted && isOne {
			return false, errGone
		}
		return false, nil
	})
	return err == nil, err
}
