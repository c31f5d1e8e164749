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
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronplan"
	"programming-kubernetes.info/cnat-controller/pkg/cronat/cronsteps"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// ran is the history of an At that ran, and whose Pod is recorded.
var ran = []string{"controller A: at: reads the At", "controller A: at: CreatePod", "the kubelet starts at-pod", "the command succeeds in at-pod"}

// delayed is the history of an At that ran while another creation of its Pod was on its way.
var delayed = []string{
	"controller A: at: reads the At", "controller A: at: CreatePod: the request is delayed",
	"controller B: at: reads the At", "controller B: at: CreatePod", "the kubelet starts at-pod", "the command succeeds in at-pod",
	"controller B (news of 3 pods): at: writes status DONE Completed",
}

var mutants = map[string]mutant{
	"no live read": {"lag", "after the At was suspended", within([]float64{59, 60}, budget{edits: 1}, suspend), decides(func(w *plan.World) {
		w.Live, w.AsOf = plan.LiveAll, w.Now
	})},
	"no finalizer":                      {"at", "runs twice", within([]float64{60}, budget{crashes: 1, edits: 1}, deletePod), createsWithoutFinalizer},
	"ownership by name":                 {"successor", "which was not created for At", nil, seesPods(adopt)},
	"a Pod of somebody else is adopted": {"at", "which was not created for At", within([]float64{60}, budget{edits: 1}, takePodName), seesPods(adopt)},
	"a Pod of somebody else is deleted": {"at", "of somebody else is changed", within([]float64{60}, budget{edits: 1}, takePodName), becomes(func(w plan.World, d *plan.Decision) {
		for _, pod := range w.Pods {
			if plan.ControllerOf(pod) == nil {
				*d = plan.Decision{Action: plan.DeletePod{Pod: pod}}
			}
		}
	})},
	"a status over a newer one": {"retries", "goes back", nil, sends(func(r *request) {
		if r.verb == writeStatus {
			r.version = 0
		}
	})},
	"a Pod is released at once": {"at", "runs twice", all(within([]float64{60}, budget{crashes: 1, edits: 1}, deletePod), after(ran...)), cleansUp(func(_ plan.World, pod *corev1.Pod, d plan.Decision) plan.Decision {
		if d.Action == nil && d.Delay > 0 {
			return plan.Decision{Action: plan.ReleasePod{Pod: pod}}
		}
		return d
	})},
	"a Pod is released after 8.5 s": {"deleted", "runs twice", all(within([]float64{60.75, 68.75}, budget{faults: 1, edits: 1}, deletePod), after(append(delayed, "it is 00:01:08.7")...)),
		cleansUp(func(_ plan.World, pod *corev1.Pod, d plan.Decision) plan.Decision {
			if d.Action == nil && 0 < d.Delay && d.Delay <= time.Second {
				return plan.Decision{Action: plan.ReleasePod{Pod: pod}}
			}
			return d
		})},
	"a Pod is never released": {"at", "the finalizer of Pod at-pod stays", nil, cleansUp(func(_ plan.World, _ *corev1.Pod, d plan.Decision) plan.Decision {
		if _, releases := d.Action.(plan.ReleasePod); releases {
			return plan.Decision{}
		}
		return d
	})},
	"a success has the condition of a failure":       {"at", "the conditions of At at", nil, completes(func(end *metav1.Condition) { end.Type = v1alpha1.ConditionFailed })},
	"a condition has another reason than the status": {"at", "in its condition", nil, completes(func(end *metav1.Condition) { end.Reason = v1alpha1.ReasonCommandFailed })},
	"a suspended run fails": {"at", "without any cause", nil, seesPods(func(at *v1alpha1.At, pod *corev1.Pod) {
		if ptr.Deref(at.Spec.Suspend, false) && pod.Status.Phase == corev1.PodSucceeded {
			pod.Status.Phase = corev1.PodFailed
		}
	})},
	"a lost Pod is created again": {"at", "does not come to an end", nil, decides(func(w *plan.World) {
		if !w.HasPod() {
			w.At.Status.Pod, w.At.Status.Phase = nil, ""
		}
	})},
	"a second too early": {"at", "before it is due", nil, decides(func(w *plan.World) {
		w.Now, w.AsOf = w.Now.Add(time.Second), w.AsOf.Add(time.Second)
	})},
	"an hour too late": {"at", "At at is PENDING", nil, decides(func(w *plan.World) {
		w.Now, w.AsOf = w.Now.Add(-time.Hour), w.AsOf.Add(-time.Hour)
	})},
	"a suspension is ignored":        {"at", "after the At was suspended", nil, decides(func(w *plan.World) { w.At.Spec.Suspend = nil })},
	"an edit of the time is ignored": {"at", "before it is due", nil, decides(func(w *plan.World) { w.At.Spec.Schedule = epoch.Format(time.RFC3339) })},
	"an orphan is released without a look": {"successor", "runs twice", all(within([]float64{60}, budget{edits: 3}, deleteAt, createAgain, deletePod), after("a user deletes the At", "a user creates the At again", "controller A (news of 2 ats): at: reads the At", "controller A: at: CreatePod", "the kubelet starts at-pod")), cleansUp(func(_ plan.World, _ *corev1.Pod, d plan.Decision) plan.Decision {
		d.Needs = plan.Cached
		return d
	})},
	"a proxy's 404 is believed": {"late", "PodLost is recorded", all(within([]float64{60}, budget{faults: 1, edits: 1}, stripLabel), after("the kubelet starts at-pod")), func(x *explorer) {
		x.receive = func(r *request, err error) error {
			if apierrors.IsNotFound(err) {
				return answer{reason: notFound}.err(r)
			}
			return err
		}
	}},
	"more attempts than the limit": {"retries", "attempts run, want at most", after("the command fails in at-pod", "the command fails in at-pod-1"), decides(func(w *plan.World) { w.At.Spec.BackoffLimit = ptr.To[int32](5) })},
	"the second attempt runs at once": {"retries", "before the next attempt is due", nil, decides(func(w *plan.World) {
		if next := w.At.Status.NextAttemptTime; next != nil {
			next.Time = w.Now
		}
	})},
	"a failure counts as a success": {"retries", "which did not happen", nil, seesPods(func(_ *v1alpha1.At, pod *corev1.Pod) {
		if pod.Status.Phase == corev1.PodFailed {
			pod.Status.Phase, pod.Status.ContainerStatuses = corev1.PodSucceeded, nil
		}
	})},
	"an attempt is counted while it runs": {"retries", "has not failed", nil, seesPods(func(_ *v1alpha1.At, pod *corev1.Pod) {
		if pod.Status.Phase == corev1.PodRunning {
			pod.Status.Phase = corev1.PodFailed
		}
	})},
	"maxConcurrent is ignored": {"nodes", "run at the same time", all(within([]float64{60}, budget{}), succeeds, after("the kubelet starts at-a-pod")), sends(func(r *request) {
		if r.verb == create && r.kind == ats {
			r.object = r.object.change("not suspended", func(meta metav1.Object) { meta.(*v1alpha1.At).Spec.Suspend = nil })
		}
	})},
	"maxFailed is ignored": {"nodes", "starts after 1 failed", after("the command fails in at-a-pod"), decides(func(w *plan.World) {
		withoutLimit(&w.At)
		withoutLimit(&w.Parent)
	})},
	"the suspension of a parent is ignored": {"nodes", "after the At was suspended", all(within([]float64{60, 61}, budget{edits: 1}, suspend), after("controller A: at: ResumeAts")), decides(func(w *plan.World) {
		if w.Parent != nil {
			w.Parent = w.Parent.DeepCopy()
			w.Parent.Spec.Suspend = nil
		}
	})},
	"the failure of a node counts as a success": {"nodes", "starts after 1 failed", after("the command fails in at-a-pod"), decides(func(w *plan.World) {
		var succeeded []*v1alpha1.At
		for _, child := range w.Children {
			child = child.DeepCopy()
			for i := range child.Status.Conditions {
				child.Status.Conditions[i].Type = v1alpha1.ConditionComplete
			}
			succeeded = append(succeeded, child)
		}
		w.Children = succeeded
	})},
	"the counts of nodes are wrong": {"nodes", "do not add up", nil, becomes(func(_ plan.World, d *plan.Decision) {
		if d.Status != nil && d.Status.Nodes != nil && d.Status.Phase == v1alpha1.PhaseDone {
			d.Status.Nodes.Waiting++
		}
	})},
	"a child without a finalizer": {"nodes", "runs it twice", all(within([]float64{60}, budget{edits: 1}, deleteChild), after(
		"controller A: at: reads all", "controller A: at: reads all", "controller A: at: reads all", "controller A: at: writes status RUNNING", "controller A: at: reads the At",
		"controller B (news of 1 ats): at: reads the At", "controller B: at: CreateAts", "controller B: at: CreateAts",
		"controller B (news of 2 ats): at: reads the At", "controller B: at: reads all", "controller B: at: reads all", "controller B: at: writes status RUNNING",
		"controller B: at: reads the At", "controller B: at: ResumeAts",
	)), createsWithoutFinalizer},
	"a child is never released": {"nodes", "stays", nil, omits[plan.ReleaseAt](nil)},
	"children without a parent": {"nodes", "At at is RUNNING", nil, decides(func(w *plan.World) { w.Parent = nil })},
	"a child of a parent that is gone is kept": {"nodes", "the deleted At at-a stays", nil, decides(func(w *plan.World) {
		if w.Parent == nil && plan.ParentName(w.At) != "" {
			w.At = nil
		}
	})},
	"a restart without the version": {"restart", "is restarted twice", within([]float64{60}, budget{edits: 1}, undoRestart), sends(func(r *request) {
		if r.restarts() {
			r.version = 0
		}
	})},
	"a restart is not read after its workload": {"restart", "is restarted twice", within([]float64{60}, budget{edits: 1}, undoRestart), decides(func(w *plan.World) {
		if restart := w.At.Status.Restart; restart != nil && restart.RestartedAt == nil {
			w.Live, w.AsOf = plan.LiveAll, w.Now
		}
	})},
	"no live read of a CronAt":              {"forbid", "after the At was suspended", nil, seesCronAt(func(s *cronsteps.Steps, w *cronplan.World) { w.CronAtIsLive, w.CronAtAsOf = true, s.Clock.Now() })},
	"an At of a CronAt without a finalizer": {"forbid", "is created twice", within([]float64{0, 60}, budget{edits: 1}, deleteScheduled), createsWithoutFinalizer},
	"an At of a CronAt is released at once": {"forbid", "is created twice", within([]float64{0, 60}, budget{edits: 1}, deleteScheduled), cronAt(func(_ *cronsteps.Steps, w *cronplan.World) {
		for _, at := range w.Ats {
			w.CountedSince[at.UID] = epoch
		}
	})},
	"the Ats of a CronAt are listed only once": {"forbid", "has not ended", within([]float64{0, 60, 120}, budget{}), cronAt(func(s *cronsteps.Steps, w *cronplan.World) {
		if !w.AtsAsOf.IsZero() {
			w.AtsAsOf = s.Clock.Now()
		}
	})},
	"Forbid is ignored": {"forbid", "has not ended", nil, seesCronAt(func(_ *cronsteps.Steps, w *cronplan.World) {
		w.CronAt.Spec.ConcurrencyPolicy = v1alpha1.AllowConcurrent
	})},
	"a time is missed silently": {"forbid", "times have an At or count as missed", nil, seesCronAt(func(s *cronsteps.Steps, w *cronplan.World) {
		if first := epoch.Add(due * time.Second); w.CronAt.Status.LastScheduleTime == nil && s.Clock.Now().After(first.Add(time.Second)) {
			w.CronAt.Status.LastScheduleTime = &metav1.Time{Time: first}
		}
	})},
	"the history is kept": {"forbid", "Ats are kept", nil, seesCronAt(func(_ *cronsteps.Steps, w *cronplan.World) {
		w.CronAt.Spec.SuccessfulAtsHistoryLimit = ptr.To[int32](3)
	})},
	"a workload from before its restart": {"restart", "without any cause", within([]float64{60}, budget{}), decides(func(w *plan.World) {
		if w.At.Status.Restart != nil && w.At.Status.Restart.RestartedAt != nil {
			forgetRestart(w)
		}
	})},
	"a first Pod starts in a Freeze": {"freeze", "although Freeze", nil, decides(func(w *plan.World) {
		if w.At.Status.Failed == 0 {
			w.Frozen = nil
		}
	})},
	"a further attempt starts in a Freeze": {"thaw", "although Freeze", nil, decides(func(w *plan.World) {
		if w.At.Status.Failed > 0 {
			w.Frozen = nil
		}
	})},
	"a restart is sent in a Freeze":        {"freeze-restart", "although Freeze", nil, decides(func(w *plan.World) { w.Frozen = nil })},
	"what waits for a Freeze never starts": {"thaw", "At at is RUNNING", nil, omits[plan.CreatePod](func(w plan.World) bool { return plan.IsFrozen(w.At) })},
	"a Freeze hides the deadline": {"freeze", "At at is PENDING", nil, becomes(func(w plan.World, d *plan.Decision) {
		if w.Frozen != nil && d.Status != nil && d.Status.Reason != v1alpha1.ReasonFrozen {
			*d = plan.Decision{}
		}
	})},
	"a Freeze hides how a command ended": {"freeze", "At at is RUNNING", nil, becomes(func(w plan.World, d *plan.Decision) {
		if w.Frozen != nil && w.At.Status.Phase == v1alpha1.PhaseRunning {
			*d = plan.Decision{}
		}
	})},
	"a time of a CronAt runs in a Freeze": {"skip", "although Freeze", nil, cronAt(func(_ *cronsteps.Steps, w *cronplan.World) { w.Freezes = nil })},
	"a skipped time of a CronAt runs later": {"skip", "or its time skipped", nil, seesCronAt(func(_ *cronsteps.Steps, w *cronplan.World) {
		if skipped := w.CronAt.Status.Skipped; w.Freezes.IsEmpty() && skipped != nil {
			w.CronAt.Status.Skipped = &v1alpha1.MissedTimes{Count: skipped.Count} // without the last one
		}
	})},
	"a restart is never seen": {"restart", "At at is RUNNING", nil, decides(forgetRestart)},
}

var createsWithoutFinalizer = sends(func(r *request) {
	if r.verb == create {
		r.object = r.object.change("no finalizer", func(meta metav1.Object) { meta.SetFinalizers(nil) })
	}
})

// adopt lets the At own a Pod.
func adopt(at *v1alpha1.At, pod *corev1.Pod) {
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(at, v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.AtKind))}
}

// completes returns a mutant of how an At ends.
func completes(change func(end *metav1.Condition)) func(x *explorer) {
	return becomes(func(_ plan.World, d *plan.Decision) {
		if d.Status != nil {
			if end := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionComplete); end != nil {
				change(end)
			}
		}
	})
}

// forgetRestart lets a workload not have been restarted.
func forgetRestart(w *plan.World) {
	if w.Target != nil {
		target := *w.Target
		target.RestartedAt = nil
		w.Target = &target
	}
}

func withoutLimit(at **v1alpha1.At) {
	if *at != nil && (*at).Spec.Nodes != nil {
		changed := (*at).DeepCopy()
		changed.Spec.Nodes.MaxFailed = nil
		*at = changed
	}
}
