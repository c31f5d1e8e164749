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

package simulation

import (
	"fmt"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// tenants are the users of some namespaces.
type tenants struct {
	made  int // objects so far
	quiet bool
}

// hostile is a namespace whose webhooks take long, and deny half of the Pods with a long error.
const hostile = "hostile"

var namespaces = []string{"a", "b", "c", hostile}

// promptTime is how late an At may start without faults.
const promptTime = 2 * time.Second

// populate creates what exists at the beginning.
func (w *World) populate() {
	for _, name := range []string{"node-1", "node-2", "node-3"} {
		w.addNode(name)
	}
	for i, namespace := range namespaces {
		must(w.kube.CoreV1().Namespaces().Create(w.t.Context(), &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{labelFloor: strconv.Itoa(i / 2), corev1.LabelMetadataName: namespace}},
		}, metav1.CreateOptions{}))
		deployment := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: namespace},
			Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](3)},
		}
		if i == 0 {
			deployment.Annotations = map[string]string{v1alpha1.AnnotationRestartSchedule: "17 */3 * * *"}
		}
		must(w.kube.AppsV1().Deployments(namespace).Create(w.t.Context(), deployment, metav1.CreateOptions{}))
	}
	for _, schedule := range []string{"*/15 * * * *", "7 * * * *", "*/40 9-17 * * *", "@every 25m", "0 3 * * *"} {
		for _, policy := range []v1alpha1.ConcurrencyPolicy{v1alpha1.AllowConcurrent, v1alpha1.ForbidConcurrent, v1alpha1.ReplaceConcurrent} {
			w.createCronAt(schedule, policy)
		}
	}
}

func (w *World) name(kind string) string {
	w.made++
	return fmt.Sprintf("%s-%d", kind, w.made)
}

func (w *World) createCronAt(schedule string, policy v1alpha1.ConcurrencyPolicy) {
	namespace := namespaces[w.random.IntN(3)]
	if w.terminating[namespace] {
		return
	}
	cronAt := &v1alpha1.CronAt{ObjectMeta: metav1.ObjectMeta{Name: w.name("cron"), Namespace: namespace, Labels: w.labels()}, Spec: v1alpha1.CronAtSpec{
		Schedule: schedule, ConcurrencyPolicy: policy,
		SuccessfulAtsHistoryLimit: ptr.To(int32(w.random.IntN(3))), FailedAtsHistoryLimit: ptr.To(int32(w.random.IntN(2))),
		AtTemplate: v1alpha1.AtTemplateSpec{Spec: v1alpha1.RunSpec{Command: w.command(0), Rehearse: w.chance(20)}},
	}}
	if w.chance(30) {
		cronAt.Spec.SpreadSeconds = ptr.To(int32(w.random.IntN(100)))
	}
	if w.chance(20) {
		cronAt.Spec.AtTemplate.Spec.Nodes = w.onNodes()
	}
	must(w.cnat.CnatV1alpha1().CronAts(namespace).Create(w.t.Context(), cronAt, metav1.CreateOptions{}))
}

// command returns a command that takes some time, and fails with a probability in percent.
func (w *World) command(fails int) string {
	seconds := w.random.Float64() * 10
	if w.chance(5) {
		seconds *= 60
	}
	code := 0
	if w.chance(fails) {
		code = 1
	}
	return fmt.Sprintf("run %.3f %d", seconds, code)
}

// onNodes returns a run on all nodes, or on those of a pool.
func (w *World) onNodes() *v1alpha1.AtNodes {
	nodes := &v1alpha1.AtNodes{}
	if w.chance(50) {
		nodes.Selector.MatchLabels = map[string]string{"pool": "x"}
	}
	return nodes
}

// createAt creates an At that is due at a time.
func (w *World) createAt(namespace string, due time.Time) {
	if w.terminating[namespace] {
		return
	}
	at := &v1alpha1.At{ObjectMeta: metav1.ObjectMeta{Name: w.name("at"), Namespace: namespace, Labels: w.labels()}}
	at.Spec.Schedule = due.UTC().Format(time.RFC3339Nano)
	at.Spec.Command, at.Spec.Rehearse = w.command(30), w.chance(30)
	switch w.random.IntN(12) {
	case 0:
		at.Spec.Node = fmt.Sprint("node-", 1+w.random.IntN(4)) // The fourth does not exist.
	case 1:
		at.Spec.Nodes = w.onNodes()
		at.Spec.Nodes.MaxConcurrent = ptr.To(intstr.FromInt32(1 + w.random.Int32N(2)))
		if w.chance(50) {
			at.Spec.Nodes.MaxFailed = ptr.To(w.random.Int32N(2))
		}
	case 2:
		// No two in the same second, so that its annotation says which of them restarted it.
		due = due.Truncate(time.Hour).Add(time.Duration(w.made) * time.Second)
		at.Spec.Schedule = due.UTC().Format(time.RFC3339)
		at.Spec.Command, at.Spec.Rehearse, at.Spec.Restart = "", false, &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}
	}
	if at.Spec.Restart == nil && w.chance(40) {
		at.Spec.BackoffLimit = ptr.To(w.random.Int32N(4))
	}
	if w.chance(30) {
		at.Spec.TTLSecondsAfterFinished = ptr.To(w.random.Int32N(600))
	}
	if w.chance(20) {
		at.Spec.StartingDeadlineSeconds = ptr.To(w.random.Int64N(100))
	}
	if w.chance(20) {
		at.Spec.ActiveDeadlineSeconds = ptr.To(1 + w.random.Int64N(100))
	}
	at = must(w.cnat.CnatV1alpha1().Ats(namespace).Create(w.t.Context(), at, metav1.CreateOptions{}))
	// Users are most harmful around the time when it starts.
	if w.chance(40) {
		for range 1 + w.random.IntN(2) {
			w.after(max(0, due.Sub(w.clock.Now()))+w.between(-2*time.Second, 4*time.Second), func() { w.edit(at) })
		}
	}
}

