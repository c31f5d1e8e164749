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

package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
)

const path = "/cnat-rehearsal-at-uid"

// TestNewRehearsalPod covers what a rehearsal takes from the Pod of the run.
func TestNewRehearsalPod(t *testing.T) {
	const container = `image: image, command: [run], args: [it], workingDir: /data, env: [{name: A, value: B}], volumeMounts: [{name: v, mountPath: /v}],
		ports: [{containerPort: 80}, {containerPort: 81, hostPort: 81}], imagePullPolicy: Always, livenessProbe: {}, readinessProbe: {}, startupProbe: {}, lifecycle: {}, stdin: true, tty: true`
	const left = `image: image, command: [/cnat-rehearsal-at-uid], env: [{name: A, value: B}], volumeMounts: [{name: v, mountPath: /v}],
		imagePullPolicy: Always, terminationMessagePolicy: FallbackToLogsOnError`
	at := newAt()
	at.Spec.Template = parse[corev1.PodTemplateSpec](`{metadata: {labels: {app: web}, annotations: {network: a}}, spec: {
		containers: [{name: main, ` + container + `}], initContainers: [{name: init, ` + container + `}, {name: sidecar, restartPolicy: Always, ` + container + `}],
		restartPolicy: OnFailure, priorityClassName: high, preemptionPolicy: PreemptLowerPriority, priority: 1, nodeSelector: {disk: ssd}, serviceAccountName: account,
		imagePullSecrets: [{name: pull}], tolerations: [{key: gpu}], terminationGracePeriodSeconds: 600, activeDeadlineSeconds: 5, readinessGates: [{conditionType: gate}], volumes: [{name: v}]}}`)
	run := NewPod(at, Defaults{})
	before := run.DeepCopy()

	got := NewRehearsalPod(at, v1alpha1.AtKind, run)

	want := parse[corev1.Pod](`{metadata: {name: example-at-rehearsal, namespace: default, labels: {cnat.programming-kubernetes.info/rehearsal-of: at-uid},
		annotations: {network: a, kubectl.kubernetes.io/default-container: main}}, spec: {
		containers: [{name: main, ports: [{containerPort: 81, hostPort: 81}], ` + left + `}, {name: init, workingDir: /data, ` + left + `}, {name: sidecar, ports: [{containerPort: 81, hostPort: 81}], ` + left + `}],
		restartPolicy: Never, nodeSelector: {disk: ssd}, serviceAccountName: account,
		imagePullSecrets: [{name: pull}], tolerations: [{key: gpu}], terminationGracePeriodSeconds: 1, activeDeadlineSeconds: 720, volumes: [{name: v}]}}`)
	want.OwnerReferences = run.OwnerReferences
	expect(t, "rehearsal", want, got)
	expect(t, "the Pod of the run", before, run)
	if AtName(got) != at.Name || IsTracked(got) {
		t.Error("the controller would take the rehearsal for an attempt")
	}
	at.Name = strings.Repeat("a", 253)
	if name := NewRehearsalPod(at, v1alpha1.AtKind, run).Name; len(name) != 63 || !strings.HasSuffix(name, "-rehearsal") {
		t.Errorf("the name of a long At is %s", name)
	}
}

