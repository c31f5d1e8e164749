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
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/rollout"
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
	return func(target *rollout.Target) { target.RestartedAt = &at }
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

func withStartingDeadline(seconds int64) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) { at.Spec.StartingDeadlineSeconds = &seconds }
}

// following is the status of an At that follows a rollout.
func following(desired, updated, available int32, message string) v1alpha1.AtStatus {
	return v1alpha1.AtStatus{
		Phase:              v1alpha1.PhaseRunning,
		ScheduledTime:      &metav1.Time{Time: due},
		StartTime:          &metav1.Time{Time: now},
		Restart:            &v1alpha1.AtRestartStatus{UID: "web", Desired: desired, Updated: updated, Available: available},
		Message:            message,
		ObservedGeneration: 2,
	}
}

var restartForbidden = apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, "web", errors.New("no"))

const restartForbiddenText = `deployments.apps "web" is forbidden: no: an administrator of the cluster permits restarts with kubectl apply -f artifacts/restarts`

func TestDecideRestart(t *testing.T) {
	pending := v1alpha1.AtStatus{Phase: v1alpha1.PhasePending, ObservedGeneration: 2}
	blocked := func(reason, message string) v1alpha1.AtStatus {
		status := *pending.DeepCopy()
		status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, now, reason, message)}
		status.Reason, status.Message = reason, message
		return status
	}
	const waits = "Deployment web is being rolled out already: the restart waits until all of its Pods are updated."
	follows := following(5, 3, 4, "3 of 5 updated, 4 available")
	withoutMessage := func(status *v1alpha1.AtStatus) { status.Message = "" }
	counts := func(desired, updated, available int32) func(*v1alpha1.AtStatus) {
		return func(status *v1alpha1.AtStatus) {
			status.Restart = &v1alpha1.AtRestartStatus{UID: "web", Desired: desired, Updated: updated, Available: available}
		}
	}

	for name, tc := range map[string]struct {
		status    v1alpha1.AtStatus
		mutate    func(*v1alpha1.At)
		target    *rollout.Target
		forbidden error
		cached    func(*World)
		now       time.Time // the default is now
		want      Decision
	}{
		"due, by a cache: the At is read": {
			status: pending, cached: func(w *World) { w.AtIsLive, w.PodIsLive, w.TargetIsLive = false, false, false },
			want: Decision{Action: LookForAt{}},
		},
		"due, and it may have had a command: its Pod is looked for": {
			status: pending, cached: func(w *World) { w.PodIsLive, w.TargetIsLive = false, false },
			want: Decision{Action: LookForPod{}},
		},
		"due, and nothing known about the workload": {
			status: pending, cached: func(w *World) { w.TargetIsLive = false },
			want: Decision{Action: LookForTarget{}},
		},
		"due": {
			status: pending, target: newTarget(),
			want: Decision{Action: RestartTarget{Instant: due, Due: due}},
		},
		"restarted before its time: that was another restart": {
			status: pending, target: newTarget(restartedAt(due.Add(-time.Second))),
			want: Decision{Action: RestartTarget{Instant: due, Due: due}},
		},
		"restarted, and not recorded yet": {
			status: pending, target: rollingTarget(),
			want: Decision{Status: &follows, Events: []Event{{Type: corev1.EventTypeNormal, Reason: v1alpha1.ReasonRestarted, Message: "Restarted Deployment web"}}},
		},
		"restarted by somebody else after its time": {
			status: pending, target: newTarget(restartedAt(due.Add(time.Second)), rolling),
			want: Decision{Status: &follows, Events: []Event{{
				Type: corev1.EventTypeNormal, Reason: v1alpha1.ReasonRestarted,
				Message: "Deployment web was restarted at 2026-12-24T10:12:01Z, after its time: that is followed.",
			}}},
		},
		"restarted, and found after the deadline for the start": {
			status: pending, target: rollingTarget(), mutate: withStartingDeadline(3),
			want: Decision{Status: &follows, Events: []Event{{Type: corev1.EventTypeNormal, Reason: v1alpha1.ReasonRestarted, Message: "Restarted Deployment web"}}},
		},
		"not restarted, and found after the deadline for the start": {
			status: pending, target: newTarget(), mutate: withStartingDeadline(3),
			want: failed(pending, v1alpha1.ReasonStartingDeadlineExceeded, tooLateMessage),
		},
		"no permission": {
			status: pending, forbidden: restartForbidden,
			want: Decision{
				Status: ptr.To(blocked(v1alpha1.ReasonRestartForbidden, restartForbiddenText)),
				Events: []Event{warning(v1alpha1.ReasonRestartForbidden, restartForbiddenText)},
				Retry:  ErrBlocked,
			},
		},
		"no permission until the deadline for the start": {
			status: pending, forbidden: restartForbidden, mutate: withStartingDeadline(3),
			want: failed(pending, v1alpha1.ReasonStartingDeadlineExceeded, tooLateMessage),
		},
		"no workload": {
			status: pending,
			want:   failed(pending, v1alpha1.ReasonTargetNotFound, "Deployment web does not exist."),
		},
		"paused": {
			status: pending, target: newTarget(func(target *rollout.Target) { target.Paused = true }),
			want: failed(pending, v1alpha1.ReasonTargetPaused, "Deployment web is paused, and would not roll out a restart: see kubectl rollout resume."),
		},
		"OnDelete": {
			status: pending, target: newTarget(func(target *rollout.Target) { target.OnDelete = true }),
			want: failed(pending, v1alpha1.ReasonTargetOnDelete, "Deployment web has the update strategy OnDelete: a restart would replace no Pod. Set spec.updateStrategy.type to RollingUpdate."),
		},
		"another rollout is under way": {
			status: pending, target: newTarget(rolling),
			want: Decision{
				Status: ptr.To(blocked(v1alpha1.ReasonRolloutInProgress, waits)),
				Events: []Event{warning(v1alpha1.ReasonRolloutInProgress, waits)},
				Delay:  time.Second,
			},
		},
		"another rollout is still under way": {
			status: blocked(v1alpha1.ReasonRolloutInProgress, waits), target: newTarget(rolling), now: due.Add(time.Minute),
			want: Decision{Delay: 6 * time.Second},
		},
		"another rollout is still under way, and the deadline near": {
			status: blocked(v1alpha1.ReasonRolloutInProgress, waits), target: newTarget(rolling), mutate: withStartingDeadline(60), now: due.Add(time.Minute),
			want: Decision{Delay: time.Second},
		},
		"another rollout has ended just now": {
			status: blocked(v1alpha1.ReasonRolloutInProgress, waits), target: newTarget(),
			want: Decision{Action: RestartTarget{Instant: due, Due: now}},
		},
		"another rollout was under way until the deadline": {
			status: blocked(v1alpha1.ReasonRolloutInProgress, waits), target: newTarget(rolling), mutate: withStartingDeadline(3),
			want: failed(pending, v1alpha1.ReasonStartingDeadlineExceeded, tooLateMessage+" It was blocked: "+waits),
		},
		"another rollout has failed: a restart may help": {
			status: pending, target: newTarget(func(target *rollout.Target) { target.Complete, target.Failed = false, true }),
			want: Decision{Action: RestartTarget{Instant: due, Due: due}},
		},
		"no Pods": {
			status: pending, target: newTarget(func(target *rollout.Target) { target.Desired, target.Updated, target.Available = 0, 0, 0 }),
			want: ends(pending, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, "Deployment web has no Pods that a restart would replace: there was nothing to do.", withoutMessage),
		},

		"RUNNING, and nothing known about the workload": {
			status: follows, cached: func(w *World) { w.AtIsLive, w.PodIsLive, w.TargetIsLive = false, false, false },
			want: Decision{Action: LookForTarget{}},
		},
		"RUNNING, no news": {
			status: follows, target: rollingTarget(),
			want: Decision{Delay: time.Second},
		},
		"RUNNING for a while": {
			status: follows, target: rollingTarget(), now: now.Add(time.Minute),
			want: Decision{Delay: 6 * time.Second},
		},
		"RUNNING for long": {
			status: follows, target: rollingTarget(), now: now.Add(time.Hour),
			want: Decision{Delay: 15 * time.Second},
		},
		"RUNNING, one more is updated": {
			status: follows, target: newTarget(restartedAt(due), rolling, func(target *rollout.Target) { target.Updated = 4 }),
			want: Decision{Status: ptr.To(following(5, 4, 4, "4 of 5 updated, 4 available")), Delay: time.Second},
		},
		"RUNNING, complete": {
			status: follows, target: newTarget(restartedAt(due)),
			want: ends(follows, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, "Deployment web is restarted: 5 of 5 updated, 5 available.", withoutMessage, counts(5, 5, 5)),
		},
		"RUNNING, complete after the deadline": {
			status: follows, target: newTarget(restartedAt(due)), mutate: withActiveDeadline(0),
			want: ends(follows, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted, "Deployment web is restarted: 5 of 5 updated, 5 available.", withoutMessage, counts(5, 5, 5)),
		},
		"RUNNING, restarted once more": {
			status: follows, target: newTarget(restartedAt(due.Add(time.Minute)), rolling),
			want: Decision{Delay: time.Second},
		},
		"RUNNING, complete without the restart": {
			status: follows, target: newTarget(),
			want: failed(follows, v1alpha1.ReasonReverted, "Somebody removed the restart from Deployment web during its rollout, as kubectl rollout undo and GitOps tools do.", counts(5, 5, 5)),
		},
		"RUNNING, stuck": {
			status: follows, target: newTarget(restartedAt(due), rolling, func(target *rollout.Target) { target.Rolling, target.Failed = false, true }),
			want: failed(follows, v1alpha1.ReasonRolloutFailed, "The rollout of Deployment web made no progress within its spec.progressDeadlineSeconds: 3 of 5 updated, 4 available. See kubectl rollout status, and kubectl rollout undo."),
		},
		"RUNNING, deleted": {
			status: follows,
			want:   failed(follows, v1alpha1.ReasonTargetNotFound, "Deployment web was deleted during its rollout."),
		},
		"RUNNING, deleted and created again": {
			status: follows, target: newTarget(restartedAt(due), func(target *rollout.Target) { target.UID = "other" }),
			want: failed(follows, v1alpha1.ReasonTargetNotFound, "Deployment web was deleted during its rollout."),
		},
		"RUNNING, until the deadline": {
			status: follows, target: rollingTarget(), mutate: withActiveDeadline(10), now: now.Add(10 * time.Second),
			want: failed(follows, v1alpha1.ReasonDeadlineExceeded, deadlineMessage+" The rollout of Deployment web goes on: 3 of 5 updated, 4 available.", func(status *v1alpha1.AtStatus) {
				status.CompletionTime = &metav1.Time{Time: now.Add(10 * time.Second)}
				status.Conditions[0].LastTransitionTime = *status.CompletionTime
			}),
		},
		"RUNNING, near the deadline": {
			status: follows, target: rollingTarget(), mutate: withActiveDeadline(10), now: now.Add(9500 * time.Millisecond),
			want: Decision{Delay: 500 * time.Millisecond},
		},
		"RUNNING, permission is lost": {
			status: follows, forbidden: restartForbidden,
			want: Decision{
				Status: func() *v1alpha1.AtStatus {
					status := follows.DeepCopy()
					status.Conditions = blocked(v1alpha1.ReasonRestartForbidden, restartForbiddenText).Conditions
					status.Reason, status.Message = v1alpha1.ReasonRestartForbidden, restartForbiddenText
					return status
				}(),
				Events: []Event{warning(v1alpha1.ReasonRestartForbidden, restartForbiddenText)},
				Retry:  ErrBlocked,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			at := newAt(withStatus(*tc.status.DeepCopy()), withRestart)
			if tc.mutate != nil {
				tc.mutate(at)
			}
			if tc.now.IsZero() {
				tc.now = now
			}
			world := World{At: at, AtIsLive: true, PodIsLive: true, Target: tc.target, TargetForbidden: tc.forbidden, TargetIsLive: true, Now: tc.now}
			if tc.cached != nil {
				tc.cached(&world)
			}
			if diff := cmp.Diff(tc.want, Decide(world), equate); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestTargetNotRead(t *testing.T) {
	notFound := apierrors.NewNotFound(schema.GroupResource{Group: "apps", Resource: "deployments"}, "web")
	busy := apierrors.NewTooManyRequestsError("later")
	for name, tc := range map[string]struct {
		err           error
		wantForbidden bool
		wantLive      bool
		wantErr       bool
	}{
		"there is none": {err: notFound, wantLive: true},
		"forbidden":     {err: restartForbidden, wantForbidden: true, wantLive: true},
		"busy":          {err: busy, wantErr: true},
	} {
		t.Run(name, func(t *testing.T) {
			world := World{Target: newTarget()}
			err := world.TargetNotRead(tc.err)
			if (err != nil) != tc.wantErr || (world.TargetForbidden != nil) != tc.wantForbidden || world.TargetIsLive != tc.wantLive || world.Target != nil {
				t.Errorf("got error %v, %+v", err, world)
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
		"nothing would block it":    {target: newTarget(), want: &Forecast{}},
		"what is under way may end": {target: newTarget(rolling), want: &Forecast{}},
		"no permission":             {err: restartForbidden, want: &Forecast{Reason: v1alpha1.ReasonRestartForbidden, Message: restartForbiddenText}},
		"there is none":             {err: apierrors.NewNotFound(schema.GroupResource{}, "web"), want: &Forecast{Reason: v1alpha1.ReasonTargetNotFound, Message: "Deployment web does not exist."}},
		"busy":                      {err: apierrors.NewTooManyRequestsError("later")},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, ForeseeRestart(newAt(withRestart), tc.target, tc.err)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
