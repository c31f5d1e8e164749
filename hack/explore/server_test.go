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
	"encoding/json"
	"fmt"
	"strings"
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

// Requests of controllers and users, and what the kubelet does, a line each. UID and VERSION are those of the
// object as it was last seen, and OLD is its first version.
const (
	// The Pod is new, runs, or has ended.
	newPod = `
get
try
create
create
get
patch {"metadata":{"uid":"other","$deleteFromPrimitiveList/finalizers":["cnat.programming-kubernetes.info/tracking"]}}
patch {"metadata":{"$deleteFromPrimitiveList/finalizers":["x/y"]}}
delete {"preconditions":{"uid":"other","resourceVersion":"VERSION"}}
delete {"preconditions":{"uid":"UID","resourceVersion":"1000"}}`
	runningPod = newPod + `
get
Running
get`
	endedPod = runningPod + `
Succeeded
get`

	// It is deleted, and then released, before it ends or after that.
	deletePodLines = `
delete {"preconditions":{"uid":"UID","resourceVersion":"VERSION"}}
delete {"preconditions":{"uid":"UID","resourceVersion":"VERSION"}}
get`
	releasePodLines = `
patch {"metadata":{"uid":"UID","resourceVersion":"VERSION","$deleteFromPrimitiveList/finalizers":["cnat.programming-kubernetes.info/tracking"]}}
get`
	endPodLines = `
Failed
get` + releasePodLines

	specLines = `
create
create
get
update {"metadata":{"resourceVersion":"VERSION"},"status":{"active":1,"reason":"X"}}
update {"metadata":{"resourceVersion":"OLD"},"status":{"active":2,"reason":"Y"}}
update {"metadata":{"resourceVersion":"VERSION"},"status":{"active":1,"reason":"X"}}
patch {"spec":{"suspend":true}}
patch {"spec":{"suspend":true}}
patch {"metadata":{"uid":"other"},"spec":{"suspend":false}}
patch {"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"y"}]}}
get
delete {"preconditions":{"uid":"UID","resourceVersion":"OLD"}}
delete {"propagationPolicy":"Foreground","preconditions":{"uid":"UID","resourceVersion":"VERSION"}}
get
delete {"propagationPolicy":"Foreground","preconditions":{"uid":"UID","resourceVersion":"VERSION"}}
patch {"metadata":{"finalizers":null}}
get`
)

// dialogue sends requests, and notes what matters of the answers.
type dialogue struct {
	kube    kubernetes.Interface
	cnat    clientset.Interface
	kubelet func(pod *corev1.Pod, phase corev1.PodPhase) // starts or ends a Pod
	answers []string
}

func (d *dialogue) run(t *testing.T) {
	t.Helper()
	tracked := []string{v1alpha1.FinalizerTracking}
	for _, begin := range []string{newPod, runningPod, endedPod} {
		for _, end := range []string{deletePodLines + releasePodLines + endPodLines, releasePodLines + deletePodLines + endPodLines, deletePodLines + endPodLines} {
			say(t, d, d.kube.CoreV1().Pods(namespace), types.StrategicMergePatchType, begin+end, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: namespace, Finalizers: tracked},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}},
			})
		}
	}
	at := newAt(nil)
	at.Name, at.Finalizers = "at-a", tracked
	say(t, d, d.cnat.CnatV1alpha1().Ats(namespace), types.MergePatchType, specLines, at)
	say(t, d, d.cnat.CnatV1alpha1().CronAts(namespace), types.MergePatchType, specLines, newCronAt(v1alpha1.AllowConcurrent))
}

// client has the requests for one kind.
type client[T metav1.Object] interface {
	Create(ctx context.Context, object T, options metav1.CreateOptions) (T, error)
	Get(ctx context.Context, name string, options metav1.GetOptions) (T, error)
	Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
	UpdateStatus(ctx context.Context, object T, options metav1.UpdateOptions) (T, error)
	Patch(ctx context.Context, name string, patchType types.PatchType, body []byte, options metav1.PatchOptions, subresources ...string) (T, error)
}

