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
	"cmp"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestDecidePending covers Ats that have no Pod yet.
func TestDecidePending(t *testing.T) {
	testDecide(t, map[string]decideCase{
		"far from due":                     {now: earlier, want: "wait 49m17.117s"},
		"a nanosecond before due: not yet": {now: due.Add(-1), want: "wait 1ns"},
		"exactly due":                      {now: due, want: "CreatePod due 10:12:00; wait 1m0s; read At"},
		"long overdue":                     {at: newAt(withSchedule("0001-01-01T00:00:00Z")), want: "CreatePod due 0001-01-01 00:00:00; wait 1m0s; read At"},
		"as far as the calendar goes":      {at: newAt(withSchedule("9999-12-31T23:59:59Z")), want: "wait 2562047h36m33.971775807s"},
		"invalid schedule: reported": {
			at:   newAt(withSchedule("tomorrow")),
			want: `Blocked InvalidSchedule: spec.schedule "tomorrow" is invalid: write a time in RFC 3339 format, such as 2035-12-24T10:12:00Z; Warning InvalidSchedule`,
		},
		"edited when it was due: due since then": {
			at: newAt(func(at *v1alpha1.At) {
				at.ManagedFields = []metav1.ManagedFieldsEntry{
					{Time: &metav1.Time{Time: created}}, {Time: &metav1.Time{Time: earlier}}, {}, {Subresource: "status", Time: &metav1.Time{Time: now}},
				}
			}), dropped: true,
			want: "CreatePod due 10:12:00.01; wait 1m0s; read At",
		},
		"blocked until now: due since now": {at: pendingAt(conflict), want: "CreatePod due 10:12:04; wait 1m0s; read At"},
	})
}

// TestDecideNameTaken covers Ats that are due while another Pod has the name of theirs.
func TestDecideNameTaken(t *testing.T) {
	earlierAt := metav1.OwnerReference{APIVersion: "cnat.programming-kubernetes.info/v1alpha1", Kind: "At", Name: "example-at", UID: "earlier-uid", Controller: ptr.To(true)}
	notController := metav1.OwnerReference{APIVersion: "cnat.programming-kubernetes.info/v1alpha1", Kind: "At", Name: "example-at", UID: uid}
	forged := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "example-at", UID: uid, Controller: ptr.To(true)}
	testDecide(t, map[string]decideCase{
		"a Pod of an earlier At with this name: waited for, not reported": {pod: succeededPod(ownedBy(earlierAt)), now: due.Add(time.Minute - 1), want: "retry blocked"},
		"the name belongs to a Pod without an owner": {
			pod:  succeededPod(ownedBy()),
			want: "Blocked PodNameConflict: Pod example-at-pod already exists and does not belong to this At: delete that Pod, or give the At another name.; Warning PodNameConflict; retry blocked",
		},
		"an owner that is not the controller does not count":        {at: pendingAt(conflict), pod: succeededPod(ownedBy(notController)), want: "retry blocked"},
		"an owner of another kind with the same UID does not count": {at: pendingAt(conflict), pod: succeededPod(ownedBy(forged)), want: "retry blocked"},
		"a Pod of an earlier At with this name, not being deleted: reported": {
			pod: succeededPod(ownedBy(earlierAt)), now: due.Add(time.Minute),
			want: "Blocked PodNameConflict: Pod example-at-pod of an earlier At with this name still exists: run kubectl describe pod example-at-pod to see what it is waiting for.; Warning PodNameConflict; retry blocked",
		},
	})
}

// TestDecideStartingDeadline covers Ats that may only start for a while.
func TestDecideStartingDeadline(t *testing.T) {
	testDecide(t, map[string]decideCase{
		"late, beyond the starting deadline, because it was refused": {
			at: newAt(withStartingDeadline(3), withStatus(v1alpha1.AtStatus{
				Conditions: []metav1.Condition{blocked(earlier, v1alpha1.ReasonPodRefused, "exceeded quota")},
			})),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed StartingDeadlineExceeded: It did not run: it could not start within spec.startingDeadlineSeconds (3) of the scheduled time. It was blocked: exceeded quota; no Blocked; Warning StartingDeadlineExceeded; read all",
		},
	})
}