// edit lets a user do something to an At or its Pods.
func (w *World) edit(at *v1alpha1.At) {
	found, ok := w.live[at.UID].(*v1alpha1.At)
	if w.quiet || !ok || found.DeletionTimestamp != nil {
		return
	}
	at = found.DeepCopy()
	update := func(what string) {
		w.tracef("a user %s At %s/%s", what, at.Namespace, at.Name)
		must(w.cnat.CnatV1alpha1().Ats(at.Namespace).Update(w.t.Context(), at, metav1.UpdateOptions{}))
	}
	later := func(most time.Duration) {
		w.after(w.between(10*time.Millisecond, most), func() { w.edit(at) })
	}
	switch action := w.random.IntN(10); {
	case at.Status.Reason == v1alpha1.ReasonFrozen && action < 5:
		metav1.SetMetaDataLabel(&at.ObjectMeta, v1alpha1.LabelIgnoreFreezes, "true")
		update("exempts")
	case ptr.Deref(at.Spec.Suspend, false):
		at.Spec.Suspend = nil
		update("resumes")
	case action < 3:
		at.Spec.Suspend = ptr.To(true)
		update("suspends")
		later(5 * time.Minute)
		later(5 * time.Second)
	case action < 6 && at.Status.Phase == v1alpha1.PhasePending: // Otherwise, it is immutable.
		at.Spec.Schedule = w.clock.Now().Add(w.between(-time.Second, 10*time.Minute)).UTC().Format(time.RFC3339Nano)
		update("moves")
	case action < 7:
		w.tracef("a user deletes At %s/%s", at.Namespace, at.Name)
		w.delete(at)
		if w.chance(50) && !w.terminating[at.Namespace] {
			w.after(w.between(0, 15*time.Second), func() { w.createAgain(at) })
		}
	default:
		for _, pod := range objects(w, func(pod *corev1.Pod) bool { return metav1.IsControlledBy(pod, at) }) {
			w.tracef("a user deletes Pod %s/%s", pod.Namespace, pod.Name)
			w.delete(pod)
		}
	}
}

// createAgain creates an At under the name of an earlier one.
func (w *World) createAgain(at *v1alpha1.At) {
	next := &v1alpha1.At{ObjectMeta: metav1.ObjectMeta{Name: at.Name, Namespace: at.Namespace}, Spec: *at.Spec.DeepCopy()}
	if w.quiet || next.Spec.Restart != nil || w.terminating[at.Namespace] {
		return
	}
	if _, err := w.cnat.CnatV1alpha1().Ats(at.Namespace).Create(w.t.Context(), next, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		panic(err)
	}
}

// editCronAt lets a user do something to a CronAt, or to one of its Ats.
func (w *World) editCronAt() {
	all := objects(w, func(cronAt *v1alpha1.CronAt) bool { return cronAt.DeletionTimestamp == nil })
	if len(all) == 0 {
		return
	}
	cronAt := all[w.random.IntN(len(all))].DeepCopy()
	switch w.random.IntN(6) {
	case 0:
		if metav1.GetControllerOf(cronAt) != nil {
			return // It belongs to an annotation.
		}
		w.delete(cronAt)
		w.createCronAt(cronAt.Spec.Schedule, cronAt.Spec.ConcurrencyPolicy)
		return
	case 1:
		cronAt.Spec.Suspend = ptr.To(!ptr.Deref(cronAt.Spec.Suspend, false))
	case 2:
		cronAt.Spec.Schedule = fmt.Sprintf("%d-59/%d * * * *", w.random.IntN(10), 5+w.random.IntN(30))
	default:
		for _, at := range objects(w, func(at *v1alpha1.At) bool { return metav1.IsControlledBy(at, cronAt) && at.DeletionTimestamp == nil }) {
			w.tracef("a user deletes At %s/%s", at.Namespace, at.Name)
			w.delete(at)
		}
		return
	}
	w.tracef("a user edits CronAt %s/%s", cronAt.Namespace, cronAt.Name)
	must(w.cnat.CnatV1alpha1().CronAts(cronAt.Namespace).Update(w.t.Context(), cronAt, metav1.UpdateOptions{}))
}

