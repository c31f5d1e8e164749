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
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/answer"
	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
)

// newTarget is a Deployment that was never restarted.
func newTarget(mutate ...func(*rollout.Target)) *rollout.Target {
	target := &rollout.Target{
		Kind: v1alpha1.RestartDeployment, Namespace: "default", Name: "web", UID: "web",
		Desired: 5, Updated: 5, Available: 5, Complete: true,
	}
	for _, m := range mutate {
		m(target)
	}
	return target
}

// restartedAt restarts a target.
func restartedAt(at time.Time) func(*rollout.Target) {
	return func(target *rollout.Target) { target.Annotation, target.RestartedAt = at.Format(time.RFC3339), &at }
}

// rolling is a target of whose Pods three are updated.
func rolling(target *rollout.Target) {
	target.Updated, target.Available, target.Rolling, target.Complete = 3, 4, true, false
}

// rollingTarget is the target of a restart that is followed.
func rollingTarget() *rollout.Target { return newTarget(restartedAt(due), rolling) }

func withRestart(at *v1alpha1.At) {
	at.Spec.Command, at.Spec.Restart = "", &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}
}

// begun is the status of an At that is to restart its workload.
func begun() v1alpha1.AtStatus {
	return v1alpha1.AtStatus{
		Phase:              v1alpha1.PhaseRunning,
		ScheduledTime:      &metav1.Time{Time: due},
		StartTime:          &metav1.Time{Time: now},
		Restart:            &v1alpha1.AtRestartStatus{UID: "web", Desired: 5},
		Message:            "Restarting Deployment web.",
		ObservedGeneration: 2,
	}
}

// following is the status of an At that follows the rollout of a restart, with four Pods
// available.
func following(restartedAt time.Time, updated int32) v1alpha1.AtStatus {
	status := begun()
	status.Restart = &v1alpha1.AtRestartStatus{UID: "web", RestartedAt: &metav1.Time{Time: restartedAt}, Desired: 5, Updated: updated, Available: 4}
	status.Message = fmt.Sprintf("%d of 5 updated, 4 available", updated)
	return status
}

// restartBlocked is a status with condition Blocked.
func restartBlocked(status v1alpha1.AtStatus, reason, message string) v1alpha1.AtStatus {
	status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, now, reason, message)}
	status.Reason, status.Message = reason, message
	return status
}

var restartForbidden = apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, "web", errors.New("no"))

const (
	restartForbiddenText = `deployments.apps "web" is forbidden: no: ask a cluster administrator to grant this user the verbs get and patch, as artifacts/restarts/rbac.yaml does`
	rolloutText          = "Deployment web is already being rolled out: the restart waits until all of its Pods are updated."
	pausedText           = "Deployment web is paused and would not roll out a restart: see kubectl rollout resume."
	onDeleteText         = "Deployment web has the update strategy OnDelete: a restart would not replace any Pod. Set spec.updateStrategy.type to RollingUpdate."
)

// restartCase is a world and the expected decision.
type restartCase struct {
	status    v1alpha1.AtStatus
	mutate    func(*v1alpha1.At)
	target    *rollout.Target
	forbidden bool
	now       time.Time // the default is now
	want      Decision
}

func (tc restartCase) test(t *testing.T) {
	at := newAt(withStatus(*tc.status.DeepCopy()), withRestart)
	if tc.mutate != nil {
		tc.mutate(at)
	}
	if tc.now.IsZero() {
		tc.now = now
	}
	world := World{At: at, Live: LiveAll, AsOf: tc.now, Target: tc.target, Now: tc.now}
	if tc.forbidden {
		world.TargetForbidden = restartForbidden
	}
	if diff := cmp.Diff(tc.want, Decide(world), equate); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	// What a cache or another At's read of the workload shows is enough to wait, not to start or to end.
	world.Live = Cached
	_, restarts := tc.want.Action.(RestartTarget)
	begins := tc.want.Status != nil && tc.want.Status.Restart != nil && tc.status.Restart == nil
	ends := tc.want.Status != nil && tc.want.Status.Phase == v1alpha1.PhaseDone
	if restarts || begins || ends {
		tc.want.Needs = LiveAll
	}
	if diff := cmp.Diff(tc.want, Decide(world), equate); diff != "" {
		t.Errorf("on caches (-want +got)\n%s", diff)
	}
}

func paused(target *rollout.Target)   { target.Paused = true }
func onDelete(target *rollout.Target) { target.OnDelete = true }

