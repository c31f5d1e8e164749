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
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/freeze"
	"programming-kubernetes.info/cnat-controller/pkg/machinery/staleness"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
)

// fail records the first violation.
func (s *state) fail(format string, args ...any) {
	if s.violation == "" {
		s.violation = fmt.Sprintf(format, args...)
	}
}

// exit returns the exit code of the command of a Pod, or -1 if it has not ended.
func (s *state) exit(uid types.UID) int32 {
	for _, end := range s.ended {
		if end.uid == uid {
			return end.code
		}
	}
	return -1
}

// hold records that an At must not start from now on.
func (s *state) hold(uid types.UID) {
	s.held = append(slices.Clip(s.held), hold{uid: uid, since: s.now})
}

// holdUntilDue records when an At may start. since is when its time was edited, or -1.
func (s *state) holdUntilDue(uid types.UID, at *v1alpha1.At, since int8) {
	s.held = append(slices.Clip(s.held), hold{uid, since, dueTime(at).Unix()})
}

// dueTime returns when an At is due, which its schedule says.
func dueTime(at *v1alpha1.At) time.Time {
	due, err := plan.Instant(&at.Spec)
	utilruntime.Must(err)
	return due
}

// observe checks a request just before a controller sends it.
func (s *state) observe(r *request, c *controller) {
	starts := s.clock()
	var what string
	var uid types.UID
	switch {
	case r.createsPod():
		what, uid = "Pod "+r.name+" is created", metav1.GetControllerOfNoCopy(r.object.meta).UID
	case r.restarts():
		what, uid = r.name+" is restarted", s.restarting()
	case r.createsScheduled():
		what, uid = "At "+r.name+" is created", metav1.GetControllerOfNoCopy(r.object.meta).UID
		if starts = dueTime(r.object.meta.(*v1alpha1.At)); s.clock().Before(starts) {
			s.fail("%s before it is due", what)
		}
		for _, o := range s.stored { // Neither Forbid nor Replace lets two run at the same time.
			if s.x.scenario.objects[0].(*v1alpha1.CronAt).Spec.ConcurrencyPolicy != v1alpha1.AllowConcurrent && o.kind == ats && o.name() != r.name && ownerOf(o.uid()) == uid && o.at().Status.Phase != v1alpha1.PhaseDone {
				s.fail("%s although At %s has not ended", what, o.name())
			}
		}
		uid += types.UID("_" + r.name)
	default:
		return
	}
	if hold := c.obeys().Holding(freeze.NewSubject(&metav1.ObjectMeta{Namespace: namespace}), starts); hold != nil {
		s.fail("%s although %s", what, hold)
	}
	for _, h := range s.held {
		switch {
		case !isWithin(uid, h.uid) || h.until != 0 && s.clock().Unix() >= h.until:
		case h.since < 0:
			s.fail("%s before it is due", what)
		case s.since(h.since) > staleness.FreshFor.Seconds():
			s.fail("%s %.1f s after the At was suspended, moved or deleted, or its time skipped", what, s.since(h.since))
		}
	}
	if at := s.withUID(uid); at != nil && r.createsPod() {
		if next := at.at().Status.NextAttemptTime; next != nil && r.name == plan.PodName(at.at()) && s.clock().Before(next.Time) {
			s.fail("%s before the next attempt is due", what)
		}
	}
}

// recordStart records that the command of a Pod may have started.
func (s *state) recordStart(pod *object) {
	uid := pod.uid()
	owner := ownerOf(uid)
	at := s.withUID(owner)
	if at == nil && !s.x.strict {
		// By the guarantees, the command of an At that was deleted meanwhile may run twice.
		s.started = insert(s.started, uid)
		return
	}
	runs := int32(1)
	for _, other := range s.started {
		if ownerOf(other) != owner {
			if s.withUID(ownerOf(owner)) != nil && attemptOf(ownerOf(other)) == attemptOf(owner) {
				s.fail("a node runs it twice: in Pod %s, then in Pod %s", other, uid)
			}
			continue
		}
		runs++
		switch {
		case attemptOf(other) == attemptOf(uid):
			s.fail("attempt %s runs twice: in Pod %s, then in Pod %s", attemptOf(uid), other, uid)
		case s.exit(other) <= 0:
			s.fail("Pod %s runs although Pod %s has not failed", uid, other)
		}
	}
	if at != nil && runs > 1+ptr.Deref(at.at().Spec.BackoffLimit, 0) {
		s.fail("%d attempts run, want at most one more than backoffLimit", runs)
	}
	s.started = insert(s.started, uid)
	s.checkLimits(owner)
}

