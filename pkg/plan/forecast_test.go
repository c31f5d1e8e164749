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

package plan

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

const (
	quotaMessage    = `create Pod: pods "example-at-pod" is forbidden: exceeded quota`
	forecastMessage = "If it were due now: " + quotaMessage
)

// unforeseen is a world without a preflight, foreseen one with that result.
func unforeseen(w *World) { w.Forecast = nil }

func foreseen(reason, message string) func(*World) {
	return func(w *World) { w.Forecast = newForecast(reason, message) }
}

func TestDecideForecast(t *testing.T) {
	written := pendingWith(blocked(earlier, v1alpha1.ReasonPodRefused, "If it were due now: quota"))
	quota := foreseen(v1alpha1.ReasonPodRefused, "quota")
	testDecide(t, map[string]decideCase{
		"nothing known: a preflight is needed, and nothing is written": {at: pendingAt(), world: unforeseen, now: earlier, want: "preflight; wait 49m17.117s"},
		"time of the second preflight: then it waits until it is due":  {at: pendingAt(), world: unforeseen, now: due.Add(-Lead(newAt().UID)), want: "preflight; wait 10m42.883s"},
		"refused for another reason": {
			at: pendingAt(blocked(earlier, v1alpha1.ReasonInvalidPod, "If it were due now: no")), world: quota, now: earlier,
			want: `Blocked PodRefused: If it were due now: quota; Warning PodRefused`,
		},
		"refused, no newer forecast: it stays": {at: newAt(withStatus(written)), world: unforeseen, now: earlier, want: "preflight; wait 49m17.117s"},
		"suspended and due: no longer a forecast": {
			at: newAt(withStatus(pendingWith(suspended(), blocked(earlier, v1alpha1.ReasonPodRefused, "If it were due now: quota"))), withSuspend), world: quota, now: due,
			want: "no Blocked",
		},
		"too late: nothing of the forecast is said": {
			at: newAt(withStatus(written), withStartingDeadline(3)), world: unforeseen,
			want: "Phase=DONE; CompletionTime=10:12:04; Failed StartingDeadlineExceeded: It did not run: it could not start within spec.startingDeadlineSeconds (3) of the scheduled time.; no Blocked; Warning StartingDeadlineExceeded; read all",
		},
	})
}

func TestForesee(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	forbidden := func(message string) error { return apierrors.NewForbidden(pods, "at-pod", errors.New(message)) }
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "at-pod", field.ErrorList{field.Required(field.NewPath("spec", "containers"), "")})
	terminating := apierrors.NewForbidden(pods, "at-pod", errors.New("namespace is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, tc := range map[string]struct {
		err       error
		want      string // the reason; "nothing" if it says nothing
		byCommand bool   // it may concern the command
		admitted  bool   // it says nothing against the Pod
	}{
		"accepted":                               {nil, "", false, true},
		"the name is taken":                      {apierrors.NewAlreadyExists(pods, "at-pod"), "", false, true},
		"quota":                                  {forbidden("exceeded quota: no-pods"), v1alpha1.ReasonPodRefused, false, false},
		"invalid":                                {invalid, v1alpha1.ReasonInvalidPod, false, false},
		"a webhook denies it as a bad request":   {apierrors.NewBadRequest(`admission webhook "a" denied the request: no`), v1alpha1.ReasonPodRefused, true, false},
		"a webhook is down":                      {apierrors.NewInternalError(errors.New(`failed calling webhook "a": connection refused`)), v1alpha1.ReasonPodRefused, false, false},
		"a webhook does not support dry-run":     {apierrors.NewBadRequest(`admission webhook "a" does not support dry run`), "nothing", true, true},
		"a webhook is slow":                      {apierrors.NewInternalError(errors.New(`failed calling webhook "a": failed to call webhook: Post "https://a": context deadline exceeded`)), "nothing", false, false},
		"the network before a webhook is slow":   {apierrors.NewInternalError(errors.New(`failed calling webhook "a": dial tcp: i/o timeout`)), "nothing", false, false},
		"no answer":                              {errors.New("context deadline exceeded"), "nothing", false, false},
		"the API server does not know the CRD":   {forbidden("cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion cnat.programming-kubernetes.info/v1alpha1 Kind At: no matches"), "nothing", false, false},
		"the namespace is being deleted":         {terminating, "nothing", false, false},
		"the quota's count has a conflict":       {apierrors.NewConflict(schema.GroupResource{Resource: "resourcequotas"}, "quota", errors.New("modified")), "nothing", false, false},
		"the token of the controller is too old": {apierrors.NewUnauthorized("too old"), "nothing", false, false},
		"a policy denies it":                     {forbidden("ValidatingAdmissionPolicy 'a' with binding 'b' denied request: no curl"), v1alpha1.ReasonPodRefused, true, false},
		"too large":                              {apierrors.NewRequestEntityTooLargeError("limit is 3145728"), v1alpha1.ReasonPodRefused, true, false},
		"too large for etcd":                     {apierrors.NewInternalError(errors.New("etcdserver: request is too large")), v1alpha1.ReasonPodRefused, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.err != nil {
				tc.err = fmt.Errorf("create Pod: %w", tc.err)
			}
			got := Foresee(v1alpha1.ReasonPodRefused, tc.err)
			if byCommand := MayConcernCommand(tc.err); byCommand != tc.byCommand {
				t.Errorf("it may concern the command: %t, want %t", byCommand, tc.byCommand)
			}
			if admitted := IsAdmitted(tc.err); admitted != tc.admitted {
				t.Errorf("admitted: %t, want %t", admitted, tc.admitted)
			}
			switch {
			case tc.want == "nothing" && got != nil, tc.want != "nothing" && (got == nil || got.Reason != tc.want):
				t.Errorf("got %+v, want %q", got, tc.want)
			case got != nil && got.Reason != "" && got.Message != tc.err.Error():
				t.Errorf("message %q, want %q", got.Message, tc.err)
			}
		})
	}
}

