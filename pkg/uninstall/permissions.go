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
// permissions.
package uninstall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/connect"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/patch"
)

// These and holdPeriod take about a minute. The token of a service account that is being deleted is
// valid for one minute. The grace period of the controller's Pod is longer.
const (
	askTimeout         = 10 * time.Second // to check whether the controller is being uninstalled
	leaveTimeout       = 30 * time.Second // to release all Pods and Ats
	permissionsTimeout = 20 * time.Second // to release the permissions
)

// holdPeriod is the interval at which the permissions are read while the controller works.
const holdPeriod = 5 * time.Second

// retryPeriod is the interval at which a request at the start or at the end is tried again. A busy
// API server must not become busier.
const retryPeriod = time.Second

// object is an object without which the controller has no permissions.
type object struct {
	resource        schema.GroupVersionResource
	namespace, name string
}

// Permissions are the objects that give the controller its permissions: its service
// account, and roles and role bindings with well-known names.
type Permissions struct {
	config  *rest.Config
	client  metadata.Interface
	objects []object // The first is the namespace of the service account, which is not held.
}

// Find returns the permissions of the service account whose credentials config has. name
// is that of the Role and RoleBinding in the namespace of the service account and of the
// ClusterRole and ClusterRoleBinding. If namespace is not empty, the controller works in
// that namespace only, and has a Role and a RoleBinding there, with the name and "-ats",
// in place of the latter two. That namespace must not be the one of the service account.
// Find waits for the API server, and returns an error when ctx is done.
func Find(ctx context.Context, config *rest.Config, name, namespace string) (*Permissions, error) {
	kubeClient, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	var review *authenticationv1.SelfSubjectReview
	ask := func(ctx context.Context) (err error) {
		review, err = kubeClient.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
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
	core, rbac := corev1.SchemeGroupVersion.WithResource, rbacv1.SchemeGroupVersion.WithResource
	objects := []object{
		{core("namespaces"), metav1.NamespaceNone, own},
		{core("serviceaccounts"), own, account[3]},
		{rbac("roles"), own, name},
		{rbac("rolebindings"), own, name},
	}
	if namespace == metav1.NamespaceAll {
		objects = append(objects, object{rbac("clusterroles"), metav1.NamespaceNone, name}, object{rbac("clusterrolebindings"), metav1.NamespaceNone, name})
	} else {
		objects = append(objects, object{rbac("roles"), namespace, name + "-ats"}, object{rbac("rolebindings"), namespace, name + "-ats"})
	}
	return &Permissions{config: config, client: client, objects: objects}, nil
}

// Hold holds the permissions while work runs, and stops work when they, or the namespace of the
// controller, are being deleted. If they are when work has ended, Hold calls release, releases the
// permissions, and returns true.
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
		uninstalled = p.holdUntilDeleted(workCtx)
	})
	work(workCtx)
	stop()
	wg.Wait()

	if !uninstalled && !p.areBeingDeleted(ctx) {
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
	permissionsCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), permissionsTimeout)
	defer cancel()
	_ = connect.Until(permissionsCtx, retryPeriod, p.release, func(err error) {
		logger.Error(err, "The permissions were not released: see docs/install.md, If Pods stay")
	})
	return true
}

// areBeingDeleted reports whether one of the permissions, or the namespace of the controller,
// is being deleted. It asks for ten seconds, also after ctx is done.
func (p *Permissions) areBeingDeleted(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancel()
	current, err := p.read(ctx)
	deleted := slices.ContainsFunc(current, isBeingDeleted)
	if err != nil && !deleted {
		klog.FromContext(ctx).Info("Cannot tell whether the controller is being uninstalled", "error", err)
	}
	return deleted
}

func isBeingDeleted(object *metav1.PartialObjectMetadata) bool {
	return object != nil && object.DeletionTimestamp != nil
}

func isHeld(object *metav1.PartialObjectMetadata) bool {
	return object != nil && slices.Contains(object.Finalizers, v1alpha1.FinalizerReleasePods)
}

// holdUntilDeleted gives the objects the finalizer. It returns true when one of them is being
// deleted, and false when ctx is done.
func (p *Permissions) holdUntilDeleted(ctx context.Context) (deleted bool) {
	_ = wait.PollUntilContextCancel(ctx, holdPeriod, true, func(ctx context.Context) (bool, error) {
		current, err := p.read(ctx)
		if slices.ContainsFunc(current, isBeingDeleted) {
			deleted = true
			return true, nil
		}
		for i, o := range p.objects {
			if i > 0 && current[i] != nil && !isHeld(current[i]) {
				err = errors.Join(err, o.patch(ctx, p.client, patch.WithFinalizer(current[i], v1alpha1.FinalizerReleasePods)))
			}
		}
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot hold the permissions, retrying")
		}
		return false, nil
	})
	return deleted
}