// checkLimits checks that no more Ats of nodes run than spec.nodes allows, which has both limits.
func (s *state) checkLimits(child types.UID) {
	parent := s.withUID(ownerOf(child))
	if parent == nil || parent.at().Spec.Nodes == nil {
		return
	}
	running, failed := 0, int32(0)
	for _, uid := range s.started {
		if !isWithin(uid, parent.uid()) {
			continue
		}
		switch code := s.exit(uid); {
		case code < 0:
			running++
		case code > 0 && ownerOf(uid) != child:
			failed++
		}
	}
	if limits := parent.at().Spec.Nodes; running > limits.MaxConcurrent.IntValue() {
		s.fail("%d Pods run at the same time, want at most %s", running, limits.MaxConcurrent)
	} else if failed > *limits.MaxFailed {
		s.fail("a command starts after %d failed, want at most %d", failed, *limits.MaxFailed)
	}
}

// restarting returns the UID of the At with a restart: there is one, unless it was deleted.
func (s *state) restarting() types.UID {
	for _, uid := range slices.Backward(s.made) {
		if strings.HasPrefix(string(uid), "at_") && strings.Count(string(uid), "_") == 1 {
			return uid
		}
	}
	return ""
}

// recordRestart records that a controller has restarted a workload.
func (s *state) recordRestart(before *object, after *content) {
	annotation := func(o metav1.Object) string {
		return o.(*appsv1.Deployment).Spec.Template.Annotations[rollout.AnnotationRestartedAt]
	}
	if annotation(before.meta) == annotation(after.meta) {
		return
	}
	uid := s.restarting() + "_restart"
	if slices.Contains(s.started, uid) && (s.x.strict || s.withUID(s.restarting()) != nil) {
		s.fail("%s is restarted twice", before.name())
	}
	s.started = insert(s.started, uid)
}

// checkChange checks what a controller does to an object. It deletes it if after is nil.
func (s *state) checkChange(before *object, after *content) {
	if isForeignPod(before) {
		s.fail("a Pod of somebody else is changed")
	}
	if after != nil && before.kind == cronAts {
		s.recordSkipped(before.cronAt(), after.meta.(*v1alpha1.CronAt))
	}
}

var ranks = map[v1alpha1.AtPhase]int{v1alpha1.PhasePending: 0, v1alpha1.PhaseRunning: 1, v1alpha1.PhaseDone: 2}

// check looks at what is stored.
func (s *state) check() {
	for _, o := range s.stored {
		switch o.kind {
		case ats:
			s.checkAt(o)
		case cronAts:
			s.checkCronAt(o)
		}
	}
}

// checkCronAt checks that the last scheduled time does not go back, and that no time has run
// twice.
func (s *state) checkCronAt(o *object) {
	now := status{uid: o.uid()}
	if last := o.cronAt().Status.LastScheduleTime; last != nil {
		now.phase = int(last.Sub(epoch).Seconds())
	}
	s.checkStatus(now)
	for _, uid := range s.made {
		if ownerOf(uid) == o.uid() && !strings.HasSuffix(string(uid), "_1") {
			s.fail("At %s is created twice for one time", attemptOf(uid))
		}
	}
}

// checkStatus checks that a status does not go back.
func (s *state) checkStatus(now status) {
	i := slices.IndexFunc(s.highest, func(h status) bool { return h.uid == now.uid })
	switch {
	case i < 0:
		s.highest = append(slices.Clip(s.highest), now)
		slices.SortFunc(s.highest, func(a, b status) int { return cmp.Compare(a.uid, b.uid) })
	case now.phase < s.highest[i].phase || now.failed < s.highest[i].failed:
		s.fail("the status goes back: from %+v to %+v", s.highest[i], now)
	case now != s.highest[i]:
		s.highest = slices.Clone(s.highest)
		s.highest[i] = now
	}
}

