//go:build integration

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

package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	cnatscheme "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/scheme"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/events"
)

// TestEvents records more events at once than client-go's broadcaster would hold, and
// one that is repeated. All arrive.
func TestEvents(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	recorder := events.NewRecorder(t.Context(), cnatscheme.Scheme, "cnat-controller", clock.RealClock{})
	recorder.Start(kubeClient.CoreV1(), func() bool { return false })
	defer recorder.Shutdown()
	const number = 2000
	for i := range number {
		recorder.Event(newAt(namespace, fmt.Sprintf("at-%d", i), time.Now(), "true"), corev1.EventTypeNormal, v1alpha1.ReasonCompleted, "It has completed.")
	}
	// list returns the events with a reason, and how often they happened.
	list := func(ctx context.Context, reason string) (objects int, count int32, err error) {
		list, err := kubeClient.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reason})
		if err != nil {
			return 0, 0, err
		}
		for _, event := range list.Items {
			count += event.Count
		}
		return len(list.Items), count, nil
	}
	for want := range int32(3) {
		recorder.Event(newAt(namespace, "at", time.Now(), "true"), corev1.EventTypeWarning, v1alpha1.ReasonPodRefused, "No Pod may be created.")
		eventually(t, fmt.Sprintf("event number %d", want+1), func(ctx context.Context) (bool, error) {
			objects, count, err := list(ctx, v1alpha1.ReasonPodRefused)
			return objects == 1 && count == want+1, err
		})
	}
	eventually(t, "the other events", func(ctx context.Context) (bool, error) {
		objects, count, err := list(ctx, v1alpha1.ReasonCompleted)
		return objects == number && count == number, err
	})
}
