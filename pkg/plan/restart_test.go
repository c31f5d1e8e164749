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
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

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
	return edited(target, mutate...)
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

// following is the status of an At that follows the rollout of a restart.
func following() v1alpha1.AtStatus {
	status := begun()
	status.Restart = &v1alpha1.AtRestartStatus{UID: "web", RestartedAt: &metav1.Time{Time: due}, Desired: 5, Updated: 3, Available: 4}
	status.Message = "3 of 5 updated, 4 available"
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
)

// restarts is an At with the given status that restarts a workload.
func restarts(status v1alpha1.AtStatus, mutate ...func(*v1alpha1.At)) *v1alpha1.At {
	return edited(newAt(withStatus(*status.DeepCopy()), withRestart), mutate...)
}

// target is a workload in a world.
func target(mutate ...func(*rollout.Target)) func(*World) {
	return func(w *World) { w.Target = newTarget(mutate...) }
}

func forbidden(w *World) { w.TargetForbidden = restartForbidden }

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
	testDecide(t, map[string]decideCase{
		"no permission until the deadline": {
			at: restarts(pending, withStartingDeadline(3)), world: forbidden,
			want: "Phase=DONE; CompletionTime=10:12:04; Failed StartingDeadlineExceeded: It did not run: it could not start within spec.startingDeadlineSeconds (3) of the scheduled time.; Warning StartingDeadlineExceeded; read all",
		},
		"RUNNING first": {
			at: restarts(pending), world: target(),
			want: "Phase=RUNNING; ScheduledTime=10:12:00; StartTime=10:12:04; Restart.UID=web; Restart.Desired=5; says Restarting Deployment web.; read all",
		},
		"the first instant of year 1": {
			at: restarts(pending, withSchedule("0001-01-01T00:00:00Z")), world: target(),
			want: "Phase=RUNNING; StartTime=10:12:04; Restart.UID=web; Restart.Desired=5; says Restarting Deployment web.; read all",
		},
		"no permission": {
			at: restarts(pending), world: forbidden,
			want: `Blocked RestartForbidden: deployments.apps "web" is forbidden: no: ask a cluster administrator to grant this user the verbs get and patch, as artifacts/restarts/rbac.yaml does; Warning RestartForbidden; retry blocked`,
		},
		"no workload": {
			at:   restarts(pending),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed TargetNotFound: Deployment web does not exist.; Warning TargetNotFound; read all",
		},
		"paused": {
			at: restarts(pending), world: target(paused),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed TargetPaused: Deployment web is paused and would not roll out a restart: see kubectl rollout resume.; Warning TargetPaused; read all",
		},
		"another rollout is in progress": {
			at: restarts(pending), world: target(rolling),
			want: "Blocked RolloutInProgress: Deployment web is already being rolled out: the restart waits until all of its Pods are updated.; Warning RolloutInProgress; wait 2s",
		},
		"another rollout is still in progress": {at: restarts(waits), world: target(rolling), now: due.Add(time.Minute), want: "wait 6s"},
		"another rollout has ended": {
			at: restarts(waits), world: target(),
			want: "Phase=RUNNING; ScheduledTime=10:12:00; StartTime=10:12:04; Restart.UID=web; Restart.Desired=5; no Blocked; says Restarting Deployment web.; read all",
		},
		"another rollout was in progress until the deadline": {
			at: restarts(waits, withStartingDeadline(3)), world: target(rolling),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed StartingDeadlineExceeded: It did not run: it could not start within spec.startingDeadlineSeconds (3) of the scheduled time. It was blocked: Deployment web is already being rolled out: the restart waits until all of its Pods are updated.; no Blocked; Warning StartingDeadlineExceeded; read all",
		},
		"the rollout in progress comes from another restart at the scheduled time": {
			at: restarts(pending), world: target(restartedAt(due), rolling),
			want: "Phase=RUNNING; ScheduledTime=10:12:00; StartTime=10:12:04; Restart.UID=web; Restart.Desired=5; says Restarting Deployment web.; read all",
		},
		"another rollout has failed: a restart may help": {
			at: restarts(pending), world: target(stuck),
			want: "Phase=RUNNING; ScheduledTime=10:12:00; StartTime=10:12:04; Restart.UID=web; Restart.Desired=5; says Restarting Deployment web.; read all",
		},
		"no Pods": {
			at: restarts(pending), world: target(func(target *rollout.Target) { target.Desired, target.Updated, target.Available = 0, 0, 0 }),
			want: "Phase=DONE; CompletionTime=10:12:04; Complete Completed: Deployment web has no Pods to replace: there was nothing to do.; Normal Completed; read all",
		},
	})
}