func (s *state) checkAt(o *object) {
	at := o.at()
	now := status{o.uid(), ranks[at.Status.Phase], at.Status.Failed}
	done := now.phase == ranks[v1alpha1.PhaseDone]
	hasFailed := slices.ContainsFunc(s.ended, func(end ended) bool { return end.code != 0 })
	s.checkStatus(now)
	s.checkEnd(at, done)
	// A controller that does not know of a cordon creates an At, perhaps after its parent has ended.
	parent := s.withUID(ownerOf(o.uid()))
	isLate := at.Status.Reason == v1alpha1.ReasonNotStarted && parent != nil && parent.at().Status.Phase == v1alpha1.PhaseDone ||
		at.Status.Reason == v1alpha1.ReasonStartingDeadlineExceeded && plan.StartingTimeLeft(dueTime(at), at.Spec.StartingDeadlineSeconds, s.clock()) <= 0
	switch reason := at.Status.Reason; {
	case !done:
	case reason != v1alpha1.ReasonCompleted && !hasFailed && !s.harmed && !isLate:
		s.fail("%s is recorded, without any cause: %s", reason, at.Status.Message)
	case reason == v1alpha1.ReasonCompleted && s.x.own() == ats && at.Status.Pod == nil && at.Status.Nodes == nil && at.Status.Restart == nil:
		s.fail("Completed is recorded, and nothing has run")
	}
	if recorded := at.Status.Pod; recorded != nil {
		if !slices.Contains(s.made, recorded.UID) || ownerOf(recorded.UID) != o.uid() {
			s.fail("Pod %s is recorded, which was not created for At %s", recorded.UID, o.uid())
		}
		if pod := s.find(pods, recorded.Name); done && at.Status.Reason == v1alpha1.ReasonPodLost && pod != nil && pod.uid() == recorded.UID {
			s.fail("it is recorded that Pod %s is lost, which exists", recorded.UID)
		}
		code := s.exit(recorded.UID)
		if reason := at.Status.Reason; done && (reason == v1alpha1.ReasonCompleted && code != 0 || reason == v1alpha1.ReasonCommandFailed && code <= 0) {
			s.fail("%s is recorded for Pod %s, which did not happen: %v", reason, recorded.UID, s.ended)
		}
		return
	}
	switch {
	case !done:
	case at.Status.Nodes != nil:
		s.checkNodes(o)
	case at.Status.Reason == v1alpha1.ReasonCompleted && at.Spec.Restart != nil && at.Status.Restart != nil && !slices.ContainsFunc(s.started, func(uid types.UID) bool { return isWithin(uid, o.uid()) }):
		s.fail("a restart is recorded that did not happen")
	}
}

// checkEnd checks that an At has ended if exactly one condition says how, with the reason of the status.
func (s *state) checkEnd(at *v1alpha1.At, done bool) {
	conditions, want := at.Status.Conditions, v1alpha1.ConditionFailed
	if at.Status.Reason == v1alpha1.ReasonCompleted {
		want = v1alpha1.ConditionComplete
	}
	for _, name := range []string{v1alpha1.ConditionComplete, v1alpha1.ConditionFailed} {
		if meta.IsStatusConditionTrue(conditions, name) != (done && name == want) {
			s.fail("the conditions of At %s, which is %s, %s, are %+v", at.Name, at.Status.Phase, at.Status.Reason, conditions)
		}
	}
	if end := meta.FindStatusCondition(conditions, want); done && end != nil && end.Reason != at.Status.Reason {
		s.fail("the reason of At %s is %s in its condition, and %s in its status", at.Name, end.Reason, at.Status.Reason)
	}
}