// TestRehearsalResources covers that a rehearsal needs as much room as the run, although all
// of its containers run at the same time.
func TestRehearsalResources(t *testing.T) {
	// with is what a container requests and its limits, same is that of one in which both are equal.
	with := func(requests, limits string) string {
		return "resources: {requests: {" + requests + "}, limits: {" + limits + "}}"
	}
	same := func(amounts string) string { return with(amounts, amounts) }
	for name, tc := range map[string]struct{ main, inits, wantRequests, wantLimits string }{
		"each larger in something":          {same("cpu: 2, memory: 1Gi"), "{name: a, " + same("cpu: 5, memory: 1Mi") + "}, {name: b, " + same("cpu: 1, memory: 4Gi") + "}", "cpu: 5, memory: 4Gi", "cpu: 5, memory: 4Gi"},
		"an init container before sidecars": {same("cpu: 1"), "{name: a, " + same("cpu: 3") + "}, {name: b, restartPolicy: Always, " + same("cpu: 1") + "}", "cpu: 3", "cpu: 3"},
		"a GPU of an init container":        {same("cpu: 1"), "{name: a, " + same("nvidia.com/gpu: 1") + "}", "cpu: 1, nvidia.com/gpu: 1", "cpu: 1, nvidia.com/gpu: 1"},
		// The limit of the other has room for its request.
		"a smaller limit, a larger request": {with("cpu: 1", "cpu: 8"), "{name: a, " + same("cpu: 4") + "}", "cpu: 4", "cpu: 8"},
		"a larger limit, a larger request":  {with("cpu: 50m", "cpu: 100m"), "{name: a, " + same("cpu: 150m") + "}", "cpu: 150m", "cpu: 150m"},
	} {
		t.Run(name, func(t *testing.T) {
			run := parse[corev1.Pod]("{spec: {containers: [{name: main, " + tc.main + "}], initContainers: [" + tc.inits + "]}}")
			rehearsal := NewRehearsalPod(newAt(), v1alpha1.AtKind, run)
			options := resourcehelper.PodResourcesOptions{}
			got := corev1.ResourceRequirements{Requests: resourcehelper.PodRequests(rehearsal, options), Limits: resourcehelper.PodLimits(rehearsal, options)}
			expect(t, "resources", *parse[corev1.ResourceRequirements]("{requests: {" + tc.wantRequests + "}, limits: {" + tc.wantLimits + "}}"), got)
			for _, c := range rehearsal.Spec.Containers {
				for name, limit := range c.Resources.Limits {
					if request := c.Resources.Requests[name]; request.Cmp(limit) > 0 {
						t.Errorf("container %s requests %s of %s, more than its limit %s", c.Name, request.String(), name, limit.String())
					}
				}
			}
		})
	}
}

// TestAsAdmitted covers what a rehearsal takes from the Pod that the API server would store.
func TestAsAdmitted(t *testing.T) {
	run := parse[corev1.Pod](`{spec: {containers: [{name: main, image: a}]}}`)
	admitted := parse[corev1.Pod](`{spec: {nodeName: node, resources: {requests: {cpu: 2}}, containers: [{name: proxy}, {name: main, image: b, ports: [{containerPort: 80}]}]}}`)
	want := parse[corev1.Pod](`{spec: {resources: {requests: {cpu: 2}}, containers: [{name: main, image: a, ports: [{containerPort: 80}]}]}}`)
	expect(t, "AsAdmitted", want, AsAdmitted(run, admitted))
}

// TestRehearsalWithoutInit covers what a rehearsal leaves out, because an init container may make
// it, which does not run.
func TestRehearsalWithoutInit(t *testing.T) {
	const (
		token = `{name: TOKEN, valueFrom: {fileKeyRef: {volumeName: work, path: env, key: TOKEN}}}`
		file  = `{name: work, mountPath: /etc/app.conf, subPath: app.conf}`
		main  = `{name: main, command: [/cnat-rehearsal-at-uid], workingDir: /data/dir, env: [{name: A}, ` + token + `],
			volumeMounts: [{name: work, mountPath: /data}, ` + file + `, {name: work, mountPath: /etc/app.conf, subPathExpr: $(A)}, {name: other, mountPath: /etc/other.conf, subPath: other.conf}]}`
		left  = `{name: main, command: [/cnat-rehearsal-at-uid], env: [{name: A}], volumeMounts: [{name: work, mountPath: /data}, {name: other, mountPath: /etc/other.conf, subPath: other.conf}]}`
		first = `{name: first, command: [/cnat-rehearsal-at-uid], workingDir: /data, env: [` + token + `], volumeMounts: [` + file + `]}`
	)
	for name, tc := range map[string]struct{ inits, want string }{
		"no init container":    {`[]`, main},
		"one that only reads":  {`[{name: init, volumeMounts: [{name: work, mountPath: /data, readOnly: true}]}]`, main + `, {name: init, command: [/cnat-rehearsal-at-uid], volumeMounts: [{name: work, mountPath: /data, readOnly: true}]}`},
		"one that may make it": {`[{name: init, volumeMounts: [{name: work, mountPath: /data}]}]`, left + `, {name: init, command: [/cnat-rehearsal-at-uid], volumeMounts: [{name: work, mountPath: /data}]}`},
		"for another init container": {
			`[` + first + `, {name: second, workingDir: /data, env: [` + token + `], volumeMounts: [` + file + `]}]`,
			left + `, ` + first + `, {name: second, command: [/cnat-rehearsal-at-uid]}`,
		},
	} {
		run := parse[corev1.Pod](`{spec: {containers: [` + main + `], initContainers: ` + tc.inits + `}}`)
		want := parse[corev1.PodSpec](`{containers: [` + tc.want + `]}`).Containers
		expect(t, name, want, NewRehearsalPod(newAt(), v1alpha1.AtKind, run).Spec.Containers, cmpopts.EquateEmpty())
	}
}

