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
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat"
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

const (
	scheduleAnnotation = v1alpha1.AnnotationRestartSchedule
	zoneAnnotation     = v1alpha1.AnnotationRestartTimeZone
)

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

func exists(cronAt *v1alpha1.CronAt) bool { return cronAt != nil }
func isGone(cronAt *v1alpha1.CronAt) bool { return cronAt == nil }

func hasSchedule(schedule string) func(*v1alpha1.CronAt) bool {
	return func(cronAt *v1alpha1.CronAt) bool { return cronAt != nil && cronAt.Spec.Schedule == schedule }
}

// waitWarning waits until a workload has an event with the reason, and returns it.
func waitWarning(t *testing.T, namespace, name, reason string) corev1.Event {
	t.Helper()
	var found corev1.Event
	eventually(t, "event "+reason+" on "+name, func(ctx context.Context) (bool, error) {
		events, err := kubeClient.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name + ",reason=" + reason})
		if err != nil || len(events.Items) == 0 {
			return false, err
		}
		found = events.Items[0]
		return true, nil
	})
	if found.Type != corev1.EventTypeWarning || found.Source.Component != "cnat-controller" {
		t.Errorf("event %+v", found)
	}
	return found
}

// TestRestartAnnotation annotates workloads: a CronAt follows.
func TestRestartAnnotation(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	startController(t, namespace, "-restart-annotations")
	annotate := func(workload string, annotations ...string) {
		t.Helper()
		kubectl(t, "", append([]string{"annotate", "-n", namespace, "--overwrite", workload}, annotations...)...)
	}
	patch := func(patch string) {
		t.Helper()
		if _, err := cnatClient.CnatV1alpha1().CronAts(namespace).Patch(t.Context(), "deployment-web", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	kubectl(t, annotatable("Deployment", "web", ""), "create", "-n", namespace, "-f", "-")
	annotate("deployment/web", scheduleAnnotation+"=0 3 * * 1-5", zoneAnnotation+"=Europe/Berlin")
	cronAt := waitNamedCronAt(t, namespace, "deployment-web", "to exist", exists)
	deployment, err := kubeClient.AppsV1().Deployments(namespace).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantOwners := []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: deployment.UID, Controller: ptr.To(true)}}
	if diff := cmp.Diff(wantOwners, cronAt.OwnerReferences); diff != "" {
		t.Errorf("the owners (-want +got):\n%s", diff)
	}
	want := v1alpha1.CronAtSpec{
		Schedule: "0 3 * * 1-5", TimeZone: ptr.To("Europe/Berlin"), StartingDeadlineSeconds: ptr.To[int64](1800),
		ConcurrencyPolicy: v1alpha1.ForbidConcurrent, SpreadSeconds: ptr.To[int32](60),
		AtTemplate: v1alpha1.AtTemplateSpec{Spec: v1alpha1.RunSpec{
			Restart:               &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"},
			ActiveDeadlineSeconds: ptr.To[int64](43200),
		}},
	}
	if diff := cmp.Diff(want, cronAt.Spec); diff != "" {
		t.Errorf("the spec (-want +got):\n%s", diff)
	}
	waitNamedCronAt(t, namespace, "deployment-web", "to be followed", func(cronAt *v1alpha1.CronAt) bool { return cronAt.Status.NextScheduleTime != nil })

	// It follows the annotations and reverts edits by users.
	annotate("deployment/web", scheduleAnnotation+"=@weekly", zoneAnnotation+"-")
	waitNamedCronAt(t, namespace, "deployment-web", "to be changed", func(cronAt *v1alpha1.CronAt) bool {
		return cronAt.Spec.Schedule == "@weekly" && cronAt.Spec.TimeZone == nil
	})
	patch(`{"spec":{"schedule":"@yearly","suspend":true,"successfulAtsHistoryLimit":7}}`)
	waitNamedCronAt(t, namespace, "deployment-web", "to be set back", func(cronAt *v1alpha1.CronAt) bool {
		return cronAt.Spec.Schedule == "@weekly" && cronAt.Spec.SuccessfulAtsHistoryLimit == nil && ptr.Deref(cronAt.Spec.Suspend, false)
	})
	patch(`{"metadata":{"labels":{"app.kubernetes.io/managed-by":null}},"spec":{"schedule":"@yearly"}}`)
	kept := waitNamedCronAt(t, namespace, "deployment-web", "to be set back, and labelled", func(cronAt *v1alpha1.CronAt) bool {
		return cronAt.Spec.Schedule == "@weekly" && cronAt.Labels["app.kubernetes.io/managed-by"] == "cnat-controller"
	})
	if kept.UID != cronAt.UID {
		t.Error("it is another CronAt")
	}

	// An invalid schedule restarts nothing and is reported once. A suspended CronAt stays.
	annotate("deployment/web", scheduleAnnotation+"=0 25 * * *")
	wantOutput(t, waitWarning(t, namespace, "web", v1alpha1.ReasonInvalidRestartSchedule).Message, `restart-schedule "0 25 \* \* \*" is invalid: hour "25": write `)
	waitNamedCronAt(t, namespace, "deployment-web", "to stay", hasSchedule("@weekly"))
	patch(`{"spec":{"suspend":null}}`)
	waitNamedCronAt(t, namespace, "deployment-web", "to be gone", isGone)
	annotate("deployment/web", "a=b")
	// The API server rejects what the controller accepts: a no-break space.
	annotate("deployment/web", scheduleAnnotation+"=0\u00a04 * * *")
	eventually(t, "the API server's words", func(context.Context) (bool, error) {
		events := kubectl(t, "", "get", "events", "-n", namespace, "--field-selector", "reason="+v1alpha1.ReasonInvalidRestartSchedule)
		return strings.Count(events, "must be a cron expression") == 1 && strings.Count(events, `hour "25"`) == 1, nil
	})
	if warning := waitWarning(t, namespace, "web", v1alpha1.ReasonInvalidRestartSchedule); warning.Count != 1 {
		t.Errorf("%d events of one mistake", warning.Count)
	}
	annotate("deployment/web", scheduleAnnotation+"=0 4 * * *")
	waitNamedCronAt(t, namespace, "deployment-web", "to exist again", exists)
	annotate("deployment/web", scheduleAnnotation+"-")
	waitNamedCronAt(t, namespace, "deployment-web", "to be gone again", isGone)

	// The other kinds, and the garbage collector.
	for kind, name := range map[string]string{"StatefulSet": "statefulset-db", "DaemonSet": "daemonset-db"} {
		kubectl(t, annotatable(kind, "db", fmt.Sprintf("%q: %q", scheduleAnnotation, "@daily")), "create", "-n", namespace, "-f", "-")
		waitNamedCronAt(t, namespace, name, "to exist", hasSchedule("@daily"))
		kubectl(t, "", "delete", "-n", namespace, kind+"/db")
		waitNamedCronAt(t, namespace, name, "to be gone", isGone)
	}

	// A workload that is deleted without its CronAt and created again adopts it.
	lost := annotatable("Deployment", "lost", fmt.Sprintf("%q: %q", scheduleAnnotation, "@daily"))
	kubectl(t, lost, "create", "-n", namespace, "-f", "-")
	orphaned := waitNamedCronAt(t, namespace, "deployment-lost", "to exist", exists)
	kubectl(t, "", "delete", "-n", namespace, "--cascade=orphan", "deployment/lost")
	waitNamedCronAt(t, namespace, "deployment-lost", "to have no owner", func(cronAt *v1alpha1.CronAt) bool {
		return cronAt != nil && len(cronAt.OwnerReferences) == 0
	})
	kubectl(t, strings.ReplaceAll(lost, "@daily", "@weekly"), "create", "-n", namespace, "-f", "-")
	adopted := waitNamedCronAt(t, namespace, "deployment-lost", "to be adopted", func(cronAt *v1alpha1.CronAt) bool {
		return hasSchedule("@weekly")(cronAt) && metav1.GetControllerOf(cronAt) != nil
	})
	if adopted.UID != orphaned.UID || metav1.GetControllerOf(adopted).UID == orphaned.OwnerReferences[0].UID {
		t.Errorf("the adopted CronAt is %+v, before %+v", adopted, orphaned)
	}

	// A user's CronAt is not changed.
	stranger := createCronAt(t, newCronAt(namespace, "@yearly", func(cronAt *v1alpha1.CronAt) { cronAt.Name = "deployment-other" }))
	kubectl(t, annotatable("Deployment", "other", fmt.Sprintf("%q: %q", scheduleAnnotation, "@daily")), "create", "-n", namespace, "-f", "-")
	wantOutput(t, waitWarning(t, namespace, "other", v1alpha1.ReasonCronAtNameConflict).Message, `^CronAt deployment-other already exists and was not created for this Deployment`)
	annotate("deployment/other", scheduleAnnotation+"-")
	if got := waitNamedCronAt(t, namespace, "deployment-other", "to exist", exists); got.UID != stranger.UID || got.Generation != 1 || len(got.OwnerReferences) > 0 {
		t.Errorf("the user's CronAt is %+v", got)
	}
}