// read reads the objects, at the same time, because a slow API server takes seconds for each. What
// is gone, or cannot be read because what permits it is gone, is nil.
func (p *Permissions) read(ctx context.Context) ([]*metav1.PartialObjectMetadata, error) {
	current, errs := make([]*metav1.PartialObjectMetadata, len(p.objects)), make([]error, len(p.objects))
	var wg sync.WaitGroup
	for i, o := range p.objects {
		wg.Go(func() {
			found, err := p.client.Resource(o.resource).Namespace(o.namespace).Get(ctx, o.name, metav1.GetOptions{})
			switch {
			case err == nil:
				current[i] = found
			case !answer.IsNotFound(err, o.name) && !apierrors.IsForbidden(err):
				errs[i] = err
			}
		})
	}
	wg.Wait()
	return current, errors.Join(errs...)
}

func (o *object) patch(ctx context.Context, client metadata.Interface, body []byte) error {
	_, err := client.Resource(o.resource).Namespace(o.namespace).Patch(ctx, o.name, types.MergePatchType, body, metav1.PatchOptions{})
	return err
}

// continueTimeout is how long a request waits for the API server to ask for its body. A
// proxy might not forward that.
const continueTimeout = 2 * time.Second

// release removes the finalizer from all objects.
//
// The last requests need the objects that they remove: without any one of them, the API
// server refuses the requests for the others. So all requests are sent at the same time, each
// on a connection of its own, and none of them has its effect before all are authorized: a request
// with the header Expect is authorized before the API server asks for its body.
func (p *Permissions) release(ctx context.Context) error {
	current, err := p.read(ctx)
	if err != nil {
		return err
	}
	tlsConfig, err := rest.TLSConfigFor(p.config)
	if err != nil {
		return err
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: tlsConfig, ExpectContinueTimeout: continueTimeout}
	defer transport.CloseIdleConnections()
	authenticated, err := rest.HTTPWrappersForConfig(p.config, transport)
	if err != nil {
		return err
	}
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	var requests, toBeAsked sync.WaitGroup
	toBeAsked.Add(len(p.objects))
	for i, o := range p.objects {
		asked := sync.OnceFunc(toBeAsked.Done)
		if !isHeld(current[i]) {
			asked()
			continue
		}
		requests.Go(func() {
			defer asked() // It is not, if the object is gone.
			held := &holding{next: authenticated, asked: asked, all: &toBeAsked}
			if err := releaseWith(ctx, p.config, held, o, current[i]); err != nil && !answer.IsNotFound(err, o.name) {
				refuse(err) // The others keep their finalizer, and can be tried again.
			}
		})
	}
	requests.Wait()
	return context.Cause(ctx)
}

// releaseWith removes the finalizer from an object with a request through transport.
func releaseWith(ctx context.Context, config *rest.Config, transport http.RoundTripper, o object, current *metav1.PartialObjectMetadata) error {
	client, err := metadata.NewForConfigAndClient(config, &http.Client{Transport: transport})
	if err != nil {
		return err
	}
	current.ResourceVersion = "" // After a conflict, the permission for another try might be gone.
	return o.patch(ctx, client, patch.WithoutFinalizer(current, v1alpha1.FinalizerReleasePods))
}

// holding is a transport that holds the body of a request back until the API server has asked for
// those of all requests.
type holding struct {
	next  http.RoundTripper
	asked func() // reports that the API server has asked for this one
	all   *sync.WaitGroup
}

// RoundTrip implements http.RoundTripper.
func (h *holding) RoundTrip(request *http.Request) (*http.Response, error) {
	held := request.Clone(request.Context())
	held.Header.Set("Expect", "100-continue")
	held.Body, held.GetBody = &heldBody{request.Body, request.Context(), h}, nil
	return h.next.RoundTrip(held)
}

type heldBody struct {
	io.ReadCloser
	ctx context.Context
	*holding
}

// Read implements io.Reader.
func (b *heldBody) Read(p []byte) (int, error) {
	b.asked()
	b.all.Wait() // A request that was refused counts as asked, after ctx was cancelled.
	if err := context.Cause(b.ctx); err != nil {
		return 0, err
	}
	return b.ReadCloser.Read(p)
}