// newRun is the Pod of a run with two containers.
func newRun() *corev1.Pod {
	run := pendingPod()
	run.Spec.Containers = append(run.Spec.Containers, corev1.Container{Name: "second"})
	return run
}

// rehearsal is the Pod of its rehearsal, which was created at due.
func rehearsal(mutate ...func(*corev1.Pod)) *corev1.Pod {
	pod := NewRehearsalPod(newAt(), v1alpha1.AtKind, newRun())
	pod.CreationTimestamp, pod.Status.Phase, pod.Spec.NodeName = metav1.Time{Time: due}, corev1.PodPending, "node"
	return edited(pod, mutate...)
}

// TestJudgeRehearsal covers each result of a rehearsal.
func TestJudgeRehearsal(t *testing.T) {
	const notFound = `failed to create containerd task: exec: "` + path + `": stat ` + path + `: no such file or directory`
	started := func(name string) corev1.ContainerStatus { return exited(name, 128, "StartError", notFound) }
	failed := func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }
	mount := &PodEvent{Warning: true, Reason: "FailedMount", Message: "words", Time: due}
	pulling := &PodEvent{Reason: "Pulling", Message: "words", Time: due}
	creating := withContainers(waits("command", "ContainerCreating", ""), waits("second", "ContainerCreating", ""))
	refusedBy := func(reason string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Status.Reason, pod.Status.Message = reason, "words" }
	}
	const see = ". See kubectl describe pod example-at-rehearsal -n default"

	for name, tc := range map[string]struct {
		pod      *corev1.Pod
		event    *PodEvent
		unknown  bool // the events
		age      time.Duration
		priority string
		want     string // none: it goes on
	}{
		"containerd: passed": {
			pod:  rehearsal(failed, withContainers(started("command"), started("second"))),
			want: "Passed: Each container got as far as the start of its command.",
		},
		"CRI-O: passed": {
			pod: rehearsal(withContainers(waits("command", "CreateContainerError", "executable file `"+path+"` not found"), started("second"))), age: time.Hour,
			want: "Passed: Each container got as far as the start of its command.",
		},
		"passed beside an injected one": {
			pod:  rehearsal(withContainers(started("command"), started("second"), runs("proxy"))),
			want: "Passed: Each container got as far as the start of its command.",
		},
		"the second is not created yet": {pod: rehearsal(sandboxed, withContainers(started("command"), waits("second", "ContainerCreating", ""))), age: RehearsalTime - time.Second},
		"an error that may pass":        {pod: rehearsal(withContainers(started("command"), waits("second", "CreateContainerConfigError", "secret not found"))), age: rehearsalSettle - 1},
		"an error that lasts": {
			pod: rehearsal(withContainers(started("command"), waits("second", "CreateContainerConfigError", "secret not found"))), age: rehearsalSettle,
			want: "ContainerNotCreated: Container second: CreateContainerConfigError: secret not found",
		},
		"of an injected one: not ours": {
			pod: rehearsal(withContainers(started("command"), waits("second", "ContainerCreating", ""), waits("proxy", "CreateContainerConfigError", "secret not found"))),
			age: rehearsalSettle,
		},
		"another error of the start": {
			pod:  rehearsal(withContainers(exited("command", 128, "StartError", "error mounting"), started("second"))),
			want: "ContainerNotCreated: Container command: StartError: error mounting",
		},
		"one runs": {
			pod:  rehearsal(withContainers(runs("command"), started("second"))),
			want: "ContainerStarted: Container command started: a webhook may have replaced its command, or its image has a program at " + path + ". The Pod was deleted.",
		},
		"one ran, and names the path": {
			pod:  rehearsal(withContainers(exited("command", 1, "Error", "I am "+path), started("second"))),
			want: "ContainerStarted: Container command started: a webhook may have replaced its command, or its image has a program at " + path + ". The Pod was deleted.",
		},
		"its node knows nothing of one": {pod: rehearsal(withContainers(exited("command", 137, statusUnknown, ""), started("second")))},
		"no node, for a minute":         {pod: rehearsal(unschedulable(due)), age: Grace - 1},
		"a node is being added":         {pod: rehearsal(unschedulable(due)), event: &PodEvent{Reason: "TriggeredScaleUp", Time: due}, age: RehearsalTime - 1},
		"a node may be being added":     {pod: rehearsal(unschedulable(due)), unknown: true, age: RehearsalTime - 1},
		"Karpenter adds a node":         {pod: rehearsal(unschedulable(due)), event: &PodEvent{Reason: "Nominated", Time: due}, age: RehearsalTime - 1},
		"the autoscaler adds no node": {
			pod: rehearsal(unschedulable(due)), event: &PodEvent{Reason: "NotTriggerScaleUp", Time: due}, age: Grace,
			want: "Unschedulable: Pod example-at-rehearsal: 0/1 nodes are available",
		},
		"no node is added": {
			pod: rehearsal(unschedulable(due)), event: &PodEvent{Reason: "TriggeredScaleUp", Time: due}, age: RehearsalTime,
			want: "Unschedulable: Pod example-at-rehearsal: 0/1 nodes are available",
		},
		"no node, but the run may preempt": {
			pod: rehearsal(unschedulable(due)), age: Grace, priority: "high",
			want: "RehearsalUnschedulable: Pod example-at-rehearsal: 0/1 nodes are available A rehearsal has neither the priority class nor the labels of the run.",
		},
		"a warning, soon": {pod: rehearsal(creating), event: mount, age: EventDelay - 1},
		"a warning":       {pod: rehearsal(creating), event: mount, age: EventDelay, want: "VolumeNotMounted: Pod example-at-rehearsal: FailedMount: words"},
		"a node that never reads": {
			pod: rehearsal(creating), event: unread(due.Add(time.Minute)), age: rehearsalSilence,
			want: "PodPending: Pod example-at-rehearsal: the command has not started for a minute: FailedMount: " + unread(due).Message + see,
		},
		"silence":               {pod: rehearsal(creating), age: rehearsalSilence - 1},
		"silence, for too long": {pod: rehearsal(creating), age: rehearsalSilence, want: "PodPending: Pod example-at-rehearsal: the command has not started for a minute" + see},
		"a gate": {
			pod: rehearsal(gated), age: Grace,
			want: "RehearsalUnschedulable: Pod example-at-rehearsal: SchedulingGated: gates Nothing has removed the scheduling gates of the rehearsal.",
		},
		"a gate, for a minute":          {pod: rehearsal(gated), age: Grace - 1},
		"silence, or unknown events":    {pod: rehearsal(creating), unknown: true, age: RehearsalTime - 1},
		"silence since it has a node":   {pod: rehearsal(creating, scheduled(due.Add(time.Second))), age: rehearsalSilence},
		"silence since its status":      {pod: rehearsal(creating, writtenAt(due.Add(time.Second))), age: rehearsalSilence},
		"silence since an event":        {pod: rehearsal(creating), event: &PodEvent{Reason: "SuccessfulAttachVolume", Time: due.Add(time.Second)}, age: rehearsalSilence},
		"it pulls":                      {pod: rehearsal(creating, sandboxed), event: pulling, age: RehearsalTime - 1},
		"it pulls, for too long":        {pod: rehearsal(creating, sandboxed), event: pulling, age: RehearsalTime, want: "PodPending: Pod example-at-rehearsal: the command has not started for a minute: Pulling: words" + see},
		"the node has no room any more": {pod: rehearsal(failed, refusedBy("OutOfcpu")), want: "Evicted: Pod example-at-rehearsal failed: OutOfcpu: words"},
		"the node is shut down":         {pod: rehearsal(failed, refusedBy("NodeShutdown")), want: "Evicted: Pod example-at-rehearsal failed: NodeShutdown: words"},
		"the node refuses it":           {pod: rehearsal(failed, refusedBy("SysctlForbidden")), want: "PodFailed: Pod example-at-rehearsal failed: SysctlForbidden: words"},
		"an injected one fails before ours": {
			pod: rehearsal(failed, func(pod *corev1.Pod) {
				pod.Status.InitContainerStatuses = []corev1.ContainerStatus{exited("proxy-init", 1, "Error", "no route")}
			}),
			want: "PodFailed: Pod example-at-rehearsal failed: container proxy-init ended with exit code 1: no route",
		},
	} {
		t.Run(name, func(t *testing.T) {
			run := newRun()
			run.Spec.PriorityClassName = tc.priority
			now := due.Add(tc.age)
			if tc.event == nil && !tc.unknown {
				tc.event = &PodEvent{}
			}
			got := JudgeRehearsal(tc.pod, run, tc.event, now)
			if text := join(got.Reason, got.Message); text != tc.want || text == "" && !got.Time.IsZero() || text != "" && got.Time != now.Truncate(time.Second) {
				t.Errorf("got %s at %v, want %s", text, got.Time, tc.want)
			}
		})
	}
}