// planDay decides what users and faults do on a day.
func (w *World) planDay() {
	w.quiet, w.checker.MaxLate = false, 0
	some := func(number int, do func()) {
		for range 1 + number*int(w.Day/time.Hour)/24 {
			w.after(w.between(0, w.Day-calmTime-30*time.Minute), do)
		}
	}
	soon := func() time.Time { return w.clock.Now().Add(w.between(-time.Minute, time.Hour)) }
	some(150, func() { w.createAt(namespaces[w.random.IntN(3)], soon()) })
	some(5, func() { // Many at one instant.
		due := soon().Truncate(time.Second)
		for range 10 + w.random.IntN(20) {
			w.createAt(namespaces[w.random.IntN(3)], due)
		}
	})
	some(2, func() {
		for range 5 {
			w.createAt(hostile, w.clock.Now().Add(time.Minute))
		}
	})
	some(20, w.editCronAt)
	some(20, w.disturb)
	some(10, w.freeze)
	some(1, func() { w.deleteNamespace("c") })
	w.replaceAll(false, "x")
	some(8, w.changeProcesses)
}

// changeProcesses lets one process work alone, two at the same time as if both were the leader,
// or two with an election, which costs very many requests, for some time.
func (w *World) changeProcesses() {
	if w.quiet {
		return
	}
	switch w.random.IntN(4) {
	case 0:
		w.replaceAll(false, "x")
	case 1:
		w.replaceAll(false, "x", "y")
	default:
		w.replaceAll(true, "x", "y")
		w.after(w.between(5*time.Minute, 20*time.Minute), func() {
			if w.elect {
				w.replaceAll(false, "x", "y")
			}
		})
	}
}

// disturb lets something go wrong for a while.
func (w *World) disturb() {
	if w.quiet {
		return
	}
	// Something should be going on meanwhile.
	w.freeze()
	for range 5 {
		w.createAt(namespaces[w.random.IntN(3)], w.clock.Now().Add(w.between(0, 30*time.Second)))
	}
	switch w.random.IntN(11) {
	case 0, 1:
		w.faults = 20 + w.random.IntN(300)
		w.after(w.between(time.Minute, 10*time.Minute), func() { w.faults = 0 })
	case 2:
		w.setAway(w.between(time.Second, 90*time.Second))
	case 3:
		for range 1 + w.random.IntN(20) {
			w.after(w.between(0, time.Minute), func() {
				if p := w.anyProcess(); p != nil && !w.quiet {
					w.kill(p)
					w.after(w.between(0, 5*time.Second), func() { w.start(p.slot) })
				}
			})
		}
	case 4:
		if p := w.anyProcess(); p != nil {
			by := w.between(time.Second, 2*time.Minute)
			w.tracef("the watches of %s report nothing for %v", p.name, by)
			w.delayWatches(p, by)
		}
	case 5:
		if p := w.anyProcess(); p != nil {
			w.tracef("the watches of %s break, and old versions are forgotten", p.name)
			w.server.Compact()
			w.breakWatches(p, errLost)
		}
	case 6:
		namespace := namespaces[w.random.IntN(3)]
		w.tracef("namespace %s has no quota", namespace)
		w.quota[namespace] = true
		w.after(w.between(time.Second, 10*time.Minute), func() { delete(w.quota, namespace) })
	case 7:
		node := fmt.Sprint("node-", 1+w.random.IntN(3))
		if _, exists := w.nodes[node]; exists {
			w.removeNode(node)
		}
	case 8:
		w.stepClock(w.between(time.Second, 8*time.Hour)) // The machines slept.
	case 9:
		w.stepClock(-w.between(time.Second, time.Hour))
	case 10:
		namespace := namespaces[w.random.IntN(3)]
		w.tracef("namespace %s cannot pull images", namespace)
		w.noImages[namespace] = true
		w.after(w.between(time.Minute, 20*time.Minute), func() { delete(w.noImages, namespace) })
	}
}

// calm ends the faults and edits of a day. Some further Ats show that all is well.
func (w *World) calm() {
	w.tracef("calm")
	w.quiet, w.faults, w.away = true, 0, false
	w.replaceAll(false, "x")
	w.server.Compact()
	for _, at := range objects(w, func(at *v1alpha1.At) bool { return at.DeletionTimestamp == nil && metav1.GetControllerOf(at) == nil }) {
		if at.Status.Phase == v1alpha1.PhaseDone || ptr.Deref(at.Spec.Suspend, false) {
			w.delete(at)
		}
	}
	for _, freeze := range objects(w, func(freeze *v1alpha1.Freeze) bool { return freeze.DeletionTimestamp == nil }) {
		w.delete(freeze)
	}
	w.after(10*time.Minute, func() {
		w.checker.MaxLate = promptTime
		for range 20 {
			w.after(w.between(0, 30*time.Minute), func() {
				w.createAt(namespaces[w.random.IntN(3)], w.clock.Now().Add(w.between(0, 30*time.Minute)))
			})
		}
		for range 6 {
			w.after(w.between(0, 30*time.Minute), func() { w.writeFreeze(0) })
		}
		if w.chance(50) {
			w.after(w.between(0, 30*time.Minute), func() { w.stepClock(w.between(time.Minute, time.Hour)) })
		}
	})
}
