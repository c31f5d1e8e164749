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

// editAt changes the spec of the At.
func (s *state) editAt(what string, change func(at *v1alpha1.At)) {
	s.put(s.find(ats, "at").change(what, func(meta metav1.Object) {
		at := meta.(*v1alpha1.At)
		change(at)
		at.Generation++
	}))
}

var suspend = edit{harmless: true, name: "suspends the At", do: func(s *state) bool {
	o := s.find(ats, "at")
	if o == nil || ptr.Deref(o.at().Spec.Suspend, false) {
		return false
	}
	s.hold(o.uid())
	s.editAt("suspend", func(at *v1alpha1.At) { at.Spec.Suspend = ptr.To(true) })
	return true
}}

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

var deleteAt = edit{name: "deletes the At", do: func(s *state) bool {
	o := s.find(ats, "at")
	if o == nil {
		return false
	}
	s.hold(o.uid())
	s.delete(o)
	return true
}}

var createAgain = edit{name: "creates the At again", do: func(s *state) bool {
	if s.find(ats, "at") != nil {
		return false
	}
	s.create(intern(clone(s.x.scenario.objects[0])))
	return true
}}

var deleteChild = edit{name: "deletes the At of a node", do: func(s *state) bool {
	o := s.find(ats, "at-a")
	if o == nil || o.meta.GetDeletionTimestamp() != nil {
		return false
	}
	s.hold(o.uid())
	s.delete(o)
	return true
}}

var removeNode = edit{name: "removes node a", do: func(s *state) bool {
	o := s.find(nodes, "a")
	if o == nil {
		return false
	}
	s.delete(o)
	return true
}}

var replaceNode = edit{name: "removes node a, and adds it again", do: func(s *state) bool {
	return removeNode.do(s) && s.create(intern(newNode("a"))) != nil
}}

var addNode = edit{name: "adds node c", do: func(s *state) bool {
	return s.find(nodes, "c") == nil && s.create(intern(newNode("c"))) != nil
}}

var cordon = edit{harmless: true, name: "cordons node b", do: func(s *state) bool {
	o := s.find(nodes, "b")
	if o == nil || o.meta.(*corev1.Node).Spec.Unschedulable {
		return false
	}
	s.put(o.change("cordon", func(meta metav1.Object) { meta.(*corev1.Node).Spec.Unschedulable = true }))
	return true
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

var stripLabel = edit{name: "removes the label of the Pod", do: func(s *state) bool {
	o := s.firstPod(func(pod *corev1.Pod) bool {
		return pod.Labels[v1alpha1.LabelAtUID] != "" && plan.ControllerOf(pod) != nil
	})
	if o == nil {
		return false
	}
	s.put(o.change("strip label", func(meta metav1.Object) { delete(meta.GetLabels(), v1alpha1.LabelAtUID) }))
	return true
}}

var stripOwner = edit{name: "removes the owner of the Pod", do: func(s *state) bool {
	o := s.firstPod(func(pod *corev1.Pod) bool {
		return pod.Labels[v1alpha1.LabelAtUID] != "" && plan.ControllerOf(pod) != nil
	})
	if o == nil {
		return false
	}
	s.put(o.change("strip owner", func(meta metav1.Object) { meta.SetOwnerReferences(nil) }))
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

var scale = edit{harmless: true, name: "scales the Deployment", do: func(s *state) bool {
	o := s.find(deployments, "web")
	if o == nil {
		return false
	}
	s.put(o.change("scale", func(meta metav1.Object) {
		d := meta.(*appsv1.Deployment)
		d.Spec.Replicas = ptr.To[int32](2)
		d.Generation++
	}))
	return true
}}

var deleteDeployment = edit{name: "deletes the Deployment", do: func(s *state) bool {
	o := s.find(deployments, "web")
	if o == nil {
		return false
	}
	s.delete(o)
	return true
}}

var suspendCronAt = edit{name: "suspends the CronAt", do: func(s *state) bool {
	o := s.find(cronAts, "cron")
	if o == nil || ptr.Deref(o.cronAt().Spec.Suspend, false) {
		return false
	}
	s.hold(o.uid())
	s.put(o.change("suspend", func(meta metav1.Object) {
		meta.(*v1alpha1.CronAt).Spec.Suspend = ptr.To(true)
		meta.SetGeneration(2)
	}))
	return true
}}

var deleteCronAt = edit{name: "deletes the CronAt", do: func(s *state) bool {
	o := s.find(cronAts, "cron")
	if o == nil {
		return false
	}
	s.hold(o.uid())
	s.delete(o)
	return true
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