// TestRestartNow covers an At that is RUNNING and may have restarted its workload.
func TestRestartNow(t *testing.T) {
	now := Decision{Action: RestartTarget{Time: due, Due: now}}
	testDecide(t, map[string]decideCase{
		"restarted and paused": {
			at: restarts(begun()), world: target(restartedAt(due), rolling, paused),
			want: "Restart.RestartedAt=10:12:00; Restart.Updated=3; Restart.Available=4; says 3 of 5 updated, 4 available; Normal Restarted: Restarted Deployment web",
		},
		"never restarted":           {at: restarts(begun()), world: target(), want: "RestartTarget as of 10:12:00 due 10:12:04; read all"},
		"restarted before its time": {at: restarts(begun()), world: target(restartedAt(due.Add(-time.Second))), want: "RestartTarget as of 10:12:00 due 10:12:04; read all"},
		"restarted in the future":   {at: restarts(begun()), world: target(restartedAt(due.Add(time.Hour))), want: "RestartTarget as of 10:12:00 due 10:12:04; read all"},
		"created after its time": {
			at: restarts(begun(), func(at *v1alpha1.At) { at.CreationTimestamp = metav1.Time{Time: due.Add(2 * time.Second)} }), world: target(restartedAt(due.Add(time.Second))),
			want: "RestartTarget as of 10:12:02 due 10:12:04; read all",
		},
		"a time has whole seconds": {
			at: restarts(func() v1alpha1.AtStatus {
				status := begun()
				status.ScheduledTime.Time = due.Add(time.Second / 2)
				return status
			}()), world: target(),
			want: "RestartTarget as of 10:12:00 due 10:12:04; read all",
		},
		"restarted by another user after the scheduled time": {
			at: restarts(begun()), world: target(restartedAt(due.Add(time.Second)), rolling),
			want: "Restart.RestartedAt=10:12:01; Restart.Updated=3; Restart.Available=4; says 3 of 5 updated, 4 available; Normal Restarted: Deployment web was already restarted at 2026-12-24T10:12:01Z, after the scheduled time: it is not restarted again.",
		},
		"restarted, and found after the deadline for the start": {
			at: restarts(begun(), withStartingDeadline(3)), world: target(restartedAt(due), rolling),
			want: "Restart.RestartedAt=10:12:00; Restart.Updated=3; Restart.Available=4; says 3 of 5 updated, 4 available; Normal Restarted: Restarted Deployment web",
		},
		"not restarted, and found after the deadline for the start": {
			at: restarts(begun(), withStartingDeadline(3)), world: target(),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed StartingDeadlineExceeded: It did not run: it could not start within spec.startingDeadlineSeconds (3) of the scheduled time.; Warning StartingDeadlineExceeded; read all",
		},
		"suspended meanwhile": {at: restarts(begun(), withSuspendedRun), world: target(), want: "says Suspended: Nothing starts while spec.suspend is true."},
		"the deadline for the rollout does not count yet": {
			at: restarts(begun(), withActiveDeadline(10)), world: target(), now: now.Action.(RestartTarget).Due.Add(time.Hour),
			want: "RestartTarget as of 10:12:00 due 10:12:04; read all",
		},
		"no permission": {
			at: restarts(begun(), withStartingDeadline(10)), world: forbidden,
			want: `Blocked RestartForbidden: deployments.apps "web" is forbidden: no: ask a cluster administrator to grant this user the verbs get and patch, as artifacts/restarts/rbac.yaml does; Warning RestartForbidden; retry blocked; wait 5s`,
		},
		"restarted, after it was refused": {
			at: restarts(restartBlocked(begun(), v1alpha1.ReasonRestartRefused, "no")), world: target(restartedAt(due), rolling),
			want: "Restart.RestartedAt=10:12:00; Restart.Updated=3; Restart.Available=4; no Blocked; says 3 of 5 updated, 4 available; Normal Restarted: Restarted Deployment web",
		},
		"restarted by a clock that is ahead": {
			at: restarts(begun(), func(at *v1alpha1.At) { at.CreationTimestamp = metav1.Time{Time: due.Add(time.Hour)} }), world: target(restartedAt(due.Add(time.Hour)), rolling),
			want: "Restart.RestartedAt=11:12:00; Restart.Updated=3; Restart.Available=4; says 3 of 5 updated, 4 available; Normal Restarted: Restarted Deployment web",
		},
		"deleted": {
			at:   restarts(begun()),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed TargetNotFound: Deployment web was deleted during its restart.; Warning TargetNotFound; read all",
		},
		"paused since": {
			at: restarts(begun()), world: target(paused),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed TargetPaused: Deployment web is paused and would not roll out a restart: see kubectl rollout resume.; Warning TargetPaused; read all",
		},
		"deleted, and created again": {
			at: restarts(begun()), world: target(func(target *rollout.Target) { target.UID = "other" }),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed TargetNotFound: Deployment web was deleted during its restart.; Warning TargetNotFound; read all",
		},
	})
}

