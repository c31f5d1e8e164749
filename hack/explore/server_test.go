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
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// explored sends requests to the API server of the explorer.
type explored struct {
	*replayer
	state *state
}

// send sends the request of do. That sends it again with the answer, as a replay does.
func (e *explored) send(do func() (metav1.Object, error)) (metav1.Object, error) {
	e.answers, e.pending = nil, nil
	if object, err := do(); e.pending == nil {
		return object, err
	}
	e.answers, e.pending = []answer{e.state.do(e.pending)}, nil
	return do()
}

// dialogue sends requests, and notes what matters of the answers.
type dialogue struct {
	ctx      context.Context
	kube     kubernetes.Interface
	cnat     clientset.Interface
	send     func(do func() (metav1.Object, error)) (metav1.Object, error)
	kubelet  func(pod *corev1.Pod, phase corev1.PodPhase) // starts or ends a Pod
	versions map[types.UID]string
	answers  []string
}

// note sends a request, and notes its answer. It returns the object of it.
func (d *dialogue) note(what string, do func() (metav1.Object, error)) metav1.Object {
	object, err := d.send(do)
	if err != nil {
		answer := fmt.Sprint(apierrors.ReasonForError(err))
		if cause, ok := apierrors.StatusCause(err, metav1.CauseTypeFieldValueInvalid); ok {
			answer += " " + cause.Field
		}
		d.answers = append(d.answers, what+": "+answer)
		return nil
	}
	if object == nil {
		d.answers = append(d.answers, what+": ok")
		return nil
	}
	generation := object.GetGeneration()
	if _, isPod := object.(*corev1.Pod); isPod {
		generation = 0 // Nobody looks at it.
	}
	changed := d.versions[object.GetUID()] != object.GetResourceVersion()
	d.versions[object.GetUID()] = object.GetResourceVersion()
	d.answers = append(d.answers, fmt.Sprintf("%s: generation: %d, changed: %t, deleted: %t, grace: %d, finalizers: %v, owners: %d", what, generation, changed,
		object.GetDeletionTimestamp() != nil, ptr.Deref(object.GetDeletionGracePeriodSeconds(), -1), object.GetFinalizers(), len(object.GetOwnerReferences())))
	return object
}

// client has the requests for one kind.
type client[T metav1.Object] interface {
	Create(ctx context.Context, object T, options metav1.CreateOptions) (T, error)
	Get(ctx context.Context, name string, options metav1.GetOptions) (T, error)
	Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
	Patch(ctx context.Context, name string, patchType types.PatchType, body []byte, options metav1.PatchOptions, subresources ...string) (T, error)
}

// actions sends the requests of the controllers for one object.
type actions[T metav1.Object] struct {
	*dialogue
	client    client[T]
	patchType types.PatchType
	name      string
}

func (a actions[T]) create(what string, object T) {
	a.note("create "+what, func() (metav1.Object, error) { return a.client.Create(a.ctx, object, metav1.CreateOptions{}) })
}

// try creates an object in a dry-run.
func (a actions[T]) try(what string, object T) {
	a.note("try "+what, func() (metav1.Object, error) {
		_, err := a.client.Create(a.ctx, object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return nil, err
	})
}

func (a actions[T]) get(what string) metav1.Object {
	return a.note("get "+a.name+" "+what, func() (metav1.Object, error) { return a.client.Get(a.ctx, a.name, metav1.GetOptions{}) })
}

// remove deletes what was read.
func (a actions[T]) remove(what string, read metav1.Object, change func(options *metav1.DeleteOptions)) {
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(read.GetUID()), ResourceVersion: ptr.To(read.GetResourceVersion())}}
	if change != nil {
		change(&options)
	}
	a.note("delete "+a.name+" "+what, func() (metav1.Object, error) { return nil, a.client.Delete(a.ctx, a.name, options) })
}

func (a actions[T]) patch(what, body string, subresources ...string) {
	a.note("patch "+a.name+" "+what, func() (metav1.Object, error) {
		return a.client.Patch(a.ctx, a.name, a.patchType, []byte(body), metav1.PatchOptions{}, subresources...)
	})
}

// preconditions is the metadata of a patch, with more behind it.
func preconditions(of metav1.Object, more string) string {
	return fmt.Sprintf(`"metadata":{"uid":%q,"resourceVersion":%q%s}`, of.GetUID(), of.GetResourceVersion(), more)
}

func (d *dialogue) run() {
	d.runPods()
	ats := actions[*v1alpha1.At]{d, d.cnat.CnatV1alpha1().Ats(namespace), types.MergePatchType, "at-a"}
	at := newAt(nil)
	at.Name, at.Finalizers = "at-a", []string{v1alpha1.FinalizerTracking}
	runSpec(ats, at)
	cronAts := actions[*v1alpha1.CronAt]{d, d.cnat.CnatV1alpha1().CronAts(namespace), types.MergePatchType, "cron"}
	runSpec(cronAts, newCronAt(v1alpha1.AllowConcurrent))
}

