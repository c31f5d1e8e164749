//go:build integration

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

package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	clientset "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned"
	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
	"programming-kubernetes.info/cnat-controller/pkg/testing/fakeserver"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

// TestConformance sends the same requests to a real API server and to the one in memory, on
// which the simulation and many unit tests rely. It compares the answers.
func TestConformance(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	actual := conformance{t: t, versions: map[types.UID]string{}}
	actual.run(kubeClient, cnatClient, namespace, func(pod *corev1.Pod, node string) error {
		return kubeClient.CoreV1().Pods(namespace).Bind(t.Context(), &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: node}}, metav1.CreateOptions{})
	})
	fakeKube, fakeCnat := harness.NewClients(t, fakeserver.New(clock.RealClock{}))
	fake := conformance{t: t, versions: map[types.UID]string{}}
	fake.run(fakeKube, fakeCnat, namespace, func(pod *corev1.Pod, node string) error {
		pod.Spec.NodeName = node
		_, err := fakeKube.CoreV1().Pods(namespace).Update(t.Context(), pod, metav1.UpdateOptions{})
		return err
	})
	if diff := cmp.Diff(actual.answers, fake.answers); diff != "" {
		t.Errorf("the API server in memory answers differently (-real +in memory)\n%s", diff)
	}
	if len(actual.answers) < 50 {
		t.Errorf("only %d answers were compared", len(actual.answers))
	}
}

// conformance sends requests to an API server, and notes its answers.
type conformance struct {
	t        *testing.T
	answers  []string
	versions map[types.UID]string // the latest resource versions
}

// note notes an answer: an error, or what matters of an object.
func (c *conformance) note(request string, object metav1.Object, err error) {
	if err != nil {
		answer := fmt.Sprint(apierrors.ReasonForError(err))
		if cause, ok := apierrors.StatusCause(err, metav1.CauseTypeFieldValueInvalid); ok {
			answer += " " + cause.Field
		}
		if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Details != nil {
			// With it, the controller believes that an object does not exist.
			answer += " " + status.Status().Details.Name
		}
		c.answers = append(c.answers, request+": "+answer)
		return
	}
	changed := c.versions[object.GetUID()] != object.GetResourceVersion()
	c.versions[object.GetUID()] = object.GetResourceVersion()
	phase := ""
	switch o := object.(type) {
	case *v1alpha1.At:
		phase = fmt.Sprint(o.Status.Phase, " reason ", o.Status.Reason, " generation ", o.Generation, " suspend ", ptr.Deref(o.Spec.Suspend, false))
	case *v1alpha1.CronAt:
		phase = fmt.Sprint("reason ", o.Status.Reason, " generation ", o.Generation, " suspend ", ptr.Deref(o.Spec.Suspend, false))
	case *appsv1.Deployment:
		changed = false // Its controller changes it, too.
		phase = fmt.Sprint("generation ", o.Generation, " restarted ", o.Spec.Template.Annotations[rollout.AnnotationRestartedAt])
	case *corev1.Pod:
		phase = string(o.Status.Phase)
		if o.Spec.NodeName == "" && o.DeletionTimestamp != nil {
			phase, changed = "", false // The garbage collector of Pods changes it, too.
		}
	}
	c.answers = append(c.answers, fmt.Sprintf("%s: %s, changed: %t, deleted: %t, grace: %d, finalizers: %v",
		request, phase, changed, object.GetDeletionTimestamp() != nil, ptr.Deref(object.GetDeletionGracePeriodSeconds(), -1), object.GetFinalizers()))
}

func (c *conformance) run(kube kubernetes.Interface, cnat clientset.Interface, namespace string, bind func(*corev1.Pod, string) error) {
	c.t.Helper()
	c.runPods(kube, namespace, bind)
	c.runAts(cnat, namespace)
	c.runCronAts(cnat, namespace)
	c.runDeployments(kube, namespace)
	c.runCollection(cnat, namespace)
	c.runWatch(cnat, namespace)
}

