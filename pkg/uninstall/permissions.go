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

// Package uninstall lets the controller be uninstalled with any single command.
//
// Such a command deletes the CRDs, the controller and its permissions within
// milliseconds, in any order. But only the controller removes the finalizers of Pods and
// Ats. So it holds its permissions, also with a finalizer, as long as it works. When they
// are being deleted, it stops its work, releases all Pods and Ats, and then its
// permissions. If the leader has crashed, another controller does that before it ends.
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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/connect"
)

// For a leader, these take a minute at most. A controller that has never led might need longer: it
// also waits for the lease, and checks twice. The token of a service account that is being deleted
// is valid for one minute. The grace period of the controller's Pod is longer.
const (
	askTimeout         = 10 * time.Second // to check whether the controller is being uninstalled
	leaveTimeout       = 30 * time.Second // to release all Pods and Ats
	permissionsTimeout = 20 * time.Second // to release the permissions
)

// permissionsPeriod is the interval at which the permissions are released, or read, again. A
// busy API server must not become busier.
const permissionsPeriod = time.Second

// retryPeriod is the interval at which a failed request is tried again.
const retryPeriod = 10 * time.Second

// object is an object without which the controller has no permissions.
type object struct {
	resource        schema.GroupVersionResource
	namespace, name string
}

// Permissions are the objects that give the controller its permissions: its service
// account, and roles and role bindings with well-known names.
type Permissions struct {
	config     *rest.Config
	kubeClient kubernetes.Interface
	client     metadata.Interface
	objects    []object // the first is the service account
}

// Find returns the permissions of the service account whose credentials config has. name
// is that of the Role and RoleBinding in the namespace of the service account and of the
// ClusterRole and ClusterRoleBinding. If namespace is not empty, the controller works in
// that namespace only, and has a Role and a RoleBinding there, with the name nameInside,
// in place of the latter two. That namespace must not be the one of the service account.
func Find(ctx context.Context, config *rest.Config, name, namespace, nameInside string) (*Permissions, error) {
	p := &Permissions{config: config}
	var err error
	if p.kubeClient, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	if p.client, err = metadata.NewForConfig(config); err != nil {
		return nil, err
	}
	var review *authenticationv1.SelfSubjectReview
	ask := func(ctx context.Context) (err error) {
		review, err = p.kubeClient.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		return err
	}
	err = connect.Until(ctx, retryPeriod, ask, func(err error) {
		klog.FromContext(ctx).Error(err, "Cannot find out which service account this is, retrying: -hold-permissions needs it")
	})
	if err != nil {
		return nil, err
	}
	account := strings.Split(review.Status.UserInfo.Username, ":")
	if len(account) != 4 || account[1] != "serviceaccount" {
		return nil, fmt.Errorf("user %s is not a service account", review.Status.UserInfo.Username)
	}
	own := account[2]
	if own == namespace {
		return nil, fmt.Errorf("-namespace must not be %s, the namespace of the controller: a user who may create Pods in it may use the controller's service account; run the controller in a namespace of its own, as artifacts/namespaced does", own)
	}
	p.add(corev1.SchemeGroupVersion.WithResource("serviceaccounts"), own, account[3])
	p.add(rbacv1.SchemeGroupVersion.WithResource("roles"), own, name)
	p.add(rbacv1.SchemeGroupVersion.WithResource("rolebindings"), own, name)
	if namespace == metav1.NamespaceAll {
		p.add(rbacv1.SchemeGroupVersion.WithResource("clusterroles"), "", name)
		p.add(rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings"), "", name)
	} else {
		p.add(rbacv1.SchemeGroupVersion.WithResource("roles"), namespace, nameInside)
		p.add(rbacv1.SchemeGroupVersion.WithResource("rolebindings"), namespace, nameInside)
	}
	return p, nil
}

func (p *Permissions) add(resource schema.GroupVersionResource, namespace, name string) {
	p.objects = append(p.objects, object{resource: resource, namespace: namespace, name: name})
}

// in returns the client for an object.
func (p *Permissions) in(o object) metadata.ResourceInterface {
	return p.client.Resource(o.resource).Namespace(o.namespace)
}

// Hold holds the permissions while work runs, and stops work when they are being deleted.
// If they, or the namespace of the controller, are being deleted when work has ended, Hold
// calls release, releases the permissions, and returns true.
func (p *Permissions) Hold(ctx context.Context, work func(context.Context), release func(context.Context) error) (uninstalled bool) {
	if p == nil {
		work(ctx)
		return false
	}
	workCtx, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() {
		defer stop()
		uninstalled = p.watch(workCtx)
	})
	work(workCtx)
	stop()
	wg.Wait()

	if !uninstalled && !p.AreBeingDeleted(ctx) {
		return false
	}
	logger := klog.FromContext(ctx)
	logger.Info("The controller is being uninstalled: releasing all Pods and Ats")
	leaveCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if err := release(leaveCtx); err != nil {
		// To hold the permissions any longer helps nobody: no later controller uses them.
		logger.Error(err, "Not all Pods and Ats were released: see docs/install.md, If Pods stay")
	}
	p.Release(ctx)
	return true
}

// Release releases the permissions, also after ctx is done. It tries for 20 seconds.
func (p *Permissions) Release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), permissionsTimeout)
	defer cancel()
	_ = wait.PollUntilContextCancel(ctx, permissionsPeriod, true, func(ctx context.Context) (bool, error) {
		err := p.releasePermissions(ctx)
		if err != nil {
			klog.FromContext(ctx).Error(err, "The permissions were not released: see docs/install.md, If Pods stay")
		}
		return err == nil, nil
	})
}

