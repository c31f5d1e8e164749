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
	"bytes"
	"context"
	"io"
	"net/http"
	"path"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// TestLastRelease runs a program that ends before it leads. If nobody else can release its
// permissions, it does.
func TestLastRelease(t *testing.T) {
	for testName, tc := range map[string]struct {
		answer  int           // to the lists of Ats, if they fail
		lease   time.Duration // for which another program has the lease
		deleted bool          // the permissions are being deleted when it is asked to stop
		hangs   bool          // the API server does not answer any more then
		// expectations
		kept bool
		took time.Duration // at most
	}{
		"refused":                            {answer: http.StatusForbidden, kept: true, took: 4 * time.Second},
		"refused, the leader has crashed":    {answer: http.StatusForbidden, lease: 12 * time.Second, deleted: true, took: 17 * time.Second},
		"before the API server is ready":     {answer: http.StatusServiceUnavailable, deleted: true, took: 4 * time.Second},
		"on standby, the leader has crashed": {lease: 12 * time.Second, deleted: true, took: 17 * time.Second},
		"on standby, another leads":          {lease: time.Hour, deleted: true, kept: true, took: 24 * time.Second},
		"on standby, it restarts":            {lease: time.Hour, kept: true, took: 3 * time.Second},
		"on standby, the API server hangs":   {lease: time.Hour, hangs: true, deleted: true, kept: true, took: 14 * time.Second},
	} {
		t.Run(testName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const namespace = "cnat-system"
				server := fakeserver.New(clock.RealClock{})
				var hangs atomic.Bool
				config := fakeserver.Config(server)
				config.Wrap(func(http.RoundTripper) http.RoundTripper {
					return harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
						switch {
						case hangs.Load():
							<-request.Context().Done()
							return nil, request.Context().Err()
						case path.Base(request.URL.Path) == "selfsubjectreviews":
							response := fakeserver.AnswerAsProxy(request, http.StatusCreated)
							response.Header.Set("Content-Type", "application/json")
							response.Body = io.NopCloser(bytes.NewBufferString(
								`{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":"system:serviceaccount:cnat-system:cnat-controller"}}}`))
							return response, nil
						case tc.answer != 0 && request.URL.Query().Get("limit") == "1":
							return fakeserver.AnswerAsProxy(request, tc.answer), nil
						case request.Method == http.MethodPatch: // The server is locked while it reads.
							body, err := io.ReadAll(request.Body)
							if err != nil {
								return nil, err
							}
							request.Body = io.NopCloser(bytes.NewReader(body))
						}
						return server.RoundTrip(request)
					})
				})

				kubeClient, _ := harness.NewClients(t, server)
				accounts, rbac := kubeClient.CoreV1().ServiceAccounts(namespace), kubeClient.RbacV1()
				meta := metav1.ObjectMeta{Name: controllerName, Finalizers: []string{v1alpha1.FinalizerReleasePods}}
				harness.Create(t, accounts, &corev1.ServiceAccount{ObjectMeta: meta})
				harness.Create(t, rbac.Roles(namespace), &rbacv1.Role{ObjectMeta: meta})
				harness.Create(t, rbac.RoleBindings(namespace), &rbacv1.RoleBinding{ObjectMeta: meta})
				harness.Create(t, rbac.ClusterRoles(), &rbacv1.ClusterRole{ObjectMeta: meta})
				harness.Create(t, rbac.ClusterRoleBindings(), &rbacv1.ClusterRoleBinding{ObjectMeta: meta})
				if tc.lease > 0 {
					harness.Create(t, kubeClient.CoordinationV1().Leases(namespace), &coordinationv1.Lease{
						ObjectMeta: metav1.ObjectMeta{Name: controllerName},
						Spec: coordinationv1.LeaseSpec{
							HolderIdentity: ptr.To("another"), LeaseDurationSeconds: ptr.To(int32(tc.lease.Seconds())), RenewTime: &metav1.MicroTime{Time: time.Now()},
						},
					})
				}

				_, ctx := ktesting.NewTestContext(t)
				ctx, stop := context.WithCancel(ctx)
				defer stop()
				p, err := newProgram(ctx, &options{
					workers: 1, defaults: defaults, holdPermissions: true,
					leaderElect: true, leaderElectNamespace: namespace, leaderElectIdentity: "this",
				}, config, clock.RealClock{})
				if err != nil {
					t.Fatal(err)
				}
				start, ended := time.Now(), make(chan error)
				go func() { ended <- runProgram(ctx, p) }()
				time.Sleep(3 * time.Second)
				if tc.deleted {
					harness.Delete(t, accounts, controllerName)
					harness.Delete(t, rbac.ClusterRoleBindings(), controllerName)
				}
				hangs.Store(tc.hangs)
				stop()
				if err := <-ended; err != nil {
					t.Errorf("it ended with %v", err)
				}
				if took := time.Since(start); took > tc.took {
					t.Errorf("it ended after %v, want %v at most", took, tc.took)
				}
				role := harness.Get(t, rbac.Roles(namespace), controllerName)
				if kept := len(role.Finalizers) > 0; kept != tc.kept {
					t.Errorf("the role has its finalizer: %v, want %v", kept, tc.kept)
				}
				gone := tc.deleted && !tc.kept
				if _, err := accounts.Get(t.Context(), controllerName, metav1.GetOptions{}); apierrors.IsNotFound(err) != gone {
					t.Errorf("the service account is gone: %v, want %v", err, gone)
				}
			})
		})
	}
}
