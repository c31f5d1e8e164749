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

package preflight

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	"programming-kubernetes.info/cnat-controller/pkg/plan/rollout"
	"programming-kubernetes.info/cnat-controller/pkg/testing/harness"
)

const day = 24 * time.Hour

// fault is the API server's answer to a request; nil means that it succeeds.
type fault func(since time.Duration) error

type (
	faults = map[string]fault // by request
	acts   = map[time.Duration]func(*fixture)
)

func always(err error) fault { return func(time.Duration) error { return err } }

func until(end time.Duration, err error) fault {
	return func(since time.Duration) error {
		if since < end {
			return err
		}
		return nil
	}
}

// twice is a fault of two requests.
func twice(err error) fault {
	left := 2
	return func(time.Duration) error {
		if left--; left >= 0 {
			return err
		}
		return nil
	}
}

// inject lets requests fail, and notes the first dry-run, each read, and what becomes of rehearsals.
func (f *fixture) inject(faults faults) {
	ask := func(request string) error {
		if fault := faults[request]; fault != nil {
			return fault(time.Since(f.start))
		}
		return nil
	}
	f.answer = func(string) error {
		if len(f.dryRuns) == 1 { // It is noted already.
			f.logged("dry-run")
		}
		return ask("dry-run")
	}
	f.refuse = func(*corev1.Pod) error {
		err := ask("rehearse")
		f.logged("rehearses")
		return err
	}
	react := func(client *clienttesting.Fake, verb, resource, request string) {
		client.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			f.lock.Lock()
			defer f.lock.Unlock()
			if verb == "delete" || faults[request] != nil {
				f.logged(request)
			}
			err := ask(request)
			return err != nil, nil, err
		})
	}
	react(&f.cnat.Fake, "get", "ats", "read")
	react(&f.kube.Fake, "list", "events", "events")
	react(&f.kube.Fake, "delete", "pods", "ends rehearsal")
	f.kube.PrependReactor("patch", "deployments", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if dryRun := action.(clienttesting.PatchActionImpl).PatchOptions.DryRun; !slices.Equal(dryRun, []string{metav1.DryRunAll}) {
			f.t.Errorf("the Deployment is patched with dryRun %v", dryRun)
		}
		restarted := &appsv1.Deployment{}
		restarted.Spec.Template.Annotations = map[string]string{rollout.AnnotationRestartedAt: time.Now().UTC().Format(time.RFC3339)}
		return true, restarted, ask("restart")
	})
}

// change edits the At, and adds it as its controller does.
func (f *fixture) change(edit func(*v1alpha1.At)) {
	at := f.stored["a"]
	f.lock.Lock()
	f.store(at, edit)
	f.lock.Unlock()
	f.add(0, at)
}

// remove deletes the At.
func (f *fixture) remove() {
	at := f.stored["a"]
	if err := errors.Join(f.ats.Delete(at), f.cnat.Tracker().Delete(v1alpha1.SchemeGroupVersion.WithResource("ats"), "shop", "a")); err != nil {
		f.t.Error(err)
	}
}

func (f *fixture) setPaused(paused bool) {
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}, Spec: appsv1.DeploymentSpec{Paused: paused}}
	deployments := appsv1.SchemeGroupVersion.WithResource("deployments")
	err := f.kube.Tracker().Update(deployments, deployment, "shop")
	if apierrors.IsNotFound(err) {
		err = f.kube.Tracker().Create(deployments, deployment, "shop")
	}
	if err != nil {
		f.t.Error(err)
	}
}

func dueIn(wait time.Duration) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) { at.Spec.Schedule = time.Now().Add(wait).Format(time.RFC3339Nano) }
}

func onNode(at *v1alpha1.At) { at.Spec.Node = "n1" }

func hangs(*corev1.Pod) {}

func rehearsed(edits ...func(*v1alpha1.At)) func(*v1alpha1.At) {
	return func(at *v1alpha1.At) {
		at.Spec.Rehearse = true
		for _, edit := range edits {
			edit(at)
		}
	}
}

// requests asks for a rehearsal.
func requests(f *fixture) {
	f.change(func(at *v1alpha1.At) {
		at.Annotations = map[string]string{v1alpha1.AnnotationRehearsalRequestedAt: time.Now().Format(time.RFC3339)}
	})
}

