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

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// cluster returns what the kubelet, the garbage collector and the controllers of Kubernetes
// can do.
func (x *explorer) cluster(s *state) []transition {
	var all []transition
	for _, o := range s.stored {
		add := func(what string, do func(n *state)) { all = append(all, s.then(what+" "+o.name(), do)) }
		if owner := metav1.GetControllerOfNoCopy(o.meta); owner != nil && o.meta.GetDeletionTimestamp() == nil && s.withUID(owner.UID) == nil {
			add("the garbage collector deletes", func(n *state) { n.delete(o) })
		}
		switch o.kind {
		case ats:
			if x.own() == cronAts {
				s.runAt(o, add)
			}
		case pods:
			pod := o.pod()
			ends := func(code int32) func(n *state) { return func(n *state) { n.endPod(o, code) } }
			node := pod.Annotations[v1alpha1.AnnotationNode]
			hasNode := node == "" || s.find(nodes, node) != nil
			switch phase, deleted := pod.Status.Phase, pod.DeletionTimestamp != nil; {
			case phase == corev1.PodPending && !deleted && hasNode:
				add("the kubelet starts", func(n *state) { n.startPod(o) })
			case phase == corev1.PodRunning && (deleted || !hasNode):
				add("the kubelet kills", ends(137))
			case phase == corev1.PodRunning:
				add("the command succeeds in", ends(0))
				if x.scenario.fails {
					add("the command fails in", ends(1))
				}
			}
		case deployments:
			if d, ok := o.meta.(*appsv1.Deployment); ok && d.Generation > d.Status.ObservedGeneration {
				add("the Pods are replaced of", func(n *state) {
					n.put(o.change("roll out", func(meta metav1.Object) {
						d := meta.(*appsv1.Deployment)
						number := *d.Spec.Replicas
						d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: number, UpdatedReplicas: number, AvailableReplicas: number}
					}))
				})
			}
		}
	}
	return all
}

// runAt lets an At of a CronAt start and end. The other scenarios explore the controller of Ats.
func (s *state) runAt(o *object, add func(what string, do func(n *state))) {
	at := o.at()
	become := func(what string, change func(at *v1alpha1.At)) func(n *state) {
		return func(n *state) {
			n.put(o.change(fmt.Sprint(what, n.clock().Unix()), func(meta metav1.Object) { change(meta.(*v1alpha1.At)) }))
		}
	}
	if at.DeletionTimestamp == nil && at.Status.Phase == v1alpha1.PhasePending {
		add("the Pod starts of", become("start", func(at *v1alpha1.At) { at.Status.Phase = v1alpha1.PhaseRunning }))
	}
	if at.DeletionTimestamp == nil && at.Status.Phase == v1alpha1.PhaseRunning {
		add("the command ends of", become("end", func(at *v1alpha1.At) {
			at.Status.Phase, at.Status.Reason = v1alpha1.PhaseDone, v1alpha1.ReasonCompleted
			at.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonCompleted, LastTransitionTime: metav1.Time{Time: s.clock()}}}
		}))
	}
	if slices.Contains(at.Finalizers, metav1.FinalizerDeleteDependents) {
		add("the Pods are gone of", become("gone", func(at *v1alpha1.At) {
			at.Finalizers = slices.DeleteFunc(at.Finalizers, func(name string) bool { return name == metav1.FinalizerDeleteDependents })
		}))
	}
}

func (s *state) startPod(o *object) {
	s.put(o.change("start", func(meta metav1.Object) {
		pod := meta.(*corev1.Pod)
		pod.Spec.NodeName, pod.Status.Phase = cmp.Or(pod.Annotations[v1alpha1.AnnotationNode], "a"), corev1.PodRunning
	}))
	s.recordStart(o)
}

// endPod ends the command of a Pod. If the Pod is being deleted, the kubelet also deletes it for good.
func (s *state) endPod(o *object, code int32) {
	s.ended = append(slices.Clip(s.ended), ended{o.uid(), code})
	slices.SortFunc(s.ended, func(a, b ended) int { return cmp.Compare(a.uid, b.uid) })
	s.put(o.change(fmt.Sprint("end ", code), func(meta metav1.Object) {
		pod := meta.(*corev1.Pod)
		pod.Status.Phase = corev1.PodSucceeded
		if code != 0 {
			pod.Status.Phase = corev1.PodFailed
		}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name:  pod.Spec.Containers[0].Name,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error"}},
		}}
		if pod.DeletionTimestamp != nil {
			pod.DeletionGracePeriodSeconds = ptr.To[int64](0)
		}
	}))
}