// stuck is a target whose rollout has failed.
func stuck(target *rollout.Target) {
	rolling(target)
	target.Rolling, target.Failed = false, true
}

func TestRestartDue(t *testing.T) {
	pending := v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, ObservedGeneration: 2}
	waits := restartBlocked(pending, v1alpha1.ReasonRolloutInProgress, rolloutText)
	for name, tc := range map[string]restartCase{
		"RUNNING first": {status: pending, target: newTarget(), want: Decision{Status: ptr.To(begun())}},
		"the first instant of year 1": {
			status: pending, target: newTarget(), mutate: withSchedule("0001-01-01T00:00:00Z"),
			want: Decision{Status: func() *v1alpha1.AtStatus { status := begun(); status.ScheduledTime = nil; return &status }()},
		},
		"after the deadline": {
			status: pending, target: newTarget(), mutate: withStartingDeadline(3),
			want: failed(pending, v1alpha1.ReasonStartingDeadlineExceeded, tooLateMessage),
		},
		"no permission": {
			status: pending, forbidden: true,
			want: Decision{
				Status: ptr.To(restartBlocked(pending, v1alpha1.ReasonRestartForbidden, restartForbiddenText)),
				Events: []Event{warning(v1alpha1.ReasonRestartForbidden, restartForbiddenText)},
				Retry:  answer.ErrBlocked,
			},
		},
		"no permission until the deadline": {
			status: pending, forbidden: true, mutate: withStartingDeadline(3),
			want: failed(pending, v1alpha1.ReasonStartingDeadlineExceeded, tooLateMessage),
		},
		"no workload": {status: pending, want: failed(pending, v1alpha1.ReasonTargetNotFound, "Deployment web does not exist.")},
		"paused":      {status: pending, target: newTarget(paused), want: failed(pending, v1alpha1.ReasonTargetPaused, pausedText)},
		"OnDelete":    {status: pending, target: newTarget(onDelete), want: failed(pending, v1alpha1.ReasonTargetOnDelete, onDeleteText)},
		"another rollout is in progress": {
			status: pending, target: newTarget(rolling),
			want: Decision{Status: &waits, Events: []Event{warning(v1alpha1.ReasonRolloutInProgress, rolloutText)}, Delay: 2 * time.Second},
		},
		"another rollout is still in progress": {
			status: waits, target: newTarget(rolling), now: due.Add(time.Minute),
			want: Decision{Delay: 6 * time.Second},
		},
		"another rollout is still in progress, and the deadline near": {
			status: waits, target: newTarget(rolling), mutate: withStartingDeadline(60), now: due.Add(time.Minute),
			want: Decision{Delay: time.Second},
		},
		"another rollout has ended": {status: waits, target: newTarget(), want: Decision{Status: ptr.To(begun())}},
		"another rollout was in progress until the deadline": {
			status: waits, target: newTarget(rolling), mutate: withStartingDeadline(3),
			want: failed(pending, v1alpha1.ReasonStartingDeadlineExceeded, tooLateMessage+" It was blocked: "+rolloutText),
		},
		"the rollout in progress comes from another restart at the scheduled time": {
			status: pending, target: newTarget(restartedAt(due), rolling),
			want: Decision{Status: ptr.To(begun())},
		},
		"another rollout has failed: a restart may help": {status: pending, target: newTarget(stuck), want: Decision{Status: ptr.To(begun())}},
		"no Pods": {
			status: pending, target: newTarget(func(target *rollout.Target) { target.Desired, target.Updated, target.Available = 0, 0, 0 }),
			want: ends(pending, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, "Deployment web has no Pods to replace: there was nothing to do."),
		},
	} {
		t.Run(name, tc.test)
	}
}

