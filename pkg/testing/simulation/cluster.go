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
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// cluster is what else works in a cluster. Its parts see each change some time later, and their
// own requests succeed.
type cluster struct {
	live        map[types.UID]metav1.Object
	nodes       map[string]types.UID
	terminating map[string]bool // namespaces that are being deleted
	quota       map[string]bool // namespaces without room for another Pod
	noImages    map[string]bool // namespaces whose images cannot be pulled
}

func newCluster() cluster {
	return cluster{live: map[types.UID]metav1.Object{}, nodes: map[string]types.UID{}, terminating: map[string]bool{}, quota: map[string]bool{}, noImages: map[string]bool{}}
}

// objects returns the objects of a type, in the order of their creation.
func objects[T metav1.Object](w *World, where func(T) bool) []T {
	var found []T
	for _, uid := range slices.SortedFunc(maps.Keys(w.live), byAge) {
		if object, ok := w.live[uid].(T); ok && where(object) {
			found = append(found, object)
		}
	}
	return found
}

// byAge orders UIDs of the API server in memory, which are numbers.
func byAge(a, b types.UID) int { return cmp.Or(len(a)-len(b), strings.Compare(string(a), string(b))) }

// changed is called with each change. What follows happens later.
func (w *World) changed(eventType watch.EventType, object metav1.Object) {
	uid := object.GetUID()
	if eventType == watch.Deleted {
		delete(w.live, uid)
		w.after(w.between(100*time.Millisecond, 3*time.Second), func() { w.collect(uid) })
		return
	}
	w.live[uid] = object
	if eventType == watch.Added && len(object.GetOwnerReferences()) > 0 {
		w.after(w.between(time.Second, 10*time.Second), func() { w.collectUnowned(uid) })
	}
	if object.GetDeletionTimestamp() != nil && slices.Contains(object.GetFinalizers(), metav1.FinalizerDeleteDependents) {
		w.after(w.between(10*time.Millisecond, time.Second), func() { w.collectForeground(uid) })
	}
	switch o := object.(type) {
	case *corev1.Pod:
		if eventType == watch.Added {
			w.after(w.between(time.Millisecond, 50*time.Millisecond), func() { w.schedule(uid) })
		} else if o.DeletionTimestamp != nil && o.Spec.NodeName != "" && ptr.Deref(o.DeletionGracePeriodSeconds, 0) > 0 {
			w.after(w.between(50*time.Millisecond, 5*time.Second), func() { w.stopContainer(uid) })
		}
	case *appsv1.Deployment:
		if o.Generation != o.Status.ObservedGeneration {
			w.after(w.between(200*time.Millisecond, 5*time.Second), func() { w.rollOut(uid, 1) })
			w.after(w.between(5*time.Second, 30*time.Second), func() { w.rollOut(uid, 3) })
		}
	}
}

// tolerate stops the simulation for an error, unless an object is gone meanwhile.
func tolerate(err error) {
	if err != nil && !apierrors.IsNotFound(err) {
		panic(err)
	}
}

func (w *World) pod(uid types.UID) *corev1.Pod {
	pod, ok := w.live[uid].(*corev1.Pod)
	if !ok {
		return nil
	}
	return pod.DeepCopy()
}

func (w *World) updateStatus(pod *corev1.Pod) {
	must(w.kube.CoreV1().Pods(pod.Namespace).UpdateStatus(w.t.Context(), pod, metav1.UpdateOptions{}))
}

// schedule binds a Pod to a node, where its container starts.
func (w *World) schedule(uid types.UID) {
	pod := w.pod(uid)
	if pod == nil || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
		return
	}
	node := nodeOf(pod)
	if names := slices.Sorted(maps.Keys(w.nodes)); node == "" && len(names) > 0 {
		node = names[w.random.IntN(len(names))]
	}
	if _, exists := w.nodes[node]; !exists {
		w.after(20*time.Second, func() { w.schedule(uid) })
		return
	}
	pod.Spec.NodeName = node
	must(w.kube.CoreV1().Pods(pod.Namespace).Update(w.t.Context(), pod, metav1.UpdateOptions{}))
	pull := w.between(50*time.Millisecond, 2*time.Second)
	if w.chance(3) {
		pull = w.between(time.Second, 3*time.Minute)
	}
	on := w.nodes[node]
	w.after(pull, func() { w.startContainer(uid, on) })
}

