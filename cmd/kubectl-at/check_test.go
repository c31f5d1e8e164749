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
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	kubefake "k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
)

const notRehearsed = "Unchecked  Image, ConfigMaps, Secrets, volumes, room on a node. And what the command does.\n"

const unchecked = "Unchecked  Image, ConfigMaps, Secrets, volumes, room on a node: --rehearse tries them. And what the command does.\n"

func TestCheck(t *testing.T) {
	const mayNot = `pods is forbidden: User "x" cannot create resource "pods" in API group ""`
	quota := apierrors.NewForbidden(corev1.Resource("pods"), "at-pod", errors.New("exceeded quota: q"))
	blocked := func(at *v1alpha1.At) {
		at.Status.Reason, at.Status.Message = v1alpha1.ReasonPodRefused, "If it were due now: exceeded quota"
	}
	rehearsed := func(status metav1.ConditionStatus, generation int64) func(*v1alpha1.At) {
		return func(at *v1alpha1.At) {
			at.Spec.Rehearse, at.Generation, at.Status.RehearsedAt = true, 2, ptr.To(metav1.NewTime(now.Add(-5*time.Minute)))
			at.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionRehearsed, Status: status, ObservedGeneration: generation, Reason: "Reason", Message: fmt.Sprintf("Message %d.", generation)}}
		}
	}
	broken := func(due, ago time.Duration) func(*v1alpha1.At) {
		return func(at *v1alpha1.At) {
			at.Spec.Rehearse, at.Spec.Schedule = true, now.Add(due).Format(time.RFC3339)
			plan.RehearsedOf(&at.Status).Observe(at, true, plan.NewRehearsal(v1alpha1.ReasonImagePullFailed, "no such image", now.Add(-ago)), now)
			at.Status.Reason, at.Status.Message = v1alpha1.ReasonImagePullFailed, at.Status.Conditions[0].Message
			at.Status.Conditions = append(at.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionBlocked, Message: at.Status.Message})
		}
	}
	suspended := func(at *v1alpha1.At) {
		at.Spec.Suspend, at.Status.Reason = ptr.To(true), v1alpha1.ReasonSuspended
	}
	edited := func(at *v1alpha1.At) { blocked(at); at.Generation = 2 }
	for name, tc := range map[string]struct {
		args    string
		before  func(*v1alpha1.At)
		later   func(*v1alpha1.At) // what the controller writes
		refused error              // the answer to the dry-run of the Pod
		// expectations
		code   int
		out    string // the end of all output
		waited time.Duration
	}{
		"accepted":                  {args: "check at", out: "Preflight  The controller has reported nothing against at/at.\nDry-run    The API server accepts the Pod now, if you create it.\n" + unchecked},
		"accepted, new":             {args: "check at", before: createdNow, waited: verdictTime, out: unchecked},
		"refused before":            {args: "check at/at", before: blocked, code: 3, out: "error: at/at would not start: PodRefused: If it were due now: exceeded quota\n"},
		"refused while it waits":    {args: "check at", before: createdNow, later: blocked, code: 3, out: "error: at/at would not start: PodRefused: If it were due now: exceeded quota\n"},
		"refused before it changed": {args: "check at", before: func(at *v1alpha1.At) { edited(at); createdNow(at) }, later: func(at *v1alpha1.At) { at.Generation = 2 }, waited: verdictTime, out: unchecked},
		"refused by the dry-run":    {args: "check at", refused: quota, code: 3, out: "would not start: PodRefused: pods \"at-pod\" is forbidden: exceeded quota: q\n"},
		"no permission":             {args: "check at", refused: errors.New(mayNot), out: "Dry-run    You are not allowed to create Pods, so the Pod was not tried.\n" + unchecked},
		"no answer":                 {args: "check at", refused: apierrors.NewServiceUnavailable("no"), out: "Dry-run    The API server does not say whether it accepts the Pod: no\n" + unchecked},
		"suspended, and refused":    {args: "check at", before: func(at *v1alpha1.At) { suspended(at); createdNow(at) }, later: blocked, code: 3, out: "error: at/at would not start: PodRefused: If it were due now: exceeded quota\n"},
		"suspended, and accepted":   {args: "check at", before: suspended, out: "Suspended  Nothing starts until kubectl at resume at/at.\nPreflight  The controller has reported nothing against at/at.\nDry-run    The API server accepts the Pod now, if you create it.\n" + unchecked},
		"rehearsed before":          {args: "check at", before: rehearsed(metav1.ConditionTrue, 2), out: "Rehearsal  Reason, 5m ago: Message 2.\nDry-run    The API server accepts the Pod now, if you create it.\nUnchecked  What the command does.\n"},
		"rehearsed while it waits":  {args: "check at", before: func(at *v1alpha1.At) { rehearsed(metav1.ConditionTrue, 1)(at); createdNow(at) }, later: rehearsed(metav1.ConditionTrue, 2), out: "Rehearsal  Reason, 5m ago: Message 2.\nDry-run    The API server accepts the Pod now, if you create it.\nUnchecked  What the command does.\nwaiting for the rehearsal of at/at, 11m at most\n"},
		"rehearsal without result":  {args: "check at", before: rehearsed(metav1.ConditionFalse, 2), code: 124, out: "Rehearsal  Reason, 5m ago: Message 2.\nDry-run    The API server accepts the Pod now, if you create it.\n" + notRehearsed + "error: no rehearsal of at/at has passed, so it is not known whether it would start\n"},
		"rehearsal failed":          {args: "check at", before: broken(time.Hour, 3*time.Minute), code: 3, out: "error: at/at would not start: ImagePullFailed: Rehearsed at 2026-03-27T13:57:00Z: no such image (rehearsed again in 7m, or at once with kubectl at check at/at --again)\n"},
		"rehearsal failed for long": {args: "check at", before: broken(time.Hour, 10*time.Minute), code: 3, out: "no such image (rehearsed again soon, or at once with kubectl at check at/at --again)\n"},
		"rehearsal failed, due":     {args: "check at", before: broken(7*time.Minute, 3*time.Minute), code: 3, out: "no such image (rehearsed again only with kubectl at check at/at --again)\n"},
		"rehearsal failed, due now": {args: "check at", before: broken(59*time.Second, 3*time.Minute), code: 3, out: "no such image (rehearsed again only with kubectl at check at/at --again)\n"},
		"rehearsal takes too long":  {args: "check at", before: func(at *v1alpha1.At) { rehearse(at); createdNow(at) }, waited: rehearsalTime, code: 124, out: "Rehearsal  None has ended in time. Others come first, a run is refused for quota, -rehearsals is 0, or no controller is processing it: is cnat-controller running? See kubectl get pods -A -l app.kubernetes.io/name=cnat-controller.\nDry-run    The API server accepts the Pod now, if you create it.\n" + notRehearsed + "waiting for the rehearsal of at/at, 11m at most\nerror: no rehearsal of at/at has passed, so it is not known whether it would start\n"},
		"rehearsal took too long":   {args: "check at", before: rehearse, code: 124, out: notRehearsed + "error: no rehearsal of at/at has passed, so it is not known whether it would start\n"},
		"rehearsal with nodes":      {args: "check at", before: func(at *v1alpha1.At) { rehearse(at); createdNow(at); at.Spec.Nodes = &v1alpha1.AtNodes{} }, waited: nodesRehearsalTime, code: 124, out: "waiting for the rehearsal of at/at, 31m at most\nerror: no rehearsal of at/at has passed, so it is not known whether it would start\n"},
		"rehearsal until the run":   {args: "check at", before: func(at *v1alpha1.At) { rehearse(at); createdNow(at); at.Spec.Schedule = "2026-03-27T14:03:00Z" }, waited: 150 * time.Second, code: 124, out: "Rehearsal  None has ended in time. Others come first, a run is refused for quota, -rehearsals is 0, or no controller is processing it: is cnat-controller running? See kubectl get pods -A -l app.kubernetes.io/name=cnat-controller.\nDry-run    The API server accepts the Pod now, if you create it.\n" + notRehearsed + "waiting for the rehearsal of at/at, 2m30s at most\nerror: no rehearsal of at/at has passed, so it is not known whether it would start\n"},
		"no such time": {args: "check at", before: func(at *v1alpha1.At) {
			createdNow(at)
			at.Spec.Schedule = "2026-03-29T02:30:00"
			at.Spec.TimeZone = ptr.To("Europe/Berlin")
		}, later: blocked, code: 3, out: "PodRefused: If it were due now: exceeded quota\n"},
		"in time for a rehearsal":  {args: "now + 61 s --name=new --rehearse --dry-run=server -- x", out: "The API server accepts the Pod now, if you create it.\n"},
		"too late for a rehearsal": {args: "now + 50 s --name=new --from=at/at --check", before: rehearse, waited: verdictTime, code: 124, out: "Rehearsal  There is none in the minute before the run.\nDry-run    The API server accepts the Pod now, if you create it.\n" + notRehearsed + "error: no rehearsal of at/new has passed, so it is not known whether it would start\n"},
		"running":                  {args: "check at", before: inPhase(corev1.PodRunning), code: 1, out: "error: at/at has started: see kubectl at show at\n"},
		"a CronAt":                 {args: "check cronat/backup", out: "Preflight  The controller has reported nothing against cronat/backup.\nDry-run    The API server accepts the Pod now, if you create it.\n" + unchecked},
		"a CronAt, refused":        {args: "check ca/backup", refused: quota, code: 3, out: "error: cronat/backup would not start: PodRefused: pods \"at-pod\" is forbidden: exceeded quota: q\n"},
		"on creation":              {args: "now + 1 h --name=new --check -- x", waited: verdictTime, out: unchecked},
		"on creation, refused":     {args: "now + 1 h --name=new --check -o name -- x", refused: quota, waited: verdictTime, code: 3, out: "error: at/new would not start: PodRefused: pods \"at-pod\" is forbidden: exceeded quota: q\n"},
		"on creation of a CronAt":  {args: "every @daily --name=new --tz=UTC --check -- x", refused: quota, waited: verdictTime, code: 3, out: "error: cronat/new would not start: PodRefused: pods \"at-pod\" is forbidden: exceeded quota: q\n"},
		"server dry run":           {args: "now + 1 h --name=new --dry-run=server -- x", refused: quota, out: "PodRefused: pods \"at-pod\" is forbidden: exceeded quota: q\n"},
		"server dry run, checked":  {args: "now + 1 h --name=new --dry-run=server --check -- x", refused: quota, code: 3, out: "error: at/new would not start: PodRefused: pods \"at-pod\" is forbidden: exceeded quota: q\n"},
		"at once":                  {args: "now --check -- x", code: 2, out: "--wait reports how it ends\n"},
		"and wait":                 {args: "now + 1 h --check --wait -- x", code: 2, out: "--check cannot be used with --wait: remove one of the two\n"},
	} {
		t.Run(name, inBubble(func(t *testing.T) {
			t.Helper()
			w := newWorld(t, "", newAt("at", tc.before), newCronAt("backup", nil))
			kube := kubefake.NewSimpleClientset(&corev1.Node{})
			kube.PrependReactor("create", "pods", func(action kubetesting.Action) (bool, runtime.Object, error) {
				create := action.(kubetesting.CreateActionImpl)
				if pod := create.Object.(*corev1.Pod); len(create.CreateOptions.DryRun) != 1 || len(pod.OwnerReferences)+len(pod.Finalizers) > 0 {
					t.Errorf("created with %v: %v", create.CreateOptions, pod.ObjectMeta)
				}
				return tc.refused != nil, nil, tc.refused
			})
			w.kube = kube
			w.cnat.PrependWatchReactor("ats", func(kubetesting.Action) (bool, watch.Interface, error) {
				watcher := watch.NewFakeWithChanSize(1, false)
				if tc.later != nil {
					watcher.Modify(newAt("at", tc.later))
				}
				return true, watcher, nil
			})
			began := time.Now()
			w.now = func() time.Time { return now.Add(time.Since(began)) }
			code := w.run(t, strings.Fields(tc.args)...)
			waited := time.Since(began)
			if out := w.stdout.String() + w.stderr.String(); code != tc.code || !strings.HasSuffix(out, tc.out) || waited != tc.waited {
				t.Errorf("exit code %d, want %d, after %v, want %v; got:\n%s\nwant:\n%s", code, tc.code, waited, tc.waited, out, tc.out)
			}
		}))
	}
}

