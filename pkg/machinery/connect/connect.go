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

// Package connect finds the API server, and makes clients outlast its outages, its rate
// limit and its long errors.
package connect

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/pager"
)

// Config finds the API server as kubectl does, or else as a Pod does. kubeconfig is the path
// of a file, and master the URL of an API server: both may be empty. Config also returns the
// default namespace.
func Config(kubeconfig, master string) (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	overrides := &clientcmd.ConfigOverrides{}
	overrides.ClusterInfo.Server = master
	clientConfig := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	config, err := clientConfig.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, "", errors.New("no API server is configured: pass -kubeconfig, set $KUBECONFIG, write ~/.kube/config, or run in a Pod with a service account")
	}
	if err != nil {
		return nil, "", fmt.Errorf("load the kubeconfig: %w; check -kubeconfig and $KUBECONFIG", err)
	}
	namespace, _, err := clientConfig.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("load the namespace of the kubeconfig: %w", err)
	}
	return config, namespace, nil
}

// Explain returns what a person who has started the controller can do about the error of the first
// request, or nil if it may pass by itself.
func Explain(err error, host string) error {
	var answer apierrors.APIStatus
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the API server at %s refuses the controller: %w; apply the permissions that it needs", host, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server at %s does not know the controller's credentials: %w; check -kubeconfig", host, err)
	case err != nil && !errors.As(err, &answer):
		return fmt.Errorf("cannot reach the API server at %s: %w; check that it runs, and -kubeconfig", host, err)
	}
	return nil
}

// Until calls try in each period until it succeeds, or ctx is done. report is called with
// each error that differs from the one before.
func Until(ctx context.Context, period time.Duration, try func(context.Context) error, report func(error)) error {
	reported := ""
	return wait.PollUntilContextCancel(ctx, period, true, func(ctx context.Context) (bool, error) {
		err := try(ctx)
		if err != nil && err.Error() != reported && ctx.Err() == nil {
			reported = err.Error()
			report(err)
		}
		return err == nil, nil
	})
}

// Current makes the first list of an informer return the current state, in pages if the API
// server does not stream it. By default, an API server may answer with any past state that it
// has in its cache, and with all of it at once.
func Current(options *metav1.ListOptions) {
	if options.ResourceVersion == "0" {
		options.ResourceVersion = ""
	}
}

// Transform returns the transform of an informer that stores what keep returns.
func Transform[T any](keep func(T) T) cache.TransformFunc {
	return func(object any) (any, error) {
		if object, ok := object.(T); ok {
			return keep(object), nil
		}
		return object, nil
	}
}

// pageSize is the number of objects to read at a time. A user can write objects of more than a
// megabyte that a list selects, because labels decide which.
const pageSize = 20

// Each calls do with each object that list lists, and reads only a few of them at a time.
func Each[L runtime.Object, T any](ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error), options metav1.ListOptions, do func(*T)) error {
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return list(ctx, options)
	})
	// One page is read while the previous one is processed.
	pages.PageSize, pages.PageBufferSize = pageSize, 0
	return pages.EachListItem(ctx, options, func(object runtime.Object) error {
		do(any(object).(*T))
		return nil
	})
}
