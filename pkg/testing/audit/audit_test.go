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

package audit

import (
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
)

// due is the time of all Ats, and of a CronAt with an hourly schedule.
var due = time.Date(2026, 12, 24, 10, 0, 0, 0, time.UTC)

// when returns a time some seconds after due.
func when(seconds float64) time.Time { return due.Add(time.Duration(seconds * float64(time.Second))) }

// edited returns an object after the given edits.
func edited[T any](object *T, edits ...func(*T)) *T {
	for _, edit := range edits {
		edit(object)
	}
	return object
}

func write(seconds float64, object metav1.Object, created bool) Write {
	return Write{Sent: when(seconds), Time: when(seconds), Created: created, Object: object}
}

// sent returns a write that was sent before it was stored.
func sent(seconds float64, w Write) Write {
	w.Sent = when(seconds)
	return w
}

func gone(w Write) Write {
	w.Gone = true
	return w
}

// anAt returns a write of an At, which is created a minute before it is due.
func anAt(seconds float64, mutate ...func(*v1alpha1.At)) Write {
	object := &v1alpha1.At{ObjectMeta: metav1.ObjectMeta{Name: "at", Namespace: "default", UID: "at"}}
	object.Spec.Schedule = due.Format(time.RFC3339)
	return write(seconds, edited(object, mutate...), seconds == -60)
}

func suspended(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) }
func later(at *v1alpha1.At)     { at.Spec.Schedule = when(3600).Format(time.RFC3339) }
func retried(at *v1alpha1.At)   { at.Spec.BackoffLimit = ptr.To[int32](1) }
func limited(at *v1alpha1.At)   { at.Spec.StartingDeadlineSeconds = ptr.To[int64](30) }
func deleted(at *v1alpha1.At)   { at.DeletionTimestamp = &metav1.Time{Time: when(-10)} }
func running(at *v1alpha1.At) {
	at.Status.Phase, at.Status.StartTime = v1alpha1.PhaseRunning, &metav1.Time{Time: due}
}
func ended(at *v1alpha1.At)       { endsAs(v1alpha1.ReasonCompleted)(at) }
func stuck(at *v1alpha1.At)       { at.Status.Reason = v1alpha1.ReasonImagePullFailed }
func tracked(at *v1alpha1.At)     { at.Finalizers = []string{v1alpha1.FinalizerTracking} }
func expires(at *v1alpha1.At)     { at.Spec.TTLSecondsAfterFinished = ptr.To[int32](60) }
func limitedRun(at *v1alpha1.At)  { at.Spec.ActiveDeadlineSeconds = ptr.To[int64](90) }
func nextAttempt(at *v1alpha1.At) { at.Status.NextAttemptTime = &metav1.Time{Time: when(12)} }

// onNodeOf is the At of a node, of At at.
func onNodeOf(name string) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) {
		at.Name, at.UID = name, types.UID(name)
		at.OwnerReferences = []metav1.OwnerReference{{Kind: v1alpha1.AtKind, UID: "at", Controller: ptr.To(true)}}
	}
}

// recorded records the Pod of aPod.
func recorded(at *v1alpha1.At) {
	running(at)
	at.Status.Pod = &v1alpha1.AtPod{Name: string(at.UID) + "-pod", UID: at.UID + "-pod"}
}

// done ends an At that has recorded its Pod.
func done(reason string) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) {
		recorded(at)
		endsAs(reason)(at)
	}
}

const pending, isRunning, succeeded, failed = corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed

// aPod returns a write of the first Pod of At at.
func aPod(seconds float64, phase corev1.PodPhase, mutate ...func(*corev1.Pod)) Write {
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", OwnerReferences: []metav1.OwnerReference{{Kind: v1alpha1.AtKind, Controller: ptr.To(true)}},
		Finalizers: []string{v1alpha1.FinalizerTracking},
	}}
	of("at")(object)
	object.Status.Phase = phase
	return write(seconds, edited(object, mutate...), phase == pending)
}

func released(pod *corev1.Pod) { pod.Finalizers = nil }
func second(pod *corev1.Pod)   { pod.Name, pod.UID = "at-pod-1", "at-pod-1" }