// TestOneAt follows an At that is due in a day.
func TestOneAt(t *testing.T) {
	noDryRun, busy := apierrors.NewBadRequest(`admission webhook "a" does not support dry run`), apierrors.NewTooManyRequests("busy", 1)
	forbidden := apierrors.NewForbidden(corev1.Resource("nodes"), "", errors.New("no"))
	nodes := []*corev1.Node{node("n1")}
	refused, refusedRehearsal := faults{"dry-run": always(refusal("a"))}, faults{"rehearse": always(refusal("a"))}
	for name, tc := range map[string]struct {
		at       func(*v1alpha1.At)
		faults   faults
		kubelet  func(*corev1.Pod)
		nodes    []*corev1.Node
		nodesErr error
		acts     acts
		round    time.Duration // of the times in the log
		lasts    time.Duration // by default a quarter of a minute
		known    bool          // at the end, something is still checked
		dryRuns  int           // if it matters how many there are
		want     string
	}{
		"accepted":                 {dryRuns: 1, want: "1s dry-run"},
		"refused for some minutes": {faults: faults{"dry-run": until(151*time.Second, refusal("a"))}, round: time.Minute, lasts: 5 * time.Minute, want: "0s dry-run; 0s reports Blocked PodRefused; 3m0s reports"},
		"refused, and edited": {
			faults: faults{"dry-run": until(2*time.Second, refusal("a"))},
			acts:   acts{2 * time.Second: func(f *fixture) { f.change(func(at *v1alpha1.At) { at.Generation++; unlike(at) }) }}, known: true,
			want: "1s dry-run; 1s reports Blocked PodRefused; 3.02s reports",
		},
		"refused, and deleted":         {faults: refused, acts: acts{3 * time.Second: (*fixture).remove}, lasts: time.Minute, want: "1s dry-run; 1s reports Blocked PodRefused"},
		"no support for dry-run":       {faults: faults{"dry-run": always(noDryRun)}, lasts: 12 * time.Hour, dryRuns: 1, want: "1s dry-run"},
		"busy":                         {faults: faults{"dry-run": always(busy)}, lasts: 12 * time.Hour, dryRuns: 7, want: "1s dry-run"}, // Retries share the answer for twenty seconds.
		"refused, and then no dry-run": {faults: faults{"dry-run": refusedThen(noDryRun)}, round: time.Hour, lasts: 2 * time.Hour, want: "0s dry-run; 0s reports Blocked PodRefused; 1h0m0s reports"},
		"past":                         {at: dueIn(-time.Hour)},
		"no node":                      {at: onNode, known: true, want: "1s dry-run; 1s reports Blocked NodeGone"},
		"no node, and refused":         {at: onNode, faults: refused, known: true, want: "1s dry-run; 1s reports Blocked PodRefused"},
		"some nodes":                   {at: withNodes, nodes: nodes, want: "1s dry-run"},
		"nodes may not be read":        {at: withNodes, nodesErr: forbidden, known: true, want: "1s dry-run; 1.02s reports Blocked NodesForbidden"},
		"nodes cannot be read":         {at: withNodes, nodesErr: busy, lasts: time.Hour, want: "1s dry-run"},
		"nodes are not needed":         {nodesErr: forbidden, want: "1s dry-run"},
		"a restart": {
			at: func(at *v1alpha1.At) {
				at.Spec.Command, at.Spec.Restart = "", &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}
			},
			faults: faults{"restart": until(151*time.Second, refusal("web"))}, round: time.Minute, lasts: 5 * time.Minute,
			acts: acts{
				31 * time.Second: func(f *fixture) { f.setPaused(true) }, 91 * time.Second: func(f *fixture) { f.setPaused(false) },
			},
			want: "0s reports Blocked TargetNotFound; 1m0s reports Blocked TargetPaused; 2m0s reports Blocked RestartRefused; 3m0s reports",
		},
		"rehearsed":                        {at: rehearsed(), want: "1s dry-run; 1s rehearses; 2s ends rehearsal; 2s reports Rehearsed Passed"},
		"rehearsed, fails":                 {at: rehearsed(), kubelet: notPulled, lasts: 12 * time.Minute, known: true, want: "1s dry-run; 1s rehearses; 21s ends rehearsal; 21s reports Rehearsed ImagePullFailed Blocked ImagePullFailed; 10m21s rehearses; 10m41s ends rehearsal; 10m41s reports Rehearsed ImagePullFailed Blocked ImagePullFailed"},
		"rehearsed without dry-run":        {at: rehearsed(), faults: faults{"dry-run": always(noDryRun)}, want: "1s dry-run; 1s rehearses; 2s ends rehearsal; 2s reports Rehearsed Passed"},
		"rehearsed, its name is taken":     {at: rehearsed(), faults: faults{"rehearse": twice(apierrors.NewAlreadyExists(pods, "a-rehearsal"))}, want: "1s dry-run; 1s rehearses; 2s rehearses; 4s rehearses; 5s ends rehearsal; 5s reports Rehearsed Passed"},
		"rehearsed, busy":                  {at: rehearsed(), faults: faults{"rehearse": twice(busy)}, want: "1s dry-run; 1s rehearses; 2s rehearses; 4s rehearses; 5s ends rehearsal; 5s reports Rehearsed Passed"},
		"rehearsed on three of nodes":      {at: rehearsed(withNodes), nodes: append(nodes, node("b"), node("c"), node("d")), want: "1s dry-run; 1.02s rehearses; 2.02s ends rehearsal; 2.02s rehearses; 3.02s ends rehearsal; 3.02s rehearses; 4.02s ends rehearsal; 4.02s reports Rehearsed Passed"},
		"rehearsed on nodes, fails":        {at: rehearsed(withNodes), nodes: nodes, kubelet: notPulled, lasts: 12 * time.Minute, known: true, want: "1s dry-run; 1.02s rehearses; 21.02s ends rehearsal; 21.02s reports Rehearsed ImagePullFailed Blocked ImagePullFailed; 10m21.04s rehearses; 10m41.04s ends rehearsal; 10m41.04s reports Rehearsed ImagePullFailed Blocked ImagePullFailed"},
		"rehearsed on nodes, refused":      {at: rehearsed(withNodes), nodes: nodes, faults: refusedRehearsal, lasts: 12 * time.Minute, known: true, want: "1s dry-run; 1.02s rehearses; 1.02s reports Rehearsed RehearsalRefused; 10m1.04s rehearses; 10m1.04s reports Rehearsed RehearsalRefused"},
		"rehearsed after an outage":        {at: rehearsed(unlike), faults: faults{"read": until(time.Hour, busy)}, round: time.Hour, lasts: 65 * time.Minute, want: "0s read; 1h0m0s read; 1h0m0s dry-run; 1h0m0s read; 1h0m0s rehearses; 1h0m0s ends rehearsal; 1h0m0s reports Rehearsed Passed"},
		"rehearsed, events cannot be read": {at: rehearsed(), kubelet: unschedulable, faults: faults{"events": until(90250*time.Millisecond, busy)}, lasts: 2 * time.Minute, known: true, want: "1s dry-run; 1s rehearses; 21s events; 32s events; 43s events; 54s events; 1m5s events; 1m16s events; 1m27s events; 1m38s events; 1m38s ends rehearsal; 1m38s reports Rehearsed Unschedulable Blocked Unschedulable"},
		"rehearsed, on request":            {at: rehearsed(), acts: acts{25 * time.Second: requests, 3 * time.Minute: requests}, lasts: 10 * time.Minute, want: "1s dry-run; 1s rehearses; 2s ends rehearsal; 2s reports Rehearsed Passed; 1m2s rehearses; 1m3s ends rehearsal; 1m3s reports Rehearsed Passed; 3m1s rehearses; 3m2s ends rehearsal; 3m2s reports Rehearsed Passed"},
		"rehearsed until it is due":        {at: rehearsed(dueIn(90 * time.Second)), kubelet: hangs, lasts: 80 * time.Second, want: "1s dry-run; 1s rehearses; 1m0s ends rehearsal"},
		"rehearsed until it is edited":     {at: rehearsed(), kubelet: hangs, acts: acts{3 * time.Second: func(f *fixture) { f.change(func(at *v1alpha1.At) { at.Generation++; at.Spec.Rehearse = false }) }}, want: "1s dry-run; 1s rehearses; 4s ends rehearsal"},
		"rehearsed until it is deleted":    {at: rehearsed(), kubelet: hangs, acts: acts{3 * time.Second: (*fixture).remove}, want: "1s dry-run; 1s rehearses; 4s ends rehearsal"},
		"rehearsed, the Pod is deleted": {
			at: rehearsed(dueIn(time.Hour)), kubelet: hangs, acts: acts{3 * time.Second: func(f *fixture) { harness.Delete(f.t, f.kube.CoreV1().Pods("shop"), "a-rehearsal") }}, known: true,
			want: "1s dry-run; 1s rehearses; 3s ends rehearsal; 4s ends rehearsal; 5s rehearses",
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(f *fixture) {
				f.kubelet, f.nodes, f.nodesErr, f.round, f.writes = tc.kubelet, tc.nodes, tc.nodesErr, max(tc.round, 10*time.Millisecond), true
				f.inject(tc.faults)
				at := f.at("a", day, func(at *v1alpha1.At) {
					if tc.at != nil {
						tc.at(at)
					}
				})
				f.add(0, at)
				for _, after := range slices.Sorted(maps.Keys(tc.acts)) {
					time.Sleep(time.Until(f.start.Add(after)))
					synctest.Wait()
					tc.acts[after](f)
				}
				time.Sleep(time.Until(f.start.Add(cmp.Or(tc.lasts, 15*time.Second))))
				synctest.Wait()
				f.lock.Lock()
				got, dryRuns := strings.Join(f.log, "; "), len(f.dryRuns)
				f.lock.Unlock()
				if tc.dryRuns > 0 && dryRuns != tc.dryRuns {
					t.Errorf("%d dry-runs, want %d", dryRuns, tc.dryRuns)
				}
				if !tc.known {
					f.wantNothingKept()
				}
				if got != tc.want {
					t.Errorf("\n got %s\nwant %s", got, tc.want)
				}
			})
		})
	}
}

// refusedThen refuses a Pod for two seconds, and has no answer for an hour.
func refusedThen(err error) fault {
	return func(since time.Duration) error {
		switch {
		case since < 2*time.Second:
			return refusal("a")
		case since < time.Hour:
			return err
		}
		return nil
	}
}
