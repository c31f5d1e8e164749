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

package steps

import (
	gocmp "cmp"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kubeinformers "k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	testingclock "k8s.io/utils/clock/testing"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	cnatfake "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/fake"
	cnatinformers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

var (
	due      = time.Date(2026, 12, 24, 10, 12, 0, 0, time.UTC)
	name     = cache.ObjectName{Namespace: "default", Name: "example-at"}
	defaults = plan.Defaults{Image: "busybox:test"}
)

func newAt(mutate ...func(*v1alpha1.At)) *v1alpha1.At {
	at := &v1alpha1.At{
		ObjectMeta: metav1.ObjectMeta{Name: name.Name, Namespace: name.Namespace, UID: "at-uid", Generation: 1, ResourceVersion: "1"},
		Spec:       v1alpha1.AtSpec{Schedule: "2026-12-24T10:12:00Z", RunSpec: v1alpha1.RunSpec{Command: "echo YAY"}},
		Status:     v1alpha1.AtStatus{Phase: v1alpha1.PhasePending},
	}
	for _, m := range mutate {
		m(at)
	}
	return at
}

func newPod(mutate ...func(*corev1.Pod)) *corev1.Pod {
	pod := plan.NewPod(newAt(), defaults)
	pod.UID, pod.ResourceVersion = "pod-uid", "1"
	for _, m := range mutate {
		m(pod)
	}
	return pod
}

// fixture has Steps that use fakes.
type fixture struct {
	*Steps
	recorder *record.FakeRecorder
	requests []string // with what they say about the object
}

func newFixture(t *testing.T, objects ...runtime.Object) *fixture {
	t.Helper()
	var ats, others []runtime.Object
	for _, object := range objects {
		if _, ok := object.(*v1alpha1.At); ok {
			ats = append(ats, object)
		} else {
			others = append(others, object)
		}
	}
	kubeClient, cnatClient := kubefake.NewClientset(others...), cnatfake.NewSimpleClientset(ats...)
	known, err := NewCache(cnatinformers.NewSharedInformerFactory(cnatClient, 0).Cnat().V1alpha1().Ats(), kubeinformers.NewSharedInformerFactory(kubeClient, 0).Core().V1().Pods())
	if err != nil {
		t.Fatal(err)
	}
	known.Freshness.Claim(due) // so that no status follows the creation of a Pod
	recorder := record.NewFakeRecorder(10)
	return &fixture{recorder: recorder, Steps: &Steps{
		Cache: known, KubeClient: kubeClient, CnatClient: cnatClient, Recorder: recorder, Clock: testingclock.NewFakePassiveClock(due),
		Failures: workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](0, 0), Defaults: defaults, Parallel: 1,
	}}
}

// answer makes requests fail, given by verb and resource, and notes all requests.
func (f *fixture) answer(faults map[string]error) {
	kubeClient, cnatClient := &f.KubeClient.(*kubefake.Clientset).Fake, &f.CnatClient.(*cnatfake.Clientset).Fake
	for _, client := range []*clienttesting.Fake{kubeClient, cnatClient} {
		client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
			request := action.GetVerb() + " " + action.GetResource().Resource
			err := faults[request]
			switch action := action.(type) {
			case clienttesting.DeleteActionImpl:
				of := action.DeleteOptions.Preconditions
				request += fmt.Sprintf(" %s, if UID %s and version %s", action.Name, *of.UID, *of.ResourceVersion)
			case clienttesting.PatchAction:
				request += fmt.Sprintf(" %s", action.GetPatch())
			}
			f.requests = append(f.requests, request)
			return err != nil, nil, err
		})
	}
}

// events returns the recorded events.
func (f *fixture) events() []string {
	var events []string
	for len(f.recorder.Events) > 0 {
		events = append(events, <-f.recorder.Events)
	}
	return events
}