func withRehearse(at *v1alpha1.At) {
	at.Spec.Rehearse, at.Spec.Schedule = true, "2026-12-24T11:12:00Z"
}

// rehearsedCondition is a condition Rehearsed for generation 2.
func rehearsedCondition(reason, message string) metav1.Condition {
	status := metav1.ConditionFalse
	if reason == v1alpha1.ReasonPassed {
		status = metav1.ConditionTrue
	}
	return condition(v1alpha1.ConditionRehearsed, status, now, reason, message)
}

// TestDecideRehearsed covers what the status of an At says of rehearsals.
func TestDecideRehearsed(t *testing.T) {
	const failure, before = "Rehearsed at 2026-12-24T10:12:04Z: words", "Rehearsed at 2026-12-24T10:02:04Z: other words"
	rehearsed := func(reason string) func(*World) {
		return func(w *World) {
			w.Rehearses, w.Forecast = true, &Forecast{Rehearsal: NewRehearsal(reason, "words", now)}
		}
	}
	withRehearsals := func(w *World) { w.Rehearses = true }
	rehearses := func(status v1alpha1.AtStatus, mutate ...func(*v1alpha1.At)) *v1alpha1.At {
		return edited(newAt(withStatus(status), withRehearse), mutate...)
	}
	edited := func(at *v1alpha1.At) { at.Generation++ }
	unwanted := func(at *v1alpha1.At) { at.Spec.Rehearse = false }
	failed := rehearsedCondition(v1alpha1.ReasonImagePullFailed, failure)
	with := func(conditions ...metav1.Condition) v1alpha1.AtStatus {
		status := pendingWith(conditions...)
		status.RehearsedAt = &metav1.Time{Time: now}
		return status
	}
	ago := func(age time.Duration, status v1alpha1.AtStatus) v1alpha1.AtStatus {
		status.RehearsedAt = &metav1.Time{Time: now.Add(-age)}
		return status
	}
	pending := v1alpha1.AtStatus{Phase: v1alpha1.PhasePending}
	testDecide(t, map[string]decideCase{
		"passed": {at: rehearses(pending), world: rehearsed(v1alpha1.ReasonPassed), want: "RehearsedAt=10:12:04; Rehearsed Passed: words"},
		"passed, but another controller has written a newer result": {
			at: rehearses(ago(-time.Second, with(failed, blocked(now, v1alpha1.ReasonImagePullFailed, failure)))), world: rehearsed(v1alpha1.ReasonPassed),
			want: "wait 49m13.117s",
		},
		"failed": {
			at: rehearses(pending), world: rehearsed(v1alpha1.ReasonImagePullFailed),
			want: "RehearsedAt=10:12:04; not Rehearsed ImagePullFailed: Rehearsed at 2026-12-24T10:12:04Z: words; Blocked ImagePullFailed: Rehearsed at 2026-12-24T10:12:04Z: words; Warning ImagePullFailed",
		},
		"failed again after ten minutes: no event": {
			at: rehearses(ago(RehearsalPeriod, with(rehearsedCondition(v1alpha1.ReasonImagePullFailed, before), blocked(now, v1alpha1.ReasonImagePullFailed, before)))), world: rehearsed(v1alpha1.ReasonImagePullFailed),
			want: "RehearsedAt=10:12:04; not Rehearsed ImagePullFailed: Rehearsed at 2026-12-24T10:12:04Z: words; Blocked ImagePullFailed: Rehearsed at 2026-12-24T10:12:04Z: words",
		},
		"refused again after ten minutes: no event": {
			at: rehearses(ago(RehearsalPeriod, with(rehearsedCondition(v1alpha1.ReasonRehearsalRefused, before)))), world: rehearsed(v1alpha1.ReasonRehearsalRefused),
			want: "RehearsedAt=10:12:04; not Rehearsed RehearsalRefused: Rehearsed at 2026-12-24T10:12:04Z: words",
		},
		"failed, and the Pod is refused": {
			at: rehearses(with(failed, blocked(now, v1alpha1.ReasonImagePullFailed, failure))), world: func(w *World) { w.Rehearses, w.Forecast = true, newForecast(v1alpha1.ReasonPodRefused, "quota") },
			want: "Blocked PodRefused: If it were due now: quota; Warning PodRefused",
		},
		"failed, and the Pod is no longer refused": {
			at: rehearses(with(failed, blocked(now, v1alpha1.ReasonPodRefused, forecastPrefix+"quota"))), world: withRehearsals,
			want: "Blocked ImagePullFailed: Rehearsed at 2026-12-24T10:12:04Z: words; Warning ImagePullFailed",
		},
		"failed, then passed": {
			at: rehearses(ago(time.Second, with(failed, blocked(now, v1alpha1.ReasonImagePullFailed, failure)))), world: rehearsed(v1alpha1.ReasonPassed),
			want: "RehearsedAt=10:12:04; Rehearsed Passed: words; no Blocked",
		},
		"failed, and edited": {
			at: rehearses(with(failed, blocked(now, v1alpha1.ReasonImagePullFailed, failure)), edited), world: func(w *World) { w.Rehearses, w.Forecast = true, nil },
			want: "no RehearsedAt; no Rehearsed; no Blocked",
		},
		"failed, and no longer wanted": {
			at: rehearses(with(failed, blocked(now, v1alpha1.ReasonImagePullFailed, failure)), unwanted), world: func(w *World) { w.Rehearses, w.Forecast = true, nil },
			want: "no RehearsedAt; no Rehearsed; no Blocked",
		},
		"failed, and rehearsals are turned off": {
			at: rehearses(with(failed, blocked(now, v1alpha1.ReasonImagePullFailed, failure))), world: func(w *World) { w.Rehearses = false },
			want: "no RehearsedAt; no Rehearsed; no Blocked",
		},
		"refused: an event, but not Blocked": {
			at: rehearses(pending), world: rehearsed(v1alpha1.ReasonRehearsalRefused),
			want: "RehearsedAt=10:12:04; not Rehearsed RehearsalRefused: Rehearsed at 2026-12-24T10:12:04Z: words; Warning RehearsalRefused",
		},
		"its Pod failed: Blocked": {
			at: rehearses(pending), world: rehearsed(v1alpha1.ReasonPodFailed),
			want: "RehearsedAt=10:12:04; not Rehearsed PodFailed: Rehearsed at 2026-12-24T10:12:04Z: words; Blocked PodFailed: Rehearsed at 2026-12-24T10:12:04Z: words; Warning PodFailed",
		},
		"evicted: an event, but not Blocked": {
			at: rehearses(pending), world: rehearsed(v1alpha1.ReasonEvicted),
			want: "RehearsedAt=10:12:04; not Rehearsed Evicted: Rehearsed at 2026-12-24T10:12:04Z: words; Warning Evicted",
		},
	})
}

