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
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
)

// TestDecidePending covers Ats that have no Pod yet.
func TestDecidePending(t *testing.T) {
	invalid := blocked(earlier, v1alpha1.ReasonInvalidSchedule, invalidMessage)
	testDecide(t, map[string]decideCase{
		"far from due":                     {at: newAt(), now: earlier, want: Decision{Delay: time.Hour - Lead(newAt().UID)}},
		"a fraction of a second from due":  {at: newAt(), now: due.Add(-1500 * time.Millisecond), want: Decision{Delay: 1500 * time.Millisecond}},
		"a nanosecond before due: not yet": {at: newAt(), now: due.Add(-1), want: Decision{Delay: 1}},
		"exactly due":                      {at: newAt(), now: due, want: creates(due)},
		"fractions of a second count":      {at: newAt(withSchedule("2026-12-24T10:12:00.25Z")), now: due, want: Decision{Delay: 250 * time.Millisecond}},
		"an offset counts":                 {at: newAt(withSchedule("2026-12-24T11:12:30+01:00")), now: due, want: Decision{Delay: 30 * time.Second}},
		"long overdue":                     {at: newAt(withSchedule("0001-01-01T00:00:00Z")), want: creates(time.Time{})},
		"as far as the calendar goes":      {at: newAt(withSchedule("9999-12-31T23:59:59Z")), want: Decision{Delay: math.MaxInt64 - Lead(newAt().UID)}},
		"invalid schedule: reported":       {at: newAt(withSchedule("tomorrow")), want: blocks(now, v1alpha1.ReasonInvalidSchedule, invalidMessage)},
		"invalid schedule: reported once":  {at: newAt(withSchedule("tomorrow"), withStatus(pendingWith(invalid))), want: Decision{}},
		"schedule corrected": {
			at: newAt(withStatus(pendingWith(invalid)), func(at *v1alpha1.At) {
				at.Status.ObservedGeneration, at.Status.Conditions[0].ObservedGeneration = 1, 1
			}),
			now:  earlier,
			want: Decision{Status: ptr.To(pendingWith())},
		},
		"edited when it was due: due since then": {
			at: newAt(func(at *v1alpha1.At) {
				at.ManagedFields = []metav1.ManagedFieldsEntry{
					{Time: &metav1.Time{Time: created}}, {Time: &metav1.Time{Time: earlier}}, {}, {Subresource: "status", Time: &metav1.Time{Time: now}},
				}
			}),
			want: creates(created),
		},
		"created when it was due: due since then": {
			at:   newAt(func(at *v1alpha1.At) { at.CreationTimestamp = metav1.Time{Time: created} }),
			want: creates(created),
		},
		"blocked until now: due since now": {at: newAt(withStatus(pendingWith(conflict))), want: creates(now)},
		"blocked, then moved to later: no longer blocked": {
			at: newAt(withStatus(pendingWith(conflict))), now: earlier,
			want: Decision{Status: ptr.To(pendingWith())},
		},
	})
}