// TestRestartNow covers an At that is RUNNING and may have restarted its workload.
func TestRestartNow(t *testing.T) {
	follows := func(at time.Time) *v1alpha1.AtStatus { return ptr.To(following(at, 3)) }
	restarted := func(message string) []Event {
		return []Event{{Type: corev1.EventTypeNormal, Reason: v1alpha1.ReasonRestarted, Message: message}}
	}
	now := Decision{Action: RestartTarget{Time: due, Due: now}}
	for name, tc := range map[string]restartCase{
		"never restarted":                 {status: begun(), target: newTarget(), want: now},
		"restarted before its time":       {status: begun(), target: newTarget(restartedAt(due.Add(-time.Second))), want: now},
		"restarted in the future":         {status: begun(), target: newTarget(restartedAt(due.Add(time.Hour))), want: now},
		"another rollout has begun since": {status: begun(), target: newTarget(rolling), want: now},
		"created after its time": {
			status: begun(), target: newTarget(restartedAt(due.Add(time.Second))),
			mutate: func(at *v1alpha1.At) { at.CreationTimestamp = metav1.Time{Time: due.Add(2 * time.Second)} },
			want:   Decision{Action: RestartTarget{Time: due.Add(2 * time.Second), Due: now.Action.(RestartTarget).Due}},
		},
		"a time has whole seconds": {
			status: func() v1alpha1.AtStatus {
				status := begun()
				status.ScheduledTime.Time = due.Add(time.Second / 2)
				return status
			}(),
			target: newTarget(), want: now,
		},
		"restarted": {status: begun(), target: rollingTarget(), want: Decision{Status: follows(due), Events: restarted("Restarted Deployment web")}},
		"restarted by another user after the scheduled time": {
			status: begun(), target: newTarget(restartedAt(due.Add(time.Second)), rolling),
			want: Decision{Status: follows(due.Add(time.Second)), Events: restarted("Deployment web was already restarted at 2026-12-24T10:12:01Z, after the scheduled time: it is not restarted again.")},
		},
		"restarted, and found after the deadline for the start": {
			status: begun(), target: rollingTarget(), mutate: withStartingDeadline(3),
			want: Decision{Status: follows(due), Events: restarted("Restarted Deployment web")},
		},
		"not restarted, and found after the deadline for the start": {
			status: begun(), target: newTarget(), mutate: withStartingDeadline(3),
			want: failed(begun(), v1alpha1.ReasonStartingDeadlineExceeded, tooLateMessage),
		},
		"suspended meanwhile": {
			status: begun(), target: newTarget(), mutate: withSuspendedRun,
			want: Decision{Status: func() *v1alpha1.AtStatus {
				status := begun()
				status.Conditions = []metav1.Condition{suspended(earlier)}
				status.Reason, status.Message = status.Conditions[0].Reason, status.Conditions[0].Message
				return &status
			}()},
		},
		"the deadline for the rollout does not count yet": {
			status: begun(), target: newTarget(), mutate: withActiveDeadline(10), now: now.Action.(RestartTarget).Due.Add(time.Hour), want: now,
		},
		"no permission": {
			status: begun(), forbidden: true, mutate: withStartingDeadline(10),
			want: Decision{
				Status: ptr.To(restartBlocked(begun(), v1alpha1.ReasonRestartForbidden, restartForbiddenText)),
				Events: []Event{warning(v1alpha1.ReasonRestartForbidden, restartForbiddenText)},
				Retry:  answer.ErrBlocked, Delay: 5 * time.Second,
			},
		},
		"restarted, after it was refused": {
			status: restartBlocked(begun(), v1alpha1.ReasonRestartRefused, "no"), target: rollingTarget(),
			want: Decision{Status: follows(due), Events: restarted("Restarted Deployment web")},
		},
		"restarted by a clock that is ahead": {
			status: begun(), target: newTarget(restartedAt(due.Add(time.Hour)), rolling),
			mutate: func(at *v1alpha1.At) { at.CreationTimestamp = metav1.Time{Time: due.Add(time.Hour)} },
			want:   Decision{Status: follows(due.Add(time.Hour)), Events: restarted("Restarted Deployment web")},
		},
		"deleted":                    {status: begun(), want: failed(begun(), v1alpha1.ReasonTargetNotFound, "Deployment web was deleted during its restart.")},
		"paused since":               {status: begun(), target: newTarget(paused), want: failed(begun(), v1alpha1.ReasonTargetPaused, pausedText)},
		"restarted and paused":       {status: begun(), target: newTarget(restartedAt(due), rolling, paused), want: Decision{Status: follows(due), Events: restarted("Restarted Deployment web")}},
		"deleted, and created again": {status: begun(), target: newTarget(func(target *rollout.Target) { target.UID = "other" }), want: failed(begun(), v1alpha1.ReasonTargetNotFound, "Deployment web was deleted during its restart.")},
	} {
		t.Run(name, tc.test)
	}
}

