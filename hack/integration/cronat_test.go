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
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

func newCronAt(namespace, schedule string, mutate ...func(*v1alpha1.CronAt)) *v1alpha1.CronAt {
	cronAt := &v1alpha1.CronAt{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "cronat"},
		Spec:       v1alpha1.CronAtSpec{Schedule: schedule, AtTemplate: v1alpha1.AtTemplateSpec{Spec: v1alpha1.RunSpec{Command: "true"}}},
	}
	for _, m := range mutate {
		m(cronAt)
	}
	return cronAt
}

func createCronAt(t *testing.T, cronAt *v1alpha1.CronAt) *v1alpha1.CronAt {
	t.Helper()
	cronAt, err := cnatClient.CnatV1alpha1().CronAts(cronAt.Namespace).Create(t.Context(), cronAt, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return cronAt
}

// createDue creates a CronAt that is due now, and then each minute.
func createDue(t *testing.T, cronAt *v1alpha1.CronAt) {
	t.Helper()
	cronAt.Spec.Schedule = "* * * * *"
	createCronAt(t, cronAt)
	makeDue(t, cronAt.Namespace)
}

// makeDue makes the new CronAt named cronat due, whose schedule is each minute.
func makeDue(t *testing.T, namespace string) {
	t.Helper()
	status := fmt.Sprintf(`{"status":{"active":0,"observedSchedule":{"schedule":"* * * * *","since":%q}}}`, time.Now().Add(-time.Minute).UTC().Format(time.RFC3339))
	if _, err := cnatClient.CnatV1alpha1().CronAts(namespace).Patch(t.Context(), "cronat", types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}

// createOverdue creates a CronAt for the first day of each month that a controller last
// saw a year ago. It returns the scheduled time that is due.
func createOverdue(t *testing.T, cronAt *v1alpha1.CronAt) time.Time {
	t.Helper()
	cronAt.Spec.Schedule = "0 0 1 * *"
	createCronAt(t, cronAt)
	now := time.Now().UTC()
	since := now.AddDate(-1, 0, 0).Format(time.RFC3339)
	status := fmt.Sprintf(`{"status":{"active":0,"lastScheduleTime":%q,"observedSchedule":{"schedule":"0 0 1 * *","since":%q}}}`, since, since)
	if _, err := cnatClient.CnatV1alpha1().CronAts(cronAt.Namespace).Patch(t.Context(), cronAt.Name, types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	return time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
}

// waitCronAt waits until the CronAt named cronat satisfies the condition, and returns it.
func waitCronAt(t *testing.T, namespace, what string, condition func(*v1alpha1.CronAt) bool) *v1alpha1.CronAt {
	t.Helper()
	var cronAt *v1alpha1.CronAt
	eventually(t, "the CronAt "+what, func(ctx context.Context) (bool, error) {
		got, err := cnatClient.CnatV1alpha1().CronAts(namespace).Get(ctx, "cronat", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		cronAt = got
		return condition(cronAt), nil
	})
	return cronAt
}

func patchCronAt(t *testing.T, namespace, patch string) {
	t.Helper()
	if _, err := cnatClient.CnatV1alpha1().CronAts(namespace).Patch(t.Context(), "cronat", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func atsIn(t *testing.T, namespace string) (ats []v1alpha1.At) {
	t.Helper()
	eventually(t, "the list of Ats", func(ctx context.Context) (bool, error) {
		list, err := cnatClient.CnatV1alpha1().Ats(namespace).List(ctx, metav1.ListOptions{})
		if err == nil {
			ats = list.Items
		}
		return err == nil, err
	})
	return ats
}

// waitAts waits until a namespace has the given number of Ats.
func waitAts(t *testing.T, namespace string, number int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d Ats", number), func(context.Context) (bool, error) { return len(atsIn(t, namespace)) == number, nil })
}

// playSuccess makes each Pod of a namespace succeed.
func playSuccess(t *testing.T, namespace string) {
	t.Helper()
	playPods(t, namespace, metav1.ListOptions{}, func(ctx context.Context, pod *corev1.Pod) {
		if !isEnded(pod) {
			pod.Status.Phase = corev1.PodSucceeded
			pod.Status.ContainerStatuses = exited(pod, 0, "")
			_, _ = kubeClient.CoreV1().Pods(namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		}
	})
}

// createdAts returns how often each At of a namespace was created by the controller.
func createdAts(t *testing.T, namespace string) map[string]int {
	t.Helper()
	created := map[string]int{}
	for _, r := range requests(t, namespace, "create", "ats") {
		created[r.ObjectRef.Name]++
	}
	return created
}

// wantEachOnce checks that at least the given number of Ats were created, none of them
// twice.
func wantEachOnce(t *testing.T, namespace string, least int) {
	t.Helper()
	created := createdAts(t, namespace)
	if len(created) < least {
		t.Errorf("%d Ats were created, want at least %d", len(created), least)
	}
	for name, times := range created {
		if times != 1 {
			t.Errorf("At %s was created %d times", name, times)
		}
	}
}

// TestCronAt runs a CronAt each minute, until its history is pruned.
func TestCronAt(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	playSuccess(t, namespace)
	startController(t, namespace)
	createCronAt(t, newCronAt(namespace, "@every 1m", func(cronAt *v1alpha1.CronAt) {
		cronAt.Spec.SuccessfulAtsHistoryLimit = ptr.To[int32](1)
		cronAt.Spec.AtTemplate.Metadata.Labels = map[string]string{"app": "test"}
	}))
	eventually(t, "an At to be pruned", func(context.Context) (bool, error) { return len(requests(t, namespace, "delete", "ats")) > 0, nil })
	cronAt := waitCronAt(t, namespace, "to have succeeded", func(cronAt *v1alpha1.CronAt) bool { return cronAt.Status.LastSuccessfulTime != nil })
	if cronAt.Status.Reason != "" {
		t.Errorf("status %+v", cronAt.Status)
	}
	for _, at := range atsIn(t, namespace) {
		scheduled, err := time.Parse(time.RFC3339, at.Annotations[v1alpha1.AnnotationScheduledTime])
		if err != nil || at.Labels["app"] != "test" || at.Spec.Schedule != scheduled.Format(time.RFC3339) || at.CreationTimestamp.Time.Before(scheduled) {
			t.Errorf("At %+v", at)
		}
	}
	wantOutput(t, kubectl(t, "", "get", "cronat", "-n", namespace), `NAME +SCHEDULE +TIMEZONE +SUSPEND +ACTIVE +LAST +NEXT +REASON +AGE`, `cronat +@every 1m +\d+ +\w+ +20\d\d-.*Z +\w+`)
	var events string
	eventually(t, "the deletion to be reported", func(context.Context) (bool, error) {
		events = kubectl(t, "", "get", "events", "-n", namespace, "--field-selector", "involvedObject.kind=CronAt")
		return strings.Contains(events, "SuccessfulDelete"), nil
	})
	wantOutput(t, events, `SuccessfulCreate +cronat/cronat +Created At cronat-\d+`)
	patchCronAt(t, namespace, `{"spec":{"suspend":true}}`)
	waitCronAt(t, namespace, "to be suspended", func(cronAt *v1alpha1.CronAt) bool {
		return cronAt.Status.Reason == v1alpha1.ReasonSuspended && cronAt.Status.Active == 0
	})
	waitAts(t, namespace, 1)
	wantEachOnce(t, namespace, 2)
}

// TestCronAtAway simulates a controller that was not running for a year: the latest time
// runs once, and the missed times are counted. Times that were due during a suspension,
// or before an edit, do not run.
func TestCronAtAway(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	due := createOverdue(t, newCronAt(namespace, ""))
	startController(t, namespace)
	name := fmt.Sprintf("cronat-%d", due.Unix()/60)
	pod := waitPod(t, namespace, name+"-pod")
	cronAt := waitCronAt(t, namespace, "to have run", func(cronAt *v1alpha1.CronAt) bool { return cronAt.Status.Active == 1 })
	if missed := cronAt.Status.Missed; missed == nil || missed.Count < 10 || missed.Count > 11 || !missed.Last.Time.Equal(due.AddDate(0, -1, 0)) {
		t.Errorf("missed %+v", missed)
	}
	if next := cronAt.Status.NextScheduleTime; !next.Time.Equal(due.AddDate(0, 1, 0)) {
		t.Errorf("next %s", next)
	}
	endPod(t, pod, corev1.PodSucceeded, 0, "") // before it is Unschedulable, which the CronAt would report
	past := "0 0 " + time.Now().UTC().AddDate(0, 0, -1).Format("2 1") + " *"
	patchCronAt(t, namespace, `{"spec":{"suspend":true}}`)
	waitCronAt(t, namespace, "to be suspended", func(cronAt *v1alpha1.CronAt) bool { return cronAt.Status.Reason == v1alpha1.ReasonSuspended })
	patchCronAt(t, namespace, `{"spec":{"suspend":false,"schedule":"`+past+`"}}`)
	waitCronAt(t, namespace, "to be resumed", func(cronAt *v1alpha1.CronAt) bool {
		return cronAt.Status.Reason == "" && cronAt.Status.ObservedSchedule.Schedule == past && cronAt.Status.NextScheduleTime != nil
	})
	// It runs the times that are due after the edit. API times have no fractions of a second.
	edited := time.Now().Truncate(time.Second)
	patchCronAt(t, namespace, `{"spec":{"schedule":"* * * * *"}}`)
	waitCronAt(t, namespace, "to run", func(cronAt *v1alpha1.CronAt) bool { return cronAt.Status.LastScheduleTime.After(edited) })
	for created := range createdAts(t, namespace) {
		minutes, err := strconv.ParseInt(strings.TrimPrefix(created, "cronat-"), 10, 64)
		if created != name && (err != nil || time.Unix(minutes*60, 0).Before(edited)) {
			t.Errorf("At %s was created", created)
		}
	}
	wantEachOnce(t, namespace, 1)
}

// TestCronAtForbid blocks the first At with a quota: no other At is created, and the
// CronAt reports the cause.
func TestCronAtForbid(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	admitNoPods(t, namespace)
	startController(t, namespace)
	createDue(t, newCronAt(namespace, "", func(cronAt *v1alpha1.CronAt) { cronAt.Spec.ConcurrencyPolicy = v1alpha1.ForbidConcurrent }))
	cronAt := waitCronAt(t, namespace, "to be blocked", func(cronAt *v1alpha1.CronAt) bool { return cronAt.Status.Reason == v1alpha1.ReasonAtBlocked })
	wantOutput(t, cronAt.Status.Message, `^At cronat-\d+ is blocked: PodRefused: `)
	waitCronAt(t, namespace, "to miss a time", func(now *v1alpha1.CronAt) bool {
		return ptr.Deref(now.Status.Missed, v1alpha1.MissedTimes{}).Count > ptr.Deref(cronAt.Status.Missed, v1alpha1.MissedTimes{}).Count
	})
	if ats := atsIn(t, namespace); len(ats) != 1 {
		t.Errorf("%d Ats, want one", len(ats))
	}
	most := countPods(t, namespace, isEnded)
	kubectl(t, "", "delete", "-n", namespace, "quota/quota")
	waitCronAt(t, namespace, "to wait for what runs", func(cronAt *v1alpha1.CronAt) bool {
		return cronAt.Status.Reason == v1alpha1.ReasonAtActive && len(cronAt.Status.Conditions) == 0
	})
	playSuccess(t, namespace)
	waitCronAt(t, namespace, "to have succeeded", func(cronAt *v1alpha1.CronAt) bool { return cronAt.Status.LastSuccessfulTime != nil })
	eventually(t, "another At", func(context.Context) (bool, error) { return len(createdAts(t, namespace)) > 1, nil })
	if got := most(); got != 1 {
		t.Errorf("%d Pods ran at the same time", got)
	}
	wantEachOnce(t, namespace, 2)
}

// TestCronAtBehindBlocked lets the container of the first At not be created, with Forbid:
// the CronAt reports the cause, and counts what it misses while that lasts.
func TestCronAtBehindBlocked(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace)
	createDue(t, newCronAt(namespace, "", func(cronAt *v1alpha1.CronAt) {
		cronAt.Spec.ConcurrencyPolicy = v1alpha1.ForbidConcurrent
		// This test plays the scheduler and the node.
		cronAt.Spec.AtTemplate.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{SchedulerName: "none", Containers: []corev1.Container{{Name: "a", Image: "a"}}}}
	}))
	eventually(t, "an At", func(context.Context) (bool, error) { return len(atsIn(t, namespace)) == 1, nil })
	pod := waitPod(t, namespace, atsIn(t, namespace)[0].Name+"-pod")
	waiting := corev1.ContainerStatus{Name: pod.Spec.Containers[0].Name, Image: "a", State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: `configmap "none" not found`},
	}}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"containerStatuses": []corev1.ContainerStatus{waiting}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kubeClient.CoreV1().Pods(namespace).Patch(t.Context(), pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	isBehind := func(cronAt *v1alpha1.CronAt) bool {
		return cronAt.Status.Reason == v1alpha1.ReasonAtBlocked && strings.Contains(cronAt.Status.Message, v1alpha1.ReasonContainerNotCreated) &&
			ptr.Deref(cronAt.Status.Missed, v1alpha1.MissedTimes{}).Count >= 1
	}
	cronAt := waitCronAt(t, namespace, "to be blocked, and to miss times", isBehind)
	wantOutput(t, cronAt.Status.Message, `^At cronat-\d+ is blocked: ContainerNotCreated: .*configmap "none" not found`)
	count := cronAt.Status.Missed.Count
	waitCronAt(t, namespace, "to miss more", func(cronAt *v1alpha1.CronAt) bool { return isBehind(cronAt) && cronAt.Status.Missed.Count > count })
	if ats := atsIn(t, namespace); len(ats) != 1 {
		t.Errorf("%d Ats, want one", len(ats))
	}
	endPod(t, pod, corev1.PodSucceeded, 0, "")
	eventually(t, "the latest time to run", func(context.Context) (bool, error) { return len(createdAts(t, namespace)) == 2, nil })
}

// TestCronAtReplace uses Pods that do not end: each At is replaced by the next one, whose
// Pod is created after the previous Pod is gone.
func TestCronAtReplace(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	most := countPods(t, namespace, isEnded)
	startController(t, namespace)
	createDue(t, newCronAt(namespace, "", func(cronAt *v1alpha1.CronAt) {
		cronAt.Spec.ConcurrencyPolicy = v1alpha1.ReplaceConcurrent
		cronAt.Spec.AtTemplate.Spec.Command = "sleep 1d"
	}))
	eventually(t, "the third Pod", func(context.Context) (bool, error) { return len(creations(t, namespace)) >= 3, nil })
	if got := most(); got != 1 {
		t.Errorf("%d Pods ran at the same time", got)
	}
	wantEachOnce(t, namespace, 3)
}

// TestCronAtNameConflict creates an unrelated At with the name of one of the CronAt's
// Ats.
func TestCronAtNameConflict(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	due := createOverdue(t, newCronAt(namespace, ""))
	name := fmt.Sprintf("cronat-%d", due.Unix()/60)
	createAt(t, newAt(namespace, name, time.Now().Add(time.Hour), "true"))
	startController(t, namespace)
	cronAt := waitCronAt(t, namespace, "to be blocked", func(cronAt *v1alpha1.CronAt) bool { return cronAt.Status.Reason == v1alpha1.ReasonAtNameConflict })
	wantOutput(t, cronAt.Status.Message, "^At "+name+" already exists and was not created by this CronAt: delete that At.$")
	if err := cnatClient.CnatV1alpha1().Ats(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitCronAt(t, namespace, "to run", func(cronAt *v1alpha1.CronAt) bool { return cronAt.Status.Active == 1 && cronAt.Status.Reason == "" })
	waitPod(t, namespace, name+"-pod")
}

// TestCronAtDeleted deletes a CronAt just after a run, in all ways, and creates it again.
func TestCronAtDeleted(t *testing.T) {
	t.Parallel()
	for _, cascade := range []string{"background", "foreground", "orphan"} {
		t.Run(cascade, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			due := createOverdue(t, newCronAt(namespace, ""))
			startController(t, namespace)
			name := fmt.Sprintf("cronat-%d", due.Unix()/60)
			waitPod(t, namespace, name+"-pod")
			kubectl(t, "", "delete", "cronat/cronat", "-n", namespace, "--cascade="+cascade)
			createCronAt(t, newCronAt(namespace, "0 0 1 * *"))
			if cascade == "orphan" {
				eventually(t, "the orphan to be released", func(context.Context) (bool, error) {
					return !slices.ContainsFunc(atsIn(t, namespace), func(at v1alpha1.At) bool { return at.Name == name && plan.IsScheduled(&at) }), nil
				})
			} else {
				eventually(t, "the Ats to be gone", func(ctx context.Context) (bool, error) {
					_, err := cnatClient.CnatV1alpha1().Ats(namespace).Get(ctx, name, metav1.GetOptions{})
					return apierrors.IsNotFound(err), ignoreNotFound(err)
				})
			}
			// Times up to its creation do not run.
			wantEachOnce(t, namespace, 1)
			if created := createdAts(t, namespace); len(created) != 1 {
				t.Errorf("created %v", created)
			}
		})
	}
}