func (c *conformance) runPods(kube kubernetes.Interface, namespace string, bind func(*corev1.Pod, string) error) {
	c.t.Helper()
	ctx, pods := c.t.Context(), kube.CoreV1().Pods(namespace)
	newPod := func(name string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Finalizers: []string{v1alpha1.FinalizerTracking}},
			// Nobody else changes it, and no time that it has to end passes meanwhile.
			Spec: corev1.PodSpec{SchedulerName: "none", TerminationGracePeriodSeconds: ptr.To[int64](3 * 3600), Containers: []corev1.Container{{Name: "main", Image: "busybox"}}},
		}
	}
	get := func(what string) *corev1.Pod {
		pod, err := pods.Get(ctx, "pod", metav1.GetOptions{})
		c.note("get the Pod "+what, pod, err)
		return pod
	}
	remove := func(what string, options metav1.DeleteOptions) {
		err := pods.Delete(ctx, "pod", options)
		if err != nil {
			c.note("delete the Pod "+what, nil, err)
			return
		}
		get("deleted " + what)
	}
	patch := func(what, body string) {
		pod, err := pods.Patch(ctx, "pod", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{})
		c.note("patch the Pod "+what, pod, err)
	}
	get("that does not exist")
	dry, err := pods.Create(ctx, newPod("pod"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil && dry.Name != "pod" {
		c.t.Errorf("the dry-run returns Pod %s", dry.Name)
	}
	get("of the dry-run")
	other := newPod("other")
	other.Status.Phase = corev1.PodRunning
	other, err = pods.Create(ctx, other, metav1.CreateOptions{})
	c.note("create another Pod with a status", other, err)
	other.Status.Phase, other.Labels = corev1.PodFailed, map[string]string{"a": "b"}
	other, err = pods.Update(ctx, other, metav1.UpdateOptions{})
	c.note("update it with a status", other, err)
	pod, err := pods.Create(ctx, newPod("pod"), metav1.CreateOptions{})
	c.note("create the Pod", pod, err)
	_, err = pods.Create(ctx, newPod("pod"), metav1.CreateOptions{})
	c.note("create it again", nil, err)
	_, err = pods.Create(ctx, newPod("pod"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	c.note("dry-run it again", nil, err)
	patch("of another UID", `{"metadata":{"uid":"other","$deleteFromPrimitiveList/finalizers":["x/y"]}}`)
	patch("of an old version", `{"metadata":{"resourceVersion":"1","labels":{"a":"b"}}}`)
	patch("without a change", fmt.Sprintf(`{"metadata":{"uid":%q,"$deleteFromPrimitiveList/finalizers":["x/y"]}}`, pod.UID))
	remove("of another UID", metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("other")})
	remove("of another version", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: ptr.To("1")}})
	// A node that does not exist, and that no other test names: the garbage collector of Pods
	// force-deletes those on a node that has been gone for 40 seconds.
	if err := bind(pod, namespace); err != nil {
		c.t.Error(err)
	}
	remove("on its node", metav1.DeleteOptions{})
	remove("again", metav1.DeleteOptions{})
	remove("with less time", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](3600)})
	remove("with more time", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](2 * 3600)})
	remove("with no time", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
	patch("to release it", fmt.Sprintf(`{"metadata":{"uid":%q,"$deleteFromPrimitiveList/finalizers":[%q]}}`, pod.UID, v1alpha1.FinalizerTracking))
	get("that is released")
	pod, err = pods.Create(ctx, newPod("pod"), metav1.CreateOptions{})
	c.note("create it under the same name", pod, err)
	remove("without a node", metav1.DeleteOptions{})
	patch("to release it", fmt.Sprintf(`{"metadata":{"$deleteFromPrimitiveList/finalizers":[%q]}}`, v1alpha1.FinalizerTracking))
	get("at the end")
}