// TestFollowRollout covers an At whose workload was restarted.
func TestFollowRollout(t *testing.T) {
	follows := following(due, 3)
	forbidden := restartBlocked(following(due, 3), v1alpha1.ReasonRestartForbidden, restartForbiddenText)
	const pausedNow = "Deployment web was paused during its rollout: see kubectl rollout resume."
	isPaused := restartBlocked(following(due, 3), v1alpha1.ReasonTargetPaused, pausedNow)
	counts := func(updated, available int32) func(*v1alpha1.AtStatus) {
		return func(status *v1alpha1.AtStatus) {
			status.Restart.Updated, status.Restart.Available = updated, available
			if meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionComplete) {
				status.Message = ""
			}
		}
	}
	atEnd := func(end time.Time) func(*v1alpha1.AtStatus) {
		return func(status *v1alpha1.AtStatus) {
			status.CompletionTime = &metav1.Time{Time: end}
			status.Conditions[0].LastTransitionTime = *status.CompletionTime
		}
	}
	const reverted = "The restart of Deployment web at 2026-12-24T10:12:00Z was reverted, for example by kubectl rollout undo or a GitOps tool: its annotation kubectl.kubernetes.io/restartedAt is now %q."
	lastWeek := due.AddDate(0, 0, -7)
	for name, tc := range map[string]restartCase{
		"no news":     {status: follows, target: rollingTarget(), want: Decision{Delay: 2 * time.Second}},
		"for a while": {status: follows, target: rollingTarget(), now: now.Add(time.Minute), want: Decision{Delay: 6 * time.Second}},
		"for long":    {status: follows, target: rollingTarget(), now: now.Add(time.Hour), want: Decision{Delay: 15 * time.Second}},
		"the schedule no longer matters": {
			status: follows, target: rollingTarget(), mutate: func(at *v1alpha1.At) { withSchedule("2099-01-01T00:00:00Z")(at); withStartingDeadline(0)(at) },
			want: Decision{Delay: 2 * time.Second},
		},
		"one more is updated": {
			status: follows, target: newTarget(restartedAt(due), rolling, func(target *rollout.Target) { target.Updated = 4 }),
			want: Decision{Status: ptr.To(following(due, 4)), Delay: 2 * time.Second},
		},
		"complete": {
			status: follows, target: newTarget(restartedAt(due)),
			want: ends(follows, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, "Deployment web has been restarted: 5 of 5 updated, 5 available.", counts(5, 5)),
		},
		"complete after the deadline": {
			status: follows, target: newTarget(restartedAt(due)), mutate: withActiveDeadline(0),
			want: ends(follows, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, "Deployment web has been restarted: 5 of 5 updated, 5 available.", counts(5, 5)),
		},
		"restarted once more": {status: follows, target: newTarget(restartedAt(due.Add(time.Minute)), rolling), want: Decision{Delay: 2 * time.Second}},
		"complete without the restart": {
			status: follows, target: newTarget(),
			want: failed(follows, v1alpha1.ReasonReverted, fmt.Sprintf(reverted, ""), counts(5, 5)),
		},
		"complete with the restart of last week": {
			status: follows, target: newTarget(restartedAt(lastWeek)),
			want: failed(follows, v1alpha1.ReasonReverted, fmt.Sprintf(reverted, lastWeek.Format(time.RFC3339)), counts(5, 5)),
		},
		"stuck": {
			status: follows, target: newTarget(restartedAt(due), stuck),
			want: failed(follows, v1alpha1.ReasonRolloutFailed, "The rollout of Deployment web made no progress within its spec.progressDeadlineSeconds: 3 of 5 updated, 4 available. See kubectl rollout status and kubectl rollout undo."),
		},
		"OnDelete": {
			status: follows, target: newTarget(restartedAt(due), rolling, onDelete),
			want: failed(follows, v1alpha1.ReasonTargetOnDelete, onDeleteText),
		},
		"paused": {
			status: follows, target: newTarget(restartedAt(due), rolling, paused),
			want: Decision{Status: &isPaused, Events: []Event{warning(v1alpha1.ReasonTargetPaused, pausedNow)}, Delay: 2 * time.Second},
		},
		"resumed": {status: isPaused, target: rollingTarget(), want: Decision{Status: &follows, Delay: 2 * time.Second}},
		"deleted": {status: follows, want: failed(follows, v1alpha1.ReasonTargetNotFound, "Deployment web was deleted during its restart.")},
		"deleted, and created again": {
			status: follows, target: newTarget(restartedAt(due), func(target *rollout.Target) { target.UID = "other" }),
			want: failed(follows, v1alpha1.ReasonTargetNotFound, "Deployment web was deleted during its restart."),
		},
		"until the deadline": {
			status: follows, target: rollingTarget(), mutate: withActiveDeadline(10), now: now.Add(10 * time.Second),
			want: failed(follows, v1alpha1.ReasonDeadlineExceeded, deadlineMessage+" The rollout of Deployment web continues: 3 of 5 updated, 4 available.", atEnd(now.Add(10*time.Second))),
		},
		"near the deadline": {
			status: follows, target: rollingTarget(), mutate: withActiveDeadline(10), now: now.Add(9500 * time.Millisecond),
			want: Decision{Delay: 500 * time.Millisecond},
		},
		"permission is lost": {
			status: follows, forbidden: true, mutate: withStartingDeadline(3),
			want: Decision{Status: &forbidden, Events: []Event{warning(v1alpha1.ReasonRestartForbidden, restartForbiddenText)}, Retry: answer.ErrBlocked},
		},
		"permission is lost, with a deadline": {
			status: forbidden, forbidden: true, mutate: withActiveDeadline(10),
			want: Decision{Retry: answer.ErrBlocked, Delay: 8 * time.Second},
		},
		"permission is lost until the deadline": {
			status: forbidden, forbidden: true, mutate: withActiveDeadline(10), now: now.Add(10 * time.Second),
			want: failed(following(due, 3), v1alpha1.ReasonDeadlineExceeded, deadlineMessage+" It was blocked: "+restartForbiddenText, atEnd(now.Add(10*time.Second))),
		},
		"permission is back": {status: forbidden, target: rollingTarget(), want: Decision{Status: &follows, Delay: 2 * time.Second}},
	} {
		t.Run(name, tc.test)
	}
}

