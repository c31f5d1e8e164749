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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

const annotations = root + "/artifacts/restarts/annotations"

// annotatable returns the manifest of a workload, with annotations.
func annotatable(kind, name, annotations string) string {
	return fmt.Sprintf(`{"apiVersion": "apps/v1", "kind": %q, "metadata": {"name": %q, "annotations": {%s}}, "spec": {
		"selector": {"matchLabels": {"app": %[2]q}},
		"template": {"metadata": {"labels": {"app": %[2]q}}, "spec": {"nodeSelector": {"none": ""}, "containers": [{"name": "main", "image": "main"}]}}
	}}`, kind, name, annotations)
}

const scheduleAnnotation = v1alpha1.AnnotationRestartSchedule

// waitNamedCronAt waits until a CronAt satisfies the condition, and returns it. The
// condition is called with nil if there is no CronAt.
func waitNamedCronAt(t *testing.T, namespace, name, what string, condition func(*v1alpha1.CronAt) bool) *v1alpha1.CronAt {
	t.Helper()
	var cronAt *v1alpha1.CronAt
	eventually(t, "CronAt "+name+" "+what, func(ctx context.Context) (bool, error) {
		got, err := cnatClient.CnatV1alpha1().CronAts(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			got, err = nil, nil
		}
		cronAt = got
		return err == nil && condition(cronAt), err
	})
	return cronAt
}

func hasSchedule(schedule string) func(*v1alpha1.CronAt) bool {
	return func(cronAt *v1alpha1.CronAt) bool { return cronAt != nil && cronAt.Spec.Schedule == schedule }
}

// TestRestartAnnotation annotates a workload: a CronAt follows, and is deleted with the workload. A schedule
// that only the API server refuses, with a no-break space, is reported once.
func TestRestartAnnotation(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace, "-restart-annotations")
	kubectl(t, annotatable("Deployment", "web", fmt.Sprintf("%q: %q", scheduleAnnotation, "0 3 * * 1-5")), "create", "-n", namespace, "-f", "-")
	cronAt := waitNamedCronAt(t, namespace, "deployment-web", "to be followed", func(cronAt *v1alpha1.CronAt) bool {
		return hasSchedule("0 3 * * 1-5")(cronAt) && cronAt.Status.NextScheduleTime != nil
	})
	if owner := metav1.GetControllerOf(cronAt); owner == nil || owner.Kind != "Deployment" || owner.Name != "web" {
		t.Errorf("the owners are %v", cronAt.OwnerReferences)
	}
	kubectl(t, "", "annotate", "-n", namespace, "--overwrite", "deployment/web", scheduleAnnotation+"=0\u00a04 * * *")
	eventually(t, "the event", func(context.Context) (bool, error) {
		events := kubectl(t, "", "get", "events", "-n", namespace, "--field-selector", "type=Warning,reason="+v1alpha1.ReasonCronAtRefused)
		return strings.Count(events, "must be a cron expression") == 1, nil
	})
	kubectl(t, "", "delete", "-n", namespace, "deployment/web")
	waitGone(t, namespace, "cronats")
}
