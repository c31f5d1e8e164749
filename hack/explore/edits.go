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
	"fmt"
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

// deletes returns the edit that deletes an object. What the controllers control must not start
// anything from then on.
func deletes(what string, k kind, name string) edit {
	return edit{harmless: k == freezes, name: "deletes " + what, do: func(s *state) bool {
		o := s.find(k, name)
		if o == nil {
			return false
		}
		if k == s.x.own() {
			s.hold(o.uid())
		}
		s.delete(o)
		return true
	}}
}

// changes returns the edit of the spec of an object, if that makes a difference.
func changes(what string, k kind, name string, change func(meta metav1.Object)) edit {
	return edit{harmless: true, name: what, do: func(s *state) bool {
		o := s.find(k, name)
		if o == nil || o.change(what, change) == o.content {
			return false
		}
		s.put(o.change(what+" in a new generation", func(meta metav1.Object) {
			change(meta)
			meta.SetGeneration(meta.GetGeneration() + 1)
		}))
		return true
	}}
}

// suspends returns the edit that suspends an object: it must not start anything from then on.
func suspends(what string, k kind, name string, change func(meta metav1.Object)) edit {
	e := changes("suspends "+what, k, name, change)
	return edit{harmless: true, name: e.name, do: func(s *state) bool {
		if !e.do(s) {
			return false
		}
		s.hold(s.find(k, name).uid())
		return true
	}}
}

// strips returns the edit that removes something from the first Pod of an At.
func strips(what string, change func(meta metav1.Object)) edit {
	return edit{name: "removes " + what + " of the Pod", do: func(s *state) bool {
		o := s.firstPod(func(pod *corev1.Pod) bool {
			return pod.Labels[v1alpha1.LabelAtUID] != "" && plan.ControllerOf(pod) != nil
		})
		if o == nil {
			return false
		}
		s.put(o.change("strip "+what, change))
		return true
	}}
}

var (
	deleteAt         = deletes("the At", ats, "at")
	deleteChild      = deletes("the At of a node", ats, "at-a")
	deleteCronAt     = deletes("the CronAt", cronAts, "cron")
	deleteDeployment = deletes("the Deployment", deployments, "web")
	removeNode       = deletes("node a", nodes, "a")
	unfreeze         = deletes("the Freeze", freezes, "freeze")

	suspend       = suspends("the At", ats, "at", func(meta metav1.Object) { meta.(*v1alpha1.At).Spec.Suspend = ptr.To(true) })
	suspendCronAt = suspends("the CronAt", cronAts, "cron", func(meta metav1.Object) { meta.(*v1alpha1.CronAt).Spec.Suspend = ptr.To(true) })

	stripLabel = strips("the label", func(meta metav1.Object) { delete(meta.GetLabels(), v1alpha1.LabelAtUID) })
	stripOwner = strips("the owner", func(meta metav1.Object) { meta.SetOwnerReferences(nil) })

	cordon = changes("cordons node b", nodes, "b", func(meta metav1.Object) { meta.(*corev1.Node).Spec.Unschedulable = true })
	scale  = changes("scales the Deployment", deployments, "web", func(meta metav1.Object) { meta.(*appsv1.Deployment).Spec.Replicas = ptr.To[int32](2) })
)

// editAt changes the spec of the At.
func (s *state) editAt(what string, change func(at *v1alpha1.At)) {
	s.put(s.find(ats, "at").change(what, func(meta metav1.Object) {
		at := meta.(*v1alpha1.At)
		change(at)
		at.Generation++
	}))
}

var resume = edit{harmless: true, name: "resumes the At", do: func(s *state) bool {
	o := s.find(ats, "at")
	if o == nil || !ptr.Deref(o.at().Spec.Suspend, false) {
		return false
	}
	s.held = slices.DeleteFunc(slices.Clone(s.held), func(h hold) bool { return h.until == 0 && h.uid == o.uid() })
	s.editAt("resume", func(at *v1alpha1.At) { at.Spec.Suspend = nil })
	return true
}}

// postpone moves the At, as long as the API server allows that.
var postpone = edit{harmless: true, name: "moves the At to a later time", do: func(s *state) bool {
	o := s.find(ats, "at")
	if o == nil || o.at().Status.Phase != v1alpha1.PhasePending || o.at().Generation > 1 {
		return false
	}
	s.editAt("postpone", func(at *v1alpha1.At) { at.Spec.Schedule = epoch.Add(2 * due * time.Second).Format(time.RFC3339) })
	s.holdUntilDue(o.uid(), s.find(ats, "at").at(), s.now)
	return true
}}

var createAgain = edit{name: "creates the At again", do: func(s *state) bool {
	if s.find(ats, "at") != nil {
		return false
	}
	s.create(intern(clone(s.x.scenario.objects[0])))
	return true
}}

var replaceNode = edit{name: "removes node a, and adds it again", do: func(s *state) bool {
	return removeNode.do(s) && s.create(intern(newNode("a"))) != nil
}}

var addNode = edit{name: "adds node c", do: func(s *state) bool {
	return s.find(nodes, "c") == nil && s.create(intern(newNode("c"))) != nil
}}

// firstPod returns the first Pod with a property, or nil.
func (s *state) firstPod(has func(pod *corev1.Pod) bool) *object {
	for _, o := range s.stored {
		if o.kind == pods && has(o.pod()) {
			return o
		}
	}
	return nil
}

var deletePod = edit{name: "deletes the Pod", do: func(s *state) bool {
	o := s.firstPod(func(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil })
	if o == nil {
		return false
	}
	s.delete(o)
	return true
}}

// takePodName creates a Pod that has nothing to do with the At.
var takePodName = edit{name: "creates another Pod of the name", do: func(s *state) bool {
	if s.find(pods, "at-pod") != nil {
		return false
	}
	s.create(intern(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "at-pod"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}))
	return true
}}

// isForeignPod reports whether a Pod has never belonged to an At.
func isForeignPod(o *object) bool {
	return o != nil && o.kind == pods && ownerOf(o.uid()) == ""
}

// annotate changes the annotation of the Deployment.
func (s *state) annotate(value string) bool {
	o := s.find(deployments, "web")
	if o == nil || o.meta.(*appsv1.Deployment).Spec.Template.Annotations[rollout.AnnotationRestartedAt] == value {
		return false
	}
	s.put(o.change(fmt.Sprint("annotate ", value), func(meta metav1.Object) {
		d := meta.(*appsv1.Deployment)
		d.Spec.Template.Annotations = map[string]string{rollout.AnnotationRestartedAt: value}
		d.Generation++
	}))
	return true
}

var restartIt = edit{name: "restarts the Deployment", do: func(s *state) bool {
	s.started = insert(s.started, s.restarting()+"_user")
	return s.annotate(s.clock().Format(time.RFC3339))
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
	return s.annotate("")
}}

var deleteScheduled = edit{name: "deletes the At of a time", do: func(s *state) bool {
	for _, o := range s.stored {
		if o.kind == ats && o.meta.GetDeletionTimestamp() == nil {
			s.delete(o)
			return true
		}
	}
	return false
}}