// of makes a Pod that of another At.
func of(at types.UID) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Name, pod.UID, pod.OwnerReferences[0].UID = string(at)+"-pod", at+"-pod", at
	}
}

// ran returns writes of an At and of its Pod, which is in a phase soon, and further ones.
func ran(phase corev1.PodPhase, more ...Write) []Write {
	return append([]Write{anAt(-60), aPod(1, pending), aPod(2, phase)}, more...)
}

// inFreeze returns writes of an At and of a Freeze, and of the Pod of the At a second after it is due.
func inFreeze(freeze Write) []Write {
	return []Write{anAt(-60), freeze, aPod(1, pending)}
}

// rehearsal makes a Pod that of a rehearsal.
func rehearsal(pod *corev1.Pod) {
	pod.Finalizers, pod.Labels = nil, map[string]string{v1alpha1.LabelRehearsalOf: "at"}
	pod.OwnerReferences[0].APIVersion = v1alpha1.SchemeGroupVersion.String()
}

// aCronAt returns a write of an hourly CronAt that forbids overlaps.
func aCronAt(seconds float64, mutate ...func(*v1alpha1.CronAt)) Write {
	object := &v1alpha1.CronAt{ObjectMeta: metav1.ObjectMeta{Name: "cron", Namespace: "default", UID: "cron"}}
	object.Spec.Schedule, object.Spec.ConcurrencyPolicy = "0 * * * *", v1alpha1.ForbidConcurrent
	object.Status.ObservedSchedule = &v1alpha1.ObservedSchedule{Schedule: "0 * * * *", Since: metav1.Time{Time: when(-60)}}
	return write(seconds, edited(object, mutate...), seconds == -60)
}

// last records a scheduled time.
func last(seconds float64) func(*v1alpha1.CronAt) {
	return func(c *v1alpha1.CronAt) { c.Status.LastScheduleTime = &metav1.Time{Time: when(seconds)} }
}

// missed counts scheduled times as missed.
func missed(count int64, seconds float64) func(*v1alpha1.CronAt) {
	return func(c *v1alpha1.CronAt) {
		c.Status.Missed = &v1alpha1.MissedTimes{Count: count, Last: metav1.Time{Time: when(seconds)}}
	}
}

// neverSynced makes a CronAt one that no controller has seen.
func neverSynced(c *v1alpha1.CronAt) {
	c.CreationTimestamp, c.Status = metav1.Time{Time: when(-60)}, v1alpha1.CronAtStatus{}
}

// skipped counts scheduled times as skipped.
func skipped(count int64, seconds float64) func(*v1alpha1.CronAt) {
	return func(c *v1alpha1.CronAt) {
		c.Status.Skipped = &v1alpha1.MissedTimes{Count: count, Last: metav1.Time{Time: when(seconds)}}
	}
}

// aFreeze returns a write of a Freeze that holds when an At is due.
func aFreeze(seconds float64, mutate ...func(*v1alpha1.Freeze)) Write {
	object := &v1alpha1.Freeze{ObjectMeta: metav1.ObjectMeta{Name: "freeze", Namespace: "default", UID: "freeze"}}
	holds(-30, 60)(object)
	return write(seconds, edited(object, mutate...), false)
}

// holds makes a Freeze hold from a time until another.
func holds(from, until float64) func(*v1alpha1.Freeze) {
	instant := func(seconds float64) v1alpha1.FreezeTime {
		return v1alpha1.FreezeTime(when(seconds).Format(time.RFC3339Nano))
	}
	return func(f *v1alpha1.Freeze) {
		f.Spec.Windows = []v1alpha1.FreezeWindow{{From: instant(from), Until: instant(until)}}
	}
}

func in(namespace string) func(*v1alpha1.Freeze) {
	return func(f *v1alpha1.Freeze) { f.Namespace = namespace }
}
func onFloor(floor string) func(*v1alpha1.Freeze) {
	return func(f *v1alpha1.Freeze) {
		f.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"floor": floor}}
	}
}
func ofCron(f *v1alpha1.Freeze) {
	f.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelCronAtName: "cron"}}
}

// daily makes a Freeze one that holds for 20 minutes each day, from ten minutes before due.
func daily(f *v1alpha1.Freeze) {
	f.Spec.TimeZone = ptr.To("Asia/Kolkata")
	f.Spec.Windows = []v1alpha1.FreezeWindow{{Schedule: "20 15 * * *", DurationSeconds: 1200}}
}

