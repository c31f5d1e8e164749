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

package workload

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
)

var (
	instant  = time.Date(2026, 12, 24, 10, 12, 0, 0, time.UTC)
	metadata = metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "uid", ResourceVersion: "7", Generation: 2}
)

// TestRestart reads a workload of each kind, tries to restart it, and restarts it.
func TestRestart(t *testing.T) {
	for _, kind := range []v1alpha1.RestartKind{v1alpha1.RestartDeployment, v1alpha1.RestartStatefulSet, v1alpha1.RestartDaemonSet} {
		t.Run(string(kind), func(t *testing.T) {
			ctx := context.Background()
			client := fake.NewClientset(&appsv1.Deployment{ObjectMeta: metadata}, &appsv1.StatefulSet{ObjectMeta: metadata}, &appsv1.DaemonSet{ObjectMeta: metadata})
			target, err := Get(ctx, client.AppsV1(), "default", &v1alpha1.AtRestart{Kind: kind, Name: "web"})
			if err != nil {
				t.Fatal(err)
			}
			if target.Kind != kind || target.Name != "web" || target.Namespace != "default" || target.UID != "uid" || target.RestartedAt != nil {
				t.Errorf("got %+v", target)
			}
			for _, dryRun := range [][]string{{metav1.DryRunAll}, nil} {
				restarted, err := Restart(ctx, client.AppsV1(), target, instant.In(time.FixedZone("", 3600)), dryRun...)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(&instant, restarted.RestartedAt); diff != "" {
					t.Errorf("restarted (-want +got)\n%s", diff)
				}
				actions := client.Actions()
				got := actions[len(actions)-1].(clienttesting.PatchActionImpl)
				// The resourceVersion causes a conflict if the workload has changed.
				const want = `{"metadata":{"uid":"uid","resourceVersion":"7"},"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"2026-12-24T10:12:00Z"}}}}}`
				if diff := cmp.Diff(want, string(got.Patch)); diff != "" {
					t.Errorf("patch (-want +got)\n%s", diff)
				}
				if diff := cmp.Diff(metav1.PatchOptions{FieldManager: "cnat-controller", DryRun: dryRun}, got.PatchOptions); diff != "" {
					t.Errorf("options (-want +got)\n%s", diff)
				}
			}
		})
	}
}

// TestNotKept uses a webhook that removes the annotation.
func TestNotKept(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("patch", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &appsv1.Deployment{ObjectMeta: metadata}, nil
	})
	_, err := Restart(context.Background(), client.AppsV1(), &rollout.Target{Kind: v1alpha1.RestartDeployment, Namespace: "default", Name: "web"}, instant)
	if !apierrors.IsForbidden(err) {
		t.Errorf("got error %v, want Forbidden", err)
	}
}

func TestUnknownKind(t *testing.T) {
	if _, err := Get(context.Background(), fake.NewClientset().AppsV1(), "default", &v1alpha1.AtRestart{Kind: "ReplicaSet", Name: "web"}); err == nil {
		t.Error("no error")
	}
}