func TestWantsForecast(t *testing.T) {
	for name, tc := range map[string]struct {
		at            *v1alpha1.At
		now           time.Time
		took          time.Duration // the start
		want, atStart bool
	}{
		"pending":                               {at: newAt(), now: earlier, want: true},
		"created just now":                      {at: newAt(func(at *v1alpha1.At) { at.CreationTimestamp.Time = earlier.Add(-59 * time.Second) }), now: earlier, want: true, atStart: true},
		"created before a slow start":           {at: newAt(func(at *v1alpha1.At) { at.CreationTimestamp.Time = earlier.Add(-59 * time.Second) }), now: earlier.Add(5 * time.Minute), took: 5 * time.Minute, want: true, atStart: true},
		"due in less than ten minutes":          {at: newAt(), now: due.Add(-10 * time.Minute), want: true, atStart: true},
		"with a forecast":                       {at: pendingAt(blocked(earlier, v1alpha1.ReasonPodRefused, forecastMessage)), now: earlier, want: true, atStart: true},
		"suspended":                             {at: newAt(withSuspended), now: earlier, want: true},
		"due in a second, which is the margin":  {at: newAt(), now: due.Add(-time.Second)},
		"due":                                   {at: newAt(), now: due},
		"moved to the future by the wall clock": {at: runningAt(), now: earlier},
		"done":                                  {at: newAt(withDone(v1alpha1.ConditionFailed, earlier)), now: earlier},
		"being deleted":                         {at: newAt(func(at *v1alpha1.At) { at.DeletionTimestamp = &metav1.Time{Time: earlier} }), now: earlier},
	} {
		t.Run(name, func(t *testing.T) {
			_, got := WantsForecast(tc.at, tc.now)
			if start := WantsForecastAtStart(tc.at, tc.now.Add(-tc.took), tc.now); got != tc.want || start != tc.atStart {
				t.Errorf("got %v, at the start %v; want %v, %v", got, start, tc.want, tc.atStart)
			}
		})
	}
}

// TestLead checks that preflights are spread over a minute, and always get the same time.
func TestLead(t *testing.T) {
	seen := map[time.Duration]bool{}
	for i := range 1000 {
		at := newAt(func(at *v1alpha1.At) { at.UID = types.UID(fmt.Sprint(i)) })
		got := Lead(at.UID)
		if got < 10*time.Minute || got >= 11*time.Minute || got != Lead(at.UID) {
			t.Fatalf("got %v, then %v; want from 10 to 11 minutes", got, Lead(at.UID))
		}
		seen[got.Truncate(10*time.Second)] = true
	}
	if len(seen) != 6 {
		t.Errorf("they are within %d times 10 s, want 6", len(seen))
	}
}

func TestPodKeys(t *testing.T) {
	keys := func(mutate ...func(*v1alpha1.At)) (like, same string) {
		pod := NewPod(newAt(mutate...), Defaults{Image: "image"})
		like, same = PodKeys(pod)
		expect(t, "PodKeys changed the Pod", NewPod(newAt(mutate...), Defaults{Image: "image"}), pod)
		return like, same
	}
	template := func(edit func(*corev1.PodTemplateSpec)) func(*v1alpha1.At) {
		return func(at *v1alpha1.At) {
			at.Spec.Template = &corev1.PodTemplateSpec{Spec: defaultTemplate(Defaults{Image: "image"}).Spec}
			edit(at.Spec.Template)
		}
	}
	like, same := keys()
	for name, tc := range map[string]struct {
		mutate     func(*v1alpha1.At)
		like, same bool // whether the keys are the same
	}{
		"another At": {func(at *v1alpha1.At) {
			at.Name, at.UID, at.Generation, at.Spec.Schedule = "other", "other", 7, "2027-12-24T10:12:00Z"
		}, true, true},
		"long name": {func(at *v1alpha1.At) { at.Name = strings.Repeat("a", 200) }, true, true},
		"command":   {func(at *v1alpha1.At) { at.Spec.Command = "other" }, true, false},
		"arguments": {template(func(pod *corev1.PodTemplateSpec) {
			pod.Spec.Containers[0].Args = []string{"other"}
		}), true, true}, // spec.command replaces them
		"command of the template": {func(at *v1alpha1.At) {
			template(func(pod *corev1.PodTemplateSpec) { pod.Spec.Containers[0].Args = []string{"other"} })(at)
			at.Spec.Command = ""
		}, true, false},
		"namespace": {func(at *v1alpha1.At) { at.Namespace = "other" }, false, false},
		"label":     {template(func(pod *corev1.PodTemplateSpec) { pod.Labels = map[string]string{"a": "b"} }), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			gotLike, gotSame := keys(tc.mutate)
			if (gotLike == like) != tc.like || (gotSame == same) != tc.same {
				t.Errorf("equal: like %v, same %v; want %v, %v", gotLike == like, gotSame == same, tc.like, tc.same)
			}
		})
	}
}