// TestRefusedRestart refuses a restart. It is retried with back-off, and not at once, even
// after the time that the rollout may take.
func TestRefusedRestart(t *testing.T) {
	refusal := restartForbidden.Error()
	busy := apierrors.NewTooManyRequestsError("later")
	for name, tc := range map[string]struct {
		err    error
		mutate func(*v1alpha1.At)
		want   Decision
	}{
		"by a policy": {
			err: restartForbidden, mutate: withActiveDeadline(10),
			want: Decision{
				Status: ptr.To(restartBlocked(begun(), v1alpha1.ReasonRestartRefused, refusal)),
				Events: []Event{warning(v1alpha1.ReasonRestartRefused, refusal)},
				Retry:  answer.ErrBlocked,
			},
		},
		"for a moment":                  {err: busy, mutate: withActiveDeadline(1), want: Decision{Retry: errAny}},
		"with a deadline for the start": {err: busy, mutate: withStartingDeadline(3599), want: Decision{Retry: errAny, Delay: time.Hour - 6*time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			at := newAt(withStatus(begun()), withRestart, tc.mutate)
			world := World{At: at, Live: LiveAll, AsOf: now, Target: newTarget(), Now: now}
			if diff := cmp.Diff(tc.want, RefusedRestart(world, tc.err), equate); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestStateOfRestart checks that a restart that has not happened in time is overdue.
func TestStateOfRestart(t *testing.T) {
	for name, tc := range map[string]struct {
		status  v1alpha1.AtStatus
		overdue time.Duration
	}{
		"not restarted": {begun(), time.Minute},
		"refused":       {restartBlocked(begun(), v1alpha1.ReasonRestartRefused, "no"), 0},
		"restarted":     {following(due, 3), 0},
	} {
		t.Run(name, func(t *testing.T) {
			state, overdue := StateOf(newAt(withStatus(tc.status), withRestart), nil, now.Add(time.Minute))
			if state != StateRunning || overdue != tc.overdue {
				t.Errorf("got %s for %v, want %s for %v", state, overdue, StateRunning, tc.overdue)
			}
		})
	}
}

func TestForeseeRestart(t *testing.T) {
	for name, tc := range map[string]struct {
		target *rollout.Target
		err    error
		want   *Forecast
	}{
		"nothing would block it":        {target: newTarget(), want: &Forecast{}},
		"a rollout in progress may end": {target: newTarget(rolling), want: &Forecast{}},
		"no permission":                 {err: restartForbidden, want: &Forecast{Reason: v1alpha1.ReasonRestartForbidden, Message: restartForbiddenText}},
		"there is none":                 {err: apierrors.NewNotFound(schema.GroupResource{}, "web"), want: &Forecast{Reason: v1alpha1.ReasonTargetNotFound, Message: "Deployment web does not exist."}},
		"busy":                          {err: apierrors.NewTooManyRequestsError("later")},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, ForeseeRestart(newAt(withRestart), tc.target, tc.err)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
