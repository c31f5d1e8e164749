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
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

func withRestart(at *v1alpha1.At) {
	at.Spec.Command, at.Spec.Restart = "", &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}
}

// TestSyncRestart takes the steps of a restart that is due. The tests of pkg/plan cover
// the decisions.
func TestSyncRestart(t *testing.T) {
	deployments := appsv1.SchemeGroupVersion.WithResource("deployments").GroupResource()
	rolledOut := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: name.Namespace, UID: "web"},
		Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](2)},
		Status:     appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2},
	}
	const restart = "patch deployments"
	for testName, tc := range map[string]struct {
		live   []runtime.Object
		faults map[string]error // by verb and resource
		// expectations
		wantRestarted bool
		wantRequests  []string
		wantPhase     v1alpha1.AtPhase
		wantReason    string
		wantErr       string
	}{
		"restarted, and its rollout followed": {
			// The fake Deployment has no controller: its rollout is complete immediately.
			live: []runtime.Object{rolledOut}, wantRestarted: true,
			wantRequests: []string{"get pods", "get deployments", restart},
			wantPhase:    v1alpha1.PhaseDone, wantReason: v1alpha1.ReasonCompleted,
		},
		"it has changed since it was read: a retry": {
			live: []runtime.Object{rolledOut}, faults: map[string]error{restart: apierrors.NewConflict(deployments, "web", errors.New("modified"))},
			wantRequests: []string{"get pods", "get deployments", restart},
			wantPhase:    v1alpha1.PhaseRunning, wantErr: "modified",
		},
		"it was deleted since it was read": {
			live: []runtime.Object{rolledOut}, faults: map[string]error{restart: apierrors.NewNotFound(deployments, "web")},
			wantRequests: []string{"get pods", "get deployments", restart},
			wantPhase:    v1alpha1.PhaseDone, wantReason: v1alpha1.ReasonTargetNotFound,
		},
		"it does not exist": {
			wantRequests: []string{"get pods", "get deployments"},
			wantPhase:    v1alpha1.PhaseDone, wantReason: v1alpha1.ReasonTargetNotFound,
		},
		"no permission to read": {
			faults:       map[string]error{"get deployments": apierrors.NewForbidden(deployments, "web", errors.New("no"))},
			wantRequests: []string{"get pods", "get deployments"},
			wantPhase:    v1alpha1.PhasePending, wantReason: v1alpha1.ReasonRestartForbidden, wantErr: "the verbs get and patch",
		},
		"no permission to restart": {
			live: []runtime.Object{rolledOut}, faults: map[string]error{restart: apierrors.NewForbidden(deployments, "web", errors.New("no"))},
			wantRequests: []string{"get pods", "get deployments", restart},
			wantPhase:    v1alpha1.PhaseRunning, wantReason: v1alpha1.ReasonRestartRefused, wantErr: "restart Deployment web: ",
		},
		"the API server is unavailable": {
			faults:       map[string]error{"get deployments": errors.New("connection refused")},
			wantRequests: []string{"get pods", "get deployments"},
			wantPhase:    v1alpha1.PhasePending, wantErr: "connection refused",
		},
	} {
		t.Run(testName, func(t *testing.T) {
			at := newAt(withRestart)
			f := newFixture(t, world{ats: []*v1alpha1.At{at}}, testingclock.NewFakeClock(due))
			for _, object := range tc.live {
				if err := f.kubeClient.Tracker().Add(object.DeepCopyObject()); err != nil {
					t.Fatal(err)
				}
			}
			for verbAndResource, err := range tc.faults {
				verb, resource, _ := strings.Cut(verbAndResource, " ")
				f.kubeClient.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
			}
			_, ctx := ktesting.NewTestContext(t)

			delay, err := f.syncHandler(ctx, name)

			if delay != 0 {
				t.Errorf("delay %v, want none", delay)
			}
			if (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("error %v, want %q", err, tc.wantErr)
			}
			var requests []string
			for _, action := range f.kubeClient.Actions() {
				requests = append(requests, action.GetVerb()+" "+action.GetResource().Resource)
			}
			if diff := cmp.Diff(tc.wantRequests, requests); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
			got := harness.Get(t, f.cnatClient.CnatV1alpha1().Ats(name.Namespace), name.Name)
			if got.Status.Phase != tc.wantPhase || got.Status.Reason != tc.wantReason {
				t.Errorf("got %s %s, want %s %s", got.Status.Phase, got.Status.Reason, tc.wantPhase, tc.wantReason)
			}
			if !tc.wantRestarted {
				return
			}
			deployment := harness.Get(t, f.kubeClient.AppsV1().Deployments(name.Namespace), "web")
			want := map[string]string{rollout.AnnotationRestartedAt: due.Format(time.RFC3339)}
			if diff := cmp.Diff(want, deployment.Spec.Template.Annotations, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
		})
	}
}