// TestDecideNameTaken covers Ats that are due while another Pod has the name of theirs.
func TestDecideNameTaken(t *testing.T) {
	stranger := metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "example-at", UID: "job-uid", Controller: ptr.To(true)}
	earlierAt := metav1.OwnerReference{APIVersion: "cnat.programming-kubernetes.info/v1alpha1", Kind: "At", Name: "example-at", UID: "earlier-uid", Controller: ptr.To(true)}
	notController := metav1.OwnerReference{APIVersion: "cnat.programming-kubernetes.info/v1alpha1", Kind: "At", Name: "example-at", UID: uid}
	forged := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "example-at", UID: uid, Controller: ptr.To(true)}
	testDecide(t, map[string]decideCase{
		"the name belongs to an unrelated Pod, not due: ignored for now": {
			at: newAt(), pod: newPod(corev1.PodRunning, ownedBy()), now: earlier,
			want: Decision{Delay: time.Hour - Lead(newAt().UID)},
		},
		"the name belongs to a Pod without an owner": {
			at: newAt(), pod: newPod(corev1.PodSucceeded, ownedBy()),
			want: retried(blocks(now, v1alpha1.ReasonPodNameConflict, conflictMessage)),
		},
		"the name belongs to a Pod of another kind, already reported": {
			at:   newAt(withStatus(pendingWith(conflict))),
			pod:  newPod(corev1.PodSucceeded, ownedBy(stranger)),
			want: Decision{Retry: answer.ErrBlocked},
		},
		"an owner that is not the controller does not count": {
			at:   newAt(withStatus(pendingWith(conflict))),
			pod:  newPod(corev1.PodSucceeded, ownedBy(notController)),
			want: Decision{Retry: answer.ErrBlocked},
		},
		"an owner of another kind with the same UID does not count": {
			at:   newAt(withStatus(pendingWith(conflict))),
			pod:  newPod(corev1.PodSucceeded, ownedBy(forged)),
			want: Decision{Retry: answer.ErrBlocked},
		},
		"a Pod of an earlier At with this name: waited for, not reported": {
			at: newAt(), pod: newPod(corev1.PodSucceeded, ownedBy(earlierAt)), now: due.Add(time.Minute - 1),
			want: Decision{Retry: answer.ErrBlocked},
		},
		"a Pod of an earlier At with this name, due long before creation: waited for, not reported": {
			at:  newAt(func(at *v1alpha1.At) { at.CreationTimestamp.Time = due.Add(time.Hour) }),
			pod: newPod(corev1.PodSucceeded, ownedBy(earlierAt)), now: due.Add(time.Hour + time.Minute - 1),
			want: Decision{Retry: answer.ErrBlocked},
		},
		"a Pod of an earlier At with this name, not being deleted: reported": {
			at: newAt(), pod: newPod(corev1.PodSucceeded, ownedBy(earlierAt)), now: due.Add(time.Minute),
			want: retried(blocks(due.Add(time.Minute), v1alpha1.ReasonPodNameConflict, overdueMessage)),
		},
		"a Pod of an earlier At with this name, being deleted for a long time: reported": {
			at: newAt(), now: due.Add(time.Minute),
			pod:  newPod(corev1.PodRunning, ownedBy(earlierAt), deleted),
			want: retried(blocks(due.Add(time.Minute), v1alpha1.ReasonPodNameConflict, overdueMessage)),
		},
	})
}

// TestDecideStartingDeadline covers Ats that may only start for a while.
func TestDecideStartingDeadline(t *testing.T) {
	testDecide(t, map[string]decideCase{
		"late, within the starting deadline": {at: newAt(withStartingDeadline(4)), now: now.Add(time.Second - 1), want: creates(due)},
		"late, beyond the starting deadline": {
			at:   newAt(withStartingDeadline(3)),
			want: failed(v1alpha1.AtStatus{}, v1alpha1.ReasonStartingDeadlineExceeded, tooLateMessage), needs: LiveAll,
		},
		"late, beyond the starting deadline, because it was refused": {
			at: newAt(withStartingDeadline(3), withStatus(v1alpha1.AtStatus{
				Conditions: []metav1.Condition{blocked(earlier, v1alpha1.ReasonPodRefused, "exceeded quota")},
			})),
			want: failed(v1alpha1.AtStatus{}, v1alpha1.ReasonStartingDeadlineExceeded, tooLateMessage+" It was blocked: exceeded quota"), needs: LiveAll,
		},
		"the shortest starting deadline allows less than a second": {
			at: newAt(withStartingDeadline(0)), now: due.Add(time.Second - 1),
			want: creates(due),
		},
		"the longest starting deadline": {
			at:   newAt(withSchedule("0001-01-01T00:00:00Z"), withStartingDeadline(math.MaxInt64)),
			want: creates(time.Time{}),
		},
	})
}

