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

package events_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"

	"programming-kubernetes.info/cnat-controller/pkg/machinery/events"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/safelog"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// TestRecorder records more events than client-go's broadcaster holds. It writes some, and logs
// nothing of any: neither what is refused nor what is dropped.
func TestRecorder(t *testing.T) {
	const secret = "curl -u root:secret"
	for testName, refusal := range map[string]error{
		"":        nil,
		"refused": apierrors.NewForbidden(corev1.Resource("events"), "at", errors.New(secret)),
	} {
		t.Run(testName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				client.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) { return refusal != nil, nil, refusal })
				ctx, logged := harness.Logged(t, 5)
				ctx = klog.NewContext(ctx, safelog.New(klog.FromContext(ctx)))
				recorder, stop := events.NewRecorder(ctx, scheme.Scheme, "cnat-controller", client.CoreV1())
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "at-pod"}}
				recorder.Event(pod, corev1.EventTypeWarning, "PodRefused", secret)
				synctest.Wait()
				written, err := client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
				if err != nil || refusal == nil && (len(written.Items) != 1 || written.Items[0].Message != secret) {
					t.Errorf("got %v, %v", written, err)
				}
				for range 3000 {
					recorder.Event(pod, corev1.EventTypeNormal, "Completed", secret)
				}
				synctest.Wait()
				stop()
				recorder.Event(pod, corev1.EventTypeNormal, "Completed", secret)
				if log := logged(); strings.Contains(log, secret) {
					t.Errorf("the log has what a user has written:\n%s", log)
				}
			})
		})
	}
}