// checkNodes checks the counts of an At on nodes that has ended.
func (s *state) checkNodes(o *object) {
	counts := o.at().Status.Nodes
	succeeded := int32(0)
	for _, end := range s.ended {
		if isWithin(end.uid, o.uid()) && end.code == 0 {
			succeeded++
		}
	}
	switch {
	case counts.Active != 0 || counts.Desired != counts.Succeeded+counts.Failed+counts.Waiting:
		s.fail("the counts of nodes do not add up: %+v", counts)
	case succeeded < counts.Succeeded || o.at().Status.Reason == v1alpha1.ReasonCompleted && counts.Succeeded < counts.Desired:
		s.fail("it is recorded that %d of %d nodes succeeded, which did not happen: %v", counts.Succeeded, counts.Desired, s.ended)
	}
}

// hasEnded returns what is wrong in a state in which nothing more happens.
func (s *state) hasEnded() error {
	for _, o := range s.stored {
		if o.kind == cronAts {
			if err := s.hasEndedCronAt(o.cronAt()); err != nil {
				return err
			}
		}
		// A Pod without its label is an exception of the guarantees.
		tracked := slices.Contains(o.meta.GetFinalizers(), v1alpha1.FinalizerTracking)
		switch {
		case o.kind == pods && tracked && o.meta.GetLabels()[v1alpha1.LabelAtUID] != "":
			return fmt.Errorf("the finalizer of Pod %s stays", o.name())
		case o.kind == ats && o.meta.GetDeletionTimestamp() != nil:
			return fmt.Errorf("the deleted At %s stays", o.name())
		case s.x.own() != ats:
		case o.kind == ats && o.at().Status.Reason == v1alpha1.ReasonPodNameConflict && isForeignPod(s.find(pods, plan.PodName(o.at()))):
		case o.kind == ats && !s.isSuspended(o) && o.at().Status.Phase != v1alpha1.PhaseDone:
			return fmt.Errorf("the end: At %s is %s, %s: %s", o.name(), o.at().Status.Phase, o.at().Status.Reason, o.at().Status.Message)
		case o.kind == ats && tracked && o.at().Status.Phase == v1alpha1.PhaseDone && !s.isSuspended(o):
			return fmt.Errorf("the finalizer of At %s stays", o.name())
		}
	}
	return nil
}

// hasEndedCronAt returns what is wrong with a CronAt in which nothing more happens.
func (s *state) hasEndedCronAt(cronAt *v1alpha1.CronAt) error {
	ended, times := 0, 0
	for _, uid := range s.made {
		if ownerOf(uid) == cronAt.UID {
			times++
		}
	}
	last, skipped := cronAt.Status.LastScheduleTime, cronAt.Status.Skipped
	for _, counted := range []*v1alpha1.MissedTimes{cronAt.Status.Missed, skipped} {
		if counted != nil {
			times += int(counted.Count)
		}
	}
	if skipped != nil && (last == nil || skipped.Last.After(last.Time)) {
		last = &skipped.Last
	}
	for _, o := range s.stored {
		if o.kind == ats && metav1.IsControlledBy(o.meta, cronAt) {
			ended++
			if slices.Contains(o.meta.GetFinalizers(), v1alpha1.FinalizerScheduled) {
				return fmt.Errorf("the finalizer of At %s stays", o.name())
			}
		}
	}
	switch {
	case ended > int(ptr.Deref(cronAt.Spec.SuccessfulAtsHistoryLimit, 3)):
		return fmt.Errorf("%d Ats are kept", ended)
	case cronAt.Status.Active > 0:
		return fmt.Errorf("%d Ats count as active", cronAt.Status.Active)
	case ptr.Deref(cronAt.Spec.Suspend, false):
	case last == nil || last.Time.Before(lastTime):
		return fmt.Errorf("the last time is %v, want %s", last, lastTime)
	case times < 2 || times > 2 && skipped == nil:
		// A controller that does not know of a Freeze may create the At of a time that another one skips.
		return fmt.Errorf("%d times have an At or count as missed, want 2: %+v", times, cronAt.Status)
	}
	return nil
}

// isSuspended reports whether a user has suspended an At, or the parent that it has.
func (s *state) isSuspended(o *object) bool {
	if parent := s.withUID(ownerOf(o.uid())); parent != nil {
		o = parent
	}
	return ptr.Deref(o.at().Spec.Suspend, false)
}