// TestRestartAnnotationRefused uses a quota that refuses the CronAt.
func TestRestartAnnotationRefused(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "quota"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/cronats." + cnat.GroupName: resource.MustParse("0")}},
	}
	if _, err := kubeClient.CoreV1().ResourceQuotas(namespace).Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the quota to be in force", func(context.Context) (bool, error) {
		_, err := cnatClient.CnatV1alpha1().CronAts(namespace).Create(t.Context(), newCronAt(namespace, "@yearly"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsForbidden(err), nil
	})
	startController(t, namespace, "-restart-annotations")
	kubectl(t, annotatable("Deployment", "web", fmt.Sprintf("%q: %q", scheduleAnnotation, "@daily")), "create", "-n", namespace, "-f", "-")
	wantOutput(t, waitWarning(t, namespace, "web", v1alpha1.ReasonCronAtRefused).Message, `quota`)
	if err := kubeClient.CoreV1().ResourceQuotas(namespace).Delete(t.Context(), "quota", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitNamedCronAt(t, namespace, "deployment-web", "to exist", exists)
}

// TestRestartAnnotationForbidden runs a controller without the permissions: Ats run, and
// the annotations take effect once the permissions are granted.
func TestRestartAnnotationForbidden(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	clusterRole, _, err := readRBAC(deploy + "/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	user := bindRole(t, namespace, "less", clusterRole.Rules)
	config := filepath.Join(t.TempDir(), "config")
	if err := writeConfig(config, namespace, "less"); err != nil {
		t.Fatal(err)
	}
	waitAllowed(t, user, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "create", Resource: "pods"})
	kubectl(t, annotatable("Deployment", "web", fmt.Sprintf("%q: %q", scheduleAnnotation, "@daily")), "create", "-n", namespace, "-f", "-")
	c := startController(t, namespace, "-restart-annotations", "-kubeconfig="+config)
	waitLog(t, c, "Restart annotations have no effect until the controller can list workloads: grant this user the rules of artifacts/restarts/annotations/rbac.yaml")
	createAt(t, newAt(namespace, "at", time.Now(), "true"))
	endPod(t, waitPod(t, namespace, "at-pod"), corev1.PodSucceeded, 0, "")
	waitPhase(t, namespace, "at", v1alpha1.PhaseDone)
	more := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "more"}}
	for _, dir := range []string{restarts, annotations} {
		clusterRole, _, err := readRBAC(dir + "/rbac.yaml")
		if err != nil {
			t.Fatal(err)
		}
		more.Rules = append(more.Rules, clusterRole.Rules...)
	}
	if _, err := kubeClient.RbacV1().Roles(namespace).Create(t.Context(), more, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "more"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "more"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "less"}},
	}
	if _, err := kubeClient.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitNamedCronAt(t, namespace, "deployment-web", "to exist", exists)
}