// thatDay makes a Freeze one that holds once, for 20 minutes, from ten minutes before due.
func thatDay(f *v1alpha1.Freeze) {
	f.Spec.TimeZone = ptr.To("Asia/Kolkata")
	f.Spec.Windows = []v1alpha1.FreezeWindow{{From: "2026-12-24T15:20:00", Until: "2026-12-24T15:40:00"}}
}
func exempt(at *v1alpha1.At) { at.Labels = map[string]string{v1alpha1.LabelIgnoreFreezes: "true"} }
func waitsForEnd(at *v1alpha1.At) {
	at.Status.Reason = v1alpha1.ReasonFrozen
}

func at11(at *v1alpha1.At) { at.Name = "cron-29968500" }
func at12(at *v1alpha1.At) { at.Name = "cron-29968560" }

// threeTimes returns writes of a CronAt that creates an At at ten and at twelve o'clock, and of its
// status after that. What happens between the two comes last.
func threeTimes(mutate func(*v1alpha1.CronAt), between ...Write) []Write {
	after := []func(*v1alpha1.CronAt){last(7200)}
	if mutate != nil {
		after = append(after, mutate)
	}
	return slices.Concat(
		[]Write{aCronAt(-60), scheduled(0, true, "s"), aCronAt(1, last(0)), gone(scheduled(2, false, "s"))},
		between,
		[]Write{scheduled(7200, true, "t", at12), aCronAt(7201, after...), gone(scheduled(7202, false, "t", at12))},
	)
}

// afterAnother returns writes of a CronAt with an At that starts ten seconds late, and one that ends
// before that.
func afterAnother(end float64) []Write {
	at9 := func(at *v1alpha1.At) { at.Name, at.Spec.Schedule = "cron-29968380", when(-3600).Format(time.RFC3339) }
	return []Write{
		aCronAt(-4000), scheduled(-3600, true, "r", at9, running), scheduled(end, false, "r", at9, endsAs("TargetNotFound")),
		scheduled(9, true, "s"), aPod(10, pending, of("s")),
	}
}

// scheduled returns a write of the At of the CronAt.
func scheduled(seconds float64, created bool, uid string, mutate ...func(*v1alpha1.At)) Write {
	w := anAt(seconds, append([]func(*v1alpha1.At){func(at *v1alpha1.At) {
		at.Name, at.UID = "cron-29968440", types.UID(uid) // the minutes of due
		at.Labels = map[string]string{v1alpha1.LabelCronAtUID: "cron", v1alpha1.LabelCronAtName: "cron"}
		at.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: v1alpha1.CronAtKind, Name: "cron", UID: "cron", Controller: ptr.To(true)}}
		at.Finalizers = []string{v1alpha1.FinalizerScheduled}
	}}, mutate...)...)
	w.Created = created
	return w
}

// aDeployment returns a write of a Deployment with the annotation of a restart.
func aDeployment(seconds float64, restartedAt string) Write {
	object := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "web"}}
	object.Spec.Template.Annotations = map[string]string{rollout.AnnotationRestartedAt: restartedAt}
	return write(seconds, object, false)
}

func restartsWeb(at *v1alpha1.At) {
	at.Spec.Restart = &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}
}

// restarting returns writes of an At that restarts a Deployment, and further ones.
func restarting(more ...Write) []Write {
	return append([]Write{anAt(-60, restartsWeb), aDeployment(-60, "")}, more...)
}

func createdLate(at *v1alpha1.At) { at.CreationTimestamp = metav1.Time{Time: when(30)} }

// recordsRestart records a restart with the given annotation.
func recordsRestart(seconds float64) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) {
		running(at)
		at.Status.Restart = &v1alpha1.AtRestartStatus{UID: "web", RestartedAt: &metav1.Time{Time: when(seconds)}}
	}
}

