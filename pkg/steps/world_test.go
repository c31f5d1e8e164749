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

package steps

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubeinformers "k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	cnatfake "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/fake"
	cnatinformers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
	"programming-kubernetes.info/cnat-controller/pkg/steps/workload"
)

// TestCaches checks that the caches of a controller, and the statuses that it has
// written, only contain what it needs.
func TestCaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := strings.Repeat("echo YAY;", 100)
		withLong := func(at *v1alpha1.At) { at.Spec.Command = long }
		orphan := newPod(func(pod *corev1.Pod) { pod.Name, pod.OwnerReferences[0].Name = "gone-pod", "gone" })
		podFactory := kubeinformers.NewSharedInformerFactory(kubefake.NewClientset(newPod(), orphan), 0)
		atFactory := cnatinformers.NewSharedInformerFactory(cnatfake.NewSimpleClientset(newAt(withLong)), 0)
		c, err := NewCache(atFactory.Cnat().V1alpha1().Ats(), podFactory.Core().V1().Pods())
		if err != nil {
			t.Fatal(err)
		}
		podFactory.StartWithContext(t.Context())
		atFactory.StartWithContext(t.Context())
		t.Cleanup(podFactory.Shutdown)
		t.Cleanup(atFactory.Shutdown)
		synctest.Wait()
		cached := c.At(name)
		if cached == nil || cached.Spec.Command != "" {
			t.Fatalf("the cache holds %+v, want an At without its long command", cached)
		}
		pods := c.PodsOf(name)
		if len(pods) != 1 || len(pods[0].Spec.Containers) > 0 {
			t.Errorf("the cache holds %+v, want a Pod without its command", pods)
		}
		if orphans := c.Orphans(); len(orphans) != 1 || orphans[0].Name != orphan.Name {
			t.Errorf("the Pods without an At are %+v, want %s", orphans, orphan.Name)
		}
		c.Written.Remember(newAt(withLong, func(at *v1alpha1.At) { at.ResourceVersion = "2" }))
		if written := c.Written.Latest(cached); written == cached || written.Spec.Command != "" {
			t.Errorf("the controller remembers %+v, want an At without its long command", written)
		}
	})
}

// TestRelatives finds the parent and the children of an At, and the Ats that wait for a node.
func TestRelatives(t *testing.T) {
	f := newFixture(t)
	parent, earlier := newAt(), newAt(func(at *v1alpha1.At) { at.UID = "earlier" })
	childOf := func(owner *v1alpha1.At, node string, phase v1alpha1.AtPhase) *v1alpha1.At {
		return newAt(func(at *v1alpha1.At) {
			at.Name, at.UID, at.Spec.Node, at.Status.Phase = plan.ChildName(owner.Name, node), types.UID(node), node, phase
			at.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.AtKind))}
		})
	}
	child := childOf(parent, "a", v1alpha1.PhasePending)
	for _, at := range []*v1alpha1.At{parent, child, childOf(parent, "b", v1alpha1.PhaseDone), childOf(earlier, "c", v1alpha1.PhasePending)} {
		if err := f.ats.Add(plan.KeepAt(at)); err != nil {
			t.Fatal(err)
		}
	}
	f.Written.Remember(newAt(func(at *v1alpha1.At) { at.ResourceVersion, at.Status.Phase = "2", v1alpha1.PhaseRunning }))
	world := f.World(name)
	for what, tc := range map[string]struct {
		ats  []*v1alpha1.At
		want string // their nodes
	}{
		"children of the name": {f.ChildrenOf(name), "a b c"},
		"children of the At":   {world.Children, "a b"},
		"Ats on a node":        {f.OnNode("a"), "a"},
		"Ats that have ended":  {f.OnNode("b"), ""},
	} {
		var nodes []string
		for _, at := range tc.ats {
			nodes = append(nodes, at.Spec.Node)
		}
		slices.Sort(nodes)
		if got := strings.Join(nodes, " "); got != tc.want {
			t.Errorf("%s: got %q, want %q", what, got, tc.want)
		}
	}
	for what, at := range map[string]*v1alpha1.At{"the At": world.At, "the parent": f.World(cache.MetaObjectToName(child)).Parent} {
		if at == nil || at.UID != parent.UID || at.Status.Phase != v1alpha1.PhaseRunning {
			t.Errorf("%s is %+v, want what was written", what, at)
		}
	}
}

