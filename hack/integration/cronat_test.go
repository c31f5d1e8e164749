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
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

// createOverdue creates a CronAt for the first day of each month that a controller last
// saw a year ago. It returns the scheduled time that is due, and the name of its At.
func createOverdue(t *testing.T, cronAt *v1alpha1.CronAt) (time.Time, string) {
	t.Helper()
	cronAt.Spec.Schedule = "0 0 1 * *"
	createCronAt(t, cronAt)
	now := time.Now().UTC()
	since := now.AddDate(-1, 0, 0).Format(time.RFC3339)
	status := fmt.Sprintf(`{"status":{"active":0,"lastScheduleTime":%q,"observedSchedule":{"schedule":"0 0 1 * *","since":%q}}}`, since, since)
	if _, err := cnatClient.CnatV1alpha1().CronAts(cronAt.Namespace).Patch(t.Context(), cronAt.Name, types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	due := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	return due, fmt.Sprintf("%s-%d", cronAt.Name, due.Unix()/60)
}

// TestCronAt simulates a controller that was not running for a year: the latest time
// runs once, and the missed times are counted.
func TestCronAt(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	cronAt := newCronAt(namespace, "")
	cronAt.Spec.AtTemplate.Metadata.Labels = map[string]string{"app": "test"}
	due, name := createOverdue(t, cronAt)
	startController(t, namespace)
	endPod(t, waitPod(t, namespace, name+"-pod"), corev1.PodSucceeded, 0)
	cronAt = waitCronAt(t, namespace, "cronat", "to have succeeded", func(cronAt *v1alpha1.CronAt) bool { return cronAt.Status.LastSuccessfulTime != nil })
	if missed := cronAt.Status.Missed; missed == nil || missed.Count < 10 || missed.Count > 11 || !missed.Last.Time.Equal(due.AddDate(0, -1, 0)) {
		t.Errorf("missed %+v", missed)
	}
	if next := cronAt.Status.NextScheduleTime; !next.Time.Equal(due.AddDate(0, 1, 0)) {
		t.Errorf("next %s", next)
	}
	at := waitPhase(t, namespace, name, v1alpha1.PhaseDone)
	if scheduled := due.Format(time.RFC3339); at.Annotations[v1alpha1.AnnotationScheduledTime] != scheduled || at.Labels["app"] != "test" || at.Spec.Schedule != scheduled {
		t.Errorf("At %+v", at)
	}
	wantOutput(t, kubectl(t, "", "get", "cronat", "-n", namespace), `NAME +SCHEDULE +TIMEZONE +SUSPEND +ACTIVE +LAST +NEXT +REASON +AGE`, `cronat +0 0 1 \* \* +\d+ +\w+ +20\d\d-.*Z +\w+`)
	eventually(t, "the event of the creation", func(context.Context) (bool, error) {
		events := kubectl(t, "", "get", "events", "-n", namespace, "--field-selector=involvedObject.kind=CronAt,reason="+v1alpha1.ReasonSuccessfulCreate)
		return strings.Contains(events, "Created At "+name), nil
	})

	kubectl(t, "", "patch", "-n", namespace, "cronat/cronat", "--type=merge", "-p", `{"spec":{"successfulAtsHistoryLimit":0}}`)
	waitGone(t, namespace, "ats")
	wantCreated(t, namespace, "ats", name)
}

// TestCronAtDeleted deletes a CronAt just after a run, in all ways, and creates it again.
func TestCronAtDeleted(t *testing.T) {
	t.Parallel()
	for _, cascade := range []string{"background", "foreground", "orphan"} {
		t.Run(cascade, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			_, name := createOverdue(t, newCronAt(namespace, ""))
			startController(t, namespace)
			waitPod(t, namespace, name+"-pod")
			waitCollector(t, namespace)
			kubectl(t, "", "delete", "cronat/cronat", "-n", namespace, "--cascade="+cascade)
			createCronAt(t, newCronAt(namespace, "0 0 1 * *"))
			if cascade == "orphan" {
				waitAt(t, namespace, name, "to be released", func(at *v1alpha1.At) bool { return !plan.IsScheduled(at) })
			} else {
				waitGone(t, namespace, "ats/"+name)
			}
			// Times up to its creation do not run.
			wantCreated(t, namespace, "ats", name)
		})
	}
}