// TestUntilRehearsal covers when a rehearsal takes place.
func TestUntilRehearsal(t *testing.T) {
	instant := due.Add(time.Hour)
	lead := Lead(uid)
	at := func(reason string, when time.Time) *v1alpha1.At {
		at := newAt(withRehearse)
		if reason != "" {
			at.Status.Conditions, at.Status.RehearsedAt = []metav1.Condition{rehearsedCondition(reason, "")}, &metav1.Time{Time: when}
		}
		return at
	}
	edited := at(v1alpha1.ReasonPassed, due)
	edited.Generation++
	requested := func(reason string, when time.Time) *v1alpha1.At {
		at := at(reason, due)
		at.Annotations = map[string]string{v1alpha1.AnnotationRehearsalRequestedAt: when.Format(time.RFC3339)}
		return KeepAt(at)
	}
	for name, tc := range map[string]struct {
		at   *v1alpha1.At
		now  time.Time
		gap  time.Duration
		want bool
		wait time.Duration
	}{
		"requested by a clock ahead":        {at: requested(v1alpha1.ReasonPassed, due.Add(5*time.Minute)), now: due.Add(2 * time.Minute), want: true, wait: 3 * time.Minute},
		"new":                               {at: at("", due), now: due, want: true},
		"due within a minute":               {at: at("", due), now: instant.Add(-RehearsalMargin + 1)},
		"passed, and due soon":              {at: at(v1alpha1.ReasonPassed, due), now: instant.Add(-lead), want: true},
		"passed, due soon, not long ago":    {at: at(v1alpha1.ReasonPassed, due), now: instant.Add(-lead), gap: time.Hour},
		"passed since it is due soon":       {at: at(v1alpha1.ReasonPassed, instant.Add(-lead)), now: instant.Add(-RehearsalMargin)},
		"failed a minute ago":               {at: at(v1alpha1.ReasonImagePullFailed, due), now: due.Add(time.Minute), want: true, wait: RehearsalPeriod - time.Minute},
		"failed":                            {at: at(v1alpha1.ReasonImagePullFailed, due), now: due.Add(RehearsalPeriod), want: true},
		"passed, but an edit came after it": {at: edited, now: due, want: true},
		"failed, and requested":             {at: requested(v1alpha1.ReasonImagePullFailed, due.Add(5*time.Minute)), now: due.Add(5 * time.Minute), want: true},
		"requested soon after another":      {at: requested(v1alpha1.ReasonPassed, due.Add(time.Second)), now: due.Add(time.Second), want: true, wait: requestPeriod - time.Second},
		"requested before it passed":        {at: requested(v1alpha1.ReasonPassed, due), now: due.Add(time.Minute)},
		"requested for another day":         {at: requested(v1alpha1.ReasonPassed, due.Add(24*time.Hour)), now: due.Add(2 * time.Minute)},
		"requested too late":                {at: requested(v1alpha1.ReasonPassed, instant.Add(-RehearsalMargin)), now: instant.Add(-RehearsalMargin + 1)},
	} {
		if wait, got := RehearsedOf(&tc.at.Status).Until(tc.at, instant, tc.now, tc.gap); got != tc.want || wait != tc.wait {
			t.Errorf("%s: %t after %v, want %t after %v", name, got, wait, tc.want, tc.wait)
		}
	}
	if _, wanted := UntilRehearsal(newAt(withSchedule("2026-12-24T11:12:00Z")), due); wanted {
		t.Error("without spec.rehearse")
	}
}