// TestManyWaitForOneRollout counts the requests of Ats that wait for a rollout that is stuck,
// and of those that follow it.
func TestManyWaitForOneRollout(t *testing.T) {
	t.Parallel()
	const ats, minutes = 60, 3
	stuck := appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: name.Namespace},
		Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](2)},
		Status:     appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 1, AvailableReplicas: 1},
	}
	for testName, tc := range map[string]struct {
		restartedAt time.Duration // after the Ats are due
		// expectations
		wantReason string
	}{
		"another rollout":    {restartedAt: -time.Hour, wantReason: v1alpha1.ReasonRolloutInProgress},
		"the one of the Ats": {restartedAt: 0},
	} {
		t.Run(testName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var reads atomic.Int64
				server := fakeserver.New(clock.RealClock{})
				kubeClient, cnatClient := harness.NewClients(t, harness.RoundTripper(func(request *http.Request) (*http.Response, error) {
					if request.Method == http.MethodGet && path.Base(path.Dir(request.URL.Path)) != "v1" && !harness.IsWatch(request) {
						reads.Add(1)
					}
					return server.RoundTrip(request)
				}))
				runWithClients(t, kubeClient, cnatClient, clock.RealClock{})
				kubeClient, cnatClient = harness.NewClients(t, server.Restore())
				scheduled := time.Now().Add(time.Minute)
				deployment := stuck.DeepCopy()
				deployment.Spec.Template.Annotations = map[string]string{rollout.AnnotationRestartedAt: scheduled.Add(tc.restartedAt).UTC().Format(time.RFC3339)}
				harness.Create(t, kubeClient.AppsV1().Deployments(name.Namespace), deployment)
				for i := range ats {
					harness.Create(t, cnatClient.CnatV1alpha1().Ats(name.Namespace), newAt(withRestart, func(at *v1alpha1.At) {
						at.Name, at.Spec.Schedule = fmt.Sprintf("at-%d", i), scheduled.Format(time.RFC3339)
					}))
				}
				time.Sleep(2 * time.Minute) // They are due, and have been read for that.
				before := reads.Load()
				time.Sleep(minutes * time.Minute)
				// Two workers may find at the same time that the last read is too old.
				if got, most := reads.Load()-before, int64(2*60*minutes); got > most || got < minutes {
					t.Errorf("%d reads in %d minutes, want at most %d", got, minutes, most)
				}
				list := harness.List(t, cnatClient.CnatV1alpha1().Ats(name.Namespace))
				for _, at := range list.Items {
					if at.Status.Reason != tc.wantReason {
						t.Fatalf("At %s is %s %q, want %q", at.Name, at.Status.Phase, at.Status.Reason, tc.wantReason)
					}
				}
				// It ends: all Ats notice it.
				deployment = harness.Get(t, kubeClient.AppsV1().Deployments(name.Namespace), "web")
				deployment.Status.ObservedGeneration, deployment.Status.UpdatedReplicas, deployment.Status.AvailableReplicas = 1000, 2, 2
				harness.Update(t, kubeClient.AppsV1().Deployments(name.Namespace), deployment)
				time.Sleep(20 * time.Second)
				list = harness.List(t, cnatClient.CnatV1alpha1().Ats(name.Namespace))
				for _, at := range list.Items {
					if at.Status.Phase != v1alpha1.PhaseDone || at.Status.Reason != v1alpha1.ReasonCompleted {
						t.Fatalf("At %s is %s %q: %s", at.Name, at.Status.Phase, at.Status.Reason, at.Status.Message)
					}
				}
			})
		})
	}
}