// say sends the requests for one object.
func say[T metav1.Object](t *testing.T, d *dialogue, client client[T], patchType types.PatchType, lines string, example T) {
	t.Helper()
	var seen T
	exists, old, version, name := false, "", "", example.GetName()
	for line := range strings.Lines(strings.TrimSpace(lines)) {
		what, body, _ := strings.Cut(strings.TrimSpace(line), " ")
		if version != "" {
			body = strings.NewReplacer("UID", string(seen.GetUID()), "OLD", old, "VERSION", version).Replace(body)
		}
		var err error
		var object metav1.Object
		switch what {
		case "create":
			object, err = client.Create(t.Context(), clone(example).(T), metav1.CreateOptions{})
		case "try":
			_, err = client.Create(t.Context(), clone(example).(T), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		case "get":
			object, err = client.Get(t.Context(), name, metav1.GetOptions{})
		case "delete":
			var options metav1.DeleteOptions
			if err := json.Unmarshal([]byte(body), &options); err != nil {
				t.Fatal(err)
			}
			err = client.Delete(t.Context(), name, options)
		case "patch":
			object, err = client.Patch(t.Context(), name, patchType, []byte(body), metav1.PatchOptions{})
		case "update": // the status
			written := clone(example).(T)
			if err := json.Unmarshal([]byte(body), written); err != nil {
				t.Fatal(err)
			}
			object, err = client.UpdateStatus(t.Context(), written, metav1.UpdateOptions{})
		default: // The kubelet does that to a Pod. It fails only one that runs.
			if pod := metav1.Object(seen).(*corev1.Pod); what != string(corev1.PodFailed) || exists && pod.Status.Phase == corev1.PodRunning {
				d.kubelet(pod.DeepCopy(), corev1.PodPhase(what))
			}
			continue
		}
		answer := "ok"
		exists = err == nil
		switch {
		case err != nil:
			cause, _ := apierrors.StatusCause(err, metav1.CauseTypeFieldValueInvalid)
			answer = fmt.Sprint(apierrors.ReasonForError(err), " ", cause.Field)
		case object != nil:
			answer = fmt.Sprintf("changed: %t, deleted: %t, grace: %d, finalizers: %v, owners: %d", object.GetResourceVersion() != version,
				object.GetDeletionTimestamp() != nil, ptr.Deref(object.GetDeletionGracePeriodSeconds(), -1), object.GetFinalizers(), len(object.GetOwnerReferences()))
			if _, isPod := object.(*corev1.Pod); !isPod { // Nobody looks at the generation of a Pod.
				answer += fmt.Sprint(", generation: ", object.GetGeneration())
			}
			seen, version = object.(T), object.GetResourceVersion()
			if what == "create" {
				old = version
			}
		}
		d.answers = append(d.answers, line+": "+answer)
	}
}

// TestServer sends the same requests to the API server of the explorer and to the one in memory,
// which TestConformance in hack/integration compares with a real one.
func TestServer(t *testing.T) {
	explored := newExplorer(find("at")).initial()
	ours := &clients{}
	ours.answerWith(func(r *request) ([]*object, error) {
		a := explored.do(r)
		return a.objects, a.err(r)
	})
	one := &dialogue{kube: &ours.kube, cnat: &ours.cnat, kubelet: func(pod *corev1.Pod, phase corev1.PodPhase) {
		switch o := explored.find(pods, pod.Name); phase {
		case corev1.PodRunning:
			explored.startPod(o)
		case corev1.PodSucceeded:
			explored.endPod(o, 0)
		default:
			explored.endPod(o, 137)
		}
	}}
	kube, cnat := harness.NewClients(t, fakeserver.New(clocktesting.NewFakePassiveClock(epoch)))
	// In memory, as in a cluster, the kubelet deletes a Pod for good after its end.
	other := &dialogue{kube: kube, cnat: cnat, kubelet: func(pod *corev1.Pod, phase corev1.PodPhase) {
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
	}}
	one.run(t)
	other.run(t)
	if diff := cmp.Diff(other.answers, one.answers); diff != "" {
		t.Errorf("the API server of the explorer answers differently (-in memory +explorer)\n%s", diff)
	}
	if len(one.answers) < 100 {
		t.Errorf("only %d answers were compared", len(one.answers))
	}
}