func (c *conformance) runAts(cnat clientset.Interface, namespace string) {
	c.t.Helper()
	ctx, ats := c.t.Context(), cnat.CnatV1alpha1().Ats(namespace)
	newObject := func() *v1alpha1.At { return newAt(namespace, "at", time.Now().Add(time.Hour), "true") }
	at := newObject()
	at.Status.Phase, at.Status.Reason = v1alpha1.PhaseRunning, "X"
	at, err := ats.Create(ctx, at, metav1.CreateOptions{})
	c.note("create the At with a status", at, err)
	at.Status.Phase, at.Status.Reason, at.Labels = v1alpha1.PhaseRunning, "X", map[string]string{"a": "a"}
	at, err = ats.Update(ctx, at, metav1.UpdateOptions{})
	c.note("update it with a status", at, err)
	created := at
	_, err = ats.Create(ctx, newObject(), metav1.CreateOptions{})
	c.note("create it again", nil, err)
	patch := func(what, body string, subresources ...string) {
		at, err := ats.Patch(ctx, "at", types.MergePatchType, []byte(body), metav1.PatchOptions{}, subresources...)
		c.note("patch the At "+what, at, err)
	}
	patch("in its status", fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"status":{"reason":"X"}}`, created.ResourceVersion), "status")
	patch("in its status, with an old version", fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"status":{"reason":"Y"}}`, created.ResourceVersion), "status")
	patch("in its status, without a change", `{"status":{"reason":"X"}}`, "status")
	patch("in its status, as a spec", `{"status":{"reason":"Z"}}`)
	patch("in its spec, as a status", `{"spec":{"suspend":true}}`, "status")
	patch("in its spec", `{"spec":{"suspend":true}}`)
	patch("without a change", `{"spec":{"suspend":true}}`)
	patch("in a label", `{"metadata":{"labels":{"a":"b"}}}`)
	patch("of another UID", `{"metadata":{"uid":"other","labels":{"a":"c"}}}`)
	patch("in a finalizer", `{"metadata":{"finalizers":["cnat.programming-kubernetes.info/tracking"]}}`)
	_, err = ats.Update(ctx, created, metav1.UpdateOptions{})
	c.note("update an old version", nil, err)
	err = ats.Delete(ctx, "at", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &created.ResourceVersion}})
	c.note("delete an old version", nil, err)
	remove := func(what string) {
		err := ats.Delete(ctx, "at", metav1.DeleteOptions{})
		if err != nil {
			c.note(what, nil, err)
			return
		}
		at, err := ats.Get(ctx, "at", metav1.GetOptions{})
		c.note(what, at, err)
	}
	remove("delete the At")
	remove("delete it again")
	patch("to release it", `{"metadata":{"finalizers":[]}}`)
	remove("delete what is gone")
	patch("that is gone", `{"spec":{"suspend":true}}`)
	patch("that is gone in its status", `{"status":{"reason":"X"}}`, "status")
}

func (c *conformance) runCronAts(cnat clientset.Interface, namespace string) {
	c.t.Helper()
	ctx, cronAts := c.t.Context(), cnat.CnatV1alpha1().CronAts(namespace)
	patch := func(what, body string, subresources ...string) *v1alpha1.CronAt {
		cronAt, err := cronAts.Patch(ctx, "cron", types.MergePatchType, []byte(body), metav1.PatchOptions{}, subresources...)
		c.note("patch the CronAt "+what, cronAt, err)
		return cronAt
	}
	patch("that does not exist", `{"spec":{"suspend":true}}`)
	// It is never due while the test runs, and belongs to no controller.
	cronAt := &v1alpha1.CronAt{ObjectMeta: metav1.ObjectMeta{Name: "cron", Namespace: namespace}, Spec: v1alpha1.CronAtSpec{
		Schedule: "0 0 29 2 *", Suspend: ptr.To(true), AtTemplate: v1alpha1.AtTemplateSpec{Spec: v1alpha1.RunSpec{Command: "true"}},
	}}
	cronAt, err := cronAts.Create(ctx, cronAt, metav1.CreateOptions{})
	c.note("create the CronAt", cronAt, err)
	_, err = cronAts.Create(ctx, &v1alpha1.CronAt{ObjectMeta: metav1.ObjectMeta{Name: "cron", Namespace: namespace}, Spec: cronAt.Spec}, metav1.CreateOptions{})
	c.note("create it again", nil, err)
	patch("in its status", fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"status":{"reason":"X"}}`, cronAt.ResourceVersion), "status")
	patch("in its status, with an old version", fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"status":{"reason":"Y"}}`, cronAt.ResourceVersion), "status")
	patch("in its spec", `{"spec":{"suspend":false}}`)
	patch("in its spec, as a status", `{"spec":{"suspend":true}}`, "status")
	patch("in a label", `{"metadata":{"labels":{"a":"b"}}}`)
	err = cronAts.Delete(ctx, "cron", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &cronAt.ResourceVersion}})
	c.note("delete an old version of the CronAt", nil, err)
	err = cronAts.Delete(ctx, "cron", *metav1.NewPreconditionDeleteOptions("other"))
	c.note("delete a CronAt of another UID", nil, err)
	if err := cronAts.Delete(ctx, "cron", *metav1.NewPreconditionDeleteOptions(string(cronAt.UID))); err != nil {
		c.t.Error(err)
	}
	cronAt, err = cronAts.Get(ctx, "cron", metav1.GetOptions{})
	c.note("get the deleted CronAt", cronAt, err)
}

