//go:build e2e

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
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

// TestRehearsal rehearses what a node can start. Nothing of it runs before its time, and how
// it runs then shows what a rehearsal does not find out.
func TestRehearsal(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	allowNodeAccess(t, namespace)
	ran := t.TempDir() // has a file for each command that has run
	type row struct {
		spec func(spec *v1alpha1.AtSpec)
		// expectations
		rehearsed string // the reason of condition Rehearsed; Passed if empty
		reason    string // of the end; Completed if empty
		message   string // of the end
	}
	container := func(change func(*corev1.Container)) func(*v1alpha1.AtSpec) {
		return func(spec *v1alpha1.AtSpec) {
			spec.Template = newTemplate("true")
			change(&spec.Template.Spec.Containers[0])
		}
	}
	table := map[string]row{
		"command": {spec: func(spec *v1alpha1.AtSpec) { spec.Command = "true" }},
		"node":    {spec: func(spec *v1alpha1.AtSpec) { spec.Command, spec.Node = "true", "localhost" }},
		"nodes":   {spec: func(spec *v1alpha1.AtSpec) { spec.Command, spec.Nodes = "true", &v1alpha1.AtNodes{} }},
		"each kind of container": {spec: func(spec *v1alpha1.AtSpec) {
			spec.Template = newTemplate("echo > /ran/command; until [ -e /ran/sidecar ] && [ -e /ran/hook ] && [ -e /ran/probe ]; do sleep 0.1; done")
			touch := func(name string) []string { return []string{"/bin/sh", "-c", "echo > /ran/" + name} }
			pod := &spec.Template.Spec
			pod.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: touch("hook")}}}
			pod.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: touch("probe")}}}
			pod.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "ran", MountPath: "/ran"}}
			pod.Volumes = []corev1.Volume{{Name: "ran", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: ran}}}}
			init, sidecar := *pod.Containers[0].DeepCopy(), *pod.Containers[0].DeepCopy()
			init.Name, init.Command, init.Lifecycle, init.ReadinessProbe = "init", touch("init"), nil, nil
			sidecar.Name, sidecar.Command, sidecar.Lifecycle, sidecar.ReadinessProbe = "sidecar", touch("sidecar; exec sleep 3600"), nil, nil
			sidecar.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
			pod.InitContainers = []corev1.Container{init, sidecar}
			pod.TerminationGracePeriodSeconds = ptr.To[int64](1) // of the sidecar
		}},
		"what an init container makes": {spec: func(spec *v1alpha1.AtSpec) {
			spec.Template = newTemplate("test -f /etc/made && pwd | grep /ran/dir")
			pod := &spec.Template.Spec
			pod.Volumes = []corev1.Volume{{Name: "ran", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: ran}}}}
			init := *pod.Containers[0].DeepCopy()
			init.Name, init.Command = "init", []string{"/bin/sh", "-c", "mkdir /ran/dir && echo > /ran/made"}
			init.VolumeMounts = []corev1.VolumeMount{{Name: "ran", MountPath: "/ran"}}
			pod.InitContainers = []corev1.Container{init}
			pod.Containers[0].WorkingDir = "/ran/dir"
			pod.Containers[0].VolumeMounts = append(init.VolumeMounts, corev1.VolumeMount{Name: "ran", MountPath: "/etc/made", SubPath: "made"})
		}},
		"a scheduling gate": {
			spec: func(spec *v1alpha1.AtSpec) {
				spec.Template, spec.ActiveDeadlineSeconds = newTemplate("true"), ptr.To[int64](5)
				spec.Template.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/gate"}}
			},
			rehearsed: v1alpha1.ReasonRehearsalUnschedulable, reason: v1alpha1.ReasonDeadlineExceeded,
		},
		"a pull secret that is not needed": {spec: func(spec *v1alpha1.AtSpec) {
			spec.Template = newTemplate("true")
			spec.Template.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "none"}}
		}},
		"no such program": {
			spec:   container(func(c *corev1.Container) { c.Command = []string{"/none"} }),
			reason: v1alpha1.ReasonCommandFailed, message: `exec: "/none": .*no such file or directory`,
		},
		"not executable": {
			spec:   container(func(c *corev1.Container) { c.Command = []string{"/etc/passwd"} }),
			reason: v1alpha1.ReasonCommandFailed, message: `exec: "/etc/passwd": permission denied`,
		},
		"wrong user": {
			spec: container(func(c *corev1.Container) {
				c.Command, c.SecurityContext = []string{"/bin/sh", "-c", "echo > /etc/passwd"}, &corev1.SecurityContext{RunAsUser: ptr.To[int64](65534)}
			}),
			reason: v1alpha1.ReasonCommandFailed, message: `can't create /etc/passwd: Permission denied`,
		},
		"an image with the program": {
			spec: container(func(c *corev1.Container) {
				c.Image, c.ImagePullPolicy = "localhost/with-the-program:"+namespace, corev1.PullNever
				c.Command = []string{"/none"}
			}),
			rehearsed: v1alpha1.ReasonContainerStarted, reason: v1alpha1.ReasonCommandFailed,
		},
	}
	ats := map[string]*v1alpha1.At{}
	for name, tc := range table {
		at := newAt(namespace, dashes(name), time.Now().Add(time.Hour), "")
		at.Spec.Rehearse = true
		tc.spec(&at.Spec)
		ats[name] = createAt(t, at)
	}
	unlucky := ats["an image with the program"]
	program := filepath.Join(t.TempDir(), "cnat-rehearsal-"+string(unlucky.UID))
	if err := os.Symlink("/bin/busybox", program); err != nil {
		t.Fatal(err)
	}
	loadImage(t, unlucky.Spec.Template.Spec.Containers[0].Image+"="+program)
	soon := newAt(namespace, "soon", time.Now().Add(10*time.Second), "true")
	soon.Spec.Rehearse = true
	createAt(t, soon)
	cronAt, err := cnatClient.CnatV1alpha1().CronAts(namespace).Create(t.Context(), &v1alpha1.CronAt{
		ObjectMeta: metav1.ObjectMeta{Name: "cronat"},
		Spec:       v1alpha1.CronAtSpec{Schedule: "0 0 1 1 *", AtTemplate: v1alpha1.AtTemplateSpec{Spec: v1alpha1.RunSpec{Command: "true", Rehearse: true}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stop := watchPods(t, namespace)
	startController(t, namespace, "-rehearsals-per-namespace=10")

	for name, tc := range table {
		t.Run(name, func(t *testing.T) {
			at := waitAt(t, namespace, ats[name].Name, "to be rehearsed", func(at *v1alpha1.At) bool { return at.Status.RehearsedAt != nil })
			want := tc.rehearsed
			if want == "" {
				want = v1alpha1.ReasonPassed
			}
			rehearsed := meta.FindStatusCondition(at.Status.Conditions, v1alpha1.ConditionRehearsed)
			if rehearsed == nil || rehearsed.Reason != want || meta.IsStatusConditionTrue(at.Status.Conditions, v1alpha1.ConditionBlocked) {
				t.Errorf("conditions %+v, want Rehearsed with reason %s, and not Blocked", at.Status.Conditions, want)
			}
			if tc.rehearsed != "" {
				waitEvents(t, at, map[string]int32{tc.rehearsed: 1})
			}
		})
	}
	waitFor(t, namespace, v1alpha1.ConditionRehearsed, "cronat/cronat")
	waitRehearsalsGone(t, namespace)
	if files, err := os.ReadDir(ran); err != nil || len(files) > 0 {
		t.Errorf("rehearsals have run %v, %v", files, err)
	}
	waitFor(t, namespace, v1alpha1.ConditionComplete, "at/soon")

	rehearsals := map[types.UID]int{}
	for _, pod := range stop() {
		of := types.UID(pod.Labels[v1alpha1.LabelRehearsalOf])
		if of == "" {
			if pod.Name != "soon-pod" {
				t.Errorf("Pod %s was created", pod.Name)
			}
			continue
		}
		rehearsals[of]++
		// A Service, a quota or a NetworkPolicy cannot select it by a label of the template.
		if diff := cmp.Diff(map[string]string{v1alpha1.LabelRehearsalOf: string(of)}, pod.Labels); diff != "" {
			t.Errorf("labels of Pod %s (-want +got):\n%s", pod.Name, diff)
		}
		if owner := metav1.GetControllerOf(&pod); owner == nil || owner.UID != of || len(pod.Finalizers) > 0 {
			t.Errorf("Pod %s: owner %+v, finalizers %v", pod.Name, owner, pod.Finalizers)
		}
	}
	// A rehearsal is repeated if the API server was too slow to confirm the creation of its Pod, also
	// to a controller that no longer waited, whose next creation is a conflict.
	created := map[string]int{}
	for _, creation := range requestsOf(t, namespace, "create", "pods") {
		if code := creation.ResponseStatus.Code; code >= http.StatusInternalServerError || code == http.StatusConflict {
			created[creation.ObjectRef.Name]++
		}
	}
	number := func(object metav1.Object) int {
		return min(rehearsals[object.GetUID()], 1+created[object.GetName()+"-rehearsal"])
	}
	want := map[types.UID]int{cronAt.UID: max(1, number(cronAt))}
	for _, at := range ats {
		want[at.UID] = max(1, number(at))
	}
	if diff := cmp.Diff(want, rehearsals); diff != "" {
		t.Errorf("rehearsals (-want +got):\n%s", diff)
	}

	for _, at := range ats {
		patchAt(t, namespace, at.Name, `{"spec":{"schedule":"`+time.Now().UTC().Format(time.RFC3339)+`"}}`)
	}
	for name, tc := range table {
		t.Run(name+" at its time", func(t *testing.T) {
			at := waitPhase(t, namespace, ats[name].Name, v1alpha1.PhaseDone)
			if tc.reason == "" {
				wantEnd(t, at, v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
				return
			}
			wantEnd(t, at, v1alpha1.ConditionFailed, tc.reason)
			wantOutput(t, at.Status.Message, tc.message)
		})
	}
	for _, name := range []string{"init", "sidecar", "command", "hook", "probe"} {
		if _, err := os.Stat(filepath.Join(ran, name)); err != nil {
			t.Errorf("the run has not run %s: %v", name, err)
		}
	}
}

// TestRehearsalAsAdmitted compares the Pod of a rehearsal with that of its run: in a namespace with
// defaults and a quota that is just enough, both ask for the same. Then it asks for another rehearsal.
func TestRehearsalAsAdmitted(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	allowNodeAccess(t, namespace)
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	defaults := corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Default: list("100m", "64Mi"), DefaultRequest: list("50m", "32Mi")}
	if _, err := kubeClient.CoreV1().LimitRanges(namespace).Create(t.Context(), &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Name: "defaults"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{defaults}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kubeClient.CoreV1().ResourceQuotas(namespace).Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "enough"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			corev1.ResourceRequestsCPU: resource.MustParse("150m"), corev1.ResourceLimitsCPU: resource.MustParse("150m"),
			corev1.ResourceRequestsMemory: resource.MustParse("32Mi"), corev1.ResourceLimitsMemory: resource.MustParse("64Mi"),
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	at := newAt(namespace, "at", time.Now().Add(time.Hour), "")
	at.Spec.Rehearse, at.Spec.Template = true, newTemplate("true")
	pod := &at.Spec.Template.Spec
	pod.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 18080, HostPort: 18080}}
	init := *pod.Containers[0].DeepCopy()
	init.Name, init.Ports = "init", nil
	init.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("150m")} // and no request
	pod.InitContainers = []corev1.Container{init}
	createAt(t, at)
	stop := watchPods(t, namespace)
	startController(t, namespace)

	waitFor(t, namespace, v1alpha1.ConditionRehearsed, "at/at")
	first := waitAt(t, namespace, "at", "", func(*v1alpha1.At) bool { return true }).Status.RehearsedAt
	patchAt(t, namespace, "at", `{"metadata":{"annotations":{"`+v1alpha1.AnnotationRehearsalRequestedAt+`":"`+first.Add(time.Second).UTC().Format(time.RFC3339)+`"}}}`)
	waitAt(t, namespace, "at", "to be rehearsed again", func(at *v1alpha1.At) bool { return first.Before(at.Status.RehearsedAt) })
	waitFor(t, namespace, v1alpha1.ConditionRehearsed, "at/at")
	waitRehearsalsGone(t, namespace)
	patchAt(t, namespace, "at", `{"spec":{"schedule":"`+time.Now().UTC().Format(time.RFC3339)+`"}}`)
	wantEnd(t, waitPhase(t, namespace, "at", v1alpha1.PhaseDone), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)

	rehearsals, runs := 0, 0
	for _, pod := range stop() {
		if pod.Labels[v1alpha1.LabelRehearsalOf] != "" {
			rehearsals++
		} else {
			runs++
		}
		options := resourcehelper.PodResourcesOptions{}
		if diff := cmp.Diff(list("150m", "32Mi"), resourcehelper.PodRequests(&pod, options)); diff != "" {
			t.Errorf("Pod %s requests (-want +got):\n%s", pod.Name, diff)
		}
		if diff := cmp.Diff(list("150m", "64Mi"), resourcehelper.PodLimits(&pod, options)); diff != "" {
			t.Errorf("limits of Pod %s (-want +got):\n%s", pod.Name, diff)
		}
		if ports := pod.Spec.Containers[0].Ports; len(ports) != 1 || ports[0].HostPort != 18080 {
			t.Errorf("Pod %s has the ports %+v", pod.Name, ports)
		}
	}
	if rehearsals < 2 || runs != 1 {
		t.Errorf("%d rehearsals and %d runs, want two and one", rehearsals, runs)
	}
}

// TestPodDoesNotStart lets the Pods of Ats fail in each way: of one At at its time, and of another,
// which is due in an hour, in its rehearsal.
func TestPodDoesNotStart(t *testing.T) {
	t.Parallel()
	removeVolumes(t)
	namespace := newNamespace(t)
	startRegistry(t, namespace)
	faults := podFaults()
	// Ats and objects are named after the fault, and images and objects of the cluster also
	// after the namespace, for a cluster in which this test has run before.
	nameOf := func(fault string) string { return dashes(strings.ToLower(fault)) + "-" + namespace[len(namespace)-5:] }
	for name, fault := range faults {
		if fault.prepare != nil {
			fault.prepare(t, namespace, nameOf(name))
		}
	}
	startController(t, namespace, "-rehearsals=100", "-rehearsals-per-namespace=100")
	early, due := map[string]*v1alpha1.At{}, map[string]*v1alpha1.At{}
	for name, fault := range faults {
		at := newAt(namespace, nameOf(name), time.Now(), "")
		at.Spec.Template = newTemplate("true")
		fault.change(&at.Spec.Template.Spec, nameOf(name))
		due[name] = createAt(t, at)
		at.Name += "-early"
		at.Spec.Schedule, at.Spec.Rehearse = time.Now().Add(time.Hour).UTC().Format(time.RFC3339), true
		early[name] = createAt(t, at)
	}
	for name, fault := range faults {
		message := strings.ReplaceAll(fault.message, "NAME", nameOf(name))
		t.Run(name+", rehearsed", func(t *testing.T) {
			blocked := waitBlockedAt(t, namespace, early[name].Name, fault.reason)
			wantOutput(t, blocked.Message, `^Rehearsed at 20\S+Z: `+strings.TrimPrefix(message, "^"))
			at := waitAt(t, namespace, early[name].Name, "", func(*v1alpha1.At) bool { return true })
			rehearsed := meta.FindStatusCondition(at.Status.Conditions, v1alpha1.ConditionRehearsed)
			if rehearsed == nil || rehearsed.Status != metav1.ConditionFalse || rehearsed.Reason != fault.reason || rehearsed.Message != blocked.Message || at.Status.RehearsedAt == nil {
				t.Errorf("condition Rehearsed %+v, rehearsed at %v; want False with reason %s", rehearsed, at.Status.RehearsedAt, fault.reason)
			}
		})
		t.Run(name+", at its time", func(t *testing.T) {
			blocked := waitBlockedAt(t, namespace, due[name].Name, fault.reason)
			wantOutput(t, blocked.Message, message)
		})
	}

	for name, fault := range faults {
		if fault.fix != nil {
			fault.fix(t, namespace, nameOf(name))
		}
		patch := `{"spec":{"schedule":"2035-12-24T10:12:00Z"}}`
		if fault.fix == nil {
			patch = `{"spec":{"template":null,"command":"true"}}`
		}
		patchAt(t, namespace, early[name].Name, patch)
	}
	for name, fault := range faults {
		t.Run(name+", fixed", func(t *testing.T) {
			waitFor(t, namespace, v1alpha1.ConditionRehearsed, "at/"+early[name].Name)
			at := waitPhase(t, namespace, early[name].Name, v1alpha1.PhasePending)
			if at.Status.Reason != "" || at.Status.Message != "" {
				t.Errorf("status %s: %s, want none", at.Status.Reason, at.Status.Message)
			}
			waitEvents(t, early[name], map[string]int32{fault.reason: 1})
			events := map[string]int32{v1alpha1.ReasonSuccessfulCreate: 1, fault.reason: 1}
			switch {
			case fault.slow:
				return // It may have run, or not yet.
			case fault.fix != nil:
				wantEnd(t, waitPhase(t, namespace, due[name].Name, v1alpha1.PhaseDone), v1alpha1.ConditionComplete, v1alpha1.ReasonCompleted)
				events[v1alpha1.ReasonCompleted] = 1
			case name == "no image":
				kubectl(t, "", "patch", "-n", namespace, "at", due[name].Name, "--type=merge", "-p", `{"spec":{"activeDeadlineSeconds":1}}`)
				done := waitPhase(t, namespace, due[name].Name, v1alpha1.PhaseDone)
				wantEnd(t, done, v1alpha1.ConditionFailed, v1alpha1.ReasonDeadlineExceeded)
				wantOutput(t, done.Status.Message, `localhost:1/none:1`) // the obstacle
				events[v1alpha1.ReasonDeadlineExceeded] = 1
			}
			waitEvents(t, due[name], events)
		})
	}
	waitRehearsalsGone(t, namespace)
}

// watchPods collects the Pods of a namespace, by UID, until the function that it returns is
// called.
func watchPods(t *testing.T, namespace string) (stop func() map[types.UID]corev1.Pod) {
	t.Helper()
	list, err := kubeClient.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watcher := retryWatch(t.Context(), t, list.ResourceVersion, kubeClient.CoreV1().Pods(namespace).Watch)
	pods := map[types.UID]corev1.Pod{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for event := range watcher.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok {
				t.Errorf("the watch ended: %v", event.Object)
				return
			}
			pods[pod.UID] = *pod
		}
	})
	return func() map[types.UID]corev1.Pod {
		watcher.Stop()
		wg.Wait()
		return pods
	}
}

// patchAt edits an At like a user.
func patchAt(t *testing.T, namespace, name, patch string) {
	t.Helper()
	if _, err := cnatClient.CnatV1alpha1().Ats(namespace).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// newTemplate returns the template of a Pod with one container, main, that runs a command.
func newTemplate(command string) *corev1.PodTemplateSpec {
	return &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		AutomountServiceAccountToken: ptr.To(false), // A volume less to wait for.
		Containers:                   []corev1.Container{{Name: "main", Image: "busybox:1.37.0", Command: []string{"/bin/sh", "-c", command}}},
	}}
}
