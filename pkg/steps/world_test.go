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
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeinformers "k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"programming-kubernetes.info/cnat-controller/pkg/apis/cnat/v1alpha1"
	cnatfake "programming-kubernetes.info/cnat-controller/pkg/generated/clientset/versioned/fake"
	cnatinformers "programming-kubernetes.info/cnat-controller/pkg/generated/informers/externalversions"
	"programming-kubernetes.info/cnat-controller/pkg/plan"
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
	world := f.World(name, due, due)
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
	for what, at := range map[string]*v1alpha1.At{"the At": world.At, "the parent": f.World(cache.MetaObjectToName(child), due, due).Parent} {
		if at == nil || at.UID != parent.UID || at.Status.Phase != v1alpha1.PhaseRunning {
			t.Errorf("%s is %+v, want what was written", what, at)
		}
	}
}

// TestListedChildren reads an At after its children were listed: the list is kept unless another
// controller has recorded more children meanwhile.
func TestListedChildren(t *testing.T) {
	withNodes := func(desired int32) *v1alpha1.At {
		return newAt(func(at *v1alpha1.At) { at.Status.Nodes = &v1alpha1.AtNodesStatus{Desired: desired} })
	}
	for recorded, want := range map[int32]bool{1: true, 2: false} {
		f := newFixture(t, withNodes(recorded))
		listed := []*v1alpha1.At{newAt(func(at *v1alpha1.At) { at.Name = "example-at-a" })}
		world := &plan.World{At: withNodes(1), Children: listed, ChildrenAreLive: true, Now: due}
		if _, _, err := f.Take(t.Context(), name, world, plan.Decision{Action: plan.LookForAt{}}); err != nil {
			t.Fatal(err)
		}
		if got := world.ChildrenAreLive && len(world.Children) == 1; got != want {
			t.Errorf("%d children recorded: the list is kept: %t, want %t", recorded, got, want)
		}
	}
}
