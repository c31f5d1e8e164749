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
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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
	"k8s.io/component-base/metrics/testutil"
	testingclock "k8s.io/utils/clock/testing"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/freeze"
	cnatfake "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/fake"
	cnatinformers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions"
	"programming-kubernetes.info/cnat-controller/pkg/metrics"
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
		Freezes: func() (*freeze.Set, error) { return nil, nil },
	}}
}

// answer makes a request fail, given by verb and resource, and notes all requests.
func (f *fixture) answer(fails string, fault error) {
	kubeClient, cnatClient := &f.KubeClient.(*kubefake.Clientset).Fake, &f.CnatClient.(*cnatfake.Clientset).Fake
	for _, client := range []*clienttesting.Fake{kubeClient, cnatClient} {
		client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
			request := action.GetVerb() + " " + action.GetResource().Resource
			var err error
			if request == fails {
				err = fault
			}
			switch action := action.(type) {
			case clienttesting.DeleteActionImpl:
				of := action.DeleteOptions.Preconditions
				request += fmt.Sprintf(" %s, if UID %s and version %s", action.Name, *of.UID, *of.ResourceVersion)
			case clienttesting.UpdateActionImpl:
				request += ", version " + action.Object.(*v1alpha1.At).ResourceVersion // The tests of decisions have the status.
			case clienttesting.PatchAction:
				request += " " + string(action.GetPatch())
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
	pod := newPod()
	stranger := newPod(func(pod *corev1.Pod) { pod.OwnerReferences, pod.Labels, pod.Finalizers = nil, nil, nil })
	ends := plan.Decision{Status: &v1alpha1.AtStatus{Phase: v1alpha1.PhaseDone, Reason: v1alpha1.ReasonCompleted}, Events: []plan.Event{{Type: "Normal", Reason: "Completed", Message: "words"}}}
	creates, deletes := plan.Decision{Action: plan.CreatePod{Due: due}}, plan.Decision{Action: plan.DeletePod{Pod: pod}}
	releases, deletesAt := plan.Decision{Action: plan.ReleasePod{Pod: pod}}, plan.Decision{Action: plan.DeleteAt{}}

	for testName, tc := range map[string]struct {
		decision plan.Decision
		live     runtime.Object // beside the At
		fails    string         // verb and resource of the request that fails
		err      error          // the API server's answer to it
		want     string         // requests, events, the error, and the At as stored
	}{
		"a Pod is created": {decision: creates, want: "create pods"},
		"a Pod is created, its name is taken": {
			decision: creates, live: stranger,
			want: `create pods; get pods; update ats, version 1; Warning PodNameConflict Pod example-at-pod already exists and does not belong to this At: delete that Pod, or give the At another name.; error: blocked: Pod example-at-pod already exists and does not belong to this At: delete that Pod, or give the At another name.; the At is PENDING PodNameConflict`,
		},
		"a Pod is created, its name was taken, and no longer is": {
			decision: creates, live: stranger, fails: "get pods", err: apierrors.NewNotFound(pods, "example-at-pod"),
			want: "create pods; get pods; error: the Pod already existed but has since been deleted",
		},
		"a Pod is created, without an answer": {
			decision: creates, fails: "create pods", err: unavailable,
			want: "create pods; error: create Pod: connection refused",
		},
		"a Pod is refused": {
			decision: creates, fails: "create pods", err: quota,
			want: `create pods; update ats, version 1; Warning PodRefused create Pod: pods "example-at-pod" is forbidden: exceeded quota; error: blocked: create Pod: pods "example-at-pod" is forbidden: exceeded quota; the At is PENDING PodRefused`,
		},
		"a Pod is denied by a webhook, with causes like the API server's": {
			decision: creates, fails: "create pods", err: denied,
			want: `create pods; update ats, version 1; Warning PodRefused create Pod: admission webhook "policy.example.com" denied the request: Pod "example-at-pod" is invalid: spec.hostNetwork: Invalid value: true: not here; error: blocked: create Pod: admission webhook "policy.example.com" denied the request: Pod "example-at-pod" is invalid: spec.hostNetwork: Invalid value: true: not here; the At is PENDING PodRefused`,
		},
		"a Pod is invalid": {
			decision: creates, fails: "create pods", err: invalid,
			want: `create pods; update ats, version 1; Warning InvalidPod create Pod: Pod "example-at-pod" is invalid: spec.containers: Required value; the At is DONE InvalidPod`,
		},
		"a Pod is deleted": {decision: deletes, live: pod, want: "delete pods example-at-pod, if UID pod-uid and version 1"},
		"an unexpected Pod is deleted": {
			decision: plan.Decision{Action: plan.DeletePod{Pod: pod, Unexpected: true}, Events: []plan.Event{{Type: "Warning", Reason: "UnexpectedPod", Message: "words"}}},
			live:     pod,
			want:     "delete pods example-at-pod, if UID pod-uid and version 1; Warning UnexpectedPod words; unexpected Pods: 1",
		},
		"a Pod is deleted, it is already gone": {decision: deletes, want: "delete pods example-at-pod, if UID pod-uid and version 1"},
		"a Pod is deleted, it has changed since": {
			decision: deletes, fails: "delete pods", err: apierrors.NewConflict(pods, "example-at-pod", errors.New("modified")),
			want: "delete pods example-at-pod, if UID pod-uid and version 1",
		},
		"a Pod is deleted, without an answer": {
			decision: deletes, fails: "delete pods", err: unavailable,
			want: "delete pods example-at-pod, if UID pod-uid and version 1; error: delete Pod example-at-pod: connection refused",
		},
		"a Pod is deleted, a policy denies it": {
			decision: deletes, fails: "delete pods", err: policy,
			want: "delete pods example-at-pod, if UID pod-uid and version 1; Warning PodNotDeleted delete Pod example-at-pod: denied by a policy; error: blocked: delete Pod example-at-pod: denied by a policy",
		},
		"a Pod is released":                     {decision: releases, live: pod, want: `patch pods {"metadata":{"uid":"pod-uid","$deleteFromPrimitiveList/finalizers":["cnat.programming-kubernetes.info/tracking"]}}`},
		"a Pod is released, it is already gone": {decision: releases, want: `patch pods {"metadata":{"uid":"pod-uid","$deleteFromPrimitiveList/finalizers":["cnat.programming-kubernetes.info/tracking"]}}`},
		"a Pod is released, another has its name by now": {
			decision: releases, fails: "patch pods", err: otherUID,
			want: `patch pods {"metadata":{"uid":"pod-uid","$deleteFromPrimitiveList/finalizers":["cnat.programming-kubernetes.info/tracking"]}}`,
		},
		"a Pod is released, a policy denies it": {
			decision: releases, fails: "patch pods", err: policy,
			want: `patch pods {"metadata":{"uid":"pod-uid","$deleteFromPrimitiveList/finalizers":["cnat.programming-kubernetes.info/tracking"]}}; Warning PodNotReleased remove the finalizer of Pod example-at-pod: denied by a policy; error: blocked: remove the finalizer of Pod example-at-pod: denied by a policy`,
		},
		"a Pod is released, without an answer": {
			decision: releases, fails: "patch pods", err: unavailable,
			want: `patch pods {"metadata":{"uid":"pod-uid","$deleteFromPrimitiveList/finalizers":["cnat.programming-kubernetes.info/tracking"]}}; error: remove the finalizer of Pod example-at-pod: connection refused`,
		},
		"the At is deleted": {decision: deletesAt, want: "delete ats example-at, if UID at-uid and version 1"},
		"the At is deleted, it is already gone": {
			decision: deletesAt, fails: "delete ats", err: apierrors.NewNotFound(ats, name.Name),
			want: "delete ats example-at, if UID at-uid and version 1",
		},
		"the At is deleted, it has been edited since": {
			decision: deletesAt, fails: "delete ats", err: apierrors.NewConflict(ats, name.Name, errors.New("modified")),
			want: `delete ats example-at, if UID at-uid and version 1; error: delete the At: Operation cannot be fulfilled on ats.cnat.programming-kubernetes.info "example-at": modified`,
		},
		"the At is deleted, a policy denies it": {
			decision: deletesAt, fails: "delete ats", err: policy,
			want: "delete ats example-at, if UID at-uid and version 1; Warning AtNotDeleted delete the At: denied by a policy; error: blocked: delete the At: denied by a policy",
		},
		"the status is written": {
			decision: ends,
			want:     `update ats, version 1; Normal Completed words; the At is DONE Completed`,
		},
		"the status is written, the At is gone": {
			decision: ends, fails: "update ats", err: apierrors.NewNotFound(ats, name.Name),
			want: `update ats, version 1`,
		},
		"the status is written, the At has changed since: no event": {
			decision: ends, fails: "update ats", err: apierrors.NewConflict(ats, name.Name, errors.New("modified")),
			want: `update ats, version 1; error: write the status: Operation cannot be fulfilled on ats.cnat.programming-kubernetes.info "example-at": modified`,
		},
	} {
		t.Run(testName, func(t *testing.T) {
			at := newAt()
			objects := []runtime.Object{at}
			if tc.live != nil {
				objects = append(objects, tc.live)
			}
			f := newFixture(t, objects...)
			f.answer(tc.fails, tc.err)
			world := &plan.World{At: at, Live: plan.LiveAll, AsOf: due, Now: due}
			unexpected := unexpectedPods(t)

			_, err := f.Step(t.Context(), name, world, func(w plan.World) plan.Decision {
				if len(f.requests) > 0 {
					return plan.Decide(w)
				}
				return tc.decision
			})
			said := slices.Concat(f.requests, f.events())
			if more := unexpectedPods(t) - unexpected; more > 0 {
				said = append(said, fmt.Sprintf("unexpected Pods: %v", more))
			}
			if err != nil {
				said = append(said, "error: "+err.Error())
			}
			if stored, err := f.CnatClient.CnatV1alpha1().Ats(name.Namespace).Get(t.Context(), name.Name, metav1.GetOptions{}); err == nil && stored.Status.Phase+v1alpha1.AtPhase(stored.Status.Reason) != v1alpha1.PhasePending {
				said = append(said, fmt.Sprintf("the At is %s %s", stored.Status.Phase, stored.Status.Reason))
			}
			if got := strings.Join(said, "; "); got != tc.want {
				t.Errorf("\n got %s\nwant %s", got, tc.want)
			}
		})
	}
}

func init() { metrics.Register() }

// unexpectedPods returns the value of the metric.
func unexpectedPods(t *testing.T) float64 {
	t.Helper()
	value, err := testutil.GetCounterMetricValue(metrics.UnexpectedPods)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// TestForeignConditions has an At with so many conditions of others that the cache does not keep its
// own. That must neither be written again at once nor be reported again.
func TestForeignConditions(t *testing.T) {
	at := newAt(func(at *v1alpha1.At) {
		for i := range 100 {
			at.Status.Conditions = append(at.Status.Conditions, metav1.Condition{Type: fmt.Sprint("Foreign", i), Status: metav1.ConditionTrue})
		}
		at.Status.Conditions = append(at.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionTrue, Reason: "Any"})
	})
	f := newFixture(t, at)
	kept := plan.KeepAt(at)
	status := kept.Status.DeepCopy()
	status.Conditions = at.Status.Conditions
	delay, err := f.writeStatus(t.Context(), kept, plan.Decision{Status: status, Delay: time.Minute, Events: []plan.Event{{Reason: "Any"}}})
	if delay != time.Minute || err != nil || len(f.events()) > 0 {
		t.Errorf("got delay %v and error %v, want a minute and no event", delay, err)
	}
}
