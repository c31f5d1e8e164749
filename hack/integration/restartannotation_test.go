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

// TestControllerCronAtsPolicy uses the controller's token as an attacker: the policy
// cnat-controller-cronats only allows CronAts for annotations.
func TestControllerCronAtsPolicy(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	// The garbage collector would delete the CronAts of a Deployment that does not exist.
	createWorkload(t, namespace, v1alpha1.RestartDeployment, "replicas: 0")
	uid := kubectl(t, "", "get", "-n", namespace, "deployment/web", "-o", "jsonpath={.metadata.uid}")
	owner := func(kind, name string) string {
		return fmt.Sprintf(`"ownerReferences":[{"apiVersion":"apps/v1","kind":%q,"name":%q,"uid":%q,"controller":true}]`, kind, name, uid)
	}
	cronAt := func(name, metadata, run string) attempt {
		return creates(fmt.Sprintf(`{kind: CronAt, apiVersion: %s, metadata: {name: %s, %s}, spec: {schedule: "@yearly", atTemplate: {spec: {%s}}}}`, v1alpha1.SchemeGroupVersion, name, metadata, run))
	}
	web, restartWeb := owner("Deployment", "web"), "restart: {kind: Deployment, name: web}"
	controller, admin := actAs(t, serviceAccountID, namespace), actAs(t, "", namespace)
	controller.waitDenied(t, "owns", cronAt("none", "", restartWeb))
	admin.want(t, "", cronAt("stranger", "", restartWeb))
	admin.want(t, "", cronAt("orphan", fmt.Sprintf("labels: {%s: %s}", v1alpha1.LabelManagedBy, v1alpha1.ManagedBy), restartWeb))
	const ofWorkload, ofOwner, metadata = "that a Deployment, StatefulSet or DaemonSet owns", "that restart their owner", "nothing of the metadata"
	// In this order.
	for _, tc := range []rowOf{
		{"create one of a workload", cronAt("own", web, restartWeb), ""},
		{"create one without an owner", cronAt("none", "", restartWeb), ofWorkload},
		{"create one of another kind", cronAt("none", owner("ReplicaSet", "web"), restartWeb), ofWorkload},
		{"create one of an owner that is no controller", cronAt("none", strings.Replace(web, "true", "false", 1), restartWeb), ofWorkload},
		{"create one that restarts another", cronAt("none", web, "restart: {kind: Deployment, name: db}"), ofOwner},
		{"create one that restarts another kind", cronAt("none", web, "restart: {kind: DaemonSet, name: web}"), ofOwner},
		{"create one that runs a command", cronAt("none", web, `command: "true"`), ofOwner},
		{"change the schedule", merges("cronats/own", `{"metadata":{"labels":{"a":"b"}},"spec":{"schedule":"@daily"}}`), ""},
		{"change what it restarts", merges("cronats/own", `{"spec":{"atTemplate":{"spec":{"restart":{"name":"db"}}}}}`), ofOwner},
		{"make it run a command", merges("cronats/own", `{"spec":{"atTemplate":{"spec":{"restart":null,"command":"true"}}}}`), ofOwner},
		{"remove the owner", merges("cronats/own", `{"metadata":{"ownerReferences":null}}`), metadata},
		{"change an annotation", merges("cronats/own", `{"metadata":{"annotations":{"a":"b"}}}`), metadata},
		{"change a stranger's", merges("cronats/stranger", `{"spec":{"schedule":"@daily"}}`), ofWorkload},
		{"adopt a stranger's", merges("cronats/stranger", `{"metadata":{`+web+"}}"), ofWorkload},
		{"change an orphan", merges("cronats/orphan", `{"spec":{"schedule":"@daily"}}`), ofWorkload},
		{"delete an orphan", deletes("cronats/orphan"), ofWorkload},
		{"adopt an orphan for another", merges("cronats/orphan", `{"metadata":{`+owner("Deployment", "db")+"}}"), ofOwner},
		{"adopt an orphan for another kind", merges("cronats/orphan", `{"metadata":{`+owner("DaemonSet", "web")+"}}"), ofOwner},
		{"adopt an orphan for no workload", merges("cronats/orphan", `{"metadata":{`+owner("ReplicaSet", "web")+"}}"), ofWorkload},
		{"adopt an orphan and change it", merges("cronats/orphan", `{"metadata":{`+web+`},"spec":{"schedule":"@daily"}}`), ofWorkload},
		{"adopt an orphan", merges("cronats/orphan", `{"metadata":{`+web+"}}"), ""},
		{"delete a stranger's", deletes("cronats/stranger"), ofWorkload},
		{"delete one of a workload", deletes("cronats/own"), ""},
	} {
		controller.want(t, tc.denied, tc.do)
	}
}