// TestRestartReads checks that the workload is read just before its restart, however new the cache is.
func TestRestartReads(t *testing.T) {
	if d := Decide(World{At: restarts(begun()), Target: newTarget(), AsOf: now, Now: now}); d.Needs != LiveAll {
		t.Errorf("needs %v", d.Needs)
	}
}

// TestFollowRollout covers an At whose workload was restarted.
func TestFollowRollout(t *testing.T) {
	follows := following()
	refused := restartBlocked(following(), v1alpha1.ReasonRestartForbidden, restartForbiddenText)
	const pausedNow = "Deployment web was paused during its rollout: see kubectl rollout resume."
	isPaused := restartBlocked(following(), v1alpha1.ReasonTargetPaused, pausedNow)
	lastWeek := due.AddDate(0, 0, -7)
	testDecide(t, map[string]decideCase{
		"complete after the deadline": {
			at: restarts(follows, withActiveDeadline(0)), world: target(restartedAt(due)),
			want: "Phase=DONE; CompletionTime=10:12:04; Restart.Updated=5; Restart.Available=5; Complete Completed: Deployment web has been restarted: 5 of 5 updated, 5 available.; Normal Completed; read all",
		},
		"complete without the restart": {
			at: restarts(follows), world: target(),
			want: `Phase=DONE; CompletionTime=10:12:04; Restart.Updated=5; Restart.Available=5; Failed Reverted: The restart of Deployment web at 2026-12-24T10:12:00Z was reverted, for example by kubectl rollout undo or a GitOps tool: its annotation kubectl.kubernetes.io/restartedAt is now "".; Warning Reverted; read all`,
		},
		"complete with the restart of last week": {
			at: restarts(follows), world: target(restartedAt(lastWeek)),
			want: `Phase=DONE; CompletionTime=10:12:04; Restart.Updated=5; Restart.Available=5; Failed Reverted: The restart of Deployment web at 2026-12-24T10:12:00Z was reverted, for example by kubectl rollout undo or a GitOps tool: its annotation kubectl.kubernetes.io/restartedAt is now "2026-12-17T10:12:00Z".; Warning Reverted; read all`,
		},
		"stuck": {
			at: restarts(follows), world: target(restartedAt(due), stuck),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed RolloutFailed: The rollout of Deployment web made no progress within its spec.progressDeadlineSeconds: 3 of 5 updated, 4 available. See kubectl rollout status and kubectl rollout undo.; Warning RolloutFailed; read all",
		},
		"OnDelete": {
			at: restarts(follows), world: target(restartedAt(due), rolling, onDelete),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed TargetOnDelete: Deployment web has the update strategy OnDelete: a restart would not replace any Pod. Set spec.updateStrategy.type to RollingUpdate.; Warning TargetOnDelete; read all",
		},
		"paused": {
			at: restarts(follows), world: target(restartedAt(due), rolling, paused),
			want: "Blocked TargetPaused: Deployment web was paused during its rollout: see kubectl rollout resume.; Warning TargetPaused; wait 2s",
		},
		"paused for a minute": {at: restarts(isPaused), world: target(restartedAt(due), rolling, paused), now: now.Add(time.Minute), want: "wait 6s"},
		"resumed":             {at: restarts(isPaused), world: target(restartedAt(due), rolling), want: "no Blocked; says 3 of 5 updated, 4 available; wait 2s"},
		"deleted": {
			at:   restarts(follows),
			want: "Phase=DONE; CompletionTime=10:12:04; Failed TargetNotFound: Deployment web was deleted during its restart.; Warning TargetNotFound; read all",
		},
		"until the deadline": {
			at: restarts(follows, withActiveDeadline(10)), world: target(restartedAt(due), rolling), now: now.Add(10 * time.Second),
			want: "Phase=DONE; CompletionTime=10:12:14; Failed DeadlineExceeded: The run took longer than spec.activeDeadlineSeconds (10). The rollout of Deployment web continues: 3 of 5 updated, 4 available.; Warning DeadlineExceeded; read all",
		},
		"permission is lost": {
			at: restarts(follows, withStartingDeadline(3)), world: forbidden,
			want: `Blocked RestartForbidden: deployments.apps "web" is forbidden: no: ask a cluster administrator to grant this user the verbs get and patch, as artifacts/restarts/rbac.yaml does; Warning RestartForbidden; retry blocked`,
		},
		"permission is lost, with a deadline": {at: restarts(refused, withActiveDeadline(10)), world: forbidden, want: "retry blocked; wait 8s"},
		"permission is lost until the deadline": {
			at: restarts(refused, withActiveDeadline(10)), world: forbidden, now: now.Add(10 * time.Second),
			want: `Phase=DONE; CompletionTime=10:12:14; Failed DeadlineExceeded: The run took longer than spec.activeDeadlineSeconds (10). It was blocked: deployments.apps "web" is forbidden: no: ask a cluster administrator to grant this user the verbs get and patch, as artifacts/restarts/rbac.yaml does; no Blocked; Warning DeadlineExceeded; read all`,
		},
	})
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
			expect(t, "forecast", tc.want, ForeseeRestart(newAt(withRestart), tc.target, tc.err))
		})
	}
}

// TestLongProgress follows a rollout whose Pods are refused with the longest message that is kept. It
// must not write the status again and again.
func TestLongProgress(t *testing.T) {
	w := World{At: restarts(following()), Now: now, Live: LiveAll, AsOf: now, Target: newTarget(restartedAt(due), rolling, func(target *rollout.Target) {
		target.ReplicaFailure = answer.Truncate(strings.Repeat("no\n", answer.MaxMessage), answer.MaxMessage)
	})}
	first := Decide(w)
	if first.Status == nil || strings.Contains(first.Status.Message, "\n") {
		t.Fatalf("got %+v, want a status with the message in one line", first)
	}
	w.At.Status = *first.Status
	if w.At = KeepAt(w.At); Decide(w).Status != nil {
		t.Errorf("the status is written again: %q", cmp.Diff(first.Status.Message, Decide(w).Status.Message))
	}
}
