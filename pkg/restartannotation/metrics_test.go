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

package restartannotation

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

var errDenied = apierrors.NewForbidden(v1alpha1.Resource("cronats"), "deployment-web", errors.New("RBAC"))

// TestBlocked checks that the controller remembers which annotations it cannot apply, and
// why, for as long as that is so.
func TestBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var unavailable, forbidden atomic.Bool
		_, ctx := ktesting.NewTestContext(t)
		_, client := harness.NewClients(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
			switch {
			case request.Method == http.MethodPost && unavailable.Load():
				return nil, errors.New("connection refused")
			case request.Method == http.MethodPost && forbidden.Load():
				return fakeserver.Refuse(request, errDenied)
			}
			return w.RoundTrip(request)
		}))
		c, err := NewController(ctx, client, w.workloads, metav1.NamespaceAll, w.recorder, clock.RealClock{})
		if err != nil {
			t.Fatal(err)
		}
		harness.Run(ctx, t, func(ctx context.Context) { c.Run(ctx, 2) })
		want := func(step, reason string) {
			t.Helper()
			time.Sleep(2 * time.Minute)
			wanted := map[cache.ObjectName]string{}
			if reason != "" {
				wanted[cache.NewObjectName(namespace, "Deployment/web")] = reason
			}
			if diff := cmp.Diff(wanted, c.Blocked()); diff != "" {
				t.Errorf("%s: blocked (-want +got):\n%s", step, diff)
			}
		}

		w.set(t, annotated("25 o'clock"))
		want("not a cron expression", v1alpha1.ReasonInvalidRestartSchedule)
		w.set(t, map[string]string{v1alpha1.AnnotationRestartTimeZone: "Europe/Berlin"})
		want("a time zone alone", v1alpha1.ReasonInvalidRestartSchedule)
		forbidden.Store(true)
		w.set(t, annotated(nightly))
		want("refused", v1alpha1.ReasonCronAtRefused)
		unavailable.Store(true)
		want("no answer after the refusal", v1alpha1.ReasonCronAtRefused)
		unavailable.Store(false)
		forbidden.Store(false)
		want("accepted", "")
		w.edit(t, func(cronAt *v1alpha1.CronAt) { cronAt.OwnerReferences[0].UID = "another" })
		want("the CronAt of another workload", v1alpha1.ReasonCronAtNameConflict)
		w.edit(t, func(cronAt *v1alpha1.CronAt) { cronAt.OwnerReferences[0].UID = "web-uid" })
		want("its own again", "")
		w.set(t, annotated("@every 1s"))
		want("too often", v1alpha1.ReasonInvalidRestartSchedule)
		if err := w.workloads.Tracker().Delete(appsv1.SchemeGroupVersion.WithResource("deployments"), namespace, "web"); err != nil {
			t.Fatal(err)
		}
		want("deleted", "")
	})
}