func onNodes(at *v1alpha1.At) {
	at.Spec.Nodes = &v1alpha1.AtNodes{MaxConcurrent: ptr.To(intstr.FromInt32(1))}
}
func onHalf(at *v1alpha1.At) {
	at.Spec.Nodes = &v1alpha1.AtNodes{MaxConcurrent: ptr.To(intstr.FromString("50%"))}
}
func onPool(at *v1alpha1.At) {
	at.Spec.Nodes = &v1alpha1.AtNodes{Selector: metav1.LabelSelector{MatchLabels: map[string]string{"pool": "x"}}}
}
func onNode(at *v1alpha1.At) { at.Spec.Node = "node" }

// aNode returns a write of a node of a pool.
func aNode(pool string) Write {
	return write(-60, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: map[string]string{"pool": pool}}}, true)
}
func noneMayFail(at *v1alpha1.At) { at.Spec.Nodes.MaxFailed = ptr.To[int32](0) }

// counted records how many nodes have succeeded and failed, of two.
func counted(succeeded, failed int32) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) {
		running(at)
		at.Status.Nodes = &v1alpha1.AtNodesStatus{Desired: 2, Succeeded: succeeded, Failed: failed}
	}
}

// says adds a condition that is True.
func says(conditionType, reason string) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) {
		at.Status.Conditions = append(at.Status.Conditions, metav1.Condition{Type: conditionType, Status: metav1.ConditionTrue, Reason: reason})
	}
}

func noConditions(at *v1alpha1.At) { at.Status.Conditions = nil }

// endsAs ends an At.
func endsAs(reason string) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) {
		at.Status.Phase, at.Status.Reason = v1alpha1.PhaseDone, reason
		conditionType := v1alpha1.ConditionFailed
		if reason == v1alpha1.ReasonCompleted {
			conditionType = v1alpha1.ConditionComplete
		}
		says(conditionType, reason)(at)
	}
}

// onTwoNodes returns writes of an At and of its Ats a and b, of which a has ended, and further ones.
func onTwoNodes(phase corev1.PodPhase, reason string, more ...Write) []Write {
	return append([]Write{
		anAt(-60, onNodes, noneMayFail), anAt(-60, onNodeOf("a")), anAt(-60, onNodeOf("b")),
		aPod(1, pending, of("a")), aPod(2, phase, of("a"), released), anAt(3, onNodeOf("a"), done(reason)),
	}, more...)
}

// onThreeNodes returns writes of an At on half of three nodes: when it starts on the third one, its
// Pods on the others have the given phases.
func onThreeNodes(a, b corev1.PodPhase) []Write {
	return []Write{
		anAt(-60, onHalf), anAt(-60, onNodeOf("a")), anAt(-60, onNodeOf("b")), anAt(-60, onNodeOf("c")),
		aPod(1, pending, of("a")), aPod(1, pending, of("b")), aPod(1, pending, of("c")),
		aPod(2, a, of("a")), aPod(2, b, of("b")), aPod(4, isRunning, of("c")),
	}
}

// wantRule checks that a history breaks one promise, or none.
func wantRule(t *testing.T, c *Checker, want Rule) {
	t.Helper()
	var got Rule
	for _, v := range c.Violations {
		got = v.Rule
	}
	if got != want || len(c.Violations) > 1 {
		t.Errorf("got %v, want rule %q", c.Violations, want)
	}
}

