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

package uninstall

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

// continueTimeout is how long a request waits for the API server to ask for its body. A
// proxy might not forward that.
const continueTimeout = 2 * time.Second

// releasePermissions removes the finalizer from all objects.
//
// The last requests need the objects that they remove: without any one of them, the API
// server refuses the requests for the others. So all requests are sent at the same time,
// and none of them has its effect before all are authorized: a request with the header
// Expect is authorized before the API server asks for its body.
func (p *Permissions) releasePermissions(ctx context.Context) error {
	var paths []string
	var bodies [][]byte
	for _, o := range p.objects {
		current, err := p.in(o).Get(ctx, o.name, metav1.GetOptions{})
		if answer.IsNotFound(err, o.name) || apierrors.IsForbidden(err) {
			continue // It is gone, or what permits to read it: in a namespace that was deleted.
		}
		if err != nil {
			return err
		}
		rest := slices.DeleteFunc(slices.Clone(current.Finalizers), func(name string) bool { return name == v1alpha1.FinalizerReleasePods })
		if len(rest) == len(current.Finalizers) {
			continue
		}
		body, err := finalizersPatch(current, rest, "")
		if err != nil {
			return err
		}
		paths, bodies = append(paths, pathOf(o)), append(bodies, body)
	}
	return sendAtOnce(ctx, p.config, paths, bodies)
}

// finalizersPatch returns the patch that sets the finalizers of an object, of a version if
// that is not empty.
func finalizersPatch(current *metav1.PartialObjectMetadata, finalizers []string, resourceVersion string) ([]byte, error) {
	meta := map[string]any{"uid": current.UID, "finalizers": finalizers}
	if resourceVersion != "" {
		meta["resourceVersion"] = resourceVersion
	}
	return json.Marshal(map[string]any{"metadata": meta})
}

// pathOf returns the path of an object's URL.
func pathOf(o object) string {
	prefix := path.Join("/apis", o.resource.Group, o.resource.Version)
	if o.resource.Group == corev1.GroupName {
		prefix = path.Join("/api", o.resource.Version)
	}
	if o.namespace != "" {
		prefix = path.Join(prefix, "namespaces", o.namespace)
	}
	return path.Join(prefix, o.resource.Resource, o.name)
}

// sendAtOnce sends patches, each on a connection of its own. No body is sent before the
// API server has asked for all of them.
func sendAtOnce(ctx context.Context, config *rest.Config, paths []string, bodies [][]byte) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return err
	}
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return err
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: tlsConfig, ExpectContinueTimeout: continueTimeout}
	defer transport.CloseIdleConnections()
	authenticated, err := rest.HTTPWrappersForConfig(config, transport)
	if err != nil {
		return err
	}
	var asked, done sync.WaitGroup
	asked.Add(len(paths))
	allAsked := make(chan struct{})
	go func() {
		asked.Wait()
		close(allAsked)
	}()
	for i := range paths {
		done.Go(func() {
			body := &heldBody{reader: bytes.NewReader(bodies[i]), ctx: ctx, asked: sync.OnceFunc(asked.Done), all: allAsked}
			defer body.asked() // It is not, if the object is gone.
			if err := send(ctx, authenticated, server.JoinPath(paths[i]), body, len(bodies[i])); err != nil {
				cancel(err) // The others keep their finalizer, and can be tried again.
			}
		})
	}
	done.Wait()
	return context.Cause(ctx)
}

func send(ctx context.Context, client http.RoundTripper, url *url.URL, body io.ReadCloser, length int) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPatch, url.String(), body)
	if err != nil {
		return err
	}
	request.ContentLength = int64(length)
	request.Header.Set("Content-Type", string(types.MergePatchType))
	request.Header.Set("Accept", "application/json")
	request.Header.Set("Expect", "100-continue")
	response, err := client.RoundTrip(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode >= http.StatusMultipleChoices && response.StatusCode != http.StatusNotFound {
		return fmt.Errorf("PATCH %s: %s", url.Path, response.Status)
	}
	return nil
}

// heldBody is a body that waits for the others.
type heldBody struct {
	reader *bytes.Reader // not embedded: its WriteTo would not wait
	ctx    context.Context
	asked  func()
	all    <-chan struct{}
}

// Read implements io.Reader.
func (b *heldBody) Read(p []byte) (int, error) {
	b.asked()
	select {
	case <-b.all:
		return b.reader.Read(p)
	case <-b.ctx.Done():
		return 0, errors.New("another request was refused")
	}
}

// Close implements io.Closer.
func (b *heldBody) Close() error { return nil }