func (d *dialogue) runPods() {
	pods := actions[*corev1.Pod]{d, d.kube.CoreV1().Pods(namespace), types.StrategicMergePatchType, "pod"}
	newPod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: namespace, Finalizers: []string{v1alpha1.FinalizerTracking}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}},
	}
	release := fmt.Sprintf(`,"$deleteFromPrimitiveList/finalizers":[%q]`, v1alpha1.FinalizerTracking)
	otherUID := func(options *metav1.DeleteOptions) { options.Preconditions.UID = ptr.To[types.UID]("other") }
	otherVersion := func(options *metav1.DeleteOptions) { options.Preconditions.ResourceVersion = ptr.To("1000") }
	pods.get("before it exists")
	for _, phase := range []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded} {
		for _, first := range []string{"deleted", "released", "ended"} {
			what := fmt.Sprintf("%s, which is %s first", phase, first)
			pods.try(what, newPod.DeepCopy())
			pods.create(what, newPod.DeepCopy())
			pods.create(what+", again", newPod.DeepCopy())
			pod := pods.get("after its creation")
			pods.patch("of another UID", `{"metadata":{"uid":"other"`+release+`}}`)
			pods.patch("without a change", `{"metadata":{"$deleteFromPrimitiveList/finalizers":["x/y"]}}`)
			pods.remove("of another UID", pod, otherUID)
			pods.remove("of another version", pod, otherVersion)
			if phase != corev1.PodPending {
				d.kubelet(pod.(*corev1.Pod), corev1.PodRunning)
				pod = pods.get("as it runs")
			}
			if phase == corev1.PodSucceeded {
				d.kubelet(pod.(*corev1.Pod), phase)
				pod = pods.get("as it has ended")
			}
			if first == "released" {
				pods.patch("to release it", "{"+preconditions(pod, release)+"}")
				pod = pods.get("as it is released")
			}
			pods.remove("for a user", pod, nil)
			pods.remove("again", pod, nil)
			if left := pods.get("as it is deleted"); left != nil && first == "deleted" {
				pods.patch("to release it", "{"+preconditions(left, release)+"}")
			}
			if left := pods.get("as a user sees it"); left != nil && phase == corev1.PodRunning {
				d.kubelet(left.(*corev1.Pod), corev1.PodFailed)
			}
			if left := pods.get("at the end"); left != nil {
				pods.patch("to release it", "{"+preconditions(left, release)+"}")
			}
			pods.get("afterwards")
		}
	}
}

// runSpec sends the requests for an object with a spec and a status.
func runSpec[T metav1.Object](a actions[T], object T) {
	a.create("it", object)
	a.create("it again", object)
	created := a.get("as it is new")
	a.patch("in its status", `{`+preconditions(created, "")+`,"status":{"active":1,"reason":"X"}}`, "status")
	a.patch("in its status, with an old version", `{`+preconditions(created, "")+`,"status":{"active":2,"reason":"Y"}}`, "status")
	a.patch("in its status, without a change", `{"status":{"active":1,"reason":"X"}}`, "status")
	a.patch("in its spec", `{"spec":{"suspend":true}}`)
	a.patch("without a change", `{"spec":{"suspend":true}}`)
	a.patch("of another UID", `{"metadata":{"uid":"other"},"spec":{"suspend":false}}`)
	a.patch("in its owners", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"y"}]}}`)
	read := a.get("as it is patched")
	a.remove("of an old version", created, nil)
	a.remove("in foreground", read, func(options *metav1.DeleteOptions) {
		options.PropagationPolicy = ptr.To(metav1.DeletePropagationForeground)
	})
	if read = a.get("as it is deleted"); read != nil {
		a.remove("in foreground, again", read, func(options *metav1.DeleteOptions) {
			options.PropagationPolicy = ptr.To(metav1.DeletePropagationForeground)
		})
		a.patch("in its finalizers", `{"metadata":{"finalizers":null}}`)
	}
	a.get("at the end")
}

// TestServer sends the same requests to the API server of the explorer and to the one in memory,
// which TestConformance in hack/integration compares with a real one.
func TestServer(t *testing.T) {
	x := newExplorer(find("at"))
	ours := &explored{newReplayer(x), x.initial()}
	exploredKubelet := func(pod *corev1.Pod, phase corev1.PodPhase) {
		switch o := ours.state.find(pods, pod.Name); phase {
		case corev1.PodRunning:
			ours.state.startPod(o)
		case corev1.PodSucceeded:
			ours.state.endPod(o, 0)
		default:
			ours.state.endPod(o, 137)
		}
	}
	kube, cnat := harness.NewClients(t, fakeserver.New(clocktesting.NewFakePassiveClock(epoch)))
	// In memory, as in a cluster, the kubelet deletes a Pod for good after its end.
	kubelet := func(pod *corev1.Pod, phase corev1.PodPhase) {
		client := kube.CoreV1().Pods(namespace)
		pod.Spec.NodeName = "a"
		pod, err := client.Update(t.Context(), pod, metav1.UpdateOptions{})
		if err == nil {
			pod.Status.Phase = phase
			pod, err = client.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
		}
		if err == nil && pod.DeletionTimestamp != nil && phase != corev1.PodRunning {
			err = client.Delete(t.Context(), pod.Name, *metav1.NewDeleteOptions(0))
		}
		if err != nil {
			t.Error(err)
		}
	}
	one := &dialogue{ctx: t.Context(), kube: kubeClient{replayer: ours.replayer}, cnat: cnatClient{replayer: ours.replayer}, send: ours.send, kubelet: exploredKubelet}
	other := &dialogue{ctx: t.Context(), kube: kube, cnat: cnat, send: func(do func() (metav1.Object, error)) (metav1.Object, error) { return do() }, kubelet: kubelet}
	for _, d := range []*dialogue{one, other} {
		d.versions = map[types.UID]string{}
		d.run()
	}
	if diff := cmp.Diff(other.answers, one.answers); diff != "" {
		t.Errorf("the API server of the explorer answers differently (-in memory +explorer)\n%s", diff)
	}
	if len(one.answers) < 100 {
		t.Errorf("only %d answers were compared", len(one.answers))
	}
}