func (c *conformance) runDeployments(kube kubernetes.Interface, namespace string) {
	c.t.Helper()
	ctx, deployments := c.t.Context(), kube.AppsV1().Deployments(namespace)
	patch := func(what, body string, subresources ...string) {
		deployment, err := deployments.Patch(ctx, "web", types.MergePatchType, []byte(body), metav1.PatchOptions{}, subresources...)
		c.note("patch the Deployment "+what, deployment, err)
	}
	restart := func(uid types.UID, version, annotation string) string {
		return fmt.Sprintf(`{"metadata":{"uid":%q,"resourceVersion":%q},"spec":{"template":{"metadata":{"annotations":{%q:%q}}}}}`, uid, version, rollout.AnnotationRestartedAt, annotation)
	}
	patch("that does not exist", restart("", "", "a"))
	labels := map[string]string{"app": "web"}
	deployment, err := deployments.Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: namespace}, Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To[int32](0), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "busybox"}}}},
	}}, metav1.CreateOptions{})
	c.note("create the Deployment", deployment, err)
	patch("of an old version", restart("", "1", "a"))
	patch("of another UID", restart("other", "", "a"))
	patch("to restart it", restart("", "", "a"))
	patch("without a change", restart("", "", "a"))
	patch("to restart it again", restart("", "", "b"))
	patch("in its annotations", `{"metadata":{"annotations":{"a":"b"}}}`)
	patch("in its status, as a spec", `{"status":{"replicas":7}}`)
	patch("in its spec, as a status", `{"spec":{"replicas":7}}`, "status")
	if err := deployments.Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		c.t.Error(err)
	}
}

// runCollection deletes several Ats with one request, and notes what its answer shows of them.
func (c *conformance) runCollection(cnat clientset.Interface, namespace string) {
	c.t.Helper()
	ctx, ats := c.t.Context(), cnat.CnatV1alpha1().Ats(namespace)
	for name, finalizers := range map[string][]string{"kept": {v1alpha1.FinalizerTracking}, "removed": nil} {
		at := newAt(namespace, name, time.Now().Add(time.Hour), "true")
		at.Labels, at.Finalizers = map[string]string{"collected": "yes"}, finalizers
		if _, err := ats.Create(ctx, at, metav1.CreateOptions{}); err != nil {
			c.t.Fatal(err)
		}
	}
	var before v1alpha1.AtList
	err := cnat.CnatV1alpha1().RESTClient().Delete().Namespace(namespace).Resource("ats").Param("labelSelector", "collected").Do(ctx).Into(&before)
	if err != nil || len(before.Items) != 2 {
		c.t.Errorf("the answer shows %d Ats, %v", len(before.Items), err)
	}
	for _, at := range before.Items {
		c.note("delete At "+at.Name+" with others", &at, nil)
	}
	for _, name := range []string{"kept", "removed"} {
		at, err := ats.Get(ctx, name, metav1.GetOptions{})
		c.note("get At "+name, at, err)
	}
	at, err := ats.Patch(ctx, "kept", types.MergePatchType, []byte(`{"metadata":{"finalizers":[]}}`), metav1.PatchOptions{})
	c.note("patch At kept to release it", at, err)
}

// runWatch notes what a watch with a selector reports.
func (c *conformance) runWatch(cnat clientset.Interface, namespace string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	ats := cnat.CnatV1alpha1().Ats(namespace)
	selector := metav1.ListOptions{LabelSelector: "selected"}
	list, err := ats.List(ctx, selector)
	if err != nil {
		c.t.Fatal(err)
	}
	selector.ResourceVersion = list.ResourceVersion
	const label, noLabel = `{"metadata":{"labels":{"selected":"yes"}}}`, `{"metadata":{"labels":{"selected":null}}}`
	patch := func(name, body string) {
		if _, err := ats.Patch(ctx, name, types.MergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
			c.t.Error(err)
		}
	}
	for _, name := range []string{"one", "two"} {
		at := newAt(namespace, name, time.Now().Add(time.Hour), "true")
		at.Labels = map[string]string{"selected": "yes"}
		if _, err := ats.Create(ctx, at, metav1.CreateOptions{}); err != nil {
			c.t.Fatal(err)
		}
	}
	patch("two", noLabel)
	patch("two", `{"spec":{"suspend":true}}`)
	patch("two", label)
	patch("one", `{"spec":{"suspend":true}}`)
	patch("one", `{"spec":{"suspend":true}}`)
	if err := ats.Delete(ctx, "one", metav1.DeleteOptions{}); err != nil {
		c.t.Error(err)
	}
	patch("two", `{"metadata":{"labels":{"last":"yes"}}}`)
	watcher, err := ats.Watch(ctx, selector) // from the version of the list, when all has happened
	if err != nil {
		c.t.Fatal(err)
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		at, ok := event.Object.(*v1alpha1.At)
		if !ok {
			c.t.Fatalf("the watch reports %v", event)
		}
		c.note(fmt.Sprint("watch: ", event.Type, " ", at.Name), at, nil)
		if at.Labels["last"] != "" {
			return
		}
	}
	c.t.Error("the watch ends early")
}