// AwaitRelease returns once nobody holds the permissions, or when ctx is done.
func (p *Permissions) AwaitRelease(ctx context.Context) {
	_ = wait.PollUntilContextCancel(ctx, permissionsPeriod, true, func(ctx context.Context) (bool, error) {
		return !p.areHeld(ctx), nil
	})
}

// areHeld reports whether an object has the finalizer, or cannot be read although it may exist.
func (p *Permissions) areHeld(ctx context.Context) bool {
	current, errs := p.get(ctx, p.objects)
	for i, o := range p.objects {
		switch err := errs[i]; {
		case answer.IsNotFound(err, o.name) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
		case err != nil || slices.Contains(current[i].Finalizers, v1alpha1.FinalizerReleasePods):
			return true
		}
	}
	return false
}

// AreBeingDeleted reports whether one of the permissions, or the namespace of the controller,
// is being deleted. It asks for ten seconds, also after ctx is done.
func (p *Permissions) AreBeingDeleted(ctx context.Context) bool {
	if p == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancel()
	deleted, err := p.areBeingDeleted(ctx)
	if err != nil && !deleted {
		klog.FromContext(ctx).Info("Cannot tell whether the controller is being uninstalled", "error", err)
	}
	return deleted
}

// watch gives the objects the finalizer. It returns true when one of them is being deleted,
// and false when ctx is done.
func (p *Permissions) watch(ctx context.Context) bool {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var deleted atomic.Bool
	var wg sync.WaitGroup
	for _, o := range p.objects {
		changed := make(chan struct{}, 1)
		notify := func(any) {
			select {
			case changed <- struct{}{}:
			default:
			}
		}
		informer := metadatainformer.NewFilteredMetadataInformer(p.client, o.resource, o.namespace, 0, cache.Indexers{}, func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, o.name).String()
		}).Informer()
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: notify, UpdateFunc: func(_, cur any) { notify(cur) }}); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot watch", "resource", o.resource.Resource, "name", o.name)
			continue
		}
		wg.Go(func() { informer.RunWithContext(ctx) })
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-changed:
				}
				for _, cached := range informer.GetStore().List() {
					current := cached.(*metav1.PartialObjectMetadata)
					if current.DeletionTimestamp != nil {
						klog.FromContext(ctx).Info("The controller is being uninstalled", "deleted", o.resource.Resource, "object", klog.KObj(current))
						deleted.Store(true)
						stop()
						return
					}
					if err := p.hold(ctx, o, current); err != nil && ctx.Err() == nil {
						klog.FromContext(ctx).Error(err, "Cannot hold the permissions, retrying", "resource", o.resource.Resource, "object", klog.KObj(current))
						time.AfterFunc(retryPeriod, func() { notify(nil) })
					}
				}
			}
		})
	}
	<-ctx.Done()
	wg.Wait()
	return deleted.Load()
}

// hold gives an object the finalizer.
func (p *Permissions) hold(ctx context.Context, o object, current *metav1.PartialObjectMetadata) error {
	if slices.Contains(current.Finalizers, v1alpha1.FinalizerReleasePods) {
		return nil
	}
	body, err := finalizersPatch(current, append(slices.Clone(current.Finalizers), v1alpha1.FinalizerReleasePods), current.ResourceVersion)
	if err != nil {
		return err
	}
	_, err = p.in(o).Patch(ctx, o.name, types.MergePatchType, body, metav1.PatchOptions{})
	return err
}

// areBeingDeleted reports whether one of the objects, or the namespace of the controller,
// is being deleted.
func (p *Permissions) areBeingDeleted(ctx context.Context) (bool, error) {
	namespace := object{resource: corev1.SchemeGroupVersion.WithResource("namespaces"), name: p.objects[0].namespace}
	deleted := false
	current, errs := p.get(ctx, append([]object{namespace}, p.objects...))
	for i := range current {
		deleted = deleted || errs[i] == nil && current[i].DeletionTimestamp != nil
	}
	return deleted, errors.Join(errs...)
}

// get reads objects at the same time, because a slow API server takes seconds for each.
func (p *Permissions) get(ctx context.Context, objects []object) ([]*metav1.PartialObjectMetadata, []error) {
	current, errs := make([]*metav1.PartialObjectMetadata, len(objects)), make([]error, len(objects))
	var wg sync.WaitGroup
	for i, o := range objects {
		wg.Go(func() { current[i], errs[i] = p.in(o).Get(ctx, o.name, metav1.GetOptions{}) })
	}
	wg.Wait()
	return current, errs
}

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
	current, errs := p.get(ctx, p.objects)
	for i, o := range p.objects {
		if answer.IsNotFound(errs[i], o.name) || apierrors.IsForbidden(errs[i]) {
			continue // It is gone, or what permits to read it: in a namespace that was deleted.
		}
		if errs[i] != nil {
			return errs[i]
		}
		rest := slices.DeleteFunc(slices.Clone(current[i].Finalizers), func(name string) bool { return name == v1alpha1.FinalizerReleasePods })
		if len(rest) == len(current[i].Finalizers) {
			continue
		}
		body, err := finalizersPatch(current[i], rest, "")
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

func (b *heldBody) Read(p []byte) (int, error) {
	b.asked()
	select {
	case <-b.all:
	case <-b.ctx.Done():
	}
	if b.ctx.Err() != nil { // Also a request that was refused counts as asked.
		return 0, errors.New("another request was refused")
	}
	return b.reader.Read(p)
}

func (b *heldBody) Close() error { return nil }