func rehearse(at *v1alpha1.At) { at.Spec.Rehearse = true }

func createdNow(at *v1alpha1.At) { at.CreationTimestamp = metav1.NewTime(now) }

// TestCheckAgain requests another rehearsal, and waits for its result.
func TestCheckAgain(t *testing.T) {
	const waiting = "waiting for the rehearsal of at/at, 11m at most\n"
	const notPassed = "error: no rehearsal of at/at has passed, so it is not known whether it would start\n"
	rehearsed := func(reason string, when time.Time) func(*v1alpha1.At) {
		return func(at *v1alpha1.At) {
			rehearse(at)
			failure, _ := plan.RehearsedOf(&at.Status).Observe(at, true, plan.NewRehearsal(reason, "words", when), when)
			if failure != nil {
				at.Status.Reason, at.Status.Message = failure.Reason, failure.Message
				at.Status.Conditions = append(at.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionTrue, Message: failure.Message})
			}
		}
	}
	requested := func(change func(*v1alpha1.At), when time.Time) func(*v1alpha1.At) {
		return func(at *v1alpha1.At) {
			change(at)
			at.Annotations = map[string]string{v1alpha1.AnnotationRehearsalRequestedAt: when.Format(time.RFC3339)}
		}
	}
	refused := func(at *v1alpha1.At) {
		at.Status.Reason, at.Status.Message = v1alpha1.ReasonPodRefused, "If it were due now: exceeded quota"
	}
	passed, failed := rehearsed(v1alpha1.ReasonPassed, now.Add(-time.Hour)), rehearsed(v1alpha1.ReasonImagePullFailed, now.Add(-time.Minute))
	for name, tc := range map[string]struct {
		before func(*v1alpha1.At)
		later  func(*v1alpha1.At) // what the controller writes
		// expectations
		requested time.Time
		code      int
		out       string // the end of all output
		waited    time.Duration
	}{
		"passes again":           {before: passed, later: requested(rehearsed(v1alpha1.ReasonPassed, now), now), requested: now, out: "Unchecked  What the command does.\n" + waiting},
		"fails now":              {before: passed, later: requested(rehearsed(v1alpha1.ReasonImagePullFailed, now), now), requested: now, code: 3, out: waiting + "error: at/at would not start: ImagePullFailed: Rehearsed at 2026-03-27T14:00:00Z: words (rehearsed again in 10m, or at once with kubectl at check at/at --again)\n"},
		"passes now":             {before: failed, later: requested(rehearsed(v1alpha1.ReasonPassed, now), now), requested: now, out: "Unchecked  What the command does.\n" + waiting},
		"is refused now":         {before: passed, later: requested(func(at *v1alpha1.At) { passed(at); refused(at) }, now), requested: now, code: 3, out: waiting + "error: at/at would not start: PodRefused: If it were due now: exceeded quota\n"},
		"no result":              {before: passed, later: requested(passed, now), requested: now, code: 124, waited: rehearsalTime, out: notPassed},
		"the failure is old":     {before: failed, later: requested(failed, now), requested: now, code: 3, waited: rehearsalTime, out: waiting + "error: at/at would not start: ImagePullFailed: Rehearsed at 2026-03-27T13:59:00Z: words\n"},
		"a clock that is behind": {before: rehearsed(v1alpha1.ReasonPassed, now.Add(time.Minute)), later: rehearsed(v1alpha1.ReasonPassed, now.Add(2*time.Minute)), requested: now.Add(time.Minute + time.Second), out: "Unchecked  What the command does.\n" + waiting},
		"without rehearsals":     {code: 2, out: `error: at/at has no rehearsals: set rehearse: true in the spec of its run with kubectl edit at/at -n default` + "\n"},
		"of a restart":           {before: func(at *v1alpha1.At) { at.Spec.RunSpec = v1alpha1.RunSpec{Restart: &v1alpha1.AtRestart{}} }, code: 2, out: "error: at/at restarts a workload, so there is no Pod to rehearse: remove --again\n"},
		"running":                {before: func(at *v1alpha1.At) { rehearse(at); inPhase(corev1.PodRunning)(at) }, code: 1, out: "error: at/at has started: see kubectl at show at\n"},
	} {
		t.Run(name, inBubble(func(t *testing.T) {
			t.Helper()
			w := newWorld(t, "", newAt("at", tc.before))
			w.cnat.PrependWatchReactor("ats", func(kubetesting.Action) (bool, watch.Interface, error) {
				watcher := watch.NewFakeWithChanSize(1, false)
				watcher.Modify(newAt("at", tc.later))
				return true, watcher, nil
			})
			began := time.Now()
			w.now = func() time.Time { return now.Add(time.Since(began)) }
			code := w.run(t, "check", "at", "--again")
			waited := time.Since(began)
			if out := w.stdout.String() + w.stderr.String(); code != tc.code || !strings.HasSuffix(out, tc.out) || waited != tc.waited {
				t.Errorf("exit code %d, want %d, after %v, want %v; got:\n%s\nwant:\n%s", code, tc.code, waited, tc.waited, out, tc.out)
			}
			at, err := w.cnat.CnatV1alpha1().Ats("default").Get(t.Context(), "at", metav1.GetOptions{})
			want := ""
			if !tc.requested.IsZero() {
				want = tc.requested.UTC().Format(time.RFC3339)
			}
			if got := at.Annotations[v1alpha1.AnnotationRehearsalRequestedAt]; err != nil || got != want {
				t.Errorf("requested at %q, want %q, error %v", got, want, err)
			}
		}))
	}
}