// TestControllerCronAtsPolicy uses the controller's token as an attacker: the policy
// cnat-controller-cronats only allows CronAts for annotations.
func TestControllerCronAtsPolicy(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	own := &v1alpha1.CronAt{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: v1alpha1.CronAtKind},
		ObjectMeta: metav1.ObjectMeta{
			Name:            "own",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "web-uid", Controller: ptr.To(true)}},
		},
		Spec: v1alpha1.CronAtSpec{Schedule: "@yearly", AtTemplate: v1alpha1.AtTemplateSpec{Spec: v1alpha1.RunSpec{Restart: &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}}}},
	}
	// The garbage collector would delete it.
	deployment, err := kubeClient.AppsV1().Deployments(namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](0),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "main"}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	own.OwnerReferences[0].UID = deployment.UID
	manifest := func(name string, change func(*v1alpha1.CronAt)) string {
		cronAt := own.DeepCopy()
		cronAt.Name = name
		change(cronAt)
		out, err := json.Marshal(cronAt)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	same := func(*v1alpha1.CronAt) {}
	stranger := func(cronAt *v1alpha1.CronAt) { cronAt.OwnerReferences = nil }
	// Act as the controller.
	try := func(input string, args ...string) (string, error) {
		return tryKubectl(t, input, append(args, "--as="+serviceAccountID, "-n", namespace)...)
	}
	eventually(t, "the policy to be in force", func(context.Context) (bool, error) {
		_, err := try(manifest("none", stranger), "create", "--dry-run=server", "-f", "-")
		return err != nil, nil
	})
	kubectl(t, manifest("stranger", stranger), "create", "-n", namespace, "-f", "-")
	orphan := func(cronAt *v1alpha1.CronAt) {
		stranger(cronAt)
		cronAt.Labels = map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy}
	}
	kubectl(t, manifest("orphan", orphan), "create", "-n", namespace, "-f", "-")
	owner := func(kind, name string) string {
		return fmt.Sprintf(`"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":%q,"name":%q,"uid":%q,"controller":true}]}`, kind, name, deployment.UID)
	}

	create := []string{"create", "-f", "-"}
	patch := func(name, patch string) []string {
		return []string{"patch", "cronat/" + name, "--type=merge", "-p", patch}
	}
	remove := func(name string) []string { return []string{"delete", "--wait=false", "cronat/" + name} }
	// In this order.
	for _, tc := range []struct {
		what   string
		input  string
		args   []string
		denied string // empty: allowed
	}{
		{"create one of a workload", manifest("own", same), create, ""},
		{"create one without an owner", manifest("none", stranger), create, "that a Deployment, StatefulSet or DaemonSet owns"},
		{"create one of another kind", manifest("none", func(cronAt *v1alpha1.CronAt) { cronAt.OwnerReferences[0].Kind = "ReplicaSet" }), create, "that a Deployment, StatefulSet or DaemonSet owns"},
		{"create one of an owner that is no controller", manifest("none", func(cronAt *v1alpha1.CronAt) { cronAt.OwnerReferences[0].Controller = nil }), create, "that a Deployment, StatefulSet or DaemonSet owns"},
		{"create one that restarts another", manifest("none", func(cronAt *v1alpha1.CronAt) { cronAt.Spec.AtTemplate.Spec.Restart.Name = "db" }), create, "that restart their owner"},
		{"create one that restarts another kind", manifest("none", func(cronAt *v1alpha1.CronAt) { cronAt.Spec.AtTemplate.Spec.Restart.Kind = "DaemonSet" }), create, "that restart their owner"},
		{"create one that runs a command", manifest("none", func(cronAt *v1alpha1.CronAt) {
			cronAt.Spec.AtTemplate.Spec = v1alpha1.RunSpec{Command: "true"}
		}), create, "that restart their owner"},
		{"change the schedule", "", patch("own", `{"metadata":{"labels":{"a":"b"}},"spec":{"schedule":"@daily"}}`), ""},
		{"change what it restarts", "", patch("own", `{"spec":{"atTemplate":{"spec":{"restart":{"name":"db"}}}}}`), "that restart their owner"},
		{"make it run a command", "", patch("own", `{"spec":{"atTemplate":{"spec":{"restart":null,"command":"true"}}}}`), "that restart their owner"},
		{"remove the owner", "", patch("own", `{"metadata":{"ownerReferences":null}}`), "nothing of the metadata"},
		{"change an annotation", "", patch("own", `{"metadata":{"annotations":{"a":"b"}}}`), "nothing of the metadata"},
		{"change a stranger's", "", patch("stranger", `{"spec":{"schedule":"@daily"}}`), "that a Deployment, StatefulSet or DaemonSet owns"},
		{"adopt a stranger's", "", patch("stranger", "{"+owner("Deployment", "web")+"}"), "that a Deployment, StatefulSet or DaemonSet owns"},
		{"change an orphan", "", patch("orphan", `{"spec":{"schedule":"@daily"}}`), "that a Deployment, StatefulSet or DaemonSet owns"},
		{"delete an orphan", "", remove("orphan"), "that a Deployment, StatefulSet or DaemonSet owns"},
		{"adopt an orphan for another", "", patch("orphan", "{"+owner("Deployment", "db")+"}"), "that restart their owner"},
		{"adopt an orphan for another kind", "", patch("orphan", "{"+owner("DaemonSet", "web")+"}"), "that restart their owner"},
		{"adopt an orphan for no workload", "", patch("orphan", "{"+owner("ReplicaSet", "web")+"}"), "that a Deployment, StatefulSet or DaemonSet owns"},
		{"adopt an orphan and change it", "", patch("orphan", "{"+owner("Deployment", "web")+`,"spec":{"schedule":"@daily"}}`), "that a Deployment, StatefulSet or DaemonSet owns"},
		{"adopt an orphan", "", patch("orphan", "{"+owner("Deployment", "web")+"}"), ""},
		{"delete a stranger's", "", remove("stranger"), "that a Deployment, StatefulSet or DaemonSet owns"},
		{"delete one of a workload", "", remove("own"), ""},
	} {
		out, err := try(tc.input, tc.args...)
		if tc.denied == "" && err != nil || tc.denied != "" && (err == nil || !strings.Contains(out, tc.denied)) {
			t.Errorf("%s: got %v: %s\nwant %q", tc.what, err, out, tc.denied)
		}
	}
}

