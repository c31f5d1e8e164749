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
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
)

// deletes returns the edit that deletes an object, or the first of its kind. What the controllers control
// must not start anything from then on.
func deletes(what string, k kind, name string) edit {
	return edit{harmless: k == freezes, name: "deletes " + what, do: func(s *state) bool {
		i := slices.IndexFunc(s.stored, func(o *object) bool {
			return o.kind == k && (name == "" || o.name() == name) && o.meta.GetDeletionTimestamp() == nil
		})
		if i < 0 {
			return false
		}
		if k == s.x.own() {
			s.hold(s.stored[i].uid())
		}
		s.delete(s.stored[i])
		return true
	}}
}

// changes returns the edit of the spec of an object, if that makes a difference. then may record it.
func changes(what string, k kind, name string, change func(meta metav1.Object), then func(s *state, o *object)) edit {
	return edit{harmless: true, name: what, do: func(s *state) bool {
		o := s.find(k, name)
		if o == nil || o.change(what, change) == o.content {
			return false
		}
		s.put(o.change(what+" in a new generation", func(meta metav1.Object) {
			change(meta)
			meta.SetGeneration(meta.GetGeneration() + 1)
		}))
		if then != nil {
			then(s, s.find(k, name))
		}
		return true
	}}
}

// creates returns the edit that creates an object.
func creates(what string, object metav1.Object) edit {
	return edit{name: what, do: func(s *state) bool {
		return s.find(kindOf(object), object.GetName()) == nil && s.create(intern(clone(object))) != nil
	}}
}

// strips returns the edit that removes something from the first Pod of an At.
func strips(what string, change func(meta metav1.Object)) edit {
	return edit{name: "removes " + what + " of the Pod", do: func(s *state) bool {
		i := slices.IndexFunc(s.stored, func(o *object) bool {
			return o.kind == pods && o.meta.GetLabels()[v1alpha1.LabelAtUID] != "" && plan.ControllerOf(o.pod()) != nil
		})
		if i >= 0 {
			s.put(s.stored[i].change("strip "+what, change))
		}
		return i >= 0
	}}
}

// holdObject records that what was suspended must not start anything.
func holdObject(s *state, o *object) { s.hold(o.uid()) }

var (
	deleteAt         = deletes("the At", ats, "at")
	deleteChild      = deletes("the At of a node", ats, "at-a")
	deleteCronAt     = deletes("the CronAt", cronAts, "cron")
	deleteDeployment = deletes("the Deployment", deployments, "web")
	removeNode       = deletes("node a", nodes, "a")
	deletePod        = deletes("the Pod", pods, "")
	deleteScheduled  = deletes("the At of a time", ats, "")
	unfreeze         = deletes("the Freeze", freezes, "freeze")

	suspend       = changes("suspends the At", ats, "at", func(meta metav1.Object) { meta.(*v1alpha1.At).Spec.Suspend = ptr.To(true) }, holdObject)
	suspendCronAt = changes("suspends the CronAt", cronAts, "cron", func(meta metav1.Object) { meta.(*v1alpha1.CronAt).Spec.Suspend = ptr.To(true) }, holdObject)
	resume        = changes("resumes the At", ats, "at", func(meta metav1.Object) { meta.(*v1alpha1.At).Spec.Suspend = nil }, func(s *state, o *object) {
		s.held = slices.DeleteFunc(slices.Clone(s.held), func(h hold) bool { return h.until == 0 && h.uid == o.uid() })
	})
	// postpone moves the At, as long as the API server allows that.
	postpone = changes("moves the At to a later time", ats, "at", func(meta metav1.Object) {
		if at := meta.(*v1alpha1.At); at.Status.Phase == v1alpha1.PhasePending && at.Generation == 1 {
			at.Spec.Schedule = epoch.Add(2 * due * time.Second).Format(time.RFC3339)
		}
	}, func(s *state, o *object) { s.holdUntilDue(o.uid(), o.at(), s.now) })

	createAgain = creates("creates the At again", newAt(nil))
	addNode     = creates("adds node c", newNode("c"))
	// takePodName creates a Pod that has nothing to do with the At.
	takePodName = creates("creates another Pod of the name", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "at-pod"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}})

	stripLabel = strips("the label", func(meta metav1.Object) { delete(meta.GetLabels(), v1alpha1.LabelAtUID) })
	stripOwner = strips("the owner", func(meta metav1.Object) { meta.SetOwnerReferences(nil) })

	cordon = changes("cordons node b", nodes, "b", func(meta metav1.Object) { meta.(*corev1.Node).Spec.Unschedulable = true }, nil)
	scale  = changes("scales the Deployment", deployments, "web", func(meta metav1.Object) { meta.(*appsv1.Deployment).Spec.Replicas = ptr.To[int32](2) }, nil)
)

var replaceNode = edit{name: "removes node a, and adds it again", do: func(s *state) bool {
	return removeNode.do(s) && s.create(intern(newNode("a"))) != nil
}}

// isForeignPod reports whether a Pod has never belonged to an At.
func isForeignPod(o *object) bool {
	return o != nil && o.kind == pods && ownerOf(o.uid()) == ""
}

// annotate returns the edit of the annotations of the Deployment.
func annotate(what string, annotations map[string]string) edit {
	return changes(what, deployments, "web", func(meta metav1.Object) { meta.(*appsv1.Deployment).Spec.Template.Annotations = annotations }, nil)
}

var restartIt = edit{name: "restarts the Deployment", do: func(s *state) bool {
	s.started = insert(s.started, s.restarting()+"_user")
	now := s.clock().Format(time.RFC3339)
	return annotate("annotate "+now, map[string]string{rollout.AnnotationRestartedAt: now}).do(s)
}}

// undoRestart removes the lock of the restart. By the guarantees, the restart may happen again if
// it was not recorded.
var undoRestart = edit{name: "undoes the restart", do: func(s *state) bool {
	if at := s.find(ats, "at"); !s.x.strict && at != nil && (at.at().Status.Restart == nil || at.at().Status.Restart.RestartedAt == nil) {
		s.started = slices.Clone(s.started)
		for i, uid := range s.started {
			if uid == at.uid()+"_restart" {
				s.started[i] += "-undone"
			}
		}
	}
	return annotate("undo", nil).do(s)
}}