// nodeOf returns the node on which a Pod must run, if there is one.
func nodeOf(pod *corev1.Pod) string {
	if affinity := pod.Spec.Affinity; affinity != nil && affinity.NodeAffinity != nil && affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, field := range term.MatchFields {
				return field.Values[0]
			}
		}
	}
	return ""
}

// startContainer starts the command of a Pod, if its node still exists.
func (w *World) startContainer(uid, node types.UID) {
	pod := w.pod(uid)
	if pod == nil || pod.DeletionTimestamp != nil || w.nodes[pod.Spec.NodeName] != node || pod.Status.Phase != corev1.PodPending {
		return
	}
	command := pod.Spec.Containers[0].Command
	isRehearsal := pod.Labels[v1alpha1.LabelRehearsalOf] != ""
	switch {
	case w.noImages[pod.Namespace]:
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}}
		w.updateStatus(pod)
		w.after(20*time.Second, func() { w.startContainer(uid, node) })
		return
	case isRehearsal && len(command) == 1:
		pod.Status.Phase = corev1.PodFailed
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			Reason: "StartError", ExitCode: 128, Message: fmt.Sprintf("exec: %q: stat %s: no such file or directory", command[0], command[0]),
		}}}}
		w.updateStatus(pod)
		return
	case isRehearsal:
		panic(fmt.Sprint("a rehearsal runs ", command))
	case !w.quiet && w.chance(5):
		pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, "OutOfcpu", "Pod was rejected: Node didn't have enough resource: cpu"
		pod.Status.StartTime = &metav1.Time{Time: w.clock.Now()}
		pod.ManagedFields = []metav1.ManagedFieldsEntry{{Subresource: "status", Time: pod.Status.StartTime}}
		w.updateStatus(pod)
		return
	}
	var seconds float64
	var code int32
	if _, err := fmt.Sscanf(command[2], "run %f %d", &seconds, &code); err != nil {
		panic(err)
	}
	now := metav1.Time{Time: w.clock.Now()}
	pod.Status.Phase, pod.Status.StartTime = corev1.PodRunning, &now
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}}}
	w.updateStatus(pod)
	w.after(time.Duration(seconds*float64(time.Second)), func() {
		if pod := w.pod(uid); pod != nil && w.nodes[pod.Spec.NodeName] == node {
			w.endContainer(pod, code)
			if !w.quiet && w.chance(20) {
				w.delete(pod) // A user cleans up.
			}
		}
	})
}

// endContainer records that a container has ended.
func (w *World) endContainer(pod *corev1.Pod, code int32) {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return
	}
	now := metav1.Time{Time: w.clock.Now()}
	for i := range pod.Status.ContainerStatuses {
		if running := pod.Status.ContainerStatuses[i].State.Running; running != nil {
			pod.Status.ContainerStatuses[i].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, StartedAt: running.StartedAt, FinishedAt: now}}
		}
	}
	pod.Status.Phase = corev1.PodSucceeded
	if code != 0 {
		pod.Status.Phase = corev1.PodFailed
	}
	w.updateStatus(pod)
}

// stopContainer stops the container of a deleted Pod, and removes the Pod.
func (w *World) stopContainer(uid types.UID) {
	if pod := w.pod(uid); pod != nil && w.nodes[pod.Spec.NodeName] != "" {
		w.endContainer(pod, 143)
		w.forceDelete(uid)
	}
}

func (w *World) forceDelete(uid types.UID) {
	if pod := w.pod(uid); pod != nil {
		tolerate(w.kube.CoreV1().Pods(pod.Namespace).Delete(w.t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(uid))}))
	}
}

// removeNode removes a node and adds it again later. Its containers are gone. After some time,
// so are its Pods.
func (w *World) removeNode(name string) {
	w.tracef("remove node %s", name)
	tolerate(w.kube.CoreV1().Nodes().Delete(w.t.Context(), name, metav1.DeleteOptions{}))
	delete(w.nodes, name)
	w.after(40*time.Second, func() {
		for _, pod := range objects(w, func(pod *corev1.Pod) bool { return pod.Spec.NodeName == name }) {
			if pod.CreationTimestamp.Add(30 * time.Second).Before(w.clock.Now()) {
				w.endContainer(pod.DeepCopy(), 137)
				w.forceDelete(pod.UID)
			}
		}
	})
	w.after(w.between(time.Minute, 20*time.Minute), func() { w.addNode(name) })
}