// TestChecker checks histories that break a promise. That others break none shows in the simulation,
// where each violation is a failure.
func TestChecker(t *testing.T) {
	restarted := due.Format(time.RFC3339)
	for name, tc := range map[string]struct {
		writes   []Write
		settle   float64 // seconds after due; 0: the history goes on
		maxLate  time.Duration
		want     Rule
		restarts int
	}{
		"moved":                         {writes: []Write{anAt(-60), anAt(-0.6, later), aPod(0.1, pending)}, want: Honored},
		"after its deadline":            {writes: []Write{anAt(-60, limited), aPod(31.1, pending)}, want: Honored},
		"created twice":                 {writes: ran(failed, gone(aPod(2, failed)), aPod(3, pending, func(pod *corev1.Pod) { pod.UID = "again" })), want: Once},
		"a very late second attempt":    {writes: ran(failed, anAt(2, retried, recorded, nextAttempt), sent(2.5, aPod(11.9, pending, second)))},
		"an early second attempt":       {writes: ran(failed, anAt(2, retried, recorded, nextAttempt), aPod(11.9, pending, second)), want: NotEarly},
		"too many attempts":             {writes: ran(isRunning, aPod(2, failed), aPod(12, pending, second), aPod(13, isRunning, second)), want: Once},
		"two at the same time":          {writes: ran(isRunning, anAt(3, retried), aPod(12, pending, second), aPod(13, isRunning, second)), want: Once},
		"again after success":           {writes: ran(succeeded, anAt(3, retried), aPod(12, pending, second), aPod(13, isRunning, second)), want: Once},
		"completed, but it failed":      {writes: ran(failed, anAt(3, done("Completed"))), want: True},
		"failed, but it succeeded":      {writes: ran(succeeded, anAt(3, done("CommandFailed"))), want: True},
		"lost, but it succeeded":        {writes: ran(isRunning, gone(aPod(2, succeeded)), anAt(3, done("PodLost"))), want: NotLost},
		"lost, but it exists":           {writes: ran(isRunning, anAt(3, done("PodLost"))), want: True},
		"a Pod that never was":          {writes: []Write{anAt(-60), anAt(3, recorded)}, want: True},
		"back to PENDING":               {writes: []Write{anAt(-60), anAt(1, running), anAt(2)}, want: True},
		"changed after its end":         {writes: ran(succeeded, anAt(3, done("Completed")), anAt(4, done("CommandFailed"))), want: True},
		"its deadline, too soon":        {writes: []Write{anAt(-60, limited), anAt(29, limited, endsAs("StartingDeadlineExceeded"))}, want: True},
		"its deadline, after its start": {writes: []Write{anAt(-60, limited), aPod(1, pending), aPod(2, isRunning), anAt(31, limited, endsAs("StartingDeadlineExceeded"))}, want: True},
		"its active deadline, too soon": {writes: ran(failed, anAt(89, limitedRun, done("DeadlineExceeded"))), want: True},
		"both Complete and Failed":      {writes: ran(succeeded, anAt(3, done("Completed"), says("Failed", "Completed"))), want: True},
		"Failed, when it is first seen": {writes: []Write{anAt(3, ended, noConditions, says("Failed", "Completed"))}, want: True},
		"completed, without a Pod":      {writes: []Write{anAt(-60), anAt(3, ended)}, want: True},

		"not started, in silence":      {writes: []Write{anAt(-60)}, settle: 601, want: Reported},
		"nothing blocks it any more":   {writes: []Write{anAt(-60, stuck)}, settle: 601, want: NotLost},
		"its end is not recorded":      {writes: ran(succeeded, anAt(2, recorded)), settle: 603, want: NotLost},
		"its status has just changed":  {writes: ran(isRunning, anAt(3, recorded)), settle: 602},
		"its end is recorded too late": {writes: ran(succeeded, anAt(4.1, done("Completed"))), maxLate: 2 * time.Second, want: NotLost},
		"a Pod stays without its At":   {writes: ran(succeeded, gone(anAt(3, deleted))), settle: 604, want: NotLost},
		"its Pod keeps a finalizer":    {writes: ran(succeeded, anAt(3, done("Completed"))), settle: 604, want: NotLost},
		"it stays":                     {writes: []Write{anAt(-60), anAt(-10, deleted)}, settle: 591, want: NotLost},
		"it keeps a finalizer":         {writes: ran(succeeded, anAt(3, done("Completed"), tracked), aPod(3, succeeded, released)), settle: 604, want: NotLost},
		"a rehearsal is left":          {writes: []Write{anAt(-60, later), aPod(-50, pending, rehearsal)}, settle: 551, want: NotLost},
		"a rehearsal is recorded":      {writes: []Write{anAt(-60), aPod(-50, pending, rehearsal), anAt(2, recorded)}, want: True},
		"its time to live is over":     {writes: ran(succeeded, anAt(3, done("Completed"), expires), aPod(3, succeeded, released)), settle: 664, want: NotLost},

		"a restart after the At was deleted":    {writes: restarting(anAt(-10, restartsWeb, deleted), aDeployment(1, restarted)), want: Honored, restarts: 1},
		"a restart is recorded, but was not":    {writes: restarting(anAt(2, restartsWeb, recordsRestart(0))), want: True},
		"an earlier restart is recorded":        {writes: []Write{anAt(-60, restartsWeb), aDeployment(-60, when(-90).Format(time.RFC3339)), anAt(6, restartsWeb, recordsRestart(-90))}, want: True},
		"completed without a restart":           {writes: restarting(anAt(2, restartsWeb, ended)), want: True},
		"two restarts of an At, created late":   {writes: []Write{anAt(-60, restartsWeb, createdLate), aDeployment(-60, ""), aDeployment(31, when(30).Format(time.RFC3339)), aDeployment(32, ""), aDeployment(33, when(30).Format(time.RFC3339))}, restarts: 2, want: Once},
		"a restart, long after another rollout": {writes: restarting(anAt(1, restartsWeb, stuck), anAt(10, restartsWeb, running), aDeployment(12.1, restarted), aDeployment(13, restarted)), maxLate: 2 * time.Second, restarts: 1, want: NotLost},

		"a node that is left out":       {writes: []Write{aNode("y"), anAt(-60, onPool), anAt(0, onNodeOf("a"), onNode)}, want: Limits},
		"a node of the selector":        {writes: []Write{aNode("x"), anAt(-60, onPool), anAt(0, onNodeOf("a"), onNode)}},
		"more than half of the nodes":   {writes: onThreeNodes(isRunning, isRunning), want: Limits},
		"failed on a node":              {writes: onTwoNodes(failed, "CommandFailed", anAt(3, onNodes, noneMayFail, counted(0, 1)), aPod(3.7, pending, of("b"))), want: Limits},
		"it has ended on all nodes":     {writes: onTwoNodes(succeeded, "Completed", anAt(3, onNodes, counted(1, 0), endsAs("NodesFailed")), aPod(3.7, pending, of("b"))), want: Limits},
		"completed on one of two nodes": {writes: onTwoNodes(succeeded, "Completed", anAt(3, onNodes, counted(1, 0), endsAs("Completed"))), want: True},
		"a failed node is not counted":  {writes: onTwoNodes(failed, "CommandFailed", anAt(3, onNodes, counted(0, 0), endsAs("NodesFailed"))), want: True},
		"it goes on, on a node":         {writes: []Write{anAt(-60, onNodes, counted(0, 0)), anAt(-60, onNodeOf("a"), running), aPod(3, pending, of("a"))}, settle: 602},

		"a scheduled time, early":     {writes: []Write{aCronAt(-60), scheduled(-0.1, true, "s")}, want: NotEarly},
		"a scheduled time twice":      {writes: []Write{aCronAt(-60), scheduled(0, true, "s"), gone(scheduled(1, false, "s")), scheduled(2, true, "t")}, want: Once},
		"a time that overlaps":        {writes: []Write{aCronAt(-60), scheduled(0, true, "s"), scheduled(3600, true, "t", at11)}, want: Limits},
		"a suspended CronAt":          {writes: []Write{aCronAt(-60), aCronAt(-1, func(c *v1alpha1.CronAt) { c.Spec.Suspend = ptr.To(true) }), scheduled(0, true, "s")}, want: Honored},
		"a last time that goes back":  {writes: []Write{aCronAt(1, last(0)), aCronAt(2, last(-3600))}, want: True},
		"a CronAt stays":              {writes: []Write{aCronAt(-60, neverSynced), aCronAt(-10, neverSynced, func(c *v1alpha1.CronAt) { c.DeletionTimestamp = &metav1.Time{Time: when(-10)} })}, settle: 591, want: NotLost},
		"an At of it is not released": {writes: []Write{aCronAt(-60), scheduled(0, true, "s"), aPod(1, pending, of("s")), aPod(2, succeeded, of("s"), released), scheduled(3, false, "s", done("Completed")), aCronAt(3, last(0))}, settle: 604, want: NotLost},

		"a time that is recorded without an At": {writes: []Write{aCronAt(-60), aCronAt(1, last(0))}, want: True},
		"a time is missed twice":                {writes: threeTimes(missed(2, 3600)), want: True},
		"a scheduled At, long after another":    {writes: afterAnother(7.9), maxLate: 2 * time.Second, want: NotLost},
		"a CronAt that nobody looks at":         {writes: []Write{aCronAt(-60, neverSynced)}, settle: 601, want: NotLost},
		"a time before the first sync, skipped": {writes: []Write{aCronAt(-60, neverSynced), scheduled(3600, true, "s", at11), aCronAt(3601, last(3600))}, want: NotLost},
		"in a Freeze that was just stored":      {writes: inFreeze(aFreeze(-29))},
		"in a Freeze that was deleted":          {writes: []Write{anAt(-60), aFreeze(-31), gone(aFreeze(0)), aPod(1, pending)}},
		"as a Freeze begins":                    {writes: inFreeze(aFreeze(-31, holds(0.5, 60)))},
		"in a daily Freeze":                     {writes: inFreeze(aFreeze(-31, daily)), want: Honored},
		"in a Freeze of a wall clock":           {writes: inFreeze(aFreeze(-31, thatDay)), want: Honored},
		"after a daily Freeze":                  {writes: []Write{anAt(-60), aFreeze(-31, daily), aPod(600, pending)}},
		"in a Freeze of others":                 {writes: inFreeze(aFreeze(-31, in("lab")))},
		"in a Freeze for its floor":             {writes: inFreeze(aFreeze(-31, in("system"), onFloor("1"))), want: Honored},
		"in a Freeze for others":                {writes: inFreeze(aFreeze(-31, in("system"), onFloor("2")))},
		"in a Freeze of a CronAt":               {writes: inFreeze(aFreeze(-31, ofCron))},
		"on a node, with an exemption":          {writes: []Write{anAt(-60, exempt), anAt(-60, onNodeOf("child")), aFreeze(-31), aPod(1, pending, of("child"))}},
		"a restart in a Freeze":                 {writes: restarting(aFreeze(-31), aDeployment(1, restarted)), want: Honored, restarts: 1},
		"late after a Freeze":                   {writes: []Write{anAt(-60), aFreeze(-31, holds(-30, 10)), anAt(0, waitsForEnd), aPod(12.5, pending)}, maxLate: 2 * time.Second, want: NotLost},
		"soon after a Freeze":                   {writes: []Write{anAt(-60), aFreeze(-31, holds(-30, 10)), anAt(0, waitsForEnd), aPod(11.5, pending)}, maxLate: 2 * time.Second},
		"a scheduled time in a Freeze":          {writes: []Write{aCronAt(-60), aFreeze(-31), scheduled(0, true, "s")}, want: Honored},
		"a time in a Freeze counts as missed":   {writes: threeTimes(missed(1, 3600), aFreeze(3000, holds(3500, 3700))), want: True},
		"a time is skipped without a Freeze":    {writes: threeTimes(skipped(1, 3600), aFreeze(3000, holds(3601, 3700))), want: True},
		"the last time was skipped":             {writes: []Write{aFreeze(-91), aCronAt(-60), aCronAt(1, skipped(1, 0))}, settle: 601},
	} {
		t.Run(name, func(t *testing.T) {
			c := NewChecker()
			c.MaxLate, c.System = tc.maxLate, "system"
			c.Add(write(-100, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"floor": "1"}}}, false))
			for _, w := range tc.writes {
				c.Add(w)
			}
			if tc.settle > 0 {
				c.Settle(when(tc.settle), 10*time.Minute)
			}
			wantRule(t, c, tc.want)
			if c.Summary.Restarts != tc.restarts {
				t.Errorf("%d restarts, want %d", c.Summary.Restarts, tc.restarts)
			}
		})
	}
}

// TestStep steps the clock between two writes.
func TestStep(t *testing.T) {
	for name, tc := range map[string]struct {
		edit     Write
		now, by  float64 // seconds: when, after the step, and by how much
		creation float64
		want     Rule
	}{
		"back, after a suspension":      {edit: anAt(10, suspended), now: 0, by: -20, creation: 0.5, want: Honored},
		"back, just after a suspension": {edit: anAt(10, suspended), now: 0, by: -10, creation: 0.5},
		"forward, in time":              {edit: anAt(-60), now: 3600, by: 3630, creation: 3662},
	} {
		t.Run(name, func(t *testing.T) {
			c := NewChecker()
			c.MaxLate = 2 * time.Second
			c.Add(anAt(-60))
			c.Add(tc.edit)
			c.Step(when(tc.now), time.Duration(tc.by*float64(time.Second)))
			c.Add(aPod(tc.creation, pending))
			wantRule(t, c, tc.want)
		})
	}
}