// TestRestartAnnotationManifests checks that the flag is added to the existing arguments
// of the Deployment.
func TestRestartAnnotationManifests(t *testing.T) {
	t.Parallel()
	flags := func(path string) []string {
		var found []string
		for line := range strings.Lines(kubectl(t, "", "kustomize", path)) {
			if flag := strings.TrimSpace(line); strings.HasPrefix(flag, "- -") {
				found = append(found, flag)
			}
		}
		return found
	}
	if diff := cmp.Diff(append(flags(deploy), "- -restart-annotations"), flags(annotations)); diff != "" {
		t.Errorf("the flags (-want +got):\n%s", diff)
	}
}

// TestRestartAnnotationMemory compares the memory of controllers with and without the
// flag for many Deployments, few of which have the annotation.
func TestRestartAnnotationMemory(t *testing.T) {
	// The controller-manager is busy with the Deployments for minutes.
	if !inOwnCluster(t) {
		return
	}
	const (
		number    = 2000
		annotated = 10
		limit     = 4 << 20 // bytes
	)
	namespace := newNamespace(t)
	workqueue.ParallelizeUntil(t.Context(), 16, number, func(i int) {
		name := fmt.Sprintf("a-name-of-some-length-%d", i)
		deployment := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{
				Name:        name,
				Labels:      map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/instance": name, "app.kubernetes.io/managed-by": "Helm"},
				Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: strings.Repeat("x", 2000)},
			},
			Spec: appsv1.DeploymentSpec{
				Replicas: ptr.To[int32](0),
				// Keep the controller-manager from creating ReplicaSets, which are irrelevant here.
				Paused:   true,
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "main"}}}},
			},
		}
		if i < annotated {
			deployment.Annotations[scheduleAnnotation] = "0 3 * * 1-5"
		}
		if _, err := kubeClient.AppsV1().Deployments(namespace).Create(t.Context(), deployment, metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
	})

	plain, err := static()
	if err != nil {
		t.Fatal(err)
	}
	measure := func(flags ...string) int {
		t.Helper()
		c := startBinary(t, plain, []string{"GOGC=10"}, namespace, slices.Concat([]string{"-metrics-bind-address=127.0.0.1:0", "-health-probe-bind-address=127.0.0.1:0", "-v=2"}, flags)...)
		url := served(t, c, "health")
		eventually(t, "the controller to be ready", func(context.Context) (bool, error) {
			status, _ := get(t, url+"/readyz", "")
			return status == http.StatusOK, nil
		})
		if len(flags) > 0 {
			eventually(t, "the CronAts", func(ctx context.Context) (bool, error) {
				cronAts, err := cnatClient.CnatV1alpha1().CronAts(namespace).List(ctx, metav1.ListOptions{})
				return err == nil && len(cronAts.Items) == annotated, err
			})
		}
		time.Sleep(5 * time.Second)
		size := heap(t, c)
		t.Logf("with the flags %v the heap has %d KiB, the controller %d MiB, at most %d MiB", flags, size>>10, memory(t, c, "VmRSS")>>20, memory(t, c, "VmHWM")>>20)
		return size
	}
	without := measure()
	if with := measure("-restart-annotations"); with-without > limit {
		t.Errorf("the annotations cost %d KiB for %d Deployments, want at most %d KiB", (with-without)>>10, number, limit>>10)
	}
}
