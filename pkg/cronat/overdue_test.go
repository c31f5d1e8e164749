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

package cronat

import (
	"errors"
	"net/http"
	"path"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// TestOverdue runs CronAts for three hours. A CronAt is overdue for more than a minute only
// while its due time has no reaction: not if the At is created, waits for another, or is
// reported as refused.
func TestOverdue(t *testing.T) {
	creates := func(request *http.Request) bool { return harness.Creates(request, "ats") }
	writesStatus := func(request *http.Request) bool {
		return request.Method == http.MethodPatch && path.Base(request.URL.Path) == "status"
	}
	refuse := func(request *http.Request) (*http.Response, error) {
		return fakeserver.Refuse(request, apierrors.NewForbidden(v1alpha1.Resource("ats"), "backup", errors.New("exceeded quota")))
	}
	fail := func(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") }
	for name, tc := range map[string]struct {
		mutate func(*v1alpha1.CronAt)
		faults func(*http.Request) bool // requests that do not succeed in the second hour
		answer func(*http.Request) (*http.Response, error)
		want   bool
	}{
		"steady":                       {},
		"waits for an earlier At":      {mutate: func(cronAt *v1alpha1.CronAt) { cronAt.Spec.ConcurrencyPolicy = v1alpha1.ForbidConcurrent }},
		"a short deadline":             {mutate: func(cronAt *v1alpha1.CronAt) { cronAt.Spec.StartingDeadlineSeconds = ptr.To[int64](1) }},
		"spread":                       {mutate: func(cronAt *v1alpha1.CronAt) { cronAt.Spec.SpreadSeconds = ptr.To[int32](3600) }},
		"suspended":                    {mutate: func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Suspend = ptr.To(true) }},
		"never":                        {mutate: func(cronAt *v1alpha1.CronAt) { cronAt.Spec.Schedule = "0 0 30 2 *" }},
		"the At is refused":            {faults: creates, answer: refuse},
		"the At cannot be created":     {faults: creates, answer: fail, want: true},
		"the status cannot be written": {faults: writesStatus, answer: fail, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var faulty atomic.Bool
				run(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
					if faulty.Load() && tc.faults(request) {
						return tc.answer(request)
					}
					return w.RoundTrip(request)
				}), w.clock)
				cronAt := newCronAt("*/10 * * * *")
				if tc.mutate != nil {
					tc.mutate(cronAt)
				}
				w.create(t, cronAt)
				for minute := range 180 {
					faulty.Store(tc.faults != nil && minute >= 60 && minute < 120)
					time.Sleep(time.Minute)
					overdue := cronplan.Overdue(w.cronAt(t), w.clock.Now())
					if tc.want && (minute >= 60 && minute < 75 || minute >= 120 && minute < 125) {
						continue // Due times come every ten minutes, and retries every minute.
					}
					if want := tc.want && minute >= 75 && minute < 120; (overdue > time.Minute) != want {
						t.Errorf("after %d minutes it is overdue for %s", minute, overdue)
					}
				}
			})
		})
	}
}