// TestRefused covers the errors of the API server that refuse a Pod, an At or a restart.
func TestRefused(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	quota := apierrors.NewForbidden(pods, "example-at-pod", errors.New("exceeded quota"))
	terminating := apierrors.NewForbidden(pods, "example-at-pod", errors.New("namespace default is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "example-at-pod", field.ErrorList{field.Required(field.NewPath("spec", "containers"), "")})
	// The API server's error for a ValidatingAdmissionPolicy without its own reason.
	policy := apierrors.NewForbidden(pods, "example-at-pod", errors.New("ValidatingAdmissionPolicy 'images' denied request"))
	policy.ErrStatus.Reason, policy.ErrStatus.Code = metav1.StatusReasonInvalid, 422
	policy.ErrStatus.Details.Causes = []metav1.StatusCause{{Message: "ValidatingAdmissionPolicy 'images' denied request"}}
	// The API server's error for a webhook's denial: pkg/admission/plugin/webhook/errors.
	webhook := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "example-at-pod", field.ErrorList{field.Invalid(field.NewPath("spec", "hostNetwork"), true, "not here")})
	webhook.ErrStatus.Message = `admission webhook "policy.example.com" denied the request: ` + webhook.ErrStatus.Message
	long := apierrors.NewBadRequest(strings.Repeat("🌍", 2000))
	busy := apierrors.NewTooManyRequests("busy", 1)

	refused := func(transition time.Time, message string) *v1alpha1.AtStatus {
		return ptr.To(pendingWith(blocked(transition, v1alpha1.ReasonPodRefused, message)))
	}

	for name, tc := range map[string]struct {
		at       *v1alpha1.At
		reason   string // PodRefused by default
		err      error
		failures int
		want     string
	}{
		"quota: reported and retried": {
			at: newAt(), err: quota,
			want: `Blocked PodRefused: pods "example-at-pod" is forbidden: exceeded quota; Warning PodRefused; retry blocked`,
		},
		"refused in other words: the condition changes, no further event": {
			at: newAt(withStatus(*refused(earlier, "used: pods=4"))), err: quota,
			want: `Blocked PodRefused: pods "example-at-pod" is forbidden: exceeded quota (since 09:12:00); retry blocked`,
		},
		"a policy's denial": {
			at: newAt(), err: policy,
			want: `Blocked PodRefused: pods "example-at-pod" is forbidden: ValidatingAdmissionPolicy 'images' denied request; Warning PodRefused; retry blocked`,
		},
		"a webhook's denial, with causes like the API server's": {
			at: newAt(), err: webhook,
			want: `Blocked PodRefused: admission webhook "policy.example.com" denied the request: Pod "example-at-pod" is invalid: spec.hostNetwork: Invalid value: true: not here; Warning PodRefused; retry blocked`,
		},
		"a refusal longer than a condition's message can be": {
			at: newAt(), err: long,
			want: "Blocked PodRefused: " + strings.Repeat("🌍", 512) + "…; Warning PodRefused; retry blocked",
		},
		"invalid, after it was refused: the refusal no longer matters": {
			at: newAt(withStatus(*refused(earlier, quota.Error()))), err: invalid,
			want: `Phase=DONE; CompletionTime=10:12:04; Failed InvalidPod: Pod "example-at-pod" is invalid: spec.containers: Required value; no Blocked; Warning InvalidPod`,
		},
		"the namespace is being deleted: nothing to do": {at: newAt(), err: terminating, want: "nothing"},
		"invalid, for a further attempt: the end, with no further failure counted": {
			at: newAt(withStatus(*nextAttempt(1, now)), withBackoffLimit(5)), err: invalid,
			want: `Phase=DONE; CompletionTime=10:12:04; no NextAttemptTime; Failed InvalidPod: Pod "example-at-pod" is invalid: spec.containers: Required value; Warning InvalidPod`,
		},
		"overloaded for a minute: reported and retried as before": {at: newAt(), err: busy, failures: lastingFailures, want: "Blocked PodNotCreated: busy; Warning PodNotCreated; retry"},
		"etcd is unavailable: only retried": {
			at: newAt(), err: &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 500, Message: "etcdserver: leader changed"}},
			want: "retry",
		},
		"the connection broke: only retried": {at: newAt(), err: errors.New("connection reset by peer"), want: "retry"},
		// A delay would come before the back-off.
		"an At of a node, after the limit on a node":      {at: newAt(withNodes(&v1alpha1.AtNodesStatus{}), withActiveDeadline(1)), reason: v1alpha1.ReasonAtRefused, err: busy, want: "retry"},
		"a restart, for a moment, after its active limit": {at: newAt(withStatus(begun()), withRestart, withActiveDeadline(1)), reason: v1alpha1.ReasonRestartRefused, err: busy, want: "retry"},
		"a restart, for a moment":                         {at: newAt(withStatus(begun()), withRestart, withStartingDeadline(3599)), reason: v1alpha1.ReasonRestartRefused, err: busy, want: "retry; wait 59m54s"},
		"a restart, by a policy": {
			at: newAt(withStatus(begun()), withRestart, withActiveDeadline(10)), reason: v1alpha1.ReasonRestartRefused, err: restartForbidden,
			want: `Blocked RestartRefused: deployments.apps "web" is forbidden: no; Warning RestartRefused; retry blocked`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			explained(&tc.at.Status)
			w := World{At: tc.at, Live: LiveAt, Failures: tc.failures, Now: now}
			if got := textOf(w, Refused(w, cmp.Or(tc.reason, v1alpha1.ReasonPodRefused), tc.err)); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}