// TestCheckCronAt checks CronAts that are rehearsed, or that neither a preflight nor a rehearsal
// waits for.
func TestCheckCronAt(t *testing.T) {
	const accepted = "Dry-run    The API server accepts the Pod now, if you create it.\n"
	const notPassed = "error: no rehearsal of cronat/backup has passed, so it is not known whether it would start\n"
	edited := func(cronAt *v1alpha1.CronAt) {
		cronAt.Spec.AtTemplate.Spec.Rehearse, cronAt.Generation = true, 2
		cronAt.CreationTimestamp = metav1.NewTime(now)
	}
	rehearsed := func(reason string, status metav1.ConditionStatus) func(*v1alpha1.CronAt) {
		return func(cronAt *v1alpha1.CronAt) {
			edited(cronAt)
			cronAt.Status.ObservedGeneration, cronAt.Status.RehearsedAt = 2, ptr.To(metav1.NewTime(now.Add(-time.Minute)))
			cronAt.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionRehearsed, Status: status, ObservedGeneration: 2, Reason: reason, Message: "Message."}}
		}
	}
	blocked := func(cronAt *v1alpha1.CronAt) {
		rehearsed(v1alpha1.ReasonImagePullFailed, metav1.ConditionFalse)(cronAt)
		cronAt.Status.Reason, cronAt.Status.Message = v1alpha1.ReasonImagePullFailed, "Message."
	}
	suspended := func(cronAt *v1alpha1.CronAt) {
		edited(cronAt)
		cronAt.Spec.Suspend, cronAt.Status.Reason = ptr.To(true), v1alpha1.ReasonSuspended
	}
	active := func(cronAt *v1alpha1.CronAt) {
		edited(cronAt)
		cronAt.Status.Active, cronAt.Status.Reason = 1, v1alpha1.ReasonAtActive
	}
	observed := func(change func(*v1alpha1.CronAt)) func(*v1alpha1.CronAt) {
		return func(cronAt *v1alpha1.CronAt) { change(cronAt); cronAt.Status.ObservedGeneration = 2 }
	}
	for name, tc := range map[string]struct {
		before, later func(*v1alpha1.CronAt)
		// expectations
		code   int
		out    string
		waited time.Duration
	}{
		"passed while it waits": {before: edited, later: rehearsed(v1alpha1.ReasonPassed, metav1.ConditionTrue), out: "Rehearsal  Passed, 1m ago: Message.\n" + accepted + "Unchecked  What the command does.\nwaiting for the rehearsal of cronat/backup, 11m at most\n"},
		"failed while it waits": {before: edited, later: blocked, code: 3, out: "waiting for the rehearsal of cronat/backup, 11m at most\nerror: cronat/backup would not start: ImagePullFailed: Message.\n"},
		"no result":             {before: edited, later: edited, code: 124, waited: rehearsalTime, out: notPassed},
		"suspended":             {before: observed(suspended), code: 124, out: "Suspended  Nothing starts until kubectl at resume cronat/backup.\nPreflight  There is none while no At is scheduled.\nRehearsal  There is none while no At is scheduled.\n" + accepted + notRehearsed + notPassed},
		"just suspended":        {before: suspended, later: suspended, code: 124, waited: verdictTime, out: notRehearsed + notPassed},
		"active":                {before: observed(active), code: 124, out: "Preflight  There is none until its active At has ended.\nRehearsal  There is none until its active At has ended.\n" + accepted + notRehearsed + notPassed},
		"active beside others": {before: func(cronAt *v1alpha1.CronAt) {
			observed(active)(cronAt)
			cronAt.Spec.ConcurrencyPolicy, cronAt.Status.Reason = v1alpha1.AllowConcurrent, ""
		}, code: 124, waited: rehearsalTime, out: notPassed},
	} {
		t.Run(name, inBubble(func(t *testing.T) {
			t.Helper()
			w := newWorld(t, "", newCronAt("backup", tc.before))
			w.cnat.PrependWatchReactor("cronats", func(kubetesting.Action) (bool, watch.Interface, error) {
				watcher := watch.NewFakeWithChanSize(1, false)
				if tc.later != nil {
					watcher.Modify(newCronAt("backup", tc.later))
				}
				return true, watcher, nil
			})
			began := time.Now()
			w.now = func() time.Time { return now.Add(time.Since(began)) }
			code := w.run(t, "check", "cronat/backup")
			waited := time.Since(began)
			if out := w.stdout.String() + w.stderr.String(); code != tc.code || !strings.HasSuffix(out, tc.out) || waited != tc.waited {
				t.Errorf("exit code %d, want %d, after %v, want %v; got:\n%s\nwant:\n%s", code, tc.code, waited, tc.waited, out, tc.out)
			}
		}))
	}
}

// TestCheckForbidden checks an At whose changes the user may not see.
func TestCheckForbidden(t *testing.T) {
	w := newWorld(t, "", newAt("at", func(at *v1alpha1.At) { at.CreationTimestamp = metav1.Time{Time: now} }))
	w.cnat.PrependReactor("list", "ats", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(v1alpha1.Resource("ats"), "", errors.New("no"))
	})
	code := w.run(t, "check", "at")
	want := "error: what the controller reports on at/at is not known: ats.cnat.programming-kubernetes.info is forbidden: no\n"
	if out := w.stdout.String() + w.stderr.String(); code != 1 || out != want {
		t.Errorf("exit code %d, got:\n%s\nwant:\n%s", code, out, want)
	}
}