// TestRead reads what a decision needs: each part once, and in an order in which what was read
// first cannot hide what happened to the other.
func TestRead(t *testing.T) {
	onNodes := func(at *v1alpha1.At) { at.Spec.Nodes = &v1alpha1.AtNodes{} }
	restarts := func(at *v1alpha1.At) {
		at.Spec.Restart = &v1alpha1.AtRestart{Kind: v1alpha1.RestartDeployment, Name: "web"}
		at.Status.Phase, at.Status.Restart = v1alpha1.PhaseRunning, &v1alpha1.AtRestartStatus{UID: "web"}
	}
	restarted := func(at *v1alpha1.At) {
		restarts(at)
		at.Status.Restart.RestartedAt = &metav1.Time{Time: due}
	}
	unavailable := errors.New("connection refused")
	for testName, tc := range map[string]struct {
		cached, live *v1alpha1.At
		fails        string // verb and resource of the request that fails
		need         plan.Reads
		want         string // requests, and what is live then
	}{
		"before a Pod is created":             {cached: newAt(), live: newAt(), need: plan.LiveAt, want: "get ats; live 1"},
		"before a run ends without a Pod":     {cached: newAt(), live: newAt(), need: plan.LiveAll, want: "get ats; get pods; live 2"},
		"before a run on nodes starts":        {cached: newAt(onNodes), live: newAt(onNodes), need: plan.LiveAll, want: "get ats; get pods; create pods; live 2"},
		"before all nodes start":              {cached: newAt(onNodes), live: newAt(onNodes, func(at *v1alpha1.At) { at.Status.Nodes = &v1alpha1.AtNodesStatus{StartTime: &metav1.Time{Time: due}} }), need: plan.LiveAll, want: "get ats; list ats; live 2"},
		"before a restart":                    {cached: newAt(restarts), live: newAt(restarts), need: plan.LiveAll, want: "get deployments; get ats; live 2"},
		"a restart was recorded meanwhile":    {cached: newAt(restarts), live: newAt(restarted), need: plan.LiveAll, want: "get deployments; get ats; live 1"},
		"the At is gone":                      {cached: newAt(), need: plan.LiveAll, want: "get ats; live 1"},
		"the At cannot be read":               {cached: newAt(), live: newAt(), fails: "get ats", need: plan.LiveAll, want: "get ats; error: read At example-at: connection refused"},
		"the Pod cannot be read":              {cached: newAt(), live: newAt(), fails: "get pods", need: plan.LiveAll, want: "get ats; get pods; error: read the Pod: connection refused"},
		"the cache does not have the At, yet": {live: newAt(), need: plan.LiveAt, want: "get ats; live 1"},
	} {
		t.Run(testName, func(t *testing.T) {
			var objects []runtime.Object
			if tc.live != nil {
				objects = append(objects, tc.live)
			}
			f := newFixture(t, objects...)
			f.Targets = workload.NewTargets(f.Clock)
			f.answer(tc.fails, unavailable)
			if tc.live == nil {
				f.answer("get ats", apierrors.NewNotFound(v1alpha1.Resource("ats"), name.Name))
			}
			world := &plan.World{At: tc.cached, Now: due}
			err := f.read(t.Context(), name, world, tc.need)
			got := fmt.Sprintf("%s; live %v", strings.Join(f.requests, "; "), world.Live)
			if err != nil {
				got = fmt.Sprintf("%s; error: %v", strings.Join(f.requests, "; "), err)
			}
			if got != tc.want || err == nil && (world.At != nil) != (tc.live != nil) {
				t.Errorf("got %s, want %s; the At is %v", got, tc.want, world.At)
			}
		})
	}
}