func (w *World) addNode(name string) {
	pool := "x"
	if name == "node-3" {
		pool = "y"
	}
	node := must(w.kube.CoreV1().Nodes().Create(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, "pool": pool}}}, metav1.CreateOptions{}))
	w.nodes[name] = node.UID
}

// rollOut reports that some of three Pods of a Deployment are updated.
func (w *World) rollOut(uid types.UID, updated int32) {
	found, ok := w.live[uid].(*appsv1.Deployment)
	if !ok {
		return
	}
	deployment := found.DeepCopy()
	deployment.Status = appsv1.DeploymentStatus{ObservedGeneration: deployment.Generation, Replicas: 3, UpdatedReplicas: updated, AvailableReplicas: 3, ReadyReplicas: 3}
	must(w.kube.AppsV1().Deployments(deployment.Namespace).UpdateStatus(w.t.Context(), deployment, metav1.UpdateOptions{}))
}

// delete deletes an object.
func (w *World) delete(object metav1.Object) {
	var client interface {
		Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
	}
	switch namespace := object.GetNamespace(); object.(type) {
	case *corev1.Pod:
		client = w.kube.CoreV1().Pods(namespace)
	case *v1alpha1.At:
		client = w.cnat.CnatV1alpha1().Ats(namespace)
	case *v1alpha1.Freeze:
		client = w.cnat.CnatV1alpha1().Freezes(namespace)
	case *v1alpha1.CronAt:
		client = w.cnat.CnatV1alpha1().CronAts(namespace)
	default:
		return // It stays.
	}
	tolerate(client.Delete(w.t.Context(), object.GetName(), *metav1.NewPreconditionDeleteOptions(string(object.GetUID()))))
}

func (w *World) dependents(owner types.UID) []metav1.Object {
	return objects(w, func(object metav1.Object) bool {
		return slices.ContainsFunc(object.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == owner })
	})
}

// collect deletes what a removed object has owned.
func (w *World) collect(owner types.UID) {
	for _, object := range w.dependents(owner) {
		if object.GetDeletionTimestamp() == nil {
			w.delete(object)
		}
	}
}

// collectUnowned deletes an object whose owner was removed before it was created.
func (w *World) collectUnowned(uid types.UID) {
	object := w.live[uid]
	if object == nil || object.GetDeletionTimestamp() != nil {
		return
	}
	for _, owner := range object.GetOwnerReferences() {
		if w.live[owner.UID] == nil {
			w.delete(object)
		}
	}
}

// collectForeground deletes what an object owns, and then the object.
func (w *World) collectForeground(uid types.UID) {
	object := w.live[uid]
	if object == nil {
		return
	}
	if dependents := w.dependents(uid); len(dependents) > 0 {
		w.collect(uid)
		w.after(time.Second, func() { w.collectForeground(uid) })
		return
	}
	if at, ok := object.(*v1alpha1.At); ok {
		at = at.DeepCopy()
		at.Finalizers = slices.DeleteFunc(at.Finalizers, func(f string) bool { return f == metav1.FinalizerDeleteDependents })
		must(w.cnat.CnatV1alpha1().Ats(at.Namespace).Update(w.t.Context(), at, metav1.UpdateOptions{}))
	}
}

// deleteNamespace deletes what is in a namespace, which then exists again.
func (w *World) deleteNamespace(name string) {
	w.terminating[name] = true
	left := objects(w, func(object metav1.Object) bool { return object.GetNamespace() == name })
	left = slices.DeleteFunc(left, func(object metav1.Object) bool {
		_, isDeployment := object.(*appsv1.Deployment)
		return isDeployment
	})
	if len(left) == 0 {
		w.tracef("namespace %s is gone", name)
		delete(w.terminating, name)
		return
	}
	for _, object := range left {
		if object.GetDeletionTimestamp() == nil {
			w.delete(object)
		}
	}
	w.after(w.between(time.Second, 5*time.Second), func() { w.deleteNamespace(name) })
}