// TestStep takes single steps, and lets the API server refuse them. The tests of the
// controller cover how they follow one another.
func TestStep(t *testing.T) {
	const (
		deletePod  = "delete pods example-at-pod, if UID pod-uid and version 1"
		releasePod = `patch pods {"metadata":{"uid":"pod-uid","$deleteFromPrimitiveList/finalizers":["cnat.programming-kubernetes.info/tracking"]}}`
		deleteAt   = "delete ats example-at, if UID at-uid and version 1"
		writeDone  = `patch ats {"metadata":{"resourceVersion":"1"},"status":{"phase":"DONE","reason":"Completed"}}`
	)
	pods, ats := corev1.Resource("pods"), v1alpha1.Resource("ats")
	unavailable := errors.New("connection refused")
	quota := apierrors.NewForbidden(pods, "example-at-pod", errors.New("exceeded quota"))
	podKind := schema.GroupKind{Kind: "Pod"}
	invalid := apierrors.NewInvalid(podKind, "example-at-pod", field.ErrorList{field.Required(field.NewPath("spec", "containers"), "")})
	denied := apierrors.NewInvalid(podKind, "example-at-pod", field.ErrorList{field.Invalid(field.NewPath("spec", "hostNetwork"), true, "not here")})
	denied.ErrStatus.Message = `admission webhook "policy.example.com" denied the request: ` + denied.ErrStatus.Message
	otherUID := apierrors.NewInvalid(podKind, "example-at-pod", field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), "pod-uid", "field is immutable")})
	policy := &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Message: "denied by a policy",
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Message: "denied by a policy"}}},
	}}
	notReleased := "Warning PodNotReleased remove the finalizer of Pod example-at-pod: "
	pod := newPod()
	stranger := newPod(func(pod *corev1.Pod) { pod.OwnerReferences, pod.Labels, pod.Finalizers = nil, nil, nil })
	ends := plan.Decision{Status: &v1alpha1.AtStatus{Phase: v1alpha1.PhaseDone, Reason: v1alpha1.ReasonCompleted}, Events: []plan.Event{{Type: "Normal", Reason: "Completed", Message: "words"}}}
	act := func(action any) plan.Decision { return plan.Decision{Action: action} }

	for testName, tc := range map[string]struct {
		decision plan.Decision
		live     []runtime.Object // beside the At
		faults   map[string]error // of the API server, by verb and resource
		// expectations
		want       []string // requests
		wantErr    string
		wantEvents []string
		wantAt     string // phase and reason, as stored; by default that it is pending
	}{
		"a Pod is created": {decision: act(plan.CreatePod{Due: due}), want: []string{"create pods"}},
		"a Pod is created, its name is taken": {
			decision: act(plan.CreatePod{Due: due}), live: []runtime.Object{stranger},
			want: []string{"create pods", "get pods", "patch ats"}, wantErr: "does not belong to this At", wantAt: "PENDING PodNameConflict",
			wantEvents: []string{"Warning PodNameConflict Pod example-at-pod already exists and does not belong to this At: delete that Pod, or give the At another name."},
		},
		"a Pod is created, its name was taken, and no longer is": {
			decision: act(plan.CreatePod{Due: due}), live: []runtime.Object{stranger}, faults: map[string]error{"get pods": apierrors.NewNotFound(pods, "example-at-pod")},
			want: []string{"create pods", "get pods"}, wantErr: "has since been deleted",
		},
		"a Pod is created, without an answer": {
			decision: act(plan.CreatePod{Due: due}), faults: map[string]error{"create pods": unavailable},
			want: []string{"create pods"}, wantErr: "connection refused",
		},
		"a Pod is refused": {
			decision: act(plan.CreatePod{Due: due}), faults: map[string]error{"create pods": quota},
			want: []string{"create pods", "patch ats"}, wantErr: "exceeded quota", wantAt: "PENDING PodRefused",
			wantEvents: []string{"Warning PodRefused create Pod: " + quota.Error()},
		},
		"a Pod is denied by a webhook, with causes like the API server's": {
			decision: act(plan.CreatePod{Due: due}), faults: map[string]error{"create pods": denied},
			want: []string{"create pods", "patch ats"}, wantErr: "denied the request", wantAt: "PENDING PodRefused",
			wantEvents: []string{"Warning PodRefused create Pod: " + denied.Error()},
		},
		"a Pod is invalid": {
			decision: act(plan.CreatePod{Due: due}), faults: map[string]error{"create pods": invalid},
			want: []string{"create pods", "patch ats"}, wantAt: "DONE InvalidPod",
			wantEvents: []string{"Warning InvalidPod create Pod: " + invalid.Error()},
		},
		"a Pod is deleted": {decision: act(plan.DeletePod{Pod: pod}), live: []runtime.Object{pod}, want: []string{deletePod}},
		"an unexpected Pod is deleted": {
			decision: plan.Decision{Action: plan.DeletePod{Pod: pod, Unexpected: true}, Events: []plan.Event{{Type: "Warning", Reason: "UnexpectedPod", Message: "words"}}},
			live:     []runtime.Object{pod}, want: []string{deletePod}, wantEvents: []string{"Warning UnexpectedPod words"},
		},
		"a Pod is deleted, it is already gone": {decision: act(plan.DeletePod{Pod: pod}), want: []string{deletePod}},
		"a Pod is deleted, it has changed since": {
			decision: act(plan.DeletePod{Pod: pod}), faults: map[string]error{"delete pods": apierrors.NewConflict(pods, "example-at-pod", errors.New("modified"))},
			want: []string{deletePod},
		},
		"a Pod is deleted, without an answer": {
			decision: act(plan.DeletePod{Pod: pod}), faults: map[string]error{"delete pods": unavailable},
			want: []string{deletePod}, wantErr: "delete Pod example-at-pod: connection refused",
		},
		"a Pod is deleted, a policy denies it": {
			decision: act(plan.DeletePod{Pod: pod}), faults: map[string]error{"delete pods": policy},
			want: []string{deletePod}, wantErr: "denied by a policy", wantEvents: []string{"Warning PodNotDeleted delete Pod example-at-pod: denied by a policy"},
		},
		"a Pod is released":                     {decision: act(plan.ReleasePod{Pod: pod}), live: []runtime.Object{pod}, want: []string{releasePod}},
		"a Pod is released, it is already gone": {decision: act(plan.ReleasePod{Pod: pod}), want: []string{releasePod}},
		"a Pod is released, another has its name by now": {
			decision: act(plan.ReleasePod{Pod: pod}), faults: map[string]error{"patch pods": otherUID}, want: []string{releasePod},
		},
		"a Pod is released, a policy denies it": {
			decision: act(plan.ReleasePod{Pod: pod}), faults: map[string]error{"patch pods": policy},
			want: []string{releasePod}, wantErr: "denied by a policy", wantEvents: []string{notReleased + "denied by a policy"},
		},
		"a Pod is released, without an answer": {
			decision: act(plan.ReleasePod{Pod: pod}), faults: map[string]error{"patch pods": unavailable},
			want: []string{releasePod}, wantErr: "connection refused",
		},
		"the At is deleted": {decision: act(plan.DeleteAt{}), want: []string{deleteAt}},
		"the At is deleted, it is already gone": {
			decision: act(plan.DeleteAt{}), faults: map[string]error{"delete ats": apierrors.NewNotFound(ats, name.Name)}, want: []string{deleteAt},
		},
		"the At is deleted, it has been edited since": {
			decision: act(plan.DeleteAt{}), faults: map[string]error{"delete ats": apierrors.NewConflict(ats, name.Name, errors.New("modified"))},
			want: []string{deleteAt}, wantErr: "modified",
		},
		"the At is deleted, a policy denies it": {
			decision: act(plan.DeleteAt{}), faults: map[string]error{"delete ats": policy},
			want: []string{deleteAt}, wantErr: "denied by a policy", wantEvents: []string{"Warning AtNotDeleted delete the At: denied by a policy"},
		},
		"the status is written": {
			decision: ends, want: []string{writeDone}, wantAt: "DONE Completed", wantEvents: []string{"Normal Completed words"},
		},
		"the status is written, the At is gone": {
			decision: ends, faults: map[string]error{"patch ats": apierrors.NewNotFound(ats, name.Name)},
			want: []string{writeDone},
		},
		"the status is written, the At has changed since: no event": {
			decision: ends, faults: map[string]error{"patch ats": apierrors.NewConflict(ats, name.Name, errors.New("modified"))},
			want: []string{writeDone}, wantErr: "write the status: ",
		},
	} {
		t.Run(testName, func(t *testing.T) {
			at := newAt()
			f := newFixture(t, append(tc.live, at)...)
			f.answer(tc.faults)
			world := &plan.World{At: at, Live: plan.LiveAll, AsOf: due, Now: due}

			_, err := f.Step(t.Context(), name, world, func(w plan.World) plan.Decision {
				if len(f.requests) > 0 {
					return plan.Decide(w)
				}
				return tc.decision
			})

			if (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("error %v, want %q", err, tc.wantErr)
			}
			for i, request := range f.requests {
				if i < len(tc.want) && tc.want[i] == "patch ats" { // The tests of decisions cover it.
					f.requests[i], _, _ = strings.Cut(request, " {")
				}
			}
			if diff := cmp.Diff(tc.want, f.requests); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantEvents, f.events()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			stored, err := f.CnatClient.CnatV1alpha1().Ats(name.Namespace).Get(t.Context(), name.Name, metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
			if got, want := strings.TrimSpace(string(stored.Status.Phase)+" "+stored.Status.Reason), gocmp.Or(tc.wantAt, "PENDING"); err == nil && got != want {
				t.Errorf("the At is %s, want %s", got, want)
			}
		})
	}
}