// TestRefused covers the errors of the API server that refuse a Pod.
func TestRefused(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	quota := apierrors.NewForbidden(pods, "example-at-pod", errors.New("exceeded quota: pods, requested: pods=1, used: pods=3, limited: pods=3"))
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
	internal := apierrors.NewInternalError(errors.New(`failed calling webhook "policy.example.com": connection refused`))
	tooLarge := apierrors.NewRequestEntityTooLargeError("limit is 3145728")
	long := apierrors.NewBadRequest(strings.Repeat("🌍", 2000))
	busy := apierrors.NewTooManyRequests("busy", 1)
	badRequest := apierrors.NewBadRequest("admission webhook says no")
	noReason := &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 400, Message: `admission webhook "policy.example.com" denied the request: no`}}

	refused := func(transition time.Time, message string) *v1alpha1.AtStatus {
		return ptr.To(pendingWith(blocked(transition, v1alpha1.ReasonPodRefused, message)))
	}
	refuses := func(message string) Decision { return retried(blocks(now, v1alpha1.ReasonPodRefused, message)) }

	for name, tc := range map[string]struct {
		at       *v1alpha1.At
		err      error
		failures int
		want     Decision
	}{
		"quota: reported and retried": {at: newAt(), err: quota, want: refuses(quota.Error())},
		"quota again: retried, not reported again": {
			at: newAt(withStatus(*refused(earlier, quota.Error()))), err: quota,
			want: Decision{Retry: answer.ErrBlocked},
		},
		"refused in other words: the condition changes, no further event": {
			at: newAt(withStatus(*refused(earlier, "used: pods=4"))), err: quota,
			want: Decision{Status: refused(earlier, quota.Error()), Retry: answer.ErrBlocked},
		},
		"a webhook's bad request":                               {at: newAt(), err: badRequest, want: refuses(badRequest.Error())},
		"a webhook's denial without a reason":                   {at: newAt(), err: noReason, want: refuses(noReason.Error())},
		"a policy's denial":                                     {at: newAt(), err: policy, want: refuses(policy.Error())},
		"a webhook's denial, with causes like the API server's": {at: newAt(), err: webhook, want: refuses(webhook.Error())},
		"a webhook is down":                                     {at: newAt(), err: internal, want: refuses(internal.Error())},
		"with a starting deadline: decided again then, regardless of the back-off": {
			at:   newAt(withStatus(*refused(earlier, quota.Error())), withStartingDeadline(30)),
			err:  quota,
			want: Decision{Retry: answer.ErrBlocked, Delay: 25 * time.Second},
		},
		"with an active deadline, for a further attempt: likewise": {
			at:   newAt(withStatus(*changed(*nextAttempt(1, now), func(status *v1alpha1.AtStatus) { status.Conditions = refused(earlier, quota.Error()).Conditions })), withBackoffLimit(5), withActiveDeadline(30)),
			err:  quota,
			want: Decision{Retry: answer.ErrBlocked, Delay: 24*time.Second + 10*time.Millisecond},
		},
		"too large a Pod": {at: newAt(), err: tooLarge, want: refuses(tooLarge.Error())},
		"a refusal longer than a condition's message can be": {at: newAt(), err: long, want: refuses(strings.Repeat("🌍", 1024) + "…")},
		"invalid, after it was refused: the refusal no longer matters": {
			at: newAt(withStatus(*refused(earlier, quota.Error()))), err: invalid,
			want: failed(v1alpha1.AtStatus{}, v1alpha1.ReasonInvalidPod, invalid.Error()),
		},
		"the namespace is being deleted: nothing to do": {at: newAt(), err: terminating, want: Decision{}},
		"invalid: the end": {at: newAt(), err: invalid, want: failed(v1alpha1.AtStatus{}, v1alpha1.ReasonInvalidPod, invalid.Error())},
		"invalid, for a further attempt: the end, with no further failure counted": {
			at: newAt(withStatus(*nextAttempt(1, now)), withBackoffLimit(5)), err: invalid,
			want: failed(*nextAttempt(1, now), v1alpha1.ReasonInvalidPod, invalid.Error(), func(status *v1alpha1.AtStatus) { status.NextAttemptTime = nil }),
		},
		"quota, for a further attempt: reported and retried": {
			at: newAt(withStatus(*nextAttempt(1, now)), withBackoffLimit(5)), err: quota,
			want: Decision{
				Status: changed(*nextAttempt(1, now), func(status *v1alpha1.AtStatus) { status.Conditions = refused(now, quota.Error()).Conditions }),
				Events: []Event{warning(v1alpha1.ReasonPodRefused, quota.Error())}, Retry: answer.ErrBlocked,
			},
		},
		"overloaded for a minute: reported and retried as before": {
			at: newAt(), err: busy, failures: lastingFailures,
			want: Decision{
				Status: ptr.To(pendingWith(blocked(now, v1alpha1.ReasonPodNotCreated, busy.Error()))),
				Events: []Event{warning(v1alpha1.ReasonPodNotCreated, busy.Error())}, Retry: errAny,
			},
		},
		"the quota's count changed in the meantime: only retried": {
			at: newAt(), err: apierrors.NewConflict(schema.GroupResource{Resource: "resourcequotas"}, "quota", errors.New("modified")), want: Decision{Retry: errAny},
		},
		"etcd is unavailable: only retried": {
			at: newAt(), err: &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 500, Message: "etcdserver: leader changed"}}, want: Decision{Retry: errAny},
		},
		"overloaded: only retried":           {at: newAt(), err: apierrors.NewTooManyRequests("busy", 1), want: Decision{Retry: errAny}},
		"the connection broke: only retried": {at: newAt(), err: errors.New("connection reset by peer"), want: Decision{Retry: errAny}},
	} {
		t.Run(name, func(t *testing.T) {
			explained(&tc.at.Status)
			explained(tc.want.Status)
			if diff := cmp.Diff(tc.want, Refused(World{At: tc.at, Live: LiveAt, Failures: tc.failures, Now: now}, tc.err), equate); diff != "" {
				t.Errorf("Refused (-want +got):\n%s", diff)
			}
		})
	}
}
